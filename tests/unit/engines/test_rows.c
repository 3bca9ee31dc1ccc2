/* What transformers and mobile nets are made of besides products: activations in several nodes, layer
 * normalization, transposition. Each against the reference engine, and fused where it says so. */
#include "qhelpers.h"

static bool ran_as(const json_t *d, const char *op, const char *impl)
{
    size_t i;
    json_t *node;
    json_array_foreach(json_object_get(d, "nodes"), i, node)
    {
        if (strcmp(mlo_json_str(node, "op", ""), op) == 0 && strstr(mlo_json_str(node, "impl", ""), impl))
            return true;
    }
    return false;
}

static const struct mlo_compile_options two = {.batch = 2, .threads = 2};

static struct mlo_value *swish(struct net *n, struct mlo_value *x, bool reversed)
{
    struct mlo_value *s = net_op(n, "Sigmoid", x, NULL, NULL);
    return reversed ? net_op(n, "Mul", s, x, NULL) : net_op(n, "Mul", x, s, NULL);
}

enum gelu_form { HALF_LAST, HALF_FIRST, HALF_INNER, HALF_DIV, MUL_ROOT, GELU_FORMS };

static struct mlo_value *gelu(struct net *n, struct mlo_value *x, enum gelu_form form)
{
    struct mlo_value *half = net_scalar(n, MLO_FLOAT32, form == HALF_DIV ? 2.0 : 0.5), *y;
    const char *scale = form == HALF_DIV ? "Div" : "Mul";
    y = form == MUL_ROOT ? net_op(n, "Mul", net_scalar(n, MLO_FLOAT32, sqrt(0.5)), x, NULL)
                         : net_op(n, "Div", x, net_scalar(n, MLO_FLOAT32, sqrt(2.0)), NULL);
    y = net_op(n, "Add", net_op(n, "Erf", y, NULL, NULL), net_scalar(n, MLO_FLOAT32, 1.0), NULL);
    if (form == HALF_FIRST)
        return net_op(n, "Mul", net_op(n, "Mul", x, half, NULL), y, NULL);
    if (form == HALF_INNER)
        return net_op(n, "Mul", x, net_op(n, "Mul", y, half, NULL), NULL);
    return net_op(n, scale, net_op(n, "Mul", x, y, NULL), half, NULL);
}

/* Alone, behind a Conv and behind a MatMul with bias; where = 3: the input of the activation is an output
 * too. */
static void test_composite__agrees_in_every_form_and_place(void **state)
{
    MLO_UNUSED(state);
    for (int form = 0; form < GELU_FORMS + 2; form++)
        for (int where = 0; where < 4; where++) {
            char what[48];
            snprintf(what, sizeof what, "form %d, place %d", form, where);
            struct net n = net_new(9);
            int64_t image[] = {-1, 3, 9, 9}, rows[] = {-1, 5, 32};
            bool conv = where == 1 || where == 3;
            struct mlo_value *x = net_input(&n, "x", conv ? 4 : 3, conv ? image : rows);
            if (conv)
                x = net_conv(&n, x, &(struct conv_spec){3, 16, 3, 1, 1, 1, 1, 9, true});
            if (where == 2) {
                x = net_op(&n, "MatMul", x, net_floats(&n, 2, (int64_t[]){32, 48}, 0.5f), NULL);
                x = net_op(&n, "Add", x, net_floats(&n, 1, (int64_t[]){48}, 0.5f), NULL);
            }
            struct mlo_value *y =
                form < GELU_FORMS ? gelu(&n, x, (enum gelu_form)form) : swish(&n, x, form > GELU_FORMS);
            net_output(&n, y);
            if (where == 3)
                net_output(&n, x);
            MUST(mlo_graph_infer(n.graph, err));
            image[0] = rows[0] = 2;
            struct mlo_tensor in = random_tensor(conv ? 4 : 3, conv ? image : rows, 4);
            for (size_t i = 0; i < mlo_tensor_count(&in); i++)
                ((float *)in.data)[i] *= 4.0f;
            json_t *d = NULL;
            assert_engines_agree(&n, &two, &in, 2e-5f, what, &d);
            if (ran_as(d, "Erf", "") || ran_as(d, "Sigmoid", "reference") || ran_as(d, "Mul", "uni"))
                assert_true(form == HALF_FIRST && where != 1 && where != 2); /* its Mul may come first */
            if ((where == 1 || where == 2) && json_array_size(json_object_get(d, "nodes")) > 3)
                fail_msg("%s: it is not fused", what);
            json_decref(d);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

/* Nearly the pattern: another factor, another operand, a value that is read elsewhere. */
static void test_composite__leaves_alone_what_only_looks_like_it(void **state)
{
    MLO_UNUSED(state);
    for (int form = 0; form < 5; form++) {
        struct net n = net_new(10);
        struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){-1, 33}), *y, *e;
        struct mlo_value *one = net_scalar(&n, MLO_FLOAT32, form == 1 ? 1.5 : 1.0);
        e = net_op(&n, "Div", x, net_scalar(&n, MLO_FLOAT32, form == 0 ? 1.5 : sqrt(2.0)), NULL);
        e = net_op(&n, "Add", net_op(&n, "Erf", e, NULL, NULL), one, NULL);
        y = net_op(&n, "Mul", e, form == 2 ? e : x, NULL);
        y = net_op(&n, "Mul", y, net_scalar(&n, MLO_FLOAT32, form == 3 ? 0.25 : 0.5), NULL);
        if (form == 4)
            y = net_op(&n, "Add", y, e, NULL);
        net_finish(&n, y);
        struct mlo_tensor in = random_tensor(2, (int64_t[]){2, 33}, 5);
        assert_engines_agree(&n, &two, &in, 1e-5f, "look-alike", NULL);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
    struct net n = net_new(11); /* sigmoid(x) * z, and sigmoid squared */
    struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){-1, 7});
    struct mlo_value *s = net_op(&n, "Sigmoid", x, NULL, NULL);
    struct mlo_value *y = net_op(&n, "Mul", s, s, NULL);
    y = net_op(&n, "Add", y, net_op(&n, "Mul", x, y, NULL), NULL);
    net_finish(&n, y);
    struct mlo_tensor in = random_tensor(2, (int64_t[]){2, 7}, 6);
    assert_engines_agree(&n, &two, &in, 1e-5f, "sigmoid", NULL);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_int8__fuses_activations_that_do_not_scale(void **state)
{
    MLO_UNUSED(state);
    for (int form = 0; form < 6; form++) {
        static const char *const acts[] = {"swish", "gelu", "Sigmoid", "Tanh", "HardSwish", "Elu"};
        struct net n = net_new((uint32_t)form + 20);
        struct mlo_value *x =
            qdq(&n, net_input(&n, "x", 4, (int64_t[]){-1, 16, 9, 9}), 0.016f, 121, MLO_UINT8);
        x = qconv(&n, x, 0.016f,
                  &(struct conv_spec){16, 32, form % 2 ? 1 : 3, 1, form % 2 ? 0 : 1, 1, 1, 9, true});
        x = form == 0   ? swish(&n, x, false)
            : form == 1 ? gelu(&n, x, HALF_LAST)
                        : net_op(&n, acts[form], x, NULL, NULL);
        net_finish(&n, qdq(&n, x, 0.02f, form == 3 ? 128 : 20, MLO_UINT8));
        struct mlo_tensor in = random_tensor(4, (int64_t[]){2, 16, 9, 9}, 3);
        for (size_t i = 0; i < mlo_tensor_count(&in); i++)
            ((float *)in.data)[i] *= 2.0f;
        json_t *d = NULL;
        check(&n, &in, 2, 0.02f, acts[form], &d);
        if (mlo_isa_current() >= MLO_ISA_AVX512_VNNI) {
            if (int8_ops(d, "Conv") != 1 ||
                json_array_size(json_object_get(d, "nodes")) > 5) /* with its edges */
                fail_with_plan(d, acts[form], "it is not fused");
        }
        json_decref(d);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

static void test_layer_norm__agrees_over_widths(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        int64_t dims[3];
        int64_t axis;
        bool bias;
        float offset;
    } cases[] = {{{2, 3, 1}, -1, true, 0},    {{2, 3, 7}, -1, true, 0},   {{2, 3, 31}, 2, false, 0},
                 {{2, 3, 32}, -1, true, 0},   {{2, 5, 33}, -1, true, 0},  {{2, 1, 768}, -1, true, 100},
                 {{2, 40, 64}, -1, false, 0}, {{2, 6, 35}, 1, true, -50}, {{2, 0, 8}, -1, true, 0}};
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        char what[32];
        snprintf(what, sizeof what, "case %zu", i);
        struct net n = net_new((uint32_t)i + 40);
        int64_t dims[] = {-1, cases[i].dims[1], cases[i].dims[2]};
        int64_t shape[] = {dims[1], dims[2]}, *own = cases[i].axis == 1 ? shape : shape + 1;
        int rank = cases[i].axis == 1 ? 2 : 1;
        struct mlo_value *x = net_input(&n, "x", 3, dims);
        struct mlo_value *b = cases[i].bias ? net_floats(&n, rank, own, 1.0f) : NULL;
        struct mlo_node *node = net_node(&n, "LayerNormalization", x, net_floats(&n, rank, own, 2.0f), b);
        assert_true(mlo_node_set_i(node, "axis", cases[i].axis));
        assert_true(mlo_node_set_f(node, "epsilon", 1e-3f));
        net_finish(&n, node->outputs[0]);
        struct mlo_tensor in = random_tensor(3, cases[i].dims, 7);
        for (size_t k = 0; k < mlo_tensor_count(&in); k++)
            ((float *)in.data)[k] += cases[i].offset;
        json_t *d = NULL;
        assert_engines_agree(&n, &two, &in, cases[i].offset != 0.0f ? 2e-4f : 1e-5f, what, &d);
        if (dims[1])
            assert_true(ran_as(d, "LayerNormalization", "layer-normalization"));
        json_decref(d);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* Spelled out as exporters do: 1 squares by Mul, 2 subtracts twice, 3 has no scale, 4 no bias, 5 neither; 6
 * has the mean as another reader's, 7 another exponent, 8 an axis in the middle, 9 the difference as an
 * output: not layer normalization, or not alone. */
static void test_layer_norm__in_several_nodes(void **state)
{
    MLO_UNUSED(state);
    enum { FORMS = 10 };
    static const int64_t widths[] = {1, 7, 16, 48, 65};
    for (size_t i = 0; i < FORMS * MLO_COUNT(widths); i++) {
        int form = (int)(i % FORMS);
        int64_t dims[] = {2, 6, widths[i / FORMS]}, axis = form == 8 ? 1 : -1;
        char what[40];
        snprintf(what, sizeof what, "form %d, %lld wide", form, (long long)dims[2]);
        struct net n = net_new((uint32_t)i + 70);
        struct mlo_value *x = net_op(&n, "Relu", net_input(&n, "x", 3, dims), NULL, NULL), *m, *d, *d2, *v,
                         *y;
        m = net_op(&n, "ReduceMean", x, NULL, NULL);
        assert_true(mlo_node_set_ints(m->producer, "axes", &axis, 1));
        d = d2 = net_op(&n, "Sub", x, m, NULL);
        if (form == 2)
            d2 = net_op(&n, "Sub", x, m, NULL);
        v = form == 1 ? net_op(&n, "Mul", d, d, NULL)
                      : net_op(&n, "Pow", d, net_scalar(&n, MLO_FLOAT32, form == 7 ? 4.0 : 2.0), NULL);
        v = net_op(&n, "ReduceMean", v, NULL, NULL);
        assert_true(mlo_node_set_ints(v->producer, "axes", &axis, 1));
        v = net_op(&n, "Add", v, net_scalar(&n, MLO_FLOAT32, 1e-3), NULL);
        y = net_op(&n, "Div", d2, net_op(&n, "Sqrt", v, NULL, NULL), NULL);
        if (form != 3 && form != 5)
            y = net_op(&n, "Mul", y, net_floats(&n, 1, dims + 2, 2.0f), NULL);
        if (form != 4 && form != 5)
            y = net_op(&n, "Add", net_floats(&n, 1, dims + 2, 1.0f), y, NULL);
        if (form == 6)
            y = net_op(&n, "Add", y, m, NULL);
        net_output(&n, y);
        if (form == 9)
            net_output(&n, d);
        MUST(mlo_graph_infer(n.graph, err));
        struct mlo_tensor in = random_tensor(3, dims, 7);
        json_t *about = NULL;
        assert_engines_agree(&n, &two, &in, 1e-5f, what, &about);
        bool whole = ran_as(about,
                            form == 3   ? "Add"
                            : form == 4 ? "Mul"
                            : form == 5 ? "Div"
                                        : "Add",
                            "layer-normalization");
        if (whole != (form < 6))
            fail_msg("%s: %s", what, whole ? "taken for one" : "not found");
        json_decref(about);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

static void test_transpose__agrees_over_permutations(void **state)
{
    MLO_UNUSED(state);
    static const int64_t perms[][4] = {{0, 2, 1, 3}, {0, 2, 3, 1}, {3, 2, 1, 0}, {1, 0, 2, 3},
                                       {0, 1, 2, 3}, {0, 3, 1, 2}, {2, 0, 3, 1}};
    static const int64_t shapes[][4] = {{2, 5, 3, 7}, {2, 1, 6, 1}, {2, 12, 16, 8}, {2, 1, 1, 1}};
    for (size_t i = 0; i < MLO_COUNT(perms) * MLO_COUNT(shapes); i++)
        for (int quantized = 0; quantized < 2; quantized++) {
            const int64_t *perm = perms[i % MLO_COUNT(perms)], *shape = shapes[i / MLO_COUNT(perms)];
            char what[40];
            snprintf(what, sizeof what, "case %zu quantized %d", i, quantized);
            struct net n = net_new((uint32_t)i + 60);
            struct mlo_value *x = net_input(&n, "x", 4, (int64_t[]){-1, shape[1], shape[2], shape[3]});
            if (quantized)
                x = qdq(&n, x, 0.01f, 100, MLO_UINT8);
            struct mlo_node *node = net_node(&n, "Transpose", x, NULL, NULL);
            assert_true(mlo_node_set_ints(node, "perm", perm, 4));
            net_finish(&n, net_op(&n, "Relu", node->outputs[0], NULL, NULL));
            struct mlo_tensor in = random_tensor(4, shape, 8);
            json_t *d = NULL;
            assert_engines_agree(&n, &two, &in, 1e-6f, what, &d);
            assert_false(ran_as(d, "Transpose", "reference"));
            json_decref(d);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

/* Matrices of every remainder of rows and columns, among axes that stay, are several or have one element. */
static void test_transpose__turns_matrices(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        int rank;
        int64_t dims[5], perm[5];
        bool own;
    } cases[] = {
        {2, {16, 16}, {1, 0}, true},
        {2, {1, 7}, {1, 0}, false}, /* a view */
        {2, {33, 50}, {1, 0}, true},
        {3, {3, 48, 32}, {0, 2, 1}, false}, /* another layout of the same */
        {3, {5, 48, 32}, {1, 2, 0}, true},
        {4, {3, 2, 5, 9}, {0, 1, 3, 2}, true},
        {4, {1, 7, 17, 31}, {0, 1, 3, 2}, true},
        {4, {2, 3, 4, 5}, {2, 3, 0, 1}, true},
        {4, {3, 1, 19, 8}, {3, 1, 0, 2}, true},
        {4, {2, 6, 5, 9}, {0, 2, 1, 3}, false},
        {3, {4, 5, 6}, {2, 1, 0}, false},
        {5, {2, 3, 1, 15, 20}, {0, 1, 4, 2, 3}, true},
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        for (unsigned threads = 1; threads <= 3; threads += 2) {
            char what[64];
            struct net n = net_new(4);
            struct mlo_node *t =
                net_node(&n, "Transpose", net_input(&n, "x", cases[i].rank, cases[i].dims), NULL, NULL);
            assert_true(mlo_node_set_ints(t, "perm", cases[i].perm, (size_t)cases[i].rank));
            net_finish(&n, net_op(&n, "Sin", t->outputs[0], NULL, NULL));
            struct mlo_tensor x = random_tensor(cases[i].rank, cases[i].dims, 3);
            struct mlo_compile_options o = {.numerics = MLO_NUMERICS_FAST, .threads = threads, .batch = 1};
            json_t *d = NULL;
            snprintf(what, sizeof what, "transpose %zu, %u threads", i, threads);
            assert_engines_agree(&n, &o, &x, 1e-6f, what, &d);
            if ((count_nodes(d, "Transpose", "impl", "transpose") == 1) != cases[i].own)
                fail_with_plan(d, what, "another kernel than expected");
            json_decref(d);
            mlo_tensor_clear(&x);
            mlo_model_free(n.model);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_composite__agrees_in_every_form_and_place),
        cmocka_unit_test(test_composite__leaves_alone_what_only_looks_like_it),
        cmocka_unit_test(test_int8__fuses_activations_that_do_not_scale),
        cmocka_unit_test(test_layer_norm__agrees_over_widths),
        cmocka_unit_test(test_layer_norm__in_several_nodes),
        cmocka_unit_test(test_transpose__agrees_over_permutations),
        cmocka_unit_test(test_transpose__turns_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
