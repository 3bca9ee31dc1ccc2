/* Backups: database, blobs and ledgers of one moment, taken while the service runs, in a folder:
 *
 *     DIR/blobs/sha256/…           the bytes, by digest, shared by all backups in the folder
 *     DIR/snapshots/TIME/          one backup; it appears by one rename, when it is whole
 *         manifest.json            what it is, with the digest of everything in it
 *         manifest.json.sig        signature of the manifest by the key that signs ledgers (SSHSIG,
 * "mlopt-backup") database.dump            pg_dump of the schema mlopt, custom format blobs "HEX SIZE" lines,
 * sorted: the blobs that the database names keys/                    private keys, only where asked for
 *
 * One transaction exports its snapshot to pg_dump and lists the blobs, so both are of the same moment; blobs
 * are written before their rows, so all of them are there; MLO_BLOB_HOLD_KEY (blob.h) keeps them from being
 * removed. Ledgers are rows; their repositories are made again from them, to the same ids. */
#ifndef MLO_REGISTRY_BACKUP_H
#define MLO_REGISTRY_BACKUP_H

#include "registry/blob.h"
#include "registry/db.h"

/* A file with a private key: "ledger.key", and where it is (backup) or is to be (restore). */
struct mlo_backup_key {
    const char *name, *path;
};

/* fraction is 0 to 1. */
typedef void mlo_backup_progress_fn(void *arg, double fraction, const char *message);
/* Called at each step, with its name; for tests of what a kill there leaves. */
typedef void mlo_backup_step_fn(void *arg, const char *step);

struct mlo_backup_options {
    const char *dir;                   /* made when it is not there, mode 0700 */
    struct mlo_db *db;                 /* the owner's role; one connection is used */
    struct mlo_blob_store *blobs;      /* where they are */
    const char *key_path;              /* signs the manifest; NULL: nobody does */
    const struct mlo_backup_key *keys; /* put into the backup, with the secrets of webhooks; none: neither */
    size_t key_count;
    bool check; /* blobs that are in the folder already are read and compared, and replaced if damaged */
    bool
        allow_damaged; /* make a backup without the blobs that the store has lost, which the manifest names */
    mlo_backup_progress_fn *on_progress; /* or NULL */
    void *progress_arg;
    mlo_backup_step_fn *on_step; /* or NULL */
    void *step_arg;
};
/* Makes a backup. *report (yours) is {snapshot, digest (of the manifest), signed_by, blobs, bytes, copied,
 * copied_bytes, missing: […], missing_needed: how many of those, the first, something refers to}. MLO_EDIGEST
 * names a blob that the store lost or that changed there: nothing was made then, but what could be copied
 * stays for the next time. MLO_ECONFLICT while another one writes there. */
MLO_MUST_USE enum mlo_status mlo_backup_make(const struct mlo_backup_options *options, json_t **report,
                                             struct mlo_error *err);

struct mlo_backup_check {
    const char *dir;
    const char *snapshot; /* NULL: the newest */
    const char *trust;    /* "SHA256:…": it must be signed by this key; NULL: by any, or by nobody */
    mlo_backup_progress_fn *on_progress; /* or NULL */
    void *progress_arg;
};
/* Reads all of a backup. *report (yours) is {snapshot, digest, made_at, signed_by, blobs, bytes, problems:
 * […]}; MLO_EDIGEST when there are problems, the error being the first of them. Says nothing of whether the
 * signer is to be trusted, unless told. */
MLO_MUST_USE enum mlo_status mlo_backup_verify(const struct mlo_backup_check *check, json_t **report,
                                               struct mlo_error *err);

struct mlo_restore_options {
    struct mlo_backup_check from;
    struct mlo_db *db;            /* the owner's role, of a database without the schema mlopt */
    struct mlo_blob_store *blobs; /* empty */
    bool resume;                  /* it may hold blobs: a restore was cut off */
    const struct mlo_backup_key
        *keys; /* where keys of the backup go, mode 0600; what it has not is left out */
    size_t key_count;
};
/* Copies the blobs, loads the database, brings it to this program's schema, and checks every audit chain and
 * every ledger against the heads in the manifest. Blobs that had been found damaged, and whose right bytes
 * the backup had, count as there again. *report (yours) is {snapshot, digest, signed_by, blobs, bytes,
 * healed, projects, entries, commits, migrations, webhooks_paused (those that were enabled), keys: […]}.
 * MLO_ECONFLICT when database or store are not empty, or the backup is of a newer schema; MLO_EDIGEST names
 * what is damaged. */
MLO_MUST_USE enum mlo_status mlo_backup_restore(const struct mlo_restore_options *options, json_t **report,
                                                struct mlo_error *err);

#endif
