/* Whether the server looks at what it is to look at: asked with small objects. */
#include <stdlib.h>
#include <string.h>

#include "registry/s3_impl.h"

static const char TEXT[] = "is this looked at?", OTHER[] = "or is it taken up?";
enum { SIZE = sizeof TEXT - 1 };
_Static_assert(sizeof OTHER == sizeof TEXT, "of one size: it is signed");

enum mlo_status mlo_s3_checks_digests(struct mlo_s3 *s3, const char *key, bool *checks, struct mlo_error *err)
{
    struct mlo_digest other;
    struct mlo_s3_call call = {.method = "PUT",
                               .key = key,
                               .crypt = MLO_S3_CRYPT_WRITE,
                               .body = TEXT,
                               .body_size = SIZE,
                               .digest = &other};
    *checks = false;
    mlo_digest_of("no", 2, &other);
    bool passes;
    enum mlo_status status = mlo_s3_attempt(s3, &call, false, &passes, err);
    mlo_s3_call_clear(&call);
    if (status == MLO_OK)
        return mlo_s3_delete(s3, key, err);
    *checks = status == MLO_EDIGEST;
    return passes ? status : MLO_OK;
}

/* Other bytes than those that the address is for; with `source`, and a header that names it. */
static enum mlo_status put_other(struct mlo_s3 *s3, const struct mlo_s3_grant *grant, const char *source,
                                 bool *passes, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "PUT", .key = grant->key, .body = TEXT, .body_size = SIZE};
    struct mlo_s3_headers headers;
    struct mlo_buf from = MLO_BUF_INIT;
    char *url = NULL;
    enum mlo_status status;
    *passes = false;
    MLO_TRY(mlo_s3_presign_url(s3, grant, &url, err));
    call.address = url;
    mlo_s3_grant_headers(s3, grant, &headers);
    for (size_t i = 0; i < headers.count; i++)
        mlo_s3_call_header(&call, headers.items[i].name, headers.items[i].value);
    if (source) {
        mlo_buf_printf(&from, "/%s/", s3->bucket);
        mlo_s3_encode(&from, source, true);
        if (!mlo_buf_ok(&from)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        mlo_s3_call_header(&call, "x-amz-copy-source", mlo_buf_str(&from));
    }
    status = mlo_s3_attempt(s3, &call, false, passes, err);
out:
    mlo_s3_call_clear(&call);
    mlo_buf_clear(&from);
    free(url);
    return status;
}

/* Refused for good, the first time for the bytes; and nothing is there. */
static enum mlo_status ask_presigned(struct mlo_s3 *s3, const struct mlo_s3_grant *grant, const char *source,
                                     bool *checks, struct mlo_error *err)
{
    struct mlo_error refused = {0};
    bool passes;
    enum mlo_status status = put_other(s3, grant, source, &passes, &refused);
    *checks = source ? status != MLO_OK : status == MLO_EDIGEST;
    if (status != MLO_OK && passes) {
        *checks = false;
        if (err)
            *err = refused;
        return status;
    }
    if (!*checks)
        return MLO_OK;
    status = mlo_s3_head(s3, grant->key, NULL, &refused);
    *checks = status == MLO_ENOTFOUND;
    if (status != MLO_OK && status != MLO_ENOTFOUND && err)
        *err = refused;
    return status == MLO_ENOTFOUND ? MLO_OK : status;
}

enum mlo_status mlo_s3_checks_presigned(struct mlo_s3 *s3, const char *key, const char *other_key,
                                        bool *checks, struct mlo_error *err)
{
    struct mlo_digest digest;
    const struct mlo_s3_grant grant = {
        .key = key, .digest = &digest, .mark = "none", .size_bytes = SIZE, .expires_s = 60};
    enum mlo_status status, removed;
    *checks = false;
    mlo_digest_of(OTHER, SIZE, &digest);
    MLO_TRY(ask_presigned(s3, &grant, NULL, checks, err));
    if (*checks) {
        MLO_TRY(mlo_s3_put(s3, other_key, OTHER, SIZE, &digest, err));
        MLO_TRY(ask_presigned(s3, &grant, other_key, checks, err));
    }
out:
    removed = mlo_s3_delete(s3, key, status == MLO_OK ? err : NULL);
    if (removed == MLO_OK)
        removed = mlo_s3_delete(s3, other_key, status == MLO_OK ? err : NULL);
    *checks = *checks && status == MLO_OK && removed == MLO_OK;
    return status != MLO_OK ? status : removed;
}
