/* Attention as exporters write it is one step, and right: against the reference engine over shapes, strides,
 * masks, quantization around it; and what only looks like it is left alone. */
#include "qhelpers.h"

struct form {
    int64_t batch, heads, queries, depth;
    int mask;  /* 0: none, 1: [b,1,1,n], 2: [n,n], 3: [b,h,n,n], 4: [h,n,1], 5: a row is masked as a whole */
    int scale; /* 0: none, 1: Div behind, 2: Mul behind, 3: Mul of Q and of K^T before */
    bool plain_k, quantize, keep_order;
};

static struct mlo_value *transpose(struct net *n, struct mlo_value *x, int a, int b, int c, int d)
{
    struct mlo_value *y = net_op(n, "Transpose", x, NULL, NULL);
    assert_true(mlo_node_set_ints(y->producer, "perm", (int64_t[]){a, b, c, d}, 4));
    return y;
}

static struct mlo_value *split_heads(struct net *n, struct mlo_value *x, const struct form *f)
{
    return net_op(n, "Reshape", x, net_ints(n, 4, (int64_t[]){0, 0, f->heads, f->depth}), NULL);
}

static struct mlo_value *mask_of(struct net *n, const struct form *f)
{
    int64_t q = f->queries,
            dims[][4] = {{0},   {f->batch, 1, 1, q}, {q, q}, {f->batch, f->heads, q, q}, {f->heads, q, 1},
                         {q, q}};
    static const int ranks[] = {0, 4, 2, 4, 3, 2};
    struct mlo_value *m = net_floats(n, ranks[f->mask], dims[f->mask], 3.0f);
    float *x = m->constant->data;
    if (f->mask == 5)
        for (int64_t i = 0; i < q; i++)
            x[q + i] = -INFINITY;
    else if (f->mask != 4) /* a whole row far from 0 would lose its digits, in any order of work */
        for (size_t i = 0; i < mlo_tensor_count(m->constant); i += 3)
            x[i] = f->mask == 2 && i % 2 ? -INFINITY : -10000.0f;
    return m;
}

static bool one_step(const json_t *d)
{
    size_t i;
    json_t *node;
    bool found = false;
    json_array_foreach(json_object_get(d, "nodes"), i, node)
    {
        const char *impl = mlo_json_str(node, "impl", "");
        found |= strcmp(impl, "attention") == 0;
        if (strncmp(impl, "onednn", 6) == 0 || strcmp(mlo_json_str(node, "op", ""), "Softmax") == 0)
            return false;
    }
    return found;
}

static void try_form(const struct form *f, unsigned threads)
{
    char what[160];
    snprintf(what, sizeof what, "batch %d heads %d queries %d depth %d mask %d scale %d%s%s%s", (int)f->batch,
             (int)f->heads, (int)f->queries, (int)f->depth, f->mask, f->scale,
             f->plain_k ? ", K as it is" : "", f->quantize ? ", quantized" : "",
             f->keep_order ? ", no Transpose behind" : "");
    struct net n = net_new(11);
    int64_t dims[] = {f->batch, f->queries, f->heads * f->depth}, w[] = {dims[2], dims[2]};
    struct mlo_value *x = net_input(&n, "x", 3, dims), *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = split_heads(
            &n, net_op(&n, "MatMul", x, net_floats(&n, 2, w, 1.5f / sqrtf((float)dims[2])), NULL), f);
    struct mlo_value *q = transpose(&n, part[0], 0, 2, 1, 3), *v = transpose(&n, part[2], 0, 2, 1, 3);
    struct mlo_value *k = f->plain_k ? transpose(&n, transpose(&n, part[1], 0, 2, 1, 3), 0, 1, 3, 2)
                                     : transpose(&n, part[1], 0, 2, 3, 1);
    struct mlo_value *root = net_scalar(&n, MLO_FLOAT32, sqrt((double)f->depth));
    if (f->scale == 3) {
        struct mlo_value *half = net_scalar(&n, MLO_FLOAT32, 0.7);
        q = net_op(&n, "Mul", q, half, NULL);
        k = net_op(&n, "Mul", half, k, NULL);
    }
    struct mlo_value *s = net_op(&n, "MatMul", q, k, NULL);
    if (f->scale == 1)
        s = net_op(&n, "Div", s, root, NULL);
    else if (f->scale == 2)
        s = net_op(&n, "Mul", net_scalar(&n, MLO_FLOAT32, 0.25), s, NULL);
    if (f->mask)
        s = net_op(&n, "Add", s, mask_of(&n, f), NULL);
    s = net_op(&n, "Softmax", s, NULL, NULL);
    struct mlo_value *y = net_op(&n, "MatMul", s, v, NULL);
    if (f->quantize)
        y = qdq(&n, y, 0.01f, 3, MLO_INT8);
    if (!f->keep_order)
        y = transpose(&n, y, 0, 2, 1, 3);
    net_finish(&n, y);
    struct mlo_tensor in = random_tensor(3, dims, 5);
    struct mlo_compile_options o = {.threads = threads};
    json_t *d = NULL;
    struct mlo_tensor want = run_model("reference", n.model, &o, &in, NULL);
    struct mlo_tensor got = run_model("cpu", n.model, &o, &in, &d);
    if (!one_step(d))
        fail_with_plan(d, what, "it is not one step");
    for (size_t i = 0; i < mlo_tensor_count(&want); i++) {
        double a = mlo_tensor_get_f64(&got, i), b = mlo_tensor_get_f64(&want, i);
        double tolerance = f->quantize ? 0.0101 : 2e-5 * (1 + fabs(b));
        if (isnan(b) ? !isnan(a) : !(fabs(a - b) <= tolerance))
            fail_msg("%s: element %zu is %g, the reference has %g", what, i, a, b);
    }
    json_decref(d);
    mlo_tensor_clear(&in);
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&got);
    mlo_model_free(n.model);
}

static void test_attention__shapes(void **state)
{
    MLO_UNUSED(state);
    static const int64_t sizes[][4] = {{1, 2, 7, 8},   {2, 3, 33, 16}, {1, 1, 1, 4},  {1, 4, 64, 64},
                                       {2, 2, 65, 20}, {1, 2, 130, 9}, {3, 1, 6, 33}, {1, 12, 16, 32}};
    for (size_t i = 0; i < MLO_COUNT(sizes); i++)
        for (unsigned threads = 1; threads <= 3; threads += 2) {
            struct form f = {sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], (int)i % 4,
                             (int)i % 3,  i % 2 == 1,  false,       i % 3 == 0};
            try_form(&f, threads);
        }
}

static void test_attention__masks_and_scales(void **state)
{
    MLO_UNUSED(state);
    for (int mask = 0; mask < 6; mask++)
        for (int scale = 0; scale < 4; scale++) {
            struct form f = {2, 3, 19, 16, mask, scale, mask % 2 == 0, false, scale % 2 == 0};
            try_form(&f, 2);
        }
}

static void test_attention__quantized_result(void **state)
{
    MLO_UNUSED(state);
    for (int order = 0; order < 2; order++)
        for (int64_t depth = 5; depth <= 37; depth += 16) {
            struct form f = {2, 3, 19, depth, 1, 1, false, true, order == 1};
            try_form(&f, 1);
        }
}

/* Probabilities that are an output, a Softmax over another axis, scores that somebody else reads. */
static void test_attention__look_alikes(void **state)
{
    MLO_UNUSED(state);
    for (int kind = 0; kind < 4; kind++) {
        struct net n = net_new(11);
        int64_t dims[] = {2, 3, 8, 8};
        struct mlo_value *x = net_input(&n, "x", 4, dims), *k = net_floats(&n, 4, dims, 1.0f);
        struct mlo_value *s = net_op(&n, "MatMul", x, k, NULL), *p = net_op(&n, "Softmax", s, NULL, NULL);
        if (kind == 1)
            assert_true(mlo_node_set_i(p->producer, "axis", 2));
        struct mlo_value *y = kind == 3 ? net_op(&n, "MatMul", x, p, NULL) : net_op(&n, "MatMul", p, x, NULL);
        if (kind == 2)
            y = net_op(&n, "Add", y, s, NULL);
        if (kind == 0) {
            net_output(&n, p);
            y = p->uses[0].node->outputs[0];
        }
        net_output(&n, y);
        MUST(mlo_graph_infer(n.graph, err));
        struct mlo_tensor in = random_tensor(4, dims, 5);
        struct mlo_compile_options o = {.threads = 1};
        json_t *d = NULL;
        assert_engines_agree(&n, &o, &in, 2e-5f, "look-alike", &d);
        assert_false(one_step(d));
        json_decref(d);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* A mask with more heads or rows than the scores have: the sum is repeated over them. */
static void test_attention__mask_that_repeats_scores(void **state)
{
    MLO_UNUSED(state);
    for (int kind = 0; kind < 3; kind++) {
        struct net n = net_new(11);
        int64_t dims[] = {1, 1, kind == 1 ? 1 : 7, 8}, k[] = {1, 1, 8, 9}, v[] = {1, 1, 9, 5},
                m[] = {kind == 2 ? 2 : 1, kind == 0 ? 3 : 1, 7, 9};
        struct mlo_value *x = net_input(&n, "x", 4, dims);
        struct mlo_value *s = net_op(&n, "MatMul", x, net_floats(&n, 4, k, 1.0f), NULL);
        s = net_op(&n, "Add", s, net_floats(&n, 4, m, 1.0f), NULL);
        s = net_op(&n, "Softmax", s, NULL, NULL);
        net_finish(&n, net_op(&n, "MatMul", s, net_floats(&n, 4, v, 1.0f), NULL));
        struct mlo_tensor in = random_tensor(4, dims, 5);
        struct mlo_compile_options o = {.threads = 1};
        assert_engines_agree(&n, &o, &in, 2e-5f, "a mask that repeats scores", NULL);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* The tests above on the instruction sets below this machine's. */
static void test_attention__avx2(void **state)
{
    mlo_isa_override(MLO_ISA_AVX2);
    test_attention__masks_and_scales(state);
    test_attention__quantized_result(state);
    mlo_isa_override(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention__shapes),
        cmocka_unit_test(test_attention__masks_and_scales),
        cmocka_unit_test(test_attention__quantized_result),
        cmocka_unit_test(test_attention__look_alikes),
        cmocka_unit_test(test_attention__mask_that_repeats_scores),
        cmocka_unit_test(test_attention__avx2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
