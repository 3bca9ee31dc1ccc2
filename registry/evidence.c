#include "registry/evidence.h"
#include "registry/evidence_impl.h"
#include "registry/sql_impl.h"

#include <math.h>

enum { EVIDENCE_ADD, EVIDENCE_LIST };

const struct mlo_sql mlo_sql_evidence[] = {
    [EVIDENCE_ADD] =
        {"evidence_add",
         "INSERT INTO evidence (project_id, artifact, dataset, metric, params, unit, value, low, high, n, "
         "baseline, comparison, comparison_value, comparison_low, comparison_high, protocol, engine, "
         "machine_class, machine, samples, data_role, run_id, job_id) VALUES ($1, $2, $3, $4, $5, $6, $7, "
         "$8, "
         "$9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23) RETURNING id",
         23},
    [EVIDENCE_LIST] = {"evidence_list",
                       "SELECT e.id AS cursor_key, " MLO_EVIDENCE_COLUMNS
                       " FROM evidence e WHERE e.project_id = $1 "
                       "AND ($2::bytea IS NULL OR e.artifact = $2) AND ($3::text IS NULL OR e.metric = $3) "
                       "AND ($4::bigint IS NULL OR e.run_id = $4) AND e.id < $5 ORDER BY e.id DESC LIMIT $6",
                       6},
};
const size_t mlo_sql_evidence_count = MLO_COUNT(mlo_sql_evidence);

enum mlo_status mlo_evidence_add(struct mlo_db_conn *conn, const struct mlo_evidence *e, int64_t *id,
                                 struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf params = MLO_BUF_INIT, machine = MLO_BUF_INIT;
    enum mlo_status status;
    if (!e->metric || !e->unit || !e->protocol || !e->engine || !e->machine_class ||
        !isfinite(e->observed.value) || (e->baseline != NULL) != (e->comparison != NULL))
        return mlo_error_set(
            err, MLO_EINVAL,
            "evidence needs a metric, unit, protocol, engine, machine class and a finite value, and a "
            "comparison exactly when it has a baseline");
    MLO_TRY(mlo_blob_linked(conn, e->project_id, &e->artifact, NULL, err));
    if (e->params)
        mlo_json_canonical(e->params, &params);
    if (e->machine)
        mlo_json_canonical(e->machine, &machine);
    if (!mlo_buf_ok(&params) || !mlo_buf_ok(&machine)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_param_i64(&p, e->project_id);
    mlo_param_digest(&p, &e->artifact);
    mlo_param_digest(&p, e->dataset);
    mlo_param_text(&p, e->metric);
    mlo_param_text(&p, e->params ? mlo_buf_str(&params) : "{}");
    mlo_param_text(&p, e->unit);
    mlo_param_f64(&p, e->observed.value);
    mlo_param_f64(&p, e->observed.low);
    mlo_param_f64(&p, e->observed.high);
    mlo_param_id(&p, e->n);
    mlo_param_digest(&p, e->baseline);
    mlo_param_text(&p, e->comparison);
    mlo_param_f64(&p, e->baseline ? e->compared.value : (double)NAN);
    mlo_param_f64(&p, e->baseline ? e->compared.low : (double)NAN);
    mlo_param_f64(&p, e->baseline ? e->compared.high : (double)NAN);
    mlo_param_text(&p, e->protocol);
    mlo_param_text(&p, e->engine);
    mlo_param_text(&p, e->machine_class);
    mlo_param_text(&p, e->machine ? mlo_buf_str(&machine) : "{}");
    mlo_param_digest(&p, e->samples);
    mlo_param_text(&p, e->data_role);
    mlo_param_id(&p, e->run_id);
    mlo_param_id(&p, e->job_id);
    MLO_TRY(mlo_sql_number(conn, &mlo_sql_evidence[EVIDENCE_ADD], &p, id, err));
out:
    mlo_buf_clear(&params);
    mlo_buf_clear(&machine);
    return status;
}

enum mlo_status mlo_evidence_list(struct mlo_db_conn *conn, int64_t project_id,
                                  const struct mlo_evidence_filter *filter, const struct mlo_page *page,
                                  json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_digest(&p, filter ? filter->artifact : NULL);
    mlo_param_text(&p, filter ? filter->metric : NULL);
    mlo_param_id(&p, filter ? filter->run_id : 0);
    return mlo_page_newest(conn, &mlo_sql_evidence[EVIDENCE_LIST], &p, page, out, err);
}
