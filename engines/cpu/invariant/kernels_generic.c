/* The chains in plain C: fmaf is exact on every machine. */
#include <math.h>
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

enum { MR = 4, NR = 8, LANES = 8 };

static void tile_of(int rows, size_t depth, const float *const *a, const float *b, const size_t *offsets,
                    const float *start, float *c)
{
    for (int i = 0; start && i < rows; i++)
        for (int j = 0; j < NR; j++)
            c[i * NR + j] = start[i];
    for (size_t k = 0; k < depth; k++)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < NR; j++)
                c[i * NR + j] = fmaf(a[i][k], b[(offsets ? offsets[k] : k * NR) + (size_t)j], c[i * NR + j]);
}

static void tile(size_t depth, const float *const *rows, const float *b, const float *start, float *c)
{
    tile_of(MR, depth, rows, b, NULL, start, c);
}

static void tile_at(size_t depth, const float *const *rows, const float *b, const size_t *offsets,
                    const float *start, float *c)
{
    tile_of(MR, depth, rows, b, offsets, start, c);
}

static void row(size_t depth, const float *const *rows, const float *b, const float *start, float *c)
{
    tile_of(1, depth, rows, b, NULL, start, c);
}

#define INV_TARGET
#include "engines/cpu/invariant/columns.inc"

static void bordered(size_t lines, size_t before, size_t count, size_t pitch, const float *x, size_t x_pitch,
                     float *y)
{
    for (size_t i = 0; i < lines; i++, x += x_pitch, y += pitch)
        for (size_t j = 0; j < pitch; j++)
            y[j] = j >= before && j < before + count ? x[j - before] : 0.0f;
}

static void taps(size_t depth, const size_t *offsets, const float *w, float start, size_t count,
                 const float *x, float *y)
{
    for (size_t i = 0; i < count; i++) {
        float acc = start;
        for (size_t k = 0; k < depth; k++)
            acc = fmaf(w[k], x[offsets[k] + i], acc);
        y[i] = acc;
    }
}

const struct inv_kernels inv_generic = {.mr = MR,
                                        .nr = NR,
                                        .lanes = LANES,
                                        .block = 256,
                                        .tile = {tile},
                                        .tile_at = {tile_at},
                                        .row = row,
                                        .columns = columns,
                                        .taps = taps,
                                        .scale = scale,
                                        .bordered = bordered,
                                        .lines = lines};

const struct inv_kernels *inv_kernels_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512 ? &inv_avx512 : isa >= MLO_ISA_AVX2 ? &inv_avx2 : &inv_generic;
}
