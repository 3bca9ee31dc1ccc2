/* What the quantize pass makes of each node, in words: for reports. */
#include <string.h>

#include "passes/quantize_impl.h"

static const char *noted(const json_t *notes, const struct mlo_node *node)
{
    size_t i;
    json_t *note;
    const char *found = NULL;
    json_array_foreach((json_t *)notes, i, note)
    {
        if (strcmp(mlo_json_str(note, "node", ""), node->name) == 0)
            found = mlo_json_str(note, "note", NULL);
    }
    return found;
}

static bool is_float(const struct mlo_value *value)
{
    return value && value->type.dtype == MLO_FLOAT32;
}

/* Why a node that does not read integers does not, where the plan left no note. */
static const char *why_float(const struct mlo_quantize_settings *settings,
                             const struct mlo_quantize_plan *plan, const struct mlo_node *node,
                             struct mlo_arena *arena)
{
    enum mlo_target_rule rule = mlo_target_rule(settings->target, node);
    const struct mlo_value *y = node->output_count ? node->outputs[0] : NULL;
    if (!is_float(y))
        return "it computes no float values";
    if (rule == MLO_RULE_FLOAT)
        return mlo_arena_printf(arena, "the target %s has no integer form of %s", settings->target->name,
                                node->op_type);
    if (y->is_output)
        return "it makes an output of the model, which stays float32";
    if (!plan->values[y->index].chosen)
        return "nothing that runs in integers reads what it makes";
    return "its inputs are not wanted in integers";
}

enum mlo_status mlo_quantize_explain(const struct mlo_model *model, const json_t *options,
                                     struct mlo_arena *arena, struct mlo_quantize_reason **out, size_t *count,
                                     struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_quantize_settings settings;
    struct mlo_quantize_plan plan;
    const struct mlo_graph *graph = model->graph;
    struct mlo_pass_context ctx = {.options = options, .notes = json_array()};
    *count = (size_t)graph->node_count;
    *out = mlo_arena_calloc(arena, *count + 1, sizeof **out);
    if (!ctx.notes || !*out) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_quantize_settings_read(options, &settings);
    MLO_TRY(mlo_quantize_plan_make(graph, &settings, arena, &ctx, &plan, err));
    for (size_t n = 0; n < *count; n++) {
        const struct mlo_node *node = graph->nodes[n], *before = mlo_node_producer(node, 0);
        struct mlo_quantize_reason *row = &(*out)[n];
        const char *note = noted(ctx.notes, node);
        row->node = node;
        if (mlo_quantize_is_integer(&plan, node))
            row->how = MLO_RUNS_INTEGER;
        else if (before && mlo_quantize_is_integer(&plan, before) &&
                 mlo_target_rule(settings.target, node) == MLO_RULE_FUSED &&
                 mlo_value_sole_user(node->inputs[0]) == node)
            row->how = MLO_RUNS_FUSED;
        else
            row->how = MLO_RUNS_FLOAT;
        if (row->how == MLO_RUNS_INTEGER)
            continue;
        row->why = row->how == MLO_RUNS_FUSED ? mlo_arena_printf(arena, "it is part of '%s'", before->name)
                   : note                     ? mlo_arena_strdup(arena, note)
                                              : why_float(&settings, &plan, node, arena);
        if (!row->why) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
out:
    json_decref(ctx.notes);
    return status;
}
