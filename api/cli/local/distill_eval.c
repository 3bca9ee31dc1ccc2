/* distill-eval: a student next to its teacher, without a server; the step of that name, its report, and a
 * verdict by conditions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"
#include "api/html/report.h"

enum { EXPECT_MAX = 32 };

/* --- options -------------------------------------------------------------------------------------------- */

/* Options of the verb that are those of the step, by the same name with '_'. */
static const struct {
    const char *name;
    enum { TEXT, NUMBER, LIST } kind;
} PASSED[] = {
    {"task", TEXT},
    {"temperature", NUMBER},
    {"metric", LIST},
    {"bins", NUMBER},
    {"slice", TEXT},
    {"shown", NUMBER},
    {"engine", TEXT},
    {"numerics", TEXT},
    {"threads", NUMBER},
    {"batch", LIST},
    {"seconds", NUMBER},
    {"rounds", NUMBER},
    {"teacher-output", TEXT},
    {"student-output", TEXT},
    {"teacher-scores", TEXT},
    {"student-scores", TEXT},
    {"teacher-normalize", TEXT},
    {"student-normalize", TEXT},
    {"teacher-map", LIST},
    {"student-map", LIST},
};

/* "--metric top1,f1 --metric top5" as a list. */
static json_t *list_of(const struct mlo_cli *cli, const char *name)
{
    json_t *out = json_array();
    const char *text;
    for (size_t i = 0; (text = mlo_cli_opt_at(cli, name, i)); i++) {
        while (*text) {
            size_t n = strcspn(text, ",");
            if (n)
                json_array_append_new(out, json_stringn(text, n));
            text += n + (text[n] == ',');
        }
    }
    return out;
}

static enum mlo_status number_of(const struct mlo_cli *cli, const char *name, json_t **out,
                                 struct mlo_error *err)
{
    double value;
    enum mlo_status status = mlo_cli_float(cli, name, 0, 0, 1e9, &value, err);
    if (status == MLO_OK)
        *out = value == floor(value) ? json_integer((json_int_t)value) : json_real(value);
    return status;
}

static enum mlo_status take_passed(const struct mlo_cli *cli, json_t *options, struct mlo_error *err)
{
    for (size_t i = 0; i < MLO_COUNT(PASSED); i++) {
        char key[48];
        json_t *value = NULL;
        enum mlo_status status = MLO_OK;
        if (!mlo_cli_has(cli, PASSED[i].name))
            continue;
        snprintf(key, sizeof key, "%s", strcmp(PASSED[i].name, "metric") == 0 ? "metrics" : PASSED[i].name);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        if (PASSED[i].kind == NUMBER)
            status = number_of(cli, PASSED[i].name, &value, err);
        else
            value = PASSED[i].kind == LIST ? list_of(cli, PASSED[i].name)
                                           : json_string(mlo_cli_opt(cli, PASSED[i].name));
        if (status != MLO_OK)
            return status;
        if (json_object_set_new(options, key, value) != 0)
            return mlo_error_nomem(err);
    }
    return MLO_OK;
}

/* --mapping: {"teacher": [0, 1, null], "student": […]}; each may be left out. */
static enum mlo_status take_mapping(const struct mlo_cli *cli, json_t *options, struct mlo_error *err)
{
    static const char *const sides[][2] = {{"teacher", "teacher_classes"}, {"student", "student_classes"}};
    enum mlo_status status;
    const char *path = mlo_cli_opt(cli, "mapping"), *key;
    json_t *mapping = NULL, *value;
    if (!path)
        return MLO_OK;
    MLO_TRY(mlo_json_load_file(path, &mapping, err));
    json_object_foreach(mapping, key, value)
    {
        const char *member = strcmp(key, sides[0][0]) == 0   ? sides[0][1]
                             : strcmp(key, sides[1][0]) == 0 ? sides[1][1]
                                                             : NULL;
        json_t *classes = member && json_array_size(value) ? json_array() : NULL;
        for (size_t i = 0; classes && i < json_array_size(value); i++) {
            const json_t *to = json_array_get(value, i);
            if (!json_is_null(to) && !json_is_integer(to)) {
                json_decref(classes);
                status = mlo_error_set(err, MLO_EFORMAT, "%s: entry %zu of '%s' is neither a number nor null",
                                       path, i, key);
                goto out;
            }
            json_array_append_new(classes, json_integer(json_is_null(to) ? -1 : json_integer_value(to)));
        }
        if (!classes || json_object_set_new(options, member, classes) != 0) {
            mlo_error_set(err, MLO_EFORMAT, "%s: '%.60s' is no mapping of classes", path, key);
            mlo_error_hint(
                err, "write {\"teacher\": [0, 1, null], \"student\": [1, 0]}: for each class of a model the "
                     "number of the label that it stands for");
            status = MLO_EFORMAT;
            goto out;
        }
    }
    if (!json_is_object(mapping))
        status = mlo_error_set(err, MLO_EFORMAT, "%s holds no JSON object", path);
out:
    json_decref(mapping);
    return status;
}

/* A recipe's options of the step and its expectations; *recipe is yours. */
static enum mlo_status take_recipe(const struct mlo_cli *cli, struct mlo_recipe **recipe, json_t *options,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT;
    bool builtin, found = false;
    const char *name = mlo_cli_opt(cli, "recipe");
    if (!name)
        return MLO_OK;
    MLO_TRY(mlo_local_recipe_text(name, &text, &builtin, err));
    MLO_TRY(mlo_recipe_parse_of_files(mlo_buf_str(&text), text.len, name, recipe, err));
    for (size_t i = 0; i < (*recipe)->step_count && !found; i++)
        if (strcmp((*recipe)->steps[i].name, "distill-eval") == 0)
            found = json_object_update(options, (*recipe)->steps[i].options) == 0;
    if (!found)
        status = mlo_error_set(err, MLO_EINVAL, "the recipe %s has no step distill-eval", name);
out:
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status options_of(const struct mlo_cli *cli, const struct mlo_step *step,
                                  struct mlo_recipe **recipe, json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    json_t *given = json_object();
    MLO_TRY(take_recipe(cli, recipe, given, err));
    MLO_TRY(take_passed(cli, given, err));
    MLO_TRY(take_mapping(cli, given, err));
    json_object_set_new(given, "teacher", json_string(cli->args[0]));
    if (mlo_cli_has(cli, "no-latency"))
        json_object_set_new(given, "latency", json_false());
    status = mlo_options_resolve(step->options, given, out, err);
out:
    json_decref(given);
    return status;
}

/* --- the verdict ---------------------------------------------------------------------------------------- */

/* The recipe's expectations and those of --expect; `conditions` has room for EXPECT_MAX more than the
 * recipe's. */
static enum mlo_status expectations(const struct mlo_cli *cli, const struct mlo_recipe *recipe,
                                    struct mlo_recipe *all, struct mlo_error *err)
{
    const char *text;
    if (recipe)
        for (size_t i = 0; i < recipe->expect_count; i++)
            all->expect[all->expect_count++] = recipe->expect[i];
    for (size_t i = 0; (text = mlo_cli_opt_at(cli, "expect", i)); i++) {
        struct mlo_condition *c = &all->expect[all->expect_count];
        if (i == EXPECT_MAX)
            return mlo_error_set(err, MLO_EUSAGE, "more than %d conditions", EXPECT_MAX);
        enum mlo_status status = mlo_condition_parse(text, c, err);
        if (status != MLO_OK)
            return status;
        if (c->base[0])
            return mlo_error_set(
                err, MLO_EUSAGE,
                "--expect \"%.100s\": nothing stands for '%s' here; compare with the teacher by "
                "distill.drop.top1 <= 1pt, distill.latency_ratio.p50 <= 0.5 and the like",
                text, c->base);
        all->expect_count++;
    }
    return MLO_OK;
}

/* --- output --------------------------------------------------------------------------------------------- */

static void estimate_text(const json_t *e, bool share, bool difference, char out[160])
{
    double v = mlo_json_f64(e, "value", NAN), low = mlo_json_f64(e, "low", v),
           high = mlo_json_f64(e, "high", v);
    const char *missing = mlo_json_str(e, "missing", NULL);
    if (isnan(v))
        snprintf(out, 160, "-%s%s%s", missing ? " (" : "", missing ? missing : "", missing ? ")" : "");
    else if (share)
        snprintf(out, 160, difference ? "%+.2f pt [%+.2f, %+.2f]" : "%.2f%% [%.2f, %.2f]", 100 * v, 100 * low,
                 100 * high);
    else
        snprintf(out, 160, difference ? "%+.5g [%+.5g, %+.5g]" : "%.5g [%.5g, %.5g]", v, low, high);
}

static const json_t *in(const json_t *o, const char *a, const char *b, const char *c)
{
    o = json_object_get(o, a);
    o = b ? json_object_get(o, b) : o;
    return c ? json_object_get(o, c) : o;
}

static void ece_rows(struct mlo_table *table, const json_t *r)
{
    static const char *const schemes[][2] = {{"equal_width", "ECE, bins of equal width"},
                                             {"equal_mass", "ECE, bins of equal mass"}};
    for (size_t k = 0; k < MLO_COUNT(schemes); k++) {
        char side[2][160], difference[160];
        estimate_text(json_object_get(in(r, "calibration", "teacher", schemes[k][0]), "ece"), true, false,
                      side[0]);
        estimate_text(json_object_get(in(r, "calibration", "student", schemes[k][0]), "ece"), true, false,
                      side[1]);
        estimate_text(in(r, "calibration", "difference", schemes[k][0]), true, true, difference);
        mlo_table_row(table, schemes[k][1], side[0], side[1], difference, "");
    }
}

static void latency_rows(struct mlo_table *table, const json_t *r)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(r, "latency"), i, row)
    {
        static const char *const percentiles[][3] = {{"p50_us", "ratio_p50", "p50"},
                                                     {"p99_us", "ratio_p99", "p99"}};
        for (size_t k = 0; k < MLO_COUNT(percentiles); k++) {
            char name[64], a[32], b[32], ratio[160];
            const json_t *of = json_object_get(row, percentiles[k][1]);
            snprintf(name, sizeof name, "latency %s, batch %lld", percentiles[k][2],
                     (long long)mlo_json_i64(row, "batch", 1));
            estimate_text(of, false, false, ratio);
            if (json_object_get(of, "value"))
                snprintf(ratio, sizeof ratio, "%.3gx [%.3g, %.3g]", mlo_json_f64(of, "value", 0),
                         mlo_json_f64(of, "low", 0), mlo_json_f64(of, "high", 0));
            mlo_table_row(
                table, name,
                mlo_cli_duration(mlo_json_f64(in(row, "teacher", percentiles[k][0], NULL), "value", 0), a),
                mlo_cli_duration(mlo_json_f64(in(row, "student", percentiles[k][0], NULL), "value", 0), b),
                ratio, "");
        }
    }
}

static enum mlo_status print_sides(const json_t *r, struct mlo_error *err)
{
    struct mlo_table table;
    const json_t *row;
    size_t i;
    char a[160], b[160], difference[160], p[24];
    mlo_table_init(&table, "|teacher|student|student - teacher (95%)|McNemar p>");
    json_array_foreach(json_object_get(r, "metrics"), i, row)
    {
        bool share = strcmp(mlo_json_str(row, "unit", ""), "fraction") == 0;
        estimate_text(json_object_get(row, "teacher"), share, false, a);
        estimate_text(json_object_get(row, "student"), share, false, b);
        estimate_text(json_object_get(row, "difference"), share, true, difference);
        snprintf(p, sizeof p, "%.3g", mlo_json_f64(row, "mcnemar_p", NAN));
        mlo_table_row(&table, mlo_json_str(row, "metric", ""), a, b, difference,
                      json_object_get(row, "mcnemar_p") ? p : "");
    }
    if (json_object_get(r, "calibration"))
        ece_rows(&table, r);
    latency_rows(&table, r);
    mlo_str_size((uint64_t)mlo_json_i64(json_object_get(r, "teacher"), "file_bytes", 0), a);
    mlo_str_size((uint64_t)mlo_json_i64(json_object_get(r, "student"), "file_bytes", 0), b);
    snprintf(difference, sizeof difference, "%.3gx", mlo_json_f64(r, "size_ratio", NAN));
    mlo_table_row(&table, "file", a, b, difference, "");
    return mlo_table_print_take(&table, err);
}

static enum mlo_status print_between(const json_t *r, struct mlo_error *err)
{
    struct mlo_table table;
    const json_t *row, *worst;
    size_t i;
    char value[160], name[96];
    mlo_table_init(&table, "between them|value (95%)");
    json_array_foreach(json_object_get(r, "distances"), i, row)
    {
        const char *metric = mlo_json_str(row, "metric", "");
        bool tempered = strcmp(metric, "kl") == 0 || strcmp(metric, "cross_entropy") == 0;
        if (tempered)
            snprintf(name, sizeof name, "%s at T = %g", metric, mlo_json_f64(r, "temperature", 1));
        estimate_text(row, strcmp(mlo_json_str(row, "unit", ""), "fraction") == 0, false, value);
        mlo_table_row(&table, tempered ? name : metric, value);
    }
    const char *key;
    json_object_foreach(json_object_get(r, "worst"), key, worst)
    {
        const json_t *which = json_object_get(worst, key);
        const char *text = json_is_integer(which)
                               ? json_string_value(json_array_get(json_object_get(r, "class_names"),
                                                                  (size_t)json_integer_value(which)))
                               : json_string_value(which);
        if (json_is_integer(which))
            snprintf(name, sizeof name, "worst class: %lld%s%.60s", (long long)json_integer_value(which),
                     text ? " " : "", text ? text : "");
        else
            snprintf(name, sizeof name, "worst slice: %.60s", text ? text : "");
        estimate_text(worst, true, true, value);
        mlo_table_row(&table, name, value);
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status print_verdict(const json_t *results, struct mlo_error *err)
{
    struct mlo_table table;
    const json_t *row;
    size_t i;
    if (!json_array_size(results))
        return MLO_OK;
    mlo_table_init(&table, "condition|holds|why not");
    json_array_foreach((json_t *)results, i, row)
        mlo_table_row(&table, mlo_json_str(row, "condition", ""),
                      mlo_json_bool(row, "holds", false) ? "yes" : "NO", mlo_json_str(row, "reason", ""));
    return mlo_table_print_take(&table, err);
}

static enum mlo_status print_all(const struct mlo_cli *cli, const json_t *report, struct mlo_error *err)
{
    enum mlo_status status;
    if (cli->json)
        return mlo_cli_print_json(report, err);
    MLO_TRY(print_sides(report, err));
    MLO_TRY(mlo_cli_print(err, "\n"));
    MLO_TRY(print_between(report, err));
    if (json_array_size(json_object_get(report, "verdict")))
        MLO_TRY(mlo_cli_print(err, "\n"));
    MLO_TRY(print_verdict(json_object_get(report, "verdict"), err));
    MLO_TRY(mlo_cli_print(err, "%lld samples, the same for both\n",
                          (long long)mlo_json_i64(report, "samples", 0)));
out:
    return status;
}

static enum mlo_status write_report(const struct mlo_cli *cli, const json_t *report, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *path = mlo_cli_opt(cli, "report");
    struct mlo_buf page = MLO_BUF_INIT;
    const struct mlo_report_page about = {.title = mlo_fs_basename(cli->args[1])};
    if (!path)
        return MLO_OK;
    if (mlo_str_ends(path, ".json"))
        return mlo_json_save_file(report, path, err);
    MLO_TRY(mlo_report_html(report, &about, &page, err));
    MLO_TRY(mlo_fs_write_atomic(path, mlo_buf_str(&page), page.len, err));
out:
    mlo_buf_clear(&page);
    return status;
}

/* --- the verb ------------------------------------------------------------------------------------------- */

static enum mlo_status measure(const struct mlo_cli *cli, const json_t *options, const char *dir,
                               struct mlo_step_result *result, struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_step *step = mlo_step_find("distill-eval");
    struct mlo_local_reading reading;
    struct mlo_cli_progress progress;
    struct mlo_step_context ctx = {.options = options,
                                   .model_path = cli->args[1],
                                   .source_path = cli->args[1],
                                   .teacher_path = cli->args[0],
                                   .teacher_labels_path = mlo_cli_opt(cli, "teacher-labels"),
                                   .labels_path = mlo_cli_opt(cli, "student-labels"),
                                   .slices_path = mlo_cli_opt(cli, "slices"),
                                   .reading = &reading.options,
                                   .out_dir = dir,
                                   .threads = (unsigned)mlo_json_i64(options, "threads", 1),
                                   .progress = mlo_cli_progress,
                                   .progress_arg = &progress};
    mlo_local_reading(cli, &reading);
    MLO_TRY(mlo_cli_required(cli, "data", &ctx.evaluate_path, err));
    MLO_TRY(mlo_cli_int(cli, "limit", 0, 1, INT64_MAX, &reading.options.limit, err));
    mlo_cli_progress_start(&progress, cli, step->name);
    status = step->run(&ctx, result, err);
    mlo_cli_progress_end(&progress);
out:
    return status;
}

static enum mlo_status distill_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status, verdict = MLO_OK;
    struct mlo_recipe *recipe = NULL, all = {0};
    struct mlo_step_result result = {0};
    struct mlo_error failed = {0};
    json_t *options = NULL, *report = NULL, *results = NULL;
    const char *dir = NULL;
    MLO_TRY(mlo_local_report_check(cli, err));
    MLO_TRY(options_of(cli, mlo_step_find("distill-eval"), &recipe, &options, err));
    all.expect = calloc(EXPECT_MAX + (recipe ? recipe->expect_count : 0) + 1, sizeof *all.expect);
    if (!all.expect) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(expectations(cli, recipe, &all, err));
    MLO_TRY(mlo_cli_scratch(NULL, &dir, err));
    MLO_TRY(measure(cli, options, dir, &result, err));
    MLO_TRY(mlo_json_load_file(result.document_path, &report, err));
    verdict = mlo_recipe_expect(&all, result.observations, &results, &failed);
    json_object_set_new(json_object_get(report, "student"), "name", json_string(cli->args[1]));
    if (!results || json_object_set(report, "verdict", results) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(write_report(cli, report, err));
    MLO_TRY(print_all(cli, report, err));
    if (verdict != MLO_OK) {
        status = verdict;
        if (err)
            *err = failed;
    }
out:
    mlo_cli_scratch_remove(dir);
    mlo_step_result_clear(&result);
    mlo_recipe_free(recipe);
    free(all.expect);
    json_decref(options);
    json_decref(report);
    json_decref(results);
    return status;
}

#define OPTION_SIDE(who)                                                                                     \
    {who "-output", 0, "NAME", "the " who "'s output that is compared (the first)"},                         \
        {who "-scores", 0, "KIND", "logits, probabilities or auto"},                                         \
        {who "-normalize", 0, "SPEC", "as --normalize, for the " who " alone"},                              \
        {who "-map", 0, "INPUT=ARRAY", "as --map, for the " who " alone", NULL, true},                       \
    {                                                                                                        \
        who "-labels", 0, "FILE", "the names of the " who "'s classes: JSON, or one a line"                  \
    }

static const struct mlo_cli_option options_table[] = {
    MLO_OPTION_DATA,
    {"metric", 0, "NAME", "of both models: top1, f1, target.mse …; a list with commas is fine (what fits)",
     NULL, true},
    {"expect", 0, "CONDITION", "distill.drop.top1 <= 1pt; exit 6 where one does not hold", NULL, true},
    {"recipe", 0, "FILE|NAME", "options of its step distill-eval, and its expectations"},
    {"temperature", 0, "T", "of the divergence and the soft-label cross-entropy (4)"},
    {"task", 0, "KIND", "classes, values or auto"},
    {"slice", 0, "ARRAY", "an array of the data with the number of each sample's slice"},
    {"slices", 0, "FILE", "a text file with the slice of each sample, one a line"},
    {"mapping", 0, "FILE", "JSON, for other label sets: {\"teacher\": [0, 1, null], \"student\": [1, 0]}"},
    {"report", 0, "FILE.html|FILE.json", "a page (or its JSON) with all of it"},
    {"bins", 0, "N", "of the calibration error (15)"},
    {"shown", 0, "N", "samples that are listed (16)"},
    OPTION_SIDE("teacher"),
    OPTION_SIDE("student"),
    MLO_OPTION_LIMIT,
    MLO_OPTION_NORMALIZE,
    MLO_OPTION_MAP,
    MLO_OPTION_POSTPROCESS,
    {"engine", 0, "NAME", "cpu or reference (cpu)"},
    {"numerics", 0, "KIND", "invariant: the same bits anywhere, or fast: as they are served (invariant)"},
    MLO_OPTION_THREADS,
    {"no-latency", 0, NULL, "compare the outputs only"},
    {"batch", 0, "N[,N…]", "of the latency (1)", NULL, true},
    {"seconds", 0, "S", "of measuring, for each model and batch (1.5)"},
    {"rounds", 0, "N", "processes for each model and batch (6)"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_distill_eval = {
    .name = "distill-eval",
    .group = "Local (no server needed)",
    .run = distill_run,
    .options = options_table,
    .positional = "TEACHER.onnx STUDENT.onnx --data EVAL.npz",
    .min_args = 2,
    .max_args = 2,
    .help = "compare a student with its teacher on the same samples",
    .detail = "mlopt distill-eval teacher.onnx student.onnx --data test.npz --report student.html\n"
              "mlopt distill-eval teacher.onnx student.onnx --data test.npz \\\n"
              "    --expect 'distill.drop.top1 <= 1pt' --expect 'distill.latency_ratio.p50 <= 0.5'\n",
};
