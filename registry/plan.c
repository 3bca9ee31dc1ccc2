/* Compiled plans beside variants: a cache for machines of one kind. */
#include "registry/models.h"
#include "registry/sql_impl.h"

enum { PLAN_ADD, PLAN_LIST };

const struct mlo_sql mlo_sql_plan[] = {
    [PLAN_ADD] = {"plan_add",
                  "INSERT INTO plan (project_id, artifact, fingerprint, made_for, blob, size, signer, "
                  "machine_class, run_id, job_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) "
                  "ON CONFLICT DO NOTHING",
                  10},
    [PLAN_LIST] = {"plan_list",
                   "SELECT artifact, blob, size, signer, machine_class, fingerprint, "
                   "made_for::json AS made_for, run_id, made_at FROM plan WHERE project_id = $1 "
                   "AND artifact IN (SELECT artifact FROM variant WHERE version_id = $2) ORDER BY id DESC",
                   2},
};
const size_t mlo_sql_plan_count = MLO_COUNT(mlo_sql_plan);

enum mlo_status mlo_variant_plan_add(struct mlo_db_conn *conn, const struct mlo_variant_plan *plan,
                                     struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf made_for = MLO_BUF_INIT;
    struct mlo_digest fingerprint;
    mlo_json_canonical(plan->fingerprint, &made_for);
    if (!mlo_buf_ok(&made_for)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_digest_of(mlo_buf_str(&made_for), made_for.len, &fingerprint);
    MLO_TRY(mlo_blob_linked(conn, plan->project_id, &plan->artifact, NULL, err));
    mlo_param_i64(&p, plan->project_id);
    mlo_param_digest(&p, &plan->artifact);
    mlo_param_digest(&p, &fingerprint);
    mlo_param_text(&p, mlo_buf_str(&made_for));
    mlo_param_digest(&p, &plan->blob);
    mlo_param_i64(&p, (int64_t)plan->size_bytes);
    mlo_param_text(&p, plan->signer);
    mlo_param_text(&p, plan->machine_class);
    mlo_param_id(&p, plan->run_id);
    mlo_param_id(&p, plan->job_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_plan[PLAN_ADD], &p, NULL, err));
out:
    mlo_buf_clear(&made_for);
    return status;
}

enum mlo_status mlo_variant_plans(struct mlo_db_conn *conn, int64_t project_id, int64_t version_id,
                                  json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, version_id);
    return mlo_sql_array(conn, &mlo_sql_plan[PLAN_LIST], &p, out, err);
}
