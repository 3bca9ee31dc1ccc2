/* Models in float16 or bfloat16 on a CPU that computes in float32: their values become float32, constants are
 * converted once, and what is fed and delivered is cast at the edges. Results are rounded less often than the
 * model says. Nodes that state element types, or have subgraphs, keep theirs, between casts. */
#include <string.h>

#include "engines/cpu/fast/normalise_impl.h"

static bool is_half(const struct mlo_value *value)
{
    return value && (value->type.dtype == MLO_FLOAT16 || value->type.dtype == MLO_BFLOAT16);
}

/* Ops whose results' type is no matter of their operands' types. */
static const char *const stated[] = {"CastLike",      "BitCast",          "EyeLike",           "RandomNormal",
                                     "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
                                     "Multinomial",   "ConstantOfShape",  "Constant"};
static const char *const type_attrs[] = {"dtype", "output_dtype", "output_datatype", "precision"};

static bool converts(const struct mlo_node *node)
{
    if (!node->op || !node->op->eval || (node->op->flags & MLO_OP_VALUES))
        return false;
    for (size_t i = 0; i < MLO_COUNT(stated); i++)
        if (strcmp(node->op_type, stated[i]) == 0)
            return false;
    for (size_t i = 0; i < MLO_COUNT(type_attrs); i++)
        if (mlo_node_attr(node, type_attrs[i]))
            return false;
    for (int i = 0; i < node->attr_count; i++)
        if (node->attrs[i].type == MLO_ATTR_TENSOR || node->attrs[i].type == MLO_ATTR_GRAPH ||
            node->attrs[i].type == MLO_ATTR_GRAPHS)
            return false;
    return true;
}

static enum mlo_status constant_as(const struct mlo_tensor *from, enum mlo_dtype dtype,
                                   struct mlo_tensor *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_tensor_init(out, dtype, from->rank, from->dims, err);
    if (status == MLO_OK)
        fast_convert_for(mlo_isa_current())(from->data, from->dtype, mlo_tensor_count(from), out->data,
                                            dtype);
    return status;
}

/* A second value with what `value` holds, of that element type. */
static enum mlo_status twin_of(struct mlo_value *value, enum mlo_dtype dtype, struct mlo_value **twin,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *g = value->graph;
    *twin = NULL;
    if (value->constant) {
        struct mlo_tensor t = {0};
        if (dtype == value->constant->dtype)
            MLO_TRY(mlo_tensor_copy(value->constant, &t, err));
        else
            MLO_TRY(constant_as(value->constant, dtype, &t, err));
        *twin = mlo_graph_add_constant_take(g, value->name, &t);
    } else {
        struct mlo_type type = value->type;
        type.dtype = dtype;
        *twin = mlo_graph_add_value(g, value->name, &type);
    }
    if (!*twin)
        status = mlo_error_nomem(err);
out:
    return status;
}

static enum mlo_status add_cast(struct mlo_value *from, struct mlo_value *to, struct mlo_error *err)
{
    struct mlo_graph *g = from->graph;
    int at = from->producer ? from->producer->index + 1 : 0;
    struct mlo_node *cast =
        mlo_graph_add_node(g, at < g->node_count ? g->nodes[at] : NULL, "", "Cast", "Cast", &from, 1, &to, 1);
    if (!cast || !mlo_node_set_i(cast, "to", to->type.dtype))
        return mlo_error_nomem(err);
    cast->version = 13;
    cast->op = mlo_op_find("", "Cast", 13);
    return MLO_OK;
}

static bool wants_f32(const struct mlo_use *use, const struct mlo_graph *g)
{
    return use->node->graph == g && converts(use->node);
}

static enum mlo_status convert(struct mlo_plan *plan, struct mlo_value *v, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *g = v->graph;
    struct mlo_value *twin = NULL;
    bool f32 = (v->constant && !v->is_input) || (v->producer && converts(v->producer)),
         delivered = f32 && v->is_output, split = delivered;
    enum mlo_dtype half = v->type.dtype;
    for (int i = 0; i < v->use_count; i++)
        split |= wants_f32(&v->uses[i], g) != f32;
    if (split) {
        MLO_TRY(twin_of(v, f32 ? half : MLO_FLOAT32, &twin, err));
        plan->stored[twin->index] = half;
        for (int i = 0; i < v->use_count;) {
            struct mlo_use use = v->uses[i];
            if (wants_f32(&use, g) == f32)
                i++;
            else if (!mlo_node_set_input(use.node, use.index, twin))
                return mlo_error_nomem(err);
        }
    }
    if (f32 && v->constant) {
        struct mlo_tensor t = {0};
        MLO_TRY(constant_as(v->constant, MLO_FLOAT32, &t, err));
        MLO_TRY(mlo_value_set_constant_take(v, &t, err));
    } else if (f32) {
        v->type.dtype = MLO_FLOAT32;
        v->known = NULL;
    }
    if (split && !v->constant)
        MLO_TRY(add_cast(v, twin, err));
    if (delivered && !mlo_value_swap_name(v, twin))
        status = mlo_error_nomem(err);
out:
    return status;
}

enum mlo_status norm_half(struct mlo_plan *plan, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *g = plan->model->graph;
    int count = g->value_count;
    bool any = false;
    for (int i = 0; i < count && !any; i++)
        any = is_half(g->values[i]);
    if (!any)
        return MLO_OK;
    plan->stored = mlo_arena_calloc(plan->arena, 2 * (size_t)count, sizeof *plan->stored); /* with twins */
    if (!plan->stored)
        return mlo_error_nomem(err);
    plan->stored_count = 2 * count;
    for (int i = 0; i < count; i++) {
        struct mlo_value *v = g->values[i];
        if (!is_half(v))
            continue;
        plan->stored[i] = v->type.dtype;
        MLO_TRY(convert(plan, v, err));
    }
    for (int i = 0; i < g->node_count; i++) { /* what were casts to half precision */
        struct mlo_node *n = g->nodes[i];
        if (mlo_node_is(n, "Cast") && n->outputs[0] && n->outputs[0]->type.dtype == MLO_FLOAT32 &&
            !mlo_node_set_i(n, "to", MLO_FLOAT32))
            status = mlo_error_nomem(err);
    }
out:
    return status;
}

/* What the model stores in fewer bits is said so. */
enum mlo_status norm_label_half(struct mlo_plan *plan, struct mlo_error *err)
{
    for (int i = 0; i < plan->step_count; i++) {
        struct cpu_step *step = &plan->steps[i];
        enum mlo_dtype dtype = MLO_DTYPE_NONE;
        const struct mlo_node *n = step->node;
        for (int k = 0; n && k < n->input_count + n->output_count; k++) {
            const struct mlo_value *v = k < n->input_count ? n->inputs[k] : n->outputs[k - n->input_count];
            if (v && v->graph == plan->model->graph && v->index < plan->stored_count &&
                plan->stored[v->index])
                dtype = plan->stored[v->index];
        }
        if (!dtype || strcmp(step->precision, "f32") != 0)
            continue;
        step->precision = mlo_arena_printf(plan->arena, "f32 (%s storage)", mlo_dtype_name(dtype));
        if (!step->precision)
            return mlo_error_nomem(err);
    }
    return MLO_OK;
}
