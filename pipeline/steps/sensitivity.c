/* Sensitivity: the damage at the outputs of quantizing one node alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/sensitivity.h"
#include "pipeline/steps/step_impl.h"

static double power_ratio_db(double signal, double noise)
{
    if (!(noise - noise == 0) || !(signal - signal == 0)) /* NaN or infinity */
        return -MLO_SQNR_MAX_DB;
    if (noise == 0)
        return MLO_SQNR_MAX_DB;
    if (signal == 0)
        return -MLO_SQNR_MAX_DB;
    return fmax(-MLO_SQNR_MAX_DB, fmin(MLO_SQNR_MAX_DB, 10 * log10(signal / noise)));
}

double mlo_outputs_sqnr(const struct mlo_tensor *reference, const struct mlo_tensor *outputs, int count)
{
    double worst = MLO_SQNR_MAX_DB;
    for (int o = 0; o < count; o++) {
        if (reference[o].dtype != MLO_FLOAT32 || outputs[o].dtype != MLO_FLOAT32)
            continue;
        const float *x = reference[o].data, *y = outputs[o].data;
        size_t n = mlo_tensor_count(&reference[o]);
        double signal = 0, noise = 0;
        for (size_t i = 0; i < n; i++) {
            double d = (double)x[i] - (double)y[i];
            signal += (double)x[i] * (double)x[i];
            noise += d * d;
        }
        worst = fmin(worst, power_ratio_db(signal, noise));
    }
    return worst;
}

/* --- one node at a time -------------------------------------------------------------------------------- */

struct meter {
    const struct mlo_sensitivity_request *request;
    struct mlo_run_options run;
    const struct mlo_node **nodes;
    size_t count;
    struct mlo_tensor *reference, *outputs;
    int output_count;
};

static void clear_outputs(const struct meter *m, struct mlo_tensor *outputs)
{
    for (int i = 0; outputs && i < m->output_count; i++)
        mlo_tensor_clear(&outputs[i]);
}

/* The options with every node but `only` excluded. */
static json_t *options_for(const struct meter *m, size_t only)
{
    json_t *options = json_copy((json_t *)m->request->options);
    json_t *exclude = json_copy(json_object_get(m->request->options, "exclude"));
    if (!exclude)
        exclude = json_array();
    for (size_t i = 0; i < m->count; i++)
        if (i != only)
            json_array_append_new(exclude, json_string(m->nodes[i]->name));
    /* what integers do to it is asked here, also where they are too coarse */
    if (!options || json_object_set_new(options, "exclude", exclude) != 0 ||
        json_object_set_new(options, "min_sqnr", json_real(0)) != 0) {
        json_decref(options);
        return NULL;
    }
    return options;
}

static enum mlo_status measure_one(const struct meter *m, size_t i, struct mlo_sensitivity_row *row,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *copy = NULL;
    struct mlo_pass_driver driver = {.stats = m->request->stats};
    struct mlo_pass_request pass = {.name = "quantize"};
    json_t *options = options_for(m, i);
    if (!options)
        return mlo_error_nomem(err);
    pass.options = options;
    MLO_TRY(mlo_model_clone(m->request->model, &copy, err));
    MLO_TRY(mlo_passes_run(copy, &pass, 1, &driver, err));
    MLO_TRY(mlo_run_dataset(copy, m->request->dataset, &m->run, m->outputs, NULL, NULL, err));
    row->sqnr_db = mlo_outputs_sqnr(m->reference, m->outputs, m->output_count);
    clear_outputs(m, m->outputs);
    if (m->request->judge)
        MLO_TRY(mlo_judge_drop(m->request->judge, copy, &row->drop, err));
out:
    json_decref(options);
    json_decref(driver.report);
    mlo_model_free(copy);
    if (status != MLO_OK)
        mlo_error_prefix(err, "quantizing '%s' alone", m->nodes[i]->name);
    return status;
}

/* What an earlier measurement found; false: it did not come to this node. */
static bool is_known(const struct meter *m, struct mlo_sensitivity_row *row)
{
    size_t i;
    json_t *known;
    json_array_foreach((json_t *)m->request->known, i, known)
    {
        const json_t *db = json_object_get(known, "sqnr_db");
        if (m->request->judge || !json_is_number(db) ||
            strcmp(mlo_json_str(known, "node", ""), row->node) != 0)
            continue;
        row->sqnr_db = json_number_value(db);
        return true;
    }
    return false;
}

/* Multiply-adds of one sample (or of a batch that the model fixes), on a copy whose dims are fixed; where
 * some stay open, weights stand for them. */
static enum mlo_status count_macs(const struct meter *m, struct mlo_sensitivity_row *rows,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *fitted = NULL, *bound = NULL;
    bool all = true;
    int64_t batch;
    MLO_TRY(mlo_dataset_fit(m->request->dataset, m->request->model, &fitted, err));
    if (fitted) {
        bound = fitted;
        fitted = NULL;
    } else {
        MLO_TRY(mlo_model_clone(m->request->model, &bound, err));
    }
    MLO_TRY(mlo_model_fixed_batch(bound, &batch, err));
    if (!batch)
        MLO_TRY(mlo_model_bind_dims(bound, NULL, 0, 1, err));
    MLO_TRY(mlo_graph_infer(bound->graph, err));
    for (size_t i = 0; i < m->count; i++) {
        rows[i].macs = (double)mlo_node_macs(bound->graph->nodes[m->nodes[i]->index]);
        all = all && rows[i].macs > 0;
    }
    for (size_t i = 0; i < m->count && !all; i++) {
        const struct mlo_tensor *w = mlo_node_const(m->nodes[i], 1);
        rows[i].macs = w ? (double)mlo_tensor_count(w) : 1;
    }
out:
    mlo_model_free(fitted);
    mlo_model_free(bound);
    return status;
}

static int more_sensitive_first(const void *a, const void *b)
{
    const struct mlo_sensitivity_row *x = a, *y = b;
    if (x->sqnr_db != y->sqnr_db)
        return x->sqnr_db > y->sqnr_db ? 1 : -1;
    return x->place - y->place;
}

enum mlo_status mlo_sensitivity_measure(const struct mlo_sensitivity_request *request,
                                        struct mlo_sensitivity *out, struct mlo_error *err)
{
    enum mlo_status status;
    int outputs = request->model->graph->output_count;
    struct meter m = {.request = request, .output_count = outputs};
    *out = (struct mlo_sensitivity){.arena = mlo_arena_new()};
    m.run = (struct mlo_run_options){.threads = request->threads,
                                     .batch = request->batch,
                                     .samples = request->samples,
                                     .numerics = MLO_NUMERICS_INVARIANT};
    m.reference = calloc((size_t)outputs + 1, sizeof *m.reference);
    m.outputs = calloc((size_t)outputs + 1, sizeof *m.outputs);
    if (!out->arena || !m.reference || !m.outputs) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_quantize_nodes(request->model, request->options, out->arena, &m.nodes, &m.count, err));
    out->rows = mlo_arena_calloc(out->arena, m.count + 1, sizeof *out->rows);
    if (!out->rows) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(count_macs(&m, out->rows, err));
    MLO_TRY(mlo_run_dataset(request->model, request->dataset, &m.run, m.reference, NULL, NULL, err));
    for (size_t i = 0; i < m.count; i++) {
        struct mlo_sensitivity_row *row = &out->rows[i];
        if (request->deadline_ns && mlo_clock_ns() >= request->deadline_ns)
            break;
        row->place = m.nodes[i]->index;
        row->node = mlo_arena_strdup(out->arena, m.nodes[i]->name);
        row->op = mlo_arena_strdup(out->arena, m.nodes[i]->op_type);
        if (!row->node || !row->op) {
            status = mlo_error_nomem(err);
            goto out;
        }
        bool known = is_known(&m, row);
        if (request->progress && !known)
            request->progress(request->progress_arg, (double)i / (double)m.count, row->node);
        if (!known)
            MLO_TRY(measure_one(&m, i, row, err));
        out->count = i + 1;
        if (!known && request->measured)
            MLO_TRY(request->measured(request->measured_arg, err));
    }
    qsort(out->rows, out->count, sizeof *out->rows, more_sensitive_first);
out:
    clear_outputs(&m, m.reference);
    clear_outputs(&m, m.outputs);
    free(m.reference);
    free(m.outputs);
    return status;
}

void mlo_sensitivity_clear(struct mlo_sensitivity *sensitivity)
{
    mlo_arena_free(sensitivity->arena);
    *sensitivity = (struct mlo_sensitivity){0};
}

enum mlo_status mlo_sensitivity_observe(struct mlo_sensitivity_request request, struct mlo_sensitivity *out,
                                        struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_stats stats;
    struct mlo_stats_wants wants = {0};
    struct mlo_arena *arena = mlo_arena_new();
    const struct mlo_step_context ctx = {.threads = request.threads, .batch = request.batch};
    *out = (struct mlo_sensitivity){0};
    mlo_stats_init(&stats);
    if (!arena) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_quantize_wants(request.model, request.options, arena, &wants, err));
    MLO_TRY(mlo_step_observe(&ctx, request.model, request.dataset, &wants, 0, 0, 0, &stats, err));
    request.stats = &stats;
    MLO_TRY(mlo_sensitivity_measure(&request, out, err));
out:
    mlo_stats_wants_clear(&wants);
    mlo_stats_clear(&stats);
    mlo_arena_free(arena);
    return status;
}

json_t *mlo_estimate_interval_json(const struct mlo_estimate *estimate)
{
    return json_pack("{s:f,s:f,s:f}", "value", estimate->value, "low", estimate->low, "high", estimate->high);
}

json_t *mlo_sensitivity_json(const struct mlo_sensitivity *sensitivity)
{
    json_t *out = json_array();
    for (size_t i = 0; i < sensitivity->count; i++) {
        const struct mlo_sensitivity_row *row = &sensitivity->rows[i];
        json_t *item = json_pack("{s:s,s:s,s:f,s:f}", "node", row->node, "op", row->op, "sqnr_db",
                                 row->sqnr_db, "macs", row->macs);
        if (row->drop.n > 0)
            json_object_set_new(item, "drop", mlo_estimate_interval_json(&row->drop));
        json_array_append_new(out, item);
    }
    return out;
}
