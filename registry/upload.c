#include "registry/upload.h"
#include "registry/models.h"
#include "registry/sql_impl.h"

#include <string.h>

enum {
    UPLOAD_ADD,
    UPLOAD_FIND,
    UPLOAD_KEEP,
    UPLOAD_DROP,
    UPLOAD_EXPIRED,
    UPLOAD_NEXT,
    UPLOAD_SAME,
    UPLOAD_FORGET
};

#define UPLOAD_COLUMNS                                                                                       \
    "SELECT id, place, size, hash_state, project_id, "                                                       \
    "to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') FROM upload "

const struct mlo_sql mlo_sql_upload[] = {
    [UPLOAD_ADD] = {"upload_add",
                    "INSERT INTO upload (id, project_id, place, hash_state, created_by, expires_at) "
                    "VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $6))",
                    6},
    [UPLOAD_FIND] = {"upload_find", UPLOAD_COLUMNS "WHERE id = $1 AND project_id = $2 AND expires_at > now()",
                     2},
    [UPLOAD_KEEP] = {"upload_keep",
                     "UPDATE upload SET size = $3, hash_state = $4, place = $5, "
                     "expires_at = now() + make_interval(secs => $6) WHERE id = $1 AND size = $2",
                     6},
    [UPLOAD_DROP] = {"upload_drop", "DELETE FROM upload WHERE id = $1", 1},
    [UPLOAD_EXPIRED] = {"upload_expired",
                        "DELETE FROM upload WHERE id IN (SELECT id FROM upload WHERE expires_at <= now() "
                        "ORDER BY expires_at LIMIT 8 FOR UPDATE SKIP LOCKED) RETURNING id, place",
                        0},
    [UPLOAD_NEXT] = {"upload_next",
                     UPLOAD_COLUMNS "WHERE expires_at > now() AND id > $1 ORDER BY id LIMIT 64", 1},
    [UPLOAD_SAME] = {"upload_same", "SELECT 1 FROM upload WHERE id = $1 AND size = $2 AND place = $3", 3},
    [UPLOAD_FORGET] = {"upload_forget",
                       "DELETE FROM upload WHERE id = $1 AND size = $2 AND place = $3 RETURNING 1", 3},
};
const size_t mlo_sql_upload_count = MLO_COUNT(mlo_sql_upload);

static void take_session(const struct mlo_rows *rows, int row, struct mlo_blob_session *out)
{
    snprintf(out->id, sizeof out->id, "%s", mlo_rows_text(rows, row, 0));
    snprintf(out->place, sizeof out->place, "%s", mlo_rows_text(rows, row, 1));
}

/* The row goes first: bytes that nobody names harm nobody, a row without its bytes does. */
enum mlo_status mlo_upload_sweep(struct mlo_db_conn *conn, struct mlo_blob_store *store, int *removed,
                                 struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_upload[UPLOAD_EXPIRED], NULL, &rows, err);
    if (removed)
        *removed = status == MLO_OK ? mlo_rows_count(&rows) : 0;
    for (int r = 0; status == MLO_OK && r < mlo_rows_count(&rows); r++) {
        struct mlo_blob_session session = {0};
        struct mlo_error ignored = {0};
        take_session(&rows, r, &session);
        if (mlo_blob_session_drop(store, &session, &ignored) != MLO_OK)
            mlo_log_error(MLO_LOG_WARN, "cannot remove an expired upload", &ignored);
    }
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status begin(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                             const struct mlo_actor *actor, int64_t project_id, const uint64_t *direct_size,
                             const struct mlo_digest *digest, struct mlo_upload *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_SUBMITTER, err);
    memset(out, 0, sizeof *out);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_upload_sweep(conn, store, NULL, err));
    MLO_TRY(direct_size ? mlo_blob_direct_begin(store, *direct_size, digest, &out->session, err)
                        : mlo_blob_session_begin(store, &out->session, err));
    mlo_param_text(&p, out->session.id);
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, out->session.place);
    mlo_param_bytes(&p, out->session.hash.bytes, sizeof out->session.hash.bytes);
    mlo_param_text(&p, actor->name);
    mlo_param_i64(&p, MLO_UPLOAD_EXPIRES_S);
    status = mlo_db_exec(conn, &mlo_sql_upload[UPLOAD_ADD], &p, NULL, err);
    if (status != MLO_OK) {
        struct mlo_error ignored = {0};
        if (mlo_blob_session_drop(store, &out->session, &ignored) != MLO_OK)
            mlo_log_error(MLO_LOG_WARN, "cannot remove an upload that was not begun", &ignored);
        goto out;
    }
    status = mlo_upload_find(conn, project_id, out->session.id, out, err);
out:
    return status;
}

enum mlo_status mlo_upload_begin(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                 const struct mlo_actor *actor, int64_t project_id, struct mlo_upload *out,
                                 struct mlo_error *err)
{
    return begin(conn, store, actor, project_id, NULL, NULL, out, err);
}

enum mlo_status mlo_upload_begin_direct(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                        const struct mlo_actor *actor, int64_t project_id,
                                        uint64_t size_bytes, const struct mlo_digest *digest,
                                        struct mlo_upload *out, struct mlo_error *err)
{
    if (size_bytes > MLO_UPLOAD_BYTES_MAX)
        return mlo_error_set(err, MLO_ETOOBIG, "an upload holds at most %llu bytes",
                             (unsigned long long)MLO_UPLOAD_BYTES_MAX);
    return begin(conn, store, actor, project_id, &size_bytes, digest, out, err);
}

/* The columns of UPLOAD_COLUMNS. */
static enum mlo_status take_upload(const struct mlo_rows *rows, int row, struct mlo_upload *out,
                                   struct mlo_error *err)
{
    struct mlo_buf state = MLO_BUF_INIT;
    memset(out, 0, sizeof *out);
    take_session(rows, row, &out->session);
    out->session.size_bytes = (uint64_t)mlo_rows_i64(rows, row, 2);
    mlo_rows_bytes(rows, row, 3, &state);
    if (!mlo_buf_ok(&state)) {
        mlo_buf_clear(&state);
        return mlo_error_nomem(err);
    }
    memcpy(out->session.hash.bytes, state.data, MLO_MIN(state.len, sizeof out->session.hash.bytes));
    mlo_buf_clear(&state);
    out->project_id = mlo_rows_i64(rows, row, 4);
    snprintf(out->expires_at, sizeof out->expires_at, "%s", mlo_rows_text(rows, row, 5));
    return MLO_OK;
}

enum mlo_status mlo_upload_find(struct mlo_db_conn *conn, int64_t project_id, const char *id,
                                struct mlo_upload *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    enum mlo_status status;
    mlo_param_text(&p, id); /* may be out's own */
    mlo_param_i64(&p, project_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_upload[UPLOAD_FIND], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "this project has no upload %.40s", id);
        mlo_error_hint(err, "it was finished, dropped, or expired: begin a new one");
        goto out;
    }
    MLO_TRY(take_upload(&rows, 0, out, err));
out:
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status elsewhere(const struct mlo_upload *upload, uint64_t bytes, struct mlo_error *err)
{
    mlo_error_set(err, MLO_ECONFLICT, "upload %s does not stand at %llu any more", upload->session.id,
                  (unsigned long long)bytes);
    mlo_error_hint(err, "ask where it stands");
    return MLO_ECONFLICT;
}

enum mlo_status mlo_upload_keep(struct mlo_db_conn *conn, struct mlo_upload *upload, uint64_t from_bytes,
                                struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_text(&p, upload->session.id);
    mlo_param_i64(&p, (int64_t)from_bytes);
    mlo_param_i64(&p, (int64_t)upload->session.size_bytes);
    mlo_param_bytes(&p, upload->session.hash.bytes, sizeof upload->session.hash.bytes);
    mlo_param_text(&p, upload->session.place);
    mlo_param_i64(&p, MLO_UPLOAD_EXPIRES_S);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_upload[UPLOAD_KEEP], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_affected(&rows) == 0)
        status = elsewhere(upload, from_bytes, err);
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status remove_row(struct mlo_db_conn *conn, const struct mlo_upload *upload,
                                  struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_text(&p, upload->session.id);
    return mlo_db_exec(conn, &mlo_sql_upload[UPLOAD_DROP], &p, NULL, err);
}

/* Whether the row still says the same; `remove`: takes it away then. */
static enum mlo_status same_row(struct mlo_db_conn *conn, const struct mlo_upload *upload, bool remove,
                                bool *same, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_text(&p, upload->session.id);
    mlo_param_i64(&p, (int64_t)upload->session.size_bytes);
    mlo_param_text(&p, upload->session.place);
    enum mlo_status status =
        mlo_db_exec(conn, &mlo_sql_upload[remove ? UPLOAD_FORGET : UPLOAD_SAME], &p, &rows, err);
    *same = status == MLO_OK && mlo_rows_count(&rows) > 0;
    mlo_rows_clear(&rows);
    return status;
}

/* Gone from where uploads are, and not because it was published. */
static enum mlo_status is_lost(struct mlo_blob_store *store, const struct mlo_upload *upload, bool *lost,
                               struct mlo_error *err)
{
    struct mlo_digest digest;
    struct mlo_blob_direct direct;
    struct mlo_error seen = {0};
    *lost = false;
    enum mlo_status status = mlo_blob_session_check(store, &upload->session, &seen);
    if (status == MLO_OK)
        return MLO_OK;
    if (status != MLO_ENOTFOUND && status != MLO_EDIGEST) {
        if (err)
            *err = seen;
        return status;
    }
    *lost = mlo_blob_direct_info(store, &upload->session, &direct) &&
            upload->session.size_bytes != direct.size_bytes;
    if (*lost) /* not verified to its end: what its hash says so far was never published */
        return MLO_OK;
    MLO_TRY(mlo_blob_session_digest(store, &upload->session, &digest, err));
    status = mlo_blob_size(store, &digest, NULL, &seen);
    *lost = status == MLO_ENOTFOUND;
    if (*lost)
        return MLO_OK;
    if (status != MLO_OK && err)
        *err = seen;
out:
    return status;
}

/* The row is looked at again while the store keeps others from appending (a store of files; of S3 what two
 * wrote at once has two names); and where the bytes are gone or others, which they also are when somebody
 * else went on, or finished, between the row and the store. Who finishes moves the bytes before the row goes:
 * where that says the same, bytes that are gone are looked for where they are put (others they do not become
 * by that, and by beginning again an empty upload loses nothing). */
enum mlo_status mlo_upload_piece_open(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                      struct mlo_upload *upload, struct mlo_blob_piece **piece,
                                      struct mlo_error *err)
{
    bool same, found = false;
    struct mlo_error why = {0};
    enum mlo_status status = mlo_blob_piece_open(store, &upload->session, piece, err), looked;
    if (status != MLO_OK && status != MLO_ENOTFOUND && status != MLO_EDIGEST)
        return status;
    looked = same_row(conn, upload, false, &same, &why);
    if (looked == MLO_OK && same && status == MLO_ENOTFOUND && upload->session.size_bytes) {
        bool lost;
        looked = is_lost(store, upload, &lost, &why);
        found = !lost;
    }
    if (looked == MLO_OK && (!same || found))
        status = elsewhere(upload, upload->session.size_bytes, err);
    if (looked != MLO_OK && status != MLO_EDIGEST) {
        *err = why;
        status = looked;
    }
    if (status != MLO_OK) {
        mlo_blob_piece_free(*piece);
        *piece = NULL;
    }
    return status;
}

enum mlo_status mlo_upload_publish(struct mlo_blob_store *store, const struct mlo_actor *actor,
                                   const struct mlo_upload *upload, const struct mlo_digest *expected,
                                   struct mlo_error *err)
{
    struct mlo_digest digest;
    char a[MLO_DIGEST_TEXT_SIZE], b[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(actor, upload->project_id, MLO_SUBMITTER, err));
    MLO_TRY(mlo_blob_session_digest(store, &upload->session, &digest, err));
    if (!mlo_digest_eq(&digest, expected)) {
        mlo_error_set(err, MLO_EDIGEST, "the %llu bytes hash to %s, not to %s",
                      (unsigned long long)upload->session.size_bytes, mlo_digest_text(&digest, a),
                      mlo_digest_text(expected, b));
        mlo_error_hint(err, "drop the upload, compute the file's SHA-256 again, and repeat");
        return MLO_EDIGEST;
    }
    MLO_TRY(mlo_blob_session_publish(store, &upload->session, err));
out:
    return status;
}

enum mlo_status mlo_upload_record(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                  const struct mlo_actor *actor, const struct mlo_upload *upload,
                                  const struct mlo_digest *digest, struct mlo_error *err)
{
    enum mlo_status status = mlo_actor_require(actor, upload->project_id, MLO_SUBMITTER, err);
    if (status != MLO_OK || (status = mlo_db_begin(conn, err)) != MLO_OK)
        return status;
    MLO_TRY(mlo_blob_record_stored(conn, store, actor, upload->project_id, digest, upload->session.size_bytes,
                                   err));
    MLO_TRY(mlo_blob_replaced(conn, digest, err));
    MLO_TRY(remove_row(conn, upload, err));
out:
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_upload_finish(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                  const struct mlo_actor *actor, const struct mlo_upload *upload,
                                  const struct mlo_digest *expected, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_upload_publish(store, actor, upload, expected, err));
    MLO_TRY(mlo_upload_record(conn, store, actor, upload, expected, err));
out:
    return status;
}

/* Some behind `at`; *count: how many were looked at, 0 behind the last one. */
static enum mlo_status lost_behind(struct mlo_db_conn *conn, const struct mlo_upload_lost_options *o,
                                   char at[MLO_BLOB_SESSION_ID_SIZE], int *count, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_text(&p, at);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_upload[UPLOAD_NEXT], &p, &rows, err);
    *count = 0;
    while (status == MLO_OK && *count < mlo_rows_count(&rows)) {
        struct mlo_upload upload;
        bool lost;
        MLO_TRY(take_upload(&rows, (*count)++, &upload, err));
        MLO_TRY(is_lost(o->store, &upload, &lost, err));
        if (lost) /* as the row is now: who goes on with it, or has ended it, has changed the row */
            MLO_TRY(same_row(conn, &upload, o->forget, &lost, err));
        if (lost)
            MLO_TRY(o->fn(o->arg, &upload, err));
        snprintf(at, MLO_BLOB_SESSION_ID_SIZE, "%s", upload.session.id);
        if (o->ends_ns && mlo_clock_ns() >= o->ends_ns)
            break;
    }
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_upload_lost(struct mlo_db_conn *conn, const struct mlo_upload_lost_options *options,
                                char at[MLO_BLOB_SESSION_ID_SIZE], bool *done, struct mlo_error *err)
{
    enum mlo_status status;
    int count;
    do
        status = lost_behind(conn, options, at, &count, err);
    while (status == MLO_OK && count && !(options->ends_ns && mlo_clock_ns() >= options->ends_ns));
    *done = status == MLO_OK && count == 0;
    return status;
}

enum mlo_status mlo_upload_drop(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                const struct mlo_actor *actor, const struct mlo_upload *upload,
                                struct mlo_error *err)
{
    enum mlo_status status = mlo_actor_require(actor, upload->project_id, MLO_SUBMITTER, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(remove_row(conn, upload, err));
    MLO_TRY(mlo_blob_session_drop(store, &upload->session, err));
out:
    return status;
}
