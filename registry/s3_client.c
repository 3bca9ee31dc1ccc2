/* The client's state: where the bucket is, and how it is spoken to. */
#include "registry/s3_impl.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECT_MS = 5000, STALL_MS = 30000, ATTEMPTS = 6, BUCKET_MAX = 63 };

static void free_secret(char *text)
{
    if (text)
        OPENSSL_cleanse(text, strlen(text));
    free(text);
}

void mlo_s3_close(struct mlo_s3 *s3)
{
    if (!s3)
        return;
    for (size_t i = 0; i < s3->idle_count; i++)
        curl_easy_cleanup(s3->idle[i]);
    pthread_mutex_destroy(&s3->lock);
    free(s3->bucket);
    free(s3->base);
    free(s3->host);
    free(s3->path);
    free(s3->region);
    free(s3->ca_file);
    free(s3->access_key);
    free_secret(s3->secret_key);
    free_secret(s3->session_token);
    free(s3->encryption);
    free(s3->kms_key);
    free_secret(s3->customer_key);
    free(s3->customer_md5);
    free(s3);
}

/* Amazon's rules for new buckets, less those that only matter there: what passes is safe in a path and a
 * host. */
static enum mlo_status check_bucket_name(const char *name, struct mlo_error *err)
{
    size_t n = name ? strlen(name) : 0;
    if (n >= 3 && n <= BUCKET_MAX && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == n &&
        name[0] != '.' && name[0] != '-' && name[n - 1] != '-' && !strstr(name, ".."))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "'%.80s' is no name of an S3 bucket", name ? name : "");
    mlo_error_hint(err, "3 to 63 lowercase letters, digits, dots and dashes");
    return MLO_EINVAL;
}

/* "https://host[:port][/]": base without the slash; the Host header without the scheme's own port. */
static enum mlo_status take_endpoint(struct mlo_s3 *s3, const char *endpoint, bool virtual,
                                     struct mlo_error *err)
{
    struct mlo_buf base = MLO_BUF_INIT, host = MLO_BUF_INIT, path = MLO_BUF_INIT;
    bool tls = mlo_str_starts(endpoint, "https://");
    const char *authority = endpoint + (tls ? 8 : 7);
    size_t n = tls || mlo_str_starts(endpoint, "http://") ? strcspn(authority, "/") : 0;
    if (n == 0 || strlen(authority) > n + 1 || strcspn(authority, "@?#% ") < n) {
        mlo_error_set(err, MLO_EINVAL, "'%.200s' is no address of an S3 server", endpoint);
        mlo_error_hint(err, "write endpoint=https://host or endpoint=http://host:port");
        return MLO_EINVAL;
    }
    const char *own_port = tls ? ":443" : ":80";
    size_t port = strlen(own_port);
    if (n > port && strncmp(authority + n - port, own_port, port) == 0)
        n -= port;
    mlo_buf_printf(&host, "%s%s%.*s", virtual ? s3->bucket : "", virtual ? "." : "", (int)n, authority);
    mlo_buf_printf(&base, "%s://%s", tls ? "https" : "http", mlo_buf_str(&host));
    mlo_buf_printf(&path, "%s%s", virtual ? "" : "/", virtual ? "" : s3->bucket);
    s3->host = mlo_buf_take(&host);
    s3->base = mlo_buf_take(&base);
    s3->path = mlo_buf_take(&path);
    return s3->host && s3->base && s3->path ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status take_region(struct mlo_s3 *s3, const char *region, struct mlo_error *err)
{
    static const char *const names[] = {"AWS_REGION", "AWS_DEFAULT_REGION"};
    for (size_t i = 0; !region && i < MLO_COUNT(names); i++)
        region = getenv(names[i]) && *getenv(names[i]) ? getenv(names[i]) : NULL;
    if (!region)
        region = "us-east-1";
    if (!*region ||
        strspn(region, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != strlen(region))
        return mlo_error_set(err, MLO_EINVAL, "'%.80s' is no name of a region", region);
    s3->region = strdup(region);
    return s3->region ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status take_encryption(struct mlo_s3 *s3, const struct mlo_s3_options *o,
                                       struct mlo_error *err)
{
    static const char *const known[] = {"AES256", "aws:kms", "customer"};
    bool customer = mlo_str_eq(o->encryption, "customer");
    size_t i = 0;
    if (!o->encryption) {
        if (o->kms_key || o->customer_key)
            return mlo_error_set(err, MLO_EINVAL,
                                 "an encryption key is named, but not the kind of encryption");
        return MLO_OK;
    }
    while (i < MLO_COUNT(known) && strcmp(known[i], o->encryption) != 0)
        i++;
    if (i == MLO_COUNT(known)) {
        mlo_error_set(err, MLO_EINVAL, "'%.40s' is no encryption that S3 knows", o->encryption);
        mlo_error_hint(err, "AES256 (the server's keys), aws:kms, or customer (a key of your own)");
        return MLO_EINVAL;
    }
    if (customer != (o->customer_key != NULL) || (o->kms_key && strcmp(o->encryption, "aws:kms") != 0))
        return mlo_error_set(err, MLO_EINVAL, "encryption '%s' and the key that is named do not fit",
                             o->encryption);
    if (customer)
        return mlo_s3_read_customer_key(s3, o->customer_key, err);
    s3->encryption = strdup(o->encryption);
    s3->kms_key = o->kms_key ? strdup(o->kms_key) : NULL;
    return s3->encryption && (s3->kms_key || !o->kms_key) ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status take_payload(struct mlo_s3 *s3, const char *payload, struct mlo_error *err)
{
    s3->unsigned_parts = mlo_str_eq(payload, "unsigned");
    if (payload && !s3->unsigned_parts && strcmp(payload, "signed") != 0) {
        mlo_error_set(err, MLO_EINVAL, "payload=%.40s is neither signed nor unsigned", payload);
        mlo_error_hint(err, "signed: each part by its SHA-256; unsigned: TLS alone guards it");
        return MLO_EINVAL;
    }
    if (!s3->unsigned_parts || mlo_str_starts(s3->base, "https://"))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "payload=unsigned leaves parts to TLS, and %s has none", s3->base);
    mlo_error_hint(err, "name an endpoint that begins with https://, or leave payload out");
    return MLO_EINVAL;
}

/* What goes into a header must not end it. */
static enum mlo_status check_plain(const char *what, const char *text, struct mlo_error *err)
{
    for (; text && *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127)
            return mlo_error_set(err, MLO_EINVAL, "the S3 %s holds a control character", what);
    return MLO_OK;
}

enum mlo_status mlo_s3_open(const struct mlo_s3_options *o, struct mlo_s3 **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf amazon = MLO_BUF_INIT;
    *out = NULL;
    struct mlo_s3 *s3 = calloc(1, sizeof *s3);
    if (!s3)
        return mlo_error_nomem(err);
    pthread_mutex_init(&s3->lock, NULL);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0) { /* counts its calls: ours is never taken back */
        status = mlo_error_set(err, MLO_EINTERNAL, "libcurl cannot be initialised");
        goto out;
    }
    MLO_TRY(check_bucket_name(o->bucket, err));
    if (o->style && strcmp(o->style, "path") != 0 && strcmp(o->style, "virtual") != 0) {
        status = mlo_error_set(err, MLO_EINVAL, "'%.40s' is no style of S3 addresses", o->style);
        mlo_error_hint(err,
                       "style=path (https://host/bucket/key) or style=virtual (https://bucket.host/key)");
        goto out;
    }
    s3->connect_ms = o->connect_ms ? o->connect_ms : CONNECT_MS;
    s3->stall_ms = o->stall_ms ? o->stall_ms : STALL_MS;
    s3->attempts = o->attempts ? o->attempts : ATTEMPTS;
    s3->bucket = strdup(o->bucket);
    s3->ca_file = o->ca_file ? strdup(o->ca_file) : NULL;
    if (!s3->bucket || (o->ca_file && !s3->ca_file)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(take_region(s3, o->region, err));
    mlo_buf_printf(&amazon, "https://s3.%s.amazonaws.com", s3->region);
    /* a dot in the name does not match Amazon's wildcard certificate */
    bool virtual = o->style ? strcmp(o->style, "virtual") == 0 : !o->endpoint && !strchr(o->bucket, '.');
    MLO_TRY(take_endpoint(s3, o->endpoint ? o->endpoint : mlo_buf_str(&amazon), virtual, err));
    MLO_TRY(take_payload(s3, o->payload, err));
    MLO_TRY(check_plain("encryption key's name", o->kms_key, err));
    MLO_TRY(take_encryption(s3, o, err));
    MLO_TRY(mlo_s3_read_keys(s3, o->credentials_file, o->profile, err));
    MLO_TRY(check_plain("access key", s3->access_key, err));
    MLO_TRY(check_plain("session token", s3->session_token, err));
out:
    mlo_buf_clear(&amazon);
    if (status == MLO_OK)
        *out = s3;
    else
        mlo_s3_close(s3);
    return status;
}
