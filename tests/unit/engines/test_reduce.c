/* Reductions and softmax over rows and columns against the reference engine: sizes around the vectors', both
 * layouts, every opset's way to say the axes, infinities and NaN. */
#include "qhelpers.h"

/* As assert_close, and both may be NaN or the same infinity. */
static void assert_same(const struct mlo_tensor *got, const struct mlo_tensor *want, double tolerance,
                        const char *what)
{
    if (!mlo_tensor_same_shape(got, want) || got->dtype != want->dtype)
        fail_msg("%s: shapes differ", what);
    for (size_t i = 0; i < mlo_tensor_count(got); i++) {
        double a = mlo_tensor_get_f64(got, i), b = mlo_tensor_get_f64(want, i);
        if (isnan(a) && isnan(b))
            continue;
        if (a != b && !(fabs(a - b) <= tolerance * (1.0 + fabs(b))))
            fail_msg("%s: element %zu is %.9g, the reference has %.9g", what, i, a, b);
    }
}

static void compare(const struct net *n, const struct mlo_tensor *in, double tolerance, const char *impl,
                    const char *what)
{
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct mlo_compile_options o = {.threads = threads};
        json_t *d = NULL;
        struct mlo_tensor want = run_model("reference", n->model, &o, in, NULL);
        struct mlo_tensor got = run_model("cpu", n->model, &o, in, &d);
        assert_same(&got, &want, tolerance, what);
        if (impl && !count_nodes(d, NULL, "impl", impl))
            fail_msg("%s: it does not run as %s", what, impl);
        json_decref(d);
        mlo_tensor_clear(&want);
        mlo_tensor_clear(&got);
    }
}

static void spoil(struct mlo_tensor *t, int how)
{
    float *x = t->data;
    size_t n = mlo_tensor_count(t);
    for (size_t i = 0; i < n; i++) {
        size_t k = i % 41;
        if (how == 1 && k == 7)
            x[i] = -INFINITY;
        if (how == 2 && (k == 3 || i == n - 1))
            x[i] = NAN;
        if (how == 3 && k == 5)
            x[i] = INFINITY;
        if (how == 4)
            x[i] *= k % 2 ? 3e38f : 1e-40f;
        if (how == 5)
            x[i] = -INFINITY;
    }
}

static const char *const ops[] = {"ReduceMean", "ReduceSum", "ReduceMax",      "ReduceMin",
                                  "ReduceL1",   "ReduceL2",  "ReduceSumSquare"};

static struct mlo_value *reduce(struct net *n, const char *op, struct mlo_value *x, int count,
                                const int64_t *axes, bool keep, bool by_input)
{
    struct mlo_value *list = by_input && count ? net_ints(n, count, axes) : NULL;
    struct mlo_node *node = net_node(n, op, x, list, NULL);
    if (!by_input && count)
        assert_true(mlo_node_set_ints(node, "axes", axes, (size_t)count));
    assert_true(mlo_node_set_i(node, "keepdims", keep));
    return node->outputs[0];
}

static void check_reduce(size_t op, int rank, const int64_t *dims, int count, const int64_t *axes, int form,
                         int how, const char *impl)
{
    char what[96];
    bool sum = strcmp(ops[op], "ReduceSum") == 0;
    snprintf(what, sizeof what, "%s of %lldx%lldx%lld, axis %lld, form %d, %d", ops[op], (long long)dims[0],
             (long long)dims[1], (long long)dims[2], (long long)(count ? axes[0] : 99), form, how);
    struct net n = net_new(3);
    struct mlo_value *x = net_input(&n, "x", rank, dims);
    net_finish(&n, reduce(&n, ops[op], x, count, axes, form % 2, sum)); /* opset 17: ReduceSum by input */
    struct mlo_tensor in = random_tensor(rank, dims, 5);
    spoil(&in, how);
    /* sums cancel: their error is that of the largest part */
    compare(&n, &in, how == 4 ? 1e-3 : dims[1] * dims[2] > 1000 ? 2e-5 : 2e-6, impl, what);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_reduce__rows_and_columns_of_all_sizes(void **state)
{
    MLO_UNUSED(state);
    static const int64_t sizes[] = {1, 2, 7, 8, 15, 16, 17, 33, 64, 131};
    for (size_t op = 0; op < MLO_COUNT(ops); op++)
        for (size_t k = 0; k < MLO_COUNT(sizes); k++)
            for (int how = 0; how < (k % 3 == 0 ? 5 : 1); how++) {
                int64_t rows[] = {3, 5, sizes[k]}, columns[] = {2, 9, sizes[k]}, all[] = {2, sizes[k], 3};
                check_reduce(op, 3, rows, 1, (int64_t[]){-1}, (int)k, how, "reduction");
                check_reduce(op, 3, columns, 1, (int64_t[]){1}, (int)k, how, "reduction");
                check_reduce(op, 3, all, 2, (int64_t[]){2, 1}, (int)k, how, "reduction");
                check_reduce(op, 3, all, 0, NULL, (int)k, how, "reduction");
            }
}

static void test_reduce__long_and_split(void **state)
{
    MLO_UNUSED(state);
    for (size_t op = 0; op < MLO_COUNT(ops); op++) {
        check_reduce(op, 3, (int64_t[]){2, 3, 20011}, 1, (int64_t[]){2}, 0, 0, "reduction");
        check_reduce(op, 3, (int64_t[]){1, 700, 149}, 1, (int64_t[]){1}, 1, 0, "reduction");
        check_reduce(op, 3, (int64_t[]){1, 5000, 3}, 1, (int64_t[]){1}, 1, 0, "reduction");
        check_reduce(op, 3, (int64_t[]){4, 6, 5}, 2, (int64_t[]){0, 2}, 0, 0, NULL); /* apart in memory */
    }
}

/* Behind a convolution values are channels last. */
static void test_reduce__channels_last(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        int count;
        int64_t axes[3];
    } cases[] = {{1, {1}}, {2, {2, 3}}, {1, {3}}, {1, {2}}, {3, {1, 2, 3}}, {2, {0, 1}}, {1, {0}}};
    for (size_t k = 0; k < MLO_COUNT(cases); k++)
        for (int keep = 0; keep < 2; keep++)
            for (size_t op = 0; op < 3; op++) {
                char what[48];
                snprintf(what, sizeof what, "case %zu, keep %d, %s", k, keep, ops[op]);
                struct net n = net_new(3);
                int64_t dims[] = {2, 6, 5, 7};
                struct mlo_value *x = net_input(&n, "x", 4, dims);
                x = net_conv(&n, x, &(struct conv_spec){6, 19, 1, 1, 0, 1, 1, 5, true});
                x = reduce(&n, ops[op], x, cases[k].count, cases[k].axes, keep, op == 1);
                net_finish(&n, net_op(&n, "Relu", x, NULL, NULL));
                struct mlo_tensor in = random_tensor(4, dims, 5);
                compare(&n, &in, 1e-5, "reduction", what);
                mlo_tensor_clear(&in);
                mlo_model_free(n.model);
            }
}

/* The same kernels over all axes behind the channels, in both layouts. */
static void test_reduce__global_pools(void **state)
{
    MLO_UNUSED(state);
    static const char *const pools[] = {"GlobalAveragePool", "GlobalMaxPool"};
    static const int64_t channels[] = {1, 8, 19, 64, 131};
    for (size_t k = 0; k < MLO_COUNT(channels) * 2; k++)
        for (int rank = 3; rank <= 5; rank++)
            for (int how = 0; how < (rank == 4 ? 5 : 1); how++)
                for (int last = 0; last < (rank == 4 && how == 0 ? 2 : 1); last++) {
                    char what[96];
                    struct net n = net_new(3);
                    int64_t dims[] = {2, channels[k / 2], 5, 7, 3};
                    struct mlo_value *x = net_input(&n, "x", rank, dims);
                    snprintf(what, sizeof what, "%s of %lld channels, rank %d, data %d, last %d",
                             pools[k % 2], (long long)dims[1], rank, how, last);
                    if (last)
                        x = net_conv(&n, x, &(struct conv_spec){dims[1], 19, 1, 1, 0, 1, 1, 5, true});
                    net_finish(&n, net_op(&n, pools[k % 2], x, NULL, NULL));
                    struct mlo_tensor in = random_tensor(rank, dims, 5);
                    spoil(&in, how);
                    bool small = mlo_tensor_count(&in) <= 16384; /* the library has the others */
                    compare(&n, &in, how == 4 ? 1e-3 : 1e-5, small ? "reduction" : NULL, what);
                    mlo_tensor_clear(&in);
                    mlo_model_free(n.model);
                }
}

static void test_softmax__rows_of_all_widths(void **state)
{
    MLO_UNUSED(state);
    for (int64_t width = 1; width <= 150; width += width < 36 ? 1 : 19)
        for (int64_t rows = 1; rows <= 37; rows += 18)
            for (int how = 0; how < 6; how++)
                for (int log = 0; log < 2; log++) {
                    char what[96];
                    snprintf(what, sizeof what, "%lld x %lld, data %d, log %d", (long long)rows,
                             (long long)width, how, log);
                    if (rows != 19 && (how || log))
                        continue;
                    struct net n = net_new(3);
                    int64_t dims[] = {1, rows, width};
                    struct mlo_value *x = net_input(&n, "x", 3, dims);
                    net_finish(&n, net_op(&n, log ? "LogSoftmax" : "Softmax", x, NULL, NULL));
                    struct mlo_tensor in = random_tensor(3, dims, 5);
                    for (size_t i = 0; i < mlo_tensor_count(&in); i++)
                        ((float *)in.data)[i] *= how == 0 && rows == 19 ? 90.0f : 5.0f;
                    spoil(&in, how);
                    compare(&n, &in, 2e-6, "softmax", what);
                    mlo_tensor_clear(&in);
                    mlo_model_free(n.model);
                }
}

static void test_softmax__axes(void **state)
{
    MLO_UNUSED(state);
    for (int opset = 11; opset <= 13; opset += 2)
        for (int64_t axis = -3; axis < 3; axis++) {
            struct net n = net_of_opset(opset, 3);
            int64_t dims[] = {20, 9, 11};
            struct mlo_node *node = net_node(&n, "Softmax", net_input(&n, "x", 3, dims), NULL, NULL);
            assert_true(mlo_node_set_i(node, "axis", axis));
            net_finish(&n, node->outputs[0]);
            struct mlo_tensor in = random_tensor(3, dims, 5);
            compare(&n, &in, 2e-6, opset < 13 || axis == 2 || axis == -1 ? "softmax" : NULL, "axes");
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce__rows_and_columns_of_all_sizes),
        cmocka_unit_test(test_reduce__long_and_split),
        cmocka_unit_test(test_reduce__channels_last),
        cmocka_unit_test(test_reduce__global_pools),
        cmocka_unit_test(test_softmax__rows_of_all_widths),
        cmocka_unit_test(test_softmax__axes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
