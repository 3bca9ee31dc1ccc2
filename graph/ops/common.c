/* Helpers of infer and eval functions. */
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

enum mlo_status mlo_op_bad_dtype(enum mlo_dtype dtype, struct mlo_error *err)
{
    return mlo_error_set(err, MLO_EUNSUPPORTED, "not supported for element type %s", mlo_dtype_name(dtype));
}

const struct mlo_type *mlo_op_in(const struct mlo_node *node, int i)
{
    const struct mlo_value *value = mlo_node_input(node, i);
    return value ? &value->type : NULL;
}

bool mlo_op_ranked(const struct mlo_node *node, int i)
{
    const struct mlo_type *type = mlo_op_in(node, i);
    return type && type->rank >= 0;
}

const struct mlo_tensor *mlo_op_content(const struct mlo_node *node, int i)
{
    const struct mlo_value *value = mlo_node_input(node, i);
    return !value ? NULL : value->constant ? value->constant : value->known;
}

bool mlo_op_exprs(const struct mlo_node *node, int i, struct mlo_expr *out, size_t max, size_t *count)
{
    const struct mlo_value *value = mlo_node_input(node, i);
    const struct mlo_tensor *t = mlo_op_content(node, i);
    const struct mlo_dtype_info *info = t ? mlo_dtype_info(t->dtype) : NULL;
    if (t) {
        *count = mlo_tensor_count(t);
        if (!info || *count > max || !(info->is_integer || info->is_float || t->dtype == MLO_BOOL))
            return false;
        for (size_t k = 0; k < *count; k++) {
            double v = info->is_float ? mlo_tensor_get_f64(t, k) : 0;
            int64_t n = info->is_float ? (v > -1e15 && v < 1e15 ? (int64_t)v : 0) : mlo_tensor_get_i64(t, k);
            out[k] = info->is_float && (double)n != v ? (struct mlo_expr){0} : mlo_expr_number(n);
        }
        return true;
    }
    if (!value || !value->symbols || value->symbols->count > max)
        return false;
    *count = value->symbols->count;
    memcpy(out, value->symbols->e, *count * sizeof *out);
    return true;
}

static struct mlo_arena *arena_of(const struct mlo_node *node)
{
    return node->graph->model->arena;
}

struct mlo_dim mlo_op_dim_add(const struct mlo_node *node, struct mlo_dim a, struct mlo_dim b)
{
    return mlo_dim_of_expr(mlo_expr_add(arena_of(node), mlo_expr_of_dim(a), mlo_expr_of_dim(b)));
}

struct mlo_dim mlo_op_dim_mul(const struct mlo_node *node, struct mlo_dim a, struct mlo_dim b)
{
    return mlo_dim_of_expr(mlo_expr_mul(arena_of(node), mlo_expr_of_dim(a), mlo_expr_of_dim(b)));
}

struct mlo_dim mlo_op_dim_div(const struct mlo_node *node, struct mlo_dim a, int64_t by)
{
    return mlo_dim_of_expr(mlo_expr_div(arena_of(node), mlo_expr_of_dim(a), mlo_expr_number(by)));
}

struct mlo_dim mlo_op_dim_steps(const struct mlo_node *node, struct mlo_dim dim, int64_t plus, int64_t by)
{
    struct mlo_arena *arena = arena_of(node);
    struct mlo_expr e = mlo_expr_add(arena, mlo_expr_of_dim(dim), mlo_expr_number(plus));
    e = mlo_expr_div(arena, e, mlo_expr_number(by));
    return mlo_dim_of_expr(mlo_expr_add(arena, e, mlo_expr_number(1)));
}

enum mlo_status mlo_op_want_rank(const struct mlo_node *node, int i, int rank, struct mlo_error *err)
{
    if (!mlo_op_ranked(node, i) || mlo_op_in(node, i)->rank == rank)
        return MLO_OK;
    return mlo_error_set(err, MLO_EINVAL, "input %d ('%.100s') has rank %d, not %d", i, node->inputs[i]->name,
                         mlo_op_in(node, i)->rank, rank);
}

enum mlo_status mlo_op_axis(int64_t axis, int count, int *out, struct mlo_error *err)
{
    if (axis < -count || axis >= count)
        return mlo_error_set(err, MLO_EINVAL, "axis %lld is outside of [%d, %d]", (long long)axis, -count,
                             count - 1);
    *out = (int)(axis < 0 ? axis + count : axis);
    return MLO_OK;
}

enum mlo_status mlo_op_read_ints(const struct mlo_tensor *t, int64_t *out, int max, int *count,
                                 struct mlo_error *err)
{
    size_t n = mlo_tensor_count(t);
    const struct mlo_dtype_info *info = mlo_dtype_info(t->dtype);
    if (t->rank > 1 || !info || !info->is_integer)
        return mlo_error_set(err, MLO_EINVAL, "a list of integers is wanted, not %s of rank %d",
                             mlo_dtype_name(t->dtype), t->rank);
    if (n > (size_t)max)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a list of %zu integers; at most %d are supported", n,
                             max);
    for (size_t i = 0; i < n; i++)
        out[i] = mlo_tensor_get_i64(t, i);
    *count = (int)n;
    return MLO_OK;
}

struct mlo_dim mlo_dim_fixed(int64_t value)
{
    return (struct mlo_dim){value, NULL};
}

struct mlo_dim mlo_dim_unknown(void)
{
    return (struct mlo_dim){-1, NULL};
}

/* Two symbolic dims: the same, or one is a cut of the other ("min(512,seq)"), which fits when it cuts
 * nothing. */
static struct mlo_dim both_symbolic(struct mlo_dim x, struct mlo_dim y)
{
    struct mlo_expr a = mlo_expr_of_dim(x), b = mlo_expr_of_dim(y);
    if (mlo_expr_same(a, b) || mlo_expr_is_min_of(b, a))
        return x;
    return mlo_expr_is_min_of(a, b) ? y : mlo_dim_unknown();
}

enum mlo_status mlo_op_broadcast(const struct mlo_type *a, const struct mlo_type *b, struct mlo_type *out,
                                 struct mlo_error *err)
{
    if (a->rank < 0 || b->rank < 0) {
        out->rank = -1;
        return MLO_OK;
    }
    struct mlo_type result = {.dtype = out->dtype, .rank = MLO_MAX(a->rank, b->rank)};
    for (int i = 0; i < result.rank; i++) {
        int ia = i - (result.rank - a->rank), ib = i - (result.rank - b->rank);
        struct mlo_dim one = {1, NULL}, x = ia < 0 ? one : a->dims[ia], y = ib < 0 ? one : b->dims[ib];
        if (x.value == 1)
            result.dims[i] = y;
        else if (y.value == 1 || (x.value >= 0 && x.value == y.value))
            result.dims[i] = x;
        else if (x.value >= 0 && y.value >= 0)
            return mlo_error_set(err, MLO_EINVAL, "dims %lld and %lld do not broadcast", (long long)x.value,
                                 (long long)y.value);
        else if (x.value > 1 || y.value > 1) /* the unknown one is 1 or the same */
            result.dims[i] = x.value > 1 ? x : y;
        else
            result.dims[i] = both_symbolic(x, y);
    }
    *out = result;
    return MLO_OK;
}

enum mlo_status mlo_op_want_broadcast(const struct mlo_node *node, int i, const struct mlo_type *to,
                                      struct mlo_error *err)
{
    const struct mlo_type *type = mlo_op_in(node, i);
    if (!type || type->rank < 0 || to->rank < 0)
        return MLO_OK;
    struct mlo_type wide = *to;
    enum mlo_status status = mlo_op_broadcast(to, type, &wide, err);
    bool fits = wide.rank == to->rank;
    for (int d = 0; fits && d < to->rank; d++)
        fits = to->dims[d].value < 0 || wide.dims[d].value == to->dims[d].value;
    if (status == MLO_OK && !fits)
        status = mlo_error_set(err, MLO_EINVAL, "input %d does not broadcast to the result's shape", i);
    return status;
}

enum mlo_status mlo_op_infer_same(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    MLO_UNUSED(err);
    out[0] = *mlo_op_in(node, 0);
    return MLO_OK;
}

static void operand_steps(const struct mlo_tensor *out, const struct mlo_tensor *t, int64_t *step)
{
    int64_t stride = 1;
    for (int i = out->rank - 1; i >= 0; i--) {
        int k = i - (out->rank - t->rank);
        step[i] = k >= 0 && t->dims[k] != 1 ? stride : 0;
        if (k >= 0)
            stride *= t->dims[k];
    }
}

void mlo_strides_init(struct mlo_strides *s, const struct mlo_tensor *out, const struct mlo_tensor *a,
                      const struct mlo_tensor *b)
{
    *s = (struct mlo_strides){.rank = out->rank};
    for (int i = 0; i < out->rank; i++)
        s->dims[i] = out->dims[i];
    operand_steps(out, a, s->step[0]);
    operand_steps(out, b, s->step[1]);
}

void mlo_strides_next(struct mlo_strides *s)
{
    for (int i = s->rank - 1; i >= 0; i--) {
        s->offset[0] += (size_t)s->step[0][i];
        s->offset[1] += (size_t)s->step[1][i];
        if (++s->at[i] < s->dims[i])
            return;
        s->offset[0] -= (size_t)(s->step[0][i] * s->dims[i]);
        s->offset[1] -= (size_t)(s->step[1][i] * s->dims[i]);
        s->at[i] = 0;
    }
}

size_t mlo_dtype_bytes(enum mlo_dtype dtype)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    return info ? info->bits / 8 : 0;
}

enum mlo_status mlo_op_infer_broadcast(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    const struct mlo_type *a = mlo_op_in(node, 0), *b = mlo_op_in(node, 1);
    if (a->dtype && b->dtype && a->dtype != b->dtype)
        return mlo_error_set(err, MLO_EINVAL, "input 1 is %s, and input 0 %s", mlo_dtype_name(b->dtype),
                             mlo_dtype_name(a->dtype));
    out[0].dtype = a->dtype ? a->dtype : b->dtype;
    return mlo_op_broadcast(a, b, &out[0], err);
}

enum mlo_status mlo_op_want_float(const struct mlo_tensor *t, struct mlo_error *err)
{
    return mlo_dtype_info(t->dtype)->is_float ? MLO_OK : mlo_op_bad_dtype(t->dtype, err);
}

bool mlo_op_maybe_int8(enum mlo_dtype dtype)
{
    return dtype == MLO_INT8 || dtype == MLO_UINT8 || dtype == MLO_DTYPE_NONE;
}

const struct mlo_tensor *mlo_op_operand(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                        int i)
{
    return i >= 0 && i < node->input_count ? in[i] : NULL;
}

enum mlo_status mlo_op_doubles(const struct mlo_tensor *t, double **out, struct mlo_error *err)
{
    *out = NULL;
    if (!t)
        return MLO_OK;
    const struct mlo_dtype_info *info = mlo_dtype_info(t->dtype);
    if (!info->is_float && !info->is_integer && t->dtype != MLO_BOOL)
        return mlo_op_bad_dtype(t->dtype, err);
    size_t count = mlo_tensor_count(t);
    double *copy = malloc((count + 1) * sizeof *copy);
    if (!copy)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < count; i++)
        copy[i] = mlo_tensor_get_f64(t, i);
    *out = copy;
    return MLO_OK;
}

void mlo_op_store_doubles(struct mlo_tensor *t, const double *values)
{
    for (size_t i = 0; i < mlo_tensor_count(t); i++)
        mlo_tensor_set_f64(t, i, values[i]);
}

enum mlo_status mlo_op_choose(const struct mlo_node *node, const char *name, const char *fallback,
                              const char *const *names, size_t count, unsigned *out, struct mlo_error *err)
{
    const char *text = mlo_node_attr_s(node, name, fallback);
    for (unsigned i = 0; i < count; i++)
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return MLO_OK;
        }
    return mlo_error_set(err, MLO_EINVAL, "attribute '%s' is '%.60s', which it cannot be", name, text);
}

struct mlo_spans mlo_op_spans(const struct mlo_tensor *t, int axis)
{
    struct mlo_spans s = {1, 1, 1};
    for (int i = 0; i < t->rank; i++)
        *(i < axis ? &s.outer : i == axis ? &s.size : &s.inner) *= (size_t)t->dims[i];
    return s;
}
