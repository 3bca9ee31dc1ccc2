/* If, Loop, Scan and SequenceMap: what their subgraphs take and give. Inference goes into the subgraphs: it
 * sets the types of their inputs and runs over them. */
#include "graph/infer.h"
#include "graph/ops/control_impl.h"

#include <stdlib.h>

enum mlo_status mlo_op_body(const struct mlo_node *node, const char *name, int inputs, int outputs,
                            struct mlo_graph **out, struct mlo_error *err)
{
    const struct mlo_attr *attr = mlo_node_attr(node, name);
    if (!attr || attr->type != MLO_ATTR_GRAPH)
        return mlo_error_set(err, MLO_EFORMAT, "its subgraph '%s' is missing", name);
    *out = attr->graph;
    if (attr->graph->input_count != inputs || attr->graph->output_count != outputs)
        return mlo_error_set(err, MLO_EFORMAT, "subgraph '%s' has %d inputs and %d outputs, not %d and %d",
                             name, attr->graph->input_count, attr->graph->output_count, inputs, outputs);
    return MLO_OK;
}

/* What holds for both: unknown where they differ. MLO_EFORMAT when the element types differ. */
static enum mlo_status join(const struct mlo_type *a, const struct mlo_type *b, struct mlo_type *out,
                            struct mlo_error *err)
{
    struct mlo_type both = *a;
    if (a->dtype != b->dtype && (a->dtype == MLO_OPTIONAL || b->dtype == MLO_OPTIONAL)) {
        *out = a->dtype == MLO_OPTIONAL ? *a : *b; /* an optional takes what it is an optional of */
        return MLO_OK;
    }
    if (a->dtype && b->dtype && a->dtype != b->dtype) {
        char x[160], y[160];
        return mlo_error_set(err, MLO_EFORMAT, "a value is %s here and %s there",
                             mlo_type_describe(a, x, sizeof x), mlo_type_describe(b, y, sizeof y));
    }
    both.dtype = a->dtype ? a->dtype : b->dtype;
    both.element = a->element ? a->element : b->element;
    if (a->rank != b->rank)
        both.rank = -1;
    for (int i = 0; i < both.rank; i++)
        if (a->dims[i].value != b->dims[i].value || !mlo_str_eq(a->dims[i].name, b->dims[i].name))
            both.dims[i] = mlo_dim_unknown();
    *out = both;
    return MLO_OK;
}

static bool same_shape(const struct mlo_type *a, const struct mlo_type *b)
{
    bool same = a->dtype == b->dtype && a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++)
        same = a->dims[i].value == b->dims[i].value && mlo_str_eq(a->dims[i].name, b->dims[i].name);
    return same;
}

static enum mlo_status set_inputs(struct mlo_graph *body, const struct mlo_type *types, struct mlo_error *err)
{
    for (int i = 0; i < body->input_count; i++) {
        struct mlo_value *input = body->inputs[i];
        enum mlo_dtype stated = input->type.dtype;
        if (input->constant)
            return mlo_error_set(err, MLO_EFORMAT, "input '%.120s' of its subgraph is an initializer",
                                 input->name);
        if (stated && types[i].dtype && stated != types[i].dtype)
            return mlo_error_set(err, MLO_EFORMAT, "input '%.120s' of its subgraph is %s, but gets %s",
                                 input->name, mlo_dtype_name(stated), mlo_dtype_name(types[i].dtype));
        const struct mlo_type *element = input->type.element;
        input->type = types[i];
        input->type.dtype = types[i].dtype ? types[i].dtype : stated;
        input->type.element = types[i].element ? types[i].element : element;
    }
    return MLO_OK;
}

static int depth_of(const struct mlo_graph *graph)
{
    int depth = 0;
    for (; graph->parent; graph = graph->parent)
        depth++;
    return depth;
}

enum { ROUNDS = 3, ROUNDS_DEPTH = 3 };

/* Infers a body whose inputs [first_in, first_in + states) are given its outputs [first_out, …) again, so
 * that their types must hold for both: shapes that change from one run to the next become unknown. The rounds
 * that this takes multiply with nesting, so deep bodies get unknown shapes at once. */
static enum mlo_status infer_body(struct mlo_graph *body, struct mlo_type *inputs, int first_in,
                                  int first_out, int states, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool deep = depth_of(body) > ROUNDS_DEPTH, changed = true;
    for (int round = deep ? ROUNDS - 1 : 0; changed && round < ROUNDS; round++) {
        for (int i = 0; i < states && round == ROUNDS - 1; i++)
            inputs[first_in + i].rank = -1;
        if (round > 0)
            mlo_graph_forget_types(body);
        MLO_TRY(set_inputs(body, inputs, err));
        MLO_TRY(mlo_graph_infer(body, err));
        changed = false;
        for (int i = 0; i < states; i++) {
            struct mlo_type both, *state = &inputs[first_in + i];
            MLO_TRY(join(state, &body->outputs[first_out + i]->type, &both, err));
            changed = changed || !same_shape(&both, state);
            *state = both;
        }
    }
out:
    return status;
}

static enum mlo_status infer_if(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *yes, *no;
    MLO_TRY(mlo_op_body(node, "then_branch", 0, node->output_count, &yes, err));
    MLO_TRY(mlo_op_body(node, "else_branch", 0, node->output_count, &no, err));
    MLO_TRY(mlo_graph_infer(yes, err));
    MLO_TRY(mlo_graph_infer(no, err));
    for (int i = 0; i < node->output_count; i++) {
        MLO_TRY(join(&yes->outputs[i]->type, &no->outputs[i]->type, &out[i], err));
    }
out:
    return status;
}

/* A type with one more dim, or one less, at a (maybe negative) position. */
static enum mlo_status with_dim(const struct mlo_type *t, int64_t axis, struct mlo_dim dim,
                                struct mlo_type *out, struct mlo_error *err)
{
    int at;
    *out = *t;
    if (t->rank < 0)
        return MLO_OK;
    if (t->rank == MLO_MAX_RANK)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a result of rank %d; at most %d is supported",
                             t->rank + 1, MLO_MAX_RANK);
    enum mlo_status status = mlo_op_axis(axis, t->rank + 1, &at, err);
    if (status != MLO_OK)
        return status;
    memmove(&out->dims[at + 1], &out->dims[at], (size_t)(t->rank - at) * sizeof out->dims[0]);
    out->dims[at] = dim;
    out->rank++;
    return MLO_OK;
}

static enum mlo_status without_dim(const struct mlo_type *t, int64_t axis, struct mlo_type *out,
                                   struct mlo_dim *dim, struct mlo_error *err)
{
    int at;
    *out = *t;
    *dim = mlo_dim_unknown();
    if (t->rank < 0)
        return MLO_OK;
    enum mlo_status status = mlo_op_axis(axis, t->rank, &at, err);
    if (status != MLO_OK)
        return status;
    *dim = t->dims[at];
    memmove(&out->dims[at], &out->dims[at + 1], (size_t)(t->rank - at - 1) * sizeof out->dims[0]);
    out->rank--;
    return MLO_OK;
}

static enum mlo_status infer_loop(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int states = node->input_count - 2;
    struct mlo_graph *body;
    struct mlo_type *inputs = calloc((size_t)node->input_count + 1, sizeof *inputs);
    if (!inputs)
        return mlo_error_nomem(err);
    if (states < 0 || node->output_count < states) {
        status = mlo_error_set(err, MLO_EFORMAT, "%d inputs and %d outputs", node->input_count,
                               node->output_count);
        goto out;
    }
    MLO_TRY(mlo_op_body(node, "body", node->input_count, node->output_count + 1, &body, err));
    inputs[0] = (struct mlo_type){.dtype = MLO_INT64};
    inputs[1] = (struct mlo_type){.dtype = MLO_BOOL};
    for (int i = 0; i < states; i++)
        inputs[2 + i] = node->inputs[2 + i] ? node->inputs[2 + i]->type : (struct mlo_type){.rank = -1};
    MLO_TRY(infer_body(body, inputs, 2, 1, states, err));
    for (int i = 0; i < node->output_count; i++)
        if (i < states) /* of a state that became an optional, or ceased to be one, nothing can be said */
            out[i] = inputs[2 + i].dtype == body->outputs[i + 1]->type.dtype ? inputs[2 + i]
                                                                             : (struct mlo_type){.rank = -1};
        else
            MLO_TRY(with_dim(&body->outputs[i + 1]->type, 0, mlo_dim_unknown(), &out[i], err));
out:
    free(inputs);
    return status;
}

int64_t mlo_scan_option(const struct mlo_node *node, const char *name, int i)
{
    size_t count;
    const int64_t *list = mlo_node_attr_ints(node, name, &count);
    return (size_t)i < count ? list[i] : 0;
}

enum mlo_status mlo_scan_init(struct mlo_scan *scan, const struct mlo_node *node, struct mlo_error *err)
{
    int64_t scanned = mlo_node_attr_i(node, "num_scan_inputs", 0);
    *scan = (struct mlo_scan){.batched = node->op->since < 9, .first = node->op->since < 9};
    int given = node->input_count - scan->first;
    if (scanned < 1 || scanned > given)
        return mlo_error_set(err, MLO_EFORMAT, "attribute 'num_scan_inputs' is %lld, for %d inputs",
                             (long long)scanned, given);
    scan->scanned = (int)scanned;
    scan->states = given - scan->scanned;
    scan->stacked = node->output_count - scan->states;
    if (scan->stacked < 0)
        return mlo_error_set(err, MLO_EFORMAT, "%d outputs for %d states", node->output_count, scan->states);
    for (int i = scan->first; i < node->input_count; i++)
        if (!node->inputs[i])
            return mlo_error_set(err, MLO_EFORMAT, "input %d is omitted", i);
    return mlo_op_body(node, "body", given, node->output_count, &scan->body, err);
}

static enum mlo_status infer_scan(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_scan scan;
    struct mlo_dim batch = mlo_dim_unknown(), length = mlo_dim_unknown(), dim;
    struct mlo_type *inputs = calloc((size_t)node->input_count + 1, sizeof *inputs);
    if (!inputs)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_scan_init(&scan, node, err));
    for (int i = 0; i < scan.states + scan.scanned; i++) {
        inputs[i] = node->inputs[scan.first + i]->type;
        if (scan.batched) {
            MLO_TRY(without_dim(&inputs[i], 0, &inputs[i], &dim, err));
            batch = dim.value >= 0 || dim.name ? dim : batch;
        }
        if (i < scan.states)
            continue;
        int64_t axis = scan.batched ? 0 : mlo_scan_option(node, "scan_input_axes", i - scan.states);
        MLO_TRY(without_dim(&inputs[i], axis, &inputs[i], &dim, err));
        length = dim.value >= 0 || dim.name ? dim : length;
    }
    MLO_TRY(infer_body(scan.body, inputs, 0, 0, scan.states, err));
    for (int i = 0; i < node->output_count; i++) {
        int64_t axis = scan.batched ? 0 : mlo_scan_option(node, "scan_output_axes", i - scan.states);
        if (i < scan.states)
            out[i] = inputs[i];
        else
            MLO_TRY(with_dim(&scan.body->outputs[i]->type, axis, length, &out[i], err));
        if (scan.batched)
            MLO_TRY(with_dim(&out[i], 0, batch, &out[i], err));
    }
out:
    free(inputs);
    return status;
}

static enum mlo_status infer_sequence_map(const struct mlo_node *node, struct mlo_type *out,
                                          struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *body;
    struct mlo_type *inputs = calloc((size_t)node->input_count + 1, sizeof *inputs);
    if (!inputs)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_op_body(node, "body", node->input_count, node->output_count, &body, err));
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_type *t = mlo_op_in(node, i);
        if (!t) {
            status = mlo_error_set(err, MLO_EFORMAT, "input %d is omitted", i);
            goto out;
        }
        inputs[i] = *t;
        if (t->dtype == MLO_SEQUENCE)
            inputs[i] = *mlo_type_bare(t->element ? t->element->dtype : MLO_DTYPE_NONE, false);
    }
    MLO_TRY(infer_body(body, inputs, 0, 0, 0, err));
    for (int i = 0; i < node->output_count; i++)
        out[i] = *mlo_type_bare(body->outputs[i]->type.dtype, true);
out:
    free(inputs);
    return status;
}

#define ROW(name, since, infer, eval, least, most)                                                           \
    {                                                                                                        \
        "", name, since, infer, NULL, MLO_OP_VALUES, least, most, 1, ANY_COUNT, eval                         \
    }
static const struct mlo_op rows[] = {
    ROW("If", 1, infer_if, mlo_eval_if, 1, 1),
    ROW("If", 11, infer_if, mlo_eval_if, 1, 1),
    ROW("If", 13, infer_if, mlo_eval_if, 1, 1),
    ROW("If", 16, infer_if, mlo_eval_if, 1, 1),
    ROW("If", 19, infer_if, mlo_eval_if, 1, 1),
    ROW("If", 21, infer_if, mlo_eval_if, 1, 1),
    ROW("If", 23, infer_if, mlo_eval_if, 1, 1),
    ROW("Loop", 1, infer_loop, mlo_eval_loop, 0, ANY_COUNT),
    ROW("Loop", 11, infer_loop, mlo_eval_loop, 0, ANY_COUNT),
    ROW("Loop", 13, infer_loop, mlo_eval_loop, 0, ANY_COUNT),
    ROW("Loop", 16, infer_loop, mlo_eval_loop, 0, ANY_COUNT),
    ROW("Loop", 19, infer_loop, mlo_eval_loop, 0, ANY_COUNT),
    ROW("Loop", 21, infer_loop, mlo_eval_loop, 0, ANY_COUNT),
    ROW("Loop", 23, infer_loop, mlo_eval_loop, 0, ANY_COUNT),
    ROW("Scan", 8, infer_scan, mlo_eval_scan, 0, ANY_COUNT),
    ROW("Scan", 9, infer_scan, mlo_eval_scan, 1, ANY_COUNT),
    ROW("Scan", 11, infer_scan, mlo_eval_scan, 1, ANY_COUNT),
    ROW("Scan", 16, infer_scan, mlo_eval_scan, 1, ANY_COUNT),
    ROW("Scan", 19, infer_scan, mlo_eval_scan, 1, ANY_COUNT),
    ROW("Scan", 21, infer_scan, mlo_eval_scan, 1, ANY_COUNT),
    ROW("Scan", 23, infer_scan, mlo_eval_scan, 1, ANY_COUNT),
    ROW("SequenceMap", 17, infer_sequence_map, mlo_eval_sequence_map, 1, ANY_COUNT),
};
const struct mlo_op_family mlo_ops_control = {rows, MLO_COUNT(rows)};
