/* Shared by the files of the search's choice. */
#ifndef MLO_STEPS_SEARCH_IMPL_H
#define MLO_STEPS_SEARCH_IMPL_H

#include "pipeline/steps/search.h"

/* Rungs of the halving, as jobs name them; 0 is none. */
enum { MLO_RUNG_SCREEN = 1, MLO_RUNG_SELECT, MLO_RUNG_EVALUATE };

/* A candidate and what is known of it; texts are borrowed of the state's documents. */
struct mlo_search_candidate {
    const char *name, *artifact, *made_by, *why;
    const json_t *steps;
    struct mlo_search_point point;
    struct mlo_bounded accuracy, evaluated, evaluated_drop;
    int begun, screened; /* the last rung of which it has jobs, and of which its accuracy is */
    int64_t samples;     /* that its accuracy is of */
    bool failed, kept, front;
};

struct mlo_search_state {
    const json_t *options, *run;
    struct mlo_goal goal;
    struct mlo_metric_use metric;
    json_t *space;
    struct mlo_search_candidate *all;
    size_t count;
    double elapsed_s, cpu_s, source_bytes;
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

#endif
