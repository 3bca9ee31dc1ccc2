/* The parts of the quantize pass: the plan (what becomes integer), ranges, weights. */
#ifndef MLO_PASSES_QUANTIZE_IMPL_H
#define MLO_PASSES_QUANTIZE_IMPL_H

#include "passes/passes_impl.h"

/* The options, read once. */
struct mlo_quantize_settings {
    bool percentile_calibrator, per_channel, reduce_range;
    bool skip_only; /* of a residual Add, only the input that is not being accumulated gets a pair */
    double percentile;
    enum mlo_dtype activations; /* MLO_UINT8: asymmetric; MLO_INT8: symmetric */
    int weight_max;             /* 127, or 64 in reduced range: the largest |q| of a weight */
    const json_t *exclude;      /* names of nodes */
};
void mlo_quantize_settings_read(const json_t *options, struct mlo_quantize_settings *out);

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
    int value_count;
    struct mlo_node **weighted; /* Conv, Gemm and MatMul nodes to run in integers, in graph order */
    int weighted_count;
};

/* What of the graph becomes integer. Notes (ctx may be NULL) say which weighted nodes stay in float, and why.
 */
MLO_MUST_USE enum mlo_status mlo_quantize_plan_make(const struct mlo_graph *graph,
                                                    const struct mlo_quantize_settings *settings,
                                                    struct mlo_arena *arena, struct mlo_pass_context *ctx,
                                                    struct mlo_quantize_plan *plan, struct mlo_error *err);
/* The root of value i's group. */
int mlo_quantize_root(struct mlo_quantize_plan *plan, int i);

/* Chooses range, scale and zero point of every group from the statistics. */
MLO_MUST_USE enum mlo_status mlo_quantize_ranges(const struct mlo_graph *graph,
                                                 const struct mlo_quantize_settings *settings,
                                                 struct mlo_pass_context *ctx, struct mlo_quantize_plan *plan,
                                                 struct mlo_error *err);

/* The channel axis of a weighted node's weights. */
int mlo_quantize_weight_axis(const struct mlo_node *node);

/* Weights that are integer already, so that a second user of the same ones finds them. */
struct mlo_quantize_weights {
    const struct mlo_value *source;
    int axis;
    const float *scales;
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

#endif
