/* Sensitivity and the budget of accuracy on a net of three layers whose middle one int8 ruins: one weight of
 * 1000, which multiplies a feature that is always 0, makes the one scale of its tensor 7.9, and all the other
 * weights, of at most 1, round to 0. */
#include <stdlib.h>
#include <unistd.h>

#include "pipeline/steps/step_impl.h"
#include "tests/unit/passes/passes_helpers.h"

enum { SAMPLES = 500, FEATURES = 4, CLASSES = 2 };
static const char PER_TENSOR[] = "{\"per_channel\": false}";

/* x -> a -> b (ruined) -> y; the sign of feature 0 is the class, feature 3 is 0 all the way. */
static struct mlo_model *net(bool ruined)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *a =
        op(m, "MatMul", "a", input(m, "x", -1, FEATURES),
           floats(m, "wa", LIST(1, 0, 0.1f, 0, 0, 1, 0, 0, 0.1f, 0, 1, 0, 0, 0, 0, 0), 4, 4));
    struct mlo_value *b =
        op(m, "MatMul", "b", a,
           floats(m, "wb", LIST(1, 0.2f, 0, 0, 0, 1, 0.1f, 0, 0, 0, 1, 0, ruined ? 1000 : 0, 0, 0, 0), 4, 4));
    finish(m, op(m, "MatMul", "y", b, floats(m, "wy", LIST(1, -1, 0.1f, 0, 0, 0.1f, 0, 0), 4, 2)));
    return m;
}

static void data(struct mlo_tensor *x, struct mlo_tensor *y, int64_t samples)
{
    struct mlo_error err = {0};
    assert_ok(mlo_tensor_init(x, MLO_FLOAT32, 2, DIMS(samples, FEATURES), &err));
    assert_ok(mlo_tensor_init(y, MLO_INT64, 1, DIMS(samples), &err));
    for (int64_t i = 0; i < samples; i++) {
        float *row = (float *)x->data + i * FEATURES;
        row[0] = i % 2 ? -1.0f - (float)(i % 7) * 0.1f : 1.0f + (float)(i % 5) * 0.1f;
        row[1] = (float)(i % 11) * 0.05f;
        row[2] = (float)(i % 13) * -0.05f;
        row[3] = 0;
        ((int64_t *)y->data)[i] = i % 2;
    }
}

/* --- sensitivity --------------------------------------------------------------------------------------- */

struct bench {
    char dir[64], path[96], model_path[96];
    json_t *options;
};

static void set_up(struct bench *b, struct mlo_model *model, int64_t samples, const char *options)
{
    struct mlo_error err = {0};
    struct mlo_tensor x, y;
    json_t *given = json_loads(options, 0, NULL);
    *b = (struct bench){.dir = "/tmp/mlopt-test-XXXXXX"};
    assert_non_null(mkdtemp(b->dir));
    snprintf(b->path, sizeof b->path, "%s/x.npz", b->dir);
    snprintf(b->model_path, sizeof b->model_path, "%s/m.onnx", b->dir);
    data(&x, &y, samples);
    assert_ok(mlo_npz_write(b->path, (struct mlo_npz_array[]){{"x", &x}, {"y", &y}}, 2, &err));
    assert_ok(mlo_options_resolve(mlo_quantize_options, given, &b->options, &err));
    assert_ok(mlo_onnx_save(model, b->model_path, &err));
    json_decref(given);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
}

static void tear_down(struct bench *b)
{
    static const char *const FILES[] = {"x.npz", "m.onnx", "model.onnx", "decision.json"};
    char path[96];
    for (size_t i = 0; i < MLO_COUNT(FILES); i++) {
        snprintf(path, sizeof path, "%s/%s", b->dir, FILES[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(b->dir), 0);
    json_decref(b->options);
}

static json_t *measure(const struct mlo_model *model, const struct bench *b, const char *metric,
                       unsigned threads, int64_t batch)
{
    struct mlo_error err = {0};
    struct mlo_dataset_options all = {0};
    struct mlo_dataset *calibration, *select;
    struct mlo_judge judge = {0};
    struct mlo_sensitivity found;
    assert_ok(mlo_dataset_open(b->path, &all, &calibration, &err));
    assert_ok(mlo_dataset_open(b->path, &all, &select, &err));
    if (metric)
        assert_ok(mlo_judge_init(&judge, model, select, metric, threads, batch, &err));
    const struct mlo_sensitivity_request request = {.model = model,
                                                    .options = b->options,
                                                    .dataset = calibration,
                                                    .samples = 50,
                                                    .judge = metric ? &judge : NULL,
                                                    .threads = threads,
                                                    .batch = batch};
    assert_ok(mlo_sensitivity_observe(request, &found, &err));
    json_t *rows = mlo_sensitivity_json(&found);
    mlo_sensitivity_clear(&found);
    mlo_judge_clear(&judge);
    mlo_dataset_close(calibration);
    mlo_dataset_close(select);
    return rows;
}

static void test_sensitivity__the_ruined_node_is_first(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    struct mlo_model *m = net(true);
    set_up(&b, m, SAMPLES, PER_TENSOR);
    json_t *rows = measure(m, &b, "top1", 1, 0);
    assert_int_equal(json_array_size(rows), 3);
    const json_t *worst = json_array_get(rows, 0);
    assert_string_equal(mlo_json_str(worst, "node", ""), "b_node");
    assert_string_equal(mlo_json_str(worst, "op", ""), "MatMul");
    assert_true(fabs(mlo_json_f64(worst, "sqnr_db", 99)) < 0.1); /* all is lost: the noise is the signal */
    assert_true(mlo_json_f64(worst, "macs", 0) == 16);
    /* every answer is one class: half of them are wrong */
    assert_true(fabs(mlo_json_f64(json_object_get(worst, "drop"), "value", 0) - 0.5) < 0.01);
    for (size_t i = 1; i < 3; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_true(mlo_json_f64(row, "sqnr_db", 0) > 30);
        assert_true(mlo_json_f64(json_object_get(row, "drop"), "value", 1) == 0);
    }
    json_decref(rows);
    tear_down(&b);
    mlo_model_free(m);
}

static void test_sensitivity__a_scale_for_each_channel_helps(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    struct mlo_model *m = net(true);
    set_up(&b, m, SAMPLES, "{\"per_channel\": true}");
    json_t *rows = measure(m, &b, NULL, 1, 0);
    const json_t *worst =
        json_array_get(rows, 0); /* the channel of the outlier is lost, the others are not */
    assert_string_equal(mlo_json_str(worst, "node", ""), "b_node");
    assert_null(json_object_get(worst, "drop"));
    json_decref(rows);
    tear_down(&b);
    mlo_model_free(m);
}

static void test_sensitivity__threads_and_batch_change_nothing(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    struct mlo_model *m = net(true);
    set_up(&b, m, SAMPLES, PER_TENSOR);
    json_t *one = measure(m, &b, "top1", 1, 1), *two = measure(m, &b, "top1", 2, 32);
    assert_true(json_equal(one, two));
    json_decref(one);
    json_decref(two);
    tear_down(&b);
    mlo_model_free(m);
}

static void test_sqnr__by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_tensor x[2] = {0}, y[2] = {0};
    for (int i = 0; i < 2; i++) {
        assert_ok(mlo_tensor_init(&x[i], MLO_FLOAT32, 1, DIMS(2), &err));
        assert_ok(mlo_tensor_init(&y[i], MLO_FLOAT32, 1, DIMS(2), &err));
        memcpy(x[i].data, LIST(3, 4), 8);
        memcpy(y[i].data, LIST(3, 4), 8);
    }
    assert_true(mlo_outputs_sqnr(x, y, 2) == MLO_SQNR_MAX_DB);
    ((float *)y[1].data)[0] = 3.5f; /* 25 / 0.25 */
    assert_true(fabs(mlo_outputs_sqnr(x, y, 2) - 20) < 1e-9);
    ((float *)y[1].data)[0] = NAN;
    assert_true(mlo_outputs_sqnr(x, y, 2) == -MLO_SQNR_MAX_DB);
    for (int i = 0; i < 2; i++) {
        mlo_tensor_clear(&x[i]);
        mlo_tensor_clear(&y[i]);
    }
}

static enum mlo_status run_step(const struct bench *b, const char *select, unsigned threads, int64_t batch,
                                struct mlo_step_result *result, struct mlo_error *err)
{
    const struct mlo_step_context ctx = {.options = b->options,
                                         .model_path = b->model_path,
                                         .source_path = b->model_path,
                                         .calibrate_path = b->path,
                                         .select_path = select,
                                         .out_dir = b->dir,
                                         .threads = threads,
                                         .batch = batch};
    *result = (struct mlo_step_result){0};
    return mlo_step_find("quantize")->run(&ctx, result, err);
}

/* Makes weights behind DequantizeLinear constants, by the op table. */
static int fold_weights(struct mlo_model *m)
{
    struct mlo_error err = {0};
    int folded = 0;
    for (int n = m->graph->node_count - 1; n >= 0; n--) {
        struct mlo_node *node = m->graph->nodes[n];
        const struct mlo_tensor *in[] = {mlo_node_const(node, 0), mlo_node_const(node, 1),
                                         mlo_node_const(node, 2)};
        struct mlo_tensor floats = {0}, *out[] = {&floats};
        if (!mlo_node_is(node, "DequantizeLinear") || !in[0])
            continue;
        assert_ok(mlo_node_eval(node, in, out, &err));
        assert_ok(mlo_value_make_constant_take(node->outputs[0], &floats, &err));
        mlo_graph_remove_node(node);
        folded++;
    }
    return folded;
}

/* What is judged is the variant itself: the engine computes its weights once, and the outputs are, to the
 * bit, those of the floats that they stand for, whatever the threads and the batch. */
static void test_judge__weights_behind_pairs_are_weights(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    struct mlo_error err = {0};
    struct mlo_step_result result;
    struct mlo_dataset_options all = {0};
    struct mlo_dataset *dataset;
    struct mlo_model *m = net(false), *variant, *folded;
    struct mlo_tensor x[1], y[1];
    set_up(&b, m, SAMPLES, "{\"accuracy_drop\": \"none\"}");
    assert_ok(run_step(&b, NULL, 1, 0, &result, &err));
    assert_ok(mlo_onnx_load(result.artifact_path, &variant, &err));
    assert_ok(mlo_model_clone(variant, &folded, &err));
    assert_int_equal(fold_weights(folded), 3);
    assert_ok(mlo_dataset_open(b.path, &all, &dataset, &err));
    for (unsigned i = 0; i < 4; i++) {
        const struct mlo_run_options run = {
            .threads = 1 + i % 2, .batch = i < 2 ? 1 : 32, .numerics = MLO_NUMERICS_INVARIANT};
        assert_ok(mlo_run_dataset(variant, dataset, &run, x, NULL, NULL, &err));
        assert_ok(mlo_run_dataset(folded, dataset, &run, y, NULL, NULL, &err));
        assert_int_equal(x->size_bytes, y->size_bytes);
        assert_memory_equal(x->data, y->data, x->size_bytes);
        mlo_tensor_clear(x);
        mlo_tensor_clear(y);
    }
    mlo_dataset_close(dataset);
    mlo_model_free(variant);
    mlo_model_free(folded);
    mlo_step_result_clear(&result);
    tear_down(&b);
    mlo_model_free(m);
}

/* --- the budget, through the step ---------------------------------------------------------------------- */

static void expect_refusal(struct mlo_model *model, int64_t samples, const char *options, bool select,
                           enum mlo_status status, const char *message)
{
    struct bench b;
    struct mlo_error err = {0};
    struct mlo_step_result result;
    set_up(&b, model, samples, options);
    enum mlo_status got = run_step(&b, select ? b.path : NULL, 1, 0, &result, &err);
    if (got != status || !strstr(err.message, message) || !err.hint[0])
        fail_msg("status %d: %s (%s; %s)", got, err.message, err.where, err.hint);
    mlo_step_result_clear(&result);
    tear_down(&b);
    mlo_model_free(model);
}

/* On more threads, in other batches, the budget's choice and the bytes are the same. */
static void expect_same(const struct bench *b, const struct mlo_step_result *first)
{
    struct mlo_error err = {0};
    struct mlo_step_result again;
    struct mlo_digest one, two;
    assert_ok(mlo_digest_of_file(first->artifact_path, &one, NULL, &err));
    assert_ok(run_step(b, b->path, 2, 32, &again, &err));
    assert_ok(mlo_digest_of_file(again.artifact_path, &two, NULL, &err));
    assert_true(mlo_digest_eq(&one, &two));
    assert_true(json_equal(json_object_get(first->report, "mixed_precision"),
                           json_object_get(again.report, "mixed_precision")));
    mlo_step_result_clear(&again);
}

#define BUDGET(drop) "{\"per_channel\": false, \"accuracy_drop\": \"" drop "\"}"

static void test_budget__the_ruined_node_alone_goes_back(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    struct mlo_error err = {0};
    struct mlo_step_result first;
    struct mlo_model *m = net(true), *made;
    set_up(&b, m, SAMPLES, BUDGET("0.5pt"));
    assert_ok(run_step(&b, b.path, 1, 1, &first, &err));
    const json_t *decision = json_object_get(first.report, "mixed_precision");
    const json_t *given = json_object_get(decision, "given_back"), *drop = json_object_get(decision, "drop");
    assert_int_equal(json_array_size(given), 1);
    assert_string_equal(mlo_json_str(json_array_get(given, 0), "node", ""), "b_node");
    assert_true(mlo_json_f64(drop, "high", 1) <= 0.005);
    assert_true(mlo_json_f64(json_object_get(decision, "all_integer"), "value", 0) > 0.4);
    assert_int_equal(json_array_size(json_object_get(decision, "tried")), 2); /* none, and the first */
    assert_int_equal(json_array_size(json_object_get(decision, "ranking")), 3);
    const json_t *note = json_array_get(json_object_get(first.report, "notes"), 0);
    assert_string_equal(mlo_json_str(note, "node", ""), "b_node");
    assert_non_null(strstr(mlo_json_str(note, "note", ""), "stays in float"));
    assert_ok(mlo_onnx_load(first.artifact_path, &made, &err));
    assert_null(node_named(made, "b_node")->inputs[1]->producer); /* the float weights themselves */
    assert_non_null(node_named(made, "y_node")->inputs[1]->producer);
    mlo_model_free(made);
    expect_same(&b, &first);
    mlo_step_result_clear(&first);
    tear_down(&b);
    mlo_model_free(m);
}

static void test_budget__nothing_goes_back_without_need(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    struct mlo_error err = {0};
    struct mlo_step_result result;
    struct mlo_model *m = net(false);
    set_up(&b, m, SAMPLES, BUDGET("0.5pt"));
    assert_ok(run_step(&b, b.path, 1, 0, &result, &err));
    const json_t *decision = json_object_get(result.report, "mixed_precision");
    assert_int_equal(json_array_size(json_object_get(decision, "given_back")), 0);
    assert_int_equal(json_array_size(json_object_get(decision, "tried")), 1);
    mlo_step_result_clear(&result);
    tear_down(&b);
    mlo_model_free(m);
}

static void test_budget__what_cannot_be_shown_is_refused(void **state)
{
    MLO_UNUSED(state);
    expect_refusal(net(true), 100, BUDGET("0.5pt"), true, MLO_EINVAL, "100 samples are too few");
    expect_refusal(net(true), SAMPLES, BUDGET("0.5pt"), false, MLO_EINVAL, "role select");
    expect_refusal(net(true), SAMPLES, BUDGET("half"), true, MLO_EINVAL, "'half' is no budget");
    expect_refusal(net(true), SAMPLES, BUDGET("-1pt"), true, MLO_EINVAL, "'-1pt' is no budget");
    expect_refusal(net(true), SAMPLES, BUDGET("source"), true, MLO_EINVAL, "'source' is no budget");
}

/* Waits, once, until the limit of a second is over while the first mix is judged. */
static void wait_at_the_first(void *arg, double fraction, const char *message)
{
    MLO_UNUSED(fraction);
    uint64_t *until = arg;
    if (strcmp(message, "judging a mix") != 0)
        return;
    if (*until == 0)
        *until = mlo_clock_ns() + 1100000000u;
    while (mlo_clock_ns() < *until)
        usleep(20000);
}

/* The time is over before anything was given back: what was seen so far comes out, and is called what it is.
 */
static void test_budget__the_best_so_far_when_the_time_is_over(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    struct mlo_error err = {0};
    struct mlo_model *m = net(true), *made;
    for (int limited = 0; limited < 2; limited++) {
        struct mlo_step_result result = {0};
        uint64_t until = 0;
        set_up(&b, m, SAMPLES,
               limited ? "{\"per_channel\": false, \"accuracy_drop\": \"0.5pt\", \"time_limit\": 1}"
                       : "{\"per_channel\": false, \"accuracy_drop\": \"0.5pt\", \"time_limit\": 100000}");
        const struct mlo_step_context ctx = {.options = b.options,
                                             .model_path = b.model_path,
                                             .source_path = b.model_path,
                                             .calibrate_path = b.path,
                                             .select_path = b.path,
                                             .out_dir = b.dir,
                                             .threads = 1,
                                             .progress = limited ? wait_at_the_first : NULL,
                                             .progress_arg = &until};
        assert_ok(mlo_step_find("quantize")->run(&ctx, &result, &err));
        const json_t *decision = json_object_get(result.report, "mixed_precision");
        const json_t *note = json_array_get(json_object_get(result.report, "notes"), 0);
        assert_true(mlo_json_bool(decision, "complete", limited) == !limited);
        assert_true(mlo_json_bool(decision, "holds", limited) == !limited);
        assert_int_equal(json_array_size(json_object_get(decision, "given_back")), limited ? 0 : 1);
        assert_true((mlo_json_f64(json_object_get(decision, "drop"), "value", 0) > 0.4) == limited);
        assert_true((strstr(mlo_json_str(note, "note", ""), "does not hold the budget of 0.5pt") != NULL) ==
                    limited);
        assert_ok(mlo_onnx_load(result.artifact_path, &made, &err));
        assert_true((node_named(made, "b_node")->inputs[1]->producer != NULL) == limited);
        mlo_model_free(made);
        mlo_step_result_clear(&result);
        tear_down(&b);
    }
    mlo_model_free(m);
}

/* TensorRT computes in float16: half of what float costs, and enough for the weights of 1 beside that of
 * 1000. By hand: nothing holds but b given back; float is tried first, which must hold if anything does, then
 * float16, which is the cheaper one. */
static void test_budget__float16_where_the_target_has_it(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    struct mlo_error err = {0};
    struct mlo_step_result first;
    struct mlo_model *m = net(true), *made;
    set_up(&b, m, SAMPLES,
           "{\"per_channel\": false, \"accuracy_drop\": \"0.5pt\", \"target\": \"tensorrt\"}");
    assert_ok(run_step(&b, b.path, 1, 1, &first, &err));
    const json_t *decision = json_object_get(first.report, "mixed_precision");
    const json_t *given = json_object_get(decision, "given_back"),
                 *tried = json_object_get(decision, "tried");
    assert_int_equal(json_array_size(given), 1);
    assert_string_equal(mlo_json_str(json_array_get(given, 0), "node", ""), "b_node");
    assert_string_equal(mlo_json_str(json_array_get(given, 0), "to", ""), "float16");
    assert_true(mlo_json_f64(json_object_get(decision, "drop"), "high", 1) <= 0.005);
    static const char *const sets[] = {"{}", "{\"b_node\": \"float\"}", "{\"b_node\": \"float16\"}"};
    assert_int_equal(json_array_size(tried), 3);
    for (size_t i = 0; i < 3; i++) {
        json_t *set = json_loads(sets[i], 0, NULL);
        assert_true(json_equal(json_object_get(json_array_get(tried, i), "given_back"), set));
        json_decref(set);
    }
    assert_ok(mlo_onnx_load(first.artifact_path, &made, &err));
    const struct mlo_node *half = node_named(made, "b_node");
    assert_int_equal(half->inputs[1]->constant->dtype, MLO_FLOAT16);
    assert_true(mlo_node_is(half->inputs[0]->producer, "Cast"));
    assert_non_null(node_named(made, "y_node")->inputs[1]->producer); /* still integers */
    mlo_model_free(made);
    expect_same(&b, &first);
    mlo_step_result_clear(&first);
    tear_down(&b);
    mlo_model_free(m);
}

/* 100000 is no half float: asked for, it is refused; a budget passes over it to float. */
static void test_budget__float16_is_not_for_every_number(void **state)
{
    MLO_UNUSED(state);
    struct bench b;
    struct mlo_error err = {0};
    struct mlo_step_result result;
    struct mlo_model *m = net(true);
    ((float *)node_named(m, "b_node")->inputs[1]->constant->data)[12] = 100000;
    set_up(&b, m, SAMPLES, "{\"per_channel\": false, \"target\": \"tensorrt\", \"float16\": [\"b_node\"]}");
    assert_int_equal(run_step(&b, NULL, 1, 0, &result, &err), MLO_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "beyond the 65504 of float16"));
    mlo_step_result_clear(&result);
    tear_down(&b);
    set_up(&b, m, SAMPLES,
           "{\"per_channel\": false, \"accuracy_drop\": \"0.5pt\", \"target\": \"tensorrt\"}");
    assert_ok(run_step(&b, b.path, 1, 0, &result, &err));
    const json_t *decision = json_object_get(result.report, "mixed_precision");
    const json_t *given = json_object_get(decision, "given_back");
    assert_int_equal(json_array_size(given), 1);
    assert_string_equal(mlo_json_str(json_array_get(given, 0), "to", ""), "float");
    assert_int_equal(json_array_size(json_object_get(decision, "tried")), 2);
    mlo_step_result_clear(&result);
    tear_down(&b);
    mlo_model_free(m);
}

static void test_budget__where_only_float_holds(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(13);
    finish(m, op(m, "MatMul", "y", input(m, "x", -1, FEATURES),
                 floats(m, "w", LIST(1, -1, 0.1f, 0, 0, 0.1f, 1000, 0), 4, 2)));
    expect_refusal(m, SAMPLES, BUDGET("0.5pt"), true, MLO_EEXPECT, "no mix of integers and float");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sensitivity__the_ruined_node_is_first),
        cmocka_unit_test(test_sensitivity__a_scale_for_each_channel_helps),
        cmocka_unit_test(test_sensitivity__threads_and_batch_change_nothing),
        cmocka_unit_test(test_sqnr__by_hand),
        cmocka_unit_test(test_judge__weights_behind_pairs_are_weights),
        cmocka_unit_test(test_budget__the_ruined_node_alone_goes_back),
        cmocka_unit_test(test_budget__nothing_goes_back_without_need),
        cmocka_unit_test(test_budget__what_cannot_be_shown_is_refused),
        cmocka_unit_test(test_budget__the_best_so_far_when_the_time_is_over),
        cmocka_unit_test(test_budget__float16_where_the_target_has_it),
        cmocka_unit_test(test_budget__float16_is_not_for_every_number),
        cmocka_unit_test(test_budget__where_only_float_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
