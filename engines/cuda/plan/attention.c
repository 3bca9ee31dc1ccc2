/* Attention as one step: MatMul(Q, K^T), scaled and masked or not, Softmax, MatMul with V, in 16-bit floats,
 * which is what cuDNN's unified engine takes. Found before anything is lowered. */
#include <math.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

enum { HEAD_MAX = 256, HEAD_MULTIPLE = 8, ATTENTION_NODES = 10 };

struct attention_match {
    const struct mlo_value *q, *k, *v, *mask; /* k as the product reads it: features before positions */
    float scale;
    const struct mlo_node *nodes[ATTENTION_NODES];
    int count;
};

static void take(struct attention_match *a, const struct mlo_node *node)
{
    a->nodes[a->count++] = node;
}

/* Mul or Div of x by one finite number. */
static bool scaling(const struct mlo_node *node, const struct mlo_value **x, double *factor)
{
    double c;
    if (mlo_node_is(node, "Mul") && lower_number(node->inputs[1], &c))
        *x = node->inputs[0], *factor = c;
    else if (mlo_node_is(node, "Mul") && lower_number(node->inputs[0], &c))
        *x = node->inputs[1], *factor = c;
    else if (mlo_node_is(node, "Div") && lower_number(node->inputs[1], &c) && c != 0)
        *x = node->inputs[0], *factor = 1 / c;
    else
        return false;
    return isfinite(*factor) && (*x)->type.rank == node->outputs[0]->type.rank;
}

/* A product that one operand was multiplied by a number before: the number is the scale's. */
static const struct mlo_value *unscale(const struct lower *l, const struct mlo_value *v,
                                       struct attention_match *a, double *scale)
{
    const struct mlo_value *x;
    double factor;
    if (v->producer && lower_reader(l, v) && scaling(v->producer, &x, &factor) &&
        x->type.dtype == v->type.dtype) {
        take(a, v->producer);
        *scale *= factor;
        return x;
    }
    return v;
}

static bool last_axis(const struct mlo_node *softmax)
{
    int rank = softmax->inputs[0]->type.rank;
    int64_t axis = mlo_node_attr_i(softmax, "axis", softmax->version < 13 ? 1 : -1);
    return axis == -1 || axis == rank - 1;
}

static bool broadcasts(const struct mlo_value *value, const struct mlo_value *to)
{
    int64_t s[MLO_MAX_RANK], t[MLO_MAX_RANK];
    int rank = value->type.rank, r = to->type.rank;
    if (!lower_dims(value, s) || !lower_dims(to, t) || rank > r)
        return false;
    for (int i = 0; i < rank; i++)
        if (s[i] != 1 && s[i] != t[r - rank + i])
            return false;
    return value->type.dtype == to->type.dtype || value->type.dtype == MLO_FLOAT32;
}

/* Back from the Softmax to the product of queries and keys: [scale], then [mask]. */
static const struct mlo_node *find_scores(const struct lower *l, const struct mlo_node *softmax,
                                          struct attention_match *a, double *scale)
{
    const struct mlo_value *x = softmax->inputs[0], *inner;
    double factor;
    for (int steps = 0; steps < 3; steps++) {
        const struct mlo_node *node = x->producer;
        if (!node || !lower_reader(l, x))
            return NULL;
        if (mlo_node_is(node, "MatMul")) {
            take(a, node);
            return node;
        }
        if (scaling(node, &inner, &factor)) {
            *scale *= factor;
        } else if (mlo_node_is(node, "Add") && !a->mask && *scale == 1) {
            const struct mlo_node *p = node->inputs[0]->producer;
            int side = p && (mlo_node_is(p, "MatMul") || scaling(p, &inner, &factor)) ? 0 : 1;
            inner = node->inputs[side];
            a->mask = node->inputs[!side];
            if (!broadcasts(a->mask, x))
                return NULL;
        } else {
            return NULL;
        }
        take(a, node);
        x = inner;
    }
    return NULL;
}

static bool shapes_fit(const struct attention_match *a)
{
    int64_t q[MLO_MAX_RANK], k[MLO_MAX_RANK], v[MLO_MAX_RANK];
    int r = a->q->type.rank;
    enum mlo_dtype dtype = a->q->type.dtype;
    if ((r != 3 && r != 4) || a->k->type.rank != r || a->v->type.rank != r || !lower_dims(a->q, q) ||
        !lower_dims(a->k, k) || !lower_dims(a->v, v) || q[r - 1] != k[r - 2] || k[r - 1] != v[r - 2])
        return false;
    for (int i = 0; i < r - 2; i++)
        if (q[i] != k[i] || q[i] != v[i])
            return false;
    return (dtype == MLO_FLOAT16 || dtype == MLO_BFLOAT16) && a->k->type.dtype == dtype &&
           a->v->type.dtype == dtype && q[r - 1] <= HEAD_MAX && v[r - 1] <= HEAD_MAX &&
           q[r - 1] % HEAD_MULTIPLE == 0 && v[r - 1] % HEAD_MULTIPLE == 0;
}

static const struct mlo_node *match(const struct lower *l, const struct mlo_node *softmax,
                                    struct attention_match *a)
{
    double scale = 1;
    *a = (struct attention_match){0};
    if (!mlo_node_is(softmax, "Softmax") || !last_axis(softmax))
        return NULL;
    const struct mlo_value *p = softmax->outputs[0];
    const struct mlo_node *product = lower_reader(l, p);
    if (!product || !mlo_node_is(product, "MatMul") || product->inputs[0] != p || product->inputs[1] == p)
        return NULL;
    take(a, softmax);
    const struct mlo_node *scores = find_scores(l, softmax, a, &scale);
    int64_t x[MLO_MAX_RANK], y[MLO_MAX_RANK];
    int rank = softmax->inputs[0]->type.rank;
    if (!scores || !lower_dims(scores->outputs[0], x) || !lower_dims(softmax->inputs[0], y) ||
        scores->outputs[0]->type.rank != rank || memcmp(x, y, (size_t)rank * sizeof *x) != 0)
        return NULL;
    a->q = unscale(l, scores->inputs[0], a, &scale);
    a->k = unscale(l, scores->inputs[1], a, &scale);
    a->v = product->inputs[1];
    a->scale = (float)scale;
    return isfinite(a->scale) && shapes_fit(a) ? product : NULL;
}

enum mlo_status attention_find(struct lower *l, struct mlo_error *err)
{
    for (int n = 0; n < l->g->node_count; n++) {
        struct attention_match a, *kept;
        const struct mlo_node *product = match(l, l->g->nodes[n], &a);
        if (!product)
            continue;
        kept = mlo_arena_alloc(l->arena, sizeof *kept);
        if (!kept)
            return mlo_error_nomem(err);
        *kept = a;
        l->ahead[product->index] = kept;
        for (int i = 0; i < a.count; i++)
            l->done[a.nodes[i]->index] = true;
    }
    return MLO_OK;
}

/* (batch, head, position, feature); three dims have one head. */
static enum mlo_status operand(struct lower *l, const struct mlo_value *value, bool turned,
                               struct cuda_tensor *out, int *slot, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct place p, copy;
    MLO_TRY(lower_demand(l, value, WANT_ANY, &p, err));
    if (turned) {
        int64_t perm[] = {0, 1, 3, 2}, three[] = {0, 2, 1};
        place_transpose(&p, p.rank == 4 ? perm : three);
    }
    if (p.rank == 3) {
        p.rank = 4;
        p.dims[3] = p.dims[2], p.strides[3] = p.strides[2];
        p.dims[2] = p.dims[1], p.strides[2] = p.strides[1];
        p.dims[1] = 1, p.strides[1] = 0;
    }
    if (!place_aligned(l, &p) || (p.dims[3] > 1 && p.strides[3] != 1)) {
        copy = p;
        place_dense(&copy, p.dtype, 4, p.dims, WANT_ROWS);
        copy.slot = lower_slot(l, CUDA_SLOT_ARENA, place_bytes(&copy));
        if (copy.slot < 0)
            return mlo_error_nomem(err);
        MLO_TRY(chain_copy(l, value->producer ? value->producer : value->uses[0].node, &p, &copy, err));
        p = copy;
    }
    *slot = lower_slot_at(l, &p);
    if (*slot < 0 || !place_tensor(&p, out))
        status = mlo_error_nomem(err);
out:
    return status;
}

enum mlo_status attention_lower(struct lower *l, const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct attention_match *m = l->ahead[node->index];
    struct cuda_attention *a = mlo_arena_calloc(l->arena, 1, sizeof *a);
    const struct mlo_value *y = node->outputs[0];
    struct place o, wide, mask;
    int slots[4], count = 3;
    if (!a)
        return mlo_error_nomem(err);
    a->scale = m->scale;
    MLO_TRY(operand(l, m->q, false, &a->q, &slots[0], err));
    MLO_TRY(operand(l, m->k, true, &a->k, &slots[1], err));
    MLO_TRY(operand(l, m->v, false, &a->v, &slots[2], err));
    if (m->mask) {
        int64_t dims[] = {a->q.dims[0], a->q.dims[1], a->q.dims[2], a->k.dims[2]};
        MLO_TRY(product_demand(l, m->mask, WANT_ANY, &mask, err));
        if (y->type.rank == 3) { /* one head: a mask's first dim of three is the batch's */
            place_expand(&mask, 3, (int64_t[]){dims[0], dims[2], dims[3]});
            mask.strides[3] = mask.strides[2], mask.strides[2] = mask.strides[1], mask.strides[1] = 0;
            memcpy(mask.dims, dims, sizeof dims);
            mask.rank = 4;
        } else {
            place_expand(&mask, 4, dims);
        }
        a->has_mask = true;
        slots[count++] = lower_slot_at(l, &mask);
        if (slots[3] < 0 || !place_tensor(&mask, &a->mask))
            return mlo_error_nomem(err);
    }
    /* heads behind positions: the Transpose and the Reshape that follow are then only other places */
    MLO_TRY(lower_place_new(l, y, WANT_ROWS, &o, err));
    if (o.rank == 4) {
        o.strides[0] = o.dims[1] * o.dims[2] * o.dims[3];
        o.strides[1] = o.dims[3];
        o.strides[2] = o.dims[1] * o.dims[3];
    }
    wide = o;
    if (o.rank == 3 && !place_reshape(&wide, 4, (int64_t[]){o.dims[0], 1, o.dims[1], o.dims[2]}))
        return mlo_error_set(err, MLO_EINTERNAL, "'%s' cannot be reshaped", y->name);
    place_tensor(&wide, &a->o);
    struct cuda_step *step = lower_step(l, CUDA_STEP_ATTENTION, node, "cudnn attention");
    if (!step)
        return mlo_error_nomem(err);
    step->attention = a;
    step->precision = lower_precision(l, a->q.dtype, true);
    memcpy(step->in, slots, (size_t)count * sizeof *slots);
    step->in_count = count;
    step->out[0] = o.slot;
    step->out_count = 1;
    for (int i = 0; i < m->count; i++)
        MLO_TRY(lower_fuse(l, step, m->nodes[i], err));
    l->done[node->index] = true;
    lower_set(l, y, &o);
out:
    return status;
}
