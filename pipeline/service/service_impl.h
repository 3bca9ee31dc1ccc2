/* What the files of this room share: the claimed job, and the changes of state of queue and runs. */
#ifndef MLO_SERVICE_IMPL_H
#define MLO_SERVICE_IMPL_H

#include "pipeline/service/service.h"

/* Statement tables, for the test that prepares every one. */
extern const struct mlo_sql MLO_QUEUE_SQL[], MLO_COMPLETION_SQL[], MLO_FINISH_SQL[], MLO_PLANNER_SQL[],
    MLO_READS_SQL[], MLO_RUNS_SQL[], MLO_WORKER_SQL[], MLO_INPUTS_SQL[], MLO_ATTEST_SQL[],
    MLO_REPRODUCE_SQL[], MLO_CONTROL_SQL[], MLO_JOB_LOG_SQL[], MLO_REQUEUE_SQL[], MLO_SHARES_SQL[],
    MLO_TX_SQL[], MLO_METRICS_SQL[], MLO_WAITS_SQL[], MLO_TRACE_SQL[], MLO_SCHEDULE_SQL[],
    MLO_SCHEDULE_TIME_SQL[], MLO_SCHEDULE_FIRE_SQL[], MLO_SCHEDULE_END_SQL[], MLO_PLANNER_SHOW_SQL[],
    MLO_SUBMIT_SQL[], MLO_CANCEL_SQL[];
extern const size_t MLO_QUEUE_SQL_COUNT, MLO_COMPLETION_SQL_COUNT, MLO_FINISH_SQL_COUNT,
    MLO_PLANNER_SQL_COUNT, MLO_READS_SQL_COUNT, MLO_RUNS_SQL_COUNT, MLO_WORKER_SQL_COUNT,
    MLO_INPUTS_SQL_COUNT, MLO_ATTEST_SQL_COUNT, MLO_REPRODUCE_SQL_COUNT, MLO_CONTROL_SQL_COUNT,
    MLO_JOB_LOG_SQL_COUNT, MLO_REQUEUE_SQL_COUNT, MLO_SHARES_SQL_COUNT, MLO_TX_SQL_COUNT,
    MLO_METRICS_SQL_COUNT, MLO_WAITS_SQL_COUNT, MLO_TRACE_SQL_COUNT, MLO_SCHEDULE_SQL_COUNT,
    MLO_SCHEDULE_TIME_SQL_COUNT, MLO_SCHEDULE_FIRE_SQL_COUNT, MLO_SCHEDULE_END_SQL_COUNT,
    MLO_PLANNER_SHOW_SQL_COUNT, MLO_SUBMIT_SQL_COUNT, MLO_CANCEL_SQL_COUNT;

/* --- transactions (tx.c) ------------------------------------------------------------------------------- */

typedef enum mlo_status mlo_tx_fn(struct mlo_db_conn *conn, void *arg, struct mlo_error *err);
/* Runs fn in a transaction; again, a few times, after a deadlock. Within the caller's transaction it runs
 * once. */
MLO_MUST_USE enum mlo_status mlo_service_tx(struct mlo_db_conn *conn, mlo_tx_fn *fn, void *arg,
                                            struct mlo_error *err);
/* The same on a connection leased from the pool. */
MLO_MUST_USE enum mlo_status mlo_service_pool_tx(struct mlo_db *db, mlo_tx_fn *fn, void *arg,
                                                 struct mlo_error *err);
/* {"code","message","where","hint"}, with "job" unless 0, as text; yours (free), NULL when out of memory. */
char *mlo_error_json(const struct mlo_error *error, int64_t job);

/* The member of a run's datasets that is no dataset: the recipe's postprocessing model, {"id" of its version,
 * "name","version","digest"}. */
#define MLO_POSTPROCESS "postprocess"

/* --- a claimed job ------------------------------------------------------------------------------------- */

struct mlo_job {
    int64_t id, run, project, version;
    int position, number, attempts, max_attempts;
    char token[40]; /* of this attempt */
    char *name, *step, *created_by;
    char *variant; /* the name its artifact gets: the run's last derive step; else NULL */
    bool derive, exclusive;
    bool from_source; /* works on the upload; else on the artifact `input` */
    json_t *options, *datasets;
    struct mlo_digest
        input; /* what the step before made; for a derive step on the upload what stands for it */
    struct mlo_digest source;
    bool has_key;
    struct mlo_digest key;      /* of the derivation */
    char *derivation;           /* its canonical text */
    bool reproduces;            /* `key` was derived before: what comes out is compared with that */
    struct mlo_digest recorded; /* what it made then */
    bool has_decision;          /* it follows one (when it reproduces) */
    struct mlo_digest decision;
    bool has_labels; /* the version has a label file */
    struct mlo_digest labels;
    struct mlo_needs needs;      /* with the estimates; the timeout is the recipe's */
    char *next_step, *next_spec; /* of the derive step that works on what this one makes; NULL: none */
    struct mlo_error broken;     /* set when it cannot run at all: the attempt fails with it */
};
void mlo_job_clear(struct mlo_job *job);
/* What it works on: the upload, or what the step before made. */
const struct mlo_digest *mlo_job_artifact(const struct mlo_job *job);

/* The derivation of a derive step on this input, with the digest of the decision that it follows (NULL:
 * none). A step that this program does not know is MLO_EUNSUPPORTED. *text is yours (free). */
MLO_MUST_USE enum mlo_status mlo_job_derivation(const char *step, const json_t *options,
                                                const struct mlo_digest *input, const json_t *datasets,
                                                const char *decision, char **text, struct mlo_digest *key,
                                                struct mlo_error *err);

/* What a worker must offer to do a step of a recipe for this target. Static, or out of an argument. */
const char *mlo_needed_target(const struct mlo_step *step, const json_t *options, const char *target);

/* --- the queue (queue.c) ------------------------------------------------------------------------------- */

struct mlo_claimer {
    const char *worker;
    const char *targets; /* PostgreSQL array literal: {any,cpu} */
    uint32_t lease_ms;
    const char *gpus;                  /* the model of each, array literal; NULL: none */
    uint64_t memory_bytes, disk_bytes; /* that a job can have there; 0: as much as it wants */
    const char *free_gpus;             /* of those GPUs, what no job has; NULL: all */
    const uint64_t *free_memory_bytes, *free_disk_bytes; /* the same; for all that are claimed together */
};
/* Takes up to `wanted` ready jobs that the claimer can do, by share, priority and age (docs/queue.md), and
 * that have room side by side in what is free. A large one whose turn it is and that has room only once
 * others have ended keeps those behind it from taking what it waits for. It fills jobs[0] to jobs[*count -
 * 1], each yours (mlo_job_clear). *count is 0 when there is none. One that cannot be read fails, and one that
 * the database kept from being prepared is handed back; the others are yours even so, and the failure is the
 * status only where there are none. */
MLO_MUST_USE enum mlo_status mlo_queue_claim(struct mlo_db *db, const struct mlo_claimer *claimer,
                                             struct mlo_job *jobs, int wanted, int *count,
                                             struct mlo_error *err);
/* Counts what ended into shares and months' totals; often, by whoever comes first. */
MLO_MUST_USE enum mlo_status mlo_queue_settle(struct mlo_db *db, struct mlo_error *err);
/* Prolongs the lease, and waits for nobody. MLO_ELEASE: the job is not this attempt's any more;
 * MLO_ECANCELLED: nobody's; MLO_ECONFLICT: another transaction holds its row: try again soon. */
MLO_MUST_USE enum mlo_status mlo_queue_beat(struct mlo_db *db, const struct mlo_job *job, uint32_t lease_ms,
                                            struct mlo_error *err);
/* The same for several jobs in one statement; each has an answer of its own. */
struct mlo_beat {
    int64_t job;
    char token[40];
    enum mlo_status status; /* out */
    struct mlo_error error; /* out */
};
void mlo_queue_beat_all(struct mlo_db *db, struct mlo_beat *beats, size_t count, uint32_t lease_ms);
/* Writes progress, and an event of it. As mlo_queue_beat. */
MLO_MUST_USE enum mlo_status mlo_queue_progress(struct mlo_db *db, const struct mlo_job *job, double fraction,
                                                const char *message, struct mlo_error *err);

/* Notes which GPUs (array literal of UUIDs) the attempt runs on. As mlo_queue_beat. */
MLO_MUST_USE enum mlo_status mlo_queue_tell_gpus(struct mlo_db *db, const struct mlo_job *job,
                                                 const char *devices, struct mlo_error *err);

/* What an attempt used. */
struct mlo_cost {
    double cpu_s;                       /* of its child and the processes that the child waited for */
    uint64_t read_bytes, written_bytes; /* inputs it was given; what it put into the blob store */
};

enum mlo_attempt_end {
    MLO_ATTEMPT_FAILED,   /* error says why; retried when that can help and attempts are left */
    MLO_ATTEMPT_LOST,     /* the lease ran out */
    MLO_ATTEMPT_RETURNED, /* handed back: ready at once, not counted */
};
struct mlo_attempt_failure {
    int64_t job;
    const char *token;
    enum mlo_attempt_end end;
    const struct mlo_error *error; /* NULL when returned */
    bool retry;                    /* trying again can help */
    const struct mlo_cost *cost;   /* NULL: not known */
    uint32_t backoff_ms;           /* before the second attempt, doubled for each further one */
};
/* Ends an attempt that made nothing. MLO_ELEASE (or MLO_ECANCELLED) when the token is not the job's. */
MLO_MUST_USE enum mlo_status mlo_queue_fail(struct mlo_db *db, const struct mlo_attempt_failure *failure,
                                            struct mlo_error *err);
/* Ends the attempts whose lease ran out, but for those whose rows another transaction holds: next time. */
MLO_MUST_USE enum mlo_status mlo_queue_reap(struct mlo_db *db, uint32_t backoff_ms, int *count,
                                            struct mlo_error *err);
/* --- completion (finish.c, completion.c)
 * ------------------------------------------------------------------------- */

/* The member of a step's report that names what it chose: {"blob","size"}. */
#define MLO_REPORT_DECISION "decision"

struct mlo_completion {
    struct mlo_blob_store *blobs; /* where the blobs below are; NULL: none of them was ever removed */
    bool reused;                  /* the derivation was known: no work was done */
    bool has_artifact;
    struct mlo_digest artifact; /* in the blob store already */
    uint64_t size_bytes;
    const json_t *report;       /* object or NULL; what MLO_REPORT_DECISION names is in the blob store */
    const json_t *observations; /* array or NULL; "samples" are digests here */
    const json_t *plans; /* array or NULL: {"fingerprint","machine_class","blob","size","signer"}, signed, in
                          * the blob store already */
    bool has_document;   /* a report, in the blob store already */
    struct mlo_digest document;
    uint64_t document_bytes;
    const char *envelope; /* the worker's signed statement of an artifact that it made (attest.c), or NULL */
    const char *signer;   /* of the envelope */
    const char *machine_class, *program; /* of who ran it */
    struct mlo_cost cost;
    struct mlo_sample_set { /* the samples of a dataset that the step read, as mlo_samples_record takes them
                             */
        struct mlo_digest dataset;
        struct mlo_buf hashes;
    } samples[3];
    size_t sample_count;
    struct mlo_signature_reading signatures[4]; /* what the step's child read of the files it had */
    size_t signature_count;
};
/* The effect of a job, in one transaction fenced by the token: derivation, lineage, variant, evidence,
 * states, dependents, and the run's end when it was the last job. */
MLO_MUST_USE enum mlo_status mlo_queue_complete(struct mlo_db *db, const struct mlo_job *job,
                                                const struct mlo_completion *completion,
                                                struct mlo_error *err);
/* A job that has ended, and what becomes of telling so. */
struct mlo_finished {
    const struct mlo_job *job;
    const struct mlo_completion *what;
    enum mlo_status status; /* out */
    struct mlo_error error; /* out */
};
/* The same for several jobs (of one worker: no attempt twice), which share transactions where they can; each
 * has an answer of its own, and none is harmed by another one's. MLO_EUNAVAILABLE, MLO_ETIMEOUT: of the
 * database, for all that shared the transaction; they can be told again. */
void mlo_queue_complete_all(struct mlo_db *db, struct mlo_finished *finished, size_t count);
/* Whether it can share a transaction with others. */
bool mlo_queue_complete_shares(const struct mlo_job *job, const struct mlo_completion *what);

/* --- changes of state inside a transaction (runs.c) ---------------------------------------------------- */

/* Locks the jobs of a job's run, lowest id first: the order that every change of several jobs keeps. */
MLO_MUST_USE enum mlo_status mlo_lock_jobs_of(struct mlo_db_conn *conn, int64_t job, int64_t *run,
                                              struct mlo_error *err);
/* The same for who must not wait: MLO_ECONFLICT when somebody else holds one of them. */
MLO_MUST_USE enum mlo_status mlo_try_lock_jobs_of(struct mlo_db_conn *conn, int64_t job, int64_t *run,
                                                  struct mlo_error *err);
/* Whether the token is the running attempt's: MLO_OK, MLO_ELEASE or MLO_ECANCELLED. */
MLO_MUST_USE enum mlo_status mlo_check_token(struct mlo_db_conn *conn, int64_t job, const char *token,
                                             struct mlo_error *err);
/* Both, in one round trip. */
MLO_MUST_USE enum mlo_status mlo_lock_and_check(struct mlo_db_conn *conn, int64_t job, const char *token,
                                                struct mlo_error *err);
/* Appends to the run's events. This and what follows is sent with the next statement whose answer is waited
 * for, or with the COMMIT (mlo_db_queue). */
MLO_MUST_USE enum mlo_status mlo_run_event(struct mlo_db_conn *conn, int64_t run, const char *kind,
                                           const json_t *data, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_job_event(struct mlo_db_conn *conn, int64_t job, const char *kind,
                                           struct mlo_error *err);
/* Ends an attempt; `error` is JSON text or NULL, `cost` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_attempt_end_row(struct mlo_db_conn *conn, int64_t job, const char *token,
                                                 const char *outcome, const char *error,
                                                 const struct mlo_cost *cost, struct mlo_error *err);
/* Wakes the workers when the transaction has committed (tx.c). */
MLO_MUST_USE enum mlo_status mlo_queue_notify(struct mlo_db_conn *conn, struct mlo_error *err);
/* Ends a run whose jobs are locked: open jobs are cancelled, their attempts ended. `error` is JSON
 * text or NULL; `actor` is for the audit row. */
MLO_MUST_USE enum mlo_status mlo_run_end(struct mlo_db_conn *conn, int64_t run, const char *state,
                                         const char *error, const struct mlo_actor *actor,
                                         struct mlo_error *err);
struct mlo_ended_run {
    int64_t id, project;
    const char *on, *recipe_name; /* PROJECT/MODEL@VERSION */
    const char *results;          /* JSON; NULL: as they are */
};
/* The same for a locked run that has no open jobs; all of it is queued (mlo_db_queue), and nobody is woken.
 */
MLO_MUST_USE enum mlo_status mlo_run_end_done(struct mlo_db_conn *conn, const struct mlo_ended_run *run,
                                              const char *state, const char *error,
                                              const struct mlo_actor *actor, struct mlo_error *err);

#endif
