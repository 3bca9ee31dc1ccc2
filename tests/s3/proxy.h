/* A TCP proxy in front of the S3 server that spoils what passes, as told: each of its faults happens `times`
 * times, then it is a plain proxy. One at a time. */
#ifndef MLO_TESTS_S3_PROXY_H
#define MLO_TESTS_S3_PROXY_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "tests/s3_fixture.h"

enum s3_fault {
    S3_FAULT_NONE,
    S3_FAULT_CUT_ANSWER,  /* after `after` bytes the connection is gone */
    S3_FAULT_CUT_REQUEST, /* the same, of the request */
    S3_FAULT_FLIP_ANSWER, /* one bit of byte `after` */
    S3_FAULT_FLIP_REQUEST,
    S3_FAULT_ETAG,        /* the first digit of an ETag header; the first `after` ones are let through */
    S3_FAULT_MUTE,        /* the connection is taken, and nothing comes */
    S3_FAULT_BUSY,        /* 503 SlowDown, at once */
    S3_FAULT_BUSY_LATE,   /* the same after 1.5 s */
    S3_FAULT_REFUSED,     /* the same when `after` bytes have come */
    S3_FAULT_TAKEN,       /* 200 then, and nothing is passed on */
    S3_FAULT_LOST_ANSWER, /* the request arrives, its answer does not */
    S3_FAULT_BLIND,       /* 200 to bytes that are not those that were signed, when asked so */
};

static struct {
    unsigned port, to;
    char endpoint[64];
    int listener;
    enum s3_fault fault;
    size_t after;
    atomic_int times, connections, etags;
    atomic_int authorized; /* requests with keys or a token in their headers */
    atomic_int puts, completes;
    char seldom[32];    /* text of a request: before it goes on, once, `then` is called */
    void (*then)(void); /* ("": never) */
} s3_proxy;

static inline int s3_proxy_connect(unsigned port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* Takes the fault for this connection, when there is one left. */
static inline bool s3_proxy_strikes(enum s3_fault fault)
{
    if (s3_proxy.fault != fault)
        return false;
    int left = atomic_load(&s3_proxy.times);
    while (left > 0 && !atomic_compare_exchange_weak(&s3_proxy.times, &left, left - 1)) {
    }
    return left > 0;
}

/* One direction's next bytes; false: the connection is to end. */
static inline bool s3_proxy_pass(int from, int to, bool answer, size_t *seen)
{
    static const char busy[] = "HTTP/1.1 503 Slow Down\r\nContent-Length: 107\r\nConnection: close\r\n\r\n"
                               "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code>"
                               "<Message>Please reduce your rate.</Message></Error>       ";
    char piece[65536];
    ssize_t n = read(from, piece, sizeof piece);
    if (n <= 0)
        return false;
    size_t size = (size_t)n, begin = *seen;
    *seen += size;
    if (!answer && memmem(piece, size, "\r\nAuthorization:", 16))
        atomic_fetch_add(&s3_proxy.authorized, 1);
    if (!answer && size > 5 && memcmp(piece, "PUT /", 5) == 0)
        atomic_fetch_add(&s3_proxy.puts, 1);
    if (!answer && memmem(piece, size, "<CompleteMultipartUpload", 24))
        atomic_fetch_add(&s3_proxy.completes, 1);
    if (!answer && s3_proxy.seldom[0] && memmem(piece, size, s3_proxy.seldom, strlen(s3_proxy.seldom))) {
        s3_proxy.seldom[0] = '\0';
        s3_proxy.then();
    }
    static const char taken[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    if (!answer && memmem(piece, size, "is this looked at?", 18) && s3_proxy_strikes(S3_FAULT_BLIND)) {
        (void)!write(from, taken, sizeof taken - 1);
        return false;
    }
    bool inside = s3_proxy.after >= begin && s3_proxy.after < *seen;
    bool late = false, head = !answer && memmem(piece, MLO_MIN(size, (size_t)1024), " HTTP/1.1\r\n", 11);
    if (head && (s3_proxy_strikes(S3_FAULT_BUSY) || (late = s3_proxy_strikes(S3_FAULT_BUSY_LATE)))) {
        mlo_clock_sleep_ms(late ? 1500 : 0);
        (void)!write(from, busy, sizeof busy - 1);
        return false;
    }
    if (!answer && inside && s3_proxy_strikes(S3_FAULT_REFUSED)) {
        (void)!write(from, busy, sizeof busy - 1);
        return false;
    }
    if (!answer && inside && s3_proxy_strikes(S3_FAULT_TAKEN)) {
        (void)!write(from, taken, sizeof taken - 1);
        return false;
    }
    if (inside && s3_proxy_strikes(answer ? S3_FAULT_CUT_ANSWER : S3_FAULT_CUT_REQUEST)) {
        (void)!mlo_fs_write_full(to, piece, s3_proxy.after - begin);
        return false;
    }
    if (inside && s3_proxy_strikes(answer ? S3_FAULT_FLIP_ANSWER : S3_FAULT_FLIP_REQUEST))
        piece[s3_proxy.after - begin] ^= 1;
    if (answer && s3_proxy_strikes(S3_FAULT_LOST_ANSWER))
        return false;
    char *etag = answer && s3_proxy.fault == S3_FAULT_ETAG ? memmem(piece, size, "ETag: \"", 7) : NULL;
    if (etag && atomic_fetch_add(&s3_proxy.etags, 1) >= (int)s3_proxy.after &&
        s3_proxy_strikes(S3_FAULT_ETAG))
        etag[7] = etag[7] == 'a' ? 'b' : 'a';
    return mlo_fs_write_full(to, piece, size);
}

static inline void *s3_proxy_serve(void *arg)
{
    int client = (int)(intptr_t)arg, server = -1;
    size_t up = 0, down = 0;
    bool mute = s3_proxy_strikes(S3_FAULT_MUTE);
    if (!mute)
        server = s3_proxy_connect(s3_proxy.to);
    for (bool on = server >= 0 || mute; on;) {
        struct pollfd p[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
        if (poll(p, 2, -1) < 0)
            break;
        if (mute) {
            char ignored[4096];
            on = read(client, ignored, sizeof ignored) > 0;
            continue;
        }
        if (p[0].revents)
            on = s3_proxy_pass(client, server, false, &up);
        if (on && p[1].revents)
            on = s3_proxy_pass(server, client, true, &down);
    }
    close(client);
    if (server >= 0)
        close(server);
    return NULL;
}

static inline void *s3_proxy_accept(void *arg)
{
    MLO_UNUSED(arg);
    for (;;) {
        int client = accept4(s3_proxy.listener, NULL, NULL, SOCK_CLOEXEC), one = 1;
        pthread_t thread;
        if (client < 0)
            return NULL;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        atomic_fetch_add(&s3_proxy.connections, 1);
        if (pthread_create(&thread, NULL, s3_proxy_serve, (void *)(intptr_t)client) == 0)
            pthread_detach(thread);
        else
            close(client);
    }
}

/* Starts it; it ends with the program. */
static inline void s3_proxy_start(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t size = sizeof a;
    pthread_t thread;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s3_proxy.to = s3_server.port;
    s3_proxy.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(s3_proxy.listener, (struct sockaddr *)&a, sizeof a) || listen(s3_proxy.listener, 64) ||
        getsockname(s3_proxy.listener, (struct sockaddr *)&a, &size) ||
        pthread_create(&thread, NULL, s3_proxy_accept, NULL)) {
        fprintf(stderr, "no proxy\n");
        exit(1);
    }
    pthread_detach(thread);
    s3_proxy.port = ntohs(a.sin_port);
    snprintf(s3_proxy.endpoint, sizeof s3_proxy.endpoint, "http://127.0.0.1:%u", s3_proxy.port);
}

static inline void s3_proxy_set(enum s3_fault fault, int times, size_t after)
{
    atomic_store(&s3_proxy.times, 0);
    s3_proxy.fault = fault;
    s3_proxy.after = after;
    atomic_store(&s3_proxy.etags, 0);
    atomic_store(&s3_proxy.times, times);
}

/* All of the faults that were ordered have happened. */
static inline void s3_proxy_assert_struck(void)
{
    assert_int_equal(atomic_load(&s3_proxy.times), 0);
    s3_proxy_set(S3_FAULT_NONE, 0, 0);
}

#endif
