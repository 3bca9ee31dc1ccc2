/* What holds after a schedule, read from the database, the store and the process table. */
#ifndef MLO_TESTS_CAMPAIGN_CHECK_H
#define MLO_TESTS_CAMPAIGN_CHECK_H

#include "registry/fsck.h"
#include "tests/fault/campaign_strike.h"

/* Each counts what must not be there. */
static const struct {
    const char *what, *sql;
} INVARIANTS[] = {
    {"runs are not over", "select count(*) from run where finished_at is null or state not in "
                          "('succeeded', 'failed', 'cancelled')"},
    {"jobs are open after their run",
     "select count(*) from job where state in ('waiting', 'ready', 'running')"},
    {"leases are left", "select count(*) from job where token is not null or lease_until is not null"},
    {"attempts have no end", "select count(*) from attempt where ended_at is null or outcome is null"},
    {"jobs failed with attempts left",
     "select count(*) from job where state = 'failed' and attempts < max_attempts"},
    {"runs failed without a job that did, or without a reason",
     "select count(*) from run r where state = 'failed' and (error is null or not exists "
     "(select from job j where j.run = r.id and j.state = 'failed'))"},
    {"runs succeeded with jobs that did not",
     "select count(*) from run r where state = 'succeeded' and exists "
     "(select from job j where j.run = r.id and j.state not in ('succeeded', 'reused'))"},
    {"jobs have no attempt, or several, that succeeded",
     "select count(*) from job j where state in ('succeeded', 'reused') and 1 <> "
     "(select count(*) from attempt a where a.job = j.id and a.outcome = 'succeeded')"},
    {"unfinished jobs have an attempt that succeeded",
     "select count(*) from job j where state not in ('succeeded', 'reused') and exists "
     "(select from attempt a where a.job = j.id and a.outcome = 'succeeded')"},
    {"measuring jobs have other observations than their result says",
     "select count(*) from job j where kind = 'observe' and state = 'succeeded' and "
     "json_array_length(result::json->'observations') <> (select count(*) from evidence e where e.job_id = "
     "j.id)"},
    {"observations come from jobs that did not succeed",
     "select count(*) from evidence e join job j on j.id = e.job_id where j.state <> 'succeeded'"},
    {"derivations are recorded more or less often than made",
     "select abs(count(distinct j.derivation) - (select count(*) from derivation)) from job j "
     "where j.kind = 'derive' and j.state in ('succeeded', 'reused')"},
    {"derive jobs have not one signed statement",
     "select count(*) from job j where kind = 'derive' and state = 'succeeded' and 1 <> "
     "(select count(*) from attestation a where a.job_id = j.id and a.artifact = j.output)"},
    {"signed statements come from jobs that did not succeed",
     "select count(*) from attestation a join job j on j.id = a.job_id where j.state <> 'succeeded'"},
    {"variants were named twice by a run",
     "select count(*) from (select from variant where run_id is not null group by run_id, name having "
     "count(*) > 1) t"},
    {"variants point elsewhere than their run's last derive step",
     "select count(*) from variant v join job j on j.run = v.run_id and j.position = 1 "
     "where j.output is distinct from v.artifact"},
    {"runs succeeded and named nothing",
     "select count(*) from run r where state = 'succeeded' and not exists (select from variant v "
     "join job j on j.run = r.id and j.position = 1 where v.version_id = r.version and v.artifact = "
     "j.output)"},
    {"runs have gaps in their events", "select count(*) from run r where event_seq <> (select count(*) from "
                                       "run_event e where e.run = r.id) or event_seq <> (select max(seq) "
                                       "from run_event e where e.run = r.id)"},
    {"runs did not tell their end exactly once",
     "select count(*) from run r where 1 <> (select count(*) from run_event e where e.run = r.id and "
     "e.kind = 'run' and e.data::json->>'state' = r.state)"},
    {"runs did not end exactly once in the audit log",
     "select count(*) from run r where 1 <> (select count(*) from audit a, "
     "lateral (select convert_from(a.body, 'UTF8')::json as b) t "
     "where b->>'action' in ('run.finish', 'run.cancel') and b->>'object' = 'run ' || r.id)"},
    {"attempts are counted more or less often than once",
     "select abs((select count(*) from attempt) - (select count(*) from usage_entry) - "
     "(select coalesce(sum(attempts), 0) from usage_month))"},
    {"advisory locks are left", "select count(*) from pg_locks l join pg_database d on d.oid = l.database "
                                "where l.locktype = 'advisory' and d.datname = current_database()"},
    {"connections of workers are left",
     "select count(*) from pg_stat_activity where usename = '" MLO_ROLE_WORKER
     "' and datname = current_database()"},
};

static inline void check_database(struct world *w)
{
    for (size_t i = 0; i < MLO_COUNT(INVARIANTS); i++) {
        int64_t n = count_rows(w->f, INVARIANTS[i].sql);
        if (n != 0)
            fail_msg("%lld %s", (long long)n, INVARIANTS[i].what);
    }
}

/* Whether one of the schedule's faults may end a run with that error. */
static inline bool may_fail_with(const struct world *w, const char *code)
{
    if (strcmp(code, "lease-lost") == 0)
        return true;
    for (int i = 0; i < w->plan->schedule.count; i++)
        if (w->struck[i] && strstr(CAMPAIGN_FAULTS[w->plan->schedule.faults[i].kind].may_fail, code))
            return true;
    return false;
}

static inline PGresult *rows_of(struct world *w, PGconn *pg, const char *sql)
{
    PGresult *r = PQexec(pg, sql);
    MLO_UNUSED(w);
    if (PQresultStatus(r) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(pg));
    return r;
}

static inline void check_reasons(struct world *w, PGconn *pg)
{
    PGresult *r = rows_of(w, pg, "select error::json->>'code', error from mlopt.run where state = 'failed'");
    for (int i = 0; i < PQntuples(r); i++)
        if (!may_fail_with(w, PQgetvalue(r, i, 0)))
            fail_msg("a run failed of none of these faults: %s", PQgetvalue(r, i, 1));
    PQclear(r);
    bool cancels = false;
    for (int i = 0; i < w->plan->schedule.count; i++)
        cancels |= w->struck[i] && w->plan->schedule.faults[i].kind == FAULT_CANCEL;
    r = rows_of(w, pg, "select count(*) from mlopt.run where state = 'cancelled'");
    if (!cancels && strcmp(PQgetvalue(r, 0, 0), "0") != 0)
        fail_msg("%s runs are cancelled, and nobody did it", PQgetvalue(r, 0, 0));
    PQclear(r);
}

/* What a child has done is not done again because PostgreSQL was away for a moment after it. With one run
 * there is one attempt at a time, so that nobody else is hit. */
static inline void check_waste(struct world *w)
{
    const struct campaign_schedule *s = &w->plan->schedule;
    bool behind = s->runs == 1;
    for (int i = 0; i < s->count; i++) {
        const struct campaign_fault *f = &s->faults[i];
        behind = behind && (!w->struck[i] || ((f->kind == FAULT_CUT || f->kind == FAULT_DATABASE) &&
                                              f->state >= STATE_DONE && f->state <= STATE_COMMIT));
    }
    if (behind && count_rows(w->f, "select count(*) from attempt where outcome = 'retried'") > 0)
        fail_msg("an attempt whose child was done was given up for a moment without PostgreSQL");
}

/* Which bytes each derivation made and what was measured: the same as where nothing happened. `calm` is that,
 * written by the first schedule of a lane. */
static inline void check_results(struct world *w, PGconn *pg, char **calm)
{
    static const char *const SQL[] = {
        "select encode(key, 'hex') || ' ' || encode(artifact, 'hex') from mlopt.derivation order by 1",
        "select distinct encode(artifact, 'hex') || ' ' || metric || ' ' || value || ' ' || coalesce(n, 0) "
        "from mlopt.evidence order by 1",
    };
    struct mlo_buf all = MLO_BUF_INIT;
    for (size_t i = 0; i < MLO_COUNT(SQL); i++) {
        PGresult *r = rows_of(w, pg, SQL[i]);
        for (int row = 0; row < PQntuples(r); row++) {
            const char *line = PQgetvalue(r, row, 0);
            if (*calm && !strstr(*calm, line))
                fail_msg("another result than of an undisturbed run: %s", line);
            mlo_buf_printf(&all, "%s\n", line);
        }
        PQclear(r);
    }
    if (!*calm) {
        assert_true(all.len > 0);
        *calm = mlo_buf_take(&all);
    }
    mlo_buf_clear(&all);
}

/* Every row has its bytes, and they are right. What a killed one had written and told nobody of may be left:
 * it is young. */
static inline void check_store(struct world *w)
{
    struct service_fixture *f = w->f;
    const struct mlo_fsck_options options = {.blobs = f->blobs, .bytes = true, .grace_s = 3600};
    json_t *found = NULL;
    assert_mlo_ok(mlo_fsck_run(f->pg->conn, &SYSTEM, &options, NULL, &found, &f->err), &f->err);
    char *problems = json_dumps(json_object_get(found, "problems"), 0);
    if (json_array_size(json_object_get(found, "problems")) > 0)
        fail_msg("the store: %s", problems);
    free(problems);
    json_decref(found);
}

/* f->conn may be one that a fault ended. */
static inline void renew_connection(struct world *w)
{
    struct pg_fixture *pg = w->f->pg;
    mlo_db_release(pg->conn);
    pg->conn = NULL;
    assert_mlo_ok(mlo_db_acquire(pg->server, &pg->conn, &pg->err), &pg->err);
}

static inline void check_histories(struct world *w)
{
    struct service_fixture *f = w->f;
    const int64_t chains[] = {0, f->project};
    for (size_t i = 0; i < MLO_COUNT(chains); i++) {
        struct mlo_audit_result audit;
        assert_mlo_ok(mlo_audit_verify(f->pg->conn, chains[i], NULL, &audit, &f->err), &f->err);
        if (!audit.intact)
            fail_msg("audit chain %lld: %s", (long long)chains[i], audit.problem);
    }
}

static inline void name_process(pid_t pid, void *arg)
{
    char path[40], command[200] = "";
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(command, 1, sizeof command - 1, file) : 0;
    for (size_t i = 0; i + 1 < n; i++)
        command[i] = command[i] ? command[i] : ' ';
    if (file)
        fclose(file);
    mlo_buf_printf(arg, " %d (%s)", (int)pid, command);
}

/* Orphans are this process's: it is their subreaper. */
static inline void check_processes(struct world *w)
{
    struct mlo_buf left = MLO_BUF_INIT;
    pid_t postgres = mlo_embedded_pid(w->f->pg->pg);
    uint64_t until = mlo_clock_ns() + 30 * 1000 * MS_NS; /* a killed one takes a moment to go */
    while (each_below(getpid(), postgres, NULL, NULL) > 0 && mlo_clock_ns() < until) {
        waitpid(-1, NULL, WNOHANG);
        mlo_clock_sleep_ms(5);
    }
    each_below(getpid(), postgres, name_process, &left);
    if (left.len)
        fail_msg("processes are left:%s", mlo_buf_str(&left));
    mlo_buf_clear(&left);
}

static inline void check_world(struct world *w, char **calm)
{
    renew_connection(w);
    check_processes(w);
    if (scratch_left(w->f))
        fail_msg("%d scratch folders are left", scratch_left(w->f));
    check_database(w);
    PGconn *pg = PQconnectdb(w->admin);
    check_reasons(w, pg);
    check_waste(w);
    check_results(w, pg, calm);
    PQfinish(pg);
    check_store(w);
    check_histories(w);
}

#endif
