/* `mlopt server` as a process of its own, on the test's PostgreSQL and a store of files, with kill_points.c
 * in it; a client that tries again as `mlopt` and its users do; and a receiver of webhooks. Whoever asks and
 * gets no answer finds the server started again. */
#ifndef MLO_TESTS_SERVER_FIXTURE_H
#define MLO_TESTS_SERVER_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "tests/fault/kill_points.h"
#include "tests/integration/registry/webhook_fixture.h"
#include "tests/reply.h"

struct service {
    struct pg_fixture *f;
    struct fault_plan *plan; /* shared with the server */
    char *dir, *plan_path, *log_path, *blobs_url, *ledger_dir, *database;
    char token[MLO_TOKEN_TEXT_SIZE], url[64];
    const char *mlopt; /* the program */
    pid_t pid;
    int starts;
    bool database_back;
};

/* --- the process ----------------------------------------------------------------------------------- */

static inline char *text_of(const char *name, const char *value)
{
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_buf_printf(&text, "%s%s", name, value);
    return mlo_buf_take(&text);
}

static inline void service_fail(const struct service *s, const char *what)
{
    struct mlo_buf log = MLO_BUF_INIT;
    struct mlo_error err = {0};
    if (mlo_fs_read(s->log_path, 64 << 20, &log, &err) == MLO_OK)
        print_error("%s\n", mlo_buf_str(&log) + (log.len > 6000 ? log.len - 6000 : 0));
    mlo_buf_clear(&log);
    fail_msg("%s; the fault was at %s, %ld: %s", what, s->plan->at, s->plan->occurrence,
             atomic_load(&s->plan->struck) ? "struck" : "not struck");
}

/* Reads "ready: URL" from the server's output; false when it ended instead. */
static inline bool read_ready(struct service *s, int out)
{
    char line[128] = "";
    size_t n = 0;
    while (n + 1 < sizeof line && read(out, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
    return sscanf(line, "ready: %63s", s->url) == 1;
}

/* The same address each time: what clients remember of a server's history belongs to it. */
static inline bool service_try_start(struct service *s)
{
    struct mlo_error err = {0};
    int out[2], log = open(s->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const char *listen = *s->url ? s->url + strlen("http://") : "127.0.0.1:0", *asan = getenv("ASAN_OPTIONS");
    char *database = text_of("MLOPT_DATABASE=", s->database);
    char *plan = text_of("MLOPT_FAULT_PLAN=", s->plan_path);
    char *options = text_of("ASAN_OPTIONS=verify_asan_link_order=0:", asan ? asan : "");
    const char *argv[] = {s->mlopt,      "server",   "--blobs", s->blobs_url,           "--ledger",
                          s->ledger_dir, "--listen", listen,    "--webhook-allow-http", "--webhook-allow-net",
                          "127.0.0.0/8", NULL};
    const char *env[] = {database, plan, options, "LD_PRELOAD=" MLOPT_FAULT_POINTS, NULL};
    assert_true(log >= 0 && pipe2(out, O_CLOEXEC) == 0);
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    o.argv = argv, o.env = env, o.stdout_fd = out[1], o.stderr_fd = log;
    o.die_with_parent = true, o.death_signal = SIGKILL;
    atomic_store(&s->plan->going, 0); /* those of the one before are no more */
    assert_mlo_ok(mlo_process_start(&o, &s->pid, &err), &err);
    close(out[1]);
    close(log);
    bool ready = read_ready(s, out[0]);
    close(out[0]);
    free(database);
    free(plan);
    free(options);
    return ready;
}

static inline void service_heal(struct service *s);

/* As the superuser, on a connection of its own: that of a pool may be one that the fault ended. The fault may
 * strike a thread of the background just now: then PostgreSQL is started again here. */
static inline int64_t service_number(struct service *s, const char *sql)
{
    uint64_t until = mlo_clock_ns() + PATIENCE_S * 1000000000ull;
    int64_t n = -1;
    for (;;) {
        PGconn *pg = PQconnectdb(s->plan->admin);
        PGresult *r = PQexec(pg, sql);
        bool ok = PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) == 1 &&
                  mlo_str_to_i64(PQgetvalue(r, 0, 0), &n);
        if (!ok && mlo_clock_ns() > until)
            fail_msg("%s: %s", sql, PQerrorMessage(pg));
        PQclear(r);
        PQfinish(pg);
        if (ok)
            return n;
        mlo_clock_sleep_ms(50);
        service_heal(s);
    }
}

/* A server that is gone was sending some: its leases are ended, since no test waits for time to pass. */
static inline void end_leases(struct service *s)
{
    service_number(s, "WITH free AS (UPDATE mlopt.webhook_delivery SET lease = NULL, lease_until = NULL, "
                      "next_at = now() WHERE state = 'pending' RETURNING 1) SELECT count(*) FROM free");
}

static inline void service_start(struct service *s)
{
    uint64_t until = mlo_clock_ns() + PATIENCE_S * 1000000000ull;
    while (!service_try_start(s)) {
        int ended;
        assert_int_equal(waitpid(s->pid, &ended, 0), s->pid);
        bool killed = WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL;
        if (mlo_clock_ns() > until || s->plan->kind == FAULT_NONE ||
            (WIFSIGNALED(ended) && !(killed && atomic_load(&s->plan->struck))))
            service_fail(s, "the server does not start");
        mlo_clock_sleep_ms(50);
    }
    s->starts++;
}

static inline void service_stop(struct service *s)
{
    int ended;
    kill(s->pid, SIGTERM);
    assert_int_equal(waitpid(s->pid, &ended, 0), s->pid);
}

/* Starts again what the fault ended. */
static inline void service_heal(struct service *s)
{
    int ended;
    if (s->plan->kind == FAULT_DATABASE && atomic_load(&s->plan->struck) && !s->database_back) {
        struct mlo_error err = {0};
        uint64_t until = mlo_clock_ns() + PATIENCE_S * 1000000000ull;
        enum mlo_status status;
        while ((status = mlo_embedded_restart(s->f->pg, &err)) == MLO_ECONFLICT && mlo_clock_ns() < until)
            mlo_clock_sleep_ms(20);
        assert_mlo_ok(status, &err);
        s->database_back = true;
        end_leases(s);
    }
    if (waitpid(s->pid, &ended, WNOHANG) != s->pid)
        return;
    if (!WIFSIGNALED(ended) || WTERMSIG(ended) != SIGKILL || !atomic_load(&s->plan->struck))
        service_fail(s, "the server ended by itself");
    end_leases(s);
    service_start(s);
}

/* --- the client ------------------------------------------------------------------------------------ */

/* Asks until there is an answer that trying again cannot change. `header` may be NULL. All tries of a POST
 * have one key, so that it takes effect once. */
static inline void ask(struct service *s, struct reply *a, const char *method, const char *path,
                       const char *body, const char *header)
{
    static _Atomic unsigned asked;
    uint64_t until = mlo_clock_ns() + PATIENCE_S * 1000000000ull;
    char key[64], url[1024];
    const char *headers[3] = {header, NULL, NULL};
    int lost = 0;
    snprintf(key, sizeof key, "Idempotency-Key: %d-%u", (int)getpid(), asked++);
    if (strcmp(method, "POST") == 0)
        headers[header ? 1 : 0] = key;
    for (;;) {
        snprintf(url, sizeof url, "%s%s", s->url, path);
        CURLcode code = reply_fetch(a, method, url, NULL, s->token, body, headers);
        a->lost = lost;
        if (code == CURLE_OK && a->status < 500 && !mlo_json_bool(a->json, "retry", false))
            return;
        bool passing = code != CURLE_OK || mlo_json_bool(a->json, "retry", false);
        if (!passing || mlo_clock_ns() > until) {
            print_error("%s %s: %ld %s\n", method, path, a->status, mlo_buf_str(&a->body));
            service_fail(s, passing ? "no answer" : "the server failed");
        }
        lost++;
        mlo_clock_sleep_ms(20);
        service_heal(s);
    }
}

static inline void ask_json(struct service *s, struct reply *a, const char *path, json_t *body,
                            const char *header)
{
    char *text = json_dumps(body, JSON_COMPACT);
    assert_non_null(text);
    ask(s, a, "POST", path, text, header);
    free(text);
    json_decref(body);
}

/* Fails with the body when the status is another. */
#define assert_answer(s, a, ok)                                                                              \
    do {                                                                                                     \
        if (!(ok)) {                                                                                         \
            print_error("%s:%d: HTTP %ld: %s\n", __FILE__, __LINE__, (a)->status, mlo_buf_str(&(a)->body));  \
            service_fail(s, "another answer was expected");                                                  \
        }                                                                                                    \
    } while (0)

/* Runs `mlopt` with these arguments, as an auditor would; it must find nothing wrong. */
static inline void run_mlopt(struct service *s, const char *const *args)
{
    const char *argv[12] = {s->mlopt};
    char *url = text_of("MLOPT_URL=", s->url), *token = text_of("MLOPT_TOKEN=", s->token);
    char *home = text_of("HOME=", s->dir), *state = text_of("XDG_STATE_HOME=", s->dir);
    const char *env[] = {url, token, home, state, NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    struct mlo_buf output = MLO_BUF_INIT;
    struct mlo_error err = {0};
    int code = -1;
    for (size_t i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    o.argv = argv, o.env = env;
    assert_mlo_ok(mlo_process_run(&o, PATIENCE_S * 1000, 1 << 20, &output, &code, &err), &err);
    if (code != 0) {
        print_error("mlopt %s: exit %d\n%s\n", args[0], code, mlo_buf_str(&output));
        service_fail(s, "mlopt finds something wrong");
    }
    mlo_buf_clear(&output);
    free(url);
    free(token);
    free(home);
    free(state);
}

/* --- all of it --------------------------------------------------------------------------------------- */

static inline void service_open(struct service *s, struct pg_fixture *f)
{
    const char *mlopt = getenv("MLOPT");
    struct mlo_error err = {0};
    *s = (struct service){.f = f, .mlopt = mlopt ? mlopt : MLOPT_PROGRAM};
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlopt-service-", &s->dir, &err), &err);
    s->plan_path = mlo_fs_join(s->dir, "plan", NULL);
    s->log_path = mlo_fs_join(s->dir, "server.log", NULL);
    char *blobs = mlo_fs_join(s->dir, "blobs", NULL);
    s->blobs_url = text_of("file:", blobs);
    free(blobs);
    s->ledger_dir = mlo_fs_join(s->dir, "ledger", NULL);
    s->database = mlo_embedded_conninfo(f->pg, MLO_ROLE_SERVER, f->database);
    int fd = open(s->plan_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && ftruncate(fd, sizeof *s->plan) == 0);
    s->plan = mmap(NULL, sizeof *s->plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(s->plan != MAP_FAILED);
    close(fd);
    char *admin = mlo_embedded_conninfo(f->pg, NULL, f->database);
    snprintf(s->plan->admin, sizeof s->plan->admin, "%s", admin);
    free(admin);
    assert_mlo_ok(mlo_token_create(f->conn, &root, "tester", MLO_ADMIN, 0, 0, s->token, NULL, &err), &err);
    service_start(s);
}

static inline void service_close(struct service *s)
{
    service_stop(s);
    munmap(s->plan, sizeof *s->plan);
    mlo_fs_remove_tree(s->dir);
    free(s->dir);
    free(s->plan_path);
    free(s->log_path);
    free(s->blobs_url);
    free(s->ledger_dir);
    free(s->database);
}

#endif
