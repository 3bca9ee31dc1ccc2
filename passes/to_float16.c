/* Weights and arithmetic in float16 or bfloat16. Nodes of the list below, and those that are asked for, stay
 * in float32 between Casts, and so does what a half float cannot hold (Micikevicius et al. 2018, "Mixed
 * Precision Training", is where the range is discussed). */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passes/passes_impl.h"

static const char *const types[] = {"float16", "bfloat16", NULL};

const struct mlo_option_spec mlo_to_float16_options[] = {
    {.name = "type",
     .type = MLO_OPT_STRING,
     .fallback = "float16",
     .choices = types,
     .description = "float16: 11 bits, up to 65504; bfloat16: 8 bits, the range of float32 (opset 22)"},
    {.name = "keep",
     .type = MLO_OPT_STRINGS,
     .fallback = "",
     .description = "Nodes that stay in float32, by their names or op types"},
    {.name = "only",
     .type = MLO_OPT_STRINGS,
     .fallback = "",
     .description = "Nodes that become halves, by their names; none: all that can"},
    {.name = "keep_io",
     .type = MLO_OPT_BOOL,
     .fallback = "true",
     .description = "The model's inputs and outputs stay float32, by Casts"},
    {NULL},
};

static const float largest_half = 65504.0f;
static const float smallest_half = 0x1p-25f; /* up to here numbers become 0 */

/* Ops that stay in float32. Sums and positions along an axis that half floats cannot count, random numbers,
 * ops whose type is not that of their inputs, what ONNX defines for no halves (Celu to opset 27, IsInf to
 * opset 19), and what it does define for them and runtimes lack (MeanVarianceNormalization, OneHot). */
static const char *const float_only[] = {
    "Bernoulli",
    "BlackmanWindow",
    "Celu",
    "Constant",
    "ConstantOfShape",
    "CumSum",
    "DFT",
    "EyeLike",
    "HammingWindow",
    "HannWindow",
    "If",
    "IsInf",
    "Loop",
    "MeanVarianceNormalization",
    "MelWeightMatrix",
    "Multinomial",
    "NonMaxSuppression",
    "OneHot",
    "Optional",
    "OptionalGetElement",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Range",
    "RoiAlign",
    "STFT",
    "Scan",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceInsert",
    "SequenceMap",
    "SplitToSequence",
    "TfIdfVectorizer",
    "ConcatFromSequence",
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "Upsample",
};
/* What ONNX defines for float16 and came to bfloat16 behind BFLOAT16_OPSET only: the opset; NEVER: not in any
 * to 28. */
enum { BFLOAT16_OPSET = 22, FLOAT16_OPSET = 13, NEVER = INT_MAX };
static const struct {
    const char *op_type;
    int since;
} late_bfloat16[] = {
    {"Compress", 28}, {"Einsum", 28}, {"OptionalHasElement", 28}, {"ReverseSequence", 28}, {"Shrink", NEVER},
    {"TopK", 24},     {"Unique", 28},
};
/* Ops of com.microsoft that take halves. */
static const char *const microsoft_half[] = {
    "Attention",   "BiasGelu", "FastGelu",  "FusedGemm",
    "FusedMatMul", "Gelu",     "QuickGelu", "SkipLayerNormalization",
};

struct convert {
    struct mlo_graph *graph;
    struct mlo_pass_context *ctx;
    struct mlo_arena *arena;
    enum mlo_dtype type;
    int64_t opset;
    bool keep_io;
    bool *half; /* by node index, as it was */
    int node_count;
    struct mlo_node **nodes; /* as they were, sorted by address, with their place in `half` */
    int *place;
    char refused[320]; /* why the first node that was kept is; "" */
};

static bool is_float(const struct mlo_value *value)
{
    return value && value->type.dtype == MLO_FLOAT32;
}

static bool touches_floats(const struct mlo_node *node)
{
    for (int i = 0; i < node->input_count; i++)
        if (is_float(node->inputs[i]))
            return true;
    for (int i = 0; i < node->output_count; i++)
        if (is_float(node->outputs[i]))
            return true;
    return false;
}

static bool has_body(const struct mlo_node *node)
{
    for (int a = 0; a < node->attr_count; a++)
        if (node->attrs[a].type == MLO_ATTR_GRAPH || node->attrs[a].type == MLO_ATTR_GRAPHS)
            return true;
    return false;
}

/* --- which nodes --------------------------------------------------------------------------------------- */

/* Sizes and positions that a model computes with floats must stay exact. */
static bool computes_shapes(const struct mlo_node *node)
{
    for (int o = 0; o < node->output_count; o++)
        if (node->outputs[o] && (node->outputs[o]->known || node->outputs[o]->symbols))
            return true;
    return false;
}

static bool has_bfloat16(const struct mlo_node *node, int64_t opset)
{
    for (size_t i = 0; i < MLO_COUNT(late_bfloat16); i++)
        if (mlo_node_is(node, late_bfloat16[i].op_type))
            return opset >= late_bfloat16[i].since;
    return true;
}

/* Why the node stays in float32, other than by options and numbers; NULL: it need not. */
static const char *obstacle(const struct convert *c, const struct mlo_node *node)
{
    bool onnx = node->domain[0] == '\0';
    if (c->type == MLO_BFLOAT16 && !has_bfloat16(node, c->opset))
        return "ONNX has no form of it in bfloat16 at the model's opset";
    if (onnx ? mlo_str_among(node->op_type, float_only, MLO_COUNT(float_only))
             : strcmp(node->domain, "com.microsoft") != 0 ||
                   !mlo_str_among(node->op_type, microsoft_half, MLO_COUNT(microsoft_half)))
        return "there is no form of it in half floats that every runtime has";
    if (has_body(node))
        return "its bodies compute in float32";
    if (computes_shapes(node))
        return "it computes sizes, which must stay exact";
    if (strstr(node->op_type, "LayerNormalization") && !mlo_node_only_first_output(node))
        return "its means and deviations are float32";
    return NULL;
}

static bool is_asked_for(const json_t *keep, const struct mlo_node *node)
{
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)keep, i, item)
    {
        const char *text = json_string_value(item);
        if (strcmp(text, node->name) == 0 || strcmp(text, node->op_type) == 0)
            return true;
    }
    return false;
}

/* Every name that is asked for must be there. */
static enum mlo_status check_keep(const struct convert *c, const json_t *keep, struct mlo_error *err)
{
    size_t i;
    json_t *item;
    size_t count = (size_t)c->graph->node_count;
    const char **names = mlo_arena_calloc(c->arena, 2 * count + 1, sizeof *names);
    if (!names)
        return mlo_error_nomem(err);
    for (size_t n = 0; n < count; n++) {
        names[2 * n] = c->graph->nodes[n]->name;
        names[2 * n + 1] = c->graph->nodes[n]->op_type;
    }
    json_array_foreach((json_t *)keep, i, item)
    {
        const char *text = json_string_value(item);
        if (mlo_str_among(text, names, 2 * count))
            continue;
        mlo_error_set(err, MLO_EINVAL, "the model has no node and no op '%s' to keep in float32", text);
        mlo_error_where(err, "option 'keep'");
        mlo_error_suggest(err, text, names, 2 * count);
        return MLO_EINVAL;
    }
    return MLO_OK;
}

/* --- what halves cannot hold -----------------------------------------------------------------------------
 */

static void keep_node(struct convert *c, const struct mlo_node *node, const char *why)
{
    if (node->graph != c->graph || !c->half[node->index])
        return;
    c->half[node->index] = false;
    if (!*c->refused)
        snprintf(c->refused, sizeof c->refused, "'%.100s' cannot: %.200s", node->name, why);
    mlo_pass_note(c->ctx, node->name, "%s stays in float32: %s", node->op_type, why);
}

/* Whether anything that becomes halves makes or reads the value. */
static bool concerns(const struct convert *c, const struct mlo_value *value)
{
    bool found = value->producer && c->half[value->producer->index];
    for (int u = 0; u < value->use_count && !found; u++)
        found = value->uses[u].node->graph != c->graph || c->half[value->uses[u].node->index];
    return found;
}

/* Keeps whatever makes or reads a value that goes beyond 65504 in float32. */
static void guard_value(struct convert *c, const struct mlo_value *value, double magnitude, const char *when)
{
    char why[256];
    snprintf(why, sizeof why, "'%.150s' %s %.6g, beyond the 65504 of float16", value->name, when, magnitude);
    if (value->producer)
        keep_node(c, value->producer, why);
    for (int u = 0; u < value->use_count; u++)
        keep_node(c, value->uses[u].node, why);
}

static void guard(struct convert *c)
{
    for (int v = 0; v < c->graph->value_count; v++) {
        const struct mlo_value *value = c->graph->values[v];
        const struct mlo_tensor_stats *seen =
            c->ctx->stats ? mlo_stats_find(c->ctx->stats, value->name) : NULL;
        if (!is_float(value) || !concerns(c, value))
            continue;
        if (seen && fmaxf(-seen->min, seen->max) > largest_half)
            guard_value(c, value, (double)fmaxf(-seen->min, seen->max), "reached on calibration data");
        if (!value->constant)
            continue;
        const float *x = value->constant->data;
        size_t count = mlo_tensor_count(value->constant), lost = 0;
        float largest = 0;
        for (size_t i = 0; i < count; i++) {
            float a = fabsf(x[i]);
            if (a < INFINITY)
                largest = fmaxf(largest, a);
            lost += a > 0 && a <= smallest_half;
        }
        if (largest > largest_half)
            guard_value(c, value, (double)largest, "holds");
        else if (lost)
            mlo_pass_note(c->ctx, value->name, "%zu of %zu numbers are too small for float16 and become 0",
                          lost, count);
    }
}

static enum mlo_status choose(struct convert *c, struct mlo_error *err)
{
    const json_t *keep = json_object_get(c->ctx->options, "keep"),
                 *only = json_object_get(c->ctx->options, "only");
    enum mlo_status status = check_keep(c, keep, err);
    if (status == MLO_OK)
        status = mlo_pass_check_named(c->graph, only, err);
    if (status != MLO_OK)
        return status;
    for (int n = 0; n < c->node_count; n++) {
        const struct mlo_node *node = c->graph->nodes[n];
        if (!touches_floats(node) || (json_array_size(only) > 0 && !mlo_pass_is_named(only, node->name)))
            continue;
        const char *why = is_asked_for(keep, node) ? "it is kept by the options" : obstacle(c, node);
        c->half[n] = true;
        if (why)
            keep_node(c, node, why);
    }
    if (c->type == MLO_FLOAT16)
        guard(c);
    if (json_array_size(only) > 0 && *c->refused) { /* one that is named is no wish */
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "not every named node can compute in %s: %s",
                               mlo_dtype_name(c->type), c->refused);
        mlo_error_where(err, "option 'only'");
    }
    return status;
}

/* --- rewriting -------------------------------------------------------------------------------------------
 */

static bool is_half(const struct convert *c, const struct mlo_node *node)
{
    int low = 0, high = c->node_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (c->nodes[middle] == node)
            return c->half[c->place[middle]];
        if ((uintptr_t)c->nodes[middle] < (uintptr_t)node)
            low = middle + 1;
        else
            high = middle;
    }
    return false; /* of a body, or made here */
}

/* Inputs that are float32 whatever the others are. */
static bool wants_float(const struct mlo_node *node, int i)
{
    return mlo_node_is(node, "Resize") && i > 0;
}

static bool uses_halves(const struct convert *c, struct mlo_use use)
{
    return is_half(c, use.node) && !wants_float(use.node, use.index);
}

/* Makes the uses that want halves, or those that do not, read `to`. */
static bool redirect(const struct convert *c, struct mlo_value *from, struct mlo_value *to, bool halves)
{
    for (int u = from->use_count - 1; u >= 0; u--) {
        struct mlo_use use = from->uses[u];
        if (use.node != to->producer && uses_halves(c, use) == halves &&
            !mlo_node_set_input(use.node, use.index, to))
            return false;
    }
    return true;
}

static int count_uses(const struct convert *c, const struct mlo_value *value, bool halves)
{
    int count = 0;
    for (int u = 0; u < value->use_count; u++)
        count += uses_halves(c, value->uses[u]) == halves;
    return count;
}

/* A Cast of `value`, right behind what makes it. NULL: out of memory. */
static struct mlo_value *add_cast(struct mlo_value *value, enum mlo_dtype to)
{
    char text[256];
    struct mlo_graph *graph = value->graph;
    struct mlo_type type = value->type;
    type.dtype = to;
    int at = value->producer ? value->producer->index + 1 : 0;
    snprintf(text, sizeof text, "%.*s_%s", mlo_pass_cut(value->name, 230), value->name, mlo_dtype_name(to));
    struct mlo_value *out = mlo_graph_add_value(graph, text, &type);
    snprintf(text, sizeof text, "%.*s_to_%s", mlo_pass_cut(value->name, 230), value->name,
             mlo_dtype_name(to));
    struct mlo_node *cast = out ? mlo_graph_add_node(graph, at < graph->node_count ? graph->nodes[at] : NULL,
                                                     "", "Cast", text, &value, 1, &out, 1)
                                : NULL;
    return cast && mlo_node_set_i(cast, "to", to) ? out : NULL;
}

/* A constant in halves: in its place where nobody else reads it, else beside it. */
static enum mlo_status convert_constant(struct convert *c, struct mlo_value *value, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor half = {0};
    const struct mlo_tensor *full = value->constant;
    const float *x = full->data;
    MLO_TRY(mlo_tensor_init(&half, c->type, full->rank, full->dims, err));
    size_t count = mlo_tensor_count(full);
    uint16_t *y = half.data;
    for (size_t i = 0; i < count; i++)
        y[i] = c->type == MLO_FLOAT16 ? mlo_f32_to_f16(x[i]) : mlo_f32_to_bf16(x[i]);
    if (count_uses(c, value, false) == 0 && !value->is_input && !value->is_output) {
        MLO_TRY(mlo_value_set_constant_take(value, &half, err));
        value->type.dtype = c->type;
    } else {
        char name[256];
        snprintf(name, sizeof name, "%.*s_%s", mlo_pass_cut(value->name, 230), value->name,
                 mlo_dtype_name(c->type));
        struct mlo_value *beside = mlo_graph_add_constant_take(c->graph, name, &half);
        if (!beside || !redirect(c, value, beside, true))
            status = mlo_error_nomem(err);
    }
out:
    mlo_tensor_clear(&half);
    return status;
}

/* A value that becomes half: what stays in float32 reads a Cast of it, which takes the name of an output. */
static enum mlo_status convert_made(struct convert *c, struct mlo_value *value, struct mlo_error *err)
{
    bool keeps_name = value->is_output && c->keep_io;
    value->type.dtype = c->type;
    if (!keeps_name && count_uses(c, value, false) == 0)
        return MLO_OK;
    struct mlo_value *full = add_cast(value, MLO_FLOAT32);
    if (!full || !redirect(c, value, full, false) || (keeps_name && !mlo_value_swap_name(value, full)))
        return mlo_error_nomem(err);
    return MLO_OK;
}

static enum mlo_status convert_value(struct convert *c, struct mlo_value *value, struct mlo_error *err)
{
    if (mlo_value_is_fixed(value))
        return count_uses(c, value, true) ? convert_constant(c, value, err) : MLO_OK;
    bool half =
        value->producer ? is_half(c, value->producer) : value->is_input && !value->constant && !c->keep_io;
    if (half)
        return convert_made(c, value, err);
    if (value->is_output && !c->keep_io && value->producer)
        mlo_pass_note(c->ctx, value->name, "the output stays float32, as what makes it does");
    if (count_uses(c, value, true) == 0)
        return MLO_OK;
    struct mlo_value *cast = add_cast(value, c->type);
    return cast && redirect(c, value, cast, true) ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status rewrite(struct convert *c, struct mlo_error *err)
{
    int count = c->graph->value_count;
    struct mlo_value **values = mlo_arena_memdup(c->arena, c->graph->values, (size_t)count * sizeof *values);
    if (!values)
        return mlo_error_nomem(err);
    for (int n = 0; n < c->node_count; n++) {
        struct mlo_node *node = c->nodes[n];
        if (!c->half[c->place[n]])
            continue;
        c->ctx->changes++;
        if (mlo_node_is(node, "Cast") && mlo_node_attr_i(node, "to", 0) == MLO_FLOAT32 &&
            !mlo_node_set_i(node, "to", c->type))
            return mlo_error_nomem(err);
    }
    for (int v = 0; v < count; v++) {
        if (!is_float(values[v]))
            continue;
        enum mlo_status status = convert_value(c, values[v], err);
        if (status != MLO_OK)
            return status;
    }
    mlo_graph_remove_unused_values(c->graph);
    return MLO_OK;
}

struct placed {
    struct mlo_node *node;
    int place;
};

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct placed *)a)->node,
              y = (uintptr_t)((const struct placed *)b)->node;
    return (x > y) - (x < y);
}

static enum mlo_status index_nodes(struct convert *c, struct mlo_error *err)
{
    size_t count = (size_t)c->graph->node_count;
    c->node_count = c->graph->node_count;
    struct placed *sorted = mlo_arena_calloc(c->arena, count + 1, sizeof *sorted);
    c->half = mlo_arena_calloc(c->arena, count + 1, sizeof *c->half);
    c->nodes = mlo_arena_calloc(c->arena, count + 1, sizeof *c->nodes);
    c->place = mlo_arena_calloc(c->arena, count + 1, sizeof *c->place);
    if (!sorted || !c->half || !c->nodes || !c->place)
        return mlo_error_nomem(err);
    for (size_t n = 0; n < count; n++)
        sorted[n] = (struct placed){c->graph->nodes[n], (int)n};
    qsort(sorted, count, sizeof *sorted, by_address);
    for (size_t n = 0; n < count; n++) {
        c->nodes[n] = sorted[n].node;
        c->place[n] = sorted[n].place;
    }
    return MLO_OK;
}

enum mlo_status mlo_pass_to_float16(struct mlo_model *model, struct mlo_pass_context *ctx,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_pass_context prepare = {.notes = ctx->notes};
    struct convert c = {.graph = model->graph, .ctx = ctx, .arena = mlo_arena_new()};
    if (!c.arena)
        return mlo_error_nomem(err);
    c.type = mlo_dtype_parse(mlo_json_str(ctx->options, "type", "float16"));
    c.keep_io = mlo_json_bool(ctx->options, "keep_io", true);
    /* bfloat16 came to convolutions and most functions in opset 22, float16 to what is left of older ops by
     * 13. */
    MLO_TRY(mlo_pass_raise_opset_to(model, c.type == MLO_BFLOAT16 ? BFLOAT16_OPSET : FLOAT16_OPSET, &prepare,
                                    err));
    c.opset = mlo_model_opset(model, "");
    MLO_TRY(mlo_pass_remove_dead(model, &prepare, err));
    MLO_TRY(mlo_graph_infer(model->graph, err));
    MLO_TRY(index_nodes(&c, err));
    MLO_TRY(choose(&c, err));
    MLO_TRY(rewrite(&c, err));
    if (ctx->changes == 0) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "no node of the model can compute in %s",
                               mlo_dtype_name(c.type));
        mlo_error_hint(err, "it has no float32 values, or the option 'keep' names all of its nodes");
    }
out:
    mlo_arena_free(c.arena);
    return status;
}
