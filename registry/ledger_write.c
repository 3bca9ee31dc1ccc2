/* From a recorded event to a signed commit in PostgreSQL, one transaction each. */
#include <stdlib.h>
#include <string.h>

#include "base/ssh_sign.h"
#include "registry/ledger_impl.h"
#include "registry/sql_impl.h"

enum { WRITE_PENDING, WRITE_LOCK, WRITE_HEAD, WRITE_EVENT, WRITE_APPEND, WRITE_FIND, WRITE_AFTER };

const struct mlo_sql mlo_sql_ledger_write[] = {
    [WRITE_PENDING] =
        {"ledger_pending",
         "SELECT 1 FROM ledger_event WHERE project_id = $1 AND audit_seq > coalesce((SELECT audit_seq "
         "FROM ledger_head WHERE project_id = $2), 0) LIMIT 1",
         2},
    [WRITE_LOCK] = {"ledger_lock",
                    "SELECT 1 FROM pg_advisory_xact_lock(hashtextextended('mlopt ledger ' || $1::text, 0))",
                    1},
    [WRITE_HEAD] = {"ledger_head", "SELECT n, audit_seq, id, state FROM ledger_head WHERE project_id = $1",
                    1},
    [WRITE_EVENT] =
        {"ledger_event",
         "SELECT e.audit_seq, e.files, a.body, a.hash FROM ledger_event e JOIN audit a ON a.project_id = "
         "e.project_id AND a.seq = e.audit_seq WHERE e.project_id = $1 AND e.audit_seq > $2 ORDER BY "
         "e.audit_seq LIMIT 1",
         2},
    [WRITE_APPEND] = {"ledger_append", "SELECT ledger_commit_append($1, $2, $3, $4, $5, $6, $7)", 7},
    [WRITE_FIND] = {"ledger_find", "SELECT n FROM ledger_commit WHERE project_id = $1 AND id = $2", 2},
    [WRITE_AFTER] =
        {"ledger_after",
         "SELECT n, id, audit_seq, body, files FROM ledger_commit WHERE project_id = $1 AND n > $2 ORDER "
         "BY n LIMIT $3",
         3},
};
const size_t mlo_sql_ledger_write_count = MLO_COUNT(mlo_sql_ledger_write);

static const char README[] =
    "# Ledger\n\n"
    "Each commit is a promotion, a rollback, an approval or a change of policy, signed by the server that "
    "kept it.\n"
    "production/ and staging/ hold what is there, by model. The last line of a commit's message names the "
    "entry of the\n"
    "audit log with its hash.\n\n"
    "    git -c gpg.ssh.allowedSignersFile=allowed_signers log --show-signature\n\n"
    "checks the signatures; take allowed_signers from where you trust it. keys/N.sig is the signature of "
    "keys/N.pub by\n"
    "the key before it (name space mlopt-key). mlopt audit verify checks all of it against the audit log.\n";

static bool git_id(const struct mlo_rows *rows, int row, int column, struct mlo_git_id *out)
{
    struct mlo_buf bytes = MLO_BUF_INIT;
    mlo_rows_bytes(rows, row, column, &bytes);
    bool ok = bytes.len == sizeof out->bytes;
    if (ok)
        memcpy(out->bytes, bytes.data, sizeof out->bytes);
    mlo_buf_clear(&bytes);
    return ok;
}

/* *state (may be NULL) is yours. */
static enum mlo_status read_head(struct mlo_db_conn *conn, int64_t project_id, struct mlo_ledger_place *out,
                                 json_t **state, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    enum mlo_status status;
    memset(out, 0, sizeof *out);
    mlo_param_i64(&p, project_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_ledger_write[WRITE_HEAD], &p, &rows, err));
    if (mlo_rows_count(&rows) > 0 && mlo_rows_i64(&rows, 0, 0) > 0) {
        out->n = mlo_rows_i64(&rows, 0, 0);
        out->audit_seq = mlo_rows_i64(&rows, 0, 1);
        if (!git_id(&rows, 0, 2, &out->id)) {
            status =
                mlo_error_set(err, MLO_EFORMAT, "the head of ledger %lld has no id", (long long)project_id);
            goto out;
        }
        const char *text = mlo_rows_text(&rows, 0, 3);
        if (state)
            MLO_TRY(mlo_json_parse(text, strlen(text), "the ledger's state", state, err));
    } else if (state) {
        *state = json_object();
    }
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_ledger_head(struct mlo_db_conn *conn, int64_t project_id, struct mlo_ledger_place *out,
                                struct mlo_error *err)
{
    return read_head(conn, project_id, out, NULL, err);
}

enum mlo_status mlo_ledger_find(struct mlo_db_conn *conn, int64_t project_id, const struct mlo_git_id *id,
                                int64_t *n, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_bytes(&p, id->bytes, sizeof id->bytes);
    *n = 0;
    enum mlo_status status = mlo_sql_number(conn, &mlo_sql_ledger_write[WRITE_FIND], &p, n, err);
    return status == MLO_ENOTFOUND ? MLO_OK : status;
}

enum mlo_status mlo_ledger_rows_after(struct mlo_db_conn *conn, int64_t project_id, int64_t n, int64_t limit,
                                      struct mlo_rows *rows, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, n);
    mlo_param_i64(&p, limit);
    return mlo_db_exec(conn, &mlo_sql_ledger_write[WRITE_AFTER], &p, rows, err);
}

static json_t *commit_json(const struct mlo_rows *rows, int row, struct mlo_error *err)
{
    struct mlo_buf body = MLO_BUF_INIT;
    struct mlo_git_id id = {{0}};
    char hex[MLO_GIT_ID_TEXT_SIZE];
    const char *text = mlo_rows_text(rows, row, LEDGER_ROW_FILES);
    json_t *files = NULL, *item = NULL;
    git_id(rows, row, LEDGER_ROW_ID, &id);
    mlo_rows_bytes(rows, row, LEDGER_ROW_BODY, &body);
    /* bytes that are no text any more (somebody changed them) show as null */
    json_t *commit = json_stringn(mlo_buf_str(&body), body.len);
    if (mlo_json_parse(text, strlen(text), "the files of a commit", &files, err) == MLO_OK)
        item =
            json_pack("{s:I, s:s, s:I, s:o?, s:O}", "n", (json_int_t)mlo_rows_i64(rows, row, LEDGER_ROW_N),
                      "id", mlo_git_id_text(&id, hex), "audit_seq",
                      (json_int_t)mlo_rows_i64(rows, row, LEDGER_ROW_SEQ), "commit", commit, "files", files);
    else
        json_decref(commit);
    json_decref(files);
    mlo_buf_clear(&body);
    return item;
}

enum mlo_status mlo_ledger_list(struct mlo_db_conn *conn, int64_t project_id, const struct mlo_page *page,
                                json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    json_t *items = json_array();
    int64_t limit, after;
    char next[24];
    enum mlo_status status;
    *out = NULL;
    MLO_TRY(mlo_page_limit(page, &limit, err));
    MLO_TRY(mlo_page_number(page, 0, &after, err));
    MLO_TRY(mlo_ledger_rows_after(conn, project_id, after, limit + 1, &rows, err));
    int count = mlo_rows_count(&rows);
    for (int r = 0; r < count && r < limit; r++) {
        json_t *item = commit_json(&rows, r, err);
        if (!item) {
            status = err && err->status != MLO_OK ? err->status : mlo_error_nomem(err);
            goto out;
        }
        after = mlo_rows_i64(&rows, r, LEDGER_ROW_N);
        json_array_append_new(items, item);
    }
    snprintf(next, sizeof next, "%lld", (long long)after);
    *out = json_pack("{s:O, s:s?}", "items", items, "next", count > limit ? next : NULL);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(items);
    mlo_rows_clear(&rows);
    return status;
}

/* Adds a file of the ledger's own unless the state has it so. */
static void own_file(const json_t *state, json_t *files, const char *path, const char *text, size_t size)
{
    struct mlo_git_id id;
    char hex[MLO_GIT_ID_TEXT_SIZE];
    mlo_git_object_id("blob", text, size, &id);
    if (strcmp(mlo_json_str(state, path, ""), mlo_git_id_text(&id, hex)) != 0)
        json_array_append_new(files, json_pack("{s:s, s:s%}", "path", path, "text", text, size));
}

/* README.md, allowed_signers and keys/, where they changed. */
static enum mlo_status own_files(struct mlo_db_conn *conn, const json_t *state, json_t *files,
                                 struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *keys = NULL, *key;
    size_t i;
    char path[32];
    enum mlo_status status;
    MLO_TRY(mlo_keys_list(conn, &keys, err));
    own_file(state, files, "README.md", README, sizeof README - 1);
    mlo_keys_allowed_signers(keys, &text);
    own_file(state, files, "allowed_signers", mlo_buf_str(&text), text.len);
    json_array_foreach(keys, i, key)
    {
        const char *endorsement = mlo_json_str(key, "endorsement", NULL);
        mlo_buf_reset(&text);
        mlo_buf_printf(&text, "%s\n", mlo_json_str(key, "key", ""));
        snprintf(path, sizeof path, "keys/%zu.pub", i + 1);
        own_file(state, files, path, mlo_buf_str(&text), text.len);
        snprintf(path, sizeof path, "keys/%zu.sig", i + 1);
        if (endorsement)
            own_file(state, files, path, endorsement, strlen(endorsement));
    }
    if (!mlo_buf_ok(&text))
        status = mlo_error_nomem(err);
out:
    json_decref(keys);
    mlo_buf_clear(&text);
    return status;
}

struct next {
    struct mlo_ledger_place head;
    json_t *state, *files, *audit;
    struct mlo_ledger_commit commit;
    struct mlo_buf unsigned_commit, armored, bytes;
};

static void next_clear(struct next *next)
{
    json_decref(next->state);
    json_decref(next->files);
    json_decref(next->audit);
    mlo_buf_clear(&next->unsigned_commit);
    mlo_buf_clear(&next->armored);
    mlo_buf_clear(&next->bytes);
}

/* The event after the head; *found false when there is none. */
static enum mlo_status read_event(struct mlo_db_conn *conn, int64_t project_id, struct next *next,
                                  bool *found, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_buf body = MLO_BUF_INIT;
    enum mlo_status status;
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, next->head.audit_seq);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_ledger_write[WRITE_EVENT], &p, &rows, err));
    *found = mlo_rows_count(&rows) > 0;
    if (!*found)
        goto out;
    next->commit.audit_seq = mlo_rows_i64(&rows, 0, 0);
    const char *files = mlo_rows_text(&rows, 0, 1);
    MLO_TRY(mlo_json_parse(files, strlen(files), "a ledger event's files", &next->files, err));
    mlo_rows_bytes(&rows, 0, 2, &body);
    MLO_TRY(mlo_json_parse(mlo_buf_str(&body), body.len, "an audit entry", &next->audit, err));
    if (!mlo_rows_digest(&rows, 0, 3, &next->commit.audit_hash))
        status = mlo_error_set(err, MLO_EFORMAT, "audit entry %lld has no hash",
                               (long long)next->commit.audit_seq);
out:
    mlo_buf_clear(&body);
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status compose(struct mlo_db_conn *conn, const struct mlo_sign_key *key, int64_t valid_from_s,
                               struct next *next, struct mlo_error *err)
{
    int64_t at = 0;
    enum mlo_status status;
    MLO_TRY(own_files(conn, next->state, next->files, err));
    MLO_TRY(mlo_ledger_apply(next->state, next->files, NULL, NULL, err));
    MLO_TRY(mlo_ledger_tree(next->state, NULL, NULL, &next->commit.tree, err));
    next->commit.parent = next->head.n ? &next->head.id : NULL;
    next->commit.audit = next->audit;
    if (!mlo_ledger_seconds(mlo_json_str(next->audit, "at", ""), &at)) {
        status = mlo_error_set(err, MLO_EFORMAT, "audit entry %lld has no time",
                               (long long)next->commit.audit_seq);
        goto out;
    }
    /* an event from before a rotation that is written after it: the key is not valid earlier */
    next->commit.time_s = MLO_MAX(at, valid_from_s);
    MLO_TRY(mlo_ledger_compose(&next->commit, &next->unsigned_commit, err));
    MLO_TRY(mlo_ssh_sign(key, MLO_LEDGER_SIGNED_AS, mlo_buf_str(&next->unsigned_commit),
                         next->unsigned_commit.len, &next->armored, err));
    mlo_ledger_join(&next->unsigned_commit, &next->armored, &next->bytes);
    if (!mlo_buf_ok(&next->bytes))
        status = mlo_error_nomem(err);
out:
    return status;
}

static enum mlo_status append(struct mlo_db_conn *conn, int64_t project_id, const struct next *next,
                              struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf files = MLO_BUF_INIT, state = MLO_BUF_INIT;
    struct mlo_git_id id;
    mlo_json_canonical(next->files, &files);
    mlo_json_canonical(next->state, &state);
    mlo_git_object_id("commit", mlo_buf_str(&next->bytes), next->bytes.len, &id);
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, next->head.n + 1);
    mlo_param_i64(&p, next->commit.audit_seq);
    mlo_param_bytes(&p, id.bytes, sizeof id.bytes);
    mlo_param_bytes(&p, mlo_buf_str(&next->bytes), next->bytes.len);
    mlo_param_text(&p, mlo_buf_str(&files));
    mlo_param_text(&p, mlo_buf_str(&state));
    enum mlo_status status = mlo_buf_ok(&files) && mlo_buf_ok(&state)
                                 ? mlo_sql_number(conn, &mlo_sql_ledger_write[WRITE_APPEND], &p, NULL, err)
                                 : mlo_error_nomem(err);
    mlo_buf_clear(&files);
    mlo_buf_clear(&state);
    return status;
}

enum mlo_status mlo_ledger_write_next(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                      bool *written, struct mlo_error *err)
{
    struct next next = {0};
    struct mlo_params pending = MLO_PARAMS_INIT, lock = MLO_PARAMS_INIT;
    int64_t valid_from_s;
    *written = false;
    mlo_param_i64(&pending, project_id);
    mlo_param_i64(&pending, project_id);
    enum mlo_status status = mlo_sql_number(conn, &mlo_sql_ledger_write[WRITE_PENDING], &pending, NULL, err);
    if (status == MLO_ENOTFOUND)
        return MLO_OK;
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_begin(conn, err));
    mlo_ledger_step(ledger, "begin");
    mlo_param_i64(&lock, project_id);
    status = mlo_db_exec(conn, &mlo_sql_ledger_write[WRITE_LOCK], &lock, NULL, err);
    if (status == MLO_OK)
        status = mlo_keys_hold(conn, mlo_sign_key_public(ledger->key), &valid_from_s, err);
    if (status == MLO_OK)
        status = read_head(conn, project_id, &next.head, &next.state, err);
    if (status == MLO_OK)
        status = read_event(conn, project_id, &next, written, err);
    if (status == MLO_OK && *written) {
        status = compose(conn, ledger->key, valid_from_s, &next, err);
        mlo_ledger_step(ledger, "composed");
        if (status == MLO_OK)
            status = append(conn, project_id, &next, err);
    }
    mlo_ledger_step(ledger, "appended");
    status = mlo_db_end(conn, status, err);
    mlo_ledger_step(ledger, "committed");
out:
    *written = *written && status == MLO_OK;
    next_clear(&next);
    return status;
}
