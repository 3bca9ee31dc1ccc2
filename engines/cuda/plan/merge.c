/* Products of one value with several constant weights become one product, whose columns are split (queries,
 * keys and values of attention): one launch, and the value is read once. */
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

enum { MERGED = 8, OPSET = 13 };

/* A MatMul with constant weights, and perhaps a constant row added to it. */
struct product {
    struct mlo_node *matmul, *dequantize, *add;
    const struct mlo_tensor *w, *scales, *bias;
    struct mlo_value *out;
    int64_t n;
};

static bool zeros(const struct mlo_node *node)
{
    const struct mlo_tensor *t = mlo_node_const(node, 2);
    for (size_t i = 0; t && i < mlo_tensor_count(t); i++)
        if (mlo_tensor_get_f64(t, i) != 0)
            return false;
    return t || !mlo_node_input(node, 2);
}

static bool product_of(const struct prepare *p, struct mlo_node *node, struct product *out)
{
    *out = (struct product){.matmul = node};
    if (!mlo_node_is(node, "MatMul") || node->inputs[0] == node->inputs[1] || node->inputs[0]->type.rank < 2)
        return false;
    struct mlo_node *dq = node->inputs[1]->producer;
    out->w = lower_constant(node->inputs[1]);
    if (!out->w && dq && mlo_node_is(dq, "DequantizeLinear") && mlo_node_const(dq, 0) &&
        mlo_node_const(dq, 0)->rank == 2) {
        int64_t axis = mlo_node_attr_i(dq, "axis", 1);
        out->w = mlo_node_const(dq, 0);
        out->scales = mlo_node_const(dq, 1);
        out->dequantize = dq;
        size_t scales = out->scales ? mlo_tensor_count(out->scales) : 0;
        /* one scale of float8 goes into the product's alpha, but several do not */
        bool bytes = out->w->dtype == MLO_INT8 || (out->w->dtype == MLO_FLOAT8E4M3FN && scales > 1);
        if (!bytes || !scales || !zeros(dq) || mlo_node_attr_i(dq, "block_size", 0) ||
            (scales > 1 && axis != 1 && axis != -1))
            return false;
    }
    if (!out->w || out->w->rank != 2 || (!out->scales && !lower_is_float(out->w->dtype)))
        return false;
    out->n = out->w->dims[1];
    out->out = node->outputs[0];
    if (prepare_shows(p, out->out) || out->out->type.rank != node->inputs[0]->type.rank)
        return false;
    struct mlo_node *add = prepare_reader(p, out->out);
    if (add && mlo_node_is(add, "Add")) {
        const struct mlo_tensor *t = lower_constant(add->inputs[add->inputs[0] == out->out]);
        if (t && (int64_t)mlo_tensor_count(t) == out->n && t->rank == 1 && lower_is_float(t->dtype) &&
            !prepare_shows(p, add->outputs[0])) {
            out->bias = t;
            out->add = add;
            out->out = add->outputs[0];
        }
    }
    return true;
}

static bool alike(const struct product *a, const struct product *b)
{
    return a->matmul->inputs[0] == b->matmul->inputs[0] && a->w->dims[0] == b->w->dims[0] &&
           a->w->dtype == b->w->dtype && !a->bias == !b->bias &&
           (!a->bias || a->bias->dtype == b->bias->dtype) && !a->scales == !b->scales &&
           (!a->scales || a->scales->dtype == b->scales->dtype);
}

/* Rows of all weights side by side (rows 1: vectors, of which one element may stand for all). */
static enum mlo_status side_by_side(const struct mlo_tensor *const *parts, const int64_t *widths, int count,
                                    int64_t rows, int rank, struct mlo_tensor *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t n = 0;
    for (int i = 0; i < count; i++)
        n += widths[i];
    size_t size = lower_element(parts[0]->dtype);
    MLO_TRY(mlo_tensor_init(out, parts[0]->dtype, rank, rank == 2 ? (int64_t[]){rows, n} : &n, err));
    char *to = out->data;
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) {
            bool one = mlo_tensor_count(parts[i]) == 1;
            for (int64_t k = 0; k < widths[i]; k++, to += size)
                memcpy(to, (const char *)parts[i]->data + (one ? 0 : (size_t)(r * widths[i] + k)) * size,
                       size);
        }
out:
    return status;
}

/* Adds nodes in front of `before`; NULL operands or no memory make `ok` false. */
struct writer {
    struct mlo_graph *g;
    struct mlo_node *before;
    bool ok;
};

static struct mlo_node *write_node(struct writer *w, const char *op, const char *name,
                                   struct mlo_value *const *in, int in_count, struct mlo_value *const *out,
                                   int out_count)
{
    for (int i = 0; i < in_count; i++)
        w->ok &= in[i] != NULL;
    struct mlo_node *node =
        w->ok ? mlo_graph_add_node(w->g, w->before, "", op, name, in, in_count, out, out_count) : NULL;
    w->ok &= node != NULL;
    if (node) {
        node->version = OPSET;
        node->op = mlo_op_find("", op, OPSET);
    }
    return node;
}

static struct mlo_value *write_value(struct writer *w, const char *op, const char *name,
                                     struct mlo_value *const *in, int in_count, const struct mlo_type *type)
{
    struct mlo_value *y = mlo_graph_add_value(w->g, name, type);
    w->ok &= y != NULL;
    return write_node(w, op, name, in, in_count, &y, 1) ? y : NULL;
}

static enum mlo_status merge(const struct prepare *p, struct product *list, int count, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *w[MERGED], *s[MERGED], *b[MERGED];
    int64_t widths[MERGED], n = 0;
    struct mlo_value *outs[MERGED], *x = list[0].matmul->inputs[0];
    struct mlo_tensor t = {0};
    struct writer to = {.g = p->g, .ok = true};
    const char *name = list[0].matmul->name, *add_name = list[0].add ? list[0].add->name : NULL;
    struct mlo_value *weights, *scales = NULL, *bias = NULL, *split;
    for (int i = 0; i < count; i++) {
        w[i] = list[i].w;
        s[i] = list[i].scales;
        b[i] = list[i].bias;
        outs[i] = list[i].out;
        n += widths[i] = list[i].n;
    }
    MLO_TRY(side_by_side(w, widths, count, w[0]->dims[0], 2, &t, err));
    weights = mlo_graph_add_constant_take(p->g, "weights", &t);
    if (s[0]) {
        MLO_TRY(side_by_side(s, widths, count, 1, 1, &t, err));
        scales = mlo_graph_add_constant_take(p->g, "scales", &t);
    }
    if (b[0]) {
        MLO_TRY(side_by_side(b, widths, count, 1, 1, &t, err));
        bias = mlo_graph_add_constant_take(p->g, "bias", &t);
    }
    MLO_TRY(mlo_tensor_init(&t, MLO_INT64, 1, (int64_t[]){count}, err));
    memcpy(t.data, widths, (size_t)count * sizeof *widths);
    split = mlo_graph_add_constant_take(p->g, "split", &t);
    struct mlo_type type = list[0].matmul->outputs[0]->type;
    type.dims[type.rank - 1] = (struct mlo_dim){.value = n};
    int at = list[0].matmul->index;
    for (int i = 0; i < count; i++) {
        if (list[i].add)
            mlo_graph_remove_node(list[i].add);
        mlo_graph_remove_node(list[i].matmul);
    }
    to.before = at < p->g->node_count ? p->g->nodes[at] : NULL;
    if (scales && weights) {
        struct mlo_type w_type = weights->type;
        w_type.dtype = scales->type.dtype;
        weights = write_value(&to, "DequantizeLinear", "weights/dequantize",
                              (struct mlo_value *[]){weights, scales}, 2, &w_type);
        to.ok = to.ok && mlo_node_set_i(weights->producer, "axis", 1);
    }
    struct mlo_value *y = write_value(&to, "MatMul", name, (struct mlo_value *[]){x, weights}, 2, &type);
    if (b[0])
        y = write_value(&to, "Add", add_name, (struct mlo_value *[]){y, bias}, 2, &type);
    struct mlo_node *node =
        write_node(&to, "Split", "split", (struct mlo_value *[]){y, split}, 2, outs, count);
    if (!node || !mlo_node_set_i(node, "axis", -1))
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&t);
    return status;
}

enum mlo_status prepare_merge(const struct prepare *p, struct mlo_node *node, bool *done,
                              struct mlo_error *err)
{
    struct product list[MERGED], next;
    int count = 1;
    if (!product_of(p, node, &list[0]))
        return MLO_OK;
    const struct mlo_value *x = node->inputs[0];
    for (int i = 0; i < x->use_count && count < MERGED; i++) {
        struct mlo_node *other = x->uses[i].node;
        bool again = other->graph != p->g || other->index <= node->index;
        for (int k = 0; k < count && !again; k++)
            again = list[k].matmul == other;
        if (!again && product_of(p, other, &next) && alike(&list[0], &next))
            list[count++] = next;
    }
    *done = count > 1;
    return count > 1 ? merge(p, list, count, err) : MLO_OK;
}
