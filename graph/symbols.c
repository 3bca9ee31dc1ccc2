/* Content of small integer tensors where some of it is symbolic: what Shape gives for a dynamic batch, and
 * what shape computations make of it. One function an op; what none knows stays unknown. */
#include <stdlib.h>
#include <string.h>

#include "graph/infer_impl.h"
#include "graph/ops/ops_impl.h"

/* One node's operands. */
struct context {
    const struct mlo_node *node;
    struct mlo_arena *arena;
    struct mlo_expr in[MLO_KNOWN_MAX];  /* of the first input */
    struct mlo_expr in2[MLO_KNOWN_MAX]; /* of the second one */
    size_t count, count2;
    struct mlo_expr *out;
    size_t wanted; /* elements of the output */
};

typedef bool symbols_fn(struct context *c);

static bool first(struct context *c)
{
    return mlo_op_exprs(c->node, 0, c->in, MLO_KNOWN_MAX, &c->count);
}

static bool both(struct context *c)
{
    return first(c) && mlo_op_exprs(c->node, 1, c->in2, MLO_KNOWN_MAX, &c->count2);
}

/* The same elements, seen or typed in another way. */
static bool copy(struct context *c)
{
    if (!first(c) || c->count != c->wanted)
        return false;
    memcpy(c->out, c->in, c->count * sizeof *c->in);
    return true;
}

/* Between integers and floats; a bool says less than the number that it came from. */
static bool of_cast(struct context *c)
{
    const struct mlo_type *x = mlo_op_in(c->node, 0);
    return x->dtype != MLO_BOOL && mlo_node_attr_i(c->node, "to", 0) != MLO_BOOL && copy(c);
}

static bool of_shape(struct context *c)
{
    const struct mlo_type *x = mlo_op_in(c->node, 0);
    int64_t start = mlo_node_attr_i(c->node, "start", 0);
    if (x->rank < 0)
        return false;
    start = start < 0 ? start + x->rank : start;
    start = MLO_MIN(MLO_MAX(start, 0), x->rank);
    for (size_t i = 0; i < c->wanted && start + (int64_t)i < x->rank; i++)
        c->out[i] = mlo_expr_of_dim(x->dims[start + (int64_t)i]);
    return true;
}

static bool of_size(struct context *c)
{
    const struct mlo_type *x = mlo_op_in(c->node, 0);
    c->out[0] = mlo_expr_number(1);
    for (int i = 0; i < x->rank; i++)
        c->out[0] = mlo_expr_mul(c->arena, c->out[0], mlo_expr_of_dim(x->dims[i]));
    return x->rank >= 0;
}

static bool of_gather(struct context *c)
{
    if (!both(c) || mlo_op_in(c->node, 0)->rank != 1 || c->count2 != c->wanted)
        return false;
    for (size_t i = 0; i < c->count2; i++) {
        int64_t at = c->in2[i].number + (c->in2[i].number < 0 ? (int64_t)c->count : 0);
        if (c->in2[i].kind != MLO_EXPR_NUMBER || at < 0 || at >= (int64_t)c->count)
            return false;
        c->out[i] = c->in[at];
    }
    return true;
}

static bool slice_number(const struct mlo_node *node, const char *attr, int input, int64_t fallback,
                         int64_t *out)
{
    struct mlo_expr e = mlo_expr_number(fallback);
    size_t count = 0;
    if (node->op->since < 10) {
        const int64_t *list = mlo_node_attr_ints(node, attr, &count);
        e = count == 1 ? mlo_expr_number(list[0]) : e;
    } else if (mlo_op_in(node, input) && (!mlo_op_exprs(node, input, &e, 1, &count) || count != 1)) {
        return false;
    }
    *out = e.number;
    return e.kind == MLO_EXPR_NUMBER;
}

static bool of_slice(struct context *c)
{
    int64_t start, end, step, size;
    if (!first(c) || mlo_op_in(c->node, 0)->rank != 1 || !slice_number(c->node, "starts", 1, 0, &start) ||
        !slice_number(c->node, "ends", 2, 0, &end) || !slice_number(c->node, "steps", 4, 1, &step))
        return false;
    size = (int64_t)c->count;
    start += start < 0 ? size : 0;
    start = MLO_MIN(MLO_MAX(start, 0), step < 0 ? size - 1 : size);
    for (size_t i = 0; i < c->wanted; i++) {
        int64_t at = start + (int64_t)i * step;
        if (at < 0 || at >= size)
            return false;
        c->out[i] = c->in[at];
    }
    return true;
}

static bool of_concat(struct context *c)
{
    size_t at = 0;
    for (int i = 0; i < c->node->input_count; i++) {
        if (mlo_op_in(c->node, i)->rank != 1)
            return false;
        if (!mlo_op_exprs(c->node, i, c->in, MLO_KNOWN_MAX, &c->count)) {
            const struct mlo_dim size = mlo_op_in(c->node, i)->dims[0];
            if (size.value < 0 || size.value > MLO_KNOWN_MAX)
                return false;
            c->count = (size_t)size.value; /* nothing known of this part, but of the others */
            memset(c->in, 0, c->count * sizeof *c->in);
        }
        if (at + c->count > c->wanted)
            return false;
        if (c->count)
            memcpy(c->out + at, c->in, c->count * sizeof *c->in);
        at += c->count;
    }
    return at == c->wanted;
}

static struct mlo_expr apply(struct context *c, struct mlo_expr a, struct mlo_expr b)
{
    const char *op = c->node->op_type;
    bool numbers = a.kind == MLO_EXPR_NUMBER && b.kind == MLO_EXPR_NUMBER;
    if (strcmp(op, "Add") == 0)
        return mlo_expr_add(c->arena, a, b);
    if (strcmp(op, "Sub") == 0)
        return mlo_expr_sub(c->arena, a, b);
    if (strcmp(op, "Mul") == 0)
        return mlo_expr_mul(c->arena, a, b);
    if (strcmp(op, "Min") == 0)
        return mlo_expr_min(c->arena, a, b);
    if (strcmp(op, "Max") == 0)
        return mlo_expr_max(c->arena, a, b);
    if (strcmp(op, "Mod") == 0)
        return numbers && a.number >= 0 && b.number > 0 ? mlo_expr_number(a.number % b.number)
                                                        : (struct mlo_expr){0};
    if (strcmp(op, "Div") == 0) {
        const struct mlo_dtype_info *info = mlo_dtype_info(mlo_op_in(c->node, 0)->dtype);
        struct mlo_expr q = mlo_expr_div(c->arena, a, b);
        bool exact = mlo_expr_same(mlo_expr_mul(c->arena, q, b), a);
        /* rounding: none for floats, towards zero for integers, which is down when nothing is negative */
        bool down = info && info->is_integer && b.kind == MLO_EXPR_NUMBER && b.number > 0 &&
                    (a.kind != MLO_EXPR_NUMBER || a.number >= 0);
        return exact || down ? q : (struct mlo_expr){0};
    }
    /* Equal: a dim is never negative */
    struct mlo_expr d = mlo_expr_sub(c->arena, a, b);
    if (d.kind == MLO_EXPR_NUMBER)
        return mlo_expr_number(d.number == 0);
    bool below =
        (a.kind == MLO_EXPR_NUMBER && a.number < 0 && b.kind == MLO_EXPR_TEXT && !strchr(b.text, '-')) ||
        (b.kind == MLO_EXPR_NUMBER && b.number < 0 && a.kind == MLO_EXPR_TEXT && !strchr(a.text, '-'));
    return below ? mlo_expr_number(0) : (struct mlo_expr){0};
}

static bool of_two(struct context *c)
{
    if (c->node->input_count != 2 || !both(c) || (c->count != 1 && c->count != c->wanted) ||
        (c->count2 != 1 && c->count2 != c->wanted))
        return false;
    for (size_t i = 0; i < c->wanted; i++)
        c->out[i] = apply(c, c->in[c->count == 1 ? 0 : i], c->in2[c->count2 == 1 ? 0 : i]);
    return true;
}

static bool of_where(struct context *c)
{
    struct mlo_expr condition[MLO_KNOWN_MAX];
    size_t n;
    if (!mlo_op_exprs(c->node, 0, condition, MLO_KNOWN_MAX, &n) ||
        !mlo_op_exprs(c->node, 1, c->in, MLO_KNOWN_MAX, &c->count) ||
        !mlo_op_exprs(c->node, 2, c->in2, MLO_KNOWN_MAX, &c->count2) || (n != 1 && n != c->wanted) ||
        (c->count != 1 && c->count != c->wanted) || (c->count2 != 1 && c->count2 != c->wanted))
        return false;
    for (size_t i = 0; i < c->wanted; i++) {
        struct mlo_expr pick = condition[n == 1 ? 0 : i];
        struct mlo_expr yes = c->in[c->count == 1 ? 0 : i], no = c->in2[c->count2 == 1 ? 0 : i];
        if (pick.kind == MLO_EXPR_NUMBER)
            c->out[i] = pick.number ? yes : no;
        else if (mlo_expr_same(yes, no))
            c->out[i] = yes;
    }
    return true;
}

static bool of_expand(struct context *c)
{
    if (!first(c) || (c->count != 1 && c->count != c->wanted))
        return false;
    for (size_t i = 0; i < c->wanted; i++)
        c->out[i] = c->in[c->count == 1 ? 0 : i];
    return true;
}

static bool of_neg(struct context *c)
{
    if (!first(c) || c->count != c->wanted)
        return false;
    for (size_t i = 0; i < c->count; i++)
        c->out[i] = mlo_expr_sub(c->arena, mlo_expr_number(0), c->in[i]);
    return true;
}

/* Over all elements, to one. */
static bool of_reduce(struct context *c)
{
    bool product = mlo_node_is(c->node, "ReduceProd");
    if (c->wanted != 1 || !first(c))
        return false;
    c->out[0] = mlo_expr_number(product);
    for (size_t i = 0; i < c->count; i++)
        c->out[0] = product ? mlo_expr_mul(c->arena, c->out[0], c->in[i])
                            : mlo_expr_add(c->arena, c->out[0], c->in[i]);
    return true;
}

static const struct {
    const char *op;
    symbols_fn *fn;
} functions[] = {
    {"Add", of_two},           {"Cast", of_cast},        {"Ceil", copy},        {"Concat", of_concat},
    {"Div", of_two},           {"Equal", of_two},        {"Expand", of_expand}, {"Flatten", copy},
    {"Floor", copy},           {"Gather", of_gather},    {"Identity", copy},    {"Max", of_two},
    {"Min", of_two},           {"Mod", of_two},          {"Mul", of_two},       {"Neg", of_neg},
    {"ReduceProd", of_reduce}, {"ReduceSum", of_reduce}, {"Reshape", copy},     {"Round", copy},
    {"Shape", of_shape},       {"Size", of_size},        {"Slice", of_slice},   {"Squeeze", copy},
    {"Sub", of_two},           {"Unsqueeze", copy},      {"Where", of_where},
};

static symbols_fn *function_of(const struct mlo_node *node)
{
    size_t low = 0, high = MLO_COUNT(functions);
    if (*node->domain)
        return NULL;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int c = strcmp(functions[middle].op, node->op_type);
        if (c == 0)
            return functions[middle].fn;
        if (c < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* A list that came out as numbers alone is known content. */
static enum mlo_status as_known(struct mlo_value *value, const struct mlo_exprs *exprs, struct mlo_error *err)
{
    struct mlo_tensor tensor;
    int64_t dims[MLO_MAX_RANK];
    for (size_t i = 0; i < exprs->count; i++)
        if (exprs->e[i].kind != MLO_EXPR_NUMBER)
            return MLO_OK;
    if (!mlo_type_static(&value->type, dims))
        return MLO_OK;
    enum mlo_status status = mlo_tensor_init(&tensor, value->type.dtype, value->type.rank, dims, err);
    if (status != MLO_OK)
        return status;
    for (size_t i = 0; i < exprs->count; i++)
        mlo_store_i64(&tensor, i, exprs->e[i].number);
    value->known = mlo_model_tensor_take(value->graph->model, &tensor);
    return value->known ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_symbols_derive(struct mlo_node *node, struct mlo_error *err)
{
    symbols_fn *fn = function_of(node);
    struct mlo_value *value = node->output_count ? node->outputs[0] : NULL;
    const struct mlo_dtype_info *info = value ? mlo_dtype_info(value->type.dtype) : NULL;
    int64_t dims[MLO_MAX_RANK];
    size_t count;
    if (!fn || !info || value->known || value->type.rank > 2 || !mlo_type_static(&value->type, dims) ||
        !mlo_shape_count(value->type.rank, dims, &count) || count > MLO_KNOWN_MAX)
        return MLO_OK;
    if (!(info->is_integer || info->is_float || info->dtype == MLO_BOOL))
        return MLO_OK;
    struct mlo_expr out[MLO_KNOWN_MAX] = {0};
    struct context c = {.node = node, .arena = node->graph->model->arena, .out = out, .wanted = count};
    bool any = false;
    if (!fn(&c))
        return MLO_OK;
    for (size_t i = 0; i < count; i++) /* float32 holds integers up to 2^24 */
        if (info->is_float && out[i].kind == MLO_EXPR_NUMBER &&
            (out[i].number > 1 << 24 || out[i].number < -(1 << 24)))
            out[i] = (struct mlo_expr){0};
    for (size_t i = 0; i < count; i++)
        any = any || out[i].kind != MLO_EXPR_UNKNOWN;
    if (!any)
        return MLO_OK;
    value->symbols = mlo_arena_alloc(c.arena, sizeof *value->symbols + count * sizeof *out);
    if (!value->symbols)
        return mlo_error_nomem(err);
    value->symbols->count = count;
    memcpy(value->symbols->e, out, count * sizeof *out);
    bool integer = info->dtype == MLO_INT64 || info->dtype == MLO_INT32;
    return integer ? as_known(value, value->symbols, err) : MLO_OK;
}
