/* Re-making a variant: a run whose jobs are the deriving jobs of the run that made it, with the inputs,
 * options and decisions that were recorded. Nothing is taken from a cache; what comes out is compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/service_impl.h"

enum { S_CHAIN, S_INSERT_RUN, S_INSERT_JOB, S_INSERT_DEP };

enum { C_JOB, C_STEP, C_SPEC, C_INPUT, C_OUTPUT, C_KEY, C_RESULT, C_DATASETS, C_ON };

const struct mlo_sql MLO_REPRODUCE_SQL[] = {
    [S_CHAIN] =
        {"reproduce_chain",
         "select j.id, j.step, j.spec, j.input, j.output, j.derivation, j.result, r.datasets, "
         "  p.name || '/' || m.name || '@' || v.number from job j join run r on r.id = j.run "
         "join version v on v.id = r.version join model m on m.id = v.model_id "
         "join project p on p.id = m.project_id "
         "where j.run = $1 and j.kind = 'derive' and r.project = $2 and j.output is not null "
         /* of a search's jobs, those of the candidate that ends on the artifact: of several the named one */
         "and (j.spec::json ->> 'candidate') is not distinct from (select c.spec::json ->> 'candidate' "
         "  from job c where c.run = $1 and c.kind = 'derive' and c.output = $3 and not exists ("
         "    select from job l where l.run = $1 and l.kind = 'derive' and l.output is not null "
         "    and l.position > c.position "
         "    and (l.spec::json ->> 'candidate') is not distinct from (c.spec::json ->> 'candidate')) "
         "  order by r.recipe_name || '-' || (c.spec::json ->> 'candidate') = $4 desc, c.position limit 1) "
         "order by j.position",
         4},
    [S_INSERT_RUN] = {"reproduce_insert_run",
                      "insert into run (project, version, recipe_name, recipe, target, source, datasets, "
                      "  priority, reproduces, created_by) "
                      "select project, version, recipe_name, recipe, target, source, datasets, $2, $3, $4 "
                      "from run where id = $1 returning id",
                      4},
    [S_INSERT_JOB] =
        {"reproduce_insert_job",
         "insert into job (run, project, position, name, step, kind, target, exclusive, state, priority, "
         "  spec, input, ready_at, memory_bytes, disk_bytes, gpus, gpu, timeout_s, estimated) "
         "select $1, o.project, o.position, o.name, o.step, o.kind, o.target, o.exclusive, $3, $4, $5, "
         "  case when $3 = 'ready' then o.input end, case when $3 = 'ready' then clock_timestamp() end, "
         "  o.memory_bytes, o.disk_bytes, o.gpus, o.gpu, o.timeout_s, o.estimated "
         "from job o where o.id = $2 returning id",
         5},
    [S_INSERT_DEP] = {"reproduce_insert_dep", "insert into job_dep (job, needs) values ($1, $2)", 2},
};
const size_t MLO_REPRODUCE_SQL_COUNT = MLO_COUNT(MLO_REPRODUCE_SQL);

/* {"derivation","artifact","decision"?} of a job of the run that made the variant, after checking that this
 * program would make that derivation. `named`: of the variant, for the last job. */
static enum mlo_status recall(struct mlo_db_conn *conn, const struct mlo_rows *rows, int row,
                              const json_t *options, const struct mlo_digest *named, json_t **out,
                              struct mlo_error *err)
{
    enum mlo_status status;
    const char *step = mlo_rows_text(rows, row, C_STEP),
               *datasets_text = mlo_rows_text(rows, row, C_DATASETS),
               *result_text = mlo_rows_text(rows, row, C_RESULT);
    char *text = NULL, key_text[MLO_DIGEST_TEXT_SIZE], output_text[MLO_DIGEST_TEXT_SIZE];
    struct mlo_digest input, output, key;
    json_t *datasets = NULL, *result = NULL, *ours = NULL, *recorded = NULL;
    if (!mlo_rows_digest(rows, row, C_INPUT, &input) || !mlo_rows_digest(rows, row, C_OUTPUT, &output))
        return mlo_error_set(err, MLO_EINTERNAL, "the step '%s' has no recorded input", step);
    MLO_TRY(mlo_json_parse(datasets_text, strlen(datasets_text), "the run's datasets", &datasets, err));
    if (result_text)
        MLO_TRY(mlo_json_parse(result_text, strlen(result_text), "a job's result", &result, err));
    const char *decision =
        mlo_json_str(json_object_get(json_object_get(result, "report"), MLO_REPORT_DECISION), "blob", NULL);
    MLO_TRY(mlo_job_derivation(step, options, &input, datasets, decision, &text, &key, err));
    MLO_TRY(mlo_json_parse(text, strlen(text), "the derivation", &ours, err));
    if (named)
        key = *named;
    else if (!decision && !mlo_rows_digest(rows, row, C_KEY, &key)) {
        status = mlo_error_set(err, MLO_EINTERNAL, "the step '%s' has no recorded derivation", step);
        goto out;
    }
    MLO_TRY(mlo_derivation_get(conn, &key, &recorded, err));
    MLO_TRY(mlo_step_derivation_same(step, json_object_get(recorded, "derivation"), ours, err));
    *out = json_pack("{s:s, s:s, s:s*}", "derivation", mlo_digest_text(&key, key_text), "artifact",
                     mlo_digest_text(&output, output_text), "decision", decision);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    free(text);
    json_decref(datasets);
    json_decref(result);
    json_decref(ours);
    json_decref(recorded);
    return status;
}

struct reproduce {
    const struct mlo_reproduce_request *request;
    int64_t run;
};

static enum mlo_status insert_job(struct mlo_db_conn *conn, const struct reproduce *r,
                                  const struct mlo_rows *rows, int row, const struct mlo_digest *named,
                                  int64_t *before, struct mlo_error *err)
{
    enum mlo_status status;
    const char *spec_text = mlo_rows_text(rows, row, C_SPEC);
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows made = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *spec = NULL, *wanted = NULL;
    MLO_TRY(mlo_json_parse(spec_text, strlen(spec_text), "a job's spec", &spec, err));
    MLO_TRY(recall(conn, rows, row, json_object_get(spec, "options"), named, &wanted, err));
    (void)json_object_del(spec, "candidate"); /* no search goes on without it: where it fails, its run does */
    (void)json_object_del(spec, "rung");
    if (json_object_set(spec, "reproduce", wanted) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_json_canonical(spec, &text);
    if (!mlo_buf_ok(&text)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_param_i64(&p, r->run);
    mlo_param_i64(&p, mlo_rows_i64(rows, row, C_JOB));
    mlo_param_text(&p, *before ? "waiting" : "ready");
    mlo_param_i64(&p, r->request->priority);
    mlo_param_text(&p, mlo_buf_str(&text));
    MLO_TRY(mlo_db_exec(conn, &MLO_REPRODUCE_SQL[S_INSERT_JOB], &p, &made, err));
    int64_t id = mlo_rows_i64(&made, 0, 0);
    if (*before) {
        p = (struct mlo_params)MLO_PARAMS_INIT;
        mlo_param_i64(&p, id);
        mlo_param_i64(&p, *before);
        MLO_TRY(mlo_db_exec(conn, &MLO_REPRODUCE_SQL[S_INSERT_DEP], &p, NULL, err));
    }
    *before = id;
out:
    json_decref(spec);
    json_decref(wanted);
    mlo_buf_clear(&text);
    mlo_rows_clear(&made);
    return status;
}

static enum mlo_status announce(struct mlo_db_conn *conn, const struct reproduce *r, const char *on,
                                int64_t of_run, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char object[64];
    json_t *data = json_pack("{s:s}", "state", "queued"),
           *after = json_pack("{s:s, s:s, s:I}", "on", on, "reproduces", r->request->variant, "of_run",
                              (json_int_t)of_run);
    if (!data || !after) {
        status = mlo_error_nomem(err);
        goto out;
    }
    snprintf(object, sizeof object, "run %lld", (long long)r->run);
    struct mlo_audit_event event = {.action = "run.submit", .object = object, .after = after};
    MLO_TRY(mlo_run_event(conn, r->run, "run", data, err));
    MLO_TRY(mlo_queue_notify(conn, err));
    MLO_TRY(mlo_audit_append(conn, r->request->project, r->request->actor, &event, NULL, err));
out:
    json_decref(data);
    json_decref(after);
    return status;
}

static enum mlo_status reproduce_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    struct reproduce *r = arg;
    const struct mlo_reproduce_request *request = r->request;
    struct mlo_variant_info variant;
    struct mlo_rows chain = {0}, made = {0};
    struct mlo_params p = MLO_PARAMS_INIT, add = MLO_PARAMS_INIT;
    struct mlo_digest last;
    int64_t before = 0;
    enum mlo_status status;
    MLO_TRY(mlo_actor_require(request->actor, request->project, MLO_SUBMITTER, err));
    MLO_TRY(mlo_variant_find(conn, request->version, request->variant, &variant, err));
    if (!variant.has_derivation) {
        status =
            mlo_error_set(err, MLO_EINVAL, "'%s' is the upload itself: nothing was derived", variant.name);
        mlo_error_hint(err, "name a variant that a run made: mlopt variants lists them");
        goto out;
    }
    mlo_param_i64(&p, variant.run_id);
    mlo_param_i64(&p, request->project);
    mlo_param_digest(&p, &variant.artifact);
    mlo_param_text(&p, variant.name);
    MLO_TRY(mlo_db_exec(conn, &MLO_REPRODUCE_SQL[S_CHAIN], &p, &chain, err));
    int count = mlo_rows_count(&chain);
    if (count == 0 || !mlo_rows_digest(&chain, count - 1, C_OUTPUT, &last) ||
        !mlo_digest_eq(&last, &variant.artifact)) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "no run of this project is recorded that made '%s'",
                               variant.name);
        goto out;
    }
    mlo_param_i64(&add, variant.run_id);
    mlo_param_i64(&add, request->priority);
    mlo_param_text(&add, variant.name);
    mlo_param_text(&add, request->actor->name);
    MLO_TRY(mlo_db_exec(conn, &MLO_REPRODUCE_SQL[S_INSERT_RUN], &add, &made, err));
    r->run = mlo_rows_i64(&made, 0, 0);
    for (int i = 0; i < count; i++)
        MLO_TRY(insert_job(conn, r, &chain, i, i == count - 1 ? &variant.derivation : NULL, &before, err));
    MLO_TRY(announce(conn, r, mlo_rows_text(&chain, 0, C_ON), variant.run_id, err));
out:
    mlo_rows_clear(&chain);
    mlo_rows_clear(&made);
    return status;
}

enum mlo_status mlo_run_reproduce(struct mlo_db_conn *conn, const struct mlo_reproduce_request *request,
                                  int64_t *run, struct mlo_error *err)
{
    struct reproduce r = {.request = request};
    enum mlo_status status = mlo_service_tx(conn, reproduce_tx, &r, err);
    if (status == MLO_OK)
        *run = r.run;
    return status;
}
