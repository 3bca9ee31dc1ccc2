/* Fixed point: which kernels there are, and the one for lines that no unit fits. */
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

void tile_fixed_careful(const struct tile *t)
{
    const struct tile_epilogue *e = t->epilogue;
    for (size_t c = 0; c < t->columns; c++) {
        const int16_t *w = (const int16_t *)t->panel + 2 * c;
        const float scale = e->scale[c];
        float sum = e->bias[c];
        for (size_t tap = 0; tap < t->tap_count; tap++) {
            const int16_t *x = (const int16_t *)(const void *)(t->x0 + t->taps[tap]);
            const float unit = fabsf(t->units0[t->unit_taps[tap]]);
            for (size_t k = 0; k < t->depth; k++, w += 2 * t->width)
                for (size_t pair = 0; pair < 2; pair++)
                    sum += value_of(x[2 * k + pair]) * unit * ((float)w[pair] * scale);
        }
        if (e->residual_dtype != MLO_DTYPE_NONE)
            sum += ((const float *)(const void *)t->residual)[c];
        sum = e->high < sum ? e->high : sum; /* a NaN stays */
        sum = e->low > sum ? e->low : sum;
        ((float *)(void *)t->y)[c] = sum;
    }
}
