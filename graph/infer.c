/* Shape inference over a whole graph. */
#include "graph/infer.h"

#include <stdlib.h>
#include <string.h>

#include "graph/infer_impl.h"
#include "graph/ops/ops_impl.h"

/* What a file states and what was inferred, in one; false when they contradict each other. */
static bool unify(const struct mlo_type *stated, const struct mlo_type *found, bool keep_names,
                  struct mlo_type *out)
{
    *out = *found;
    if (stated->dtype != MLO_DTYPE_NONE) {
        if (found->dtype != MLO_DTYPE_NONE && found->dtype != stated->dtype)
            return false;
        out->dtype = stated->dtype;
    }
    if (mlo_holds_values(out->dtype)) {
        out->element = found->element ? found->element : stated->element;
        out->rank = -1;
        return true;
    }
    if (stated->rank < 0)
        return true;
    if (found->rank < 0) {
        out->rank = stated->rank;
        memcpy(out->dims, stated->dims, sizeof out->dims);
        return true;
    }
    if (stated->rank != found->rank)
        return false;
    for (int i = 0; i < found->rank; i++) {
        const struct mlo_dim *s = &stated->dims[i], *f = &found->dims[i];
        if (s->value >= 0 && f->value >= 0 && s->value != f->value)
            return false;
        /* the names that a file gives its outputs survive; inside, what follows from the inputs says more */
        if (f->value < 0 && (s->value >= 0 || (s->name && (keep_names || !f->name))))
            out->dims[i] = *s;
    }
    return true;
}

static enum mlo_status set_types(struct mlo_node *node, const struct mlo_type *types, struct mlo_error *err)
{
    for (int i = 0; i < node->output_count; i++) {
        struct mlo_value *value = node->outputs[i];
        struct mlo_type both;
        if (!value)
            continue;
        if (!unify(&value->type, &types[i], value->is_output, &both)) {
            char stated[200], found[200];
            enum mlo_status status =
                mlo_error_set(err, MLO_EFORMAT, "output '%.100s' is stated to be %.120s, but %s gives %.120s",
                              value->name, mlo_type_describe(&value->type, stated, sizeof stated),
                              node->op_type, mlo_type_describe(&types[i], found, sizeof found));
            mlo_error_where(err, "node '%.160s' (%.60s)", node->name, node->op_type);
            return status;
        }
        value->type = both;
    }
    return MLO_OK;
}

static bool small_integer(const struct mlo_type *type)
{
    int64_t dims[MLO_MAX_RANK];
    size_t count;
    return (type->dtype == MLO_INT64 || type->dtype == MLO_INT32) && mlo_type_static(type, dims) &&
           mlo_shape_count(type->rank, dims, &count) && count <= MLO_KNOWN_MAX;
}

/* A node whose output is a small list of integers and whose inputs are all known is a shape computation: its
 * result lets the shape of what reads it be told. (Shape itself needs its input's type only.) */
static enum mlo_status derive(struct mlo_node *node, struct mlo_error *err)
{
    struct mlo_value *value = node->outputs[0];
    if (node->output_count != 1 || !value || !small_integer(&value->type) ||
        node->input_count > MLO_KNOWN_MAX || !(node->op->flags & MLO_OP_PURE))
        return MLO_OK;
    bool reads_type = mlo_node_is(node, "Shape") || mlo_node_is(node, "Size");
    const struct mlo_tensor *in[MLO_KNOWN_MAX] = {0};
    struct mlo_tensor typed = {0}, result = {0}, *out = &result;
    for (int i = 0; i < node->input_count; i++) {
        if (!node->inputs[i])
            continue;
        in[i] = mlo_op_content(node, i);
        if (reads_type) {
            const struct mlo_type *type = mlo_op_in(node, i);
            if (!mlo_type_static(type, typed.dims))
                return MLO_OK;
            typed.dtype = type->dtype;
            typed.rank = type->rank;
            in[i] = &typed;
        }
        if (!in[i] || (!reads_type && mlo_tensor_count(in[i]) > MLO_KNOWN_MAX))
            return MLO_OK;
    }
    enum mlo_status status = mlo_node_eval(node, in, &out, err);
    if (status != MLO_OK)
        return status;
    value->known = mlo_model_tensor_take(node->graph->model, &result);
    return value->known ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_graph_infer(struct mlo_graph *graph, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_type *types = NULL;
    for (int i = 0; i < graph->value_count; i++) {
        graph->values[i]->known = NULL;
        graph->values[i]->symbols = NULL;
    }
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        struct mlo_type *room = realloc(types, ((size_t)node->output_count + 1) * sizeof *types);
        if (!room) {
            status = mlo_error_nomem(err);
            goto out;
        }
        types = room;
        if (!node->op)
            continue; /* what it gives keeps the type that the file states */
        MLO_TRY(mlo_node_infer(node, types, err));
        MLO_TRY(set_types(node, types, err));
        MLO_TRY(derive(node, err));
        MLO_TRY(mlo_symbols_derive(node, err));
    }
out:
    free(types);
    return status;
}

/* --- inference until nothing changes -------------------------------------------------------------------- */

struct digest {
    uint64_t hash;
    bool bodies;
};

static void digest_add(struct digest *d, const void *bytes, size_t size) /* FNV-1a */
{
    for (size_t i = 0; i < size; i++)
        d->hash = (d->hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
}

static bool digest_body(struct mlo_graph *graph, void *arg);

static void digest_types(const struct mlo_graph *graph, struct digest *d)
{
    for (int i = 0; i < graph->value_count; i++) {
        const struct mlo_type *type = &graph->values[i]->type;
        int told[] = {(int)type->dtype, type->rank, type->element ? (int)type->element->dtype : -1};
        digest_add(d, told, sizeof told);
        for (int k = 0; k < type->rank; k++) {
            digest_add(d, &type->dims[k].value, sizeof type->dims[k].value);
            if (type->dims[k].name)
                digest_add(d, type->dims[k].name, strlen(type->dims[k].name) + 1);
        }
    }
    for (int n = 0; n < graph->node_count; n++)
        mlo_node_each_subgraph(graph->nodes[n], digest_body, d);
}

static bool digest_body(struct mlo_graph *graph, void *arg)
{
    ((struct digest *)arg)->bodies = true;
    digest_types(graph, arg);
    return true;
}

/* A body is inferred before all is known of what is around it: what comes out of it can contradict what went
 * in. So with bodies inference is run until it tells nothing new. */
enum mlo_status mlo_graph_infer_settled(struct mlo_graph *graph, struct mlo_error *err)
{
    enum { ROUNDS = 4 };
    struct digest before = {0}, now = {0};
    enum mlo_status status = mlo_graph_infer(graph, err);
    digest_types(graph, &before);
    for (int round = 0; status == MLO_OK && before.bodies && round < ROUNDS; round++) {
        now = (struct digest){0};
        status = mlo_graph_infer(graph, err);
        digest_types(graph, &now);
        if (now.hash == before.hash)
            break;
        before = now;
    }
    return status;
}

static bool forget_subgraph(struct mlo_graph *graph, void *arg)
{
    MLO_UNUSED(arg);
    mlo_graph_forget_types(graph);
    return true;
}

void mlo_graph_forget_types(struct mlo_graph *graph)
{
    for (int i = 0; i < graph->value_count; i++) {
        struct mlo_value *value = graph->values[i];
        if (value->producer && value->producer->op)
            value->type = (struct mlo_type){.rank = -1};
    }
    for (int n = 0; n < graph->node_count; n++)
        mlo_node_each_subgraph(graph->nodes[n], forget_subgraph, NULL);
}

static bool binding_of(const struct mlo_binding *bindings, size_t count, const char *name, int64_t *value)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(bindings[i].name, name) == 0) {
            *value = bindings[i].value;
            return true;
        }
    return false;
}

/* Puts numbers for names into the dims that no inference will make again. */
static void bind_types(struct mlo_graph *graph, const struct mlo_binding *bindings, size_t count)
{
    for (int i = 0; i < graph->value_count; i++) {
        struct mlo_value *value = graph->values[i];
        bool stated = value->is_input || (value->producer && !value->producer->op);
        for (int d = 0; stated && d < value->type.rank; d++) {
            struct mlo_dim *dim = &value->type.dims[d];
            if (dim->value < 0 && dim->name)
                *dim = mlo_dim_of_expr(
                    mlo_expr_bind(graph->model->arena, mlo_expr_of_dim(*dim), bindings, count));
        }
    }
}

enum mlo_status mlo_graph_bind(struct mlo_graph *graph, const struct mlo_binding *bindings, size_t count,
                               int64_t default_dim, struct mlo_error *err)
{
    for (int i = 0; i < graph->input_count; i++) {
        struct mlo_value *input = graph->inputs[i];
        for (int d = 0; d < input->type.rank; d++) {
            struct mlo_dim *dim = &input->type.dims[d];
            int64_t value = default_dim;
            if (dim->value >= 0)
                continue;
            bool bound = dim->name && binding_of(bindings, count, dim->name, &value);
            if (dim->name && !bound)
                continue; /* another name's turn may come later */
            if (value < 0) {
                enum mlo_status status =
                    mlo_error_set(err, MLO_EINVAL,
                                  bound ? "input '%.120s': dim %d is bound to a negative number"
                                        : "input '%.120s': dim %d is unknown and no value is given for it",
                                  input->name, d);
                mlo_error_where(err, "input '%.200s'", input->name);
                return status;
            }
            *dim = mlo_dim_fixed(value);
        }
    }
    bind_types(graph, bindings, count);
    mlo_graph_forget_types(graph);
    return mlo_graph_infer(graph, err);
}

enum mlo_status mlo_graph_bind_batch(struct mlo_graph *graph, int64_t batch, struct mlo_error *err)
{
    if (batch < 0)
        return mlo_error_set(err, MLO_EINVAL, "a batch of %lld", (long long)batch);
    for (int i = 0; i < graph->input_count; i++) {
        struct mlo_value *input = graph->inputs[i];
        if (input->constant || input->type.rank < 1 || input->type.dims[0].value >= 0)
            continue;
        if (input->type.dims[0].name)
            bind_types(graph, &(struct mlo_binding){input->type.dims[0].name, batch}, 1);
        else
            input->type.dims[0] = mlo_dim_fixed(batch);
    }
    mlo_graph_forget_types(graph);
    return mlo_graph_infer(graph, err);
}

static enum mlo_status contradicts(const struct mlo_value *input, const struct mlo_tensor *tensor,
                                   struct mlo_error *err)
{
    char got[256], want[256];
    mlo_error_set(err, MLO_EINVAL, "input '%.120s' is %s; the model takes %s", input->name,
                  mlo_tensor_describe(tensor, got, sizeof got),
                  mlo_type_describe(&input->type, want, sizeof want));
    mlo_error_where(err, "input '%.200s'", input->name);
    return MLO_EINVAL;
}

/* Collects what the names in this input's shape stand for; dims without a name are fixed. */
static enum mlo_status match_input(struct mlo_value *input, const struct mlo_tensor *tensor,
                                   struct mlo_binding *bindings, size_t *count, struct mlo_error *err)
{
    struct mlo_type *type = &input->type;
    if (type->rank < 0 && tensor->rank >= 0 && !type->element) {
        type->rank = tensor->rank;
        for (int d = 0; d < type->rank; d++)
            type->dims[d] = mlo_dim_fixed(tensor->dims[d]);
    }
    if (type->dtype != tensor->dtype || type->rank != tensor->rank)
        return contradicts(input, tensor, err);
    for (int d = 0; d < type->rank; d++) {
        struct mlo_dim *dim = &type->dims[d];
        int64_t size = tensor->dims[d], other;
        if (size < 0 || (dim->value >= 0 && dim->value != size))
            return contradicts(input, tensor, err);
        if (dim->value < 0 && !dim->name)
            *dim = mlo_dim_fixed(size);
        if (dim->value >= 0)
            continue;
        if (!binding_of(bindings, *count, dim->name, &other)) {
            bindings[(*count)++] = (struct mlo_binding){dim->name, size};
        } else if (other != size) {
            mlo_error_set(err, MLO_EINVAL, "dim '%.80s' is %lld in one place, and %lld in dim %d of '%.120s'",
                          dim->name, (long long)other, (long long)size, d, input->name);
            mlo_error_where(err, "input '%.200s'", input->name);
            return MLO_EINVAL;
        }
    }
    return MLO_OK;
}

enum mlo_status mlo_graph_bind_inputs(struct mlo_graph *graph, const struct mlo_tensor *inputs, size_t count,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t bound = 0, fed = 0;
    struct mlo_binding *bindings = calloc(count * MLO_MAX_RANK + 1, sizeof *bindings);
    if (!bindings)
        return mlo_error_nomem(err);
    for (int i = 0; i < graph->input_count; i++)
        fed += !graph->inputs[i]->constant;
    if (fed != count) {
        status = mlo_error_set(err, MLO_EINVAL, "the model takes %zu inputs, not %zu", fed, count);
        goto out;
    }
    for (int i = 0, k = 0; i < graph->input_count; i++)
        if (!graph->inputs[i]->constant)
            MLO_TRY(match_input(graph->inputs[i], &inputs[k++], bindings, &bound, err));
    MLO_TRY(mlo_graph_bind(graph, bindings, bound, -1, err));
out:
    free(bindings);
    return status;
}

bool mlo_graph_dynamic_batch(const struct mlo_graph *graph)
{
    int fed = 0;
    for (int i = 0; i < graph->input_count; i++) {
        const struct mlo_value *input = graph->inputs[i];
        if (input->constant)
            continue;
        if (input->type.rank < 1 || input->type.dims[0].value >= 0)
            return false;
        fed++;
    }
    return fed > 0;
}
