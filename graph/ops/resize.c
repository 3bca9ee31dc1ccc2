/* Resize and Upsample. Nearest copies elements; linear and cubic are sums over each dim in turn, from the
 * last to the first, in double, rounded once. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

enum mode { NEAREST, LINEAR, BILINEAR, CUBIC };
enum coordinate {
    HALF_PIXEL,
    PYTORCH_HALF_PIXEL,
    ALIGN_CORNERS,
    ASYMMETRIC,
    TF_HALF_PIXEL_FOR_NN,
    TF_CROP_AND_RESIZE,
    HALF_PIXEL_SYMMETRIC
};
enum rounding { PREFER_FLOOR, PREFER_CEIL, FLOOR, CEIL };
enum policy { STRETCH, NOT_LARGER, NOT_SMALLER };

struct resize {
    enum mode mode;
    enum coordinate coordinate;
    enum rounding rounding;
    enum policy policy;
    bool antialias, exclude_outside;
    double cubic, outside; /* cubic_coeff_a, extrapolation_value */
    int axes[MLO_MAX_RANK], axis_count;
    double scale[MLO_MAX_RANK]; /* out / in, as given; 0: not known */
    int64_t size[MLO_MAX_RANK]; /* of the output; -1: not known */
    double roi[2][MLO_MAX_RANK];
    bool known;
};

static enum mlo_status read_modes(const struct mlo_node *node, struct resize *r, struct mlo_error *err)
{
    static const char *const modes[] = {"nearest", "linear", "bilinear", "cubic"};
    static const char *const coordinates[] = {
        "half_pixel",           "pytorch_half_pixel", "align_corners",       "asymmetric",
        "tf_half_pixel_for_nn", "tf_crop_and_resize", "half_pixel_symmetric"};
    static const char *const roundings[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
    static const char *const policies[] = {"stretch", "not_larger", "not_smaller"};
    enum mlo_status status = MLO_OK;
    unsigned mode = 0, coordinate = 0, rounding = 0, policy = 0;
    bool old = node->op->since < 11; /* Upsample and Resize of opset 10: asymmetric, rounding down */
    MLO_TRY(mlo_op_choose(node, "mode", "nearest", modes, MLO_COUNT(modes), &mode, err));
    MLO_TRY(mlo_op_choose(node, "coordinate_transformation_mode", old ? "asymmetric" : "half_pixel",
                          coordinates, MLO_COUNT(coordinates), &coordinate, err));
    MLO_TRY(mlo_op_choose(node, "nearest_mode", old ? "floor" : "round_prefer_floor", roundings,
                          MLO_COUNT(roundings), &rounding, err));
    MLO_TRY(mlo_op_choose(node, "keep_aspect_ratio_policy", "stretch", policies, MLO_COUNT(policies), &policy,
                          err));
    r->mode = (enum mode)mode;
    r->coordinate = (enum coordinate)coordinate;
    r->rounding = (enum rounding)rounding;
    r->policy = (enum policy)policy;
    r->antialias = mlo_node_attr_i(node, "antialias", 0) != 0;
    r->exclude_outside = mlo_node_attr_i(node, "exclude_outside", 0) != 0;
    r->cubic = mlo_node_attr_f(node, "cubic_coeff_a", -0.75f);
    r->outside = mlo_node_attr_f(node, "extrapolation_value", 0);
out:
    return status;
}

/* Which dims the scales, sizes and roi are for: all, unless `axes` says so. */
static enum mlo_status read_axes(const struct mlo_node *node, int rank, struct resize *r,
                                 struct mlo_error *err)
{
    size_t count;
    const int64_t *axes = mlo_node_attr_ints(node, "axes", &count);
    unsigned seen = 0;
    r->axis_count = axes ? (int)MLO_MIN(count, MLO_MAX_RANK + 1) : rank;
    if (r->axis_count > rank)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'axes' names %zu axes of %d dims", count, rank);
    for (int i = 0; i < r->axis_count; i++) {
        enum mlo_status status = mlo_op_axis(axes ? axes[i] : i, rank, &r->axes[i], err);
        if (status != MLO_OK)
            return status;
        if (seen >> r->axes[i] & 1)
            return mlo_error_set(err, MLO_EINVAL, "attribute 'axes' names axis %d twice", r->axes[i]);
        seen |= 1u << r->axes[i];
    }
    return MLO_OK;
}

static enum mlo_status apply_sizes(const struct mlo_tensor *sizes, const struct mlo_type *x, struct resize *r,
                                   struct mlo_error *err)
{
    double common = 0;
    for (int i = 0; i < r->axis_count; i++) {
        int d = r->axes[i];
        double in = (double)x->dims[d].value;
        r->size[d] = mlo_tensor_get_i64(sizes, (size_t)i);
        if (r->size[d] < 0 || (in == 0 && r->size[d]))
            return mlo_error_set(err, MLO_EINVAL, "size %d is %lld", i, (long long)r->size[d]);
        r->scale[d] = in > 0 ? (double)r->size[d] / in : 0;
        bool better = r->policy == NOT_LARGER ? r->scale[d] < common : r->scale[d] > common;
        common = i == 0 || better ? r->scale[d] : common;
        if (r->policy != STRETCH && in < 0) { /* one unknown dim leaves the ratio unknown */
            r->known = false;
            return MLO_OK;
        }
    }
    for (int i = 0; r->policy != STRETCH && i < r->axis_count; i++) {
        int d = r->axes[i];
        double size = floor((double)x->dims[d].value * common + 0.5);
        if (size > 1e12)
            return mlo_error_set(err, MLO_EINVAL, "size %d would be %g", i, size);
        r->scale[d] = common;
        r->size[d] = (int64_t)size;
    }
    return MLO_OK;
}

static enum mlo_status apply_scale(int d, double scale, const struct mlo_type *x, struct resize *r,
                                   struct mlo_error *err)
{
    double size = floor((double)x->dims[d].value * scale);
    if (!(scale > 0) || size > 1e12)
        return mlo_error_set(err, MLO_EINVAL, "the scale of dim %d is %g", d, scale);
    r->scale[d] = scale;
    r->size[d] = x->dims[d].value < 0 ? -1 : (int64_t)size;
    return MLO_OK;
}

/* Scales: attribute (Upsample 7), input 1 (Upsample 9, Resize 10), input 2 (Resize 11); sizes: input 3. */
static enum mlo_status read_scales(const struct mlo_node *node, const struct mlo_type *x, struct resize *r,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count = 0;
    const float *attr = mlo_node_attr_floats(node, "scales", &count);
    int at = node->op->since >= 11 ? 2 : 1;
    const struct mlo_tensor *scales = mlo_op_content(node, at),
                            *sizes = at == 2 ? mlo_op_content(node, 3) : NULL;
    bool by_size = at == 2 && mlo_op_in(node, 3);
    MLO_TRY(read_axes(node, x->rank, r, err));
    for (int i = 0; i < x->rank; i++) {
        r->size[i] = x->dims[i].value;
        r->scale[i] = 1;
    }
    if (sizes && mlo_tensor_count(sizes) == 0 && mlo_op_in(node, at)) { /* an empty list is an omitted one */
        sizes = NULL;
        by_size = false;
    }
    bool by_scale = mlo_op_in(node, at) && !(scales && mlo_tensor_count(scales) == 0);
    if (!by_scale)
        scales = NULL;
    r->known = sizes || (!by_size && (scales || attr));
    if (!r->known) {
        if (!by_size && !by_scale)
            status = mlo_error_set(err, MLO_EINVAL, "neither scales nor sizes are given");
        goto out;
    }
    const struct mlo_tensor *list = sizes ? sizes : scales;
    if (list)
        count = mlo_tensor_count(list);
    if (count != (size_t)r->axis_count) {
        status = mlo_error_set(err, MLO_EINVAL, "%zu scales or sizes for %d dims", count, r->axis_count);
        goto out;
    }
    if (sizes)
        MLO_TRY(apply_sizes(sizes, x, r, err));
    for (int i = 0; !sizes && i < r->axis_count; i++)
        MLO_TRY(apply_scale(r->axes[i], scales ? mlo_tensor_get_f64(scales, (size_t)i) : attr[i], x, r, err));
out:
    return status;
}

/* Of axis i of those resized: a size that is known, computed by the model, or a whole multiple of a symbolic
 * dim. */
static struct mlo_dim symbolic_size(const struct mlo_node *node, const struct resize *r, int i,
                                    struct mlo_dim in)
{
    struct mlo_expr sizes[MLO_MAX_RANK];
    size_t count;
    int d = r->axes[i];
    if (r->known && r->size[d] >= 0)
        return mlo_dim_fixed(r->size[d]);
    if (r->known && r->scale[d] >= 1 && r->scale[d] <= 1 << 20 && floor(r->scale[d]) == r->scale[d])
        return mlo_op_dim_mul(node, in, mlo_dim_fixed((int64_t)r->scale[d]));
    if (!r->known && r->policy == STRETCH && node->op->since >= 11 &&
        mlo_op_exprs(node, 3, sizes, MLO_MAX_RANK, &count) && (int)count == r->axis_count)
        return mlo_dim_of_expr(sizes[i]);
    return mlo_dim_unknown();
}

static enum mlo_status infer_resize(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct resize r = {0};
    out[0] = *mlo_op_in(node, 0);
    MLO_TRY(read_modes(node, &r, err));
    if (out[0].rank < 0)
        goto out;
    MLO_TRY(read_scales(node, mlo_op_in(node, 0), &r, err));
    for (int i = 0; i < r.axis_count; i++) {
        int d = r.axes[i];
        if (!r.known || (r.size[d] != out[0].dims[d].value && r.scale[d] != 1))
            out[0].dims[d] = symbolic_size(node, &r, i, out[0].dims[d]);
    }
out:
    return status;
}

static enum mlo_status read_roi(const struct mlo_tensor *roi, int rank, struct resize *r,
                                struct mlo_error *err)
{
    for (int i = 0; i < rank; i++)
        r->roi[1][i] = 1;
    if (r->coordinate != TF_CROP_AND_RESIZE)
        return MLO_OK;
    if (!roi || mlo_tensor_count(roi) != 2 * (size_t)r->axis_count)
        return mlo_error_set(err, MLO_EINVAL, "input 1, the region, does not hold %d numbers",
                             2 * r->axis_count);
    for (int i = 0; i < 2 * r->axis_count; i++)
        r->roi[i / r->axis_count][r->axes[i % r->axis_count]] = mlo_tensor_get_f64(roi, (size_t)i);
    return MLO_OK;
}

/* Where in the input an output position lies. */
static double position(const struct resize *r, int dim, int64_t at, int64_t in, int64_t out)
{
    double x = (double)at, scale = r->scale[dim], last = (double)(in - 1);
    double start = r->roi[0][dim], end = r->roi[1][dim];
    switch (r->coordinate) {
    case ALIGN_CORNERS:
        return out == 1 ? 0 : x * last / (double)(out - 1);
    case ASYMMETRIC:
        return x / scale;
    case PYTORCH_HALF_PIXEL:
        return out > 1 ? (x + 0.5) / scale - 0.5 : 0;
    case TF_HALF_PIXEL_FOR_NN:
        return (x + 0.5) / scale;
    case TF_CROP_AND_RESIZE:
        return out > 1 ? start * last + x * (end - start) * last / (double)(out - 1)
                       : 0.5 * (start + end) * last;
    case HALF_PIXEL_SYMMETRIC: /* the centre stays, though the size was rounded */
        return (double)in / 2 * (1 - (double)out / (scale * (double)in)) + (x + 0.5) / scale - 0.5;
    default:
        return (x + 0.5) / scale - 0.5;
    }
}

static int64_t clamp(double x, int64_t size)
{
    return x <= 0 || isnan(x) ? 0 : x >= (double)(size - 1) ? size - 1 : (int64_t)x;
}

static int64_t nearest(const struct resize *r, double x, int64_t size)
{
    switch (r->rounding) {
    case FLOOR:
        return clamp(floor(x), size);
    case CEIL:
        return clamp(ceil(x), size);
    case PREFER_CEIL:
        return clamp(floor(x + 0.5), size);
    default:
        return clamp(ceil(x - 0.5), size);
    }
}

/* What one output position along a dim takes: weights[0 … count) of positions from `first` on (they may lie
 * outside: the edge is repeated). */
struct taps {
    double first;
    size_t count;
    double *weights;
    bool outside; /* of the region: the extrapolation value */
};

static double kernel(const struct resize *r, double x)
{
    double d = fabs(x), a = r->cubic;
    if (r->mode != CUBIC)
        return d < 1 ? 1 - d : 0;
    if (d <= 1)
        return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? (((d - 5) * d + 8) * d - 4) * a : 0;
}

static bool untouched(const struct resize *r, int dim, int64_t in, int64_t out)
{
    return in == out && r->scale[dim] == 1 && r->coordinate != TF_CROP_AND_RESIZE;
}

/* How many positions one output position can reach. */
static size_t reach(const struct resize *r, int dim)
{
    double shrink = r->antialias && r->scale[dim] < 1 ? r->scale[dim] : 1;
    return (size_t)fmin(2 * ceil((r->mode == CUBIC ? 2 : 1) / shrink) + 2, 1e15);
}

static void find_taps(const struct resize *r, int dim, int64_t at, int64_t in, int64_t out, struct taps *t)
{
    double x = position(r, dim, at, in, out), low = floor(x), sum = 0;
    double shrink = r->antialias && r->scale[dim] < 1 ? r->scale[dim] : 1;
    double radius = ceil((r->mode == CUBIC ? 2 : 1) / shrink);
    t->outside = r->coordinate == TF_CROP_AND_RESIZE && (!(x >= 0) || x > (double)(in - 1));
    if (shrink == 1 && r->mode != CUBIC) {
        t->first = low;
        t->count = x == low ? 1 : 2;
        t->weights[0] = 1 - (x - low);
        t->weights[1] = x - low;
        return;
    }
    t->first = low - radius + 1;
    t->count = (size_t)(2 * radius);
    for (size_t i = 0; i < t->count; i++) {
        double p = t->first + (double)i;
        bool ignored = r->exclude_outside && (p < 0 || p > (double)(in - 1));
        t->weights[i] = ignored ? 0 : kernel(r, shrink * (p - x));
        sum += t->weights[i];
    }
    for (size_t i = 0; (r->exclude_outside || shrink < 1) && sum != 0 && i < t->count; i++)
        t->weights[i] /= sum;
}

/* from: outer x in x inner; to: outer x out x inner. `outside` collects the positions beyond the region. */
static void resize_dim(const struct resize *r, int dim, const double *from, double *to, size_t outer,
                       int64_t in, int64_t out, size_t inner, double *weights)
{
    for (int64_t p = 0; p < out; p++) {
        struct taps t = {.weights = weights};
        find_taps(r, dim, p, in, out, &t);
        for (size_t o = 0; o < outer; o++) {
            double *row = to + (o * (size_t)out + (size_t)p) * inner;
            for (size_t i = 0; i < inner; i++)
                row[i] = t.outside ? NAN : 0; /* becomes the extrapolation value at the end */
            for (size_t k = 0; !t.outside && k < t.count; k++) {
                const double *x = from + (o * (size_t)in + (size_t)clamp(t.first + (double)k, in)) * inner;
                for (size_t i = 0; i < inner; i++)
                    row[i] += x[i] * t.weights[k];
            }
        }
    }
}

static bool beyond(const struct resize *r, const struct mlo_tensor *x, const struct mlo_tensor *y, size_t i)
{
    bool outside = false;
    for (int d = y->rank - 1; d >= 0; d--) {
        double p = position(r, d, (int64_t)(i % (size_t)y->dims[d]), x->dims[d], y->dims[d]);
        outside = outside || !(p >= 0) || p > (double)(x->dims[d] - 1);
        i /= (size_t)y->dims[d];
    }
    return outside;
}

static enum mlo_status interpolate(const struct resize *r, const struct mlo_tensor *x, struct mlo_tensor *y,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double *now = NULL, *next = NULL, *weights = NULL;
    const struct mlo_dtype_info *info = mlo_dtype_info(x->dtype);
    if (!info->is_float && !info->is_integer) {
        status = mlo_op_bad_dtype(x->dtype, err);
        goto out;
    }
    MLO_TRY(mlo_op_doubles(x, &now, err));
    size_t inner = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        int64_t in = x->dims[d], out = y->dims[d];
        size_t outer = 1;
        for (int i = 0; i < d; i++)
            outer *= (size_t)x->dims[i];
        if (!untouched(r, d, in, out)) {
            size_t room = reach(r, d);
            next = calloc(outer * (size_t)out * inner + 1, sizeof *next);
            weights = room < SIZE_MAX / sizeof *weights ? calloc(room, sizeof *weights) : NULL;
            if (!next || !weights) {
                status = mlo_error_nomem(err);
                goto out;
            }
            resize_dim(r, d, now, next, outer, in, out, inner, weights);
            free(weights);
            free(now);
            weights = NULL;
            now = next;
            next = NULL;
        }
        inner *= (size_t)out;
    }
    for (size_t i = 0; i < mlo_tensor_count(y); i++)
        mlo_tensor_set_f64(y, i,
                           r->coordinate == TF_CROP_AND_RESIZE && beyond(r, x, y, i) ? r->outside : now[i]);
out:
    free(now);
    free(next);
    free(weights);
    return status;
}

static enum mlo_status pick(const struct resize *r, const struct mlo_tensor *x, struct mlo_tensor *y,
                            struct mlo_error *err)
{
    size_t width = mlo_dtype_bytes(x->dtype);
    if (!width)
        return mlo_op_bad_dtype(x->dtype, err);
    int64_t at[MLO_MAX_RANK] = {0};
    for (size_t i = 0; i < mlo_tensor_count(y); i++) {
        size_t from = 0;
        for (int d = 0; d < y->rank; d++) {
            int64_t in = x->dims[d], p = at[d];
            if (!untouched(r, d, in, y->dims[d]))
                p = nearest(r, position(r, d, p, in, y->dims[d]), in);
            from = from * (size_t)in + (size_t)p;
        }
        if (r->coordinate == TF_CROP_AND_RESIZE && beyond(r, x, y, i))
            mlo_tensor_set_f64(y, i, r->outside);
        else
            memcpy((char *)y->data + i * width, (const char *)x->data + from * width, width);
        for (int d = y->rank - 1; d >= 0 && ++at[d] == y->dims[d]; d--)
            at[d] = 0;
    }
    return MLO_OK;
}

static enum mlo_status eval_resize(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct resize r = {0};
    struct mlo_value values[4] = {0}, *inputs[4] = {0};
    struct mlo_node stand_in = *node;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    for (int i = 0; i < node->input_count; i++)
        if (in[i]) {
            values[i].constant = (struct mlo_tensor *)in[i];
            inputs[i] = &values[i];
        }
    stand_in.inputs = inputs;
    struct mlo_type x = mlo_type_of(in[0]);
    MLO_TRY(read_modes(node, &r, err));
    MLO_TRY(read_scales(&stand_in, &x, &r, err));
    MLO_TRY(read_roi(node->op->since >= 11 ? mlo_op_operand(node, in, 1) : NULL, x.rank, &r, err));
    if (mlo_tensor_count(out[0]) == 0)
        goto out;
    if (mlo_tensor_count(in[0]) == 0)
        status = mlo_error_set(err, MLO_EINVAL, "an empty input cannot be resized to elements");
    else
        status = r.mode == NEAREST ? pick(&r, in[0], out[0], err) : interpolate(&r, in[0], out[0], err);
out:
    return status;
}

#define RESIZE(name, since, least, most)                                                                     \
    {                                                                                                        \
        "", name, since, infer_resize, eval_resize, MLO_OP_PURE, least, most, 1, 1                           \
    }
static const struct mlo_op rows[] = {
    RESIZE("Upsample", 7, 1, 1), RESIZE("Upsample", 9, 2, 2), RESIZE("Resize", 10, 2, 2),
    RESIZE("Resize", 11, 3, 4),  RESIZE("Resize", 13, 1, 4),  RESIZE("Resize", 18, 1, 4),
    RESIZE("Resize", 19, 1, 4),
};
const struct mlo_op_family mlo_ops_resize = {rows, MLO_COUNT(rows)};
