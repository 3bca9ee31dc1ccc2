/* The reference engine: the graph evaluator of graph/, node by node with the plain kernels of the op table.
 * Slow, simple, and what every other engine is compared with. */
#include <stdlib.h>
#include <string.h>

#include "engines/engines_impl.h"

struct mlo_plan {
    struct mlo_model *model; /* bound; ours */
    struct mlo_value **inputs;
    int input_count;
    struct mlo_value **observed;
    size_t observed_count;
    int64_t batch;
};

struct mlo_program {
    const struct mlo_plan *plan;
    struct mlo_eval eval;
};

static const char *version(void)
{
    return "reference 1";
}

static enum mlo_status probe(struct mlo_error *err)
{
    return mlo_isa_check(err);
}

static void free_plan(struct mlo_plan *plan)
{
    if (!plan)
        return;
    mlo_model_free(plan->model);
    free(plan->inputs);
    free(plan->observed);
    free(plan);
}

static enum mlo_status compile(const struct mlo_model *model, const struct mlo_compile_options *options,
                               struct mlo_plan **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_engine_bind(model, options, &plan->model, err));
    const struct mlo_graph *g = plan->model->graph;
    plan->batch = options->batch;
    plan->inputs = calloc((size_t)g->input_count + 1, sizeof(struct mlo_value *));
    plan->observed = calloc(options->observe_count + 1, sizeof(struct mlo_value *));
    if (!plan->inputs || !plan->observed) {
        status = mlo_error_nomem(err);
        goto out;
    }
    plan->input_count = mlo_engine_inputs(g, plan->inputs);
    plan->observed_count = options->observe_count;
    MLO_TRY(mlo_engine_observed(g, options, plan->observed, err));
    *out = plan;
    plan = NULL;
out:
    free_plan(plan);
    return status;
}

static void unload(struct mlo_program *program)
{
    if (!program)
        return;
    mlo_eval_clear(&program->eval);
    free(program);
}

static enum mlo_status load(struct mlo_plan *plan, struct mlo_program **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_program *program = calloc(1, sizeof *program);
    if (!program)
        return mlo_error_nomem(err);
    program->plan = plan;
    MLO_TRY(mlo_eval_init(&program->eval, plan->model->graph, NULL, err));
    for (size_t i = 0; i < plan->observed_count; i++)
        mlo_eval_keep(&program->eval, plan->observed[i]);
    *out = program;
    program = NULL;
out:
    unload(program);
    return status;
}

static enum mlo_status observe(struct mlo_program *program, const struct mlo_tensor *inputs,
                               struct mlo_tensor *outputs, mlo_observe_fn *fn, void *arg,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_plan *plan = program->plan;
    const struct mlo_graph *g = plan->model->graph;
    program->eval.trips_left = MLO_EVAL_MAX_TRIPS;
    for (int i = 0; i < plan->input_count; i++) {
        MLO_TRY(mlo_engine_check_input(plan->inputs[i], &inputs[i], err));
        mlo_eval_feed(&program->eval, plan->inputs[i], &inputs[i]);
    }
    MLO_TRY(mlo_eval_run(&program->eval, err));
    for (int i = 0; i < g->output_count; i++)
        MLO_TRY(mlo_engine_deliver(mlo_eval_content(&program->eval, g->outputs[i]), &outputs[i], err));
    for (size_t i = 0; fn && i < plan->observed_count; i++)
        MLO_TRY(mlo_engine_show(plan->observed[i]->name, mlo_eval_content(&program->eval, plan->observed[i]),
                                fn, arg, err));
out:
    mlo_eval_drop(&program->eval);
    return status;
}

static enum mlo_status run(struct mlo_program *program, const struct mlo_tensor *inputs,
                           struct mlo_tensor *outputs, struct mlo_error *err)
{
    return observe(program, inputs, outputs, NULL, NULL, err);
}

static enum mlo_status describe(const struct mlo_plan *plan, json_t **out, struct mlo_error *err)
{
    const struct mlo_graph *g = plan->model->graph;
    json_t *nodes = json_array();
    for (int n = 0; nodes && n < g->node_count; n++) {
        const struct mlo_node *node = g->nodes[n];
        const struct mlo_value *v = node->output_count ? node->outputs[0] : NULL;
        json_array_append_new(
            nodes,
            json_pack("{s:s, s:s, s:s, s:s, s:[]}", "node", node->name, "op", node->op_type, "impl",
                      "reference", "precision",
                      !v || v->type.dtype == MLO_FLOAT32 ? "f32" : mlo_dtype_name(v->type.dtype), "fused"));
    }
    *out =
        json_pack("{s:s, s:s, s:s, s:s, s:o, s:i, s:i}", "engine", "reference", "version", version(), "isa",
                  "generic", "numerics", "reference", "nodes", nodes, "int8_nodes", 0, "arena_bytes", 0);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

const struct mlo_engine mlo_engine_reference = {
    .name = "reference",
    .version = version,
    .probe = probe,
    .compile = compile,
    .load = load,
    .run = run,
    .observe = observe,
    .describe = describe,
    .unload = unload,
    .free_plan = free_plan,
};
