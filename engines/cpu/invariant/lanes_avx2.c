/* Elementwise kernels for AVX2. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "engines/cpu/invariant/lanes_impl.h"

#define SIMD_LANES 4
#define SIMD_TARGET "avx2,fma"
#include "engines/cpu/fast/simd_begin.inc"

#include "engines/cpu/invariant/loops.inc"

#include "engines/cpu/invariant/doubles.inc"

#include "engines/cpu/invariant/finish.inc"

#include "engines/cpu/invariant/sigmoid.inc"

#include "engines/cpu/invariant/lanes.inc"

#include "engines/cpu/fast/simd_end.inc"

const struct inv_lanes inv_lanes_avx2 = INV_LANES;
