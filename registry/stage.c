/* Stages: the locked pointer and its moves, rollback, the promotion log. */
#include <string.h>

#include "registry/ledger.h"
#include "registry/pointer_impl.h"
#include "registry/sql_impl.h"

enum {
    STAGE_LOCK,
    STAGE_NOW,
    STAGE_BEFORE,
    STAGE_HELD,
    STAGE_MOVE_ADD,
    STAGE_GET,
    STAGE_LEDGER,
    STAGE_LIST,
    STAGE_HISTORY,
    STAGE_MOVE_GET,
    STAGE_AT
};

#define STAGE_COLUMNS                                                                                        \
    "s.name AS stage, s.generation, s.moved_at, " MLO_RELEASE_JSON(                                          \
        "s.release_id") " AS release, " MLO_RELEASE_JSON("(SELECT b.to_release FROM stage_move f JOIN "      \
                                                         "stage_move b ON b.id = f.replaced WHERE f.id = "   \
                                                         "s.move_id)") " AS previous"

#define MOVE_COLUMNS                                                                                         \
    "mv.id, p.name AS project, m.name AS model, mv.stage, mv.generation, mv.kind, " MLO_RELEASE_JSON(        \
        "mv.from_release") " AS \"from\", " MLO_RELEASE_JSON("mv.to_release") " AS \"to\", "                 \
                                                                              "mv.actor, mv.via, "           \
                                                                              "mv.reason, mv.request_id, "   \
                                                                              "mv.at, mv.audit_seq"

#define MOVE_TABLES "stage_move mv JOIN model m ON m.id = mv.model_id JOIN project p ON p.id = m.project_id"

const struct mlo_sql mlo_sql_stage[] = {
    [STAGE_LOCK] = {"stage_lock",
                    "SELECT s.generation, pg_advisory_xact_lock_shared(" MLO_POLICY_LOCK_CLASS
                    ", (m.project_id % 2147483647)::int) FROM stage s JOIN model m ON m.id = s.model_id "
                    "WHERE s.model_id = $1 AND s.name = $2 FOR NO KEY UPDATE OF s",
                    2},
    /* after the lock: a join within it would see releases of the time before it was granted */
    [STAGE_NOW] = {"stage_now",
                   "SELECT s.generation, s.move_id, s.release_id, r.seq, m.project_id, p.name || '/' || "
                   "m.name, v.number, r.content, clock_timestamp() "
                   "FROM stage s JOIN model m ON m.id = s.model_id JOIN project p ON p.id = m.project_id "
                   "LEFT JOIN release r ON r.id = s.release_id LEFT JOIN version v ON v.id = r.version_id "
                   "WHERE s.model_id = $1 AND s.name = $2",
                   2},
    [STAGE_BEFORE] =
        {"stage_before",
         "SELECT b.id, b.to_release, r.seq, v.number, r.content FROM stage_move f JOIN stage_move b ON b.id "
         "= "
         "f.replaced "
         "JOIN release r ON r.id = b.to_release JOIN version v ON v.id = r.version_id WHERE f.id = $1",
         1},
    [STAGE_HELD] =
        {"stage_held",
         "SELECT b.id, b.to_release, r.seq, v.number, r.content FROM stage_move b JOIN release r ON r.id = "
         "b.to_release "
         "JOIN version v ON v.id = r.version_id WHERE b.model_id = $1 AND b.stage = $2 "
         "AND b.kind = 'promotion' AND r.seq = $3 ORDER BY b.id DESC LIMIT 1",
         3},
    [STAGE_MOVE_ADD] =
        {"stage_move_add",
         "WITH mv AS (INSERT INTO stage_move (model_id, stage, generation, kind, from_release, to_release, "
         "replaced, restores, actor, via, reason, request_id, audit_seq, at) "
         "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, " MLO_AUDIT_LAST(
             "$13") ", "
                    "$14::timestamptz) RETURNING *) "
                    "UPDATE stage s SET release_id = mv.to_release, move_id = coalesce(mv.restores, mv.id), "
                    "generation = mv.generation, moved_at = mv.at FROM mv WHERE s.model_id = mv.model_id "
                    "AND s.name = mv.stage RETURNING mv.id",
         14},
    [STAGE_GET] = {"stage_get", "SELECT " STAGE_COLUMNS " FROM stage s WHERE s.model_id = $1 AND s.name = $2",
                   2},
    /* the stage as the move will leave it; `previous` is what a rollback would restore */
    [STAGE_LEDGER] =
        {"stage_ledger",
         "SELECT p.name || '/' || m.name AS model, 'sha256:' || encode(v.manifest_digest, 'hex') AS "
         "manifest, $2::text AS stage, $4::bigint AS generation, $5::timestamptz AS "
         "moved_at, " MLO_RELEASE_JSON("rel.id") " AS release, " MLO_RELEASE_JSON(
             "(SELECT b.to_release FROM stage_move b WHERE b.id = CASE "
             "WHEN $7::bigint IS NULL THEN $6::bigint ELSE (SELECT "
             "f.replaced FROM stage_move f WHERE f.id = $7) END)") " AS previous FROM model m JOIN "
                                                                   "project p ON p.id = m.project_id JOIN "
                                                                   "release rel ON rel.model_id = m.id JOIN "
                                                                   "version v ON v.id = "
                                                                   "rel.version_id WHERE m.id = $1 AND "
                                                                   "rel.content = $3",
         7},
    [STAGE_LIST] = {"stage_list",
                    "SELECT " STAGE_COLUMNS
                    " FROM stage s WHERE s.model_id = $1 ORDER BY s.name = 'production'",
                    1},
    [STAGE_HISTORY] =
        {"stage_history",
         "SELECT mv.id AS cursor_key, " MOVE_COLUMNS " FROM " MOVE_TABLES
         " WHERE ($1::bigint IS NULL OR m.project_id = $1) "
         "AND ($2::bigint IS NULL OR m.project_id = $2) AND ($3::bigint IS NULL OR mv.model_id = $3) "
         "AND ($4::text IS NULL OR mv.stage = $4) AND ($5::bigint IS NULL OR (SELECT x.id FROM release x "
         "WHERE x.model_id = $3 AND x.seq = $5) IN (mv.from_release, mv.to_release)) AND mv.id < $6 "
         "ORDER BY mv.id DESC LIMIT $7",
         7},
    [STAGE_MOVE_GET] = {"stage_move_get", "SELECT " MOVE_COLUMNS " FROM " MOVE_TABLES " WHERE mv.id = $1", 1},
    [STAGE_AT] = {"stage_at",
                  "SELECT " MOVE_COLUMNS " FROM " MOVE_TABLES " WHERE mv.model_id = $1 AND mv.stage = $2 "
                  "AND mv.at <= $3::timestamptz ORDER BY mv.generation DESC LIMIT 1",
                  3},
};
const size_t mlo_sql_stage_count = MLO_COUNT(mlo_sql_stage);

enum mlo_status mlo_stage_unknown(const char *stage, struct mlo_error *err)
{
    return mlo_error_set(err, MLO_ENOTFOUND, "there is no stage '%.40s': staging and production are",
                         stage ? stage : "");
}

static enum mlo_status pointer_lock(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                    const int64_t *version, struct mlo_pointer *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    enum mlo_status status;
    memset(out, 0, sizeof *out);
    mlo_param_i64(&p, model_id);
    mlo_param_text(&p, stage);
    MLO_TRY(mlo_db_queue(conn, &mlo_sql_stage[STAGE_LOCK], &p, NULL, err));
    if (version)
        MLO_TRY(mlo_version_ahead(conn, model_id, *version, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_stage[STAGE_NOW], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no such model");
        goto out;
    }
    out->model_id = model_id;
    out->stage = stage;
    out->generation = mlo_rows_i64(&rows, 0, 0);
    out->move_id = mlo_rows_i64(&rows, 0, 1);
    out->release_id = mlo_rows_i64(&rows, 0, 2);
    out->release_seq = mlo_rows_i64(&rows, 0, 3);
    out->project_id = mlo_rows_i64(&rows, 0, 4);
    out->version = mlo_rows_i64(&rows, 0, 6);
    mlo_rows_digest(&rows, 0, 7, &out->content);
    snprintf(out->now, sizeof out->now, "%s", mlo_rows_text(&rows, 0, 8));
    snprintf(out->object, sizeof out->object, "%s:%s", mlo_rows_text(&rows, 0, 5), stage);
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_pointer_lock(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                 struct mlo_pointer *out, struct mlo_error *err)
{
    return pointer_lock(conn, model_id, stage, NULL, out, err);
}

enum mlo_status mlo_pointer_lock_for(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                     int64_t version, struct mlo_pointer *out, struct mlo_error *err)
{
    return pointer_lock(conn, model_id, stage, &version, out, err);
}

enum mlo_status mlo_pointer_match(const struct mlo_pointer *at, const int64_t *if_match,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (!if_match) {
        status = mlo_error_set(err, MLO_EPRECONDITION_REQUIRED,
                               "moving %s needs If-Match with its generation", at->object);
        mlo_error_hint(err, "read the stage, and send its ETag: If-Match: \"%lld\"",
                       (long long)at->generation);
    } else if (*if_match != at->generation) {
        status = mlo_error_set(err, MLO_EPRECONDITION, "stage %s of %.*s is at generation %lld, not %lld",
                               at->stage, (int)strcspn(at->object, ":"), at->object,
                               (long long)at->generation, (long long)*if_match);
        mlo_error_where(err, "stage '%s'", at->stage);
        mlo_error_hint(err, "read the stage again and repeat with its ETag");
    }
    return status;
}

json_t *mlo_stage_state(int64_t generation, int64_t release, int64_t version)
{
    return release ? json_pack("{s:I, s:I, s:I}", "generation", (json_int_t)generation, "release",
                               (json_int_t)release, "version", (json_int_t)version)
                   : json_pack("{s:I, s:n}", "generation", (json_int_t)generation, "release");
}

static void ledger_params(const struct mlo_pointer *at, const struct mlo_move_to *to, struct mlo_params *p)
{
    mlo_param_i64(p, at->model_id);
    mlo_param_text(p, at->stage);
    mlo_param_digest(p, &to->content);
    mlo_param_i64(p, at->generation + 1);
    mlo_param_text(p, at->now);
    mlo_param_id(p, at->move_id);
    mlo_param_id(p, to->restores);
}

enum mlo_status mlo_stage_move_ahead(struct mlo_db_conn *conn, const struct mlo_pointer *at,
                                     const struct mlo_move_to *to, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    ledger_params(at, to, &p);
    return mlo_db_ahead(conn, &mlo_sql_stage[STAGE_LEDGER], &p, err);
}

/* The stage as it will be, for the ledger. */
static enum mlo_status ledger_state(struct mlo_db_conn *conn, const struct mlo_pointer *at,
                                    const struct mlo_move_to *to, const struct mlo_actor *actor, json_t **out,
                                    struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    ledger_params(at, to, &p);
    enum mlo_status status = mlo_sql_object(conn, &mlo_sql_stage[STAGE_LEDGER], &p, out, err);
    if (status != MLO_OK)
        return status;
    json_t *by = json_pack("{s:s, s:s, s:s, s:i}", "kind", to->kind, "by", actor->name, "reason",
                           to->reason ? to->reason : "", "audit_seq", MLO_LEDGER_SEQ);
    return by && json_object_set_new(*out, "move", by) == 0 ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status queue_ledger(struct mlo_db_conn *conn, const struct mlo_pointer *at,
                                    const json_t *state, struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT, text = MLO_BUF_INIT;
    const char *model = strchr(mlo_json_str(state, "model", "/"), '/') + 1;
    mlo_buf_printf(&path, "%s/%s.json", at->stage, model);
    mlo_ledger_json(state, &text);
    const struct mlo_ledger_file file = {
        .path = mlo_buf_str(&path), .text = mlo_buf_str(&text), .size = text.len};
    enum mlo_status status = mlo_buf_ok(&path) && mlo_buf_ok(&text)
                                 ? mlo_ledger_queue(conn, at->project_id, &file, 1, err)
                                 : mlo_error_nomem(err);
    mlo_buf_clear(&path);
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status queue_move(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                  const struct mlo_pointer *at, const struct mlo_move_to *to,
                                  struct mlo_rows *rows, struct mlo_error *err)
{
    struct mlo_params add = MLO_PARAMS_INIT;
    mlo_param_i64(&add, at->model_id);
    mlo_param_text(&add, at->stage);
    mlo_param_i64(&add, at->generation + 1);
    mlo_param_text(&add, to->kind);
    mlo_param_id(&add, at->release_id);
    mlo_param_i64(&add, to->release_id);
    mlo_param_id(&add, at->move_id);
    mlo_param_id(&add, to->restores);
    mlo_param_text(&add, actor->name);
    mlo_param_text(&add, actor->via ? actor->via : "system");
    mlo_param_text(&add, to->reason ? to->reason : "");
    mlo_param_text(&add, actor->request_id ? actor->request_id : "");
    mlo_param_i64(&add, at->project_id);
    mlo_param_text(&add, at->now);
    return mlo_db_queue(conn, &mlo_sql_stage[STAGE_MOVE_ADD], &add, rows, err);
}

enum mlo_status mlo_stage_move(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                               const struct mlo_pointer *at, const struct mlo_move_to *to,
                               struct mlo_move_rows *rows, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *state = NULL;
    json_t *before = mlo_stage_state(at->generation, at->release_seq, at->version);
    json_t *after = mlo_stage_state(at->generation + 1, to->release_seq, to->version);
    if (!before || !after ||
        (to->decision && json_object_set_new(after, "decision", json_string(to->decision)) != 0) ||
        (to->quarantined && json_object_set_new(after, "quarantined", json_integer(to->quarantined)) != 0)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(ledger_state(conn, at, to, actor, &state, err));
    struct mlo_audit_event event = {
        .action = to->action, .object = at->object, .before = before, .after = after, .reason = to->reason};
    MLO_TRY(mlo_audit_queue(conn, at->project_id, actor, &event, &rows->audit, err));
    MLO_TRY(queue_move(conn, actor, at, to, &rows->move, err));
    MLO_TRY(queue_ledger(conn, at, state, err));
out:
    json_decref(state);
    json_decref(before);
    json_decref(after);
    return status;
}

void mlo_stage_moved(const struct mlo_pointer *at, const struct mlo_move_to *to,
                     const struct mlo_move_rows *rows, struct mlo_move *out)
{
    *out = (struct mlo_move){.id = mlo_rows_i64(&rows->move, 0, 0),
                             .audit_seq = mlo_rows_i64(&rows->audit, 0, 0),
                             .generation = at->generation + 1,
                             .from_release = at->release_seq,
                             .to_release = to->release_seq};
}

void mlo_move_rows_clear(struct mlo_move_rows *rows)
{
    mlo_rows_clear(&rows->audit);
    mlo_rows_clear(&rows->move);
    mlo_rows_clear(&rows->decision);
}

enum mlo_status mlo_stage_answer(struct mlo_db_conn *conn, enum mlo_status status, struct mlo_error *err)
{
    struct mlo_error why = {0};
    if ((status != MLO_ECONFLICT && status != MLO_EPRECONDITION) || mlo_db_in_transaction(conn))
        return status;
    enum mlo_status settled = mlo_db_settle(conn, &why);
    if (settled != MLO_OK && err)
        *err = why;
    return settled == MLO_OK ? status : settled;
}

enum mlo_status mlo_stage_rollback(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   const struct mlo_rollback *rollback, struct mlo_move *out,
                                   struct mlo_error *err)
{
    struct mlo_pointer at;
    struct mlo_rows rows = {0};
    struct mlo_move_rows written = {0};
    struct mlo_move_to to = {.kind = "rollback", .action = "stage.rollback", .reason = rollback->reason};
    struct mlo_params p = MLO_PARAMS_INIT;
    memset(out, 0, sizeof *out);
    if (!mlo_stage_valid(rollback->stage))
        return mlo_stage_unknown(rollback->stage, err);
    enum mlo_status status = mlo_actor_reason(rollback->reason, "a rollback", err);
    if (status == MLO_OK)
        status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_unlock_early(conn, err));
    MLO_TRY(mlo_pointer_lock(conn, rollback->model_id, rollback->stage, &at, err));
    MLO_TRY(mlo_actor_may_rollback(actor, at.project_id, rollback->stage, err));
    MLO_TRY(mlo_pointer_match(&at, rollback->if_match, err));
    if (rollback->to_release) {
        mlo_param_i64(&p, at.model_id);
        mlo_param_text(&p, at.stage);
        mlo_param_i64(&p, rollback->to_release);
        MLO_TRY(mlo_db_exec(conn, &mlo_sql_stage[STAGE_HELD], &p, &rows, err));
    } else {
        mlo_param_i64(&p, at.move_id);
        MLO_TRY(mlo_db_exec(conn, &mlo_sql_stage[STAGE_BEFORE], &p, &rows, err));
    }
    if (mlo_rows_count(&rows) == 0) {
        status = rollback->to_release
                     ? mlo_error_set(err, MLO_ECONFLICT, "release %lld was never in %s",
                                     (long long)rollback->to_release, at.object)
                     : mlo_error_set(err, MLO_ECONFLICT,
                                     "nothing was in %s before: there is nothing to roll back to", at.object);
        goto out;
    }
    to.restores = mlo_rows_i64(&rows, 0, 0);
    to.release_id = mlo_rows_i64(&rows, 0, 1);
    to.release_seq = mlo_rows_i64(&rows, 0, 2);
    to.version = mlo_rows_i64(&rows, 0, 3);
    to.quarantined = at.release_seq;
    if (to.release_id == at.release_id) {
        status = mlo_error_set(err, MLO_ECONFLICT, "%s holds release %lld already", at.object,
                               (long long)to.release_seq);
        goto out;
    }
    if (!mlo_rows_digest(&rows, 0, 4, &to.content)) {
        status = mlo_error_set(err, MLO_EINTERNAL, "release %lld has no content", (long long)to.release_seq);
        goto out;
    }
    MLO_TRY(mlo_stage_move(conn, actor, &at, &to, &written, err));
    MLO_TRY(mlo_quarantine_queue(conn, actor, &at, rollback->reason, err));
out:
    mlo_rows_clear(&rows);
    status = mlo_db_end(conn, status, err); /* sends what is queued, with its COMMIT */
    if (status == MLO_OK)
        mlo_stage_moved(&at, &to, &written, out);
    mlo_move_rows_clear(&written);
    return mlo_stage_answer(conn, status, err);
}

/* --- reading ----------------------------------------------------------------------------------- */

enum mlo_status mlo_stage_get(struct mlo_db_conn *conn, int64_t model_id, const char *stage, json_t **out,
                              struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    *out = NULL;
    if (!mlo_stage_valid(stage))
        return mlo_stage_unknown(stage, err);
    mlo_param_i64(&p, model_id);
    mlo_param_text(&p, stage);
    return mlo_sql_object(conn, &mlo_sql_stage[STAGE_GET], &p, out, err);
}

enum mlo_status mlo_stage_list(struct mlo_db_conn *conn, int64_t model_id, json_t **out,
                               struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, model_id);
    return mlo_sql_array(conn, &mlo_sql_stage[STAGE_LIST], &p, out, err);
}

enum mlo_status mlo_stage_move_get(struct mlo_db_conn *conn, int64_t move_id, json_t **out,
                                   struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, move_id);
    return mlo_sql_object(conn, &mlo_sql_stage[STAGE_MOVE_GET], &p, out, err);
}

enum mlo_status mlo_stage_history(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                  const struct mlo_history_filter *filter, const struct mlo_page *page,
                                  json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    *out = NULL;
    if (filter && filter->stage && !mlo_stage_valid(filter->stage))
        return mlo_stage_unknown(filter->stage, err);
    mlo_param_id(&p, actor->project_id);
    mlo_param_id(&p, filter ? filter->project_id : 0);
    mlo_param_id(&p, filter ? filter->model_id : 0);
    mlo_param_text(&p, filter ? filter->stage : NULL);
    mlo_param_id(&p, filter ? filter->release : 0);
    return mlo_page_newest(conn, &mlo_sql_stage[STAGE_HISTORY], &p, page, out, err);
}

enum mlo_status mlo_stage_at(struct mlo_db_conn *conn, int64_t model_id, const char *stage, const char *time,
                             json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    *out = NULL;
    if (!mlo_stage_valid(stage))
        return mlo_stage_unknown(stage, err);
    mlo_param_i64(&p, model_id);
    mlo_param_text(&p, stage);
    mlo_param_text(&p, time);
    enum mlo_status status = mlo_sql_object(conn, &mlo_sql_stage[STAGE_AT], &p, out, err);
    if (status == MLO_EINVAL) {
        mlo_error_set(err, MLO_EINVAL, "'%.60s' is no time", time);
        mlo_error_hint(err, "write 2026-01-31T12:00:00Z");
    }
    if (status == MLO_ENOTFOUND) {
        *out = json_null();
        status = MLO_OK;
    }
    return status;
}
