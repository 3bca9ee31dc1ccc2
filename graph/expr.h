/* Symbolic integers: dims that are known by name, and what is computed of them.
 *
 * An expression is a polynomial with integer coefficients over atoms, kept as canonical text: terms by
 * falling degree, then by name ("batch*seq+12*batch+1"). Atoms are names, "(e)/n" (rounded down), "min(a,b)"
 * and "max(a,b)"; a name from a file that does not read as an expression is an atom too, in braces inside of
 * a larger expression. Equal text means equal value for every binding; the reverse holds for polynomials.
 * What gets too long becomes unknown. */
#ifndef MLO_GRAPH_EXPR_H
#define MLO_GRAPH_EXPR_H

#include "graph/model.h"

struct mlo_binding;

enum mlo_expr_kind { MLO_EXPR_UNKNOWN = 0, MLO_EXPR_NUMBER, MLO_EXPR_TEXT };
struct mlo_expr {
    enum mlo_expr_kind kind;
    int64_t number;
    const char *text;
};

/* The content of a small integer tensor, row by row, where some of it is symbolic. */
struct mlo_exprs {
    size_t count;
    struct mlo_expr e[];
};

struct mlo_expr mlo_expr_number(int64_t number);
struct mlo_expr mlo_expr_of_dim(struct mlo_dim dim);
/* A negative number is no dim: it becomes an unknown one. */
struct mlo_dim mlo_dim_of_expr(struct mlo_expr expr);
/* Whether both are known and the same. */
bool mlo_expr_same(struct mlo_expr a, struct mlo_expr b);

/* Texts are made in the arena. What overflows, or involves an unknown, is unknown. */
struct mlo_expr mlo_expr_add(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b);
struct mlo_expr mlo_expr_sub(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b);
struct mlo_expr mlo_expr_mul(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b);
/* Rounded down; a divisor that is no number must divide without remainder, else the result is unknown. */
struct mlo_expr mlo_expr_div(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b);
struct mlo_expr mlo_expr_min(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b);
struct mlo_expr mlo_expr_max(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b);
/* Whether `a` is "min(…,e)" of the expression `e`. */
bool mlo_expr_is_min_of(struct mlo_expr a, struct mlo_expr e);
/* Replaces bound names by their numbers. */
struct mlo_expr mlo_expr_bind(struct mlo_arena *arena, struct mlo_expr expr,
                              const struct mlo_binding *bindings, size_t count);

#endif
