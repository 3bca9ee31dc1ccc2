/* The worker's role in the database: it can claim, beat and complete, and nothing else. The list of its
 * rights is written down here: a right more, or a right less, is seen. */
#include "tests/integration/service/service_fixture.h"

/* Rights on whole tables or on columns of them, as text, in the order of their names. */
static char *rights(struct service_fixture *f, const char *sql)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    PGresult *result = PQexec(mlo_db_pg(conn), sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(mlo_db_pg(conn)));
    char *text = strdup(PQgetvalue(result, 0, 0));
    PQclear(result);
    mlo_db_release(conn);
    return text;
}

static bool has_word(const char *words, const char *word, size_t length)
{
    for (const char *at = words; (at = strstr(at, word)); at += length)
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

/* Each right that the role has is one of these. */
static void assert_rights(struct service_fixture *f, const char *sql, const char *allowed)
{
    char *have = rights(f, sql), *next = have;
    for (char *word; (word = strsep(&next, " "));)
        if (*word && !has_word(allowed, word, strlen(word)))
            fail_msg("the worker's role may %s: should it?", word);
    free(have);
}

#define WHOLE(right)                                                                                         \
    "select coalesce(string_agg(relname, ' ' order by relname), '') from pg_class "                          \
    "where relnamespace = 'mlopt'::regnamespace and relkind in ('r', 'p', 'v', 'm') "                        \
    "and has_table_privilege('mlopt_worker', oid, '" right "')"

static void test_worker_role__has_these_rights(void **state)
{
    struct service_fixture *f = *state;
    assert_rights(
        f, WHOLE("select"),
        "attempt attempt_log attestation blob dataset dataset_blob dataset_samples dataset_version deletion "
        "derivation "
        "evidence job job_dep lineage_edge model plan project project_blob project_queue report "
        "reproduction run run_event schema_migration signature usage_entry usage_month variant version "
        "version_blob worker");
    assert_rights(f, WHOLE("insert"),
                  "attempt_log attestation blob dataset_samples derivation evidence lineage_edge "
                  "plan project_blob report "
                  "reproduction run_event signature variant worker");
    assert_rights(f, WHOLE("update"), "");
    assert_rights(f, WHOLE("delete"), "worker");
    assert_rights(f, WHOLE("truncate"), "");
    assert_rights(f, WHOLE("trigger"), "");
    assert_rights(f, WHOLE("references"), "");
    assert_rights(
        f,
        "select string_agg(c.relname || '.' || a.attname, ' ' order by c.relname, a.attname) "
        "from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not attisdropped "
        "where relnamespace = 'mlopt'::regnamespace and relkind in ('r', 'p') and "
        "has_column_privilege('mlopt_worker', c.oid, a.attnum, 'update')",
        "attempt.ended_at attempt.error attempt.outcome attempt.cpu_s attempt.gpu_s attempt.read_bytes "
        "attempt.written_bytes attempt.gpu_devices attempt.lease_until attempt.phases job.attempts "
        "job.claims job.derivation job.error "
        "job.finished_at job.input "
        "job.lease_until job.message job.not_before job.output job.progress job.ready_at job.result "
        "job.started_at job.state job.token job.worker run.error run.event_seq run.finished_at run.results "
        "run.started_at run.state run.variant worker.last_seen_at worker.state worker.disk_bytes");
    assert_rights(
        f,
        "select string_agg(proname, ' ' order by proname) from pg_proc where pronamespace = "
        "'mlopt'::regnamespace and prorettype <> 'trigger'::regtype and "
        "has_function_privilege('mlopt_worker', oid, 'execute')",
        "attempt_sound audit_append blob_note blob_report blob_revive job_event_data job_sound queue_beat "
        "queue_claim queue_complete queue_holds_for queue_settle run_sound search_drop search_plan");
    assert_rights(
        f,
        "select (rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)::text || "
        "has_schema_privilege('mlopt_worker', 'mlopt', 'create')::text || "
        "pg_has_role('mlopt_worker', 'mlopt_server', 'member')::text || "
        "pg_has_role('mlopt_worker', 'mlopt_owner', 'member')::text "
        "from pg_roles where rolname = 'mlopt_worker'",
        "falsefalsefalsefalse");
}

static void test_worker_role__is_refused_the_rest(void **state)
{
    struct service_fixture *f = *state;
    static const char *const refused[] = {
        /* secrets */
        "select * from mlopt.token",
        "select * from mlopt.webhook_secret",
        "select * from mlopt.idempotency",
        /* promotion, and what gates it */
        "update mlopt.stage set release_id = null",
        "insert into mlopt.stage_move default values",
        "insert into mlopt.release default values",
        "insert into mlopt.approval default values",
        "insert into mlopt.policy default values",
        "insert into mlopt.token default values",
        "insert into mlopt.version default values",
        /* runs are submitted by servers; a job stays what it is */
        "insert into mlopt.run default values",
        "insert into mlopt.job default values",
        "update mlopt.job set spec = '{}'",
        "update mlopt.job set priority = 1000",
        "update mlopt.run set priority = 1000",
        "delete from mlopt.job",
        "delete from mlopt.attempt",
        /* history */
        "insert into mlopt.audit default values",
        "update mlopt.audit set body = ''",
        "delete from mlopt.audit",
        "update mlopt.audit_head set seq = 0",
        "update mlopt.evidence set value = 1",
        "delete from mlopt.evidence",
        "update mlopt.derivation set artifact = key",
        "truncate mlopt.run_event",
        /* the schema */
        "create table mlopt.mine (a int)",
        "alter table mlopt.job disable trigger all",
        "set role mlopt_server",
        "set role mlopt_owner",
        "copy (select 1) to program 'true'",
    };
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &f->err), &f->err);
    for (size_t i = 0; i < MLO_COUNT(refused); i++) {
        PGresult *result = PQexec(mlo_db_pg(conn), refused[i]);
        const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);
        if (!code || strcmp(code, "42501") != 0)
            fail_msg("%s: %s", refused[i], code ? PQresultErrorMessage(result) : "done");
        PQclear(result);
    }
    mlo_db_release(conn);
}

/* Appends an entry as a worker: whether that was refused. */
static bool append_refused(struct service_fixture *f, int64_t project, const char *entry)
{
    struct mlo_db_conn *conn;
    struct mlo_buf sql = MLO_BUF_INIT;
    mlo_buf_printf(&sql, "select mlopt.audit_append(%lld, convert_to('%s', 'UTF8'))", (long long)project,
                   entry);
    assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &f->err), &f->err);
    PGresult *result = PQexec(mlo_db_pg(conn), mlo_buf_str(&sql));
    const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    bool refused = code && strcmp(code, "42501") == 0;
    if (code && !refused)
        fail_msg("%s: %s", entry, PQresultErrorMessage(result));
    PQclear(result);
    mlo_db_release(conn);
    mlo_buf_clear(&sql);
    return refused;
}

static void test_worker_role__tells_the_log_what_it_did_and_no_more(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    char entry[256];
    int64_t before = count_rows(
        f, "select count(*) from mlopt.audit where convert_from(body, 'UTF8')::json ->> 'via' = 'worker'");
    int64_t run = submit(f, f->version, RECIPE_TINY, 0), open = submit(f, f->version, RECIPE_DERIVE, -1);
    start_worker(f, &w, 1);
    wait_run(f, run);
    wait_run(f, open);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded"); /* what it does tell went through */
    assert_true(
        count_rows(
            f,
            "select count(*) from mlopt.audit where convert_from(body, 'UTF8')::json ->> 'via' = 'worker'") >
        before);
    int64_t entries = count_rows(f, "select count(*) from mlopt.audit");
    static const char *const forged[] = {
        "{\"action\":\"stage.promote\",\"object\":\"p/m#1\",\"via\":\"worker\",\"who\":\"alice\"}",
        "{\"action\":\"stage.promote\",\"object\":\"p/m#1\",\"via\":\"api\",\"who\":\"alice\"}",
        "{\"action\":\"variant.name\",\"object\":\"p/m@1/x\",\"via\":\"api\",\"who\":\"alice\"}",
        "{\"action\":\"token.create\",\"via\":\"worker\"}",
        "{\"via\":\"worker\"}",
        "{}"};
    for (size_t i = 0; i < MLO_COUNT(forged); i++)
        if (!append_refused(f, f->project, forged[i]))
            fail_msg("not refused: %s", forged[i]);
    /* the end of a run that ended before, or otherwise, or is another project's */
    static const char *const states[] = {"succeeded", "failed"};
    for (size_t i = 0; i < MLO_COUNT(states); i++) {
        snprintf(entry, sizeof entry,
                 "{\"action\":\"run.finish\",\"after\":{\"state\":\"%s\"},\"object\":\"run "
                 "%lld\",\"via\":\"worker\"}",
                 states[i], (long long)run);
        assert_true(append_refused(f, f->project, entry));
        assert_true(append_refused(f, 0, entry));
    }
    assert_int_equal(count_rows(f, "select count(*) from mlopt.audit"), entries);
    struct mlo_audit_result audit;
    assert_mlo_ok(mlo_audit_verify(f->pg->conn, f->project, NULL, &audit, &f->err), &f->err);
    assert_true(audit.intact);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_worker_role__has_these_rights),
        SERVICE_TEST(test_worker_role__is_refused_the_rest),
        SERVICE_TEST(test_worker_role__tells_the_log_what_it_did_and_no_more),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
