/* The parts of the quantize-weights pass: which nodes, grids (weight_only.c), forms (weight_only_form.c). The
 * choice of nodes serves quantize-dynamic too. */
#ifndef MLO_PASSES_WEIGHT_ONLY_IMPL_H
#define MLO_PASSES_WEIGHT_ONLY_IMPL_H

#include "passes/round_impl.h"

#define MLO_OPTION_MIN_WEIGHTS                                                                               \
    {                                                                                                        \
        .name = "min_weights", .type = MLO_OPT_INT, .fallback = "1024", .min = 0, .max = 1e9,                \
        .description = "Nodes with fewer weights stay in float"                                              \
    }

/* What the options say of which nodes to take. */
struct mlo_weights_choice {
    bool convolutions;
    int64_t min_weights;
    const json_t *exclude; /* borrowed from the options */
};
/* The options min_weights, exclude and convolutions. */
struct mlo_weights_choice mlo_weights_choice_read(const json_t *options);
/* Why a Conv, Gemm or MatMul keeps float weights, as far as weights and options go; NULL when it need not. */
const char *mlo_weights_obstacle(const struct mlo_weights_choice *choice, const struct mlo_node *node);

/* The integer weights of one node: rows are output channels, columns what is summed over. */
struct mlo_packed {
    enum mlo_dtype dtype;
    struct mlo_weight_grid grid;
    float *scales; /* grid.scales */
    int *zeros;    /* grid.zeros, or NULL */
    int16_t *q;    /* [rows][columns] */
    bool blocked;  /* scales in blocks, else one a row */
};

/* How a node's weights lie: element (row, column) is at row * row_step + column * column_step. */
struct mlo_weight_layout {
    size_t rows, columns, row_step, column_step;
    int row_axis, column_axis; /* column_axis < 0: several (Conv) */
};
struct mlo_weight_layout mlo_weight_layout_of(const struct mlo_node *node);

/* Makes input 1 of the node integers behind a DequantizeLinear. *out: the dequantized value, for another node
 * that has the same weights. */
MLO_MUST_USE enum mlo_status mlo_packed_dequantize(struct mlo_node *node, const struct mlo_packed *packed,
                                                   struct mlo_value **out, struct mlo_error *err);
/* Why the node (a MatMul or Gemm) cannot become a MatMulNBits; NULL when it can. */
const char *mlo_packed_nbits_obstacle(const struct mlo_node *node);
/* Replaces the node by com.microsoft's MatMulNBits. */
MLO_MUST_USE enum mlo_status mlo_packed_nbits(struct mlo_node *node, const struct mlo_packed *packed,
                                              struct mlo_error *err);

#endif
