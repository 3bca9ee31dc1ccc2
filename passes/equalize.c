/* Cross-layer equalization and absorption of high biases (Nagel et al., 2019, "Data-Free Quantization Through
 * Weight Equalization and Bias Correction", arXiv:1906.04721, sections 4.1 and 4.2).
 *
 * Between two weighted nodes with nothing but positively homogeneous operators in between (f(s x) = s f(x)
 * for s > 0), channel i of the first may be divided by any s_i and the inputs i of the second multiplied:
 * what the model computes stays. s_i = sqrt(r1_i / r2_i) gives both the same range of weights in channel i.
 * Pairs of a chain are gone through until nothing moves. A Clip to [0, 6] is not homogeneous: it stays, and
 * no pair goes across it, unless the option relu6 says that it becomes a Relu, as in the paper. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/passes_impl.h"

enum { SWEEPS_MAX = 64 };

static const char *const relu6_choices[] = {"keep", "relu", NULL};
const struct mlo_option_spec mlo_equalize_options[] = {
    {.name = "relu6",
     .type = MLO_OPT_STRING,
     .fallback = "keep",
     .choices = relu6_choices,
     .description =
         "keep: no pair goes across a Clip to [0, 6]; relu: it becomes a Relu, which changes what the "
         "model computes where it clips"},
    {.name = "absorb",
     .type = MLO_OPT_BOOL,
     .fallback = "true",
     .description = "Moves high biases (three standard deviations below the observed mean) behind the Relu"},
    {NULL},
};

/* A Conv or Gemm, and the factors it has taken so far. */
struct stage {
    struct mlo_node *node;
    const float *w;
    size_t outputs, inputs; /* channels */
    size_t groups, per_row; /* weights of one output: inputs of its group times kernel positions */
    size_t kernel;          /* positions; of a Gemm behind Flatten, positions of the image */
    size_t row_step, column_step;
    double *out, *in; /* effective weight: w * out[output] * in[input] */
    double *shift;    /* added to the output in the end; NULL: nothing */
};

struct pair {
    struct stage *first, *second;
    struct mlo_node *activation; /* the one operator in between when it is a Relu; else NULL */
};

/* --- finding pairs ----------------------------------------------------------------------------- */

static bool is_scalable(const struct mlo_node *node)
{
    const char *why;
    if (!mlo_node_is(node, "Conv") && !mlo_node_is(node, "Gemm"))
        return false;
    return mlo_node_can_scale(node, &why) && !mlo_node_attr_i(node, "transA", 0);
}

/* Works on each channel alone and keeps a positive factor. */
static bool is_homogeneous(const struct mlo_node *node)
{
    static const char *const OPS[] = {"Relu",    "LeakyRelu",         "MaxPool", "AveragePool",
                                      "Flatten", "GlobalAveragePool", "Identity"};
    for (size_t i = 0; i < MLO_COUNT(OPS); i++)
        if (mlo_node_is(node, OPS[i]))
            return mlo_node_only_first_output(node) &&
                   (strcmp(OPS[i], "Flatten") != 0 || mlo_node_attr_i(node, "axis", 1) == 1) &&
                   (strcmp(OPS[i], "LeakyRelu") != 0 || mlo_node_attr_f(node, "alpha", 0.01f) >= 0);
    return false;
}

/* A Clip from 0 to something finite. */
static bool is_relu6(const struct mlo_node *node)
{
    if (!mlo_node_is(node, "Clip"))
        return false;
    const struct mlo_tensor *low = mlo_node_fixed(node, 1), *high = mlo_node_fixed(node, 2);
    if (mlo_node_input(node, 1) || mlo_node_input(node, 2))
        return low && high && mlo_tensor_get_f64(low, 0) == 0;
    return mlo_node_attr_f(node, "min", -FLT_MAX) == 0 && mlo_node_attr_f(node, "max", FLT_MAX) < FLT_MAX;
}

/* The node that a chain from `first` leads to, and the number of operators on the way; NULL when it leads
 * nowhere. *clip: the first Clip on it. */
static struct mlo_node *follow(const struct mlo_node *first, bool across_clips, int *between,
                               struct mlo_node **clip)
{
    const struct mlo_value *v = first->outputs[0];
    *between = 0;
    *clip = NULL;
    for (;;) {
        struct mlo_node *user = mlo_value_sole_user(v);
        if (!user || user->inputs[0] != v)
            return NULL;
        if (is_scalable(user))
            return user;
        bool clipped = is_relu6(user);
        if (clipped && !*clip)
            *clip = user;
        if (!(clipped && across_clips) && !is_homogeneous(user))
            return NULL;
        ++*between;
        v = user->outputs[0];
    }
}

static bool stage_init(struct stage *s, struct mlo_node *node, struct mlo_arena *arena)
{
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    bool conv = mlo_node_is(node, "Conv"), rows_first = conv || mlo_node_attr_i(node, "transB", 0) != 0;
    *s = (struct stage){.node = node, .w = w->data, .groups = 1, .kernel = 1};
    s->outputs = (size_t)w->dims[rows_first ? 0 : 1];
    s->per_row = s->outputs ? mlo_tensor_count(w) / s->outputs : 0;
    if (conv) {
        s->groups = (size_t)mlo_node_attr_i(node, "group", 1);
        for (int d = 2; d < w->rank; d++)
            s->kernel *= (size_t)w->dims[d];
    }
    if (!s->per_row || !s->kernel || !s->groups || s->outputs % s->groups)
        return false;
    s->inputs = s->per_row / s->kernel * s->groups;
    s->row_step = rows_first ? s->per_row : 1;
    s->column_step = rows_first ? 1 : s->outputs;
    s->out = mlo_arena_calloc(arena, s->outputs, sizeof *s->out);
    s->in = mlo_arena_calloc(arena, s->inputs, sizeof *s->in);
    for (size_t i = 0; s->out && i < s->outputs; i++)
        s->out[i] = 1;
    for (size_t i = 0; s->in && i < s->inputs; i++)
        s->in[i] = 1;
    return s->out && s->in;
}

/* The input channel of weight k of an output's row. A Gemm behind Flatten has several for each channel of
 * what was flattened: `kernel` says how many. */
static size_t input_of(const struct stage *s, size_t output, size_t k)
{
    return output / (s->outputs / s->groups) * (s->inputs / s->groups) + k / s->kernel;
}

static double weight(const struct stage *s, size_t output, size_t k)
{
    return (double)s->w[output * s->row_step + k * s->column_step] * s->out[output] *
           s->in[input_of(s, output, k)];
}

/* Joins first and second; false: their channels do not fit. */
static bool join(struct stage *first, struct stage *second)
{
    if (second->inputs == first->outputs)
        return true;
    if (!mlo_node_is(second->node, "Gemm") || second->kernel != 1 || first->outputs == 0 ||
        second->inputs % first->outputs != 0)
        return false;
    second->kernel = second->inputs / first->outputs;
    second->inputs = first->outputs;
    return true;
}

/* --- equalization ------------------------------------------------------------------------------ */

/* One pair; returns the largest |log s|. `r1` and `r2` are scratch. */
static double equalize(struct pair *p, double *r1, double *r2)
{
    size_t channels = p->first->outputs;
    double moved = 0;
    memset(r1, 0, channels * sizeof *r1);
    memset(r2, 0, channels * sizeof *r2);
    for (size_t o = 0; o < channels; o++)
        for (size_t k = 0; k < p->first->per_row; k++)
            r1[o] = fmax(r1[o], fabs(weight(p->first, o, k)));
    for (size_t o = 0; o < p->second->outputs; o++)
        for (size_t k = 0; k < p->second->per_row; k++) {
            size_t i = input_of(p->second, o, k);
            r2[i] = fmax(r2[i], fabs(weight(p->second, o, k)));
        }
    for (size_t i = 0; i < channels; i++) {
        if (r1[i] == 0 || r2[i] == 0)
            continue; /* a dead channel: nothing to share */
        double s = sqrt(r1[i] / r2[i]);
        s = fmin(fmax(s, 1e-6), 1e6);
        p->first->out[i] /= s;
        p->second->in[i] *= s;
        moved = fmax(moved, fabs(s - 1));
    }
    return moved;
}

/* --- absorbing high biases --------------------------------------------------------------------- */

static bool pads_nothing(const struct mlo_node *node)
{
    size_t count;
    const int64_t *pads = mlo_node_attr_ints(node, "pads", &count);
    const char *mode = mlo_node_attr_s(node, "auto_pad", "NOTSET");
    for (size_t i = 0; i < count; i++)
        if (pads[i] != 0)
            return false;
    return strcmp(mode, "NOTSET") == 0 || strcmp(mode, "VALID") == 0;
}

static bool may_absorb(const struct pair *p)
{
    return p->activation && pads_nothing(p->second->node);
}

/* relu(x) is relu(x - c) + c wherever x >= c >= 0; c lies three standard deviations below the mean. What the
 * second node then misses, its bias gets. */
static enum mlo_status absorb(struct pair *p, const struct mlo_channel_stats *seen, struct mlo_arena *arena,
                              size_t *absorbed, struct mlo_error *err)
{
    struct stage *a = p->first, *b = p->second;
    double *c = mlo_arena_calloc(arena, a->outputs, sizeof *c);
    double alpha = mlo_node_is(b->node, "Gemm") ? (double)mlo_node_attr_f(b->node, "alpha", 1.0f) : 1.0;
    a->shift = a->shift ? a->shift : mlo_arena_calloc(arena, a->outputs, sizeof *a->shift);
    b->shift = b->shift ? b->shift : mlo_arena_calloc(arena, b->outputs, sizeof *b->shift);
    if (!c || !a->shift || !b->shift)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < a->outputs; i++) {
        if (!seen->count[i])
            continue;
        double n = (double)seen->count[i], mean = seen->sum[i] / n;
        double deviation = sqrt(fmax(seen->sum_sq[i] / n - mean * mean, 0));
        c[i] = fmax(mean - 3 * deviation, 0) * a->out[i];
        *absorbed += c[i] > 0;
        a->shift[i] -= c[i];
    }
    for (size_t o = 0; o < b->outputs; o++)
        for (size_t k = 0; k < b->per_row; k++)
            b->shift[o] += alpha * weight(b, o, k) * c[input_of(b, o, k)];
    return MLO_OK;
}

/* --- writing ----------------------------------------------------------------------------------- */

static enum mlo_status write_stage(const struct stage *s, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor w = {0}, bias = {0};
    struct mlo_node *node = s->node;
    char name[256];
    const struct mlo_tensor *old = mlo_node_fixed(node, 2);
    int64_t outputs = (int64_t)s->outputs;
    double beta = mlo_node_is(node, "Gemm") ? (double)mlo_node_attr_f(node, "beta", 1.0f) : 1.0;
    MLO_TRY(mlo_tensor_copy(mlo_node_fixed(node, 1), &w, err));
    for (size_t o = 0; o < s->outputs; o++)
        for (size_t k = 0; k < s->per_row; k++)
            ((float *)w.data)[o * s->row_step + k * s->column_step] = (float)weight(s, o, k);
    if (old || s->shift) {
        size_t step = old && mlo_tensor_count(old) > 1 ? 1 : 0;
        MLO_TRY(mlo_tensor_init(&bias, MLO_FLOAT32, 1, &outputs, err));
        for (size_t o = 0; o < s->outputs; o++)
            ((float *)bias.data)[o] =
                (float)((old ? beta * (double)((const float *)old->data)[o * step] * s->out[o] : 0) +
                        (s->shift ? s->shift[o] : 0));
        snprintf(name, sizeof name, "%.*s_bias", mlo_pass_cut(node->name, 240), node->name);
        MLO_TRY(mlo_pass_set_const_take(node, 2, name, &bias, err));
        if (mlo_node_attr(node, "beta") && !mlo_node_set_f(node, "beta", 1.0f)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    MLO_TRY(mlo_pass_set_const_take(node, 1, "weight", &w, err));
out:
    mlo_tensor_clear(&w);
    mlo_tensor_clear(&bias);
    return status;
}

/* A Clip to [0, 6] becomes a Relu. */
static enum mlo_status unclip(struct mlo_node *clip, struct mlo_error *err)
{
    struct mlo_graph *graph = clip->graph;
    struct mlo_value *x = clip->inputs[0], *y = clip->outputs[0];
    int index = clip->index;
    mlo_graph_remove_node(clip);
    struct mlo_node *before = index < graph->node_count ? graph->nodes[index] : NULL;
    return mlo_graph_add_node(graph, before, "", "Relu", clip->name, &x, 1, &y, 1) ? MLO_OK
                                                                                   : mlo_error_nomem(err);
}

/* Makes the Clips on chains Relus, or notes that they stay. */
static enum mlo_status treat_clips(struct mlo_graph *graph, bool unclips, struct mlo_pass_context *ctx,
                                   struct mlo_error *err)
{
    for (int n = 0; n < graph->node_count; n++) {
        int between;
        struct mlo_node *clip;
        while (is_scalable(graph->nodes[n]) && follow(graph->nodes[n], true, &between, &clip) && clip) {
            if (!unclips) {
                mlo_pass_note(ctx, clip->name,
                              "no equalization across this Clip: its bound is the same for all channels (the "
                              "option relu6 can make it a Relu)");
                break;
            }
            mlo_pass_note(ctx, clip->name, "this Clip became a Relu, which changes what was clipped");
            enum mlo_status status = unclip(clip, err);
            if (status != MLO_OK)
                return status;
            ctx->changes++;
        }
    }
    return MLO_OK;
}

/* --- the pass ---------------------------------------------------------------------------------- */

/* Pairs in graph order; nodes without a partner have no stage. */
static enum mlo_status find_pairs(const struct mlo_graph *graph, bool across_clips, struct mlo_arena *arena,
                                  struct pair **out, size_t *count, struct mlo_error *err)
{
    size_t slots = (size_t)graph->node_count + 1;
    struct stage **of = mlo_arena_calloc(arena, slots, sizeof *of);
    *out = mlo_arena_calloc(arena, slots, sizeof **out);
    *count = 0;
    if (!of || !*out)
        return mlo_error_nomem(err);
    for (int n = 0; n < graph->node_count; n++) {
        int between;
        struct mlo_node *clip, *ends[2] = {graph->nodes[n], NULL};
        if (!is_scalable(ends[0]) || !(ends[1] = follow(ends[0], across_clips, &between, &clip)))
            continue;
        for (int e = 0; e < 2; e++) {
            struct stage **at = &of[ends[e]->index];
            if (*at)
                continue;
            *at = mlo_arena_calloc(arena, 1, sizeof **at);
            if (!*at || !stage_init(*at, ends[e], arena))
                return mlo_error_nomem(err);
        }
        struct stage *first = of[ends[0]->index], *second = of[ends[1]->index];
        struct mlo_node *user = mlo_value_sole_user(ends[0]->outputs[0]);
        if (join(first, second))
            (*out)[(*count)++] =
                (struct pair){first, second, between == 1 && mlo_node_is(user, "Relu") ? user : NULL};
    }
    return MLO_OK;
}

static enum mlo_status absorb_all(struct pair *pairs, size_t count, struct mlo_arena *arena,
                                  struct mlo_pass_context *ctx, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < count && status == MLO_OK; i++) {
        const struct mlo_node *node = pairs[i].first->node;
        const struct mlo_channel_stats *seen =
            ctx->stats ? mlo_stats_find_channels(ctx->stats, node->outputs[0]->name) : NULL;
        size_t absorbed = 0;
        if (!pairs[i].activation)
            continue;
        if (!may_absorb(&pairs[i]))
            mlo_pass_note(ctx, node->name, "its bias is not absorbed: '%s' pads with zeros",
                          pairs[i].second->node->name);
        else if (!seen || seen->channels != (int64_t)pairs[i].first->outputs)
            mlo_pass_note(ctx, node->name, "its bias is not absorbed: its output was not observed");
        else
            status = absorb(&pairs[i], seen, arena, &absorbed, err);
        if (absorbed)
            mlo_pass_note(ctx, node->name, "the biases of %zu channels are absorbed by '%s'", absorbed,
                          pairs[i].second->node->name);
    }
    return status;
}

enum mlo_status mlo_pass_equalize(struct mlo_model *model, struct mlo_pass_context *ctx,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    struct pair *pairs;
    size_t count, widest = 1;
    bool unclips = strcmp(mlo_json_str(ctx->options, "relu6", "keep"), "relu") == 0;
    struct mlo_arena *arena = mlo_arena_new();
    if (!arena)
        return mlo_error_nomem(err);
    mlo_pass_unlist_initializers(model);
    MLO_TRY(treat_clips(model->graph, unclips, ctx, err));
    MLO_TRY(find_pairs(model->graph, false, arena, &pairs, &count, err));
    for (size_t i = 0; i < count; i++)
        widest = MLO_MAX(widest, pairs[i].first->outputs);
    double *scratch = mlo_arena_calloc(arena, 2 * widest, sizeof *scratch), moved = 1;
    if (!scratch) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int sweep = 0; sweep < SWEEPS_MAX && moved > 1e-4; sweep++) {
        moved = 0;
        for (size_t i = 0; i < count; i++)
            moved = fmax(moved, equalize(&pairs[i], scratch, scratch + widest));
    }
    if (mlo_json_bool(ctx->options, "absorb", true))
        MLO_TRY(absorb_all(pairs, count, arena, ctx, err));
    for (size_t i = 0; i < count; i++) {
        bool last = true; /* the second of a pair is the first of the next, when there is one */
        MLO_TRY(write_stage(pairs[i].first, err));
        for (size_t k = 0; k < count; k++)
            last &= pairs[k].first != pairs[i].second;
        if (last)
            MLO_TRY(write_stage(pairs[i].second, err));
        ctx->changes++;
    }
    mlo_graph_remove_unused_values(model->graph);
out:
    mlo_arena_free(arena);
    return status;
}

enum mlo_status mlo_equalize_wanted(const struct mlo_model *model, const json_t *options,
                                    struct mlo_stats_wants *wants, struct mlo_error *err)
{
    enum mlo_status status;
    struct pair *pairs;
    size_t count;
    struct mlo_arena *arena;
    bool unclips = strcmp(mlo_json_str(options, "relu6", "keep"), "relu") == 0;
    if (!mlo_json_bool(options, "absorb", true))
        return MLO_OK;
    if (!(arena = mlo_arena_new()))
        return mlo_error_nomem(err);
    MLO_TRY(find_pairs(model->graph, unclips, arena, &pairs, &count, err));
    for (size_t i = 0; i < count; i++) {
        struct mlo_stats_want want = {.name = pairs[i].first->node->outputs[0]->name, .channel_axis = 1};
        if (pads_nothing(pairs[i].second->node) && !mlo_stats_wants_add(wants, &want)) {
            status = mlo_error_nomem(err);
            break;
        }
    }
out:
    mlo_arena_free(arena);
    return status;
}
