/* Which kernels of attention a machine gets, and the scratch that they share. */
#include "engines/cpu/fast/attention.h"

static size_t pad(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

size_t attention_scratch(size_t keys, size_t depth, size_t width)
{
    return 4 * (depth * pad(keys) + keys * pad(width) +
                ATTENTION_ROWS * (pad(keys) + pad(depth) + pad(width)) + 16);
}

const struct attention_kernels *attention_kernels_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512 ? &attention_kernels_avx512 : &attention_kernels_avx2;
}
