/* Writing a blob to S3: a small one is one PUT under its digest; so is a large one that may pass. Others go
 * in parts; when the digest was told ahead, to its place, else to a place of its own, from where the server
 * copies it. Either way nothing is seen under the digest before all of it is there. */
#include <stdlib.h>
#include <string.h>

#include "registry/blob_s3_impl.h"

struct s3_writer {
    struct mlo_blob_s3_pass *pass; /* or in parts */
    struct mlo_blob_s3_parts *parts;
    char *key;
    bool direct; /* the key is the blob's own */
};

enum mlo_status mlo_blob_s3_begin(struct mlo_blob_writer *writer, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = writer->store->state;
    struct s3_writer *w = calloc(1, sizeof *w);
    if (!w)
        return mlo_error_nomem(err);
    w->direct = writer->expects;
    w->key = w->direct ? mlo_blob_s3_key(s, &writer->expected) : mlo_blob_s3_incoming(s);
    enum mlo_status status = w->key ? MLO_OK : mlo_error_nomem(err);
    if (status == MLO_OK && writer->may_pass)
        status = mlo_blob_s3_pass_new(s, w->key, &writer->expected, writer->expected_size, &w->pass, err);
    if (status == MLO_OK && !w->pass)
        status = mlo_blob_s3_parts_new(s, w->key, NULL, NULL, 0, writer->expected_size, &w->parts, err);
    if (status != MLO_OK) {
        free(w->key);
        free(w);
        return status;
    }
    writer->state = w;
    writer->passes = w->pass != NULL;
    return MLO_OK;
}

enum mlo_status mlo_blob_s3_write(struct mlo_blob_writer *writer, const void *bytes, size_t size,
                                  struct mlo_error *err)
{
    struct s3_writer *w = writer->state;
    return w->pass ? mlo_blob_s3_pass_write(w->pass, bytes, size, err)
                   : mlo_blob_s3_parts_write(w->parts, bytes, size, err);
}

enum mlo_status mlo_blob_s3_publish(struct mlo_blob_s3 *s, const char *from, const struct mlo_digest *digest,
                                    struct mlo_error *err)
{
    struct mlo_s3_object object;
    enum mlo_status status;
    char *key = mlo_blob_s3_key(s, digest);
    if (!key)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_s3_head(s->s3, from, &object, err));
    MLO_TRY(mlo_blob_s3_copy(s, from, &object, key, digest, err));
    (void)!mlo_s3_delete(s->s3, from, NULL); /* else the sweep finds it */
out:
    free(key);
    return status;
}

enum mlo_status mlo_blob_s3_finish(struct mlo_blob_writer *writer, const struct mlo_digest *digest,
                                   struct mlo_error *err)
{
    struct mlo_blob_s3 *s = writer->store->state;
    struct s3_writer *w = writer->state;
    enum mlo_status status;
    char *key = NULL;
    if (w->pass)
        return mlo_blob_s3_pass_finish(w->pass, err);
    if (mlo_blob_s3_parts_upload(w->parts)) {
        MLO_TRY(mlo_blob_s3_parts_complete(w->parts, err));
        if (!w->direct)
            MLO_TRY(mlo_blob_s3_publish(s, w->key, digest, err));
    } else {
        size_t size;
        const char *bytes = mlo_blob_s3_parts_rest(w->parts, &size);
        key = mlo_blob_s3_key(s, digest);
        if (!key) {
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(mlo_s3_put(s->s3, key, bytes, size, digest, err));
    }
out:
    free(key);
    return status;
}

void mlo_blob_s3_end(struct mlo_blob_writer *writer)
{
    struct s3_writer *w = writer->state;
    mlo_blob_s3_pass_free(w->pass);
    mlo_blob_s3_parts_free(w->parts, true);
    free(w->key);
    free(w);
}
