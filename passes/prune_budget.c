/* What the units cost in multiply-adds and in weights, and which of them go so that a share of either does.
 */
#include <math.h>
#include <string.h>

#include "graph/infer.h"
#include "passes/prune_impl.h"

enum mlo_status mlo_prune_macs(const struct mlo_model *model, const struct prune *p, struct mlo_arena *arena,
                               uint64_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *bound = NULL;
    MLO_UNUSED(p);
    *out = mlo_arena_calloc(arena, (size_t)model->graph->node_count + 1, sizeof **out);
    if (!*out)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_model_clone_borrowing(model, &bound, err));
    MLO_TRY(mlo_graph_bind_batch(bound->graph, 1, err));
    for (int n = 0; n < bound->graph->node_count; n++)
        (*out)[n] = mlo_node_macs(bound->graph->nodes[n]);
out:
    mlo_model_free(bound);
    return status;
}

static double share(const struct prune *p, const struct mlo_value *v, int axis)
{
    int64_t dim = mlo_prune_dim(v, axis);
    return dim > 1 ? (double)mlo_prune_kept(p, v, axis, NULL) / (double)dim : 1;
}

static double share_all(const struct prune *p, const struct mlo_value *v)
{
    double product = 1;
    for (int a = 0; a < mlo_prune_rank(v); a++)
        product *= share(p, v, a);
    return product;
}

/* A node's multiply-adds are its outputs times the length of a sum (of a ConvTranspose: inputs times what
 * each adds to), and each factor shrinks by what is gone of its axes. */
static double share_of(const struct prune *p, const struct mlo_node *node)
{
    const struct mlo_value *x = mlo_node_input(node, 0), *w = mlo_node_input(node, 1);
    if (mlo_node_is(node, "ConvTranspose"))
        return share_all(p, x) * share(p, w, 1);
    double outputs = share_all(p, node->outputs[0]);
    if (mlo_node_is(node, "Conv"))
        return outputs * share(p, w, 1);
    if (mlo_node_is(node, "Gemm"))
        return outputs * share(p, x, mlo_node_attr_i(node, "transA", 0) ? 0 : 1);
    if (mlo_node_is(node, "MatMul"))
        return outputs * share(p, x, mlo_prune_rank(x) - 1);
    return outputs;
}

enum mlo_status mlo_prune_weights(const struct prune *p, struct mlo_arena *arena, uint64_t **out,
                                  struct mlo_error *err)
{
    const struct mlo_graph *graph = p->graph;
    *out = mlo_arena_calloc(arena, (size_t)graph->node_count + 1, sizeof **out);
    if (!*out)
        return mlo_error_nomem(err);
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        bool looks_up = mlo_node_is(node, "Gather");
        const struct mlo_tensor *w = looks_up || (node->op && (node->op->flags & MLO_OP_WEIGHTED))
                                         ? mlo_node_fixed(node, looks_up ? 0 : 1)
                                         : NULL;
        for (int before = 0; before < n && w; before++)
            if ((*out)[before] && (mlo_node_fixed(graph->nodes[before], 0) == w ||
                                   mlo_node_fixed(graph->nodes[before], 1) == w))
                w = NULL;
        (*out)[n] = w && w->rank > 1 ? mlo_tensor_count(w) : 0;
    }
    return MLO_OK;
}

double mlo_prune_cost(const struct prune *p, const uint64_t *costs)
{
    double total = 0;
    for (int n = 0; n < p->graph->node_count; n++)
        if (costs[n])
            total += (double)costs[n] * share_of(p, p->graph->nodes[n]);
    return total;
}

/* --- how many of each group ------------------------------------------------------------------------ */

static void set_removed(struct prune *p, int g, int removed)
{
    struct prune_group *group = &p->groups[g];
    for (int i = 0; i < group->count; i++)
        p->gone[group->order[i]] = i < removed;
    group->removed = removed;
}

/* Heads and blocks count one by one, channels in steps; of a head's width there are at least four. */
static int step_of(const struct prune_group *group, const struct prune_settings *s)
{
    if (group->inside)
        return MLO_MAX(MLO_MIN(s->round, group->count / 4), 1);
    return group->block > 1 ? 1 : s->round;
}

/* A multiple of the step too. */
static int least_kept(const struct prune_group *group, const struct prune_settings *s)
{
    int step = step_of(group, s), least = (MLO_MAX(s->min_channels, step) - 1) / step * step + step;
    return MLO_MIN(least, group->count);
}

/* What stays is a multiple of the step, where anything goes at all. */
static int next_removed(const struct prune_group *group, const struct prune_settings *s)
{
    int step = step_of(group, s), kept = group->count - group->removed;
    int next = (kept - 1) / step * step;
    return next < least_kept(group, s) || next < 1 ? -1 : group->count - next;
}

static void set_ratio(struct prune *p, const struct prune_settings *s, double ratio)
{
    for (int g = 0; g < p->group_count; g++) {
        struct prune_group *group = &p->groups[g];
        int step = step_of(group, s);
        int kept = (int)ceil((1 - ratio) * group->count / step - 1e-9) * step;
        kept = MLO_MIN(MLO_MAX(kept, least_kept(group, s)), group->count);
        set_removed(p, g, group->count - kept);
    }
}

void mlo_prune_halve(struct prune *p, const struct prune_settings *s, int group)
{
    struct prune_group *one = &p->groups[group];
    for (int g = 0; g < p->group_count; g++)
        set_removed(p, g, 0);
    for (int after; one->removed < one->count / 2 && (after = next_removed(one, s)) >= 0;)
        set_removed(p, group, after);
}

static void spend_evenly(struct prune *p, const struct prune_settings *s, const uint64_t *costs, double limit)
{
    double low = 0, high = 1;
    for (int i = 0; i < 30; i++) {
        double middle = (low + high) / 2;
        set_ratio(p, s, middle);
        if (mlo_prune_cost(p, costs) <= limit)
            high = middle;
        else
            low = middle;
    }
    set_ratio(p, s, high);
}

/* One that is no number is worse than any other, and the worse the more is gone. */
static double error_of(const struct prune_group *group, int removed)
{
    double error = group->weight * group->error[removed];
    return isfinite(error) ? error : 1e200 * (1 + removed);
}

/* How many are gone when one step of them is back. */
static int previous_removed(const struct prune_group *group, const struct prune_settings *s)
{
    int step = step_of(group, s), kept = group->count - group->removed;
    return group->count - MLO_MIN((kept / step + 1) * step, group->count);
}

/* The last step may have saved more than was asked for: where a group can have one back within the limit, the
 * one whose error is worst gets it. */
static void give_back(struct prune *p, const struct prune_settings *s, const uint64_t *costs, double limit)
{
    for (;;) {
        int best = -1, best_removed = 0;
        double most = 0;
        for (int g = 0; g < p->group_count; g++) {
            struct prune_group *group = &p->groups[g];
            int before = group->removed, after = previous_removed(group, s);
            if (before == 0)
                continue;
            double gain = error_of(group, before) - error_of(group, after);
            set_removed(p, g, after);
            bool fits = mlo_prune_cost(p, costs) <= limit;
            set_removed(p, g, before);
            if (fits && gain > most) {
                best = g;
                most = gain;
                best_removed = after;
            }
        }
        if (best < 0)
            return;
        set_removed(p, best, best_removed);
    }
}

/* The step that errs least for what it saves, of the groups that are not done; -1: there is none. */
static int best_step(struct prune *p, const struct prune_settings *s, const uint64_t *costs, const bool *done,
                     int *removed)
{
    int best = -1;
    double best_rate = 0, cost = mlo_prune_cost(p, costs);
    for (int g = 0; g < p->group_count; g++) {
        struct prune_group *group = &p->groups[g];
        int before = group->removed, after = done[g] ? -1 : next_removed(group, s);
        if (after < 0)
            continue;
        double error = error_of(group, after) - error_of(group, before);
        set_removed(p, g, after);
        double saved = cost - mlo_prune_cost(p, costs);
        set_removed(p, g, before);
        double rate = saved > 0 ? error / saved : HUGE_VAL;
        if (best < 0 || rate < best_rate) {
            best = g;
            best_rate = rate;
            *removed = after;
        }
    }
    return best;
}

/* As many steps as the limit allows come back to a group; what that gains. */
static double restore(struct prune *p, const struct prune_settings *s, const uint64_t *costs, double limit,
                      int g)
{
    struct prune_group *group = &p->groups[g];
    int before = group->removed, fits = before;
    while (group->removed > 0) {
        set_removed(p, g, previous_removed(group, s));
        if (mlo_prune_cost(p, costs) > limit)
            break;
        fits = group->removed;
    }
    set_removed(p, g, fits);
    return error_of(group, before) - error_of(group, fits);
}

/* Steps are coarse, and one after the other is not the best of all: while one group can give a step for what
 * another gets back, and all err less by it, the exchange that gains most is made. */
static void exchange(struct prune *p, const struct prune_settings *s, const uint64_t *costs, double limit)
{
    enum { ROUNDS = 64 };
    for (int round = 0; round < ROUNDS; round++) {
        int best_from = -1, best_to = -1, from_removed = 0, to_removed = 0;
        double most = 1e-9;
        for (int a = 0; a < p->group_count; a++) {
            int before_a = p->groups[a].removed, after_a = next_removed(&p->groups[a], s);
            if (after_a < 0)
                continue;
            set_removed(p, a, after_a);
            double lost = error_of(&p->groups[a], after_a) - error_of(&p->groups[a], before_a);
            for (int b = 0; b < p->group_count; b++) {
                int before_b = p->groups[b].removed;
                if (b == a || before_b == 0 || error_of(&p->groups[b], before_b) <= lost)
                    continue;
                double gain = restore(p, s, costs, limit, b) - lost;
                if (gain > most) {
                    most = gain;
                    best_from = a;
                    best_to = b;
                    from_removed = after_a;
                    to_removed = p->groups[b].removed;
                }
                set_removed(p, b, before_b);
            }
            set_removed(p, a, before_a);
        }
        if (best_from < 0)
            return;
        set_removed(p, best_from, from_removed);
        set_removed(p, best_to, to_removed);
    }
}

static double error_now(const struct prune *p)
{
    double error = 0;
    for (int g = 0; g < p->group_count; g++)
        error += error_of(&p->groups[g], p->groups[g].removed);
    return error;
}

static void note(const struct prune *p, int *removed)
{
    for (int g = 0; g < p->group_count; g++)
        removed[g] = p->groups[g].removed;
}

static void go_back(struct prune *p, const int *removed)
{
    for (int g = 0; g < p->group_count; g++)
        if (p->groups[g].removed != removed[g])
            set_removed(p, g, removed[g]);
}

/* Again and again the step that errs least for what it saves. One that reaches the limit may be coarse and
 * save far more than was asked for, at an error to match: what it comes to is kept, and the others go on
 * without that group, until none can. The first end and the one that errs least are bettered by exchanges;
 * what errs least then is it. */
static enum mlo_status spend_by_error(struct prune *p, const struct prune_settings *s, const uint64_t *costs,
                                      double limit, struct mlo_error *err)
{
    enum { BEFORE, FIRST, LEAST, STATES };
    size_t count = (size_t)p->group_count;
    bool *done = mlo_arena_calloc(p->arena, count, sizeof *done);
    int *state[STATES], last = BEFORE; /* of the ends that were found */
    double error[STATES] = {HUGE_VAL, HUGE_VAL, HUGE_VAL};
    bool allocated = done != NULL;
    for (int k = 0; k < STATES; k++) {
        state[k] = mlo_arena_calloc(p->arena, count, sizeof *state[k]);
        allocated = allocated && state[k];
    }
    if (!allocated)
        return mlo_error_nomem(err);
    for (int g, removed; (g = best_step(p, s, costs, done, &removed)) >= 0;) {
        note(p, state[BEFORE]);
        set_removed(p, g, removed);
        if (mlo_prune_cost(p, costs) > limit)
            continue;
        give_back(p, s, costs, limit);
        int k = last == BEFORE ? FIRST : LEAST;
        double now = error_now(p);
        if (k == FIRST || now < error[k]) {
            error[k] = now;
            note(p, state[k]);
            last = k;
        }
        go_back(p, state[BEFORE]);
        done[g] = true;
    }
    for (int k = FIRST; k <= last; k++) {
        go_back(p, state[k]);
        exchange(p, s, costs, limit);
        error[k] = error_now(p);
        note(p, state[k]);
    }
    if (last != BEFORE) /* else all that can go is gone, and the limit is reached but for rounding */
        go_back(p, state[error[LEAST] < error[FIRST] ? LEAST : FIRST]);
    return MLO_OK;
}

enum mlo_status mlo_prune_spend(struct prune *p, const struct prune_settings *s, const uint64_t *costs,
                                struct mlo_error *err)
{
    for (int g = 0; g < p->group_count; g++)
        set_removed(p, g, 0);
    double whole = mlo_prune_cost(p, costs), limit = (1 - s->remove) * whole;
    if (!(whole > 0)) {
        mlo_error_set(err, MLO_EUNSUPPORTED, "what its nodes cost is not known: sizes of values are open");
        mlo_error_hint(err, "export the model with fixed sizes behind the batch");
        return MLO_EUNSUPPORTED;
    }
    set_ratio(p, s, 1);
    double least = mlo_prune_cost(p, costs);
    if (least > limit * (1 + 1e-12)) {
        mlo_error_set(err, MLO_EINVAL,
                      "%.1f%% of the %s cannot go: that would leave a group without channels. At "
                      "most %.1f%% can, from %d groups",
                      s->remove * 100, s->of, floor((1 - least / whole) * 1000) / 10, p->group_count);
        mlo_error_where(err, "option 'remove'");
        mlo_error_hint(
            err,
            "ask for less, or round to fewer channels (round: %d, min_channels: %d); of many heads "
            "more can go as a whole (heads: whole)",
            s->round, s->min_channels);
        return MLO_EINVAL;
    }
    for (int g = 0; g < p->group_count; g++)
        set_removed(p, g, 0);
    if (strcmp(s->ratios, "uniform") != 0)
        return spend_by_error(p, s, costs, limit, err);
    spend_evenly(p, s, costs, limit);
    return MLO_OK;
}
