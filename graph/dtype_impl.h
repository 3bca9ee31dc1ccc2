/* Conversions that graph/ shares between its files. */
#ifndef MLO_GRAPH_DTYPE_IMPL_H
#define MLO_GRAPH_DTYPE_IMPL_H

#include "graph/tensor.h"

/* The four float8 types of ONNX, round to nearest even, saturating. */
float mlo_f8_to_f32(enum mlo_dtype dtype, uint8_t bits);
uint8_t mlo_f32_to_f8(enum mlo_dtype dtype, float value);
/* The same, but what is too large becomes infinity, or NaN where there is none. */
uint8_t mlo_f32_to_f8_overflow(enum mlo_dtype dtype, float value);
bool mlo_dtype_is_float8(enum mlo_dtype dtype);
/* Truncates towards zero, saturating; NaN becomes 0. */
int64_t mlo_saturate_i64(double value);
/* Stores an integer in an integer (or bool) element, cutting off what does not fit; floats get its value. */
void mlo_store_i64(struct mlo_tensor *tensor, size_t i, int64_t value);

#endif
