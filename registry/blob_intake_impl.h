/* Private to registry/blob*.c: the way of the bytes of an upload to the hash and to the store. */
#ifndef MLO_REGISTRY_BLOB_INTAKE_IMPL_H
#define MLO_REGISTRY_BLOB_INTAKE_IMPL_H

#include "base/base.h"

/* Takes the next bytes of a blob; a failure ends the reading. */
typedef enum mlo_status mlo_blob_sink_fn(void *arg, const void *bytes, size_t size, struct mlo_error *err);

/* Of one caller. What the caller may look at is size_bytes; the hasher, when mlo_blob_intake_settle is done.
 */
struct mlo_blob_intake {
    struct mlo_hasher *hasher;
    mlo_blob_sink_fn *write; /* the store's */
    void *arg;
    uint64_t size_bytes; /* taken */
    struct mlo_blob_beside *beside;
    struct mlo_error failed; /* the first failure of `write`; status MLO_OK: none */
};

/* In place, without any bytes; `arg` is borrowed. */
enum mlo_status mlo_blob_intake_open(struct mlo_blob_intake *in, mlo_blob_sink_fn *write, void *arg,
                                     struct mlo_error *err);
/* The next bytes, for the hash and the store: at once, or, in a large upload, copied for a thread that does
 * both. Waits while that is 1 MiB behind. A failure may be that of bytes that came before. */
enum mlo_status mlo_blob_intake_add(struct mlo_blob_intake *in, const void *bytes, size_t size,
                                    struct mlo_error *err);
/* All bytes are hashed then; and written, or it says why not (again, whenever it is asked). */
enum mlo_status mlo_blob_intake_settle(struct mlo_blob_intake *in, struct mlo_error *err);
/* What was not settled is dropped; `write` is not called any more then. Of one that was never opened:
 * nothing. */
void mlo_blob_intake_close(struct mlo_blob_intake *in);

#endif
