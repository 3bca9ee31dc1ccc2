/* Private to the invariant numerics: what is computed of a convolution's results while they are in the cache,
 * with the very bits that the nodes behind it give one after the other. */
#ifndef MLO_ENGINES_CPU_INVARIANT_POST_IMPL_H
#define MLO_ENGINES_CPU_INVARIANT_POST_IMPL_H

#include "engines/cpu/invariant/lanes_impl.h"

/* A function of one operand. */
struct inv_act {
    inv_unary_fn *many; /* NULL: between low and high */
    struct mlo_scalar exact;
    float low, high;
};
/* That of a node; false: it is none, or its bounds are not constant. */
bool inv_act_of(const struct inv_lanes *lanes, const struct mlo_node *node, struct inv_act *out);
/* x and y are apart. */
void inv_act_run(const struct inv_lanes *lanes, const struct inv_act *act, size_t n, const float *x,
                 float *y);

/* The channels of a BatchNormalization of constants over a value of these dims (free); NULL: it is no form
 * that is taken, or out of memory (*failed). */
struct inv_affine *inv_channels_of(const struct mlo_node *node, const int64_t *dims, bool *failed);

/* In this order, each where it is wanted. */
struct inv_post {
    const struct inv_lanes *lanes;
    struct inv_affine *channels;  /* or NULL; owned */
    const struct mlo_value *adds; /* a value that is there already and of the result's dims; or NULL */
    bool adds_left;               /* it is the sum's first operand */
    bool acts;
    struct inv_act act;
    /* The nodes, and the value that they end in. */
    const struct mlo_node *nodes[5];
    int node_count;
    struct mlo_value *result;
};
/* Follows the only readers of a convolution's result that nobody else sees. */
MLO_MUST_USE enum mlo_status inv_post_find(const struct mlo_plan *plan, const struct mlo_node *conv,
                                           const int64_t *dims, bool may_add, struct inv_post *out,
                                           struct mlo_error *err);

/* Finishes lines of n results, of the channels from the first on, and stores their pieces in planes of y;
 * what they are added to is in `adds` at the same places. Of `columns` of a line there are results. buffer:
 * twice as large as the lines; behind all of them a vector may be read. */
void inv_post_tile(const struct inv_post *post, size_t channel, size_t lines, size_t n, size_t columns,
                   const float *x, const struct inv_piece *pieces, int piece_count, const float *adds,
                   float *y, size_t plane, float *buffer);
/* Finishes n results of a channel, without the sum; x and y are apart. buffer: n floats. */
void inv_post_line(const struct inv_post *post, size_t channel, size_t n, const float *x, float *y,
                   float *buffer);
static inline bool inv_post_works(const struct inv_post *post)
{
    return post->channels || post->acts;
}

#endif
