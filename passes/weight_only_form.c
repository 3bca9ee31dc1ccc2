/* How integer weights are written: behind DequantizeLinear, or as com.microsoft's MatMulNBits. */
#include <stdio.h>
#include <string.h>

#include "passes/weight_only_impl.h"

static struct mlo_value *add_constant(struct mlo_graph *graph, const char *name, const char *suffix,
                                      struct mlo_tensor *tensor)
{
    char text[256];
    snprintf(text, sizeof text, "%.*s_%s", mlo_pass_cut(name, 230), name, suffix);
    return mlo_graph_add_constant_take(graph, text, tensor);
}

/* Shape of scales and zero points: like the weights with blocks in the place of columns, or a list of rows.
 */
static int scale_dims(const struct mlo_weight_layout *l, const struct mlo_packed *p, int64_t *dims)
{
    if (!p->blocked) {
        dims[0] = (int64_t)p->grid.rows;
        return 1;
    }
    dims[l->row_axis] = (int64_t)p->grid.rows;
    dims[l->column_axis] = (int64_t)p->grid.blocks;
    return 2;
}

/* Where (row, block) is in those. */
static size_t scale_at(const struct mlo_weight_layout *l, const struct mlo_packed *p, size_t row,
                       size_t block)
{
    return !p->blocked || l->row_axis == 0 ? row * p->grid.blocks + block : block * p->grid.rows + row;
}

enum mlo_status mlo_packed_dequantize(struct mlo_node *node, const struct mlo_packed *p,
                                      struct mlo_value **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor q = {0}, scales = {0}, zeros = {0};
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    const struct mlo_weight_grid *grid = &p->grid;
    struct mlo_weight_layout l = mlo_weight_layout_of(node);
    struct mlo_graph *graph = node->graph;
    const char *name = node->inputs[1]->name;
    int64_t dims[2];
    char text[256];
    int rank = scale_dims(&l, p, dims);
    MLO_TRY(mlo_tensor_init(&q, p->dtype, w->rank, w->dims, err));
    MLO_TRY(mlo_tensor_init(&scales, MLO_FLOAT32, rank, dims, err));
    MLO_TRY(mlo_tensor_init(&zeros, p->dtype, rank, dims, err));
    for (size_t r = 0; r < grid->rows; r++) {
        for (size_t c = 0; c < grid->columns; c++)
            mlo_tensor_set_f64(&q, r * l.row_step + c * l.column_step, p->q[r * grid->columns + c]);
        for (size_t b = 0; b < grid->blocks; b++) {
            ((float *)scales.data)[scale_at(&l, p, r, b)] = p->scales[r * grid->blocks + b];
            if (p->zeros)
                mlo_tensor_set_f64(&zeros, scale_at(&l, p, r, b), p->zeros[r * grid->blocks + b]);
        }
    }
    struct mlo_value *qv = add_constant(graph, name, "quantized", &q);
    struct mlo_value *sv = add_constant(graph, name, "scale", &scales);
    struct mlo_value *zv = p->zeros ? add_constant(graph, name, "zero_point", &zeros) : NULL;
    struct mlo_type type = node->inputs[1]->type;
    snprintf(text, sizeof text, "%.*s_dequantized", mlo_pass_cut(name, 230), name);
    struct mlo_value *value = mlo_graph_add_value(graph, text, &type);
    struct mlo_value *inputs[] = {qv, sv, zv};
    snprintf(text, sizeof text, "%.*s_DequantizeLinear", mlo_pass_cut(name, 230), name);
    struct mlo_node *dq = qv && sv && value && (zv || !p->zeros)
                              ? mlo_graph_add_node(graph, node, "", "DequantizeLinear", text, inputs,
                                                   p->zeros ? 3 : 2, &value, 1)
                              : NULL;
    if (!dq || !mlo_node_set_i(dq, "axis", p->blocked ? l.column_axis : l.row_axis) ||
        (p->blocked && !mlo_node_set_i(dq, "block_size", (int64_t)grid->block)) ||
        !mlo_node_set_input(node, 1, value))
        status = mlo_error_nomem(err);
    *out = value;
out:
    mlo_tensor_clear(&q);
    mlo_tensor_clear(&scales);
    mlo_tensor_clear(&zeros);
    return status;
}

/* --- MatMulNBits ------------------------------------------------------------------------------- */

const char *mlo_packed_nbits_obstacle(const struct mlo_node *node)
{
    if (node->inputs[0]->type.dtype != MLO_FLOAT32)
        return "its input is not float32";
    if (mlo_node_is(node, "MatMul"))
        return NULL;
    const struct mlo_tensor *bias = mlo_node_fixed(node, 2);
    size_t rows = mlo_weight_layout_of(node).rows;
    if (mlo_node_attr_i(node, "transA", 0) != 0)
        return "it transposes its input";
    if (mlo_node_attr_f(node, "alpha", 1.0f) != 1.0f)
        return "its alpha is not 1";
    if (mlo_node_input(node, 2) &&
        (!bias || bias->dtype != MLO_FLOAT32 || mlo_node_attr_f(node, "beta", 1.0f) != 1.0f ||
         mlo_tensor_count(bias) != rows || bias->dims[bias->rank - 1] != (int64_t)rows))
        return "its bias is not one number per output channel";
    return NULL;
}

/* Numbers of `bits` bits, the lowest first. */
static void put(uint8_t *bytes, size_t i, int bits, unsigned number)
{
    if (bits == 8)
        bytes[i] = (uint8_t)number;
    else
        bytes[i / 2] |= (uint8_t)(number << (i % 2 ? 4 : 0));
}

static enum mlo_status make_nbits(const struct mlo_packed *p, int bits, struct mlo_tensor *b,
                                  struct mlo_tensor *scales, struct mlo_tensor *zeros, struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_weight_grid *grid = &p->grid;
    const int middle = 1 << (bits - 1); /* numbers are unsigned there; symmetric ones lie around this */
    size_t blob = grid->block * (size_t)bits / 8, zero_row = (grid->blocks * (size_t)bits + 7) / 8;
    int64_t b_dims[] = {(int64_t)grid->rows, (int64_t)grid->blocks, (int64_t)blob};
    int64_t scale_count = (int64_t)(grid->rows * grid->blocks), zero_count = (int64_t)(grid->rows * zero_row);
    MLO_TRY(mlo_tensor_init(b, MLO_UINT8, 3, b_dims, err));
    MLO_TRY(mlo_tensor_init(scales, MLO_FLOAT32, 1, &scale_count, err));
    MLO_TRY(mlo_tensor_init(zeros, MLO_UINT8, 1, &zero_count, err));
    memcpy(scales->data, p->scales, (size_t)scale_count * sizeof *p->scales);
    for (size_t r = 0; r < grid->rows; r++)
        for (size_t k = 0; k < grid->blocks; k++) {
            size_t at = r * grid->blocks + k;
            int zero = p->zeros ? p->zeros[at] : middle;
            put((uint8_t *)zeros->data + r * zero_row, k, bits, (unsigned)zero);
            for (size_t i = 0; i < grid->block; i++) {
                size_t column = k * grid->block + i; /* what is beyond the last column stands for 0 */
                int q = column < grid->columns ? p->q[r * grid->columns + column] + (p->zeros ? 0 : middle)
                                               : zero;
                put((uint8_t *)b->data + at * blob, i, bits, (unsigned)q);
            }
        }
out:
    return status;
}

enum mlo_status mlo_packed_nbits(struct mlo_node *node, const struct mlo_packed *p, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor b = {0}, scales = {0}, zeros = {0};
    struct mlo_graph *graph = node->graph;
    const char *name = node->inputs[1]->name;
    const int bits = p->dtype == MLO_INT4 || p->dtype == MLO_UINT4 ? 4 : 8;
    struct mlo_value *bias = mlo_node_input(node, 2), *y = node->outputs[0], *zv = NULL;
    MLO_TRY(make_nbits(p, bits, &b, &scales, &zeros, err));
    if (!mlo_model_import(graph->model, "com.microsoft", 1)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (bias && bias->type.rank != 1) { /* [1, N] of a Gemm; MatMulNBits wants a list */
        struct mlo_tensor list = {0};
        MLO_TRY(mlo_tensor_copy(bias->constant, &list, err));
        list.rank = 1;
        list.dims[0] = (int64_t)p->grid.rows;
        if (!(bias = add_constant(graph, bias->name, "list", &list))) {
            mlo_tensor_clear(&list);
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    struct mlo_value *bv = add_constant(graph, name, "packed", &b),
                     *sv = add_constant(graph, name, "scale", &scales);
    if (p->zeros)
        zv = add_constant(graph, name, "zero_point", &zeros);
    struct mlo_value *inputs[] = {node->inputs[0], bv, sv, zv, NULL, bias};
    char node_name[256];
    snprintf(node_name, sizeof node_name, "%.*s_MatMulNBits", mlo_pass_cut(node->name, 230), node->name);
    int index = node->index;
    if (!bv || !sv || (p->zeros && !zv)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_graph_remove_node(node);
    struct mlo_node *made = mlo_graph_add_node(graph, index < graph->node_count ? graph->nodes[index] : NULL,
                                               "com.microsoft", "MatMulNBits", node_name, inputs,
                                               bias ? 6
                                               : zv ? 4
                                                    : 3,
                                               &y, 1);
    if (!made || !mlo_node_set_i(made, "K", (int64_t)p->grid.columns) ||
        !mlo_node_set_i(made, "N", (int64_t)p->grid.rows) || !mlo_node_set_i(made, "bits", bits) ||
        !mlo_node_set_i(made, "block_size", (int64_t)p->grid.block))
        status = mlo_error_nomem(err);
out:
    mlo_tensor_clear(&b);
    mlo_tensor_clear(&scales);
    mlo_tensor_clear(&zeros);
    return status;
}
