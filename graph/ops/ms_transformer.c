/* com.microsoft: SkipLayerNormalization and its root-mean-square form, EmbedLayerNormalization, Attention,
 * QAttention; and SimplifiedLayerNormalization, which exporters put into ai.onnx. In double, rounded once. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/attention_impl.h"

#define DOMAIN "com.microsoft"

static bool differ(int64_t a, int64_t b)
{
    return a >= 0 && b >= 0 && a != b;
}

static int64_t last_dim(const struct mlo_type *t)
{
    return t->rank > 0 ? t->dims[t->rank - 1].value : -1;
}

/* Input i is omitted, or a list of `size`. */
static enum mlo_status want_list(const struct mlo_node *node, int i, int64_t size, struct mlo_error *err)
{
    const struct mlo_type *t = mlo_op_in(node, i);
    if (!t || t->rank < 0 || (t->rank == 1 && !differ(t->dims[0].value, size)))
        return MLO_OK;
    return mlo_error_set(err, MLO_EINVAL, "input %d does not hold a list of %lld", i, (long long)size);
}

/* y = (x - mean) / deviation * gamma + beta over one row; without a mean: root mean square. */
static void normalize(double *row, size_t n, bool centred, double epsilon, const double *gamma,
                      const double *beta, double *mean_out, double *inverse_out)
{
    double mean = 0, squares = 0;
    for (size_t i = 0; centred && i < n; i++)
        mean += row[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (row[i] - mean) * (row[i] - mean);
    double inverse = 1 / sqrt(squares / (double)n + epsilon);
    for (size_t i = 0; i < n; i++)
        row[i] = (row[i] - mean) * inverse * gamma[i] + (beta ? beta[i] : 0);
    *mean_out = mean;
    *inverse_out = inverse;
}

/* Inputs x, skip, gamma, then beta (not in the simplified form) and bias. */
static enum mlo_status infer_skip(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *skip = mlo_op_in(node, 1);
    for (int i = 0; i < node->output_count; i++)
        out[i] = *x;
    if (x->rank < 0)
        goto out;
    bool fits = x->rank >= 1 && (skip->rank < 0 || (skip->rank <= x->rank && skip->rank >= 1));
    for (int i = 1; fits && skip->rank >= 0 && i <= skip->rank; i++) {
        int64_t s = skip->dims[skip->rank - i].value; /* a leading 1, or a missing batch, is repeated */
        fits = !differ(s, x->dims[x->rank - i].value) || (s == 1 && i == skip->rank && i == 3);
    }
    if (!fits) {
        status = mlo_error_set(err, MLO_EINVAL, "input 1 does not fit input 0");
        goto out;
    }
    for (int i = 2; i < node->input_count; i++)
        MLO_TRY(want_list(node, i, last_dim(x), err));
    for (int i = 1; i < node->output_count && i < 3; i++) {
        out[i].dtype = MLO_FLOAT32;
        out[i].dims[x->rank - 1] = mlo_dim_fixed(1);
    }
out:
    return status;
}

static enum mlo_status eval_skip(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool simple = strcmp(node->op_type, "SkipSimplifiedLayerNormalization") == 0;
    double epsilon = mlo_node_attr_f(node, "epsilon", 1e-12f), mean, inverse;
    double *list[3] = {0}, *x = NULL, *skip = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    for (int i = 0; i < 3; i++)
        MLO_TRY(mlo_op_want_float(in[i], err));
    MLO_TRY(mlo_op_doubles(in[0], &x, err));
    MLO_TRY(mlo_op_doubles(in[1], &skip, err));
    MLO_TRY(mlo_op_doubles(in[2], &list[0], err));
    MLO_TRY(mlo_op_doubles(simple ? NULL : mlo_op_operand(node, in, 3), &list[1], err));
    MLO_TRY(mlo_op_doubles(mlo_op_operand(node, in, simple ? 3 : 4), &list[2], err));
    size_t count = mlo_tensor_count(in[0]), n = (size_t)in[0]->dims[in[0]->rank - 1];
    size_t skips = mlo_tensor_count(in[1]);
    for (size_t r = 0; n && r < count / n; r++) {
        double *row = x + r * n;
        for (size_t i = 0; i < n; i++) {
            row[i] += skip[(r * n + i) % skips] + (list[2] ? list[2][i] : 0);
            if (node->output_count > 3 && out[3])
                mlo_tensor_set_f64(out[3], r * n + i, row[i]);
        }
        normalize(row, n, !simple, epsilon, list[0], list[1], &mean, &inverse);
        if (node->output_count > 1 && out[1])
            mlo_tensor_set_f64(out[1], r, mean);
        if (node->output_count > 2 && out[2])
            mlo_tensor_set_f64(out[2], r, inverse);
    }
    if (out[0])
        mlo_op_store_doubles(out[0], x);
out:
    for (int i = 0; i < 3; i++)
        free(list[i]);
    free(x);
    free(skip);
    return status;
}

static enum mlo_status infer_simplified(const struct mlo_node *node, struct mlo_type *out,
                                        struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0);
    int axis;
    for (int i = 0; i < node->output_count; i++)
        out[i] = *x;
    if (x->rank < 0)
        goto out;
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", -1), x->rank, &axis, err));
    if (axis != x->rank - 1) {
        status =
            mlo_error_set(err, MLO_EUNSUPPORTED, "attribute 'axis' is %d; the last one is supported", axis);
        goto out;
    }
    MLO_TRY(want_list(node, 1, last_dim(x), err));
    if (node->output_count > 1) {
        out[1].dtype = MLO_FLOAT32;
        out[1].dims[axis] = mlo_dim_fixed(1);
    }
out:
    return status;
}

static enum mlo_status eval_simplified(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                       struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double epsilon = mlo_node_attr_f(node, "epsilon", 1e-5f), mean, inverse, *x = NULL, *gamma = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    MLO_TRY(mlo_op_doubles(in[0], &x, err));
    MLO_TRY(mlo_op_doubles(in[1], &gamma, err));
    size_t n = (size_t)in[0]->dims[in[0]->rank - 1], count = mlo_tensor_count(in[0]);
    for (size_t r = 0; n && r < count / n; r++) {
        normalize(x + r * n, n, false, epsilon, gamma, NULL, &mean, &inverse);
        if (node->output_count > 1 && out[1])
            mlo_tensor_set_f64(out[1], r, inverse);
    }
    if (out[0])
        mlo_op_store_doubles(out[0], x);
out:
    free(x);
    free(gamma);
    return status;
}

/* --- EmbedLayerNormalization ------------------------------------------------------------------------- */

enum { IDS, SEGMENTS, WORDS, PLACES, SEGMENT_WORDS, GAMMA, BETA, MASK, PLACE_IDS };

static enum mlo_status infer_embed(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *ids = mlo_op_in(node, IDS), *words = mlo_op_in(node, WORDS);
    MLO_TRY(mlo_op_want_rank(node, IDS, 2, err));
    static const int tables[] = {WORDS, PLACES, SEGMENT_WORDS};
    if (!mlo_op_in(node, WORDS) || !mlo_op_in(node, PLACES) || !mlo_op_in(node, GAMMA) ||
        !mlo_op_in(node, BETA) || (mlo_op_in(node, SEGMENTS) && !mlo_op_in(node, SEGMENT_WORDS))) {
        status = mlo_error_set(err, MLO_EFORMAT, "an embedding, gamma or beta is omitted");
        goto out;
    }
    int64_t hidden = -1;
    for (int i = 0; i < 3; i++) {
        MLO_TRY(mlo_op_want_rank(node, tables[i], 2, err));
        const struct mlo_type *t = mlo_op_in(node, tables[i]);
        if (!t || t->rank < 0)
            continue;
        if (differ(hidden, t->dims[1].value)) {
            status = mlo_error_set(err, MLO_EINVAL, "input %d has rows of %lld, not %lld", tables[i],
                                   (long long)t->dims[1].value, (long long)hidden);
            goto out;
        }
        hidden = t->dims[1].value;
    }
    for (int i = GAMMA; i <= BETA; i++)
        MLO_TRY(want_list(node, i, hidden, err));
    static const int like_ids[] = {SEGMENTS, MASK, PLACE_IDS};
    for (int i = 0; i < 3; i++) {
        const struct mlo_type *t = mlo_op_in(node, like_ids[i]);
        MLO_TRY(mlo_op_want_rank(node, like_ids[i], 2, err));
        bool one = like_ids[i] == PLACE_IDS && t && t->rank == 2 && t->dims[0].value == 1;
        if (t && t->rank == 2 && ids->rank == 2 &&
            ((!one && differ(t->dims[0].value, ids->dims[0].value)) ||
             differ(t->dims[1].value, ids->dims[1].value))) {
            status = mlo_error_set(err, MLO_EINVAL, "input %d is not of the shape of the ids", like_ids[i]);
            goto out;
        }
    }
    for (int i = 0; i < node->output_count; i++) {
        out[i] = (struct mlo_type){.dtype = i == 1 ? MLO_INT32 : words->dtype, .rank = i == 1 ? 1 : 3};
        out[i].dims[0] = ids->rank == 2 ? ids->dims[0] : mlo_dim_unknown();
        if (i == 1)
            continue;
        out[i].dims[1] = ids->rank == 2 ? ids->dims[1] : mlo_dim_unknown();
        out[i].dims[2] = (struct mlo_dim){hidden, NULL};
    }
out:
    return status;
}

static enum mlo_status add_row(const struct mlo_tensor *table, int64_t index, int input, double *row,
                               struct mlo_error *err)
{
    size_t n = (size_t)table->dims[1];
    if (index < 0 || index >= table->dims[0])
        return mlo_error_set(err, MLO_EINVAL, "index %lld is outside of input %d's %lld rows",
                             (long long)index, input, (long long)table->dims[0]);
    for (size_t i = 0; i < n; i++)
        row[i] += mlo_tensor_get_f64(table, (size_t)index * n + i);
    return MLO_OK;
}

static enum mlo_status eval_embed(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *segments = mlo_op_operand(node, in, SEGMENTS);
    const struct mlo_tensor *mask = mlo_op_operand(node, in, MASK),
                            *ids = mlo_op_operand(node, in, PLACE_IDS);
    double epsilon = mlo_node_attr_f(node, "epsilon", 1e-12f), mean, inverse;
    double *gamma = NULL, *beta = NULL, *row = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_want_float(in[WORDS], err));
    MLO_TRY(mlo_op_doubles(in[GAMMA], &gamma, err));
    MLO_TRY(mlo_op_doubles(in[BETA], &beta, err));
    size_t batch = (size_t)in[IDS]->dims[0], length = (size_t)in[IDS]->dims[1],
           n = (size_t)in[WORDS]->dims[1];
    row = calloc(n + 1, sizeof *row);
    if (!row) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t t = 0; t < batch * length; t++) {
        size_t place = t % length;
        memset(row, 0, n * sizeof *row);
        MLO_TRY(add_row(in[WORDS], mlo_tensor_get_i64(in[IDS], t), WORDS, row, err));
        int64_t at = ids ? mlo_tensor_get_i64(ids, ids->dims[0] == 1 ? place : t) : (int64_t)place;
        MLO_TRY(add_row(in[PLACES], at, PLACES, row, err));
        if (segments)
            MLO_TRY(add_row(in[SEGMENT_WORDS], mlo_tensor_get_i64(segments, t), SEGMENT_WORDS, row, err));
        for (size_t i = 0; node->output_count > 2 && out[2] && i < n; i++)
            mlo_tensor_set_f64(out[2], t * n + i, row[i]);
        normalize(row, n, true, epsilon, gamma, beta, &mean, &inverse);
        for (size_t i = 0; out[0] && i < n; i++)
            mlo_tensor_set_f64(out[0], t * n + i, row[i]);
    }
    for (size_t b = 0; node->output_count > 1 && out[1] && b < batch; b++) {
        int64_t words = 0;
        for (size_t i = 0; mask && i < length; i++)
            words += mlo_tensor_get_i64(mask, b * length + i) == 1;
        ((int32_t *)out[1]->data)[b] = (int32_t)words;
    }
out:
    free(gamma);
    free(beta);
    free(row);
    return status;
}

/* --- Attention and QAttention: one product makes queries, keys and values ------------------------------ */

struct packed_places {
    int bias, x_scale, w_scale, mask, x_zero, w_zero, past, added;
};
static const struct packed_places real = {2, -1, -1, 3, -1, -1, 4, 5}, quantized = {2, 3, 4, 5, 6, 7, 8, -1};

static const struct packed_places *packed_of(const struct mlo_node *node)
{
    return node->op_type[0] == 'Q' ? &quantized : &real;
}

/* Widths of queries, keys and values. */
static enum mlo_status read_widths(const struct mlo_node *node, int64_t columns, int64_t *width,
                                   struct mlo_error *err)
{
    size_t count;
    const int64_t *sizes = mlo_node_attr_ints(node, "qkv_hidden_sizes", &count);
    int64_t heads = mlo_node_attr_i(node, "num_heads", 0);
    if (sizes && count != 3)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'qkv_hidden_sizes' has %zu numbers, not 3", count);
    bool ok = heads > 0 && heads <= 1 << 20 && (sizes || columns % 3 == 0);
    for (int i = 0; ok && i < 3; i++) {
        width[i] = sizes ? sizes[i] : columns / 3;
        ok = width[i] > 0 && width[i] <= columns && width[i] % heads == 0;
    }
    if (!ok || width[0] != width[1] || width[0] + width[1] + width[2] != columns)
        return mlo_error_set(err, MLO_EINVAL,
                             "%lld columns of weights do not make queries, keys and values of %lld heads",
                             (long long)columns, (long long)heads);
    return MLO_OK;
}

/* Somebody wants output 1: keys and values for the next call, in one tensor. */
static bool wants_present(const struct mlo_node *node)
{
    return node->output_count > 1 && node->outputs[1];
}

/* What the checks of shapes need; -1: not known. */
struct packed_sizes {
    int64_t batch, heads, length, total, width[3];
};

static enum mlo_status check_past(const struct mlo_node *node, const struct packed_places *p,
                                  const struct packed_sizes *s, struct mlo_error *err)
{
    const struct mlo_type *past = mlo_op_in(node, p->past);
    if (past && past->rank >= 0 &&
        (past->rank != 5 || differ(past->dims[0].value, 2) || differ(past->dims[1].value, s->batch) ||
         differ(past->dims[2].value, s->heads) || differ(past->dims[4].value, s->width[0] / s->heads)))
        return mlo_error_set(err, MLO_EINVAL, "input %d, the past, is not [2, batch, heads, length, size]",
                             p->past);
    if ((past || wants_present(node)) && s->width[2] != s->width[0])
        return mlo_error_set(err, MLO_EINVAL,
                             "past and present hold keys and values in one tensor, but their widths are %lld "
                             "and %lld",
                             (long long)s->width[1], (long long)s->width[2]);
    return MLO_OK;
}

static enum mlo_status check_mask(const struct mlo_node *node, int at, const struct packed_sizes *s,
                                  struct mlo_error *err)
{
    const struct mlo_type *mask = mlo_op_in(node, at);
    if (!mask || mask->rank < 0)
        return MLO_OK;
    int64_t first = mask->rank > 0 ? mask->dims[0].value : -1;
    bool fits = mask->rank == 1   ? !differ(first, s->batch) || (s->batch >= 0 && first == 2 * s->batch)
                : mask->rank == 2 ? !differ(first, s->batch) && !differ(mask->dims[1].value, s->total)
                : mask->rank == 3 ? !differ(first, s->batch) && !differ(mask->dims[1].value, s->length) &&
                                        !differ(mask->dims[2].value, s->total)
                                  : false;
    return fits ? MLO_OK
                : mlo_error_set(err, MLO_EUNSUPPORTED,
                                "input %d, the mask, is none of [batch], [2 batch], [batch, total] and "
                                "[batch, length, total]",
                                at);
}

static enum mlo_status check_added(const struct mlo_node *node, int at, const struct packed_sizes *s,
                                   struct mlo_error *err)
{
    const struct mlo_type *added = mlo_op_in(node, at);
    if (!added || added->rank < 0)
        return MLO_OK;
    int64_t want[4] = {s->batch, s->heads, s->length, s->total};
    bool fits = added->rank == 4;
    for (int i = 0; fits && i < 4; i++)
        fits = !differ(added->dims[i].value, want[i]) || (i < 2 && added->dims[i].value == 1);
    return fits ? MLO_OK
                : mlo_error_set(err, MLO_EINVAL, "input %d, the bias, is not of the scores' shape", at);
}

static enum mlo_status infer_packed(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct packed_places *p = packed_of(node);
    const struct mlo_type *x = mlo_op_in(node, 0), *w = mlo_op_in(node, 1), *past = mlo_op_in(node, p->past);
    const struct mlo_type *scale = mlo_op_in(node, 3);
    out[0].dtype = p->x_scale < 0 ? x->dtype : scale ? scale->dtype : MLO_FLOAT32;
    if (node->output_count > 1)
        out[1].dtype = out[0].dtype;
    if (mlo_node_attr_i(node, "do_rotary", 0) || mlo_node_attr_i(node, "past_present_share_buffer", 0) ||
        (p->x_scale < 0 && mlo_op_in(node, 6))) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED,
                               "attributes 'do_rotary' and 'past_present_share_buffer', and input 6, the "
                               "length of the past");
        goto out;
    }
    if (p->x_scale >= 0 && (!scale || !mlo_op_in(node, p->w_scale))) {
        status = mlo_error_set(err, MLO_EFORMAT, "input 3 or 4, a scale, is omitted");
        goto out;
    }
    MLO_TRY(mlo_op_want_rank(node, 0, 3, err));
    MLO_TRY(mlo_op_want_rank(node, 1, 2, err));
    if (x->rank < 0 || w->rank < 0 || w->dims[1].value < 0)
        goto out;
    int64_t columns = w->dims[1].value, old = !past ? 0 : past->rank == 5 ? past->dims[3].value : -1;
    struct packed_sizes s = {.batch = x->dims[0].value,
                             .heads = mlo_node_attr_i(node, "num_heads", 0),
                             .length = x->dims[1].value};
    s.total = old < 0 || s.length < 0 ? -1 : old + s.length;
    MLO_TRY(read_widths(node, columns, s.width, err));
    MLO_TRY(want_list(node, p->bias, columns, err));
    if (differ(x->dims[2].value, w->dims[0].value)) {
        status = mlo_error_set(err, MLO_EINVAL, "the input is %lld wide, and the weights are for %lld",
                               (long long)x->dims[2].value, (long long)w->dims[0].value);
        goto out;
    }
    MLO_TRY(check_past(node, p, &s, err));
    MLO_TRY(check_mask(node, p->mask, &s, err));
    MLO_TRY(check_added(node, p->added, &s, err));
    out[0].rank = 3;
    out[0].dims[0] = x->dims[0];
    out[0].dims[1] = x->dims[1];
    out[0].dims[2] = mlo_dim_fixed(s.width[2]);
    if (node->output_count > 1) {
        struct mlo_dim d[5] = {mlo_dim_fixed(2),
                               x->dims[0],
                               mlo_dim_fixed(s.heads),
                               {s.total, NULL},
                               mlo_dim_fixed(s.width[0] / s.heads)};
        out[1].rank = 5;
        memcpy(out[1].dims, d, sizeof d);
    }
out:
    return status;
}

struct packed_mask {
    const struct mlo_tensor *mask, *added;
    size_t batch, past, length;
    bool causal;
    double filter;
};

static bool visible(const struct packed_mask *m, size_t batch, size_t query, size_t key)
{
    const struct mlo_tensor *t = m->mask;
    if (!t)
        return true;
    if (t->rank == 1) { /* how many words there are, and from which on when there are two lists */
        size_t n = m->batch;
        bool begun =
            mlo_tensor_count(t) != 2 * n || n == 0 || (int64_t)key >= mlo_tensor_get_i64(t, n + batch);
        return begun && (int64_t)key < mlo_tensor_get_i64(t, batch);
    }
    size_t total = (size_t)t->dims[t->rank - 1];
    return mlo_tensor_get_i64(t, (t->rank == 2 ? batch : batch * m->length + query) * total + key) > 0;
}

static double packed_bias(void *arg, size_t batch, size_t head, size_t query, size_t key)
{
    const struct packed_mask *m = arg;
    if (m->causal && key > query + m->past)
        return -INFINITY;
    double bias = visible(m, batch, query, key) ? 0 : m->filter;
    const struct mlo_tensor *t = m->added;
    if (t) {
        size_t b = t->dims[0] == 1 ? 0 : batch, h = t->dims[1] == 1 ? 0 : head;
        size_t row = (b * (size_t)t->dims[1] + h) * (size_t)t->dims[2] + query;
        bias += mlo_tensor_get_f64(t, row * (size_t)t->dims[3] + key);
    }
    return bias;
}

/* The values of a matrix, dequantized where there is a scale (one, or one for each column). */
static enum mlo_status real_values(const struct mlo_tensor *t, const struct mlo_tensor *scale,
                                   const struct mlo_tensor *zero, double **out, struct mlo_error *err)
{
    enum mlo_status status = mlo_op_doubles(t, out, err);
    size_t columns = (size_t)t->dims[t->rank - 1], scales = scale ? mlo_tensor_count(scale) : 1;
    size_t zeros = zero ? mlo_tensor_count(zero) : 1;
    if (status != MLO_OK || !scale)
        return status;
    if ((scales != 1 && scales != columns) || (zeros != 1 && zeros != columns))
        return mlo_error_set(err, MLO_EINVAL, "%zu scales and %zu zero points for %zu columns", scales, zeros,
                             columns);
    for (size_t i = 0; i < mlo_tensor_count(t); i++) {
        double z = zero ? mlo_tensor_get_f64(zero, zeros == 1 ? 0 : i % columns) : 0;
        (*out)[i] = ((*out)[i] - z) * mlo_tensor_get_f64(scale, scales == 1 ? 0 : i % columns);
    }
    return MLO_OK;
}

/* part 0, 1, 2: queries, keys, values as batch x heads x total x size, behind the past. */
static double *project(const struct mlo_attention *a, size_t inputs, const double *x, const double *w,
                       const double *bias, const struct mlo_tensor *past, int part, const size_t *width)
{
    size_t size = width[part] / a->heads, old = past && part ? (size_t)past->dims[3] : 0;
    size_t total = old + a->q_length, columns = width[0] + width[1] + width[2], first = 0;
    double *to = calloc(a->batch * a->heads * total * size + 1, sizeof *to);
    for (int i = 0; i < part; i++)
        first += width[i];
    for (size_t i = 0; to && i < a->batch * a->heads * total * size; i++) {
        size_t d = i % size, t = i / size % total, row = i / size / total, b = row / a->heads;
        size_t column = first + row % a->heads * size + d;
        if (t < old) {
            size_t half = (size_t)(part - 1) * a->batch * a->heads;
            to[i] = mlo_tensor_get_f64(past, ((half + row) * old + t) * size + d);
            continue;
        }
        double sum = bias ? bias[column] : 0;
        for (size_t k = 0; k < inputs; k++)
            sum += x[(b * a->q_length + t - old) * inputs + k] * w[k * columns + column];
        to[i] = sum;
    }
    return to;
}

static enum mlo_status eval_packed(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct packed_places *p = packed_of(node);
    const struct mlo_tensor *past = mlo_op_operand(node, in, p->past);
    double *x = NULL, *w = NULL, *bias = NULL, *part[3] = {0}, *y = NULL;
    int64_t width[3];
    size_t sizes[3];
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(read_widths(node, in[1]->dims[1], width, err));
    for (int i = 0; i < 3; i++)
        sizes[i] = (size_t)width[i];
    MLO_TRY(real_values(in[0], mlo_op_operand(node, in, p->x_scale), mlo_op_operand(node, in, p->x_zero), &x,
                        err));
    MLO_TRY(real_values(in[1], mlo_op_operand(node, in, p->w_scale), mlo_op_operand(node, in, p->w_zero), &w,
                        err));
    MLO_TRY(mlo_op_doubles(mlo_op_operand(node, in, p->bias), &bias, err));
    struct mlo_attention a = {.batch = (size_t)in[0]->dims[0], .q_length = (size_t)in[0]->dims[1]};
    a.heads = a.kv_heads = (size_t)mlo_node_attr_i(node, "num_heads", 1);
    a.size = sizes[0] / a.heads;
    a.v_size = sizes[2] / a.heads;
    size_t old = past ? (size_t)past->dims[3] : 0;
    a.kv_length = old + a.q_length;
    a.scale = mlo_node_attr_f(node, "scale", 0);
    a.scale = a.scale != 0 ? a.scale : 1 / sqrt((double)a.size);
    struct packed_mask mask = {mlo_op_operand(node, in, p->mask),
                               mlo_op_operand(node, in, p->added),
                               a.batch,
                               old,
                               a.q_length,
                               mlo_node_attr_i(node, "unidirectional", 0) != 0,
                               mlo_node_attr_f(node, "mask_filter_value", -10000)};
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        part[i] = project(&a, (size_t)in[0]->dims[2], x, w, bias, past, i, sizes);
        ok = ok && part[i];
    }
    y = calloc(a.batch * a.heads * a.q_length * a.v_size + 1, sizeof *y);
    if (!ok || !y) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_attention_run(&a, part[0], part[1], part[2], packed_bias, &mask, y, NULL, 0, err));
    for (size_t i = 0; out[0] && i < mlo_tensor_count(out[0]); i++) {
        size_t d = i % a.v_size, head = i / a.v_size % a.heads, t = i / a.v_size / a.heads;
        size_t row = (t / a.q_length * a.heads + head) * a.q_length + t % a.q_length;
        mlo_tensor_set_f64(out[0], i, y[row * a.v_size + d]);
    }
    size_t half = a.batch * a.heads * a.kv_length * a.size;
    for (size_t i = 0; wants_present(node) && out[1] && i < 2 * half; i++)
        mlo_tensor_set_f64(out[1], i, i < half ? part[1][i] : part[2][i - half]);
out:
    for (int i = 0; i < 3; i++)
        free(part[i]);
    free(x);
    free(w);
    free(bias);
    free(y);
    return status;
}

static const struct mlo_op rows[] = {
    {"", "SimplifiedLayerNormalization", 1, infer_simplified, eval_simplified, MLO_OP_PURE, 2, 2, 1, 2},
    {DOMAIN, "SkipLayerNormalization", 1, infer_skip, eval_skip, MLO_OP_PURE, 3, 5, 1, 4},
    {DOMAIN, "SkipSimplifiedLayerNormalization", 1, infer_skip, eval_skip, MLO_OP_PURE, 3, 4, 1, 4},
    {DOMAIN, "EmbedLayerNormalization", 1, infer_embed, eval_embed, MLO_OP_PURE, 1, 9, 1, 3},
    {DOMAIN, "Attention", 1, infer_packed, eval_packed, MLO_OP_PURE, 2, 7, 1, 2},
    {DOMAIN, "QAttention", 1, infer_packed, eval_packed, MLO_OP_PURE, 2, 9, 1, 2},
};
const struct mlo_op_family mlo_ops_ms_transformer = {rows, MLO_COUNT(rows)};
