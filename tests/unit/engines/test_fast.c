#include "helpers.h"

static void compare(const struct mlo_model *model, int64_t batch, const struct mlo_tensor *inputs,
                    float tolerance, const char *what)
{
    struct mlo_compile_options o = {.batch = batch, .threads = 1};
    struct mlo_tensor want = run_model("reference", model, &o, inputs, NULL);
    for (unsigned threads = 1; threads <= 2; threads++) {
        o.threads = threads;
        struct mlo_tensor got = run_model("cpu", model, &o, inputs, NULL);
        assert_close(&got, &want, tolerance, what);
        mlo_tensor_clear(&got);
    }
    o.numerics = MLO_NUMERICS_INVARIANT;
    struct mlo_tensor got = run_model("cpu", model, &o, inputs, NULL);
    assert_close(&got, &want, tolerance, what);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&want);
}

static void test_conv__agrees_with_reference_over_shapes(void **state)
{
    MLO_UNUSED(state);
    static const struct conv_spec specs[] = {
        {3, 8, 3, 1, 1, 1, 1, 9, true},    {1, 16, 3, 1, 1, 1, 1, 28, true},
        {8, 8, 1, 1, 0, 1, 1, 7, false},   {16, 24, 3, 2, 1, 1, 1, 11, true},
        {5, 7, 5, 1, 2, 1, 1, 10, true},   {3, 16, 7, 2, 3, 1, 1, 17, true},
        {8, 12, 3, 1, 2, 2, 1, 12, true},  {16, 16, 3, 1, 1, 1, 4, 8, true},
        {12, 12, 3, 1, 1, 1, 12, 9, true}, {10, 20, 3, 2, 1, 1, 10, 9, true},
        {33, 17, 1, 2, 0, 1, 1, 9, true},  {40, 48, 3, 1, 1, 1, 1, 6, true},
        {6, 6, 3, 1, 0, 1, 2, 8, false},   {64, 64, 3, 1, 1, 1, 1, 14, true},
        {9, 9, 5, 2, 2, 1, 9, 13, false},
    };
    for (size_t i = 0; i < MLO_COUNT(specs); i++)
        for (int relu = 0; relu < 2; relu++) {
            char what[64];
            snprintf(what, sizeof what, "conv %zu relu %d", i, relu);
            struct net n = net_new((uint32_t)i + 1);
            int64_t dims[] = {-1, specs[i].ic, specs[i].size, specs[i].size};
            struct mlo_value *y = net_conv(&n, net_input(&n, "x", 4, dims), &specs[i]);
            net_finish(&n, relu ? net_op(&n, "Relu", y, NULL, NULL) : y);
            dims[0] = 2;
            struct mlo_tensor x = random_tensor(4, dims, 7);
            compare(n.model, 2, &x, 2e-5f, what);
            mlo_tensor_clear(&x);
            mlo_model_free(n.model);
        }
}

/* A constant of [C, 1, 1] behind Conv is its bias; what is added along another axis is not. */
static void test_conv__takes_a_constant_sum_as_its_bias(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        int rank;
        int64_t dims[4];
        bool is_bias;
    } cases[] = {{3, {6, 1, 1}, true},    {4, {1, 6, 1, 1}, true}, {1, {1}, true},
                 {0, {0}, true},          {4, {1, 1, 1, 1}, true}, {1, {6}, false},
                 {3, {1, 6, 1}, false},   {3, {6, 6, 6}, false},   {4, {6, 1, 1, 1}, false},
                 {4, {2, 1, 1, 1}, false}};
    static const struct conv_spec spec = {4, 6, 3, 1, 1, 1, 1, 6, false},
                                  with = {4, 6, 3, 1, 1, 1, 1, 6, true};
    for (size_t k = 0; k < MLO_COUNT(cases); k++)
        for (int how = 0; how < 4; how++) {
            char what[64];
            snprintf(what, sizeof what, "case %zu, way %d", k, how);
            struct net n = net_new(21);
            int64_t dims[] = {cases[k].dims[0] == 6 && cases[k].rank == 4 ? 6 : 2, 4, 6, 6};
            struct mlo_value *y = net_conv(&n, net_input(&n, "x", 4, dims), how & 1 ? &with : &spec);
            struct mlo_value *c = net_floats(&n, cases[k].rank, cases[k].dims, 2.0f);
            y = how & 2 ? net_op(&n, "Add", c, y, NULL) : net_op(&n, "Add", y, c, NULL);
            net_finish(&n, net_op(&n, "Relu", y, NULL, NULL));
            struct mlo_tensor in = random_tensor(4, dims, 8);
            struct mlo_compile_options o = {.threads = 1};
            json_t *d = NULL;
            struct mlo_tensor want = run_model("reference", n.model, &o, &in, NULL);
            struct mlo_tensor got = run_model("cpu", n.model, &o, &in, &d);
            assert_close(&got, &want, 1e-5f, what);
            size_t i;
            json_t *node;
            int sums = 0;
            json_array_foreach(json_object_get(d, "nodes"), i, node) sums +=
                strcmp(mlo_json_str(node, "op", ""), "Add") == 0;
            if (cases[k].is_bias && sums)
                fail_msg("%s: a bias is added in a step of its own", what);
            json_decref(d);
            mlo_tensor_clear(&in);
            mlo_tensor_clear(&want);
            mlo_tensor_clear(&got);
            mlo_model_free(n.model);
        }
}

static void test_gemm__agrees_with_reference(void **state)
{
    MLO_UNUSED(state);
    for (int form = 0; form < 8; form++) {
        struct net n = net_new((uint32_t)form + 3);
        bool trans = form & 1, scaled = form & 2, bias = form & 4;
        struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){-1, 37});
        struct mlo_value *w = net_floats(&n, 2, trans ? (int64_t[]){10, 37} : (int64_t[]){37, 10}, 0.3f);
        struct mlo_node *g =
            net_node(&n, "Gemm", x, w, bias ? net_floats(&n, 1, (int64_t[]){10}, 1.0f) : NULL);
        assert_true(mlo_node_set_i(g, "transB", trans));
        if (scaled) {
            assert_true(mlo_node_set_f(g, "alpha", 0.5f));
            assert_true(mlo_node_set_f(g, "beta", 2.0f));
        }
        net_finish(&n, g->outputs[0]);
        struct mlo_tensor in = random_tensor(2, (int64_t[]){5, 37}, 9);
        compare(n.model, 5, &in, 2e-5f, "gemm");
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

static void test_matmul__agrees_with_reference(void **state)
{
    MLO_UNUSED(state);
    for (int form = 0; form < 3; form++) {
        struct net n = net_new(5);
        struct mlo_value *x = net_input(&n, "x", 3, (int64_t[]){2, 6, 19});
        struct mlo_value *y;
        if (form == 0) /* constant matrix, then a bias */
            y = net_op(&n, "Add", net_op(&n, "MatMul", x, net_floats(&n, 2, (int64_t[]){19, 13}, 0.3f), NULL),
                       net_floats(&n, 1, (int64_t[]){13}, 1.0f), NULL);
        else if (form == 1) /* one matrix a sample, computed */
            y = net_op(&n, "MatMul", x,
                       net_op(&n, "Relu", net_floats(&n, 3, (int64_t[]){2, 19, 8}, 0.5f), NULL, NULL), NULL);
        else /* broadcast over the batch */
            y = net_op(&n, "MatMul", x, net_floats(&n, 3, (int64_t[]){1, 19, 8}, 0.5f), NULL);
        net_finish(&n, y);
        struct mlo_tensor in = random_tensor(3, (int64_t[]){2, 6, 19}, 9);
        compare(n.model, 0, &in, 2e-5f, "matmul");
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

static void test_pool__agrees_with_reference(void **state)
{
    MLO_UNUSED(state);
    static const char *const ops[] = {"MaxPool", "AveragePool", "GlobalAveragePool"};
    for (size_t op = 0; op < MLO_COUNT(ops); op++)
        for (int64_t pad = 0; pad < 2; pad++)
            for (int ceil_mode = 0; ceil_mode < (op < 2 ? 2 : 1); ceil_mode++) {
                struct net n = net_new(4);
                struct mlo_node *p =
                    net_node(&n, ops[op], net_input(&n, "x", 4, (int64_t[]){-1, 6, 11, 12}), NULL, NULL);
                if (op < 2) {
                    assert_true(mlo_node_set_ints(p, "kernel_shape", (int64_t[]){3, 2}, 2));
                    assert_true(mlo_node_set_ints(p, "strides", (int64_t[]){2, 2}, 2));
                    assert_true(mlo_node_set_ints(p, "pads", (int64_t[]){pad, pad, pad, pad}, 4));
                    assert_true(mlo_node_set_i(p, "ceil_mode", ceil_mode));
                }
                net_finish(&n, p->outputs[0]);
                struct mlo_tensor in = random_tensor(4, (int64_t[]){3, 6, 11, 12}, 11);
                compare(n.model, 3, &in, 1e-5f, ops[op]);
                mlo_tensor_clear(&in);
                mlo_model_free(n.model);
            }
}

static struct mlo_value *norm(struct net *n, struct mlo_value *x, int64_t channels)
{
    struct mlo_value *in[5] = {x};
    for (int i = 1; i < 5; i++)
        in[i] = net_floats(n, 1, &channels, 0.5f);
    float *var = in[4]->constant->data;
    for (int64_t i = 0; i < channels; i++)
        var[i] += 1.0f;
    return net_node_of(n, "", "BatchNormalization", in, 5)->outputs[0];
}

/* Outputs that only padding reaches, of few channels a group, behind which something is added. */
static void test_conv__adds_to_what_groups_make_of_padding(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        int64_t x[4], w[4], y[4], groups, strides[2], pads[4], dilations[2];
    } cases[] = {
        {{1, 387, 16, 6}, {6, 129, 1, 2}, {1, 6, 22, 3}, 3, {1, 2}, {3, 0, 3, 1}, {1, 1}},
        {{2, 256, 9, 17}, {4, 64, 1, 4}, {2, 4, 12, 13}, 4, {1, 1}, {1, 1, 2, 1}, {3, 2}},
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct net n = net_new(7);
        struct mlo_node *node =
            net_node(&n, "Conv", net_input(&n, "x", 4, cases[i].x), net_floats(&n, 4, cases[i].w, 0.2f),
                     net_floats(&n, 1, &cases[i].w[0], 1.0f));
        assert_true(mlo_node_set_ints(node, "pads", cases[i].pads, 4));
        assert_true(mlo_node_set_ints(node, "strides", cases[i].strides, 2));
        assert_true(mlo_node_set_ints(node, "dilations", cases[i].dilations, 2));
        assert_true(mlo_node_set_i(node, "group", cases[i].groups));
        net_finish(&n, net_op(&n, "Add", node->outputs[0], net_floats(&n, 4, cases[i].y, 1.0f), NULL));
        struct mlo_tensor in = random_tensor(4, cases[i].x, 3);
        compare(n.model, 0, &in, 1e-4f, "padding alone");
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* Residual blocks with BatchNormalization, pooling and a classifier; `seen` is an inner value. */
static struct net residual_net(struct mlo_value **seen)
{
    struct net n = net_new(42);
    struct conv_spec stem = {3, 16, 3, 1, 1, 1, 1, 0, false}, same = {16, 16, 3, 1, 1, 1, 1, 0, true};
    struct conv_spec down = {16, 32, 3, 2, 1, 1, 1, 0, true}, skip = {16, 32, 1, 2, 0, 1, 1, 0, true};
    struct conv_spec more = {32, 32, 3, 1, 1, 1, 1, 0, true};
    struct mlo_value *x = net_input(&n, "x", 4, (int64_t[]){-1, 3, 16, 16});
    x = net_op(&n, "Relu", norm(&n, net_conv(&n, x, &stem), 16), NULL, NULL);
    struct mlo_value *y = net_op(&n, "Relu", net_conv(&n, x, &same), NULL, NULL);
    y = net_op(&n, "Relu", net_op(&n, "Add", norm(&n, net_conv(&n, y, &same), 16), x, NULL), NULL, NULL);
    *seen = y;
    struct mlo_value *z = net_op(&n, "Relu", net_conv(&n, y, &down), NULL, NULL);
    z = net_op(&n, "Add", net_conv(&n, y, &skip), net_conv(&n, z, &more), NULL);
    z = net_op(&n, "Relu", z, NULL, NULL);
    struct mlo_node *pool = net_node(&n, "MaxPool", z, NULL, NULL);
    assert_true(mlo_node_set_ints(pool, "kernel_shape", (int64_t[]){2, 2}, 2));
    assert_true(mlo_node_set_ints(pool, "strides", (int64_t[]){2, 2}, 2));
    struct mlo_value *p = net_op(&n, "GlobalAveragePool", pool->outputs[0], NULL, NULL);
    p = net_op(&n, "Flatten", p, NULL, NULL);
    struct mlo_node *g = net_node(&n, "Gemm", p, net_floats(&n, 2, (int64_t[]){10, 32}, 0.3f),
                                  net_floats(&n, 1, (int64_t[]){10}, 0.3f));
    assert_true(mlo_node_set_i(g, "transB", 1));
    net_finish(&n, g->outputs[0]);
    return n;
}

static void test_net__agrees_with_reference_at_any_batch(void **state)
{
    MLO_UNUSED(state);
    struct mlo_value *seen;
    struct net n = residual_net(&seen);
    for (int64_t batch = 1; batch <= 5; batch += 2) {
        struct mlo_tensor in = random_tensor(4, (int64_t[]){batch, 3, 16, 16}, 3);
        compare(n.model, batch, &in, 1e-4f, "residual net");
        mlo_tensor_clear(&in);
    }
    mlo_model_free(n.model);
}

static void test_net__keeps_a_residual_that_is_read_again(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(13);
    struct conv_spec c = {8, 8, 3, 1, 1, 1, 1, 0, true};
    struct mlo_value *s = net_conv(&n, net_input(&n, "x", 4, (int64_t[]){-1, 8, 9, 9}), &c);
    struct mlo_value *t = net_op(&n, "Add", net_conv(&n, net_op(&n, "Relu", s, NULL, NULL), &c), s, NULL);
    net_finish(&n, net_op(&n, "Add", s, net_conv(&n, t, &c), NULL));
    struct mlo_tensor in = random_tensor(4, (int64_t[]){2, 8, 9, 9}, 3);
    compare(n.model, 2, &in, 1e-4f, "two residuals");
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_net__fuses_norms_activations_and_sums(void **state)
{
    MLO_UNUSED(state);
    struct mlo_value *seen;
    struct net n = residual_net(&seen);
    struct mlo_tensor in = random_tensor(4, (int64_t[]){1, 3, 16, 16}, 3);
    struct mlo_compile_options o = {.batch = 1, .threads = 1};
    json_t *d = NULL, *node;
    struct mlo_tensor out = run_model("cpu", n.model, &o, &in, &d);
    size_t i, fused = 0;
    json_array_foreach(json_object_get(d, "nodes"), i, node)
    {
        const char *op = json_string_value(json_object_get(node, "op"));
        fused += json_array_size(json_object_get(node, "fused"));
        if (strcmp(op, "Reorder") != 0)
            assert_string_not_equal(json_string_value(json_object_get(node, "impl")), "reference");
        assert_true(strcmp(op, "Relu") != 0 && strcmp(op, "Add") != 0 &&
                    strcmp(op, "BatchNormalization") != 0);
    }
    assert_int_equal(fused, 9); /* 2 norms, 5 activations, 2 sums */
    assert_int_equal(json_integer_value(json_object_get(d, "int8_nodes")), 0);
    assert_true(json_integer_value(json_object_get(d, "arena_bytes")) > 0);
    json_decref(d);
    mlo_tensor_clear(&out);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

struct seen {
    const char *name;
    struct mlo_tensor copy;
    int calls;
};

static enum mlo_status keep(void *arg, const char *name, const struct mlo_tensor *value,
                            struct mlo_error *err)
{
    struct seen *s = arg;
    s->calls++;
    return strcmp(name, s->name) == 0 ? mlo_tensor_copy(value, &s->copy, err) : MLO_OK;
}

static void test_observe__delivers_inner_values_inputs_and_outputs(void **state)
{
    MLO_UNUSED(state);
    struct mlo_value *inner;
    struct net n = residual_net(&inner);
    const char *names[] = {inner->name, "x", n.graph->outputs[0]->name};
    struct mlo_tensor in = random_tensor(4, (int64_t[]){2, 3, 16, 16}, 3), want = {0};
    for (int which = 0; which < 3; which++) {
        const struct mlo_engine *e;
        struct mlo_compile_options o = {.batch = 2, .threads = 1, .observe = names, .observe_count = 3};
        struct mlo_plan *plan;
        struct mlo_program *program;
        struct mlo_tensor out = {0};
        struct seen seen = {.name = names[0]};
        o.numerics = which == 2 ? MLO_NUMERICS_INVARIANT : MLO_NUMERICS_FAST;
        MUST(mlo_engine_find(which ? "cpu" : "reference", &e, err));
        MUST(e->compile(n.model, &o, &plan, err));
        MUST(e->load(plan, &program, err));
        MUST(e->observe(program, &in, &out, keep, &seen, err));
        assert_int_equal(seen.calls, 3);
        if (which)
            assert_close(&seen.copy, &want, 1e-4f, "observed");
        else
            MUST(mlo_tensor_copy(&seen.copy, &want, err));
        mlo_tensor_clear(&seen.copy);
        mlo_tensor_clear(&out);
        e->unload(program);
        e->free_plan(plan);
    }
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

/* An engine of a device compiles for one that is not here, where its compiler is; else there is nothing to
 * ask it. All others look at a model before they look for what runs it. */
static bool compiles_here(const struct mlo_engine *e, const char **target)
{
    *target = NULL;
    if (!e->can_compile || e->probe(NULL) == MLO_OK)
        return true;
    *target = "cuda:sm90";
    return e->can_compile(*target, NULL) == MLO_OK;
}

static void test_observe__refuses_unknown_names(void **state)
{
    MLO_UNUSED(state);
    struct mlo_value *inner;
    struct net n = residual_net(&inner);
    const char *names[] = {"nowhere"};
    struct mlo_compile_options o = {.batch = 1, .observe = names, .observe_count = 1};
    struct mlo_plan *plan = NULL;
    struct mlo_error problem = {0};
    size_t count;
    const struct mlo_engine *const *table = mlo_engine_table(&count);
    for (size_t i = 0; i < count; i++) {
        if (!compiles_here(table[i], &o.target))
            continue;
        assert_int_equal(table[i]->compile(n.model, &o, &plan, &problem), MLO_ENOTFOUND);
        assert_non_null(strstr(problem.message, "nowhere"));
    }
    mlo_model_free(n.model);
}

static void test_run__names_the_input_of_wrong_shape(void **state)
{
    MLO_UNUSED(state);
    struct mlo_value *inner;
    struct net n = residual_net(&inner);
    struct mlo_tensor in = random_tensor(4, (int64_t[]){2, 3, 16, 16}, 3);
    size_t count;
    const struct mlo_engine *const *table = mlo_engine_table(&count);
    int asked = 0;
    for (size_t i = 0; i < count; i++) {
        if (table[i]->probe(NULL) != MLO_OK) /* another runtime that is not installed */
            continue;
        asked++;
        struct mlo_compile_options o = {.batch = 1};
        struct mlo_plan *plan;
        struct mlo_program *program;
        struct mlo_tensor out = {0};
        struct mlo_error problem = {0};
        MUST(table[i]->compile(n.model, &o, &plan, err));
        MUST(table[i]->load(plan, &program, err));
        assert_int_equal(table[i]->run(program, &in, &out, &problem), MLO_EINVAL);
        assert_non_null(strstr(problem.message, "float32[2,3,16,16]"));
        assert_non_null(strstr(problem.message, "float32[1,3,16,16]"));
        assert_non_null(strstr(problem.where, "'x'"));
        table[i]->unload(program);
        table[i]->free_plan(plan);
    }
    assert_true(asked >= 2);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_compile__wants_a_batch_for_symbolic_inputs(void **state)
{
    MLO_UNUSED(state);
    struct mlo_value *inner;
    struct net n = residual_net(&inner);
    struct mlo_compile_options o = {.batch = 0};
    struct mlo_plan *plan = NULL;
    struct mlo_error problem = {0};
    const struct mlo_engine *e;
    MUST(mlo_engine_find("cpu", &e, err));
    assert_int_equal(e->compile(n.model, &o, &plan, &problem), MLO_EINVAL);
    assert_non_null(strstr(problem.message, "input 'x'"));
    mlo_model_free(n.model);
}

static void test_compile__refuses_unknown_ops(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(1);
    struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){1, 4});
    net_output(&n, net_op(&n, "Reluu", x, NULL, NULL));
    size_t count;
    const struct mlo_engine *const *table = mlo_engine_table(&count);
    for (size_t i = 0; i < count; i++) {
        struct mlo_compile_options o = {.batch = 1};
        struct mlo_plan *plan = NULL;
        struct mlo_error problem = {0};
        if (!compiles_here(table[i], &o.target))
            continue;
        assert_int_equal(table[i]->compile(n.model, &o, &plan, &problem), MLO_EUNSUPPORTED);
        assert_non_null(strstr(problem.message, "Reluu"));
    }
    mlo_model_free(n.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv__agrees_with_reference_over_shapes),
        cmocka_unit_test(test_conv__adds_to_what_groups_make_of_padding),
        cmocka_unit_test(test_conv__takes_a_constant_sum_as_its_bias),
        cmocka_unit_test(test_gemm__agrees_with_reference),
        cmocka_unit_test(test_matmul__agrees_with_reference),
        cmocka_unit_test(test_pool__agrees_with_reference),
        cmocka_unit_test(test_net__agrees_with_reference_at_any_batch),
        cmocka_unit_test(test_net__keeps_a_residual_that_is_read_again),
        cmocka_unit_test(test_net__fuses_norms_activations_and_sums),
        cmocka_unit_test(test_observe__delivers_inner_values_inputs_and_outputs),
        cmocka_unit_test(test_observe__refuses_unknown_names),
        cmocka_unit_test(test_run__names_the_input_of_wrong_shape),
        cmocka_unit_test(test_compile__wants_a_batch_for_symbolic_inputs),
        cmocka_unit_test(test_compile__refuses_unknown_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
