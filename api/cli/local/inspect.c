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

/* How often each op occurs, as an object "domain.Op": n, and totals. */
static json_t *ops_json(const struct mlo_graph *g, uint64_t *macs)
{
    json_t *ops = json_object();
    for (int i = 0; i < g->node_count; i++) {
        const struct mlo_node *n = g->nodes[i];
        char name[160];
        snprintf(name, sizeof name, "%s%s%s", n->domain, *n->domain ? "." : "", n->op_type);
        json_object_set_new(ops, name, json_integer(mlo_json_i64(ops, name, 0) + 1));
        *macs += n->op ? mlo_node_macs(n) : 0;
    }
    return ops;
}

/* Multiply-adds for one sample: counted on a copy with the batch bound to 1. */
static uint64_t macs_of(const struct mlo_model *model)
{
    struct mlo_model *copy = NULL;
    uint64_t macs = 0;
    struct mlo_error ignored = {0};
    if (mlo_model_clone(model, &copy, &ignored) == MLO_OK &&
        mlo_graph_bind_batch(copy->graph, 1, &ignored) == MLO_OK)
        for (int i = 0; i < copy->graph->node_count; i++)
            macs += copy->graph->nodes[i]->op ? mlo_node_macs(copy->graph->nodes[i]) : 0;
    mlo_model_free(copy);
    return macs;
}

static json_t *describe(const struct mlo_model *model, bool supported, json_t *file)
{
    const struct mlo_graph *g = model->graph;
    uint64_t ignored = 0, parameters = 0, weight_bytes = 0;
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
    json_t *ops = ops_json(g, &ignored);
    return json_pack("{s:o,s:s,s:I,s:s,s:s,s:o,s:o,s:o,s:i,s:o,s:I,s:I,s:I,s:b,s:o}", "file", file, "graph",
                     g->name ? g->name : "", "ir_version", (json_int_t)model->ir_version, "producer",
                     model->producer_name ? model->producer_name : "", "producer_version",
                     model->producer_version ? model->producer_version : "", "opsets", opsets, "inputs",
                     ports_json(g->inputs, g->input_count, true), "outputs",
                     ports_json(g->outputs, g->output_count, false), "nodes", g->node_count, "ops", ops,
                     "parameters", (json_int_t)parameters, "weight_bytes", (json_int_t)weight_bytes, "macs",
                     (json_int_t)(supported ? macs_of(model) : 0), "supported", supported, "metadata", meta);
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
    if (mlo_json_i64(d, "macs", 0))
        mlo_buf_printf(&out, "multiply-adds %lld for one sample\n", (long long)mlo_json_i64(d, "macs", 0));
    mlo_buf_printf(&out, "nodes       %lld:", (long long)mlo_json_i64(d, "nodes", 0));
    json_object_foreach(json_object_get(d, "ops"), key, value)
        mlo_buf_printf(&out, " %s %lld", key, (long long)json_integer_value(value));
    mlo_buf_putc(&out, '\n');
    enum mlo_status status = mlo_cli_print(err, "%s", mlo_buf_str(&out));
    mlo_buf_clear(&out);
    return status;
}

static enum mlo_status inspect_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *model = NULL;
    struct mlo_error unsupported = {0};
    struct mlo_buf dump = MLO_BUF_INIT;
    json_t *file = NULL, *all = NULL;
    MLO_TRY(mlo_onnx_load(cli->args[0], &model, err));
    if (mlo_cli_has(cli, "graph")) {
        mlo_graph_dump(model->graph, &dump);
        status = mlo_cli_print(err, "%s", mlo_buf_str(&dump));
        goto out;
    }
    enum mlo_status known = mlo_graph_check_supported(model->graph, &unsupported);
    MLO_TRY(mlo_local_file_json(cli->args[0], &file, err));
    all = describe(model, known == MLO_OK, file);
    if (!all) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(cli->json ? mlo_cli_print_json(all, err) : print_text(all, err));
    if (known != MLO_OK) { /* what the file holds was shown; that mlopt cannot run it is still a failure */
        *err = unsupported;
        status = known;
    }
out:
    if (status != MLO_OK)
        mlo_cli_name_file(err, cli->args[0]);
    json_decref(all);
    mlo_buf_clear(&dump);
    mlo_model_free(model);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"graph", 0, NULL, "the graph itself, one line a node"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_inspect = {
    .name = "inspect",
    .group = "Local (no server needed)",
    .run = inspect_run,
    .options = options,
    .positional = "MODEL.onnx",
    .min_args = 1,
    .max_args = 1,
    .help = "what a model file holds: inputs, outputs, ops, weights, cost",
};
