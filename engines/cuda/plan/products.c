/* What convolutions and products have in common: their constants. */
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

bool product_constant(struct lower *l, const struct mlo_value *value, struct mlo_tensor *out)
{
    const struct mlo_tensor *t = lower_constant(value);
    struct mlo_error ignored = {0};
    struct place p;
    if (t) {
        *out = *t;
        out->owned = false;
        return true;
    }
    if (!lower_is_of_constants(l, value) && !lower_is_placed(l, value))
        return false;
    if (lower_demand(l, value, WANT_ROWS, &p, &ignored) != MLO_OK || !l->s->slots[p.slot].data ||
        l->s->slots[p.slot].kind != CUDA_SLOT_CONST || p.offset)
        return false;
    *out = (struct mlo_tensor){.dtype = p.dtype,
                               .rank = p.rank,
                               .data = (void *)(uintptr_t)l->s->slots[p.slot].data,
                               .size_bytes = place_bytes(&p)};
    memcpy(out->dims, p.dims, sizeof out->dims);
    return true;
}

int product_vector(struct lower *l, const double *numbers, int64_t count, int64_t padded,
                   enum mlo_dtype dtype)
{
    struct mlo_tensor t = {.dtype = dtype, .rank = 1, .dims = {padded}};
    t.size_bytes = (size_t)padded * lower_element(dtype);
    t.data = mlo_engine_aligned(t.size_bytes);
    for (int64_t i = 0; t.data && i < count; i++)
        mlo_tensor_set_f64(&t, (size_t)i, numbers[i]);
    return lower_slot_const_take(l, t.data, t.size_bytes);
}

enum mlo_status product_slots(struct lower *l, const struct epilogue *e, struct product_numbers *n,
                              struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double *list = calloc((size_t)n->columns + 1, sizeof *list);
    n->unit = e->quantized ? e->scale : 1;
    n->bias = n->scale = -1;
    if (!list)
        return mlo_error_nomem(err);
    if (n->own || e->bias) {
        size_t step = n->own && mlo_tensor_count(n->own) > 1;
        for (int64_t i = 0; i < n->columns; i++) {
            list[i] = n->own ? n->beta * mlo_tensor_get_f64(n->own, (size_t)i * step) : 0;
            list[i] += e->bias ? mlo_tensor_get_f64(e->bias, (size_t)i) : 0;
            list[i] /= n->unit;
        }
        n->bias = product_vector(l, list, n->columns, n->padded, n->bias_dtype);
        if (n->bias < 0)
            status = mlo_error_nomem(err);
    }
    if (n->w && status == MLO_OK) {
        bool one = mlo_tensor_count(n->w->scales) == 1;
        for (int64_t i = 0; i < n->columns; i++)
            list[i] = n->alpha * n->x_scale * mlo_tensor_get_f64(n->w->scales, one ? 0 : (size_t)i) / n->unit;
        n->scale = product_vector(l, list, n->columns, n->padded, MLO_FLOAT32);
        if (n->scale < 0)
            status = mlo_error_nomem(err);
    }
    free(list);
    return status;
}

enum mlo_status product_demand(struct lower *l, const struct mlo_value *value, enum want order,
                               struct place *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct place from;
    MLO_TRY(lower_demand(l, value, order, out, err));
    if (place_aligned(l, out))
        return MLO_OK;
    from = *out;
    MLO_TRY(lower_place_new(l, value, order == WANT_ANY ? WANT_ROWS : order, out, err));
    MLO_TRY(chain_copy(l, value->producer ? value->producer : value->uses[0].node, &from, out, err));
    lower_set(l, value, out);
out:
    return status;
}
