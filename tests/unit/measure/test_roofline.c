/* The roofline, and dims that are given before something is measured. */
#include "tests/unit/measure/fixture.h"

/* x[batch, n] w[n, n] -> Relu, n = 64 */
static struct mlo_model *product(const char *second_name, int64_t second)
{
    struct mlo_model *m = NULL;
    struct mlo_error err = {0};
    struct mlo_tensor w = {0};
    struct mlo_type type = {MLO_FLOAT32, 2, {{-1, "batch"}, {second, second_name}}, NULL};
    assert_ok(mlo_model_new(17, &m, &err));
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type);
    assert_ok(mlo_graph_add_input(m->graph, x, &err));
    assert_ok(mlo_tensor_init(&w, MLO_FLOAT32, 2, (int64_t[]){64, 64}, &err));
    struct mlo_value *ins[] = {x, mlo_graph_add_constant_take(m->graph, "w", &w)},
                     *h = mlo_graph_add_value(m->graph, "h", NULL),
                     *y = mlo_graph_add_value(m->graph, "y", NULL);
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "MatMul", "product", ins, 2, &h, 1));
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "Relu", "relu", &h, 1, &y, 1));
    assert_ok(mlo_graph_add_output(m->graph, y, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    return m;
}

static void test_roofline__is_the_larger_of_computing_and_moving(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_model *m = product(NULL, 64);
    struct mlo_peaks peaks = {
        1, 1e9, 4e9, {{"L2", 1 << 20, 4e9}, {"L3", 1 << 24, 2e9}, {"memory", SIZE_MAX, 1e9}}};
    assert_ok(mlo_model_bind_dims(m, NULL, 0, 4, &err));
    json_t *p = json_pack("{s:I, s:[{s:s,s:s,s:f,s:[s]}, {s:s,s:s,s:f,s:[]}, {s:s,s:s,s:f,s:[]}]}",
                          "arena_bytes", (json_int_t)1000, "nodes", "node", "product", "precision", "f32",
                          "us", 50.0, "fused", "relu", "node", "relu", "precision", "f32", "us", 1.0, "fused",
                          "node", "", "precision", "f32", "us", 1.0, "fused");
    assert_ok(mlo_roofline(p, m, &peaks, &err));
    const json_t *nodes = json_object_get(p, "nodes"), *fused = json_array_get(nodes, 0);
    /* 2*4*64*64 multiply-adds and 4*64 for Relu; weights and the rows in and out once, h not at all */
    assert_int_equal(mlo_json_i64(fused, "flops", 0), 2 * 4 * 64 * 64 + 4 * 64);
    assert_int_equal(mlo_json_i64(fused, "bytes", 0), 4 * (64 * 64 + 2 * 4 * 64));
    assert_string_equal(mlo_json_str(fused, "bound", ""), "compute");
    assert_float_equal(mlo_json_f64(fused, "peak", 0), (2 * 4 * 64 * 64 + 4 * 64) / 1e9 / 50e-6, 1e-9);
    const json_t *relu = json_array_get(nodes, 1);
    assert_string_equal(mlo_json_str(relu, "bound", ""), "memory");
    assert_float_equal(mlo_json_f64(relu, "peak", 0), 2 * 4 * 64 * 4 / 4e9 / 1e-6, 1e-9);
    assert_null(json_object_get(json_array_get(nodes, 2), "peak")); /* a reorder is no node of the graph */
    assert_int_equal(mlo_json_i64(p, "working_set_bytes", 0), 1000 + 4 * 64 * 64);
    assert_int_equal(json_array_size(json_object_get(json_object_get(p, "peaks"), "levels")), 3);
    /* numbers of 16 bits are twice as many to a register */
    static const char *const narrow[] = {"f16", "fixed16"};
    for (size_t i = 0; i < MLO_COUNT(narrow); i++) {
        json_object_set_new((json_t *)fused, "precision", json_string(narrow[i]));
        assert_ok(mlo_roofline(p, m, &peaks, &err));
        assert_float_equal(mlo_json_f64(fused, "peak", 0), (2 * 4 * 64 * 64 + 4 * 64) / 2e9 / 50e-6, 1e-9);
    }
    json_decref(p);
    mlo_model_free(m);
}

static void test_peaks__are_those_of_a_real_machine(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_peaks p;
    if (mlo_isa_current() < MLO_ISA_AVX2) {
        assert_int_equal(mlo_peaks_measure(1, &p, &err), MLO_EUNAVAILABLE);
        return;
    }
    assert_ok(mlo_peaks_measure(1, &p, &err));
    assert_true(p.f32_ops > 1e6 && p.f32_ops < 1e13); /* slow under an emulator, but never nothing */
    assert_true(p.int8_ops > 1e6 && p.int8_ops < 1e14);
    for (int i = 0; i < MLO_PEAK_LEVELS; i++)
        assert_true(p.levels[i].bytes_per_s > 1e5 && p.levels[i].bytes_per_s < 1e14);
    assert_true(p.levels[0].bytes < p.levels[1].bytes && p.levels[2].bytes == SIZE_MAX);
}

static void test_dims__that_are_open_are_asked_for_by_flag(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_model *m = product("width", -1);
    assert_int_equal(mlo_model_bind_dims(m, NULL, 0, 4, &err), MLO_EINVAL);
    assert_contains(err.message, "float32[4,width]");
    assert_contains(err.hint, "--dim 'width=N'");
    mlo_model_free(m);
    m = product("width", -1);
    assert_int_equal(mlo_model_bind_dims(m, &(struct mlo_binding){"wdith", 64}, 1, 4, &err), MLO_EINVAL);
    assert_contains(err.message, "no open dim 'wdith'");
    assert_contains(err.hint, "'width'");
    assert_ok(mlo_model_bind_dims(m, &(struct mlo_binding){"width", 64}, 1, 4, &err));
    assert_int_equal(m->graph->inputs[0]->type.dims[0].value, 4);
    assert_int_equal(m->graph->inputs[0]->type.dims[1].value, 64);
    mlo_model_free(m);
    m = product(NULL, -1); /* without a name */
    assert_int_equal(mlo_model_bind_dims(m, NULL, 0, 4, &err), MLO_EINVAL);
    assert_contains(err.hint, "--dim 'x:1=N'");
    assert_ok(mlo_model_bind_dims(m, &(struct mlo_binding){"x:1", 64}, 1, 4, &err));
    assert_int_equal(m->graph->inputs[0]->type.dims[1].value, 64);
    mlo_model_free(m);
    m = product("batch", -1); /* the name of the batch, given */
    assert_ok(mlo_model_bind_dims(m, &(struct mlo_binding){"batch", 64}, 1, 4, &err));
    assert_int_equal(m->graph->inputs[0]->type.dims[0].value, 64);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roofline__is_the_larger_of_computing_and_moving),
        cmocka_unit_test(test_peaks__are_those_of_a_real_machine),
        cmocka_unit_test(test_dims__that_are_open_are_asked_for_by_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
