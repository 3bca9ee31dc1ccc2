/* Trained nets of the suite as schedules of the cuda engine, in float32, float16 and int8: interpreted on the
 * CPU they agree with the reference engine. */
#include "tests/unit/engines/cuda_interpreter.h"

#include "passes/passes.h"

static const char *const paths[] = {"tests/nets/models/mlp.onnx", "tests/nets/models/mobilenet_v2.onnx",
                                    "tests/nets/models/mobilenet_v3.onnx", "tests/nets/models/vit.onnx",
                                    "deploy/models/fashion_cnn.onnx"};

static void run_pass(struct mlo_model *model, const char *name, const char *options, struct mlo_stats *stats)
{
    json_t *o = options ? json_loads(options, 0, NULL) : NULL;
    struct mlo_pass_request request = {name, o};
    struct mlo_pass_driver driver = {.stats = stats};
    MUST(mlo_passes_run(model, &request, 1, &driver, err));
    json_decref(driver.report);
    json_decref(o);
}

static enum mlo_status see(void *arg, const char *name, const struct mlo_tensor *value, struct mlo_error *err)
{
    struct mlo_tensor_stats *t = mlo_stats_get(arg, name);
    return t ? mlo_tensor_stats_add(t, value->data, mlo_tensor_count(value), err) : mlo_error_nomem(err);
}

/* What one sample makes of every float value. */
static void observe_all(const struct mlo_model *model, const struct mlo_tensor *input,
                        struct mlo_stats *stats)
{
    const struct mlo_engine *e;
    const char **names = calloc((size_t)model->graph->value_count + 1, sizeof *names);
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    struct mlo_tensor out[2] = {{0}};
    assert_non_null(names);
    struct mlo_compile_options o = {.batch = 1, .observe = names, .numerics = MLO_NUMERICS_INVARIANT};
    for (int i = 0; i < model->graph->value_count; i++) {
        const struct mlo_value *v = model->graph->values[i];
        if (v->type.dtype == MLO_FLOAT32 && !v->constant)
            names[o.observe_count++] = v->name;
    }
    mlo_stats_init(stats);
    MUST(mlo_engine_find("cpu", &e, err));
    MUST(e->compile(model, &o, &plan, err));
    MUST(e->load(plan, &program, err));
    MUST(e->observe(program, input, out, see, stats, err));
    mlo_tensor_clear(&out[0]);
    e->unload(program);
    e->free_plan(plan);
    mlo_stats_sort(stats);
    free(names);
}

/* Errors up to `tolerance` of the largest result. */
static void agrees(const struct mlo_model *model, const struct mlo_tensor *input, double tolerance,
                   const char *what)
{
    struct mlo_compile_options o = {.batch = 1, .threads = 1};
    struct cuda_schedule *s = NULL;
    struct mlo_tensor got[4] = {{0}}, want = run_model("reference", model, &o, input, NULL);
    double most = 0;
    MUST(cuda_schedule_new(model, &o, 90, &s, err));
    if (!interpret(s, input, got)) {
        print_message("skipped: %s has a kernel that needs a compiler\n", what);
        goto out;
    }
    for (size_t i = 0; i < mlo_tensor_count(&want); i++)
        most = fmax(most, fabs(mlo_tensor_get_f64(&want, i)));
    for (size_t i = 0; i < mlo_tensor_count(&want); i++) {
        double a = mlo_tensor_get_f64(&got[0], i), b = mlo_tensor_get_f64(&want, i);
        if (!(fabs(a - b) <= tolerance * most))
            fail_msg("%s: element %zu is %.9g, the reference has %.9g (the largest is %g)", what, i, a, b,
                     most);
    }
out:
    for (int i = 0; i < 4; i++)
        mlo_tensor_clear(&got[i]);
    mlo_tensor_clear(&want);
    cuda_schedule_free(s);
}

/* target: that they are quantized for; NULL: they are not. */
static void each_net(const char *precision, const char *target, double tolerance)
{
    for (size_t i = 0; i < MLO_COUNT(paths); i++) {
        char path[512], what[256];
        struct mlo_model *model = NULL;
        struct mlo_stats stats;
        int64_t dims[MLO_MAX_RANK];
        snprintf(path, sizeof path, "%s/%s", MLOPT_SOURCE_DIR, paths[i]);
        snprintf(what, sizeof what, "%s in %s", paths[i], precision);
        MUST(mlo_onnx_load(path, &model, err));
        MUST(mlo_graph_infer(model->graph, err));
        const struct mlo_type *type = &model->graph->inputs[0]->type;
        for (int d = 0; d < type->rank; d++)
            dims[d] = type->dims[d].value < 0 ? 1 : type->dims[d].value;
        struct mlo_tensor in = random_tensor(type->rank, dims, 21);
        if (strcmp(precision, "float32") != 0) {
            run_pass(model, "fold-constants", NULL, NULL);
            run_pass(model, "fold-batchnorm", NULL, NULL);
        }
        if (strcmp(precision, "float16") == 0)
            run_pass(model, "to-float16", NULL, NULL);
        if (target) {
            char options[64];
            snprintf(options, sizeof options, "{\"target\": \"%s\"}", target);
            observe_all(model, &in, &stats);
            run_pass(model, "quantize", options, &stats);
            mlo_stats_clear(&stats);
        }
        agrees(model, &in, tolerance, what);
        mlo_tensor_clear(&in);
        mlo_model_free(model);
    }
}

static void test_cuda_nets__float32(void **state)
{
    MLO_UNUSED(state);
    each_net("float32", NULL, 1e-4);
}

static void test_cuda_nets__float16(void **state)
{
    MLO_UNUSED(state);
    each_net("float16", NULL, 2e-2);
}

/* A tie that rounds to the other side goes on through the layers: some steps of the result. */
static void test_cuda_nets__int8(void **state)
{
    MLO_UNUSED(state);
    each_net("int8", "mlopt-cuda", 5e-2);
}

/* Quantized for a processor: bytes that matrix units do not multiply as they are. */
static void test_cuda_nets__uint8(void **state)
{
    MLO_UNUSED(state);
    each_net("uint8", "mlopt-cpu", 5e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_nets__float32),
        cmocka_unit_test(test_cuda_nets__float16),
        cmocka_unit_test(test_cuda_nets__int8),
        cmocka_unit_test(test_cuda_nets__uint8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
