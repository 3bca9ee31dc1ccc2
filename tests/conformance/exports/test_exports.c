/* What PyTorch's newer exporter writes (make.py beside this file made the models): every model is read,
 * shaped throughout once its named dims are bound, written and read again, and computes what PyTorch
 * computed, on the reference engine and on the cpu engine. MLOPT_EXPORTS names another folder of such files,
 * MLOPT_EXPORTS_ENGINE an engine beside these two.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engines/engines.h"
#include "pipeline/measure/arrays_impl.h"
#include "tests/cm.h"
#include "tests/part.h"

enum { VALUES_MAX = 16 };

struct files {
    struct mlo_arrays arrays;
    struct mlo_tensor inputs[VALUES_MAX];
};

static void read_array(const struct mlo_arrays *arrays, const char *name, struct mlo_tensor *out)
{
    struct mlo_error err = {0};
    struct mlo_array *array = mlo_arrays_find(arrays, name);
    if (!array)
        fail_msg("the data has no array '%s'", name);
    assert_ok(mlo_tensor_init(out, array->dtype, array->rank, array->dims, &err));
    assert_ok(mlo_array_read(array, 0, array->dims[0], out->data, &err));
}

/* Named dims get the sizes that the data has. */
static void bind(struct mlo_model *model, const struct mlo_tensor *inputs)
{
    struct mlo_error err = {0};
    struct mlo_binding bindings[VALUES_MAX * MLO_MAX_RANK];
    size_t count = 0;
    for (int i = 0; i < model->graph->input_count; i++) {
        const struct mlo_type *type = &model->graph->inputs[i]->type;
        assert_int_equal(type->rank, inputs[i].rank);
        for (int d = 0; d < type->rank; d++)
            if (type->dims[d].value < 0 && type->dims[d].name)
                bindings[count++] = (struct mlo_binding){type->dims[d].name, inputs[i].dims[d]};
    }
    assert_ok(mlo_graph_bind(model->graph, bindings, count, -1, &err));
}

static void compare(const char *what, const struct mlo_graph *graph, const struct mlo_arrays *arrays,
                    const struct mlo_tensor *outputs, double tolerance)
{
    for (int i = 0; i < graph->output_count; i++) {
        char name[256];
        struct mlo_tensor want = {0};
        const struct mlo_tensor *got = &outputs[i];
        snprintf(name, sizeof name, "output:%.200s", graph->outputs[i]->name);
        read_array(arrays, name, &want);
        size_t count = mlo_tensor_count(&want);
        if (got->dtype != want.dtype || (got->rank && !mlo_tensor_same_shape(got, &want)) ||
            mlo_tensor_count(got) != count) {
            char a[200], b[200];
            fail_msg("%s: %s is %s, not %s", what, name, mlo_tensor_describe(got, a, sizeof a),
                     mlo_tensor_describe(&want, b, sizeof b));
        }
        double largest = 1e-30;
        for (size_t e = 0; e < count; e++)
            largest = fmax(largest, fabs(mlo_tensor_get_f64(&want, e)));
        for (size_t e = 0; e < count; e++) {
            double x = mlo_tensor_get_f64(got, e), y = mlo_tensor_get_f64(&want, e);
            if (!(fabs(x - y) <= tolerance * largest) && !(isnan(x) && isnan(y)))
                fail_msg("%s: %s: element %zu is %.9g, not %.9g", what, name, e, x, y);
        }
        mlo_tensor_clear(&want);
    }
}

/* The cpu engine computes float16 and bfloat16 in float32 and rounds at the edges: what comes out may differ
 * by a rounding of the type that is stored in between. */
static double of_storage(const struct mlo_model *model, double tolerance)
{
    for (int i = 0; i < model->graph->value_count; i++) {
        enum mlo_dtype dtype = model->graph->values[i]->type.dtype;
        if (dtype == MLO_BFLOAT16)
            tolerance = fmax(tolerance, 0x1p-7);
        else if (dtype == MLO_FLOAT16)
            tolerance = fmax(tolerance, 0x1p-10);
    }
    return tolerance;
}

static void run_on(const char *engine_name, const char *what, const struct mlo_model *model,
                   const struct files *files, double tolerance)
{
    char label[300];
    struct mlo_error err = {0};
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    const struct mlo_engine *engine = NULL;
    const struct mlo_compile_options options = {.threads = 1};
    struct mlo_tensor outputs[VALUES_MAX] = {0};
    snprintf(label, sizeof label, "%s on %s", what, engine_name);
    assert_ok(mlo_engine_find(engine_name, &engine, &err));
    enum mlo_status compiled = engine->compile(model, &options, &plan, &err);
    const char *more = getenv("MLOPT_EXPORTS_ENGINE");
    if (compiled == MLO_EUNSUPPORTED && more && strcmp(engine_name, more) == 0) {
        print_message("%s: left out: %s\n", label, err.message);
        return;
    }
    if (compiled != MLO_OK)
        fail_msg("%s: %s (%s)", label, err.message, err.where);
    assert_ok(engine->load(plan, &program, &err));
    if (engine->run(program, files->inputs, outputs, &err) != MLO_OK)
        fail_msg("%s: %s (%s)", label, err.message, err.where);
    compare(label, model->graph, &files->arrays, outputs, tolerance);
    for (int i = 0; i < model->graph->output_count; i++) /* what is not written is seen */
        memset(outputs[i].data, 0xa5,
               mlo_tensor_count(&outputs[i]) * mlo_dtype_info(outputs[i].dtype)->bits / 8);
    if (engine->run(program, files->inputs, outputs, &err) != MLO_OK)
        fail_msg("%s, again: %s (%s)", label, err.message, err.where);
    compare(label, model->graph, &files->arrays, outputs, tolerance);
    for (int i = 0; i < VALUES_MAX; i++)
        mlo_tensor_clear(&outputs[i]);
    engine->unload(program);
    engine->free_plan(plan);
}

static void check_model(const char *name)
{
    char path[600];
    struct mlo_error err = {0};
    struct files files = {0};
    struct mlo_model *model = NULL, *again = NULL;
    struct mlo_buf bytes = MLO_BUF_INIT;
    double tolerance = 2e-5; /* of the largest value of an output */
    snprintf(path, sizeof path, "%s.onnx", name);
    if (mlo_onnx_load(path, &model, &err) != MLO_OK ||
        mlo_graph_check_supported(model->graph, &err) != MLO_OK)
        fail_msg("%s: %s (%s)", name, err.message, err.where);
    assert_ok(mlo_onnx_serialize(model, &bytes, &err));
    assert_ok(mlo_onnx_parse(bytes.data, bytes.len, "written", &again, &err));
    assert_int_equal(model->graph->node_count, again->graph->node_count);

    snprintf(path, sizeof path, "%s.npz", name);
    assert_ok(mlo_npz_open(path, &files.arrays, &err));
    if (mlo_arrays_find(&files.arrays, "tolerance")) {
        struct mlo_tensor t = {0};
        read_array(&files.arrays, "tolerance", &t);
        tolerance = mlo_tensor_get_f64(&t, 0);
        mlo_tensor_clear(&t);
    }
    assert_true(again->graph->input_count <= VALUES_MAX && again->graph->output_count <= VALUES_MAX);
    for (int i = 0; i < again->graph->input_count; i++)
        read_array(&files.arrays, again->graph->inputs[i]->name, &files.inputs[i]);
    bind(again, files.inputs);
    run_on("reference", name, again, &files, tolerance);
    run_on("cpu", name, again, &files, of_storage(again, tolerance));
    if (getenv("MLOPT_EXPORTS_ENGINE")) /* products of float32 are TF32 on a GPU: 10 bits */
        run_on(getenv("MLOPT_EXPORTS_ENGINE"), name, again, &files,
               fmax(of_storage(again, tolerance), 0x1p-8));

    for (int i = 0; i < VALUES_MAX; i++)
        mlo_tensor_clear(&files.inputs[i]);
    mlo_arrays_clear(&files.arrays);
    mlo_buf_clear(&bytes);
    mlo_model_free(model);
    mlo_model_free(again);
}

static int is_model(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return dot && strcmp(dot, ".onnx") == 0;
}

static void test_exports__compute_what_is_stated(void **state)
{
    check_model(*state);
}

enum { CASES_MAX = 256 };

/* Appends a case for each model of a folder. */
static int add_folder(const char *folder, struct CMUnitTest *cases, int count)
{
    struct dirent **entries = NULL;
    int found = scandir(folder, &entries, is_model, alphasort);
    for (int i = 0; i < found; i++) {
        char name[600];
        snprintf(name, sizeof name, "%.300s/%.250s", folder, entries[i]->d_name);
        *strrchr(name, '.') = '\0';
        char *copy = strdup(name);
        if (!part_has(i))
            free(copy);
        else if (copy && count < CASES_MAX)
            cases[count++] = (struct CMUnitTest){
                .name = copy, .test_func = test_exports__compute_what_is_stated, .initial_state = copy};
        free(entries[i]);
    }
    free(entries);
    if (found < 1)
        printf("%s has no models\n", folder);
    return found < 1 ? -1 : count;
}

int main(void)
{
    static struct CMUnitTest cases[CASES_MAX];
    const char *other = getenv("MLOPT_EXPORTS");
    int count = add_folder(other ? other : MLOPT_SOURCE_DIR "/tests/conformance/exports", cases, 0);
    if (!other && count >= 0)
        count = add_folder(MLOPT_SOURCE_DIR "/tests/conformance/ops", cases, count);
    if (count < 0)
        return 1;
    int failed = _cmocka_run_group_tests("exports", cases, (size_t)count, NULL, NULL);
    for (int i = 0; i < count; i++)
        free((void *)cases[i].name);
    return failed;
}
