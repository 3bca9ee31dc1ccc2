/* Ranges of activations from observed statistics, and scale and zero point from ranges (Jacob et al., 2018,
 * "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference"). */
#include <float.h>
#include <math.h>

#include "passes/quantize_impl.h"

/* No scale is smaller, so that products of two scales stay normal float32 numbers. */
static const float smallest_scale = 0x1p-60f;

static enum mlo_status bad_stats(const struct mlo_value *value, struct mlo_error *err, const char *what,
                                 const char *hint)
{
    mlo_error_set(err, MLO_EINVAL, "%s '%s'", what, value->name);
    mlo_error_where(err, "value '%s'", value->name);
    mlo_error_hint(err, "%s", hint);
    return MLO_EINVAL;
}

static enum mlo_status value_range(const struct mlo_value *value,
                                   const struct mlo_quantize_settings *settings,
                                   const struct mlo_stats *stats, float *low, float *high,
                                   struct mlo_error *err)
{
    if (value->producer && mlo_node_is(value->producer, "Softmax")) {
        *low = 0.0f;
        *high = 1.0f;
        return MLO_OK;
    }
    const struct mlo_tensor_stats *t = mlo_stats_find(stats, value->name);
    if (!t)
        return bad_stats(value, err, "there are no statistics for value",
                         "observe the same model that is quantized, with all values it asks for");
    if (t->nan_count > 0 || t->inf_count > 0) {
        mlo_error_set(err, MLO_EINVAL,
                      "value '%s' was NaN %llu times and infinite %llu times on calibration data",
                      value->name, (unsigned long long)t->nan_count, (unsigned long long)t->inf_count);
        mlo_error_where(err, "value '%s'", value->name);
        mlo_error_hint(
            err, "check the calibration data and its normalisation; the float model itself fails on it");
        return MLO_EINVAL;
    }
    if (t->count == 0)
        return bad_stats(value, err, "no sample was observed for value",
                         "the calibration set must not be empty");
    int least, most;
    mlo_quantize_limits(settings->activations, &least, &most);
    const struct mlo_calibration c = {settings->percentile, settings->symmetric,
                                      most - least + !settings->symmetric};
    settings->calibrator->range(t, &c, low, high);
    return MLO_OK;
}

void mlo_quantize_limits(enum mlo_dtype dtype, int *low, int *high)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    if (info->is_float) { /* of float8_e4m3fn ("FP8 Formats for Deep Learning", Micikevicius et al., 2022) */
        *high = 448;
        *low = -*high;
        return;
    }
    *low = info->is_signed ? -(1 << (info->bits - 1)) : 0;
    *high = *low + (1 << info->bits) - 1;
}

static void params_from_range(const struct mlo_quantize_settings *settings, struct mlo_quantize_value *v)
{
    int least, most;
    mlo_quantize_limits(settings->activations, &least, &most);
    if (settings->symmetric) {
        v->zero_point = (least + most + 1) / 2;
        v->scale = fmaxf(fmaxf(-v->low, v->high) / (float)(most - v->zero_point), smallest_scale);
        return;
    }
    /* Halves first: the width of a range can be beyond float32. */
    float half_levels = (float)(most - least) * 0.5f;
    v->scale = fmaxf((v->high * 0.5f - v->low * 0.5f) / half_levels, smallest_scale);
    float zero = rintf(-v->low / v->scale) + (float)least;
    v->zero_point = (int)fminf(fmaxf(zero, (float)least), (float)most);
}

enum mlo_status mlo_quantize_ranges(const struct mlo_graph *graph,
                                    const struct mlo_quantize_settings *settings,
                                    const struct mlo_stats *stats, struct mlo_quantize_range *ranges,
                                    struct mlo_quantize_plan *plan, struct mlo_error *err)
{
    plan->ranges = ranges;
    for (int i = 0; i < plan->value_count; i++) {
        struct mlo_quantize_range *r = &ranges[i];
        if (!plan->values[i].chosen)
            continue;
        enum mlo_status status =
            r->known ? MLO_OK : value_range(graph->values[i], settings, stats, &r->low, &r->high, err);
        if (status != MLO_OK)
            return status;
        r->known = true;
        struct mlo_quantize_value *root = &plan->values[mlo_quantize_root(plan, i)];
        /* Zero is in every range: padding and ReLU need it exact. */
        root->low = fminf(root->low, r->low);
        root->high = fmaxf(root->high, r->high);
    }
    for (int i = 0; i < plan->value_count; i++) {
        struct mlo_quantize_value *v = &plan->values[i];
        if (!v->chosen || mlo_quantize_root(plan, i) != i)
            continue;
        if (v->low == 0.0f && v->high == 0.0f)
            v->high = 1.0f; /* any scale represents zeros */
        params_from_range(settings, v);
    }
    return MLO_OK;
}

void mlo_quantize_note_ranges(const struct mlo_graph *graph, const struct mlo_quantize_plan *plan,
                              struct mlo_pass_context *ctx)
{
    for (int i = 0; i < plan->value_count; i++) {
        float low = plan->ranges[i].low, high = plan->ranges[i].high;
        if (!plan->values[i].chosen || low != high)
            continue;
        if (low == 0.0f)
            mlo_pass_note(ctx, graph->values[i]->name,
                          "the value was always 0 on calibration data (a dead ReLU, or an unused input)");
        else
            mlo_pass_note(ctx, graph->values[i]->name,
                          "the value was always %.9g on calibration data: its range is from there to 0",
                          (double)low);
    }
}
