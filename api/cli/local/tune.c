/* tune: which way to compute each step of a model is the fastest on a GPU; `compile --choices` follows it. */
#include "api/cli/local/local_impl.h"
#include "engines/choices.h"

enum mlo_status mlo_local_choices(const char *path, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *whole = NULL;
    *out = NULL;
    if (!path)
        return MLO_OK;
    MLO_TRY(mlo_json_load_file(path, &whole, err));
    json_t *inside = json_object_get(whole, "choices"), *choices = inside ? inside : whole;
    MLO_TRY(mlo_choices_check(choices, path, err));
    *out = json_incref(choices);
out:
    json_decref(whole);
    return status;
}

static enum mlo_status tune_engine(const struct mlo_cli *cli, bool prepare, const struct mlo_engine **out,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    const char *name = mlo_cli_opt(cli, "engine"), *target = mlo_cli_opt(cli, "target");
    MLO_TRY(mlo_engine_find(name ? name : "cuda", out, err));
    if (!(*out)->tune || !(*out)->can_compile) {
        status = mlo_error_set(err, MLO_EUSAGE, "the engine '%s' has nothing to tune", (*out)->name);
        goto out;
    }
    if (prepare && !target) {
        status = mlo_error_set(err, MLO_EUSAGE, "--prepare needs --target");
        mlo_error_hint(err, "what is prepared is for a GPU that need not be here: --target cuda:sm90");
        goto out;
    }
    if (target)
        MLO_TRY(mlo_local_no_device((*out)->can_compile(target, err), err));
    status = prepare ? MLO_OK : mlo_local_no_device((*out)->probe(err), err);
out:
    return status;
}

static enum mlo_status print_choices(const struct mlo_cli *cli, const json_t *choices, const char *path,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_table table;
    char us[32], before[32], ways[32], ratio[32];
    const char *key;
    json_t *entry;
    double sum = 0, heuristic = 0;
    if (cli->json)
        return mlo_cli_print_json(choices, err);
    mlo_table_init(&table, "first node|ways>|dropped>|fastest>|heuristics>|ratio>");
    json_object_foreach(json_object_get(choices, "steps"), key, entry)
    {
        double best = mlo_json_f64(json_object_get(entry, "us"), "value", 0);
        double other =
            mlo_json_f64(json_object_get(json_object_get(entry, "heuristic"), "us"), "value", best);
        const char *node = json_string_value(json_array_get(json_object_get(entry, "nodes"), 0));
        sum += best;
        heuristic += other;
        snprintf(ways, sizeof ways, "%lld", (long long)mlo_json_i64(entry, "ways", 0));
        snprintf(ratio, sizeof ratio, "%.2f", best > 0 ? other / best : 1);
        char dropped[32];
        snprintf(dropped, sizeof dropped, "%zu", json_array_size(json_object_get(entry, "dropped")));
        mlo_table_row(&table, node ? node : key, ways, dropped, mlo_cli_duration(best, us),
                      mlo_cli_duration(other, before), ratio);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
    MLO_TRY(mlo_cli_print(err, "%s  %zu steps: %s, by heuristics %s\n", path,
                          json_object_size(json_object_get(choices, "steps")), mlo_cli_duration(sum, us),
                          mlo_cli_duration(heuristic, before)));
out:
    mlo_table_clear(&table);
    return status;
}

static enum mlo_status tune_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_engine *engine;
    const char *out = NULL;
    struct mlo_model *model = NULL, *bound = NULL;
    json_t *known = NULL, *choices = NULL;
    struct mlo_cli_progress progress;
    struct mlo_tuning_request request = {.prepare_only = mlo_cli_has(cli, "prepare"),
                                         .progress = mlo_cli_progress,
                                         .progress_arg = &progress,
                                         .keep = mlo_cli_opt(cli, "keep")};
    int64_t batch, fixed = 0;
    MLO_TRY(mlo_cli_float(cli, "seconds", 600, 0.1, 864000, &request.seconds, err));
    MLO_TRY(mlo_cli_int(cli, "batch", 0, 1, 65536, &batch, err));
    if (!request.prepare_only) {
        MLO_TRY(mlo_cli_required(cli, "out", &out, err));
        MLO_TRY(mlo_cli_check_output(out, err));
    }
    MLO_TRY(tune_engine(cli, request.prepare_only, &engine, err));
    MLO_TRY(mlo_local_choices(mlo_cli_opt(cli, "known"), &known, err));
    request.known = known;
    MLO_TRY(mlo_local_model(cli->args[0], &model, err));
    MLO_TRY(mlo_model_fixed_batch(model, &fixed, err));
    MLO_TRY(mlo_local_bound(cli, model, &bound, err));
    struct mlo_compile_options options = {.batch = batch ? batch : MLO_MAX(fixed, (int64_t)1),
                                          .numerics = MLO_NUMERICS_FAST,
                                          .threads = 1,
                                          .target = mlo_cli_opt(cli, "target")};
    mlo_cli_progress_start(&progress, cli, request.prepare_only ? "prepare" : "tune");
    status = engine->tune(bound, &options, &request, &choices, err);
    mlo_cli_progress_end(&progress);
    if (status != MLO_OK || request.prepare_only)
        goto out;
    if (known && mlo_choices_same_machine(choices, known)) /* of other batch sizes, and of other models */
        MLO_TRY(mlo_choices_merge(choices, known, err));
    MLO_TRY(mlo_json_save_file(choices, out, err));
    MLO_TRY(print_choices(cli, choices, out, err));
out:
    json_decref(known);
    json_decref(choices);
    mlo_model_free(bound);
    mlo_model_free(model);
    return status;
}

static const struct mlo_cli_option options_table[] = {
    {"out", 0, "FILE.json", "where the choices are written"},
    {"batch", 0, "N", "samples a call (1, or what the model fixes)"},
    MLO_OPTION_DIM,
    {"seconds", 0, "S", "of measuring; steps that are left are computed as heuristics say (600)"},
    {"known", 0, "FILE.json", "choices that were measured before: they are not measured again, and are kept"},
    {"keep", 0, "FILE.json", "written after each step, and read first: goes on where it was ended"},
    {"target", 0, "cuda:smNN", "of --prepare: the GPU's compute capability"},
    {"prepare", 0, NULL, "compiles all candidates into the user's cache and measures nothing: needs no GPU"},
    {"engine", 0, "NAME", "an engine that has something to tune (cuda)"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_tune = {
    .name = "tune",
    .group = "Local (no server needed)",
    .run = tune_run,
    .options = options_table,
    .positional = "MODEL.onnx --out FILE.json",
    .min_args = 1,
    .max_args = 1,
    .help = "measure on a GPU how each step of a model is computed fastest",
    .detail = "  mlopt tune m.onnx --batch 8 --out choices.json\n"
              "  mlopt compile m.onnx --batch 8 --target cuda:sm90 --choices choices.json --out m.plan\n",
};
