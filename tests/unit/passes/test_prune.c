/* Structured pruning: a golden pair for each rule of coupling. In every net the odd channels are zero (their
 * weights are), so they go first, and what is left must compute the same. */
#include "engines/engines.h"
#include "passes/passes_impl.h"
#include "passes/prune.h"
#include "tests/unit/passes/passes_helpers.h"

/* A ramp whose odd blocks of indices along `axis` are zero. */
#define holes(model, name, step, axis, block, ...)                                                           \
    holes_of(model, name, step, axis, block, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))
static struct mlo_value *holes_of(struct mlo_model *m, const char *name, float step, int axis, int64_t block,
                                  int rank, const int64_t *dims)
{
    struct mlo_value *v = ramp_of(m, name, step, rank, dims);
    float *x = v->constant->data;
    int64_t inner = 1;
    for (int d = axis + 1; d < rank; d++)
        inner *= dims[d];
    for (size_t e = 0; e < mlo_tensor_count(v->constant); e++)
        if ((int64_t)e / inner % dims[axis] / block % 2)
            x[e] = 0;
    return v;
}

/* The last layer: 1x1, two outputs. */
static void conclude(struct mlo_model *m, struct mlo_value *x, int64_t channels)
{
    finish(m, op(m, "Conv", "y", x, ramp(m, "last", 0.1f, 2, channels, 1, 1)));
}

static struct mlo_value *first(struct mlo_model *m, const char *name, struct mlo_value *x, int64_t in,
                               int64_t out)
{
    char w[32];
    snprintf(w, sizeof w, "%s_w", name);
    struct mlo_value *y = op(m, "Conv", name, x, holes(m, w, 0.1f, 0, 1, out, in, 3, 3));
    set_ints(y, "pads", 1, 1, 1, 1);
    return y;
}

static struct mlo_value *image(struct mlo_model *m)
{
    return input(m, "x", -1, 2, 4, 4);
}

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
#define HALF "{\"remove\": \"30%\", \"ratios\": \"uniform\", \"round\": 1, \"criterion\": \"l2\"}"

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

/* --- what is left alone ---------------------------------------------------------------------------- */

static void test_prune__names_what_it_left_alone_and_why(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(17);
    struct mlo_value *x = image(m), *d = op(m, "DepthToSpace", "d", first(m, "a", x, 2, 4));
    assert_true(mlo_node_set_i(d->producer, "blocksize", 2));
    struct mlo_value *b = first(m, "b", d, 1, 4);
    conclude(m, b, 4);
    assert_ok(run_pass(m, "prune", HALF, NULL, &report, &err));
    assert_true(has_note(report, "a_node", "no rule says what DepthToSpace does"));
    assert_true(has_note(report, "y_node", "an output of the graph"));
    assert_true(has_note(report, "b_node", "2 of 4 channels stay"));
    json_decref(report);
    mlo_model_free(m);
}

/* A reason quotes the node in its way; a long name is cut between characters, or the report would lose it. */
static void test_prune__cuts_names_between_characters(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *text;
        int most, cut;
    } cases[] = {{"abc", 3, 3},         {"abc", 2, 2},         {"abc", 0, 0},
                 {"a\u00e9", 2, 1},     {"a\u00e9", 3, 3},     {"\u20ac\u20ac", 5, 3},
                 {"\U0001f600x", 3, 0}, {"\U0001f600x", 4, 4}, {"\x80\x80\x80\x80\x80\x80", 5, 5}};
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        assert_int_equal(mlo_pass_cut(cases[i].text, cases[i].most), cases[i].cut);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(17);
    struct mlo_value *x = image(m), *d = op(m, "DepthToSpace", "d", first(m, "a", x, 2, 4));
    char name[256];
    memset(name, 'n', 179);
    snprintf(name + 179, sizeof name - 179, "\u00e9\u00e9\u00e9");
    d->producer->name = name;
    assert_true(mlo_node_set_i(d->producer, "blocksize", 2));
    conclude(m, first(m, "b", d, 1, 4), 4);
    assert_ok(run_pass(m, "prune", HALF, NULL, &report, &err));
    assert_true(has_note(report, "a_node", "no rule says what DepthToSpace does"));
    assert_true(has_note(report, "a_node", "nnn')"));
    json_decref(report);
    mlo_model_free(m);
}

static void test_prune__leaves_what_layernorm_shares(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(17);
    struct mlo_value *shared = ramp(m, "shared", 0.1f, 8), *x = input(m, "x", -1, 4);
    struct mlo_value *a = op(m, "Relu", "ra", op(m, "MatMul", "a", x, holes(m, "wa", 0.1f, 1, 1, 4, 8)));
    struct mlo_value *b = op(m, "Relu", "rb", op(m, "Gemm", "b", a, ramp(m, "wb", 0.1f, 8, 8), shared));
    struct mlo_value *c = op(m, "Gemm", "c", b, ramp(m, "wc", 0.1f, 8, 8));
    struct mlo_value *n = op(m, "LayerNormalization", "n", c, ramp(m, "gain", 0.1f, 8), shared);
    finish(m, op(m, "MatMul", "y", n, ramp(m, "wy", 0.1f, 8, 3)));
    if (run_pass(m, "prune", HALF, NULL, &report, &err) != MLO_OK)
        fail_msg("%s", err.message);
    assert_true(has_note(report, "b_node", "what LayerNormalization makes"));
    assert_true(has_note(report, "a_node", "of 8 channels stay"));
    assert_int_equal(shared->type.dims[0].value, 8);
    json_decref(report);
    mlo_model_free(m);
}

static void test_prune__groups_on_channels_not_known_stay(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(17);
    struct mlo_value *x = input(m, "x", -1, -1, 4, 4);
    x->type.dims[1] = (struct mlo_dim){-1, "channels"};
    struct mlo_value *r = op(m, "Reshape", "r", x, ints(m, "shape", 0, -1, 4, 4));
    struct mlo_value *d = op(m, "Conv", "d", r, ramp(m, "wd", 0.1f, 4, 1, 1, 1));
    assert_true(mlo_node_set_i(d->producer, "group", 4));
    conclude(m, op(m, "Relu", "a", first(m, "c", d, 4, 4)), 4);
    if (run_pass(m, "prune", HALF, NULL, NULL, &err) != MLO_OK)
        fail_msg("%s", err.message);
    assert_int_equal(mlo_node_attr_i(node_named(m, "d_node"), "group", 1), 4);
    mlo_model_free(m);
}

static void test_prune__ranks_by_norms_what_no_batchnorm_scales(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *before = new_model(17), *after = new_model(17);
    for (int k = 0; k < 2; k++) {
        struct mlo_model *m = k ? after : before;
        struct mlo_value *n =
            op(m, "BatchNormalization", "n", first(m, "a", image(m), 2, 4),
               floats(m, "gain", LIST(1, 0, 3, 0), 4), floats(m, "offset", LIST(1, 0, -1, 0), 4),
               floats(m, "mean", LIST(0.5, 0, 1, 0), 4), floats(m, "var", LIST(1, 2, 3, 4), 4));
        conclude(m, op(m, "Relu", "rb", first(m, "b", op(m, "Relu", "ra", n), 4, 4)), 4);
    }
    if (run_pass(after, "prune",
                 "{\"remove\": \"45%\", \"ratios\": \"uniform\", \"round\": 1, \"criterion\": \"bn-scale\"}",
                 NULL, &report, &err) != MLO_OK)
        fail_msg("%s", err.message);
    assert_true(has_note(report, "b_node", "ranked by norms of weights: no BatchNormalization"));
    assert_false(has_note(report, "a_node", "ranked by norms of weights"));
    assert_true(has_note(report, "b_node", "2 of 4 channels stay"));
    assert_true(deviation(before, after) <= 1e-5); /* only zeros went */
    json_decref(report);
    mlo_model_free(before);
    mlo_model_free(after);
}

/* Convolutions have the multiply-adds here and the product behind has the weights: a share of either goes. */
static void test_prune__a_share_of_the_weights(void **state)
{
    MLO_UNUSED(state);
    static const char *const of[] = {"multiply-adds", "weights"};
    struct mlo_error err = {0};
    double removed[2][2];
    for (int k = 0; k < 2; k++) {
        struct mlo_model *m = new_model(17);
        struct mlo_value *c = op(m, "Conv", "c", image(m), ramp(m, "cw", 0.1f, 8, 2, 3, 3));
        set_ints(c, "pads", 1, 1, 1, 1);
        struct mlo_value *d = op(m, "Conv", "d", op(m, "Relu", "rc", c), ramp(m, "dw", 0.1f, 8, 8, 3, 3));
        set_ints(d, "pads", 1, 1, 1, 1);
        struct mlo_value *f = op(m, "Flatten", "f", op(m, "GlobalAveragePool", "p", d));
        struct mlo_value *h = op(m, "Relu", "rh", op(m, "Gemm", "h", f, ramp(m, "hw", 0.1f, 8, 64)));
        struct mlo_value *g = op(m, "Relu", "rg", op(m, "Gemm", "g", h, ramp(m, "gw", 0.1f, 64, 64)));
        finish(m, op(m, "Gemm", "y", g, ramp(m, "yw", 0.1f, 64, 3)));
        struct mlo_arena *arena = mlo_arena_new();
        struct mlo_pass_context ctx = {.notes = json_array()};
        struct mlo_prune_result result = {0};
        json_t *given = json_pack("{s:s,s:s,s:i}", "remove", "50%", "of", of[k], "round", 1), *options;
        assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
        assert_ok(mlo_prune_model(m, options, NULL, arena, &ctx, &result, &err));
        const json_t *macs = json_object_get(result.report, "macs"),
                     *weights = json_object_get(result.report, "weights");
        removed[k][0] = mlo_json_f64(macs, "removed", -1);
        removed[k][1] = mlo_json_f64(weights, "removed", -1);
        assert_string_equal(mlo_json_str(result.report, "of", ""), of[k]);
        assert_float_equal(mlo_json_f64(weights, "before", 0),
                           8 * 2 * 9 + 8 * 8 * 9 + 8 * 64 + 64 * 64 + 64 * 3, 0);
        double left = 0; /* what the file has now is what the report says */
        for (int n = 0; n < m->graph->node_count; n++) {
            const struct mlo_tensor *w = mlo_node_fixed(m->graph->nodes[n], 1);
            left += w && w->rank > 1 ? (double)mlo_tensor_count(w) : 0;
        }
        assert_float_equal(mlo_json_f64(weights, "after", 0), left, 1e-9);
        json_decref(result.report);
        json_decref(ctx.notes);
        json_decref(given);
        json_decref(options);
        mlo_arena_free(arena);
        mlo_model_free(m);
    }
    assert_true(removed[0][0] >= 0.5 && removed[1][1] >= 0.5);
    assert_true(removed[0][1] < removed[1][1]); /* not the same choice */
}

/* Two layers beside each other, of so many channels that cost so much each, and what `share` takes of them
 * for these errors. */
struct spending {
    int channels[2], cost[2];
    const double *errors[2];
    const char *share;
    int round, left[2];
};

static void spend(const struct spending *t)
{
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(17);
    struct mlo_value *out[2];
    for (int k = 0; k < 2; k++) {
        char names[6][16];
        for (size_t i = 0; i < MLO_COUNT(names); i++)
            snprintf(names[i], sizeof names[i], "%c%d", "xwhrvs"[i], k);
        int reads = t->cost[k] - 3;
        struct mlo_value *w = ramp(m, names[1], 0.1f, reads, t->channels[k]),
                         *h = op(m, "Gemm", names[2], input(m, names[0], -1, reads), w);
        out[k] =
            op(m, "Gemm", names[5], op(m, "Relu", names[3], h), ramp(m, names[4], 0.1f, t->channels[k], 3));
    }
    finish(m, op(m, "Add", "y", out[0], out[1]));
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_pass_context ctx = {.notes = json_array()};
    struct mlo_prune_ranking ranking;
    struct mlo_prune_result result = {0};
    json_t *given = json_pack("{s:s,s:i}", "remove", t->share, "round", t->round), *options;
    assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
    assert_ok(mlo_prune_rank_model(m, options, NULL, NULL, arena, &ctx, &ranking, &err));
    assert_int_equal(ranking.count, 2);
    for (int g = 0; g < 2; g++)
        for (int k = 0; k <= ranking.groups[g].count; k++)
            ranking.groups[g].error[k] = t->errors[ranking.groups[g].count == t->channels[1]][k];
    assert_ok(mlo_prune_take(m, options, &ranking, arena, &ctx, &result, &err));
    for (size_t g = 0; g < 2; g++) {
        const json_t *group = json_array_get(json_object_get(result.report, "groups"), g);
        bool second = strcmp(mlo_json_str(group, "node", ""), "h1_node") == 0;
        assert_int_equal(mlo_json_i64(group, "to", 0), t->left[second]);
    }
    json_decref(result.report);
    json_decref(ctx.notes);
    json_decref(given);
    json_decref(options);
    mlo_arena_free(arena);
    mlo_model_free(m);
}

/* Two channels of the first save 30 and err by 3, of the second 20 and by 2.2: 40 are wanted, and the better
 * rate in front would end at 50 and 5.2, where two steps of the second err by 4.4. */
static void test_prune__exchanges_what_a_coarse_step_took_too_much(void **state)
{
    MLO_UNUSED(state);
    static const double FIRST[] = {0, 1.5, 3, 4.5, 6}, SECOND[] = {0, 1.1, 2.2, 3.3, 4.4, 6, 8};
    static const struct spending T = {{4, 6}, {15, 10}, {FIRST, SECOND}, "33%", 2, {4, 2}};
    spend(&T);
}

/* 60 are wanted. Three channels of the second go for nearly nothing, then one of the first is the better
 * rate, and with it 70 are gone: 60 with one given back, at an error of 1.2. No exchange of one step for one
 * brings back the first's channel, that is worth four of the second: six of these err by 1.08. */
static void test_prune__goes_on_without_what_a_coarse_step_took_too_much(void **state)
{
    MLO_UNUSED(state);
    static const double FIRST[] = {0, 1, 3}, SECOND[] = {0, 0.1, 0.2, 0.3, 0.56, 0.82, 1.08, 1.34, 1.6, 3, 5};
    static const struct spending T = {{2, 10}, {40, 10}, {FIRST, SECOND}, "33.3%", 1, {2, 4}};
    spend(&T);
}

/* What no number tells of goes last, and no less than was asked for goes: 40 of 120 are wanted, and the other
 * has 32 to give. Where both are such: 72. */
static void test_prune__an_error_that_is_no_number_does_not_end_the_budget(void **state)
{
    MLO_UNUSED(state);
    static const double NONE[] = {0, NAN, NAN, NAN, NAN, NAN}, SOME[] = {0, 1, 2, 3, 4, 5};
    static const struct spending T[] = {
        {{4, 5}, {20, 8}, {NONE, SOME}, "33.3%", 1, {3, 2}},
        {{5, 4}, {8, 20}, {SOME, NONE}, "33.3%", 1, {2, 3}},
        {{4, 5}, {20, 8}, {NONE, NONE}, "60%", 1, {1, 3}},
        {{4, 5}, {20, 8}, {NONE, NONE}, "33.3%", 1, {2, 5}},
    };
    for (size_t i = 0; i < MLO_COUNT(T); i++)
        spend(&T[i]);
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

/* --- random nets ----------------------------------------------------------------------------------- */

struct random_net {
    struct mlo_model *m;
    struct mlo_value *at;
    int64_t channels;
    uint32_t seed;
    int count;
    char name[32];
};

static uint32_t any(struct random_net *r, uint32_t below)
{
    r->seed = r->seed * 1664525u + 1013904223u;
    return (r->seed >> 8) % below;
}

static const char *fresh(struct random_net *r, const char *stem)
{
    snprintf(r->name, sizeof r->name, "%s%d", stem, r->count++);
    return r->name;
}

static struct mlo_value *random_conv(struct random_net *r, struct mlo_value *x, int64_t out, int64_t per,
                                     int64_t groups)
{
    int64_t k = 1 + 2 * (int64_t)any(r, 2);
    struct mlo_value *w = holes(r->m, fresh(r, "w"), 0.07f, 0, 1, out, per, k, k);
    struct mlo_value *y = op(r->m, "Conv", fresh(r, "c"), x, w);
    set_ints(y, "pads", k / 2, k / 2, k / 2, k / 2);
    assert_true(mlo_node_set_i(y->producer, "group", groups));
    return y;
}

static void add_layer(struct random_net *r)
{
    struct mlo_model *m = r->m;
    int64_t c = r->channels, wide = 2 * (1 + (int64_t)any(r, 5));
    switch (any(r, 9)) {
    case 0:
        r->at = random_conv(r, r->at, wide, c, 1);
        r->channels = wide;
        break;
    case 1: /* depthwise; the first channels come from outside */
        r->at = random_conv(r, r->at, c, 1, c);
        break;
    case 2:
        r->at = random_conv(r, random_conv(r, r->at, 8, c, 1), 8, 4, 2);
        r->channels = 8;
        break;
    case 3:
        r->at = op(m, "Relu", fresh(r, "r"), r->at);
        break;
    case 4: {
        struct mlo_value *inner = op(m, "HardSwish", fresh(r, "h"), random_conv(r, r->at, wide, c, 1));
        r->at = op(m, "Add", fresh(r, "a"), r->at, random_conv(r, inner, c, wide, 1));
        break;
    }
    case 5: {
        struct mlo_value *other = random_conv(r, r->at, wide, c, 1);
        r->at = op(m, "Concat", fresh(r, "j"), other, r->at);
        assert_true(mlo_node_set_i(r->at->producer, "axis", 1));
        r->channels = c + wide;
        break;
    }
    case 6: {
        struct mlo_value *s = op(m, "GlobalAveragePool", fresh(r, "p"), r->at);
        s = random_conv(r, op(m, "Relu", fresh(r, "q"), random_conv(r, s, 4, c, 1)), c, 4, 1);
        r->at = op(m, "Mul", fresh(r, "g"), op(m, "HardSigmoid", fresh(r, "s"), s), r->at);
        break;
    }
    case 7: { /* there and back */
        struct mlo_value *t = op(m, "Transpose", fresh(r, "t"), r->at);
        set_ints(t, "perm", 0, 2, 3, 1);
        r->at =
            op(m, "Transpose", fresh(r, "t"), op(m, "Sqrt", fresh(r, "u"), op(m, "Abs", fresh(r, "b"), t)));
        set_ints(r->at, "perm", 0, 3, 1, 2);
        break;
    }
    default: {
        struct mlo_value *both = random_conv(r, r->at, 2 * wide, c, 1), *out[2];
        out[0] = mlo_graph_add_value(m->graph, fresh(r, "l"), NULL);
        out[1] = mlo_graph_add_value(m->graph, fresh(r, "l"), NULL);
        struct mlo_node *split =
            mlo_graph_add_node(m->graph, NULL, "", "Split", fresh(r, "k"), &both, 1, out, 2);
        assert_true(split && mlo_node_set_i(split, "axis", 1));
        r->at = op(m, "Mul", fresh(r, "m"), out[0], op(m, "Sigmoid", fresh(r, "o"), out[1]));
        r->channels = wide;
    }
    }
}

static struct mlo_model *random_model(uint32_t seed)
{
    struct random_net r = {.m = new_model(17), .seed = seed * 2654435761u + 1};
    r.at = random_conv(&r, input(r.m, "x", -1, 2, 4, 4), 6, 2, 1);
    r.channels = 6;
    for (uint32_t i = 0, layers = 2 + any(&r, 7); i < layers; i++)
        add_layer(&r);
    r.at = op(r.m, "Flatten", "flat", r.at);
    finish(r.m, op(r.m, "Gemm", "y", r.at, ramp(r.m, "head", 0.05f, r.channels * 16, 3)));
    return r.m;
}

/* Reads what was written, runs it on the engine for production, and compares with the kernels of the op
 * table. */
static void check_runs(const struct mlo_model *model, uint32_t seed)
{
    struct mlo_error err = {0};
    struct mlo_tensor inputs[4] = {0}, wanted = {0}, got = {0};
    const struct mlo_engine *engine = NULL;
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    struct mlo_compile_options options = {.batch = 2, .numerics = MLO_NUMERICS_INVARIANT, .threads = 1};
    make_inputs(model, 2, seed, inputs);
    assert_ok(mlo_graph_eval(model->graph, inputs, &wanted, &err));
    assert_ok(mlo_engine_find("cpu", &engine, &err));
    assert_ok(engine->compile(model, &options, &plan, &err));
    assert_ok(engine->load(plan, &program, &err));
    assert_ok(engine->run(program, inputs, &got, &err));
    assert_true(mlo_tensor_same_shape(&wanted, &got));
    for (size_t i = 0; i < mlo_tensor_count(&got); i++) {
        double a = mlo_tensor_get_f64(&wanted, i), b = mlo_tensor_get_f64(&got, i);
        if (!(fabs(a - b) <= 1e-3 * (1 + fabs(a))))
            fail_msg("seed %u: output %zu is %g, not %g", seed, i, b, a);
    }
    engine->unload(program);
    engine->free_plan(plan);
    mlo_tensor_clear(&wanted);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&inputs[0]);
}

static void test_prune__random_nets_stay_valid_and_lose_zeros_only(void **state)
{
    MLO_UNUSED(state);
    static const char *const OPTIONS[] = {
        "{\"remove\": \"5%\", \"ratios\": \"uniform\", \"round\": 1, \"criterion\": \"l2\"}",
        "{\"remove\": \"40%\", \"ratios\": \"sensitivity\", \"round\": 1, \"criterion\": \"l1\"}",
        "{\"remove\": \"20%\", \"ratios\": \"sensitivity\", \"round\": 2, \"criterion\": \"l2\"}"};
    int exact = 0, pruned = 0;
    for (uint32_t seed = 0; seed < 150; seed++) {
        struct mlo_error err = {0};
        struct mlo_model *before = random_model(seed), *after = random_model(seed);
        enum mlo_status status = run_pass(after, "prune", OPTIONS[seed % 3], NULL, NULL, &err);
        if (status == MLO_EINVAL && strstr(err.message, "of the multiply-adds cannot go")) {
            mlo_model_free(before);
            mlo_model_free(after);
            continue;
        }
        if (status != MLO_OK)
            fail_msg("seed %u: %s", seed, err.message);
        pruned++;
        check_runs(after, seed);
        char a[128], b[128];
        assert_string_equal(mlo_type_describe(&before->graph->outputs[0]->type, a, sizeof a),
                            mlo_type_describe(&after->graph->outputs[0]->type, b, sizeof b));
        if (seed % 3 == 0) { /* so little that only zeros go */
            double worst = deviation(before, after);
            if (!(worst <= 1e-3))
                fail_msg("seed %u: outputs differ by %g", seed, worst);
            exact++;
        }
        mlo_model_free(before);
        mlo_model_free(after);
    }
    assert_true(exact >= 40 && pruned >= 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune__a_golden_pair_for_each_rule),
        cmocka_unit_test(test_prune__a_golden_pair_for_the_width_of_heads),
        cmocka_unit_test(test_prune__names_what_it_left_alone_and_why),
        cmocka_unit_test(test_prune__cuts_names_between_characters),
        cmocka_unit_test(test_prune__leaves_what_layernorm_shares),
        cmocka_unit_test(test_prune__groups_on_channels_not_known_stay),
        cmocka_unit_test(test_prune__ranks_by_norms_what_no_batchnorm_scales),
        cmocka_unit_test(test_prune__a_share_of_the_weights),
        cmocka_unit_test(test_prune__exchanges_what_a_coarse_step_took_too_much),
        cmocka_unit_test(test_prune__goes_on_without_what_a_coarse_step_took_too_much),
        cmocka_unit_test(test_prune__an_error_that_is_no_number_does_not_end_the_budget),
        cmocka_unit_test(test_prune__refuses_what_it_cannot_do),
        cmocka_unit_test(test_prune__random_nets_stay_valid_and_lose_zeros_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
