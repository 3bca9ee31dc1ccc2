/* Attention and RotaryEmbedding of ai.onnx. In double, rounded once. */
#include "graph/ops/attention_impl.h"

#include <math.h>
#include <stdlib.h>

static double score_of(const struct mlo_attention *a, const double *q, const double *k)
{
    double sum = 0;
    for (size_t i = 0; i < a->size; i++)
        sum += q[i] * k[i];
    return sum * a->scale;
}

/* Turns scores into weights; false: all keys are hidden. */
static bool softmax(double *row, size_t count)
{
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < count; i++)
        top = fmax(top, row[i]);
    if (top == -INFINITY)
        return false;
    for (size_t i = 0; i < count; i++) {
        row[i] = mlo_math_exp(row[i] - top);
        sum += row[i];
    }
    for (size_t i = 0; i < count; i++)
        row[i] /= sum;
    return true;
}

enum mlo_status mlo_attention_run(const struct mlo_attention *a, const double *q, const double *k,
                                  const double *v, mlo_attention_bias_fn *bias, void *arg, double *y,
                                  double *scores, int mode, struct mlo_error *err)
{
    size_t n = a->kv_length;
    double *row = malloc((n + 1) * sizeof *row);
    if (!row)
        return mlo_error_nomem(err);
    for (size_t r = 0; r < a->batch * a->heads * a->q_length; r++) {
        size_t query = r % a->q_length, head = r / a->q_length % a->heads, b = r / a->q_length / a->heads;
        size_t kv = b * a->kv_heads + head / (a->heads / a->kv_heads);
        double *seen = scores ? scores + r * n : NULL, *to = y + r * a->v_size;
        for (size_t i = 0; i < n; i++) {
            double s = score_of(a, q + r * a->size, k + (kv * n + i) * a->size);
            if (seen && mode == 0)
                seen[i] = s;
            if (a->softcap > 0)
                s = a->softcap * mlo_math_tanh(s / a->softcap);
            if (seen && mode == 1)
                seen[i] = s;
            row[i] = s + (bias ? bias(arg, b, head, query, i) : 0);
        }
        if (seen && mode == 2)
            memcpy(seen, row, n * sizeof *row);
        if (!softmax(row, n))
            memset(row, 0, n * sizeof *row);
        if (seen && mode == 3)
            memcpy(seen, row, n * sizeof *row);
        for (size_t d = 0; d < a->v_size; d++) {
            double sum = 0;
            for (size_t i = 0; i < n; i++)
                sum += row[i] * v[(kv * n + i) * a->v_size + d];
            to[d] = sum;
        }
    }
    free(row);
    return MLO_OK;
}

enum { IN_Q, IN_K, IN_V, IN_MASK, IN_PAST_K, IN_PAST_V, IN_LENGTHS };

/* Sizes as far as they are known (-1: not). */
struct sizes {
    bool flat; /* rank 3: heads lie side by side in the last dim */
    int64_t batch, heads, kv_heads, q_length, kv_length, size, v_size, past;
};

static enum mlo_status split_heads(int64_t hidden, int64_t heads, const char *name, int64_t *size,
                                   struct mlo_error *err)
{
    if (heads < 1)
        return mlo_error_set(err, MLO_EINVAL, "attribute '%s' is missing or below 1", name);
    if (hidden >= 0 && hidden % heads)
        return mlo_error_set(err, MLO_EINVAL, "'%s' is %lld, which does not divide %lld", name,
                             (long long)heads, (long long)hidden);
    *size = hidden < 0 ? -1 : hidden / heads;
    return MLO_OK;
}

static bool differ(int64_t a, int64_t b)
{
    return a >= 0 && b >= 0 && a != b;
}

static enum mlo_status read_sizes(const struct mlo_node *node, struct sizes *s, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *t[6];
    int64_t k_size;
    for (int i = 0; i < 6; i++)
        t[i] = mlo_op_in(node, i);
    int rank = t[IN_Q]->rank;
    if (rank != 3 && rank != 4) {
        status = mlo_error_set(err, MLO_EINVAL, "the queries have rank %d, not 3 or 4", rank);
        goto out;
    }
    MLO_TRY(mlo_op_want_rank(node, IN_K, rank, err));
    MLO_TRY(mlo_op_want_rank(node, IN_V, rank, err));
    MLO_TRY(mlo_op_want_rank(node, IN_PAST_K, 4, err));
    MLO_TRY(mlo_op_want_rank(node, IN_PAST_V, 4, err));
    int64_t q[4], k[4], v[4];
    for (int i = 0; i < rank; i++) {
        q[i] = t[IN_Q]->dims[i].value;
        k[i] = t[IN_K]->rank < 0 ? -1 : t[IN_K]->dims[i].value;
        v[i] = t[IN_V]->rank < 0 ? -1 : t[IN_V]->dims[i].value;
    }
    *s = (struct sizes){.flat = rank == 3, .batch = q[0], .past = 0};
    if (s->flat) {
        s->heads = mlo_node_attr_i(node, "q_num_heads", 0);
        s->kv_heads = mlo_node_attr_i(node, "kv_num_heads", 0);
        s->q_length = q[1];
        s->kv_length = k[1];
        MLO_TRY(split_heads(q[2], s->heads, "q_num_heads", &s->size, err));
        MLO_TRY(split_heads(k[2], s->kv_heads, "kv_num_heads", &k_size, err));
        MLO_TRY(split_heads(v[2], s->kv_heads, "kv_num_heads", &s->v_size, err));
    } else {
        s->heads = q[1];
        s->kv_heads = k[1];
        s->q_length = q[2];
        s->kv_length = k[2];
        s->size = q[3];
        k_size = k[3];
        s->v_size = v[3];
    }
    bool fits = !differ(q[0], k[0]) && !differ(q[0], v[0]) && !differ(s->kv_length, v[rank - 2]) &&
                !differ(s->size, k_size) && (s->flat || !differ(k[1], v[1])) &&
                (s->heads < 0 || s->kv_heads < 0 || (s->kv_heads > 0 && s->heads % s->kv_heads == 0));
    if ((t[IN_PAST_K] == NULL) != (t[IN_PAST_V] == NULL))
        fits = false;
    for (int i = IN_PAST_K; fits && i <= IN_PAST_V && t[i]; i++) {
        if (t[i]->rank < 0) {
            s->past = -1;
            continue;
        }
        fits = !differ(t[i]->dims[0].value, q[0]) && !differ(t[i]->dims[1].value, s->kv_heads) &&
               !differ(t[i]->dims[3].value, i == IN_PAST_K ? s->size : s->v_size) &&
               (i == IN_PAST_K || !differ(t[i]->dims[2].value, s->past));
        s->past = t[i]->dims[2].value;
    }
    if (!fits)
        status = mlo_error_set(err, MLO_EINVAL, "queries, keys, values and past do not fit each other");
out:
    return status;
}

static struct mlo_dim dim(int64_t value)
{
    return (struct mlo_dim){value, NULL};
}

static enum mlo_status infer_attention(const struct mlo_node *node, struct mlo_type *out,
                                       struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *q = mlo_op_in(node, IN_Q);
    int64_t mode = mlo_node_attr_i(node, "qk_matmul_output_mode", 0);
    struct sizes s;
    for (int i = 0; i < node->output_count; i++)
        out[i].dtype = q->dtype;
    if (mode < 0 || mode > 3) {
        status = mlo_error_set(err, MLO_EINVAL, "attribute 'qk_matmul_output_mode' is %lld", (long long)mode);
        goto out;
    }
    if (q->rank < 0)
        goto out;
    MLO_TRY(read_sizes(node, &s, err));
    int64_t total = s.past < 0 || s.kv_length < 0 ? -1 : s.past + s.kv_length;
    const struct mlo_type *mask = mlo_op_in(node, IN_MASK);
    if (mask && mask->rank >= 0) {
        int64_t want[4] = {s.batch, s.heads, s.q_length, total};
        bool fits = mask->rank <= 4;
        for (int i = 0; fits && i < mask->rank; i++) {
            int64_t have = mask->dims[mask->rank - 1 - i].value, need = want[3 - i];
            /* a mask may be for fewer keys, the rest is hidden */
            fits = have < 0 || need < 0 || have == need || (i ? have == 1 : have < need);
        }
        if (!fits) {
            status = mlo_error_set(err, MLO_EINVAL, "input 3, the mask, does not broadcast to the scores");
            goto out;
        }
    }
    out[0].rank = q->rank;
    out[0].dims[0] = q->dims[0];
    out[0].dims[1] = q->dims[1];
    out[0].dims[2] = s.flat ? dim(s.v_size < 0 ? -1 : s.v_size * s.heads) : q->dims[2];
    if (!s.flat)
        out[0].dims[3] = dim(s.v_size);
    for (int i = 1; i < node->output_count; i++) {
        out[i].rank = 4;
        out[i].dims[0] = q->dims[0];
        out[i].dims[1] = dim(i == 3 ? s.heads : s.kv_heads);
        out[i].dims[2] = dim(i == 3 ? s.q_length : total);
        out[i].dims[3] = dim(i == 3 ? total : i == 1 ? s.size : s.v_size);
    }
out:
    return status;
}

/* Rank 3 (b, length, heads x size) or 4 (b, heads, length, size), behind `past`, as the latter. */
static enum mlo_status gather_heads(const struct mlo_tensor *t, const struct mlo_tensor *past, size_t heads,
                                    double **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double *from = NULL, *before = NULL, *to = NULL;
    bool flat = t->rank == 3;
    size_t batch = (size_t)t->dims[0], length = (size_t)t->dims[flat ? 1 : 2];
    size_t size = flat ? (size_t)t->dims[2] / heads : (size_t)t->dims[3];
    size_t old = past ? (size_t)past->dims[2] : 0, total = old + length;
    *out = NULL;
    MLO_TRY(mlo_op_doubles(t, &from, err));
    MLO_TRY(mlo_op_doubles(past, &before, err));
    to = calloc(batch * heads * total * size + 1, sizeof *to);
    if (!to) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t b = 0; b < batch; b++)
        for (size_t h = 0; h < heads; h++)
            for (size_t i = 0; i < total; i++) {
                double *row = to + ((b * heads + h) * total + i) * size;
                if (i < old)
                    memcpy(row, before + ((b * heads + h) * old + i) * size, size * sizeof *row);
                else if (flat)
                    memcpy(row, from + ((b * length + i - old) * heads + h) * size, size * sizeof *row);
                else
                    memcpy(row, from + ((b * heads + h) * length + i - old) * size, size * sizeof *row);
            }
    *out = to;
out:
    free(from);
    free(before);
    return status;
}

struct mask {
    const struct mlo_tensor *t, *lengths;
    bool causal;
    int64_t past, queries, left, right; /* a window reaches left and right of a query's place; -1: all */
};

/* Whether key lies where the query does not look: its place is behind what was there before it. */
static bool hidden(const struct mask *m, size_t batch, size_t query, size_t key)
{
    int64_t before = m->past;
    if (m->lengths) {
        int64_t length = mlo_tensor_get_i64(m->lengths, batch);
        if ((int64_t)key >= length)
            return true;
        before = length - m->queries;
    }
    int64_t ahead = (int64_t)key - (int64_t)query - before;
    return (m->causal && ahead > 0) || (m->right >= 0 && ahead > m->right) ||
           (m->left >= 0 && -ahead > m->left);
}

static double mask_bias(void *arg, size_t batch, size_t head, size_t query, size_t key)
{
    const struct mask *m = arg;
    const struct mlo_tensor *t = m->t;
    size_t at[4] = {batch, head, query, key}, offset = 0;
    if (hidden(m, batch, query, key))
        return -INFINITY;
    if (!t)
        return 0;
    for (int i = 0; i < t->rank; i++) {
        size_t size = (size_t)t->dims[i], p = at[4 - t->rank + i];
        if (i == t->rank - 1 && p >= size && size != 1)
            return -INFINITY;
        offset = offset * size + (size == 1 ? 0 : p);
    }
    double v = mlo_tensor_get_f64(t, offset);
    return t->dtype == MLO_BOOL ? (v != 0 ? 0 : -INFINITY) : v;
}

static enum mlo_status eval_attention(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                      struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *past = mlo_op_operand(node, in, IN_PAST_K);
    struct mask mask = {mlo_op_operand(node, in, IN_MASK),
                        mlo_op_operand(node, in, IN_LENGTHS),
                        mlo_node_attr_i(node, "is_causal", 0) != 0,
                        past ? past->dims[2] : 0,
                        0,
                        mlo_node_attr_i(node, "left_window_size", -1),
                        mlo_node_attr_i(node, "right_window_size", -1)};
    double *q = NULL, *k = NULL, *v = NULL, *y = NULL, *scores = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    for (int i = 0; i < 3; i++)
        MLO_TRY(mlo_op_want_float(in[i], err));
    bool flat = in[0]->rank == 3;
    struct mlo_attention a = {.batch = (size_t)in[0]->dims[0], .q_length = (size_t)in[0]->dims[flat ? 1 : 2]};
    a.heads = (size_t)(flat ? mlo_node_attr_i(node, "q_num_heads", 1) : in[0]->dims[1]);
    a.kv_heads = (size_t)(flat ? mlo_node_attr_i(node, "kv_num_heads", 1) : in[1]->dims[1]);
    a.size = (size_t)in[0]->dims[in[0]->rank - 1] / (flat ? a.heads : 1);
    a.v_size = (size_t)in[2]->dims[in[2]->rank - 1] / (flat ? a.kv_heads : 1);
    a.kv_length = (size_t)in[1]->dims[flat ? 1 : 2] + (past ? (size_t)past->dims[2] : 0);
    a.scale = mlo_node_attr(node, "scale") ? mlo_node_attr_f(node, "scale", 1) : 1 / sqrt((double)a.size);
    a.softcap = mlo_node_attr_f(node, "softcap", 0);
    mask.queries = (int64_t)a.q_length;
    if (mask.lengths && mlo_tensor_count(mask.lengths) != a.batch) {
        status = mlo_error_set(err, MLO_EINVAL, "input 6 does not hold one length for each batch");
        goto out;
    }
    MLO_TRY(gather_heads(in[IN_Q], NULL, a.heads, &q, err));
    MLO_TRY(gather_heads(in[IN_K], past, a.kv_heads, &k, err));
    MLO_TRY(gather_heads(in[IN_V], mlo_op_operand(node, in, IN_PAST_V), a.kv_heads, &v, err));
    y = calloc(a.batch * a.heads * a.q_length * a.v_size + 1, sizeof *y);
    bool wants_scores = node->output_count > 3 && out[3];
    if (wants_scores)
        MLO_TRY(mlo_op_doubles(out[3], &scores, err));
    if (!y) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_attention_run(&a, q, k, v, mask_bias, &mask, y, scores,
                              (int)mlo_node_attr_i(node, "qk_matmul_output_mode", 0), err));
    for (size_t i = 0; i < mlo_tensor_count(out[0]); i++) {
        size_t from = i, d = i % a.v_size, rest = i / a.v_size;
        if (flat) {
            size_t head = rest % a.heads, query = rest / a.heads % a.q_length,
                   b = rest / a.heads / a.q_length;
            from = ((b * a.heads + head) * a.q_length + query) * a.v_size + d;
        }
        mlo_tensor_set_f64(out[0], i, y[from]);
    }
    if (node->output_count > 1 && out[1])
        mlo_op_store_doubles(out[1], k);
    if (node->output_count > 2 && out[2])
        mlo_op_store_doubles(out[2], v);
    if (wants_scores)
        mlo_op_store_doubles(out[3], scores);
out:
    free(q);
    free(k);
    free(v);
    free(y);
    free(scores);
    return status;
}

/* --- RotaryEmbedding -------------------------------------------------------------------------------- */

static enum mlo_status infer_rotary(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, 0), *cosines = mlo_op_in(node, 1), *sines = mlo_op_in(node, 2);
    int64_t rotated = mlo_node_attr_i(node, "rotary_embedding_dim", 0), size = -1;
    bool by_position = mlo_op_in(node, 3) != NULL;
    out[0] = *x;
    if (x->rank < 0)
        goto out;
    if (x->rank != 3 && x->rank != 4) {
        status = mlo_error_set(err, MLO_EINVAL, "input 0 has rank %d, not 3 or 4", x->rank);
        goto out;
    }
    if (x->rank == 3)
        MLO_TRY(
            split_heads(x->dims[2].value, mlo_node_attr_i(node, "num_heads", 0), "num_heads", &size, err));
    else
        size = x->dims[3].value;
    if (rotated < 0 || rotated % 2 || (size >= 0 && (rotated > size || (rotated == 0 && size % 2)))) {
        status = mlo_error_set(err, MLO_EINVAL, "attribute 'rotary_embedding_dim' is %lld, of heads of %lld",
                               (long long)rotated, (long long)size);
        goto out;
    }
    MLO_TRY(mlo_op_want_rank(node, 1, by_position ? 2 : 3, err));
    MLO_TRY(mlo_op_want_rank(node, 2, by_position ? 2 : 3, err));
    MLO_TRY(mlo_op_want_rank(node, 3, 2, err));
    int64_t half = rotated ? rotated / 2 : size < 0 ? -1 : size / 2;
    int64_t length = x->dims[x->rank - 2].value;
    if (x->rank == 3)
        length = x->dims[1].value;
    for (int i = 1; i <= 3; i++) {
        const struct mlo_type *t = mlo_op_in(node, i);
        if (!t || t->rank < 0)
            continue;
        bool fits = i == 3 || !differ(t->dims[t->rank - 1].value, half);
        if (i == 3 || !by_position)
            fits = fits && !differ(t->dims[0].value, x->dims[0].value) && !differ(t->dims[1].value, length);
        if (!fits) {
            status = mlo_error_set(err, MLO_EINVAL, "input %d does not fit the sequences", i);
            goto out;
        }
    }
    if (cosines->rank == 2 && sines->rank == 2 && differ(cosines->dims[0].value, sines->dims[0].value))
        status = mlo_error_set(err, MLO_EINVAL, "the caches differ in length");
out:
    return status;
}

static enum mlo_status eval_rotary(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *x = in[0], *positions = mlo_op_operand(node, in, 3);
    bool interleaved = mlo_node_attr_i(node, "interleaved", 0) != 0, flat = x->rank == 3;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    for (int i = 0; i < 3; i++)
        MLO_TRY(mlo_op_want_float(in[i], err));
    size_t heads = (size_t)(flat ? mlo_node_attr_i(node, "num_heads", 1) : x->dims[1]);
    size_t length = (size_t)x->dims[flat ? 1 : 2];
    size_t size = flat ? (size_t)x->dims[2] / heads : (size_t)x->dims[3];
    size_t rotated = (size_t)mlo_node_attr_i(node, "rotary_embedding_dim", 0);
    rotated = rotated ? rotated : size;
    size_t half = rotated / 2, vectors = size ? mlo_tensor_count(x) / size : 0;
    for (size_t n = 0; n < vectors; n++) {
        size_t token = flat ? n / heads : n / (heads * length) * length + n % length, row = token;
        if (positions) {
            int64_t p = mlo_tensor_get_i64(positions, token);
            if (p < 0 || p >= in[1]->dims[0]) {
                status =
                    mlo_error_set(err, MLO_EINVAL, "position %lld is outside of the caches", (long long)p);
                goto out;
            }
            row = (size_t)p;
        }
        for (size_t i = 0; i < size; i++) {
            size_t pair = interleaved ? i / 2 : i % (half + !half);
            bool second = interleaved ? i % 2 : i >= half;
            if (i >= rotated) {
                mlo_tensor_set_f64(out[0], n * size + i, mlo_tensor_get_f64(x, n * size + i));
                continue;
            }
            double a = mlo_tensor_get_f64(x, n * size + (interleaved ? 2 * pair : pair));
            double b = mlo_tensor_get_f64(x, n * size + (interleaved ? 2 * pair + 1 : pair + half));
            double c = mlo_tensor_get_f64(in[1], row * half + pair);
            double s = mlo_tensor_get_f64(in[2], row * half + pair);
            mlo_tensor_set_f64(out[0], n * size + i, second ? s * a + c * b : c * a - s * b);
        }
    }
out:
    return status;
}

static const struct mlo_op rows[] = {
    {"", "Attention", 23, infer_attention, eval_attention, MLO_OP_PURE, 3, 6, 1, 4},
    {"", "Attention", 24, infer_attention, eval_attention, MLO_OP_PURE, 3, 7, 1, 4},
    {"", "RotaryEmbedding", 23, infer_rotary, eval_rotary, MLO_OP_PURE, 3, 4, 1, 1},
};
const struct mlo_op_family mlo_ops_attention = {rows, MLO_COUNT(rows)};
