/* A search over combinations of compression steps: goals, points and their order, the candidates of a space,
 * and what to do next. All of it is a pure function of what it is given: the same measurements and the same
 * time used lead to the same choice. Successive halving: Jamieson, Talwalkar, AISTATS 2016. */
#ifndef MLO_STEPS_SEARCH_H
#define MLO_STEPS_SEARCH_H

#include "base/condition.h"
#include "pipeline/steps/steps.h"

/* --- goals (goal.c) ------------------------------------------------------------------------------------ */

enum mlo_axis { MLO_AXIS_DROP, MLO_AXIS_LATENCY, MLO_AXIS_SIZE, MLO_AXES }; /* less is better on each */
enum { MLO_GOAL_CONDITIONS = 6 };

/* "accuracy_drop<=0.5pt, latency_p99<=5ms, size<=0.25*source, min latency": what must hold, and what is made
 * least among what holds it (latency where nothing is said). */
struct mlo_goal {
    struct mlo_condition conditions[MLO_GOAL_CONDITIONS]; /* upper bounds; latencies in us, sizes in bytes */
    size_t count;
    enum mlo_axis objective;
};
/* MLO_EINVAL names the part that is not understood, and what is near. */
MLO_MUST_USE enum mlo_status mlo_goal_parse(const char *text, struct mlo_goal *out, struct mlo_error *err);
const char *mlo_axis_name(enum mlo_axis axis);

/* --- points (pareto.c) --------------------------------------------------------------------------------- */

struct mlo_bounded { /* a measurement with its 95% interval */
    double value, low, high;
    bool known;
};
struct mlo_search_point {
    struct mlo_bounded axis[MLO_AXES]; /* drop: a fraction; latency: p50, ratio to the source; size:
                                          ratio to the source */
    struct mlo_bounded p50_us, p99_us, p99_ratio; /* of the variant; p99 against the source's */
    double size_bytes;
};
/* Whether all axes are known. */
bool mlo_point_whole(const struct mlo_search_point *point);
/* Whether `a` is nowhere worse than `b` and somewhere better, by values, and of the drop by the bound against
 * it as well: what is known to lose nothing is not beaten by what only seems so. Of two that are equal
 * neither dominates. */
bool mlo_point_dominates(const struct mlo_search_point *a, const struct mlo_search_point *b);
/* The front: rank[i] is 0 where nothing dominates point i, 1 where only those of rank 0 do, and so on; -1 for
 * a point that is not whole. Of equal ones all have the same rank. */
void mlo_points_rank(const struct mlo_search_point *points, size_t count, int *rank);
/* How many of the goal's conditions hold; `hopeful`: that could still hold, by the end of the interval that
 * speaks for them. One that was not measured holds only hopefully. */
size_t mlo_goal_held(const struct mlo_goal *goal, const struct mlo_search_point *point, bool hopeful);
/* How much of the space of drop, latency and size (both on a logarithmic scale) the points reach together:
 * what is nowhere better than one of them, up to the goal's bound of the drop (5 points where it has none)
 * and a quarter more than it, and to 1.25 times the source's latency and size. Measurements that are not
 * known reach nothing; of a drop below 0 no more is thought than of 0. */
double mlo_points_volume(const struct mlo_goal *goal, const struct mlo_search_point *points, size_t count);
/* Below 0: `a` is better for the goal: more of it holds, then less of its objective, then of the other axes.
 */
int mlo_goal_order(const struct mlo_goal *goal, const struct mlo_search_point *a,
                   const struct mlo_search_point *b);

/* --- the space (search_knobs.c, search_space.c)
 * ------------------------------------------------------------------------ */

/* All candidates of a search's (resolved) options, in the order in which they are listed: [{"name","shape",
 * "form","precision","share","of_weights","sparsity","round","threads","between","steps":[{"step","options"
 * (resolved)}]}]. Those that come to the same are one. With the option foresee, behind them those whose share
 * of pruning lies between two that are listed, as many as there is room for. MLO_EINVAL for a value that a
 * knob does not have, and for two that come to one name; MLO_ETOOBIG for more than MLO_SEARCH_CANDIDATES.
 * *out is yours. */
enum { MLO_SEARCH_CANDIDATES = 128, MLO_SEARCH_VARIANT_MAX = 100 /* bytes of RECIPE-CANDIDATE */ };
MLO_MUST_USE enum mlo_status mlo_search_space(const json_t *options, json_t **out, struct mlo_error *err);
/* What can be said of a search's options before anything is done: goal, knobs, budgets. */
MLO_MUST_USE enum mlo_status mlo_search_check(const json_t *options, struct mlo_error *err);

/* --- the choice (search_decide.c) ---------------------------------------------------------------------- */

/* Names the form of a search's decisions (docs/search.md). */
#define MLO_SEARCH_FORMAT "mlopt-search-1"
/* What comes next. `run` is what the run did so far:
 *   {"elapsed_s","cpu_s","gpu_s","source_bytes","jobs":[{"step","state","spec":{"options","candidate","rung"},
 *    "output" (digest or null),"size" (of it, or null),"result":{"report","observations"},"error"}]}
 * in order. *out (yours):
 *   {"format","goal","metric","rung","used":{"jobs","elapsed_s","cpu_s","gpu_s","cost"},"points":[…],"front":[name…],
 *    "best","met","done","why","next":[{"candidate","rung","input" (digest, or null: the upload),"steps":
 *    [{"step","options"}]}]}
 * with done: nothing is next. */
MLO_MUST_USE enum mlo_status mlo_search_decide(const json_t *options, const json_t *run, json_t **out,
                                               struct mlo_error *err);

#endif
