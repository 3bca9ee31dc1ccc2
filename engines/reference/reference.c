/* The reference engine: interprets the op table, node by node, with the plain kernels of graph/. Slow,
 * simple, and what every other engine is compared with. */
#include <stdlib.h>
#include <string.h>

#include "engines/engines_impl.h"

struct mlo_plan {
    struct mlo_model *model; /* bound; ours */
    struct mlo_value **inputs;
    int input_count;
    struct mlo_value **observed;
    size_t observed_count;
    int *last_use; /* by value: the last node that reads it; node_count when it is wanted at the end */
    int64_t batch;
};

struct mlo_program {
    const struct mlo_plan *plan;
    struct mlo_tensor *tensors; /* by value */
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
    free(plan->last_use);
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
    plan->last_use = calloc((size_t)g->value_count + 1, sizeof *plan->last_use);
    if (!plan->inputs || !plan->observed || !plan->last_use) {
        status = mlo_error_nomem(err);
        goto out;
    }
    plan->input_count = mlo_engine_inputs(g, plan->inputs);
    plan->observed_count = options->observe_count;
    MLO_TRY(mlo_engine_observed(g, options, plan->observed, err));
    for (int n = 0; n < g->node_count; n++) {
        for (int i = 0; i < g->nodes[n]->input_count; i++)
            if (g->nodes[n]->inputs[i])
                plan->last_use[g->nodes[n]->inputs[i]->index] = n;
        for (int i = 0; i < g->nodes[n]->output_count; i++)
            if (g->nodes[n]->outputs[i]) /* nobody may read it: it dies where it is born */
                plan->last_use[g->nodes[n]->outputs[i]->index] = n;
    }
    for (int i = 0; i < g->output_count; i++)
        plan->last_use[g->outputs[i]->index] = g->node_count;
    for (size_t i = 0; i < plan->observed_count; i++)
        plan->last_use[plan->observed[i]->index] = g->node_count;
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
    for (int i = 0; program->tensors && i < program->plan->model->graph->value_count; i++)
        mlo_tensor_clear(&program->tensors[i]);
    free(program->tensors);
    free(program);
}

static enum mlo_status load(struct mlo_plan *plan, struct mlo_program **out, struct mlo_error *err)
{
    struct mlo_program *program = calloc(1, sizeof *program);
    if (!program)
        return mlo_error_nomem(err);
    program->plan = plan;
    program->tensors = calloc((size_t)plan->model->graph->value_count + 1, sizeof *program->tensors);
    if (!program->tensors) {
        unload(program);
        return mlo_error_nomem(err);
    }
    *out = program;
    return MLO_OK;
}

static enum mlo_status run_node(struct mlo_program *program, const struct mlo_node *node,
                                struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_tensor **in = calloc((size_t)node->input_count + 1, sizeof(const struct mlo_tensor *));
    struct mlo_tensor **out = calloc((size_t)node->output_count + 1, sizeof(struct mlo_tensor *));
    if (!in || !out) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *v = node->inputs[i];
        in[i] = !v ? NULL : v->constant ? v->constant : &program->tensors[v->index];
    }
    for (int i = 0; i < node->output_count; i++)
        out[i] = node->outputs[i] ? &program->tensors[node->outputs[i]->index] : NULL;
    MLO_TRY(mlo_node_eval(node, in, (struct mlo_tensor *const *)out, err));
out:
    free(in);
    free(out);
    return status;
}

static const struct mlo_tensor *tensor_of(const struct mlo_program *program, const struct mlo_value *v)
{
    return v->constant ? v->constant : &program->tensors[v->index];
}

static enum mlo_status observe(struct mlo_program *program, const struct mlo_tensor *inputs,
                               struct mlo_tensor *outputs, mlo_observe_fn *fn, void *arg,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_plan *plan = program->plan;
    const struct mlo_graph *g = plan->model->graph;
    for (int i = 0; i < plan->input_count; i++) {
        MLO_TRY(mlo_engine_check_input(plan->inputs[i], &inputs[i], err));
        struct mlo_tensor *t = &program->tensors[plan->inputs[i]->index];
        *t = inputs[i];
        t->owned = false;
    }
    for (int n = 0; n < g->node_count; n++) {
        const struct mlo_node *node = g->nodes[n];
        MLO_TRY(run_node(program, node, err));
        for (int k = 0; k < node->input_count + node->output_count; k++) {
            const struct mlo_value *v =
                k < node->input_count ? node->inputs[k] : node->outputs[k - node->input_count];
            if (v && !v->constant && plan->last_use[v->index] <= n)
                mlo_tensor_clear(&program->tensors[v->index]);
        }
    }
    for (int i = 0; i < g->output_count; i++)
        MLO_TRY(mlo_engine_deliver(tensor_of(program, g->outputs[i]), &outputs[i], err));
    for (size_t i = 0; fn && i < plan->observed_count; i++)
        MLO_TRY(
            mlo_engine_show(plan->observed[i]->name, tensor_of(program, plan->observed[i]), fn, arg, err));
out:
    for (int i = 0; i < g->value_count; i++)
        mlo_tensor_clear(&program->tensors[i]);
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
