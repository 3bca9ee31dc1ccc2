/* Forms from before opset 7. */
#include "proto.h"

/* x[2,3,2] + b[3] along axis 1: numpy's rule would refuse it. */
static void test_legacy__broadcasts_at_an_axis(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__NodeProto *add =
        proto_i(a, proto_i(a, proto_node(a, "Add", "x,b", "y"), "broadcast", 1), "axis", 1);
    Onnx__GraphProto *g = proto_graph(a, "x:f2x3x2,b:f3", "y:f2x3x2", add, NULL);
    if (proto_load(proto_model(a, g, 6), &f->model, &f->err) != MLO_OK)
        fail_msg("%s (%s)", f->err.message, f->err.where);
    assert_false(
        mlo_node_is(f->model->graph->nodes[0], "Add")); /* no pass and no engine may take it for one */
    float x[12], b[3] = {100, 200, 300};
    for (int i = 0; i < 12; i++)
        x[i] = (float)i;
    struct mlo_tensor in[2] = {{MLO_FLOAT32, 3, {2, 3, 2}, x, sizeof x, false}, proto_floats(b, 3)},
                      out = {0};
    if (mlo_graph_eval(f->model->graph, in, &out, &f->err) != MLO_OK)
        fail_msg("%s (%s)", f->err.message, f->err.where);
    for (int i = 0; i < 12; i++)
        assert_true(((float *)out.data)[i] == x[i] + b[i / 2 % 3]);
    mlo_tensor_clear(&out);
}

static void test_legacy__a_bad_axis_is_refused(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    static const int64_t axes[] = {2, -4, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < MLO_COUNT(axes); i++) {
        Onnx__NodeProto *add =
            proto_i(a, proto_i(a, proto_node(a, "Add", "x,b", "y"), "broadcast", 1), "axis", axes[i]);
        Onnx__GraphProto *g = proto_graph(a, "x:f2x3,b:f2x3", "y:f2x3", add, NULL);
        f->err = (struct mlo_error){0};
        assert_int_equal(proto_load(proto_model(a, g, 6), &f->model, &f->err), MLO_EINVAL);
        assert_non_null(strstr(f->err.message, "axis"));
    }
}

static void test_legacy__training_is_refused(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__GraphProto *g = proto_graph(a, "x:f2x3", "y:f2x3", proto_node(a, "Dropout", "x", "y"), NULL);
    assert_int_equal(proto_load(proto_model(a, g, 6), &f->model, &f->err), MLO_EUNSUPPORTED);
    assert_non_null(strstr(f->err.message, "training"));
    proto_i(a, g->node[0], "is_test", 1);
    assert_int_equal(proto_load(proto_model(a, g, 6), &f->model, &f->err), MLO_OK);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, proto_set_up, proto_tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_legacy__broadcasts_at_an_axis),
        CASE(test_legacy__a_bad_axis_is_refused),
        CASE(test_legacy__training_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
