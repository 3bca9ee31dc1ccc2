/* Objects that get another name. The S3 server copies them; one that does not (Ceph 16 copies nothing that it
 * has encrypted) has them read and written by us, in the memory of one writer. */
#include <stdlib.h>
#include <string.h>

#include "registry/blob_s3_impl.h"

struct through {
    struct mlo_blob_s3_parts *parts;
    struct mlo_hasher *hasher;
};

static enum mlo_status pass_on(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    struct through *t = arg;
    mlo_hasher_update(t->hasher, bytes, size);
    return mlo_blob_s3_parts_write(t->parts, bytes, size, err);
}

static enum mlo_status check(const struct through *t, const struct mlo_s3_object *read,
                             const struct mlo_s3_object *object, const struct mlo_digest *digest,
                             struct mlo_error *err)
{
    struct mlo_digest got;
    mlo_hasher_final(t->hasher, &got);
    if (read->size_bytes != object->size_bytes || strcmp(read->etag, object->etag) != 0)
        return mlo_error_set(err, MLO_EPRECONDITION, "the object changed while it was copied");
    if (digest && !mlo_digest_eq(&got, digest))
        return mlo_error_set(err, MLO_EDIGEST, "other bytes were read than were written");
    return MLO_OK;
}

static enum mlo_status copy_through(struct mlo_blob_s3 *s, const char *from,
                                    const struct mlo_s3_object *object, const char *to,
                                    const struct mlo_digest *digest, struct mlo_error *err)
{
    struct through t = {.hasher = mlo_hasher_new()};
    struct mlo_s3_object read;
    size_t size;
    enum mlo_status status;
    if (!t.hasher) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_blob_s3_parts_new(s, to, NULL, NULL, 0, object->size_bytes, &t.parts, err));
    MLO_TRY(mlo_s3_get(s->s3, from, 0, UINT64_MAX, object->size_bytes, pass_on, &t, &read, err));
    MLO_TRY(check(&t, &read, object, digest, err));
    if (mlo_blob_s3_parts_upload(t.parts)) {
        MLO_TRY(mlo_blob_s3_parts_complete(t.parts, err));
    } else {
        const char *bytes = mlo_blob_s3_parts_rest(t.parts, &size);
        MLO_TRY(mlo_s3_put(s->s3, to, bytes, size, digest, err));
    }
out:
    mlo_blob_s3_parts_free(t.parts, true);
    mlo_hasher_free(t.hasher);
    return status;
}

enum mlo_status mlo_blob_s3_copy(struct mlo_blob_s3 *s, const char *from, const struct mlo_s3_object *object,
                                 const char *to, const struct mlo_digest *digest, struct mlo_error *err)
{
    struct mlo_error own = {0};
    enum mlo_status status = mlo_s3_copy(s->s3, from, object, to, &own);
    if (status == MLO_EUNSUPPORTED)
        return copy_through(s, from, object, to, digest, err);
    if (status != MLO_OK && err)
        *err = own;
    return status;
}
