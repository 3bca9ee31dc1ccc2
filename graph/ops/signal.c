/* Windows, DFT, STFT and MelWeightMatrix. Sums in double, in order, rounded once. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

static const int64_t largest = (int64_t)1 << 31;

static enum mlo_status scalar_of(const struct mlo_tensor *t, int i, double *out, struct mlo_error *err)
{
    if (mlo_tensor_count(t) != 1)
        return mlo_error_set(err, MLO_EINVAL, "input %d is not one number", i);
    *out = mlo_tensor_get_f64(t, 0);
    return MLO_OK;
}

static enum mlo_status infer_window(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    const struct mlo_tensor *size = mlo_op_content(node, 0);
    int64_t dtype = mlo_node_attr_i(node, "output_datatype", MLO_FLOAT32);
    double n = -1;
    if (dtype < 1 || dtype >= MLO_DTYPE_COUNT)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'output_datatype' is %lld", (long long)dtype);
    out[0] = (struct mlo_type){.dtype = (enum mlo_dtype)dtype, .rank = 1};
    if (size) {
        enum mlo_status status = scalar_of(size, 0, &n, err);
        if (status != MLO_OK)
            return status;
        if (!(n >= 0 && n <= (double)largest))
            return mlo_error_set(err, MLO_EINVAL, "input 0, the size, is %g", n);
    }
    out[0].dims[0] = (struct mlo_dim){(int64_t)n, NULL};
    return MLO_OK;
}

/* a0 - a1 cos(2 pi i / n) + a2 cos(4 pi i / n) */
static enum mlo_status eval_window(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    static const double hann[] = {0.5, 0.5, 0}, hamming[] = {25.0 / 46, 21.0 / 46, 0};
    static const double blackman[] = {0.42, 0.5, 0.08};
    enum mlo_status status = MLO_OK;
    const double *a = mlo_node_is(node, "HannWindow")      ? hann
                      : mlo_node_is(node, "HammingWindow") ? hamming
                                                           : blackman;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    const struct mlo_dtype_info *info = mlo_dtype_info(out[0]->dtype);
    if (!info->is_float && !info->is_integer) {
        status = mlo_op_bad_dtype(out[0]->dtype, err);
        goto out;
    }
    size_t size = mlo_tensor_count(out[0]);
    double period = (double)size - (mlo_node_attr_i(node, "periodic", 1) ? 0 : 1);
    for (size_t i = 0; i < size; i++) {
        double angle = period > 0 ? 2 * MLO_MATH_PI * (double)i / period : MLO_MATH_PI;
        mlo_tensor_set_f64(out[0], i, a[0] - a[1] * mlo_math_cos(angle) + a[2] * mlo_math_cos(2 * angle));
    }
out:
    return status;
}

/* cos and sin of 2 pi k / n for all k: one table a transform, so that long sums need no large arguments. */
static double *circle(size_t n)
{
    double *table = calloc(2 * n + 1, sizeof *table);
    for (size_t k = 0; table && k < n; k++) {
        double angle = 2 * MLO_MATH_PI * (double)k / (double)n;
        table[2 * k] = mlo_math_cos(angle);
        table[2 * k + 1] = mlo_math_sin(angle);
    }
    return table;
}

/* Bin k of the n-point transform of `count` (re, im) pairs, padded with zeros; sign -1: forward. */
static void transform(const double *table, const double *x, size_t count, size_t n, size_t k, double sign,
                      double *re, double *im)
{
    double a = 0, b = 0;
    for (size_t i = 0, at = 0; i < count && i < n; i++, at = (at + k) % n) {
        double c = table[2 * at], s = sign * table[2 * at + 1];
        a += x[2 * i] * c - x[2 * i + 1] * s;
        b += x[2 * i] * s + x[2 * i + 1] * c;
    }
    *re = a;
    *im = b;
}

/* The axis is an attribute in opset 17 and input 2 from 20 on; -1: not known. */
static enum mlo_status dft_axis(const struct mlo_node *node, const struct mlo_tensor *input, int rank,
                                int *axis, struct mlo_error *err)
{
    double v = -2;
    enum mlo_status status = MLO_OK;
    if (node->op->since < 20)
        v = (double)mlo_node_attr_i(node, "axis", 1);
    else if (input)
        status = scalar_of(input, 2, &v, err);
    else if (mlo_op_in(node, 2)) {
        *axis = -1;
        return MLO_OK;
    }
    if (status != MLO_OK)
        return status;
    status = mlo_op_axis((int64_t)fmin(fmax(v, -100), 100), rank, axis, err);
    if (status == MLO_OK && *axis == rank - 1)
        status = mlo_error_set(err, MLO_EINVAL, "axis %d is that of the real and imaginary parts", *axis);
    return status;
}

static enum mlo_status dft_length(const struct mlo_tensor *length, int64_t size, int64_t *out,
                                  struct mlo_error *err)
{
    double v = (double)size;
    enum mlo_status status = length ? scalar_of(length, 1, &v, err) : MLO_OK;
    if (status == MLO_OK && length && !(v >= 1 && v <= (double)largest))
        return mlo_error_set(err, MLO_EINVAL, "input 1, the length, is %g", v);
    *out = (int64_t)v;
    return status;
}

/* The inverse of a one-sided transform: n / 2 + 1 bins, whose mirror images are not given, become n real
 * numbers. */
static bool from_half(const struct mlo_node *node)
{
    return mlo_node_attr_i(node, "onesided", 0) && mlo_node_attr_i(node, "inverse", 0);
}

/* How many points a transform has when no length is given; -1: not known. */
static int64_t points(int64_t size, bool half)
{
    return !half || size < 0 ? size : MLO_MAX(2 * (size - 1), 0);
}

static enum mlo_status infer_dft(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0);
    bool onesided = mlo_node_attr_i(node, "onesided", 0) != 0, half = from_half(node);
    int64_t n = -1;
    int axis;
    out[0] = *x;
    if (x->rank < 0)
        goto out;
    int64_t parts = x->rank ? x->dims[x->rank - 1].value : 0;
    if (x->rank < 2 || (parts >= 0 && parts != 2 && (parts != 1 || half))) {
        status = mlo_error_set(err, MLO_EINVAL, "the last dim of input 0 is %lld, not %s2 (complex)",
                               (long long)parts, half ? "" : "1 (real) or ");
        goto out;
    }
    out[0].dims[x->rank - 1] = mlo_dim_fixed(half ? 1 : 2);
    MLO_TRY(dft_axis(node, mlo_op_content(node, 2), x->rank, &axis, err));
    if (axis < 0) {
        for (int i = 0; i < x->rank - 1; i++)
            out[0].dims[i] = mlo_dim_unknown();
        goto out;
    }
    if (!mlo_op_in(node, 1) || mlo_op_content(node, 1))
        MLO_TRY(dft_length(mlo_op_content(node, 1), points(x->dims[axis].value, half), &n, err));
    if (n >= 0 || mlo_op_in(node, 1) || onesided)
        out[0].dims[axis] = (struct mlo_dim){n < 0 ? -1 : onesided && !half ? n / 2 + 1 : n, NULL};
out:
    return status;
}

static enum mlo_status eval_dft(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    double *table = NULL, *signal = NULL, re, im;
    bool inverse = mlo_node_attr_i(node, "inverse", 0) != 0, half = from_half(node);
    int64_t length;
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(x, err));
    MLO_TRY(dft_axis(node, mlo_op_operand(node, in, 2), x->rank, &axis, err));
    MLO_TRY(dft_length(mlo_op_operand(node, in, 1), points(x->dims[axis], half), &length, err));
    struct mlo_spans s = mlo_op_spans(x, axis);
    size_t parts = (size_t)x->dims[x->rank - 1], inner = s.inner / parts, bins = (size_t)out[0]->dims[axis];
    size_t n = (size_t)length, given = half ? MLO_MIN(s.size, n / 2 + 1) : s.size, count = half ? n : given;
    size_t width = half ? 1 : 2;
    table = circle(n);
    signal = calloc(2 * MLO_MAX(count, given) + 1, sizeof *signal);
    if (!table || !signal) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t o = 0; o < s.outer; o++)
        for (size_t i = 0; i < inner; i++) {
            for (size_t k = 0; k < given; k++)
                for (size_t p = 0; p < parts; p++)
                    signal[2 * k + p] = mlo_tensor_get_f64(x, ((o * s.size + k) * inner + i) * parts + p);
            for (size_t k = n / 2 + 1; half && k < n; k++) {
                signal[2 * k] = signal[2 * (n - k)];
                signal[2 * k + 1] = -signal[2 * (n - k) + 1];
            }
            for (size_t k = 0; k < bins; k++) {
                size_t to = ((o * bins + k) * inner + i) * width;
                transform(table, signal, count, n, k, inverse ? 1 : -1, &re, &im);
                mlo_tensor_set_f64(out[0], to, inverse ? re / (double)n : re);
                if (!half)
                    mlo_tensor_set_f64(out[0], to + 1, inverse ? im / (double)n : im);
            }
        }
out:
    free(table);
    free(signal);
    return status;
}

/* Inputs: signal, frame step, window, frame length; the last two each may be omitted, not both. */
static enum mlo_status stft_sizes(const struct mlo_tensor *step, const struct mlo_type *window,
                                  const struct mlo_tensor *length, int64_t *out_step, int64_t *out_length,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double s = 0, n = window && window->rank == 1 ? (double)window->dims[0].value : -1;
    MLO_TRY(scalar_of(step, 1, &s, err));
    if (length)
        MLO_TRY(scalar_of(length, 3, &n, err));
    if (!(s >= 1 && s <= (double)largest && n >= 1 && n <= (double)largest) ||
        (window && window->rank >= 0 && (window->rank != 1 || (double)window->dims[0].value != n)))
        status = mlo_error_set(err, MLO_EINVAL,
                               "a frame step of %g, frames of %g, or a window of another length", s, n);
    *out_step = (int64_t)s;
    *out_length = (int64_t)n;
out:
    return status;
}

static enum mlo_status infer_stft(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *window = mlo_op_in(node, 2);
    const struct mlo_tensor *step = mlo_op_content(node, 1), *length = mlo_op_content(node, 3);
    int64_t s, n, one[MLO_MAX_RANK];
    out[0] = (struct mlo_type){.dtype = x->dtype, .rank = 4};
    out[0].dims[0] = x->rank > 0 ? x->dims[0] : mlo_dim_unknown();
    out[0].dims[1] = out[0].dims[2] = mlo_dim_unknown();
    out[0].dims[3] = mlo_dim_fixed(2);
    if (x->rank >= 0 &&
        (x->rank < 2 || x->rank > 3 || (x->rank == 3 && (x->dims[2].value == 0 || x->dims[2].value > 2)))) {
        status = mlo_error_set(err, MLO_EINVAL, "input 0 must be [batch, length, 1 or 2]");
        goto out;
    }
    if (!window && !mlo_op_in(node, 3)) {
        status = mlo_error_set(err, MLO_EINVAL, "neither a window nor a frame length is given");
        goto out;
    }
    if (!step || x->rank < 0 || (mlo_op_in(node, 3) ? !length : !mlo_type_static(window, one)) ||
        (window && !mlo_type_static(window, one)))
        goto out;
    MLO_TRY(stft_sizes(step, window, length, &s, &n, err));
    if (x->dims[1].value >= 0) {
        if (x->dims[1].value < n) {
            status = mlo_error_set(err, MLO_EINVAL, "frames of %lld in a signal of %lld", (long long)n,
                                   (long long)x->dims[1].value);
            goto out;
        }
        out[0].dims[1] = mlo_dim_fixed((x->dims[1].value - n) / s + 1);
    }
    out[0].dims[2] = mlo_dim_fixed(mlo_node_attr_i(node, "onesided", 1) ? n / 2 + 1 : n);
out:
    return status;
}

static enum mlo_status eval_stft(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0], *window = mlo_op_operand(node, in, 2);
    double *table = NULL, *frame = NULL, re, im;
    int64_t step, n;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(x, err));
    struct mlo_type window_type = {.rank = -1};
    if (window)
        window_type = mlo_type_of(window);
    MLO_TRY(stft_sizes(in[1], window ? &window_type : NULL, mlo_op_operand(node, in, 3), &step, &n, err));
    size_t parts = x->rank == 3 ? (size_t)x->dims[2] : 1, length = (size_t)x->dims[1], size = (size_t)n;
    size_t frames = (size_t)out[0]->dims[1], bins = (size_t)out[0]->dims[2];
    table = circle(size);
    frame = calloc(2 * size + 1, sizeof *frame);
    if (!table || !frame) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t f = 0; f < (size_t)x->dims[0] * frames; f++) {
        size_t first = f / frames * length + f % frames * (size_t)step;
        for (size_t i = 0; i < size; i++)
            for (size_t p = 0; p < parts; p++)
                frame[2 * i + p] = mlo_tensor_get_f64(x, (first + i) * parts + p) *
                                   (window ? mlo_tensor_get_f64(window, i) : 1);
        for (size_t k = 0; k < bins; k++) {
            transform(table, frame, size, size, k, -1, &re, &im);
            mlo_tensor_set_f64(out[0], (f * bins + k) * 2, re);
            mlo_tensor_set_f64(out[0], (f * bins + k) * 2 + 1, im);
        }
    }
out:
    free(table);
    free(frame);
    return status;
}

/* num_mel_bins, dft_length, sample_rate, lower and upper edge in Hz. */
static enum mlo_status infer_mel(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t dtype = mlo_node_attr_i(node, "output_datatype", MLO_FLOAT32);
    const struct mlo_tensor *bins = mlo_op_content(node, 0), *length = mlo_op_content(node, 1);
    if (dtype < 1 || dtype >= MLO_DTYPE_COUNT) {
        status = mlo_error_set(err, MLO_EINVAL, "attribute 'output_datatype' is %lld", (long long)dtype);
        goto out;
    }
    out[0] = (struct mlo_type){.dtype = (enum mlo_dtype)dtype, .rank = 2};
    out[0].dims[0] = out[0].dims[1] = mlo_dim_unknown();
    if (bins && length) {
        double n, m;
        MLO_TRY(scalar_of(bins, 0, &m, err));
        MLO_TRY(scalar_of(length, 1, &n, err));
        if (!(m >= 1 && m <= (double)largest && n >= 1 && n <= (double)largest)) {
            status = mlo_error_set(err, MLO_EINVAL, "%g mel bins of a transform of %g", m, n);
            goto out;
        }
        out[0].dims[0] = mlo_dim_fixed((int64_t)n / 2 + 1);
        out[0].dims[1] = mlo_dim_fixed((int64_t)m);
    }
out:
    return status;
}

static double mel_of(double hertz)
{
    return 2595 * mlo_math_log(1 + hertz / 700) / 2.302585092994046;
}

static enum mlo_status eval_mel(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double v[5], *edge = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    for (int i = 0; i < 5; i++)
        MLO_TRY(scalar_of(in[i], i, &v[i], err));
    const struct mlo_dtype_info *info = mlo_dtype_info(out[0]->dtype);
    if (!info->is_float && !info->is_integer) {
        status = mlo_op_bad_dtype(out[0]->dtype, err);
        goto out;
    }
    size_t rows = (size_t)out[0]->dims[0], bins = (size_t)out[0]->dims[1];
    if (!(v[2] > 0) || !(v[3] >= 0) || !(v[4] >= v[3] && v[4] < 1e9)) {
        status = mlo_error_set(err, MLO_EINVAL, "a sample rate of %g, edges of %g and %g", v[2], v[3], v[4]);
        goto out;
    }
    edge = calloc(bins + 2, sizeof *edge);
    if (!edge) {
        status = mlo_error_nomem(err);
        goto out;
    }
    double low = mel_of(v[3]), step = (mel_of(v[4]) - low) / ((double)bins + 2);
    for (size_t i = 0; i < bins + 2; i++) {
        double hertz = 700 * (mlo_math_exp(((double)i * step + low) / 2595 * 2.302585092994046) - 1);
        edge[i] = floor((floor(v[1]) + 1) * hertz / floor(v[2]));
    }
    for (size_t b = 0; b < bins; b++)
        for (size_t r = 0; r < rows; r++) { /* a triangle; one bin where it is no wider */
            double at = (double)r, left = edge[b], centre = edge[b + 1], right = edge[b + 2], w = 0;
            if (at >= left && at <= centre)
                w = centre == left ? at == centre : (at - left) / (centre - left);
            if (at >= centre && at < right)
                w = (right - at) / (right - centre);
            mlo_tensor_set_f64(out[0], r * bins + b, w);
        }
out:
    free(edge);
    return status;
}

#define WINDOW(name)                                                                                         \
    {                                                                                                        \
        "", name, 17, infer_window, eval_window, MLO_OP_PURE, 1, 1, 1, 1                                     \
    }
static const struct mlo_op rows[] = {
    WINDOW("HannWindow"),
    WINDOW("HammingWindow"),
    WINDOW("BlackmanWindow"),
    {"", "DFT", 17, infer_dft, eval_dft, MLO_OP_PURE, 1, 2, 1, 1},
    {"", "DFT", 20, infer_dft, eval_dft, MLO_OP_PURE, 1, 3, 1, 1},
    {"", "STFT", 17, infer_stft, eval_stft, MLO_OP_PURE, 2, 4, 1, 1},
    {"", "MelWeightMatrix", 17, infer_mel, eval_mel, MLO_OP_PURE, 5, 5, 1, 1},
};
const struct mlo_op_family mlo_ops_signal = {rows, MLO_COUNT(rows)};
