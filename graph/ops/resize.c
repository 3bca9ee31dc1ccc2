/* Resize and Upsample: nearest and linear. The result is interpolated dim by dim over the corners. */
#include <math.h>

#include "graph/ops/ops_impl.h"

enum coordinate { HALF_PIXEL, PYTORCH_HALF_PIXEL, ALIGN_CORNERS, ASYMMETRIC };
enum rounding { PREFER_FLOOR, PREFER_CEIL, FLOOR, CEIL };

struct resize {
    bool linear;
    enum coordinate coordinate;
    enum rounding rounding;
    double scale[MLO_MAX_RANK]; /* out / in, as given; 0: not known */
    int64_t size[MLO_MAX_RANK]; /* of the output; -1: not known */
    bool known;
};

static enum mlo_status choose(const struct mlo_node *node, const char *name, const char *fallback,
                              const char *const *names, unsigned count, unsigned *out, struct mlo_error *err)
{
    const char *text = mlo_node_attr_s(node, name, fallback);
    for (unsigned i = 0; i < count; i++)
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return MLO_OK;
        }
    return mlo_error_set(err, MLO_EUNSUPPORTED, "attribute '%s' = '%.60s'", name, text);
}

static enum mlo_status read_modes(const struct mlo_node *node, struct resize *r, struct mlo_error *err)
{
    static const char *const modes[] = {"nearest", "linear", "bilinear"};
    static const char *const coordinates[] = {"half_pixel", "pytorch_half_pixel", "align_corners",
                                              "asymmetric"};
    static const char *const roundings[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
    enum mlo_status status = MLO_OK;
    unsigned mode = 0, coordinate = 0, rounding = 0;
    bool old = node->op->since < 11; /* Upsample and Resize of opset 10: asymmetric, rounding down */
    MLO_TRY(choose(node, "mode", "nearest", modes, MLO_COUNT(modes), &mode, err));
    MLO_TRY(choose(node, "coordinate_transformation_mode", old ? "asymmetric" : "half_pixel", coordinates,
                   MLO_COUNT(coordinates), &coordinate, err));
    MLO_TRY(choose(node, "nearest_mode", old ? "floor" : "round_prefer_floor", roundings,
                   MLO_COUNT(roundings), &rounding, err));
    if (mlo_node_attr_i(node, "antialias", 0) || mlo_node_attr(node, "axes") ||
        strcmp(mlo_node_attr_s(node, "keep_aspect_ratio_policy", "stretch"), "stretch") != 0) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "antialias, axes and keep_aspect_ratio_policy");
        goto out;
    }
    r->linear = mode != 0;
    r->coordinate = (enum coordinate)coordinate;
    r->rounding = (enum rounding)rounding;
out:
    return status;
}

/* Scales: attribute (Upsample 7), input 1 (Upsample 9, Resize 10), input 2 (Resize 11); sizes: input 3. */
static enum mlo_status read_scales(const struct mlo_node *node, const struct mlo_type *x, struct resize *r,
                                   struct mlo_error *err)
{
    size_t count = 0;
    const float *attr = mlo_node_attr_floats(node, "scales", &count);
    int at = node->op->since >= 11 ? 2 : 1;
    const struct mlo_tensor *scales = mlo_op_content(node, at),
                            *sizes = at == 2 ? mlo_op_content(node, 3) : NULL;
    bool by_size = at == 2 && mlo_op_in(node, 3);
    /* an empty list of scales stands for an omitted one */
    if (scales && mlo_tensor_count(scales) == 0)
        scales = NULL;
    r->known = sizes || (!by_size && (scales || attr));
    if (!r->known) {
        if (!by_size && !mlo_op_in(node, at))
            return mlo_error_set(err, MLO_EINVAL, "neither scales nor sizes are given");
        return MLO_OK;
    }
    const struct mlo_tensor *list = sizes ? sizes : scales;
    if (list)
        count = mlo_tensor_count(list);
    if (count != (size_t)x->rank)
        return mlo_error_set(err, MLO_EINVAL, "%zu scales or sizes for %d dims", count, x->rank);
    for (int i = 0; i < x->rank; i++) {
        double in = (double)x->dims[i].value;
        if (sizes) {
            r->size[i] = mlo_tensor_get_i64(sizes, (size_t)i);
            r->scale[i] = in > 0 ? (double)r->size[i] / in : 0;
        } else {
            r->scale[i] = attr && !scales ? attr[i] : mlo_tensor_get_f64(scales, (size_t)i);
            double size = floor(in * r->scale[i]);
            if (!(r->scale[i] > 0) || size > 1e12)
                return mlo_error_set(err, MLO_EINVAL, "scale %d is %g", i, r->scale[i]);
            r->size[i] = x->dims[i].value < 0 ? -1 : (int64_t)size;
        }
        if (sizes && (r->size[i] < 0 || (in == 0 && r->size[i])))
            return mlo_error_set(err, MLO_EINVAL, "size %d is %lld", i, (long long)r->size[i]);
    }
    return MLO_OK;
}

/* A size that is known, computed by the model, or a whole multiple of a symbolic dim. */
static struct mlo_dim symbolic_size(const struct mlo_node *node, const struct resize *r, int i,
                                    struct mlo_dim in)
{
    struct mlo_expr sizes[MLO_MAX_RANK];
    size_t count;
    if (r->known && r->size[i] >= 0)
        return mlo_dim_fixed(r->size[i]);
    if (r->known && r->scale[i] >= 1 && r->scale[i] <= 1 << 20 && floor(r->scale[i]) == r->scale[i])
        return mlo_op_dim_mul(node, in, mlo_dim_fixed((int64_t)r->scale[i]));
    if (!r->known && node->op->since >= 11 && mlo_op_exprs(node, 3, sizes, MLO_MAX_RANK, &count) &&
        (int)count == mlo_op_in(node, 0)->rank)
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
    for (int i = 0; i < out[0].rank; i++)
        if (!r.known || (r.size[i] != out[0].dims[i].value && r.scale[i] != 1))
            out[0].dims[i] = symbolic_size(node, &r, i, out[0].dims[i]);
out:
    return status;
}

/* Where in the input an output position lies. */
static double position(const struct resize *r, int dim, int64_t at, int64_t in, int64_t out)
{
    double x = (double)at, scale = r->scale[dim];
    switch (r->coordinate) {
    case ALIGN_CORNERS:
        return out == 1 ? 0 : x * (double)(in - 1) / (double)(out - 1);
    case ASYMMETRIC:
        return x / scale;
    case PYTORCH_HALF_PIXEL:
        return out > 1 ? (x + 0.5) / scale - 0.5 : 0;
    default:
        return (x + 0.5) / scale - 0.5;
    }
}

static int64_t nearest(const struct resize *r, double x)
{
    switch (r->rounding) {
    case FLOOR:
        return (int64_t)floor(x);
    case CEIL:
        return (int64_t)ceil(x);
    case PREFER_CEIL:
        return (int64_t)floor(x + 0.5);
    default:
        return (int64_t)ceil(x - 0.5);
    }
}

struct tap {
    int64_t low, high;
    double weight; /* of high */
};

static struct tap tap_of(const struct resize *r, int dim, int64_t at, int64_t in, int64_t out)
{
    if (in == out && r->scale[dim] == 1)
        return (struct tap){at, at, 0};
    double x = position(r, dim, at, in, out);
    if (!r->linear) {
        int64_t n = MLO_MIN(MLO_MAX(nearest(r, x), 0), in - 1);
        return (struct tap){n, n, 0};
    }
    double low = floor(x);
    struct tap t = {(int64_t)low, (int64_t)low + 1, x - low};
    t.low = MLO_MIN(MLO_MAX(t.low, 0), in - 1);
    t.high = MLO_MIN(MLO_MAX(t.high, 0), in - 1);
    return t;
}

static double interpolate(const struct mlo_tensor *x, const struct tap *taps, int dim, size_t offset)
{
    if (dim == x->rank)
        return mlo_tensor_get_f64(x, offset);
    size_t base = offset * (size_t)x->dims[dim];
    double low = interpolate(x, taps, dim + 1, base + (size_t)taps[dim].low);
    if (taps[dim].low == taps[dim].high || taps[dim].weight == 0)
        return low;
    return low * (1 - taps[dim].weight) +
           interpolate(x, taps, dim + 1, base + (size_t)taps[dim].high) * taps[dim].weight;
}

static enum mlo_status eval_resize(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct resize r = {0};
    struct mlo_value values[4] = {0}, *inputs[4] = {0};
    struct mlo_node stand_in = *node;
    struct tap taps[MLO_MAX_RANK];
    int64_t at[MLO_MAX_RANK] = {0};
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
    const struct mlo_dtype_info *info = mlo_dtype_info(x.dtype);
    if (!info->is_float && !info->is_integer) {
        status = mlo_op_bad_dtype(x.dtype, err);
        goto out;
    }
    struct mlo_tensor *y = out[0];
    size_t count = mlo_tensor_count(y);
    for (int d = 0; count && d < y->rank; d++)
        taps[d] = tap_of(&r, d, 0, in[0]->dims[d], y->dims[d]);
    for (size_t i = 0; i < count; i++) {
        mlo_tensor_set_f64(y, i, interpolate(in[0], taps, 0, 0));
        for (int d = y->rank - 1; d >= 0; d--) {
            bool carry = ++at[d] == y->dims[d];
            at[d] = carry ? 0 : at[d];
            taps[d] = tap_of(&r, d, at[d], in[0]->dims[d], y->dims[d]);
            if (!carry)
                break;
        }
    }
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
