/* Structured pruning: channels, heads and neurons go as a whole, so that what is left is a smaller dense
 * model that any runtime runs faster. See docs/pruning.md. */
#ifndef MLO_PASSES_PRUNE_H
#define MLO_PASSES_PRUNE_H

#include "passes/passes.h"

/* Options of the pass prune and of the step, which reads `reconstruct` and `samples` too. */
extern const struct mlo_option_spec mlo_prune_options[];

/* The indices that stayed of an axis of a value that shrank. */
struct mlo_prune_kept {
    const char *value; /* name, the same in both models */
    int axis;
    int64_t before, count;
    const int64_t *index; /* ascending, of the axis as it was */
};
struct mlo_prune_result {
    /* {"criterion","ratios","macs":{"before","after","removed"},"groups":[{"node","from","to","block","error",
     *  "nodes":[…]}],"left":[{"node","channels","why"}]}; yours */
    json_t *report;
    const struct mlo_prune_kept *kept; /* in the arena */
    size_t kept_count;
};

/* What the criterion of these (resolved) options wants observed: nothing for norms of weights; else Gram
 * matrices of what weighted nodes read, diagonals alone for `activation`. Adds to `wants`, whose names are
 * the model's. */
MLO_MUST_USE enum mlo_status mlo_prune_wanted(const struct mlo_model *model, const json_t *options,
                                              struct mlo_stats_wants *wants, struct mlo_error *err);

/* Prunes a typed model in place, with resolved options; it is inferred anew. `stats` may be NULL where the
 * criterion wants nothing. MLO_ECONFLICT for a model with integers; MLO_EINVAL where so much cannot go, or
 * where nothing can. On failure the model is in an undefined but freeable state. */
MLO_MUST_USE enum mlo_status mlo_prune_model(struct mlo_model *model, const json_t *options,
                                             const struct mlo_stats *stats, struct mlo_arena *arena,
                                             struct mlo_pass_context *ctx, struct mlo_prune_result *out,
                                             struct mlo_error *err);

/* --- reconstruction ------------------------------------------------------------------------------ */

/* What weights and bias of a node are fitted by: rows of what it reads now, each followed by what it should
 * make (mlo_gram_pair). */
struct mlo_refit {
    double before, after; /* squared error of the outputs, over their squared deviations from the mean */
    bool bias;            /* that is fitted too */
};
/* Why the node's weights cannot be fitted; NULL: they can. */
const char *mlo_refit_refuses(const struct mlo_node *node);
/* Where the node's bias stands: the node itself, or the Add behind a MatMul; NULL: it has none, and gets
 * none. */
struct mlo_node *mlo_refit_bias_node(struct mlo_node *node, int *input);
/* Weights that bring the outputs nearest to what they should be (least squares), drawn to those that are
 * there by `damp` times the mean of the diagonal; `weights` false: the bias alone. Ordered sums and an
 * ordered Cholesky factorization: equal bits everywhere. */
MLO_MUST_USE enum mlo_status mlo_refit(struct mlo_node *node, const struct mlo_gram *pair, bool weights,
                                       double damp, struct mlo_refit *out, struct mlo_error *err);

#endif
