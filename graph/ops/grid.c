/* GridSample and AffineGrid. In double, rounded once. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

enum mode { LINEAR, NEAREST, CUBIC };
enum padding { ZEROS, BORDER, REFLECTION };

struct sampler {
    unsigned mode, padding;
    bool align;
    int spatial;
    int64_t size[3];
};

static enum mlo_status read_sampler(const struct mlo_node *node, struct sampler *s, struct mlo_error *err)
{
    static const char *const old[] = {"bilinear", "nearest", "bicubic"};
    static const char *const names[] = {"linear", "nearest", "cubic"};
    static const char *const paddings[] = {"zeros", "border", "reflection"};
    enum mlo_status status = MLO_OK;
    *s = (struct sampler){.align = mlo_node_attr_i(node, "align_corners", 0) != 0};
    bool is_old = node->op->since < 20;
    MLO_TRY(
        mlo_op_choose(node, "mode", is_old ? "bilinear" : "linear", is_old ? old : names, 3, &s->mode, err));
    MLO_TRY(mlo_op_choose(node, "padding_mode", "zeros", paddings, 3, &s->padding, err));
out:
    return status;
}

static enum mlo_status infer_grid_sample(const struct mlo_node *node, struct mlo_type *out,
                                         struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *grid = mlo_op_in(node, 1);
    struct sampler s;
    out[0].dtype = x->dtype;
    MLO_TRY(read_sampler(node, &s, err));
    if (x->rank < 0)
        goto out;
    if (x->rank < 4 || x->rank > (node->op->since < 20 ? 4 : 5)) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED,
                               "input 0 has rank %d; 4 (and, from opset 20 on, 5) are "
                               "supported",
                               x->rank);
        goto out;
    }
    if (s.mode == CUBIC && x->rank != 4) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "cubic sampling of %d spatial dims; 2 are supported",
                               x->rank - 2);
        goto out;
    }
    MLO_TRY(mlo_op_want_rank(node, 1, x->rank, err));
    out[0].rank = x->rank;
    out[0].dims[0] = x->dims[0];
    out[0].dims[1] = x->dims[1];
    for (int i = 2; i < x->rank; i++)
        out[0].dims[i] = grid->rank < 0 ? mlo_dim_unknown() : grid->dims[i - 1];
    if (grid->rank >= 0) {
        int64_t last = grid->dims[grid->rank - 1].value, a = x->dims[0].value, b = grid->dims[0].value;
        if ((last >= 0 && last != x->rank - 2) || (a >= 0 && b >= 0 && a != b))
            status = mlo_error_set(err, MLO_EINVAL, "input 1, the grid, does not fit input 0");
    }
out:
    return status;
}

/* Mirrors x at low and high. */
static double reflect(double x, double low, double high)
{
    double span = high - low;
    if (span <= 0)
        return 0;
    double d = fmod(fabs(x - low), 2 * span);
    return d > span ? high - (d - span) : low + d;
}

/* A whole position brought into the image by the padding; false: it is a zero. */
static bool settle(const struct sampler *s, int dim, double *p)
{
    double last = (double)(s->size[dim] - 1);
    if (*p >= 0 && *p <= last)
        return true;
    if (s->padding == ZEROS || isnan(*p))
        return false;
    if (s->padding == REFLECTION)
        *p = rint(reflect(*p, s->align ? 0 : -0.5, s->align ? last : last + 0.5));
    *p = *p < 0 ? 0 : *p > last ? last : *p;
    return true;
}

static double pixel(const struct sampler *s, const double *image, const double *at)
{
    size_t offset = 0;
    for (int i = 0; i < s->spatial; i++) {
        double p = at[i];
        if (!settle(s, i, &p))
            return 0;
        offset = offset * (size_t)s->size[i] + (size_t)p;
    }
    return image[offset];
}

/* Weights of positions -1, 0, 1, 2 around a point `t` behind position 0. */
static void cubic_weights(double t, double *w)
{
    const double a = -0.75;
    for (int i = 0; i < 4; i++) {
        double d = fabs(t + 1 - i);
        w[i] = d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : (((d - 5) * d + 8) * d - 4) * a;
    }
}

static double sample(const struct sampler *s, const double *image, const double *point)
{
    double low[3] = {0}, at[3], sum = 0, w[3][4];
    int taps = s->mode == CUBIC ? 4 : 2, count = 1;
    for (int i = 0; i < s->spatial; i++) {
        low[i] = floor(point[i]);
        at[i] = rint(point[i]);
        count *= taps;
        double t = point[i] - low[i];
        if (s->mode == CUBIC)
            cubic_weights(t, w[i]);
        w[i][0] = s->mode == CUBIC ? w[i][0] : 1 - t;
        w[i][1] = s->mode == CUBIC ? w[i][1] : t;
    }
    if (s->mode == NEAREST)
        return pixel(s, image, at);
    for (int k = 0; k < count; k++) {
        double weight = 1;
        for (int i = s->spatial - 1, rest = k; i >= 0; i--, rest /= taps) {
            at[i] = low[i] + rest % taps - (s->mode == CUBIC ? 1 : 0);
            weight *= w[i][rest % taps];
        }
        sum += weight == 0 ? 0 : weight * pixel(s, image, at);
    }
    return sum;
}

static enum mlo_status eval_grid_sample(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                        struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double *x = NULL, point[3];
    struct sampler s;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(read_sampler(node, &s, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    MLO_TRY(mlo_op_want_float(in[1], err));
    MLO_TRY(mlo_op_doubles(in[0], &x, err));
    s.spatial = in[0]->rank - 2;
    size_t image = 1, points = 1, channels = (size_t)in[0]->dims[1];
    for (int i = 0; i < s.spatial; i++) {
        s.size[i] = in[0]->dims[2 + i];
        image *= (size_t)s.size[i];
        points *= (size_t)out[0]->dims[2 + i];
    }
    if (!image && mlo_tensor_count(out[0])) {
        status = mlo_error_set(err, MLO_EINVAL, "there is nothing to take from an empty input");
        goto out;
    }
    for (size_t n = 0; n < (size_t)in[0]->dims[0]; n++)
        for (size_t p = 0; p < points; p++) {
            for (int i = 0; i < s.spatial; i++) { /* the grid holds x before y before z */
                size_t from = (n * points + p) * (size_t)s.spatial + (size_t)(s.spatial - 1 - i);
                double g = mlo_tensor_get_f64(in[1], from), size = (double)s.size[i];
                double v = s.align ? (g + 1) / 2 * (size - 1) : ((g + 1) * size - 1) / 2;
                if (s.padding == BORDER)
                    v = v < 0 ? 0 : v > size - 1 ? size - 1 : v;
                else if (s.padding == REFLECTION)
                    v = reflect(v, s.align ? 0 : -0.5, s.align ? size - 1 : size - 0.5);
                point[i] = v;
            }
            for (size_t c = 0; c < channels; c++)
                mlo_tensor_set_f64(out[0], (n * channels + c) * points + p,
                                   sample(&s, x + (n * channels + c) * image, point));
        }
out:
    free(x);
    return status;
}

static enum mlo_status infer_affine_grid(const struct mlo_node *node, struct mlo_type *out,
                                         struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *theta = mlo_op_in(node, 0);
    const struct mlo_tensor *size = mlo_op_content(node, 1);
    int64_t dims[5];
    int n;
    out[0].dtype = theta->dtype;
    MLO_TRY(mlo_op_want_rank(node, 0, 3, err));
    if (!size)
        goto out;
    MLO_TRY(mlo_op_read_ints(size, dims, 5, &n, err));
    bool ok = n == 4 || n == 5;
    for (int i = 0; ok && i < n; i++)
        ok = dims[i] >= 0;
    for (int i = 0; ok && theta->rank == 3 && i < 3; i++) {
        int64_t want = i == 0 ? dims[0] : n - 3 + i;
        ok = theta->dims[i].value < 0 || theta->dims[i].value == want;
    }
    if (!ok) {
        status = mlo_error_set(err, MLO_EINVAL, "input 1, the size, is not N, C, (D,) H, W of the matrices");
        goto out;
    }
    out[0].rank = n;
    out[0].dims[0] = mlo_dim_fixed(dims[0]);
    for (int i = 2; i < n; i++)
        out[0].dims[i - 1] = mlo_dim_fixed(dims[i]);
    out[0].dims[n - 1] = mlo_dim_fixed(n - 2);
out:
    return status;
}

static enum mlo_status eval_affine_grid(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                        struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool align = mlo_node_attr_i(node, "align_corners", 0) != 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    int spatial = out[0]->rank - 2;
    size_t wide = (size_t)spatial;
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++) {
        size_t row = i % wide, rest = i / wide;
        double point[4];
        point[wide] = 1;
        for (int d = spatial - 1; d >= 0; d--) { /* the last dim is x, the matrices' first column */
            size_t size = (size_t)out[0]->dims[1 + d], p = rest % size;
            rest /= size;
            point[spatial - 1 - d] = align ? (size > 1 ? 2.0 * (double)p / (double)(size - 1) - 1 : 0)
                                           : (2.0 * (double)p + 1) / (double)size - 1;
        }
        double sum = 0;
        for (size_t k = 0; k <= wide; k++)
            sum += mlo_tensor_get_f64(in[0], (rest * wide + row) * (wide + 1) + k) * point[k];
        mlo_tensor_set_f64(out[0], i, sum);
    }
out:
    return status;
}

static const struct mlo_op rows[] = {
    {"", "GridSample", 16, infer_grid_sample, eval_grid_sample, MLO_OP_PURE, 2, 2, 1, 1},
    {"", "GridSample", 20, infer_grid_sample, eval_grid_sample, MLO_OP_PURE, 2, 2, 1, 1},
    {"", "GridSample", 22, infer_grid_sample, eval_grid_sample, MLO_OP_PURE, 2, 2, 1, 1},
    {"", "AffineGrid", 20, infer_affine_grid, eval_affine_grid, MLO_OP_PURE, 2, 2, 1, 1},
};
const struct mlo_op_family mlo_ops_grid = {rows, MLO_COUNT(rows)};
