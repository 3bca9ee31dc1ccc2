/* Running a model layer by layer, each only from where the layers before it ended: for loops that change a
 * layer by what was observed of it, and go on to the next. What later layers read is kept in files without
 * names, so memory is bounded by the layers between two observed ones, and each node runs once or twice. */
#ifndef MLO_STEPS_FRONTIER_H
#define MLO_STEPS_FRONTIER_H

#include "pipeline/steps/step_impl.h"

struct mlo_frontier;

/* For the first `samples` samples of the dataset. *out is NULL where the model cannot be run so (subgraphs,
 * shapes known at run only, values of `wants` without rows for each sample): run it as a whole then. `model`
 * and dataset must outlive it. */
MLO_MUST_USE enum mlo_status mlo_frontier_open(const struct mlo_step_context *ctx,
                                               const struct mlo_model *model, struct mlo_dataset *dataset,
                                               const struct mlo_stats_wants *wants, int64_t samples,
                                               struct mlo_frontier **out, struct mlo_error *err);
/* Observes channels (dim 1) of the named node's output, for the model as it is now: constants of this node
 * may change between calls, and of nodes that no call has needed yet. */
MLO_MUST_USE enum mlo_status mlo_frontier_observe(struct mlo_frontier *frontier, const char *node,
                                                  struct mlo_stats *stats, struct mlo_error *err);
/* Nodes that have been run so far, and how often: for tests and reports. */
void mlo_frontier_runs(const struct mlo_frontier *frontier, size_t *nodes_run);
void mlo_frontier_close(struct mlo_frontier *frontier); /* NULL is fine */

#endif
