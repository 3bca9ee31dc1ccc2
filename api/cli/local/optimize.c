#include <string.h>

#include "api/cli/local/local_impl.h"

static enum mlo_status print_result(const struct mlo_cli *cli, const json_t *before, const json_t *after,
                                    const struct mlo_model *from, const struct mlo_model *to,
                                    const json_t *passes, const struct mlo_deviation *d,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (cli->json) {
        json_t *all =
            json_pack("{s:O,s:O,s:{s:i,s:i},s:O,s:{s:f,s:f,s:f,s:i,s:b}}", "source", before, "result", after,
                      "nodes", "before", from->graph->node_count, "after", to->graph->node_count, "passes",
                      passes, "deviation", "max_abs", d->max_abs, "max_rel", d->max_rel, "cosine", d->cosine,
                      "samples", d->samples, "finite", d->finite);
        status = mlo_cli_print_json(all, err);
        json_decref(all);
        return status;
    }
    struct mlo_table table;
    size_t i;
    json_t *row;
    mlo_table_init(&table, "pass|changes>|time>");
    json_array_foreach(passes, i, row)
    {
        char changes[24], time[32];
        snprintf(changes, sizeof changes, "%lld", (long long)mlo_json_i64(row, "changes", 0));
        mlo_table_row(&table, mlo_json_str(row, "pass", ""), changes,
                      mlo_cli_duration(mlo_json_f64(row, "ms", 0) * 1000, time));
    }
    MLO_TRY(mlo_table_print_take(&table, err));
    char size_before[32], size_after[32];
    MLO_TRY(mlo_cli_print(err, "nodes %d -> %d, size %s -> %s\n", from->graph->node_count,
                          to->graph->node_count,
                          mlo_str_size((uint64_t)mlo_json_i64(before, "size", 0), size_before),
                          mlo_str_size((uint64_t)mlo_json_i64(after, "size", 0), size_after)));
    MLO_TRY(mlo_cli_print(err,
                          "outputs on %d seeded random inputs: largest difference %.3g (%.3g of the largest "
                          "output), cosine %.9f\n%s  %s\n",
                          d->samples, d->max_abs, d->max_rel, d->cosine, mlo_json_str(after, "path", ""),
                          mlo_json_str(after, "digest", "")));
out:
    return status;
}

static enum mlo_status optimize_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *from = NULL, *to = NULL;
    struct mlo_pass_driver driver = {0};
    struct mlo_run_options options;
    struct mlo_deviation deviation;
    struct mlo_local_dims dims;
    struct mlo_pass_request requests[64] = {0};
    json_t *before = NULL, *after = NULL;
    const char *out = NULL;
    int64_t samples;
    size_t count = 0;
    MLO_TRY(mlo_cli_required(cli, "out", &out, err));
    MLO_TRY(mlo_cli_check_output(out, err));
    MLO_TRY(mlo_cli_int(cli, "samples", 4, 1, 10000, &samples, err));
    MLO_TRY(mlo_local_engine(cli, &options, err));
    MLO_TRY(mlo_local_dims(cli, &dims, err));
    MLO_TRY(mlo_local_file_json(cli->args[0], &before, err));
    MLO_TRY(mlo_local_model(cli->args[0], &from, err));
    MLO_TRY(mlo_model_clone(from, &to, err));
    const char *const *names = mlo_passes_optimize(&count);
    count = MLO_MIN(count, MLO_COUNT(requests) - 1);
    size_t first = mlo_cli_has(cli, "freeze-initializers") ? 1 : 0;
    requests[0].name = "freeze-initializers";
    for (size_t i = 0; i < count; i++)
        requests[first + i] = (struct mlo_pass_request){names[i], NULL};
    MLO_TRY(mlo_passes_run(to, requests, first + count, &driver, err));
    MLO_TRY(mlo_local_deviation(from, to, &options, &dims, (int)samples, &deviation, err));
    if (!deviation.finite) {
        status = mlo_error_set(err, MLO_EINTERNAL,
                               "the optimized model gives infinities or NaN where %s does not; "
                               "nothing was written",
                               cli->args[0]);
        goto out;
    }
    MLO_TRY(mlo_onnx_save_with(to, out, &(struct mlo_onnx_save_options){0}, err));
    MLO_TRY(mlo_local_file_json(out, &after, err));
    MLO_TRY(print_result(cli, before, after, from, to, driver.report, &deviation, err));
out:
    json_decref(before);
    json_decref(after);
    json_decref(driver.report);
    mlo_model_free(to);
    mlo_model_free(from);
    return status;
}

static const struct mlo_cli_option options_table[] = {
    {"out", 0, "O.onnx", "where the optimized model is written"},
    {"freeze-initializers", 0, NULL, "weights that are listed as inputs too become constants"},
    {"samples", 0, "N", "random inputs that both models are compared on (4)"},
    {"dim", 0, "NAME=N", "size of an open dim in that comparison (1)", NULL, true},
    MLO_OPTION_ENGINE,
    MLO_OPTION_THREADS,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_optimize = {
    .name = "optimize",
    .group = "Local (no server needed)",
    .run = optimize_run,
    .options = options_table,
    .positional = "MODEL.onnx --out O.onnx",
    .min_args = 1,
    .max_args = 1,
    .help = "fold and fuse; needs no data, and reports how far the outputs moved",
};
