/* Blobs by the bucket's own address: clients that the operator lets through read them from there. */
#include <stdlib.h>
#include <string.h>

#include "registry/blob_s3_impl.h"

enum mlo_status mlo_blob_s3_open_outside(struct mlo_blob_s3 *s, const struct mlo_s3_options *inside,
                                         const char *redirect, const char *direct, struct mlo_error *err)
{
    struct mlo_s3_options outside = *inside;
    outside.payload = NULL; /* this one sends nothing */
    s->direct_parts = mlo_str_eq(direct, "parts");
    s->direct = s->direct_parts || mlo_str_eq(direct, "yes");
    if (direct && !s->direct && strcmp(direct, "no") != 0)
        return mlo_error_set(err, MLO_EINVAL, "direct=%.40s is neither no, yes nor parts", direct);
    if (s->direct && (!redirect || strcmp(redirect, "no") == 0)) {
        mlo_error_set(err, MLO_EINVAL, "direct=%s needs the address at which clients reach the bucket",
                      direct);
        mlo_error_hint(err, "add redirect=yes, or redirect=https://host");
        return MLO_EINVAL;
    }
    if (!redirect || strcmp(redirect, "no") == 0)
        return MLO_OK;
    if (strcmp(redirect, "yes") != 0)
        outside.endpoint = redirect;
    enum mlo_status status = mlo_s3_open(&outside, &s->outside, err);
    if (status != MLO_OK) {
        mlo_error_prefix(err, "redirect=%.200s", redirect);
        mlo_error_hint(err, "redirect=no, yes, or the address at which clients reach the bucket's server");
    }
    return status;
}

enum mlo_status mlo_blob_s3_address(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                    const char *file_name, char **url, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct mlo_buf disposition = MLO_BUF_INIT;
    char text[MLO_DIGEST_TEXT_SIZE], *key = NULL;
    enum mlo_status status;
    if (!s->outside)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "clients are not sent to the bucket: redirect=no");
    key = mlo_blob_s3_key(s, digest);
    if (file_name)
        mlo_buf_printf(&disposition, "attachment; filename=\"%s\"", file_name);
    if (!key || !mlo_buf_ok(&disposition)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    const struct mlo_s3_grant grant = {
        .key = key,
        .content_type = "application/octet-stream",
        .disposition = file_name ? mlo_buf_str(&disposition) : NULL,
        .cache_control = "private, no-cache",
        .expires_s = MLO_BLOB_ADDRESS_S,
    };
    MLO_TRY(mlo_s3_presign_url(s->outside, &grant, url, err));
    /* asked for here: from the bucket's server he would get a refusal that says nothing of us */
    status = mlo_s3_head(s->s3, key, NULL, err);
    if (status == MLO_ENOTFOUND)
        mlo_error_prefix(err, "blob %s", mlo_digest_text(digest, text));
out:
    if (status != MLO_OK) {
        free(*url);
        *url = NULL;
    }
    free(key);
    mlo_buf_clear(&disposition);
    return status;
}
