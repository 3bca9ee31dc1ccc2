/* Which node of a variant runs in which precision, by what the file says, and why the others stay in float,
 * by what the steps and passes that made it noted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/report_impl.h"

/* How a node computes; the words are those of the report. */
enum how { INTEGERS, FUSED, WEIGHTS, HALF, FLOATS, OTHER, HOW_COUNT };
static const char *const HOW_NAMES[] = {"integer", "fused", "weights", "half", "float", "other"};

/* What a QDQ pair or a Cast does is part of its neighbours. */
static bool is_plumbing(const struct mlo_node *node)
{
    static const char *const OPS[] = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"};
    for (size_t i = 0; i < MLO_COUNT(OPS); i++)
        if (mlo_node_is(node, OPS[i]))
            return true;
    return false;
}

static bool is_integer_storage(enum mlo_dtype dtype)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    return info && info->is_integer && info->bits <= 16;
}

/* The type that a value has in front of DequantizeLinear; MLO_DTYPE_NONE where none makes it. */
static enum mlo_dtype stored(const struct mlo_value *value)
{
    const struct mlo_node *back = value ? value->producer : NULL;
    if (!back || !mlo_node_is(back, "DequantizeLinear") || !back->inputs[0])
        return MLO_DTYPE_NONE;
    return back->inputs[0]->type.dtype;
}

static bool is_weights(const struct mlo_node *node, int i)
{
    const struct mlo_value *value = node->inputs[i];
    const struct mlo_node *back = value->producer;
    return value->constant || (back && mlo_node_is(back, "DequantizeLinear") && mlo_node_const(back, 0));
}

static void join(char *out, size_t size, const char *x, const char *w)
{
    snprintf(out, size, "%s%s%s", x, w ? " x " : "", w ? w : "");
}

/* Of an op that is an integer one by its name. */
static enum how by_name(const struct mlo_node *node, char *precision, size_t size)
{
    const struct mlo_report_places *places = mlo_report_places_of(node);
    int first = strcmp(node->op_type, "QLinearConcat") == 0 ? 2 : 0;
    const struct mlo_value *x = mlo_node_input(node, first),
                           *w = places->weights >= 0 ? mlo_node_input(node, places->weights) : NULL;
    join(precision, size, x ? mlo_dtype_name(x->type.dtype) : "integer",
         w ? mlo_dtype_name(w->type.dtype) : NULL);
    return INTEGERS;
}

/* Of any other op: by where what it reads comes from. */
static enum how by_inputs(const struct mlo_node *node, bool planned, char *precision, size_t size)
{
    enum mlo_dtype x = MLO_DTYPE_NONE, w = MLO_DTYPE_NONE;
    bool all = true, any = false;
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *value = node->inputs[i];
        if (!value)
            continue;
        enum mlo_dtype from = stored(value);
        if (is_weights(node, i)) {
            if (i == 1 && from != MLO_DTYPE_NONE)
                w = from;
            continue;
        }
        const struct mlo_dtype_info *info = mlo_dtype_info(value->type.dtype);
        if (!info || !info->is_float)
            continue;
        all = all && from != MLO_DTYPE_NONE;
        any = any || from != MLO_DTYPE_NONE;
        x = x == MLO_DTYPE_NONE ? from : x;
    }
    const struct mlo_value *y = node->output_count ? node->outputs[0] : NULL;
    enum mlo_dtype made = y ? y->type.dtype : MLO_DTYPE_NONE;
    const struct mlo_dtype_info *info = mlo_dtype_info(made);
    /* weights that stayed in float keep the node there, whoever else reads its input in integers */
    bool float_weights = node->op && (node->op->flags & MLO_OP_WEIGHTED) && node->input_count > 1 &&
                         node->inputs[1] && is_weights(node, 1) && w == MLO_DTYPE_NONE;
    if (any && (all || planned) && !float_weights) {
        join(precision, size, mlo_dtype_name(x), w != MLO_DTYPE_NONE ? mlo_dtype_name(w) : NULL);
        return INTEGERS;
    }
    if (w != MLO_DTYPE_NONE) {
        join(precision, size, mlo_dtype_name(made), mlo_dtype_name(w));
        return WEIGHTS;
    }
    if (is_integer_storage(made) && node->input_count && node->inputs[0] &&
        is_integer_storage(node->inputs[0]->type.dtype)) {
        join(precision, size, mlo_dtype_name(made), NULL);
        return INTEGERS;
    }
    join(precision, size, mlo_dtype_name(made), NULL);
    if (made == MLO_FLOAT16 || made == MLO_BFLOAT16)
        return HALF;
    return info && info->is_float ? FLOATS : OTHER;
}

static enum how precision_of(const struct mlo_node *node, const struct mlo_quantize_reason *reason,
                             char *precision, size_t size)
{
    if (strcmp(node->op_type, "MatMulNBits") == 0) {
        const struct mlo_value *y = node->outputs[0];
        snprintf(precision, size, "%s x int%d", y ? mlo_dtype_name(y->type.dtype) : "float32",
                 (int)mlo_node_attr_i(node, "bits", 4));
        return WEIGHTS;
    }
    if (mlo_report_places_of(node))
        return by_name(node, precision, size);
    enum how how = by_inputs(node, reason && reason->how == MLO_RUNS_INTEGER, precision, size);
    return how == FLOATS && reason && reason->how == MLO_RUNS_FUSED ? FUSED : how;
}

/* --- why ----------------------------------------------------------------------------------------------- */

/* The note on a node that begins with its op ("Conv stays in float: …"): what is behind the op. */
static const char *noted(const json_t *notes, const struct mlo_node *node)
{
    size_t i, length = strlen(node->op_type);
    json_t *row;
    json_array_foreach((json_t *)notes, i, row)
    {
        const char *note = mlo_json_str(row, "note", "");
        if (strcmp(mlo_json_str(row, "node", ""), node->name) == 0 && mlo_str_starts(note, node->op_type) &&
            note[length] == ' ')
            return note + length + 1;
    }
    return NULL;
}

/* Why integers are too coarse for what the node reads; NULL: they are not. */
static const char *noisy(const json_t *rows, const struct mlo_node *node)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        if (strcmp(mlo_json_str(row, "node", ""), node->name) == 0)
            return mlo_json_str(row, "why", NULL);
    }
    return NULL;
}

/* What was noted of the node: by the steps themselves, who know more, then by their passes. */
static const char *noted_anywhere(const json_t *history, const struct mlo_node *node)
{
    size_t i, k;
    json_t *step, *pass;
    const char *found = NULL;
    json_array_foreach((json_t *)history, i, step)
    {
        const json_t *report = json_object_get(step, "report");
        const char *own = noted(json_object_get(report, "notes"), node);
        if (!own)
            own = noisy(json_object_get(report, "noisy"), node);
        if (own)
            return own;
        json_array_foreach(json_object_get(report, "passes"), k, pass)
        {
            const char *note = noted(json_object_get(pass, "notes"), node);
            found = note ? note : found;
        }
    }
    return found;
}

/* Why a float node is one where nobody noted anything. */
static const char *by_step(const struct mlo_report_subject *s)
{
    static const struct {
        const char *step, *why;
    } WHY[] = {
        {"quantize-weights", "this variant has integer weights alone, and the node has none"},
        {"quantize-dynamic", "dynamic quantization is of products with constant weights alone"},
        {"round-weights", "this variant has integer weights alone, and the node has none"},
        {"qat-export", "the training put no fake quantization on what it reads"},
        {"quantize", "its inputs are not wanted in integers"},
    };
    const json_t *last = json_array_get(s->history, json_array_size(s->history) - 1);
    for (size_t i = 0; last && i < MLO_COUNT(WHY); i++)
        if (strcmp(mlo_json_str(last, "step", ""), WHY[i].step) == 0)
            return WHY[i].why;
    return "no step asked for another precision";
}

/* The options that the last step quantized with, what a budget gave back to float included; NULL where it was
 * another step. New reference. */
static json_t *quantize_options(const struct mlo_report_subject *s)
{
    const json_t *last = json_array_get(s->history, json_array_size(s->history) - 1);
    if (!last || strcmp(mlo_json_str(last, "step", ""), "quantize") != 0)
        return NULL;
    json_t *options = json_copy(json_object_get(last, "options")), *row;
    json_t *exclude = json_copy(json_object_get(options, "exclude"));
    size_t i;
    if (!exclude)
        exclude = json_array();
    const json_t *report = json_object_get(last, "report");
    json_array_foreach(json_object_get(json_object_get(report, "mixed_precision"), "given_back"), i, row)
        json_array_append(exclude, json_object_get(row, "node"));
    json_array_foreach(json_object_get(report, "noisy"), i, row)
        json_array_append(exclude, json_object_get(row, "node"));
    if (!options || json_object_set_new(options, "exclude", exclude) != 0) {
        json_decref(options);
        return NULL;
    }
    return options;
}

/* --- all nodes ----------------------------------------------------------------------------------------- */

struct sum {
    int64_t nodes;
    double macs, weight_bytes;
};

struct table {
    const struct mlo_report_subject *subject;
    const struct mlo_model *bound;       /* for multiply-adds */
    struct mlo_quantize_reason *reasons; /* of the reference's nodes; NULL: not known */
    struct sum sums[HOW_COUNT];
    json_t *rows;
};

static double weight_bytes(const struct mlo_node *node)
{
    double bytes = 0;
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *value = node->inputs[i];
        const struct mlo_node *back = value ? value->producer : NULL;
        if (value && value->constant)
            bytes += (double)value->constant->size_bytes;
        else if (back && mlo_node_is(back, "DequantizeLinear"))
            for (int k = 0; k < back->input_count; k++)
                bytes += mlo_node_const(back, 0) && mlo_node_const(back, k)
                             ? (double)mlo_node_const(back, k)->size_bytes
                             : 0;
    }
    return bytes;
}

static enum mlo_status add_node(struct table *t, const struct mlo_node *node, int *hint,
                                struct mlo_error *err)
{
    const struct mlo_graph *reference = t->subject->reference->graph;
    const struct mlo_node *was = mlo_report_partner(reference, false, node, hint);
    const struct mlo_quantize_reason *reason = was && t->reasons ? &t->reasons[was->index] : NULL;
    char precision[64];
    enum how how = precision_of(node, reason, precision, sizeof precision);
    double macs = was ? (double)mlo_node_macs(t->bound->graph->nodes[was->index]) : 0;
    const char *why = NULL;
    if (how == FLOATS || how == FUSED) {
        why = how == FLOATS ? noted_anywhere(t->subject->history, was ? was : node) : NULL;
        if (!why && reason)
            why = reason->why;
        if (!why)
            why = was ? by_step(t->subject) : "a step added it";
    }
    t->sums[how].nodes++;
    t->sums[how].macs += macs;
    t->sums[how].weight_bytes += weight_bytes(node);
    json_t *row = json_pack("{s:s,s:s,s:s,s:s,s:s*,s:f}", "node", node->name, "op", node->op_type, "runs_in",
                            HOW_NAMES[how], "precision", precision, "why", why, "macs", macs);
    return row && json_array_append_new(t->rows, row) == 0 ? MLO_OK : mlo_error_nomem(err);
}

static json_t *sums_json(const struct table *t)
{
    json_t *out = json_object();
    for (int h = 0; h < HOW_COUNT; h++)
        json_object_set_new(out, HOW_NAMES[h],
                            json_pack("{s:I,s:f,s:f}", "nodes", (json_int_t)t->sums[h].nodes, "macs",
                                      t->sums[h].macs, "weight_bytes", t->sums[h].weight_bytes));
    return out;
}

enum mlo_status mlo_report_precision(const struct mlo_report_subject *s, const struct mlo_model *bound,
                                     json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_arena *arena = mlo_arena_new();
    struct table t = {.subject = s, .bound = bound, .rows = json_array()};
    json_t *options = quantize_options(s);
    struct mlo_error ignored = {0}; /* a model that cannot be explained has its notes */
    size_t count;
    int hint = 0;
    if (!arena || !t.rows) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (options && mlo_quantize_explain(s->reference, options, arena, &t.reasons, &count, &ignored) != MLO_OK)
        t.reasons = NULL;
    for (int n = 0; n < s->variant->graph->node_count; n++)
        if (!is_plumbing(s->variant->graph->nodes[n]))
            MLO_TRY(add_node(&t, s->variant->graph->nodes[n], &hint, err));
    *out = json_pack("{s:o,s:O}", "sums", sums_json(&t), "nodes", t.rows);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(options);
    json_decref(t.rows);
    mlo_arena_free(arena);
    return status;
}
