/* Approvals: of exactly what was shown, and the gate that counts them. */
#include <string.h>

#include "registry/ledger.h"
#include "registry/pointer_impl.h"
#include "registry/sql_impl.h"

enum { A_ADD, A_MINE, A_LIST, A_FIND, A_END, A_GIVEN, A_VOID, A_AUTHOR, A_NEWEST };

#define IN_FORCE "NOT EXISTS (SELECT FROM approval_end e WHERE e.approval_id = a.id)"

const struct mlo_sql mlo_sql_approval[] = {
    [A_ADD] =
        {"approval_add",
         "INSERT INTO approval (model_id, stage, generation, content, shown, role, token_id, actor, via, "
         "note, "
         "request_id, audit_seq, version_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) "
         "RETURNING id",
         13},
    [A_MINE] =
        {"approval_mine",
         "SELECT a.id FROM approval a WHERE a.model_id = $1 AND a.shown = $2 AND a.actor = $3 AND " IN_FORCE,
         3},
    [A_LIST] =
        {"approval_list",
         "SELECT a.id AS cursor_key, a.id, a.stage, a.generation, a.content, a.shown, a.role, a.actor, "
         "a.via, "
         "a.note, a.at, a.audit_seq, (SELECT json_build_object('actor', e.actor, 'reason', e.reason, 'at', "
         "to_char(e.at, 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), 'audit_seq', e.audit_seq) FROM approval_end e "
         "WHERE e.approval_id = a.id) AS withdrawn FROM approval a WHERE a.model_id = $1 "
         "AND ($2::text IS NULL OR a.stage = $2) AND a.id < $3 ORDER BY a.id DESC LIMIT $4",
         4},
    [A_FIND] = {"approval_find",
                "SELECT a.stage, a.actor, " IN_FORCE " FROM approval a WHERE a.model_id = $1 AND a.id = $2",
                2},
    [A_END] = {"approval_end",
               "INSERT INTO approval_end (approval_id, actor, reason, audit_seq) VALUES ($1, $2, $3, $4)", 4},
    [A_GIVEN] =
        {"approval_given",
         "SELECT a.id, a.actor, a.role, to_char(a.at, 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') FROM approval a "
         "WHERE a.model_id = $1 AND a.shown = $2 AND " IN_FORCE " ORDER BY a.id",
         2},
    [A_VOID] =
        {"approval_void",
         "SELECT count(*) FROM approval a WHERE a.model_id = $1 AND a.stage = $2 AND a.content = $3 AND "
         "a.shown <> $4 AND " IN_FORCE,
         4},
    [A_AUTHOR] = {"approval_author", "SELECT created_by FROM version WHERE id = $1", 1},
    [A_NEWEST] =
        {"approval_newest",
         "SELECT max(e.id) FROM evidence e WHERE e.project_id = $1 AND e.artifact = $2 HAVING max(e.id) IS "
         "NOT NULL",
         2},
};
const size_t mlo_sql_approval_count = MLO_COUNT(mlo_sql_approval);

/* --- the gate ---------------------------------------------------------------------------------- */

static enum mlo_status parse(struct mlo_policy_reader *r, const struct mlo_yaml *item, struct mlo_gate *gate)
{
    static const char *const roles[] = {"promoter", "approver", "admin"};
    const char *role, *not_author;
    enum mlo_status status;
    if (!gate->text || !mlo_str_to_i64(gate->text, &gate->count) || gate->count < 1 || gate->count > 20) {
        mlo_policy_bad(r, gate->line, "'approvals' is a number of 1 to 20");
        mlo_error_hint(r->err, "write for example: - approvals: 2");
        return MLO_EINVAL;
    }
    MLO_TRY(mlo_policy_text(r, item, "role", &role));
    MLO_TRY(mlo_policy_text(r, item, "not_author", &not_author));
    gate->role = MLO_APPROVER;
    if (role && (!mlo_role_parse(role, &gate->role) || gate->role < MLO_PROMOTER)) {
        status = mlo_policy_unknown(r, mlo_yaml_get(item, "role")->line, "role of approvals", role, roles,
                                    MLO_COUNT(roles));
        goto out;
    }
    if (not_author && strcmp(not_author, "true") != 0 && strcmp(not_author, "false") != 0) {
        status = mlo_policy_bad(r, mlo_yaml_get(item, "not_author")->line, "'not_author' is true or false");
        goto out;
    }
    gate->author_too = not_author && strcmp(not_author, "false") == 0;
    gate->text = mlo_arena_printf(r->arena, "%lld approval%s by %s%s", (long long)gate->count,
                                  gate->count == 1 ? "" : "s", mlo_role_name(gate->role),
                                  gate->author_too ? "" : ", not the author");
    status = gate->text ? MLO_OK : mlo_error_nomem(r->err);
out:
    return status;
}

enum mlo_status mlo_gate_newest(struct mlo_gate_case *c, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; status == MLO_OK && i < c->content->count; i++) {
        struct mlo_params p = MLO_PARAMS_INIT;
        mlo_param_i64(&p, c->project_id);
        mlo_param_digest(&p, &c->content->items[i].variant.artifact);
        status = mlo_db_exec(c->conn, &mlo_sql_approval[A_NEWEST], &p, &rows, err);
        if (status == MLO_OK && mlo_rows_count(&rows) > 0 &&
            json_object_set_new(c->evidence_ids, mlo_rows_text(&rows, 0, 0), json_true()) != 0)
            status = mlo_error_nomem(err);
    }
    mlo_rows_clear(&rows);
    return status;
}

/* Who counts: of the role, not the author, each name once. */
static json_t *counted(const struct mlo_gate *gate, const struct mlo_rows *given, const char *author,
                       struct mlo_buf *names, int64_t *by_author, int64_t *by_lesser)
{
    json_t *out = json_array(), *seen = json_object();
    for (int r = 0; r < mlo_rows_count(given); r++) {
        const char *actor = mlo_rows_text(given, r, 1);
        enum mlo_role role;
        if (!gate->author_too && strcmp(actor, author) == 0) {
            ++*by_author;
            continue;
        }
        if (!mlo_role_parse(mlo_rows_text(given, r, 2), &role) || role < gate->role) {
            ++*by_lesser;
            continue;
        }
        if (json_object_get(seen, actor))
            continue;
        json_object_set_new(seen, actor, json_true());
        mlo_buf_printf(names, "%s%s", names->len ? ", " : "", actor);
        json_array_append_new(out, json_pack("{s:I, s:s, s:s, s:s}", "id",
                                             (json_int_t)mlo_rows_i64(given, r, 0), "actor", actor, "role",
                                             mlo_rows_text(given, r, 2), "at", mlo_rows_text(given, r, 3)));
    }
    json_decref(seen);
    return out;
}

static enum mlo_status judge(struct mlo_gate_case *c, const struct mlo_gate *gate, struct mlo_error *err)
{
    struct mlo_params given = MLO_PARAMS_INIT, gone = MLO_PARAMS_INIT, version = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0}, author = {0};
    struct mlo_buf names = MLO_BUF_INIT, why = MLO_BUF_INIT;
    json_t *who = NULL;
    int64_t voided = 0, by_author = 0, by_lesser = 0;
    enum mlo_status status;
    mlo_param_i64(&given, c->model_id);
    mlo_param_digest(&given, &c->shown);
    MLO_TRY(mlo_db_exec(c->conn, &mlo_sql_approval[A_GIVEN], &given, &rows, err));
    mlo_param_i64(&version, c->version->id);
    MLO_TRY(mlo_db_exec(c->conn, &mlo_sql_approval[A_AUTHOR], &version, &author, err));
    mlo_param_i64(&gone, c->model_id);
    mlo_param_text(&gone, c->stage);
    mlo_param_digest(&gone, &c->content->digest);
    mlo_param_digest(&gone, &c->shown);
    MLO_TRY(mlo_sql_number(c->conn, &mlo_sql_approval[A_VOID], &gone, &voided, err));
    who = counted(gate, &rows, mlo_rows_count(&author) ? mlo_rows_text(&author, 0, 0) : "", &names,
                  &by_author, &by_lesser);
    int64_t count = (int64_t)json_array_size(who);
    mlo_buf_printf(&why, "%lld of %lld given", (long long)count, (long long)gate->count);
    if (count)
        mlo_buf_printf(&why, ": %s", mlo_buf_str(&names));
    if (by_author)
        mlo_buf_puts(&why, "; the author's own does not count");
    if (by_lesser)
        mlo_buf_printf(&why, "; %lld by a lesser role", (long long)by_lesser);
    if (voided)
        mlo_buf_printf(&why, "; %lld void: evidence, policy or stage changed since", (long long)voided);
    json_t *row = who && mlo_buf_ok(&why)
                      ? mlo_gate_row(c, gate, NULL, count >= gate->count, "%s", mlo_buf_str(&why))
                      : NULL;
    if (!row || json_object_set(row, "approvals", who) != 0)
        status = mlo_error_nomem(err);
out:
    mlo_rows_clear(&rows);
    mlo_rows_clear(&author);
    mlo_buf_clear(&names);
    mlo_buf_clear(&why);
    json_decref(who);
    return status;
}

const struct mlo_gate_kind mlo_gate_approvals = {
    .name = "approvals",
    .keys = {"role", "not_author"},
    .parse = parse,
    .judge = judge,
    .after_shown = true,
};

/* --- giving and withdrawing -------------------------------------------------------------------- */

static enum mlo_status record(struct mlo_db_conn *conn, const struct mlo_pointer *at,
                              const struct mlo_actor *actor, int64_t id, int64_t seq, json_t *value_take,
                              struct mlo_error *err)
{
    char path[260];
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status = MLO_OK;
    const char *model = strchr(at->object, '/') + 1;
    snprintf(path, sizeof path, "approvals/%.*s/%lld.json", (int)strcspn(model, ":"), model, (long long)id);
    if (!value_take || json_object_set_new(value_take, "by", json_string(actor->name)) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_ledger_json(value_take, &text);
    const struct mlo_ledger_file file = {.path = path, .text = mlo_buf_str(&text), .size = text.len};
    status = mlo_buf_ok(&text) ? mlo_ledger_append(conn, at->project_id, seq, &file, 1, err)
                               : mlo_error_nomem(err);
out:
    mlo_buf_clear(&text);
    json_decref(value_take);
    return status;
}

static enum mlo_status changed(const struct mlo_gate_case *c, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    mlo_error_set(
        err, MLO_EPRECONDITION,
        "what would be promoted to %s is not what was shown: evidence, policy, variants or stage changed",
        c->object);
    mlo_error_hint(err, "look at the dry run again; it shows %s now", mlo_digest_text(&c->shown, text));
    return MLO_EPRECONDITION;
}

static enum mlo_status add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                           const struct mlo_pointer *at, const struct mlo_gate_case *c, const char *note,
                           int64_t *id, struct mlo_error *err)
{
    struct mlo_params mine = MLO_PARAMS_INIT, p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    char content[MLO_DIGEST_TEXT_SIZE], shown[MLO_DIGEST_TEXT_SIZE];
    json_t *after = NULL;
    int64_t seq;
    enum mlo_status status;
    mlo_param_i64(&mine, at->model_id);
    mlo_param_digest(&mine, &c->shown);
    mlo_param_text(&mine, actor->name);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_approval[A_MINE], &mine, &rows, err));
    if (mlo_rows_count(&rows) > 0) {
        status = mlo_error_set(err, MLO_EEXISTS, "%s approved exactly this already (approval %s)",
                               actor->name, mlo_rows_text(&rows, 0, 0));
        goto out;
    }
    after = json_pack("{s:I, s:s, s:s, s:I}", "version", (json_int_t)c->version->number, "content",
                      mlo_digest_text(&c->content->digest, content), "shown",
                      mlo_digest_text(&c->shown, shown), "generation", (json_int_t)at->generation);
    if (!after) {
        status = mlo_error_nomem(err);
        goto out;
    }
    struct mlo_audit_event event = {
        .action = "approval.give", .object = at->object, .after = after, .reason = note};
    MLO_TRY(mlo_audit_append(conn, at->project_id, actor, &event, &seq, err));
    mlo_param_i64(&p, at->model_id);
    mlo_param_text(&p, at->stage);
    mlo_param_i64(&p, at->generation);
    mlo_param_digest(&p, &c->content->digest);
    mlo_param_digest(&p, &c->shown);
    mlo_param_text(&p, mlo_role_name(mlo_actor_role(actor, at->stage)));
    mlo_param_i64(&p, actor->token_id);
    mlo_param_text(&p, actor->name);
    mlo_param_text(&p, actor->via ? actor->via : "system");
    mlo_param_text(&p, note ? note : "");
    mlo_param_text(&p, actor->request_id ? actor->request_id : "");
    mlo_param_i64(&p, seq);
    mlo_param_i64(&p, c->version->id);
    MLO_TRY(mlo_sql_number(conn, &mlo_sql_approval[A_ADD], &p, id, err));
    MLO_TRY(record(conn, at, actor, *id, seq,
                   json_pack("{s:I, s:s, s:O, s:s, s:s, s:I}", "approval", (json_int_t)*id, "stage",
                             at->stage, "release", c->content->json, "shown", shown, "note", note ? note : "",
                             "audit_seq", (json_int_t)seq),
                   err));
out:
    json_decref(after);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_approval_give(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                  const struct mlo_approval *approval, int64_t *id, json_t **decision,
                                  struct mlo_error *err)
{
    struct mlo_pointer at;
    struct mlo_version_info version;
    struct mlo_release_content content = {0};
    struct mlo_gate_case c;
    json_t *judged = NULL;
    bool accepted;
    if (!mlo_stage_valid(approval->stage))
        return mlo_stage_unknown(approval->stage, err);
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_pointer_lock(conn, approval->model_id, approval->stage, &at, err));
    MLO_TRY(mlo_actor_may_approve(actor, at.project_id, approval->stage, err));
    MLO_TRY(mlo_version_find(conn, approval->model_id, approval->version, &version, err));
    MLO_TRY(mlo_release_content(conn, &version, approval->choices, approval->choice_count, &content, err));
    mlo_gate_case_init(&c, conn, &at, &version, &content);
    MLO_TRY(mlo_gates_judge(&c, &judged, &accepted, err));
    if (!mlo_digest_eq(&c.shown, &approval->shown)) {
        status = changed(&c, err);
        goto out;
    }
    MLO_TRY(add(conn, actor, &at, &c, approval->note, id, err));
    if (decision) { /* with this approval in it */
        json_decref(judged);
        mlo_gate_case_init(&c, conn, &at, &version, &content);
        MLO_TRY(mlo_gates_judge(&c, &judged, &accepted, err));
        *decision = json_incref(judged);
    }
out:
    json_decref(judged);
    mlo_release_content_clear(&content);
    status = mlo_db_end(conn, status, err);
    if (status != MLO_OK && decision) {
        json_decref(*decision);
        *decision = NULL;
    }
    return status;
}

enum mlo_status mlo_approval_withdraw(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                      int64_t model_id, int64_t id, const char *reason, struct mlo_error *err)
{
    struct mlo_params find = MLO_PARAMS_INIT, end = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_pointer at;
    json_t *after = NULL;
    int64_t seq;
    enum mlo_status status = mlo_actor_reason(reason, "withdrawing an approval", err);
    if (status == MLO_OK)
        status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&find, model_id);
    mlo_param_i64(&find, id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_approval[A_FIND], &find, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no approval %lld", (long long)id);
        goto out;
    }
    /* a promotion that counts it ends before it goes, or begins after */
    char stage[16];
    snprintf(stage, sizeof stage, "%s", mlo_rows_text(&rows, 0, 0));
    MLO_TRY(mlo_pointer_lock(conn, model_id, stage, &at, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_approval[A_FIND], &find, &rows, err));
    bool own = strcmp(mlo_rows_text(&rows, 0, 1), actor->name) == 0;
    MLO_TRY(mlo_actor_require_stage(actor, at.project_id, stage, own ? MLO_PROMOTER : MLO_ADMIN, err));
    if (!mlo_rows_bool(&rows, 0, 2)) {
        status = mlo_error_set(err, MLO_ECONFLICT, "approval %lld is withdrawn already", (long long)id);
        goto out;
    }
    after = json_pack("{s:I}", "approval", (json_int_t)id);
    if (!after) {
        status = mlo_error_nomem(err);
        goto out;
    }
    struct mlo_audit_event event = {
        .action = "approval.withdraw", .object = at.object, .after = after, .reason = reason};
    MLO_TRY(mlo_audit_append(conn, at.project_id, actor, &event, &seq, err));
    mlo_param_i64(&end, id);
    mlo_param_text(&end, actor->name);
    mlo_param_text(&end, reason);
    mlo_param_i64(&end, seq);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_approval[A_END], &end, NULL, err));
    MLO_TRY(record(conn, &at, actor, id, seq,
                   json_pack("{s:I, s:s, s:s, s:I}", "approval", (json_int_t)id, "stage", stage, "withdrawn",
                             reason, "audit_seq", (json_int_t)seq),
                   err));
out:
    json_decref(after);
    mlo_rows_clear(&rows);
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_approval_list(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                  const struct mlo_page *page, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, model_id);
    mlo_param_text(&p, stage);
    return mlo_page_newest(conn, &mlo_sql_approval[A_LIST], &p, page, out, err);
}
