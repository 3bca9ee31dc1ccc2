/* What a search chooses among: goals, the order of points, candidates. */
#include <math.h>
#include <stdio.h>

#include "tests/unit/steps/search_fixture.h"

static struct mlo_bounded exact(double value)
{
    return (struct mlo_bounded){value, value, value, true};
}

static struct mlo_bounded wide(double value, double by)
{
    return (struct mlo_bounded){value, value - by, value + by, true};
}

static struct mlo_search_point point(double drop, double latency, double size)
{
    return (struct mlo_search_point){.axis = {exact(drop), exact(latency), exact(size)},
                                     .p99_us = exact(latency * 1000),
                                     .p99_ratio = exact(latency),
                                     .size_bytes = size * 1e6};
}

static void test_goal__parses(void **state)
{
    MLO_UNUSED(state);
    struct mlo_goal g;
    struct mlo_error err = {0};
    assert_ok(
        mlo_goal_parse("accuracy_drop<=0.5pt, latency_p99 <= 5ms,size<0.25*source , min size", &g, &err));
    assert_int_equal(g.count, 3);
    assert_int_equal(g.objective, MLO_AXIS_SIZE);
    assert_true(fabs(g.conditions[0].offset - 0.005) < 1e-12);
    assert_true(fabs(g.conditions[1].offset - 5000) < 1e-9);
    assert_true(g.conditions[2].factor == 0.25 && strcmp(g.conditions[2].base, "source") == 0);
    assert_ok(mlo_goal_parse("size<=1.5MB", &g, &err));
    assert_true(g.objective == MLO_AXIS_LATENCY && g.conditions[0].offset == 1.5e6);
    assert_ok(mlo_goal_parse("latency_p50<=800us", &g, &err));
    assert_true(g.conditions[0].offset == 800);
}

static void test_goal__what_it_is_not(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *text, *says, *hint;
    } wrong[] = {
        {"", "empty", ""},
        {"min latency,", "empty", ""},
        {"min latency, min size", "second objective", ""},
        {"min accuracy", "makes least", ""},
        {"min laency", "makes least", "latency"},
        {"top1<=0.9", "does not measure", "accuracy_drop"},
        {"sise<=3", "does not measure", "size"},
        {"size>=3MB", "write <=", ""},
        {"size<=3 MBs", "not understood", ""},
        {"accuracy_drop<=5ms", "not understood", ""},
        {"accuracy_drop<=source", "against the source already", ""},
        {"size<=production", "so many times the source", ""},
        {"size<=source - 1", "so many times the source", ""},
        {"latency_p99[batch=1]<=5", "parameters", ""},
        {"size<=1,size<=1,size<=1,size<=1,size<=1,size<=1,size<=1", "too many", ""},
    };
    for (size_t i = 0; i < MLO_COUNT(wrong); i++) {
        struct mlo_goal g;
        struct mlo_error err = {0};
        assert_int_equal(mlo_goal_parse(wrong[i].text, &g, &err), MLO_EINVAL);
        if (!strstr(err.message, wrong[i].says) || !strstr(err.hint, wrong[i].hint))
            fail_msg("'%s': '%s' (%s)", wrong[i].text, err.message, err.hint);
    }
    char longer[400];
    struct mlo_goal g;
    struct mlo_error err = {0};
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(mlo_goal_parse(longer, &g, &err), MLO_EINVAL);
}

static void test_pareto__ties_and_intervals(void **state)
{
    MLO_UNUSED(state);
    struct mlo_search_point p[] = {point(0.00, 1.0, 1.0), point(0.01, 0.5, 0.3), point(0.01, 0.5, 0.3),
                                   point(0.02, 0.5, 0.3), point(0.00, 0.9, 1.2), point(0.03, 0.6, 0.4)};
    int rank[7];
    mlo_points_rank(p, 6, rank);
    const int wanted[] = {0, 0, 0, 1, 0, 2};
    assert_memory_equal(rank, wanted, sizeof wanted);
    assert_false(mlo_point_dominates(&p[1], &p[2])); /* equal */
    assert_true(mlo_point_dominates(&p[1], &p[3]));
    /* overlapping intervals: better by what was measured */
    p[1].axis[MLO_AXIS_DROP] = wide(0.01, 0.008);
    p[3].axis[MLO_AXIS_DROP] = wide(0.02, 0.008);
    assert_true(mlo_point_dominates(&p[1], &p[3]));
    /* but what surely loses nothing is not beaten by what may lose something */
    p[1].axis[MLO_AXIS_DROP] = wide(0.019, 0.008);
    p[3].axis[MLO_AXIS_DROP] = wide(0.02, 0.001);
    assert_false(mlo_point_dominates(&p[1], &p[3]));
    p[1].axis[MLO_AXIS_DROP] = exact(0.01);
    p[3].axis[MLO_AXIS_DROP] = wide(0.02, 0.008);
    /* what was not measured is of no rank, and stands in nobody's way; neither does what is no number */
    p[0].axis[MLO_AXIS_LATENCY].known = false;
    p[4].axis[MLO_AXIS_DROP] = exact(NAN);
    mlo_points_rank(p, 6, rank);
    assert_int_equal(rank[0], -1);
    assert_int_equal(rank[1], 0);
    mlo_points_rank(p, 0, rank);
}

static void test_goal__orders_points(void **state)
{
    MLO_UNUSED(state);
    struct mlo_goal g;
    struct mlo_error err = {0};
    assert_ok(mlo_goal_parse("accuracy_drop<=1pt, latency_p99<=0.9*source, min latency", &g, &err));
    struct mlo_search_point slow = point(0, 0.8, 1), fast = point(0.005, 0.4, 1),
                            lossy = point(0.05, 0.1, 0.1), unsure = point(0.009, 0.3, 1);
    unsure.axis[MLO_AXIS_DROP] = wide(0.009, 0.004);
    assert_int_equal(mlo_goal_held(&g, &fast, false), 2);
    assert_int_equal(mlo_goal_held(&g, &unsure, false), 1);
    assert_int_equal(mlo_goal_held(&g, &unsure, true), 2);
    assert_int_equal(mlo_goal_held(&g, &lossy, true), 1);
    assert_true(mlo_goal_order(&g, &fast, &slow) < 0 && mlo_goal_order(&g, &slow, &fast) > 0);
    assert_true(mlo_goal_order(&g, &slow, &unsure) < 0);  /* a bound that does not surely hold comes after */
    assert_true(mlo_goal_order(&g, &unsure, &lossy) < 0); /* both miss one: who is nearer to the accuracy */
    assert_int_equal(mlo_goal_order(&g, &fast, &fast), 0);
    slow.p99_ratio.known = false;
    assert_int_equal(mlo_goal_held(&g, &slow, false), 1);
    assert_int_equal(mlo_goal_held(&g, &slow, true), 2);
}

static void test_space__is_each_combination_once(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *space = NULL,
           *options = options_of(
               "{\"foresee\":false,\"prune\":[\"none\",\"30%\"],\"precision\":[\"float\",\"int8\"],"
               "\"calibrator\":[\"mse\",\"minmax\"],\"mixed\":[\"none\",\"0.3pt\"]}");
    assert_ok(mlo_search_space(options, &space, &err));
    /* of float, calibrators change nothing: 2 * (1 + 2 * 2) */
    assert_int_equal(json_array_size(space), 10);
    static const char *const first[] = {"float", "int8-mse"};
    for (size_t i = 0; i < MLO_COUNT(first); i++) {
        bool found = false;
        for (size_t k = 0; k < 4; k++)
            found = found || strcmp(mlo_json_str(json_array_get(space, k), "name", ""), first[i]) == 0;
        assert_true(found);
    }
    for (size_t i = 0; i < json_array_size(space); i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(mlo_json_str(json_array_get(space, i), "name", ""),
                                    mlo_json_str(json_array_get(space, k), "name", ""));
    json_decref(space);
    json_decref(options);
    /* two spellings: jobs are known by the names of their candidates */
    static const char *const twice[] = {"{\"precision\":[\"int8\"],\"mixed\":[\"0.3pt\",\"0.3 pt\"]}",
                                        "{\"prune\":[\"30%\",\"+30%\"]}"};
    for (size_t i = 0; i < MLO_COUNT(twice); i++) {
        options = options_of(twice[i]);
        err = (struct mlo_error){0};
        assert_int_equal(mlo_search_space(options, &space, &err), MLO_EINVAL);
        assert_non_null(strstr(err.message, "the same name"));
        json_decref(options);
    }
    /* too many */
    json_t *prune = json_array();
    for (int i = 1; i < 99; i++) {
        char share[16];
        snprintf(share, sizeof share, "%d%%", i);
        json_array_append_new(prune, json_string(share));
    }
    options = options_of("{\"precision\":[\"float\",\"int8\"]}");
    json_object_set_new(options, "prune", prune);
    assert_int_equal(mlo_search_space(options, &space, &err), MLO_ETOOBIG);
    json_decref(options);
}

/* Shares of multiply-adds have others between them; a share of weights stands for itself. */
static void test_space__prunes_weights_too(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *space = NULL, *one,
           *options =
               options_of("{\"prune\":[\"none\",\"40%\",\"33% of weights\"],\"precision\":[\"float\"]}");
    size_t i, found = 0, between = 0;
    assert_ok(mlo_search_space(options, &space, &err));
    json_array_foreach(space, i, one)
    {
        const json_t *given = json_object_get(json_array_get(json_object_get(one, "steps"), 0), "options");
        bool of_weights = strcmp(mlo_json_str(given, "of", ""), "weights") == 0;
        between += mlo_json_bool(one, "between", false);
        assert_int_equal(mlo_json_bool(one, "of_weights", false), of_weights);
        if (!of_weights)
            continue;
        found++;
        assert_string_equal(mlo_json_str(one, "name", ""), "prune33ofweights-float");
        assert_string_equal(mlo_json_str(given, "remove", ""), "33%");
        assert_true(fabs(mlo_json_f64(one, "share", 0) - 0.33) < 1e-12);
    }
    assert_int_equal(found, 1);
    assert_int_equal(between, 3); /* 10%, 20%, 30% */
    json_decref(space);
    json_decref(options);
}

/* A precision that a recipe has too is made by its steps: what it made is found again. */
static void test_space__makes_what_the_recipe_makes(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_recipe *recipe = NULL;
    size_t size;
    const char *text = mlo_recipe_builtin("int4-gptq", &size);
    json_t *options = options_of("{\"precision\":[\"int4-gptq\"]}"), *space = NULL, *step;
    size_t i;
    assert_ok(mlo_recipe_parse(text, size, "int4-gptq", &recipe, &err));
    assert_ok(mlo_search_space(options, &space, &err));
    assert_int_equal(json_array_size(space), 1);
    const json_t *steps = json_object_get(json_array_get(space, 0), "steps");
    assert_int_equal(json_array_size(steps), 2);
    json_array_foreach(steps, i, step)
    {
        assert_string_equal(mlo_json_str(step, "step", ""), recipe->steps[i].name);
        assert_true(json_equal(json_object_get(step, "options"), recipe->steps[i].options));
    }
    json_decref(space);
    json_decref(options);
    mlo_recipe_free(recipe);
}

/* Whether it has instructions for products of small integers is told by the targets that a machine fits. */
static void test_points__know_which_machines_multiply_integers(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *isa, *target;
        bool plain;
    } cases[] = {{"avx2", "cpu:avx2", true},
                 {"avx512", "cpu:avx512", true},
                 {"avx512-vnni", "cpu:avx512-vnni", false},
                 {"avx512-fp16", "cpu:avx512-vnni", false}};
    json_t *options = options_of("{\"precision\":[\"float\"]}");
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_error err = {0};
        struct mlo_search_state s;
        json_t *run = new_run(), *one = seen("latency.p50", "ratio", 1, 100);
        json_object_set_new(
            one, "machine",
            json_pack("{s:s, s:[s, s]}", "isa", cases[i].isa, "targets", "any", cases[i].target));
        json_array_append_new(json_object_get(run, "jobs"),
                              json_pack("{s:s, s:s, s:{s:s, s:i}, s:{s:[o]}}", "step", "trial", "state",
                                        "succeeded", "spec", "candidate", "float", "rung", MLO_RUNG_SCREEN,
                                        "result", "observations", one));
        assert_ok(mlo_search_state_init(&s, options, run, &err));
        assert_int_equal(s.plain_integers, cases[i].plain);
        mlo_search_state_clear(&s);
        json_decref(run);
    }
    json_decref(options);
}

static void test_volume__is_of_what_is_reached(void **state)
{
    MLO_UNUSED(state);
    struct mlo_goal g;
    struct mlo_error err = {0};
    assert_ok(mlo_goal_parse("accuracy_drop<=4pt", &g, &err));
    double side = log(1.25 / 0.5);
    struct mlo_search_point p[] = {point(0.025, 0.5, 0.5), point(0.03, 0.6, 0.6), point(0, 1.25, 0.1),
                                   point(0.0375, 0.25, 0.5)};
    assert_true(fabs(mlo_points_volume(&g, p, 1) - 0.5 * side * side) < 1e-12);
    /* what another one dominates adds nothing; nor does what is as slow as is thought of at all */
    assert_true(fabs(mlo_points_volume(&g, p, 3) - 0.5 * side * side) < 1e-12);
    double more = 0.25 * (log(1.25 / 0.25) - side) * side;
    assert_true(fabs(mlo_points_volume(&g, p, 4) - 0.5 * side * side - more) < 1e-12);
    p[1] = point(-0.01, 1, 1); /* luck: no more than no drop */
    p[2] = point(0, 1, 1);
    assert_true(fabs(mlo_points_volume(&g, &p[1], 1) - mlo_points_volume(&g, &p[2], 1)) < 1e-12);
    p[0].axis[MLO_AXIS_SIZE].known = false;
    assert_true(mlo_points_volume(&g, p, 1) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goal__parses),
        cmocka_unit_test(test_goal__what_it_is_not),
        cmocka_unit_test(test_pareto__ties_and_intervals),
        cmocka_unit_test(test_goal__orders_points),
        cmocka_unit_test(test_space__is_each_combination_once),
        cmocka_unit_test(test_space__prunes_weights_too),
        cmocka_unit_test(test_space__makes_what_the_recipe_makes),
        cmocka_unit_test(test_points__know_which_machines_multiply_integers),
        cmocka_unit_test(test_volume__is_of_what_is_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
