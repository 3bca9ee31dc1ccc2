#include <math.h>

#include "pipeline/measure/scores_impl.h"
#include "tests/unit/measure/fixture.h"

static struct mlo_metric_use metric(const char *name)
{
    struct mlo_error err = {0};
    struct mlo_metric_use use;
    assert_ok(mlo_metric_find(name, &use, &err));
    assert_string_equal(use.name, name);
    return use;
}

/* Scores that must come out; the caller frees them. */
static struct mlo_scores *scored(const char *name, const struct mlo_metric_data *data)
{
    struct mlo_error err = {0};
    struct mlo_metric_use use = metric(name);
    struct mlo_scores *scores = NULL;
    assert_ok(mlo_metric_score(&use, data, &scores, &err));
    return scores;
}

static void assert_scores(const char *name, const struct mlo_metric_data *data, const double *expected,
                          size_t n)
{
    struct mlo_scores *s = scored(name, data);
    assert_int_equal(s->units, n);
    for (size_t i = 0; i < n; i++)
        if (fabs(s->values[i] - expected[i]) > 1e-12)
            fail_msg("%s: score %zu is %.17g, not %.17g", name, i, s->values[i], expected[i]);
    mlo_scores_free(s);
}

/* The metric's value, which lies within its own interval. */
static struct mlo_estimate estimate(const char *name, const struct mlo_metric_data *data)
{
    struct mlo_error err = {0};
    struct mlo_estimate e;
    struct mlo_scores *s = scored(name, data);
    assert_ok(mlo_scores_estimate(s, &e, &err));
    mlo_scores_free(s);
    assert_true(e.low <= e.value + 1e-12 && e.value <= e.high + 1e-12);
    return e;
}

static void assert_value(const char *name, const struct mlo_metric_data *data, double expected)
{
    struct mlo_scores *s = scored(name, data);
    double value = s->metric->statistic->value(s, NULL);
    if (!(fabs(value - expected) < 1e-6))
        fail_msg("%s is %.9g, not %.9g", name, value, expected);
    mlo_scores_free(s);
}

static void assert_refused(const char *name, const struct mlo_metric_data *data, const char *because)
{
    struct mlo_error err = {0};
    struct mlo_metric_use use = metric(name);
    struct mlo_scores *scores;
    assert_int_equal(mlo_metric_score(&use, data, &scores, &err), MLO_EINVAL);
    assert_null(scores);
    assert_contains(err.message, because);
}

static void test_metric__table_is_complete(void **state)
{
    (void)state;
    size_t count = 0;
    const struct mlo_metric *table = mlo_metric_table(&count);
    assert_true(count >= 20);
    for (size_t i = 0; i < count; i++) {
        assert_non_null(table[i].record);
        assert_non_null(table[i].statistic);
        assert_non_null(table[i].unit);
        assert_non_null(table[i].description);
        assert_true(table[i].needs != 0);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(table[i].name, table[k].name);
    }
}

static void test_metric__names_carry_k(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_metric_use use;
    assert_int_equal(metric("top1").k, 1);
    assert_int_equal(metric("ndcg10").k, 10);
    assert_string_equal(metric("hit100").row->name, "hit");
    static const char *const wrong[] = {"top", "top0", "top05", "top-1", "top1x", "mse5", "hit99999999", ""};
    for (size_t i = 0; i < MLO_COUNT(wrong); i++)
        assert_int_equal(mlo_metric_find(wrong[i], &use, &err), MLO_EINVAL);
}

static void test_metric__unknown_name_suggests_the_nearest(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_metric_use use;
    assert_int_equal(mlo_metric_find("top-1", &use, &err), MLO_EINVAL);
    assert_contains(err.message, "did you mean 'top1'");
    assert_contains(err.hint, "cosine");
    assert_contains(err.hint, "topK");
}

static void test_metric__top1_and_top5_by_hand(void **state)
{
    (void)state;
    /* sample 0: 6 > 5 > …; sample 1: all equal, so class 0 is first; sample 2: label last */
    struct mlo_tensor out = make_tensor(
        MLO_FLOAT32, 2, DIMS(3, 7), VALUES(0, 1, 2, 3, 4, 5, 6, 1, 1, 1, 1, 1, 1, 1, 7, 6, 5, 4, 3, 2, 1));
    struct mlo_tensor y = make_tensor(MLO_INT64, 1, DIMS(3), VALUES(6, 0, 0));
    struct mlo_metric_data data = {.output = &out, .target = &y};
    assert_scores("top1", &data, (double[]){1, 1, 1}, 3);
    memcpy(y.data, (int64_t[]){2, 4, 6}, y.size_bytes);
    assert_scores("top1", &data, (double[]){0, 0, 0}, 3);
    assert_scores("top5", &data, (double[]){1, 1, 0}, 3);
    memcpy(y.data, (int64_t[]){1, 5, 4}, y.size_bytes);
    assert_scores("top5", &data, (double[]){0, 0, 1}, 3);
    assert_scores("top6", &data, (double[]){1, 1, 1}, 3);
    mlo_tensor_clear(&out);
    mlo_tensor_clear(&y);
}

static void test_metric__top1_takes_other_output_forms(void **state)
{
    (void)state;
    struct mlo_tensor y = make_tensor(MLO_UINT8, 2, DIMS(2, 1), VALUES(1, 0));
    struct mlo_tensor pooled = make_tensor(MLO_FLOAT32, 4, DIMS(2, 2, 1, 1), VALUES(0, 1, 0, 1));
    struct mlo_tensor argmax = make_tensor(MLO_INT64, 1, DIMS(2), VALUES(1, 1));
    struct mlo_tensor map = make_tensor(MLO_FLOAT32, 3, DIMS(2, 2, 2), NULL),
                      none = make_tensor(MLO_FLOAT32, 2, DIMS(2, 0), NULL);
    struct mlo_metric_data data = {.output = &pooled, .target = &y};
    assert_scores("top1", &data, (double[]){1, 0}, 2);
    data.output = &argmax;
    assert_scores("top1", &data, (double[]){1, 0}, 2);
    data.output = &map;
    assert_refused("top1", &data, "float32[2,2,2]");
    data.output = &none;
    assert_refused("top1", &data, "float32[2,0]");
    assert_refused("f1", &data, "float32[2,0]");
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&pooled);
    mlo_tensor_clear(&argmax);
    mlo_tensor_clear(&map);
    mlo_tensor_clear(&none);
}

static void test_metric__bad_samples_are_named(void **state)
{
    (void)state;
    struct mlo_tensor out = make_tensor(MLO_FLOAT32, 2, DIMS(2, 2), VALUES(0, 1, NAN, 1));
    struct mlo_tensor ref = make_tensor(MLO_FLOAT32, 2, DIMS(2, 2), NULL),
                      other = make_tensor(MLO_FLOAT32, 1, DIMS(2), NULL);
    struct mlo_tensor y = make_tensor(MLO_INT64, 1, DIMS(2), VALUES(0, 2));
    struct mlo_metric_data data = {.output = &out, .target = &y, .reference = &ref};
    assert_refused("top1", &data, "label 2 of sample 1");
    memcpy(y.data, (int64_t[]){0, 1}, y.size_bytes);
    assert_refused("top1", &data, "sample 1 holds NaN");
    assert_refused("f1", &data, "sample 1 holds NaN");
    assert_refused("auc", &data, "sample 1 holds NaN");
    assert_refused("mse", &data, "sample 1 is not finite");
    assert_refused("kl", &data, "sample 1 is not finite");
    data.reference = &other;
    assert_refused("mse", &data, "cannot be compared");
    data.target = &other;
    assert_refused("top1", &data, "one class number for each");
    data = (struct mlo_metric_data){.output = &out};
    assert_refused("top1", &data, "needs labels");
    assert_refused("cosine", &data, "compares with a baseline");
    data.target = &y;
    assert_refused("ndcg5", &data, "no groups");
    mlo_tensor_clear(&out);
    mlo_tensor_clear(&ref);
    mlo_tensor_clear(&other);
    mlo_tensor_clear(&y);
}

static void test_metric__distances_by_hand(void **state)
{
    (void)state;
    struct mlo_tensor a = make_tensor(MLO_FLOAT32, 2, DIMS(4, 2), VALUES(1, 2, 3, 4, 0, 0, 0, 0));
    struct mlo_tensor b = make_tensor(MLO_FLOAT32, 2, DIMS(4, 2), VALUES(1, 4, -6, -8, 0, 0, 1, 0));
    struct mlo_metric_data data = {.output = &a, .reference = &b};
    assert_scores("mse", &data, (double[]){2, (81 + 144) / 2.0, 0, 0.5}, 4);
    assert_scores("mae", &data, (double[]){1, 10.5, 0, 0.5}, 4);
    assert_scores("cosine", &data, (double[]){9 / sqrt(5.0 * 17), -1, 1, 0}, 4);
    data = (struct mlo_metric_data){.output = &a, .target = &b};
    assert_scores("target.mse", &data, (double[]){2, (81 + 144) / 2.0, 0, 0.5}, 4);
    assert_scores("target.mae", &data, (double[]){1, 10.5, 0, 0.5}, 4);
    assert_scores("target.cosine", &data, (double[]){9 / sqrt(5.0 * 17), -1, 1, 0}, 4);
    mlo_tensor_clear(&a);
    mlo_tensor_clear(&b);
}

static void test_metric__psnr_knows_its_peak(void **state)
{
    (void)state;
    struct mlo_tensor x = make_tensor(MLO_FLOAT32, 2, DIMS(2, 2), VALUES(0.5, 0.5, 10, 30));
    struct mlo_tensor y = make_tensor(MLO_FLOAT32, 2, DIMS(2, 2), VALUES(0.5, 0.5, 10.1f, 29.9f));
    struct mlo_tensor bytes = make_tensor(MLO_UINT8, 2, DIMS(2, 2), VALUES(0, 1, 10, 20));
    struct mlo_metric_data data = {.output = &x, .target = &y, .reference = &y};
    struct mlo_scores *s = scored("psnr", &data);
    assert_true(s->values[0] == 150 && fabs(s->values[1] - 20) < 1e-4); /* mse 0.01: 20 dB */
    mlo_scores_free(s);
    data.target = &bytes;
    s = scored("target.psnr", &data);
    assert_true(fabs(s->values[1] - 10 * log10(255.0 * 255 / 50)) < 1e-9);
    mlo_scores_free(s);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&bytes);
}

static void test_metric__f1_by_hand(void **state)
{
    (void)state;
    /* predicted 0 2 1 0 0 1 for 0 1 2 0 1 2: F1 of class 0 is 2*2/(2+3), of the others 0 */
    struct mlo_tensor argmax = make_tensor(MLO_INT64, 1, DIMS(6), VALUES(0, 2, 1, 0, 0, 1));
    struct mlo_tensor y = make_tensor(MLO_INT64, 1, DIMS(6), VALUES(0, 1, 2, 0, 1, 2));
    struct mlo_metric_data data = {.output = &argmax, .target = &y};
    assert_value("f1", &data, 0.8 / 3);
    assert_value("f1.positive", &data, 0);
    /* a class that neither occurs nor is predicted does not count: 4 scores, classes 0 and 1 only */
    struct mlo_tensor out =
        make_tensor(MLO_FLOAT32, 2, DIMS(3, 4), VALUES(9, 0, 0, 0, 0, 9, 0, 0, 9, 0, 0, 0));
    struct mlo_tensor two = make_tensor(MLO_INT64, 1, DIMS(3), VALUES(0, 1, 1));
    data = (struct mlo_metric_data){.output = &out, .target = &two};
    assert_value("f1", &data, (2.0 / 3 + 2.0 / 3) / 2);
    assert_value("f1.positive", &data, 2.0 / 3);
    mlo_tensor_clear(&argmax);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&out);
    mlo_tensor_clear(&two);
}

static void test_metric__auc_by_hand(void **state)
{
    (void)state;
    struct mlo_tensor one = make_tensor(MLO_FLOAT32, 2, DIMS(4, 1), VALUES(0.1, 0.4, 0.35, 0.8));
    struct mlo_tensor two =
        make_tensor(MLO_FLOAT32, 2, DIMS(4, 2), VALUES(0.9, 0.1, 0.6, 0.4, 0.65, 0.35, 0.2, 0.8));
    struct mlo_tensor tied = make_tensor(MLO_FLOAT32, 1, DIMS(4), VALUES(1, 1, 1, 1));
    struct mlo_tensor y = make_tensor(MLO_INT64, 1, DIMS(4), VALUES(0, 0, 1, 1));
    struct mlo_metric_data data = {.output = &one, .target = &y};
    assert_value("auc", &data, 0.75);
    data.output = &two;
    assert_value("auc", &data, 0.75);
    data.output = &tied;
    assert_value("auc", &data, 0.5);
    /* of one class it has no meaning */
    memset(y.data, 0, y.size_bytes);
    struct mlo_error err = {0};
    struct mlo_estimate e;
    struct mlo_scores *s = scored("auc", &data);
    assert_int_equal(mlo_scores_estimate(s, &e, &err), MLO_EINVAL);
    assert_contains(err.message, "no meaning");
    mlo_scores_free(s);
    mlo_tensor_clear(&one);
    mlo_tensor_clear(&two);
    mlo_tensor_clear(&tied);
    mlo_tensor_clear(&y);
}

static void test_metric__spearman_by_hand(void **state)
{
    (void)state;
    struct mlo_tensor x = make_tensor(MLO_FLOAT32, 1, DIMS(5), VALUES(1, 2, 3, 4, 5));
    struct mlo_tensor y = make_tensor(MLO_FLOAT32, 1, DIMS(5), VALUES(5, 6, 7, 8, 7));
    struct mlo_metric_data data = {.output = &x, .target = &y};
    assert_value("spearman", &data, 0.8207826816681233); /* ranks 1 2 3.5 5 3.5 */
    /* of a multiset: the same as of the list in which samples stand so often */
    struct mlo_tensor x2 = make_tensor(MLO_FLOAT32, 1, DIMS(6), VALUES(1, 1, 3, 4, 4, 4));
    struct mlo_tensor y2 = make_tensor(MLO_FLOAT32, 1, DIMS(6), VALUES(5, 5, 7, 8, 8, 8));
    struct mlo_metric_data listed = {.output = &x2, .target = &y2};
    struct mlo_scores *a = scored("spearman", &data), *b = scored("spearman", &listed);
    const uint32_t times[] = {2, 0, 1, 3, 0};
    assert_true(fabs(a->metric->statistic->value(a, times) - b->metric->statistic->value(b, NULL)) < 1e-12);
    mlo_scores_free(a);
    mlo_scores_free(b);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&x2);
    mlo_tensor_clear(&y2);
}

static void test_metric__ranking_within_groups_by_hand(void **state)
{
    (void)state;
    /* group 7 has, by falling score, relevances 3 2 3 0 1 2; group 2 nothing relevant among its first two */
    struct mlo_tensor x = make_tensor(MLO_FLOAT32, 1, DIMS(9), VALUES(6, 5, 9, 4, 3, 2, 8, 7, 1));
    struct mlo_tensor y = make_tensor(MLO_INT64, 1, DIMS(9), VALUES(3, 2, 0, 3, 0, 1, 0, 1, 2));
    const int64_t groups[] = {7, 7, 2, 7, 7, 7, 2, 2, 7};
    struct mlo_metric_data data = {.output = &x, .target = &y, .groups = groups};
    double dcg = 7 + 3 / log2(3) + 7 / 2.0 + 1 / log2(6) + 3 / log2(7);
    double ideal = 7 + 7 / log2(3) + 3 / 2.0 + 3 / log2(5) + 1 / log2(6);
    assert_scores("ndcg10", &data, (double[]){1 / log2(4), dcg / ideal}, 2);
    assert_scores("ndcg1", &data, (double[]){0, 1}, 2);
    assert_scores("hit2", &data, (double[]){0, 1}, 2);
    assert_scores("hit3", &data, (double[]){1, 1}, 2);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
}

static void test_metric__perplexity_by_hand(void **state)
{
    (void)state;
    /* equal logits over 4 words: 4; the second sample's only counted token has probability 1/2 */
    struct mlo_tensor x = make_tensor(MLO_FLOAT32, 3, DIMS(2, 2, 4),
                                      VALUES(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, -1000, -1000, 0, 0, 0, 0));
    struct mlo_tensor y = make_tensor(MLO_INT64, 2, DIMS(2, 2), VALUES(0, 3, 1, -100));
    struct mlo_metric_data data = {.output = &x, .target = &y};
    assert_value("perplexity", &data, exp((2 * log(4) + log(2)) / 3));
    ((int64_t *)y.data)[0] = 4;
    assert_refused("perplexity", &data, "token 4 of sample 0");
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
}

static void test_metric__agreement_and_divergence_by_hand(void **state)
{
    (void)state;
    struct mlo_tensor q = make_tensor(MLO_FLOAT32, 2, DIMS(2, 2), VALUES(0.25, 0.75, 1, 0));
    struct mlo_tensor p = make_tensor(MLO_FLOAT32, 2, DIMS(2, 2), VALUES(0.5, 0.5, 1, 0));
    struct mlo_metric_data data = {.output = &q, .reference = &p};
    double expected = 0.5 * log(2) + 0.5 * log(2.0 / 3);
    assert_scores("agreement", &data, (double[]){0, 1}, 2); /* equal scores: class 0 */
    assert_scores("kl", &data, (double[]){expected, 0}, 2);
    /* the same from logits, which no shift changes */
    struct mlo_tensor lq = make_tensor(MLO_FLOAT32, 2, DIMS(1, 2), VALUES(3, 4)),
                      lp = make_tensor(MLO_FLOAT32, 2, DIMS(1, 2), VALUES(-7, -7));
    struct mlo_metric_data logits = {.output = &lq, .reference = &lp};
    double q0 = 1 / (1 + exp(1)), q1 = 1 - q0;
    assert_scores("kl", &logits, (double[]){0.5 * log(0.5 / q0) + 0.5 * log(0.5 / q1)}, 1);
    mlo_tensor_clear(&q);
    mlo_tensor_clear(&p);
    mlo_tensor_clear(&lq);
    mlo_tensor_clear(&lp);
}

static void test_metric__mean_average_precision_by_hand(void **state)
{
    (void)state;
    /* image 0: an exact find below a false one, so precision 1/2; image 1: class 1 found with IoU 0.6 and
     * padding */
    struct mlo_tensor x = make_tensor(
        MLO_FLOAT32, 3, DIMS(2, 2, 6),
        VALUES(0, 0, 10, 10, 0.8, 0, 50, 50, 60, 60, 0.9, 0, /**/ 0, 0, 10, 6, 0.7, 1, 0, 0, 0, 0, 0, -1));
    struct mlo_tensor y =
        make_tensor(MLO_FLOAT32, 3, DIMS(2, 1, 5), VALUES(0, 0, 10, 10, 0, /**/ 0, 0, 10, 10, 1));
    struct mlo_metric_data data = {.output = &x, .target = &y};
    assert_value("map50", &data, (0.5 + 1) / 2);
    assert_value("map", &data, (0.5 + 0.3) / 2); /* 0.50, 0.55 and 0.60 of ten */
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    /* one of two boxes found, twice: 51 of 101 recalls; the second find of the same box is a false one */
    x = make_tensor(MLO_FLOAT32, 3, DIMS(1, 2, 6), VALUES(0, 0, 1, 1, 0.9, 3, 0, 0, 1, 1, 0.8, 3));
    y = make_tensor(MLO_FLOAT32, 3, DIMS(1, 2, 5), VALUES(0, 0, 1, 1, 3, 5, 5, 6, 6, 3));
    assert_value("map50", &data, 51.0 / 101);
    /* what a model says of classes is any number */
    ((float *)x.data)[5] = 1e30f;
    assert_refused("map50", &data, "box 0 of image 0 is of class 1e+30");
    ((float *)x.data)[5] = NAN;
    assert_refused("map", &data, "box 0 of image 0 is not finite");
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
}

static void test_metric__what_no_mean_is_gets_an_interval_too(void **state)
{
    (void)state;
    enum { N = 400 };
    struct mlo_error err = {0};
    struct mlo_tensor x = make_tensor(MLO_FLOAT32, 1, DIMS(N), NULL),
                      worse = make_tensor(MLO_FLOAT32, 1, DIMS(N), NULL),
                      y = make_tensor(MLO_INT64, 1, DIMS(N), NULL);
    uint32_t seed = 1;
    for (int i = 0; i < N; i++) {
        ((int64_t *)y.data)[i] = i % 2;
        seed = seed * 1664525u + 1013904223u;
        float noise = (float)(seed >> 8) / (1 << 24);
        ((float *)x.data)[i] = noise + 0.4f * (float)(i % 2);
        ((float *)worse.data)[i] = noise + 0.1f * (float)(i % 2);
    }
    struct mlo_metric_data data = {.output = &x, .target = &y}, other = {.output = &worse, .target = &y};
    /* uniform noise of width 1 and a shift d: AUC = 1 - (1 - d)^2 / 2 */
    struct mlo_estimate e = estimate("auc", &data), again = estimate("auc", &data), difference;
    assert_true(e.low < 0.82 && 0.82 < e.high && e.high - e.low < 0.12 && e.n == N);
    assert_true(e.low == again.low && e.high == again.high);
    struct mlo_scores *a = scored("auc", &data), *b = scored("auc", &other);
    assert_ok(mlo_scores_paired(a, b, &difference, &err));
    assert_true(difference.low > 0.1 && difference.high < 0.35); /* 0.82 - 0.595 */
    assert_ok(mlo_scores_paired(a, a, &difference, &err));
    assert_true(difference.low == 0 && difference.value == 0 && difference.high == 0);
    assert_true(mlo_scores_mcnemar(a, b) < 0);
    json_t *json = mlo_scores_json(a);
    assert_int_equal(json_array_size(json_object_get(json, "rows")), N);
    assert_string_equal(json_string_value(json_array_get(json_object_get(json, "columns"), 1)), "label");
    json_decref(json);
    mlo_scores_free(a);
    mlo_scores_free(b);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&worse);
    mlo_tensor_clear(&y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metric__table_is_complete),
        cmocka_unit_test(test_metric__names_carry_k),
        cmocka_unit_test(test_metric__unknown_name_suggests_the_nearest),
        cmocka_unit_test(test_metric__top1_and_top5_by_hand),
        cmocka_unit_test(test_metric__top1_takes_other_output_forms),
        cmocka_unit_test(test_metric__bad_samples_are_named),
        cmocka_unit_test(test_metric__distances_by_hand),
        cmocka_unit_test(test_metric__psnr_knows_its_peak),
        cmocka_unit_test(test_metric__f1_by_hand),
        cmocka_unit_test(test_metric__auc_by_hand),
        cmocka_unit_test(test_metric__spearman_by_hand),
        cmocka_unit_test(test_metric__ranking_within_groups_by_hand),
        cmocka_unit_test(test_metric__perplexity_by_hand),
        cmocka_unit_test(test_metric__agreement_and_divergence_by_hand),
        cmocka_unit_test(test_metric__mean_average_precision_by_hand),
        cmocka_unit_test(test_metric__what_no_mean_is_gets_an_interval_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
