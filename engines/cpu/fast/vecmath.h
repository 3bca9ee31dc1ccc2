/* Vectorised functions over rows of floats: activations and what else is computed one element at a time. */
#ifndef MLO_ENGINES_CPU_FAST_VECMATH_H
#define MLO_ENGINES_CPU_FAST_VECMATH_H

#include <stddef.h>

#include "engines/engines.h"

/* alpha and beta are the ONNX attributes of the same name unless said. The largest error against the exact
 * result of float32 input, in units in the last place, stands behind; 0.5: correctly rounded. */
enum fast_math {
    FAST_MATH_ABS,              /* 0 */
    FAST_MATH_NEG,              /* 0 */
    FAST_MATH_SQRT,             /* 0.5 */
    FAST_MATH_RECIPROCAL,       /* 0.5 */
    FAST_MATH_FLOOR,            /* 0 */
    FAST_MATH_CEIL,             /* 0 */
    FAST_MATH_ROUND,            /* 0: half to even */
    FAST_MATH_EXP,              /* 1.5 */
    FAST_MATH_LOG,              /* 2 */
    FAST_MATH_ERF,              /* 2.5 */
    FAST_MATH_SIGMOID,          /* 3 */
    FAST_MATH_TANH,             /* 2.5 */
    FAST_MATH_SOFTPLUS,         /* 3 */
    FAST_MATH_SOFTSIGN,         /* 2 */
    FAST_MATH_RELU,             /* 0 */
    FAST_MATH_LEAKY_RELU,       /* 0.5 */
    FAST_MATH_THRESHOLDED_RELU, /* 0 */
    FAST_MATH_CLIP,             /* 0; alpha is the lower bound, beta the upper */
    FAST_MATH_ELU,              /* 2.5 */
    FAST_MATH_SELU,             /* 3; beta is gamma */
    FAST_MATH_CELU,             /* 3.5 where x / alpha is small */
    FAST_MATH_HARD_SIGMOID,     /* 1, and 1e-7 absolute where alpha x + beta cancels */
    FAST_MATH_HARD_SWISH,       /* 2, and 1e-7 |x| where that cancels */
    FAST_MATH_SWISH,            /* 4 for alpha = 1, 2e-43 absolute below x = -88: x sigmoid(alpha x) */
    FAST_MATH_MISH,             /* 5, 2e-43 absolute below -88 */
    FAST_MATH_GELU,             /* by erf: 4 for x > -1, 4e-8 absolute below */
    FAST_MATH_GELU_TANH,        /* 8, or 1.6e-8 |x| */
    FAST_MATH_COUNT
};

/* y[i] = f(x[i]) for n elements; y may be x, else they do not overlap. NaN gives NaN; infinities and
 * denormals are exact limits, not flushed. Nothing outside of the n elements is read or written. */
typedef void fast_math_fn(const float *x, size_t n, float alpha, float beta, float *y);

struct fast_math_kernels {
    fast_math_fn *fn[FAST_MATH_COUNT];
};
/* Needs AVX2 and FMA at least, as the engine does. */
const struct fast_math_kernels *fast_math_kernels_for(enum mlo_isa isa);

extern const struct fast_math_kernels fast_math_kernels_avx2, fast_math_kernels_avx512;

#endif
