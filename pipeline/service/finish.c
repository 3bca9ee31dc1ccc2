/* Completions, several in one call of the database (queue_complete, migrations/0031_calls.sql): what
 * most jobs have is written there, set by set. What else there is follows in the same transaction, statement
 * by statement (completion.c); so do the ends of runs, whose expectations are judged here. */
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/completion_impl.h"
#include "registry/models.h"

enum { S_COMPLETE };

const struct mlo_sql MLO_FINISH_SQL[] = {
    [S_COMPLETE] = {"finish_complete",
                    "select * from queue_complete($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, "
                    "$14, $15, $16, $17, $18, $19)",
                    19},
};
const size_t MLO_FINISH_SQL_COUNT = MLO_COUNT(MLO_FINISH_SQL);

/* Parameters of queue_complete. */
enum {
    A_JOBS,
    A_TOKENS,
    A_STATES,
    A_OUTPUTS,
    A_RESULTS,
    A_CPUS,
    A_READS,
    A_WRITES,
    A_SIZES,
    A_PARENTS,
    A_KEYS,
    A_CANONICALS,
    A_REPORTS,
    A_CALIBRATED,
    A_SELECTED,
    A_VARIANTS,
    A_SIGNERS,
    A_ENVELOPES,
    A_NEXT_KEYS,
    ARRAYS
};

/* Its columns. */
enum {
    C_PLACE,
    C_VERDICT,
    C_READIED,
    C_OVER,
    C_NAMED,
    C_OBJECT,
    C_RECIPE_NAME,
    C_RECIPE,
    C_OBSERVED,
    C_SIZE,
    C_SOURCE_SIZE,
    C_WAS_ARTIFACT,
    C_WAS_DERIVATION,
    C_WAS_RUN
};

/* Those that one transaction takes. */
enum { SHARED_MAX = 64 };
struct batch {
    struct mlo_finished *jobs[SHARED_MAX];
    bool apart[SHARED_MAX]; /* out: nothing was done for it */
    size_t count;
};

static struct mlo_complete complete_of(const struct mlo_finished *f)
{
    return (struct mlo_complete){.job = f->job,
                                 .what = f->what,
                                 .actor = {.name = f->job->created_by,
                                           .role = MLO_SUBMITTER,
                                           .project_id = f->job->project,
                                           .via = "worker"}};
}

/* --- the call ------------------------------------------------------------------------------------------ */

static const struct mlo_digest *role_digest(const struct mlo_job *job, const char *role,
                                            struct mlo_digest *out)
{
    const char *text = mlo_json_str(json_object_get(job->datasets, role), "digest", NULL);
    return text && mlo_digest_parse(text, out) ? out : NULL;
}

/* What a derive step made; NULLs for one that observed. */
static enum mlo_status add_made(struct mlo_array *arrays, const struct mlo_complete *c, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_job *job = c->job;
    const struct mlo_completion *what = c->what;
    const struct mlo_step *step = mlo_step_find(job->step);
    const struct mlo_digest *parent = mlo_job_artifact(job);
    struct mlo_digest calibrate, select, next;
    struct mlo_buf report = MLO_BUF_INIT;
    bool has_next, derives = what->has_artifact, fresh = derives && !what->reused;
    MLO_TRY(mlo_completion_next_key(c, &has_next, &next, err));
    if (fresh && what->report)
        mlo_json_canonical(what->report, &report);
    if (!mlo_buf_ok(&report)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_array_i64(&arrays[A_SIZES], (int64_t)what->size_bytes);
    mlo_array_digest(&arrays[A_PARENTS], derives && !mlo_digest_eq(parent, &what->artifact) ? parent : NULL);
    mlo_array_digest(&arrays[A_KEYS], derives ? &job->key : NULL);
    mlo_array_text(&arrays[A_CANONICALS], fresh ? job->derivation : NULL);
    mlo_array_text(&arrays[A_REPORTS], fresh && what->report ? mlo_buf_str(&report) : NULL);
    mlo_array_digest(&arrays[A_CALIBRATED], derives && step && mlo_step_reads_calibrate(step)
                                                ? role_digest(job, "calibrate", &calibrate)
                                                : NULL);
    mlo_array_digest(&arrays[A_SELECTED], derives && step && mlo_step_reads_select(step, job->options)
                                              ? role_digest(job, "select", &select)
                                              : NULL);
    mlo_array_text(&arrays[A_VARIANTS], derives ? job->variant : NULL);
    mlo_array_text(&arrays[A_SIGNERS], derives ? what->signer : NULL);
    mlo_array_text(&arrays[A_ENVELOPES], derives ? what->envelope : NULL);
    mlo_array_digest(&arrays[A_NEXT_KEYS], has_next ? &next : NULL);
out:
    mlo_buf_clear(&report);
    return status;
}

static enum mlo_status add_job(struct mlo_array *arrays, const struct mlo_complete *c, struct mlo_error *err)
{
    struct mlo_buf result = MLO_BUF_INIT;
    const struct mlo_completion *what = c->what;
    enum mlo_status status = mlo_completion_result(what, &result, err);
    mlo_array_i64(&arrays[A_JOBS], c->job->id);
    mlo_array_uuid(&arrays[A_TOKENS], c->job->token);
    mlo_array_text(&arrays[A_STATES], what->reused ? "reused" : "succeeded");
    mlo_array_digest(&arrays[A_OUTPUTS], what->has_artifact ? &what->artifact : NULL);
    mlo_array_text(&arrays[A_RESULTS], mlo_buf_str(&result));
    mlo_array_f64(&arrays[A_CPUS], what->cost.cpu_s);
    mlo_array_i64(&arrays[A_READS], (int64_t)what->cost.read_bytes);
    mlo_array_i64(&arrays[A_WRITES], (int64_t)what->cost.written_bytes);
    if (status == MLO_OK)
        status = add_made(arrays, c, err);
    mlo_buf_clear(&result);
    return status;
}

static enum mlo_status call(struct mlo_db_conn *conn, const struct batch *batch, struct mlo_rows *rows,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_array arrays[ARRAYS] = {{.bytes = MLO_BUF_INIT}};
    for (size_t i = 0; i < batch->count; i++) {
        struct mlo_complete c = complete_of(batch->jobs[i]);
        MLO_TRY(add_job(arrays, &c, err));
    }
    for (int i = 0; i < ARRAYS; i++)
        MLO_TRY(mlo_param_array(&p, &arrays[i], err));
    MLO_TRY(mlo_db_exec(conn, &MLO_FINISH_SQL[S_COMPLETE], &p, rows, err));
out:
    for (int i = 0; i < ARRAYS; i++)
        mlo_array_clear(&arrays[i]);
    return status;
}

/* --- what follows -------------------------------------------------------------------------------------- */

static enum mlo_status audit_name(struct mlo_db_conn *conn, const struct mlo_complete *c,
                                  const struct mlo_rows *rows, int row, struct mlo_error *err)
{
    struct mlo_variant_info was = {.run_id = mlo_rows_i64(rows, row, C_WAS_RUN)};
    bool had = mlo_rows_digest(rows, row, C_WAS_ARTIFACT, &was.artifact);
    was.has_derivation = mlo_rows_digest(rows, row, C_WAS_DERIVATION, &was.derivation);
    return mlo_variant_audit(conn, &c->actor, c->job->project, mlo_rows_text(rows, row, C_OBJECT),
                             c->job->variant, had ? &was : NULL, &c->what->artifact, &c->job->key,
                             c->job->run, err);
}

/* All observations of a run, from its jobs' results in order; *out is yours. */
static enum mlo_status observations_of(const char *results, json_t **out, struct mlo_error *err)
{
    json_t *all = NULL, *result, *seen = json_array();
    size_t i;
    enum mlo_status status = seen ? MLO_OK : mlo_error_nomem(err);
    if (status == MLO_OK && results)
        status = mlo_json_parse(results, strlen(results), "the jobs' results", &all, err);
    json_array_foreach(all, i, result)
    {
        const json_t *of_job = json_object_get(result, "observations");
        if (json_is_array(of_job) && json_array_extend(seen, (json_t *)of_job) < 0)
            status = mlo_error_nomem(err);
    }
    json_decref(all);
    if (status == MLO_OK)
        *out = seen;
    else
        json_decref(seen);
    return status;
}

/* Judges the expectations and ends the run. */
static enum mlo_status end_run(struct mlo_db_conn *conn, const struct mlo_complete *c,
                               const struct mlo_rows *rows, int row, struct mlo_error *err)
{
    enum mlo_status status;
    json_t *observations = NULL;
    char *results = NULL, *error = NULL;
    struct mlo_ended_run run = {.id = c->job->run,
                                .project = c->job->project,
                                .on = mlo_rows_text(rows, row, C_OBJECT),
                                .recipe_name = mlo_rows_text(rows, row, C_RECIPE_NAME)};
    MLO_TRY(observations_of(mlo_rows_text(rows, row, C_OBSERVED), &observations, err));
    if (!mlo_rows_null(rows, row, C_SIZE))
        MLO_TRY(mlo_run_append_size(observations, (double)mlo_rows_i64(rows, row, C_SIZE),
                                    (double)mlo_rows_i64(rows, row, C_SOURCE_SIZE), err));
    MLO_TRY(mlo_run_judge(mlo_rows_text(rows, row, C_RECIPE), observations, &results, &error, err));
    run.results = results;
    MLO_TRY(mlo_run_end_done(conn, &run, error ? "failed" : "succeeded", error, &c->actor, err));
out:
    free(results);
    free(error);
    json_decref(observations);
    return status;
}

/* What the call said of one job. *done: its own, and there is more to be written. */
static enum mlo_status take_verdict(struct batch *batch, const struct mlo_rows *rows, int row,
                                    struct mlo_finished **done, struct mlo_error *err)
{
    int64_t place = mlo_rows_i64(rows, row, C_PLACE);
    const char *verdict = mlo_rows_text(rows, row, C_VERDICT);
    *done = NULL;
    if (place < 1 || place > (int64_t)batch->count)
        return mlo_error_set(err, MLO_EINTERNAL, "queue_complete speaks of a job %lld of %zu",
                             (long long)place, batch->count);
    struct mlo_finished *f = batch->jobs[place - 1];
    f->status = MLO_OK;
    if (strcmp(verdict, "lost") == 0)
        f->status =
            mlo_error_set(&f->error, MLO_ELEASE, "the lease on job %lld is lost: another attempt owns it",
                          (long long)f->job->id);
    else if (strcmp(verdict, "cancelled") == 0)
        f->status = mlo_error_set(&f->error, MLO_ECANCELLED, "job %lld was cancelled", (long long)f->job->id);
    else
        batch->apart[place - 1] = strcmp(verdict, "apart") == 0;
    if (f->status == MLO_OK && !batch->apart[place - 1])
        *done = f;
    return MLO_OK;
}

/* What is still to be written of a job that is done. */
static enum mlo_status record_rest(struct mlo_db_conn *conn, const struct mlo_complete *c, bool news,
                                   const struct mlo_rows *rows, int row, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    /* also for the jobs of other runs that waited for this derivation */
    if (mlo_rows_bool(rows, row, C_READIED) || c->job->has_key)
        MLO_TRY(mlo_queue_notify(conn, err));
    MLO_TRY(mlo_completion_record_more(conn, c, news, err));
    if (mlo_rows_bool(rows, row, C_NAMED))
        MLO_TRY(audit_name(conn, c, rows, row, err));
    if (mlo_rows_bool(rows, row, C_OVER))
        MLO_TRY(end_run(conn, c, rows, row, err));
out:
    return status;
}

/* The rows come by project: in which order their chains are locked. */
static enum mlo_status finish_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status;
    struct batch *batch = arg;
    struct mlo_rows rows = {0};
    struct mlo_complete done[SHARED_MAX];
    bool news[SHARED_MAX];
    int row_of[SHARED_MAX];
    size_t count = 0;
    memset(batch->apart, 0, sizeof batch->apart);
    MLO_TRY(call(conn, batch, &rows, err));
    for (int i = 0; i < mlo_rows_count(&rows); i++) {
        struct mlo_finished *f;
        MLO_TRY(take_verdict(batch, &rows, i, &f, err));
        if (f && count == SHARED_MAX) {
            status = mlo_error_set(err, MLO_EINTERNAL, "queue_complete speaks of a job twice");
            goto out;
        }
        if (f) {
            done[count] = complete_of(f);
            row_of[count++] = i;
        }
    }
    MLO_TRY(mlo_completion_record_signatures(conn, done, count, news, err));
    for (size_t i = 0; i < count; i++)
        MLO_TRY(record_rest(conn, &done[i], news[i], &rows, row_of[i], err));
out:
    mlo_rows_clear(&rows);
    return status;
}

/* --- which together ------------------------------------------------------------------------------------ */

/* Whether the call knows all of it: what was chosen enters another derivation, what is made again none. */
static bool known_to_call(const struct mlo_finished *f)
{
    return !f->job->reproduces && !json_object_get(f->what->report, MLO_REPORT_DECISION) &&
           !json_object_get(f->what->report, "search") && /* which plans jobs (search.c) */
           (!f->what->has_artifact || f->job->has_key) &&
           (!f->job->variant ||
            (mlo_name_valid(f->job->variant) && strcmp(f->job->variant, MLO_VARIANT_SOURCE) != 0));
}

bool mlo_queue_complete_shares(const struct mlo_job *job, const struct mlo_completion *what)
{
    const struct mlo_finished f = {.job = job, .what = what};
    return known_to_call(&f) && !mlo_completion_has_more(what);
}

static void complete_apart(struct mlo_db *db, struct mlo_finished *f)
{
    struct mlo_complete c = complete_of(f);
    f->error = (struct mlo_error){.status = MLO_OK};
    f->status = mlo_complete_apart(db, &c, &f->error);
}

/* Whether it says nothing of any job: the next transaction would wait for the same database in vain. */
static bool is_of_the_database(enum mlo_status status)
{
    return status == MLO_EUNAVAILABLE || status == MLO_ETIMEOUT;
}

/* One transaction for all of the batch. Where it fails for what is in it, each gets one of its own, and so
 * its own answer; where the database is away, that is the answer to all, and who has a lease asks again. */
static void finish(struct mlo_db *db, struct batch *batch)
{
    struct mlo_error error = {0};
    if (batch->count == 0)
        return;
    for (size_t i = 0; i < batch->count; i++)
        batch->jobs[i]->error = (struct mlo_error){.status = MLO_OK};
    enum mlo_status status = mlo_service_pool_tx(db, finish_tx, batch, &error);
    for (size_t i = 0; i < batch->count; i++) {
        struct mlo_finished *f = batch->jobs[i];
        struct batch alone = {.jobs = {f}, .count = 1};
        if (status == MLO_OK && batch->apart[i]) {
            complete_apart(db, f);
        } else if (status != MLO_OK && (batch->count == 1 || is_of_the_database(status))) {
            f->status = status;
            f->error = error;
        } else if (status != MLO_OK) {
            finish(db, &alone);
        }
    }
    batch->count = 0;
}

void mlo_queue_complete_all(struct mlo_db *db, struct mlo_finished *finished, size_t count)
{
    struct batch together = {.count = 0};
    for (size_t i = 0; i < count; i++) {
        struct mlo_finished *f = &finished[i];
        struct batch alone = {.jobs = {f}, .count = 1};
        f->error = (struct mlo_error){.status = MLO_OK};
        if (f->job->derive != f->what->has_artifact)
            f->status = mlo_error_set(&f->error, MLO_EINTERNAL, "the step '%s' %s an artifact", f->job->step,
                                      f->job->derive ? "returned no path of" : "observes, and yet returned");
        else if (!known_to_call(f))
            complete_apart(db, f);
        else if (mlo_completion_has_more(f->what)) /* which can fail for reasons of its own */
            finish(db, &alone);
        else
            together.jobs[together.count++] = f;
        if (together.count == SHARED_MAX)
            finish(db, &together);
    }
    finish(db, &together);
}

enum mlo_status mlo_queue_complete(struct mlo_db *db, const struct mlo_job *job,
                                   const struct mlo_completion *completion, struct mlo_error *err)
{
    struct mlo_finished one = {.job = job, .what = completion};
    mlo_queue_complete_all(db, &one, 1);
    if (one.status != MLO_OK && err)
        *err = one.error;
    return one.status;
}
