/* A server under load: reads at half the rate that it can do, with uploads, pages and runs beside them, lose
 * no request, and the server does not grow; and a thousand open streams of events.
 *
 * MLOPT_SOAK_SECONDS (default 6) makes the load longer: 600 is the long form (tests/README.md). */
#include "tests/servers_fixture.h"

#include <dirent.h>
#include <sys/resource.h>

#define PROJECT "/v1/projects/demo"
#define MODEL PROJECT "/models/cnn"

#ifdef MLOPT_SANITIZED
enum { READERS = 8, STREAMS = 100, MEMORY_COUNTS = 0 }; /* a sanitizer keeps what was freed */
#else
enum { READERS = 64, STREAMS = 1000, MEMORY_COUNTS = 1 };
#endif
enum { MOST_CONNECTIONS = 16 + 4 }; /* to the database: the pool, and what looks after the service */
enum { UPLOADERS = 2, TOP_MS = 1500, SAMPLE_MS = 100, MOST_KB = 60 << 10 };
/* Until pools and caches have filled: two windows in a row that differ by less, or as many as are waited for.
 * What grows without end differs in the windows behind. */
enum { WINDOWS = 10, SETTLED_KB = 512 };

/* What a process holds. */
static long memory_kb(pid_t pid)
{
    char path[64], line[128];
    long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %ld", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb;
}

static long files_of(pid_t pid)
{
    char path[64];
    long n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n;
}

/* Connections of the server's role, but for those of this program. */
static int64_t database_connections(struct servers *all, const char *also)
{
    char sql[256];
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM pg_stat_activity WHERE datname = '%s' AND application_name LIKE 'mlopt "
             "server%%' %s",
             all->pg->database, also);
    return pg_fixture_number(all->pg->owner, sql);
}

/* --- clients ---------------------------------------------------------------------------------------------
 */

struct client {
    struct servers *all;
    struct wire wire;
    struct reply a;
    const _Atomic bool *stop;
    const _Atomic long *pace_us; /* between the beginnings of two rounds; 0: none */
    _Atomic long rounds;
    int number;
    char wrong[512];     /* the first thing that went wrong: to be read when the thread has ended */
    _Atomic bool failed; /* there is one */
    bool started;
    bool (*round)(struct client *);
    char cookie[256]; /* of a session, where one was begun */
    char *model;      /* bytes */
    size_t model_size;
    pthread_t thread;
};

static bool ask(struct client *c, int role, const char *method, const char *path, const char *body,
                size_t size, int wanted)
{
    char headers[256];
    snprintf(headers, sizeof headers, "Authorization: Bearer %s\r\n", c->all->token[role]);
    const char *wrong = wire_ask(&c->wire, &c->a, method, path, headers, body, size);
    if (!wrong && c->a.status == wanted)
        return true;
    snprintf(c->wrong, sizeof c->wrong, "%s %s: %s, %ld instead of %d: %.200s", method, path,
             wrong ? wrong : "answered", c->a.status, wanted, mlo_buf_str(&c->a.body));
    return false;
}

static bool read_round(struct client *c)
{
    return ask(c, MLO_VIEWER, "GET", MODEL "/versions/1", NULL, 0, 200);
}

static bool page_round(struct client *c)
{
    static const char *const paths[] = {"/", "/models/demo/cnn", "/runs", "/audit/demo", "/search/demo"};
    char text[256];
    if (!c->cookie[0]) {
        int n = snprintf(text, sizeof text, "token=%s", c->all->token[MLO_VIEWER]);
        if (wire_ask(&c->wire, &c->a, "POST", "/login", "", text, (size_t)n) == NULL &&
            wire_header(&c->a, "Set-Cookie", text, sizeof text))
            snprintf(c->cookie, sizeof c->cookie, "Cookie: %.*s\r\n", (int)strcspn(text, ";"), text);
    }
    const char *path = paths[atomic_load(&c->rounds) % (long)MLO_COUNT(paths)],
               *wrong = wire_ask(&c->wire, &c->a, "GET", path, c->cookie, NULL, 0);
    mlo_clock_sleep_ms(20);
    if (!wrong && c->a.status == 200)
        return true;
    snprintf(c->wrong, sizeof c->wrong, "%s: %s, %ld", path, wrong ? wrong : "answered", c->a.status);
    return false;
}

/* A model that nobody has had: the file with a doc_string of its own. */
static void new_model(struct client *c, struct mlo_buf *out, char digest[MLO_DIGEST_TEXT_SIZE])
{
    struct mlo_digest d;
    char doc[32];
    int n = snprintf(doc, sizeof doc, "%d-%ld", c->number, atomic_load(&c->rounds));
    mlo_buf_append(out, c->model, c->model_size);
    mlo_buf_putc(out, 0x32); /* field 6 of ModelProto, of bytes */
    mlo_buf_putc(out, (char)n);
    mlo_buf_append(out, doc, (size_t)n);
    mlo_digest_of(out->data, out->len, &d);
    mlo_digest_text(&d, digest);
}

/* Uploads one, makes a version of it, and reads it back. */
static bool upload_to(struct client *c, const char *model)
{
    struct mlo_buf bytes = MLO_BUF_INIT;
    char digest[MLO_DIGEST_TEXT_SIZE], path[256], body[256], name[96];
    new_model(c, &bytes, digest);
    snprintf(path, sizeof path, PROJECT "/blobs/%s", digest);
    snprintf(name, sizeof name, PROJECT "/models/%s/versions", model);
    snprintf(body, sizeof body, "{\"files\":[{\"role\":\"model\",\"name\":\"m.onnx\",\"digest\":\"%s\"}]}",
             digest);
    bool good = ask(c, MLO_SUBMITTER, "PUT", path, bytes.data, bytes.len, 201) &&
                ask(c, MLO_SUBMITTER, "POST", name, body, strlen(body), 201) &&
                ask(c, MLO_VIEWER, "GET", path, NULL, 0, 200);
    if (good && (c->a.body.len != bytes.len || memcmp(c->a.body.data, bytes.data, bytes.len) != 0)) {
        snprintf(c->wrong, sizeof c->wrong, "an upload's bytes came back otherwise");
        good = false;
    }
    mlo_buf_clear(&bytes);
    return good;
}

static bool upload_round(struct client *c)
{
    mlo_clock_sleep_ms(20);
    return upload_to(c, "uploaded");
}

/* A run to its end, which must be a good one. */
static bool run_round(struct client *c)
{
    static const char body[] =
        "{\"model\":\"run\",\"recipe\":\"name: soak\\ntarget: any\\nsteps:\\n  - optimize: {}\\n\"}";
    char path[96];
    if (!upload_to(c, "run") || !ask(c, MLO_SUBMITTER, "POST", PROJECT "/runs", body, sizeof body - 1, 201))
        return false;
    snprintf(path, sizeof path, PROJECT "/runs/%lld", (long long)mlo_json_i64(c->a.json, "id", 0));
    for (uint64_t until = mlo_clock_ns() + WIRE_PATIENCE_S * 1000000000ull; mlo_clock_ns() < until;
         mlo_clock_sleep_ms(50)) {
        if (!ask(c, MLO_VIEWER, "GET", path, NULL, 0, 200))
            return false;
        const char *state = mlo_json_str(c->a.json, "state", "");
        if (strcmp(state, "succeeded") == 0)
            return true;
        if (strcmp(state, "queued") != 0 && strcmp(state, "running") != 0)
            break;
    }
    snprintf(c->wrong, sizeof c->wrong, "a run did not succeed: %.400s", mlo_buf_str(&c->a.body));
    return false;
}

static void *client_main(void *arg)
{
    struct client *c = arg;
    uint64_t due = mlo_clock_ns();
    while (!atomic_load(c->stop)) {
        if (!c->round(c)) {
            atomic_store(&c->failed, true);
            break;
        }
        long pace_us = c->pace_us ? atomic_load(c->pace_us) : 0;
        atomic_fetch_add(&c->rounds, 1);
        due =
            pace_us ? MLO_MAX(due + (uint64_t)pace_us * 1000, mlo_clock_ns() - 1000000000u) : mlo_clock_ns();
        for (uint64_t now = mlo_clock_ns(); now < due; now = mlo_clock_ns())
            usleep((useconds_t)MLO_MIN((due - now) / 1000 + 1, 100000u));
    }
    wire_close(&c->wire);
    reply_clear(&c->a);
    return NULL;
}

/* --- the load --------------------------------------------------------------------------------------------
 */

enum { CLIENTS = READERS + UPLOADERS + 2 };

struct soak {
    struct servers *all;
    struct client clients[CLIENTS];
    _Atomic bool stop;
    _Atomic long pace_us;
    char *model;
    size_t model_size;
};

static long rounds_of(struct soak *s, bool (*round)(struct client *))
{
    long n = 0;
    for (int i = 0; i < CLIENTS; i++)
        if (s->clients[i].round == round)
            n += atomic_load(&s->clients[i].rounds);
    return n;
}

static bool goes_well(struct soak *s)
{
    for (int i = 0; i < CLIENTS; i++)
        if (atomic_load(&s->clients[i].failed))
            return false;
    return true;
}

static bool each_has_done_one(struct soak *s)
{
    return rounds_of(s, run_round) && rounds_of(s, upload_round) && rounds_of(s, page_round);
}

static void start_client(struct soak *s, int i, bool (*round)(struct client *))
{
    struct client *c = &s->clients[i];
    *c = (struct client){.all = s->all,
                         .wire = WIRE_INIT(s->all->of[0].port),
                         .stop = &s->stop,
                         .number = i,
                         .round = round,
                         .pace_us = round == read_round ? &s->pace_us : NULL,
                         .model = s->model,
                         .model_size = s->model_size};
    c->started = pthread_create(&c->thread, NULL, client_main, c) == 0;
    if (!c->started) {
        snprintf(c->wrong, sizeof c->wrong, "no thread for client %d", i);
        atomic_store(&c->failed, true);
    }
}

/* Nothing is asserted while threads run: they use what a failure takes away. */
static void end_clients(struct soak *s)
{
    atomic_store(&s->stop, true);
    for (int i = 0; i < CLIENTS; i++)
        if (s->clients[i].started)
            pthread_join(s->clients[i].thread, NULL);
    for (int i = 0; i < CLIENTS; i++)
        if (s->clients[i].wrong[0])
            fail_msg("%s", s->clients[i].wrong);
}

static pid_t start_worker(struct servers *all)
{
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    struct mlo_error err = {0};
    char *work = mlo_fs_join(all->dir, "work", NULL), *log = mlo_fs_join(all->dir, "worker.log", NULL),
         *database = mlo_embedded_conninfo(all->pg->pg, MLO_ROLE_WORKER, all->pg->database);
    const char *const argv[] = {getenv("MLOPT"), "worker",     "--database", database, "--blobs",
                                all->blobs,      "--work-dir", work,         NULL};
    pid_t pid = -1;
    options.argv = argv;
    options.die_with_parent = true;
    options.stderr_fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_mlo_ok(mlo_process_start(&options, &pid, &err), &err);
    close(options.stderr_fd);
    free(work);
    free(log);
    free(database);
    return pid;
}

/* The mean of what was sampled between two fractions of the time. */
static double mean_between(const long *samples, size_t count, double from, double to)
{
    size_t first = (size_t)(from * (double)count), end = (size_t)(to * (double)count);
    double sum = 0;
    for (size_t i = first; i < end; i++)
        sum += (double)samples[i];
    return sum / (double)MLO_MAX(end - first, (size_t)1);
}

/* Goes on until the server's memory stays where it is, and all that is done beside has been done once. */
static void settle(struct soak *s, pid_t server, uint64_t window_ms)
{
    double before = 0, now = 0;
    bool settled = false;
    for (int i = 0; i < WINDOWS && !settled && goes_well(s); i++) {
        double sum = 0;
        int n = 0;
        for (uint64_t end = mlo_clock_ns() + window_ms * 1000000u; mlo_clock_ns() < end; n++) {
            sum += (double)memory_kb(server);
            mlo_clock_sleep_ms(SAMPLE_MS);
        }
        before = now;
        now = sum / MLO_MAX(n, 1);
        settled = i > 0 && now - before < SETTLED_KB && before - now < SETTLED_KB && each_has_done_one(s);
    }
}

static void test_load__half_of_the_top_for_long_changes_nothing(void **state)
{
    struct servers *all = *state;
    static struct soak s;
    struct mlo_buf model = MLO_BUF_INIT;
    struct mlo_error err = {0};
    int64_t seconds = 6;
    const char *said = getenv("MLOPT_SOAK_SECONDS");
    assert_true(!said || mlo_str_to_i64(said, &seconds));
    assert_mlo_ok(mlo_fs_read(MLOPT_SOURCE_DIR "/deploy/models/fashion_student.onnx", 1 << 20, &model, &err),
                  &err);
    server_start(all, 0, (const char *const[]){"--log-level", "warn", NULL});
    pid_t server = all->of[0].pid, worker = start_worker(all);
    long files_before = files_of(server);
    s = (struct soak){.all = all, .model = model.data, .model_size = model.len};
    struct client first = {.all = all,
                           .wire = WIRE_INIT(all->of[0].port),
                           .model = model.data,
                           .model_size = model.len,
                           .number = CLIENTS};
    if (!upload_to(&first, "cnn"))
        fail_msg("%s", first.wrong);
    wire_close(&first.wire);
    reply_clear(&first.a);

    /* the top: readers alone, each as fast as it is answered */
    for (int i = 0; i < READERS; i++)
        start_client(&s, i, read_round);
    mlo_clock_sleep_ms(300);
    long before = rounds_of(&s, read_round);
    uint64_t from = mlo_clock_ns();
    mlo_clock_sleep_ms(TOP_MS);
    double top = (double)(rounds_of(&s, read_round) - before) / ((double)(mlo_clock_ns() - from) / 1e9);
    atomic_store(&s.pace_us, (long)(2e6 * READERS / MLO_MAX(top, 1.0)));
    for (int i = READERS; i < CLIENTS; i++)
        start_client(&s, i,
                     i < READERS + UPLOADERS    ? upload_round
                     : i == READERS + UPLOADERS ? run_round
                                                : page_round);

    /* half of it, with all else */
    settle(&s, server, (uint64_t)MLO_MIN(seconds * 100, 15000));
    size_t count = 0, room = (size_t)seconds * 1000 / SAMPLE_MS + 16;
    long *memory = calloc(room, sizeof *memory), *files = calloc(room, sizeof *files), most_kb = 0;
    int64_t most_connections = 0;
    before = rounds_of(&s, read_round);
    from = mlo_clock_ns();
    while (goes_well(&s) && mlo_clock_ns() - from < (uint64_t)seconds * 1000000000u && count < room) {
        memory[count] = memory_kb(server);
        files[count] = files_of(server);
        most_kb = MLO_MAX(most_kb, memory[count]);
        if (count++ % 10 == 0)
            most_connections = MLO_MAX(most_connections, database_connections(all, ""));
        mlo_clock_sleep_ms(SAMPLE_MS);
    }
    for (uint64_t until = mlo_clock_ns() + WIRE_PATIENCE_S * 1000000000ull;
         goes_well(&s) && !each_has_done_one(&s) && mlo_clock_ns() < until;)
        mlo_clock_sleep_ms(SAMPLE_MS);
    double rate = (double)(rounds_of(&s, read_round) - before) / ((double)(mlo_clock_ns() - from) / 1e9);
    long runs = rounds_of(&s, run_round), uploads = rounds_of(&s, upload_round),
         pages = rounds_of(&s, page_round);
    end_clients(&s);
    double more_kb = mean_between(memory, count, 0.75, 1) - mean_between(memory, count, 0, 0.25),
           more_files = mean_between(files, count, 0.75, 1) - mean_between(files, count, 0, 0.25);
    printf("%lld s: top %.0f reads/s, then %.0f beside %ld uploads, %ld runs, %ld pages; memory at most %ld "
           "KB, grew by %.0f; "
           "%.0f descriptors, grew by %.1f; %lld connections to the database\n",
           (long long)seconds, top, rate, uploads, runs, pages, most_kb, more_kb,
           mean_between(files, count, 0, 1), more_files, (long long)most_connections);
    assert_true(top > 0);
    assert_true(rate > top / 8);
    assert_true(runs && uploads && pages);
    assert_true(more_files < 3); /* of those that come and go */
    assert_true(most_connections <= MOST_CONNECTIONS);
    if (MEMORY_COUNTS) {
        assert_true(most_kb < MOST_KB);
        assert_true(more_kb < 2048);
    }
    wait_for(files_of(server) <= files_before + MOST_CONNECTIONS); /* those of clients are given back */
    kill(worker, SIGTERM);
    assert_int_equal(waitpid(worker, NULL, 0), worker);
    kill(server, SIGTERM);
    server_ended(all, 0);
    free(memory);
    free(files);
    mlo_buf_clear(&model);
}

/* --- open streams
 * --------------------------------------------------------------------------------------------
 */

/* WAVE: asked for at a time, so that a server that gets little of the machine is not asked for all within the
 * seconds that it gives a request's headers. */
enum { WAVE = 50, PER_TOKEN = 64, STREAMS_MOST_KB = 100000 };

/* Reads on until `part` has come. */
static void stream_until(int fd, struct mlo_buf *text, const char *part)
{
    char piece[2048];
    while (!strstr(mlo_buf_str(text), part)) {
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n <= 0)
            fail_msg("no '%s' in: %s", part, mlo_buf_str(text));
        mlo_buf_append(text, piece, (size_t)n);
    }
}

static void expect(int fd, const char *part)
{
    struct mlo_buf text = MLO_BUF_INIT;
    stream_until(fd, &text, part);
    mlo_buf_clear(&text);
}

static int stream_open(const struct servers *all, const char *token)
{
    struct mlo_buf request = MLO_BUF_INIT;
    int fd = connect_to(all->of[0].port);
    assert_true(fd >= 0);
    mlo_buf_printf(&request,
                   "GET " PROJECT "/runs/1/events HTTP/1.1\r\nHost: mlopt\r\nAuthorization: Bearer %s\r\n"
                   "Accept: text/event-stream\r\n\r\n",
                   token);
    assert_int_equal(send(fd, request.data, request.len, MSG_NOSIGNAL), request.len);
    mlo_buf_clear(&request);
    return fd;
}

static void more_files(rlim_t count)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = MLO_MIN(MLO_MAX(limit.rlim_cur, count), limit.rlim_max);
    assert_true(limit.rlim_cur >= count);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void test_load__a_thousand_open_streams_are_cheap(void **state)
{
    struct servers *all = *state;
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_buf model = MLO_BUF_INIT;
    struct mlo_error err = {0};
    char token[MLO_TOKEN_TEXT_SIZE] = "";
    static int fds[STREAMS];
    static const char run[] = "{\"model\":\"cnn\",\"recipe\":\"name: r\\nsteps:\\n  - optimize: {}\\n\"}";
    more_files(STREAMS + 200);
    assert_mlo_ok(mlo_fs_read(MLOPT_SOURCE_DIR "/deploy/models/fashion_student.onnx", 1 << 20, &model, &err),
                  &err);
    server_start(all, 0, (const char *const[]){"--log-level", "warn", NULL});
    struct client c = {
        .all = all, .wire = WIRE_INIT(all->of[0].port), .model = model.data, .model_size = model.len};
    /* no worker takes it */
    if (!upload_to(&c, "cnn") || !ask(&c, MLO_SUBMITTER, "POST", PROJECT "/runs", run, sizeof run - 1, 201))
        fail_msg("%s", c.wrong);
    for (int i = 0; i < STREAMS; i += WAVE) {
        int end = MLO_MIN(i + WAVE, STREAMS);
        for (int k = i; k < end; k++) {
            if (k % PER_TOKEN == 0)
                assert_mlo_ok(
                    mlo_token_create(all->pg->conn, &system, "t", MLO_VIEWER, 0, 0, token, NULL, &err), &err);
            fds[k] = stream_open(all, token);
        }
        for (int k = i; k < end; k++)
            expect(fds[k], "id: 1\n");
    }
    long kb = memory_kb(all->of[0].pid);
    int64_t connections = database_connections(all, "");
    wire_close(&c.wire); /* it may have been idle for too long */
    if (!read_round(&c)) /* what else is asked is answered */
        fail_msg("%s", c.wrong);
    if (!ask(&c, MLO_SUBMITTER, "POST", PROJECT "/runs/1/cancel", "{}", 2, 200))
        fail_msg("%s", c.wrong);
    for (int k = 0; k < STREAMS; k++) {
        expect(fds[k], "event: end\n");
        close(fds[k]);
    }
    printf("%d streams: %ld KB, %lld connections to the database\n", STREAMS, kb, (long long)connections);
    assert_true(connections <= MOST_CONNECTIONS);
    if (MEMORY_COUNTS)
        assert_true(kb < STREAMS_MOST_KB);
    wire_close(&c.wire);
    reply_clear(&c.a);
    mlo_buf_clear(&model);
    kill(all->of[0].pid, SIGTERM);
    server_ended(all, 0);
}

#define SERVERS_TEST(name) cmocka_unit_test_setup_teardown(name, servers_setup, servers_teardown)

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        SERVERS_TEST(test_load__half_of_the_top_for_long_changes_nothing),
        SERVERS_TEST(test_load__a_thousand_open_streams_are_cheap),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
