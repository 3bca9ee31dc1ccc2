/* Observing a model over samples: statistics on the invariant numerics, fed sample by sample. */
#include <stdlib.h>
#include <string.h>

#include "engines/engines_impl.h"

struct sink {
    struct mlo_stats *stats;
    int64_t batch, got;
};

static enum mlo_status take(void *arg, const char *name, const struct mlo_tensor *value,
                            struct mlo_error *err)
{
    const struct sink *sink = arg;
    size_t count = mlo_tensor_count(value);
    struct mlo_tensor_stats *t = mlo_stats_get(sink->stats, name);
    if (!t)
        return mlo_error_nomem(err);
    size_t per = count / (size_t)sink->batch;
    for (int64_t s = 0; s < sink->got; s++) {
        enum mlo_status status =
            mlo_tensor_stats_add(t, (const float *)value->data + (size_t)s * per, per, err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

/* How often the batch stands in the value's first dim: 1 in [N, C], 4 where each sample was cut into four
 * windows. 0: its rows are not samples in order ([T, N, C] of a recurrent net, or a dim that is not known).
 */
static int64_t rows_per_sample(const struct mlo_graph *g, const char *name, int64_t batch)
{
    const struct mlo_value *v = mlo_graph_value(g, name);
    if (!v || !mlo_type_static(&v->type, NULL) || v->type.rank < 1 || v->type.dims[0].value % batch != 0)
        return 0;
    return v->type.dims[0].value / batch;
}

/* Whether every wanted value is made of samples in order. One batch size does not tell: a dim may equal it by
 * chance, so another is tried as well where the model takes one. *other: the name of a value that is not. */
static enum mlo_status splits(const struct mlo_model *model, const struct mlo_model *bound,
                              const struct mlo_compile_options *o, const char **other, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *more = NULL;
    struct mlo_compile_options next = *o;
    next.batch = o->batch + 1;
    *other = NULL;
    if (o->batch == 1)
        return MLO_OK;
    if (mlo_graph_dynamic_batch(model->graph))
        MLO_TRY(mlo_engine_bind(model, &next, &more, err));
    for (size_t i = 0; i < o->observe_count && !*other; i++) {
        int64_t rows = rows_per_sample(bound->graph, o->observe[i], o->batch);
        if (rows < 1 || (more && rows_per_sample(more->graph, o->observe[i], next.batch) != rows))
            *other = o->observe[i];
    }
out:
    mlo_model_free(more);
    return status;
}

/* Binds the model; with a batch of 1 when some value cannot be split into samples otherwise, so that what is
 * observed is the same for every batch. */
static enum mlo_status bind(const struct mlo_model *model, struct mlo_compile_options *o,
                            struct mlo_model **bound, struct mlo_error *err)
{
    enum mlo_status status;
    const char *other;
    MLO_TRY(mlo_engine_bind(model, o, bound, err));
    MLO_TRY(splits(model, *bound, o, &other, err));
    if (!other)
        goto out;
    if (!mlo_graph_dynamic_batch(model->graph)) {
        mlo_error_set(err, MLO_EUNSUPPORTED, "value '%s' has no row for each of the %lld samples of a batch",
                      other, (long long)o->batch);
        mlo_error_where(err, "value '%s'", other);
        mlo_error_hint(err, "export the model with a batch of 1, or a dynamic one");
        status = MLO_EUNSUPPORTED;
        goto out;
    }
    mlo_model_free(*bound);
    *bound = NULL;
    o->batch = 1;
    MLO_TRY(mlo_engine_bind(model, o, bound, err));
out:
    return status;
}

/* Zeroed tensors of the bound inputs' types. */
static enum mlo_status make_inputs(const struct mlo_model *bound, struct mlo_tensor **out, int *count,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t slots = (size_t)bound->graph->input_count + 1;
    struct mlo_value **values = calloc(slots, sizeof(struct mlo_value *));
    struct mlo_tensor *tensors = calloc(slots, sizeof *tensors);
    if (!values || !tensors) {
        status = mlo_error_nomem(err);
        goto out;
    }
    *count = mlo_engine_inputs(bound->graph, values);
    for (int i = 0; i < *count; i++) {
        int64_t dims[MLO_MAX_RANK];
        mlo_type_static(&values[i]->type, dims);
        MLO_TRY(mlo_tensor_init(&tensors[i], values[i]->type.dtype, values[i]->type.rank, dims, err));
    }
out:
    free(values);
    *out = tensors;
    return status;
}

enum mlo_status mlo_engine_observe_stats(const struct mlo_model *model, const char *const *names,
                                         size_t name_count, int64_t batch, unsigned threads,
                                         mlo_feed_fn *next, void *arg, struct mlo_stats *stats,
                                         struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_engine *engine = &mlo_engine_cpu;
    struct mlo_compile_options options = {.batch = batch,
                                          .numerics = MLO_NUMERICS_INVARIANT,
                                          .threads = threads,
                                          .observe = names,
                                          .observe_count = name_count};
    struct mlo_model *bound = NULL;
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    struct mlo_tensor *inputs = NULL, *outputs = NULL;
    int input_count = 0;
    if (batch < 1)
        return mlo_error_set(err, MLO_EINVAL, "the batch is %lld; it must be positive", (long long)batch);
    MLO_TRY(bind(model, &options, &bound, err));
    batch = options.batch;
    MLO_TRY(make_inputs(bound, &inputs, &input_count, err));
    for (int i = 0; i < input_count; i++)
        if (inputs[i].rank < 1 || inputs[i].dims[0] != batch) {
            char shape[256];
            status = mlo_error_set(err, MLO_EINVAL, "input %d is %s: it does not take a batch of %lld", i,
                                   mlo_tensor_describe(&inputs[i], shape, sizeof shape), (long long)batch);
            mlo_error_hint(err, "use the batch that the model was exported with");
            goto out;
        }
    outputs = calloc((size_t)bound->graph->output_count + 1, sizeof *outputs);
    if (!outputs) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(engine->compile(model, &options, &plan, err));
    MLO_TRY(engine->load(plan, &program, err));
    for (;;) {
        struct sink sink = {.stats = stats, .batch = batch};
        MLO_TRY(next(arg, batch, inputs, &sink.got, err));
        if (sink.got <= 0)
            break;
        if (sink.got > batch) {
            status = mlo_error_set(err, MLO_EINTERNAL, "the feed gave %lld samples for a batch of %lld",
                                   (long long)sink.got, (long long)batch);
            goto out;
        }
        MLO_TRY(engine->observe(program, inputs, outputs, take, &sink, err));
    }
    mlo_stats_sort(stats);
out:
    engine->unload(program);
    engine->free_plan(plan);
    for (int i = 0; inputs && i < input_count; i++)
        mlo_tensor_clear(&inputs[i]);
    for (int i = 0; outputs && i < bound->graph->output_count; i++)
        mlo_tensor_clear(&outputs[i]);
    free(inputs);
    free(outputs);
    mlo_model_free(bound);
    return status;
}
