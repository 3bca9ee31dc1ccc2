#include "registry/reproduction.h"

#include <string.h>

#include "registry/attest.h"
#include "registry/sql_impl.h"

enum { REPRODUCTION_ADD, REPRODUCTION_LIST, REPRODUCTION_VERSION };

const struct mlo_sql mlo_sql_reproduction[] = {
    [REPRODUCTION_ADD] =
        {"reproduction_add",
         "INSERT INTO reproduction (project_id, derivation, parent, artifact, made, attestation, "
         "machine_class, program, run_id, job_id, requested_by) "
         "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
         11},
    [REPRODUCTION_LIST] =
        {"reproduction_list",
         "WITH RECURSIVE up(digest) AS (SELECT $1::bytea UNION SELECT e.parent::bytea FROM lineage_edge e "
         "JOIN up ON e.child = up.digest WHERE e.project_id = $2 AND e.kind = 'derived-from') "
         "SELECT r.id AS cursor_key, r.id, r.derivation, d.step, r.parent, r.artifact, r.made, r.made = "
         "r.artifact AS matched, "
         "a.signer, r.machine_class, r.program, r.run_id, r.job_id, r.requested_by, r.at "
         "FROM reproduction r JOIN derivation d ON d.key = r.derivation "
         "JOIN attestation a ON a.id = r.attestation WHERE r.project_id = $2 AND r.artifact IN "
         "(SELECT digest FROM up) AND r.id < $3 ORDER BY r.id DESC LIMIT $4",
         4},
    [REPRODUCTION_VERSION] =
        {"reproduction_version",
         "SELECT p.name || '/' || m.name || '@' || v.number FROM version v JOIN model m ON m.id = v.model_id "
         "JOIN project p ON p.id = m.project_id WHERE v.id = $1",
         1},
};
const size_t mlo_sql_reproduction_count = MLO_COUNT(mlo_sql_reproduction);

static enum mlo_status audit(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                             const struct mlo_reproduction *what, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_digest statement;
    char derivation[MLO_DIGEST_TEXT_SIZE], artifact[MLO_DIGEST_TEXT_SIZE], made[MLO_DIGEST_TEXT_SIZE],
        signed_text[MLO_DIGEST_TEXT_SIZE];
    json_t *after = NULL;
    mlo_param_i64(&p, what->version_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_reproduction[REPRODUCTION_VERSION], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no such version");
        goto out;
    }
    mlo_digest_of(what->envelope, strlen(what->envelope), &statement);
    after = json_pack("{s:s, s:s, s:s, s:s, s:b, s:I, s:s, s:s}", "step", what->step, "derivation",
                      mlo_digest_text(&what->derivation, derivation), "artifact",
                      mlo_digest_text(&what->artifact, artifact), "made", mlo_digest_text(&what->made, made),
                      "matched", mlo_digest_eq(&what->made, &what->artifact), "run", (json_int_t)what->run_id,
                      "signer", what->signer, "statement", mlo_digest_text(&statement, signed_text));
    struct mlo_audit_event event = {
        .action = "derivation.reproduce", .object = mlo_rows_text(&rows, 0, 0), .after = after};
    status =
        after ? mlo_audit_append(conn, what->project_id, actor, &event, NULL, err) : mlo_error_nomem(err);
out:
    json_decref(after);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_reproduction_add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                     const struct mlo_reproduction *what, struct mlo_error *err)
{
    const struct mlo_attestation statement = {.project_id = what->project_id,
                                              .artifact = what->made,
                                              .derivation = what->derivation,
                                              .signer = what->signer,
                                              .envelope = what->envelope,
                                              .run_id = what->run_id,
                                              .job_id = what->job_id};
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t attestation = 0;
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_attestation_add(conn, &statement, &attestation, err));
    mlo_param_i64(&p, what->project_id);
    mlo_param_digest(&p, &what->derivation);
    mlo_param_digest(&p, &what->parent);
    mlo_param_digest(&p, &what->artifact);
    mlo_param_digest(&p, &what->made);
    mlo_param_i64(&p, attestation);
    mlo_param_text(&p, what->machine_class);
    mlo_param_text(&p, what->program);
    mlo_param_i64(&p, what->run_id);
    mlo_param_i64(&p, what->job_id);
    mlo_param_text(&p, actor->name);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_reproduction[REPRODUCTION_ADD], &p, NULL, err));
    MLO_TRY(audit(conn, actor, what, err));
out:
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_reproduction_list(struct mlo_db_conn *conn, int64_t project_id,
                                      const struct mlo_digest *artifact, const struct mlo_page *page,
                                      json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_digest(&p, artifact);
    mlo_param_i64(&p, project_id);
    return mlo_page_newest(conn, &mlo_sql_reproduction[REPRODUCTION_LIST], &p, page, out, err);
}
