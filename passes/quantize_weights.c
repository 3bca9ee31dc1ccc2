/* Weights: int8 or uint8, per output channel or per tensor. Biases: int32 with scale s_x * s_w, or left in
 * float. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/quantize_impl.h"

/* A bias beyond this many steps could overflow int32 together with the products; s_w is raised until it fits
 * (the collapse of MobileNetV3 per channel: microsoft/onnxruntime#11415). */
static const float largest_bias = 0x1p30f;
static const float smallest_scale = 0x1p-60f;

/* One node's weights while they are worked on. */
struct work {
    const struct mlo_tensor *w;
    float alpha, beta; /* of Gemm, folded into weights and bias */
    int axis;
    int64_t channels, inner; /* along the axis, and elements behind it */
    int64_t outputs;         /* numbers in a bias */
    size_t scale_count;      /* channels, or 1 per tensor */
    float *scales;
    int *zeros;
    int least, most;   /* integers that a weight may become */
    const float *bias; /* NULL: none, or it stays in float */
    size_t bias_step;
};

static size_t group_of(const struct work *work, size_t e)
{
    return work->scale_count > 1 ? (e / (size_t)work->inner) % (size_t)work->channels : 0;
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
    const struct mlo_tensor *bias =
        mlo_node_is(node, "MatMul") || settings->float_bias ? NULL : mlo_node_fixed(node, 2);
    *work = (struct work){.w = mlo_node_fixed(node, 1), .axis = mlo_quantize_weight_axis(node), .inner = 1};
    work->alpha = gemm ? mlo_node_attr_f(node, "alpha", 1.0f) : 1.0f;
    work->beta = gemm ? mlo_node_attr_f(node, "beta", 1.0f) : 1.0f;
    work->channels = work->w->dims[work->axis];
    for (int d = work->axis + 1; d < work->w->rank; d++)
        work->inner *= work->w->dims[d];
    /* A ConvTranspose in groups has its output channels along two axes, and no scale can say so. */
    int64_t groups = mlo_node_is(node, "ConvTranspose") ? mlo_node_attr_i(node, "group", 1) : 1;
    work->outputs = work->channels * groups;
    /* Nor do runtimes take a scale per column of matrices in a batch: ONNX Runtime loads and then refuses it.
     */
    bool batched = mlo_node_is(node, "MatMul") && work->w->rank > 2;
    work->scale_count = settings->per_channel && groups == 1 && !batched ? (size_t)work->channels : 1;
    work->bias = bias ? bias->data : NULL;
    work->bias_step = bias && mlo_tensor_count(bias) > 1 ? 1 : 0;
    work->scales = mlo_arena_calloc(arena, work->scale_count, sizeof *work->scales);
    work->zeros = mlo_arena_calloc(arena, work->scale_count, sizeof *work->zeros);
    mlo_quantize_limits(settings->weights, &work->least, &work->most);
    int middle = (work->least + work->most + 1) / 2;
    for (size_t i = 0; work->zeros && i < work->scale_count; i++)
        work->zeros[i] = middle;
    if (settings->symmetric_weights || settings->reduce_range) {
        work->least = middle - settings->weight_max;
        work->most = middle + settings->weight_max - !settings->symmetric_weights;
    }
    return work->scales && work->zeros ? MLO_OK : mlo_error_nomem(err);
}

/* Scales from the weights' extremes. A channel of zeros takes the scale of the largest one: its weights do
 * not need any, its bias does. Returns how many channels are zeros. */
static size_t symmetric_scales(const struct work *work)
{
    size_t count = mlo_tensor_count(work->w), zeros = 0;
    float largest = 0.0f;
    for (size_t e = 0; e < count; e++) {
        float magnitude = fabsf(weight_at(work, e));
        float *s = &work->scales[group_of(work, e)];
        *s = fmaxf(*s, magnitude);
        largest = fmaxf(largest, magnitude);
    }
    if (largest == 0.0f)
        largest = 1.0f;
    float steps = (float)(work->most - work->zeros[0]);
    for (size_t i = 0; i < work->scale_count; i++) {
        zeros += work->scales[i] == 0.0f;
        work->scales[i] = fmaxf((work->scales[i] > 0.0f ? work->scales[i] : largest) / steps, smallest_scale);
    }
    return zeros;
}

/* The same with a zero point of its own for each: its range goes from the least to the greatest weight. */
static enum mlo_status asymmetric_scales(const struct work *work, struct mlo_arena *arena, size_t *zeros,
                                         struct mlo_error *err)
{
    size_t count = mlo_tensor_count(work->w);
    float widest = 0.0f, *low = mlo_arena_calloc(arena, work->scale_count, sizeof *low);
    if (!low)
        return mlo_error_nomem(err);
    *zeros = 0;
    for (size_t e = 0; e < count; e++) {
        size_t i = group_of(work, e);
        low[i] = fminf(low[i], weight_at(work, e));
        work->scales[i] = fmaxf(work->scales[i], weight_at(work, e));
        widest = fmaxf(widest, work->scales[i] * 0.5f - low[i] * 0.5f);
    }
    if (widest == 0.0f)
        widest = 1.0f;
    float half_levels = (float)(work->most - work->least) * 0.5f;
    for (size_t i = 0; i < work->scale_count; i++) {
        float width = work->scales[i] * 0.5f - low[i] * 0.5f;
        *zeros += width == 0.0f;
        work->scales[i] = fmaxf((width > 0.0f ? width : widest) / half_levels, smallest_scale);
        float zero = rintf(-low[i] / work->scales[i]) + (float)work->least;
        work->zeros[i] = (int)fminf(fmaxf(zero, (float)work->least), (float)work->most);
    }
    return MLO_OK;
}

/* Raises scales whose bias would not fit; returns how many. */
static int guard_bias(const struct work *work, float input_scale)
{
    int raised = 0;
    for (int64_t c = 0; work->bias && c < work->outputs; c++) {
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

struct mlo_value *mlo_quantize_add_dequantize(struct mlo_node *node, const char *name,
                                              struct mlo_value *quantized, struct mlo_value *scale,
                                              struct mlo_value *zero, int axis)
{
    char text[256];
    struct mlo_type type = quantized->type;
    type.dtype = MLO_FLOAT32;
    snprintf(text, sizeof text, "%.*s_dequantized", mlo_pass_cut(name, 230), name);
    struct mlo_value *out = mlo_graph_add_value(node->graph, text, &type);
    struct mlo_value *inputs[] = {quantized, scale, zero};
    snprintf(text, sizeof text, "%.*s_DequantizeLinear", mlo_pass_cut(name, 230), name);
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
    snprintf(text, sizeof text, "%.*s_%s", mlo_pass_cut(name, 230), name, suffix);
    return mlo_graph_add_constant_take(graph, text, tensor);
}

/* A tensor of one number, or of one per channel. */
static enum mlo_status make_vector(struct mlo_tensor *out, enum mlo_dtype dtype, size_t count,
                                   bool per_channel, struct mlo_error *err)
{
    int64_t dim = (int64_t)count;
    return mlo_tensor_init(out, dtype, per_channel ? 1 : 0, &dim, err);
}

static enum mlo_status quantize_weights(struct mlo_node *node, const struct work *work,
                                        const struct mlo_quantize_settings *settings, struct mlo_arena *arena,
                                        struct mlo_pass_context *ctx, struct mlo_value **dequantized,
                                        struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor q = {0}, scales = {0}, zeros = {0};
    bool list = work->scale_count > 1 || (settings->per_channel && work->channels == 1);
    const char *name = node->inputs[1]->name;
    MLO_TRY(mlo_tensor_init(&q, settings->weights, work->w->rank, work->w->dims, err));
    MLO_TRY(make_vector(&scales, MLO_FLOAT32, work->scale_count, list, err));
    MLO_TRY(make_vector(&zeros, settings->weights, work->scale_count, list, err));
    size_t count = mlo_tensor_count(work->w);
    uint8_t *out = q.data; /* the integer types store the low 8 bits */
    for (size_t e = 0; e < count; e++) {
        size_t i = group_of(work, e);
        if (mlo_dtype_info(settings->weights)->is_float) {
            mlo_tensor_set_f64(&q, e, (double)(weight_at(work, e) / work->scales[i]));
            continue;
        }
        float v = rintf(weight_at(work, e) / work->scales[i]) + (float)work->zeros[i];
        out[e] = (uint8_t)(int)fmaxf(fminf(v, (float)work->most), (float)work->least);
    }
    const struct mlo_quantize_grid grid = {.scales = work->scales,
                                           .zeros = work->zeros,
                                           .count = work->scale_count,
                                           .low = work->least,
                                           .high = work->most,
                                           .alpha = work->alpha};
    MLO_TRY(mlo_quantize_refine(node, &grid, &settings->rounding, arena, out, ctx, err));
    memcpy(scales.data, work->scales, work->scale_count * sizeof *work->scales);
    for (size_t i = 0; i < work->scale_count; i++)
        mlo_tensor_set_f64(&zeros, i, work->zeros[i]);
    struct mlo_value *qv = add_constant(node->graph, name, "quantized", &q);
    struct mlo_value *sv = add_constant(node->graph, name, "scale", &scales);
    struct mlo_value *zv = add_constant(node->graph, name, "zero_point", &zeros);
    *dequantized = qv && sv && zv ? mlo_quantize_add_dequantize(node, name, qv, sv, zv, work->axis) : NULL;
    if (!*dequantized)
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&q);
    mlo_tensor_clear(&scales);
    mlo_tensor_clear(&zeros);
    return status;
}

static enum mlo_status quantize_bias(struct mlo_node *node, const struct work *work, bool list,
                                     float input_scale, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor q = {0}, scales = {0};
    char name[256];
    snprintf(name, sizeof name, "%.*s", mlo_pass_cut(node->inputs[2]->name, 230), node->inputs[2]->name);
    MLO_TRY(mlo_tensor_init(&q, MLO_INT32, 1, &work->outputs, err));
    MLO_TRY(make_vector(&scales, MLO_FLOAT32, work->scale_count, list, err));
    float *s = scales.data;
    for (size_t i = 0; i < work->scale_count; i++)
        s[i] = input_scale * work->scales[i];
    for (int64_t c = 0; c < work->outputs; c++)
        ((int32_t *)q.data)[c] = (int32_t)rintf(bias_at(work, (size_t)c) / s[work->scale_count > 1 ? c : 0]);
    struct mlo_value *qv = add_constant(node->graph, name, "quantized", &q);
    struct mlo_value *sv = add_constant(node->graph, name, "scale", &scales);
    struct mlo_value *dequantized =
        qv && sv ? mlo_quantize_add_dequantize(node, name, qv, sv, NULL, 0) : NULL;
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
            memcmp(entry->scales, work->scales, work->scale_count * sizeof *work->scales) == 0 &&
            memcmp(entry->zeros, work->zeros, work->scale_count * sizeof *work->zeros) == 0)
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
    size_t zeros = 0;
    if (settings->symmetric_weights)
        zeros = symmetric_scales(&work);
    else if ((status = asymmetric_scales(&work, arena, &zeros, err)) != MLO_OK)
        return status;
    if (zeros == work.scale_count)
        mlo_pass_note(ctx, node->name, "its weights '%s' are all 0", node->inputs[1]->name);
    else if (zeros)
        mlo_pass_note(ctx, node->name, "the weights of %zu of %zu channels are all 0", zeros,
                      work.scale_count);
    int raised = guard_bias(&work, input_scale);
    if (raised)
        mlo_pass_note(ctx, node->name, "weight scale raised for %d bias value%s that would overflow int32",
                      raised, raised == 1 ? "" : "s");

    /* alpha is part of the weights: with another one they are other weights, and never shared. */
    struct mlo_value *source = node->inputs[1];
    bool shared = work.alpha == 1.0f;
    struct mlo_value *dequantized = shared ? cache_find(cache, source, &work) : NULL;
    if (!dequantized) {
        status = quantize_weights(node, &work, settings, arena, ctx, &dequantized, err);
        if (status != MLO_OK)
            return status;
        if (shared && cache->count < cache->cap)
            cache->entries[cache->count++] = (struct mlo_quantize_weights){
                source, work.axis, work.scales, work.zeros, work.scale_count, dequantized};
    }
    if (settings->correct_bias || settings->add_bias) {
        status = settings->correct_bias ? mlo_quantize_correct_bias(node, dequantized, arena, ctx, err)
                                        : mlo_quantize_add_bias(node, work.outputs, err);
        const struct mlo_tensor *bias =
            status != MLO_OK || mlo_node_is(node, "MatMul") ? NULL : mlo_node_fixed(node, 2);
        if (status != MLO_OK)
            return status;
        work.bias = bias && !settings->float_bias ? bias->data : NULL;
        work.bias_step = bias && mlo_tensor_count(bias) > 1 ? 1 : 0;
        work.beta = mlo_node_is(node, "Gemm") ? mlo_node_attr_f(node, "beta", 1.0f) : 1.0f;
    }
    if (work.bias) {
        bool list = dequantized->producer->inputs[1]->type.rank == 1;
        status = quantize_bias(node, &work, list, input_scale, err);
        if (status != MLO_OK)
            return status;
    }
    if (!mlo_node_set_input(node, 1, dequantized) ||
        (mlo_node_attr(node, "alpha") && !mlo_node_set_f(node, "alpha", 1.0f)) ||
        ((work.bias || !mlo_node_input(node, 2)) && mlo_node_attr(node, "beta") &&
         !mlo_node_set_f(node, "beta", 1.0f)))
        return mlo_error_nomem(err);
    return MLO_OK;
}
