/* A campaign of random faults on worker processes: SIGKILL at any moment, SIGSTOP past the lease and awake
 * again, SIGTERM, database connections cut. Afterwards every run is complete or honestly failed, each effect
 * is there once, and nothing is left behind. The seed is printed; MLOPT_FAULT_SEED replays its decisions,
 * MLOPT_FAULT_SECONDS makes it longer. */
#include "tests/fault_parts.h"
#include "tests/integration/service/service_fixture.h"

enum { WORKERS = 3, VERSIONS = 4, RUNS = 24, CAMPAIGN_LEASE_MS = 1000 };

enum fault { FAULT_KILL, FAULT_STOP, FAULT_TERM, FAULT_CUT, FAULT_CANCEL, FAULT_COUNT };
static const char *const FAULT_NAMES[] = {"kill", "stop", "term", "cut", "cancel"};

static uint64_t random_state;

static unsigned random_below(unsigned n)
{
    random_state ^= random_state << 13; /* xorshift64 (Marsaglia 2003): the same seed, the same decisions */
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned)((random_state >> 32) % n);
}

static void end_process(pid_t pid, int sig)
{
    int wait_status;
    kill(pid, sig);
    while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
}

/* Half of the workers' connections, by the superuser. */
static void cut_connections(struct service_fixture *f)
{
    char *conninfo = mlo_embedded_conninfo(f->pg->pg, NULL, f->pg->database);
    PGconn *pg = PQconnectdb(conninfo);
    PGresult *result = PQexec(pg, "select pg_terminate_backend(pid) from pg_stat_activity "
                                  "where usename = 'mlopt_worker' and random() < 0.5");
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("cut: %s", PQerrorMessage(pg));
    PQclear(result);
    PQfinish(pg);
    free(conninfo);
}

static void inject(struct service_fixture *f, pid_t *workers, const int64_t *runs, enum fault fault)
{
    pid_t *worker = &workers[random_below(WORKERS)];
    switch (fault) {
    case FAULT_KILL:
        end_process(*worker, SIGKILL);
        *worker = start_worker_process(f, CAMPAIGN_LEASE_MS);
        break;
    case FAULT_STOP:
        kill(*worker, SIGSTOP);
        mlo_clock_sleep_ms(CAMPAIGN_LEASE_MS + random_below(400));
        kill(*worker, SIGCONT);
        break;
    case FAULT_TERM:
        end_process(*worker, SIGTERM);
        *worker = start_worker_process(f, CAMPAIGN_LEASE_MS);
        break;
    case FAULT_CUT:
        cut_connections(f);
        break;
    case FAULT_CANCEL:
    default: {
        struct mlo_error err = {0};
        enum mlo_status status =
            mlo_run_cancel(f->pg->conn, &SYSTEM, runs[random_below(RUNS)], "by the campaign", &err);
        if (status != MLO_OK && status != MLO_ECONFLICT)
            fail_msg("cancel: %s", err.message);
    }
    }
}

static void assert_none(struct service_fixture *f, const char *what, const char *sql)
{
    int64_t n = count_rows(f, sql);
    if (n != 0)
        fail_msg("%lld %s", (long long)n, what);
}

static void check_invariants(struct service_fixture *f)
{
    assert_none(f, "runs are not over", "select count(*) from mlopt.run where finished_at is null");
    assert_none(f, "jobs are open after their run",
                "select count(*) from mlopt.job where state in ('waiting', 'ready', 'running')");
    assert_none(f, "leases are left", "select count(*) from mlopt.job where token is not null");
    assert_none(f, "attempts have no end", "select count(*) from mlopt.attempt where ended_at is null");
    assert_none(f, "runs failed for another reason than lost workers",
                "select count(*) from mlopt.run where state = 'failed' "
                "and error::json->>'code' not in ('lease-lost', 'job-failed')");
    assert_none(f, "jobs failed with attempts left",
                "select count(*) from mlopt.job where state = 'failed' and attempts < max_attempts");
    assert_none(f, "jobs have no attempt, or several, that succeeded",
                "select count(*) from mlopt.job j where state in ('succeeded', 'reused') and 1 <> "
                "(select count(*) from mlopt.attempt a where a.job = j.id and a.outcome = 'succeeded')");
    assert_none(f, "unfinished jobs have an attempt that succeeded",
                "select count(*) from mlopt.job j where state not in ('succeeded', 'reused') and exists "
                "(select from mlopt.attempt a where a.job = j.id and a.outcome = 'succeeded')");
    assert_none(f, "measuring jobs have not two observations",
                "select count(*) from mlopt.job j where kind = 'observe' and state = 'succeeded' and 2 <> "
                "(select count(*) from mlopt.evidence e where e.job_id = j.id)");
    assert_none(f, "observations come from jobs that did not succeed",
                "select count(*) from mlopt.evidence e join mlopt.job j on j.id = e.job_id "
                "where j.state <> 'succeeded'");
    assert_none(f, "derivations are recorded more or less often than made",
                "select abs(count(distinct j.derivation) - (select count(*) from mlopt.derivation)) "
                "from mlopt.job j where j.kind = 'derive' and j.state in ('succeeded', 'reused')");
    assert_none(
        f, "variants point elsewhere than their run's last derive step",
        "select count(*) from mlopt.variant v join mlopt.job j on j.run = v.run_id and j.position = 1 "
        "where j.output is distinct from v.artifact");
    assert_none(f, "runs have gaps in their events",
                "select count(*) from mlopt.run r where event_seq <> "
                "(select count(*) from mlopt.run_event e where e.run = r.id)");
    assert_none(f, "runs did not end exactly once in the audit log",
                "select count(*) from mlopt.run r where 1 <> (select count(*) from mlopt.audit a, "
                "lateral (select convert_from(a.body, 'UTF8')::json as b) t "
                "where b->>'action' in ('run.finish', 'run.cancel') and b->>'object' = 'run ' || r.id)");
    struct mlo_audit_result audit;
    assert_mlo_ok(mlo_audit_verify(f->pg->conn, f->project, NULL, &audit, &f->err), &f->err);
    if (!audit.intact)
        fail_msg("audit chain: %s", audit.problem);
    wait_until(!any_child_alive(f));
    assert_int_equal(scratch_left(f), 0);
}

static void test_campaign__leaves_every_run_complete_or_failed(void **state)
{
    struct service_fixture *f = *state;
    const char *longer = getenv("MLOPT_FAULT_SECONDS");
    int64_t seed = fault_seed(), seconds = 10;
    int64_t versions[VERSIONS], runs[RUNS];
    unsigned injected[FAULT_COUNT] = {0};
    pid_t workers[WORKERS];
    random_state = (uint64_t)seed * 2654435761u + 1;
    if (longer && !mlo_str_to_i64(longer, &seconds))
        fail_msg("MLOPT_FAULT_SECONDS=%s: a number of seconds", longer);
    printf("seed %lld (replay with MLOPT_FAULT_SEED)\n", (long long)seed);
    for (int i = 0; i < VERSIONS; i++) {
        char name[16], orders[256];
        snprintf(name, sizeof name, "m%d", i);
        snprintf(orders, sizeof orders,
                 "optimize.sleep_ms=%u\nquantize.sleep_ms=%u\nevaluate.sleep_ms=%u\nbenchmark.sleep_ms=%u",
                 100 + random_below(300), 100 + random_below(300), random_below(200), random_below(200));
        versions[i] = add_version(f, name, orders);
    }
    for (int i = 0; i < RUNS; i++)
        runs[i] = submit(f, versions[i % VERSIONS], RECIPE_TINY, (int)random_below(3));
    for (int i = 0; i < WORKERS; i++)
        workers[i] = start_worker_process(f, CAMPAIGN_LEASE_MS);
    uint64_t until = mlo_clock_ns() + (uint64_t)seconds * 1000000000ull;
    while (mlo_clock_ns() < until) {
        mlo_clock_sleep_ms(50 + random_below(350));
        /* cancelling is rare: else nothing is left to be hurt */
        unsigned draw = random_below(40);
        enum fault fault = draw == 0 ? FAULT_CANCEL : (enum fault)(draw % (FAULT_COUNT - 1));
        inject(f, workers, runs, fault);
        injected[fault]++;
    }
    for (int i = 0; i < RUNS; i++)
        wait_run(f, runs[i]);
    for (int i = 0; i < WORKERS; i++)
        end_process(workers[i], SIGTERM);
    for (int i = 0; i < FAULT_COUNT; i++)
        printf("%-8s %u\n", FAULT_NAMES[i], injected[i]);
    static const char *const outcomes[] = {"succeeded", "retried", "lost", "returned", "cancelled", "failed"};
    for (size_t i = 0; i < MLO_COUNT(outcomes); i++) {
        char sql[128];
        snprintf(sql, sizeof sql, "select count(*) from mlopt.attempt where outcome = '%s'", outcomes[i]);
        printf("attempts %-10s %lld\n", outcomes[i], (long long)count_rows(f, sql));
    }
    check_invariants(f);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_campaign__leaves_every_run_complete_or_failed, service_setup,
                                        service_teardown),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
