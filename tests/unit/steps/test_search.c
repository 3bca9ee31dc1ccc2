/* What a search chooses: goals, the order of points, candidates, rungs and budgets. */
#include "tests/cm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/search_impl.h"

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

/* --- the choice ---------------------------------------------------------------------------------------- */

static json_t *options_of(const char *text)
{
    struct mlo_error err = {0};
    json_t *given = NULL, *options = NULL;
    assert_ok(mlo_json_parse(text, strlen(text), "options", &given, &err));
    assert_ok(mlo_options_resolve(mlo_step_find("search")->options, given, &options, &err));
    json_decref(given);
    return options;
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

static json_t *bounds(double value)
{
    return json_pack("{s:f, s:f, s:f}", "value", value, "low", value, "high", value);
}

static json_t *seen(const char *metric, const char *kind, double against, double value)
{
    return json_pack("{s:s, s:s, s:f, s:f, s:f, s:i, s:{s:s, s:o}}", "subject", "variant", "metric", metric,
                     "value", value, "low", value, "high", value, "n", 100, "against", "subject", "source",
                     kind, bounds(against));
}

/* Of the first samples alone, as long as a rung does not ask for all. */
static json_t *lost(double drop, int rung)
{
    json_t *out = seen("top1", "difference", -drop, 0.9);
    if (rung == MLO_RUNG_SCREEN)
        json_object_set_new(out, "params", json_pack("{s:i}", "samples", 100));
    return out;
}

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

static json_t *new_run(void)
{
    return json_pack("{s:f, s:f, s:i, s:[]}", "elapsed_s", 1.0, "cpu_s", 1.0, "source_bytes", 1000, "jobs");
}

static json_t *decide(const json_t *options, const json_t *run)
{
    struct mlo_error err = {0};
    json_t *decision = NULL, *again = NULL;
    assert_ok(mlo_search_decide(options, run, &decision, &err));
    assert_ok(mlo_search_decide(options, run, &again, &err));
    assert_true(json_equal(decision, again)); /* the same of the same */
    json_decref(again);
    return decision;
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

/* --- what is foreseen ---------------------------------------------------------------------------------- */

#define WORLD                                                                                                \
    "\"goal\":\"accuracy_drop<=0.8pt, min latency\",\"prune\":[\"none\",\"25%\",\"50%\"],"                   \
    "\"precision\":[\"float\",\"int8-weights\",\"int8-dynamic\"]"

/* What goes otherwise: candidates whose names hold this fail, later rungs measure so many times the latency,
 * and all are judged on all of the data at once. */
struct world {
    const char *failing;
    double later;
    bool whole;
    double integers; /* the drop by integers; 0: a tenth of a point */
};

/* A world in which shape and form know nothing of each other: two points are lost by pruning all of it, and a
 * tenth by integers; dynamic ones are slow. The source takes 100 us, and 150 at the 99th percentile. */
static void work_apart(json_t *run, const json_t *decision, struct world w)
{
    json_t *jobs = json_object_get(run, "jobs"), *block, *step;
    size_t i, k;
    json_array_append_new(jobs,
                          json_pack("{s:s, s:s, s:{}}", "step", "search", "state", "succeeded", "spec"));
    json_array_foreach(json_object_get(decision, "next"), i, block)
    {
        const char *name = mlo_json_str(block, "candidate", "");
        double share = strncmp(name, "prune", 5) == 0 ? strtod(name + 5, NULL) / 100 : 0;
        bool integers = strstr(name, "int8") != NULL, slow = strstr(name, "dynamic") != NULL;
        double least = w.integers > 0 ? w.integers : 0.001;
        double drop = 0.02 * share + (integers ? least : 0), latency = (1 - share) * (slow ? 2 : 1);
        bool fails = w.failing && strstr(name, w.failing);
        if (w.later > 0 && mlo_json_i64(block, "rung", 0) > MLO_RUNG_SCREEN)
            latency *= w.later;
        json_array_foreach(json_object_get(block, "steps"), k, step)
        {
            const char *what = mlo_json_str(step, "step", "");
            json_t *all = json_array();
            if (strcmp(what, "trial") == 0 || strcmp(what, "evaluate") == 0)
                json_array_append_new(all, lost(drop, w.whole ? 0 : (int)mlo_json_i64(block, "rung", 0)));
            if (strcmp(what, "trial") == 0) {
                json_array_append_new(all, seen("latency.p50", "ratio", latency, 100 * latency));
                json_array_append_new(all, seen("latency.p99", "ratio", latency, 150 * latency));
            }
            json_array_append_new(jobs,
                                  json_pack("{s:s, s:s, s:{s:s, s:O}, s:s, s:i, s:{s:o}}", "step", what,
                                            "state", fails ? "failed" : "succeeded", "spec", "candidate",
                                            name, "rung", json_object_get(block, "rung"), "output", name,
                                            "size", (int)(1000 * (1 - share) * (integers ? 0.3 : 1)),
                                            "result", "observations", all));
        }
    }
}

static json_t *search_apart(const json_t *options, json_t *run, struct world w)
{
    for (int i = 1; i < 100; i++) {
        json_t *now = decide(options, run);
        if (mlo_json_bool(now, "done", false))
            return now;
        work_apart(run, now, w);
        json_decref(now);
    }
    fail_msg("no end");
    return NULL;
}

static const json_t *point_named(const json_t *decision, const char *name)
{
    const json_t *point;
    size_t i;
    json_array_foreach(json_object_get(decision, "points"), i, point)
    {
        if (strcmp(mlo_json_str(point, "name", ""), name) == 0)
            return point;
    }
    return NULL;
}

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
        cmocka_unit_test(test_goal__parses),
        cmocka_unit_test(test_goal__what_it_is_not),
        cmocka_unit_test(test_pareto__ties_and_intervals),
        cmocka_unit_test(test_goal__orders_points),
        cmocka_unit_test(test_space__is_each_combination_once),
        cmocka_unit_test(test_space__prunes_weights_too),
        cmocka_unit_test(test_space__makes_what_the_recipe_makes),
        cmocka_unit_test(test_decide__halves_and_ends_on_the_front),
        cmocka_unit_test(test_decide__keeps_budgets),
        cmocka_unit_test(test_decide__without_what_failed),
        cmocka_unit_test(test_decide__names_nothing_that_was_not_evaluated),
        cmocka_unit_test(test_foresee__tries_values_alone_and_then_what_they_promise),
        cmocka_unit_test(test_foresee__tries_more_bits_beside_the_best),
        cmocka_unit_test(test_foresee__is_what_comes_of_it),
        cmocka_unit_test(test_foresee__goes_on_where_what_is_first_fails),
        cmocka_unit_test(test_foresee__blames_no_budget_for_what_later_rungs_say),
        cmocka_unit_test(test_decide__has_no_second_rung_where_there_is_no_more_data),
        cmocka_unit_test(test_foresee__finds_the_smallest_that_loses_nothing),
        cmocka_unit_test(test_decide__keeps_a_budget_of_money),
        cmocka_unit_test(test_decide__blames_no_budget_where_all_was_judged),
        cmocka_unit_test(test_points__know_which_machines_multiply_integers),
        cmocka_unit_test(test_volume__is_of_what_is_reached),
        cmocka_unit_test(test_decide__why_is_cut_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
