/* Static int8 quantization in QDQ form: settings, insertion of QuantizeLinear/DequantizeLinear pairs. */
#include <stdio.h>
#include <string.h>

#include "passes/quantize_impl.h"

static const char *const schemes[] = {"int8", NULL};
static const char *const forms[] = {"qdq", NULL};
static const char *const calibrators[] = {"minmax", "percentile", NULL};
static const char *const residuals[] = {"both", "skip", NULL};
static const char *const activation_types[] = {"uint8", "int8", NULL};

const struct mlo_option_spec mlo_quantize_options[] = {
    {.name = "scheme",
     .type = MLO_OPT_STRING,
     .fallback = "int8",
     .choices = schemes,
     .description = "int8: weights and activations of Conv, Gemm and MatMul in 8 bits"},
    {.name = "form",
     .type = MLO_OPT_STRING,
     .fallback = "qdq",
     .choices = forms,
     .description = "qdq: QuantizeLinear and DequantizeLinear pairs around float operators"},
    {.name = "calibrator",
     .type = MLO_OPT_STRING,
     .fallback = "minmax",
     .choices = calibrators,
     .description = "How observed values become a range"},
    {.name = "percentile",
     .type = MLO_OPT_FLOAT,
     .fallback = "99.99",
     .min = 50,
     .max = 100,
     .description = "The central share of values, in percent, that the percentile calibrator keeps"},
    {.name = "per_channel",
     .type = MLO_OPT_BOOL,
     .fallback = "true",
     .description = "One weight scale per output channel instead of per tensor"},
    {.name = "activations",
     .type = MLO_OPT_STRING,
     .fallback = "uint8",
     .choices = activation_types,
     .description = "uint8: asymmetric; int8: symmetric, zero point 0"},
    {.name = "reduce_range",
     .type = MLO_OPT_BOOL,
     .fallback = "false",
     .description =
         "Weights within 64 instead of 127, for CPUs without VNNI, whose sums saturate at 16 bits"},
    {.name = "residual",
     .type = MLO_OPT_STRING,
     .fallback = "both",
     .choices = residuals,
     .description =
         "both: a residual Add reads both inputs in integers, as ONNX Runtime needs; skip: only the skip "
         "branch, for engines that add it to the accumulators of the Conv"},
    {.name = "exclude",
     .type = MLO_OPT_STRINGS,
     .fallback = "",
     .description = "Names of nodes to leave in float"},
    {NULL},
};

void mlo_quantize_settings_read(const json_t *options, struct mlo_quantize_settings *out)
{
    *out = (struct mlo_quantize_settings){
        .percentile_calibrator = strcmp(mlo_json_str(options, "calibrator", "minmax"), "percentile") == 0,
        .skip_only = strcmp(mlo_json_str(options, "residual", "both"), "skip") == 0,
        .percentile = mlo_json_f64(options, "percentile", 99.99),
        .per_channel = mlo_json_bool(options, "per_channel", true),
        .reduce_range = mlo_json_bool(options, "reduce_range", false),
        .exclude = json_object_get(options, "exclude"),
    };
    out->activations =
        strcmp(mlo_json_str(options, "activations", "uint8"), "int8") == 0 ? MLO_INT8 : MLO_UINT8;
    out->weight_max = out->reduce_range ? 64 : 127;
}

bool mlo_graph_is_quantized(const struct mlo_graph *graph)
{
    for (int n = 0; n < graph->node_count; n++)
        if (mlo_node_is(graph->nodes[n], "DequantizeLinear"))
            return true;
    return false;
}

static enum mlo_status refuse_quantized(const struct mlo_graph *graph, struct mlo_error *err)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        if (!mlo_node_is(node, "QuantizeLinear") && !mlo_node_is(node, "DequantizeLinear"))
            continue;
        mlo_error_set(err, MLO_ECONFLICT, "the model is quantized already: node '%s' is a %s", node->name,
                      node->op_type);
        mlo_error_where(err, "node '%s'", node->name);
        mlo_error_hint(err, "quantize the float model that it was made from");
        return MLO_ECONFLICT;
    }
    return MLO_OK;
}

/* Makes the initializers of a group's scale and zero point, once. */
static enum mlo_status make_params(struct mlo_graph *graph, const char *name, enum mlo_dtype dtype,
                                   struct mlo_quantize_value *group, struct mlo_error *err)
{
    char text[256];
    enum mlo_status status;
    struct mlo_tensor scale = {0}, zero = {0};
    if (group->scale_value)
        return MLO_OK;
    MLO_TRY(mlo_tensor_init(&scale, MLO_FLOAT32, 0, NULL, err));
    MLO_TRY(mlo_tensor_init(&zero, dtype, 0, NULL, err));
    *(float *)scale.data = group->scale;
    mlo_tensor_set_f64(&zero, 0, group->zero_point);
    snprintf(text, sizeof text, "%.230s_scale", name);
    group->scale_value = mlo_graph_add_constant_take(graph, text, &scale);
    snprintf(text, sizeof text, "%.230s_zero_point", name);
    group->zero_point_value = mlo_graph_add_constant_take(graph, text, &zero);
    if (!group->scale_value || !group->zero_point_value)
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&scale);
    mlo_tensor_clear(&zero);
    return status;
}

/* Puts a pair behind `value`: all users read the dequantized value, graph outputs keep the float one. */
static enum mlo_status insert_pair(struct mlo_value *value, struct mlo_node *before, enum mlo_dtype dtype,
                                   struct mlo_quantize_value *group, struct mlo_error *err)
{
    char text[256];
    struct mlo_graph *graph = value->graph;
    struct mlo_type type = value->type;
    enum mlo_status status = make_params(graph, value->name, dtype, group, err);
    if (status != MLO_OK)
        return status;
    snprintf(text, sizeof text, "%.230s_dequantized", value->name);
    struct mlo_value *dequantized = mlo_graph_add_value(graph, text, &type);
    type.dtype = dtype;
    snprintf(text, sizeof text, "%.230s_quantized", value->name);
    struct mlo_value *quantized = mlo_graph_add_value(graph, text, &type);
    if (!dequantized || !quantized || !mlo_value_replace_uses(value, dequantized))
        return mlo_error_nomem(err);
    struct mlo_value *q_in[] = {value, group->scale_value, group->zero_point_value};
    struct mlo_value *dq_in[] = {quantized, group->scale_value, group->zero_point_value};
    snprintf(text, sizeof text, "%.230s_QuantizeLinear", value->name);
    if (!mlo_graph_add_node(graph, before, "", "QuantizeLinear", text, q_in, 3, &quantized, 1))
        return mlo_error_nomem(err);
    snprintf(text, sizeof text, "%.230s_DequantizeLinear", value->name);
    if (!mlo_graph_add_node(graph, before, "", "DequantizeLinear", text, dq_in, 3, &dequantized, 1))
        return mlo_error_nomem(err);
    return MLO_OK;
}

static enum mlo_status insert_pairs(struct mlo_graph *graph, const struct mlo_quantize_settings *settings,
                                    struct mlo_quantize_plan *plan, struct mlo_error *err)
{
    /* The nodes as they were: each pair goes in front of the node that followed the producer. */
    int count = graph->node_count, inputs = graph->input_count;
    struct mlo_node **nodes = mlo_arena_memdup(plan->arena, graph->nodes, (size_t)count * sizeof *nodes);
    if (!nodes)
        return mlo_error_nomem(err);
    for (int i = 0; i < inputs; i++) {
        struct mlo_value *value = graph->inputs[i];
        if (!plan->values[value->index].chosen)
            continue;
        struct mlo_quantize_value *group = &plan->values[mlo_quantize_root(plan, value->index)];
        enum mlo_status status = insert_pair(value, nodes[0], settings->activations, group, err);
        if (status != MLO_OK)
            return status;
    }
    for (int n = 0; n < count; n++)
        for (int o = 0; o < nodes[n]->output_count; o++) {
            struct mlo_value *value = nodes[n]->outputs[o];
            if (!value || value->index >= plan->value_count || !plan->values[value->index].chosen)
                continue;
            struct mlo_quantize_value *group = &plan->values[mlo_quantize_root(plan, value->index)];
            struct mlo_node *before = n + 1 < count ? nodes[n + 1] : NULL;
            enum mlo_status status = insert_pair(value, before, settings->activations, group, err);
            if (status != MLO_OK)
                return status;
        }
    return MLO_OK;
}

static enum mlo_status rewrite(struct mlo_model *model, const struct mlo_quantize_settings *settings,
                               struct mlo_pass_context *ctx, struct mlo_quantize_plan *plan,
                               struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_graph *graph = model->graph;
    struct mlo_quantize_cache cache = {.cap = plan->weighted_count};
    cache.entries = mlo_arena_calloc(plan->arena, (size_t)plan->weighted_count, sizeof *cache.entries);
    if (!cache.entries)
        return mlo_error_nomem(err);
    MLO_TRY(insert_pairs(graph, settings, plan, err));
    for (int i = 0; i < plan->weighted_count; i++) {
        struct mlo_node *node = plan->weighted[i];
        /* Input 0 comes from the pair's DequantizeLinear now, whose scale is its input 1. */
        const struct mlo_tensor *scale = mlo_node_const(node->inputs[0]->producer, 1);
        MLO_TRY(
            mlo_quantize_node(node, *(const float *)scale->data, settings, plan->arena, &cache, ctx, err));
        ctx->changes++;
    }
    mlo_graph_remove_unused_values(graph);
out:
    return status;
}

enum mlo_status mlo_pass_quantize(struct mlo_model *model, struct mlo_pass_context *ctx,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_quantize_settings settings;
    struct mlo_quantize_plan plan;
    struct mlo_pass_context dead = {.notes = ctx->notes};
    struct mlo_arena *arena = mlo_arena_new();
    if (!arena)
        return mlo_error_nomem(err);
    mlo_quantize_settings_read(ctx->options, &settings);
    MLO_TRY(refuse_quantized(model->graph, err));
    MLO_TRY(mlo_pass_raise_opset_to(model, 13, ctx, err));
    MLO_TRY(mlo_pass_remove_dead(model, &dead, err));
    MLO_TRY(mlo_quantize_plan_make(model->graph, &settings, arena, ctx, &plan, err));
    MLO_TRY(mlo_quantize_ranges(model->graph, &settings, ctx, &plan, err));
    MLO_TRY(rewrite(model, &settings, ctx, &plan, err));
out:
    mlo_arena_free(arena);
    return status;
}

enum mlo_status mlo_quantize_wanted(const struct mlo_model *model, const json_t *options,
                                    struct mlo_arena *arena, const char ***names, size_t *count,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_quantize_settings settings;
    struct mlo_quantize_plan plan;
    *names = NULL;
    *count = 0;
    mlo_quantize_settings_read(options, &settings);
    MLO_TRY(refuse_quantized(model->graph, err));
    MLO_TRY(mlo_quantize_plan_make(model->graph, &settings, arena, NULL, &plan, err));
    *names = mlo_arena_calloc(arena, (size_t)plan.value_count + 1, sizeof **names);
    if (!*names)
        return mlo_error_nomem(err);
    for (int i = 0; i < plan.value_count; i++)
        if (plan.values[i].chosen)
            (*names)[(*count)++] = mlo_arena_strdup(arena, model->graph->values[i]->name);
    for (size_t i = 0; i < *count; i++)
        if (!(*names)[i])
            return mlo_error_nomem(err);
out:
    return status;
}
