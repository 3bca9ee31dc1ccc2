#include "registry/s3_sign.h"

#include <ctype.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAIRS_MAX = 32, KEY_SIZE = 32 };

char *mlo_s3_time(int64_t utc_s, char out[MLO_S3_TIME_SIZE])
{
    struct tm tm;
    time_t t = (time_t)utc_s;
    gmtime_r(&t, &tm);
    strftime(out, MLO_S3_TIME_SIZE, "%Y%m%dT%H%M%SZ", &tm);
    return out;
}

static bool unreserved(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '~';
}

void mlo_s3_encode(struct mlo_buf *out, const char *text, bool keep_slash)
{
    for (; *text; text++) {
        if (unreserved(*text) || (keep_slash && *text == '/'))
            mlo_buf_putc(out, *text);
        else
            mlo_buf_printf(out, "%%%02X", (unsigned char)*text);
    }
}

/* A parameter, encoded; or a header with its value trimmed. Sorted by name, then value. */
struct item {
    char *name, *value;
};

static int by_name(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->value, y->value);
}

static void free_items(struct item *items, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(items[i].name);
        free(items[i].value);
    }
}

static char *encoded(const char *text)
{
    struct mlo_buf buf = MLO_BUF_INIT;
    if (mlo_buf_reserve(&buf, strlen(text))) /* also for the empty text: take() then gives one */
        mlo_s3_encode(&buf, text, false);
    return mlo_buf_take(&buf);
}

static bool make_query(const struct mlo_s3_pair *query, size_t count, struct item *items)
{
    bool ok = true;
    for (size_t i = 0; i < count; i++) {
        items[i].name = encoded(query[i].name);
        items[i].value = encoded(query[i].value ? query[i].value : "");
        ok = ok && items[i].name && items[i].value;
    }
    if (ok)
        qsort(items, count, sizeof *items, by_name);
    return ok;
}

static void put_query(struct mlo_buf *out, const struct item *items, size_t count)
{
    for (size_t i = 0; i < count; i++)
        mlo_buf_printf(out, "%s%s=%s", i ? "&" : "", items[i].name, items[i].value);
}

void mlo_s3_query(struct mlo_buf *out, const struct mlo_s3_pair *query, size_t count)
{
    struct item *items = calloc(count + 1, sizeof *items);
    if (items && make_query(query, count, items))
        put_query(out, items, count);
    else
        out->failed = true;
    if (items)
        free_items(items, count);
    free(items);
}

/* The value as it is signed: no blanks at the ends, one blank for several. */
static char *trimmed(const char *value)
{
    size_t n = 0;
    char *out = malloc(strlen(value) + 1);
    for (; out && *value; value++) {
        if ((*value == ' ' || *value == '\t') && (n == 0 || out[n - 1] == ' '))
            continue;
        out[n++] = *value == '\t' ? ' ' : *value;
    }
    if (out) {
        n -= n && out[n - 1] == ' ';
        out[n] = '\0';
    }
    return out;
}

static bool make_headers(const struct mlo_s3_request *request, struct item *items)
{
    size_t n = request->header_count;
    for (size_t i = 0; i < n; i++) {
        items[i].name = strdup(request->headers[i].name);
        items[i].value = trimmed(request->headers[i].value);
        for (char *c = items[i].name; c && *c; c++)
            *c = (char)tolower((unsigned char)*c);
    }
    items[n].name = strdup("host");
    items[n].value = strdup(request->host);
    for (size_t i = 0; i <= n; i++)
        if (!items[i].name || !items[i].value)
            return false;
    qsort(items, n + 1, sizeof *items, by_name);
    return true;
}

static void put_signed_names(struct mlo_buf *out, const struct item *headers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        mlo_buf_printf(out, "%s%s", i ? ";" : "", headers[i].name);
}

static void hmac(const uint8_t *key, size_t key_size, const char *text, uint8_t out[KEY_SIZE])
{
    unsigned n = KEY_SIZE;
    HMAC(EVP_sha256(), key, (int)key_size, (const unsigned char *)text, strlen(text), out, &n);
}

/* date / region / service / aws4_request: a key for each step, the last one signs. */
static bool signing_key(const char *secret, const char *date, const char *region, uint8_t key[KEY_SIZE])
{
    struct mlo_buf first = MLO_BUF_INIT;
    mlo_buf_printf(&first, "AWS4%s", secret);
    bool ok = mlo_buf_ok(&first);
    if (ok) {
        hmac((const uint8_t *)mlo_buf_str(&first), first.len, date, key);
        hmac(key, KEY_SIZE, region, key);
        hmac(key, KEY_SIZE, "s3", key);
        hmac(key, KEY_SIZE, "aws4_request", key);
        OPENSSL_cleanse(first.data, first.len);
    }
    mlo_buf_clear(&first);
    return ok;
}

struct canonical {
    struct item query[PAIRS_MAX + 8], headers[PAIRS_MAX + 1];
    size_t query_count, header_count;
};

/* The lowercase hex signature; false when out of memory. */
static bool signature(const struct mlo_s3_request *request, const struct mlo_s3_keys *keys,
                      const struct canonical *c, const char *time, const char *scope, char out[65])
{
    struct mlo_buf text = MLO_BUF_INIT, to_sign = MLO_BUF_INIT;
    struct mlo_digest digest;
    char hex[MLO_DIGEST_TEXT_SIZE], date[9];
    uint8_t key[KEY_SIZE], mac[KEY_SIZE];
    mlo_buf_printf(&text, "%s\n%s\n", request->method, request->path);
    put_query(&text, c->query, c->query_count);
    mlo_buf_putc(&text, '\n');
    for (size_t i = 0; i < c->header_count; i++)
        mlo_buf_printf(&text, "%s:%s\n", c->headers[i].name, c->headers[i].value);
    mlo_buf_putc(&text, '\n');
    put_signed_names(&text, c->headers, c->header_count);
    mlo_buf_printf(&text, "\n%s", request->payload_hash);
    mlo_digest_of(mlo_buf_str(&text), text.len, &digest);
    mlo_buf_printf(&to_sign, "AWS4-HMAC-SHA256\n%s\n%s\n%s", time, scope, mlo_digest_hex(&digest, hex));
    snprintf(date, sizeof date, "%.8s", time);
    bool ok = mlo_buf_ok(&text) && mlo_buf_ok(&to_sign) &&
              signing_key(keys->secret_key, date, request->region, key);
    if (ok) {
        hmac(key, KEY_SIZE, mlo_buf_str(&to_sign), mac);
        mlo_hex(mac, sizeof mac, out);
        OPENSSL_cleanse(key, sizeof key);
    }
    mlo_buf_clear(&text);
    mlo_buf_clear(&to_sign);
    return ok;
}

static enum mlo_status check_counts(const struct mlo_s3_request *request, struct mlo_error *err)
{
    if (request->query_count <= PAIRS_MAX && request->header_count <= PAIRS_MAX)
        return MLO_OK;
    return mlo_error_set(err, MLO_EINVAL, "more than %d parameters or headers to sign", PAIRS_MAX);
}

enum mlo_status mlo_s3_sign(const struct mlo_s3_request *request, const struct mlo_s3_keys *keys,
                            struct mlo_buf *authorization, struct mlo_error *err)
{
    struct canonical c = {.query_count = request->query_count, .header_count = request->header_count + 1};
    struct mlo_buf scope = MLO_BUF_INIT;
    char time[MLO_S3_TIME_SIZE], hex[65];
    enum mlo_status status = check_counts(request, err);
    if (status != MLO_OK)
        return status;
    mlo_s3_time(request->utc_s, time);
    mlo_buf_printf(&scope, "%.8s/%s/s3/aws4_request", time, request->region);
    bool ok = mlo_buf_ok(&scope) && make_query(request->query, request->query_count, c.query) &&
              make_headers(request, c.headers) &&
              signature(request, keys, &c, time, mlo_buf_str(&scope), hex);
    if (ok) {
        mlo_buf_printf(authorization, "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=", keys->access_key,
                       mlo_buf_str(&scope));
        put_signed_names(authorization, c.headers, c.header_count);
        mlo_buf_printf(authorization, ", Signature=%s", hex);
    }
    free_items(c.query, c.query_count);
    free_items(c.headers, c.header_count);
    mlo_buf_clear(&scope);
    return ok && mlo_buf_ok(authorization) ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_s3_presign(const struct mlo_s3_request *request, const struct mlo_s3_keys *keys,
                               uint32_t expires_s, struct mlo_buf *query, struct mlo_error *err)
{
    struct mlo_s3_pair pairs[PAIRS_MAX + 6];
    struct canonical c = {.header_count = request->header_count + 1};
    struct mlo_buf scope = MLO_BUF_INIT, credential = MLO_BUF_INIT, names = MLO_BUF_INIT;
    char time[MLO_S3_TIME_SIZE], hex[65], expires[12];
    struct mlo_s3_request signable = *request;
    size_t n = request->query_count;
    enum mlo_status status = check_counts(request, err);
    if (status != MLO_OK)
        return status;
    if (expires_s < 1 || expires_s > MLO_S3_EXPIRY_MAX_S)
        return mlo_error_set(err, MLO_EINVAL, "a presigned address lives 1 s to 7 days, not %u s", expires_s);
    mlo_s3_time(request->utc_s, time);
    snprintf(expires, sizeof expires, "%u", expires_s);
    mlo_buf_printf(&scope, "%.8s/%s/s3/aws4_request", time, request->region);
    mlo_buf_printf(&credential, "%s/%s", keys->access_key, mlo_buf_str(&scope));
    bool ok = make_headers(request, c.headers);
    if (ok)
        put_signed_names(&names, c.headers, c.header_count);
    ok = ok && mlo_buf_ok(&scope) && mlo_buf_ok(&credential) && mlo_buf_ok(&names);
    if (n)
        memcpy(pairs, request->query, n * sizeof *pairs);
    pairs[n++] = (struct mlo_s3_pair){"X-Amz-Algorithm", "AWS4-HMAC-SHA256"};
    pairs[n++] = (struct mlo_s3_pair){"X-Amz-Credential", mlo_buf_str(&credential)};
    pairs[n++] = (struct mlo_s3_pair){"X-Amz-Date", time};
    pairs[n++] = (struct mlo_s3_pair){"X-Amz-Expires", expires};
    pairs[n++] = (struct mlo_s3_pair){"X-Amz-SignedHeaders", mlo_buf_str(&names)};
    if (keys->session_token)
        pairs[n++] = (struct mlo_s3_pair){"X-Amz-Security-Token", keys->session_token};
    c.query_count = n;
    if (!signable.payload_hash)
        signable.payload_hash = MLO_S3_UNSIGNED;
    ok =
        ok && make_query(pairs, n, c.query) && signature(&signable, keys, &c, time, mlo_buf_str(&scope), hex);
    if (ok) {
        put_query(query, c.query, c.query_count);
        mlo_buf_printf(query, "&X-Amz-Signature=%s", hex);
    }
    free_items(c.query, c.query_count);
    free_items(c.headers, c.header_count);
    mlo_buf_clear(&scope);
    mlo_buf_clear(&credential);
    mlo_buf_clear(&names);
    return ok && mlo_buf_ok(query) ? MLO_OK : mlo_error_nomem(err);
}
