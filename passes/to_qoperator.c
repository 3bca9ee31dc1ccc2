/* From QDQ form to QOperator form: DequantizeLinear, a float op and QuantizeLinear become one integer op
 * where there is one, of ONNX (QLinearConv, QLinearMatMul) or of com.microsoft. What has none keeps its
 * pairs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/passes_impl.h"

enum { PARTS_MAX = 64 };

/* What a DequantizeLinear reads or a QuantizeLinear writes. */
struct part {
    struct mlo_value *q, *scale, *zero;
    bool list; /* of scales; else one */
};

/* One node on its way: what it reads in integers, and the QuantizeLinear that reads it. */
struct site {
    struct mlo_graph *graph;
    struct mlo_node *node;
    struct part in[PARTS_MAX]; /* of its first inputs; q is NULL where an input is not quantized */
    struct mlo_node *activation, *quantize; /* NULL: none */
    struct part out;
    const char *why; /* what is in the way */
};

typedef bool fits_fn(struct site *site);
/* Lists the inputs of the new op; returns how many. */
typedef int inputs_fn(const struct site *site, struct mlo_value **inputs);

struct form {
    const char *op_type, *domain, *becomes;
    fits_fn *fits; /* what it asks for beyond 8 bits on both sides */
    inputs_fn *inputs;
    bool float_out; /* its output is float: no QuantizeLinear behind it */
};

/* --- reading the pairs ---------------------------------------------------------------------------------- */

static bool is_8_bits(enum mlo_dtype dtype)
{
    return dtype == MLO_UINT8 || dtype == MLO_INT8;
}

/* The parameters of a QuantizeLinear or DequantizeLinear that the integer ops can take: constants, by tensor
 * or by axis, with a zero point (one is made where it is omitted). */
static bool read_part(struct mlo_node *node, enum mlo_dtype dtype, struct part *out)
{
    const struct mlo_tensor *scale = mlo_node_fixed(node, 1), *zero = mlo_node_fixed(node, 2);
    if (!scale || scale->dtype != MLO_FLOAT32 || scale->rank > 1 || mlo_node_attr_i(node, "block_size", 0) ||
        (mlo_node_input(node, 2) && !zero))
        return false;
    out->scale = node->inputs[1];
    out->zero = mlo_node_input(node, 2);
    out->list = mlo_tensor_count(scale) > 1;
    if (!out->zero) {
        struct mlo_error err = {0};
        struct mlo_tensor none = {0};
        if (mlo_tensor_init(&none, dtype, scale->rank, scale->dims, &err) == MLO_OK)
            out->zero = mlo_graph_add_constant_take(node->graph, "zero_point", &none);
        mlo_tensor_clear(&none);
        if (!out->zero || !mlo_node_set_input(node, 2, out->zero))
            return false;
    }
    return true;
}

/* Whether input i comes from a DequantizeLinear, of whatever type. */
static bool read_input(struct site *site, int i)
{
    struct mlo_node *dq = mlo_node_producer(site->node, i);
    struct part *part = &site->in[i];
    *part = (struct part){0};
    if (!dq || !mlo_node_is(dq, "DequantizeLinear"))
        return false;
    if (is_8_bits(dq->inputs[0]->type.dtype) && read_part(dq, dq->inputs[0]->type.dtype, part))
        part->q = dq->inputs[0];
    return true;
}

static double bound_of(const struct mlo_node *clip, int i, const char *attr, double open)
{
    const struct mlo_tensor *t = mlo_node_fixed(clip, i);
    if (mlo_node_input(clip, i))
        return t ? mlo_tensor_get_f64(t, 0) : NAN;
    return mlo_node_attr(clip, attr) ? (double)mlo_node_attr_f(clip, attr, 0) : open;
}

/* Whether saturation does what the activation does: its bounds are at or beyond the integers' own. */
static bool saturates(const struct mlo_node *activation, const struct part *out)
{
    double low = 0, high = INFINITY;
    if (mlo_node_is(activation, "Clip")) {
        low = bound_of(activation, 1, "min", -INFINITY);
        high = bound_of(activation, 2, "max", INFINITY);
    }
    double scale = mlo_tensor_get_f64(out->scale->constant, 0),
           zero = mlo_tensor_get_f64(out->zero->constant, 0);
    bool is_signed = out->zero->constant->dtype == MLO_INT8;
    double least = is_signed ? -128 : 0, most = is_signed ? 127 : 255;
    return rint((double)((float)low / (float)scale)) + zero <= least &&
           rint((double)((float)high / (float)scale)) + zero >= most;
}

/* The QuantizeLinear that alone reads the node, behind a Relu or Clip that its saturation replaces. */
static void read_output(struct site *site)
{
    struct mlo_node *user = mlo_value_sole_user(site->node->outputs[0]);
    site->activation = site->quantize = NULL;
    if (user && (mlo_node_is(user, "Relu") || mlo_node_is(user, "Clip")) &&
        user->inputs[0] == site->node->outputs[0]) {
        site->activation = user;
        user = mlo_value_sole_user(user->outputs[0]);
    }
    if (!user || !mlo_node_is(user, "QuantizeLinear") || !is_8_bits(user->outputs[0]->type.dtype) ||
        !read_part(user, user->outputs[0]->type.dtype, &site->out) || site->out.list)
        return;
    site->out.q = user->outputs[0];
    if (!site->activation || saturates(site->activation, &site->out))
        site->quantize = user;
}

/* --- what the ops ask for ---------------------------------------------------------------------------------
 */

/* The axis of a list of scales. */
static int64_t axis_of(const struct site *site, int i)
{
    const struct mlo_node *dq = site->node->inputs[i]->producer;
    int64_t axis = mlo_node_attr_i(dq, "axis", 1);
    return axis < 0 ? axis + dq->inputs[0]->type.rank : axis;
}

/* A bias that is int32 in the products' own steps, or absent. */
static bool bias_fits(struct site *site)
{
    const struct mlo_value *bias = mlo_node_input(site->node, 2);
    const struct mlo_node *dq = bias ? bias->producer : NULL;
    if (!bias)
        return true;
    site->why = "its bias is not int32 with the scale of its products";
    const struct mlo_tensor *s = dq && mlo_node_is(dq, "DequantizeLinear") ? mlo_node_fixed(dq, 1) : NULL;
    const struct mlo_tensor *zero = s ? mlo_node_fixed(dq, 2) : NULL;
    const struct mlo_tensor *x = site->in[0].scale->constant, *w = site->in[1].scale->constant;
    if (!s || dq->inputs[0]->type.dtype != MLO_INT32 || dq->inputs[0]->type.rank != 1)
        return false;
    for (size_t i = 0; zero && i < mlo_tensor_count(zero); i++)
        if (mlo_tensor_get_i64(zero, i) != 0)
            return false;
    size_t count = mlo_tensor_count(s), of_w = mlo_tensor_count(w);
    for (size_t i = 0; i < MLO_MAX(count, of_w); i++) {
        double product = mlo_tensor_get_f64(x, 0) * mlo_tensor_get_f64(w, of_w > 1 ? i : 0);
        if (count > 1 && of_w > 1 && count != of_w)
            return false;
        if (fabs(mlo_tensor_get_f64(s, count > 1 ? i : 0) - product) > 1e-6 * product)
            return false;
    }
    site->why = NULL;
    return true;
}

static bool conv_fits(struct site *site)
{
    if (site->in[1].list && axis_of(site, 1) != 0)
        site->why = "the scales of its weights are not along dim 0";
    else if (!mlo_value_is_fixed(site->in[1].q))
        site->why = "its weights are not constant";
    return !site->why && bias_fits(site);
}

static bool matmul_fits(struct site *site)
{
    const struct mlo_value *b = site->in[1].q;
    if (site->in[1].list && (b->type.rank != 2 || axis_of(site, 1) != 1))
        site->why = "the scales of its second matrix are not of its columns";
    return !site->why;
}

static bool gemm_fits(struct site *site)
{
    bool turned = mlo_node_attr_i(site->node, "transB", 0) != 0;
    if (site->in[1].list && axis_of(site, 1) != !turned)
        site->why = "the scales of its second matrix are not of its columns";
    else if (mlo_node_input(site->node, 2) && mlo_node_attr_f(site->node, "beta", 1) != 1.0f)
        site->why = "its beta is not 1";
    else if (mlo_node_attr_f(site->node, "alpha", 1) != 1.0f)
        site->why = "its alpha is not 1";
    return !site->why && bias_fits(site);
}

static bool same_types(struct site *site)
{
    for (int i = 1; i < site->node->input_count; i++)
        if (site->in[i].q && site->in[i].q->type.dtype != site->in[0].q->type.dtype)
            site->why = "its inputs are of different types";
    if (!site->why && site->out.q->type.dtype != site->in[0].q->type.dtype)
        site->why = "its output is of another type than its input";
    return !site->why;
}

static bool pool_fits(struct site *site)
{
    if (mlo_node_attr(site->node, "dilations"))
        site->why = "its window has dilations";
    return !site->why && same_types(site);
}

/* --- inputs of the new ops ---------------------------------------------------------------------------------
 */

static int add_part(struct mlo_value **inputs, int at, const struct part *part)
{
    inputs[at] = part->q;
    inputs[at + 1] = part->scale;
    inputs[at + 2] = part->zero;
    return at + 3;
}

static int add_out(struct mlo_value **inputs, int at, const struct site *site)
{
    inputs[at] = site->out.scale;
    inputs[at + 1] = site->out.zero;
    return at + 2;
}

static int add_bias(struct mlo_value **inputs, int at, const struct site *site)
{
    const struct mlo_value *bias = mlo_node_input(site->node, 2);
    inputs[at] = bias ? bias->producer->inputs[0] : NULL;
    return bias ? at + 1 : at;
}

static int unary_inputs(const struct site *site, struct mlo_value **inputs)
{
    return add_out(inputs, add_part(inputs, 0, &site->in[0]), site);
}

static int binary_inputs(const struct site *site, struct mlo_value **inputs)
{
    int at = add_part(inputs, add_part(inputs, 0, &site->in[0]), &site->in[1]);
    return add_out(inputs, at, site);
}

static int conv_inputs(const struct site *site, struct mlo_value **inputs)
{
    return add_bias(inputs, binary_inputs(site, inputs), site);
}

/* The bias stands before the parameters of the output, which are omitted where it is float. */
static int gemm_inputs(const struct site *site, struct mlo_value **inputs)
{
    int at = add_part(inputs, add_part(inputs, 0, &site->in[0]), &site->in[1]);
    int with_bias = add_bias(inputs, at, site);
    return site->quantize ? add_out(inputs, at + 1, site) : with_bias;
}

static int to_float_inputs(const struct site *site, struct mlo_value **inputs)
{
    const struct part *a = &site->in[0], *b = &site->in[1];
    struct mlo_value *const list[] = {a->q, b->q, a->scale, b->scale, a->zero, b->zero};
    memcpy(inputs, list, sizeof list);
    return (int)MLO_COUNT(list);
}

static int concat_inputs(const struct site *site, struct mlo_value **inputs)
{
    int at = add_out(inputs, 0, site);
    for (int i = 0; i < site->node->input_count; i++)
        at = add_part(inputs, at, &site->in[i]);
    return at;
}

#define MICROSOFT "com.microsoft"
static const struct form forms[] = {
    {"Add", MICROSOFT, "QLinearAdd", same_types, binary_inputs, false},
    {"AveragePool", MICROSOFT, "QLinearAveragePool", pool_fits, unary_inputs, false},
    {"Concat", MICROSOFT, "QLinearConcat", same_types, concat_inputs, false},
    {"Conv", "", "QLinearConv", conv_fits, conv_inputs, false},
    {"Gemm", MICROSOFT, "QGemm", gemm_fits, gemm_inputs, false},
    {"Gemm", MICROSOFT, "QGemm", gemm_fits, gemm_inputs, true},
    {"GlobalAveragePool", MICROSOFT, "QLinearGlobalAveragePool", same_types, unary_inputs, false},
    {"LeakyRelu", MICROSOFT, "QLinearLeakyRelu", same_types, unary_inputs, false},
    {"MatMul", "", "QLinearMatMul", matmul_fits, binary_inputs, false},
    {"MatMul", MICROSOFT, "MatMulIntegerToFloat", matmul_fits, to_float_inputs, true},
    {"Mul", MICROSOFT, "QLinearMul", same_types, binary_inputs, false},
    {"Sigmoid", MICROSOFT, "QLinearSigmoid", same_types, unary_inputs, false},
};

/* --- rewriting -------------------------------------------------------------------------------------------
 */

/* Which inputs are data; a Conv's or Gemm's bias is looked at by its own rule. */
static int operands(const struct mlo_node *node)
{
    bool pair = mlo_node_is(node, "Conv") || mlo_node_is(node, "Gemm");
    return pair ? MLO_MIN(node->input_count, 2) : node->input_count;
}

/* Ops that take one scale for each operand. */
static bool is_elementwise(const struct form *form)
{
    return form->fits == same_types || form->fits == pool_fits;
}

static bool inputs_fit(const struct form *form, struct site *site)
{
    site->why = NULL;
    for (int i = 0; i < operands(site->node); i++) {
        if (!site->in[i].q)
            site->why = "not all of its inputs are 8-bit integers with constant parameters";
        else if (site->in[i].list && (i != 1 || is_elementwise(form)))
            site->why = "an activation has a list of scales";
    }
    return !site->why;
}

static enum mlo_status apply(const struct form *form, struct site *site, struct mlo_error *err)
{
    struct mlo_value *inputs[3 * PARTS_MAX + 2] = {0};
    int count = form->inputs(site, inputs);
    struct mlo_node *last = form->float_out ? site->node : site->quantize;
    struct mlo_value *out = last->outputs[0];
    struct mlo_node *before =
        last->index + 1 < site->graph->node_count ? site->graph->nodes[last->index + 1] : NULL;
    if (!mlo_model_import(site->graph->model, form->domain, 1))
        return mlo_error_nomem(err);
    mlo_graph_remove_node(site->node);
    if (!form->float_out) {
        mlo_graph_remove_node(site->quantize);
        if (site->activation)
            mlo_graph_remove_node(site->activation);
    }
    char name[256];
    snprintf(name, sizeof name, "%.*s_quantized", mlo_pass_cut(site->node->name, 240), site->node->name);
    struct mlo_node *made =
        mlo_graph_add_node(site->graph, before, form->domain, form->becomes, name, inputs, count, &out, 1);
    if (!made || !mlo_pass_copy_attrs(site->node, made))
        return mlo_error_nomem(err);
    mlo_node_unset(made, "beta"); /* of a Gemm, where it is 1 or scales nothing */
    return MLO_OK;
}

static bool same_number(const struct mlo_value *a, const struct mlo_value *b)
{
    return a == b || (mlo_tensor_count(a->constant) == 1 && mlo_tensor_count(b->constant) == 1 &&
                      mlo_tensor_get_f64(a->constant, 0) == mlo_tensor_get_f64(b->constant, 0));
}

/* A node that only moves values, between pairs of equal parameters: it moves integers. */
static bool move_integers(struct site *site, bool *done)
{
    struct mlo_node *node = site->node, *q = site->quantize;
    *done = false;
    if (!node->op || !(node->op->flags & MLO_OP_RANGE_KEEP) || !q || site->activation || !site->in[0].q ||
        site->in[0].list || site->out.q->is_output || !mlo_node_only_first_output(node) ||
        site->out.q->type.dtype != site->in[0].q->type.dtype ||
        !same_number(site->in[0].scale, site->out.scale) || !same_number(site->in[0].zero, site->out.zero))
        return true;
    struct mlo_value *y = node->outputs[0];
    if (!mlo_node_set_input(node, 0, site->in[0].q) || !mlo_value_replace_uses(site->out.q, y))
        return false;
    y->type.dtype = site->in[0].q->type.dtype;
    mlo_graph_remove_node(q);
    *done = true;
    return true;
}

static enum mlo_status convert(struct mlo_node *node, struct mlo_pass_context *ctx, struct mlo_error *err)
{
    struct site site = {.graph = node->graph, .node = node};
    bool any = false, known = false;
    if (node->input_count == 0 || node->output_count == 0 || !node->outputs[0] ||
        node->input_count > PARTS_MAX || mlo_node_is(node, "DequantizeLinear"))
        return MLO_OK;
    for (int i = 0; i < node->input_count; i++)
        any |= read_input(&site, i);
    if (!any)
        return MLO_OK;
    read_output(&site);
    const char *why = NULL;
    for (size_t f = 0; f < MLO_COUNT(forms); f++) {
        if (!mlo_node_is(node, forms[f].op_type))
            continue;
        known = true;
        if (inputs_fit(&forms[f], &site) && forms[f].float_out == (site.quantize != NULL)) {
            why = why ? why : "no QuantizeLinear alone reads its output";
            continue;
        }
        if (!site.why && forms[f].fits(&site)) {
            ctx->changes++;
            return apply(&forms[f], &site, err);
        }
        why = site.why;
    }
    bool done;
    if (!move_integers(&site, &done))
        return mlo_error_nomem(err);
    ctx->changes += done;
    if (!done && known)
        mlo_pass_note(ctx, node->name, "%s keeps its pairs: %s", node->op_type, why);
    return MLO_OK;
}

enum mlo_status mlo_pass_to_qoperator(struct mlo_model *model, struct mlo_pass_context *ctx,
                                      struct mlo_error *err)
{
    struct mlo_graph *graph = model->graph;
    int count = graph->node_count;
    struct mlo_pass_context dead = {.notes = ctx->notes};
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_node **nodes =
        arena ? mlo_arena_calloc(arena, (size_t)count + 1, sizeof(struct mlo_node *)) : NULL;
    enum mlo_status status = nodes ? MLO_OK : mlo_error_nomem(err);
    for (int n = 0; nodes && n < count; n++)
        nodes[n] = graph->nodes[n];
    /* A node is only ever removed together with one that was looked at before, or is its QuantizeLinear or
     * activation, which are nobody's site. */
    for (int n = 0; status == MLO_OK && n < count; n++)
        status = convert(nodes[n], ctx, err);
    if (status == MLO_OK)
        status = mlo_pass_remove_dead(model, &dead, err);
    mlo_arena_free(arena);
    return status;
}
