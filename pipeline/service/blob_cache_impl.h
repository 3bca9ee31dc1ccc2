/* Blobs that were fetched from a store of objects, kept on this machine for the next job: <dir>/<64
 * hex>.blob.
 *
 * Shared by all workers of a machine, without a lock: a file gets its name when it is whole, a name never
 * changes its bytes, and who linked a file keeps it whatever happens to the name. The bytes are checked
 * against the digest each time they are given out, not only when they come in: a disk that lies, or a machine
 * that lost its power between a write and its name, costs a fetch and no wrong artifact. That reads the file
 * once (1.5 to 2 GB/s with SHA-NI), which the job does next anyway, from memory then. What was not used for
 * longest goes first. */
#ifndef MLO_SERVICE_BLOB_CACHE_IMPL_H
#define MLO_SERVICE_BLOB_CACHE_IMPL_H

#include "base/base.h"

struct mlo_blob_cache {
    const char *dir;     /* made when it is needed */
    const char *scratch; /* on the same disk: what is being fetched */
    uint64_t max_bytes;  /* the blob that came last stays, however large it is */
};

/* Gets the blob, checked: *path is yours (free). In `scratch`, then the file is taken over, or the store's
 * own. */
typedef enum mlo_status mlo_blob_fetch_fn(void *arg, const struct mlo_digest *digest, const char *scratch,
                                          char **path, struct mlo_error *err);

/* Makes `to` a link to the blob's bytes, which nobody may write to: a hard one where the disk allows it.
 * *hit (may be NULL): nothing was fetched. */
MLO_MUST_USE enum mlo_status mlo_blob_cache_place(const struct mlo_blob_cache *cache,
                                                  const struct mlo_digest *digest, mlo_blob_fetch_fn *fetch,
                                                  void *arg, const char *to, bool *hit,
                                                  struct mlo_error *err);

#endif
