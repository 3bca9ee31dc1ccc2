/* Loaded by LD_PRELOAD into the workers of fault.campaign, and by them into their steps. In a worker it knows
 * from the calls of libpq, of the file system and of wait at which state an attempt is (campaign.h), stops
 * where a fault is to strike, and has a clock on the wall that can be wrong. In a step it makes the step take
 * longer. */
#include <errno.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/fault/campaign.h"
#include "tests/fault/interpose.h"

enum { PARKED_MS = 60000, HALF_LOOKS = 2 };

static struct campaign_plan *plan;
static int me; /* the worker's number */

/* Of this thread: what was sent last, and where its attempt is. */
static _Thread_local const struct point *sent;
static _Thread_local bool has_child, delivers, commits, ends, inside;
static _Thread_local int looks;

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

__attribute__((constructor)) static void open_plan(void)
{
    const char *path = getenv("MLOPT_FAULT_PLAN"), *number = getenv("MLOPT_FAULT_WORKER"),
               *longer = getenv("LD_CAMPAIGN_STEP_MS");
    if (!path) { /* what a worker started: its environment is not passed on */
        if (longer)
            pause_ms(strtol(longer, NULL, 10));
        return;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    me = number ? (int)strtol(number, NULL, 10) : 0;
    if (at != MAP_FAILED)
        plan = at;
}

static void arrive(enum campaign_state state)
{
    int e = errno;
    if (!plan || !atomic_load(&plan->armed))
        return;
    atomic_fetch_add(&plan->passed[state], 1);
    for (int i = 0; i < plan->schedule.count; i++) {
        struct campaign_fault *f = &plan->schedule.faults[i];
        if (f->state != state || (f->worker >= 0 && f->worker != me) ||
            atomic_fetch_add(&f->seen, 1) != f->occurrence)
            continue;
        atomic_store(&f->met, me + 1);
        for (int ms = 0; ms < PARKED_MS && !atomic_load(&f->done); ms++)
            pause_ms(1);
    }
    errno = e;
}

/* --- libpq --------------------------------------------------------------------------------------------- */

enum { NONE = -1 };

/* What a statement's name says; `rows`: its answer counts when it has some. */
static const struct point {
    const char *name;
    int before, behind;
    bool rows;
} POINTS[] = {
    {"queue_claim", STATE_CLAIM, STATE_CLAIMED, true},
    {"queue_expired", NONE, STATE_REAP, true},
    {"queue_beat", STATE_BEAT, NONE, false},
    {"queue_settle", STATE_SETTLE, NONE, false},
    {"queue_retry", STATE_FAILING, NONE, false},
    {"queue_return", STATE_FAILING, NONE, false},
    {"queue_fail", STATE_FAILING, NONE, false},
    {"finish_complete", STATE_COMMIT, NONE, false}, /* completions in one call, within a transaction */
};

static void saw_statement(const char *name)
{
    sent = NULL;
    for (size_t i = 0; name && i < sizeof POINTS / sizeof *POINTS; i++) {
        const struct point *p = &POINTS[i];
        if (strcmp(name, p->name) != 0)
            continue;
        sent = p;
        if (p->before != NONE)
            arrive((enum campaign_state)p->before);
    }
    if (plan && name && strcmp(name, "worker_register") == 0)
        atomic_store(&plan->registered[me], 1);
}

static void saw_result(const PGresult *result)
{
    const struct point *p = sent;
    ExecStatusType status = PQresultStatus(result);
    if (result && ends && status == PGRES_COMMAND_OK) {
        ends = false;
        arrive(STATE_COMMITTED);
    }
    if (!result || !p || p->behind == NONE || (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK))
        return;
    sent = NULL;
    if (!p->rows || PQntuples(result) > 0)
        arrive((enum campaign_state)p->behind);
}

/* clang-format off */
#define CALL(type, name, parameters, arguments, before, behind)                                              \
    type name parameters;                                                                                    \
    type name parameters                                                                                     \
    {                                                                                                        \
        REAL(type, name, parameters)                                                                         \
        if (inside || !plan)                                                                                 \
            return call arguments;                                                                           \
        before;                                                                                              \
        inside = true;                                                                                       \
        type result = call arguments;                                                                        \
        inside = false;                                                                                      \
        behind;                                                                                              \
        return result;                                                                                       \
    }
CALL(int, PQsendQueryPrepared, (PGconn *pg, const char *name, int count, const char *const *values,
     const int *lengths, const int *formats, int result_format),
     (pg, name, count, values, lengths, formats, result_format), saw_statement(name), (void)0)
CALL(PGresult *, PQgetResult, (PGconn *pg), (pg), (void)0, saw_result(result))
CALL(int, PQsendQueryParams, (PGconn *pg, const char *text, int count, const Oid *types,
     const char *const *values, const int *lengths, const int *formats, int result_format),
     (pg, text, count, types, values, lengths, formats, result_format),
     commits = delivers && strcmp(text, "COMMIT") == 0, (void)0)
CALL(int, PQsendQuery, (PGconn *pg, const char *text), (pg, text),
     if ((ends = delivers && strcmp(text, "COMMIT") == 0)) arrive(STATE_COMMIT), (void)0)
CALL(int, PQpipelineSync, (PGconn *pg), (pg), if (commits) arrive(STATE_COMMIT), (void)0)
/* clang-format on */

static void saw_end(void)
{
    if (commits)
        arrive(STATE_COMMITTED);
    commits = false;
}

/* --- files and processes ------------------------------------------------------------------------------- */

static bool is_turnstile(int fd)
{
    char entry[40], path[512];
    snprintf(entry, sizeof entry, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(entry, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = '\0';
    return strstr(path, "/turnstile.lock") != NULL;
}

/* The machine's lock is taken once the inputs are there. */
static void saw_lock(int fd, int how)
{
    if ((how & LOCK_EX) && is_turnstile(fd)) {
        if (!has_child)
            arrive(STATE_FETCHED);
        has_child = true; /* from here on it waits for one only */
        delivers = false;
        looks = 0;
    }
}

static void saw_look(void)
{
    if (has_child && ++looks == 1)
        arrive(STATE_STARTED);
    else if (has_child && looks == HALF_LOOKS)
        arrive(STATE_HALF);
}

static void saw_wait(void)
{
    if (!has_child)
        return;
    has_child = false;
    delivers = true;
    arrive(STATE_DONE);
}

static void saw_rename(const char *to, enum campaign_state state)
{
    if (strstr(to, "/blobs/sha256/"))
        arrive(state);
}

/* clang-format off */
CALL(int, PQexitPipelineMode, (PGconn *pg), (pg), (void)0, saw_end())
CALL(int, flock, (int fd, int how), (fd, how), saw_lock(fd, how), (void)0)
CALL(int, waitid, (idtype_t type, id_t id, siginfo_t *info, int options), (type, id, info, options),
     saw_look(), (void)0)
CALL(pid_t, wait4, (pid_t pid, int *ended, int options, struct rusage *used), (pid, ended, options, used),
     (void)0, saw_wait())
CALL(int, rename, (const char *from, const char *to), (from, to), saw_rename(to, STATE_WRITTEN),
     saw_rename(to, STATE_STORED))
/* clang-format on */

/* --- the clock on the wall ------------------------------------------------------------------------------ */

static int64_t skew_ns(void)
{
    return plan ? atomic_load(&plan->skew_ns[me]) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    REAL(int, clock_gettime, (clockid_t, struct timespec *))
    int failed = call(clock, t);
    int64_t skew = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ? skew_ns() : 0;
    if (failed || !skew)
        return failed;
    int64_t ns = t->tv_nsec + skew % 1000000000;
    t->tv_sec += skew / 1000000000 + (ns >= 1000000000) - (ns < 0);
    t->tv_nsec = ns + (ns < 0 ? 1000000000 : 0) - (ns >= 1000000000 ? 1000000000 : 0);
    return 0;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    *tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}
