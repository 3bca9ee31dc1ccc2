/* Comparisons, logic, and Where. */
#include <math.h>

#include "graph/ops/ops_impl.h"

static enum mlo_status infer_to_bool(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    out[0].dtype = MLO_BOOL;
    enum mlo_status status = mlo_op_broadcast(mlo_op_in(node, 0), mlo_op_in(node, 1), &out[0], err);
    out[0].dtype = MLO_BOOL;
    return status;
}

/* Bit 0: less, bit 1: equal, bit 2: greater; a NaN is none of them. */
static unsigned relation(const struct mlo_tensor *a, size_t i, const struct mlo_tensor *b, size_t k)
{
    if (mlo_dtype_info(a->dtype)->is_float) {
        double x = mlo_tensor_get_f64(a, i), y = mlo_tensor_get_f64(b, k);
        return isnan(x) || isnan(y) ? 0 : x < y ? 1 : x == y ? 2 : 4;
    }
    int64_t x = mlo_tensor_get_i64(a, i), y = mlo_tensor_get_i64(b, k);
    return x < y ? 1 : x == y ? 2 : 4;
}

static const struct {
    const char *op;
    unsigned accepted; /* relations, for comparisons */
    unsigned truth;    /* for logic: bit (2 a + b) of the result */
} functions[] = {
    {"Equal", 2, 0}, {"Greater", 4, 0},     {"GreaterOrEqual", 6, 0},
    {"Less", 1, 0},  {"LessOrEqual", 3, 0}, {"And", 0, 8},
    {"Or", 0, 14},   {"Xor", 0, 6},
};

static enum mlo_status eval_compare(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t f = 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    while (f < MLO_COUNT(functions) && strcmp(functions[f].op, node->op_type) != 0)
        f++;
    bool logic = functions[f].truth != 0;
    if (in[0]->dtype != in[1]->dtype || (logic && in[0]->dtype != MLO_BOOL) ||
        !mlo_dtype_bytes(in[0]->dtype) || in[0]->dtype == MLO_COMPLEX64 || in[0]->dtype == MLO_COMPLEX128) {
        status = mlo_op_bad_dtype(in[1]->dtype, err);
        goto out;
    }
    struct mlo_strides s;
    mlo_strides_init(&s, out[0], in[0], in[1]);
    for (size_t i = 0; i < out[0]->size_bytes; i++, mlo_strides_next(&s)) {
        uint8_t *to = (uint8_t *)out[0]->data + i;
        if (logic)
            *to = functions[f].truth >>
                      (2 * mlo_tensor_get_i64(in[0], s.offset[0]) + mlo_tensor_get_i64(in[1], s.offset[1])) &
                  1;
        else
            *to = (functions[f].accepted & relation(in[0], s.offset[0], in[1], s.offset[1])) != 0;
    }
out:
    return status;
}

static enum mlo_status infer_where(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *cond = mlo_op_in(node, 0), *x = mlo_op_in(node, 1), *y = mlo_op_in(node, 2);
    if ((cond->dtype && cond->dtype != MLO_BOOL) || (x->dtype && y->dtype && x->dtype != y->dtype)) {
        status =
            mlo_error_set(err, MLO_EINVAL, "Where of %s, %s and %s; it takes bool and two of the same type",
                          mlo_dtype_name(cond->dtype), mlo_dtype_name(x->dtype), mlo_dtype_name(y->dtype));
        goto out;
    }
    MLO_TRY(mlo_op_broadcast(cond, x, &out[0], err));
    MLO_TRY(mlo_op_broadcast(&out[0], y, &out[0], err));
    out[0].dtype = x->dtype ? x->dtype : y->dtype;
out:
    return status;
}

static enum mlo_status eval_where(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    size_t width = mlo_dtype_bytes(out[0]->dtype);
    if (!width) {
        status = mlo_op_bad_dtype(out[0]->dtype, err);
        goto out;
    }
    struct mlo_strides s, cond;
    mlo_strides_init(&s, out[0], in[1], in[2]);
    mlo_strides_init(&cond, out[0], in[0], in[0]);
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++, mlo_strides_next(&s), mlo_strides_next(&cond)) {
        int pick = ((const uint8_t *)in[0]->data)[cond.offset[0]] ? 0 : 1;
        memcpy((char *)out[0]->data + i * width, (const char *)in[1 + pick]->data + s.offset[pick] * width,
               width);
    }
out:
    return status;
}

enum { FLAGS = MLO_OP_PURE | MLO_OP_ELEMENTWISE };
#define COMPARE(name, since)                                                                                 \
    {                                                                                                        \
        "", name, since, infer_to_bool, eval_compare, FLAGS, 2, 2, 1, 1                                      \
    }

static const struct mlo_op rows[] = {
    COMPARE("Equal", 7),
    COMPARE("Equal", 11),
    COMPARE("Equal", 13),
    COMPARE("Greater", 7),
    COMPARE("Greater", 9),
    COMPARE("Greater", 13),
    COMPARE("Less", 7),
    COMPARE("Less", 9),
    COMPARE("Less", 13),
    COMPARE("GreaterOrEqual", 12),
    COMPARE("GreaterOrEqual", 16),
    COMPARE("LessOrEqual", 12),
    COMPARE("LessOrEqual", 16),
    COMPARE("And", 7),
    COMPARE("Or", 7),
    COMPARE("Xor", 7),
    {"", "Where", 9, infer_where, eval_where, FLAGS, 3, 3, 1, 1},
    {"", "Where", 16, infer_where, eval_where, FLAGS, 3, 3, 1, 1},
};
const struct mlo_op_family mlo_ops_compare = {rows, MLO_COUNT(rows)};
