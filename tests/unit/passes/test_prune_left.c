/* Structured pruning: what is left alone, and the reasons that are given. */
#include "tests/unit/passes/prune_fixture.h"

static void test_prune__names_what_it_left_alone_and_why(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(17);
    struct mlo_value *x = image(m), *d = op(m, "DepthToSpace", "d", first(m, "a", x, 2, 4));
    assert_true(mlo_node_set_i(d->producer, "blocksize", 2));
    struct mlo_value *b = first(m, "b", d, 1, 4);
    conclude(m, b, 4);
    assert_ok(run_pass(m, "prune", HALF, NULL, &report, &err));
    assert_true(has_note(report, "a_node", "no rule says what DepthToSpace does"));
    assert_true(has_note(report, "y_node", "an output of the graph"));
    assert_true(has_note(report, "b_node", "2 of 4 channels stay"));
    json_decref(report);
    mlo_model_free(m);
}

/* A reason quotes the node in its way; a long name is cut between characters, or the report would lose it. */
static void test_prune__cuts_names_between_characters(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *text;
        int most, cut;
    } cases[] = {{"abc", 3, 3},         {"abc", 2, 2},         {"abc", 0, 0},
                 {"a\u00e9", 2, 1},     {"a\u00e9", 3, 3},     {"\u20ac\u20ac", 5, 3},
                 {"\U0001f600x", 3, 0}, {"\U0001f600x", 4, 4}, {"\x80\x80\x80\x80\x80\x80", 5, 5}};
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        assert_int_equal(mlo_pass_cut(cases[i].text, cases[i].most), cases[i].cut);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(17);
    struct mlo_value *x = image(m), *d = op(m, "DepthToSpace", "d", first(m, "a", x, 2, 4));
    char name[256];
    memset(name, 'n', 179);
    snprintf(name + 179, sizeof name - 179, "\u00e9\u00e9\u00e9");
    d->producer->name = name;
    assert_true(mlo_node_set_i(d->producer, "blocksize", 2));
    conclude(m, first(m, "b", d, 1, 4), 4);
    assert_ok(run_pass(m, "prune", HALF, NULL, &report, &err));
    assert_true(has_note(report, "a_node", "no rule says what DepthToSpace does"));
    assert_true(has_note(report, "a_node", "nnn')"));
    json_decref(report);
    mlo_model_free(m);
}

static void test_prune__leaves_what_layernorm_shares(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *m = new_model(17);
    struct mlo_value *shared = ramp(m, "shared", 0.1f, 8), *x = input(m, "x", -1, 4);
    struct mlo_value *a = op(m, "Relu", "ra", op(m, "MatMul", "a", x, holes(m, "wa", 0.1f, 1, 1, 4, 8)));
    struct mlo_value *b = op(m, "Relu", "rb", op(m, "Gemm", "b", a, ramp(m, "wb", 0.1f, 8, 8), shared));
    struct mlo_value *c = op(m, "Gemm", "c", b, ramp(m, "wc", 0.1f, 8, 8));
    struct mlo_value *n = op(m, "LayerNormalization", "n", c, ramp(m, "gain", 0.1f, 8), shared);
    finish(m, op(m, "MatMul", "y", n, ramp(m, "wy", 0.1f, 8, 3)));
    if (run_pass(m, "prune", HALF, NULL, &report, &err) != MLO_OK)
        fail_msg("%s", err.message);
    assert_true(has_note(report, "b_node", "what LayerNormalization makes"));
    assert_true(has_note(report, "a_node", "of 8 channels stay"));
    assert_int_equal(shared->type.dims[0].value, 8);
    json_decref(report);
    mlo_model_free(m);
}

static void test_prune__groups_on_channels_not_known_stay(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(17);
    struct mlo_value *x = input(m, "x", -1, -1, 4, 4);
    x->type.dims[1] = (struct mlo_dim){-1, "channels"};
    struct mlo_value *r = op(m, "Reshape", "r", x, ints(m, "shape", 0, -1, 4, 4));
    struct mlo_value *d = op(m, "Conv", "d", r, ramp(m, "wd", 0.1f, 4, 1, 1, 1));
    assert_true(mlo_node_set_i(d->producer, "group", 4));
    conclude(m, op(m, "Relu", "a", first(m, "c", d, 4, 4)), 4);
    if (run_pass(m, "prune", HALF, NULL, NULL, &err) != MLO_OK)
        fail_msg("%s", err.message);
    assert_int_equal(mlo_node_attr_i(node_named(m, "d_node"), "group", 1), 4);
    mlo_model_free(m);
}

static void test_prune__ranks_by_norms_what_no_batchnorm_scales(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *report = NULL;
    struct mlo_model *before = new_model(17), *after = new_model(17);
    for (int k = 0; k < 2; k++) {
        struct mlo_model *m = k ? after : before;
        struct mlo_value *n =
            op(m, "BatchNormalization", "n", first(m, "a", image(m), 2, 4),
               floats(m, "gain", LIST(1, 0, 3, 0), 4), floats(m, "offset", LIST(1, 0, -1, 0), 4),
               floats(m, "mean", LIST(0.5, 0, 1, 0), 4), floats(m, "var", LIST(1, 2, 3, 4), 4));
        conclude(m, op(m, "Relu", "rb", first(m, "b", op(m, "Relu", "ra", n), 4, 4)), 4);
    }
    if (run_pass(after, "prune",
                 "{\"remove\": \"45%\", \"ratios\": \"uniform\", \"round\": 1, \"criterion\": \"bn-scale\"}",
                 NULL, &report, &err) != MLO_OK)
        fail_msg("%s", err.message);
    assert_true(has_note(report, "b_node", "ranked by norms of weights: no BatchNormalization"));
    assert_false(has_note(report, "a_node", "ranked by norms of weights"));
    assert_true(has_note(report, "b_node", "2 of 4 channels stay"));
    assert_true(deviation(before, after) <= 1e-5); /* only zeros went */
    json_decref(report);
    mlo_model_free(before);
    mlo_model_free(after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune__names_what_it_left_alone_and_why),
        cmocka_unit_test(test_prune__cuts_names_between_characters),
        cmocka_unit_test(test_prune__leaves_what_layernorm_shares),
        cmocka_unit_test(test_prune__groups_on_channels_not_known_stay),
        cmocka_unit_test(test_prune__ranks_by_norms_what_no_batchnorm_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
