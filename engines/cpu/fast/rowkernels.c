/* Which kernels on rows a machine gets. */
#include "engines/cpu/fast/fast_impl.h"

const struct fast_row_kernels *fast_row_kernels_for(enum mlo_isa isa)
{
    return isa >= MLO_ISA_AVX512 ? &fast_row_kernels_avx512 : &fast_row_kernels_avx2;
}
