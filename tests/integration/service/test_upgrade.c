/* Upgrades: a database of every older schema, with the rows that a program of that time could have, is
 * brought to this program's, and nothing in it changes: data, audit chains, ledgers. The rows come from the
 * real code: what it wrote at the newest schema, as far as the older one has tables and columns for it. */
#include "base/ssh_sign.h"
#include "tests/integration/service/service_fixture.h"

/* --- a database with everything in it -------------------------------------------------------------- */

static struct mlo_ledger *open_ledger(struct service_fixture *f, struct mlo_db *db)
{
    struct mlo_ledger *ledger;
    char *dir = mlo_fs_join(f->dir, "ledger", NULL);
    const struct mlo_ledger_options options = {.db = db, .dir = dir};
    assert_mlo_ok(mlo_ledger_open(&options, &ledger, &f->err), &f->err);
    free(dir);
    return ledger;
}

static void move_to(struct mlo_db_conn *conn, int64_t model, const char *stage, const char *target,
                    const char *variant, int64_t generation, struct mlo_error *err)
{
    const struct mlo_release_choice choice = {target, variant};
    const struct mlo_promotion p = {.model_id = model,
                                    .choices = &choice,
                                    .choice_count = 1,
                                    .stage = stage,
                                    .reason = "because",
                                    .if_match = &generation};
    struct mlo_move move;
    assert_mlo_ok(mlo_stage_promote(conn, &SYSTEM, &p, &move, err), err);
}

static int64_t model_of(struct service_fixture *f)
{
    struct mlo_buf sql = MLO_BUF_INIT;
    mlo_buf_printf(&sql, "select model_id from mlopt.version where id = %lld", (long long)f->version);
    int64_t id = count_rows(f, mlo_buf_str(&sql));
    mlo_buf_clear(&sql);
    return id;
}

/* What can be claimed, up to `wanted`; what is got is kept. */
static int claim_some(struct mlo_db *worker, struct mlo_job *jobs, int wanted, struct mlo_error *err)
{
    const struct mlo_claimer claimer = {.worker = "w", .targets = "{any,cpu}", .lease_ms = 600000};
    int count = 0;
    assert_mlo_ok(mlo_queue_claim(worker, &claimer, jobs, wanted, &count, err), err);
    return count;
}

/* A run with all kinds of steps, one that failed, one that runs, one that waits; policies, approvals,
 * promotions, a refusal, a rollback; ledgers; an upload; a rotated key. */
static void fill(struct service_fixture *f)
{
    struct mlo_db_conn *conn = f->pg->conn;
    struct mlo_error *err = &f->err;
    struct test_worker w;
    struct mlo_move move;
    char token[MLO_TOKEN_TEXT_SIZE];
    const int64_t none = 0, two = 2;
    int64_t model = model_of(f), id;
    start_worker(f, &w, 1);
    wait_run(f, submit(f, f->version, RECIPE_TINY, 0));
    wait_run(f, submit(f, f->version, RECIPE_REPORT, 0));
    wait_run(f, submit(f, f->version, RECIPE_COMPILE, 0));
    wait_run(f, submit(f, add_version(f, "broken", "optimize.fail=format"), RECIPE_DERIVE, 0));
    stop_worker(&w);
    struct mlo_job job;
    submit(f, f->version, RECIPE_OBSERVE, 5);
    assert_int_equal(claim_some(f->worker, &job, 1, err), 1);
    mlo_job_clear(&job);
    submit(f, f->version, RECIPE_DERIVE, 5);
    assert_mlo_ok(mlo_token_create(conn, &SYSTEM, "ci", MLO_SUBMITTER, f->project, 0, token, &id, err), err);

    struct mlo_ledger *ledger = open_ledger(f, f->pg->server);
    move_to(conn, model, "production", "any", "source", 0, err);
    move_to(conn, model, "production", "any", "tiny", 1, err);
    const struct mlo_rollback back = {
        .model_id = model, .stage = "production", .reason = "slow at night", .if_match = &two};
    assert_mlo_ok(mlo_stage_rollback(conn, &SYSTEM, &back, &move, err), err);
    const struct mlo_policy_scope scope = {.project_id = f->project};
    assert_mlo_ok(mlo_policy_set(conn, &SYSTEM, &scope,
                                 "stages:\n  production:\n    - evidence: top1 >= source - 0.5pt\n",
                                 "to be sure", &none, &id, err),
                  err);
    assert_mlo_ok(mlo_ledger_sync(ledger, conn, f->project, err), err);
    assert_mlo_ok(mlo_ledger_rotate(ledger, conn, &SYSTEM, err), err);
    move_to(conn, model, "staging", "any", "source", 0, err);
    assert_mlo_ok(mlo_ledger_sync(ledger, conn, f->project, err), err);
    mlo_ledger_close(ledger);
}

/* --- copies of older schemas ---------------------------------------------------------------------- */

static PGconn *admin(struct service_fixture *f, const char *database)
{
    char *conninfo = mlo_embedded_conninfo(f->pg->pg, NULL, database);
    PGconn *pg = PQconnectdb(conninfo);
    if (PQstatus(pg) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(pg));
    free(conninfo);
    return pg;
}

static PGresult *ask(PGconn *pg, const char *fmt, ...) MLO_PRINTF(2, 3);
static PGresult *ask(PGconn *pg, const char *fmt, ...)
{
    struct mlo_buf sql = MLO_BUF_INIT;
    va_list args;
    va_start(args, fmt);
    mlo_buf_vprintf(&sql, fmt, args);
    va_end(args);
    PGresult *r = PQexec(pg, mlo_buf_str(&sql));
    ExecStatusType status = PQresultStatus(r);
    if (status == PGRES_FATAL_ERROR || status == PGRES_BAD_RESPONSE)
        fail_msg("%.300s: %s", mlo_buf_str(&sql), PQresultErrorMessage(r));
    mlo_buf_clear(&sql);
    return r;
}

static void tell(PGconn *pg, const char *sql)
{
    PQclear(ask(pg, "%s", sql));
}

/* The columns of a table that both databases have, with a prefix each. */
static void shared_columns(PGconn *old, PGconn *source, const char *table, const char *prefix,
                           struct mlo_buf *out)
{
    /* but for what a later migration drops on purpose: nobody read it */
    static const char query[] = "select quote_ident(attname) from pg_attribute where attrelid = "
                                "'mlopt.%s'::regclass and attnum > 0 and not attisdropped and not "
                                "coalesce(attrelid = to_regclass('mlopt.project_queue') and attname = "
                                "'claimed_at' or attrelid = to_regclass('mlopt.attempt') and attname = "
                                "'counted', false) order by attnum";
    PGresult *a = ask(old, query, table), *b = ask(source, query, table);
    for (int i = 0; i < PQntuples(a); i++)
        for (int j = 0; j < PQntuples(b); j++)
            if (strcmp(PQgetvalue(a, i, 0), PQgetvalue(b, j, 0)) == 0)
                mlo_buf_printf(out, "%s%s%s", out->len ? ", " : "", prefix, PQgetvalue(a, i, 0));
    PQclear(a);
    PQclear(b);
}

/* Rows that the older schema's checks refuse are of a newer kind: a program of that time had none. */
static void copy_table(PGconn *old, PGconn *source, const char *table)
{
    struct mlo_buf columns = MLO_BUF_INIT, values = MLO_BUF_INIT;
    char *row;
    shared_columns(old, source, table, "", &columns);
    shared_columns(old, source, table, "r.", &values);
    const char *list = mlo_buf_str(&columns);
    PQclear(ask(old,
                "delete from mlopt.%s; drop table if exists stage; create temp table stage as "
                "select %s from mlopt.%s limit 0",
                table, list, table));
    PQclear(ask(source, "copy (select %s from mlopt.%s) to stdout", list, table));
    PQclear(ask(old, "copy stage from stdin"));
    for (int got; (got = PQgetCopyData(source, &row, 0)) > 0; PQfreemem(row))
        assert_int_equal(PQputCopyData(old, row, got), 1);
    assert_int_equal(PQputCopyEnd(old, NULL), 1);
    for (PGresult *r; (r = PQgetResult(source)); PQclear(r))
        assert_int_equal(PQresultStatus(r), PGRES_COMMAND_OK);
    for (PGresult *r; (r = PQgetResult(old)); PQclear(r))
        if (PQresultStatus(r) != PGRES_COMMAND_OK)
            fail_msg("%s: %s", table, PQresultErrorMessage(r));
    PQclear(
        ask(old,
            "do $$ declare r record; begin for r in select * from stage loop begin insert into mlopt.%s "
            "(%s) overriding system value values (%s); exception when check_violation then null; end; end "
            "loop; end $$",
            table, list, mlo_buf_str(&values)));
    mlo_buf_clear(&columns);
    mlo_buf_clear(&values);
}

static PGresult *tables_of(PGconn *pg)
{
    return ask(pg, "select relname from pg_class where relnamespace = 'mlopt'::regnamespace and relkind = "
                   "'r' and relname <> 'schema_migration' order by relname");
}

static void copy_all(PGconn *old, PGconn *source)
{
    PGresult *tables = tables_of(old);
    tell(old, "set session_replication_role = replica"); /* no triggers, in any order */
    for (int i = 0; i < PQntuples(tables); i++)
        copy_table(old, source, PQgetvalue(tables, i, 0));
    PQclear(tables);
    tell(old,
         "drop table stage; reset session_replication_role; do $$ declare c record; begin for c "
         "in select attrelid::regclass t, attname a from pg_attribute join pg_class on pg_class.oid = "
         "attrelid where relnamespace = 'mlopt'::regnamespace and attidentity <> '' loop execute "
         "format('select setval(pg_get_serial_sequence(%L, %L), coalesce(max(%I), 0) + 1) from %s', c.t, "
         "c.a, c.a, c.t); end loop; end $$");
}

/* {table: {columns, rows: their number and digest}} of what the older schema had. */
static json_t *content(PGconn *pg, const json_t *as)
{
    json_t *out = json_object();
    PGresult *tables = as ? NULL : tables_of(pg);
    const char *name;
    json_t *before;
    if (as) {
        json_object_foreach((json_t *)as, name, before)
        {
            const char *columns = mlo_json_str(before, "columns", "");
            PGresult *r = ask(pg,
                              "select count(*) || ' ' || coalesce(md5(string_agg(t::text, E'\\n' order by "
                              "t::text)), '') from (select %s from mlopt.%s) t",
                              columns, name);
            json_object_set_new(out, name,
                                json_pack("{s:s, s:s}", "columns", columns, "rows", PQgetvalue(r, 0, 0)));
            PQclear(r);
        }
        return out;
    }
    for (int i = 0; i < PQntuples(tables); i++) {
        struct mlo_buf columns = MLO_BUF_INIT;
        shared_columns(pg, pg, PQgetvalue(tables, i, 0), "", &columns);
        json_object_set_new(out, PQgetvalue(tables, i, 0),
                            json_pack("{s:s}", "columns", mlo_buf_str(&columns)));
        mlo_buf_clear(&columns);
    }
    PQclear(tables);
    json_t *whole = content(pg, out);
    json_decref(out);
    return whole;
}

/* --- upgrading ------------------------------------------------------------------------------------- */

static void check_history(struct service_fixture *f, struct mlo_db_conn *conn, int64_t commits)
{
    PGresult *chains = ask(mlo_db_pg(conn), "select project_id, seq from mlopt.audit_head order by 1");
    struct mlo_audit_result result;
    struct mlo_ledger_result ledger;
    assert_true(PQntuples(chains) >= 2);
    for (int i = 0; i < PQntuples(chains); i++) {
        int64_t id = strtoll(PQgetvalue(chains, i, 0), NULL, 10);
        assert_mlo_ok(mlo_audit_verify(conn, id, NULL, &result, &f->err), &f->err);
        if (!result.intact)
            fail_msg("chain %lld: %s", (long long)id, result.problem);
        assert_int_equal(result.entries, strtoll(PQgetvalue(chains, i, 1), NULL, 10));
    }
    PQclear(chains);
    assert_mlo_ok(mlo_ledger_verify(conn, f->project, &ledger, &f->err), &f->err);
    if (!ledger.intact)
        fail_msg("ledger: %s", ledger.problem);
    assert_int_equal(ledger.commits, commits);
}

/* The service goes on with what it finds: a promotion, its commit. */
static void use(struct service_fixture *f, struct mlo_db *server, int64_t commits)
{
    struct mlo_db_conn *conn;
    struct mlo_buf sql = MLO_BUF_INIT;
    int64_t model = model_of(f);
    assert_mlo_ok(mlo_db_acquire(server, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_migrate_check(conn, &f->err), &f->err);
    check_history(f, conn, commits);
    struct mlo_ledger *ledger = open_ledger(f, server);
    mlo_buf_printf(&sql, "select generation from mlopt.stage where model_id = %lld and name = 'staging'",
                   (long long)model);
    PGresult *r = ask(mlo_db_pg(conn), "%s", mlo_buf_str(&sql));
    int64_t generation = PQntuples(r) ? strtoll(PQgetvalue(r, 0, 0), NULL, 10) : 0;
    PQclear(r);
    move_to(conn, model, "staging", "cpu:avx2", "source", generation, &f->err);
    assert_mlo_ok(mlo_ledger_sync(ledger, conn, f->project, &f->err), &f->err);
    check_history(f, conn, commits + 1);
    mlo_ledger_close(ledger);
    mlo_db_release(conn);
    mlo_buf_clear(&sql);
}

/* What was ready is claimed, what ran runs on; none is both. */
static void claim_the_rest(struct service_fixture *f, struct pg_fixture *other, PGconn *old)
{
    enum { MOST = 16 };
    struct mlo_job jobs[MOST];
    struct mlo_db *worker = pg_fixture_pool(other, MLO_ROLE_WORKER, 2);
    static const char query[] =
        "select count(*) filter (where state = 'ready'), count(*) filter (where state = "
        "'running'), count(*) from mlopt.job";
    PGresult *before = ask(old, query);
    int count = claim_some(worker, jobs, MOST, &f->err);
    PGresult *after = ask(old, query);
    assert_int_equal(count, strtol(PQgetvalue(before, 0, 0), NULL, 10));
    assert_int_equal(strtol(PQgetvalue(after, 0, 0), NULL, 10), 0);
    assert_int_equal(strtol(PQgetvalue(after, 0, 1), NULL, 10),
                     strtol(PQgetvalue(before, 0, 1), NULL, 10) + count);
    if (strcmp(PQgetvalue(before, 0, 2), "0") != 0)
        assert_int_equal(count, 1);
    for (int i = 0; i < count; i++) {
        assert_mlo_ok(mlo_queue_beat(worker, &jobs[i], 600000, &f->err), &f->err);
        mlo_job_clear(&jobs[i]);
    }
    PQclear(before);
    PQclear(after);
    mlo_db_close(worker);
}

static void upgrade_from(struct service_fixture *f, PGconn *source, size_t n)
{
    size_t count;
    const struct mlo_migration *set = mlo_migrations(&count);
    struct pg_fixture other = *f->pg;
    struct mlo_db_conn *conn;
    struct mlo_db *owner, *server;
    int applied;
    char *root = mlo_embedded_conninfo(f->pg->pg, NULL, "postgres");
    char *ledger = mlo_fs_join(f->dir, "ledger", NULL), *kept = mlo_fs_join(f->dir, "ledger.kept", NULL);
    snprintf(other.database, sizeof other.database, "old");
    assert_mlo_ok(mlo_db_bootstrap(root, other.database, &f->err), &f->err);
    PGconn *old = admin(f, other.database);
    tell(old, "set client_min_messages = warning; drop schema if exists mlopt cascade");
    owner = pg_fixture_pool(&other, MLO_ROLE_OWNER, 2);
    server = pg_fixture_pool(&other, MLO_ROLE_SERVER, 4);
    assert_mlo_ok(mlo_db_acquire(owner, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_migrate_set(conn, set, n, &applied, &f->err), &f->err);
    assert_int_equal(applied, n);
    copy_all(old, source);
    json_t *before = content(old, NULL);

    assert_mlo_status(mlo_migrate_check(conn, &f->err), MLO_ECONFLICT, &f->err);
    assert_non_null(strstr(f->err.hint, "mlopt migrate"));
    assert_mlo_ok(mlo_migrate(conn, &applied, &f->err), &f->err);
    assert_int_equal(applied, count - n);

    json_t *after = content(old, before);
    if (!json_equal(before, after)) {
        char *a = json_dumps(before, JSON_INDENT(1) | JSON_SORT_KEYS),
             *b = json_dumps(after, JSON_INDENT(1) | JSON_SORT_KEYS);
        fail_msg("migrating from %s changed rows:\n%s\n%s", set[n - 1].name, a, b);
    }
    json_decref(before);
    json_decref(after);
    PGresult *r = ask(old, "select count(*) from mlopt.ledger_commit");
    int64_t commits = strtoll(PQgetvalue(r, 0, 0), NULL, 10);
    PQclear(r);
    r = ask(old, "select count(*) from mlopt.signing_key");
    if (strcmp(PQgetvalue(r, 0, 0), "0") == 0) /* an installation from before there were ledgers has no key */
        assert_int_equal(rename(ledger, kept), 0);
    PQclear(r);
    use(f, server, commits);
    if (mlo_fs_exists(kept)) {
        mlo_fs_remove_tree(ledger);
        assert_int_equal(rename(kept, ledger), 0);
    }
    claim_the_rest(f, &other, old);
    PQfinish(old);
    mlo_db_release(conn);
    mlo_db_close(owner);
    mlo_db_close(server);
    free(root);
    free(ledger);
    free(kept);
}

/* With sanitizers each fourth schema and the last: the steps between them are SQL's alone, and every build
 * without runs them. */
#ifdef MLOPT_SANITIZED
enum { SCHEMAS_APART = 4 };
#else
enum { SCHEMAS_APART = 1 };
#endif

static void test_upgrade__from_every_schema_keeps_data_and_history(void **state)
{
    struct service_fixture *f = *state;
    size_t count;
    mlo_migrations(&count);
    fill(f);
    PGconn *source = admin(f, f->pg->database);
    PGresult *r = ask(source, "select count(*) from mlopt.ledger_commit");
    assert_true(strtol(PQgetvalue(r, 0, 0), NULL, 10) >= 5);
    PQclear(r);
    for (size_t n = 1 + (count - 2) % SCHEMAS_APART; n < count; n += SCHEMAS_APART)
        upgrade_from(f, source, n);
    PQfinish(source);
}

/* --- interrupted, and the wrong program ------------------------------------------------------------ */

/* A program that migrates is killed in the middle of a script. */
static void test_upgrade__interrupted_leaves_the_old_schema(void **state)
{
    static const char slow[] = "CREATE TABLE half (i integer); ALTER TABLE project ADD COLUMN half integer; "
                               "SELECT pg_sleep(3600)";
    static const char quick[] = "CREATE TABLE half (i integer); ALTER TABLE project ADD COLUMN half integer";
    struct service_fixture *f = *state;
    struct mlo_db_conn *owner;
    size_t count;
    const struct mlo_migration *ours = mlo_migrations(&count);
    struct mlo_migration *set = calloc(count + 1, sizeof *set);
    int how, applied;
    memcpy(set, ours, count * sizeof *set);
    set[count] = (struct mlo_migration){ours[count - 1].number + 1, "next", slow, sizeof slow - 1};
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct mlo_error err = {0};
        struct mlo_db *db = pg_fixture_pool(f->pg, MLO_ROLE_OWNER, 1);
        struct mlo_db_conn *conn;
        _exit(mlo_db_acquire(db, &conn, &err) == MLO_OK &&
              mlo_migrate_set(conn, set, count + 1, NULL, &err) == MLO_OK);
    }
    PGconn *pg = admin(f, f->pg->database);
    static const char asleep[] =
        "from pg_stat_activity where query like '%pg_sleep(3600)%' and pid <> pg_backend_pid() and datname = "
        "current_database()";
    for (bool seen = false; !seen; mlo_clock_sleep_ms(20)) {
        PGresult *r = ask(pg, "select 1 %s and wait_event = 'PgSleep'", asleep);
        seen = PQntuples(r) > 0;
        PQclear(r);
        assert_int_equal(waitpid(pid, &how, WNOHANG), 0);
    }
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    /* PostgreSQL finds that out when the statement ends; an administrator sooner */
    PQclear(ask(pg, "select pg_terminate_backend(pid, 60000) %s", asleep));
    PGresult *r = ask(pg, "select to_regclass('mlopt.half') is null, (select count(*) from "
                          "mlopt.schema_migration), (select count(*) from mlopt.project where name = 'p')");
    assert_string_equal(PQgetvalue(r, 0, 0), "t");
    assert_int_equal(strtol(PQgetvalue(r, 0, 1), NULL, 10), count);
    assert_string_equal(PQgetvalue(r, 0, 2), "1");
    PQclear(r);
    PQfinish(pg);
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &owner, &f->err), &f->err);
    assert_mlo_ok(mlo_migrate_check(owner, &f->err), &f->err); /* the program of before still runs on it */
    set[count].text = quick;
    set[count].size = sizeof quick - 1;
    assert_mlo_ok(mlo_migrate_set(owner, set, count + 1, &applied, &f->err), &f->err);
    assert_int_equal(applied, 1);
    /* and now it is too old */
    assert_mlo_status(mlo_migrate_check(owner, &f->err), MLO_ECONFLICT, &f->err);
    assert_non_null(strstr(f->err.hint, "newer"));
    mlo_db_release(owner);
    free(set);
}

/* What `mlopt server` says of this database; its exit code is in *code. */
static void server_says(struct service_fixture *f, const char *verb, int *code, struct mlo_buf *out)
{
    char *conninfo = mlo_embedded_conninfo(f->pg->pg, MLO_ROLE_SERVER, f->pg->database);
    struct mlo_buf database = MLO_BUF_INIT;
    mlo_buf_printf(&database, "MLOPT_DATABASE=%s", conninfo);
    const char *const env[] = {mlo_buf_str(&database), NULL};
    const char *const argv[] = {
        "/bin/sh", "-c",        "exec \"$MLOPT\" $0 --blobs \"$1\" $2 2>&1",
        verb,      f->blob_url, strcmp(verb, "worker") == 0 ? "--work-dir=/tmp" : "--listen=127.0.0.1:0",
        NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    o.argv = argv;
    o.env = env;
    mlo_buf_reset(out);
    assert_mlo_ok(mlo_process_run(&o, 120000, 1 << 20, out, code, &f->err), &f->err);
    mlo_buf_clear(&database);
    free(conninfo);
}

static void test_upgrade__a_program_of_another_schema_says_so(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_buf out = MLO_BUF_INIT;
    int code;
    if (!getenv("MLOPT"))
        skip();
    PGconn *pg = admin(f, f->pg->database);
    tell(pg, "insert into mlopt.schema_migration (number, name, digest) values (9999, '9999_future', "
             "decode(repeat('00', 32), 'hex'))");
    for (int i = 0; i < 2; i++) {
        server_says(f, i ? "worker" : "server", &code, &out);
        assert_int_equal(code, 5);
        assert_non_null(strstr(mlo_buf_str(&out), "9999"));
        assert_non_null(strstr(mlo_buf_str(&out), "a newer mlopt"));
    }
    tell(pg, "delete from mlopt.schema_migration where number >= (select max(number) from "
             "mlopt.schema_migration where number < 9999)");
    for (int i = 0; i < 2; i++) {
        server_says(f, i ? "worker" : "server", &code, &out);
        assert_int_equal(code, 5);
        assert_non_null(strstr(mlo_buf_str(&out), "mlopt migrate"));
    }
    PQfinish(pg);
    mlo_buf_clear(&out);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
#define TEST(name) cmocka_unit_test_setup_teardown(name, service_setup, service_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_upgrade__from_every_schema_keeps_data_and_history),
        TEST(test_upgrade__interrupted_leaves_the_old_schema),
        TEST(test_upgrade__a_program_of_another_schema_says_so),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
