#include "passes/sparsify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/prune.h"
#include "passes/sparsify_impl.h"
#include "passes/weight_only_impl.h"

enum { SLAB = 512 /* rows of weights that are swept together */ };

static const char *const PATTERNS[] = {"unstructured", "2:4", NULL};
static const char *const CRITERIA[] = {"auto", "sparsegpt", "magnitude", NULL};
static const char *const STORAGE[] = {"auto", "dense", "bitmap", NULL};
static const char *const SCOPES[] = {"layer", "global", NULL};
const struct mlo_option_spec mlo_sparsify_options[] = {
    {.name = "pattern",
     .type = MLO_OPT_STRING,
     .fallback = "unstructured",
     .choices = PATTERNS,
     .description = "unstructured: zeros anywhere; 2:4: two of every four inputs of an output, for sparse "
                    "tensor cores"},
    {.name = "sparsity",
     .type = MLO_OPT_STRING,
     .fallback = "50%",
     .description = "The share of the weights that become zero, as 50%, which it is for 2:4"},
    {.name = "criterion",
     .type = MLO_OPT_STRING,
     .fallback = "auto",
     .choices = CRITERIA,
     .description = "sparsegpt: those that can go at the least error of the outputs, which the others make "
                    "good; magnitude: the smallest; auto: sparsegpt with data, magnitude without"},
    {.name = "scope",
     .type = MLO_OPT_STRING,
     .fallback = "layer",
     .choices = SCOPES,
     .description = "layer: the same share of every layer; global: each layer's is how many of the smallest "
                    "weights of the model it has"},
    {.name = "block",
     .type = MLO_OPT_INT,
     .fallback = "4",
     .min = 4,
     .max = 4096,
     .description = "sparsegpt: inputs whose zeros are chosen at once, a multiple of 4"},
    {.name = "damp",
     .type = MLO_OPT_FLOAT,
     .fallback = "0.01",
     .min = 0,
     .max = 1,
     .description = "sparsegpt: what is added to the diagonal of the inputs' matrix, as a share of its mean"},
    {.name = "bias",
     .type = MLO_OPT_BOOL,
     .fallback = "true",
     .description = "sparsegpt: biases take what zeros do to the means of the outputs"},
    {.name = "min_weights",
     .type = MLO_OPT_INT,
     .fallback = "1024",
     .min = 0,
     .max = 1e9,
     .description = "Layers with fewer weights stay dense"},
    {.name = "exclude",
     .type = MLO_OPT_STRINGS,
     .fallback = "",
     .description = "Names of nodes that stay dense"},
    {.name = "storage",
     .type = MLO_OPT_STRING,
     .fallback = "auto",
     .choices = STORAGE,
     .description =
         "In the step: bitmap: a bit for each weight and those that are not zero, with ops that put "
         "them together; auto: bitmap for unstructured, dense for 2:4"},
    {.name = "freeze_initializers",
     .type = MLO_OPT_BOOL,
     .fallback = "false",
     .description = "In the step: weights that are listed as graph inputs too are made constants first"},
    {.name = "samples",
     .type = MLO_OPT_INT,
     .fallback = "512",
     .min = 1,
     .max = 1 << 20,
     .description = "In the step: samples of the calibration data that inputs are observed on; of a Conv "
                    "whose output has more than one position, at most 96"},
    {NULL},
};

struct settings {
    bool groups, gpt, automatic, global, bias;
    double sparsity, damp;
    size_t block;
    struct mlo_weights_choice choice;
};

static enum mlo_status read_settings(const json_t *options, struct settings *s, struct mlo_error *err)
{
    const char *criterion = mlo_json_str(options, "criterion", "auto");
    *s = (struct settings){
        .groups = strcmp(mlo_json_str(options, "pattern", "unstructured"), "2:4") == 0,
        .gpt = strcmp(criterion, "magnitude") != 0,
        .automatic = strcmp(criterion, "auto") == 0,
        .global = strcmp(mlo_json_str(options, "scope", "layer"), "global") == 0,
        .bias = mlo_json_bool(options, "bias", true),
        .damp = mlo_json_f64(options, "damp", 0.01),
        .block = (size_t)mlo_json_i64(options, "block", 4),
        .choice = mlo_weights_choice_read(options),
    };
    enum mlo_status status =
        mlo_pass_read_share(mlo_json_str(options, "sparsity", "50%"), "sparsity",
                            "share of the weights that leaves any and takes some", &s->sparsity, err);
    if (status != MLO_OK)
        return status;
    const char *where = NULL;
    if (s->groups && s->sparsity != 0.5) {
        where = "sparsity";
        mlo_error_set(err, MLO_EINVAL, "2:4 makes half of the weights zero, not %g%%", 100 * s->sparsity);
    } else if (s->groups && s->global) {
        where = "scope";
        mlo_error_set(err, MLO_EINVAL, "2:4 has the same share in every layer, so its scope is 'layer'");
    } else if (s->block % MLO_SPARSE_GROUP != 0) {
        where = "block";
        mlo_error_set(err, MLO_EINVAL, "blocks of %zu inputs: it must be a multiple of 4", s->block);
    }
    if (!where)
        return MLO_OK;
    mlo_error_where(err, "option '%s'", where);
    mlo_error_hint(err, s->groups ? "leave it out, or take the pattern 'unstructured'" : "write 4, 8 or 128");
    return MLO_EINVAL;
}

enum mlo_status mlo_sparsify_check(const json_t *options, struct mlo_error *err)
{
    struct settings s;
    return read_settings(options, &s, err);
}

bool mlo_sparsify_packs(const json_t *options)
{
    const char *storage = mlo_json_str(options, "storage", "auto");
    bool anywhere = strcmp(mlo_json_str(options, "pattern", "unstructured"), "unstructured") == 0;
    return strcmp(storage, "bitmap") == 0 || (strcmp(storage, "auto") == 0 && anywhere);
}

/* --- which layers -------------------------------------------------------------------------------- */

struct layer {
    struct mlo_node *node;
    const struct mlo_value *source; /* of the weights, before */
    struct mlo_value *made;         /* after */
    struct mlo_weight_layout layout;
    const struct mlo_gram *gram; /* whole and seen; or NULL */
    const char *why;             /* SparseGPT could not be, when it was asked for; else NULL */
    bool gpt;
    struct layer *same; /* an earlier one with the same weights */
    uint64_t weights, target, zeros;
    double weight_error, output_error; /* output_error below 0: not known */
    bool shared; /* a later layer has its weights: no bias takes the means, which are of one of them */
    bool bias_corrected, changed;
};

/* What is summed over at one position of a kernel: channels of a group, or all inputs. */
static int64_t inputs_of(const struct mlo_node *node)
{
    return mlo_node_is(node, "Conv") ? mlo_node_fixed(node, 1)->dims[1]
                                     : (int64_t)mlo_weight_layout_of(node).columns;
}

/* Why a weighted node stays dense; NULL: it need not. */
static const char *obstacle(const struct settings *s, const struct mlo_node *node, char *text, size_t size)
{
    if (!mlo_node_is(node, "Conv") && !mlo_node_is(node, "Gemm") && !mlo_node_is(node, "MatMul"))
        return "only Conv, Gemm and MatMul are made sparse";
    const char *why = mlo_weights_obstacle(&s->choice, node);
    if (why || !s->groups || inputs_of(node) % MLO_SPARSE_GROUP == 0)
        return why;
    snprintf(text, size, "2:4 needs inputs in fours, and it sums over %lld%s%s", (long long)inputs_of(node),
             mlo_node_is(node, "Conv") ? " channel" : "",
             mlo_node_is(node, "Conv") && inputs_of(node) != 1 ? "s" : "");
    return text;
}

static bool weighted(const struct mlo_node *node)
{
    return node->op && (node->op->flags & MLO_OP_WEIGHTED);
}

enum mlo_status mlo_sparsify_wanted(const struct mlo_model *model, const json_t *options,
                                    struct mlo_stats_wants *wants, struct mlo_error *err)
{
    struct settings s;
    int64_t groups, dim;
    char text[128];
    enum mlo_status status = read_settings(options, &s, err);
    for (int n = 0; status == MLO_OK && n < model->graph->node_count; n++) {
        const struct mlo_node *node = model->graph->nodes[n];
        if (!weighted(node) || obstacle(&s, node, text, sizeof text) || !node->inputs[0] ||
            node->inputs[0]->constant || mlo_gram_shape(node, &groups, &dim) || dim > MLO_GRAM_DIM_MAX)
            continue;
        struct mlo_stats_want want = {.name = node->inputs[0]->name, .gram = node, .full = true};
        if (!mlo_stats_wants_add(wants, &want))
            status = mlo_error_nomem(err);
    }
    return status;
}

static const struct mlo_gram *seen(const struct mlo_node *node, const struct mlo_stats *stats,
                                   const char **why)
{
    int64_t groups, dim;
    *why = mlo_gram_shape(node, &groups, &dim);
    const struct mlo_gram *gram = *why || !stats ? NULL : mlo_stats_find_gram(stats, node);
    if (!*why && (!gram || gram->rows == 0))
        *why = dim > MLO_GRAM_DIM_MAX ? "it has too many inputs for a whole matrix"
                                      : "its input was not observed: there is no data for it";
    else if (!*why && !gram->full)
        *why = "it has too many inputs for a whole matrix";
    return *why ? NULL : gram;
}

static enum mlo_status leave(json_t *left, const struct mlo_node *node, const char *why,
                             struct mlo_error *err)
{
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    json_t *row = json_pack("{s:s,s:s,s:I,s:s}", "node", node->name, "op", node->op_type, "weights",
                            (json_int_t)(w ? mlo_tensor_count(w) : 0), "why", why);
    return json_array_append_new(left, row) == 0 ? MLO_OK : mlo_error_nomem(err);
}

/* Layers that become sparse, in the order of the graph; the others go to `left`. */
static enum mlo_status find_layers(const struct settings *s, const struct mlo_model *model,
                                   const struct mlo_stats *stats, struct layer *layers, size_t *count,
                                   json_t *left, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char text[128];
    bool observed = false;
    *count = 0;
    for (int n = 0; n < model->graph->node_count; n++) {
        struct mlo_node *node = model->graph->nodes[n];
        if (!weighted(node))
            continue;
        const char *why = obstacle(s, node, text, sizeof text);
        if (why) {
            MLO_TRY(leave(left, node, why, err));
            continue;
        }
        struct layer *l = &layers[(*count)++];
        *l = (struct layer){.node = node, .source = node->inputs[1], .output_error = -1};
        l->layout = mlo_weight_layout_of(node);
        l->weights = l->layout.rows * l->layout.columns;
        l->target = (uint64_t)(s->sparsity * (double)l->weights + 1e-6);
        l->gram = seen(node, stats, &why);
        l->gpt = s->gpt && l->gram;
        l->why = s->gpt && !l->gram && (stats || !s->automatic) ? why : NULL;
        observed = observed || l->gram;
        for (struct layer *other = layers; other < l && !l->same; other++)
            if (other->source == l->source && other->layout.row_step == l->layout.row_step &&
                mlo_node_is(other->node, "Conv") == mlo_node_is(node, "Conv"))
                l->same = other;
        if (l->same)
            l->same->shared = true;
    }
    if (*count == 0) {
        const json_t *first = json_array_get(left, 0);
        status = mlo_error_set(err, MLO_EINVAL, "no layer can be made sparse%s%.160s%s%.160s",
                               first ? ": node '" : ": there is no Conv, Gemm or MatMul",
                               mlo_json_str(first, "node", ""), first ? "': " : "",
                               mlo_json_str(first, "why", ""));
        mlo_error_hint(err,
                       "it takes constant float32 weights, at least %lld of them (the option min_weights)",
                       (long long)s->choice.min_weights);
    } else if (s->gpt && !s->automatic && !observed) {
        status =
            mlo_error_set(err, MLO_EINVAL, "sparsegpt observes inputs, and there are none; node '%.160s': %s",
                          layers[0].node->name, layers[0].why);
        mlo_error_where(err, "option 'criterion'");
        mlo_error_hint(err, "give calibration data, or set criterion to magnitude");
    }
out:
    return status;
}

/* Each layer's zeros are those of its weights that are among the smallest of all. */
static enum mlo_status share_out(const struct settings *s, struct layer *layers, size_t count,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    uint64_t total = 0;
    size_t at = 0;
    for (size_t i = 0; i < count; i++)
        total += layers[i].same ? 0 : layers[i].weights;
    double *scores = malloc((total + 1) * sizeof *scores);
    uint8_t *gone = malloc(total + 1);
    if (!scores || !gone) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        const float *w = mlo_node_fixed(layers[i].node, 1)->data;
        for (uint64_t k = 0; !layers[i].same && k < layers[i].weights; k++)
            scores[at++] = fabs((double)w[k]);
    }
    MLO_TRY(mlo_sparse_mark_least(scores, total, (uint64_t)(s->sparsity * (double)total + 1e-6), gone, err));
    at = 0;
    for (size_t i = 0; i < count; i++) {
        if (layers[i].same)
            continue;
        layers[i].target = 0;
        for (uint64_t k = 0; k < layers[i].weights; k++)
            layers[i].target += gone[at++];
    }
out:
    free(scores);
    free(gone);
    return status;
}

/* --- one layer ----------------------------------------------------------------------------------- */

/* Where a bias that takes the means stands; NULL: nowhere. */
static struct mlo_node *bias_of(const struct layer *l, int *input)
{
    struct mlo_node *node = mlo_refit_refuses(l->node) ? NULL : mlo_refit_bias_node(l->node, input);
    const struct mlo_tensor *b = node ? mlo_node_fixed(node, *input) : NULL;
    if (node && b && (b->dtype != MLO_FLOAT32 || mlo_tensor_count(b) != l->layout.rows))
        return NULL;
    return node;
}

/* The weights of a layer while they change: [columns][rows], columns in the order of the sweep. */
struct work {
    const struct settings *s;
    struct layer *layer;
    size_t rows, columns;
    size_t *order;         /* which input of the layout */
    double *w, *made;      /* [columns][rows] */
    double *part, *result; /* of a slab */
    double *loss;          /* [rows]: of the outputs' means */
    bool centred;
    struct sparse_quota quota;
    double error, energy; /* of the outputs, so far */
};

/* Positions of the kernel, then channels: groups of four are channels at one position. */
static void make_order(struct work *k)
{
    size_t inputs = (size_t)inputs_of(k->layer->node), positions = k->columns / inputs;
    for (size_t p = 0; p < positions; p++)
        for (size_t c = 0; c < inputs; c++)
            k->order[p * inputs + c] = c * positions + p;
}

static enum mlo_status work_init(struct work *k, const struct settings *s, struct layer *l,
                                 struct mlo_error *err)
{
    int input;
    size_t rows = l->layout.rows, columns = l->layout.columns;
    *k = (struct work){.s = s, .layer = l, .rows = rows, .columns = columns};
    k->quota = (struct sparse_quota){.total = l->weights, .zeros = l->target};
    k->centred = l->gpt && s->bias && !l->shared && bias_of(l, &input);
    k->order = malloc((columns + 1) * sizeof *k->order);
    k->w = malloc((rows * columns + 1) * sizeof *k->w);
    k->made = malloc((rows * columns + 1) * sizeof *k->made);
    k->part = malloc((MLO_MIN(rows, (size_t)SLAB) * columns + 1) * sizeof *k->part);
    k->result = malloc((MLO_MIN(rows, (size_t)SLAB) * columns + 1) * sizeof *k->result);
    k->loss = calloc(rows + 1, sizeof *k->loss);
    if (!k->order || !k->w || !k->made || !k->part || !k->result || !k->loss)
        return mlo_error_nomem(err);
    make_order(k);
    const float *from = mlo_node_fixed(l->node, 1)->data;
    for (size_t i = 0; i < columns; i++)
        for (size_t r = 0; r < rows; r++)
            k->w[i * rows + r] = (double)from[r * l->layout.row_step + k->order[i] * l->layout.column_step];
    return MLO_OK;
}

static void work_clear(struct work *k)
{
    free(k->order);
    free(k->w);
    free(k->made);
    free(k->part);
    free(k->result);
    free(k->loss);
}

static void copy_slab(const struct work *k, double *slab, double *all, size_t first, size_t count, bool in)
{
    for (size_t i = 0; i < k->columns; i++) {
        double *at = all + i * k->rows + first;
        memcpy(in ? slab + i * count : at, in ? at : slab + i * count, count * sizeof *at);
    }
}

/* Squares of what comes of the inputs' means through e[columns][count]; to `sums`, row by row, when given. */
static double mean_energy(const struct work *k, int64_t g, const double *e, size_t count, double *sums)
{
    const struct mlo_gram *gram = k->layer->gram;
    const double *sum = gram->sum + (size_t)g * k->columns;
    double total = 0;
    for (size_t r = 0; r < count; r++) {
        double mean = 0;
        for (size_t i = 0; i < k->columns; i++)
            mean += e[i * count + r] * (sum[k->order[i]] / (double)gram->rows);
        if (sums)
            sums[r] = mean;
        total += mean * mean;
    }
    return total * (double)gram->rows;
}

/* Sweeps rows [first, first + count) of group g, or takes them as they were chosen, and adds up errors. */
static enum mlo_status do_slab(struct work *k, int64_t g, const double *l, double added, size_t first,
                               size_t count, struct mlo_error *err)
{
    enum mlo_status status;
    size_t size = k->columns * count;
    double error, energy, squares = 0, errors = 0;
    copy_slab(k, k->part, k->w, first, count, true);
    if (k->layer->gpt) {
        const struct sparse_rows rows = {.n = k->columns,
                                         .rows = count,
                                         .w = k->part,
                                         .made = k->result,
                                         .groups = k->s->groups,
                                         .block = k->s->block,
                                         .quota = &k->quota};
        MLO_TRY(mlo_sparse_gpt(&rows, l, err));
        copy_slab(k, k->result, k->made, first, count, false);
    } else {
        copy_slab(k, k->result, k->made, first, count, true);
    }
    for (size_t i = 0; i < size; i++) {
        k->result[i] = k->part[i] - k->result[i];
        errors += k->result[i] * k->result[i];
        squares += k->part[i] * k->part[i];
    }
    MLO_TRY(mlo_sparse_energy(l, k->columns, count, k->result, &error, err));
    MLO_TRY(mlo_sparse_energy(l, k->columns, count, k->part, &energy, err));
    k->error += fmax(error - added * errors, 0);
    k->energy += fmax(energy - added * squares, 0);
    mean_energy(k, g, k->result, count, k->loss + first);
    if (!k->centred)
        k->energy -= mean_energy(k, g, k->part, count, NULL);
out:
    return status;
}

static enum mlo_status do_groups(struct work *k, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_gram *gram = k->layer->gram;
    const struct mlo_gram_damping how = {.damp = k->s->damp, .centred = k->centred};
    double *l = NULL, added;
    if (!gram)
        return MLO_OK;
    if ((size_t)gram->dim != k->columns || k->rows % (size_t)gram->groups != 0)
        return mlo_error_set(err, MLO_EINTERNAL, "a matrix of %lld for weights of %zu columns",
                             (long long)gram->dim, k->columns);
    size_t share = k->rows / (size_t)gram->groups;
    for (int64_t g = 0; g < gram->groups; g++) {
        MLO_TRY(mlo_gram_factor(gram, g, &how, k->order, &l, &added, err));
        for (size_t r = 0; r < share; r += SLAB)
            MLO_TRY(do_slab(k, g, l, added, (size_t)g * share + r, MLO_MIN((size_t)SLAB, share - r), err));
        free(l);
        l = NULL;
    }
    k->layer->output_error = k->energy > 0 ? fmax(k->error, 0) / k->energy : -1;
out:
    free(l);
    return status;
}

static enum mlo_status set_bias(struct work *k, struct mlo_error *err)
{
    enum mlo_status status;
    int input = 2;
    int64_t rows = (int64_t)k->rows;
    struct mlo_tensor bias = {0};
    char name[256];
    struct mlo_node *node = bias_of(k->layer, &input);
    if (!k->centred || !node)
        return MLO_OK;
    const struct mlo_tensor *before = mlo_node_fixed(node, input);
    MLO_TRY(before ? mlo_tensor_init(&bias, MLO_FLOAT32, before->rank, before->dims, err)
                   : mlo_tensor_init(&bias, MLO_FLOAT32, 1, &rows, err));
    for (size_t r = 0; r < k->rows; r++)
        ((float *)bias.data)[r] =
            (float)((before ? (double)((const float *)before->data)[r] : 0) + k->loss[r]);
    snprintf(name, sizeof name, "%.*s_bias", mlo_pass_cut(k->layer->node->name, 240), k->layer->node->name);
    MLO_TRY(mlo_pass_set_const_take(node, input, name, &bias, err));
    k->layer->bias_corrected = true;
out:
    mlo_tensor_clear(&bias);
    return status;
}

static enum mlo_status set_weights(struct work *k, struct mlo_error *err)
{
    enum mlo_status status;
    struct layer *l = k->layer;
    struct mlo_tensor w = {0};
    const struct mlo_tensor *before = mlo_node_fixed(l->node, 1);
    double squares = 0, errors = 0;
    MLO_TRY(mlo_tensor_init(&w, MLO_FLOAT32, before->rank, before->dims, err));
    for (size_t i = 0; i < k->columns; i++)
        for (size_t r = 0; r < k->rows; r++) {
            double was = k->w[i * k->rows + r], is = k->made[i * k->rows + r];
            ((float *)w.data)[r * l->layout.row_step + k->order[i] * l->layout.column_step] = (float)is;
            l->zeros += is == 0;
            l->changed = l->changed || is != was;
            squares += was * was;
            errors += (was - is) * (was - is);
        }
    l->weight_error = squares > 0 ? errors / squares : 0;
    MLO_TRY(mlo_pass_set_const_take(l->node, 1, "weight", &w, err));
    l->made = l->node->inputs[1];
out:
    mlo_tensor_clear(&w);
    return status;
}

static enum mlo_status do_layer(const struct settings *s, struct layer *l, struct mlo_error *err)
{
    enum mlo_status status;
    struct work k;
    if (l->same) {
        l->made = l->same->made;
        l->zeros = l->same->zeros;
        l->gpt = l->same->gpt;
        l->weight_error = l->same->weight_error;
        return mlo_node_set_input(l->node, 1, l->made) ? MLO_OK : mlo_error_nomem(err);
    }
    MLO_TRY(work_init(&k, s, l, err));
    if (!l->gpt) {
        const struct sparse_rows rows = {.n = k.columns,
                                         .rows = k.rows,
                                         .w = k.w,
                                         .made = k.made,
                                         .groups = s->groups,
                                         .block = s->block,
                                         .quota = &k.quota};
        MLO_TRY(mlo_sparse_magnitude(&rows, err));
    }
    MLO_TRY(do_groups(&k, err));
    MLO_TRY(set_bias(&k, err));
    MLO_TRY(set_weights(&k, err));
out:
    work_clear(&k);
    if (status != MLO_OK)
        mlo_error_prefix(err, "node '%.160s'", l->node->name);
    return status;
}

/* --- report -------------------------------------------------------------------------------------- */

static json_t *layer_json(const struct layer *l)
{
    json_t *row =
        json_pack("{s:s,s:s,s:s,s:I,s:I,s:f,s:f,s:b}", "node", l->node->name, "op", l->node->op_type,
                  "criterion", l->gpt ? "sparsegpt" : "magnitude", "weights", (json_int_t)l->weights, "zeros",
                  (json_int_t)l->zeros, "sparsity", (double)l->zeros / (double)l->weights, "weight_error",
                  l->weight_error, "bias_corrected", l->bias_corrected);
    json_object_set_new(row, "output_error", l->output_error < 0 ? json_null() : json_real(l->output_error));
    if (l->why)
        json_object_set_new(row, "why", json_string(l->why));
    if (l->same)
        json_object_set_new(row, "shares", json_string(l->same->node->name));
    return row;
}

static enum mlo_status speed_json(const struct settings *s, const struct mlo_model *model,
                                  const struct layer *layers, size_t count, json_t **out,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *bound = NULL;
    uint64_t all = 0;
    struct mlo_sparse_layer *list = calloc(count + 1, sizeof *list);
    if (!list)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_model_clone_borrowing(model, &bound, err));
    bool known = mlo_graph_bind_batch(bound->graph, 1, NULL) == MLO_OK;
    for (int n = 0; known && n < bound->graph->node_count; n++)
        all += mlo_node_macs(bound->graph->nodes[n]);
    for (size_t i = 0; i < count; i++) {
        const struct mlo_node *node = layers[i].node;
        list[i] =
            (struct mlo_sparse_layer){node, known ? mlo_node_macs(bound->graph->nodes[node->index]) : 0};
    }
    *out = mlo_sparse_speed(s->groups ? "2:4" : "unstructured", list, count, all);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    mlo_model_free(bound);
    free(list);
    return status;
}

static enum mlo_status make_report(const struct settings *s, const struct mlo_model *model,
                                   const struct layer *layers, size_t count, json_t *left, json_t **out,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    json_t *rows = json_array(), *speed = NULL;
    uint64_t weights = 0, zeros = 0;
    bool gpt = false;
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(rows, layer_json(&layers[i]));
        weights += layers[i].same ? 0 : layers[i].weights;
        zeros += layers[i].same ? 0 : layers[i].zeros;
        gpt = gpt || layers[i].gpt;
    }
    MLO_TRY(speed_json(s, model, layers, count, &speed, err));
    *out = json_pack("{s:s,s:s,s:s,s:I,s:I,s:f,s:O,s:O,s:O}", "pattern", s->groups ? "2:4" : "unstructured",
                     "criterion", gpt ? "sparsegpt" : "magnitude", "scope", s->global ? "global" : "layer",
                     "weights", (json_int_t)weights, "zeros", (json_int_t)zeros, "sparsity",
                     (double)zeros / (double)weights, "layers", rows, "left", left, "speed", speed);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(rows);
    json_decref(speed);
    return status;
}

/* --- the pass ------------------------------------------------------------------------------------ */

enum mlo_status mlo_sparsify_model(struct mlo_model *model, const json_t *options,
                                   const struct mlo_stats *stats, struct mlo_pass_context *ctx,
                                   json_t **report, struct mlo_error *err)
{
    enum mlo_status status;
    struct settings s;
    struct layer *layers = NULL;
    json_t *left = json_array();
    size_t count;
    *report = NULL;
    MLO_TRY(read_settings(options, &s, err));
    MLO_TRY(mlo_pass_refuse_quantized(model->graph, err));
    MLO_TRY(mlo_pass_check_named(model->graph, s.choice.exclude, err));
    mlo_pass_unlist_initializers(model);
    layers = calloc((size_t)model->graph->node_count + 1, sizeof *layers);
    if (!layers || !left) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(find_layers(&s, model, stats, layers, &count, left, err));
    if (s.global)
        MLO_TRY(share_out(&s, layers, count, err));
    for (size_t i = 0; i < count; i++) {
        MLO_TRY(do_layer(&s, &layers[i], err));
        ctx->changes += layers[i].changed;
        if (layers[i].zeros == layers[i].weights)
            mlo_pass_note(ctx, layers[i].node->name,
                          "all of its weights are zero now: exclude it, or make "
                          "less of the model zero");
        if (layers[i].why)
            mlo_pass_note(ctx, layers[i].node->name, "by magnitude: %s", layers[i].why);
    }
    MLO_TRY(make_report(&s, model, layers, count, left, report, err));
    mlo_graph_remove_unused_values(model->graph);
out:
    json_decref(left);
    free(layers);
    return status;
}

enum mlo_status mlo_pass_sparsify(struct mlo_model *model, struct mlo_pass_context *ctx,
                                  struct mlo_error *err)
{
    json_t *report = NULL, *row;
    size_t i;
    enum mlo_status status = mlo_sparsify_model(model, ctx->options, ctx->stats, ctx, &report, err);
    json_array_foreach(json_object_get(report, "left"), i, row)
    {
        mlo_pass_note(ctx, mlo_json_str(row, "node", ""), "stays dense: %s", mlo_json_str(row, "why", ""));
    }
    json_decref(report);
    return status;
}
