/* Private to registry/backup*.c. */
#ifndef MLO_REGISTRY_BACKUP_IMPL_H
#define MLO_REGISTRY_BACKUP_IMPL_H

#include "base/sign.h"
#include "registry/backup.h"

#define MLO_BACKUP_FORMAT "mlopt-backup-1"

/* Rows of blob whose bytes something wants: they are there, or were found damaged. */
#define MLO_BACKUP_WANTED "(removed_at IS NULL OR removed_why = 'damaged')"

/* A snapshot in its folder. Clear it. */
struct mlo_backup_snapshot {
    char *name, *path;
    json_t *manifest;
    struct mlo_digest digest; /* of manifest.json */
    bool is_signed;
    struct mlo_public_key signer; /* when it is signed */
};
void mlo_backup_snapshot_clear(struct mlo_backup_snapshot *snapshot);

/* Writes manifest.json, and its signature where there is a key, into `path`. */
enum mlo_status mlo_backup_manifest_write(const char *path, const json_t *manifest,
                                          const struct mlo_sign_key *key, struct mlo_digest *digest,
                                          struct mlo_error *err);
/* Finds and reads the snapshot, and checks its signature and `trust`. MLO_ENOTFOUND when there is none;
 * MLO_EDIGEST when the signature does not hold. */
enum mlo_status mlo_backup_snapshot_open(const struct mlo_backup_check *check,
                                         struct mlo_backup_snapshot *out, struct mlo_error *err);
/* {"file", "digest", "size"} of a file of the snapshot. NULL with the error set. */
json_t *mlo_backup_file(const char *path, const char *name, struct mlo_error *err);
/* Compares such a file with its entry. */
enum mlo_status mlo_backup_file_check(const struct mlo_backup_snapshot *snapshot, const json_t *file,
                                      struct mlo_error *err);

/* The lines of a list of blobs, in order. A failure of fn ends the walk. */
typedef enum mlo_status mlo_backup_blob_fn(void *arg, const struct mlo_digest *digest, uint64_t size_bytes,
                                           struct mlo_error *err);
enum mlo_status mlo_backup_each_blob(const char *list_path, mlo_backup_blob_fn *fn, void *arg,
                                     struct mlo_error *err);

/* [{project (null: the installation), id, seq, hash}] and [{project, n, id}]: the heads as of the
 * transaction. */
enum mlo_status mlo_backup_heads(struct mlo_db_conn *conn, json_t **audit, json_t **ledgers,
                                 struct mlo_error *err);

/* "DIR/blobs" as a store. */
enum mlo_status mlo_backup_blobs_open(const char *dir, struct mlo_blob_store **out, struct mlo_error *err);

struct mlo_backup_progress {
    mlo_backup_progress_fn *fn;
    void *arg;
    uint64_t done, total;
};
void mlo_backup_progress_add(struct mlo_backup_progress *progress, uint64_t bytes);

#endif
