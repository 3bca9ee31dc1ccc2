/* BitShift and the bitwise ops, for integers of whole bytes. */
#include "graph/ops/ops_impl.h"

typedef uint64_t bits_fn(uint64_t a, uint64_t b);

static uint64_t bits_and(uint64_t a, uint64_t b)
{
    return a & b;
}
static uint64_t bits_or(uint64_t a, uint64_t b)
{
    return a | b;
}
static uint64_t bits_xor(uint64_t a, uint64_t b)
{
    return a ^ b;
}
static uint64_t bits_left(uint64_t a, uint64_t b)
{
    return b < 64 ? a << b : 0;
}
static uint64_t bits_right(uint64_t a, uint64_t b)
{
    return b < 64 ? a >> b : 0;
}

static enum mlo_status want_bits(const struct mlo_tensor *t, bool is_signed, struct mlo_error *err)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(t->dtype);
    bool ok = info->is_integer && info->bits >= 8 && (is_signed || !info->is_signed);
    return ok ? MLO_OK : mlo_op_bad_dtype(t->dtype, err);
}

/* Little-endian elements of 1, 2, 4 or 8 bytes. */
static uint64_t load(const struct mlo_tensor *t, size_t i, size_t width)
{
    uint64_t v = 0;
    memcpy(&v, (const char *)t->data + i * width, width);
    return v;
}

static enum mlo_status binary(const struct mlo_node *node, const struct mlo_tensor *const *in,
                              struct mlo_tensor *const *out, bits_fn *fn, bool is_signed,
                              struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(want_bits(in[0], is_signed, err));
    size_t width = mlo_dtype_bytes(in[0]->dtype);
    struct mlo_strides s;
    mlo_strides_init(&s, out[0], in[0], in[1]);
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++, mlo_strides_next(&s)) {
        uint64_t v = fn(load(in[0], s.offset[0], width), load(in[1], s.offset[1], width));
        memcpy((char *)out[0]->data + i * width, &v, width);
    }
out:
    return status;
}

static enum mlo_status eval_shift(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    static const char *const directions[] = {"LEFT", "RIGHT"};
    unsigned direction = 0;
    enum mlo_status status = mlo_op_choose(node, "direction", "", directions, 2, &direction, err);
    return status != MLO_OK ? status : binary(node, in, out, direction ? bits_right : bits_left, false, err);
}

static enum mlo_status eval_bitwise(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_error *err)
{
    bits_fn *fn = mlo_node_is(node, "BitwiseAnd")  ? bits_and
                  : mlo_node_is(node, "BitwiseOr") ? bits_or
                                                   : bits_xor;
    return binary(node, in, out, fn, true, err);
}

static enum mlo_status eval_bitwise_not(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                        struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(want_bits(in[0], true, err));
    for (size_t i = 0; i < in[0]->size_bytes; i++)
        ((uint8_t *)out[0]->data)[i] = (uint8_t) ~((const uint8_t *)in[0]->data)[i];
out:
    return status;
}

enum { FLAGS = MLO_OP_PURE | MLO_OP_ELEMENTWISE };
static const struct mlo_op rows[] = {
    {"", "BitShift", 11, mlo_op_infer_broadcast, eval_shift, FLAGS, 2, 2, 1, 1},
    {"", "BitwiseAnd", 18, mlo_op_infer_broadcast, eval_bitwise, FLAGS, 2, 2, 1, 1},
    {"", "BitwiseNot", 18, mlo_op_infer_same, eval_bitwise_not, FLAGS, 1, 1, 1, 1},
    {"", "BitwiseOr", 18, mlo_op_infer_broadcast, eval_bitwise, FLAGS, 2, 2, 1, 1},
    {"", "BitwiseXor", 18, mlo_op_infer_broadcast, eval_bitwise, FLAGS, 2, 2, 1, 1},
};
const struct mlo_op_family mlo_ops_bits = {rows, MLO_COUNT(rows)};
