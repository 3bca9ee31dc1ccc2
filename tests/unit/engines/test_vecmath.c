/* The vectorised functions against the C library in double, over floats of every exponent, and where it is
 * easy to be wrong: limits, denormals, tails of rows. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "engines/cpu/fast/vecmath.h"
#include "engines/engines_impl.h"
#include "helpers.h"

static double t_reciprocal(double x)
{
    return 1 / x;
}
static double t_sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
static double t_softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}
static double t_softsign(double x)
{
    return x / (1 + fabs(x));
}
static double t_relu(double x)
{
    return x < 0 ? 0 : x;
}
static double t_leaky(double x)
{
    return x < 0 ? (double)0.3f * x : x;
}
static double t_thresholded(double x)
{
    return isnan(x) ? 0 : x > (double)0.3f ? x : 0;
}
static double t_clip(double x)
{
    return x < -1.5 ? -1.5 : x > 6 ? 6 : x;
}
static double t_elu(double x)
{
    return x < 0 ? (double)0.3f * expm1(x) : x;
}
static double t_selu(double x)
{
    return (double)1.7f * t_elu(x);
}
static double t_celu(double x)
{
    return x < 0 ? (double)0.3f * expm1(x / (double)0.3f) : x;
}
static double t_hard_sigmoid(double x)
{
    double y = (double)0.3f * x + 0.5;
    return y < 0 ? 0 : y > 1 ? 1 : y;
}
static double t_hard_swish(double x)
{
    double y = x / 6 + 0.5;
    return x * (y < 0 ? 0 : y > 1 ? 1 : y);
}
static double t_swish(double x)
{
    return x * t_sigmoid(x);
}
static double t_mish(double x)
{
    return x * tanh(t_softplus(x));
}
static double t_gelu(double x)
{
    return 0.5 * x * erfc(-x * sqrt(0.5));
}
static double t_gelu_tanh(double x)
{
    return x * t_sigmoid(2 * 0.79788456080286536 * (x + 0.044715 * x * x * x));
}

/* An error is fine up to `ulps` of the exact result, or `absolute`, or `share` of |x|. */
static const struct function {
    const char *name;
    enum fast_math kind;
    double (*exact)(double);
    float alpha, beta;
    double ulps, absolute, share;
} functions[] = {
    {"abs", FAST_MATH_ABS, fabs, 0, 0, 0, 0, 0},
    {"sqrt", FAST_MATH_SQRT, sqrt, 0, 0, 0.5, 0, 0},
    {"reciprocal", FAST_MATH_RECIPROCAL, t_reciprocal, 0, 0, 0.5, 0, 0},
    {"floor", FAST_MATH_FLOOR, floor, 0, 0, 0, 0, 0},
    {"ceil", FAST_MATH_CEIL, ceil, 0, 0, 0, 0, 0},
    {"round", FAST_MATH_ROUND, rint, 0, 0, 0, 0, 0},
    {"exp", FAST_MATH_EXP, exp, 0, 0, 1.5, 0, 0},
    {"log", FAST_MATH_LOG, log, 0, 0, 2, 0, 0},
    {"erf", FAST_MATH_ERF, erf, 0, 0, 2.5, 0, 0},
    {"sigmoid", FAST_MATH_SIGMOID, t_sigmoid, 0, 0, 3, 0, 0},
    {"tanh", FAST_MATH_TANH, tanh, 0, 0, 2.5, 0, 0},
    {"softplus", FAST_MATH_SOFTPLUS, t_softplus, 0, 0, 3, 0, 0},
    {"softsign", FAST_MATH_SOFTSIGN, t_softsign, 0, 0, 2, 0, 0},
    {"relu", FAST_MATH_RELU, t_relu, 0, 0, 0, 0, 0},
    {"leaky relu", FAST_MATH_LEAKY_RELU, t_leaky, 0.3f, 0, 0.5, 0, 0},
    {"thresholded relu", FAST_MATH_THRESHOLDED_RELU, t_thresholded, 0.3f, 0, 0, 0, 0},
    {"clip", FAST_MATH_CLIP, t_clip, -1.5f, 6, 0, 0, 0},
    {"elu", FAST_MATH_ELU, t_elu, 0.3f, 0, 2.5, 0, 0},
    {"selu", FAST_MATH_SELU, t_selu, 0.3f, 1.7f, 3, 0, 0},
    {"celu", FAST_MATH_CELU, t_celu, 0.3f, 0, 3.5, 0, 0},
    {"hard sigmoid", FAST_MATH_HARD_SIGMOID, t_hard_sigmoid, 0.3f, 0.5f, 1, 1e-7, 0},
    {"hard swish", FAST_MATH_HARD_SWISH, t_hard_swish, 0, 0, 2, 0, 1e-7},
    {"swish", FAST_MATH_SWISH, t_swish, 1, 0, 4, 2e-43, 0},
    {"mish", FAST_MATH_MISH, t_mish, 0, 0, 5, 2e-43, 0},
    {"gelu", FAST_MATH_GELU, t_gelu, 0, 0, 4, 4e-8, 0},
    {"gelu by tanh", FAST_MATH_GELU_TANH, t_gelu_tanh, 0, 0, 8, 0, 1.6e-8},
};

static double ulp_of(double y)
{
    int e;
    frexp(y, &e);
    return ldexp(1, (e < -125 ? -125 : e) - 24);
}

static bool fits(const struct function *f, float x, float y, double *ulps)
{
    double want = f->exact((double)x), diff = fabs((double)y - want);
    *ulps = 0;
    if (isnan(want) || isnan(y))
        return isnan(want) && isnan(y);
    if (isinf((float)want) || isinf(y))
        return isinf((float)want) && isinf(y) && (y > 0) == (want > 0) ? true : fabs(want) > 3.402e38;
    *ulps = diff / ulp_of(want);
    return *ulps <= f->ulps || diff <= f->absolute || diff <= f->share * fabs((double)x);
}

static void sweep(const struct fast_math_kernels *kernels, const struct function *f)
{
    enum { BLOCK = 509 };
    float x[BLOCK], y[BLOCK];
    double worst = 0, worst_at = 0, ulps;
    size_t n = 0;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 30011) {
        uint32_t low = (uint32_t)bits;
        memcpy(&x[n++], &low, sizeof low);
        if (n < BLOCK)
            continue;
        kernels->fn[f->kind](x, n, f->alpha, f->beta, y);
        for (size_t i = 0; i < n; i++) {
            if (!fits(f, x[i], y[i], &ulps))
                fail_msg("%s(%a = %g) is %g, not %g: %.2f ulp", f->name, (double)x[i], (double)x[i],
                         (double)y[i], f->exact((double)x[i]), ulps);
            if (ulps > worst)
                worst = ulps, worst_at = (double)x[i];
        }
        n = 0;
    }
    print_message("%-18s %.2f ulp at %g\n", f->name, worst, worst_at);
}

static void points(const struct fast_math_kernels *kernels, const struct function *f)
{
    const float x[] = {0.0f,     -0.0f,    FLT_TRUE_MIN, -FLT_TRUE_MIN, FLT_MIN,   -FLT_MIN,   FLT_MAX,
                       -FLT_MAX, INFINITY, -INFINITY,    NAN,           1.0f,      -1.0f,      0.5f,
                       1.5f,     2.5f,     -0.5f,        -1.5f,         88.72283f, 88.7229f,   -87.34f,
                       -103.9f,  -104.1f,  0.92f,        0.9199999f,    0.63f,     0.6299999f, -3.0f,
                       3.0f,     20.0f,    1.000001f,    0.9999999f,    -1e-20f,   1e-20f,     4.1f,
                       9.0f,     -9.0f,    30.0f,        -30.0f};
    float y[MLO_COUNT(x)];
    double ulps;
    kernels->fn[f->kind](x, MLO_COUNT(x), f->alpha, f->beta, y);
    for (size_t i = 0; i < MLO_COUNT(x); i++)
        if (!fits(f, x[i], y[i], &ulps))
            fail_msg("%s(%a = %g) is %g, not %g: %.2f ulp", f->name, (double)x[i], (double)x[i], (double)y[i],
                     f->exact((double)x[i]), ulps);
}

static void check(enum mlo_isa isa)
{
    need_isa(isa);
    const struct fast_math_kernels *kernels = fast_math_kernels_for(isa);
    for (size_t i = 0; i < MLO_COUNT(functions); i++) {
        sweep(kernels, &functions[i]);
        points(kernels, &functions[i]);
    }
}

static void test_vecmath__avx2_is_exact_enough(void **state)
{
    MLO_UNUSED(state);
    check(MLO_ISA_AVX2);
}

static void test_vecmath__avx512_is_exact_enough(void **state)
{
    MLO_UNUSED(state);
    check(MLO_ISA_AVX512);
}

/* Both compute alike, so that a test on one machine says something about the other. */
static void test_vecmath__widths_agree_bit_for_bit(void **state)
{
    MLO_UNUSED(state);
    float x[1000], a[1000], b[1000];
    need_isa(MLO_ISA_AVX512);
    for (int i = 0; i < 1000; i++)
        x[i] = (float)(i - 500) * 0.037f;
    for (int k = 0; k < FAST_MATH_COUNT; k++) {
        fast_math_kernels_avx2.fn[k](x, 1000, 0.3f, 0.7f, a);
        fast_math_kernels_avx512.fn[k](x, 1000, 0.3f, 0.7f, b);
        for (int i = 0; i < 1000; i++)
            if (memcmp(&a[i], &b[i], sizeof a[i]) != 0 && !(isnan(a[i]) && isnan(b[i])))
                fail_msg("function %d of %g is %a and %a", k, (double)x[i], (double)a[i], (double)b[i]);
    }
}

/* Any count, in place, and not one element more. */
static void test_vecmath__rows_of_any_length(void **state)
{
    MLO_UNUSED(state);
    const struct fast_math_kernels *kernels[] = {
        &fast_math_kernels_avx2, mlo_isa_current() >= MLO_ISA_AVX512 ? &fast_math_kernels_avx512 : NULL};
    for (int k = 0; k < 2 && kernels[k]; k++)
        for (size_t n = 0; n <= 40; n++) {
            float x[42];
            for (size_t i = 0; i < 42; i++)
                x[i] = -2.0f;
            kernels[k]->fn[FAST_MATH_ABS](x, n, 0, 0, x);
            for (size_t i = 0; i < 42; i++)
                assert_true(x[i] == (i < n ? 2.0f : -2.0f));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vecmath__avx2_is_exact_enough),
        cmocka_unit_test(test_vecmath__avx512_is_exact_enough),
        cmocka_unit_test(test_vecmath__widths_agree_bit_for_bit),
        cmocka_unit_test(test_vecmath__rows_of_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
