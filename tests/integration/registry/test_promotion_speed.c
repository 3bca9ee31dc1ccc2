/* What a promotion with gates, audit and ledger rows costs beside a bare commit of one row, in the same run,
 * with fsync as in production. It prints; it asserts only what does not depend on the machine. ROUNDS in the
 * environment asks for more (docs/performance.md says what was measured). */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pg_fixture.h"

enum { CLIENTS = 4, ROUNDS_MAX = 2000, WARM_UP = 6 /* of each connection: plans, caches */ };

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;
static const struct mlo_sql bare_commit = {
    "test_bare_commit", "INSERT INTO blob (digest, size) VALUES (sha256($1::text::bytea), 1)", 1};

struct client {
    struct pg_fixture *f;
    int64_t project_id, model_id;
    int number, rounds;
    double *bare_ms, *promote_ms;
    enum mlo_status status;
    struct mlo_error err;
};

static const char POLICY[] = "stages:\n"
                             "  production:\n"
                             "    - evidence: top1 >= 0.9\n"
                             "      younger_than: 30d\n"
                             "    - evidence: latency.p99[batch=1,threads=1] <= 1.2 * production\n"
                             "    - evidence: size <= 10000\n"
                             "    - provenance: derived\n";

static struct mlo_digest digest_of(const char *text)
{
    struct mlo_digest d;
    mlo_digest_of(text, strlen(text), &d);
    return d;
}

static void measure(struct pg_fixture *f, int64_t project, const struct mlo_digest *artifact,
                    const char *metric, const struct mlo_digest *data)
{
    json_t *params = json_pack("{s:i, s:i}", "batch", 1, "threads", 1);
    struct mlo_evidence e = {.project_id = project,
                             .artifact = *artifact,
                             .metric = metric,
                             .unit = "1",
                             .params = params,
                             .observed = {0.95, 0.94, 0.96},
                             .dataset = data,
                             .data_role = data ? "evaluate" : NULL,
                             .protocol = "p1",
                             .engine = "cpu",
                             .machine_class = "m"};
    for (int i = 0; i < 20; i++) /* a history of them */
        assert_mlo_ok(mlo_evidence_add(f->conn, &e, NULL, &f->err), &f->err);
    json_decref(params);
}

static void stock(struct client *c, const char *project)
{
    struct pg_fixture *f = c->f;
    char text[80];
    struct mlo_dataset_info data;
    struct mlo_manifest_blob d = {.role = "data", .name = "d.npz", .digest = digest_of("data")};
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, project, &c->project_id, &f->err), &f->err);
    snprintf(text, sizeof text, "m%d", c->number);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, c->project_id, text, &c->model_id, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_record(f->conn, &root, c->project_id, &d.digest, 9, &f->err), &f->err);
    assert_mlo_ok(
        mlo_dataset_version_create(f->conn, &root, c->project_id, "test", "", NULL, &d, 1, &data, &f->err),
        &f->err);
    for (int v = 1; v <= 2; v++) {
        struct mlo_version_info version;
        struct mlo_manifest_blob b = {.role = "model", .name = "m.onnx"};
        snprintf(text, sizeof text, "%s %d %d", project, c->number, v);
        b.digest = digest_of(text);
        assert_mlo_ok(mlo_blob_record(f->conn, &root, c->project_id, &b.digest, 9, &f->err), &f->err);
        assert_mlo_ok(mlo_version_create(f->conn, &root, c->model_id, "", &b, 1, &version, &f->err), &f->err);
        measure(f, c->project_id, &b.digest, "top1", &data.manifest);
        measure(f, c->project_id, &b.digest, "latency.p99", NULL);
    }
}

static double since_ms(uint64_t began_ns)
{
    return (double)(mlo_clock_ns() - began_ns) / 1e6;
}

/* A bare commit and a promotion in turn, so that both see the same machine. */
static void *work(void *arg)
{
    struct client *c = arg;
    struct mlo_db_conn *conn = NULL;
    struct mlo_release_choice source = {"any", "source"};
    c->status = mlo_db_acquire(c->f->server, &conn, &c->err);
    for (int64_t r = 0; c->status == MLO_OK && r < c->rounds + WARM_UP; r++) {
        int64_t n = r < WARM_UP ? 0 : r - WARM_UP; /* what warms up is written over */
        char text[64];
        struct mlo_params p = MLO_PARAMS_INIT;
        struct mlo_move move;
        struct mlo_promotion promotion = {.model_id = c->model_id,
                                          .version = r % 2 + 1,
                                          .choices = &source,
                                          .choice_count = 1,
                                          .stage = "production",
                                          .reason = "again",
                                          .if_match = &r};
        snprintf(text, sizeof text, "bare %lld %d %lld", (long long)c->project_id, c->number, (long long)r);
        mlo_param_text(&p, text);
        uint64_t began = mlo_clock_ns();
        c->status = mlo_db_exec(conn, &bare_commit, &p, NULL, &c->err);
        c->bare_ms[n] = since_ms(began);
        if (c->status != MLO_OK)
            break;
        began = mlo_clock_ns();
        c->status = mlo_stage_promote(conn, &root, &promotion, &move, &c->err);
        c->promote_ms[n] = since_ms(began);
    }
    mlo_db_release(conn);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *what, double *bare, double *promote, size_t n)
{
    qsort(bare, n, sizeof *bare, by_value);
    qsort(promote, n, sizeof *promote, by_value);
    print_message(
        "%s: bare commit p50 %.2f p99 %.2f ms, promotion p50 %.2f p99 %.2f ms: %.2f times the median "
        "(n = %zu each)\n",
        what, bare[n / 2], bare[n * 99 / 100], promote[n / 2], promote[n * 99 / 100],
        promote[n / 2] / bare[n / 2], n);
}

static void run(struct pg_fixture *f, bool one_project, int clients, int rounds)
{
    struct client c[CLIENTS];
    pthread_t threads[CLIENTS];
    size_t n = (size_t)(clients * rounds);
    double *bare = calloc(n, sizeof *bare), *promote = calloc(n, sizeof *promote);
    for (int i = 0; i < clients; i++) {
        char project[32];
        c[i] = (struct client){.f = f,
                               .number = i,
                               .rounds = rounds,
                               .bare_ms = bare + i * rounds,
                               .promote_ms = promote + i * rounds};
        snprintf(project, sizeof project, one_project ? "all%d" : "own%d-%d", clients, one_project ? 0 : i);
        stock(&c[i], project);
        if (i == 0 || !one_project) {
            struct mlo_policy_scope scope = {c[i].project_id, 0};
            int64_t none = 0;
            assert_mlo_ok(mlo_policy_set(f->conn, &root, &scope, POLICY, "", &none, NULL, &f->err), &f->err);
        }
    }
    for (int i = 0; i < clients; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &c[i]), 0);
    for (int i = 0; i < clients; i++) {
        pthread_join(threads[i], NULL);
        assert_mlo_ok(c[i].status, &c[i].err);
    }
    char what[80];
    snprintf(what, sizeof what, "%d client%s, %s", clients, clients == 1 ? "" : "s",
             one_project ? "models of one project" : "a project each");
    report(what, bare, promote, n);
    free(bare);
    free(promote);
}

static void test_promotion__costs_beside_a_bare_commit(void **state)
{
    struct pg_fixture *f = *state;
    const char *asked = getenv("ROUNDS");
    int64_t rounds = 25;
    if (asked)
        mlo_str_to_i64(asked, &rounds);
    assert_true(rounds > 0 && rounds <= ROUNDS_MAX);
    run(f, true, 1, (int)rounds);
    run(f, true, CLIENTS, (int)rounds);
    run(f, false, CLIENTS, (int)rounds);
}

/* As pg_fixture_start, but with fsync, on a disk: a commit that costs nothing is no measure. */
static int start(void **state)
{
    struct mlo_error err = {0};
    MLO_UNUSED(state);
    if (mlo_fs_tempdir("/var/tmp", "mlopt-pg-", &pg_fixture_dir, &err) != MLO_OK ||
        chmod(pg_fixture_dir, 0755) != 0)
        return -1;
    char *dir = mlo_fs_join(pg_fixture_dir, "pg", NULL);
    struct mlo_embedded_options options = {.dir = dir};
    enum mlo_status status = mlo_embedded_start(&options, &pg_fixture_server, &err);
    free(dir);
    if (status != MLO_OK)
        print_error("PostgreSQL does not start: %s\n", err.message);
    return status == MLO_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        test_promotion__costs_beside_a_bare_commit, pg_fixture_setup, pg_fixture_teardown)};
    return cmocka_run_group_tests(tests, start, pg_fixture_stop);
}
