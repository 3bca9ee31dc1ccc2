/* Slice, Split and Concat as copies, in both layouts, against the reference engine. */
#include "qhelpers.h"

static void check_exact(struct net *n, const int64_t *dims, const char *what)
{
    struct mlo_tensor in = random_tensor(4, dims, 5);
    struct mlo_compile_options o = {.threads = 1};
    json_t *d = NULL;
    assert_engines_agree(n, &o, &in, 2e-6f, what, &d);
    if (count_nodes(d, NULL, "impl", "reference") || !count_nodes(d, NULL, "impl", "copy"))
        fail_with_plan(d, what, "nothing is copied, or a node is interpreted");
    json_decref(d);
    mlo_tensor_clear(&in);
    mlo_model_free(n->model);
}

static const int64_t dims[] = {2, 6, 5, 7};

/* The input, or a convolution of it, which is channels last. */
static struct mlo_value *source(struct net *n, bool conv)
{
    struct mlo_value *x = net_input(n, "x", 4, dims);
    return conv ? net_conv(n, x, &(struct conv_spec){6, 6, 1, 1, 0, 1, 1, 5, true}) : x;
}

static void test_slice__starts_steps_and_axes(void **state)
{
    MLO_UNUSED(state);
    static const int64_t cases[][8] = {
        /* axis, start, end, step, twice */
        {1, 1, 4, 1, 3, 0, 7, 1},
        {3, 2, 100, 2, 1, -3, -1, 1},
        {0, 1, 2, 1, 2, 0, 5, 3},
        {-1, -1, -100, -1, 1, 5, 0, -2},
        {2, 4, 5, 1, 3, 6, 7, 1},
        {1, 1, 6, INT64_MAX, 3, 0, 7, INT64_MAX / 8},
        {2, -1, INT64_MIN, -INT64_MAX, 0, 0, INT64_MAX, 1},
    };
    for (size_t k = 0; k < MLO_COUNT(cases); k++)
        for (int conv = 0; conv < 2; conv++) {
            const int64_t *c = cases[k];
            char what[48];
            snprintf(what, sizeof what, "slice %zu%s", k, conv ? ", channels last" : "");
            struct net n = net_new(3);
            struct mlo_value *in[] = {source(&n, conv), net_ints(&n, 2, (int64_t[]){c[1], c[5]}),
                                      net_ints(&n, 2, (int64_t[]){c[2], c[6]}),
                                      net_ints(&n, 2, (int64_t[]){c[0], c[4]}),
                                      net_ints(&n, 2, (int64_t[]){c[3], c[7]})};
            net_finish(&n, net_node_of(&n, "", "Slice", in, 5)->outputs[0]);
            check_exact(&n, dims, what);
        }
}

static void test_concat__of_splits_and_others(void **state)
{
    MLO_UNUSED(state);
    for (int axis = -1; axis < 4; axis++)
        for (int conv = 0; conv < 2; conv++) {
            char what[48];
            snprintf(what, sizeof what, "axis %d%s", axis, conv ? ", channels last" : "");
            struct net n = net_new(3);
            int64_t other[] = {2, 6, 5, 7};
            other[axis < 0 ? 3 : axis] = 3;
            struct mlo_value *x = source(&n, conv), *c = net_floats(&n, 4, other, 1.0f), *part[2];
            int64_t size = dims[axis < 0 ? 3 : axis];
            for (int i = 0; i < 2; i++)
                part[i] = mlo_graph_add_value(n.graph, i ? "a" : "b", NULL);
            struct mlo_value *in[] = {x, net_ints(&n, 2, (int64_t[]){1, size - 1})};
            struct mlo_node *split = mlo_graph_add_node(n.graph, NULL, "", "Split", "split", in, 2, part, 2);
            assert_non_null(split);
            assert_true(mlo_node_set_i(split, "axis", axis));
            struct mlo_value *y = net_op(&n, "Concat", part[1], c, part[0]);
            assert_true(mlo_node_set_i(y->producer, "axis", axis));
            net_finish(&n, y);
            check_exact(&n, dims, what);
        }
}

/* Quantized values stay bytes through Concat (of equal parameters), Split and Slice; of other parameters they
 * become floats first. */
static void test_copy__of_quantized_values(void **state)
{
    MLO_UNUSED(state);
    for (int same = 0; same < 2; same++)
        for (int conv = 0; conv < 2; conv++) {
            char what[48];
            snprintf(what, sizeof what, "quantized, %s%s", same ? "alike" : "not alike",
                     conv ? ", channels last" : "");
            struct net n = net_new(3);
            struct mlo_value *x = source(&n, conv), *part[2];
            struct mlo_value *a = qdq(&n, x, 0.0625f, 100, MLO_UINT8),
                             *b = qdq(&n, net_op(&n, "Relu", x, NULL, NULL), same ? 0.0625f : 0.125f, 100,
                                      MLO_UINT8);
            struct mlo_value *both = net_op(&n, "Concat", a, b, NULL);
            assert_true(mlo_node_set_i(both->producer, "axis", 1));
            for (int i = 0; i < 2; i++)
                part[i] = mlo_graph_add_value(n.graph, i ? "a" : "b", NULL);
            struct mlo_value *in[] = {both, net_ints(&n, 2, (int64_t[]){5, 7})};
            struct mlo_node *split = mlo_graph_add_node(n.graph, NULL, "", "Split", "split", in, 2, part, 2);
            assert_non_null(split);
            assert_true(mlo_node_set_i(split, "axis", 1));
            struct mlo_value *out = mlo_graph_add_value(n.graph, "y", NULL);
            struct mlo_value *sliced[] = {part[1], net_ints(&n, 1, (int64_t[]){-1}),
                                          net_ints(&n, 1, (int64_t[]){0}), net_ints(&n, 1, (int64_t[]){2}),
                                          net_ints(&n, 1, (int64_t[]){-2})};
            assert_non_null(mlo_graph_add_node(n.graph, NULL, "", "Slice", "slice", sliced, 5,
                                               (struct mlo_value *const *)&out, 1));
            net_finish(&n, out);
            struct mlo_tensor t = random_tensor(4, dims, 5);
            struct mlo_compile_options o = {.threads = 1};
            json_t *d = NULL, *node;
            struct mlo_tensor want = run_model("reference", n.model, &o, &t, NULL);
            struct mlo_tensor got = run_model("cpu", n.model, &o, &t, &d);
            assert_close(&got, &want, conv ? 0.126f : 0.0f, what);
            size_t i, bytes = 0;
            json_array_foreach(json_object_get(d, "nodes"), i, node)
            {
                assert_string_not_equal(mlo_json_str(node, "impl", ""), "reference");
                bytes += strcmp(mlo_json_str(node, "impl", ""), "copy") == 0 &&
                         strcmp(mlo_json_str(node, "precision", ""), "8 bits") == 0;
            }
            if (bytes != (same ? 4u : 0u)) /* Concat, Split twice, Slice */
                fail_msg("%s: %zu copies of bytes", what, bytes);
            json_decref(d);
            mlo_tensor_clear(&t);
            mlo_tensor_clear(&want);
            mlo_tensor_clear(&got);
            mlo_model_free(n.model);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slice__starts_steps_and_axes),
        cmocka_unit_test(test_concat__of_splits_and_others),
        cmocka_unit_test(test_copy__of_quantized_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
