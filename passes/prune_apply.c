/* Takes units out: indices of constants, sizes that nodes state, types. */
#include <stdlib.h>
#include <string.h>

#include "passes/prune_impl.h"

/* The tensor without the indices of one axis that do not stay. */
static enum mlo_status cut(const struct mlo_tensor *from, int axis, const int64_t *kept, int64_t count,
                           struct mlo_tensor *out, struct mlo_error *err)
{
    enum mlo_status status;
    int64_t dims[MLO_MAX_RANK];
    size_t outer = 1, inner = mlo_dtype_info(from->dtype)->bits / 8;
    for (int d = 0; d < from->rank; d++) {
        dims[d] = d == axis ? count : from->dims[d];
        if (d < axis)
            outer *= (size_t)from->dims[d];
        else if (d > axis)
            inner *= (size_t)from->dims[d];
    }
    MLO_TRY(mlo_tensor_init(out, from->dtype, from->rank, dims, err));
    char *to = out->data;
    const char *x = from->data;
    for (size_t o = 0; o < outer; o++)
        for (int64_t k = 0; k < count; k++, to += inner)
            memcpy(to, x + (o * (size_t)from->dims[axis] + (size_t)kept[k]) * inner, inner);
out:
    return status;
}

static enum mlo_status cut_value(const struct prune *p, struct mlo_value *v, int64_t *kept,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int a = 0; a < mlo_prune_rank(v); a++) {
        struct mlo_tensor now = {0};
        int64_t count = mlo_prune_kept(p, v, a, kept);
        if (count < 0 || count == v->type.dims[a].value)
            continue;
        if (v->constant) {
            MLO_TRY(cut(v->constant, a, kept, count, &now, err));
            status = mlo_value_set_constant_take(v, &now, err);
            mlo_tensor_clear(&now);
            if (status != MLO_OK)
                goto out;
        }
        v->type.dims[a].value = count;
    }
out:
    return status;
}

enum mlo_status mlo_prune_apply(const struct prune *p, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *g = p->graph;
    int64_t *kept = malloc(((size_t)p->slot_count + 1) * sizeof *kept);
    if (!kept)
        return mlo_error_nomem(err);
    /* what nodes state first: it is read off sizes as they were */
    for (int n = 0; n < g->node_count; n++) {
        const struct prune_rule *rule = mlo_prune_rule(g->nodes[n]);
        if (rule && rule->fix)
            MLO_TRY(rule->fix(p, g->nodes[n], err));
    }
    for (int i = 0; i < p->value_count; i++)
        MLO_TRY(cut_value(p, g->values[i], kept, err));
out:
    free(kept);
    return status;
}
