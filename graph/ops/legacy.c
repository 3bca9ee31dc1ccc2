/* Forms from before opset 7, when operands were broadcast by attribute and training was one too. They are
 * brought into the later form, whose kernels do the rest. MLO_OP_LEGACY keeps passes and engines from taking
 * a node for its later namesake. */
#include "graph/ops/ops_impl.h"

/* A node in its later form, with the second operand's type changed. */
struct later {
    struct mlo_node node;
    struct mlo_value second;
    struct mlo_value *inputs[8];
};

/* Dims of one behind the last dim, so that the operand's dims stand at `axis` and on. */
static enum mlo_status pad_dims(int *rank, int x_rank, int64_t axis, struct mlo_error *err)
{
    if (axis < 0 && axis >= -x_rank)
        axis += x_rank;
    if (axis < 0 || axis > x_rank - *rank)
        return mlo_error_set(err, MLO_EINVAL, "attribute 'axis' is %lld for operands of rank %d and %d",
                             (long long)axis, x_rank, *rank);
    *rank = x_rank - (int)axis;
    return MLO_OK;
}

/* The rank that the second operand needs for numpy's broadcasting to do what the attributes say. */
static enum mlo_status second_rank(const struct mlo_node *node, int x_rank, int *rank, struct mlo_error *err)
{
    if (strcmp(node->op_type, "PRelu") == 0) /* one slope a channel */
        return *rank == 1 && x_rank > 1 ? pad_dims(rank, x_rank, 1, err) : MLO_OK;
    const struct mlo_attr *axis = mlo_node_attr(node, "axis");
    if (!axis || axis->type != MLO_ATTR_INT || !mlo_node_attr_i(node, "broadcast", 0))
        return MLO_OK;
    return pad_dims(rank, x_rank, axis->i, err);
}

static enum mlo_status make_later(const struct mlo_node *node, struct later *later, struct mlo_error *err)
{
    int64_t version = strcmp(node->op_type, "Max") && strcmp(node->op_type, "Min") &&
                              strcmp(node->op_type, "Sum") && strcmp(node->op_type, "Mean")
                          ? 7
                          : 8;
    later->node = *node;
    later->node.op = mlo_op_find("", node->op_type, version);
    if (!later->node.op)
        return mlo_error_set(err, MLO_EINTERNAL, "the op has no later form");
    bool trains = strcmp(node->op_type, "BatchNormalization") == 0 || strcmp(node->op_type, "Dropout") == 0;
    if (trains && !mlo_node_attr_i(node, "is_test", 0)) {
        enum mlo_status status = mlo_error_set(err, MLO_EUNSUPPORTED, "%s in training mode", node->op_type);
        mlo_error_hint(err, "export the model for inference");
        return status;
    }
    return MLO_OK;
}

static enum mlo_status infer_legacy(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    struct later later;
    enum mlo_status status;
    MLO_TRY(make_later(node, &later, err));
    const struct mlo_type *x = mlo_op_in(node, 0), *second = mlo_op_in(node, 1);
    if (later.node.op->max_inputs == 2 && x && second && x->rank >= 0 && second->rank >= 0) {
        int rank = second->rank;
        MLO_TRY(second_rank(node, x->rank, &rank, err));
        later.second = *node->inputs[1];
        for (int i = second->rank; i < rank; i++)
            later.second.type.dims[i] = mlo_dim_fixed(1);
        later.second.type.rank = rank;
        later.inputs[0] = node->inputs[0];
        later.inputs[1] = &later.second;
        later.node.inputs = later.inputs;
    }
    MLO_TRY(later.node.op->infer(&later.node, out, err));
out:
    return status;
}

static enum mlo_status eval_legacy(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    struct later later;
    struct mlo_tensor second;
    enum mlo_status status;
    MLO_TRY(make_later(node, &later, err));
    if (later.node.op->max_inputs != 2 || node->input_count < 2) {
        MLO_TRY(later.node.op->eval(&later.node, in, out, err));
        goto out;
    }
    second = *in[1];
    MLO_TRY(second_rank(node, in[0]->rank, &second.rank, err));
    for (int i = in[1]->rank; i < second.rank; i++)
        second.dims[i] = 1;
    const struct mlo_tensor *operands[2] = {in[0], &second};
    MLO_TRY(later.node.op->eval(&later.node, operands, out, err));
out:
    return status;
}

#define ROW(name, since, least, most, outs)                                                                  \
    {                                                                                                        \
        "", name, since, infer_legacy, eval_legacy, MLO_OP_PURE | MLO_OP_LEGACY, least, most, 1, outs        \
    }
static const struct mlo_op rows[] = {
    ROW("Add", 6, 2, 2, 1),          ROW("Sub", 6, 2, 2, 1),         ROW("Mul", 6, 2, 2, 1),
    ROW("Div", 6, 2, 2, 1),          ROW("Pow", 1, 2, 2, 1),         ROW("And", 1, 2, 2, 1),
    ROW("Or", 1, 2, 2, 1),           ROW("Xor", 1, 2, 2, 1),         ROW("Greater", 1, 2, 2, 1),
    ROW("Less", 1, 2, 2, 1),         ROW("Equal", 1, 2, 2, 1),       ROW("PRelu", 6, 2, 2, 1),
    ROW("Max", 6, 1, ANY_COUNT, 1),  ROW("Min", 6, 1, ANY_COUNT, 1), ROW("Sum", 6, 1, ANY_COUNT, 1),
    ROW("Mean", 6, 1, ANY_COUNT, 1), ROW("Gemm", 6, 3, 3, 1),        ROW("BatchNormalization", 6, 5, 5, 5),
    ROW("AveragePool", 1, 1, 1, 1),  ROW("Dropout", 6, 1, 1, 2),
};
const struct mlo_op_family mlo_ops_legacy = {rows, MLO_COUNT(rows)};
