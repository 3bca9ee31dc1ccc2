/* Copies on the server, in one request or in parts. */
#include <stdlib.h>
#include <string.h>

#include "registry/s3_impl.h"

#define COPY_PART_BYTES (1ull << 30)

static enum mlo_status copy_parts(struct mlo_s3 *s3, const char *source, const struct mlo_s3_object *object,
                                  bool conditional, const char *to, struct mlo_error *err)
{
    size_t count = (size_t)((object->size_bytes + COPY_PART_BYTES - 1) / COPY_PART_BYTES);
    struct mlo_s3_part *parts = calloc(count, sizeof *parts);
    char *upload = NULL;
    enum mlo_status status = parts ? MLO_OK : mlo_error_nomem(err);
    if (status == MLO_OK)
        status = mlo_s3_multipart_create(s3, to, &upload, err);
    for (size_t i = 0; status == MLO_OK && i < count; i++) {
        struct mlo_s3_call call = {.method = "PUT", .key = to, .crypt = MLO_S3_CRYPT_COPY};
        uint64_t first = i * COPY_PART_BYTES, size = MLO_MIN(COPY_PART_BYTES, object->size_bytes - first);
        char digits[12], range[64];
        snprintf(digits, sizeof digits, "%zu", i + 1);
        snprintf(range, sizeof range, "bytes=%llu-%llu", (unsigned long long)first,
                 (unsigned long long)(first + size - 1));
        mlo_s3_call_query(&call, "partNumber", digits);
        mlo_s3_call_query(&call, "uploadId", upload);
        mlo_s3_call_header(&call, "x-amz-copy-source", source);
        mlo_s3_call_header(&call, "x-amz-copy-source-range", range);
        if (conditional)
            mlo_s3_call_header(&call, "x-amz-copy-source-if-match", object->etag);
        parts[i].number = (int)i + 1;
        parts[i].size_bytes = size;
        status = mlo_s3_perform_slowly(s3, &call, "ETag", parts[i].etag, sizeof parts[i].etag, err);
        mlo_s3_call_clear(&call);
    }
    bool ours = status != MLO_OK; /* the parts: nobody may have made the object of them */
    if (status == MLO_OK)
        status = mlo_s3_multipart_complete(s3, to, upload, parts, count, &ours, err);
    if (status != MLO_OK && upload && ours)
        (void)!mlo_s3_multipart_abort(s3, to, upload, NULL);
    free(upload);
    free(parts);
    return status;
}

static enum mlo_status copy(struct mlo_s3 *s3, const char *source, const struct mlo_s3_object *object,
                            bool conditional, const char *to, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "PUT", .key = to, .crypt = MLO_S3_CRYPT_COPY};
    struct mlo_s3_object made;
    char etag[MLO_S3_ETAG_SIZE];
    enum mlo_status status;
    if (object->size_bytes > MLO_S3_OBJECT_MAX)
        return copy_parts(s3, source, object, conditional, to, err);
    mlo_s3_call_header(&call, "x-amz-copy-source", source);
    /* by none: who wrote the source may have sent some */
    mlo_s3_call_header(&call, "x-amz-metadata-directive", "REPLACE");
    if (conditional)
        mlo_s3_call_header(&call, "x-amz-copy-source-if-match", object->etag);
    MLO_TRY(mlo_s3_perform_slowly(s3, &call, "ETag", etag, sizeof etag, err));
    MLO_TRY(mlo_s3_head(s3, to, &made, err));
    if (made.size_bytes != object->size_bytes)
        status = mlo_error_set(err, MLO_EDIGEST, "S3 made a copy of %llu bytes of an object of %llu",
                               (unsigned long long)made.size_bytes, (unsigned long long)object->size_bytes);
out:
    mlo_s3_call_clear(&call);
    return status;
}

static enum mlo_status check_same(struct mlo_s3 *s3, const char *key, const struct mlo_s3_object *object,
                                  struct mlo_error *err)
{
    struct mlo_s3_object now;
    enum mlo_status status = mlo_s3_head(s3, key, &now, err);
    if (status == MLO_OK && (now.size_bytes != object->size_bytes || strcmp(now.etag, object->etag) != 0)) {
        status = mlo_error_set(err, MLO_EPRECONDITION, "the object changed while it was copied");
        mlo_error_where(err, "s3://%s/%s", s3->bucket, key);
    }
    return status;
}

enum mlo_status mlo_s3_copy(struct mlo_s3 *s3, const char *from, const struct mlo_s3_object *object,
                            const char *to, struct mlo_error *err)
{
    struct mlo_buf source = MLO_BUF_INIT;
    struct mlo_error own = {0};
    enum mlo_status status;
    mlo_buf_printf(&source, "/%s/", s3->bucket);
    mlo_s3_encode(&source, from, true);
    if (!mlo_buf_ok(&source)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    status = copy(s3, mlo_buf_str(&source), object, true, to, &own);
    if (status == MLO_EPRECONDITION && strchr(object->etag, '-')) {
        /* Swift compares the condition with an ETag that it tells nobody when the object was made of parts:
         * it is asked before and after instead. */
        MLO_TRY(check_same(s3, from, object, err));
        MLO_TRY(copy(s3, mlo_buf_str(&source), object, false, to, err));
        MLO_TRY(check_same(s3, from, object, err));
    } else if (status != MLO_OK && err) {
        *err = own;
    }
out:
    mlo_buf_clear(&source);
    return status;
}
