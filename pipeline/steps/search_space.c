/* The candidates of a search: every combination of what its knobs may be, each a chain of deriving steps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/search_impl.h"
#include "pipeline/steps/step_impl.h"

/* One combination: texts are borrowed, but for a share between two that are listed. */
struct combination {
    const char *prune, *precision, *sparsity, *calibrator, *rounding, *mixed;
    int64_t round, first_round, threads, first_threads;
    bool between;
};

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
    for (char *c = name + used; *c; c++) { /* "30%", "0.5 pt", "2:4" */
        if (*c == ':')
            *c = '-';
        if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789.-", *c)) {
            memmove(c, c + 1, strlen(c));
            c--;
        }
    }
}

static void add_number(char *name, size_t size, const char *prefix, int64_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)number);
    add_name(name, size, prefix, text);
}

/* What pruning leaves; a plain model is folded and fused. */
static enum mlo_status add_shape(const struct combination *c, json_t *steps, char *name, size_t size,
                                 struct mlo_error *err)
{
    if (strcmp(c->prune, "none") == 0)
        return mlo_search_add_step(steps, "optimize", json_object(), err);
    add_name(name, size, "prune", c->prune);
    if (c->round != c->first_round)
        add_number(name, size, "round", c->round);
    char remove[40];
    snprintf(remove, sizeof remove, "%.*s", (int)strcspn(c->prune, " "), c->prune);
    json_t *given =
        json_pack("{s:s, s:s, s:s, s:s, s:I}", "remove", remove, "criterion", "second-order", "ratios",
                  "sensitivity", "reconstruct", "least-squares", "round", (json_int_t)c->round);
    if (given && strchr(c->prune, ' ') && json_object_set_new(given, "of", json_string("weights")) != 0) {
        json_decref(given);
        given = NULL;
    }
    /* wide kernels want two blocks of channels on both sides (docs/pruning.md) */
    if (given && c->round >= 16 &&
        json_object_set_new(given, "min_channels", json_integer(2 * c->round)) != 0) {
        json_decref(given);
        given = NULL;
    }
    return mlo_search_add_step(steps, "prune", given, err);
}

static enum mlo_status add_form(const json_t *options, const struct combination *c, json_t *steps, char *name,
                                size_t size, struct mlo_error *err)
{
    const struct mlo_search_precision *p = mlo_search_precision_find(c->precision);
    json_t *given = NULL;
    if (!p->step) {
        add_name(name, size, "", p->name);
        return MLO_OK;
    }
    enum mlo_status status =
        mlo_json_parse(p->options, strlen(p->options), "a precision's options", &given, err);
    if (status != MLO_OK)
        return status;
    if (p->sparse) {
        bool by_pattern = strcmp(c->sparsity, "2:4") == 0;
        add_name(name, size, p->name, c->sparsity);
        json_object_set_new(given, by_pattern ? "pattern" : "sparsity", json_string(c->sparsity));
        return mlo_search_add_step(steps, p->step, given, err);
    }
    add_name(name, size, "", p->name);
    if (p->calibrates) {
        add_name(name, size, "", c->calibrator);
        if (strcmp(c->rounding, "nearest") != 0)
            add_name(name, size, "", c->rounding);
        if (strcmp(c->mixed, "none") != 0)
            add_name(name, size, "mixed", c->mixed);
        json_object_set_new(given, "calibrator", json_string(c->calibrator));
        json_object_set_new(given, "rounding", json_string(c->rounding));
        json_object_set_new(given, "accuracy_drop", json_string(c->mixed));
        json_object_set_new(given, "metric", json_string(mlo_json_str(options, "metric", "top1")));
    }
    return mlo_search_add_step(steps, p->step, given, err);
}

static enum mlo_status make_candidate(const json_t *options, const struct combination *c, json_t **out,
                                      struct mlo_error *err)
{
    enum mlo_status status;
    char shape[96] = "", form[96] = "", name[96] = "";
    bool of_weights;
    double share = mlo_search_pruned(c->prune, &of_weights), sparsity = mlo_search_share(c->sparsity);
    if (sparsity < 0)
        sparsity = 0.5; /* 2:4 */
    json_t *steps = json_array();
    if (!steps)
        return mlo_error_nomem(err);
    MLO_TRY(add_shape(c, steps, shape, sizeof shape, err));
    MLO_TRY(add_form(options, c, steps, form, sizeof form, err));
    if (*shape)
        add_name(name, sizeof name, "", shape);
    add_name(name, sizeof name, "", form);
    if (c->threads != c->first_threads)
        add_number(name, sizeof name, "threads", c->threads);
    *out = json_pack("{s:s, s:s, s:s, s:s, s:f, s:b, s:f, s:I, s:I, s:b, s:O}", "name", name, "shape", shape,
                     "form", form, "precision", c->precision, "share", MLO_MAX(share, 0.0), "of_weights",
                     of_weights, "sparsity", sparsity, "round", (json_int_t)c->round, "threads",
                     (json_int_t)c->threads, "between", c->between, "steps", steps);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(steps);
    return status;
}

static bool same_candidate(const json_t *a, const json_t *b)
{
    return json_equal(json_object_get(a, "steps"), json_object_get(b, "steps")) &&
           mlo_json_i64(a, "threads", 1) == mlo_json_i64(b, "threads", 1);
}

/* Appends it where no other is the same. Jobs are known by their candidate's name: no two have one. */
static enum mlo_status add_candidate(json_t *all, json_t *candidate, struct mlo_error *err)
{
    const json_t *other;
    const char *name = mlo_json_str(candidate, "name", "");
    size_t i;
    json_array_foreach(all, i, other)
    {
        if (same_candidate(other, candidate))
            return MLO_OK;
        if (strcmp(mlo_json_str(other, "name", ""), name) != 0)
            continue;
        mlo_error_set(err, MLO_EINVAL, "two candidates of the search come to the same name, '%.96s'", name);
        mlo_error_hint(err, "list each value once, in one spelling: 30%% and 0.3pt");
        return MLO_EINVAL;
    }
    return json_array_append(all, candidate) == 0 ? MLO_OK : mlo_error_nomem(err);
}

static const json_t *value_at(const json_t *options, enum mlo_search_knob knob, const size_t index[MLO_KNOBS])
{
    return json_array_get(json_object_get(options, mlo_search_knob_names[knob]), index[knob]);
}

static const char *text_at(const json_t *options, enum mlo_search_knob knob, const size_t index[MLO_KNOBS])
{
    return json_string_value(value_at(options, knob, index));
}

static struct combination combination_of(const json_t *options, const size_t index[MLO_KNOBS])
{
    static const size_t first[MLO_KNOBS] = {0};
    return (struct combination){
        .prune = text_at(options, MLO_KNOB_PRUNE, index),
        .precision = text_at(options, MLO_KNOB_PRECISION, index),
        .sparsity = text_at(options, MLO_KNOB_SPARSITY, index),
        .calibrator = text_at(options, MLO_KNOB_CALIBRATOR, index),
        .rounding = text_at(options, MLO_KNOB_ROUNDING, index),
        .mixed = text_at(options, MLO_KNOB_MIXED, index),
        .round = json_integer_value(value_at(options, MLO_KNOB_ROUND, index)),
        .first_round = json_integer_value(value_at(options, MLO_KNOB_ROUND, first)),
        .threads = json_integer_value(value_at(options, MLO_KNOB_THREADS, index)),
        .first_threads = json_integer_value(value_at(options, MLO_KNOB_THREADS, first)),
    };
}

/* The indices of the combination after this one; false after the last. */
static bool next_combination(const size_t counts[MLO_KNOBS], size_t index[MLO_KNOBS])
{
    for (int k = 0; k < MLO_KNOBS; k++) {
        if (++index[k] < counts[k])
            return true;
        index[k] = 0;
    }
    return false;
}

static enum mlo_status add_combination(const json_t *options, const struct combination *c, json_t *all,
                                       struct mlo_error *err)
{
    json_t *one = NULL;
    enum mlo_status status = make_candidate(options, c, &one, err);
    if (status == MLO_OK)
        status = add_candidate(all, one, err);
    json_decref(one);
    return status;
}

/* What is listed first stands first, of all knobs alike: by the sum of places. */
static enum mlo_status add_listed(const json_t *options, const size_t counts[MLO_KNOBS], size_t most,
                                  json_t *all, struct mlo_error *err)
{
    for (size_t sum = 0; sum <= most; sum++) {
        size_t index[MLO_KNOBS] = {0};
        do {
            size_t places = 0;
            for (int k = 0; k < MLO_KNOBS; k++)
                places += index[k];
            if (places != sum)
                continue;
            struct combination c = combination_of(options, index);
            enum mlo_status status = add_combination(options, &c, all, err);
            if (status != MLO_OK)
                return status;
            if (json_array_size(all) > MLO_SEARCH_CANDIDATES) {
                mlo_error_set(err, MLO_ETOOBIG, "the knobs of the search make more than %d candidates",
                              MLO_SEARCH_CANDIDATES);
                mlo_error_hint(err, "list fewer values");
                return MLO_ETOOBIG;
            }
        } while (next_combination(counts, index));
    }
    return MLO_OK;
}

/* --- between ------------------------------------------------------------------------------------------- */

enum { HALVINGS = 2, SHARES = 64 };

static int by_number(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The shares of multiply-adds that are listed, and 0 for none, in order. */
static size_t listed_shares(const json_t *options, double shares[SHARES])
{
    const json_t *list = json_object_get(options, mlo_search_knob_names[MLO_KNOB_PRUNE]);
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list) && n < SHARES / 4; i++) {
        bool of_weights;
        double share = mlo_search_pruned(json_string_value(json_array_get(list, i)), &of_weights);
        if (!of_weights)
            shares[n++] = MLO_MAX(share, 0.0);
    }
    qsort(shares, n, sizeof shares[0], by_number);
    return n;
}

/* Every combination with this share in place of the first that is listed. */
static enum mlo_status add_share(const json_t *options, const size_t counts[MLO_KNOBS], double share,
                                 json_t *all, struct mlo_error *err)
{
    char text[32];
    size_t index[MLO_KNOBS] = {0}, own[MLO_KNOBS];
    snprintf(text, sizeof text, "%.6g%%", 100 * share);
    memcpy(own, counts, sizeof own);
    own[MLO_KNOB_PRUNE] = 1;
    do {
        struct combination c = combination_of(options, index);
        c.prune = text;
        c.between = true;
        if (json_array_size(all) == MLO_SEARCH_CANDIDATES)
            return MLO_OK;
        enum mlo_status status = add_combination(options, &c, all, err);
        if (status != MLO_OK)
            return status;
    } while (next_combination(own, index));
    return MLO_OK;
}

/* The middle of every two neighbours, then that of every two of the shares there are then. */
static enum mlo_status add_between(const json_t *options, const size_t counts[MLO_KNOBS], json_t *all,
                                   struct mlo_error *err)
{
    double shares[SHARES];
    size_t n = listed_shares(options, shares);
    for (int k = 0; k < HALVINGS; k++) {
        size_t before = n;
        for (size_t i = 0; i + 1 < before && n < SHARES; i++) {
            if (shares[i] == shares[i + 1])
                continue;
            shares[n] = (shares[i] + shares[i + 1]) / 2;
            enum mlo_status status = add_share(options, counts, shares[n++], all, err);
            if (status != MLO_OK)
                return status;
        }
        qsort(shares, n, sizeof shares[0], by_number);
    }
    return MLO_OK;
}

enum mlo_status mlo_search_space(const json_t *options, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t counts[MLO_KNOBS], total = 1, most = 0;
    json_t *all = json_array();
    if (!all)
        return mlo_error_nomem(err);
    for (int k = 0; k < MLO_KNOBS; k++) {
        MLO_TRY(mlo_search_check_knob(options, (enum mlo_search_knob)k, err));
        counts[k] = json_array_size(json_object_get(options, mlo_search_knob_names[k]));
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
    MLO_TRY(add_listed(options, counts, most, all, err));
    if (mlo_json_bool(options, "foresee", false))
        MLO_TRY(add_between(options, counts, all, err));
    *out = json_incref(all);
out:
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
    if (mlo_json_f64(options, "cost", 0) > 0 && mlo_json_f64(options, "cpu_hour", 0) == 0 &&
        mlo_json_f64(options, "gpu_hour", 0) == 0) {
        status = mlo_error_set(err, MLO_EINVAL, "the search has a budget of money, and nothing has a price");
        mlo_error_where(err, "option 'cost'");
        mlo_error_hint(err, "say what an hour costs: cpu_hour: 0.04, gpu_hour: 2.5");
        goto out;
    }
    MLO_TRY(mlo_search_space(options, &space, err));
out:
    json_decref(space);
    return status;
}
