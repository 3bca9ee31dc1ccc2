/* Readiness: whether requests may be sent here. The look at the database and the blob store may hang as long
 * as they do; who asks waits for a bounded time. What is wrong goes to the log; who asks, and may be anybody,
 * hears which check it is and the kind of failure. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "api/http/http_impl.h"

/* HANGS_MS: a look that takes so long is cut short, and the next one begins with a new connection. */
enum { FRESH_MS = 1000, HANGS_MS = 5000, BLOBS_MS = 1500 };

typedef enum mlo_status check_fn(struct mlo_readiness *r, struct mlo_error *err);

static check_fn check_database, check_schema, check_blobs;

static const struct {
    const char *name;
    check_fn *check;
} CHECKS[] = {{"database", check_database}, {"schema", check_schema}, {"blobs", check_blobs}};
enum { CHECK_COUNT = MLO_COUNT(CHECKS) };

struct outcome {
    enum mlo_status status;
    uint64_t ns;
};

struct mlo_readiness {
    struct mlo_http *http;
    struct mlo_db *db; /* a connection of its own: requests that use all others are no sign of its absence */
    struct mlo_db_conn *conn; /* of the thread alone, while it looks */
    pthread_t thread;
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t asked, answered;
    bool wanted, stopping;
    int socket;                         /* a copy of the connection's in use, or -1 */
    uint64_t began_ns;                  /* the look that is made now */
    uint64_t looks;                     /* done so far */
    uint64_t done_ns;                   /* the last one */
    size_t at;                          /* the check that is made now; CHECK_COUNT: none */
    struct outcome last[CHECK_COUNT];   /* of the last look */
    enum mlo_status known[CHECK_COUNT]; /* of the thread alone: what the log was told */
};

/* Whatever waits for the database now ends with an error. Under r->lock, which the copy is closed under: the
 * descriptor cannot be somebody else's by now. */
static void cut(struct mlo_readiness *r)
{
    if (r->socket >= 0)
        shutdown(r->socket, SHUT_RDWR);
}

static void set_socket(struct mlo_readiness *r, int fd)
{
    pthread_mutex_lock(&r->lock);
    if (r->socket >= 0)
        close(r->socket);
    r->socket = fd;
    if (r->stopping)
        cut(r);
    pthread_mutex_unlock(&r->lock);
}

static enum mlo_status check_database(struct mlo_readiness *r, struct mlo_error *err)
{
    enum mlo_status status = mlo_db_acquire(r->db, &r->conn, err); /* connects within two seconds */
    if (status == MLO_OK) {
        set_socket(r, fcntl(PQsocket(mlo_db_pg(r->conn)), F_DUPFD_CLOEXEC, 0));
        status = mlo_db_exec_text(r->conn, "select 1", err);
    }
    return status;
}

static enum mlo_status check_schema(struct mlo_readiness *r, struct mlo_error *err)
{
    return mlo_migrate_runs(r->conn, err);
}

static enum mlo_status check_blobs(struct mlo_readiness *r, struct mlo_error *err)
{
    return mlo_blob_store_ping(r->http->options.blobs, BLOBS_MS, err);
}

/* A change is told once. */
static void tell(struct mlo_readiness *r, size_t i, enum mlo_status status, const struct mlo_error *error)
{
    char what[64];
    if (r->known[i] == status)
        return;
    r->known[i] = status;
    snprintf(what, sizeof what, "readiness: %s", CHECKS[i].name);
    if (status == MLO_OK)
        mlo_log(MLO_LOG_INFO, what, "state", "ok", NULL);
    else
        mlo_log_error(MLO_LOG_WARN, what, error);
}

static void look(struct mlo_readiness *r, struct outcome *now)
{
    for (size_t i = 0; i < CHECK_COUNT; i++) {
        struct mlo_error error = {0};
        uint64_t began = mlo_clock_ns();
        pthread_mutex_lock(&r->lock);
        r->at = i;
        pthread_mutex_unlock(&r->lock);
        /* the schema is in the database: one wait for it is enough */
        now[i].status = i == 1 && now[0].status != MLO_OK ? now[0].status : CHECKS[i].check(r, &error);
        now[i].ns = mlo_clock_ns() - began;
        if (i != 1 || now[0].status == MLO_OK)
            tell(r, i, now[i].status, &error);
        if (i == 1) { /* the database has been looked at */
            set_socket(r, -1);
            mlo_db_release(r->conn);
            r->conn = NULL;
        }
    }
}

static void *run(void *arg)
{
    struct mlo_readiness *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stopping) {
        struct outcome now[CHECK_COUNT];
        if (!r->wanted) {
            pthread_cond_wait(&r->asked, &r->lock);
            continue;
        }
        r->wanted = false;
        r->began_ns = mlo_clock_ns();
        pthread_mutex_unlock(&r->lock);
        look(r, now);
        pthread_mutex_lock(&r->lock);
        memcpy(r->last, now, sizeof now);
        r->at = CHECK_COUNT;
        r->done_ns = mlo_clock_ns();
        r->looks++;
        pthread_cond_broadcast(&r->answered);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void clear(struct mlo_readiness *r)
{
    mlo_db_close(r->db);
    pthread_cond_destroy(&r->asked);
    pthread_cond_destroy(&r->answered);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

enum mlo_status mlo_readiness_start(struct mlo_http *http, struct mlo_readiness **out, struct mlo_error *err)
{
    const struct mlo_db_options options = {.application = "mlopt readiness",
                                           .max_connections = 1,
                                           .wait_ms = 1000,
                                           .statement_timeout_ms = 2000,
                                           .connect_timeout_s = 2};
    pthread_condattr_t monotonic;
    struct mlo_readiness *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_db_open_like(http->options.db, &options, &r->db, err);
    if (status != MLO_OK) {
        free(r);
        return status;
    }
    r->http = http;
    r->at = CHECK_COUNT;
    r->socket = -1;
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->asked, NULL);
    pthread_cond_init(&r->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&r->thread, NULL, run, r) != 0) {
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "cannot start the thread that looks at readiness");
        clear(r);
        return status;
    }
    *out = r;
    return MLO_OK;
}

void mlo_readiness_stop(struct mlo_readiness *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    cut(r); /* it does not wait for a database that does not answer */
    pthread_cond_signal(&r->asked);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    clear(r);
}

/* Waits for a look that is not older than a second. False: none came in time; *at is what hangs. */
static bool await(struct mlo_readiness *r, struct outcome *out, size_t *at)
{
    struct timespec until;
    int rc = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += MLO_READY_WITHIN_MS / 1000;
    pthread_mutex_lock(&r->lock);
    uint64_t looks = r->looks;
    bool fresh = looks && mlo_clock_ns() - r->done_ns < FRESH_MS * 1000000ull;
    if (!fresh && r->at == CHECK_COUNT) {
        r->wanted = true;
        pthread_cond_signal(&r->asked);
    } else if (!fresh && mlo_clock_ns() - r->began_ns > HANGS_MS * 1000000ull) {
        cut(r);
    }
    while (!fresh && r->looks == looks && rc == 0)
        rc = pthread_cond_timedwait(&r->answered, &r->lock, &until);
    fresh = fresh || r->looks != looks;
    memcpy(out, r->last, sizeof r->last);
    *at = r->at;
    pthread_mutex_unlock(&r->lock);
    return fresh;
}

static json_t *check_json(const char *name, enum mlo_status status, uint64_t ns)
{
    json_t *one =
        json_pack("{s:s, s:b, s:f}", "name", name, "ok", status == MLO_OK, "ms", (double)(ns / 10000) / 100);
    if (one && status != MLO_OK)
        json_object_set_new(one, "code", json_string(mlo_status_info(status)->code));
    return one;
}

json_t *mlo_readiness_json(struct mlo_http *http, bool *ready, char why[160])
{
    struct outcome now[CHECK_COUNT] = {0};
    size_t at, failed = CHECK_COUNT;
    bool draining = atomic_load(&http->draining), in_time = draining || await(http->readiness, now, &at);
    json_t *checks = json_array();
    for (size_t i = 0; !draining && i < CHECK_COUNT; i++) {
        if (!in_time && i == (at < CHECK_COUNT ? at : 0))
            now[i] = (struct outcome){MLO_ETIMEOUT, MLO_READY_WITHIN_MS * 1000000ull};
        if (now[i].status != MLO_OK && failed == CHECK_COUNT)
            failed = i;
        json_array_append_new(checks, check_json(CHECKS[i].name, now[i].status, now[i].ns));
    }
    json_array_append_new(checks, check_json("draining", draining ? MLO_EUNAVAILABLE : MLO_OK, 0));
    *ready = !draining && in_time && failed == CHECK_COUNT;
    if (draining)
        snprintf(why, 160, "the server is about to stop");
    else if (!*ready)
        snprintf(why, 160, "%s: %s (the server's log says more)", CHECKS[failed].name,
                 mlo_status_info(now[failed].status)->text);
    return json_pack("{s:s, s:o}", "status", *ready ? "ready" : "not ready", "checks", checks);
}
