/* Model-local functions: every call is replaced by the function's body before the graph is built, on
 * messages, so that the rest of the reader knows no functions.
 *
 * Within a body, the names of the function's inputs and outputs become those that the call gives, all others
 * get a prefix of their own for each call; attributes that refer to the function's take the call's value, the
 * function's default, or go away. */
#include <stdlib.h>
#include <string.h>

#include "graph/onnx_impl.h"
#include "graph/op.h"

enum {
    MAX_WORK =
        1
        << 21, /* names, attributes and nodes that all bodies together may become: calls of calls multiply */
    MAX_DEPTH = 64, /* of calls within calls */
};

struct renamed {
    const char *from;
    char *to;
};

/* One call. */
struct call {
    const Onnx__FunctionProto *fn;
    const Onnx__NodeProto *node; /* in the caller's names */
    struct renamed *names;       /* of inputs and outputs, sorted */
    size_t name_count;
    const char *prefix;
    const struct call *caller;
    int depth;
};

struct inliner {
    struct mlo_model *model;
    struct mlo_arena *arena;
    const Onnx__FunctionProto **functions; /* sorted by name, domain, overload */
    size_t function_count;
    size_t work, calls;
    struct mlo_error *err;
};

struct nodes {
    Onnx__NodeProto **at;
    size_t count, cap;
};

static const char *text(const char *s)
{
    return s ? s : "";
}

static const char *domain_of(const char *domain)
{
    return domain && strcmp(domain, "ai.onnx") != 0 ? domain : "";
}

static int by_function(const void *a, const void *b)
{
    const Onnx__FunctionProto *x = *(const Onnx__FunctionProto *const *)a,
                              *y = *(const Onnx__FunctionProto *const *)b;
    int c = strcmp(text(x->name), text(y->name));
    c = c ? c : strcmp(domain_of(x->domain), domain_of(y->domain));
    return c ? c : strcmp(text(x->overload), text(y->overload));
}

static const Onnx__FunctionProto *function_of(const struct inliner *in, const Onnx__NodeProto *node)
{
    Onnx__FunctionProto key = {.name = node->op_type, .domain = node->domain, .overload = node->overload};
    const Onnx__FunctionProto *wanted = &key;
    const Onnx__FunctionProto **found =
        bsearch(&wanted, in->functions, in->function_count, sizeof(const Onnx__FunctionProto *), by_function);
    return found ? *found : NULL;
}

static int by_from(const void *a, const void *b)
{
    return strcmp(((const struct renamed *)a)->from, ((const struct renamed *)b)->from);
}

/* A name of the body as the caller's graph will have it; NULL: out of memory. */
static char *rename_value(const struct inliner *in, const struct call *call, char *name)
{
    if (!call || !name || !*name)
        return name ? name : (char *)"";
    struct renamed key = {.from = name};
    const struct renamed *found = bsearch(&key, call->names, call->name_count, sizeof key, by_from);
    return found ? found->to : mlo_arena_printf(in->arena, "%s/%s", call->prefix, name);
}

static void *copy(const struct inliner *in, const void *from, size_t size)
{
    return mlo_arena_memdup(in->arena, from, size);
}

static enum mlo_status nomem(const struct inliner *in)
{
    return mlo_error_nomem(in->err);
}

static enum mlo_status charge(struct inliner *in, const struct call *call, size_t work)
{
    in->work += call ? work : 0; /* the model's own nodes are paid for by its size */
    if (in->work <= MAX_WORK)
        return MLO_OK;
    enum mlo_status status = mlo_error_set(
        in->err, MLO_ETOOBIG, "the model's functions expand to more than %d names and nodes", MAX_WORK);
    mlo_error_where(in->err, "function '%.100s'", text(call->fn->name));
    return status;
}

static enum mlo_status push(struct inliner *in, struct nodes *list, Onnx__NodeProto *node)
{
    if (list->count == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 16;
        Onnx__NodeProto **more = mlo_arena_calloc(in->arena, cap, sizeof(Onnx__NodeProto *));
        if (!more)
            return nomem(in);
        if (list->count)
            memcpy(more, list->at, list->count * sizeof(Onnx__NodeProto *));
        list->at = more;
        list->cap = cap;
    }
    list->at[list->count++] = node;
    return MLO_OK;
}

static enum mlo_status expand_nodes(struct inliner *in, Onnx__NodeProto *const *nodes, size_t count,
                                    const struct call *call, struct nodes *out);

static enum mlo_status rename_infos(const struct inliner *in, const struct call *call, size_t count,
                                    Onnx__ValueInfoProto ***infos)
{
    Onnx__ValueInfoProto **list = mlo_arena_calloc(in->arena, count, sizeof(Onnx__ValueInfoProto *));
    if (!list)
        return nomem(in);
    for (size_t i = 0; i < count; i++) {
        if (!(list[i] = copy(in, (*infos)[i], sizeof **list)) ||
            !(list[i]->name = rename_value(in, call, list[i]->name)))
            return nomem(in);
    }
    *infos = list;
    return MLO_OK;
}

static enum mlo_status expand_graph(struct inliner *in, const Onnx__GraphProto *from, const struct call *call,
                                    Onnx__GraphProto **out)
{
    enum mlo_status status = MLO_OK;
    struct nodes nodes = {0};
    MLO_TRY(charge(in, call, from->n_input + from->n_output + from->n_value_info + from->n_initializer));
    Onnx__GraphProto *g = copy(in, from, sizeof *from);
    *out = g;
    if (!g) {
        status = nomem(in);
        goto out;
    }
    MLO_TRY(expand_nodes(in, from->node, from->n_node, call, &nodes));
    g->node = nodes.at;
    g->n_node = nodes.count;
    if (!call)
        goto out;
    MLO_TRY(rename_infos(in, call, g->n_input, &g->input));
    MLO_TRY(rename_infos(in, call, g->n_output, &g->output));
    MLO_TRY(rename_infos(in, call, g->n_value_info, &g->value_info));
    if (!(g->initializer = mlo_arena_calloc(in->arena, g->n_initializer, sizeof(Onnx__TensorProto *)))) {
        status = nomem(in);
        goto out;
    }
    for (size_t i = 0; i < g->n_initializer; i++) {
        Onnx__TensorProto *t = copy(in, from->initializer[i], sizeof *t);
        if (!t || !(t->name = rename_value(in, call, t->name))) {
            status = nomem(in);
            goto out;
        }
        g->initializer[i] = t;
    }
out:
    return status;
}

static Onnx__AttributeProto *named(Onnx__AttributeProto *const *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (mlo_str_eq(list[i]->name, name))
            return list[i];
    return NULL;
}

/* *out is NULL when the attribute refers to one that the call leaves out. */
static enum mlo_status map_attribute(struct inliner *in, Onnx__AttributeProto *from, const struct call *call,
                                     Onnx__AttributeProto **out)
{
    enum mlo_status status = MLO_OK;
    Onnx__AttributeProto *attr = from;
    *out = NULL;
    if (call && from->ref_attr_name && *from->ref_attr_name) {
        MLO_TRY(charge(in, call, call->node->n_attribute + call->fn->n_attribute_proto));
        attr = named(call->node->attribute, call->node->n_attribute, from->ref_attr_name);
        if (!attr)
            attr = named(call->fn->attribute_proto, call->fn->n_attribute_proto, from->ref_attr_name);
        if (!attr)
            return MLO_OK;
        if (!(attr = copy(in, attr, sizeof *attr)))
            return nomem(in);
        attr->name = from->name;
    } else if (from->g || from->n_graphs) {
        if (!(attr = copy(in, from, sizeof *from)))
            return nomem(in);
        if (from->g)
            MLO_TRY(expand_graph(in, from->g, call, &attr->g));
        attr->graphs = mlo_arena_calloc(in->arena, from->n_graphs, sizeof(Onnx__GraphProto *));
        if (!attr->graphs) {
            status = nomem(in);
            goto out;
        }
        for (size_t i = 0; i < from->n_graphs; i++)
            MLO_TRY(expand_graph(in, from->graphs[i], call, &attr->graphs[i]));
    }
    *out = attr;
out:
    return status;
}

static enum mlo_status rename_list(const struct inliner *in, const struct call *call, size_t count,
                                   char ***names)
{
    char **list = mlo_arena_calloc(in->arena, count, sizeof(char *));
    if (!list)
        return nomem(in);
    for (size_t i = 0; i < count; i++)
        if (!(list[i] = rename_value(in, call, (*names)[i])))
            return nomem(in);
    *names = list;
    return MLO_OK;
}

/* A node in the caller's names, its subgraphs expanded. */
static enum mlo_status map_node(struct inliner *in, const Onnx__NodeProto *from, const struct call *call,
                                Onnx__NodeProto **out)
{
    enum mlo_status status = charge(in, call, 1 + from->n_input + from->n_output + from->n_attribute);
    if (status != MLO_OK)
        return status;
    Onnx__NodeProto *node = copy(in, from, sizeof *from);
    if (!node || !(node->attribute = mlo_arena_calloc(in->arena, from->n_attribute, sizeof *node->attribute)))
        return nomem(in);
    *out = node;
    node->n_attribute = 0;
    for (size_t i = 0; i < from->n_attribute; i++) {
        Onnx__AttributeProto *attr;
        MLO_TRY(map_attribute(in, from->attribute[i], call, &attr));
        if (attr)
            node->attribute[node->n_attribute++] = attr;
    }
    if (!call)
        goto out;
    if (node->name && *node->name &&
        !(node->name = mlo_arena_printf(in->arena, "%s/%s", call->prefix, node->name))) {
        status = nomem(in);
        goto out;
    }
    MLO_TRY(rename_list(in, call, node->n_input, &node->input));
    MLO_TRY(rename_list(in, call, node->n_output, &node->output));
out:
    return status;
}

static enum mlo_status bad_call(const struct inliner *in, const Onnx__NodeProto *node, const char *what)
{
    enum mlo_status status =
        mlo_error_set(in->err, MLO_EFORMAT, "the call of function '%.100s' %s", text(node->op_type), what);
    mlo_error_where(in->err, "node '%.200s'", text(node->name));
    return status;
}

static int64_t version_of(Onnx__OperatorSetIdProto *const *list, size_t count, const char *domain)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(domain_of(list[i]->domain), domain) == 0)
            return list[i]->version;
    return 0;
}

/* The node will be read with the model's opsets: they must mean the same op as the function's. */
static enum mlo_status check_opset(struct inliner *in, const struct call *call, const Onnx__NodeProto *node)
{
    struct mlo_model *model = in->model;
    const char *domain = domain_of(node->domain);
    int64_t mine = version_of(call->fn->opset_import, call->fn->n_opset_import, domain);
    int64_t models = mlo_model_opset(model, domain);
    if (!mine || mine == models)
        return MLO_OK;
    if (!models) {
        struct mlo_opset *more = mlo_arena_calloc(model->arena, (size_t)model->opset_count + 1, sizeof *more);
        if (!more || !(more[model->opset_count].domain = mlo_arena_strdup(model->arena, domain)))
            return nomem(in);
        memcpy(more, model->opsets, (size_t)model->opset_count * sizeof *more);
        more[model->opset_count++].version = mine;
        model->opsets = more;
        return MLO_OK;
    }
    if (mlo_op_find(domain, text(node->op_type), mine) == mlo_op_find(domain, text(node->op_type), models))
        return MLO_OK;
    enum mlo_status status = mlo_error_set(
        in->err, MLO_EUNSUPPORTED,
        "function '%.80s' uses %.60s of opset %lld, and the model has opset %lld, where that differs",
        text(call->fn->name), text(node->op_type), (long long)mine, (long long)models);
    mlo_error_where(in->err, "node '%.200s'", text(call->node->name));
    mlo_error_hint(in->err, "export the model again with one opset for all of it");
    return status;
}

static enum mlo_status push_identity(struct inliner *in, struct nodes *out, char *from, char *to)
{
    Onnx__NodeProto *node = mlo_arena_alloc(in->arena, sizeof *node);
    char **ends = mlo_arena_calloc(in->arena, 2, sizeof(char *));
    if (!node || !ends)
        return nomem(in);
    onnx__node_proto__init(node);
    node->op_type = (char *)"Identity";
    ends[0] = from;
    ends[1] = to;
    node->input = ends;
    node->output = ends + 1;
    node->n_input = node->n_output = 1;
    return push(in, out, node);
}

/* What the function's inputs and outputs are called outside. An output that is an input too, or listed twice,
 * is a copy. */
static enum mlo_status bind_names(struct inliner *in, struct call *call, struct nodes *out)
{
    const Onnx__FunctionProto *fn = call->fn;
    const Onnx__NodeProto *node = call->node;
    call->names = mlo_arena_calloc(in->arena, fn->n_input + fn->n_output, sizeof *call->names);
    if (!call->names)
        return nomem(in);
    for (size_t i = 0; i < fn->n_input; i++)
        call->names[i] = (struct renamed){fn->input[i], i < node->n_input ? node->input[i] : (char *)""};
    call->name_count = fn->n_input;
    qsort(call->names, call->name_count, sizeof *call->names, by_from);
    for (size_t i = 1; i < call->name_count; i++)
        if (strcmp(call->names[i - 1].from, call->names[i].from) == 0)
            return bad_call(in, node, "is of one with two inputs of the same name");
    for (size_t i = 0; i < fn->n_output && i < node->n_output; i++) {
        struct renamed key = {.from = fn->output[i]}, *known;
        if (!*node->output[i])
            continue;
        known = bsearch(&key, call->names, call->name_count, sizeof key, by_from);
        if (known) {
            enum mlo_status status = push_identity(in, out, known->to, node->output[i]);
            if (status != MLO_OK)
                return status;
            continue;
        }
        size_t at = call->name_count++;
        for (; at > 0 && strcmp(call->names[at - 1].from, key.from) > 0; at--)
            call->names[at] = call->names[at - 1];
        call->names[at] = (struct renamed){fn->output[i], node->output[i]};
    }
    return MLO_OK;
}

static enum mlo_status expand_call(struct inliner *in, const Onnx__FunctionProto *fn,
                                   const Onnx__NodeProto *node, const struct call *caller, struct nodes *out)
{
    enum mlo_status status;
    struct call call = {.fn = fn, .node = node, .caller = caller, .depth = caller ? caller->depth + 1 : 1};
    for (const struct call *c = caller; c; c = c->caller)
        if (c->fn == fn)
            return bad_call(in, node, "leads back to itself: functions cannot be recursive");
    if (call.depth > MAX_DEPTH)
        return bad_call(in, node, "is nested in more than 64 others");
    if (node->n_input > fn->n_input || node->n_output > fn->n_output)
        return bad_call(in, node, "gives or takes more values than the function has");
    call.prefix = mlo_arena_printf(in->arena, "%s_%zu", text(node->op_type), ++in->calls);
    if (!call.prefix)
        return nomem(in);
    MLO_TRY(charge(in, &call, 1 + fn->n_input + fn->n_output));
    MLO_TRY(bind_names(in, &call, out));
    MLO_TRY(expand_nodes(in, fn->node, fn->n_node, &call, out));
out:
    return status;
}

static bool has_subgraph(const Onnx__NodeProto *node)
{
    for (size_t i = 0; i < node->n_attribute; i++)
        if (node->attribute[i]->g || node->attribute[i]->n_graphs)
            return true;
    return false;
}

static enum mlo_status expand_nodes(struct inliner *in, Onnx__NodeProto *const *nodes, size_t count,
                                    const struct call *call, struct nodes *out)
{
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < count; i++) {
        const Onnx__FunctionProto *fn = function_of(in, nodes[i]);
        Onnx__NodeProto *node = nodes[i];
        if (call && !fn)
            MLO_TRY(check_opset(in, call, node));
        if (call || has_subgraph(node))
            MLO_TRY(map_node(in, nodes[i], call, &node));
        MLO_TRY(fn ? expand_call(in, fn, node, call, out) : push(in, out, node));
    }
out:
    return status;
}

enum mlo_status mlo_onnx_inline(struct mlo_model *model, const Onnx__ModelProto *m, const Onnx__GraphProto *g,
                                struct mlo_arena *arena, Onnx__GraphProto **out, struct mlo_error *err)
{
    struct inliner in = {.model = model, .arena = arena, .function_count = m->n_functions, .err = err};
    in.functions = mlo_arena_calloc(arena, m->n_functions, sizeof(const Onnx__FunctionProto *));
    if (!in.functions)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < m->n_functions; i++)
        in.functions[i] = m->functions[i];
    qsort(in.functions, in.function_count, sizeof(const Onnx__FunctionProto *), by_function);
    for (size_t i = 1; i < in.function_count; i++)
        if (by_function(&in.functions[i - 1], &in.functions[i]) == 0)
            return mlo_error_set(err, MLO_EFORMAT, "two functions have the name '%.100s'",
                                 text(in.functions[i]->name));
    return expand_graph(&in, g, NULL, out);
}
