/* The queue's side of a job: claim, lease, failure, reaping. Nothing here holds a transaction while work
 * runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/search_impl.h"

enum {
    S_CLAIM,
    S_KEY,
    S_NOTE_KEY,
    S_SETTLE,
    S_BEAT,
    S_PROGRESS,
    S_STATE,
    S_NOTE_LEASE,
    S_EXPIRED,
    S_RETURN,
    S_RETRY,
    S_FAIL,
    S_RUN_ACTOR,
    S_GPUS,
};

/* Columns of queue_claim (migrations/0031_calls.sql). */
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
    C_TOKEN,
    C_ATTEMPTS,
    C_CLAIMS,
    C_DERIVATION,
    C_NEXT_STEP,
    C_NEXT_SPEC,
    C_MEMORY,
    C_DISK,
    C_GPUS,
    C_GPU,
    C_TIMEOUT,
};

const struct mlo_sql MLO_QUEUE_SQL[] = {
    [S_CLAIM] = {"queue_claim",
                 "select * from queue_claim($1, $2::text[], $3::text[], $4, $5, $6::integer, $7, "
                 "$8::text[], $9::bigint, $10::bigint)",
                 10},
    [S_KEY] = {"queue_key", "update job set derivation = $3 where id = $1 and token = $2::uuid", 3},
    [S_NOTE_KEY] = {"queue_note_key", "update job set derivation = $2 where id = $1 and state = 'ready'", 2},
    [S_SETTLE] = {"queue_settle", "select queue_settle($1::integer)", 1},
    [S_BEAT] = {"queue_beat", "select id, token from queue_beat($1, $2, $3)", 3},
    [S_PROGRESS] = {"queue_progress",
                    "update job set progress = $3, message = $4 where id = $1 and token = $2::uuid", 4},
    [S_EXPIRED] =
        {"queue_expired",
         "select id, token::text from job where state = 'running' and lease_until < clock_timestamp() "
         "order by lease_until limit 16 for update skip locked",
         0},
    [S_STATE] = {"queue_expired_still",
                 "select lease_until < clock_timestamp(), attempts, max_attempts from job where id = $1", 1},
    [S_NOTE_LEASE] = {"queue_note_lease",
                      "update attempt a set lease_until = j.lease_until from job j "
                      "where j.id = $1 and a.job = j.id and a.number = j.claims",
                      1},
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
    [S_GPUS] = {"queue_gpus",
                "update attempt a set gpu_devices = $3::text[] from job j where j.id = $1 and j.token = "
                "$2::uuid and a.job = j.id and a.token = j.token",
                3},
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
    free(job->next_step);
    free(job->next_spec);
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

static enum mlo_status copy_text(const struct mlo_rows *rows, int row, int column, char **out,
                                 struct mlo_error *err)
{
    const char *text = mlo_rows_text(rows, row, column);
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

static enum mlo_status read_claimed(const struct mlo_rows *rows, int row, struct mlo_job *job,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *spec = NULL;
    job->id = mlo_rows_i64(rows, row, C_ID);
    job->run = mlo_rows_i64(rows, row, C_RUN);
    job->project = mlo_rows_i64(rows, row, C_PROJECT);
    job->version = mlo_rows_i64(rows, row, C_VERSION);
    job->position = (int)mlo_rows_i64(rows, row, C_POSITION);
    job->max_attempts = (int)mlo_rows_i64(rows, row, C_MAX_ATTEMPTS);
    job->attempts = (int)mlo_rows_i64(rows, row, C_ATTEMPTS);
    job->number = (int)mlo_rows_i64(rows, row, C_CLAIMS);
    snprintf(job->token, sizeof job->token, "%s", mlo_rows_text(rows, row, C_TOKEN));
    job->derive = mlo_str_eq(mlo_rows_text(rows, row, C_KIND), "derive");
    job->exclusive = mlo_rows_bool(rows, row, C_EXCLUSIVE);
    job->from_source = mlo_rows_bool(rows, row, C_FROM_SOURCE);
    job->needs = (struct mlo_needs){.memory_bytes = (uint64_t)mlo_rows_i64(rows, row, C_MEMORY),
                                    .disk_bytes = (uint64_t)mlo_rows_i64(rows, row, C_DISK),
                                    .gpus = (int)mlo_rows_i64(rows, row, C_GPUS),
                                    .timeout_s = (uint32_t)mlo_rows_i64(rows, row, C_TIMEOUT)};
    const char *gpu = mlo_rows_text(rows, row, C_GPU);
    snprintf(job->needs.gpu, sizeof job->needs.gpu, "%s", gpu ? gpu : "");
    job->has_labels = mlo_rows_digest(rows, row, C_LABELS, &job->labels);
    MLO_TRY(copy_text(rows, row, C_NAME, &job->name, err));
    MLO_TRY(copy_text(rows, row, C_STEP, &job->step, err));
    MLO_TRY(copy_text(rows, row, C_CREATED_BY, &job->created_by, err));
    MLO_TRY(copy_text(rows, row, C_NEXT_STEP, &job->next_step, err));
    MLO_TRY(copy_text(rows, row, C_NEXT_SPEC, &job->next_spec, err));
    if (job->derive && mlo_rows_bool(rows, row, C_LAST_DERIVE))
        MLO_TRY(copy_text(rows, row, C_VARIANT, &job->variant, err));
    const char *datasets = mlo_rows_text(rows, row, C_DATASETS), *text = mlo_rows_text(rows, row, C_SPEC);
    MLO_TRY(mlo_json_parse(datasets, strlen(datasets), "the run's datasets", &job->datasets, err));
    MLO_TRY(mlo_json_parse(text, strlen(text), "the job's spec", &spec, err));
    job->options = json_incref(json_object_get(spec, "options"));
    job->from_source = job->from_source || mlo_json_bool(spec, "from_source", false);
    if (!mlo_rows_digest(rows, row, C_SOURCE, &job->source) ||
        !mlo_rows_digest(rows, row, C_INPUT, &job->input))
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

/* Gives a claimed job back whose derivation another attempt makes already: it is passed over till then. */
static enum mlo_status put_back(struct mlo_db *db, const struct mlo_job *job, struct mlo_error *err)
{
    const struct mlo_attempt_failure back = {
        .job = job->id, .token = job->token, .end = MLO_ATTEMPT_RETURNED};
    struct mlo_db_conn *conn;
    enum mlo_status status = mlo_queue_fail(db, &back, err);
    if (status == MLO_ELEASE || status == MLO_ECANCELLED)
        return MLO_OK;
    if (status == MLO_OK)
        status = mlo_db_acquire(db, &conn, err);
    if (status != MLO_OK)
        return status;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, job->id);
    mlo_param_digest(&p, &job->key);
    status = mlo_db_exec(conn, &MLO_QUEUE_SQL[S_NOTE_KEY], &p, NULL, err);
    mlo_db_release(conn);
    return status;
}

/* The key of a job is known when it becomes ready, and the claim kept to it. Another one means that this
 * program has another revision of the step than the one that made the job ready. *kept is false when somebody
 * makes that derivation already; the job is ready again then. */
static enum mlo_status settle_key(struct mlo_db *db, const struct mlo_job *job, const struct mlo_rows *rows,
                                  int row, bool *kept, struct mlo_error *err)
{
    struct mlo_digest known;
    struct mlo_db_conn *conn;
    *kept = true;
    if (!job->has_key || job->reproduces || /* which waits for nobody, and keeps nobody waiting */
        (mlo_rows_digest(rows, row, C_DERIVATION, &known) && mlo_digest_eq(&known, &job->key)))
        return MLO_OK;
    enum mlo_status status = mlo_db_acquire(db, &conn, err);
    if (status != MLO_OK)
        return status;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, job->id);
    mlo_param_text(&p, job->token);
    mlo_param_digest(&p, &job->key);
    status = mlo_db_exec(conn, &MLO_QUEUE_SQL[S_KEY], &p, NULL, err);
    mlo_db_release(conn);
    if (status != MLO_EEXISTS)
        return status;
    *kept = false;
    return put_back(db, job, err);
}

static void room_param(struct mlo_params *p, const uint64_t *bytes)
{
    if (bytes)
        mlo_param_i64(p, (int64_t)MLO_MIN(*bytes, (uint64_t)INT64_MAX));
    else
        mlo_param_null(p);
}

static enum mlo_status claim_rows(struct mlo_db *db, const struct mlo_claimer *claimer, int wanted,
                                  struct mlo_rows *rows, struct mlo_error *err)
{
    enum { TRIES = 5 };
    struct mlo_db_conn *conn;
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = mlo_db_acquire(db, &conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_text(&p, claimer->worker);
    mlo_param_text(&p, claimer->targets);
    mlo_param_text(&p, claimer->gpus ? claimer->gpus : "{}");
    const uint64_t *most[] = {&claimer->memory_bytes, &claimer->disk_bytes}, any = INT64_MAX;
    for (size_t i = 0; i < MLO_COUNT(most); i++)
        room_param(&p, *most[i] ? most[i] : &any);
    mlo_param_i64(&p, wanted);
    mlo_param_i64(&p, claimer->lease_ms);
    mlo_param_text(&p, claimer->free_gpus);
    room_param(&p, claimer->free_memory_bytes);
    room_param(&p, claimer->free_disk_bytes);
    for (int i = 0; i < TRIES; i++) {
        status = mlo_db_exec(conn, &MLO_QUEUE_SQL[S_CLAIM], &p, rows, err);
        if (status == MLO_OK || (status != MLO_EEXISTS && !mlo_db_retryable(conn)))
            break;
    }
    mlo_db_release(conn);
    return status == MLO_EEXISTS ? MLO_OK : status;
}

/* A claimed job that cannot be begun. What can pass hands it back; a job that cannot be read fails. */
static void give_up(struct mlo_db *db, const struct mlo_job *job, const struct mlo_error *why)
{
    bool passes =
        mlo_status_info(why->status)->retry || why->status == MLO_ENOMEM || why->status == MLO_ECONFLICT;
    const struct mlo_attempt_failure failure = {.job = job->id,
                                                .token = job->token,
                                                .end = passes ? MLO_ATTEMPT_RETURNED : MLO_ATTEMPT_FAILED,
                                                .error = passes ? NULL : why};
    struct mlo_error error = {0};
    mlo_log_error(MLO_LOG_WARN, "a claimed job cannot be begun", why);
    if (mlo_queue_fail(db, &failure, &error) != MLO_OK) /* then its lease runs out */
        mlo_log_error(MLO_LOG_WARN, "a claimed job cannot be given up", &error);
}

enum mlo_status mlo_queue_claim(struct mlo_db *db, const struct mlo_claimer *claimer, struct mlo_job *jobs,
                                int wanted, int *count, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = claim_rows(db, claimer, wanted, &rows, err);
    *count = 0;
    for (int i = 0; i < mlo_rows_count(&rows); i++) {
        struct mlo_job *job = &jobs[*count];
        struct mlo_error error = {0};
        bool kept = false;
        *job = (struct mlo_job){.id = 0};
        enum mlo_status one = read_claimed(&rows, i, job, &error);
        if (one == MLO_OK)
            one = settle_key(db, job, &rows, i, &kept, &error);
        if (one == MLO_OK && kept) {
            ++*count;
            continue;
        }
        if (one != MLO_OK)
            give_up(db, job, &error);
        if (one != MLO_OK && status == MLO_OK) {
            status = one;
            if (err)
                *err = error;
        }
        mlo_job_clear(job);
    }
    /* what was read is the caller's even so */
    if (*count > 0)
        status = MLO_OK;
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_queue_settle(struct mlo_db *db, struct mlo_error *err)
{
    enum { MOST = 20000 };
    struct mlo_db_conn *conn;
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = mlo_db_acquire(db, &conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&p, MOST);
    status = mlo_db_exec(conn, &MLO_QUEUE_SQL[S_SETTLE], &p, NULL, err);
    mlo_db_release(conn);
    return status;
}

/* --- lease --------------------------------------------------------------------------------------------- */

struct beat {
    const struct mlo_job *job;
    double fraction;
    const char *message;
};

static bool has_beat(const struct mlo_rows *rows, const struct mlo_beat *beat)
{
    for (int i = 0; i < mlo_rows_count(rows); i++)
        if (mlo_rows_i64(rows, i, 0) == beat->job && mlo_str_eq(mlo_rows_text(rows, i, 1), beat->token))
            return true;
    return false;
}

void mlo_queue_beat_all(struct mlo_db *db, struct mlo_beat *beats, size_t count, uint32_t lease_ms)
{
    enum mlo_status status;
    struct mlo_error error = {0}, *err = &error;
    struct mlo_db_conn *conn = NULL;
    struct mlo_rows rows = {0};
    struct mlo_array ids = MLO_ARRAY_INIT, tokens = MLO_ARRAY_INIT;
    struct mlo_params p = MLO_PARAMS_INIT;
    for (size_t i = 0; i < count; i++) {
        mlo_array_i64(&ids, beats[i].job);
        mlo_array_uuid(&tokens, beats[i].token);
    }
    MLO_TRY(mlo_param_array(&p, &ids, err));
    MLO_TRY(mlo_param_array(&p, &tokens, err));
    mlo_param_i64(&p, lease_ms);
    MLO_TRY(mlo_db_acquire(db, &conn, err));
    MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_BEAT], &p, &rows, err));
    for (size_t i = 0; i < count; i++) {
        struct mlo_beat *beat = &beats[i];
        beat->error = (struct mlo_error){.status = MLO_OK};
        beat->status = MLO_OK;
        if (has_beat(&rows, beat))
            continue;
        beat->status = mlo_check_token(conn, beat->job, beat->token, &beat->error);
        if (beat->status == MLO_OK)
            beat->status = mlo_error_set(&beat->error, MLO_ECONFLICT, "another transaction holds job %lld",
                                         (long long)beat->job);
    }
out:
    for (size_t i = 0; status != MLO_OK && i < count; i++) {
        beats[i].status = status;
        beats[i].error = error;
    }
    mlo_array_clear(&ids);
    mlo_array_clear(&tokens);
    mlo_rows_clear(&rows);
    mlo_db_release(conn);
}

enum mlo_status mlo_queue_beat(struct mlo_db *db, const struct mlo_job *job, uint32_t lease_ms,
                               struct mlo_error *err)
{
    struct mlo_beat beat = {.job = job->id};
    snprintf(beat.token, sizeof beat.token, "%s", job->token);
    mlo_queue_beat_all(db, &beat, 1, lease_ms);
    if (beat.status != MLO_OK && err)
        *err = beat.error;
    return beat.status;
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

enum mlo_status mlo_queue_tell_gpus(struct mlo_db *db, const struct mlo_job *job, const char *devices,
                                    struct mlo_error *err)
{
    struct mlo_db_conn *conn;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = mlo_db_acquire(db, &conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&p, job->id);
    mlo_param_text(&p, job->token);
    mlo_param_text(&p, devices);
    status = mlo_db_exec(conn, &MLO_QUEUE_SQL[S_GPUS], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_affected(&rows) == 0)
        status = mlo_check_token(conn, job->id, job->token, err);
    mlo_rows_clear(&rows);
    mlo_db_release(conn);
    return status;
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
    bool dropped = false; /* it is a candidate's: its search goes on without it */
    if (f->error && !(error = mlo_error_json(f->error, f->job)))
        return mlo_error_nomem(err);
    if (f->end == MLO_ATTEMPT_LOST) { /* told by the thread that beats: it must not wait */
        MLO_TRY(mlo_db_exec_text(conn, "set local lock_timeout = '1s'", err));
        MLO_TRY(mlo_try_lock_jobs_of(conn, f->job, &run, err));
    } else {
        MLO_TRY(mlo_lock_jobs_of(conn, f->job, &run, err));
    }
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
    if (f->end == MLO_ATTEMPT_LOST) /* how long it takes from then on is a metric */
        MLO_TRY(mlo_db_queue(conn, &MLO_QUEUE_SQL[S_NOTE_LEASE], &p, NULL, err));
    if (f->end == MLO_ATTEMPT_RETURNED) {
        MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_RETURN], &p, NULL, err));
    } else if (again) {
        outcome = f->end == MLO_ATTEMPT_LOST ? "lost" : "retried";
        mlo_param_text(&p, error);
        /* a first loss is the worker's, not the job's: nothing is gained by waiting */
        bool at_once = f->end == MLO_ATTEMPT_LOST && attempts <= 1;
        mlo_param_i64(&p, at_once ? 0 : (int64_t)f->backoff_ms << MLO_MIN(MLO_MAX(attempts - 1, 0), 10));
        MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_RETRY], &p, NULL, err));
    } else {
        outcome = f->end == MLO_ATTEMPT_LOST ? "lost" : "failed";
        mlo_param_text(&p, error);
        MLO_TRY(mlo_db_exec(conn, &MLO_QUEUE_SQL[S_FAIL], &p, NULL, err));
    }
    MLO_TRY(mlo_attempt_end_row(conn, f->job, f->token, outcome, error, f->cost, err));
    MLO_TRY(mlo_job_event(conn, f->job, "job", err));
    if (again)
        MLO_TRY(mlo_queue_notify(conn, err));
    else
        MLO_TRY(mlo_search_drop(conn, f->job, run, &dropped, err));
    if (!again && !dropped)
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

#define REAP_NS 1000000000ull /* the rest is there the next time; meanwhile somebody must beat */

static enum mlo_status expired_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    return mlo_db_exec(conn, &MLO_QUEUE_SQL[S_EXPIRED], NULL, arg, err);
}

enum mlo_status mlo_queue_reap(struct mlo_db *db, uint32_t backoff_ms, int *count, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_error lost = {0};
    enum mlo_status status = mlo_service_pool_tx(db, expired_tx, &rows, err);
    int expired = status == MLO_OK ? mlo_rows_count(&rows) : 0;
    *count = 0;
    mlo_error_set(&lost, MLO_ELEASE, "the worker stopped answering, and its lease ran out");
    mlo_error_hint(&lost, "look at the worker's log and at the machine's memory");
    uint64_t ends_ns = mlo_clock_ns() + REAP_NS;
    for (int i = 0; i < expired && mlo_clock_ns() < ends_ns; i++) { /* also behind one that fails */
        struct mlo_error failed = {0};
        struct mlo_attempt_failure failure = {
            .job = mlo_rows_i64(&rows, i, 0),
            .token = mlo_rows_text(&rows, i, 1),
            .end = MLO_ATTEMPT_LOST,
            .error = &lost,
            .retry = true,
            .backoff_ms = backoff_ms,
        };
        enum mlo_status one = mlo_queue_fail(db, &failure, &failed);
        if (one == MLO_OK) {
            ++*count;
        } else if (one != MLO_ELEASE && one != MLO_ECANCELLED && one != MLO_ECONFLICT && status == MLO_OK) {
            /* else another reaper, or the attempt itself, was first, or is at it */
            status = one; /* the first is what is told */
            if (err)
                *err = failed;
        }
    }
    mlo_rows_clear(&rows);
    return status;
}
