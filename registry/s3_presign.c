/* Presigned addresses: what somebody without keys may do with one object, for a while. */
#include <stdlib.h>

#include "registry/s3_impl.h"

static void need(struct mlo_s3_headers *out, const char *name, const char *value)
{
    if (value)
        out->items[out->count++] = (struct mlo_s3_pair){name, value};
}

void mlo_s3_grant_headers(const struct mlo_s3 *s3, const struct mlo_s3_grant *grant,
                          struct mlo_s3_headers *out)
{
    out->count = 0;
    need(out, "Content-MD5", grant->md5);
    if (!grant->digest)
        return;
    need(out, "x-amz-content-sha256", mlo_digest_hex(grant->digest, out->hex));
    need(out, "x-amz-server-side-encryption", s3->encryption);
    if (s3->encryption)
        need(out, "x-amz-server-side-encryption-aws-kms-key-id", s3->kms_key);
}

enum mlo_status mlo_s3_presign_url(struct mlo_s3 *s3, const struct mlo_s3_grant *grant, char **url,
                                   struct mlo_error *err)
{
    const struct mlo_s3_keys keys = {s3->access_key, s3->secret_key, s3->session_token};
    struct mlo_buf path = MLO_BUF_INIT, text = MLO_BUF_INIT;
    char digits[12];
    const struct mlo_s3_pair part[] = {{"partNumber", digits}, {"uploadId", grant->upload}};
    const struct mlo_s3_pair answer[] = {{"response-content-type", grant->content_type},
                                         {"response-content-disposition", grant->disposition},
                                         {"response-cache-control", grant->cache_control}};
    struct mlo_s3_pair given[MLO_COUNT(answer)];
    struct mlo_s3_headers needed;
    struct mlo_s3_pair headers[MLO_S3_GRANT_HEADERS + 1];
    char length[24];
    size_t count = 0, header_count = 0;
    bool writes = grant->upload || grant->digest;
    enum mlo_status status;
    *url = NULL;
    if (s3->customer_key)
        return mlo_error_set(err, MLO_EUNSUPPORTED,
                             "with a customer's encryption key there are no presigned addresses");
    for (size_t i = 0; i < MLO_COUNT(answer); i++)
        if (answer[i].value)
            given[count++] = answer[i];
    snprintf(digits, sizeof digits, "%d", grant->number);
    snprintf(length, sizeof length, "%llu", (unsigned long long)grant->size_bytes);
    if (grant->size_bytes)
        headers[header_count++] = (struct mlo_s3_pair){"content-length", length};
    mlo_s3_grant_headers(s3, grant, &needed);
    for (size_t i = 0; i < needed.count; i++)
        headers[header_count++] = needed.items[i];
    mlo_buf_printf(&path, "%s/", s3->path);
    mlo_s3_encode(&path, grant->key, true);
    mlo_buf_printf(&text, "%s%s?", s3->base, mlo_buf_str(&path));
    const struct mlo_s3_request request = {
        .method = writes ? "PUT" : "GET",
        .host = s3->host,
        .path = mlo_buf_str(&path),
        .query = grant->upload ? part : given,
        .query_count = grant->upload ? MLO_COUNT(part) : count,
        .headers = headers,
        .header_count = header_count,
        .payload_hash = grant->digest ? needed.hex : NULL,
        .region = s3->region,
        .utc_s = mlo_clock_utc_us() / 1000000,
    };
    if (!mlo_buf_ok(&path)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_s3_presign(&request, &keys, grant->expires_s, &text, err));
    *url = mlo_buf_take(&text);
out:
    mlo_buf_clear(&path);
    mlo_buf_clear(&text);
    return status;
}
