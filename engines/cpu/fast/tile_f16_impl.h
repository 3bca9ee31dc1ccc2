/* Private to products in FP16: the arithmetic of AVX512-FP16, for models that are stored in float16.
 *
 * A group is two halves, one behind the other in depth; a column has a lane for each, whose sums are added at
 * the end. Weights of a column are multiplied by a power of two so that they are below 1, values of x by one
 * so that the largest finite one is below 2^10: a lane adds TILE_F16_RUN products in FP16, each rounded once
 * to 11 bits, which stay below 2^15, and then goes to a float32 sum. So nothing overflows that is finite in
 * the model, and what is rounded to FP16's subnormal numbers is below 2^-33 of the largest product.
 *
 * Against the exact sum of the products of the rounded operands, with u = 2^-11 and s = |x| . |w| of an
 * output: the error is at most (1.02 TILE_F16_RUN u + depth 2^-24) s + depth 2^-32 max|x| max|w|
 * (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1 and 4.2: a run of n rounded sums errs
 * by at most n u / (1 - n u) of the sum of absolute values). Rounding x and w to halves adds at most 2.01 u
 * s; random signs leave it near sqrt(TILE_F16_RUN) u of the result. */
#ifndef MLO_ENGINES_CPU_FAST_TILE_F16_IMPL_H
#define MLO_ENGINES_CPU_FAST_TILE_F16_IMPL_H

#include "engines/cpu/fast/tile_impl.h"

enum { TILE_F16_RUN = 32 };

/* The same numbers, bit for bit, by the instructions and by AVX2 with F16C; a NaN may be another one. */
extern const struct tile_kernels tile_f16_native, tile_f16_emulated;
/* NULL: CPU_HALF_NONE. */
const struct tile_kernels *tile_kernels_f16(enum cpu_half half);
/* Whether kernels compute the numbers that tile_f16_emulated does, on tiles of all sizes with all kinds of
 * halves. */
bool tile_f16_agrees(const struct tile_kernels *kernels);

/* The largest absolute value of n floats that is finite, as its bits; 0: none. */
uint32_t tile_f16_largest(const float *x, size_t n);
/* What values of which that is the largest are multiplied by: a power of two. */
float tile_f16_scale(uint32_t largest);
/* out[i * padded + c] = half(x[i * channels + c] * scale), to nearest even; 0 for c from channels on. */
void tile_f16_rows(const float *x, size_t rows, size_t channels, size_t padded, float scale, uint16_t *out);

#endif
