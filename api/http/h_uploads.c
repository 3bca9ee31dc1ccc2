/* Uploads in pieces: begun by POST, appended to by PATCH, asked by GET or HEAD, finished by PUT with the
 * digest. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/direct_impl.h"
#include "api/http/handlers_impl.h"

static enum mlo_status find(struct mlo_request *req, struct mlo_upload *out, struct mlo_error *err)
{
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_upload_find(req->conn, project, mlo_request_param(req, "id"), out, err));
out:
    return status;
}

/* Where it stands, as headers and as JSON. `ask`: also which parts the bucket has, of a direct one. */
static enum mlo_status reply_state(struct mlo_request *req, int http, const struct mlo_upload *upload,
                                   bool ask, struct mlo_error *err)
{
    uint64_t size = upload->session.size_bytes;
    json_t *state = json_pack("{s:s, s:I, s:s}", "id", upload->session.id, "offset", (json_int_t)size,
                              "expires_at", upload->expires_at);
    enum mlo_status status = state ? mlo_direct_state(req, upload, ask, state, err) : mlo_error_nomem(err);
    if (status != MLO_OK) {
        json_decref(state);
        return status;
    }
    mlo_reply_header(req, "Location", "/v1/projects/%s/uploads/%s", mlo_request_param(req, "p"),
                     upload->session.id);
    mlo_reply_header(req, "Upload-Offset", "%" PRIu64, size);
    if (size)
        mlo_reply_header(req, "Range", "0-%" PRIu64, size - 1);
    mlo_reply_header(req, "Cache-Control", "no-store");
    return mlo_reply_json(req, http, state, err);
}

static enum mlo_status read_digest(const json_t *body, struct mlo_digest *out, struct mlo_error *err)
{
    const char *text;
    enum mlo_status status = mlo_json_get_str(body, "digest", NULL, &text, err);
    if (status == MLO_OK && (status = mlo_read_digest(text, out, err)) != MLO_OK)
        mlo_error_where(err, "field 'digest'");
    return status;
}

enum mlo_status h_upload_begin(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_upload upload;
    json_t *body;
    bool direct = false, told = false;
    const bool no = false;
    const int64_t none = 0;
    struct mlo_digest digest;
    int64_t project, size = 0;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    if (req->body.len) {
        MLO_TRY(mlo_request_json(req, &body, err));
        MLO_TRY(mlo_json_get_bool(body, "direct", &no, &direct, err));
        MLO_TRY(mlo_json_get_i64(body, "size", direct ? NULL : &none, &size, err));
        if (size < 0) {
            status = mlo_error_set(err, MLO_EINVAL, "'size' is no number of bytes");
            goto out;
        }
        told = json_object_get(body, "digest") != NULL;
        if (told)
            MLO_TRY(read_digest(body, &digest, err));
    }
    MLO_TRY(mlo_storage_check(req->conn, project, (uint64_t)size, err));
    status = direct ? mlo_upload_begin_direct(req->conn, req->http->options.blobs, &actor, project,
                                              (uint64_t)size, told ? &digest : NULL, &upload, err)
                    : MLO_EUNSUPPORTED;
    if (status == MLO_EUNSUPPORTED) /* not offered, or not asked for */
        status = mlo_upload_begin(req->conn, req->http->options.blobs, &actor, project, &upload, err);
    if (status != MLO_OK)
        goto out;
    MLO_TRY(reply_state(req, 201, &upload, false, err));
out:
    return status;
}

enum mlo_status h_upload_get(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_upload upload;
    enum mlo_status status;
    MLO_TRY(find(req, &upload, err));
    MLO_TRY(reply_state(req, 200, &upload, true, err));
out:
    return status;
}

enum mlo_status h_upload_drop(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_upload upload;
    enum mlo_status status;
    MLO_TRY(find(req, &upload, err));
    MLO_TRY(mlo_upload_drop(req->conn, req->http->options.blobs, &actor, &upload, err));
    MLO_TRY(mlo_reply_empty(req, 204));
out:
    return status;
}

enum mlo_status h_upload_finish(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_upload upload;
    struct mlo_digest expected;
    struct mlo_db_conn *conn;
    char text[MLO_DIGEST_TEXT_SIZE];
    bool done;
    const char *digest = mlo_request_query(req, "digest");
    enum mlo_status status = mlo_read_digest(digest ? digest : "", &expected, err);
    if (status != MLO_OK) {
        mlo_error_prefix(err, "finishing an upload needs ?digest=sha256:…");
        mlo_error_where(err, "query argument 'digest'");
        return status;
    }
    MLO_TRY(find(req, &upload, err));
    MLO_TRY(mlo_direct_verify(req, &upload, &done, err));
    if (!done) {
        MLO_TRY(reply_state(req, 202, &upload, false, err));
        goto out;
    }
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_storage_check_blob(conn, upload.project_id, &expected, upload.session.size_bytes, err));
    mlo_request_db_release(req); /* a bucket copies all of it */
    MLO_TRY(mlo_upload_publish(req->http->options.blobs, &actor, &upload, &expected, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_upload_record(conn, req->http->options.blobs, &actor, &upload, &expected, err));
    MLO_TRY(mlo_reply_json(req, 201,
                           json_pack("{s:s, s:I}", "digest", mlo_digest_text(&expected, text), "size",
                                     (json_int_t)upload.session.size_bytes),
                           err));
out:
    return status;
}

/* --- a piece ----------------------------------------------------------------------------------------------
 */

struct piece {
    struct mlo_upload upload;
    struct mlo_blob_piece *bytes;
    uint64_t from, said; /* where it begins; the size that Content-Range says, or UINT64_MAX */
    uint64_t size;
};

/* "bytes 0-99/200", "bytes 0-99/_", or "0-99" as OCI writes it. */
static bool parse_content_range(const char *text, uint64_t *first, uint64_t *size)
{
    char *end;
    if (mlo_str_starts(text, "bytes "))
        text += strlen("bytes ");
    if (*text < '0' || *text > '9')
        return false;
    *first = strtoumax(text, &end, 10);
    if (end[0] != '-' || end[1] < '0' || end[1] > '9')
        return false;
    uint64_t last = strtoumax(end + 1, &end, 10);
    *size = last - *first + 1;
    return last >= *first && last < INT64_MAX && (*end == '\0' || *end == '/');
}

/* What the headers say of the body, 0 when nothing. */
static uint64_t body_size(const struct mlo_request *req)
{
    const char *length = mlo_request_header(req, "Content-Length");
    int64_t bytes = 0;
    return length && mlo_str_to_i64(length, &bytes) && bytes > 0 && bytes < INT64_MAX / 2 ? (uint64_t)bytes
                                                                                          : 0;
}

static enum mlo_status piece_begin(struct mlo_request *req, struct mlo_error *err)
{
    struct piece *piece = calloc(1, sizeof *piece);
    const char *range = mlo_request_header(req, "Content-Range");
    enum mlo_status status = MLO_OK;
    req->upload = piece;
    if (!piece)
        return mlo_error_nomem(err);
    MLO_TRY(find(req, &piece->upload, err));
    uint64_t stands = piece->upload.session.size_bytes;
    piece->from = stands;
    piece->said = UINT64_MAX;
    if (range && !parse_content_range(range, &piece->from, &piece->said)) {
        status = mlo_error_set(err, MLO_EUSAGE, "'%.60s' is no Content-Range", range);
        mlo_error_where(err, "headers");
        mlo_error_hint(err, "write Content-Range: bytes FIRST-LAST/SIZE, or /* when the size is not known");
    } else if (piece->from != stands) {
        status = mlo_error_set(err, MLO_ERANGE, "the upload stands at byte %" PRIu64 ", not at %" PRIu64,
                               stands, piece->from);
        mlo_error_hint(err, "go on from there");
    } else if (stands + (piece->said == UINT64_MAX ? 0 : piece->said) > MLO_UPLOAD_BYTES_MAX) {
        status = mlo_error_set(err, MLO_ETOOBIG, "an upload holds at most %" PRIu64 " bytes",
                               (uint64_t)MLO_UPLOAD_BYTES_MAX);
    } else {
        /* of what cannot be kept in the end no more is taken */
        uint64_t more = piece->said == UINT64_MAX ? body_size(req) : piece->said;
        MLO_TRY(mlo_storage_check(req->conn, piece->upload.project_id, stands + more, err));
        status =
            mlo_upload_piece_open(req->conn, req->http->options.blobs, &piece->upload, &piece->bytes, err);
    }
out:
    mlo_request_db_release(req); /* a piece may take long */
    return status;
}

static enum mlo_status piece_data(struct mlo_request *req, const void *bytes, size_t size,
                                  struct mlo_error *err)
{
    struct piece *piece = req->upload;
    piece->size += size;
    if (piece->size > piece->said || piece->from + piece->size > MLO_UPLOAD_BYTES_MAX)
        return mlo_error_set(err, MLO_EUSAGE, "the body has more bytes than Content-Range says, or fit");
    return mlo_blob_piece_write(piece->bytes, bytes, size, err);
}

static enum mlo_status keep(struct mlo_request *req, struct piece *piece, struct mlo_error *err)
{
    struct mlo_db_conn *conn;
    enum mlo_status status;
    MLO_TRY(mlo_blob_piece_commit(piece->bytes, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_upload_keep(conn, &piece->upload, piece->from, err));
out:
    return status;
}

/* A connection that broke: what came by then need not come again. */
static void piece_end(struct mlo_request *req)
{
    struct piece *piece = req->upload;
    struct mlo_error err = {0};
    if (!piece)
        return;
    bool cut_off = piece->bytes && req->status == 0 && piece->size;
    if (cut_off && keep(req, piece, &err) != MLO_OK)
        mlo_log_error(MLO_LOG_WARN, "a piece of an upload that was cut off is not kept", &err);
    mlo_blob_piece_free(piece->bytes);
    free(piece);
    req->upload = NULL;
}

const struct mlo_upload_body mlo_piece_upload = {piece_begin, piece_data, piece_end};

enum mlo_status h_upload_append(struct mlo_request *req, struct mlo_error *err)
{
    struct piece *piece = req->upload;
    enum mlo_status status;
    if (piece->said != UINT64_MAX && piece->said != piece->size)
        return mlo_error_set(err, MLO_EUSAGE, "the body has %" PRIu64 " bytes, Content-Range says %" PRIu64,
                             piece->size, piece->said);
    MLO_TRY(keep(req, piece, err));
    MLO_TRY(reply_state(req, 202, &piece->upload, false, err));
out:
    return status;
}
