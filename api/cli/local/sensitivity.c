#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"
#include "pipeline/steps/sensitivity.h"

/* Options of the quantize pass that have a flag here. */
static const char *const flags[] = {"target", "scheme", "calibrator", "activations", "exclude"};

static enum mlo_status read_options(const struct mlo_cli *cli, json_t **out, struct mlo_error *err)
{
    json_t *given = json_object();
    for (size_t i = 0; i < MLO_COUNT(flags); i++)
        if (mlo_cli_has(cli, flags[i]))
            json_object_set_new(given, flags[i], json_string(mlo_cli_opt(cli, flags[i])));
    enum mlo_status status = mlo_options_resolve(mlo_quantize_options, given, out, err);
    json_decref(given);
    return status;
}

/* What the recipes do before they quantize: the nodes are those that `mlopt quantize --exclude` knows. */
static enum mlo_status optimize(struct mlo_model *model, struct mlo_error *err)
{
    size_t count;
    struct mlo_pass_driver driver = {0};
    const char *const *names = mlo_passes_optimize(&count);
    struct mlo_pass_request *requests = calloc(count, sizeof *requests);
    if (!requests)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < count; i++)
        requests[i].name = names[i];
    enum mlo_status status = mlo_passes_run(model, requests, count, &driver, err);
    json_decref(driver.report);
    free(requests);
    return status;
}

static enum mlo_status print_rows(const struct mlo_cli *cli, const struct mlo_sensitivity *s,
                                  const struct mlo_judge *judge, struct mlo_error *err)
{
    if (cli->json) {
        json_t *all = json_pack("{s:s,s:s?,s:o}", "model", cli->args[0], "metric",
                                judge ? judge->metric.name : NULL, "nodes", mlo_sensitivity_json(s));
        enum mlo_status status = mlo_cli_print_json(all, err);
        json_decref(all);
        return status;
    }
    struct mlo_table table;
    char head[96];
    bool points = judge && strcmp(judge->metric.row->unit, "fraction") == 0;
    snprintf(head, sizeof head, "node|op|SQNR dB>|multiply-adds>%s%s%s", judge ? "|drop in " : "",
             judge ? judge->metric.name : "", judge ? " (95%)" : "");
    mlo_table_init(&table, head);
    for (size_t i = 0; i < s->count; i++) {
        const struct mlo_sensitivity_row *row = &s->rows[i];
        char db[24], macs[24], drop[96];
        snprintf(db, sizeof db, "%.1f", row->sqnr_db);
        snprintf(macs, sizeof macs, "%.0f", row->macs);
        if (points)
            snprintf(drop, sizeof drop, "%+.2f pt [%+.2f, %+.2f]", 100 * row->drop.value, 100 * row->drop.low,
                     100 * row->drop.high);
        else
            snprintf(drop, sizeof drop, "%.4g [%.4g, %.4g]", row->drop.value, row->drop.low, row->drop.high);
        if (judge)
            mlo_table_row(&table, row->node, row->op, db, macs, drop);
        else
            mlo_table_row(&table, row->node, row->op, db, macs);
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status sensitivity_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *model = NULL;
    struct mlo_dataset *dataset = NULL, *select = NULL;
    struct mlo_judge judge = {0};
    struct mlo_sensitivity found = {0};
    struct mlo_cli_progress progress;
    json_t *options = NULL;
    const char *metric = mlo_cli_opt(cli, "metric");
    int64_t threads, samples;
    bool judged = mlo_cli_has(cli, "select");
    MLO_TRY(mlo_cli_int(cli, "threads", mlo_cpu_count(), 1, 1024, &threads, err));
    MLO_TRY(mlo_cli_int(cli, "samples", 64, 1, INT64_MAX, &samples, err));
    if (metric && !judged) {
        status = mlo_error_set(err, MLO_EUSAGE, "--metric is of the labelled data of --select");
        goto out;
    }
    MLO_TRY(read_options(cli, &options, err));
    MLO_TRY(mlo_local_model(cli->args[0], &model, err));
    MLO_TRY(mlo_local_dataset(cli, model, &dataset, err));
    if (judged)
        MLO_TRY(mlo_local_dataset_at(cli, mlo_cli_opt(cli, "select"), 0, model, &select, err));
    MLO_TRY(optimize(model, err));
    if (judged)
        MLO_TRY(mlo_judge_init(&judge, model, select, metric ? metric : "top1", (unsigned)threads, 0, err));
    mlo_cli_progress_start(&progress, cli, "sensitivity");
    const struct mlo_sensitivity_request request = {.model = model,
                                                    .options = options,
                                                    .dataset = dataset,
                                                    .samples = samples,
                                                    .judge = judged ? &judge : NULL,
                                                    .threads = (unsigned)threads,
                                                    .progress = mlo_cli_progress,
                                                    .progress_arg = &progress};
    status = mlo_sensitivity_observe(request, &found, err);
    mlo_cli_progress_end(&progress);
    MLO_TRY(status);
    MLO_TRY(print_rows(cli, &found, judged ? &judge : NULL, err));
out:
    mlo_sensitivity_clear(&found);
    mlo_judge_clear(&judge);
    mlo_dataset_close(dataset);
    mlo_dataset_close(select);
    json_decref(options);
    mlo_model_free(model);
    return status;
}

static const struct mlo_cli_option options_table[] = {
    {"data", 0, "FILE", "calibration data: npz, dataset.json, or IDX pair images.gz,labels.gz"},
    {"select", 0, "FILE", "labelled data: adds the drop in a metric, all of it run once for every node"},
    {"metric", 0, "NAME", "of --select (top1)"},
    {"samples", 0, "N", "so many of --data are run for the SQNR (64)"},
    {"target", 0, "NAME", "the runtime that the model would be quantized for"},
    {"scheme", 0, "TYPE", "of the weights: int8 or uint8"},
    {"activations", 0, "TYPE", "uint8, int8, uint16 or int16 (as the target wants)"},
    {"calibrator", 0, "NAME", "minmax, moving_average, percentile, entropy or mse"},
    {"exclude", 0, "NODE[,NODE…]", "nodes that stay in float"},
    MLO_OPTION_LIMIT,
    MLO_OPTION_NORMALIZE,
    MLO_OPTION_MAP,
    MLO_OPTION_POSTPROCESS,
    {"threads", 0, "N", "threads (all); they do not change the result"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_sensitivity = {
    .name = "sensitivity",
    .group = "Local (no server needed)",
    .run = sensitivity_run,
    .options = options_table,
    .positional = "MODEL.onnx --data CALIB.npz",
    .min_args = 1,
    .max_args = 1,
    .help = "what quantizing each node alone does to the outputs",
    .detail = "  mlopt sensitivity m.onnx --data calib.npz\n"
              "  mlopt sensitivity m.onnx --data calib.npz --select labelled.npz --metric top1 -o json\n"
              "The model is optimized first, as recipes do; the worst node comes first.\n",
};
