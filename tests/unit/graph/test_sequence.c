/* Sequences and optionals, through the op table. */
#include "proto.h"

/* Evaluates one node with the attributes set by hand; the model lives as long as the node. */
struct one {
    struct mlo_model *model;
    struct mlo_node *node;
    struct mlo_error err;
};

static void one_init(struct one *o, const char *op, int inputs)
{
    struct mlo_value *in[4], *out;
    assert_int_equal(mlo_model_new(18, &o->model, &o->err), MLO_OK);
    for (int i = 0; i < inputs; i++)
        in[i] = mlo_graph_add_value(o->model->graph, "x", NULL);
    out = mlo_graph_add_value(o->model->graph, "y", NULL);
    o->node = mlo_graph_add_node(o->model->graph, NULL, "", op, op, in, inputs, &out, 1);
    assert_non_null(o->node->op);
}

/* Runs and frees the node. */
static enum mlo_status apply(struct one *o, const struct mlo_tensor *const *in, struct mlo_tensor *out)
{
    *out = (struct mlo_tensor){0};
    enum mlo_status status = mlo_node_eval(o->node, in, &out, &o->err);
    mlo_model_free(o->model);
    return status;
}

static struct mlo_tensor sequence_of(float *data, int64_t count)
{
    struct one o = {0};
    struct mlo_tensor t[3], out;
    const struct mlo_tensor *in[3];
    for (int i = 0; i < count; i++) {
        t[i] = proto_floats(data + i, 1);
        in[i] = &t[i];
    }
    one_init(&o, "SequenceConstruct", (int)count);
    assert_int_equal(apply(&o, in, &out), MLO_OK);
    return out;
}

static int64_t at;
static const struct mlo_tensor position = {.dtype = MLO_INT64, .data = &at, .size_bytes = sizeof at};

static float item(const struct mlo_tensor *sequence, int i)
{
    return ((float *)mlo_values(sequence)[i].data)[0];
}

static void test_sequence__insert_erase_at(void **state)
{
    MLO_UNUSED(state);
    float data[3] = {1, 2, 3}, extra = 9;
    struct mlo_tensor s = sequence_of(data, 3), t = proto_floats(&extra, 1), longer, shorter, y;
    struct one o = {0};
    one_init(&o, "SequenceInsert", 3);
    at = -1;
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&s, &t, &position}, &longer), MLO_OK);
    assert_int_equal(mlo_tensor_count(&longer), 4);
    assert_true(item(&longer, 1) == 2 && item(&longer, 2) == 9 && item(&longer, 3) == 3);
    one_init(&o, "SequenceErase", 2);
    at = 0;
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&longer, &position}, &shorter), MLO_OK);
    assert_true(item(&shorter, 0) == 2 && mlo_tensor_count(&shorter) == 3);
    one_init(&o, "SequenceAt", 2);
    at = -3;
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&s, &position}, &y), MLO_OK);
    assert_true(((float *)y.data)[0] == 1);
    mlo_tensor_clear(&y);
    for (at = -4; at < 8; at += 7) { /* -4, 3 */
        o.err = (struct mlo_error){0};
        one_init(&o, "SequenceAt", 2);
        assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&s, &position}, &y), MLO_EINVAL);
        assert_non_null(strstr(o.err.message, "outside of a sequence of 3"));
    }
    mlo_tensor_clear(&s);
    mlo_tensor_clear(&longer);
    mlo_tensor_clear(&shorter);
}

static void test_sequence__kinds_are_not_mixed(void **state)
{
    MLO_UNUSED(state);
    float data[2] = {1, 2};
    struct mlo_tensor s = sequence_of(data, 2), y;
    struct one o = {0};
    one_init(&o, "SequenceInsert", 2); /* a sequence of sequences */
    assert_int_not_equal(apply(&o, (const struct mlo_tensor *[]){&s, &s}, &y), MLO_OK);
    one_init(&o, "SequenceInsert", 2); /* integers among floats */
    assert_int_not_equal(apply(&o, (const struct mlo_tensor *[]){&s, &position}, &y), MLO_OK);
    one_init(&o, "SequenceLength", 1); /* of a tensor */
    assert_int_not_equal(apply(&o, (const struct mlo_tensor *[]){&position}, &y), MLO_OK);
    one_init(&o, "SequenceInsert",
             2); /* integers into what is only known to be of floats, as when it is empty */
    struct mlo_type inferred, floats = {.dtype = MLO_FLOAT32, .rank = -1};
    o.node->inputs[0]->type = (struct mlo_type){.dtype = MLO_SEQUENCE, .rank = -1, .element = &floats};
    o.node->inputs[1]->type = (struct mlo_type){.dtype = MLO_INT64};
    assert_int_equal(mlo_node_infer(o.node, &inferred, &o.err), MLO_EINVAL);
    assert_non_null(strstr(o.err.message, "does not go into a sequence of float32"));
    o.node->inputs[1]->type.dtype = MLO_FLOAT32;
    assert_int_equal(mlo_node_infer(o.node, &inferred, &o.err), MLO_OK);
    mlo_model_free(o.model);
    /* kernels of tensors refuse sequences */
    static const char *const ops[] = {"Relu", "Cast", "Transpose", "Flatten", "ReduceMax", "Softmax", "Not"};
    for (size_t i = 0; i < MLO_COUNT(ops); i++) {
        one_init(&o, ops[i], 1);
        assert_true(mlo_node_set_i(o.node, "to", MLO_FLOAT32));
        if (apply(&o, (const struct mlo_tensor *[]){&s}, &y) == MLO_OK)
            fail_msg("%s takes a sequence", ops[i]);
    }
    one_init(&o, "Identity", 1);
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&s}, &y), MLO_OK);
    assert_true(item(&y, 1) == 2);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&s);
}

static void test_sequence__split_and_concat_are_inverse(void **state)
{
    MLO_UNUSED(state);
    float data[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct mlo_tensor x = {MLO_FLOAT32, 2, {2, 5}, data, sizeof data, false}, s, y;
    struct one o = {0};
    one_init(&o, "SplitToSequence", 2);
    assert_true(mlo_node_set_i(o.node, "axis", 1));
    at = 2;
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&x, &position}, &s), MLO_OK);
    assert_int_equal(mlo_tensor_count(&s), 3);
    assert_int_equal(mlo_values(&s)[2].dims[1], 1);
    assert_true(((float *)mlo_values(&s)[1].data)[2] == 7);
    one_init(&o, "ConcatFromSequence", 1);
    assert_true(mlo_node_set_i(o.node, "axis", -1));
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&s}, &y), MLO_OK);
    assert_true(mlo_tensor_same_shape(&x, &y));
    assert_memory_equal(y.data, data, sizeof data);
    mlo_tensor_clear(&y);
    one_init(&o, "SplitToSequence", 2);
    at = 0;
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&x, &position}, &y), MLO_EINVAL);
    one_init(&o, "ConcatFromSequence", 1); /* pieces of other lengths do not stack */
    assert_true(mlo_node_set_i(o.node, "axis", 0) && mlo_node_set_i(o.node, "new_axis", 1));
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&s}, &y), MLO_EINVAL);
    mlo_tensor_clear(&s);
}

static void test_sequence__optionals(void **state)
{
    MLO_UNUSED(state);
    float data[2] = {1, 2};
    struct mlo_tensor s = sequence_of(data, 2), full, none, y;
    struct one o = {0};
    one_init(&o, "Optional", 1);
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&s}, &full), MLO_OK);
    assert_int_equal(mlo_values_init(&none, MLO_OPTIONAL, 0, &o.err), MLO_OK);
    one_init(&o, "Optional", 1); /* an optional of an optional */
    assert_int_not_equal(apply(&o, (const struct mlo_tensor *[]){&full}, &y), MLO_OK);
    one_init(&o, "OptionalGetElement", 1);
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&full}, &y), MLO_OK);
    assert_true(y.dtype == MLO_SEQUENCE && item(&y, 1) == 2);
    mlo_tensor_clear(&y);
    one_init(&o, "OptionalGetElement", 1);
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&none}, &y), MLO_EINVAL);
    one_init(&o, "OptionalHasElement", 1);
    assert_int_equal(apply(&o, (const struct mlo_tensor *[]){&none}, &y), MLO_OK);
    assert_false(*(uint8_t *)y.data);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&s);
    mlo_tensor_clear(&full);
    mlo_tensor_clear(&none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequence__insert_erase_at),
        cmocka_unit_test(test_sequence__kinds_are_not_mixed),
        cmocka_unit_test(test_sequence__split_and_concat_are_inverse),
        cmocka_unit_test(test_sequence__optionals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
