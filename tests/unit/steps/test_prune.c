/* The step that prunes: what is redundant goes without a trace, the bytes follow from the inputs alone, and
 * errors say what to do. */
#include <stdlib.h>
#include <unistd.h>

#include "passes/prune.h"
#include "tests/unit/steps/step_run.h"

static void run_step(struct run *r, const struct mlo_model *model, int64_t samples, const char *options,
                     unsigned threads, int64_t batch)
{
    run_named(r, "prune", model, samples, options, threads, batch);
}

/* Channel 4 + i is twice channel i, so that half of them say all. */
static struct mlo_model *redundant(void)
{
    struct mlo_model *m = new_model(17);
    struct mlo_value *w = noise(m, "w1", 0.5f, 3, 8, 2, 3, 3), *b = noise(m, "b1", 0.1f, 5, 8);
    float *x = w->constant->data, *y = b->constant->data;
    for (int i = 0; i < 4 * 18; i++)
        x[4 * 18 + i] = 2 * x[i];
    for (int i = 0; i < 4; i++)
        y[4 + i] = 2 * y[i];
    struct mlo_value *c = op(m, "Relu", "r", op(m, "Conv", "c", input(m, "x", -1, 2, 6, 6), w, b));
    struct mlo_value *d =
        op(m, "Conv", "d", c, noise(m, "w2", 0.5f, 9, 3, 8, 2, 2), floats(m, "b2", LIST(1, 2, 3), 3));
    finish(m, op(m, "Relu", "y", d));
    return m;
}

static struct mlo_model *load_result(const struct run *r)
{
    struct mlo_error err = {0};
    struct mlo_model *m = NULL;
    assert_ok(mlo_onnx_load(r->result.artifact_path, &m, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    return m;
}

static void test_prune_step__what_is_redundant_goes_without_a_trace(void **state)
{
    MLO_UNUSED(state);
    struct run r;
    struct mlo_model *m = redundant();
    run_step(&r, m, 48, "{\"remove\": \"50%\", \"round\": 1, \"criterion\": \"second-order\", \"damp\": 0}",
             1, 0);
    if (r.status != MLO_OK)
        fail_msg("%s", r.err.message);
    struct mlo_model *pruned = load_result(&r);
    assert_int_equal(node_named(pruned, "c_node")->inputs[1]->type.dims[0].value, 4);
    double worst = deviation(m, pruned);
    if (!(worst < 2e-4))
        fail_msg("outputs differ by %g", worst);
    const json_t *pruning = json_object_get(r.result.report, "pruning"),
                 *layer = json_array_get(json_object_get(pruning, "layers"), 0);
    assert_string_equal(mlo_json_str(layer, "node", ""), "d_node");
    assert_true(mlo_json_f64(layer, "before", 0) > 0.1 && mlo_json_f64(layer, "after", 1) < 1e-6);
    mlo_model_free(pruned);
    clear(&r);
    /* the same without reconstruction is another function */
    run_step(&r, m, 48, "{\"remove\": \"50%\", \"round\": 1, \"reconstruct\": \"none\"}", 1, 0);
    assert_int_equal(r.status, MLO_OK);
    pruned = load_result(&r);
    assert_true(deviation(m, pruned) > 0.1);
    mlo_model_free(pruned);
    clear(&r);
    mlo_model_free(m);
}

/* Residual sums, a depthwise Conv, a Gemm behind Flatten, BatchNormalization that is folded; batch -1 or
 * fixed. */
static struct mlo_model *mixed(int64_t batch)
{
    struct mlo_model *m = new_model(17);
    struct mlo_value *x = input(m, "x", batch, 2, 6, 6);
    struct mlo_value *a = op(m, "Conv", "a", x, noise(m, "wa", 0.5f, 1, 8, 2, 3, 3));
    a = op(m, "BatchNormalization", "n", a, noise(m, "gain", 1, 2, 8), noise(m, "offset", 0.3f, 3, 8),
           noise(m, "mean", 0.2f, 4, 8), floats(m, "var", LIST(1, 2, 3, 4, 5, 6, 7, 8), 8));
    a = op(m, "Relu", "ra", a);
    struct mlo_value *e =
        op(m, "Relu", "re",
           op(m, "Conv", "e", a, noise(m, "we", 0.4f, 5, 12, 8, 1, 1), noise(m, "be", 0.1f, 6, 12)));
    struct mlo_value *d = op(m, "Conv", "d", e, noise(m, "wd", 0.4f, 7, 12, 1, 3, 3));
    set_ints(d, "pads", 1, 1, 1, 1);
    assert_true(mlo_node_set_i(d->producer, "group", 12));
    struct mlo_value *p =
        op(m, "Conv", "p", op(m, "HardSwish", "hd", d), noise(m, "wp", 0.4f, 8, 8, 12, 1, 1));
    struct mlo_value *s = op(m, "Add", "s", a, p);
    finish(m, op(m, "Gemm", "y", op(m, "Flatten", "f", s), noise(m, "wy", 0.1f, 9, 128, 3),
                 floats(m, "by", LIST(1, 2, 3), 3)));
    return m;
}

#define MIXED "{\"remove\": \"40%\", \"round\": 1}"

/* compress-10x: the two steps one behind the other. */
static void test_prune_step__what_is_rounded_behind_it_has_the_same_bytes(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        unsigned threads;
        int64_t batch;
    } HOW[] = {{1, 0}, {1, 0}, {2, 3}};
    struct mlo_model *m = mixed(-1);
    char first[MLO_DIGEST_TEXT_SIZE], text[MLO_DIGEST_TEXT_SIZE];
    for (size_t i = 0; i < MLO_COUNT(HOW); i++) {
        struct run pruned, rounded;
        run_step(&pruned, m, 37, "{\"remove\": \"33%\", \"of\": \"weights\", \"round\": 1}", HOW[i].threads,
                 HOW[i].batch);
        assert_int_equal(pruned.status, MLO_OK);
        struct mlo_model *half = load_result(&pruned);
        run_named(&rounded, "round-weights", half, 37,
                  "{\"type\": \"int4\", \"min_weights\": 0, \"block\": 32, \"form\": \"qdq\", \"rounding\": "
                  "\"gptq\", "
                  "\"convolution_bits\": \"4\"}",
                  HOW[i].threads, HOW[i].batch);
        digest_of(&rounded, i ? text : first);
        if (i)
            assert_string_equal(text, first);
        mlo_model_free(half);
        clear(&rounded);
        clear(&pruned);
    }
    mlo_model_free(m);
}

static void test_prune_step__threads_and_batch_leave_no_trace(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        unsigned threads;
        int64_t batch;
    } HOW[] = {{1, 0}, {2, 0}, {1, 1}, {3, 5}};
    struct mlo_model *m = mixed(-1);
    char first[MLO_DIGEST_TEXT_SIZE], text[MLO_DIGEST_TEXT_SIZE];
    for (size_t i = 0; i < MLO_COUNT(HOW); i++) {
        struct run r;
        run_step(&r, m, 37, MIXED, HOW[i].threads, HOW[i].batch);
        digest_of(&r, i ? text : first);
        if (i)
            assert_string_equal(text, first);
        clear(&r);
    }
    struct run open, fixed; /* a model of a fixed batch has the same weights in the end */
    run_step(&open, m, 37, MIXED, 1, 0);
    mlo_model_free(m);
    m = mixed(1);
    run_step(&fixed, m, 37, MIXED, 1, 0);
    assert_int_equal(fixed.status, MLO_OK);
    struct mlo_model *a = load_result(&open), *b = load_result(&fixed);
    int weights = 0;
    for (int i = 0; i < a->graph->value_count; i++) {
        const struct mlo_tensor *w = a->graph->values[i]->constant;
        if (!w || w->dtype != MLO_FLOAT32)
            continue;
        const struct mlo_value *same = mlo_graph_value(b->graph, a->graph->values[i]->name);
        assert_true(same && same->constant && same->constant->size_bytes == w->size_bytes);
        assert_memory_equal(same->constant->data, w->data, w->size_bytes);
        weights++;
    }
    assert_true(weights >= 5);
    mlo_model_free(a);
    mlo_model_free(b);
    clear(&open);
    clear(&fixed);
    mlo_model_free(m);
}

static void test_prune_step__layers_are_fitted_to_sums_in_order(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = mixed(-1);
    struct run r;
    size_t i, sums = 0;
    json_t *layer;
    run_step(&r, m, 200, MIXED, 2, 0);
    assert_int_equal(r.status, MLO_OK);
    const json_t *pruning = json_object_get(r.result.report, "pruning");
    assert_true(mlo_json_f64(json_object_get(pruning, "macs"), "removed", 0) >= 0.4);
    json_array_foreach(json_object_get(pruning, "layers"), i, layer)
    {
        sums += strcmp(mlo_json_str(layer, "to", ""), "sum") == 0;
        assert_true(mlo_json_f64(layer, "after", 9) <=
                    mlo_json_f64(layer, "before", 0) * (1 + 1e-6) + 1e-12); /* some need no fit */
    }
    assert_true(i >= 2 && sums == 1);
    clear(&r);
    /* uniform ratios, norms and biases alone: another way to the same budget */
    run_step(&r, m, 37,
             "{\"remove\": \"40%\", \"round\": 2, \"criterion\": \"activation\", \"ratios\": \"uniform\", "
             "\"reconstruct\": \"bias\"}",
             1, 0);
    assert_int_equal(r.status, MLO_OK);
    pruning = json_object_get(r.result.report, "pruning");
    json_array_foreach(json_object_get(pruning, "groups"), i, layer)
    {
        assert_int_equal(mlo_json_i64(layer, "to", 1) % 2, 0);
    }
    clear(&r);
    mlo_model_free(m);
}

/* Two branches of which one is hardly seen at the output. */
static void test_prune_step__takes_more_where_outputs_suffer_less(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(17);
    struct run r;
    struct mlo_value *x = input(m, "x", -1, 6), *sum[2];
    static const float SIZES[] = {1, 0.01f};
    for (int i = 0; i < 2; i++) {
        char w[2][32], v[3][16];
        for (int k = 0; k < 2; k++)
            snprintf(w[k], sizeof w[k], "w%d%d", i, k);
        for (int k = 0; k < 3; k++)
            snprintf(v[k], sizeof v[k], "%c%d", "hry"[k], i);
        struct mlo_value *h = op(m, "Gemm", v[0], x, noise(m, w[0], 1, 1, 6, 8));
        sum[i] = op(m, "Gemm", v[2], op(m, "Relu", v[1], h), noise(m, w[1], SIZES[i], 2, 8, 3));
    }
    finish(m, op(m, "Add", "y", sum[0], sum[1]));
    run_step(&r, m, 100, "{\"remove\": \"40%\", \"round\": 1}", 1, 0);
    if (r.status != MLO_OK)
        fail_msg("%s", r.err.message);
    const json_t *groups = json_object_get(json_object_get(r.result.report, "pruning"), "groups"),
                 *seen = json_array_get(groups, 0), *unseen = json_array_get(groups, 1);
    assert_string_equal(mlo_json_str(unseen, "node", ""), "h1_node");
    assert_true(mlo_json_f64(seen, "weight", 0) > 1000 * mlo_json_f64(unseen, "weight", 1));
    assert_int_equal(mlo_json_i64(unseen, "to", 0), 1);
    assert_int_equal(mlo_json_i64(seen, "to", 0), 8);
    clear(&r);
    mlo_model_free(m);
}

/* The report's row of the group that a node makes. */
static const json_t *group_of(const struct run *r, const char *node)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(r->result.report, "pruning"), "groups"), i, row)
    {
        if (strcmp(mlo_json_str(row, "node", ""), node) == 0)
            return row;
    }
    fail_msg("no group of '%s'", node);
    return NULL;
}

/* Four branches: as they come; half of what is hidden is read by nothing, which errs by nothing; seen
 * nowhere; with a root that has no number where a fit is a little below zero. */
static void test_prune_step__weighs_all_groups_on_one_scale(void **state)
{
    MLO_UNUSED(state);
    enum { PLAIN, IDLE, UNSEEN, ROOT, BRANCHES };
    struct mlo_model *m = new_model(17);
    struct mlo_error err = {0};
    struct run r;
    struct mlo_value *x = input(m, "x", -1, 6), *out[BRANCHES];
    for (int i = 0; i < BRANCHES; i++) {
        char w[2][32], v[3][16];
        for (int k = 0; k < 2; k++)
            snprintf(w[k], sizeof w[k], "w%d%d", i, k);
        for (int k = 0; k < 3; k++)
            snprintf(v[k], sizeof v[k], "%c%d", "hry"[k], i);
        struct mlo_value *first = noise(m, w[0], 1, 1, 6, 8),
                         *second = noise(m, w[1], 1, 2, 8, i == ROOT ? 8 : 3);
        for (int k = 0; k < 8 * 3 && i == IDLE; k++)
            ((float *)second->constant->data)[k] *= k / 3 < 4;
        for (int k = 0; k < 8 * 8 && i == ROOT; k++)
            ((float *)second->constant->data)[k] = k / 8 == k % 8;
        struct mlo_value *h = op(m, "Relu", v[1], op(m, "Gemm", v[0], x, first));
        out[i] = op(m, "Gemm", v[2], h, second);
    }
    out[UNSEEN] = op(m, "Mul", "none", op(m, "Relu", "u", out[UNSEEN]), floats(m, "zeros", LIST(0, 0, 0), 3));
    assert_ok(mlo_graph_add_output(m->graph, op(m, "Sqrt", "root", out[ROOT]), &err));
    finish(m, op(m, "Add", "y", op(m, "Add", "s", out[PLAIN], out[IDLE]), out[UNSEEN]));
    run_step(&r, m, 100, "{\"remove\": \"30%\", \"round\": 1}", 1, 0);
    if (r.status != MLO_OK)
        fail_msg("%s", r.err.message);
    double plain = mlo_json_f64(group_of(&r, "h0_node"), "weight", -1);
    assert_true(plain > 0 && isfinite(plain));
    assert_true(mlo_json_f64(group_of(&r, "h2_node"), "weight", -1) == 0);
    assert_true(mlo_json_f64(group_of(&r, "h1_node"), "weight", -1) == plain / 2); /* the mean */
    assert_true(mlo_json_f64(group_of(&r, "h3_node"), "weight", -1) == 1e6 * plain);
    assert_int_equal(mlo_json_i64(group_of(&r, "h2_node"), "to", 0), 1);
    assert_int_equal(mlo_json_i64(group_of(&r, "h3_node"), "to", 0), 8);
    clear(&r);
    mlo_model_free(m);
}

/* A Gemm that reads 288 numbers is fitted to the rows of fewer samples without an error, whatever channels
 * went: on others it shows what their going does. */
static void test_prune_step__judges_by_what_nothing_was_fitted_on(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(17);
    struct run r;
    struct mlo_value *a = op(m, "Conv", "a", input(m, "x", -1, 2, 8, 8), noise(m, "wa", 0.5f, 1, 8, 2, 3, 3));
    struct mlo_value *f = op(m, "Flatten", "f", op(m, "Relu", "ra", a));
    finish(m, op(m, "Gemm", "y", f, noise(m, "wy", 0.1f, 2, 288, 3)));
    run_step(&r, m, 180, "{\"remove\": \"40%\", \"round\": 1}", 1, 0);
    if (r.status != MLO_OK)
        fail_msg("%s", r.err.message);
    double weight = mlo_json_f64(group_of(&r, "a_node"), "weight", 0);
    if (!(weight > 0.1))
        fail_msg("half of all that is seen counts %g", weight);
    clear(&r);
    mlo_model_free(m);
}

/* One number of all samples: what it suffers cannot be told sample by sample. */
static void test_prune_step__prunes_where_outputs_have_no_rows(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = redundant();
    struct mlo_error err = {0};
    struct run r;
    assert_ok(mlo_graph_add_output(m->graph, op(m, "ReduceMean", "mean", m->graph->outputs[0]), &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    run_step(&r, m, 40, "{\"remove\": \"50%\", \"round\": 1}", 1, 0);
    if (r.status != MLO_OK)
        fail_msg("%s", r.err.message);
    assert_true(has_note(json_object_get(r.result.report, "passes"), "", "'mean' is "));
    assert_true(has_note(json_object_get(r.result.report, "passes"), "", "no row per sample"));
    assert_true(mlo_json_f64(group_of(&r, "c_node"), "weight", -1) == 1);
    assert_int_equal(mlo_json_i64(group_of(&r, "c_node"), "to", 0), 4);
    clear(&r);
    mlo_model_free(m);
}

/* A stream of six channels, made twice and summed, read by a Conv and behind an average; with an op on it (or
 * a number that is added to all channels) it stays as it is. */
static struct mlo_model *stream(const char *on_it)
{
    struct mlo_model *m = new_model(17);
    struct mlo_value *p = op(m, "Conv", "p", input(m, "x", -1, 3, 5, 5), noise(m, "wp", 0.5f, 1, 6, 3, 1, 1),
                             noise(m, "bp", 0.5f, 2, 6));
    if (strcmp(on_it, "Add") == 0)
        p = op(m, "Add", "on", p, floats(m, "one", LIST(1), 1));
    else if (*on_it)
        p = op(m, on_it, "on", p);
    struct mlo_value *e = op(m, "Relu", "re", op(m, "Conv", "e", p, noise(m, "we", 0.5f, 3, 9, 6, 3, 3)));
    set_ints(e->producer->inputs[0], "pads", 1, 1, 1, 1);
    struct mlo_value *q =
        op(m, "Conv", "q", e, noise(m, "wq", 0.5f, 4, 6, 9, 1, 1), noise(m, "bq", 0.5f, 5, 6));
    struct mlo_value *g = op(m, "GlobalAveragePool", "g", op(m, "Add", "s", p, q));
    finish(m, op(m, "Conv", "y", g, noise(m, "wy", 0.5f, 6, 3, 6, 1, 1)));
    return m;
}

static void test_prune_step__turns_channels_that_nothing_but_sums_touch(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *on_it, *exclude;
        bool turned;
    } CASES[] = {
        {"", "[]", true}, {"", "[\"q_node\"]", false}, {"Relu", "[]", false}, {"Sigmoid", "[]", false}};
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_model *m = stream(CASES[i].on_it);
        struct run r;
        char options[160];
        snprintf(options, sizeof options, "{\"remove\": \"1%%\", \"round\": 1, \"exclude\": %s}",
                 CASES[i].exclude);
        run_step(&r, m, 60, options, 2, 0);
        if (r.status != MLO_OK)
            fail_msg("%s", r.err.message);
        assert_true(has_note(json_object_get(r.result.report, "passes"), "p_node", "6 channels are turned") ==
                    CASES[i].turned);
        clear(&r);
        mlo_model_free(m);
    }
}

/* With `full`, weights without a pattern; else each four columns (a head's) say what two would. */
static struct mlo_value *narrow(struct mlo_model *m, const char *name, uint32_t seed, int64_t rows,
                                int64_t columns, bool full)
{
    struct mlo_value *w = noise(m, name, 0.4f, seed, rows, columns);
    float *x = w->constant->data;
    for (int64_t r = 0; r < rows && !full; r++)
        for (int64_t c = 0; c < columns; c += 4) {
            float *at = x + r * columns + c;
            at[2] = at[0] - 0.5f * at[1];
            at[3] = 0.8f * at[0] + at[1];
        }
    return w;
}

/* How an attention differs from one of two heads of width 4, with Q, K and V by a MatMul and an Add each. */
enum {
    PACKED = 1,          /* out of one product, a Gather for each */
    SPLIT = 1 << 1,      /* out of one product, by a Split */
    SIZES = 1 << 2,      /* whose sizes are an input, and types claim far more columns than there are */
    FIFTH = 1 << 3,      /* of the axis of three, in front of the heads */
    GATE = 1 << 4,       /* what is attended is read by two products */
    EMBED = 1 << 5,      /* a product in front */
    IDLE = 1 << 6,       /* its last channel is 0, and all that the last index of the queries reads */
    RELU = 1 << 7,       /* no Softmax */
    LEVEL = 1 << 8,      /* index 0 of all keys is a large number */
    GEMM = 1 << 9,       /* products are Gemm */
    TRANS_B = 1 << 10,   /* with transB */
    ALPHA = 1 << 11,     /* with alpha */
    BETA = 1 << 12,      /* with beta */
    NUMBERS = 1 << 13,   /* a Div, Mul on queries, keys, what is attended */
    ONE = 1 << 14,       /* head */
    CROSS = 1 << 15,     /* keys and values of another input */
    SAME = 1 << 16,      /* values are the keys */
    TIED = 1 << 17,      /* keys by the queries' weights */
    LONG = 1 << 18,      /* 200 Muls on queries */
    ADDS_BACK = 1 << 19, /* what is attended is added to what is made of it: C of the Gemm */
    SELF = 1 << 20,      /* keys are the queries */
    TIED_BIAS = 1 << 21, /* keys with the queries' bias */
    MASK = 1 << 22,      /* an Add and a Div in front of the Softmax */
    ACROSS = 1 << 23,    /* which is over queries */
    OLD = 1 << 24,       /* of opset 11, where a Softmax is over all axes from the first on */
};
enum { CLAIMED = 1 << 16 /* columns */ };

static void transpose(struct mlo_value *w)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    int64_t rows = w->constant->dims[0], columns = w->constant->dims[1];
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, 2, DIMS(columns, rows), &err));
    for (int64_t e = 0; e < rows * columns; e++)
        ((float *)t.data)[e % columns * rows + e / columns] = ((const float *)w->constant->data)[e];
    assert_ok(mlo_value_set_constant_take(w, &t, &err));
}

/* x W + b, by nodes that are called as `name` says. */
static struct mlo_value *product(struct mlo_model *m, unsigned how, const char *name, struct mlo_value *x,
                                 struct mlo_value *w, struct mlo_value *b)
{
    char made[32];
    if (how & GEMM) {
        if (how & TRANS_B)
            transpose(w);
        struct mlo_value *y = op(m, "Gemm", name, x, w, b);
        if (how & TRANS_B)
            assert_true(mlo_node_set_i(y->producer, "transB", 1));
        if (how & ALPHA)
            assert_true(mlo_node_set_f(y->producer, "alpha", 0.5f));
        if (how & BETA)
            assert_true(mlo_node_set_f(y->producer, "beta", 0.5f));
        return y;
    }
    snprintf(made, sizeof made, "%s_b", name);
    return op(m, "Add", made, op(m, "MatMul", name, x, w), b);
}

/* Q, K and V of three times 8 columns, by Split. */
static void split_three(struct mlo_model *m, unsigned how, struct mlo_value *p, int axis,
                        struct mlo_value *part[3])
{
    struct mlo_type claim = {.dtype = MLO_FLOAT32, .rank = 3, .dims = {{-1, "batch"}, {5}, {CLAIMED}}};
    struct mlo_value *in[2] = {p, how & SIZES ? input_of(m, "sizes", MLO_INT64, 1, DIMS(3)) : NULL};
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "third%d", i);
        part[i] = mlo_graph_add_value(m->graph, name, how & SIZES ? &claim : NULL);
    }
    struct mlo_node *node =
        mlo_graph_add_node(m->graph, NULL, "", "Split", "split", in, how & SIZES ? 2 : 1, part, 3);
    assert_true(node && mlo_node_set_i(node, "axis", axis));
}

/* Q, K and V out of one product: in axes [.., tokens, heads, width], but by a Gather with heads in front. */
static void parts_of_one(struct mlo_model *m, unsigned how, struct mlo_value *x, const int64_t sizes[4],
                         bool full, struct mlo_value *part[3])
{
    struct mlo_value *p =
        product(m, how, "p", x, narrow(m, "wp", 3, 8, 24, full), narrow(m, "bp", 11, 1, 24, full));
    if (how & SPLIT && !(how & FIFTH)) {
        split_three(m, how, p, how & GEMM ? 1 : 2, part);
        return;
    }
    p = op(m, "Reshape", "r", p, ints(m, "shape", sizes[0], sizes[1], 3, sizes[2], sizes[3]));
    if (how & SPLIT) {
        split_three(m, how, p, 2, part);
        return;
    }
    p = op(m, "Transpose", "t", p);
    set_ints(p, "perm", 2, 0, 3, 1, 4);
    for (int i = 0; i < 3; i++) {
        char name[2][16];
        struct mlo_tensor at = {0};
        struct mlo_error err = {0};
        snprintf(name[0], sizeof name[0], "t%d", i);
        snprintf(name[1], sizeof name[1], "i%d", i);
        assert_ok(mlo_tensor_init(&at, MLO_INT64, 0, NULL, &err));
        *(int64_t *)at.data = i;
        part[i] = op(m, "Gather", name[0], p, constant_take(m, name[1], &at));
    }
}

/* One of them by a product of its own. */
static struct mlo_value *part_apart(struct mlo_model *m, unsigned how, struct mlo_value *x, int i, bool full)
{
    char n[3][16];
    if (i == 1 && how & SELF)
        return mlo_graph_value(m->graph, "p0_b");
    if (i == 2 && how & SAME)
        return mlo_graph_value(m->graph, "p1_b");
    for (size_t k = 0; k < MLO_COUNT(n); k++)
        snprintf(n[k], sizeof n[k], "%c%d", "wpi"[k], i);
    uint32_t seed = 3 + 2 * (uint32_t)i;
    struct mlo_value *w =
        i == 1 && how & TIED ? mlo_graph_value(m->graph, "w0") : narrow(m, n[0], seed, 8, 8, full);
    struct mlo_value *b =
        i == 1 && how & TIED_BIAS ? mlo_graph_value(m->graph, "i0") : narrow(m, n[2], seed + 8, 1, 8, full);
    float *by = w->constant->data, *add = b->constant->data;
    for (int e = 0; e < 64; e++) {
        bool level = i == 1 && how & LEVEL && e % 4 == 0,
             idle = i == 0 && how & IDLE && e % 4 == 3 && e / 8 < 7;
        by[e] = level || idle ? 0 : by[e];
        add[e % 8] = level ? 4 : idle ? 0 : add[e % 8];
    }
    return product(m, how, n[1], x, w, b);
}

/* What is between queries and scores; `on` is an op, or none. */
static struct mlo_value *on_queries(struct mlo_model *m, unsigned how, const char *on, struct mlo_value *q)
{
    if (strcmp(on, "Add") == 0) /* a position, say */
        q = op(m, "Add", "on", q, noise(m, "place", 0.3f, 17, 5, 4));
    else if (strcmp(on, "Mul") == 0)
        q = op(m, "Mul", "on", q, floats(m, "half", LIST(0.5), 1));
    else if (*on)
        q = op(m, on, "on", q);
    for (int i = 0; i < 200 && how & LONG; i++) {
        char n[2][16];
        snprintf(n[0], sizeof n[0], "long%d", i);
        snprintf(n[1], sizeof n[1], "by%d", i);
        q = op(m, "Mul", n[0], q, scalar(m, n[1], i % 2 ? 2 : 0.5f));
    }
    return how & NUMBERS ? op(m, "Div", "div", q, scalar(m, "root", 2)) : q;
}

/* What reads the heads. */
static struct mlo_value *behind(struct mlo_model *m, unsigned how, struct mlo_value *c)
{
    c = op(m, "Reshape", "joined", c, how & GEMM ? ints(m, "whole", 5, 8) : ints(m, "whole", 0, 5, 8));
    struct mlo_value *w = noise(m, "wo", 0.5f, 23, 8, how & ADDS_BACK ? 8 : 6);
    if (how & ADDS_BACK)
        return op(m, "Gemm", "y", c, w, c);
    if (how & GEMM)
        return product(m, how, "y", c, w, noise(m, "bo", 0.5f, 43, 6));
    struct mlo_value *y = op(m, "MatMul", "y", c, w);
    if (!(how & GATE))
        return y;
    return op(m, "Mul", "gated", y,
              op(m, "Sigmoid", "open", op(m, "MatMul", "g", c, noise(m, "wg", 0.5f, 37, 8, 6))));
}

static struct mlo_model *attention(unsigned how, const char *on, bool full)
{
    struct mlo_model *m = new_model(how & OLD ? 11 : 17);
    const int64_t batch = how & GEMM ? 1 : -1, heads = how & SIZES ? CLAIMED / 4 : how & ONE ? 1 : 2;
    const int64_t sizes[4] = {batch < 0 ? 0 : batch, 5, heads, how & ONE ? 8 : 4};
    struct mlo_value *x = input(m, "x", batch, 5, 8), *part[3];
    struct mlo_value *other = how & CROSS ? input(m, "z", batch, 5, 8) : NULL;
    if (how & GEMM)
        x = op(m, "Reshape", "flat", x, ints(m, "rows", 5, 8));
    if (how & EMBED) {
        struct mlo_value *w = noise(m, "we", 0.4f, 29, 8, 8), *b = noise(m, "be", 0.2f, 31, 8);
        for (int i = 0; i < 8 && how & IDLE; i++)
            ((float *)w->constant->data)[8 * i + 7] = ((float *)b->constant->data)[7] = 0;
        x = product(m, how, "e", x, w, b);
    }
    if (how & (PACKED | SPLIT))
        parts_of_one(m, how, x, sizes, full, part);
    for (int i = 0; i < 3 && !(how & PACKED); i++) {
        char n[3][16];
        for (size_t k = 0; k < MLO_COUNT(n); k++)
            snprintf(n[k], sizeof n[k], "%c%d", "rst"[k], i);
        if (!(how & SPLIT))
            part[i] = part_apart(m, how, i && other ? other : x, i, full);
        if (how & FIFTH)
            part[i] = op(m, "Squeeze", n[0], part[i], ints(m, n[1], 2));
        else
            part[i] = op(m, "Reshape", n[0], part[i], ints_of(m, n[1], 4, sizes));
        part[i] = op(m, "Transpose", n[2], part[i]);
        set_ints(part[i], "perm", 0, 2, 1, 3);
    }
    part[0] = on_queries(m, how, on, part[0]);
    if (how & NUMBERS)
        part[1] = op(m, "Mul", "mul", scalar(m, "twice", 2), part[1]);
    struct mlo_value *k = op(m, "Transpose", "k", part[1]);
    set_ints(k, "perm", 0, 1, 3, 2);
    struct mlo_value *s = op(m, "MatMul", "qk", part[0], k);
    if (how & MASK)
        s = op(m, "Add", "mask", noise(m, "hides", 1, 41, 5, 5), op(m, "Div", "d", s, scalar(m, "by", 2)));
    s = op(m, how & RELU ? "Relu" : "Softmax", "s", s);
    if (how & ACROSS)
        assert_true(mlo_node_set_i(s->producer, "axis", 2));
    struct mlo_value *c = op(m, "MatMul", "sv", s, part[2]);
    if (how & NUMBERS)
        c = op(m, "Mul", "more", c, scalar(m, "thrice", 3));
    c = op(m, "Transpose", "c", c);
    set_ints(c, "perm", 0, 2, 1, 3);
    finish(m, how & SIZES ? c : behind(m, how, c));
    return m;
}

/* Gram matrices of all that the options want, of rows without a pattern; `idle`: of eight channels, each is
 * less than the one before, and the last is 0. */
static void observe_noise(const struct mlo_model *m, const json_t *options, bool idle,
                          struct mlo_stats *stats)
{
    struct mlo_error err = {0};
    struct mlo_stats_wants wants = {0};
    mlo_stats_init(stats);
    assert_ok(mlo_prune_wanted(m, options, true, &wants, &err));
    for (size_t w = 0; w < wants.count; w++) {
        const struct mlo_node *node = wants.list[w].gram;
        struct mlo_gram *gram = mlo_stats_get_gram(stats, node, true);
        const struct mlo_type *type = &node->inputs[0]->type;
        int64_t dims[MLO_MAX_RANK] = {1};
        struct mlo_tensor x = {0};
        uint32_t seed = 3; /* what reads the same sees the same */
        for (int d = 1; d < type->rank; d++)
            dims[d] = type->dims[d].value;
        assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, type->rank, dims, &err));
        for (int s = 0; s < 40; s++) {
            for (size_t k = 0; k < mlo_tensor_count(&x); k++)
                ((float *)x.data)[k] = noise_at(&seed) * (idle ? (float)(7 - k % 8) : 1);
            assert_ok(mlo_gram_add(gram, node, &x, NULL, &err));
        }
        mlo_tensor_clear(&x);
    }
    mlo_stats_sort(stats);
    mlo_stats_wants_clear(&wants);
}

static void hear(void *arg, int group, int groups)
{
    assert_int_equal(group, (*(int *)arg)++);
    assert_true(group < groups);
}

static void test_prune_turn__leaves_the_function_as_it_was(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = stream(""), *turned = stream("");
    struct mlo_stats stats;
    struct mlo_pass_context ctx = {.notes = json_array()};
    json_t *given = json_object(), *options = NULL;
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_prune_turned out;
    int heard = 0;
    assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
    assert_ok(mlo_graph_infer(turned->graph, &err));
    observe_noise(turned, options, false, &stats);
    assert_ok(mlo_prune_turn(turned, options, &stats, &ctx, hear, &heard, arena, &out, &err));
    assert_int_equal(out.groups, 1);
    assert_int_equal(out.count, 0);
    assert_true(heard > 1);
    double off = deviation(m, turned);
    if (!(off < 2e-5))
        fail_msg("the turned model is off by %g", off);
    const float *was = node_named(m, "p_node")->inputs[1]->constant->data,
                *now = node_named(turned, "p_node")->inputs[1]->constant->data;
    assert_true(fabsf(was[0] - now[0]) > 1e-3f);
    mlo_stats_clear(&stats);
    mlo_model_free(turned);
    mlo_model_free(m);
    /* a number for all channels is not one behind the turn */
    m = stream("Add");
    assert_ok(mlo_graph_infer(m->graph, &err));
    observe_noise(m, options, false, &stats);
    assert_ok(mlo_prune_turn(m, options, &stats, &ctx, NULL, NULL, arena, &out, &err));
    assert_int_equal(out.groups, 0);
    /* weights that are no numbers are named as they are, and not by what a turn makes of them */
    ((float *)node_named(m, "q_node")->inputs[1]->constant->data)[3] = NAN;
    assert_int_equal(mlo_prune_turn(m, options, &stats, &ctx, NULL, NULL, arena, &out, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "'wq' hold NaN"));
    mlo_stats_clear(&stats);
    mlo_model_free(m);
    mlo_arena_free(arena);
    json_decref(ctx.notes);
    json_decref(options);
    json_decref(given);
}

/* Heads are turned where nothing but moves and numbers stand between weights and products; elsewhere they
 * stay what can go. */
static void test_prune_turn__turns_what_is_inside_heads(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        unsigned how;
        const char *on;
        int widths, units;
        double most, least; /* share of the first index at least, of the last one at most; 0: any */
        const char *options;
    } CASES[] = {
        {PACKED, "", 1, 4},
        {0, "", 3, 8},
        {PACKED, "Mul", 1, 4},
        {0, "Mul", 3, 8},
        {PACKED, "Tanh", 0, 2},
        {0, "Tanh", 0, 2},
        {PACKED, "Add", 0, 2},
        {0, "Add", 0, 2},
        {0, "", 2, 4, .options = "{\"exclude\": [\"p2_node\"]}"},
        {0, "", 0, 2, .options = "{\"heads\": \"whole\"}"},
        {SPLIT, "", 3, 8},
        {SPLIT | FIFTH, "", 1, 4},
        {SPLIT | SIZES, "", 0, 0},
        {GATE, "", 0, 2},
        {GATE | PACKED, "", 0, 2},
        {EMBED, "", 3, 16},
        {EMBED | PACKED, "", 1, 12},
        {EMBED | IDLE, "", 3, 16, .least = 1e-3},
        {RELU, "", 3, 8},
        {RELU | LEVEL, "", 3, 8, .most = 0.9},
        {ACROSS | LEVEL, "", 3, 8, .most = 0.9},
        {OLD | LEVEL, "", 3, 8, .most = 0.9},
        {LEVEL, "", 3, 8, .least = 1e-9},
        {MASK | LEVEL, "", 3, 8, .least = 1e-9},
        {GEMM, "", 3, 8},
        {GEMM | TRANS_B, "", 3, 8},
        {GEMM | TRANS_B | PACKED, "", 1, 4},
        {GEMM | SPLIT, "", 3, 8},
        {GEMM | ALPHA, "", 0, 2},
        {GEMM | BETA, "", 0, 2},
        {GEMM | ADDS_BACK, "", 2, 4},
        {NUMBERS, "", 3, 8},
        {NUMBERS | PACKED, "Identity", 1, 4},
        {ONE, "", 0, 8}, /* columns that make no axis of heads are channels */
        {ONE | PACKED, "", 1, 8},
        {CROSS, "", 3, 8},
        {SAME, "", 0, 2},
        {SELF, "", 0, 2},
        {TIED, "", 0, 2},
        {TIED_BIAS, "", 0, 2},
        {LONG, "", 0, 2},
    };
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_error err = {0};
        struct mlo_model *m = attention(CASES[i].how, CASES[i].on, true),
                         *turned = attention(CASES[i].how, CASES[i].on, true);
        struct mlo_arena *arena = mlo_arena_new();
        struct mlo_pass_context ctx = {.notes = json_array()};
        struct mlo_prune_turned out;
        struct mlo_prune_ranking ranking;
        struct mlo_stats stats;
        json_t *given = json_loads(CASES[i].options ? CASES[i].options : "{}", 0, NULL), *options;
        assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
        assert_ok(mlo_graph_infer(turned->graph, &err));
        observe_noise(turned, options, CASES[i].how & IDLE, &stats);
        assert_ok(mlo_prune_turn(turned, options, &stats, &ctx, NULL, NULL, arena, &out, &err));
        if (out.count != CASES[i].widths)
            fail_msg("case %zu: %d widths, %d turned", i, out.count, out.groups);
        double off = CASES[i].how & SIZES ? 0 : deviation(m, turned);
        if (!(off < 2e-5))
            fail_msg("case %zu: the turned model is off by %g", i, off);
        if (out.count && out.widths[0].seen) { /* of queries and keys, the most is seen of the first */
            const double *seen = out.widths[0].seen;
            int width = CASES[i].how & ONE ? 8 : 4;
            double sum = 0;
            for (int j = 0; j < width; j++) {
                assert_true(j == 0 || seen[j - 1] > seen[j]);
                sum += seen[j];
            }
            assert_true(fabs(sum - 1) < 1e-12);
            if (!(seen[0] >= CASES[i].most) || (CASES[i].least > 0 && !(seen[width - 1] < CASES[i].least)))
                fail_msg("case %zu: of the first %g is seen, of the last %g", i, seen[0], seen[width - 1]);
        }
        int units = 0; /* indices of the width, or heads; none: it says that nothing can go */
        enum mlo_status ranked =
            mlo_prune_rank_model(turned, options, &stats, &out, arena, &ctx, &ranking, &err);
        assert_int_equal(ranked, CASES[i].units ? MLO_OK : MLO_EINVAL);
        for (int g = 0; g < ranking.count; g++)
            units += ranking.groups[g].count;
        if (units != CASES[i].units)
            fail_msg("case %zu: %d units", i, units);
        mlo_stats_clear(&stats);
        mlo_arena_free(arena);
        json_decref(ctx.notes);
        json_decref(options);
        json_decref(given);
        mlo_model_free(m);
        mlo_model_free(turned);
    }
}

/* What queries and keys see is of what was observed, whether or not the channels in front are turned, too. */
static void test_prune_turn__orders_heads_by_what_was_observed(void **state)
{
    MLO_UNUSED(state);
    static const char *const OPTIONS[] = {"{\"exclude\": [\"e_node\"]}", "{}"};
    double first[4];
    for (int i = 0; i < 2; i++) {
        struct mlo_error err = {0};
        struct mlo_model *m = attention(EMBED | IDLE, "", true);
        struct mlo_arena *arena = mlo_arena_new();
        struct mlo_pass_context ctx = {.notes = json_array()};
        struct mlo_prune_turned out;
        struct mlo_stats stats;
        json_t *given = json_loads(OPTIONS[i], 0, NULL), *options;
        assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
        observe_noise(m, options, true, &stats);
        assert_ok(mlo_prune_turn(m, options, &stats, &ctx, NULL, NULL, arena, &out, &err));
        assert_int_equal(out.groups, 2 + i); /* queries and keys, values; and the channels in front */
        const double *seen = out.widths[0].seen;
        assert_non_null(seen);
        for (int j = 0; j < 4; j++) {
            if (i && !(fabs(seen[j] - first[j]) < 1e-9))
                fail_msg("of index %d %g is seen, and not %g", j, seen[j], first[j]);
            first[j] = seen[j];
        }
        mlo_stats_clear(&stats);
        mlo_arena_free(arena);
        json_decref(ctx.notes);
        json_decref(options);
        json_decref(given);
        mlo_model_free(m);
    }
}

/* Every index of the heads is in use, and two of four say all: no head and no index could go as they are. */
static void test_prune_step__takes_what_heads_do_not_need(void **state)
{
    MLO_UNUSED(state);
    for (int packed = 0; packed < 2; packed++) {
        struct mlo_model *m = attention(packed, "", false);
        char first[MLO_DIGEST_TEXT_SIZE], text[MLO_DIGEST_TEXT_SIZE];
        for (unsigned threads = 1; threads <= 3; threads += 2) {
            struct run r;
            run_step(&r, m, 40, "{\"remove\": \"50%\", \"damp\": 0}", threads, threads == 1 ? 0 : 7);
            if (r.status != MLO_OK)
                fail_msg("%s", r.err.message);
            digest_of(&r, threads == 1 ? first : text);
            struct mlo_model *pruned = load_result(&r);
            assert_int_equal(node_named(pruned, "y_node")->inputs[1]->type.dims[0].value, 4);
            assert_int_equal(mlo_graph_value(pruned->graph, packed ? "wp" : "w0")->type.dims[1].value,
                             packed ? 12 : 4);
            double worst = deviation(m, pruned);
            if (!(worst < 2e-4))
                fail_msg("outputs differ by %g", worst);
            mlo_model_free(pruned);
            clear(&r);
        }
        assert_string_equal(first, text);
        mlo_model_free(m);
    }
}

/* The channels in front of the heads are turned as well: an index that nothing is seen of is still told. */
static void test_prune_step__turns_heads_and_the_channels_in_front_of_them(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = attention(EMBED | IDLE, "", true);
    struct run r;
    run_step(&r, m, 40, "{\"remove\": \"10%\", \"round\": 1, \"damp\": 0}", 1, 0);
    if (r.status != MLO_OK)
        fail_msg("%s", r.err.message);
    const json_t *passes = json_object_get(r.result.report, "passes");
    assert_true(has_note(passes, "e_node", "8 channels are turned"));
    assert_true(has_note(passes, "p0_node", "queries and keys of 2 heads are turned"));
    struct mlo_model *pruned = load_result(&r);
    assert_int_equal(mlo_graph_value(pruned->graph, "w0")->type.dims[1].value, 6);
    double worst = deviation(m, pruned);
    if (!(worst < 2e-4))
        fail_msg("outputs differ by %g", worst);
    mlo_model_free(pruned);
    clear(&r);
    mlo_model_free(m);
}

/* Of what a ConvTranspose alone reads there is no matrix: channels without weights go first, and not those
 * that happen to come first. */
static void test_prune_step__ranks_by_norms_what_nothing_observes(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(17);
    struct run r;
    struct mlo_value *w = noise(m, "wc", 0.5f, 3, 8, 2, 3, 3);
    memset((float *)w->constant->data + 4 * 18, 0, 4 * 18 * sizeof(float));
    struct mlo_value *c = op(m, "Relu", "rc", op(m, "Conv", "c", input(m, "x", -1, 2, 6, 6), w));
    struct mlo_value *t =
        op(m, "Relu", "rt", op(m, "ConvTranspose", "t", c, noise(m, "wt", 0.5f, 5, 8, 8, 2, 2)));
    finish(m, op(m, "Conv", "y", t, noise(m, "wy", 0.5f, 9, 3, 8, 1, 1)));
    float strong = ((float *)w->constant->data)[0];
    run_step(&r, m, 24,
             "{\"remove\": \"50%\", \"round\": 1, \"ratios\": \"uniform\", \"reconstruct\": \"none\"}", 1, 0);
    if (r.status != MLO_OK)
        fail_msg("%s", r.err.message);
    const json_t *passes = json_object_get(r.result.report, "passes");
    assert_true(has_note(passes, "c_node", "ranked by norms of weights: nothing that reads its channels"));
    assert_false(has_note(passes, "t_node", "ranked by"));
    struct mlo_model *pruned = load_result(&r);
    const struct mlo_value *left = node_named(pruned, "c_node")->inputs[1];
    assert_true(left->type.dims[0].value >= 4 && left->type.dims[0].value < 8);
    assert_true(((const float *)left->constant->data)[0] == strong);
    mlo_model_free(pruned);
    clear(&r);
    mlo_model_free(m);
}

/* Tokens are mixed by a MatMul whose rows are channels, of which some went: a fit is made on those that
 * stayed. */
static void test_prune_step__fits_where_rows_went_too(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(17);
    struct run r;
    size_t i;
    bool fitted = false;
    json_t *layer;
    struct mlo_value *e = op(m, "Conv", "e", input(m, "x", -1, 2, 4, 4), noise(m, "we", 0.5f, 1, 8, 2, 1, 1));
    struct mlo_value *c = op(m, "Conv", "c", e, noise(m, "wc", 0.5f, 2, 8, 8, 1, 1));
    struct mlo_value *b = op(m, "Reshape", "b", c, ints(m, "shape", -1, 8, 16));
    struct mlo_value *d = op(m, "MatMul", "d", b, noise(m, "wd", 0.3f, 3, 16, 16));
    d = op(m, "Relu", "rd", op(m, "Add", "a", d, noise(m, "bd", 0.1f, 4, 16)));
    struct mlo_value *f = op(m, "Transpose", "f", op(m, "Add", "s", d, b));
    set_ints(f, "perm", 0, 2, 1);
    finish(m, op(m, "MatMul", "y", f, noise(m, "wy", 0.5f, 5, 8, 3)));
    run_step(&r, m, 24, "{\"remove\": \"50%\", \"round\": 1, \"ratios\": \"uniform\"}", 1, 0);
    if (r.status != MLO_OK)
        fail_msg("%s", r.err.message);
    const json_t *layers = json_object_get(json_object_get(r.result.report, "pruning"), "layers");
    json_array_foreach(layers, i, layer)
    {
        fitted = fitted || strcmp(mlo_json_str(layer, "node", ""), "d_node") == 0;
        assert_true(mlo_json_f64(layer, "after", 9) <= mlo_json_f64(layer, "before", 0) * (1 + 1e-6));
    }
    assert_true(fitted);
    clear(&r);
    mlo_model_free(m);
}

static void test_prune_step__says_what_it_needs(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = mixed(-1);
    struct run r;
    run_step(&r, m, 0, "{}", 1, 0);
    assert_int_equal(r.status, MLO_EINVAL);
    assert_non_null(strstr(r.err.message, "reconstruction by least-squares reads calibration data"));
    assert_non_null(strstr(r.err.hint, "reconstruct: none"));
    clear(&r);
    run_step(&r, m, 0, "{\"criterion\": \"second-order\", \"reconstruct\": \"none\"}", 1, 0);
    assert_int_equal(r.status, MLO_EINVAL);
    assert_non_null(strstr(r.err.message, "the criterion second-order reads calibration data"));
    clear(&r);
    run_step(&r, m, 0, "{\"criterion\": \"l1\", \"reconstruct\": \"none\", \"round\": 1}", 1, 0);
    assert_int_equal(r.status, MLO_OK);
    clear(&r);
    run_step(&r, m, 0,
             "{\"criterion\": \"bn-scale\", \"reconstruct\": \"none\", \"round\": 1, \"remove\": \"20%\"}", 1,
             0);
    assert_int_equal(r.status, MLO_OK); /* its scales are not folded away before they rank */
    clear(&r);
    run_step(&r, m, 8, "{\"remove\": \"99.9%\"}", 1, 0);
    assert_int_equal(r.status, MLO_EINVAL);
    assert_non_null(strstr(r.err.message, "99.9% of the multiply-adds cannot go"));
    clear(&r);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune_step__what_is_redundant_goes_without_a_trace),
        cmocka_unit_test(test_prune_step__threads_and_batch_leave_no_trace),
        cmocka_unit_test(test_prune_step__what_is_rounded_behind_it_has_the_same_bytes),
        cmocka_unit_test(test_prune_step__turns_channels_that_nothing_but_sums_touch),
        cmocka_unit_test(test_prune_turn__leaves_the_function_as_it_was),
        cmocka_unit_test(test_prune_turn__turns_what_is_inside_heads),
        cmocka_unit_test(test_prune_turn__orders_heads_by_what_was_observed),
        cmocka_unit_test(test_prune_step__takes_what_heads_do_not_need),
        cmocka_unit_test(test_prune_step__turns_heads_and_the_channels_in_front_of_them),
        cmocka_unit_test(test_prune_step__takes_more_where_outputs_suffer_less),
        cmocka_unit_test(test_prune_step__weighs_all_groups_on_one_scale),
        cmocka_unit_test(test_prune_step__judges_by_what_nothing_was_fitted_on),
        cmocka_unit_test(test_prune_step__prunes_where_outputs_have_no_rows),
        cmocka_unit_test(test_prune_step__layers_are_fitted_to_sums_in_order),
        cmocka_unit_test(test_prune_step__ranks_by_norms_what_nothing_observes),
        cmocka_unit_test(test_prune_step__fits_where_rows_went_too),
        cmocka_unit_test(test_prune_step__says_what_it_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
