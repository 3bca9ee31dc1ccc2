/* Rewrites before lowering: the driver, and what the rewrites share. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/normalise_impl.h"

/* The newest form of the quantization ops, whatever opset the model states: this copy of it is ours. */
enum { OPSET = 21 };

bool norm_begin(struct mlo_plan *plan, struct mlo_node *node, struct norm_site *site)
{
    struct mlo_graph *g = node->graph;
    size_t ins = (size_t)node->input_count * sizeof *node->inputs,
           outs = (size_t)node->output_count * sizeof *node->outputs;
    *site = (struct norm_site){.plan = plan, .graph = g, .old = node, .in_count = node->input_count};
    site->in = mlo_arena_memdup(plan->arena, node->inputs, ins);
    site->out = mlo_arena_memdup(plan->arena, node->outputs, outs);
    site->before = node->index + 1 < g->node_count ? g->nodes[node->index + 1] : NULL;
    if (!site->in || !site->out)
        return false;
    mlo_graph_remove_node(node);
    return true;
}

struct mlo_value *norm_in(const struct norm_site *site, int i)
{
    return i < site->in_count ? site->in[i] : NULL;
}

struct mlo_value *norm_add(struct norm_site *site, const char *op, const char *suffix,
                           struct mlo_value *const *in, int in_count, enum mlo_dtype dtype,
                           const struct mlo_value *like, struct mlo_value *out)
{
    const char *name = mlo_arena_printf(site->plan->arena, "%s%s", site->old->name, suffix);
    struct mlo_type type = like->type;
    type.dtype = dtype;
    for (int i = 0; i < in_count; i++)
        if (!in[i] && i < 2) /* a third one, a zero point or a bias, may be omitted */
            return NULL;
    if (!out && name)
        out = mlo_graph_add_value(site->graph, name, &type);
    struct mlo_node *node =
        out ? mlo_graph_add_node(site->graph, site->before, "", op, name, in, in_count, &out, 1) : NULL;
    if (!node)
        return NULL;
    node->version = OPSET;
    node->op = mlo_op_find("", op, OPSET);
    return out;
}

void norm_share_attrs(const struct norm_site *site, struct mlo_node *node)
{
    node->attrs = site->old->attrs;
    node->attr_count = site->old->attr_count;
}

struct mlo_value *norm_dequantize(struct norm_site *site, struct mlo_value *x, struct mlo_value *scale,
                                  struct mlo_value *zero)
{
    return x ? norm_add(site, "DequantizeLinear", "/dequantize", (struct mlo_value *[]){x, scale, zero},
                        zero ? 3 : 2, MLO_FLOAT32, x, NULL)
             : NULL;
}

struct mlo_value *norm_quantize(struct norm_site *site, struct mlo_value *x, struct mlo_value *scale,
                                struct mlo_value *zero, struct mlo_value *out)
{
    return x ? norm_add(site, "QuantizeLinear", "/quantize", (struct mlo_value *[]){x, scale, zero},
                        zero ? 3 : 2, out->type.dtype, out, out)
             : NULL;
}

struct mlo_value *norm_constant(struct norm_site *site, struct mlo_tensor *tensor)
{
    return mlo_graph_add_constant_take(site->graph, "constant", tensor);
}

static size_t behind(const struct mlo_tensor *t, int axis)
{
    size_t n = 1;
    for (int i = axis + 1; i < t->rank; i++)
        n *= (size_t)t->dims[i];
    return n;
}

enum mlo_status norm_shift(const struct mlo_tensor *w, const struct mlo_tensor *zero, int axis,
                           struct mlo_tensor *out, bool *fits, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count = mlo_tensor_count(w), zeros = zero ? mlo_tensor_count(zero) : 0;
    size_t inner = w->rank > axis ? behind(w, axis) : 1;
    *fits = w->dtype == MLO_INT8 || w->dtype == MLO_UINT8;
    if (!*fits || (zeros > 1 && (w->rank <= axis || (int64_t)zeros != w->dims[axis]))) {
        *fits = false;
        return MLO_OK;
    }
    MLO_TRY(mlo_tensor_init(out, MLO_INT8, w->rank, w->dims, err));
    bool is_signed = w->dtype == MLO_INT8;
    for (size_t i = 0; i < count && *fits; i++) {
        int z = zeros ? (int)mlo_tensor_get_i64(zero, zeros > 1 ? i / inner % zeros : 0) : 0;
        int v = (is_signed ? ((const int8_t *)w->data)[i] : ((const uint8_t *)w->data)[i]) - z;
        *fits = v >= -128 && v <= 127;
        ((int8_t *)out->data)[i] = (int8_t)v;
    }
    if (!*fits)
        mlo_tensor_clear(out);
out:
    return status;
}

static bool all_zero(const struct mlo_tensor *t)
{
    for (size_t i = 0; t && i < mlo_tensor_count(t); i++)
        if (mlo_tensor_get_i64(t, i) != 0)
            return false;
    return true;
}

/* `count` copies of a scalar where the other parameter is a list. */
static struct mlo_value *spread(struct norm_site *site, struct mlo_value *value, size_t count)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    const struct mlo_tensor *from = value->constant;
    if (mlo_tensor_count(from) == count)
        return value;
    if (mlo_tensor_init(&t, from->dtype, 1, (int64_t[]){(int64_t)count}, &err) != MLO_OK)
        return NULL;
    for (size_t i = 0; i < count; i++)
        mlo_tensor_set_f64(&t, i, mlo_tensor_get_f64(from, 0));
    return norm_constant(site, &t);
}

struct mlo_value *norm_weights(struct norm_site *site, struct mlo_value *w, struct mlo_value *scale,
                               struct mlo_value *zero, int axis)
{
    struct mlo_error err = {0};
    struct mlo_tensor shifted = {0};
    bool fits = w->constant->dtype == MLO_INT8 && all_zero(zero ? zero->constant : NULL);
    if (fits) {
        zero = NULL;
    } else {
        if (norm_shift(w->constant, zero ? zero->constant : NULL, axis, &shifted, &fits, &err) != MLO_OK)
            return NULL;
        if (fits) {
            w = norm_constant(site, &shifted);
            zero = NULL;
        }
    }
    if (zero) {
        size_t n = MLO_MAX(mlo_tensor_count(scale->constant), mlo_tensor_count(zero->constant));
        scale = spread(site, scale, n);
        zero = scale ? spread(site, zero, n) : NULL;
        if (!zero)
            return NULL;
    }
    struct mlo_value *y = w ? norm_dequantize(site, w, scale, zero) : NULL;
    return y && mlo_node_set_i(y->producer, "axis", axis) ? y : NULL;
}

/* Nodes of constants: exporters write scales and zero points that way. */
enum mlo_status norm_constants(struct mlo_plan *plan, struct mlo_node *node, bool *done,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_UNUSED(plan);
    if (!mlo_node_is(node, "Constant") || node->output_count != 1 || !node->outputs[0] ||
        node->outputs[0]->is_output)
        return MLO_OK;
    struct mlo_tensor t = {0}, *out = &t;
    MLO_TRY(mlo_node_eval(node, NULL, &out, err));
    if (t.dtype == MLO_STRING || mlo_holds_values(t.dtype))
        goto out;
    MLO_TRY(mlo_value_make_constant_take(node->outputs[0], &t, err));
    mlo_graph_remove_node(node);
    *done = true;
out:
    mlo_tensor_clear(&t);
    return status;
}

static norm_fn *const rewrites[] = {norm_constants, norm_index,   norm_bias,
                                    norm_dynamic,   norm_qlinear, norm_qdq_weights};

enum mlo_status cpu_fast_normalise(struct mlo_plan *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *g = plan->model->graph;
    MLO_TRY(norm_half(plan, err));
    for (size_t r = 0; r < MLO_COUNT(rewrites); r++)
        for (int n = 0; n < g->node_count; n++) {
            bool done = false;
            MLO_TRY(rewrites[r](plan, g->nodes[n], &done, err));
            if (done) /* what took its place may be rewritten as well; nodes before it may be gone */
                n = MLO_MAX(n - 4, -1);
        }
out:
    return status;
}
