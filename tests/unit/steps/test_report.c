/* The step report on a net of two nodes whose noise is done by hand. */
#include <stdlib.h>
#include <unistd.h>

#include "pipeline/steps/report_impl.h"
#include "tests/unit/passes/passes_helpers.h"

/* y = Relu(x W) */
static const float W[] = {1, 0.3f, -0.5f, 0.25f};

static struct mlo_model *source(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *a = op(m, "MatMul", "a", input(m, "x", -1, 2), floats(m, "w", W, 2, 2));
    finish(m, op(m, "Relu", "y", a));
    return m;
}

static struct mlo_value *bytes(struct mlo_model *m, const char *name, enum mlo_dtype dtype, const int *list,
                               int rank, const int64_t *dims)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    assert_ok(mlo_tensor_init(&t, dtype, rank, dims, &err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        ((uint8_t *)t.data)[i] = (uint8_t)list[i];
    return constant_take(m, name, &t);
}

/* The same with x in steps of 1/2 around 128, and weights in steps of 1/4: 0.3 becomes 0.25. */
static struct mlo_model *variant(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 2), *scale = scalar(m, "x_scale", 0.5f);
    struct mlo_value *zero = bytes(m, "x_zero", MLO_UINT8, (const int[]){128}, 0, NULL);
    struct mlo_value *q = op(m, "QuantizeLinear", "x_q", x, scale, zero);
    struct mlo_value *back = op(m, "DequantizeLinear", "x_dq", q, scale, zero);
    struct mlo_value *wq = bytes(m, "w_q", MLO_INT8, (const int[]){4, 1, -2, 1}, 2, DIMS(2, 2));
    struct mlo_value *w = op(m, "DequantizeLinear", "w_dq", wq, scalar(m, "w_scale", 0.25f));
    finish(m, op(m, "Relu", "y", op(m, "MatMul", "a", back, w)));
    return m;
}

struct bench {
    char dir[64], source[96], variant[96], data[96];
};

static void set_up(struct bench *b)
{
    struct mlo_error err = {0};
    struct mlo_tensor x = {0}, y = {0};
    struct mlo_model *s = source(), *v = variant();
    *b = (struct bench){.dir = "/tmp/mlopt-test-XXXXXX"};
    assert_non_null(mkdtemp(b->dir));
    snprintf(b->source, sizeof b->source, "%s/s.onnx", b->dir);
    snprintf(b->variant, sizeof b->variant, "%s/v.onnx", b->dir);
    snprintf(b->data, sizeof b->data, "%s/x.npz", b->dir);
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 2, DIMS(2, 2), &err));
    assert_ok(mlo_tensor_init(&y, MLO_INT64, 1, DIMS(2), &err));
    memcpy(x.data, LIST(0.1f, 1, 0.25f, 100), x.size_bytes);
    ((int64_t *)y.data)[0] = 1;
    ((int64_t *)y.data)[1] = 1;
    assert_ok(mlo_npz_write(b->data, (struct mlo_npz_array[]){{"x", &x}, {"y", &y}}, 2, &err));
    assert_ok(mlo_onnx_save(s, b->source, &err));
    assert_ok(mlo_onnx_save(v, b->variant, &err));
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    mlo_model_free(s);
    mlo_model_free(v);
}

static void tear_down(struct bench *b)
{
    static const char *const FILES[] = {"s.onnx", "v.onnx", "x.npz", "report.json"};
    char path[96];
    for (size_t i = 0; i < MLO_COUNT(FILES); i++) {
        snprintf(path, sizeof path, "%s/%s", b->dir, FILES[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(b->dir), 0);
}

/* Runs the step; the text of what it wrote is appended to `text`. */
static json_t *report(const struct bench *b, bool data, const char *history, unsigned threads, int64_t batch,
                      struct mlo_buf *text)
{
    struct mlo_error err = {0};
    const struct mlo_step *step = mlo_step_find("report");
    struct mlo_step_result result = {0};
    json_t *options, *told = history ? json_loads(history, 0, NULL) : NULL, *out;
    assert_ok(mlo_options_resolve(step->options, NULL, &options, &err));
    const struct mlo_step_context ctx = {.options = options,
                                         .model_path = b->variant,
                                         .source_path = b->source,
                                         .calibrate_path = data ? b->data : NULL,
                                         .history = told,
                                         .out_dir = b->dir,
                                         .threads = threads,
                                         .batch = batch};
    if (step->run(&ctx, &result, &err) != MLO_OK)
        fail_msg("%s", err.message);
    assert_null(result.artifact_path);
    assert_ok(mlo_json_load_file(result.document_path, &out, &err));
    if (text)
        assert_ok(mlo_fs_read(result.document_path, 1 << 20, text, &err));
    mlo_step_result_clear(&result);
    json_decref(options);
    json_decref(told);
    return out;
}

static const json_t *named(const json_t *list, const char *key, const char *name, const char *kind)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)list, i, row)
    {
        if (strcmp(mlo_json_str(row, key, ""), name) == 0 &&
            (!kind || strcmp(mlo_json_str(row, "kind", ""), kind) == 0))
            return row;
    }
    fail_msg("the report has no %s '%s'", key, name);
    return NULL;
}

static double at(const json_t *row, const char *key, size_t i)
{
    return json_number_value(json_array_get(json_object_get(row, key), i));
}

/* --- tensors ------------------------------------------------------------------------------------------- */

static void test_report__noise_of_a_value_is_as_done_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    set_up(&b);
    json_t *r = report(&b, true, NULL, 1, 0, NULL);
    const json_t *x = named(json_object_get(r, "tensors"), "tensor", "x", "value");
    /* in steps of 1/2, from -64 to 63.5: 0.1 and 0.25 become 0 (halves to even), 1 stays, 100 is clipped.
     * signal 0.01 + 1 + 0.0625 + 10000, noise 0.01 + 0.0625 + 36.5^2: 10 log10(10001.0725 / 1332.3225) */
    assert_true(mlo_json_f64(x, "sqnr_db", 0) == 8.75);
    assert_true(mlo_json_f64(x, "grid_sqnr_db", 0) == 8.75);
    assert_true(mlo_json_f64(x, "clipped", 0) == 0.25);
    assert_true(at(x, "range", 0) == -64 && at(x, "range", 1) == 63.5);
    assert_true(at(x, "observed", 1) == 100);
    assert_string_equal(mlo_json_str(x, "dtype", ""), "uint8");
    assert_int_equal(mlo_json_i64(x, "zero_point", 0), 128);
    json_decref(r);
    tear_down(&b);
}

static void test_report__noise_of_weights_is_as_done_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    set_up(&b);
    for (int data = 0; data < 2; data++) { /* weights need none */
        json_t *r = report(&b, data, NULL, 1, 0, NULL);
        const json_t *w = named(json_object_get(r, "tensors"), "tensor", "w", "weights");
        /* signal 1 + 0.09 + 0.25 + 0.0625, noise 0.05^2: 10 log10(561) */
        assert_true(mlo_json_f64(w, "sqnr_db", 0) == 27.49);
        assert_string_equal(mlo_json_str(w, "dtype", ""), "int8");
        assert_string_equal(mlo_json_str(w, "node", ""), "a_node");
        assert_int_equal(mlo_json_i64(w, "scales", 0), 1);
        assert_int_equal(json_is_object(json_object_get(r, "accuracy")), data);
        json_decref(r);
    }
    tear_down(&b);
}

static void test_report__the_noisiest_tensor_is_first(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    set_up(&b);
    json_t *r = report(&b, true, NULL, 1, 0, NULL);
    const json_t *tensors = json_object_get(r, "tensors");
    assert_int_equal(json_array_size(tensors), 4); /* x, a, y, w */
    for (size_t i = 1; i < 4; i++)
        assert_true(mlo_json_f64(json_array_get(tensors, i - 1), "sqnr_db", 0) <=
                    mlo_json_f64(json_array_get(tensors, i), "sqnr_db", 0));
    json_decref(r);
    tear_down(&b);
}

static void test_report__histogram_has_few_bins_and_every_value(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        int most;
        double low, width;
        size_t bins;
        json_int_t counts[8];
    } cases[] = {
        /* -1, 0, 0.5 and 3: bins of 2^-9 at first, in groups of 512, 1024, 2048 */
        {8, -1, 1, 5, {1, 2, 0, 0, 1}},
        {4, -2, 2, 3, {1, 2, 1}},
        {2, -4, 4, 2, {1, 3}},
    };
    struct mlo_error err = {0};
    struct mlo_stats stats;
    mlo_stats_init(&stats);
    struct mlo_tensor_stats *t = mlo_stats_get(&stats, "v");
    assert_null(mlo_report_histogram(t, 8));
    assert_ok(mlo_tensor_stats_add(t, LIST(-1, 0, 0.5f, 3), 4, &err));
    for (size_t c = 0; c < MLO_COUNT(cases); c++) {
        json_t *h = mlo_report_histogram(t, cases[c].most);
        assert_true(mlo_json_f64(h, "low", 9) == cases[c].low);
        assert_true(mlo_json_f64(h, "width", 9) == cases[c].width);
        const json_t *counts = json_object_get(h, "counts");
        assert_int_equal(json_array_size(counts), cases[c].bins);
        for (size_t i = 0; i < cases[c].bins; i++)
            assert_int_equal(json_integer_value(json_array_get(counts, i)), cases[c].counts[i]);
        json_decref(h);
    }
    mlo_stats_clear(&stats);
}

static void test_report__decibels_are_bounded_and_rounded(void **state)
{
    MLO_UNUSED(state);
    assert_true(mlo_report_db(100, 1) == 20);
    assert_true(mlo_report_db(2, 1) == 3.01);
    assert_true(mlo_report_db(1, 0) == MLO_SQNR_MAX_DB);
    assert_true(mlo_report_db(0, 1) == -MLO_SQNR_MAX_DB);
    assert_true(mlo_report_db(1, NAN) == -MLO_SQNR_MAX_DB);
}

/* A Gemm of 64 inputs and 32 outputs. */
static struct mlo_model *gemm(bool transposed)
{
    struct mlo_model *m = new_model(21);
    struct mlo_value *w = transposed ? ramp(m, "w", 0.07f, 32, 64) : ramp(m, "w", 0.07f, 64, 32);
    struct mlo_value *y = op(m, "Gemm", "y", input(m, "x", -1, 64), w, ramp(m, "b", 0.1f, 32));
    assert_true(mlo_node_set_i(y->producer, "transB", transposed));
    finish(m, y);
    return m;
}

/* What the variant that a pass makes of the Gemm multiplies by; NULL without data, else observed on the ramp.
 */
static float *weights_after(bool transposed, const char *pass, const char *options, bool observed,
                            enum mlo_dtype *dtype)
{
    struct mlo_error err = {0};
    struct mlo_model *was = gemm(transposed), *made = gemm(transposed);
    struct mlo_stats stats;
    size_t scales;
    int hint = 0;
    float *w;
    mlo_stats_init(&stats);
    if (observed)
        assert_ok(mlo_tensor_stats_add(mlo_stats_get(&stats, "x"), LIST(-1, 2), 2, &err));
    if (run_pass(made, pass, options, &stats, NULL, &err) != MLO_OK)
        fail_msg("%s", err.message);
    const struct mlo_node *node = was->graph->nodes[0];
    const struct mlo_node *partner = mlo_report_partner(made->graph, true, node, &hint);
    assert_non_null(partner);
    hint = 0;
    assert_ptr_equal(mlo_report_partner(was->graph, false, partner, &hint), node);
    assert_ok(mlo_report_weights_of(partner, node, &w, dtype, &scales, &err));
    assert_non_null(w);
    assert_true(scales > 1);
    mlo_stats_clear(&stats);
    mlo_model_free(was);
    mlo_model_free(made);
    return w;
}

static void test_report__weights_are_the_same_in_every_form(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *pass, *a, *b;
        bool observed;
    } cases[] = {
        {"quantize-weights", "{\"type\": \"int4\", \"block\": 32, \"form\": \"qdq\", \"min_weights\": 1}",
         "{\"type\": \"int4\", \"block\": 32, \"form\": \"matmulnbits\", \"min_weights\": 1}", false},
        {"quantize-dynamic", "{\"type\": \"int8\"}", "{\"type\": \"uint8\"}", false},
        {"quantize", "{\"form\": \"qdq\"}", "{\"form\": \"qoperator\"}", true},
    };
    for (size_t c = 0; c < MLO_COUNT(cases); c++) {
        for (int transposed = 0; transposed < 2; transposed++) {
            enum mlo_dtype p, q;
            float *a = weights_after(transposed, cases[c].pass, cases[c].a, cases[c].observed, &p);
            float *b = weights_after(transposed, cases[c].pass, cases[c].b, cases[c].observed, &q);
            struct mlo_model *m = gemm(transposed);
            const float *w = mlo_node_const(m->graph->nodes[0], 1)->data;
            for (int i = 0; i < 64 * 32; i++) {
                assert_true(a[i] == b[i]);
                assert_true(fabsf(a[i] - w[i]) < 0.06f); /* about a step of 16 levels */
            }
            mlo_model_free(m);
            free(a);
            free(b);
        }
    }
}

/* --- nodes --------------------------------------------------------------------------------------------- */

static void test_report__nodes_have_a_precision_and_a_reason(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    set_up(&b);
    json_t *r = report(&b, false,
                       "[{\"step\": \"qat-export\", \"options\": {}, \"report\": {\"notes\": ["
                       "{\"node\": \"y_node\", \"note\": \"Relu stays in float: the moon is full\"},"
                       "{\"node\": \"y_node\", \"note\": \"its bias is round\"}]}}]",
                       1, 0, NULL);
    const json_t *precision = json_object_get(r, "precision"), *nodes = json_object_get(precision, "nodes");
    assert_int_equal(json_array_size(nodes), 2); /* the pairs are no nodes of their own */
    const json_t *a = named(nodes, "node", "a_node", NULL), *y = named(nodes, "node", "y_node", NULL);
    assert_string_equal(mlo_json_str(a, "runs_in", ""), "integer");
    assert_string_equal(mlo_json_str(a, "precision", ""), "uint8 x int8");
    assert_null(json_object_get(a, "why"));
    assert_true(mlo_json_f64(a, "macs", 0) == 4);
    assert_string_equal(mlo_json_str(y, "runs_in", ""), "float");
    assert_string_equal(mlo_json_str(y, "why", ""), "stays in float: the moon is full");
    const json_t *sum = json_object_get(json_object_get(precision, "sums"), "integer");
    assert_int_equal(mlo_json_i64(sum, "nodes", 0), 1);
    assert_true(mlo_json_f64(sum, "weight_bytes", 0) == 8); /* four bytes and a scale */
    json_decref(r);
    tear_down(&b);
}

/* --- samples ------------------------------------------------------------------------------------------- */

static void test_report__samples_say_what_became_of_them(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    set_up(&b);
    json_t *r = report(&b, true, NULL, 1, 0, NULL);
    const json_t *samples = json_object_get(r, "samples"), *outcomes = json_object_get(samples, "outcomes");
    /* source: [0, 0.28] and [0, 25.075], both of class 1, which is right. Variant: x is [0, 1] and [0, 63.5]:
     * [0, 0.25] and [0, 15.875] */
    assert_int_equal(mlo_json_i64(outcomes, "both_right", -1), 2);
    assert_int_equal(mlo_json_i64(outcomes, "lost", -1), 0);
    const json_t *worst = json_array_get(json_object_get(samples, "worst"), 0);
    assert_int_equal(mlo_json_i64(worst, "sample", -1), 1);
    assert_int_equal(mlo_json_i64(worst, "element", -1), 1);
    assert_int_equal(mlo_json_i64(worst, "label", -1), 1);
    assert_true(fabs(mlo_json_f64(worst, "source_value", 0) - 25.075) < 1e-5);
    assert_true(mlo_json_f64(worst, "variant_value", 0) == 15.875);
    assert_true(fabs(mlo_json_f64(worst, "deviation", 0) - 9.2) < 1e-5);
    const json_t *metric = json_array_get(json_object_get(json_object_get(r, "accuracy"), "metrics"), 0);
    assert_string_equal(mlo_json_str(metric, "metric", ""), "top1");
    assert_true(mlo_json_f64(json_object_get(metric, "difference"), "value", 1) == 0);
    json_decref(r);
    tear_down(&b);
}

/* Intervals are of all samples that the data has; tensors are compared on the first. */
static void test_report__judges_on_all_samples(void **state)
{
    MLO_UNUSED(state);
    enum { N = 300 };
    struct bench b;
    struct mlo_error err = {0};
    struct mlo_tensor x = {0}, y = {0};
    set_up(&b);
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 2, DIMS(N, 2), &err));
    assert_ok(mlo_tensor_init(&y, MLO_INT64, 1, DIMS(N), &err));
    for (int i = 0; i < N; i++) {
        ((float *)x.data)[2 * i + 1] = 1;
        ((int64_t *)y.data)[i] = i % 3 != 0; /* of class 1 for both models: two of three are right */
    }
    assert_ok(mlo_npz_write(b.data, (struct mlo_npz_array[]){{"x", &x}, {"y", &y}}, 2, &err));
    json_t *r = report(&b, true, NULL, 1, 32, NULL), *data = json_object_get(r, "data");
    assert_int_equal(mlo_json_i64(json_object_get(data, "accuracy"), "samples", 0), N);
    assert_int_equal(mlo_json_i64(json_object_get(data, "tensors"), "samples", 0), 32);
    assert_int_equal(mlo_json_i64(json_object_get(data, "tensors"), "of", 0), N);
    const json_t *metric = json_array_get(json_object_get(json_object_get(r, "accuracy"), "metrics"), 0);
    assert_int_equal(mlo_json_i64(metric, "n", 0), N);
    assert_float_equal(mlo_json_f64(json_object_get(metric, "variant"), "value", 0), 2.0 / 3, 1e-12);
    assert_int_equal(
        mlo_json_i64(json_object_get(json_object_get(r, "samples"), "outcomes"), "both_right", 0), 200);
    json_decref(r);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    tear_down(&b);
}

static void test_report__bytes_do_not_depend_on_threads_or_batch(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    struct mlo_buf first = MLO_BUF_INIT, other = MLO_BUF_INIT;
    set_up(&b);
    json_decref(report(&b, true, NULL, 1, 0, &first));
    for (int i = 0; i < 3; i++) {
        mlo_buf_reset(&other);
        json_decref(report(&b, true, NULL, (unsigned)(i % 2 + 1), (const int64_t[]){1, 8, 32}[i], &other));
        assert_string_equal(mlo_buf_str(&first), mlo_buf_str(&other));
    }
    assert_null(strstr(mlo_buf_str(&first), "\"ms\""));
    mlo_buf_clear(&first);
    mlo_buf_clear(&other);
    tear_down(&b);
}

/* --- what the quantize pass says of nodes -------------------------------------------------------------- */

static void test_report__quantizing_is_explained(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *a = op(m, "MatMul", "a", input(m, "x", -1, 2), floats(m, "w", W, 2, 2));
    struct mlo_value *s = op(m, "Softmax", "s", op(m, "Relu", "r", a));
    finish(m, op(m, "MatMul", "y", s, floats(m, "v", W, 2, 2)));
    struct mlo_arena *arena = mlo_arena_new();
    json_t *given = json_pack("{s:[s]}", "exclude", "y_node"), *options;
    struct mlo_quantize_reason *rows;
    size_t count;
    assert_ok(mlo_options_resolve(mlo_quantize_options, given, &options, &err));
    assert_ok(mlo_quantize_explain(m, options, arena, &rows, &count, &err));
    assert_int_equal(count, 4);
    assert_int_equal(rows[0].how, MLO_RUNS_INTEGER);
    assert_null(rows[0].why);
    assert_int_equal(rows[1].how, MLO_RUNS_FUSED);
    assert_string_equal(rows[1].why, "it is part of 'a_node'");
    assert_string_equal(rows[2].why, "the target mlopt-cpu has no integer form of Softmax");
    assert_string_equal(rows[3].why, "MatMul stays in float: it is excluded by the options");
    json_decref(given);
    json_decref(options);
    mlo_arena_free(arena);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report__noise_of_a_value_is_as_done_by_hand),
        cmocka_unit_test(test_report__noise_of_weights_is_as_done_by_hand),
        cmocka_unit_test(test_report__the_noisiest_tensor_is_first),
        cmocka_unit_test(test_report__histogram_has_few_bins_and_every_value),
        cmocka_unit_test(test_report__decibels_are_bounded_and_rounded),
        cmocka_unit_test(test_report__weights_are_the_same_in_every_form),
        cmocka_unit_test(test_report__nodes_have_a_precision_and_a_reason),
        cmocka_unit_test(test_report__samples_say_what_became_of_them),
        cmocka_unit_test(test_report__judges_on_all_samples),
        cmocka_unit_test(test_report__bytes_do_not_depend_on_threads_or_batch),
        cmocka_unit_test(test_report__quantizing_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
