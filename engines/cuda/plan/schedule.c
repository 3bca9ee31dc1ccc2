/* From a model to a schedule. */
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

static lower_fn *const lowerings[] = {lower_view,   lower_conv,   lower_conv_transpose, lower_matmul,
                                      lower_gemm,   lower_pool,   lower_gather,         lower_pad,
                                      lower_concat, lower_resize, lower_search,         lower_topk};

static bool is_wanted(const struct lower *l, const struct mlo_node *node)
{
    for (int i = 0; i < node->output_count; i++)
        if (node->outputs[i] && (node->outputs[i]->use_count || lower_is_shown(l, node->outputs[i])))
            return true;
    return false;
}

/* What no kernel of any kind can hold. */
static enum mlo_status check(const struct lower *l, const struct mlo_node *node, struct mlo_error *err)
{
    for (int i = 0; i < node->input_count + node->output_count; i++) {
        const struct mlo_value *v =
            i < node->input_count ? node->inputs[i] : node->outputs[i - node->input_count];
        int64_t dims[MLO_MAX_RANK];
        double number;
        if (!v || lower_number(v, &number))
            continue;
        if (v->type.dtype == MLO_FLOAT64 || v->type.dtype == MLO_STRING || mlo_holds_values(v->type.dtype))
            return lower_unsupported(node, err, "'%s' is %s", v->name, mlo_dtype_name(v->type.dtype));
        if (lower_is_float8(v->type.dtype) && l->sm < FLOAT8_SM) {
            enum mlo_status refused = mlo_error_set(
                err, MLO_EUNSUPPORTED,
                "the cuda engine cannot run %s on sm_%d: '%s' is %s, which GPUs multiply from sm_%d on",
                node->op_type, l->sm, v->name, mlo_dtype_name(v->type.dtype), FLOAT8_SM);
            mlo_error_where(err, "node '%s' (%s)", node->name, node->op_type);
            mlo_error_hint(err, "compile it for cuda:sm%d or later, or quantize the float model to int8",
                           FLOAT8_SM);
            return refused;
        }
        if (i >= node->input_count && v->type.rank >= 0 && !mlo_type_static(&v->type, dims))
            return lower_unsupported(node, err, "the shape of '%s' is not known before it runs", v->name);
        for (int k = 0; k < v->type.rank; k++)
            if (v->type.dims[k].value == 0 && !v->constant)
                return lower_unsupported(node, err, "'%s' has no elements", v->name);
    }
    if (node->op && node->op->eval_in)
        return lower_unsupported(node, err, "it has subgraphs");
    return MLO_OK;
}

static enum mlo_status lower_node(struct lower *l, const struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct form form;
    const char *why = NULL;
    bool done = false;
    if (l->done[node->index] || !is_wanted(l, node))
        return MLO_OK;
    MLO_TRY(check(l, node, err));
    if (chain_takes_view(l, node) || form_of(node, &form, &why)) {
        l->pending[node->index] = true;
        return MLO_OK;
    }
    for (size_t i = 0; i < MLO_COUNT(lowerings) && !done && !why; i++)
        MLO_TRY(lowerings[i](l, node, &done, err));
    if (!done)
        status = lower_unsupported(node, err, "%s", why ? why : "no kernel computes it");
out:
    return status;
}

static enum mlo_status inputs(struct lower *l, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_value **list = mlo_arena_calloc(l->arena, (size_t)l->g->input_count + 1, sizeof *list);
    int count = list ? mlo_engine_inputs(l->g, list) : 0;
    l->s->input_slots = mlo_arena_calloc(l->arena, (size_t)count + 1, sizeof *l->s->input_slots);
    if (!l->s->input_slots)
        return mlo_error_nomem(err);
    for (int i = 0; i < count; i++) {
        int64_t dims[MLO_MAX_RANK];
        struct place p;
        if (!lower_dims(list[i], dims) || !lower_element(list[i]->type.dtype) ||
            mlo_holds_values(list[i]->type.dtype))
            return mlo_error_set(err, MLO_EUNSUPPORTED, "the cuda engine cannot feed input '%s': it is %s",
                                 list[i]->name, mlo_dtype_name(list[i]->type.dtype));
        place_dense(&p, list[i]->type.dtype, list[i]->type.rank, dims, WANT_ROWS);
        p.slot = lower_slot(l, CUDA_SLOT_INPUT, place_bytes(&p));
        if (p.slot < 0)
            return mlo_error_nomem(err);
        l->s->slots[p.slot].input = i;
        l->s->input_slots[i] = p.slot;
        lower_set(l, list[i], &p);
    }
    return status;
}

/* What a caller gets lies in rows, in the arena: constants and inputs are copied. */
static enum mlo_status show(struct lower *l, const struct mlo_value *value, int *slot,
                            struct cuda_tensor *tensor, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct place p, from;
    const struct mlo_node *node = value->producer    ? value->producer
                                  : value->use_count ? value->uses[0].node
                                  : l->g->node_count ? l->g->nodes[0]
                                                     : NULL;
    MLO_TRY(lower_demand(l, value, WANT_ROWS, &p, err));
    if (l->s->slots[p.slot].kind != CUDA_SLOT_ARENA) {
        from = p;
        MLO_TRY(lower_place_new(l, value, WANT_ROWS, &p, err));
        MLO_TRY(chain_copy(l, node, &from, &p, err));
    }
    *slot = lower_slot_at(l, &p);
    if (*slot < 0)
        return mlo_error_nomem(err);
    if (!place_tensor(&p, tensor))
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the cuda engine cannot deliver '%s': it has %d dims",
                               value->name, p.rank);
out:
    return status;
}

static enum mlo_status outputs(struct lower *l, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct cuda_schedule *s = l->s;
    size_t count = (size_t)l->g->output_count + 1, observed = l->observed_count + 1;
    s->output_slots = mlo_arena_calloc(l->arena, count, sizeof *s->output_slots);
    s->output_tensors = mlo_arena_calloc(l->arena, count, sizeof *s->output_tensors);
    s->observed_slots = mlo_arena_calloc(l->arena, observed, sizeof *s->observed_slots);
    s->observed_tensors = mlo_arena_calloc(l->arena, observed, sizeof *s->observed_tensors);
    if (!s->output_slots || !s->output_tensors || !s->observed_slots || !s->observed_tensors)
        return mlo_error_nomem(err);
    for (int i = 0; i < l->g->output_count; i++)
        MLO_TRY(show(l, l->g->outputs[i], &s->output_slots[i], &s->output_tensors[i], err));
    s->observed_count = (int)l->observed_count;
    for (size_t i = 0; i < l->observed_count; i++)
        MLO_TRY(show(l, l->observed[i], &s->observed_slots[i], &s->observed_tensors[i], err));
out:
    return status;
}

static enum mlo_status lower_graph(struct lower *l, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t nodes = (size_t)l->g->node_count + 1;
    l->values = mlo_arena_calloc(l->arena, (size_t)l->g->value_count + 1, sizeof *l->values);
    l->done = mlo_arena_calloc(l->arena, nodes, sizeof *l->done);
    l->pending = mlo_arena_calloc(l->arena, nodes, sizeof *l->pending);
    l->ahead = mlo_arena_calloc(l->arena, nodes, sizeof *l->ahead);
    if (!l->values || !l->done || !l->pending || !l->ahead)
        return mlo_error_nomem(err);
    MLO_TRY(inputs(l, err));
    MLO_TRY(attention_find(l, err));
    for (int n = 0; n < l->g->node_count; n++)
        MLO_TRY(lower_node(l, l->g->nodes[n], err));
    MLO_TRY(outputs(l, err));
out:
    return status;
}

enum mlo_status cuda_schedule_new(const struct mlo_model *model, const struct mlo_compile_options *o, int sm,
                                  struct cuda_schedule **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct cuda_schedule *s = calloc(1, sizeof *s);
    struct lower l = {.s = s, .sm = sm};
    const char *tf32 = getenv("MLOPT_CUDA_TF32");
    l.tf32 = !tf32 || strcmp(tf32, "0") != 0;
    if (!s || !(s->arena = mlo_arena_new())) {
        status = mlo_error_nomem(err);
        goto out;
    }
    l.arena = s->arena;
    MLO_TRY(mlo_engine_bind(model, o, &s->model, err));
    l.g = s->model->graph;
    l.observed_count = o->observe_count;
    l.observed = mlo_arena_calloc(s->arena, o->observe_count + 1, sizeof *l.observed);
    if (!l.observed) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_engine_observed(l.g, o, l.observed, err));
    MLO_TRY(cuda_prepare(s->model, l.observed, l.observed_count, err));
    MLO_TRY(lower_graph(&l, err));
    MLO_TRY(cuda_memory_plan(s, (int)l.observed_count, err));
    MLO_TRY(cuda_memory_verify(s, err));
    *out = s;
    s = NULL;
out:
    cuda_schedule_free(s);
    return status;
}

void cuda_schedule_free(struct cuda_schedule *schedule)
{
    if (!schedule)
        return;
    for (int i = 0; i < schedule->slot_count; i++)
        if (schedule->slots[i].owned)
            free((void *)(uintptr_t)schedule->slots[i].data);
    mlo_model_free(schedule->model);
    mlo_arena_free(schedule->arena);
    free(schedule);
}
