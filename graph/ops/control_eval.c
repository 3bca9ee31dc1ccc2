/* If, Loop, Scan and SequenceMap, run by the graph evaluator. */
#include "graph/ops/control_impl.h"

#include <stdlib.h>

/* A scalar operand: a trip count or a condition. */
static enum mlo_status scalar(const struct mlo_tensor *t, enum mlo_dtype dtype, const char *what,
                              int64_t *out, struct mlo_error *err)
{
    if (!t || t->dtype != dtype || mlo_tensor_count(t) != 1)
        return mlo_error_set(err, MLO_EINVAL, "%s is no single %s", what, mlo_dtype_name(dtype));
    *out = mlo_tensor_get_i64(t, 0);
    return MLO_OK;
}

enum mlo_status mlo_eval_if(const struct mlo_node *node, const struct mlo_tensor *const *in,
                            struct mlo_tensor *const *out, struct mlo_eval *scope, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_eval eval = {0};
    struct mlo_graph *branch;
    int64_t condition;
    MLO_TRY(scalar(in[0], MLO_BOOL, "the condition", &condition, err));
    MLO_TRY(
        mlo_op_body(node, condition ? "then_branch" : "else_branch", 0, node->output_count, &branch, err));
    MLO_TRY(mlo_eval_init(&eval, branch, scope, err));
    MLO_TRY(mlo_eval_run(&eval, err));
    for (int i = 0; i < node->output_count; i++)
        if (out[i])
            MLO_TRY(mlo_eval_output(&eval, i, out[i], err));
out:
    mlo_eval_clear(&eval);
    return status;
}

static void clear_all(struct mlo_tensor *tensors, int count)
{
    for (int i = 0; tensors && i < count; i++)
        mlo_tensor_clear(&tensors[i]);
}

/* A body that is run again and again: its states, and what it gives each time. */
struct iteration {
    struct mlo_eval eval;
    struct mlo_tensor *states, *next; /* `count` each */
    struct mlo_stack *stacks;         /* `stacked` */
    int count, stacked;
    int first_in, first_out; /* where the states stand among the body's inputs and outputs */
    int64_t go_on;           /* of a Loop: what the body's first output says */
};

static enum mlo_status iteration_init(struct iteration *it, struct mlo_graph *body, struct mlo_eval *scope,
                                      struct mlo_error *err)
{
    it->states = calloc((size_t)it->count + 1, sizeof *it->states);
    it->next = calloc((size_t)it->count + 1, sizeof *it->next);
    it->stacks = calloc((size_t)it->stacked + 1, sizeof *it->stacks);
    if (!it->states || !it->next || !it->stacks)
        return mlo_error_nomem(err);
    return mlo_eval_init(&it->eval, body, scope, err);
}

static void iteration_clear(struct iteration *it)
{
    clear_all(it->states, it->count);
    clear_all(it->next, it->count);
    for (int i = 0; it->stacks && i < it->stacked; i++)
        mlo_stack_clear(&it->stacks[i]);
    free(it->states);
    free(it->next);
    free(it->stacks);
    if (it->eval.graph)
        mlo_eval_clear(&it->eval);
}

/* Runs the body once; its other inputs are fed already. */
static enum mlo_status iteration_step(struct iteration *it, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_graph *body = it->eval.graph;
    MLO_TRY(mlo_eval_spend_trip(&it->eval, err));
    for (int i = 0; i < it->count; i++)
        mlo_eval_feed(&it->eval, body->inputs[it->first_in + i], &it->states[i]);
    MLO_TRY(mlo_eval_run(&it->eval, err));
    if (it->first_out) {
        const struct mlo_tensor *condition = mlo_eval_content(&it->eval, body->outputs[0]);
        MLO_TRY(scalar(condition, MLO_BOOL, "the condition", &it->go_on, err));
    }
    for (int i = 0; i < it->stacked; i++) {
        const struct mlo_value *value = body->outputs[it->first_out + it->count + i];
        const struct mlo_tensor *t = mlo_eval_content(&it->eval, value);
        if (!t) {
            status = mlo_error_set(err, MLO_EINVAL, "output '%.160s' has no content", value->name);
            goto out;
        }
        MLO_TRY(mlo_stack_add(&it->stacks[i], t, err));
    }
    for (int i = 0; i < it->count; i++)
        MLO_TRY(mlo_eval_output(&it->eval, it->first_out + i, &it->next[i], err));
    mlo_eval_drop(&it->eval); /* before the states go that it borrows */
    for (int i = 0; i < it->count; i++) {
        mlo_tensor_clear(&it->states[i]);
        it->states[i] = it->next[i];
        it->next[i] = (struct mlo_tensor){0};
    }
out:
    return status;
}

/* Begins with a state that belongs to somebody else. */
static enum mlo_status begin_state(struct iteration *it, int i, const struct mlo_tensor *from,
                                   struct mlo_error *err)
{
    if (!from)
        return mlo_error_set(err, MLO_EINVAL, "the initial value of state %d is not given", i);
    it->states[i] = *from;
    it->states[i].owned = false;
    return MLO_OK;
}

/* Hands a state over, at the end. */
static enum mlo_status end_state(struct iteration *it, int i, struct mlo_tensor *out, struct mlo_error *err)
{
    if (!it->states[i].owned)
        return mlo_tensor_copy(&it->states[i], out, err);
    *out = it->states[i];
    it->states[i] = (struct mlo_tensor){0};
    return MLO_OK;
}

enum mlo_status mlo_eval_loop(const struct mlo_node *node, const struct mlo_tensor *const *in,
                              struct mlo_tensor *const *out, struct mlo_eval *scope, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *body;
    int64_t trips = INT64_MAX;
    uint8_t condition = 1;
    struct iteration it = {.count = node->input_count - 2, .first_in = 2, .first_out = 1, .go_on = 1};
    it.stacked = node->output_count - it.count;
    if (it.count < 0 || it.stacked < 0)
        return mlo_error_set(err, MLO_EFORMAT, "%d inputs and %d outputs", node->input_count,
                             node->output_count);
    MLO_TRY(mlo_op_body(node, "body", node->input_count, node->output_count + 1, &body, err));
    if (in[0])
        MLO_TRY(scalar(in[0], MLO_INT64, "the trip count", &trips, err));
    if (in[1])
        MLO_TRY(scalar(in[1], MLO_BOOL, "the condition", &it.go_on, err));
    MLO_TRY(iteration_init(&it, body, scope, err));
    for (int i = 0; i < it.count; i++)
        MLO_TRY(begin_state(&it, i, in[2 + i], err));
    for (int64_t trip = 0; trip < trips && it.go_on; trip++) {
        condition = it.go_on != 0;
        mlo_eval_feed(&it.eval, body->inputs[0],
                      &(struct mlo_tensor){.dtype = MLO_INT64, .data = &trip, .size_bytes = sizeof trip});
        mlo_eval_feed(&it.eval, body->inputs[1],
                      &(struct mlo_tensor){.dtype = MLO_BOOL, .data = &condition, .size_bytes = 1});
        MLO_TRY(iteration_step(&it, err));
    }
    for (int i = 0; i < node->output_count; i++) {
        if (!out[i])
            continue;
        MLO_TRY(i < it.count ? end_state(&it, i, out[i], err)
                             : mlo_stack_finish(&it.stacks[i - it.count], 0, false,
                                                &body->outputs[1 + i]->type, out[i], err));
    }
out:
    iteration_clear(&it);
    return status;
}

/* Scans from begin states (in it->states) over `length` indices of the inputs' axes. */
static enum mlo_status scan_over(struct iteration *it, const struct mlo_node *node,
                                 const struct mlo_scan *scan, const struct mlo_tensor *const *scanned,
                                 int64_t length, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *directions = scan->batched ? "directions" : "scan_input_directions";
    struct mlo_tensor *slices = calloc((size_t)scan->scanned + 1, sizeof *slices);
    if (!slices)
        return mlo_error_nomem(err);
    for (int64_t t = 0; t < length; t++) {
        for (int k = 0; k < scan->scanned; k++) {
            int axis;
            int64_t given = scan->batched ? 0 : mlo_scan_option(node, "scan_input_axes", k);
            int64_t at = mlo_scan_option(node, directions, k) ? length - 1 - t : t;
            MLO_TRY(mlo_op_axis(given, scanned[k]->rank, &axis, err));
            mlo_tensor_clear(&slices[k]);
            MLO_TRY(mlo_piece_cut(scanned[k], axis, at, 1, true, &slices[k], err));
            mlo_eval_feed(&it->eval, scan->body->inputs[scan->states + k], &slices[k]);
        }
        MLO_TRY(iteration_step(it, err));
    }
out:
    clear_all(slices, scan->scanned);
    free(slices);
    return status;
}

static enum mlo_status scan_length(const struct mlo_node *node, const struct mlo_scan *scan,
                                   const struct mlo_tensor *const *scanned, int64_t *length,
                                   struct mlo_error *err)
{
    for (int k = 0; k < scan->scanned; k++) {
        int axis;
        int64_t given = scan->batched ? 1 : mlo_scan_option(node, "scan_input_axes", k);
        enum mlo_status status = mlo_op_axis(given, scanned[k]->rank, &axis, err);
        if (status != MLO_OK)
            return status;
        if (k > 0 && scanned[k]->dims[axis] != *length)
            return mlo_error_set(err, MLO_EINVAL, "scanned inputs of %lld and %lld steps", (long long)*length,
                                 (long long)scanned[k]->dims[axis]);
        *length = scanned[k]->dims[axis];
    }
    return MLO_OK;
}

static enum mlo_status eval_scan_plain(const struct mlo_node *node, const struct mlo_scan *scan,
                                       const struct mlo_tensor *const *in, struct mlo_tensor *const *out,
                                       struct mlo_eval *scope, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct iteration it = {.count = scan->states, .stacked = scan->stacked};
    int64_t length = 0;
    MLO_TRY(iteration_init(&it, scan->body, scope, err));
    MLO_TRY(scan_length(node, scan, in + scan->states, &length, err));
    for (int i = 0; i < scan->states; i++)
        MLO_TRY(begin_state(&it, i, in[i], err));
    MLO_TRY(scan_over(&it, node, scan, in + scan->states, length, err));
    for (int i = 0; i < node->output_count; i++) {
        int k = i - scan->states;
        if (!out[i])
            continue;
        MLO_TRY(k < 0 ? end_state(&it, i, out[i], err)
                      : mlo_stack_finish(&it.stacks[k], mlo_scan_option(node, "scan_output_axes", k),
                                         mlo_scan_option(node, "scan_output_directions", k) != 0,
                                         &scan->body->outputs[i]->type, out[i], err));
    }
out:
    iteration_clear(&it);
    return status;
}

/* Puts what one element of the batch gave into the batched output, which the first element makes. What a
 * shorter sequence leaves over stays zero. */
static enum mlo_status put_batched(const struct mlo_tensor *part, int64_t index, int64_t batch,
                                   int64_t longest, struct mlo_tensor *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t dims[MLO_MAX_RANK];
    if (part->rank == MLO_MAX_RANK)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a result of rank %d; at most %d is supported",
                             part->rank + 1, MLO_MAX_RANK);
    dims[0] = batch;
    for (int i = 0; i < part->rank; i++)
        dims[i + 1] = part->dims[i];
    if (longest >= 0)
        dims[1] = longest;
    if (index == 0)
        MLO_TRY(mlo_tensor_init(out, part->dtype, part->rank + 1, dims, err));
    bool fits = out->dtype == part->dtype && out->rank == part->rank + 1;
    for (int i = 1; fits && i < out->rank; i++)
        fits = out->dims[i] == dims[i];
    if (!fits || part->size_bytes > out->size_bytes / (size_t)batch) {
        status = mlo_error_set(err, MLO_EINVAL, "element %lld of the batch gives another type or shape",
                               (long long)index);
        goto out;
    }
    if (part->size_bytes)
        memcpy((char *)out->data + (size_t)index * (out->size_bytes / (size_t)batch), part->data,
               part->size_bytes);
out:
    return status;
}

/* One element of the batch. */
static enum mlo_status scan_element(const struct mlo_node *node, const struct mlo_scan *scan, int64_t index,
                                    int64_t batch, int64_t longest, int64_t length,
                                    const struct mlo_tensor *const *in, struct mlo_tensor *const *out,
                                    struct mlo_eval *scope, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct iteration it = {.count = scan->states, .stacked = scan->stacked};
    int inputs = scan->states + scan->scanned;
    struct mlo_tensor *own = calloc((size_t)inputs + 1, sizeof *own), part = {0};
    const struct mlo_tensor **scanned = calloc((size_t)scan->scanned + 1, sizeof(struct mlo_tensor *));
    MLO_TRY(iteration_init(&it, scan->body, scope, err));
    if (!own || !scanned) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < inputs; i++) {
        MLO_TRY(mlo_piece_cut(in[1 + i], 0, index, 1, true, &own[i], err));
        if (i < scan->states)
            MLO_TRY(begin_state(&it, i, &own[i], err));
        else
            scanned[i - scan->states] = &own[i];
    }
    MLO_TRY(scan_over(&it, node, scan, scanned, length, err));
    for (int i = 0; i < node->output_count; i++) {
        if (!out[i])
            continue;
        mlo_tensor_clear(&part);
        MLO_TRY(i < scan->states ? end_state(&it, i, &part, err)
                                 : mlo_stack_finish(&it.stacks[i - scan->states], 0, false,
                                                    &scan->body->outputs[i]->type, &part, err));
        MLO_TRY(put_batched(&part, index, batch, i < scan->states ? -1 : longest, out[i], err));
    }
out:
    mlo_tensor_clear(&part);
    iteration_clear(&it); /* it may borrow from own */
    clear_all(own, inputs);
    free(own);
    free(scanned);
    return status;
}

static enum mlo_status eval_scan_batched(const struct mlo_node *node, const struct mlo_scan *scan,
                                         const struct mlo_tensor *const *in, struct mlo_tensor *const *out,
                                         struct mlo_eval *scope, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t longest = 0;
    int64_t batch = in[1]->rank ? in[1]->dims[0] : 0;
    MLO_TRY(scan_length(node, scan, in + 1 + scan->states, &longest, err));
    for (int i = 1; i < node->input_count; i++)
        if (in[i]->rank < 1 || in[i]->dims[0] != batch) {
            status = mlo_error_set(err, MLO_EINVAL, "input %d is not of the batch's size, %lld", i,
                                   (long long)batch);
            goto out;
        }
    if (!batch || (in[0] && mlo_tensor_count(in[0]) != (size_t)batch)) {
        status = mlo_error_set(err, MLO_EINVAL, "the batch is empty, or has another number of lengths");
        goto out;
    }
    for (int64_t b = 0; b < batch; b++) {
        int64_t length = in[0] ? mlo_tensor_get_i64(in[0], (size_t)b) : longest;
        if (length < 0 || length > longest) {
            status = mlo_error_set(err, MLO_EINVAL, "sequence %lld has %lld steps of %lld", (long long)b,
                                   (long long)length, (long long)longest);
            goto out;
        }
        MLO_TRY(scan_element(node, scan, b, batch, longest, length, in, out, scope, err));
    }
out:
    return status;
}

enum mlo_status mlo_eval_scan(const struct mlo_node *node, const struct mlo_tensor *const *in,
                              struct mlo_tensor *const *out, struct mlo_eval *scope, struct mlo_error *err)
{
    struct mlo_scan scan;
    enum mlo_status status = mlo_scan_init(&scan, node, err);
    if (status != MLO_OK)
        return status;
    return scan.batched ? eval_scan_batched(node, &scan, in, out, scope, err)
                        : eval_scan_plain(node, &scan, in, out, scope, err);
}

/* The body once for each element of the first sequence; sequences give their elements, tensors stay. */
enum mlo_status mlo_eval_sequence_map(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                      struct mlo_tensor *const *out, struct mlo_eval *scope,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_eval eval = {0};
    struct mlo_graph *body;
    MLO_TRY(mlo_op_body(node, "body", node->input_count, node->output_count, &body, err));
    if (in[0]->dtype != MLO_SEQUENCE) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    size_t count = mlo_tensor_count(in[0]);
    for (int i = 0; i < node->input_count; i++)
        if (!in[i] || (in[i]->dtype == MLO_SEQUENCE && mlo_tensor_count(in[i]) != count)) {
            status =
                mlo_error_set(err, MLO_EINVAL, "input %d is omitted, or a sequence of another length", i);
            goto out;
        }
    MLO_TRY(mlo_eval_init(&eval, body, scope, err));
    for (int i = 0; i < node->output_count; i++)
        if (out[i])
            MLO_TRY(mlo_values_init(out[i], MLO_SEQUENCE, count, err));
    for (size_t k = 0; k < count; k++) {
        MLO_TRY(mlo_eval_spend_trip(&eval, err));
        for (int i = 0; i < node->input_count; i++)
            mlo_eval_feed(&eval, body->inputs[i],
                          in[i]->dtype == MLO_SEQUENCE ? &mlo_values(in[i])[k] : in[i]);
        MLO_TRY(mlo_eval_run(&eval, err));
        for (int i = 0; i < node->output_count; i++)
            if (out[i])
                MLO_TRY(mlo_eval_output(&eval, i, &mlo_values(out[i])[k], err));
        mlo_eval_drop(&eval);
    }
out:
    mlo_eval_clear(&eval);
    return status;
}
