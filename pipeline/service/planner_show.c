/* A plan as it is shown before it is submitted: what is cached, and how long the rest took before. */
#include <stdlib.h>

#include "pipeline/service/planner_impl.h"

enum { S_HISTORY };

const struct mlo_sql MLO_PLANNER_SHOW_SQL[] = {
    /* of the newest 500 of the step: those on a model of half to twice the size */
    [S_HISTORY] = {"planner_history",
                   "select percentile_cont(0.5) within group (order by h.s)::float8, count(*) from ("
                   "  select extract(epoch from j.finished_at - a.started_at) as s from ("
                   "    select id, run, claims, finished_at from job where step = $1 and state = 'succeeded' "
                   "    order by id desc limit 500) j "
                   "  join attempt a on a.job = j.id and a.number = j.claims join run r on r.id = j.run "
                   "  join blob b on b.digest = r.source "
                   "  where b.size between $2::bigint / 2 and $2::bigint * 2 order by j.id desc limit 31) h",
                   2},
};
const size_t MLO_PLANNER_SHOW_SQL_COUNT = MLO_COUNT(MLO_PLANNER_SHOW_SQL);

static json_t *needs_json(const struct mlo_planned_job *job)
{
    const struct mlo_needs *n = &job->resources;
    json_t *estimated = json_array();
    if (job->no_memory)
        json_array_append_new(estimated, json_string("memory"));
    if (job->no_disk)
        json_array_append_new(estimated, json_string("disk"));
    json_t *out = json_pack("{s:I, s:I, s:i, s:s?, s:o}", "memory_bytes", (json_int_t)n->memory_bytes,
                            "disk_bytes", (json_int_t)n->disk_bytes, "gpus", n->gpus, "gpu",
                            n->gpu[0] ? n->gpu : NULL, "estimated", estimated);
    if (out)
        json_object_set_new(out, "timeout_s", n->timeout_s ? json_integer(n->timeout_s) : json_null());
    return out;
}

static json_t *job_json(const struct mlo_planned_job *job, const char *made_by, int position)
{
    json_t *needs = json_array();
    if (job->needs >= 0)
        json_array_append_new(needs, json_integer(job->needs));
    if (job->made)
        return json_pack("{s:i, s:s, s:s, s:s, s:s, s:{}, s:o, s:b, s:o, s:f, s:i}", "position", position,
                         "name", job->name, "step", made_by, "kind", "derive", "target", job->target,
                         "options", "needs", needs, "cached", 1, "resources", needs_json(job), "estimate_s",
                         0.0, "estimate_of", 0);
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:O, s:o, s:b, s:o}", "position", position, "name", job->name,
                     "step", job->step->name, "kind",
                     job->step->kind == MLO_STEP_DERIVE ? "derive" : "observe", "target", job->target,
                     "options", job->recipe_step->options, "needs", needs, "cached", 0, "resources",
                     needs_json(job));
}

/* Adds "estimate_s", the median of what the step took on models of about this size, and "estimate_of", of how
 * many times; null where it never ran on such. */
static enum mlo_status add_estimate(struct mlo_db_conn *conn, const struct mlo_run_outline *plan,
                                    const struct mlo_planned_job *job, json_t *row, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_text(&p, job->step->name);
    mlo_param_i64(&p, plan->source_bytes);
    enum mlo_status status = mlo_db_exec(conn, &MLO_PLANNER_SHOW_SQL[S_HISTORY], &p, &rows, err);
    if (status == MLO_OK) {
        bool known = mlo_rows_i64(&rows, 0, 1) > 0;
        json_object_set_new(row, "estimate_s", known ? json_real(mlo_rows_f64(&rows, 0, 0)) : json_null());
        json_object_set_new(row, "estimate_of", json_integer(mlo_rows_i64(&rows, 0, 1)));
    }
    mlo_rows_clear(&rows);
    return status;
}

/* The sum over what is not cached; null when one of them never ran. */
static json_t *total_estimate(const json_t *jobs)
{
    const json_t *row;
    size_t i;
    double sum = 0;
    json_array_foreach((json_t *)jobs, i, row)
    {
        const json_t *each = json_object_get(row, "estimate_s");
        if (mlo_json_bool(row, "cached", false))
            continue;
        if (!json_is_number(each))
            return json_null();
        sum += json_number_value(each);
    }
    return json_real(sum);
}

static enum mlo_status show_plan(struct mlo_db_conn *conn, const struct mlo_run_outline *plan, json_t *jobs,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_digest input = plan->source_input, key;
    bool known = true; /* the input of this job */
    char *canonical = NULL, text[MLO_DIGEST_TEXT_SIZE];
    for (int i = 0; i < plan->job_count; i++) {
        const struct mlo_planned_job *job = &plan->jobs[i];
        json_t *row = job_json(job, plan->made_by, i);
        if (!row || json_array_append_new(jobs, row) < 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
        if (job->made)
            continue;
        MLO_TRY(add_estimate(conn, plan, job, row, err));
        if (!known || job->step->kind != MLO_STEP_DERIVE)
            continue;
        free(canonical);
        canonical = NULL;
        MLO_TRY(mlo_job_derivation(job->step->name, job->recipe_step->options, &input, plan->datasets, NULL,
                                   &canonical, &key, err));
        json_object_set_new(row, "derivation", json_string(mlo_digest_text(&key, text)));
        enum mlo_status found = mlo_derivation_find(conn, &key, &input, NULL, NULL, err);
        if (found != MLO_OK && found != MLO_ENOTFOUND) {
            status = found;
            goto out;
        }
        known = found == MLO_OK;
        json_object_set_new(row, "cached", json_boolean(known));
    }
out:
    free(canonical);
    return status;
}

enum mlo_status mlo_run_plan(struct mlo_db_conn *conn, const struct mlo_run_request *request, json_t **out,
                             struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_run_outline plan = {.project = 0};
    json_t *jobs = json_array();
    MLO_TRY(mlo_run_outline_make(conn, request, &plan, err));
    MLO_TRY(show_plan(conn, &plan, jobs, err));
    *out = json_pack("{s:s?, s:o, s:s, s:s, s:O, s:O}", "variant", plan.variant, "estimate_s",
                     total_estimate(jobs), "on", plan.object, "target", plan.target, "datasets",
                     plan.datasets, "jobs", jobs);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(plan.datasets);
    json_decref(jobs);
    return status;
}
