#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

/* What --scheme chooses: a step, and the built-in recipe that it begins from. */
enum scheme { STRUCTURED, UNSTRUCTURED, TWO_OF_FOUR };
static const struct {
    const char *name, *step, *recipe, *pattern;
} SCHEMES[] = {
    [STRUCTURED] = {"structured", "prune", "prune-half", NULL},
    [UNSTRUCTURED] = {"unstructured", "sparsify", "sparse-half", "unstructured"},
    [TWO_OF_FOUR] = {"2:4", "sparsify", "sparse-half", "2:4"},
};

/* Steps' options that have a flag of their own, by both names; in both steps where none is named. */
static const struct {
    const char *flag, *option, *step;
} FLAGS[] = {
    {"remove", "remove", "prune"},
    {"of", "of", "prune"},
    {"ratios", "ratios", "prune"},
    {"round", "round", "prune"},
    {"min-channels", "min_channels", "prune"},
    {"heads", "heads", "prune"},
    {"reconstruct", "reconstruct", "prune"},
    {"sparsity", "sparsity", "sparsify"},
    {"scope", "scope", "sparsify"},
    {"min-weights", "min_weights", "sparsify"},
    {"storage", "storage", "sparsify"},
    {"block", "block", "sparsify"},
    {"criterion", "criterion", NULL},
    {"samples", "samples", NULL},
    {"exclude", "exclude", NULL},
    {"damp", "damp", NULL},
};

static enum mlo_status read_scheme(const struct mlo_cli *cli, enum scheme *out, struct mlo_error *err)
{
    const char *names[MLO_COUNT(SCHEMES)], *given = mlo_cli_opt(cli, "scheme");
    *out = STRUCTURED;
    for (size_t i = 0; i < MLO_COUNT(SCHEMES); i++)
        names[i] = SCHEMES[i].name;
    for (size_t i = 0; given && i < MLO_COUNT(SCHEMES); i++)
        if (strcmp(SCHEMES[i].name, given) == 0) {
            *out = (enum scheme)i;
            return MLO_OK;
        }
    if (!given)
        return MLO_OK;
    mlo_error_set(err, MLO_EUSAGE, "there is no scheme '%.40s'", given);
    mlo_error_where(err, "option '--scheme'");
    if (!mlo_error_suggest(err, given, names, MLO_COUNT(names)))
        mlo_error_hint(err, "it is structured, unstructured or 2:4");
    return MLO_EUSAGE;
}

static enum mlo_status set(struct mlo_recipe *recipe, const char *step, const char *option, const char *value,
                           struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_buf_printf(&text, "%s.%s=%s", step, option, value); /* a list of nodes has any length */
    enum mlo_status status =
        mlo_buf_ok(&text) ? mlo_recipe_set(recipe, mlo_buf_str(&text), err) : mlo_error_nomem(err);
    mlo_buf_clear(&text);
    return status;
}

/* The built-in recipe with what the flags say; without data, what does without. */
static enum mlo_status load(const struct mlo_cli *cli, enum scheme scheme, struct mlo_recipe **out,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t size;
    char file[64];
    const char *step = SCHEMES[scheme].step, *text = mlo_recipe_builtin(SCHEMES[scheme].recipe, &size);
    if (!text)
        return mlo_error_set(err, MLO_EINTERNAL, "the recipe %s is not in the program",
                             SCHEMES[scheme].recipe);
    snprintf(file, sizeof file, "%s.yaml", SCHEMES[scheme].recipe);
    MLO_TRY(mlo_recipe_parse(text, size, file, out, err));
    if (!mlo_cli_has(cli, "data")) {
        MLO_TRY(set(*out, step, "criterion", scheme == STRUCTURED ? "l2" : "magnitude", err));
        if (scheme == STRUCTURED)
            MLO_TRY(set(*out, step, "reconstruct", "none", err));
    }
    if (SCHEMES[scheme].pattern)
        MLO_TRY(set(*out, step, "pattern", SCHEMES[scheme].pattern, err));
    if (mlo_cli_has(cli, "freeze-initializers"))
        MLO_TRY(set(*out, step, "freeze_initializers", "true", err));
    for (size_t i = 0; i < MLO_COUNT(FLAGS); i++) {
        const char *value = mlo_cli_opt(cli, FLAGS[i].flag);
        if (!value)
            continue;
        if (FLAGS[i].step && strcmp(FLAGS[i].step, step) != 0) {
            status = mlo_error_set(err, MLO_EUSAGE, "--%s means nothing with the scheme %s", FLAGS[i].flag,
                                   SCHEMES[scheme].name);
            mlo_error_hint(err, scheme == STRUCTURED ? "give --scheme unstructured or 2:4 with it"
                                                     : "leave --scheme out, which is structured then");
            goto out;
        }
        MLO_TRY(set(*out, step, FLAGS[i].option, value, err));
    }
out:
    return status;
}

void mlo_local_note_left(const struct mlo_cli *cli, const json_t *report, const char *section,
                         const char *kept, const char *pass)
{
    const json_t *left = json_object_get(json_object_get(report, section), "left"), *one;
    size_t i, k;
    json_t *row;
    const char *node;
    json_array_foreach((json_t *)left, i, row)
        mlo_cli_note(cli, "%s: %s: %s", mlo_json_str(row, "node", ""), kept, mlo_json_str(row, "why", ""));
    json_array_foreach(json_object_get(report, "passes"), i, one)
    {
        json_array_foreach(json_object_get(one, "notes"), k, row)
        {
            node = mlo_json_str(row, "node", "");
            if (strcmp(mlo_json_str(one, "pass", ""), pass) == 0)
                mlo_cli_note(cli, "%s%s%s", node, *node ? ": " : "", mlo_json_str(row, "note", ""));
        }
    }
}

/* What was pruned, what was left alone and why, and how well the layers behind were fitted. */
static enum mlo_status print_pruning(const struct mlo_cli *cli, const json_t *report, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const json_t *pruning = json_object_get(report, "pruning"), *macs = json_object_get(pruning, "macs");
    struct mlo_table table;
    size_t i;
    json_t *row;
    mlo_table_init(&table, "channels of|from>|to>|error of what reads them>");
    json_array_foreach(json_object_get(pruning, "groups"), i, row)
    {
        char node[160], from[24], to[24], error[32];
        size_t more = json_array_size(json_object_get(row, "nodes"));
        snprintf(node, sizeof node, "%.120s", mlo_json_str(row, "node", ""));
        if (more > 1)
            snprintf(node + strlen(node), sizeof node - strlen(node), " and %zu more", more - 1);
        snprintf(from, sizeof from, "%lld", (long long)mlo_json_i64(row, "from", 0));
        snprintf(to, sizeof to, "%lld", (long long)mlo_json_i64(row, "to", 0));
        double errs = mlo_json_f64(row, "error", NAN);
        snprintf(error, sizeof error, isfinite(errs) ? "%.4f" : "not finite", errs);
        mlo_table_row(&table, node, from, to, error);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
    if (json_array_size(json_object_get(pruning, "layers"))) {
        mlo_table_init(&table, "fitted layer|error before>|after>");
        json_array_foreach(json_object_get(pruning, "layers"), i, row)
        {
            char before[32], after[32];
            snprintf(before, sizeof before, "%.4f", mlo_json_f64(row, "before", 0));
            snprintf(after, sizeof after, "%.4f", mlo_json_f64(row, "after", 0));
            mlo_table_row(&table, mlo_json_str(row, "node", ""), before, after);
        }
        MLO_TRY(mlo_table_print_take(&table, err));
    }
    mlo_local_note_left(cli, report, "pruning", "left alone", "prune");
    const json_t *weights = json_object_get(pruning, "weights");
    MLO_TRY(mlo_cli_print(
        err, "multiply-adds %.4g -> %.4g: %.1f%% removed\nweights %.4g -> %.4g: %.1f%% removed\n",
        mlo_json_f64(macs, "before", 0), mlo_json_f64(macs, "after", 0),
        100 * mlo_json_f64(macs, "removed", 0), mlo_json_f64(weights, "before", 0),
        mlo_json_f64(weights, "after", 0), 100 * mlo_json_f64(weights, "removed", 0)));
out:
    return status;
}

static enum mlo_status print_result(const struct mlo_cli *cli, const json_t *steps, const json_t *before,
                                    const json_t *after, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char from[32], to[32];
    if (cli->json) {
        json_t *all = json_pack("{s:O,s:O,s:O}", "source", before, "result", after, "steps", steps);
        status = mlo_cli_print_json(all, err);
        json_decref(all);
        return status;
    }
    double size_before = (double)mlo_json_i64(before, "size", 1),
           size_after = (double)mlo_json_i64(after, "size", 0);
    const json_t *report = json_object_get(json_array_get(steps, 0), "report");
    MLO_TRY(json_object_get(report, "sparsity") ? mlo_local_print_sparsity(cli, report, err)
                                                : print_pruning(cli, report, err));
    MLO_TRY(mlo_cli_print(err, "size %s -> %s (%.2f)\n%s  %s\n", mlo_str_size((uint64_t)size_before, from),
                          mlo_str_size((uint64_t)size_after, to), size_after / size_before,
                          mlo_json_str(after, "path", ""), mlo_json_str(after, "digest", "")));
out:
    return status;
}

static enum mlo_status prune_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_recipe *recipe = NULL;
    struct mlo_local_reading reading = {0};
    struct mlo_step_result result = {0};
    struct mlo_cli_progress progress;
    struct mlo_model *model = NULL;
    struct mlo_dataset *dataset = NULL;
    json_t *before = NULL, *after = NULL, *steps = NULL;
    enum scheme scheme;
    const char *out = NULL, *scratch = NULL;
    int64_t threads;
    MLO_TRY(mlo_cli_required(cli, "out", &out, err));
    MLO_TRY(mlo_cli_check_output(out, err));
    MLO_TRY(mlo_local_report_check(cli, err));
    MLO_TRY(mlo_cli_int(cli, "threads", mlo_cpu_count(), 1, 1024, &threads, err));
    MLO_TRY(read_scheme(cli, &scheme, err));
    MLO_TRY(load(cli, scheme, &recipe, err));
    const struct mlo_step *step = mlo_step_find(SCHEMES[scheme].step);
    MLO_TRY(mlo_local_file_json(cli->args[0], &before, err));
    MLO_TRY(mlo_local_model(cli->args[0], &model, err));
    if (mlo_cli_has(cli, "data")) /* what is wrong with it is said before any work */
        MLO_TRY(mlo_local_dataset(cli, model, &dataset, err));
    mlo_dataset_close(dataset);
    dataset = NULL;
    mlo_model_free(model);
    model = NULL;
    MLO_TRY(mlo_cli_scratch(NULL, &scratch, err));
    mlo_local_reading(cli, &reading);
    MLO_TRY(mlo_cli_int(cli, "limit", 0, 1, INT64_MAX, &reading.options.limit, err));
    mlo_cli_progress_start(&progress, cli, step->name);
    struct mlo_step_context ctx = {
        .options = recipe->steps[0].options,
        .model_path = cli->args[0],
        .source_path = cli->args[0],
        .calibrate_path = mlo_cli_opt(cli, "data"),
        .reading = &reading.options,
        .out_dir = scratch,
        .threads = (unsigned)threads,
        .progress = mlo_cli_progress,
        .progress_arg = &progress,
    };
    uint64_t begin = mlo_clock_ns();
    mlo_steps_return_memory();
    status = step->run(&ctx, &result, err);
    mlo_cli_progress_end(&progress);
    if (status != MLO_OK)
        goto out;
    steps = json_pack("[{s:s,s:O,s:O,s:f}]", "step", step->name, "options", ctx.options, "report",
                      result.report, "seconds", (double)(mlo_clock_ns() - begin) * 1e-9);
    if (!steps) {
        status = mlo_error_nomem(err);
        goto out;
    }
    ctx.model_path = result.artifact_path;
    ctx.history = steps;
    ctx.evaluate_path = mlo_cli_opt(cli, "evaluate");
    ctx.progress = NULL;
    MLO_TRY(mlo_local_report(cli, &ctx, err));
    MLO_TRY(mlo_cli_install(result.artifact_path, out, err));
    MLO_TRY(mlo_local_file_json(out, &after, err));
    MLO_TRY(print_result(cli, steps, before, after, err));
out:
    mlo_cli_scratch_remove(scratch);
    mlo_step_result_clear(&result);
    mlo_dataset_close(dataset);
    mlo_model_free(model);
    mlo_recipe_free(recipe);
    json_decref(before);
    json_decref(after);
    json_decref(steps);
    return status;
}

static const struct mlo_cli_option options_table[] = {
    {"data", 0, "FILE", "calibration data: npz, dataset.json, or IDX pair images.gz,labels.gz"},
    {"scheme", 0, "NAME",
     "structured: channels go (the default); unstructured: single weights become zero; 2:4: two of four do"},
    {"remove", 0, "SHARE", "structured: of the multiply-adds: 50%"},
    {"of", 0, "WHAT",
     "structured: what that share is of: multiply-adds, for speed (the default), or weights, for size"},
    {"criterion", 0, "NAME",
     "which channels go first: second-order (with data), activation, l2 (without data), l1, bn-scale; which "
     "weights: sparsegpt (with data), magnitude"},
    {"sparsity", 0, "SHARE", "unstructured: of the weights that become zero: 50%"},
    {"scope", 0, "NAME", "unstructured: layer: the same share of each; global: the smallest of the model"},
    {"storage", 0, "FORM",
     "unstructured and 2:4: dense, or bitmap: zeros take a bit each; auto: bitmap, but dense for 2:4"},
    {"block", 0, "N", "sparsegpt: inputs whose zeros are chosen at once"},
    {"min-weights", 0, "N", "unstructured and 2:4: layers with fewer weights stay dense (1024)"},
    {"ratios", 0, "HOW", "sensitivity: more where it errs less; uniform: the same share everywhere"},
    {"reconstruct", 0, "HOW", "how layers behind are fitted on the data: least-squares, bias, none"},
    {"round", 0, "N", "what stays of a group is a multiple of N (8)"},
    {"min-channels", 0, "N", "at least so many stay in a group (1)"},
    {"heads", 0, "HOW",
     "attention heads: narrow: each loses width, where it can be turned (with data); whole: whole ones go"},
    {"exclude", 0, "NODE[,NODE…]", "nodes that stay as they are"},
    {"freeze-initializers", 0, NULL, "weights that are listed as inputs too become constants"},
    {"samples", 0, "N", "samples that layers are observed and fitted on (512)"},
    {"damp", 0, "X", "how much fitted weights are drawn to those that were there (0.001; sparsegpt: 0.01)"},
    {"out", 0, "P.onnx", "where the pruned model is written"},
    MLO_OPTION_REPORT,
    {"evaluate", 0, "FILE", "labelled data that --report judges the result on (the calibration data)"},
    MLO_OPTION_POSTPROCESS,
    MLO_OPTION_LIMIT,
    MLO_OPTION_NORMALIZE,
    MLO_OPTION_MAP,
    {"threads", 0, "N", "threads (all); they do not change the result"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_prune = {
    .name = "prune",
    .group = "Local (no server needed)",
    .run = prune_run,
    .options = options_table,
    .positional = "MODEL.onnx --data CALIB.npz --remove 50% --out P.onnx",
    .min_args = 1,
    .max_args = 1,
    .help = "take channels, heads and neurons out and fit the layers behind them, or make weights zero",
    .detail =
        "  mlopt prune m.onnx --data calib.npz --remove 50% --out m-half.onnx\n"
        "  mlopt prune m.onnx --data calib.npz --remove 30% --exclude /head/Gemm --round 16 --out m30.onnx\n"
        "  mlopt prune m.onnx --remove 20% --out m20.onnx   (without data: by norms, nothing is fitted)\n"
        "  mlopt prune m.onnx --scheme 2:4 --data calib.npz --out m24.onnx   (SparseGPT; the shapes stay)\n",
};
