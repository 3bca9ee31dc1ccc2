/* The rules of each runtime. Sources: ONNX Runtime's documentation of quantization and the node groups that
 * its QDQ transformer selects (1.31); OpenVINO's low precision transformations; TensorRT's guide to explicit
 * quantization. */
#include "passes/targets.h"

#include <string.h>

static const struct mlo_target targets[] = {
    {
        .name = "mlopt-cpu",
        .activations = MLO_UINT8,
        .per_channel = true,
        .form = "qdq",
        .description = "the cpu engine: activations fuse behind the sums, whatever follows them",
    },
    {
        .name = "mlopt-cuda",
        .activations = MLO_INT8,
        .symmetric = true,
        .per_channel = true,
        .skip_only = true,
        .half = true,
        .form = "qdq",
        .only = "int8 activations with zero point 0",
        .description = "the cuda engine: symmetric, as its matrix units multiply int8 by int8",
    },
    {
        .name = "mlopt-cuda-fp8",
        .activations = MLO_FLOAT8E4M3FN,
        .symmetric = true,
        .float_bias = true,
        .half = true,
        .form = "qdq",
        .only = "float8 activations",
        .description = "the cuda engine from sm_89 on: products in float8 (E4M3), one scale a tensor",
    },
    {
        .name = "openvino",
        .activations = MLO_UINT8,
        .per_channel = true,
        .float_bias = true,
        .apart = true,
        .form = "qdq",
        .description = "OpenVINO on CPUs: pairs on the inputs of what computes in integers",
    },
    {
        .name = "openvino-avx2",
        .activations = MLO_UINT8,
        .per_channel = true,
        .reduce_range = true,
        .float_bias = true,
        .apart = true,
        .form = "qdq",
        .description = "OpenVINO on CPUs without VNNI: weights in 7 bits, so that its sums do not saturate",
    },
    {
        .name = "ort-x86-avx2",
        .activations = MLO_UINT8,
        .per_channel = true,
        .reduce_range = true,
        .clip_inside = true,
        .form = "qdq",
        .description =
            "ONNX Runtime on x86 without VNNI: weights in 7 bits, so that its sums do not saturate",
    },
    {
        .name = "ort-x86-vnni",
        .activations = MLO_UINT8,
        .per_channel = true,
        .clip_inside = true,
        .form = "qdq",
        .description = "ONNX Runtime on x86 with VNNI: a Conv only between two pairs, both inputs of an Add",
    },
    {
        .name = "tensorrt",
        .activations = MLO_INT8,
        .symmetric = true,
        .per_channel = true,
        .skip_only = true,
        .float_bias = true,
        .apart = true,
        .half = true,
        .form = "qdq",
        .only = "int8 activations with zero point 0",
        .description = "TensorRT: symmetric, pairs on the inputs of weighted ops and on a residual's skip",
    },
};
const char *const mlo_target_names[] = {"mlopt-cpu",    "mlopt-cuda",    "mlopt-cuda-fp8",
                                        "openvino",     "openvino-avx2", "ort-x86-avx2",
                                        "ort-x86-vnni", "tensorrt",      NULL};

/* One letter (enum mlo_target_rule) a target, in the order of the table above. The engine of mlopt fuses any
 * activation behind a product and keeps it in float; ONNX Runtime needs integers on both sides of each op. */
static const struct {
    const char *op_type, rules[MLO_COUNT(targets) + 1];
} ops[] = {
    /*                       cpu
     *                       | cuda
     *                       | | cuda-fp8
     *                       | | | openvino
     *                       | | | | openvino-avx2
     *                       | | | | | ort-avx2
     *                       | | | | | | ort-vnni
     *                       | | | | | | | tensorrt */
    {"Add", "ii-iiiii"},
    {"AveragePool", "ii-iiiii"},
    {"Clip", "aa-aaaaa"},
    {"Concat", "uu-uuiiu"},
    {"Conv", "ww-wwoow"},
    {"ConvTranspose", "---ww--w"},
    {"Gemm", "wwwwwwww"},
    {"GlobalAveragePool", "ii-iiiii"},
    {"HardSigmoid", "--------"},
    {"HardSwish", "---aa---"},
    {"LayerNormalization", "--------"},
    {"LeakyRelu", "---aaiia"},
    {"MatMul", "wwwppppp"},
    {"Mul", "-----ii-"},
    {"ReduceMean", "ii-iiii-"},
    {"Relu", "aa-aaaaa"},
    {"Resize", "---uuuuu"},
    {"Sigmoid", "-----ii-"},
    {"Softmax", "--------"}, /* 8 bits of input cost more accuracy than the op costs time */
};

const struct mlo_target *mlo_target_table(size_t *count)
{
    *count = MLO_COUNT(targets);
    return targets;
}

const struct mlo_target *mlo_target_find(const char *name)
{
    return mlo_named_row(name, targets, MLO_COUNT(targets), sizeof *targets);
}

enum mlo_target_rule mlo_target_rule(const struct mlo_target *target, const struct mlo_node *node)
{
    /* A cubic kernel goes beyond the values that it is given. */
    if (mlo_node_is(node, "Resize") && strcmp(mlo_node_attr_s(node, "mode", "nearest"), "cubic") == 0)
        return MLO_RULE_FLOAT;
    for (size_t i = 0; i < MLO_COUNT(ops); i++)
        if (mlo_node_is(node, ops[i].op_type))
            return (enum mlo_target_rule)ops[i].rules[target - targets];
    return node->op && (node->op->flags & MLO_OP_RANGE_KEEP) ? MLO_RULE_UNITED : MLO_RULE_FLOAT;
}
