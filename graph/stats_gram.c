/* Gram matrices of what weighted nodes multiply their weights with. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/ops/ops_impl.h"
#include "graph/stats_impl.h"

enum { CHUNK = 32, TILE = 4, LANES = 4 };

/* --- which rows -------------------------------------------------------------------------------- */

static bool weight_dims(const struct mlo_node *node, int *rank, int64_t *dims)
{
    const struct mlo_value *w = mlo_node_input(node, 1);
    if (!w || !mlo_type_static(&w->type, dims))
        return false;
    *rank = w->type.rank;
    return true;
}

const char *mlo_gram_shape(const struct mlo_node *node, int64_t *groups, int64_t *dim)
{
    int64_t dims[MLO_MAX_RANK];
    int rank;
    bool conv = mlo_node_is(node, "Conv"), gemm = mlo_node_is(node, "Gemm");
    *groups = 1;
    *dim = 0;
    if (!conv && !gemm && !mlo_node_is(node, "MatMul"))
        return "it is no Conv, Gemm or MatMul";
    if (!weight_dims(node, &rank, dims))
        return "the shape of its weights is not known";
    if (!conv) {
        if (rank != 2)
            return "its weights are no matrix";
        if (gemm && mlo_node_attr_i(node, "transA", 0) != 0)
            return "it transposes its input";
        *dim = dims[gemm && mlo_node_attr_i(node, "transB", 0) != 0];
        return *dim > 0 ? NULL : "its weights are empty";
    }
    if (rank < 3 || rank > 5)
        return "its kernel has no one to three dimensions";
    *groups = mlo_node_attr_i(node, "group", 1);
    if (*groups < 1 || dims[0] % *groups != 0)
        return "its groups do not divide its channels";
    *dim = 1;
    for (int i = 1; i < rank; i++)
        *dim *= dims[i];
    return *dim > 0 ? NULL : "its weights are empty";
}

static void print_list(struct mlo_buf *out, const struct mlo_node *node, const char *attr)
{
    size_t count;
    const int64_t *list = mlo_node_attr_ints(node, attr, &count);
    mlo_buf_printf(out, " %s", attr);
    for (size_t i = 0; i < count; i++)
        mlo_buf_printf(out, ",%lld", (long long)list[i]);
}

/* Input 0 as it was before it was quantized. */
static const struct mlo_value *float_input(const struct mlo_node *node)
{
    const struct mlo_value *v = node->inputs[0];
    const struct mlo_node *dq = v->producer;
    const struct mlo_node *q =
        dq && mlo_node_is(dq, "DequantizeLinear") && dq->inputs[0] ? dq->inputs[0]->producer : NULL;
    return q && mlo_node_is(q, "QuantizeLinear") && q->inputs[0] ? q->inputs[0] : v;
}

char *mlo_gram_key(const struct mlo_node *node, char out[MLO_GRAM_KEY])
{
    int64_t dims[MLO_MAX_RANK] = {0};
    int rank = 0;
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_buf_printf(&text, "%s|", float_input(node)->name);
    if (mlo_node_is(node, "Conv") && weight_dims(node, &rank, dims)) {
        for (int i = 2; i < rank; i++)
            mlo_buf_printf(&text, "%s%lld", i > 2 ? "x" : "", (long long)dims[i]);
        print_list(&text, node, "strides");
        print_list(&text, node, "dilations");
        print_list(&text, node, "pads");
        mlo_buf_printf(&text, " %s group %lld", mlo_node_attr_s(node, "auto_pad", "NOTSET"),
                       (long long)mlo_node_attr_i(node, "group", 1));
    }
    snprintf(out, MLO_GRAM_KEY, "%s", mlo_buf_str(&text));
    mlo_buf_clear(&text);
    return out;
}

/* --- entries ----------------------------------------------------------------------------------- */

static size_t triangle(size_t dim)
{
    return dim * (dim + 1) / 2;
}

size_t mlo_gram_numbers(const struct mlo_gram *gram)
{
    return gram->full ? triangle((size_t)gram->dim) : (size_t)gram->dim;
}

static void entry_free(struct mlo_gram *gram)
{
    free((char *)gram->key);
    free(gram->sum);
    free(gram->matrix);
}

void mlo_stats_clear_grams(struct mlo_stats *stats)
{
    for (size_t i = 0; i < stats->gram_count; i++)
        entry_free(&stats->grams[i]);
    free(stats->grams);
    stats->grams = NULL;
    stats->gram_count = stats->gram_cap = 0;
}

static struct mlo_gram *find(const struct mlo_stats *stats, const char *key)
{
    for (size_t i = 0; i < stats->gram_count; i++)
        if (strcmp(stats->grams[i].key, key) == 0)
            return &stats->grams[i];
    return NULL;
}

struct mlo_gram *mlo_stats_make_gram(struct mlo_stats *stats, const char *key, int64_t groups, int64_t dim,
                                     bool full)
{
    struct mlo_gram *found = find(stats, key);
    if (found)
        return found->groups == groups && found->dim == dim && found->full == full ? found : NULL;
    if (stats->gram_count == stats->gram_cap) {
        size_t cap = stats->gram_cap ? stats->gram_cap * 2 : 16;
        struct mlo_gram *grown = realloc(stats->grams, cap * sizeof *grown);
        if (!grown)
            return NULL;
        stats->grams = grown;
        stats->gram_cap = cap;
    }
    struct mlo_gram fresh = {.key = strdup(key), .groups = groups, .dim = dim, .full = full};
    fresh.sum = calloc((size_t)groups * (size_t)dim, sizeof *fresh.sum);
    fresh.matrix = calloc((size_t)groups * mlo_gram_numbers(&fresh), sizeof *fresh.matrix);
    if (!fresh.key || !fresh.sum || !fresh.matrix) {
        entry_free(&fresh);
        return NULL;
    }
    stats->grams[stats->gram_count] = fresh;
    return &stats->grams[stats->gram_count++];
}

struct mlo_gram *mlo_stats_get_gram(struct mlo_stats *stats, const struct mlo_node *node, bool full)
{
    char key[MLO_GRAM_KEY];
    int64_t groups, dim;
    if (mlo_gram_shape(node, &groups, &dim))
        return NULL;
    return mlo_stats_make_gram(stats, mlo_gram_key(node, key), groups, dim, full && dim <= MLO_GRAM_DIM_MAX);
}

const struct mlo_gram *mlo_stats_find_gram(const struct mlo_stats *stats, const struct mlo_node *node)
{
    char key[MLO_GRAM_KEY];
    return stats ? find(stats, mlo_gram_key(node, key)) : NULL;
}

double mlo_gram_at(const struct mlo_gram *gram, int64_t g, int64_t i, int64_t j)
{
    const double *m = gram->matrix + (size_t)g * mlo_gram_numbers(gram);
    if (!gram->full)
        return i == j ? m[i] : 0;
    size_t row = (size_t)MLO_MIN(i, j), column = (size_t)MLO_MAX(i, j);
    return m[row * (size_t)gram->dim - row * (row + 1) / 2 + column];
}

/* --- adding rows ------------------------------------------------------------------------------- */

/* Rows of one group, [count][dim] as double, and the upper triangle they go into. */
struct product {
    struct mlo_gram *gram;
    const double *rows; /* [groups][CHUNK][dim] */
    size_t count, tiles;
};

typedef double lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double))));

/* Adds X^T X for rows [i, i + TILE) of the triangle. Every element is a chain over the rows of X in their
 * order. Products are exact, so a fused multiply-add has the same bits as two steps. */
static inline __attribute__((always_inline)) void add_tile(double *m, size_t dim, const double *x,
                                                           size_t count, size_t i)
{
    size_t ni = MLO_MIN((size_t)TILE, dim - i);
    double *row[TILE]; /* row[a][j] is element (i + a, j) */
    for (size_t a = 0; a < ni; a++)
        row[a] = m + (i + a) * dim - (i + a) * (i + a + 1) / 2;
    size_t j = i;
    for (; j < dim && j < i + ni; j++) /* the corner on the diagonal */
        for (size_t a = 0; a <= j - i; a++) {
            double sum = row[a][j];
            for (size_t r = 0; r < count; r++)
                sum += x[r * dim + i + a] * x[r * dim + j];
            row[a][j] = sum;
        }
    if (ni == TILE)
        for (; j + 2 * LANES <= dim; j += 2 * LANES) {
            lanes sum[TILE][2];
            for (size_t a = 0; a < TILE; a++) {
                sum[a][0] = *(lanes *)(row[a] + j);
                sum[a][1] = *(lanes *)(row[a] + j + LANES);
            }
            for (size_t r = 0; r < count; r++) {
                const double *at = x + r * dim;
                lanes b0 = *(const lanes *)(at + j), b1 = *(const lanes *)(at + j + LANES);
                for (size_t a = 0; a < TILE; a++) {
                    sum[a][0] += at[i + a] * b0;
                    sum[a][1] += at[i + a] * b1;
                }
            }
            for (size_t a = 0; a < TILE; a++) {
                *(lanes *)(row[a] + j) = sum[a][0];
                *(lanes *)(row[a] + j + LANES) = sum[a][1];
            }
        }
    for (; j < dim; j++)
        for (size_t a = 0; a < ni; a++) {
            double sum = row[a][j];
            for (size_t r = 0; r < count; r++)
                sum += x[r * dim + i + a] * x[r * dim + j];
            row[a][j] = sum;
        }
}

static void add_plain(double *m, size_t dim, const double *x, size_t count, size_t i)
{
    add_tile(m, dim, x, count, i);
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void add_avx2(double *m, size_t dim, const double *x, size_t count,
                                                         size_t i)
{
    add_tile(m, dim, x, count, i);
}
#endif

static void add_tiles(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct product *p = arg;
    size_t dim = (size_t)p->gram->dim;
    void (*add)(double *, size_t, const double *, size_t, size_t) = add_plain;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        add = add_avx2;
#endif
    for (size_t u = begin; u < end; u++) {
        size_t g = u / p->tiles, t = u % p->tiles;
        t = t % 2 ? p->tiles - 1 - t / 2 : t / 2; /* long and short rows in turns: even shares */
        add(p->gram->matrix + g * triangle(dim), dim, p->rows + g * CHUNK * dim, p->count, t * TILE);
    }
}

static void add_chunk(struct mlo_gram *gram, const double *rows, size_t count, struct mlo_pool *pool)
{
    size_t dim = (size_t)gram->dim, groups = (size_t)gram->groups;
    struct product p = {gram, rows, count, (dim + TILE - 1) / TILE};
    for (size_t g = 0; g < groups; g++)
        for (size_t r = 0; r < count; r++) {
            const double *x = rows + (g * CHUNK + r) * dim;
            for (size_t i = 0; i < dim; i++)
                gram->sum[g * dim + i] += x[i];
            for (size_t i = 0; !gram->full && i < dim; i++)
                gram->matrix[g * dim + i] += x[i] * x[i];
        }
    if (gram->full)
        mlo_pool_run(pool, groups * p.tiles, MLO_MAX((size_t)1, 65536 / (dim * CHUNK)), add_tiles, &p);
    gram->rows += count;
}

/* --- windows ----------------------------------------------------------------------------------- */

struct source {
    const float *x;
    size_t groups, per_group; /* channels */
    struct mlo_window w;      /* always three dims; those in front are 1 */
    size_t positions;         /* windows of one image */
    size_t image;             /* elements */
    size_t dim;               /* of a row, what is behind it not counted */
    const float *y;           /* outputs that go behind the rows; NULL: none */
    size_t outs;              /* of a group */
};

/* The window at a position, as rows of the groups. False: it holds NaN or infinity. */
static bool read_window(const struct source *s, size_t position, double *rows, size_t dim)
{
    const struct mlo_window *w = &s->w;
    size_t at = position % s->positions;
    const float *image = s->x + position / s->positions * s->image;
    int64_t o[3], start[3];
    for (int d = 2; d >= 0; d--) {
        o[d] = (int64_t)(at % (size_t)w->out[d]);
        at /= (size_t)w->out[d];
        start[d] = o[d] * w->stride[d] - w->pad_begin[d];
    }
    bool finite = true;
    for (size_t g = 0; g < s->groups; g++) {
        double *out = rows + g * CHUNK * dim;
        for (size_t c = 0; c < s->per_group; c++) {
            const float *plane =
                image + (g * s->per_group + c) * (size_t)w->in[0] * (size_t)w->in[1] * (size_t)w->in[2];
            for (int64_t a = 0; a < w->kernel[0]; a++)
                for (int64_t b = 0; b < w->kernel[1]; b++)
                    for (int64_t k = 0; k < w->kernel[2]; k++) {
                        int64_t p[3] = {start[0] + a * w->dilation[0], start[1] + b * w->dilation[1],
                                        start[2] + k * w->dilation[2]};
                        bool inside = p[0] >= 0 && p[1] >= 0 && p[2] >= 0 && p[0] < w->in[0] &&
                                      p[1] < w->in[1] && p[2] < w->in[2];
                        float v = inside ? plane[(p[0] * w->in[1] + p[1]) * w->in[2] + p[2]] : 0.0f;
                        finite &= isfinite(v) != 0;
                        *out++ = v;
                    }
        }
    }
    return finite;
}

static bool read_row(const struct source *s, size_t position, double *rows)
{
    bool finite = true;
    for (size_t i = 0; i < s->dim; i++) {
        rows[i] = s->x[position * s->dim + i];
        finite &= isfinite(rows[i]) != 0;
    }
    return finite;
}

/* The outputs of that row or window, behind it; `dim` is that of both together. */
static bool read_outputs(const struct source *s, size_t position, double *rows, size_t dim)
{
    bool finite = true;
    for (size_t g = 0; g < s->groups; g++)
        for (size_t o = 0; o < s->outs; o++) {
            size_t channel = g * s->outs + o;
            size_t at = s->positions
                            ? (position / s->positions * s->groups * s->outs + channel) * s->positions +
                                  position % s->positions
                            : position * s->outs + channel;
            rows[g * CHUNK * dim + s->dim + o] = s->y[at];
            finite &= isfinite(s->y[at]) != 0;
        }
    return finite;
}

/* Window geometry of a sample, with dims of 1 in front so that there are three. */
static enum mlo_status source_init(struct source *s, const struct mlo_gram *gram, size_t outs,
                                   const struct mlo_node *node, const struct mlo_tensor *sample,
                                   size_t *total, struct mlo_error *err)
{
    int64_t dims[MLO_MAX_RANK];
    int rank;
    size_t count = mlo_tensor_count(sample), dim = (size_t)gram->dim - outs;
    *s = (struct source){.x = sample->data, .groups = (size_t)gram->groups, .dim = dim, .outs = outs};
    *total = count / dim;
    if (!mlo_node_is(node, "Conv")) {
        if (sample->rank < 1 || sample->dims[sample->rank - 1] != (int64_t)dim)
            return mlo_error_set(err, MLO_EINVAL, "the input's last dim is not the %zu of the weights", dim);
        return MLO_OK;
    }
    if (!weight_dims(node, &rank, dims) || sample->rank != rank || sample->dims[1] != dims[1] * gram->groups)
        return mlo_error_set(err, MLO_EINVAL, "the input does not fit the weights");
    enum mlo_status status = mlo_window_init(&s->w, node, rank - 2, sample->dims + 2, dims + 2, err);
    if (status != MLO_OK)
        return status;
    mlo_window_widen(&s->w);
    s->per_group = (size_t)dims[1];
    s->positions = 1;
    s->image = (size_t)sample->dims[1];
    for (int d = 0; d < 3; d++) {
        s->positions *= (size_t)MLO_MAX(s->w.out[d], 0);
        s->image *= (size_t)s->w.in[d];
    }
    *total = (size_t)sample->dims[0] * s->positions;
    return MLO_OK;
}

/* At most `most` rows of a sample, spread evenly; with `y`, each followed by its outputs. */
static enum mlo_status add_rows(struct mlo_gram *gram, const struct mlo_node *node,
                                const struct mlo_tensor *sample, const struct mlo_tensor *y, size_t outs,
                                size_t most, struct mlo_pool *pool, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct source s;
    size_t total, dim = (size_t)gram->dim, filled = 0;
    bool conv = mlo_node_is(node, "Conv");
    double *rows = calloc((size_t)gram->groups * CHUNK * dim, sizeof *rows);
    if (!rows)
        return mlo_error_nomem(err);
    MLO_TRY(source_init(&s, gram, outs, node, sample, &total, err));
    if (y && mlo_tensor_count(y) != total * s.groups * outs) {
        status = mlo_error_set(err, MLO_EINVAL, "%zu outputs for %zu rows of %zu", mlo_tensor_count(y), total,
                               s.groups * outs);
        goto out;
    }
    s.y = y ? y->data : NULL;
    size_t take = MLO_MIN(total, most);
    for (size_t t = 0; t < take; t++) {
        size_t position = t * total / take;
        double *to = rows + filled * dim; /* a group's rows are CHUNK * dim further */
        bool finite = conv ? read_window(&s, position, to, dim) : read_row(&s, position, to);
        if (finite && (!y || read_outputs(&s, position, to, dim)))
            filled++;
        else
            gram->skipped++;
        if (filled == CHUNK) {
            add_chunk(gram, rows, filled, pool);
            filled = 0;
        }
    }
    if (filled)
        add_chunk(gram, rows, filled, pool);
out:
    free(rows);
    return status;
}

enum mlo_status mlo_gram_add(struct mlo_gram *gram, const struct mlo_node *node,
                             const struct mlo_tensor *sample, struct mlo_pool *pool, struct mlo_error *err)
{
    return add_rows(gram, node, sample, NULL, 0, MLO_GRAM_ROWS, pool, err);
}

/* --- pairs ------------------------------------------------------------------------------------- */

const char *mlo_gram_outs(const struct mlo_node *node, int64_t *outs)
{
    int64_t dims[MLO_MAX_RANK], groups, dim;
    int rank;
    const char *why = mlo_gram_shape(node, &groups, &dim);
    *outs = 0;
    if (why || !weight_dims(node, &rank, dims))
        return why ? why : "the shape of its weights is not known";
    if (mlo_node_is(node, "Conv"))
        *outs = dims[0] / groups;
    else
        *outs = dims[mlo_node_is(node, "Gemm") && mlo_node_attr_i(node, "transB", 0) ? 0 : 1];
    return *outs > 0 ? NULL : "its weights are empty";
}

enum mlo_status mlo_gram_pair_init(struct mlo_gram *pair, const struct mlo_node *node, struct mlo_error *err)
{
    int64_t groups, dim, outs;
    const char *why = mlo_gram_shape(node, &groups, &dim);
    *pair = (struct mlo_gram){0};
    if (!why)
        why = mlo_gram_outs(node, &outs);
    if (why)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "node '%s': %s", node->name, why);
    *pair = (struct mlo_gram){.key = strdup(node->name), .groups = groups, .dim = dim + outs, .full = true};
    pair->sum = calloc((size_t)groups * (size_t)pair->dim, sizeof *pair->sum);
    pair->matrix = calloc((size_t)groups * triangle((size_t)pair->dim), sizeof *pair->matrix);
    return pair->key && pair->sum && pair->matrix ? MLO_OK : mlo_error_nomem(err);
}

void mlo_gram_pair_clear(struct mlo_gram *pair)
{
    entry_free(pair);
    *pair = (struct mlo_gram){0};
}

enum mlo_status mlo_gram_pair_add(struct mlo_gram *pair, const struct mlo_node *node,
                                  const struct mlo_tensor *x, const struct mlo_tensor *y, size_t rows,
                                  struct mlo_pool *pool, struct mlo_error *err)
{
    int64_t outs;
    const char *why = mlo_gram_outs(node, &outs);
    if (why)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "node '%s': %s", node->name, why);
    return add_rows(pair, node, x, y, (size_t)outs, rows, pool, err);
}

enum mlo_status mlo_stats_merge_grams(struct mlo_stats *into, const struct mlo_stats *more,
                                      struct mlo_error *err)
{
    for (size_t i = 0; i < more->gram_count; i++) {
        const struct mlo_gram *b = &more->grams[i];
        const struct mlo_gram *known = find(into, b->key);
        if (known && (known->groups != b->groups || known->dim != b->dim || known->full != b->full))
            return mlo_error_set(err, MLO_EINVAL, "the matrices of '%s' differ in shape", b->key);
        if (known && known->rows + known->skipped && b->rows + b->skipped) {
            mlo_error_set(err, MLO_EINVAL, "two parts of the matrix of '%s' cannot be added to the bit",
                          b->key);
            mlo_error_hint(err, "observe what GPTQ, AdaRound and other uses of matrices need in one go");
            return MLO_EINVAL;
        }
        struct mlo_gram *a = mlo_stats_make_gram(into, b->key, b->groups, b->dim, b->full);
        if (!a)
            return mlo_error_nomem(err);
        size_t sums = (size_t)b->groups * (size_t)b->dim, numbers = (size_t)b->groups * mlo_gram_numbers(b);
        for (size_t k = 0; k < sums; k++)
            a->sum[k] += b->sum[k];
        for (size_t k = 0; k < numbers; k++)
            a->matrix[k] += b->matrix[k];
        a->rows += b->rows;
        a->skipped += b->skipped;
    }
    return MLO_OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct mlo_gram *)a)->key, ((const struct mlo_gram *)b)->key);
}

void mlo_stats_sort_grams(struct mlo_stats *stats)
{
    if (stats->gram_count)
        qsort(stats->grams, stats->gram_count, sizeof stats->grams[0], by_key);
}
