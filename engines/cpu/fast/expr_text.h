/* The texts that generated kernels begin with: simd.inc and vecmath.inc, in that order. */
#ifndef MLO_ENGINES_CPU_FAST_EXPR_TEXT_H
#define MLO_ENGINES_CPU_FAST_EXPR_TEXT_H

#include "base/embed.h"

extern const struct mlo_embedded_file fast_kernel_texts[];
extern const size_t fast_kernel_texts_count;

#endif
