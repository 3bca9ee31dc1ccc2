/* Full bias correction (Nagel et al., 2019, arXiv:1906.04721): the loop of observing and correcting. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/frontier.h"

/* Means need few samples: 64 leave what 256 do, to a tenth of a decibel. */
enum { SAMPLES = 64 };

/* Copies the channels of value `name` in `from` to `to` as "quantized:<name>". */
static enum mlo_status keep_as_quantized(const struct mlo_stats *from, const char *name, struct mlo_stats *to,
                                         struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char key[512];
    const struct mlo_channel_stats *seen = mlo_stats_find_channels(from, name);
    struct mlo_channel_stats renamed;
    if (!seen)
        return mlo_error_set(err, MLO_EINTERNAL, "value '%s' was not observed", name);
    snprintf(key, sizeof key, "quantized:%s", name);
    renamed = *seen;
    renamed.name = key;
    const struct mlo_stats one = {.channels = &renamed, .channel_count = 1};
    MLO_TRY(mlo_stats_merge(to, &one, err));
out:
    return status;
}

/* Observes the node's outputs in the quantized model, from the frontier on (NULL: the whole of it), and
 * corrects its bias. */
static enum mlo_status correct_one(const struct mlo_step_context *ctx, struct mlo_model *quantized,
                                   const char *node, const struct mlo_stats_want *want,
                                   struct mlo_dataset *dataset, struct mlo_frontier *frontier, double from,
                                   double to, struct mlo_stats *means, json_t *report, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_stats seen;
    struct mlo_stats_wants wants = {0};
    struct mlo_pass_driver driver = {.stats = means};
    json_t *options = json_pack("{s:[s]}", "nodes", node);
    struct mlo_pass_request request = {"correct-bias", options};
    mlo_stats_init(&seen);
    if (!options || !mlo_stats_wants_add(&wants, want)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (frontier)
        MLO_TRY(mlo_frontier_observe(frontier, node, &seen, err));
    else
        MLO_TRY(mlo_step_observe(ctx, quantized, dataset, &wants, SAMPLES, from, to, &seen, err));
    mlo_step_progress(ctx, to, "correcting biases");
    MLO_TRY(keep_as_quantized(&seen, want->name, means, err));
    MLO_TRY(mlo_passes_run(quantized, &request, 1, &driver, err));
    if (json_array_extend(report, driver.report) != 0)
        status = mlo_error_nomem(err);
out:
    json_decref(driver.report);
    json_decref(options);
    mlo_stats_wants_clear(&wants);
    mlo_stats_clear(&seen);
    return status;
}

enum mlo_status mlo_step_correct_biases(const struct mlo_step_context *ctx, const struct mlo_model *source,
                                        struct mlo_model *quantized, struct mlo_dataset *dataset, double from,
                                        double to, json_t *report, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_stats_wants wants = {0};
    struct mlo_stats means;
    struct mlo_frontier *frontier = NULL;
    const char **nodes = calloc((size_t)quantized->graph->node_count + 1, sizeof *nodes);
    size_t count = 0;
    mlo_stats_init(&means);
    if (!nodes) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int n = 0; n < quantized->graph->node_count; n++) {
        const struct mlo_node *node = quantized->graph->nodes[n];
        struct mlo_stats_want want;
        if (!mlo_correct_bias_wanted(node, &want) || !mlo_graph_value(source->graph, want.name))
            continue;
        nodes[count++] = node->name;
        if (!mlo_stats_wants_add(&wants, &want)) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    if (count == 0)
        goto out;
    double part = (to - from) / (double)(count + 1);
    MLO_TRY(mlo_step_observe(ctx, source, dataset, &wants, SAMPLES, from, from + part, &means, err));
    MLO_TRY(mlo_frontier_open(ctx, quantized, dataset, &wants, SAMPLES, &frontier, err));
    for (size_t i = 0; i < count; i++) /* in the order of the graph: each sees those before it corrected */
        MLO_TRY(correct_one(ctx, quantized, nodes[i], &wants.list[i], dataset, frontier,
                            from + part * (double)(i + 1), from + part * (double)(i + 2), &means, report,
                            err));
out:
    mlo_frontier_close(frontier);
    free(nodes);
    mlo_stats_wants_clear(&wants);
    mlo_stats_clear(&means);
    return status;
}
