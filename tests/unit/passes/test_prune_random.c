/* Structured pruning of random nets. */
#include "engines/engines.h"
#include "tests/unit/passes/prune_fixture.h"

struct random_net {
    struct mlo_model *m;
    struct mlo_value *at;
    int64_t channels;
    uint32_t seed;
    int count;
    char name[32];
};

static uint32_t any(struct random_net *r, uint32_t below)
{
    r->seed = r->seed * 1664525u + 1013904223u;
    return (r->seed >> 8) % below;
}

static const char *fresh(struct random_net *r, const char *stem)
{
    snprintf(r->name, sizeof r->name, "%s%d", stem, r->count++);
    return r->name;
}

static struct mlo_value *random_conv(struct random_net *r, struct mlo_value *x, int64_t out, int64_t per,
                                     int64_t groups)
{
    int64_t k = 1 + 2 * (int64_t)any(r, 2);
    struct mlo_value *w = holes(r->m, fresh(r, "w"), 0.07f, 0, 1, out, per, k, k);
    struct mlo_value *y = op(r->m, "Conv", fresh(r, "c"), x, w);
    set_ints(y, "pads", k / 2, k / 2, k / 2, k / 2);
    assert_true(mlo_node_set_i(y->producer, "group", groups));
    return y;
}

static void add_layer(struct random_net *r)
{
    struct mlo_model *m = r->m;
    int64_t c = r->channels, wide = 2 * (1 + (int64_t)any(r, 5));
    switch (any(r, 9)) {
    case 0:
        r->at = random_conv(r, r->at, wide, c, 1);
        r->channels = wide;
        break;
    case 1: /* depthwise; the first channels come from outside */
        r->at = random_conv(r, r->at, c, 1, c);
        break;
    case 2:
        r->at = random_conv(r, random_conv(r, r->at, 8, c, 1), 8, 4, 2);
        r->channels = 8;
        break;
    case 3:
        r->at = op(m, "Relu", fresh(r, "r"), r->at);
        break;
    case 4: {
        struct mlo_value *inner = op(m, "HardSwish", fresh(r, "h"), random_conv(r, r->at, wide, c, 1));
        r->at = op(m, "Add", fresh(r, "a"), r->at, random_conv(r, inner, c, wide, 1));
        break;
    }
    case 5: {
        struct mlo_value *other = random_conv(r, r->at, wide, c, 1);
        r->at = op(m, "Concat", fresh(r, "j"), other, r->at);
        assert_true(mlo_node_set_i(r->at->producer, "axis", 1));
        r->channels = c + wide;
        break;
    }
    case 6: {
        struct mlo_value *s = op(m, "GlobalAveragePool", fresh(r, "p"), r->at);
        s = random_conv(r, op(m, "Relu", fresh(r, "q"), random_conv(r, s, 4, c, 1)), c, 4, 1);
        r->at = op(m, "Mul", fresh(r, "g"), op(m, "HardSigmoid", fresh(r, "s"), s), r->at);
        break;
    }
    case 7: { /* there and back */
        struct mlo_value *t = op(m, "Transpose", fresh(r, "t"), r->at);
        set_ints(t, "perm", 0, 2, 3, 1);
        r->at =
            op(m, "Transpose", fresh(r, "t"), op(m, "Sqrt", fresh(r, "u"), op(m, "Abs", fresh(r, "b"), t)));
        set_ints(r->at, "perm", 0, 3, 1, 2);
        break;
    }
    default: {
        struct mlo_value *both = random_conv(r, r->at, 2 * wide, c, 1), *out[2];
        out[0] = mlo_graph_add_value(m->graph, fresh(r, "l"), NULL);
        out[1] = mlo_graph_add_value(m->graph, fresh(r, "l"), NULL);
        struct mlo_node *split =
            mlo_graph_add_node(m->graph, NULL, "", "Split", fresh(r, "k"), &both, 1, out, 2);
        assert_true(split && mlo_node_set_i(split, "axis", 1));
        r->at = op(m, "Mul", fresh(r, "m"), out[0], op(m, "Sigmoid", fresh(r, "o"), out[1]));
        r->channels = wide;
    }
    }
}

static struct mlo_model *random_model(uint32_t seed)
{
    struct random_net r = {.m = new_model(17), .seed = seed * 2654435761u + 1};
    r.at = random_conv(&r, input(r.m, "x", -1, 2, 4, 4), 6, 2, 1);
    r.channels = 6;
    for (uint32_t i = 0, layers = 2 + any(&r, 7); i < layers; i++)
        add_layer(&r);
    r.at = op(r.m, "Flatten", "flat", r.at);
    finish(r.m, op(r.m, "Gemm", "y", r.at, ramp(r.m, "head", 0.05f, r.channels * 16, 3)));
    return r.m;
}

/* Reads what was written, runs it on the engine for production, and compares with the kernels of the op
 * table. */
static void check_runs(const struct mlo_model *model, uint32_t seed)
{
    struct mlo_error err = {0};
    struct mlo_tensor inputs[4] = {0}, wanted = {0}, got = {0};
    const struct mlo_engine *engine = NULL;
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    struct mlo_compile_options options = {.batch = 2, .numerics = MLO_NUMERICS_INVARIANT, .threads = 1};
    make_inputs(model, 2, seed, inputs);
    assert_ok(mlo_graph_eval(model->graph, inputs, &wanted, &err));
    assert_ok(mlo_engine_find("cpu", &engine, &err));
    assert_ok(engine->compile(model, &options, &plan, &err));
    assert_ok(engine->load(plan, &program, &err));
    assert_ok(engine->run(program, inputs, &got, &err));
    assert_true(mlo_tensor_same_shape(&wanted, &got));
    for (size_t i = 0; i < mlo_tensor_count(&got); i++) {
        double a = mlo_tensor_get_f64(&wanted, i), b = mlo_tensor_get_f64(&got, i);
        if (!(fabs(a - b) <= 1e-3 * (1 + fabs(a))))
            fail_msg("seed %u: output %zu is %g, not %g", seed, i, b, a);
    }
    engine->unload(program);
    engine->free_plan(plan);
    mlo_tensor_clear(&wanted);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&inputs[0]);
}

static void test_prune__random_nets_stay_valid_and_lose_zeros_only(void **state)
{
    MLO_UNUSED(state);
    static const char *const OPTIONS[] = {
        "{\"remove\": \"5%\", \"ratios\": \"uniform\", \"round\": 1, \"criterion\": \"l2\"}",
        "{\"remove\": \"40%\", \"ratios\": \"sensitivity\", \"round\": 1, \"criterion\": \"l1\"}",
        "{\"remove\": \"20%\", \"ratios\": \"sensitivity\", \"round\": 2, \"criterion\": \"l2\"}"};
    int exact = 0, pruned = 0;
    for (uint32_t seed = 0; seed < 150; seed++) {
        struct mlo_error err = {0};
        struct mlo_model *before = random_model(seed), *after = random_model(seed);
        enum mlo_status status = run_pass(after, "prune", OPTIONS[seed % 3], NULL, NULL, &err);
        if (status == MLO_EINVAL && strstr(err.message, "of the multiply-adds cannot go")) {
            mlo_model_free(before);
            mlo_model_free(after);
            continue;
        }
        if (status != MLO_OK)
            fail_msg("seed %u: %s", seed, err.message);
        pruned++;
        check_runs(after, seed);
        char a[128], b[128];
        assert_string_equal(mlo_type_describe(&before->graph->outputs[0]->type, a, sizeof a),
                            mlo_type_describe(&after->graph->outputs[0]->type, b, sizeof b));
        if (seed % 3 == 0) { /* so little that only zeros go */
            double worst = deviation(before, after);
            if (!(worst <= 1e-3))
                fail_msg("seed %u: outputs differ by %g", seed, worst);
            exact++;
        }
        mlo_model_free(before);
        mlo_model_free(after);
    }
    assert_true(exact >= 40 && pruned >= 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune__random_nets_stay_valid_and_lose_zeros_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
