#include <string.h>

#include "passes/passes_impl.h"
#include "passes/prune.h"
#include "passes/sparsify.h"

/* Sorted by name. To add a pass: one file with its mlo_pass_fn, its line in passes_impl.h, one row here. */
static const struct mlo_pass table[] = {
    {
        .name = "correct-bias",
        .run = mlo_pass_correct_bias,
        .requires = MLO_PROP_TYPED,
        .needs_stats = true,
        .options = mlo_correct_bias_options,
        .revision = 1,
        .description = "Biases of a quantized model take back what it did to the means of outputs",
    },
    {
        .name = "equalize",
        .run = mlo_pass_equalize,
        .requires = MLO_PROP_TYPED,
        .options = mlo_equalize_options,
        .revision = 1,
        .description = "Channels between weighted nodes get the same range of weights on both sides",
    },
    {
        .name = "fold-affine",
        .run = mlo_pass_fold_affine,
        .requires = MLO_PROP_TYPED,
        .revision = 1,
        .description =
            "Multiplications and additions by a constant per channel move into the Conv or Gemm before",
    },
    {
        .name = "fold-batchnorm",
        .run = mlo_pass_fold_batchnorm,
        .requires = MLO_PROP_TYPED,
        .establishes = MLO_PROP_BN_FOLDED,
        .revision = 1,
        .description = "BatchNormalization moves into the weights of the Conv or Gemm before it",
    },
    {
        .name = "fold-constants",
        .run = mlo_pass_fold_constants,
        .requires = MLO_PROP_TYPED,
        .establishes = MLO_PROP_FOLDED,
        .options = mlo_fold_constants_options,
        .revision = 2,
        .description =
            "Nodes whose inputs are constants become constants; an If whose condition is one, its branch",
    },
    {
        .name = "freeze-initializers",
        .run = mlo_pass_freeze_initializers,
        .revision = 1,
        .description = "Weights that are listed as inputs too, which callers may replace, become constants",
    },
    {
        .name = "fuse-matmul-add",
        .run = mlo_pass_fuse_matmul_add,
        .requires = MLO_PROP_TYPED,
        .revision = 2,
        .description = "MatMul by a constant matrix and Add of a constant vector become Gemm",
    },
    {
        .name = "fuse-pad",
        .run = mlo_pass_fuse_pad,
        .requires = MLO_PROP_TYPED,
        .revision = 1,
        .description = "Padding by zeros moves into the Conv behind it",
    },
    {
        .name = "import-qat",
        .run = mlo_pass_import_qat,
        .requires = MLO_PROP_TYPED,
        .establishes = MLO_PROP_QUANTIZED | MLO_PROP_NO_DEAD,
        .options = mlo_import_qat_options,
        .revision = 1,
        .description = "Fake quantization of a training becomes integer weights and biases, checked",
    },
    {
        .name = "prune",
        .run = mlo_pass_prune,
        .requires = MLO_PROP_TYPED,
        .options = mlo_prune_options,
        .revision = 3,
        .description = "Channels, heads and neurons that matter least go, with all that depends on them",
    },
    {
        .name = "quantize",
        .run = mlo_pass_quantize,
        .requires = MLO_PROP_TYPED,
        .establishes = MLO_PROP_QUANTIZED | MLO_PROP_NO_DEAD,
        .needs_stats = true,
        .options = mlo_quantize_options,
        .revision = 8,
        .description =
            "Static quantization: QuantizeLinear and DequantizeLinear pairs, integer weights and biases",
    },
    {
        .name = "quantize-dynamic",
        .run = mlo_pass_quantize_dynamic,
        .requires = MLO_PROP_TYPED,
        .establishes = MLO_PROP_QUANTIZED,
        .options = mlo_quantize_dynamic_options,
        .revision = 1,
        .description = "Integer weights, and activations that become integers in every call; needs no data",
    },
    {
        .name = "quantize-weights",
        .run = mlo_pass_quantize_weights,
        .requires = MLO_PROP_TYPED,
        .options = mlo_quantize_weights_options,
        .revision = 2,
        .description = "Weights alone in 8 or 4 bits, in blocks; activations stay float",
    },
    {
        .name = "raise-opset",
        .run = mlo_pass_raise_opset,
        .requires = MLO_PROP_TYPED,
        .options = mlo_raise_opset_options,
        .revision = 2,
        .description = "Nodes take the form of a newer opset; what cannot is refused by name",
    },
    {
        .name = "remove-dead",
        .run = mlo_pass_remove_dead,
        .establishes = MLO_PROP_NO_DEAD,
        .revision = 1,
        .description = "Nodes and constants that no output depends on go",
    },
    {
        .name = "remove-identity",
        .run = mlo_pass_remove_identity,
        .requires = MLO_PROP_TYPED,
        .revision = 1,
        .description =
            "Nodes that provably change nothing go: Identity, Dropout, Reshape to the same shape, …",
    },
    {
        .name = "smooth",
        .run = mlo_pass_smooth,
        .requires = MLO_PROP_TYPED,
        .needs_stats = true,
        .options = mlo_smooth_options,
        .revision = 1,
        .description = "Outliers of the inputs of matrix products move into the weights (SmoothQuant)",
    },
    {
        .name = "sparsify",
        .run = mlo_pass_sparsify,
        .requires = MLO_PROP_TYPED,
        .options = mlo_sparsify_options,
        .revision = 1,
        .description =
            "Single weights become zero, anywhere or two of four; the others make it good (SparseGPT)",
    },
    {
        .name = "to-float16",
        .run = mlo_pass_to_float16,
        .requires = MLO_PROP_TYPED,
        .options = mlo_to_float16_options,
        .revision = 3,
        .description = "Weights and arithmetic in float16 or bfloat16, but what must stay in float32",
    },
    {
        .name = "to-qoperator",
        .run = mlo_pass_to_qoperator,
        .requires = MLO_PROP_TYPED | MLO_PROP_QUANTIZED,
        .establishes = MLO_PROP_QUANTIZED | MLO_PROP_NO_DEAD,
        .revision = 1,
        .description = "Pairs around float ops become integer ops: QLinearConv, QLinearMatMul, QGemm, …",
    },
};

/* Constants first, so that what follows sees them; identities before folding, so that a Dropout does not
 * stand between a Conv and its BatchNormalization. */
static const char *const optimize[] = {
    "fold-constants",  "remove-identity", "fold-batchnorm", "fold-affine",
    "fuse-matmul-add", "fuse-pad",        "remove-dead",
};

const struct mlo_pass *mlo_pass_table(size_t *count)
{
    *count = MLO_COUNT(table);
    return table;
}

const struct mlo_pass *mlo_pass_find(const char *name)
{
    return mlo_named_row(name, table, MLO_COUNT(table), sizeof *table);
}

const char *const *mlo_passes_optimize(size_t *count)
{
    *count = MLO_COUNT(optimize);
    return optimize;
}

enum mlo_status mlo_pass_table_check(struct mlo_error *err)
{
    for (size_t i = 0; i < MLO_COUNT(table); i++) {
        const struct mlo_pass *pass = &table[i];
        if (!pass->name || !pass->run || !pass->description || pass->revision < 1)
            return mlo_error_set(err, MLO_EINTERNAL, "row %zu of the pass table is incomplete", i);
        if (i > 0 && strcmp(table[i - 1].name, pass->name) >= 0)
            return mlo_error_set(err, MLO_EINTERNAL, "pass '%s' is out of order in the table", pass->name);
        if (pass->establishes & pass->destroys)
            return mlo_error_set(err, MLO_EINTERNAL, "pass '%s' both makes and breaks a property",
                                 pass->name);
        json_t *defaults = NULL;
        enum mlo_status status = mlo_options_resolve(pass->options, NULL, &defaults, err);
        json_decref(defaults);
        if (status != MLO_OK) {
            mlo_error_prefix(err, "defaults of pass '%s'", pass->name);
            return status;
        }
    }
    for (size_t i = 0; i < MLO_COUNT(optimize); i++)
        if (!mlo_pass_find(optimize[i]))
            return mlo_error_set(err, MLO_EINTERNAL, "'optimize' names an unknown pass '%s'", optimize[i]);
    return MLO_OK;
}
