/* Several completions and heartbeats in one call: each has its own answer, and none is harmed by another. */
#include "pipeline/service/worker_impl.h"
#include "tests/integration/service/service_fixture.h"

#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define RECIPE_THREE                                                                                         \
    "name: three\ntarget: any\ndata: {evaluate: p/test}\nsteps:\n  - evaluate: {metrics: [top1]}\n"          \
    "  - evaluate: {metrics: [mse]}\n  - evaluate: {metrics: [mae]}\n"

enum { MANY = 24 };

static const struct mlo_claimer CLAIMER = {"test-worker", "{any,cpu}", LEASE_MS};

static void claim_all(struct service_fixture *f, struct mlo_job *jobs, int wanted)
{
    int count = 0;
    assert_mlo_ok(mlo_queue_claim(f->worker, &CLAIMER, jobs, wanted, &count, &f->err), &f->err);
    assert_int_equal(count, wanted);
}

static void clear_all(struct mlo_job *jobs, int count)
{
    for (int i = 0; i < count; i++)
        mlo_job_clear(&jobs[i]);
}

static void spoil(struct mlo_job *job)
{
    job->token[0] = job->token[0] == '0' ? '1' : '0';
}

static void run_as_owner(struct service_fixture *f, const char *sql)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &f->err), &f->err);
    mlo_db_release(conn);
}

static int64_t count_of(struct service_fixture *f, const char *sql_before, int64_t id)
{
    char sql[320];
    snprintf(sql, sizeof sql, "%s%lld", sql_before, (long long)id);
    return count_rows(f, sql);
}

/* What holds however jobs ended: events without gaps, no token left, what ended is counted once. */
static void assert_whole(struct service_fixture *f)
{
    struct mlo_audit_result audit;
    assert_int_equal(count_rows(f,
                                "select count(*) from mlopt.run r where event_seq <> (select count(*) from "
                                "mlopt.run_event e where e.run = r.id) or event_seq <> (select max(seq) "
                                "from mlopt.run_event e where e.run = r.id)"),
                     0);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt where ended_at is not null") -
                         count_rows(f, "select count(*) from mlopt.usage_entry"),
                     0);
    assert_mlo_ok(mlo_audit_verify(f->pg->conn, f->project, NULL, &audit, &f->err), &f->err);
    assert_true(audit.intact);
}

static void test_together__a_bad_token_harms_no_other(void **state)
{
    struct service_fixture *f = *state;
    enum { GOOD, STALE, CANCELLED, GOOD_TOO, JOBS };
    static const enum mlo_status wanted[JOBS] = {MLO_OK, MLO_ELEASE, MLO_ECANCELLED, MLO_OK};
    static const char *const states[JOBS] = {"succeeded", "running", "cancelled", "succeeded"};
    const struct mlo_completion nothing = {.cost = {.cpu_s = 1.5, .read_bytes = 7, .written_bytes = 9}};
    struct mlo_finished all[JOBS];
    struct mlo_job jobs[JOBS];
    int64_t runs[JOBS];
    for (int i = 0; i < JOBS; i++)
        runs[i] = submit(f, f->version, RECIPE_OBSERVE, 0);
    claim_all(f, jobs, JOBS);
    spoil(&jobs[STALE]);
    assert_mlo_ok(mlo_run_cancel(f->pg->conn, &SYSTEM, runs[CANCELLED], "", &f->err), &f->err);
    for (int i = 0; i < JOBS; i++)
        all[i] = (struct mlo_finished){.job = &jobs[i], .what = &nothing};
    mlo_queue_complete_all(f->worker, all, JOBS);
    for (int i = 0; i < JOBS; i++) {
        assert_mlo_status(all[i].status, wanted[i], &all[i].error);
        assert_int_equal(all[i].error.status, wanted[i]);
        assert_run(f, runs[i], -1, "state", states[i]);
    }
    assert_int_equal(count_rows(f,
                                "select count(*) from mlopt.usage_entry where cpu_s = 1.5 and read_bytes = "
                                "7 and written_bytes = 9 and not failed"),
                     2);
    assert_whole(f);
    mlo_queue_complete_all(f->worker, all, JOBS); /* the effect is there once */
    for (int i = 0; i < JOBS; i++)
        assert_mlo_status(all[i].status, i == CANCELLED ? MLO_ECANCELLED : MLO_ELEASE, &all[i].error);
    assert_whole(f);
    clear_all(jobs, JOBS);
}

/* A derive job's artifact of this text. */
static void make(struct service_fixture *f, const char *text, struct mlo_completion *out)
{
    *out = (struct mlo_completion){.has_artifact = true, .size_bytes = strlen(text)};
    assert_mlo_ok(mlo_blob_put_bytes(f->blobs, text, strlen(text), &out->artifact, &f->err), &f->err);
}

static void test_together__what_contradicts_is_refused_alone(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_completion made[2];
    struct mlo_finished all[2];
    struct mlo_job jobs[2];
    submit(f, f->version, RECIPE_DERIVE, 0);
    claim_all(f, jobs, 1);
    make(f, "made", &made[0]);
    assert_mlo_ok(mlo_queue_complete(f->worker, &jobs[0], &made[0], &f->err), &f->err);
    mlo_job_clear(&jobs[0]);
    int64_t again = submit(f, f->version, RECIPE_DERIVE, 0),
            other = submit(f, add_version(f, "n", "another"), RECIPE_DERIVE, 0);
    claim_all(f, jobs, 2);
    make(f, "made otherwise", &made[0]);
    make(f, "something else", &made[1]);
    for (int i = 0; i < 2; i++)
        all[i] = (struct mlo_finished){.job = &jobs[i], .what = &made[i]};
    assert_int_equal(jobs[0].run, again);
    mlo_queue_complete_all(f->worker, all, 2);
    assert_mlo_status(all[0].status, MLO_ECONFLICT, &all[0].error);
    assert_non_null(strstr(all[0].error.message, "not reproducible"));
    assert_mlo_ok(all[1].status, &all[1].error);
    assert_run(f, again, -1, "state", "running");
    assert_run(f, other, -1, "state", "succeeded");
    assert_int_equal(count_rows(f, "select count(*) from mlopt.derivation"), 2);
    assert_int_equal(count_of(f, "select count(*) from mlopt.lineage_edge where run_id = ", again), 0);
    assert_whole(f);
    clear_all(jobs, 2);
}

static void test_together__what_was_removed_is_refused_alone(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_completion made[2];
    struct mlo_finished all[2];
    struct mlo_job jobs[2];
    int64_t removed = submit(f, f->version, RECIPE_DERIVE, 0),
            other = submit(f, add_version(f, "n", "another"), RECIPE_DERIVE, 0);
    claim_all(f, jobs, 2);
    make(f, "made", &made[0]);
    make(f, "something else", &made[1]);
    char sql[256], hex[MLO_DIGEST_TEXT_SIZE];
    snprintf(sql, sizeof sql,
             "insert into blob (digest, size, removed_at, removed_why) values ('\\x%s', 4, now(), 'orphan')",
             mlo_digest_hex(&made[0].artifact, hex));
    run_as_owner(f, sql);
    for (int i = 0; i < 2; i++)
        all[i] = (struct mlo_finished){.job = &jobs[i], .what = &made[i]};
    mlo_queue_complete_all(f->worker, all, 2); /* no store to look into: they may be gone */
    assert_mlo_status(all[0].status, MLO_EIO, &all[0].error);
    assert_mlo_ok(all[1].status, &all[1].error);
    assert_run(f, removed, -1, "state", "running");
    assert_run(f, other, -1, "state", "succeeded");
    made[0].blobs = f->blobs; /* they are there */
    mlo_queue_complete_all(f->worker, all, 1);
    assert_mlo_ok(all[0].status, &all[0].error);
    assert_run(f, removed, -1, "state", "succeeded");
    assert_whole(f);
    clear_all(jobs, 2);
}

static void test_together__what_was_derived_leads_on(void **state)
{
    struct service_fixture *f = *state;
    enum { JOBS = 3 };
    struct mlo_completion made[JOBS];
    struct mlo_finished all[JOBS];
    struct mlo_job jobs[JOBS];
    static const char *const texts[JOBS] = {"one", "two",
                                            "two"}; /* two derivations may make the same bytes */
    for (int i = 0; i < JOBS; i++) {
        char name[16], orders[16];
        snprintf(name, sizeof name, "v%d", i);
        snprintf(orders, sizeof orders, "n=%d", i);
        submit(f, add_version(f, name, orders), RECIPE_TINY, 0);
    }
    for (int step = 0; step < 2; step++) {
        claim_all(f, jobs, JOBS);
        for (int i = 0; i < JOBS; i++) {
            char text[32];
            snprintf(text, sizeof text, "%s %d", step ? texts[i] : "first", step ? 0 : i);
            make(f, text, &made[i]);
            made[i].envelope = "{\"signed\":true}";
            made[i].signer = "ed25519:0123456789012345678901234567890123456789012345678901234567890123";
            all[i] = (struct mlo_finished){.job = &jobs[i], .what = &made[i]};
            assert_true(jobs[i].derive);
        }
        mlo_queue_complete_all(f->worker, all, JOBS);
        for (int i = 0; i < JOBS; i++) {
            char sql[400], hex[MLO_DIGEST_TEXT_SIZE], key[MLO_DIGEST_TEXT_SIZE];
            assert_mlo_ok(all[i].status, &all[i].error);
            /* what follows works on what was made, and its key is known unless it observes */
            snprintf(sql, sizeof sql,
                     "select count(*) from mlopt.job where run = %lld and position = %d and state = 'ready' "
                     "and input = '\\x%s' and (derivation is null) = (kind = 'observe')",
                     (long long)jobs[i].run, step + 1, mlo_digest_hex(&made[i].artifact, hex));
            assert_int_equal(count_rows(f, sql), 1);
            snprintf(
                sql, sizeof sql,
                "select count(*) from mlopt.derivation d join mlopt.attestation a on a.derivation = d.key "
                "join mlopt.lineage_edge l on l.derivation = d.key and l.kind = 'derived-from' "
                "where d.key = '\\x%s' and d.artifact = '\\x%s' and a.job_id = %lld",
                mlo_digest_hex(&jobs[i].key, key), hex, (long long)jobs[i].id);
            assert_int_equal(count_rows(f, sql), 1);
        }
        clear_all(jobs, JOBS);
    }
    assert_int_equal(count_rows(f, "select count(*) from mlopt.variant where name = 'tiny'"), JOBS);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.audit where position('variant.name' in "
                                   "convert_from(body, 'UTF8')) > 0"),
                     JOBS);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.lineage_edge where kind = 'calibrated-with'"),
                     2); /* of the same bytes in one project once */
    assert_whole(f);
}

/* Derive jobs as workers finish them: each with what was read of its artifact. The whole of it is one
 * commit, in the order of the blobs; one whose reading is of bytes that nobody has fails alone. */
static void test_together__what_was_read_is_shared(void **state)
{
    struct service_fixture *f = *state;
    enum { JOBS = 4, WRONG = 2 };
    struct mlo_completion made[JOBS];
    struct mlo_finished all[JOBS];
    struct mlo_job jobs[JOBS];
    json_t *document = json_pack("{s:[],s:[]}", "inputs", "outputs");
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < JOBS; i++) {
            char name[16], text[32];
            snprintf(name, sizeof name, "r%d-%d", round, i);
            snprintf(text, sizeof text, "n=%d-%d", round, i);
            submit(f, add_version(f, name, text), RECIPE_DERIVE, 0);
        }
        claim_all(f, jobs, JOBS);
        for (int i = 0; i < JOBS; i++) {
            char text[32];
            snprintf(text, sizeof text, "made %d %d", round, i);
            make(f, text, &made[i]);
            made[i].signatures[0] = (struct mlo_signature_reading){
                .blob = made[i].artifact, .document = document, .worker = "w", .job_id = jobs[i].id};
            made[i].signatures[1] = made[i].signatures[0];
            made[i].signatures[1].blob = jobs[i].source;
            made[i].signature_count = 2;
            if (round && i == WRONG)
                memset(made[i].signatures[1].blob.bytes, 0x5a, MLO_DIGEST_SIZE);
            all[i] = (struct mlo_finished){.job = &jobs[i], .what = &made[i]};
            assert_true(mlo_queue_complete_shares(&jobs[i], &made[i]));
        }
        mlo_queue_complete_all(f->worker, all, JOBS);
        if (round == 0) {
            assert_int_equal(
                count_rows(f, "select count(distinct xmin::text) from mlopt.job where state = 'succeeded'"),
                1);
            assert_int_equal(count_rows(f, "select count(distinct xmin::text) from mlopt.signature"), 1);
            assert_int_equal(count_rows(f, "select count(*) from (select id, row_number() over (order by "
                                           "blob) as k, row_number() over (order by id) as n from "
                                           "mlopt.signature) s where k = n"),
                             2 * JOBS);
        }
        for (int i = 0; i < JOBS; i++)
            if (!round || i != WRONG)
                assert_mlo_ok(all[i].status, &all[i].error);
        if (round == 0)
            clear_all(jobs, JOBS);
    }
    assert_int_not_equal(all[WRONG].status, MLO_OK);
    assert_int_equal(all[WRONG].error.status, all[WRONG].status);
    assert_run(f, jobs[WRONG].run, -1, "state", "running");
    assert_int_equal(count_rows(f, "select count(*) from mlopt.signature"), 2 * (2 * JOBS - 1));
    assert_int_equal(count_rows(f, "select count(*) from mlopt.run where state = 'succeeded'"), 2 * JOBS - 1);
    json_t *seen = json_pack("[{}]"); /* what was observed has a transaction of its own */
    made[WRONG].observations = seen;
    assert_false(mlo_queue_complete_shares(&jobs[WRONG], &made[WRONG]));
    assert_whole(f);
    json_decref(seen);
    json_decref(document);
    clear_all(jobs, JOBS);
}

struct side {
    struct service_fixture *f;
    struct mlo_finished all[MANY];
    size_t count;
    struct mlo_db *db;
};

static void *complete_side(void *arg)
{
    struct side *side = arg;
    mlo_queue_complete_all(side->db, side->all, side->count);
    return NULL;
}

/* Three workers finish the jobs of the same runs at once, each in another order: nobody stands in another's
 * way for good, and each run ends once. */
static void test_together__at_once_on_the_same_runs(void **state)
{
    struct service_fixture *f = *state;
    enum { RUNS = MANY / 3, SIDES = 3 };
    const struct mlo_completion nothing = {.has_artifact = false};
    struct mlo_job jobs[MANY];
    struct side sides[SIDES] = {{.f = f}};
    pthread_t threads[SIDES];
    for (int i = 0; i < RUNS; i++)
        submit(f, f->version, RECIPE_THREE, 0);
    /* a planner may make more than chains */
    run_as_owner(f, "delete from job_dep; update job j set state = 'ready', input = r.source from run r "
                    "where r.id = j.run");
    claim_all(f, jobs, MANY);
    for (int i = 0; i < MANY; i++) {
        int at = i % 2 ? i : MANY - 2 - i;
        struct side *side = &sides[jobs[at].position];
        side->db = f->worker;
        side->all[side->count++] = (struct mlo_finished){.job = &jobs[at], .what = &nothing};
    }
    size_t taken = 0;
    for (int i = 0; i < SIDES; i++)
        taken += sides[i].count;
    assert_int_equal(taken, MANY);
    for (int i = 0; i < SIDES; i++)
        pthread_create(&threads[i], NULL, complete_side, &sides[i]);
    for (int i = 0; i < SIDES; i++)
        pthread_join(threads[i], NULL);
    int64_t done = 0;
    for (int i = 0; i < SIDES; i++)
        for (size_t k = 0; k < sides[i].count; k++)
            done += sides[i].all[k].status == MLO_OK;
    assert_int_equal(count_rows(f, "select count(*) from mlopt.job where state = 'succeeded'"), done);
    assert_int_equal(done, MANY);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.run where state = 'succeeded'"), RUNS);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.audit where position('run.finish' in "
                                   "convert_from(body, 'UTF8')) > 0"),
                     RUNS);
    assert_whole(f);
    clear_all(jobs, MANY);
}

struct slot {
    struct mlo_together *together;
    struct mlo_db *db;
    struct mlo_job *job;
    enum mlo_status status;
    struct mlo_error error;
};

static void *complete_slot(void *arg)
{
    struct slot *slot = arg;
    const struct mlo_completion nothing = {.has_artifact = false};
    slot->status = mlo_together_complete(slot->together, slot->db, slot->job, &nothing, &slot->error);
    return NULL;
}

static size_t waiting(struct mlo_together *together, bool *sending)
{
    pthread_mutex_lock(&together->lock);
    size_t count = together->count;
    *sending = together->sending;
    pthread_mutex_unlock(&together->lock);
    return count;
}

static void test_together__slots_share_the_call_after_the_one_under_way(void **state)
{
    struct service_fixture *f = *state;
    enum { SLOTS = 6, STALE = 4 };
    struct mlo_together together;
    struct mlo_job jobs[SLOTS];
    struct slot slots[SLOTS];
    pthread_t threads[SLOTS];
    struct mlo_db_conn *holder;
    bool sending = false;
    char sql[96];
    mlo_together_init(&together);
    for (int i = 0; i < SLOTS; i++)
        submit(f, f->version, RECIPE_OBSERVE, 0);
    claim_all(f, jobs, SLOTS);
    spoil(&jobs[STALE]);
    snprintf(sql, sizeof sql, "begin; select from job where id = %lld for update", (long long)jobs[0].id);
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &holder, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(holder, sql, &f->err), &f->err);
    for (int i = 0; i < SLOTS; i++) {
        slots[i] = (struct slot){.together = &together, .db = f->worker, .job = &jobs[i]};
        pthread_create(&threads[i], NULL, complete_slot, &slots[i]);
        if (i == 0)
            wait_until((waiting(&together, &sending), sending)); /* it waits for the row */
    }
    wait_until(waiting(&together, &sending) == SLOTS - 1);
    assert_mlo_ok(mlo_db_exec_text(holder, "rollback", &f->err), &f->err);
    mlo_db_release(holder);
    for (int i = 0; i < SLOTS; i++) {
        pthread_join(threads[i], NULL);
        assert_mlo_status(slots[i].status, i == STALE ? MLO_ELEASE : MLO_OK, &slots[i].error);
    }
    assert_int_equal(together.calls, 2);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.run where state = 'succeeded'"), SLOTS - 1);
    /* which is one commit */
    assert_int_equal(
        count_rows(f, "select count(distinct xmin::text) from mlopt.job where state = 'succeeded'"), 2);
    assert_whole(f);
    mlo_together_clear(&together);
    clear_all(jobs, SLOTS);
}

/* The database loses the worker between the call and its COMMIT: nothing of it stays, and it can be told
 * again. */
static void test_together__a_crash_before_the_commit_leaves_nothing(void **state)
{
    struct service_fixture *f = *state;
    const struct mlo_completion nothing = {.has_artifact = false};
    struct mlo_db_conn *conn;
    struct mlo_job jobs[2];
    struct mlo_finished all[2];
    char sql[1024];
    for (int i = 0; i < 2; i++)
        submit(f, f->version, RECIPE_OBSERVE, 0);
    claim_all(f, jobs, 2);
    snprintf(
        sql, sizeof sql,
        "begin; do $$ begin if (select count(*) from queue_complete(array[%lld, %lld], "
        "array['%s', '%s']::uuid[], array['succeeded', 'succeeded'], array[null, null]::bytea[], "
        "array['{}', '{}'], array[0, 0]::float8[], array[0, 0]::bigint[], array[0, 0]::bigint[], "
        "array[0, 0]::bigint[], array[null, null]::bytea[], array[null, null]::bytea[], "
        "array[null, null]::text[], array[null, null]::text[], array[null, null]::bytea[], "
        "array[null, null]::bytea[], array[null, null]::text[], array[null, null]::text[], "
        "array[null, null]::text[], array[null, null]::bytea[]) where verdict = 'done' and over) <> 2 then "
        "raise exception 'it was not done'; end if; end $$",
        (long long)jobs[0].id, (long long)jobs[1].id, jobs[0].token, jobs[1].token);
    assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &f->err), &f->err);
    assert_int_not_equal(mlo_db_exec_text(conn, "select pg_terminate_backend(pg_backend_pid())", &f->err),
                         MLO_OK);
    mlo_db_release(conn);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.job where state = 'running'"), 2);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt where ended_at is not null"), 0);
    assert_whole(f);
    for (int i = 0; i < 2; i++)
        all[i] = (struct mlo_finished){.job = &jobs[i], .what = &nothing};
    mlo_queue_complete_all(f->worker, all, 2);
    for (int i = 0; i < 2; i++)
        assert_mlo_ok(all[i].status, &all[i].error);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.run where state = 'succeeded'"), 2);
    assert_whole(f);
    clear_all(jobs, 2);
}

/* A host that ends each connection as soon as it is made, and counts them. */
struct hangup {
    int listener;
    unsigned port;
    atomic_uint connections;
    pthread_t thread;
};

static void *hang_up(void *arg)
{
    struct hangup *host = arg;
    for (int fd; (fd = accept(host->listener, NULL, NULL)) >= 0; close(fd))
        atomic_fetch_add(&host->connections, 1);
    return NULL;
}

static void hangup_start(struct hangup *host)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    *host = (struct hangup){.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(bind(host->listener, (struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(host->listener, 64), 0);
    assert_int_equal(getsockname(host->listener, (struct sockaddr *)&at, &size), 0);
    host->port = ntohs(at.sin_port);
    pthread_create(&host->thread, NULL, hang_up, host);
}

static void hangup_stop(struct hangup *host)
{
    shutdown(host->listener, SHUT_RDWR);
    pthread_join(host->thread, NULL);
    close(host->listener);
}

/* A database that is away is asked once for all of them, not once for each while others wait. */
static void test_together__a_database_that_is_away_is_asked_once(void **state)
{
    struct service_fixture *f = *state;
    enum { JOBS = 6 };
    const struct mlo_completion nothing = {.has_artifact = false};
    struct hangup host;
    struct mlo_db *away;
    struct mlo_job jobs[JOBS];
    struct mlo_finished all[JOBS];
    char conninfo[96];
    for (int i = 0; i < JOBS; i++)
        submit(f, f->version, RECIPE_OBSERVE, 0);
    claim_all(f, jobs, JOBS);
    for (int i = 0; i < JOBS; i++)
        all[i] = (struct mlo_finished){.job = &jobs[i], .what = &nothing};
    hangup_start(&host);
    snprintf(conninfo, sizeof conninfo, "host=127.0.0.1 port=%u sslmode=disable gssencmode=disable dbname=x",
             host.port);
    const struct mlo_db_options how = {.conninfo = conninfo, .max_connections = 2};
    assert_mlo_ok(mlo_db_open(&how, &away, &f->err), &f->err);
    mlo_queue_complete_all(away, all, 1);
    assert_mlo_status(all[0].status, MLO_EUNAVAILABLE, &all[0].error);
    unsigned once = atomic_load(&host.connections);
    mlo_queue_complete_all(away, all, JOBS);
    assert_int_equal(atomic_load(&host.connections), 2 * once);
    for (int i = 0; i < JOBS; i++) {
        assert_mlo_status(all[i].status, MLO_EUNAVAILABLE, &all[i].error);
        assert_int_equal(all[i].error.status, MLO_EUNAVAILABLE);
    }
    mlo_db_close(away);
    hangup_stop(&host);
    mlo_queue_complete_all(f->worker, all, JOBS); /* it is back */
    for (int i = 0; i < JOBS; i++)
        assert_mlo_ok(all[i].status, &all[i].error);
    assert_whole(f);
    clear_all(jobs, JOBS);
}

static void test_together__beats_answer_for_each(void **state)
{
    struct service_fixture *f = *state;
    enum { MINE, STALE, CANCELLED, JOBS };
    static const enum mlo_status wanted[JOBS] = {MLO_OK, MLO_ELEASE, MLO_ECANCELLED};
    struct mlo_beat beats[JOBS];
    struct mlo_job jobs[JOBS];
    for (int i = 0; i < JOBS; i++)
        submit(f, f->version, RECIPE_OBSERVE, 0);
    claim_all(f, jobs, JOBS);
    end_leases(f);
    assert_mlo_ok(mlo_run_cancel(f->pg->conn, &SYSTEM, jobs[CANCELLED].run, "", &f->err), &f->err);
    spoil(&jobs[STALE]);
    for (int i = 0; i < JOBS; i++) {
        beats[i].job = jobs[i].id;
        snprintf(beats[i].token, sizeof beats[i].token, "%s", jobs[i].token);
    }
    mlo_queue_beat_all(f->worker, beats, JOBS, LEASE_MS);
    for (int i = 0; i < JOBS; i++)
        assert_mlo_status(beats[i].status, wanted[i], &beats[i].error);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.job where lease_until > now()"), 1);
    assert_int_equal(
        count_of(f, "select count(*) from mlopt.job where lease_until > now() and id = ", jobs[MINE].id), 1);
    clear_all(jobs, JOBS);
}

/* Ready jobs of a target that nobody offers do not come into a claim's way, nor between its own. */
static void test_claim__sees_past_what_it_does_not_offer(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job jobs[2];
    for (int i = 0; i < 3; i++)
        submit(f, f->version, RECIPE_OBSERVE, i == 1 ? 5 : 0);
    run_as_owner(f, "update job set target = 'cuda:sm90' where run = (select min(id) from run); "
                    "update job set target = 'cpu:never' where priority = 5");
    int64_t any = submit(f, f->version, RECIPE_OBSERVE, 9);
    run_as_owner(f, "update job set target = 'cpu' where priority = 9");
    claim_all(f, jobs, 2); /* by priority, over two targets */
    assert_int_equal(jobs[1].run, any);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.job where state = 'ready'"), 2);
    clear_all(jobs, 2);
}

/* What an attempt used is counted where it ends, once: the worker's role writes no accounts, and who ends an
 * attempt again, or changes it afterwards, adds nothing. */
static void test_usage__is_counted_at_the_end_and_once(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_job job;
    static const char *const refused[] = {
        "insert into usage_entry default values", "insert into metric_entry default values",
        "insert into attempt (job, number, token, worker) select id, 9, gen_random_uuid(), 'x' from job"};
    static const char *const accepted[] = {
        "update attempt set phases = '[]'",
        "update attempt set ended_at = now(), outcome = 'failed', cpu_s = 2",
        "update attempt set ended_at = now(), cpu_s = 3", "update attempt set phases = '[1]', cpu_s = 4"};
    submit(f, f->version, RECIPE_OBSERVE, 0);
    claim_all(f, &job, 1);
    for (size_t i = 0; i < MLO_COUNT(refused) + MLO_COUNT(accepted); i++) {
        struct mlo_db_conn *conn;
        struct mlo_error err = {0};
        bool refuse = i < MLO_COUNT(refused);
        const char *sql = refuse ? refused[i] : accepted[i - MLO_COUNT(refused)];
        assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &err), &err);
        enum mlo_status status = mlo_db_exec_text(conn, sql, &err);
        mlo_db_release(conn);
        if (status != (refuse ? MLO_EFORBIDDEN : MLO_OK))
            fail_msg("%srefused: %s (%s)", refuse ? "not " : "", sql, err.message);
    }
    assert_int_equal(count_rows(f, "select count(*) from mlopt.usage_entry where cpu_s = 2 and failed"), 1);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.usage_entry"), 1);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.metric_entry"), 1);
    mlo_job_clear(&job);
}

static void test_array__arrives_as_it_was(void **state)
{
    struct service_fixture *f = *state;
    static const struct mlo_sql echo = {
        "test_array_echo",
        "select array_to_string($1::text[], '|', 'NULL'), array_to_string($2::bigint[], '|'), "
        "array_to_string($3::float8[], '|', 'NULL'), array_to_string($4::uuid[], '|', 'NULL'), "
        "encode(($5::bytea[])[1], 'hex'), ($5::bytea[])[2] is null, cardinality($6::text[])",
        6};
    static const char uuid[] = "01234567-89ab-cdef-0123-456789abcdef";
    struct mlo_array arrays[6] = {MLO_ARRAY_INIT};
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest digest;
    char hex[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_of("x", 1, &digest);
    mlo_array_text(&arrays[0], "a \"b\" {c},\\");
    mlo_array_text(&arrays[0], NULL);
    mlo_array_text(&arrays[0], "");
    mlo_array_i64(&arrays[1], INT64_MIN);
    mlo_array_i64(&arrays[1], 258);
    mlo_array_f64(&arrays[2], -0.125);
    mlo_array_f64(&arrays[2], 0.0 / 0.0);
    mlo_array_uuid(&arrays[3], uuid);
    mlo_array_uuid(&arrays[3], "01234567-89ab-cdef-0123-456789abcdef0");
    mlo_array_uuid(&arrays[3], "none");
    mlo_array_digest(&arrays[4], &digest);
    mlo_array_digest(&arrays[4], NULL);
    for (int i = 0; i < 6; i++)
        assert_mlo_ok(mlo_param_array(&p, &arrays[i], &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec(f->pg->conn, &echo, &p, &rows, &f->err), &f->err);
    assert_string_equal(mlo_rows_text(&rows, 0, 0), "a \"b\" {c},\\|NULL|");
    assert_string_equal(mlo_rows_text(&rows, 0, 1), "-9223372036854775808|258");
    assert_string_equal(mlo_rows_text(&rows, 0, 2), "-0.125|NULL");
    assert_string_equal(mlo_rows_text(&rows, 0, 3), "01234567-89ab-cdef-0123-456789abcdef|NULL|NULL");
    assert_string_equal(mlo_rows_text(&rows, 0, 4), mlo_digest_hex(&digest, hex));
    assert_true(mlo_rows_bool(&rows, 0, 5));
    assert_int_equal(mlo_rows_i64(&rows, 0, 6), 0);
    mlo_rows_clear(&rows);
    for (int i = 0; i < 6; i++)
        mlo_array_clear(&arrays[i]);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_together__a_bad_token_harms_no_other),
        SERVICE_TEST(test_together__what_contradicts_is_refused_alone),
        SERVICE_TEST(test_together__what_was_removed_is_refused_alone),
        SERVICE_TEST(test_together__what_was_derived_leads_on),
        SERVICE_TEST(test_together__what_was_read_is_shared),
        SERVICE_TEST(test_together__at_once_on_the_same_runs),
        SERVICE_TEST(test_together__slots_share_the_call_after_the_one_under_way),
        SERVICE_TEST(test_together__a_crash_before_the_commit_leaves_nothing),
        SERVICE_TEST(test_together__a_database_that_is_away_is_asked_once),
        SERVICE_TEST(test_together__beats_answer_for_each),
        SERVICE_TEST(test_claim__sees_past_what_it_does_not_offer),
        SERVICE_TEST(test_usage__is_counted_at_the_end_and_once),
        SERVICE_TEST(test_array__arrives_as_it_was),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
