/* Searches without jobs: options, what a run did, and a made-up world that does what was chosen. */
#ifndef MLO_TESTS_SEARCH_FIXTURE_H
#define MLO_TESTS_SEARCH_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/search_impl.h"
#include "tests/cm.h"

static inline json_t *options_of(const char *text)
{
    struct mlo_error err = {0};
    json_t *given = NULL, *options = NULL;
    assert_ok(mlo_json_parse(text, strlen(text), "options", &given, &err));
    assert_ok(mlo_options_resolve(mlo_step_find("search")->options, given, &options, &err));
    json_decref(given);
    return options;
}

static inline json_t *bounds(double value)
{
    return json_pack("{s:f, s:f, s:f}", "value", value, "low", value, "high", value);
}

static inline json_t *seen(const char *metric, const char *kind, double against, double value)
{
    return json_pack("{s:s, s:s, s:f, s:f, s:f, s:i, s:{s:s, s:o}}", "subject", "variant", "metric", metric,
                     "value", value, "low", value, "high", value, "n", 100, "against", "subject", "source",
                     kind, bounds(against));
}

/* Of the first samples alone, as long as a rung does not ask for all. */
static inline json_t *lost(double drop, int rung)
{
    json_t *out = seen("top1", "difference", -drop, 0.9);
    if (rung == MLO_RUNG_SCREEN)
        json_object_set_new(out, "params", json_pack("{s:i}", "samples", 100));
    return out;
}

static inline json_t *new_run(void)
{
    return json_pack("{s:f, s:f, s:i, s:[]}", "elapsed_s", 1.0, "cpu_s", 1.0, "source_bytes", 1000, "jobs");
}

static inline json_t *decide(const json_t *options, const json_t *run)
{
    struct mlo_error err = {0};
    json_t *decision = NULL, *again = NULL;
    assert_ok(mlo_search_decide(options, run, &decision, &err));
    assert_ok(mlo_search_decide(options, run, &again, &err));
    assert_true(json_equal(decision, again)); /* the same of the same */
    json_decref(again);
    return decision;
}

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
static inline void work_apart(json_t *run, const json_t *decision, struct world w)
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

static inline json_t *search_apart(const json_t *options, json_t *run, struct world w)
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

static inline const json_t *point_named(const json_t *decision, const char *name)
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

#endif
