/* What can be said of a variant without data: its outputs beside the source's on made-up inputs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/measure.h"
#include "pipeline/measure/random_impl.h"

enum { SAMPLES = 8, SEED = 1, OPEN_DIM = 16, DIMS_MAX = 64, INPUTS_MAX = 64, VISITS_MAX = 1000 };

/* --- what an input is fed ---------------------------------------------------------------------- */

/* Numbers of an input: near normal, or uniform in [low, high), whole ones where the type is of integers. */
struct law {
    bool normal;
    double low, high;
};

/* The length of the table that integers choose from, where a value comes to be the index of a Gather; else
 * `least`. */
static int64_t index_bound(const struct mlo_value *v, int64_t least, int *visits)
{
    if (!v || ++*visits > VISITS_MAX)
        return least;
    for (int i = 0; i < v->use_count; i++) {
        const struct mlo_node *node = v->uses[i].node;
        int index = v->uses[i].index;
        bool gathers = mlo_node_is(node, "Gather") || mlo_node_is(node, "GatherElements");
        if (gathers && index == 1 && node->inputs[0]) {
            const struct mlo_type *table = &node->inputs[0]->type;
            int64_t axis = mlo_node_attr_i(node, "axis", 0);
            axis += axis < 0 ? table->rank : 0;
            if (axis >= 0 && axis < table->rank && table->dims[axis].value > 0)
                least = MLO_MIN(least, table->dims[axis].value);
        } else if (mlo_node_is(node, "OneHot") && index == 0 && mlo_node_const(node, 1)) {
            int64_t depth = mlo_tensor_get_i64(mlo_node_const(node, 1), 0);
            least = depth > 0 ? MLO_MIN(least, depth) : least;
        } else if (index == 0 && node->output_count &&
                   (mlo_node_is(node, "Cast") || (node->op && (node->op->flags & MLO_OP_RANGE_KEEP)))) {
            least = index_bound(node->outputs[0], least, visits);
        }
    }
    return least;
}

/* ONNX's metadata for images: the range of pixels that a model declares. */
static const struct {
    const char *name;
    double low, high;
} pixels[] = {
    {"NominalRange_0_255", 0, 255},
    {"NominalRange_16_235", 16, 235},
    {"Normalized_0_1", 0, 1},
    {"Normalized_1_1", -1, 1},
};

static struct law law_of(const struct mlo_model *model, const struct mlo_value *input)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(input->type.dtype);
    int visits = 0;
    if (info->is_float) {
        for (int i = 0; input->type.rank == 4 && i < model->metadata_count; i++)
            for (size_t k = 0; k < MLO_COUNT(pixels); k++)
                if (strcmp(model->metadata[i].key, "Image.NominalPixelRange") == 0 &&
                    strcmp(model->metadata[i].value, pixels[k].name) == 0)
                    return (struct law){false, pixels[k].low, pixels[k].high};
        return (struct law){.normal = true};
    }
    int64_t bound = index_bound(input, INT64_MAX, &visits);
    if (bound < INT64_MAX)
        return (struct law){false, 0, (double)bound};
    if (input->type.dtype == MLO_UINT8)
        return (struct law){false, 0, 256};
    if (input->type.dtype == MLO_INT8)
        return (struct law){false, -128, 128};
    return (struct law){false, 0, 2}; /* masks, kinds of token */
}

static void fill(struct mlo_tensor *t, const struct law *law, struct mlo_rng *rng)
{
    bool is_float = mlo_dtype_info(t->dtype)->is_float;
    for (size_t i = 0, n = mlo_tensor_count(t); i < n; i++) {
        double v = -6;
        if (law->normal) { /* a sum of twelve uniforms less six, and no libm in it */
            for (int k = 0; k < 12; k++)
                v += mlo_rng_unit(rng);
        } else {
            v = law->low + (law->high - law->low) * mlo_rng_unit(rng);
            v = is_float ? v : floor(v);
        }
        mlo_tensor_set_f64(t, i, v);
    }
}

static json_t *law_json(const struct mlo_value *input, const struct law *law)
{
    char type[256];
    json_t *out = json_pack("{s:s,s:s,s:s}", "input", input->name, "type",
                            mlo_type_describe(&input->type, type, sizeof type), "values",
                            law->normal                                   ? "normal"
                            : mlo_dtype_info(input->type.dtype)->is_float ? "uniform"
                                                                          : "integers");
    if (out && !law->normal) {
        bool whole = !mlo_dtype_info(input->type.dtype)->is_float;
        json_object_set_new(out, "from", json_real(law->low));
        json_object_set_new(out, "to", json_real(law->high - whole));
    }
    return out;
}

/* --- two programs ------------------------------------------------------------------------------ */

struct side {
    const struct mlo_engine *engine;
    struct mlo_model *model; /* bound */
    struct mlo_constants *constants;
    struct mlo_plan *plan;
    struct mlo_program *program;
    struct mlo_tensor *outputs;
};

static void side_close(struct side *s)
{
    for (int i = 0; s->outputs && i < s->model->graph->output_count; i++)
        mlo_tensor_clear(&s->outputs[i]);
    free(s->outputs);
    if (s->engine) {
        s->engine->unload(s->program);
        s->engine->free_plan(s->plan);
    }
    mlo_constants_free(s->constants);
    mlo_model_free(s->model);
    *s = (struct side){0};
}

/* The first dim of an input is the batch, of 1; other open ones get `size`. */
static size_t bind_dims(const struct mlo_graph *g, int64_t size, struct mlo_binding *out)
{
    size_t count = 0;
    for (int others = 0; others < 2; others++)
        for (int i = 0; i < g->input_count; i++) {
            const struct mlo_type *type = &g->inputs[i]->type;
            for (int d = others; d < (others ? type->rank : MLO_MIN(type->rank, 1)); d++) {
                const char *name = type->dims[d].value < 0 ? type->dims[d].name : NULL;
                size_t k = 0;
                while (name && k < count && strcmp(out[k].name, name) != 0)
                    k++;
                if (name && k == count && count < DIMS_MAX)
                    out[count++] = (struct mlo_binding){name, others ? size : 1};
            }
        }
    return count;
}

static enum mlo_status side_open(struct side *s, const struct mlo_model *model, int64_t size,
                                 unsigned threads, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_binding dims[DIMS_MAX];
    struct mlo_compile_options options = {.threads = threads, .numerics = MLO_NUMERICS_INVARIANT};
    MLO_TRY(mlo_engine_find("cpu", &s->engine, err));
    MLO_TRY(mlo_model_clone_borrowing(model, &s->model, err));
    struct mlo_graph *g = s->model->graph;
    MLO_TRY(mlo_graph_bind(g, dims, bind_dims(model->graph, size, dims), 1, err));
    s->outputs = calloc((size_t)g->output_count + 1, sizeof *s->outputs);
    options.constants = s->constants = mlo_constants_new();
    if (!s->outputs || !s->constants) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(s->engine->compile(s->model, &options, &s->plan, err));
    MLO_TRY(s->engine->load(s->plan, &s->program, err));
out:
    if (status != MLO_OK)
        side_close(s);
    return status;
}

/* --- how far apart ----------------------------------------------------------------------------- */

struct apart {
    double ab, aa, bb, noise, largest, max_abs;
    uint64_t elements, equal, odd; /* odd: finite on one side only */
    int reshaped;                  /* samples of another shape */
};

static void compare(const struct mlo_tensor *a, const struct mlo_tensor *b, struct apart *sum)
{
    if (!mlo_tensor_same_shape(a, b)) {
        sum->reshaped++;
        return;
    }
    for (size_t i = 0, n = mlo_tensor_count(a); i < n; i++) {
        double p = mlo_tensor_get_f64(a, i), q = mlo_tensor_get_f64(b, i);
        sum->elements++;
        sum->equal += p == q || (isnan(p) && isnan(q));
        if (!isfinite(p) || !isfinite(q)) {
            sum->odd += isfinite(p) != isfinite(q);
            continue;
        }
        sum->ab += p * q;
        sum->aa += p * p;
        sum->bb += q * q;
        sum->noise += (p - q) * (p - q);
        sum->largest = fmax(sum->largest, fabs(p));
        sum->max_abs = fmax(sum->max_abs, fabs(p - q));
    }
}

static json_t *apart_json(const char *name, const struct apart *s)
{
    bool silent = s->aa == 0 || s->bb == 0;
    json_t *out = json_pack("{s:s,s:f,s:f,s:f}", "output", name, "max_abs", s->max_abs, "max_rel",
                            s->largest > 0   ? s->max_abs / s->largest
                            : s->max_abs > 0 ? 1.0
                                             : 0.0,
                            "equal", s->elements ? (double)s->equal / (double)s->elements : 1.0);
    if (!out)
        return NULL;
    json_object_set_new(out, "cosine",
                        json_real(silent ? (s->aa == s->bb ? 1.0 : 0.0) : s->ab / sqrt(s->aa * s->bb)));
    json_object_set_new(out, "sqnr_db",
                        s->noise > 0 && s->aa > 0 ? json_real(10 * log10(s->aa / s->noise)) : json_null());
    json_object_set_new(out, "not_finite", json_integer((json_int_t)s->odd));
    json_object_set_new(out, "other_shape", json_integer(s->reshaped));
    return out;
}

/* --- one side after the other ------------------------------------------------------------------ */

struct mlo_synthetic {
    unsigned threads;
    int64_t open_dim;
    struct mlo_tensor inputs[INPUTS_MAX]; /* made up anew for each sample */
    struct law laws[INPUTS_MAX];
    int input_count, output_count;
    struct mlo_tensor *outputs; /* of the source: [SAMPLES][output_count] */
    struct apart *apart;        /* of each output */
    json_t *fed, *names;        /* of outputs */
};

static enum mlo_status make_inputs(struct mlo_synthetic *s, const struct mlo_model *model,
                                   struct mlo_error *err)
{
    const struct mlo_graph *g = model->graph;
    for (int i = 0; i < g->input_count; i++) {
        int64_t shape[MLO_MAX_RANK];
        const struct mlo_value *v = g->inputs[i];
        const struct mlo_dtype_info *info = mlo_dtype_info(v->type.dtype);
        int n = s->input_count;
        if (v->constant)
            continue;
        if (n == INPUTS_MAX || !info || !info->bits || !mlo_type_static(&v->type, shape))
            return mlo_error_set(err, MLO_EUNSUPPORTED, "input '%s' is of a kind that is not made up",
                                 v->name);
        s->laws[n] = law_of(model, v);
        json_array_append_new(s->fed, law_json(v, &s->laws[n]));
        enum mlo_status status = mlo_tensor_init(&s->inputs[n], v->type.dtype, v->type.rank, shape, err);
        if (status != MLO_OK)
            return status;
        s->input_count++;
    }
    return MLO_OK;
}

/* Runs all samples: the outputs are kept (of the source), or compared with those. */
static enum mlo_status run_samples(struct mlo_synthetic *s, const struct side *side, bool keep,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rng rng;
    mlo_rng_seed(&rng, SEED);
    for (int k = 0; k < SAMPLES; k++) {
        for (int i = 0; i < s->input_count; i++)
            fill(&s->inputs[i], &s->laws[i], &rng);
        MLO_TRY(side->engine->run(side->program, s->inputs, side->outputs, err));
        for (int o = 0; o < s->output_count; o++) {
            struct mlo_tensor *of_source = &s->outputs[k * s->output_count + o];
            if (keep)
                MLO_TRY(mlo_tensor_copy(&side->outputs[o], of_source, err));
            else
                compare(of_source, &side->outputs[o], &s->apart[o]);
        }
    }
out:
    return status;
}

enum mlo_status mlo_synthetic_new(const struct mlo_model *source, unsigned threads,
                                  struct mlo_synthetic **out, struct mlo_error *err)
{
    static const int64_t sizes[] = {OPEN_DIM, 1};
    enum mlo_status status = MLO_OK;
    struct side side = {0};
    struct mlo_synthetic *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return mlo_error_nomem(err);
    s->threads = threads;
    s->fed = json_array();
    s->names = json_array();
    for (size_t i = 0; i < MLO_COUNT(sizes) && !side.program; i++) { /* some models take one length only */
        s->open_dim = sizes[i];
        status = side_open(&side, source, s->open_dim, threads, err);
    }
    MLO_TRY(status);
    const struct mlo_graph *g = side.model->graph;
    s->outputs = calloc((size_t)g->output_count * SAMPLES + 1, sizeof *s->outputs);
    s->apart = calloc((size_t)g->output_count + 1, sizeof *s->apart);
    if (!s->fed || !s->names || !s->outputs || !s->apart) {
        status = mlo_error_nomem(err);
        goto out;
    }
    s->output_count = g->output_count;
    for (int o = 0; o < g->output_count; o++)
        json_array_append_new(s->names, json_string(g->outputs[o]->name));
    MLO_TRY(make_inputs(s, side.model, err));
    MLO_TRY(run_samples(s, &side, true, err));
    *out = s;
    s = NULL;
out:
    side_close(&side);
    mlo_synthetic_free(s);
    return status;
}

void mlo_synthetic_free(struct mlo_synthetic *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->input_count; i++)
        mlo_tensor_clear(&s->inputs[i]);
    for (int i = 0; i < s->output_count * SAMPLES; i++)
        mlo_tensor_clear(&s->outputs[i]);
    free(s->outputs);
    free(s->apart);
    json_decref(s->fed);
    json_decref(s->names);
    free(s);
}

enum mlo_status mlo_synthetic_compare(struct mlo_synthetic *s, const struct mlo_model *variant, json_t **out,
                                      struct mlo_error *err)
{
    enum mlo_status status;
    struct side side = {0};
    json_t *outputs = json_array();
    MLO_TRY(side_open(&side, variant, s->open_dim, s->threads, err));
    if (side.model->graph->output_count != s->output_count) {
        status = mlo_error_set(err, MLO_EINVAL, "the models have not the same outputs");
        goto out;
    }
    memset(s->apart, 0, (size_t)s->output_count * sizeof *s->apart);
    MLO_TRY(run_samples(s, &side, false, err));
    for (int o = 0; o < s->output_count; o++)
        json_array_append_new(
            outputs, apart_json(json_string_value(json_array_get(s->names, (size_t)o)), &s->apart[o]));
    *out = json_pack("{s:s,s:i,s:i,s:I,s:O,s:O}", "inputs", "synthetic", "samples", SAMPLES, "seed", SEED,
                     "open_dims", (json_int_t)s->open_dim, "fed", s->fed, "outputs", outputs);
    if (!*out || json_array_size(outputs) != (size_t)s->output_count)
        status = mlo_error_nomem(err);
out:
    side_close(&side);
    json_decref(outputs);
    return status;
}
