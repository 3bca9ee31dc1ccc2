/* Events of a run as a stream: while it runs, to its end, and from where a client was. */
#include "tests/integration/api/api_fixture.h"

#include <time.h>

#define RUN_OF(number) "/v1/projects/demo/runs/" #number
#define RUN RUN_OF(1)

enum { SOON_S = 3 }; /* well below the time after which a stream that nobody wakes says that it is there */

static void submit_another(struct api *api, int64_t number)
{
    struct reply reply = {0};
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", api->token[MLO_SUBMITTER],
             "{\"model\": \"cnn\", \"recipe\": \"name: mine\\nsteps:\\n  - benchmark: {batch: [1]}\\n\"}",
             NULL);
    assert_http(&reply, 201);
    assert_int_equal(mlo_json_i64(reply.json, "id", 0), number);
    reply_clear(&reply);
}

static void submit(struct api *api)
{
    api_version(api, "cnn", "a model", "");
    submit_another(api, 1);
}

static void cancel_run(struct api *api, const char *path)
{
    struct reply reply = {0};
    char cancel[64];
    snprintf(cancel, sizeof cancel, "%s/cancel", path);
    api_call(api, &reply, "POST", cancel, api->token[MLO_SUBMITTER], "{}", NULL);
    assert_http(&reply, 200);
    reply_clear(&reply);
}

static void cancel(struct api *api)
{
    cancel_run(api, RUN);
}

/* Asks for a stream on a connection of its own, yours to read and close. */
static int ask_for(struct api *api, const char *path, const char *sign_in, const char *token,
                   const char *more)
{
    struct mlo_buf request = MLO_BUF_INIT;
    int fd = api_connect(api);
    mlo_buf_printf(&request,
                   "GET %s/events HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%s%s\r\n"
                   "Accept: text/event-stream\r\n%s\r\n",
                   path, sign_in, token, more);
    assert_true(mlo_fs_write_full(fd, request.data, request.len));
    mlo_buf_clear(&request);
    return fd;
}

static int ask_as(struct api *api, const char *token, const char *more)
{
    return ask_for(api, RUN, "Authorization: Bearer ", token, more);
}

static int ask(struct api *api, const char *more)
{
    return ask_as(api, api->token[MLO_VIEWER], more);
}

/* Reads on until `text` holds `part`. */
static void read_until(int fd, struct mlo_buf *text, const char *part)
{
    struct timeval patience = {.tv_sec = API_PATIENCE_S};
    char piece[512];
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (!strstr(mlo_buf_str(text), part)) {
        ssize_t n = read(fd, piece, sizeof piece);
        if (n <= 0)
            fail_msg("no '%s' in: %s", part, mlo_buf_str(text));
        mlo_buf_append(text, piece, (size_t)n);
    }
}

static void test_run_stream__goes_on_until_the_run_ends(void **state)
{
    struct api *api = *state;
    struct mlo_buf text = MLO_BUF_INIT;
    submit(api);
    int fd = ask(api, "");
    read_until(fd, &text, "id: 1\nevent: run\ndata: {");
    assert_holds(mlo_buf_str(&text), "HTTP/1.1 200");
    assert_holds(mlo_buf_str(&text), "Content-Type: text/event-stream\r\n");
    assert_null(strstr(mlo_buf_str(&text), "event: end"));
    cancel(api);
    assert_true(api_read_to_end(fd, &text));
    close(fd);
    assert_holds(mlo_buf_str(&text), "\"state\":\"cancelled\"");
    assert_holds(mlo_buf_str(&text), "event: end\ndata: {\"state\":\"cancelled\"}\n\n");
    mlo_buf_clear(&text);
}

static void test_run_stream__goes_on_from_where_the_client_was(void **state)
{
    struct api *api = *state;
    struct mlo_buf text = MLO_BUF_INIT;
    struct reply reply = {0};
    char header[64];
    submit(api);
    cancel(api);
    int fd = ask(api, "Last-Event-ID: 1\r\n");
    assert_true(api_read_to_end(fd, &text));
    close(fd);
    assert_null(strstr(mlo_buf_str(&text), "id: 1\n"));
    assert_holds(mlo_buf_str(&text), "id: 2\n");
    assert_holds(mlo_buf_str(&text), "event: end");
    api_call(api, &reply, "GET", RUN "/events", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_true(mlo_json_bool(reply.json, "done", false));
    snprintf(header, sizeof header, "Last-Event-ID: %lld\r\n",
             (long long)mlo_json_i64(reply.json, "next", 0));
    mlo_buf_reset(&text);
    fd = ask(api, header);
    assert_true(api_read_to_end(fd, &text));
    close(fd);
    assert_holds(mlo_buf_str(&text), "HTTP/1.1 204");
    const char *const bad[] = {"Accept: text/event-stream", "Last-Event-ID: x", NULL};
    api_call(api, &reply, "GET", RUN "/events", api->token[MLO_VIEWER], NULL, bad);
    assert_http(&reply, 422);
    assert_string_equal(mlo_json_str(reply.json, "where", ""), "header Last-Event-ID");
    const char *const none[] = {"Accept: application/json, text/event-stream;q=0", NULL};
    api_call(api, &reply, "GET", RUN "/events", api->token[MLO_VIEWER], NULL, none);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "Content-Type: application/json");
    const char *const stream[] = {"Accept: text/event-stream", NULL};
    api_call(api, &reply, "GET", "/v1/projects/demo/runs/7/events", api->token[MLO_VIEWER], NULL, stream);
    assert_http(&reply, 404);
    api_call(api, &reply, "HEAD", RUN "/events", api->token[MLO_VIEWER], NULL, stream);
    assert_http(&reply, 200);
    reply_clear(&reply);
    mlo_buf_clear(&text);
}

/* Many streams of a run that nobody takes: each is ended by a server that stops, and none holds a connection
 * to the database, of which there are fewer. */
static void test_run_stream__ends_with_its_token(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_buf text = MLO_BUF_INIT;
    char token[MLO_TOKEN_TEXT_SIZE];
    int64_t id;
    submit(api);
    assert_mlo_ok(mlo_token_create(api->pg->conn, &system, "t", MLO_VIEWER, 0, 0, token, &id, &err), &err);
    int fd = ask_as(api, token, "");
    read_until(fd, &text, "id: 1\n");
    assert_mlo_ok(mlo_token_revoke(api->pg->conn, &system, id, &err), &err);
    assert_true(api_read_to_end(fd, &text)); /* at the next check, although the run goes on */
    close(fd);
    assert_null(strstr(mlo_buf_str(&text), "event: end"));
    mlo_buf_clear(&text);
}

static void test_run_stream__ends_with_the_server(void **state)
{
    enum { MANY = 64 }; /* as many as a token may have */
    struct api *api = *state;
    struct reply reply = {0};
    int fds[MANY];
    submit(api);
    for (int i = 0; i < MANY; i++) {
        struct mlo_buf text = MLO_BUF_INIT;
        fds[i] = ask(api, "");
        read_until(fds[i], &text, "id: 1\n");
        mlo_buf_clear(&text);
    }
    const char *const stream[] = {"Accept: text/event-stream", NULL};
    api_call(api, &reply, "GET", RUN "/events", api->token[MLO_VIEWER], NULL, stream);
    assert_http(&reply, 429); /* one more than a token may have */
    assert_holds(mlo_buf_str(&reply.headers), "Retry-After: ");
    assert_holds(mlo_json_str(reply.json, "hint", ""), "close one");
    api_call(api, &reply, "GET", RUN, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    const uint64_t began_ns = mlo_clock_ns();
    mlo_http_drain(api->http);
    for (int i = 0; i < MANY; i++) {
        assert_true(api_read_to_end(fds[i], NULL));
        close(fds[i]);
    }
    assert_true(mlo_clock_ns() - began_ns < SOON_S * (uint64_t)1000000000);
    reply_clear(&reply);
}

/* Who looks for all leaves with what it found, and who is woken to look in its place may leave for the same
 * reason: the others are told all the same. */
static void test_run_stream__is_told_when_others_end(void **state)
{
    struct api *api = *state;
    int fds[4];
    const char *const of[] = {RUN_OF(3), RUN_OF(2), RUN_OF(1), RUN_OF(1)}; /* the newest is woken first */
    submit(api);
    submit_another(api, 2);
    submit_another(api, 3);
    for (size_t i = 0; i < MLO_COUNT(of); i++) {
        struct mlo_buf text = MLO_BUF_INIT;
        fds[i] = ask_for(api, of[i], "Authorization: Bearer ", api->token[MLO_VIEWER], "");
        read_until(fds[i], &text, "id: 1\n");
        mlo_buf_clear(&text);
    }
    static const struct {
        const char *run;
        int first, last;
    } ends[] = {{RUN_OF(3), 0, 0}, {RUN_OF(1), 2, 3}, {RUN_OF(2), 1, 1}};
    for (size_t i = 0; i < MLO_COUNT(ends); i++) {
        const uint64_t began_ns = mlo_clock_ns();
        cancel_run(api, ends[i].run);
        for (int k = ends[i].first; k <= ends[i].last; k++) {
            assert_true(api_read_to_end(fds[k], NULL));
            close(fds[k]);
        }
        assert_true(mlo_clock_ns() - began_ns < SOON_S * (uint64_t)1000000000);
    }
}

/* A run that says it has an event more than there is: that is looked for now and then, not all the time. */
static void test_run_stream__waits_for_what_is_not_there(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_db_conn *conn;
    submit(api);
    int fd = ask(api, "");
    read_until(fd, &text, "id: 1\n");
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(mlo_db_exec_text(conn, "update mlopt.run set event_seq = event_seq + 1", &err), &err);
    mlo_clock_sleep_ms(300); /* it is seen */
    const clock_t began = clock();
    mlo_clock_sleep_ms(1000);
    assert_true(clock() - began < CLOCKS_PER_SEC / 4);
    assert_mlo_ok(mlo_db_exec_text(conn,
                                   "insert into mlopt.run_event (run, seq, kind, data) select id, event_seq, "
                                   "'run', '{}' from mlopt.run",
                                   &err),
                  &err);
    mlo_db_release(conn);
    read_until(fd, &text, "id: 2\n");
    close(fd);
    mlo_buf_clear(&text);
}

/* The page's own: by the session, and it is told of what the steps write, too. */
static void test_run_stream__of_a_page_tells_of_the_log(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    struct reply reply = {0};
    struct mlo_db_conn *conn;
    char cookie[160];
    submit(api);
    int fd = ask_for(api, "/runs/demo/1", "Cookie: mlopt_session=", api->token[MLO_VIEWER], "");
    read_until(fd, &text, "id: 1\nevent: run\ndata: {");
    assert_holds(mlo_buf_str(&text), "Content-Type: text/event-stream\r\n");
    assert_null(strstr(mlo_buf_str(&text), "event: log"));
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &err), &err);
    assert_mlo_ok(
        mlo_db_exec_text(conn,
                         "insert into mlopt.attempt (job, number, worker, token) select id, 1, 'w', "
                         "gen_random_uuid() from mlopt.job where run = 1 order by id limit 1; "
                         "insert into mlopt.attempt_log (job, number, part, text) select job, 1, 0, 'news' "
                         "from mlopt.attempt",
                         &err),
        &err);
    mlo_db_release(conn);
    read_until(fd, &text, "event: log\ndata: {}\n\n");
    cancel(api);
    assert_true(api_read_to_end(fd, &text));
    close(fd);
    assert_holds(mlo_buf_str(&text), "event: end\ndata: {\"state\":\"cancelled\"}\n\n");
    /* a person who follows the address is at the run; and nobody is told without a session */
    snprintf(cookie, sizeof cookie, "Cookie: mlopt_session=%s", api->token[MLO_VIEWER]);
    const char *const session[] = {cookie, NULL}, *const stream[] = {"Accept: text/event-stream", cookie,
                                                                     NULL};
    api_call(api, &reply, "GET", "/runs/demo/1/events", NULL, NULL, session);
    assert_http(&reply, 303);
    assert_holds(mlo_buf_str(&reply.headers), "Location: /runs/demo/1\r\n");
    api_call(api, &reply, "GET", "/runs/demo/2/events", NULL, NULL, stream);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", "/runs/demo/1/events", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 303);
    assert_holds(mlo_buf_str(&reply.headers), "Location: /login");
    reply_clear(&reply);
    mlo_buf_clear(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_run_stream__goes_on_until_the_run_ends),
        API_TEST(test_run_stream__goes_on_from_where_the_client_was),
        API_TEST(test_run_stream__ends_with_its_token),
        API_TEST(test_run_stream__is_told_when_others_end),
        API_TEST(test_run_stream__waits_for_what_is_not_there),
        API_TEST(test_run_stream__of_a_page_tells_of_the_log),
        API_TEST(test_run_stream__ends_with_the_server),
    };
    API_MAIN(tests);
}
