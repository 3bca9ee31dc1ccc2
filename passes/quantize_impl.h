/* The parts of the quantize pass: the plan (what becomes integer), ranges, weights. */
#ifndef MLO_PASSES_QUANTIZE_IMPL_H
#define MLO_PASSES_QUANTIZE_IMPL_H

#include "passes/calibrators.h"
#include "passes/passes_impl.h"
#include "passes/round_impl.h"
#include "passes/targets.h"

/* The options, read once: what the target says, where they say nothing else. */
struct mlo_quantize_settings {
    const struct mlo_target *target;
    const struct mlo_calibrator *calibrator;
    double percentile;
    const char *refused, *refusal; /* what the target does not take, and what to do; or NULL */
    enum mlo_dtype activations;    /* MLO_UINT8, MLO_INT8, MLO_UINT16, MLO_INT16 or MLO_FLOAT8E4M3FN */
    bool symmetric;                /* of activations: the zero point in the middle */
    enum mlo_dtype weights;        /* MLO_INT8, MLO_UINT8 or MLO_FLOAT8E4M3FN */
    bool symmetric_weights;        /* zero point 0, or 128 of uint8 */
    bool per_channel, reduce_range;
    int weight_max;        /* 127, or 64 in reduced range: the largest |q - zero point| of a weight; of
                              float8 448 */
    bool skip_only;        /* of a residual Add, only the input that is not being accumulated gets a pair */
    bool float_bias;       /* biases stay as they are */
    bool qoperator;        /* the form: integer ops instead of pairs around float ones */
    const json_t *exclude; /* names of nodes */
    const json_t *half;    /* the same, of those that compute in float16 */
    double min_sqnr;       /* in dB: nodes that read less stay in float; 0: none do */
    const struct mlo_quantize_noise *noise; /* by node index: those that do; NULL: not asked yet */
    struct mlo_rounding rounding;           /* of weights */
    bool correct_bias;                      /* biases take back what rounding did to the outputs' means */
    bool add_bias; /* what has none gets one of zeros, for the correction that is measured later */
};
void mlo_quantize_settings_read(const json_t *options, struct mlo_quantize_settings *out);

/* What a node reads and loses most of by its integers; value NULL: enough is left of all. */
struct mlo_quantize_noise {
    const struct mlo_value *value;
    double sqnr_db;
};
/* What the calibrator made of a value, kept while plans are compared. */
struct mlo_quantize_range {
    bool known;
    float low, high;
};

/* The integers of a quantized type, from the type's own range: 0 to 255 for uint8; of float8 the extremes. */
void mlo_quantize_limits(enum mlo_dtype dtype, int *low, int *high);

/* A float value of the graph, by mlo_value.index. */
struct mlo_quantize_value {
    bool chosen; /* gets a Q/DQ pair */
    int parent;  /* union-find: values of one group share their parameters */
    /* of a group's root: */
    bool has_range;
    float low, high;
    float scale;
    int zero_point;
    struct mlo_value *scale_value, *zero_point_value; /* the initializers, once made */
};

struct mlo_quantize_plan {
    struct mlo_arena *arena;
    struct mlo_quantize_value *values;
    const struct mlo_quantize_range *ranges; /* once chosen; by value index */
    int value_count;
    struct mlo_node **weighted; /* nodes whose constant weights become integer, in graph order */
    int weighted_count;
    const struct mlo_node **integer; /* all nodes that read integers, sorted by address */
    int integer_count;
};

/* What of the graph becomes integer. Notes (ctx may be NULL) say which weighted nodes stay in float, and why.
 */
MLO_MUST_USE enum mlo_status mlo_quantize_plan_make(const struct mlo_graph *graph,
                                                    const struct mlo_quantize_settings *settings,
                                                    struct mlo_arena *arena, struct mlo_pass_context *ctx,
                                                    struct mlo_quantize_plan *plan, struct mlo_error *err);
/* The root of value i's group. */
int mlo_quantize_root(struct mlo_quantize_plan *plan, int i);

/* Chooses range, scale and zero point of every group from the statistics. `ranges`: by value index. */
MLO_MUST_USE enum mlo_status mlo_quantize_ranges(const struct mlo_graph *graph,
                                                 const struct mlo_quantize_settings *settings,
                                                 const struct mlo_stats *stats,
                                                 struct mlo_quantize_range *ranges,
                                                 struct mlo_quantize_plan *plan, struct mlo_error *err);
/* Notes the values that said little of their range: always 0, always the same number. */
void mlo_quantize_note_ranges(const struct mlo_graph *graph, const struct mlo_quantize_plan *plan,
                              struct mlo_pass_context *ctx);

/* The plan with its ranges, in which no integer node reads a value of less than min_sqnr: makes plans until
 * that holds. Sets settings->noise, through `arena`. */
MLO_MUST_USE enum mlo_status mlo_quantize_settle(const struct mlo_graph *graph,
                                                 struct mlo_quantize_settings *settings,
                                                 struct mlo_arena *arena, struct mlo_pass_context *ctx,
                                                 struct mlo_quantize_plan *plan, struct mlo_error *err);
/* Says why noise keeps a node (by index) in float. */
void mlo_quantize_noise_text(const struct mlo_quantize_settings *settings, int node, char *out, size_t size);

/* Whether the plan has the node read integers. */
bool mlo_quantize_is_integer(const struct mlo_quantize_plan *plan, const struct mlo_node *node);

/* The channel axis of a weighted node's weights (Conv, ConvTranspose, Gemm or MatMul). */
int mlo_quantize_weight_axis(const struct mlo_node *node);
/* The same where the weights are no constant yet, but of this rank. */
int mlo_quantize_channel_axis(const struct mlo_node *node, int rank);

/* Adds the node DequantizeLinear(quantized, scales[, zero points]) in front of `node`; `zero` may be NULL,
 * and `axis` counts where the scales are a list. What it makes; NULL: out of memory. */
struct mlo_value *mlo_quantize_add_dequantize(struct mlo_node *node, const char *name,
                                              struct mlo_value *quantized, struct mlo_value *scale,
                                              struct mlo_value *zero, int axis);

/* Weights that are integer already, so that a second user of the same ones finds them. */
struct mlo_quantize_weights {
    const struct mlo_value *source;
    int axis;
    const float *scales;
    const int *zeros; /* as many */
    size_t scale_count;
    struct mlo_value *dequantized;
};
struct mlo_quantize_cache {
    struct mlo_quantize_weights *entries;
    int count, cap;
};

/* Makes weights and bias of a planned node integer, behind DequantizeLinear; `input_scale` is the scale of
 * its input 0. */
MLO_MUST_USE enum mlo_status mlo_quantize_node(struct mlo_node *node, float input_scale,
                                               const struct mlo_quantize_settings *settings,
                                               struct mlo_arena *arena, struct mlo_quantize_cache *cache,
                                               struct mlo_pass_context *ctx, struct mlo_error *err);

/* The grid of a node's weights as this pass makes it: one scale and zero point a channel, or one for all. */
struct mlo_quantize_grid {
    const float *scales;
    const int *zeros;
    size_t count;
    int low, high;
    float alpha; /* factor of the weights */
};
/* Chooses the integers `q` (which lie as the weights; the low 8 bits of each) anew by the method, where the
 * node's inputs were observed; else notes why not and leaves them. */
MLO_MUST_USE enum mlo_status mlo_quantize_refine(const struct mlo_node *node,
                                                 const struct mlo_quantize_grid *grid,
                                                 const struct mlo_rounding *how, struct mlo_arena *arena,
                                                 uint8_t *q, struct mlo_pass_context *ctx,
                                                 struct mlo_error *err);
/* Adds to the node's float bias (made when it has none) what the integer weights behind `dequantized` take
 * away from the outputs' means; the node's input 1 still is the float weights. beta becomes 1. */
MLO_MUST_USE enum mlo_status mlo_quantize_correct_bias(struct mlo_node *node,
                                                       const struct mlo_value *dequantized,
                                                       struct mlo_arena *arena, struct mlo_pass_context *ctx,
                                                       struct mlo_error *err);
/* Gives a node that can have a bias and has none one of `outputs` zeros. */
MLO_MUST_USE enum mlo_status mlo_quantize_add_bias(struct mlo_node *node, int64_t outputs,
                                                   struct mlo_error *err);

#endif
