/* Blobs: bytes by digest, streamed into the store while they are hashed. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/http/handlers_impl.h"

struct blob_upload {
    struct mlo_blob_writer *writer; /* NULL: the project has it already, the bytes are only read */
    struct mlo_digest expected;
    struct mlo_hasher *hasher; /* when it is there already: what is sent must still be what it says */
    int64_t project;
    uint64_t size;
};

static enum mlo_status put_begin(struct mlo_request *req, struct mlo_error *err)
{
    struct blob_upload *upload = calloc(1, sizeof *upload);
    enum mlo_status status;
    bool reported = false;
    req->upload = upload;
    if (!upload)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_request_digest(req, &upload->expected, err));
    MLO_TRY(mlo_request_project(req, &upload->project, err));
    status = mlo_blob_linked(req->conn, upload->project, &upload->expected, NULL, err);
    bool linked = status == MLO_OK;
    const char *length = mlo_request_header(req, "Content-Length");
    int64_t bytes = 0;
    if (!length || !mlo_str_to_i64(length, &bytes) || bytes < 0)
        bytes = 0; /* then it is known at the end */
    if (linked)    /* what is there may be damaged: these bytes take its place */
        MLO_TRY(mlo_blob_reported(req->conn, &upload->expected, &reported, err));
    else if (status == MLO_ENOTFOUND)
        MLO_TRY(mlo_storage_check(req->conn, upload->project, (uint64_t)bytes, err));
    else
        goto out;
    mlo_request_db_release(req); /* the store may have to be waited for */
    if (linked && !reported && mlo_blob_exists(req->http->options.blobs, &upload->expected)) {
        upload->hasher = mlo_hasher_new();
        status = upload->hasher ? MLO_OK : mlo_error_nomem(err);
    } else { /* also when another project has the bytes: only who really has them may link them */
        status = mlo_blob_writer_open_passing(req->http->options.blobs, &upload->expected, (uint64_t)bytes,
                                              &upload->writer, err);
    }
out:
    mlo_request_db_release(req);
    return status;
}

static enum mlo_status put_data(struct mlo_request *req, const void *bytes, size_t size,
                                struct mlo_error *err)
{
    struct blob_upload *upload = req->upload;
    upload->size += size;
    if (upload->writer)
        return mlo_blob_writer_write(upload->writer, bytes, size, err);
    mlo_hasher_update(upload->hasher, bytes, size);
    return MLO_OK;
}

static void put_end(struct mlo_request *req)
{
    struct blob_upload *upload = req->upload;
    if (!upload)
        return;
    mlo_blob_writer_free(upload->writer);
    mlo_hasher_free(upload->hasher);
    free(upload);
    req->upload = NULL;
}

const struct mlo_upload_body mlo_blob_upload = {put_begin, put_data, put_end};

enum mlo_status h_blob_put(struct mlo_request *req, struct mlo_error *err)
{
    struct blob_upload *upload = req->upload;
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    char text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = MLO_OK;
    if (upload->writer) {
        /* before the bytes have a name that nobody would own */
        MLO_TRY(mlo_request_db(req, &conn, err));
        MLO_TRY(mlo_storage_check_blob(conn, upload->project, &upload->expected, upload->size, err));
        mlo_request_db_release(req);
        MLO_TRY(mlo_blob_writer_commit(upload->writer, &upload->expected, NULL, &upload->size, err));
        MLO_TRY(mlo_request_db(req, &conn, err));
        MLO_TRY(mlo_blob_record_stored(conn, req->http->options.blobs, &actor, upload->project,
                                       &upload->expected, upload->size, err));
        MLO_TRY(mlo_blob_replaced(conn, &upload->expected, err));
    } else {
        struct mlo_digest sent;
        mlo_hasher_final(upload->hasher, &sent);
        if (!mlo_digest_eq(&sent, &upload->expected)) {
            status =
                mlo_error_set(err, MLO_EDIGEST, "the bytes have the digest %s", mlo_digest_text(&sent, text));
            mlo_error_where(err, "path");
            mlo_error_hint(
                err, "the file changed or was damaged on the way: compute its SHA-256 again and repeat");
            goto out;
        }
        MLO_TRY(mlo_request_db(req, &conn, err));
        MLO_TRY(mlo_blob_record_stored(conn, req->http->options.blobs, &actor, upload->project,
                                       &upload->expected, upload->size, err));
    }
    MLO_TRY(mlo_reply_json(req, upload->writer ? 201 : 200,
                           json_pack("{s:s, s:I}", "digest", mlo_digest_text(&upload->expected, text), "size",
                                     (json_int_t)upload->size),
                           err));
out:
    return status;
}

enum mlo_status mlo_request_blob(struct mlo_request *req, const struct mlo_digest *digest, size_t max_bytes,
                                 struct mlo_buf *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_blob_read(req->http->options.blobs, digest, max_bytes, out, err);
    return status == MLO_EDIGEST ? mlo_request_damaged(req, digest, err) : status;
}

/* For HEAD nothing is read from the descriptor: a store without files is not made to fetch them. */
static enum mlo_status open_bytes(struct mlo_request *req, const struct mlo_digest *digest, int *fd,
                                  uint64_t *size, struct mlo_error *err)
{
    enum mlo_status status;
    if (strcmp(req->method, "HEAD") != 0) {
        status = mlo_blob_open_fd(req->http->options.blobs, digest, fd, size, err);
        return status == MLO_EDIGEST ? mlo_request_damaged(req, digest, err) : status;
    }
    status = mlo_blob_size(req->http->options.blobs, digest, size, err);
    if (status != MLO_OK)
        return status;
    *fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return *fd >= 0 ? MLO_OK : mlo_error_errno(err, errno, "cannot open /dev/null");
}

/* S3's ETags are not ours, so what depends on ours is answered here; HEAD costs no bytes. */
enum mlo_status mlo_request_may_redirect(const struct mlo_request *req, bool *may, struct mlo_error *err)
{
    static const char *const ours[] = {"If-Match", "If-Range", "If-None-Match"};
    const char *wish = mlo_request_query(req, "redirect");
    *may = strcmp(req->method, "HEAD") != 0 && (!wish || strcmp(wish, "no") != 0);
    for (size_t i = 0; i < MLO_COUNT(ours); i++)
        *may = *may && !mlo_request_header(req, ours[i]);
    if (!wish || strcmp(wish, "no") == 0 || strcmp(wish, "yes") == 0)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "redirect=%.40s is neither no nor yes", wish);
    mlo_error_where(err, "query argument 'redirect'");
    mlo_error_hint(err, "with redirect=no this server sends the bytes itself");
    return MLO_EINVAL;
}

/* 307 to the store's own address of the blob; *done: so it was answered. */
static enum mlo_status redirect(struct mlo_request *req, const struct mlo_digest *digest,
                                const char *file_name, bool *done, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE], *url = NULL;
    struct mlo_error why = {0};
    bool may;
    enum mlo_status status;
    *done = false;
    MLO_TRY(mlo_request_may_redirect(req, &may, err));
    if (!may)
        goto out;
    status = mlo_blob_address(req->http->options.blobs, digest, file_name, &url, &why);
    if (status == MLO_EUNSUPPORTED) {
        status = MLO_OK;
        goto out;
    }
    if (status != MLO_OK) {
        if (err)
            *err = why;
        goto out;
    }
    *done = true;
    mlo_reply_header(req, "Location", "%s", url);
    mlo_reply_header(req, "ETag", "\"%s\"", mlo_digest_text(digest, text));
    mlo_reply_header(req, "Cache-Control", "no-store"); /* whoever has the address may read */
    mlo_reply_header(req, "Referrer-Policy", "no-referrer");
    MLO_TRY(mlo_reply_empty(req, 307));
out:
    free(url);
    return status;
}

enum mlo_status mlo_reply_artifact(struct mlo_request *req, const struct mlo_digest *digest,
                                   const char *file_name, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    uint64_t size;
    bool done;
    int fd;
    enum mlo_status status;
    mlo_request_db_release(req);
    mlo_digest_text(digest, text);
    mlo_reply_header(req, "X-Mlopt-Digest", "%s", text);
    if (file_name)
        mlo_reply_header(req, "Content-Disposition", "attachment; filename=\"%s\"", file_name);
    MLO_TRY(redirect(req, digest, file_name, &done, err));
    if (done)
        goto out;
    MLO_TRY(open_bytes(req, digest, &fd, &size, err));
    MLO_TRY(mlo_reply_blob(req, fd, size, digest, "application/octet-stream", err));
out:
    return status;
}

/* Whether the project has it; `asks`: to know whether it must be sent. */
static enum mlo_status look_up(struct mlo_request *req, int64_t project, const struct mlo_digest *digest,
                               bool asks, uint64_t *size_bytes, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    bool reported = false;
    enum mlo_status status;
    asks = asks && req->who.role >= MLO_SUBMITTER;
    MLO_TRY(mlo_blob_linked(req->conn, project, digest, size_bytes, err));
    if (asks)
        MLO_TRY(mlo_blob_reported(req->conn, digest, &reported, err));
    if (reported) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "blob %s was reported as damaged",
                               mlo_digest_text(digest, text));
        mlo_error_hint(err, "upload the same file again");
    } else if (asks) { /* it will not be sent again */
        status = mlo_blob_touch(req->conn, project, digest, err);
    }
out:
    return status;
}

enum mlo_status h_blob_get(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_digest digest;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_digest(req, &digest, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(look_up(req, project, &digest, strcmp(req->method, "HEAD") == 0, NULL, err));
    MLO_TRY(mlo_reply_artifact(req, &digest, NULL, err));
out:
    return status;
}

enum mlo_status h_blob_lookup(struct mlo_request *req, struct mlo_error *err)
{
    enum { LOOKUP_MAX = 200 };
    const json_t *digests;
    json_t *body, *item, *items = json_array();
    int64_t project;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_request_items(body, "digests", LOOKUP_MAX, &digests, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    json_array_foreach((json_t *)digests, i, item)
    {
        struct mlo_digest digest;
        struct mlo_error absent = {0};
        uint64_t size = 0;
        const char *text = json_is_string(item) ? json_string_value(item) : "";
        status = mlo_read_digest(text, &digest, err);
        if (status != MLO_OK) {
            mlo_error_where(err, "field 'digests[%zu]'", i);
            goto out;
        }
        status = look_up(req, project, &digest, true, &size, &absent);
        if (status != MLO_OK && status != MLO_ENOTFOUND && status != MLO_EDIGEST) {
            *err = absent;
            goto out;
        }
        json_t *row = json_pack("{s:O, s:b, s:o}", "digest", item, "there", status == MLO_OK, "size",
                                status == MLO_OK ? json_integer((json_int_t)size) : json_null());
        if (json_array_append_new(items, row) != 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    status = mlo_reply_json(req, 200, mlo_list_of(items), err);
    items = NULL;
out:
    json_decref(items);
    return status;
}
