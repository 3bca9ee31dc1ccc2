/* Blobs on their way out: checked by who sends them, so that no client has to find out that a disk forgot. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/http/http_impl.h"

/* CHECK_FIRST: bytes that are read before the answer begins, which is half a millisecond. BODY_PIECE: read,
 * hashed and sent at once; larger ones are no faster. */
enum { CHECK_FIRST = 1 << 20, BODY_PIECE = 128 << 10 };

static enum mlo_status report(const struct mlo_http *http, const struct mlo_digest *digest,
                              struct mlo_error *err)
{
    const struct mlo_actor actor = MLO_ACTOR_SYSTEM;
    mlo_blob_copy_drop(http->options.blobs, digest);
    return mlo_blob_report_damage(http->options.db, http->options.blobs, &actor, digest, true, err);
}

enum mlo_status mlo_request_damaged(struct mlo_request *req, const struct mlo_digest *digest,
                                    struct mlo_error *err)
{
    mlo_request_db_release(req);
    return report(req->http, digest, err);
}

enum mlo_status mlo_reply_blob(struct mlo_request *req, int fd, uint64_t size,
                               const struct mlo_digest *digest, const char *content_type,
                               struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = mlo_reply_file(req, fd, size, mlo_digest_text(digest, text), content_type, err);
    if (status != MLO_OK || req->file < 0 || strcmp(req->method, "HEAD") == 0 ||
        mlo_blob_open_checked(req->http->options.blobs))
        return status;
    if (size <= CHECK_FIRST) {
        status = mlo_blob_check_fd(req->file, digest, err);
        return status == MLO_EDIGEST ? mlo_request_damaged(req, digest, err) : status;
    }
    req->state->checks = req->file_size == size;
    req->state->digest = *digest;
    return MLO_OK;
}

/* --- the body of a large one --------------------------------------------------------------------- */

struct body {
    const struct mlo_http *http;
    struct mlo_digest digest;
    struct mlo_hasher *hasher;
    uint64_t size, done;
    int fd;
    char id[72]; /* of the request */
};

static void body_free(void *cls)
{
    struct body *b = cls;
    if (b->fd >= 0)
        close(b->fd);
    mlo_hasher_free(b->hasher);
    free(b);
}

/* The connection is cut by what the reader answers: fewer bytes than the header promised. */
static ssize_t cut(const struct body *b, const struct mlo_error *err)
{
    mlo_log(MLO_LOG_ERROR, "a download was cut off", "id", b->id, "why", err->message, NULL);
    return MHD_CONTENT_READER_END_WITH_ERROR;
}

static ssize_t body_read(void *cls, uint64_t at, char *out, size_t most)
{
    struct body *b = cls;
    struct mlo_error err = {0};
    struct mlo_digest computed;
    size_t want = (size_t)MLO_MIN((uint64_t)most, b->size - at), got = 0;
    if (at != b->done) { /* the daemon asks for each byte once, in order */
        mlo_error_set(&err, MLO_EINTERNAL, "a body was asked for out of order");
        return cut(b, &err);
    }
    while (got < want) {
        ssize_t n = pread(b->fd, out + got, want - got, (off_t)(at + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            (void)!mlo_error_errno(&err, errno, "cannot read a blob");
            return cut(b, &err);
        }
        if (n == 0)
            break; /* it got shorter: its digest is another one */
        got += (size_t)n;
    }
    mlo_hasher_update(b->hasher, out, got);
    b->done += got;
    if (got == want && b->done < b->size)
        return (ssize_t)got;
    mlo_hasher_final(b->hasher, &computed);
    if (got == want && mlo_digest_eq(&computed, &b->digest))
        return (ssize_t)got;
    (void)!report(b->http, &b->digest, &err);
    return cut(b, &err);
}

struct MHD_Response *mlo_blob_body(struct mlo_request *req)
{
    struct body *b = calloc(1, sizeof *b);
    struct mlo_hasher *hasher = mlo_hasher_new();
    if (!b || !hasher) {
        free(b);
        mlo_hasher_free(hasher);
        return NULL;
    }
    *b = (struct body){req->http, req->state->digest, hasher, req->file_size, 0, req->file, ""};
    snprintf(b->id, sizeof b->id, "%s", req->id);
    struct MHD_Response *response =
        MHD_create_response_from_callback(b->size, BODY_PIECE, body_read, b, body_free);
    if (!response) {
        b->fd = -1;
        body_free(b);
    }
    return response;
}
