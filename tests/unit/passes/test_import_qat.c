/* Import of fake quantization: each form on a case that is checked by hand, and two models that torch trained
 * and exported (tests/nets/train_qat.py). */
#include "pipeline/measure/arrays_impl.h"
#include "tests/unit/passes/passes_helpers.h"

/* An integer constant of rank 0 or 1. */
static struct mlo_value *integers(struct mlo_model *m, const char *name, enum mlo_dtype dtype, int rank,
                                  int64_t count, const int64_t *list)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    assert_ok(mlo_tensor_init(&t, dtype, rank, &count, &err));
    for (int64_t i = 0; i < count; i++)
        mlo_tensor_set_f64(&t, (size_t)i, (double)list[i]);
    return constant_take(m, name, &t);
}
#define zero_point(m, name, dtype, value) integers(m, name, dtype, 0, 1, DIMS(value))

/* Q and DQ of x with one scale. */
static struct mlo_value *fake(struct mlo_model *m, const char *name, struct mlo_value *x, float scale,
                              enum mlo_dtype dtype, int64_t zero)
{
    char text[4][64];
    static const char *const suffix[] = {"s", "z", "q", "dq"};
    for (int i = 0; i < 4; i++)
        snprintf(text[i], sizeof text[i], "%s_%s", name, suffix[i]);
    struct mlo_value *s = scalar(m, text[0], scale), *z = zero_point(m, text[1], dtype, zero);
    return op(m, "DequantizeLinear", text[3], op(m, "QuantizeLinear", text[2], x, s, z), s, z);
}

static struct mlo_value *fake_clipped(struct mlo_model *m, struct mlo_value *x, float scale,
                                      enum mlo_dtype dtype, int64_t zero, int64_t low, int64_t high)
{
    struct mlo_value *s = scalar(m, "s", scale), *z = zero_point(m, "z", dtype, zero);
    struct mlo_value *q = op(m, "QuantizeLinear", "q", x, s, z);
    struct mlo_value *c =
        op(m, "Clip", "c", q, zero_point(m, "low", dtype, low), zero_point(m, "high", dtype, high));
    return op(m, "DequantizeLinear", "dq", c, s, z);
}

/* Conv of one input and two output channels, 1x1: weights 0.26 and -1.0 with scale 0.25, bias 0.3 and -0.06,
 * input of scale 0.5. */
static struct mlo_model *small(enum mlo_dtype dtype, int64_t zero)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = fake(m, "x", input(m, "image", 1, 1, 1, 4), 0.5f, dtype, zero);
    struct mlo_value *w =
        fake(m, "w", floats(m, "weights", LIST(0.26f, -1.0f), 2, 1, 1, 1), 0.25f, MLO_INT8, 0);
    struct mlo_value *y = op(m, "Conv", "y", x, w, floats(m, "b", LIST(0.3f, -0.06f), 2));
    finish(m, fake(m, "y", y, 0.5f, dtype, zero));
    return m;
}

static void test_import_qat__weights_and_biases_become_integers(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = small(MLO_UINT8, 0);
    assert_ok(run_pass(m, "import-qat", NULL, NULL, &report, &err));
    struct mlo_node *conv = node_named(m, "y_node");
    const struct mlo_tensor *w = mlo_node_const(conv->inputs[1]->producer, 0);
    assert_int_equal(w->dtype, MLO_INT8);
    assert_int_equal(mlo_tensor_get_i64(w, 0), 1); /* 0.26 / 0.25 */
    assert_int_equal(mlo_tensor_get_i64(w, 1), -4);
    struct mlo_node *bias = conv->inputs[2]->producer;
    assert_true(mlo_node_is(bias, "DequantizeLinear"));
    assert_int_equal(mlo_node_const(bias, 0)->dtype, MLO_INT32);
    assert_true(mlo_tensor_get_f64(mlo_node_const(bias, 1), 0) == 0.125); /* 0.5 * 0.25 */
    assert_int_equal(mlo_tensor_get_i64(mlo_node_const(bias, 0), 0), 2);  /* 2.4 */
    assert_int_equal(mlo_tensor_get_i64(mlo_node_const(bias, 0), 1), 0);  /* -0.48 */
    assert_int_equal(count_ops(m, "QuantizeLinear"), 2);
    assert_int_equal(count_ops(m, "DequantizeLinear"), 4);
    assert_true(has_note(report, "", "1 of 1 nodes that multiply run in integers"));
    json_decref(report);
    mlo_model_free(m);
}

/* The bias moves by at most half of its scale, and nothing else by anything. */
static void test_import_qat__differs_by_the_rounding_of_biases(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *a = small(MLO_UINT8, 0), *b = small(MLO_UINT8, 0);
    for (int i = 0; i < 2; i++) { /* the Conv's own output, before it is rounded again */
        struct mlo_model *m = i ? b : a;
        m->graph->outputs[0]->is_output = false;
        m->graph->output_count = 0;
        finish(m, mlo_graph_value(m->graph, "y"));
    }
    assert_ok(run_pass(b, "import-qat", NULL, NULL, NULL, &err));
    assert_float_equal(deviation(a, b), 0.06, 1e-6); /* -0.06 became 0, and 0.3 0.25 */
    assert_true(deviation(a, b) <= 0.125 / 2);
    mlo_model_free(a);
    mlo_model_free(b);
}

/* Parameters behind Identity and Cast, as torch writes them. */
static void test_import_qat__parameters_that_are_computed(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *s = op(m, "Identity", "s", scalar(m, "scale", 0.5f));
    struct mlo_value *z = op(m, "Cast", "z", zero_point(m, "zero", MLO_INT32, 3));
    assert_true(mlo_node_set_i(z->producer, "to", MLO_UINT8));
    struct mlo_value *q = op(m, "QuantizeLinear", "q", input(m, "x", 2, 3), s, z);
    struct mlo_value *dq = op(m, "DequantizeLinear", "dq", op(m, "Identity", "same", q), s, z);
    struct mlo_value *w = op(m, "Mul", "w", ramp(m, "v", 0.1f, 3, 2), scalar(m, "factor", 0.5f));
    finish(m, op(m, "MatMul", "y", dq, fake(m, "w", w, 0.01f, MLO_INT8, 0)));
    assert_ok(run_pass(m, "import-qat", NULL, NULL, NULL, &err));
    assert_int_equal(m->graph->node_count, 4); /* Q, DQ, DQ of the weights, MatMul */
    assert_int_equal(mlo_tensor_get_i64(mlo_node_const(m->graph->nodes[0], 2), 0), 3);
    mlo_model_free(m);
}

static void test_import_qat__lists_of_one_scale_become_scalars(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", 4), *s = floats(m, "s", LIST(0.5f), 1),
                     *z = integers(m, "z", MLO_UINT8, 1, 1, DIMS(9));
    struct mlo_value *dq = op(m, "DequantizeLinear", "dq", op(m, "QuantizeLinear", "q", x, s, z), s, z);
    finish(m, op(m, "Mul", "y", dq, s)); /* a list where it is no parameter */
    assert_ok(run_pass(m, "import-qat", NULL, NULL, NULL, &err));
    for (int n = 0; n < 2; n++) {
        assert_int_equal(mlo_node_const(m->graph->nodes[n], 1)->rank, 0);
        assert_int_equal(mlo_node_const(m->graph->nodes[n], 2)->rank, 0);
        assert_int_equal(mlo_tensor_get_i64(mlo_node_const(m->graph->nodes[n], 2), 0), 9);
        assert_true(mlo_tensor_get_f64(mlo_node_const(m->graph->nodes[n], 1), 0) == 0.5);
    }
    assert_int_equal(mlo_node_const(node_named(m, "y_node"), 1)->rank, 1);
    mlo_model_free(m);
}

/* Gemm: beta goes into the bias; a bias that is integer already is left, and said when its scale is odd. */
static void test_import_qat__biases_of_gemm(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = fake(m, "x", input(m, "image", 1, 2), 0.5f, MLO_UINT8, 0);
    struct mlo_value *w = fake(m, "w", floats(m, "v", LIST(1, 2, 3, 4), 2, 2), 0.25f, MLO_INT8, 0);
    struct mlo_value *a = op(m, "Gemm", "a", x, w, floats(m, "b", LIST(1, -2), 2));
    assert_true(mlo_node_set_f(a->producer, "beta", 0.5f) && mlo_node_set_i(a->producer, "transB", 1));
    struct mlo_value *odd = op(m, "DequantizeLinear", "odd", integers(m, "i", MLO_INT32, 1, 2, DIMS(5, 6)),
                               scalar(m, "odd_scale", 0.1f));
    struct mlo_value *far = floats(m, "far", LIST(1e12f, 0), 2);
    finish(m, op(m, "Add", "y", op(m, "Add", "t", a, op(m, "Gemm", "c", x, w, odd)),
                 op(m, "Gemm", "d", x, w, far)));
    assert_ok(run_pass(m, "import-qat", NULL, NULL, &report, &err));
    const struct mlo_node *gemm = node_named(m, "a_node");
    assert_int_equal(mlo_tensor_get_i64(mlo_node_const(gemm->inputs[2]->producer, 0), 0),
                     4); /* 0.5 / 0.125 */
    assert_int_equal(mlo_tensor_get_i64(mlo_node_const(gemm->inputs[2]->producer, 0), 1), -8);
    assert_true(mlo_node_attr_f(gemm, "beta", 0) == 1.0f);
    assert_true(has_note(report, "c_node", "its bias is int32 with scale 0.1, and the products have 0.125"));
    assert_true(has_note(report, "d_node", "beyond int32"));
    json_decref(report);
    mlo_model_free(m);
}

/* --- Clip between the two ----------------------------------------------------------------------------------
 */

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Both forms for floats of every exponent and sign, for the bounds' neighbours and the ties. */
static void expect_equal_for_floats(float scale, enum mlo_dtype dtype, int64_t zero, int64_t low,
                                    int64_t high)
{
    enum { COUNT = 1 << 16 };
    struct mlo_error err = {0};
    struct mlo_tensor x = {0}, y[2] = {0};
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 1, DIMS(COUNT), &err));
    float *v = x.data;
    for (uint32_t i = 0; i < COUNT / 2; i++)
        v[i] = from_bits((i << 17) + i * 40503u % (1u << 17));
    for (uint32_t i = COUNT / 2; i < COUNT; i++) { /* around each half step */
        uint32_t k = i - COUNT / 2;
        v[i] = ((float)(int)(k / 7 % 1024) * 0.5f - 256.0f) * scale;
        for (uint32_t n = 0; n < k % 7; n++)
            v[i] = nextafterf(v[i], n % 2 ? -INFINITY : INFINITY);
    }
    for (int i = 0; i < 2; i++) {
        struct mlo_model *m = new_model(13);
        finish(m, fake_clipped(m, input(m, "x", COUNT), scale, dtype, zero, low, high));
        if (i) {
            assert_ok(run_pass(m, "import-qat", NULL, NULL, NULL, &err));
            assert_true(!node_named(m, "c_node"));
        }
        assert_ok(mlo_graph_eval(m->graph, &x, &y[i], &err));
        mlo_model_free(m);
    }
    for (size_t i = 0; i < COUNT; i++)
        if (mlo_tensor_get_f64(&y[0], i) != mlo_tensor_get_f64(&y[1], i))
            fail_msg("%a with scale %g, zero point %d: %g and %g", (double)v[i], (double)scale, (int)zero,
                     mlo_tensor_get_f64(&y[0], i), mlo_tensor_get_f64(&y[1], i));
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y[0]);
    mlo_tensor_clear(&y[1]);
}

static void test_import_qat__clip_of_floats_is_clip_of_integers(void **state)
{
    MLO_UNUSED(state);
    static const float scales[] = {0.5f, 0.1f, 0.0123456789f, 3.0f, 1e-20f, 1e-40f, 1e30f};
    for (size_t i = 0; i < MLO_COUNT(scales); i++) {
        expect_equal_for_floats(scales[i], MLO_UINT8, 0, 0, 127);
        expect_equal_for_floats(scales[i], MLO_UINT8, 61, 0, 127);
        expect_equal_for_floats(scales[i], MLO_INT8, -3, -64, 63);
        expect_equal_for_floats(scales[i], MLO_INT8, 0, -127, 127);
    }
}

static void test_import_qat__clip_takes_the_relu_before_it(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    finish(m, fake_clipped(m, op(m, "Relu", "r", input(m, "x", 4)), 0.5f, MLO_UINT8, 0, 0, 127));
    assert_ok(run_pass(m, "import-qat", NULL, NULL, NULL, &err));
    assert_int_equal(m->graph->node_count, 3);
    const struct mlo_node *clip = m->graph->nodes[0];
    assert_string_equal(clip->op_type, "Clip");
    assert_true(mlo_tensor_get_f64(mlo_node_const(clip, 1), 0) == 0);
    assert_true(mlo_tensor_get_f64(mlo_node_const(clip, 2), 0) == 63.5); /* 127 * 0.5 */
    mlo_model_free(m);
}

static void test_import_qat__clip_stays_inside_where_that_fuses(void **state)
{
    MLO_UNUSED(state);
    static const char *const options[] = {"{\"form\": \"qoperator\"}", "{\"target\": \"ort-x86-vnni\"}"};
    struct mlo_error err = {0};
    for (size_t i = 0; i < MLO_COUNT(options); i++) {
        struct mlo_model *m = new_model(13);
        finish(m, fake_clipped(m, input(m, "x", 4), 0.5f, MLO_UINT8, 0, 0, 127));
        assert_ok(run_pass(m, "import-qat", options[i], NULL, NULL, &err));
        assert_non_null(node_named(m, "c_node"));
        mlo_model_free(m);
    }
}

/* --- cleaning ---------------------------------------------------------------------------------------------
 */

static void test_import_qat__pairs_that_say_nothing_new_go(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", 4);
    struct mlo_value *a = fake(m, "a", fake(m, "b", x, 0.5f, MLO_UINT8, 7), 0.5f, MLO_UINT8, 7); /* twice */
    struct mlo_value *c = fake(m, "c", x, 0.5f, MLO_UINT8, 7);                                   /* again */
    struct mlo_value *d = fake(m, "d", x, 0.5f, MLO_UINT8, 8);                                   /* another */
    finish(m, op(m, "Add", "y", op(m, "Add", "t", a, c), d));
    assert_ok(run_pass(m, "import-qat", NULL, NULL, NULL, &err));
    assert_int_equal(count_ops(m, "QuantizeLinear"), 2);
    assert_int_equal(count_ops(m, "DequantizeLinear"), 2);
    mlo_model_free(m);
}

/* Conv, Div by what the weights were multiplied by, BatchNormalization: torch's form of ConvBn in training.
 */
static void build_conv_bn(struct mlo_model *m)
{
    struct mlo_value *x = fake(m, "x", input(m, "image", -1, 2, 3, 3), 0.0625f, MLO_UINT8, 128);
    struct mlo_value *w = fake(m, "w", ramp(m, "weights", 0.1f, 3, 2, 2, 2), 0.01f, MLO_INT8, 0);
    struct mlo_value *c = op(m, "Conv", "c", x, w, floats(m, "b", LIST(1, -1, 0), 3));
    struct mlo_value *d = op(m, "Div", "d", c, floats(m, "factor", LIST(2, 4, 0.5f), 1, 3, 1, 1));
    finish(m, op(m, "BatchNormalization", "y", d, floats(m, "gain", LIST(1, -2, 0), 3),
                 floats(m, "offset", LIST(7, 8, 9), 3), floats(m, "mean", LIST(0, 0.5f, 1), 3),
                 floats(m, "variance", LIST(1, 4, 9), 3)));
}

static void test_import_qat__batchnorm_goes_into_scales(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *a = new_model(13), *b = new_model(13);
    build_conv_bn(a);
    build_conv_bn(b);
    assert_ok(run_pass(b, "import-qat", "{\"target\": \"openvino\"}", NULL, NULL, &err)); /* bias in float */
    assert_int_equal(count_ops(b, "BatchNormalization") + count_ops(b, "Div"), 0);
    const struct mlo_node *conv = node_named(b, "c_node"), *dq = conv->inputs[1]->producer;
    assert_float_equal(mlo_tensor_get_f64(mlo_node_const(dq, 1), 0), 0.005, 1e-6);  /* 0.01 / 2 * 1 */
    assert_float_equal(mlo_tensor_get_f64(mlo_node_const(dq, 1), 1), 0.0025, 1e-6); /* 0.01 / 4 * 2 / 2 */
    assert_float_equal(mlo_tensor_get_f64(mlo_node_const(conv, 2), 1), 8.75, 1e-5); /* (-1/4 - 1/2)(-1) + 8 */
    assert_float_equal(mlo_tensor_get_f64(mlo_node_const(conv, 2), 2), 9, 1e-5);
    assert_string_equal(b->graph->outputs[0]->name, "y");
    assert_true(deviation(a, b) < 1e-5);
    mlo_model_free(a);
    mlo_model_free(b);
}

/* --- targets ----------------------------------------------------------------------------------------------
 */

static void expect_type(const char *target, enum mlo_dtype dtype, int64_t zero, enum mlo_dtype wanted,
                        int64_t wanted_zero, const char *note)
{
    char options[64];
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *a = small(dtype, zero), *b = small(dtype, zero);
    snprintf(options, sizeof options, "{\"target\": \"%s\"}", target);
    assert_ok(run_pass(b, "import-qat", options, NULL, &report, &err));
    const struct mlo_tensor *z = mlo_node_const(node_named(b, "x_q_node"), 2);
    assert_int_equal(z->dtype, wanted);
    assert_int_equal(mlo_tensor_get_i64(z, 0), wanted_zero);
    if (note)
        assert_true(has_note(report, "x_q_node", note));
    assert_true(deviation(a, b) <= 0.5); /* one step, where the bias' rounding crosses a tie */
    json_decref(report);
    mlo_model_free(a);
    mlo_model_free(b);
}

static void test_import_qat__activations_take_the_type_of_the_target(void **state)
{
    MLO_UNUSED(state);
    expect_type("ort-x86-vnni", MLO_INT8, -5, MLO_UINT8, 123, NULL);
    expect_type("tensorrt", MLO_UINT8, 128, MLO_INT8, 0, NULL);
    expect_type("tensorrt", MLO_UINT8, 0, MLO_UINT8, 0, "refuse the model");
    expect_type("mlopt-cuda", MLO_INT8, 0, MLO_INT8, 0, NULL);
}

static void test_import_qat__half_a_range_becomes_symmetric(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *a = new_model(13), *b = new_model(13);
    for (int i = 0; i < 2; i++)
        finish(i ? b : a, fake_clipped(i ? b : a, input(i ? b : a, "x", 64), 0.005f, MLO_UINT8, 0, 0, 127));
    assert_ok(run_pass(b, "import-qat", "{\"target\": \"tensorrt\"}", NULL, NULL, &err));
    assert_int_equal(mlo_node_const(node_named(b, "q_node"), 2)->dtype, MLO_INT8);
    assert_int_equal(count_ops(b, "Relu"), 1);
    assert_true(deviation(a, b) == 0);
    mlo_model_free(a);
    mlo_model_free(b);
}

/* --- what is refused --------------------------------------------------------------------------------------
 */

static void expect_error(struct mlo_model *m, enum mlo_status status, const char *message, const char *where)
{
    struct mlo_error err = {0};
    assert_int_equal(run_pass(m, "import-qat", NULL, NULL, NULL, &err), status);
    if (!strstr(err.message, message) || !strstr(err.where, where) || !*err.hint)
        fail_msg("message '%s', where '%s', hint '%s'", err.message, err.where, err.hint);
    mlo_model_free(m);
}

static struct mlo_model *with_scale(float scale)
{
    struct mlo_model *m = new_model(13);
    finish(m, fake(m, "x", input(m, "image", 4), scale, MLO_UINT8, 0));
    return m;
}

static void test_import_qat__bad_scales(void **state)
{
    MLO_UNUSED(state);
    expect_error(with_scale(0), MLO_EINVAL, "scale 0 of 1 is 0",
                 "node 'x_q_node' (QuantizeLinear of 'image')");
    expect_error(with_scale(NAN), MLO_EINVAL, "nan", "x_q_node");
    expect_error(with_scale(INFINITY), MLO_EINVAL, "inf", "x_q_node");
    expect_error(with_scale(-0.5f), MLO_EINVAL, "-0.5", "x_q_node");
    struct mlo_model *m = new_model(13);
    struct mlo_value *z = zero_point(m, "z", MLO_UINT8, 0);
    finish(m, op(m, "QuantizeLinear", "y", input(m, "x", 4), op(m, "Abs", "s", input(m, "asked", 1)), z));
    expect_error(m, MLO_EUNSUPPORTED, "its scale is not constant", "y_node");
    m = new_model(13); /* of weights too, whose QuantizeLinear folding would hide it */
    struct mlo_value *w = floats(m, "w", LIST(1, 2), 1, 2), *s = floats(m, "s", LIST(0.5f, 0), 2);
    z = integers(m, "z", MLO_INT8, 1, 2, DIMS(0, 0));
    struct mlo_value *good = floats(m, "t", LIST(0.5f, 1), 2), *q = op(m, "QuantizeLinear", "q", w, s, z);
    struct mlo_value *x = fake(m, "x", input(m, "image", 1, 1), 0.5f, MLO_UINT8, 0);
    finish(m, op(m, "MatMul", "y", x, op(m, "DequantizeLinear", "dq", q, good, z)));
    expect_error(m, MLO_EINVAL, "scale 1 of 2 is 0", "q_node");
}

static void test_import_qat__a_missing_dequantize(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(13);
    struct mlo_value *q = op(m, "QuantizeLinear", "q", input(m, "x", 4), scalar(m, "s", 0.5f),
                             zero_point(m, "z", MLO_UINT8, 0));
    struct mlo_value *f = op(m, "Cast", "f", q);
    assert_true(mlo_node_set_i(f->producer, "to", MLO_FLOAT32));
    finish(m, f);
    expect_error(m, MLO_EINVAL, "no DequantizeLinear stands behind it: Cast 'f_node' reads its integers",
                 "q_node");
}

static void test_import_qat__other_zero_points(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(19);
    finish(m, fake(m, "x", input(m, "image", 4), 0.5f, MLO_FLOAT8E4M3FN, 0));
    expect_error(m, MLO_EUNSUPPORTED, "its integers would be float8_e4m3fn", "x_q_node");
    m = new_model(13);
    finish(m, fake_clipped(m, input(m, "x", 4), 0.5f, MLO_UINT8, 200, 0, 127));
    expect_error(m, MLO_EINVAL, "zero point 200 lies outside of the range 0 to 127", "q_node");
}

static void test_import_qat__weights_that_are_not_finite(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(13);
    struct mlo_value *w = fake(m, "w", floats(m, "weights", LIST(1, NAN), 1, 2), 0.5f, MLO_INT8, 0);
    finish(m, op(m, "MatMul", "y", fake(m, "x", input(m, "image", 1, 1), 0.5f, MLO_UINT8, 0), w));
    expect_error(m, MLO_EINVAL, "weight 1 of 'weights' is not finite", "w_q_node");
}

static void test_import_qat__a_float_model(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = new_model(13);
    finish(m, op(m, "Relu", "y", input(m, "x", 4)));
    expect_error(m, MLO_EINVAL, "the model has no fake quantization", "");
}

static void test_import_qat__an_integer_model_stays(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input_of(m, "x", MLO_UINT8, 2, DIMS(2, 2));
    struct mlo_value *w = integers(m, "w", MLO_INT8, 1, 2, DIMS(3, -4));
    finish(m, op(m, "MatMulInteger", "y", x, w));
    assert_ok(run_pass(m, "import-qat", NULL, NULL, &report, &err));
    assert_true(has_note(report, "y_node", "computes in integers already"));
    assert_int_equal(m->graph->node_count, 1);
    json_decref(report);
    mlo_model_free(m);
}

static void test_import_qat__says_what_computes_in_float(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    struct mlo_value *image = input(m, "image", 1, 2), *x = fake(m, "x", image, 0.5f, MLO_UINT8, 0);
    struct mlo_value *w = fake(m, "w", ramp(m, "v", 0.1f, 2, 2), 0.01f, MLO_INT8, 0);
    struct mlo_value *a = op(m, "MatMul", "a", image, w),
                     *b = op(m, "MatMul", "b", x, ramp(m, "u", 0.1f, 2, 2));
    finish(m, op(m, "Add", "y", op(m, "Add", "t", a, b), op(m, "MatMul", "c", x, w)));
    assert_ok(run_pass(m, "import-qat", NULL, NULL, &report, &err));
    assert_true(has_note(report, "a_node", "its input is not quantized"));
    assert_true(has_note(report, "b_node", "its weights have no fake quantization"));
    assert_true(has_note(report, "", "1 of 3 nodes"));
    json_decref(report);
    mlo_model_free(m);
}

/* --- models that torch exported ----------------------------------------------------------------------------
 */

static void read_array(const struct mlo_arrays *arrays, const char *name, struct mlo_tensor *out)
{
    struct mlo_error err = {0};
    struct mlo_array *array = mlo_arrays_find(arrays, name);
    assert_non_null(array);
    assert_ok(mlo_tensor_init(out, array->dtype, array->rank, array->dims, &err));
    assert_ok(mlo_array_read(array, 0, array->dims[0], out->data, &err));
}

static void load_pair(const char *name, struct mlo_model **model, struct mlo_tensor *image,
                      struct mlo_tensor *logits)
{
    char path[512];
    struct mlo_error err = {0};
    struct mlo_arrays arrays = {0};
    snprintf(path, sizeof path, "%s/tests/golden/qat/%s.onnx", MLOPT_SOURCE_DIR, name);
    assert_ok(mlo_onnx_load(path, model, &err));
    snprintf(path, sizeof path, "%s/tests/golden/qat/%s.npz", MLOPT_SOURCE_DIR, name);
    assert_ok(mlo_npz_open(path, &arrays, &err));
    read_array(&arrays, "image", image);
    read_array(&arrays, "logits", logits);
    mlo_arrays_clear(&arrays);
}

/* The largest difference, in steps of the logits' own fake quantization. */
static double steps_apart(const struct mlo_tensor *a, const struct mlo_tensor *b, double step)
{
    double worst = 0;
    assert_true(mlo_tensor_same_shape(a, b));
    for (size_t i = 0; i < mlo_tensor_count(a); i++)
        worst = fmax(worst, fabs(mlo_tensor_get_f64(a, i) - mlo_tensor_get_f64(b, i)));
    return worst / step;
}

static void expect_trained(const char *name, const char *options, bool integer, bool exact,
                           const char *op_type, int count)
{
    struct mlo_error err = {0};
    struct mlo_model *model, *before;
    struct mlo_tensor image = {0}, torch = {0}, was = {0}, is = {0};
    load_pair(name, &model, &image, &torch);
    assert_ok(mlo_graph_infer(model->graph, &err));
    assert_ok(mlo_model_clone(model, &before, &err));
    assert_ok(run_pass(model, "import-qat", options, NULL, NULL, &err));
    const struct mlo_node *last = model->graph->outputs[0]->producer;
    double step = mlo_tensor_get_f64(mlo_node_const(last, 1), 0);
    if (integer)
        assert_ok(run_pass(model, "to-qoperator", NULL, NULL, NULL, &err));
    if (count_ops(model, op_type) != count)
        fail_msg("%s: %d nodes %s, not %d", name, count_ops(model, op_type), op_type, count);
    assert_ok(mlo_graph_eval(before->graph, &image, &was, &err));
    assert_ok(mlo_graph_eval(model->graph, &image, &is, &err));
    /* A bias moves a sum by half a step of the products; where that crosses a tie, an activation by one. */
    double torch_apart = steps_apart(&torch, &was, step), apart = steps_apart(&was, &is, step);
    if (torch_apart > 1.01 || apart > (exact ? 0 : 1.01))
        fail_msg("%s %s: torch and the file are %g steps apart, the file and its import %g", name, options,
                 torch_apart, apart);
    mlo_tensor_clear(&image);
    mlo_tensor_clear(&torch);
    mlo_tensor_clear(&was);
    mlo_tensor_clear(&is);
    mlo_model_free(model);
    mlo_model_free(before);
}

static void test_import_qat__models_that_torch_trained(void **state)
{
    MLO_UNUSED(state);
    static const char *const names[] = {"per-tensor", "per-channel"};
    for (size_t i = 0; i < MLO_COUNT(names); i++) {
        expect_trained(names[i], NULL, false, false, "QuantizeLinear", 8);
        expect_trained(names[i], NULL, false, false, "BatchNormalization", 0);
        expect_trained(names[i], "{\"target\": \"ort-x86-vnni\", \"form\": \"qoperator\"}", true, false,
                       "QLinearConv", 5);
        expect_trained(names[i], "{\"target\": \"tensorrt\", \"form\": \"qoperator\"}", true, false,
                       "QLinearConv", 5);
        /* biases stay float, and without BatchNormalization nothing rounds */
        expect_trained(names[i], "{\"target\": \"tensorrt\"}", false, i == 0, "QuantizeLinear", 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_import_qat__weights_and_biases_become_integers),
        cmocka_unit_test(test_import_qat__differs_by_the_rounding_of_biases),
        cmocka_unit_test(test_import_qat__parameters_that_are_computed),
        cmocka_unit_test(test_import_qat__lists_of_one_scale_become_scalars),
        cmocka_unit_test(test_import_qat__biases_of_gemm),
        cmocka_unit_test(test_import_qat__clip_of_floats_is_clip_of_integers),
        cmocka_unit_test(test_import_qat__clip_takes_the_relu_before_it),
        cmocka_unit_test(test_import_qat__clip_stays_inside_where_that_fuses),
        cmocka_unit_test(test_import_qat__pairs_that_say_nothing_new_go),
        cmocka_unit_test(test_import_qat__batchnorm_goes_into_scales),
        cmocka_unit_test(test_import_qat__activations_take_the_type_of_the_target),
        cmocka_unit_test(test_import_qat__half_a_range_becomes_symmetric),
        cmocka_unit_test(test_import_qat__bad_scales),
        cmocka_unit_test(test_import_qat__a_missing_dequantize),
        cmocka_unit_test(test_import_qat__other_zero_points),
        cmocka_unit_test(test_import_qat__weights_that_are_not_finite),
        cmocka_unit_test(test_import_qat__a_float_model),
        cmocka_unit_test(test_import_qat__an_integer_model_stays),
        cmocka_unit_test(test_import_qat__says_what_computes_in_float),
        cmocka_unit_test(test_import_qat__models_that_torch_trained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
