#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

enum { MAX_METRICS = 16 };

struct side {
    const char *path;
    struct mlo_subject subject;
    const struct mlo_model *model; /* the subject's */
    struct mlo_tensor *outputs;    /* what metrics read: postprocessed where asked for */
    int output_count;
};

static void side_close(struct side *s)
{
    mlo_outputs_free(s->outputs, s->output_count);
    mlo_local_subject_close(&s->subject);
}

static enum mlo_status side_open(const struct mlo_cli *cli, struct side *s, struct mlo_error *err)
{
    enum mlo_status status = mlo_local_subject(cli, s->path, &s->subject, err);
    s->model = s->subject.model;
    return status;
}

static enum mlo_status side_run(const struct mlo_cli *cli, struct side *s, struct mlo_dataset *dataset,
                                struct mlo_error *err)
{
    struct mlo_cli_progress progress;
    mlo_cli_progress_start(&progress, cli, mlo_fs_basename(s->path));
    enum mlo_status status = mlo_run_evaluation(s->model, dataset, &s->subject.options, &s->outputs,
                                                &s->output_count, mlo_cli_progress, &progress, err);
    mlo_cli_progress_end(&progress);
    return status;
}

/* --metric, which may be repeated or a list with commas. */
static enum mlo_status find_metrics(const struct mlo_cli *cli, struct mlo_metric_use *metrics, size_t *count,
                                    struct mlo_error *err)
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
    struct mlo_metric_use metric;
    struct mlo_estimate a, b, difference;
    bool paired;
    double p_value; /* McNemar; negative: not of 0/1 scores */
};

static enum mlo_status evaluate(struct evaluation *e, const struct mlo_metric_data *given,
                                struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_scores *x = NULL, *y = NULL;
    struct mlo_metric_data data = *given;
    e->p_value = -1;
    e->paired = data.reference && !(e->metric.row->needs & MLO_METRIC_REFERENCE);
    MLO_TRY(mlo_metric_score(&e->metric, &data, &x, err));
    MLO_TRY(mlo_scores_estimate(x, &e->a, err));
    if (e->paired) {
        data.output = data.reference;
        MLO_TRY(mlo_metric_score(&e->metric, &data, &y, err));
        MLO_TRY(mlo_scores_estimate(y, &e->b, err));
        MLO_TRY(mlo_scores_paired(x, y, &e->difference, err));
        e->p_value = mlo_scores_mcnemar(x, y);
    }
out:
    mlo_scores_free(x);
    mlo_scores_free(y);
    return status;
}

static json_t *evaluation_json(const struct evaluation *e)
{
    json_t *o = json_pack("{s:s,s:s,s:o}", "metric", e->metric.name, "unit", e->metric.row->unit, "estimate",
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
    if (strcmp(e->metric.row->unit, "fraction") == 0)
        snprintf(out, 96, difference ? "%+.2f pt [%+.2f, %+.2f]" : "%.2f%% [%.2f, %.2f]", 100 * s->value,
                 100 * s->low, 100 * s->high);
    else
        snprintf(out, 96, "%.6g [%.6g, %.6g]", s->value, s->low, s->high);
}

static enum mlo_status print_result(const struct mlo_cli *cli, const struct evaluation *list, size_t count,
                                    const struct side *a, const struct side *b, const char *engine,
                                    const struct mlo_dataset *dataset, struct mlo_error *err)
{
    const int64_t n = mlo_dataset_count(dataset);
    if (cli->json) {
        json_t *metrics = json_array();
        for (size_t i = 0; i < count; i++)
            json_array_append_new(metrics, evaluation_json(&list[i]));
        json_t *all =
            json_pack("{s:s,s:s?,s:s,s:s,s:s?,s:I,s:o}", "model", a->path, "against", b->path, "engine",
                      engine, "protocol", MLO_EVAL_PROTOCOL, "postprocess", mlo_dataset_postprocess(dataset),
                      "samples", (json_int_t)n, "metrics", metrics);
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
            mlo_table_row(&table, e->metric.name, value, against, difference, p, samples);
        else
            mlo_table_row(&table, e->metric.name, value, samples);
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status eval_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct side a = {.path = cli->args[0]}, b = {.path = mlo_cli_opt(cli, "against")};
    struct mlo_dataset *dataset = NULL;
    struct mlo_metric_use metrics[MAX_METRICS];
    struct mlo_tensor target = {0};
    struct evaluation list[MAX_METRICS] = {0};
    size_t count = 0;
    int64_t output;
    MLO_TRY(find_metrics(cli, metrics, &count, err));
    MLO_TRY(mlo_cli_int(cli, "output-index", 0, 0, 1000, &output, err));
    MLO_TRY(side_open(cli, &a, err));
    if (b.path)
        MLO_TRY(side_open(cli, &b, err));
    MLO_TRY(mlo_local_dataset(cli, a.model, &dataset, err));
    if (b.model)
        MLO_TRY(mlo_dataset_check(dataset, b.model, err));
    MLO_TRY(side_run(cli, &a, dataset, err));
    if (b.model)
        MLO_TRY(side_run(cli, &b, dataset, err));
    if (output >= a.output_count || (b.model && output >= b.output_count)) {
        status = mlo_error_set(err, MLO_EUSAGE, "there is no output %lld", (long long)output);
        goto out;
    }
    MLO_TRY(mlo_dataset_target(dataset, &target, err));
    struct mlo_metric_data data = {.output = &a.outputs[output],
                                   .reference = b.model ? &b.outputs[output] : NULL,
                                   .target = target.data ? &target : NULL,
                                   .groups = mlo_dataset_groups(dataset)};
    for (size_t i = 0; i < count; i++) {
        list[i].metric = metrics[i];
        MLO_TRY(evaluate(&list[i], &data, err));
    }
    MLO_TRY(print_result(cli, list, count, &a, &b, a.subject.options.engine->version(), dataset, err));
out:
    side_close(&a);
    side_close(&b);
    mlo_tensor_clear(&target);
    mlo_dataset_close(dataset);
    return status;
}

static const struct mlo_cli_option options_table[] = {
    MLO_OPTION_DATA,
    {"metric", 0, "NAME", "top1, f1, auc, mae, psnr, agreement, kl, ndcg10 …; a list with commas is fine",
     NULL, true},
    {"against", 0, "BASE.onnx", "compare with this model on the same samples"},
    MLO_OPTION_LIMIT,
    MLO_OPTION_NORMALIZE,
    MLO_OPTION_MAP,
    MLO_OPTION_POSTPROCESS,
    MLO_OPTION_ENGINE,
    MLO_OPTION_THREADS,
    MLO_OPTION_PLAN,
    MLO_OPTION_TRUST,
    {"output-index", 0, "N", "which output of the model is judged (0)"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_eval = {
    .name = "eval",
    .group = "Local (no server needed)",
    .run = eval_run,
    .options = options_table,
    .positional = "MODEL.onnx|FILE.plan --data EVAL.npz --metric top1",
    .min_args = 1,
    .max_args = 1,
    .help = "measure a model's accuracy, with its interval",
};
