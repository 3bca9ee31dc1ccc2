/* ONNX's own backend tests (libonnx-testdata) on the graph evaluator and on engines, with ONNX's own
 * tolerances.
 *
 *   conformance.graph.onnx_backend CATEGORY     runs the tests of a category as cases
 *   conformance.graph.onnx_backend --engine NAME [invariant]    all categories on an engine
 *   conformance.graph.onnx_backend --engine cpu fast float16    the same, made float16, where FP16 is used
 *   conformance.graph.onnx_backend --gpu        what the cuda engine has kernels for, on a GPU (tests/gpu)
 *   conformance.graph.onnx_backend --round-trip | --optimize | --raise N    all categories on the evaluator,
 * after the model was written and read again, optimized, or raised to that opset
 *   conformance.graph.onnx_backend --cuda-plan  what the cuda engine's lowering accepts, interpreted
 *   conformance.graph.onnx_backend --table      runs all and prints the table of docs/conformance.md
 *   conformance.graph.onnx_backend --folder DIR runs tests of another ONNX (newer_onnx.py), prints what fails
 *   conformance.graph.onnx_backend              checks the list
 *
 * What is not supported stands in tests/conformance/not_supported.txt with its reason. A test on that list
 * must still fail: the list only shrinks. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engines/engines.h"
#include "graph/onnx_impl.h"
#include "passes/passes.h"
#include "tests/isa_case.h"
#include "tests/part.h"
#include "tests/plan_copy.h"
#include "tests/unit/engines/cuda_interpreter.h"

#define LIST MLOPT_SOURCE_DIR "/tests/conformance/not_supported.txt"

/* Where Debian puts it; MLOPT_ONNX_DATA: elsewhere. */
static const char *data = "/usr/share/libonnx-testdata/data";

enum { LISTED_MAX = 60, OUTPUTS_MAX = 64, INPUTS_MAX = 64 };
static const char *const categories[] = {"node", "simple", "pytorch-converted", "pytorch-operator"};

/* --- the list ---------------------------------------------------------------------------------------------
 */

struct entry {
    char test[160], reason[200]; /* "node/test_x" */
};
static struct entry listed[LISTED_MAX + 1];
static int listed_count;

/* Lines "category/test: reason"; '#' begins a comment. False: a line is no such thing, or there are too many.
 */
static bool read_list(void)
{
    char line[512];
    FILE *f = fopen(LIST, "r");
    bool ok = f != NULL;
    while (ok && fgets(line, sizeof line, f)) {
        char *colon = strstr(line, ": ");
        line[strcspn(line, "\n")] = '\0';
        if (!*line || *line == '#')
            continue;
        ok = colon && colon[2] && strchr(line, '/') && listed_count < LISTED_MAX;
        if (!ok) {
            printf("%s: not 'category/test: reason', or more than %d entries: %s\n", LIST, LISTED_MAX, line);
            break;
        }
        snprintf(listed[listed_count].test, sizeof listed[0].test, "%.*s", (int)(colon - line), line);
        snprintf(listed[listed_count].reason, sizeof listed[0].reason, "%s", colon + 2);
        listed_count++;
    }
    if (f)
        fclose(f);
    return ok;
}

static const char *reason_of(const char *test)
{
    for (int i = 0; i < listed_count; i++)
        if (strcmp(listed[i].test, test) == 0)
            return listed[i].reason;
    return NULL;
}

/* --- the data ---------------------------------------------------------------------------------------------
 */

static bool read_tensor(const void *bytes, size_t size, struct mlo_tensor *out, struct mlo_error *err)
{
    struct mlo_onnx_reader reader = {0};
    Onnx__TensorProto *p = onnx__tensor_proto__unpack(NULL, size, bytes);
    bool ok = p && mlo_onnx_read_tensor(&reader, p, (struct mlo_span){0}, out, err) == MLO_OK;
    if (!p)
        (void)mlo_error_set(err, MLO_EFORMAT, "not a tensor");
    else
        onnx__tensor_proto__free_unpacked(p, NULL);
    return ok;
}

static uint64_t varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t value = 0;
    for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            break;
    }
    return value;
}

static bool read_value(const void *bytes, size_t size, const struct mlo_type *type, struct mlo_tensor *out,
                       struct mlo_error *err);

/* SequenceProto and OptionalProto: elements in field 3 (tensors) or 5 (sequences). */
static bool read_values(const uint8_t *at, size_t size, const struct mlo_type *type, struct mlo_tensor *out,
                        struct mlo_error *err)
{
    const uint8_t *end = at + size;
    struct mlo_tensor items[64] = {0};
    size_t count = 0;
    bool ok = true;
    while (ok && at < end) {
        uint64_t tag = varint(&at, end), length = varint(&at, end);
        if ((tag & 7) != 2)
            continue; /* a number: its value is in `length` */
        if ((tag >> 3 == 3 || tag >> 3 == 5) && count < MLO_COUNT(items) && type->element)
            ok = read_value(at, (size_t)length, type->element, &items[count++], err);
        at += length;
    }
    ok = ok && mlo_values_init(out, type->dtype, count, err) == MLO_OK;
    for (size_t i = 0; i < count; i++)
        if (ok)
            mlo_values(out)[i] = items[i];
        else
            mlo_tensor_clear(&items[i]);
    return ok;
}

static bool read_value(const void *bytes, size_t size, const struct mlo_type *type, struct mlo_tensor *out,
                       struct mlo_error *err)
{
    if (mlo_holds_values(type->dtype))
        return read_values(bytes, size, type, out, err);
    if (!read_tensor(bytes, size, out, err))
        return false;
    if (type->dtype == MLO_BFLOAT16 && out->dtype == MLO_UINT16)
        out->dtype = MLO_BFLOAT16; /* NumPy, which wrote the files, has no bfloat16: these are its bits */
    return true;
}

/* *out owns its data. A file that is not there is no error when `may_lack`: *out stays empty. */
static bool read_file(const char *folder, const char *what, int index, const struct mlo_type *type,
                      bool may_lack, struct mlo_tensor *out, struct mlo_error *err)
{
    char path[768];
    struct mlo_buf bytes = MLO_BUF_INIT;
    snprintf(path, sizeof path, "%s/test_data_set_0/%s_%d.pb", folder, what, index);
    if (may_lack && !mlo_fs_exists(path))
        return true;
    bool ok = mlo_fs_read(path, (size_t)1 << 30, &bytes, err) == MLO_OK &&
              read_value(mlo_buf_str(&bytes), bytes.len, type, out, err);
    mlo_buf_clear(&bytes);
    return ok;
}

/* Of models that were made float16: of the largest element. Three layers of values that are rounded to 11
 * bits, the first of them of sums of runs of 32 (engines/cpu/fast/tile_f16_impl.h), stay far below. */
#define HALF_TOLERANCE 0x1p-7
static bool halved;
/* Products of float32 are TF32 on a GPU: 10 bits. */
#define TF32_TOLERANCE 0x1p-8
static bool has_tf32; /* of what runs now, on a GPU */

static bool near(const struct mlo_tensor *got, const struct mlo_tensor *want, double tolerance, char *why,
                 size_t size)
{
    size_t count = mlo_tensor_count(want);
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(mlo_tensor_get_f64(want, i)));
    for (size_t i = 0; i < count; i++) {
        double x = mlo_tensor_get_f64(got, i), y = mlo_tensor_get_f64(want, i);
        if (!(fabs(x - y) <= tolerance * largest) && x != y && !(isnan(x) && isnan(y))) {
            snprintf(why, size, "element %zu is %.9g, not %.9g, the largest %.9g", i, x, y, largest);
            return false;
        }
    }
    return true;
}

/* ONNX's own: relative 1e-3, absolute 1e-7; types and shapes exactly. */
static bool same(const struct mlo_tensor *got, const struct mlo_tensor *want, char *why, size_t size)
{
    char a[256], b[256];
    if (got->dtype != want->dtype || !mlo_tensor_same_shape(got, want)) {
        snprintf(why, size, "%.150s, not %.150s", mlo_tensor_describe(got, a, sizeof a),
                 mlo_tensor_describe(want, b, sizeof b));
        return false;
    }
    size_t count = mlo_tensor_count(want);
    if (want->dtype == MLO_COMPLEX64 || want->dtype == MLO_COMPLEX128 || want->dtype == MLO_STRING) {
        snprintf(why, size, "elements of type %s cannot be compared", mlo_dtype_name(want->dtype));
        return false;
    }
    if (halved && want->dtype == MLO_FLOAT32)
        return near(got, want, HALF_TOLERANCE, why, size);
    for (size_t i = 0; i < count; i++) {
        if (mlo_holds_values(want->dtype)) {
            if (!same(&mlo_values(got)[i], &mlo_values(want)[i], why, size))
                return false;
            continue;
        }
        double x = mlo_tensor_get_f64(got, i), y = mlo_tensor_get_f64(want, i);
        bool close = (isnan(x) && isnan(y)) || x == y || fabs(x - y) <= 1e-7 + 1e-3 * fabs(y);
        if (!close && has_tf32 && want->dtype == MLO_FLOAT32)
            return near(got, want, TF32_TOLERANCE, why, size);
        if (!close) {
            snprintf(why, size, "element %zu is %.9g, not %.9g", i, x, y);
            return false;
        }
    }
    return true;
}

/* --- one test ---------------------------------------------------------------------------------------------
 */

static bool read_inputs(const char *folder, const struct mlo_graph *graph, struct mlo_tensor *inputs,
                        struct mlo_error *err)
{
    for (int i = 0; i < graph->input_count; i++) {
        const struct mlo_value *value = graph->inputs[i];
        if (i >= INPUTS_MAX)
            return mlo_error_set(err, MLO_ETOOBIG, "more than %d inputs", INPUTS_MAX) == MLO_OK;
        if (!read_file(folder, "input", i, &value->type, value->constant != NULL, &inputs[i], err))
            return false;
    }
    return true;
}

/* On the graph evaluator, which takes what an input is otherwise a constant for, too. */
static bool run_on_evaluator(const struct mlo_graph *graph, const struct mlo_tensor *inputs,
                             struct mlo_tensor *outputs, struct mlo_error *err)
{
    struct mlo_eval eval = {0};
    bool ok = mlo_eval_init(&eval, graph, NULL, err) == MLO_OK;
    for (int i = 0; ok && i < graph->input_count; i++)
        if (inputs[i].dtype)
            mlo_eval_feed(&eval, graph->inputs[i], &inputs[i]);
    ok = ok && mlo_eval_run(&eval, err) == MLO_OK;
    for (int i = 0; ok && i < graph->output_count; i++)
        ok = mlo_tensor_copy(mlo_eval_content(&eval, graph->outputs[i]), &outputs[i], err) == MLO_OK;
    if (eval.graph)
        mlo_eval_clear(&eval);
    return ok;
}

static const struct mlo_engine *tested; /* NULL: the graph evaluator */
static enum mlo_numerics tested_numerics;

static bool on_gpu;              /* an op without a kernel is no failure there; a wrong result is */
static bool refused_by_lowering; /* such an op, or none that the interpreter knows */

/* Tests of which some step was in FP16: how many; what has none says nothing about it. */
enum { HALVED_LEAST = 13 }; /* it only grows */
static int in_fp16;
static bool without_fp16;

static enum mlo_status look_for_fp16(const struct mlo_plan *plan, struct mlo_error *err)
{
    json_t *described = NULL, *node;
    size_t i;
    enum mlo_status status = tested->describe(plan, &described, err);
    without_fp16 = true;
    json_array_foreach(json_object_get(described, "nodes"), i, node)
    {
        if (strcmp(mlo_json_str(node, "precision", ""), "f16") == 0)
            without_fp16 = false;
    }
    in_fp16 += !without_fp16;
    json_decref(described);
    return status;
}

/* On an engine: shapes that the model leaves open are those of the data. */
static bool run_on_engine(const struct mlo_engine *engine, struct mlo_model *model,
                          const struct mlo_tensor *inputs, struct mlo_tensor *outputs, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_graph *graph = model->graph;
    struct mlo_tensor fed[INPUTS_MAX];
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    struct plan_copy copy = {0};
    struct mlo_compile_options options = {.numerics = tested_numerics, .threads = 1};
    int count = 0;
    for (int i = 0; i < graph->input_count; i++) {
        struct mlo_type *type = &graph->inputs[i]->type;
        if (graph->inputs[i]->constant)
            continue;
        fed[count++] = inputs[i];
        if (mlo_holds_values(type->dtype))
            continue;
        type->rank = inputs[i].rank;
        for (int d = 0; d < type->rank; d++)
            type->dims[d] = (struct mlo_dim){.value = inputs[i].dims[d]};
    }
    status = engine->compile(model, &options, &plan, err);
    refused_by_lowering = on_gpu && status == MLO_EUNSUPPORTED;
    if (status != MLO_OK)
        goto out;
    if (halved)
        MLO_TRY(look_for_fp16(plan, err));
    if (without_fp16)
        goto out;
    MLO_TRY(plan_copy(engine, plan, &copy, err)); /* what can be a file is run out of one */
    MLO_TRY(engine->load(copy.plan ? copy.plan : plan, &program, err));
    MLO_TRY(engine->run(program, fed, outputs, err));
out:
    engine->unload(program);
    plan_copy_free(engine, &copy);
    engine->free_plan(plan);
    return status == MLO_OK;
}

/* --- the cuda engine's schedules
 * ------------------------------------------------------------------------------ */

enum {
    LOWERED_LEAST = 477
};                    /* how many tests must be lowered and agree, without a compiler too; it only grows */
static bool lowering; /* all tests run as schedules */
static int lowered, not_lowered;

static bool run_on_schedule(struct mlo_model *model, const struct mlo_tensor *inputs,
                            struct mlo_tensor *outputs, struct mlo_error *err)
{
    struct mlo_graph *graph = model->graph;
    struct mlo_tensor fed[INPUTS_MAX];
    struct mlo_compile_options options = {.threads = 1};
    struct cuda_schedule *schedule = NULL;
    int count = 0;
    for (int i = 0; i < graph->input_count; i++) {
        struct mlo_type *type = &graph->inputs[i]->type;
        if (graph->inputs[i]->constant)
            continue;
        fed[count++] = inputs[i];
        type->rank = inputs[i].rank;
        for (int d = 0; d < type->rank; d++)
            type->dims[d] = (struct mlo_dim){.value = inputs[i].dims[d]};
    }
    enum mlo_status status = cuda_schedule_new(model, &options, 90, &schedule, err);
    if (status == MLO_EUNSUPPORTED || (status == MLO_OK && !interpret(schedule, fed, outputs)))
        refused_by_lowering = true;
    cuda_schedule_free(schedule);
    return status == MLO_OK && !refused_by_lowering;
}

/* What is done to a model between reading and running it. */
static enum { AS_READ, WRITTEN, OPTIMIZED, RAISED, HALVED } treatment;
static char raise_options[32];

/* *refused: it cannot be treated so, which is no failure. */
static bool treat(struct mlo_model **model, bool *refused, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf bytes = MLO_BUF_INIT;
    struct mlo_model *again = NULL;
    struct mlo_pass_driver driver = {0};
    struct mlo_pass_request requests[32] = {0};
    json_t *options = NULL;
    size_t count = 1;
    *refused = false;
    if (treatment == WRITTEN) {
        MLO_TRY(mlo_onnx_serialize(*model, &bytes, err));
        MLO_TRY(mlo_onnx_parse(bytes.data, bytes.len, "written", &again, err));
        mlo_model_free(*model);
        *model = again;
    } else if (treatment == OPTIMIZED) {
        const char *const *names = mlo_passes_optimize(&count);
        for (size_t i = 0; i < count && i < MLO_COUNT(requests); i++)
            requests[i].name = names[i];
        MLO_TRY(mlo_passes_run(*model, requests, count, &driver, err));
    } else if (treatment == RAISED && mlo_model_opset(*model, "")) {
        options = json_loads(raise_options, 0, NULL);
        requests[0] = (struct mlo_pass_request){"raise-opset", options};
        status = mlo_passes_run(*model, requests, 1, &driver, err);
        *refused = status == MLO_EUNSUPPORTED;
    } else if (treatment == HALVED) {
        requests[0].name = "freeze-initializers";
        requests[1].name = "to-float16";
        status = mlo_passes_run(*model, requests, 2, &driver, err);
        *refused = status == MLO_EUNSUPPORTED;
    }
out:
    json_decref(options);
    json_decref(driver.report);
    mlo_buf_clear(&bytes);
    return status == MLO_OK;
}

/* What a product multiplies by becomes a constant, as it is where products are trained; how many. */
static int make_weights(const char *folder, struct mlo_graph *graph, struct mlo_error *err)
{
    static const char *const products[] = {"Conv", "Gemm", "MatMul"};
    int made = 0;
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        bool product = false;
        for (size_t k = 0; k < MLO_COUNT(products); k++)
            product |= mlo_node_is(node, products[k]);
        for (int k = 1; product && k < node->input_count; k++) {
            struct mlo_value *v = node->inputs[k], *constant;
            struct mlo_tensor t = {0};
            int index = 0;
            while (index < graph->input_count && graph->inputs[index] != v)
                index++;
            made += v && v->constant;
            if (!v || v->constant || index == graph->input_count ||
                !read_file(folder, "input", index, &v->type, false, &t, err))
                continue;
            constant = mlo_graph_add_constant_take(graph, "weights", &t);
            made += constant && mlo_node_set_input(node, k, constant);
        }
    }
    return made;
}

static bool has_products(const struct mlo_graph *graph)
{
    static const char *const ops[] = {"Conv", "ConvTranspose", "Einsum", "GRU",
                                      "Gemm", "LSTM",          "MatMul", "RNN"};
    for (int n = 0; n < graph->node_count; n++)
        for (size_t k = 0; k < MLO_COUNT(ops); k++)
            if (mlo_node_is(graph->nodes[n], ops[k]))
                return true;
    return false;
}

static bool try_test(const char *folder, char *why, size_t size)
{
    char path[640];
    struct mlo_model *model = NULL;
    struct mlo_tensor inputs[INPUTS_MAX] = {0}, outputs[OUTPUTS_MAX] = {0};
    struct mlo_error err = {0};
    bool passed = false, refused = false;
    without_fp16 = false;
    why[0] = '\0';
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    if (mlo_onnx_load(path, &model, &err) != MLO_OK ||
        mlo_graph_check_supported(model->graph, &err) != MLO_OK ||
        (halved && !make_weights(folder, model->graph, &err)) || !treat(&model, &refused, &err) ||
        !read_inputs(folder, model->graph, inputs, &err) || model->graph->output_count > OUTPUTS_MAX ||
        !(lowering ? run_on_schedule(model, inputs, outputs, &err)
          : tested ? run_on_engine(tested, model, inputs, outputs, &err)
                   : run_on_evaluator(model->graph, inputs, outputs, &err))) {
        snprintf(why, size, "%s (%s)", err.message, err.where);
        passed = refused || (halved && !err.message[0]); /* no product */
        goto out;
    }
    passed = true;
    has_tf32 = on_gpu && has_products(model->graph);
    for (int i = 0; i < model->graph->output_count && passed && !without_fp16; i++) {
        struct mlo_tensor want = {0};
        if (!read_file(folder, "output", i, &model->graph->outputs[i]->type, false, &want, &err)) {
            snprintf(why, size, "output %d: %s", i, err.message);
            passed = false;
        } else if (!same(&outputs[i], &want, why, size)) {
            passed = false;
        }
        mlo_tensor_clear(&want);
    }
out:
    for (int i = 0; i < INPUTS_MAX; i++)
        mlo_tensor_clear(&inputs[i]);
    for (int i = 0; i < OUTPUTS_MAX; i++)
        mlo_tensor_clear(&outputs[i]);
    mlo_model_free(model);
    return passed;
}

static void test_onnx_backend__agrees(void **state)
{
    const char *test = *state;
    char folder[512], why[1024];
    snprintf(folder, sizeof folder, "%.300s/%.200s", data, test);
    const char *reason = reason_of(test);
    bool passed = try_test(folder, why, sizeof why);
    if (reason && passed)
        fail_msg("%s passes: take it off %s", test, LIST);
    if (reason) {
        print_message("not supported: %s\n", reason);
        skip();
    }
    if (!passed)
        fail_msg("%s: %s", test, why);
}

/* --- categories -------------------------------------------------------------------------------------------
 */

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_test(const struct dirent *e)
{
    return strncmp(e->d_name, "test_", 5) == 0;
}

/* Names "category/test", sorted; free each and the list. */
static char **tests_of(const char *top, const char *category, int *count)
{
    char root[512];
    struct dirent **entries = NULL;
    snprintf(root, sizeof root, "%s/%s", top, category);
    int found = scandir(root, &entries, is_test, by_name);
    *count = MLO_MAX(found, 0);
    char **names = calloc((size_t)*count + 1, sizeof *names);
    for (int i = 0; i < *count; i++) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", category, entries[i]->d_name);
        if (names)
            names[i] = strdup(name);
        free(entries[i]);
    }
    free(entries);
    return names;
}

static void free_tests(char **names, int count)
{
    for (int i = 0; names && i < count; i++)
        free(names[i]);
    free(names);
}

static int run_category(const char *category)
{
    int count;
    char **names = tests_of(data, category, &count);
    struct CMUnitTest *cases = calloc((size_t)count + 1, sizeof *cases);
    for (int i = 0; i < count; i++)
        cases[i] = (struct CMUnitTest){
            .name = names[i], .test_func = test_onnx_backend__agrees, .initial_state = names[i]};
    int failed = _cmocka_run_group_tests(category, cases, (size_t)count, NULL, NULL);
    free(cases);
    free_tests(names, count);
    return failed;
}

static int print_table(void)
{
    int failed = 0, sums[3] = {0};
    printf("| category | tests | passed | not supported |\n|---|---:|---:|---:|\n");
    for (size_t c = 0; c < MLO_COUNT(categories); c++) {
        int count, passed = 0;
        char **names = tests_of(data, categories[c], &count), why[1024], folder[512];
        for (int i = 0; i < count; i++) {
            snprintf(folder, sizeof folder, "%.300s/%.200s", data, names[i]);
            bool passes = try_test(folder, why, sizeof why);
            passed += passes;
            if (passes == (reason_of(names[i]) != NULL)) {
                fprintf(stderr, "%s %s %s\n", names[i], passes ? "passes, but is listed" : "fails:", why);
                failed++;
            }
        }
        printf("| %s | %d | %d | %d |\n", categories[c], count, passed, count - passed);
        sums[0] += count;
        sums[1] += passed;
        sums[2] += count - passed;
        free_tests(names, count);
    }
    printf("| all | %d | %d | %d |\n\n", sums[0], sums[1], sums[2]);
    printf("| not supported | why |\n|---|---|\n");
    for (int i = 0; i < listed_count; i++)
        printf("| %s | %s |\n", listed[i].test, listed[i].reason);
    return failed != 0;
}

static int run_folder(const char *top)
{
    int count, passed = 0;
    char **names = tests_of(top, "node", &count), why[1024], folder[1024];
    for (int i = 0; i < count; i++) {
        snprintf(folder, sizeof folder, "%s/%.200s", top, names[i]);
        bool passes = try_test(folder, why, sizeof why);
        passed += passes;
        if (!passes)
            printf("%s: %s\n", names[i], why);
    }
    printf("%d of %d pass\n", passed, count);
    free_tests(names, count);
    return passed != count;
}

static void test_onnx_backend__list_names_tests(void **state)
{
    MLO_UNUSED(state);
    for (int i = 0; i < listed_count; i++) {
        char path[512];
        snprintf(path, sizeof path, "%.300s/%.150s/model.onnx", data, listed[i].test);
        if (!mlo_fs_exists(path))
            fail_msg("%s lists '%s', which is no test", LIST, listed[i].test);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(listed[k].test, listed[i].test);
    }
}

static bool set_treatment(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--round-trip") == 0)
        treatment = WRITTEN;
    else if (argc > 1 && strcmp(argv[1], "--optimize") == 0)
        treatment = OPTIMIZED;
    else if (argc > 2 && strcmp(argv[1], "--raise") == 0)
        treatment = RAISED;
    if (treatment == RAISED)
        snprintf(raise_options, sizeof raise_options, "{\"to\": %d}", (int)strtol(argv[2], NULL, 10));
    return treatment != AS_READ;
}

static int run_lowering(void)
{
    int failed = 0;
    for (size_t c = 0; c < MLO_COUNT(categories); c++) {
        int count;
        char **names = tests_of(data, categories[c], &count), why[1024], folder[512];
        for (int i = 0; i < count; i++) {
            if (!part_has(i))
                continue;
            refused_by_lowering = false;
            snprintf(folder, sizeof folder, "%.300s/%.200s", data, names[i]);
            bool passes = try_test(folder, why, sizeof why);
            if (reason_of(names[i]))
                continue;
            lowered += passes;
            not_lowered += refused_by_lowering;
            failed += !passes && !refused_by_lowering;
            if (!passes) {
                printf("%s %s: %s\n", refused_by_lowering ? "no kernel" : "FAILED", names[i], why);
                fflush(stdout);
            }
        }
        free_tests(names, count);
    }
    printf("%d lowered and right, %d without a kernel, %d wrong\n", lowered, not_lowered, failed);
    bool fewer = lowered < LOWERED_LEAST && !getenv("MLOPT_PART");
    if (fewer)
        printf("at least %d were lowered before\n", LOWERED_LEAST);
    return failed != 0 || fewer;
}

static int run_all(void)
{
    int failed = 0;
    for (size_t c = 0; c < MLO_COUNT(categories); c++)
        failed += run_category(categories[c]);
    return failed;
}

/* Models with products, as what they can be in float16. */
static int run_halves(void)
{
    treatment = HALVED;
    halved = true;
    int failed = 0;
    for (size_t c = 0; c < MLO_COUNT(categories); c++) {
        int count;
        char **names = tests_of(data, categories[c], &count), why[1024], folder[512];
        for (int i = 0; i < count; i++) {
            snprintf(folder, sizeof folder, "%.300s/%.200s", data, names[i]);
            if (reason_of(names[i]) || try_test(folder, why, sizeof why))
                continue;
            failed++;
            printf("FAILED %s: %s\n", names[i], why);
        }
        free_tests(names, count);
    }
    printf("%d have steps in FP16, %d wrong\n", in_fp16, failed);
    if (in_fp16 < HALVED_LEAST)
        printf("at least %d had before\n", HALVED_LEAST);
    return failed != 0 || in_fp16 < HALVED_LEAST;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest list_tests[] = {cmocka_unit_test(test_onnx_backend__list_names_tests)};
    char nodes[512];
    if (!read_list())
        return 1;
    if (getenv("MLOPT_ONNX_DATA"))
        data = getenv("MLOPT_ONNX_DATA");
    snprintf(nodes, sizeof nodes, "%.300s/node", data);
    if (argc > 2 && strcmp(argv[1], "--folder") == 0)
        return run_folder(argv[2]);
    if (!mlo_fs_exists(nodes)) {
        printf("libonnx-testdata is not installed\n");
        return 77;
    }
    if (argc > 1 && strcmp(argv[1], "--table") == 0)
        return print_table();
    if (argc > 1 && strcmp(argv[1], "--cuda-plan") == 0) {
        lowering = true;
        return run_lowering();
    }
    if (argc > 1 && strcmp(argv[1], "--gpu") == 0) {
        struct mlo_error err = {0};
        on_gpu = true;
        if (mlo_engine_find("cuda", &tested, &err) != MLO_OK || tested->probe(&err) != MLO_OK) {
            printf("%s\n", err.message);
            return 77;
        }
        return run_lowering();
    }
    if (argc > 2 && strcmp(argv[1], "--engine") == 0) {
        struct mlo_error err = {0};
        if (isa_case_is_elsewhere())
            return ISA_CASE_SKIP;
        tested_numerics =
            argc > 3 && strcmp(argv[3], "invariant") == 0 ? MLO_NUMERICS_INVARIANT : MLO_NUMERICS_FAST;
        if (mlo_engine_find(argv[2], &tested, &err) != MLO_OK || tested->probe(&err) != MLO_OK) {
            printf("%s\n", err.message);
            return 77;
        }
        return argc > 4 && strcmp(argv[4], "float16") == 0 ? run_halves() : run_all();
    }
    if (set_treatment(argc, argv))
        return run_all();
    return argc > 1 ? run_category(argv[1]) : cmocka_run_group_tests(list_tests, NULL, NULL);
}
