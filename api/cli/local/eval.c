#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

enum { MAX_METRICS = 16 };

struct side {
    const char *path;
    struct mlo_model *model;
    struct mlo_tensor *outputs;
};

static void side_close(struct side *s)
{
    for (int i = 0; s->outputs && i < s->model->graph->output_count; i++)
        mlo_tensor_clear(&s->outputs[i]);
    free(s->outputs);
    mlo_model_free(s->model);
}

static enum mlo_status side_run(const struct mlo_cli *cli, struct side *s, struct mlo_dataset *dataset,
                                const struct mlo_run_options *options, struct mlo_error *err)
{
    struct mlo_cli_progress progress;
    s->outputs = calloc((size_t)s->model->graph->output_count + 1, sizeof *s->outputs);
    if (!s->outputs)
        return mlo_error_nomem(err);
    mlo_cli_progress_start(&progress, cli, mlo_fs_basename(s->path));
    enum mlo_status status =
        mlo_run_dataset(s->model, dataset, options, s->outputs, mlo_cli_progress, &progress, err);
    mlo_cli_progress_end(&progress);
    return status;
}

/* --metric, which may be repeated or a list with commas. */
static enum mlo_status find_metrics(const struct mlo_cli *cli, const struct mlo_metric **metrics,
                                    size_t *count, struct mlo_error *err)
{
    const char *text;
    *count = 0;
    for (size_t i = 0; (text = mlo_cli_opt_at(cli, "metric", i)); i++) {
        while (*text) {
            char name[48];
            size_t n = strcspn(text, ",");
            snprintf(name, sizeof name, "%.*s", (int)MLO_MIN(n, sizeof name - 1), text);
            text += n + (text[n] == ',');
            if (*count == MAX_METRICS)
                return mlo_error_set(err, MLO_EUSAGE, "more than %d metrics", MAX_METRICS);
            enum mlo_status status = mlo_metric_find(name, &metrics[*count], err);
            if (status != MLO_OK)
                return status;
            (*count)++;
        }
    }
    if (*count)
        return MLO_OK;
    mlo_error_set(err, MLO_EUSAGE, "--metric NAME is required");
    mlo_error_hint(err, "mlopt eval --help");
    return MLO_EUSAGE;
}

struct evaluation {
    const struct mlo_metric *metric;
    struct mlo_estimate a, b, difference;
    bool paired;
    double p_value; /* McNemar; negative: not of 0/1 scores */
};

static enum mlo_status evaluate(struct evaluation *e, const struct side *a, const struct side *b, int output,
                                const struct mlo_dataset *dataset, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_metric *m = e->metric;
    int64_t n = mlo_dataset_count(dataset);
    const int64_t *labels = mlo_dataset_labels(dataset);
    const struct mlo_tensor *reference = b->model ? &b->outputs[output] : NULL;
    double *x = calloc((size_t)n + 1, sizeof *x), *y = calloc((size_t)n + 1, sizeof *y);
    if (!x || !y) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (m->needs_labels && !labels) {
        status = mlo_error_set(err, MLO_EINVAL, "metric %s needs labels, and the data has none", m->name);
        mlo_error_hint(err, "name the array of labels 'y', or use mse or cosine with --against");
        goto out;
    }
    if (m->needs_reference && !reference) {
        status = mlo_error_set(err, MLO_EUSAGE, "metric %s compares with another model", m->name);
        mlo_error_hint(err, "add --against BASE.onnx");
        goto out;
    }
    MLO_TRY(m->scores(&a->outputs[output], labels, reference, x, err));
    mlo_estimate_mean(x, n, m->proportion, &e->a);
    e->paired = reference && !m->needs_reference;
    e->p_value = -1;
    if (e->paired) {
        MLO_TRY(m->scores(reference, labels, NULL, y, err));
        mlo_estimate_mean(y, n, m->proportion, &e->b);
        mlo_estimate_paired(x, y, n, m->proportion, &e->difference);
        if (m->proportion)
            e->p_value = mlo_mcnemar(x, y, n);
    }
out:
    free(x);
    free(y);
    return status;
}

static json_t *evaluation_json(const struct evaluation *e)
{
    json_t *o = json_pack("{s:s,s:s,s:o}", "metric", e->metric->name, "unit", e->metric->unit, "estimate",
                          mlo_local_estimate_json(&e->a));
    if (e->paired) {
        json_object_set_new(o, "against", mlo_local_estimate_json(&e->b));
        json_object_set_new(o, "difference", mlo_local_estimate_json(&e->difference));
    }
    if (e->p_value >= 0)
        json_object_set_new(o, "mcnemar_p", json_real(e->p_value));
    return o;
}

static void interval(const struct evaluation *e, const struct mlo_estimate *s, bool difference, char out[96])
{
    if (strcmp(e->metric->unit, "fraction") == 0)
        snprintf(out, 96, difference ? "%+.2f pt [%+.2f, %+.2f]" : "%.2f%% [%.2f, %.2f]", 100 * s->value,
                 100 * s->low, 100 * s->high);
    else
        snprintf(out, 96, "%.6g [%.6g, %.6g]", s->value, s->low, s->high);
}

static enum mlo_status print_result(const struct mlo_cli *cli, const struct evaluation *list, size_t count,
                                    const struct side *a, const struct side *b, const char *engine, int64_t n,
                                    struct mlo_error *err)
{
    if (cli->json) {
        json_t *metrics = json_array();
        for (size_t i = 0; i < count; i++)
            json_array_append_new(metrics, evaluation_json(&list[i]));
        json_t *all =
            json_pack("{s:s,s:s?,s:s,s:s,s:I,s:o}", "model", a->path, "against", b->path, "engine", engine,
                      "protocol", MLO_EVAL_PROTOCOL, "samples", (json_int_t)n, "metrics", metrics);
        enum mlo_status status = mlo_cli_print_json(all, err);
        json_decref(all);
        return status;
    }
    struct mlo_table table;
    mlo_table_init(&table, b->path ? "metric|value (95%)|against (95%)|difference, paired (95%)|p|samples>"
                                   : "metric|value (95%)|samples>");
    for (size_t i = 0; i < count; i++) {
        char value[96], against[96] = "", difference[96] = "", p[24] = "", samples[24];
        const struct evaluation *e = &list[i];
        interval(e, &e->a, false, value);
        snprintf(samples, sizeof samples, "%lld", (long long)n);
        if (e->paired) {
            interval(e, &e->b, false, against);
            interval(e, &e->difference, true, difference);
        }
        if (e->p_value >= 0)
            snprintf(p, sizeof p, "%.3g", e->p_value);
        if (b->path)
            mlo_table_row(&table, e->metric->name, value, against, difference, p, samples);
        else
            mlo_table_row(&table, e->metric->name, value, samples);
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status eval_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct side a = {.path = cli->args[0]}, b = {.path = mlo_cli_opt(cli, "against")};
    struct mlo_dataset *dataset = NULL;
    struct mlo_run_options options;
    const struct mlo_metric *metrics[MAX_METRICS];
    struct evaluation list[MAX_METRICS] = {0};
    size_t count = 0;
    int64_t output;
    MLO_TRY(find_metrics(cli, metrics, &count, err));
    MLO_TRY(mlo_cli_int(cli, "output-index", 0, 0, 1000, &output, err));
    MLO_TRY(mlo_local_engine(cli, &options, err));
    MLO_TRY(mlo_local_model(a.path, &a.model, err));
    if (b.path)
        MLO_TRY(mlo_local_model(b.path, &b.model, err));
    MLO_TRY(mlo_local_dataset(cli, a.model, &dataset, err));
    if (b.model)
        MLO_TRY(mlo_dataset_check(dataset, b.model, err));
    if (output >= a.model->graph->output_count || (b.model && output >= b.model->graph->output_count)) {
        status = mlo_error_set(err, MLO_EUSAGE, "there is no output %lld", (long long)output);
        goto out;
    }
    MLO_TRY(side_run(cli, &a, dataset, &options, err));
    if (b.model)
        MLO_TRY(side_run(cli, &b, dataset, &options, err));
    for (size_t i = 0; i < count; i++) {
        list[i].metric = metrics[i];
        MLO_TRY(evaluate(&list[i], &a, &b, (int)output, dataset, err));
    }
    MLO_TRY(
        print_result(cli, list, count, &a, &b, options.engine->version(), mlo_dataset_count(dataset), err));
out:
    side_close(&a);
    side_close(&b);
    mlo_dataset_close(dataset);
    return status;
}

static const struct mlo_cli_option options_table[] = {
    MLO_OPTION_DATA,
    {"metric", 0, "NAME", "top1, top5, mse, cosine …; a list with commas is fine", NULL, true},
    {"against", 0, "BASE.onnx", "compare with this model on the same samples"},
    MLO_OPTION_LIMIT,
    MLO_OPTION_NORMALIZE,
    MLO_OPTION_MAP,
    MLO_OPTION_ENGINE,
    MLO_OPTION_THREADS,
    {"output-index", 0, "N", "which output of the model is judged (0)"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_eval = {
    .name = "eval",
    .group = "Local (no server needed)",
    .run = eval_run,
    .options = options_table,
    .positional = "MODEL.onnx --data EVAL.npz --metric top1",
    .min_args = 1,
    .max_args = 1,
    .help = "measure a model's accuracy, with its interval",
};
