/* Sparse weights: SparseGPT against least squares by elimination, patterns on random shapes, what stays dense
 * and why. */
#include "passes/sparsify_impl.h"
#include "tests/unit/passes/passes_helpers.h"

static uint32_t next_seed(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}
static double uniform(uint32_t *seed) /* [-1, 1) */
{
    return (double)next_seed(seed) / 8388608.0 - 1;
}

/* --- problems: rows of correlated inputs, random weights ----------------------------------------- */

enum { N_MAX = 24, ROWS_MAX = 12 };
struct problem {
    size_t n, rows;
    struct mlo_model *model;
    struct mlo_stats stats;
    const struct mlo_gram *gram;
    size_t order[N_MAX];
    double *l, added;
    double h[N_MAX * N_MAX]; /* as the factor's: damped */
    double w[N_MAX * ROWS_MAX], made[N_MAX * ROWS_MAX];
};

static void problem_new(struct problem *p, size_t n, size_t rows, uint32_t seed)
{
    enum { SAMPLES = 200 };
    struct mlo_error err = {0};
    const struct mlo_gram_damping how = {.damp = 0.01};
    *p = (struct problem){.n = n, .rows = rows};
    float *x = calloc(SAMPLES * n, sizeof *x);
    assert_non_null(x);
    for (size_t s = 0; s < SAMPLES; s++) {
        double common = uniform(&seed), slow = 0;
        for (size_t i = 0; i < n; i++) {
            slow = 0.7 * slow + uniform(&seed);
            x[s * n + i] = (float)(common + slow);
        }
    }
    p->model = new_model(13);
    struct mlo_value *y = op(p->model, "MatMul", "y", input(p->model, "x", -1, (int64_t)n),
                             ramp(p->model, "w", 1, (int64_t)n, 1));
    finish(p->model, y);
    mlo_stats_init(&p->stats);
    struct mlo_tensor t = {.dtype = MLO_FLOAT32, .rank = 2, .dims = {SAMPLES, (int64_t)n}, .data = x};
    struct mlo_gram *gram = mlo_stats_get_gram(&p->stats, y->producer, true);
    assert_non_null(gram);
    assert_ok(mlo_gram_add(gram, y->producer, &t, NULL, &err));
    p->gram = gram;
    free(x);
    for (size_t i = 0; i < n; i++)
        p->order[i] = n - 1 - i; /* another order than the matrix's */
    assert_ok(mlo_gram_factor(gram, 0, &how, p->order, &p->l, &p->added, &err));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            p->h[i * n + j] = mlo_gram_at(gram, 0, (int64_t)MLO_MIN(p->order[i], p->order[j]),
                                          (int64_t)MLO_MAX(p->order[i], p->order[j])) +
                              (i == j ? p->added : 0);
    for (size_t i = 0; i < n * rows; i++)
        p->w[i] = (double)(float)uniform(&seed);
}

static void problem_free(struct problem *p)
{
    free(p->l);
    mlo_stats_clear(&p->stats);
    mlo_model_free(p->model);
}

/* (w - made)^T H (w - made) of one row, or of all (row < 0), by the definition. */
static double error_of(const struct problem *p, const double *made, int row)
{
    double total = 0;
    for (size_t r = 0; r < p->rows; r++) {
        if (row >= 0 && (size_t)row != r)
            continue;
        for (size_t i = 0; i < p->n; i++)
            for (size_t j = 0; j < p->n; j++)
                total += (p->w[i * p->rows + r] - made[i * p->rows + r]) * p->h[i * p->n + j] *
                         (p->w[j * p->rows + r] - made[j * p->rows + r]);
    }
    return total;
}

/* The least error that weights with these zeros can have: H_FF (v - w_F) = H_FS w_S by elimination. */
static double least_error(const struct problem *p, const double *made, size_t row, double *best)
{
    size_t n = p->n, free_count = 0, keep[N_MAX];
    double a[N_MAX][N_MAX + 1];
    for (size_t i = 0; i < n; i++)
        if (made[i * p->rows + row] != 0)
            keep[free_count++] = i;
    for (size_t i = 0; i < free_count; i++) {
        for (size_t j = 0; j < free_count; j++)
            a[i][j] = p->h[keep[i] * n + keep[j]];
        a[i][free_count] = 0;
        for (size_t j = 0; j < n; j++)
            if (made[j * p->rows + row] == 0)
                a[i][free_count] += p->h[keep[i] * n + j] * p->w[j * p->rows + row];
    }
    for (size_t c = 0; c < free_count; c++) {
        size_t pivot = c;
        for (size_t r = c + 1; r < free_count; r++)
            if (fabs(a[r][c]) > fabs(a[pivot][c]))
                pivot = r;
        for (size_t j = 0; j <= free_count; j++) {
            double t = a[c][j];
            a[c][j] = a[pivot][j];
            a[pivot][j] = t;
        }
        for (size_t r = 0; r < free_count; r++) {
            double f = r == c ? 0 : a[r][c] / a[c][c];
            for (size_t j = c; j <= free_count; j++)
                a[r][j] -= f * a[c][j];
        }
    }
    for (size_t i = 0; i < n; i++)
        best[i * p->rows + row] = 0;
    for (size_t i = 0; i < free_count; i++)
        best[keep[i] * p->rows + row] = p->w[keep[i] * p->rows + row] + a[i][free_count] / a[i][i];
    return error_of(p, best, (int)row);
}

static double sparse(struct problem *p, bool gpt, bool groups, uint64_t zeros, size_t block)
{
    struct mlo_error err = {0};
    struct sparse_quota quota = {.total = p->n * p->rows, .zeros = zeros};
    const struct sparse_rows rows = {.n = p->n,
                                     .rows = p->rows,
                                     .w = p->w,
                                     .made = p->made,
                                     .groups = groups,
                                     .block = block,
                                     .quota = &quota};
    if (gpt)
        assert_ok(mlo_sparse_gpt(&rows, p->l, &err));
    else
        assert_ok(mlo_sparse_magnitude(&rows, &err));
    return error_of(p, p->made, -1);
}

static void test_sparsegpt__is_least_squares_where_zeros_come_first(void **state)
{
    MLO_UNUSED(state);
    for (uint32_t seed = 1; seed <= 20; seed++) {
        struct problem p;
        double best[N_MAX * ROWS_MAX];
        problem_new(&p, 16, 5, seed);
        for (size_t i = 0; i < 8 * p.rows; i++) /* the first half goes: all others make that good at once */
            p.w[i] *= 0x1p-20;
        double error = sparse(&p, true, false, 8 * p.rows, 16), least = 0;
        for (size_t i = 0; i < p.n * p.rows; i++)
            assert_int_equal(p.made[i] == 0, i < 8 * p.rows);
        for (size_t r = 0; r < p.rows; r++)
            least += least_error(&p, p.made, r, best);
        for (size_t i = 0; i < p.n * p.rows; i++)
            if (!(fabs(p.made[i] - best[i]) <= 1e-6))
                fail_msg("seed %u: weight %zu is %.9g, and by elimination %.9g", seed, i, p.made[i], best[i]);
        assert_true(error >= least * (1 - 1e-9) - 1e-12);
        problem_free(&p);
    }
}

/* Never below what least squares can reach with the same zeros, and below magnitude's on nearly all. */
static void test_sparsegpt__lies_between_least_squares_and_magnitude(void **state)
{
    MLO_UNUSED(state);
    enum { PROBLEMS = 100 };
    static const struct {
        bool groups;
        size_t block;
    } HOW[] = {{false, 4}, {false, 128}, {true, 8}};
    for (size_t h = 0; h < MLO_COUNT(HOW); h++) {
        int better = 0;
        for (uint32_t seed = 1; seed <= PROBLEMS; seed++) {
            struct problem p;
            double best[N_MAX * ROWS_MAX], least = 0, energy;
            struct mlo_error err = {0};
            problem_new(&p, 24, 8, seed * 977);
            uint64_t zeros = p.n * p.rows / 2, count = 0;
            double magnitude = sparse(&p, false, HOW[h].groups, zeros, HOW[h].block);
            double gpt = sparse(&p, true, HOW[h].groups, zeros, HOW[h].block);
            better += gpt < magnitude;
            for (size_t i = 0; i < p.n * p.rows; i++)
                count += p.made[i] == 0;
            assert_int_equal(count, zeros);
            for (size_t r = 0; r < p.rows; r++)
                least += least_error(&p, p.made, r, best);
            assert_true(gpt >= least * (1 - 1e-9));
            for (size_t i = 0; i < p.n * p.rows; i++)
                p.made[i] = p.w[i] - p.made[i];
            assert_ok(mlo_sparse_energy(p.l, p.n, p.rows, p.made, &energy, &err));
            assert_true(fabs(energy - gpt) <= 1e-9 * gpt);
            problem_free(&p);
        }
        if (better < 98)
            fail_msg("SparseGPT errs less than magnitude on %d of %d problems only", better, PROBLEMS);
    }
}

/* --- the least of many --------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void test_mark_least__is_what_sorting_says(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    uint32_t seed = 5;
    for (int round = 0; round < 2000; round++) {
        double scores[64], sorted[64];
        uint8_t marks[64];
        size_t n = 1 + next_seed(&seed) % 64, kinds = 1 + next_seed(&seed) % 70, marked = 0;
        uint64_t count = next_seed(&seed) % (n + 3);
        for (size_t i = 0; i < n; i++)
            sorted[i] = scores[i] = (double)(next_seed(&seed) % kinds);
        qsort(sorted, n, sizeof *sorted, ascending);
        assert_ok(mlo_sparse_mark_least(scores, n, count, marks, &err));
        for (size_t i = 0; i < n; i++)
            marked += marks[i];
        assert_int_equal(marked, MLO_MIN(count, (uint64_t)n));
        bool open = false; /* of equal ones, those in front */
        for (size_t i = 0; i < n && count > 0 && count < n; i++) {
            double last = sorted[count - 1];
            assert_true(marks[i] ? scores[i] <= last : scores[i] >= last);
            if (scores[i] == last) {
                assert_false(open && marks[i]);
                open = open || !marks[i];
            }
        }
    }
}

static void test_quota__gives_every_part_its_share(void **state)
{
    MLO_UNUSED(state);
    uint32_t seed = 3;
    for (int round = 0; round < 500; round++) {
        uint64_t total = 1 + next_seed(&seed) % 5000, given = 0, seen = 0;
        struct sparse_quota quota = {.total = total, .zeros = next_seed(&seed) % (total + 1)};
        while (seen < total) {
            uint64_t most = 1 + next_seed(&seed) % 300, count = MLO_MIN(most, total - seen);
            uint64_t now = mlo_sparse_quota_take(&quota, count);
            seen += count;
            given += now;
            assert_true(now <= count && given == quota.zeros * seen / total);
        }
        assert_int_equal(given, quota.zeros);
    }
}

/* --- the pass ------------------------------------------------------------------------------------ */

static struct mlo_value *noise_of(struct mlo_model *m, const char *name, uint32_t seed, int rank,
                                  const int64_t *dims)
{
    struct mlo_value *v = ramp_of(m, name, 1, rank, dims);
    for (size_t i = 0; i < mlo_tensor_count(v->constant); i++)
        ((float *)v->constant->data)[i] = (float)uniform(&seed);
    return v;
}
#define noise(model, name, seed, ...) noise_of(model, name, seed, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))

/* What the nodes read on random inputs with a mean, for their matrices. */
struct watch {
    struct mlo_model *model;
    struct mlo_stats *stats;
};
static void watch_value(void *arg, const char *name, const struct mlo_tensor *t)
{
    struct watch *w = arg;
    struct mlo_error err = {0};
    for (int n = 0; n < w->model->graph->node_count; n++) {
        const struct mlo_node *node = w->model->graph->nodes[n];
        int64_t groups, dim;
        if (strcmp(node->inputs[0]->name, name) != 0 || mlo_gram_shape(node, &groups, &dim))
            continue;
        struct mlo_gram *gram = mlo_stats_get_gram(w->stats, node, true);
        assert_non_null(gram);
        assert_ok(mlo_gram_add(gram, node, t, NULL, &err));
    }
}
static void watch_model(struct mlo_model *m, struct mlo_stats *stats)
{
    mlo_stats_init(stats);
    for (uint32_t s = 0; s < 6; s++) {
        struct mlo_tensor x[4] = {0}, y = {0};
        struct watch w = {m, stats};
        make_inputs(m, 8, s + 1, x);
        for (size_t i = 0; i < mlo_tensor_count(&x[0]); i++)
            ((float *)x[0].data)[i] += 0.5f;
        evaluate(m, x, watch_value, &w, &y);
        mlo_tensor_clear(&x[0]);
        mlo_tensor_clear(&y);
    }
    mlo_stats_sort(stats);
}

static void assert_two_of_four(const struct mlo_node *node)
{
    const struct mlo_tensor *w = mlo_node_const(node, 1);
    const float *x = w->data;
    bool conv = mlo_node_is(node, "Conv"), by_rows = mlo_node_is(node, "Gemm"); /* transB */
    size_t outs = (size_t)w->dims[conv || by_rows ? 0 : 1], ins = (size_t)w->dims[conv || by_rows ? 1 : 0];
    size_t positions = mlo_tensor_count(w) / outs / ins;
    for (size_t o = 0; o < outs; o++)
        for (size_t p = 0; p < positions; p++)
            for (size_t i = 0; i < ins; i += 4) {
                int zeros = 0;
                for (size_t k = i; k < i + 4; k++)
                    zeros += x[conv || by_rows ? (o * ins + k) * positions + p : k * outs + o] == 0;
                assert_int_equal(zeros, 2);
            }
}

static struct mlo_model *model_of(size_t channels, size_t outs, size_t kernel, uint32_t seed)
{
    int64_t c = (int64_t)channels, o = (int64_t)outs, k = (int64_t)kernel;
    struct mlo_model *m = new_model(17);
    struct mlo_value *a =
        op(m, "Conv", "a", input(m, "x", -1, 2 * c, 4, 4), noise(m, "wa", seed, 2 * o, c, k, k));
    assert_true(mlo_node_set_i(a->producer, "group", 2));
    set_ints(a, "pads", k / 2, k / 2, k / 2, k / 2);
    struct mlo_value *g = op(m, "GlobalAveragePool", "g", op(m, "Relu", "r", a));
    struct mlo_value *f = op(m, "Flatten", "f", g);
    struct mlo_value *d =
        op(m, "Gemm", "d", f, noise(m, "wd", seed + 1, 12, 2 * o), noise(m, "bd", seed + 2, 12));
    assert_true(mlo_node_set_i(d->producer, "transB", 1));
    finish(m, op(m, "MatMul", "y", d, noise(m, "wy", seed + 3, 12, 3)));
    return m;
}

static void test_two_of_four__holds_in_every_group(void **state)
{
    MLO_UNUSED(state);
    static const char *const CRITERIA[] = {"magnitude", "sparsegpt"};
    for (uint32_t seed = 1; seed <= 12; seed++)
        for (size_t c = 0; c < 2; c++) {
            struct mlo_error err = {0};
            struct mlo_stats stats;
            char options[160];
            struct mlo_model *m =
                model_of(4 * (1 + seed % 3), 2 * (1 + seed % 4), seed % 2 ? 3 : 1, seed * 31);
            watch_model(m, &stats);
            snprintf(options, sizeof options,
                     "{\"pattern\": \"2:4\", \"min_weights\": 0, \"block\": %u, \"criterion\": \"%s\"}",
                     4 * (1 + seed % 5), CRITERIA[c]);
            assert_ok(run_pass(m, "sparsify", options, &stats, NULL, &err));
            assert_two_of_four(node_named(m, "a_node"));
            if (seed % 2 == 1) /* else the Gemm has no inputs in fours */
                assert_two_of_four(node_named(m, "d_node"));
            assert_two_of_four(node_named(m, "y_node"));
            mlo_stats_clear(&stats);
            mlo_model_free(m);
        }
}

static json_t *sparsify(struct mlo_model *m, const char *options, const struct mlo_stats *stats)
{
    struct mlo_error err = {0};
    struct mlo_pass_context ctx = {.notes = json_array()};
    json_t *given = json_loads(options, 0, NULL), *resolved, *report;
    assert_ok(mlo_options_resolve(mlo_sparsify_options, given, &resolved, &err));
    ctx.options = resolved;
    assert_ok(mlo_sparsify_model(m, resolved, stats, &ctx, &report, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    assert_ok(mlo_graph_verify(m->graph, &err));
    json_decref(ctx.notes);
    json_decref(given);
    json_decref(resolved);
    return report;
}

static const json_t *row_of(const json_t *report, const char *list, const char *node)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(report, list), i, row)
    {
        if (strcmp(mlo_json_str(row, "node", ""), node) == 0)
            return row;
    }
    return NULL;
}

/* The report's errors are those of the outputs; SparseGPT's are lower, and means stay where a bias takes
 * them. */
static void test_sparsify__reports_what_happened_to_the_outputs(void **state)
{
    MLO_UNUSED(state);
    struct mlo_stats stats;
    struct mlo_model *m = model_of(8, 6, 3, 9), *n = model_of(8, 6, 3, 9);
    watch_model(m, &stats);
    json_t *by_gpt = sparsify(m, "{\"min_weights\": 0}", &stats);
    json_t *by_size = sparsify(n, "{\"min_weights\": 0, \"criterion\": \"magnitude\"}", &stats);
    static const char *const NODES[] = {"a_node", "d_node", "y_node"};
    for (size_t i = 0; i < MLO_COUNT(NODES); i++) {
        const json_t *a = row_of(by_gpt, "layers", NODES[i]), *b = row_of(by_size, "layers", NODES[i]);
        assert_string_equal(mlo_json_str(a, "criterion", ""), "sparsegpt");
        assert_string_equal(mlo_json_str(b, "criterion", ""), "magnitude");
        assert_int_equal(mlo_json_i64(a, "zeros", -1), mlo_json_i64(a, "weights", 0) / 2);
        assert_int_equal(mlo_json_i64(b, "zeros", -1), mlo_json_i64(a, "weights", 0) / 2);
        assert_true(mlo_json_f64(a, "output_error", 9) < mlo_json_f64(b, "output_error", 0));
        assert_true(mlo_json_f64(a, "weight_error", 0) > mlo_json_f64(b, "weight_error", 9));
        assert_int_equal(mlo_json_bool(a, "bias_corrected", false), i < 2); /* a MatMul alone has none */
    }
    /* magnitude's number by the definition, on the MatMul: rows of 12 inputs */
    const struct mlo_gram *gram = mlo_stats_find_gram(&stats, node_named(n, "y_node"));
    struct mlo_model *was = model_of(8, 6, 3, 9);
    const float *w = mlo_node_const(node_named(was, "y_node"), 1)->data;
    const float *v = mlo_node_const(node_named(n, "y_node"), 1)->data;
    double error = 0, energy = 0;
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < 12; i++)
            for (int j = 0; j < 12; j++) {
                double g = mlo_gram_at(gram, 0, MLO_MIN(i, j), MLO_MAX(i, j));
                double wi = (double)w[i * 3 + r], wj = (double)w[j * 3 + r];
                error += (wi - (double)v[i * 3 + r]) * g * (wj - (double)v[j * 3 + r]);
                energy += wi * (g - gram->sum[i] * gram->sum[j] / (double)gram->rows) * wj;
            }
    double told = mlo_json_f64(row_of(by_size, "layers", "y_node"), "output_error", 0);
    if (!(fabs(told - error / energy) <= 1e-6 * told))
        fail_msg("the report says %g, and the outputs %g", told, error / energy);
    /* with its bias, the Gemm's mean output is what it was */
    const struct mlo_gram *read = mlo_stats_find_gram(&stats, node_named(m, "d_node"));
    const float *d = mlo_node_const(node_named(was, "d_node"), 1)->data;
    const float *e = mlo_node_const(node_named(m, "d_node"), 1)->data;
    const float *b = mlo_node_const(node_named(was, "d_node"), 2)->data;
    const float *c = mlo_node_const(node_named(m, "d_node"), 2)->data;
    for (int r = 0; r < 12; r++) {
        double before = (double)b[r], after = (double)c[r];
        for (int i = 0; i < 12; i++) {
            before += (double)d[r * 12 + i] * read->sum[i] / (double)read->rows;
            after += (double)e[r * 12 + i] * read->sum[i] / (double)read->rows;
        }
        assert_true(fabs(before - after) < 1e-5);
    }
    json_decref(by_gpt);
    json_decref(by_size);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
    mlo_model_free(n);
    mlo_model_free(was);
}

static void test_magnitude__global_takes_the_smallest_of_all(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(17);
    struct mlo_value *a = op(m, "MatMul", "a", input(m, "x", -1, 4),
                             floats(m, "wa", LIST(0.1f, -0.2f, 0.3f, 0.4f, 0.5f, -0.6f, 0.7f, 9), 4, 2));
    finish(m, op(m, "MatMul", "y", a, floats(m, "wy", LIST(1, 0.25f, 3, -4), 2, 2)));
    json_t *report = sparsify(m, "{\"min_weights\": 0, \"scope\": \"global\", \"sparsity\": \"50%\"}", NULL);
    /* 0.1 0.2 0.25 0.3 0.4 0.5 */
    assert_int_equal(mlo_json_i64(row_of(report, "layers", "a_node"), "zeros", -1), 5);
    assert_int_equal(mlo_json_i64(row_of(report, "layers", "y_node"), "zeros", -1), 1);
    assert_true(json_is_null(json_object_get(row_of(report, "layers", "y_node"), "output_error")));
    const float *w = mlo_node_const(node_named(m, "a_node"), 1)->data;
    assert_true(w[4] == 0 && w[5] == -0.6f && w[6] == 0.7f && w[7] == 9);
    assert_true(((const float *)mlo_node_const(node_named(m, "y_node"), 1)->data)[1] == 0);
    json_decref(report);
    mlo_model_free(m);
}

static void test_sparsify__says_where_it_cannot_be_faster(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(17);
    struct mlo_value *a = op(m, "MatMul", "a", input(m, "x", -1, 32), noise(m, "wa", 1, 32, 64));
    finish(m, op(m, "MatMul", "y", a, noise(m, "wy", 2, 64, 16)));
    for (int groups = 0; groups < 2; groups++) {
        json_t *report =
            sparsify(m, groups ? "{\"min_weights\": 0, \"pattern\": \"2:4\"}" : "{\"min_weights\": 0}", NULL);
        size_t i, possible = 0;
        json_t *row;
        json_array_foreach(json_object_get(report, "speed"), i, row)
        {
            bool can = strcmp(mlo_json_str(row, "faster", ""), "possible") == 0;
            possible += can;
            if (strcmp(mlo_json_str(row, "target", ""), "cpu") == 0)
                assert_false(can);
            if (can &&
                strcmp(mlo_json_str(row, "type", ""), "int8") == 0) { /* 64 x 16 is no multiple of 32 */
                assert_int_equal(mlo_json_i64(row, "layers", 0), 1);
                assert_true(fabs(mlo_json_f64(row, "multiply_adds_share", 0) - 2.0 / 3) < 1e-9);
            }
        }
        assert_int_equal(possible, groups ? 2 : 0);
        json_decref(report);
    }
    mlo_model_free(m);
}

static void refused(const char *options, const char *part, const char *where)
{
    struct mlo_error err = {0};
    struct mlo_model *m = model_of(4, 6, 1, 3);
    assert_int_equal(run_pass(m, "sparsify", options, NULL, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, part);
    if (where)
        assert_contains(err.where, where);
    mlo_model_free(m);
}

static void test_sparsify__bad_input_is_named(void **state)
{
    MLO_UNUSED(state);
    refused("{\"sparsity\": \"100%\"}", "'100%' is no share", "option 'sparsity'");
    refused("{\"sparsity\": \"0\"}", "is no share", "option 'sparsity'");
    refused("{\"sparsity\": \"half\"}", "is no share", "option 'sparsity'");
    refused("{\"sparsity\": \"70%\", \"pattern\": \"2:4\"}", "half of the weights", "option 'sparsity'");
    refused("{\"pattern\": \"2:4\", \"scope\": \"global\"}", "same share", "option 'scope'");
    refused("{\"block\": 6}", "multiple of 4", "option 'block'");
    refused("{\"min_weights\": 0, \"criterion\": \"sparsegpt\"}", "node 'a_node': its input was not observed",
            "option 'criterion'");
    refused("{\"min_weights\": 1000000}", "node 'a_node': it has few weights", NULL);
    refused("{\"min_weights\": 0, \"exclude\": [\"a_nod\"]}", "a_nod", NULL);
    /* what stays dense, and what has no data, is in the report */
    struct mlo_model *m = model_of(3, 5, 3, 3);
    struct mlo_stats stats;
    watch_model(m, &stats);
    for (size_t i = 0; i < stats.gram_count; i++)
        if (strncmp(stats.grams[i].key, "d|", 2) == 0)
            stats.grams[i].rows = 0;
    json_t *report =
        sparsify(m, "{\"min_weights\": 0, \"pattern\": \"2:4\", \"exclude\": [\"d_node\"]}", &stats);
    assert_contains(mlo_json_str(row_of(report, "left", "a_node"), "why", ""), "3 channels");
    assert_contains(mlo_json_str(row_of(report, "left", "d_node"), "why", ""), "excluded");
    const json_t *y = row_of(report, "layers", "y_node");
    assert_string_equal(mlo_json_str(y, "criterion", ""), "magnitude");
    assert_contains(mlo_json_str(y, "why", ""), "not observed");
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

/* Two that share weights still do; a NaN leaves a layer dense. */
static void test_sparsify__shared_weights_stay_shared(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(17);
    struct mlo_value *w = noise(m, "w", 4, 8, 8), *bad = noise(m, "bad", 5, 8, 4);
    ((float *)bad->constant->data)[3] = NAN;
    struct mlo_value *a = op(m, "MatMul", "a", input(m, "x", -1, 8), w);
    struct mlo_value *b = op(m, "MatMul", "b", a, w);
    finish(m, op(m, "MatMul", "y", b, bad));
    struct mlo_stats stats;
    watch_model(m, &stats);
    json_t *report = sparsify(m, "{\"min_weights\": 0}", &stats);
    assert_ptr_equal(node_named(m, "a_node")->inputs[1], node_named(m, "b_node")->inputs[1]);
    assert_string_equal(mlo_json_str(row_of(report, "layers", "b_node"), "shares", ""), "a_node");
    assert_int_equal(mlo_json_i64(report, "weights", 0), 64);
    assert_int_equal(mlo_json_i64(report, "zeros", 0), 32);
    assert_contains(mlo_json_str(row_of(report, "left", "y_node"), "why", ""), "NaN");
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

/* No bias takes the means of weights that another layer has too, with other inputs and its own bias. */
static void test_sparsify__shared_weights_leave_biases_alone(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(17);
    struct mlo_value *w = noise(m, "w", 4, 8, 8);
    struct mlo_value *a = op(m, "Gemm", "a", input(m, "x", -1, 8), w, noise(m, "ba", 6, 8));
    struct mlo_value *b = op(m, "Gemm", "b", op(m, "Relu", "r", a), w, noise(m, "bb", 7, 8));
    finish(m, op(m, "Gemm", "y", b, noise(m, "wy", 8, 8, 4), noise(m, "by", 9, 4)));
    struct mlo_stats stats;
    watch_model(m, &stats);
    const struct mlo_tensor *before = mlo_node_const(node_named(m, "a_node"), 2);
    json_t *report = sparsify(m, "{\"min_weights\": 0}", &stats);
    assert_string_equal(mlo_json_str(row_of(report, "layers", "b_node"), "shares", ""), "a_node");
    assert_false(mlo_json_bool(row_of(report, "layers", "a_node"), "bias_corrected", true));
    assert_false(mlo_json_bool(row_of(report, "layers", "b_node"), "bias_corrected", true));
    assert_true(mlo_json_bool(row_of(report, "layers", "y_node"), "bias_corrected", false));
    assert_ptr_equal(mlo_node_const(node_named(m, "a_node"), 2), before);
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sparsegpt__is_least_squares_where_zeros_come_first),
        cmocka_unit_test(test_sparsegpt__lies_between_least_squares_and_magnitude),
        cmocka_unit_test(test_mark_least__is_what_sorting_says),
        cmocka_unit_test(test_quota__gives_every_part_its_share),
        cmocka_unit_test(test_two_of_four__holds_in_every_group),
        cmocka_unit_test(test_sparsify__reports_what_happened_to_the_outputs),
        cmocka_unit_test(test_magnitude__global_takes_the_smallest_of_all),
        cmocka_unit_test(test_sparsify__says_where_it_cannot_be_faster),
        cmocka_unit_test(test_sparsify__bad_input_is_named),
        cmocka_unit_test(test_sparsify__shared_weights_stay_shared),
        cmocka_unit_test(test_sparsify__shared_weights_leave_biases_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
