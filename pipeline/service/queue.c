/* The queue's side of a job: claim, lease, failure, reaping. Nothing here holds a transaction while work
 * runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/service_impl.h"

enum {
    S_CANDIDATE,
    S_CLAIM,
    S_NOTE_KEY,
    S_ATTEMPT,
    S_START_RUN,
    S_BEAT,
    S_PROGRESS,
    S_STATE,
    S_EXPIRED,
    S_RETURN,
    S_RETRY,
    S_FAIL,
    S_END_ATTEMPT,
    S_RUN_ACTOR,
};

enum {
    C_ID,
    C_RUN,
    C_PROJECT,
    C_VERSION,
    C_POSITION,
    C_NAME,
    C_STEP,
    C_KIND,
    C_EXCLUSIVE,
    C_SPEC,
    C_INPUT,
    C_SOURCE,
    C_DATASETS,
    C_VARIANT,
    C_CREATED_BY,
    C_FROM_SOURCE,
    C_LAST_DERIVE,
    C_MAX_ATTEMPTS,
    C_LABELS,
};

const struct mlo_sql MLO_QUEUE_SQL[] = {
    /* A ready job whose derivation somebody is making already is passed over: once made, it is reused. */
    [S_CANDIDATE] =
        {"queue_candidate",
         "select j.id, j.run, j.project, r.version, j.position, j.name, j.step, j.kind, j.exclusive, j.spec, "
         "  j.input, r.source, r.datasets, r.variant, r.created_by, "
         "  not exists (select from job e where e.run = j.run and e.kind = 'derive' and e.position < "
         "j.position), "
         "  not exists (select from job l where l.run = j.run and l.kind = 'derive' and l.position > "
         "j.position), "
         "  j.max_attempts, (select b.digest from version_blob b where b.version_id = r.version and "
         "  b.role = '" MLO_ROLE_LABELS "' order by b.name limit 1) "
         "from job j join run r on r.id = j.run "
         "where j.state = 'ready' and j.not_before <= clock_timestamp() and j.target = any($1::text[]) "
         "  and not exists (select from job f where f.state = 'running' and f.derivation = j.derivation) "
         "order by j.priority desc, j.id limit 1 for update of j skip locked",
         1},
    [S_CLAIM] =
        {"queue_claim",
         "update job set state = 'running', token = gen_random_uuid(), worker = $2, "
         "  lease_until = clock_timestamp() + $3::bigint * interval '1 millisecond', "
         "  attempts = attempts + 1, claims = claims + 1, derivation = $4, progress = 0, message = '', "
         "  started_at = coalesce(started_at, clock_timestamp()) "
         "where id = $1 returning token::text, attempts, claims",
         4},
    [S_NOTE_KEY] = {"queue_note_key", "update job set derivation = $2 where id = $1 and state = 'ready'", 2},
    [S_ATTEMPT] = {"queue_attempt",
                   "insert into attempt (job, number, token, worker, started_at) "
                   "values ($1, $2, $3::uuid, $4, clock_timestamp())",
                   4},
    [S_START_RUN] = {"queue_start_run",
                     "update run set state = 'running', started_at = clock_timestamp() "
                     "where id = $1 and state = 'queued'",
                     1},
    [S_BEAT] = {"queue_beat",
                "update job set lease_until = clock_timestamp() + $3::bigint * interval '1 millisecond' "
                "where id = $1 and token = $2::uuid",
                3},
    [S_PROGRESS] = {"queue_progress",
                    "update job set progress = $3, message = $4 where id = $1 and token = $2::uuid", 4},
    [S_EXPIRED] =
        {"queue_expired",
         "select id, token::text from job where state = 'running' and lease_until < clock_timestamp() "
         "order by lease_until limit 16",
         0},
    [S_STATE] = {"queue_expired_still",
                 "select lease_until < clock_timestamp(), attempts, max_attempts from job where id = $1", 1},
    [S_RETURN] = {"queue_return",
                  "update job set state = 'ready', token = null, lease_until = null, worker = null, "
                  "  attempts = attempts - 1, progress = 0, message = '', not_before = clock_timestamp() "
                  "where id = $1",
                  1},
    [S_RETRY] =
        {"queue_retry",
         "update job set state = 'ready', token = null, lease_until = null, progress = 0, message = '', "
         "  error = $2, "
         "  not_before = clock_timestamp() + $3::bigint * (1 + 0.2 * random()) * interval '1 millisecond' "
         "where id = $1",
         3},
    [S_FAIL] = {"queue_fail",
                "update job set state = 'failed', token = null, lease_until = null, error = $2, "
                "  finished_at = clock_timestamp() where id = $1",
                2},
    [S_END_ATTEMPT] = {"queue_end_attempt",
                       "update attempt set ended_at = clock_timestamp(), outcome = $3, error = $4 "
                       "where job = $1 and token = $2::uuid",
                       4},
    [S_RUN_ACTOR] = {"queue_run_actor", "select created_by, project from run where id = $1", 1},
};
const size_t MLO_QUEUE_SQL_COUNT = MLO_COUNT(MLO_QUEUE_SQL);

const struct mlo_digest *mlo_job_artifact(const struct mlo_job *job)
{
    return job->from_source ? &job->source : &job->input;
}

void mlo_job_clear(struct mlo_job *job)
{
    free(job->name);
    free(job->step);
    free(job->created_by);
    free(job->variant);
    free(job->derivation);
    json_decref(job->options);
    json_decref(job->datasets);
    *job = (struct mlo_job){.id = 0};
}

/* --- claim --------------------------------------------------------------------------------------------- */

static bool role_digest(const json_t *datasets, const char *role, struct mlo_digest *out)
{
    const char *text = mlo_json_str(json_object_get(datasets, role), "digest", NULL);
    return text && mlo_digest_parse(text, out);
}

enum mlo_status mlo_job_derivation(const char *step_name, const json_t *options,
                                   const struct mlo_digest *input, const json_t *datasets,
                                   const char *decision, char **text, struct mlo_digest *key,
                                   struct mlo_error *err)
{
    const struct mlo_step *step = mlo_step_find(step_name);
    if (!step) {
        enum mlo_status status =
            mlo_error_set(err, MLO_EUNSUPPORTED, "this program has no step '%s'", step_name);
        mlo_error_hint(err, "update the workers to the version of the server");
        return status;
    }
    enum mlo_status status = MLO_OK;
    struct mlo_digest calibrate, select, post;
    struct mlo_buf canonical = MLO_BUF_INIT;
    json_t *derivation = NULL, *decisions = decision ? json_pack("[s]", decision) : NULL;
    /* only what the step reads enters its key: another evaluation set changes no artifact */
    bool has_calibrate = mlo_step_reads_calibrate(step) && role_digest(datasets, "calibrate", &calibrate);
    bool has_select = mlo_step_reads_select(step, options) && role_digest(datasets, "select", &select);
    bool has_post = role_digest(datasets, MLO_POSTPROCESS, &post);
    MLO_TRY(mlo_step_derivation(step, options, input, has_calibrate ? &calibrate : NULL,
                                has_select ? &select : NULL, has_post ? &post : NULL, decisions, &derivation,
                                err));
    mlo_json_canonical(derivation, &canonical);
    if (!mlo_buf_ok(&canonical)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_digest_of(canonical.data, canonical.len, key);
    *text = mlo_buf_take(&canonical);
out:
    mlo_buf_clear(&canonical);
    json_decref(derivation);
    json_decref(decisions);
    return status;
}

static enum mlo_status copy_text(const struct mlo_rows *rows, int column, char **out, struct mlo_error *err)
{
    const char *text = mlo_rows_text(rows, 0, column);
    *out = text ? strdup(text) : NULL;
    return text && !*out ? mlo_error_nomem(err) : MLO_OK;
}

/* What a job that reproduces is to make again: "reproduce" of its spec (reproduce.c). */
static enum mlo_status read_reproduce(const json_t *spec, struct mlo_job *job, struct mlo_error *err)
{
    const json_t *wanted = json_object_get(spec, "reproduce");
    const char *decision = mlo_json_str(wanted, "decision", NULL);
    struct mlo_digest key;
    job->reproduces = wanted != NULL;
    job->has_decision = decision != NULL;
    if (!wanted || !job->has_key)
        return MLO_OK;
    if (!mlo_digest_parse(mlo_json_str(wanted, "derivation", ""), &key) ||
        !mlo_digest_parse(mlo_json_str(wanted, "artifact", ""), &job->recorded) ||
        (decision && !mlo_digest_parse(decision, &job->decision)))
        return mlo_error_set(err, MLO_EINTERNAL, "job %lld does not say what it reproduces",
                             (long long)job->id);
    if (!mlo_digest_eq(&key, &job->key)) {
        (void)mlo_error_set(&job->broken, MLO_EUNSUPPORTED,
                            "this worker's program would make another derivation than the recorded one");
        mlo_error_hint(&job->broken, "a step or a pass has another revision there: run a worker of the "
                                     "server's version");
    }
    return MLO_OK;
}

static enum mlo_status read_candidate(const struct mlo_rows *rows, struct mlo_job *job, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *spec = NULL;
    job->id = mlo_rows_i64(rows, 0, C_ID);
    job->run = mlo_rows_i64(rows, 0, C_RUN);
    job->project = mlo_rows_i64(rows, 0, C_PROJECT);
    job->version = mlo_rows_i64(rows, 0, C_VERSION);
    job->position = (int)mlo_rows_i64(rows, 0, C_POSITION);
    job->max_attempts = (int)mlo_rows_i64(rows, 0, C_MAX_ATTEMPTS);
    job->derive = mlo_str_eq(mlo_rows_text(rows, 0, C_KIND), "derive");
    job->exclusive = mlo_rows_bool(rows, 0, C_EXCLUSIVE);
    job->from_source = mlo_rows_bool(rows, 0, C_FROM_SOURCE);
    job->has_labels = mlo_rows_digest(rows, 0, C_LABELS, &job->labels);
    MLO_TRY(copy_text(rows, C_NAME, &job->name, err));
    MLO_TRY(copy_text(rows, C_STEP, &job->step, err));
    MLO_TRY(copy_text(rows, C_CREATED_BY, &job->created_by, err));
    if (job->derive && mlo_rows_bool(rows, 0, C_LAST_DERIVE))
        MLO_TRY(copy_text(rows, C_VARIANT, &job->variant, err));
    const char *datasets = mlo_rows_text(rows, 0, C_DATASETS), *text = mlo_rows_text(rows, 0, C_SPEC);
    MLO_TRY(mlo_json_parse(datasets, strlen(datasets), "the run's datasets", &job->datasets, err));
    MLO_TRY(mlo_json_parse(text, strlen(text), "the job's spec", &spec, err));
    job->options = json_incref(json_object_get(spec, "options"));
    if (!mlo_rows_digest(rows, 0, C_SOURCE, &job->source) || !mlo_rows_digest(rows, 0, C_INPUT, &job->input))
        status = mlo_error_set(err, MLO_EINTERNAL, "job %lld is ready without an input", (long long)job->id);
    const char *decision = mlo_json_str(json_object_get(spec, "reproduce"), "decision", NULL);
    if (status == MLO_OK && job->derive &&
        mlo_job_derivation(job->step, job->options, &job->input, job->datasets, decision, &job->derivation,
                           &job->key, &job->broken) == MLO_OK)
        job->has_key = true;
    if (status == MLO_OK)
        status = read_reproduce(spec, job, err);
out:
    json_decref(spec);
    return status;
}

struct claim {
    const struct mlo_claimer *claimer;
    struct mlo_job *job;
    bool found;
};

static enum mlo_status claim_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct claim *claim = arg;
    struct mlo_job *job = claim->job;
    struct mlo_rows rows = {0};
    claim->found = false;
    mlo_job_clear(job);
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_text(&p, claim->claimer->targets);
    MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_CANDIDATE], &p, &rows, err));
    if (mlo_rows_count(&rows) == 0)
        goto out;
    MLO_TRY(read_candidate(&rows, job, err));
    p = (struct mlo_params)MLO_PARAMS_INIT;
    mlo_param_i64(&p, job->id);
    mlo_param_text(&p, claim->claimer->worker);
    mlo_param_i64(&p, claim->claimer->lease_ms);
    /* one that reproduces neither waits for who makes the same, nor keeps anybody waiting */
    mlo_param_digest(&p, job->has_key && !job->reproduces ? &job->key : NULL);
    MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_CLAIM], &p, &rows, err));
    snprintf(job->token, sizeof job->token, "%s", mlo_rows_text(&rows, 0, 0));
    job->attempts = (int)mlo_rows_i64(&rows, 0, 1);
    job->number = (int)mlo_rows_i64(&rows, 0, 2);
    p = (struct mlo_params)MLO_PARAMS_INIT;
    mlo_param_i64(&p, job->id);
    mlo_param_i64(&p, job->number);
    mlo_param_text(&p, job->token);
    mlo_param_text(&p, claim->claimer->worker);
    MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_ATTEMPT], &p, NULL, err));
    p = (struct mlo_params)MLO_PARAMS_INIT;
    mlo_param_i64(&p, job->run);
    MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_START_RUN], &p, &rows, err));
    if (mlo_rows_affected(&rows) == 1) {
        json_t *data = json_pack("{s:s}", "state", "running");
        status = data ? mlo_run_event(conn, job->run, "run", data, err) : mlo_error_nomem(err);
        json_decref(data);
        MLO_TRY(status);
    }
    MLO_TRY(mlo_job_event(conn, job->id, "job", err));
    claim->found = true;
out:
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status note_key_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    const struct mlo_job *job = arg;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, job->id);
    mlo_param_digest(&p, &job->key);
    return mlo_db_exec(conn, &MLO_QUEUE_SQL[S_NOTE_KEY], &p, NULL, err);
}

enum mlo_status mlo_queue_claim(struct mlo_db *db, const struct mlo_claimer *claimer, struct mlo_job *job,
                                bool *found, struct mlo_error *err)
{
    enum { TRIES = 16 };
    struct claim claim = {claimer, job, false};
    enum mlo_status status = MLO_OK;
    *found = false;
    for (int i = 0; i < TRIES; i++) {
        status = mlo_service_pool_tx(db, claim_tx, &claim, err);
        if (status != MLO_EEXISTS)
            break;
        /* the unique index: another run is making this derivation now. Noted, the job is passed over till
         * then */
        status = mlo_service_pool_tx(db, note_key_tx, job, err);
        if (status != MLO_OK)
            break;
    }
    if (status == MLO_EEXISTS)
        status = MLO_OK;
    *found = status == MLO_OK && claim.found;
    if (!*found)
        mlo_job_clear(job);
    return status;
}

/* --- lease --------------------------------------------------------------------------------------------- */

struct beat {
    const struct mlo_job *job;
    uint32_t lease_ms;
    double fraction;
    const char *message;
};

static enum mlo_status beat_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    const struct beat *beat = arg;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, beat->job->id);
    mlo_param_text(&p, beat->job->token);
    mlo_param_i64(&p, beat->lease_ms);
    enum mlo_status status = mlo_db_exec(conn, &MLO_QUEUE_SQL[S_BEAT], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_affected(&rows) == 0)
        status = mlo_check_token(conn, beat->job->id, beat->job->token, err);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_queue_beat(struct mlo_db *db, const struct mlo_job *job, uint32_t lease_ms,
                               struct mlo_error *err)
{
    struct beat beat = {.job = job, .lease_ms = lease_ms};
    return mlo_service_pool_tx(db, beat_tx, &beat, err);
}

static enum mlo_status progress_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    const struct beat *beat = arg;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, beat->job->id);
    mlo_param_text(&p, beat->job->token);
    mlo_param_f64(&p, beat->fraction);
    mlo_param_text(&p, beat->message);
    enum mlo_status status = mlo_db_exec(conn, &MLO_QUEUE_SQL[S_PROGRESS], &p, &rows, err);
    if (status == MLO_OK)
        status = mlo_rows_affected(&rows) == 0 ? mlo_check_token(conn, beat->job->id, beat->job->token, err)
                                               : mlo_job_event(conn, beat->job->id, "progress", err);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_queue_progress(struct mlo_db *db, const struct mlo_job *job, double fraction,
                                   const char *message, struct mlo_error *err)
{
    struct beat beat = {.job = job, .fraction = fraction, .message = message};
    return mlo_service_pool_tx(db, progress_tx, &beat, err);
}

/* --- failure ------------------------------------------------------------------------------------------- */

static enum mlo_status fail_run(struct mlo_db_conn *conn, int64_t run, const char *error,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, run);
    MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_RUN_ACTOR], &p, &rows, err));
    struct mlo_actor actor = {.name = mlo_rows_text(&rows, 0, 0),
                              .role = MLO_SUBMITTER,
                              .project_id = mlo_rows_i64(&rows, 0, 1),
                              .via = "worker"};
    status = mlo_run_end(conn, run, "failed", error, &actor, err);
out:
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status fail_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_attempt_failure *f = arg;
    struct mlo_rows rows = {0};
    int64_t run;
    char *error = NULL;
    const char *outcome = "returned";
    if (f->error && !(error = mlo_error_json(f->error, f->job)))
        return mlo_error_nomem(err);
    MLO_TRY(mlo_lock_jobs_of(conn, f->job, &run, err));
    MLO_TRY(mlo_check_token(conn, f->job, f->token, err));
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, f->job);
    MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_STATE], &p, &rows, err));
    int attempts = (int)mlo_rows_i64(&rows, 0, 1), max_attempts = (int)mlo_rows_i64(&rows, 0, 2);
    bool again = f->end == MLO_ATTEMPT_RETURNED || (f->retry && attempts < max_attempts);
    if (f->end == MLO_ATTEMPT_LOST && !mlo_rows_bool(&rows, 0, 0)) {
        status = mlo_error_set(err, MLO_ECONFLICT, "the lease was prolonged meanwhile");
        goto out;
    }
    if (f->end == MLO_ATTEMPT_RETURNED) {
        MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_RETURN], &p, NULL, err));
    } else if (again) {
        outcome = f->end == MLO_ATTEMPT_LOST ? "lost" : "retried";
        mlo_param_text(&p, error);
        mlo_param_i64(&p, (int64_t)f->backoff_ms << MLO_MIN(MLO_MAX(attempts - 1, 0), 10));
        MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_RETRY], &p, NULL, err));
    } else {
        outcome = f->end == MLO_ATTEMPT_LOST ? "lost" : "failed";
        mlo_param_text(&p, error);
        MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_FAIL], &p, NULL, err));
    }
    p = (struct mlo_params)MLO_PARAMS_INIT;
    mlo_param_i64(&p, f->job);
    mlo_param_text(&p, f->token);
    mlo_param_text(&p, outcome);
    mlo_param_text(&p, error);
    MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_END_ATTEMPT], &p, NULL, err));
    MLO_TRY(mlo_job_event(conn, f->job, "job", err));
    if (again)
        MLO_TRY(mlo_queue_notify(conn, err));
    else
        MLO_TRY(fail_run(conn, run, error, err));
out:
    free(error);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_queue_fail(struct mlo_db *db, const struct mlo_attempt_failure *failure,
                               struct mlo_error *err)
{
    return mlo_service_pool_tx(db, fail_tx, (void *)failure, err);
}

static enum mlo_status expired_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    return mlo_db_exec(conn, &MLO_QUEUE_SQL[S_EXPIRED], NULL, arg, err);
}

enum mlo_status mlo_queue_reap(struct mlo_db *db, uint32_t backoff_ms, int *count, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_error lost = {0};
    enum mlo_status status = mlo_service_pool_tx(db, expired_tx, &rows, err);
    *count = 0;
    mlo_error_set(&lost, MLO_ELEASE, "the worker stopped answering, and its lease ran out");
    mlo_error_hint(&lost, "look at the worker's log and at the machine's memory");
    for (int i = 0; status == MLO_OK && i < mlo_rows_count(&rows); i++) {
        struct mlo_attempt_failure failure = {
            .job = mlo_rows_i64(&rows, i, 0),
            .token = mlo_rows_text(&rows, i, 1),
            .end = MLO_ATTEMPT_LOST,
            .error = &lost,
            .retry = true,
            .backoff_ms = backoff_ms,
        };
        status = mlo_queue_fail(db, &failure, err);
        if (status == MLO_OK)
            ++*count;
        else if (status == MLO_ELEASE || status == MLO_ECANCELLED || status == MLO_ECONFLICT)
            status = MLO_OK; /* another reaper, or the attempt itself, was first */
    }
    mlo_rows_clear(&rows);
    return status;
}
