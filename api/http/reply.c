/* Answers: JSON, problems, files. */
#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/http/mlflow_impl.h"

void mlo_reply_reset(struct mlo_request *req)
{
    mlo_buf_clear(&req->out);
    if (req->file >= 0)
        close(req->file);
    req->file = -1;
    if (req->state->response)
        MHD_destroy_response(req->state->response);
    req->state->response = NULL;
    req->state->checks = false;
    req->status = 0;
    req->headers = NULL;
    req->content_type = NULL;
}

void mlo_reply_header(struct mlo_request *req, const char *name, const char *fmt, ...)
{
    va_list args, again;
    struct mlo_header *header = mlo_arena_alloc(req->arena, sizeof *header);
    va_start(args, fmt);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    char *value = length < 0 ? NULL : mlo_arena_alloc(req->arena, (size_t)length + 1);
    if (value)
        vsnprintf(value, (size_t)length + 1, fmt, again);
    va_end(again);
    va_end(args);
    if (!header || !value)
        return;
    for (char *c = value; *c; c++) /* a value never starts another header */
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = ' ';
    header->name = name;
    header->value = value;
    header->next = req->headers;
    req->headers = header;
}

static int dump_to_buf(const char *bytes, size_t size, void *arg)
{
    struct mlo_buf *out = arg;
    mlo_buf_append(out, bytes, size);
    return mlo_buf_ok(out) ? 0 : -1;
}

enum mlo_status mlo_reply_json(struct mlo_request *req, int status, json_t *value, struct mlo_error *err)
{
    if (!value)
        return mlo_error_nomem(err);
    mlo_buf_reset(&req->out);
    int rc = json_dump_callback(value, dump_to_buf, &req->out, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(value);
    if (rc != 0)
        return mlo_error_nomem(err);
    mlo_buf_putc(&req->out, '\n');
    return mlo_reply_out(req, status, "application/json", err);
}

enum mlo_status mlo_reply_out(struct mlo_request *req, int status, const char *content_type,
                              struct mlo_error *err)
{
    if (!mlo_buf_ok(&req->out))
        return mlo_error_nomem(err);
    req->status = status;
    req->content_type = content_type;
    bool cached = false; /* whether the handler said how */
    for (const struct mlo_header *header = req->headers; header; header = header->next)
        cached = cached || strcmp(header->name, "Cache-Control") == 0;
    if (!cached)
        mlo_reply_header(req, "Cache-Control", "no-store");
    return MLO_OK;
}

enum mlo_status mlo_reply_empty(struct mlo_request *req, int status)
{
    mlo_buf_reset(&req->out);
    req->status = status;
    return MLO_OK;
}

enum mlo_status mlo_reply_redirect(struct mlo_request *req, const char *fmt, ...)
{
    char path[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(path, sizeof path, fmt, args);
    va_end(args);
    mlo_reply_header(req, "Location", "%s", path);
    mlo_reply_header(req, "Cache-Control", "no-store");
    return mlo_reply_empty(req, 303);
}

/* A problem's members; `id` "": without. NULL: no memory. */
static json_t *problem_json(int status, const char *code, const char *title, bool retry,
                            const struct mlo_error *err, const char *id)
{
    json_t *value = json_pack("{s:s, s:s, s:i, s:s}", "type", "about:blank", "title", title, "status", status,
                              "code", code);
    /* a message may quote bytes that are not UTF-8: what jansson refuses is left out */
    const struct {
        const char *key, *text;
    } members[] = {{"detail", err->message}, {"where", err->where}, {"hint", err->hint}, {"request_id", id}};
    for (size_t i = 0; i < MLO_COUNT(members); i++)
        if (members[i].text[0])
            json_object_set_new(value, members[i].key, json_string(members[i].text));
    json_object_set_new(value, "retry", json_boolean(retry));
    return value;
}

json_t *mlo_problem_json(const struct mlo_error *err)
{
    const struct mlo_status_info *info = mlo_status_info(err->status);
    return problem_json(info->http, info->code, info->text, info->retry, err, "");
}

static void problem(struct mlo_request *req, int status, const char *code, const char *title, bool retry,
                    const struct mlo_error *err)
{
    mlo_buf_clear(&req->out);
    json_t *value = problem_json(status, code, title, retry, err, req->id);
    if (req->state->members)
        json_object_update_missing(value, req->state->members);
    if (mlo_mlflow_path(req->path))
        mlo_mlflow_problem(value, status, req->route != NULL);
    if (!value || json_dump_callback(value, dump_to_buf, &req->out, JSON_COMPACT) != 0)
        mlo_buf_reset(&req->out);
    json_decref(value);
    req->status = status;
    req->content_type = "application/problem+json";
    mlo_reply_header(req, "Cache-Control", "no-store");
    if (status == 401) {
        mlo_reply_header(req, "WWW-Authenticate", "Bearer realm=\"mlopt\"");
        if (req->route && req->route->basic)
            mlo_reply_header(req, "WWW-Authenticate", "Basic realm=\"mlopt\"");
    }
    if (status == 503)
        mlo_reply_header(req, "Retry-After", "1");
}

void mlo_reply_member(struct mlo_request *req, const char *key, json_t *value)
{
    if (!req->state->members)
        req->state->members = json_object();
    json_object_set_new(req->state->members, key, value); /* without memory, a problem with less in it */
}

const json_t *mlo_reply_members(const struct mlo_request *req)
{
    return req->state->members;
}

void mlo_reply_problem(struct mlo_request *req, const struct mlo_error *err)
{
    const struct mlo_status_info *info = mlo_status_info(err->status);
    problem(req, info->http, info->code, info->text, info->retry, err);
}

void mlo_reply_http_problem(struct mlo_request *req, int status, const char *code, const char *title,
                            const char *detail, const char *hint)
{
    struct mlo_error err = {0};
    snprintf(err.message, sizeof err.message, "%s", detail);
    snprintf(err.hint, sizeof err.hint, "%s", hint);
    problem(req, status, code, title, false, &err);
}

void mlo_reply_coded_problem(struct mlo_request *req, int status, const char *code, const char *title,
                             bool retry, const struct mlo_error *err)
{
    problem(req, status, code, title, retry, err);
}

void mlo_reply_too_many(struct mlo_request *req, unsigned wait_s)
{
    struct mlo_error err = {0};
    snprintf(err.message, sizeof err.message,
             "the token '%.100s' makes more requests than this server lets one", req->who.name);
    snprintf(err.hint, sizeof err.hint, "wait for the seconds that Retry-After says");
    err.status = MLO_EUNAVAILABLE;
    if (req->module->failed)
        req->module->failed(req, &err, 429);
    else
        problem(req, 429, "rate-limited", "too many requests", true, &err);
    mlo_reply_header(req, "Retry-After", "%u", wait_s);
}

void mlo_reply_too_many_streams(struct mlo_request *req, unsigned wait_s)
{
    struct mlo_error err = {0};
    snprintf(err.message, sizeof err.message, "the token '%.100s' has %d streams of events open, all it may",
             req->who.name, MLO_STREAMS_PER_TOKEN);
    snprintf(err.hint, sizeof err.hint, "close one, or ask without Accept: text/event-stream");
    problem(req, 429, "rate-limited", "too many streams", true, &err);
    mlo_reply_header(req, "Retry-After", "%u", wait_s);
}

/* One range of "bytes=a-b", "bytes=a-", "bytes=-n". 0: none or not understood (send all), 1: *first and
 * *count hold it, -1: outside the file. */
static int parse_range(const char *text, uint64_t size, uint64_t *first, uint64_t *count)
{
    char *end;
    uint64_t last = size ? size - 1 : 0;
    if (!text || !mlo_str_starts(text, "bytes=") || strchr(text, ','))
        return 0;
    text += strlen("bytes=");
    if (*text == '-') {
        if (!isdigit((unsigned char)text[1]))
            return 0;
        uint64_t n = strtoumax(text + 1, &end, 10);
        if (*end)
            return 0;
        if (n == 0 || size == 0)
            return -1;
        *first = n < size ? size - n : 0;
    } else {
        if (!isdigit((unsigned char)*text))
            return 0;
        *first = strtoumax(text, &end, 10);
        if (*end++ != '-')
            return 0;
        if (*end) {
            if (!isdigit((unsigned char)*end))
                return 0;
            uint64_t to = strtoumax(end, &end, 10);
            if (*end || to < *first)
                return 0;
            last = MLO_MIN(last, to);
        }
        if (*first >= size)
            return -1;
    }
    *count = last - *first + 1;
    return 1;
}

static bool etag_listed(const char *list, const char *etag)
{
    size_t length = strlen(etag);
    if (!list)
        return false;
    if (strcmp(list, "*") == 0)
        return true;
    for (const char *at = strstr(list, etag); at; at = strstr(at + 1, etag))
        if (at > list && at[-1] == '"' && at[length] == '"')
            return true;
    return false;
}

enum mlo_status mlo_reply_tagged(struct mlo_request *req, const char *content_type, struct mlo_error *err)
{
    struct mlo_digest digest;
    char hex[MLO_DIGEST_TEXT_SIZE], tag[33];
    if (!mlo_buf_ok(&req->out))
        return mlo_error_nomem(err);
    mlo_digest_of(mlo_buf_str(&req->out), req->out.len, &digest);
    snprintf(tag, sizeof tag, "%.32s", mlo_digest_hex(&digest, hex));
    mlo_reply_header(req, "ETag", "W/\"%s\"", tag); /* weak: with gzip it has other bytes */
    mlo_reply_header(req, "Cache-Control", "no-cache");
    if (etag_listed(mlo_request_header(req, "If-None-Match"), tag))
        return mlo_reply_empty(req, 304);
    return mlo_reply_out(req, 200, content_type, err);
}

enum mlo_status mlo_reply_file(struct mlo_request *req, int fd, uint64_t size, const char *etag,
                               const char *content_type, struct mlo_error *err)
{
    uint64_t first = 0, count = size;
    MLO_UNUSED(err);
    mlo_reply_header(req, "ETag", "\"%s\"", etag);
    mlo_reply_header(req, "Accept-Ranges", "bytes");
    mlo_reply_header(req, "Cache-Control", "private, no-cache");
    if (etag_listed(mlo_request_header(req, "If-None-Match"), etag)) {
        close(fd);
        return mlo_reply_empty(req, 304);
    }
    const char *if_range = mlo_request_header(req, "If-Range");
    int range = if_range && !etag_listed(if_range, etag)
                    ? 0
                    : parse_range(mlo_request_header(req, "Range"), size, &first, &count);
    if (range < 0) {
        close(fd);
        mlo_reply_http_problem(req, 416, "range-not-satisfiable", "range not satisfiable",
                               "the range lies outside of the file", "");
        mlo_reply_header(req, "Content-Range", "bytes */%" PRIu64, size);
        return MLO_OK;
    }
    if (range > 0)
        mlo_reply_header(req, "Content-Range", "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, first,
                         first + count - 1, size);
    else
        first = 0, count = size;
    req->file = fd;
    req->file_offset = first;
    req->file_size = count;
    req->content_type = content_type;
    req->status = range > 0 ? 206 : 200;
    return MLO_OK;
}
