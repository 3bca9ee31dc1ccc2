/* What is timed, with which threads, and what is profiled. This program is its own child of the benchmark. */
#include <stdio.h>
#include <string.h>

#include "tests/unit/steps/step_run.h"

enum { WIDE = 64, FILES_MAX = 16 };

struct timed {
    struct mlo_step_result result;
    char dir[64], model[96], source[96], data[96];
};

/* x[batch, 64] -> MatMul -> Relu, twice; the variant is another file than the source. */
static void make_inputs_of(struct timed *t)
{
    struct mlo_error err = {0};
    struct mlo_model *m = NULL;
    struct mlo_tensor data = {0};
    struct mlo_type type = {MLO_FLOAT32, 2, {{-1, "batch"}, {WIDE, NULL}}, NULL};
    assert_ok(mlo_model_new(17, &m, &err));
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type),
                     *y = mlo_graph_add_value(m->graph, "y", NULL),
                     *out = mlo_graph_add_value(m->graph, "z", NULL);
    struct mlo_value *in[] = {x, noise(m, "w", 1, 3, WIDE, WIDE)};
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "MatMul", "matmul", in, 2, &y, 1));
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "Relu", "relu", &y, 1, &out, 1));
    assert_ok(mlo_graph_add_input(m->graph, x, &err));
    assert_ok(mlo_graph_add_output(m->graph, out, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    assert_ok(mlo_onnx_save(m, t->model, &err));
    assert_ok(mlo_onnx_save(m, t->source, &err));
    mlo_model_free(m);
    assert_ok(mlo_tensor_init(&data, MLO_FLOAT32, 2, (int64_t[]){4, WIDE}, &err));
    assert_ok(mlo_npz_write(t->data, &(struct mlo_npz_array){"x", &data}, 1, &err));
    mlo_tensor_clear(&data);
}

static void time_it(struct timed *t, const char *step, const char *options)
{
    struct mlo_error err = {0};
    const struct mlo_step *row = mlo_step_find(step);
    json_t *given = json_loads(options, 0, NULL), *resolved = NULL;
    *t = (struct timed){.dir = "/tmp/mlopt-test-XXXXXX"};
    assert_true(given && row && mkdtemp(t->dir));
    snprintf(t->model, sizeof t->model, "%s/m.onnx", t->dir);
    snprintf(t->source, sizeof t->source, "%s/s.onnx", t->dir);
    snprintf(t->data, sizeof t->data, "%s/x.npz", t->dir);
    make_inputs_of(t);
    assert_ok(mlo_options_resolve(row->options, given, &resolved, &err));
    const struct mlo_step_context ctx = {.options = resolved,
                                         .model_path = t->model,
                                         .source_path = t->source,
                                         .select_path = t->data,
                                         .out_dir = t->dir,
                                         .threads = 1,
                                         .batch = 4};
    assert_ok(row->run(&ctx, &t->result, &err));
    json_decref(given);
    json_decref(resolved);
}

static void timed_clear(struct timed *t)
{
    mlo_step_result_clear(&t->result);
    mlo_fs_remove_tree(t->dir);
}

static size_t seen_of(const struct timed *t, const char *metric, const json_t *found[FILES_MAX])
{
    const json_t *row;
    size_t i, n = 0;
    json_array_foreach(t->result.observations, i, row)
    {
        if (strcmp(mlo_json_str(row, "metric", ""), metric) == 0 &&
            strcmp(mlo_json_str(row, "subject", ""), "variant") == 0 && n < FILES_MAX)
            found[n++] = row;
    }
    return n;
}

/* The source has one thread, the variant two: so has its profile. And after the profile of the first batch
 * the second one has the CPUs that the first had. */
static void test_benchmark__profiles_the_variant_as_it_was_timed(void **state)
{
    MLO_UNUSED(state);
    struct timed t;
    const json_t *rows[FILES_MAX] = {NULL};
    time_it(&t, "benchmark",
            "{\"batch\":[1,4],\"threads\":2,\"source_threads\":1,\"compare_to\":\"source\",\"seconds\":0.05,"
            "\"rounds\":2}");
    assert_int_equal(seen_of(&t, "profile.total", rows), 2);
    for (size_t i = 0; i < 2; i++) {
        struct mlo_error err = {0};
        struct mlo_buf text = MLO_BUF_INIT;
        json_t *profile = NULL;
        assert_int_equal(mlo_json_i64(json_object_get(rows[i], "params"), "threads", 0), 2);
        assert_ok(mlo_fs_read(mlo_json_str(rows[i], "samples", ""), 1 << 20, &text, &err));
        assert_ok(mlo_json_parse(mlo_buf_str(&text), text.len, "profile", &profile, &err));
        assert_int_equal(mlo_json_i64(profile, "threads", 0), 2);
        assert_int_equal(mlo_json_i64(profile, "batch", 0), i ? 4 : 1);
        json_decref(profile);
        mlo_buf_clear(&text);
    }
    timed_clear(&t);
}

static void test_trial__judges_and_times_and_does_not_profile(void **state)
{
    MLO_UNUSED(state);
    struct timed t;
    const json_t *rows[FILES_MAX] = {NULL};
    time_it(&t, "trial",
            "{\"metrics\":[\"agreement\"],\"compare_to\":\"source\",\"batch\":[1],\"seconds\":0.05,"
            "\"rounds\":2}");
    assert_int_equal(seen_of(&t, "agreement", rows), 1);
    assert_int_equal(seen_of(&t, "latency.p50", rows), 1);
    assert_non_null(json_object_get(json_object_get(rows[0], "against"), "ratio"));
    assert_int_equal(seen_of(&t, "profile.total", rows), 0);
    timed_clear(&t);
}

/* A part of the four samples where judging all of them would take long, by what the source was timed at. */
static void test_trial__judges_all_where_that_is_cheap(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *options;
        int64_t judged;
    } cases[] = {{"\"samples\":2", 2},
                 {"\"samples\":2,\"all_within\":1e-9", 2},
                 {"\"samples\":2,\"all_within\":100", 4},
                 {"\"samples\":0", 4}};
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct timed t;
        char options[200];
        const json_t *rows[FILES_MAX] = {NULL};
        snprintf(options, sizeof options,
                 "{\"metrics\":[\"agreement\"],\"compare_to\":\"source\",\"seconds\":0.05,\"rounds\":2,%s}",
                 cases[i].options);
        time_it(&t, "trial", options);
        assert_int_equal(seen_of(&t, "agreement", rows), 1);
        assert_int_equal(mlo_json_i64(rows[0], "n", 0), cases[i].judged);
        assert_int_equal(mlo_json_i64(json_object_get(rows[0], "params"), "samples", 0),
                         cases[i].judged == 2 ? 2 : 0);
        timed_clear(&t);
    }
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "bench-child") == 0) {
        struct mlo_error err = {0};
        return mlo_bench_child_args(argc - 2, argv + 2, STDOUT_FILENO, &err) == MLO_OK ? 0 : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_benchmark__profiles_the_variant_as_it_was_timed),
        cmocka_unit_test(test_trial__judges_and_times_and_does_not_profile),
        cmocka_unit_test(test_trial__judges_all_where_that_is_cheap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
