#include <string.h>

#include "passes/passes_impl.h"

static const struct mlo_property properties[] = {
    {MLO_PROP_TYPED, "typed", mlo_graph_is_typed},
    {MLO_PROP_FOLDED, "folded", mlo_graph_is_folded},
    {MLO_PROP_NO_DEAD, "no-dead", mlo_graph_has_no_dead},
    {MLO_PROP_BN_FOLDED, "bn-folded", mlo_graph_is_bn_folded},
    {MLO_PROP_QUANTIZED, "quantized", mlo_graph_is_quantized},
};

const struct mlo_property *mlo_property_table(size_t *count)
{
    *count = MLO_COUNT(properties);
    return properties;
}

bool mlo_graph_is_typed(const struct mlo_graph *graph)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        for (int i = 0; i < node->output_count; i++)
            if (node->outputs[i] && node->outputs[i]->type.dtype == MLO_DTYPE_NONE)
                return false;
    }
    return true;
}

/* A pass that establishes the property, for hints. */
static const char *establisher(unsigned bit)
{
    size_t count;
    const struct mlo_pass *table = mlo_pass_table(&count);
    for (size_t i = 0; i < count; i++)
        if (table[i].establishes & bit)
            return table[i].name;
    return "none";
}

static enum mlo_status check_requires(struct mlo_model *model, const struct mlo_pass *pass, unsigned *have,
                                      struct mlo_error *err)
{
    if ((pass->requires & MLO_PROP_TYPED) && !(*have & MLO_PROP_TYPED)) {
        enum mlo_status status = mlo_graph_infer(model->graph, err);
        if (status != MLO_OK)
            return status;
        *have |= MLO_PROP_TYPED;
    }
    for (size_t i = 0; i < MLO_COUNT(properties); i++) {
        unsigned bit = properties[i].bit;
        if (!(pass->requires & bit) || (*have & bit))
            continue;
        if (!properties[i].holds(model->graph)) {
            mlo_error_set(err, MLO_EINVAL, "it requires a graph that is %s", properties[i].name);
            mlo_error_hint(err, "run the pass '%s' before it", establisher(bit));
            return MLO_EINVAL;
        }
        *have |= bit;
    }
    return MLO_OK;
}

static enum mlo_status check_result(struct mlo_model *model, const struct mlo_pass *pass, unsigned *have,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_graph_infer(model->graph, err));
    MLO_TRY(mlo_graph_verify(model->graph, err));
    *have = (*have & ~pass->destroys) | pass->establishes | MLO_PROP_TYPED;
    for (size_t i = 0; i < MLO_COUNT(properties); i++)
        if ((pass->establishes & properties[i].bit) && !properties[i].holds(model->graph)) {
            status = mlo_error_set(err, MLO_EINTERNAL, "it left a graph that is not %s", properties[i].name);
            goto out;
        }
out:
    return status;
}

static enum mlo_status report_add(json_t *report, const struct mlo_pass *pass,
                                  const struct mlo_pass_context *ctx, uint64_t time_ns, struct mlo_error *err)
{
    json_t *row = json_pack("{s:s, s:i, s:i, s:f, s:O}", "pass", pass->name, "revision", pass->revision,
                            "changes", ctx->changes, "ms", (double)time_ns / 1e6, "notes", ctx->notes);
    if (!row || json_array_append_new(report, row) != 0)
        return mlo_error_nomem(err);
    return MLO_OK;
}

static enum mlo_status run_one(struct mlo_model *model, const struct mlo_pass_request *request,
                               struct mlo_pass_driver *driver, unsigned *have, struct mlo_error *err)
{
    enum mlo_status status;
    json_t *options = NULL;
    struct mlo_pass_context ctx = {.stats = driver->stats, .notes = json_array()};
    const struct mlo_pass *pass = mlo_pass_find(request->name);
    if (!ctx.notes) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (!pass) {
        const char *names[64];
        size_t count, shown;
        const struct mlo_pass *table = mlo_pass_table(&count);
        for (shown = 0; shown < count && shown < MLO_COUNT(names); shown++)
            names[shown] = table[shown].name;
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no pass of that name");
        mlo_error_suggest(err, request->name, names, shown);
        goto out;
    }
    MLO_TRY(mlo_options_resolve(pass->options, request->options, &options, err));
    if (pass->needs_stats && !driver->stats) {
        status =
            mlo_error_set(err, MLO_EINVAL, "it needs statistics of observed values, and none were given");
        mlo_error_hint(err, "observe the model on calibration data first");
        goto out;
    }
    MLO_TRY(check_requires(model, pass, have, err));
    ctx.options = options;
    uint64_t begin_ns = mlo_clock_ns();
    MLO_TRY(pass->run(model, &ctx, err));
    uint64_t time_ns = mlo_clock_ns() - begin_ns;
    MLO_TRY(check_result(model, pass, have, err));
    MLO_TRY(report_add(driver->report, pass, &ctx, time_ns, err));
    if (driver->dump)
        driver->dump(driver->dump_arg, pass->name, model);
out:
    json_decref(options);
    json_decref(ctx.notes);
    return status;
}

enum mlo_status mlo_passes_run(struct mlo_model *model, const struct mlo_pass_request *requests, size_t count,
                               struct mlo_pass_driver *driver, struct mlo_error *err)
{
    unsigned have = 0;
    driver->report = json_array();
    if (!driver->report)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < count; i++) {
        enum mlo_status status = run_one(model, &requests[i], driver, &have, err);
        if (status != MLO_OK) {
            mlo_error_prefix(err, "pass '%s'", requests[i].name);
            mlo_error_where(err, "pass '%s'", requests[i].name);
            json_decref(driver->report);
            driver->report = NULL;
            return status;
        }
    }
    return MLO_OK;
}
