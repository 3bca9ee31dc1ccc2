/* The tuner: which way to compute each step is the fastest. Halving: every way is timed a little, those that
 * are slower with 95% confidence are left, the others are timed more. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/tune/tune.h"

/* Samples of the rounds, of each way that is still in. */
static const int ROUNDS[] = {5, 15, 40};
enum { SAMPLES_MAX = 64 };

struct candidate {
    const json_t *way; /* borrowed of the list of ways */
    struct cuda_built built;
    bool is_built, in, checked;
    double error, tolerance;
    const char *why; /* it was dropped; NULL: it was not */
    char text[160];
    double samples[SAMPLES_MAX];
    int n;
    struct cuda_median us;
};

struct tuner {
    const struct cuda_tuning *t;
    const struct mlo_tuning_request *request;
    json_t *choices; /* the document that is made */
    json_t *dead;    /* [{"step","choice"}]: all of those */
    double spent_s;
};

/* --- the median ------------------------------------------------------------------------------------------
 */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct cuda_median cuda_median_of(double *samples, int n)
{
    struct cuda_median out = {.n = n};
    if (n < 1)
        return out;
    qsort(samples, (size_t)n, sizeof *samples, by_value);
    /* how many samples lie below the median is binomial: half of them, give or take 1.96 deviations */
    double half = 0.5 * n, spread = 1.96 * 0.5 * sqrt(n);
    int low = (int)floor(half - spread), high = (int)ceil(half + spread);
    out.value = n % 2 ? samples[n / 2] : 0.5 * (samples[n / 2 - 1] + samples[n / 2]);
    out.low = samples[MLO_MAX(low - 1, 0)];
    out.high = samples[MLO_MIN(high, n - 1)];
    return out;
}

/* --- what is kept ----------------------------------------------------------------------------------------
 */

/* The document, with what is being tried: whoever dies in it does not try it again. */
static enum mlo_status keep(struct tuner *x, const struct mlo_digest *key, const json_t *way,
                            struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    if (!x->request->keep)
        return MLO_OK;
    json_t *trying = way ? json_pack("{s:s, s:O}", "step", mlo_digest_text(key, text), "choice", way) : NULL;
    json_t *whole = json_pack("{s:O, s:O, s:o?}", "choices", x->choices, "dead", x->dead, "trying", trying);
    enum mlo_status status = whole ? mlo_json_save_file(whole, x->request->keep, err) : mlo_error_nomem(err);
    json_decref(whole);
    return status;
}

/* What an earlier run left; a file that is damaged, or of another machine, is as none. */
static enum mlo_status take_up(struct tuner *x, struct mlo_error *err)
{
    struct mlo_error unread = {0};
    json_t *whole = NULL;
    const json_t *sources[2] = {x->request->known, NULL};
    if (x->request->keep && mlo_fs_exists(x->request->keep) &&
        mlo_json_load_file(x->request->keep, &whole, &unread) == MLO_OK)
        sources[1] = json_object_get(whole, "choices");
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; status == MLO_OK && i < MLO_COUNT(sources); i++)
        if (sources[i] && mlo_choices_check(sources[i], "an earlier tuning", &unread) == MLO_OK &&
            mlo_choices_same_machine(sources[i], x->choices))
            status = mlo_choices_merge(x->choices, sources[i], err);
    if (sources[1] && mlo_choices_same_machine(sources[1], x->choices)) {
        json_t *dead = json_object_get(whole, "dead"), *trying = json_object_get(whole, "trying");
        if (json_is_array(dead))
            json_array_extend(x->dead, dead);
        if (json_is_object(trying))
            json_array_append(x->dead, trying);
    }
    json_decref(whole);
    return status;
}

static bool died_of(const struct tuner *x, const struct mlo_digest *key, const json_t *way)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    size_t i;
    json_t *one;
    mlo_digest_text(key, text);
    json_array_foreach(x->dead, i, one)
    {
        if (strcmp(mlo_json_str(one, "step", ""), text) == 0 &&
            json_equal(json_object_get(one, "choice"), (json_t *)way))
            return true;
    }
    return false;
}

/* --- one step --------------------------------------------------------------------------------------------
 */

static void drop(struct candidate *c, const char *why, const char *detail)
{
    snprintf(c->text, sizeof c->text, "%s%s%.110s", why, detail ? ": " : "", detail ? detail : "");
    c->why = c->text;
    c->in = false;
}

/* Whether a failure is the way's own; else the tuning ends with it. */
static bool is_ways_own(enum mlo_status status)
{
    return status != MLO_ENOMEM && status != MLO_ECANCELLED && status != MLO_EUNAVAILABLE &&
           status != MLO_ENOSPC;
}

static enum mlo_status build_all(struct tuner *x, const struct cuda_step *step, const struct mlo_digest *key,
                                 struct candidate *all, size_t count, struct mlo_error *err)
{
    const struct cuda_tuning *t = x->t;
    for (size_t i = 0; i < count; i++) {
        struct candidate *c = &all[i];
        struct mlo_error why = {0};
        if (died_of(x, key, c->way)) {
            drop(c, "an earlier run died of it", NULL);
            continue;
        }
        enum mlo_status status = t->ops->build(t->arg, step, c->way, &c->built, &why);
        if (status != MLO_OK && !is_ways_own(status)) {
            if (err)
                *err = why;
            return status;
        }
        if (status != MLO_OK) {
            drop(c, "it does not compile", why.message);
            continue;
        }
        c->is_built = c->in = true;
        if (c->built.spill_bytes)
            drop(c, "its registers spill", NULL);
        else if (t->max_workspace_bytes && c->built.workspace_bytes > t->max_workspace_bytes)
            drop(c, "it needs too much workspace", NULL);
        else if (t->peaks && c->built.threads &&
                 cuda_occupancy(t->peaks, c->built.threads, c->built.registers, c->built.shared_bytes) <= 0)
            drop(c, "a block does not fit on the device", NULL);
    }
    return MLO_OK;
}

static enum mlo_status time_one(struct tuner *x, const struct cuda_step *step, const struct mlo_digest *key,
                                struct candidate *c, int count, struct mlo_error *err)
{
    enum mlo_status status;
    const struct cuda_tuning *t = x->t;
    struct mlo_error why = {0};
    double us[SAMPLES_MAX];
    MLO_TRY(keep(x, key, c->way, err));
    uint64_t begin = mlo_clock_ns();
    status = t->ops->time(t->arg, step, &c->built, count, us, &why);
    x->spent_s += (double)(mlo_clock_ns() - begin) * 1e-9;
    if (status == MLO_OK) {
        for (int i = 0; i < count && c->n < SAMPLES_MAX; i++)
            c->samples[c->n++] = us[i];
        c->us = cuda_median_of(c->samples, c->n);
        if (!(c->us.value > 0))
            drop(c, "it took no time", NULL);
    } else if (is_ways_own(status)) {
        drop(c, "it fails", why.message);
        status = t->ops->recover ? t->ops->recover(t->arg, err) : MLO_OK;
    } else if (err) {
        *err = why;
    }
out:
    return status;
}

static struct candidate *fastest_of(struct candidate *all, size_t count)
{
    struct candidate *best = NULL;
    for (size_t i = 0; i < count; i++)
        if (all[i].in && all[i].n && (!best || all[i].us.value < best->us.value))
            best = &all[i];
    return best;
}

/* Whether it computes the right thing; drops it when not. */
static enum mlo_status check_one(struct tuner *x, const struct cuda_step *step, const struct mlo_digest *key,
                                 struct candidate *c, struct mlo_error *err)
{
    enum mlo_status status;
    const struct cuda_tuning *t = x->t;
    struct mlo_error why = {0};
    char text[64];
    MLO_TRY(keep(x, key, c->way, err));
    status = t->ops->check(t->arg, step, &c->built, &c->error, &c->tolerance, &why);
    if (status != MLO_OK && !is_ways_own(status)) {
        if (err)
            *err = why;
        goto out;
    }
    c->checked = status == MLO_OK && c->error <= c->tolerance; /* false for NaN */
    if (c->checked)
        return MLO_OK;
    snprintf(text, sizeof text, "%.3g where %.3g is allowed", c->error, c->tolerance);
    if (status == MLO_OK)
        drop(c, "it computes something else: the error is", text);
    else
        drop(c, "it fails when it is checked", why.message);
    if (status != MLO_OK)
        status = t->ops->recover ? t->ops->recover(t->arg, err) : MLO_OK;
out:
    return status;
}

/* The fastest of those that compute the right thing: only such a one may put others out. *out is NULL when
 * there is none. */
static enum mlo_status leader(struct tuner *x, const struct cuda_step *step, const struct mlo_digest *key,
                              struct candidate *all, size_t count, struct candidate **out,
                              struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    while ((*out = fastest_of(all, count)) && !(*out)->checked)
        MLO_TRY(check_one(x, step, key, *out, err));
out:
    return status;
}

/* A way that computes more than is asked has a floor above the step's: when that is beyond what another way
 * took, it is not timed. */
static bool is_hopeless(const struct tuner *x, const struct cuda_step *step, const struct candidate *c,
                        const struct candidate *best)
{
    struct cuda_cost cost;
    if (!x->t->peaks || !best || c->built.work <= 1)
        return false;
    cuda_step_cost(x->t->schedule, step, &cost);
    cost.ops *= c->built.work;
    return cuda_floor_us(&cost, x->t->peaks) > best->us.high;
}

static enum mlo_status time_all(struct tuner *x, const struct cuda_step *step, const struct mlo_digest *key,
                                struct candidate *all, size_t count, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct candidate *best = NULL;
    for (size_t r = 0; r < MLO_COUNT(ROUNDS); r++) {
        size_t left = 0;
        for (size_t i = 0; i < count; i++) {
            if (!all[i].in)
                continue;
            if (all[i].built.work > 1)
                MLO_TRY(leader(x, step, key, all, count, &best, err));
            if (r == 0 && is_hopeless(x, step, &all[i], best))
                drop(&all[i], "its floor is above what another way took", NULL);
            else
                MLO_TRY(time_one(x, step, key, &all[i], ROUNDS[r], err));
        }
        MLO_TRY(leader(x, step, key, all, count, &best, err));
        for (size_t i = 0; i < count; i++) {
            /* the first is what is compared with in the end */
            if (best && i > 0 && all[i].in && all[i].us.low > best->us.high)
                drop(&all[i], "slower", NULL);
            left += all[i].in;
        }
        if (left < 2)
            break;
    }
out:
    return status;
}

/* The fastest; but what the heuristics take stays, if it computes the right thing, unless that is faster for
 * sure. */
static enum mlo_status choose(struct tuner *x, const struct cuda_step *step, const struct mlo_digest *key,
                              struct candidate *all, size_t count, struct candidate **out,
                              struct mlo_error *err)
{
    enum mlo_status status;
    struct candidate *first = &all[0];
    MLO_TRY(leader(x, step, key, all, count, out, err));
    if (!*out || *out == first || !first->in || !first->n || (*out)->us.high < first->us.low)
        return MLO_OK;
    if (!first->checked)
        MLO_TRY(check_one(x, step, key, first, err));
    if (first->in)
        *out = first;
out:
    return status;
}

static json_t *median_json(const struct cuda_median *m)
{
    return json_pack("{s:f, s:f, s:f, s:i}", "value", m->value, "low", m->low, "high", m->high, "n", m->n);
}

static json_t *entry_of(const struct cuda_step *step, const struct candidate *all, size_t count,
                        const struct candidate *chosen)
{
    json_t *dropped = json_array(), *nodes = json_array();
    for (size_t i = 0; i < count; i++)
        if (all[i].why)
            json_array_append_new(dropped, json_pack("{s:O, s:s}", "choice", all[i].way, "why", all[i].why));
    if (step->node && step->node->name)
        json_array_append_new(nodes, json_string(step->node->name));
    for (int i = 0; i < step->fused_count; i++)
        json_array_append_new(nodes, json_string(step->fused[i]));
    json_t *entry = json_pack("{s:O, s:s, s:i, s:o, s:o, s:f, s:f, s:o}", "choice", chosen->way, "by",
                              count == 1 ? "only" : "measured", "ways", (int)count, "dropped", dropped, "us",
                              median_json(&chosen->us), "error", chosen->error, "tolerance",
                              chosen->tolerance, "nodes", nodes);
    if (entry && chosen != &all[0] && all[0].n)
        json_object_set_new(entry, "heuristic",
                            json_pack("{s:O, s:o}", "choice", all[0].way, "us", median_json(&all[0].us)));
    return entry;
}

static enum mlo_status tune_step(struct tuner *x, const struct cuda_step *step, const struct mlo_digest *key,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    const struct cuda_tuning *t = x->t;
    json_t *ways = NULL;
    struct candidate *all = NULL, *chosen = NULL;
    size_t count = 0;
    MLO_TRY(t->ops->ways(t->arg, step, &ways, err));
    count = MLO_MIN(json_array_size(ways), (size_t)CUDA_WAYS_MAX);
    if (count == 0)
        goto out;
    if (!(all = calloc(count, sizeof *all))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        all[i].way = json_array_get(ways, i);
    MLO_TRY(build_all(x, step, key, all, count, err));
    if (x->request->prepare_only)
        goto out;
    MLO_TRY(time_all(x, step, key, all, count, err));
    MLO_TRY(choose(x, step, key, all, count, &chosen, err));
    if (chosen) /* else the heuristics' way stands, as if nothing had been measured */
        MLO_TRY(mlo_choices_put(x->choices, key, entry_of(step, all, count, chosen), err));
    MLO_TRY(keep(x, NULL, NULL, err));
out:
    for (size_t i = 0; i < count && all; i++)
        if (all[i].is_built)
            t->ops->release(t->arg, &all[i].built);
    free(all);
    json_decref(ways);
    return status;
}

/* --- all steps -------------------------------------------------------------------------------------------
 */

struct turn {
    int step, times; /* so many equal ones */
    struct mlo_digest key;
    double weight;
};

static int heaviest_first(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;
    return x->weight != y->weight ? (x->weight > y->weight ? -1 : 1) : x->step - y->step;
}

/* What is to be measured: each key once, by how much there is to win. */
static enum mlo_status plan_turns(const struct tuner *x, struct turn *turns, int *count,
                                  struct mlo_error *err)
{
    const struct cuda_schedule *s = x->t->schedule;
    *count = 0;
    for (int i = 0; i < s->step_count; i++) {
        struct mlo_digest key;
        struct cuda_cost cost;
        int k = 0;
        if (s->steps[i].kind == CUDA_STEP_COPY)
            continue;
        enum mlo_status status = cuda_step_key(s, &s->steps[i], &key, err);
        if (status != MLO_OK)
            return status;
        if (mlo_choices_find(x->choices, &key))
            continue;
        while (k < *count && !mlo_digest_eq(&turns[k].key, &key))
            k++;
        if (k == *count)
            turns[(*count)++] = (struct turn){.step = i, .key = key};
        cuda_step_cost(s, &s->steps[i], &cost);
        turns[k].times++;
        turns[k].weight += x->t->peaks ? cuda_floor_us(&cost, x->t->peaks)
                                       : cost.ops + cost.read_bytes + cost.weight_bytes + cost.write_bytes;
    }
    qsort(turns, (size_t)*count, sizeof *turns, heaviest_first);
    return MLO_OK;
}

enum mlo_status cuda_tune(const struct cuda_tuning *tuning, const struct mlo_tuning_request *request,
                          json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct tuner x = {.t = tuning, .request = request};
    struct turn *turns = NULL;
    int count = 0;
    *out = NULL;
    x.choices = mlo_choices_new(tuning->machine);
    x.dead = json_array();
    turns = calloc((size_t)tuning->schedule->step_count + 1, sizeof *turns);
    if (!x.choices || !x.dead || !turns) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(take_up(&x, err));
    MLO_TRY(plan_turns(&x, turns, &count, err));
    for (int i = 0; i < count; i++) {
        const struct cuda_step *step = &tuning->schedule->steps[turns[i].step];
        if (request->seconds > 0 && x.spent_s >= request->seconds)
            break;
        if (request->progress)
            request->progress(request->progress_arg, (double)i / count,
                              step->node && step->node->name ? step->node->name : "tuning");
        MLO_TRY(tune_step(&x, step, &turns[i].key, err));
    }
    *out = json_incref(x.choices);
out:
    free(turns);
    json_decref(x.choices);
    json_decref(x.dead);
    return status;
}
