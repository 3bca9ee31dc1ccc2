/* Products of quantized values with int8 weights on own kernels, with what the graph does with the result:
 * activations that only clamp, a residual, the final quantization; and before the residual another one. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/depthwise_int8_impl.h"
#include "engines/cpu/fast/row_int8_impl.h"

/* Sums of 255 * 128 stay below 2^31 with all that is added to them. */
enum { DEPTH_MAX = 32768 };
#define FACTOR_MAX 0x1p20

/* What is fused: a chain up to a quantization (or not), and with `inner` the DequantizeLinear behind it and
 * a second chain, which begins with the sum of that and a residual. */
struct follow {
    struct fast_chain first, second;
    const struct mlo_node *dequantize;
    bool inner;
    bool posts; /* the first has more than clamps: it is computed in the values' own units */
};

static const struct fast_chain *last_of(const struct follow *f)
{
    return f->inner ? &f->second : &f->first;
}

static void range_of(enum mlo_dtype dtype, float *low, float *high)
{
    *low = dtype == MLO_INT8 ? -128.0f : 0.0f;
    *high = dtype == MLO_INT8 ? 127.0f : 255.0f;
}

/* Clamps of a chain without its sum, in the values' own units; false where it does something else. A sum may
 * only be its first node. */
static bool clamps(const struct fast_chain *chain, float *low, float *high)
{
    struct tile_product p = {0};
    if (!tile_chain(chain, &p) || p.post_count)
        return false;
    *low = p.epilogue.low;
    *high = p.epilogue.high;
    return true;
}

/* The same in units of q, within the range of its type; `zero` is what 0 becomes. */
static void quantized_clamps(const struct cpu_qparams *q, float zero, float *low, float *high)
{
    float floor, ceiling;
    range_of(q->dtype, &floor, &ceiling);
    floor -= (float)q->zero_point - zero;
    ceiling -= (float)q->zero_point - zero;
    *low = fminf(fmaxf(rintf(*low / q->scale) + zero, floor), ceiling);
    *high = fminf(fmaxf(rintf(*high / q->scale) + zero, floor), ceiling);
}

/* Q -> DQ -> Add with bytes that are there -> clamps -> Q, where nobody else reads what is between. */
static bool follow_inner(const struct mlo_plan *plan, struct follow *f)
{
    const struct mlo_node *dq = fast_reader(plan, f->first.end);
    struct cpu_qparams q;
    float low, high;
    if (f->posts || !f->first.quantized || f->first.residual || !dq || !mlo_node_is(dq, "DequantizeLinear") ||
        dq->inputs[0] != f->first.end || !fast_qparams(dq, &q) || !fast_same_q(&q, &f->first.q))
        return false;
    f->dequantize = dq;
    fast_chain_follow(plan, dq->outputs[0], true, true, &f->second);
    return f->second.residual && f->second.quantized && fast_is_quantized(plan, f->second.residual) &&
           clamps(&f->second, &low, &high);
}

/* The longest that kernels can do, with a residual or without. */
static bool follow(const struct mlo_plan *plan, struct mlo_value *y, bool residual, struct follow *f)
{
    struct tile_product p;
    for (int may_sum = residual; may_sum >= 0; may_sum--) {
        p = (struct tile_product){0};
        *f = (struct follow){0};
        fast_chain_follow(plan, y, may_sum != 0, true, &f->first);
        bool ok = tile_chain(&f->first, &p);
        f->posts = p.post_count > 0;
        if (!ok || (f->first.residual && f->first.quantized && !f->posts &&
                    !fast_is_quantized(plan, f->first.residual)))
            continue;
        f->inner = residual && follow_inner(plan, f);
        return true;
    }
    return false;
}

/* What does not depend on the column. */
static bool set_epilogue(const struct mlo_plan *plan, const struct follow *f, struct tile_product *p)
{
    const struct fast_chain *chain = last_of(f);
    struct tile_epilogue *e = &p->epilogue;
    bool quantized = chain->quantized && !f->posts;
    double unit = quantized ? (double)chain->q.scale : 1.0, residual = 0.0;
    if (!tile_chain(chain, p))
        return false;
    e->y_dtype = chain->quantized ? chain->q.dtype : MLO_FLOAT32;
    e->y_zero_point = chain->quantized ? chain->q.zero_point : 0;
    if (chain->quantized && f->posts)
        p->y_scale = chain->q.scale;
    if (quantized)
        quantized_clamps(&chain->q, (float)chain->q.zero_point, &e->low, &e->high);
    if (chain->residual && fast_is_quantized(plan, chain->residual)) {
        const struct cpu_qparams *q = &plan->values[chain->residual->index].q;
        e->residual_dtype = q->dtype;
        e->residual_zero_point = q->zero_point;
        residual = (double)q->scale / unit;
        e->residual_scale = (float)residual;
        if (quantized) {
            /* Sums of two grids often are ties but for the scales' last bits. The zero point's even part,
             * which turns no tie around, absorbs those before rounding. */
            e->y_zero_point = chain->q.zero_point & 1;
            e->residual_shift = (float)(chain->q.zero_point - e->y_zero_point);
        }
    } else if (chain->residual) {
        e->residual_dtype = MLO_FLOAT32;
    }
    if (f->inner) {
        e->inner = true;
        clamps(&f->first, &e->inner_low, &e->inner_high);
        quantized_clamps(&f->first.q, 0.0f, &e->inner_low, &e->inner_high);
        e->inner_scale = (float)((double)f->first.q.scale / unit);
    }
    return !quantized || (residual <= FACTOR_MAX && (double)e->inner_scale <= FACTOR_MAX);
}

/* Scale, bias and init by column; false where results could leave the range of int32. */
static bool set_columns(const struct tile_int8 *p, const struct cpu_qparams *xq, const struct follow *f,
                        float *scale, float *bias, int32_t *init)
{
    const struct tile_product *product = &p->product;
    const struct fast_chain *first = &f->first;
    size_t columns = (size_t)(product->groups * product->out_channels), depth = (size_t)product->in_channels;
    size_t taps = (size_t)(product->kernel[0] * product->kernel[1] * product->kernel[2]);
    bool quantized = first->quantized && !f->posts;
    double y_unit = quantized ? (double)first->q.scale : 1.0;
    int64_t subtract = xq->zero_point + (xq->dtype == MLO_INT8 ? 128 : 0);
    memset(init, 0, columns * sizeof *init);
    for (size_t t = 0; subtract && t < taps; t++)
        fast_add_columns((const int8_t *)product->weights + t * product->w_tap, columns, depth,
                         product->w_out, product->w_in, init);
    for (size_t o = 0; o < columns; o++) {
        double unit =
            (double)xq->scale * (double)p->w_scales[p->w_scale_count > 1 ? o : 0] * (double)p->alpha;
        init[o] = (int32_t)(-(int64_t)init[o] * subtract);
        scale[o] = (float)(unit / y_unit);
        bias[o] = p->bias ? (float)((double)p->bias[o] * (double)p->beta / y_unit) : 0.0f;
        if (quantized && !(fabsf(scale[o]) <= TILE_SCALE_MAX && fabsf(bias[o]) <= TILE_BIAS_MAX))
            return false;
    }
    return true;
}

static enum mlo_status take(struct mlo_plan *plan, const struct tile_int8 *p, const struct follow *f,
                            struct cpu_step *step, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(fast_chain_take(plan, &f->first, step, err));
    if (f->inner) {
        fast_mark_done(plan, f->dequantize);
        if (!cpu_step_fuse(plan, step, f->dequantize))
            return mlo_error_nomem(err);
        MLO_TRY(fast_chain_take(plan, &f->second, step, err));
    }
    fast_set(plan, last_of(f)->end, p->layout, step->out[0]);
out:
    return status;
}

typedef enum mlo_status emit_fn(struct mlo_plan *plan, const struct mlo_node *node,
                                const struct tile_product *p, struct cpu_step **step, struct mlo_error *err);

/* The kernels for the product, with all that they can do behind it; NULL: none. */
static emit_fn *choose(const struct mlo_plan *plan, struct mlo_value *y, struct tile_product *product,
                       struct follow *f)
{
    const struct tile_product asked = *product;
    bool tiles = tile_supports(plan, product);
    if (row8_supports(plan, product) && follow(plan, y, tiles, f) && set_epilogue(plan, f, product) &&
        !last_of(f)->residual && row8_finishes(product))
        return row8_emit;
    *product = asked;
    bool depthwise = depthwise8_supports(plan, product);
    if (!(depthwise || tiles) || !follow(plan, y, !depthwise, f) || !set_epilogue(plan, f, product))
        return NULL;
    return depthwise ? depthwise8_emit : tile_emit;
}

enum mlo_status tile_lower_int8(struct mlo_plan *plan, const struct tile_int8 *p, bool *done,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct tile_product product = p->product;
    struct follow f;
    const struct cpu_qparams *xq = &plan->values[p->x->index].q;
    size_t columns = (size_t)(product.groups * product.out_channels);
    product.type = xq->dtype == MLO_INT8 ? TILE_S8S8 : TILE_U8S8;
    product.fill = (uint8_t)xq->zero_point;
    product.residual = -1;
    if (product.in_channels * product.kernel[0] * product.kernel[1] * product.kernel[2] > DEPTH_MAX)
        return MLO_OK;
    emit_fn *emit = choose(plan, p->y, &product, &f);
    if (!emit)
        return MLO_OK;
    float *numbers = calloc(columns, 3 * sizeof *numbers);
    if (!numbers)
        return mlo_error_nomem(err);
    float *scale = numbers, *bias = numbers + columns;
    int32_t *init = (int32_t *)(numbers + 2 * columns);
    if (!set_columns(p, xq, &f, scale, bias, init))
        goto out;
    product.scale = scale;
    product.bias = bias;
    product.init = init;
    MLO_TRY(tile_slots(plan, p->x, p->layout, last_of(&f), &product, err));
    struct cpu_step *step;
    MLO_TRY(emit(plan, p->node, &product, &step, err));
    MLO_TRY(take(plan, p, &f, step, err));
    *done = true;
out:
    free(numbers);
    return status;
}
