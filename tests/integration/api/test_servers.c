/* Many servers on one PostgreSQL and one store: what one began the other goes on with, and they are ended and
 * started again, and the schema is brought further, while clients that try nothing twice lose nothing. */
#include "tests/servers_fixture.h"

#define PROJECT "/v1/projects/demo"
#define MODEL PROJECT "/models/cnn"

/* Long enough for any machine: a second signal ends it. */
static const char *const DRAIN[] = {"--drain", "3600", "--finish", "120", NULL};

static void call(struct servers *all, int n, struct reply *a, int role, const char *method, const char *path,
                 const char *header, const char *body, int wanted)
{
    struct wire w = WIRE_INIT(all->of[n].port);
    char headers[512];
    snprintf(headers, sizeof headers, "Authorization: Bearer %s\r\n%s", all->token[role], header);
    const char *wrong = wire_ask(&w, a, method, path, headers, body, body ? strlen(body) : 0);
    wire_close(&w);
    if (wrong || a->status != wanted)
        fail_msg("%s %s of server %d: %s%ld instead of %d: %s", method, path, n, wrong ? wrong : "",
                 a->status, wanted, mlo_buf_str(&a->body));
}

static char *digest_path(const char *before, const char *bytes, size_t size, char out[160])
{
    struct mlo_digest d;
    char text[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_of(bytes, size, &d);
    snprintf(out, 160, "%s%s", before, mlo_digest_text(&d, text));
    return out;
}

/* Version n of demo/cnn, a file with this text. */
static void add_version(struct servers *all, int n, const char *text)
{
    char body[256], path[160];
    struct reply a = {0};
    call(all, n, &a, MLO_SUBMITTER, "PUT", digest_path(PROJECT "/blobs/", text, strlen(text), path), "", text,
         201);
    snprintf(body, sizeof body, "{\"files\":[{\"role\":\"model\",\"name\":\"m.onnx\",\"digest\":\"%s\"}]}",
             digest_path("", text, strlen(text), path));
    call(all, n, &a, MLO_SUBMITTER, "POST", MODEL "/versions", "", body, 201);
    reply_clear(&a);
}

static const char *promotion(int version, char body[160])
{
    snprintf(body, 160,
             "{\"stage\":\"production\",\"version\":%d,\"variants\":{\"any\":\"source\"},\"reason\":"
             "\"because\"}",
             version);
    return body;
}

/* --- two servers, one service --------------------------------------------------------------------- */

static void test_servers__an_upload_goes_on_at_another_server(void **state)
{
    struct servers *all = *state;
    struct reply a = {0};
    char path[160], url[320];
    servers_start(all, 2, (const char *const[]){NULL});
    call(all, 0, &a, MLO_SUBMITTER, "POST", PROJECT "/uploads", "", "{}", 201);
    snprintf(path, sizeof path, PROJECT "/uploads/%s", mlo_json_str(a.json, "id", "?"));
    call(all, 0, &a, MLO_SUBMITTER, "PATCH", path, "Content-Range: bytes 0-3/10\r\n", "0123", 202);
    call(all, 1, &a, MLO_SUBMITTER, "GET", path, "", NULL, 200);
    assert_int_equal(mlo_json_i64(a.json, "offset", 0), 4);
    call(all, 1, &a, MLO_SUBMITTER, "PATCH", path, "Content-Range: bytes 4-6/10\r\n", "456", 202);
    /* who did not hear of it is told where it stands */
    call(all, 0, &a, MLO_SUBMITTER, "PATCH", path, "Content-Range: bytes 4-6/10\r\n", "456", 416);
    call(all, 0, &a, MLO_SUBMITTER, "PATCH", path, "Content-Range: bytes 7-9/10\r\n", "789", 202);
    digest_path("?digest=", "0123456789", 10, url + snprintf(url, sizeof url, "%s", path));
    call(all, 1, &a, MLO_SUBMITTER, "PUT", url, "", NULL, 201);
    digest_path(PROJECT "/blobs/", "0123456789", 10, path);
    for (int n = 0; n < 2; n++) {
        call(all, n, &a, MLO_VIEWER, "GET", path, "", NULL, 200);
        assert_string_equal(mlo_buf_str(&a.body), "0123456789");
    }
    reply_clear(&a);
}

static void test_servers__sessions_keys_and_events_are_of_all(void **state)
{
    struct servers *all = *state;
    struct reply a = {0};
    char body[512], cookie[256], path[128];
    servers_start(all, 2, (const char *const[]){NULL});
    /* signed in at one, known to the other; and a form that one made is taken by the other */
    snprintf(body, sizeof body, "token=%s&next=/", all->token[MLO_ADMIN]);
    call(all, 0, &a, MLO_VIEWER, "POST", "/login", "Content-Type: application/x-www-form-urlencoded\r\n",
         body, 303);
    assert_true(wire_header(&a, "Set-Cookie", path, sizeof path));
    snprintf(cookie, sizeof cookie, "Cookie: %.*s\r\n", (int)strcspn(path, ";"), path);
    struct wire w = WIRE_INIT(all->of[1].port);
    assert_null(wire_ask(&w, &a, "GET", "/audit", cookie, NULL, 0));
    assert_int_equal(a.status, 200);
    wire_close(&w);
    /* a token that one server revoked is nothing to the other at once */
    call(all, 0, &a, MLO_ADMIN, "POST", "/v1/tokens", "", "{\"name\":\"brief\",\"role\":\"viewer\"}", 201);
    snprintf(all->token[MLO_VIEWER], sizeof all->token[0], "%s", mlo_json_str(a.json, "token", "?"));
    snprintf(path, sizeof path, "/v1/tokens/%lld", (long long)mlo_json_i64(a.json, "id", 0));
    call(all, 1, &a, MLO_VIEWER, "GET", "/v1/me", "", NULL, 200);
    call(all, 1, &a, MLO_ADMIN, "DELETE", path, "", NULL, 204);
    call(all, 0, &a, MLO_VIEWER, "GET", "/v1/me", "", NULL, 401);
    /* one key is one run, whoever is asked */
    add_version(all, 0, "one");
    static const char text[] =
        "{\"model\":\"cnn\",\"recipe\":\"name: mine\\ntarget: any\\nsteps:\\n  - optimize: {}\\n\"}";
    call(all, 0, &a, MLO_SUBMITTER, "POST", PROJECT "/runs", "Idempotency-Key: k1\r\n", text, 201);
    long long run = (long long)mlo_json_i64(a.json, "id", 0);
    call(all, 1, &a, MLO_SUBMITTER, "POST", PROJECT "/runs", "Idempotency-Key: k1\r\n", text, 201);
    assert_int_equal(mlo_json_i64(a.json, "id", 0), run);
    /* who waits at one hears of what the other did */
    snprintf(path, sizeof path, PROJECT "/runs/%lld/events", run);
    call(all, 1, &a, MLO_SUBMITTER, "GET", path, "", NULL, 200);
    const json_t *items = json_object_get(a.json, "items");
    int64_t last = mlo_json_i64(json_array_get(items, json_array_size(items) - 1), "id", 0);
    snprintf(body, sizeof body,
             "GET %s?after=%lld&wait_ms=30000 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n", path,
             (long long)last, all->token[MLO_SUBMITTER]);
    assert_null(wire_send(&w, body, strlen(body)));
    snprintf(path, sizeof path, PROJECT "/runs/%lld/cancel", run);
    call(all, 0, &a, MLO_SUBMITTER, "POST", path, "", "{}", 200);
    assert_null(wire_receive(&w, &a));
    assert_int_equal(a.status, 200);
    assert_true(json_array_size(json_object_get(a.json, "items")) > 0);
    wire_close(&w);
    reply_clear(&a);
}

static size_t commits_at(struct servers *all, int server)
{
    struct reply a = {0};
    call(all, server, &a, MLO_VIEWER, "GET", PROJECT "/ledger", "", NULL, 200);
    size_t count = json_array_size(json_object_get(a.json, "items"));
    reply_clear(&a);
    return count;
}

/* Moves through both, each with what the other's answer said; one chain, one ledger with the same commits. */
static void test_servers__one_history_and_one_ledger(void **state)
{
    struct servers *all = *state;
    struct reply a = {0}, b = {0};
    char match[64], body[160], etag[32];
    servers_start(all, 2, (const char *const[]){NULL});
    add_version(all, 0, "one");
    add_version(all, 1, "two");
    for (int i = 0; i < 6; i++) {
        call(all, i % 2, &a, MLO_PROMOTER, "GET", MODEL "/stages/production", "", NULL, 200);
        assert_true(wire_header(&a, "ETag", etag, sizeof etag));
        snprintf(match, sizeof match, "If-Match: %s\r\n", etag);
        call(all, !(i % 2), &a, MLO_PROMOTER, "POST", MODEL "/promotions", match, promotion(1 + i % 2, body),
             201);
        /* what one did the other knows: the same move is not made twice */
        call(all, i % 2, &a, MLO_PROMOTER, "POST", MODEL "/promotions", match, promotion(2 - i % 2, body),
             412);
    }
    wait_for(commits_at(all, 0) >= 6); /* whoever writes them, in the background */
    wait_for(commits_at(all, 1) >= 6);
    call(all, 0, &a, MLO_VIEWER, "GET", PROJECT "/ledger", "", NULL, 200);
    call(all, 1, &b, MLO_VIEWER, "GET", PROJECT "/ledger", "", NULL, 200);
    assert_true(json_equal(json_object_get(a.json, "items"), json_object_get(b.json, "items")));
    /* the repositories that they make of it are the same too */
    char refs[2][128];
    for (int n = 0; n < 2; n++) {
        call(all, n, &a, MLO_VIEWER, "GET", PROJECT "/ledger.git/info/refs", "", NULL, 200);
        snprintf(refs[n], sizeof refs[n], "%s", mlo_buf_str(&a.body));
        call(all, n, &a, MLO_VIEWER, "GET", PROJECT "/audit/verify", "", NULL, 200);
        assert_true(mlo_json_bool(a.json, "ok", false));
    }
    assert_true(strlen(refs[0]) > 40);
    assert_string_equal(refs[0], refs[1]);
    reply_clear(&a);
    reply_clear(&b);
}

/* --- ended, and nothing lost ---------------------------------------------------------------------- */

static bool refuses(uint16_t port)
{
    int fd = connect_to(port);
    if (fd >= 0)
        close(fd);
    return fd < 0;
}

static void test_servers__the_end_waits_for_what_is_under_way(void **state)
{
    struct servers *all = *state;
    struct reply a = {0};
    char path[160], request[512];
    servers_start(all, 1, DRAIN);
    uint16_t port = all->of[0].port;
    struct wire kept = WIRE_INIT(port), slow = WIRE_INIT(port), idle = WIRE_INIT(port);
    assert_null(wire_ask(&idle, &a, "GET", "/healthz", NULL, NULL, 0));
    assert_false(a.closes);
    assert_null(wire_ask(&kept, &a, "GET", "/readyz", NULL, NULL, 0));
    assert_int_equal(a.status, 200);
    call(all, 0, &a, MLO_SUBMITTER, "POST", PROJECT "/uploads", "", "{}", 201);
    snprintf(path, sizeof path, PROJECT "/uploads/%s", mlo_json_str(a.json, "id", "?"));
    snprintf(request, sizeof request,
             "PATCH %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Range: bytes 0-9/10\r\n"
             "Content-Length: 10\r\n\r\n01234",
             path, all->token[MLO_SUBMITTER]);
    assert_null(wire_send(&slow, request, strlen(request)));

    kill(all->of[0].pid, SIGTERM);
    wait_for(not_ready_since(port, "about to stop"));
    /* others are told to go elsewhere; who comes nevertheless is served, and asked to connect again */
    assert_null(wire_ask(&kept, &a, "GET", "/readyz", NULL, NULL, 0));
    assert_int_equal(a.status, 503);
    assert_true(a.closes);
    assert_true(mlo_json_bool(a.json, "retry", false));
    assert_null(wire_ask(&kept, &a, "GET", "/healthz", NULL, NULL, 0));
    assert_int_equal(a.status, 200);
    call(all, 0, &a, MLO_VIEWER, "GET", "/v1/me", "", NULL, 200);
    assert_true(a.closes);
    assert_int_equal(waitpid(all->of[0].pid, NULL, WNOHANG), 0);

    kill(all->of[0].pid, SIGTERM);
    wait_for(refuses(port));
    char byte;
    assert_int_equal(recv(idle.fd, &byte, 1, 0), 0); /* an idle one is closed */
    assert_int_equal(waitpid(all->of[0].pid, NULL, WNOHANG), 0);
    assert_null(wire_send(&slow, "56789", 5));
    assert_null(wire_receive(&slow, &a));
    assert_int_equal(a.status, 202);
    assert_true(a.closes);
    server_ended(all, 0);
    server_start(all, 0, (const char *const[]){"--drain", "1", NULL});
    call(all, 0, &a, MLO_SUBMITTER, "GET", path, "", NULL, 200);
    assert_int_equal(mlo_json_i64(a.json, "offset", 0), 10);
    uint64_t from = mlo_clock_ns();
    kill(all->of[0].pid, SIGTERM);
    server_ended(all, 0); /* by itself, and not before its time */
    assert_true(mlo_clock_ns() - from >= 1000000000ull);
    wire_close(&idle);
    wire_close(&kept);
    wire_close(&slow);
    reply_clear(&a);
}

/* --- a load, through the balancer ----------------------------------------------------------------- */

struct load {
    struct servers *all;
    struct wire wire;
    struct reply a;
    _Atomic bool *stop;
    _Atomic long rounds;
    long requests, moves;
    char wrong[512]; /* the first thing that went wrong */
    bool (*round)(struct load *);
    pthread_t thread;
};

static bool demand(struct load *l, int role, const char *method, const char *path, const char *header,
                   const char *body, size_t size, int wanted)
{
    char headers[512];
    snprintf(headers, sizeof headers, "Authorization: Bearer %s\r\n%s", l->all->token[role], header);
    const char *wrong = wire_ask(&l->wire, &l->a, method, path, headers, body, size);
    l->requests++;
    if (!wrong && l->a.status == wanted)
        return true;
    snprintf(l->wrong, sizeof l->wrong, "%s %s: %s%ld instead of %d: %.200s", method, path,
             wrong ? wrong : "", l->a.status, wanted, mlo_buf_str(&l->a.body));
    return false;
}

static bool read_round(struct load *l)
{
    return demand(l, MLO_VIEWER, "GET", MODEL, "", NULL, 0, 200) &&
           demand(l, MLO_VIEWER, "GET", MODEL "/versions", "", NULL, 0, 200) &&
           demand(l, MLO_VIEWER, "GET", MODEL "/versions/1/variants/source/artifact", "", NULL, 0, 200) &&
           demand(l, MLO_VIEWER, "GET", MODEL "/history?limit=20", "", NULL, 0, 200) &&
           demand(l, MLO_VIEWER, "GET", PROJECT "/runs", "", NULL, 0, 200);
}

/* In three pieces; each request may meet another server. */
static bool upload_round(struct load *l)
{
    enum { PIECE = 40000 };
    static _Thread_local char bytes[3 * PIECE];
    char path[160], url[320], range[96];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 31 + (size_t)l->rounds * 7 + i / 997);
    if (!demand(l, MLO_SUBMITTER, "POST", PROJECT "/uploads", "", "{}", 2, 201))
        return false;
    snprintf(path, sizeof path, PROJECT "/uploads/%s", mlo_json_str(l->a.json, "id", "?"));
    for (size_t i = 0; i < 3; i++) {
        snprintf(range, sizeof range, "Content-Range: bytes %zu-%zu/%zu\r\n", i * PIECE, (i + 1) * PIECE - 1,
                 sizeof bytes);
        if (!demand(l, MLO_SUBMITTER, "PATCH", path, range, bytes + i * PIECE, PIECE, 202))
            return false;
    }
    digest_path("?digest=", bytes, sizeof bytes, url + snprintf(url, sizeof url, "%s", path));
    if (!demand(l, MLO_SUBMITTER, "PUT", url, "", NULL, 0, 201) ||
        !demand(l, MLO_VIEWER, "GET", digest_path(PROJECT "/blobs/", bytes, sizeof bytes, path), "", NULL, 0,
                200))
        return false;
    if (l->a.body.len == sizeof bytes && memcmp(l->a.body.data, bytes, sizeof bytes) == 0)
        return true;
    snprintf(l->wrong, sizeof l->wrong, "an upload's bytes came back otherwise");
    return false;
}

static bool promote_round(struct load *l)
{
    char etag[32], match[64], body[160];
    if (!demand(l, MLO_VIEWER, "GET", MODEL "/stages/production", "", NULL, 0, 200))
        return false;
    if (!wire_header(&l->a, "ETag", etag, sizeof etag))
        return false;
    snprintf(match, sizeof match, "If-Match: %s\r\n", etag);
    promotion(1 + (int)(l->moves % 2), body);
    if (!demand(l, MLO_PROMOTER, "POST", MODEL "/promotions", match, body, strlen(body), 201))
        return false;
    l->moves++;
    mlo_clock_sleep_ms(10); /* a steady load, and not all that the machine can do */
    return true;
}

static void *load_main(void *arg)
{
    struct load *l = arg;
    while (!atomic_load(l->stop) && l->round(l))
        atomic_fetch_add(&l->rounds, 1);
    wire_close(&l->wire);
    return NULL;
}

enum { LOADS = 4 };

struct steady {
    struct balancer b;
    struct load loads[LOADS];
    _Atomic bool stop;
};

static void steady_start(struct steady *s, struct servers *all)
{
    static bool (*const rounds[LOADS])(struct load *) = {read_round, upload_round, promote_round, read_round};
    memset(s, 0, sizeof *s);
    balancer_start(&s->b, all, 2);
    for (int i = 0; i < LOADS; i++) {
        s->loads[i] =
            (struct load){.all = all, .wire = WIRE_INIT(s->b.port), .stop = &s->stop, .round = rounds[i]};
        assert_int_equal(pthread_create(&s->loads[i].thread, NULL, load_main, &s->loads[i]), 0);
    }
}

/* Each kind of load has gone round some more times. Nothing has gone wrong, or the test fails here. */
static void steady_goes_on(struct steady *s)
{
    long before[LOADS];
    for (int i = 0; i < LOADS; i++)
        before[i] = atomic_load(&s->loads[i].rounds);
    for (int i = 0; i < LOADS; i++)
        for (uint64_t until = mlo_clock_ns() + WIRE_PATIENCE_S * 1000000000ull;
             atomic_load(&s->loads[i].rounds) < before[i] + 3; mlo_clock_sleep_ms(10))
            if (mlo_clock_ns() > until || s->loads[i].wrong[0])
                fail_msg("the load stands: %s", s->loads[i].wrong);
}

static void steady_stop(struct steady *s)
{
    struct reply a = {0};
    long requests = 0;
    atomic_store(&s->stop, true);
    for (int i = 0; i < LOADS; i++) {
        pthread_join(s->loads[i].thread, NULL);
        requests += s->loads[i].requests;
        reply_clear(&s->loads[i].a);
    }
    balancer_stop(&s->b);
    print_message("%ld requests, %ld promotions, %ld connections to one server and %ld to the other\n",
                  requests, s->loads[2].moves, s->b.ever[0], s->b.ever[1]);
    for (int i = 0; i < LOADS; i++)
        if (s->loads[i].wrong[0])
            fail_msg("a request was lost: %s", s->loads[i].wrong);
    assert_int_equal(s->b.refused, 0);
    /* what was answered is there, once */
    assert_int_equal(pg_fixture_number(s->b.all->pg->server,
                                       "SELECT count(*) FROM mlopt.stage_move WHERE kind = 'promotion'"),
                     s->loads[2].moves);
    call(s->b.all, 0, &a, MLO_VIEWER, "GET", PROJECT "/audit/verify", "", NULL, 200);
    assert_true(mlo_json_bool(a.json, "ok", false));
    reply_clear(&a);
}

/* As a Deployment does: to be ended, no more connections, ended, started, ready, the next. */
static void restart_each(struct steady *s, struct servers *all, const char *const *args)
{
    for (int n = 0; n < 2; n++) {
        long ever = atomic_load(&s->b.ever[n]);
        kill(all->of[n].pid, SIGTERM);
        wait_for(not_ready_since(all->of[n].port, "about to stop"));
        wait_for(!atomic_load(&s->b.ready[n]));
        wait_for(!atomic_load(&s->b.open[n])); /* its answers sent everybody away */
        kill(all->of[n].pid, SIGTERM);
        server_ended(all, n);
        steady_goes_on(s);
        server_start(all, n, args);
        wait_for(atomic_load(&s->b.ready[n]));
        assert_true(ever > 0);
    }
    steady_goes_on(s);
}

static void test_servers__a_rolling_restart_loses_no_request(void **state)
{
    struct servers *all = *state;
    static struct steady s;
    servers_start(all, 2, DRAIN);
    add_version(all, 0, "one");
    add_version(all, 1, "two");
    steady_start(&s, all);
    steady_goes_on(&s);
    restart_each(&s, all, DRAIN);
    assert_true(s.b.ever[0] > 2 && s.b.ever[1] > 2);
    steady_stop(&s);
}

/* --- the schema goes ahead ------------------------------------------------------------------------ */

/* What the next release may bring: columns in tables that are read and written all the time, a table, an
 * index. */
static const char NEXT[] = "-- additive: a test's\n"
                           "ALTER TABLE model ADD COLUMN colour text;\n"
                           "ALTER TABLE version ADD COLUMN colour text NOT NULL DEFAULT 'grey';\n"
                           "ALTER TABLE stage ADD COLUMN colour text;\n"
                           "ALTER TABLE stage_move ADD COLUMN colour text;\n"
                           "ALTER TABLE release ADD COLUMN colour text;\n"
                           "ALTER TABLE upload ADD COLUMN colour text;\n"
                           "ALTER TABLE blob ADD COLUMN colour text;\n"
                           "ALTER TABLE token ADD COLUMN colour text;\n"
                           "ALTER TABLE project ADD COLUMN colour text;\n"
                           "ALTER TABLE run ADD COLUMN colour text;\n"
                           "CREATE TABLE colour (id bigint PRIMARY KEY, name text NOT NULL);\n"
                           "CREATE INDEX stage_move_colour ON stage_move (colour);\n"
                           "GRANT SELECT ON colour TO mlopt_server;\n";
static const char AFTER[] = "ALTER TABLE colour RENAME TO hue;\n";

static void migrate_further(struct servers *all, const char *const *texts, size_t count)
{
    struct mlo_error err = {0};
    struct mlo_db_conn *owner;
    size_t ours;
    int applied;
    const struct mlo_migration *own = mlo_migrations(&ours);
    struct mlo_migration set[128];
    assert_true(ours + count <= MLO_COUNT(set));
    memcpy(set, own, ours * sizeof *set);
    for (size_t i = 0; i < count; i++)
        set[ours + i] = (struct mlo_migration){own[ours - 1].number + 1 + (int)i, i ? "later" : "next",
                                               texts[i], strlen(texts[i])};
    assert_mlo_ok(mlo_db_acquire(all->pg->owner, &owner, &err), &err);
    assert_mlo_ok(mlo_migrate_set(owner, set, ours + count, &applied, &err), &err);
    assert_int_equal(applied, 1);
    mlo_db_release(owner);
}

static const char *const next[] = {NEXT, AFTER};

static void *migrate_one_further(void *arg)
{
    migrate_further(arg, next, 1);
    return NULL;
}

static void test_servers__an_older_one_serves_a_database_with_more(void **state)
{
    struct servers *all = *state;
    struct mlo_error err = {0};
    struct mlo_db_conn *owner;
    pthread_t thread;
    static struct steady s;
    int applied;
    servers_start(all, 2, DRAIN);
    add_version(all, 0, "one");
    add_version(all, 1, "two");
    steady_start(&s, all);
    steady_goes_on(&s);
    /* beside the load, while somebody reads for long, as a backup does: neither waits for the other */
    assert_mlo_ok(mlo_db_begin(all->pg->conn, &err), &err);
    assert_mlo_ok(mlo_db_exec_text(all->pg->conn, "LOCK TABLE model, token IN ACCESS SHARE MODE", &err),
                  &err);
    assert_int_equal(pthread_create(&thread, NULL, migrate_one_further, all), 0);
    wait_for(pg_fixture_number(all->pg->server, "SELECT count(*) FROM pg_locks WHERE NOT granted AND "
                                                "mode = 'AccessExclusiveLock'"));
    steady_goes_on(&s);
    assert_mlo_ok(mlo_db_end(all->pg->conn, MLO_OK, &err), &err);
    pthread_join(thread, NULL);
    steady_goes_on(&s);
    restart_each(&s, all, DRAIN); /* also one that starts now */
    steady_stop(&s);
    /* the job that migrates, of the release before: there is nothing to do */
    assert_mlo_ok(mlo_db_acquire(all->pg->owner, &owner, &err), &err);
    assert_mlo_ok(mlo_migrate(owner, &applied, &err), &err);
    assert_int_equal(applied, 0);
    assert_mlo_status(mlo_migrate_check(owner, &err), MLO_ECONFLICT, &err);
    mlo_db_release(owner);

    migrate_further(all, next, 2); /* takes away: not for this program */
    wait_for(not_ready_since(all->of[0].port, "\"name\":\"schema\",\"ok\":false"));
    assert_false(server_try_start(all, 2, (const char *const[]){NULL}));
}

#define SERVERS_TEST(name) cmocka_unit_test_setup_teardown(name, servers_setup, servers_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVERS_TEST(test_servers__an_upload_goes_on_at_another_server),
        SERVERS_TEST(test_servers__sessions_keys_and_events_are_of_all),
        SERVERS_TEST(test_servers__one_history_and_one_ledger),
        SERVERS_TEST(test_servers__the_end_waits_for_what_is_under_way),
        SERVERS_TEST(test_servers__a_rolling_restart_loses_no_request),
        SERVERS_TEST(test_servers__an_older_one_serves_a_database_with_more),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
