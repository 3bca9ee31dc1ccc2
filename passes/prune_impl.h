/* Structured pruning, private to passes/: which indices of which tensors must go together, what each is
 * worth, and taking them out.
 *
 * The idea is that of a dependency graph (Fang et al. 2023, "DepGraph: Towards Any Structural Pruning",
 * arXiv:2301.12900), index by index: every index of every axis of every value (weights are values too) is a
 * slot; the rule of each op says which slots are the same channel; sets of slots are units, which go as a
 * whole or stay. A slot of which that cannot be said is fixed, with the reason, and so is its unit. */
#ifndef MLO_PASSES_PRUNE_IMPL_H
#define MLO_PASSES_PRUNE_IMPL_H

#include "passes/passes_impl.h"
#include "passes/prune.h"

/* A node that multiplies with constant weights (or looks rows of a table up), for costs and criteria. */
struct prune_weighted {
    const struct mlo_node *node;
    int weight;           /* which input the weights are */
    int w_out, w_in;      /* axes of the weights: what they make, what they read; -1: none */
    int out_axis, x_axis; /* channel axes of the output and of input 0; x_axis -1: it reads none (a table) */
};

struct prune_axes {          /* of a value */
    int first[MLO_MAX_RANK]; /* slot of index 0; -1: the axis has none (one index, or no known size) */
};

struct prune_reason {
    const struct mlo_node *node; /* NULL: the graph's boundary */
    const char *why;             /* NULL: the unit is free */
};

struct prune_unit {
    int root; /* slot */
    int slots;
    int group;
    uint64_t hash;
    bool inside;       /* an index of the width of heads */
    bool makes, reads; /* it has an index of weights that make channels; that read them */
    double worth;
    double
        seen; /* share of the products of queries and keys that it is, where it is an index of turned heads */
    bool ranked; /* something was there to tell its worth by */
};

struct prune_group {       /* units with indices on the same axes: one is as good as another */
    int first_unit, count; /* of order */
    bool inside;           /* indices of the width of heads */
    int block;             /* indices of the making weights' axis that one unit has */
    int *order;            /* units, those that go first in front */
    double *error;         /* [count + 1]: of the first k gone */
    double weight;         /* what that counts, next to other groups */
    int removed;
    const struct prune_weighted *maker;
};

struct prune {
    const struct mlo_prune_turned *turned; /* or NULL */
    struct mlo_graph *graph;
    struct mlo_arena *arena;
    struct prune_axes *axes; /* by value index */
    int value_count;         /* when that was made: what is added later has no slots */
    int slot_count;
    int *parent;
    struct prune_reason *reasons;   /* by root */
    int *choice;                    /* by node: which of the axes that a Reshape splits into is the unit's */
    int *choices;                   /* by node: how many there are; 0: it splits none */
    const struct mlo_value **split; /* by node: the output, and its axis now chosen */
    int *split_axis;
    struct prune_weighted *weighted;
    int weighted_count;
    struct prune_unit *units;
    int unit_count;
    int *unit_of; /* by slot: of a free unit, or -1 */
    struct prune_group *groups;
    int group_count;
    bool *gone; /* by unit */
};

/* Finds slots, units and groups of a typed graph. *out is in the arena. `turned` (or NULL): heads of which an
 * index of the width goes, instead of whole ones. */
MLO_MUST_USE enum mlo_status mlo_prune_analyse(struct mlo_graph *graph, const json_t *exclude,
                                               const struct mlo_prune_turned *turned, struct mlo_arena *arena,
                                               struct prune **out, struct mlo_error *err);
/* A norm of NaN or infinity orders nothing, and no fit follows from it: MLO_EINVAL, naming the weights. */
MLO_MUST_USE enum mlo_status mlo_prune_check_finite(const struct prune *p, struct mlo_error *err);
/* Why no channel of the node can go; NULL: some can. */
const struct prune_reason *mlo_prune_left(const struct prune *p, const struct prune_weighted *w);

/* --- for rules ----------------------------------------------------------------------------------- */

typedef void mlo_prune_link_fn(struct prune *p, const struct mlo_node *node);
/* What of the node states a size that changed: sets it anew. */
typedef enum mlo_status mlo_prune_fix_fn(const struct prune *p, struct mlo_node *node, struct mlo_error *err);
struct prune_rule {
    const char *op;
    mlo_prune_link_fn *link;
    mlo_prune_fix_fn *fix; /* or NULL */
};
struct prune_rules {
    const struct prune_rule *rows;
    size_t count;
};
extern const struct prune_rules mlo_prune_rules_plain, mlo_prune_rules_weights, mlo_prune_rules_shape,
    mlo_prune_rules_move;
const struct prune_rule *mlo_prune_rule(const struct mlo_node *node);

int mlo_prune_rank(const struct mlo_value *v);              /* 0 of NULL; negative: not known */
int64_t mlo_prune_dim(const struct mlo_value *v, int axis); /* negative: not known */
/* Index by index the same channels. Where sizes are not known to be equal, both axes are fixed. */
void mlo_prune_link(struct prune *p, const struct mlo_node *node, const struct mlo_value *a, int axis_a,
                    const struct mlo_value *b, int axis_b);
/* One index of each. */
void mlo_prune_join(struct prune *p, const struct mlo_value *a, int axis_a, int64_t i,
                    const struct mlo_value *b, int axis_b, int64_t j);
/* All axes by position, as of two values of one shape. */
void mlo_prune_link_all(struct prune *p, const struct mlo_node *node, const struct mlo_value *a,
                        const struct mlo_value *b);
/* Axes of `a` to those of `out` that they are broadcast to, from the last one. */
void mlo_prune_broadcast(struct prune *p, const struct mlo_node *node, const struct mlo_value *a,
                         const struct mlo_value *out);
/* `why` lives as long as the program, or in the arena. */
void mlo_prune_fix_axis(struct prune *p, const struct mlo_node *node, const struct mlo_value *v, int axis,
                        const char *why);
void mlo_prune_fix_from(struct prune *p, const struct mlo_node *node, const struct mlo_value *v, int first,
                        const char *why);
void mlo_prune_fix_value(struct prune *p, const struct mlo_node *node, const struct mlo_value *v,
                         const char *why);
void mlo_prune_fix_node(struct prune *p, const struct mlo_node *node, const char *why);
bool mlo_prune_axis_free(struct prune *p, const struct mlo_value *v, int axis); /* some index of it */
void mlo_prune_add_weighted(struct prune *p, const struct prune_weighted *w);

/* --- results ------------------------------------------------------------------------------------- */

/* Indices of an axis that stay, of all; `kept` (or NULL) gets them. */
int64_t mlo_prune_kept(const struct prune *p, const struct mlo_value *v, int axis, int64_t *kept);
/* The unit of an index, or -1: it stays. */
int mlo_prune_unit_at(const struct prune *p, const struct mlo_value *v, int axis, int64_t i);

/* Multiply-adds of each node with nothing gone, from a graph whose batch is bound; and with what is gone now.
 */
MLO_MUST_USE enum mlo_status mlo_prune_macs(const struct mlo_model *model, const struct prune *p,
                                            struct mlo_arena *arena, uint64_t **out, struct mlo_error *err);
/* Weights of each node, likewise: those that it multiplies with, or looks up; of two nodes that share them,
 * the first has them. */
MLO_MUST_USE enum mlo_status mlo_prune_weights(const struct prune *p, struct mlo_arena *arena, uint64_t **out,
                                               struct mlo_error *err);
/* The sum of either with what is gone now. */
double mlo_prune_cost(const struct prune *p, const uint64_t *costs);

struct prune_settings {
    const char *criterion, *ratios, *of;
    double remove; /* share of what `of` names */
    int round, min_channels;
};
/* Sets the groups' order and error. `notes`: what had to be done otherwise. */
MLO_MUST_USE enum mlo_status mlo_prune_rank_units(struct prune *p, const struct prune_settings *s,
                                                  const struct mlo_stats *stats, struct mlo_pass_context *ctx,
                                                  struct mlo_error *err);
/* Sets what is gone, so that the share of these costs goes: MLO_EINVAL when that would leave a group
 * without channels, with how much can go. */
MLO_MUST_USE enum mlo_status mlo_prune_spend(struct prune *p, const struct prune_settings *s,
                                             const uint64_t *costs, struct mlo_error *err);
/* Sets about half of one group gone, and no other; nothing where it has none to spare. */
void mlo_prune_halve(struct prune *p, const struct prune_settings *s, int group);
/* Takes what is gone out of weights, attributes and types. */
MLO_MUST_USE enum mlo_status mlo_prune_apply(const struct prune *p, struct mlo_error *err);

/* Whether the second-order criterion can use a node's Gram matrix in full. */
bool mlo_prune_has_gram(const struct prune_weighted *w);
enum { MLO_PRUNE_DIM_MAX = 2304 /* of matrices that are inverted: 42 MB */ };
/* The order and errors of a group by what its removal does to the outputs of those that read it, the others
 * making good what they can (optimal brain surgeon). *done is false where there is no full matrix. */
MLO_MUST_USE enum mlo_status mlo_prune_second_order(struct prune *p, struct prune_group *group,
                                                    const struct mlo_stats *stats, bool *done,
                                                    struct mlo_error *err);
const struct prune_weighted *mlo_prune_weighted_of(const struct prune *p, const struct mlo_node *node);
/* What is said of the heads that this value is split into; NULL: they are not turned. */
struct mlo_prune_width *mlo_prune_width_of(const struct mlo_prune_turned *turned, const struct mlo_value *v);
/* The channel of input 0 that element `row` of group g of the node's Gram matrix belongs to. */
int64_t mlo_prune_gram_channel(const struct prune_weighted *w, int64_t g, int64_t row);

/* --- turning ------------------------------------------------------------------------------------- */

/* Whether these options want heads to go as a whole. */
bool mlo_prune_keeps_heads(const json_t *options);
enum { MLO_PRUNE_TURN_MAX = 512 /* channels of a group, or width of heads, that are turned */ };
/* Of channels with covariance c (overwritten), which those that read them see as x^T a x: others that say the
 * same, uncorrelated and ordered by what is seen of each, the most in front. x = t z and z = inverse x; all
 * [n][n]; b[3] is scratch, and has what is seen of z_j in b[1] at [j][j]. */
void mlo_prune_choose(double *c, const double *a, double *t, double *inverse, double *b[3], size_t n);
/* Whether the diagonal of m[n][n] has a positive, finite sum: else there is no order in what it tells. */
bool mlo_prune_varies(const double *m, size_t n);
/* Indices first + [0, n) along an axis of a constant: out[j] = sum of m[j][i] x[i], or of m[i][j] x[i]. */
MLO_MUST_USE enum mlo_status mlo_prune_turn_axis(struct mlo_value *v, int axis, int64_t first, size_t n,
                                                 const double *m, bool transposed, struct mlo_error *err);

/* What one side of a product reads: of head h, columns offset + h x stride + [0, width) of what weights make.
 */
struct prune_part {
    int maker; /* of p->weighted */
    /* Where heads and width became axes, the width the last. NULL: this side is not there. */
    const struct mlo_value *split;
    int64_t offset, heads, stride, width;
    int head_axis; /* from the end; 0: one head, without an axis */
};
/* Two that are turned against each other: queries and keys, or (both parts the same) values and the weights
 * that read [heads x width] of them. */
struct prune_pair {
    const struct mlo_node *node;
    const struct prune_weighted *reader; /* NULL: queries and keys */
    struct prune_part part[2];
    bool softened; /* queries and keys: by a Softmax over the keys */
};
struct prune_attention {
    struct prune_pair *pairs;
    int count;
};
/* Attention of the graph whose heads can be turned, and lose indices of their width; `stats`, or NULL before
 * anything was observed. *out is in p's arena; *list, in the other, is what is split. */
MLO_MUST_USE enum mlo_status mlo_prune_find_attention(struct prune *p, const json_t *exclude,
                                                      const struct mlo_stats *stats, struct mlo_arena *arena,
                                                      struct prune_attention *out,
                                                      struct mlo_prune_turned *list, struct mlo_error *err);
/* Turns all of them, and says in *list what queries and keys see of each index. */
MLO_MUST_USE enum mlo_status mlo_prune_turn_heads(struct prune *p, const json_t *exclude,
                                                  const struct mlo_stats *stats, struct mlo_pass_context *ctx,
                                                  struct mlo_arena *arena, struct mlo_prune_turned *list,
                                                  struct mlo_error *err);

#endif
