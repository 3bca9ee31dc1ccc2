/* The events of a run as a stream (text/event-stream of the HTML standard): each with its number as id, so
 * that a client that comes again says with Last-Event-ID where it was. One of the connections' threads now
 * and then asks for all streams whether something happened, in one statement; the others sleep until
 * something did, and then read the events of their own run. No connection to the database is held between. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/http/handlers_impl.h"
#include "base/accept.h"

/* LOOK: between two looks for all; LOGS: those that count what was written, too. ALIVE: a line that says
 * nothing, so that a client that went away is noticed; and the token is checked again. LIFE: then the client
 * comes again. */
enum { LOOK_MS = 250, LOGS_MS = 1000, ALIVE_S = 10, LIFE_S = 15 * 60, AT_ONCE = 200, BLOCK = 8192 };
#define NS_OF_S ((uint64_t)1000000000)
#define NS_OF_MS ((uint64_t)1000000)

/* Look, whatever was found for all: at first, and when that failed. */
#define UNKNOWN INT64_MAX

struct mlo_stream {
    struct mlo_http *http;
    struct mlo_stream *next, **link; /* of http->streams */
    char *token;
    int64_t token_id, run, after;
    int64_t mark;               /* the run's last event, for all that is known; under the server's lock */
    bool logs;                  /* it is told of what the steps write, too */
    int64_t log_mark, log_told; /* parts of the log, as `mark`; told of */
    bool waiting;               /* on `news`; under the same lock */
    pthread_cond_t news;
    struct mlo_buf text; /* not yet sent, from `sent` on */
    size_t sent;
    uint64_t began_ns, wrote_ns, checked_ns;
    bool ended;
};

/* Whether the token may have one more, which is counted then. */
static bool stream_enter(struct mlo_stream *s)
{
    struct mlo_http *http = s->http;
    size_t open = 0;
    pthread_mutex_lock(&http->lock);
    for (const struct mlo_stream *other = http->streams; other; other = other->next)
        open += other->token_id == s->token_id;
    bool may = open < MLO_STREAMS_PER_TOKEN;
    if (may) {
        s->next = http->streams;
        s->link = &http->streams;
        if (s->next)
            s->next->link = &s->next;
        http->streams = s;
    }
    pthread_mutex_unlock(&http->lock);
    return may;
}

static void stream_free(void *cls)
{
    struct mlo_stream *s = cls;
    if (s->link) {
        pthread_mutex_lock(&s->http->lock);
        *s->link = s->next;
        if (s->next)
            s->next->link = s->link;
        pthread_mutex_unlock(&s->http->lock);
    }
    if (s->token)
        explicit_bzero(s->token, strlen(s->token));
    free(s->token);
    mlo_buf_clear(&s->text);
    pthread_cond_destroy(&s->news);
    free(s);
}

static void put(struct mlo_stream *s, const char *kind, const json_t *data)
{
    char *text = json_dumps(data, JSON_COMPACT);
    if (text)
        mlo_buf_printf(&s->text, "event: %s\ndata: %s\n\n", kind, text);
    s->ended = s->ended || !text || !mlo_buf_ok(&s->text);
    free(text);
}

static int by_id(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The runs that are followed, or those whose logs are, ascending, each once, and room for a mark of each;
 * yours. NULL: none, or no memory. Under the lock. */
static int64_t *runs_followed(const struct mlo_http *http, bool logs, size_t *count)
{
    size_t open = 0;
    *count = 0;
    for (const struct mlo_stream *s = http->streams; s; s = s->next)
        open += s->logs || !logs;
    int64_t *runs = open ? malloc(2 * open * sizeof *runs) : NULL;
    if (!runs)
        return NULL;
    open = 0;
    for (const struct mlo_stream *s = http->streams; s; s = s->next)
        if (s->logs || !logs)
            runs[open++] = s->run;
    qsort(runs, open, sizeof *runs, by_id);
    for (size_t i = 0; i < open; i++)
        if (i == 0 || runs[i] != runs[i - 1])
            runs[(*count)++] = runs[i];
    return runs;
}

/* The mark of a run among those that were asked for; NULL: it was not. */
static const int64_t *mark_of(const int64_t *runs, size_t count, int64_t run)
{
    const int64_t *found = runs ? bsearch(&run, runs, count, sizeof *runs, by_id) : NULL;
    return found ? found + count : NULL;
}

static bool has_mark(const struct mlo_stream *s)
{
    return s->mark > s->after || s->log_mark > s->log_told;
}

/* One of the streams asks, for all, what was the last that happened, and wakes those that it concerns. Under
 * the lock, but for the time in which it asks. */
static void look_for_all(struct mlo_http *http)
{
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    const uint64_t now = mlo_clock_ns();
    const bool logs_due = now - http->streams_counted_ns >= LOGS_MS * NS_OF_MS;
    size_t count, log_count = 0;
    int64_t *runs = runs_followed(http, false, &count),
            *logs = logs_due ? runs_followed(http, true, &log_count) : NULL;
    enum mlo_status status = MLO_ENOMEM;
    if (logs)
        http->streams_counted_ns = now;
    pthread_mutex_unlock(&http->lock);
    if (runs)
        status = mlo_db_acquire(http->options.db, &conn, &err);
    if (status == MLO_OK) {
        status = mlo_run_marks(conn, runs, count, runs + count, &err);
        if (status == MLO_OK && logs)
            status = mlo_run_log_marks(conn, logs, log_count, logs + log_count, &err);
        mlo_db_release(conn);
    }
    pthread_mutex_lock(&http->lock);
    for (struct mlo_stream *s = http->streams; s; s = s->next) {
        const int64_t *mark = mark_of(runs, count, s->run), *log_mark = mark_of(logs, log_count, s->run);
        if (mark && s->mark != UNKNOWN)
            s->mark = status == MLO_OK ? *mark : UNKNOWN;
        if (log_mark && s->logs && status == MLO_OK)
            s->log_mark = *log_mark;
        if (s->waiting && (has_mark(s) || mlo_http_draining(http)))
            pthread_cond_signal(&s->news);
    }
    http->streams_looked_ns = mlo_clock_ns();
    free(runs);
    free(logs);
}

/* The next one that waits looks for all; one that leaves instead, because it was woken for itself, hands over
 * again. */
static void hand_over(struct mlo_http *http)
{
    struct mlo_stream *s = http->streams;
    http->streams_looker = NULL;
    while (s && !s->waiting)
        s = s->next;
    if (s)
        pthread_cond_signal(&s->news);
}

static void sleep_until(struct mlo_stream *s, uint64_t ns)
{
    const struct timespec at = {.tv_sec = (time_t)(ns / NS_OF_S), .tv_nsec = (long)(ns % NS_OF_S)};
    pthread_cond_timedwait(&s->news, &s->http->lock, &at);
}

/* Until something happened, or a line is due that says nothing. */
static void wait_for_news(struct mlo_stream *s)
{
    struct mlo_http *http = s->http;
    uint64_t until = MLO_MIN(s->wrote_ns, s->checked_ns) + ALIVE_S * NS_OF_S + NS_OF_MS;
    pthread_mutex_lock(&http->lock);
    s->waiting = true;
    while (!has_mark(s) && !mlo_http_draining(http) && mlo_clock_ns() < until) {
        if (!http->streams_looker)
            http->streams_looker = s;
        if (http->streams_looker == s) {
            uint64_t due = http->streams_looked_ns + LOOK_MS * NS_OF_MS;
            if (mlo_clock_ns() < due)
                sleep_until(s, MLO_MIN(due, until));
            else
                look_for_all(http);
        } else {
            sleep_until(s, until);
        }
    }
    s->waiting = false;
    if (!http->streams_looker || http->streams_looker == s)
        hand_over(http);
    pthread_mutex_unlock(&http->lock);
}

/* Whether something happened behind what was sent; then it is taken as known. *wrote: the steps wrote
 * something. */
static bool has_news(struct mlo_stream *s, bool *wrote)
{
    pthread_mutex_lock(&s->http->lock);
    bool news = s->mark > s->after;
    *wrote = s->log_mark > s->log_told;
    s->log_told = s->log_mark;
    if (s->mark == UNKNOWN)
        s->mark = 0;
    pthread_mutex_unlock(&s->http->lock);
    return news;
}

/* Nothing was there of what should have been: it is looked for with the others, not at once again. */
static void forget_news(struct mlo_stream *s)
{
    pthread_mutex_lock(&s->http->lock);
    if (s->mark != UNKNOWN)
        s->mark = s->after;
    pthread_mutex_unlock(&s->http->lock);
}

static void read_events(struct mlo_stream *s, const json_t *found)
{
    json_t *event;
    size_t i;
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
}

/* What happened since, as text. A database that does not answer ends the stream, and a token that was revoked
 * or has expired: the client comes again, and is told. */
static void look(struct mlo_stream *s)
{
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    json_t *found = NULL;
    uint64_t now = mlo_clock_ns();
    bool wrote, news = has_news(s, &wrote), check = now - s->checked_ns > ALIVE_S * NS_OF_S;
    if (wrote) /* without an id: where the client is to go on stays */
        mlo_buf_puts(&s->text, "event: log\ndata: {}\n\n");
    if (!news && !check)
        return;
    enum mlo_status status = mlo_db_acquire(s->http->options.db, &conn, &err);
    if (status == MLO_OK) {
        if (check) {
            struct mlo_principal who;
            status = mlo_token_check(conn, s->token, &who, &err);
            s->checked_ns = now;
        }
        if (status == MLO_OK && news)
            status = mlo_run_events(conn, s->run, s->after, AT_ONCE, &found, &err);
        mlo_db_release(conn);
    }
    if (status == MLO_OK && found) {
        const int64_t before = s->after;
        read_events(s, found);
        if (s->after == before)
            forget_news(s);
    }
    s->ended = s->ended || status != MLO_OK;
    json_decref(found);
}

static ssize_t stream_read(void *cls, uint64_t at, char *out, size_t most)
{
    struct mlo_stream *s = cls;
    MLO_UNUSED(at);
    while (s->sent == s->text.len) {
        uint64_t now = mlo_clock_ns();
        if (s->ended || mlo_http_draining(s->http) || now - s->began_ns > LIFE_S * NS_OF_S)
            return MHD_CONTENT_READER_END_OF_STREAM;
        mlo_buf_reset(&s->text);
        s->sent = 0;
        look(s);
        if (s->text.len == 0 && now - s->wrote_ns > ALIVE_S * NS_OF_S)
            mlo_buf_puts(&s->text, ":\n\n");
        if (s->text.len == 0 && !s->ended)
            wait_for_news(s);
    }
    size_t n = MLO_MIN(most, s->text.len - s->sent);
    memcpy(out, s->text.data + s->sent, n);
    s->sent += n;
    s->wrote_ns = mlo_clock_ns();
    return (ssize_t)n;
}

bool mlo_wants_stream(const struct mlo_request *req)
{
    return mlo_accept_quality(mlo_request_header(req, "Accept"), "text/event-stream") > 0;
}

enum mlo_status mlo_reply_run_stream(struct mlo_request *req, int64_t run, int64_t after, bool logs,
                                     struct mlo_error *err)
{
    struct mlo_stream *s = calloc(1, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    pthread_condattr_t monotonic;
    *s = (struct mlo_stream){
        .http = req->http, .run = run, .after = after, .logs = logs, .began_ns = mlo_clock_ns()};
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->news, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->wrote_ns = s->checked_ns = s->began_ns;
    s->mark = UNKNOWN;
    s->token_id = req->who.token_id;
    s->token = strdup(req->token);
    if (!s->token) {
        stream_free(s);
        return mlo_error_nomem(err);
    }
    if (!stream_enter(s)) {
        stream_free(s);
        mlo_reply_too_many_streams(req, ALIVE_S);
        return MLO_OK; /* it is answered */
    }
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
