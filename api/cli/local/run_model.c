#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

static enum mlo_status print_outputs(const struct mlo_cli *cli, const struct mlo_graph *g,
                                     const struct mlo_tensor *outputs, const char *out, const char *engine,
                                     int64_t samples, double seconds, struct mlo_error *err)
{
    char type[128], count[32], total[32];
    if (cli->json) {
        json_t *list = json_array();
        for (int i = 0; i < g->output_count; i++)
            json_array_append_new(list, json_pack("{s:s,s:s}", "name", g->outputs[i]->name, "type",
                                                  mlo_tensor_describe(&outputs[i], type, sizeof type)));
        json_t *all = json_pack("{s:s,s:s,s:I,s:f,s:o}", "out", out, "engine", engine, "samples",
                                (json_int_t)samples, "seconds", seconds, "outputs", list);
        enum mlo_status status = mlo_cli_print_json(all, err);
        json_decref(all);
        return status;
    }
    struct mlo_table table;
    mlo_table_init(&table, "output|type|samples>|time>");
    for (int i = 0; i < g->output_count; i++) {
        snprintf(count, sizeof count, "%lld", (long long)samples);
        mlo_table_row(&table, g->outputs[i]->name, mlo_tensor_describe(&outputs[i], type, sizeof type), count,
                      mlo_cli_duration(seconds * 1e6, total));
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status run_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_subject subject = {0};
    const struct mlo_model *model = NULL;
    struct mlo_dataset *dataset = NULL;
    struct mlo_tensor *outputs = NULL;
    struct mlo_npz_array *arrays = NULL;
    struct mlo_cli_progress progress;
    const char *out = NULL;
    int count = 0;
    MLO_TRY(mlo_cli_required(cli, "out", &out, err));
    MLO_TRY(mlo_cli_check_output(out, err));
    MLO_TRY(mlo_local_subject(cli, cli->args[0], &subject, err));
    MLO_TRY(mlo_cli_int(cli, "batch", 0, 1, 65536, &subject.options.batch, err));
    model = subject.model;
    MLO_TRY(mlo_local_dataset(cli, model, &dataset, err));
    count = model->graph->output_count;
    outputs = calloc((size_t)count + 1, sizeof *outputs);
    arrays = calloc((size_t)count + 1, sizeof *arrays);
    if (!outputs || !arrays) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_cli_progress_start(&progress, cli, "run");
    uint64_t begin = mlo_clock_ns();
    status = mlo_run_dataset(model, dataset, &subject.options, outputs, mlo_cli_progress, &progress, err);
    mlo_cli_progress_end(&progress);
    if (status != MLO_OK)
        goto out;
    double seconds = (double)(mlo_clock_ns() - begin) * 1e-9;
    for (int i = 0; i < count; i++)
        arrays[i] = (struct mlo_npz_array){model->graph->outputs[i]->name, &outputs[i]};
    MLO_TRY(mlo_npz_write(out, arrays, (size_t)count, err));
    MLO_TRY(print_outputs(cli, model->graph, outputs, out, subject.options.engine->name,
                          mlo_dataset_count(dataset), seconds, err));
out:
    for (int i = 0; outputs && i < count; i++)
        mlo_tensor_clear(&outputs[i]);
    free(outputs);
    free(arrays);
    mlo_dataset_close(dataset);
    mlo_local_subject_close(&subject);
    return status;
}

static const struct mlo_cli_option options_table[] = {
    MLO_OPTION_DATA,
    {"out", 0, "OUT.npz", "where the outputs are written, one array each"},
    MLO_OPTION_LIMIT,
    MLO_OPTION_NORMALIZE,
    MLO_OPTION_MAP,
    MLO_OPTION_ENGINE,
    MLO_OPTION_THREADS,
    {"batch", 0, "N", "samples at a time (chosen)"},
    MLO_OPTION_PLAN,
    MLO_OPTION_TRUST,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_run = {
    .name = "run",
    .group = "Local (no server needed)",
    .run = run_run,
    .options = options_table,
    .positional = "MODEL.onnx|FILE.plan --data D.npz --out OUT.npz",
    .min_args = 1,
    .max_args = 1,
    .help = "run a model over data and write its outputs",
};
