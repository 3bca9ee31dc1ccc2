/* Structured pruning: how many channels of which group go for a share. */
#include "tests/unit/passes/prune_fixture.h"

/* Convolutions have the multiply-adds here and the product behind has the weights: a share of either goes. */
static void test_prune__a_share_of_the_weights(void **state)
{
    MLO_UNUSED(state);
    static const char *const of[] = {"multiply-adds", "weights"};
    struct mlo_error err = {0};
    double removed[2][2];
    for (int k = 0; k < 2; k++) {
        struct mlo_model *m = new_model(17);
        struct mlo_value *c = op(m, "Conv", "c", image(m), ramp(m, "cw", 0.1f, 8, 2, 3, 3));
        set_ints(c, "pads", 1, 1, 1, 1);
        struct mlo_value *d = op(m, "Conv", "d", op(m, "Relu", "rc", c), ramp(m, "dw", 0.1f, 8, 8, 3, 3));
        set_ints(d, "pads", 1, 1, 1, 1);
        struct mlo_value *f = op(m, "Flatten", "f", op(m, "GlobalAveragePool", "p", d));
        struct mlo_value *h = op(m, "Relu", "rh", op(m, "Gemm", "h", f, ramp(m, "hw", 0.1f, 8, 64)));
        struct mlo_value *g = op(m, "Relu", "rg", op(m, "Gemm", "g", h, ramp(m, "gw", 0.1f, 64, 64)));
        finish(m, op(m, "Gemm", "y", g, ramp(m, "yw", 0.1f, 64, 3)));
        struct mlo_arena *arena = mlo_arena_new();
        struct mlo_pass_context ctx = {.notes = json_array()};
        struct mlo_prune_result result = {0};
        json_t *given = json_pack("{s:s,s:s,s:i}", "remove", "50%", "of", of[k], "round", 1), *options;
        assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
        assert_ok(mlo_prune_model(m, options, NULL, arena, &ctx, &result, &err));
        const json_t *macs = json_object_get(result.report, "macs"),
                     *weights = json_object_get(result.report, "weights");
        removed[k][0] = mlo_json_f64(macs, "removed", -1);
        removed[k][1] = mlo_json_f64(weights, "removed", -1);
        assert_string_equal(mlo_json_str(result.report, "of", ""), of[k]);
        assert_float_equal(mlo_json_f64(weights, "before", 0),
                           8 * 2 * 9 + 8 * 8 * 9 + 8 * 64 + 64 * 64 + 64 * 3, 0);
        double left = 0; /* what the file has now is what the report says */
        for (int n = 0; n < m->graph->node_count; n++) {
            const struct mlo_tensor *w = mlo_node_fixed(m->graph->nodes[n], 1);
            left += w && w->rank > 1 ? (double)mlo_tensor_count(w) : 0;
        }
        assert_float_equal(mlo_json_f64(weights, "after", 0), left, 1e-9);
        json_decref(result.report);
        json_decref(ctx.notes);
        json_decref(given);
        json_decref(options);
        mlo_arena_free(arena);
        mlo_model_free(m);
    }
    assert_true(removed[0][0] >= 0.5 && removed[1][1] >= 0.5);
    assert_true(removed[0][1] < removed[1][1]); /* not the same choice */
}

/* Two layers beside each other, of so many channels that cost so much each, and what `share` takes of them
 * for these errors. */
struct spending {
    int channels[2], cost[2];
    const double *errors[2];
    const char *share;
    int round, left[2];
};

static void spend(const struct spending *t)
{
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(17);
    struct mlo_value *out[2];
    for (int k = 0; k < 2; k++) {
        char names[6][16];
        for (size_t i = 0; i < MLO_COUNT(names); i++)
            snprintf(names[i], sizeof names[i], "%c%d", "xwhrvs"[i], k);
        int reads = t->cost[k] - 3;
        struct mlo_value *w = ramp(m, names[1], 0.1f, reads, t->channels[k]),
                         *h = op(m, "Gemm", names[2], input(m, names[0], -1, reads), w);
        out[k] =
            op(m, "Gemm", names[5], op(m, "Relu", names[3], h), ramp(m, names[4], 0.1f, t->channels[k], 3));
    }
    finish(m, op(m, "Add", "y", out[0], out[1]));
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_pass_context ctx = {.notes = json_array()};
    struct mlo_prune_ranking ranking;
    struct mlo_prune_result result = {0};
    json_t *given = json_pack("{s:s,s:i}", "remove", t->share, "round", t->round), *options;
    assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
    assert_ok(mlo_prune_rank_model(m, options, NULL, NULL, arena, &ctx, &ranking, &err));
    assert_int_equal(ranking.count, 2);
    for (int g = 0; g < 2; g++)
        for (int k = 0; k <= ranking.groups[g].count; k++)
            ranking.groups[g].error[k] = t->errors[ranking.groups[g].count == t->channels[1]][k];
    assert_ok(mlo_prune_take(m, options, &ranking, arena, &ctx, &result, &err));
    for (size_t g = 0; g < 2; g++) {
        const json_t *group = json_array_get(json_object_get(result.report, "groups"), g);
        bool second = strcmp(mlo_json_str(group, "node", ""), "h1_node") == 0;
        assert_int_equal(mlo_json_i64(group, "to", 0), t->left[second]);
    }
    json_decref(result.report);
    json_decref(ctx.notes);
    json_decref(given);
    json_decref(options);
    mlo_arena_free(arena);
    mlo_model_free(m);
}

/* Two channels of the first save 30 and err by 3, of the second 20 and by 2.2: 40 are wanted, and the better
 * rate in front would end at 50 and 5.2, where two steps of the second err by 4.4. */
static void test_prune__exchanges_what_a_coarse_step_took_too_much(void **state)
{
    MLO_UNUSED(state);
    static const double FIRST[] = {0, 1.5, 3, 4.5, 6}, SECOND[] = {0, 1.1, 2.2, 3.3, 4.4, 6, 8};
    static const struct spending T = {{4, 6}, {15, 10}, {FIRST, SECOND}, "33%", 2, {4, 2}};
    spend(&T);
}

/* 60 are wanted. Three channels of the second go for nearly nothing, then one of the first is the better
 * rate, and with it 70 are gone: 60 with one given back, at an error of 1.2. No exchange of one step for one
 * brings back the first's channel, that is worth four of the second: six of these err by 1.08. */
static void test_prune__goes_on_without_what_a_coarse_step_took_too_much(void **state)
{
    MLO_UNUSED(state);
    static const double FIRST[] = {0, 1, 3}, SECOND[] = {0, 0.1, 0.2, 0.3, 0.56, 0.82, 1.08, 1.34, 1.6, 3, 5};
    static const struct spending T = {{2, 10}, {40, 10}, {FIRST, SECOND}, "33.3%", 1, {2, 4}};
    spend(&T);
}

/* What no number tells of goes last, and no less than was asked for goes: 40 of 120 are wanted, and the other
 * has 32 to give. Where both are such: 72. */
static void test_prune__an_error_that_is_no_number_does_not_end_the_budget(void **state)
{
    MLO_UNUSED(state);
    static const double NONE[] = {0, NAN, NAN, NAN, NAN, NAN}, SOME[] = {0, 1, 2, 3, 4, 5};
    static const struct spending T[] = {
        {{4, 5}, {20, 8}, {NONE, SOME}, "33.3%", 1, {3, 2}},
        {{5, 4}, {8, 20}, {SOME, NONE}, "33.3%", 1, {2, 3}},
        {{4, 5}, {20, 8}, {NONE, NONE}, "60%", 1, {1, 3}},
        {{4, 5}, {20, 8}, {NONE, NONE}, "33.3%", 1, {2, 5}},
    };
    for (size_t i = 0; i < MLO_COUNT(T); i++)
        spend(&T[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune__a_share_of_the_weights),
        cmocka_unit_test(test_prune__exchanges_what_a_coarse_step_took_too_much),
        cmocka_unit_test(test_prune__goes_on_without_what_a_coarse_step_took_too_much),
        cmocka_unit_test(test_prune__an_error_that_is_no_number_does_not_end_the_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
