/* An outline becomes a run and its jobs, in one transaction. */
#include <stdio.h>
#include <stdlib.h>

#include "pipeline/service/planner_impl.h"

enum { S_INSERT_RUN, S_INSERT_JOB, S_INSERT_DEP, S_INSERT_MADE };

const struct mlo_sql MLO_SUBMIT_SQL[] = {
    [S_INSERT_RUN] =
        {"submit_insert_run",
         "insert into run (project, version, recipe_name, recipe, target, source, datasets, priority, "
         "  variant, created_by) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) returning id",
         10},
    [S_INSERT_JOB] =
        {"submit_insert_job",
         "insert into job (run, project, position, name, step, kind, target, exclusive, state, priority, "
         "  spec, input, ready_at, derivation, memory_bytes, disk_bytes, gpus, gpu, timeout_s, estimated) "
         "values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, "
         "  case when $9 = 'ready' then clock_timestamp() end, $13, $14, $15, $16::integer, $17, "
         "  nullif($18::integer, 0), $19::text[]) returning id",
         19},
    [S_INSERT_DEP] = {"submit_insert_dep", "insert into job_dep (job, needs) values ($1, $2)", 2},
    /* what others look at: it was done before the run began */
    [S_INSERT_MADE] =
        {"submit_insert_made",
         "insert into job (run, project, position, name, step, kind, target, state, priority, spec, "
         "derivation, "
         "  output, result, progress, finished_at) "
         "values ($1, $2, $3, $4, $5, 'derive', 'any', 'reused', $6, '{\"options\":{}}', $7, $8, "
         "  '{\"report\":{}}', 1, now()) returning id",
         8},
};
const size_t MLO_SUBMIT_SQL_COUNT = MLO_COUNT(MLO_SUBMIT_SQL);

struct submit {
    const struct mlo_run_request *request;
    struct mlo_buf recipe; /* canonical */
    int64_t run;
};

static enum mlo_status insert_run(struct mlo_db_conn *conn, struct submit *submit,
                                  const struct mlo_run_outline *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_run_request *r = submit->request;
    struct mlo_rows rows = {0};
    struct mlo_buf datasets = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_json_canonical(plan->datasets, &datasets);
    mlo_param_i64(&p, r->project);
    mlo_param_i64(&p, r->version);
    mlo_param_text(&p, r->recipe->name);
    mlo_param_text(&p, mlo_buf_str(&submit->recipe));
    mlo_param_text(&p, plan->target);
    mlo_param_digest(&p, &plan->source);
    mlo_param_text(&p, mlo_buf_str(&datasets));
    mlo_param_i64(&p, r->priority);
    mlo_param_text(&p, plan->variant);
    mlo_param_text(&p, r->actor->name);
    MLO_TRY(mlo_db_exec(conn, &MLO_SUBMIT_SQL[S_INSERT_RUN], &p, &rows, err));
    submit->run = mlo_rows_i64(&rows, 0, 0);
out:
    mlo_buf_clear(&datasets);
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status insert_made(struct mlo_db_conn *conn, const struct submit *submit,
                                   const struct mlo_run_outline *plan, int position, int64_t *id,
                                   struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, submit->run);
    mlo_param_i64(&p, plan->project);
    mlo_param_i64(&p, position);
    mlo_param_text(&p, plan->jobs[position].name);
    mlo_param_text(&p, plan->made_by);
    mlo_param_i64(&p, submit->request->priority);
    mlo_param_digest(&p, &plan->made_as);
    mlo_param_digest(&p, &plan->on->artifact);
    enum mlo_status status = mlo_db_exec(conn, &MLO_SUBMIT_SQL[S_INSERT_MADE], &p, &rows, err);
    if (status == MLO_OK)
        *id = mlo_rows_i64(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return status;
}

/* What a job works on, where that is known before the run begins; NULL: what the one before it makes. */
static const struct mlo_digest *known_input(const struct mlo_run_outline *plan,
                                            const struct mlo_planned_job *job)
{
    if (job->needs < 0)
        return job->step->kind == MLO_STEP_DERIVE ? &plan->source_input : &plan->source;
    return plan->jobs[job->needs].made ? &plan->on->artifact : NULL;
}

static enum mlo_status insert_job(struct mlo_db_conn *conn, const struct submit *submit,
                                  const struct mlo_run_outline *plan, int position, int64_t *ids,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_planned_job *job = &plan->jobs[position];
    if (job->made)
        return insert_made(conn, submit, plan, position, &ids[position], err);
    bool derive = job->step->kind == MLO_STEP_DERIVE;
    const struct mlo_digest *input = known_input(plan, job);
    struct mlo_rows rows = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_digest key;
    bool has_key = false;
    char *canonical = NULL;
    json_t *spec = json_pack("{s:O}", "options", job->recipe_step->options);
    if (spec)
        mlo_json_canonical(spec, &text);
    if (!spec || !mlo_buf_ok(&text)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (derive && job->needs < 0) { /* the others' follow from what those before them make */
        MLO_TRY(mlo_job_derivation(job->step->name, job->recipe_step->options, &plan->source_input,
                                   plan->datasets, NULL, &canonical, &key, err));
        has_key = true;
    }
    mlo_param_i64(&p, submit->run);
    mlo_param_i64(&p, plan->project);
    mlo_param_i64(&p, position);
    mlo_param_text(&p, job->name);
    mlo_param_text(&p, job->step->name);
    mlo_param_text(&p, derive ? "derive" : "observe");
    mlo_param_text(&p, job->target);
    mlo_param_bool(&p, job->step->exclusive);
    mlo_param_text(&p, input ? "ready" : "waiting");
    mlo_param_i64(&p, submit->request->priority);
    mlo_param_text(&p, mlo_buf_str(&text));
    mlo_param_digest(&p, input);
    mlo_param_digest(&p, has_key ? &key : NULL);
    mlo_param_i64(&p, (int64_t)job->resources.memory_bytes);
    mlo_param_i64(&p, (int64_t)job->resources.disk_bytes);
    mlo_param_i64(&p, job->resources.gpus);
    mlo_param_text(&p, job->resources.gpu[0] ? job->resources.gpu : NULL);
    mlo_param_i64(&p, job->resources.timeout_s);
    mlo_param_text(&p, job->no_memory && job->no_disk ? "{memory,disk}"
                       : job->no_memory               ? "{memory}"
                       : job->no_disk                 ? "{disk}"
                                                      : "{}");
    MLO_TRY(mlo_db_exec(conn, &MLO_SUBMIT_SQL[S_INSERT_JOB], &p, &rows, err));
    ids[position] = mlo_rows_i64(&rows, 0, 0);
    if (job->needs >= 0) {
        p = (struct mlo_params)MLO_PARAMS_INIT;
        mlo_param_i64(&p, ids[position]);
        mlo_param_i64(&p, ids[job->needs]);
        MLO_TRY(mlo_db_exec(conn, &MLO_SUBMIT_SQL[S_INSERT_DEP], &p, NULL, err));
    }
out:
    free(canonical);
    json_decref(spec);
    mlo_buf_clear(&text);
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status announce(struct mlo_db_conn *conn, const struct submit *submit,
                                const struct mlo_run_outline *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char object[64];
    json_t *data = json_pack("{s:s}", "state", "queued");
    json_t *after =
        json_pack("{s:s, s:s, s:s, s:O}", "on", plan->object, "recipe", submit->request->recipe->name,
                  "target", plan->target, "datasets", plan->datasets);
    if (!data || !after) {
        status = mlo_error_nomem(err);
        goto out;
    }
    snprintf(object, sizeof object, "run %lld", (long long)submit->run);
    struct mlo_audit_event event = {.action = "run.submit", .object = object, .after = after};
    MLO_TRY(mlo_run_event(conn, submit->run, "run", data, err));
    MLO_TRY(mlo_queue_notify(conn, err));
    MLO_TRY(mlo_audit_append(conn, plan->project, submit->request->actor, &event, NULL, err));
out:
    json_decref(data);
    json_decref(after);
    return status;
}

static enum mlo_status submit_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct submit *submit = arg;
    struct mlo_run_outline plan = {.project = 0};
    int64_t ids[MLO_PLANNED_JOBS_MAX + 1];
    MLO_TRY(mlo_actor_require(submit->request->actor, submit->request->project, MLO_SUBMITTER, err));
    MLO_TRY(mlo_run_outline_make(conn, submit->request, &plan, err));
    MLO_TRY(insert_run(conn, submit, &plan, err));
    for (int i = 0; i < plan.job_count; i++)
        MLO_TRY(insert_job(conn, submit, &plan, i, ids, err));
    MLO_TRY(announce(conn, submit, &plan, err));
out:
    json_decref(plan.datasets);
    return status;
}

enum mlo_status mlo_run_submit(struct mlo_db_conn *conn, const struct mlo_run_request *request, int64_t *run,
                               struct mlo_error *err)
{
    struct submit submit = {.request = request, .recipe = MLO_BUF_INIT};
    mlo_json_canonical(request->recipe->canonical, &submit.recipe);
    enum mlo_status status =
        mlo_buf_ok(&submit.recipe) ? mlo_service_tx(conn, submit_tx, &submit, err) : mlo_error_nomem(err);
    if (status == MLO_OK)
        *run = submit.run;
    mlo_buf_clear(&submit.recipe);
    return status;
}
