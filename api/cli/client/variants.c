#include <string.h>

#include "api/cli/client/client.h"

/* The latency entry that the table shows: batch 1 and one thread where it was measured, else the first. */
static const json_t *main_latency(const json_t *variant)
{
    const json_t *list = json_object_get(variant, "latency");
    json_t *row;
    size_t i;
    json_array_foreach(list, i, row) if (mlo_json_i64(row, "batch", 0) == 1 &&
                                         mlo_json_i64(row, "threads", 0) == 1) return row;
    return json_array_get(list, 0);
}

enum mlo_status mlo_client_print_variants(const json_t *items, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *row;
    size_t i;
    bool other = false;
    mlo_table_init(&table, "variant|size>|accuracy (95%)|p50>|p99>|latency / source (95%)|size / source>");
    json_array_foreach(items, i, row)
    {
        char size[32], accuracy[96] = "", p50[32] = "", p99[32] = "", ratio[64] = "", size_ratio[16] = "";
        const json_t *a = json_object_get(row, "accuracy"), *l = main_latency(row), *r;
        if (json_is_object(a))
            snprintf(accuracy, sizeof accuracy, "%s %.2f%% [%.2f, %.2f]", mlo_json_str(a, "metric", ""),
                     100 * mlo_json_f64(a, "value", 0), 100 * mlo_json_f64(a, "low", 0),
                     100 * mlo_json_f64(a, "high", 0));
        if (l) {
            mlo_cli_duration(mlo_json_f64(json_object_get(l, "p50_us"), "value", 0), p50);
            mlo_cli_duration(mlo_json_f64(json_object_get(l, "p99_us"), "value", 0), p99);
            r = json_object_get(l, "ratio");
            if (json_is_object(r))
                snprintf(ratio, sizeof ratio, "%.2f [%.2f, %.2f]", mlo_json_f64(r, "value", 0),
                         mlo_json_f64(r, "low", 0), mlo_json_f64(r, "high", 0));
            other = other || mlo_json_i64(l, "batch", 0) != 1 || mlo_json_i64(l, "threads", 0) != 1;
        }
        if (json_is_number(json_object_get(row, "size_ratio")))
            snprintf(size_ratio, sizeof size_ratio, "%.2f", mlo_json_f64(row, "size_ratio", 0));
        mlo_table_row(&table, mlo_json_str(row, "variant", ""),
                      mlo_str_size((uint64_t)mlo_json_i64(row, "size", 0), size), accuracy, p50, p99, ratio,
                      size_ratio);
    }
    enum mlo_status status = mlo_table_print_take(&table, err);
    if (status == MLO_OK && other)
        status =
            mlo_cli_print(err, "latency of the first batch and thread count measured; -o json has all\n");
    return status;
}

static enum mlo_status variants_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_buf path = MLO_BUF_INIT;
    const char *version;
    json_t *items = NULL;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, true, false, err));
    MLO_TRY(mlo_client_ref_version(&ref, &version, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/variants", ref.project, ref.name, version);
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), 0, &items, err));
    MLO_TRY(cli->json ? mlo_cli_print_json(items, err) : mlo_client_print_variants(items, err));
out:
    json_decref(items);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

/* A node by its first name, or by the start of its digest. */
static void node_label(const json_t *graph, const char *digest, char out[160])
{
    json_t *node;
    size_t i;
    snprintf(out, 160, "%.19s", digest);
    json_array_foreach(json_object_get(graph, "nodes"), i, node)
    {
        const json_t *name = json_array_get(json_object_get(node, "names"), 0);
        if (strcmp(mlo_json_str(node, "digest", ""), digest) == 0 && json_is_string(name))
            snprintf(out, 160, "%s", json_string_value(name));
    }
}

static enum mlo_status lineage_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_buf path = MLO_BUF_INIT;
    const char *version;
    json_t *graph = NULL, *row;
    size_t i;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_version(&ref, &version, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/lineage", ref.project, ref.name, version);
    if (*ref.variant)
        mlo_client_path(&path, "?variant=%s", ref.variant);
    MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), &graph, err));
    if (cli->json) {
        MLO_TRY(mlo_cli_print_json(graph, err));
        goto out;
    }
    struct mlo_table table;
    mlo_table_init(&table, "what|kind|from|step|derivation");
    json_array_foreach(json_object_get(graph, "edges"), i, row)
    {
        char child[160], parent[160], derivation[32];
        node_label(graph, mlo_json_str(row, "child", ""), child);
        node_label(graph, mlo_json_str(row, "parent", ""), parent);
        snprintf(derivation, sizeof derivation, "%.19s", mlo_json_str(row, "derivation", ""));
        mlo_table_row(&table, child, mlo_json_str(row, "kind", ""), parent, mlo_json_str(row, "step", ""),
                      derivation);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(graph);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {MLO_OPTION_URL, {NULL}};
const struct mlo_cli_verb mlo_verb_variants = {
    .name = "variants",
    .group = "Models and data",
    .run = variants_run,
    .options = options,
    .positional = "PROJECT/MODEL[@V]",
    .min_args = 1,
    .max_args = 1,
    .help = "a version's variants: size, accuracy, latency, ratio to the source",
};
const struct mlo_cli_verb mlo_verb_lineage = {
    .name = "lineage",
    .group = "Models and data",
    .run = lineage_run,
    .options = options,
    .positional = "PROJECT/MODEL@V[/VARIANT]",
    .min_args = 1,
    .max_args = 1,
    .help = "what a version or variant came from, and what came from it",
};
