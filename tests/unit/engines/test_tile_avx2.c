/* The same by the kernels for AVX2. */
#define TEST_ISA "avx2"
#include "test_tile.c"
