/* report: one JSON that explains a variant: size, accuracy, which nodes run in which precision and why the
 * others do not, signal to noise and histogram of every tensor with the range that was chosen, the worst
 * samples. Its form is in docs/reports.md. The bytes depend on the models, the data and what the steps before
 * reported, and on nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/report_impl.h"

static const struct mlo_option_spec OPTIONS[] = {
    {.name = "samples",
     .type = MLO_OPT_INT,
     .fallback = "32",
     .min = 1,
     .max = 1 << 20,
     .description = "samples that tensors are compared on, the first of the calibration data"},
    {.name = "evaluate_samples",
     .type = MLO_OPT_INT,
     .fallback = "0",
     .min = 0,
     .max = 1 << 30,
     .description =
         "samples that both models are judged on, the first of the evaluation data; 0: all of them"},
    {.name = "metrics",
     .type = MLO_OPT_STRINGS,
     .fallback = "",
     .description = "names of the metric table; none: what fits the data"},
    {NULL},
};

/* The data that a part of the report reads: the first role that is there. */
static enum mlo_status open_role(const struct mlo_step_context *ctx, const char *const roles[2],
                                 int64_t limit, const struct mlo_model *model, struct mlo_dataset **out,
                                 const char **role, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    *out = NULL;
    *role = NULL;
    for (int i = 0; i < 2 && !*role; i++) {
        bool observed = strcmp(roles[i], "calibrate") == 0;
        const char *path = observed ? ctx->calibrate_path : ctx->evaluate_path;
        int64_t least = observed && ctx->reading ? ctx->reading->limit : 0;
        if (!path)
            continue;
        *role = roles[i];
        least = limit && least ? MLO_MIN(limit, least) : MLO_MAX(limit, least);
        MLO_TRY(mlo_step_open_dataset(ctx, path, least, out, err));
        MLO_TRY(mlo_dataset_check(*out, model, err));
    }
    if (*out && mlo_dataset_count(*out) == 0) {
        mlo_dataset_close(*out);
        *out = NULL;
        *role = NULL;
    }
out:
    return status;
}

enum mlo_status mlo_report_bound(const struct mlo_model *model, const struct mlo_dataset *dataset,
                                 int64_t batch, struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status;
    *out = NULL;
    if (dataset)
        MLO_TRY(mlo_dataset_fit(dataset, model, out, err));
    if (!*out)
        MLO_TRY(mlo_model_clone_borrowing(model, out, err));
    MLO_TRY(mlo_graph_bind_batch((*out)->graph, batch, err));
out:
    if (status != MLO_OK) {
        mlo_model_free(*out);
        *out = NULL;
    }
    return status;
}

static double bytes_of_weights(const struct mlo_graph *graph)
{
    double bytes = 0;
    for (int i = 0; i < graph->value_count; i++)
        if (graph->values[i]->constant)
            bytes += (double)graph->values[i]->constant->size_bytes;
    return bytes;
}

enum mlo_status mlo_report_model_json(const char *path, const struct mlo_model *model, json_t **out,
                                      struct mlo_error *err)
{
    struct mlo_digest digest;
    uint64_t size;
    char text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = mlo_digest_of_file(path, &digest, &size, err);
    if (status != MLO_OK)
        return status;
    *out = json_pack("{s:s,s:I,s:f,s:i,s:I}", "digest", mlo_digest_text(&digest, text), "file_bytes",
                     (json_int_t)size, "weight_bytes", bytes_of_weights(model->graph), "nodes",
                     model->graph->node_count, "opset", (json_int_t)mlo_model_opset(model, ""));
    return *out ? MLO_OK : mlo_error_nomem(err);
}

/* The steps that made it, without what they cost; the choice of a budget is part of how. */
static json_t *steps_json(const json_t *history)
{
    json_t *out = json_array(), *step;
    size_t i;
    json_array_foreach((json_t *)history, i, step)
    {
        const json_t *mixed = json_object_get(json_object_get(step, "report"), "mixed_precision");
        json_array_append_new(out,
                              json_pack("{s:s,s:O,s:O*}", "step", mlo_json_str(step, "step", ""), "options",
                                        json_object_get(step, "options"), "mixed_precision", mixed));
    }
    return out;
}

static void add_notes(json_t *out, const char *step, const json_t *notes)
{
    size_t i;
    json_t *note;
    json_array_foreach((json_t *)notes, i, note) json_array_append_new(
        out, json_pack("{s:s,s:s,s:s}", "step", step, "node", mlo_json_str(note, "node", ""), "note",
                       mlo_json_str(note, "note", "")));
}

static json_t *notes_json(const json_t *history)
{
    json_t *out = json_array(), *step, *pass;
    size_t i, k;
    json_array_foreach((json_t *)history, i, step)
    {
        const char *name = mlo_json_str(step, "step", "");
        const json_t *report = json_object_get(step, "report");
        add_notes(out, name, json_object_get(report, "notes"));
        json_array_foreach(json_object_get(report, "passes"), k, pass)
            add_notes(out, name, json_object_get(pass, "notes"));
    }
    return out;
}

/* Makes weights behind DequantizeLinear constants of the floats that it computes of them: the invariant
 * numerics pack constant weights, and take others with plain kernels. */
static enum mlo_status weights_to_floats(struct mlo_model *model, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *graph = model->graph;
    for (int n = graph->node_count - 1; n >= 0; n--) {
        struct mlo_node *node = graph->nodes[n];
        const struct mlo_tensor *in[] = {mlo_node_const(node, 0), mlo_node_const(node, 1),
                                         mlo_node_const(node, 2)};
        struct mlo_tensor floats = {0}, *out[] = {&floats};
        if (!mlo_node_is(node, "DequantizeLinear") || node->input_count > 3 || !in[0] || !in[1] ||
            (mlo_node_input(node, 2) && !in[2]) || node->outputs[0]->is_output)
            continue;
        MLO_TRY(mlo_node_eval(node, in, out, err));
        MLO_TRY(mlo_value_make_constant_take(node->outputs[0], &floats, err));
        mlo_graph_remove_node(node);
    }
    mlo_graph_remove_unused_values(graph);
out:
    return status;
}

struct inputs {
    struct mlo_model *source, *reference, *variant, *running, *bound;
    struct mlo_dataset *observed, *judged;
    const char *observed_role, *judged_role;
};

static enum mlo_status load(const struct mlo_step_context *ctx, struct inputs *in, struct mlo_error *err)
{
    static const char *const OBSERVED[] = {"calibrate", "evaluate"}, *const JUDGED[] = {"evaluate",
                                                                                        "calibrate"};
    enum mlo_status status;
    const char *parent = ctx->parent_path ? ctx->parent_path : ctx->source_path;
    MLO_TRY(mlo_step_load(ctx->source_path, &in->source, err));
    MLO_TRY(mlo_step_load(parent, &in->reference, err));
    MLO_TRY(mlo_step_load(ctx->model_path, &in->variant, err));
    MLO_TRY(mlo_model_clone_borrowing(in->variant, &in->running, err));
    MLO_TRY(weights_to_floats(in->running, err));
    MLO_TRY(open_role(ctx, OBSERVED, 0, in->reference, &in->observed, &in->observed_role, err));
    MLO_TRY(open_role(ctx, JUDGED, mlo_json_i64(ctx->options, "evaluate_samples", 0), in->source, &in->judged,
                      &in->judged_role, err));
    MLO_TRY(mlo_report_bound(in->reference, in->observed, 1, &in->bound, err));
out:
    return status;
}

static json_t *data_json(const struct inputs *in, int64_t samples)
{
    json_t *out = json_object();
    if (in->observed)
        json_object_set_new(out, "tensors",
                            json_pack("{s:s,s:I,s:I}", "role", in->observed_role, "samples",
                                      (json_int_t)MLO_MIN(samples, mlo_dataset_count(in->observed)), "of",
                                      (json_int_t)mlo_dataset_count(in->observed)));
    if (in->judged)
        json_object_set_new(out, "accuracy",
                            json_pack("{s:s,s:I}", "role", in->judged_role, "samples",
                                      (json_int_t)mlo_dataset_count(in->judged)));
    return out;
}

/* Adds a member; false: it was not made. */
/* What the last step without data said of the outputs on made-up inputs; NULL: none did. */
static json_t *deviation_of(const json_t *history)
{
    for (size_t i = json_array_size(history); i > 0; i--) {
        json_t *found =
            json_object_get(json_object_get(json_array_get(history, i - 1), "report"), "deviation");
        if (found)
            return found;
    }
    return NULL;
}

static bool put(json_t *object, const char *key, json_t *value)
{
    return value && json_object_set_new(object, key, value) == 0;
}

static enum mlo_status assemble(const struct mlo_step_context *ctx, struct inputs *in, json_t *out,
                                struct mlo_error *err)
{
    enum mlo_status status;
    int64_t samples = mlo_json_i64(ctx->options, "samples", 32);
    json_t *none = json_array(), *made = NULL, *worst = NULL;
    struct mlo_report_subject s = {.ctx = ctx,
                                   .source = in->source,
                                   .reference = in->reference,
                                   .variant = in->variant,
                                   .running = in->running,
                                   .history = ctx->history ? ctx->history : none,
                                   .from = 0.05,
                                   .to = in->judged ? 0.5 : 1};
    bool ok = put(out, "format", json_string(MLO_REPORT_FORMAT)) &&
              put(out, "numerics", json_string(MLO_NUMERICS_ID)) &&
              put(out, "data", data_json(in, samples)) && put(out, "steps", steps_json(s.history)) &&
              put(out, "notes", notes_json(s.history));
    if (deviation_of(s.history))
        ok = ok && json_object_set(out, "deviation", deviation_of(s.history)) == 0;
    MLO_TRY(mlo_report_model_json(ctx->source_path, in->source, &made, err));
    ok = ok && put(out, "source", made);
    MLO_TRY(mlo_report_model_json(ctx->model_path, in->variant, &made, err));
    ok = ok && put(out, "variant", made);
    MLO_TRY(mlo_report_precision(&s, in->bound, &made, err));
    ok = ok && put(out, "precision", made);
    MLO_TRY(mlo_report_tensors(&s, in->observed, samples, &made, err));
    ok = ok && put(out, "tensors", made);
    if (in->judged) {
        s.from = s.to;
        s.to = 0.99;
        MLO_TRY(mlo_report_accuracy(&s, in->judged, json_object_get(ctx->options, "metrics"), &made, &worst,
                                    err));
        ok = ok && put(out, "accuracy", made) && put(out, "samples", worst);
    }
    if (!ok)
        status = mlo_error_nomem(err);
out:
    json_decref(none);
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    enum mlo_status status;
    struct inputs in = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *report = json_object();
    char *path = mlo_fs_join(ctx->out_dir, "report.json", NULL);
    if (!report || !path) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(load(ctx, &in, err));
    MLO_TRY(assemble(ctx, &in, report, err));
    mlo_json_canonical(report, &text);
    if (!mlo_buf_ok(&text)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_fs_write_atomic(path, mlo_buf_str(&text), text.len, err));
    out->document_path = path;
    path = NULL;
    out->report = json_pack("{s:i,s:i}", "tensors", (int)json_array_size(json_object_get(report, "tensors")),
                            "nodes", in.variant->graph->node_count);
    if (!out->report)
        status = mlo_error_nomem(err);
out:
    mlo_dataset_close(in.observed);
    mlo_dataset_close(in.judged);
    mlo_model_free(in.bound);
    mlo_model_free(in.source);
    mlo_model_free(in.reference);
    mlo_model_free(in.running);
    mlo_model_free(in.variant);
    mlo_buf_clear(&text);
    json_decref(report);
    free(path);
    return status;
}

const struct mlo_step mlo_step_report = {
    .name = "report",
    .kind = MLO_STEP_OBSERVE,
    .revision = 2,
    .takes_calibrate = true,
    .takes_evaluate = true,
    .reads_history = true,
    .makes_document = true,
    .options = OPTIONS,
    .run = run,
    .description =
        "explains the variant: precision of each node, noise and range of each tensor, worst samples",
};
