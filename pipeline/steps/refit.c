#include "pipeline/steps/refit.h"

#include <stdlib.h>
#include <string.h>

enum {
    DIM_MAX =
        3072, /* of inputs and outputs of a fit together: a matrix of 38 MB, factored in another of 75 */
    ROWS_PER_INPUT = 16, /* rows that a fit is made on, for each unknown of an output */
    ROWS_MIN = 8192,
    BATCH = 8,
    VALUES = 2,
};

/* A model cut down to what some of its values need, running. */
struct runner {
    const struct mlo_engine *engine;
    struct mlo_model *model;
    struct mlo_plan *plan;
    struct mlo_program *program;
    struct mlo_constants *constants;
    struct mlo_tensor *out;
    int place[VALUES]; /* which output a wanted value is */
};

static void runner_close(struct runner *r)
{
    if (r->engine) {
        r->engine->unload(r->program);
        r->engine->free_plan(r->plan);
    }
    for (int i = 0; r->out && i < r->model->graph->output_count; i++)
        mlo_tensor_clear(&r->out[i]);
    free(r->out);
    mlo_constants_free(r->constants);
    mlo_model_free(r->model);
    *r = (struct runner){0};
}

/* Makes the named values the only outputs. */
static enum mlo_status narrow(struct runner *r, const char *const names[VALUES], struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *g = r->model->graph;
    struct mlo_pass_request request = {"remove-dead", NULL};
    struct mlo_pass_driver driver = {0};
    for (int i = 0; i < g->output_count; i++)
        g->outputs[i]->is_output = false;
    g->output_count = 0;
    for (int i = 0; i < VALUES && names[i]; i++) {
        struct mlo_value *v = mlo_graph_value(g, names[i]);
        if (!v)
            return mlo_error_set(err, MLO_EINTERNAL, "there is no value '%s'", names[i]);
        if (i > 0 && strcmp(names[i], names[0]) == 0) {
            r->place[i] = r->place[0];
            continue;
        }
        r->place[i] = g->output_count;
        MLO_TRY(mlo_graph_add_output(g, v, err));
    }
    MLO_TRY(mlo_passes_run(r->model, &request, 1, &driver, err));
out:
    json_decref(driver.report);
    return status;
}

static enum mlo_status runner_open(struct runner *r, const struct mlo_refit_request *q,
                                   const struct mlo_model *model, int64_t batch,
                                   const char *const names[VALUES], struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_compile_options options = {.numerics = MLO_NUMERICS_INVARIANT, .threads = q->ctx->threads};
    *r = (struct runner){0};
    MLO_TRY(mlo_engine_find("cpu", &r->engine, err));
    MLO_TRY(mlo_dataset_fit(q->dataset, model, &r->model, err));
    if (!r->model)
        MLO_TRY(mlo_model_clone_borrowing(model, &r->model, err));
    MLO_TRY(mlo_graph_bind_batch(r->model->graph, batch, err));
    MLO_TRY(narrow(r, names, err));
    r->out = calloc((size_t)r->model->graph->output_count + 1, sizeof *r->out);
    r->constants = options.constants = mlo_constants_new();
    if (!r->out || !options.constants) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(r->engine->compile(r->model, &options, &r->plan, err));
    MLO_TRY(r->engine->load(r->plan, &r->program, err));
out:
    return status;
}

/* One layer's fit. */
struct layer {
    struct mlo_node *node;      /* of the pruned model */
    const char *read[VALUES];   /* there: its input, and what its outputs are added to (or NULL) */
    const char *target[VALUES]; /* in the source: what it should make, or the sum with it */
    const struct mlo_prune_kept *kept[MLO_MAX_RANK]; /* indices of the target's axes; NULL: all */
    bool joint;
};

/* --- which layers ---------------------------------------------------------------------------------- */

static int64_t reads(const struct mlo_node *node)
{
    int64_t groups, dim;
    const struct mlo_value *w = mlo_node_input(node, 1);
    if (!mlo_gram_shape(node, &groups, &dim))
        return dim;
    return mlo_node_is(node, "ConvTranspose") && w && w->type.rank > 0 ? w->type.dims[0].value : 0;
}

/* Whether each node's outputs changed on channels that stayed. */
static void mark_changed(const struct mlo_refit_request *q, bool *changed)
{
    const struct mlo_graph *now = q->pruned->graph, *was = q->source->graph;
    for (int n = 0; n < now->node_count; n++) {
        const struct mlo_node *node = now->nodes[n];
        changed[n] = reads(node) != reads(was->nodes[n]);
        for (int i = 0; i < node->input_count && !q->probe; i++)
            if (node->inputs[i] && node->inputs[i]->producer)
                changed[n] = changed[n] || changed[node->inputs[i]->producer->index];
    }
}

static const struct mlo_prune_kept *kept_of(const struct mlo_refit_request *q, const struct mlo_value *v,
                                            int axis)
{
    for (size_t i = 0; i < q->result->kept_count; i++)
        if (q->result->kept[i].axis == axis && strcmp(q->result->kept[i].value, v->name) == 0)
            return &q->result->kept[i];
    return NULL;
}

static bool same_shape(const struct mlo_value *a, const struct mlo_value *b)
{
    if (a->type.rank < 0 || a->type.rank != b->type.rank)
        return false;
    for (int d = 0; d < a->type.rank; d++)
        if (a->type.dims[d].value != b->type.dims[d].value)
            return false;
    return true;
}

/* Where what the node makes goes into a sum alone: it is fitted to what the sum lacks beside the other
 * summand as it is now, and so makes good that one's error as well. */
static void join_sum(const struct mlo_refit_request *q, struct layer *layer, const struct mlo_value *y)
{
    const struct mlo_node *add = mlo_value_sole_user(y);
    if (!add || !mlo_node_is(add, "Add"))
        return;
    const struct mlo_value *other = add->inputs[add->inputs[0] == y];
    if (!other || !other->producer || other->producer->index > layer->node->index || !same_shape(other, y) ||
        !same_shape(add->outputs[0], y))
        return;
    layer->read[1] = other->name;
    layer->target[0] = q->source->graph->nodes[add->index]->outputs[0]->name;
    layer->joint = true;
}

static void plan_layer(const struct mlo_refit_request *q, struct mlo_node *node, struct layer *layer)
{
    int input;
    const struct mlo_node *biased = mlo_refit_bias_node(node, &input);
    const struct mlo_node *end = biased ? biased : node;
    const struct mlo_value *y = end->outputs[0];
    *layer = (struct layer){.node = node, .read = {node->inputs[0]->name}, .target = {y->name}};
    for (int d = 0; d < y->type.rank; d++) /* rows may have gone as well as channels */
        layer->kept[d] = kept_of(q, y, d);
    join_sum(q, layer, y);
}

/* --- streaming ------------------------------------------------------------------------------------- */

/* Copies what stayed of `inner` numbers that axes from `axis` on span. */
static float *gather(const struct layer *layer, const struct mlo_tensor *whole, int axis, const float *x,
                     size_t inner, float *to)
{
    bool cut = false;
    for (int d = axis; d < whole->rank; d++)
        cut = cut || layer->kept[d];
    if (!cut) {
        memcpy(to, x, inner * sizeof *to);
        return to + inner;
    }
    const struct mlo_prune_kept *kept = layer->kept[axis];
    size_t step = inner / (size_t)MLO_MAX(whole->dims[axis], 1);
    int64_t count = kept ? kept->count : whole->dims[axis];
    for (int64_t i = 0; i < count; i++)
        to = gather(layer, whole, axis + 1, x + (size_t)(kept ? kept->index[i] : i) * step, step, to);
    return to;
}

/* What stayed of the target, less the other summand. */
static enum mlo_status target_of(const struct layer *layer, const struct mlo_tensor *whole,
                                 const struct mlo_tensor *other, struct mlo_tensor *out,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    int64_t dims[MLO_MAX_RANK];
    for (int d = 0; d < whole->rank; d++) {
        const struct mlo_prune_kept *kept = layer->kept[d];
        if (kept && (d == 0 || kept->before != whole->dims[d]))
            return mlo_error_set(err, MLO_EUNSUPPORTED, "rows of what it makes went too");
        dims[d] = kept ? kept->count : whole->dims[d];
    }
    MLO_TRY(mlo_tensor_init(out, MLO_FLOAT32, whole->rank, dims, err));
    float *to = out->data;
    gather(layer, whole, 0, whole->data, mlo_tensor_count(whole), to);
    if (other && mlo_tensor_count(other) != mlo_tensor_count(out)) {
        status = mlo_error_set(err, MLO_EINTERNAL, "the summands of '%s' differ in size", layer->node->name);
        goto out;
    }
    for (size_t i = 0; other && i < mlo_tensor_count(out); i++)
        to[i] -= ((const float *)other->data)[i];
out:
    return status;
}

static int64_t rows_needed(const struct mlo_gram *pair)
{
    return MLO_MAX(ROWS_PER_INPUT * pair->dim, ROWS_MIN);
}

/* A fit reads all samples; a probe no more than it needs. */
static bool wants_rows(const struct mlo_refit_request *q, const struct mlo_gram *pair)
{
    return !q->probe || (int64_t)pair->rows < rows_needed(pair);
}

static enum mlo_status add_samples(const struct mlo_refit_request *q, const struct layer *layer,
                                   struct mlo_gram *pair, const struct mlo_tensor *x,
                                   const struct mlo_tensor *y, int64_t batch, int64_t got, size_t rows,
                                   struct mlo_pool *pool, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor a = *x, b = *y;
    size_t per_a = mlo_tensor_count(x) / (size_t)batch, per_b = mlo_tensor_count(y) / (size_t)batch;
    if (x->rank < 2 || y->rank < 2 || x->dims[0] % batch || y->dims[0] % batch)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "its values have no row for each sample");
    a.dims[0] /= batch;
    b.dims[0] /= batch;
    a.owned = b.owned = false;
    for (int64_t s = 0; s < got && status == MLO_OK && wants_rows(q, pair); s++) {
        a.data = (float *)x->data + (size_t)s * per_a;
        b.data = (float *)y->data + (size_t)s * per_b;
        status = mlo_gram_pair_add(pair, layer->node, &a, &b, rows, pool, err);
    }
    return status;
}

/* The model's inputs as a program takes them: whole batches, zeros behind the last sample. */
static enum mlo_status read_batch(const struct mlo_refit_request *q, const struct mlo_model *bound,
                                  int64_t at, int64_t got, struct mlo_tensor *in, struct mlo_error *err)
{
    enum mlo_status status;
    int slots = q->pruned->graph->input_count;
    struct mlo_tensor *read = calloc((size_t)slots + 1, sizeof *read);
    if (!read)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_dataset_read(q->dataset, q->pruned, at, got, read, err));
    for (int i = 0, k = 0; i < bound->graph->input_count; i++) {
        const struct mlo_value *v = bound->graph->inputs[i];
        int64_t dims[MLO_MAX_RANK];
        if (v->constant)
            continue;
        if (!mlo_type_static(&v->type, dims)) {
            status = mlo_error_set(err, MLO_EUNSUPPORTED, "the size of input '%s' is open", v->name);
            goto out;
        }
        MLO_TRY(mlo_tensor_init(&in[k], v->type.dtype, v->type.rank, dims, err));
        if (read[k].size_bytes > in[k].size_bytes) {
            status = mlo_error_set(err, MLO_EINTERNAL, "input '%s' is larger than it was", v->name);
            goto out;
        }
        memcpy(in[k].data, read[k].data, read[k].size_bytes);
        k++;
    }
out:
    for (int i = 0; i < slots; i++)
        mlo_tensor_clear(&read[i]);
    free(read);
    return status;
}

static enum mlo_status stream(const struct mlo_refit_request *q, const struct layer *layer, int64_t batch,
                              struct mlo_pool *pool, struct mlo_gram *pair, struct mlo_error *err)
{
    enum mlo_status status;
    struct runner was = {0}, now = {0};
    struct mlo_tensor y = {0};
    int slots = q->pruned->graph->input_count;
    struct mlo_tensor *in = calloc((size_t)slots + 1, sizeof *in);
    int64_t end = q->first + q->samples;
    int64_t givers = q->probe ? MLO_MIN(q->probe, q->samples) : q->samples;
    int64_t rows = rows_needed(pair) / MLO_MAX(givers, 1) + 1;
    if (!in)
        return mlo_error_nomem(err);
    MLO_TRY(runner_open(&was, q, q->source, batch, layer->target, err));
    MLO_TRY(runner_open(&now, q, q->pruned, batch, layer->read, err));
    for (int64_t at = q->first; at < end && wants_rows(q, pair); at += batch) {
        int64_t got = MLO_MIN(batch, end - at);
        MLO_TRY(read_batch(q, now.model, at, got, in, err));
        MLO_TRY(was.engine->run(was.program, in, was.out, err));
        MLO_TRY(now.engine->run(now.program, in, now.out, err));
        MLO_TRY(
            target_of(layer, &was.out[was.place[0]], layer->joint ? &now.out[now.place[1]] : NULL, &y, err));
        MLO_TRY(add_samples(q, layer, pair, &now.out[now.place[0]], &y, batch, got,
                            (size_t)MLO_MIN(rows, (int64_t)MLO_GRAM_ROWS), pool, err));
        mlo_tensor_clear(&y);
        for (int i = 0; i < slots; i++)
            mlo_tensor_clear(&in[i]);
    }
out:
    mlo_tensor_clear(&y);
    for (int i = 0; i < slots; i++)
        mlo_tensor_clear(&in[i]);
    free(in);
    runner_close(&was);
    runner_close(&now);
    return status;
}

static enum mlo_status fit_layer(const struct mlo_refit_request *q, struct mlo_node *node, int64_t batch,
                                 struct mlo_pool *pool, json_t *layers, struct mlo_error *err)
{
    enum mlo_status status;
    struct layer layer;
    struct mlo_gram pair;
    struct mlo_refit fit;
    plan_layer(q, node, &layer);
    MLO_TRY(mlo_gram_pair_init(&pair, node, err));
    MLO_TRY(stream(q, &layer, batch, pool, &pair, err));
    MLO_TRY(mlo_refit(node, &pair, q->weights, q->damp, &fit, err));
    json_array_append_new(layers, json_pack("{s:s,s:f,s:f,s:s}", "node", node->name, "before", fit.before,
                                            "after", fit.after, "to", layer.joint ? "sum" : "output"));
out:
    mlo_gram_pair_clear(&pair);
    if (status != MLO_OK)
        mlo_error_prefix(err, "fitting node '%s'", node->name);
    return status;
}

enum mlo_status mlo_step_refit(const struct mlo_refit_request *request, json_t *layers, json_t *notes,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_refit_request q = *request;
    struct mlo_graph *g = q.pruned->graph;
    struct mlo_pool *pool = q.ctx->threads > 1 ? mlo_pool_new(q.ctx->threads) : NULL;
    bool *changed = calloc((size_t)g->node_count + 1, sizeof *changed);
    int64_t batch;
    if (!changed) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (g->node_count != q.source->graph->node_count) {
        status = mlo_error_set(err, MLO_EINTERNAL, "the pruned model has other nodes than its source");
        goto out;
    }
    q.samples = MLO_MIN(q.samples, mlo_dataset_count(q.dataset) - q.first);
    MLO_TRY(mlo_model_fixed_batch(q.pruned, &batch, err));
    batch = batch ? batch : BATCH;
    mark_changed(&q, changed);
    for (int n = 0; n < g->node_count; n++) {
        struct mlo_node *node = g->nodes[n];
        int64_t groups, dim, outs;
        if (!changed[n] || mlo_gram_shape(node, &groups, &dim) || mlo_gram_outs(node, &outs))
            continue;
        const char *why = mlo_refit_refuses(node);
        if (!why && dim + outs > DIM_MAX)
            why = "its inputs and outputs are more than a matrix of 3072 holds";
        if (why) {
            json_array_append_new(notes,
                                  json_pack("{s:s,s:s+}", "node", node->name, "note", "not fitted: ", why));
            continue;
        }
        if (!q.probe)
            mlo_step_progress(q.ctx, q.from + (q.to - q.from) * n / g->node_count, "fitting layers");
        struct mlo_error told = {0};
        status = fit_layer(&q, node, batch, pool, layers, &told);
        if (status == MLO_EUNSUPPORTED) { /* the layer works as it is, only not as well */
            json_array_append_new(notes, json_pack("{s:s,s:s}", "node", node->name, "note", told.message));
            status = MLO_OK;
        } else if (status != MLO_OK) {
            if (err)
                *err = told;
            goto out;
        }
    }
out:
    mlo_pool_free(pool);
    free(changed);
    return status;
}
