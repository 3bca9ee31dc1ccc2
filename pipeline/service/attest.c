/* The worker's statement of what it made: inputs, recipe, revisions, machine, signed with its own key, which
 * the child that ran the model never sees. */
#include <stdlib.h>
#include <string.h>

#include "base/dsse.h"
#include "engines/plans.h"
#include "pipeline/service/worker_impl.h"
#include "registry/attest.h"

enum { A_RECIPE };

const struct mlo_sql MLO_ATTEST_SQL[] = {
    [A_RECIPE] =
        {"attest_recipe",
         "select r.recipe, p.name || '/' || m.name || '@' || v.number from run r join version v on v.id = "
         "r.version join model m on m.id = v.model_id join project p on p.id = m.project_id where r.id = $1",
         1},
};
const size_t MLO_ATTEST_SQL_COUNT = MLO_COUNT(MLO_ATTEST_SQL);

/* {"name", "digest": {"sha256"}}: a resource descriptor of in-toto. */
static json_t *resource(const char *name, const struct mlo_digest *digest)
{
    char hex[MLO_DIGEST_TEXT_SIZE];
    return json_pack("{s:s, s:{s:s}}", "name", name, "digest", "sha256", mlo_digest_hex(digest, hex));
}

/* A step that chose is named by the derivation with its decision (record_decided in completion.c). */
static enum mlo_status decided(json_t *derivation, const json_t *report, struct mlo_digest *key,
                               struct mlo_error *err)
{
    const char *decision = mlo_json_str(json_object_get(report, MLO_REPORT_DECISION), "blob", NULL);
    if (!decision)
        return MLO_OK;
    if (json_object_set_new(derivation, "decisions", json_pack("[s]", decision)) != 0)
        return mlo_error_nomem(err);
    return mlo_json_digest(derivation, key, err);
}

/* What went in: the model, the datasets and decisions that the derivation names, the recipe. */
static json_t *dependencies(const struct mlo_job *job, const json_t *derivation, const char *recipe)
{
    json_t *all = json_array(), *text;
    const char *role;
    size_t i;
    struct mlo_digest digest;
    json_array_append_new(all, resource("model", mlo_job_artifact(job)));
    const char *post = mlo_json_str(json_object_get(derivation, "inputs"), MLO_POSTPROCESS, NULL);
    if (post && mlo_digest_parse(post, &digest))
        json_array_append_new(all, resource(MLO_POSTPROCESS, &digest));
    json_object_foreach(json_object_get(derivation, "datasets"), role, text)
    {
        char name[80];
        snprintf(name, sizeof name, "dataset %s", role);
        if (json_is_string(text) && mlo_digest_parse(json_string_value(text), &digest))
            json_array_append_new(all, resource(name, &digest));
    }
    json_array_foreach(json_object_get(derivation, "decisions"), i, text)
    {
        if (json_is_string(text) && mlo_digest_parse(json_string_value(text), &digest))
            json_array_append_new(all, resource("decision", &digest));
    }
    mlo_digest_of(recipe, strlen(recipe), &digest);
    json_array_append_new(all, resource("recipe", &digest));
    return all;
}

/* What this machine is: read once, since that takes as long as signing. */
static pthread_once_t machine_once = PTHREAD_ONCE_INIT;
static json_t *machine_known;
static void look_at_machine(void)
{
    if (mlo_machine_describe(&machine_known, NULL) != MLO_OK)
        machine_known = NULL;
}

/* A copy of one's own: *out is yours. */
static enum mlo_status machine_of(json_t **out, struct mlo_error *err)
{
    pthread_once(&machine_once, look_at_machine);
    *out = json_deep_copy(machine_known);
    return *out ? MLO_OK : mlo_machine_describe(out, err);
}

static enum mlo_status statement(const struct mlo_job *job, const struct mlo_completion *made,
                                 const struct mlo_rows *run, const struct mlo_attest_run *how,
                                 const char *builder, struct mlo_buf *out, struct mlo_error *err)
{
    enum mlo_status status;
    const char *recipe = mlo_rows_text(run, 0, 0), *version = mlo_rows_text(run, 0, 1);
    char name[400], invocation[80], key[MLO_DIGEST_TEXT_SIZE], started[32], finished[32];
    struct mlo_digest derivation_key = job->key;
    char recorded[MLO_DIGEST_TEXT_SIZE];
    json_t *derivation = NULL, *machine = NULL, *again = NULL, *all = NULL;
    MLO_TRY(mlo_json_parse(job->derivation, strlen(job->derivation), "the derivation", &derivation, err));
    if (!job->reproduces) /* else the decision that it followed is in there */
        MLO_TRY(decided(derivation, made->report, &derivation_key, err));
    MLO_TRY(machine_of(&machine, err));
    if (job->reproduces)
        again = json_pack("{s:s, s:b}", "artifact", mlo_digest_text(&job->recorded, recorded), "matched",
                          mlo_digest_eq(&job->recorded, &made->artifact));
    snprintf(name, sizeof name, "%s/%s", version, job->variant ? job->variant : job->name);
    snprintf(invocation, sizeof invocation, "run %lld, job %lld, attempt %d", (long long)job->run,
             (long long)job->id, job->number);
    all =
        json_pack("{s:s, s:[o], s:s, s:{s:{s:s, s:{s:O, s:s, s:s}, s:{s:O, s:O*}, s:o}, s:{s:{s:s, s:{s:s}}, "
                  "s:{s:s, s:s, s:s}}}}",
                  "_type", MLO_ATTEST_STATEMENT, "subject", resource(name, &made->artifact), "predicateType",
                  MLO_ATTEST_PREDICATE, "predicate", "buildDefinition", "buildType", MLO_ATTEST_BUILD_TYPE,
                  "externalParameters", "derivation", derivation, "derivation_key",
                  mlo_digest_text(&derivation_key, key), "recipe", recipe, "internalParameters", "machine",
                  machine, "reproduces", again, "resolvedDependencies", dependencies(job, derivation, recipe),
                  "runDetails", "builder", "id", builder, "version", "mlopt", how->version, "metadata",
                  "invocationId", invocation, "startedOn", mlo_clock_format(how->started_us, started),
                  "finishedOn", mlo_clock_format(mlo_clock_utc_us(), finished));
    if (!all) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_json_canonical(all, out);
    if (!mlo_buf_ok(out))
        status = mlo_error_nomem(err);
out:
    json_decref(derivation);
    json_decref(machine);
    json_decref(again);
    json_decref(all);
    return status;
}

enum mlo_status mlo_attest_completion(struct mlo_worker *worker, const struct mlo_job *job,
                                      const struct mlo_completion *made, const struct mlo_attest_run *how,
                                      char **out, char signer[MLO_PUBLIC_KEY_TEXT_SIZE],
                                      struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_db_conn *conn = NULL;
    struct mlo_sign_key *key = NULL;
    struct mlo_buf text = MLO_BUF_INIT, envelope_text = MLO_BUF_INIT;
    json_t *envelope = NULL;
    char *path = mlo_fs_join(worker->o.work_dir, "plan.key", NULL);
    *out = NULL;
    MLO_TRY(path ? mlo_plan_own_key(path, &key, err) : mlo_error_nomem(err));
    mlo_public_key_text(mlo_sign_key_public(key), signer);
    MLO_TRY(mlo_db_acquire(worker->o.db, &conn, err));
    mlo_param_i64(&p, job->run);
    MLO_TRY(mlo_db_exec(conn, &MLO_ATTEST_SQL[A_RECIPE], &p, &rows, err));
    mlo_db_release(conn);
    conn = NULL;
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "run %lld is gone", (long long)job->run);
        goto out;
    }
    MLO_TRY(statement(job, made, &rows, how, signer, &text, err));
    MLO_TRY(mlo_dsse_sign(key, MLO_ATTEST_PAYLOAD, mlo_buf_str(&text), text.len, &envelope, err));
    mlo_json_canonical(envelope, &envelope_text);
    *out = mlo_buf_take(&envelope_text);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    mlo_db_release(conn);
    mlo_rows_clear(&rows);
    mlo_sign_key_free(key);
    mlo_buf_clear(&text);
    mlo_buf_clear(&envelope_text);
    json_decref(envelope);
    free(path);
    return status;
}
