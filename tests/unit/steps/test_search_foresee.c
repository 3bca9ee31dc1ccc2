/* What a search foresees of candidates that it has not tried, and what it leaves out for that. */
#include <math.h>

#include "tests/unit/steps/search_fixture.h"

static void test_foresee__tries_values_alone_and_then_what_they_promise(void **state)
{
    MLO_UNUSED(state);
    json_t *options = options_of("{\"together\":6," WORLD "}"), *run = new_run(),
           *first = decide(options, run);
    static const char *const alone[] = {"float", "prune25-float", "int8-weights", "prune50-float",
                                        "int8-dynamic"};
    const json_t *next = json_object_get(first, "next");
    assert_int_equal(json_array_size(next), MLO_COUNT(alone)); /* and the rest waits for what they bring */
    for (size_t i = 0; i < MLO_COUNT(alone); i++)
        assert_string_equal(mlo_json_str(json_array_get(next, i), "candidate", ""), alone[i]);
    json_decref(first);
    json_t *end = search_apart(options, run, (struct world){0});
    /* 43.75% would lose too much: of the shares that are between those listed this is the largest */
    assert_string_equal(mlo_json_str(end, "best", ""), "prune37.5-float");
    /* as small as possible, within the bound: the front is not only what the goal asks for */
    assert_true(mlo_json_bool(point_named(end, "prune25-int8-weights"), "front", false));
    /* what is slow alone is not tried with anything */
    assert_string_equal(mlo_json_str(point_named(end, "prune25-int8-dynamic"), "state", ""), "not tried");
    assert_non_null(strstr(mlo_json_str(point_named(end, "prune25-int8-dynamic"), "why", ""), "add nothing"));
    assert_string_equal(mlo_json_str(end, "stopped", "?"), "");
    json_decref(end);
    json_decref(run);
    json_decref(options);
}

/* What floats would gain beside the best is next to nothing, by what is foreseen; it is tried all the same.
 */
static void test_foresee__tries_more_bits_beside_the_best(void **state)
{
    MLO_UNUSED(state);
    json_t *options = options_of("{\"together\":6,\"goal\":\"accuracy_drop<=0.8pt, min latency\",\"prune\":"
                                 "[\"none\",\"25%\",\"50%\"],\"precision\":[\"int8-weights\",\"float\"]}"),
           *run = new_run(), *end = search_apart(options, run, (struct world){.integers = 1e-5});
    assert_string_equal(mlo_json_str(end, "best", ""), "prune37.5-float"); /* as fast, and loses less */
    assert_string_equal(mlo_json_str(point_named(end, "prune25-float"), "state", ""), "not tried");
    json_decref(end);
    json_decref(run);
    json_decref(options);
}

static void test_foresee__is_what_comes_of_it(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_search_state s;
    struct mlo_search_point p;
    json_t *options = options_of("{\"threads\":[1,2]," WORLD "}"), *run = new_run(), *first;
    work_apart(run, first = decide(options, run), (struct world){0});
    assert_ok(mlo_search_state_init(&s, options, run, &err));
    size_t found = 0;
    for (size_t i = 0; i < s.count; i++) {
        const struct mlo_search_candidate *c = &s.all[i];
        bool known = mlo_search_foresee(&s, c, &p);
        /* nobody has said what half of it does, nor what lies before it and behind a quarter */
        assert_int_equal(known, c->share <= 0.25 && !strstr(c->name, "dynamic"));
        if (strcmp(c->name, "prune12.5-int8-weights") != 0)
            continue;
        found++;
        assert_true(known && c->between);
        assert_true(fabs(p.axis[MLO_AXIS_DROP].value - 0.0035) < 1e-9);
        assert_true(fabs(p.axis[MLO_AXIS_LATENCY].value - 0.875) < 1e-9);
        assert_true(fabs(p.axis[MLO_AXIS_SIZE].value - 0.875 * 0.3) < 1e-3);
        /* and so what a goal bounds: the source's times by what was measured */
        assert_true(p.p50_us.known && fabs(p.p50_us.value - 87.5) < 1e-9);
        assert_true(p.p99_us.known && fabs(p.p99_us.value - 131.25) < 1e-9);
        static const char *const missed[] = {"latency_p50<=87us", "latency_p99<=131us",
                                             "latency_p99<=0.87*source"};
        for (size_t k = 0; k < MLO_COUNT(missed); k++) {
            struct mlo_goal g;
            assert_ok(mlo_goal_parse(missed[k], &g, &err));
            assert_int_equal(mlo_goal_held(&g, &p, true), 0);
        }
    }
    assert_int_equal(found, 1);
    mlo_search_state_clear(&s);
    json_decref(first);
    json_decref(run);
    json_decref(options);
}

/* What is listed first cannot be made: the next takes its place, and pruning is tried with that. */
static void test_foresee__goes_on_where_what_is_first_fails(void **state)
{
    MLO_UNUSED(state);
    json_t *options = options_of("{\"together\":1,\"goal\":\"accuracy_drop<=0.8pt, min latency\",\"prune\":"
                                 "[\"none\",\"25%\",\"50%\"],\"precision\":[\"int8-weights\",\"float\"]}"),
           *run = new_run(), *end = search_apart(options, run, (struct world){.failing = "int8"});
    assert_string_equal(mlo_json_str(end, "best", ""), "prune37.5-float");
    const json_t *never = point_named(end, "prune50-int8-weights");
    assert_string_equal(mlo_json_str(never, "state", ""), "not tried");
    assert_non_null(strstr(mlo_json_str(never, "why", ""), "failed alone"));
    assert_string_equal(mlo_json_str(end, "stopped", "?"), "");
    json_decref(end);
    json_decref(run);
    json_decref(options);
}

/* Where those that are kept turn out slower on all of the data, what was not worth trying would seem so: no
 * budget is to blame for that. */
static void test_foresee__blames_no_budget_for_what_later_rungs_say(void **state)
{
    MLO_UNUSED(state);
    json_t *options = options_of("{\"together\":6," WORLD "}"), *run = new_run(),
           *end = search_apart(options, run, (struct world){.later = 1.5});
    assert_string_equal(mlo_json_str(end, "stopped", "?"), "");
    json_decref(end);
    json_decref(run);
    json_decref(options);
    /* and where there is one it is named in every rung */
    options = options_of("{\"together\":2,\"jobs\":16," WORLD "}");
    run = new_run();
    end = search_apart(options, run, (struct world){.later = 1.5});
    assert_non_null(strstr(mlo_json_str(end, "stopped", "?"), "budget ended the search before"));
    json_decref(end);
    json_decref(run);
    json_decref(options);
}

/* Weights of more bits are tried until something surely loses nothing, and no further. */
static void test_foresee__finds_the_smallest_that_loses_nothing(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *name;
        double drop;
        int size;
    } forms[] = {{"int4-all", 0.003, 150}, {"int8-weights", 0.002, 300}, {"fp16", 0, 500}, {"float", 0, 990}};
    json_t *options =
               options_of("{\"together\":1,\"goal\":\"accuracy_drop<=5pt\",\"precision\":[\"int4-all\","
                          "\"float\",\"fp16\",\"int8-weights\"]}"),
           *run = new_run(), *now;
    for (now = decide(options, run); !mlo_json_bool(now, "done", false); now = decide(options, run)) {
        json_t *block = json_array_get(json_object_get(now, "next"), 0), *jobs = json_object_get(run, "jobs");
        const char *name = mlo_json_str(block, "candidate", "");
        size_t i;
        json_array_foreach(json_object_get(now, "next"), i, block)
        {
            size_t k = 0;
            name = mlo_json_str(block, "candidate", "");
            while (strcmp(forms[k].name, name) != 0)
                k++;
            json_t *judged = lost(forms[k].drop, 0);
            json_object_set_new(judged, "n", json_integer(10000));
            json_array_append_new(jobs, json_pack("{s:s, s:s, s:{s:s, s:i}, s:s, s:i}", "step", "optimize",
                                                  "state", "succeeded", "spec", "candidate", name, "rung",
                                                  MLO_RUNG_SCREEN, "output", name, "size", forms[k].size));
            json_array_append_new(
                jobs, json_pack("{s:s, s:s, s:{s:s, s:O}, s:{s:[o, o, o]}}", "step",
                                mlo_json_i64(block, "rung", 0) == MLO_RUNG_EVALUATE ? "evaluate" : "trial",
                                "state", "succeeded", "spec", "candidate", name, "rung",
                                json_object_get(block, "rung"), "result", "observations", judged,
                                seen("latency.p50", "ratio", 1, 100), seen("latency.p99", "ratio", 1, 120)));
        }
        json_decref(now);
    }
    assert_string_equal(mlo_json_str(point_named(now, "float"), "state", ""), "not tried");
    assert_true(mlo_json_bool(point_named(now, "fp16"), "front", false));
    assert_true(mlo_json_bool(point_named(now, "int8-weights"), "front", false));
    json_decref(now);
    json_decref(run);
    json_decref(options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foresee__tries_values_alone_and_then_what_they_promise),
        cmocka_unit_test(test_foresee__tries_more_bits_beside_the_best),
        cmocka_unit_test(test_foresee__is_what_comes_of_it),
        cmocka_unit_test(test_foresee__goes_on_where_what_is_first_fails),
        cmocka_unit_test(test_foresee__blames_no_budget_for_what_later_rungs_say),
        cmocka_unit_test(test_foresee__finds_the_smallest_that_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
