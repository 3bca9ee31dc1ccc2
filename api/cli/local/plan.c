/* inspect --plan: which node runs how on an engine, and in which precision. */
#include "api/cli/local/local_impl.h"

enum mlo_status mlo_local_plan(const struct mlo_cli *cli, const struct mlo_model *bound, json_t **out,
                               struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_run_options run = {0};
    struct mlo_plan *plan = NULL;
    *out = NULL;
    MLO_TRY(mlo_local_engine(cli, &run, err));
    struct mlo_compile_options options = {.numerics = MLO_NUMERICS_FAST, .threads = run.threads};
    MLO_TRY(mlo_graph_check_supported(bound->graph, err));
    MLO_TRY(run.engine->compile(bound, &options, &plan, err));
    MLO_TRY(run.engine->describe(plan, out, err));
out:
    if (run.engine)
        run.engine->free_plan(plan);
    return status;
}

enum mlo_status mlo_local_plan_print(const json_t *plan, struct mlo_error *err)
{
    struct mlo_table table;
    size_t i, k;
    json_t *node, *part;
    mlo_table_init(&table, "node|op|implementation|precision|fused");
    json_array_foreach(json_object_get(plan, "nodes"), i, node)
    {
        struct mlo_buf fused = MLO_BUF_INIT;
        json_array_foreach(json_object_get(node, "fused"), k, part)
            mlo_buf_printf(&fused, "%s%s", k ? " " : "", json_is_string(part) ? json_string_value(part) : "");
        mlo_table_row(&table, mlo_json_str(node, "node", ""), mlo_json_str(node, "op", ""),
                      mlo_json_str(node, "impl", ""), mlo_json_str(node, "precision", ""),
                      mlo_buf_str(&fused));
        mlo_buf_clear(&fused);
    }
    enum mlo_status status = mlo_table_print_take(&table, err);
    if (status != MLO_OK)
        return status;
    return mlo_cli_print(err, "%s: %zu nodes, %lld of them in int8\n", mlo_json_str(plan, "version", ""),
                         json_array_size(json_object_get(plan, "nodes")),
                         (long long)mlo_json_i64(plan, "int8_nodes", 0));
}
