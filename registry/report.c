/* Reports beside variants: what explains an artifact, one a run. */
#include "registry/models.h"
#include "registry/sql_impl.h"

enum { REPORT_ADD, REPORT_LIST, REPORT_FIND };

const struct mlo_sql mlo_sql_report[] = {
    [REPORT_ADD] = {"report_add",
                    "INSERT INTO report (project_id, artifact, blob, size, run_id, job_id) "
                    "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
                    6},
    [REPORT_LIST] = {"report_list",
                     "SELECT artifact, blob, size, run_id, made_at FROM report WHERE project_id = $1 "
                     "AND artifact IN (SELECT artifact FROM variant WHERE version_id = $2) ORDER BY id DESC",
                     2},
    [REPORT_FIND] = {"report_find",
                     "SELECT blob, size FROM report WHERE project_id = $1 AND artifact = $2 "
                     "AND ($3::bigint IS NULL OR run_id = $3) ORDER BY id DESC LIMIT 1",
                     3},
};
const size_t mlo_sql_report_count = MLO_COUNT(mlo_sql_report);

enum mlo_status mlo_variant_report_add(struct mlo_db_conn *conn, const struct mlo_variant_report *report,
                                       struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params p = MLO_PARAMS_INIT;
    MLO_TRY(mlo_blob_linked(conn, report->project_id, &report->artifact, NULL, err));
    mlo_param_i64(&p, report->project_id);
    mlo_param_digest(&p, &report->artifact);
    mlo_param_digest(&p, &report->blob);
    mlo_param_i64(&p, (int64_t)report->size_bytes);
    mlo_param_id(&p, report->run_id);
    mlo_param_id(&p, report->job_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_report[REPORT_ADD], &p, NULL, err));
out:
    return status;
}

enum mlo_status mlo_variant_reports(struct mlo_db_conn *conn, int64_t project_id, int64_t version_id,
                                    json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, version_id);
    return mlo_sql_array(conn, &mlo_sql_report[REPORT_LIST], &p, out, err);
}

enum mlo_status mlo_variant_report_find(struct mlo_db_conn *conn, int64_t project_id,
                                        const struct mlo_digest *artifact, int64_t run_id,
                                        struct mlo_digest *blob, uint64_t *size_bytes, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, project_id);
    mlo_param_digest(&p, artifact);
    mlo_param_id(&p, run_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_report[REPORT_FIND], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0 || !mlo_rows_digest(&rows, 0, 0, blob)) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "the variant has no report");
        mlo_error_hint(
            err,
            "end the recipe's steps with \"- report: {}\", as the built-in ones do, and submit it again");
        goto out;
    }
    *size_bytes = (uint64_t)mlo_rows_i64(&rows, 0, 1);
out:
    mlo_rows_clear(&rows);
    return status;
}
