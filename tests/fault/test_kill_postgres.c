/* PostgreSQL ended at once (SIGQUIT: no backend writes anything any more; SIGKILL of its first process), in
 * the middle of promotions and comments in one project. Their locks go before the log is on disk: what was
 * acknowledged is there afterwards all the same, and so is what a reader was told after mlo_db_settle; the
 * chain and the ledger verify, and no promotion is half there. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/pg_fixture.h"

enum { CLIENTS = 4, ROUNDS = 2, MOVES = 24 /* acknowledged in a round before the end */ };

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

struct project {
    struct pg_fixture *f;
    int64_t id;
    atomic_int acknowledged; /* of this round */
    atomic_bool stop;
};

struct client {
    struct project *project;
    int64_t model;
    int64_t moved;    /* the newest generation that was acknowledged */
    int64_t said;     /* the newest comment */
    int64_t comments; /* how many were */
    int64_t seen;     /* the newest generation that a reader was told */
};

static enum mlo_status move_once(struct mlo_db_conn *conn, struct client *c, struct mlo_error *err)
{
    const struct mlo_release_choice source = {"any", "source"};
    const struct mlo_comment_on on = {.model_id = c->model, .release = 1};
    struct mlo_move move;
    json_t *comment = NULL;
    int64_t at = c->moved;
    const struct mlo_promotion promotion = {.model_id = c->model,
                                            .version = at % 2 + 1,
                                            .choices = &source,
                                            .choice_count = 1,
                                            .stage = "production",
                                            .reason = "again",
                                            .if_match = &at};
    enum mlo_status status = mlo_stage_promote(conn, &root, &promotion, &move, err);
    if (status != MLO_OK)
        return status;
    c->moved = move.generation;
    atomic_fetch_add(&c->project->acknowledged, 1);
    status = mlo_comment_add(conn, &root, &on, "well", &comment, err);
    if (status == MLO_OK) {
        c->said = mlo_json_i64(comment, "id", 0);
        c->comments++;
    }
    json_decref(comment);
    return status;
}

static void *promote(void *arg)
{
    struct client *c = arg;
    struct mlo_db_conn *conn = NULL;
    struct mlo_error err = {0};
    enum mlo_status status = mlo_db_acquire(c->project->f->server, &conn, &err);
    while (status == MLO_OK && !atomic_load(&c->project->stop))
        status = move_once(conn, c, &err);
    if (status != MLO_EUNAVAILABLE && status != MLO_OK)
        print_error("a promoter ended with: %s\n", err.message);
    mlo_db_release(conn);
    return NULL;
}

static void *look(void *arg)
{
    struct client *c = arg;
    struct mlo_db_conn *conn = NULL;
    struct mlo_error err = {0};
    enum mlo_status status = mlo_db_acquire(c->project->f->server, &conn, &err);
    while (status == MLO_OK && !atomic_load(&c->project->stop)) {
        json_t *stage = NULL;
        status = mlo_stage_get(conn, c->model, "production", &stage, &err);
        int64_t generation = mlo_json_i64(stage, "generation", 0);
        json_decref(stage);
        if (status == MLO_OK)
            status = mlo_db_settle(conn, &err);
        if (status == MLO_OK)
            c->seen = generation;
    }
    mlo_db_release(conn);
    return NULL;
}

static int64_t ask(struct pg_fixture *f, const char *select, int64_t id)
{
    char sql[160];
    snprintf(sql, sizeof sql, "%s = %lld", select, (long long)id);
    return pg_fixture_number(f->owner, sql);
}

/* Until no pool holds a connection to a backend that is about to end. */
static void heal(struct mlo_db *db, struct pg_fixture *f)
{
    uint64_t began = mlo_clock_ns();
    while (mlo_db_ping(db, &f->err) != MLO_OK) {
        if (mlo_clock_ns() - began > 60 * 1000000000ull)
            fail_msg("PostgreSQL does not answer: %s", f->err.message);
        mlo_clock_sleep_ms(10);
    }
}

/* What is there: nothing that was told is missing, and of what was not, one of each at most. */
static void check(struct client *c)
{
    struct pg_fixture *f = c->project->f;
    int64_t now = ask(f, "SELECT generation FROM stage WHERE name = 'production' AND model_id", c->model);
    assert_in_range(now, c->moved, c->moved + 1);
    assert_true(now >= c->seen);
    assert_int_equal(ask(f, "SELECT count(*) FROM stage_move WHERE model_id", c->model), now);
    int64_t comments = ask(f, "SELECT count(*) FROM comment WHERE model_id", c->model);
    assert_in_range(comments, c->comments, c->comments + 1);
    if (c->said)
        assert_int_equal(ask(f, "SELECT count(*) FROM comment WHERE id", c->said), 1);
    c->moved = now;
    c->comments = comments;
}

static void histories(struct project *p, struct mlo_ledger *ledger)
{
    struct pg_fixture *f = p->f;
    struct mlo_db_conn *conn;
    struct mlo_audit_result audit;
    struct mlo_ledger_result result;
    assert_mlo_ok(mlo_db_acquire(f->server, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_audit_verify(conn, p->id, NULL, &audit, &f->err), &f->err);
    if (!audit.intact)
        fail_msg("the chain: %s", audit.problem);
    assert_mlo_ok(mlo_ledger_sync(ledger, conn, p->id, &f->err), &f->err);
    assert_mlo_ok(mlo_ledger_verify(conn, p->id, &result, &f->err), &f->err);
    if (!result.intact)
        fail_msg("the ledger: %s", result.problem);
    mlo_db_release(conn);
}

static void stock(struct project *p, struct client *c, int number)
{
    struct pg_fixture *f = p->f;
    char text[40];
    *c = (struct client){.project = p};
    snprintf(text, sizeof text, "m%d", number);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, p->id, text, &c->model, &f->err), &f->err);
    for (int v = 1; v <= 2; v++) {
        struct mlo_version_info version;
        struct mlo_manifest_blob b = {.role = "model", .name = "m.onnx"};
        snprintf(text, sizeof text, "model %d version %d", number, v);
        mlo_digest_of(text, strlen(text), &b.digest);
        assert_mlo_ok(mlo_blob_record(f->conn, &root, p->id, &b.digest, 9, &f->err), &f->err);
        assert_mlo_ok(mlo_version_create(f->conn, &root, c->model, "", &b, 1, &version, &f->err), &f->err);
    }
}

/* Every 0.2 s it would hide what nobody waited for. */
static void quiet_log_writer(struct pg_fixture *f)
{
    char *admin = mlo_embedded_conninfo(f->pg, NULL, "postgres");
    PGconn *pg = PQconnectdb(admin);
    static const char *const texts[] = {"ALTER SYSTEM SET wal_writer_delay = '10s'",
                                        "ALTER SYSTEM SET wal_writer_flush_after = '1GB'",
                                        "SELECT pg_reload_conf()"};
    for (size_t i = 0; i < MLO_COUNT(texts); i++) {
        PGresult *r = PQexec(pg, texts[i]);
        assert_true(PQresultStatus(r) == PGRES_COMMAND_OK || PQresultStatus(r) == PGRES_TUPLES_OK);
        PQclear(r);
    }
    PQfinish(pg);
    free(admin);
}

static void run_round(struct project *p, struct client *c, int sig)
{
    struct pg_fixture *f = p->f;
    pthread_t promoters[CLIENTS], readers[CLIENTS];
    atomic_store(&p->acknowledged, 0);
    atomic_store(&p->stop, false);
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(pthread_create(&promoters[i], NULL, promote, &c[i]), 0);
        assert_int_equal(pthread_create(&readers[i], NULL, look, &c[i]), 0);
    }
    uint64_t began = mlo_clock_ns();
    while (atomic_load(&p->acknowledged) < MOVES && mlo_clock_ns() - began < 60 * 1000000000ull)
        mlo_clock_sleep_ms(1);
    assert_int_equal(kill(mlo_embedded_pid(f->pg), sig), 0);
    /* a backend notices the SIGKILL of its parent when it waits next: the others' answers still count */
    atomic_store(&p->stop, sig == SIGKILL);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(promoters[i], NULL);
        pthread_join(readers[i], NULL);
    }
    assert_true(atomic_load(&p->acknowledged) >= MOVES);
    began = mlo_clock_ns();
    while (mlo_embedded_restart(f->pg, &f->err) != MLO_OK) {
        if (f->err.status != MLO_ECONFLICT || mlo_clock_ns() - began > 60 * 1000000000ull)
            fail_msg("PostgreSQL does not start again: %s", f->err.message);
        mlo_clock_sleep_ms(10);
    }
    heal(f->owner, f);
    heal(f->server, f);
}

static void test_kill_postgres__takes_nothing_back_that_was_told(void **state)
{
    struct pg_fixture *f = *state;
    struct project p = {.f = f};
    struct client c[CLIENTS];
    struct mlo_ledger *ledger;
    char *dir;
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlopt-ledger-", &dir, &f->err), &f->err);
    const struct mlo_ledger_options options = {.db = f->server, .dir = dir};
    assert_mlo_ok(mlo_ledger_open(&options, &ledger, &f->err), &f->err);
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "shop", &p.id, &f->err), &f->err);
    for (int i = 0; i < CLIENTS; i++)
        stock(&p, &c[i], i);
    quiet_log_writer(f);
    mlo_db_release(f->conn); /* it would not live */
    f->conn = NULL;
    for (int r = 0; r < ROUNDS; r++) {
        run_round(&p, c, r % 2 ? SIGKILL : SIGQUIT);
        for (int i = 0; i < CLIENTS; i++)
            check(&c[i]);
        histories(&p, ledger);
    }
    mlo_ledger_close(ledger);
    mlo_fs_remove_tree(dir);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        test_kill_postgres__takes_nothing_back_that_was_told, pg_fixture_setup, pg_fixture_teardown)};
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
