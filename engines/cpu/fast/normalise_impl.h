/* Private to the fast numerics: rewrites of a plan's own copy of the model before lowering, so that the
 * lowerings see one form of each thing. Every rewrite keeps the results but for the rounding of real numbers.
 */
#ifndef MLO_ENGINES_CPU_FAST_NORMALISE_IMPL_H
#define MLO_ENGINES_CPU_FAST_NORMALISE_IMPL_H

#include "engines/cpu/fast/fast_impl.h"

/* A node that is being replaced: what it had, kept while new nodes take its place in front of `before`. */
struct norm_site {
    struct mlo_plan *plan;
    struct mlo_graph *graph;
    struct mlo_node *old, *before;
    struct mlo_value *const *in; /* its inputs and outputs, as they were */
    int in_count;
    struct mlo_value *const *out;
};

/* Takes the node out of the graph. false: out of memory. */
bool norm_begin(struct mlo_plan *plan, struct mlo_node *node, struct norm_site *site);
struct mlo_value *norm_in(const struct norm_site *site, int i); /* NULL when omitted */
/* A node in its place with one output (`out` NULL: a new value of that element type, shaped like `like`). All
 * of these answer NULL when out of memory, or when an operand is NULL that must be there. */
struct mlo_value *norm_add(struct norm_site *site, const char *op, const char *suffix,
                           struct mlo_value *const *in, int in_count, enum mlo_dtype dtype,
                           const struct mlo_value *like, struct mlo_value *out);
/* The node that norm_add made: its attributes are the old node's. */
void norm_share_attrs(const struct norm_site *site, struct mlo_node *node);
/* DequantizeLinear and QuantizeLinear with scalar parameters (zero may be NULL). */
struct mlo_value *norm_dequantize(struct norm_site *site, struct mlo_value *x, struct mlo_value *scale,
                                  struct mlo_value *zero);
struct mlo_value *norm_quantize(struct norm_site *site, struct mlo_value *x, struct mlo_value *scale,
                                struct mlo_value *zero, struct mlo_value *out);
/* A constant; takes the tensor over. */
struct mlo_value *norm_constant(struct norm_site *site, struct mlo_tensor *tensor);
/* DequantizeLinear of constant 8-bit weights with scales along `axis` (or one), as int8 with zero points 0
 * where each weight minus its zero point is one; else as they are. NULL: out of memory. */
struct mlo_value *norm_weights(struct norm_site *site, struct mlo_value *w, struct mlo_value *scale,
                               struct mlo_value *zero, int axis);
/* The tensor minus its zero points (one, or one along `axis`) as int8. *fits is false when a number is none.
 */
MLO_MUST_USE enum mlo_status norm_shift(const struct mlo_tensor *w, const struct mlo_tensor *zero, int axis,
                                        struct mlo_tensor *out, bool *fits, struct mlo_error *err);

/* --- the rewrites: each sets *done when it replaced the node
 * ------------------------------------------------ */

typedef enum mlo_status norm_fn(struct mlo_plan *plan, struct mlo_node *node, bool *done,
                                struct mlo_error *err);
norm_fn norm_bias, norm_constants, norm_dynamic, norm_index, norm_qlinear, norm_qdq_weights;

/* The whole graph: float16 and bfloat16 become float32; and the steps' precision afterwards. */
MLO_MUST_USE enum mlo_status norm_half(struct mlo_plan *plan, struct mlo_error *err);
MLO_MUST_USE enum mlo_status norm_label_half(struct mlo_plan *plan, struct mlo_error *err);

#endif
