/* AWS Signature Version 4 for S3 ("Authenticating Requests: Using the Authorization Header / Query
 * Parameters", Amazon S3 API Reference), by OpenSSL's HMAC-SHA-256. Own code, since curl 7.88's signer does
 * not sort and encode the query. Pure functions: no clock, no network. */
#ifndef MLO_REGISTRY_S3_SIGN_H
#define MLO_REGISTRY_S3_SIGN_H

#include "base/base.h"

#define MLO_S3_UNSIGNED "UNSIGNED-PAYLOAD"
#define MLO_S3_TIME_SIZE 20 /* "20130524T000000Z" and NUL */
enum { MLO_S3_EXPIRY_MAX_S = 7 * 24 * 3600 };

struct mlo_s3_keys {
    const char *access_key, *secret_key;
    const char *session_token; /* or NULL */
};

struct mlo_s3_pair {
    const char *name, *value;
};

struct mlo_s3_request {
    const char *method;              /* "GET" */
    const char *host;                /* as in the Host header: with the port where it is not the scheme's */
    const char *path;                /* encoded, as on the wire: mlo_s3_encode */
    const struct mlo_s3_pair *query; /* not encoded; any order; a NULL value is an empty one */
    size_t query_count;
    const struct mlo_s3_pair *headers; /* to be signed besides host; any order */
    size_t header_count;
    /* lowercase hex SHA-256 of the body, or MLO_S3_UNSIGNED, which NULL is for a presigned address */
    const char *payload_hash;
    const char *region;
    int64_t utc_s; /* the time of the signature: seconds since 1970 */
};

/* "20130524T000000Z", the value of x-amz-date, into the caller's buffer, which is returned. */
char *mlo_s3_time(int64_t utc_s, char out[MLO_S3_TIME_SIZE]);
/* Appends percent-encoded text (RFC 3986's unreserved characters stay; with keep_slash '/' too). */
void mlo_s3_encode(struct mlo_buf *out, const char *text, bool keep_slash);
/* Appends "a=1&b=2", encoded and sorted: the query as it is signed, fit for the wire as well. */
void mlo_s3_query(struct mlo_buf *out, const struct mlo_s3_pair *query, size_t count);

/* Appends the value of the Authorization header. The request's headers must hold x-amz-date (of utc_s),
 * x-amz-content-sha256 and, with a session token, x-amz-security-token: S3 wants them signed. MLO_EINVAL for
 * more headers or parameters than the 32 that fit, MLO_ENOMEM. */
MLO_MUST_USE enum mlo_status mlo_s3_sign(const struct mlo_s3_request *request, const struct mlo_s3_keys *keys,
                                         struct mlo_buf *authorization, struct mlo_error *err);
/* Appends the query of a presigned address: the request's own parameters and the X-Amz-* ones, the signature
 * last. expires_s: 1 … MLO_S3_EXPIRY_MAX_S (MLO_EINVAL). Whoever uses the address must send the signed
 * headers; with a payload hash these must hold x-amz-content-sha256. */
MLO_MUST_USE enum mlo_status mlo_s3_presign(const struct mlo_s3_request *request,
                                            const struct mlo_s3_keys *keys, uint32_t expires_s,
                                            struct mlo_buf *query, struct mlo_error *err);

#endif
