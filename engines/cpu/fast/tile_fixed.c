/* Fixed point: which kernels there are, and those for values that are not finite. */
#include <math.h>

#include "engines/cpu/fast/tile_fixed_impl.h"

const struct tile_kernels *tile_kernels_fixed(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512_VNNI ? &tile_fixed_vnni : isa >= MLO_ISA_AVX2 ? &tile_fixed_avx2 : NULL;
}

tile_fixed_line_fn *tile_fixed_line_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512_VNNI ? tile_fixed_line_avx512 : tile_fixed_line_avx2;
}

static float value_of(int16_t number)
{
    return number == TILE_FIXED_NAN         ? NAN
           : number == TILE_FIXED_INFINITE  ? INFINITY
           : number == -TILE_FIXED_INFINITE ? -INFINITY
                                            : (float)number;
}

static void careful(const struct tile *t, size_t rows)
{
    const struct tile_epilogue *e = t->epilogue;
    const size_t low = (rows + 1) / 2;
    for (size_t r = 0; r < rows; r++) {
        const size_t i = r < low ? r : r - low;
        const char *row = (r < low ? t->x0 : t->x1) + i * t->x_stride;
        const float *units = (r < low ? t->units0 : t->units1) + i * t->unit_step;
        for (size_t c = 0; c < t->columns; c++) {
            const int16_t *w = (const int16_t *)t->panel + 2 * c;
            float sum = 0.0f;
            for (size_t tap = 0; tap < t->tap_count; tap++) {
                const int16_t *x = (const int16_t *)(const void *)(row + t->taps[tap]);
                float unit = units[t->unit_taps[tap]];
                for (size_t k = 0; k < t->depth; k++, w += 2 * t->width)
                    for (size_t pair = 0; pair < 2; pair++)
                        sum += value_of(x[2 * k + pair]) * unit * (float)w[pair];
            }
            sum = fmaf(sum, e->scale[c], e->bias[c]);
            if (e->residual_dtype != MLO_DTYPE_NONE)
                sum += ((const float *)(const void *)(t->residual + r * t->residual_stride))[c];
            sum = e->high < sum ? e->high : sum; /* a NaN stays */
            sum = e->low > sum ? e->low : sum;
            ((float *)(void *)(t->y + r * t->y_stride))[c] = sum;
        }
    }
}

#define CAREFUL(ROWS)                                                                                        \
    static void careful_##ROWS(const struct tile *t)                                                         \
    {                                                                                                        \
        careful(t, ROWS);                                                                                    \
    }
CAREFUL(1)
CAREFUL(2)
CAREFUL(3)
CAREFUL(4)
CAREFUL(5)
CAREFUL(6)
CAREFUL(7)
CAREFUL(8)
CAREFUL(9)
CAREFUL(10)
CAREFUL(11)
CAREFUL(12)
CAREFUL(13)
CAREFUL(14)
tile_fn *const tile_fixed_careful[TILE_ROWS_MAX] = {careful_1,  careful_2,  careful_3,  careful_4, careful_5,
                                                    careful_6,  careful_7,  careful_8,  careful_9, careful_10,
                                                    careful_11, careful_12, careful_13, careful_14};
