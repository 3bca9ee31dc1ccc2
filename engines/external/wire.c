/* Messages of the adapter protocol over a socket, with deadlines. */
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engines/external/external_impl.h"

/* A header holds names, shapes and at most some ten thousand samples. */
enum { HEADER_BYTES_MAX = 64 << 20 };
static const uint64_t PAYLOAD_BYTES_MAX = (uint64_t)16 << 30;

/* Waits until the socket is ready. */
static enum mlo_status ready(int fd, short events, uint64_t deadline_ns, struct mlo_error *err)
{
    for (;;) {
        uint64_t now = mlo_clock_ns();
        if (now >= deadline_ns)
            return mlo_error_set(err, MLO_ETIMEOUT, "the adapter did not answer in time");
        struct pollfd p = {fd, events, 0};
        int n = poll(&p, 1, (int)MLO_MIN((deadline_ns - now) / 1000000 + 1, (uint64_t)INT_MAX));
        if (n > 0)
            return MLO_OK;
        if (n < 0 && errno != EINTR)
            return mlo_error_errno(err, errno, "cannot wait for the adapter");
    }
}

static enum mlo_status send_all(int fd, const void *data, size_t size, uint64_t deadline_ns,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *at = data;
    while (size > 0) {
        ssize_t n = send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            size -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            MLO_TRY(ready(fd, POLLOUT, deadline_ns, err));
        } else if (n == 0 || errno != EINTR) {
            return mlo_error_set(err, MLO_EIO, "the adapter is gone");
        }
    }
out:
    return status;
}

static enum mlo_status receive_all(int fd, void *data, size_t size, uint64_t deadline_ns,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *at = data;
    while (size > 0) {
        ssize_t n = recv(fd, at, size, MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            size -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            MLO_TRY(ready(fd, POLLIN, deadline_ns, err));
        } else if (n == 0 || errno != EINTR) {
            return mlo_error_set(err, MLO_EIO, "the adapter is gone");
        }
    }
out:
    return status;
}

enum mlo_status ext_send(int fd, const json_t *header, const struct ext_bytes *parts, size_t part_count,
                         uint64_t deadline_ns, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *text = json_dumps(header, JSON_COMPACT);
    if (!text)
        return mlo_error_nomem(err);
    size_t size = strlen(text);
    uint32_t length = htole32((uint32_t)size);
    if (size > HEADER_BYTES_MAX) {
        status = mlo_error_set(err, MLO_ETOOBIG, "a message to the adapter is too long");
        goto out;
    }
    MLO_TRY(send_all(fd, &length, sizeof length, deadline_ns, err));
    MLO_TRY(send_all(fd, text, size, deadline_ns, err));
    for (size_t i = 0; i < part_count; i++)
        MLO_TRY(send_all(fd, parts[i].data, parts[i].size, deadline_ns, err));
out:
    free(text);
    return status;
}

enum mlo_status ext_receive(int fd, uint64_t deadline_ns, struct ext_reply *reply, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    uint32_t length;
    char *text = NULL;
    *reply = (struct ext_reply){0};
    MLO_TRY(receive_all(fd, &length, sizeof length, deadline_ns, err));
    size_t size = le32toh(length);
    if (size < 2 || size > HEADER_BYTES_MAX) {
        status = mlo_error_set(err, MLO_EFORMAT, "the adapter sent a header of %zu bytes", size);
        goto out;
    }
    if (!(text = malloc(size))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(receive_all(fd, text, size, deadline_ns, err));
    MLO_TRY(mlo_json_parse(text, size, "the adapter's reply", &reply->header, err));
    int64_t none = 0, payload = 0;
    MLO_TRY(mlo_json_get_i64(reply->header, "payload_bytes", &none, &payload, err));
    if (payload < 0 || (uint64_t)payload > PAYLOAD_BYTES_MAX) {
        status = mlo_error_set(err, MLO_EFORMAT, "the adapter announced %lld bytes", (long long)payload);
        goto out;
    }
    reply->payload_bytes = (size_t)payload;
    if (payload && posix_memalign((void **)&reply->payload, 64, reply->payload_bytes) != 0) {
        reply->payload = NULL;
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(receive_all(fd, reply->payload, reply->payload_bytes, deadline_ns, err));
out:
    free(text);
    if (status != MLO_OK)
        ext_reply_clear(reply);
    return status;
}

void ext_reply_clear(struct ext_reply *reply)
{
    json_decref(reply->header);
    free(reply->payload);
    *reply = (struct ext_reply){0};
}
