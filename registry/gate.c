/* Judging a promotion by the policies that apply, and the record of it. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "registry/pointer_impl.h"
#include "registry/sql_impl.h"

enum { DECISION_ADD, DECISION_LIST, DECISION_GET };

#define DECISION_COLUMNS                                                                                     \
    "d.id, d.document::json AS document, d.actor, d.via, d.reason, d.request_id, d.at, d.audit_seq"

const struct mlo_sql mlo_sql_gate[] = {
    [DECISION_ADD] =
        {"decision_add",
         "INSERT INTO gate_decision (model_id, stage, generation, accepted, content, shown, document, "
         "actor, via, reason, request_id, audit_seq) "
         "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, " MLO_AUDIT_LAST("$12") ") RETURNING id",
         12},
    [DECISION_LIST] = {"decision_list",
                       "SELECT d.id AS cursor_key, " DECISION_COLUMNS
                       " FROM gate_decision d WHERE d.model_id = $1 "
                       "AND ($2::text IS NULL OR d.stage = $2) AND d.id < $3 ORDER BY d.id DESC LIMIT $4",
                       4},
    [DECISION_GET] = {"decision_get",
                      "SELECT " DECISION_COLUMNS " FROM gate_decision d WHERE d.model_id = $1 AND d.id = $2",
                      2},
};
const size_t mlo_sql_gate_count = MLO_COUNT(mlo_sql_gate);

const struct mlo_policy_stage *mlo_policy_stage(const struct mlo_policy *policy, const char *stage)
{
    for (size_t s = 0; s < policy->stage_count; s++)
        if (strcmp(policy->stages[s].name, stage) == 0)
            return &policy->stages[s];
    return NULL;
}

json_t *mlo_gate_row(struct mlo_gate_case *c, const struct mlo_gate *gate,
                     const struct mlo_release_item *item, bool holds, const char *fmt, ...)
{
    char why[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    json_t *row =
        json_pack("{s:s, s:s, s:s, s:i, s:s?, s:s?, s:b, s:s}", "gate", gate->kind->name, "condition",
                  gate->text, "scope", c->scope, "line", gate->line, "target", item ? item->target : NULL,
                  "variant", item ? item->variant.name : NULL, "holds", holds, "why", why);
    return row && json_array_append_new(c->rows, row) == 0 ? row : NULL;
}

static json_t *policies_json(const struct mlo_policy_row *policies, size_t count)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    json_t *out = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(out, json_pack("{s:s, s:I, s:s}", "scope", policies[i].scope, "revision",
                                             (json_int_t)policies[i].revision, "digest",
                                             mlo_digest_text(&policies[i].digest, text)));
    return out;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

void mlo_gate_case_init(struct mlo_gate_case *c, struct mlo_db_conn *conn, const struct mlo_pointer *at,
                        const struct mlo_version_info *version, const struct mlo_release_content *content)
{
    *c = (struct mlo_gate_case){.conn = conn,
                                .project_id = at->project_id,
                                .model_id = at->model_id,
                                .generation = at->generation,
                                .object = at->object,
                                .stage = at->stage,
                                .version = version,
                                .content = content};
}

/* Whether any gate of these counts approvals. */
static bool asks_approval(const struct mlo_gate_case *c, const struct mlo_policy_row *policies, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct mlo_policy_stage *stage = mlo_policy_stage(policies[i].policy, c->stage);
        for (size_t g = 0; stage && g < stage->count; g++)
            if (stage->gates[g].kind->after_shown)
                return true;
    }
    return false;
}

/* What an approval is given for. */
static enum mlo_status make_shown(struct mlo_gate_case *c, const json_t *policies, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count = json_object_size(c->evidence_ids), n = 0;
    int64_t *ids = calloc(count + 1, sizeof *ids);
    json_t *list = json_array(), *shown = NULL, *ignored;
    const char *id;
    if (!ids || !list) {
        status = mlo_error_nomem(err);
        goto out;
    }
    json_object_foreach(c->evidence_ids, id, ignored) mlo_str_to_i64(id, &ids[n++]);
    qsort(ids, n, sizeof *ids, by_number);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    shown =
        json_pack("{s:s, s:I, s:O, s:O, s:O}", "object", c->object, "generation", (json_int_t)c->generation,
                  "release", c->content->json, "policy", policies, "evidence", list);
    status = shown ? mlo_json_digest(shown, &c->shown, err) : mlo_error_nomem(err);
out:
    free(ids);
    json_decref(list);
    json_decref(shown);
    return status;
}

/* Judges the gates of one phase; rows[n] belongs to the n-th gate over all policies. */
static enum mlo_status judge_phase(struct mlo_gate_case *c, const struct mlo_policy_row *policies,
                                   size_t count, json_t *rows, bool after_shown, struct mlo_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        const struct mlo_policy_stage *stage = mlo_policy_stage(policies[i].policy, c->stage);
        c->scope = policies[i].scope;
        for (size_t g = 0; stage && g < stage->count; g++, n++) {
            const struct mlo_gate *gate = &stage->gates[g];
            if (json_array_size(rows) == n && json_array_append_new(rows, json_array()) != 0)
                return mlo_error_nomem(err);
            c->rows = json_array_get(rows, n);
            enum mlo_status status =
                gate->kind->after_shown == after_shown ? gate->kind->judge(c, gate, err) : MLO_OK;
            if (status != MLO_OK)
                return status;
        }
    }
    return MLO_OK;
}

static json_t *flatten(const json_t *rows, bool *accepted)
{
    json_t *out = json_array(), *group, *row;
    size_t i, j;
    *accepted = true;
    json_array_foreach((json_t *)rows, i, group) json_array_foreach(group, j, row)
    {
        *accepted = *accepted && mlo_json_bool(row, "holds", false);
        json_array_append(out, row);
    }
    return out;
}

enum mlo_status mlo_gates_ahead(struct mlo_db_conn *conn, int64_t project_id, int64_t model_id,
                                struct mlo_error *err)
{
    enum mlo_status status = mlo_policy_ahead(conn, project_id, model_id, err);
    return status == MLO_OK ? mlo_gate_bases_ahead(conn, model_id, err) : status;
}

enum mlo_status mlo_gates_judge(struct mlo_gate_case *c, json_t **decision, bool *accepted,
                                struct mlo_error *err)
{
    struct mlo_policy_row policies[2];
    char project[104], shown[MLO_DIGEST_TEXT_SIZE];
    size_t count = 0;
    json_t *rows = json_array(), *stated = NULL, *conditions = NULL;
    enum mlo_status status;
    *decision = NULL;
    c->evidence_ids = json_object();
    if (!rows || !c->evidence_ids) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_policy_effective(c->conn, c->project_id, c->model_id, policies, &count, err));
    MLO_TRY(mlo_gate_quarantine_ahead(c, err));
    MLO_TRY(mlo_gate_evidence_load(c, policies, count, err));
    MLO_TRY(judge_phase(c, policies, count, rows, false, err));
    if (asks_approval(c, policies, count))
        MLO_TRY(mlo_gate_newest(c, err));
    stated = policies_json(policies, count);
    MLO_TRY(make_shown(c, stated, err));
    MLO_TRY(judge_phase(c, policies, count, rows, true, err));
    if (json_array_append_new(rows, json_array()) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    c->rows = json_array_get(rows, json_array_size(rows) - 1);
    c->scope = "registry";
    MLO_TRY(mlo_gate_quarantine(c, err));
    conditions = flatten(rows, accepted);
    snprintf(project, sizeof project, "%.*s", (int)strcspn(c->object, "/"), c->object);
    const char *model = c->object + strlen(project) + 1;
    *decision = json_pack("{s:s, s:s%, s:s, s:I, s:I, s:O, s:O, s:O, s:s, s:s}", "project", project, "model",
                          model, strcspn(model, ":"), "stage", c->stage, "generation",
                          (json_int_t)c->generation, "version", (json_int_t)c->version->number, "release",
                          c->content->json, "policy", stated, "conditions", conditions, "shown",
                          mlo_digest_text(&c->shown, shown), "verdict", *accepted ? "accepted" : "refused");
    if (!*decision)
        status = mlo_error_nomem(err);
out:
    while (count)
        mlo_policy_free(policies[--count].policy);
    mlo_rows_clear(&c->known);
    mlo_rows_clear(&c->bases);
    mlo_rows_clear(&c->consumed);
    json_decref(c->evidence_ids);
    json_decref(rows);
    json_decref(stated);
    json_decref(conditions);
    return status;
}

/* --- the record -------------------------------------------------------------------------------- */

enum mlo_status mlo_decision_queue(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   const struct mlo_gate_case *c, const char *decision, bool accepted,
                                   const char *reason, struct mlo_rows *rows, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, c->model_id);
    mlo_param_text(&p, c->stage);
    mlo_param_i64(&p, c->generation);
    mlo_param_bool(&p, accepted);
    mlo_param_digest(&p, &c->content->digest);
    mlo_param_digest(&p, &c->shown);
    mlo_param_text(&p, decision);
    mlo_param_text(&p, actor->name);
    mlo_param_text(&p, actor->via ? actor->via : "system");
    mlo_param_text(&p, reason ? reason : "");
    mlo_param_text(&p, actor->request_id ? actor->request_id : "");
    mlo_param_i64(&p, c->project_id);
    return mlo_db_queue(conn, &mlo_sql_gate[DECISION_ADD], &p, rows, err);
}

/* The document with the columns beside it. */
static void unfold(json_t *row)
{
    json_t *document = json_incref(json_object_get(row, "document"));
    json_object_del(row, "document");
    json_object_update(row, document);
    json_decref(document);
}

enum mlo_status mlo_decision_list(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                  const struct mlo_page *page, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *item;
    size_t i;
    enum mlo_status status;
    mlo_param_i64(&p, model_id);
    mlo_param_text(&p, stage);
    status = mlo_page_newest(conn, &mlo_sql_gate[DECISION_LIST], &p, page, out, err);
    json_array_foreach(json_object_get(*out, "items"), i, item) unfold(item);
    return status;
}

enum mlo_status mlo_decision_get(struct mlo_db_conn *conn, int64_t model_id, int64_t id, json_t **out,
                                 struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, model_id);
    mlo_param_i64(&p, id);
    enum mlo_status status = mlo_sql_object(conn, &mlo_sql_gate[DECISION_GET], &p, out, err);
    if (status == MLO_ENOTFOUND)
        mlo_error_set(err, MLO_ENOTFOUND, "there is no decision %lld", (long long)id);
    if (status == MLO_OK)
        unfold(*out);
    return status;
}
