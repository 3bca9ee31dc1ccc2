/* Loaded into `mlopt server` by LD_PRELOAD: stands before and behind every call that writes, and there does
 * what the plan says (kill_points.h). Calls of libgit2 come by here as well. */
#include <errno.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fault/interpose.h"
#include "tests/fault/kill_points.h"

static struct fault_plan *plan;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool inside;
static _Thread_local char statement[48]; /* the last one of this thread */

__attribute__((constructor)) static void open_plan(void)
{
    const char *path = getenv("MLOPT_FAULT_PLAN");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (at != MAP_FAILED)
        plan = at;
}

static void cut(void)
{
    PGconn *pg = PQconnectdb(plan->admin);
    PQclear(PQexec(pg, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                       "WHERE application_name = 'mlopt server'"));
    PQfinish(pg);
}

static void end_database(void)
{
    kill(plan->database, SIGQUIT);
    for (int i = 0; i < 3000 && PQping(plan->admin) == PQPING_OK; i++)
        usleep(10000);
}

static void strike(void)
{
    switch (plan->kind) {
    case FAULT_KILL:
        kill(getpid(), SIGKILL);
        break;
    case FAULT_CUT:
        cut();
        break;
    case FAULT_DATABASE:
        end_database();
        break;
    case FAULT_NONE:
    default:
        break;
    }
}

/* Counts it; whether the fault belongs here. */
static bool counted(const char *text)
{
    bool here = false;
    pthread_mutex_lock(&lock);
    size_t n = atomic_load(&plan->count), i = 0;
    while (i < n && strcmp(plan->steps[i].text, text) != 0)
        i++;
    if (i == n && n < FAULT_STEPS_MAX) {
        snprintf(plan->steps[i].text, FAULT_STEP_TEXT, "%s", text);
        plan->steps[i].count = 0;
        atomic_store(&plan->count, n + 1);
    }
    if (i < FAULT_STEPS_MAX) {
        long occurrence = plan->steps[i].count++;
        here = plan->kind != FAULT_NONE && !atomic_load(&plan->struck) && occurrence == plan->occurrence &&
               strcmp(plan->at, text) == 0;
    }
    if (here)
        atomic_store(&plan->struck, 1);
    pthread_mutex_unlock(&lock);
    return here;
}

/* `what` NULL: not one of ours. */
static void step(const char *side, const char *call, const char *what)
{
    char text[FAULT_STEP_TEXT];
    int e = errno;
    if (!what || !plan || inside)
        return;
    inside = true;
    atomic_fetch_add(&plan->going, 1);
    if (atomic_load(&plan->armed)) {
        snprintf(text, sizeof text, "%s %s %s", side, call, what);
        if (counted(text))
            strike();
    }
    atomic_fetch_sub(&plan->going, 1);
    inside = false;
    errno = e;
}

/* --- where a file lies ----------------------------------------------------------------------------- */

static const struct {
    const char *part, *name;
} PLACES[] = {
    {"/blobs/incoming", "incoming"},     {"/blobs/uploads", "upload"}, {"/blobs/sha256", "blob"},
    {"/blobs/quarantine", "quarantine"}, {"/ledger", "ledger"},
};

static const char *place(const char *path)
{
    for (size_t i = 0; path && i < sizeof PLACES / sizeof *PLACES; i++)
        if (strstr(path, PLACES[i].part))
            return PLACES[i].name;
    return NULL;
}

static const char *place_of(int fd)
{
    char entry[40], path[512];
    if (!plan || inside || !atomic_load(&plan->armed))
        return NULL;
    int e = errno;
    snprintf(entry, sizeof entry, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(entry, path, sizeof path - 1);
    errno = e;
    if (n < 0)
        return NULL;
    path[n] = '\0';
    return place(path);
}

/* --- the calls --------------------------------------------------------------------------------------- */

/* clang-format off */
#define POINT(type, name, what, parameters, arguments)                                                       \
    type name parameters;                                                                                    \
    type name parameters                                                                                     \
    {                                                                                                        \
        REAL(type, name, parameters)                                                                         \
        const char *of = what;                                                                               \
        step("before", #name, of);                                                                           \
        type result = call arguments;                                                                        \
        step("behind", #name, of);                                                                           \
        return result;                                                                                       \
    }
POINT(int, rename, place(from), (const char *from, const char *to), (from, to))
POINT(int, unlink, place(path), (const char *path), (path))
POINT(int, link, place(to), (const char *from, const char *to), (from, to))
POINT(int, mkdir, place(path), (const char *path, mode_t mode), (path, mode))
POINT(int, fsync, place_of(fd), (int fd), (fd))
POINT(int, fdatasync, place_of(fd), (int fd), (fd))
POINT(int, ftruncate, place_of(fd), (int fd, off_t size), (fd, size))
POINT(ssize_t, write, place_of(fd), (int fd, const void *bytes, size_t size), (fd, bytes, size))
/* clang-format on */

static const char *named(const char *name)
{
    snprintf(statement, sizeof statement, "%s", name);
    return statement;
}

/* BEGIN and COMMIT are of the statement before them. */
static const char *plain(const char *text, char out[FAULT_STEP_TEXT])
{
    snprintf(out, FAULT_STEP_TEXT, "%.12s after %s", text, statement);
    return out;
}

/* clang-format off */
POINT(int, PQsendQuery, plain(text, (char[FAULT_STEP_TEXT]){0}), (PGconn *pg, const char *text), (pg, text))
POINT(PGresult *, PQgetResult, plain("answer", (char[FAULT_STEP_TEXT]){0}), (PGconn *pg), (pg))
POINT(int, PQsendQueryPrepared, named(name), (PGconn *pg, const char *name, int count,
      const char *const *values, const int *lengths, const int *formats, int result_format),
      (pg, name, count, values, lengths, formats, result_format))
POINT(int, PQpipelineSync, plain("sync", (char[FAULT_STEP_TEXT]){0}), (PGconn *pg), (pg))
/* clang-format on */
