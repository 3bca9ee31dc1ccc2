/* What a failed request means: one table from S3's codes to statuses, and what to do. */
#include <stdlib.h>
#include <string.h>

#include "registry/s3_impl.h"

struct row {
    const char *code; /* S3's; NULL: any with this HTTP status */
    long http;
    enum mlo_status status;
    bool retry;
    const char *hint;
};

/* The keys are the service's, not those of whoever asks it: a refusal is the store's absence, not a 403 of
 * ours. */
static const struct row rows[] = {
    {"NoSuchKey", 404, MLO_ENOTFOUND, false, NULL},
    {"NoSuchUpload", 404, MLO_ENOTFOUND, false, "the upload was finished or abandoned: begin a new one"},
    {"NoSuchBucket", 404, MLO_EUNAVAILABLE, false,
     "make the bucket, or correct its name in the store's address"},
    {"SignatureDoesNotMatch", 403, MLO_EUNAVAILABLE, false,
     "the secret key is wrong: check AWS_SECRET_ACCESS_KEY or the credentials file; then the region"},
    {"InvalidAccessKeyId", 403, MLO_EUNAVAILABLE, false,
     "the server does not know this access key: check AWS_ACCESS_KEY_ID or the credentials file"},
    {"ExpiredToken", 400, MLO_EUNAVAILABLE, false,
     "the session token has expired: get a new one, and restart"},
    {"RequestTimeTooSkewed", 403, MLO_EUNAVAILABLE, false, "this machine's clock is wrong: set it"},
    {"AccessDenied", 403, MLO_EUNAVAILABLE, false,
     "the key may not do this: allow it GetObject, PutObject, DeleteObject, ListBucket and multipart "
     "uploads"},
    {"QuotaExceeded", 403, MLO_ENOSPC, false, "raise the quota of the bucket or its user, or delete objects"},
    {"EntityTooLarge", 400, MLO_ETOOBIG, false, NULL},
    {"AuthorizationHeaderMalformed", 400, MLO_EUNAVAILABLE, false, "check region= in the store's address"},
    {"PermanentRedirect", 301, MLO_EUNAVAILABLE, false, "check region= and endpoint= in the store's address"},
    {"BadDigest", 400, MLO_EDIGEST, false, "the bytes changed on the way: send them again"},
    {"XAmzContentSHA256Mismatch", 400, MLO_EDIGEST, false, "the bytes changed on the way: send them again"},
    {"InvalidDigest", 400, MLO_EDIGEST, false, NULL},
    {"InvalidPart", 400, MLO_EDIGEST, false,
     "a part in the store is not the one that was sent: begin a new upload"},
    {"RequestTimeout", 400, MLO_ETIMEOUT, true, NULL},
    {"SlowDown", 503, MLO_EUNAVAILABLE, true, "the S3 server is overloaded: try again later"},
    {NULL, 404, MLO_ENOTFOUND, false, NULL},
    {NULL, 408, MLO_ETIMEOUT, true, NULL},
    {NULL, 412, MLO_EPRECONDITION, false, NULL},
    {NULL, 413, MLO_EUNAVAILABLE, false,
     "what stands before the S3 server limits requests: raise that limit, or use uploads=parts (8 MiB each)"},
    {NULL, 416, MLO_EINVAL, false, NULL},
    {NULL, 417, MLO_EUNAVAILABLE, false,
     "what stands before the S3 server takes no 'Expect: 100-continue': use uploads=parts"},
    {NULL, 429, MLO_EUNAVAILABLE, true, "the S3 server limits requests: try again later"},
    {NULL, 500, MLO_EUNAVAILABLE, true, "the S3 server failed: try again later, read its log"},
    {NULL, 501, MLO_EUNSUPPORTED, false, "the S3 server does not know this kind of request"},
    {NULL, 502, MLO_EUNAVAILABLE, true, "what stands before the S3 server cannot reach it"},
    {NULL, 503, MLO_EUNAVAILABLE, true, "the S3 server is overloaded or starting: try again later"},
    {NULL, 504, MLO_EUNAVAILABLE, true, "what stands before the S3 server waited too long for it"},
    {NULL, 507, MLO_ENOSPC, false, "the S3 server's disks are full"},
    {NULL, 301, MLO_EUNAVAILABLE, false, "check region= and endpoint= in the store's address"},
    {NULL, 307, MLO_EUNAVAILABLE, false, "check region= and endpoint= in the store's address"},
    {NULL, 400, MLO_EUNAVAILABLE, false,
     "the S3 server does not take this request: check region=, style= and the encryption in the store's "
     "address"},
    {NULL, 401, MLO_EUNAVAILABLE, false, "check the keys of the S3 store"},
    {NULL, 403, MLO_EUNAVAILABLE, false,
     "check the keys of the S3 store, and what they may do with this bucket"},
};

static enum mlo_status on_field(void *arg, const char *parent, const char *name, const char *text,
                                struct mlo_error *err)
{
    struct mlo_s3_call *call = arg;
    MLO_UNUSED(err);
    if (!text || strcmp(parent, "Error") != 0)
        return MLO_OK;
    if (strcmp(name, "Code") == 0)
        snprintf(call->code, sizeof call->code, "%s", text);
    else if (strcmp(name, "Message") == 0)
        snprintf(call->message, sizeof call->message, "%s", text);
    else if (strcmp(name, "RequestId") == 0 && !*call->request_id)
        snprintf(call->request_id, sizeof call->request_id, "%s", text);
    else if (strcmp(name, "Region") == 0 && !*call->bucket_region)
        snprintf(call->bucket_region, sizeof call->bucket_region, "%s", text);
    return MLO_OK;
}

static void put_where(const struct mlo_s3 *s3, const struct mlo_s3_call *call, struct mlo_error *err)
{
    mlo_error_where(err, "s3://%s/%s", s3->bucket, call->key ? call->key : "");
}

enum mlo_status mlo_s3_refused(const struct mlo_s3 *s3, struct mlo_s3_call *call, bool *retry,
                               struct mlo_error *err)
{
    static const struct row other = {NULL, 0, MLO_EUNAVAILABLE, false, NULL};
    const struct row *row = NULL;
    if (call->answer.len)
        (void)!mlo_s3_xml(&call->answer, on_field, call, NULL); /* what a proxy says may be no XML */
    for (size_t i = 0; i < MLO_COUNT(rows) && !row; i++)
        if (rows[i].code ? strcmp(rows[i].code, call->code) == 0 : rows[i].http == call->http)
            row = &rows[i];
    if (!row)
        row = &other;
    /* an error in the body of a 200: S3 began to answer before it was done */
    *retry = row->retry || (row == &other && (call->http >= 500 || call->http == 200)) ||
             strcmp(call->code, "InternalError") == 0;
    mlo_error_set(err, row->status, "S3 answered %s with %ld%s%s%s%s%s%s", call->method, call->http,
                  *call->code ? " " : "", call->code, *call->message ? ": " : "", call->message,
                  *call->request_id ? ", request " : "", call->request_id);
    put_where(s3, call, err);
    if (*call->bucket_region && strcmp(call->bucket_region, s3->region) != 0)
        mlo_error_hint(err, "the bucket is in the region %s: write region=%s in the store's address",
                       call->bucket_region, call->bucket_region);
    else if (row->hint)
        mlo_error_hint(err, "%s", row->hint);
    return row->status;
}

static const struct {
    CURLcode code;
    enum mlo_status status;
    bool retry;
    const char *hint;
} broken[] = {
    {CURLE_OPERATION_TIMEDOUT, MLO_ETIMEOUT, true, "the S3 server, or the way to it, hangs: try again later"},
    {CURLE_COULDNT_CONNECT, MLO_EUNAVAILABLE, true,
     "is the S3 server running? check endpoint= in the store's address"},
    {CURLE_COULDNT_RESOLVE_HOST, MLO_EUNAVAILABLE, true,
     "check endpoint= (or region=) in the store's address"},
    {CURLE_SEND_ERROR, MLO_EUNAVAILABLE, true, NULL},
    {CURLE_RECV_ERROR, MLO_EUNAVAILABLE, true, NULL},
    {CURLE_GOT_NOTHING, MLO_EUNAVAILABLE, true, NULL},
    {CURLE_PARTIAL_FILE, MLO_EUNAVAILABLE, true, NULL},
    {CURLE_SSL_CONNECT_ERROR, MLO_EUNAVAILABLE, true, "does this port speak TLS?"},
    {CURLE_PEER_FAILED_VERIFICATION, MLO_EUNAVAILABLE, false,
     "name the file with the authority's certificate: ca=/path in the store's address"},
    {CURLE_SSL_CACERT_BADFILE, MLO_EUNAVAILABLE, false, "check ca= in the store's address"},
    {CURLE_OUT_OF_MEMORY, MLO_ENOMEM, false, NULL},
};

enum mlo_status mlo_s3_curl_failed(const struct mlo_s3 *s3, const struct mlo_s3_call *call, CURLcode code,
                                   const char *detail, bool *retry, struct mlo_error *err)
{
    size_t i = 0;
    while (i < MLO_COUNT(broken) && broken[i].code != code)
        i++;
    bool known = i < MLO_COUNT(broken);
    *retry = known && broken[i].retry;
    enum mlo_status status = known ? broken[i].status : MLO_EUNAVAILABLE;
    mlo_error_set(err, status, "%s to the S3 server %s failed: %s", call->method, s3->base,
                  detail && *detail ? detail : curl_easy_strerror(code));
    put_where(s3, call, err);
    if (known && broken[i].hint)
        mlo_error_hint(err, "%s", broken[i].hint);
    return status;
}
