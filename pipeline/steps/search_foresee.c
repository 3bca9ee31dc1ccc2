/* What a search expects of candidates that it has not tried, and which it tries next. Shape (what pruning
 * left) and form (how weights are kept) hardly know of each other: one that prunes a quarter has as much less
 * to compute whether its weights have 4 bits or 32. So what each does alone foretells what they do together.
 */
#include <math.h>
#include <string.h>

#include "pipeline/steps/search_impl.h"

static const double CERTAIN = 0.05; /* of it: more than measurements err */
static const double SURE = 0.001;
static const double WORTH_IT = 0.01; /* of the volume that is reached: what adds less is not tried */
/* What is foreseen to be so much better than the best objective so far is tried first. */
static const double FASTER = 0.98, LESS_DROP = 0.001;

/* What something does to a model: its drop is added, latency and size are times as large. */
struct effect {
    double drop, times[MLO_AXES]; /* times[MLO_AXIS_DROP] is unused */
    bool known;
};
static const struct effect NO_EFFECT = {0, {1, 1, 1}, true};
static const struct effect UNKNOWN = {0, {1, 1, 1}, false};

bool mlo_search_measured(const struct mlo_search_candidate *c)
{
    return c->begun > 0 && !c->failed && mlo_point_whole(&c->point);
}

static struct effect effect_of(const struct mlo_search_candidate *c)
{
    struct effect e = {.drop = c->point.axis[MLO_AXIS_DROP].value, .known = true};
    for (int i = 0; i < MLO_AXES; i++)
        e.times[i] = c->point.axis[i].value;
    return e;
}

/* What is left of `whole` without `part`. */
static struct effect without(struct effect whole, struct effect part)
{
    struct effect e = {.drop = whole.drop - part.drop, .known = whole.known && part.known};
    for (int i = 1; i < MLO_AXES; i++)
        e.times[i] = part.times[i] > 0 ? whole.times[i] / part.times[i] : 1;
    return e;
}

static struct effect together(struct effect a, struct effect b)
{
    struct effect e = {.drop = a.drop + b.drop, .known = a.known && b.known};
    for (int i = 1; i < MLO_AXES; i++)
        e.times[i] = a.times[i] * b.times[i];
    return e;
}

/* --- what everything is compared with ------------------------------------------------------------------ */

/* What is listed first of each knob, of what can be made. */
struct base {
    const char *shape, *form;
    int64_t threads;
};

static struct base base_of(const struct mlo_search_state *s)
{
    const struct mlo_search_candidate *first = &s->all[0];
    for (size_t i = s->count; i-- > 0;)
        if (!s->all[i].failed && !s->all[i].between && s->all[i].threads == s->source_threads)
            first = &s->all[i];
    return (struct base){first->shape, first->form, s->source_threads};
}

static bool is_at(const struct mlo_search_candidate *c, const char *shape, const char *form, int64_t threads)
{
    return strcmp(c->shape, shape) == 0 && strcmp(c->form, form) == 0 && c->threads == threads;
}

static struct effect measured_at(const struct mlo_search_state *s, const char *shape, const char *form,
                                 int64_t threads)
{
    for (size_t i = 0; i < s->count; i++)
        if (mlo_search_measured(&s->all[i]) && is_at(&s->all[i], shape, form, threads))
            return effect_of(&s->all[i]);
    return UNKNOWN;
}

/* Of the base against the source: nothing, where it is the source. */
static struct effect of_base(const struct mlo_search_state *s, const struct base *b)
{
    struct effect e = measured_at(s, b->shape, b->form, b->threads);
    return !e.known && !*b->shape && strcmp(b->form, "float") == 0 ? NO_EFFECT : e;
}

static struct effect of_form(const struct mlo_search_state *s, const struct base *b, const char *form)
{
    return strcmp(form, b->form) == 0 ? NO_EFFECT
                                      : without(measured_at(s, b->shape, form, b->threads), of_base(s, b));
}

static struct effect of_threads(const struct mlo_search_state *s, const struct base *b, int64_t threads)
{
    return threads == b->threads ? NO_EFFECT
                                 : without(measured_at(s, b->shape, b->form, threads), of_base(s, b));
}

/* By itself, or in whatever form it was measured. */
static struct effect of_measured_shape(const struct mlo_search_state *s, const struct base *b,
                                       const char *shape)
{
    if (strcmp(shape, b->shape) == 0)
        return NO_EFFECT;
    struct effect e = without(measured_at(s, shape, b->form, b->threads), of_base(s, b));
    for (size_t i = 0; !e.known && i < s->count; i++) {
        const struct mlo_search_candidate *c = &s->all[i];
        if (mlo_search_measured(c) && strcmp(c->shape, shape) == 0 && c->threads == b->threads)
            e = without(without(effect_of(c), of_base(s, b)), of_form(s, b, c->form));
    }
    return e;
}

/* Of a share between two that were measured: between what they do. */
static struct effect of_shape(const struct mlo_search_state *s, const struct base *b,
                              const struct mlo_search_candidate *c)
{
    struct effect own = of_measured_shape(s, b, c->shape), low = UNKNOWN, high = UNKNOWN;
    double below = -1, above = 2;
    if (own.known || !c->between)
        return own;
    for (size_t i = 0; i < s->count; i++) {
        const struct mlo_search_candidate *o = &s->all[i];
        bool nearer = o->share < c->share ? o->share > below : o->share > c->share && o->share < above;
        if (!nearer || (o->share > 0 && (o->round != c->round || o->of_weights != c->of_weights)))
            continue;
        struct effect e = of_measured_shape(s, b, o->shape);
        if (e.known && o->share < c->share) {
            below = o->share;
            low = e;
        } else if (e.known) {
            above = o->share;
            high = e;
        }
    }
    double t = (c->share - below) / (above - below);
    struct effect e = {.drop = low.drop + t * (high.drop - low.drop), .known = low.known && high.known};
    for (int i = 1; i < MLO_AXES; i++)
        e.times[i] = low.times[i] + t * (high.times[i] - low.times[i]);
    return e;
}

/* A time of the source, by a candidate that was timed beside it: what it took by its ratio. */
static double source_us(const struct mlo_bounded *us, const struct mlo_bounded *ratio)
{
    return us->known && ratio->known && ratio->value > 0 ? us->value / ratio->value : 0;
}

static struct mlo_bounded guessed(double value, bool known)
{
    return (struct mlo_bounded){value, value, value, known};
}

/* Latencies as goals bound them, by the ratio that is foreseen of the p50: it is thought to be the p99's. */
static void foresee_latencies(const struct mlo_search_state *s, struct mlo_search_point *p)
{
    double p50 = 0, p99 = 0, ratio = p->axis[MLO_AXIS_LATENCY].value;
    bool known = p->axis[MLO_AXIS_LATENCY].known;
    for (size_t i = 0; i < s->count && !(p50 > 0 && p99 > 0); i++) {
        const struct mlo_search_point *o = &s->all[i].point;
        if (!mlo_search_measured(&s->all[i]))
            continue;
        p50 = p50 > 0 ? p50 : source_us(&o->p50_us, &o->axis[MLO_AXIS_LATENCY]);
        p99 = p99 > 0 ? p99 : source_us(&o->p99_us, &o->p99_ratio);
    }
    p->p99_ratio = guessed(ratio, known);
    p->p50_us = guessed(ratio * p50, known && p50 > 0);
    p->p99_us = guessed(ratio * p99, known && p99 > 0);
}

bool mlo_search_foresee(const struct mlo_search_state *s, const struct mlo_search_candidate *c,
                        struct mlo_search_point *out)
{
    struct base b = base_of(s);
    struct effect e = together(together(of_base(s, &b), of_shape(s, &b, c)),
                               together(of_form(s, &b, c->form), of_threads(s, &b, c->threads)));
    *out = (struct mlo_search_point){.size_bytes = e.times[MLO_AXIS_SIZE] * s->source_bytes};
    for (int i = 0; i < MLO_AXES; i++) {
        double v = i == MLO_AXIS_DROP ? e.drop : e.times[i];
        out->axis[i] = guessed(v, e.known);
    }
    foresee_latencies(s, out);
    return e.known;
}

/* --- what comes next ----------------------------------------------------------------------------------- */

/* One value alone, all others the plainest. */
static bool stands_alone(const struct base *b, const struct mlo_search_candidate *c)
{
    return !c->between &&
           (strcmp(c->shape, b->shape) != 0) + (strcmp(c->form, b->form) != 0) + (c->threads != b->threads) <=
               1;
}

bool mlo_search_part_failed(const struct mlo_search_state *s, const struct mlo_search_candidate *c)
{
    struct base b = base_of(s);
    struct mlo_search_point p;
    bool failed = false;
    for (size_t i = 0; i < s->count && !failed; i++) {
        const struct mlo_search_candidate *o = &s->all[i];
        failed = o->failed && stands_alone(&b, o) &&
                 ((strcmp(o->shape, b.shape) != 0 && strcmp(o->shape, c->shape) == 0) ||
                  (strcmp(o->form, b.form) != 0 && strcmp(o->form, c->form) == 0) ||
                  (o->threads != b.threads && o->threads == c->threads));
    }
    return failed && !mlo_search_foresee(s, c, &p);
}

/* Another calibration of the same precision tells what to think of this one: where it is out, so is this. 1:
 * it is; 0: there is none; -1: it is being tried. */
static int told_off(const struct mlo_search_state *s, const struct mlo_search_candidate *c,
                    const bool *planned)
{
    int out = 0;
    for (size_t i = 0; i < s->count; i++) {
        const struct mlo_search_candidate *o = &s->all[i];
        if (o == c || strcmp(o->precision, c->precision) != 0 || strcmp(o->form, c->form) == 0 ||
            strcmp(o->shape, c->shape) != 0 || o->threads != c->threads)
            continue;
        if (planned[i])
            return -1;
        if (!mlo_search_measured(o))
            continue;
        bool beaten = mlo_goal_held(&s->goal, &o->point, true) < s->goal.count;
        for (size_t k = 0; !beaten && k < s->count; k++)
            beaten = mlo_search_measured(&s->all[k]) && mlo_point_dominates(&s->all[k].point, &o->point);
        if (!beaten)
            return 0;
        out = 1;
    }
    return out;
}

/* What was measured, as if it were exact: a guess is judged by values, too. */
static struct mlo_search_point by_value(struct mlo_search_point p)
{
    struct mlo_bounded *all[] = {&p.axis[0], &p.axis[1], &p.axis[2], &p.p50_us, &p.p99_us, &p.p99_ratio};
    for (size_t i = 0; i < MLO_COUNT(all); i++)
        all[i]->low = all[i]->high = all[i]->value;
    return p;
}

static bool keeps_goal(const struct mlo_search_state *s, const struct mlo_search_point *p)
{
    return mlo_goal_held(&s->goal, p, true) == s->goal.count;
}

/* What is known, and what is foreseen of planned ones; *best: the least objective of those that keep the
 * goal. */
static size_t reached(const struct mlo_search_state *s, const bool *planned, struct mlo_search_point *points,
                      double *best)
{
    size_t n = 0;
    *best = INFINITY;
    for (size_t i = 0; i < s->count; i++) {
        bool there = mlo_search_measured(&s->all[i]);
        if (there)
            points[n] = by_value(s->all[i].point);
        if (!there && !(planned[i] && mlo_search_foresee(s, &s->all[i], &points[n])))
            continue;
        if (keeps_goal(s, &points[n]))
            *best = MLO_MIN(*best, points[n].axis[s->goal.objective].value);
        n++;
    }
    return n;
}

/* What serves the goal itself better than all there is, the best of that; else what adds most to the front.
 */
static size_t pick_foreseen(const struct mlo_search_state *s, const bool *planned)
{
    struct mlo_search_point points[MLO_SEARCH_CANDIDATES + 1], p;
    enum mlo_axis objective = s->goal.objective;
    double best;
    size_t n = reached(s, planned, points, &best), chosen = s->count;
    double volume = mlo_points_volume(&s->goal, points, n), most = WORTH_IT * volume,
           leader = objective == MLO_AXIS_DROP ? best - LESS_DROP : best * FASTER;
    bool serves = false;
    for (size_t i = 0; i < s->count; i++) {
        if (s->all[i].begun || planned[i] || !mlo_search_foresee(s, &s->all[i], &p))
            continue;
        if (keeps_goal(s, &p) && p.axis[objective].value < leader) {
            leader = p.axis[objective].value;
            chosen = i;
            serves = true;
        }
        points[n] = p;
        double more = serves ? 0 : mlo_points_volume(&s->goal, points, n + 1) - volume;
        if (more > most) {
            most = more;
            chosen = i;
        }
    }
    return chosen;
}

static double bits_of(const struct mlo_search_candidate *c)
{
    const struct mlo_search_precision *p = mlo_search_precision_find(c->precision);
    return p->sparse ? p->bits + 32 * (1 - c->sparsity) : p->bits;
}

static bool is_sparse(const struct mlo_search_candidate *c)
{
    return mlo_search_precision_find(c->precision)->sparse;
}

/* Whether a form alone is computed as floats with fewer bits of all weights: the more, the less is lost. */
static bool is_plain(const struct mlo_search_state *s, const struct mlo_search_candidate *c)
{
    return !*c->shape && c->threads == s->source_threads && bits_of(c) > 0 && !is_sparse(c);
}

/* Known to lose nothing: but for two samples, and for a tenth of a point. */
static bool is_sure(const struct mlo_search_candidate *c)
{
    return c->point.axis[MLO_AXIS_DROP].high <= MLO_MAX(SURE, 4 / (double)MLO_MAX(c->samples, 1));
}

/* A search has something that loses nothing, and the smallest such: as long as nothing that was measured is
 * known to, the form that has the next more bits is tried. */
static bool is_next_surer(const struct mlo_search_state *s, const struct mlo_search_candidate *c,
                          const bool *planned)
{
    double most = 0;
    if (!is_plain(s, c))
        return false;
    for (size_t i = 0; i < s->count; i++) {
        const struct mlo_search_candidate *o = &s->all[i];
        if (!is_plain(s, o))
            continue;
        if (planned[i] || (mlo_search_measured(o) && is_sure(o)))
            return false;
        most = mlo_search_measured(o) ? MLO_MAX(most, bits_of(o)) : most;
    }
    for (size_t i = 0; i < s->count; i++) {
        const struct mlo_search_candidate *o = &s->all[i];
        if (is_plain(s, o) && !o->begun && bits_of(o) > most && bits_of(o) < bits_of(c))
            return false;
    }
    return most > 0 && bits_of(c) > most;
}

/* Whether a form that stands alone can add to the front, at the best that is known of it beforehand: no drop,
 * the source's speed, and no smaller than what was measured of forms with no more bits. */
static bool hopeless(const struct mlo_search_state *s, const struct mlo_search_candidate *c,
                     const bool *planned)
{
    struct mlo_search_point points[MLO_SEARCH_CANDIDATES + 1];
    double best, bits = bits_of(c), least = bits / 32;
    if (bits == 0 || *c->shape || c->threads != s->source_threads)
        return false;
    for (size_t i = 0; i < s->count; i++) {
        const struct mlo_search_candidate *o = &s->all[i];
        if (mlo_search_measured(o) && !*o->shape && bits_of(o) > 0 && bits_of(o) <= bits)
            least = MLO_MAX(least, o->point.axis[MLO_AXIS_SIZE].value);
    }
    size_t n = reached(s, planned, points, &best);
    double volume = mlo_points_volume(&s->goal, points, n);
    points[n] =
        (struct mlo_search_point){.axis = {{0, 0, 0, true}, {1, 1, 1, true}, {least, least, least, true}}};
    return n > 0 && mlo_points_volume(&s->goal, points, n + 1) - volume <= CERTAIN * volume;
}

/* The next value that is to be tried alone; s->count: none. *waits: some are being tried, or wait for one. */
static size_t pick_alone(const struct mlo_search_state *s, const struct base *b, const bool *planned,
                         bool deferred, bool *waits)
{
    for (size_t i = 0; i < s->count; i++) {
        const struct mlo_search_candidate *c = &s->all[i];
        /* a share of weights tells nothing of those of multiply-adds, nor a form that is tried to be sure */
        *waits = *waits || (planned[i] && stands_alone(b, c) && !c->of_weights && !hopeless(s, c, planned));
        if (c->begun || planned[i] || !stands_alone(b, c))
            continue;
        /* where integers are no faster, what floats promise comes first */
        if (s->plain_integers && mlo_search_precision_find(c->precision)->integers && !deferred)
            continue;
        int off = told_off(s, c, planned);
        *waits = *waits || off < 0;
        if (off == 0 && (!hopeless(s, c, planned) || is_next_surer(s, c, planned)))
            return i;
    }
    return s->count;
}

/* What keeps the goal with the best objective is what a search is asked for. Of its shape the form with the
 * next more bits is tried, however little that promises: what few bits lose beside it is measured, not
 * foreseen. */
static size_t pick_gentler(const struct mlo_search_state *s, const bool *planned)
{
    size_t best = s->count, chosen = s->count;
    struct mlo_search_point p;
    double least = INFINITY;
    for (size_t i = 0; i < s->count; i++) {
        if (!mlo_search_measured(&s->all[i]))
            continue;
        p = by_value(s->all[i].point);
        if (keeps_goal(s, &p) && p.axis[s->goal.objective].value < least) {
            least = p.axis[s->goal.objective].value;
            best = i;
        }
    }
    if (best == s->count)
        return s->count;
    const struct mlo_search_candidate *b = &s->all[best];
    if (!*b->shape || bits_of(b) == 0)
        return s->count;
    for (size_t i = 0; i < s->count; i++) {
        const struct mlo_search_candidate *c = &s->all[i];
        if (strcmp(c->shape, b->shape) == 0 && c->threads == b->threads && !is_sparse(c) &&
            bits_of(c) > bits_of(b) && (chosen == s->count || bits_of(c) < bits_of(&s->all[chosen])) &&
            mlo_search_foresee(s, c, &p))
            chosen = i;
    }
    return chosen < s->count && !s->all[chosen].begun && !planned[chosen] ? chosen : s->count;
}

size_t mlo_search_pick(const struct mlo_search_state *s, const bool *planned, size_t most)
{
    struct base b = base_of(s);
    size_t guesses = 0, next;
    bool waits = false;
    for (size_t i = 0; i < s->count; i++)
        guesses += planned[i] && !stands_alone(&b, &s->all[i]);
    if (guesses >= most)
        return s->count;
    next = pick_alone(s, &b, planned, false, &waits);
    if (next < s->count || waits) /* what is alone tells more of the others than they do */
        return next;
    next = pick_foreseen(s, planned);
    if (next == s->count)
        next = pick_gentler(s, planned);
    return next < s->count || guesses > 0 ? next : pick_alone(s, &b, planned, true, &waits);
}

/* Of those that are not used the one that adds most to `n` points; ties fall to what stands first. */
static size_t most_of(const struct mlo_search_state *s, const size_t *among, size_t count, const bool *used,
                      struct mlo_search_point *points, size_t n)
{
    size_t chosen = count;
    double most = -INFINITY, volume = mlo_points_volume(&s->goal, points, n);
    for (size_t i = 0; i < count; i++) {
        if (used[i])
            continue;
        points[n] = s->all[among[i]].point;
        double more = mlo_points_volume(&s->goal, points, n + 1) - volume;
        if (more > most + 1e-12) {
            most = more;
            chosen = i;
        }
    }
    return chosen;
}

/* The one that loses least: of those that are not shown to lose more than the least that was measured, the
 * one that less was pruned of, and then of more bits. */
static size_t least_loss(const struct mlo_search_state *s, const size_t *among, size_t count,
                         const bool *used)
{
    size_t chosen = count;
    double least = INFINITY;
    for (size_t i = 0; i < count; i++)
        least = MLO_MIN(least, s->all[among[i]].point.axis[MLO_AXIS_DROP].value);
    for (size_t i = 0; i < count; i++) {
        const struct mlo_search_candidate *c = &s->all[among[i]];
        const struct mlo_search_candidate *best = chosen < count ? &s->all[among[chosen]] : NULL;
        if (used[i] || c->point.axis[MLO_AXIS_DROP].low > least)
            continue;
        if (!best || c->share < best->share || (c->share == best->share && bits_of(c) > bits_of(best)))
            chosen = i;
    }
    return chosen;
}

size_t mlo_search_spread(const struct mlo_search_state *s, const size_t *among, size_t count, size_t most,
                         size_t *out)
{
    struct mlo_search_point points[MLO_SEARCH_CANDIDATES + 1];
    bool used[MLO_SEARCH_CANDIDATES] = {false};
    size_t n = 0;
    while (n < MLO_MIN(most, count)) {
        size_t chosen = n == 1 ? least_loss(s, among, count, used) : 0;
        if (n > 1 || chosen == count)
            chosen = most_of(s, among, count, used, points, n);
        used[chosen] = true;
        points[n] = s->all[among[chosen]].point;
        out[n++] = among[chosen];
    }
    return n;
}
