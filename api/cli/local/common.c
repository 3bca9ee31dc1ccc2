#include <math.h>
#include <string.h>

#include "api/cli/local/local_impl.h"
#include "passes/sparsify.h"

enum mlo_status mlo_local_model(const char *path, struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *model = NULL;
    MLO_TRY(mlo_sparse_load(path, &model, err));
    MLO_TRY(mlo_graph_check_supported(model->graph, err));
    *out = model;
    model = NULL;
out:
    if (status != MLO_OK)
        mlo_cli_name_file(err, path);
    mlo_model_free(model);
    return status;
}

enum mlo_status mlo_local_dataset(const struct mlo_cli *cli, const struct mlo_model *model,
                                  struct mlo_dataset **out, struct mlo_error *err)
{
    const char *path = NULL;
    int64_t limit;
    enum mlo_status status = mlo_cli_required(cli, "data", &path, err);
    if (status == MLO_OK)
        status = mlo_cli_int(cli, "limit", 0, 1, INT64_MAX, &limit, err);
    return status == MLO_OK ? mlo_local_dataset_at(cli, path, limit, model, out, err) : status;
}

/* The option of verbs that make a metric; the others have none. */
static const char *postprocess(const struct mlo_cli *cli)
{
    for (const struct mlo_cli_option *o = cli->verb->options; o && o->name; o++)
        if (strcmp(o->name, "postprocess") == 0)
            return mlo_cli_opt(cli, o->name);
    return NULL;
}

void mlo_local_reading(const struct mlo_cli *cli, struct mlo_local_reading *out)
{
    struct mlo_dataset_options *o = &out->options;
    *o = (struct mlo_dataset_options){
        .normalize = mlo_cli_opt(cli, "normalize"), .map = out->map, .postprocess = postprocess(cli)};
    while (o->map_count < MLO_COUNT(out->map) &&
           (out->map[o->map_count] = mlo_cli_opt_at(cli, "map", o->map_count)))
        o->map_count++;
}

enum mlo_status mlo_local_dataset_at(const struct mlo_cli *cli, const char *path, int64_t limit,
                                     const struct mlo_model *model, struct mlo_dataset **out,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_dataset *dataset = NULL;
    struct mlo_local_reading reading;
    mlo_local_reading(cli, &reading);
    reading.options.limit = limit;
    MLO_TRY(mlo_dataset_open(path, &reading.options, &dataset, err));
    MLO_TRY(mlo_dataset_check(dataset, model, err));
    *out = dataset;
    dataset = NULL;
out:
    mlo_dataset_close(dataset);
    return status;
}

enum mlo_status mlo_local_no_device(enum mlo_status probed, struct mlo_error *err)
{
    if (probed != MLO_EUNAVAILABLE)
        return probed;
    if (err)
        err->status = MLO_ENODEVICE;
    return MLO_ENODEVICE;
}

enum mlo_status mlo_local_engine(const struct mlo_cli *cli, struct mlo_run_options *out,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *name = mlo_cli_opt(cli, "engine");
    int64_t threads;
    memset(out, 0, sizeof *out);
    MLO_TRY(mlo_cli_int(cli, "threads", 1, 1, 1024, &threads, err));
    MLO_TRY(mlo_engine_find(name ? name : "cpu", &out->engine, err));
    MLO_TRY(mlo_local_no_device(out->engine->probe(err), err));
    out->threads = (unsigned)threads;
out:
    return status;
}

enum mlo_status mlo_local_recipe_text(const char *name, struct mlo_buf *text, bool *builtin,
                                      struct mlo_error *err)
{
    size_t size = 0, count = 0;
    const char *known = mlo_recipe_builtin(name, &size);
    *builtin = known != NULL;
    if (known) {
        mlo_buf_append(text, known, size);
        return mlo_buf_ok(text) ? MLO_OK : mlo_error_nomem(err);
    }
    if (mlo_fs_exists(name))
        return mlo_fs_read(name, 1 << 20, text, err);
    if (strchr(name, '/') || mlo_str_ends(name, ".yaml") || mlo_str_ends(name, ".yml"))
        return mlo_error_set(err, MLO_ENOTFOUND, "there is no recipe file %s", name);
    const char *const *names = mlo_recipe_builtin_names(&count);
    struct mlo_buf list = MLO_BUF_INIT;
    mlo_buf_names(&list, names, count);
    mlo_error_set(err, MLO_ENOTFOUND, "there is no recipe '%s': no such file, and built in are %s", name,
                  mlo_buf_str(&list));
    const char *near = mlo_suggest(name, names, count);
    if (near)
        mlo_error_hint(err, "did you mean --recipe %s?", near);
    mlo_buf_clear(&list);
    return MLO_ENOTFOUND;
}

json_t *mlo_local_estimate_json(const struct mlo_estimate *e)
{
    return json_pack("{s:f,s:f,s:f,s:I}", "value", e->value, "low", e->low, "high", e->high, "n",
                     (json_int_t)e->n);
}

enum mlo_status mlo_local_file_json(const char *path, json_t **out, struct mlo_error *err)
{
    struct mlo_digest digest;
    uint64_t size = 0;
    char text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = mlo_digest_of_file(path, &digest, &size, err);
    if (status != MLO_OK)
        return status;
    *out = json_pack("{s:s,s:s,s:I}", "path", path, "digest", mlo_digest_text(&digest, text), "size",
                     (json_int_t)size);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_local_dims(const struct mlo_cli *cli, struct mlo_local_dims *out, struct mlo_error *err)
{
    const char *text;
    for (out->count = 0; (text = mlo_cli_opt_at(cli, "dim", out->count)); out->count++) {
        const char *equals = strrchr(text, '=');
        size_t n = equals ? (size_t)(equals - text) : 0;
        int64_t value;
        if (out->count == MLO_COUNT(out->list))
            return mlo_error_set(err, MLO_EUSAGE, "--dim was given more than %zu times",
                                 MLO_COUNT(out->list));
        if (!n || n >= sizeof out->names[0] || !mlo_str_to_i64(equals + 1, &value) || value < 0)
            return mlo_error_set(err, MLO_EUSAGE, "--dim %s is not NAME=NUMBER", text);
        memcpy(out->names[out->count], text, n);
        out->names[out->count][n] = '\0';
        out->list[out->count] = (struct mlo_binding){out->names[out->count], value};
    }
    return MLO_OK;
}

enum mlo_status mlo_local_bound(const struct mlo_cli *cli, const struct mlo_model *model,
                                struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_local_dims dims;
    int64_t batch;
    *out = NULL;
    MLO_TRY(mlo_cli_int(cli, "batch", 1, 1, INT32_MAX, &batch, err));
    MLO_TRY(mlo_local_dims(cli, &dims, err));
    MLO_TRY(mlo_model_clone(model, out, err));
    if (dims.count) /* what is unknown and has no name stands for the batch */
        MLO_TRY(mlo_graph_bind((*out)->graph, dims.list, dims.count, batch, err));
    MLO_TRY(mlo_graph_bind_batch((*out)->graph, batch, err));
out:
    if (status != MLO_OK) {
        mlo_model_free(*out);
        *out = NULL;
    }
    return status;
}

/* --- deviation --------------------------------------------------------------------------------- */

/* SplitMix64 (Steele, Lea, Flood 2014): the same inputs everywhere. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(uint64_t *state)
{
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

/* Sum of twelve uniforms less six: near enough to normal, and no libm in it. */
static double near_normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += uniform(state);
    return sum;
}

static void fill(struct mlo_tensor *t, uint64_t *state)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(t->dtype);
    size_t count = mlo_tensor_count(t);
    for (size_t i = 0; i < count; i++)
        mlo_tensor_set_f64(t, i,
                           info && info->is_float  ? near_normal(state)
                           : t->dtype == MLO_UINT8 ? floor(256 * uniform(state))
                                                   : floor(2 * uniform(state)));
}

/* A copy that can be compiled: batch 1, other free dims as asked for, else 1. */
static enum mlo_status fixed_copy(const struct mlo_model *model, const struct mlo_local_dims *dims,
                                  struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_binding bindings[MLO_COUNT(dims->list) + 32];
    size_t count = dims->count;
    memcpy(bindings, dims->list, count * sizeof *bindings);
    MLO_TRY(mlo_model_clone(model, out, err));
    struct mlo_graph *g = (*out)->graph;
    for (int i = 0; i < g->input_count; i++) {
        const struct mlo_type *type = &g->inputs[i]->type;
        for (int d = 0; d < type->rank; d++) {
            const char *name = type->dims[d].value < 0 ? type->dims[d].name : NULL;
            bool seen = false;
            for (size_t k = 0; name && k < count; k++)
                seen = seen || strcmp(bindings[k].name, name) == 0;
            if (name && !seen && count < MLO_COUNT(bindings))
                bindings[count++] = (struct mlo_binding){name, 1};
        }
    }
    status = mlo_graph_bind(g, bindings, count, 1, err);
    if (status != MLO_OK && count > dims->count)
        mlo_error_hint(err,
                       "open dims are taken as 1 to compare outputs; give sizes that the model takes with "
                       "--dim '%s=N'",
                       bindings[dims->count].name);
out:
    return status;
}

struct side {
    struct mlo_model *model;
    struct mlo_plan *plan;
    struct mlo_program *program;
    struct mlo_tensor *outputs;
};

static enum mlo_status side_open(struct side *s, const struct mlo_model *model,
                                 const struct mlo_run_options *options, const struct mlo_local_dims *dims,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_compile_options compile = {.threads = options->threads,
                                                .numerics = MLO_NUMERICS_INVARIANT};
    MLO_TRY(fixed_copy(model, dims, &s->model, err));
    s->outputs = calloc((size_t)s->model->graph->output_count + 1, sizeof *s->outputs);
    if (!s->outputs) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(options->engine->compile(s->model, &compile, &s->plan, err));
    MLO_TRY(options->engine->load(s->plan, &s->program, err));
out:
    return status;
}

static void side_close(struct side *s, const struct mlo_engine *engine)
{
    for (int i = 0; s->outputs && i < s->model->graph->output_count; i++)
        mlo_tensor_clear(&s->outputs[i]);
    free(s->outputs);
    engine->unload(s->program);
    engine->free_plan(s->plan);
    mlo_model_free(s->model);
}

struct sums {
    double ab, aa, bb, largest;
};

static enum mlo_status compare(const struct side *a, const struct side *b, struct sums *sums,
                               struct mlo_deviation *d, struct mlo_error *err)
{
    for (int o = 0; o < a->model->graph->output_count; o++) {
        const struct mlo_tensor *x = &a->outputs[o], *y = &b->outputs[o];
        if (!mlo_tensor_same_shape(x, y))
            return mlo_error_set(err, MLO_EINTERNAL, "output %d changed its shape", o);
        size_t count = mlo_tensor_count(x);
        for (size_t i = 0; i < count; i++) {
            double p = mlo_tensor_get_f64(x, i), q = mlo_tensor_get_f64(y, i);
            if (!isfinite(p) || !isfinite(q)) {
                d->finite = d->finite && (isfinite(p) || !isfinite(q));
                d->finite = d->finite && (!isfinite(p) || isfinite(q));
                continue;
            }
            sums->ab += p * q;
            sums->aa += p * p;
            sums->bb += q * q;
            sums->largest = fmax(sums->largest, fabs(p));
            d->max_abs = fmax(d->max_abs, fabs(p - q));
        }
    }
    return MLO_OK;
}

enum mlo_status mlo_local_deviation(const struct mlo_model *a, const struct mlo_model *b,
                                    const struct mlo_run_options *options, const struct mlo_local_dims *dims,
                                    int samples, struct mlo_deviation *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct side sides[2] = {0};
    struct mlo_tensor *inputs = NULL;
    int input_count = 0;
    uint64_t seed = 1;
    struct sums sums = {0};
    *out = (struct mlo_deviation){.samples = samples, .finite = true};
    MLO_TRY(side_open(&sides[0], a, options, dims, err));
    MLO_TRY(side_open(&sides[1], b, options, dims, err));
    const struct mlo_graph *g = sides[0].model->graph;
    inputs = calloc((size_t)g->input_count + 1, sizeof *inputs);
    if (!inputs) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < g->input_count; i++) {
        int64_t shape[MLO_MAX_RANK];
        const struct mlo_value *v = g->inputs[i];
        if (v->constant)
            continue;
        if (!mlo_type_static(&v->type, shape)) {
            status = mlo_error_set(err, MLO_EUNSUPPORTED, "the shape of input '%s' is not known", v->name);
            goto out;
        }
        MLO_TRY(mlo_tensor_init(&inputs[input_count++], v->type.dtype, v->type.rank, shape, err));
    }
    for (int s = 0; s < samples; s++) {
        for (int i = 0; i < input_count; i++)
            fill(&inputs[i], &seed);
        for (int k = 0; k < 2; k++)
            MLO_TRY(options->engine->run(sides[k].program, inputs, sides[k].outputs, err));
        MLO_TRY(compare(&sides[0], &sides[1], &sums, out, err));
    }
    out->max_rel = sums.largest > 0 ? out->max_abs / sums.largest : out->max_abs > 0;
    out->cosine = sums.aa > 0 && sums.bb > 0 ? sums.ab / sqrt(sums.aa * sums.bb) : sums.aa == sums.bb;
out:
    for (int i = 0; i < input_count; i++)
        mlo_tensor_clear(&inputs[i]);
    free(inputs);
    side_close(&sides[0], options->engine);
    side_close(&sides[1], options->engine);
    return status;
}
