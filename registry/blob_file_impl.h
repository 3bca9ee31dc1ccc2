/* Private to registry/blob_file*.c. */
#ifndef MLO_REGISTRY_BLOB_FILE_IMPL_H
#define MLO_REGISTRY_BLOB_FILE_IMPL_H

#include <stdatomic.h>

#include "registry/blob_impl.h"

enum { MLO_BLOB_FOLDERS = 256 + 65536 }; /* sha256/ab, then sha256/ab/cd */

struct mlo_blob_files {
    char *root;
    /* A bit for each folder whose name this process knows to be on the disk. */
    atomic_uchar durable[MLO_BLOB_FOLDERS / 8];
};

/* <root>/sha256/ab/cd/<64 hex digits>. Yours (free); NULL: out of memory. */
char *mlo_blob_file_path(const struct mlo_blob_files *s, const struct mlo_digest *digest);
/* False with errno. */
bool mlo_blob_sync_folder(const char *path);

enum mlo_status mlo_blob_file_list(struct mlo_blob_store *store, unsigned shard, mlo_blob_entry_fn *fn,
                                   void *arg, struct mlo_error *err);
enum mlo_status mlo_blob_file_remove(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                     struct mlo_error *err);
enum mlo_status mlo_blob_file_put_aside(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                        const char *name, struct mlo_error *err);
enum mlo_status mlo_blob_file_leftovers(struct mlo_blob_store *store, mlo_blob_leftover_fn *fn, void *arg,
                                        struct mlo_error *err);
enum mlo_status mlo_blob_file_leftover_drop(struct mlo_blob_store *store,
                                            const struct mlo_blob_leftover *left, bool *removed,
                                            struct mlo_error *err);

#endif
