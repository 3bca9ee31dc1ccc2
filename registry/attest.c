#include "registry/attest.h"

#include "registry/models.h"
#include "registry/sql_impl.h"

enum { ATTEST_ADD, ATTEST_LIST };

const struct mlo_sql mlo_sql_attest[] = {
    [ATTEST_ADD] = {"attest_add",
                    "INSERT INTO attestation (project_id, artifact, derivation, signer, envelope, run_id, "
                    "job_id) VALUES "
                    "($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING id",
                    7},
    [ATTEST_LIST] =
        {"attest_list",
         "WITH RECURSIVE up(digest) AS (SELECT $1::bytea UNION SELECT e.parent::bytea FROM lineage_edge e "
         "JOIN up ON e.child = up.digest WHERE e.project_id = $2 AND e.kind = 'derived-from') "
         "SELECT a.artifact, a.derivation, a.signer, a.run_id, a.job_id, a.made_at, "
         "a.envelope::json AS envelope FROM attestation a WHERE a.project_id = $3 AND a.artifact IN "
         "(SELECT digest FROM up) ORDER BY a.id",
         3},
};
const size_t mlo_sql_attest_count = MLO_COUNT(mlo_sql_attest);

enum mlo_status mlo_attestation_add(struct mlo_db_conn *conn, const struct mlo_attestation *attestation,
                                    int64_t *id, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    enum mlo_status status;
    MLO_TRY(mlo_blob_linked(conn, attestation->project_id, &attestation->artifact, NULL, err));
    mlo_param_i64(&p, attestation->project_id);
    mlo_param_digest(&p, &attestation->artifact);
    mlo_param_digest(&p, &attestation->derivation);
    mlo_param_text(&p, attestation->signer);
    mlo_param_text(&p, attestation->envelope);
    mlo_param_id(&p, attestation->run_id);
    mlo_param_id(&p, attestation->job_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_attest[ATTEST_ADD], &p, &rows, err));
    if (id && mlo_rows_count(&rows) == 0)
        status = mlo_error_set(err, MLO_EEXISTS, "this job stated how it made that already");
    else if (id)
        *id = mlo_rows_i64(&rows, 0, 0);
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_attestation_list(struct mlo_db_conn *conn, int64_t project_id,
                                     const struct mlo_digest *artifact, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_digest(&p, artifact);
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, project_id);
    return mlo_sql_array(conn, &mlo_sql_attest[ATTEST_LIST], &p, out, err);
}
