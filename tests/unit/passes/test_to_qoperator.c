/* QOperator form: which integer op each pair of pairs becomes, and that it computes the same. */
#include "tests/unit/passes/passes_helpers.h"

/* Statistics such that every scale is a power of two: then integer and float arithmetic agree to the bit. */
static void saw_bytes(struct mlo_stats *stats, const struct mlo_model *m, float step)
{
    mlo_stats_init(stats);
    for (int v = 0; v < m->graph->value_count; v++)
        if (!m->graph->values[v]->constant)
            saw(stats, m->graph->values[v]->name, LIST(-128 * step, 127 * step), 2);
}

static struct mlo_value *weights(struct mlo_model *m, const char *name, int rank, const int64_t *dims)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, rank, dims, &err));
    size_t count = mlo_tensor_count(&t);
    for (size_t i = 0; i < count; i++) /* 127 in each channel: a scale of 1/64 */
        ((float *)t.data)[i] =
            (i * 11 + i / 9) % 3 == 0 ? 127.0f / 64 : (float)((int)(i * 37 % 101) - 50) / 64;
    return constant_take(m, name, &t);
}
#define weights_of(m, name, ...) weights(m, name, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))

/* The first output of both models on the same inputs, which are multiples of 1/8. */
static double difference(const struct mlo_model *a, const struct mlo_model *b)
{
    struct mlo_tensor inputs[4] = {0};
    make_inputs(a, 2, 5, inputs);
    for (int i = 0; i < 4 && inputs[i].data; i++)
        for (size_t e = 0; e < mlo_tensor_count(&inputs[i]); e++)
            mlo_tensor_set_f64(&inputs[i], e, rint(mlo_tensor_get_f64(&inputs[i], e) * 64) / 8);
    return deviation_on(inputs, a, b);
}

static struct mlo_value *conv(struct mlo_model *m, const char *name, struct mlo_value *x, int64_t from,
                              int64_t to)
{
    char w[32], b[32];
    snprintf(w, sizeof w, "%s_w", name);
    snprintf(b, sizeof b, "%s_b", name);
    struct mlo_value *y = op(m, "Conv", name, x, weights_of(m, w, to, from, 3, 3), ramp(m, b, 0.125f, to));
    set_ints(y, "pads", 1, 1, 1, 1);
    return y;
}

/* Everything that has an integer form. */
static struct mlo_model *everything(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *c1 = conv(m, "c1", input(m, "x", -1, 2, 4, 4), 2, 4);
    struct mlo_value *g = op(m, "Sigmoid", "g", c1);
    struct mlo_value *s = op(m, "Mul", "s", c1, g);
    struct mlo_value *c2 = conv(m, "c2", s, 4, 4);
    struct mlo_value *sum = op(m, "Add", "sum", c2, s);
    struct mlo_value *l = op(m, "LeakyRelu", "l", sum);
    struct mlo_value *cat = op(m, "Concat", "cat", l, c2);
    assert_true(mlo_node_set_i(cat->producer, "axis", 1));
    struct mlo_value *pool = op(m, "MaxPool", "pool", cat);
    set_ints(pool, "kernel_shape", 2, 2);
    struct mlo_value *mean = op(m, "AveragePool", "mean", pool);
    set_ints(mean, "kernel_shape", 2, 2);
    struct mlo_value *c3 = conv(m, "c3", mean, 8, 4);
    struct mlo_value *gap = op(m, "GlobalAveragePool", "gap", c3);
    struct mlo_value *flat = op(m, "Flatten", "flat", gap);
    struct mlo_value *h = op(m, "Gemm", "h", flat, weights_of(m, "h_w", 4, 6), ramp(m, "h_b", 0.125f, 6));
    struct mlo_value *p = op(m, "MatMul", "p", h, weights_of(m, "p_w", 6, 5));
    struct mlo_value *q = op(m, "MatMul", "q", p, weights_of(m, "q_w", 5, 4));
    finish(m, op(m, "Gemm", "y", q, weights_of(m, "y_w", 4, 3), ramp(m, "y_b", 0.125f, 3)));
    return m;
}

static void quantize_both(struct mlo_model *(*build)(void), const char *target, struct mlo_model **qdq,
                          struct mlo_model **integer, json_t **report)
{
    char text[2][128];
    struct mlo_error err = {0};
    struct mlo_stats stats;
    for (int i = 0; i < 2; i++) {
        struct mlo_model *m = build();
        snprintf(text[i], sizeof text[i], "{\"target\": \"%s\", \"form\": \"%s\"}", target,
                 i ? "qoperator" : "qdq");
        saw_bytes(&stats, m, 0.125f);
        assert_ok(run_pass(m, "quantize", text[i], &stats, i ? report : NULL, &err));
        mlo_stats_clear(&stats);
        *(i ? integer : qdq) = m;
    }
}

static void test_to_qoperator__every_op_has_its_form(void **state)
{
    MLO_UNUSED(state);
    json_t *report = NULL;
    struct mlo_model *qdq, *integer;
    quantize_both(everything, "ort-x86-vnni", &qdq, &integer, &report);
    static const struct {
        const char *op_type;
        int count;
    } wanted[] = {
        {"QLinearConv", 3},
        {"QLinearSigmoid", 1},
        {"QLinearMul", 1},
        {"QLinearAdd", 1},
        {"QLinearLeakyRelu", 1},
        {"QLinearConcat", 1},
        {"MaxPool", 1},
        {"QLinearAveragePool", 1},
        {"QLinearGlobalAveragePool", 1},
        {"Flatten", 1},
        {"QGemm", 2},
        {"QLinearMatMul", 2},
        {"QuantizeLinear", 1},
        {"DequantizeLinear", 0},
    };
    for (size_t i = 0; i < MLO_COUNT(wanted); i++)
        if (count_ops(integer, wanted[i].op_type) != wanted[i].count)
            fail_msg("%d nodes %s, not %d", count_ops(integer, wanted[i].op_type), wanted[i].op_type,
                     wanted[i].count);
    assert_int_equal(integer->graph->node_count, 1 + 3 + 5 + 1 + 2 + 1 + 4);
    assert_int_equal(mlo_model_opset(integer, "com.microsoft"), 1);
    assert_true(difference(qdq, integer) == 0); /* to the bit */
    json_decref(report);
    mlo_model_free(qdq);
    mlo_model_free(integer);
}

/* Of any scales: the products are exact in integers and rounded in floats, so a tie may go the other way. */
static void test_to_qoperator__computes_what_the_pairs_do(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *models[2];
    for (int i = 0; i < 2; i++) {
        models[i] = everything();
        observe(models[i], 6, &stats);
        assert_ok(run_pass(models[i], "quantize", "{\"target\": \"ort-x86-vnni\"}", &stats, NULL, &err));
        mlo_stats_clear(&stats);
    }
    assert_ok(run_pass(models[1], "to-qoperator", NULL, NULL, NULL, &err));
    double step = 0;
    for (int v = 0; v < models[0]->graph->value_count; v++)
        if (strcmp(models[0]->graph->values[v]->name, "q_scale") == 0)
            step = mlo_tensor_get_f64(models[0]->graph->values[v]->constant, 0);
    assert_true(step > 0);
    assert_true(difference(models[0], models[1]) < 8 * step); /* one step of q, times the last weights */
    mlo_model_free(models[0]);
    mlo_model_free(models[1]);
}

static struct mlo_model *activations(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *r = op(m, "Relu", "r", conv(m, "c1", input(m, "x", -1, 2, 4, 4), 2, 4));
    struct mlo_value *k =
        op(m, "Clip", "k", conv(m, "c2", r, 4, 4), scalar(m, "low", 0), scalar(m, "high", 1));
    finish(m, op(m, "Relu", "y", conv(m, "c3", k, 4, 2)));
    return m;
}

/* The Relu goes where 0 is the least integer; a Clip at 1 within a range to 15.875 must stay. */
static void test_to_qoperator__activations_go_where_saturation_does_it(void **state)
{
    MLO_UNUSED(state);
    for (int least = 0; least < 2; least++) {
        struct mlo_error err = {0};
        struct mlo_stats stats;
        json_t *report = NULL;
        struct mlo_model *models[2];
        for (int i = 0; i < 2; i++) {
            models[i] = activations();
            saw_bytes(&stats, models[i], 0.125f);
            if (least) { /* what is behind a Relu is seen from 0 on */
                mlo_stats_clear(&stats);
                mlo_stats_init(&stats);
                saw(&stats, "x", LIST(-16, 15.875), 2);
                saw(&stats, "r", LIST(0, 31.875), 2);
                saw(&stats, "k", LIST(0, 1), 2);
            }
            assert_ok(run_pass(models[i], "quantize", i ? "{\"form\": \"qoperator\"}" : NULL, &stats,
                               i ? &report : NULL, &err));
            mlo_stats_clear(&stats);
        }
        assert_int_equal(count_ops(models[1], "QLinearConv"), least ? 2 : 0);
        assert_int_equal(count_ops(models[1], "Clip"), least ? 0 : 1);
        assert_true(has_note(report, "c3_node", "keeps its pairs: no QuantizeLinear alone reads its output"));
        if (!least)
            assert_true(difference(models[0], models[1]) == 0);
        json_decref(report);
        mlo_model_free(models[0]);
        mlo_model_free(models[1]);
    }
}

static void test_to_qoperator__sixteen_bits_keep_their_pairs(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *m = everything();
    observe(m, 2, &stats);
    assert_ok(run_pass(m, "quantize", "{\"activations\": \"int16\", \"form\": \"qoperator\"}", &stats,
                       &report, &err));
    assert_int_equal(count_ops(m, "QLinearConv") + count_ops(m, "QGemm"), 0);
    assert_true(has_note(report, "c1_node", "not all of its inputs are 8-bit integers"));
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

static void test_to_qoperator__foreign_biases_stay(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *m = everything();
    observe(m, 2, &stats);
    assert_ok(run_pass(m, "quantize", NULL, &stats, NULL, &err));
    struct mlo_node *dq = node_named(m, "y_b_DequantizeLinear");
    struct mlo_tensor other = {0};
    assert_ok(mlo_tensor_copy(mlo_node_const(dq, 1), &other, &err));
    ((float *)other.data)[1] *= 2;
    assert_ok(mlo_value_set_constant_take(dq->inputs[1], &other, &err));
    assert_ok(run_pass(m, "to-qoperator", NULL, NULL, &report, &err));
    assert_true(has_note(report, "y_node", "its bias is not int32 with the scale of its products"));
    assert_int_equal(count_ops(m, "Gemm"), 1);
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

static void test_to_qoperator__a_float_model_is_refused(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = everything();
    assert_int_equal(run_pass(m, "to-qoperator", NULL, NULL, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "requires a graph that is quantized");
    mlo_model_free(m);
}

/* What is in integers already, in this form too, is not quantized again. */
static void test_to_qoperator__is_not_quantized_again(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *qdq, *integer;
    quantize_both(everything, "ort-x86-vnni", &qdq, &integer, NULL);
    observe(integer, 1, &stats);
    assert_int_equal(run_pass(integer, "quantize", NULL, &stats, NULL, &err), MLO_ECONFLICT);
    mlo_stats_clear(&stats);
    mlo_model_free(qdq);
    mlo_model_free(integer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_to_qoperator__every_op_has_its_form),
        cmocka_unit_test(test_to_qoperator__computes_what_the_pairs_do),
        cmocka_unit_test(test_to_qoperator__activations_go_where_saturation_does_it),
        cmocka_unit_test(test_to_qoperator__sixteen_bits_keep_their_pairs),
        cmocka_unit_test(test_to_qoperator__foreign_biases_stay),
        cmocka_unit_test(test_to_qoperator__a_float_model_is_refused),
        cmocka_unit_test(test_to_qoperator__is_not_quantized_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
