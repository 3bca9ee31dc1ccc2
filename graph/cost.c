/* Costs of nodes and of a whole graph. */
#include "graph/cost.h"

#include <stdlib.h>
#include <string.h>

#include "graph/model_impl.h"

/* False when the size is not fixed. */
static bool size_of(const struct mlo_type *type, uint64_t *elements, uint64_t *bytes)
{
    int64_t dims[MLO_MAX_RANK];
    size_t count, size;
    if (!mlo_type_static(type, dims) || !mlo_shape_count(type->rank, dims, &count) ||
        !mlo_shape_bytes(type->dtype, type->rank, dims, &size))
        return false;
    *elements = count;
    *bytes = size;
    return true;
}

/* Operations for each element, of ops that are neither multiply-adds nor one operation an output element:
 * of the input's elements where they are reduced, else of the output's. */
static const struct {
    const char *op;
    unsigned each;
    bool of_input;
} weights[] = {
    {"BatchNormalization", 2, false},
    {"Elu", 3, false},
    {"Erf", 8, false},
    {"Gelu", 12, false},
    {"GlobalAveragePool", 1, true},
    {"GlobalMaxPool", 1, true},
    {"GroupNormalization", 8, true},
    {"HardSigmoid", 4, false},
    {"HardSwish", 5, false},
    {"InstanceNormalization", 8, true},
    {"LayerNormalization", 8, true},
    {"LogSoftmax", 5, true},
    {"Mish", 12, false},
    {"RMSNormalization", 5, true},
    {"ReduceMax", 1, true},
    {"ReduceMean", 1, true},
    {"ReduceMin", 1, true},
    {"ReduceProd", 1, true},
    {"ReduceSum", 1, true},
    {"Sigmoid", 4, false},
    {"Softmax", 5, true},
    {"Tanh", 6, false},
};

static uint64_t window_elements(const struct mlo_node *node)
{
    size_t count;
    const int64_t *kernel = mlo_node_attr_ints(node, "kernel_shape", &count);
    uint64_t product = 1;
    for (size_t i = 0; i < count; i++)
        product = kernel[i] > 0 && kernel[i] < 1 << 20 ? product * (uint64_t)kernel[i] : product;
    return product;
}

static uint64_t operations(const struct mlo_node *node, uint64_t in, uint64_t out)
{
    if (node->op->flags & MLO_OP_FLOPS_MAC)
        return 2 * mlo_node_macs(node);
    for (size_t i = 0; i < MLO_COUNT(weights); i++)
        if (mlo_node_is(node, weights[i].op))
            return weights[i].each * (weights[i].of_input ? in : out);
    if (mlo_node_is(node, "AveragePool") || mlo_node_is(node, "MaxPool"))
        return out * window_elements(node);
    bool moves = node->op->flags & MLO_OP_RANGE_KEEP;
    return (node->op->flags & MLO_OP_ELEMENTWISE) && !moves ? out : 0;
}

void mlo_node_cost(const struct mlo_node *node, struct mlo_node_cost *out)
{
    uint64_t first = 0, result = 0, elements, bytes;
    *out = (struct mlo_node_cost){.known = node->op != NULL};
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *value = node->inputs[i];
        bool again = false;
        for (int k = 0; value && k < i && k < 16; k++)
            again = again || node->inputs[k] == value;
        if (!value || again)
            continue;
        if (!size_of(&value->type, &elements, &bytes)) {
            out->known = false;
            continue;
        }
        first = i == 0 ? elements : first;
        out->bytes_read += bytes;
        out->weight_bytes += value->constant ? bytes : 0;
    }
    for (int o = 0; o < node->output_count; o++) {
        if (!node->outputs[o])
            continue;
        if (!size_of(&node->outputs[o]->type, &elements, &bytes)) {
            out->known = false;
            continue;
        }
        result = o == 0 ? elements : result;
        out->bytes_written += bytes;
    }
    if (out->known)
        out->flops = operations(node, first, result);
}

enum mlo_status mlo_graph_peak(const struct mlo_graph *graph, struct mlo_peak *out, struct mlo_error *err)
{
    int nodes = graph->node_count;
    uint64_t *freed = calloc((size_t)nodes + 1, sizeof *freed), alive = 0, elements, bytes;
    *out = (struct mlo_peak){.known = true};
    if (!freed)
        return mlo_error_nomem(err);
    for (int i = 0; i < graph->value_count; i++) { /* what each node is the last to read */
        const struct mlo_value *value = graph->values[i];
        int last = value->producer ? value->producer->index : -1;
        bool counts = value->producer || (value->is_input && !value->constant);
        if (!counts)
            continue;
        if (!size_of(&value->type, &elements, &bytes)) {
            out->known = false;
            continue;
        }
        for (int u = 0; u < value->use_count; u++) {
            const struct mlo_node *reader = mlo_node_ancestor(value->uses[u].node, graph);
            last = reader ? MLO_MAX(last, reader->index) : last;
        }
        last = value->is_output || last < 0 ? nodes : last;
        freed[last] += bytes;
        alive += value->producer ? 0 : bytes;
    }
    out->bytes = alive;
    for (int n = 0; n < nodes; n++) {
        const struct mlo_node *node = graph->nodes[n];
        for (int o = 0; o < node->output_count; o++)
            if (node->outputs[o] && size_of(&node->outputs[o]->type, &elements, &bytes))
                alive += bytes;
        if (alive > out->bytes || !out->node) {
            out->bytes = MLO_MAX(alive, out->bytes);
            out->node = node->name;
        }
        alive -= freed[n];
    }
    free(freed);
    return MLO_OK;
}
