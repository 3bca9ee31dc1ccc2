/* What the runtimes that a quantized model is made for want of it, as data: one row each. Private to passes/.
 */
#ifndef MLO_PASSES_TARGETS_H
#define MLO_PASSES_TARGETS_H

#include "graph/graph.h"

/* What a runtime makes of an op whose inputs are integers behind DequantizeLinear. */
enum mlo_target_rule {
    MLO_RULE_FLOAT = '-',        /* nothing: it computes in float, and nothing is quantized for it */
    MLO_RULE_WEIGHTED = 'w',     /* by constant weights, in integers: input 0 is wanted */
    MLO_RULE_WEIGHTED_OUT = 'o', /* the same, but only where a QuantizeLinear is the one that reads it */
    MLO_RULE_PRODUCT = 'p',      /* like w, and a product of two activations too: both are wanted */
    MLO_RULE_OWN = 'i',    /* where its output is wanted, so are its inputs, each with its own parameters */
    MLO_RULE_UNITED = 'u', /* the same, with the parameters of the output */
    MLO_RULE_FUSED = 'a',  /* an activation that fuses into the node before it; elsewhere like `i` */
};

struct mlo_target {
    const char *name;
    enum mlo_dtype activations; /* MLO_UINT8 or MLO_INT8; MLO_FLOAT8E4M3FN: weights too */
    bool symmetric;             /* activations have their zero point in the middle */
    bool per_channel;           /* weights: one scale per output channel */
    bool reduce_range; /* weights in 7 bits, because sums of two products saturate at 16 bits there */
    bool skip_only;    /* of a residual Add, only the input that is not being accumulated is integer */
    bool float_bias;   /* biases stay float32; else int32 behind DequantizeLinear */
    bool apart;        /* what stays in float reads the value from before the pair; else only the pair reads
                        * it, so that the node that makes it can fuse with its QuantizeLinear */
    bool clip_inside;  /* a range narrower than its type ends in a Clip of integers inside the pair: one of
                        * floats before it would keep the node before from fusing */
    bool half;         /* it computes in float16 as such, in about half of float32's time */
    const char *form;  /* qdq or qoperator */
    const char *only;  /* what the runtime takes, for a note when options ask for something else; or NULL */
    const char *description;
};

const struct mlo_target *mlo_target_table(size_t *count);
/* NULL: there is none of that name. */
const struct mlo_target *mlo_target_find(const char *name);
/* NULL-terminated, for options. */
extern const char *const mlo_target_names[];

/* The rule for a node on a target. Ops that only move values (MLO_OP_RANGE_KEEP) are MLO_RULE_UNITED
 * everywhere; an op without a row stays in float. */
enum mlo_target_rule mlo_target_rule(const struct mlo_target *target, const struct mlo_node *node);

#endif
