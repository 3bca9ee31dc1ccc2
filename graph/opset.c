/* Small changes that keep the meaning of what stays: opset, attributes, the list of inputs. */
#include <string.h>

#include "graph/model_impl.h"
#include "graph/op.h"

bool mlo_node_unset(struct mlo_node *node, const char *name)
{
    for (int i = 0; i < node->attr_count; i++) {
        if (strcmp(node->attrs[i].name, name) != 0)
            continue;
        node->attr_count--;
        memmove(&node->attrs[i], &node->attrs[i + 1], (size_t)(node->attr_count - i) * sizeof *node->attrs);
        return true;
    }
    return false;
}

static bool look_up_again(struct mlo_graph *graph, void *arg)
{
    for (int n = 0; n < graph->node_count; n++) {
        struct mlo_node *node = graph->nodes[n];
        if (node->domain[0] == '\0') {
            node->version = mlo_model_opset(graph->model, "");
            node->op = mlo_op_find("", node->op_type, node->version);
        }
        mlo_node_each_subgraph(node, look_up_again, arg);
    }
    return true;
}

void mlo_model_set_opset(struct mlo_model *model, int64_t version)
{
    for (int i = 0; i < model->opset_count; i++)
        if (model->opsets[i].domain[0] == '\0')
            model->opsets[i].version = version;
    look_up_again(model->graph, NULL);
}

bool mlo_model_import(struct mlo_model *model, const char *domain, int64_t version)
{
    if (mlo_model_opset(model, domain) > 0)
        return true;
    size_t count = (size_t)model->opset_count;
    struct mlo_opset *list = mlo_arena_calloc(model->arena, count + 1, sizeof *list);
    char *copy = mlo_arena_strdup(model->arena, domain);
    if (!list || !copy)
        return false;
    if (count)
        memcpy(list, model->opsets, count * sizeof *list);
    list[count] = (struct mlo_opset){copy, version};
    model->opsets = list;
    model->opset_count++;
    return true;
}

void mlo_graph_unlist_input(struct mlo_graph *graph, struct mlo_value *value)
{
    int kept = 0;
    for (int i = 0; i < graph->input_count; i++)
        if (graph->inputs[i] != value)
            graph->inputs[kept++] = graph->inputs[i];
    graph->input_count = kept;
    value->is_input = false;
}
