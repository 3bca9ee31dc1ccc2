/* Where the nodes of a profile stand under the roofline. */
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/measure.h"

/* What one step of the engine computes: a node and those fused into it. */
struct group {
    const struct mlo_graph *graph;
    bool *member; /* by node index */
    bool *seen;   /* by value index */
    uint64_t flops, weight_bytes, other_bytes;
    bool known;
};

static uint64_t value_bytes(const struct mlo_value *value)
{
    int64_t dims[MLO_MAX_RANK];
    size_t bytes;
    return mlo_type_static(&value->type, dims) &&
                   mlo_shape_bytes(value->type.dtype, value->type.rank, dims, &bytes)
               ? bytes
               : 0;
}

static const struct mlo_node *find_node(const struct mlo_graph *graph, const char *name)
{
    for (int i = 0; *name && i < graph->node_count; i++)
        if (strcmp(graph->nodes[i]->name, name) == 0)
            return graph->nodes[i];
    return NULL;
}

static void add_member(struct group *g, const char *name)
{
    struct mlo_node_cost cost;
    const struct mlo_node *node = find_node(g->graph, name);
    if (!node || g->member[node->index])
        return;
    g->member[node->index] = true;
    mlo_node_cost(node, &cost);
    g->known = g->known && cost.known;
    g->flops += cost.flops;
}

/* What an int8 step reads stands before the DequantizeLinear that the graph has there. */
static const struct mlo_value *source_of(const struct group *g, const struct mlo_value *value, bool int8)
{
    const struct mlo_node *p = value->producer;
    return int8 && p && !g->member[p->index] && mlo_node_is(p, "DequantizeLinear") ? p->inputs[0] : value;
}

static void add_bytes(struct group *g, const struct mlo_node *node, bool int8)
{
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *value = node->inputs[i];
        if (!value || value->graph != g->graph)
            continue;
        value = source_of(g, value, int8);
        bool inside = value->producer && g->member[value->producer->index];
        if (inside || g->seen[value->index])
            continue;
        g->seen[value->index] = true;
        *(value->constant ? &g->weight_bytes : &g->other_bytes) += value_bytes(value);
    }
    for (int o = 0; o < node->output_count; o++) {
        const struct mlo_value *value = node->outputs[o];
        bool outside = value && value->is_output;
        for (int u = 0; value && u < value->use_count; u++) {
            const struct mlo_node *user = value->uses[u].node;
            outside = outside || user->graph != g->graph || !g->member[user->index];
        }
        if (outside)
            g->other_bytes += value_bytes(value);
    }
}

static void gather(struct group *g, const json_t *node)
{
    const json_t *fused = json_object_get(node, "fused");
    bool int8 = strcmp(mlo_json_str(node, "precision", ""), "int8") == 0;
    memset(g->member, 0, (size_t)g->graph->node_count * sizeof *g->member);
    memset(g->seen, 0, (size_t)g->graph->value_count * sizeof *g->seen);
    g->flops = g->weight_bytes = g->other_bytes = 0;
    g->known = find_node(g->graph, mlo_json_str(node, "node", "")) != NULL;
    add_member(g, mlo_json_str(node, "node", ""));
    for (size_t i = 0; i < json_array_size(fused); i++)
        if (json_is_string(json_array_get(fused, i)))
            add_member(g, json_string_value(json_array_get(fused, i)));
    for (int n = 0; n < g->graph->node_count; n++)
        if (g->member[n])
            add_bytes(g, g->graph->nodes[n], int8);
}

static double bandwidth(const struct mlo_peaks *peaks, uint64_t bytes)
{
    for (int i = 0; i < MLO_PEAK_LEVELS; i++)
        if (bytes <= peaks->levels[i].bytes)
            return peaks->levels[i].bytes_per_s;
    return peaks->levels[MLO_PEAK_LEVELS - 1].bytes_per_s;
}

static double ops_of(const struct mlo_peaks *peaks, const char *precision)
{
    if (strcmp(precision, "int8") == 0)
        return peaks->int8_ops;
    bool narrow =
        strcmp(precision, "f16") == 0 || strcmp(precision, "fixed16") == 0; /* twice as many at a time */
    return narrow ? 2 * peaks->f32_ops : peaks->f32_ops;
}

static void place(const struct group *g, json_t *node, const struct mlo_peaks *peaks, uint64_t working_set)
{
    double us = mlo_json_f64(node, "us", 0);
    const char *precision = mlo_json_str(node, "precision", "");
    uint64_t bytes = g->weight_bytes + g->other_bytes;
    if (!g->known || us <= 0 || !bytes)
        return;
    double ops = ops_of(peaks, precision);
    double compute = (double)g->flops / ops;
    double memory = (double)g->weight_bytes / bandwidth(peaks, working_set) +
                    (double)g->other_bytes / bandwidth(peaks, g->other_bytes);
    double least = MLO_MAX(compute, memory);
    json_object_set_new(node, "flops", json_integer((json_int_t)g->flops));
    json_object_set_new(node, "bytes", json_integer((json_int_t)bytes));
    json_object_set_new(node, "intensity", json_real((double)g->flops / (double)bytes));
    json_object_set_new(node, "bound", json_string(compute >= memory ? "compute" : "memory"));
    json_object_set_new(node, "peak", json_real(least / (us * 1e-6)));
}

enum mlo_status mlo_roofline(json_t *profile, const struct mlo_model *model, const struct mlo_peaks *peaks,
                             struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_graph *graph = model->graph;
    json_t *nodes = json_object_get(profile, "nodes"), *levels = json_array();
    struct group g = {.graph = graph,
                      .member = calloc((size_t)graph->node_count + 1, sizeof *g.member),
                      .seen = calloc((size_t)graph->value_count + 1, sizeof *g.seen)};
    if (!g.member || !g.seen || !levels) {
        status = mlo_error_nomem(err);
        goto out;
    }
    uint64_t working_set = (uint64_t)mlo_json_i64(profile, "arena_bytes", 0);
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        gather(&g, json_array_get(nodes, i));
        working_set += g.weight_bytes;
    }
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        gather(&g, json_array_get(nodes, i));
        place(&g, json_array_get(nodes, i), peaks, working_set);
    }
    for (int i = 0; i < MLO_PEAK_LEVELS; i++)
        json_array_append_new(levels, json_pack("{s:s, s:f}", "name", peaks->levels[i].name, "bytes_per_s",
                                                peaks->levels[i].bytes_per_s));
    json_object_set_new(profile, "working_set_bytes", json_integer((json_int_t)working_set));
    json_object_set_new(profile, "peaks",
                        json_pack("{s:i, s:f, s:f, s:O}", "threads", (int)peaks->threads, "f32_ops",
                                  peaks->f32_ops, "int8_ops", peaks->int8_ops, "levels", levels));
out:
    json_decref(levels);
    free(g.member);
    free(g.seen);
    return status;
}
