/* Static quantization: settings, insertion of QuantizeLinear/DequantizeLinear pairs. */
#include <stdio.h>
#include <string.h>

#include "passes/quantize_impl.h"

static const char *const schemes[] = {"int8", "uint8", NULL};
static const char *const forms[] = {"auto", "qdq", "qoperator", NULL};
static const char *const residuals[] = {"auto", "both", "skip", NULL};
static const char *const bias_corrections[] = {"none", "fast", "full", NULL};
static const char *const activation_types[] = {"auto", "uint8", "int8", "uint16", "int16", NULL};

const struct mlo_option_spec mlo_quantize_options[] = {
    {.name = "target",
     .type = MLO_OPT_STRING,
     .fallback = "mlopt-cpu",
     .choices = mlo_target_names,
     .description = "The runtime that the variant is made for: says which ops become integer, where pairs "
                    "go, and what the options that are auto stand for"},
    {.name = "scheme",
     .type = MLO_OPT_STRING,
     .fallback = "int8",
     .choices = schemes,
     .description = "The type of the weights: int8, or uint8 around zero point 128; of the target "
                    "mlopt-cuda-fp8: float8_e4m3fn"},
    {.name = "form",
     .type = MLO_OPT_STRING,
     .fallback = "auto",
     .choices = forms,
     .description = "qdq: QuantizeLinear and DequantizeLinear pairs around float operators; qoperator: "
                    "QLinearConv and the like where an operator has such a form, pairs elsewhere"},
    {.name = "calibrator",
     .type = MLO_OPT_STRING,
     .fallback = "minmax",
     .choices = mlo_calibrator_names,
     .description =
         "How observed values become a range: the extremes, averages of the samples' extremes, the central "
         "share of values, or the range of least relative entropy or squared error"},
    {.name = "percentile",
     .type = MLO_OPT_FLOAT,
     .fallback = "99.99",
     .min = 50,
     .max = 100,
     .description = "The central share of values, in percent, that the percentile calibrator keeps"},
    {.name = "per_channel",
     .type = MLO_OPT_SWITCH,
     .fallback = "auto",
     .description = "One weight scale per output channel instead of per tensor"},
    {.name = "activations",
     .type = MLO_OPT_STRING,
     .fallback = "auto",
     .choices = activation_types,
     .description = "The type of activations; of 16 bits needs opset 21, to which the model is raised"},
    {.name = "symmetric",
     .type = MLO_OPT_SWITCH,
     .fallback = "auto",
     .description = "Activations have their zero point in the middle (0, or 128 of uint8); auto: signed ones "
                    "do"},
    {.name = "symmetric_weights",
     .type = MLO_OPT_BOOL,
     .fallback = "true",
     .description = "Weights have zero point 0 (128 of uint8); else one that fits their extremes"},
    {.name = "reduce_range",
     .type = MLO_OPT_SWITCH,
     .fallback = "auto",
     .description =
         "Weights within 64 instead of 127, for CPUs without VNNI, whose sums saturate at 16 bits"},
    {.name = "residual",
     .type = MLO_OPT_STRING,
     .fallback = "auto",
     .choices = residuals,
     .description =
         "both: a residual Add reads both inputs in integers, as ONNX Runtime needs; skip: only the skip "
         "branch, for engines that add it to the accumulators of the Conv"},
    {.name = "rounding",
     .type = MLO_OPT_STRING,
     .fallback = "nearest",
     .choices = mlo_rounding_names,
     .description =
         "Of weights: to the nearest, or so that the node's outputs change least (gptq, adaround)"},
    {.name = "bias_correction",
     .type = MLO_OPT_STRING,
     .fallback = "none",
     .choices = bias_corrections,
     .description =
         "fast: biases take back what the rounding of weights did to the outputs' means; full: layer by "
         "layer, what was measured on the quantized model"},
    {.name = "min_sqnr",
     .type = MLO_OPT_FLOAT,
     .fallback = "20",
     .min = 0,
     .max = 100,
     .description = "In dB: a node stays in float where the integers leave a value that it reads less signal "
                    "to noise than this, by the calibration data; 0: none does"},
    MLO_OPTION_EXCLUDE,
    {.name = "float16",
     .type = MLO_OPT_STRINGS,
     .fallback = "",
     .description = "Names of nodes that compute in float16 instead of integers, for runtimes that do so"},
    {.name = "accuracy_drop",
     .type = MLO_OPT_STRING,
     .fallback = "none",
     .description = "A budget for the step: nodes are given back, to float16 where the target has it, else "
                    "float, until the metric on the data of the role "
                    "select is worse than the float model's by at most so much, such as 0.5pt"},
    {.name = "time_limit",
     .type = MLO_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = 1000000,
     .description = "Of accuracy_drop, in seconds: when it is over, the best mix so far is what comes out, "
                    "with its measured drop; 0: until the budget holds"},
    {.name = "metric",
     .type = MLO_OPT_STRING,
     .fallback = "top1",
     .description = "The metric of accuracy_drop"},
    {NULL},
};

/* The text of an option; `automatic` where it is auto. */
static const char *text_of(const json_t *options, const char *name, const char *automatic)
{
    const char *text = mlo_json_str(options, name, "auto");
    return strcmp(text, "auto") == 0 ? automatic : text;
}

/* What float8 has no form of. Calibrators that weigh the error of equal steps find nothing there: the
 * extremes are taken instead, and a note says so. */
static void settings_float8(const json_t *options, struct mlo_quantize_settings *out)
{
    static const char *const of_floats[] = {"minmax", "moving_average", "percentile"};
    bool types = out->activations == out->target->activations && out->symmetric && out->symmetric_weights &&
                 !out->reduce_range && strcmp(mlo_json_str(options, "scheme", "int8"), "int8") == 0;
    const struct {
        bool wrong;
        const char *what, *next;
    } rules[] = {
        {!types, "other types, zero points or ranges: activations and weights are float8_e4m3fn",
         "leave out scheme, activations, symmetric, symmetric_weights and reduce_range, or use the target "
         "mlopt-cuda"},
        {out->rounding.method != MLO_ROUND_NEAREST, "rounding but the nearest", "rounding: nearest"},
        {out->correct_bias, "bias_correction by the weights' error alone",
         "bias_correction: full, which measures the model, or none"},
        {out->qoperator, "form of integer operators", "form: qdq"},
    };
    out->weights = out->target->activations;
    out->weight_max = 448;
    for (size_t i = 0; i < MLO_COUNT(rules) && !out->refusal; i++)
        if (rules[i].wrong) {
            out->refused = rules[i].what;
            out->refusal = rules[i].next;
        }
    for (size_t i = 0; i < MLO_COUNT(of_floats); i++)
        if (strcmp(out->calibrator->name, of_floats[i]) == 0)
            return;
    out->calibrator = mlo_calibrator_find(of_floats[0]);
}

void mlo_quantize_settings_read(const json_t *options, struct mlo_quantize_settings *out)
{
    const struct mlo_target *target = mlo_target_find(mlo_json_str(options, "target", "mlopt-cpu"));
    *out = (struct mlo_quantize_settings){
        .target = target,
        .calibrator = mlo_calibrator_find(mlo_json_str(options, "calibrator", "minmax")),
        .percentile = mlo_json_f64(options, "percentile", 99.99),
        .min_sqnr = mlo_json_f64(options, "min_sqnr", 20),
        .activations = mlo_dtype_parse(text_of(options, "activations", mlo_dtype_name(target->activations))),
        .weights = mlo_dtype_parse(mlo_json_str(options, "scheme", "int8")),
        .symmetric_weights = mlo_json_bool(options, "symmetric_weights", true),
        .per_channel = mlo_json_bool(options, "per_channel", target->per_channel),
        .reduce_range = mlo_json_bool(options, "reduce_range", target->reduce_range),
        .skip_only = strcmp(text_of(options, "residual", target->skip_only ? "skip" : "both"), "skip") == 0,
        .qoperator = strcmp(text_of(options, "form", target->form), "qoperator") == 0,
        .correct_bias = strcmp(mlo_json_str(options, "bias_correction", "none"), "fast") == 0,
        .add_bias = strcmp(mlo_json_str(options, "bias_correction", "none"), "full") == 0,
        .exclude = json_object_get(options, "exclude"),
        .half = json_object_get(options, "float16"),
    };
    out->float_bias = target->float_bias && !out->qoperator; /* QLinearConv takes int32 */
    mlo_rounding_read(options, &out->rounding);
    out->symmetric =
        mlo_json_bool(options, "symmetric",
                      out->activations == target->activations ? target->symmetric
                                                              : mlo_dtype_info(out->activations)->is_signed);
    out->weight_max = out->reduce_range ? 64 : 127;
    if (mlo_dtype_info(target->activations)->is_float)
        settings_float8(options, out);
}

/* What the options ask for and the target's runtime does not take: allowed, but said. */
static void note_target(const struct mlo_quantize_settings *settings, struct mlo_pass_context *ctx)
{
    const struct mlo_target *target = settings->target;
    const char *wish = mlo_json_str(ctx->options, "calibrator", settings->calibrator->name);
    if (strcmp(wish, settings->calibrator->name) != 0)
        mlo_pass_note(
            ctx, "",
            "ranges are the extremes: the calibrator %s weighs the error of equal steps, which %s has not",
            wish, mlo_dtype_name(settings->activations));
    if (target->only && (settings->activations != target->activations || !settings->symmetric))
        mlo_pass_note(ctx, "",
                      "%s takes %s, and the options ask for others: it will compute in float or "
                      "refuse the model",
                      target->name, target->only);
    if (target->reduce_range && !settings->reduce_range)
        mlo_pass_note(ctx, "",
                      "on %s, weights of 8 bits saturate sums of two products at 16 bits: accuracy "
                      "measured elsewhere does not hold there",
                      target->name);
}

static bool is_integer_op(const struct mlo_node *node)
{
    static const char *const begins[] = {"QuantizeLinear", "DequantizeLinear", "QLinear",        "QGemm",
                                         "ConvInteger",    "MatMulInteger",    "DynamicQuantize"};
    for (size_t i = 0; i < MLO_COUNT(begins); i++)
        if (strncmp(node->op_type, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

bool mlo_graph_is_quantized(const struct mlo_graph *graph)
{
    for (int n = 0; n < graph->node_count; n++)
        if (is_integer_op(graph->nodes[n]))
            return true;
    return false;
}

enum mlo_status mlo_pass_refuse_quantized(const struct mlo_graph *graph, struct mlo_error *err)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        if (!is_integer_op(node))
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
    snprintf(text, sizeof text, "%.*s_scale", mlo_pass_cut(name, 230), name);
    group->scale_value = mlo_graph_add_constant_take(graph, text, &scale);
    snprintf(text, sizeof text, "%.*s_zero_point", mlo_pass_cut(name, 230), name);
    group->zero_point_value = mlo_graph_add_constant_take(graph, text, &zero);
    if (!group->scale_value || !group->zero_point_value)
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&scale);
    mlo_tensor_clear(&zero);
    return status;
}

/* Users that the plan has read integers use `to`. */
static bool replace_integer_uses(const struct mlo_quantize_plan *plan, struct mlo_value *from,
                                 struct mlo_value *to)
{
    for (int u = from->use_count - 1; u >= 0; u--) {
        struct mlo_use use = from->uses[u];
        if (mlo_quantize_is_integer(plan, use.node) && !mlo_node_set_input(use.node, use.index, to))
            return false;
    }
    return true;
}

/* Puts a pair behind `value`: users read the dequantized value (all of them, or what runs in integers only,
 * as the target wants it), graph outputs keep the float one. */
static enum mlo_status insert_pair(struct mlo_value *value, struct mlo_node *before,
                                   const struct mlo_quantize_settings *settings,
                                   struct mlo_quantize_plan *plan, struct mlo_error *err)
{
    struct mlo_quantize_value *group = &plan->values[mlo_quantize_root(plan, value->index)];
    enum mlo_dtype dtype = settings->activations;
    char text[256];
    struct mlo_graph *graph = value->graph;
    struct mlo_type type = value->type;
    enum mlo_status status = make_params(graph, value->name, dtype, group, err);
    if (status != MLO_OK)
        return status;
    snprintf(text, sizeof text, "%.*s_dequantized", mlo_pass_cut(value->name, 230), value->name);
    struct mlo_value *dequantized = mlo_graph_add_value(graph, text, &type);
    type.dtype = dtype;
    snprintf(text, sizeof text, "%.*s_quantized", mlo_pass_cut(value->name, 230), value->name);
    struct mlo_value *quantized = mlo_graph_add_value(graph, text, &type);
    if (!dequantized || !quantized ||
        !(settings->target->apart ? replace_integer_uses(plan, value, dequantized)
                                  : mlo_value_replace_uses(value, dequantized)))
        return mlo_error_nomem(err);
    struct mlo_value *q_in[] = {value, group->scale_value, group->zero_point_value};
    struct mlo_value *dq_in[] = {quantized, group->scale_value, group->zero_point_value};
    snprintf(text, sizeof text, "%.*s_QuantizeLinear", mlo_pass_cut(value->name, 230), value->name);
    if (!mlo_graph_add_node(graph, before, "", "QuantizeLinear", text, q_in, 3, &quantized, 1))
        return mlo_error_nomem(err);
    snprintf(text, sizeof text, "%.*s_DequantizeLinear", mlo_pass_cut(value->name, 230), value->name);
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
        enum mlo_status status = insert_pair(value, nodes[0], settings, plan, err);
        if (status != MLO_OK)
            return status;
    }
    for (int n = 0; n < count; n++)
        for (int o = 0; o < nodes[n]->output_count; o++) {
            struct mlo_value *value = nodes[n]->outputs[o];
            if (!value || value->index >= plan->value_count || !plan->values[value->index].chosen)
                continue;
            struct mlo_node *before = n + 1 < count ? nodes[n + 1] : NULL;
            enum mlo_status status = insert_pair(value, before, settings, plan, err);
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
    cache.entries = mlo_arena_calloc(plan->arena, (size_t)plan->weighted_count + 1, sizeof *cache.entries);
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

/* The nodes that are to compute in float16, between Casts. */
static enum mlo_status to_halves(struct mlo_model *model, const json_t *names, struct mlo_pass_context *ctx,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    json_t *given = json_pack("{s:O}", "only", names), *options = NULL;
    if (!given)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_options_resolve(mlo_to_float16_options, given, &options, err));
    struct mlo_pass_context half = {.options = options, .stats = ctx->stats, .notes = ctx->notes};
    MLO_TRY(mlo_graph_infer(model->graph, err));
    MLO_TRY(mlo_pass_to_float16(model, &half, err));
out:
    json_decref(given);
    json_decref(options);
    return status;
}

const struct mlo_quantize_precision *mlo_quantize_ladder(const json_t *options)
{
    static const struct mlo_quantize_precision halves[] = {{"float16", 0.5}, {"float", 1}, {NULL, 0}};
    const struct mlo_target *target = mlo_target_find(mlo_json_str(options, "target", "mlopt-cpu"));
    return target && target->half ? halves : &halves[1];
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
    MLO_TRY(mlo_pass_refuse_quantized(model->graph, err));
    note_target(&settings, ctx);
    const struct mlo_dtype_info *type = mlo_dtype_info(settings.activations);
    MLO_TRY(mlo_pass_raise_opset_to(model, type->bits > 8 ? 21 : type->is_float ? 19 : 13, ctx, err));
    MLO_TRY(mlo_pass_remove_dead(model, &dead, err));
    MLO_TRY(mlo_quantize_settle(model->graph, &settings, arena, ctx, &plan, err));
    mlo_quantize_note_ranges(model->graph, &plan, ctx);
    MLO_TRY(rewrite(model, &settings, ctx, &plan, err));
    if (settings.qoperator) {
        struct mlo_pass_context integer = {.notes = ctx->notes};
        MLO_TRY(mlo_graph_infer(model->graph, err));
        MLO_TRY(mlo_pass_to_qoperator(model, &integer, err));
    }
    if (json_array_size(settings.half) > 0)
        MLO_TRY(to_halves(model, settings.half, ctx, err));
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
    MLO_TRY(mlo_pass_refuse_quantized(model->graph, err));
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
