/* TopK and Unique. Ties go to the lower index; a NaN counts as the largest number. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

struct key {
    double real;   /* of floats */
    int64_t whole; /* of integers */
    size_t at;
};

static int compare_keys(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    if (x->real != y->real)
        return x->real < y->real ? -1 : 1;
    if (x->whole != y->whole)
        return x->whole < y->whole ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static struct key key_of(const struct mlo_tensor *x, size_t i, size_t at, bool descending)
{
    struct key k = {.at = at};
    if (!mlo_dtype_info(x->dtype)->is_float) {
        k.whole = mlo_tensor_get_i64(x, i);
    } else {
        k.real = mlo_tensor_get_f64(x, i);
        k.whole = isnan(k.real); /* behind infinity */
        k.real = isnan(k.real) ? INFINITY : k.real;
    }
    if (descending) {
        k.real = -k.real;
        k.whole = ~k.whole;
    }
    return k;
}

/* k: attribute up to opset 9, input 1 from 10 on; -1: not known. */
static enum mlo_status read_k(const struct mlo_node *node, const struct mlo_tensor *input, int64_t *k,
                              struct mlo_error *err)
{
    *k = -1;
    if (node->op->since < 10) {
        *k = mlo_node_attr_i(node, "k", -1);
        if (*k < 0)
            return mlo_error_set(err, MLO_EINVAL, "attribute 'k' is missing or negative");
    } else if (input) {
        *k = mlo_tensor_count(input) == 1 ? mlo_tensor_get_i64(input, 0) : -1;
        if (*k < 0)
            return mlo_error_set(err, MLO_EINVAL, "input 1, k, is not one number of 0 or more");
    }
    return MLO_OK;
}

static enum mlo_status infer_topk(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0);
    int64_t k;
    int axis;
    out[0] = *x;
    MLO_TRY(read_k(node, mlo_op_content(node, 1), &k, err));
    if (x->rank >= 0) {
        MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", -1), x->rank, &axis, err));
        if (x->dims[axis].value >= 0 && k > x->dims[axis].value) {
            status = mlo_error_set(err, MLO_EINVAL, "k is %lld, but axis %d has only %lld", (long long)k,
                                   axis, (long long)x->dims[axis].value);
            goto out;
        }
        out[0].dims[axis] = (struct mlo_dim){k, NULL};
    }
    if (node->output_count > 1) {
        out[1] = out[0];
        out[1].dtype = MLO_INT64;
    }
out:
    return status;
}

static enum mlo_status eval_topk(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    const struct mlo_dtype_info *info = mlo_dtype_info(x->dtype);
    bool largest = mlo_node_attr_i(node, "largest", 1) != 0;
    struct key *keys = NULL;
    int64_t k;
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(read_k(node, mlo_op_operand(node, in, 1), &k, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", -1), x->rank, &axis, err));
    size_t width = mlo_dtype_bytes(x->dtype);
    if (!width || (!info->is_float && !info->is_integer)) {
        status = mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    struct mlo_spans s = mlo_op_spans(x, axis);
    keys = malloc((s.size + 1) * sizeof *keys);
    if (!keys) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t o = 0; o < s.outer; o++)
        for (size_t i = 0; i < s.inner; i++) {
            for (size_t n = 0; n < s.size; n++)
                keys[n] = key_of(x, (o * s.size + n) * s.inner + i, n, largest);
            qsort(keys, s.size, sizeof *keys, compare_keys);
            for (size_t n = 0; n < (size_t)k; n++) {
                size_t from = (o * s.size + keys[n].at) * s.inner + i, to = (o * (size_t)k + n) * s.inner + i;
                if (out[0])
                    memcpy((char *)out[0]->data + to * width, (const char *)x->data + from * width, width);
                if (node->output_count > 1 && out[1])
                    ((int64_t *)out[1]->data)[to] = (int64_t)keys[n].at;
            }
        }
out:
    free(keys);
    return status;
}

static enum mlo_status infer_unique(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_type *x = mlo_op_in(node, 0);
    int axis;
    for (int i = 1; i < node->output_count; i++) {
        out[i] = (struct mlo_type){.dtype = MLO_INT64, .rank = 1};
        out[i].dims[0] = mlo_dim_unknown();
    }
    out[0].dtype = x->dtype;
    if (!mlo_node_attr(node, "axis")) {
        out[0].rank = 1;
        out[0].dims[0] = mlo_dim_unknown();
        return MLO_OK;
    }
    if (x->rank < 0)
        return MLO_OK;
    enum mlo_status status = mlo_op_axis(mlo_node_attr_i(node, "axis", 0), x->rank, &axis, err);
    out[0] = *x;
    if (status == MLO_OK)
        out[0].dims[axis] = mlo_dim_unknown();
    return status;
}

/* Slices along the axis (or single elements), compared element by element. */
struct slices {
    const struct mlo_tensor *x;
    struct mlo_spans s;
};

static int compare_slices(const struct slices *p, size_t a, size_t b)
{
    for (size_t o = 0; o < p->s.outer; o++)
        for (size_t i = 0; i < p->s.inner; i++) {
            struct key x = key_of(p->x, (o * p->s.size + a) * p->s.inner + i, 0, false);
            struct key y = key_of(p->x, (o * p->s.size + b) * p->s.inner + i, 0, false);
            int c = compare_keys(&x, &y);
            if (c)
                return c;
        }
    return 0;
}

static int compare_at(const void *a, const void *b, void *arg)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    int c = compare_slices(arg, x, y);
    return c ? c : (x > y) - (x < y);
}

/* order: slices sorted; group[i]: the number of slice i's group in sorted order; first[g]: its first slice.
 * With `sorted` off, groups are numbered by where they first occur. */
static size_t group_slices(struct slices *p, bool sorted, size_t *order, size_t *group, size_t *first)
{
    size_t n = p->s.size, groups = 0;
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, n, sizeof *order, compare_at, p);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || compare_slices(p, order[i - 1], order[i]))
            first[groups++] = order[i];
        group[order[i]] = groups - 1;
    }
    if (sorted)
        return groups;
    for (size_t i = 0; i < n; i++) /* the slice where its group begins, until groups have numbers */
        order[i] = first[group[i]];
    groups = 0;
    for (size_t i = 0; i < n; i++) {
        if (order[i] == i)
            first[groups++] = i;
        group[i] = order[i] == i ? groups - 1 : group[order[i]];
    }
    return groups;
}

static enum mlo_status eval_unique(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct slices p = {in[0], {1, mlo_tensor_count(in[0]), 1}};
    const struct mlo_dtype_info *info = mlo_dtype_info(in[0]->dtype);
    int64_t dims[MLO_MAX_RANK] = {0};
    size_t *room = NULL, width = mlo_dtype_bytes(in[0]->dtype);
    int axis = 0;
    bool flat = !mlo_node_attr(node, "axis");
    if (!width || (!info->is_float && !info->is_integer && in[0]->dtype != MLO_BOOL)) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    if (!flat) {
        MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), in[0]->rank, &axis, err));
        p.s = mlo_op_spans(in[0], axis);
        memcpy(dims, in[0]->dims, sizeof dims);
    }
    size_t n = p.s.size;
    room = calloc(3 * n + 1, sizeof *room);
    if (!room) {
        status = mlo_error_nomem(err);
        goto out;
    }
    size_t *group = room + n, *first = room + 2 * n;
    size_t groups = group_slices(&p, mlo_node_attr_i(node, "sorted", 1) != 0, room, group, first);
    dims[axis] = (int64_t)groups;
    if (out[0]) {
        MLO_TRY(mlo_tensor_init(out[0], in[0]->dtype, flat ? 1 : in[0]->rank, dims, err));
        size_t row = p.s.inner * width;
        for (size_t o = 0; row && o < p.s.outer; o++)
            for (size_t g = 0; g < groups; g++)
                memcpy((char *)out[0]->data + (o * groups + g) * row,
                       (const char *)in[0]->data + (o * n + first[g]) * row, row);
    }
    for (int k = 1; k < node->output_count; k++) {
        int64_t size = (int64_t)(k == 2 ? n : groups);
        if (!out[k])
            continue;
        MLO_TRY(mlo_tensor_init(out[k], MLO_INT64, 1, &size, err));
        int64_t *to = out[k]->data;
        for (size_t i = 0; k == 1 && i < groups; i++)
            to[i] = (int64_t)first[i];
        for (size_t i = 0; k == 2 && i < n; i++)
            to[i] = (int64_t)group[i];
        for (size_t i = 0; k == 3 && i < n; i++)
            to[group[i]]++;
    }
out:
    free(room);
    return status;
}

enum { KEEP = MLO_OP_PURE | MLO_OP_RANGE_KEEP };
static const struct mlo_op rows[] = {
    {"", "TopK", 1, infer_topk, eval_topk, KEEP, 1, 1, 2, 2},
    {"", "TopK", 10, infer_topk, eval_topk, KEEP, 2, 2, 2, 2},
    {"", "TopK", 11, infer_topk, eval_topk, KEEP, 2, 2, 2, 2},
    {"", "Unique", 11, infer_unique, eval_unique, MLO_OP_PURE, 1, 1, 1, 4},
};
const struct mlo_op_family mlo_ops_sort = {rows, MLO_COUNT(rows)};
