/* Observing a model over samples: statistics on the invariant numerics, fed sample by sample. */
#include <stdlib.h>
#include <string.h>

#include "engines/engines_impl.h"

struct sink {
    const struct mlo_stats_wants *wants;
    struct mlo_stats *stats;
    struct mlo_pool *pool;
    int64_t batch, got;
};

static enum mlo_status take_histogram(const struct sink *sink, const char *name,
                                      const struct mlo_tensor *value, struct mlo_error *err)
{
    struct mlo_tensor_stats *t = mlo_stats_get(sink->stats, name);
    if (!t)
        return mlo_error_nomem(err);
    size_t per = mlo_tensor_count(value) / (size_t)sink->batch;
    return mlo_tensor_stats_add_all(t, value->data, per, (size_t)sink->got, sink->pool, err);
}

static enum mlo_status take_channels(const struct sink *sink, const struct mlo_stats_want *want,
                                     const struct mlo_tensor *value, struct mlo_error *err)
{
    int axis = want->channel_axis < 0 ? want->channel_axis + value->rank : want->channel_axis;
    if (axis < 1 || axis >= value->rank) {
        mlo_error_set(err, MLO_EINVAL, "a value of rank %d has no channels along axis %d", value->rank,
                      want->channel_axis);
        mlo_error_where(err, "value '%s'", want->name);
        return MLO_EINVAL;
    }
    size_t count = mlo_tensor_count(value), per = count / (size_t)sink->batch, inner = 1;
    for (int d = axis + 1; d < value->rank; d++)
        inner *= (size_t)value->dims[d];
    size_t unit = inner * (size_t)value->dims[axis];
    struct mlo_channel_stats *c = mlo_stats_get_channels(sink->stats, want->name, value->dims[axis]);
    if (!c)
        return mlo_error_nomem(err);
    enum mlo_status status = MLO_OK;
    for (int64_t s = 0; s < sink->got && status == MLO_OK; s++)
        status = mlo_channel_stats_add(c, (const float *)value->data + (size_t)s * per, unit ? per / unit : 0,
                                       inner, err);
    return status;
}

static enum mlo_status take_gram(const struct sink *sink, const struct mlo_stats_want *want,
                                 const struct mlo_tensor *value, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_gram *gram = mlo_stats_get_gram(sink->stats, want->gram, want->full);
    if (!gram && mlo_stats_find_gram(sink->stats, want->gram)) {
        mlo_error_set(err, MLO_EINVAL, "its statistics were begun in another form");
        mlo_error_where(err, "node '%s'", want->gram->name);
        return MLO_EINVAL;
    }
    if (!gram)
        return mlo_error_nomem(err);
    struct mlo_tensor sample = *value;
    size_t per = mlo_tensor_count(value) / (size_t)sink->batch;
    if (value->rank < 1)
        return mlo_error_set(err, MLO_EINVAL, "value '%s' is a scalar", want->name);
    sample.dims[0] /= sink->batch;
    sample.owned = false;
    for (int64_t s = 0; s < sink->got && status == MLO_OK; s++) {
        sample.data = (float *)value->data + (size_t)s * per;
        status = mlo_gram_add(gram, want->gram, &sample, sink->pool, err);
    }
    if (status != MLO_OK)
        mlo_error_where(err, "node '%s'", want->gram->name);
    return status;
}

static enum mlo_status take(void *arg, const char *name, const struct mlo_tensor *value,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct sink *sink = arg;
    for (size_t i = 0; i < sink->wants->count; i++) {
        const struct mlo_stats_want *want = &sink->wants->list[i];
        if (strcmp(want->name, name) != 0)
            continue;
        if (want->histogram)
            MLO_TRY(take_histogram(sink, name, value, err));
        if (want->channel_axis)
            MLO_TRY(take_channels(sink, want, value, err));
        if (want->gram)
            MLO_TRY(take_gram(sink, want, value, err));
    }
out:
    return status;
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

/* The names of the wanted values, each once. */
static enum mlo_status names_of(const struct mlo_stats_wants *wants, const char ***out, size_t *count,
                                struct mlo_error *err)
{
    const char **names = calloc(wants->count + 1, sizeof *names);
    *count = 0;
    *out = names;
    if (!names)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < wants->count; i++) {
        size_t k = 0;
        while (k < *count && strcmp(names[k], wants->list[i].name) != 0)
            k++;
        if (k == *count)
            names[(*count)++] = wants->list[i].name;
    }
    return MLO_OK;
}

enum mlo_status mlo_engine_observe_stats(const struct mlo_model *model, const char *const *names,
                                         size_t name_count, int64_t batch, unsigned threads,
                                         mlo_feed_fn *next, void *arg, struct mlo_stats *stats,
                                         struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_stats_wants wants = {0};
    for (size_t i = 0; i < name_count; i++) {
        struct mlo_stats_want want = {.name = names[i], .histogram = true};
        if (!mlo_stats_wants_add(&wants, &want)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    MLO_TRY(mlo_engine_observe_wants(model, &wants, batch, threads, next, arg, stats, err));
out:
    mlo_stats_wants_clear(&wants);
    return status;
}

/* The largest batch of MLO_OBSERVE_BATCH, half of that and so on whose buffers fit: o->batch. */
static enum mlo_status choose_batch(const struct mlo_model *model, struct mlo_compile_options *o,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_plan *plan = NULL;
    for (o->batch = MLO_OBSERVE_BATCH; o->batch > 1; o->batch /= 2) {
        struct mlo_footprint size;
        MLO_TRY(mlo_engine_cpu.compile(model, o, &plan, err));
        mlo_engine_cpu.footprint(plan, &size);
        mlo_engine_cpu.free_plan(plan);
        plan = NULL;
        if (size.program_bytes <= MLO_OBSERVE_BYTES)
            break;
    }
out:
    return status;
}

enum mlo_status mlo_engine_observe_wants(const struct mlo_model *model, const struct mlo_stats_wants *wants,
                                         int64_t batch, unsigned threads, mlo_feed_fn *next, void *arg,
                                         struct mlo_stats *stats, struct mlo_error *err)
{
    enum mlo_status status;
    const char **names = NULL;
    const struct mlo_engine *engine = &mlo_engine_cpu;
    struct mlo_compile_options options = {
        .batch = batch, .numerics = MLO_NUMERICS_INVARIANT, .threads = threads};
    struct mlo_pool *pool = NULL;
    struct mlo_model *bound = NULL;
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    struct mlo_tensor *inputs = NULL, *outputs = NULL;
    int input_count = 0;
    if (batch < 0)
        return mlo_error_set(err, MLO_EINVAL, "the batch is %lld; it must be positive, or 0",
                             (long long)batch);
    MLO_TRY(names_of(wants, &names, &options.observe_count, err));
    options.observe = names;
    /* Weights stay where the model has them, and packed ones are made once. */
    options.constants = mlo_constants_new();
    if (!options.constants) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (threads > 1)
        pool = mlo_pool_new(threads); /* without one it takes longer */
    if (batch == 0)
        MLO_TRY(choose_batch(model, &options, err));
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
        struct sink sink = {.wants = wants, .stats = stats, .pool = pool, .batch = batch};
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
    free(names);
    mlo_pool_free(pool);
    mlo_model_free(bound);
    mlo_constants_free(options.constants);
    return status;
}
