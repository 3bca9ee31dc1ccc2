/* The step that prunes: what is redundant goes without a trace, the bytes follow from the inputs alone, and
 * errors say what to do. */
#include "tests/unit/steps/prune_fixture.h"

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
