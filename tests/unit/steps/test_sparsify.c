/* The step that makes weights zero: the bytes follow from the inputs alone, and errors say what to do. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "passes/sparsify.h"
#include "tests/unit/steps/step_run.h"

static void run_step(struct run *r, const struct mlo_model *model, int64_t samples, const char *options,
                     unsigned threads, int64_t batch)
{
    run_named(r, "sparsify", model, samples, options, threads, batch);
}

/* A Conv with BatchNormalization, a depthwise and a grouped Conv, a Gemm. */
static struct mlo_model *net(void)
{
    struct mlo_model *m = new_model(17);
    struct mlo_value *a =
        op(m, "Conv", "a", input(m, "x", -1, 4, 6, 6), noise(m, "wa", 0.3f, 1, 16, 4, 3, 3));
    set_ints(a, "pads", 1, 1, 1, 1);
    a = op(m, "BatchNormalization", "n", a,
           floats(m, "gain", LIST(1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8), 16),
           noise(m, "offset", 0.3f, 3, 16), noise(m, "mean", 0.3f, 4, 16),
           floats(m, "var", LIST(1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8), 16));
    struct mlo_value *d = op(m, "Conv", "d", op(m, "Relu", "ra", a), noise(m, "wd", 0.3f, 7, 16, 1, 3, 3));
    assert_true(mlo_node_set_i(d->producer, "group", 16));
    struct mlo_value *e = op(m, "Conv", "e", op(m, "HardSwish", "h", d), noise(m, "we", 0.3f, 8, 8, 8, 1, 1));
    assert_true(mlo_node_set_i(e->producer, "group", 2));
    finish(m, op(m, "Gemm", "y", op(m, "Flatten", "f", e), noise(m, "wy", 0.3f, 9, 128, 3),
                 noise(m, "by", 0.3f, 2, 3)));
    return m;
}

static void test_sparsify_step__threads_and_batch_leave_no_trace(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        unsigned threads;
        int64_t batch;
    } HOW[] = {{1, 0}, {2, 0}, {1, 1}, {3, 5}};
    static const char *const OPTIONS[] = {"{\"min_weights\": 0}",
                                          "{\"min_weights\": 0, \"pattern\": \"2:4\"}"};
    struct mlo_model *m = net();
    for (size_t o = 0; o < MLO_COUNT(OPTIONS); o++) {
        char first[MLO_DIGEST_TEXT_SIZE], text[MLO_DIGEST_TEXT_SIZE];
        for (size_t i = 0; i < MLO_COUNT(HOW); i++) {
            struct run r;
            run_step(&r, m, 37, OPTIONS[o], HOW[i].threads, HOW[i].batch);
            digest_of(&r, i ? text : first);
            if (i)
                assert_string_equal(text, first);
            clear(&r);
        }
    }
    mlo_model_free(m);
}

static void test_sparsify_step__reports_layers_and_what_stayed_dense(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = net();
    struct run r;
    struct mlo_error err = {0};
    size_t i;
    json_t *layer;
    run_step(&r, m, 40, "{\"min_weights\": 0, \"pattern\": \"2:4\"}", 1, 0);
    assert_int_equal(r.status, MLO_OK);
    const json_t *report = json_object_get(r.result.report, "sparsity");
    assert_int_equal(json_array_size(json_object_get(report, "layers")), 3);
    assert_true(mlo_json_f64(report, "sparsity", 0) == 0.5);
    json_array_foreach(json_object_get(report, "layers"), i, layer)
    {
        assert_string_equal(mlo_json_str(layer, "criterion", ""), "sparsegpt");
        assert_true(mlo_json_f64(layer, "output_error", 9) < 0.5);
    }
    const json_t *left = json_array_get(json_object_get(report, "left"), 0);
    assert_string_equal(mlo_json_str(left, "node", ""), "d_node");
    assert_contains(mlo_json_str(left, "why", ""), "sums over 1 channel");
    struct mlo_model *made = NULL; /* what was written is a model of the same shapes */
    assert_ok(mlo_onnx_load(r.result.artifact_path, &made, &err));
    assert_ok(mlo_graph_infer(made->graph, &err));
    assert_int_equal(count_ops(made, "BatchNormalization"), 0);
    double far = deviation(m, made);
    assert_true(far > 0 && far < 10);
    mlo_model_free(made);
    clear(&r);
    mlo_model_free(m);
}

static void test_sparsify_step__without_data(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = net();
    struct run r;
    run_step(&r, m, 0, "{\"min_weights\": 0, \"criterion\": \"sparsegpt\"}", 1, 0);
    assert_int_equal(r.status, MLO_EINVAL);
    assert_contains(r.err.message, "there is none");
    assert_contains(r.err.hint, "magnitude");
    clear(&r);
    run_step(&r, m, 0, "{\"min_weights\": 0, \"sparsity\": \"75%\"}", 1, 0);
    assert_int_equal(r.status, MLO_OK);
    const json_t *report = json_object_get(r.result.report, "sparsity");
    assert_string_equal(mlo_json_str(report, "criterion", ""), "magnitude");
    assert_true(mlo_json_f64(report, "sparsity", 0) == 0.75);
    clear(&r);
    mlo_model_free(m);
}

/* A Conv whose output is one position has a row in a sample, like a Gemm, and is observed on all of them. */
static void test_sparsify_step__convs_of_one_position_see_all_samples(void **state)
{
    MLO_UNUSED(state);
    enum { SAMPLES = 120 };
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(17);
    struct mlo_value *a = op(m, "Conv", "a", input(m, "x", -1, 4, 6, 6), noise(m, "wa", 0.3f, 1, 8, 4, 3, 3));
    finish(m, op(m, "Conv", "b", op(m, "Relu", "r", a), noise(m, "wb", 0.3f, 2, 4, 8, 4, 4)));
    assert_ok(mlo_graph_infer(m->graph, &err));
    struct mlo_tensor x = {0};
    char path[] = "/tmp/mlopt-test-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 4, DIMS(SAMPLES, 4, 6, 6), &err));
    memset(x.data, 0, x.size_bytes);
    assert_ok(mlo_npz_write(path, &(struct mlo_npz_array){"x", &x}, 1, &err));
    mlo_tensor_clear(&x);
    json_t *given = json_object(), *options = NULL;
    assert_ok(mlo_options_resolve(mlo_step_find("sparsify")->options, given, &options, &err));
    const struct mlo_step_context ctx = {.options = options, .calibrate_path = path, .threads = 1};
    struct mlo_dataset *dataset = NULL;
    struct mlo_stats_wants wants = {0};
    struct mlo_stats stats;
    mlo_stats_init(&stats);
    json_object_set_new(options, "min_weights", json_integer(0));
    assert_ok(mlo_sparsify_wanted(m, options, &wants, &err));
    assert_int_equal(wants.count, 2);
    assert_ok(mlo_step_open_calibration(&ctx, m, &dataset, &err));
    assert_ok(mlo_step_observe_grams(&ctx, m, dataset, &wants, 0, 1, &stats, &err));
    assert_int_equal(mlo_stats_find_gram(&stats, node_named(m, "a_node"))->rows, 96 * 16);
    assert_int_equal(mlo_stats_find_gram(&stats, node_named(m, "b_node"))->rows, SAMPLES);
    mlo_dataset_close(dataset);
    mlo_stats_wants_clear(&wants);
    mlo_stats_clear(&stats);
    unlink(path);
    json_decref(given);
    json_decref(options);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sparsify_step__threads_and_batch_leave_no_trace),
        cmocka_unit_test(test_sparsify_step__reports_layers_and_what_stayed_dense),
        cmocka_unit_test(test_sparsify_step__without_data),
        cmocka_unit_test(test_sparsify_step__convs_of_one_position_see_all_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
