/* Constant folding: nodes whose inputs are constants are evaluated by the op table's kernels, in their plain,
 * sequential order, so the bytes do not depend on the machine. Bounded, so that a small file cannot become a
 * big one. DequantizeLinear stays: folding it would undo a quantized model. Bodies of If, Loop and Scan are
 * folded too, by their own constants and those of the graphs around; an If whose condition is constant
 * becomes its branch. */
#include <limits.h>
#include <string.h>

#include "passes/passes_impl.h"

const struct mlo_option_spec mlo_fold_constants_options[] = {
    {.name = "max_bytes",
     .type = MLO_OPT_INT,
     .fallback = "1048576",
     .min = 0,
     .max = 1e12,
     .description =
         "A result above this size is folded only when it is no larger than the constants it replaces"},
    {NULL},
};

static bool visible_outputs(const struct mlo_node *node)
{
    for (int i = 0; i < node->output_count; i++)
        if (node->outputs[i] && node->outputs[i]->is_output)
            return true;
    return false;
}

static bool has_subgraph(const struct mlo_node *node)
{
    for (int i = 0; i < node->attr_count; i++)
        if (node->attrs[i].type == MLO_ATTR_GRAPH || node->attrs[i].type == MLO_ATTR_GRAPHS)
            return true;
    return false;
}

static bool all_fixed(const struct mlo_node *node)
{
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i] && !mlo_value_is_fixed(node->inputs[i]))
            return false;
    return true;
}

/* Whether the results, of known shape, are small enough; *known is false when the shape cannot be told. */
static bool size_allowed(const struct mlo_node *node, size_t max_bytes, bool *known)
{
    size_t total = 0, dying = 0;
    *known = true;
    for (int i = 0; i < node->output_count; i++) {
        int64_t dims[MLO_MAX_RANK];
        size_t bytes;
        if (!node->outputs[i])
            continue;
        const struct mlo_type *type = &node->outputs[i]->type;
        if (type->rank < 0 || !mlo_type_static(type, dims) ||
            !mlo_shape_bytes(type->dtype, type->rank, dims, &bytes)) {
            *known = false;
            return false;
        }
        if (bytes > SIZE_MAX - total)
            return false;
        total += bytes;
    }
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *value = node->inputs[i];
        if (value && value->constant && value->use_count == 1 && !value->is_output)
            dying += value->constant->size_bytes;
    }
    return total <= MLO_MAX(max_bytes, dying);
}

enum { MAX_OPERANDS = 64 };

/* A pure node with constant inputs only, that folding may touch at all. */
static bool is_candidate(const struct mlo_node *node)
{
    return node->op && node->op->eval && (node->op->flags & MLO_OP_PURE) && node->output_count > 0 &&
           node->input_count <= MAX_OPERANDS && node->output_count <= MAX_OPERANDS &&
           !mlo_node_is(node, "DequantizeLinear") && !has_subgraph(node) && !visible_outputs(node) &&
           all_fixed(node);
}

/* --- what is known of a shape -----------------------------------------------------------------------------
 */

/* The dims that Shape (with `start` and `end`, opset 15) reports. */
static bool shape_range(const struct mlo_node *shape, int *begin, int *end)
{
    const struct mlo_value *x = mlo_node_input(shape, 0);
    if (!x || x->type.rank < 0)
        return false;
    int64_t rank = x->type.rank, from = mlo_node_attr_i(shape, "start", 0),
            to = mlo_node_attr_i(shape, "end", rank);
    from += from < 0 ? rank : 0;
    to += to < 0 ? rank : 0;
    *begin = (int)MLO_MIN(MLO_MAX(from, 0), rank);
    *end = (int)MLO_MIN(MLO_MAX(to, 0), rank);
    return true;
}

/* Shape, Size, or a Gather that picks from a Shape: the result as int64 when the dims it needs are numbers.
 */
static enum mlo_status fold_shape(const struct mlo_node *node, struct mlo_tensor *out, bool *done,
                                  struct mlo_error *err)
{
    int begin, end;
    int64_t dims[MLO_MAX_RANK];
    enum mlo_status status;
    *done = false;
    const struct mlo_node *shape = mlo_node_is(node, "Gather") ? mlo_node_producer(node, 0) : node;
    if (!shape || !(mlo_node_is(shape, "Shape") || (shape == node && mlo_node_is(node, "Size"))) ||
        !shape_range(shape, &begin, &end))
        return MLO_OK;
    const struct mlo_type *type = &shape->inputs[0]->type;
    if (mlo_node_is(node, "Size")) {
        size_t count;
        if (!mlo_type_static(type, dims) || !mlo_shape_count(type->rank, dims, &count))
            return MLO_OK;
        MLO_TRY(mlo_tensor_init(out, MLO_INT64, 0, NULL, err));
        ((int64_t *)out->data)[0] = (int64_t)count;
    } else if (shape == node) {
        if (!mlo_type_static(type, dims))
            return MLO_OK;
        int64_t length = MLO_MAX(end - begin, 0);
        MLO_TRY(mlo_tensor_init(out, MLO_INT64, 1, &length, err));
        memcpy(out->data, dims + begin, (size_t)length * sizeof *dims);
    } else {
        const struct mlo_tensor *index = mlo_node_fixed(node, 1);
        if (!index || mlo_node_attr_i(node, "axis", 0) != 0 || index->rank > 1)
            return MLO_OK;
        size_t count = mlo_tensor_count(index);
        for (size_t i = 0; i < count; i++) {
            int64_t at = mlo_tensor_get_i64(index, i);
            at += at < 0 ? end - begin : 0;
            if (at < 0 || at >= end - begin || i >= MLO_MAX_RANK || type->dims[begin + at].value < 0)
                return MLO_OK;
            dims[i] = type->dims[begin + at].value;
        }
        MLO_TRY(mlo_tensor_init(out, MLO_INT64, index->rank, index->dims, err));
        memcpy(out->data, dims, count * sizeof *dims);
    }
    *done = true;
out:
    return status;
}

static enum mlo_status replace_by(struct mlo_node *node, struct mlo_tensor *results, struct mlo_error *err)
{
    for (int i = 0; i < node->output_count; i++) {
        if (!node->outputs[i])
            continue;
        enum mlo_status status = mlo_value_make_constant_take(node->outputs[i], &results[i], err);
        if (status != MLO_OK)
            return status;
    }
    mlo_graph_remove_node(node);
    return MLO_OK;
}

static enum mlo_status evaluate(struct mlo_node *node, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor results[MAX_OPERANDS] = {0};
    struct mlo_tensor *out[MAX_OPERANDS];
    const struct mlo_tensor *in[MAX_OPERANDS];
    for (int i = 0; i < node->input_count; i++)
        in[i] = node->inputs[i] ? node->inputs[i]->constant : NULL;
    for (int i = 0; i < node->output_count; i++)
        out[i] = node->outputs[i] ? &results[i] : NULL;
    MLO_TRY(mlo_node_eval(node, in, out, err));
    MLO_TRY(replace_by(node, results, err));
out:
    for (int i = 0; i < MAX_OPERANDS; i++)
        mlo_tensor_clear(&results[i]);
    return status;
}

/* The branch that an If with a constant condition takes; NULL for anything else. */
static struct mlo_graph *taken_branch(const struct mlo_node *node)
{
    const struct mlo_tensor *condition = mlo_node_is(node, "If") ? mlo_node_fixed(node, 0) : NULL;
    if (!condition || condition->dtype != MLO_BOOL || mlo_tensor_count(condition) != 1)
        return NULL;
    const struct mlo_attr *attr =
        mlo_node_attr(node, mlo_tensor_get_i64(condition, 0) ? "then_branch" : "else_branch");
    return attr && attr->type == MLO_ATTR_GRAPH ? attr->graph : NULL;
}

static enum mlo_status fold_node(struct mlo_node *node, size_t max_bytes, bool *done, struct mlo_error *err)
{
    bool known;
    struct mlo_tensor result = {0};
    *done = false;
    struct mlo_graph *branch = taken_branch(node);
    if (branch) {
        *done = true;
        return mlo_node_inline(node, branch, err);
    }
    if (is_candidate(node)) {
        if (!size_allowed(node, max_bytes, &known))
            return MLO_OK;
        *done = true;
        return evaluate(node, err);
    }
    if (node->output_count != 1 || !node->outputs[0] || visible_outputs(node))
        return MLO_OK;
    enum mlo_status status = fold_shape(node, &result, done, err);
    if (status == MLO_OK && *done)
        status = replace_by(node, &result, err);
    mlo_tensor_clear(&result);
    return status;
}

static bool body_is_folded(struct mlo_graph *graph, void *arg)
{
    MLO_UNUSED(arg);
    return mlo_graph_is_folded(graph);
}

bool mlo_graph_is_folded(const struct mlo_graph *graph)
{
    bool known;
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        if ((is_candidate(node) && size_allowed(node, 0, &known)) || taken_branch(node) ||
            !mlo_node_each_subgraph(node, body_is_folded, NULL))
            return false;
    }
    return true;
}

/* One walk over a graph and its bodies. */
struct walk {
    struct mlo_pass_context *ctx;
    size_t max_bytes;
    const char *left; /* an op type that is left alone; or NULL */
    int changes;
    enum mlo_status status;
    struct mlo_error *err;
};

static bool fold_graph(struct mlo_graph *graph, void *arg)
{
    struct walk *walk = arg;
    for (int n = 0; n < graph->node_count; n++) {
        bool done;
        struct mlo_node *node = graph->nodes[n];
        if (walk->left && mlo_node_is(node, walk->left))
            continue;
        walk->status = fold_node(node, walk->max_bytes, &done, walk->err);
        if (walk->status != MLO_OK)
            return false;
        if (done) {
            walk->changes++;
            n--;
        } else if (!mlo_node_each_subgraph(node, fold_graph, walk)) {
            return false;
        }
    }
    return true;
}

static bool finish_graph(struct mlo_graph *graph, void *arg)
{
    const struct walk *walk = arg;
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        bool known;
        if (is_candidate(node) && !(walk->left && mlo_node_is(node, walk->left)) &&
            !size_allowed(node, walk->max_bytes, &known))
            mlo_pass_note(walk->ctx, node->name, "left: %s",
                          known ? "its result is larger than max_bytes"
                                : "the size of its result is not known");
        mlo_node_each_subgraph(node, finish_graph, arg);
    }
    mlo_graph_remove_unused_values(graph);
    return true;
}

enum mlo_status mlo_pass_fold_all_but(struct mlo_model *model, const char *left, struct mlo_pass_context *ctx,
                                      struct mlo_error *err)
{
    struct walk walk = {ctx, (size_t)mlo_json_i64(ctx->options, "max_bytes", 0), left, 1, MLO_OK, err};
    /* A shape that becomes constant makes types known behind it, and those may make more constant. */
    while (walk.changes) {
        walk.changes = 0;
        if (!fold_graph(model->graph, &walk))
            return walk.status;
        ctx->changes += walk.changes;
        enum mlo_status status = walk.changes ? mlo_graph_infer(model->graph, err) : MLO_OK;
        if (status != MLO_OK)
            return status;
    }
    finish_graph(model->graph, &walk);
    return MLO_OK;
}

enum mlo_status mlo_pass_fold_constants(struct mlo_model *model, struct mlo_pass_context *ctx,
                                        struct mlo_error *err)
{
    return mlo_pass_fold_all_but(model, NULL, ctx, err);
}
