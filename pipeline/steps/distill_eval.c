/* distill-eval: a student (the variant) next to its teacher, on the same samples: accuracy of both, how near
 * their outputs are, calibration, where they differ, latency and size. A measurement: nothing of it is
 * cached. What it returns is in docs/distillation.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/distill.h"
#include "pipeline/steps/report_impl.h"
#include "pipeline/steps/signature.h"

static const char *const TASKS[] = {"auto", "classes", "values", NULL};
static const char *const SCORES[] = {"auto", "logits", "probabilities", NULL};
static const char *const NUMERICS[] = {"invariant", "fast", NULL};

#define OPT_SIDE(who)                                                                                        \
    {.name = who "_output",                                                                                  \
     .type = MLO_OPT_STRING,                                                                                 \
     .fallback = "",                                                                                         \
     .description = "the " who "'s output that is compared; empty: the first"},                              \
        {.name = who "_scores",                                                                              \
         .type = MLO_OPT_STRING,                                                                             \
         .fallback = "auto",                                                                                 \
         .choices = SCORES,                                                                                  \
         .description = "what that output holds; auto: probabilities where the first samples are"},          \
        {.name = who "_normalize",                                                                           \
         .type = MLO_OPT_STRING,                                                                             \
         .fallback = "",                                                                                     \
         .description =                                                                                      \
             "how the " who " reads uint8 data (scale=1/255,mean=…,std=…); empty: as the data say"},         \
        {.name = who "_map",                                                                                 \
         .type = MLO_OPT_STRINGS,                                                                            \
         .fallback = "",                                                                                     \
         .description = "which array feeds which input of the " who ", INPUT=ARRAY"},                        \
    {                                                                                                        \
        .name = who "_classes", .type = MLO_OPT_INTS, .fallback = "", .min = -1, .max = 1 << 20,             \
        .description = "for each class of the " who " the number of the label that it stands for, -1: none"  \
    }

static const struct mlo_option_spec OPTIONS[] = {
    {.name = "teacher",
     .type = MLO_OPT_STRING,
     .fallback = "",
     .description = "the teacher: MODEL@VERSION/VARIANT, with PROJECT/ in front where it is another one's"},
    {.name = "task",
     .type = MLO_OPT_STRING,
     .fallback = "auto",
     .choices = TASKS,
     .description =
         "what the outputs are: scores of classes, or values; auto: classes where there are labels"},
    {.name = "temperature",
     .type = MLO_OPT_FLOAT,
     .fallback = "4",
     .min = 0.001,
     .max = 1000,
     .description = "of the divergence and the soft-label cross-entropy"},
    {.name = "metrics",
     .type = MLO_OPT_STRINGS,
     .fallback = "",
     .description = "names of the metric table, of both models; none: what fits the data"},
    {.name = "bins",
     .type = MLO_OPT_INT,
     .fallback = "15",
     .min = 2,
     .max = 1000,
     .description = "bins of the calibration error"},
    {.name = "slice",
     .type = MLO_OPT_STRING,
     .fallback = "",
     .description = "an array of the data with the number of each sample's slice; empty: none"},
    {.name = "shown",
     .type = MLO_OPT_INT,
     .fallback = "16",
     .min = 1,
     .max = 10000,
     .description = "samples that are listed, those farthest apart"},
    OPT_SIDE("teacher"),
    OPT_SIDE("student"),
    MLO_STEP_OPT_ENGINE,
    {.name = "numerics",
     .type = MLO_OPT_STRING,
     .fallback = "invariant",
     .choices = NUMERICS,
     .description = "of the outputs on the cpu engine: the same bits anywhere, or as they are served"},
    {.name = "latency",
     .type = MLO_OPT_BOOL,
     .fallback = "true",
     .description = "measure both in alternating processes, too"},
    MLO_STEP_OPT_BATCH("batch sizes of the latency"),
    MLO_STEP_OPT_THREADS,
    MLO_STEP_OPT_SECONDS,
    MLO_STEP_OPT_ROUNDS,
    {NULL},
};

/* --- the two sides -------------------------------------------------------------------------------------- */

struct side {
    const char *name, *path, *labels_path;
    struct mlo_model *model;
    struct mlo_dataset *dataset;
    const char *map[64];
    json_t *labels; /* of the file, or NULL */
    struct mlo_distill_side measured;
};

static const json_t *option(const struct mlo_step_context *ctx, const char *who, const char *what)
{
    char name[48];
    snprintf(name, sizeof name, "%s_%s", who, what);
    return json_object_get(ctx->options, name);
}

/* NULL where it is empty. */
static const char *text_option(const struct mlo_step_context *ctx, const char *who, const char *what)
{
    const char *text = json_string_value(option(ctx, who, what));
    return text && *text ? text : NULL;
}

static int choice(const char *const *choices, const char *text)
{
    int i = 0;
    while (choices[i] && strcmp(choices[i], text) != 0)
        i++;
    return choices[i] ? i : 0;
}

static enum mlo_status side_data(const struct mlo_step_context *ctx, struct side *s, struct mlo_error *err)
{
    struct mlo_dataset_options reading = {0};
    const json_t *map = option(ctx, s->name, "map");
    if (ctx->reading)
        reading = *ctx->reading;
    if (text_option(ctx, s->name, "normalize"))
        reading.normalize = text_option(ctx, s->name, "normalize");
    if (json_array_size(map)) {
        reading.map = s->map;
        reading.map_count = 0;
        for (size_t i = 0; i < json_array_size(map) && i < MLO_COUNT(s->map); i++)
            s->map[reading.map_count++] = json_string_value(json_array_get(map, i));
    }
    return mlo_dataset_open(ctx->evaluate_path, &reading, &s->dataset, err);
}

static enum mlo_status side_open(const struct mlo_step_context *ctx, struct side *s, struct mlo_error *err)
{
    enum mlo_status status;
    json_t *read = NULL;
    MLO_TRY(mlo_step_load(s->path, &s->model, err));
    MLO_TRY(side_data(ctx, s, err));
    if (s->labels_path) {
        MLO_TRY(mlo_labels_read(s->labels_path, &read, err));
        s->labels = json_incref(json_object_get(read, "names"));
    }
    const json_t *classes = option(ctx, s->name, "classes");
    s->measured = (struct mlo_distill_side){
        .model = s->model,
        .dataset = s->dataset,
        .output = text_option(ctx, s->name, "output"),
        .scores = (enum mlo_distill_scores)choice(SCORES, json_string_value(option(ctx, s->name, "scores"))),
        .labels = s->labels,
        .classes = json_array_size(classes) ? classes : NULL};
out:
    json_decref(read);
    if (status != MLO_OK)
        mlo_error_prefix(err, "the %s", s->name);
    return status;
}

static void side_clear(struct side *s)
{
    mlo_dataset_close(s->dataset);
    mlo_model_free(s->model);
    json_decref(s->labels);
}

/* --- observations --------------------------------------------------------------------------------------- */

struct observing {
    const struct mlo_step_context *ctx;
    const struct mlo_engine *engine;
    const char *teacher; /* its digest */
    json_t *out;
    json_t *missing; /* what could not be measured: {"metric","params","why"} */
};

/* An estimate as the report has it, or why it has none (borrowed). */
struct seen {
    struct mlo_estimate estimate;
    const char *missing;
};

/* One number about the student. `key` and `value`: a parameter beside the teacher; or NULL. What is no number
 * is no evidence: it is kept with its reason, and no condition that names it holds. */
static enum mlo_status observe(const struct observing *o, const char *metric, const char *unit,
                               const char *role, const struct seen *what, const char *key, const char *value,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *why = what->missing ? what->missing : mlo_estimate_missing(&what->estimate);
    json_t *params = json_pack("{s:s}", "teacher", o->teacher), *seen = NULL;
    if (!params || (key && json_object_set_new(params, key, json_string(value)) != 0))
        status = mlo_error_nomem(err);
    else if (why) {
        json_t *row = json_pack("{s:s,s:O,s:s}", "metric", metric, "params", params, "why", why);
        if (!row || json_array_append_new(o->missing, row) != 0)
            status = mlo_error_nomem(err);
    } else if (!(seen = mlo_step_observation("variant", metric, params, unit, &what->estimate,
                                             MLO_DISTILL_PROTOCOL, o->engine)) ||
               (role && json_object_set_new(seen, "data_role", json_string(role)) != 0) ||
               json_array_append(o->out, seen) != 0)
        status = mlo_error_nomem(err);
    json_decref(params);
    json_decref(seen);
    return status;
}

static struct seen seen_of(const json_t *e)
{
    double value = mlo_json_f64(e, "value", NAN);
    return (struct seen){
        {value, mlo_json_f64(e, "low", value), mlo_json_f64(e, "high", value), mlo_json_i64(e, "n", 0)},
        mlo_json_str(e, "missing", NULL)};
}

/* What the student lost: positive where it is worse than the teacher. */
static struct seen drop_of(const json_t *difference, bool higher_is_better)
{
    struct seen s = seen_of(difference);
    const struct mlo_estimate d = s.estimate;
    if (higher_is_better) /* 0 - x, so that no loss is 0 and not -0 */
        s.estimate = (struct mlo_estimate){0 - d.value, 0 - d.high, 0 - d.low, d.n};
    return s;
}

static enum mlo_status observe_metrics(const struct observing *o, const json_t *report, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const json_t *row;
    size_t i;
    char name[96];
    json_array_foreach(json_object_get(report, "metrics"), i, row)
    {
        const char *metric = mlo_json_str(row, "metric", ""), *unit = mlo_json_str(row, "unit", "");
        const char *const sides[] = {"teacher", "student"};
        for (size_t s = 0; s < MLO_COUNT(sides); s++) {
            struct seen e = seen_of(json_object_get(row, sides[s]));
            snprintf(name, sizeof name, "distill.%s.%s", sides[s], metric);
            MLO_TRY(observe(o, name, unit, "evaluate", &e, NULL, NULL, err));
        }
        struct seen drop =
            drop_of(json_object_get(row, "difference"), mlo_json_bool(row, "higher_is_better", true));
        snprintf(name, sizeof name, "distill.drop.%s", metric);
        MLO_TRY(observe(o, name, unit, "evaluate", &drop, NULL, NULL, err));
    }
out:
    return status;
}

static enum mlo_status observe_distances(const struct observing *o, const json_t *report,
                                         struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const json_t *row;
    size_t i;
    char name[96], temperature[32];
    snprintf(temperature, sizeof temperature, "%g", mlo_json_f64(report, "temperature", 1));
    json_array_foreach(json_object_get(report, "distances"), i, row)
    {
        const char *metric = mlo_json_str(row, "metric", "");
        bool tempered = strcmp(metric, "kl") == 0 || strcmp(metric, "cross_entropy") == 0;
        struct seen e = seen_of(row);
        snprintf(name, sizeof name, "distill.%s", metric);
        MLO_TRY(observe(o, name, mlo_json_str(row, "unit", ""), "evaluate", &e,
                        tempered ? "temperature" : NULL, temperature, err));
    }
out:
    return status;
}

static enum mlo_status observe_calibration(const struct observing *o, const json_t *report,
                                           struct mlo_error *err)
{
    static const char *const schemes[] = {"equal_width", "equal_mass"};
    enum mlo_status status = MLO_OK;
    const json_t *calibration = json_object_get(report, "calibration");
    for (size_t k = 0; calibration && k < MLO_COUNT(schemes); k++) {
        const json_t *student = json_object_get(json_object_get(calibration, "student"), schemes[k]);
        struct seen own = seen_of(json_object_get(student, "ece")),
                    more = seen_of(json_object_get(json_object_get(calibration, "difference"), schemes[k]));
        MLO_TRY(observe(o, "distill.ece", "fraction", "evaluate", &own, "bins", schemes[k], err));
        MLO_TRY(observe(o, "distill.drop.ece", "fraction", "evaluate", &more, "bins", schemes[k], err));
    }
out:
    return status;
}

static enum mlo_status observe_worst(const struct observing *o, const json_t *report, struct mlo_error *err)
{
    static const char *const kinds[][2] = {{"class", "distill.drop.worst_class"},
                                           {"slice", "distill.drop.worst_slice"}};
    enum mlo_status status = MLO_OK;
    for (size_t k = 0; k < MLO_COUNT(kinds); k++) {
        const json_t *worst = json_object_get(json_object_get(report, "worst"), kinds[k][0]);
        if (!worst)
            continue;
        struct seen drop = drop_of(worst, true);
        MLO_TRY(observe(o, kinds[k][1], "fraction", "evaluate", &drop, NULL, NULL, err));
    }
out:
    return status;
}

/* --- size and latency ----------------------------------------------------------------------------------- */

static enum mlo_status sizes(const struct observing *o, const struct side sides[2], json_t *report,
                             struct mlo_error *err)
{
    static const struct {
        const char *member, *metric;
    } rows[] = {{"file_bytes", "distill.size_ratio"}, {"weight_bytes", "distill.weights_ratio"}};
    enum mlo_status status = MLO_OK;
    json_t *facts = NULL;
    for (int s = 0; s < 2; s++) {
        MLO_TRY(mlo_report_model_json(sides[s].path, sides[s].model, &facts, err));
        int failed = json_object_update(json_object_get(report, sides[s].name), facts);
        json_decref(facts);
        if (failed) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        const json_t *teacher = json_object_get(json_object_get(report, "teacher"), rows[i].member),
                     *student = json_object_get(json_object_get(report, "student"), rows[i].member);
        double ratio = json_number_value(student) / json_number_value(teacher);
        const struct seen e = {{ratio, ratio, ratio, 1},
                               isfinite(ratio) ? NULL : "the teacher has no weights to compare with"};
        if (isfinite(ratio))
            json_object_set_new(report, i ? "weights_ratio" : "size_ratio", json_real(ratio));
        MLO_TRY(observe(o, rows[i].metric, "ratio", NULL, &e, NULL, NULL, err));
    }
out:
    return status;
}

static json_t *bench_json(const struct mlo_bench_side *s)
{
    return json_pack("{s:o,s:o,s:o,s:f,s:I}", "p50_us", mlo_estimate_json(&s->p50_us), "p90_us",
                     mlo_estimate_json(&s->p90_us), "p99_us", mlo_estimate_json(&s->p99_us), "throughput",
                     s->throughput, "peak_rss_bytes", (json_int_t)s->peak_rss_bytes);
}

static void bench_progress(void *arg, double fraction, const char *message)
{
    mlo_step_progress(arg, 0.6 + 0.4 * fraction, message);
}

static enum mlo_status latency(const struct observing *o, const struct side sides[2], json_t *report,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_step_context *ctx = o->ctx;
    const json_t *batches = json_object_get(ctx->options, "batch");
    struct mlo_bench_options bench = mlo_step_bench_options(ctx, o->engine);
    struct mlo_bench_result r = {0};
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(batches); i++) {
        char batch[24];
        bench.batch = json_integer_value(json_array_get(batches, i));
        snprintf(batch, sizeof batch, "%lld", (long long)bench.batch);
        MLO_TRY(mlo_bench(sides[0].path, sides[1].path, &bench, &r, bench_progress, (void *)ctx, err));
        json_t *row = json_pack("{s:I,s:i,s:o,s:o,s:o,s:o,s:O}", "batch", (json_int_t)bench.batch, "threads",
                                (int)bench.threads, "teacher", bench_json(&r.a), "student", bench_json(&r.b),
                                "ratio_p50", mlo_estimate_json(&r.ratio_p50), "ratio_p99",
                                mlo_estimate_json(&r.ratio_p99), "machine", r.machine);
        if (json_array_append_new(list, row) != 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
        const struct seen p50 = {r.ratio_p50, NULL}, p99 = {r.ratio_p99, NULL};
        MLO_TRY(observe(o, "distill.latency_ratio.p50", "ratio", NULL, &p50, "batch", batch, err));
        MLO_TRY(observe(o, "distill.latency_ratio.p99", "ratio", NULL, &p99, "batch", batch, err));
        mlo_bench_result_clear(&r);
    }
    if (json_object_set(report, "latency", list) != 0)
        status = mlo_error_nomem(err);
out:
    mlo_bench_result_clear(&r);
    json_decref(list);
    return status;
}

/* --- the step ------------------------------------------------------------------------------------------- */

static void compare_progress(void *arg, double fraction, const char *message)
{
    const struct mlo_step_context *ctx = arg;
    double share = mlo_json_bool(ctx->options, "latency", true) ? 0.6 : 1;
    mlo_step_progress(ctx, share * fraction, message);
}

static enum mlo_status compare(const struct mlo_step_context *ctx, const struct mlo_engine *engine,
                               const struct side sides[2], const struct mlo_slices *slices, json_t **report,
                               struct mlo_error *err)
{
    const json_t *names = json_object_get(ctx->options, "metrics");
    const char *metrics[16];
    size_t count = MLO_MIN(json_array_size(names), MLO_COUNT(metrics));
    for (size_t i = 0; i < count; i++)
        metrics[i] = json_string_value(json_array_get(names, i));
    const struct mlo_distill_options o = {
        .task = (enum mlo_distill_task)choice(TASKS, mlo_json_str(ctx->options, "task", "auto")),
        .temperature = mlo_json_f64(ctx->options, "temperature", 4),
        .bins = (int)mlo_json_i64(ctx->options, "bins", 15),
        .shown = (int)mlo_json_i64(ctx->options, "shown", 16),
        .run = {.engine = engine,
                .threads = ctx->threads,
                .batch = ctx->batch,
                .numerics = choice(NUMERICS, mlo_json_str(ctx->options, "numerics", "invariant"))
                                ? MLO_NUMERICS_FAST
                                : MLO_NUMERICS_INVARIANT},
        .metrics = metrics,
        .metric_count = count,
        .slices = slices,
        .progress = compare_progress,
        .progress_arg = (void *)ctx};
    return mlo_distill(&sides[0].measured, &sides[1].measured, &o, report, err);
}

static enum mlo_status save(const struct mlo_step_context *ctx, const json_t *report,
                            struct mlo_step_result *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT;
    out->document_path = mlo_fs_join(ctx->out_dir, "distill.json", NULL);
    mlo_json_canonical(report, &text);
    if (!out->document_path || !mlo_buf_ok(&text)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_fs_write_atomic(out->document_path, mlo_buf_str(&text), text.len, err));
out:
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status open_slices(const struct mlo_step_context *ctx, const struct mlo_dataset *dataset,
                                   struct mlo_slices *out, struct mlo_error *err)
{
    const char *column = mlo_json_str(ctx->options, "slice", "");
    if (ctx->slices_path)
        return mlo_slices_of_file(dataset, ctx->slices_path, out, err);
    return *column ? mlo_slices_of_column(dataset, column, out, err) : MLO_OK;
}

/* What was asked, and on what. */
static enum mlo_status describe(const struct mlo_step_context *ctx, json_t *report, struct mlo_error *err)
{
    const char *teacher = mlo_json_str(ctx->options, "teacher", ""),
               *engine = mlo_json_str(ctx->options, "engine", "");
    bool invariant =
        strcmp(engine, "cpu") == 0 && !choice(NUMERICS, mlo_json_str(ctx->options, "numerics", ""));
    int failed = json_object_set_new(report, "data_role", json_string("evaluate"));
    failed |= json_object_set_new(report, "engine", json_string(engine));
    failed |= json_object_set_new(report, "numerics", json_string(invariant ? MLO_NUMERICS_ID : "fast"));
    if (*teacher)
        failed |= json_object_set_new(json_object_get(report, "teacher"), "name", json_string(teacher));
    return failed ? mlo_error_nomem(err) : MLO_OK;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_slices slices = {0};
    struct side sides[2] = {
        {.name = "teacher", .path = ctx->teacher_path, .labels_path = ctx->teacher_labels_path},
        {.name = "student", .path = ctx->model_path, .labels_path = ctx->labels_path}};
    struct observing o = {.ctx = ctx};
    struct mlo_digest digest;
    char text[MLO_DIGEST_TEXT_SIZE];
    json_t *report = NULL;
    out->observations = o.out = json_array();
    out->report = json_object();
    o.missing = json_array();
    if (!o.out || !out->report || !o.missing) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (!ctx->teacher_path) {
        status = mlo_error_set(err, MLO_EINVAL, "the step distill-eval has no teacher");
        mlo_error_hint(err, "name one in the recipe: distill-eval: {teacher: MODEL@VERSION/VARIANT}");
        goto out;
    }
    MLO_TRY(mlo_step_engine(ctx, &o.engine, err));
    for (int s = 0; s < 2; s++)
        MLO_TRY(side_open(ctx, &sides[s], err));
    MLO_TRY(open_slices(ctx, sides[1].dataset, &slices, err));
    MLO_TRY(compare(ctx, o.engine, sides, slices.count ? &slices : NULL, &report, err));
    MLO_TRY(mlo_digest_of_file(ctx->teacher_path, &digest, NULL, err));
    o.teacher = mlo_digest_text(&digest, text);
    MLO_TRY(describe(ctx, report, err));
    MLO_TRY(sizes(&o, sides, report, err));
    MLO_TRY(observe_metrics(&o, report, err));
    MLO_TRY(observe_distances(&o, report, err));
    MLO_TRY(observe_calibration(&o, report, err));
    MLO_TRY(observe_worst(&o, report, err));
    if (mlo_json_bool(ctx->options, "latency", true))
        MLO_TRY(latency(&o, sides, report, err));
    if (json_array_size(o.missing) && json_object_set(report, "missing", o.missing) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(save(ctx, report, out, err));
out:
    mlo_slices_clear(&slices);
    side_clear(&sides[0]);
    side_clear(&sides[1]);
    json_decref(o.missing);
    json_decref(report);
    return status;
}

const struct mlo_step mlo_step_distill_eval = {
    .name = "distill-eval",
    .kind = MLO_STEP_OBSERVE,
    .revision = 1,
    .needs_evaluate = true,
    .reads_teacher = true,
    .exclusive = true,
    .makes_document = true,
    .options = OPTIONS,
    .run = run,
    .description = "compares with a teacher on evaluation data: accuracy, agreement, divergence, "
                   "calibration, latency, size",
};
