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

/* Bytes by the address; with `source`, and a header that names it. *http: of the answer, 0: there is none. */
static enum mlo_status put_by(struct mlo_s3 *s3, const struct mlo_s3_grant *grant, const char *bytes,
                              const char *source, long *http, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "PUT", .key = grant->key, .body = bytes, .body_size = SIZE};
    struct mlo_s3_headers headers;
    struct mlo_buf from = MLO_BUF_INIT;
    char *url = NULL;
    bool passes;
    enum mlo_status status;
    MLO_TRY(mlo_s3_presign_url(s3, grant, &url, err));
    call.address = url;
    mlo_s3_grant_headers(s3, grant, &headers);
    for (size_t i = 0; i < headers.count; i++)
        mlo_s3_call_header(&call, headers.items[i].name, headers.items[i].value);
    if (source) {
        mlo_buf_printf(&from, "/%s/", s3->bucket);
        mlo_s3_encode(&from, source, true);
        mlo_s3_call_header(&call, "x-amz-copy-source", mlo_buf_str(&from));
    }
    status = mlo_buf_ok(&from) ? mlo_s3_attempt(s3, &call, false, &passes, err) : mlo_error_nomem(err);
out:
    *http = call.http;
    mlo_s3_call_clear(&call);
    mlo_buf_clear(&from);
    free(url);
    return status;
}

static enum mlo_status fail(const struct mlo_error *why, struct mlo_error *err)
{
    if (err)
        *err = *why;
    return why->status;
}

/* Three times: other bytes, which it must refuse for what they are; a copy in their place, which it must
 * refuse somehow; and the right ones. Any other answer says nothing. */
static enum mlo_status ask_presigned(struct mlo_s3 *s3, const struct mlo_s3_grant *grant, const char *source,
                                     bool *checks, struct mlo_error *err)
{
    struct mlo_error refused = {0}, absent = {0};
    long http;
    if (put_by(s3, grant, TEXT, NULL, &http, &refused) == MLO_OK)
        return MLO_OK;
    if (refused.status != MLO_EDIGEST)
        return fail(&refused, err);
    if (put_by(s3, grant, TEXT, source, &http, &refused) == MLO_OK)
        return MLO_OK;
    if (http != 400 && http != 403 && http != 501)
        return fail(&refused, err);
    enum mlo_status status = mlo_s3_head(s3, grant->key, NULL, &absent);
    if (status != MLO_ENOTFOUND)
        return status == MLO_OK ? MLO_OK : fail(&absent, err);
    status = put_by(s3, grant, OTHER, NULL, &http, err);
    *checks = status == MLO_OK;
    return status;
}

enum mlo_status mlo_s3_checks_presigned(struct mlo_s3 *s3, const char *key, const char *other_key,
                                        bool *checks, struct mlo_error *err)
{
    struct mlo_digest digest;
    const struct mlo_s3_grant grant = {.key = key, .digest = &digest, .size_bytes = SIZE, .expires_s = 60};
    struct mlo_error ignored = {0};
    enum mlo_status status;
    *checks = false;
    mlo_digest_of(OTHER, SIZE, &digest);
    MLO_TRY(mlo_s3_put(s3, other_key, OTHER, SIZE, &digest, err));
    MLO_TRY(ask_presigned(s3, &grant, other_key, checks, err));
out:
    (void)!mlo_s3_delete(s3, key, &ignored); /* else it is swept with what killed servers left */
    (void)!mlo_s3_delete(s3, other_key, &ignored);
    return status;
}
