#include "passes/prune.h"

#include <stdlib.h>
#include <string.h>

#include "passes/prune_impl.h"

static const char *const CRITERIA[] = {"auto", "second-order", "activation", "l2", "l1", "bn-scale", NULL};
static const char *const HEADS[] = {"narrow", "whole", NULL};
static const char *const OF[] = {"multiply-adds", "weights", NULL};
static const char *const RATIOS[] = {"sensitivity", "uniform", NULL};
static const char *const RECONSTRUCT[] = {"least-squares", "bias", "none", NULL};
const struct mlo_option_spec mlo_prune_options[] = {
    {.name = "remove",
     .type = MLO_OPT_STRING,
     .fallback = "50%",
     .description = "The share of the multiply-adds (or of what `of` says) that goes, as 50%"},
    {.name = "of",
     .type = MLO_OPT_STRING,
     .fallback = "multiply-adds",
     .choices = OF,
     .description = "What a share of goes: multiply-adds, for speed, or weights, for size"},
    {.name = "criterion",
     .type = MLO_OPT_STRING,
     .fallback = "auto",
     .choices = CRITERIA,
     .description =
         "What channels are ranked by: errors of the outputs of those that read them (second-order), what "
         "they "
         "bring to these (activation), norms of weights (l2, l1), scales of BatchNormalization; auto: "
         "second-order with data, l2 without"},
    {.name = "ratios",
     .type = MLO_OPT_STRING,
     .fallback = "sensitivity",
     .choices = RATIOS,
     .description = "uniform: the same share of each group; sensitivity: more where it errs less for each "
                    "multiply-add"},
    {.name = "round",
     .type = MLO_OPT_INT,
     .fallback = "8",
     .min = 1,
     .max = 1024,
     .description = "What stays of a group's channels is a multiple of this"},
    {.name = "min_channels",
     .type = MLO_OPT_INT,
     .fallback = "1",
     .min = 1,
     .max = 1 << 20,
     .description = "At least so many channels stay in a group"},
    {.name = "heads",
     .type = MLO_OPT_STRING,
     .fallback = "narrow",
     .choices = HEADS,
     .description =
         "Of attention heads: narrow: indices of the width of all, where they can be turned; whole: "
         "whole ones go"},
    MLO_OPTION_EXCLUDE,
    {.name = "freeze_initializers",
     .type = MLO_OPT_BOOL,
     .fallback = "false",
     .description = "In the step: weights that are listed as graph inputs too are made constants first"},
    {.name = "reconstruct",
     .type = MLO_OPT_STRING,
     .fallback = "least-squares",
     .choices = RECONSTRUCT,
     .description =
         "How layers behind are fitted to what the float model made on the calibration data: weights "
         "and biases, biases alone, or not at all"},
    {.name = "damp",
     .type = MLO_OPT_FLOAT,
     .fallback = "0.001",
     .min = 0,
     .max = 1,
     .description =
         "How much fitted weights are drawn to those that were there, as a share of the mean square "
         "of their inputs"},
    {.name = "samples",
     .type = MLO_OPT_INT,
     .fallback = "512",
     .min = 1,
     .max = 1 << 20,
     .description = "Samples of the calibration data that layers are ranked by and fitted on; a Conv whose "
                    "output has more than one position is ranked by at most 96"},
    {NULL},
};

bool mlo_prune_keeps_heads(const json_t *options)
{
    return strcmp(mlo_json_str(options, "heads", HEADS[0]), HEADS[1]) == 0;
}

static enum mlo_status read_settings(const json_t *options, bool observed, struct prune_settings *out,
                                     struct mlo_error *err)
{
    char what[64];
    *out = (struct prune_settings){
        .criterion = mlo_json_str(options, "criterion", "auto"),
        .ratios = mlo_json_str(options, "ratios", "sensitivity"),
        .of = mlo_json_str(options, "of", OF[0]),
        .round = (int)mlo_json_i64(options, "round", 8),
        .min_channels = (int)mlo_json_i64(options, "min_channels", 1),
    };
    if (strcmp(out->criterion, "auto") == 0)
        out->criterion = observed ? "second-order" : "l2";
    snprintf(what, sizeof what, "share of %s that leaves any", out->of);
    return mlo_pass_read_share(mlo_json_str(options, "remove", "50%"), "remove", what, &out->remove, err);
}

static bool in_group(const struct prune *p, const struct mlo_value *v, int axis)
{
    for (int64_t i = 0; i < mlo_prune_dim(v, axis); i++) {
        int unit = mlo_prune_unit_at(p, v, axis, i);
        if (unit >= 0 && p->units[unit].group >= 0)
            return true;
    }
    return false;
}

static enum mlo_status want_gram(struct mlo_stats_wants *wants, const struct prune_weighted *w, bool full,
                                 struct mlo_error *err)
{
    int64_t groups, dim;
    if (!mlo_prune_has_gram(w) || mlo_gram_shape(w->node, &groups, &dim))
        return MLO_OK;
    struct mlo_stats_want want = {
        .name = w->node->inputs[0]->name, .gram = w->node, .full = full && dim <= MLO_PRUNE_DIM_MAX};
    return mlo_stats_wants_add(wants, &want) ? MLO_OK : mlo_error_nomem(err);
}

/* Heads are turned by what makes their queries, keys and values. */
static enum mlo_status want_attention(struct prune *p, const json_t *options, struct mlo_stats_wants *wants,
                                      struct mlo_error *err)
{
    enum mlo_status status;
    struct prune_attention found;
    struct mlo_prune_turned list = {0};
    const json_t *exclude = json_object_get(options, "exclude");
    MLO_TRY(mlo_prune_find_attention(p, exclude, NULL, p->arena, &found, &list, err));
    for (int i = 0; i < found.count; i++)
        for (int s = 0; s < 2; s++)
            MLO_TRY(want_gram(wants, &p->weighted[found.pairs[i].part[s].maker], true, err));
out:
    return status;
}

enum mlo_status mlo_prune_wanted(const struct mlo_model *model, const json_t *options, bool turns,
                                 struct mlo_stats_wants *wants, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct prune_settings s;
    struct prune *p;
    struct mlo_arena *arena = mlo_arena_new();
    if (!arena)
        return mlo_error_nomem(err);
    MLO_TRY(read_settings(options, true, &s, err));
    bool full = strcmp(s.criterion, "second-order") == 0;
    if (!full && strcmp(s.criterion, "activation") != 0)
        goto out;
    MLO_TRY(mlo_pass_refuse_quantized(model->graph, err));
    MLO_TRY(mlo_prune_analyse(model->graph, json_object_get(options, "exclude"), NULL, arena, &p, err));
    for (int k = 0; k < p->weighted_count; k++) {
        const struct prune_weighted *w = &p->weighted[k];
        if (in_group(p, w->node->inputs[0], w->x_axis))
            MLO_TRY(want_gram(wants, w, full, err));
    }
    if (full && turns && !mlo_prune_keeps_heads(options))
        MLO_TRY(want_attention(p, options, wants, err));
out:
    mlo_arena_free(arena);
    return status;
}

/* --- report ---------------------------------------------------------------------------------------- */

static json_t *group_json(const struct prune *p, int g)
{
    const struct prune_group *group = &p->groups[g];
    json_t *nodes = json_array();
    for (int k = 0; k < p->weighted_count; k++) {
        const struct prune_weighted *w = &p->weighted[k];
        const struct mlo_value *out = w->node->outputs[0];
        bool makes = false;
        for (int64_t i = 0; !makes && i < mlo_prune_dim(out, w->out_axis); i++) {
            int unit = mlo_prune_unit_at(p, out, w->out_axis, i);
            makes = unit >= 0 && p->units[unit].group == g;
        }
        if (makes)
            json_array_append_new(nodes, json_string(w->node->name));
    }
    return json_pack("{s:s,s:i,s:i,s:i,s:o,s:o,s:o}", "node", group->maker ? group->maker->node->name : "",
                     "from", group->count, "to", group->count - group->removed, "block", group->block,
                     "error", mlo_json_finite(group->error[group->removed]), "weight",
                     mlo_json_finite(group->weight), "nodes", nodes);
}

/* By node, with nothing gone; their sums. */
struct costs {
    uint64_t *macs, *weights;
    double macs_before, weights_before;
};

static json_t *left_json(const struct prune *p)
{
    json_t *left = json_array();
    for (int k = 0; k < p->weighted_count; k++) {
        const struct prune_weighted *w = &p->weighted[k];
        const struct prune_reason *why = mlo_prune_left(p, w);
        if (!why)
            continue;
        char text[400];
        const char *name = why->node ? why->node->name : "";
        snprintf(text, sizeof text, "%s%s%.*s%s", why->why, why->node ? " (node '" : "",
                 mlo_pass_cut(name, 180), name, why->node ? "')" : "");
        json_array_append_new(left, json_pack("{s:s,s:I,s:s}", "node", w->node->name, "channels",
                                              (json_int_t)mlo_prune_dim(w->node->outputs[0], w->out_axis),
                                              "why", text));
    }
    return left;
}

/* What a cost was, and is with what is gone. */
static json_t *spent_json(const struct prune *p, double before, const uint64_t *cost)
{
    double after = mlo_prune_cost(p, cost);
    return json_pack("{s:f,s:f,s:f}", "before", before, "after", after, "removed",
                     before > 0 ? 1 - after / before : 0);
}

static enum mlo_status make_report(const struct prune *p, const struct prune_settings *s,
                                   const struct costs *costs, json_t **out, struct mlo_error *err)
{
    json_t *groups = json_array();
    for (int g = 0; g < p->group_count; g++)
        json_array_append_new(groups, group_json(p, g));
    *out = json_pack("{s:s,s:s,s:s,s:o,s:o,s:o,s:o}", "criterion", s->criterion, "ratios", s->ratios, "of",
                     s->of, "macs", spent_json(p, costs->macs_before, costs->macs), "weights",
                     spent_json(p, costs->weights_before, costs->weights), "groups", groups, "left",
                     left_json(p));
    return *out ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status note_kept(const struct prune *p, struct mlo_arena *arena, struct mlo_prune_result *out,
                                 struct mlo_error *err)
{
    size_t cap = 0;
    for (int i = 0; i < p->value_count; i++)
        cap += (size_t)MLO_MAX(mlo_prune_rank(p->graph->values[i]), 0);
    struct mlo_prune_kept *list = mlo_arena_calloc(arena, cap + 1, sizeof *list);
    if (!list)
        return mlo_error_nomem(err);
    for (int i = 0; i < p->value_count; i++) {
        const struct mlo_value *v = p->graph->values[i];
        for (int a = 0; a < mlo_prune_rank(v); a++) {
            int64_t dim = mlo_prune_dim(v, a), count = mlo_prune_kept(p, v, a, NULL);
            if (dim < 2 || count == dim)
                continue;
            int64_t *index = mlo_arena_alloc(arena, (size_t)(count + 1) * sizeof *index);
            char *name = mlo_arena_strdup(arena, v->name);
            if (!index || !name)
                return mlo_error_nomem(err);
            mlo_prune_kept(p, v, a, index);
            list[out->kept_count++] = (struct mlo_prune_kept){name, a, dim, count, index};
        }
    }
    out->kept = list;
    return MLO_OK;
}

/* --- the pass -------------------------------------------------------------------------------------- */

static enum mlo_status check_groups(const struct prune *p, struct mlo_error *err)
{
    if (p->group_count > 0)
        return MLO_OK;
    const struct prune_reason *why = p->weighted_count ? mlo_prune_left(p, &p->weighted[0]) : NULL;
    mlo_error_set(err, MLO_EINVAL, "no group of channels can be pruned%s%s%s%.200s",
                  why ? "; of node '" : ": no node has constant weights",
                  why ? p->weighted[0].node->name : "", why ? "': " : "", why ? why->why : "");
    if (!why)
        mlo_error_hint(
            err, "weights that are listed as graph inputs too can be replaced by who runs the model; with "
                 "freeze_initializers they are made constants");
    else
        mlo_error_hint(err,
                       "run 'mlopt optimize' on the model first: constants and shapes that are folded can be "
                       "followed");
    return MLO_EINVAL;
}

enum mlo_status mlo_prune_check_finite(const struct prune *p, struct mlo_error *err)
{
    for (int k = 0; k < p->weighted_count; k++) {
        const struct mlo_node *node = p->weighted[k].node;
        const struct mlo_value *v = node->inputs[p->weighted[k].weight];
        if (!v->constant || mlo_tensor_is_finite(v->constant))
            continue;
        mlo_error_set(err, MLO_EINVAL,
                      "the weights '%.200s' hold NaN or infinity: nothing can be ranked by them", v->name);
        mlo_error_where(err, "node '%s'", node->name);
        mlo_error_hint(err, "repair the model: what it computes from them is no number either");
        return MLO_EINVAL;
    }
    return MLO_OK;
}

enum mlo_status mlo_prune_rank_model(struct mlo_model *model, const json_t *options,
                                     const struct mlo_stats *stats, const struct mlo_prune_turned *turned,
                                     struct mlo_arena *arena, struct mlo_pass_context *ctx,
                                     struct mlo_prune_ranking *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct prune_settings s;
    struct prune *p;
    *out = (struct mlo_prune_ranking){0};
    if (turned)
        out->turned = *turned;
    MLO_TRY(read_settings(options, stats && stats->gram_count > 0, &s, err));
    MLO_TRY(mlo_pass_refuse_quantized(model->graph, err));
    MLO_TRY(mlo_pass_check_named(model->graph, json_object_get(options, "exclude"), err));
    mlo_pass_unlist_initializers(model);
    MLO_TRY(
        mlo_prune_analyse(model->graph, json_object_get(options, "exclude"), &out->turned, arena, &p, err));
    MLO_TRY(check_groups(p, err));
    MLO_TRY(mlo_prune_check_finite(p, err));
    MLO_TRY(mlo_prune_rank_units(p, &s, stats, ctx, err));
    out->criterion = s.criterion;
    out->count = p->group_count;
    out->groups = mlo_arena_calloc(arena, (size_t)p->group_count + 1, sizeof *out->groups);
    if (!out->groups)
        return mlo_error_nomem(err);
    for (int g = 0; g < p->group_count; g++)
        out->groups[g] =
            (struct mlo_prune_group){p->groups[g].count, p->groups[g].order, p->groups[g].error, 1};
out:
    return status;
}

/* The groups of the model, as they were ranked in it or in one that it is a clone of. */
static enum mlo_status as_ranked(struct mlo_model *model, const json_t *options,
                                 const struct mlo_prune_ranking *ranking, struct mlo_arena *arena,
                                 struct prune_settings *s, struct prune **out, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(read_settings(options, false, s, err));
    s->criterion = ranking->criterion;
    MLO_TRY(mlo_prune_analyse(model->graph, json_object_get(options, "exclude"), &ranking->turned, arena, out,
                              err));
    bool same = (*out)->group_count == ranking->count;
    for (int g = 0; same && g < ranking->count; g++) {
        struct prune_group *group = &(*out)->groups[g];
        same = group->count == ranking->groups[g].count;
        group->order = ranking->groups[g].order;
        group->error = ranking->groups[g].error;
        group->weight = ranking->groups[g].weight;
    }
    if (!same)
        status = mlo_error_set(err, MLO_EINTERNAL, "another model was ranked");
out:
    return status;
}

static enum mlo_status apply(struct mlo_model *model, const struct prune *p, struct mlo_arena *arena,
                             struct mlo_prune_result *out, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(note_kept(p, arena, out, err));
    MLO_TRY(mlo_prune_apply(p, err));
    mlo_graph_remove_unused_values(model->graph);
    MLO_TRY(mlo_graph_infer(model->graph, err));
    MLO_TRY(mlo_graph_verify(model->graph, err));
out:
    return status;
}

enum mlo_status mlo_prune_probe(struct mlo_model *model, const json_t *options,
                                const struct mlo_prune_ranking *ranking, int g, struct mlo_arena *arena,
                                struct mlo_prune_result *out, double *error, struct mlo_error *err)
{
    enum mlo_status status;
    struct prune_settings s;
    struct prune *p;
    *out = (struct mlo_prune_result){0};
    MLO_TRY(as_ranked(model, options, ranking, arena, &s, &p, err));
    mlo_prune_halve(p, &s, g);
    *error = p->groups[g].error[p->groups[g].removed];
    MLO_TRY(apply(model, p, arena, out, err));
out:
    return status;
}

enum mlo_status mlo_prune_take(struct mlo_model *model, const json_t *options,
                               const struct mlo_prune_ranking *ranking, struct mlo_arena *arena,
                               struct mlo_pass_context *ctx, struct mlo_prune_result *out,
                               struct mlo_error *err)
{
    enum mlo_status status;
    struct prune_settings s;
    struct prune *p;
    struct costs costs;
    *out = (struct mlo_prune_result){0};
    MLO_TRY(as_ranked(model, options, ranking, arena, &s, &p, err));
    MLO_TRY(mlo_prune_macs(model, p, arena, &costs.macs, err));
    MLO_TRY(mlo_prune_weights(p, arena, &costs.weights, err));
    costs.macs_before = mlo_prune_cost(p, costs.macs);
    costs.weights_before = mlo_prune_cost(p, costs.weights);
    MLO_TRY(mlo_prune_spend(p, &s, strcmp(s.of, OF[1]) == 0 ? costs.weights : costs.macs, err));
    MLO_TRY(make_report(p, &s, &costs, &out->report, err));
    for (int g = 0; g < p->group_count; g++)
        ctx->changes += p->groups[g].removed;
    MLO_TRY(apply(model, p, arena, out, err));
out:
    if (status != MLO_OK) {
        json_decref(out->report);
        out->report = NULL;
    }
    return status;
}

enum mlo_status mlo_prune_model(struct mlo_model *model, const json_t *options, const struct mlo_stats *stats,
                                struct mlo_arena *arena, struct mlo_pass_context *ctx,
                                struct mlo_prune_result *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_prune_ranking ranking;
    *out = (struct mlo_prune_result){0};
    MLO_TRY(mlo_prune_rank_model(model, options, stats, NULL, arena, ctx, &ranking, err));
    MLO_TRY(mlo_prune_take(model, options, &ranking, arena, ctx, out, err));
out:
    return status;
}

enum mlo_status mlo_pass_prune(struct mlo_model *model, struct mlo_pass_context *ctx, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_prune_result result = {0};
    struct mlo_arena *arena = mlo_arena_new();
    size_t i;
    json_t *row;
    if (!arena)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_prune_model(model, ctx->options, ctx->stats, arena, ctx, &result, err));
    json_array_foreach(json_object_get(result.report, "groups"), i, row)
    {
        mlo_pass_note(ctx, mlo_json_str(row, "node", ""), "%lld of %lld channels stay",
                      (long long)mlo_json_i64(row, "to", 0), (long long)mlo_json_i64(row, "from", 0));
    }
    json_array_foreach(json_object_get(result.report, "left"), i, row)
    {
        mlo_pass_note(ctx, mlo_json_str(row, "node", ""), "left alone: %s", mlo_json_str(row, "why", ""));
    }
out:
    json_decref(result.report);
    mlo_arena_free(arena);
    return status;
}
