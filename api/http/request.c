/* The daemon's callbacks: a request from its headers to its answer.
 *
 * A normal answer is never queued in the first callback: the daemon would close the connection. An early
 * refusal of a request with a large body is the exception, so that the body is not read. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/http/mlflow_impl.h"

/* So much of a refused request's body is read and dropped: a client that is still sending when the connection
 * is closed may never see the answer. One that waits for "100 Continue" gets its answer at once. */
#define DRAIN_AT_MOST ((uint64_t)8 << 20)

/* Most requests need less, and are many: what is taken is zeroed for each. */
#define ARENA_BYTES ((size_t)8 << 10)

struct header_facts {
    int lengths, encodings, hosts, authorizations, cookies;
    bool bad;
    uint64_t length;
};

/* A line that goes on in the next one (RFC 9112, 5.2). The library puts what follows behind the *name*, so
 * that "Transfer-Encoding: chunked" is another header; the name is then a copy, and its value not beside it.
 */
static bool folded(const char *name, const char *value)
{
    const char *at = name + strlen(name) + 1;
    if ((uintptr_t)value < (uintptr_t)at)
        return true;
    while (at < value && (*at == ' ' || *at == '\t'))
        at++;
    return at != value;
}

static enum MHD_Result look_at_header(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct header_facts *facts = cls;
    MLO_UNUSED(kind);
    facts->bad = facts->bad || (value && folded(name, value));
    value = value ? value : "";
    if (strcasecmp(name, "Content-Length") == 0) {
        int64_t length;
        facts->lengths++;
        if (!mlo_str_to_i64(value, &length) || length < 0)
            facts->bad = true;
        else
            facts->length = (uint64_t)length;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        facts->encodings++;
        if (strcasecmp(value, "chunked") != 0)
            facts->bad = true;
    } else if (strcasecmp(name, "Host") == 0) {
        facts->hosts++;
    } else if (strcasecmp(name, "Authorization") == 0) {
        facts->authorizations++;
    } else if (strcasecmp(name, "Cookie") == 0) {
        facts->cookies++;
    }
    if (!name[0] || strpbrk(name, " \t\r\n"))
        facts->bad = true;
    return MHD_YES;
}

static const char *new_id(struct mlo_request *req)
{
    const char *given = mlo_request_header(req, "X-Request-Id");
    static const char *allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    if (given && given[0] && strlen(given) <= 64 && given[strspn(given, allowed)] == '\0')
        return mlo_arena_strdup(req->arena, given);
    uint8_t random[10];
    char hex[sizeof random * 2 + 1];
    mlo_random_bytes(random, sizeof random);
    mlo_hex(random, sizeof random, hex);
    return mlo_arena_strdup(req->arena, hex);
}

static const char *peer_address(struct mlo_request *req)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(req->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char text[INET6_ADDRSTRLEN] = "";
    if (info && info->client_addr->sa_family == AF_INET)
        inet_ntop(AF_INET, &((struct sockaddr_in *)info->client_addr)->sin_addr, text, sizeof text);
    else if (info && info->client_addr->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((struct sockaddr_in6 *)info->client_addr)->sin6_addr, text, sizeof text);
    return mlo_arena_strdup(req->arena, text);
}

static struct mlo_request *request_new(struct mlo_http *http, struct MHD_Connection *connection,
                                       const char *url, const char *method)
{
    struct mlo_arena *arena = mlo_arena_new_of(ARENA_BYTES);
    struct mlo_request *req = arena ? mlo_arena_alloc(arena, sizeof *req) : NULL;
    if (!req || !(req->state = mlo_arena_alloc(arena, sizeof *req->state))) {
        mlo_arena_free(arena);
        return NULL;
    }
    req->http = http;
    req->connection = connection;
    req->arena = arena;
    req->module = &http->modules[0];
    req->file = -1;
    req->state->started_ns = mlo_clock_ns();
    req->method = mlo_arena_strdup(arena, method);
    req->path = mlo_arena_strdup(arena, url);
    req->id = new_id(req);
    req->address = peer_address(req);
    if (!req->method || !req->path || !req->id || !req->address) {
        mlo_arena_free(arena);
        return NULL;
    }
    return req;
}

static void fail(struct mlo_request *req, const struct mlo_error *err)
{
    mlo_reply_reset(req);
    if (req->module->failed && req->route)
        req->module->failed(req, err, mlo_status_info(err->status)->http);
    else
        mlo_reply_problem(req, err);
    if (err->status == MLO_EINTERNAL)
        mlo_log_error(MLO_LOG_ERROR, "request failed", err);
}

/* Two programs on the way could read it as two different requests. */
static bool ambiguous(const struct header_facts *facts)
{
    return facts->bad || facts->lengths > 1 || facts->encodings > 1 || (facts->lengths && facts->encodings) ||
           facts->hosts != 1 || facts->authorizations > 1 || facts->cookies > 1;
}

/* While an upload waits for the store, its client is not the idle one. */
static void wait_for_store(const struct mlo_request *req, bool waits)
{
    MHD_set_connection_option(req->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              waits ? 0u : (unsigned)req->http->options.idle_timeout_s);
}

/* What headers alone can decide. On refusal the answer is ready and state->refused set. */
static void admit(struct mlo_request *req, const struct header_facts *facts)
{
    struct mlo_error err = {0};
    const char *allow = "";
    if (ambiguous(facts)) {
        mlo_error_set(&err, MLO_EUSAGE, "the request's headers are ambiguous");
        mlo_error_where(&err, "headers");
        mlo_error_hint(&err, "send one Host and either one Content-Length or Transfer-Encoding: chunked");
        goto refuse;
    }
    if (!mlo_route_match(req->http, req, &allow)) {
        bool writes = mlo_mlflow_write_call(req, &err);
        if (allow && allow[0]) {
            mlo_reply_http_problem(req, 405, "method-not-allowed", "method not allowed",
                                   writes ? err.message : "this address does not take that method", err.hint);
            mlo_reply_header(req, "Allow", "%s", allow);
            req->state->refused = true;
            return;
        }
        if (!writes) {
            mlo_error_set(&err, MLO_ENOTFOUND, "there is nothing at %.300s", req->path);
            mlo_error_hint(&err, "the addresses are listed in docs/%s.md",
                           mlo_mlflow_path(req->path) ? "mlflow" : "api");
        }
        goto refuse;
    }
    if (mlo_request_authorize(req, &err) != MLO_OK)
        goto refuse;
    if (req->status) { /* a page without a session: sent to the sign-in page; or too many requests */
        req->state->refused = true;
        return;
    }
    uint64_t most = req->route->max_body;
    if (most == MLO_BODY_BLOB_MAX)
        most = req->http->options.max_blob_bytes;
    if (facts->length > most) {
        mlo_error_set(&err, MLO_ETOOBIG, "the body has %llu bytes, at most %llu are taken here",
                      (unsigned long long)facts->length, (unsigned long long)most);
        goto refuse;
    }
    if (req->route->upload) {
        req->state->upload_begun = true;
        wait_for_store(req, true);
        enum mlo_status begun = req->route->upload->begin(req, &err);
        wait_for_store(req, false);
        if (begun != MLO_OK)
            goto refuse;
    }
    return;
refuse:
    fail(req, &err);
    req->state->refused = true;
}

/* Ends what was begun for an upload, once. */
static void end_upload(struct mlo_request *req)
{
    if (req->state->upload_begun)
        req->route->upload->end(req);
    req->state->upload_begun = false;
}

static enum MHD_Result send_answer(struct mlo_request *req)
{
    struct MHD_Response *response;
    end_upload(req);                              /* who reads the answer finds nothing half-done behind it */
    mlo_gather_clear(req->state->asks, MLO_ASKS); /* shared with others, who may read theirs slowly */
    if (req->state->response) {
        response = req->state->response;
        req->state->response = NULL;
    } else if (req->file >= 0) {
        response = req->state->checks
                       ? mlo_blob_body(req)
                       : MHD_create_response_from_fd_at_offset64(req->file_size, req->file, req->file_offset);
        req->state->sent_size = req->file_size;
        if (response)
            req->file = -1; /* the response closes it */
    } else {
        mlo_http_gzip(req);
        size_t size = req->out.len;
        req->state->sent_size = size;
        if (!mlo_buf_ok(&req->out))
            return MHD_NO;
        char *text = size ? mlo_buf_take(&req->out) : NULL;
        response = MHD_create_response_from_buffer(size, text,
                                                   text ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
        if (!response)
            free(text);
    }
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "X-Request-Id", req->id);
    if (req->content_type)
        MHD_add_response_header(response, "Content-Type", req->content_type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (req->http->tls) /* RFC 6797: from now on never without */
        MHD_add_response_header(response, "Strict-Transport-Security", "max-age=31536000");
    for (struct mlo_header *header = req->headers; header; header = header->next)
        MHD_add_response_header(response, header->name, header->value);
    if (atomic_load(&req->http->draining))
        MHD_add_response_header(response, "Connection", "close");
    enum MHD_Result result = MHD_queue_response(req->connection, (unsigned)req->status, response);
    MHD_destroy_response(response);
    req->state->queued = true;
    return result;
}

static enum MHD_Result first_call(struct mlo_http *http, struct MHD_Connection *connection, const char *url,
                                  const char *method, void **con_cls)
{
    struct mlo_connection *entry = mlo_connection_of(connection);
    struct header_facts facts = {0};
    struct mlo_request *req = request_new(http, connection, url, method);
    if (!req)
        return MHD_NO;
    *con_cls = req;
    if (entry) {
        atomic_store(&entry->headers_due_ns, 0);
        atomic_store(&entry->busy, true);
    }
    MHD_get_connection_values(connection, MHD_HEADER_KIND, look_at_header, &facts);
    req->state->bodiless = !facts.encodings && !facts.length;
    admit(req, &facts);
    if (req->state->refused)
        mlo_request_db_release(req);
    const char *expect = mlo_request_header(req, "Expect");
    bool waits = expect && strcasecmp(expect, "100-continue") == 0 && (facts.encodings || facts.length);
    if (req->state->refused && (ambiguous(&facts) || waits || facts.length > DRAIN_AT_MOST)) {
        mlo_reply_header(req, "Connection", "close");
        return send_answer(req);
    }
    if (entry && (facts.encodings || facts.length)) {
        atomic_store(&entry->received, 0);
        atomic_store(&entry->receiving, true);
    }
    return MHD_YES;
}

static void take_body(struct mlo_request *req, const char *bytes, size_t size)
{
    struct mlo_error err = {0};
    enum mlo_status status = MLO_OK;
    struct mlo_connection *entry = mlo_connection_of(req->connection);
    req->state->body_size += size;
    if (entry) {
        atomic_fetch_add(&entry->received, size);
        atomic_store(&entry->receiving, false); /* what we take to store it is not the client's slowness */
    }
    if (req->state->refused) {
        req->state->dropped_size += size;
    } else {
        uint64_t most = req->route->max_body;
        if (most == MLO_BODY_BLOB_MAX)
            most = req->http->options.max_blob_bytes;
        if (req->state->body_size > most) {
            status =
                mlo_error_set(&err, MLO_ETOOBIG, "the body has more than the %llu bytes that are taken here",
                              (unsigned long long)most);
        } else if (req->route->upload) {
            wait_for_store(req, true);
            status = req->route->upload->data(req, bytes, size, &err);
            wait_for_store(req, false);
        } else {
            mlo_buf_append(&req->body, bytes, size);
            if (!mlo_buf_ok(&req->body))
                status = mlo_error_nomem(&err);
        }
        if (status != MLO_OK) {
            err.status = status;
            fail(req, &err);
            mlo_reply_header(req, "Connection", "close");
            req->state->refused = true;
        }
    }
    if (entry)
        atomic_store(&entry->receiving, true);
}

static bool has_json(const struct mlo_request *req)
{
    return req->route->kind == MLO_ROUTE_API && !req->route->upload && req->body.len;
}

/* A JSON row takes a body that says it is JSON, or that says nothing. */
static bool wrong_media_type(const struct mlo_request *req)
{
    const char *type = mlo_request_header(req, "Content-Type");
    return has_json(req) && type && strncasecmp(type, "application/json", 16) != 0;
}

static void serve(struct mlo_request *req)
{
    struct mlo_error err = {0};
    if (wrong_media_type(req)) {
        mlo_reply_http_problem(req, 415, "unsupported-media-type", "unsupported media type",
                               "the body must be JSON: send it with Content-Type: application/json", "");
        return;
    }
    json_t *body;
    /* also where the handler needs nothing of it: what is not understood is not taken */
    enum mlo_status status = has_json(req) ? mlo_request_json(req, &body, &err) : MLO_OK;
    if (status == MLO_OK)
        status = mlo_request_handle(req, &err);
    mlo_request_db_release(req);
    if (status == MLO_OK && req->status == 0)
        status =
            mlo_error_set(&err, MLO_EINTERNAL, "%s %s gave no answer", req->route->method, req->route->path);
    if (status != MLO_OK) {
        err.status = status;
        fail(req, &err);
    }
}

enum MHD_Result mlo_request_callback(void *cls, struct MHD_Connection *connection, const char *url,
                                     const char *method, const char *version, const char *upload_data,
                                     size_t *upload_data_size, void **con_cls)
{
    struct mlo_request *req = *con_cls;
    MLO_UNUSED(version);
    if (!req)
        return first_call(cls, connection, url, method, con_cls);
    if (*upload_data_size) {
        take_body(req, upload_data, *upload_data_size);
        *upload_data_size = 0;
        if (req->state->dropped_size > DRAIN_AT_MOST)
            return MHD_NO;
        return MHD_YES;
    }
    if (req->state->queued)
        return MHD_YES;
    struct mlo_connection *entry = mlo_connection_of(connection);
    if (entry)
        atomic_store(&entry->receiving, false);
    if (!req->state->refused)
        serve(req);
    return send_answer(req);
}

static void log_access(const struct mlo_request *req, enum MHD_RequestTerminationCode code)
{
    char status[16], took_ms[32], received[32], sent[32];
    if (req->http->options.quiet)
        return;
    snprintf(status, sizeof status, "%d", req->status);
    snprintf(took_ms, sizeof took_ms, "%.1f", (double)(mlo_clock_ns() - req->state->started_ns) / 1e6);
    snprintf(received, sizeof received, "%llu", (unsigned long long)req->state->body_size);
    snprintf(sent, sizeof sent, "%llu", (unsigned long long)req->state->sent_size);
    /* the path without its query: that may hold a sign-in code */
    mlo_log(MLO_LOG_INFO, code == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "request" : "request cut off", "id",
            req->id, "method", req->method, "path", req->path, "status", status, "ms", took_ms, "in",
            received, "out", sent, "who", req->token ? req->who.name : NULL, "from", req->address, NULL);
}

void mlo_request_completed(void *cls, struct MHD_Connection *connection, void **con_cls,
                           enum MHD_RequestTerminationCode code)
{
    struct mlo_http *http = cls;
    struct mlo_request *req = *con_cls;
    struct mlo_connection *entry = mlo_connection_of(connection);
    *con_cls = NULL;
    if (entry) {
        atomic_store(&entry->receiving, false);
        atomic_store(&entry->headers_due_ns, mlo_clock_ns() +
                                                 (uint64_t)http->options.idle_timeout_s * 1000000000 +
                                                 (uint64_t)http->options.header_timeout_ms * 1000000);
        atomic_store(&entry->busy, false);
    }
    if (!req)
        return;
    end_upload(req);
    mlo_request_db_release(req);
    mlo_traffic_count(http, req, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    log_access(req, code);
    mlo_reply_reset(req);
    mlo_gather_clear(req->state->asks, MLO_ASKS);
    mlo_buf_clear(&req->body);
    json_decref(req->state->json);
    json_decref(req->state->members);
    mlo_arena_free(req->arena);
}
