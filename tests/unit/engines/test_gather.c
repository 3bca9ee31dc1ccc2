/* Gather as a step of its own: tables of floats and of bytes, indices of both types, from both ends and
 * beyond, and indices that went through floats; against the reference engine. */
#include "qhelpers.h"

static struct mlo_value *index_input(struct net *n, enum mlo_dtype dtype, int rank, const int64_t *dims)
{
    struct mlo_type t = net_type(dtype, rank, dims);
    struct mlo_value *v = mlo_graph_add_value(n->graph, "index", &t);
    assert_non_null(v);
    MUST(mlo_graph_add_input(n->graph, v, err));
    return v;
}

static struct mlo_tensor index_tensor(enum mlo_dtype dtype, int rank, const int64_t *dims,
                                      const int64_t *values)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, dtype, rank, dims, err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        mlo_tensor_set_f64(&t, i, (double)values[i]);
    return t;
}

static int steps_of(const json_t *d, const char *op, const char *impl)
{
    size_t i;
    json_t *node;
    int count = 0;
    json_array_foreach(json_object_get(d, "nodes"), i, node) count +=
        (!op || strcmp(mlo_json_str(node, "op", ""), op) == 0) &&
        (!impl || strcmp(mlo_json_str(node, "impl", ""), impl) == 0);
    return count;
}

/* Both engines on one input, bit for bit; nothing is interpreted. */
static json_t *check_same(struct net *n, const struct mlo_tensor *in, const char *what)
{
    struct mlo_compile_options o = {.threads = 1};
    json_t *d = NULL;
    struct mlo_tensor want = run_model("reference", n->model, &o, in, NULL);
    struct mlo_tensor got = run_model("cpu", n->model, &o, in, &d);
    if (!mlo_tensor_same_shape(&got, &want) || got.dtype != want.dtype ||
        memcmp(got.data, want.data, want.size_bytes) != 0)
        fail_msg("%s: not what the reference gathers", what);
    if (steps_of(d, NULL, "reference"))
        fail_msg("%s: a step is interpreted", what);
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&got);
    return d;
}

static const int64_t table_dims[] = {3, 7, 5};

static void test_gather__every_axis_and_index_type(void **state)
{
    MLO_UNUSED(state);
    static const enum mlo_dtype types[] = {MLO_INT32, MLO_INT64};
    for (size_t t = 0; t < MLO_COUNT(types); t++)
        for (int axis = -3; axis < 3; axis++) {
            char what[64];
            int64_t size = table_dims[axis < 0 ? axis + 3 : axis], picks[] = {2, 2};
            int64_t values[] = {size - 1, -size, -1, 1};
            snprintf(what, sizeof what, "axis %d, %s", axis, mlo_dtype_name(types[t]));
            struct net n = net_new(7);
            struct mlo_value *index = index_input(&n, types[t], 2, picks);
            struct mlo_value *y = net_op(&n, "Gather", net_floats(&n, 3, table_dims, 1.0f), index, NULL);
            assert_true(mlo_node_set_i(y->producer, "axis", axis));
            net_finish(&n, y);
            struct mlo_tensor in = index_tensor(types[t], 2, picks, values);
            json_decref(check_same(&n, &in, what));
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

static void test_gather__beyond_the_table_is_an_error(void **state)
{
    MLO_UNUSED(state);
    static const int64_t beyond[] = {7, -8, INT32_MAX, INT32_MIN};
    for (size_t k = 0; k < MLO_COUNT(beyond); k++)
        for (int casts = 0; casts < 2; casts++) {
            struct net n = net_new(7);
            int64_t one = 1, dims[] = {7, 4};
            struct mlo_value *index = index_input(&n, MLO_INT64, 1, &one);
            if (casts) {
                index = net_op(&n, "Cast", index, NULL, NULL);
                assert_true(mlo_node_set_i(index->producer, "to", MLO_FLOAT32));
                index = net_op(&n, "Cast", index, NULL, NULL);
                assert_true(mlo_node_set_i(index->producer, "to", MLO_INT32));
            }
            net_finish(&n, net_op(&n, "Gather", net_floats(&n, 2, dims, 1.0f), index, NULL));
            struct mlo_tensor in = index_tensor(MLO_INT64, 1, &one, &beyond[k]), out = {0};
            const struct mlo_engine *e;
            struct mlo_plan *plan = NULL;
            struct mlo_program *program = NULL;
            struct mlo_error error = {0};
            struct mlo_compile_options o = {.threads = 1};
            MUST(mlo_engine_find("cpu", &e, err));
            MUST(e->compile(n.model, &o, &plan, err));
            MUST(e->load(plan, &program, err));
            if (e->run(program, &in, &out, &error) != MLO_EINVAL)
                fail_msg("index %lld of a table of 7 rows: taken", (long long)beyond[k]);
            e->unload(program);
            e->free_plan(plan);
            mlo_tensor_clear(&in);
            mlo_tensor_clear(&out);
            mlo_model_free(n.model);
        }
}

/* Keras: the index as a float, reshaped, and back. Without the casts there are as many steps as Gathers. */
static void test_gather__index_through_floats(void **state)
{
    MLO_UNUSED(state);
    static const enum mlo_dtype between[] = {MLO_FLOAT64, MLO_FLOAT32};
    for (size_t t = 0; t < MLO_COUNT(between); t++)
        for (int view = 0; view < 2; view++) {
            struct net n = net_new(9);
            int64_t picks[] = {3, 1}, dims[] = {7, 4}, values[] = {6, -7, 2}, minus = -1;
            struct mlo_value *index = index_input(&n, MLO_INT32, 2, picks);
            struct mlo_value *x = net_op(&n, "Cast", index, NULL, NULL);
            assert_true(mlo_node_set_i(x->producer, "to", between[t]));
            if (view) {
                struct mlo_tensor shape = index_tensor(MLO_INT64, 1, (int64_t[]){1}, &minus);
                x = net_op(&n, "Reshape", x, net_take(&n, "shape", &shape), NULL);
            }
            x = net_op(&n, "Cast", x, NULL, NULL);
            assert_true(mlo_node_set_i(x->producer, "to", MLO_INT64));
            net_finish(&n, net_op(&n, "Gather", net_floats(&n, 2, dims, 1.0f), x, NULL));
            struct mlo_tensor in = index_tensor(MLO_INT32, 2, picks, values);
            json_t *d = check_same(&n, &in, view ? "casts around a Reshape" : "two casts");
            assert_int_equal(steps_of(d, "Cast", NULL), 0);
            assert_int_equal(steps_of(d, "Gather", "gather"), 1);
            json_decref(d);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

/* The table is quantized once: Gather -> Q -> DQ. Values on ties, beyond the range, and not numbers. */
static void test_gather__quantized_behind(void **state)
{
    MLO_UNUSED(state);
    static const enum mlo_dtype types[] = {MLO_UINT8, MLO_INT8};
    for (size_t t = 0; t < MLO_COUNT(types); t++)
        for (int seen = 0; seen < 2; seen++) { /* the bytes are an output too, or only their reals */
            struct net n = net_new(11);
            int64_t picks = 4, dims[] = {9, 13}, values[] = {0, 8, -1, 3};
            struct mlo_value *table = net_floats(&n, 2, dims, 40.0f);
            float *f = table->constant->data;
            static const float edges[] = {0.125f, 0.375f,   -0.125f,   1e30f,
                                          -1e30f, INFINITY, -INFINITY, 1e-42f};
            memcpy(f, edges, sizeof edges);
            struct mlo_value *y = net_op(&n, "Gather", table, index_input(&n, MLO_INT64, 1, &picks), NULL);
            struct mlo_value *z = qdq(&n, y, 0.25f, t ? -3 : 100, types[t]);
            net_finish(&n, seen ? z->producer->inputs[0] : z);
            struct mlo_tensor in = index_tensor(MLO_INT64, 1, &picks, values);
            json_t *d = check_same(&n, &in, mlo_dtype_name(types[t]));
            assert_int_equal(steps_of(d, "QuantizeLinear", NULL), 0);
            json_decref(d);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

/* A table of bytes with DequantizeLinear in front: only what was gathered becomes floats. */
static void test_gather__quantized_table(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(13);
    int64_t picks = 3, dims[] = {9, 13}, values[] = {0, 8, -2};
    struct mlo_tensor bytes = {0};
    MUST(mlo_tensor_init(&bytes, MLO_UINT8, 2, dims, err));
    for (size_t i = 0; i < mlo_tensor_count(&bytes); i++)
        ((uint8_t *)bytes.data)[i] = (uint8_t)(37 * i);
    struct mlo_value *table = net_op(&n, "DequantizeLinear", net_take(&n, "table", &bytes),
                                     net_scalar(&n, MLO_FLOAT32, 0.5), net_scalar(&n, MLO_UINT8, 9));
    net_finish(&n, net_op(&n, "Gather", table, index_input(&n, MLO_INT32, 1, &picks), NULL));
    struct mlo_tensor in = index_tensor(MLO_INT32, 1, &picks, values);
    json_t *d = check_same(&n, &in, "table of bytes");
    assert_int_equal(steps_of(d, "Gather", "gather"), 1);
    json_decref(d);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gather__every_axis_and_index_type),
        cmocka_unit_test(test_gather__beyond_the_table_is_an_error),
        cmocka_unit_test(test_gather__index_through_floats),
        cmocka_unit_test(test_gather__quantized_behind),
        cmocka_unit_test(test_gather__quantized_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
