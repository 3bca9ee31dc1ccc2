/* Values that the integers do not carry. A value that shares its range with louder ones (the inputs of a
 * Concat do, as its output has one scale), or that a few outliers stretch, is left a few levels of 256, and
 * whatever multiplies it multiplies noise. It is told by the signal to quantization noise ratio that the
 * range leaves it by its histogram: sum of x^2 / sum of (x - q(x))^2 over what is not clipped. Nodes that
 * read less than min_sqnr stay in float. At 20 dB noise has a hundredth of the signal's power: what 3 bits
 * leave of a sine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passes/quantize_impl.h"

struct look {
    const struct mlo_graph *graph;
    const struct mlo_quantize_settings *settings;
    const struct mlo_stats *stats;
    int *seen, stamp; /* by value: the node that was asked for when it was looked at */
};

/* Of `value`, were it quantized with a group's parameters; infinite where nothing is known to be lost. */
static double sqnr_of(const struct look *look, const struct mlo_value *value,
                      const struct mlo_quantize_value *group)
{
    int least, most;
    double signal, noise;
    const struct mlo_tensor_stats *t = mlo_stats_find(look->stats, value->name);
    mlo_quantize_limits(look->settings->activations, &least, &most);
    const struct mlo_calibration c = {.levels = most - least + 1};
    if (!t || t->count == 0 || mlo_dtype_info(look->settings->activations)->is_float)
        return INFINITY; /* of a float, the error follows the value: no range leaves it a few levels */
    mlo_calibration_power(t, &c, (float)(least - group->zero_point) * group->scale,
                          (float)(most - group->zero_point) * group->scale, &signal, &noise);
    return mlo_calibration_decibels(signal, noise);
}

/* The least of what flows into `value` unchanged: its own, and that of what a Concat put together. */
static void worst_inside(struct look *look, const struct mlo_value *value,
                         const struct mlo_quantize_value *group, struct mlo_quantize_noise *worst)
{
    if (look->seen[value->index] == look->stamp)
        return;
    look->seen[value->index] = look->stamp;
    double here = sqnr_of(look, value, group);
    if (here < worst->sqnr_db)
        *worst = (struct mlo_quantize_noise){value, here};
    const struct mlo_node *node = value->producer;
    bool concat = node && mlo_node_is(node, "Concat");
    if (!node || !node->op || !(concat || (node->op->flags & MLO_OP_RANGE_KEEP)))
        return;
    for (int i = 0; i < (concat ? node->input_count : 1); i++)
        if (node->inputs[i] && !node->inputs[i]->constant)
            worst_inside(look, node->inputs[i], group, worst);
}

/* Marks the integer nodes that read too much noise; how many are new. */
static int mark(struct look *look, struct mlo_quantize_plan *plan, struct mlo_quantize_noise *noise)
{
    int found = 0;
    for (int n = 0; n < look->graph->node_count; n++) {
        const struct mlo_node *node = look->graph->nodes[n];
        struct mlo_quantize_noise worst = {NULL, INFINITY};
        if (!mlo_quantize_is_integer(plan, node) || noise[n].value)
            continue;
        look->stamp++;
        for (int i = 0; i < node->input_count; i++) {
            const struct mlo_value *v = node->inputs[i];
            if (v && !v->constant && plan->values[v->index].chosen)
                worst_inside(look, v, &plan->values[mlo_quantize_root(plan, v->index)], &worst);
        }
        if (worst.sqnr_db < look->settings->min_sqnr) {
            noise[n] = worst;
            found++;
        }
    }
    return found;
}

void mlo_quantize_noise_text(const struct mlo_quantize_settings *settings, int node, char *out, size_t size)
{
    const struct mlo_quantize_noise *noise = &settings->noise[node];
    snprintf(out, size,
             "%s leaves '%.160s', which it reads, a signal to noise ratio of %.1f dB, and min_sqnr asks for "
             "%g",
             mlo_dtype_name(settings->activations), noise->value->name, noise->sqnr_db, settings->min_sqnr);
}

enum mlo_status mlo_quantize_settle(const struct mlo_graph *graph, struct mlo_quantize_settings *settings,
                                    struct mlo_arena *arena, struct mlo_pass_context *ctx,
                                    struct mlo_quantize_plan *plan, struct mlo_error *err)
{
    enum mlo_status status;
    size_t values = (size_t)graph->value_count + 1, nodes = (size_t)graph->node_count + 1;
    struct mlo_quantize_range *ranges = mlo_arena_calloc(arena, values, sizeof *ranges);
    struct mlo_quantize_noise *noise = mlo_arena_calloc(arena, nodes, sizeof *noise);
    struct look look = {graph, settings, ctx->stats, mlo_arena_calloc(arena, values, sizeof(int)), 0};
    if (!ranges || !noise || !look.seen)
        return mlo_error_nomem(err);
    int found = settings->min_sqnr > 0;
    settings->noise = noise;
    while (
        found) { /* each turn leaves a node in float at least; what shared a range with it may get better */
        MLO_TRY(mlo_quantize_plan_make(graph, settings, arena, NULL, plan, err));
        MLO_TRY(mlo_quantize_ranges(graph, settings, ctx->stats, ranges, plan, err));
        found = mark(&look, plan, noise);
    }
    MLO_TRY(mlo_quantize_plan_make(graph, settings, arena, ctx, plan, err));
    MLO_TRY(mlo_quantize_ranges(graph, settings, ctx->stats, ranges, plan, err));
out:
    return status;
}

enum mlo_status mlo_quantize_noisy(const struct mlo_model *model, const json_t *options,
                                   const struct mlo_stats *stats, json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_quantize_settings settings;
    struct mlo_quantize_plan plan;
    struct mlo_arena *arena = mlo_arena_new();
    json_t *notes = json_array(), *rows = json_array();
    struct mlo_pass_context ctx = {.notes = notes, .stats = stats};
    *out = NULL;
    if (!arena || !notes || !rows) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_quantize_settings_read(options, &settings);
    MLO_TRY(mlo_quantize_settle(model->graph, &settings, arena, &ctx, &plan, err));
    for (int n = 0; n < model->graph->node_count; n++) {
        const struct mlo_node *node = model->graph->nodes[n];
        char why[320];
        if (!settings.noise[n].value)
            continue;
        mlo_quantize_noise_text(&settings, n, why, sizeof why);
        if (json_array_append_new(rows, json_pack("{s:s,s:s,s:s,s:f,s:s}", "node", node->name, "op",
                                                  node->op_type, "value", settings.noise[n].value->name,
                                                  "sqnr_db", settings.noise[n].sqnr_db, "why", why)) != 0)
            status = mlo_error_nomem(err);
    }
    if (status == MLO_OK)
        *out = json_incref(rows);
out:
    json_decref(rows);
    json_decref(notes);
    mlo_arena_free(arena);
    return status;
}
