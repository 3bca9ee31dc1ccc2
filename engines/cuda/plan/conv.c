/* Convolutions: cuDNN's for what its engines are good at, own kernels for one channel a group, for groups of
 * few channels, and for int8 channels that no engine takes. */
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

enum { STEM_CHANNELS = 4, STEM_COLUMNS = 8, INT8_COLUMNS = 4 };

enum way { WAY_LIBRARY, WAY_STEM, WAY_DEPTHWISE, WAY_KERNEL };

struct convolution {
    const struct mlo_node *node;
    const struct mlo_value *x; /* what is read: floats, or the int8 behind them */
    struct mlo_tensor weights;
    bool constant, int8;
    struct quant_weights q;
    float x_scale;
    int spatial;                       /* of the node */
    int64_t n, c, k, kp, groups, taps; /* kp: k with columns of zeros */
    struct mlo_window w;
    struct epilogue e;
    struct product_numbers numbers;
    struct place px, py, pr;
    enum mlo_dtype dtype, y_dtype;
    bool x_clipped; /* x is what a Clip reads, which the kernel does */
    float x_low, x_high;
    const struct mlo_value *residual; /* read as it is */
    double residual_scale;
};

/* --- weights
 * ------------------------------------------------------------------------------------------------- */

struct packing {
    int64_t k, c, taps;         /* of the packed ones: c may be more than there are (zeros) */
    int64_t at_k, at_c, at_tap; /* strides */
};

static int pack(struct lower *l, const struct convolution *v, const struct packing *p)
{
    size_t size = lower_element(v->weights.dtype), bytes = (size_t)(p->k * p->c * p->taps) * size;
    int64_t per_group = v->c / v->groups;
    char *data = mlo_engine_aligned(bytes);
    const char *from = v->weights.data;
    for (int64_t k = 0; data && k < v->k; k++)
        for (int64_t c = 0; c < per_group; c++)
            for (int64_t t = 0; t < v->taps; t++, from += size)
                memcpy(data + (size_t)(k * p->at_k + c * p->at_c + t * p->at_tap) * size, from, size);
    return lower_slot_const_take(l, data, bytes);
}

/* --- what it is
 * ---------------------------------------------------------------------------------------------- */

static enum mlo_status describe(struct lower *l, const struct mlo_node *node, struct convolution *v,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t x[MLO_MAX_RANK], w[MLO_MAX_RANK];
    *v =
        (struct convolution){.node = node, .x = node->inputs[0], .groups = mlo_node_attr_i(node, "group", 1)};
    if (!lower_dims(node->inputs[0], x) || !lower_dims(node->inputs[1], w) ||
        node->inputs[0]->type.rank < 3 || node->inputs[0]->type.rank > 5 || v->groups < 1 || w[0] < 1)
        return lower_unsupported(node, err, "its operands have not three to five known dims");
    v->spatial = node->inputs[0]->type.rank - 2;
    v->n = x[0];
    v->c = x[1];
    v->k = w[0];
    v->taps = 1;
    for (int i = 0; i < v->spatial; i++)
        v->taps *= w[2 + i];
    v->dtype = v->y_dtype = node->outputs[0]->type.dtype;
    if (!lower_is_float(v->dtype))
        return lower_unsupported(node, err, "it convolves %s", mlo_dtype_name(v->dtype));
    MLO_TRY(mlo_window_init(&v->w, node, v->spatial, x + 2, w + 2, err));
    const struct mlo_value *q = quant_source(l, node->inputs[0], MLO_INT8, &v->x_scale);
    if (q && quant_weights(node->inputs[1], MLO_INT8, 0, &v->q)) {
        v->int8 = v->constant = true;
        v->x = q;
        v->weights = *v->q.q;
        v->dtype = MLO_INT8;
    } else {
        v->constant = product_constant(l, node->inputs[1], &v->weights);
    }
out:
    return status;
}

static enum way way_of(const struct convolution *v)
{
    bool by_channel = v->groups == v->c && v->k == v->c && v->groups > 1;
    if (!v->constant)
        return WAY_LIBRARY;
    if (by_channel)
        return WAY_DEPTHWISE;
    if (v->int8)
        return v->groups == 1 ? WAY_LIBRARY : WAY_KERNEL;
    if (v->groups > 1)
        return v->c / v->groups % 8 == 0 && v->k / v->groups % 8 == 0 ? WAY_LIBRARY : WAY_KERNEL;
    return v->c < STEM_CHANNELS && v->k % STEM_COLUMNS == 0 && v->spatial == 2 ? WAY_STEM : WAY_LIBRARY;
}

/* --- operands
 * ------------------------------------------------------------------------------------------------ */

static int64_t padded(int64_t channels)
{
    return (channels + INT8_CHANNELS - 1) / INT8_CHANNELS * INT8_CHANNELS;
}

/* Everything that follows, and where the result goes. */
static enum mlo_status prepare_result(struct lower *l, struct convolution *v, bool kernel,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor own = {0};
    const struct mlo_value *bias = mlo_node_input(v->node, 2);
    struct epilogue_wish wish = {
        .axis = 1, .columns = v->k, .conv = !kernel, .may_quantize = v->int8, .takes_bytes = v->int8};
    if (bias && !product_constant(l, bias, &own))
        return lower_unsupported(v->node, err, "its bias is no constant");
    epilogue_follow(l, v->node->outputs[0], &wish, &v->e);
    v->y_dtype = v->e.quantized ? MLO_INT8 : v->node->outputs[0]->type.dtype;
    bool wide = v->int8 && !kernel;
    v->kp = wide && v->e.quantized ? padded(v->k) : v->k;
    v->numbers = (struct product_numbers){.own = bias ? &own : NULL,
                                          .alpha = 1,
                                          .beta = 1,
                                          .x_scale = v->x_scale,
                                          .w = v->int8 ? &v->q : NULL,
                                          .columns = v->k,
                                          .padded = v->kp,
                                          .bias_dtype = v->int8 || kernel ? MLO_FLOAT32 : v->y_dtype};
    MLO_TRY(product_slots(l, &v->e, &v->numbers, err));
    v->residual_scale = 1 / v->numbers.unit;
    if (v->e.residual) {
        float scale;
        const struct mlo_value *q = v->int8 ? quant_source(l, v->e.residual, MLO_INT8, &scale) : NULL;
        v->residual = q ? q : v->e.residual;
        v->residual_scale *= q ? scale : 1;
        MLO_TRY(product_demand(l, v->residual, v->kp > v->k ? WANT_WIDE : WANT_LAST, &v->pr, err));
    }
    MLO_TRY(lower_place_new(l, v->e.end, v->kp > v->k ? WANT_WIDE : WANT_LAST, &v->py, err));
out:
    return status;
}

/* The operands' slots in the order of struct cuda_conv, and the result. */
static enum mlo_status finish(struct lower *l, const struct convolution *v, struct cuda_step *step, int x,
                              int w, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int k = 0;
    step->in[k++] = x;
    step->in[k++] = w;
    if (v->residual)
        step->in[k++] = lower_slot_at(l, &v->pr);
    if (v->numbers.bias >= 0)
        step->in[k++] = v->numbers.bias;
    if (v->numbers.scale >= 0)
        step->in[k++] = v->numbers.scale;
    step->in_count = k;
    step->out[0] = v->py.slot;
    step->out_count = 1;
    step->precision = lower_precision(l, v->dtype, true);
    for (int i = 0; i < k; i++)
        if (step->in[i] < 0)
            return mlo_error_nomem(err);
    l->done[v->node->index] = true;
    MLO_TRY(epilogue_take(l, &v->e, step, err));
    lower_set(l, v->e.end, &v->py);
out:
    return status;
}

static float clip_in(double bound, double unit)
{
    return (float)(bound / unit);
}

/* --- cuDNN
 * --------------------------------------------------------------------------------------------------- */

/* One spatial dim is two of which the first has one element. */
static void conv_tensor(const struct convolution *v, enum mlo_dtype dtype, int64_t n, int64_t c,
                        const int64_t *spatial, struct cuda_tensor *out)
{
    struct place p = {0};
    int64_t dims[MLO_MAX_RANK] = {n, c};
    int rank = 2;
    if (v->spatial == 1)
        dims[rank++] = 1;
    for (int i = 0; i < v->spatial; i++)
        dims[rank++] = spatial[i];
    place_dense(&p, dtype, rank, dims, WANT_LAST);
    place_tensor(&p, out);
}

/* The picture as it was fed: making it channels last converts its type too. */
static const struct mlo_value *stem_source(const struct lower *l, const struct mlo_value *x)
{
    const struct mlo_node *node = x->producer;
    bool cast = node && mlo_node_is(node, "Cast") && l->pending[node->index] && !lower_is_placed(l, x) &&
                lower_is_placed(l, node->inputs[0]) && lower_is_float(node->inputs[0]->type.dtype);
    return cast ? node->inputs[0] : x;
}

static enum mlo_status with_library(struct lower *l, struct convolution *v, bool stem, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t c = stem ? STEM_CHANNELS : v->int8 ? padded(v->c) : v->c, per_group = c / v->groups;
    int w, x, extra = v->spatial == 1;
    struct cuda_conv *conv = mlo_arena_calloc(l->arena, 1, sizeof *conv);
    if (!conv)
        return mlo_error_nomem(err);
    MLO_TRY(prepare_result(l, v, false, err));
    if (v->constant) {
        struct packing p = {.k = v->kp, .c = per_group, .taps = v->taps, .at_c = 1, .at_tap = per_group};
        p.at_k = per_group * v->taps;
        w = pack(l, v, &p);
    } else {
        struct place pw;
        MLO_TRY(product_demand(l, v->node->inputs[1], WANT_LAST, &pw, err));
        w = lower_slot_at(l, &pw);
    }
    if (stem) {
        struct place wide;
        int64_t dims[MLO_MAX_RANK];
        MLO_TRY(lower_demand(l, stem_source(l, v->x), WANT_ANY, &v->px, err));
        memcpy(dims, v->px.dims, sizeof dims);
        dims[1] = c;
        place_dense(&wide, v->dtype, v->px.rank, dims, WANT_LAST);
        wide.slot = lower_slot(l, CUDA_SLOT_ARENA, place_bytes(&wide));
        if (wide.slot < 0)
            return mlo_error_nomem(err);
        MLO_TRY(chain_interleave(l, v->node, &v->px, &wide, err));
        x = wide.slot;
    } else {
        MLO_TRY(product_demand(l, v->x, v->int8 ? WANT_WIDE : WANT_LAST, &v->px, err));
        x = lower_slot_at(l, &v->px);
    }
    *conv = (struct cuda_conv){.spatial = v->spatial + extra,
                               .groups = v->groups,
                               .has_residual = v->residual != NULL,
                               .has_bias = v->numbers.bias >= 0,
                               .has_scale = v->numbers.scale >= 0,
                               .residual_scale = (float)v->residual_scale,
                               .activation = v->e.activation,
                               .low = clip_in(v->e.low, v->numbers.unit),
                               .high = clip_in(v->e.high, v->numbers.unit)};
    conv_tensor(v, v->dtype, v->n, c, v->w.in, &conv->x);
    conv_tensor(v, v->dtype, v->kp, per_group, v->w.kernel, &conv->w);
    conv_tensor(v, v->y_dtype, v->n, v->kp, v->w.out, &conv->y);
    if (v->residual)
        conv_tensor(v, v->pr.dtype, v->n, v->kp, v->w.out, &conv->residual);
    conv->stride[0] = conv->dilation[0] = 1;
    for (int i = 0; i < v->spatial; i++) {
        conv->pad_before[i + extra] = v->w.pad_begin[i];
        conv->pad_after[i + extra] = v->w.pad_end[i];
        conv->stride[i + extra] = v->w.stride[i];
        conv->dilation[i + extra] = v->w.dilation[i];
    }
    struct cuda_step *step = lower_step(l, CUDA_STEP_CONV, v->node, "cudnn conv");
    if (!step)
        return mlo_error_nomem(err);
    step->conv = conv;
    MLO_TRY(finish(l, v, step, x, w, err));
out:
    return status;
}

/* --- own kernels
 * --------------------------------------------------------------------------------------------- */

void geometry_of(int64_t n, int64_t c, const struct mlo_window *w, int64_t *out)
{
    out[0] = n;
    out[1] = c;
    for (int i = 0; i < 3; i++) {
        int s = i - (3 - w->spatial);
        bool there = s >= 0;
        out[2 + i] = there ? w->in[s] : 1;
        out[5 + i] = there ? w->out[s] : 1;
        out[8 + i] = there ? w->kernel[s] : 1;
        out[11 + i] = there ? w->stride[s] : 1;
        out[14 + i] = there ? w->dilation[s] : 1;
        out[17 + i] = there ? w->pad_begin[s] : 0;
        out[20 + i] = there ? w->pad_end[s] : 0;
    }
}

/* By positions, input channels, filters; of a transposed one, whose filters stand behind each input channel,
 * by positions as they stand. */
static int pack_for_kernel(struct lower *l, const struct convolution *v, bool transposed)
{
    struct convolution w = *v;
    int64_t per_group = (transposed ? v->k : v->c) / v->groups;
    struct packing p = {.k = v->k, .c = per_group, .taps = v->taps, .at_k = 1, .at_c = v->k};
    if (transposed) {
        w.k = p.k = v->c;
        w.c = v->k;
        p.at_k = per_group;
        p.at_c = 1;
    }
    p.at_tap = p.k * per_group;
    return pack(l, &w, &p);
}

/* A Clip that nobody has computed yet costs a depthwise convolution less than a pass over its input. */
static void read_before_clip(const struct lower *l, struct convolution *v)
{
    double low, high;
    const struct mlo_node *node = v->x->producer;
    if (!node || !mlo_node_is(node, "Clip") || !l->pending[node->index] || lower_is_placed(l, v->x) ||
        !lower_is_placed(l, node->inputs[0]) || lower_is_shown(l, v->x) || !epilogue_clip(node, &low, &high))
        return;
    v->x = node->inputs[0];
    v->x_clipped = true;
    v->x_low = (float)low;
    v->x_high = (float)high;
}

static enum mlo_status with_kernel(struct lower *l, struct convolution *v, const char *row,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct cuda_kernel_use *use;
    struct cuda_step *step;
    bool depthwise = strcmp(row, "depthwise") == 0;
    MLO_TRY(prepare_result(l, v, true, err));
    if (depthwise && !v->int8)
        read_before_clip(l, v);
    MLO_TRY(product_demand(l, v->x, WANT_LAST, &v->px, err));
    int w = pack_for_kernel(l, v, strcmp(row, "conv_transpose") == 0), x = lower_slot_at(l, &v->px);
    MLO_TRY(lower_kernel(l, v->node, row, &use, &step, err));
    geometry_of(v->n, v->c, &v->w, use->n);
    use->n[23] = v->e.activation;
    use->n[24] = v->residual != NULL;
    use->n[25] = v->numbers.bias >= 0;
    use->n[26] = v->numbers.scale >= 0;
    if (depthwise) {
        use->n[27] = v->x_clipped;
        use->f[4] = v->x_low;
        use->f[5] = v->x_high;
    } else {
        use->n[27] = v->k;
        use->n[28] = v->groups;
    }
    use->f[0] = clip_in(v->e.low, v->numbers.unit);
    use->f[1] = clip_in(v->e.high, v->numbers.unit);
    use->f[2] = (float)v->residual_scale;
    use->f[3] = 1;
    use->types[0] = v->dtype;
    use->types[1] = v->dtype;
    use->types[2] = v->y_dtype;
    use->types[3] = v->residual ? v->pr.dtype : MLO_FLOAT32;
    MLO_TRY(finish(l, v, step, x, w, err));
out:
    return status;
}

enum mlo_status lower_conv(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct convolution v;
    if (!mlo_node_is(node, "Conv"))
        return MLO_OK;
    MLO_TRY(describe(l, node, &v, err));
    enum way way = way_of(&v);
    if (way == WAY_LIBRARY || way == WAY_STEM)
        MLO_TRY(with_library(l, &v, way == WAY_STEM, err));
    else
        MLO_TRY(with_kernel(l, &v, way == WAY_DEPTHWISE ? "depthwise" : "conv", err));
    *done = true;
out:
    return status;
}

/* --- transposed
 * ----------------------------------------------------------------------------------------------- */

static bool list_of(const struct mlo_node *node, const char *name, int count, int64_t *out)
{
    size_t n = 0;
    const int64_t *list = mlo_node_attr_ints(node, name, &n);
    for (int i = 0; list && i < count && n == (size_t)count; i++)
        out[i] = list[i];
    return !list || n == (size_t)count || n == 0;
}

/* The size of the result is inferred; what is cut off before it follows from that where pads are automatic.
 */
static bool spread_of(const struct mlo_node *node, const int64_t *x, const int64_t *w, const int64_t *y,
                      int spatial, struct mlo_window *out)
{
    const char *mode = mlo_node_attr_s(node, "auto_pad", "NOTSET");
    size_t stated = 0;
    int64_t pads[6] = {0}, extra[3] = {0};
    bool automatic =
        strncmp(mode, "SAME", 4) == 0 || (mlo_node_attr_ints(node, "output_shape", &stated) && stated);
    *out = (struct mlo_window){.spatial = spatial, .stride = {1, 1, 1}, .dilation = {1, 1, 1}};
    if (!list_of(node, "strides", spatial, out->stride) ||
        !list_of(node, "dilations", spatial, out->dilation) ||
        !list_of(node, "output_padding", spatial, extra) || !list_of(node, "pads", 2 * spatial, pads))
        return false;
    for (int i = 0; i < spatial; i++) {
        out->in[i] = x[2 + i];
        out->out[i] = y[2 + i];
        out->kernel[i] = w[2 + i];
        int64_t full = out->stride[i] * (x[2 + i] - 1) + extra[i] + (w[2 + i] - 1) * out->dilation[i] + 1;
        int64_t total = MLO_MAX(full - y[2 + i], 0);
        out->pad_begin[i] = !automatic                        ? pads[i]
                            : strcmp(mode, "SAME_UPPER") == 0 ? total / 2
                                                              : total - total / 2;
        out->pad_begin[i] = strcmp(mode, "VALID") == 0 && !automatic ? 0 : out->pad_begin[i];
        out->pad_end[i] = total - out->pad_begin[i];
    }
    return true;
}

enum mlo_status lower_conv_transpose(struct lower *l, const struct mlo_node *node, bool *done,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t x[MLO_MAX_RANK], w[MLO_MAX_RANK], y[MLO_MAX_RANK];
    if (!mlo_node_is(node, "ConvTranspose"))
        return MLO_OK;
    struct convolution v = {.node = node, .x = node->inputs[0], .groups = mlo_node_attr_i(node, "group", 1)};
    if (!lower_dims(node->inputs[0], x) || !lower_dims(node->inputs[1], w) ||
        !lower_dims(node->outputs[0], y) || v.x->type.rank < 3 || v.x->type.rank > 5 || v.groups < 1)
        return lower_unsupported(node, err, "its operands have not three to five known dims");
    v.spatial = v.x->type.rank - 2;
    v.dtype = v.y_dtype = node->outputs[0]->type.dtype;
    if (!lower_is_float(v.dtype))
        return lower_unsupported(node, err, "it convolves %s", mlo_dtype_name(v.dtype));
    v.constant = product_constant(l, node->inputs[1], &v.weights);
    if (!v.constant || !spread_of(node, x, w, y, v.spatial, &v.w))
        return lower_unsupported(node, err,
                                 "its weights are no constants, or its attributes do not fit them");
    v.n = x[0];
    v.c = x[1];
    v.k = y[1];
    v.taps = 1;
    for (int i = 0; i < v.spatial; i++)
        v.taps *= w[2 + i];
    MLO_TRY(with_kernel(l, &v, "conv_transpose", err));
    *done = true;
out:
    return status;
}
