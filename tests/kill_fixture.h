/* Processes that are killed at their n-th step, or cut off from PostgreSQL there, and what holds afterwards.
 * A step is a call that changes a file or talks to PostgreSQL: the linker puts kill_point() before and behind
 * each of them (--wrap, tests/CMakeLists.txt); a program may add calls of its own. A run takes some of the
 * steps, from a random first one that is printed (MLOPT_FAULT_SEED sets it); MLOPT_FAULT_ALL=1 takes all,
 * MLOPT_FAULT_ALL=2/3 the second third.
 *
 * After each: the audit chains and the ledger verify, and what the plan looks at. */
#ifndef MLO_TESTS_KILL_FIXTURE_H
#define MLO_TESTS_KILL_FIXTURE_H

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/fault_parts.h"
#include "tests/upkeep_fixture.h"

#ifndef KILL_STEPS
#define KILL_STEPS 8 /* of a plan, in a short run */
#endif
enum { KILL_RENEW = 64 }; /* steps with one database */

/* --- the points ------------------------------------------------------------------------------------ */

enum fault { FAULT_NONE, FAULT_KILL, FAULT_CUT };

static enum fault fault; /* of this process: a child's only */
static long fault_at;
static atomic_long fault_count;    /* a victim may have threads */
static const char *fault_conninfo; /* of the superuser */
static _Thread_local bool fault_busy;

PGresult *__real_PQexec(PGconn *pg, const char *text);
int __real_PQsendQuery(PGconn *pg, const char *text);
int __real_PQsendQueryPrepared(PGconn *pg, const char *name, int count, const char *const *values,
                               const int *lengths, const int *formats, int result_format);
PGresult *__real_PQgetResult(PGconn *pg);
int __real_PQpipelineSync(PGconn *pg);
int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_fsync(int fd);
int __real_fdatasync(int fd);
int __real_ftruncate(int fd, off_t size);
ssize_t __real_write(int fd, const void *bytes, size_t size);

static inline void cut(void)
{
    PGconn *pg = PQconnectdb(fault_conninfo);
    PQclear(__real_PQexec(pg, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                              "WHERE application_name = 'victim'"));
    PQfinish(pg);
}

static inline void kill_point(void)
{
    if (fault == FAULT_NONE || fault_busy || atomic_fetch_add(&fault_count, 1) != fault_at)
        return;
    fault_busy = true;
    if (fault == FAULT_KILL)
        kill(getpid(), SIGKILL);
    else
        cut();
    fault_busy = false;
}

/* clang-format off */
#define WRAP(type, name, parameters, arguments)                                                              \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters                                                                            \
    {                                                                                                        \
        kill_point();                                                                                        \
        type result = __real_##name arguments;                                                               \
        int e = errno;                                                                                       \
        kill_point();                                                                                        \
        errno = e;                                                                                           \
        return result;                                                                                       \
    }
WRAP(PGresult *, PQexec, (PGconn *pg, const char *text), (pg, text))
WRAP(int, PQsendQuery, (PGconn *pg, const char *text), (pg, text))
WRAP(PGresult *, PQgetResult, (PGconn *pg), (pg))
WRAP(int, PQsendQueryPrepared, (PGconn *pg, const char *name, int count, const char *const *values,
     const int *lengths, const int *formats, int result_format),
     (pg, name, count, values, lengths, formats, result_format))
WRAP(int, PQpipelineSync, (PGconn *pg), (pg))
WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, unlink, (const char *path), (path))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(ssize_t, write, (int fd, const void *bytes, size_t size), (fd, bytes, size))
/* clang-format on */

/* --- the victim: a process of its own ---------------------------------------------------------------- */

struct victim {
    struct mlo_db_conn *conn;
    struct mlo_blob_store *blobs;
    struct mlo_ledger *ledger;
    int64_t project, model; /* model: "staged" */
    const char *tag;        /* of this run */
    int acks;               /* a pipe */
    struct mlo_error err;
};

/* No point of its own: what is told is told. */
static inline void acknowledge(const struct victim *v, char what)
{
    if (syscall(SYS_write, v->acks, &what, 1) != 1)
        _exit(3);
}

typedef enum mlo_status scenario_fn(struct victim *v);

/* --- running one ------------------------------------------------------------------------------------- */

struct campaign {
    struct upkeep u;
    char *ledger_dir, *url, *conninfo, *admin;
    struct mlo_ledger *ledger;
    int64_t model;
};

/* In the child: never comes back. Its own connections: those of the parent are not used. */
static inline void be_victim(struct campaign *c, scenario_fn *scenario, const char *tag, enum fault kind,
                             long at, int acks, int counts)
{
    struct victim v = {.project = c->u.project, .model = c->model, .tag = tag, .acks = acks};
    struct mlo_db *db;
    const struct mlo_db_options options = {
        .conninfo = c->conninfo, .application = "victim", .max_connections = 2};
    if (mlo_db_open(&options, &db, &v.err) != MLO_OK || mlo_db_acquire(db, &v.conn, &v.err) != MLO_OK ||
        mlo_blob_store_open(c->url, &v.blobs, &v.err) != MLO_OK)
        _exit(2);
    const struct mlo_ledger_options ledger = {.db = db, .dir = c->ledger_dir};
    if (mlo_ledger_open(&ledger, &v.ledger, &v.err) != MLO_OK)
        _exit(2);
    fault_conninfo = c->admin;
    fault_at = at;
    fault = kind;
    enum mlo_status status = scenario(&v);
    fault = FAULT_NONE;
    long count = atomic_load(&fault_count);
    if (syscall(SYS_write, counts, &count, sizeof count) != sizeof count)
        _exit(2);
    if (status != MLO_OK && kind != FAULT_CUT)
        fprintf(stderr, "victim: %s\n", v.err.message);
    _exit(status == MLO_OK ? 0 : 1);
}

/* What it acknowledged; *steps is how many points it passed, 0 when it was killed. */
static inline void run_victim(struct campaign *c, scenario_fn *scenario, const char *tag, enum fault kind,
                              long at, char acks[8], long *steps)
{
    int pipes[2][2], wait_status;
    assert_true(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        be_victim(c, scenario, tag, kind, at, pipes[0][1], pipes[1][1]);
    close(pipes[0][1]);
    close(pipes[1][1]);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    memset(acks, 0, 8);
    assert_true(read(pipes[0][0], acks, 7) >= 0);
    *steps = 0;
    if (read(pipes[1][0], steps, sizeof *steps) < 0)
        *steps = 0;
    close(pipes[0][0]);
    close(pipes[1][0]);
    if (WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) != SIGKILL || kind != FAULT_KILL
                                 : WEXITSTATUS(wait_status) > (kind == FAULT_CUT))
        fail_msg("%s, fault at %ld: the process ended with %x", tag, at, (unsigned)wait_status);
}

/* A killed process's connections end when PostgreSQL has noticed: until then they hold locks, and who comes
 * next leaves those rows for later. */
static inline void wait_for_connections(const struct campaign *c)
{
    uint64_t until = mlo_clock_ns() + 300 * 1000000000ull;
    PGconn *pg = PQconnectdb(c->admin);
    for (bool there = true; there;) {
        PGresult *r = PQexec(pg, "SELECT 1 FROM pg_stat_activity WHERE application_name = 'victim'");
        there = PQresultStatus(r) != PGRES_TUPLES_OK || PQntuples(r) > 0;
        PQclear(r);
        if (there && mlo_clock_ns() > until)
            fail_msg("the killed process's connections do not end: %s", PQerrorMessage(pg));
        if (there)
            mlo_clock_sleep_ms(5);
    }
    PQfinish(pg);
}

/* --- what holds after each --------------------------------------------------------------------------- */

static inline void look_at_histories(struct campaign *c)
{
    struct pg_fixture *f = c->u.f;
    const int64_t chains[] = {0, c->u.project};
    struct mlo_ledger_result ledger;
    for (size_t i = 0; i < MLO_COUNT(chains); i++) {
        struct mlo_audit_result audit;
        assert_mlo_ok(mlo_audit_verify(f->conn, chains[i], NULL, &audit, &f->err), &f->err);
        if (!audit.intact)
            fail_msg("chain %lld: %s", (long long)chains[i], audit.problem);
    }
    assert_mlo_ok(mlo_ledger_sync(c->ledger, f->conn, c->u.project, &f->err), &f->err);
    assert_mlo_ok(mlo_ledger_verify(f->conn, c->u.project, &ledger, &f->err), &f->err);
    if (!ledger.intact)
        fail_msg("ledger: %s", ledger.problem);
}

/* --- campaigns ---------------------------------------------------------------------------------------- */

struct plan {
    const char *name;
    scenario_fn *scenario;
    void (*begin)(struct campaign *c); /* once a database; or NULL */
    void (*before)(struct campaign *c, const char *tag);
    void (*after)(struct campaign *c, const char *tag, const char *acks);
    const char *all_acks;
    const char *blobs; /* the store's address; NULL: a folder */
};

static inline void begin_campaign(struct campaign *c, struct pg_fixture *f, const struct plan *plan)
{
    struct mlo_buf url = MLO_BUF_INIT;
    memset(c, 0, sizeof *c);
    upkeep_open_at(&c->u, f, plan->blobs);
    if (plan->blobs)
        mlo_buf_puts(&url, plan->blobs);
    else
        mlo_buf_printf(&url, "file:%s", c->u.root);
    c->url = mlo_buf_take(&url);
    c->ledger_dir = mlo_fs_join(c->u.dir, "ledger", NULL);
    c->conninfo = mlo_embedded_conninfo(f->pg, MLO_ROLE_SERVER, f->database);
    c->admin = mlo_embedded_conninfo(f->pg, NULL, f->database);
    const struct mlo_ledger_options ledger = {.db = f->server, .dir = c->ledger_dir};
    assert_mlo_ok(mlo_ledger_open(&ledger, &c->ledger, &f->err), &f->err);
    if (plan->begin)
        plan->begin(c);
}

static inline void close_campaign(struct campaign *c)
{
    mlo_ledger_close(c->ledger);
    free(c->url);
    free(c->ledger_dir);
    free(c->conninfo);
    free(c->admin);
    upkeep_close(&c->u);
}

static inline void one(struct campaign *c, const struct plan *plan, enum fault kind, long at, long *steps)
{
    char tag[40], acks[8];
    snprintf(tag, sizeof tag, "%s-%ld", plan->name, at);
    plan->before(c, tag);
    run_victim(c, plan->scenario, tag, kind, at, acks, steps);
    wait_for_connections(c);
    if (*steps && kind != FAULT_CUT)
        assert_string_equal(acks, plan->all_acks);
    plan->after(c, tag, acks);
    look_at_histories(c);
}

/* Begins anew with an empty database: what is looked at after each step is all that there is, and would take
 * ever longer. */
static inline void renew_campaign(struct campaign *c, void **state, const struct plan *plan)
{
    close_campaign(c);
    assert_int_equal(pg_fixture_teardown(state), 0);
    assert_int_equal(pg_fixture_setup(state), 0);
    begin_campaign(c, *state, plan);
}

static inline void campaign(void **state, const struct plan *plan, enum fault kind)
{
    struct campaign c;
    int64_t seed = fault_seed();
    size_t part, parts;
    long steps, seen, taken = 0, struck = 0;
    bool all = fault_takes_all(&part, &parts);
    begin_campaign(&c, *state, plan);
    one(&c, plan, kind, 1000000, &steps); /* passes all points: how many are there? */
    assert_true(steps > 20);
    double stride = all ? (double)parts : (double)steps / KILL_STEPS;
    double first = all ? (double)(part - 1) : (double)(seed % 1000) / 1000 * stride;
    stride = MLO_MAX(stride, 1.0);
    print_message("%s: %ld steps, every %.1f from %.1f (MLOPT_FAULT_SEED=%lld)\n", plan->name, steps, stride,
                  first, (long long)seed);
    for (double at = first; at < (double)steps; at += stride) {
        if (++taken % KILL_RENEW == 0)
            renew_campaign(&c, state, plan);
        one(&c, plan, kind, (long)at, &seen);
        struck += kind == FAULT_KILL ? seen == 0 : seen > (long)at; /* who was cut off goes on */
    }
    print_message("%s: %ld steps were taken, %ld struck\n", plan->name, taken, struck);
    /* the first promotions make a ledger: an eighth of their steps is in no other round */
    assert_true((taken - struck) * 4 <= taken + 3);
    close_campaign(&c);
}

#endif
