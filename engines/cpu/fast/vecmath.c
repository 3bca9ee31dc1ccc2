/* Which functions a machine gets. */
#include "engines/cpu/fast/vecmath.h"

const struct fast_math_kernels *fast_math_kernels_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512 ? &fast_math_kernels_avx512 : &fast_math_kernels_avx2;
}
