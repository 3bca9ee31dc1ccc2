#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

static json_t *ports_json(struct mlo_value *const *values, int count, bool skip_constants)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        char type[256];
        if (skip_constants && values[i]->constant)
            continue;
        json_array_append_new(list, json_pack("{s:s,s:s}", "name", values[i]->name, "type",
                                              mlo_type_describe(&values[i]->type, type, sizeof type)));
    }
    return list;
}

/* How often each op occurs, as an object "domain.Op": n. */
static json_t *ops_json(const struct mlo_graph *g)
{
    json_t *ops = json_object();
    for (int i = 0; i < g->node_count; i++) {
        const struct mlo_node *n = g->nodes[i];
        char name[160];
        snprintf(name, sizeof name, "%s%s%s", n->domain, *n->domain ? "." : "", n->op_type);
        json_object_set_new(ops, name, json_integer(mlo_json_i64(ops, name, 0) + 1));
    }
    return ops;
}

static json_t *node_json(const struct mlo_node *n, struct mlo_node_cost *cost)
{
    json_t *outputs = json_array(), *inputs = json_array();
    mlo_node_cost(n, cost);
    for (int i = 0; i < n->input_count; i++)
        json_array_append_new(inputs, n->inputs[i] ? json_string(n->inputs[i]->name) : json_null());
    for (int o = 0; o < n->output_count; o++) {
        char type[256];
        if (n->outputs[o])
            json_array_append_new(outputs,
                                  json_pack("{s:s,s:s}", "name", n->outputs[o]->name, "type",
                                            mlo_type_describe(&n->outputs[o]->type, type, sizeof type)));
    }
    json_t *node = json_pack("{s:s,s:s,s:s,s:o,s:o}", "name", n->name, "domain", n->domain, "op", n->op_type,
                             "inputs", inputs, "outputs", outputs);
    if (cost->known)
        json_object_update_new(node, json_pack("{s:I,s:I,s:I,s:I}", "flops", (json_int_t)cost->flops,
                                               "bytes_read", (json_int_t)cost->bytes_read, "bytes_written",
                                               (json_int_t)cost->bytes_written, "weight_bytes",
                                               (json_int_t)cost->weight_bytes));
    return node;
}

/* Nodes that mlopt cannot run, with the reasons; in subgraphs too. */
static void add_unsupported(const struct mlo_graph *g, json_t *list)
{
    for (int i = 0; i < g->node_count; i++) {
        const struct mlo_node *n = g->nodes[i];
        struct mlo_error why = {0};
        if (mlo_node_check_supported(n, &why) != MLO_OK)
            json_array_append_new(list,
                                  json_pack("{s:s,s:s,s:s,s:I,s:s,s:s}", "node", n->name, "op", n->op_type,
                                            "domain", n->domain, "opset", (json_int_t)n->version, "reason",
                                            why.message, "hint", why.hint));
        for (int a = 0; a < n->attr_count; a++) {
            if (n->attrs[a].type == MLO_ATTR_GRAPH)
                add_unsupported(n->attrs[a].graph, list);
            for (size_t k = 0; n->attrs[a].type == MLO_ATTR_GRAPHS && k < n->attrs[a].graphs.count; k++)
                add_unsupported(n->attrs[a].graphs.g[k], list);
        }
    }
}

/* Adds costs and peak memory of the bound copy. */
static enum mlo_status add_costs(const struct mlo_cli *cli, const struct mlo_model *model, json_t *d,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *copy = NULL;
    struct mlo_peak peak;
    uint64_t macs = 0, flops = 0, bytes = 0;
    int unknown = 0;
    json_t *nodes = json_array(), *unsupported = json_array(), *dims = json_object();
    MLO_TRY(mlo_local_bound(cli, model, &copy, err));
    const struct mlo_graph *g = copy->graph;
    for (int i = 0; i < g->node_count; i++) {
        struct mlo_node_cost cost;
        json_array_append_new(nodes, node_json(g->nodes[i], &cost));
        macs += g->nodes[i]->op ? mlo_node_macs(g->nodes[i]) : 0;
        flops += cost.flops;
        bytes += cost.bytes_read + cost.bytes_written;
        unknown += !cost.known;
    }
    for (int i = 0; i < g->input_count; i++)
        for (int k = 0; k < g->inputs[i]->type.rank; k++)
            if (g->inputs[i]->type.dims[k].value < 0 && g->inputs[i]->type.dims[k].name)
                json_object_set_new(dims, g->inputs[i]->type.dims[k].name, json_null());
    MLO_TRY(mlo_graph_peak(g, &peak, err));
    add_unsupported(g, unsupported);
    json_object_update_new(d, json_pack("{s:I,s:I,s:I,s:i,s:O,s:O,s:O}", "macs", (json_int_t)macs, "flops",
                                        (json_int_t)flops, "bytes", (json_int_t)bytes, "uncounted", unknown,
                                        "node_list", nodes, "unsupported", unsupported, "unbound", dims));
    json_object_set_new(d, "peak",
                        peak.node ? json_pack("{s:I,s:s,s:b}", "bytes", (json_int_t)peak.bytes, "node",
                                              peak.node, "complete", peak.known)
                                  : json_null());
out:
    json_decref(nodes);
    json_decref(unsupported);
    json_decref(dims);
    mlo_model_free(copy);
    return status;
}

static json_t *describe(const struct mlo_model *model, bool supported, json_t *file)
{
    const struct mlo_graph *g = model->graph;
    uint64_t parameters = 0, weight_bytes = 0;
    json_t *opsets = json_object(), *meta = json_object();
    for (int i = 0; i < model->opset_count; i++)
        json_object_set_new(opsets, *model->opsets[i].domain ? model->opsets[i].domain : "ai.onnx",
                            json_integer(model->opsets[i].version));
    for (int i = 0; i < model->metadata_count; i++)
        json_object_set_new(meta, model->metadata[i].key, json_string(model->metadata[i].value));
    for (int i = 0; i < g->value_count; i++) {
        if (g->values[i]->constant) {
            parameters += mlo_tensor_count(g->values[i]->constant);
            weight_bytes += g->values[i]->constant->size_bytes;
        }
    }
    json_t *ops = ops_json(g);
    return json_pack("{s:o,s:s,s:I,s:s,s:s,s:o,s:o,s:o,s:i,s:o,s:I,s:I,s:b,s:o}", "file", file, "graph",
                     g->name ? g->name : "", "ir_version", (json_int_t)model->ir_version, "producer",
                     model->producer_name ? model->producer_name : "", "producer_version",
                     model->producer_version ? model->producer_version : "", "opsets", opsets, "inputs",
                     ports_json(g->inputs, g->input_count, true), "outputs",
                     ports_json(g->outputs, g->output_count, false), "nodes", g->node_count, "ops", ops,
                     "parameters", (json_int_t)parameters, "weight_bytes", (json_int_t)weight_bytes,
                     "supported", supported, "metadata", meta);
}

static void print_costs(const json_t *d, struct mlo_buf *out)
{
    char size[32], bytes[32];
    const json_t *peak = json_object_get(d, "peak");
    const char *key;
    json_t *value;
    if (mlo_json_i64(d, "macs", 0))
        mlo_buf_printf(out, "multiply-adds %lld for %s\n", (long long)mlo_json_i64(d, "macs", 0),
                       mlo_json_i64(d, "batch", 1) == 1 ? "one sample" : "the batch");
    mlo_buf_printf(out, "operations  %.3g, bytes read and written %s\n", (double)mlo_json_i64(d, "flops", 0),
                   mlo_str_size((uint64_t)mlo_json_i64(d, "bytes", 0), bytes));
    if (peak && !json_is_null(peak))
        mlo_buf_printf(out, "activations %s%s at the peak (node %s)\n",
                       json_is_true(json_object_get(peak, "complete")) ? "" : "at least ",
                       mlo_str_size((uint64_t)mlo_json_i64(peak, "bytes", 0), size),
                       mlo_json_str(peak, "node", ""));
    json_object_foreach(json_object_get(d, "unbound"), key, value) mlo_buf_printf(
        out, "dim %s is free: costs behind it are not counted; bind it with --dim '%s=N'\n", key, key);
}

static int by_flops(const void *a, const void *b)
{
    int64_t x = mlo_json_i64(*(json_t *const *)a, "flops", 0),
            y = mlo_json_i64(*(json_t *const *)b, "flops", 0);
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The nodes that cost most, or all of them in order. */
static enum mlo_status print_nodes(const json_t *d, bool all, struct mlo_error *err)
{
    json_t *list = json_object_get(d, "node_list");
    size_t count = json_array_size(list);
    json_t **nodes = calloc(count + 1, sizeof *nodes);
    struct mlo_table table;
    if (!nodes)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < count; i++)
        nodes[i] = json_array_get(list, i);
    if (!all)
        qsort(nodes, count, sizeof *nodes, by_flops);
    mlo_table_init(&table, "node|op|output|operations>|read>|written>|weights>");
    for (size_t i = 0; i < (all ? count : MLO_MIN(count, 10)); i++) {
        char flops[32], size[3][32];
        static const char *const fields[] = {"bytes_read", "bytes_written", "weight_bytes"};
        bool known = json_object_get(nodes[i], "flops") != NULL;
        snprintf(flops, sizeof flops, "%lld", (long long)mlo_json_i64(nodes[i], "flops", 0));
        for (int f = 0; f < 3; f++)
            mlo_str_size((uint64_t)mlo_json_i64(nodes[i], fields[f], 0), size[f]);
        mlo_table_row(&table, mlo_json_str(nodes[i], "name", ""), mlo_json_str(nodes[i], "op", ""),
                      mlo_json_str(json_array_get(json_object_get(nodes[i], "outputs"), 0), "type", "-"),
                      known ? flops : NULL, known ? size[0] : NULL, known ? size[1] : NULL,
                      known ? size[2] : NULL);
    }
    free(nodes);
    return mlo_table_print_take(&table, err);
}

static enum mlo_status print_text(const json_t *d, struct mlo_error *err)
{
    struct mlo_buf out = MLO_BUF_INIT;
    char size[32];
    const char *key;
    json_t *value;
    size_t i;
    const json_t *file = json_object_get(d, "file");
    mlo_buf_printf(&out, "%s  %s  %s\n", mlo_json_str(file, "path", ""),
                   mlo_str_size((uint64_t)mlo_json_i64(file, "size", 0), size),
                   mlo_json_str(file, "digest", ""));
    mlo_buf_printf(&out, "producer    %s %s, IR version %lld\nopsets     ", mlo_json_str(d, "producer", "-"),
                   mlo_json_str(d, "producer_version", ""), (long long)mlo_json_i64(d, "ir_version", 0));
    json_object_foreach(json_object_get(d, "opsets"), key, value)
        mlo_buf_printf(&out, " %s %lld", key, (long long)json_integer_value(value));
    mlo_buf_putc(&out, '\n');
    static const char *const ports[] = {"inputs", "outputs"};
    for (int p = 0; p < 2; p++)
        json_array_foreach(json_object_get(d, ports[p]), i, value)
            mlo_buf_printf(&out, "%-11s %s  %s\n", i ? "" : ports[p], mlo_json_str(value, "name", ""),
                           mlo_json_str(value, "type", ""));
    mlo_buf_printf(&out, "weights     %lld in %s\n", (long long)mlo_json_i64(d, "parameters", 0),
                   mlo_str_size((uint64_t)mlo_json_i64(d, "weight_bytes", 0), size));
    print_costs(d, &out);
    mlo_buf_printf(&out, "nodes       %lld:", (long long)mlo_json_i64(d, "nodes", 0));
    json_object_foreach(json_object_get(d, "ops"), key, value)
        mlo_buf_printf(&out, " %s %lld", key, (long long)json_integer_value(value));
    mlo_buf_putc(&out, '\n');
    json_array_foreach(json_object_get(d, "unsupported"), i, value)
        mlo_buf_printf(&out, "unsupported %s\n            %s\n", mlo_json_str(value, "reason", ""),
                       mlo_json_str(value, "hint", ""));
    enum mlo_status status = mlo_cli_print(err, "%s", mlo_buf_str(&out));
    mlo_buf_clear(&out);
    return status;
}

static enum mlo_status inspect_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *model = NULL, *bound = NULL;
    struct mlo_buf dump = MLO_BUF_INIT;
    json_t *file = NULL, *all = NULL, *plan = NULL;
    if (mlo_plan_is_file(cli->args[0]))
        return mlo_local_inspect_plan(cli, err);
    MLO_TRY(mlo_onnx_load(cli->args[0], &model, err));
    if (mlo_cli_has(cli, "graph")) {
        mlo_graph_dump(model->graph, &dump);
        status = mlo_cli_print(err, "%s", mlo_buf_str(&dump));
        goto out;
    }
    const char *svg = mlo_cli_opt(cli, "svg");
    int64_t batch;
    if (svg)
        MLO_TRY(mlo_cli_check_output(svg, err));
    MLO_TRY(mlo_cli_int(cli, "batch", 1, 1, INT32_MAX, &batch, err));
    MLO_TRY(mlo_local_file_json(cli->args[0], &file, err));
    all = describe(model, mlo_graph_check_supported(model->graph, NULL) == MLO_OK, file);
    if (!all) {
        status = mlo_error_nomem(err);
        goto out;
    }
    json_object_set_new(all, "batch", json_integer(batch));
    MLO_TRY(add_costs(cli, model, all, err));
    if (mlo_cli_has(cli, "plan")) {
        MLO_TRY(mlo_local_bound(cli, model, &bound, err));
        MLO_TRY(mlo_local_plan(cli, bound, &plan, err));
        json_object_set(all, "plan", plan);
    }
    if (svg) {
        MLO_TRY(mlo_local_draw(model->graph, &dump, err));
        MLO_TRY(mlo_fs_write_atomic(svg, dump.data, dump.len, err));
    }
    if (cli->json) {
        MLO_TRY(mlo_cli_print_json(all, err));
    } else {
        MLO_TRY(print_text(all, err));
        MLO_TRY(plan ? mlo_local_plan_print(plan, err) : print_nodes(all, mlo_cli_has(cli, "nodes"), err));
    }
out:
    if (status != MLO_OK)
        mlo_cli_name_file(err, cli->args[0]);
    json_decref(all);
    json_decref(plan);
    mlo_buf_clear(&dump);
    mlo_model_free(bound);
    mlo_model_free(model);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"graph", 0, NULL, "the graph itself, one line a node"},
    {"nodes", 0, NULL, "the cost of every node, not only of the ten largest"},
    {"plan", 0, NULL, "which node runs how on an engine, and in which precision"},
    MLO_OPTION_ENGINE,
    MLO_OPTION_THREADS,
    {"batch", 0, "N", "count costs for this batch (1)"},
    {"dim", 0, "NAME=N", "count costs with this dim bound", NULL, true},
    {"svg", 0, "FILE", "draw the graph"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_inspect = {
    .name = "inspect",
    .group = "Local (no server needed)",
    .run = inspect_run,
    .options = options,
    .positional = "MODEL.onnx|FILE.plan",
    .min_args = 1,
    .max_args = 1,
    .help = "what a model or plan file holds: inputs, outputs, ops, weights, cost, a picture",
};
