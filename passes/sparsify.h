/* Sparse weights: single weights become zero, and with SparseGPT the others make good what that does to the
 * outputs. The shapes stay; see docs/pruning.md for what is smaller then, and where it is faster. */
#ifndef MLO_PASSES_SPARSIFY_H
#define MLO_PASSES_SPARSIFY_H

#include "passes/passes.h"

/* Options of the pass sparsify and of the step, which reads `samples` and `freeze_initializers` too. */
extern const struct mlo_option_spec mlo_sparsify_options[];

/* What is wrong with (resolved) options whatever the model is: MLO_EINVAL. */
MLO_MUST_USE enum mlo_status mlo_sparsify_check(const json_t *options, struct mlo_error *err);

/* Adds the Gram matrices of what would be sparsified; magnitudes need none, and are told by them what they do
 * to the outputs. Names are the model's. */
MLO_MUST_USE enum mlo_status mlo_sparsify_wanted(const struct mlo_model *model, const json_t *options,
                                                 struct mlo_stats_wants *wants, struct mlo_error *err);

/* Sparsifies a typed float model in place, with resolved options. `stats` may be NULL: then by magnitude.
 * *report is yours:
 *   {"pattern","criterion","scope","weights","zeros","sparsity",
 *    "layers":[{"node","op","criterion","weights","zeros","sparsity","weight_error","output_error"|null,"why"?}],
 *    "left":[{"node","op","weights","why"}], "speed":[…]}
 * where weights, zeros and sparsity are of the layers, errors are shares: of the squares of the weights, and
 * of what the layer's outputs vary by on the calibration data ("bias_corrected" when the bias took the
 * means), and `speed` is mlo_sparse_speed. MLO_ECONFLICT for a model with integers; MLO_EINVAL where nothing
 * can be sparsified, or SparseGPT has no statistics. On failure the model is in an undefined but freeable
 * state. */
MLO_MUST_USE enum mlo_status mlo_sparsify_model(struct mlo_model *model, const json_t *options,
                                                const struct mlo_stats *stats, struct mlo_pass_context *ctx,
                                                json_t **report, struct mlo_error *err);

/* Where zeros of these layers make a model faster, as far as shapes can tell:
 *   [{"runtime","target","type","faster": "no"|"possible","layers","multiply_adds_share","rule"}]
 * "layers" and the share count those whose shapes fit. New reference; NULL: out of memory. */
struct mlo_sparse_layer {
    const struct mlo_node *node; /* a Conv, Gemm or MatMul with fixed weights */
    uint64_t macs;               /* of one sample; 0: not known */
};
json_t *mlo_sparse_speed(const char *pattern, const struct mlo_sparse_layer *layers, size_t count,
                         uint64_t all_macs);

/* --- storage ------------------------------------------------------------------------------------- */

/* Whether the (resolved) options want sparse weights packed: the option `storage`, which by itself packs
 * zeros anywhere and leaves 2:4 dense for compilers that look for it in constants. */
bool mlo_sparsify_packs(const json_t *options);
/* Replaces float32 constants that have zeros enough (a bit for each weight and the others take at most 3/4 of
 * the bytes) by that form and ONNX ops that put them together, at opset 13, which the model is raised to;
 * where it cannot be, a note says so and it stays dense. Lossless to the bit. *report is yours:
 * {"form":"bitmap"|"dense","tensors","bytes_before","bytes_after"}. Types of what was added are not inferred.
 */
MLO_MUST_USE enum mlo_status mlo_sparse_pack(struct mlo_model *model, struct mlo_pass_context *ctx,
                                             json_t **report, struct mlo_error *err);
/* Makes all that has this form, and no other, dense constants again; *count (NULL: nobody asks): how many.
 * Reads only constants, of which the model has at least a 32nd of the bytes, each mask for one tensor, so
 * that no small file becomes a large model. */
MLO_MUST_USE enum mlo_status mlo_sparse_unpack(struct mlo_model *model, int *count, struct mlo_error *err);
/* mlo_onnx_load for all that run or change a model: it has its weights as constants, however they are stored.
 * (Engines fold small constants alone, and would put large weights together in every inference.) */
MLO_MUST_USE enum mlo_status mlo_sparse_load(const char *path, struct mlo_model **out, struct mlo_error *err);

#endif
