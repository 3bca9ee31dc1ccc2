/* Window geometry of convolutions and pooling. */
#include "graph/ops/ops_impl.h"

/* Above this, products of window sizes could overflow; no real model comes near. */
static const int64_t largest = (int64_t)1 << 30, largest_in = (int64_t)1 << 40;

static enum mlo_status read_list(const struct mlo_node *node, const char *name, int want, int64_t low,
                                 int64_t *out, struct mlo_error *err)
{
    size_t count;
    const int64_t *list = mlo_node_attr_ints(node, name, &count);
    if (!list || !count)
        return MLO_OK;
    if (count != (size_t)want)
        return mlo_error_set(err, MLO_EINVAL, "attribute '%s' has %zu numbers, not %d", name, count, want);
    for (int i = 0; i < want; i++) {
        if (list[i] < low || list[i] > largest)
            return mlo_error_set(err, MLO_EINVAL, "attribute '%s'[%d] is %lld", name, i, (long long)list[i]);
        out[i] = list[i];
    }
    return MLO_OK;
}

enum auto_pad { PAD_NOTSET, PAD_SAME_UPPER, PAD_SAME_LOWER, PAD_VALID };

static enum mlo_status read_auto_pad(const struct mlo_node *node, enum auto_pad *out, struct mlo_error *err)
{
    static const char *const names[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};
    const char *text = mlo_node_attr_s(node, "auto_pad", "NOTSET");
    for (unsigned i = 0; i < MLO_COUNT(names); i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (enum auto_pad)i;
            return MLO_OK;
        }
    return mlo_error_set(err, MLO_EINVAL, "attribute 'auto_pad' is '%.40s'", text);
}

/* One dim's output size and padding; an unknown input size (-1) gives an unknown output. */
static enum mlo_status place(struct mlo_window *w, int i, enum auto_pad mode, bool ceil_mode,
                             struct mlo_error *err)
{
    int64_t in = w->in[i], stride = w->stride[i], extent = (w->kernel[i] - 1) * w->dilation[i] + 1;
    if (mode != PAD_NOTSET)
        w->pad_begin[i] = w->pad_end[i] = 0;
    if (in < 0) {
        w->out[i] = -1;
        return MLO_OK;
    }
    if (mode == PAD_SAME_UPPER || mode == PAD_SAME_LOWER) {
        w->out[i] = in / stride + (in % stride != 0);
        int64_t total = MLO_MAX((w->out[i] - 1) * stride + extent - in, 0);
        w->pad_begin[i] = mode == PAD_SAME_UPPER ? total / 2 : total - total / 2;
        w->pad_end[i] = total - w->pad_begin[i];
        return MLO_OK;
    }
    int64_t room = in + w->pad_begin[i] + w->pad_end[i] - extent;
    if (room < 0)
        return mlo_error_set(err, MLO_EINVAL,
                             "the kernel spans %lld, but spatial dim %d has only %lld with padding",
                             (long long)extent, i, (long long)(room + extent));
    w->out[i] = room / stride + 1;
    /* the last window of ceil_mode must begin inside of the input or its left padding */
    if (ceil_mode && room % stride && w->out[i] * stride < in + w->pad_begin[i])
        w->out[i]++;
    return MLO_OK;
}

enum mlo_status mlo_window_init(struct mlo_window *w, const struct mlo_node *node, int spatial,
                                const int64_t *in_dims, const int64_t *kernel_dims, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    enum auto_pad mode = PAD_NOTSET;
    int64_t pads[6] = {0};
    size_t count;
    *w = (struct mlo_window){.spatial = spatial};
    if (spatial < 1 || spatial > 3)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "%d spatial dims; 1 to 3 are supported", spatial);
    for (int i = 0; i < spatial; i++) {
        w->stride[i] = w->dilation[i] = 1;
        w->in[i] = in_dims[i];
        w->kernel[i] = kernel_dims ? kernel_dims[i] : 0;
        if (w->in[i] > largest_in || w->kernel[i] > largest)
            return mlo_error_set(err, MLO_EINVAL, "spatial dim %d is too large", i);
    }
    if (!kernel_dims && !mlo_node_attr_ints(node, "kernel_shape", &count))
        return mlo_error_set(err, MLO_EINVAL, "attribute 'kernel_shape' is missing");
    MLO_TRY(read_list(node, "kernel_shape", spatial, 1, w->kernel, err));
    MLO_TRY(read_list(node, "strides", spatial, 1, w->stride, err));
    MLO_TRY(read_list(node, "dilations", spatial, 1, w->dilation, err));
    MLO_TRY(read_list(node, "pads", 2 * spatial, 0, pads, err));
    MLO_TRY(read_auto_pad(node, &mode, err));
    w->same = mode == PAD_SAME_UPPER || mode == PAD_SAME_LOWER;
    w->ceil = mlo_node_attr_i(node, "ceil_mode", 0) != 0;
    for (int i = 0; i < spatial; i++) {
        if (w->kernel[i] < 1 || (kernel_dims && kernel_dims[i] >= 0 && kernel_dims[i] != w->kernel[i])) {
            status = mlo_error_set(err, MLO_EINVAL, "the kernel's dim %d is %lld, but kernel_shape says %lld",
                                   i, (long long)(kernel_dims ? kernel_dims[i] : 0), (long long)w->kernel[i]);
            goto out;
        }
        w->pad_begin[i] = pads[i];
        w->pad_end[i] = pads[spatial + i];
        MLO_TRY(place(w, i, mode, mlo_node_attr_i(node, "ceil_mode", 0) != 0, err));
    }
out:
    return status;
}

struct mlo_dim mlo_window_dim(const struct mlo_node *node, const struct mlo_window *w, int i,
                              struct mlo_dim in)
{
    int64_t extent = (w->kernel[i] - 1) * w->dilation[i] + 1;
    if (w->out[i] >= 0 || !in.name)
        return mlo_dim_fixed(w->out[i]);
    if (w->same) /* as many as strides begin inside */
        return mlo_op_dim_steps(node, in, -1, w->stride[i]);
    if (w->ceil && w->stride[i] != 1)
        return mlo_dim_unknown();
    return mlo_op_dim_steps(node, in, w->pad_begin[i] + w->pad_end[i] - extent, w->stride[i]);
}

void mlo_window_widen(struct mlo_window *w)
{
    struct mlo_window wide = {.spatial = 3, .same = w->same, .ceil = w->ceil};
    for (int i = 0; i < 3; i++) {
        int from = i - (3 - w->spatial);
        wide.kernel[i] = from < 0 ? 1 : w->kernel[from];
        wide.stride[i] = from < 0 ? 1 : w->stride[from];
        wide.dilation[i] = from < 0 ? 1 : w->dilation[from];
        wide.pad_begin[i] = from < 0 ? 0 : w->pad_begin[from];
        wide.pad_end[i] = from < 0 ? 0 : w->pad_end[from];
        wide.in[i] = from < 0 ? 1 : w->in[from];
        wide.out[i] = from < 0 ? 1 : w->out[from];
    }
    *w = wide;
}
