/* ConvTranspose, Col2Im and MaxUnpool: what spreads values over a larger image. Sums are in double, in order
 * of input channel, input position and kernel position, and rounded once. */
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

enum { SPATIAL_MAX = 3 };
static const int64_t largest = (int64_t)1 << 30;

/* Reads `count` integers of at least `low` into out, which holds the defaults. */
static enum mlo_status read_list(const struct mlo_node *node, const char *name, size_t count, int64_t low,
                                 int64_t *out, struct mlo_error *err)
{
    size_t n;
    const int64_t *list = mlo_node_attr_ints(node, name, &n);
    if (!list || !n)
        return MLO_OK;
    if (n != count)
        return mlo_error_set(err, MLO_EINVAL, "attribute '%s' has %zu numbers, not %zu", name, n, count);
    for (size_t i = 0; i < n; i++) {
        if (list[i] < low || list[i] > largest)
            return mlo_error_set(err, MLO_EINVAL, "attribute '%s'[%zu] is %lld", name, i, (long long)list[i]);
        out[i] = list[i];
    }
    return MLO_OK;
}

/* The geometry, missing dims of size 1 in front. in: the small image; out: the large one. */
struct spread {
    int spatial;
    int64_t kernel[3], stride[3], dilation[3], pad[3], pad_end[3], in[3], out[3];
};

static enum mlo_status read_spread(const struct mlo_node *node, int spatial, struct spread *s,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int first = SPATIAL_MAX - spatial;
    size_t n = (size_t)spatial;
    int64_t pads[2 * SPATIAL_MAX] = {0};
    *s = (struct spread){.spatial = spatial};
    for (int i = 0; i < SPATIAL_MAX; i++)
        s->kernel[i] = s->stride[i] = s->dilation[i] = s->in[i] = s->out[i] = 1;
    if (spatial < 1 || spatial > SPATIAL_MAX) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "%d spatial dims; 1 to 3 are supported", spatial);
        goto out;
    }
    MLO_TRY(read_list(node, "strides", n, 1, s->stride + first, err));
    MLO_TRY(read_list(node, "dilations", n, 1, s->dilation + first, err));
    MLO_TRY(read_list(node, "pads", 2 * n, 0, pads, err));
    for (int i = 0; i < spatial; i++) {
        s->pad[first + i] = pads[i];
        s->pad_end[first + i] = pads[spatial + i];
    }
out:
    return status;
}

/* Sizes of a transposed convolution's result; -1 where the input's are not known. */
static enum mlo_status transposed_sizes(const struct mlo_node *node, struct spread *s, struct mlo_error *err)
{
    static const char *const modes[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};
    enum mlo_status status = MLO_OK;
    int first = SPATIAL_MAX - s->spatial;
    size_t n = (size_t)s->spatial, stated_count;
    int64_t extra[SPATIAL_MAX] = {0}, stated[SPATIAL_MAX] = {0};
    unsigned mode = 0;
    MLO_TRY(mlo_op_choose(node, "auto_pad", "NOTSET", modes, 4, &mode, err));
    MLO_TRY(read_list(node, "output_padding", n, 0, extra + first, err));
    bool by_shape = mlo_node_attr_ints(node, "output_shape", &stated_count) && stated_count;
    MLO_TRY(read_list(node, "output_shape", n, 1, stated + first, err));
    for (int i = first; i < SPATIAL_MAX; i++) {
        if (mode == 3)
            s->pad[i] = s->pad_end[i] = 0;
        if (s->in[i] < 0 || s->kernel[i] < 0) {
            s->out[i] = by_shape ? stated[i] : -1;
            continue;
        }
        int64_t full = s->stride[i] * (s->in[i] - 1) + extra[i] + (s->kernel[i] - 1) * s->dilation[i] + 1;
        if (by_shape || mode == 1 || mode == 2) {
            s->out[i] = by_shape ? stated[i] : s->in[i] * s->stride[i];
            int64_t total = MLO_MAX(full - s->out[i], 0);
            s->pad[i] = mode == 1 ? total / 2 : total - total / 2;
            s->pad_end[i] = total - s->pad[i];
        } else {
            s->out[i] = full - s->pad[i] - s->pad_end[i];
        }
        if (s->out[i] < 1) {
            status = mlo_error_set(err, MLO_EINVAL, "spatial dim %d of the result would be %lld", i - first,
                                   (long long)s->out[i]);
            goto out;
        }
    }
out:
    return status;
}

/* The kernel's sizes: of the weight, which kernel_shape may only repeat. */
static enum mlo_status read_kernel(const struct mlo_node *node, const struct mlo_type *weight,
                                   struct spread *s, struct mlo_error *err)
{
    int first = SPATIAL_MAX - s->spatial;
    int64_t stated[SPATIAL_MAX] = {-1, -1, -1};
    enum mlo_status status = read_list(node, "kernel_shape", (size_t)s->spatial, 1, stated, err);
    for (int i = 0; status == MLO_OK && i < s->spatial; i++) {
        int64_t size = weight->dims[2 + i].value;
        s->kernel[first + i] = size < 0 ? stated[i] : size;
        if (size == 0 || size > largest || (size > 0 && stated[i] > 0 && stated[i] != size))
            status = mlo_error_set(err, MLO_EINVAL, "the kernel's dim %d is %lld, but kernel_shape says %lld",
                                   i, (long long)size, (long long)stated[i]);
    }
    return status;
}

static enum mlo_status geometry(const struct mlo_node *node, const struct mlo_type *x,
                                const struct mlo_type *weight, struct spread *s, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(read_spread(node, x->rank - 2, s, err));
    MLO_TRY(read_kernel(node, weight, s, err));
    for (int i = 0; i < s->spatial; i++) {
        int64_t size = x->dims[2 + i].value;
        if (size > largest) {
            status = mlo_error_set(err, MLO_EINVAL, "spatial dim %d is too large", i);
            goto out;
        }
        s->in[SPATIAL_MAX - s->spatial + i] = size;
    }
    MLO_TRY(transposed_sizes(node, s, err));
out:
    return status;
}

static enum mlo_status infer_transposed(const struct mlo_node *node, struct mlo_type *out,
                                        struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *w = mlo_op_in(node, 1), *bias = mlo_op_in(node, 2);
    int64_t groups = mlo_node_attr_i(node, "group", 1);
    struct spread s;
    out[0].dtype = x->dtype;
    if (x->rank < 0 || w->rank < 0)
        goto out;
    if (x->rank < 3 || w->rank != x->rank) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "the input has rank %d and the weight %d; both need 3 to 5, the same", x->rank,
                               w->rank);
        goto out;
    }
    int64_t ins = w->dims[0].value, channels = x->dims[1].value, outs = w->dims[1].value;
    if (groups < 1 || groups > largest || (ins >= 0 && ins % groups) ||
        (ins >= 0 && channels >= 0 && ins != channels)) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "the input has %lld channels; the weight is for %lld in %lld groups",
                               (long long)channels, (long long)ins, (long long)groups);
        goto out;
    }
    int64_t total = -1;
    if (outs >= 0 && __builtin_mul_overflow(outs, groups, &total)) {
        status = mlo_error_set(err, MLO_EINVAL, "%lld output channels in %lld groups", (long long)outs,
                               (long long)groups);
        goto out;
    }
    if (bias && bias->rank >= 0 &&
        (bias->rank != 1 || (bias->dims[0].value >= 0 && total >= 0 && bias->dims[0].value != total))) {
        status = mlo_error_set(err, MLO_EINVAL, "the bias does not hold one number for each output channel");
        goto out;
    }
    MLO_TRY(geometry(node, x, w, &s, err));
    out[0].rank = x->rank;
    out[0].dims[0] = x->dims[0];
    out[0].dims[1] = (struct mlo_dim){total, NULL};
    for (int i = 0; i < s.spatial; i++)
        out[0].dims[2 + i] = (struct mlo_dim){s.out[SPATIAL_MAX - s.spatial + i], NULL};
out:
    return status;
}

/* y[p * stride + k * dilation - pad] += v * weight[k] for the value v at p. */
static void spread_one(const struct spread *s, const int64_t *p, double v, const double *weight, double *y)
{
    int64_t k[3], at[3];
    for (k[0] = 0; k[0] < s->kernel[0]; k[0]++) {
        at[0] = p[0] * s->stride[0] + k[0] * s->dilation[0] - s->pad[0];
        for (k[1] = 0; k[1] < s->kernel[1]; k[1]++) {
            at[1] = p[1] * s->stride[1] + k[1] * s->dilation[1] - s->pad[1];
            for (k[2] = 0; k[2] < s->kernel[2]; k[2]++) {
                at[2] = p[2] * s->stride[2] + k[2] * s->dilation[2] - s->pad[2];
                bool inside = true;
                for (int i = 0; i < 3; i++)
                    inside = inside && at[i] >= 0 && at[i] < s->out[i];
                if (inside)
                    y[(at[0] * s->out[1] + at[1]) * s->out[2] + at[2]] +=
                        v * weight[(k[0] * s->kernel[1] + k[1]) * s->kernel[2] + k[2]];
            }
        }
    }
}

static void spread_image(const struct spread *s, const double *x, const double *weight, double *y)
{
    int64_t p[3];
    for (p[0] = 0; p[0] < s->in[0]; p[0]++)
        for (p[1] = 0; p[1] < s->in[1]; p[1]++)
            for (p[2] = 0; p[2] < s->in[2]; p[2]++)
                spread_one(s, p, *x++, weight, y);
}

static size_t volume(const int64_t *dims)
{
    return (size_t)(dims[0] * dims[1] * dims[2]);
}

static enum mlo_status eval_transposed(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                       struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *bias = mlo_op_operand(node, in, 2);
    double *x = NULL, *w = NULL, *y = NULL;
    struct spread s;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    struct mlo_type tx = mlo_type_of(in[0]), tw = mlo_type_of(in[1]);
    MLO_TRY(geometry(node, &tx, &tw, &s, err));
    MLO_TRY(mlo_op_doubles(in[0], &x, err));
    MLO_TRY(mlo_op_doubles(in[1], &w, err));
    MLO_TRY(mlo_op_doubles(out[0], &y, err));
    size_t groups = (size_t)mlo_node_attr_i(node, "group", 1), ins = (size_t)in[0]->dims[1];
    size_t each_out = (size_t)in[1]->dims[1], outs = each_out * groups, batch = (size_t)in[0]->dims[0];
    size_t in_size = volume(s.in), out_size = volume(s.out), kernel = volume(s.kernel);
    for (size_t i = 0; bias && i < mlo_tensor_count(out[0]); i++)
        y[i] = mlo_tensor_get_f64(bias, i / out_size % outs);
    for (size_t n = 0; n < batch; n++)
        for (size_t c = 0; c < ins; c++)
            for (size_t o = 0; o < each_out; o++) {
                size_t to = n * outs + c / (ins / groups) * each_out + o;
                spread_image(&s, x + (n * ins + c) * in_size, w + (c * each_out + o) * kernel,
                             y + to * out_size);
            }
    mlo_op_store_doubles(out[0], y);
out:
    free(x);
    free(w);
    free(y);
    return status;
}

/* Col2Im: input 0 is N x (C x blocks' elements) x block positions; input 1 the image's size, 2 the block's.
 */
static enum mlo_status col2im_geometry(const struct mlo_node *node, const struct mlo_tensor *image,
                                       const struct mlo_tensor *block, struct spread *s,
                                       struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t sizes[SPATIAL_MAX], kernel[SPATIAL_MAX];
    int n, m;
    MLO_TRY(mlo_op_read_ints(image, sizes, SPATIAL_MAX, &n, err));
    MLO_TRY(mlo_op_read_ints(block, kernel, SPATIAL_MAX, &m, err));
    if (n != m) {
        status = mlo_error_set(err, MLO_EINVAL, "image and block have %d and %d dims", n, m);
        goto out;
    }
    MLO_TRY(read_spread(node, n, s, err));
    for (int i = 0; i < n; i++) {
        int k = SPATIAL_MAX - n + i;
        s->out[k] = sizes[i];
        s->kernel[k] = kernel[i];
        bool sound = sizes[i] >= 1 && sizes[i] <= largest && kernel[i] >= 1 && kernel[i] <= largest;
        int64_t room =
            sound ? sizes[i] + s->pad[k] + s->pad_end[k] - (kernel[i] - 1) * s->dilation[k] - 1 : -1;
        if (room < 0) {
            status = mlo_error_set(err, MLO_EINVAL, "dim %d: blocks of %lld in an image of %lld", i,
                                   (long long)kernel[i], (long long)sizes[i]);
            goto out;
        }
        s->in[k] = room / s->stride[k] + 1;
    }
out:
    return status;
}

static enum mlo_status infer_col2im(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0);
    const struct mlo_tensor *image = mlo_op_content(node, 1), *block = mlo_op_content(node, 2);
    struct spread s;
    size_t elements, positions;
    out[0].dtype = x->dtype;
    MLO_TRY(mlo_op_want_rank(node, 0, 3, err));
    if (!image || !block)
        goto out;
    MLO_TRY(col2im_geometry(node, image, block, &s, err));
    if (!mlo_shape_count(3, s.kernel, &elements) || !mlo_shape_count(3, s.in, &positions)) {
        status = mlo_error_set(err, MLO_EINVAL, "the blocks are too large");
        goto out;
    }
    int64_t rows = x->rank == 3 ? x->dims[1].value : -1, columns = x->rank == 3 ? x->dims[2].value : -1;
    if ((rows >= 0 && (size_t)rows % elements) || (columns >= 0 && (size_t)columns != positions)) {
        status =
            mlo_error_set(err, MLO_EINVAL, "input 0 is [%lld, %lld]; blocks have %zu elements and %zu places",
                          (long long)rows, (long long)columns, elements, positions);
        goto out;
    }
    out[0].rank = 2 + s.spatial;
    out[0].dims[0] = x->rank == 3 ? x->dims[0] : mlo_dim_unknown();
    out[0].dims[1] = rows < 0 ? mlo_dim_unknown() : mlo_dim_fixed(rows / (int64_t)elements);
    for (int i = 0; i < s.spatial; i++)
        out[0].dims[2 + i] = mlo_dim_fixed(s.out[SPATIAL_MAX - s.spatial + i]);
out:
    return status;
}

static enum mlo_status eval_col2im(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double *x = NULL, *y = NULL;
    struct spread s;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(col2im_geometry(node, in[1], in[2], &s, err));
    MLO_TRY(mlo_op_doubles(in[0], &x, err));
    MLO_TRY(mlo_op_doubles(out[0], &y, err));
    size_t elements = volume(s.kernel), positions = volume(s.in), size = volume(s.out);
    size_t rows = (size_t)(in[0]->dims[0] * in[0]->dims[1]);
    struct spread one = s; /* a kernel of one element, at its place: by the padding */
    for (int i = 0; i < 3; i++)
        one.kernel[i] = 1;
    static const double weight = 1;
    for (size_t r = 0; r < rows; r++) {
        size_t e = r % elements;
        for (int i = 2; i >= 0; i--) {
            one.pad[i] = s.pad[i] - (int64_t)(e % (size_t)s.kernel[i]) * s.dilation[i];
            e /= (size_t)s.kernel[i];
        }
        spread_image(&one, x + r * positions, &weight, y + r / elements * size);
    }
    mlo_op_store_doubles(out[0], y);
out:
    free(x);
    free(y);
    return status;
}

static enum mlo_status infer_unpool(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0);
    const struct mlo_tensor *shape = mlo_op_content(node, 2);
    int64_t sizes[MLO_MAX_RANK], kernel[SPATIAL_MAX] = {0};
    struct spread s;
    size_t have;
    int n;
    out[0].dtype = x->dtype;
    if (x->rank < 0)
        goto out;
    MLO_TRY(mlo_op_want_rank(node, 1, x->rank, err));
    MLO_TRY(read_spread(node, x->rank - 2, &s, err));
    if (!mlo_node_attr_ints(node, "kernel_shape", &have) || !have) {
        status = mlo_error_set(err, MLO_EINVAL, "attribute 'kernel_shape' is missing");
        goto out;
    }
    MLO_TRY(read_list(node, "kernel_shape", (size_t)s.spatial, 1, kernel, err));
    out[0] = *x;
    for (int i = 0; i < s.spatial; i++) {
        int k = SPATIAL_MAX - s.spatial + i;
        int64_t size = x->dims[2 + i].value;
        int64_t full = (size - 1) * s.stride[k] + kernel[i] - s.pad[k] - s.pad_end[k];
        if (size > largest || (size >= 0 && full < 0)) {
            status = mlo_error_set(err, MLO_EINVAL, "spatial dim %d of the result would be %lld", i,
                                   (long long)full);
            goto out;
        }
        out[0].dims[2 + i] = size < 0 || mlo_op_in(node, 2) ? mlo_dim_unknown() : mlo_dim_fixed(full);
    }
    if (shape) {
        MLO_TRY(mlo_op_read_ints(shape, sizes, MLO_MAX_RANK, &n, err));
        if (n != x->rank) {
            status = mlo_error_set(err, MLO_EINVAL, "input 2, output_shape, holds %d numbers for %d dims", n,
                                   x->rank);
            goto out;
        }
        for (int i = 0; i < n; i++) {
            if (sizes[i] < 0 || (i < 2 && x->dims[i].value >= 0 && sizes[i] != x->dims[i].value)) {
                status = mlo_error_set(err, MLO_EINVAL, "input 2, output_shape, has %lld for dim %d",
                                       (long long)sizes[i], i);
                goto out;
            }
            out[0].dims[i] = mlo_dim_fixed(sizes[i]);
        }
    }
out:
    return status;
}

/* Indices count over the whole tensor that was pooled, whose shape is given without output_shape; with it,
 * a larger result holds that image in its corner. */
static enum mlo_status eval_unpool(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0];
    struct mlo_type pooled = {.rank = -1};
    struct mlo_value values[2] = {0}, *inputs[2] = {&values[0], &values[1]};
    struct mlo_node stand_in = *node;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    for (int i = 0; i < 2; i++) {
        values[i].name = "";
        values[i].type = mlo_type_of(in[i]);
    }
    stand_in.inputs = inputs;
    stand_in.input_count = 2;
    MLO_TRY(infer_unpool(&stand_in, &pooled, err));
    size_t width = mlo_dtype_bytes(x->dtype), total = 1;
    for (int i = 0; i < pooled.rank; i++)
        total *= (size_t)pooled.dims[i].value;
    if (!width || in[1]->dtype != MLO_INT64 || !mlo_tensor_same_shape(x, in[1])) {
        status = mlo_error_set(err, MLO_EINVAL, "the indices (%s) do not fit the values",
                               mlo_dtype_name(in[1]->dtype));
        goto out;
    }
    for (size_t i = 0; i < mlo_tensor_count(x); i++) {
        int64_t index = ((const int64_t *)in[1]->data)[i];
        if (index < 0 || (size_t)index >= total) {
            status = mlo_error_set(err, MLO_EINVAL, "index %lld is outside of %zu elements", (long long)index,
                                   total);
            goto out;
        }
        size_t rest = (size_t)index, at = 0, stride = 1;
        bool inside = true;
        for (int d = x->rank - 1; d >= 0; d--) {
            size_t p = rest % (size_t)pooled.dims[d].value;
            rest /= (size_t)pooled.dims[d].value;
            inside = inside && p < (size_t)out[0]->dims[d];
            at += p * stride;
            stride *= (size_t)out[0]->dims[d];
        }
        if (inside)
            memcpy((char *)out[0]->data + at * width, (const char *)x->data + i * width, width);
    }
out:
    return status;
}

enum { FLAGS = MLO_OP_PURE };
static const struct mlo_op rows[] = {
    {"", "ConvTranspose", 1, infer_transposed, eval_transposed, FLAGS | MLO_OP_WEIGHTED, 2, 3, 1, 1},
    {"", "ConvTranspose", 11, infer_transposed, eval_transposed, FLAGS | MLO_OP_WEIGHTED, 2, 3, 1, 1},
    {"", "ConvTranspose", 22, infer_transposed, eval_transposed, FLAGS | MLO_OP_WEIGHTED, 2, 3, 1, 1},
    {"", "Col2Im", 18, infer_col2im, eval_col2im, FLAGS, 3, 3, 1, 1},
    {"", "MaxUnpool", 9, infer_unpool, eval_unpool, FLAGS, 2, 3, 1, 1},
    {"", "MaxUnpool", 11, infer_unpool, eval_unpool, FLAGS, 2, 3, 1, 1},
    {"", "MaxUnpool", 22, infer_unpool, eval_unpool, FLAGS, 2, 3, 1, 1},
};
const struct mlo_op_family mlo_ops_conv_transpose = {rows, MLO_COUNT(rows)};
