/* Policies as they are stored: revisions that nobody changes. */
#include <string.h>

#include "registry/gate_impl.h"
#include "registry/ledger.h"
#include "registry/sql_impl.h"

enum { POLICY_NAMES, POLICY_LOCK, POLICY_LATEST, POLICY_ADD, POLICY_GET, POLICY_LIST, POLICY_EFFECTIVE };

#define POLICY_COLUMNS                                                                                       \
    "p.name AS project, m.name AS model, po.revision, po.digest, po.reason, po.created_at, po.created_by, "  \
    "po.audit_seq"
#define POLICY_TABLES                                                                                        \
    "policy po JOIN project p ON p.id = po.project_id LEFT JOIN model m ON m.id = po.model_id"

const struct mlo_sql mlo_sql_policy[] = {
    [POLICY_NAMES] =
        {"policy_names",
         "SELECT p.name, m.name FROM project p LEFT JOIN model m ON m.project_id = p.id AND m.id = "
         "$2 WHERE p.id = $1",
         2},
    /* promotions hold it shared (stage_lock): a change waits for those under way, and they for it */
    [POLICY_LOCK] = {"policy_lock",
                     "SELECT pg_advisory_xact_lock(" MLO_POLICY_LOCK_CLASS
                     ", ($1::bigint % 2147483647)::int)",
                     1},
    [POLICY_LATEST] =
        {"policy_latest",
         "SELECT coalesce(max(revision), 0) FROM policy WHERE project_id = $1 AND model_id IS NOT "
         "DISTINCT FROM $2::bigint",
         2},
    [POLICY_ADD] = {"policy_add",
                    "INSERT INTO policy (project_id, model_id, revision, text, digest, reason, created_by, "
                    "audit_seq) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                    8},
    [POLICY_GET] =
        {"policy_get",
         "SELECT " POLICY_COLUMNS ", po.text FROM " POLICY_TABLES " WHERE po.project_id = $1 AND "
         "po.model_id IS NOT DISTINCT FROM $2::bigint AND ($3::bigint IS NULL OR po.revision = $3) "
         "ORDER BY po.revision DESC LIMIT 1",
         3},
    [POLICY_LIST] = {"policy_list",
                     "SELECT po.revision AS cursor_key, " POLICY_COLUMNS " FROM " POLICY_TABLES
                     " WHERE po.project_id = $1 AND po.model_id IS NOT DISTINCT FROM $2::bigint "
                     "AND po.revision < $3 ORDER BY po.revision DESC LIMIT $4",
                     4},
    [POLICY_EFFECTIVE] =
        {"policy_effective",
         "(SELECT 'project', revision, digest, text FROM policy WHERE project_id = $1 AND model_id IS NULL "
         "ORDER BY revision DESC LIMIT 1) UNION ALL "
         "(SELECT 'model', revision, digest, text FROM policy WHERE project_id = $1 AND model_id = $2 "
         "ORDER BY revision DESC LIMIT 1)",
         2},
};
const size_t mlo_sql_policy_count = MLO_COUNT(mlo_sql_policy);

/* "fashion", or "fashion/cnn". */
static enum mlo_status scope_name(struct mlo_db_conn *conn, const struct mlo_policy_scope *scope,
                                  char out[220], struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, scope->project_id);
    mlo_param_id(&p, scope->model_id);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_policy[POLICY_NAMES], &p, &rows, err);
    if (status == MLO_OK &&
        (mlo_rows_count(&rows) == 0 || (scope->model_id != 0) != !mlo_rows_null(&rows, 0, 1)))
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no such project or model");
    if (status == MLO_OK)
        snprintf(out, 220, scope->model_id ? "%s/%s" : "%s%s", mlo_rows_text(&rows, 0, 0),
                 scope->model_id ? mlo_rows_text(&rows, 0, 1) : "");
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status check_match(const char *name, int64_t latest, const int64_t *if_match,
                                   struct mlo_error *err)
{
    if (!if_match) {
        mlo_error_set(err, MLO_EPRECONDITION_REQUIRED, "a policy is set with If-Match and its revision");
        mlo_error_hint(err, "read the policy, and send its ETag: If-Match: \"%lld\"", (long long)latest);
        return MLO_EPRECONDITION_REQUIRED;
    }
    if (*if_match != latest) {
        mlo_error_set(err, MLO_EPRECONDITION, "the policy of %s is at revision %lld, not %lld", name,
                      (long long)latest, (long long)*if_match);
        mlo_error_hint(err, "read the policy again: somebody changed it");
        return MLO_EPRECONDITION;
    }
    return MLO_OK;
}

/* The ledger holds the text as it is in force. */
static enum mlo_status record(struct mlo_db_conn *conn, const struct mlo_policy_scope *scope,
                              const char *name, const char *text, int64_t seq, struct mlo_error *err)
{
    char path[240];
    const char *slash = strchr(name, '/');
    if (slash)
        snprintf(path, sizeof path, "policy/models/%s.yaml", slash + 1);
    else
        snprintf(path, sizeof path, "policy/project.yaml");
    const struct mlo_ledger_file file = {.path = path, .text = text, .size = strlen(text)};
    return mlo_ledger_append(conn, scope->project_id, seq, &file, 1, err);
}

enum mlo_status mlo_policy_set(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                               const struct mlo_policy_scope *scope, const char *text, const char *reason,
                               const int64_t *if_match, int64_t *revision, struct mlo_error *err)
{
    char name[220], hex[MLO_DIGEST_TEXT_SIZE];
    struct mlo_params lock = MLO_PARAMS_INIT, latest = MLO_PARAMS_INIT, add = MLO_PARAMS_INIT;
    struct mlo_policy *policy = NULL;
    struct mlo_digest digest;
    json_t *before = NULL, *after = NULL;
    int64_t now, seq;
    enum mlo_status status = mlo_actor_require(actor, scope->project_id, MLO_ADMIN, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_policy_parse(text, strlen(text), "policy", &policy, err));
    if (policy->inherit && !scope->model_id) {
        status = mlo_error_set(err, MLO_EINVAL, "the policy of a project has nothing to inherit from");
        mlo_error_hint(err, "`inherit: true` is for the policy of a model");
        goto out;
    }
    mlo_digest_of(text, strlen(text), &digest);
    status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        goto out;
    mlo_param_i64(&lock, scope->project_id);
    mlo_param_i64(&latest, scope->project_id);
    mlo_param_id(&latest, scope->model_id);
    status = mlo_db_exec(conn, &mlo_sql_policy[POLICY_LOCK], &lock, NULL, err);
    if (status == MLO_OK)
        status = scope_name(conn, scope, name, err);
    if (status == MLO_OK)
        status = mlo_sql_number(conn, &mlo_sql_policy[POLICY_LATEST], &latest, &now, err);
    if (status == MLO_OK)
        status = check_match(name, now, if_match, err);
    if (status == MLO_OK) {
        before = now ? json_pack("{s:I}", "revision", (json_int_t)now) : json_null();
        after =
            json_pack("{s:I, s:s}", "revision", (json_int_t)now + 1, "digest", mlo_digest_text(&digest, hex));
        struct mlo_audit_event event = {
            .action = "policy.set", .object = name, .before = before, .after = after, .reason = reason};
        status = before && after ? mlo_audit_append(conn, scope->project_id, actor, &event, &seq, err)
                                 : mlo_error_nomem(err);
    }
    if (status == MLO_OK) {
        mlo_param_i64(&add, scope->project_id);
        mlo_param_id(&add, scope->model_id);
        mlo_param_i64(&add, now + 1);
        mlo_param_text(&add, text);
        mlo_param_digest(&add, &digest);
        mlo_param_text(&add, reason ? reason : "");
        mlo_param_text(&add, actor->name);
        mlo_param_i64(&add, seq);
        status = mlo_db_exec(conn, &mlo_sql_policy[POLICY_ADD], &add, NULL, err);
    }
    if (status == MLO_OK)
        status = record(conn, scope, name, text, seq, err);
    status = mlo_db_end(conn, status, err);
    if (status == MLO_OK && revision)
        *revision = now + 1;
out:
    json_decref(before);
    json_decref(after);
    mlo_policy_free(policy);
    return status;
}

static enum mlo_status none_yet(struct mlo_db_conn *conn, const struct mlo_policy_scope *scope, json_t **out,
                                struct mlo_error *err)
{
    char name[220];
    enum mlo_status status = scope_name(conn, scope, name, err);
    if (status != MLO_OK)
        return status;
    char *slash = strchr(name, '/');
    if (slash)
        *slash = '\0';
    *out = json_pack("{s:s, s:s?, s:i, s:n, s:n, s:n}", "project", name, "model", slash ? slash + 1 : NULL,
                     "revision", 0, "digest", "text", "policy");
    return *out ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_policy_get(struct mlo_db_conn *conn, const struct mlo_policy_scope *scope,
                               int64_t revision, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_policy *policy = NULL;
    json_t *row = NULL;
    *out = NULL;
    mlo_param_i64(&p, scope->project_id);
    mlo_param_id(&p, scope->model_id);
    mlo_param_id(&p, revision);
    enum mlo_status status = mlo_sql_object(conn, &mlo_sql_policy[POLICY_GET], &p, &row, err);
    if (status == MLO_ENOTFOUND && revision == 0)
        return none_yet(conn, scope, out, err);
    if (status == MLO_ENOTFOUND)
        return mlo_error_set(err, MLO_ENOTFOUND, "there is no revision %lld of this policy",
                             (long long)revision);
    if (status != MLO_OK)
        return status;
    const char *text = mlo_json_str(row, "text", "");
    MLO_TRY(mlo_policy_parse(text, strlen(text), "policy", &policy, err));
    if (json_object_set_new(row, "policy", mlo_policy_json(policy)) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    *out = json_incref(row);
out:
    mlo_policy_free(policy);
    json_decref(row);
    return status;
}

enum mlo_status mlo_policy_list(struct mlo_db_conn *conn, const struct mlo_policy_scope *scope,
                                const struct mlo_page *page, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, scope->project_id);
    mlo_param_id(&p, scope->model_id);
    return mlo_page_newest(conn, &mlo_sql_policy[POLICY_LIST], &p, page, out, err);
}

enum mlo_status mlo_policy_ahead(struct mlo_db_conn *conn, int64_t project_id, int64_t model_id,
                                 struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, model_id);
    return mlo_db_ahead(conn, &mlo_sql_policy[POLICY_EFFECTIVE], &p, err);
}

enum mlo_status mlo_policy_effective(struct mlo_db_conn *conn, int64_t project_id, int64_t model_id,
                                     struct mlo_policy_row out[2], size_t *count, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    *count = 0;
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, model_id);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_policy[POLICY_EFFECTIVE], &p, &rows, err);
    for (int i = 0; status == MLO_OK && i < mlo_rows_count(&rows); i++) {
        bool of_model = strcmp(mlo_rows_text(&rows, i, 0), "model") == 0;
        const char *text = mlo_rows_text(&rows, i, 3);
        struct mlo_policy_row *row = &out[*count];
        row->scope = of_model ? "model" : "project";
        row->revision = mlo_rows_i64(&rows, i, 1);
        mlo_rows_digest(&rows, i, 2, &row->digest);
        status = mlo_policy_parse(text, strlen(text), row->scope, &row->policy, err);
        if (status != MLO_OK)
            break;
        if (of_model && !row->policy->inherit && *count == 1) { /* the model's own replaces the project's */
            mlo_policy_free(out[0].policy);
            out[0] = *row;
        } else {
            ++*count;
        }
    }
    if (status != MLO_OK) {
        while (*count)
            mlo_policy_free(out[--*count].policy);
    }
    mlo_rows_clear(&rows);
    return status;
}
