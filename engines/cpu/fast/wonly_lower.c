/* Which products keep their weights packed: MatMulNBits, and MatMul or Gemm with dequantized constants on the
 * right and floats on the left. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/wonly_impl.h"

/* More rows than this, and weights that are not in blocks are better unpacked once, at compile time. */
enum { ROWS_PER_CHANNEL_MAX = 32 };

struct site {
    const struct mlo_node *node, *add;
    const struct mlo_value *x, *bias;
    struct mlo_value *y;
    float bias_factor;
    int planes;
    struct wonly_source from;
};

/* The block of the packed form: at most WONLY_BLOCK_MAX deep, whole groups, and a source's block is a number
 * of them. 0: there is none. */
static size_t packed_block(size_t block, size_t k)
{
    if (block >= k) { /* one for the whole depth */
        size_t whole = (k + 15) / 16 * 16;
        return whole <= WONLY_BLOCK_MAX ? whole : WONLY_BLOCK_MAX;
    }
    while (block > WONLY_BLOCK_MAX && block % 2 == 0)
        block /= 2;
    return block <= WONLY_BLOCK_MAX && block % WONLY_GROUP == 0 ? block : 0;
}

/* --- MatMulNBits
 * -------------------------------------------------------------------------------------------- */

static unsigned packed_number(const uint8_t *row, size_t i, int bits)
{
    return bits == 8 ? row[i] : (unsigned)(row[i / 2] >> (i % 2 ? 4 : 0) & 15);
}

static unsigned nbits_number(const struct wonly_source *s, size_t j, size_t k)
{
    size_t row = s->blocks * s->block * (size_t)s->bits / 8;
    return packed_number((const uint8_t *)s->q->data + j * row, k, s->bits);
}

static float nbits_scale(const struct wonly_source *s, size_t j, size_t k)
{
    return (float)mlo_tensor_get_f64(s->scales, j * s->blocks + k / s->block);
}

static unsigned nbits_zero(const struct wonly_source *s, size_t j, size_t k)
{
    size_t row = (s->blocks * (size_t)s->bits + 7) / 8;
    if (!s->zeros)
        return s->bits == 4 ? 8 : 128;
    return packed_number((const uint8_t *)s->zeros->data + j * row, k / s->block, s->bits);
}

static bool nbits_site(const struct mlo_node *node, struct site *site)
{
    static const int planes_by_level[] = {3, 3, 2, 2, 1}; /* unset, float32, float16, bfloat16, int8 */
    int64_t level = mlo_node_attr_i(node, "accuracy_level", 0);
    if (strcmp(node->domain, "com.microsoft") != 0 || strcmp(node->op_type, "MatMulNBits") != 0)
        return false;
    *site = (struct site){
        .node = node,
        .x = node->inputs[0],
        .bias = mlo_node_input(node, 5),
        .y = node->outputs[0],
        .bias_factor = 1.0f,
        .planes = planes_by_level[level >= 0 && level < (int)MLO_COUNT(planes_by_level) ? level : 0],
        .from = {.q = mlo_node_const(node, 1),
                 .scales = mlo_node_const(node, 2),
                 .zeros = mlo_node_const(node, 3),
                 .form = 0,
                 .n = (size_t)mlo_node_attr_i(node, "N", 0),
                 .k = (size_t)mlo_node_attr_i(node, "K", 0),
                 .block = (size_t)mlo_node_attr_i(node, "block_size", 0),
                 .bits = (int)mlo_node_attr_i(node, "bits", 4),
                 .number = nbits_number,
                 .scale = nbits_scale,
                 .zero = nbits_zero}};
    struct wonly_source *f = &site->from;
    if (!f->q || f->q->dtype != MLO_UINT8 || !f->scales || (f->bits != 4 && f->bits != 8) || f->n < 1 ||
        f->k < 1 || f->block < 1 ||
        (mlo_node_input(node, 3) && (!f->zeros || f->zeros->dtype != MLO_UINT8)) || mlo_node_input(node, 4))
        return false;
    f->blocks = (f->k + f->block - 1) / f->block;
    return f->q->size_bytes >= f->n * f->blocks * f->block * (size_t)f->bits / 8;
}

/* --- dequantized constants
 * ---------------------------------------------------------------------------------- */

static size_t place(const struct wonly_source *s, size_t j, size_t k, size_t depth)
{
    return s->turned ? j * depth + k : k * s->n + j;
}

static unsigned dq_unsigned(const struct wonly_source *s, const struct mlo_tensor *t, size_t i)
{
    bool is_signed = t->dtype == MLO_INT8 || t->dtype == MLO_INT4;
    return (unsigned)(mlo_tensor_get_i64(t, i) + (!is_signed ? 0 : s->bits == 4 ? 8 : 128));
}

/* Scales of blocks are laid out like the weights; else there is one for all, or one for each column. */
static size_t dq_parameter(const struct wonly_source *s, const struct mlo_tensor *t, size_t j, size_t k)
{
    size_t count = mlo_tensor_count(t);
    return s->blocks > 0 ? place(s, j, k / s->block, s->blocks) : count == 1 ? 0 : j;
}

static unsigned dq_number(const struct wonly_source *s, size_t j, size_t k)
{
    return dq_unsigned(s, s->q, place(s, j, k, s->k));
}

static float dq_scale(const struct wonly_source *s, size_t j, size_t k)
{
    return s->factor * (float)mlo_tensor_get_f64(s->scales, dq_parameter(s, s->scales, j, k));
}

static unsigned dq_zero(const struct wonly_source *s, size_t j, size_t k)
{
    bool is_signed = s->q->dtype == MLO_INT8 || s->q->dtype == MLO_INT4;
    return s->zeros    ? dq_unsigned(s, s->zeros, dq_parameter(s, s->zeros, j, k))
           : is_signed ? s->bits == 4 ? 8 : 128
                       : 0;
}

static bool dq_source(const struct mlo_node *dq, bool turned, struct wonly_source *f)
{
    *f = (struct wonly_source){.q = mlo_node_const(dq, 0),
                               .scales = mlo_node_const(dq, 1),
                               .zeros = mlo_node_const(dq, 2),
                               .form = turned ? 2 : 1,
                               .turned = turned,
                               .factor = 1.0f,
                               .number = dq_number,
                               .scale = dq_scale,
                               .zero = dq_zero};
    if (!f->q || f->q->rank != 2 || !f->scales || (mlo_node_input(dq, 2) && !f->zeros) ||
        !mlo_dtype_info(f->scales->dtype)->is_float)
        return false;
    f->bits = f->q->dtype == MLO_INT8 || f->q->dtype == MLO_UINT8   ? 8
              : f->q->dtype == MLO_INT4 || f->q->dtype == MLO_UINT4 ? 4
                                                                    : 0;
    int depth_axis = turned ? 1 : 0;
    int64_t axis = mlo_node_attr_i(dq, "axis", 1), block = mlo_node_attr_i(dq, "block_size", 0);
    axis += axis < 0 ? 2 : 0;
    f->k = (size_t)f->q->dims[depth_axis];
    f->n = (size_t)f->q->dims[!depth_axis];
    f->block = block > 0 ? (size_t)block : f->k;
    f->blocks = block > 0 ? (f->k + f->block - 1) / f->block : 0;
    size_t want = block > 0 ? f->n * f->blocks : f->n, count = mlo_tensor_count(f->scales);
    if (!f->bits || f->k < 1 || f->n < 1 || (f->zeros && mlo_tensor_count(f->zeros) != count))
        return false;
    if (block > 0)
        return axis == depth_axis && count == want;
    return count == 1 || (axis == !depth_axis && count == want);
}

static bool product_site(const struct mlo_node *node, struct site *site)
{
    bool gemm = mlo_node_is(node, "Gemm");
    if (!gemm && !mlo_node_is(node, "MatMul"))
        return false;
    const struct mlo_node *dq = node->inputs[1]->producer;
    *site = (struct site){.node = node,
                          .x = node->inputs[0],
                          .y = node->outputs[0],
                          .bias_factor = 1.0f,
                          .planes = WONLY_PLANES_MAX};
    if (!dq || !mlo_node_is(dq, "DequantizeLinear") || mlo_node_attr_i(node, "transA", 0) ||
        !dq_source(dq, gemm && mlo_node_attr_i(node, "transB", 0), &site->from))
        return false;
    if (gemm) {
        site->bias = mlo_node_input(node, 2);
        site->bias_factor = mlo_node_attr_f(node, "beta", 1.0f);
        site->from.factor = mlo_node_attr_f(node, "alpha", 1.0f);
    }
    return site->from.factor == 1.0f;
}

/* A constant row that is added behind the product. */
static void find_add(const struct mlo_plan *plan, struct site *s)
{
    const struct mlo_node *add = s->bias ? NULL : fast_reader(plan, s->y);
    if (!add || !mlo_node_is(add, "Add"))
        return;
    const struct mlo_value *other = add->inputs[add->inputs[0] == s->y];
    struct fast_shape shape;
    if (other == s->y || !other->constant || other->constant->dtype != MLO_FLOAT32 ||
        !fast_shape(other, &shape) || shape.count != s->from.n || shape.rank < 1 ||
        shape.dims[shape.rank - 1] != (int64_t)s->from.n || shape.rank > s->y->type.rank)
        return;
    s->bias = other;
    s->y = add->outputs[0];
    s->add = add;
}

/* The bias of whole panels as a constant; *slot -1: there is none; *ok false: it is not constant. */
static enum mlo_status bias_slot(struct mlo_plan *plan, const struct site *s, int *slot, bool *ok,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *bias = NULL;
    *slot = -1;
    *ok = true;
    if (!s->bias)
        return MLO_OK;
    MLO_TRY(fast_const_f32(plan, s->bias, &bias, err));
    *ok = bias && mlo_tensor_count(bias) == s->from.n;
    if (!*ok)
        return MLO_OK;
    size_t padded = (s->from.n + WONLY_COLUMNS - 1) / WONLY_COLUMNS * WONLY_COLUMNS;
    float *copy = cpu_aligned(padded * sizeof *copy);
    for (size_t i = 0; copy && i < s->from.n; i++)
        copy[i] = ((const float *)bias->data)[i] * s->bias_factor;
    *slot = cpu_slot_const_take(plan, copy, padded * sizeof *copy);
    if (*slot < 0)
        status = mlo_error_nomem(err);
out:
    return status;
}

enum mlo_status fast_lower_packed(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct site s;
    struct fast_shape x;
    bool ok;
    if (!nbits_site(node, &s) && !product_site(node, &s))
        return MLO_OK;
    if (s.x->constant || s.x->type.dtype != MLO_FLOAT32 || s.y->type.dtype != MLO_FLOAT32 ||
        !fast_shape(s.x, &x) || x.count == 0 || x.rank < 1 || x.dims[x.rank - 1] != (int64_t)s.from.k)
        return MLO_OK;
    struct wonly_request r = {.m = x.count / s.from.k, .planes = s.planes};
    r.w = (struct wonly_weights){
        .bits = s.from.bits, .n = s.from.n, .k = s.from.k, .block = packed_block(s.from.block, s.from.k)};
    bool whole = s.from.blocks == 0; /* one scale a column */
    if (!r.w.block || (whole && (r.m > ROWS_PER_CHANNEL_MAX || fast_is_quantized(plan, s.x))))
        return MLO_OK;
    r.w.blocks = (r.w.k + r.w.block - 1) / r.w.block;
    find_add(plan, &s);
    MLO_TRY(bias_slot(plan, &s, &r.bias, &ok, err));
    if (!ok)
        return MLO_OK;
    MLO_TRY(fast_value(plan, s.x, CPU_PLAIN, &r.x, err));
    r.y = fast_new_slot(plan, s.y, false);
    if (r.y < 0 || !wonly_pack(plan, &s.from, &r.w)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    struct cpu_step *step;
    MLO_TRY(wonly_emit(plan, node, &r, &step, err));
    if (s.add) {
        fast_mark_done(plan, s.add);
        if (!cpu_step_fuse(plan, step, s.add)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    fast_set(plan, s.y, CPU_PLAIN, r.y);
    *done = true;
out:
    return status;
}
