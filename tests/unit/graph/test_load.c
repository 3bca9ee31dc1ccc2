/* Time and memory: loading, shape inference and verification of models that are not small. */
#include "../../cm.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "graph/graph.h"

#if defined(__SANITIZE_ADDRESS__)
enum { INSTRUMENTED = 1 };
#else
enum { INSTRUMENTED = 0 };
#endif

enum { BLOCKS = 25, SIDE = 1024 }; /* 25 matrices of 4 MiB */

static bool under_valgrind(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return preload && strstr(preload, "vgpreload");
}

static size_t status_kb(const char *field)
{
    char line[256];
    size_t kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0)
            kb = strtoul(line + strlen(field) + 1, NULL, 10);
    if (f)
        fclose(f);
    return kb;
}

/* Of the processor: another's load costs none of it. */
static double seconds(uint64_t since_ns)
{
    return (double)(mlo_clock_cpu_ns() - since_ns) / 1e9;
}

static struct mlo_model *chain_of_matrices(void)
{
    struct mlo_model *m = NULL;
    struct mlo_type type = {MLO_FLOAT32, 2, {{-1, "batch"}, {SIDE, NULL}}};
    assert_int_equal(mlo_model_new(13, &m, NULL), MLO_OK);
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type);
    assert_int_equal(mlo_graph_add_input(m->graph, x, NULL), MLO_OK);
    for (int i = 0; i < BLOCKS; i++) {
        struct mlo_tensor t;
        int64_t dims[2] = {SIDE, SIDE};
        char name[64]; /* of different lengths, so that data lies at every alignment */
        snprintf(name, sizeof name, "weight%.*s%d", i % 9, "_________", i);
        assert_int_equal(mlo_tensor_init(&t, MLO_FLOAT32, 2, dims, NULL), MLO_OK);
        for (size_t k = 0; k < SIDE * SIDE; k += 997)
            ((float *)t.data)[k] = (float)k;
        struct mlo_value *in[2] = {x, mlo_graph_add_constant_take(m->graph, name, &t)};
        x = mlo_graph_add_value(m->graph, "y", NULL);
        assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "MatMul", "dense", in, 2, &x, 1));
    }
    assert_int_equal(mlo_graph_add_output(m->graph, x, NULL), MLO_OK);
    assert_int_equal(mlo_graph_infer(m->graph, NULL), MLO_OK);
    return m;
}

/* How long this machine needs to read and copy the file's bytes once. */
static double copy_seconds(const char *path)
{
    struct mlo_buf bytes = MLO_BUF_INIT;
    struct mlo_error err = {0};
    uint64_t begin = mlo_clock_cpu_ns();
    assert_ok(mlo_fs_read(path, (size_t)1 << 30, &bytes, &err));
    double took = seconds(begin);
    mlo_buf_clear(&bytes);
    return took;
}

/* Loads `path` where memory of our own (what is private and writable; the file's mapping is not) cannot grow
 * by more than `kb` over what there is: the kernel refuses, so nothing that it reclaims meanwhile counts.
 * Returns the seconds. */
static double load_within(const char *path, size_t kb)
{
    struct mlo_error err = {0};
    struct mlo_model *m = NULL;
    struct rlimit before, limit;
    malloc_trim(0);
    assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)(status_kb("VmData") + kb) * 1024;
    assert_int_equal(setrlimit(RLIMIT_DATA, &limit), 0);
    uint64_t begin = mlo_clock_cpu_ns();
    enum mlo_status status = mlo_onnx_load(path, &m, &err);
    double took = seconds(begin);
    assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
    assert_ok(status);
    print_message("weights mapped: %zu MiB of the file, %zu MiB of our own\n", status_kb("RssFile") / 1024,
                  status_kb("RssAnon") / 1024);
    mlo_model_free(m);
    return took;
}

/* 100 MiB of weights: at most `percent` of that in memory of our own, at any moment, and half a second; a
 * machine that is slow at copying gets more. */
static void measure_load(const struct mlo_onnx_save_options *options, size_t percent)
{
    struct mlo_error err = {0};
    char *folder = NULL;
    if (INSTRUMENTED || under_valgrind())
        skip();
    assert_ok(mlo_fs_tempdir(NULL, "mlopt-load", &folder, &err));
    char *path = mlo_fs_join(folder, "m.onnx", NULL);
    struct mlo_model *m = chain_of_matrices();
    assert_ok(mlo_onnx_save_with(m, path, options, &err));
    mlo_model_free(m);
    double best = 1e9;
    size_t weights = (size_t)BLOCKS * SIDE * SIDE * 4 / 1024;
    for (int round = 0; round < 5; round++) {
        double took = load_within(path, weights * percent / 100);
        best = MLO_MIN(best, took);
    }
    double copy = copy_seconds(path);
    print_message("loaded in %.0f ms, copied in %.0f ms\n", best * 1e3, copy * 1e3);
    assert_true(best < MLO_MAX(0.5, 10 * copy));
    mlo_fs_remove_tree(folder);
    free(path);
    free(folder);
}

static void test_load__needs_little_time_and_memory(void **state)
{
    MLO_UNUSED(state);
    measure_load(&(struct mlo_onnx_save_options){0}, 120);
}

/* A second file is mapped: next to nothing is our own. */
static void test_load__maps_external_data(void **state)
{
    MLO_UNUSED(state);
    measure_load(&(struct mlo_onnx_save_options){.external = true}, 5);
}

/* 2,000 nodes: the target is 50 ms; a slow machine gets more before the test fails. */
static void test_infer__two_thousand_nodes(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = NULL;
    struct mlo_type type = {MLO_FLOAT32, 3, {{-1, "batch"}, {-1, "seq"}, {48, NULL}}};
    assert_ok(mlo_model_new(13, &m, &err));
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type), *shape, *again;
    assert_ok(mlo_graph_add_input(m->graph, x, &err));
    struct mlo_tensor t;
    int64_t dims[2] = {48, 48};
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, 2, dims, &err));
    struct mlo_value *w = mlo_graph_add_constant_take(m->graph, "w", &t);
    while (m->graph->node_count < 2000) {
        struct mlo_value *y = mlo_graph_add_value(m->graph, "y", NULL);
        shape = mlo_graph_add_value(m->graph, "s", NULL);
        again = mlo_graph_add_value(m->graph, "r", NULL);
        assert_non_null(
            mlo_graph_add_node(m->graph, NULL, "", "MatMul", "m", (struct mlo_value *[]){x, w}, 2, &y, 1));
        assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "Shape", "s", &y, 1, &shape, 1));
        assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "Reshape", "r",
                                           (struct mlo_value *[]){y, shape}, 2, &again, 1));
        x = mlo_graph_add_value(m->graph, "a", NULL);
        assert_non_null(
            mlo_graph_add_node(m->graph, NULL, "", "Add", "a", (struct mlo_value *[]){again, y}, 2, &x, 1));
    }
    assert_ok(mlo_graph_add_output(m->graph, x, &err));
    double best = 1e9;
    for (int round = 0; round < 3; round++) {
        uint64_t begin = mlo_clock_cpu_ns();
        assert_ok(mlo_graph_infer(m->graph, &err));
        assert_ok(mlo_graph_verify(m->graph, &err));
        best = MLO_MIN(best, seconds(begin));
    }
    print_message("%d nodes inferred and verified in %.1f ms\n", m->graph->node_count, best * 1e3);
    if (!INSTRUMENTED && !under_valgrind())
        assert_true(best < 0.2);
    char text[128];
    assert_string_equal(mlo_type_describe(&x->type, text, sizeof text), "float32[batch,seq,48]");
    mlo_model_free(m);
}

/* One value read a hundred thousand times, as a hostile file may say: time grows with it, not with its
 * square. */
static void test_verify__of_a_value_with_very_many_users(void **state)
{
    MLO_UNUSED(state);
    enum { READS = 100000 };
    struct mlo_error err = {0};
    struct mlo_model *m = NULL;
    struct mlo_type type = {MLO_FLOAT32, 1, {{1, NULL}}};
    assert_ok(mlo_model_new(13, &m, &err));
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type),
                     *y = mlo_graph_add_value(m->graph, "y", NULL);
    struct mlo_value **in = calloc(READS, sizeof *in);
    assert_non_null(in);
    assert_ok(mlo_graph_add_input(m->graph, x, &err));
    for (int i = 0; i < READS; i++)
        in[i] = x;
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "Sum", "s", in, READS, &y, 1));
    assert_ok(mlo_graph_add_output(m->graph, y, &err));
    uint64_t begin = mlo_clock_cpu_ns();
    assert_ok(mlo_graph_verify(m->graph, &err));
    print_message("verified in %.1f ms\n", seconds(begin) * 1e3);
    assert_true(seconds(begin) < (under_valgrind() ? 100 : INSTRUMENTED ? 20 : 2));
    x->uses[7] = x->uses[8];
    assert_int_equal(mlo_graph_verify(m->graph, &err), MLO_EINTERNAL);
    assert_contains(err.message, "listed twice");
    free(in);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load__needs_little_time_and_memory),
        cmocka_unit_test(test_load__maps_external_data),
        cmocka_unit_test(test_infer__two_thousand_nodes),
        cmocka_unit_test(test_verify__of_a_value_with_very_many_users),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
