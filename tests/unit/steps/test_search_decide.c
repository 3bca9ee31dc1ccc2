/* What a search chooses: rungs, budgets, the front and the best. */
#include <math.h>
#include <stdio.h>

#include "tests/unit/steps/search_fixture.h"

/* Whether a step was done before, behind the same steps: then it is reused. `path` tells what came of it. */
static bool done_before(const json_t *jobs, const json_t *block, size_t step, char path[32])
{
    json_t *steps = json_array();
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_digest digest;
    char name[MLO_DIGEST_TEXT_SIZE];
    const json_t *job;
    size_t i;
    bool before = false;
    for (size_t k = 0; k <= step; k++)
        json_array_append(steps, json_array_get(json_object_get(block, "steps"), k));
    mlo_json_canonical(steps, &text);
    mlo_digest_of(mlo_buf_str(&text), text.len, &digest);
    snprintf(path, 32, "%.31s", mlo_digest_text(&digest, name));
    json_array_foreach(jobs, i, job) before =
        before || strcmp(mlo_json_str(json_object_get(job, "spec"), "path", ""), path) == 0;
    mlo_buf_clear(&text);
    json_decref(steps);
    return before;
}

/* Does what was chosen: candidate number k loses k tenths of a point and has 1 / (k + 1) of the latency. */
static void work(json_t *run, const json_t *decision, const char *failing)
{
    json_t *jobs = json_object_get(run, "jobs"), *block, *step;
    size_t i, k, n = 0;
    json_array_append_new(jobs,
                          json_pack("{s:s, s:s, s:{}}", "step", "search", "state", "succeeded", "spec"));
    json_array_foreach(json_object_get(decision, "next"), i, block)
    {
        const char *name = mlo_json_str(block, "candidate", "");
        for (n = 0;
             strcmp(mlo_json_str(json_array_get(json_object_get(decision, "points"), n), "name", ""), name);)
            n++;
        json_array_foreach(json_object_get(block, "steps"), k, step)
        {
            const char *what = mlo_json_str(step, "step", "");
            bool fails = failing && strcmp(failing, name) == 0;
            json_t *all = json_array();
            if (strcmp(what, "trial") == 0 || strcmp(what, "evaluate") == 0)
                json_array_append_new(all, lost(0.001 * (double)n, (int)mlo_json_i64(block, "rung", 0)));
            if (strcmp(what, "trial") == 0) {
                json_array_append_new(all, seen("latency.p50", "ratio", 1 / (double)(n + 1), 100));
                json_array_append_new(all, seen("latency.p99", "ratio", 1 / (double)(n + 1), 120));
            }
            char path[32];
            bool reused = json_array_size(all) == 0 && done_before(jobs, block, k, path);
            json_array_append_new(
                jobs, json_pack("{s:s, s:s, s:{s:s, s:O, s:s}, s:s, s:i, s:{s:o}}", "step", what, "state",
                                fails    ? "failed"
                                : reused ? "reused"
                                         : "succeeded",
                                "spec", "candidate", name, "rung", json_object_get(block, "rung"), "path",
                                json_array_size(all) ? "" : path, "output", name, "size", 500, "result",
                                "observations", all));
        }
    }
}

/* To the end; the number of choices. *last is yours. */
static int search(const json_t *options, json_t *run, const char *failing, json_t **last)
{
    for (int i = 1; i < 100; i++) {
        *last = decide(options, run);
        if (mlo_json_bool(*last, "done", false))
            return i;
        work(run, *last, failing);
        json_decref(*last);
    }
    fail_msg("no end");
    return 0;
}

static int blocks_in(const json_t *run, const char *step, int rung)
{
    const json_t *job;
    size_t i;
    int n = 0;
    json_array_foreach(json_object_get(run, "jobs"), i, job) n +=
        strcmp(mlo_json_str(job, "step", ""), step) == 0 &&
        mlo_json_i64(json_object_get(job, "spec"), "rung", 0) == rung;
    return n;
}

#define SIX "\"foresee\":false,\"prune\":[\"none\",\"20%\",\"40%\"],\"precision\":[\"float\",\"int8\"]"

static void test_decide__halves_and_ends_on_the_front(void **state)
{
    MLO_UNUSED(state);
    json_t *options = options_of(
               "{\"goal\":\"accuracy_drop<=0.25pt, min latency\",\"together\":4,\"front\":2," SIX "}"),
           *run = new_run(), *end;
    /* four, two, the half of six, two of the front, the end */
    assert_int_equal(search(options, run, NULL, &end), 5);
    assert_int_equal(blocks_in(run, "trial", MLO_RUNG_SCREEN), 6);
    assert_int_equal(blocks_in(run, "trial", MLO_RUNG_SELECT), 3);
    assert_int_equal(blocks_in(run, "evaluate", MLO_RUNG_EVALUATE), 2);
    assert_true(mlo_json_bool(end, "met", false));
    const json_t *points = json_object_get(end, "points");
    /* the third loses 0.2 points: the fastest that keeps the goal */
    assert_string_equal(mlo_json_str(end, "best", ""), mlo_json_str(json_array_get(points, 2), "name", "?"));
    assert_string_equal(mlo_json_str(json_array_get(points, 5), "state", ""), "dropped");
    assert_non_null(strstr(mlo_json_str(json_array_get(points, 5), "why", ""), "misses the goal"));
    json_decref(end);
    json_decref(run);
    json_decref(options);
}

static void test_decide__keeps_budgets(void **state)
{
    MLO_UNUSED(state);
    static const int budgets[] = {4, 9, 12, 15, 20, 27, 40};
    for (size_t i = 0; i < MLO_COUNT(budgets); i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"jobs\":%d,\"together\":2,%s}", budgets[i], SIX);
        json_t *options = options_of(text), *run = new_run(), *end;
        search(options, run, NULL, &end);
        size_t jobs = 1, k; /* the last choice is one too */
        const json_t *job;
        json_array_foreach(json_object_get(run, "jobs"), k, job) jobs +=
            strcmp(mlo_json_str(job, "state", ""), "reused") != 0;
        if (jobs > (size_t)budgets[i])
            fail_msg("%zu jobs of %d", jobs, budgets[i]);
        const json_t *last = json_array_get(json_object_get(end, "points"), 5);
        bool tried = strcmp(mlo_json_str(last, "state", ""), "not tried") != 0;
        assert_int_equal(tried,
                         !*mlo_json_str(end, "stopped", "")); /* what was left out is said at the end */
        json_decref(end);
        json_decref(run);
        json_decref(options);
    }
    /* time: no more candidates after two thirds of it, no select rung after 85%, and yet an end */
    json_t *options = options_of("{\"time\":\"100s\",\"together\":1," SIX "}"), *run = new_run(), *end;
    work(run, end = decide(options, run), NULL);
    json_decref(end);
    json_object_set_new(run, "elapsed_s", json_real(90));
    end = decide(options, run);
    assert_int_equal(mlo_json_i64(end, "rung", 0), MLO_RUNG_EVALUATE);
    assert_non_null(strstr(mlo_json_str(end, "stopped", ""), "the budget of time"));
    work(run, end, NULL);
    json_decref(end);
    end = decide(options, run);
    assert_true(mlo_json_bool(end, "done", false));
    json_decref(end);
    json_decref(run);
    json_decref(options);
}

static void test_decide__without_what_failed(void **state)
{
    MLO_UNUSED(state);
    json_t *options = options_of("{\"goal\":\"min latency\",\"precision\":[\"float\",\"int8\"]}"),
           *run = new_run(), *end;
    search(options, run, "int8-mse", &end);
    assert_string_equal(mlo_json_str(end, "best", ""), "float");
    json_decref(end);
    json_decref(run);
    json_decref(options);
    options = options_of("{\"precision\":[\"float\"]}");
    run = new_run();
    search(options, run, "float", &end);
    assert_false(mlo_json_bool(end, "met", true));
    assert_non_null(strstr(mlo_json_str(end, "why", ""), "no candidate"));
    json_decref(end);
    json_decref(run);
    json_decref(options);
}

static void test_decide__names_nothing_that_was_not_evaluated(void **state)
{
    MLO_UNUSED(state);
    json_t *options =
               options_of("{\"goal\":\"accuracy_drop<=0.25pt, min latency\",\"front\":1,\"keep\":1," SIX "}"),
           *run = new_run(), *now;
    for (now = decide(options, run); mlo_json_i64(now, "rung", 0) < MLO_RUNG_EVALUATE;
         now = decide(options, run)) {
        work(run, now, NULL);
        json_decref(now);
    }
    const json_t *next = json_object_get(now, "next");
    char *judged = strdup(mlo_json_str(json_array_get(next, 0), "candidate", ""));
    assert_int_equal(json_array_size(next), 1);
    assert_string_equal(judged, mlo_json_str(now, "best", ""));
    work(run, now, judged); /* which cannot be judged */
    json_decref(now);
    now = decide(options, run);
    assert_true(mlo_json_bool(now, "done", false));
    assert_true(json_array_size(json_object_get(now, "front")) > 0);
    assert_null(mlo_json_str(now, "best", NULL));
    assert_false(mlo_json_bool(now, "met", true));
    assert_non_null(strstr(mlo_json_str(now, "why", ""), "evaluation data"));
    free(judged);
    json_decref(now);
    json_decref(run);
    json_decref(options);
}

/* Where all of the data was judged on at once there is no second rung: its jobs try more. */
static void test_decide__has_no_second_rung_where_there_is_no_more_data(void **state)
{
    MLO_UNUSED(state);
    json_t *ends[2], *runs[2];
    json_t *options = options_of("{\"jobs\":20," WORLD "}");
    for (int whole = 0; whole < 2; whole++) {
        runs[whole] = new_run();
        ends[whole] = search_apart(options, runs[whole], (struct world){.whole = whole == 1});
        assert_true(json_array_size(json_object_get(runs[whole], "jobs")) + 1 <= 20);
    }
    assert_true(blocks_in(runs[0], "trial", MLO_RUNG_SELECT) > 0);
    assert_int_equal(blocks_in(runs[1], "trial", MLO_RUNG_SELECT), 0);
    assert_true(blocks_in(runs[1], "trial", MLO_RUNG_SCREEN) > blocks_in(runs[0], "trial", MLO_RUNG_SCREEN));
    assert_int_equal(blocks_in(runs[1], "evaluate", MLO_RUNG_EVALUATE),
                     json_array_size(json_object_get(ends[1], "front")));
    /* what surely misses the goal is not of the front, however fast it is */
    const json_t *half = point_named(ends[1], "prune50-float");
    assert_false(mlo_json_bool(half, "front", true));
    assert_non_null(strstr(mlo_json_str(half, "why", ""), "misses the goal"));
    for (int whole = 0; whole < 2; whole++) {
        json_decref(ends[whole]);
        json_decref(runs[whole]);
    }
    json_decref(options);
}

/* An hour of processors costs 2, one of GPUs 10: it has used 1 and 5. */
static void test_decide__keeps_a_budget_of_money(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        double cost;
        bool ends;
    } cases[] = {{100, false}, {7, true}};
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        json_t *options = options_of("{\"cpu_hour\":2,\"gpu_hour\":10,\"together\":1," SIX "}"),
               *run = new_run(), *now;
        json_object_set_new(options, "cost", json_real(cases[i].cost));
        work(run, now = decide(options, run), NULL);
        json_decref(now);
        json_object_set_new(run, "cpu_s", json_real(1800));
        json_object_set_new(run, "gpu_s", json_real(1800));
        now = decide(options, run);
        assert_true(fabs(mlo_json_f64(json_object_get(now, "used"), "cost", 0) - 6) < 1e-9);
        assert_int_equal(mlo_json_i64(now, "rung", 0), cases[i].ends ? MLO_RUNG_EVALUATE : MLO_RUNG_SCREEN);
        assert_int_equal(strstr(mlo_json_str(now, "stopped", ""), "the budget of cost") != NULL,
                         cases[i].ends);
        json_decref(now);
        json_decref(run);
        json_decref(options);
    }
    struct mlo_error err = {0};
    json_t *options = options_of("{\"cost\":5}");
    assert_int_equal(mlo_search_check(options, &err), MLO_EINVAL);
    assert_non_null(strstr(err.hint, "cpu_hour"));
    json_decref(options);
}

/* Nothing is left to do on the rest of the data where there is none: no budget is to blame for that. */
static void test_decide__blames_no_budget_where_all_was_judged(void **state)
{
    MLO_UNUSED(state);
    json_t *options = options_of("{\"time\":\"1000s\"," WORLD "}"), *run = new_run(),
           *end = search_apart(options, run, (struct world){.whole = true});
    assert_string_equal(mlo_json_str(end, "stopped", "?"), "");
    assert_true(blocks_in(run, "evaluate", MLO_RUNG_EVALUATE) > 0);
    /* as it was when its screen ended, with all of the time used */
    json_t *jobs = json_object_get(run, "jobs");
    for (size_t i = json_array_size(jobs); i-- > 0;)
        if (strcmp(mlo_json_str(json_array_get(jobs, i), "step", ""), "evaluate") == 0)
            json_array_remove(jobs, i);
    json_object_set_new(run, "elapsed_s", json_real(990));
    json_decref(end);
    end = decide(options, run);
    assert_int_equal(mlo_json_i64(end, "rung", 0), MLO_RUNG_EVALUATE);
    assert_null(strstr(mlo_json_str(end, "stopped", "?"), "a part of the select data"));
    json_decref(end);
    json_decref(run);
    json_decref(options);
}

static void test_decide__why_is_cut_as_text(void **state)
{
    MLO_UNUSED(state);
    json_t *options = options_of("{\"precision\":[\"float\"]}");
    for (int shift = 0; shift < 2; shift++) {
        char message[302] = "x";
        for (int i = 0; i < 150; i++)
            memcpy(message + shift + (size_t)2 * (size_t)i, "\xc3\xa4", 2);
        message[shift + 300] = '\0';
        json_t *run = new_run(), *end;
        json_t *job =
            json_pack("{s:s, s:s, s:{s:s, s:i}, s:{s:s}}", "step", "optimize", "state", "failed", "spec",
                      "candidate", "float", "rung", MLO_RUNG_SCREEN, "error", "message", message);
        assert_non_null(job);
        json_array_append_new(json_object_get(run, "jobs"), job);
        end = decide(options, run);
        assert_non_null(strstr(mlo_json_str(end, "why", ""), "no candidate could be made and measured: "));
        json_decref(end);
        json_decref(run);
    }
    json_decref(options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decide__halves_and_ends_on_the_front),
        cmocka_unit_test(test_decide__keeps_budgets),
        cmocka_unit_test(test_decide__without_what_failed),
        cmocka_unit_test(test_decide__names_nothing_that_was_not_evaluated),
        cmocka_unit_test(test_decide__has_no_second_rung_where_there_is_no_more_data),
        cmocka_unit_test(test_decide__keeps_a_budget_of_money),
        cmocka_unit_test(test_decide__blames_no_budget_where_all_was_judged),
        cmocka_unit_test(test_decide__why_is_cut_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
