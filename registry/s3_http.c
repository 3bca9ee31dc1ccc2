/* One signed request over libcurl, and the loop that tries again. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "registry/s3_impl.h"

enum {
    BACKOFF_BASE_MS = 100,
    BACKOFF_MAX_MS = 10000,
    BUFFER_BYTES =
        512 << 10, /* curl's, to send and to receive: 64 KiB cost a third of the speed on loopback */
};

void mlo_s3_call_clear(struct mlo_s3_call *call)
{
    mlo_buf_clear(&call->answer);
}

static CURL *take_handle(struct mlo_s3 *s3)
{
    CURL *curl = NULL;
    pthread_mutex_lock(&s3->lock);
    if (s3->idle_count)
        curl = s3->idle[--s3->idle_count];
    pthread_mutex_unlock(&s3->lock);
    return curl ? curl : curl_easy_init();
}

static void give_handle(struct mlo_s3 *s3, CURL *curl)
{
    curl_easy_reset(curl); /* keeps the connection */
    pthread_mutex_lock(&s3->lock);
    bool keep = s3->idle_count < MLO_S3_IDLE_MAX;
    if (keep)
        s3->idle[s3->idle_count++] = curl;
    pthread_mutex_unlock(&s3->lock);
    if (!keep)
        curl_easy_cleanup(curl);
}

/* --- what goes and comes ------------------------------------------------------------------------ */

static size_t on_send(char *to, size_t size, size_t count, void *arg)
{
    struct mlo_s3_call *call = arg;
    size_t n = MLO_MIN(size * count, call->body_size - call->sent);
    if (n)
        memcpy(to, (const char *)call->body + call->sent, n);
    call->sent += n;
    return n;
}

static int on_seek(void *arg, curl_off_t offset, int origin)
{
    struct mlo_s3_call *call = arg;
    if (origin != SEEK_SET || offset < 0 || (size_t)offset > call->body_size)
        return CURL_SEEKFUNC_FAIL;
    call->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* A server that sends the head of an answer, then its body, with Nagle's algorithm on (Ceph's gateway as it
 * comes), holds the body back until the head is acknowledged. On a connection that is kept the kernel does so
 * 40 ms later: it is told to do it now. Where curl took another connection this changes nothing. */
static void acknowledge(const struct mlo_s3_transfer *t)
{
    int one = 1;
    if (t->kept != CURL_SOCKET_BAD)
        (void)setsockopt(t->kept, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
}

static size_t on_body(char *bytes, size_t size, size_t count, void *arg)
{
    struct mlo_s3_transfer *t = arg;
    struct mlo_s3_call *call = t->call;
    size_t n = size * count;
    long http = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &http);
    if (call->sink && http >= 200 && http < 300) {
        call->http = http;
        if (!t->begun && call->begin && !call->begin(call))
            return 0;
        t->begun = true;
        return call->sink(call->sink_arg, bytes, n, &call->sink_error) == MLO_OK ? n : 0;
    }
    if (call->answer.len + n > MLO_S3_ANSWER_MAX) {
        call->too_big = true;
        return 0;
    }
    mlo_buf_append(&call->answer, bytes, n);
    return mlo_buf_ok(&call->answer) ? n : 0;
}

static void forget_answer(struct mlo_s3_call *call)
{
    mlo_buf_reset(&call->answer);
    memset(&call->object, 0, sizeof call->object);
    memset(&call->sink_error, 0, sizeof call->sink_error);
    call->http = 0;
    call->range_first = call->range_total = 0;
    call->has_range = call->encrypted = call->has_length = call->too_big = call->headers_whole = false;
    *call->code = *call->message = *call->request_id = *call->bucket_region = '\0';
}

static void take_text(char *to, size_t size, const char *value, size_t n)
{
    snprintf(to, size, "%.*s", (int)MLO_MIN(n, size - 1), value);
}

static void take_range(struct mlo_s3_call *call, const char *value)
{
    unsigned long long first, last, total;
    call->has_range = sscanf(value, "bytes %llu-%llu/%llu", &first, &last, &total) == 3 && last < total;
    if (call->has_range) {
        call->range_first = first;
        call->range_total = total;
    }
}

static size_t on_header(char *line, size_t size, size_t count, void *arg)
{
    struct mlo_s3_transfer *t = arg;
    struct mlo_s3_call *call = t->call;
    size_t n = size * count, name;
    char value[256];
    if (n >= 5 && strncmp(line, "HTTP/", 5) == 0) /* another answer begins: the one before was a 100 */
        forget_answer(call);
    if (n > 0 && (line[0] == '\r' || line[0] == '\n')) {
        call->headers_whole = true;
        acknowledge(t);
    }
    const char *colon = memchr(line, ':', n);
    if (!colon)
        return n;
    name = (size_t)(colon - line);
    const char *start = colon + 1, *end = line + n;
    while (start < end && (*start == ' ' || *start == '\t'))
        start++;
    while (end > start && strchr(" \t\r\n", end[-1]))
        end--;
    take_text(value, sizeof value, start, (size_t)(end - start));
#define IS(text) (name == sizeof(text) - 1 && strncasecmp(line, text, sizeof(text) - 1) == 0)
    if (IS("etag"))
        take_text(call->object.etag, sizeof call->object.etag, value, strlen(value));
    else if (IS("content-length"))
        call->object.size_bytes = strtoull(value, NULL, 10), call->has_length = true;
    else if (IS("last-modified"))
        take_text(call->object.modified, sizeof call->object.modified, value, strlen(value));
    else if (IS("content-range"))
        take_range(call, value);
    else if (IS("x-amz-request-id"))
        take_text(call->request_id, sizeof call->request_id, value, strlen(value));
    else if (IS("x-amz-bucket-region"))
        take_text(call->bucket_region, sizeof call->bucket_region, value, strlen(value));
    else if (IS("x-amz-server-side-encryption-customer-algorithm") ||
             (IS("x-amz-server-side-encryption") && strcmp(value, "AES256") != 0))
        call->encrypted = true;
#undef IS
    return n;
}

/* --- the request -------------------------------------------------------------------------------- */

static void add(struct mlo_s3_message *r, const char *name, const char *value)
{
    r->headers[r->header_count++] = (struct mlo_s3_pair){name, value};
}

static void add_encryption(struct mlo_s3_message *r, const struct mlo_s3 *s3, enum mlo_s3_crypt crypt)
{
    if (crypt == MLO_S3_CRYPT_NONE)
        return;
    if (s3->customer_key) {
        add(r, "x-amz-server-side-encryption-customer-algorithm", "AES256");
        add(r, "x-amz-server-side-encryption-customer-key", s3->customer_key);
        add(r, "x-amz-server-side-encryption-customer-key-md5", s3->customer_md5);
        if (crypt == MLO_S3_CRYPT_COPY) {
            add(r, "x-amz-copy-source-server-side-encryption-customer-algorithm", "AES256");
            add(r, "x-amz-copy-source-server-side-encryption-customer-key", s3->customer_key);
            add(r, "x-amz-copy-source-server-side-encryption-customer-key-md5", s3->customer_md5);
        }
    } else if (s3->encryption && crypt != MLO_S3_CRYPT_USE) {
        add(r, "x-amz-server-side-encryption", s3->encryption);
        if (s3->kms_key)
            add(r, "x-amz-server-side-encryption-aws-kms-key-id", s3->kms_key);
    }
}

static bool list_header(struct mlo_s3_message *r, const char *name, const char *value)
{
    mlo_buf_reset(&r->line);
    mlo_buf_printf(&r->line, "%s: %s", name, value);
    struct curl_slist *longer =
        mlo_buf_ok(&r->line) ? curl_slist_append(r->list, mlo_buf_str(&r->line)) : NULL;
    if (longer)
        r->list = longer;
    return longer != NULL;
}

/* To an address that says who may. */
static enum mlo_status make_presigned(const struct mlo_s3 *s3, const struct mlo_s3_call *call,
                                      struct mlo_s3_message *r, struct mlo_error *err)
{
    mlo_buf_puts(&r->url, call->address);
    bool ok = mlo_buf_ok(&r->url) && list_header(r, "Host", s3->host) && list_header(r, "Expect", "");
    for (size_t i = 0; ok && i < call->header_count; i++)
        ok = list_header(r, call->headers[i].name, call->headers[i].value);
    return ok ? MLO_OK : mlo_error_nomem(err);
}

/* The address and the signed headers. */
static enum mlo_status make_message(const struct mlo_s3 *s3, const struct mlo_s3_call *call,
                                    struct mlo_s3_message *r, struct mlo_error *err)
{
    const struct mlo_s3_keys keys = {s3->access_key, s3->secret_key, s3->session_token};
    struct mlo_digest digest;
    int64_t now = mlo_clock_utc_us() / 1000000;
    if (call->unsigned_body) {
        snprintf(r->hash, sizeof r->hash, "%s", MLO_S3_UNSIGNED);
    } else { /* also over TLS, which may end at a balancer */
        if (call->digest)
            digest = *call->digest;
        else
            mlo_digest_of(call->body ? call->body : "", call->body_size, &digest);
        mlo_digest_hex(&digest, r->hash);
    }
    add(r, "x-amz-date", mlo_s3_time(now, r->time));
    add(r, "x-amz-content-sha256", r->hash);
    if (s3->session_token)
        add(r, "x-amz-security-token", s3->session_token);
    add_encryption(r, s3, call->crypt);
    for (size_t i = 0; i < call->header_count; i++)
        add(r, call->headers[i].name, call->headers[i].value);
    mlo_buf_printf(&r->path, "%s/", s3->path);
    if (call->key)
        mlo_s3_encode(&r->path, call->key, true);
    mlo_buf_printf(&r->url, "%s%s%s", s3->base, mlo_buf_str(&r->path), call->query_count ? "?" : "");
    mlo_s3_query(&r->url, call->query, call->query_count);
    const struct mlo_s3_request signable = {
        .method = call->method,
        .host = s3->host,
        .path = mlo_buf_str(&r->path),
        .query = call->query,
        .query_count = call->query_count,
        .headers = r->headers,
        .header_count = r->header_count,
        .payload_hash = r->hash,
        .region = s3->region,
        .utc_s = now,
    };
    enum mlo_status status = mlo_s3_sign(&signable, &keys, &r->authorization, err);
    if (status != MLO_OK)
        return status;
    bool ok = mlo_buf_ok(&r->url) && mlo_buf_ok(&r->path) &&
              list_header(r, "Authorization", mlo_buf_str(&r->authorization)) &&
              list_header(r, "Host", s3->host) &&
              list_header(r, "Expect", call->asks_first ? "100-continue" : "");
    for (size_t i = 0; ok && i < r->header_count; i++)
        ok = list_header(r, r->headers[i].name, r->headers[i].value);
    return ok ? MLO_OK : mlo_error_nomem(err);
}

static void set_options(const struct mlo_s3 *s3, const struct mlo_s3_call *call,
                        const struct mlo_s3_message *r, CURL *curl, bool fresh)
{
    uint32_t stall_ms = MLO_MAX(call->stall_ms, s3->stall_ms);
    curl_easy_setopt(curl, CURLOPT_URL, mlo_buf_str(&r->url));
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, fresh ? 1L : 0L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)s3->connect_ms);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)MLO_MAX(stall_ms / 1000, 1u));
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)call->budget_ms);
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, (long)BUFFER_BYTES);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, r->list);
    if (s3->ca_file)
        curl_easy_setopt(curl, CURLOPT_CAINFO, s3->ca_file);
    if (strcmp(call->method, "HEAD") == 0) {
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    } else if (strcmp(call->method, "PUT") == 0 || strcmp(call->method, "POST") == 0) {
        curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call->method);
        curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)call->body_size);
    } else if (strcmp(call->method, "GET") != 0) {
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call->method);
    }
}

enum mlo_status mlo_s3_transfer_begin(struct mlo_s3_transfer *t, struct mlo_s3 *s3, struct mlo_s3_call *call,
                                      bool fresh, struct mlo_error *err)
{
    *t = (struct mlo_s3_transfer){.s3 = s3, .call = call, .kept = CURL_SOCKET_BAD};
    forget_answer(call);
    call->sent = 0;
    CURL *curl = t->curl = take_handle(s3);
    if (!curl)
        return mlo_error_nomem(err);
    enum mlo_status status =
        call->address ? make_presigned(s3, call, &t->message, err) : make_message(s3, call, &t->message, err);
    if (status != MLO_OK)
        return status;
    set_options(s3, call, &t->message, curl, fresh);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, t->detail);
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_send);
    curl_easy_setopt(curl, CURLOPT_READDATA, call);
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, call);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, t);
    if (!fresh && curl_easy_getinfo(curl, CURLINFO_ACTIVESOCKET, &t->kept) != CURLE_OK)
        t->kept = CURL_SOCKET_BAD;
    return MLO_OK;
}

enum mlo_status mlo_s3_transfer_result(struct mlo_s3_transfer *t, CURLcode code, bool *retry,
                                       struct mlo_error *err)
{
    struct mlo_s3_call *call = t->call;
    *retry = false;
    if (code == CURLE_OK && !call->headers_whole)
        code = CURLE_PARTIAL_FILE; /* to curl an answer may end amid its headers */
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &call->http);
    if (call->sink_error.status != MLO_OK) {
        if (err)
            *err = call->sink_error;
        return call->sink_error.status;
    }
    if (call->too_big)
        return mlo_error_set(err, MLO_EFORMAT, "the S3 server %s answers with more than %d bytes",
                             t->s3->base, MLO_S3_ANSWER_MAX);
    if (code != CURLE_OK && call->http < 300)
        return mlo_s3_curl_failed(t->s3, call, code, t->detail, retry, err);
    if (call->http >= 300) /* also when it cut the upload short to say so */
        return mlo_s3_refused(t->s3, call, retry, err);
    return MLO_OK;
}

void mlo_s3_transfer_end(struct mlo_s3_transfer *t)
{
    struct mlo_s3_message *r = &t->message;
    curl_slist_free_all(r->list);
    mlo_buf_clear(&r->url);
    mlo_buf_clear(&r->path);
    mlo_buf_clear(&r->authorization);
    mlo_buf_clear(&r->line);
    if (t->curl)
        give_handle(t->s3, t->curl);
    *t = (struct mlo_s3_transfer){0};
}

enum mlo_status mlo_s3_attempt(struct mlo_s3 *s3, struct mlo_s3_call *call, bool fresh, bool *retry,
                               struct mlo_error *err)
{
    struct mlo_s3_transfer t;
    *retry = false;
    enum mlo_status status = mlo_s3_transfer_begin(&t, s3, call, fresh, err);
    if (status == MLO_OK)
        status = mlo_s3_transfer_result(&t, curl_easy_perform(t.curl), retry, err);
    mlo_s3_transfer_end(&t);
    return status;
}

void mlo_s3_backoff(uint32_t n)
{
    uint32_t random, most = BACKOFF_MAX_MS;
    if (n < 8)
        most = MLO_MIN(most, (uint32_t)BACKOFF_BASE_MS << n);
    mlo_random_bytes(&random, sizeof random);
    mlo_clock_sleep_ms(random % most);
}

enum mlo_status mlo_s3_perform(struct mlo_s3 *s3, struct mlo_s3_call *call, struct mlo_error *err)
{
    for (uint32_t n = 1;; n++) {
        bool retry;
        enum mlo_status status = mlo_s3_attempt(s3, call, n > 1, &retry, err);
        if (status == MLO_OK || !retry)
            return status;
        if (n == s3->attempts) {
            mlo_error_prefix(err, "after %u attempts", n);
            return status;
        }
        mlo_s3_backoff(n);
    }
}
