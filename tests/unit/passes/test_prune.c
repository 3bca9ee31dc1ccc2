/* Structured pruning: a golden pair for each rule of coupling, and what is refused. */
#include "tests/unit/passes/prune_fixture.h"

static void build_conv(struct mlo_model *m)
{
    struct mlo_value *c = op(m, "Conv", "c", image(m), holes(m, "w", 0.1f, 0, 1, 4, 2, 3, 3),
                             floats(m, "b", LIST(1, 0, 2, 0), 4));
    conclude(m, op(m, "Relu", "r", c), 4);
}

static void build_batchnorm(struct mlo_model *m)
{
    struct mlo_value *n =
        op(m, "BatchNormalization", "n", first(m, "c", image(m), 2, 4),
           floats(m, "gain", LIST(1, 2, 3, 4), 4), floats(m, "offset", LIST(1, 0, -1, 0), 4),
           floats(m, "mean", LIST(0.5, 0, 1, 0), 4), floats(m, "var", LIST(1, 2, 3, 4), 4));
    conclude(m, op(m, "LeakyRelu", "r", n), 4);
}

/* Two outputs for each channel: four of eight go, and the number of groups. */
static void build_depthwise(struct mlo_model *m)
{
    struct mlo_value *c =
        op(m, "Clip", "a", first(m, "c", image(m), 2, 4), scalar(m, "low", -1), scalar(m, "high", 6));
    struct mlo_value *d = op(m, "Conv", "d", c, ramp(m, "dw", 0.1f, 8, 1, 3, 3));
    assert_true(mlo_node_set_i(d->producer, "group", 4));
    conclude(m, d, 8);
}

/* Groups stay equal: index j of both, or of none. */
static void build_grouped(struct mlo_model *m)
{
    struct mlo_value *g =
        op(m, "Conv", "g", first(m, "c", image(m), 2, 8), holes(m, "gw", 0.1f, 0, 1, 8, 4, 1, 1));
    assert_true(mlo_node_set_i(g->producer, "group", 2));
    conclude(m, op(m, "Tanh", "t", g), 8);
}

static void build_transposed(struct mlo_model *m)
{
    struct mlo_value *c = op(m, "ConvTranspose", "c", image(m), holes(m, "w", 0.1f, 1, 1, 2, 4, 3, 3));
    conclude(m, op(m, "Relu", "r", c), 4);
}

static void build_residual(struct mlo_model *m)
{
    struct mlo_value *a = first(m, "a", image(m), 2, 4);
    struct mlo_value *b = first(m, "b", op(m, "Relu", "r", a), 4, 4);
    conclude(m, op(m, "Relu", "s", op(m, "Add", "sum", a, b)), 4);
}

static void build_concat(struct mlo_model *m)
{
    struct mlo_value *x = image(m), *a = first(m, "a", x, 2, 4), *b = first(m, "b", x, 2, 6);
    struct mlo_value *c = op(m, "Concat", "c", a, x, b); /* what comes from outside stays */
    assert_true(mlo_node_set_i(c->producer, "axis", 1));
    conclude(m, op(m, "Relu", "r", c), 12);
}

/* A gated linear unit: both halves of a Split shrink alike. */
static void build_glu(struct mlo_model *m)
{
    struct mlo_value *c = first(m, "c", image(m), 2, 8), *halves[2];
    halves[0] = mlo_graph_add_value(m->graph, "left", NULL);
    halves[1] = mlo_graph_add_value(m->graph, "right", NULL);
    struct mlo_node *split = mlo_graph_add_node(m->graph, NULL, "", "Split", "split", &c, 1, halves, 2);
    assert_true(split && mlo_node_set_i(split, "axis", 1));
    conclude(m, op(m, "Mul", "g", halves[0], op(m, "Sigmoid", "s", halves[1])), 4);
}

/* Channels of four positions each. */
static void build_flatten(struct mlo_model *m)
{
    struct mlo_value *p = op(m, "MaxPool", "p", first(m, "c", image(m), 2, 4));
    set_ints(p, "kernel_shape", 2, 2);
    set_ints(p, "strides", 2, 2);
    finish(m, op(m, "Gemm", "y", op(m, "Flatten", "f", p), ramp(m, "w", 0.1f, 16, 3)));
}

static void build_reshape(struct mlo_model *m)
{
    struct mlo_value *r = op(m, "Reshape", "r", first(m, "c", image(m), 2, 4), ints(m, "shape", 0, 64));
    finish(m, op(m, "Gemm", "y", r, ramp(m, "w", 0.1f, 64, 3)));
}

/* The gate of squeeze and excitation: its last layer is coupled to what it gates. */
static void build_gate(struct mlo_model *m)
{
    struct mlo_value *c = first(m, "c", image(m), 2, 4);
    struct mlo_value *s = op(m, "Conv", "squeeze", op(m, "GlobalAveragePool", "pool", c),
                             holes(m, "sw", 0.1f, 0, 1, 2, 4, 1, 1));
    struct mlo_value *e =
        op(m, "Conv", "excite", op(m, "Relu", "r", s), holes(m, "ew", 0.1f, 0, 1, 4, 2, 1, 1));
    conclude(m, op(m, "Mul", "g", c, op(m, "Sigmoid", "gate", e)), 4);
}

static void build_slopes(struct mlo_model *m)
{
    struct mlo_value *p =
        op(m, "PRelu", "p", first(m, "c", image(m), 2, 4), floats(m, "slope", LIST(1, 2, 3, 4), 4, 1, 1));
    struct mlo_value *pad = op(m, "Pad", "pad", p, ints(m, "pads", 0, 0, 1, 1, 0, 0, 0, 1));
    struct mlo_value *mean = op(m, "ReduceMean", "mean", pad);
    set_ints(mean, "axes", 2, 3);
    assert_true(mlo_node_set_i(mean->producer, "keepdims", 0));
    finish(m, op(m, "Gemm", "y", mean, ramp(m, "w", 0.1f, 4, 3)));
}

/* Channels last. */
static void build_transpose(struct mlo_model *m)
{
    struct mlo_value *t = op(m, "Transpose", "t", first(m, "c", image(m), 2, 4));
    set_ints(t, "perm", 0, 2, 3, 1);
    struct mlo_value *a = op(m, "Add", "a", t, floats(m, "b", LIST(1, 0, 2, 0), 4));
    finish(m, op(m, "MatMul", "y", a, ramp(m, "w", 0.1f, 4, 3)));
}

static void build_embedding(struct mlo_model *m)
{
    struct mlo_value *index = input_of(m, "x", MLO_INT64, 2, DIMS(-1, 3));
    struct mlo_value *e = op(m, "Gather", "e", holes(m, "table", 0.1f, 1, 1, 10, 4), index);
    finish(m, op(m, "MatMul", "y", op(m, "Relu", "r", e), ramp(m, "w", 0.1f, 4, 3)));
}

/* Eight columns as heads of that width: of width 2, every second head is zero; else every second index. */
static struct mlo_value *heads(struct mlo_model *m, const char *name, struct mlo_value *x, int64_t width,
                               int64_t p1, int64_t p2, int64_t p3)
{
    char a[32], b[32], c[32], d[32];
    snprintf(a, sizeof a, "%s_w", name);
    snprintf(b, sizeof b, "%s_p", name);
    snprintf(c, sizeof c, "%s_shape", name);
    snprintf(d, sizeof d, "%s_r", name);
    struct mlo_value *p = op(m, "MatMul", b, x, holes(m, a, 0.1f, 1, width == 2 ? 2 : 1, 4, 8));
    struct mlo_value *t =
        op(m, "Transpose", name, op(m, "Reshape", d, p, ints(m, c, 0, 3, 8 / width, width)));
    set_ints(t, "perm", 0, p1, p2, p3);
    return t;
}

static void attention(struct mlo_model *m, int64_t width)
{
    struct mlo_value *x = input(m, "x", -1, 3, 4);
    struct mlo_value *q = heads(m, "q", x, width, 2, 1, 3), *k = heads(m, "k", x, width, 2, 3, 1),
                     *v = heads(m, "v", x, width, 2, 1, 3);
    struct mlo_value *s = op(m, "Softmax", "s", op(m, "MatMul", "qk", q, k));
    struct mlo_value *c = op(m, "Transpose", "c", op(m, "MatMul", "sv", s, v));
    set_ints(c, "perm", 0, 2, 1, 3);
    finish(m, op(m, "MatMul", "y", op(m, "Reshape", "joined", c, ints(m, "shape", 0, 3, 8)),
                 ramp(m, "o", 0.1f, 8, 4)));
}

/* Four heads of width 2, as units of Q, K, V and of what reads them. */
static void build_attention(struct mlo_model *m)
{
    attention(m, 2);
}

/* Two heads of width 4: indices of it are units of Q and K, others of V and what reads it. */
static void build_attention_widths(struct mlo_model *m)
{
    attention(m, 4);
}

static void packed_attention(struct mlo_model *m, int64_t width)
{
    struct mlo_value *x = input(m, "x", -1, 3, 4), *part[3];
    struct mlo_value *p = op(m, "MatMul", "p", x, holes(m, "qkv", 0.1f, 1, width == 2 ? 2 : 1, 4, 24));
    struct mlo_value *t =
        op(m, "Transpose", "t", op(m, "Reshape", "r", p, ints(m, "split", 0, 3, 3, 8 / width, width)));
    set_ints(t, "perm", 2, 0, 3, 1, 4);
    for (int i = 0; i < 3; i++) {
        char name[32], index[32];
        snprintf(name, sizeof name, "part%d", i);
        snprintf(index, sizeof index, "index%d", i);
        struct mlo_tensor at = {0};
        struct mlo_error err = {0};
        assert_ok(mlo_tensor_init(&at, MLO_INT64, 0, NULL, &err));
        *(int64_t *)at.data = i;
        part[i] = op(m, "Gather", name, t, constant_take(m, index, &at));
    }
    struct mlo_value *k = op(m, "Transpose", "k", part[1]);
    set_ints(k, "perm", 0, 1, 3, 2);
    struct mlo_value *c =
        op(m, "Transpose", "c",
           op(m, "MatMul", "sv", op(m, "Softmax", "s", op(m, "MatMul", "qk", part[0], k)), part[2]));
    set_ints(c, "perm", 0, 2, 1, 3);
    finish(m, op(m, "MatMul", "y", op(m, "Reshape", "joined", c, ints(m, "shape", 0, 3, 8)),
                 ramp(m, "o", 0.1f, 8, 4)));
}

/* Q, K and V out of one product: of [3, heads, width], the heads. */
static void build_packed_attention(struct mlo_model *m)
{
    packed_attention(m, 2);
}

/* Where heads are turned, an index of the width is one unit of all three. */
static void build_packed_attention_widths(struct mlo_model *m)
{
    packed_attention(m, 4);
}

/* What LayerNormalization reads stays whole; the neurons behind it go. */
static void build_layernorm(struct mlo_model *m)
{
    struct mlo_value *h = op(m, "MatMul", "h", input(m, "x", -1, 4), ramp(m, "w1", 0.1f, 4, 4));
    h = op(m, "LayerNormalization", "n", h, floats(m, "gain", LIST(1, 2, 3, 4), 4));
    h = op(m, "Add", "b", op(m, "MatMul", "p", h, holes(m, "w2", 0.1f, 1, 1, 4, 8)),
           floats(m, "bias", LIST(1, 0, 2, 0, 3, 0, 4, 0), 8));
    finish(m, op(m, "MatMul", "y", op(m, "Relu", "r", h), ramp(m, "w3", 0.1f, 8, 4)));
}

static void build_instance_norm(struct mlo_model *m)
{
    struct mlo_value *n =
        op(m, "InstanceNormalization", "n", first(m, "c", image(m), 2, 4),
           floats(m, "gain", LIST(1, 2, 3, 4), 4), floats(m, "offset", LIST(1, 0, -1, 0), 4));
    conclude(m, op(m, "Relu", "r", n), 4);
}

/* Along the channels it compares all of them: they stay, and those of the layer behind it go. */
static void build_softmax(struct mlo_model *m)
{
    struct mlo_value *s = op(m, "Softmax", "s", first(m, "a", image(m), 2, 4));
    assert_true(mlo_node_set_i(s->producer, "axis", 1));
    conclude(m, op(m, "Relu", "r", first(m, "b", s, 4, 4)), 4);
}

static void build_resize(struct mlo_model *m)
{
    struct mlo_value *r = op(m, "Resize", "r", first(m, "c", image(m), 2, 4), floats(m, "roi", LIST(0), 0),
                             floats(m, "scales", LIST(1, 1, 2, 2), 4));
    conclude(m, r, 4);
}

/* Rows are cut, and channels move along. */
static void build_slice(struct mlo_model *m)
{
    struct mlo_value *s = op(m, "Slice", "s", first(m, "c", image(m), 2, 4), ints(m, "starts", 1),
                             ints(m, "ends", 3), ints(m, "axes", 2));
    conclude(m, op(m, "Relu", "r", s), 4);
}

static void build_unsqueeze(struct mlo_model *m)
{
    struct mlo_value *c = first(m, "c", image(m), 2, 4), *at = ints(m, "axis", 1);
    conclude(m, op(m, "Squeeze", "s", op(m, "Relu", "r", op(m, "Unsqueeze", "u", c, at)), at), 4);
}

/* Positions are repeated; the channels that the shape states are stated anew. */
static void build_expand(struct mlo_model *m)
{
    struct mlo_value *p = op(m, "GlobalAveragePool", "p", first(m, "c", image(m), 2, 4));
    conclude(m, op(m, "Expand", "e", p, ints(m, "shape", 1, 4, 3, 3)), 4);
}

/* The size of the batch is read, that of the channels is not. */
static void build_shape(struct mlo_model *m)
{
    struct mlo_value *c = first(m, "c", image(m), 2, 4);
    struct mlo_value *batch = op(m, "Gather", "batch", op(m, "Shape", "sizes", c), ints(m, "zero", 0));
    struct mlo_value *shape = op(m, "Concat", "shape", batch, ints(m, "rest", -1));
    assert_true(mlo_node_set_i(shape->producer, "axis", 0));
    finish(m, op(m, "Gemm", "y", op(m, "Reshape", "r", c, shape), ramp(m, "w", 0.1f, 64, 3)));
}

/* What no rule knows keeps all that it touches; the layer behind it is pruned. */
static void build_no_rule(struct mlo_model *m)
{
    struct mlo_value *d = op(m, "DepthToSpace", "d", first(m, "a", image(m), 2, 4));
    assert_true(mlo_node_set_i(d->producer, "blocksize", 2));
    conclude(m, first(m, "b", d, 1, 4), 4);
}

static const struct {
    const char *name;
    void (*build)(struct mlo_model *m);
    int changes;        /* units */
    const char *remove; /* of the multiply-adds: so much that half of the units go; NULL: 30% */
} CASES[] = {
    {"prune-conv", build_conv, 2},
    {"prune-batchnorm", build_batchnorm, 2},
    {"prune-depthwise", build_depthwise, 2},
    {"prune-grouped", build_grouped, 4},
    {"prune-transposed", build_transposed, 2},
    {"prune-residual", build_residual, 2, "45%"},
    {"prune-concat", build_concat, 5},
    {"prune-glu", build_glu, 2},
    {"prune-flatten", build_flatten, 2},
    {"prune-reshape", build_reshape, 2},
    {"prune-gate", build_gate, 3},
    {"prune-slopes", build_slopes, 2},
    {"prune-transpose", build_transpose, 2},
    {"prune-embedding", build_embedding, 2},
    {"prune-attention", build_attention, 2},
    {"prune-packed-attention", build_packed_attention, 2},
    {"prune-layernorm", build_layernorm, 4, "38%"},
    {"prune-instance-norm", build_instance_norm, 2},
    {"prune-softmax", build_softmax, 2, "30%"},
    {"prune-resize", build_resize, 2},
    {"prune-slice", build_slice, 2},
    {"prune-unsqueeze", build_unsqueeze, 2},
    {"prune-expand", build_expand, 2},
    {"prune-shape", build_shape, 2},
    {"prune-no-rule", build_no_rule, 2},
};

static void test_prune__a_golden_pair_for_each_rule(void **state)
{
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_error err = {0};
        json_t *report = NULL;
        struct mlo_model *before = new_model(17), *after = new_model(17);
        CASES[i].build(before);
        CASES[i].build(after);
        compare_golden(CASES[i].name, "before", before);
        char options[200];
        snprintf(options, sizeof options,
                 "{\"remove\": \"%s\", \"ratios\": \"uniform\", \"round\": 1, \"criterion\": \"l2\"}",
                 CASES[i].remove ? CASES[i].remove : "30%");
        if (run_pass(after, "prune", options, NULL, &report, &err) != MLO_OK)
            fail_msg("%s: %s", CASES[i].name, err.message);
        compare_golden(CASES[i].name, "after", after);
        long long changes = mlo_json_i64(json_array_get(report, 0), "changes", -1);
        if (changes != CASES[i].changes)
            fail_msg("%s: %lld units went", CASES[i].name, changes);
        double worst = deviation(before, after);
        if (worst > 1e-5)
            fail_msg("%s: outputs differ by %g", CASES[i].name, worst);
        json_decref(report);
        mlo_model_free(before);
        mlo_model_free(after);
    }
}

/* Widths are units where heads were turned, which is said of each value that has them as an axis. */
static void test_prune__a_golden_pair_for_the_width_of_heads(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *name;
        void (*build)(struct mlo_model *m);
        const char *turned[3];
        int groups;
    } cases[] = {
        {"prune-attention-widths", build_attention_widths, {"q_r", "k_r", "v_r"}, 2},
        {"prune-packed-attention-widths", build_packed_attention_widths, {"r"}, 1},
    };
    json_t *given = json_pack("{s:s,s:s,s:i}", "remove", "30%", "ratios", "uniform", "round", 1), *options;
    struct mlo_error err = {0};
    assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        double seen[4] = {0.4, 0.3, 0.2, 0.1};
        struct mlo_prune_width widths[3] = {{0}};
        struct mlo_prune_turned turned = {.widths = widths};
        struct mlo_model *before = new_model(17), *after = new_model(17);
        struct mlo_arena *arena = mlo_arena_new();
        struct mlo_pass_context ctx = {.notes = json_array()};
        struct mlo_prune_ranking ranking;
        struct mlo_prune_result result = {0};
        for (; turned.count < 3 && cases[i].turned[turned.count]; turned.count++)
            widths[turned.count] = (struct mlo_prune_width){.value = cases[i].turned[turned.count],
                                                            .seen = turned.count ? NULL : seen};
        cases[i].build(before);
        cases[i].build(after);
        compare_golden(cases[i].name, "before", before);
        assert_ok(mlo_graph_infer(after->graph, &err));
        assert_ok(mlo_prune_rank_model(after, options, NULL, &turned, arena, &ctx, &ranking, &err));
        assert_int_equal(ranking.count, cases[i].groups);
        assert_ok(mlo_prune_take(after, options, &ranking, arena, &ctx, &result, &err));
        assert_int_equal(ctx.changes, 2 * cases[i].groups);
        compare_golden(cases[i].name, "after", after);
        double worst = deviation(before, after);
        if (worst > 1e-5)
            fail_msg("%s: outputs differ by %g", cases[i].name, worst);
        json_decref(result.report);
        json_decref(ctx.notes);
        mlo_arena_free(arena);
        mlo_model_free(before);
        mlo_model_free(after);
    }
    json_decref(options);
    json_decref(given);
}

static void test_prune__refuses_what_it_cannot_do(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(17);
    build_conv(m);
    assert_int_equal(run_pass(m, "prune", "{\"remove\": \"95%\"}", NULL, NULL, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "without channels. At most 0.0% can"));
    assert_int_equal(run_pass(m, "prune", "{\"remove\": \"95%\", \"of\": \"weights\"}", NULL, NULL, &err),
                     MLO_EINVAL);
    assert_non_null(strstr(err.message, "95.0% of the weights cannot go"));
    mlo_model_free(m);
    m = new_model(17);
    build_conv(m);
    assert_int_equal(
        run_pass(m, "prune", "{\"remove\": \"80%\", \"round\": 1, \"min_channels\": 2}", NULL, NULL, &err),
        MLO_EINVAL);
    assert_non_null(strstr(err.message, "At most 50.0% can"));
    assert_int_equal(
        run_pass(m, "prune", "{\"remove\": \"10%\", \"round\": 2, \"min_channels\": 3}", NULL, NULL, &err),
        MLO_EINVAL); /* three are no multiple of two, and four are all */
    assert_non_null(strstr(err.message, "At most 0.0% can"));
    assert_int_equal(run_pass(m, "prune", "{\"remove\": \"100%\"}", NULL, NULL, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "no share of multiply-adds that leaves any"));
    assert_int_equal(run_pass(m, "prune", "{\"remove\": \"half\"}", NULL, NULL, &err), MLO_EINVAL);
    assert_int_equal(run_pass(m, "prune", "{\"criterion\": \"activation\"}", NULL, NULL, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "needs statistics"));
    assert_int_equal(run_pass(m, "prune", "{\"criterion\": \"bn-scale\"}", NULL, NULL, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "has no BatchNormalization"));
    assert_int_equal(run_pass(m, "prune", "{\"exclude\": [\"c_node\"]}", NULL, NULL, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "no group of channels"));
    mlo_model_free(m);
    m = new_model(17);
    build_flatten(m);
    ((float *)mlo_graph_value(m->graph, "w")->constant->data)[5] = INFINITY;
    assert_int_equal(run_pass(m, "prune", HALF, NULL, NULL, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "'w' hold NaN or infinity"));
    mlo_model_free(m);
    m = new_model(17);
    struct mlo_value *x = input(m, "x", -1, 4), *q, *s = scalar(m, "s", 0.5f);
    q = op(m, "DequantizeLinear", "d", op(m, "QuantizeLinear", "q", x, s), s);
    finish(m, op(m, "Gemm", "y", q, ramp(m, "w", 0.1f, 4, 3)));
    assert_int_equal(run_pass(m, "prune", NULL, NULL, NULL, &err), MLO_ECONFLICT);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune__a_golden_pair_for_each_rule),
        cmocka_unit_test(test_prune__a_golden_pair_for_the_width_of_heads),
        cmocka_unit_test(test_prune__refuses_what_it_cannot_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
