/* Signal to quantization noise of every tensor, and how its values lie within what was chosen for them. Both
 * models run on the same samples, one after the other, on the invariant numerics. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/report_impl.h"

enum { BINS = 64 };
static const size_t KEPT_BYTES_MAX = (size_t)128
                                     << 20; /* of the float model's values, between the two runs */

double mlo_report_db(double signal, double noise)
{
    if (!isfinite(noise) || !isfinite(signal))
        return -MLO_SQNR_MAX_DB;
    if (noise == 0)
        return MLO_SQNR_MAX_DB;
    if (signal == 0)
        return -MLO_SQNR_MAX_DB;
    double db = 10 * log10(signal / noise);
    return rint(fmax(-MLO_SQNR_MAX_DB, fmin(MLO_SQNR_MAX_DB, db)) * 100) / 100;
}

json_t *mlo_report_histogram(const struct mlo_tensor_stats *t, int most)
{
    int first = 0, last = MLO_HIST_BINS - 1, log2_group = 0;
    while (first <= last && !t->bins[first])
        first++;
    while (last >= first && !t->bins[last])
        last--;
    if (first > last)
        return NULL;
    /* groups begin at multiples of their width, so that 0 is an edge */
    while ((last >> log2_group) - (first >> log2_group) + 1 > most)
        log2_group++;
    int begin = first >> log2_group, count = (last >> log2_group) - begin + 1, size = 1 << log2_group;
    json_t *counts = json_array();
    for (int g = 0; g < count; g++) {
        uint64_t sum = 0;
        for (int b = (begin + g) * size; b < (begin + g + 1) * size; b++)
            sum += t->bins[b];
        json_array_append_new(counts, json_integer((json_int_t)sum));
    }
    return json_pack("{s:f,s:f,s:o}", "low", ldexp(begin * size - MLO_HIST_BINS / 2, t->log2_width), "width",
                     ldexp(size, t->log2_width), "counts", counts);
}

/* --- what is added up ---------------------------------------------------------------------------------- */

struct meter {
    const struct mlo_report_pair *pair;
    struct mlo_tensor_stats *stats; /* of the float model's values */
    struct mlo_stats owner;
    double signal, noise, grid_noise;
    uint64_t outside; /* values beyond the grid */
    bool comparable;  /* both have as many values */
    float *kept;      /* of the sample at hand */
    size_t kept_count, kept_cap;
};

static void add_grid_noise(struct meter *m, const struct mlo_report_grid *g, const float *x, size_t count)
{
    double noise = 0;
    for (size_t i = 0; i < count; i++) {
        double q = rint((double)x[i] / (double)g->scale) + (double)g->zero;
        double kept = fmax((double)g->low, fmin((double)g->high, q));
        double d = (double)x[i] - (kept - (double)g->zero) * (double)g->scale;
        m->outside += q != kept;
        noise += d * d;
    }
    m->grid_noise += noise;
}

/* Keeps a sample's values of the float model. */
static enum mlo_status keep(struct meter *m, const float *x, size_t count, struct mlo_error *err)
{
    double signal = 0;
    if (count > m->kept_cap) {
        float *more = realloc(m->kept, count * sizeof *more);
        if (!more)
            return mlo_error_nomem(err);
        m->kept = more;
        m->kept_cap = count;
    }
    memcpy(m->kept, x, count * sizeof *x);
    m->kept_count = count;
    for (size_t i = 0; i < count; i++)
        signal += (double)x[i] * (double)x[i];
    m->signal += signal;
    if (m->pair->grid.dtype != MLO_DTYPE_NONE)
        add_grid_noise(m, &m->pair->grid, x, count);
    return mlo_tensor_stats_add(m->stats, x, count, err);
}

/* Compares the variant's values of the sample with what was kept. */
static void compare(struct meter *m, const float *y, size_t count)
{
    const struct mlo_report_grid *g = &m->pair->grid;
    double noise = 0;
    if (count != m->kept_count) {
        m->comparable = false;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        double v = (double)y[i];
        if (m->pair->integers)
            v = (v - (double)g->zero) * (double)g->scale;
        double d = (double)m->kept[i] - v;
        noise += d * d;
    }
    m->noise += noise;
}

/* --- running ------------------------------------------------------------------------------------------- */

/* One of the two models, compiled to show the values of a group of meters. */
struct runner {
    const struct mlo_model *model;
    struct mlo_model *fitted;
    const struct mlo_engine *engine;
    struct mlo_plan *plan;
    struct mlo_program *program;
    struct mlo_tensor *inputs, *outputs;
    const char **names;
    struct meter *meters;
    size_t count, next; /* values come in the order of the names */
    bool reference;
};

static void runner_clear(struct runner *r)
{
    if (r->program)
        r->engine->unload(r->program);
    if (r->plan)
        r->engine->free_plan(r->plan);
    for (int i = 0; r->outputs && i < r->model->graph->output_count; i++)
        mlo_tensor_clear(&r->outputs[i]);
    for (int i = 0; r->inputs && i < r->model->graph->input_count; i++)
        mlo_tensor_clear(&r->inputs[i]);
    mlo_model_free(r->fitted);
    free(r->inputs);
    free(r->outputs);
    free(r->names);
}

static enum mlo_status runner_init(struct runner *r, const struct mlo_report_subject *s,
                                   struct mlo_dataset *dataset, int64_t batch, struct mlo_error *err)
{
    enum mlo_status status;
    r->names = calloc(r->count + 1, sizeof *r->names);
    r->inputs = calloc((size_t)r->model->graph->input_count + 1, sizeof *r->inputs);
    r->outputs = calloc((size_t)r->model->graph->output_count + 1, sizeof *r->outputs);
    if (!r->names || !r->inputs || !r->outputs)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < r->count; i++)
        r->names[i] = r->reference ? r->meters[i].pair->name : r->meters[i].pair->variant;
    const struct mlo_compile_options options = {.batch = batch,
                                                .numerics = MLO_NUMERICS_INVARIANT,
                                                .threads = s->ctx->threads,
                                                .observe = r->names,
                                                .observe_count = r->count};
    MLO_TRY(mlo_engine_find("cpu", &r->engine, err));
    MLO_TRY(r->engine->probe(err));
    MLO_TRY(mlo_dataset_fit(dataset, r->model, &r->fitted, err));
    MLO_TRY(r->engine->compile(r->fitted ? r->fitted : r->model, &options, &r->plan, err));
    MLO_TRY(r->engine->load(r->plan, &r->program, err));
out:
    return status;
}

static enum mlo_status take(void *arg, const char *name, const struct mlo_tensor *value,
                            struct mlo_error *err)
{
    struct runner *r = arg;
    for (size_t tried = 0; tried < r->count; tried++) {
        size_t i = (r->next + tried) % r->count;
        if (strcmp(r->names[i], name) != 0)
            continue;
        r->next = i + 1;
        if (r->reference)
            return keep(&r->meters[i], value->data, mlo_tensor_count(value), err);
        compare(&r->meters[i], value->data, mlo_tensor_count(value));
        return MLO_OK;
    }
    return MLO_OK;
}

static enum mlo_status run_batch(struct runner *r, struct mlo_dataset *dataset, int64_t at, int64_t batch,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    r->next = 0;
    MLO_TRY(mlo_dataset_read(dataset, r->model, at, batch, r->inputs, err));
    MLO_TRY(r->engine->observe(r->program, r->inputs, r->outputs, take, r, err));
out:
    for (int i = 0; i < r->model->graph->input_count; i++)
        mlo_tensor_clear(&r->inputs[i]);
    return status;
}

/* Where a group of meters stands among all, for progress. */
struct part {
    struct meter *meters;
    size_t count, before, all;
    int64_t batch, samples;
};

static enum mlo_status run_group(const struct mlo_report_subject *s, struct mlo_dataset *dataset,
                                 const struct part *p, struct mlo_error *err)
{
    enum mlo_status status;
    struct runner reference = {
        .model = s->reference, .meters = p->meters, .count = p->count, .reference = true};
    struct runner variant = {.model = s->running, .meters = p->meters, .count = p->count};
    MLO_TRY(runner_init(&reference, s, dataset, p->batch, err));
    MLO_TRY(runner_init(&variant, s, dataset, p->batch, err));
    for (int64_t at = 0; at + p->batch <= p->samples; at += p->batch) {
        MLO_TRY(run_batch(&reference, dataset, at, p->batch, err));
        MLO_TRY(run_batch(&variant, dataset, at, p->batch, err));
        double done = ((double)p->before + (double)p->count * (double)(at + p->batch) / (double)p->samples) /
                      (double)p->all;
        mlo_step_progress(s->ctx, s->from + (s->to - s->from) * done, "comparing tensors");
    }
out:
    runner_clear(&reference);
    runner_clear(&variant);
    return status;
}

/* What a meter keeps of one run; 0 where that is not known before. */
static size_t kept_bytes(const struct mlo_model *bound, const char *name)
{
    int64_t dims[MLO_MAX_RANK];
    const struct mlo_value *value = mlo_graph_value(bound->graph, name);
    size_t bytes;
    if (!value || !mlo_type_static(&value->type, dims) ||
        !mlo_shape_bytes(MLO_FLOAT32, value->type.rank, dims, &bytes))
        return 0;
    return bytes;
}

/* All meters, so many at a time as fit the memory that is meant for them. */
static enum mlo_status run_all(const struct mlo_report_subject *s, struct mlo_dataset *dataset,
                               int64_t samples, struct meter *meters, size_t count, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *bound = NULL;
    int64_t batch;
    MLO_TRY(mlo_model_fixed_batch(s->reference, &batch, err));
    batch = batch ? batch : 1; /* one at a time: whatever has no row for each sample is compared, too */
    samples = MLO_MIN(samples, mlo_dataset_count(dataset));
    MLO_TRY(mlo_report_bound(s->reference, dataset, batch, &bound, err));
    for (size_t from = 0, to; from < count; from = to) {
        size_t bytes = 0;
        for (to = from; to < count; to++) {
            bytes += kept_bytes(bound, meters[to].pair->name);
            if (bytes > KEPT_BYTES_MAX && to > from)
                break;
        }
        const struct part part = {meters + from, to - from, from, count, batch, samples};
        MLO_TRY(run_group(s, dataset, &part, err));
        for (size_t i = from; i < to; i++) {
            free(meters[i].kept);
            meters[i].kept = NULL;
        }
    }
out:
    mlo_model_free(bound);
    return status;
}

/* --- as JSON ------------------------------------------------------------------------------------------- */

static bool set(json_t *object, const char *key, json_t *value)
{
    return value && json_object_set_new(object, key, value) == 0;
}

static bool set_values(json_t *row, const struct mlo_tensor_stats *t)
{
    json_t *histogram = mlo_report_histogram(t, BINS);
    return set(row, "count", json_integer((json_int_t)t->count)) &&
           (!t->count || set(row, "observed", json_pack("[f,f]", (double)t->min, (double)t->max))) &&
           (!histogram || set(row, "histogram", histogram));
}

static bool set_grid(json_t *row, const struct meter *m)
{
    const struct mlo_report_grid *g = &m->pair->grid;
    double low = (double)(g->low - g->zero) * (double)g->scale,
           high = (double)(g->high - g->zero) * (double)g->scale;
    uint64_t count = m->stats->count;
    return set(row, "dtype", json_string(mlo_dtype_name(g->dtype))) &&
           set(row, "scale", json_real((double)g->scale)) && set(row, "zero_point", json_integer(g->zero)) &&
           set(row, "range", json_pack("[f,f]", low, high)) &&
           set(row, "clipped", json_real(count ? (double)m->outside / (double)count : 0)) &&
           set(row, "grid_sqnr_db", json_real(mlo_report_db(m->signal, m->grid_noise)));
}

static json_t *value_row(const struct meter *m)
{
    json_t *row = json_pack("{s:s,s:s}", "tensor", m->pair->name, "kind", "value");
    bool ok = row && set_values(row, m->stats) &&
              (m->pair->grid.dtype == MLO_DTYPE_NONE || set_grid(row, m)) &&
              (!m->comparable || !m->stats->count ||
               set(row, "sqnr_db", json_real(mlo_report_db(m->signal, m->noise))));
    if (ok)
        return row;
    json_decref(row);
    return NULL;
}

static enum mlo_status values(const struct mlo_report_subject *s, struct mlo_dataset *dataset,
                              int64_t samples, json_t *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_report_pair *pairs;
    struct meter *meters = NULL;
    size_t count = 0;
    if (!arena)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_report_pairs(s->reference->graph, s->variant->graph, arena, &pairs, &count, err));
    meters = calloc(count + 1, sizeof *meters);
    if (!meters) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        meters[i].pair = &pairs[i];
        meters[i].comparable = true;
        mlo_stats_init(&meters[i].owner);
        if (!(meters[i].stats = mlo_stats_get(&meters[i].owner, pairs[i].name))) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    if (count > 0)
        MLO_TRY(run_all(s, dataset, samples, meters, count, err));
    for (size_t i = 0; i < count; i++)
        if (json_array_append_new(out, value_row(&meters[i])) != 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
out:
    for (size_t i = 0; meters && i < count; i++) {
        free(meters[i].kept);
        mlo_stats_clear(&meters[i].owner);
    }
    free(meters);
    mlo_arena_free(arena);
    return status;
}

static enum mlo_status weight_row(const struct mlo_node *node, const struct mlo_value *value, const float *w,
                                  enum mlo_dtype dtype, size_t scales, json_t *out, struct mlo_error *err)
{
    enum mlo_status status;
    const float *x = value->constant->data;
    size_t count = mlo_tensor_count(value->constant);
    double signal = 0, noise = 0;
    struct mlo_stats owner;
    mlo_stats_init(&owner);
    struct mlo_tensor_stats *stats = mlo_stats_get(&owner, value->name);
    json_t *row = json_pack("{s:s,s:s,s:s,s:s,s:I}", "tensor", value->name, "kind", "weights", "node",
                            node->name, "dtype", mlo_dtype_name(dtype), "scales", (json_int_t)scales);
    if (!stats || !row) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        double d = (double)x[i] - (double)w[i];
        signal += (double)x[i] * (double)x[i];
        noise += d * d;
    }
    MLO_TRY(mlo_tensor_stats_add(stats, x, count, err));
    if (!set_values(row, stats) || !set(row, "sqnr_db", json_real(mlo_report_db(signal, noise))) ||
        json_array_append(out, row) != 0)
        status = mlo_error_nomem(err);
out:
    json_decref(row);
    mlo_stats_clear(&owner);
    return status;
}

/* Weights that are stored in another form than the float model's. */
static enum mlo_status weights(const struct mlo_report_subject *s, json_t *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int hint = 0;
    float *w = NULL;
    for (int n = 0; n < s->reference->graph->node_count; n++) {
        const struct mlo_node *node = s->reference->graph->nodes[n];
        const struct mlo_tensor *x = mlo_node_const(node, 1);
        enum mlo_dtype dtype = MLO_DTYPE_NONE;
        size_t scales;
        if (!node->op || !(node->op->flags & MLO_OP_WEIGHTED) || !x || x->dtype != MLO_FLOAT32)
            continue;
        const struct mlo_node *made = mlo_report_partner(s->variant->graph, true, node, &hint);
        if (!made)
            continue;
        MLO_TRY(mlo_report_weights_of(made, node, &w, &dtype, &scales, err));
        if (w && dtype != MLO_FLOAT32)
            MLO_TRY(weight_row(node, node->inputs[1], w, dtype, scales, out, err));
        free(w);
        w = NULL;
    }
out:
    free(w);
    return status;
}

/* Those without a ratio come last; equal ones by name, then weights behind values. */
static int worst_first(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    double p = mlo_json_f64(x, "sqnr_db", 2 * MLO_SQNR_MAX_DB),
           q = mlo_json_f64(y, "sqnr_db", 2 * MLO_SQNR_MAX_DB);
    if (p != q)
        return p < q ? -1 : 1;
    int by_name = strcmp(mlo_json_str(x, "tensor", ""), mlo_json_str(y, "tensor", ""));
    if (by_name == 0)
        by_name = strcmp(mlo_json_str(x, "kind", ""), mlo_json_str(y, "kind", ""));
    return by_name ? by_name : strcmp(mlo_json_str(x, "node", ""), mlo_json_str(y, "node", ""));
}

enum mlo_status mlo_report_tensors(const struct mlo_report_subject *s, struct mlo_dataset *dataset,
                                   int64_t samples, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *rows = json_array(), **sorted = NULL;
    *out = json_array();
    if (!rows || !*out) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (dataset)
        MLO_TRY(values(s, dataset, samples, rows, err));
    MLO_TRY(weights(s, rows, err));
    size_t count = json_array_size(rows);
    sorted = calloc(count + 1, sizeof(json_t *));
    if (!sorted) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        sorted[i] = json_array_get(rows, i);
    qsort(sorted, count, sizeof(json_t *), worst_first);
    for (size_t i = 0; i < count; i++)
        if (json_array_append(*out, sorted[i]) != 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
out:
    free(sorted);
    json_decref(rows);
    return status;
}
