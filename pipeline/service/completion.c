/* The effect of a finished job, row by row: what a step observed, compiled, wrote; what came of a decision;
 * what came out again. One transaction, fenced by the attempt's token. The bytes are in the blob store before
 * it begins, so that no row ever points at nothing. What most jobs have is written for many of them by one
 * call (finish.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/completion_impl.h"
#include "pipeline/service/search_impl.h"
#include "pipeline/service/teacher_impl.h"
#include "registry/attest.h"

enum { S_DONE, S_READY, S_OPEN, S_RESULTS, S_RUN, S_SET_RESULTS, S_SIZES };

const struct mlo_sql MLO_COMPLETION_SQL[] = {
    [S_DONE] = {"completion_done",
                "update job set state = $2, output = $3, result = $4, token = null, lease_until = null, "
                "  error = $5, progress = 1, message = '', finished_at = clock_timestamp() where id = $1",
                5},
    /* A job works on what the last derive step before it made, else on the upload. */
    [S_READY] =
        {"completion_ready",
         "update job j set state = 'ready', ready_at = clock_timestamp(), not_before = clock_timestamp(), "
         "  derivation = case when j.position = $2 then $3::bytea end, input = coalesce((select d.output "
         "from job d where d.run = j.run and d.kind = 'derive' "
         "    and d.position < j.position order by d.position desc limit 1), r.source) "
         "from run r where r.id = $1 and j.run = $1 and j.state = 'waiting' and not exists ("
         "  select from job_dep d join job n on n.id = d.needs "
         "  where d.job = j.id and n.state not in ('succeeded', 'reused')) "
         "returning j.id",
         3},
    [S_OPEN] = {"completion_open",
                "select count(*) from job where run = $1 and state not in ('succeeded', 'reused')", 1},
    [S_RESULTS] = {"completion_results",
                   "select result from job where run = $1 and result is not null order by position", 1},
    [S_RUN] = {"completion_run", "select recipe from run where id = $1", 1},
    [S_SIZES] = {"completion_sizes",
                 "select v.size, s.size from run r join blob s on s.digest = r.source "
                 "join job j on j.run = r.id and j.kind = 'derive' join blob v on v.digest = j.output "
                 "where r.id = $1 order by j.position desc limit 1",
                 1},
    [S_SET_RESULTS] = {"completion_set_results", "update run set results = $2 where id = $1", 2},
};
const size_t MLO_COMPLETION_SQL_COUNT = MLO_COUNT(MLO_COMPLETION_SQL);

/* --- what a derive step made --------------------------------------------------------------------------- */

static enum mlo_status data_edge(struct mlo_db_conn *conn, const struct mlo_complete *c, const char *role,
                                 const char *kind, const struct mlo_digest *key, struct mlo_error *err)
{
    struct mlo_digest dataset;
    const char *text = mlo_json_str(json_object_get(c->job->datasets, role), "digest", NULL);
    if (!text || !mlo_digest_parse(text, &dataset))
        return MLO_OK;
    return mlo_lineage_add(conn, c->job->project, &c->what->artifact, &dataset, kind, key, c->job->run, err);
}

/* A step that chose: what it made follows from the decision too, and is named by the derivation with its
 * digest. The one without, which the job was claimed for, leads there as long as the same search would come
 * to the same: one that was ended by the clock would not. */
static enum mlo_status record_decided(struct mlo_db_conn *conn, const struct mlo_complete *c,
                                      json_t *derivation, struct mlo_digest *key, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_completion *what = c->what;
    const json_t *decision = json_object_get(what->report, MLO_REPORT_DECISION);
    bool repeatable =
        mlo_json_bool(json_object_get(what->report, "mixed_precision"), "complete", true) || !decision;
    struct mlo_digest digest;
    *key = c->job->key;
    if (!what->reused && repeatable)
        MLO_TRY(mlo_derivation_record(conn, derivation, c->job->step, &what->artifact, what->size_bytes,
                                      what->report, NULL, err));
    if (!decision)
        return MLO_OK;
    const char *text = mlo_json_str(decision, "blob", "");
    if (!mlo_digest_parse(text, &digest))
        return mlo_error_set(err, MLO_EINTERNAL, "the decision of the step '%s' was not stored",
                             c->job->step);
    MLO_TRY(mlo_blob_record_stored(conn, c->what->blobs, &c->actor, c->job->project, &digest,
                                   (uint64_t)mlo_json_i64(decision, "size", 0), err));
    if (json_object_set_new(derivation, "decisions", json_pack("[s]", text)) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_derivation_record(conn, derivation, c->job->step, &what->artifact, what->size_bytes,
                                  what->report, key, err));
out:
    return status;
}

static enum mlo_status record_artifact(struct mlo_db_conn *conn, const struct mlo_complete *c,
                                       struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_job *job = c->job;
    const struct mlo_step *step = mlo_step_find(job->step);
    const struct mlo_digest *parent = mlo_job_artifact(job);
    struct mlo_digest key;
    json_t *derivation = NULL;
    MLO_TRY(mlo_blob_record_stored(conn, c->what->blobs, &c->actor, job->project, &c->what->artifact,
                                   c->what->size_bytes, err));
    MLO_TRY(mlo_json_parse(job->derivation, strlen(job->derivation), "the derivation", &derivation, err));
    MLO_TRY(record_decided(conn, c, derivation, &key, err));
    if (!mlo_digest_eq(parent, &c->what->artifact))
        MLO_TRY(mlo_lineage_add(conn, job->project, &c->what->artifact, parent, MLO_LINEAGE_DERIVED_FROM,
                                &key, job->run, err));
    if (step && mlo_step_reads_calibrate(step))
        MLO_TRY(data_edge(conn, c, "calibrate", MLO_LINEAGE_CALIBRATED_WITH, &key, err));
    if (step && mlo_step_reads_select(step, json_object_get(derivation, "options")))
        MLO_TRY(data_edge(conn, c, "select", MLO_LINEAGE_SELECTED_WITH, &key, err));
    if (c->what->envelope) {
        const struct mlo_attestation made = {.project_id = job->project,
                                             .artifact = c->what->artifact,
                                             .derivation = key,
                                             .signer = c->what->signer,
                                             .envelope = c->what->envelope,
                                             .run_id = job->run,
                                             .job_id = job->id};
        MLO_TRY(mlo_attestation_add(conn, &made, NULL, err));
    }
    if (job->variant)
        MLO_TRY(mlo_variant_name(conn, &c->actor, job->version, job->variant, &c->what->artifact, &key,
                                 job->run, NULL, err));
out:
    json_decref(derivation);
    return status;
}

/* --- what came out again -------------------------------------------------------------------------------- */

/* The fact, whatever it is; *difference says so where other bytes came out. */
static enum mlo_status record_reproduction(struct mlo_db_conn *conn, const struct mlo_complete *c,
                                           struct mlo_error *difference, struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_job *job = c->job;
    char key[MLO_DIGEST_TEXT_SIZE], recorded[MLO_DIGEST_TEXT_SIZE], made[MLO_DIGEST_TEXT_SIZE];
    const struct mlo_reproduction what = {.project_id = job->project,
                                          .version_id = job->version,
                                          .step = job->step,
                                          .derivation = job->key,
                                          .parent = *mlo_job_artifact(job),
                                          .artifact = job->recorded,
                                          .made = c->what->artifact,
                                          .signer = c->what->signer,
                                          .envelope = c->what->envelope,
                                          .machine_class = c->what->machine_class,
                                          .program = c->what->program,
                                          .run_id = job->run,
                                          .job_id = job->id};
    if (!what.envelope || !what.signer || !what.machine_class || !what.program)
        return mlo_error_set(err, MLO_EINTERNAL, "a reproduction of the step '%s' is not signed", job->step);
    MLO_TRY(mlo_blob_record_stored(conn, c->what->blobs, &c->actor, job->project, &what.made,
                                   c->what->size_bytes, err));
    MLO_TRY(mlo_reproduction_add(conn, &c->actor, &what, err));
    if (mlo_digest_eq(&what.made, &what.artifact))
        goto out;
    (void)mlo_error_set(difference, MLO_ECONFLICT,
                        "derivation %s made %s, and %s when it was run again: it is not reproducible",
                        mlo_digest_text(&what.derivation, key), mlo_digest_text(&what.artifact, recorded),
                        mlo_digest_text(&what.made, made));
    mlo_error_where(difference, "step '%s'", job->step);
    mlo_error_hint(difference, "a pass changed its output without a new revision, its output depends on the "
                               "machine, or the recorded bytes were not made by it");
out:
    return status;
}

/* --- what an observe step saw -------------------------------------------------------------------------- */

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static struct mlo_interval interval(const json_t *object)
{
    return (struct mlo_interval){number(object, "value"), number(object, "low"), number(object, "high")};
}

static const struct mlo_digest *subject(const struct mlo_job *job, const json_t *object)
{
    return mlo_str_eq(mlo_json_str(object, "subject", ""), "source") ? &job->source : mlo_job_artifact(job);
}

static enum mlo_status record_observation(struct mlo_db_conn *conn, const struct mlo_complete *c,
                                          const json_t *seen, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_job *job = c->job;
    const json_t *against = json_object_get(seen, "against");
    const char *role = mlo_json_str(seen, "data_role", NULL);
    const char *dataset_text =
        role ? mlo_json_str(json_object_get(job->datasets, role), "digest", NULL) : NULL;
    const char *samples_text = mlo_json_str(seen, "samples", NULL);
    struct mlo_digest dataset, samples;
    struct mlo_evidence evidence = {
        .project_id = job->project,
        .artifact = *subject(job, seen),
        .metric = mlo_json_str(seen, "metric", ""),
        .unit = mlo_json_str(seen, "unit", ""),
        .params = json_object_get(seen, "params"),
        .observed = interval(seen),
        .n = mlo_json_i64(seen, "n", 0),
        .protocol = mlo_json_str(seen, "protocol", ""),
        .engine = mlo_json_str(seen, "engine", ""),
        .machine_class = mlo_json_str(seen, "machine_class", ""),
        .machine = json_object_get(seen, "machine"),
        .data_role = role,
        .run_id = job->run,
        .job_id = job->id,
    };
    if (!*evidence.metric || !isfinite(evidence.observed.value))
        return mlo_error_set(err, MLO_EFORMAT,
                             "the step '%s' returned an observation without metric or value", job->step);
    if (dataset_text && mlo_digest_parse(dataset_text, &dataset))
        evidence.dataset = &dataset;
    if (json_is_object(against)) {
        const json_t *difference = json_object_get(against, "difference");
        evidence.baseline = subject(job, against);
        evidence.comparison = difference ? "difference" : "ratio";
        evidence.compared = interval(difference ? difference : json_object_get(against, "ratio"));
    }
    if (samples_text && mlo_digest_parse(samples_text, &samples)) {
        evidence.samples = &samples;
        MLO_TRY(mlo_blob_record_stored(conn, c->what->blobs, &c->actor, job->project, &samples,
                                       (uint64_t)mlo_json_i64(seen, "samples_bytes", 0), err));
    }
    MLO_TRY(mlo_evidence_add(conn, &evidence, NULL, err));
    if (evidence.dataset)
        MLO_TRY(mlo_lineage_add(conn, job->project, &evidence.artifact, evidence.dataset,
                                MLO_LINEAGE_EVALUATED_ON, NULL, job->run, err));
out:
    return status;
}

/* --- what a compile step made -------------------------------------------------------------------------- */

static enum mlo_status record_plan(struct mlo_db_conn *conn, const struct mlo_complete *c, const json_t *made,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_job *job = c->job;
    struct mlo_variant_plan plan = {.project_id = job->project,
                                    .artifact = *mlo_job_artifact(job),
                                    .fingerprint = json_object_get(made, "fingerprint"),
                                    .size_bytes = (uint64_t)mlo_json_i64(made, "size", 0),
                                    .signer = mlo_json_str(made, "signer", ""),
                                    .machine_class = mlo_json_str(made, "machine_class", ""),
                                    .run_id = job->run,
                                    .job_id = job->id};
    if (!mlo_digest_parse(mlo_json_str(made, "blob", ""), &plan.blob))
        return mlo_error_set(err, MLO_EINTERNAL, "a plan of the step '%s' was not stored", job->step);
    MLO_TRY(mlo_blob_record_stored(conn, c->what->blobs, &c->actor, job->project, &plan.blob, plan.size_bytes,
                                   err));
    MLO_TRY(mlo_variant_plan_add(conn, &plan, err));
out:
    return status;
}

/* --- what a report step wrote ----------------------------------------------------------------------------
 */

static enum mlo_status record_report(struct mlo_db_conn *conn, const struct mlo_complete *c,
                                     struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_job *job = c->job;
    const struct mlo_variant_report report = {.project_id = job->project,
                                              .artifact = *mlo_job_artifact(job),
                                              .blob = c->what->document,
                                              .size_bytes = c->what->document_bytes,
                                              .run_id = job->run,
                                              .job_id = job->id};
    MLO_TRY(mlo_blob_record_stored(conn, c->what->blobs, &c->actor, job->project, &report.blob,
                                   report.size_bytes, err));
    MLO_TRY(mlo_variant_report_add(conn, &report, err));
out:
    return status;
}

/* --- what was read of models and labels ---------------------------------------------------------------- */

struct reading {
    const struct mlo_signature_reading *read;
    const struct mlo_complete *c;
    bool *news;
};

static int by_blob(const void *a, const void *b)
{
    const struct mlo_signature_reading *x = ((const struct reading *)a)->read,
                                       *y = ((const struct reading *)b)->read;
    int order = memcmp(x->blob.bytes, y->blob.bytes, MLO_DIGEST_SIZE);
    return order ? order : (x->job_id > y->job_id) - (x->job_id < y->job_id);
}

static bool is_of_upload(const struct mlo_job *job, const struct mlo_digest *blob)
{
    return mlo_digest_eq(blob, &job->source) || (job->has_labels && mlo_digest_eq(blob, &job->labels));
}

enum mlo_status mlo_completion_record_signatures(struct mlo_db_conn *conn, const struct mlo_complete *jobs,
                                                 size_t count, bool *news, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t total = 0, n = 0;
    for (size_t i = 0; i < count; i++) {
        total += jobs[i].what->signature_count;
        news[i] = false;
    }
    if (total == 0)
        return MLO_OK;
    struct reading *all = calloc(total, sizeof *all);
    if (!all)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < jobs[i].what->signature_count; k++)
            all[n++] = (struct reading){&jobs[i].what->signatures[k], &jobs[i], &news[i]};
    qsort(all, total, sizeof *all, by_blob);
    for (size_t i = 0; i < total; i++) {
        bool added = false;
        MLO_TRY(mlo_signature_record(conn, all[i].read, &added, err));
        *all[i].news = *all[i].news || (added && is_of_upload(all[i].c->job, &all[i].read->blob));
    }
out:
    free(all);
    return status;
}

/* --- the run ------------------------------------------------------------------------------------------- */

enum mlo_status mlo_run_append_size(json_t *all, double size, double source_size, struct mlo_error *err)
{
    double ratio = size / source_size;
    if (!isfinite(ratio))
        return MLO_OK;
    json_t *seen =
        json_pack("{s:s, s:s, s:{}, s:s, s:f, s:f, s:f, s:{s:s, s:{s:f, s:f, s:f}}}", "subject", "variant",
                  "metric", "size", "params", "unit", "bytes", "value", size, "low", size, "high", size,
                  "against", "subject", "source", "ratio", "value", ratio, "low", ratio, "high", ratio);
    return seen && json_array_append_new(all, seen) == 0 ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status append_size(struct mlo_db_conn *conn, int64_t run, json_t *all, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    enum mlo_status status = mlo_db_exec(conn, &MLO_COMPLETION_SQL[S_SIZES], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) > 0)
        status = mlo_run_append_size(all, (double)mlo_rows_i64(&rows, 0, 0),
                                     (double)mlo_rows_i64(&rows, 0, 1), err);
    mlo_rows_clear(&rows);
    return status;
}

/* All observations of the run, over its jobs in order; yours. */
static enum mlo_status run_observations(struct mlo_db_conn *conn, int64_t run, json_t **out,
                                        struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    json_t *all = json_array(), *result = NULL;
    if (!all)
        return mlo_error_nomem(err);
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    MLO_TRY(mlo_db_exec(conn, &MLO_COMPLETION_SQL[S_RESULTS], &p, &rows, err));
    for (int i = 0; i < mlo_rows_count(&rows); i++) {
        const char *text = mlo_rows_text(&rows, i, 0);
        MLO_TRY(mlo_json_parse(text, strlen(text), "a job's result", &result, err));
        json_t *seen = json_object_get(result, "observations");
        if (json_is_array(seen) && json_array_extend(all, seen) < 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
        json_decref(result);
        result = NULL;
    }
    MLO_TRY(append_size(conn, run, all, err));
    *out = json_incref(all);
out:
    json_decref(result);
    json_decref(all);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_run_judge(const char *recipe_text, const json_t *observations, char **results,
                              char **error, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK, held;
    struct mlo_recipe *recipe = NULL;
    struct mlo_error why = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *judged = NULL;
    *results = *error = NULL;
    MLO_TRY(mlo_recipe_parse(recipe_text, strlen(recipe_text), "the run's recipe", &recipe, err));
    held = mlo_recipe_expect(recipe, observations, &judged, &why);
    if (held != MLO_OK && held != MLO_EEXPECT) {
        if (err)
            *err = why;
        status = held;
        goto out;
    }
    if (judged)
        mlo_json_canonical(judged, &text);
    if ((judged && !(*results = mlo_buf_take(&text))) ||
        (held == MLO_EEXPECT && !(*error = mlo_error_json(&why, 0))))
        status = mlo_error_nomem(err);
out:
    mlo_buf_clear(&text);
    json_decref(judged);
    mlo_recipe_free(recipe);
    return status;
}

/* Judges the expectations and ends the run; one that only reproduced measured nothing. */
static enum mlo_status finish_run(struct mlo_db_conn *conn, const struct mlo_complete *c,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    json_t *observations = NULL;
    char *results = NULL, *error = NULL;
    struct mlo_params p = MLO_PARAMS_INIT;
    if (c->job->reproduces)
        return mlo_run_end(conn, c->job->run, "succeeded", NULL, &c->actor, err);
    mlo_param_i64(&p, c->job->run);
    MLO_TRY(mlo_db_ahead(conn, &MLO_COMPLETION_SQL[S_RESULTS], &p, err));
    MLO_TRY(mlo_db_ahead(conn, &MLO_COMPLETION_SQL[S_SIZES], &p, err));
    MLO_TRY(mlo_db_exec(conn, &MLO_COMPLETION_SQL[S_RUN], &p, &rows, err));
    MLO_TRY(run_observations(conn, c->job->run, &observations, err));
    MLO_TRY(mlo_run_judge(mlo_rows_text(&rows, 0, 0), observations, &results, &error, err));
    if (results) {
        mlo_param_text(&p, results);
        MLO_TRY(mlo_db_queue(conn, &MLO_COMPLETION_SQL[S_SET_RESULTS], &p, NULL, err));
    }
    MLO_TRY(mlo_run_end(conn, c->job->run, error ? "failed" : "succeeded", error, &c->actor, err));
out:
    free(results);
    free(error);
    json_decref(observations);
    mlo_rows_clear(&rows);
    return status;
}

/* --- all of it ----------------------------------------------------------------------------------------- */

enum mlo_status mlo_completion_result(const struct mlo_completion *what, struct mlo_buf *text,
                                      struct mlo_error *err)
{
    json_t *result = json_pack("{s:O?, s:O?}", "report", what->report, "observations", what->observations);
    if (result)
        mlo_json_canonical(result, text);
    json_decref(result);
    return result && mlo_buf_ok(text) ? MLO_OK : mlo_error_nomem(err);
}

/* `error`: JSON of why it fails although it made something, or NULL. */
static enum mlo_status close_job(struct mlo_db_conn *conn, const struct mlo_complete *c, const char *error,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT;
    MLO_TRY(mlo_completion_result(c->what, &text, err));
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, c->job->id);
    mlo_param_text(&p, error ? "failed" : c->what->reused ? "reused" : "succeeded");
    mlo_param_digest(&p, c->what->has_artifact ? &c->what->artifact : NULL);
    mlo_param_text(&p, mlo_buf_str(&text));
    mlo_param_text(&p, error);
    MLO_TRY(mlo_db_queue(conn, &MLO_COMPLETION_SQL[S_DONE], &p, NULL, err));
    MLO_TRY(mlo_attempt_end_row(conn, c->job->id, c->job->token, error ? "failed" : "succeeded", error,
                                &c->what->cost, err));
    MLO_TRY(mlo_job_event(conn, c->job->id, "job", err));
out:
    mlo_buf_clear(&text);
    return status;
}

/* Of a step that chose and made no artifact: the project has a link to it, as to what it derives. */
static enum mlo_status record_observed_decision(struct mlo_db_conn *conn, const struct mlo_complete *c,
                                                struct mlo_error *err)
{
    const json_t *decision = json_object_get(c->what->report, MLO_REPORT_DECISION);
    struct mlo_digest digest;
    if (!decision || !mlo_digest_parse(mlo_json_str(decision, "blob", ""), &digest))
        return MLO_OK;
    return mlo_blob_record_stored(conn, c->what->blobs, &c->actor, c->job->project, &digest,
                                  (uint64_t)mlo_json_i64(decision, "size", 0), err);
}

bool mlo_completion_has_more(const struct mlo_completion *what)
{
    return json_array_size(what->observations) > 0 || json_array_size(what->plans) > 0 ||
           what->has_document || what->sample_count > 0;
}

enum mlo_status mlo_completion_record_more(struct mlo_db_conn *conn, const struct mlo_complete *c, bool news,
                                           struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < json_array_size(c->what->observations); i++)
        MLO_TRY(record_observation(conn, c, json_array_get(c->what->observations, i), err));
    MLO_TRY(mlo_teacher_record(conn, c->job, mlo_job_artifact(c->job), err));
    for (size_t i = 0; i < json_array_size(c->what->plans); i++)
        MLO_TRY(record_plan(conn, c, json_array_get(c->what->plans, i), err));
    if (c->what->has_document)
        MLO_TRY(record_report(conn, c, err));
    if (!c->what->has_artifact)
        MLO_TRY(record_observed_decision(conn, c, err));
    for (size_t i = 0; i < c->what->sample_count; i++) {
        const struct mlo_sample_set *set = &c->what->samples[i];
        MLO_TRY(mlo_samples_record(conn, &set->dataset, mlo_buf_str(&set->hashes), set->hashes.len, err));
    }
    if (news)
        MLO_TRY(mlo_signature_refute(conn, &c->actor, c->job->version, err));
out:
    return status;
}

enum mlo_status mlo_completion_next_key(const struct mlo_complete *c, bool *has_key, struct mlo_digest *key,
                                        struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_error unknown = {0}; /* a step that this program does not know has a key for who does */
    char *text = NULL;
    json_t *spec = NULL;
    const char *next = c->job->next_spec;
    *has_key = false;
    if (!next || !c->what->has_artifact || c->job->reproduces)
        return MLO_OK;
    MLO_TRY(mlo_json_parse(next, strlen(next), "the job's spec", &spec, err));
    *has_key = mlo_job_derivation(c->job->next_step, json_object_get(spec, "options"), &c->what->artifact,
                                  c->job->datasets, NULL, &text, key, &unknown) == MLO_OK;
out:
    free(text);
    json_decref(spec);
    return status;
}

static enum mlo_status complete_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_complete *c = arg;
    struct mlo_rows rows = {0};
    struct mlo_error difference = {0};
    char *error = NULL;
    bool news = false;
    MLO_TRY(mlo_lock_and_check(conn, c->job->id, c->job->token, err));
    if (c->what->has_artifact && !c->job->reproduces)
        MLO_TRY(record_artifact(conn, c, err));
    else if (c->what->has_artifact)
        MLO_TRY(record_reproduction(conn, c, &difference, err));
    MLO_TRY(mlo_completion_record_signatures(conn, c, 1, &news, err));
    MLO_TRY(mlo_completion_record_more(conn, c, news, err));
    if (difference.status != MLO_OK && !(error = mlo_error_json(&difference, c->job->id))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(close_job(conn, c, error, err));
    if (error) {
        MLO_TRY(mlo_run_end(conn, c->job->run, "failed", error, &c->actor, err));
        goto out;
    }
    if (mlo_search_chose(c)) {
        bool over;
        MLO_TRY(mlo_search_follow(conn, c, &over, &error, err));
        if (over)
            MLO_TRY(mlo_run_end(conn, c->job->run, error ? "failed" : "succeeded", error, &c->actor, err));
        goto out;
    }
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_digest key;
    bool has_key = false;
    MLO_TRY(mlo_completion_next_key(c, &has_key, &key, err));
    mlo_param_i64(&p, c->job->run);
    mlo_param_i64(&p, c->job->position + 1);
    mlo_param_digest(&p, has_key ? &key : NULL);
    MLO_TRY(mlo_db_exec(conn, &MLO_COMPLETION_SQL[S_READY], &p, &rows, err));
    for (int i = 0; i < mlo_rows_count(&rows); i++)
        MLO_TRY(mlo_job_event(conn, mlo_rows_i64(&rows, i, 0), "job", err));
    /* also for the jobs of other runs that waited for this derivation */
    if (mlo_rows_count(&rows) > 0 || c->job->has_key)
        MLO_TRY(mlo_queue_notify(conn, err));
    p.count = 1;
    MLO_TRY(mlo_db_exec(conn, &MLO_COMPLETION_SQL[S_OPEN], &p, &rows, err));
    if (mlo_rows_i64(&rows, 0, 0) == 0)
        MLO_TRY(finish_run(conn, c, err));
out:
    free(error);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_complete_apart(struct mlo_db *db, const struct mlo_complete *c, struct mlo_error *err)
{
    return mlo_service_pool_tx(db, complete_tx, (void *)c, err);
}
