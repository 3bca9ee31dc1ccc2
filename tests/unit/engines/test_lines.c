/* Convolutions that are computed line by line as one step, against the reference engine: few lines at a time,
 * on several threads, and out of a plan's file. */
#include "helpers.h"

struct block {
    int64_t in, first_kernel, first_stride, mid, kernel, stride, pad, dilation, out, high, wide;
    bool residual, dense_only; /* of x, behind the last; no depthwise one in the middle */
    const char *act;
};

static const struct block blocks[] = {
    {3, 3, 2, 16, 3, 1, 1, 1, 24, 37, 33, false, false, "Relu"}, /* a picture: planes */
    {4, 5, 1, 20, 3, 2, 1, 1, 7, 19, 21, false, false, "Relu"},
    {16, 1, 1, 48, 3, 1, 1, 1, 16, 23, 14, true, false, "Clip"},
    {16, 1, 1, 40, 3, 1, 1, 1, 16, 9, 28, true, false, "swish"},
    {24, 1, 1, 64, 3, 2, 1, 1, 32, 31, 17, false, false, "Clip"},
    {8, 1, 1, 33, 5, 2, 2, 1, 40, 26, 23, false, false, "swish"},
    {8, 1, 1, 12, 3, 1, 2, 2, 8, 18, 16, true, false, "Relu"},   /* dilation */
    {8, 1, 1, 12, 3, 1, 5, 5, 8, 7, 16, true, false, "Relu"},    /* kernels that are mostly outside */
    {8, 1, 1, 12, 2, 3, 0, 1, 8, 25, 36, false, false, "Relu"},  /* lines that nobody reads */
    {12, 3, 1, 17, 1, 1, 0, 1, 50, 11, 15, false, true, "Relu"}, /* no depthwise one */
    {8, 1, 1, 16, 3, 1, 1, 1, 8, 1, 40, true, false, "Relu"},    /* one line */
};

static struct mlo_value *activated(struct net *n, struct mlo_value *x, const char *act)
{
    if (strcmp(act, "swish") == 0)
        return net_op(n, "Mul", x, net_op(n, "Sigmoid", x, NULL, NULL), NULL);
    if (strcmp(act, "Clip") == 0)
        return net_op(n, "Clip", x, net_scalar(n, MLO_FLOAT32, 0), net_scalar(n, MLO_FLOAT32, 6));
    return net_op(n, act, x, NULL, NULL);
}

static struct net build(const struct block *b, uint32_t seed)
{
    struct net n = net_new(seed);
    struct mlo_value *x = net_input(&n, "x", 4, (int64_t[]){-1, b->in, b->high, b->wide}), *y;
    if (b->residual) /* in a value of the plan, not the caller's */
        x = net_op(&n, "Relu", x, NULL, NULL);
    struct conv_spec first = {b->in, b->mid, b->first_kernel, b->first_stride, b->first_kernel / 2, 1, 1,
                              0,     true};
    struct conv_spec middle = {b->mid, b->mid, b->kernel, b->stride, b->pad, b->dilation, b->mid, 0, true};
    struct conv_spec last = {b->mid, b->out, 1, 1, 0, 1, 1, 0, true};
    y = activated(&n, net_conv(&n, x, &first), b->act);
    if (!b->dense_only)
        y = activated(&n, net_conv(&n, y, &middle), b->act);
    y = net_conv(&n, y, &last);
    net_finish(&n, b->residual ? net_op(&n, "Add", y, x, NULL) : y);
    return n;
}

static void run(const struct block *b, const struct mlo_tensor *x, unsigned threads, const char *isa,
                const char *what)
{
    char impl[64];
    struct net n = build(b, 7);
    struct mlo_compile_options o = {.numerics = MLO_NUMERICS_FAST, .threads = threads, .batch = x->dims[0]};
    json_t *d = NULL;
    snprintf(impl, sizeof impl, "lines:%s f32", isa);
    assert_engines_agree(&n, &o, x, 2e-5f, what, &d);
    if (count_nodes(d, "Conv", "impl", impl) != 1)
        fail_with_plan(d, what, "its convolutions are not one step");
    json_decref(d);
    mlo_model_free(n.model);
}

static void run_all(enum mlo_isa isa, const char *name)
{
    if (mlo_isa_current() < isa)
        return;
    mlo_isa_override((int)isa);
    mlo_cpu_joins_all = true;
    for (size_t i = 0; i < MLO_COUNT(blocks); i++)
        for (unsigned threads = 1; threads <= 5; threads += 2)
            for (int64_t batch = 1; batch <= 3; batch += 2) {
                const struct block *b = &blocks[i];
                char what[96];
                snprintf(what, sizeof what, "%s, block %zu, %u threads, batch %d", name, i, threads,
                         (int)batch);
                struct mlo_tensor x =
                    random_tensor(4, (int64_t[]){batch, b->in, b->high, b->wide}, 11 + (uint32_t)i);
                run(b, &x, threads, name, what);
                mlo_tensor_clear(&x);
            }
    mlo_cpu_joins_all = false;
    mlo_isa_override(-1);
}

static void test_lines__agree_with_reference(void **state)
{
    MLO_UNUSED(state);
    run_all(MLO_ISA_AVX512, "avx512");
    run_all(MLO_ISA_AVX2, "avx2");
}

/* Large values and infinities stay where they belong: what is outside of the picture is not read. */
static void test_lines__edge_values(void **state)
{
    MLO_UNUSED(state);
    mlo_cpu_joins_all = true;
    const struct block b = {4, 1, 1, 8, 3, 1, 1, 1, 8, 12, 16, false, false, "Relu"};
    struct net n = build(&b, 3);
    struct mlo_tensor x = random_tensor(4, (int64_t[]){2, 4, 12, 16}, 5);
    float *at = x.data;
    at[0] = 1e30f;
    at[5 * 16 + 15] = -1e30f;
    at[12 * 16 - 1] = 1e-42f;
    struct mlo_compile_options o = {.numerics = MLO_NUMERICS_FAST, .threads = 2, .batch = 2};
    struct mlo_tensor want = run_model("reference", n.model, &o, &x, NULL);
    struct mlo_tensor got = run_model("cpu", n.model, &o, &x, NULL);
    for (size_t i = 0; i < mlo_tensor_count(&want); i++) {
        double a = mlo_tensor_get_f64(&got, i), b2 = mlo_tensor_get_f64(&want, i);
        if (!(fabs(a - b2) <= 2e-5 * (1.0 + fabs(b2)) || fabs(a - b2) <= 1e24))
            fail_msg("element %zu is %g, not %g", i, a, b2);
        if (fabs(b2) < 1e20 && fabs(a - b2) > 2e-5 * (1.0 + fabs(b2)))
            fail_msg("element %zu is %g, not %g", i, a, b2);
    }
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&x);
    mlo_model_free(n.model);
    mlo_cpu_joins_all = false;
}

/* What is observed, is an output or has two readers is there as a whole. */
static void test_lines__leave_what_others_read(void **state)
{
    MLO_UNUSED(state);
    mlo_cpu_joins_all = true;
    for (int form = 0; form < 2; form++) {
        struct net n = net_new(9);
        struct mlo_value *x = net_input(&n, "x", 4, (int64_t[]){1, 8, 10, 16});
        struct mlo_value *a = net_conv(&n, x, &(struct conv_spec){8, 16, 1, 1, 0, 1, 1, 0, true});
        struct mlo_value *b = net_conv(&n, a, &(struct conv_spec){16, 16, 3, 1, 1, 1, 16, 0, true});
        struct mlo_value *c = net_conv(&n, b, &(struct conv_spec){16, 16, 1, 1, 0, 1, 1, 0, true});
        if (form == 0)
            net_output(&n, b);
        net_finish(&n, form == 0
                           ? c
                           : net_op(&n, "Mul", c,
                                    net_op(&n, "Sqrt", net_op(&n, "Abs", b, NULL, NULL), NULL, NULL), NULL));
        struct mlo_tensor in = random_tensor(4, (int64_t[]){1, 8, 10, 16}, 2);
        struct mlo_compile_options o = {.numerics = MLO_NUMERICS_FAST, .threads = 1, .batch = 1};
        json_t *d = NULL;
        assert_engines_agree(&n, &o, &in, 2e-5f, "readers", &d);
        const bool wide = mlo_isa_current() >= MLO_ISA_AVX512;
        if (count_nodes(d, "Conv", "impl", wide ? "lines:avx512 f32" : "lines:avx2 f32") != 1 ||
            count_nodes(d, "Conv", "impl", wide ? "tile:avx512 f32" : "tile:avx2 f32") != 1)
            fail_with_plan(d, "readers", "a value that others read is gone");
        json_decref(d);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
    mlo_cpu_joins_all = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines__agree_with_reference),
        cmocka_unit_test(test_lines__edge_values),
        cmocka_unit_test(test_lines__leave_what_others_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
