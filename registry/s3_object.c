/* Whole objects: put, get, head, delete; the bucket itself. */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "registry/s3_impl.h"

enum mlo_status mlo_s3_check_bucket(struct mlo_s3 *s3, struct mlo_error *err)
{
    /* GET of one key and not HEAD: its refusals say why */
    struct mlo_s3_call call = {.method = "GET"};
    mlo_s3_call_query(&call, "list-type", "2");
    mlo_s3_call_query(&call, "max-keys", "1");
    enum mlo_status status = mlo_s3_perform(s3, &call, err);
    mlo_s3_call_clear(&call);
    return status;
}

enum mlo_status mlo_s3_make_bucket(struct mlo_s3 *s3, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "PUT"};
    struct mlo_buf body = MLO_BUF_INIT;
    if (strcmp(s3->region, "us-east-1") != 0 && strstr(s3->host, "amazonaws.com")) {
        mlo_buf_printf(&body,
                       "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
                       "<LocationConstraint>%s</LocationConstraint></CreateBucketConfiguration>",
                       s3->region);
        if (!mlo_buf_ok(&body))
            return mlo_error_nomem(err);
        call.body = mlo_buf_str(&body);
        call.body_size = body.len;
    }
    enum mlo_status status = mlo_s3_perform(s3, &call, err);
    if (status != MLO_OK && strcmp(call.code, "BucketAlreadyOwnedByYou") == 0)
        status = MLO_OK;
    mlo_s3_call_clear(&call);
    mlo_buf_clear(&body);
    return status;
}

/* An ETag that is an MD5 must be that of the bytes. */
static enum mlo_status check_etag(const struct mlo_s3 *s3, const struct mlo_s3_call *call,
                                  const char *md5_hex, struct mlo_error *err)
{
    const char *etag = call->object.etag;
    if (call->encrypted || s3->customer_key || strlen(etag) != 34 || strncmp(etag + 1, md5_hex, 32) == 0)
        return MLO_OK;
    mlo_error_set(err, MLO_EDIGEST, "the S3 server says it stored bytes of the MD5 %.34s, and it was sent %s",
                  etag, md5_hex);
    mlo_error_where(err, "s3://%s/%s", s3->bucket, call->key);
    mlo_error_hint(err,
                   "something between here and the S3 server changes what passes: try again, and find it");
    return MLO_EDIGEST;
}

enum mlo_status mlo_s3_put(struct mlo_s3 *s3, const char *key, const void *bytes, size_t size,
                           const struct mlo_digest *digest, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "PUT",
                               .key = key,
                               .crypt = MLO_S3_CRYPT_WRITE,
                               .body = bytes,
                               .body_size = size,
                               .digest = digest};
    uint8_t md5[EVP_MAX_MD_SIZE];
    unsigned n;
    char hex[2 * EVP_MAX_MD_SIZE + 1];
    unsigned char base64[EVP_MAX_MD_SIZE * 2];
    enum mlo_status status;
    if (EVP_Digest(size ? bytes : "", size, md5, &n, EVP_md5(), NULL) != 1)
        return mlo_error_nomem(err);
    mlo_hex(md5, n, hex);
    EVP_EncodeBlock(base64, md5, (int)n);
    mlo_s3_call_header(&call, "content-md5", (const char *)base64);
    MLO_TRY(mlo_s3_perform(s3, &call, err));
    MLO_TRY(check_etag(s3, &call, hex, err));
out:
    mlo_s3_call_clear(&call);
    return status;
}

enum mlo_status mlo_s3_head(struct mlo_s3 *s3, const char *key, struct mlo_s3_object *out,
                            struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "HEAD", .key = key, .crypt = MLO_S3_CRYPT_USE};
    enum mlo_status status = mlo_s3_perform(s3, &call, err);
    if (status == MLO_OK && !call.has_length)
        status = mlo_error_set(err, MLO_EFORMAT, "the S3 server does not say how large %s is", key);
    if (status == MLO_OK && out)
        *out = call.object;
    mlo_s3_call_clear(&call);
    return status;
}

enum mlo_status mlo_s3_delete(struct mlo_s3 *s3, const char *key, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "DELETE", .key = key};
    enum mlo_status status = mlo_s3_perform(s3, &call, err);
    if (status == MLO_ENOTFOUND)
        status = MLO_OK;
    mlo_s3_call_clear(&call);
    return status;
}

/* --- get ---------------------------------------------------------------------------------------- */

struct getting {
    struct mlo_s3_object object; /* of the first answer */
    uint64_t offset, end;        /* what is still wanted; end: exclusive, known after the first answer */
    uint64_t length, max_bytes, delivered;
    bool known;
    mlo_s3_sink_fn *sink;
    void *arg;
};

static bool fail_begin(struct mlo_s3_call *call, enum mlo_status status, const char *why)
{
    mlo_error_set(&call->sink_error, status, "%s", why);
    mlo_error_where(&call->sink_error, "%s", call->key);
    return false;
}

/* The head of an answer: is it the piece that was asked for, of the object that it was? */
static bool on_begin(struct mlo_s3_call *call)
{
    struct getting *g = call->begin_arg;
    uint64_t total = call->http == 206 ? call->range_total : call->object.size_bytes;
    if (call->http == 206 ? !call->has_range || call->range_first != g->offset
                          : !call->has_length || g->offset)
        return fail_begin(call, MLO_EFORMAT, "the S3 server answers with another range than was asked for");
    if (g->known)
        return total == g->object.size_bytes ||
               fail_begin(call, MLO_EPRECONDITION, "the object in the S3 store changed while it was read");
    g->object = call->object;
    g->object.size_bytes = total;
    g->end = g->length > total - MLO_MIN(g->offset, total) ? total : g->offset + g->length;
    if (g->end - g->offset > g->max_bytes) {
        mlo_error_set(&call->sink_error, MLO_ETOOBIG,
                      "%llu bytes are more than the %llu that are read at once",
                      (unsigned long long)(g->end - g->offset), (unsigned long long)g->max_bytes);
        return false;
    }
    g->known = true;
    return true;
}

static enum mlo_status on_bytes(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    struct getting *g = arg;
    if (size > g->end - g->offset)
        return mlo_error_set(err, MLO_EFORMAT, "the S3 server sends more than was asked for");
    enum mlo_status status = g->sink(g->arg, bytes, size, err);
    if (status == MLO_OK) {
        g->offset += size;
        g->delivered += size;
    }
    return status;
}

/* One try for all that is still missing. */
static enum mlo_status get_rest(struct mlo_s3 *s3, const char *key, struct getting *g, bool fresh,
                                bool *retry, struct mlo_error *err)
{
    struct mlo_s3_call call = {.method = "GET",
                               .key = key,
                               .crypt = MLO_S3_CRYPT_USE,
                               .sink = on_bytes,
                               .sink_arg = g,
                               .begin = on_begin,
                               .begin_arg = g};
    char range[64];
    bool to_end = !g->known && g->length == UINT64_MAX;
    uint64_t end = g->known ? g->end : g->offset + g->length;
    if (g->offset || !to_end) {
        if (to_end)
            snprintf(range, sizeof range, "bytes=%llu-", (unsigned long long)g->offset);
        else
            snprintf(range, sizeof range, "bytes=%llu-%llu", (unsigned long long)g->offset,
                     (unsigned long long)end - 1);
        mlo_s3_call_header(&call, "range", range);
    }
    if (g->known && *g->object.etag)
        mlo_s3_call_header(&call, "if-match", g->object.etag);
    enum mlo_status status = mlo_s3_attempt(s3, &call, fresh, retry, err);
    if (status == MLO_OK && !g->known) { /* an empty object: no byte came */
        g->object = call.object;
        g->known = true;
        g->end = g->offset;
    }
    if (status == MLO_OK && g->offset < g->end) {
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "the S3 server ended its answer %llu bytes early",
                               (unsigned long long)(g->end - g->offset));
        *retry = true;
    }
    mlo_s3_call_clear(&call);
    return status;
}

enum mlo_status mlo_s3_get(struct mlo_s3 *s3, const char *key, uint64_t offset, uint64_t length,
                           uint64_t max_bytes, mlo_s3_sink_fn *sink, void *arg, struct mlo_s3_object *out,
                           struct mlo_error *err)
{
    struct getting g = {.offset = offset, .length = length, .max_bytes = max_bytes, .sink = sink, .arg = arg};
    enum mlo_status status = MLO_OK;
    if (length == 0 || (length != UINT64_MAX && offset > UINT64_MAX - length))
        return mlo_error_set(err, MLO_EINVAL, "no bytes are asked for");
    for (uint32_t n = 1;; n++) {
        bool retry;
        uint64_t before = g.delivered;
        status = get_rest(s3, key, &g, n > 1 || before > 0, &retry, err);
        if (status == MLO_OK || !retry)
            break;
        if (g.delivered > before)
            n = 1; /* it moves on: the attempts count anew */
        if (n >= s3->attempts) {
            mlo_error_prefix(err, "after %u attempts", n);
            break;
        }
        mlo_s3_backoff(n);
    }
    if (status == MLO_OK && out)
        *out = g.object;
    return status;
}
