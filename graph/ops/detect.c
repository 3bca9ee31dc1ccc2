/* NonMaxSuppression and RoiAlign. In double, rounded once. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

static enum mlo_status infer_nms(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *boxes = mlo_op_in(node, 0), *scores = mlo_op_in(node, 1);
    out[0] = (struct mlo_type){.dtype = MLO_INT64, .rank = 2};
    out[0].dims[0] = mlo_dim_unknown(); /* how many are selected is known only from the numbers */
    out[0].dims[1] = mlo_dim_fixed(3);
    int64_t centred = mlo_node_attr_i(node, "center_point_box", 0);
    if (centred != 0 && centred != 1) {
        status = mlo_error_set(err, MLO_EINVAL, "attribute 'center_point_box' is %lld", (long long)centred);
        goto out;
    }
    MLO_TRY(mlo_op_want_rank(node, 0, 3, err));
    MLO_TRY(mlo_op_want_rank(node, 1, 3, err));
    bool fits = boxes->rank < 0 || boxes->dims[2].value < 0 || boxes->dims[2].value == 4;
    for (int i = 0; i < 2 && fits && boxes->rank >= 0 && scores->rank >= 0; i++) {
        int64_t a = boxes->dims[i].value, b = scores->dims[2 * i].value;
        fits = a < 0 || b < 0 || a == b;
    }
    if (!fits)
        status = mlo_error_set(err, MLO_EINVAL,
                               "boxes must be [batch, boxes, 4] and scores [batch, classes, boxes]");
out:
    return status;
}

struct box {
    double score, x1, y1, x2, y2;
    int64_t index;
};

static struct box read_box(const struct mlo_tensor *boxes, size_t at, bool centred)
{
    double v[4];
    for (size_t i = 0; i < 4; i++)
        v[i] = mlo_tensor_get_f64(boxes, at * 4 + i);
    if (centred) /* x, y, width, height */
        return (struct box){
            .x1 = v[0] - v[2] / 2, .y1 = v[1] - v[3] / 2, .x2 = v[0] + v[2] / 2, .y2 = v[1] + v[3] / 2};
    /* y1, x1, y2, x2: any two opposite corners */
    return (struct box){
        .x1 = fmin(v[1], v[3]), .y1 = fmin(v[0], v[2]), .x2 = fmax(v[1], v[3]), .y2 = fmax(v[0], v[2])};
}

static double overlap(const struct box *a, const struct box *b)
{
    double width = fmin(a->x2, b->x2) - fmax(a->x1, b->x1);
    double height = fmin(a->y2, b->y2) - fmax(a->y1, b->y1);
    double area_a = (a->x2 - a->x1) * (a->y2 - a->y1), area_b = (b->x2 - b->x1) * (b->y2 - b->y1);
    if (width <= 0 || height <= 0 || area_a <= 0 || area_b <= 0)
        return 0;
    return width * height / (area_a + area_b - width * height);
}

static int by_score(const void *a, const void *b)
{
    const struct box *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* An optional scalar input. */
static enum mlo_status scalar(const struct mlo_tensor *t, int i, double *out, struct mlo_error *err)
{
    if (t && mlo_tensor_count(t) != 1)
        return mlo_error_set(err, MLO_EINVAL, "input %d is not one number", i);
    if (t)
        *out = mlo_tensor_get_f64(t, 0);
    return MLO_OK;
}

/* Keeps the best boxes of one class in boxes[0 … kept); they come in sorted. */
static size_t suppress(struct box *boxes, size_t count, size_t most, double threshold)
{
    size_t kept = 0;
    for (size_t i = 0; i < count && kept < most; i++) {
        bool keep = true;
        for (size_t k = 0; k < kept && keep; k++)
            keep = overlap(&boxes[k], &boxes[i]) <= threshold;
        if (keep)
            boxes[kept++] = boxes[i];
    }
    return kept;
}

static enum mlo_status eval_nms(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *boxes = in[0], *scores = in[1];
    struct box *room = NULL;
    int64_t *found = NULL;
    size_t found_count = 0, found_cap = 0;
    double most = 0, overlap_max = 0, score_min = -INFINITY;
    bool centred = mlo_node_attr_i(node, "center_point_box", 0) != 0;
    if (boxes->rank != 3 || scores->rank != 3 || boxes->dims[2] != 4 || boxes->dims[0] != scores->dims[0] ||
        boxes->dims[1] != scores->dims[2]) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "boxes must be [batch, boxes, 4] and scores [batch, classes, boxes]");
        goto out;
    }
    MLO_TRY(mlo_op_want_float(boxes, err));
    MLO_TRY(mlo_op_want_float(scores, err));
    MLO_TRY(scalar(mlo_op_operand(node, in, 2), 2, &most, err));
    MLO_TRY(scalar(mlo_op_operand(node, in, 3), 3, &overlap_max, err));
    MLO_TRY(scalar(mlo_op_operand(node, in, 4), 4, &score_min, err));
    size_t n = (size_t)boxes->dims[1], classes = (size_t)scores->dims[1];
    size_t limit = most <= 0 ? 0 : most >= (double)n ? n : (size_t)most;
    room = calloc(n + 1, sizeof *room);
    if (!room) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t b = 0; n && b < (size_t)boxes->dims[0] * classes; b++) {
        size_t count = 0;
        for (size_t i = 0; i < n; i++) {
            double score = mlo_tensor_get_f64(scores, b * n + i);
            if (!(score > score_min))
                continue;
            room[count] = read_box(boxes, b / classes * n + i, centred);
            room[count].score = score;
            room[count++].index = (int64_t)i;
        }
        qsort(room, count, sizeof *room, by_score);
        size_t kept = suppress(room, count, limit, overlap_max);
        if (found_count + kept > found_cap) {
            found_cap = 2 * found_cap + kept;
            int64_t *more = realloc(found, found_cap * 3 * sizeof *more);
            if (!more) {
                status = mlo_error_nomem(err);
                goto out;
            }
            found = more;
        }
        for (size_t i = 0; i < kept; i++) {
            int64_t *row = found + 3 * found_count++;
            row[0] = (int64_t)(b / classes);
            row[1] = (int64_t)(b % classes);
            row[2] = room[i].index;
        }
    }
    int64_t dims[2] = {(int64_t)found_count, 3};
    MLO_TRY(mlo_tensor_init(out[0], MLO_INT64, 2, dims, err));
    if (found_count)
        memcpy(out[0]->data, found, found_count * 3 * sizeof *found);
out:
    free(room);
    free(found);
    return status;
}

static const int64_t largest = (int64_t)1 << 30;

static enum mlo_status infer_roi_align(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    static const char *const modes[] = {"avg", "max"}, *const coordinates[] = {"half_pixel",
                                                                               "output_half_pixel"};
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *rois = mlo_op_in(node, 1);
    int64_t height = mlo_node_attr_i(node, "output_height", 1),
            width = mlo_node_attr_i(node, "output_width", 1);
    int64_t ratio = mlo_node_attr_i(node, "sampling_ratio", 0);
    unsigned which;
    out[0].dtype = x->dtype;
    MLO_TRY(mlo_op_choose(node, "mode", "avg", modes, 2, &which, err));
    MLO_TRY(mlo_op_choose(node, "coordinate_transformation_mode", "half_pixel", coordinates, 2, &which, err));
    MLO_TRY(mlo_op_want_rank(node, 0, 4, err));
    MLO_TRY(mlo_op_want_rank(node, 1, 2, err));
    MLO_TRY(mlo_op_want_rank(node, 2, 1, err));
    if (height < 1 || width < 1 || height > largest || width > largest || ratio < 0 || ratio > 4096) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "attributes 'output_height', 'output_width' and 'sampling_ratio' are %lld, "
                               "%lld and %lld",
                               (long long)height, (long long)width, (long long)ratio);
        goto out;
    }
    if (rois->rank == 2 && rois->dims[1].value >= 0 && rois->dims[1].value != 4) {
        status =
            mlo_error_set(err, MLO_EINVAL, "regions of %lld numbers, not 4", (long long)rois->dims[1].value);
        goto out;
    }
    const struct mlo_type *images = mlo_op_in(node, 2);
    if (rois->rank == 2 && images->rank == 1 && rois->dims[0].value >= 0 && images->dims[0].value >= 0 &&
        rois->dims[0].value != images->dims[0].value) {
        status = mlo_error_set(err, MLO_EINVAL, "%lld regions and %lld batch indices",
                               (long long)rois->dims[0].value, (long long)images->dims[0].value);
        goto out;
    }
    out[0].rank = 4;
    out[0].dims[0] = rois->rank == 2 ? rois->dims[0] : mlo_dim_unknown();
    out[0].dims[1] = x->rank == 4 ? x->dims[1] : mlo_dim_unknown();
    out[0].dims[2] = mlo_dim_fixed(height);
    out[0].dims[3] = mlo_dim_fixed(width);
out:
    return status;
}

/* The four neighbours of (y, x) with their weights; all zero outside of the image. */
static void corners(double y, double x, int64_t height, int64_t width, size_t *at, double *weight)
{
    memset(weight, 0, 4 * sizeof *weight);
    memset(at, 0, 4 * sizeof *at);
    if (!(y >= -1 && y <= (double)height && x >= -1 && x <= (double)width))
        return;
    y = y < 0 ? 0 : y;
    x = x < 0 ? 0 : x;
    int64_t low[2] = {(int64_t)y, (int64_t)x}, size[2] = {height, width}, high[2];
    double part[2] = {y, x};
    for (int i = 0; i < 2; i++) {
        high[i] = low[i] + 1;
        if (low[i] >= size[i] - 1) {
            high[i] = low[i] = size[i] - 1;
            part[i] = (double)low[i];
        }
        part[i] -= (double)low[i];
    }
    for (int i = 0; i < 4; i++) {
        at[i] = (size_t)((i / 2 ? high[0] : low[0]) * width + (i % 2 ? high[1] : low[1]));
        weight[i] = (i / 2 ? part[0] : 1 - part[0]) * (i % 2 ? part[1] : 1 - part[1]);
    }
}

struct region {
    double y, x, bin_height, bin_width;
    int64_t rows, columns; /* samples of a bin */
    bool maximum;
};

static double align_bin(const struct region *r, const double *image, int64_t height, int64_t width,
                        int64_t ph, int64_t pw)
{
    double sum = 0, best = -INFINITY;
    for (int64_t i = 0; i < r->rows; i++)
        for (int64_t k = 0; k < r->columns; k++) {
            double y =
                r->y + (double)ph * r->bin_height + ((double)i + 0.5) * r->bin_height / (double)r->rows;
            double x =
                r->x + (double)pw * r->bin_width + ((double)k + 0.5) * r->bin_width / (double)r->columns;
            double weight[4];
            size_t at[4];
            corners(y, x, height, width, at, weight);
            for (int c = 0; c < 4; c++) {
                sum += weight[c] * image[at[c]];
                best = fmax(best, weight[c] * image[at[c]]); /* of the weighted neighbours, as specified */
            }
        }
    if (r->maximum)
        return isinf(best) ? 0 : best;
    return sum / (double)MLO_MAX(r->rows * r->columns, 1);
}

static enum mlo_status eval_roi_align(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                      struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double *x = NULL, scale = mlo_node_attr_f(node, "spatial_scale", 1);
    int64_t ratio = mlo_node_attr_i(node, "sampling_ratio", 0);
    /* up to opset 15 the only mode is what is now called output_half_pixel */
    const char *mode = node->op->since < 16
                           ? "output_half_pixel"
                           : mlo_node_attr_s(node, "coordinate_transformation_mode", "half_pixel");
    bool half = strcmp(mode, "half_pixel") == 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    MLO_TRY(mlo_op_doubles(in[0], &x, err));
    int64_t channels = in[0]->dims[1], height = in[0]->dims[2], width = in[0]->dims[3];
    int64_t rows = out[0]->dims[2], columns = out[0]->dims[3];
    if (mlo_tensor_count(in[0]) == 0 && mlo_tensor_count(out[0])) {
        status = mlo_error_set(err, MLO_EINVAL, "there is nothing to take from an empty input");
        goto out;
    }
    size_t to = 0, image_size = (size_t)(height * width);
    for (size_t n = 0; n < (size_t)out[0]->dims[0]; n++) {
        int64_t image = mlo_tensor_get_i64(in[2], n);
        double v[4];
        for (size_t i = 0; i < 4; i++)
            v[i] = mlo_tensor_get_f64(in[1], n * 4 + i) * scale - (half ? 0.5 : 0);
        double w = v[2] - v[0], h = v[3] - v[1];
        if (!half) { /* regions are at least one wide */
            w = fmax(w, 1);
            h = fmax(h, 1);
        }
        if (image < 0 || image >= in[0]->dims[0] || !(fabs(w) < 1e9 && fabs(h) < 1e9)) {
            status = mlo_error_set(err, MLO_EINVAL, "region %zu of image %lld, %g x %g", n, (long long)image,
                                   h, w);
            goto out;
        }
        struct region r = {v[1],
                           v[0],
                           h / (double)rows,
                           w / (double)columns,
                           ratio,
                           ratio,
                           strcmp(mlo_node_attr_s(node, "mode", "avg"), "max") == 0};
        if (ratio == 0) {
            r.rows = (int64_t)fmax(ceil(r.bin_height), 0);
            r.columns = (int64_t)fmax(ceil(r.bin_width), 0);
        }
        if ((double)r.rows * (double)r.columns > 1e7) {
            status = mlo_error_set(err, MLO_EINVAL, "region %zu needs too many samples", n);
            goto out;
        }
        for (int64_t c = 0; c < channels; c++)
            for (int64_t p = 0; p < rows * columns; p++, to++)
                mlo_tensor_set_f64(out[0], to,
                                   align_bin(&r, x + (size_t)(image * channels + c) * image_size, height,
                                             width, p / columns, p % columns));
    }
out:
    free(x);
    return status;
}

static const struct mlo_op rows[] = {
    {"", "NonMaxSuppression", 10, infer_nms, eval_nms, MLO_OP_PURE, 2, 5, 1, 1},
    {"", "NonMaxSuppression", 11, infer_nms, eval_nms, MLO_OP_PURE, 2, 5, 1, 1},
    {"", "RoiAlign", 10, infer_roi_align, eval_roi_align, MLO_OP_PURE, 3, 3, 1, 1},
    {"", "RoiAlign", 16, infer_roi_align, eval_roi_align, MLO_OP_PURE, 3, 3, 1, 1},
    {"", "RoiAlign", 22, infer_roi_align, eval_roi_align, MLO_OP_PURE, 3, 3, 1, 1},
};
const struct mlo_op_family mlo_ops_detect = {rows, MLO_COUNT(rows)};
