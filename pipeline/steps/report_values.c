/* Which value of a variant stands for which of the float model, and what its weights are worth. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/report_impl.h"

static const struct mlo_report_places PLACES[] = {
    {"ConvInteger", 1, -1},
    {"MatMulInteger", 1, -1},
    {"QGemm", 3, 7},
    {"QLinearAdd", -1, 6},
    {"QLinearAveragePool", -1, 3},
    {"QLinearConcat", -1, 0},
    {"QLinearConv", 3, 6},
    {"QLinearGlobalAveragePool", -1, 3},
    {"QLinearLeakyRelu", -1, 3},
    {"QLinearMatMul", 3, 6},
    {"QLinearMul", -1, 6},
    {"QLinearSigmoid", -1, 3},
};

const struct mlo_report_places *mlo_report_places_of(const struct mlo_node *node)
{
    for (size_t i = 0; i < MLO_COUNT(PLACES); i++)
        if (strcmp(PLACES[i].op_type, node->op_type) == 0)
            return &PLACES[i];
    return NULL;
}

/* Whether `made` of a variant does what `was` did: passes that change the op add to the name. */
static bool are_partners(const struct mlo_node *was, const struct mlo_node *made)
{
    size_t length = strlen(was->name);
    if (strncmp(made->name, was->name, length) != 0)
        return false;
    const char *more = made->name + length;
    return more[0] == '\0' || (strcmp(more, "_quantized") == 0 && mlo_report_places_of(made)) ||
           (strcmp(more, "_MatMulNBits") == 0 && strcmp(made->op_type, "MatMulNBits") == 0);
}

const struct mlo_node *mlo_report_partner(const struct mlo_graph *graph, bool variant,
                                          const struct mlo_node *node, int *hint)
{
    for (int tried = 0; tried < graph->node_count; tried++) {
        int n = (*hint + tried) % graph->node_count;
        const struct mlo_node *other = graph->nodes[n];
        if (variant ? are_partners(node, other) : are_partners(other, node)) {
            *hint = n + 1;
            return other;
        }
    }
    return NULL;
}

/* --- activations --------------------------------------------------------------------------------------- */

/* The grid of one scale for all of a value; false: the parameters are no constants, or a list. */
static bool read_grid(const struct mlo_node *node, int scale_at, const struct mlo_value *quantized,
                      struct mlo_report_grid *out)
{
    const struct mlo_tensor *scale = mlo_node_const(node, scale_at),
                            *zero = mlo_node_const(node, scale_at + 1);
    if (!scale || mlo_tensor_count(scale) != 1 || (zero && mlo_tensor_count(zero) != 1))
        return false;
    const struct mlo_dtype_info *info = mlo_dtype_info(zero ? zero->dtype : quantized->type.dtype);
    if (!info || !info->is_integer || info->bits > 16)
        return false;
    out->dtype = info->dtype;
    out->scale = (float)mlo_tensor_get_f64(scale, 0);
    out->zero = zero ? mlo_tensor_get_i64(zero, 0) : 0;
    out->low = info->is_signed ? -((int64_t)1 << (info->bits - 1)) : 0;
    out->high = out->low + ((int64_t)1 << info->bits) - 1;
    return out->scale > 0;
}

static const struct mlo_node *user_of(const struct mlo_value *value, const char *op_type)
{
    for (int i = 0; i < value->use_count; i++)
        if (value->uses[i].index == 0 && mlo_node_is(value->uses[i].node, op_type))
            return value->uses[i].node;
    return NULL;
}

/* A Clip of integers inside the pair narrows the grid. */
static const struct mlo_value *behind_clip(const struct mlo_value *q, struct mlo_report_grid *grid)
{
    const struct mlo_node *clip = user_of(q, "Clip");
    if (!clip || !clip->outputs[0])
        return q;
    const struct mlo_tensor *low = mlo_node_const(clip, 1), *high = mlo_node_const(clip, 2);
    if (low)
        grid->low = MLO_MAX(grid->low, mlo_tensor_get_i64(low, 0));
    if (high)
        grid->high = MLO_MIN(grid->high, mlo_tensor_get_i64(high, 0));
    return clip->outputs[0];
}

static bool is_float_type(const struct mlo_value *value)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(value->type.dtype);
    return info && info->is_float && !value->constant;
}

/* By QuantizeLinear: what stands behind the pair, or the integers where nothing turns them back. */
static bool pair_of_quantize(const struct mlo_node *quantize, struct mlo_report_pair *out)
{
    const struct mlo_value *q = quantize->outputs[0];
    bool known = q && read_grid(quantize, 1, q, &out->grid);
    if (!q)
        return false;
    q = known ? behind_clip(q, &out->grid) : q;
    const struct mlo_node *back = user_of(q, "DequantizeLinear");
    if (back && back->outputs[0]) {
        out->variant = back->outputs[0]->name;
        return true;
    }
    out->variant = q->name;
    out->integers = true;
    return known;
}

/* By an integer op that makes it: "x_quantized" stands for x. */
static bool pair_of_integers(const struct mlo_graph *variant, const char *name, struct mlo_report_pair *out)
{
    char text[320];
    snprintf(text, sizeof text, "%.300s_quantized", name);
    const struct mlo_value *q = mlo_graph_value(variant, text);
    const struct mlo_report_places *places = q && q->producer ? mlo_report_places_of(q->producer) : NULL;
    if (!places || places->y_scale < 0 || !read_grid(q->producer, places->y_scale, q, &out->grid))
        return false;
    out->variant = q->name;
    out->integers = true;
    return true;
}

static bool pair_of(const struct mlo_graph *variant, const struct mlo_value *value,
                    struct mlo_report_pair *out)
{
    *out = (struct mlo_report_pair){.name = value->name};
    const struct mlo_value *same = mlo_graph_value(variant, value->name);
    const struct mlo_node *quantize = same && is_float_type(same) ? user_of(same, "QuantizeLinear") : NULL;
    if (quantize)
        return pair_of_quantize(quantize, out);
    if (!same || !is_float_type(same))
        return pair_of_integers(variant, value->name, out);
    out->variant = same->name;
    return !value->is_input; /* an input that is not quantized is what it was */
}

enum mlo_status mlo_report_pairs(const struct mlo_graph *reference, const struct mlo_graph *variant,
                                 struct mlo_arena *arena, struct mlo_report_pair **out, size_t *count,
                                 struct mlo_error *err)
{
    *count = 0;
    *out = mlo_arena_calloc(arena, (size_t)reference->value_count + 1, sizeof **out);
    if (!*out)
        return mlo_error_nomem(err);
    for (int i = 0; i < reference->input_count; i++)
        if (is_float_type(reference->inputs[i]) && pair_of(variant, reference->inputs[i], &(*out)[*count]))
            ++*count;
    for (int n = 0; n < reference->node_count; n++) {
        const struct mlo_node *node = reference->nodes[n];
        for (int o = 0; o < node->output_count; o++)
            if (node->outputs[o] && is_float_type(node->outputs[o]) &&
                pair_of(variant, node->outputs[o], &(*out)[*count]))
                ++*count;
    }
    return MLO_OK;
}

/* --- weights ------------------------------------------------------------------------------------------- */

/* q scale and zero by the rules of DequantizeLinear: one scale, one a channel of `axis`, or one a block. */
static bool dequantize(const struct mlo_tensor *q, const struct mlo_tensor *scale,
                       const struct mlo_tensor *zero, int64_t axis, int64_t block, float *out)
{
    size_t scales = mlo_tensor_count(scale), count = mlo_tensor_count(q), inner = 1, channels = 1, steps = 1;
    if (scales != 1) {
        axis = axis < 0 ? axis + q->rank : axis;
        if (axis < 0 || axis >= q->rank)
            return false;
        for (int d = (int)axis + 1; d < q->rank; d++)
            inner *= (size_t)q->dims[d];
        channels = (size_t)q->dims[axis];
        steps = block > 0 ? (channels + (size_t)block - 1) / (size_t)block : channels;
        if (!channels || scales != (block > 0 ? count / channels * steps : channels))
            return false;
    }
    if (zero && mlo_tensor_count(zero) != scales)
        return false;
    for (size_t i = 0; i < count; i++) {
        size_t c = i / inner % channels, s = 0;
        if (scales != 1)
            s = block > 0 ? (i / (inner * channels) * steps + c / (size_t)block) * inner + i % inner : c;
        int64_t z = zero ? mlo_tensor_get_i64(zero, s) : 0;
        out[i] = (float)(mlo_tensor_get_i64(q, i) - z) * (float)mlo_tensor_get_f64(scale, s);
    }
    return true;
}

/* MatMulNBits keeps [N][blocks][bytes], lowest bits first; the float matrix is [K][N], or [N][K] where it was
 * transposed. */
static bool unpack(const struct mlo_node *node, bool transposed, size_t count, float *out)
{
    const struct mlo_tensor *b = mlo_node_const(node, 1), *scale = mlo_node_const(node, 2),
                            *zero = mlo_node_const(node, 3);
    size_t k = (size_t)mlo_node_attr_i(node, "K", 0), n = (size_t)mlo_node_attr_i(node, "N", 0),
           bits = (size_t)mlo_node_attr_i(node, "bits", 4),
           block = (size_t)mlo_node_attr_i(node, "block_size", 0);
    if (!b || !scale || (bits != 4 && bits != 8) || !block || !k || count / k != n || k * n != count ||
        (zero && zero->dtype != MLO_UINT8) || b->dtype != MLO_UINT8)
        return false;
    size_t blocks = (k + block - 1) / block, per = block * bits / 8, zeros = (blocks * bits + 7) / 8;
    if (mlo_tensor_count(b) != n * blocks * per || mlo_tensor_count(scale) != n * blocks ||
        (zero && mlo_tensor_count(zero) != n * zeros))
        return false;
    const uint8_t *bytes = b->data, *z = zero ? zero->data : NULL;
    unsigned mask = (1u << bits) - 1;
    for (size_t c = 0; c < n; c++)
        for (size_t r = 0; r < k; r++) {
            size_t at = r / block, bit = r % block * bits, zero_bit = at * bits;
            unsigned q = bytes[(c * blocks + at) * per + bit / 8] >> bit % 8 & mask;
            unsigned from = z ? z[c * zeros + zero_bit / 8] >> zero_bit % 8 & mask : 1u << (bits - 1);
            out[transposed ? c * k + r : r * n + c] =
                (float)((int)q - (int)from) * (float)mlo_tensor_get_f64(scale, c * blocks + at);
        }
    return true;
}

/* The axis of the channels of an integer op's weights. */
static int64_t integer_axis(const struct mlo_node *node)
{
    if (strcmp(node->op_type, "QLinearConv") == 0)
        return 0;
    if (strcmp(node->op_type, "QGemm") == 0)
        return mlo_node_attr_i(node, "transB", 0) ? 0 : 1;
    return -1;
}

/* The scale of the weights of a dynamically quantized product: its sums, as floats, times a product of two
 * scales of which one is constant. */
static const struct mlo_tensor *dynamic_scale(const struct mlo_node *node)
{
    const struct mlo_node *cast = node->outputs[0] ? user_of(node->outputs[0], "Cast") : NULL;
    const struct mlo_node *mul = cast && cast->outputs[0] ? user_of(cast->outputs[0], "Mul") : NULL;
    const struct mlo_value *scale = mul ? mlo_node_input(mul, 1) : NULL;
    if (!scale || !scale->producer || !mlo_node_is(scale->producer, "Mul"))
        return NULL;
    const struct mlo_tensor *second = mlo_node_const(scale->producer, 1);
    return second ? second : mlo_node_const(scale->producer, 0);
}

/* Those weights as floats, in the order of the float model's. */
static bool dequantize_dynamic(const struct mlo_node *node, const struct mlo_node *was, size_t count,
                               float *out, enum mlo_dtype *dtype, size_t *scales)
{
    const struct mlo_tensor *q = mlo_node_const(node, 1), *zero = mlo_node_const(node, 3),
                            *scale = dynamic_scale(node);
    bool conv = mlo_node_is(node, "ConvInteger"),
         turned = mlo_node_is(was, "Gemm") && mlo_node_attr_i(was, "transB", 0);
    if (!q || !scale || q->rank < 2 || mlo_tensor_count(q) != count || (zero && mlo_tensor_count(zero) != 1))
        return false;
    size_t channels = (size_t)q->dims[conv ? 0 : q->rank - 1], steps = mlo_tensor_count(scale);
    if (!channels || (steps != 1 && steps != channels) || (turned && q->rank != 2))
        return false;
    for (size_t i = 0; i < count; i++) {
        size_t c = conv ? i / (count / channels) : i % channels;
        size_t at = turned ? c * (count / channels) + i / channels : i;
        int64_t z = zero ? mlo_tensor_get_i64(zero, 0) : 0;
        out[at] =
            (float)(mlo_tensor_get_i64(q, i) - z) * (float)mlo_tensor_get_f64(scale, steps == 1 ? 0 : c);
    }
    *dtype = q->dtype;
    *scales = steps;
    return true;
}

static bool plain(const struct mlo_tensor *w, float *out)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(w->dtype);
    size_t count = mlo_tensor_count(w);
    for (size_t i = 0; info->is_float && i < count; i++)
        out[i] = (float)mlo_tensor_get_f64(w, i);
    return info->is_float;
}

enum mlo_status mlo_report_weights_of(const struct mlo_node *node, const struct mlo_node *was, float **out,
                                      enum mlo_dtype *dtype, size_t *scales, struct mlo_error *err)
{
    const struct mlo_report_places *places = mlo_report_places_of(node);
    int at = places ? places->weights : 1;
    const struct mlo_value *value = at < 0 ? NULL : mlo_node_input(node, at);
    const struct mlo_node *back = value ? value->producer : NULL;
    bool ok = false, nbits = strcmp(node->op_type, "MatMulNBits") == 0;
    const struct mlo_tensor *float_weights = mlo_node_const(was, 1);
    *out = NULL;
    *scales = 0;
    if (!value || !float_weights)
        return MLO_OK;
    size_t count = mlo_tensor_count(float_weights);
    float *w = malloc(count * sizeof *w + 1);
    if (!w)
        return mlo_error_nomem(err);
    if (nbits) {
        *dtype = mlo_node_attr_i(node, "bits", 4) == 4 ? MLO_UINT4 : MLO_UINT8;
        ok = unpack(node, mlo_node_is(was, "Gemm") && mlo_node_attr_i(was, "transB", 0), count, w);
        *scales = ok ? mlo_tensor_count(mlo_node_const(node, 2)) : 0;
    } else if (places && places->y_scale < 0) {
        ok = dequantize_dynamic(node, was, count, w, dtype, scales);
    } else if (places || (back && mlo_node_is(back, "DequantizeLinear"))) {
        const struct mlo_node *holder = places ? node : back;
        int first = places ? at : 0;
        const struct mlo_tensor *q = mlo_node_const(holder, first),
                                *scale = mlo_node_const(holder, first + 1),
                                *zero = mlo_node_const(holder, first + 2);
        ok = q && scale && mlo_tensor_count(q) == count && places == NULL
                 ? dequantize(q, scale, zero, mlo_node_attr_i(back, "axis", 1),
                              mlo_node_attr_i(back, "block_size", 0), w)
             : q && scale && mlo_tensor_count(q) == count && places
                 ? dequantize(q, scale, zero, integer_axis(node), 0, w)
                 : false;
        *dtype = ok ? q->dtype : MLO_DTYPE_NONE;
        *scales = ok ? mlo_tensor_count(scale) : 0;
    } else if (value->constant && mlo_tensor_count(value->constant) == count) {
        *dtype = value->constant->dtype;
        ok = plain(value->constant, w);
    }
    if (!ok) {
        free(w);
        return MLO_OK;
    }
    *out = w;
    return MLO_OK;
}
