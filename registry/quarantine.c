/* Quarantine: what was rolled back is not promoted again until somebody lets it out. */
#include <string.h>

#include "registry/pointer_impl.h"
#include "registry/sql_impl.h"

enum { Q_ADD, Q_FIND, Q_LIST, Q_NAMED, Q_END };

/* The bytes of a release for each target: another name for them is no way around. */
#define BYTES_OF(id)                                                                                         \
    "(SELECT string_agg(rv.target || '=' || encode(rv.artifact, 'hex'), ';' ORDER BY rv.target COLLATE "     \
    "\"C\") FROM release_variant rv WHERE rv.release_id = " id ")"
#define IS_OPEN "NOT EXISTS (SELECT FROM quarantine_end e WHERE e.quarantine_id = q.id)"

const struct mlo_sql mlo_sql_quarantine[] = {
    /* unless it was put back by a rollback to it, and is still in there */
    [Q_ADD] =
        {"quarantine_add",
         "INSERT INTO quarantine (model_id, release_id, move_id, actor, reason, audit_seq) "
         "SELECT mv.model_id, $4, mv.id, $5, $6, mv.audit_seq FROM stage_move mv WHERE mv.model_id = $1 "
         "AND mv.stage = $2 AND mv.generation = $3 AND NOT EXISTS (SELECT FROM quarantine q WHERE "
         "q.release_id = $7 AND " IS_OPEN ")",
         7},
    [Q_FIND] =
        {"quarantine_find",
         "SELECT r.seq, q.actor, q.reason, to_char(q.at, 'YYYY-MM-DD HH24:MI:SS'), mv.stage "
         "FROM quarantine q JOIN release r ON r.id = q.release_id JOIN stage_move mv ON mv.id = q.move_id "
         "WHERE q.model_id = $1 AND " IS_OPEN " AND " BYTES_OF("r.id") " = $2 ORDER BY q.id DESC LIMIT 1",
         2},
    [Q_LIST] =
        {"quarantine_list",
         "SELECT q.id AS cursor_key, q.id, " MLO_RELEASE_JSON(
             "q.release_id") " AS release, mv.stage, q.actor, q.reason, q.at, q.audit_seq, "
                             "(SELECT json_build_object('actor', e.actor, 'reason', e.reason, 'at', "
                             "to_char(e.at, 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), 'audit_seq', e.audit_seq) "
                             "FROM quarantine_end e WHERE e.quarantine_id = q.id) AS ended "
                             "FROM quarantine q JOIN stage_move mv ON mv.id = q.move_id "
                             "WHERE q.model_id = $1 AND ($2 OR " IS_OPEN ") AND q.id < $3 "
                             "ORDER BY q.id DESC LIMIT $4",
         4},
    [Q_NAMED] = {"quarantine_named",
                 "SELECT q.id, mv.stage FROM quarantine q JOIN release r ON r.id = q.release_id "
                 "JOIN stage_move mv ON mv.id = q.move_id WHERE q.model_id = $1 AND r.seq = $2 AND " IS_OPEN
                 " ORDER BY q.id",
                 2},
    [Q_END] = {"quarantine_end",
               "INSERT INTO quarantine_end (quarantine_id, actor, reason, audit_seq) VALUES ($1, $2, "
               "$3, " MLO_AUDIT_LAST("$4") ")",
               4},
};
const size_t mlo_sql_quarantine_count = MLO_COUNT(mlo_sql_quarantine);

enum mlo_status mlo_quarantine_queue(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                     const struct mlo_pointer *left, const char *reason,
                                     struct mlo_error *err)
{
    struct mlo_params add = MLO_PARAMS_INIT;
    mlo_param_i64(&add, left->model_id);
    mlo_param_text(&add, left->stage);
    mlo_param_i64(&add, left->generation + 1);
    mlo_param_i64(&add, left->release_id);
    mlo_param_text(&add, actor->name);
    mlo_param_text(&add, reason);
    mlo_param_i64(&add, left->release_id);
    return mlo_db_queue(conn, &mlo_sql_quarantine[Q_ADD], &add, NULL, err);
}

/* Asks, now or ahead, whether these bytes are in quarantine. */
static enum mlo_status ask(struct mlo_gate_case *c, bool ahead, struct mlo_rows *rows, struct mlo_error *err)
{
    const struct mlo_sql *sql = &mlo_sql_quarantine[Q_FIND];
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf bytes = MLO_BUF_INIT;
    char hex[MLO_DIGEST_TEXT_SIZE];
    for (size_t i = 0; i < c->content->count; i++) {
        mlo_digest_hex(&c->content->items[i].variant.artifact, hex);
        mlo_buf_printf(&bytes, "%s%s=%s", i ? ";" : "", c->content->items[i].target, hex);
    }
    mlo_param_i64(&p, c->model_id);
    mlo_param_text(&p, mlo_buf_str(&bytes));
    enum mlo_status status = !mlo_buf_ok(&bytes) ? mlo_error_nomem(err)
                             : ahead             ? mlo_db_ahead(c->conn, sql, &p, err)
                                                 : mlo_db_exec(c->conn, sql, &p, rows, err);
    mlo_buf_clear(&bytes);
    return status;
}

enum mlo_status mlo_gate_quarantine_ahead(struct mlo_gate_case *c, struct mlo_error *err)
{
    return ask(c, true, NULL, err);
}

enum mlo_status mlo_gate_quarantine(struct mlo_gate_case *c, struct mlo_error *err)
{
    static const struct mlo_gate_kind kind = {.name = "quarantine"};
    static const struct mlo_gate gate = {.kind = &kind, .text = "not quarantined"};
    struct mlo_rows rows = {0};
    enum mlo_status status;
    MLO_TRY(ask(c, false, &rows, err));
    if (mlo_rows_count(&rows) == 0)
        goto out;
    json_t *row =
        mlo_gate_row(c, &gate, NULL, false,
                     "release %s was rolled back from %s by %s at %s UTC: %.200s; it stays out until an "
                     "approver releases it",
                     mlo_rows_text(&rows, 0, 0), mlo_rows_text(&rows, 0, 4), mlo_rows_text(&rows, 0, 1),
                     mlo_rows_text(&rows, 0, 3), mlo_rows_text(&rows, 0, 2));
    if (!row || json_object_set_new(row, "release", json_integer(mlo_rows_i64(&rows, 0, 0))) != 0)
        status = mlo_error_nomem(err);
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_quarantine_list(struct mlo_db_conn *conn, int64_t model_id, bool all,
                                    const struct mlo_page *page, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, model_id);
    mlo_param_bool(&p, all);
    return mlo_page_newest(conn, &mlo_sql_quarantine[Q_LIST], &p, page, out, err);
}

enum mlo_status mlo_quarantine_release(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                       int64_t model_id, int64_t release, const char *reason,
                                       struct mlo_error *err)
{
    struct mlo_params find = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_pointer at;
    char object[300];
    json_t *after = NULL;
    enum mlo_status status = mlo_actor_reason(reason, "letting a release out of quarantine", err);
    if (status == MLO_OK)
        status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_unlock_early(conn, err));
    /* one at a time: every rollback of production holds this too */
    MLO_TRY(mlo_pointer_lock(conn, model_id, "production", &at, err));
    mlo_param_i64(&find, model_id);
    mlo_param_i64(&find, release);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_quarantine[Q_NAMED], &find, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "release %lld is not in quarantine", (long long)release);
        goto out;
    }
    for (int r = 0; r < mlo_rows_count(&rows); r++) /* for each stage that it was rolled back from */
        MLO_TRY(mlo_actor_require_stage(actor, at.project_id, mlo_rows_text(&rows, r, 1), MLO_APPROVER, err));
    snprintf(object, sizeof object, "%.*s#%lld", (int)strcspn(at.object, ":"), at.object, (long long)release);
    after = json_pack("{s:I}", "release", (json_int_t)release);
    struct mlo_audit_event event = {
        .action = "quarantine.release", .object = object, .after = after, .reason = reason};
    if (!after) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_audit_queue(conn, at.project_id, actor, &event, NULL, err));
    for (int r = 0; r < mlo_rows_count(&rows); r++) {
        struct mlo_params end = MLO_PARAMS_INIT;
        mlo_param_i64(&end, mlo_rows_i64(&rows, r, 0));
        mlo_param_text(&end, actor->name);
        mlo_param_text(&end, reason);
        mlo_param_i64(&end, at.project_id);
        MLO_TRY(mlo_db_queue(conn, &mlo_sql_quarantine[Q_END], &end, NULL, err));
    }
out:
    json_decref(after);
    mlo_rows_clear(&rows);
    return mlo_db_end(conn, status, err);
}
