/* Every conversion of the raise-opset pass: a model in the old form gives the same numbers in the new one, in
 * the main graph and in the branch of an If. A conversion without a case here fails the suite. */
#include "passes/passes_impl.h"
#include "tests/unit/passes/passes_helpers.h"

/* What a case makes: the graph that gets the nodes, and the op under test. */
struct scene {
    struct mlo_model *model;
    struct mlo_graph *graph;
    const char *op;
    bool preparing; /* nodes that the one under test needs */
};

static struct mlo_value *constant(struct scene *s, enum mlo_dtype dtype, const double *list, int rank,
                                  const int64_t *dims)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    assert_ok(mlo_tensor_init(&t, dtype, rank, dims, &err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        mlo_tensor_set_f64(&t, i, list[i]);
    struct mlo_value *value = mlo_graph_add_constant_take(s->graph, "k", &t);
    assert_non_null(value);
    return value;
}
#define NUMBERS(scene, dtype, list, ...) constant(scene, dtype, list, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))
#define ALL(...) ((const double[]){__VA_ARGS__})

static struct mlo_node *node_of(struct scene *s, struct mlo_value *const *in, int inputs, int outputs)
{
    struct mlo_value *out[4] = {0};
    for (int i = 0; i < outputs; i++)
        assert_non_null(out[i] = mlo_graph_add_value(s->graph, "out", NULL));
    struct mlo_node *node = mlo_graph_add_node(s->graph, NULL, "", s->op, s->preparing ? "before" : "tested",
                                               in, inputs, out, outputs);
    assert_non_null(node);
    if (!node->op)
        fail_msg("the op table has no row for %s", s->op);
    return node;
}
#define NODE(scene, ...)                                                                                     \
    node_of(scene, (struct mlo_value *const[]){__VA_ARGS__},                                                 \
            (int)(sizeof((struct mlo_value *const[]){__VA_ARGS__}) / sizeof(struct mlo_value *)), 1)
#define SET_INTS(node, name, ...)                                                                            \
    assert_true(mlo_node_set_ints(node, name, DIMS(__VA_ARGS__), (size_t)RANK(__VA_ARGS__)))

/* --- the nodes: x is float32[2,4,3,3] ------------------------------------------------------------------ */

typedef struct mlo_value *build_fn(struct scene *s, struct mlo_value *x);

static struct mlo_value *build_batchnorm(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n =
        NODE(s, x, NUMBERS(s, MLO_FLOAT32, ALL(1, 2, 3, 4), 4), NUMBERS(s, MLO_FLOAT32, ALL(0, 1, 0, -1), 4),
             NUMBERS(s, MLO_FLOAT32, ALL(0.5, 0, 1, 2), 4), NUMBERS(s, MLO_FLOAT32, ALL(1, 2, 3, 4), 4));
    if (n->version < 9)
        assert_true(mlo_node_set_i(n, "spatial", 1));
    return n->outputs[0];
}

static struct mlo_value *build_clip(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = NODE(s, x);
    assert_true(mlo_node_set_f(n, "min", -0.25f) && mlo_node_set_f(n, "max", 0.5f));
    return n->outputs[0];
}

static struct mlo_value *build_dft(struct scene *s, struct mlo_value *x)
{
    /* [2,4,9,1]: real numbers, transformed along what the old default names */
    const char *op = s->op;
    s->op = "Reshape";
    s->preparing = true;
    struct mlo_node *flat = NODE(s, x, NUMBERS(s, MLO_INT64, ALL(2, 4, 9, 1), 4));
    s->op = op;
    s->preparing = false;
    struct mlo_node *n = NODE(s, flat->outputs[0], constant(s, MLO_INT64, ALL(5), 0, NULL));
    assert_true(mlo_node_set_i(n, "onesided", 1));
    return n->outputs[0];
}

static struct mlo_value *build_dropout(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = NODE(s, x);
    assert_true(mlo_node_set_f(n, "ratio", 0.75f));
    return n->outputs[0];
}

static struct mlo_value *build_gridsample(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n =
        NODE(s, x,
             NUMBERS(s, MLO_FLOAT32, ALL(-0.9, 0.1, 0.3, 0.7, 0, 0, 0.5, -0.5, 1, 1, -0.2, 0.4), 2, 1, 3, 2));
    assert_true(mlo_node_set_s(n, "mode", "bicubic"));
    return n->outputs[0];
}

static struct mlo_value *build_gridsample_default(struct scene *s, struct mlo_value *x)
{
    return NODE(s, x,
                NUMBERS(s, MLO_FLOAT32, ALL(-0.9, 0.1, 0.3, 0.7, 0, 0, 0.5, -0.5, 1, 1, -0.2, 0.4), 2, 1, 3,
                        2))
        ->outputs[0];
}

static struct mlo_value *build_groupnorm(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n =
        NODE(s, x, NUMBERS(s, MLO_FLOAT32, ALL(2, -3), 2), NUMBERS(s, MLO_FLOAT32, ALL(0.5, 7), 2));
    assert_true(mlo_node_set_i(n, "num_groups", 2));
    return n->outputs[0];
}

/* Without an axis: flattened to [2, 36]. */
static struct mlo_value *build_plain(struct scene *s, struct mlo_value *x)
{
    return NODE(s, x)->outputs[0];
}

static struct mlo_value *build_last_axis(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = NODE(s, x);
    assert_true(mlo_node_set_i(n, "axis", 3));
    return n->outputs[0];
}

static struct mlo_value *build_pad(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = NODE(s, x);
    SET_INTS(n, "pads", 0, 0, 1, 2, 0, 1, 0, -1);
    assert_true(mlo_node_set_f(n, "value", 0.125f));
    return n->outputs[0];
}

static struct mlo_value *build_reduce(struct scene *s, struct mlo_value *x)
{
    const char *op = s->op;
    s->op = "Abs";
    s->preparing = true; /* logarithms are taken */
    struct mlo_node *positive = NODE(s, x);
    s->op = op;
    s->preparing = false;
    struct mlo_node *n = NODE(s, positive->outputs[0]);
    SET_INTS(n, "axes", 1, -1);
    return n->outputs[0];
}

static struct mlo_value *build_reduce_all(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = NODE(s, x);
    assert_true(mlo_node_set_i(n, "keepdims", 0));
    return n->outputs[0];
}

static struct mlo_value *build_upsample(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n;
    if (mlo_model_opset(s->model, "") >= 9)
        n = NODE(s, x, NUMBERS(s, MLO_FLOAT32, ALL(1, 1, 2, 1.5), 4));
    else {
        n = NODE(s, x);
        struct mlo_attr *attrs = mlo_arena_calloc(s->model->arena, 1, sizeof *attrs);
        float *scales = mlo_arena_calloc(s->model->arena, 4, sizeof *scales);
        assert_true(attrs && scales);
        memcpy(scales, LIST(1, 1, 2, 1.5), 4 * sizeof *scales);
        *attrs = (struct mlo_attr){.name = "scales", .type = MLO_ATTR_FLOATS, .floats = {4, scales}};
        n->attrs = attrs;
        n->attr_count = 1;
    }
    assert_true(mlo_node_set_s(n, "mode", "nearest"));
    return n->outputs[0];
}

static struct mlo_value *build_linear(struct scene *s, struct mlo_value *x)
{
    struct mlo_value *y = build_upsample(s, x);
    assert_true(mlo_node_set_s(y->producer, "mode", "linear"));
    return y;
}

static struct mlo_value *build_resize_11(struct scene *s, struct mlo_value *x)
{
    return NODE(s, x, NUMBERS(s, MLO_FLOAT32, ALL(0), 0), NUMBERS(s, MLO_FLOAT32, ALL(1, 1, 2, 1.5), 4))
        ->outputs[0];
}

static struct mlo_value *build_roialign(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = NODE(s, x, NUMBERS(s, MLO_FLOAT32, ALL(0, 0, 2, 2, 0.5, 0.25, 1.5, 2), 2, 4),
                              NUMBERS(s, MLO_INT64, ALL(0, 1), 2));
    assert_true(mlo_node_set_i(n, "output_height", 2) && mlo_node_set_i(n, "output_width", 2) &&
                mlo_node_set_i(n, "sampling_ratio", 2));
    return n->outputs[0];
}

static struct mlo_value *build_scatter(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = NODE(s, x, NUMBERS(s, MLO_INT64, ALL(2, 0), 1, 2, 1, 1),
                              NUMBERS(s, MLO_FLOAT32, ALL(8, 9), 1, 2, 1, 1));
    assert_true(mlo_node_set_i(n, "axis", 2));
    return n->outputs[0];
}

static struct mlo_value *build_slice(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = NODE(s, x);
    SET_INTS(n, "starts", 1, -2);
    SET_INTS(n, "ends", 9, -1);
    SET_INTS(n, "axes", 1, 3);
    return n->outputs[0];
}

static struct mlo_value *build_slice_first_axes(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = NODE(s, x);
    SET_INTS(n, "starts", 0, 1);
    SET_INTS(n, "ends", 1, 3);
    return n->outputs[0];
}

static struct mlo_value *split_with(struct scene *s, struct mlo_value *x, bool sizes)
{
    struct mlo_node *n = node_of(s, &x, 1, 2);
    assert_true(mlo_node_set_i(n, "axis", 1));
    if (sizes)
        SET_INTS(n, "split", 1, 3);
    return n->outputs[1];
}

static struct mlo_value *build_split(struct scene *s, struct mlo_value *x)
{
    return split_with(s, x, true);
}

static struct mlo_value *build_split_equal(struct scene *s, struct mlo_value *x)
{
    return split_with(s, x, false);
}

static struct mlo_value *build_squeeze(struct scene *s, struct mlo_value *x)
{
    const char *op = s->op;
    s->op = "Unsqueeze";
    s->preparing = true;
    struct mlo_node *wide = NODE(s, x);
    SET_INTS(wide, "axes", 0, 3);
    s->op = op;
    s->preparing = false;
    struct mlo_node *n = NODE(s, wide->outputs[0]);
    SET_INTS(n, "axes", 3);
    return n->outputs[0];
}

static struct mlo_value *build_unsqueeze(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = NODE(s, x);
    SET_INTS(n, "axes", 1, 2);
    return n->outputs[0];
}

static struct mlo_value *build_topk(struct scene *s, struct mlo_value *x)
{
    struct mlo_node *n = node_of(s, &x, 1, 2);
    assert_true(mlo_node_set_i(n, "k", 2) && mlo_node_set_i(n, "axis", 1));
    return n->outputs[0];
}

static const struct {
    const char *op;
    int since, from; /* the row it proves, and the opset of the model */
    build_fn *build;
} CASES[] = {
    {"BatchNormalization", 9, 7, build_batchnorm},
    {"BatchNormalization", 14, 13, build_batchnorm},
    {"Clip", 11, 10, build_clip},
    {"DFT", 20, 17, build_dft},
    {"Dropout", 12, 10, build_dropout},
    {"GridSample", 20, 16, build_gridsample},
    {"GridSample", 20, 17, build_gridsample_default},
    {"GroupNormalization", 21, 18, build_groupnorm},
    {"Hardmax", 13, 11, build_plain},
    {"LogSoftmax", 13, 12, build_plain},
    {"Pad", 11, 9, build_pad},
    {"ReduceL1", 18, 12, build_reduce},
    {"ReduceL2", 18, 13, build_reduce},
    {"ReduceLogSum", 18, 11, build_reduce},
    {"ReduceLogSumExp", 18, 17, build_reduce},
    {"ReduceMax", 18, 8, build_reduce},
    {"ReduceMean", 18, 13, build_reduce},
    {"ReduceMean", 18, 13, build_reduce_all},
    {"ReduceMin", 18, 12, build_reduce},
    {"ReduceProd", 18, 13, build_reduce},
    {"ReduceSum", 13, 11, build_reduce},
    {"ReduceSum", 13, 11, build_reduce_all},
    {"ReduceSumSquare", 18, 13, build_reduce},
    {"Resize", 11, 10, build_upsample},
    {"Resize", 11, 10, build_linear},
    {"Resize", 13, 11, build_resize_11},
    {"RoiAlign", 16, 10, build_roialign},
    {"Scatter", 11, 9, build_scatter},
    {"Slice", 10, 9, build_slice},
    {"Slice", 10, 7, build_slice_first_axes},
    {"Softmax", 13, 11, build_plain},
    {"Softmax", 13, 9, build_last_axis},
    {"Split", 13, 11, build_split},
    {"Split", 18, 13, build_split_equal},
    {"Squeeze", 13, 11, build_squeeze},
    {"TopK", 10, 9, build_topk},
    {"Unsqueeze", 13, 8, build_unsqueeze},
    {"Upsample", 9, 7, build_upsample},
    {"Upsample", 10, 9, build_upsample},
};

/* --- the models ---------------------------------------------------------------------------------------- */

/* With `inside`, the node under test is in a branch of an If, and reads x of the graph around. */
static struct mlo_model *model_of(size_t c, bool inside)
{
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(CASES[c].from);
    struct mlo_value *x = input(m, "x", 2, 4, 3, 3);
    struct scene scene = {m, m->graph, CASES[c].op, false};
    if (!inside) {
        finish(m, CASES[c].build(&scene, x));
        return m;
    }
    struct mlo_value *in[1] = {NUMBERS(&scene, MLO_BOOL, ALL(1), 1)},
                     *y = mlo_graph_add_value(m->graph, "y", NULL);
    struct mlo_node *branch = mlo_graph_add_node(m->graph, NULL, "", "If", "branch", in, 1, &y, 1);
    assert_non_null(branch);
    for (int i = 0; i < 2; i++) {
        scene.graph = subgraph(branch, i ? "else_branch" : "then_branch");
        assert_ok(mlo_graph_add_output(scene.graph, CASES[c].build(&scene, x), &err));
    }
    finish(m, y);
    return m;
}

static void first_output(const struct mlo_model *m, struct mlo_tensor *out)
{
    struct mlo_error err = {0};
    struct mlo_tensor x[4] = {0};
    make_inputs(m, 2, 5, x);
    if (mlo_graph_eval(m->graph, x, out, &err) != MLO_OK)
        fail_msg("%s (%s)", err.message, err.where);
    mlo_tensor_clear(&x[0]);
}

static void check_case(size_t c, bool inside, int to)
{
    char label[96], note[96], options[32];
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *before = model_of(c, inside), *after = model_of(c, inside);
    struct mlo_tensor want = {0}, got = {0};
    snprintf(label, sizeof label, "%s from %d to %d%s", CASES[c].op, CASES[c].from, to,
             inside ? ", in a branch" : "");
    snprintf(note, sizeof note, "converted to its form of opset %d", CASES[c].since);
    snprintf(options, sizeof options, "{\"to\": %d}", to);
    if (run_pass(after, "raise-opset", options, NULL, &report, &err) != MLO_OK)
        fail_msg("%s: %s", label, err.message);
    if (to >= CASES[c].since && !has_note(report, "tested", note))
        fail_msg("%s: not %s", label, note);
    first_output(before, &want);
    first_output(after, &got);
    if (!mlo_tensor_same_shape(&want, &got))
        fail_msg("%s: another shape", label);
    for (size_t i = 0; i < mlo_tensor_count(&want); i++)
        if (mlo_tensor_get_f64(&want, i) != mlo_tensor_get_f64(&got, i))
            fail_msg("%s: element %zu was %.9g and is %.9g", label, i, mlo_tensor_get_f64(&want, i),
                     mlo_tensor_get_f64(&got, i));
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&got);
    json_decref(report);
    mlo_model_free(before);
    mlo_model_free(after);
}

static void test_raise_opset__every_form_computes_the_same(void **state)
{
    MLO_UNUSED(state);
    static const int versions[] = {13, 17, 21, 23};
    for (size_t c = 0; c < MLO_COUNT(CASES); c++)
        for (size_t v = 0; v < MLO_COUNT(versions); v++)
            for (int inside = 0; inside < 2 && versions[v] > CASES[c].from; inside++)
                check_case(c, inside != 0, versions[v]);
}

static void test_raise_opset__every_conversion_has_a_case(void **state)
{
    MLO_UNUSED(state);
    const char *op = NULL;
    int since = 0;
    for (size_t i = 0; mlo_pass_opset_change(i, &op, &since); i++) {
        bool proven = strcmp(op, "Scan") == 0; /* refused */
        for (size_t c = 0; c < MLO_COUNT(CASES); c++)
            proven = proven || (strcmp(CASES[c].op, op) == 0 && CASES[c].since == since);
        if (!proven)
            fail_msg("no case converts %s to opset %d", op, since);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_raise_opset__every_form_computes_the_same),
        cmocka_unit_test(test_raise_opset__every_conversion_has_a_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
