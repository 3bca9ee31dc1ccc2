/* The steps that keep accuracy, run as jobs run them: equal bytes for any batch, threads and instruction set,
 * and less error than plain quantization on a net with weights of very different ranges. */
#include "engines/engines_impl.h"
#include "pipeline/steps/steps.h"
#include "tests/unit/passes/passes_helpers.h"

enum { SAMPLES = 40, PIXELS = 2 * 8 * 8 };

static char *g_dir, *g_data;

static struct mlo_value *layer(struct mlo_model *m, const char *name, struct mlo_value *x, int64_t out,
                               int64_t per_group, int64_t kernel, int64_t group)
{
    char w[32], b[32];
    struct mlo_tensor t = {0};
    struct mlo_error err = {0};
    uint32_t seed = (uint32_t)(out * 31 + per_group * 7 + kernel);
    snprintf(w, sizeof w, "%s_w", name);
    snprintf(b, sizeof b, "%s_b", name);
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, 4, DIMS(out, per_group, kernel, kernel), &err));
    int64_t per_row = per_group * kernel * kernel;
    for (int64_t i = 0; i < out * per_row; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)t.data)[i] = ((float)(seed >> 8) / 8388608.0f - 0.9f) * (i / per_row % 3 ? 0.05f : 1.0f);
    }
    struct mlo_value *y = op(m, "Conv", name, x, constant_take(m, w, &t), ramp(m, b, 0.05f, out));
    set_ints(y, "pads", kernel / 2, kernel / 2, kernel / 2, kernel / 2);
    assert_true(mlo_node_set_i(y->producer, "group", group));
    return y;
}

static struct mlo_model *net(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 2, 8, 8);
    x = op(m, "Relu", "r1", layer(m, "c1", x, 12, 2, 3, 1));
    x = op(m, "Relu", "r2", layer(m, "c2", x, 12, 1, 3, 12));
    x = op(m, "Relu", "r3", layer(m, "c3", x, 8, 12, 1, 1));
    x = op(m, "Flatten", "flat", op(m, "GlobalAveragePool", "pool", x));
    finish(m, op(m, "Gemm", "y", x, ramp(m, "fc_w", 0.1f, 8, 5), ramp(m, "fc_b", 0.1f, 5)));
    return m;
}

static char *path_of(const char *name)
{
    char *path = mlo_fs_join(g_dir, name, NULL);
    assert_non_null(path);
    return path;
}

static int setup(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_tensor x = {0};
    assert_ok(mlo_fs_tempdir(NULL, "mlopt-recovery-", &g_dir, &err));
    g_data = path_of("data.npz");
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 4, DIMS(SAMPLES, 2, 8, 8), &err));
    uint32_t seed = 5;
    for (int i = 0; i < SAMPLES * PIXELS; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)x.data)[i] = (float)(seed >> 8) / 8388608.0f - 0.5f;
    }
    struct mlo_npz_array array = {"x", &x};
    assert_ok(mlo_npz_write(g_data, &array, 1, &err));
    mlo_tensor_clear(&x);
    return 0;
}

static int teardown(void **state)
{
    MLO_UNUSED(state);
    mlo_fs_remove_tree(g_dir);
    free(g_dir);
    free(g_data);
    return 0;
}

struct how {
    int64_t batch;
    unsigned threads;
    int isa;
};

/* Runs the step on the model at `path`; *report may be NULL. The artifact's path is yours. */
static char *run_step(const char *name, const char *options, const char *path, const struct how *how,
                      json_t **report)
{
    struct mlo_error err = {0};
    const struct mlo_step *step = mlo_step_find(name);
    assert_non_null(step);
    json_t *given = json_loads(options, 0, NULL), *resolved = NULL;
    assert_ok(mlo_options_resolve(step->options, given, &resolved, &err));
    struct mlo_step_result result = {0};
    struct mlo_step_context ctx = {.options = resolved,
                                   .model_path = path,
                                   .source_path = path,
                                   .calibrate_path = step->needs_calibrate ? g_data : NULL,
                                   .out_dir = g_dir,
                                   .threads = how->threads,
                                   .batch = how->batch};
    mlo_isa_override(how->isa);
    enum mlo_status status = step->run(&ctx, &result, &err);
    mlo_isa_override(-1);
    if (status != MLO_OK)
        fail_msg("%s: %s", name, err.message);
    char *artifact = result.artifact_path;
    result.artifact_path = NULL;
    if (report)
        *report = json_incref(result.report);
    mlo_step_result_clear(&result);
    json_decref(given);
    json_decref(resolved);
    return artifact;
}

static char *save_net(const char *name)
{
    struct mlo_error err = {0};
    struct mlo_model *m = net();
    char *path = path_of(name);
    assert_ok(mlo_onnx_save(m, path, &err));
    mlo_model_free(m);
    return path;
}

static void test_steps__give_equal_bytes_everywhere(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *step, *options;
    } CASES[] = {
        {"equalize", "{}"},
        {"smooth", "{}"},
        {"quantize", "{\"rounding\": \"adaround\", \"bias_correction\": \"full\", \"calibrator\": \"auto\"}"},
        {"quantize", "{\"rounding\": \"gptq\", \"bias_correction\": \"fast\"}"},
        {"round-weights", "{\"rounding\": \"gptq\", \"min_weights\": 0, \"block\": 16}"},
    };
    static const struct how HOWS[] = {{1, 1, MLO_ISA_AVX2},
                                      {8, 2, MLO_ISA_AVX2},
                                      {32, 1, MLO_ISA_AVX512},
                                      {1, 2, MLO_ISA_AVX512},
                                      {32, 2, MLO_ISA_AVX2}};
    char *source = save_net("source.onnx");
    for (size_t c = 0; c < MLO_COUNT(CASES); c++) {
        struct mlo_digest first = {{0}}, digest;
        for (size_t h = 0; h < (in_short() ? 2 : MLO_COUNT(HOWS)); h++) {
            struct mlo_error err = {0};
            char *made = run_step(CASES[c].step, CASES[c].options, source, &HOWS[h], NULL);
            assert_ok(mlo_digest_of_file(made, &digest, NULL, &err));
            free(made);
            if (h == 0)
                first = digest;
            else if (!mlo_digest_eq(&first, &digest))
                fail_msg("%s %s: other bytes at batch %d, %u threads, isa %d", CASES[c].step,
                         CASES[c].options, (int)HOWS[h].batch, HOWS[h].threads, HOWS[h].isa);
        }
    }
    free(source);
}

/* The mean squared error of a model's outputs on the data, against the net. */
static double error_of(const char *path)
{
    struct mlo_error err = {0};
    struct mlo_model *m = NULL, *before = net();
    struct mlo_dataset_options data = {0};
    struct mlo_dataset *dataset = NULL;
    struct mlo_tensor x = {0}, a = {0}, b = {0};
    double total = 0;
    assert_ok(mlo_onnx_load(path, &m, &err));
    assert_ok(mlo_dataset_open(g_data, &data, &dataset, &err));
    assert_ok(mlo_dataset_read(dataset, before, 0, SAMPLES, &x, &err));
    assert_ok(mlo_graph_eval(before->graph, &x, &a, &err));
    assert_ok(mlo_graph_eval(m->graph, &x, &b, &err));
    for (size_t i = 0; i < mlo_tensor_count(&a); i++)
        total += pow(mlo_tensor_get_f64(&a, i) - mlo_tensor_get_f64(&b, i), 2);
    total /= (double)mlo_tensor_count(&a);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&a);
    mlo_tensor_clear(&b);
    mlo_dataset_close(dataset);
    mlo_model_free(m);
    mlo_model_free(before);
    return total;
}

static double quantized_error(const char *source, const char *options, json_t **report)
{
    const struct how plain = {8, 1, -1};
    char *made = run_step("quantize", options, source, &plain, report);
    double error = error_of(made);
    free(made);
    return error;
}

static void test_steps__leave_less_error(void **state)
{
    MLO_UNUSED(state);
    const struct how plain = {8, 1, -1};
    char *source = save_net("source.onnx"), *made = run_step("equalize", "{}", source, &plain, NULL);
    char *equalized = path_of("equalized.onnx");
    assert_int_equal(rename(made, equalized), 0);
    free(made);
    json_t *report = NULL;
    /* Per tensor, weights of small channels have few steps left: that is what equalization is for. */
    double tensor = quantized_error(source, "{\"per_channel\": false}", NULL);
    double even = quantized_error(equalized, "{\"per_channel\": false}", NULL);
    double fast = quantized_error(source, "{\"per_channel\": false, \"bias_correction\": \"fast\"}", NULL);
    double full = quantized_error(source, "{\"per_channel\": false, \"bias_correction\": \"full\"}", &report);
    double ada = quantized_error(source, "{\"per_channel\": false, \"rounding\": \"adaround\"}", NULL);
    if (!(even < 0.75 * tensor && fast < 0.8 * tensor && full < 0.5 * tensor && ada < 0.95 * tensor))
        fail_msg("plain %g, equalized %g, bias fast %g, full %g, adaround %g", tensor, even, fast, full, ada);
    size_t i, corrected = 0;
    json_t *pass;
    json_array_foreach(json_object_get(report, "passes"), i, pass)
    {
        corrected += strcmp(mlo_json_str(pass, "pass", ""), "correct-bias") == 0;
    }
    assert_int_equal(corrected, 4); /* three Conv and a Gemm */
    json_decref(report);
    free(equalized);
    free(source);
}

static void test_weights__of_4_bits_are_better_by_gptq(void **state)
{
    MLO_UNUSED(state);
    const struct how plain = {8, 1, -1};
    char *source = save_net("source.onnx");
    double errors[2];
    for (int gptq = 0; gptq < 2; gptq++) {
        char *made = run_step(gptq ? "round-weights" : "quantize-weights",
                              gptq ? "{\"rounding\": \"gptq\", \"min_weights\": 0, \"convolutions\": false}"
                                   : "{\"min_weights\": 0, \"convolutions\": false}",
                              source, &plain, NULL);
        errors[gptq] = error_of(made);
        free(made);
    }
    if (!(errors[1] < errors[0]))
        fail_msg("nearest %g, gptq %g", errors[0], errors[1]);
    struct mlo_error err = {0};
    json_t *options = NULL, *given = json_pack("{s:s}", "rounding", "gptq");
    assert_ok(mlo_options_resolve(mlo_quantize_weights_options, given, &options, &err));
    struct mlo_step_context ctx = {
        .options = options, .model_path = source, .source_path = source, .out_dir = g_dir};
    struct mlo_step_result result = {0};
    assert_int_equal(mlo_step_find("quantize-weights")->run(&ctx, &result, &err), MLO_EINVAL);
    assert_non_null(strstr(err.hint, "round-weights"));
    mlo_step_result_clear(&result);
    json_decref(given);
    json_decref(options);
    free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps__give_equal_bytes_everywhere),
        cmocka_unit_test(test_steps__leave_less_error),
        cmocka_unit_test(test_weights__of_4_bits_are_better_by_gptq),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
