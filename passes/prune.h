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
     *  "weight","nodes":[…]}],"left":[{"node","channels","why"}]}; yours */
    json_t *report;
    const struct mlo_prune_kept *kept; /* in the arena */
    size_t kept_count;
};

/* What was turned. Of heads that were, an index of the width can go (of all alike), instead of a whole one.
 */
struct mlo_prune_width {
    const char *value; /* that a Reshape makes, [.., heads, width] */
    double *seen; /* [width]: the share of the products of queries and keys that an index is; NULL: none */
};
struct mlo_prune_turned {
    int groups; /* of channels, and heads */
    struct mlo_prune_width *widths;
    int count;
};

/* The groups of a model, ranked; in the arena. */
struct mlo_prune_group {
    int count;
    int *order;    /* its units by number, those that go first in front */
    double *error; /* [count + 1]: of the first k gone, in the criterion's terms */
    double weight; /* what that counts next to other groups, where ratios follow from it; 1 */
};
struct mlo_prune_ranking {
    const char *criterion;
    struct mlo_prune_group *groups;
    int count;
    struct mlo_prune_turned turned; /* of the model that was ranked */
};

/* What the criterion of these (resolved) options wants observed, for turning as well or for ranking alone:
 * nothing for norms of weights; else Gram matrices of what weighted nodes read, diagonals alone for
 * `activation`. Adds to `wants`, whose names are the model's. */
MLO_MUST_USE enum mlo_status mlo_prune_wanted(const struct mlo_model *model, const json_t *options,
                                              bool turns, struct mlo_stats_wants *wants,
                                              struct mlo_error *err);

/* Turns channels that go through nothing but sums and averages, and the width of attention heads, into others
 * that say the same and are ordered by what those that read them see (full Gram matrices in `stats`, which
 * are not those of the model any more where anything was turned). The model computes what it did, but for
 * rounding. `tell` (or NULL) hears of each group before it is looked at. *out is in the arena, and names
 * values as the model does. MLO_EINVAL where weights are no numbers. */
typedef void mlo_prune_tell_fn(void *arg, int group, int groups);
MLO_MUST_USE enum mlo_status mlo_prune_turn(struct mlo_model *model, const json_t *options,
                                            const struct mlo_stats *stats, struct mlo_pass_context *ctx,
                                            mlo_prune_tell_fn *tell, void *arg, struct mlo_arena *arena,
                                            struct mlo_prune_turned *out, struct mlo_error *err);

/* Ranks the groups of a typed model, with resolved options; initializers are no longer listed as inputs.
 * `stats` may be NULL where the criterion wants nothing, `turned` where nothing was. MLO_ECONFLICT for a
 * model with integers; MLO_EINVAL where nothing can go. */
MLO_MUST_USE enum mlo_status mlo_prune_rank_model(struct mlo_model *model, const json_t *options,
                                                  const struct mlo_stats *stats,
                                                  const struct mlo_prune_turned *turned,
                                                  struct mlo_arena *arena, struct mlo_pass_context *ctx,
                                                  struct mlo_prune_ranking *out, struct mlo_error *err);
/* Prunes that model, or a clone of it, in place; it is inferred anew. MLO_EINVAL where so much cannot go. On
 * failure the model is in an undefined but freeable state. */
MLO_MUST_USE enum mlo_status mlo_prune_take(struct mlo_model *model, const json_t *options,
                                            const struct mlo_prune_ranking *ranking, struct mlo_arena *arena,
                                            struct mlo_pass_context *ctx, struct mlo_prune_result *out,
                                            struct mlo_error *err);
/* Takes about half of group `g` alone; *error is what the criterion says of that, 0 where none can go. */
MLO_MUST_USE enum mlo_status mlo_prune_probe(struct mlo_model *model, const json_t *options,
                                             const struct mlo_prune_ranking *ranking, int g,
                                             struct mlo_arena *arena, struct mlo_prune_result *out,
                                             double *error, struct mlo_error *err);
/* Ranks, then takes. */
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
