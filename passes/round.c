#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/round_impl.h"

const char *const mlo_rounding_names[] = {"nearest", "gptq", "adaround", NULL};

void mlo_rounding_read(const json_t *options, struct mlo_rounding *out)
{
    const char *name = mlo_json_str(options, "rounding", "nearest");
    *out = (struct mlo_rounding){.damp = mlo_json_f64(options, "damp", 0.01),
                                 .act_order = mlo_json_bool(options, "act_order", false),
                                 .sweeps = mlo_json_i64(options, "sweeps", 0)};
    for (int i = 0; mlo_rounding_names[i]; i++)
        if (strcmp(mlo_rounding_names[i], name) == 0)
            out->method = (enum mlo_rounding_method)i;
}

int mlo_grid_nearest(const struct mlo_weight_grid *grid, size_t row, size_t column, double w)
{
    size_t at = row * grid->blocks + column / grid->block;
    double q = rint(w / (double)grid->scales[at]) + (grid->zeros ? grid->zeros[at] : 0);
    return (int)fmin(fmax(q, grid->low), grid->high);
}

double mlo_grid_value(const struct mlo_weight_grid *grid, size_t row, size_t column, int q)
{
    size_t at = row * grid->blocks + column / grid->block;
    return (double)(q - (grid->zeros ? grid->zeros[at] : 0)) * (double)grid->scales[at];
}

double mlo_round_error(const struct mlo_weight_grid *grid, size_t row, const float *w,
                       const struct mlo_gram *gram, int64_t g, const int16_t *q)
{
    double total = 0;
    for (size_t i = 0; i < grid->columns; i++) {
        double ei = (double)w[i] - mlo_grid_value(grid, row, i, q[i]), sum = 0;
        for (size_t j = 0; j < i; j++)
            sum += mlo_gram_at(gram, g, (int64_t)j, (int64_t)i) *
                   ((double)w[j] - mlo_grid_value(grid, row, j, q[j]));
        total += ei * (2 * sum + mlo_gram_at(gram, g, (int64_t)i, (int64_t)i) * ei);
    }
    return total;
}

enum mlo_status mlo_round_weights(const struct mlo_rounding *how, const struct mlo_weight_grid *grid,
                                  const float *w, const struct mlo_gram *gram, int16_t *q,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (how->method == MLO_ROUND_NEAREST || !gram || !gram->full || gram->rows == 0) {
        for (size_t r = 0; r < grid->rows; r++)
            for (size_t c = 0; c < grid->columns; c++)
                q[r * grid->columns + c] =
                    (int16_t)mlo_grid_nearest(grid, r, c, (double)w[r * grid->columns + c]);
        return MLO_OK;
    }
    if ((size_t)gram->dim != grid->columns || grid->rows % (size_t)gram->groups != 0)
        return mlo_error_set(err, MLO_EINTERNAL, "a matrix of %lld for weights of %zu columns",
                             (long long)gram->dim, grid->columns);
    size_t share = grid->rows / (size_t)gram->groups;
    for (int64_t g = 0; g < gram->groups && status == MLO_OK; g++)
        status = (how->method == MLO_ROUND_GPTQ ? mlo_round_gptq : mlo_round_adaround)(
            how, grid, (size_t)g * share, share, w, gram, g, q, err);
    return status;
}

/* --- linear algebra ---------------------------------------------------------------------------- */

enum { PANEL = 32, ROWS = 4, LANES = 4 };
typedef double lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double))));

static inline __attribute__((always_inline)) void add_scaled(double *y, const double *x, double factor,
                                                             size_t count)
{
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        *(lanes *)(y + i) += factor * *(const lanes *)(x + i);
    for (; i < count; i++)
        y[i] += factor * x[i];
}

/* a[i][j] -= sum over k of l[i][k] t[k][j] for rows [i, i + ROWS) and j in [first, i]: elements are chains in
 * the order of k, so vectors of any width have the same bits (there is no fused multiply-add). */
static inline __attribute__((always_inline)) void update_rows(double *a, size_t n, size_t i, size_t first,
                                                              const double *const *l, const double *t,
                                                              size_t depth)
{
    size_t j = first, end = i + 1;
    for (; j + 2 * LANES <= end; j += 2 * LANES) {
        lanes sum[ROWS][2];
        for (size_t r = 0; r < ROWS; r++) {
            sum[r][0] = *(lanes *)(a + (i + r) * n + j);
            sum[r][1] = *(lanes *)(a + (i + r) * n + j + LANES);
        }
        for (size_t k = 0; k < depth; k++) {
            lanes t0 = *(const lanes *)(t + k * n + j), t1 = *(const lanes *)(t + k * n + j + LANES);
            for (size_t r = 0; r < ROWS; r++) {
                sum[r][0] -= l[r][k] * t0;
                sum[r][1] -= l[r][k] * t1;
            }
        }
        for (size_t r = 0; r < ROWS; r++) {
            *(lanes *)(a + (i + r) * n + j) = sum[r][0];
            *(lanes *)(a + (i + r) * n + j + LANES) = sum[r][1];
        }
    }
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = j; c <= i + r; c++) {
            double sum = a[(i + r) * n + c];
            for (size_t k = 0; k < depth; k++)
                sum -= l[r][k] * t[k * n + c];
            a[(i + r) * n + c] = sum;
        }
}

static void add_scaled_plain(double *y, const double *x, double factor, size_t count)
{
    add_scaled(y, x, factor, count);
}
static void update_rows_plain(double *a, size_t n, size_t i, size_t first, const double *const *l,
                              const double *t, size_t depth)
{
    update_rows(a, n, i, first, l, t, depth);
}
#ifdef __x86_64__
__attribute__((target("avx2"))) static void add_scaled_avx2(double *y, const double *x, double factor,
                                                            size_t count)
{
    add_scaled(y, x, factor, count);
}
__attribute__((target("avx2"))) static void update_rows_avx2(double *a, size_t n, size_t i, size_t first,
                                                             const double *const *l, const double *t,
                                                             size_t depth)
{
    update_rows(a, n, i, first, l, t, depth);
}
#endif

static bool wide(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

void mlo_add_scaled(double *y, const double *x, double factor, size_t count)
{
#ifdef __x86_64__
    if (wide()) {
        add_scaled_avx2(y, x, factor, count);
        return;
    }
#endif
    add_scaled_plain(y, x, factor, count);
}

/* Columns [p, p + depth) of the factor, in place; the trailing part has their predecessors taken off. */
static bool factor_panel(double *a, size_t n, size_t p, size_t depth)
{
    for (size_t j = p; j < p + depth; j++) {
        double d = a[j * n + j];
        for (size_t k = p; k < j; k++)
            d -= a[j * n + k] * a[j * n + k];
        if (!(d > 0))
            return false;
        d = sqrt(d);
        a[j * n + j] = d;
        for (size_t i = j + 1; i < n; i++) {
            double sum = a[i * n + j];
            for (size_t k = p; k < j; k++)
                sum -= a[i * n + k] * a[j * n + k];
            a[i * n + j] = sum / d;
        }
    }
    return true;
}

bool mlo_cholesky(double *a, size_t n)
{
    bool ok = true;
    double *t = malloc((PANEL * n + 1) * sizeof *t); /* the panel, transposed */
    void (*update)(double *, size_t, size_t, size_t, const double *const *, const double *, size_t) =
        update_rows_plain;
#ifdef __x86_64__
    if (wide())
        update = update_rows_avx2;
#endif
    for (size_t p = 0; ok && t && p < n; p += PANEL) {
        size_t depth = MLO_MIN((size_t)PANEL, n - p), rest = p + depth;
        ok = factor_panel(a, n, p, depth);
        for (size_t i = rest; i < n; i++)
            for (size_t k = 0; k < depth; k++)
                t[k * n + i] = a[i * n + p + k];
        size_t i = rest;
        for (; ok && i + ROWS <= n; i += ROWS) {
            const double *l[ROWS];
            for (size_t r = 0; r < ROWS; r++)
                l[r] = a + (i + r) * n + p;
            update(a, n, i, rest, l, t, depth);
        }
        for (; ok && i < n; i++)
            for (size_t c = rest; c <= i; c++)
                for (size_t k = 0; k < depth; k++)
                    a[i * n + c] -= a[i * n + p + k] * t[k * n + c];
    }
    free(t);
    return ok && t;
}
