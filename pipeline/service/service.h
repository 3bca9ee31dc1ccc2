/* The public header of pipeline/service: the planner (recipe + version -> run with jobs), the queue in
 * PostgreSQL, and the workers that run steps as jobs. Stands on registry and pipeline/steps.
 *
 * At-least-once execution, exactly-once effect: a claim gives an attempt a token, every later change that the
 * attempt makes names it, and one whose job has gone to another attempt is refused with MLO_ELEASE. No
 * transaction is open while work runs. All JSON results are new references, yours. Times are RFC 3339
 * UTC. Functions that take a connection make one transaction of their own, or part of the caller's. */
#ifndef MLO_SERVICE_H
#define MLO_SERVICE_H

#include <signal.h>

#include "base/metrics.h"
#include "pipeline/steps/steps.h"
#include "registry/registry.h"

/* --- runs (server side) -------------------------------------------------------------------------------- */

/* An artifact of the version that is there already. */
struct mlo_run_subject {
    const char *variant, *target; /* its name, and the target that it was chosen for */
    struct mlo_digest artifact;
};

struct mlo_run_request {
    int64_t project;                 /* registry id */
    int64_t version;                 /* registry id of the model's version */
    const struct mlo_recipe *recipe; /* parsed, with every --set applied */
    int priority;                    /* higher first; 0 */
    const struct mlo_actor *actor;   /* who; needs the role submitter in the project */
    /* What the steps look at, which all observe then, in place of what the recipe would derive; for the
     * target that it names. NULL: as the recipe says. */
    const struct mlo_run_subject *on;
};

/* A caller with a transaction of its own around what this header does wakes the workers once that is
 * committed, as they are woken without one: holds before it begins, lets go when it has ended, on the same
 * thread. Without that a NOTIFY is part of its COMMIT, which is right and slower. */
void mlo_queue_wake_hold(const struct mlo_db_conn *conn);
/* conn NULL: it is gone, with its transaction. */
void mlo_queue_wake_release(struct mlo_db_conn *conn, bool committed);

enum { MLO_RUN_BATCH_MAX = 50 }; /* models in one submission of many (RunBatch of api/openapi.yaml) */

/* Plans the DAG and inserts it in one transaction. The recipe's dataset names are resolved to versions
 * ("NAME" is the latest, "NAME@V" that one) that the project may read. MLO_ENOTFOUND names the missing
 * dataset and where the recipe names it. */
MLO_MUST_USE enum mlo_status mlo_run_submit(struct mlo_db_conn *conn, const struct mlo_run_request *request,
                                            int64_t *run, struct mlo_error *err);

/* What mlo_run_submit would do, without doing it: {"variant","target","datasets":{role: {"name","version",
 * "digest"}},"jobs":[{"position","name","step","kind","target","needs":[position…],"derivation"?,"cached",
 * "resources":{"memory_bytes","disk_bytes","gpus","gpu","timeout_s","estimated" (of memory and disk: from the
 * model's size)}, "estimate_s","estimate_of"}],"estimate_s"}: medians of what the step took on models of
 * about this size (null: it never did), of how many, and their sum over what is not cached. "derivation" and
 * "cached" are known where the inputs are (the whole chain, when it is cached). */
MLO_MUST_USE enum mlo_status mlo_run_plan(struct mlo_db_conn *conn, const struct mlo_run_request *request,
                                          json_t **out, struct mlo_error *err);

struct mlo_reproduce_request {
    int64_t project, version; /* registry ids */
    const char *variant;
    int priority;
    const struct mlo_actor *actor; /* needs the role submitter in the project */
};
/* Submits a run that re-makes a variant: the derivations of the run that made it, one job each, from the
 * recorded inputs, options and decisions, past the cache of derivations and past checkpoints. Each result is
 * recorded (registry/reproduction.h); the first whose digest differs fails the run. It names and replaces
 * nothing. MLO_EINVAL for the upload itself, MLO_EUNSUPPORTED (which says why) where this program would make
 * another derivation: a step or pass has another revision by now. */
MLO_MUST_USE enum mlo_status mlo_run_reproduce(struct mlo_db_conn *conn,
                                               const struct mlo_reproduce_request *request, int64_t *run,
                                               struct mlo_error *err);

/* Cancels a run and its open jobs; running steps are stopped by their workers within seconds. A run that is
 * over already is MLO_ECONFLICT. `reason` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_run_cancel(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                            int64_t run, const char *reason, struct mlo_error *err);

/* Takes a failed run up again: what was done stays, the failed job has all its attempts anew. MLO_ECONFLICT
 * when it has not failed, or failed by an expectation or a reproduction, which trying again does not change.
 */
MLO_MUST_USE enum mlo_status mlo_run_requeue(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                             int64_t run, const char *reason, struct mlo_error *err);

/* A project's share and limits (docs/queue.md):
 * {"project","weight","max_running","gpu_seconds_month","storage_bytes","storage_used","paused",
 * "paused_by","paused_at","paused_reason","queued","running","gpu_seconds_used" (this month)}. */
MLO_MUST_USE enum mlo_status mlo_project_queue_get(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                   int64_t project, json_t **out, struct mlo_error *err);
/* Changes what `change` has of "weight","max_running","gpu_seconds_month","storage_bytes" (null: no limit)
 * and "paused"; needs the role admin in the project, is audited, and answers as above. `reason` may be NULL.
 */
MLO_MUST_USE enum mlo_status mlo_project_queue_set(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                   int64_t project, const json_t *change, const char *reason,
                                                   json_t **out, struct mlo_error *err);
/* [{"month": "2026-01","attempts","reused","failed","wall_s","cpu_s","gpu_s","read_bytes","written_bytes"}],
 * newest first: what the attempts that ended in it used. */
MLO_MUST_USE enum mlo_status mlo_usage_months(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t project, json_t **out, struct mlo_error *err);
/* The same as comma-separated values, a header line first. */
void mlo_usage_csv(struct mlo_buf *out, const char *project, const json_t *months);

/* JSON below is what docs/api.md shows for the same thing, so that handlers pass it on, with these additions.
 *
 * A run, "Runs" there. In "jobs", state is blocked (needs others) | queued | running | succeeded | failed |
 * cancelled, with "reused": true on one whose derivation was known; more members: "position", "name",
 * "target", "max_attempts", "seconds", "needs":[position…], "derivation", "input", "output" (digests or
 * null), "report" (the step's), "attempts":[{"number","worker","started_at","ended_at","outcome","gpus"
 * (UUIDs, null: none),"error"}], "resources":{"memory_bytes","disk_bytes","gpus","gpu","timeout_s",
 * "estimated"}, "waits" (why a queued job is not taken; null: its turn comes).
 * The run has "datasets" {role: {"name","version","digest"}}, "event_seq" (its ETag), "jobs_total",
 * "jobs_done" and "recipe_text" (canonical). MLO_ENOTFOUND when the project (0: any) has no such run. */
MLO_MUST_USE enum mlo_status mlo_run_get(struct mlo_db_conn *conn, int64_t project, int64_t run, json_t **out,
                                         struct mlo_error *err);

struct mlo_run_filter {
    int64_t project;   /* 0: all */
    int64_t model;     /* 0: all; registry id */
    int64_t version;   /* 0: all; registry id */
    const char *state; /* NULL: all */
    int64_t before;    /* keyset: only ids below it; 0: from the newest */
    int limit;         /* 0: 50 */
};
/* {"items":[run without "jobs" and "recipe_text"],"next": "<id to give as before>" | null}, newest first. */
MLO_MUST_USE enum mlo_status mlo_run_list(struct mlo_db_conn *conn, const struct mlo_run_filter *filter,
                                          json_t **out, struct mlo_error *err);

/* The run's events after `after` (0: all), oldest first, at most `limit` (0: 200), without waiting:
 *   {"items":[{"seq","at","kind":"run"|"job"|"progress","job","step","state","progress","message"}],
 *    "next": seq, "state": of the run, "done": bool}
 * Sequence numbers of a run have no gaps and appear in order. */
MLO_MUST_USE enum mlo_status mlo_run_events(struct mlo_db_conn *conn, int64_t run, int64_t after, int limit,
                                            json_t **out, struct mlo_error *err);

/* The numbers of the last events of runs, whose ids ascend: marks[i] is that of runs[i], 0 for none. In one
 * statement, for who follows many of them. */
MLO_MUST_USE enum mlo_status mlo_run_marks(struct mlo_db_conn *conn, const int64_t *runs, size_t count,
                                           int64_t *marks, struct mlo_error *err);
/* Likewise how many parts of a log the steps of each have written. */
MLO_MUST_USE enum mlo_status mlo_run_log_marks(struct mlo_db_conn *conn, const int64_t *runs, size_t count,
                                               int64_t *marks, struct mlo_error *err);

/* Where a run's time went; all *_s are seconds since it was submitted, "seconds" is its end or now:
 * {"run","project","model","version","recipe","state","submitted_at","submitted_us","seconds","jobs":[{"job",
 *  "position","name","step","state","spans":[{"kind":"blocked" (needs other jobs) | "queued" (for a worker,
 * or for another try) | "attempt","from_s","to_s","open" (goes on), and of an attempt
 * "attempt","worker","outcome" (null: it runs),"error" (code or
 * null),"phases":[{"name","from_s","to_s"}]}]}]} Phases are what the attempt's worker told: inputs (fetched
 * and placed), turn (waited for the machine), step, store (into the blob store), record (the rest).
 * MLO_ENOTFOUND when the project has no such run. */
MLO_MUST_USE enum mlo_status mlo_run_trace(struct mlo_db_conn *conn, int64_t project, int64_t run,
                                           json_t **out, struct mlo_error *err);
/* The same of a part, for a page: the jobs from the place `from` on (0: the first), `jobs` of them at most,
 * and of each its newest attempts. A job that had more has "earlier": how many; its spans then begin with the
 * first attempt that is told. */
struct mlo_trace_part {
    int64_t from;
    int jobs, attempts;
};
MLO_MUST_USE enum mlo_status mlo_run_trace_part(struct mlo_db_conn *conn, int64_t project, int64_t run,
                                                const struct mlo_trace_part *part, json_t **out,
                                                struct mlo_error *err);
/* The same as OpenTelemetry's JSON of spans (OTLP 1.0, one resourceSpans): a span each for the run, jobs,
 * attempts, waits and phases. Ids follow from the run, so that the same run is the same trace. New reference;
 * NULL: no memory. */
json_t *mlo_trace_otlp(const json_t *trace, const char *version);

/* {"items":[{"job","position","name","step","attempt","began_at","last_at","text"}],"next":null}: what the
 * steps of a run wrote on stderr, by job and attempt, as far as it was sent; of one job unless `job` is 0.
 * The text is clean (UTF-8, no control characters but tab and line feed) and bounded: the beginning and the
 * end of each attempt. */
MLO_MUST_USE enum mlo_status mlo_run_log(struct mlo_db_conn *conn, int64_t run, int64_t job, json_t **out,
                                         struct mlo_error *err);
/* {"items":[{"job","name","attempt","runs" (it goes on),"bytes" (of all its text),"text"}],"left_out"}: of at
 * most `most` attempts, by job and number, the last whole parts that make up their share of `bytes`: so much
 * of it at least where there is so much, and less than a part (64 KiB) more. Those that go on come before
 * others, and then those that wrote last; "left_out" is how many more wrote something. */
MLO_MUST_USE enum mlo_status mlo_run_log_ends(struct mlo_db_conn *conn, int64_t run, int most, int64_t bytes,
                                              json_t **out, struct mlo_error *err);

/* {"queued","running","blocked","failed","oldest_queued_s", "expired" (leases), "workers" (active),
 *  "targets":[{"target","queued","workers"}], "stuck":[{"queued","job","run","target","memory_bytes",
 *  "disk_bytes","gpus","gpu","estimated","waits"}]}: what is queued, and whether anybody can take it. */
MLO_MUST_USE enum mlo_status mlo_queue_overview(struct mlo_db_conn *conn, json_t **out,
                                                struct mlo_error *err);

/* [{"project","target","queued","running","oldest_queued_s" (null: nothing waits)}]: what waits and runs of a
 * project (0: of all) by the class of machine that it is for, the longest wait first; 100 at most. */
MLO_MUST_USE enum mlo_status mlo_queue_depths(struct mlo_db_conn *conn, int64_t project, json_t **out,
                                              struct mlo_error *err);

/* [{"queued","job","run" (the first of them),"target","memory_bytes","disk_bytes","gpus","gpu","estimated",
 * "waits"}]: the kinds of queued jobs that no worker can take, oldest first, and why. */
MLO_MUST_USE enum mlo_status mlo_queue_stuck(struct mlo_db_conn *conn, json_t **out, struct mlo_error *err);

/* {"items":[{"name" (id, one per process
 * start),"host","pid","state":"active"|"paused"|"draining"|"stopped"|"lost",
 *  "machine_class","capabilities":[targets],"slots","started_at","last_seen_at","job": id|null,
 *  "jobs":[{"id","run","step"}],"wish":"run"|"pause"|"drain","wish_by","wish_at","wish_reason" (null: nobody
 * asked), "lacking":[layers of isolation],"memory_bytes","disk_bytes" (that a job can have
 * there), "gpus":[{"uuid","model","memory_bytes","job": that has it, or null}]}],"next":null}: those of the
 * last day, newest first. */
MLO_MUST_USE enum mlo_status mlo_worker_list(struct mlo_db_conn *conn, json_t **out, struct mlo_error *err);

/* What somebody wants of a worker. Within about a second it claims no more jobs (paused), or leaves when
 * those that it has are done, however long they take (drained; that cannot be taken back: MLO_ECONFLICT).
 * Needs an admin of the installation, and is audited there. MLO_ENOTFOUND, MLO_ECONFLICT for one that
 * stopped. `reason` may be NULL. */
enum mlo_worker_wish { MLO_WORKER_RUN, MLO_WORKER_PAUSE, MLO_WORKER_DRAIN };
MLO_MUST_USE enum mlo_status mlo_worker_control(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                const char *worker, enum mlo_worker_wish wish,
                                                const char *reason, struct mlo_error *err);

/* --- metrics ------------------------------------------------------------------------------------------ */

/* What the database tells of queue, attempts, workers and itself, for Prometheus (docs/observability.md): the
 * same on every server, and bounded in what it costs the database, however often it is asked for. `projects`:
 * so many of the busiest projects have series of their own. It opens a connection of its own to the database
 * of `db`, which is not kept. Safe from several threads. *out is yours (free). */
struct mlo_service_metrics;
MLO_MUST_USE enum mlo_status mlo_service_metrics_new(struct mlo_db *db, size_t projects,
                                                     struct mlo_service_metrics **out, struct mlo_error *err);
void mlo_service_metrics_free(struct mlo_service_metrics *metrics); /* NULL is allowed */
/* Appends the families; without a database, or one that does not answer within three seconds,
 * mlopt_database_up alone says so. */
void mlo_service_metrics_write(struct mlo_service_metrics *metrics, struct mlo_metrics *out);

/* --- workers ------------------------------------------------------------------------------------------- */

struct mlo_worker_options {
    struct mlo_db *db; /* pool; a worker uses up to slots + 2 connections */
    struct mlo_blob_store *blobs;
    const char *work_dir; /* scratch folders and the machine's benchmark lock live here; made if absent */
    const char *exe;      /* program with the hidden verb `step-exec`; NULL: this one */
    const char *const *targets; /* NULL-terminated extra targets it offers; "any", "cpu", what the machine
                                   is and has, and MLO_TARGET_COMPILE_CUDA where it can, are always there */
    unsigned slots;             /* jobs at a time; 0: 1 */
    unsigned threads;           /* per job; 0: 1 */
    uint32_t lease_ms;          /* 0: 15,000 */
    uint32_t poll_ms;           /* fallback to the notification; 0: 1,000 */
    uint32_t drain_ms;   /* how long running jobs may go on after the stop flag; then they are handed back */
    uint32_t backoff_ms; /* before the second attempt, doubled for each further one; 0: 1,000 */
    uint64_t memory_bytes;      /* for all of its jobs together; 0: that of the control group or machine */
    const char *gpu_inventory;  /* a file in place of the driver, for tests (gpus_impl.h); NULL: the driver */
    uint64_t max_memory_bytes;  /* of a job: address space of each process, memory of all; 0: no limit */
    uint32_t max_job_s;         /* wall time of an attempt; 0: no limit */
    uint64_t max_scratch_bytes; /* of a job's scratch folder; 0: no limit */
    uint64_t max_cache_bytes;   /* of blobs from a store of objects, in work_dir; 0: 16 GiB */
    unsigned max_tasks;         /* processes and threads of a job together; 0: 4,096 */
    /* NULL-terminated absolute paths beyond system software and the job's own folders (mlo_isolation), or
     * NULL */
    const char *const
        *allow_read; /* that a job may read and run programs from, such as a Python environment */
    const char *const
        *allow_write;         /* folders that a job may write in; what it leaves there other jobs find */
    bool require_isolation;   /* rather do not start than run jobs where the kernel lacks a layer */
    const char *metrics_file; /* for node_exporter's textfile collector: "….prom", written every five seconds
                                 and removed at the end; NULL: none */
    bool exit_when_idle;      /* return when nothing is left for it */
};

/* Claims and runs jobs until *stop is not 0 (set it from a signal handler or another thread; it is looked at
 * at least every 100 ms). Logs through mlo_log. A database that goes away is waited for. Running attempts are
 * finished within drain_ms or handed back (ready at once, the attempt not counted), scratch folders are
 * removed, and the worker's row says stopped. */
MLO_MUST_USE enum mlo_status mlo_worker_run(const struct mlo_worker_options *options,
                                            const volatile sig_atomic_t *stop, struct mlo_error *err);

/* What keeps a job's processes from harm on this machine (pipeline/service/sandbox_impl.h), as the kernel is:
 * [{"layer","on","note"}], *out is yours; *whole: nothing is lacking. */
MLO_MUST_USE enum mlo_status mlo_isolation(json_t **out, bool *whole, struct mlo_error *err);

/* The hidden verb: `PROGRAM step-exec DIR` calls mlo_step_child(DIR, 1, err) — progress goes to stdout — and
 * exits 0 when result.json was written, else 1 after printing the error on stderr. */
#define MLO_STEP_EXEC_VERB "step-exec"

/* The channel of LISTEN/NOTIFY: at most one notification per transaction that makes jobs ready. */
#define MLO_QUEUE_CHANNEL "mlopt_queue"

#include "pipeline/service/schedules.h"

#endif
