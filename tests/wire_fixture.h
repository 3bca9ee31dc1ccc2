/* A client that keeps its connection and tries nothing twice: bytes as they are given, answers as they come.
 */
#ifndef MLO_TESTS_WIRE_FIXTURE_H
#define MLO_TESTS_WIRE_FIXTURE_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/reply.h"

enum { WIRE_PATIENCE_S = REPLY_PATIENCE_S };

/* A connection that is kept, as HTTP/1.1 has it. A request is sent once. */
struct wire {
    int fd; /* -1: none */
    uint16_t port;
};
#define WIRE_INIT(port_)                                                                                     \
    {                                                                                                        \
        .fd = -1, .port = (port_)                                                                            \
    }

static inline void wire_close(struct wire *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

static inline int connect_to(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval patience = {.tv_sec = WIRE_PATIENCE_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

/* The value of a header, without its line's end, into `out`. */
static inline bool wire_header(const struct reply *a, const char *name, char *out, size_t size)
{
    char mark[48];
    snprintf(mark, sizeof mark, "\r\n%s: ", name);
    const char *at = strcasestr(mlo_buf_str(&a->headers), mark);
    if (!at)
        return false;
    at += strlen(mark);
    snprintf(out, size, "%.*s", (int)strcspn(at, "\r"), at);
    return true;
}

static inline const char *wire_send(struct wire *w, const char *bytes, size_t size)
{
    if (w->fd < 0 && (w->fd = connect_to(w->port)) < 0)
        return "no connection";
    for (ssize_t n; size; bytes += n, size -= (size_t)n)
        if ((n = send(w->fd, bytes, size, MSG_NOSIGNAL)) <= 0)
            return "the connection broke while a request was sent";
    return NULL;
}

/* The answer to what was sent. NULL, or what went wrong. */
static inline const char *wire_receive(struct wire *w, struct reply *a)
{
    char piece[8192], text[32];
    int64_t length = -1;
    const char *end;
    reply_clear(a);
    while (!(end = strstr(mlo_buf_str(&a->headers), "\r\n\r\n"))) {
        ssize_t n = recv(w->fd, piece, sizeof piece, 0);
        if (n <= 0)
            return a->headers.len ? "the answer's headers ended early" : "no answer";
        mlo_buf_append(&a->headers, piece, (size_t)n);
    }
    size_t head = (size_t)(end - a->headers.data) + 4;
    mlo_buf_append(&a->body, a->headers.data + head, a->headers.len - head);
    a->headers.data[head] = '\0';
    a->headers.len = head;
    if (sscanf(a->headers.data, "HTTP/1.1 %ld", &a->status) != 1)
        return "no status";
    a->closes = wire_header(a, "Connection", text, sizeof text) && strcasecmp(text, "close") == 0;
    if (wire_header(a, "Content-Length", text, sizeof text) && !mlo_str_to_i64(text, &length))
        return "no length";
    if (length < 0 && a->status != 204)
        return "an answer without a length";
    while (length > 0 && a->body.len < (size_t)length) {
        ssize_t n = recv(w->fd, piece, sizeof piece, 0);
        if (n <= 0)
            return "the answer's body ended early";
        mlo_buf_append(&a->body, piece, (size_t)n);
    }
    if (a->closes)
        wire_close(w);
    reply_parse(a);
    return NULL;
}

/* `header` is NULL or whole lines; `body` NULL or bytes. */
static inline const char *wire_ask(struct wire *w, struct reply *a, const char *method, const char *path,
                                   const char *header, const char *body, size_t size)
{
    struct mlo_buf request = MLO_BUF_INIT;
    mlo_buf_printf(&request, "%s %s HTTP/1.1\r\nHost: mlopt\r\n%s", method, path, header ? header : "");
    if (body)
        mlo_buf_printf(&request, "Content-Length: %zu\r\n", size);
    mlo_buf_append(&request, "\r\n", 2);
    if (body)
        mlo_buf_append(&request, body, size);
    const char *wrong = wire_send(w, request.data, request.len);
    mlo_buf_clear(&request);
    return wrong ? wrong : wire_receive(w, a);
}

#endif
