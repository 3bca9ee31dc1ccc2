/* Scaled dot product attention, for the ops of several domains. */
#ifndef MLO_GRAPH_OPS_ATTENTION_IMPL_H
#define MLO_GRAPH_OPS_ATTENTION_IMPL_H

#include "graph/ops/ops_impl.h"

/* q: batch x heads x q_length x size; k and v: batch x kv_heads x kv_length x (size, v_size); a group of
 * heads / kv_heads heads shares one of k and v. */
struct mlo_attention {
    size_t batch, heads, kv_heads, q_length, kv_length, size, v_size;
    double scale, softcap; /* softcap 0: none */
};

/* What is added to a score; -INFINITY hides the key. */
typedef double mlo_attention_bias_fn(void *arg, size_t batch, size_t head, size_t query, size_t key);

/* y: batch x heads x q_length x v_size. scores (may be NULL): batch x heads x q_length x kv_length, at the
 * stage that `mode` names: 0 products, 1 after softcap, 2 with bias, 3 after softmax. A query that sees no
 * key gives zeros. */
MLO_MUST_USE enum mlo_status mlo_attention_run(const struct mlo_attention *a, const double *q,
                                               const double *k, const double *v, mlo_attention_bias_fn *bias,
                                               void *arg, double *y, double *scores, int mode,
                                               struct mlo_error *err);

#endif
