/* The events of a run as a stream (text/event-stream of the HTML standard): each with its number as id, so
 * that a client that comes again says with Last-Event-ID where it was. The connection's thread looks at the
 * run now and then; no connection to the database is held between. */
#include <stdlib.h>
#include <string.h>

#include "api/http/handlers_impl.h"

/* ALIVE: a line that says nothing, so that a client that went away is noticed. LIFE: then the client comes
 * again, and its token is checked again. */
enum { LOOK_MS = 250, ALIVE_S = 10, LIFE_S = 15 * 60, AT_ONCE = 200, BLOCK = 8192 };

struct stream {
    struct mlo_http *http;
    int64_t run, after;
    struct mlo_buf text; /* not yet sent, from `sent` on */
    size_t sent;
    uint64_t began_ns, wrote_ns;
    bool ended;
};

static void stream_free(void *cls)
{
    struct stream *s = cls;
    mlo_buf_clear(&s->text);
    free(s);
}

static void put(struct stream *s, const char *kind, const json_t *data)
{
    char *text = json_dumps(data, JSON_COMPACT);
    if (text)
        mlo_buf_printf(&s->text, "event: %s\ndata: %s\n\n", kind, text);
    s->ended = s->ended || !text || !mlo_buf_ok(&s->text);
    free(text);
}

/* What happened since, as text. A database that does not answer ends the stream: the client comes again. */
static void look(struct stream *s)
{
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    json_t *found = NULL, *event;
    size_t i;
    enum mlo_status status = mlo_db_acquire(s->http->options.db, &conn, &err);
    if (status == MLO_OK) {
        status = mlo_run_events(conn, s->run, s->after, AT_ONCE, &found, &err);
        mlo_db_release(conn);
    }
    if (status != MLO_OK) {
        s->ended = true;
        return;
    }
    json_array_foreach(json_object_get(found, "items"), i, event)
    {
        s->after = mlo_json_i64(event, "seq", s->after);
        mlo_json_rename(event, "time", "at");
        mlo_buf_printf(&s->text, "id: %lld\n", (long long)s->after);
        put(s, mlo_json_str(event, "kind", "message"), event);
    }
    if (mlo_json_bool(found, "done", false)) {
        json_t *end = json_pack("{s:s}", "state", mlo_json_str(found, "state", ""));
        put(s, "end", end);
        json_decref(end);
        s->ended = true;
    }
    json_decref(found);
}

static ssize_t stream_read(void *cls, uint64_t at, char *out, size_t most)
{
    struct stream *s = cls;
    MLO_UNUSED(at);
    while (s->sent == s->text.len) {
        uint64_t now = mlo_clock_ns();
        if (s->ended || mlo_http_draining(s->http) || now - s->began_ns > (uint64_t)LIFE_S * 1000000000)
            return MHD_CONTENT_READER_END_OF_STREAM;
        mlo_buf_reset(&s->text);
        s->sent = 0;
        look(s);
        if (s->text.len == 0 && now - s->wrote_ns > (uint64_t)ALIVE_S * 1000000000)
            mlo_buf_puts(&s->text, ":\n\n");
        if (s->text.len == 0 && !s->ended)
            mlo_clock_sleep_ms(LOOK_MS);
    }
    size_t n = MLO_MIN(most, s->text.len - s->sent);
    memcpy(out, s->text.data + s->sent, n);
    s->sent += n;
    s->wrote_ns = mlo_clock_ns();
    return (ssize_t)n;
}

bool mlo_wants_stream(const struct mlo_request *req)
{
    const char *accept = mlo_request_header(req, "Accept");
    return accept && strcasestr(accept, "text/event-stream");
}

enum mlo_status mlo_reply_run_stream(struct mlo_request *req, int64_t run, int64_t after,
                                     struct mlo_error *err)
{
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    *s = (struct stream){.http = req->http, .run = run, .after = after, .began_ns = mlo_clock_ns()};
    s->wrote_ns = s->began_ns;
    mlo_buf_puts(&s->text, "retry: 1000\n\n");
    req->state->response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, stream_read, s, stream_free);
    if (!req->state->response) {
        stream_free(s);
        return mlo_error_nomem(err);
    }
    mlo_reply_header(req, "Cache-Control", "no-store");
    mlo_reply_header(req, "X-Accel-Buffering", "no"); /* nginx hands it on as it comes */
    req->content_type = "text/event-stream";
    req->status = 200;
    return MLO_OK;
}
