/* Weights: symmetric int8, per output channel or per tensor. Biases: int32 with scale s_x * s_w. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/quantize_impl.h"

/* A bias beyond this many steps could overflow int32 together with the products; s_w is raised until it fits
 * (the collapse of MobileNetV3 per channel). */
static const float largest_bias = 0x1p30f;
static const float smallest_scale = 0x1p-60f;

/* One node's weights while they are worked on. */
struct work {
    const struct mlo_tensor *w;
    float alpha, beta; /* of Gemm, folded into weights and bias */
    int axis;
    int64_t channels, inner; /* elements behind the axis */
    size_t scale_count;      /* channels, or 1 per tensor */
    float *scales;
    const float *bias; /* NULL: none */
    size_t bias_step;
};

static size_t channel_of(const struct work *work, size_t e)
{
    return (e / (size_t)work->inner) % (size_t)work->channels;
}

static float weight_at(const struct work *work, size_t e)
{
    return ((const float *)work->w->data)[e] * work->alpha;
}

static float bias_at(const struct work *work, size_t c)
{
    return work->bias[c * work->bias_step] * work->beta;
}

static enum mlo_status work_init(struct work *work, const struct mlo_node *node,
                                 const struct mlo_quantize_settings *settings, struct mlo_arena *arena,
                                 struct mlo_error *err)
{
    bool gemm = mlo_node_is(node, "Gemm");
    const struct mlo_tensor *bias = mlo_node_is(node, "MatMul") ? NULL : mlo_node_fixed(node, 2);
    *work = (struct work){.w = mlo_node_fixed(node, 1), .axis = mlo_quantize_weight_axis(node), .inner = 1};
    work->alpha = gemm ? mlo_node_attr_f(node, "alpha", 1.0f) : 1.0f;
    work->beta = gemm ? mlo_node_attr_f(node, "beta", 1.0f) : 1.0f;
    work->channels = work->w->dims[work->axis];
    for (int d = work->axis + 1; d < work->w->rank; d++)
        work->inner *= work->w->dims[d];
    work->scale_count = settings->per_channel ? (size_t)work->channels : 1;
    work->bias = bias ? bias->data : NULL;
    work->bias_step = bias && mlo_tensor_count(bias) > 1 ? 1 : 0;
    work->scales = mlo_arena_calloc(arena, work->scale_count, sizeof *work->scales);
    return work->scales ? MLO_OK : mlo_error_nomem(err);
}

/* Scales from the weights' extremes. A channel of zeros takes the scale of the largest one: its weights do
 * not need any, its bias does. */
static void weight_scales(const struct work *work, int weight_max)
{
    size_t count = mlo_tensor_count(work->w);
    float largest = 0.0f;
    for (size_t e = 0; e < count; e++) {
        float magnitude = fabsf(weight_at(work, e));
        float *s = &work->scales[work->scale_count > 1 ? channel_of(work, e) : 0];
        *s = fmaxf(*s, magnitude);
        largest = fmaxf(largest, magnitude);
    }
    if (largest == 0.0f)
        largest = 1.0f;
    for (size_t i = 0; i < work->scale_count; i++)
        work->scales[i] =
            fmaxf((work->scales[i] > 0.0f ? work->scales[i] : largest) / (float)weight_max, smallest_scale);
}

/* Raises scales whose bias would not fit; returns how many. */
static int guard_bias(const struct work *work, float input_scale)
{
    int raised = 0;
    for (int64_t c = 0; work->bias && c < work->channels; c++) {
        float *s = &work->scales[work->scale_count > 1 ? c : 0];
        float magnitude = fabsf(bias_at(work, (size_t)c));
        if (magnitude / (input_scale * *s) <= largest_bias)
            continue;
        *s = magnitude / largest_bias / input_scale;
        while (magnitude / (input_scale * *s) > largest_bias)
            *s = nextafterf(*s, INFINITY);
        raised++;
    }
    return raised;
}

/* Adds the node DequantizeLinear(quantized, scales[, zero points]) in front of `node`; NULL: out of memory.
 */
static struct mlo_value *add_dequantize(struct mlo_node *node, const char *name, struct mlo_value *quantized,
                                        struct mlo_value *scale, struct mlo_value *zero, int axis)
{
    char text[256];
    struct mlo_type type = quantized->type;
    type.dtype = MLO_FLOAT32;
    snprintf(text, sizeof text, "%.230s_dequantized", name);
    struct mlo_value *out = mlo_graph_add_value(node->graph, text, &type);
    struct mlo_value *inputs[] = {quantized, scale, zero};
    snprintf(text, sizeof text, "%.230s_DequantizeLinear", name);
    struct mlo_node *dq = out ? mlo_graph_add_node(node->graph, node, "", "DequantizeLinear", text, inputs,
                                                   zero ? 3 : 2, &out, 1)
                              : NULL;
    if (!dq || (scale->type.rank == 1 && !mlo_node_set_i(dq, "axis", axis)))
        return NULL;
    return out;
}

/* An initializer "<name>_<suffix>"; takes over the tensor. */
static struct mlo_value *add_constant(struct mlo_graph *graph, const char *name, const char *suffix,
                                      struct mlo_tensor *tensor)
{
    char text[256];
    snprintf(text, sizeof text, "%.230s_%s", name, suffix);
    return mlo_graph_add_constant_take(graph, text, tensor);
}

/* A tensor of one number, or of one per channel. */
static enum mlo_status make_vector(struct mlo_tensor *out, enum mlo_dtype dtype, size_t count,
                                   bool per_channel, struct mlo_error *err)
{
    int64_t dim = (int64_t)count;
    return mlo_tensor_init(out, dtype, per_channel ? 1 : 0, &dim, err);
}

static enum mlo_status quantize_weights(struct mlo_node *node, const struct work *work, bool per_channel,
                                        int weight_max, struct mlo_value **dequantized, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor q = {0}, scales = {0}, zeros = {0};
    const char *name = node->inputs[1]->name;
    MLO_TRY(mlo_tensor_init(&q, MLO_INT8, work->w->rank, work->w->dims, err));
    MLO_TRY(make_vector(&scales, MLO_FLOAT32, work->scale_count, per_channel, err));
    MLO_TRY(make_vector(&zeros, MLO_INT8, work->scale_count, per_channel, err));
    size_t count = mlo_tensor_count(work->w);
    int8_t *out = q.data;
    for (size_t e = 0; e < count; e++) {
        float v = rintf(weight_at(work, e) / work->scales[work->scale_count > 1 ? channel_of(work, e) : 0]);
        out[e] = (int8_t)fmaxf(fminf(v, (float)weight_max), (float)-weight_max);
    }
    memcpy(scales.data, work->scales, work->scale_count * sizeof *work->scales);
    struct mlo_value *qv = add_constant(node->graph, name, "quantized", &q);
    struct mlo_value *sv = add_constant(node->graph, name, "scale", &scales);
    struct mlo_value *zv = add_constant(node->graph, name, "zero_point", &zeros);
    *dequantized = qv && sv && zv ? add_dequantize(node, name, qv, sv, zv, work->axis) : NULL;
    if (!*dequantized)
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&q);
    mlo_tensor_clear(&scales);
    mlo_tensor_clear(&zeros);
    return status;
}

static enum mlo_status quantize_bias(struct mlo_node *node, const struct work *work, bool per_channel,
                                     float input_scale, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor q = {0}, scales = {0};
    char name[256];
    snprintf(name, sizeof name, "%.230s", node->inputs[2]->name);
    MLO_TRY(mlo_tensor_init(&q, MLO_INT32, 1, &work->channels, err));
    MLO_TRY(make_vector(&scales, MLO_FLOAT32, work->scale_count, per_channel, err));
    float *s = scales.data;
    for (size_t i = 0; i < work->scale_count; i++)
        s[i] = input_scale * work->scales[i];
    for (int64_t c = 0; c < work->channels; c++)
        ((int32_t *)q.data)[c] = (int32_t)rintf(bias_at(work, (size_t)c) / s[work->scale_count > 1 ? c : 0]);
    struct mlo_value *qv = add_constant(node->graph, name, "quantized", &q);
    struct mlo_value *sv = add_constant(node->graph, name, "scale", &scales);
    struct mlo_value *dequantized = qv && sv ? add_dequantize(node, name, qv, sv, NULL, 0) : NULL;
    if (!dequantized || !mlo_node_set_input(node, 2, dequantized))
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&q);
    mlo_tensor_clear(&scales);
    return status;
}

static struct mlo_value *cache_find(const struct mlo_quantize_cache *cache, const struct mlo_value *source,
                                    const struct work *work)
{
    for (int i = 0; i < cache->count; i++) {
        const struct mlo_quantize_weights *entry = &cache->entries[i];
        if (entry->source == source && entry->axis == work->axis && entry->scale_count == work->scale_count &&
            memcmp(entry->scales, work->scales, work->scale_count * sizeof *work->scales) == 0)
            return entry->dequantized;
    }
    return NULL;
}

enum mlo_status mlo_quantize_node(struct mlo_node *node, float input_scale,
                                  const struct mlo_quantize_settings *settings, struct mlo_arena *arena,
                                  struct mlo_quantize_cache *cache, struct mlo_pass_context *ctx,
                                  struct mlo_error *err)
{
    struct work work;
    enum mlo_status status = work_init(&work, node, settings, arena, err);
    if (status != MLO_OK)
        return status;
    weight_scales(&work, settings->weight_max);
    int raised = guard_bias(&work, input_scale);
    if (raised)
        mlo_pass_note(ctx, node->name, "weight scale raised for %d bias value%s that would overflow int32",
                      raised, raised == 1 ? "" : "s");

    /* alpha is part of the weights: with another one they are other weights, and never shared. */
    struct mlo_value *source = node->inputs[1];
    struct mlo_value *dequantized = work.alpha == 1.0f ? cache_find(cache, source, &work) : NULL;
    if (!dequantized) {
        status =
            quantize_weights(node, &work, settings->per_channel, settings->weight_max, &dequantized, err);
        if (status != MLO_OK)
            return status;
        if (work.alpha == 1.0f && cache->count < cache->cap)
            cache->entries[cache->count++] =
                (struct mlo_quantize_weights){source, work.axis, work.scales, work.scale_count, dequantized};
    }
    if (work.bias) {
        status = quantize_bias(node, &work, settings->per_channel, input_scale, err);
        if (status != MLO_OK)
            return status;
    }
    if (!mlo_node_set_input(node, 1, dequantized) ||
        (mlo_node_attr(node, "alpha") && !mlo_node_set_f(node, "alpha", 1.0f)) ||
        (mlo_node_attr(node, "beta") && !mlo_node_set_f(node, "beta", 1.0f)))
        return mlo_error_nomem(err);
    return MLO_OK;
}
