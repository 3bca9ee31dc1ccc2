/* The planner: a recipe and a version become a run with jobs. Derive steps form a chain, in the recipe's
 * order; the observe steps follow on what the chain made, one after another, so that they do not disturb each
 * other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/service_impl.h"
#include "pipeline/service/teacher_impl.h"

enum {
    S_VERSION,
    S_EXISTING,
    S_INSERT_RUN,
    S_INSERT_JOB,
    S_INSERT_DEP,
    S_MADE,
    S_INSERT_MADE,
    S_CANCEL_RUN,
    S_CANCEL_JOBS,
    S_HISTORY
};

const struct mlo_sql MLO_PLANNER_SQL[] = {
    [S_VERSION] = {"planner_version",
                   "select p.id, p.name, m.name, v.number, v.manifest_digest, b.digest, "
                   "  exists (select from version_blob d where d.version_id = v.id "
                   "          and d.role in ('data', 'external-data')), (select s.size from blob s where "
                   "s.digest = b.digest) "
                   "from version v join model m on m.id = v.model_id join project p on p.id = m.project_id "
                   "join version_blob b on b.version_id = v.id and b.role = 'model' where v.id = $1",
                   1},
    [S_EXISTING] = {"planner_existing",
                    "select id, version, recipe from run where project = $1 and idempotency_key = $2", 2},
    [S_INSERT_RUN] =
        {"planner_insert_run",
         "insert into run (project, version, recipe_name, recipe, target, source, datasets, priority, "
         "  variant, idempotency_key, created_by) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) "
         "on conflict (project, idempotency_key) where idempotency_key is not null do nothing "
         "returning id",
         11},
    [S_INSERT_JOB] =
        {"planner_insert_job",
         "insert into job (run, project, position, name, step, kind, target, exclusive, state, priority, "
         "  spec, input, ready_at, derivation, memory_bytes, disk_bytes, gpus, gpu, timeout_s, estimated) "
         "values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, "
         "  case when $9 = 'ready' then clock_timestamp() end, $13, $14, $15, $16::integer, $17, "
         "  nullif($18::integer, 0), $19::text[]) returning id",
         19},
    [S_INSERT_DEP] = {"planner_insert_dep", "insert into job_dep (job, needs) values ($1, $2)", 2},
    [S_MADE] = {"planner_made",
                "select d.step, d.key from variant v join derivation d on d.key = v.derivation "
                "where v.version_id = $1 and v.name = $2 and v.artifact = $3 order by v.id desc limit 1",
                3},
    /* what others look at: it was done before the run began */
    [S_INSERT_MADE] =
        {"planner_insert_made",
         "insert into job (run, project, position, name, step, kind, target, state, priority, spec, "
         "derivation, "
         "  output, result, progress, finished_at) "
         "values ($1, $2, $3, $4, $5, 'derive', 'any', 'reused', $6, '{\"options\":{}}', $7, $8, "
         "  '{\"report\":{}}', 1, now()) returning id",
         8},
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
    [S_CANCEL_RUN] = {"planner_cancel_run", "select state, project from run where id = $1", 1},
    [S_CANCEL_JOBS] = {"planner_cancel_jobs", "select id from job where run = $1 order by id for update", 1},
};
const size_t MLO_PLANNER_SQL_COUNT = MLO_COUNT(MLO_PLANNER_SQL);

enum { MAX_JOBS = 64 };

struct planned_job {
    bool made; /* it is what the request is on: its step and recipe_step are NULL */
    const struct mlo_recipe_step *recipe_step;
    const struct mlo_step *step;
    char name[96];
    const char *target;
    int needs; /* position of the job before; -1: none */
    struct mlo_needs resources;
    bool no_memory, no_disk; /* nobody said how much: estimated */
};

struct plan {
    int64_t project, version;
    char project_name[104], object[256]; /* "fashion/cnn@2" */
    int64_t source_bytes;
    struct mlo_digest source;       /* the model file */
    struct mlo_digest source_input; /* what stands for the upload in a derivation */
    json_t *datasets;
    struct planned_job jobs[MAX_JOBS + 1];
    int job_count;
    const char *variant; /* NULL: nothing is derived */
    const char *target;  /* the recipe's, or that of what it is on */
    const struct mlo_run_subject *on;
    char made_by[64];          /* the step that made it */
    struct mlo_digest made_as; /* and its derivation */
};

/* --- planning ------------------------------------------------------------------------------------------ */

static enum mlo_status resolve_version(struct mlo_db_conn *conn, const struct mlo_run_request *request,
                                       struct plan *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, request->version);
    MLO_TRY(mlo_db_exec(conn, &MLO_PLANNER_SQL[S_VERSION], &p, &rows, err));
    if (mlo_rows_count(&rows) != 1 || mlo_rows_i64(&rows, 0, 0) != request->project) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no such version in this project");
        goto out;
    }
    plan->project = request->project;
    plan->version = request->version;
    snprintf(plan->project_name, sizeof plan->project_name, "%s", mlo_rows_text(&rows, 0, 1));
    snprintf(plan->object, sizeof plan->object, "%s/%s@%s", mlo_rows_text(&rows, 0, 1),
             mlo_rows_text(&rows, 0, 2), mlo_rows_text(&rows, 0, 3));
    plan->source_bytes = mlo_rows_i64(&rows, 0, 7);
    mlo_rows_digest(&rows, 0, 5, &plan->source);
    /* weights in files of their own are part of what a derivation reads: then the manifest stands for all */
    mlo_rows_digest(&rows, 0, mlo_rows_bool(&rows, 0, 6) ? 4 : 5, &plan->source_input);
out:
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status resolve_dataset(struct mlo_db_conn *conn, struct plan *plan, const char *role,
                                       const char *text, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_ref ref = {0};
    struct mlo_dataset_info info;
    char full[256], name[256], digest[MLO_DIGEST_TEXT_SIZE];
    if (!text)
        return MLO_OK;
    snprintf(full, sizeof full, "%s%s%s", strchr(text, '/') ? "" : plan->project_name,
             strchr(text, '/') ? "" : "/", text);
    MLO_TRY(mlo_ref_parse(full, &ref, err));
    if (strcmp(ref.project, plan->project_name) != 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "the project '%s' may read no dataset '%s'",
                               plan->project_name, text);
    else
        status = mlo_dataset_find(conn, plan->project, ref.name, ref.version, &info, err);
    if (status == MLO_ENOTFOUND && err) {
        if (strcmp(ref.project, plan->project_name) == 0)
            mlo_error_set(err, MLO_ENOTFOUND, "there is no dataset '%s'", text);
        mlo_error_hint(err, "push it with `mlopt data push %s FILE…`, or name another one in the recipe",
                       text);
    }
    MLO_TRY(status);
    snprintf(name, sizeof name, "%s/%s", ref.project, ref.name);
    json_t *entry =
        json_pack("{s:I, s:s, s:I, s:s}", "id", (json_int_t)info.version_id, "name", name, "version",
                  (json_int_t)info.number, "digest", mlo_digest_text(&info.manifest, digest));
    if (!entry || json_object_set_new(plan->datasets, role, entry) < 0)
        status = mlo_error_nomem(err);
out:
    if (status != MLO_OK)
        mlo_error_where(err, "recipe, data.%s", role);
    return status;
}

/* The recipe's postprocessing model: a model of the project, a version of it. */
static enum mlo_status resolve_postprocess(struct mlo_db_conn *conn, struct plan *plan, const char *text,
                                           struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_ref ref = {0};
    struct mlo_version_info version;
    struct mlo_digest digest;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t model;
    char full[256], name[256], of[MLO_DIGEST_TEXT_SIZE];
    if (!text)
        return MLO_OK;
    snprintf(full, sizeof full, "%s%s%s", strchr(text, '/') ? "" : plan->project_name,
             strchr(text, '/') ? "" : "/", text);
    MLO_TRY(mlo_ref_parse(full, &ref, err));
    if (ref.stage[0] || ref.variant[0]) {
        status = mlo_error_set(err, MLO_EINVAL, "'%s' is no version of a model", text);
        mlo_error_hint(err, "write PROJECT/MODEL or PROJECT/MODEL@VERSION: what was uploaded is what runs");
        goto out;
    }
    if (strcmp(ref.project, plan->project_name) != 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "the project '%s' may read no model '%s'",
                               plan->project_name, text);
    else
        status = mlo_model_find(conn, plan->project, ref.name, &model, err);
    if (status == MLO_OK)
        status = mlo_version_find(conn, model, ref.version, &version, err);
    if (status == MLO_ENOTFOUND)
        mlo_error_hint(err, "push it with `mlopt push %s POST.onnx`, or name another one in the recipe",
                       text);
    MLO_TRY(status);
    mlo_param_i64(&p, version.id);
    MLO_TRY(mlo_db_exec(conn, &MLO_PLANNER_SQL[S_VERSION], &p, &rows, err));
    if (mlo_rows_count(&rows) != 1 ||
        !mlo_rows_digest(&rows, 0, mlo_rows_bool(&rows, 0, 6) ? 4 : 5, &digest)) {
        status = mlo_error_set(err, MLO_EINTERNAL, "version %lld has no model file", (long long)version.id);
        goto out;
    }
    snprintf(name, sizeof name, "%s/%s", ref.project, ref.name);
    json_t *entry = json_pack("{s:I, s:s, s:I, s:s}", "id", (json_int_t)version.id, "name", name, "version",
                              (json_int_t)version.number, "digest", mlo_digest_text(&digest, of));
    if (!entry || json_object_set_new(plan->datasets, MLO_POSTPROCESS, entry) < 0)
        status = mlo_error_nomem(err);
out:
    if (status != MLO_OK)
        mlo_error_where(err, "recipe, postprocess");
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status resolve_teacher(struct mlo_db_conn *conn, const struct mlo_run_request *request,
                                       struct plan *plan, struct mlo_error *err)
{
    const char *text = mlo_teacher_of(request->recipe);
    json_t *entry;
    if (!text)
        return MLO_OK;
    enum mlo_status status = mlo_teacher_resolve(conn, request->actor, plan->project_name, text, &entry, err);
    if (status == MLO_OK && json_object_set_new(plan->datasets, MLO_TEACHER, entry) != 0)
        status = mlo_error_nomem(err);
    return status;
}

/* Two names may mean the same data. */
static enum mlo_status check_roles(const struct mlo_recipe *recipe, const struct plan *plan,
                                   struct mlo_error *err)
{
    const json_t *select = json_object_get(plan->datasets, "select"),
                 *evaluate = json_object_get(plan->datasets, "evaluate");
    enum mlo_status status = mlo_recipe_check_data(recipe, err);
    if (status != MLO_OK)
        return status;
    for (size_t i = 0; i < recipe->step_count; i++) {
        const struct mlo_recipe_step *row = &recipe->steps[i];
        if (!select || !evaluate || !mlo_step_reads_select(mlo_step_find(row->name), row->options) ||
            strcmp(mlo_json_str(select, "digest", ""), mlo_json_str(evaluate, "digest", "")) != 0)
            continue;
        mlo_error_set(err, MLO_EINVAL,
                      "the step '%s' selects on the data that evaluates: %s and %s are the same", row->name,
                      recipe->select, recipe->evaluate);
        mlo_error_where(err, "recipe, data.select");
        mlo_error_hint(err,
                       "give the role select samples of its own: what is chosen on data cannot be judged "
                       "on it");
        return MLO_EINVAL;
    }
    return MLO_OK;
}

/* What a worker must offer. A derived artifact is the same wherever it is made; a measurement is made on the
 * kind of device that the target names, and says the machine's class; a step may know better. */
static const char *needed_target(const struct mlo_step *step, const json_t *options, const char *target)
{
    const char *own = step->offer ? step->offer(options, target) : NULL;
    if (own)
        return own;
    if (step->kind == MLO_STEP_DERIVE || strcmp(target, "any") == 0)
        return "any";
    return mlo_str_starts(target, "cpu") ? "cpu" : target;
}

/* What the request is on, as a job that is done: the others work on what it made. The upload needs none. */
static enum mlo_status plan_subject(struct mlo_db_conn *conn, struct plan *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_run_subject *on = plan->on;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    if (!on || strcmp(on->variant, MLO_VARIANT_SOURCE) == 0)
        return MLO_OK;
    mlo_param_i64(&p, plan->version);
    mlo_param_text(&p, on->variant);
    mlo_param_digest(&p, &on->artifact);
    MLO_TRY(mlo_db_exec(conn, &MLO_PLANNER_SQL[S_MADE], &p, &rows, err));
    if (mlo_rows_count(&rows) != 1 || !mlo_rows_digest(&rows, 0, 1, &plan->made_as)) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "%s has no variant '%s' of those bytes", plan->object,
                               on->variant);
        goto out;
    }
    snprintf(plan->made_by, sizeof plan->made_by, "%s", mlo_rows_text(&rows, 0, 0));
    struct planned_job *job = &plan->jobs[plan->job_count++];
    *job = (struct planned_job){.made = true, .target = "any", .needs = -1};
    snprintf(job->name, sizeof job->name, "%.90s", on->variant);
    plan->variant = on->variant;
out:
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status plan_jobs(const struct mlo_recipe *recipe, struct plan *plan, struct mlo_error *err)
{
    if (recipe->step_count > MAX_JOBS)
        return mlo_error_set(err, MLO_ETOOBIG, "the recipe has %zu steps; at most %d are planned",
                             recipe->step_count, MAX_JOBS);
    const enum mlo_step_kind order[] = {MLO_STEP_DERIVE, MLO_STEP_OBSERVE};
    for (size_t k = 0; k < MLO_COUNT(order); k++) {
        for (size_t i = 0; i < recipe->step_count; i++) {
            const struct mlo_step *step = mlo_step_find(recipe->steps[i].name);
            if (!step)
                return mlo_error_set(err, MLO_EUNSUPPORTED, "this program has no step '%s'",
                                     recipe->steps[i].name);
            if (step->kind != order[k])
                continue;
            struct planned_job *job = &plan->jobs[plan->job_count];
            job->recipe_step = &recipe->steps[i];
            job->step = step;
            job->target = needed_target(step, recipe->steps[i].options, plan->target);
            job->needs = plan->job_count - 1;
            job->resources = mlo_needs_over(&recipe->needs, &recipe->steps[i].needs);
            job->no_memory = !job->resources.memory_bytes;
            job->no_disk = !job->resources.disk_bytes;
            int64_t teacher = step->reads_teacher
                                  ? mlo_json_i64(json_object_get(plan->datasets, MLO_TEACHER), "size", 0)
                                  : 0;
            mlo_needs_estimate(step->name, (uint64_t)MLO_MAX(plan->source_bytes + teacher, 0),
                               &job->resources);
            if (mlo_str_starts(job->target, "cuda") && job->resources.gpus == 0)
                job->resources.gpus = 1;
            if (step->kind == MLO_STEP_DERIVE && plan->on)
                return mlo_error_set(err, MLO_EINVAL,
                                     "the step '%s' derives, and what is there is only looked at",
                                     step->name);
            if (step->kind == MLO_STEP_DERIVE)
                plan->variant = recipe->name;
            snprintf(job->name, sizeof job->name, "%s%s%.60s", step->name,
                     step->kind == MLO_STEP_OBSERVE ? " " : "",
                     step->kind == MLO_STEP_DERIVE ? ""
                     : plan->variant               ? plan->variant
                                                   : MLO_VARIANT_SOURCE);
            plan->job_count++;
        }
    }
    return MLO_OK;
}

static enum mlo_status make_plan(struct mlo_db_conn *conn, const struct mlo_run_request *request,
                                 struct plan *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_recipe *recipe = request->recipe;
    MLO_TRY(mlo_actor_require(request->actor, request->project, MLO_SUBMITTER, err));
    plan->datasets = json_object();
    if (!plan->datasets) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(resolve_version(conn, request, plan, err));
    MLO_TRY(resolve_dataset(conn, plan, "calibrate", recipe->calibrate, err));
    MLO_TRY(resolve_dataset(conn, plan, "select", recipe->select, err));
    MLO_TRY(resolve_dataset(conn, plan, "evaluate", recipe->evaluate, err));
    MLO_TRY(resolve_postprocess(conn, plan, recipe->postprocess, err));
    MLO_TRY(resolve_teacher(conn, request, plan, err));
    MLO_TRY(check_roles(recipe, plan, err));
    plan->on = request->on;
    plan->target = request->on ? request->on->target : recipe->target;
    MLO_TRY(plan_subject(conn, plan, err));
    MLO_TRY(plan_jobs(recipe, plan, err));
    if (recipe->step_count == 0)
        status = mlo_error_set(err, MLO_EINVAL, "the recipe '%s' has no steps", recipe->name);
out:
    return status;
}

/* --- showing ------------------------------------------------------------------------------------------- */

static json_t *needs_json(const struct planned_job *job)
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

static json_t *job_json(const struct planned_job *job, const char *made_by, int position)
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
static enum mlo_status add_estimate(struct mlo_db_conn *conn, const struct plan *plan,
                                    const struct planned_job *job, json_t *row, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_text(&p, job->step->name);
    mlo_param_i64(&p, plan->source_bytes);
    enum mlo_status status = mlo_db_exec(conn, &MLO_PLANNER_SQL[S_HISTORY], &p, &rows, err);
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

static enum mlo_status show_plan(struct mlo_db_conn *conn, const struct plan *plan, json_t *jobs,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_digest input = plan->source_input, key;
    bool known = true; /* the input of this job */
    char *canonical = NULL, text[MLO_DIGEST_TEXT_SIZE];
    for (int i = 0; i < plan->job_count; i++) {
        const struct planned_job *job = &plan->jobs[i];
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
    struct plan plan = {.project = 0};
    json_t *jobs = json_array();
    MLO_TRY(make_plan(conn, request, &plan, err));
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

/* --- submitting ---------------------------------------------------------------------------------------- */

struct submit {
    const struct mlo_run_request *request;
    struct mlo_buf recipe; /* canonical */
    int64_t run;
    bool created;
};

static enum mlo_status find_existing(struct mlo_db_conn *conn, struct submit *submit, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, submit->request->project);
    mlo_param_text(&p, submit->request->idempotency_key);
    MLO_TRY(mlo_db_exec(conn, &MLO_PLANNER_SQL[S_EXISTING], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0)
        goto out;
    submit->run = mlo_rows_i64(&rows, 0, 0);
    if (mlo_rows_i64(&rows, 0, 1) != submit->request->version ||
        !mlo_str_eq(mlo_rows_text(&rows, 0, 2), mlo_buf_str(&submit->recipe))) {
        status = mlo_error_set(err, MLO_ECONFLICT,
                               "this idempotency key was used for run %lld, which is another one",
                               (long long)submit->run);
        mlo_error_hint(err, "use a new key for a new run");
    }
out:
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status insert_run(struct mlo_db_conn *conn, struct submit *submit, const struct plan *plan,
                                  struct mlo_error *err)
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
    mlo_param_text(&p, r->idempotency_key);
    mlo_param_text(&p, r->actor->name);
    MLO_TRY(mlo_db_exec(conn, &MLO_PLANNER_SQL[S_INSERT_RUN], &p, &rows, err));
    submit->created = mlo_rows_count(&rows) == 1;
    if (submit->created)
        submit->run = mlo_rows_i64(&rows, 0, 0);
out:
    mlo_buf_clear(&datasets);
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status insert_made(struct mlo_db_conn *conn, const struct submit *submit,
                                   const struct plan *plan, int position, int64_t *id, struct mlo_error *err)
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
    enum mlo_status status = mlo_db_exec(conn, &MLO_PLANNER_SQL[S_INSERT_MADE], &p, &rows, err);
    if (status == MLO_OK)
        *id = mlo_rows_i64(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return status;
}

/* What a job works on, where that is known before the run begins; NULL: what the one before it makes. */
static const struct mlo_digest *known_input(const struct plan *plan, const struct planned_job *job)
{
    if (job->needs < 0)
        return job->step->kind == MLO_STEP_DERIVE ? &plan->source_input : &plan->source;
    return plan->jobs[job->needs].made ? &plan->on->artifact : NULL;
}

static enum mlo_status insert_job(struct mlo_db_conn *conn, const struct submit *submit,
                                  const struct plan *plan, int position, int64_t *ids, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct planned_job *job = &plan->jobs[position];
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
    MLO_TRY(mlo_db_exec(conn, &MLO_PLANNER_SQL[S_INSERT_JOB], &p, &rows, err));
    ids[position] = mlo_rows_i64(&rows, 0, 0);
    if (job->needs >= 0) {
        p = (struct mlo_params)MLO_PARAMS_INIT;
        mlo_param_i64(&p, ids[position]);
        mlo_param_i64(&p, ids[job->needs]);
        MLO_TRY(mlo_db_exec(conn, &MLO_PLANNER_SQL[S_INSERT_DEP], &p, NULL, err));
    }
out:
    free(canonical);
    json_decref(spec);
    mlo_buf_clear(&text);
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status announce(struct mlo_db_conn *conn, const struct submit *submit,
                                const struct plan *plan, struct mlo_error *err)
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
    struct plan plan = {.project = 0};
    int64_t ids[MAX_JOBS + 1];
    submit->run = 0;
    submit->created = false;
    MLO_TRY(mlo_actor_require(submit->request->actor, submit->request->project, MLO_SUBMITTER, err));
    if (submit->request->idempotency_key)
        MLO_TRY(find_existing(conn, submit, err));
    if (submit->run)
        goto out;
    MLO_TRY(make_plan(conn, submit->request, &plan, err));
    MLO_TRY(insert_run(conn, submit, &plan, err));
    if (!submit->created) { /* somebody with the same key was faster */
        MLO_TRY(find_existing(conn, submit, err));
        goto out;
    }
    for (int i = 0; i < plan.job_count; i++)
        MLO_TRY(insert_job(conn, submit, &plan, i, ids, err));
    MLO_TRY(announce(conn, submit, &plan, err));
out:
    json_decref(plan.datasets);
    return status;
}

enum mlo_status mlo_run_submit(struct mlo_db_conn *conn, const struct mlo_run_request *request, int64_t *run,
                               bool *created, struct mlo_error *err)
{
    struct submit submit = {.request = request, .recipe = MLO_BUF_INIT};
    mlo_json_canonical(request->recipe->canonical, &submit.recipe);
    enum mlo_status status =
        mlo_buf_ok(&submit.recipe) ? mlo_service_tx(conn, submit_tx, &submit, err) : mlo_error_nomem(err);
    if (status == MLO_OK) {
        *run = submit.run;
        if (created)
            *created = submit.created;
    }
    mlo_buf_clear(&submit.recipe);
    return status;
}

/* --- cancelling ---------------------------------------------------------------------------------------- */

struct cancel {
    const struct mlo_actor *actor;
    int64_t run;
    const char *reason;
};

static enum mlo_status cancel_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct cancel *cancel = arg;
    struct mlo_rows rows = {0};
    struct mlo_error why = {0};
    char *error = NULL;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, cancel->run);
    MLO_TRY(mlo_db_exec(conn, &MLO_PLANNER_SQL[S_CANCEL_JOBS], &p, NULL, err));
    MLO_TRY(mlo_db_exec(conn, &MLO_PLANNER_SQL[S_CANCEL_RUN], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no run %lld", (long long)cancel->run);
        goto out;
    }
    MLO_TRY(mlo_actor_require(cancel->actor, mlo_rows_i64(&rows, 0, 1), MLO_SUBMITTER, err));
    const char *state = mlo_rows_text(&rows, 0, 0);
    if (strcmp(state, "queued") != 0 && strcmp(state, "running") != 0) {
        status = mlo_error_set(err, MLO_ECONFLICT, "run %lld has %s already", (long long)cancel->run,
                               strcmp(state, "cancelled") == 0 ? "been cancelled" : state);
        goto out;
    }
    const char *reason = cancel->reason && *cancel->reason ? cancel->reason : NULL;
    mlo_error_set(&why, MLO_ECANCELLED, "cancelled by %s%s%s", cancel->actor->name, reason ? ": " : "",
                  reason ? reason : "");
    if (!(error = mlo_error_json(&why, 0))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_run_end(conn, cancel->run, "cancelled", error, cancel->actor, err));
out:
    free(error);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_run_cancel(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t run,
                               const char *reason, struct mlo_error *err)
{
    struct cancel cancel = {actor, run, reason};
    return mlo_service_tx(conn, cancel_tx, &cancel, err);
}
