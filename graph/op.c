/* Nodes and their rows: support checks, evaluation, cost. */
#include "graph/op.h"

#include <stdlib.h>

#include "graph/ops/ops_impl.h"

static enum mlo_status unsupported(const struct mlo_node *node, struct mlo_error *err)
{
    const char *domain = *node->domain ? node->domain : "ai.onnx";
    enum mlo_status status;
    if (mlo_op_known(node->domain, node->op_type)) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED,
                               "node '%.80s': op %.60s of domain %.60s is known, but not in opset %lld",
                               node->name, node->op_type, domain, (long long)node->version);
        mlo_error_hint(err, "export the model again with opset 13 or newer");
    } else {
        size_t count;
        const struct mlo_op *rows = mlo_op_table(&count);
        const char **names = calloc(count + 1, sizeof *names);
        for (size_t i = 0; names && i < count; i++)
            names[i] = rows[i].name;
        const char *near = names ? mlo_suggest(node->op_type, names, count) : NULL;
        status =
            mlo_error_set(err, MLO_EUNSUPPORTED, "node '%.80s': unknown op %.60s of domain %.60s, opset %lld",
                          node->name, node->op_type, domain, (long long)node->version);
        if (near && strcmp(near, node->op_type) != 0)
            mlo_error_hint(err, "did you mean %s?", near);
        else
            mlo_error_hint(err, "the op is not in the op table; export the model with standard ONNX ops");
        free(names);
    }
    mlo_error_where(err, "node '%.200s'", node->name);
    return status;
}

static bool check_subgraph(struct mlo_graph *graph, void *arg)
{
    return mlo_graph_check_supported(graph, arg) == MLO_OK;
}

enum mlo_status mlo_node_check_supported(const struct mlo_node *node, struct mlo_error *err)
{
    return node->op ? MLO_OK : unsupported(node, err);
}

enum mlo_status mlo_graph_check_supported(const struct mlo_graph *graph, struct mlo_error *err)
{
    struct mlo_error inner = {0};
    for (int n = 0; n < graph->node_count; n++) {
        if (!graph->nodes[n]->op)
            return unsupported(graph->nodes[n], err);
        if (!mlo_node_each_subgraph(graph->nodes[n], check_subgraph, &inner)) {
            if (err)
                *err = inner;
            return inner.status;
        }
    }
    return MLO_OK;
}

static enum mlo_status check_counts(const struct mlo_node *node, struct mlo_error *err)
{
    const struct mlo_op *op = node->op;
    if (node->input_count < op->min_inputs || (op->max_inputs >= 0 && node->input_count > op->max_inputs))
        return mlo_error_set(err, MLO_EFORMAT, "%d inputs, but %s takes %d to %d", node->input_count,
                             op->name, op->min_inputs, op->max_inputs);
    if (node->output_count < op->min_outputs ||
        (op->max_outputs >= 0 && node->output_count > op->max_outputs))
        return mlo_error_set(err, MLO_EFORMAT, "%d outputs, but %s gives %d to %d", node->output_count,
                             op->name, op->min_outputs, op->max_outputs);
    /* those of an op that takes any number are all alike, but for what goes into a body */
    int needed = op->max_inputs < 0 && !op->eval_in ? node->input_count : op->min_inputs;
    for (int i = 0; i < needed; i++)
        if (!node->inputs[i])
            return mlo_error_set(err, MLO_EFORMAT, "input %d is omitted, but %s needs it", i, op->name);
    return MLO_OK;
}

static enum mlo_status check_kind(const struct mlo_node *node, int input, enum mlo_dtype dtype,
                                  struct mlo_error *err)
{
    if (!mlo_holds_values(dtype) || (node->op->flags & MLO_OP_VALUES))
        return MLO_OK;
    return mlo_error_set(err, MLO_EFORMAT, "input %d is a %s, but %s takes tensors", input,
                         mlo_dtype_name(dtype), node->op_type);
}

static enum mlo_status check_dims(const struct mlo_type *type, int output, struct mlo_error *err)
{
    for (int d = 0; d < type->rank; d++)
        if (type->dims[d].value > MLO_MAX_DIM)
            return mlo_error_set(err, MLO_ETOOBIG,
                                 "dim %d of output %d would be %lld; at most %lld are supported", d, output,
                                 (long long)type->dims[d].value, (long long)MLO_MAX_DIM);
    return MLO_OK;
}

enum mlo_status mlo_node_infer(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = node->op ? check_counts(node, err) : unsupported(node, err);
    for (int i = 0; i < node->output_count; i++)
        out[i] = (struct mlo_type){.rank = -1};
    for (int i = 0; status == MLO_OK && i < node->input_count; i++)
        if (node->inputs[i])
            status = check_kind(node, i, node->inputs[i]->type.dtype, err);
    if (status == MLO_OK)
        status = node->op->infer(node, out, err);
    for (int i = 0; status == MLO_OK && i < node->output_count; i++)
        status = check_dims(&out[i], i, err);
    if (status != MLO_OK)
        mlo_error_where(err, "node '%.160s' (%.60s)", node->name, node->op_type);
    return status;
}

/* Infer reads types and constants through a node's values: stand-ins carry those of the tensors at hand. */
enum mlo_status mlo_op_alloc(const struct mlo_node *node, const struct mlo_tensor *const *in,
                             struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t ins = (size_t)node->input_count, outs = (size_t)node->output_count;
    struct mlo_value *values = calloc(ins + 1, sizeof *values);
    struct mlo_value **inputs = calloc(ins + 1, sizeof *inputs);
    struct mlo_type *types = calloc(outs + 1, sizeof *types);
    struct mlo_node stand_in = *node;
    if (!values || !inputs || !types) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < ins; i++) {
        if (!in[i])
            continue;
        values[i].name = node->inputs[i] ? node->inputs[i]->name : "";
        values[i].type = mlo_type_of(in[i]);
        values[i].constant = (struct mlo_tensor *)in[i];
        inputs[i] = &values[i];
    }
    stand_in.inputs = inputs;
    MLO_TRY(mlo_node_infer(&stand_in, types, err));
    for (size_t i = 0; i < outs; i++) {
        int64_t dims[MLO_MAX_RANK];
        if (!out[i])
            continue;
        if (!mlo_type_static(&types[i], dims)) {
            status = mlo_error_set(err, MLO_EINTERNAL, "the shape of output %zu cannot be told", i);
            goto out;
        }
        MLO_TRY(mlo_tensor_init(out[i], types[i].dtype, types[i].rank, dims, err));
    }
out:
    free(values);
    free(inputs);
    free(types);
    return status;
}

enum mlo_status mlo_node_eval(const struct mlo_node *node, const struct mlo_tensor *const *in,
                              struct mlo_tensor *const *out, struct mlo_error *err)
{
    return mlo_node_eval_in(node, in, out, NULL, err);
}

/* Of operands without elements come results without elements, mostly: nothing is to be computed, and no
 * kernel walks along the other dims, which may be huge then. Sets *done where that holds; out is made then.
 */
static enum mlo_status skip_empty(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, bool *done, struct mlo_error *err)
{
    bool empty = false;
    *done = false;
    for (int i = 0; i < node->input_count; i++)
        empty = empty || (in[i] && mlo_tensor_count(in[i]) == 0);
    if (!empty || node->op->eval_in || node->op->flags & MLO_OP_VALUES)
        return MLO_OK;
    struct mlo_error told = {0};
    enum mlo_status status = mlo_op_alloc(node, in, out, &told);
    *done = status == MLO_OK;
    for (int i = 0; i < node->output_count; i++)
        *done = *done && (!out[i] || mlo_tensor_count(out[i]) == 0);
    for (int i = 0; !*done && i < node->output_count; i++)
        if (out[i])
            mlo_tensor_clear(out[i]);
    if (status == MLO_OK || status == MLO_EINTERNAL) /* the latter: only the kernel knows the shape */
        return MLO_OK;
    if (err)
        *err = told;
    return status;
}

static bool is_nibbles(const struct mlo_tensor *t)
{
    return t && (t->dtype == MLO_INT4 || t->dtype == MLO_UINT4);
}

/* All elements of `from` in a tensor of another integer type, which holds them. */
static enum mlo_status convert(const struct mlo_tensor *from, enum mlo_dtype dtype, struct mlo_tensor *out,
                               struct mlo_error *err)
{
    enum mlo_status status = mlo_tensor_init(out, dtype, from->rank, from->dims, err);
    for (size_t i = 0; status == MLO_OK && i < mlo_tensor_count(from); i++)
        mlo_store_i64(out, i, mlo_tensor_get_i64(from, i));
    return status;
}

static enum mlo_status run_kernel(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_eval *scope,
                                  struct mlo_error *err);

/* Ops that only move elements move bytes: 4-bit elements become bytes for them, and are packed again. */
static enum mlo_status move_nibbles(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                    struct mlo_tensor *const *out, struct mlo_eval *scope,
                                    struct mlo_error *err)
{
    enum mlo_dtype dtype = in[0]->dtype, wide = dtype == MLO_INT4 ? MLO_INT8 : MLO_UINT8;
    size_t count = (size_t)node->input_count;
    struct mlo_tensor *bytes = calloc(count, sizeof *bytes);
    const struct mlo_tensor **fed = calloc(count, sizeof *fed);
    enum mlo_status status = bytes && fed ? MLO_OK : mlo_error_nomem(err);
    for (size_t i = 0; status == MLO_OK && i < count; i++) {
        fed[i] = in[i];
        if (in[i] && in[i]->dtype == dtype) {
            fed[i] = &bytes[i];
            status = convert(in[i], wide, &bytes[i], err);
        }
    }
    if (status == MLO_OK)
        status = run_kernel(node, fed, out, scope, err);
    for (int i = 0; status == MLO_OK && i < node->output_count; i++) {
        if (!out[i] || out[i]->dtype != wide)
            continue;
        struct mlo_tensor moved = *out[i];
        *out[i] = (struct mlo_tensor){0};
        status = convert(&moved, dtype, out[i], err);
        mlo_tensor_clear(&moved);
    }
    for (size_t i = 0; bytes && i < count; i++)
        mlo_tensor_clear(&bytes[i]);
    free(bytes);
    free(fed);
    return status;
}

/* Kernels fill every output that their op always has: one that the node omits is made and dropped. */
static enum mlo_status run_kernel(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                  struct mlo_tensor *const *out, struct mlo_eval *scope,
                                  struct mlo_error *err)
{
    const struct mlo_op *op = node->op;
    bool omitted = false, done;
    enum mlo_status status = skip_empty(node, in, out, &done, err);
    if (status != MLO_OK || done)
        return status;
    for (int i = 0; i < op->min_outputs; i++)
        omitted = omitted || !out[i];
    if (!omitted)
        return op->eval_in ? op->eval_in(node, in, out, scope, err) : op->eval(node, in, out, err);
    struct mlo_tensor *spare = calloc((size_t)node->output_count, sizeof *spare);
    struct mlo_tensor **all = calloc((size_t)node->output_count, sizeof *all);
    status = spare && all ? MLO_OK : mlo_error_nomem(err);
    for (int i = 0; status == MLO_OK && i < node->output_count; i++)
        all[i] = !out[i] && i < op->min_outputs ? &spare[i] : out[i];
    if (status == MLO_OK)
        status = op->eval_in ? op->eval_in(node, in, all, scope, err) : op->eval(node, in, all, err);
    for (int i = 0; spare && i < node->output_count; i++)
        mlo_tensor_clear(&spare[i]);
    free(spare);
    free(all);
    return status;
}

enum mlo_status mlo_node_eval_in(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                 struct mlo_tensor *const *out, struct mlo_eval *scope, struct mlo_error *err)
{
    enum mlo_status status = node->op ? check_counts(node, err) : unsupported(node, err);
    for (int i = 0; status == MLO_OK && i < node->op->min_inputs; i++)
        if (!in[i])
            status = mlo_error_set(err, MLO_EINVAL, "input %d is not given", i);
    for (int i = 0; status == MLO_OK && i < node->input_count; i++)
        if (in[i])
            status = check_kind(node, i, in[i]->dtype, err);
    bool nibbles = status == MLO_OK && node->input_count && is_nibbles(in[0]) &&
                   (node->op->flags & MLO_OP_RANGE_KEEP || mlo_node_is(node, "Concat"));
    if (status == MLO_OK)
        status = nibbles ? move_nibbles(node, in, out, scope, err) : run_kernel(node, in, out, scope, err);
    if (status != MLO_OK) {
        for (int i = 0; i < node->output_count; i++)
            if (out[i])
                mlo_tensor_clear(out[i]);
        mlo_error_where(err, "node '%.160s' (%.60s)", node->name, node->op_type);
    }
    return status;
}

/* Elements of a fixed shape, from one dim on; 0 when it is not fixed or overflows. */
static uint64_t count_from(const struct mlo_type *type, int first)
{
    int64_t dims[MLO_MAX_RANK];
    size_t count;
    if (!mlo_type_static(type, dims) || first > type->rank ||
        !mlo_shape_count(type->rank - first, dims + first, &count))
        return 0;
    return count;
}

uint64_t mlo_node_macs(const struct mlo_node *node)
{
    if (!node->op || !(node->op->flags & MLO_OP_FLOPS_MAC) || !node->outputs[0])
        return 0;
    /* multiply-adds per output element: of the kernel for convolutions, of the reduced dim for products */
    int weight_at = strncmp(node->op_type, "QLinear", 7) == 0 ? 3 : 1;
    const struct mlo_value *weight = mlo_node_input(node, weight_at), *x = mlo_node_input(node, 0);
    uint64_t outputs = count_from(&node->outputs[0]->type, 0), each = 0, total;
    if (!weight || !x || x->type.rank < 1)
        return 0;
    if (strstr(node->op_type, "Conv"))
        each = count_from(&weight->type, 1);
    else if (mlo_node_is(node, "Gemm") && mlo_node_attr_i(node, "transA", 0))
        each = x->type.dims[0].value > 0 ? (uint64_t)x->type.dims[0].value : 0;
    else if (x->type.dims[x->type.rank - 1].value > 0)
        each = (uint64_t)x->type.dims[x->type.rank - 1].value;
    return __builtin_mul_overflow(outputs, each, &total) ? UINT64_MAX : total;
}
