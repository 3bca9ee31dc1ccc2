/* Several `mlopt server` processes on the test's PostgreSQL and one store of files, clients that try nothing
 * twice, and a balancer before the servers that tries nothing twice either: what a server loses is seen. */
#ifndef MLO_TESTS_SERVERS_FIXTURE_H
#define MLO_TESTS_SERVERS_FIXTURE_H

#include "tests/pg_fixture.h"
#include "tests/wire_fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SERVERS_MAX = 3 };

/* --- the servers ----------------------------------------------------------------------------------- */

struct server {
    pid_t pid;
    uint16_t port; /* the same at each start */
    char *log;
};

struct servers {
    struct pg_fixture *pg;
    char *dir, *blobs, *database;
    struct server of[SERVERS_MAX];
    char token[MLO_ROLE_COUNT][MLO_TOKEN_TEXT_SIZE];
    int64_t project; /* "demo" */
};

static inline void server_log(const struct server *s)
{
    struct mlo_buf log = MLO_BUF_INIT;
    struct mlo_error err = {0};
    if (mlo_fs_read(s->log, 64 << 20, &log, &err) == MLO_OK)
        print_error("%s\n", mlo_buf_str(&log) + (log.len > 3000 ? log.len - 3000 : 0));
    mlo_buf_clear(&log);
}

/* Starts the n-th with further arguments; false when it ended instead of getting ready. */
static inline bool server_try_start(struct servers *all, int n, const char *const *args)
{
    struct server *s = &all->of[n];
    struct mlo_error err = {0};
    char database[512], listen[32], ledger[256], name[24], line[128] = "";
    const char *argv[16] = {getenv("MLOPT"), "server", "--blobs",  all->blobs,
                            "--listen",      listen,   "--ledger", ledger};
    const char *env[] = {database, NULL};
    int out[2];
    size_t used = 0;
    snprintf(name, sizeof name, "server-%d.log", n);
    if (!s->log)
        s->log = mlo_fs_join(all->dir, name, NULL);
    for (size_t i = 8; *args && i < 15; i++, args++)
        argv[i] = *args;
    snprintf(database, sizeof database, "MLOPT_DATABASE=%s", all->database);
    snprintf(listen, sizeof listen, "127.0.0.1:%u", s->port);
    snprintf(ledger, sizeof ledger, "%s/ledger-%d", all->dir, n);
    int log = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(log >= 0 && pipe2(out, O_CLOEXEC) == 0);
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    o.argv = argv, o.env = env, o.stdout_fd = out[1], o.stderr_fd = log;
    o.die_with_parent = true, o.death_signal = SIGKILL;
    assert_mlo_ok(mlo_process_start(&o, &s->pid, &err), &err);
    close(out[1]);
    close(log);
    while (used + 1 < sizeof line && read(out[0], line + used, 1) == 1 && line[used] != '\n')
        used++;
    close(out[0]);
    unsigned port;
    if (sscanf(line, "ready: http://127.0.0.1:%u", &port) == 1) {
        s->port = (uint16_t)port;
        return true;
    }
    assert_int_equal(waitpid(s->pid, NULL, 0), s->pid);
    s->pid = 0;
    return false;
}

static inline void server_start(struct servers *all, int n, const char *const *args)
{
    if (!server_try_start(all, n, args)) {
        server_log(&all->of[n]);
        fail_msg("server %d does not start", n);
    }
}

/* Waits for its end, which must be a good one. */
static inline void server_ended(struct servers *all, int n)
{
    struct server *s = &all->of[n];
    int how;
    assert_int_equal(waitpid(s->pid, &how, 0), s->pid);
    s->pid = 0;
    if (how != 0) {
        server_log(s);
        fail_msg("server %d ended with %d", n, how);
    }
}

/* Every server signs with one key, as an installation has it: the first makes it, the others get a copy. */
static inline void copy_key(struct servers *all, int from, int to)
{
    struct mlo_error err = {0};
    struct mlo_buf key = MLO_BUF_INIT;
    char a[256], b[256];
    snprintf(a, sizeof a, "%s/ledger-%d/ledger.key", all->dir, from);
    snprintf(b, sizeof b, "%s/ledger-%d", all->dir, to);
    assert_mlo_ok(mlo_fs_read(a, 1 << 16, &key, &err), &err);
    assert_mlo_ok(mlo_fs_mkdirs_private(b, &err), &err);
    snprintf(b, sizeof b, "%s/ledger-%d/ledger.key", all->dir, to);
    assert_mlo_ok(mlo_fs_write_atomic(b, key.data, key.len, &err), &err);
    assert_int_equal(chmod(b, 0600), 0);
    mlo_buf_clear(&key);
}

/* Starts `count` of them. */
static inline void servers_start(struct servers *all, int count, const char *const *args)
{
    for (int i = 0; i < count; i++) {
        if (i)
            copy_key(all, 0, i);
        server_start(all, i, args);
    }
}

static inline int servers_setup(void **state)
{
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_error err = {0};
    struct servers *all = calloc(1, sizeof *all);
    struct mlo_buf blobs = MLO_BUF_INIT;
    pg_fixture_setup((void **)&all->pg);
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlopt-servers-", &all->dir, &err), &err);
    mlo_buf_printf(&blobs, "file:%s/blobs", all->dir);
    all->blobs = mlo_buf_take(&blobs);
    all->database = mlo_embedded_conninfo(all->pg->pg, MLO_ROLE_SERVER, all->pg->database);
    for (int role = 0; role < MLO_ROLE_COUNT; role++)
        assert_mlo_ok(mlo_token_create(all->pg->conn, &system, mlo_role_name((enum mlo_role)role),
                                       (enum mlo_role)role, 0, 0, all->token[role], NULL, &err),
                      &err);
    assert_mlo_ok(mlo_project_create(all->pg->conn, &system, "demo", "", &all->project, &err), &err);
    *state = all;
    return 0;
}

static inline int servers_teardown(void **state)
{
    struct servers *all = *state;
    for (int i = 0; i < SERVERS_MAX; i++) {
        if (all->of[i].pid) {
            kill(all->of[i].pid, SIGKILL);
            waitpid(all->of[i].pid, NULL, 0);
        }
        free(all->of[i].log);
    }
    pg_fixture_teardown((void **)&all->pg);
    mlo_fs_remove_tree(all->dir);
    free(all->dir);
    free(all->blobs);
    free(all->database);
    free(all);
    return 0;
}

/* --- the balancer ---------------------------------------------------------------------------------- */

/* Shares out connections, as a Service of Kubernetes does: to those whose /readyz says 200, in turn. */
struct balancer {
    struct servers *all;
    int count, listener;
    uint16_t port;
    _Atomic bool stop;
    _Atomic bool ready[SERVERS_MAX];
    _Atomic long open[SERVERS_MAX], ever[SERVERS_MAX]; /* connections to it */
    _Atomic long refused, threads;
    pthread_t accepting, asking;
};

struct relay {
    struct balancer *b;
    int client, server, n;
};

static inline bool pass_on(int from, int to)
{
    char piece[16384];
    ssize_t n = recv(from, piece, sizeof piece, 0), m;
    for (ssize_t at = 0; at < n; at += m)
        if ((m = send(to, piece + at, (size_t)(n - at), MSG_NOSIGNAL)) <= 0)
            return false;
    return n > 0;
}

static inline void *relay_main(void *arg)
{
    struct relay *r = arg;
    struct pollfd fds[2] = {{.fd = r->client, .events = POLLIN}, {.fd = r->server, .events = POLLIN}};
    for (bool open = true; open && poll(fds, 2, -1) > 0;) {
        if (fds[0].revents)
            open = pass_on(r->client, r->server);
        if (open && fds[1].revents)
            open = pass_on(r->server, r->client);
    }
    close(r->client);
    close(r->server);
    atomic_fetch_sub(&r->b->open[r->n], 1);
    atomic_fetch_sub(&r->b->threads, 1);
    free(r);
    return NULL;
}

/* Counts a connection to it before looking: who waits for none of an unready one sees this one. */
static inline bool may_send(struct balancer *b, int n)
{
    atomic_fetch_add(&b->open[n], 1);
    if (atomic_load(&b->ready[n]))
        return true;
    atomic_fetch_sub(&b->open[n], 1);
    return false;
}

static inline void *balancer_accept(void *arg)
{
    struct balancer *b = arg;
    for (int next = 0;;) {
        int client = accept4(b->listener, NULL, NULL, SOCK_CLOEXEC), n = -1;
        if (client < 0 || atomic_load(&b->stop)) {
            if (client >= 0)
                close(client);
            return NULL;
        }
        /* late answers of /readyz, on a machine that does much else, are waited for */
        for (uint64_t until = mlo_clock_ns() + WIRE_PATIENCE_S * 1000000000ull;
             n < 0 && mlo_clock_ns() < until && !atomic_load(&b->stop);) {
            for (int i = 0; i < b->count && n < 0; i++, next++)
                if (may_send(b, next % b->count))
                    n = next % b->count;
            if (n < 0)
                mlo_clock_sleep_ms(5);
        }
        int server = n < 0 ? -1 : connect_to(b->all->of[n].port);
        struct relay *r = server < 0 ? NULL : calloc(1, sizeof *r);
        pthread_t thread;
        if (!r) {
            atomic_fetch_add(&b->refused, 1);
            if (n >= 0)
                atomic_fetch_sub(&b->open[n], 1);
            close(client);
            continue;
        }
        *r = (struct relay){b, client, server, n};
        atomic_fetch_add(&b->ever[n], 1);
        atomic_fetch_add(&b->threads, 1);
        if (pthread_create(&thread, NULL, relay_main, r) != 0)
            abort();
        pthread_detach(thread);
    }
}

static inline bool says_ready(uint16_t port)
{
    struct wire w = WIRE_INIT(port);
    struct reply a = {0};
    const char *wrong = wire_ask(&w, &a, "GET", "/readyz", NULL, NULL, 0);
    bool ready = !wrong && a.status == 200;
    reply_clear(&a);
    wire_close(&w);
    return ready;
}

/* It is not ready for that reason, and not merely late. */
static inline bool not_ready_since(uint16_t port, const char *why)
{
    struct wire w = WIRE_INIT(port);
    struct reply a = {0};
    const char *wrong = wire_ask(&w, &a, "GET", "/readyz", NULL, NULL, 0);
    bool so = !wrong && a.status == 503 && strstr(mlo_buf_str(&a.body), why);
    reply_clear(&a);
    wire_close(&w);
    return so;
}

static inline void *balancer_ask(void *arg)
{
    struct balancer *b = arg;
    for (; !atomic_load(&b->stop); mlo_clock_sleep_ms(20))
        for (int i = 0; i < b->count; i++)
            atomic_store(&b->ready[i], says_ready(b->all->of[i].port));
    return NULL;
}

static inline void balancer_start(struct balancer *b, struct servers *all, int count)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t size = sizeof here;
    *b = (struct balancer){.all = all, .count = count};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    b->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(b->listener, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(listen(b->listener, 128), 0);
    assert_int_equal(getsockname(b->listener, (struct sockaddr *)&here, &size), 0);
    b->port = ntohs(here.sin_port);
    for (int i = 0; i < count; i++)
        atomic_store(&b->ready[i], says_ready(all->of[i].port));
    assert_int_equal(pthread_create(&b->accepting, NULL, balancer_accept, b), 0);
    assert_int_equal(pthread_create(&b->asking, NULL, balancer_ask, b), 0);
}

/* After the clients: their connections end the relays. */
static inline void balancer_stop(struct balancer *b)
{
    atomic_store(&b->stop, true);
    shutdown(b->listener, SHUT_RDWR);
    pthread_join(b->accepting, NULL);
    pthread_join(b->asking, NULL);
    close(b->listener);
    while (atomic_load(&b->threads))
        mlo_clock_sleep_ms(5);
}

/* Waits until `what` holds, or fails. */
#define wait_for(what)                                                                                       \
    do {                                                                                                     \
        uint64_t until_ = mlo_clock_ns() + WIRE_PATIENCE_S * 1000000000ull;                                  \
        while (!(what)) {                                                                                    \
            if (mlo_clock_ns() > until_)                                                                     \
                fail_msg("not in %d s: %s", WIRE_PATIENCE_S, #what);                                         \
            mlo_clock_sleep_ms(10);                                                                          \
        }                                                                                                    \
    } while (0)

#endif
