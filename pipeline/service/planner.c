/* The planner: a recipe and a version become an outline of a run. Derive steps form a chain, in the recipe's
 * order; the observe steps follow on what the chain made, one after another, so that they do not disturb each
 * other. */
#include <stdio.h>
#include <string.h>

#include "pipeline/service/planner_impl.h"
#include "pipeline/service/teacher_impl.h"

enum { S_VERSION, S_MADE };

const struct mlo_sql MLO_PLANNER_SQL[] = {
    [S_VERSION] = {"planner_version",
                   "select p.id, p.name, m.name, v.number, v.manifest_digest, b.digest, "
                   "  exists (select from version_blob d where d.version_id = v.id "
                   "          and d.role in ('data', 'external-data')), (select s.size from blob s where "
                   "s.digest = b.digest) "
                   "from version v join model m on m.id = v.model_id join project p on p.id = m.project_id "
                   "join version_blob b on b.version_id = v.id and b.role = 'model' where v.id = $1",
                   1},
    [S_MADE] = {"planner_made",
                "select d.step, d.key from variant v join derivation d on d.key = v.derivation "
                "where v.version_id = $1 and v.name = $2 and v.artifact = $3 order by v.id desc limit 1",
                3},
};
const size_t MLO_PLANNER_SQL_COUNT = MLO_COUNT(MLO_PLANNER_SQL);

static enum mlo_status resolve_version(struct mlo_db_conn *conn, const struct mlo_run_request *request,
                                       struct mlo_run_outline *plan, struct mlo_error *err)
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

static enum mlo_status resolve_dataset(struct mlo_db_conn *conn, struct mlo_run_outline *plan,
                                       const char *role, const char *text, struct mlo_error *err)
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
            mlo_error_set(err, MLO_ENOTFOUND, "there is no dataset '%s'", full);
        mlo_error_hint(err,
                       "push it with `mlopt data push %s FILE…`, or name another one in the recipe, or by "
                       "--set data.%s=NAME",
                       full, role);
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
static enum mlo_status resolve_postprocess(struct mlo_db_conn *conn, struct mlo_run_outline *plan,
                                           const char *text, struct mlo_error *err)
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
                                       struct mlo_run_outline *plan, struct mlo_error *err)
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
static enum mlo_status check_roles(const struct mlo_recipe *recipe, const struct mlo_run_outline *plan,
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
const char *mlo_needed_target(const struct mlo_step *step, const json_t *options, const char *target)
{
    const char *own = step->offer ? step->offer(options, target) : NULL;
    if (own)
        return own;
    if (step->kind == MLO_STEP_DERIVE || strcmp(target, "any") == 0)
        return "any";
    return mlo_str_starts(target, "cpu") ? "cpu" : target;
}

/* What the request is on, as a job that is done: the others work on what it made. The upload needs none. */
static enum mlo_status plan_subject(struct mlo_db_conn *conn, struct mlo_run_outline *plan,
                                    struct mlo_error *err)
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
    struct mlo_planned_job *job = &plan->jobs[plan->job_count++];
    *job = (struct mlo_planned_job){.made = true, .target = "any", .needs = -1};
    snprintf(job->name, sizeof job->name, "%.90s", on->variant);
    plan->variant = on->variant;
out:
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status plan_jobs(const struct mlo_recipe *recipe, struct mlo_run_outline *plan,
                                 struct mlo_error *err)
{
    if (recipe->step_count > MLO_PLANNED_JOBS_MAX)
        return mlo_error_set(err, MLO_ETOOBIG, "the recipe has %zu steps; at most %d are planned",
                             recipe->step_count, MLO_PLANNED_JOBS_MAX);
    const enum mlo_step_kind order[] = {MLO_STEP_DERIVE, MLO_STEP_OBSERVE};
    for (size_t k = 0; k < MLO_COUNT(order); k++) {
        for (size_t i = 0; i < recipe->step_count; i++) {
            const struct mlo_step *step = mlo_step_find(recipe->steps[i].name);
            if (!step)
                return mlo_error_set(err, MLO_EUNSUPPORTED, "this program has no step '%s'",
                                     recipe->steps[i].name);
            if (step->kind != order[k])
                continue;
            struct mlo_planned_job *job = &plan->jobs[plan->job_count];
            job->recipe_step = &recipe->steps[i];
            job->step = step;
            job->target = mlo_needed_target(step, recipe->steps[i].options, plan->target);
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
            if ((step->kind == MLO_STEP_DERIVE || step->reads_run) && plan->on)
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

enum mlo_status mlo_run_outline_make(struct mlo_db_conn *conn, const struct mlo_run_request *request,
                                     struct mlo_run_outline *plan, struct mlo_error *err)
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
