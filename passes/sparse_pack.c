/* Sparse weights as they are stored: a bit for each weight, then the weights that are not zero, and ordinary
 * ONNX ops that put them together again, which runtimes that fold constants do once, when they load the
 * model.
 *
 * ONNX's own sparse_initializer has an int64 index for each weight: 12 bytes instead of 4, so that it is
 * larger than the dense form below two thirds of zeros; and not all runtimes read it. A bit for each weight
 * is an eighth of a byte whatever the sparsity, so half of the weights take 53% of the bytes.
 *
 *   bits = Mod(Div(Cast<int32>(mask[m,1]), [[1,2,4,…,128]]), 2)   of int32, rounded down
 *   flat = Reshape(bits, [-1])
 *   dense = Reshape(Gather([0, weights…], CumSum(flat) * flat), shape)    after a Slice where 8 m is too many
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "passes/passes_impl.h"
#include "passes/sparsify.h"

enum {
    PACK_MIN_BYTES = 4096,
    PACK_OPSET = 13,
    NAME_BYTES = 48, /* of the tensor's name in what the parts are called */
    PART_SIZE = 96,
    NAME_COUNT = 42, /* how often it stands in a file: of nodes, their inputs, outputs and types, constants */
    NODES_BYTES = 820, /* of one tensor's nodes and constants, less that and the numbers */
};
#define PACK_SHARE 0.75 /* of the dense bytes: more is not worth the ops */
#define DENSE "_dense"  /* behind the tensor's whole name: what unpacking calls it by */

static const int32_t POWERS[8] = {1, 2, 4, 8, 16, 32, 64, 128};

static size_t nonzero_count(const struct mlo_tensor *t)
{
    const uint32_t *x = t->data; /* by bits: -0 is kept as it is */
    size_t count = mlo_tensor_count(t), n = 0;
    for (size_t i = 0; i < count; i++)
        n += x[i] != 0;
    return n;
}

/* What a tensor takes in a file in this form, at most. */
static uint64_t packed_bytes(const struct mlo_value *v)
{
    size_t count = mlo_tensor_count(v->constant), nonzero = nonzero_count(v->constant);
    return (count + 7) / 8 + 4 * ((uint64_t)nonzero + 1) + NODES_BYTES +
           NAME_COUNT * (uint64_t)mlo_pass_cut(v->name, NAME_BYTES) + strlen(v->name);
}

static bool pays(const struct mlo_value *v)
{
    const struct mlo_tensor *t = v->constant;
    if (!mlo_value_is_fixed(v) || v->is_input || v->is_output || v->use_count == 0 ||
        t->dtype != MLO_FLOAT32 || t->size_bytes < PACK_MIN_BYTES || mlo_tensor_count(t) > INT_MAX / 2)
        return false;
    return (double)packed_bytes(v) <= PACK_SHARE * (double)t->size_bytes;
}

/* --- packing ------------------------------------------------------------------------------------- */

/* Constants that all tensors share, and where nodes are put. */
struct packer {
    struct mlo_graph *graph;
    struct mlo_node *before;
    struct mlo_value *powers, *two, *axis, *flat, *start;
};

static struct mlo_value *add_const(struct mlo_graph *graph, const char *name, enum mlo_dtype dtype, int rank,
                                   const int64_t *dims, const void *data)
{
    struct mlo_tensor t = {0};
    if (mlo_tensor_init(&t, dtype, rank, dims, NULL) != MLO_OK)
        return NULL;
    memcpy(t.data, data, t.size_bytes);
    struct mlo_value *v = mlo_graph_add_constant_take(graph, name, &t);
    mlo_tensor_clear(&t);
    return v;
}

static bool packer_init(struct packer *p, struct mlo_graph *graph)
{
    const int64_t one = 1, row[] = {1, 8}, zero = 0, all = -1;
    const int32_t two = 2;
    *p = (struct packer){.graph = graph, .before = graph->nodes[0]};
    p->powers = add_const(graph, "sparse_powers", MLO_INT32, 2, row, POWERS);
    p->two = add_const(graph, "sparse_two", MLO_INT32, 0, NULL, &two);
    p->axis = add_const(graph, "sparse_axis", MLO_INT64, 0, NULL, &zero);
    p->flat = add_const(graph, "sparse_flat", MLO_INT64, 1, &one, &all);
    p->start = add_const(graph, "sparse_start", MLO_INT64, 1, &one, &zero);
    return p->powers && p->two && p->axis && p->flat && p->start;
}

/* "<the name, cut>_<part>" */
static void part_name(char text[PART_SIZE], const char *name, const char *part)
{
    snprintf(text, PART_SIZE, "%.*s_%s", mlo_pass_cut(name, NAME_BYTES), name, part);
}

/* A node of the form; NULL: out of memory, or an input is. */
static struct mlo_value *add_named(const struct packer *p, const char *name, const char *part, const char *op,
                                   const char *made, struct mlo_value *a, struct mlo_value *b,
                                   struct mlo_value *c)
{
    char text[PART_SIZE];
    struct mlo_value *inputs[] = {a, b, c};
    int count = c ? 3 : b ? 2 : 1;
    struct mlo_value *out = a ? mlo_graph_add_value(p->graph, made, NULL) : NULL;
    snprintf(text, sizeof text, "%.*s_%s_%s", mlo_pass_cut(name, NAME_BYTES), name, part, op);
    return out && mlo_graph_add_node(p->graph, p->before, "", op, text, inputs, count, &out, 1) ? out : NULL;
}

/* The same, which makes "<name>_<part>". */
static struct mlo_value *add_node(const struct packer *p, const char *name, const char *part, const char *op,
                                  struct mlo_value *a, struct mlo_value *b, struct mlo_value *c)
{
    char text[PART_SIZE];
    part_name(text, name, part);
    return add_named(p, name, part, op, text, a, b, c);
}

/* The mask and the weights of a tensor as constants. */
static enum mlo_status add_parts(const struct packer *p, const struct mlo_value *v, struct mlo_value **mask,
                                 struct mlo_value **weights, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor bits = {0}, kept = {0};
    char text[PART_SIZE];
    const uint32_t *x = v->constant->data;
    size_t count = mlo_tensor_count(v->constant), next = 1;
    const int64_t rows[] = {(int64_t)((count + 7) / 8), 1}, n = (int64_t)nonzero_count(v->constant) + 1;
    MLO_TRY(mlo_tensor_init(&bits, MLO_UINT8, 2, rows, err));
    MLO_TRY(mlo_tensor_init(&kept, MLO_FLOAT32, 1, &n, err));
    memset(bits.data, 0, bits.size_bytes);
    ((uint32_t *)kept.data)[0] = 0;
    for (size_t i = 0; i < count; i++)
        if (x[i] != 0) {
            ((uint8_t *)bits.data)[i / 8] |= (uint8_t)(1u << (i % 8));
            ((uint32_t *)kept.data)[next++] = x[i];
        }
    part_name(text, v->name, "mask");
    *mask = mlo_graph_add_constant_take(p->graph, text, &bits);
    part_name(text, v->name, "nonzero");
    *weights = *mask ? mlo_graph_add_constant_take(p->graph, text, &kept) : NULL;
    if (!*weights)
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&bits); /* what was taken over is not in there any more */
    mlo_tensor_clear(&kept);
    return status;
}

static enum mlo_status pack_value(const struct packer *p, struct mlo_value *v, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_value *mask, *weights, *flat, *index, *made, *end, *shape;
    char text[PART_SIZE];
    struct mlo_buf whole = MLO_BUF_INIT;
    const int64_t count = (int64_t)mlo_tensor_count(v->constant), one = 1, rank = v->constant->rank;
    MLO_TRY(add_parts(p, v, &mask, &weights, err));
    struct mlo_value *cast = add_node(p, v->name, "bytes", "Cast", mask, NULL, NULL);
    if (!cast || !mlo_node_set_i(cast->producer, "to", MLO_INT32)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    made = add_node(p, v->name, "shifted", "Div", cast, p->powers, NULL);
    made = add_node(p, v->name, "bits", "Mod", made, p->two, NULL);
    flat = add_node(p, v->name, "flat", "Reshape", made, p->flat, NULL);
    made = add_node(p, v->name, "numbers", "CumSum", flat, p->axis, NULL);
    index = made ? add_node(p, v->name, "index", "Mul", made, flat, NULL) : NULL;
    made = index ? add_node(p, v->name, "weights", "Gather", weights, index, NULL) : NULL;
    if (count % 8 != 0) {
        part_name(text, v->name, "count");
        end = add_const(p->graph, text, MLO_INT64, 1, &one, &count);
        made = end ? add_node(p, v->name, "all", "Slice", made, p->start, end) : NULL;
    }
    part_name(text, v->name, "shape");
    shape = add_const(p->graph, text, MLO_INT64, 1, &rank, v->constant->dims);
    mlo_buf_printf(&whole, "%s" DENSE, v->name);
    made = shape && mlo_buf_ok(&whole)
               ? add_named(p, v->name, "dense", "Reshape", mlo_buf_str(&whole), made, shape, NULL)
               : NULL;
    if (!made || !mlo_value_replace_uses(v, made))
        status = mlo_error_nomem(err);
out:
    mlo_buf_clear(&whole);
    return status;
}

/* Whether the model's nodes can have the opset of the form; tried on a copy. */
static bool can_raise(const struct mlo_model *model, struct mlo_error *why)
{
    struct mlo_model *copy = NULL;
    struct mlo_pass_context quiet = {.notes = json_array()};
    enum mlo_status status = mlo_model_clone_borrowing(model, &copy, why);
    if (status == MLO_OK)
        status = mlo_pass_raise_opset_to(copy, PACK_OPSET, &quiet, why);
    mlo_model_free(copy);
    json_decref(quiet.notes);
    return status == MLO_OK;
}

enum mlo_status mlo_sparse_pack(struct mlo_model *model, struct mlo_pass_context *ctx, json_t **report,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *graph = model->graph;
    struct mlo_error why = {0};
    struct packer packer;
    int values = graph->value_count, count = 0, chosen = 0;
    uint64_t before = 0, after = 0;
    *report = NULL;
    for (int i = 0; i < values; i++)
        count += pays(graph->values[i]);
    if (count > 0 && !can_raise(model, &why)) {
        mlo_pass_note(ctx, graph->name, "its weights are stored dense: %s", why.message);
        count = 0;
    }
    if (count > 0) {
        MLO_TRY(mlo_pass_raise_opset_to(model, PACK_OPSET, ctx, err));
        if (!packer_init(&packer, graph))
            return mlo_error_nomem(err);
        values = graph->value_count; /* those that are added by the way are behind */
        chosen = count;
        count = 0;
    }
    for (int i = 0; chosen > 0 && i < values; i++) {
        struct mlo_value *v = graph->values[i];
        if (!pays(v))
            continue;
        count++;
        before += v->constant->size_bytes;
        after += packed_bytes(v);
        MLO_TRY(pack_value(&packer, v, err));
    }
    mlo_graph_remove_unused_values(graph);
    *report = json_pack("{s:s,s:i,s:I,s:I}", "form", count ? "bitmap" : "dense", "tensors", count,
                        "bytes_before", (json_int_t)before, "bytes_after", (json_int_t)after);
    if (!*report)
        status = mlo_error_nomem(err);
out:
    return status;
}

/* --- unpacking ----------------------------------------------------------------------------------- */

static const struct mlo_node *from(const struct mlo_node *node, int i, const char *op)
{
    const struct mlo_node *made = node && i < node->input_count ? mlo_node_producer(node, i) : NULL;
    return made && mlo_node_is(made, op) ? made : NULL;
}

/* The same where nobody else reads what it makes: then a mask makes one tensor, and no small file many. */
static const struct mlo_node *alone(const struct mlo_node *node, int i, const char *op)
{
    const struct mlo_node *made = from(node, i, op);
    return made && made->outputs[0]->use_count == 1 && !made->outputs[0]->is_output ? made : NULL;
}

/* Whether input i is a constant of these numbers. */
static bool holds(const struct mlo_node *node, int i, enum mlo_dtype dtype, size_t count, const void *numbers)
{
    const struct mlo_tensor *t = i < node->input_count ? mlo_node_fixed(node, i) : NULL;
    return t && t->dtype == dtype && mlo_tensor_count(t) == count &&
           memcmp(t->data, numbers, t->size_bytes) == 0;
}

/* The mask and the weights of a Reshape that ends the form, and its shape; false: it does not. */
static bool match(const struct mlo_node *end, const struct mlo_tensor **mask,
                  const struct mlo_tensor **weights, const struct mlo_tensor **shape)
{
    static const int32_t two = 2;
    static const int64_t zero = 0, all = -1;
    if (!mlo_node_is(end, "Reshape") || end->output_count != 1 || !end->outputs[0] ||
        end->outputs[0]->is_output)
        return false;
    const struct mlo_node *slice = alone(end, 0, "Slice"), *gather = alone(slice ? slice : end, 0, "Gather");
    const struct mlo_node *mul = alone(gather, 1, "Mul"), *sum = alone(mul, 0, "CumSum");
    const struct mlo_node *flat = from(sum, 0, "Reshape"), *mod = alone(flat, 0, "Mod");
    const struct mlo_node *div = alone(mod, 0, "Div"), *cast = alone(div, 0, "Cast");
    if (!cast || cast->inputs[0]->use_count != 1 || flat->outputs[0]->use_count != 2 ||
        flat->outputs[0]->is_output || mul->input_count != 2 || mul->inputs[1] != flat->outputs[0] ||
        mlo_node_attr_i(gather, "axis", 0) != 0 || mlo_node_attr_i(sum, "exclusive", 0) != 0 ||
        mlo_node_attr_i(sum, "reverse", 0) != 0 || mlo_node_attr_i(mod, "fmod", 0) != 0 ||
        mlo_node_attr_i(cast, "to", 0) != MLO_INT32 || !holds(sum, 1, MLO_INT64, 1, &zero) ||
        !holds(flat, 1, MLO_INT64, 1, &all) || !holds(mod, 1, MLO_INT32, 1, &two) ||
        !holds(div, 1, MLO_INT32, 8, POWERS))
        return false;
    *mask = mlo_node_fixed(cast, 0);
    *weights = mlo_node_fixed(gather, 0);
    *shape = mlo_node_fixed(end, 1);
    if (!*mask || !*weights || !*shape || (*mask)->dtype != MLO_UINT8 || (*mask)->rank != 2 ||
        (*mask)->dims[1] != 1 || (*weights)->dtype != MLO_FLOAT32 || (*weights)->rank != 1 ||
        (*weights)->dims[0] < 1 || ((const uint32_t *)(*weights)->data)[0] != 0 ||
        (*shape)->dtype != MLO_INT64 || (*shape)->rank != 1 || (*shape)->dims[0] > MLO_MAX_RANK)
        return false;
    size_t count, bits = 8 * mlo_tensor_count(*mask);
    for (int64_t i = 0; i < (*shape)->dims[0]; i++)
        if (((const int64_t *)(*shape)->data)[i] < 1)
            return false;
    if (!mlo_shape_count((int)(*shape)->dims[0], (*shape)->data, &count))
        return false;
    int64_t last = (int64_t)count;
    if (slice)
        return count < bits && bits - count < 8 && slice->input_count == 3 &&
               holds(slice, 1, MLO_INT64, 1, &zero) && holds(slice, 2, MLO_INT64, 1, &last);
    return count == bits;
}

/* The dense tensor; false: the mask counts other weights than there are. */
static bool decode(const struct mlo_tensor *mask, const struct mlo_tensor *weights, struct mlo_tensor *out)
{
    const uint8_t *bits = mask->data;
    size_t count = mlo_tensor_count(out), kept = mlo_tensor_count(weights), next = 1;
    for (size_t i = 0; i < count; i++) {
        bool set = bits[i / 8] >> (i % 8) & 1;
        if (set && next == kept)
            return false;
        ((uint32_t *)out->data)[i] = set ? ((const uint32_t *)weights->data)[next++] : 0;
    }
    return next == kept;
}

enum mlo_status mlo_sparse_unpack(struct mlo_model *model, int *count, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_graph *graph = model->graph;
    struct mlo_tensor t = {0};
    struct mlo_buf name = MLO_BUF_INIT;
    int found = 0;
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_tensor *mask, *weights, *shape;
        struct mlo_node *node = graph->nodes[n];
        if (!match(node, &mask, &weights, &shape))
            continue;
        MLO_TRY(mlo_tensor_init(&t, MLO_FLOAT32, (int)shape->dims[0], shape->data, err));
        if (decode(mask, weights, &t)) {
            struct mlo_value *made = node->outputs[0];
            size_t length = strlen(made->name);
            mlo_buf_reset(&name);
            mlo_buf_append(&name, made->name, length - (mlo_str_ends(made->name, DENSE) ? strlen(DENSE) : 0));
            struct mlo_value *dense =
                mlo_buf_ok(&name) ? mlo_graph_add_constant_take(graph, mlo_buf_str(&name), &t) : NULL;
            if (!dense || !mlo_value_replace_uses(made, dense)) {
                status = mlo_error_nomem(err);
                goto out;
            }
            found++;
        }
        mlo_tensor_clear(&t);
    }
    if (count)
        *count = found;
    if (found > 0) { /* what put them together */
        struct mlo_pass_context quiet = {.notes = json_array()};
        status = mlo_pass_remove_dead(model, &quiet, err);
        json_decref(quiet.notes);
    }
out:
    mlo_tensor_clear(&t);
    mlo_buf_clear(&name);
    return status;
}

enum mlo_status mlo_sparse_load(const char *path, struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status = mlo_onnx_load(path, out, err);
    return status == MLO_OK ? mlo_sparse_unpack(*out, NULL, err) : status;
}
