/* Convolutions and Gemms in float16, and what must hold of their products whatever computes them. */
#ifndef MLO_TESTS_HALF_NETS_H
#define MLO_TESTS_HALF_NETS_H

#include "helpers.h"

static const struct mlo_compile_options two_threads = {.threads = 2};

/* NULL: as the machine is. */
static inline void set_fp16(const char *how)
{
    assert_int_equal(how ? setenv("MLOPT_FP16", how, 1) : unsetenv("MLOPT_FP16"), 0);
}

static inline void need_fp16(const char *how)
{
    need_isa(MLO_ISA_AVX2);
    set_fp16(how);
    if (cpu_half_current() == CPU_HALF_NONE)
        skip();
}

struct shape {
    int64_t batch, in, out, groups;
    int64_t size[2], kernel[2], stride[2], pads[4], dilation[2];
};

static inline int64_t out_size(const struct shape *s, int i)
{
    return (s->size[i] + s->pads[i] + s->pads[i + 2] - (s->kernel[i] - 1) * s->dilation[i] - 1) /
               s->stride[i] +
           1;
}

/* Of the products of one output, and of their operands' absolute values. */
struct sums {
    double products, absolute, x, w;
};

static inline struct sums sums_of(const struct shape *s, const struct mlo_tensor *x,
                                  const struct mlo_tensor *w, const int64_t at[4])
{
    int64_t in = s->in / s->groups, group = at[1] / (s->out / s->groups);
    struct sums sums = {0};
    for (int64_t i = 0; i < in; i++)
        for (int64_t p = 0; p < s->kernel[0] * s->kernel[1]; p++) {
            int64_t h = at[2] * s->stride[0] - s->pads[0] + p / s->kernel[1] * s->dilation[0];
            int64_t v = at[3] * s->stride[1] - s->pads[1] + p % s->kernel[1] * s->dilation[1];
            if (h < 0 || h >= s->size[0] || v < 0 || v >= s->size[1])
                continue;
            size_t from = (size_t)(((at[0] * s->in + group * in + i) * s->size[0] + h) * s->size[1] + v);
            double a = mlo_tensor_get_f64(x, from),
                   b = mlo_tensor_get_f64(w, (size_t)((at[1] * in + i) * s->kernel[0] * s->kernel[1] + p));
            sums.products += a * b;
            sums.absolute += fabs(a * b);
            sums.x += fabs(a);
            sums.w += fabs(b);
        }
    return sums;
}

/* What an arithmetic promises. */
struct promise {
    const char *precision; /* of the product in a plan's description */
    /* Of the error of an output of that depth, x below 1 and weights below `amplitude`. */
    double (*bound)(const struct sums *sums, double depth, double amplitude);
    double typical;                       /* the error of all outputs together, as a share of them */
    bool (*takes)(const struct shape *s); /* or NULL: all */
};

/* Every output is within the bound, and all together are nearer by far. */
static inline void check_conv(const struct shape *s, double amplitude, const struct promise *promise,
                              const char *what)
{
    struct net n = net_new(5);
    int64_t xd[] = {s->batch, s->in, s->size[0], s->size[1]},
            wd[] = {s->out, s->in / s->groups, s->kernel[0], s->kernel[1]};
    struct mlo_value *weights = net_numbers(&n, MLO_FLOAT16, 4, wd, -amplitude, amplitude);
    struct mlo_node *node = net_node(&n, "Conv", net_input_of(&n, MLO_FLOAT16, "x", 4, xd), weights, NULL);
    assert_true(mlo_node_set_ints(node, "strides", s->stride, 2));
    assert_true(mlo_node_set_ints(node, "pads", s->pads, 4));
    assert_true(mlo_node_set_ints(node, "dilations", s->dilation, 2));
    assert_true(mlo_node_set_i(node, "group", s->groups));
    net_finish(&n, net_cast(&n, node->outputs[0], MLO_FLOAT32));
    struct mlo_tensor x = random_tensor_of(MLO_FLOAT16, 4, xd, 7);
    json_t *d = NULL;
    struct mlo_tensor y = run_model("cpu", n.model, &two_threads, &x, &d);
    if (count_nodes(d, "Conv", "precision", promise->precision) != (!promise->takes || promise->takes(s)))
        fail_with_plan(d, what, "it is in another precision");
    json_decref(d);
    double depth = (double)(wd[1] * wd[2] * wd[3]), squares = 0, errors = 0;
    int64_t sizes[] = {s->batch, s->out, out_size(s, 0), out_size(s, 1)};
    size_t count = mlo_tensor_count(&y);
    assert_int_equal(count, (size_t)(sizes[0] * sizes[1] * sizes[2] * sizes[3]));
    for (size_t i = 0; i < count; i++) {
        int64_t at[4], rest = (int64_t)i;
        for (int k = 3; k >= 0; k--, rest /= sizes[k + 1])
            at[k] = rest % sizes[k];
        struct sums sums = sums_of(s, &x, weights->constant, at);
        double got = mlo_tensor_get_f64(&y, i), error = got - sums.products;
        double bound = promise->bound(&sums, depth, amplitude);
        if (!(fabs(error) <= bound))
            fail_msg("%s: element %zu is %.9g, exact is %.9g, the bound %g", what, i, got, sums.products,
                     bound);
        squares += sums.products * sums.products;
        errors += error * error;
    }
    if (errors > squares * promise->typical * promise->typical)
        fail_msg("%s: the error is %g of the result", what, sqrt(errors / squares));
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    mlo_model_free(n.model);
}

static const struct shape shapes[] = {
    {1, 64, 96, 1, {6, 9}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
    {2, 40, 24, 1, {8, 8}, {1, 1}, {2, 2}, {0, 0, 0, 0}, {1, 1}}, /* strided rows */
    {2, 3, 20, 1, {9, 11}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}, /* an odd number of channels */
    {1, 3, 16, 1, {20, 53}, {7, 7}, {2, 2}, {3, 3, 3, 3}, {1, 1}},
    {1, 1, 17, 1, {9, 8}, {5, 2}, {2, 1}, {2, 0, 1, 3}, {1, 1}},    /* one; uneven padding */
    {3, 16, 33, 1, {7, 5}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   /* two lines a tile, an odd one left */
    {1, 33, 48, 1, {14, 14}, {3, 3}, {1, 1}, {2, 2, 2, 2}, {2, 2}}, /* dilation */
    {2, 32, 64, 2, {6, 6}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},   /* groups */
    {1, 64, 64, 1, {12, 12}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}, /* what float32 does by Winograd */
    {1, 4, 1, 1, {5, 5}, {5, 5}, {1, 1}, {0, 0, 0, 0}, {1, 1}},     /* one output */
    {1, 3, 8, 1, {3, 3}, {3, 3}, {3, 3}, {4, 4, 4, 4}, {1, 1}},     /* outputs of padding only */
    {2, 80, 24, 1, {8, 8}, {1, 1}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
    {3, 24, 33, 1, {7, 5}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
    {2, 25, 20, 1, {9, 3}, {3, 1}, {1, 1}, {1, 0, 1, 0}, {1, 1}}, /* lines without a border between them */
    {2, 70, 20, 1, {9, 3}, {3, 1}, {1, 1}, {1, 0, 1, 0}, {1, 1}},
    {1, 160, 40, 1, {10, 9}, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}, /* deep taps */
    {1, 600, 20, 1, {1, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},  /* deep */
};

static inline void check_convs(const struct promise *promise)
{
    for (size_t i = 0; i < MLO_COUNT(shapes); i++) {
        char what[64];
        snprintf(what, sizeof what, "conv %zu", i);
        check_conv(&shapes[i], 0.5, promise, what);
    }
    check_conv(&shapes[0], 3e-4, promise, "weights of which many are subnormal");
    check_conv(&shapes[0], 60000, promise, "large weights");
}

/* y = x w of those sizes, with a bias, a residual and activations by `form`. */
static inline struct net gemm_net(enum mlo_dtype dtype, int64_t rows, int64_t depth, int64_t columns,
                                  int form)
{
    struct net n = net_new((uint32_t)(rows + columns));
    struct mlo_value *x = net_input_of(&n, dtype, "x", 2, (int64_t[]){rows, depth});
    struct mlo_value *y =
        net_op(&n, "MatMul", x, net_numbers(&n, dtype, 2, (int64_t[]){depth, columns}, -0.5, 0.5), NULL);
    if (form & 1)
        y = net_op(&n, "Add", y, net_numbers(&n, dtype, 1, &columns, -1, 1), NULL);
    if (form & 2)
        y = net_op(&n, "Relu", depth == columns ? net_op(&n, "Add", y, x, NULL) : y, NULL, NULL);
    if (form & 4)
        y = net_op(&n, "Mul", y, net_op(&n, "Sigmoid", y, NULL, NULL), NULL);
    net_finish(&n, y);
    return n;
}

/* Every number of rows and remainder of columns, and what is fused behind: nearer to the reference than the
 * reference's own roundings of values are. */
static inline void check_gemms(const char *precision, int64_t least_depth, int64_t deeper)
{
    static const int64_t columns[] = {1, 15, 16, 17, 32, 33, 70};
    for (int64_t rows = 1; rows <= 30; rows++)
        for (size_t c = 0; c < MLO_COUNT(columns); c++) {
            char what[64];
            int64_t depth = rows % 3 ? 1 + deeper + (rows * 7 + (int64_t)c * 5) % 40 : columns[c];
            snprintf(what, sizeof what, "gemm %lld x %lld x %lld", (long long)rows, (long long)columns[c],
                     (long long)depth);
            struct net n = gemm_net(MLO_FLOAT16, rows, depth, columns[c], (int)(c % 8));
            struct mlo_tensor in = random_tensor_of(MLO_FLOAT16, 2, (int64_t[]){rows, depth}, 9);
            json_t *d = NULL;
            assert_engines_agree(&n, &two_threads, &in, 6e-3f, what, &d);
            if (count_nodes(d, NULL, "precision", precision) != (depth >= least_depth))
                fail_with_plan(d, what, "it is in another precision");
            json_decref(d);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

/* Infinities and NaN pass where they should and nowhere else, with an odd depth too, whose groups lie next to
 * other rows'. What is finite in the model stays so, though its products leave a half's range. */
static inline void check_edge_values(int64_t depth)
{
    static const double edges[] = {INFINITY, -INFINITY, NAN, 0x1p-24, 65504, -65504, -0.0};
    enum { ROWS = 29, COLUMNS = 37 };
    int64_t dims[] = {ROWS, depth};
    for (int large = 0; large < 2; large++) {
        struct net n = gemm_net(MLO_FLOAT16, ROWS, depth, COLUMNS, 0);
        struct mlo_tensor in = random_tensor_of(MLO_FLOAT16, 2, dims, 9);
        for (size_t i = 0; i < MLO_COUNT(edges); i++)
            mlo_tensor_set_f64(&in, (3 * i + 1) * (size_t)depth + i, edges[i]);
        for (int64_t i = 0; large && i < ROWS * depth; i += 2) /* of both signs */
            mlo_tensor_set_f64(&in, (size_t)i, i % 4 ? 40000 : -40000);
        struct mlo_tensor want = run_model("reference", n.model, &two_threads, &in, NULL);
        struct mlo_tensor got = run_model("cpu", n.model, &two_threads, &in, NULL);
        for (size_t i = 0; i < mlo_tensor_count(&want); i++) {
            double a = mlo_tensor_get_f64(&got, i), b = mlo_tensor_get_f64(&want, i), size = 1;
            for (size_t k = 0; k < (size_t)depth; k++) {
                double v = mlo_tensor_get_f64(&in, i / COLUMNS * (size_t)depth + k);
                size += isfinite(v) ? fabs(v) : 0;
            }
            bool near_the_end = isinf(a) != isinf(b) && fabs(isinf(a) ? b : a) > 60000;
            if (!near_the_end && (isfinite(b) ? !(fabs(a - b) <= 0.01 * size)
                                  : isnan(b)  ? !isnan(a)
                                              : a != b))
                fail_msg("large %d, element %zu: %g, the reference has %g", large, i, a, b);
        }
        mlo_tensor_clear(&want);
        mlo_tensor_clear(&got);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

#endif
