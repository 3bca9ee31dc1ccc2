/* Element types and dense, row-major tensors. */
#ifndef MLO_GRAPH_TENSOR_H
#define MLO_GRAPH_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

/* The numbers are those of onnx.TensorProto.DataType. */
enum mlo_dtype {
    MLO_DTYPE_NONE = 0,
    MLO_FLOAT32 = 1,
    MLO_UINT8 = 2,
    MLO_INT8 = 3,
    MLO_UINT16 = 4,
    MLO_INT16 = 5,
    MLO_INT32 = 6,
    MLO_INT64 = 7,
    MLO_STRING = 8,
    MLO_BOOL = 9,
    MLO_FLOAT16 = 10,
    MLO_FLOAT64 = 11,
    MLO_UINT32 = 12,
    MLO_UINT64 = 13,
    MLO_COMPLEX64 = 14,
    MLO_COMPLEX128 = 15,
    MLO_BFLOAT16 = 16,
    MLO_FLOAT8E4M3FN = 17,
    MLO_FLOAT8E4M3FNUZ = 18,
    MLO_FLOAT8E5M2 = 19,
    MLO_FLOAT8E5M2FNUZ = 20,
    MLO_UINT4 = 21,
    MLO_INT4 = 22,
    MLO_DTYPE_COUNT,
    /* Values that hold values. They are no element types of ONNX, but let a sequence go wherever a tensor
     * goes: a tensor of rank 1 whose elements are tensors (see mlo_values_init). Kernels refuse them like any
     * type without a size. */
    MLO_SEQUENCE = 64,
    MLO_OPTIONAL = 65, /* of no or one element */
};

enum { MLO_MAX_RANK = 8, MLO_MAX_VALUES = 1 << 24 /* in a sequence */ };
/* The largest dim of tensors and static shapes: so that sums of a few never overflow. Products must be
 * checked. */
#define MLO_MAX_DIM ((int64_t)1 << 40)

struct mlo_dtype_info {
    enum mlo_dtype dtype;
    const char *name; /* "float32": numpy's names where numpy has one */
    unsigned bits;    /* per element; 0 for strings */
    bool is_float, is_signed, is_integer;
};
/* The row of the type table; NULL for a value outside of it or MLO_DTYPE_NONE. */
const struct mlo_dtype_info *mlo_dtype_info(enum mlo_dtype dtype);
/* "float32", or "unknown". Never NULL. */
const char *mlo_dtype_name(enum mlo_dtype dtype);
enum mlo_dtype mlo_dtype_parse(const char *name); /* MLO_DTYPE_NONE when unknown */

/* A dense row-major tensor. `data` is aligned to 64 bytes when made by mlo_tensor_init; sub-byte types
 * are packed low nibble first. Plain data: whoever made it owns it, as the maker's comment says. */
struct mlo_tensor {
    enum mlo_dtype dtype;
    int rank;                   /* 0: a scalar */
    int64_t dims[MLO_MAX_RANK]; /* >= 0 */
    void *data;
    size_t size_bytes;
    bool owned; /* mlo_tensor_clear frees data */
};

/* Number of elements, and bytes for them; false on overflow, a dim that is negative or above
 * MLO_MAX_DIM, or a type without size. */
MLO_MUST_USE bool mlo_shape_count(int rank, const int64_t *dims, size_t *count);
MLO_MUST_USE bool mlo_shape_bytes(enum mlo_dtype dtype, int rank, const int64_t *dims, size_t *bytes);

/* Makes *tensor own zeroed memory for that type and shape (64-byte aligned). */
MLO_MUST_USE enum mlo_status mlo_tensor_init(struct mlo_tensor *tensor, enum mlo_dtype dtype, int rank,
                                             const int64_t *dims, struct mlo_error *err);
/* The largest tensor that mlo_tensor_init makes in this process, in bytes; 0, as at the start: what fits this
 * machine's memory. A larger one is MLO_ETOOBIG. For processes that evaluate what strangers send. */
void mlo_tensor_set_limit(size_t max_bytes);
/* Frees what it owns and zeroes the struct. A zeroed or borrowed tensor is fine. */
void mlo_tensor_clear(struct mlo_tensor *tensor);
/* Makes *out own a sequence or optional (`kind`) of `count` empty slots, each to be filled with a tensor, or,
 * in an optional, a sequence; the struct's data is an array of them. */
MLO_MUST_USE enum mlo_status mlo_values_init(struct mlo_tensor *out, enum mlo_dtype kind, size_t count,
                                             struct mlo_error *err);
bool mlo_holds_values(enum mlo_dtype dtype); /* MLO_SEQUENCE or MLO_OPTIONAL */
/* The elements of a sequence or optional, mlo_tensor_count of them. */
struct mlo_tensor *mlo_values(const struct mlo_tensor *sequence);
/* A deep copy into *out, which owns it. */
MLO_MUST_USE enum mlo_status mlo_tensor_copy(const struct mlo_tensor *from, struct mlo_tensor *out,
                                             struct mlo_error *err);
size_t mlo_tensor_count(const struct mlo_tensor *tensor); /* elements */
/* Rows [at, at+rows) of the first axis, borrowed. */
struct mlo_tensor mlo_tensor_rows(const struct mlo_tensor *all, int64_t at, int64_t rows);
bool mlo_tensor_same_shape(const struct mlo_tensor *a, const struct mlo_tensor *b);
/* Element i as double or int64, from any numeric type (conversion by value; saturating for integers). */
double mlo_tensor_get_f64(const struct mlo_tensor *tensor, size_t i);
int64_t mlo_tensor_get_i64(const struct mlo_tensor *tensor, size_t i);
/* Stores with the type's conversion (round half to even for integers, saturating). */
void mlo_tensor_set_f64(struct mlo_tensor *tensor, size_t i, double value);
/* "float32[1,3,32,32]" into the caller's buffer, which is returned. */
char *mlo_tensor_describe(const struct mlo_tensor *tensor, char *out, size_t size);

/* IEEE half and bfloat16, round to nearest even. */
float mlo_f16_to_f32(uint16_t h);
uint16_t mlo_f32_to_f16(float f);
float mlo_bf16_to_f32(uint16_t h);
uint16_t mlo_f32_to_bf16(float f);

#endif
