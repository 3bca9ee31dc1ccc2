/* Private to registry/blob*.c: hashing on a thread of its own. */
#ifndef MLO_REGISTRY_BLOB_HASH_IMPL_H
#define MLO_REGISTRY_BLOB_HASH_IMPL_H

#include "base/base.h"

struct mlo_blob_hash;

/* The next bytes for the hasher, which saw `so_far` of this upload: at once, or, in a large upload, copied
 * for a thread, which *beside (NULL at first) stands for from then on. Waits while that is 1 MiB behind. One
 * caller at a time; the hasher is the thread's until mlo_blob_hash_end. */
void mlo_blob_hash_add(struct mlo_blob_hash **beside, struct mlo_hasher *hasher, uint64_t so_far,
                       const void *bytes, size_t size);
/* The hasher has seen all bytes then. *beside may be NULL, and is after. */
void mlo_blob_hash_end(struct mlo_blob_hash **beside);

#endif
