/* What the database tells of the service, as metrics. Groups of them, each one statement, whose answer is
 * kept for at least as long as twenty times what it took: however many scrape, and however much is in the
 * tables, this uses a twentieth of one backend a group at most. Nothing here reads finished jobs. A database
 * that hangs costs a scrape some seconds, and is said to be down. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/service/service_impl.h"

enum { BOUNDS_MAX = 32, SHARE = 20, TARGETS_MAX = 200, SCHEDULES_MAX = 200, CODES_MAX = 64 };
static const uint64_t REFRESH_NS =
    4000000000ull; /* of one scrape for all groups; the rest is there the next time */
static const uint64_t KEPT_MAX_NS = 60000000000ull; /* however long reading took */
static const uint64_t AGAIN_NS = 1000000000ull;     /* after a database that did not answer */

enum {
    S_JOBS,
    S_ATTEMPTS,
    S_HISTOGRAMS,
    S_BOUNDS,
    S_WORKERS,
    S_DATABASE,
    S_TABLES,
    S_REGISTRY,
    S_BLOBS,
    S_OUTBOX,
    S_SCHEDULES
};

#define AGE(of) "extract(epoch from now() - " of ")::float8"

/* Summed up in one pass over what is open, by the partial index of its state (enable_seqscan is off). */
#define OPEN_JOBS(as, which, age)                                                                            \
    "select " as " as state, target, project, sign(priority) as class, count(*) as count, max(" age          \
    ") as age from job where state = '" which "' group by 1, 2, 3, 4"
#define READY_AT "greatest(ready_at, not_before)"
#define READY                                                                                                \
    OPEN_JOBS("case when " READY_AT " > now() then 'delayed' else 'ready' end", "ready", AGE(READY_AT))
#define RUNNING OPEN_JOBS("state", "running", AGE("lease_until"))
#define WAITING OPEN_JOBS("state", "waiting", "null::float8")
#define CLASS "case o.class when -1 then 'background' when 0 then 'normal' else 'high' end"

const struct mlo_sql MLO_METRICS_SQL[] = {
    /* the last column: 0 a state of a project, 1 one of a target and class */
    [S_JOBS] = {"metrics_jobs",
                "with open as (" READY " union all " RUNNING " union all " WAITING ") "
                "select o.state, o.target, " CLASS
                ", p.name, sum(o.count)::bigint, max(o.age), grouping(o.project) "
                "from open o left join project p on p.id = o.project and $1::boolean "
                "group by grouping sets ((o.state, o.target, o.class), (o.state, o.project, p.name)) "
                "order by grouping(o.project) desc, sum(o.count) desc",
                1},
    [S_ATTEMPTS] = {"metrics_attempts",
                    "select step, outcome, code, attempts, cpu_s, gpu_s, read_bytes, written_bytes from "
                    "metric_attempt order by step, outcome, code",
                    0},
    [S_HISTOGRAMS] =
        {"metrics_histograms",
         "select name, step, bucket, count, sum from metric_histogram order by name, step, bucket", 0},
    [S_BOUNDS] = {"metrics_bounds", "select unnest(metric_bounds())", 0},
    [S_WORKERS] =
        {"metrics_workers",
         "select case when state <> 'stopped' and last_seen_at < now() - interval '30 seconds' then "
         "'lost' else state end, count(*), sum(slots) from worker "
         "where last_seen_at > now() - interval '1 day' group by 1 order by 1",
         0},
    [S_DATABASE] =
        {"metrics_database",
         "select pg_database_size(current_database())::float8, "
         "(select " AGE(
             "min(xact_start)") " from pg_stat_activity "
                                "  where datname = current_database() and pid <> pg_backend_pid() "
                                "  and backend_type = 'client backend'), "
                                "(select count(*) from pg_stat_activity where datname = current_database()), "
                                "(pg_snapshot_xmax(s)::text::numeric - "
                                "pg_snapshot_xmin(s)::text::numeric)::float8, "
                                "pg_has_role('pg_read_all_stats', 'usage') from pg_current_snapshot() s",
         0},
    [S_TABLES] =
        {"metrics_tables",
         "select relname, n_dead_tup, n_live_tup, "
         "extract(epoch from greatest(last_vacuum, last_autovacuum))::float8 "
         "from pg_stat_user_tables where schemaname = 'mlopt' and relname in ('job', 'run', 'attempt', "
         "'run_event', 'usage_entry', 'project_queue', 'worker', 'webhook_delivery', 'stage', "
         "'audit_head', 'metric_attempt', 'metric_histogram') order by relname",
         0},
    [S_REGISTRY] = {"metrics_registry",
                    "select (select count(*) from stage_move where kind = 'promotion'), "
                    "(select count(*) from stage_move where kind = 'rollback'), "
                    "(select count(*) from gate_decision where not accepted)",
                    0},
    /* of one that was removed the row stays for ever */
    [S_BLOBS] = {"metrics_blobs",
                 "select count(*), coalesce(sum(size), 0)::float8 from blob where bytes_gone_at is null", 0},
    [S_OUTBOX] =
        {"metrics_outbox",
         "select (select count(*) from ledger_event e left join ledger_head h using (project_id) "
         "  where e.audit_seq > coalesce(h.audit_seq, 0)), "
         "(select count(*) from webhook_delivery where state = 'pending'), "
         "(select " AGE(
             "min(next_at)") " from webhook_delivery where state = 'pending'), "
                             "(select count(*) from usage_entry), "
                             "(select " AGE(
                                 "min(ended_at)") " from usage_entry), (select count(*) from upload)",
         0},
    [S_SCHEDULES] =
        {"metrics_schedules",
         /* whoever paused one knows of it; one that a server paused has a reason */
         "select s.id::text, s.state, s.failing and (s.state = 'enabled' or s.state_reason is not null), "
         "s.succeeded, s.failed, s.skipped, s.cancelled, "
         "extract(epoch from s.last_success_at)::float8, " AGE("s.next_at") ", (select " AGE(
             "f.at") " from schedule_firing f where f.schedule_id = s.id and f.state = 'running') "
                     "from schedule s where s.state <> 'removed' order by s.id",
         0},
};
const size_t MLO_METRICS_SQL_COUNT = MLO_COUNT(MLO_METRICS_SQL);

struct mlo_service_metrics {
    struct mlo_db *db; /* a connection of its own: neither do requests wait for a scrape, nor is a pool that
                          they exhaust taken for a database that is gone */
    size_t projects;   /* that have series of their own */
    pthread_mutex_t lock; /* of all that follows */
    double bounds[BOUNDS_MAX];
    size_t bound_count;
    struct kept {
        struct mlo_rows rows;
        bool there;
        uint64_t taken_ns, cost_ns; /* the last attempt, also one that failed */
        uint64_t failures;
    } kept[16];
    bool up;          /* the database answered the last time */
    uint64_t down_ns; /* when it was found not to; 0: it answered */
};

static double age_or_zero(const struct mlo_rows *rows, int row, int column)
{
    double age = mlo_rows_f64(rows, row, column);
    return isfinite(age) && age > 0 ? age : 0;
}

/* --- how each group looks ------------------------------------------------------------------------------ */

static void show_jobs(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m)
{
    double oldest = 0, overdue = 0;
    int shown = 0;
    size_t projects = 0;
    mlo_metrics_family(
        m, MLO_METRIC_GAUGE, "mlopt_queue_jobs",
        "Jobs that are not done, by state (delayed: waits for another try), target and class of "
        "priority.");
    for (int i = 0; i < mlo_rows_count(rows); i++) {
        if (mlo_rows_i64(rows, i, 6) == 0)
            continue;
        const char *state = mlo_rows_text(rows, i, 0);
        if (strcmp(state, "ready") == 0)
            oldest = MLO_MAX(oldest, age_or_zero(rows, i, 5));
        else if (strcmp(state, "running") == 0)
            overdue = MLO_MAX(overdue, age_or_zero(rows, i, 5));
        if (shown++ < TARGETS_MAX) /* targets come with recipes */
            mlo_metrics_value(m, (double)mlo_rows_i64(rows, i, 4), "state", state, "target",
                              mlo_rows_text(rows, i, 1), "class", mlo_rows_text(rows, i, 2), NULL);
    }
    mlo_metrics_family(
        m, MLO_METRIC_GAUGE, "mlopt_queue_oldest_ready_seconds",
        "How long the job has waited that has waited longest, of those that a worker could take.");
    mlo_metrics_value(m, oldest, NULL);
    mlo_metrics_family(m, MLO_METRIC_GAUGE, "mlopt_queue_lease_overdue_seconds",
                       "How long ago the lease ran out that ran out first, of jobs still said to run.");
    mlo_metrics_value(m, overdue, NULL);
    if (!s->projects)
        return;
    mlo_metrics_family(m, MLO_METRIC_GAUGE, "mlopt_project_jobs",
                       "The same by project, of those that have most (--metrics-projects).");
    for (int i = 0; i < mlo_rows_count(rows) && projects < s->projects; i++)
        if (mlo_rows_i64(rows, i, 6) == 0 && mlo_rows_text(rows, i, 3) && ++projects)
            mlo_metrics_value(m, (double)mlo_rows_i64(rows, i, 4), "project", mlo_rows_text(rows, i, 3),
                              "state", mlo_rows_text(rows, i, 0), NULL);
}

enum { A_STEP, A_OUTCOME, A_CODE, A_COUNT, A_CPU, A_GPU, A_READ, A_WRITTEN };

/* The sum of a column over the rows of a step (and outcome) that follow each other. */
static void sum_by(const struct mlo_rows *rows, struct mlo_metrics *m, int column, bool outcome)
{
    for (int i = 0, next; i < mlo_rows_count(rows); i = next) {
        double sum = 0;
        for (next = i; next < mlo_rows_count(rows) &&
                       strcmp(mlo_rows_text(rows, i, A_STEP), mlo_rows_text(rows, next, A_STEP)) == 0 &&
                       (!outcome ||
                        strcmp(mlo_rows_text(rows, i, A_OUTCOME), mlo_rows_text(rows, next, A_OUTCOME)) == 0);
             next++)
            sum += mlo_rows_f64(rows, next, column);
        if (outcome)
            mlo_metrics_value(m, sum, "step", mlo_rows_text(rows, i, A_STEP), "outcome",
                              mlo_rows_text(rows, i, A_OUTCOME), NULL);
        else
            mlo_metrics_value(m, sum, "step", mlo_rows_text(rows, i, A_STEP), NULL);
    }
}

/* A worker's word: what is no code of this program's table counts as "other". */
static const char *known_code(const char *code)
{
    const char *known = mlo_status_info(mlo_status_from_code(code))->code;
    return strcmp(known, code) == 0 ? known : "other";
}

static void show_failures(const struct mlo_rows *rows, struct mlo_metrics *m)
{
    struct {
        const char *code;
        double count;
    } sums[CODES_MAX];
    size_t count = 0;
    for (int i = 0; i < mlo_rows_count(rows); i++) {
        const char *code = mlo_rows_text(rows, i, A_CODE);
        size_t at = 0;
        if (!code[0])
            continue;
        code = known_code(code);
        while (at < count && strcmp(sums[at].code, code) != 0)
            at++;
        if (at == CODES_MAX)
            continue;
        if (at == count)
            sums[count++].code = code, sums[at].count = 0;
        sums[at].count += mlo_rows_f64(rows, i, A_COUNT);
    }
    mlo_metrics_family(m, MLO_METRIC_COUNTER, "mlopt_job_failures_total",
                       "Attempts that ended with an error, by its code.");
    for (size_t i = 0; i < count; i++)
        mlo_metrics_value(m, sums[i].count, "code", sums[i].code, NULL);
}

static void show_attempts(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m)
{
    static const struct {
        const char *name, *help;
        int column;
    } costs[] = {
        {"mlopt_job_cpu_seconds_total", "CPU time of attempts.", A_CPU},
        {"mlopt_job_gpu_seconds_total", "GPUs that attempts held, times how long.", A_GPU},
        {"mlopt_job_read_bytes_total", "Inputs that attempts were given.", A_READ},
        {"mlopt_job_written_bytes_total", "What attempts put into the blob store.", A_WRITTEN},
    };
    MLO_UNUSED(s);
    mlo_metrics_family(
        m, MLO_METRIC_COUNTER, "mlopt_job_attempts_total",
        "Attempts that ended, by step and outcome (reused: the derivation was known; lost: the "
        "lease ran out).");
    sum_by(rows, m, A_COUNT, true);
    show_failures(rows, m);
    for (size_t i = 0; i < MLO_COUNT(costs); i++) {
        mlo_metrics_family(m, MLO_METRIC_COUNTER, costs[i].name, costs[i].help);
        sum_by(rows, m, costs[i].column, false);
    }
}

enum { H_NAME, H_STEP, H_BUCKET, H_COUNT, H_SUM };

/* The rows of one histogram follow each other. */
static int show_histogram(struct mlo_service_metrics *s, const struct mlo_rows *rows, int from,
                          struct mlo_metrics *m)
{
    uint64_t counts[BOUNDS_MAX + 1] = {0};
    struct mlo_metrics_histogram h = {.bounds = s->bounds, .count = s->bound_count, .counts = counts};
    const char *name = mlo_rows_text(rows, from, H_NAME), *step = mlo_rows_text(rows, from, H_STEP);
    int next = from;
    for (; next < mlo_rows_count(rows) && strcmp(mlo_rows_text(rows, next, H_NAME), name) == 0 &&
           strcmp(mlo_rows_text(rows, next, H_STEP), step) == 0;
         next++) {
        int64_t bucket = mlo_rows_i64(rows, next, H_BUCKET);
        if (bucket >= 0 && (size_t)bucket <= s->bound_count)
            counts[bucket] += (uint64_t)mlo_rows_i64(rows, next, H_COUNT);
        h.sum += mlo_rows_f64(rows, next, H_SUM);
    }
    if (step[0])
        mlo_metrics_histogram(m, &h, "step", step, NULL);
    else
        mlo_metrics_histogram(m, &h, NULL);
    return next;
}

static void show_histograms(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m)
{
    static const struct {
        const char *name, *metric, *help;
    } families[] = {
        {"recovery", "mlopt_job_recovery_seconds",
         "From the end of a lost lease to the claim of the next attempt, counted when that has ended."},
        {"run", "mlopt_job_run_seconds", "From the claim of an attempt to its end; not of what was reused."},
        {"wait", "mlopt_job_wait_seconds", "From ready to claimed, of attempts that have ended."},
    };
    for (size_t f = 0; f < MLO_COUNT(families); f++) {
        mlo_metrics_family(m, MLO_METRIC_HISTOGRAM, families[f].metric, families[f].help);
        for (int i = 0; i < mlo_rows_count(rows);)
            if (strcmp(mlo_rows_text(rows, i, H_NAME), families[f].name) == 0)
                i = show_histogram(s, rows, i, m);
            else
                i++;
    }
}

/* A sample of each row: its label is column 0. */
static void gauge_by(struct mlo_metrics *m, const struct mlo_rows *rows, const char *label, int column,
                     const char *name, const char *help)
{
    mlo_metrics_family(m, MLO_METRIC_GAUGE, name, help);
    for (int i = 0; i < mlo_rows_count(rows); i++)
        mlo_metrics_value(m, mlo_rows_f64(rows, i, column), label, mlo_rows_text(rows, i, 0), NULL);
}

static void show_workers(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m)
{
    MLO_UNUSED(s);
    gauge_by(m, rows, "state", 1, "mlopt_workers",
             "Workers of the last day by state (lost: not seen for 30 s, and never said goodbye).");
    gauge_by(m, rows, "state", 2, "mlopt_worker_slots", "Their slots: jobs that they take at a time.");
}

/* A family of one sample. */
static void one(struct mlo_metrics *m, enum mlo_metric_type type, const char *name, const char *help,
                double value)
{
    mlo_metrics_family(m, type, name, help);
    mlo_metrics_value(m, value, NULL);
}

static void show_database(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m)
{
    MLO_UNUSED(s);
    one(m, MLO_METRIC_GAUGE, "mlopt_database_size_bytes", "Size of the database on its disk.",
        mlo_rows_f64(rows, 0, 0));
    one(m, MLO_METRIC_GAUGE, "mlopt_database_oldest_transaction_seconds",
        "Age of the oldest open transaction that this server may see (mlopt_database_sees_all).",
        age_or_zero(rows, 0, 1));
    one(m, MLO_METRIC_GAUGE, "mlopt_database_connections", "Connections to the database, of all programs.",
        mlo_rows_f64(rows, 0, 2));
    one(m, MLO_METRIC_GAUGE, "mlopt_database_snapshot_transactions",
        "Transactions begun since the oldest one began that still runs, of all roles: it holds back vacuum.",
        mlo_rows_f64(rows, 0, 3));
    one(m, MLO_METRIC_GAUGE, "mlopt_database_sees_all",
        "1: the server's role has pg_read_all_stats, and sees other roles' transactions.",
        mlo_rows_bool(rows, 0, 4));
}

static void show_tables(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m)
{
    MLO_UNUSED(s);
    gauge_by(m, rows, "table", 1, "mlopt_database_dead_tuples",
             "Rows of a busy table that vacuum has to remove, as PostgreSQL counts them.");
    gauge_by(m, rows, "table", 2, "mlopt_database_live_tuples", "Its rows, as PostgreSQL counts them.");
}

static void show_registry(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m)
{
    MLO_UNUSED(s);
    one(m, MLO_METRIC_COUNTER, "mlopt_promotions_total", "Promotions of releases.", mlo_rows_f64(rows, 0, 0));
    one(m, MLO_METRIC_COUNTER, "mlopt_rollbacks_total", "Rollbacks.", mlo_rows_f64(rows, 0, 1));
    one(m, MLO_METRIC_COUNTER, "mlopt_promotions_refused_total", "Promotions that the gates refused.",
        mlo_rows_f64(rows, 0, 2));
}

static void show_blobs(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m)
{
    MLO_UNUSED(s);
    one(m, MLO_METRIC_GAUGE, "mlopt_blobs", "Blobs whose bytes are there, by the database.",
        mlo_rows_f64(rows, 0, 0));
    one(m, MLO_METRIC_GAUGE, "mlopt_blob_bytes", "Their bytes.", mlo_rows_f64(rows, 0, 1));
}

static void show_outbox(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m)
{
    MLO_UNUSED(s);
    one(m, MLO_METRIC_GAUGE, "mlopt_ledger_pending",
        "Changes of stages that are in the audit log and in no ledger yet.", mlo_rows_f64(rows, 0, 0));
    one(m, MLO_METRIC_GAUGE, "mlopt_webhook_pending", "Deliveries of webhooks that are still to be made.",
        mlo_rows_f64(rows, 0, 1));
    one(m, MLO_METRIC_GAUGE, "mlopt_webhook_oldest_due_seconds",
        "How long the delivery is overdue that is due longest.", age_or_zero(rows, 0, 2));
    one(m, MLO_METRIC_GAUGE, "mlopt_usage_unsettled", "Ended attempts that are in no total yet.",
        mlo_rows_f64(rows, 0, 3));
    one(m, MLO_METRIC_GAUGE, "mlopt_usage_oldest_unsettled_seconds",
        "How long the first of them has ended: workers settle twice a second.", age_or_zero(rows, 0, 4));
    one(m, MLO_METRIC_GAUGE, "mlopt_uploads_open", "Uploads in pieces that were begun and not ended.",
        mlo_rows_f64(rows, 0, 5));
}

enum { D_ID, D_STATE, D_FAILING, D_SUCCEEDED, D_FAILED, D_SKIPPED, D_CANCELLED, D_SUCCESS, D_DUE, D_RUNNING };

static void show_firings(const struct mlo_rows *rows, struct mlo_metrics *m)
{
    static const struct {
        const char *name;
        int column;
    } outcomes[] = {
        {"succeeded", D_SUCCEEDED}, {"failed", D_FAILED}, {"skipped", D_SKIPPED}, {"cancelled", D_CANCELLED}};
    int count = MLO_MIN(mlo_rows_count(rows), SCHEDULES_MAX);
    mlo_metrics_family(m, MLO_METRIC_COUNTER, "mlopt_schedule_firings_total",
                       "Firings of a schedule (its number), by how they ended.");
    for (int i = 0; i < count; i++)
        for (size_t o = 0; o < MLO_COUNT(outcomes); o++)
            mlo_metrics_value(m, mlo_rows_f64(rows, i, outcomes[o].column), "schedule",
                              mlo_rows_text(rows, i, D_ID), "outcome", outcomes[o].name, NULL);
    mlo_metrics_family(m, MLO_METRIC_GAUGE, "mlopt_schedule_last_success_timestamp_seconds",
                       "When a firing of the schedule succeeded last.");
    for (int i = 0; i < count; i++)
        if (!mlo_rows_null(rows, i, D_SUCCESS))
            mlo_metrics_value(m, mlo_rows_f64(rows, i, D_SUCCESS), "schedule", mlo_rows_text(rows, i, D_ID),
                              NULL);
}

static void show_schedules(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m)
{
    double enabled = 0, paused = 0, failing = 0, overdue = 0, running = 0;
    MLO_UNUSED(s);
    for (int i = 0; i < mlo_rows_count(rows); i++) {
        bool on = strcmp(mlo_rows_text(rows, i, D_STATE), "enabled") == 0;
        enabled += on;
        paused += !on;
        failing += mlo_rows_bool(rows, i, D_FAILING);
        overdue = MLO_MAX(overdue, age_or_zero(rows, i, D_DUE));
        running = MLO_MAX(running, age_or_zero(rows, i, D_RUNNING));
    }
    mlo_metrics_family(m, MLO_METRIC_GAUGE, "mlopt_schedules", "Schedules by their state.");
    mlo_metrics_value(m, enabled, "state", "enabled", NULL);
    mlo_metrics_value(m, paused, "state", "paused", NULL);
    one(m, MLO_METRIC_GAUGE, "mlopt_schedules_failing",
        "Schedules whose last firing that measured failed: what a stage holds broke what is expected of it.",
        failing);
    one(m, MLO_METRIC_GAUGE, "mlopt_schedule_overdue_seconds",
        "How long the schedule is overdue that is due longest: servers fire within a second or two.",
        overdue);
    one(m, MLO_METRIC_GAUGE, "mlopt_schedule_running_seconds", "How long the firing runs that runs longest.",
        running);
    show_firings(rows, m);
}

static const struct group {
    const char *name;
    int statement;
    uint32_t min_age_ms;
    void (*show)(struct mlo_service_metrics *s, const struct mlo_rows *rows, struct mlo_metrics *m);
} GROUPS[] = {
    {"jobs", S_JOBS, 1000, show_jobs},
    {"attempts", S_ATTEMPTS, 1000, show_attempts},
    {"histograms", S_HISTOGRAMS, 1000, show_histograms},
    {"workers", S_WORKERS, 1000, show_workers},
    {"database", S_DATABASE, 10000, show_database},
    {"tables", S_TABLES, 10000, show_tables},
    {"registry", S_REGISTRY, 10000, show_registry},
    {"blobs", S_BLOBS, 60000, show_blobs},
    {"outbox", S_OUTBOX, 1000, show_outbox},
    {"schedules", S_SCHEDULES, 5000, show_schedules},
};

/* --- reading ------------------------------------------------------------------------------------------- */

static enum mlo_status read_group(struct mlo_service_metrics *s, struct mlo_db_conn *conn,
                                  const struct group *g, struct mlo_rows *rows, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    if (g->statement == S_JOBS)
        mlo_param_bool(&p, s->projects > 0);
    MLO_TRY(mlo_db_exec_text(conn,
                             "set local statement_timeout = 2000; set local enable_seqscan = off; "
                             "set local max_parallel_workers_per_gather = 0; "
                             "set transaction read only",
                             err));
    MLO_TRY(mlo_db_exec(conn, &MLO_METRICS_SQL[g->statement], &p, rows, err));
out:
    return mlo_db_end(conn, status, err);
}

static enum mlo_status read_bounds(struct mlo_service_metrics *s, struct mlo_db_conn *conn,
                                   struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    if (s->bound_count)
        return MLO_OK;
    enum mlo_status status = mlo_db_exec(conn, &MLO_METRICS_SQL[S_BOUNDS], NULL, &rows, err);
    for (int i = 0; i < MLO_MIN(mlo_rows_count(&rows), BOUNDS_MAX); i++)
        s->bounds[s->bound_count++] = mlo_rows_f64(&rows, i, 0);
    mlo_rows_clear(&rows);
    return status;
}

static bool stale(const struct kept *kept, const struct group *g, uint64_t now)
{
    uint64_t age_ns =
        MLO_MAX((uint64_t)g->min_age_ms * 1000000u, MLO_MIN(SHARE * kept->cost_ns, KEPT_MAX_NS));
    return !kept->taken_ns || now - kept->taken_ns >= age_ns;
}

/* Then nothing can be said, and nothing old is; all is read anew once it answers. */
static void lost(struct mlo_service_metrics *s, const struct mlo_error *err)
{
    mlo_log_error(MLO_LOG_WARN, "metrics: no database", err);
    s->up = false;
    s->down_ns = mlo_clock_ns();
    for (size_t i = 0; i < MLO_COUNT(GROUPS); i++) {
        s->kept[i].there = false;
        s->kept[i].taken_ns = 0;
    }
}

/* MLO_EUNAVAILABLE: the database did not answer. Whatever else fails is the group's. */
static enum mlo_status refresh_group(struct mlo_service_metrics *s, struct mlo_db_conn *conn, size_t i,
                                     struct mlo_error *err)
{
    struct kept *kept = &s->kept[i];
    uint64_t began = mlo_clock_ns();
    enum mlo_status status = read_bounds(s, conn, err);
    if (status == MLO_OK)
        status = read_group(s, conn, &GROUPS[i], &kept->rows, err);
    if (status == MLO_EUNAVAILABLE)
        return status;
    kept->taken_ns = began;
    kept->cost_ns = mlo_clock_ns() - began;
    kept->there = status == MLO_OK;
    if (status != MLO_OK) {
        kept->failures++;
        mlo_log_error(MLO_LOG_WARN, "metrics: a group cannot be read", err);
    }
    return MLO_OK;
}

static void refresh(struct mlo_service_metrics *s)
{
    struct mlo_db_conn *conn = NULL;
    enum mlo_status status = MLO_OK;
    uint64_t began = mlo_clock_ns();
    if (s->down_ns && began - s->down_ns < AGAIN_NS)
        return; /* scrapes that waited for the one that found out do not wait as long each */
    for (size_t i = 0; i < MLO_COUNT(GROUPS) && mlo_clock_ns() - began < REFRESH_NS; i++) {
        struct mlo_error err = {0};
        if (!stale(&s->kept[i], &GROUPS[i], mlo_clock_ns()))
            continue;
        if (!conn)
            status = mlo_db_acquire(s->db, &conn, &err);
        if (status == MLO_OK)
            status = refresh_group(s, conn, i, &err);
        if (status != MLO_OK) {
            lost(s, &err);
            break;
        }
        s->up = true;
        s->down_ns = 0;
    }
    mlo_db_release(conn);
}

enum mlo_status mlo_service_metrics_new(struct mlo_db *db, size_t projects, struct mlo_service_metrics **out,
                                        struct mlo_error *err)
{
    _Static_assert(MLO_COUNT(GROUPS) <= MLO_COUNT(((struct mlo_service_metrics *)0)->kept),
                   "room for all groups");
    /* a hanging database is given up after the statement's two seconds and one more */
    const struct mlo_db_options options = {.application = "mlopt metrics",
                                           .max_connections = 1,
                                           .wait_ms = 1000,
                                           .statement_timeout_ms = 2000,
                                           .answer_timeout_ms = 3000,
                                           .connect_timeout_s = 2};
    struct mlo_service_metrics *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_db_open_like(db, &options, &s->db, err);
    if (status != MLO_OK) {
        free(s);
        return status;
    }
    s->projects = projects;
    *out = s;
    pthread_mutex_init(&s->lock, NULL);
    return MLO_OK;
}

void mlo_service_metrics_free(struct mlo_service_metrics *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < MLO_COUNT(s->kept); i++)
        mlo_rows_clear(&s->kept[i].rows);
    mlo_db_close(s->db);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void mlo_service_metrics_write(struct mlo_service_metrics *s, struct mlo_metrics *m)
{
    pthread_mutex_lock(&s->lock);
    refresh(s);
    for (size_t i = 0; i < MLO_COUNT(GROUPS); i++)
        if (s->kept[i].there)
            GROUPS[i].show(s, &s->kept[i].rows, m);
    one(m, MLO_METRIC_GAUGE, "mlopt_database_up", "Whether the database answered.", s->up);
    mlo_metrics_family(
        m, MLO_METRIC_GAUGE, "mlopt_metrics_read_seconds",
        "What reading a group of metrics from the database took; it is read again after twenty times "
        "that, a minute at most.");
    for (size_t i = 0; i < MLO_COUNT(GROUPS); i++)
        if (s->kept[i].taken_ns)
            mlo_metrics_value(m, (double)s->kept[i].cost_ns / 1e9, "group", GROUPS[i].name, NULL);
    mlo_metrics_family(m, MLO_METRIC_COUNTER, "mlopt_metrics_read_failures_total",
                       "Groups that could not be read: their metrics are missing meanwhile.");
    for (size_t i = 0; i < MLO_COUNT(GROUPS); i++)
        mlo_metrics_value(m, (double)s->kept[i].failures, "group", GROUPS[i].name, NULL);
    pthread_mutex_unlock(&s->lock);
}
