/* Shared by the files of the search's choice. */
#ifndef MLO_STEPS_SEARCH_IMPL_H
#define MLO_STEPS_SEARCH_IMPL_H

#include "pipeline/steps/search.h"

/* Rungs of the halving, as jobs name them; 0 is none. */
enum { MLO_RUNG_SCREEN = 1, MLO_RUNG_SELECT, MLO_RUNG_EVALUATE };

/* --- knobs (search_knobs.c) ---------------------------------------------------------------------------- */

enum mlo_search_knob {
    MLO_KNOB_PRUNE,
    MLO_KNOB_ROUND,
    MLO_KNOB_PRECISION,
    MLO_KNOB_SPARSITY,
    MLO_KNOB_CALIBRATOR,
    MLO_KNOB_ROUNDING,
    MLO_KNOB_MIXED,
    MLO_KNOB_THREADS,
    MLO_KNOBS
};
extern const char *const mlo_search_knob_names[MLO_KNOBS]; /* as options are named */

/* What a precision is made by, and which other knobs change it. */
struct mlo_search_precision {
    const char *name, *step; /* NULL: floats stay */
    const char *options;     /* JSON */
    bool calibrates;         /* calibrator, rounding, mixed */
    bool sparse;             /* sparsity */
    bool integers;           /* activations are integers too: fast where the processor multiplies them so */
    double bits; /* of a weight, of forms that the engine computes as floats, and so at its speed at
                    best; what has more bits makes no smaller file. 0: other forms */
};
/* NULL when unknown. */
const struct mlo_search_precision *mlo_search_precision_find(const char *name);
/* A share of the weights or of the multiply-adds, "30%", as a fraction; negative where it is none. */
double mlo_search_share(const char *text);
/* A value of the knob prune: 0 of "none", else the share that goes, "30%" of the multiply-adds, or "30% of
 * weights"; negative where it is none of these. */
double mlo_search_pruned(const char *text, bool *of_weights);
/* Whether all values of a knob are such as it has: MLO_EINVAL names the one that is not. */
MLO_MUST_USE enum mlo_status mlo_search_check_knob(const json_t *options, enum mlo_search_knob knob,
                                                   struct mlo_error *err);

/* --- the state (search_points.c) ----------------------------------------------------------------------- */

/* A candidate and what is known of it; texts are borrowed of the state's documents. Its shape is what pruning
 * left, its form how weights are kept: what is known of both alone foretells what they are together. */
struct mlo_search_candidate {
    const char *name, *artifact, *made_by, *why;
    const char *shape, *form, *precision;
    double share; /* of the multiply-adds that go, or of the weights */
    bool of_weights;
    double sparsity; /* of the weights that are zero */
    int64_t round;   /* of channels */
    int64_t threads; /* that it is timed with */
    bool between;    /* its share is not listed: it lies between two that are */
    const json_t *steps;
    struct mlo_search_point point;
    struct mlo_bounded accuracy, evaluated, evaluated_drop;
    int begun;       /* the last rung of which it has jobs */
    int screened;    /* MLO_RUNG_SELECT where its accuracy is of all of the data, whichever rung that was */
    int64_t samples; /* that its accuracy is of */
    bool failed, kept, front;
    bool missed; /* it misses the goal even by the better end of its intervals, and others do not */
};

struct mlo_search_state {
    const json_t *options, *run;
    struct mlo_goal goal;
    struct mlo_metric_use metric;
    json_t *space;
    struct mlo_search_candidate *all;
    size_t count;
    double elapsed_s, cpu_s, gpu_s, cost, source_bytes; /* cost: by the prices of the options */
    bool plain_integers;    /* the machine has no instructions for products of small integers */
    int64_t source_threads; /* that the source is timed with: the first of the list */
    int64_t used_jobs;
    int last_rung;
};
/* Clear it, also on failure. */
MLO_MUST_USE enum mlo_status mlo_search_state_init(struct mlo_search_state *s, const json_t *options,
                                                   const json_t *run, struct mlo_error *err);
void mlo_search_state_clear(struct mlo_search_state *s);
/* Appends a step with resolved options; takes `given`. */
MLO_MUST_USE enum mlo_status mlo_search_add_step(json_t *steps, const char *name, json_t *given,
                                                 struct mlo_error *err);
/* A candidate in a decision; yours, NULL when out of memory. */
json_t *mlo_search_point_json(const struct mlo_search_state *s, const struct mlo_search_candidate *c);

/* --- what is foreseen (search_foresee.c) --------------------------------------------------------------- */

/* Whether it was measured, on all axes. */
bool mlo_search_measured(const struct mlo_search_candidate *c);
/* What a candidate that was not tried will come to, by those that were: shape, form and threads each do what
 * they did alone (latency and size times, drops added up), and a share between two that were measured lies
 * between them; of latencies in microseconds and of p99 what the ratio of p50 says. False where one of these
 * is not known. */
bool mlo_search_foresee(const struct mlo_search_state *s, const struct mlo_search_candidate *c,
                        struct mlo_search_point *out);
/* Whether nothing is foreseen of a candidate since one of its values, tried alone, failed. */
bool mlo_search_part_failed(const struct mlo_search_state *s, const struct mlo_search_candidate *c);
/* The next to be tried beside `planned` ones: each value of each knob alone, in the order in which they are
 * listed; then what adds most to the front by what is foreseen. s->count: nothing that promises more. `most`
 * (foreseen ones at once): those that come after it wait for what these bring. */
size_t mlo_search_pick(const struct mlo_search_state *s, const bool *planned, size_t most);
/* So many of `among` (indices of measured candidates, best first) as `most` says, into `out`: the first, the
 * one that loses least, and then what adds most to what those before it reach; ties, and what adds nothing,
 * as they stand. Returns how many. */
size_t mlo_search_spread(const struct mlo_search_state *s, const size_t *among, size_t count, size_t most,
                         size_t *out);

#endif
