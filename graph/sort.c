/* Topological order: Kahn's algorithm, always taking the ready node that stood first, so that a sorted graph
 * stays as it is and equal graphs get equal orders. */
#include <stdlib.h>
#include <string.h>

#include "graph/model_impl.h"

struct heap {
    int *at;
    int count;
};

static void heap_push(struct heap *h, int item)
{
    int i = h->count++;
    for (; i > 0 && h->at[(i - 1) / 2] > item; i = (i - 1) / 2)
        h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = item;
}

static int heap_pop(struct heap *h)
{
    int top = h->at[0], last = h->at[--h->count], i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= h->count)
            break;
        if (child + 1 < h->count && h->at[child + 1] < h->at[child])
            child++;
        if (h->at[child] >= last)
            break;
        h->at[i] = h->at[child];
        i = child;
    }
    h->at[i] = last;
    return top;
}

/* One edge a use: nested users count for the node of this graph that holds them. */
static void count_edges(const struct mlo_graph *graph, int *waiting)
{
    for (int n = 0; n < graph->node_count; n++)
        for (int o = 0; o < graph->nodes[n]->output_count; o++) {
            const struct mlo_value *value = graph->nodes[n]->outputs[o];
            for (int u = 0; value && u < value->use_count; u++) {
                struct mlo_node *user = mlo_node_ancestor(value->uses[u].node, graph);
                if (user)
                    waiting[user->index]++;
            }
        }
}

static void release_users(const struct mlo_graph *graph, const struct mlo_node *node, int *waiting,
                          struct heap *ready)
{
    for (int o = 0; o < node->output_count; o++) {
        const struct mlo_value *value = node->outputs[o];
        for (int u = 0; value && u < value->use_count; u++) {
            struct mlo_node *user = mlo_node_ancestor(value->uses[u].node, graph);
            if (user && --waiting[user->index] == 0)
                heap_push(ready, user->index);
        }
    }
}

/* What waits at the end is on a cycle or behind one: walk back through waiting producers, as many steps as
 * there are nodes, to stand on the cycle itself. */
static const struct mlo_node *on_cycle(const struct mlo_graph *graph, const int *waiting)
{
    const struct mlo_node *node = NULL;
    for (int n = 0; n < graph->node_count && !node; n++)
        if (waiting[n] > 0)
            node = graph->nodes[n];
    for (int step = 0; node && step < graph->node_count; step++)
        for (int i = 0; i < node->input_count; i++) {
            const struct mlo_node *from = node->inputs[i] ? node->inputs[i]->producer : NULL;
            if (from && from->graph == graph && waiting[from->index] > 0) {
                node = from;
                break;
            }
        }
    return node;
}

static bool sort_subgraph(struct mlo_graph *graph, void *arg)
{
    return mlo_graph_sort(graph, arg) == MLO_OK;
}

enum mlo_status mlo_graph_sort(struct mlo_graph *graph, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count = (size_t)graph->node_count;
    int *waiting = calloc(count + 1, sizeof *waiting);
    struct heap ready = {calloc(count + 1, sizeof *ready.at), 0};
    struct mlo_node **order = calloc(count + 1, sizeof *order);
    struct mlo_error inner = {0};
    int done = 0;
    if (!waiting || !ready.at || !order) {
        status = mlo_error_nomem(err);
        goto out;
    }
    count_edges(graph, waiting);
    for (int n = 0; n < graph->node_count; n++)
        if (waiting[n] == 0)
            heap_push(&ready, n);
    while (ready.count) {
        struct mlo_node *node = graph->nodes[heap_pop(&ready)];
        order[done++] = node;
        release_users(graph, node, waiting, &ready);
    }
    if (done < graph->node_count) {
        const struct mlo_node *node = on_cycle(graph, waiting);
        status = mlo_error_set(err, MLO_EFORMAT, "the graph has a cycle through node '%.80s' (%.60s)",
                               node->name, node->op_type);
        mlo_error_where(err, "node '%.200s'", node->name);
        goto out;
    }
    for (int n = 0; n < done; n++) {
        graph->nodes[n] = order[n];
        order[n]->index = n;
    }
    for (int n = 0; n < done; n++)
        if (!mlo_node_each_subgraph(order[n], sort_subgraph, &inner)) {
            if (err)
                *err = inner;
            status = inner.status;
            goto out;
        }
out:
    free(waiting);
    free(ready.at);
    free(order);
    return status;
}
