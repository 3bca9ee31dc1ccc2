/* search: says what a run tries next, from what it measured so far. It runs no model; its jobs are planned by
 * who completes it (pipeline/service/search.c). */
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/decision.h"
#include "pipeline/steps/search.h"
#include "pipeline/steps/step_impl.h"

static const struct mlo_option_spec OPTIONS[] = {
    {.name = "goal",
     .type = MLO_OPT_STRING,
     .fallback = "accuracy_drop<=0.5pt, min latency",
     .description = "Upper bounds of accuracy_drop, latency_p50, latency_p99, size, and what is made least"},
    {.name = "metric", .type = MLO_OPT_STRING, .fallback = "top1", .description = "The metric of accuracy"},
    {.name = "prune",
     .type = MLO_OPT_STRINGS,
     .fallback = "none",
     .description = "Shares of the multiply-adds that go by structured pruning, as none and 30%"},
    {.name = "round",
     .type = MLO_OPT_INTS,
     .fallback = "8",
     .min = 1,
     .max = 64,
     .description = "What is left of channels is a multiple of this, and from 16 on two of them at least"},
    {.name = "precision",
     .type = MLO_OPT_STRINGS,
     .fallback = "int8,float",
     .description =
         "float, fp16, int8, int8-dynamic, int8-weights, int4-weights, int4-gptq, int4-all, sparse"},
    {.name = "sparsity",
     .type = MLO_OPT_STRINGS,
     .fallback = "50%",
     .description = "Shares of the weights that are zero in sparse, as 50%; or 2:4"},
    {.name = "calibrator",
     .type = MLO_OPT_STRINGS,
     .fallback = "mse",
     .description = "Calibrators of int8 (those of the step quantize)"},
    {.name = "rounding",
     .type = MLO_OPT_STRINGS,
     .fallback = "nearest",
     .description = "Roundings of int8 (those of the step quantize)"},
    {.name = "mixed",
     .type = MLO_OPT_STRINGS,
     .fallback = "none",
     .description = "Budgets of int8's mixed precision, as none and 0.3pt"},
    {.name = "screen",
     .type = MLO_OPT_INT,
     .fallback = "1000",
     .min = 1,
     .max = 1 << 30,
     .description =
         "Samples of the data of the role select that all candidates are judged on first; all, where "
         "that takes no longer than timing them"},
    {.name = "keep",
     .type = MLO_OPT_FLOAT,
     .fallback = "0.5",
     .min = 0.05,
     .max = 1,
     .description = "The share of them that is judged on all samples after that"},
    {.name = "front",
     .type = MLO_OPT_INT,
     .fallback = "8",
     .min = 1,
     .max = 64,
     .description = "So many points of the front at most are evaluated at the end"},
    {.name = "batch",
     .type = MLO_OPT_INT,
     .fallback = "1",
     .min = 1,
     .max = 4096,
     .description = "The batch size of latencies"},
    {.name = "threads",
     .type = MLO_OPT_INTS,
     .fallback = "1",
     .min = 1,
     .max = 1024,
     .description = "Threads of the engine; the source is timed with the first"},
    {.name = "seconds",
     .type = MLO_OPT_FLOAT,
     .fallback = "1.5",
     .min = 0.05,
     .max = 3600,
     .description = "Measuring time per model of a latency"},
    {.name = "rounds",
     .type = MLO_OPT_INT,
     .fallback = "12",
     .min = 2,
     .max = 1000,
     .description = "Processes per model of a latency"},
    {.name = "foresee",
     .type = MLO_OPT_BOOL,
     .fallback = "true",
     .description = "Tries each value alone, and then what these promise together; else all that is listed"},
    {.name = "together",
     .type = MLO_OPT_INT,
     .fallback = "4",
     .min = 1,
     .max = 64,
     .description = "Candidates that are begun at once; after them it is asked again what comes next"},
    {.name = "jobs",
     .type = MLO_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = 400,
     .description = "The budget of jobs that do work; 0: none"},
    {.name = "time", .type = MLO_OPT_STRING, .fallback = "none", .description = "The budget of time, as 30m"},
    {.name = "cpu",
     .type = MLO_OPT_STRING,
     .fallback = "none",
     .description = "The budget of CPU time of its jobs, as 2h"},
    {.name = "cost",
     .type = MLO_OPT_FLOAT,
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .description = "The budget of money, by the two prices that follow; 0: none"},
    {.name = "cpu_hour",
     .type = MLO_OPT_FLOAT,
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .description = "What an hour of CPU time of its jobs costs, in the unit of cost"},
    {.name = "gpu_hour",
     .type = MLO_OPT_FLOAT,
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .description = "What an hour of a GPU that they hold costs"},
    {NULL},
};

/* A metric that wants labels must find them before anything is made. */
static enum mlo_status check_labels(const struct mlo_step_context *ctx, const char *path, const char *role,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_dataset *dataset = NULL;
    struct mlo_metric_use metric;
    struct mlo_tensor target = {0};
    MLO_TRY(mlo_metric_find(mlo_json_str(ctx->options, "metric", ""), &metric, err));
    MLO_TRY(mlo_step_open_dataset(ctx, path, 1, &dataset, err));
    MLO_TRY(mlo_dataset_target(dataset, &target, err));
    if (!target.data && !(metric.row->needs & MLO_METRIC_REFERENCE)) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "a search by '%s' needs labels, and the data of the role '%s' has none",
                               metric.name, role);
        mlo_error_where(err, "data.%s", role);
        mlo_error_hint(err, "push the data with labels, or search by a metric that compares with the source, "
                            "such as --set search.metric=agreement");
    }
out:
    mlo_tensor_clear(&target);
    mlo_dataset_close(dataset);
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    json_t *decision = NULL;
    if (!ctx->run) {
        mlo_error_set(err, MLO_EUNSUPPORTED, "a search is a run of a server: its candidates are jobs");
        mlo_error_hint(err, "submit it: mlopt submit PROJECT/MODEL --goal GOAL --budget 30m");
        return MLO_EUNSUPPORTED;
    }
    MLO_TRY(mlo_search_check(ctx->options, err));
    if (json_array_size(json_object_get(ctx->run, "jobs")) == 0) {
        MLO_TRY(check_labels(ctx, ctx->select_path, "select", err));
        MLO_TRY(check_labels(ctx, ctx->evaluate_path, "evaluate", err));
    }
    MLO_TRY(mlo_search_decide(ctx->options, ctx->run, &decision, err));
    out->decision_path = mlo_fs_join(ctx->out_dir, "decision.json", NULL);
    out->report = json_pack("{s:O}", "search", decision);
    if (!out->report || !out->decision_path) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_decision_save(decision, out->decision_path, err));
out:
    json_decref(decision);
    return status;
}

const struct mlo_step mlo_step_search = {
    .name = "search",
    .kind = MLO_STEP_OBSERVE,
    .revision = 4,
    .needs_calibrate = true,
    .needs_select = true,
    .needs_evaluate = true,
    .reads_run = true,
    .makes_decision = true,
    .check = mlo_search_check,
    .options = OPTIONS,
    .run = run,
    .description = "tries combinations of compression steps and ends on the Pareto front",
};
