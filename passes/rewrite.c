/* Helpers that several passes share. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passes/passes_impl.h"

int mlo_pass_cut(const char *text, int most)
{
    enum { CODE_POINT_MAX = 4 };
    int length = (int)strnlen(text, (size_t)MLO_MAX(most, 0)), start = length;
    if (!text[length]) /* whole */
        return length;
    for (int back = 1; back < CODE_POINT_MAX && start > 0 && (text[start] & 0xc0) == 0x80; back++)
        start--;
    return (text[start] & 0xc0) == 0xc0 ? start : length;
}

void mlo_pass_note(struct mlo_pass_context *ctx, const char *node, const char *fmt, ...)
{
    char text[516];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    text[mlo_pass_cut(text, 511)] = '\0'; /* it quotes names: half a character would be no JSON */
    json_t *note = json_pack("{s:s, s:s}", "node", node, "note", text);
    if (note)
        json_array_append_new(ctx->notes, note);
}

bool mlo_pass_is_named(const json_t *names, const char *name)
{
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)names, i, item)
    {
        if (strcmp(json_string_value(item), name) == 0)
            return true;
    }
    return false;
}

enum mlo_status mlo_pass_check_named(const struct mlo_graph *graph, const json_t *names,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t i, count = (size_t)graph->node_count;
    json_t *item;
    const char **known = json_array_size(names) ? calloc(count + 1, sizeof *known) : NULL;
    if (!known)
        return json_array_size(names) ? mlo_error_nomem(err) : MLO_OK;
    for (size_t n = 0; n < count; n++)
        known[n] = graph->nodes[n]->name;
    json_array_foreach((json_t *)names, i, item)
    {
        const char *wanted = json_string_value(item);
        size_t n = 0;
        while (n < count && strcmp(known[n], wanted) != 0)
            n++;
        if (n < count)
            continue;
        status = mlo_error_set(err, MLO_EINVAL, "the model has no node '%s' to exclude", wanted);
        mlo_error_where(err, "option 'exclude'");
        if (!mlo_error_suggest(err, wanted, known, count))
            mlo_error_hint(err, "'mlopt inspect --graph' shows the names of nodes");
        break;
    }
    free(known);
    return status;
}

bool mlo_tensor_is_finite(const struct mlo_tensor *t)
{
    const float *x = t->data;
    size_t count = mlo_tensor_count(t);
    for (size_t i = 0; i < count; i++)
        if (!(x[i] - x[i] == 0.0f))
            return false;
    return true;
}

bool mlo_pass_copy_attrs(const struct mlo_node *from, struct mlo_node *to)
{
    for (int i = 0; i < from->attr_count; i++) {
        const struct mlo_attr *a = &from->attrs[i];
        bool ok = true;
        if (a->type == MLO_ATTR_INT)
            ok = mlo_node_set_i(to, a->name, a->i);
        else if (a->type == MLO_ATTR_FLOAT)
            ok = mlo_node_set_f(to, a->name, a->f);
        else if (a->type == MLO_ATTR_STRING)
            ok = mlo_node_set_s(to, a->name, a->s.bytes);
        else if (a->type == MLO_ATTR_INTS)
            ok = mlo_node_set_ints(to, a->name, a->ints.i, a->ints.count);
        if (!ok)
            return false;
    }
    return true;
}

bool mlo_value_is_fixed(const struct mlo_value *value)
{
    return value && value->constant && !(value->is_input && value->graph->model->ir_version >= 4);
}

const struct mlo_tensor *mlo_node_fixed(const struct mlo_node *node, int i)
{
    const struct mlo_value *value = mlo_node_input(node, i);
    return mlo_value_is_fixed(value) ? value->constant : NULL;
}

struct mlo_node *mlo_node_producer(const struct mlo_node *node, int i)
{
    struct mlo_value *value = mlo_node_input(node, i);
    return value ? value->producer : NULL;
}

bool mlo_node_only_first_output(const struct mlo_node *node)
{
    for (int i = 1; i < node->output_count; i++) {
        const struct mlo_value *value = node->outputs[i];
        if (value && (value->use_count > 0 || value->is_output))
            return false;
    }
    return node->output_count > 0 && node->outputs[0];
}

bool mlo_dim_same(const struct mlo_dim *a, const struct mlo_dim *b)
{
    if (a->value >= 0 || b->value >= 0)
        return a->value == b->value;
    return a->name && b->name && strcmp(a->name, b->name) == 0;
}

bool mlo_type_same(const struct mlo_type *a, const struct mlo_type *b)
{
    if (a->dtype == MLO_DTYPE_NONE || a->dtype != b->dtype || a->rank < 0 || a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (!mlo_dim_same(&a->dims[i], &b->dims[i]))
            return false;
    return true;
}

/* What is known of the type of `from`, which `to` replaces, is known of `to`. */
static void keep_known_dims(const struct mlo_type *from, struct mlo_type *to)
{
    for (int i = 0; from->rank == to->rank && i < to->rank; i++)
        if (to->dims[i].value < 0 && !to->dims[i].name)
            to->dims[i] = from->dims[i];
}

enum mlo_status mlo_pass_bypass(struct mlo_node *node, struct mlo_value *value, bool *done,
                                struct mlo_error *err)
{
    struct mlo_value *out = node->outputs[0];
    *done = false;
    if (out->is_output) {
        /* The graph output's name stays: `value` takes it, if it has no name of its own to keep. */
        if (!value->producer || value->is_input || value->is_output || value->graph != out->graph)
            return MLO_OK;
        if (!mlo_value_swap_name(out, value))
            return mlo_error_nomem(err);
        keep_known_dims(&out->type, &value->type);
    }
    if (!mlo_value_replace_uses(out, value))
        return mlo_error_nomem(err);
    mlo_graph_remove_node(node);
    *done = true;
    return MLO_OK;
}

enum mlo_status mlo_pass_set_const_take(struct mlo_node *node, int i, const char *name,
                                        struct mlo_tensor *tensor, struct mlo_error *err)
{
    struct mlo_value *old = mlo_node_input(node, i);
    if (mlo_value_is_fixed(old) && old->use_count == 1 && !old->is_input && !old->is_output)
        return mlo_value_set_constant_take(old, tensor, err);
    struct mlo_value *fresh = mlo_graph_add_constant_take(node->graph, old ? old->name : name, tensor);
    if (!fresh) {
        mlo_tensor_clear(tensor);
        return mlo_error_nomem(err);
    }
    return mlo_node_set_input(node, i, fresh) ? MLO_OK : mlo_error_nomem(err);
}

void mlo_pass_unlist_initializers(struct mlo_model *model)
{
    struct mlo_graph *graph = model->graph;
    if (model->ir_version >= 4)
        return;
    for (int i = graph->input_count - 1; i >= 0; i--)
        if (graph->inputs[i]->constant)
            mlo_graph_unlist_input(graph, graph->inputs[i]);
    model->ir_version = 4;
}

/* --- scaling output channels --------------------------------------------------------------------------- */

/* How weights lie in memory: channel of element e. */
struct weight_layout {
    int64_t channels;
    int64_t group, per_group; /* ConvTranspose: outputs per group */
    int64_t inner;            /* elements behind the channel axis */
    int64_t inputs_per_group; /* ConvTranspose: rows of W per group */
    bool transposed;
};

static bool layout_of(const struct mlo_node *node, struct weight_layout *out)
{
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    *out = (struct weight_layout){.group = 1};
    if (!w)
        return false;
    if (mlo_node_is(node, "Gemm") && w->rank == 2) {
        bool transposed = mlo_node_attr_i(node, "transB", 0) != 0;
        out->channels = w->dims[transposed ? 0 : 1];
        out->inner = transposed ? w->dims[1] : 1;
        return true;
    }
    bool conv = mlo_node_is(node, "Conv");
    if ((!conv && !mlo_node_is(node, "ConvTranspose")) || w->rank < 3)
        return false;
    out->inner = 1;
    for (int d = conv ? 1 : 2; d < w->rank; d++)
        out->inner *= w->dims[d];
    out->channels = w->dims[0];
    if (!conv) {
        out->group = mlo_node_attr_i(node, "group", 1);
        if (out->group < 1 || w->dims[0] % out->group != 0)
            return false;
        out->transposed = true;
        out->per_group = w->dims[1];
        out->inputs_per_group = w->dims[0] / out->group;
        out->channels = out->group * out->per_group;
    }
    return true;
}

static int64_t channel_of(const struct weight_layout *layout, size_t e)
{
    int64_t unit = (int64_t)e / layout->inner;
    if (!layout->transposed)
        return unit % layout->channels;
    int64_t row = unit / layout->per_group, column = unit % layout->per_group;
    return row / layout->inputs_per_group * layout->per_group + column;
}

int64_t mlo_node_channels(const struct mlo_node *node)
{
    struct weight_layout layout;
    return layout_of(node, &layout) ? layout.channels : 0;
}

/* The bias must be absent, or one number, or one number per channel in the last dim. */
static bool bias_fits(const struct mlo_node *node, int64_t channels)
{
    if (!mlo_node_input(node, 2))
        return true;
    const struct mlo_tensor *bias = mlo_node_fixed(node, 2);
    if (!bias || bias->dtype != MLO_FLOAT32)
        return false;
    int64_t count = (int64_t)mlo_tensor_count(bias);
    return count == 1 || (count == channels && bias->dims[bias->rank - 1] == channels);
}

bool mlo_node_can_scale(const struct mlo_node *node, const char **why)
{
    struct weight_layout layout;
    if (!layout_of(node, &layout))
        *why = "its weights are not constant";
    else if (mlo_node_fixed(node, 1)->dtype != MLO_FLOAT32)
        *why = "its weights are not float32";
    else if (!bias_fits(node, layout.channels))
        *why = "its bias is not a constant per channel";
    else
        return true;
    return false;
}

enum mlo_status mlo_pass_scale_channels(struct mlo_node *node, const double *scale, const double *shift,
                                        struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor weights = {0}, bias = {0};
    struct weight_layout layout;
    char name[256];
    if (!layout_of(node, &layout))
        return mlo_error_set(err, MLO_EINTERNAL, "node '%s' has no constant weights", node->name);

    MLO_TRY(mlo_tensor_copy(mlo_node_fixed(node, 1), &weights, err));
    float *w = weights.data;
    size_t count = mlo_tensor_count(&weights);
    for (size_t e = 0; e < count; e++)
        w[e] = (float)((double)w[e] * scale[channel_of(&layout, e)]);

    const struct mlo_tensor *old = mlo_node_fixed(node, 2);
    const float *old_bias = old ? old->data : NULL;
    size_t step = old && mlo_tensor_count(old) > 1 ? 1 : 0;
    double beta = mlo_node_is(node, "Gemm") ? (double)mlo_node_attr_f(node, "beta", 1.0f) : 1.0;
    MLO_TRY(mlo_tensor_init(&bias, MLO_FLOAT32, 1, &layout.channels, err));
    float *b = bias.data;
    for (int64_t c = 0; c < layout.channels; c++) {
        double before = old_bias ? beta * (double)old_bias[(size_t)c * step] : 0.0;
        b[c] = (float)(before * scale[c] + shift[c]);
    }
    MLO_TRY(mlo_pass_set_const_take(node, 1, "weight", &weights, err));
    snprintf(name, sizeof name, "%.*s_bias", mlo_pass_cut(node->name, 240), node->name);
    MLO_TRY(mlo_pass_set_const_take(node, 2, name, &bias, err));
    if (mlo_node_attr(node, "beta") && !mlo_node_set_f(node, "beta", 1.0f))
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&weights);
    mlo_tensor_clear(&bias);
    return status;
}
