/* Private to products in 16-bit fixed point: how models that are stored in float16 or bfloat16 are computed
 * where the CPU multiplies pairs of 16-bit integers twice as fast as float32 (AVX-512 VNNI) and has no FP16.
 * Kernels for AVX2 give the same bits, no faster than float32.
 *
 * Values of x are numbers of at most TILE_FIXED_X times a unit, which is that of a pixel or row where an
 * output reads one of them, else of a line of pixels: the largest of its finite values / TILE_FIXED_X.
 * Weights are numbers of at most TILE_FIXED_W times their column's scale. Products are summed in int32,
 * exactly: as many as cannot leave its range for any x (the step's `run`, which follows from the weights),
 * then in float32 times the unit.
 *
 * Against the exact sum of the products of the operands: with X the largest |x| of the output's lines and W
 * the largest |w| of its column, both operands err by half a unit, so the error is at most
 * sum |w| X / (2 TILE_FIXED_X) + sum |x| W / (2 TILE_FIXED_W) + (a term of both) + what adding
 * taps * ceil(a tap's depth / run) float32 numbers rounds. A float16 x errs by 2^-12 of itself: fixed point
 * errs less on values above an eighth of the line's largest one, and more on smaller ones, so an error is
 * small next to the sum's largest terms. (The weights of a float16 model are exact in FP16; here they err by
 * 2^-13 of the column's largest.)
 *
 * A line is *special*, and its unit negative, where it has values that are infinite or NaN, which are codes
 * of their own, or so large ones that sums would leave float32. A row that reads one is computed by itself,
 * in float32 (tile_fixed_careful); all others are what they are without it. An infinity times a weight that
 * rounds to 0 is NaN. */
#ifndef MLO_ENGINES_CPU_FAST_TILE_FIXED_IMPL_H
#define MLO_ENGINES_CPU_FAST_TILE_FIXED_IMPL_H

#include "engines/cpu/fast/tile_impl.h"

enum {
    TILE_FIXED_X = 16383,
    TILE_FIXED_W = 4095,
    TILE_FIXED_INFINITE = INT16_MAX, /* and its negative */
    TILE_FIXED_NAN = INT16_MIN,
    TILE_FIXED_BLOCK = 16, /* elements; as many products never leave int32 */
};
_Static_assert(2LL * TILE_FIXED_BLOCK * TILE_FIXED_W * TILE_FIXED_X <= INT32_MAX, "a run of two blocks");

/* What a line or column with smaller values than these has for its largest: what they are divided by is no
 * subnormal number. Above MOST a line is special: 2^31 of its units times another line's number must be
 * finite. */
#define TILE_FIXED_LEAST 0x1p-110f
#define TILE_FIXED_MOST 0x1p90f

/* NULL: there are none for that instruction set. */
const struct tile_kernels *tile_kernels_fixed(enum mlo_isa isa);
extern const struct tile_kernels tile_fixed_avx2, tile_fixed_vnni;

/* `pixels` times `channels` floats, one behind the other, as numbers of a unit, which is returned (negative:
 * the line is special); a pixel is followed by zeros up to `padded`. */
typedef float tile_fixed_line_fn(const float *x, size_t pixels, size_t channels, size_t padded, int16_t *out);
tile_fixed_line_fn *tile_fixed_line_for(enum mlo_isa isa);
tile_fixed_line_fn tile_fixed_line_avx2, tile_fixed_line_avx512;

/* A tile of one row, any width and any line: in float32. */
tile_fn tile_fixed_careful;

#endif
