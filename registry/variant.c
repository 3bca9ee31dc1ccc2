#include "registry/evidence_impl.h"
#include "registry/models.h"
#include "registry/release_impl.h"
#include "registry/sql_impl.h"

#include <string.h>

enum {
    VARIANT_ADD,
    VARIANT_FIND,
    VARIANT_OWNER,
    VARIANT_LIST,
    VARIANT_EVIDENCE,
    VARIANT_HISTORY,
    VARIANT_CHOICE,
    VARIANT_MEASURED
};

/* The newest of each kind of evidence of a project ($1), on the artifacts that are `which`. */
#define NEWEST_EVIDENCE(which)                                                                               \
    "SELECT " MLO_EVIDENCE_COLUMNS " FROM (SELECT DISTINCT ON (x.artifact, x.dataset, x.metric, "            \
    "x.params, x.machine_class, x.engine) x.* FROM evidence x WHERE x.project_id = $1 "                      \
    "AND x.artifact " which " ORDER BY x.artifact, "                                                         \
    "x.dataset, x.metric, x.params, x.machine_class, x.engine, x.id DESC) e ORDER BY e.metric, e.id"

const struct mlo_sql mlo_sql_variant[] = {
    [VARIANT_ADD] = {"variant_add",
                     "INSERT INTO variant (version_id, name, artifact, size, derivation, run_id, named_by) "
                     "VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id",
                     7},
    [VARIANT_FIND] = {"variant_find",
                      "SELECT id, version_id, run_id, name, artifact, derivation, size FROM variant "
                      "WHERE version_id = $1 AND name = $2 AND deletion_id IS NULL ORDER BY id DESC LIMIT 1",
                      2},
    [VARIANT_OWNER] =
        {"variant_owner",
         "SELECT m.project_id, p.name || '/' || m.name || '@' || v.number FROM version v "
         "JOIN model m ON m.id = v.model_id JOIN project p ON p.id = m.project_id WHERE v.id = $1",
         1},
    [VARIANT_LIST] =
        {"variant_list",
         "SELECT va.name AS variant, va.artifact, va.size, va.derivation, d.step, d.report::json AS report, "
         "va.run_id, va.named_at, va.named_by FROM (SELECT DISTINCT ON (name) * FROM variant "
         "WHERE version_id = $1 AND deletion_id IS NULL ORDER BY name, id DESC) va LEFT JOIN derivation d ON "
         "d.key = va.derivation "
         "ORDER BY va.name <> 'source', va.name",
         1},
    [VARIANT_EVIDENCE] = {"variant_evidence",
                          NEWEST_EVIDENCE("IN (SELECT artifact FROM variant WHERE version_id = $2)"), 2},
    [VARIANT_HISTORY] = {"variant_history",
                         "SELECT artifact, size, derivation, run_id, named_at, named_by FROM variant "
                         "WHERE version_id = $1 AND name = $2 ORDER BY id DESC",
                         2},
    [VARIANT_CHOICE] =
        {"variant_choice",
         "SELECT v.number AS version, va.name AS variant, va.artifact, va.size FROM version v "
         "JOIN LATERAL (SELECT DISTINCT ON (name) name, artifact, size FROM variant "
         "WHERE version_id = v.id AND deletion_id IS NULL ORDER BY name, id DESC) va ON true "
         "WHERE v.model_id = $1 AND v.deletion_id IS NULL AND (v.number = ANY($2::bigint[]) OR v.number >= "
         "(SELECT min(number) FROM (SELECT number FROM version WHERE model_id = $1 AND deletion_id IS NULL "
         "ORDER BY number DESC LIMIT $3) newest)) ORDER BY v.number DESC, va.name <> 'source', va.name",
         3},
    [VARIANT_MEASURED] = {"variant_measured", NEWEST_EVIDENCE("= ANY($2::bytea[])"), 2},
};
const size_t mlo_sql_variant_count = MLO_COUNT(mlo_sql_variant);

enum mlo_status mlo_variant_ahead(struct mlo_db_conn *conn, int64_t version_id, const char *name,
                                  struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, version_id);
    mlo_param_text(&p, name);
    return mlo_db_ahead(conn, &mlo_sql_variant[VARIANT_FIND], &p, err);
}

enum mlo_status mlo_variant_find(struct mlo_db_conn *conn, int64_t version_id, const char *name,
                                 struct mlo_variant_info *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    memset(out, 0, sizeof *out);
    mlo_param_i64(&p, version_id);
    mlo_param_text(&p, name);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_variant[VARIANT_FIND], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "the version has no variant %.100s", name);
    if (status == MLO_OK) {
        out->id = mlo_rows_i64(&rows, 0, 0);
        out->version_id = mlo_rows_i64(&rows, 0, 1);
        out->run_id = mlo_rows_i64(&rows, 0, 2);
        snprintf(out->name, sizeof out->name, "%s", mlo_rows_text(&rows, 0, 3));
        out->has_derivation = mlo_rows_digest(&rows, 0, 5, &out->derivation);
        out->size_bytes = (uint64_t)mlo_rows_i64(&rows, 0, 6);
        if (!mlo_rows_digest(&rows, 0, 4, &out->artifact))
            status = mlo_error_set(err, MLO_EINTERNAL, "variant %.100s has no artifact", name);
    }
    mlo_rows_clear(&rows);
    return status;
}

static json_t *state_json(const struct mlo_digest *artifact, const struct mlo_digest *derivation,
                          int64_t run_id)
{
    char a[MLO_DIGEST_TEXT_SIZE], d[MLO_DIGEST_TEXT_SIZE];
    return json_pack("{s:s, s:s?, s:I}", "artifact", mlo_digest_text(artifact, a), "derivation",
                     derivation ? mlo_digest_text(derivation, d) : NULL, "run_id", (json_int_t)run_id);
}

enum mlo_status mlo_variant_audit(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                  const char *version, const char *name, const struct mlo_variant_info *was,
                                  const struct mlo_digest *artifact, const struct mlo_digest *derivation,
                                  int64_t run_id, struct mlo_error *err)
{
    char object[360];
    snprintf(object, sizeof object, "%s/%s", version, name);
    json_t *before =
        was ? state_json(&was->artifact, was->has_derivation ? &was->derivation : NULL, was->run_id) : NULL;
    json_t *after = state_json(artifact, derivation, run_id);
    struct mlo_audit_event event = {
        .action = "variant.name", .object = object, .before = before, .after = after};
    enum mlo_status status = after && (before || !was)
                                 ? mlo_audit_append(conn, project_id, actor, &event, NULL, err)
                                 : mlo_error_nomem(err);
    json_decref(before);
    json_decref(after);
    return status;
}

enum mlo_status mlo_variant_name(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t version_id,
                                 const char *name, const struct mlo_digest *artifact,
                                 const struct mlo_digest *derivation, int64_t run_id, bool *changed,
                                 struct mlo_error *err)
{
    struct mlo_params owner = MLO_PARAMS_INIT, add = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_variant_info now;
    struct mlo_error not_there = {0};
    uint64_t size = 0;
    if (changed)
        *changed = false;
    if (!mlo_name_valid(name) || strcmp(name, MLO_VARIANT_SOURCE) == 0)
        return mlo_error_set(err, MLO_EINVAL, "'%.100s' cannot name a variant%s", name ? name : "",
                             mlo_str_eq(name, MLO_VARIANT_SOURCE) ? ": it is the upload itself" : "");
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&owner, version_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_variant[VARIANT_OWNER], &owner, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no such version");
        goto out;
    }
    int64_t project_id = mlo_rows_i64(&rows, 0, 0);
    MLO_TRY(mlo_actor_require(actor, project_id, MLO_SUBMITTER, err));
    MLO_TRY(mlo_blob_linked(conn, project_id, artifact, &size, err));
    status = mlo_variant_find(conn, version_id, name, &now, &not_there);
    if (status != MLO_OK && status != MLO_ENOTFOUND) {
        if (err)
            *err = not_there;
        goto out;
    }
    bool there = status == MLO_OK;
    status = MLO_OK;
    if (there && mlo_digest_eq(&now.artifact, artifact) && now.has_derivation == (derivation != NULL) &&
        (!derivation || mlo_digest_eq(&now.derivation, derivation)))
        goto out;
    mlo_param_i64(&add, version_id);
    mlo_param_text(&add, name);
    mlo_param_digest(&add, artifact);
    mlo_param_i64(&add, (int64_t)size);
    mlo_param_digest(&add, derivation);
    mlo_param_id(&add, run_id);
    mlo_param_text(&add, actor->name);
    MLO_TRY(mlo_sql_number(conn, &mlo_sql_variant[VARIANT_ADD], &add, NULL, err));
    MLO_TRY(mlo_variant_audit(conn, actor, project_id, mlo_rows_text(&rows, 0, 1), name, there ? &now : NULL,
                              artifact, derivation, run_id, err));
    if (changed)
        *changed = true;
out:
    mlo_rows_clear(&rows);
    return mlo_db_end(conn, status, err);
}

/* Those of the rows that are of the variant's artifact, as a member of it. */
static bool attach(json_t *variant, const char *member, const json_t *rows)
{
    const char *artifact = mlo_json_str(variant, "artifact", "-");
    json_t *mine = json_array(), *row;
    size_t i;
    json_array_foreach(rows, i, row) if (strcmp(mlo_json_str(row, "artifact", ""), artifact) == 0)
        json_array_append(mine, row);
    return json_object_set_new(variant, member, mine) == 0;
}

enum mlo_status mlo_variant_list(struct mlo_db_conn *conn, int64_t version_id, json_t **out,
                                 struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT, q = MLO_PARAMS_INIT;
    json_t *variants = NULL, *evidence = NULL, *plans = NULL, *reports = NULL, *variant;
    size_t i;
    int64_t project_id;
    enum mlo_status status;
    *out = NULL;
    mlo_param_i64(&p, version_id);
    status = mlo_sql_number(conn, &mlo_sql_variant[VARIANT_OWNER], &p, &project_id, err);
    if (status == MLO_ENOTFOUND)
        mlo_error_set(err, MLO_ENOTFOUND, "there is no such version");
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&q, project_id);
    mlo_param_i64(&q, version_id);
    MLO_TRY(mlo_sql_array(conn, &mlo_sql_variant[VARIANT_LIST], &p, &variants, err));
    MLO_TRY(mlo_sql_array(conn, &mlo_sql_variant[VARIANT_EVIDENCE], &q, &evidence, err));
    MLO_TRY(mlo_variant_plans(conn, project_id, version_id, &plans, err));
    MLO_TRY(mlo_variant_reports(conn, project_id, version_id, &reports, err));
    json_array_foreach(variants, i, variant)
    {
        if (!attach(variant, "evidence", evidence) || !attach(variant, "plans", plans) ||
            !attach(variant, "reports", reports)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    *out = json_incref(variants);
out:
    json_decref(variants);
    json_decref(evidence);
    json_decref(plans);
    json_decref(reports);
    return status;
}

enum mlo_status mlo_variant_history(struct mlo_db_conn *conn, int64_t version_id, const char *name,
                                    json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, version_id);
    mlo_param_text(&p, name);
    enum mlo_status status = mlo_sql_array(conn, &mlo_sql_variant[VARIANT_HISTORY], &p, out, err);
    if (status == MLO_OK && json_array_size(*out) == 0) {
        json_decref(*out);
        *out = NULL;
        status = mlo_error_set(err, MLO_ENOTFOUND, "the version has no variant %.100s", name);
    }
    return status;
}

enum mlo_status mlo_variant_choice(struct mlo_db_conn *conn, int64_t model_id, const int64_t *numbers,
                                   size_t count, int newest, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_array array = MLO_ARRAY_INIT;
    enum mlo_status status;
    for (size_t i = 0; i < count; i++)
        mlo_array_i64(&array, numbers[i]);
    mlo_param_i64(&p, model_id);
    MLO_TRY(mlo_param_array(&p, &array, err));
    mlo_param_i64(&p, newest);
    MLO_TRY(mlo_sql_array(conn, &mlo_sql_variant[VARIANT_CHOICE], &p, out, err));
out:
    mlo_array_clear(&array);
    return status;
}

enum mlo_status mlo_variant_measured(struct mlo_db_conn *conn, int64_t project_id, json_t *const *variants,
                                     size_t count, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_array array = MLO_ARRAY_INIT;
    struct mlo_digest artifact;
    json_t *evidence = NULL;
    enum mlo_status status;
    for (size_t i = 0; i < count; i++)
        if (mlo_digest_parse(mlo_json_str(variants[i], "artifact", ""), &artifact))
            mlo_array_digest(&array, &artifact);
    mlo_param_i64(&p, project_id);
    MLO_TRY(mlo_param_array(&p, &array, err));
    MLO_TRY(mlo_sql_array(conn, &mlo_sql_variant[VARIANT_MEASURED], &p, &evidence, err));
    for (size_t i = 0; i < count; i++)
        if (!attach(variants[i], "evidence", evidence))
            status = mlo_error_nomem(err);
out:
    mlo_array_clear(&array);
    json_decref(evidence);
    return status;
}
