/* Mixed precision within a budget of accuracy: which nodes go back to float. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/condition.h"
#include "pipeline/steps/decision.h"
#include "pipeline/steps/sensitivity.h"

/* So many nodes, at most, are tried in integers again once the budget holds. */
enum { TAKE_BACK = 8 };

enum mlo_status mlo_budget_parse(const char *text, double *out, struct mlo_error *err)
{
    char condition[96];
    struct mlo_condition c;
    snprintf(condition, sizeof condition, "drop <= %.60s", text);
    if (mlo_condition_parse(condition, &c, NULL) != MLO_OK || c.base[0] || !(c.offset >= 0)) {
        mlo_error_set(err, MLO_EINVAL, "'%.60s' is no budget of accuracy", text);
        mlo_error_where(err, "option 'accuracy_drop'");
        mlo_error_hint(err,
                       "write for example 0.5pt for half a percentage point, or a number in the metric's "
                       "unit");
        return MLO_EINVAL;
    }
    *out = c.offset;
    return MLO_OK;
}

struct mix {
    const struct mlo_mix_request *request;
    const struct mlo_judge *judge;
    const struct mlo_quantize_precision *ladder; /* the last of them is float */
    unsigned char steps;                         /* of the ladder */
    double budget;
    struct mlo_sensitivity ranking;
    struct mlo_sensitivity_row *rows; /* the ranking's, in the order in which they are given back */
    size_t count;
    unsigned char *level; /* by row: the set that is tried; 0: integers, k: ladder[k - 1] */
    json_t *trail;        /* what was tried */
    uint64_t deadline_ns; /* 0: none */
    bool late;            /* it passed, and something was left out for it */
    bool over;            /* nothing is left to try */
    struct mlo_estimate all_integer;
    /* The best mix so far. */
    struct mlo_estimate best;
    bool best_holds;
    size_t best_count;
    double best_cost; /* of its nodes that were given back */
    unsigned char *best_level;
};

static json_t *decision_of(const struct mix *mix);

static size_t set_size(const struct mix *mix)
{
    size_t size = 0;
    for (size_t i = 0; i < mix->count; i++)
        size += mix->level[i] > 0;
    return size;
}

/* What the nodes that were given back cost: multiply-adds, as many of float32. */
static double cost_of(const struct mix *mix)
{
    double cost = 0;
    for (size_t i = 0; i < mix->count; i++)
        cost += mix->level[i] ? mix->rows[i].macs * mix->ladder[mix->level[i] - 1].cost : 0;
    return cost;
}

/* {node: precision} of the present set. */
static json_t *set_json(const struct mix *mix)
{
    json_t *out = json_object();
    for (size_t i = 0; i < mix->count; i++)
        if (mix->level[i])
            json_object_set_new(out, mix->rows[i].node, json_string(mix->ladder[mix->level[i] - 1].name));
    return out;
}

/* Remembers the present set where it is better than the best so far. */
static void keep_best(struct mix *mix, const struct mlo_estimate *drop, bool holds)
{
    double cost = cost_of(mix);
    bool first = json_array_size(mix->trail) == 0;
    bool better =
        holds ? !mix->best_holds || cost < mix->best_cost : !mix->best_holds && drop->high < mix->best.high;
    if (first)
        mix->all_integer = *drop;
    if (!first && !better)
        return;
    mix->best = *drop;
    mix->best_holds = holds;
    mix->best_cost = cost;
    mix->best_count = set_size(mix);
    if (mix->count > 0)
        memcpy(mix->best_level, mix->level, mix->count * sizeof *mix->best_level);
}

static bool is_late(struct mix *mix)
{
    mix->late = mix->late || (mix->deadline_ns && mlo_clock_ns() >= mix->deadline_ns);
    return mix->late;
}

/* Tells whoever keeps it where the search stands. */
static enum mlo_status keep(void *arg, struct mlo_error *err)
{
    const struct mix *mix = arg;
    if (!mix->request->keep)
        return MLO_OK;
    json_t *decision = decision_of(mix);
    enum mlo_status status =
        decision ? mix->request->keep(mix->request->keep_arg, decision, err) : mlo_error_nomem(err);
    json_decref(decision);
    return status;
}

/* What an earlier search found of this set; false: it did not come to it. */
static bool is_known(const struct mix *mix, const json_t *set, struct mlo_estimate *drop)
{
    size_t i;
    json_t *tried;
    json_array_foreach(json_object_get(mix->request->before, "tried"), i, tried)
    {
        const json_t *was = json_object_get(tried, "drop"), *value = json_object_get(was, "value"),
                     *low = json_object_get(was, "low"), *high = json_object_get(was, "high");
        if (!json_equal(json_object_get(tried, "given_back"), set) || !json_is_number(value) ||
            !json_is_number(low) || !json_is_number(high))
            continue;
        *drop =
            (struct mlo_estimate){json_number_value(value), json_number_value(low), json_number_value(high),
                                  mlo_json_i64(mix->request->before, "samples", 0)};
        return true;
    }
    return false;
}

static enum mlo_status judge(const struct mix *mix, const json_t *set, struct mlo_estimate *drop,
                             struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    json_t *options = NULL, *rows = json_array(), *as = NULL, *precision;
    const char *node;
    json_object_foreach((json_t *)set, node, precision)
        json_array_append_new(rows, json_pack("{s:s,s:O}", "node", node, "to", precision));
    as = json_pack("{s:O}", "given_back", rows);
    if (!as) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_decision_options(as, mix->request->sensitivity.options, &options, err));
    MLO_TRY(mix->request->make(mix->request->make_arg, options, &model, err));
    MLO_TRY(mlo_judge_drop(mix->judge, model, drop, err));
out:
    mlo_model_free(model);
    json_decref(options);
    json_decref(rows);
    json_decref(as);
    return status;
}

/* Makes and judges the model with the present set. */
static enum mlo_status try_set(struct mix *mix, struct mlo_estimate *drop, bool *holds, struct mlo_error *err)
{
    enum mlo_status status;
    json_t *set = set_json(mix);
    bool known = is_known(mix, set, drop);
    if (!set) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (!known)
        MLO_TRY(judge(mix, set, drop, err));
    *holds = drop->high <= mix->budget;
    keep_best(mix, drop, *holds);
    if (json_array_append_new(mix->trail, json_pack("{s:O,s:o,s:b}", "given_back", set, "drop",
                                                    mlo_estimate_interval_json(drop), "holds", *holds)) !=
        0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (!known)
        MLO_TRY(keep(mix, err));
out:
    json_decref(set);
    return status;
}

/* The first k rows in float. */
static enum mlo_status try_first(struct mix *mix, size_t k, struct mlo_estimate *drop, bool *holds,
                                 struct mlo_error *err)
{
    for (size_t i = 0; i < mix->count; i++)
        mix->level[i] = i < k ? mix->steps : 0;
    return try_set(mix, drop, holds, err);
}

/* Damage (noise to signal) for each multiply-add that would leave the integers. */
static double harm(const struct mlo_sensitivity_row *row)
{
    return pow(10, -row->sqnr_db / 10) / fmax(row->macs, 1);
}

static int worth_least_first(const void *a, const void *b)
{
    const struct mlo_sensitivity_row *x = a, *y = b;
    double p = harm(x), q = harm(y);
    if (p != q)
        return p < q ? 1 : -1;
    return x->place - y->place;
}

/* Whether the node is one of a list of {"node"}. */
static bool is_listed(const json_t *list, const char *node)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)list, i, row)
    {
        if (strcmp(mlo_json_str(row, "node", ""), node) == 0)
            return true;
    }
    return false;
}

/* What can be given back, in order: all but what min_sqnr keeps in float anyway. */
static enum mlo_status rank(struct mix *mix, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_sensitivity_request request = mix->request->sensitivity;
    json_t *noisy = NULL;
    request.judge = NULL;
    request.deadline_ns = mix->deadline_ns;
    request.known = json_object_get(mix->request->before, "ranking");
    request.measured = keep;
    request.measured_arg = mix;
    MLO_TRY(mlo_sensitivity_measure(&request, &mix->ranking, err));
    MLO_TRY(mlo_quantize_noisy(request.model, request.options, request.stats, &noisy, err));
    mix->rows = mlo_arena_calloc(mix->ranking.arena, mix->ranking.count + 1, sizeof *mix->rows);
    mix->level = mlo_arena_calloc(mix->ranking.arena, mix->ranking.count + 1, sizeof *mix->level);
    mix->best_level = mlo_arena_calloc(mix->ranking.arena, mix->ranking.count + 1, sizeof *mix->best_level);
    if (!mix->rows || !mix->level || !mix->best_level) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < mix->ranking.count; i++)
        if (!is_listed(noisy, mix->ranking.rows[i].node))
            mix->rows[mix->count++] = mix->ranking.rows[i];
    qsort(mix->rows, mix->count, sizeof *mix->rows, worth_least_first);
out:
    json_decref(noisy);
    return status;
}

/* The fewest rows from the front that hold: doubling, then halving the gap. 0 rows are known to be too few.
 */
static enum mlo_status search(struct mix *mix, size_t *found, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t low = 0, high = mix->count; /* all in float is the source: it holds */
    struct mlo_estimate tried;
    bool holds;
    for (size_t k = 1; k < mix->count && !is_late(mix); k *= 2) {
        MLO_TRY(try_first(mix, k, &tried, &holds, err));
        if (holds) {
            high = k;
            break;
        }
        low = k;
    }
    while (high - low > 1 && !is_late(mix)) {
        size_t k = low + (high - low) / 2;
        MLO_TRY(try_first(mix, k, &tried, &holds, err));
        *(holds ? &high : &low) = k;
    }
    for (size_t i = 0; i < mix->count; i++)
        mix->level[i] = i < high ? mix->steps : 0;
    *found = high;
out:
    return status;
}

/* The cheapest precision from `level` on with which the budget still holds: as it is, where none does. */
static enum mlo_status make_cheaper(struct mix *mix, size_t row, unsigned char level, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    unsigned char was = mix->level[row];
    struct mlo_estimate tried;
    bool holds = false;
    for (; level < was && !is_late(mix) && !holds; level++) {
        mix->level[row] = level;
        status = try_set(mix, &tried, &holds, err);
        if (status == MLO_EUNSUPPORTED && level > 0) /* not of this node: its numbers are too large */
            status = MLO_OK;
        MLO_TRY(status);
    }
    if (!holds)
        mix->level[row] = was;
out:
    return status;
}

/* Of the rows that were given back, the dearest first: does it need that much? The last one is not asked
 * for integers: without it the budget was seen to fail. */
static enum mlo_status take_back(struct mix *mix, size_t found, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool *asked = mlo_arena_calloc(mix->ranking.arena, mix->count + 1, sizeof *asked);
    if (!asked)
        return mlo_error_nomem(err);
    size_t most = mix->steps > 1 ? found : found - 1; /* float is all that the last one can be */
    for (size_t n = 0; n < TAKE_BACK && n < most && !is_late(mix); n++) {
        size_t dearest = mix->count;
        for (size_t i = 0; i < most; i++)
            if (!asked[i] && (dearest == mix->count || mix->rows[i].macs > mix->rows[dearest].macs))
                dearest = i;
        asked[dearest] = true;
        MLO_TRY(make_cheaper(mix, dearest, dearest + 1 == found, err));
    }
out:
    return status;
}

/* Whether these samples can show the budget of any model at all. */
static enum mlo_status check_samples(const struct mix *mix, struct mlo_error *err)
{
    struct mlo_estimate same;
    enum mlo_status status = mlo_judge_drop(mix->judge, NULL, &same, err);
    if (status != MLO_OK || same.high <= mix->budget)
        return status;
    mlo_error_set(
        err, MLO_EINVAL,
        "%lld samples are too few to show a drop of at most %s in %s: for the float model itself the "
        "bound is %.4g",
        (long long)same.n, mix->request->budget, mix->judge->metric.name, same.high);
    mlo_error_where(err, "the data that selects");
    mlo_error_hint(err, "give the role select more samples, or allow a larger drop");
    return MLO_EINVAL;
}

static enum mlo_status no_mix_holds(const struct mix *mix, struct mlo_error *err)
{
    mlo_error_set(
        err, MLO_EEXPECT,
        "no mix of integers and float keeps the drop in %s within %s: the best, %zu of %zu nodes in "
        "float, drops by %.4g [%.4g, %.4g]",
        mix->judge->metric.name, mix->request->budget, mix->best_count, mix->count, mix->best.value,
        mix->best.low, mix->best.high);
    mlo_error_hint(err,
                   "the upper end of the 95%% interval counts: more samples in the role select narrow it; "
                   "or try another calibrator, rounding: adaround, or the step equalize before");
    return MLO_EEXPECT;
}

static json_t *given_back_of(const struct mix *mix)
{
    json_t *out = json_array();
    for (size_t i = 0; i < mix->count; i++) {
        const struct mlo_sensitivity_row *row = &mix->rows[i];
        char why[160];
        if (!mix->best_level[i])
            continue;
        const char *to = mix->ladder[mix->best_level[i] - 1].name;
        snprintf(why, sizeof why, "alone in integers it leaves %.1f dB at the outputs; with it in %s %s",
                 row->sqnr_db, to,
                 mix->best_holds ? "the budget holds" : "the drop was the least of what was tried");
        json_array_append_new(out,
                              json_pack("{s:s,s:s,s:s,s:f,s:f,s:s}", "node", row->node, "op", row->op, "to",
                                        to, "sqnr_db", row->sqnr_db, "macs", row->macs, "why", why));
    }
    return out;
}

/* What was chosen, or would be if the search ended here. */
static json_t *decision_of(const struct mix *mix)
{
    json_t *out =
        json_pack("{s:s,s:s,s:f,s:b,s:b,s:s,s:I,s:o,s:o,s:o,s:o,s:O}", "metric", mix->judge->metric.name,
                  "budget", mix->request->budget, "limit", mix->budget, "complete", mix->over && !mix->late,
                  "holds", mix->best_holds, "bound", "upper end of the paired 95% interval", "samples",
                  (json_int_t)mix->best.n, "drop", mlo_estimate_interval_json(&mix->best), "all_integer",
                  mlo_estimate_interval_json(&mix->all_integer), "given_back", given_back_of(mix), "ranking",
                  mlo_sensitivity_json(&mix->ranking), "tried", mix->trail);
    if (out && mix->request->head && json_object_update_missing(out, (json_t *)mix->request->head) != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}

enum mlo_status mlo_mix_choose(const struct mlo_mix_request *request, json_t **decision,
                               struct mlo_error *err)
{
    enum mlo_status status;
    struct mix mix = {.request = request, .judge = request->sensitivity.judge, .trail = json_array()};
    struct mlo_estimate first;
    size_t found = 0;
    bool holds;
    *decision = NULL;
    if (!mix.trail) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mix.ladder = mlo_quantize_ladder(request->sensitivity.options);
    while (mix.ladder[mix.steps].name)
        mix.steps++;
    MLO_TRY(mlo_budget_parse(request->budget, &mix.budget, err));
    MLO_TRY(check_samples(&mix, err));
    if (request->time_limit_s > 0)
        mix.deadline_ns = mlo_clock_ns() + (uint64_t)request->time_limit_s * 1000000000u;
    MLO_TRY(try_set(&mix, &first, &holds, err)); /* nothing is given back yet */
    if (!holds) {
        MLO_TRY(rank(&mix, err));
        is_late(&mix); /* also where nothing is left to try */
        MLO_TRY(search(&mix, &found, err));
        if (!mix.best_holds && !mix.late) {
            status = no_mix_holds(&mix, err);
            goto out;
        }
        if (mix.best_holds)
            MLO_TRY(take_back(&mix, found, err));
    }
    mix.over = true;
    if (!(*decision = decision_of(&mix))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (request->keep)
        MLO_TRY(request->keep(request->keep_arg, *decision, err));
out:
    if (status != MLO_OK) {
        json_decref(*decision);
        *decision = NULL;
    }
    mlo_sensitivity_clear(&mix.ranking);
    json_decref(mix.trail);
    return status;
}
