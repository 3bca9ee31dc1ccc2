/* How the op table computes one element: for engines that promise its bits and compute many at a time.
 *
 * Floats are computed in double and rounded once, so another way to the same double, or near enough to it
 * that no middle of two floats lies between, gives the same bits. */
#ifndef MLO_GRAPH_SCALAR_H
#define MLO_GRAPH_SCALAR_H

#include "graph/model.h"

/* An element of a float tensor becomes (float)fn((double)x, a, b). */
typedef double mlo_scalar_fn(double x, double a, double b);
struct mlo_scalar {
    mlo_scalar_fn *fn;
    double a, b;
};
/* That of a node of one of the elementwise ops of one operand; false: it is none of them. */
bool mlo_node_scalar(const struct mlo_node *node, struct mlo_scalar *out);

/* e^x from additions, multiplications and divisions only: its bits depend on no machine. Relative error below
 * 1e-13. */
double mlo_math_exp(double x);

#endif
