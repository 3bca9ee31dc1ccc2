/* The candidates of a search: every combination of what its knobs may be, each a chain of deriving steps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/search_impl.h"
#include "pipeline/steps/step_impl.h"

enum { K_PRUNE, K_PRECISION, K_CALIBRATOR, K_ROUNDING, K_MIXED, KNOBS };
static const char *const KNOB_NAMES[KNOBS] = {"prune", "precision", "calibrator", "rounding", "mixed"};

/* What a precision is made by; `form`: the options that it has beside those of other knobs. */
static const struct precision {
    const char *name, *step; /* NULL: floats stay */
    const char *options;     /* JSON */
    bool calibrates;         /* the knobs calibrator, rounding and mixed change it */
} PRECISIONS[] = {
    {"float", NULL, NULL, false},
    {"fp16", "to-float16", "{\"type\":\"float16\",\"keep_io\":true}", false},
    {"int8", "quantize",
     "{\"scheme\":\"int8\",\"form\":\"qdq\",\"per_channel\":true,\"bias_correction\":\"full\"}", true},
    {"int8-dynamic", "quantize-dynamic", "{\"type\":\"int8\",\"per_channel\":true}", false},
    {"int8-weights", "quantize-weights", "{\"type\":\"int8\",\"block\":0}", false},
    {"int4-weights", "quantize-weights", "{\"type\":\"int4\",\"block\":32,\"form\":\"qdq\"}", false},
};

static const struct precision *find_precision(const char *name)
{
    return mlo_named_row(name, PRECISIONS, MLO_COUNT(PRECISIONS), sizeof PRECISIONS[0]);
}

static const char *value_of(const json_t *options, int knob, const size_t index[KNOBS])
{
    return json_string_value(json_array_get(json_object_get(options, KNOB_NAMES[knob]), index[knob]));
}

enum mlo_status mlo_search_add_step(json_t *steps, const char *name, json_t *given, struct mlo_error *err)
{
    const struct mlo_step *step = mlo_step_find(name);
    json_t *resolved = NULL;
    enum mlo_status status =
        given ? mlo_options_resolve(step->options, given, &resolved, err) : mlo_error_nomem(err);
    if (status == MLO_OK &&
        json_array_append_new(steps, json_pack("{s:s, s:O}", "step", name, "options", resolved)) != 0)
        status = mlo_error_nomem(err);
    json_decref(given);
    json_decref(resolved);
    return status;
}

static void add_name(char *name, size_t size, const char *prefix, const char *part)
{
    size_t used = strlen(name);
    snprintf(name + used, size - used, "%s%s%s", used ? "-" : "", prefix, part);
    for (char *c = name + used; *c; c++) /* "30%", "0.5 pt" */
        if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789.-", *c)) {
            memmove(c, c + 1, strlen(c));
            c--;
        }
}

static enum mlo_status add_precision(const json_t *options, const size_t index[KNOBS], json_t *steps,
                                     char *name, size_t size, struct mlo_error *err)
{
    const struct precision *p = find_precision(value_of(options, K_PRECISION, index));
    json_t *given = NULL;
    add_name(name, size, "", p->name);
    if (!p->step)
        return MLO_OK;
    enum mlo_status status =
        mlo_json_parse(p->options, strlen(p->options), "a precision's options", &given, err);
    if (status != MLO_OK)
        return status;
    if (p->calibrates) {
        const char *calibrator = value_of(options, K_CALIBRATOR, index),
                   *rounding = value_of(options, K_ROUNDING, index),
                   *mixed = value_of(options, K_MIXED, index);
        add_name(name, size, "", calibrator);
        if (strcmp(rounding, "nearest") != 0)
            add_name(name, size, "", rounding);
        if (strcmp(mixed, "none") != 0)
            add_name(name, size, "mixed", mixed);
        json_object_set_new(given, "calibrator", json_string(calibrator));
        json_object_set_new(given, "rounding", json_string(rounding));
        json_object_set_new(given, "accuracy_drop", json_string(mixed));
        json_object_set_new(given, "metric", json_string(mlo_json_str(options, "metric", "top1")));
    }
    return mlo_search_add_step(steps, p->step, given, err);
}

static enum mlo_status make_candidate(const json_t *options, const size_t index[KNOBS], json_t **out,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char name[96] = "";
    const char *prune = value_of(options, K_PRUNE, index);
    json_t *steps = json_array();
    if (!steps)
        return mlo_error_nomem(err);
    if (strcmp(prune, "none") != 0) {
        add_name(name, sizeof name, "prune", prune);
        MLO_TRY(mlo_search_add_step(steps, "prune",
                                    json_pack("{s:s, s:s, s:s, s:s}", "remove", prune, "criterion",
                                              "second-order", "ratios", "sensitivity", "reconstruct",
                                              "least-squares"),
                                    err));
    }
    MLO_TRY(mlo_search_add_step(steps, "optimize", json_object(), err));
    MLO_TRY(add_precision(options, index, steps, name, sizeof name, err));
    *out = json_pack("{s:s, s:O}", "name", name, "steps", steps);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(steps);
    return status;
}

/* Appends it where no other has its steps. Jobs are known by their candidate's name: no two have one. */
static enum mlo_status add_candidate(json_t *all, json_t *candidate, struct mlo_error *err)
{
    const json_t *other;
    const char *name = mlo_json_str(candidate, "name", "");
    size_t i;
    json_array_foreach(all, i, other)
    {
        if (json_equal(json_object_get(other, "steps"), json_object_get(candidate, "steps")))
            return MLO_OK;
        if (strcmp(mlo_json_str(other, "name", ""), name) != 0)
            continue;
        mlo_error_set(err, MLO_EINVAL, "two candidates of the search come to the same name, '%.96s'", name);
        mlo_error_hint(err, "list each value once, in one spelling: 30%% and 0.3pt");
        return MLO_EINVAL;
    }
    return json_array_append(all, candidate) == 0 ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status bad_value(struct mlo_error *err, int knob, const char *value, const char *form)
{
    mlo_error_set(err, MLO_EINVAL, "the knob '%s' cannot be '%.60s'", KNOB_NAMES[knob], value);
    mlo_error_where(err, "option '%s'", KNOB_NAMES[knob]);
    mlo_error_hint(err, "%s", form);
    return MLO_EINVAL;
}

static bool is_share(const char *text)
{
    char number[32];
    double share;
    size_t n = strlen(text);
    if (n < 2 || n >= sizeof number || text[n - 1] != '%')
        return false;
    snprintf(number, sizeof number, "%.*s", (int)n - 1, text);
    return mlo_str_to_f64(number, &share) && share > 0 && share < 100;
}

static enum mlo_status check_knob(const json_t *options, int knob, struct mlo_error *err)
{
    static const char *const budget_form = "write none, or points such as 0.3pt";
    const json_t *list = json_object_get(options, KNOB_NAMES[knob]);
    const char *names[MLO_COUNT(PRECISIONS)];
    struct mlo_condition budget;
    struct mlo_error ignored = {0};
    char text[96];
    for (size_t i = 0; i < MLO_COUNT(PRECISIONS); i++)
        names[i] = PRECISIONS[i].name;
    if (json_array_size(list) == 0)
        return bad_value(err, knob, "", "name one value at least; none, where it should not be used");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *value = json_string_value(json_array_get(list, i));
        snprintf(text, sizeof text, "accuracy_drop<=%.60s", value);
        if (knob == K_PRUNE && strcmp(value, "none") != 0 && !is_share(value))
            return bad_value(err, knob, value,
                             "write none, or the share of the multiply-adds that goes: 30%");
        if (knob == K_PRECISION && !find_precision(value)) {
            bad_value(err, knob, value, "");
            if (!mlo_error_suggest(err, value, names, MLO_COUNT(names)))
                mlo_error_hint(err, "known are float, fp16, int8, int8-dynamic, int8-weights, int4-weights");
            return MLO_EINVAL;
        }
        if (knob == K_MIXED && strcmp(value, "none") != 0 &&
            (!mlo_str_ends(value, "pt") || mlo_condition_parse(text, &budget, &ignored) != MLO_OK))
            return bad_value(err, knob, value, budget_form);
    }
    return MLO_OK;
}

/* The indices of the combination after this one; false after the last. */
static bool next_combination(const size_t counts[KNOBS], size_t index[KNOBS])
{
    for (int k = KNOBS - 1; k >= 0; k--) {
        if (++index[k] < counts[k])
            return true;
        index[k] = 0;
    }
    return false;
}

enum mlo_status mlo_search_space(const json_t *options, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t counts[KNOBS], total = 1, most = 0;
    json_t *all = json_array(), *one = NULL;
    if (!all)
        return mlo_error_nomem(err);
    for (int k = 0; k < KNOBS; k++) {
        MLO_TRY(check_knob(options, k, err));
        counts[k] = json_array_size(json_object_get(options, KNOB_NAMES[k]));
        most += counts[k];
        total *= MLO_MIN(counts[k], (size_t)4096);
        if (total > 65536)
            break;
    }
    if (total > 65536) {
        status =
            mlo_error_set(err, MLO_ETOOBIG, "the knobs of the search have more than 65,536 combinations");
        goto out;
    }
    /* what is listed first is tried first, of all knobs alike: by the sum of places */
    for (size_t sum = 0; sum <= most; sum++) {
        size_t index[KNOBS] = {0};
        do {
            size_t places = 0;
            for (int k = 0; k < KNOBS; k++)
                places += index[k];
            if (places != sum)
                continue;
            MLO_TRY(make_candidate(options, index, &one, err));
            MLO_TRY(add_candidate(all, one, err));
            json_decref(one);
            one = NULL;
            if (json_array_size(all) > MLO_SEARCH_CANDIDATES) {
                status =
                    mlo_error_set(err, MLO_ETOOBIG, "the knobs of the search make more than %d candidates",
                                  MLO_SEARCH_CANDIDATES);
                mlo_error_hint(err, "list fewer values");
                goto out;
            }
        } while (next_combination(counts, index));
    }
    *out = json_incref(all);
out:
    json_decref(one);
    json_decref(all);
    return status;
}

enum mlo_status mlo_search_check(const json_t *options, struct mlo_error *err)
{
    enum mlo_status status;
    static const char *const times[] = {"time", "cpu"};
    struct mlo_goal goal;
    struct mlo_metric_use metric;
    json_t *space = NULL;
    uint64_t seconds;
    MLO_TRY(mlo_goal_parse(mlo_json_str(options, "goal", ""), &goal, err));
    status = mlo_metric_find(mlo_json_str(options, "metric", ""), &metric, err);
    if (status != MLO_OK) {
        mlo_error_where(err, "option 'metric'");
        goto out;
    }
    if ((metric.row->needs & MLO_METRIC_REFERENCE) && strcmp(metric.row->name, "agreement") != 0) {
        status = mlo_error_set(
            err, MLO_EINVAL, "a search cannot go by '%s': the source itself has no value of it", metric.name);
        mlo_error_where(err, "option 'metric'");
        mlo_error_hint(err, "without labels write agreement");
        goto out;
    }
    for (size_t i = 0; i < MLO_COUNT(times); i++) {
        const char *text = mlo_json_str(options, times[i], "none");
        if (strcmp(text, "none") == 0 || (mlo_str_to_seconds(text, &seconds) && seconds > 0))
            continue;
        status = mlo_error_set(err, MLO_EINVAL, "the search's %s budget '%.40s' is no time", times[i], text);
        mlo_error_where(err, "option '%s'", times[i]);
        mlo_error_hint(err, "write 30m, 2h or 1h30m, or none");
        goto out;
    }
    MLO_TRY(mlo_search_space(options, &space, err));
out:
    json_decref(space);
    return status;
}
