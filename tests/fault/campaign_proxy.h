/* A TCP proxy in front of PostgreSQL's socket, one for each worker of the campaign. Frozen, it takes what is
 * sent into the kernel's buffers, new connections too, and passes nothing on, without a word to either side:
 * what a cut cable, a hung router or a host without power looks like. */
#ifndef MLO_TESTS_CAMPAIGN_PROXY_H
#define MLO_TESTS_CAMPAIGN_PROXY_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/base.h"

enum { PROXY_PAIRS = 64, PROXY_LOOK_MS = 20 };

/* of all connections that there are: */
enum proxy_order {
    PROXY_PASS,
    PROXY_FREEZE, /* nothing passes, until another order */
    PROXY_MUTE,   /* nothing passes ever again; new ones are as good as any */
    PROXY_RESET,  /* the workers' side ends with RST, PostgreSQL's with FIN */
};

struct proxy {
    char to[104]; /* the socket's path */
    unsigned port;
    int listener;
    pthread_t thread;
    _Atomic int order, stop;
    struct {
        int side[2]; /* the worker's, PostgreSQL's; -1 */
        bool mute;
    } pairs[PROXY_PAIRS];
};

static inline void proxy_end(struct proxy *p, int i, bool reset)
{
    const struct linger now = {1, 0};
    if (reset)
        setsockopt(p->pairs[i].side[0], SOL_SOCKET, SO_LINGER, &now, sizeof now);
    for (int side = 0; side < 2; side++)
        if (p->pairs[i].side[side] >= 0)
            close(p->pairs[i].side[side]);
    p->pairs[i].side[0] = p->pairs[i].side[1] = -1;
    p->pairs[i].mute = false;
}

/* Connects to PostgreSQL; where that is away the worker's connection ends too. */
static inline void proxy_take(struct proxy *p)
{
    int from = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC), one = 1, i = 0;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (from < 0)
        return;
    while (i < PROXY_PAIRS && p->pairs[i].side[0] >= 0)
        i++;
    memcpy(a.sun_path, p->to, sizeof p->to);
    int to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (i == PROXY_PAIRS || to < 0 || connect(to, (struct sockaddr *)&a, sizeof a) != 0) {
        close(from);
        if (to >= 0)
            close(to);
        return;
    }
    setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    p->pairs[i].side[0] = from;
    p->pairs[i].side[1] = to;
    p->pairs[i].mute = false;
}

static inline bool proxy_move(int from, int to)
{
    char piece[65536];
    ssize_t n = read(from, piece, sizeof piece);
    for (ssize_t at = 0, put; at < n; at += put)
        if ((put = send(to, piece + at, (size_t)(n - at), MSG_NOSIGNAL)) < 0)
            return false;
    return n > 0;
}

static inline void proxy_obey(struct proxy *p, int order)
{
    for (int i = 0; i < PROXY_PAIRS; i++) {
        if (p->pairs[i].side[0] < 0)
            continue;
        if (order == PROXY_MUTE)
            p->pairs[i].mute = true;
        else if (order == PROXY_RESET)
            proxy_end(p, i, true);
    }
    if (order == PROXY_MUTE || order == PROXY_RESET)
        atomic_compare_exchange_strong(&p->order, &order, PROXY_PASS);
}

static inline void *proxy_main(void *arg)
{
    struct proxy *p = arg;
    struct pollfd wait[1 + 2 * PROXY_PAIRS];
    int pair[1 + 2 * PROXY_PAIRS], side[1 + 2 * PROXY_PAIRS];
    while (!atomic_load(&p->stop)) {
        int order = atomic_load(&p->order);
        nfds_t n = 1;
        proxy_obey(p, order);
        bool passes = order != PROXY_FREEZE;
        wait[0] = (struct pollfd){passes ? p->listener : -1, POLLIN, 0};
        for (int i = 0; passes && i < PROXY_PAIRS; i++)
            for (int s = 0; s < 2 && p->pairs[i].side[0] >= 0 && !p->pairs[i].mute; s++) {
                pair[n] = i, side[n] = s;
                wait[n++] = (struct pollfd){p->pairs[i].side[s], POLLIN, 0};
            }
        if (poll(wait, n, PROXY_LOOK_MS) <= 0 || atomic_load(&p->order) != order)
            continue; /* what was just frozen does not slip through */
        for (nfds_t k = 1; k < n; k++) {
            int from = p->pairs[pair[k]].side[side[k]], to = p->pairs[pair[k]].side[!side[k]];
            if (wait[k].revents && from >= 0 && !proxy_move(from, to))
                proxy_end(p, pair[k], false);
        }
        if (wait[0].revents)
            proxy_take(p);
    }
    for (int i = 0; i < PROXY_PAIRS; i++)
        proxy_end(p, i, false);
    return NULL;
}

/* `to`: PostgreSQL's socket; `from`: where it listens, INADDR_LOOPBACK. False: no port. */
static inline bool proxy_start(struct proxy *p, const char *to, in_addr_t from)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(from)};
    socklen_t size = sizeof a;
    memset(p, 0, sizeof *p);
    for (int i = 0; i < PROXY_PAIRS; i++)
        p->pairs[i].side[0] = p->pairs[i].side[1] = -1;
    if (strlen(to) >= sizeof p->to)
        return false;
    memcpy(p->to, to, strlen(to) + 1);
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->listener < 0 || bind(p->listener, (struct sockaddr *)&a, sizeof a) != 0 ||
        listen(p->listener, 64) != 0 || getsockname(p->listener, (struct sockaddr *)&a, &size) != 0)
        return false;
    p->port = ntohs(a.sin_port);
    return pthread_create(&p->thread, NULL, proxy_main, p) == 0;
}

static inline void proxy_stop(struct proxy *p)
{
    atomic_store(&p->stop, 1);
    pthread_join(p->thread, NULL);
    close(p->listener);
}

/* PostgreSQL's socket, from a conninfo. Yours. */
static inline char *pg_socket_of(const char *conninfo)
{
    char *problem = NULL;
    const char *host = "", *port = "5432";
    struct mlo_buf path = MLO_BUF_INIT;
    PQconninfoOption *options = PQconninfoParse(conninfo, &problem);
    for (PQconninfoOption *o = options; o && o->keyword; o++) {
        if (o->val && strcmp(o->keyword, "host") == 0)
            host = o->val;
        if (o->val && strcmp(o->keyword, "port") == 0)
            port = o->val;
    }
    mlo_buf_printf(&path, "%s/.s.PGSQL.%s", host, port);
    PQconninfoFree(options);
    return mlo_buf_take(&path);
}

#endif
