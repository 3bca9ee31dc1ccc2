/* Golden pairs: what each pass makes of a small model, as text, and that the model still computes the same.
 * MLOPT_UPDATE_GOLDEN=1 writes the files of tests/golden/passes anew. */
#include "tests/unit/passes/passes_helpers.h"

/* --- models: one per case --------------------------------------------------------------------------------
 */

static void build_conv_bn(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 2, 4, 4);
    struct mlo_value *c =
        op(m, "Conv", "c", x, ramp(m, "w", 0.1f, 3, 2, 3, 3), floats(m, "b", LIST(1, -1, 0), 3));
    struct mlo_value *bn = op(m, "BatchNormalization", "y", c, floats(m, "gain", LIST(2, 0.5, 1), 3),
                              floats(m, "offset", LIST(0.25, 0, -3), 3),
                              floats(m, "mean", LIST(0.5, 1, 0), 3), floats(m, "var", LIST(4, 0.25, 1), 3));
    finish(m, bn); /* the BatchNormalization names the graph output, which must keep its name */
}

/* Two Convs share their weights; only one is followed by a BatchNormalization. */
static void build_shared_weights(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 2, 4, 4), *w = ramp(m, "w", 0.1f, 2, 2, 1, 1);
    struct mlo_value *a = op(m, "Conv", "a", x, w);
    struct mlo_value *n = op(m, "BatchNormalization", "n", a, floats(m, "gain", LIST(3, 5), 2),
                             floats(m, "offset", LIST(1, 2), 2), floats(m, "mean", LIST(0, 0), 2),
                             floats(m, "var", LIST(1, 1), 2));
    finish(m, op(m, "Add", "y", n, op(m, "Conv", "b", x, w)));
}

static void build_gemm_bn(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 4);
    struct mlo_value *g = op(m, "Gemm", "g", x, ramp(m, "w", 0.1f, 4, 2), floats(m, "b", LIST(1, 2), 2));
    assert_true(mlo_node_set_f(g->producer, "beta", 0.5f));
    struct mlo_value *n = op(m, "BatchNormalization", "n", g, floats(m, "gain", LIST(3, 5), 2),
                             floats(m, "offset", LIST(1, 2), 2), floats(m, "mean", LIST(0.5, -1), 2),
                             floats(m, "var", LIST(1, 2), 2));
    finish(m, op(m, "Relu", "y", n));
}

/* The Conv's output is used twice: folding would change the other user. */
static void build_bn_refused(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 1, 2, 2);
    struct mlo_value *c = op(m, "Conv", "c", x, ramp(m, "w", 0.1f, 1, 1, 1, 1));
    struct mlo_value *n =
        op(m, "BatchNormalization", "n", c, floats(m, "gain", LIST(3), 1), floats(m, "offset", LIST(1), 1),
           floats(m, "mean", LIST(0), 1), floats(m, "var", LIST(1), 1));
    finish(m, op(m, "Add", "y", n, c));
}

static void build_affine(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 2, 4, 4);
    struct mlo_value *c = op(m, "Conv", "c", x, ramp(m, "w", 0.1f, 3, 2, 1, 1));
    struct mlo_value *s = op(m, "Mul", "s", floats(m, "gain", LIST(2, 3, 4), 3, 1, 1), c);
    struct mlo_value *t = op(m, "Add", "t", s, floats(m, "offset", LIST(1, 2, 3), 1, 3, 1, 1));
    struct mlo_value *u = op(m, "Sub", "u", t, scalar(m, "half", 0.5f));
    /* per column, not per channel: stays */
    finish(m, op(m, "Add", "y", u, floats(m, "columns", LIST(1, 2, 3, 4), 4)));
}

static void build_matmul_add(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 3);
    struct mlo_value *p = op(m, "MatMul", "p", x, ramp(m, "w", 0.1f, 3, 2));
    finish(m, op(m, "Add", "y", floats(m, "b", LIST(1, 2), 2), p));
}

static void build_matmul_add_row(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 3);
    struct mlo_value *p = op(m, "MatMul", "p", x, ramp(m, "w", 0.1f, 3, 2));
    struct mlo_value *y = op(m, "Add", "a", p, floats(m, "b", LIST(1, 2), 1, 2));
    /* one number per row, not per column: stays */
    finish(m, op(m, "Add", "y", op(m, "MatMul", "q", y, ramp(m, "v", 0.1f, 2, 2)),
                 floats(m, "rows", LIST(1, 2), 2, 1)));
}

static void build_pad_conv(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 1, 4, 4);
    struct mlo_value *p = op(m, "Pad", "p", x, ints(m, "pads", 0, 0, 1, 0, 0, 0, 2, 1));
    struct mlo_value *y = op(m, "Conv", "y", p, ramp(m, "w", 0.1f, 1, 1, 3, 3));
    set_ints(y, "pads", 1, 1, 0, 0);
    finish(m, y);
}

static void build_identities(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 2, 3);
    struct mlo_value *v = op(m, "Identity", "v1", x);
    v = op(m, "Dropout", "v2", v);
    v = op(m, "Reshape", "v3", v, ints(m, "shape", 0, 2, 3));
    v = op(m, "Transpose", "v4", v);
    set_ints(v, "perm", 0, 1, 2);
    v = op(m, "Add", "v5", v, floats(m, "zero", LIST(0, 0, 0), 3));
    v = op(m, "Mul", "v6", scalar(m, "one", 1), v);
    v = op(m, "Concat", "v7", v);
    assert_true(mlo_node_set_i(v->producer, "axis", 1));
    v = op(m, "Cast", "v8", v);
    assert_true(mlo_node_set_i(v->producer, "to", MLO_FLOAT32));
    v = op(m, "Relu", "v9", v);
    /* not identities: they change shape, order or numbers */
    v = op(m, "Transpose", "v10", v);
    set_ints(v, "perm", 0, 2, 1);
    v = op(m, "Add", "v11", v, floats(m, "grows", LIST(0, 0), 2, 1, 1, 1));
    finish(m, op(m, "Identity", "y", v));
}

/* What exporters write to flatten: Shape, Gather, Unsqueeze, Concat around the static dims. */
static void build_constants(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 2, 3);
    struct mlo_value *shape = op(m, "Shape", "shape", x);
    struct mlo_value *d1 = op(m, "Gather", "d1", shape, ints(m, "at1", 1));
    struct mlo_value *d2 = op(m, "Gather", "d2", shape, ints(m, "at2", 2));
    struct mlo_value *size = op(m, "Mul", "size", d1, d2);
    struct mlo_value *target = op(m, "Concat", "target", ints(m, "minus_one", -1), size);
    assert_true(mlo_node_set_i(target->producer, "axis", 0));
    struct mlo_value *flat = op(m, "Reshape", "flat", x, target);
    struct mlo_value *k =
        op(m, "Add", "k", floats(m, "p", LIST(1, 2), 2, 1), floats(m, "q", LIST(3, 4, 5), 3));
    struct mlo_value *vector = op(m, "Reshape", "vector", k, ints(m, "six", 6));
    finish(m, op(m, "Add", "y", flat, vector));
}

/* A Conv, x * sigmoid(x), pooling and a Gemm: pairs go elsewhere for each target. */
static void build_silu(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 2, 3, 3);
    struct mlo_value *c =
        op(m, "Conv", "c", x, ramp(m, "w", 0.1f, 3, 2, 2, 2), floats(m, "b", LIST(1, -1, 0), 3));
    struct mlo_value *s = op(m, "Mul", "s", c, op(m, "Sigmoid", "g", c));
    struct mlo_value *f = op(m, "Flatten", "f", op(m, "GlobalAveragePool", "p", s));
    finish(m, op(m, "Gemm", "y", f, ramp(m, "v", 0.1f, 3, 2), floats(m, "d", LIST(0.5f, -0.5f), 2)));
}

static void build_silu_in_pairs(struct mlo_model *m)
{
    struct mlo_error err = {0};
    struct mlo_stats stats;
    build_silu(m);
    observe(m, 4, &stats);
    assert_ok(run_pass(m, "quantize", "{\"target\": \"ort-x86-vnni\"}", &stats, NULL, &err));
    mlo_stats_clear(&stats);
}

/* Fake quantization as it is exported: parameters by tensor, a half range, float weights. */
static void build_qat(struct mlo_model *m)
{
    struct mlo_error err = {0};
    struct mlo_tensor zero = {0}, most = {0}, none = {0};
    assert_ok(mlo_tensor_init(&zero, MLO_UINT8, 0, NULL, &err));
    assert_ok(mlo_tensor_init(&most, MLO_UINT8, 0, NULL, &err));
    assert_ok(mlo_tensor_init(&none, MLO_INT8, 0, NULL, &err));
    *(uint8_t *)most.data = 127;
    struct mlo_value *x = input(m, "x", -1, 2, 3, 3), *z = constant_take(m, "zero", &zero);
    struct mlo_value *s = scalar(m, "s", 0.0078125f), *sw = scalar(m, "sw", 0.0625f);
    struct mlo_value *q = op(m, "QuantizeLinear", "q", op(m, "Relu", "r", x), s, z);
    struct mlo_value *c = op(m, "Clip", "c", q, NULL, constant_take(m, "most", &most));
    struct mlo_value *zw = constant_take(m, "zw", &none), *w = ramp(m, "w", 0.1f, 3, 2, 2, 2);
    struct mlo_value *dq = op(m, "DequantizeLinear", "dq", c, s, z),
                     *wq = op(m, "QuantizeLinear", "wq", w, sw, zw),
                     *wd = op(m, "DequantizeLinear", "wd", wq, sw, zw);
    struct mlo_value *again =
        op(m, "DequantizeLinear", "again", op(m, "QuantizeLinear", "qq", dq, s, z), s, z);
    struct mlo_value *y = op(m, "Conv", "conv", again, wd, floats(m, "b", LIST(1, -0.30f, 0), 3));
    finish(m, op(m, "GlobalAveragePool", "y", y));
}

static void build_dead(struct mlo_model *m)
{
    struct mlo_value *x = input(m, "x", -1, 2);
    struct mlo_value *dead = op(m, "Add", "dead1", x, floats(m, "used_by_dead", LIST(1, 2), 2));
    op(m, "Relu", "dead2", dead);
    ramp(m, "used_by_none", 1, 3);
    finish(m, op(m, "Relu", "y", x));
}

static struct mlo_value *truth(struct mlo_model *m, const char *name, bool value)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    assert_ok(mlo_tensor_init(&t, MLO_BOOL, 0, NULL, &err));
    *(uint8_t *)t.data = value;
    return constant_take(m, name, &t);
}

/* The condition follows from the static rank; the branch that is taken holds another If, which is not
 * decided, and reads values around it and one of a name that the main graph has too. */
static void build_if(struct mlo_model *m)
{
    struct mlo_error err = {0};
    struct mlo_value *x = input(m, "x", -1, 2, 3);
    struct mlo_value *two = ints(m, "two", 2), *least = ints(m, "least", 1);
    struct mlo_value *dim = op(m, "Gather", "dim", op(m, "Shape", "shape", x), ints(m, "at", 1));
    struct mlo_value *decided = op(m, "Greater", "decided", op(m, "Mul", "twice", dim, two), least);
    struct mlo_value *y = op(m, "If", "y", decided);
    struct mlo_graph *yes = subgraph(y->producer, "then_branch"), *no = subgraph(y->producer, "else_branch");
    struct mlo_value *big = op_in(yes, "Relu", "two", x);
    struct mlo_value *open = op_in(yes, "ReduceMax", "largest", big);
    assert_true(mlo_node_set_i(open->producer, "keepdims", 0));
    struct mlo_value *asked = op_in(yes, "Cast", "asked", open);
    assert_true(mlo_node_set_i(asked->producer, "to", MLO_BOOL));
    struct mlo_value *inner = op_in(yes, "If", "inner", asked);
    struct mlo_graph *a = subgraph(inner->producer, "then_branch"),
                     *b = subgraph(inner->producer, "else_branch");
    assert_ok(mlo_graph_add_output(a, op_in(a, "Add", "sum", big, x), &err));
    assert_ok(mlo_graph_add_output(b, op_in(b, "Neg", "negated", big), &err));
    assert_ok(mlo_graph_add_output(yes, inner, &err));
    assert_ok(mlo_graph_add_output(no, op_in(no, "Exp", "other", x), &err));
    finish(m, y);
}

/* The output of an If that is decided is an initializer of its branch; and a second output nobody reads. */
static void build_if_constant(struct mlo_model *m)
{
    struct mlo_error err = {0};
    struct mlo_value *x = input(m, "x", -1, 2), *y = op(m, "If", "picked", truth(m, "never", false));
    struct mlo_graph *yes = subgraph(y->producer, "then_branch"), *no = subgraph(y->producer, "else_branch");
    struct mlo_tensor t = {0};
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, 1, DIMS(2), &err));
    ((float *)t.data)[1] = 3;
    struct mlo_value *held = mlo_graph_add_constant_take(no, "held", &t);
    assert_ok(mlo_graph_add_output(yes, op_in(yes, "Relu", "never_made", x), &err));
    assert_ok(mlo_graph_add_output(no, held, &err));
    finish(m, op(m, "Add", "y", x, y));
}

/* A loop whose body computes with constants of its own and of the graph around. */
static void build_body(struct mlo_model *m)
{
    struct mlo_error err = {0};
    struct mlo_value *x = input(m, "x", 2, 3), *count = ints(m, "count", 3), *go = truth(m, "go", true);
    struct mlo_value *p = floats(m, "p", LIST(1, 2, 3), 3), *last = op(m, "Loop", "y", count, go, x);
    struct mlo_graph *body = subgraph(last->producer, "body");
    const struct mlo_type types[] = {{MLO_INT64, 0}, {MLO_BOOL, 0}, {MLO_FLOAT32, -1}};
    struct mlo_value *in[3];
    for (int i = 0; i < 3; i++) {
        in[i] = mlo_graph_add_value(body, (const char *const[]){"trip", "again", "state"}[i], &types[i]);
        assert_ok(mlo_graph_add_input(body, in[i], &err));
    }
    struct mlo_value *scaled = op_in(body, "Mul", "scaled", p, op_in(body, "Exp", "e", p));
    assert_ok(mlo_graph_add_output(body, op_in(body, "Identity", "on", in[1]), &err));
    assert_ok(mlo_graph_add_output(body, op_in(body, "Add", "next", in[2], scaled), &err));
    finish(m, last);
}

/* Half of each row is near zero. Two channels make no group of four, so 2:4 leaves the Conv alone. */
static void build_sparse(struct mlo_model *m)
{
    struct mlo_value *c = op(m, "Conv", "c", input(m, "x", -1, 2, 2, 2),
                             floats(m, "w", LIST(1, 0.001f, -0.002f, 3), 2, 2, 1, 1));
    struct mlo_value *g =
        op(m, "Gemm", "y", op(m, "Flatten", "f", c),
           floats(m, "v", LIST(1, 0.001f, 0.001f, 2, 0, -0.0005f, 1, 3), 8, 1), floats(m, "b", LIST(1), 1));
    finish(m, g);
}

static const struct {
    const char *name;
    void (*build)(struct mlo_model *model);
    const char *pass;
    double tolerance;
    int changes;
    const char *options; /* or NULL: defaults */
    bool once;           /* a second run is refused, or has nothing to work on */
} CASES[] = {
    {"conv-bn", build_conv_bn, "fold-batchnorm", 1e-5, 1},
    {"shared-weights", build_shared_weights, "fold-batchnorm", 1e-5, 1},
    {"gemm-bn", build_gemm_bn, "fold-batchnorm", 1e-5, 1},
    {"bn-refused", build_bn_refused, "fold-batchnorm", 0, 0},
    {"affine", build_affine, "fold-affine", 1e-5, 3},
    {"matmul-add", build_matmul_add, "fuse-matmul-add", 1e-6, 1},
    {"matmul-add-row", build_matmul_add_row, "fuse-matmul-add", 1e-6, 1},
    {"pad-conv", build_pad_conv, "fuse-pad", 1e-6, 1},
    {"identities", build_identities, "remove-identity", 0, 9},
    {"constants", build_constants, "fold-constants", 0, 6},
    {"if", build_if, "fold-constants", 0, 4},
    {"if-constant", build_if_constant, "fold-constants", 0, 1},
    {"body", build_body, "fold-constants", 0, 2},
    {"dead", build_dead, "remove-dead", 0, 4},
    {"quantize-cpu", build_silu, "quantize", 0.05, 2, NULL, true},
    {"quantize-ort", build_silu, "quantize", 0.05, 2, "{\"target\": \"ort-x86-vnni\"}", true},
    {"quantize-tensorrt", build_silu, "quantize", 0.05, 2, "{\"target\": \"tensorrt\"}", true},
    {"quantize-dynamic", build_silu, "quantize-dynamic", 0.05, 2,
     "{\"min_weights\": 0, \"convolutions\": true}", true},
    {"qat", build_qat, "import-qat", 0.0078125 * 0.0625 / 2, 5},
    {"qoperator", build_silu_in_pairs, "to-qoperator", 0.05, 6},
    {"sparse", build_sparse, "sparsify", 0.01, 2, "{\"min_weights\": 0, \"criterion\": \"magnitude\"}"},
    {"sparse-2-4", build_sparse, "sparsify", 0.01, 1, "{\"min_weights\": 0, \"pattern\": \"2:4\"}"},
    {"float16", build_silu, "to-float16", 0.01, 6, NULL, true},
};

/* Runs the case's pass on its model, with what it observes where it asks for statistics. */
static void run_case(size_t i, struct mlo_model *model, json_t **report)
{
    struct mlo_error err = {0};
    struct mlo_stats stats;
    bool observes = mlo_pass_find(CASES[i].pass)->needs_stats;
    if (observes)
        observe(model, 4, &stats);
    assert_ok(run_pass(model, CASES[i].pass, CASES[i].options, observes ? &stats : NULL, report, &err));
    if (observes)
        mlo_stats_clear(&stats);
}

static void test_passes__golden_pairs_and_equal_outputs(void **state)
{
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        json_t *report = NULL;
        struct mlo_model *before = new_model(13), *after = new_model(13);
        CASES[i].build(before);
        CASES[i].build(after);
        compare_golden(CASES[i].name, "before", before);
        run_case(i, after, &report);
        compare_golden(CASES[i].name, "after", after);
        if (json_integer_value(json_object_get(json_array_get(report, 0), "changes")) != CASES[i].changes)
            fail_msg("%s: %lld changes", CASES[i].name,
                     (long long)json_integer_value(json_object_get(json_array_get(report, 0), "changes")));
        double worst = deviation(before, after);
        if (worst > CASES[i].tolerance)
            fail_msg("%s: outputs differ by %g", CASES[i].name, worst);
        assert_string_equal(after->graph->outputs[0]->name, before->graph->outputs[0]->name);
        json_decref(report);
        mlo_model_free(before);
        mlo_model_free(after);
    }
}

/* A second run finds nothing: passes reach their fixed point. */
static void test_passes__are_idempotent(void **state)
{
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        if (CASES[i].once)
            continue;
        json_t *report = NULL;
        struct mlo_model *model = new_model(13);
        CASES[i].build(model);
        run_case(i, model, NULL);
        run_case(i, model, &report);
        assert_int_equal(json_integer_value(json_object_get(json_array_get(report, 0), "changes")), 0);
        json_decref(report);
        mlo_model_free(model);
    }
}

/* Variance 0.25 and epsilon 0.75: the output is divided by 1. 3 (2 x + 1 - 4) + 0.5 = 6 x - 8.5. */
static void test_fold_batchnorm__by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *c = op(m, "Conv", "c", input(m, "x", -1, 1, 2, 2), floats(m, "w", LIST(2), 1, 1, 1, 1),
                             floats(m, "b", LIST(1), 1));
    struct mlo_value *n =
        op(m, "BatchNormalization", "y", c, floats(m, "gain", LIST(3), 1), floats(m, "offset", LIST(0.5f), 1),
           floats(m, "mean", LIST(4), 1), floats(m, "var", LIST(0.25f), 1));
    assert_true(mlo_node_set_f(n->producer, "epsilon", 0.75f));
    finish(m, n);
    assert_ok(run_pass(m, "fold-batchnorm", NULL, NULL, NULL, &err));
    assert_int_equal(m->graph->node_count, 1);
    const struct mlo_node *node = m->graph->nodes[0];
    assert_true(mlo_tensor_get_f64(mlo_node_const(node, 1), 0) == 6);
    assert_true(mlo_tensor_get_f64(mlo_node_const(node, 2), 0) == -8.5);
    assert_string_equal(node->outputs[0]->name, "y");
    mlo_model_free(m);
}

static void test_fold_batchnorm__says_why_it_left_one(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *model = new_model(13);
    build_bn_refused(model);
    assert_ok(run_pass(model, "fold-batchnorm", NULL, NULL, &report, &err));
    assert_true(has_note(report, "n_node", "its input has other users"));
    json_decref(report);
    mlo_model_free(model);
}

/* Weights of ConvTranspose are [inputs, outputs per group, …]: output channel = group * 3 + column. The op
 * needs no row in the op table to be folded. */
static void test_fold_batchnorm__transposed_conv_scales_outputs_by_group(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", 1, 4, 3, 3), *w = ramp(m, "w", 0.1f, 4, 3, 2, 2);
    float before[4 * 3 * 4];
    memcpy(before, w->constant->data, sizeof before);
    struct mlo_type type = {.dtype = MLO_FLOAT32, .rank = 4, .dims = {{1}, {6}, {4}, {4}}};
    struct mlo_value *c = mlo_graph_add_value(m->graph, "c", &type);
    struct mlo_node *node = mlo_graph_add_node(m->graph, NULL, "", "ConvTranspose", "c_node",
                                               (struct mlo_value *const[]){x, w}, 2, &c, 1);
    assert_true(node && mlo_node_set_i(node, "group", 2));
    finish(m, op(m, "BatchNormalization", "y", c, floats(m, "gain", LIST(1, 2, 3, 4, 5, 6), 6),
                 floats(m, "offset", LIST(7, 8, 9, 10, 11, 12), 6),
                 floats(m, "mean", LIST(0, 0, 0, 0, 0, 1), 6), floats(m, "var", LIST(1, 1, 1, 1, 1, 1), 6)));
    assert_ok(run_pass(m, "fold-batchnorm", NULL, NULL, NULL, &err));
    assert_int_equal(count_ops(m, "BatchNormalization"), 0);
    const float *after = mlo_node_const(node, 1)->data, *bias = mlo_node_const(node, 2)->data;
    for (int e = 0; e < 48; e++) {
        int row = e / 12, column = e / 4 % 3, channel = row / 2 * 3 + column;
        assert_float_equal(after[e], before[e] * (float)(channel + 1), 1e-4);
    }
    assert_float_equal(bias[0], 7, 1e-4);
    assert_float_equal(bias[5], 12 - 6, 1e-4);
    mlo_model_free(m);
}

/* Six bytes of shape must not become megabytes of zeros. */
static void test_fold_constants__never_blows_a_model_up(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", 1, 1);
    struct mlo_value *big =
        op(m, "Expand", "big", floats(m, "one", LIST(1), 1, 1), ints(m, "shape", 1024, 1024));
    finish(m, op(m, "Add", "y", x, big));
    assert_ok(run_pass(m, "fold-constants", NULL, NULL, &report, &err));
    assert_int_equal(count_ops(m, "Expand"), 1);
    assert_true(has_note(report, "big_node", "larger than max_bytes"));
    json_decref(report);
    assert_ok(run_pass(m, "fold-constants", "{\"max_bytes\": 4194304}", NULL, NULL, &err));
    assert_int_equal(count_ops(m, "Expand"), 0);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes__golden_pairs_and_equal_outputs),
        cmocka_unit_test(test_passes__are_idempotent),
        cmocka_unit_test(test_fold_batchnorm__by_hand),
        cmocka_unit_test(test_fold_batchnorm__says_why_it_left_one),
        cmocka_unit_test(test_fold_batchnorm__transposed_conv_scales_outputs_by_group),
        cmocka_unit_test(test_fold_constants__never_blows_a_model_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
