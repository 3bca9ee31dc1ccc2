/* Import of a model that was trained with fake quantization, as exporters write it: QuantizeLinear and
 * DequantizeLinear around activations and around float weights, parameters as initializers, Constant nodes or
 * what is computed from them (Jacob et al. 2018, arXiv:1712.05877; the forms are those of torch.onnx).
 *
 * What it writes computes what the model computed: the weights behind DequantizeLinear are the same floats to
 * the bit, and so is what activations become. Only two things round. A bias b becomes q * s with s = scale of
 * the input * scale of the weights, |q * s - b| <= s / 2 but for the float32 rounding of the product: half of
 * the smallest difference that the sums of the integer node can have. And where BatchNormalization stands
 * behind the Conv, its factor goes into the scales, which float32 rounds. */
#include <string.h>

#include "passes/import_qat_impl.h"

static const char *const forms[] = {"qdq", "qoperator", NULL};
static const char *const targets[] = {"none",         "mlopt-cpu",     "mlopt-cuda",
                                      "openvino",     "openvino-avx2", "ort-x86-avx2",
                                      "ort-x86-vnni", "tensorrt",      NULL};

const struct mlo_option_spec mlo_import_qat_options[] = {
    {.name = "target",
     .type = MLO_OPT_STRING,
     .fallback = "none",
     .choices = targets,
     .description = "The runtime that the variant is made for: which type activations have, whether biases "
                    "stay float; none: as the model has them, biases in int32"},
    {.name = "form",
     .type = MLO_OPT_STRING,
     .fallback = "qdq",
     .choices = forms,
     .description =
         "qdq: QuantizeLinear and DequantizeLinear pairs around float operators; qoperator: as the "
         "pass to-qoperator needs it, with Clip inside the pairs and biases in int32"},
    {NULL},
};

bool mlo_qat_params(const struct mlo_node *node, struct mlo_qat_params *out)
{
    bool quantizes = mlo_node_is(node, "QuantizeLinear");
    *out = (struct mlo_qat_params){.scale = mlo_node_fixed(node, 1), .zero = mlo_node_fixed(node, 2)};
    if (!out->scale || (mlo_node_input(node, 2) && !out->zero))
        return false;
    out->dtype = quantizes ? node->outputs[0]->type.dtype : node->inputs[0]->type.dtype;
    out->count = mlo_tensor_count(out->scale);
    out->block = mlo_node_attr_i(node, "block_size", 0);
    out->axis = -1;
    if (out->scale->rank > 0 && (out->count != 1 || out->block)) {
        out->axis = mlo_node_attr_i(node, "axis", 1);
        if (out->axis < 0)
            out->axis += node->inputs[0]->type.rank;
    }
    return true;
}

int64_t mlo_qat_zero(const struct mlo_qat_params *params, size_t i)
{
    return params->zero ? mlo_tensor_get_i64(params->zero, i) : 0;
}

bool mlo_qat_same_params(const struct mlo_qat_params *a, const struct mlo_qat_params *b)
{
    if (a->dtype != b->dtype || a->count != b->count || a->axis != b->axis || a->block != b->block)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (mlo_tensor_get_f64(a->scale, i) != mlo_tensor_get_f64(b->scale, i) ||
            mlo_qat_zero(a, i) != mlo_qat_zero(b, i))
            return false;
    return true;
}

void mlo_qat_limits(enum mlo_dtype dtype, int64_t *low, int64_t *high)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    *low = info->is_signed ? -((int64_t)1 << (info->bits - 1)) : 0;
    *high = ((int64_t)1 << (info->bits - info->is_signed)) - 1;
}

/* The first node of an integer op; NULL: there is none. */
static const struct mlo_node *integer_node(const struct mlo_graph *graph)
{
    static const char *const begins[] = {"QLinear", "QGemm", "ConvInteger", "MatMulInteger",
                                         "DynamicQuantize"};
    for (int n = 0; n < graph->node_count; n++)
        for (size_t i = 0; i < MLO_COUNT(begins); i++)
            if (strncmp(graph->nodes[n]->op_type, begins[i], strlen(begins[i])) == 0)
                return graph->nodes[n];
    return NULL;
}

/* Parameters as they come: behind Identity, Cast and Constant, or computed from other constants. Everything
 * but QuantizeLinear is folded, so that its parameters can be looked at before they are used. */
static enum mlo_status fold_parameters(struct mlo_model *model, json_t *notes, struct mlo_error *err)
{
    enum mlo_status status;
    json_t *options = json_pack("{s:i}", "max_bytes", 1 << 20);
    struct mlo_pass_context quiet = {.notes = notes, .options = options};
    if (!options)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_pass_fold_all_but(model, "QuantizeLinear", &quiet, err));
    MLO_TRY(mlo_pass_remove_identity(model, &quiet, err));
    MLO_TRY(mlo_pass_remove_dead(model, &quiet, err));
    MLO_TRY(mlo_graph_infer(model->graph, err));
out:
    json_decref(options);
    return status;
}

static enum mlo_status import(struct mlo_model *model, const struct mlo_target *target,
                              struct mlo_arena *arena, struct mlo_pass_context *ctx, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_graph *graph = model->graph;
    struct mlo_pass_context dead = {.notes = ctx->notes};
    bool integer = strcmp(mlo_json_str(ctx->options, "form", "qdq"), "qoperator") == 0;
    MLO_TRY(mlo_qat_check(graph, ctx, err));
    MLO_TRY(mlo_qat_clean_pairs(graph, ctx, err));
    if (!integer && !(target && target->clip_inside))
        MLO_TRY(mlo_qat_move_clips(graph, target, ctx, err));
    MLO_TRY(mlo_graph_infer(graph, err));
    if (target)
        MLO_TRY(mlo_qat_suit_target(graph, target, ctx, err));
    MLO_TRY(mlo_qat_fold_affine(graph, arena, ctx, err));
    if (integer || !target || !target->float_bias)
        MLO_TRY(mlo_qat_biases(graph, ctx, err));
    MLO_TRY(mlo_pass_remove_dead(model, &dead, err));
    MLO_TRY(mlo_graph_infer(graph, err));
    mlo_qat_note_coverage(graph, target, ctx);
out:
    return status;
}

enum mlo_status mlo_pass_import_qat(struct mlo_model *model, struct mlo_pass_context *ctx,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_target *target = mlo_target_find(mlo_json_str(ctx->options, "target", "none"));
    const struct mlo_node *integer = integer_node(model->graph);
    struct mlo_pass_context dead = {.notes = ctx->notes};
    struct mlo_arena *arena = NULL;
    if (integer) {
        mlo_pass_note(ctx, integer->name, "%s: the model computes in integers already, and stays as it is",
                      integer->op_type);
        return mlo_pass_remove_dead(model, &dead, err);
    }
    if (!mlo_graph_is_quantized(model->graph)) {
        mlo_error_set(err, MLO_EINVAL,
                      "the model has no fake quantization: none of its %d nodes is a QuantizeLinear or "
                      "DequantizeLinear",
                      model->graph->node_count);
        mlo_error_hint(err, "export the model that was prepared for quantization-aware training, or make a "
                            "variant of this one by 'mlopt quantize'");
        return MLO_EINVAL;
    }
    arena = mlo_arena_new();
    if (!arena)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_pass_raise_opset_to(model, 13, ctx, err));
    MLO_TRY(fold_parameters(model, ctx->notes, err));
    MLO_TRY(import(model, target, arena, ctx, err));
out:
    mlo_arena_free(arena);
    return status;
}
