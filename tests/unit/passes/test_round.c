/* Rounding of weights: GPTQ and AdaRound on cases that can be checked by hand, and against the papers' own
 * formulas. */
#include "passes/round_impl.h"
#include "tests/unit/passes/passes_helpers.h"

/* A node y = x W of that many inputs, and the Gram matrix of these rows of x. */
struct layer {
    struct mlo_model *model;
    struct mlo_stats stats;
    const struct mlo_gram *gram;
};

static void layer_new(struct layer *l, int64_t inputs, const float *rows, int64_t count)
{
    struct mlo_error err = {0};
    l->model = new_model(13);
    struct mlo_value *y =
        op(l->model, "MatMul", "y", input(l->model, "x", -1, inputs), ramp(l->model, "w", 1, inputs, 1));
    finish(l->model, y);
    mlo_stats_init(&l->stats);
    struct mlo_tensor x = {.dtype = MLO_FLOAT32, .rank = 2, .dims = {count, inputs}, .data = (void *)rows};
    struct mlo_gram *gram = mlo_stats_get_gram(&l->stats, y->producer, true);
    assert_non_null(gram);
    assert_ok(mlo_gram_add(gram, y->producer, &x, NULL, &err));
    l->gram = gram;
}

static void layer_free(struct layer *l)
{
    mlo_stats_clear(&l->stats);
    mlo_model_free(l->model);
}

static const float one = 1.0f;

static void round_as(struct mlo_rounding how, size_t rows, size_t columns, const float *w,
                     const float *scales, const struct mlo_gram *gram, int16_t *q)
{
    struct mlo_error err = {0};
    struct mlo_weight_grid grid = {rows, columns, columns, 1, -7, 7, scales, NULL};
    assert_ok(mlo_round_weights(&how, &grid, w, gram, q, &err));
}

static void round_with(enum mlo_rounding_method method, size_t rows, size_t columns, const float *w,
                       const float *scales, const struct mlo_gram *gram, bool act_order, int16_t *q)
{
    round_as((struct mlo_rounding){method, 0.01, act_order, 0}, rows, columns, w, scales, gram, q);
}

/* Two inputs that are always equal: only the sum of the two weights matters, 0.4 + 0.4. To the nearest it
 * becomes 0; 1 is nearer. */
static void test_round__equal_inputs_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct layer l;
    int16_t q[2];
    layer_new(&l, 2, LIST(1, 1), 1);
    round_with(MLO_ROUND_NEAREST, 1, 2, LIST(0.4f, 0.4f), &one, l.gram, false, q);
    assert_true(q[0] == 0 && q[1] == 0);
    /* The first goes to 0; its error 0.4 moves to the second: 0.4 + 0.4 / 1.01 rounds to 1. */
    round_with(MLO_ROUND_GPTQ, 1, 2, LIST(0.4f, 0.4f), &one, l.gram, false, q);
    assert_true(q[0] == 0 && q[1] == 1);
    round_with(MLO_ROUND_ADAROUND, 1, 2, LIST(0.4f, 0.4f), &one, l.gram, false, q);
    assert_int_equal(q[0] + q[1], 1);
    layer_free(&l);
}

/* Inputs that never meet (a diagonal matrix) leave every weight to itself. */
static void test_round__unrelated_inputs_are_rounded_to_the_nearest(void **state)
{
    MLO_UNUSED(state);
    struct layer l;
    int16_t q[3];
    layer_new(&l, 3, LIST(1, 0, 0, 0, 2, 0, 0, 0, 0), 3); /* the third input is always 0 */
    for (int method = MLO_ROUND_NEAREST; method <= MLO_ROUND_ADAROUND; method++) {
        round_with((enum mlo_rounding_method)method, 1, 3, LIST(0.4f, -1.6f, 9), &one, l.gram, false, q);
        assert_true(q[0] == 0 && q[1] == -2 && q[2] == 7);
    }
    layer_free(&l);
}

/* Input 1 is ten times input 0: with act_order its weight is rounded first, and the other one makes good what
 * that left. The diagonal of [1 10; 10 100] is damped by a hundredth of its mean, 0.505. */
static void test_round__act_order_begins_with_the_largest_input(void **state)
{
    MLO_UNUSED(state);
    struct layer l;
    int16_t q[2];
    layer_new(&l, 2, LIST(1, 10), 1);
    /* In order: 0.4 goes to 0 and leaves 0.4 * 10 / 100.505 to weight 1: 0.44 goes to 0 as well. */
    round_with(MLO_ROUND_GPTQ, 1, 2, LIST(0.4f, 0.4f), &one, l.gram, false, q);
    assert_true(q[0] == 0 && q[1] == 0);
    /* Weight 1 first: 0.4 goes to 0 and leaves 0.4 * 10 / 1.505 to weight 0: 3.06 goes to 3. */
    round_with(MLO_ROUND_GPTQ, 1, 2, LIST(0.4f, 0.4f), &one, l.gram, true, q);
    assert_int_equal(q[1], 0);
    assert_int_equal(q[0], 3);
    layer_free(&l);
}

/* The same in order, and then again: for the 0.4 that weight 1 was left with, weight 0 is best at 0.4 + 0.4 *
 * 10 / 1.505, which goes to 3; for the -2.6 of that, weight 1 stays where 0.4 - 2.6 * 10 / 100.505 goes to,
 * at 0. */
static void test_gptq__a_sweep_looks_back(void **state)
{
    MLO_UNUSED(state);
    struct layer l;
    int16_t q[2];
    layer_new(&l, 2, LIST(1, 10), 1);
    round_as((struct mlo_rounding){MLO_ROUND_GPTQ, 0.01, false, 1}, 1, 2, LIST(0.4f, 0.4f), &one, l.gram, q);
    assert_int_equal(q[0], 3);
    assert_int_equal(q[1], 0);
    layer_free(&l);
}

/* What was pruned stays zero: the 0.4 that the first weight is left with counts 1.6 at the others, 0.8 each,
 * for which the second goes to 1 unless it was none, and the third takes all then. */
static void test_round__zeros_stay_zeros(void **state)
{
    MLO_UNUSED(state);
    struct layer l;
    int16_t q[3];
    layer_new(&l, 3, LIST(4, 1, 1), 1);
    for (int method = MLO_ROUND_GPTQ; method <= MLO_ROUND_ADAROUND; method++)
        for (int64_t sweeps = 0; sweeps < 2; sweeps++) {
            const struct mlo_rounding how = {(enum mlo_rounding_method)method, 0.01, false, sweeps};
            round_as(how, 1, 3, LIST(0.4f, 0.01f, 0.1f), &one, l.gram, q);
            assert_int_equal(q[1], 1);
            round_as(how, 1, 3, LIST(0.4f, 0, 0.1f), &one, l.gram, q);
            assert_true(q[0] == 0 && q[1] == 0 && q[2] == (method == MLO_ROUND_GPTQ ? 2 : 1));
        }
    layer_free(&l);
}

enum { N = 41, ROWS = 5, SAMPLES = 90 };

static void correlated(float *x, uint32_t seed)
{
    for (int s = 0; s < SAMPLES; s++) {
        float common = 0;
        for (int i = 0; i < N; i++) {
            seed = seed * 1664525u + 1013904223u;
            float v = (float)(seed >> 8) / 8388608.0f - 1.0f;
            common = 0.7f * common + v;
            x[s * N + i] = common * (1 + (float)(i % 5));
        }
    }
}

/* The paper's algorithm as it is written: the inverse of H, its Cholesky factor, updates of all that follows.
 */
static void textbook_gptq(const struct mlo_gram *gram, const struct mlo_weight_grid *grid, const float *w0,
                          int16_t *q)
{
    static double h[N][N], inverse[N][2 * N], u[N][N];
    double mean = 0;
    for (int i = 0; i < N; i++)
        mean += mlo_gram_at(gram, 0, i, i) / N;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            h[i][j] = mlo_gram_at(gram, 0, i, j) + (i == j ? 0.01 * mean : 0);
    memset(inverse, 0, sizeof inverse);
    for (int i = 0; i < N; i++) { /* Gauss-Jordan */
        memcpy(inverse[i], h[i], sizeof h[i]);
        inverse[i][N + i] = 1;
    }
    for (int p = 0; p < N; p++) {
        double pivot = inverse[p][p];
        for (int j = 0; j < 2 * N; j++)
            inverse[p][j] /= pivot;
        for (int i = 0; i < N; i++) {
            double f = inverse[i][p];
            for (int j = 0; i != p && j < 2 * N; j++)
                inverse[i][j] -= f * inverse[p][j];
        }
    }
    memset(u, 0, sizeof u);
    for (int i = 0; i < N; i++) /* H^-1 = U^T U */
        for (int j = i; j < N; j++) {
            double sum = inverse[i][N + j];
            for (int k = 0; k < i; k++)
                sum -= u[k][i] * u[k][j];
            u[i][j] = i == j ? sqrt(sum) : sum / u[i][i];
        }
    for (size_t r = 0; r < grid->rows; r++) {
        double w[N];
        for (int i = 0; i < N; i++)
            w[i] = (double)w0[r * N + (size_t)i];
        for (size_t i = 0; i < N; i++) {
            q[r * N + i] = (int16_t)mlo_grid_nearest(grid, r, i, w[i]);
            double e = (w[i] - mlo_grid_value(grid, r, i, q[r * N + i])) / u[i][i];
            for (size_t j = i; j < N; j++)
                w[j] -= e * u[i][j];
        }
    }
}

static void weights_of(float *w, float *scales)
{
    uint32_t seed = 99;
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i < N; i++) {
            seed = seed * 1664525u + 1013904223u;
            w[r * N + i] = ((float)(seed >> 8) / 8388608.0f - 1.0f) * (float)(r + 1);
        }
        scales[r] = (float)(r + 1) / 7.0f;
    }
}

/* Weights, a grid for them, and inputs that go together. */
struct together {
    float x[SAMPLES * N], w[ROWS * N], scales[ROWS];
    int16_t nearest[ROWS * N], gptq[ROWS * N]; /* w rounded */
    struct layer layer;
    struct mlo_weight_grid grid;
};

static const struct mlo_gram *together_new(struct together *t)
{
    correlated(t->x, 7);
    weights_of(t->w, t->scales);
    layer_new(&t->layer, N, t->x, SAMPLES);
    t->grid = (struct mlo_weight_grid){ROWS, N, N, 1, -7, 7, t->scales, NULL};
    round_with(MLO_ROUND_NEAREST, ROWS, N, t->w, t->scales, t->layer.gram, false, t->nearest);
    round_with(MLO_ROUND_GPTQ, ROWS, N, t->w, t->scales, t->layer.gram, false, t->gptq);
    return t->layer.gram;
}

static void test_gptq__chooses_what_the_paper_s_formulas_choose(void **state)
{
    MLO_UNUSED(state);
    static struct together t;
    static int16_t wanted[ROWS * N];
    textbook_gptq(together_new(&t), &t.grid, t.w, wanted);
    assert_memory_equal(t.gptq, wanted, sizeof wanted);
    assert_memory_not_equal(t.gptq, t.nearest, sizeof wanted);
    layer_free(&t.layer);
}

/* e^T H e, H damped by a hundredth of its mean. */
static double damped_error(const struct mlo_weight_grid *grid, size_t r, const float *w,
                           const struct mlo_gram *gram, const int16_t *q)
{
    double mean = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        double e = (double)w[i] - mlo_grid_value(grid, r, (size_t)i, q[i]);
        mean += mlo_gram_at(gram, 0, i, i) / N;
        squares += e * e;
    }
    return mlo_round_error(grid, r, w, gram, 0, q) + 0.01 * mean * squares;
}

/* Behind the sweeps no other integer for any one weight is better, and no row is worse than without. */
static void test_gptq__sweeps_end_where_no_weight_can_be_better(void **state)
{
    MLO_UNUSED(state);
    static struct together t;
    static int16_t q[ROWS * N];
    const struct mlo_gram *gram = together_new(&t);
    round_as((struct mlo_rounding){MLO_ROUND_GPTQ, 0.01, false, 100}, ROWS, N, t.w, t.scales, gram, q);
    double total = 0, total_before = 0;
    for (size_t r = 0; r < ROWS; r++) {
        const float *w = t.w + r * N;
        int16_t *row = q + r * N;
        double best = damped_error(&t.grid, r, w, gram, row);
        double before = damped_error(&t.grid, r, w, gram, t.gptq + r * N);
        total += best;
        total_before += before;
        assert_true(best <= before * (1 + 1e-9));
        for (size_t i = 0; i < N; i++) {
            int16_t chosen = row[i];
            for (row[i] = -7; row[i] <= 7; row[i]++)
                assert_true(damped_error(&t.grid, r, w, gram, row) >= best * (1 - 1e-9));
            row[i] = chosen;
        }
    }
    assert_true(total < total_before);
    layer_free(&t.layer);
}

/* Errors fall from nearest to GPTQ and to AdaRound; AdaRound ends where no single flip helps, on floor or
 * ceiling everywhere. */
static void test_adaround__ends_where_no_flip_helps(void **state)
{
    MLO_UNUSED(state);
    static struct together t;
    static int16_t q[ROWS * N];
    const struct mlo_gram *gram = together_new(&t);
    round_with(MLO_ROUND_ADAROUND, ROWS, N, t.w, t.scales, gram, false, q);
    double of_gptq = 0, of_nearest = 0;
    for (size_t r = 0; r < ROWS; r++) {
        const float *row = t.w + r * N;
        double ada = mlo_round_error(&t.grid, r, row, gram, 0, q + r * N);
        double near = mlo_round_error(&t.grid, r, row, gram, 0, t.nearest + r * N);
        assert_true(ada < 0.5 * near);
        of_gptq += mlo_round_error(&t.grid, r, row, gram, 0, t.gptq + r * N);
        of_nearest += near;
        for (size_t i = 0; i < N; i++) {
            double exact = (double)row[i] / (double)t.scales[r];
            int chosen = q[r * N + i], low = (int)floor(exact), high = (int)ceil(exact);
            assert_true(chosen == low || chosen == high);
            q[r * N + i] = (int16_t)(chosen == low ? high : low);
            if (q[r * N + i] <= 7 && q[r * N + i] >= -7)
                assert_true(mlo_round_error(&t.grid, r, row, gram, 0, q + r * N) >= ada * (1 - 1e-9));
            q[r * N + i] = (int16_t)chosen;
        }
    }
    assert_true(of_gptq < 0.5 * of_nearest);
    layer_free(&t.layer);
}

static void test_cholesky__panels_and_rests(void **state)
{
    MLO_UNUSED(state);
    for (size_t n = 1; n <= 75; n += 1 + n / 3) {
        double *l = calloc(n * n, sizeof *l), *a = calloc(n * n, sizeof *a);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++)
                l[i * n + j] = i == j ? 1 + (double)(i % 3) : (double)((i * 7 + j * 3) % 11) / 16 - 0.3;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++)
                for (size_t k = 0; k <= j; k++)
                    a[i * n + j] += l[i * n + k] * l[j * n + k];
        assert_true(mlo_cholesky(a, n));
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++)
                if (fabs(a[i * n + j] - l[i * n + j]) > 1e-9)
                    fail_msg("n %zu: (%zu, %zu) is %g, not %g", n, i, j, a[i * n + j], l[i * n + j]);
        free(a);
        free(l);
    }
    double indefinite[] = {1, 0, 2, 1};
    assert_false(mlo_cholesky(indefinite, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round__equal_inputs_by_hand),
        cmocka_unit_test(test_round__unrelated_inputs_are_rounded_to_the_nearest),
        cmocka_unit_test(test_round__act_order_begins_with_the_largest_input),
        cmocka_unit_test(test_gptq__a_sweep_looks_back),
        cmocka_unit_test(test_round__zeros_stay_zeros),
        cmocka_unit_test(test_gptq__sweeps_end_where_no_weight_can_be_better),
        cmocka_unit_test(test_gptq__chooses_what_the_paper_s_formulas_choose),
        cmocka_unit_test(test_adaround__ends_where_no_flip_helps),
        cmocka_unit_test(test_cholesky__panels_and_rests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
