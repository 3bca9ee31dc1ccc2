/* The graph evaluator. */
#include "graph/eval.h"

#include <limits.h>
#include <stdlib.h>

#include "graph/model_impl.h"

enum { KEPT = INT_MAX };

/* The last node of the graph that reads each value, itself or within its subgraphs. */
static void find_last_uses(struct mlo_eval *eval)
{
    const struct mlo_graph *g = eval->graph;
    for (int v = 0; v < g->value_count; v++) {
        const struct mlo_value *value = g->values[v];
        eval->last_use[v] = value->producer ? value->producer->index : -1;
        for (int u = 0; u < value->use_count; u++) {
            const struct mlo_node *user = mlo_node_ancestor(value->uses[u].node, g);
            if (user && user->index > eval->last_use[v])
                eval->last_use[v] = user->index;
        }
    }
    for (int i = 0; i < g->output_count; i++)
        eval->last_use[g->outputs[i]->index] = KEPT;
}

enum mlo_status mlo_eval_init(struct mlo_eval *eval, const struct mlo_graph *graph, struct mlo_eval *outer,
                              struct mlo_error *err)
{
    int ins = 0, outs = 0;
    for (int n = 0; n < graph->node_count; n++) {
        ins = MLO_MAX(ins, graph->nodes[n]->input_count);
        outs = MLO_MAX(outs, graph->nodes[n]->output_count);
    }
    *eval = (struct mlo_eval){.graph = graph, .outer = outer, .trips_left = MLO_EVAL_MAX_TRIPS};
    eval->root = outer ? outer->root : eval;
    eval->values = calloc((size_t)graph->value_count + 1, sizeof *eval->values);
    eval->last_use = calloc((size_t)graph->value_count + 1, sizeof *eval->last_use);
    eval->in = calloc((size_t)ins + 1, sizeof(const struct mlo_tensor *));
    eval->out = calloc((size_t)outs + 1, sizeof(struct mlo_tensor *));
    if (!eval->values || !eval->last_use || !eval->in || !eval->out)
        return mlo_error_nomem(err);
    find_last_uses(eval);
    return MLO_OK;
}

void mlo_eval_drop(struct mlo_eval *eval)
{
    for (int v = 0; eval->values && v < eval->graph->value_count; v++)
        mlo_tensor_clear(&eval->values[v]);
}

void mlo_eval_clear(struct mlo_eval *eval)
{
    mlo_eval_drop(eval);
    free(eval->values);
    free(eval->last_use);
    free(eval->in);
    free(eval->out);
    *eval = (struct mlo_eval){0};
}

void mlo_eval_keep(struct mlo_eval *eval, const struct mlo_value *value)
{
    eval->last_use[value->index] = KEPT;
}

void mlo_eval_feed(struct mlo_eval *eval, const struct mlo_value *value, const struct mlo_tensor *tensor)
{
    struct mlo_tensor *held = &eval->values[value->index];
    mlo_tensor_clear(held);
    *held = *tensor;
    held->owned = false;
}

const struct mlo_tensor *mlo_eval_content(const struct mlo_eval *eval, const struct mlo_value *value)
{
    while (eval && eval->graph != value->graph)
        eval = eval->outer;
    if (eval && eval->values[value->index].dtype)
        return &eval->values[value->index];
    return value->constant;
}

enum mlo_status mlo_eval_output(struct mlo_eval *eval, int i, struct mlo_tensor *out, struct mlo_error *err)
{
    const struct mlo_graph *g = eval->graph;
    const struct mlo_value *value = g->outputs[i];
    const struct mlo_tensor *held = mlo_eval_content(eval, value);
    bool again = false;
    if (!held)
        return mlo_error_set(err, MLO_EINVAL, "output '%.160s' has no content", value->name);
    for (int k = i + 1; k < g->output_count; k++)
        again = again || g->outputs[k] == value;
    if (again || !held->owned || held == value->constant)
        return mlo_tensor_copy(held, out, err);
    *out = *held;
    eval->values[value->index] = (struct mlo_tensor){0};
    return MLO_OK;
}

enum mlo_status mlo_eval_spend_trip(struct mlo_eval *eval, struct mlo_error *err)
{
    if (eval->root->trips_left-- > 0)
        return MLO_OK;
    eval->root->trips_left = 0;
    mlo_error_set(err, MLO_ETOOBIG, "loop bodies ran %d times, which is as often as one evaluation lets them",
                  MLO_EVAL_MAX_TRIPS);
    mlo_error_hint(err, "the loop may never end: check its trip count and its condition");
    return MLO_ETOOBIG;
}

struct captured {
    const struct mlo_graph *graph;
    struct mlo_value **out;
    size_t count, max;
};

static bool add_captured(struct mlo_graph *graph, void *arg)
{
    struct captured *c = arg;
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        for (int i = 0; i < node->input_count; i++) {
            struct mlo_value *value = node->inputs[i];
            bool known = !value || value->graph != c->graph;
            for (size_t k = 0; !known && k < MLO_MIN(c->count, c->max); k++)
                known = c->out[k] == value;
            if (!known && c->count++ < c->max)
                c->out[c->count - 1] = value;
        }
        mlo_node_each_subgraph(node, add_captured, c);
    }
    return true;
}

size_t mlo_node_captured(const struct mlo_node *node, struct mlo_value **out, size_t max)
{
    struct captured c = {node->graph, out, 0, max};
    mlo_node_each_subgraph(node, add_captured, &c);
    return c.count;
}

static void drop_dead(struct mlo_eval *eval, struct mlo_value *const *values, int count, int now)
{
    for (int i = 0; i < count; i++)
        if (values[i] && values[i]->graph == eval->graph && eval->last_use[values[i]->index] <= now)
            mlo_tensor_clear(&eval->values[values[i]->index]);
}

static bool drop_captured(struct mlo_graph *graph, void *arg);

struct drop {
    struct mlo_eval *eval;
    int now;
};

/* What only a subgraph of the node read. */
static void drop_captured_of(struct mlo_eval *eval, const struct mlo_node *node, int now)
{
    struct drop drop = {eval, now};
    mlo_node_each_subgraph(node, drop_captured, &drop);
}

static bool drop_captured(struct mlo_graph *graph, void *arg)
{
    const struct drop *drop = arg;
    for (int n = 0; n < graph->node_count; n++) {
        drop_dead(drop->eval, graph->nodes[n]->inputs, graph->nodes[n]->input_count, drop->now);
        drop_captured_of(drop->eval, graph->nodes[n], drop->now);
    }
    return true;
}

static enum mlo_status run_node(struct mlo_eval *eval, const struct mlo_node *node, struct mlo_error *err)
{
    for (int i = 0; i < node->input_count; i++) {
        eval->in[i] = node->inputs[i] ? mlo_eval_content(eval, node->inputs[i]) : NULL;
        if (node->inputs[i] && !eval->in[i]) {
            enum mlo_status status =
                mlo_error_set(err, MLO_EINVAL, "its input '%.160s' has no content", node->inputs[i]->name);
            mlo_error_where(err, "node '%.160s' (%.60s)", node->name, node->op_type);
            return status;
        }
    }
    for (int i = 0; i < node->output_count; i++)
        eval->out[i] = node->outputs[i] ? &eval->values[node->outputs[i]->index] : NULL;
    return mlo_node_eval_in(node, eval->in, (struct mlo_tensor *const *)eval->out, eval, err);
}

enum mlo_status mlo_eval_run(struct mlo_eval *eval, struct mlo_error *err)
{
    const struct mlo_graph *g = eval->graph;
    for (int n = 0; n < g->node_count; n++) {
        const struct mlo_node *node = g->nodes[n];
        enum mlo_status status = run_node(eval, node, err);
        if (status != MLO_OK)
            return status;
        drop_dead(eval, node->inputs, node->input_count, n);
        drop_dead(eval, node->outputs, node->output_count, n);
        drop_captured_of(eval, node, n);
    }
    return MLO_OK;
}

enum mlo_status mlo_graph_eval(const struct mlo_graph *graph, const struct mlo_tensor *inputs,
                               struct mlo_tensor *outputs, struct mlo_error *err)
{
    struct mlo_eval eval;
    enum mlo_status status;
    MLO_TRY(mlo_eval_init(&eval, graph, NULL, err));
    for (int i = 0, fed = 0; i < graph->input_count; i++)
        if (!graph->inputs[i]->constant)
            mlo_eval_feed(&eval, graph->inputs[i], &inputs[fed++]);
    MLO_TRY(mlo_eval_run(&eval, err));
    for (int i = 0; i < graph->output_count; i++)
        MLO_TRY(mlo_eval_output(&eval, i, &outputs[i], err));
out:
    mlo_eval_clear(&eval);
    return status;
}
