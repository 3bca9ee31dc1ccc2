/* float16 and bfloat16: what is converted, where Casts go, and what stays in float32. */
#include "tests/unit/passes/passes_helpers.h"

static enum mlo_dtype type_of(const struct mlo_model *m, const char *name)
{
    const struct mlo_value *v = mlo_graph_value(m->graph, name);
    if (!v)
        fail_msg("there is no value '%s'", name);
    return v->type.dtype;
}

/* Conv, Relu, pooling, Gemm. */
static struct mlo_model *net(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *c = op(m, "Conv", "c", input(m, "x", -1, 2, 4, 4), ramp(m, "c_w", 0.3f, 3, 2, 3, 3),
                             ramp(m, "c_b", 0.1f, 3));
    struct mlo_value *f = op(m, "Flatten", "f", op(m, "GlobalAveragePool", "p", op(m, "Relu", "r", c)));
    finish(m, op(m, "Gemm", "y", f, ramp(m, "w", 0.2f, 3, 2), ramp(m, "b", 0.1f, 2)));
    return m;
}

static void test_to_float16__gemm_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    /* Halves have 11 bits: 2049 lies between 2048 and 2050, and the tie goes to the even 2048. */
    finish(m, op(m, "Gemm", "y", input(m, "x", -1, 2),
                 floats(m, "w", LIST(1, 2049, 0.5f, 1.0009765625f), 2, 2), floats(m, "b", LIST(0.1f, 3), 2)));
    assert_ok(run_pass(m, "to-float16", NULL, NULL, NULL, &err));
    assert_int_equal(type_of(m, "x"), MLO_FLOAT32);
    assert_int_equal(type_of(m, "y"), MLO_FLOAT32);
    assert_int_equal(type_of(m, "w"), MLO_FLOAT16);
    assert_int_equal(count_ops(m, "Cast"), 2);
    assert_string_equal(m->graph->outputs[0]->name, "y");
    assert_string_equal(m->graph->outputs[0]->producer->op_type, "Cast");
    const uint16_t *w = mlo_graph_value(m->graph, "w")->constant->data;
    assert_int_equal(w[0], 0x3c00);
    assert_int_equal(w[1], 0x6800);
    assert_int_equal(w[2], 0x3800);
    assert_int_equal(w[3], 0x3c01);
    mlo_model_free(m);
}

static void test_to_float16__computes_nearly_the_same(void **state)
{
    MLO_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        struct mlo_error err = {0};
        struct mlo_model *before = net(), *m = net();
        assert_ok(run_pass(m, "to-float16", i ? "{\"type\": \"bfloat16\"}" : NULL, NULL, NULL, &err));
        assert_int_equal(type_of(m, "r"), i ? MLO_BFLOAT16 : MLO_FLOAT16);
        assert_int_equal(count_ops(m, "Cast"), 2);
        assert_int_equal(mlo_model_opset(m, ""), i ? 22 : 13);
        double worst = deviation(before, m);
        assert_true(worst > 0 && worst < (i ? 0.03 : 0.003));
        mlo_model_free(before);
        mlo_model_free(m);
    }
}

/* An op that ONNX (at opset 13) has in float32 alone, one that it has in halves and runtimes lack, one with
 * float16 and without bfloat16, and one with both. */
static void test_to_float16__ops_that_cannot_be_counted_on_in_halves_stay(void **state)
{
    static const struct {
        const char *op;
        bool float16;
    } ops[] = {{"Celu", false}, {"MeanVarianceNormalization", false}, {"Shrink", true}, {"Sigmoid", true}};
    static const char *const options[] = {"{\"type\": \"float16\"}", "{\"type\": \"bfloat16\"}"};
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(ops); i++)
        for (int b = 0; b < 2; b++) {
            struct mlo_error err = {0};
            struct mlo_model *m = new_model(13);
            struct mlo_value *r = op(m, "Relu", "r", input(m, "x", 1, 2, 4, 4));
            bool half = ops[i].float16 && (!b || strcmp(ops[i].op, "Sigmoid") == 0);
            finish(m, op(m, "Neg", "y", op(m, ops[i].op, "o", r)));
            assert_ok(run_pass(m, "to-float16", options[b], NULL, NULL, &err));
            assert_int_equal(type_of(m, "r"), b ? MLO_BFLOAT16 : MLO_FLOAT16);
            if ((type_of(m, "o") != MLO_FLOAT32) != half)
                fail_msg("%s in %s is %s", ops[i].op, options[b], mlo_dtype_name(type_of(m, "o")));
            assert_int_equal(count_ops(m, "Cast"), half ? 2 : 4);
            mlo_model_free(m);
        }
}

/* ReverseSequence came to bfloat16 in opset 28. */
static void test_to_float16__ops_become_bfloat16_from_their_opset_on(void **state)
{
    static const struct {
        int64_t opset, after;
        bool half;
    } cases[] = {{13, 22, false}, {27, 27, false}, {28, 28, true}};
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_error err = {0};
        json_t *report = NULL;
        struct mlo_model *m = new_model(cases[i].opset), *before = new_model(cases[i].opset);
        for (int k = 0; k < 2; k++) {
            struct mlo_model *to = k ? m : before;
            struct mlo_value *x = op(to, "Relu", "r", input(to, "x", 2, 3));
            finish(to, op(to, "ReverseSequence", "y", x, ints(to, "lengths", 1, 2, 2)));
        }
        assert_ok(run_pass(m, "to-float16", "{\"type\": \"bfloat16\"}", NULL, &report, &err));
        assert_int_equal(mlo_model_opset(m, ""), cases[i].after);
        assert_int_equal(type_of(m, "r"), MLO_BFLOAT16);
        assert_int_equal(m->graph->outputs[0]->producer->inputs[0]->type.dtype,
                         cases[i].half ? MLO_BFLOAT16 : MLO_FLOAT32);
        assert_int_equal(has_note(report, "y_node", "no form of it in bfloat16 at the model's opset"),
                         !cases[i].half);
        assert_true(deviation(before, m) < 0.01);
        json_decref(report);
        mlo_model_free(m);
        mlo_model_free(before);
    }
}

static void test_to_float16__inputs_and_outputs_too(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = net();
    assert_ok(run_pass(m, "to-float16", "{\"keep_io\": false}", NULL, NULL, &err));
    assert_int_equal(type_of(m, "x"), MLO_FLOAT16);
    assert_int_equal(type_of(m, "y"), MLO_FLOAT16);
    assert_int_equal(count_ops(m, "Cast"), 0);
    mlo_model_free(m);
}

static void test_to_float16__keeps_nodes_by_name_and_by_op(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *before = net(), *m = net();
    assert_ok(run_pass(m, "to-float16", "{\"keep\": [\"r_node\", \"Gemm\"]}", NULL, &report, &err));
    assert_int_equal(type_of(m, "c"), MLO_FLOAT16);
    assert_int_equal(type_of(m, "r"), MLO_FLOAT32);
    assert_int_equal(type_of(m, "w"), MLO_FLOAT32);
    /* x down, c up, r down, f up; y is float32 already */
    assert_int_equal(count_ops(m, "Cast"), 4);
    assert_true(has_note(report, "y_node", "Gemm stays in float32: it is kept by the options"));
    assert_true(deviation(before, m) < 0.003);
    json_decref(report);
    mlo_model_free(m);

    m = net();
    assert_int_equal(run_pass(m, "to-float16", "{\"keep\": \"r_nod\"}", NULL, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "no node and no op 'r_nod'");
    assert_contains(err.hint, "r_node");
    err = (struct mlo_error){0};
    assert_int_equal(
        run_pass(m, "to-float16",
                 "{\"keep\": [\"Conv\", \"Relu\", \"GlobalAveragePool\", \"Flatten\", \"Gemm\"]}", NULL, NULL,
                 &err),
        MLO_EUNSUPPORTED);
    assert_contains(err.message, "no node of the model can compute in float16");
    mlo_model_free(m);
    mlo_model_free(before);
}

/* A mask of -3.4e38 is what a half cannot hold, and what a bfloat16 can. */
static void test_to_float16__numbers_beyond_65504_stay_float32(void **state)
{
    MLO_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        struct mlo_error err = {0};
        json_t *report = NULL;
        struct mlo_model *m = new_model(13);
        struct mlo_value *h =
            op(m, "Add", "h", input(m, "x", -1, 2), floats(m, "mask", LIST(0, -3.4e38f), 2));
        finish(m, op(m, "Softmax", "y", h));
        assert_ok(run_pass(m, "to-float16", i ? "{\"type\": \"bfloat16\"}" : NULL, NULL, &report, &err));
        assert_int_equal(type_of(m, "mask"), i ? MLO_BFLOAT16 : MLO_FLOAT32);
        assert_int_equal(has_note(report, "h_node", "'mask' holds 3.4e+38, beyond the 65504 of float16"), !i);
        json_decref(report);
        mlo_model_free(m);
    }
}

static void test_to_float16__values_seen_beyond_65504_stay_float32(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    json_t *report = NULL;
    struct mlo_model *m = net();
    mlo_stats_init(&stats);
    saw(&stats, "c", LIST(-70000, 3), 2);
    saw(&stats, "f", LIST(-65504, 65504), 2);
    assert_ok(run_pass(m, "to-float16", NULL, &stats, &report, &err));
    assert_true(has_note(report, "c_node", "'c' reached on calibration data 70000"));
    assert_int_equal(type_of(m, "c"), MLO_FLOAT32);
    assert_int_equal(type_of(m, "r"), MLO_FLOAT32); /* it reads the large value */
    assert_int_equal(type_of(m, "f"), MLO_FLOAT16);
    json_decref(report);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

static void test_to_float16__numbers_that_vanish_are_noted(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(13);
    finish(m, op(m, "Mul", "y", input(m, "x", -1, 3), floats(m, "k", LIST(1e-9f, 0, 1), 3)));
    assert_ok(run_pass(m, "to-float16", NULL, NULL, &report, &err));
    assert_true(has_note(report, "k", "1 of 3 numbers are too small"));
    json_decref(report);
    mlo_model_free(m);
}

/* Constants that a kept node shares with others are there in both types. */
static void test_to_float16__shared_constants(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *k = floats(m, "k", LIST(1, 2), 2);
    struct mlo_value *a = op(m, "Add", "a", input(m, "x", -1, 2), k);
    finish(m, op(m, "Mul", "y", a, k));
    assert_ok(run_pass(m, "to-float16", "{\"keep\": \"Mul\"}", NULL, NULL, &err));
    assert_int_equal(type_of(m, "k"), MLO_FLOAT32);
    assert_int_equal(type_of(m, "k_float16"), MLO_FLOAT16);
    mlo_model_free(m);
}

static void test_to_float16__scales_of_resize_stay(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", 1, 1, 2, 2);
    finish(m, op(m, "Resize", "y", x, NULL, floats(m, "scales", LIST(1, 1, 2, 2), 4)));
    assert_ok(run_pass(m, "to-float16", NULL, NULL, NULL, &err));
    assert_int_equal(type_of(m, "scales"), MLO_FLOAT32);
    assert_string_equal(m->graph->outputs[0]->producer->op_type, "Cast");
    mlo_model_free(m);
}

/* A size that is computed with floats: 3000 is no half. */
static void test_to_float16__sizes_stay_exact(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", 1, 3001);
    struct mlo_value *s = op(m, "Cast", "s", op(m, "Shape", "shape", x));
    assert_true(mlo_node_set_i(s->producer, "to", MLO_FLOAT32));
    struct mlo_value *t = op(m, "Cast", "t", op(m, "Mul", "sm", s, floats(m, "one", LIST(1, 1), 2)));
    assert_true(mlo_node_set_i(t->producer, "to", MLO_INT64));
    finish(m, op(m, "Reshape", "y", op(m, "Relu", "r", x), t));
    assert_ok(run_pass(m, "to-float16", NULL, NULL, NULL, &err));
    assert_int_equal(type_of(m, "r"), MLO_FLOAT16);
    assert_int_equal(type_of(m, "s"), MLO_FLOAT32);
    assert_int_equal(type_of(m, "sm"), MLO_FLOAT32);
    mlo_model_free(m);
}

/* The body of an If reads a value of the graph around it: in float32, as it was made for. */
static void test_to_float16__bodies_stay_float32(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *condition = input_of(m, "condition", MLO_BOOL, 0, NULL);
    struct mlo_value *r = op(m, "Relu", "r", input(m, "x", 2, 2));
    struct mlo_value *y = op(m, "If", "y", condition);
    for (int i = 0; i < 2; i++) {
        struct mlo_graph *body = subgraph(y->producer, i ? "then_branch" : "else_branch");
        assert_ok(mlo_graph_add_output(body, op_in(body, i ? "Exp" : "Neg", i ? "e" : "n", r), &err));
    }
    finish(m, y);
    assert_ok(run_pass(m, "to-float16", NULL, NULL, NULL, &err));
    assert_int_equal(type_of(m, "r"), MLO_FLOAT16);
    assert_int_equal(type_of(m, "r_float32"), MLO_FLOAT32);
    assert_int_equal(type_of(m, "y"), MLO_FLOAT32);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_to_float16__gemm_by_hand),
        cmocka_unit_test(test_to_float16__computes_nearly_the_same),
        cmocka_unit_test(test_to_float16__ops_that_cannot_be_counted_on_in_halves_stay),
        cmocka_unit_test(test_to_float16__ops_become_bfloat16_from_their_opset_on),
        cmocka_unit_test(test_to_float16__inputs_and_outputs_too),
        cmocka_unit_test(test_to_float16__keeps_nodes_by_name_and_by_op),
        cmocka_unit_test(test_to_float16__numbers_beyond_65504_stay_float32),
        cmocka_unit_test(test_to_float16__values_seen_beyond_65504_stay_float32),
        cmocka_unit_test(test_to_float16__numbers_that_vanish_are_noted),
        cmocka_unit_test(test_to_float16__shared_constants),
        cmocka_unit_test(test_to_float16__scales_of_resize_stay),
        cmocka_unit_test(test_to_float16__sizes_stay_exact),
        cmocka_unit_test(test_to_float16__bodies_stay_float32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
