/* Small models built by hand, and a plain interpreter over the op table, for the tests of passes. */
#ifndef MLO_TESTS_PASSES_HELPERS_H
#define MLO_TESTS_PASSES_HELPERS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph/model_impl.h"
#include "passes/passes.h"
#include "tests/cm.h"

#define UNUSED_OK __attribute__((unused))
#define DIMS(...) ((const int64_t[]){__VA_ARGS__})
#define RANK(...) ((int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
/* input(m, "x", -1, 3, 8, 8): a float32 graph input; -1 is the dim named "batch". */
#define input(model, name, ...) input_of(model, name, MLO_FLOAT32, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))
/* ramp(m, "w", 0.1, 2, 3): a constant of that shape that goes through small values of both signs. */
#define ramp(model, name, step, ...) ramp_of(model, name, step, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))
/* floats(m, "b", LIST(1, 2), 2): a constant with these numbers. */
#define LIST(...) ((const float[]){__VA_ARGS__})
#define floats(model, name, list, ...) floats_of(model, name, list, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))
/* ints(m, "shape", 0, -1): an int64 vector. */
#define ints(model, name, ...) ints_of(model, name, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))
/* op(m, "Add", "y", a, b): a node that makes the value "y" and is called "y_node". */
#define op(model, type, out, ...)                                                                            \
    op_of(model, type, out, (struct mlo_value *const[]){__VA_ARGS__},                                        \
          (int)(sizeof((struct mlo_value *const[]){__VA_ARGS__}) / sizeof(struct mlo_value *)))
/* op_in(body, "Add", "y", a, b): the same in a subgraph. */
#define op_in(graph, type, out, ...)                                                                         \
    op_in_of(graph, type, out, (struct mlo_value *const[]){__VA_ARGS__},                                     \
             (int)(sizeof((struct mlo_value *const[]){__VA_ARGS__}) / sizeof(struct mlo_value *)))
#define set_ints(value, name, ...)                                                                           \
    assert_true(mlo_node_set_ints((value)->producer, name, DIMS(__VA_ARGS__), (size_t)RANK(__VA_ARGS__)))

UNUSED_OK static struct mlo_model *new_model(int64_t opset)
{
    struct mlo_error err = {0};
    struct mlo_model *model = NULL;
    assert_ok(mlo_model_new(opset, &model, &err));
    return model;
}

UNUSED_OK static struct mlo_value *input_of(struct mlo_model *model, const char *name, enum mlo_dtype dtype,
                                            int rank, const int64_t *dims)
{
    struct mlo_error err = {0};
    struct mlo_type type = {.dtype = dtype, .rank = rank};
    for (int i = 0; i < rank; i++)
        type.dims[i] = (struct mlo_dim){dims[i], dims[i] < 0 ? "batch" : NULL};
    struct mlo_value *value = mlo_graph_add_value(model->graph, name, &type);
    assert_non_null(value);
    assert_ok(mlo_graph_add_input(model->graph, value, &err));
    return value;
}

UNUSED_OK static struct mlo_value *constant_take(struct mlo_model *model, const char *name,
                                                 struct mlo_tensor *tensor)
{
    struct mlo_value *value = mlo_graph_add_constant_take(model->graph, name, tensor);
    assert_non_null(value);
    return value;
}

UNUSED_OK static struct mlo_value *floats_of(struct mlo_model *model, const char *name, const float *list,
                                             int rank, const int64_t *dims)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, rank, dims, &err));
    memcpy(t.data, list, t.size_bytes);
    return constant_take(model, name, &t);
}

UNUSED_OK static struct mlo_value *scalar(struct mlo_model *model, const char *name, float number)
{
    return floats_of(model, name, &number, 0, NULL);
}

UNUSED_OK static struct mlo_value *ramp_of(struct mlo_model *model, const char *name, float step, int rank,
                                           const int64_t *dims)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, rank, dims, &err));
    size_t count = mlo_tensor_count(&t);
    for (size_t i = 0; i < count; i++)
        ((float *)t.data)[i] = step * (float)((int)(i * 7 % 11) - 5);
    return constant_take(model, name, &t);
}

UNUSED_OK static struct mlo_value *ints_of(struct mlo_model *model, const char *name, int count,
                                           const int64_t *list)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    int64_t dim = count;
    assert_ok(mlo_tensor_init(&t, MLO_INT64, 1, &dim, &err));
    memcpy(t.data, list, t.size_bytes);
    return constant_take(model, name, &t);
}

UNUSED_OK static struct mlo_value *op_in_of(struct mlo_graph *graph, const char *type, const char *out,
                                            struct mlo_value *const *inputs, int count)
{
    char name[64];
    snprintf(name, sizeof name, "%s_node", out);
    struct mlo_value *value = mlo_graph_add_value(graph, out, NULL);
    assert_non_null(value);
    struct mlo_node *node = mlo_graph_add_node(graph, NULL, "", type, name, inputs, count, &value, 1);
    assert_non_null(node);
    if (!node->op)
        fail_msg("the op table has no row for %s", type);
    return value;
}

/* A new subgraph of the node, by an attribute of that name. */
UNUSED_OK static struct mlo_graph *subgraph(struct mlo_node *node, const char *name)
{
    struct mlo_model *model = node->graph->model;
    struct mlo_attr *attrs = mlo_arena_calloc(model->arena, (size_t)node->attr_count + 1, sizeof *attrs);
    struct mlo_graph *graph = mlo_graph_new(model, node, name);
    assert_true(attrs && graph);
    for (int i = 0; i < node->attr_count; i++)
        attrs[i] = node->attrs[i];
    attrs[node->attr_count++] = (struct mlo_attr){.name = name, .type = MLO_ATTR_GRAPH, .graph = graph};
    node->attrs = attrs;
    return graph;
}

UNUSED_OK static struct mlo_value *op_of(struct mlo_model *model, const char *type, const char *out,
                                         struct mlo_value *const *inputs, int count)
{
    return op_in_of(model->graph, type, out, inputs, count);
}

/* Makes the value a graph output and infers all types. */
UNUSED_OK static void finish(struct mlo_model *model, struct mlo_value *output)
{
    struct mlo_error err = {0};
    assert_ok(mlo_graph_add_output(model->graph, output, &err));
    assert_ok(mlo_graph_infer(model->graph, &err));
    assert_ok(mlo_graph_verify(model->graph, &err));
}

UNUSED_OK static struct mlo_node *node_named(const struct mlo_model *model, const char *name)
{
    for (int i = 0; i < model->graph->node_count; i++)
        if (strcmp(model->graph->nodes[i]->name, name) == 0)
            return model->graph->nodes[i];
    return NULL;
}

UNUSED_OK static int count_ops(const struct mlo_model *model, const char *op_type)
{
    int count = 0;
    for (int i = 0; i < model->graph->node_count; i++)
        count += strcmp(model->graph->nodes[i]->op_type, op_type) == 0;
    return count;
}

/* Runs one pass with its default options, or those given as JSON text; *report may be NULL. */
UNUSED_OK static enum mlo_status run_pass(struct mlo_model *model, const char *name, const char *options,
                                          const struct mlo_stats *stats, json_t **report,
                                          struct mlo_error *err)
{
    json_t *parsed = options ? json_loads(options, 0, NULL) : NULL;
    struct mlo_pass_request request = {name, parsed};
    struct mlo_pass_driver driver = {.stats = stats};
    enum mlo_status status = mlo_passes_run(model, &request, 1, &driver, err);
    json_decref(parsed);
    if (report && status == MLO_OK)
        *report = driver.report;
    else
        json_decref(driver.report);
    return status;
}

/* Whether some note of the report is about `node` and contains `part`. */
UNUSED_OK static bool has_note(const json_t *report, const char *node, const char *part)
{
    size_t i, k;
    json_t *row, *note;
    json_array_foreach((json_t *)report, i, row)
    {
        json_array_foreach(json_object_get(row, "notes"), k, note)
        {
            if (strcmp(mlo_json_str(note, "node", ""), node) == 0 &&
                strstr(mlo_json_str(note, "note", ""), part))
                return true;
        }
    }
    return false;
}

/* --- the interpreter --------------------------------------------------------------------------- */

/* Called with every value that a node computes. */
typedef void seen_fn(void *arg, const char *name, const struct mlo_tensor *tensor);

static void eval_into(struct mlo_tensor *values, const struct mlo_node *node)
{
    struct mlo_error err = {0};
    const struct mlo_tensor *in[16];
    struct mlo_tensor *out[16];
    assert_true(node->input_count <= 16 && node->output_count <= 16);
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *v = node->inputs[i];
        in[i] = !v ? NULL : v->constant ? v->constant : &values[v->index];
    }
    for (int i = 0; i < node->output_count; i++)
        out[i] = node->outputs[i] ? &values[node->outputs[i]->index] : NULL;
    assert_ok(mlo_node_eval(node, in, out, &err));
}

/* Runs the model; inputs in the order of its (non-constant) graph inputs. *result is yours. */
UNUSED_OK static void evaluate(const struct mlo_model *model, const struct mlo_tensor *inputs, seen_fn *seen,
                               void *arg, struct mlo_tensor *result)
{
    struct mlo_error err = {0};
    const struct mlo_graph *graph = model->graph;
    struct mlo_tensor *values = calloc((size_t)graph->value_count, sizeof *values);
    assert_non_null(values);
    int next = 0;
    for (int i = 0; i < graph->input_count; i++)
        if (!graph->inputs[i]->constant) {
            values[graph->inputs[i]->index] = inputs[next++];
            values[graph->inputs[i]->index].owned = false;
            if (seen)
                seen(arg, graph->inputs[i]->name, &inputs[next - 1]);
        }
    for (int n = 0; n < graph->node_count; n++) {
        eval_into(values, graph->nodes[n]);
        for (int o = 0; seen && o < graph->nodes[n]->output_count; o++) {
            const struct mlo_value *v = graph->nodes[n]->outputs[o];
            if (v)
                seen(arg, v->name, &values[v->index]);
        }
    }
    const struct mlo_value *output = graph->outputs[0];
    assert_ok(mlo_tensor_copy(output->constant ? output->constant : &values[output->index], result, &err));
    for (int v = 0; v < graph->value_count; v++)
        mlo_tensor_clear(&values[v]);
    free(values);
}

/* Deterministic numbers in [-1, 1) for every input; unknown dims become `batch`. */
UNUSED_OK static void make_inputs(const struct mlo_model *model, int64_t batch, uint32_t seed,
                                  struct mlo_tensor *inputs)
{
    struct mlo_error err = {0};
    int next = 0;
    for (int i = 0; i < model->graph->input_count; i++) {
        const struct mlo_value *v = model->graph->inputs[i];
        int64_t dims[MLO_MAX_RANK];
        if (v->constant)
            continue;
        for (int d = 0; d < v->type.rank; d++)
            dims[d] = v->type.dims[d].value < 0 ? batch : v->type.dims[d].value;
        struct mlo_tensor *t = &inputs[next++];
        assert_ok(mlo_tensor_init(t, v->type.dtype, v->type.rank, dims, &err));
        size_t count = mlo_tensor_count(t);
        for (size_t e = 0; e < count; e++) {
            seed = seed * 1664525u + 1013904223u;
            mlo_tensor_set_f64(t, e, (double)(seed >> 8) / 8388608.0 - 1.0);
        }
    }
}

static void add_stats(void *arg, const char *name, const struct mlo_tensor *tensor)
{
    struct mlo_error err = {0};
    struct mlo_tensor_stats *t = mlo_stats_get(arg, name);
    assert_non_null(t);
    if (tensor->dtype == MLO_FLOAT32)
        assert_ok(mlo_tensor_stats_add(t, tensor->data, mlo_tensor_count(tensor), &err));
}

/* Statistics of every float value over `samples` runs. */
UNUSED_OK static void observe(const struct mlo_model *model, int samples, struct mlo_stats *stats)
{
    mlo_stats_init(stats);
    for (int s = 0; s < samples; s++) {
        struct mlo_tensor inputs[4] = {0}, result = {0};
        make_inputs(model, 1, (uint32_t)s + 17, inputs);
        evaluate(model, inputs, add_stats, stats, &result);
        mlo_tensor_clear(&result);
        for (int i = 0; i < 4; i++)
            mlo_tensor_clear(&inputs[i]);
    }
    mlo_stats_sort(stats);
}

/* One value's statistics, as if these numbers had been seen. */
UNUSED_OK static void saw(struct mlo_stats *stats, const char *name, const float *numbers, size_t count)
{
    struct mlo_error err = {0};
    struct mlo_tensor_stats *t = mlo_stats_get(stats, name);
    assert_non_null(t);
    assert_ok(mlo_tensor_stats_add(t, numbers, count, &err));
    mlo_stats_sort(stats);
}

/* --- reading what came out ------------------------------------------------------------------------------ */

UNUSED_OK static struct mlo_tensor *constant_named(const struct mlo_model *m, const char *name)
{
    const struct mlo_value *v = mlo_graph_value(m->graph, name);
    if (!v || !v->constant)
        fail_msg("there is no constant '%s'", name);
    return v->constant;
}

UNUSED_OK static void assert_numbers(const struct mlo_model *m, const char *name, enum mlo_dtype dtype,
                                     size_t count, const double *wanted)
{
    const struct mlo_tensor *t = constant_named(m, name);
    if (t->dtype != dtype || mlo_tensor_count(t) != count)
        fail_msg("'%s' is %s with %zu elements", name, mlo_dtype_name(t->dtype), mlo_tensor_count(t));
    for (size_t i = 0; i < count; i++)
        if (mlo_tensor_get_f64(t, i) != wanted[i])
            fail_msg("'%s'[%zu] is %.9g, not %.9g", name, i, mlo_tensor_get_f64(t, i), wanted[i]);
}
#define assert_constant(m, name, dtype, ...)                                                                 \
    assert_numbers(m, name, dtype, sizeof((const double[]){__VA_ARGS__}) / sizeof(double),                   \
                   (const double[]){__VA_ARGS__})

/* y = x W + b, with numbers that quantize without rounding (but for one bias). */
UNUSED_OK static struct mlo_model *gemm_2x2(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 2);
    finish(m, op(m, "Gemm", "y", x, floats(m, "w", LIST(127, -254, 50, 4), 2, 2),
                 floats(m, "b", LIST(10, -7), 2)));
    return m;
}

/* The greatest difference of two models' first outputs on inputs for `a`, which it frees. */
UNUSED_OK static double deviation_on(struct mlo_tensor inputs[4], const struct mlo_model *a,
                                     const struct mlo_model *b)
{
    struct mlo_tensor x = {0}, y = {0};
    double worst = 0;
    struct mlo_error err = {0};
    assert_ok(mlo_graph_eval(a->graph, inputs, &x, &err));
    assert_ok(mlo_graph_eval(b->graph, inputs, &y, &err));
    assert_true(mlo_tensor_same_shape(&x, &y));
    size_t count = mlo_tensor_count(&x);
    for (size_t i = 0; i < count; i++)
        worst = fmax(worst, fabs(mlo_tensor_get_f64(&x, i) - mlo_tensor_get_f64(&y, i)));
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    for (int i = 0; i < 4; i++)
        mlo_tensor_clear(&inputs[i]);
    return worst;
}

/* The same on some inputs. */
UNUSED_OK static double deviation(const struct mlo_model *a, const struct mlo_model *b)
{
    struct mlo_tensor inputs[4] = {0};
    make_inputs(a, 2, 5, inputs);
    return deviation_on(inputs, a, b);
}

/* --- comparing ---------------------------------------------------------------------------------------------
 */

UNUSED_OK static void compare_golden(const char *name, const char *suffix, const struct mlo_model *model)
{
    struct mlo_error err = {0};
    struct mlo_buf got = MLO_BUF_INIT, wanted = MLO_BUF_INIT;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/passes/%s.%s", MLOPT_SOURCE_DIR, name, suffix);
    mlo_graph_dump(model->graph, &got);
    assert_true(mlo_buf_ok(&got));
    if (getenv("MLOPT_UPDATE_GOLDEN"))
        assert_ok(mlo_fs_write_atomic(path, mlo_buf_str(&got), got.len, &err));
    assert_ok(mlo_fs_read(path, 1 << 20, &wanted, &err));
    if (strcmp(mlo_buf_str(&got), mlo_buf_str(&wanted)) != 0)
        fail_msg("%s differs; now it is:\n%s", path, mlo_buf_str(&got));
    mlo_buf_clear(&got);
    mlo_buf_clear(&wanted);
}

#endif
