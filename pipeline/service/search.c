/* The run of a search. A job of the step `search` is claimed, fenced and completed as every other; its
 * completion plans the jobs that it chose, and the next choice, which waits for them: so each rung is planned
 * once, by whoever completes the job before it, and a crash between two statements undoes all of it. */
#include "pipeline/service/search_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/search.h"
#include "registry/attest.h"

enum { S_RUN, S_PLAN, S_MADE, S_CANDIDATE, S_DROP, S_READY, S_SO_FAR, S_JOBS };

const struct mlo_sql MLO_SEARCH_SQL[] = {
    /* a derive step reads the manifest's files where weights lie in files of their own (planner.c) */
    [S_RUN] = {"search_run",
               "select r.recipe, r.target, r.recipe_name, case when exists (select from version_blob d "
               "    where d.version_id = v.id and d.role in ('data', 'external-data')) "
               "  then v.manifest_digest else r.source end, s.size, "
               "  (select max(j.position) from job j where j.run = r.id), v.id "
               "from run r join version v on v.id = r.version join blob s on s.digest = r.source "
               "where r.id = $1",
               1},
    [S_PLAN] = {"search_plan",
                "select search_plan($1, $2::integer, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, "
                "$14::integer, $15, $16::integer, $17::text[], $18::bigint[])",
                18},
    /* the job of this run that made a point */
    [S_MADE] = {"search_made",
                "select step, spec, input, derivation, result from job where run = $1 and kind = 'derive' "
                "and output = $2 and spec::json ->> 'candidate' = $3 order by position desc limit 1",
                3},
    [S_CANDIDATE] = {"search_candidate",
                     "select j.spec::json ->> 'candidate' from job j where j.id = $1 and exists ("
                     "  select from job w where w.run = j.run and w.step = 'search' and w.state = 'waiting')",
                     1},
    [S_DROP] = {"search_drop", "select search_drop($1)", 1},
    [S_READY] =
        {"search_ready",
         "update job j set state = 'ready', ready_at = clock_timestamp(), "
         "  not_before = clock_timestamp(), input = r.source from run r "
         "where r.id = $1 and j.run = $1 and j.state = 'waiting' and j.step = 'search' and not exists ("
         "  select from job_dep d join job n on n.id = d.needs "
         "  where d.job = j.id and n.state not in ('succeeded', 'reused')) returning j.id",
         1},
    [S_SO_FAR] =
        {"search_so_far",
         "select extract(epoch from clock_timestamp() - r.started_at)::float8, (select "
         "  coalesce(sum(a.cpu_s), 0)::float8 from attempt a join job x on x.id = a.job where x.run = "
         "r.id), s.size, (select coalesce(sum(a.gpu_s), 0)::float8 from attempt a join job x on x.id = a.job "
         "  where x.run = r.id) from job j join run r on r.id = j.run join blob s on s.digest = r.source "
         "where j.id = $1",
         1},
    [S_JOBS] = {"search_jobs",
                "select o.step, o.state, o.spec, case when o.step <> 'search' then o.result end, o.output, "
                "  b.size, o.error from job j join job o on o.run = j.run and o.position < j.position "
                "left join blob b on b.digest = o.output where j.id = $1 order by o.position",
                1},
};
const size_t MLO_SEARCH_SQL_COUNT = MLO_COUNT(MLO_SEARCH_SQL);

enum { POSITIONS_MAX = 4096 };

/* --- what the run did so far --------------------------------------------------------------------------- */

static enum mlo_status parsed(const struct mlo_rows *rows, int row, int column, json_t **out,
                              struct mlo_error *err)
{
    const char *text = mlo_rows_text(rows, row, column);
    *out = NULL;
    return text ? mlo_json_parse(text, strlen(text), "a job's row", out, err) : MLO_OK;
}

static enum mlo_status job_so_far(const struct mlo_rows *rows, int row, json_t *jobs, struct mlo_error *err)
{
    enum mlo_status status;
    json_t *spec = NULL, *result = NULL, *error = NULL;
    struct mlo_digest output;
    char text[MLO_DIGEST_TEXT_SIZE];
    bool made = mlo_rows_digest(rows, row, 4, &output);
    MLO_TRY(parsed(rows, row, 2, &spec, err));
    MLO_TRY(parsed(rows, row, 3, &result, err));
    MLO_TRY(parsed(rows, row, 6, &error, err));
    json_t *job = json_pack("{s:s, s:s, s:O, s:O?, s:O?, s:s?}", "step", mlo_rows_text(rows, row, 0), "state",
                            mlo_rows_text(rows, row, 1), "spec", spec, "result", result, "error", error,
                            "output", made ? mlo_digest_text(&output, text) : NULL);
    if (!job || (made && json_object_set_new(job, "size", json_integer(mlo_rows_i64(rows, row, 5))) != 0) ||
        json_array_append(jobs, job) != 0)
        status = mlo_error_nomem(err);
    json_decref(job);
out:
    json_decref(spec);
    json_decref(result);
    json_decref(error);
    return status;
}

enum mlo_status mlo_search_so_far(struct mlo_db_conn *conn, int64_t job, json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_rows run = {0}, rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *jobs = json_array();
    mlo_param_i64(&p, job);
    MLO_TRY(mlo_db_exec(conn, &MLO_SEARCH_SQL[S_SO_FAR], &p, &run, err));
    MLO_TRY(mlo_db_exec(conn, &MLO_SEARCH_SQL[S_JOBS], &p, &rows, err));
    if (mlo_rows_count(&run) != 1 || !jobs) {
        status = jobs ? mlo_error_set(err, MLO_ENOTFOUND, "there is no job %lld", (long long)job)
                      : mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < mlo_rows_count(&rows); i++)
        MLO_TRY(job_so_far(&rows, i, jobs, err));
    *out = json_pack("{s:f, s:f, s:f, s:I, s:O}", "elapsed_s", mlo_rows_f64(&run, 0, 0), "cpu_s",
                     mlo_rows_f64(&run, 0, 1), "gpu_s", mlo_rows_f64(&run, 0, 3), "source_bytes",
                     (json_int_t)mlo_rows_i64(&run, 0, 2), "jobs", jobs);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(jobs);
    mlo_rows_clear(&run);
    mlo_rows_clear(&rows);
    return status;
}

/* --- planning ------------------------------------------------------------------------------------------ */

struct growth {
    const struct mlo_complete *c;
    struct mlo_recipe *recipe; /* for what its jobs need */
    const char *target, *name; /* of the recipe */
    struct mlo_digest source_input;
    int64_t source_bytes, version;
    int position; /* of the next job */
};

/* `needs`: an array literal. */
static enum mlo_status plan_job(struct mlo_db_conn *conn, struct growth *g, const char *step_name,
                                const char *label, const json_t *spec, const struct mlo_digest *input,
                                const char *needs, int64_t *id, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_step *step = mlo_step_find(step_name);
    struct mlo_needs own = MLO_NEEDS_INIT, resources;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_digest key;
    char name[96], *canonical = NULL;
    const json_t *options = json_object_get(spec, "options");
    if (!step || g->position >= POSITIONS_MAX) {
        status =
            mlo_error_set(err, step ? MLO_ETOOBIG : MLO_EFORMAT,
                          step ? "a search has %d jobs at most%.0s" : "a search chose %d of the step '%.60s'",
                          step ? POSITIONS_MAX : 1, step_name);
        goto out;
    }
    bool derive = step->kind == MLO_STEP_DERIVE;
    resources = mlo_needs_over(&g->recipe->needs, &own);
    bool no_memory = !resources.memory_bytes, no_disk = !resources.disk_bytes;
    mlo_needs_estimate(step->name, (uint64_t)MLO_MAX(g->source_bytes, 0), &resources);
    const char *target = mlo_needed_target(step, options, g->target);
    if (mlo_str_starts(target, "cuda") && resources.gpus == 0)
        resources.gpus = 1;
    snprintf(name, sizeof name, "%s%s%.60s", step->name, *label ? " " : "", label);
    mlo_json_canonical(spec, &text);
    if (!mlo_buf_ok(&text)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (derive && input)
        MLO_TRY(
            mlo_job_derivation(step->name, options, input, g->c->job->datasets, NULL, &canonical, &key, err));
    mlo_param_i64(&p, g->c->job->id);
    mlo_param_i64(&p, g->position++);
    mlo_param_text(&p, name);
    mlo_param_text(&p, step->name);
    mlo_param_text(&p, derive ? "derive" : "observe");
    mlo_param_text(&p, target);
    mlo_param_bool(&p, step->exclusive);
    mlo_param_text(&p, input ? "ready" : "waiting");
    mlo_param_text(&p, mlo_buf_str(&text));
    mlo_param_digest(&p, input);
    mlo_param_digest(&p, derive && input ? &key : NULL);
    mlo_param_i64(&p, (int64_t)resources.memory_bytes);
    mlo_param_i64(&p, (int64_t)resources.disk_bytes);
    mlo_param_i64(&p, resources.gpus);
    mlo_param_text(&p, resources.gpu[0] ? resources.gpu : NULL);
    mlo_param_i64(&p, resources.timeout_s);
    mlo_param_text(&p, no_memory && no_disk ? "{memory,disk}"
                       : no_memory          ? "{memory}"
                       : no_disk            ? "{disk}"
                                            : "{}");
    mlo_param_text(&p, needs);
    MLO_TRY(mlo_db_exec(conn, &MLO_SEARCH_SQL[S_PLAN], &p, &rows, err));
    *id = mlo_rows_i64(&rows, 0, 0);
    MLO_TRY(mlo_job_event(conn, *id, "job", err));
out:
    free(canonical);
    mlo_buf_clear(&text);
    mlo_rows_clear(&rows);
    return status;
}

/* A candidate's jobs of a rung, one after another; *last is the id of the last. */
static enum mlo_status plan_block(struct mlo_db_conn *conn, struct growth *g, const json_t *block,
                                  int64_t *last, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *candidate = mlo_json_str(block, "candidate", ""), *made = mlo_json_str(block, "input", NULL);
    json_t *step, *spec = NULL, *options = NULL;
    struct mlo_digest input;
    size_t i;
    char needs[32] = "{}";
    if (!made)
        input = g->source_input;
    else if (!mlo_digest_parse(made, &input))
        return mlo_error_set(err, MLO_EFORMAT, "a search chose to look at '%.60s', which is no digest", made);
    json_array_foreach(json_object_get(block, "steps"), i, step)
    {
        const char *name = mlo_json_str(step, "step", "");
        const struct mlo_step *row = mlo_step_find(name);
        if (row) /* what it must be when its job is run */
            MLO_TRY(mlo_options_resolve(row->options, json_object_get(step, "options"), &options, err));
        spec = json_pack("{s:O?, s:s, s:I}", "options", options, "candidate", candidate, "rung",
                         (json_int_t)mlo_json_i64(block, "rung", 0));
        if (!spec || (i == 0 && !made && json_object_set_new(spec, "from_source", json_true()) != 0)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(plan_job(conn, g, name, candidate, spec, i == 0 ? &input : NULL, needs, last, err));
        snprintf(needs, sizeof needs, "{%lld}", (long long)*last);
        json_decref(spec);
        json_decref(options);
        spec = options = NULL;
    }
out:
    json_decref(spec);
    json_decref(options);
    return status;
}

/* The next choice, behind all that was planned. */
static enum mlo_status plan_choice(struct mlo_db_conn *conn, struct growth *g, const char *needs,
                                   struct mlo_error *err)
{
    int64_t id;
    json_t *spec = json_pack("{s:O, s:b}", "options", g->c->job->options, "from_source", 1);
    if (!spec)
        return mlo_error_nomem(err);
    enum mlo_status status = plan_job(conn, g, g->c->job->step, "", spec, NULL, needs, &id, err);
    json_decref(spec);
    return status;
}

static enum mlo_status plan_next(struct mlo_db_conn *conn, struct growth *g, const json_t *next,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf needs = MLO_BUF_INIT;
    json_t *block;
    size_t i;
    json_array_foreach((json_t *)next, i, block)
    {
        int64_t last = 0;
        MLO_TRY(plan_block(conn, g, block, &last, err));
        mlo_buf_printf(&needs, "%s%lld", i ? "," : "{", (long long)last);
    }
    mlo_buf_putc(&needs, '}');
    if (!mlo_buf_ok(&needs)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(plan_choice(conn, g, mlo_buf_str(&needs), err));
    MLO_TRY(mlo_queue_notify(conn, err));
out:
    mlo_buf_clear(&needs);
    return status;
}

/* --- the front ----------------------------------------------------------------------------------------- */

/* What names a variant: the derivation of this run's own job, with its decision where a step chose. */
static enum mlo_status key_of(struct mlo_db_conn *conn, const struct mlo_job *job, const char *candidate,
                              const struct mlo_digest *artifact, struct mlo_digest *key,
                              struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_digest input;
    json_t *spec = NULL, *result = NULL;
    char *canonical = NULL;
    mlo_param_i64(&p, job->run);
    mlo_param_digest(&p, artifact);
    mlo_param_text(&p, candidate);
    MLO_TRY(mlo_db_exec(conn, &MLO_SEARCH_SQL[S_MADE], &p, &rows, err));
    bool made = mlo_rows_count(&rows) == 1 && mlo_rows_digest(&rows, 0, 2, &input);
    if (made) {
        MLO_TRY(parsed(&rows, 0, 1, &spec, err));
        MLO_TRY(parsed(&rows, 0, 4, &result, err));
    }
    const json_t *report = json_object_get(result, "report");
    const char *decision = mlo_json_str(json_object_get(report, MLO_REPORT_DECISION), "blob", NULL);
    if (!made || (!decision && !mlo_rows_digest(&rows, 0, 3, key)))
        status =
            mlo_error_set(err, MLO_EINTERNAL, "the point '%.96s' of a search has no derivation", candidate);
    else if (decision)
        status = mlo_job_derivation(mlo_rows_text(&rows, 0, 0), json_object_get(spec, "options"), &input,
                                    job->datasets, decision, &canonical, key, err);
out:
    free(canonical);
    json_decref(spec);
    json_decref(result);
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status name_point(struct mlo_db_conn *conn, const struct growth *g, const json_t *point,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_job *job = g->c->job;
    struct mlo_digest artifact, key, select;
    char name[MLO_SEARCH_VARIANT_MAX + 1];
    const char *candidate = mlo_json_str(point, "name", "");
    int n = snprintf(name, sizeof name, "%s-%s", g->name, candidate);
    const char *data = mlo_json_str(json_object_get(job->datasets, "select"), "digest", "");
    if (n >= (int)sizeof name || !mlo_name_valid(name) ||
        !mlo_digest_parse(mlo_json_str(point, "artifact", ""), &artifact))
        return mlo_error_set(err, MLO_EFORMAT, "a search names a point '%.100s' without an artifact", name);
    MLO_TRY(key_of(conn, job, candidate, &artifact, &key, err));
    MLO_TRY(mlo_variant_name(conn, &g->c->actor, g->version, name, &artifact, &key, job->run, NULL, err));
    if (mlo_digest_parse(data, &select)) /* so that no gate takes evidence on it */
        MLO_TRY(mlo_lineage_add(conn, job->project, &artifact, &select, MLO_LINEAGE_SELECTED_WITH, &key,
                                job->run, err));
out:
    return status;
}

static char *why_it_failed(const json_t *search)
{
    struct mlo_error why = {0};
    (void)mlo_error_set(&why, MLO_EEXPECT, "%.600s", mlo_json_str(search, "why", ""));
    mlo_error_where(&why, "goal \"%.150s\"", mlo_json_str(search, "goal", ""));
    mlo_error_hint(
        &why, "ask for less, or give it more to try: more values of its knobs, a larger budget. What was "
              "found is there as variants");
    return mlo_error_json(&why, 0);
}

bool mlo_search_chose(const struct mlo_complete *c)
{
    const struct mlo_step *step = mlo_step_find(c->job->step);
    return step && step->reads_run && !c->job->reproduces && json_object_get(c->what->report, "search");
}

enum mlo_status mlo_search_follow(struct mlo_db_conn *conn, const struct mlo_complete *c, bool *over,
                                  char **error, struct mlo_error *err)
{
    enum mlo_status status;
    const json_t *search = json_object_get(c->what->report, "search"),
                 *next = json_object_get(search, "next");
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    struct growth g = {.c = c};
    json_t *point;
    size_t i;
    *over = json_array_size(next) == 0;
    *error = NULL;
    mlo_param_i64(&p, c->job->run);
    MLO_TRY(mlo_db_exec(conn, &MLO_SEARCH_SQL[S_RUN], &p, &rows, err));
    const char *recipe = mlo_rows_text(&rows, 0, 0);
    g.target = mlo_rows_text(&rows, 0, 1);
    g.name = mlo_rows_text(&rows, 0, 2);
    g.source_bytes = mlo_rows_i64(&rows, 0, 4);
    g.position = (int)mlo_rows_i64(&rows, 0, 5) + 1;
    g.version = mlo_rows_i64(&rows, 0, 6);
    if (!mlo_rows_digest(&rows, 0, 3, &g.source_input)) {
        status = mlo_error_set(err, MLO_EINTERNAL, "run %lld has no upload", (long long)c->job->run);
        goto out;
    }
    MLO_TRY(mlo_recipe_parse(recipe, strlen(recipe), "the run's recipe", &g.recipe, err));
    json_array_foreach(json_object_get(search, "points"), i, point) if (mlo_json_bool(point, "front", false))
        MLO_TRY(name_point(conn, &g, point, err));
    if (!*over)
        MLO_TRY(plan_next(conn, &g, next, err));
    else if (!mlo_json_bool(search, "met", false) && !(*error = why_it_failed(search)))
        status = mlo_error_nomem(err);
out:
    mlo_recipe_free(g.recipe);
    mlo_rows_clear(&rows);
    return status;
}

/* --- a candidate that failed --------------------------------------------------------------------------- */

enum mlo_status mlo_search_drop(struct mlo_db_conn *conn, int64_t job, int64_t run, bool *dropped,
                                struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, job);
    MLO_TRY(mlo_db_exec(conn, &MLO_SEARCH_SQL[S_CANDIDATE], &p, &rows, err));
    *dropped = mlo_rows_count(&rows) == 1 && !mlo_rows_null(&rows, 0, 0);
    if (!*dropped)
        goto out;
    MLO_TRY(mlo_db_exec(conn, &MLO_SEARCH_SQL[S_DROP], &p, &rows, err));
    for (int i = 0; i < mlo_rows_count(&rows); i++) /* what was cancelled with it */
        MLO_TRY(mlo_job_event(conn, mlo_rows_i64(&rows, i, 0), "job", err));
    p = (struct mlo_params)MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    MLO_TRY(mlo_db_exec(conn, &MLO_SEARCH_SQL[S_READY], &p, &rows, err));
    for (int i = 0; i < mlo_rows_count(&rows); i++)
        MLO_TRY(mlo_job_event(conn, mlo_rows_i64(&rows, i, 0), "job", err));
    MLO_TRY(mlo_queue_notify(conn, err));
out:
    mlo_rows_clear(&rows);
    return status;
}
