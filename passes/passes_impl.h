/* What the passes share: notes, constants, and rewriting that keeps the names of graph outputs. */
#ifndef MLO_PASSES_IMPL_H
#define MLO_PASSES_IMPL_H

#include "passes/passes.h"

/* --- the passes of the table: one file each ----------------------------------------------------------- */

mlo_pass_fn mlo_pass_correct_bias;
mlo_pass_fn mlo_pass_equalize;
mlo_pass_fn mlo_pass_fold_affine;
mlo_pass_fn mlo_pass_fold_batchnorm;
mlo_pass_fn mlo_pass_fold_constants;
mlo_pass_fn mlo_pass_freeze_initializers;
mlo_pass_fn mlo_pass_fuse_matmul_add;
mlo_pass_fn mlo_pass_fuse_pad;
mlo_pass_fn mlo_pass_import_qat;
mlo_pass_fn mlo_pass_prune;
mlo_pass_fn mlo_pass_quantize;
mlo_pass_fn mlo_pass_quantize_dynamic;
mlo_pass_fn mlo_pass_quantize_weights;
mlo_pass_fn mlo_pass_raise_opset;
mlo_pass_fn mlo_pass_remove_dead;
mlo_pass_fn mlo_pass_remove_identity;
mlo_pass_fn mlo_pass_smooth;
mlo_pass_fn mlo_pass_sparsify;
mlo_pass_fn mlo_pass_to_float16;
mlo_pass_fn mlo_pass_to_qoperator;

extern const struct mlo_option_spec mlo_correct_bias_options[], mlo_fold_constants_options[],
    mlo_raise_opset_options[];

/* --- properties ------------------------------------------------------------------------------------------
 */

struct mlo_property {
    enum mlo_graph_property bit;
    const char *name;
    /* Whether the graph has it, from the graph alone: for models that come from a file, and to check what a
     * pass claims. */
    bool (*holds)(const struct mlo_graph *graph);
};
const struct mlo_property *mlo_property_table(size_t *count);

/* The predicates, beside the passes that establish them. */
bool mlo_graph_is_typed(const struct mlo_graph *graph);
bool mlo_graph_is_folded(const struct mlo_graph *graph);
bool mlo_graph_has_no_dead(const struct mlo_graph *graph);
bool mlo_graph_is_bn_folded(const struct mlo_graph *graph);
bool mlo_graph_is_quantized(const struct mlo_graph *graph);

/* --- helpers -----------------------------------------------------------------------------------------------
 */

/* How many bytes of `text`, at most `most`, end between code points of its UTF-8: for "%.*s", so that a name
 * that is cut does not end in half a character. Bytes that are no UTF-8 count one each. */
int mlo_pass_cut(const char *text, int most);
/* Adds {"node", "note"} to ctx->notes. */
void mlo_pass_note(struct mlo_pass_context *ctx, const char *node, const char *fmt, ...) MLO_PRINTF(3, 4);

/* MLO_ECONFLICT, naming the first node that shows it, where the graph computes in integers already. */
MLO_MUST_USE enum mlo_status mlo_pass_refuse_quantized(const struct mlo_graph *graph, struct mlo_error *err);

/* An option that is a share, as "50%" or "0.5", above 0 and below 1; else MLO_EINVAL: it "is no <what>". */
MLO_MUST_USE enum mlo_status mlo_pass_read_share(const char *text, const char *option, const char *what,
                                                 double *out, struct mlo_error *err);

/* Options that name nodes: whether one of the names is `name`; MLO_EINVAL with the nearest name, where the
 * graph has no such node (of the option `exclude`). */
bool mlo_pass_is_named(const json_t *names, const char *name);
MLO_MUST_USE enum mlo_status mlo_pass_check_named(const struct mlo_graph *graph, const json_t *names,
                                                  struct mlo_error *err);

/* The row of an option that does so. */
#define MLO_OPTION_EXCLUDE                                                                                   \
    {                                                                                                        \
        .name = "exclude", .type = MLO_OPT_STRINGS, .fallback = "",                                          \
        .description = "Names of nodes to leave in float"                                                    \
    }

/* Whether no element of a float32 tensor is NaN or infinite. */
bool mlo_tensor_is_finite(const struct mlo_tensor *t);
/* Gives a node the numbers, lists of integers and texts among another's attributes; false: out of memory. */
bool mlo_pass_copy_attrs(const struct mlo_node *from, struct mlo_node *to);

/* Whether a value is a constant that nobody outside can replace: from IR version 4 on, an initializer that is
 * listed as a graph input is only a default. */
bool mlo_value_is_fixed(const struct mlo_value *value);
/* Input i's constant when it is fixed in that sense; else NULL. */
const struct mlo_tensor *mlo_node_fixed(const struct mlo_node *node, int i);
/* The node that makes input i; NULL when none does. */
struct mlo_node *mlo_node_producer(const struct mlo_node *node, int i);
/* True when outputs 1… are omitted, or neither used nor graph outputs. */
bool mlo_node_only_first_output(const struct mlo_node *node);

/* Whether two dims are known to be equal: same number, or same name. */
bool mlo_dim_same(const struct mlo_dim *a, const struct mlo_dim *b);
/* Whether two types are known to be equal in type and every dim. */
bool mlo_type_same(const struct mlo_type *a, const struct mlo_type *b);

/* Removes `node`, whose first output equals `value`: users of the output read `value` instead. When the
 * output is a graph output, `value` takes its name. *done is false, and nothing changed, when the names of
 * the graph's inputs and outputs do not allow it. */
MLO_MUST_USE enum mlo_status mlo_pass_bypass(struct mlo_node *node, struct mlo_value *value, bool *done,
                                             struct mlo_error *err);

/* Makes input i of `node` the given constant: in place when nobody else uses what was there, else by a new
 * initializer (`name` says what to call it when there was none). Takes over the tensor's data, also on
 * failure. */
MLO_MUST_USE enum mlo_status mlo_pass_set_const_take(struct mlo_node *node, int i, const char *name,
                                                     struct mlo_tensor *tensor, struct mlo_error *err);

/* Before IR version 4 every initializer had to be listed as a graph input, which nobody was meant to feed.
 * Takes them off the list, so that they can be dropped when they are no longer used, and raises the IR
 * version to 4. */
void mlo_pass_unlist_initializers(struct mlo_model *model);

/* The number of output channels of a Conv, ConvTranspose or Gemm with fixed weights; 0 for another node. */
int64_t mlo_node_channels(const struct mlo_node *node);
/* Whether mlo_pass_scale_channels can be applied; else *why says why not. */
bool mlo_node_can_scale(const struct mlo_node *node, const char **why);
/* Rewrites weights and bias so that the node's output becomes scale[c] * output + shift[c]; computed in
 * double, then rounded. Weights that other nodes use are copied. `scale` and `shift` hold mlo_node_channels
 * numbers. */
MLO_MUST_USE enum mlo_status mlo_pass_scale_channels(struct mlo_node *node, const double *scale,
                                                     const double *shift, struct mlo_error *err);

/* Constant folding, but of nodes of the op type `left` (NULL: of all). Option max_bytes, as of the pass. */
MLO_MUST_USE enum mlo_status mlo_pass_fold_all_but(struct mlo_model *model, const char *left,
                                                   struct mlo_pass_context *ctx, struct mlo_error *err);

/* Raises the model's opset to `version`: converts the nodes whose form changed in between, or refuses
 * with MLO_EUNSUPPORTED naming the op. Notes say what was converted. Nothing happens when it is high enough.
 */
MLO_MUST_USE enum mlo_status mlo_pass_raise_opset_to(struct mlo_model *model, int64_t version,
                                                     struct mlo_pass_context *ctx, struct mlo_error *err);
/* Row i of what it converts or refuses; false behind the last. For tests, which have a case for every row. */
bool mlo_pass_opset_change(size_t i, const char **op_type, int *since);

#endif
