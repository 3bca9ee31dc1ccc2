/* Which jobs a claim takes (migrations/0030_kinds.sql): those that a look at every job would take, with as
 * many looks as there are kinds of needs. */
#include "migrations/migrations.h"
#include "tests/integration/service/service_fixture.h"

static void run_sql(struct service_fixture *f, const char *sql)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &f->err), &f->err);
    mlo_db_release(conn);
}

/* The claim of 0029, which looks at each job, by another name: what the one of today is to choose. */
static void create_reference(struct service_fixture *f)
{
    static const char head[] = "CREATE FUNCTION queue_claim(", tail[] = "END $$;";
    struct mlo_buf sql = MLO_BUF_INIT;
    size_t count;
    const struct mlo_migration *set = mlo_migrations(&count);
    const char *from = NULL, *to;
    for (size_t i = 0; i < count; i++)
        if (set[i].number == 29)
            from = strstr(set[i].text, head);
    assert_non_null(from);
    to = strstr(from, tail);
    assert_non_null(to);
    mlo_buf_puts(&sql, "CREATE FUNCTION claim_by_job(");
    mlo_buf_append(&sql, from + strlen(head), (size_t)(to - from) - strlen(head) + strlen(tail));
    run_sql(f, mlo_buf_str(&sql));
    mlo_buf_clear(&sql);
}

/* Rounds of random jobs of four projects and a random worker; both claims choose, and are undone. What one of
 * them took is the state that the next claim of the round sees. */
static const char COMPARE[] =
    "do $do$ declare "
    "  of bigint[] := array(select project from project_queue order by project); wanted_ integer; "
    "  offers_ text[]; all_ text[]; free_ text[]; mem_ bigint; disk_ bigint; free_mem bigint; free_disk "
    "bigint; "
    "  call text; was text; is_ text; taken integer := 0; "
    "begin "
    "perform setseed(0.25); "
    "for round in 1 .. 80 loop "
    "  delete from job where position >= 1000; "
    "  insert into job (run, project, position, name, step, kind, target, state, spec, input, ready_at, "
    "priority, "
    "    memory_bytes, disk_bytes, gpus, gpu, not_before, derivation, expected_s) "
    "  select r.id, of[1 + (random() * (cardinality(of) - 1))::int], 999 + n, 'e', 'evaluate', 'observe', "
    "    (array['any', 'any', 'cpu', 'cuda:sm90', 'never'])[1 + floor(random() * 5)], 'ready', "
    "    '{\"options\":{}}', r.source, now(), (array[-1, 0, 0, 0, 1, 2])[1 + floor(random() * 6)], "
    "    (array[0, 1e9, 2e9, 3e9, 3e9 + 1, 6e9, 12e9, 64e9])[1 + floor(random() * 8)], "
    "    (array[0, 0, 4e9, 20e9, 200e9])[1 + floor(random() * 5)], "
    "    (array[0, 0, 0, 0, 1, 2])[1 + floor(random() * 6)], "
    "    (array[null, null, null, 'H100', 'A100'])[1 + floor(random() * 5)], "
    "    now() + case when random() < 0.15 then interval '1 hour' else interval '-1 hour' end, "
    "    case when random() < 0.5 then sha256(((random() * 12)::int)::text::bytea) end, "
    "    (array[0.05, 0.05, 0.2])[1 + floor(random() * 3)] "
    "  from run r, generate_series(1, 1 + (random() * 40)::int) n where r.id = (select min(id) from run); "
    "  update job set state = 'running', token = gen_random_uuid(), lease_until = now() + interval '1 h' "
    "    where id in (select distinct on (derivation) id from job where position >= 1000 and random() < 0.2 "
    "                 and derivation is not null order by derivation); "
    "  update project_queue set service = random() * 0.3, weight = 1 + (random() * 2)::int, "
    "    running_s = (random() * 2)::int * 0.05, paused = random() < 0.05, "
    "    max_running = case when random() < 0.2 then (random() * 3)::int end, "
    "    gpu_seconds_month = case when random() < 0.2 then (random() * 2)::int end; "
    "  offers_ := case when random() < 0.7 then array['any', 'cpu', 'cuda:sm90'] else array['any'] end; "
    "  mem_ := (array[4e9, 8e9, 16e9, 9e18])[1 + floor(random() * 4)]; "
    "  disk_ := (array[10e9, 100e9, 9e18])[1 + floor(random() * 3)]; "
    "  all_ := (array['{}', '{H100}', '{H100,H100}', '{A100,H100}'])[1 + floor(random() * 4)]::text[]; "
    "  for step in 1 .. 3 loop "
    "    free_ := case when random() < 0.4 then all_ else all_[1 : (random() * cardinality(all_))::int] end; "
    "    free_mem := case when random() < 0.3 then mem_ else least(mem_, (random() * 17e9)::bigint) end; "
    "    free_disk := case when random() < 0.5 then disk_ else least(disk_, (random() * 110e9)::bigint) end; "
    "    wanted_ := (array[1, 1, 2, 4, 8])[1 + floor(random() * 5)]; "
    "    call := format('(%L, %L, %L, %L, %L, %L, 600000, %L, %L, %L)', 'w', offers_, all_, mem_, disk_, "
    "wanted_, "
    "      free_, free_mem, free_disk); "
    "    begin execute 'select array_agg(id order by id)::text from claim_by_job' || call into was; "
    "      raise exception sqlstate 'MLO01'; exception when sqlstate 'MLO01' then null; end; "
    "    execute 'select array_agg(id order by id)::text from queue_claim' || call into is_; "
    "    if was is distinct from is_ then "
    "      raise exception 'round %, %: claims % instead of % by queue_claim%', round, step, is_, was, call; "
    "    end if; "
    "    taken := taken + coalesce(cardinality(is_::bigint[]), 0); "
    "  end loop; "
    "end loop; "
    "if taken < 100 then raise exception 'only % jobs were claimed', taken; end if; "
    "end $do$";

static void test_claims__choose_what_a_look_at_every_job_would(void **state)
{
    struct service_fixture *f = *state;
    int64_t id;
    submit(f, f->version, RECIPE_OBSERVE, 0);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "q%d", i);
        assert_mlo_ok(mlo_project_create(f->pg->conn, &SYSTEM, name, "", &id, &f->err), &f->err);
    }
    create_reference(f);
    run_sql(f, COMPARE);
}

/* How many rows of jobs a claim and a look by an idle worker fetch, among so many that are ready. */
static int64_t looks(struct service_fixture *f, const char *free_memory, bool holds)
{
    struct mlo_db_conn *conn;
    struct mlo_rows rows = {0};
    char sql[400];
    static const struct mlo_sql fetched = {"test_claims_fetched",
                                           "select coalesce(idx_tup_fetch, 0) + seq_tup_read from "
                                           "pg_stat_xact_user_tables where relname = 'job'",
                                           0};
    if (holds)
        snprintf(sql, sizeof sql, "begin; select queue_holds_for('{any}', '{}', '{}', %s, 9000000000000000)",
                 free_memory);
    else
        snprintf(
            sql, sizeof sql,
            "begin; select id from queue_claim('w', '{any}', '{}', 8000000000, 9000000000000000, 1, 60000, "
            "'{}', %s, 9000000000000000)",
            free_memory);
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec(conn, &fetched, NULL, &rows, &f->err), &f->err);
    int64_t n = mlo_rows_i64(&rows, 0, 0);
    mlo_rows_clear(&rows);
    assert_mlo_ok(mlo_db_exec_text(conn, "rollback", &f->err), &f->err);
    mlo_db_release(conn);
    return n;
}

static void test_claims__look_at_kinds_not_at_jobs(void **state)
{
    enum { KINDS = 5, JOBS = 5000 };
    struct service_fixture *f = *state;
    char sql[900];
    static const char *const frees[] = {"8000000000", "5000000000", "2000000000"};
    submit(f, f->version, RECIPE_OBSERVE, 0);
    snprintf(
        sql, sizeof sql,
        "delete from job_dep; delete from job; " /* a run each: a claim looks at all of its job's run */
        "create temp table like_run as select * from run limit 1; "
        "insert into run (project, version, recipe_name, recipe, target, source, datasets, created_by) "
        "select project, version, 'kinds', recipe, target, source, datasets, created_by from like_run, "
        "generate_series(1, %d); drop table like_run; "
        "insert into job (run, project, position, name, step, kind, target, state, spec, input, ready_at, "
        "memory_bytes) select id, project, 0, 'e', 'evaluate', 'observe', 'any', 'ready', "
        "'{\"options\":{}}', source, now(), 3000000000 + id %% %d from run where recipe_name = 'kinds'",
        JOBS, KINDS);
    run_sql(f, sql);
    for (size_t i = 0; i < MLO_COUNT(frees); i++) {
        int64_t n = looks(f, frees[i], false);
        if (n > 10 * KINDS)
            fail_msg("a claim with %s bytes free read %lld rows of %d jobs", frees[i], (long long)n, JOBS);
    }
    for (size_t i = 0; i < MLO_COUNT(frees); i++)
        assert_true(looks(f, frees[i], true) <= 10 * KINDS);
}

/* --- what no row may be --------------------------------------------------------------------------------- */

static void test_checks__refuse_what_no_row_may_be(void **state)
{
    struct service_fixture *f = *state;
    static const char *const rows[] = {"job set state = 'done'",
                                       "job set state = 'running'",
                                       "job set state = 'running', token = gen_random_uuid()",
                                       "job set state = 'running', lease_until = now()",
                                       "job set token = gen_random_uuid()",
                                       "job set lease_until = now()",
                                       "job set kind = 'other'",
                                       "job set expected_s = -1",
                                       "job set gpus = -1",
                                       "job set gpus = 65",
                                       "job set timeout_s = 0",
                                       "attempt set outcome = 'won'",
                                       "attempt set cpu_s = -1",
                                       "attempt set gpu_s = -1",
                                       "attempt set read_bytes = -1",
                                       "attempt set written_bytes = -1",
                                       "attempt set phases = repeat('x', 4097)",
                                       "run set state = 'done'",
                                       "run set state = 'succeeded'",
                                       "run set finished_at = now()",
                                       "run set state = 'waiting'",
                                       "project_queue set weight = 0",
                                       "project_queue set weight = 1001",
                                       "project_queue set max_running = -1",
                                       "project_queue set gpu_seconds_month = -1",
                                       "project_queue set storage_bytes = -1"};
    submit(f, f->version, RECIPE_OBSERVE, 0);
    run_sql(f, "insert into attempt (job, number, token, worker) select min(id), 1, gen_random_uuid(), 'w' "
               "from job");
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        char sql[300];
        snprintf(
            sql, sizeof sql,
            "do $$ begin update %s; raise exception 'accepted'; exception when check_violation then null; "
            "end $$",
            rows[i]);
        run_sql(f, sql);
    }
    run_sql(f, "update job set timeout_s = 1, gpus = 64, state = 'waiting'; update run set state = 'failed', "
               "finished_at = now(); update project_queue set weight = 0.01, max_running = 0; "
               "update attempt set cpu_s = 0, outcome = 'lost', phases = repeat('x', 4096)");
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_claims__choose_what_a_look_at_every_job_would),
        SERVICE_TEST(test_claims__look_at_kinds_not_at_jobs),
        SERVICE_TEST(test_checks__refuse_what_no_row_may_be),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
