/* The benchmark: this program is its own child. A model path that begins with "script:" makes the child
 * answer as the case needs; any other one is measured for real. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "passes/sparsify.h"
#include "pipeline/measure/bench_impl.h"
#include "pipeline/measure/cpus_impl.h"
#include "tests/unit/measure/fixture.h"

/* script:NAME — appends NAME to the file in $MLO_TEST_ORDER, so that the order of processes can be seen. */
static int scripted_child(int argc, char **argv)
{
    const char *what = argv[2] + strlen("script:");
    const char *order = getenv("MLO_TEST_ORDER");
    FILE *log = order ? fopen(order, "a") : NULL;
    if (log) {
        fprintf(log, "%c", *what);
        fclose(log);
    }
    if (strcmp(what, "dies") == 0) {
        fputs("it hurts\nmore\n", stderr);
        return 9;
    }
    if (strcmp(what, "talks") == 0)
        return puts("no JSON") < 0;
    if (strcmp(what, "refuses") == 0) {
        puts("{\"error\": {\"code\": \"unsupported\", \"message\": \"no op Foo\", \"where\": \"node 'n'\", "
             "\"hint\": \"use Bar\"}}");
        return 1;
    }
    cpu_set_t cpus;
    bool whole = argc == 11 && strcmp(argv[3], "--engine") == 0 && strcmp(argv[5], "--batch") == 0 &&
                 strcmp(argv[7], "--threads") == 0 && strcmp(argv[9], "--seconds") == 0;
    if (!whole || sched_getaffinity(0, sizeof cpus, &cpus) != 0)
        return 8;
    double base = *what == 'a' ? 100 : 50; /* b takes half the time */
    printf("{\"engine\": \"cpus %d, batch %s\", \"peak_rss_bytes\": %d, \"samples\": [", CPU_COUNT(&cpus),
           argv[6], *what == 'a' ? 1000 : 2000);
    for (int i = 0; i < 100; i++)
        printf("%s%.1f", i ? "," : "", base + i % 10);
    puts("]}");
    return 0;
}

static void test_bench__alternates_and_gives_the_ratio(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_bench_options o = {.batch = 4, .threads = 1, .seconds = 1, .rounds = 4};
    struct mlo_bench_result r;
    struct mlo_buf order = MLO_BUF_INIT;
    const char *log = in_scratch("order");
    setenv("MLO_TEST_ORDER", log, 1);
    assert_ok(mlo_bench("script:a", "script:b", &o, &r, NULL, NULL, &err));
    assert_ok(mlo_fs_read(log, 100, &order, &err));
    assert_string_equal(mlo_buf_str(&order), "abbaabba");
    mlo_buf_clear(&order);
    unsetenv("MLO_TEST_ORDER");
    assert_true(r.a.p50_us.value == 104.5 && r.b.p50_us.value == 54.5);
    assert_int_equal(r.a.p50_us.n, 400);
    assert_true(fabs(r.ratio_p50.value - 54.5 / 104.5) < 1e-12);
    assert_true(r.ratio_p50.low <= r.ratio_p50.value && r.ratio_p50.value <= r.ratio_p50.high);
    assert_int_equal(r.ratio_p50.n, 4);
    assert_true(r.a.p99_us.value == 109 && r.a.p90_us.value > 107 && r.a.p90_us.value <= 109);
    assert_true(fabs(r.a.throughput - 4 / 104.5e-6) < 1e-6);
    assert_int_equal(r.b.peak_rss_bytes, 2000);
    assert_int_equal(json_array_size(r.a.samples), 4);
    assert_int_equal(json_array_size(json_array_get(r.b.samples, 3)), 100);
    assert_int_equal(json_array_size(json_object_get(r.machine, "load_average_before")), 3);
    assert_string_equal(mlo_json_str(r.machine, "protocol", ""), MLO_BENCH_PROTOCOL);
    /* pinned to one CPU, unless there is no other to choose from */
    assert_contains(mlo_json_str(r.machine, "engine", ""), "cpus 1, batch 4");
    assert_int_equal(json_array_size(json_object_get(r.machine, "pinned_cpus")), mlo_cpu_count() > 1);
    mlo_bench_result_clear(&r);
}

/* Sparse weights are put together when a model is loaded, not in each call that is timed. */
static void test_bench__packed_weights_are_constants(void **state)
{
    (void)state;
    enum { SIZE = 700 };
    struct mlo_error err = {0};
    struct mlo_model *m = NULL;
    struct mlo_tensor w = {0};
    struct mlo_type type = {MLO_FLOAT32, 2, {{-1, "batch"}, {SIZE, NULL}}, NULL};
    struct mlo_pass_context ctx = {.notes = json_array()};
    struct mlo_bench_options o = {.batch = 1, .threads = 1};
    struct mlo_bench_loaded l;
    json_t *report = NULL;
    assert_ok(mlo_model_new(17, &m, &err));
    assert_ok(mlo_tensor_init(&w, MLO_FLOAT32, 2, (int64_t[]){SIZE, SIZE}, &err));
    for (size_t i = 0; i < SIZE * SIZE; i++)
        ((float *)w.data)[i] = (float)(i % 2);
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type);
    struct mlo_value *in[] = {x, mlo_graph_add_constant_take(m->graph, "w", &w)};
    struct mlo_value *y = mlo_graph_add_value(m->graph, "y", NULL);
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "MatMul", "matmul", in, 2, &y, 1));
    assert_ok(mlo_graph_add_input(m->graph, x, &err));
    assert_ok(mlo_graph_add_output(m->graph, y, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    assert_ok(mlo_sparse_pack(m, &ctx, &report, &err));
    assert_int_equal(mlo_json_i64(report, "tensors", 0), 1);
    const char *path = in_scratch("packed.onnx");
    assert_ok(mlo_onnx_save(m, path, &err));
    assert_ok(mlo_bench_open(path, &o, &l, &err));
    assert_int_equal(l.model->graph->node_count, 1);
    mlo_bench_close(&l);
    json_decref(report);
    json_decref(ctx.notes);
    mlo_model_free(m);
}

static void test_bench__one_model_alone(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_bench_options o = {0};
    struct mlo_bench_result r;
    assert_ok(mlo_bench("script:a", NULL, &o, &r, NULL, NULL, &err));
    assert_int_equal(json_array_size(r.a.samples), 5);
    assert_null(r.b.samples);
    assert_true(r.ratio_p50.n == 0 && r.a.p50_us.low == r.a.p50_us.high);
    mlo_bench_result_clear(&r);
}

static void test_bench__failures_of_the_child_are_told_as_they_are(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_bench_options o = {.rounds = 2};
    struct mlo_bench_result r;
    assert_int_equal(mlo_bench("script:a", "script:refuses", &o, &r, NULL, NULL, &err), MLO_EUNSUPPORTED);
    assert_string_equal(err.message, "no op Foo");
    assert_string_equal(err.where, "node 'n'");
    assert_string_equal(err.hint, "use Bar");
    assert_null(r.a.samples);
    assert_int_equal(mlo_bench("script:dies", NULL, &o, &r, NULL, NULL, &err), MLO_EINTERNAL);
    assert_contains(err.message, "status 9 and no result: it hurts");
    assert_int_equal(mlo_bench("script:talks", NULL, &o, &r, NULL, NULL, &err), MLO_EINTERNAL);
    o.exe = "/nonexistent/mlopt";
    assert_int_equal(mlo_bench("script:a", NULL, &o, &r, NULL, NULL, &err), MLO_ENOTFOUND);
    o = (struct mlo_bench_options){.rounds = 1};
    assert_int_equal(mlo_bench("script:a", NULL, &o, &r, NULL, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "rounds");
}

static void test_bench__child_checks_its_arguments(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    char *odd[] = {"m.onnx", "--batch"}, *zero[] = {"m.onnx", "--batch", "0"},
         *unknown[] = {"m.onnx", "--x", "1"}, *engine[] = {"m.onnx", "--engine", "none"};
    assert_int_equal(mlo_bench_child_args(2, odd, 1, &err), MLO_EUSAGE);
    assert_int_equal(mlo_bench_child_args(3, zero, 1, &err), MLO_EUSAGE);
    assert_contains(err.message, "--batch must be a number above 0, not '0'");
    assert_int_equal(mlo_bench_child_args(3, unknown, 1, &err), MLO_EUSAGE);
    assert_int_equal(mlo_bench_child_args(3, engine, 1, &err), MLO_ENOTFOUND);
}

static void test_cpus__chooses_as_many_as_asked(void **state)
{
    (void)state;
    cpu_set_t allowed, chosen;
    unsigned n = mlo_cpu_count();
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    assert_false(mlo_cpus_choose(n, &chosen));
    assert_false(mlo_cpus_choose(n + 1, &chosen));
    if (n < 2)
        skip();
    assert_true(mlo_cpus_choose(n - 1, &chosen));
    assert_int_equal(CPU_COUNT(&chosen), n - 1);
    CPU_AND(&allowed, &allowed, &chosen);
    assert_int_equal(CPU_COUNT(&allowed), n - 1);
}

/* x[batch, 8] -> Relu, saved as a file. */
static const char *save_model(const char *name, int64_t batch)
{
    struct mlo_error err = {0};
    const char *path = in_scratch(name);
    struct mlo_model *model = shell_model();
    struct mlo_type type = make_type(MLO_FLOAT32, 2, DIMS(batch, 8));
    struct mlo_value *in = shell_input(model, "x", MLO_FLOAT32, 2, DIMS(batch, 8));
    struct mlo_value *out = mlo_graph_add_value(model->graph, "result", &type);
    assert_non_null(mlo_graph_add_node(model->graph, NULL, "", "Relu", "relu", &in, 1, &out, 1));
    assert_ok(mlo_graph_add_output(model->graph, out, &err));
    assert_ok(mlo_onnx_save(model, path, &err));
    mlo_model_free(model);
    return path;
}

static void test_bench__measures_a_real_model(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_bench_options o = {.batch = 4, .threads = 1, .seconds = 0.4, .rounds = 2};
    struct mlo_bench_result r;
    const char *dynamic = save_model("dynamic.onnx", -1), *fixed = save_model("fixed.onnx", 1);
    assert_ok(mlo_engine_find("reference", &o.engine, &err));
    assert_ok(mlo_bench(dynamic, dynamic, &o, &r, NULL, NULL, &err));
    assert_true(r.a.p50_us.value > 0 && r.a.p50_us.value <= r.a.p99_us.value);
    assert_true(r.a.p50_us.n >= 20 && r.a.peak_rss_bytes > 1000000 && r.ratio_p50.value > 0);
    for (size_t i = 0; i < json_array_size(r.a.samples); i++) /* a fast model's report stays small */
        assert_in_range(json_array_size(json_array_get(r.a.samples, i)), 10, 20000);
    mlo_bench_result_clear(&r);
    assert_int_equal(mlo_bench(fixed, NULL, &o, &r, NULL, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "fixed at 1: it cannot be measured at 4");
    assert_contains(err.where, "fixed.onnx");
    assert_int_equal(mlo_bench(in_scratch("absent.onnx"), NULL, &o, &r, NULL, NULL, &err), MLO_ENOTFOUND);
}

/* In the process of who asks, which measures other things after it. */
static void test_profile__gives_the_cpus_back(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_bench_options o = {.batch = 2, .threads = 1, .no_roof = true};
    cpu_set_t before, after;
    json_t *profile = NULL;
    const char *path = save_model("profiled.onnx", -1);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_ok(mlo_profile(path, &o, &profile, &err));
    assert_true(mlo_json_f64(profile, "total_us", 0) > 0);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    json_decref(profile);
    /* also where it ends early */
    assert_int_not_equal(mlo_profile(in_scratch("absent.onnx"), &o, &profile, &err), MLO_OK);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

static void test_sweep__measures_every_point_and_finds_the_best(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_sweep_result r;
    static const int64_t batches[] = {1, 64};
    static const unsigned together[] = {1, 3};
    const char *dynamic = save_model("sweep.onnx", -1), *fixed = save_model("sweep-fixed.onnx", 2);
    struct mlo_sweep_options o = {.bench = {.seconds = 0.03, .rounds = 2},
                                  .batches = batches,
                                  .batch_count = 2,
                                  .concurrencies = together,
                                  .concurrency_count = 2};
    assert_ok(mlo_engine_find("reference", &o.bench.engine, &err));
    assert_ok(mlo_sweep(dynamic, &o, &r, NULL, NULL, &err));
    assert_int_equal(r.count, 4);
    for (size_t i = 0; i < r.count; i++) {
        const struct mlo_sweep_point *p = &r.points[i];
        assert_int_equal(p->batch, batches[i / 2]);
        assert_int_equal(p->concurrency, together[i % 2]);
        assert_true(p->p50_us > 0 && p->p50_us <= p->p90_us && p->p90_us <= p->p95_us &&
                    p->p95_us <= p->p99_us);
        assert_true(p->low <= p->throughput && p->throughput <= p->high && p->within);
        assert_true(p->calls >= 20 * p->concurrency); /* each thread of each round has its ten */
        assert_true(p->throughput <= r.points[r.best].throughput);
    }
    assert_non_null(json_object_get(r.machine, "class"));
    mlo_sweep_result_clear(&r);
    o.p99_limit_us = 1e-6;
    assert_ok(mlo_sweep(dynamic, &o, &r, NULL, NULL, &err));
    assert_int_equal(r.best, -1);
    mlo_sweep_result_clear(&r);
    assert_int_equal(mlo_sweep(fixed, &o, &r, NULL, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "fixed at 2");
    o.batch_count = 0;
    o.p99_limit_us = 0;
    assert_ok(mlo_sweep(fixed, &o, &r, NULL, NULL, &err));
    assert_int_equal(r.count, 2);
    assert_int_equal(r.points[1].batch, 2);
    mlo_sweep_result_clear(&r);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "bench-child") == 0) {
        struct mlo_error err = {0};
        if (mlo_str_starts(argv[2], "script:"))
            return scripted_child(argc, argv);
        return mlo_bench_child_args(argc - 2, argv + 2, STDOUT_FILENO, &err) == MLO_OK ? 0 : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bench__alternates_and_gives_the_ratio),
        cmocka_unit_test(test_bench__one_model_alone),
        cmocka_unit_test(test_bench__failures_of_the_child_are_told_as_they_are),
        cmocka_unit_test(test_bench__child_checks_its_arguments),
        cmocka_unit_test(test_cpus__chooses_as_many_as_asked),
        cmocka_unit_test(test_bench__measures_a_real_model),
        cmocka_unit_test(test_profile__gives_the_cpus_back),
        cmocka_unit_test(test_sweep__measures_every_point_and_finds_the_best),
        cmocka_unit_test(test_bench__packed_weights_are_constants), /* the last: it pins this process */
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
