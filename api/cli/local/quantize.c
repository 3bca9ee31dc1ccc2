#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

/* What a verb runs: its recipe, and the options of one step that have a flag of their own. */
struct derivation {
    const char *recipe, *step;
    const char *flags[8];
    bool fixed;    /* the verb has no options for another recipe, data or threads */
    bool observes; /* it ends with what the step observes, of one shard of the data */
};
static const struct derivation quantizing = {
    "int8-cpu",
    "quantize",
    {"target", "scheme", "form", "calibrator", "percentile", "activations", "exclude", "metric"}};
static const struct derivation observing = {
    "int8-cpu",
    "quantize",
    {"target", "scheme", "form", "calibrator", "percentile", "activations", "exclude"},
    .observes = true};
static const struct derivation exporting = {"qat-export", "qat-export", {"target", "form"}, true};

/* Whether some step cannot do without data. */
static bool needs_data(const struct mlo_recipe *recipe)
{
    for (size_t i = 0; i < recipe->step_count; i++) {
        const struct mlo_step *step = mlo_step_find(recipe->steps[i].name);
        if (step && step->kind == MLO_STEP_DERIVE && step->needs_calibrate)
            return true;
    }
    return false;
}

/* Whether --decision is a choice that was made before: without data to choose on. */
static bool follows(const struct mlo_cli *cli)
{
    return mlo_cli_has(cli, "decision") && !mlo_cli_has(cli, "select");
}

/* What the data of the role select is for: a step that asks for it, and --select, or neither. */
static enum mlo_status check_select(const struct mlo_cli *cli, const struct mlo_recipe *recipe,
                                    struct mlo_error *err)
{
    bool selects = false;
    for (size_t i = 0; i < recipe->step_count; i++) {
        const struct mlo_step *step = mlo_step_find(recipe->steps[i].name);
        selects = selects || (step && mlo_step_reads_select(step, recipe->steps[i].options));
    }
    if (selects == mlo_cli_has(cli, "select") || (!mlo_cli_has(cli, "select") && follows(cli)))
        return MLO_OK;
    if (selects) {
        mlo_error_set(err, MLO_EUSAGE, "--select LABELLED is required: the recipe judges a choice on it");
        mlo_error_hint(err,
                       "give labelled samples that are not used to evaluate the result afterwards, or the "
                       "--decision of an earlier search");
    } else {
        mlo_error_set(err, MLO_EUSAGE, "--select is read for a budget of accuracy only");
        mlo_error_hint(err, "add --accuracy-drop 0.5pt, or leave --select out");
    }
    return MLO_EUSAGE;
}

/* The recipe's postprocessing model is one of a registry: here it is a file. */
static enum mlo_status check_postprocess(const struct mlo_cli *cli, const struct mlo_recipe *recipe,
                                         struct mlo_error *err)
{
    bool given = mlo_cli_has(cli, "postprocess"),
         judged = mlo_cli_has(cli, "select") || mlo_cli_has(cli, "report");
    if (given && !judged)
        return mlo_error_set(err, MLO_EUSAGE,
                             "--postprocess is read where --select or --report makes a metric, and there is "
                             "neither");
    if (given || !judged || !recipe->postprocess)
        return MLO_OK;
    mlo_error_set(err, MLO_EUSAGE, "the recipe makes metrics of what '%.80s' makes of the outputs",
                  recipe->postprocess);
    mlo_error_hint(err, "give that model's file with --postprocess POST.onnx");
    return MLO_EUSAGE;
}

/* The step whose options the flags are: that of the verb, or the recipe's own way to quantize. */
static const char *flagged_step(const struct mlo_recipe *recipe, const char *usual)
{
    static const char *const OTHERS[] = {"quantize-dynamic", "quantize-weights", "round-weights"};
    for (size_t k = 0; k < MLO_COUNT(OTHERS); k++)
        for (size_t i = 0; i < recipe->step_count; i++)
            if (strcmp(recipe->steps[i].name, OTHERS[k]) == 0)
                return OTHERS[k];
    return usual;
}

static enum mlo_status load_recipe(const struct mlo_cli *cli, const struct derivation *what,
                                   struct mlo_recipe **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT, flag = MLO_BUF_INIT;
    struct mlo_recipe *recipe = NULL;
    const char *name = NULL, *assignment;
    char label[160];
    bool builtin;
    const char *scheme = what->fixed ? NULL : mlo_cli_opt(cli, "scheme");
    size_t size;
    bool whole = scheme && mlo_recipe_builtin(scheme, &size); /* int4-weights: a recipe, and no type */
    name = what->fixed ? NULL : mlo_cli_opt(cli, "recipe");
    if (!name)
        name = whole ? scheme : what->recipe;
    MLO_TRY(mlo_local_recipe_text(name, &text, &builtin, err));
    snprintf(label, sizeof label, "%s%s", name, builtin ? ".yaml" : "");
    MLO_TRY(mlo_recipe_parse_of_files(mlo_buf_str(&text), text.len, label, &recipe, err));
    for (size_t i = 0; !what->fixed && (assignment = mlo_cli_opt_at(cli, "set", i)); i++)
        MLO_TRY(mlo_recipe_set(recipe, assignment, err));
    for (size_t i = 0; i < MLO_COUNT(what->flags) && what->flags[i]; i++)
        if (mlo_cli_has(cli, what->flags[i]) && !(whole && strcmp(what->flags[i], "scheme") == 0)) {
            mlo_buf_reset(&flag);
            mlo_buf_printf(&flag, "%s.%s=%s", flagged_step(recipe, what->step), what->flags[i],
                           mlo_cli_opt(cli, what->flags[i])); /* a list of nodes has any length */
            if (!mlo_buf_ok(&flag)) {
                status = mlo_error_nomem(err);
                goto out;
            }
            MLO_TRY(mlo_recipe_set(recipe, mlo_buf_str(&flag), err));
        }
    if (!what->fixed && !what->observes &&
        mlo_cli_has(cli, "accuracy-drop")) { /* a text, also where it is a number */
        char set[128];
        snprintf(set, sizeof set, "quantize.accuracy_drop=\"%s\"", mlo_cli_opt(cli, "accuracy-drop"));
        MLO_TRY(mlo_recipe_set(recipe, set, err));
    }
    if (!what->fixed && !what->observes && mlo_cli_has(cli, "time-limit")) {
        char set[128];
        snprintf(set, sizeof set, "quantize.time_limit=%.60s", mlo_cli_opt(cli, "time-limit"));
        MLO_TRY(mlo_recipe_set(recipe, set, err));
    }
    if (!what->fixed && !what->observes)
        MLO_TRY(check_select(cli, recipe, err));
    if (!what->fixed && !what->observes)
        MLO_TRY(check_postprocess(cli, recipe, err));
    *out = recipe;
    recipe = NULL;
out:
    mlo_recipe_free(recipe);
    mlo_buf_clear(&text);
    mlo_buf_clear(&flag);
    return status;
}

struct job {
    const struct mlo_cli *cli;
    const struct mlo_recipe *recipe;
    const char *scratch, *source, *data, *select, *evaluate;
    const struct mlo_dataset_options *reading;
    unsigned threads;
    char *checkpoints;       /* folder, or NULL; owned */
    const char **statistics; /* files of shards, ended by NULL, or NULL; owned */
    int64_t shard, shards;   /* shards 0: this is not observing */
    const char *out;
    bool observed;
    const char *decision; /* file, or NULL: followed without `select`, else written */
    char *artifact;       /* of the last step; owned; NULL before the first */
    char *parent;         /* what that step was given; owned; NULL: the source */
    json_t *steps;        /* array of {"step","options","report","seconds"} */
};

static enum mlo_status run_step(struct job *job, size_t index, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_recipe_step *row = &job->recipe->steps[index];
    const struct mlo_step *step = mlo_step_find(row->name);
    struct mlo_step_result result = {0};
    struct mlo_cli_progress progress;
    char number[32];
    char *dir = NULL;
    if (!step)
        return mlo_error_set(err, MLO_EINTERNAL, "the recipe names a step '%s' that is not there", row->name);
    if (step->kind != MLO_STEP_DERIVE)
        return MLO_OK; /* measuring is what `eval` and `bench` are for */
    snprintf(number, sizeof number, "step-%zu", index);
    dir = mlo_fs_join(job->scratch, number, NULL);
    if (!dir)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_fs_mkdirs(dir, err));
    mlo_cli_progress_start(&progress, job->cli, row->name);
    const struct mlo_step_context ctx = {
        .options = row->options,
        .model_path = job->artifact ? job->artifact : job->source,
        .source_path = job->source,
        .calibrate_path = mlo_step_reads_calibrate(step) ? job->data : NULL,
        .select_path = mlo_step_reads_select(step, row->options) ? job->select : NULL,
        .reading = job->reading,
        .out_dir = dir,
        .threads = job->threads,
        .checkpoint_dir = job->checkpoints,
        .shard = step->shards ? job->shard : 0,
        .shards = step->shards ? job->shards : 0,
        .statistics_out = step->shards && job->shards ? job->out : NULL,
        .statistics = step->shards ? job->statistics : NULL,
        .decision_path = step->selects && !job->select ? job->decision : NULL,
        .decision_out = mlo_step_reads_select(step, row->options) && job->select ? job->decision : NULL,
        .progress = mlo_cli_progress,
        .progress_arg = &progress,
    };
    uint64_t begin = mlo_clock_ns();
    status = step->run(&ctx, &result, err);
    mlo_cli_progress_end(&progress);
    if (status != MLO_OK) {
        mlo_error_prefix(err, "step %s", row->name);
        goto out;
    }
    job->observed = ctx.shards > 0;
    if (!result.artifact_path && !job->observed) {
        status = mlo_error_set(err, MLO_EINTERNAL, "step %s made no model", row->name);
        goto out;
    }
    free(job->parent);
    job->parent = job->artifact;
    job->artifact = result.artifact_path;
    result.artifact_path = NULL;
    json_array_append_new(job->steps, json_pack("{s:s,s:O,s:O?,s:f}", "step", row->name, "options",
                                                row->options, "report", result.report, "seconds",
                                                (double)(mlo_clock_ns() - begin) * 1e-9));
out:
    mlo_step_result_clear(&result);
    free(dir);
    return status;
}

/* What steps and passes left alone, raised or found odd: on stderr, the first few of each. */
static void print_notes(const struct mlo_cli *cli, const json_t *notes)
{
    enum { SHOWN = 12 };
    size_t i;
    json_t *note;
    json_array_foreach((json_t *)notes, i, note)
    {
        const char *node = mlo_json_str(note, "node", "");
        if (i < SHOWN)
            mlo_cli_note(cli, "%s%s%s", node, *node ? ": " : "", mlo_json_str(note, "note", ""));
    }
    if (json_array_size(notes) > SHOWN)
        mlo_cli_note(cli, "and %zu more of these (all are in -o json)", json_array_size(notes) - SHOWN);
}

/* How a budget of accuracy was kept. */
static void print_decision(const struct mlo_cli *cli, const json_t *decision)
{
    const json_t *drop = json_object_get(decision, "drop");
    if (decision)
        mlo_cli_note(cli, "drop in %s %.4g [%.4g, %.4g], budget %s; %zu nodes given back, of %zu mixes tried",
                     mlo_json_str(decision, "metric", ""), mlo_json_f64(drop, "value", 0),
                     mlo_json_f64(drop, "low", 0), mlo_json_f64(drop, "high", 0),
                     mlo_json_str(decision, "budget", ""),
                     json_array_size(json_object_get(decision, "given_back")),
                     json_array_size(json_object_get(decision, "tried")));
}

/* A budget that does not hold yet: the file is there, and the exit code says that it is not what was asked.
 */
static enum mlo_status check_decisions(const struct job *job, const char *out, struct mlo_error *err)
{
    size_t i;
    json_t *row;
    json_array_foreach(job->steps, i, row)
    {
        const json_t *decision = json_object_get(json_object_get(row, "report"), "mixed_precision");
        const json_t *drop = json_object_get(decision, "drop");
        if (mlo_json_bool(decision, "holds", true))
            continue;
        mlo_error_set(err, MLO_EEXPECT,
                      "the search ended before the budget of %s held; %s is the best mix so far: it "
                      "drops %s by %.4g [%.4g, %.4g]",
                      mlo_json_str(decision, "budget", ""), out, mlo_json_str(decision, "metric", ""),
                      mlo_json_f64(drop, "value", 0), mlo_json_f64(drop, "low", 0),
                      mlo_json_f64(drop, "high", 0));
        mlo_error_hint(err, "give it more time: it goes on where it was; or a larger budget");
        return MLO_EEXPECT;
    }
    return MLO_OK;
}

/* How far the outputs are from the source's, where there was no data to say more. */
static enum mlo_status print_deviation(const json_t *deviation, struct mlo_error *err)
{
    size_t i;
    json_t *row;
    const char *why = mlo_json_str(deviation, "unavailable", NULL);
    enum mlo_status status = MLO_OK;
    if (!deviation)
        return MLO_OK;
    if (why)
        return mlo_cli_print(err, "outputs were not compared with the source's on synthetic inputs: %s\n",
                             why);
    MLO_TRY(mlo_cli_print(err,
                          "outputs beside the source's on %lld synthetic inputs (no data was given: this "
                          "says nothing of accuracy)\n",
                          (long long)mlo_json_i64(deviation, "samples", 0)));
    json_array_foreach(json_object_get(deviation, "outputs"), i, row)
    {
        const json_t *db = json_object_get(row, "sqnr_db");
        char sqnr[48] = "no noise";
        if (json_is_number(db))
            snprintf(sqnr, sizeof sqnr, "signal to noise %.1f dB", json_number_value(db));
        MLO_TRY(mlo_cli_print(err, "  %s: cosine %.6f, %s, largest difference %.4g\n",
                              mlo_json_str(row, "output", ""), mlo_json_f64(row, "cosine", 0), sqnr,
                              mlo_json_f64(row, "max_abs", 0)));
    }
out:
    return status;
}

/* "quantize 54, correct-bias 54": a pass that ran once a layer is named once. */
static void print_passes(const json_t *passes, struct mlo_buf *out)
{
    size_t i, k;
    const json_t *pass, *other;
    json_array_foreach(passes, i, pass)
    {
        const char *name = mlo_json_str(pass, "pass", "");
        int64_t changes = 0;
        size_t first = i;
        json_array_foreach(passes, k, other)
        {
            if (strcmp(mlo_json_str(other, "pass", ""), name) != 0)
                continue;
            first = MLO_MIN(first, k);
            changes += mlo_json_i64(other, "changes", 0);
        }
        if (first == i && changes)
            mlo_buf_printf(out, "%s%s %lld", out->len ? ", " : "", name, (long long)changes);
    }
}

static enum mlo_status print_result(const struct job *job, const json_t *before, const json_t *after,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (job->cli->json) {
        json_t *all = json_pack("{s:s,s:O,s:O,s:O}", "recipe", job->recipe->name, "source", before, "result",
                                after, "steps", job->steps);
        status = mlo_cli_print_json(all, err);
        json_decref(all);
        return status;
    }
    struct mlo_table table;
    size_t i;
    json_t *row;
    mlo_table_init(&table, "step|time>|changes by pass");
    json_array_foreach(job->steps, i, row)
    {
        char time[32];
        struct mlo_buf notes = MLO_BUF_INIT;
        json_t *pass;
        size_t k;
        print_passes(json_object_get(json_object_get(row, "report"), "passes"), &notes);
        print_notes(job->cli, json_object_get(json_object_get(row, "report"), "notes"));
        json_array_foreach(json_object_get(json_object_get(row, "report"), "passes"), k, pass)
            print_notes(job->cli, json_object_get(pass, "notes"));
        print_decision(job->cli, json_object_get(json_object_get(row, "report"), "mixed_precision"));
        mlo_table_row(&table, mlo_json_str(row, "step", ""),
                      mlo_cli_duration(mlo_json_f64(row, "seconds", 0) * 1e6, time), mlo_buf_str(&notes));
        mlo_buf_clear(&notes);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
    json_array_foreach(job->steps, i, row)
        MLO_TRY(print_deviation(json_object_get(json_object_get(row, "report"), "deviation"), err));
    char from[32], to[32];
    double size_before = (double)mlo_json_i64(before, "size", 1),
           size_after = (double)mlo_json_i64(after, "size", 0);
    MLO_TRY(mlo_cli_print(err, "size %s -> %s (%.2f)\n%s  %s\n", mlo_str_size((uint64_t)size_before, from),
                          mlo_str_size((uint64_t)size_after, to), size_after / size_before,
                          mlo_json_str(after, "path", ""), mlo_json_str(after, "digest", "")));
out:
    return status;
}

/* Says what is wrong with the sets before any work; in memory afterwards are neither they nor the model. */
static enum mlo_status check_data(const struct mlo_cli *cli, const struct derivation *what,
                                  const struct job *job, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    struct mlo_dataset *dataset = NULL;
    const char *others[] = {job->select, job->evaluate};
    MLO_TRY(mlo_local_model(job->source, &model, err));
    if (!what->fixed && (needs_data(job->recipe) || job->data))
        MLO_TRY(mlo_local_dataset(cli, model, &dataset, err));
    for (size_t i = 0; i < MLO_COUNT(others); i++) {
        mlo_dataset_close(dataset);
        dataset = NULL;
        if (others[i])
            MLO_TRY(mlo_local_dataset_at(cli, others[i], 0, model, &dataset, err));
    }
out:
    mlo_dataset_close(dataset);
    mlo_model_free(model);
    return status;
}

static enum mlo_status explain(const struct job *job, struct mlo_error *err)
{
    const struct mlo_step_context ctx = {
        .model_path = job->artifact,
        .source_path = job->source,
        .parent_path = job->parent,
        .history = job->steps,
        .calibrate_path = job->data,
        .evaluate_path = job->evaluate,
        .reading = job->reading,
        .out_dir = job->scratch,
        .threads = job->threads,
    };
    return mlo_local_report(job->cli, &ctx, err);
}

static enum mlo_status derive(struct mlo_cli *cli, const struct derivation *what, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct job job = {.cli = cli, .source = cli->args[0], .steps = json_array()};
    struct mlo_recipe *recipe = NULL;
    struct mlo_local_reading reading = {0};
    json_t *before = NULL, *after = NULL;
    const char *out = NULL;
    int64_t threads;
    MLO_TRY(mlo_cli_required(cli, "out", &out, err));
    MLO_TRY(mlo_cli_check_output(out, err));
    MLO_TRY(mlo_local_report_check(cli, err));
    threads = mlo_cpu_count();
    if (!what->fixed)
        MLO_TRY(mlo_cli_int(cli, "threads", mlo_cpu_count(), 1, 1024, &threads, err));
    MLO_TRY(load_recipe(cli, what, &recipe, err));
    MLO_TRY(mlo_local_file_json(job.source, &before, err));
    MLO_TRY(mlo_cli_scratch(NULL, &job.scratch, err));
    job.recipe = recipe;
    if (!what->fixed) {
        mlo_local_reading(cli, &reading);
        MLO_TRY(mlo_cli_int(cli, "limit", 0, 1, INT64_MAX, &reading.options.limit, err));
        job.reading = &reading.options;
        job.data = mlo_cli_opt(cli, "data");
    }
    if (!what->fixed && !what->observes) {
        job.select = mlo_cli_opt(cli, "select");
        job.decision = mlo_cli_opt(cli, "decision");
        if (job.decision && job.select)
            MLO_TRY(mlo_cli_check_output(job.decision, err));
    }
    if (!what->observes)
        job.evaluate = mlo_cli_opt(cli, "evaluate");
    mlo_steps_return_memory();
    MLO_TRY(check_data(cli, what, &job, err));
    job.threads = (unsigned)threads;
    job.out = out;
    if (!what->fixed) {
        MLO_TRY(mlo_local_checkpoints(cli, &job.checkpoints, err));
        if (what->observes)
            MLO_TRY(mlo_local_shard(cli, &job.shard, &job.shards, err));
        else
            MLO_TRY(mlo_local_statistics(cli, &job.statistics, err));
    }
    for (size_t i = 0; i < recipe->step_count && !job.observed; i++)
        MLO_TRY(run_step(&job, i, err));
    if (what->observes) {
        if (!job.observed)
            status =
                mlo_error_set(err, MLO_EINVAL, "recipe %s has no step that observes in shards", recipe->name);
        else
            status = mlo_cli_print(err, "%s\n", out);
        goto out;
    }
    if (!job.artifact) {
        status = mlo_error_set(err, MLO_EINVAL, "recipe %s has no step that makes a model", recipe->name);
        goto out;
    }
    MLO_TRY(explain(&job, err)); /* while the steps' models are there */
    MLO_TRY(mlo_cli_install(job.artifact, out, err));
    MLO_TRY(mlo_local_file_json(out, &after, err));
    MLO_TRY(print_result(&job, before, after, err));
    MLO_TRY(check_decisions(&job, out, err));
out:
    mlo_cli_scratch_remove(job.scratch);
    free(job.artifact);
    free(job.parent);
    free(job.checkpoints);
    free(job.statistics);
    json_decref(job.steps);
    json_decref(before);
    json_decref(after);
    mlo_recipe_free(recipe);
    return status;
}

static enum mlo_status quantize_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return derive(cli, &quantizing, err);
}

static enum mlo_status observe_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return derive(cli, &observing, err);
}

static enum mlo_status export_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return derive(cli, &exporting, err);
}

#define OPTION_CHECKPOINTS                                                                                   \
    {                                                                                                        \
        "checkpoints", 0, "DIR",                                                                             \
            "where long calibrations are kept, so that one that was killed goes on (the user's cache)"       \
    }
#define OPTION_THREADS_ALL                                                                                   \
    {                                                                                                        \
        "threads", 0, "N", "threads (all); they do not change the result"                                    \
    }
#define OPTION_RECIPE                                                                                        \
    {                                                                                                        \
        "recipe", 0, "FILE|NAME",                                                                            \
            "a recipe file, or one that is built in: int8-cpu (what it is), int8-tensorrt, fp16, …"        \
    }
#define OPTION_TARGET                                                                                        \
    {                                                                                                        \
        "target", 0, "NAME",                                                                                 \
            "the runtime that it is made for: mlopt-cpu, mlopt-cuda, mlopt-cuda-fp8, openvino, "             \
            "openvino-avx2, ort-x86-avx2, ort-x86-vnni, tensorrt"                                            \
    }

static const struct mlo_cli_option options_table[] = {
    {"data", 0, "FILE", "calibration data: npz, dataset.json, or IDX pair images.gz,labels.gz"},
    OPTION_RECIPE,
    {"set", 0, "STEP.OPTION=VALUE", "changes an option of the recipe", NULL, true},
    OPTION_TARGET,
    {"scheme", 0, "TYPE",
     "of the weights: int8 or uint8; without data: int8-dynamic, or int4-weights and int8-weights, which "
     "leave activations in float"},
    {"activations", 0, "TYPE", "uint8, int8, uint16 or int16 (as the target wants)"},
    {"form", 0, "FORM", "qdq, or qoperator: QLinearConv and the like (as the target wants)"},
    {"calibrator", 0, "NAME", "minmax, moving_average, percentile, entropy, mse or auto"},
    {"percentile", 0, "P", "the share that the percentile calibrator keeps (99.99)"},
    {"exclude", 0, "NODE[,NODE…]", "nodes that stay in float"},
    {"accuracy-drop", 0, "DROP",
     "0.5pt: nodes stay in float until the metric drops by no more (by the 95% interval)"},
    {"metric", 0, "NAME", "of --accuracy-drop (top1)"},
    {"time-limit", 0, "SECONDS",
     "of --accuracy-drop: then the best so far is written, with its measured drop; exit 6 if that is too "
     "much"},
    {"select", 0, "FILE", "labelled data that --accuracy-drop is judged on; not what evaluates the result"},
    {"decision", 0, "FILE",
     "where the choice of --accuracy-drop is kept, the best so far from the first mix on; without --select: "
     "the "
     "choice to follow"},
    {"out", 0, "Q.onnx", "where the quantized model is written"},
    MLO_OPTION_REPORT,
    {"evaluate", 0, "FILE", "labelled data that --report judges the result on (the calibration data)"},
    MLO_OPTION_POSTPROCESS,
    MLO_OPTION_LIMIT,
    MLO_OPTION_NORMALIZE,
    MLO_OPTION_MAP,
    {"statistics", 0, "FILE", "what 'mlopt observe' wrote of a shard: all of them instead of observing", NULL,
     true},
    OPTION_CHECKPOINTS,
    OPTION_THREADS_ALL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_quantize = {
    .name = "quantize",
    .group = "Local (no server needed)",
    .run = quantize_run,
    .options = options_table,
    .positional = "MODEL.onnx --data CALIB.npz --out Q.onnx",
    .min_args = 1,
    .max_args = 1,
    .help = "run a recipe's deriving steps on a model",
    .detail =
        "  mlopt quantize m.onnx --data calib.npz --target ort-x86-vnni --out m-int8.onnx\n"
        "  mlopt quantize m.onnx --data calib.npz --recipe mine.yaml \\\n"
        "      --set quantize.calibrator=percentile --out m-int8.onnx\n"
        "  mlopt quantize m.onnx --data calib.npz --select labelled.npz \\\n"
        "      --accuracy-drop 0.5pt --metric top1 --decision d.json --out m-mixed.onnx\n"
        "  mlopt quantize m.onnx --data calib.npz --decision d.json --out m-mixed.onnx   (as it was chosen)\n"
        "  mlopt quantize m.onnx --data calib.npz --out m-int8.onnx \\\n"
        "      --report m-int8.html --evaluate labelled.npz\n"
        "  mlopt quantize m.onnx --recipe fp16 --out m-fp16.onnx   (needs no data)\n"
        "  mlopt quantize m.onnx --scheme int8-dynamic --out m-dynamic.onnx\n",
};

static const struct mlo_cli_option observe_options[] = {
    {"data", 0, "FILE", "calibration data, all of it: npz, dataset.json, or IDX pair images.gz,labels.gz"},
    {"shard", 0, "I/N", "which part of the samples: 2/4 is the second of four (1/1)"},
    OPTION_RECIPE,
    {"set", 0, "STEP.OPTION=VALUE", "changes an option of the recipe", NULL, true},
    OPTION_TARGET,
    {"scheme", 0, "TYPE", "of the weights: int8 or uint8"},
    {"activations", 0, "TYPE", "uint8, int8, uint16 or int16 (as the target wants)"},
    {"form", 0, "FORM", "qdq, or qoperator (as the target wants)"},
    {"calibrator", 0, "NAME", "minmax, moving_average, percentile, entropy, mse or auto"},
    {"percentile", 0, "P", "the share that the percentile calibrator keeps (99.99)"},
    {"exclude", 0, "NODE[,NODE…]", "nodes that stay in float"},
    {"out", 0, "FILE", "where the statistics are written"},
    MLO_OPTION_LIMIT,
    MLO_OPTION_NORMALIZE,
    MLO_OPTION_MAP,
    OPTION_CHECKPOINTS,
    OPTION_THREADS_ALL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_observe = {
    .name = "observe",
    .group = "Local (no server needed)",
    .run = observe_run,
    .options = observe_options,
    .positional = "MODEL.onnx --data CALIB.npz --shard I/N --out PART",
    .min_args = 1,
    .max_args = 1,
    .help = "calibrate on a part of the data, for 'mlopt quantize --statistics'",
    .detail = "  mlopt observe m.onnx --data calib.npz --shard 1/2 --out 1.stats   (on one machine)\n"
              "  mlopt observe m.onnx --data calib.npz --shard 2/2 --out 2.stats   (on another)\n"
              "  mlopt quantize m.onnx --data calib.npz --statistics 1.stats --statistics 2.stats \\\n"
              "      --out m-int8.onnx   (the very model that one machine would have made)\n",
};

static const struct mlo_cli_option export_options[] = {
    {"out", 0, "Q.onnx", "where the model with integer weights is written"},
    MLO_OPTION_REPORT,
    {"evaluate", 0, "FILE", "labelled data that --report judges the result on"},
    {"target", 0, "NAME",
     "the runtime that it is made for: mlopt-cpu, mlopt-cuda, openvino, openvino-avx2, ort-x86-avx2, "
     "ort-x86-vnni, tensorrt (none)"},
    {"form", 0, "FORM", "qdq, or qoperator: QLinearConv and the like (qdq)"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_qat_export = {
    .name = "qat-export",
    .group = "Local (no server needed)",
    .run = export_run,
    .options = export_options,
    .positional = "MODEL.onnx --out Q.onnx",
    .min_args = 1,
    .max_args = 1,
    .help = "make a model trained with fake quantization one of integer weights",
    .detail = "  mlopt qat-export trained.onnx --target ort-x86-vnni --form qoperator --out q.onnx\n",
};
