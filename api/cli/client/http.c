#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/cli/client/http_impl.h"
#include "registry/idempotency.h"

#ifndef MLOPT_VERSION
#define MLOPT_VERSION "0"
#endif

enum { MAX_JSON_BYTES = 64 << 20 };

void mlo_response_clear(struct mlo_response *response)
{
    json_decref(response->json);
    memset(response, 0, sizeof *response);
}

const char *mlo_client_url(const struct mlo_client *client)
{
    return client->config.url;
}

struct mlo_cli *mlo_client_cli(const struct mlo_client *client)
{
    return client->cli;
}

bool mlo_client_has_token(const struct mlo_client *client)
{
    return client->config.token != NULL;
}

enum mlo_status mlo_client_open(struct mlo_cli *cli, struct mlo_client **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *c = calloc(1, sizeof *c);
    if (!c)
        return mlo_error_nomem(err);
    c->cli = cli;
    MLO_TRY(mlo_config_load(mlo_cli_opt(cli, "url"), &c->config, err));
    c->ca_file = mlo_cli_opt(cli, "ca-file") ? mlo_cli_opt(cli, "ca-file") : c->config.ca_file;
    if (c->ca_file && access(c->ca_file, R_OK) != 0) {
        status = mlo_error_errno(err, errno, "cannot read the certificate %s", c->ca_file);
        mlo_error_where(err, "--ca-file, MLOPT_CA_FILE or ca-file in the config file");
        goto out;
    }
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || !(c->curl = curl_easy_init())) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (c->config.token) {
        if (strpbrk(c->config.token, "\r\n")) {
            status =
                mlo_error_set(err, MLO_EAUTH, "the token in %s holds a line break", c->config.token_from);
            goto out;
        }
        mlo_buf_printf(&c->auth, "Authorization: Bearer %s", c->config.token);
        if (!mlo_buf_ok(&c->auth)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    *out = c;
    c = NULL;
out:
    mlo_client_close(c);
    return status;
}

void mlo_client_close(struct mlo_client *c)
{
    if (!c)
        return;
    if (c->curl)
        curl_easy_cleanup(c->curl);
    mlo_config_clear(&c->config);
    mlo_buf_clear(&c->auth);
    free(c);
    curl_global_cleanup();
}

void mlo_client_path(struct mlo_buf *out, const char *fmt, ...)
{
    static const char hex[] = "0123456789ABCDEF";
    va_list args;
    va_start(args, fmt);
    for (; *fmt; fmt++) {
        if (*fmt != '%') {
            mlo_buf_putc(out, *fmt);
            continue;
        }
        fmt++;
        if (*fmt == 'd') {
            mlo_buf_printf(out, "%lld", va_arg(args, long long));
            continue;
        }
        for (const unsigned char *p = (const unsigned char *)va_arg(args, const char *); *p; p++) {
            bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                         strchr("-._~:", *p);
            if (plain) {
                mlo_buf_putc(out, (char)*p);
            } else {
                mlo_buf_putc(out, '%');
                mlo_buf_putc(out, hex[*p >> 4]);
                mlo_buf_putc(out, hex[*p & 15]);
            }
        }
    }
    va_end(args);
}

/* --- callbacks --------------------------------------------------------------------------------- */

static bool header_is(const char *line, size_t n, const char *name, const char **value, size_t *value_len)
{
    size_t k = strlen(name);
    if (n <= k || strncasecmp(line, name, k) != 0 || line[k] != ':')
        return false;
    const char *p = line + k + 1, *end = line + n;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    while (end > p && strchr(" \t\r\n", end[-1]))
        end--;
    *value = p;
    *value_len = (size_t)(end - p);
    return true;
}

void mlo_copy_text(char *out, size_t size, const char *text, size_t n)
{
    snprintf(out, size, "%.*s", (int)MLO_MIN(n, size - 1), text);
}

static void take_filename(struct mlo_response *r, const char *value, size_t n)
{
    static const char key[] = "filename=\"";
    const char *p = memmem(value, n, key, sizeof key - 1);
    if (!p)
        return;
    p += sizeof key - 1;
    const char *end = memchr(p, '"', (size_t)(value + n - p));
    if (!end)
        return;
    for (const char *q = p; q < end; q++)
        if (*q == '/' || *q == '\\')
            p = q + 1;
    mlo_copy_text(r->filename, sizeof r->filename, p, (size_t)(end - p));
    if (strcmp(r->filename, "..") == 0 || strcmp(r->filename, ".") == 0)
        r->filename[0] = '\0';
}

static size_t on_header(char *line, size_t one, size_t n, void *arg)
{
    struct mlo_transfer *t = arg;
    struct mlo_response *r = t->response;
    const char *v;
    size_t len;
    if (t->elsewhere)
        return n * one;
    if (header_is(line, n * one, "ETag", &v, &len)) {
        if (len >= 2 && v[0] == '"' && v[len - 1] == '"')
            v++, len -= 2;
        mlo_copy_text(r->etag, sizeof r->etag, v, len);
        struct mlo_digest digest;
        if (!*r->digest && mlo_digest_parse(r->etag, &digest))
            mlo_digest_text(&digest, r->digest);
    } else if (header_is(line, n * one, "X-Mlopt-Digest", &v, &len)) {
        mlo_copy_text(r->digest, sizeof r->digest, v, len);
    } else if (header_is(line, n * one, "X-Mlopt-Variant", &v, &len)) {
        mlo_copy_text(r->variant, sizeof r->variant, v, len);
    } else if (header_is(line, n * one, "X-Mlopt-Version", &v, &len)) {
        mlo_copy_text(r->version, sizeof r->version, v, len);
    } else if (header_is(line, n * one, "X-Request-Id", &v, &len)) {
        mlo_copy_text(t->client->cli->request_id, sizeof t->client->cli->request_id, v, len);
    } else if (header_is(line, n * one, "Content-Disposition", &v, &len)) {
        take_filename(r, v, len);
    } else if (t->follows && header_is(line, n * one, "Location", &v, &len)) {
        mlo_buf_reset(&t->location);
        mlo_buf_append(&t->location, v, len);
    }
    return n * one;
}

static size_t on_body(char *bytes, size_t one, size_t n, void *arg)
{
    struct mlo_transfer *t = arg;
    long http = 0;
    n *= one;
    curl_easy_getinfo(t->client->curl, CURLINFO_RESPONSE_CODE, &http);
    if (t->out_fd >= 0 && http < 300) {
        /* asked for the rest, and given all of it: it is not what it was */
        if (t->had && http != 206 && mlo_transfer_start_anew(t, NULL) != MLO_OK) {
            t->write_errno = errno;
            return 0;
        }
        t->last_ns = mlo_clock_ns();
        if (!mlo_fs_write_full(t->out_fd, bytes, n)) {
            t->write_errno = errno;
            return 0;
        }
        mlo_hasher_update(t->hasher, bytes, n);
        return n;
    }
    if (t->body.len + n > MAX_JSON_BYTES) {
        t->too_big = true;
        return 0;
    }
    mlo_buf_append(&t->body, bytes, n);
    return mlo_buf_ok(&t->body) ? n : 0;
}

static int on_progress(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
    struct mlo_transfer *t = arg;
    double total = (double)(up_total > 0 ? up_total : down_total), now = (double)(up_total > 0 ? up : down);
    double before = t->part ? (double)t->part->first : (double)t->had;
    if (t->part)
        total = (double)t->part->file_size;
    else if (total > 0)
        total += before;
    if (!t->progress || total < 1 << 16)
        return 0;
    double seconds = (double)(mlo_clock_ns() - t->began_ns) * 1e-9;
    char done[32], all[32], rate[32], text[128];
    snprintf(text, sizeof text, "%s of %s, %s/s", mlo_str_size((uint64_t)(before + now), done),
             mlo_str_size((uint64_t)total, all),
             mlo_str_size((uint64_t)(seconds > 0 ? now / seconds : 0), rate));
    now += before;
    mlo_cli_progress(t->progress, now / total, text);
    return 0;
}

/* --- from answers to errors -------------------------------------------------------------------- */

static enum mlo_status status_of_http(long http)
{
    for (int s = MLO_OK + 1; s < MLO_STATUS_COUNT; s++)
        if (mlo_status_info((enum mlo_status)s)->http == http)
            return (enum mlo_status)s;
    return http >= 500 ? MLO_EUNAVAILABLE : MLO_EINVAL;
}

static enum mlo_status problem(struct mlo_client *c, long http, const json_t *body, struct mlo_error *err)
{
    const char *code = mlo_json_str(body, "code", NULL);
    enum mlo_status status = code ? mlo_status_from_code(code) : status_of_http(http);
    const char *detail = mlo_json_str(body, "detail", NULL), *title = mlo_json_str(body, "title", NULL);
    if (detail || title)
        mlo_error_set(err, status, "%s", detail ? detail : title);
    else
        mlo_error_set(err, status, "%s answered %ld", c->config.url, http);
    if (detail && title)
        snprintf(c->cli->cause, sizeof c->cli->cause, "%s", title);
    if (mlo_json_str(body, "where", NULL))
        mlo_error_where(err, "%s", mlo_json_str(body, "where", ""));
    if (status == MLO_EAUTH && !c->config.token)
        mlo_error_hint(err, "export MLOPT_TOKEN=… (`mlopt up` keeps its own in DIR/token)");
    if (mlo_json_str(body, "hint", NULL))
        mlo_error_hint(err, "%s", mlo_json_str(body, "hint", ""));
    return status;
}

/* Whether a server at the client's host and port answers `scheme`: for a hint alone. */
static bool speaks(const struct mlo_client *c, const char *scheme)
{
    struct mlo_buf url = MLO_BUF_INIT;
    CURL *curl = curl_easy_init();
    mlo_buf_printf(&url, "%s%s/healthz", scheme, strstr(c->config.url, "://") + 3);
    bool does = false;
    if (curl && mlo_buf_ok(&url)) {
        curl_easy_setopt(curl, CURLOPT_URL, mlo_buf_str(&url));
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
        curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 3000L);
        CURLcode code = curl_easy_perform(curl);
        does = code == CURLE_OK || code == CURLE_PEER_FAILED_VERIFICATION;
    }
    curl_easy_cleanup(curl);
    mlo_buf_clear(&url);
    return does;
}

/* http where TLS is spoken, or the other way round, breaks in ways that say nothing of it. */
static enum mlo_status wrong_scheme(const struct mlo_client *c, CURLcode code, struct mlo_error *err)
{
    const char *url = c->config.url;
    bool plain = mlo_str_starts(url, "http://");
    bool suspect = plain
                       ? code == CURLE_GOT_NOTHING || code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR ||
                             code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_WEIRD_SERVER_REPLY
                       : code == CURLE_SSL_CONNECT_ERROR;
    if (!suspect || !speaks(c, plain ? "https://" : "http://"))
        return MLO_OK;
    mlo_error_set(err, MLO_EUSAGE, "the server at %s speaks %s", url,
                  plain ? "TLS, and this address says plain HTTP" : "plain HTTP, and this address says TLS");
    mlo_error_where(err, "address from %s", c->config.url_from);
    mlo_error_hint(err, "use %s%s", plain ? "https://" : "http://", strstr(url, "://") + 3);
    return MLO_EUSAGE;
}

static enum mlo_status curl_failed(struct mlo_client *c, const struct mlo_transfer *t, CURLcode code,
                                   struct mlo_error *err)
{
    const char *url = c->config.url;
    if (t->write_errno)
        return mlo_error_errno(err, t->write_errno, "cannot write the download");
    if (t->too_big)
        return mlo_error_set(err, MLO_ETOOBIG, "%s sent an answer that is too long", url);
    if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST) {
        mlo_error_set(err, MLO_EUNAVAILABLE, "no server answers at %s: %s", url, c->error);
        mlo_error_where(err, "address from %s", c->config.url_from);
        mlo_error_hint(err, "start one with `mlopt up --data DIR`, or set MLOPT_URL");
        return MLO_EUNAVAILABLE;
    }
    if (code == CURLE_OPERATION_TIMEDOUT)
        return mlo_error_set(err, MLO_ETIMEOUT, "%s did not answer in time", url);
    if (code == CURLE_OUT_OF_MEMORY)
        return mlo_error_nomem(err);
    if (code == CURLE_PEER_FAILED_VERIFICATION) {
        mlo_error_set(err, MLO_EUNAVAILABLE, "the certificate of %s is not to be trusted: %s", url,
                      *c->error ? c->error : curl_easy_strerror(code));
        mlo_error_where(err, "address from %s", c->config.url_from);
        mlo_error_hint(err,
                       "give the certificate that signed it with --ca-file FILE or MLOPT_CA_FILE, and the "
                       "address by a name that is in it");
        return MLO_EUNAVAILABLE;
    }
    if (code == CURLE_SSL_CACERT_BADFILE) {
        mlo_error_set(err, MLO_EFORMAT, "%s holds no certificate in PEM", c->ca_file ? c->ca_file : "it");
        mlo_error_where(err, "--ca-file, MLOPT_CA_FILE or ca-file in the config file");
        return MLO_EFORMAT;
    }
    enum mlo_status scheme = wrong_scheme(c, code, err);
    if (scheme != MLO_OK)
        return scheme;
    return mlo_error_set(err, MLO_EUNAVAILABLE, "the connection to %s broke: %s", url,
                         *c->error ? c->error : curl_easy_strerror(code));
}

/* --- transfers --------------------------------------------------------------------------------- */

void mlo_client_reach(const struct mlo_client *client, CURL *curl, const char *url)
{
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    if (mlo_str_starts(host, "127.") || mlo_str_starts(host, "localhost"))
        curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (client->ca_file) /* those of the system stay: Debian's curl reads their folder as well */
        curl_easy_setopt(curl, CURLOPT_CAINFO, client->ca_file);
}

void mlo_transfer_set_up(struct mlo_transfer *t, const char *method, const char *url,
                         struct curl_slist *headers)
{
    CURL *curl = t->client->curl;
    curl_easy_reset(curl);
    t->client->error[0] = '\0';
    t->client->cli->request_id[0] = '\0';
    t->began_ns = mlo_clock_ns();
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "mlopt/" MLOPT_VERSION);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, t->client->error);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L); /* the token goes nowhere else */
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L); /* a peer that went silent */
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, 120L);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    mlo_client_reach(t->client, curl, url);
}

bool mlo_add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = line && *line ? curl_slist_append(*list, line) : *list;
    if (line && *line && !more)
        return false;
    *list = more;
    return true;
}

enum mlo_status mlo_transfer_perform(struct mlo_transfer *t, struct mlo_error *err)
{
    struct mlo_client *c = t->client;
    CURLcode code = curl_easy_perform(c->curl);
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &t->response->http);
    /* A server that refuses early stops reading: its answer counts more than our broken write. */
    if (code != CURLE_OK && !(t->response->http >= 400 && t->body.len))
        return curl_failed(c, t, code, err);
    char *type = NULL;
    curl_easy_getinfo(c->curl, CURLINFO_CONTENT_TYPE, &type);
    if (t->body.len && type && strstr(type, "json")) {
        struct mlo_error parse = {0};
        enum mlo_status status =
            mlo_json_parse(t->body.data, t->body.len, "the server's answer", &t->response->json, &parse);
        if (status != MLO_OK && t->response->http < 400) {
            *err = parse;
            return status;
        }
    }
    if (t->response->http >= 400)
        return problem(c, t->response->http, t->response->json, err);
    if (t->response->http == 307 && t->follows && t->location.len)
        return MLO_OK;
    if (t->response->http >= 300 && t->response->http != 304)
        return mlo_error_set(err, MLO_EUNAVAILABLE,
                             "%s answered %ld: it is no mlopt server, or stands behind "
                             "another address",
                             c->config.url, t->response->http);
    return MLO_OK;
}

/* One request. `key` (may be NULL) is a header, too; `bytes` (may be NULL) gets the body of a good answer
 * that is no JSON. *sent: something of it went out. */
static enum mlo_status call_once(struct mlo_client *client, const char *method, const char *path,
                                 const char *header, const char *key, const json_t *body,
                                 struct mlo_response *out, struct mlo_buf *bytes, bool *sent,
                                 struct mlo_error *err)
{
    long request_size = 0;
    enum mlo_status status = MLO_OK;
    struct mlo_transfer t = {.client = client, .response = out, .out_fd = -1};
    struct curl_slist *headers = NULL;
    struct mlo_buf url = MLO_BUF_INIT;
    char *text = NULL;
    memset(out, 0, sizeof *out);
    mlo_buf_printf(&url, "%s%s", client->config.url, path);
    if (body)
        text = json_dumps(body, JSON_COMPACT);
    if (!mlo_buf_ok(&url) || (body && !text) || !mlo_add_header(&headers, mlo_buf_str(&client->auth)) ||
        !mlo_add_header(&headers, header) || !mlo_add_header(&headers, key) ||
        !mlo_add_header(&headers, body ? "Content-Type: application/json" : NULL) ||
        !mlo_add_header(&headers, "Accept: application/json, application/problem+json")) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_transfer_set_up(&t, method, mlo_buf_str(&url), headers);
    if (body) {
        curl_easy_setopt(client->curl, CURLOPT_POSTFIELDS, text);
        curl_easy_setopt(client->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
    } else if (strcmp(method, "HEAD") == 0) {
        curl_easy_setopt(client->curl, CURLOPT_NOBODY, 1L);
    } else if (strcmp(method, "GET") != 0) {
        curl_easy_setopt(client->curl, CURLOPT_POSTFIELDSIZE, 0L);
        curl_easy_setopt(client->curl, CURLOPT_POSTFIELDS, "");
    }
    status = mlo_transfer_perform(&t, err);
    curl_easy_getinfo(client->curl, CURLINFO_REQUEST_SIZE, &request_size);
    *sent = request_size > 0;
    MLO_TRY(status);
    if (bytes && bytes->len == 0) { /* as it is, without a copy */
        struct mlo_buf unused = *bytes;
        *bytes = t.body;
        t.body = unused;
    } else if (bytes) {
        mlo_buf_append(bytes, mlo_buf_str(&t.body), t.body.len);
    }
out:
    curl_slist_free_all(headers);
    mlo_buf_clear(&t.body);
    mlo_buf_clear(&url);
    free(text);
    return status;
}

/* A key of its own makes a POST safe to be sent again when its answer was lost; a caller may bring one. An
 * upload takes none, and needs none: one begun in vain ends by itself. Of those that sign each makes a key:
 * that must not be sent again. */
static const char *key_for(const char *method, const char *path, const char *header, char out[64])
{
    uint8_t random[16];
    if (strcmp(method, "POST") != 0 || strcmp(path, "/v1/keys/rotations") == 0)
        return NULL;
    if ((header && mlo_str_starts(header, MLO_CLIENT_KEY)) || mlo_str_ends(path, "/uploads"))
        return "";
    mlo_random_bytes(random, sizeof random);
    snprintf(out, 64, MLO_CLIENT_KEY);
    mlo_hex(random, sizeof random, out + strlen(out));
    return out;
}

enum mlo_status mlo_client_key(const struct mlo_cli *cli, struct mlo_buf *out, const char **header,
                               struct mlo_error *err)
{
    const char *key = mlo_cli_opt(cli, "idempotency-key");
    *header = NULL;
    if (!key)
        return MLO_OK;
    if (strpbrk(key, "\r\n"))
        return mlo_error_set(err, MLO_EUSAGE, "--idempotency-key holds a line break");
    const char *bare;
    size_t length;
    enum mlo_status status = mlo_idempotency_key(key, &bare, &length, err);
    if (status != MLO_OK)
        return status;
    mlo_buf_printf(out, MLO_CLIENT_KEY "%s", key);
    *header = mlo_buf_str(out);
    return mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_client_call(struct mlo_client *client, const char *method, const char *path,
                                const char *header, const json_t *body, struct mlo_response *out,
                                struct mlo_error *err)
{
    enum { TRIES = 4, FIRST_WAIT_MS = 250 };
    const uint64_t until = mlo_clock_ns() + 30 * 1000000000ull;
    char text[64];
    const char *key = key_for(method, path, header, text);
    bool sent = false;
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < TRIES; i++) {
        if (i) {
            mlo_response_clear(out);
            mlo_clock_sleep_ms(FIRST_WAIT_MS << (i - 1));
        }
        status = call_once(client, method, path, header, key, body, out, NULL, &sent, err);
        /* where nobody listened at first, nothing was lost */
        if (status != MLO_EUNAVAILABLE || !key || (!i && !sent) || mlo_clock_ns() > until)
            break;
    }
    return status;
}

enum mlo_status mlo_client_get_bytes(struct mlo_client *client, const char *path, struct mlo_buf *out,
                                     struct mlo_error *err)
{
    struct mlo_response response;
    bool sent;
    enum mlo_status status = call_once(client, "GET", path, NULL, NULL, NULL, &response, out, &sent, err);
    mlo_response_clear(&response);
    return status == MLO_OK && !mlo_buf_ok(out) ? mlo_error_nomem(err) : status;
}

size_t mlo_sending_read(char *out, size_t one, size_t n, void *arg)
{
    struct mlo_sending *sending = arg;
    ssize_t got;
    do
        got = pread(sending->fd, out, MLO_MIN(one * n, sending->left), (off_t)sending->at);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return CURL_READFUNC_ABORT;
    sending->at += (uint64_t)got;
    sending->left -= (uint64_t)got;
    return (size_t)got;
}

enum mlo_status mlo_client_send_part(struct mlo_client *client, const char *method, const char *path,
                                     const struct mlo_client_part *part, struct mlo_cli_progress *progress,
                                     struct mlo_response *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_transfer t = {
        .client = client, .response = out, .out_fd = -1, .progress = progress, .part = part};
    struct mlo_sending sending = {part->fd, part->first, part->size};
    struct curl_slist *headers = NULL;
    struct mlo_buf url = MLO_BUF_INIT;
    char range[96] = "";
    memset(out, 0, sizeof *out);
    if (strcmp(method, "PATCH") == 0)
        snprintf(range, sizeof range, "Content-Range: bytes %llu-%llu/%llu", (unsigned long long)part->first,
                 (unsigned long long)(part->first + part->size - 1), (unsigned long long)part->file_size);
    mlo_buf_printf(&url, "%s%s", client->config.url, path);
    if (!mlo_buf_ok(&url) || !mlo_add_header(&headers, mlo_buf_str(&client->auth)) ||
        !mlo_add_header(&headers, "Content-Type: application/octet-stream") ||
        !mlo_add_header(&headers, range) ||
        /* a refusal comes before the bytes are sent */
        !mlo_add_header(&headers, "Expect: 100-continue")) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_transfer_set_up(&t, method, mlo_buf_str(&url), headers);
    curl_easy_setopt(client->curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(client->curl, CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
    curl_easy_setopt(client->curl, CURLOPT_READFUNCTION, mlo_sending_read);
    curl_easy_setopt(client->curl, CURLOPT_READDATA, &sending);
    curl_easy_setopt(client->curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)part->size);
    MLO_TRY(mlo_transfer_perform(&t, err));
out:
    curl_slist_free_all(headers);
    mlo_buf_clear(&t.body);
    mlo_buf_clear(&url);
    return status;
}
