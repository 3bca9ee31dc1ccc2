/* What quantizing says about bad calibration data and odd models: the step as it runs, on files. */
#include "tests/unit/steps/step_run.h"

/* Runs the step on a model (taken over) and one array, which feeds the input of that name. */
static void run_step(struct run *r, const char *step_name, struct mlo_model *model, const char *array,
                     const struct mlo_tensor *data, const char *options)
{
    run_on(r, step_name, model, (struct mlo_npz_array){array, data}, options ? options : "{}", 1, 0);
    mlo_model_free(model);
}

/* Whether the step or one of its passes has that note. */
static bool noted(const struct run *r, const char *node, const char *part)
{
    json_t *own = json_pack("[{s:O?}]", "notes", json_object_get(r->result.report, "notes"));
    bool found =
        has_note(own, node, part) || has_note(json_object_get(r->result.report, "passes"), node, part);
    json_decref(own);
    return found;
}

static struct mlo_tensor array_of(enum mlo_dtype dtype, int rank, const int64_t *dims, double step)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    assert_ok(mlo_tensor_init(&t, dtype, rank, dims, &err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        mlo_tensor_set_f64(&t, i, step * (double)(i % 17));
    return t;
}
#define array(dtype, step, ...) array_of(dtype, RANK(__VA_ARGS__), DIMS(__VA_ARGS__), step)

static struct mlo_model *conv_net(int64_t opset, float weight)
{
    struct mlo_model *m = new_model(opset);
    struct mlo_value *c = op(m, "Conv", "c", input(m, "x", -1, 2, 3, 3), ramp(m, "w", weight, 2, 2, 3, 3),
                             floats(m, "b", LIST(-1, 1), 2));
    finish(m, op(m, "Conv", "y", op(m, "Relu", "r", c), ramp(m, "w2", 0.1f, 2, 2, 1, 1)));
    return m;
}

static void expect_error(struct mlo_model *model, const char *name, struct mlo_tensor data,
                         enum mlo_status status, const char *message, const char *more)
{
    struct run r;
    run_step(&r, "quantize", model, name, &data, NULL);
    if (r.status != status || !strstr(r.err.message, message))
        fail_msg("status %d: %s (%s; %s)", r.status, r.err.message, r.err.where, r.err.hint);
    if (!strstr(r.err.message, more) && !strstr(r.err.hint, more) && !strstr(r.err.where, more))
        fail_msg("'%s' is not in: %s (%s; %s)", more, r.err.message, r.err.where, r.err.hint);
    mlo_tensor_clear(&data);
    clear(&r);
}

static void test_quantize_data__an_empty_set(void **state)
{
    MLO_UNUSED(state);
    expect_error(conv_net(13, 0.1f), "x", array(MLO_FLOAT32, 1, 0, 2, 3, 3), MLO_EINVAL,
                 "the dataset holds no samples", "x.npz");
}

static void test_quantize_data__a_wrong_shape(void **state)
{
    MLO_UNUSED(state);
    expect_error(conv_net(13, 0.1f), "x", array(MLO_FLOAT32, 1, 4, 3, 3, 3), MLO_EINVAL, "'x'",
                 "[3,3,3], model input 'x' is float32[batch,2,3,3]");
}

static void test_quantize_data__a_wrong_type(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(13);
    struct mlo_value *ids = input_of(m, "x", MLO_INT64, 2, DIMS(-1, 2));
    struct mlo_value *e = op(m, "Gather", "e", ramp(m, "table", 0.1f, 5, 3), ids);
    finish(m, op(m, "MatMul", "y", e, ramp(m, "w", 0.1f, 3, 2)));
    expect_error(m, "x", array(MLO_FLOAT32, 0.5, 4, 2), MLO_EINVAL, "'x'", "float32");
}

static void test_quantize_data__an_array_for_another_input(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(13);
    struct mlo_value *a = op(m, "Gemm", "a", input(m, "left", -1, 2), ramp(m, "w", 0.1f, 2, 2));
    finish(m, op(m, "Add", "y", a, input(m, "right", -1, 2)));
    expect_error(m, "middle", array(MLO_FLOAT32, 1, 4, 2), MLO_EINVAL, "left", "middle");
}

/* The only array feeds the only input, whatever it is called: that is said. */
static void test_quantize_data__an_array_of_another_name_is_noted(void **state)
{
    MLO_UNUSED(state);
    static const char *const names[] = {"x", "pixels"};
    for (int other = 0; other < 2; other++) {
        struct run r;
        struct mlo_tensor data = array(MLO_FLOAT32, 0.1, 4, 2, 3, 3);
        run_step(&r, "quantize", conv_net(13, 0.1f), names[other], &data, NULL);
        assert_int_equal(r.status, MLO_OK);
        assert_int_equal(noted(&r, "x", "'pixels' feeds it, its only one"), other);
        assert_false(noted(&r, "x", "by value"));
        mlo_tensor_clear(&data);
        clear(&r);
    }
}

static void test_quantize_data__bytes_without_normalisation_are_noted(void **state)
{
    MLO_UNUSED(state);
    struct run r;
    struct mlo_tensor data = array(MLO_UINT8, 3, 4, 2, 3, 3);
    run_step(&r, "quantize", conv_net(13, 0.1f), "x", &data, NULL);
    assert_int_equal(r.status, MLO_OK);
    assert_true(noted(&r, "x", "'x' is uint8 and feeds it by value: the set has no normalisation"));
    mlo_tensor_clear(&data);
    clear(&r);
}

static void test_quantize_data__nan_inside(void **state)
{
    MLO_UNUSED(state);
    struct mlo_tensor data = array(MLO_FLOAT32, 1, 4, 2, 3, 3);
    ((float *)data.data)[20] = NAN;
    expect_error(conv_net(13, 0.1f), "x", data, MLO_EINVAL, "sample 1 of array 'x' holds NaN at element 2",
                 "x.npz");
}

/* A range cannot have an infinity: which sample of which file it came from is what helps. */
static void test_quantize_data__an_infinity_inside(void **state)
{
    MLO_UNUSED(state);
    struct mlo_tensor data = array(MLO_FLOAT32, 1, 4, 2, 3, 3);
    ((float *)data.data)[3 * 18 + 7] = -INFINITY;
    expect_error(conv_net(13, 0.1f), "x", data, MLO_EINVAL,
                 "sample 3 of array 'x' holds an infinity at element 7", "x.npz");
}

static void test_quantize_data__no_node_to_quantize(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(13);
    finish(m, op(m, "Relu", "y", input(m, "x", -1, 2)));
    expect_error(m, "x", array(MLO_FLOAT32, 1, 4, 2), MLO_EUNSUPPORTED, "no node that can be quantized",
                 "no Conv, Gemm or MatMul at all");
}

static void test_quantize_data__a_constant_channel_is_noted(void **state)
{
    MLO_UNUSED(state);
    struct run r;
    struct mlo_tensor data = array(MLO_FLOAT32, 0.1, 4, 2, 3, 3);
    for (size_t i = 0; i < mlo_tensor_count(&data); i++)
        if (i / 9 % 2 == 1)
            ((float *)data.data)[i] = 0.5f;
    run_step(&r, "quantize", conv_net(13, 0.1f), "x", &data, NULL);
    assert_int_equal(r.status, MLO_OK);
    assert_true(noted(&r, "x", "channel 1 was always 0.5 in the calibration set"));
    assert_false(noted(&r, "x", "channel 0"));
    mlo_tensor_clear(&data);
    clear(&r);
}

static void test_quantize_data__zero_weights_and_dead_relus_are_noted(void **state)
{
    MLO_UNUSED(state);
    struct run r;
    struct mlo_tensor data = array(MLO_FLOAT32, 0.1, 4, 2, 3, 3);
    struct mlo_model *m = new_model(13);
    struct mlo_value *c = op(m, "Conv", "c", input(m, "x", -1, 2, 3, 3), ramp(m, "w", 0, 2, 2, 3, 3),
                             floats(m, "b", LIST(-1, -2), 2));
    finish(m, op(m, "Conv", "y", op(m, "Relu", "r", c), ramp(m, "w2", 0.1f, 2, 2, 1, 1)));
    run_step(&r, "quantize", m, "x", &data, NULL);
    assert_int_equal(r.status, MLO_OK);
    assert_true(noted(&r, "c_node", "its weights 'w' are all 0"));
    assert_true(noted(&r, "r", "always 0 on calibration data (a dead ReLU"));
    mlo_tensor_clear(&data);
    clear(&r);
}

static void test_quantize_data__a_value_that_never_changes_is_noted(void **state)
{
    MLO_UNUSED(state);
    struct run r;
    struct mlo_tensor data = array(MLO_FLOAT32, 0, 4, 2, 3, 3);
    for (size_t i = 0; i < mlo_tensor_count(&data); i++)
        ((float *)data.data)[i] = -0.25f;
    run_step(&r, "quantize", conv_net(13, 0.1f), "x", &data, NULL);
    assert_int_equal(r.status, MLO_OK);
    assert_true(noted(&r, "x", "always -0.25 on calibration data: its range is from there to 0"));
    mlo_tensor_clear(&data);
    clear(&r);
}

static void test_quantize_data__an_old_opset_is_raised_and_said_so(void **state)
{
    MLO_UNUSED(state);
    struct run r;
    struct mlo_tensor data = array(MLO_FLOAT32, 0.1, 4, 2, 3, 3);
    run_step(&r, "quantize", conv_net(11, 0.1f), "x", &data, NULL);
    assert_int_equal(r.status, MLO_OK);
    bool said = false;
    size_t i;
    json_t *note, *pass = json_array_get(json_object_get(r.result.report, "passes"), 0);
    json_array_foreach(json_object_get(pass, "notes"), i, note) said =
        said || strstr(mlo_json_str(note, "note", ""), "opset raised from 11 to 13");
    assert_true(said);
    clear(&r);

    run_step(&r, "quantize", conv_net(11, 0.1f), "x", &data, "{\"activations\": \"int16\"}");
    assert_int_equal(r.status, MLO_OK);
    clear(&r);
    mlo_tensor_clear(&data);
}

/* float16 with data: what goes beyond 65504 is found. */
static void test_quantize_data__halves_that_overflow_are_found(void **state)
{
    MLO_UNUSED(state);
    struct run r;
    struct mlo_tensor data = array(MLO_FLOAT32, 1000, 4, 2, 3, 3);
    struct mlo_model *m = new_model(13);
    struct mlo_value *c = op(m, "Conv", "c", input(m, "x", -1, 2, 3, 3), ramp(m, "w", 10, 2, 2, 3, 3));
    finish(m, op(m, "Relu", "y", op(m, "Sigmoid", "s", c)));
    run_step(&r, "to-float16", m, "x", &data, NULL);
    assert_int_equal(r.status, MLO_OK);
    assert_true(noted(&r, "c_node", "Conv stays in float32: 'c' reached on calibration data"));
    assert_false(noted(&r, "y_node", "stays"));
    mlo_tensor_clear(&data);
    clear(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize_data__an_empty_set),
        cmocka_unit_test(test_quantize_data__a_wrong_shape),
        cmocka_unit_test(test_quantize_data__a_wrong_type),
        cmocka_unit_test(test_quantize_data__an_array_for_another_input),
        cmocka_unit_test(test_quantize_data__an_array_of_another_name_is_noted),
        cmocka_unit_test(test_quantize_data__bytes_without_normalisation_are_noted),
        cmocka_unit_test(test_quantize_data__nan_inside),
        cmocka_unit_test(test_quantize_data__an_infinity_inside),
        cmocka_unit_test(test_quantize_data__no_node_to_quantize),
        cmocka_unit_test(test_quantize_data__a_constant_channel_is_noted),
        cmocka_unit_test(test_quantize_data__zero_weights_and_dead_relus_are_noted),
        cmocka_unit_test(test_quantize_data__a_value_that_never_changes_is_noted),
        cmocka_unit_test(test_quantize_data__an_old_opset_is_raised_and_said_so),
        cmocka_unit_test(test_quantize_data__halves_that_overflow_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
