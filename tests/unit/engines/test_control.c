/* Models with subgraphs, sequences and data-dependent shapes on the engines. */
#include "../graph/proto.h"
#include "engines/engines_impl.h"
#include "tests/plan_copy.h"

static void load(struct proto_fixture *f, Onnx__GraphProto *g)
{
    if (proto_load(proto_model(f->arena, g, 17), &f->model, &f->err) != MLO_OK)
        fail_msg("%s (%s)", f->err.message, f->err.where);
}

static enum mlo_status run_on(struct proto_fixture *f, const char *name, enum mlo_numerics numerics,
                              const struct mlo_tensor *inputs, struct mlo_tensor *outputs)
{
    const struct mlo_engine *engine;
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    struct plan_copy copy = {0};
    struct mlo_compile_options options = {.numerics = numerics};
    enum mlo_status status;
    MLO_TRY(mlo_engine_find(name, &engine, &f->err));
    MLO_TRY(engine->compile(f->model, &options, &plan, &f->err));
    MLO_TRY(plan_copy(engine, plan, &copy, &f->err));
    MLO_TRY(engine->load(copy.plan ? copy.plan : plan, &program, &f->err));
    for (int run = 0; run < 2; run++) /* again with what the first run left behind */
        MLO_TRY(engine->run(program, inputs, outputs, &f->err));
out:
    if (program)
        engine->unload(program);
    plan_copy_free(engine, &copy);
    if (plan)
        engine->free_plan(plan);
    return status;
}

static const struct {
    const char *name;
    enum mlo_numerics numerics;
} engines[] = {{"reference", MLO_NUMERICS_FAST}, {"cpu", MLO_NUMERICS_FAST}, {"cpu", MLO_NUMERICS_INVARIANT}};

/* h = Relu(Conv(x)), which the cpu engine fuses and keeps channels last; a Loop that adds h, captured, three
 * times to what it is given; and an If that reads h too. */
static Onnx__GraphProto *captured(struct mlo_arena *a)
{
    Onnx__GraphProto *body =
        proto_graph(a, "i:i.,c:b.,s:f", "c2:b.,s2:f", proto_node(a, "Identity", "c", "c2"),
                    proto_node(a, "Add", "s,h", "s2"), NULL);
    Onnx__NodeProto *choose = proto_node(a, "If", "c0", "z");
    proto_g(a, choose, "then_branch", proto_graph(a, "", "r:f", proto_node(a, "Neg", "h", "r"), NULL));
    proto_g(a, choose, "else_branch", proto_graph(a, "", "r2:f", proto_node(a, "Identity", "x", "r2"), NULL));
    return proto_graph(a, "x:f1x2x3x3,w:f2x2x1x1,c0:b.", "y:f1x2x3x3,z:f1x2x3x3",
                       proto_node(a, "Conv", "x,w", "p"), proto_node(a, "Relu", "p", "h"),
                       proto_i(a, proto_node(a, "Constant", "", "m"), "value_int", 3),
                       proto_g(a, proto_node(a, "Loop", "m,,x", "y"), "body", body), choose, NULL);
}

static void test_control__engines_read_captured_values(void **state)
{
    struct proto_fixture *f = *state;
    float x[18], w[4] = {1, -2, 0.5F, 3};
    uint8_t yes = 1;
    for (int i = 0; i < 18; i++)
        x[i] = (float)(i * 7 % 5) - 2;
    struct mlo_tensor in[] = {{MLO_FLOAT32, 4, {1, 2, 3, 3}, x, sizeof x, false},
                              {MLO_FLOAT32, 4, {2, 2, 1, 1}, w, sizeof w, false},
                              {.dtype = MLO_BOOL, .data = &yes, .size_bytes = 1}};
    load(f, captured(f->arena));
    for (size_t e = 0; e < MLO_COUNT(engines); e++) {
        struct mlo_tensor out[2] = {0};
        if (run_on(f, engines[e].name, engines[e].numerics, in, out) != MLO_OK)
            fail_msg("%s: %s (%s)", engines[e].name, f->err.message, f->err.where);
        for (int i = 0; i < 18; i++) {
            int c = i / 9, p = i % 9;
            float h = w[c * 2] * x[p] + w[c * 2 + 1] * x[9 + p];
            h = h > 0 ? h : 0;
            if (((float *)out[0].data)[i] != x[i] + h + h + h || ((float *)out[1].data)[i] != -h)
                fail_msg("%s %zu: element %d", engines[e].name, e, i);
        }
        mlo_tensor_clear(&out[0]);
        mlo_tensor_clear(&out[1]);
    }
}

/* A sequence in the middle of a graph. */
static void test_control__engines_run_sequences(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    load(f, proto_graph(a, "x:f2,i:i.", "y:f", proto_node(a, "Neg", "x", "n"),
                        proto_node(a, "SequenceConstruct", "x,n", "s"),
                        proto_node(a, "SequenceAt", "s,i", "t"), proto_node(a, "Relu", "t", "y"), NULL));
    float x[2] = {-1, 2};
    int64_t at = 1;
    struct mlo_tensor in[] = {proto_floats(x, 2), {.dtype = MLO_INT64, .data = &at, .size_bytes = sizeof at}};
    for (size_t e = 0; e < MLO_COUNT(engines); e++) {
        struct mlo_tensor out = {0};
        if (run_on(f, engines[e].name, engines[e].numerics, in, &out) != MLO_OK)
            fail_msg("%s: %s (%s)", engines[e].name, f->err.message, f->err.where);
        assert_int_equal(mlo_tensor_count(&out), 2);
        assert_true(((float *)out.data)[0] == 1 && ((float *)out.data)[1] == 0);
        mlo_tensor_clear(&out);
    }
}

/* The file says four elements; the data make two: an engine that trusted the file would read beyond them. */
static void test_control__a_stated_shape_is_checked(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__ModelProto *p = proto_model(a,
                                      proto_graph(a, "x:f4", "y:i1x4", proto_node(a, "NonZero", "x", "n"),
                                                  proto_node(a, "Neg", "n", "y"), NULL),
                                      17);
    p->graph->value_info = mlo_arena_calloc(a, 1, sizeof *p->graph->value_info);
    p->graph->value_info[p->graph->n_value_info++] = proto_value(a, "n:i1x4");
    assert_int_equal(proto_load(p, &f->model, &f->err), MLO_OK);
    float x[4] = {0, 1, 0, 2};
    struct mlo_tensor in = proto_floats(x, 4), out = {0};
    for (int e = 1; e < 3; e++) {
        f->err = (struct mlo_error){0};
        assert_int_equal(run_on(f, "cpu", engines[e].numerics, &in, &out), MLO_EFORMAT);
        assert_non_null(strstr(f->err.message, "is stated to be"));
        mlo_tensor_clear(&out);
    }
}

static void test_control__sequences_are_inputs(void **state)
{
    struct proto_fixture *f = *state;
    struct mlo_arena *a = f->arena;
    Onnx__GraphProto *g = proto_graph(a, "s:f", "y:i", proto_node(a, "SequenceLength", "s", "y"), NULL);
    Onnx__TypeProto *type = PROTO_NEW(a, Onnx__TypeProto, onnx__type_proto__init);
    type->value_case = ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE;
    type->sequence_type = PROTO_NEW(a, Onnx__TypeProto__Sequence, onnx__type_proto__sequence__init);
    type->sequence_type->elem_type = g->input[0]->type;
    g->input[0]->type = type;
    load(f, g);
    float x[2] = {-1, 2};
    struct mlo_tensor in = {0}, out = {0}, tensor = proto_floats(x, 2);
    assert_int_equal(mlo_values_init(&in, MLO_SEQUENCE, 2, &f->err), MLO_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(mlo_tensor_copy(&tensor, &mlo_values(&in)[i], &f->err), MLO_OK);
    for (size_t e = 0; e < MLO_COUNT(engines); e++) {
        if (run_on(f, engines[e].name, engines[e].numerics, &in, &out) != MLO_OK)
            fail_msg("%s: %s (%s)", engines[e].name, f->err.message, f->err.where);
        assert_int_equal(mlo_tensor_get_i64(&out, 0), 2);
        mlo_tensor_clear(&out);
        assert_int_equal(run_on(f, engines[e].name, engines[e].numerics, &tensor, &out), MLO_EINVAL);
    }
    mlo_tensor_clear(&in);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, proto_set_up, proto_tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_control__engines_read_captured_values),
        CASE(test_control__engines_run_sequences),
        CASE(test_control__a_stated_shape_is_checked),
        CASE(test_control__sequences_are_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
