/* A student next to its teacher: every number against one that was computed by hand or in another way, and
 * what is refused. Both models hand on their input; the dataset has an array for each. */
#include "tests/unit/measure/fixture.h"

#include <math.h>

#include "pipeline/measure/distill_impl.h"

enum { CLASSES = 3, SAMPLES = 600 };

struct pair {
    struct mlo_model *model[2];
    struct mlo_dataset *data[2];
    struct mlo_distill_side side[2];
};

static struct mlo_model *pass_on(int64_t width, const char *output)
{
    struct mlo_error err = {0};
    struct mlo_model *m = shell_model();
    struct mlo_value *x = shell_input(m, "x", MLO_FLOAT32, 2, DIMS(-1, width));
    struct mlo_value *y = mlo_graph_add_value(m->graph, output, NULL);
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "Identity", output, &x, 1, &y, 1));
    assert_ok(mlo_graph_add_output(m->graph, y, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    return m;
}

struct given {
    int64_t samples, width[2];
    const double *scores[2];
    const int64_t *labels; /* or */
    const double *targets; /* of width[0] */
    const int64_t *slice;
};

static void open_pair(struct pair *p, const struct given *g)
{
    static const char *const maps[2][1] = {{"x=t"}, {"x=s"}};
    struct mlo_error err = {0};
    struct mlo_tensor t[4] = {make_tensor(MLO_FLOAT32, 2, DIMS(g->samples, g->width[0]), g->scores[0]),
                              make_tensor(MLO_FLOAT32, 2, DIMS(g->samples, g->width[1]), g->scores[1])};
    struct mlo_npz_array arrays[4] = {{"t", &t[0]}, {"s", &t[1]}};
    size_t count = 2;
    *p = (struct pair){0};
    if (g->labels) {
        t[count] = make_tensor(MLO_INT64, 1, DIMS(g->samples), NULL);
        memcpy(t[count].data, g->labels, (size_t)g->samples * sizeof *g->labels);
        arrays[count] = (struct mlo_npz_array){"y", &t[count]};
        count++;
    } else if (g->targets) {
        t[count] = make_tensor(MLO_FLOAT32, 2, DIMS(g->samples, g->width[0]), g->targets);
        arrays[count] = (struct mlo_npz_array){"y", &t[count]};
        count++;
    }
    if (g->slice) {
        t[count] = make_tensor(MLO_INT64, 1, DIMS(g->samples), NULL);
        memcpy(t[count].data, g->slice, (size_t)g->samples * sizeof *g->slice);
        arrays[count] = (struct mlo_npz_array){"site", &t[count]};
        count++;
    }
    assert_ok(mlo_npz_write(in_scratch("pair.npz"), arrays, count, &err));
    for (int s = 0; s < 2; s++) {
        const struct mlo_dataset_options options = {.map = maps[s], .map_count = 1};
        p->model[s] = pass_on(g->width[s], s ? "student_out" : "teacher_out");
        assert_ok(mlo_dataset_open(in_scratch("pair.npz"), &options, &p->data[s], &err));
        p->side[s] = (struct mlo_distill_side){.model = p->model[s], .dataset = p->data[s]};
    }
    for (size_t i = 0; i < count; i++)
        mlo_tensor_clear(&t[i]);
}

static void close_pair(struct pair *p)
{
    for (int s = 0; s < 2; s++) {
        mlo_dataset_close(p->data[s]);
        mlo_model_free(p->model[s]);
    }
}

static json_t *compare(struct pair *p, const struct mlo_distill_options *o)
{
    struct mlo_error err = {0};
    json_t *out = NULL;
    assert_ok(mlo_distill(&p->side[0], &p->side[1], o, &out, &err));
    return out;
}

static const json_t *named(const json_t *list, const char *key, const char *value)
{
    const json_t *row;
    size_t i;
    json_array_foreach((json_t *)list, i, row) if (strcmp(mlo_json_str(row, key, ""), value) == 0) return row;
    return NULL;
}

static double distance(const json_t *report, const char *metric)
{
    return mlo_json_f64(named(json_object_get(report, "distances"), "metric", metric), "value", NAN);
}

static const json_t *at(const json_t *o, const char *a, const char *b, const char *c)
{
    return json_object_get(json_object_get(json_object_get(o, a), b), c);
}

static void refuses(struct pair *p, const struct mlo_distill_options *o, const char *says)
{
    struct mlo_error err = {0};
    json_t *out = NULL;
    assert_int_equal(mlo_distill(&p->side[0], &p->side[1], o, &out, &err), MLO_EINVAL);
    assert_null(out);
    if (!strstr(err.message, says))
        fail_msg("'%s' does not say '%s'", err.message, says);
}

/* --- pieces --------------------------------------------------------------------------------------------- */

static void test_log_softmax__hand_computed(void **state)
{
    double out[3];
    (void)state;
    /* exp: 1, 2, 5 of 8 */
    assert_true(mlo_log_softmax(VALUES(0, log(2), log(5)), 3, 1, false, out));
    assert_float_equal(exp(out[0]), 0.125, 1e-15);
    assert_float_equal(exp(out[2]), 0.625, 1e-15);
    /* at T = 2 the square roots: 1, 2, 3 of 6 */
    assert_true(mlo_log_softmax(VALUES(0, log(4), log(9)), 3, 2, false, out));
    assert_float_equal(exp(out[1]), 1 / 3.0, 1e-15);
    /* probabilities, tempered alike; a 0 stands as 1e-30 */
    assert_true(mlo_log_softmax(VALUES(1 / 14.0, 4 / 14.0, 9 / 14.0), 3, 2, true, out));
    assert_float_equal(exp(out[2]), 0.5, 1e-15);
    assert_true(mlo_log_softmax(VALUES(1, 0, 0), 3, 1, true, out));
    assert_float_equal(out[1], log(1e-30), 1e-9);
    /* large scores do not overflow, and what is masked has no share */
    assert_true(mlo_log_softmax(VALUES(1e6, 1e6, -INFINITY), 3, 1, false, out));
    assert_float_equal(exp(out[0]), 0.5, 1e-15);
    assert_true(exp(out[2]) == 0);
    assert_false(mlo_log_softmax(VALUES(0, NAN, 0), 3, 1, false, out));
    assert_false(mlo_log_softmax(VALUES(0, INFINITY, 0), 3, 1, false, out));
    assert_false(mlo_log_softmax(VALUES(-INFINITY, -INFINITY, -INFINITY), 3, 1, false, out));
}

static void test_divergence__hand_computed(void **state)
{
    const double p[] = {log(0.5), log(0.25), log(0.25)}, q[] = {log(0.25), log(0.25), log(0.5)};
    double kl, entropy;
    (void)state;
    mlo_divergence(p, q, 3, &kl, &entropy);
    assert_float_equal(kl, 0.25 * log(2), 1e-15); /* 0.5 log 2 + 0 - 0.25 log 2 */
    assert_float_equal(entropy, 0.5 * log(4) + 0.25 * log(4) + 0.25 * log(2), 1e-15);
    mlo_divergence(p, p, 3, &kl, &entropy);
    assert_true(kl == 0);
    assert_float_equal(entropy, 1.5 * log(2), 1e-15);
    mlo_divergence(VALUES(0, -INFINITY), VALUES(-INFINITY, 0), 2, &kl, &entropy);
    assert_float_equal(kl, -log(1e-30), 1e-9);
}

static void test_calibration__hand_computed(void **state)
{
    const double confidence[] = {0.55, 0.9, 0.6, 1.0, 0.45};
    const bool right[] = {true, true, false, true, false};
    uint16_t bin[5];
    (void)state;
    /* four bins of width 0.25: (0.25, 0.5] has 0.45, (0.5, 0.75] has 0.55 and 0.6, (0.75, 1] has 0.9 and 1 */
    mlo_bins_of_width(confidence, 5, 4, bin);
    const uint16_t of_width[] = {2, 3, 2, 3, 1};
    assert_memory_equal(bin, of_width, sizeof bin);
    assert_float_equal(mlo_calibration_error(confidence, right, bin, 5, 4), (0.45 + 0.15 + 0.1) / 5, 1e-15);
    /* two of equal mass: 0.45 0.55 0.6 | 0.9 1.0 */
    assert_true(mlo_bins_of_mass(confidence, 5, 2, bin));
    const uint16_t of_mass[] = {0, 1, 0, 1, 0};
    assert_memory_equal(bin, of_mass, sizeof bin);
    assert_float_equal(mlo_calibration_error(confidence, right, bin, 5, 2), (0.6 + 0.1) / 5, 1e-15);
    /* the edges of a bin belong to it from above; more bins than samples leave some empty */
    mlo_bins_of_width(VALUES(0.5, 0.500001, 1e-9, 1), 4, 2, bin);
    assert_int_equal(bin[0], 0);
    assert_int_equal(bin[1], 1);
    assert_int_equal(bin[2], 0);
    assert_int_equal(bin[3], 1);
    assert_true(mlo_bins_of_mass(confidence, 2, 15, bin));
    assert_true(bin[0] == 0 && bin[1] == 7);
}

static void test_holm__the_textbook_case(void **state)
{
    double p[] = {0.01, 0.04, 0.03, 0.005}, ties[] = {0.5, 0.9};
    (void)state;
    assert_true(mlo_holm(p, 4));
    assert_float_equal(p[3], 0.02, 1e-15);
    assert_float_equal(p[0], 0.03, 1e-15);
    assert_float_equal(p[2], 0.06, 1e-15);
    assert_float_equal(p[1], 0.06, 1e-15); /* not below the one before it */
    assert_true(mlo_holm(ties, 2));
    assert_true(ties[0] == 1 && ties[1] == 1);
    assert_true(mlo_holm(NULL, 0));
}

static void test_paired_interval__is_that_of_the_estimates(void **state)
{
    double a[50] = {0}, b[50] = {0}, low, high, wide_low, wide_high;
    struct mlo_estimate e;
    (void)state;
    for (int i = 0; i < 9; i++)
        *(i < 7 ? &a[i] : &b[i]) = 1;
    mlo_estimate_paired(a, b, 50, true, &e);
    mlo_paired_interval(7, 2, 50, 0.05, &low, &high);
    assert_float_equal(low, e.low, 1e-12);
    assert_float_equal(high, e.high, 1e-12);
    mlo_paired_interval(7, 2, 50, 0.05 / 10, &wide_low, &wide_high);
    assert_true(wide_low < low && wide_high > high);
}

/* --- the whole ------------------------------------------------------------------------------------------ */

static const double FOUR_T[] = {2, 1, 0, 0, 3, 0, 0, 1, 2, 1, 0, 0},
                    FOUR_S[] = {1, 2, 0, 0, 3, 0, 0, 2, 1, 1, 0, 0};
static const int64_t FOUR_Y[] = {0, 1, 1, 0};

static void test_distill__four_samples(void **state)
{
    struct pair p;
    const struct given g = {4, {3, 3}, {FOUR_T, FOUR_S}, FOUR_Y, NULL, NULL};
    const struct mlo_distill_options o = {.temperature = 2, .bins = 5};
    (void)state;
    open_pair(&p, &g);
    json_t *r = compare(&p, &o);
    /* classes: teacher 0 1 2 0, student 1 1 1 0, labels 0 1 1 0 */
    const json_t *top1 = named(json_object_get(r, "metrics"), "metric", "top1");
    assert_float_equal(mlo_json_f64(json_object_get(top1, "teacher"), "value", 9), 0.75, 0);
    assert_float_equal(mlo_json_f64(json_object_get(top1, "student"), "value", 9), 0.75, 0);
    assert_float_equal(mlo_json_f64(json_object_get(top1, "difference"), "value", 9), 0, 0);
    assert_float_equal(mlo_json_f64(top1, "mcnemar_p", 9), 1, 0);
    assert_float_equal(distance(r, "agreement"), 0.5, 0);
    const json_t *outcomes = json_object_get(r, "outcomes");
    assert_int_equal(mlo_json_i64(outcomes, "both_right", 9), 2);
    assert_int_equal(mlo_json_i64(outcomes, "lost", 9), 1);
    assert_int_equal(mlo_json_i64(outcomes, "gained", 9), 1);
    assert_int_equal(mlo_json_i64(outcomes, "both_wrong", 9), 0);
    /* two samples have the softened rows (e, sqrt e, 1) / z in another order: KL = (e - sqrt e) / 2z each */
    double z = exp(1) + exp(0.5) + 1, each = (exp(1) - exp(0.5)) * 0.5 / z;
    assert_float_equal(distance(r, "kl"), 2 * each / 4, 1e-12);
    assert_float_equal(distance(r, "mse"), 2 * (2.0 / 3) / 4, 1e-12);
    assert_float_equal(distance(r, "cosine"), (4 / 5.0 + 1 + 4 / 5.0 + 1) / 4, 1e-12);
    /* classes: class 1 has the samples 1 and 2, of which the student alone has one */
    const json_t *one = json_array_get(json_object_get(r, "per_class"), 1);
    assert_int_equal(mlo_json_i64(one, "n", 9), 2);
    assert_float_equal(mlo_json_f64(one, "teacher", 9), 0.5, 0);
    assert_float_equal(mlo_json_f64(one, "student", 9), 1, 0);
    assert_float_equal(mlo_json_f64(json_object_get(one, "difference"), "value", 9), 0.5, 0);
    assert_int_equal(mlo_json_i64(json_array_get(json_object_get(r, "per_class"), 2), "n", 9), 0);
    assert_float_equal(mlo_json_f64(json_object_get(json_object_get(r, "worst"), "class"), "value", 9), -0.5,
                       0);
    /* where they disagree */
    const json_t *confusion = json_object_get(r, "confusion"),
                 *first = json_array_get(json_object_get(confusion, "list"), 0);
    assert_int_equal(mlo_json_i64(confusion, "samples", 9), 2);
    assert_int_equal(mlo_json_i64(first, "teacher", 9), 0);
    assert_int_equal(mlo_json_i64(first, "student", 9), 1);
    assert_int_equal(mlo_json_i64(first, "teacher_right", 9), 1);
    assert_int_equal(json_array_size(json_object_get(r, "farthest")), 2);
    assert_int_equal(mlo_json_i64(json_array_get(json_object_get(r, "farthest"), 0), "sample", 9), 0);
    json_decref(r);
    close_pair(&p);
}

/* Made-up scores; the student's are the teacher's and some noise. */
static void make_up(double *teacher, double *student, int64_t *labels, int64_t *slice, double noise)
{
    uint64_t seed = 7;
    for (int i = 0; i < SAMPLES * CLASSES; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        teacher[i] = (float)((double)(seed >> 40) / (1 << 24) * 6 - 3);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        student[i] = (float)(teacher[i] + noise * ((double)(seed >> 40) / (1 << 24) - 0.5));
    }
    for (int i = 0; i < SAMPLES; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        labels[i] = (int64_t)(seed >> 40) % CLASSES;
        slice[i] = 10 * (i % 4);
    }
}

static double T[SAMPLES * CLASSES], S[SAMPLES * CLASSES];
static int64_t Y[SAMPLES], SLICE[SAMPLES];

/* The same numbers by plain formulas in long double, over all samples at once. */
static void test_distill__plain_formulas(void **state)
{
    struct pair p;
    const struct mlo_distill_options o = {.temperature = 3};
    long double kl = 0, entropy = 0, cosine = 0, mse = 0;
    int agree = 0;
    (void)state;
    make_up(T, S, Y, SLICE, 2);
    open_pair(&p, &(struct given){SAMPLES, {CLASSES, CLASSES}, {T, S}, Y, NULL, NULL});
    for (int i = 0; i < SAMPLES; i++) {
        long double zt = 0, zs = 0, aa = 0, bb = 0, ab = 0;
        int best[2] = {0, 0};
        for (int k = 0; k < CLASSES; k++) {
            long double t = T[i * CLASSES + k], s = S[i * CLASSES + k];
            zt += expl(t / 3);
            zs += expl(s / 3);
            aa += t * t;
            bb += s * s;
            ab += t * s;
            mse += (t - s) * (t - s) / CLASSES;
            best[0] = t > T[i * CLASSES + best[0]] ? k : best[0];
            best[1] = s > S[i * CLASSES + best[1]] ? k : best[1];
        }
        for (int k = 0; k < CLASSES; k++) {
            long double pk = expl(T[i * CLASSES + k] / 3.0L) / zt, qk = expl(S[i * CLASSES + k] / 3.0L) / zs;
            kl += pk * logl(pk / qk);
            entropy -= pk * logl(qk);
        }
        cosine += ab / sqrtl(aa * bb);
        agree += best[0] == best[1];
    }
    json_t *r = compare(&p, &o);
    assert_float_equal(distance(r, "kl"), (double)(kl / SAMPLES), 1e-12);
    assert_float_equal(distance(r, "cross_entropy"), (double)(entropy / SAMPLES), 1e-12);
    assert_float_equal(distance(r, "cosine"), (double)(cosine / SAMPLES), 1e-12);
    assert_float_equal(distance(r, "mse"), (double)(mse / SAMPLES), 1e-12);
    assert_float_equal(distance(r, "agreement"), (double)agree / SAMPLES, 1e-15);
    /* intervals hold their values */
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(r, "distances"), i, row)
    {
        assert_true(mlo_json_f64(row, "low", 9) < mlo_json_f64(row, "value", 0));
        assert_true(mlo_json_f64(row, "high", -9) > mlo_json_f64(row, "value", 0));
    }
    json_decref(r);
    close_pair(&p);
}

static void test_distill__equal_models_differ_in_nothing(void **state)
{
    struct pair p;
    (void)state;
    make_up(T, S, Y, SLICE, 0);
    open_pair(&p, &(struct given){SAMPLES, {CLASSES, CLASSES}, {T, T}, Y, NULL, SLICE});
    struct mlo_error err = {0};
    struct mlo_slices slices;
    assert_ok(mlo_slices_of_column(p.data[1], "site", &slices, &err));
    const struct mlo_distill_options o = {.temperature = 4, .slices = &slices};
    json_t *r = compare(&p, &o);
    const json_t *top1 = named(json_object_get(r, "metrics"), "metric", "top1"), *row;
    assert_true(mlo_json_f64(json_object_get(top1, "difference"), "value", 9) == 0);
    assert_true(mlo_json_f64(json_object_get(top1, "bootstrap"), "low", 9) == 0);
    assert_true(mlo_json_f64(json_object_get(top1, "bootstrap"), "high", 9) == 0);
    assert_true(mlo_json_f64(top1, "mcnemar_p", 9) == 1);
    assert_true(distance(r, "agreement") == 1 && distance(r, "kl") == 0 && distance(r, "mse") == 0);
    assert_true(distance(r, "cosine") == 1);
    for (int k = 0; k < 2; k++) {
        const json_t *d = at(r, "calibration", "difference", k ? "equal_mass" : "equal_width");
        assert_true(mlo_json_f64(d, "value", 9) == 0 && mlo_json_f64(d, "low", 9) == 0);
    }
    size_t i;
    json_array_foreach(json_object_get(r, "per_slice"), i, row)
    {
        assert_true(mlo_json_f64(json_object_get(row, "difference"), "value", 9) == 0);
        assert_true(mlo_json_f64(row, "p_holm", 9) == 1);
    }
    assert_int_equal(i, 4);
    assert_int_equal(json_array_size(json_object_get(r, "farthest")), 0);
    assert_int_equal(mlo_json_i64(json_object_get(r, "confusion"), "pairs", 9), 0);
    json_decref(r);
    mlo_slices_clear(&slices);
    close_pair(&p);
}

/* The same bytes with any batch and any number of threads. */
static void test_distill__same_bytes(void **state)
{
    const struct {
        int64_t batch;
        unsigned threads;
    } ways[] = {{0, 1}, {1, 2}, {7, 3}, {600, 2}};
    struct mlo_buf first = MLO_BUF_INIT, text = MLO_BUF_INIT;
    struct pair p;
    (void)state;
    make_up(T, S, Y, SLICE, 1);
    open_pair(&p, &(struct given){SAMPLES, {CLASSES, CLASSES}, {T, S}, Y, NULL, NULL});
    for (size_t i = 0; i < MLO_COUNT(ways); i++) {
        static const char *const metrics[] = {"top1", "f1", "top2"};
        const struct mlo_distill_options o = {
            .temperature = 4,
            .metrics = metrics,
            .metric_count = 3,
            .run = {.batch = ways[i].batch, .threads = ways[i].threads, .numerics = MLO_NUMERICS_INVARIANT}};
        json_t *r = compare(&p, &o);
        mlo_json_canonical(r, i ? &text : &first);
        json_decref(r);
        if (i)
            assert_string_equal(mlo_buf_str(&text), mlo_buf_str(&first));
        mlo_buf_reset(&text);
    }
    mlo_buf_clear(&first);
    mlo_buf_clear(&text);
    close_pair(&p);
}

/* What is recorded in pieces is what is recorded at once: as `mlopt eval` measures it. */
static void test_distill__metrics_of_the_table(void **state)
{
    static const char *const names[] = {"top1", "f1", "top2"};
    struct mlo_error err = {0};
    struct pair p;
    (void)state;
    make_up(T, S, Y, SLICE, 3);
    open_pair(&p, &(struct given){SAMPLES, {CLASSES, CLASSES}, {T, S}, Y, NULL, NULL});
    json_t *r = compare(&p, &(struct mlo_distill_options){.metrics = names, .metric_count = 3});
    struct mlo_tensor out[2] = {make_tensor(MLO_FLOAT32, 2, DIMS(SAMPLES, CLASSES), T),
                                make_tensor(MLO_FLOAT32, 2, DIMS(SAMPLES, CLASSES), S)},
                      y = make_tensor(MLO_INT64, 1, DIMS(SAMPLES), NULL);
    memcpy(y.data, Y, sizeof Y);
    for (size_t m = 0; m < MLO_COUNT(names); m++) {
        struct mlo_metric_use use;
        struct mlo_scores *scores[2];
        struct mlo_estimate e;
        const json_t *row = named(json_object_get(r, "metrics"), "metric", names[m]);
        assert_ok(mlo_metric_find(names[m], &use, &err));
        for (int s = 0; s < 2; s++) {
            const struct mlo_metric_data data = {.output = &out[s], .target = &y};
            assert_ok(mlo_metric_score(&use, &data, &scores[s], &err));
            assert_ok(mlo_scores_estimate(scores[s], &e, &err));
            const json_t *side = json_object_get(row, s ? "student" : "teacher");
            assert_float_equal(mlo_json_f64(side, "value", 9), e.value, 0);
            assert_float_equal(mlo_json_f64(side, "low", 9), e.low, 0);
        }
        assert_ok(mlo_scores_paired(scores[1], scores[0], &e, &err));
        assert_float_equal(mlo_json_f64(json_object_get(row, "difference"), "value", 9), e.value, 0);
        assert_float_equal(mlo_json_f64(json_object_get(row, "difference"), "high", 9), e.high, 0);
        mlo_scores_free(scores[0]);
        mlo_scores_free(scores[1]);
    }
    mlo_tensor_clear(&out[0]);
    mlo_tensor_clear(&out[1]);
    mlo_tensor_clear(&y);
    json_decref(r);
    close_pair(&p);
}

static void test_distill__probabilities_are_what_their_logits_are(void **state)
{
    static double soft[SAMPLES * CLASSES];
    struct pair p;
    (void)state;
    make_up(T, S, Y, SLICE, 2);
    for (int i = 0; i < SAMPLES; i++) {
        double z = 0;
        for (int k = 0; k < CLASSES; k++)
            z += exp(S[i * CLASSES + k]);
        for (int k = 0; k < CLASSES; k++)
            soft[i * CLASSES + k] = exp(S[i * CLASSES + k]) / z;
    }
    const struct mlo_distill_options o = {.temperature = 2};
    open_pair(&p, &(struct given){SAMPLES, {CLASSES, CLASSES}, {T, S}, Y, NULL, NULL});
    json_t *logits = compare(&p, &o);
    close_pair(&p);
    open_pair(&p, &(struct given){SAMPLES, {CLASSES, CLASSES}, {T, soft}, Y, NULL, NULL});
    json_t *probabilities = compare(&p, &o);
    assert_string_equal(mlo_json_str(json_object_get(probabilities, "student"), "scores", ""),
                        "probabilities");
    assert_string_equal(mlo_json_str(json_object_get(probabilities, "teacher"), "scores", ""), "logits");
    assert_float_equal(distance(probabilities, "kl"), distance(logits, "kl"), 1e-6);
    assert_float_equal(distance(probabilities, "agreement"), distance(logits, "agreement"), 0);
    assert_true(isnan(distance(probabilities, "mse"))); /* logits and probabilities have no distance */
    /* what is said to be probabilities and is not */
    p.side[0].scores = MLO_SCORES_PROBABILITIES;
    refuses(&p, &o, "the teacher's output 'teacher_out' for sample 0 is no distribution");
    json_decref(logits);
    json_decref(probabilities);
    close_pair(&p);
}

static void test_distill__slices(void **state)
{
    struct pair p;
    struct mlo_error err = {0};
    struct mlo_slices slices, named_slices;
    (void)state;
    make_up(T, S, Y, SLICE, 4);
    open_pair(&p, &(struct given){SAMPLES, {CLASSES, CLASSES}, {T, S}, Y, NULL, SLICE});
    assert_ok(mlo_slices_of_column(p.data[1], "site", &slices, &err));
    assert_int_equal(slices.count, 4);
    assert_string_equal(slices.names[3], "30");
    json_t *r = compare(&p, &(struct mlo_distill_options){.slices = &slices});
    int64_t n = 0;
    double p_values[4];
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(json_object_get(r, "per_slice"), i);
        int64_t right[2] = {0, 0}, count = 0;
        for (int k = (int)i; k < SAMPLES; k += 4) {
            for (int s = 0; s < 2; s++) {
                const double *z = (s ? S : T) + k * CLASSES;
                int best = 0;
                for (int c = 1; c < CLASSES; c++)
                    best = z[c] > z[best] ? c : best;
                right[s] += best == Y[k];
            }
            count++;
        }
        assert_int_equal(mlo_json_i64(row, "n", 0), count);
        assert_float_equal(mlo_json_f64(row, "teacher", 9), (double)right[0] / (double)count, 1e-15);
        assert_float_equal(mlo_json_f64(row, "student", 9), (double)right[1] / (double)count, 1e-15);
        p_values[i] = mlo_json_f64(row, "p", 9);
        n += count;
    }
    assert_int_equal(n, SAMPLES);
    assert_true(mlo_holm(p_values, 4));
    for (size_t i = 0; i < 4; i++)
        assert_float_equal(mlo_json_f64(json_array_get(json_object_get(r, "per_slice"), i), "p_holm", 9),
                           p_values[i], 0);
    json_decref(r);
    /* the same groups from a file */
    struct mlo_buf text = MLO_BUF_INIT;
    for (int i = 0; i < SAMPLES; i++)
        mlo_buf_printf(&text, "site %d%s\n", (int)SLICE[i], i % 3 ? "" : "\r");
    assert_ok(
        mlo_slices_of_file(p.data[1], write_text("sites.txt", mlo_buf_str(&text)), &named_slices, &err));
    assert_int_equal(named_slices.count, 4);
    assert_memory_equal(named_slices.of, slices.of, SAMPLES * sizeof *slices.of);
    mlo_slices_clear(&named_slices);
    /* and what is wrong with one */
    assert_int_equal(mlo_slices_of_file(p.data[1], write_text("short.txt", "a\nb\n"), &named_slices, &err),
                     MLO_EINVAL);
    assert_non_null(strstr(err.message, "has 2 lines, and the dataset 600 samples"));
    assert_int_equal(mlo_slices_of_file(p.data[1], write_text("gap.txt", "a\n\nb\n"), &named_slices, &err),
                     MLO_EFORMAT);
    assert_non_null(strstr(err.message, "line 2 is empty"));
    assert_int_equal(mlo_slices_of_column(p.data[1], "place", &named_slices, &err), MLO_ENOTFOUND);
    assert_int_equal(mlo_slices_of_column(p.data[1], "t", &named_slices, &err), MLO_EINVAL);
    mlo_buf_clear(&text);
    mlo_slices_clear(&slices);
    close_pair(&p);
}

/* --- other classes -------------------------------------------------------------------------------------- */

static void test_distill__other_label_sets(void **state)
{
    static const double wide[] = {1, 2, 0, -1, 0, 3, 1, 1}, narrow[] = {2, 0, 1, 0, 3, 1};
    static const int64_t labels[] = {1, 2};
    struct pair p;
    (void)state;
    open_pair(&p, &(struct given){2, {4, 3}, {wide, narrow}, labels, NULL, NULL});
    const struct mlo_distill_options o = {.temperature = 1};
    refuses(&p, &o, "the teacher's output 'teacher_out' has 4 classes and the student's 'student_out' 3");
    p.side[0].labels = json_pack("[s,s,s,s]", "cat", "dog", "cow", "bat");
    p.side[1].labels = json_pack("[s,s,s]", "dog", "cat", "fish");
    refuses(&p, &o, "only the teacher has 'cow', 'bat'; only the student has 'fish'");
    /* the student's classes: dog, cat, other; the teacher's cow and bat are others, too */
    p.side[0].classes = json_pack("[i,i,i,i]", 1, 0, 2, 2);
    json_t *r = compare(&p, &o);
    assert_int_equal(mlo_json_i64(r, "classes", 9), 3);
    double e = exp(1), z = e + e * e + 1 + 1 / e, s = e * e + 1 + e;
    double p0[] = {e * e / z, e / z, (1 + 1 / e) / z}, q0[] = {e * e / s, 1 / s, e / s};
    double z1 = 1 + e * e * e + 2 * e, s1 = 1 + e * e * e + e;
    double p1[] = {e * e * e / z1, 1 / z1, 2 * e / z1}, q1[] = {1 / s1, e * e * e / s1, e / s1}, kl = 0;
    for (int k = 0; k < 3; k++)
        kl += p0[k] * log(p0[k] / q0[k]) + p1[k] * log(p1[k] / q1[k]);
    assert_float_equal(distance(r, "kl"), kl / 2, 1e-12);
    assert_float_equal(distance(r, "agreement"), 0.5, 0);
    json_decref(r);
    /* a mapping that leaves a class to nobody, one that is too short, one that is none */
    json_decref((json_t *)p.side[0].classes);
    p.side[0].classes = json_pack("[i,i,n,n]", 1, 0);
    refuses(&p, &o, "class 2 has no class of the teacher that stands for it");
    json_decref((json_t *)p.side[0].classes);
    p.side[0].classes = json_pack("[i,i]", 1, 0);
    refuses(&p, &o, "the mapping has 2 entries for the teacher, which has 4 classes");
    json_decref((json_t *)p.side[0].classes);
    p.side[0].classes = json_pack("[i,i,i,s]", 1, 0, 2, "x");
    refuses(&p, &o, "entry 3 of the teacher's mapping is no class");
    for (int i = 0; i < 2; i++)
        json_decref((json_t *)p.side[i].labels);
    json_decref((json_t *)p.side[0].classes);
    close_pair(&p);
}

static void test_distill__other_order_of_names(void **state)
{
    struct pair p;
    (void)state;
    open_pair(&p, &(struct given){4, {3, 3}, {FOUR_T, FOUR_S}, FOUR_Y, NULL, NULL});
    p.side[0].labels = json_pack("[s,s,s]", "a", "b", "c");
    p.side[1].labels = json_pack("[s,s,s]", "a", "c", "b");
    refuses(&p, NULL, "class 1 is 'b' for the teacher and 'c' for the student");
    json_decref((json_t *)p.side[1].labels);
    p.side[1].labels = json_pack("[s,s]", "a", "b");
    refuses(&p, NULL, "the student puts out 3 classes, and its labels name 2");
    json_decref((json_t *)p.side[0].labels);
    json_decref((json_t *)p.side[1].labels);
    close_pair(&p);
}

/* --- values -----------------------------------------------------------------------------------------------
 */

static void test_distill__values(void **state)
{
    static const double t[] = {1, 0, 0, 2, 3, 4}, s[] = {1, 1, 0, 2, 3, 4}, y[] = {1, 0, 0, 1, 3, 4};
    static const int64_t slice[] = {1, 1, 2};
    struct pair p;
    struct mlo_error err = {0};
    struct mlo_slices slices;
    (void)state;
    open_pair(&p, &(struct given){3, {2, 2}, {t, s}, NULL, y, slice});
    assert_ok(mlo_slices_of_column(p.data[1], "site", &slices, &err));
    json_t *r = compare(&p, &(struct mlo_distill_options){.slices = &slices});
    assert_string_equal(mlo_json_str(r, "task", ""), "values");
    assert_float_equal(distance(r, "mse"), 0.5 / 3, 1e-12);
    assert_float_equal(distance(r, "cosine"), (sqrt(0.5) + 1 + 1) / 3, 1e-12);
    assert_true(isnan(distance(r, "kl")) && !json_object_get(r, "calibration"));
    const json_t *mse = named(json_object_get(r, "metrics"), "metric", "target.mse");
    assert_float_equal(mlo_json_f64(json_object_get(mse, "teacher"), "value", 9), 0.5 / 3, 1e-12);
    assert_float_equal(mlo_json_f64(json_object_get(mse, "difference"), "value", 9), 0.5 / 3, 1e-12);
    const json_t *first = json_array_get(json_object_get(r, "per_slice"), 0);
    assert_float_equal(mlo_json_f64(first, "student", 9), 0.5, 1e-12);
    assert_float_equal(mlo_json_f64(first, "p", 9), 1, 0); /* one sample apart proves nothing */
    assert_int_equal(json_array_size(json_object_get(r, "farthest")), 1);
    json_decref(r);
    mlo_slices_clear(&slices);
    close_pair(&p);
}

/* What has no number keeps its row, and says why. */
static void test_distill__missing_numbers_have_a_reason(void **state)
{
    static const int64_t y[] = {0, 1, 0};
    double t[] = {2, 1, 0, 0, 3, 0, 1, 0, -INFINITY}, s[] = {1, 0, -INFINITY, 0, 2, 0, 2, 0, -INFINITY};
    struct pair p;
    (void)state;
    open_pair(&p, &(struct given){3, {3, 3}, {t, s}, y, NULL, NULL});
    json_t *r = compare(&p, NULL);
    static const char *const none[] = {"cosine", "mse"};
    for (size_t i = 0; i < MLO_COUNT(none); i++) {
        const json_t *row = named(json_object_get(r, "distances"), "metric", none[i]);
        assert_non_null(row);
        assert_null(json_object_get(row, "value"));
        assert_string_equal(mlo_json_str(row, "missing", ""),
                            "1 of 3 samples have none: an output is infinite (masked) in one model and not "
                            "in the other");
    }
    assert_true(isfinite(distance(r, "kl")));
    json_decref(r);
    close_pair(&p);
    json_t *o = json_object();
    assert_true(mlo_distill_put(o, "mse", NAN) && mlo_distill_put(o, "error", INFINITY) &&
                mlo_distill_put(o, "kl", 0.5));
    assert_null(json_object_get(o, "mse"));
    assert_string_equal(mlo_json_str(json_object_get(o, "missing"), "mse", ""), "it is not a number (NaN)");
    assert_string_equal(mlo_json_str(json_object_get(o, "missing"), "error", ""), "it is infinite");
    assert_float_equal(mlo_json_f64(o, "kl", 0), 0.5, 0);
    json_decref(o);
    const struct mlo_estimate open = {1, -INFINITY, 2, 3}, whole = {1, 0, 2, 3};
    o = mlo_estimate_json(&open);
    assert_string_equal(mlo_json_str(o, "missing", ""), "its interval is not finite");
    assert_null(json_object_get(o, "value"));
    json_decref(o);
    o = mlo_estimate_json(&whole);
    assert_float_equal(mlo_json_f64(o, "high", 0), 2, 0);
    assert_null(json_object_get(o, "missing"));
    json_decref(o);
}

/* A table of pairs that is cut says how many are not in it. */
static void test_distill__confusion_counts_what_it_leaves_out(void **state)
{
    enum { MANY = 1600, WIDE = 41 };
    static double t[MANY * WIDE], s[MANY * WIDE];
    struct pair p;
    (void)state;
    for (int i = 0; i < MANY; i++) {
        t[i * WIDE + i / 40] = 1;
        s[i * WIDE + (i / 40 + 1 + i % 40) % WIDE] = 1; /* each pair of classes once */
    }
    open_pair(&p, &(struct given){MANY, {WIDE, WIDE}, {t, s}, NULL, NULL, NULL});
    json_t *r = compare(&p, &(struct mlo_distill_options){.task = MLO_DISTILL_CLASSES});
    const json_t *confusion = json_object_get(r, "confusion");
    assert_int_equal(mlo_json_i64(confusion, "pairs", 0), MANY);
    assert_int_equal(json_array_size(json_object_get(confusion, "list")), 1024);
    assert_int_equal(mlo_json_i64(confusion, "left_out", 0), MANY - 1024);
    json_decref(r);
    close_pair(&p);
}

/* --- what is refused, and what is odd ------------------------------------------------------------------- */

static void test_distill__bad_outputs(void **state)
{
    double t[12], s[12];
    struct pair p;
    (void)state;
    memcpy(t, FOUR_T, sizeof t);
    memcpy(s, FOUR_S, sizeof s);
    const struct given g = {4, {3, 3}, {t, s}, FOUR_Y, NULL, NULL};
    /* NaN in data is refused when it is read, so the model makes it: 0 / 0 */
    struct mlo_error err = {0};
    open_pair(&p, &g);
    struct mlo_model *bad = shell_model();
    struct mlo_value *x = shell_input(bad, "x", MLO_FLOAT32, 2, DIMS(-1, 3)), *in[] = {x, x};
    struct mlo_value *y = mlo_graph_add_value(bad->graph, "ratio", NULL);
    assert_non_null(mlo_graph_add_node(bad->graph, NULL, "", "Div", "ratio", in, 2, &y, 1));
    assert_ok(mlo_graph_add_output(bad->graph, y, &err));
    assert_ok(mlo_graph_infer(bad->graph, &err));
    p.side[1].model = bad;
    refuses(&p, NULL, "the student's output 'ratio' for sample 0 holds NaN");
    p.side[1].model = p.model[1];
    p.side[0].output = "logits";
    refuses(&p, NULL, "the teacher has no output 'logits'");
    p.side[0].output = "teacher_out";
    static const char *const kl[] = {"kl"};
    refuses(&p, &(struct mlo_distill_options){.metrics = kl, .metric_count = 1},
            "compares with another model");
    mlo_model_free(bad);
    close_pair(&p);
    s[4] = INFINITY;
    open_pair(&p, &g);
    refuses(&p, NULL, "the student's output 'student_out' for sample 1 holds an infinity");
    close_pair(&p);
}

static void test_distill__labels_out_of_range(void **state)
{
    static const int64_t labels[] = {0, 1, 3, 0};
    struct pair p;
    (void)state;
    open_pair(&p, &(struct given){4, {3, 3}, {FOUR_T, FOUR_S}, labels, NULL, NULL});
    struct mlo_error err = {0};
    json_t *out = NULL;
    assert_int_equal(mlo_distill(&p.side[0], &p.side[1], NULL, &out, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "3"));
    close_pair(&p);
}

static void test_distill__one_class_and_one_sample(void **state)
{
    static const int64_t same[] = {1, 1, 1, 1};
    struct pair p;
    (void)state;
    open_pair(&p, &(struct given){4, {3, 3}, {FOUR_T, FOUR_S}, same, NULL, NULL});
    json_t *r = compare(&p, NULL);
    assert_int_equal(mlo_json_i64(json_array_get(json_object_get(r, "per_class"), 1), "n", 9), 4);
    assert_int_equal(mlo_json_i64(json_array_get(json_object_get(r, "per_class"), 0), "n", 9), 0);
    json_decref(r);
    close_pair(&p);
    open_pair(&p, &(struct given){1, {3, 3}, {FOUR_T, FOUR_S}, FOUR_Y, NULL, NULL});
    r = compare(&p, NULL);
    const json_t *top1 = named(json_object_get(r, "metrics"), "metric", "top1");
    assert_float_equal(mlo_json_f64(json_object_get(top1, "difference"), "value", 9), -1, 0);
    assert_float_equal(mlo_json_f64(top1, "mcnemar_p", 9), 1, 0);
    json_decref(r);
    close_pair(&p);
}

/* One score a sample is that of the second of two classes. */
static void test_distill__one_score(void **state)
{
    static const double t[] = {2, -1}, s[] = {-1, -3};
    static const int64_t labels[] = {1, 0};
    struct pair p;
    (void)state;
    open_pair(&p, &(struct given){2, {1, 1}, {t, s}, labels, NULL, NULL});
    json_t *r = compare(&p, &(struct mlo_distill_options){.task = MLO_DISTILL_CLASSES});
    assert_int_equal(mlo_json_i64(r, "classes", 9), 2);
    const json_t *top1 = named(json_object_get(r, "metrics"), "metric", "top1");
    assert_float_equal(mlo_json_f64(json_object_get(top1, "teacher"), "value", 9), 1, 0);
    assert_float_equal(mlo_json_f64(json_object_get(top1, "student"), "value", 9), 0.5, 0);
    double a = 1 / (1 + exp(-2)), b = 1 / (1 + exp(1)), c = 1 / (1 + exp(1)), d = 1 / (1 + exp(3));
    double kl =
        a * log(a / b) + (1 - a) * log((1 - a) / (1 - b)) + c * log(c / d) + (1 - c) * log((1 - c) / (1 - d));
    assert_float_equal(distance(r, "kl"), kl / 2, 1e-12);
    json_decref(r);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_softmax__hand_computed),
        cmocka_unit_test(test_divergence__hand_computed),
        cmocka_unit_test(test_calibration__hand_computed),
        cmocka_unit_test(test_holm__the_textbook_case),
        cmocka_unit_test(test_paired_interval__is_that_of_the_estimates),
        cmocka_unit_test(test_distill__four_samples),
        cmocka_unit_test(test_distill__plain_formulas),
        cmocka_unit_test(test_distill__equal_models_differ_in_nothing),
        cmocka_unit_test(test_distill__same_bytes),
        cmocka_unit_test(test_distill__metrics_of_the_table),
        cmocka_unit_test(test_distill__probabilities_are_what_their_logits_are),
        cmocka_unit_test(test_distill__slices),
        cmocka_unit_test(test_distill__other_label_sets),
        cmocka_unit_test(test_distill__other_order_of_names),
        cmocka_unit_test(test_distill__values),
        cmocka_unit_test(test_distill__missing_numbers_have_a_reason),
        cmocka_unit_test(test_distill__confusion_counts_what_it_leaves_out),
        cmocka_unit_test(test_distill__bad_outputs),
        cmocka_unit_test(test_distill__labels_out_of_range),
        cmocka_unit_test(test_distill__one_class_and_one_sample),
        cmocka_unit_test(test_distill__one_score),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
