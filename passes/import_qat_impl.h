/* The parts of the pass import-qat: pairs around activations (import_qat.c, import_qat_pairs.c), and the
 * nodes whose weights are integer (import_qat_nodes.c). */
#ifndef MLO_PASSES_IMPORT_QAT_IMPL_H
#define MLO_PASSES_IMPORT_QAT_IMPL_H

#include "passes/passes_impl.h"
#include "passes/targets.h"

/* The parameters of a QuantizeLinear or DequantizeLinear: constants, checked. */
struct mlo_qat_params {
    const struct mlo_tensor *scale, *zero; /* zero: NULL where it is omitted, which is 0 */
    enum mlo_dtype dtype;                  /* of the integers */
    size_t count;                          /* of scales */
    int64_t axis;                          /* of a list of scales, from the front; -1: one scale */
    int64_t block;                         /* 0: none */
};
/* Reads them; false when they are not constant. */
bool mlo_qat_params(const struct mlo_node *node, struct mlo_qat_params *out);
bool mlo_qat_same_params(const struct mlo_qat_params *a, const struct mlo_qat_params *b);
int64_t mlo_qat_zero(const struct mlo_qat_params *params, size_t i);
/* The integers that a type holds. */
void mlo_qat_limits(enum mlo_dtype dtype, int64_t *low, int64_t *high);

/* Whether the parameters of every QuantizeLinear and DequantizeLinear are what they can be, and integers end
 * in a DequantizeLinear. */
MLO_MUST_USE enum mlo_status mlo_qat_check(const struct mlo_graph *graph, struct mlo_pass_context *ctx,
                                           struct mlo_error *err);
/* Weights behind QuantizeLinear become integers; pairs that say nothing new go. */
MLO_MUST_USE enum mlo_status mlo_qat_clean_pairs(struct mlo_graph *graph, struct mlo_pass_context *ctx,
                                                 struct mlo_error *err);
/* Clip between QuantizeLinear and DequantizeLinear moves in front of them, in float. */
MLO_MUST_USE enum mlo_status mlo_qat_move_clips(struct mlo_graph *graph, const struct mlo_target *target,
                                                struct mlo_pass_context *ctx, struct mlo_error *err);
/* Activations take the type that the target computes in, where that changes no value; else a note. */
MLO_MUST_USE enum mlo_status mlo_qat_suit_target(struct mlo_graph *graph, const struct mlo_target *target,
                                                 struct mlo_pass_context *ctx, struct mlo_error *err);

/* What stands behind a Conv with integer weights and multiplies or adds by constants per channel goes into
 * the scales of its weights and its bias. */
MLO_MUST_USE enum mlo_status mlo_qat_fold_affine(struct mlo_graph *graph, struct mlo_arena *arena,
                                                 struct mlo_pass_context *ctx, struct mlo_error *err);
/* Biases become int32. */
MLO_MUST_USE enum mlo_status mlo_qat_biases(struct mlo_graph *graph, struct mlo_pass_context *ctx,
                                            struct mlo_error *err);
/* Notes which of the nodes that multiply read integers, and why the rest do not. */
void mlo_qat_note_coverage(const struct mlo_graph *graph, const struct mlo_target *target,
                           struct mlo_pass_context *ctx);

#endif
