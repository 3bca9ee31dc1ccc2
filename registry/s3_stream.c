/* An object as one request whose bytes come while it is under way. */
#include <stdlib.h>
#include <string.h>

#include "registry/s3_impl.h"

#define ANSWER_STALLS 4u /* it may work on an object in silence for longer than it may stop to take bytes */
#define WANTED_MS 10000u /* a server that does not say that it wants the bytes gets them then */

struct mlo_s3_stream {
    struct mlo_s3 *s3;
    char *key;
    struct mlo_digest digest;
    struct mlo_s3_call call;
    struct mlo_s3_transfer transfer;
    CURLM *multi;
    const unsigned char *bytes; /* the caller's, that are to go now */
    size_t size;
    bool wanted; /* the server has seen the head, and wants the bytes */
    bool ended;
    CURLcode code; /* how it ended */
};

static size_t on_send(char *to, size_t size, size_t count, void *arg)
{
    struct mlo_s3_stream *s = arg;
    size_t n = MLO_MIN(size * count, s->size);
    s->wanted = true;
    if (n == 0)
        return s->call.sent < s->call.body_size ? CURL_READFUNC_PAUSE : 0;
    memcpy(to, s->bytes, n);
    s->bytes += n;
    s->size -= n;
    s->call.sent += n;
    return n;
}

/* What was sent is nowhere any more. */
static int on_seek(void *arg, curl_off_t offset, int origin)
{
    const struct mlo_s3_stream *s = arg;
    return origin == SEEK_SET && offset == 0 && s->call.sent == 0 ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
}

static bool is_wanted(const struct mlo_s3_stream *s)
{
    return s->wanted;
}

static bool is_sent(const struct mlo_s3_stream *s)
{
    return s->size == 0;
}

static bool is_ended(const struct mlo_s3_stream *s)
{
    return s->ended;
}

static void end(struct mlo_s3_stream *s, CURLcode code)
{
    s->ended = true;
    s->code = code;
}

/* Bytes that the kernel has taken. */
static curl_off_t gone(const struct mlo_s3_stream *s)
{
    curl_off_t bytes = 0;
    curl_easy_getinfo(s->transfer.curl, CURLINFO_SIZE_UPLOAD_T, &bytes);
    return bytes;
}

/* Moves bytes until that holds or the request has ended, which it does when none moves for stall_ms. */
static void drive(struct mlo_s3_stream *s, bool (*until)(const struct mlo_s3_stream *s), uint32_t stall_ms)
{
    curl_off_t before = gone(s);
    uint64_t since = mlo_clock_ns();
    int running, left;
    while (!s->ended) {
        CURLMcode failed = curl_multi_perform(s->multi, &running);
        for (const CURLMsg *m; (m = curl_multi_info_read(s->multi, &left));)
            if (m->msg == CURLMSG_DONE)
                end(s, m->data.result);
        if (failed == CURLM_OK && !s->ended && !until(s))
            failed = curl_multi_poll(s->multi, NULL, 0, 1000, NULL);
        if (failed != CURLM_OK && !s->ended)
            end(s, CURLE_FAILED_INIT);
        if (until(s))
            return;
        curl_off_t now = gone(s);
        if (now != before)
            since = mlo_clock_ns();
        else if (mlo_clock_ns() - since > stall_ms * 1000000ull && !s->ended)
            end(s, CURLE_OPERATION_TIMEDOUT);
        before = now;
    }
}

static void stop(struct mlo_s3_stream *s)
{
    if (s->transfer.curl)
        curl_multi_remove_handle(s->multi, s->transfer.curl);
    mlo_s3_transfer_end(&s->transfer);
}

static enum mlo_status result(struct mlo_s3_stream *s, bool *retry, struct mlo_error *err)
{
    return mlo_s3_transfer_result(&s->transfer, s->code, retry, err);
}

static enum mlo_status ask(struct mlo_s3_stream *s, bool fresh, bool *retry, struct mlo_error *err)
{
    *retry = s->wanted = s->ended = false;
    enum mlo_status status = mlo_s3_transfer_begin(&s->transfer, s->s3, &s->call, fresh, err);
    CURL *curl = s->transfer.curl;
    if (status != MLO_OK)
        return status;
    s->transfer.kept = CURL_SOCKET_BAD;                  /* connections are the multi handle's */
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 0L); /* whoever sends to us may be slow */
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_send);
    curl_easy_setopt(curl, CURLOPT_READDATA, s);
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, s);
    if (curl_multi_add_handle(s->multi, curl) != CURLM_OK)
        return mlo_error_nomem(err);
    /* an overloaded server answers late, and what it refuses now can be asked for again */
    curl_easy_setopt(curl, CURLOPT_EXPECT_100_TIMEOUT_MS, (long)MLO_MIN(s->s3->stall_ms, WANTED_MS));
    drive(s, is_wanted, s->s3->stall_ms);
    return s->ended ? result(s, retry, err) : MLO_OK;
}

enum mlo_status mlo_s3_stream_open(struct mlo_s3 *s3, const char *key, const struct mlo_digest *digest,
                                   uint64_t size_bytes, struct mlo_s3_stream **out, struct mlo_error *err)
{
    struct mlo_s3_stream *s = calloc(1, sizeof *s);
    enum mlo_status status;
    *out = NULL;
    if (!s)
        return mlo_error_nomem(err);
    s->s3 = s3;
    s->digest = *digest;
    s->key = strdup(key);
    s->multi = curl_multi_init();
    s->call = (struct mlo_s3_call){.method = "PUT",
                                   .key = s->key,
                                   .crypt = MLO_S3_CRYPT_WRITE,
                                   .body_size = size_bytes,
                                   .digest = &s->digest,
                                   .asks_first = true};
    status = s->key && s->multi ? MLO_OK : mlo_error_nomem(err);
    for (uint32_t n = 1; status == MLO_OK; n++) {
        bool retry;
        status = ask(s, n > 1, &retry, err);
        if (status == MLO_OK) {
            *out = s;
            return MLO_OK;
        }
        if (retry && n < s3->attempts) {
            stop(s);
            mlo_s3_backoff(n);
            status = MLO_OK;
        } else if (retry) {
            mlo_error_prefix(err, "after %u attempts", n);
        }
    }
    mlo_s3_stream_free(s);
    return status;
}

/* Of bytes that are on their way, or were, nothing is tried again. */
static enum mlo_status final_result(struct mlo_s3_stream *s, struct mlo_error *err)
{
    bool retry;
    enum mlo_status status = result(s, &retry, err);
    if (retry)
        mlo_error_hint(err,
                       "send it again: with uploads=stream the bytes are not kept here (uploads=parts does "
                       "it by itself)");
    return status;
}

/* A good answer names the object, and the object has all bytes: whoever says 200 without it made none. */
static enum mlo_status check_made(struct mlo_s3_stream *s, struct mlo_error *err)
{
    struct mlo_s3_object made;
    enum mlo_status status = MLO_OK;
    bool named = *s->call.object.etag && !s->call.answer.len;
    if (named)
        status = mlo_s3_head(s->s3, s->key, &made, err);
    if (status != MLO_OK || (named && made.size_bytes == s->call.body_size))
        return status;
    mlo_error_set(err, MLO_EFORMAT, "the S3 server took %zu bytes and %s", s->call.body_size,
                  named ? "has an object of another size" : "names no object that it made of them");
    mlo_error_where(err, "s3://%s/%s", s->s3->bucket, s->key);
    mlo_error_hint(err, "what stands before the S3 server may have answered: read its log");
    return MLO_EFORMAT;
}

enum mlo_status mlo_s3_stream_write(struct mlo_s3_stream *s, const void *bytes, size_t size,
                                    struct mlo_error *err)
{
    if (size > s->call.body_size - s->call.sent)
        return mlo_error_set(err, MLO_EINVAL, "more bytes come than the %zu that were announced",
                             s->call.body_size);
    s->bytes = bytes;
    s->size = size;
    if (size && !s->ended) {
        CURLcode code = curl_easy_pause(s->transfer.curl, CURLPAUSE_CONT);
        if (code != CURLE_OK)
            end(s, code);
        drive(s, is_sent, s->s3->stall_ms);
    }
    if (!s->size)
        return MLO_OK;
    enum mlo_status status = final_result(s, err);
    return status != MLO_OK ? status
                            : mlo_error_set(err, MLO_EFORMAT,
                                            "the S3 server answers a PUT before it has all of its bytes");
}

enum mlo_status mlo_s3_stream_finish(struct mlo_s3_stream *s, struct mlo_error *err)
{
    if (s->call.sent < s->call.body_size)
        return mlo_error_set(err, MLO_EINVAL, "%zu bytes of the %zu that were announced did not come",
                             s->call.body_size - s->call.sent, s->call.body_size);
    drive(s, is_ended, ANSWER_STALLS * s->s3->stall_ms);
    enum mlo_status status = final_result(s, err);
    return status == MLO_OK ? check_made(s, err) : status;
}

void mlo_s3_stream_free(struct mlo_s3_stream *s)
{
    if (!s)
        return;
    stop(s);
    curl_multi_cleanup(s->multi);
    mlo_s3_call_clear(&s->call);
    free(s->key);
    free(s);
}
