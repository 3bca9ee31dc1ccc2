/* Private to the lowering of elementwise nodes: groups of nodes, and the step that a group becomes. */
#ifndef MLO_ENGINES_CPU_FAST_EXPR_IMPL_H
#define MLO_ENGINES_CPU_FAST_EXPR_IMPL_H

#include "engines/cpu/fast/expr.h"
#include "engines/cpu/fast/fast_impl.h"

enum { EXPR_GROUP_MAX = 24, EXPR_DIMS_MAX = MLO_MAX_RANK };

/* --- expr_group.c: which nodes, and what they compute --------------------------------------------------- */

/* An operand: a value, or constants that a BatchNormalization comes down to. */
struct expr_operand {
    const struct mlo_value *value;
    const float *norm; /* plan's memory, one a channel */
    bool quantized;    /* read as bytes */
};

struct expr_group {
    struct mlo_plan *plan;
    struct fast_shape shape; /* of every member's result */
    struct mlo_value *members[EXPR_GROUP_MAX];
    const struct mlo_node *nodes[EXPR_GROUP_MAX];
    int regs[EXPR_GROUP_MAX];
    int count;
    struct expr_operand operands[EXPR_INPUTS_MAX];
    struct expr_program program;
};

/* A group may begin with the node. */
bool expr_begins(const struct mlo_node *node);
/* Adds a node, or leaves the group as it was. */
bool expr_group_add(struct expr_group *g, const struct mlo_node *node);
/* Grows from g->nodes[0]; afterwards the group is the largest that is closed. */
void expr_group_grow(struct expr_group *g);
/* A dequantization at the end is left to whoever reads the bytes. */
void expr_group_drop_dequantize(struct expr_group *g);

/* --- expr_step.c: the step ------------------------------------------------------------------------------ */

struct expr_step {
    enum mlo_isa isa;
    struct expr_program program;
    expr_fn *compiled;
    int rank; /* loops around a block, outermost first */
    int64_t loop[EXPR_DIMS_MAX];
    ptrdiff_t in_loop[EXPR_INPUTS_MAX][EXPR_DIMS_MAX], out_loop[EXPR_DIMS_MAX]; /* bytes */
    size_t rows, n;
    ptrdiff_t in_row[EXPR_INPUTS_MAX], out_row;
    size_t block_rows, block_n; /* what is given to a thread at once */
};

/* Sets loops, rows and columns; false when an operand is neither dense nor constant along the columns. */
bool expr_lay_out(struct expr_step *d, const struct fast_shape *y, enum cpu_layout layout,
                  const struct fast_shape *shapes, const enum cpu_layout *layouts);
/* How a step is called in descriptions. */
const char *expr_step_impl(const struct expr_step *d);
extern const struct cpu_step_class fast_elementwise_class;

#endif
