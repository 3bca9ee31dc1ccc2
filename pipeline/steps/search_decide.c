/* What a search does next: candidates that were not tried, as long as the budgets last; then those that are
 * worth it on all of the select data, where they were not yet; then the front on the evaluation data; then
 * the end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/search_impl.h"
#include "pipeline/steps/step_impl.h"

/* Shares of the budgets of time and money that may be used when a rung's jobs are planned: what is left is
 * for those after it. */
static const double RUNG_SHARE[] = {
    [MLO_RUNG_SCREEN] = 0.65, [MLO_RUNG_SELECT] = 0.85, [MLO_RUNG_EVALUATE] = 1e9};
enum { KEPT_LEAST = 3, SURVIVOR_TIMES = 2 /* as many rounds for those that are kept */ };

/* 0: none. */
static double budget_s(const json_t *options, const char *key)
{
    uint64_t seconds = 0;
    const char *text = mlo_json_str(options, key, "none");
    return mlo_str_to_seconds(text, &seconds) ? (double)seconds : 0;
}

/* Which budget keeps a rung from beginning (more); NULL: none. `more`: of what was used, what it would take.
 */
static const char *out_of(const struct mlo_search_state *s, int rung, double more)
{
    double share = RUNG_SHARE[rung];
    const struct {
        const char *name;
        double used, budget;
    } budgets[] = {
        {"time", s->elapsed_s, budget_s(s->options, "time")},
        {"cpu", s->cpu_s, budget_s(s->options, "cpu")},
        {"cost", s->cost, mlo_json_f64(s->options, "cost", 0)},
    };
    for (size_t i = 0; i < MLO_COUNT(budgets); i++)
        if (budgets[i].budget > 0 && budgets[i].used + more * budgets[i].used > share * budgets[i].budget)
            return budgets[i].name;
    return NULL;
}

static size_t kept_of(const struct mlo_search_state *s, size_t tried)
{
    size_t share = (size_t)ceil((double)tried * mlo_json_f64(s->options, "keep", 0.5) - 1e-9);
    return MLO_MIN(tried, MLO_MAX(share, (size_t)KEPT_LEAST));
}

/* Whether all that was measured was judged on all of the data: then there is no second rung. */
static bool judged_on_all(const struct mlo_search_state *s)
{
    size_t known = 0, whole = 0;
    for (size_t i = 0; i < s->count; i++) {
        known += mlo_search_measured(&s->all[i]);
        whole += mlo_search_measured(&s->all[i]) && s->all[i].screened >= MLO_RUNG_SELECT;
    }
    return known > 0 && whole == known;
}

/* Jobs that the rungs after the first take when so many were tried; those that choose among them. */
static int64_t later_jobs(const struct mlo_search_state *s, size_t tried)
{
    int64_t kept = (int64_t)kept_of(s, tried), front = mlo_json_i64(s->options, "front", 1);
    if (judged_on_all(s))
        return MLO_MIN((int64_t)tried, front) + 2;
    return kept + MLO_MIN(kept, front) + 3;
}

/* The same steps up to this one, of another candidate that was begun or is planned before it: then the result
 * is there. */
static bool shared(const struct mlo_search_state *s, size_t candidate, size_t step, const bool *planned)
{
    for (size_t i = 0; i < s->count; i++) {
        bool same =
            i != candidate && (s->all[i].begun || planned[i]) && json_array_size(s->all[i].steps) > step;
        for (size_t k = 0; same && k <= step; k++)
            same = json_equal(json_array_get(s->all[i].steps, k), json_array_get(s->all[candidate].steps, k));
        if (same)
            return true;
    }
    return false;
}

static int64_t jobs_of(const struct mlo_search_state *s, size_t candidate, const bool *planned)
{
    int64_t jobs = 1; /* its trial */
    for (size_t k = 0; k < json_array_size(s->all[candidate].steps); k++)
        jobs += !shared(s, candidate, k, planned);
    return jobs;
}

/* --- blocks -------------------------------------------------------------------------------------------- */

static json_t *judged(const struct mlo_search_state *s)
{
    return json_pack("{s:[s], s:s}", "metrics", s->metric.name, "compare_to", "source");
}

/* Judging and timing in one job; the more it counts the longer it is timed. */
static json_t *trial(const struct mlo_search_state *s, const struct mlo_search_candidate *c, int64_t samples,
                     int times)
{
    json_t *out = judged(s);
    double seconds = times * mlo_json_f64(s->options, "seconds", 1.5); /* of each of two models */
    json_t *more = json_pack(
        "{s:I, s:f, s:[I], s:I, s:I, s:f, s:I}", "samples", (json_int_t)samples, "all_within",
        samples ? 2 * seconds : 0.0, "batch", (json_int_t)mlo_json_i64(s->options, "batch", 1), "threads",
        (json_int_t)c->threads, "source_threads", (json_int_t)s->source_threads, "seconds", seconds, "rounds",
        (json_int_t)MLO_MIN(times * mlo_json_i64(s->options, "rounds", 12), 1000));
    if (!out || !more || json_object_update(out, more) != 0) {
        json_decref(out);
        out = NULL;
    }
    json_decref(more);
    return out;
}

/* What a candidate does in a rung. */
static enum mlo_status add_block(const struct mlo_search_state *s, struct mlo_search_candidate *c, int rung,
                                 json_t *next, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *steps = rung == MLO_RUNG_SCREEN ? json_copy((json_t *)c->steps) : json_array();
    if (!steps)
        return mlo_error_nomem(err);
    if (rung == MLO_RUNG_SCREEN) {
        MLO_TRY(
            mlo_search_add_step(steps, "trial", trial(s, c, mlo_json_i64(s->options, "screen", 0), 1), err));
    } else if (rung == MLO_RUNG_SELECT) {
        MLO_TRY(mlo_search_add_step(steps, "trial", trial(s, c, 0, SURVIVOR_TIMES), err));
    } else {
        MLO_TRY(mlo_search_add_step(steps, "evaluate", judged(s), err));
    }
    json_t *block = json_pack("{s:s, s:i, s:s?, s:O}", "candidate", c->name, "rung", rung, "input",
                              rung == MLO_RUNG_SCREEN ? NULL : c->artifact, "steps", steps);
    if (!block || json_array_append_new(next, block) != 0)
        status = mlo_error_nomem(err);
out:
    json_decref(steps);
    return status;
}

/* --- rungs --------------------------------------------------------------------------------------------- */

/* The next to be tried; s->count: none. */
static size_t pick(const struct mlo_search_state *s, const bool *planned, size_t together)
{
    if (mlo_json_bool(s->options, "foresee", false))
        return mlo_search_pick(s, planned, together);
    for (size_t i = 0; i < s->count; i++)
        if (!s->all[i].begun && !planned[i])
            return i;
    return s->count;
}

static enum mlo_status plan_screen(struct mlo_search_state *s, json_t *next, char *why, size_t size,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t budget = mlo_json_i64(s->options, "jobs", 0), used = s->used_jobs + 1; /* and this one */
    size_t tried = 0, together = (size_t)mlo_json_i64(s->options, "together", 1);
    bool planned[MLO_SEARCH_CANDIDATES] = {false};
    for (size_t i = 0; i < s->count; i++)
        tried += s->all[i].begun > 0;
    while (json_array_size(next) < together) {
        size_t i = pick(s, planned, together);
        if (i == s->count)
            break;
        double more = tried ? (double)(json_array_size(next) + 1) / (double)tried : 0;
        const char *out = out_of(s, MLO_RUNG_SCREEN, more);
        int64_t cost = jobs_of(s, i, planned);
        if (out)
            snprintf(why, size, "the budget of %s", out);
        if (!out && budget && used + cost + later_jobs(s, tried + json_array_size(next) + 1) > budget)
            snprintf(why, size, "the budget of %lld jobs", (long long)budget);
        if (*why)
            break; /* and what comes after it, which was worth less */
        MLO_TRY(add_block(s, &s->all[i], MLO_RUNG_SCREEN, next, err));
        planned[i] = true;
        used += cost;
    }
    if (*why) {
        size_t used_up = strlen(why);
        snprintf(why + used_up, size - used_up, " ended the search before all candidates were tried");
    }
out:
    return status;
}

/* The run as it was when its screen ended; yours, NULL when out of memory. */
static json_t *screen_of(const json_t *run)
{
    json_t *out = json_copy((json_t *)run), *jobs = json_array(), *job;
    size_t i;
    bool ok = out && jobs;
    json_array_foreach(json_object_get(run, "jobs"), i, job)
    {
        if (ok && mlo_json_i64(json_object_get(job, "spec"), "rung", 0) <= MLO_RUNG_SCREEN)
            ok = json_array_append(jobs, job) == 0;
    }
    ok = ok && json_object_set(out, "jobs", jobs) == 0;
    json_decref(jobs);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

/* Whether the screen ended with something that was to be tried: a budget kept it from that. By what was known
 * then; later rungs measure again. */
static enum mlo_status left_untried(const struct mlo_search_state *s, bool *left, struct mlo_error *err)
{
    struct mlo_search_state then = {0};
    const bool planned[MLO_SEARCH_CANDIDATES] = {false};
    json_t *run = screen_of(s->run);
    if (!run)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_search_state_init(&then, s->options, run, err);
    if (status == MLO_OK)
        *left = pick(&then, planned, 2) < then.count;
    mlo_search_state_clear(&then);
    json_decref(run);
    return status;
}

/* Once the rungs after the first began: which no budget let begin. */
static enum mlo_status tell_untried(const struct mlo_search_state *s, char *stopped, size_t size,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    size_t untried = 0, listed = 0;
    bool left = false;
    MLO_TRY(left_untried(s, &left, err));
    for (size_t i = 0; i < s->count; i++) {
        untried += s->all[i].begun == 0 && !s->all[i].between;
        listed += !s->all[i].between;
    }
    for (size_t i = 0; i < s->count && !left; i++)
        if (!s->all[i].begun)
            s->all[i].why = mlo_search_part_failed(s, &s->all[i])
                                ? "one of its values failed alone: nothing is foreseen of it"
                                : "by what others came to it would add nothing to the front";
    if (untried && left)
        snprintf(stopped, size, "a budget ended the search before %zu of %zu candidates were tried", untried,
                 listed);
out:
    return status;
}

/* Points that are whole and did not fail, best first. */
static size_t ordered(struct mlo_search_state *s, size_t *order, int *rank)
{
    size_t count = 0;
    struct mlo_search_point *points = calloc(s->count, sizeof *points);
    for (size_t i = 0; points && i < s->count; i++)
        if (!s->all[i].failed)
            points[i] = s->all[i].point;
    if (points)
        mlo_points_rank(points, s->count, rank);
    free(points);
    for (size_t i = 0; points && i < s->count; i++) {
        if (rank[i] < 0)
            continue;
        size_t at = count++;
        for (; at > 0; at--) { /* few; stable, so that ties fall to what is listed first */
            size_t before = order[at - 1];
            int by = (int)mlo_goal_held(&s->goal, &s->all[before].point, true) -
                     (int)mlo_goal_held(&s->goal, &s->all[i].point, true);
            if (by == 0)
                by = rank[i] - rank[before];
            if (by == 0)
                by = mlo_goal_order(&s->goal, &s->all[i].point, &s->all[before].point) < 0 ? -1 : 1;
            if (by > 0)
                break;
            order[at] = before;
        }
        order[at] = i;
    }
    return count;
}

/* How many are kept of so many: those that are to be, and more where jobs would be left over. */
static size_t keepable(const struct mlo_search_state *s, size_t count)
{
    int64_t budget = mlo_json_i64(s->options, "jobs", 0), front = mlo_json_i64(s->options, "front", 1);
    size_t keep = kept_of(s, count);
    /* this choice, the two after it, and what of them is evaluated */
    while (keep < count && s->used_jobs + 3 + (int64_t)keep + 1 + MLO_MIN((int64_t)keep + 1, front) <= budget)
        keep++;
    return keep;
}

/* Who misses the goal for certain, while others, of which as much is known, may keep it. */
static void mark_missed(struct mlo_search_state *s, const size_t *order, size_t count)
{
    size_t hopeful = 0;
    int furthest = 0;
    for (size_t k = 0; k < count; k++)
        furthest = MLO_MAX(furthest, s->all[order[k]].screened);
    for (size_t k = 0; k < count; k++) {
        struct mlo_search_candidate *c = &s->all[order[k]];
        c->missed = mlo_goal_held(&s->goal, &c->point, true) < s->goal.count;
        hopeful += !c->missed && c->screened == furthest;
    }
    for (size_t k = 0; k < count && !hopeful; k++)
        s->all[order[k]].missed = false;
}

/* Who is kept after the first rung. Those that were judged on all of the data need no second one. */
static void halve(struct mlo_search_state *s, const size_t *order, size_t count)
{
    size_t among[MLO_SEARCH_CANDIDATES], kept[MLO_SEARCH_CANDIDATES], n = 0;
    bool chosen = s->last_rung > MLO_RUNG_SCREEN; /* already, on what was known then */
    for (size_t k = 0; k < count; k++) {
        struct mlo_search_candidate *c = &s->all[order[k]];
        c->kept = !c->missed && (c->screened >= MLO_RUNG_SELECT || (chosen && c->begun > MLO_RUNG_SCREEN));
        if (!c->missed)
            among[n++] = order[k];
    }
    if (!chosen && !judged_on_all(s)) {
        n = mlo_search_spread(s, among, n, keepable(s, count), kept);
        for (size_t k = 0; k < n; k++)
            s->all[kept[k]].kept = true;
    }
}

/* The front among those that were judged on as many samples as any: values of fewer are not compared. */
static void mark_front(struct mlo_search_state *s, const size_t *order, size_t count)
{
    int furthest = 0;
    struct mlo_search_point *points = calloc(s->count, sizeof *points);
    int *own = malloc(s->count * sizeof *own);
    for (size_t k = 0; k < count; k++)
        if (!s->all[order[k]].missed)
            furthest = MLO_MAX(furthest, s->all[order[k]].screened);
    for (size_t k = 0; points && own && k < count; k++)
        if (s->all[order[k]].screened == furthest && !s->all[order[k]].missed)
            points[order[k]] = s->all[order[k]].point;
    if (points && own) {
        mlo_points_rank(points, s->count, own);
        for (size_t i = 0; i < s->count; i++)
            s->all[i].front = own[i] == 0;
    }
    free(points);
    free(own);
}

/* Why the others are not on the front. */
static void tell_dropped(struct mlo_search_state *s, const size_t *order, const int *rank, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        struct mlo_search_candidate *c = &s->all[order[k]];
        bool beaten = rank[order[k]] > 0 || (c->kept && c->screened >= MLO_RUNG_SELECT);
        c->kept = c->kept && (c->front || c->screened < MLO_RUNG_SELECT);
        if (!c->kept)
            c->why = c->missed ? "even by the better end of its intervals it misses the goal"
                     : beaten  ? "others are better on every axis"
                               : "others of the front reach more, or are nearer to the goal";
    }
}

/* How many points of the front are judged: as many as are to be, where the budget has jobs for them; this
 * choice and the last one are two. */
static size_t judged_most(const struct mlo_search_state *s)
{
    int64_t budget = mlo_json_i64(s->options, "jobs", 0), front = mlo_json_i64(s->options, "front", 1);
    return (size_t)MLO_MAX(budget ? MLO_MIN(front, budget - s->used_jobs - 2) : front, 1);
}

/* Those that a rung takes; of the front the nearest to the goal, as the end names it, and then what reaches
 * most beside it. */
static size_t taken(const struct mlo_search_state *s, const size_t *order, size_t count, int rung,
                    size_t *out)
{
    size_t n = 0, front[MLO_SEARCH_CANDIDATES];
    for (size_t k = 0; k < count; k++) {
        const struct mlo_search_candidate *c = &s->all[order[k]];
        if (rung == MLO_RUNG_SELECT && c->kept && c->screened < MLO_RUNG_SELECT)
            out[n++] = order[k];
        if (rung == MLO_RUNG_SELECT || !c->front)
            continue;
        size_t at = n++;
        for (; at > 0 && mlo_goal_order(&s->goal, &c->point, &s->all[front[at - 1]].point) < 0; at--)
            front[at] = front[at - 1];
        front[at] = order[k];
    }
    return rung == MLO_RUNG_SELECT ? n : mlo_search_spread(s, front, n, judged_most(s), out);
}

static enum mlo_status plan_rung(struct mlo_search_state *s, const size_t *order, size_t count, int rung,
                                 json_t *next, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t all[MLO_SEARCH_CANDIDATES], n = taken(s, order, count, rung, all);
    for (size_t k = 0; k < n; k++)
        MLO_TRY(add_block(s, &s->all[all[k]], rung, next, err));
out:
    return status;
}

/* --- the end ------------------------------------------------------------------------------------------- */

static enum mlo_status tell(struct mlo_search_state *s, const size_t *order, size_t count, int rung,
                            json_t *next, const char *stopped, json_t **out, struct mlo_error *err)
{
    json_t *points = json_array(), *front = json_array();
    const struct mlo_search_candidate *best = NULL;
    bool done = json_array_size(next) == 0, met, evaluated = s->last_rung == MLO_RUNG_EVALUATE;
    char why[400];
    struct mlo_error reason = {0}; /* of the first candidate: also what is cut off is UTF-8 */
    if (s->count && s->all[0].why)
        mlo_error_set(&reason, MLO_EINVAL, ": %.200s", s->all[0].why);
    for (size_t i = 0; i < s->count; i++)
        if (!s->all[i].between || s->all[i].begun) /* of those between only what was looked at */
            json_array_append_new(points, mlo_search_point_json(s, &s->all[i]));
    for (size_t k = 0; k < count; k++) {
        const struct mlo_search_candidate *c = &s->all[order[k]];
        if (!c->front)
            continue;
        json_array_append_new(front, json_string(c->name));
        if (evaluated && !c->evaluated.known)
            continue; /* only what chose it has judged it */
        if (!best || mlo_goal_order(&s->goal, &c->point, &best->point) < 0)
            best = c;
    }
    met = best && mlo_goal_held(&s->goal, &best->point, false) == s->goal.count;
    if (!done)
        snprintf(why, sizeof why, "%zu candidates in rung %d", json_array_size(next), rung);
    else if (met)
        snprintf(why, sizeof why, "%s keeps the goal", best->name);
    else if (best)
        snprintf(
            why, sizeof why,
            "nothing that was tried keeps the goal; the best found is %s: an accuracy drop of %.2f points "
            "(at most %.2f), %.2f times the source's latency, %.2f times its size",
            best->name, 100 * best->point.axis[MLO_AXIS_DROP].value,
            100 * best->point.axis[MLO_AXIS_DROP].high, best->point.axis[MLO_AXIS_LATENCY].value,
            best->point.axis[MLO_AXIS_SIZE].value);
    else if (s->last_rung == 0)
        snprintf(why, sizeof why, "nothing was tried: %s", stopped);
    else if (evaluated)
        snprintf(why, sizeof why, "nothing of the front could be judged on the evaluation data");
    else
        snprintf(why, sizeof why, "no candidate could be made and measured%.220s", reason.message);
    *out = json_pack("{s:s, s:s, s:s, s:i, s:{s:I, s:f, s:f, s:f, s:f}, s:I, s:O, s:O, s:s?, s:b, s:b, s:s, "
                     "s:s, s:O}",
                     "format", MLO_SEARCH_FORMAT, "goal", mlo_json_str(s->options, "goal", ""), "metric",
                     s->metric.name, "rung", rung, "used", "jobs", (json_int_t)s->used_jobs, "elapsed_s",
                     s->elapsed_s, "cpu_s", s->cpu_s, "gpu_s", s->gpu_s, "cost", s->cost, "source_bytes",
                     (json_int_t)s->source_bytes, "points", points, "front", front, "best",
                     best ? best->name : NULL, "met", met, "done", done, "why", why, "stopped", stopped,
                     "next", next);
    json_decref(points);
    json_decref(front);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_search_decide(const json_t *options, const json_t *run, json_t **out,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_search_state s;
    char stopped[160] = "";
    size_t order[MLO_SEARCH_CANDIDATES], count;
    int rank[MLO_SEARCH_CANDIDATES], rung = MLO_RUNG_SCREEN;
    json_t *next = json_array();
    MLO_TRY(mlo_search_state_init(&s, options, run, err));
    if (!next) {
        status = mlo_error_nomem(err);
        goto out;
    }
    count = ordered(&s, order, rank);
    if (s.last_rung <= MLO_RUNG_SCREEN)
        MLO_TRY(plan_screen(&s, next, stopped, sizeof stopped, err));
    else
        MLO_TRY(tell_untried(&s, stopped, sizeof stopped, err));
    mark_missed(&s, order, count);
    halve(&s, order, count);
    mark_front(&s, order, count);
    tell_dropped(&s, order, rank, count);
    if (json_array_size(next) == 0 && s.last_rung == MLO_RUNG_SCREEN) {
        rung = MLO_RUNG_SELECT;
        MLO_TRY(plan_rung(&s, order, count, rung, next, err));
        const char *spent = json_array_size(next) ? out_of(&s, rung, 0) : NULL;
        if (spent) {
            snprintf(stopped, sizeof stopped,
                     "the budget of %s ended the search on a part of the select data", spent);
            json_array_clear(next);
        }
    }
    if (json_array_size(next) == 0 && s.last_rung < MLO_RUNG_EVALUATE) {
        rung = MLO_RUNG_EVALUATE;
        MLO_TRY(plan_rung(&s, order, count, rung, next, err));
    }
    if (json_array_size(next) == 0)
        rung = MLO_MAX(s.last_rung, 1);
    MLO_TRY(tell(&s, order, count, rung, next, stopped, out, err));
out:
    json_decref(next);
    mlo_search_state_clear(&s);
    return status;
}
