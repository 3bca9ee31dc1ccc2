/* Private to the fast numerics: 3x3 convolutions of stride 1 in float32 by F(2x2, 3x3) and F(4x4, 3x3) of
 * Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015: 16 products for 4 outputs
 * instead of 36, and 36 for 16 instead of 144.
 *
 * F(4x4, 3x3) evaluates at 0, +-3/4, +-3/2 and infinity instead of the usual 0, +-1, +-2: its largest error
 * is a third then, its root mean square a half (on choosing points: Barabasz et al., "Error Analysis and
 * Improving the Accuracy of Winograd Convolution for Deep Neural Networks", 2020). The factors of x and of
 * sums are exact. */
#ifndef MLO_ENGINES_CPU_FAST_WINOGRAD_IMPL_H
#define MLO_ENGINES_CPU_FAST_WINOGRAD_IMPL_H

#include "engines/cpu/fast/tile_impl.h"

/* The points of F(4x4, 3x3): +-A and +-B. */
#define WINOGRAD_A 0.75f
#define WINOGRAD_B 1.5f

enum { WINOGRAD_PLANES_MAX = 36, WINOGRAD_OUTPUTS_MAX = 16 };

/* 4x4 (6x6) pixels of the source -> one row of each plane. Distances in floats. */
struct winograd_source {
    const float *inside; /* all pixels are there: the first; lines are `line` apart. Or NULL: */
    size_t line;
    const float *x[WINOGRAD_PLANES_MAX]; /* the pixels; NULL: padding */
    size_t channels;
    float *planes; /* of the tile, in the first plane */
    size_t plane;  /* from plane to plane */
};

/* One row of each plane -> up to 2x2 (4x4) pixels of the output. */
struct winograd_result {
    const float *planes;
    size_t plane, channels;
    const float *bias;
    float *y[WINOGRAD_OUTPUTS_MAX];              /* the pixels; NULL: outside of the output */
    const float *residual[WINOGRAD_OUTPUTS_MAX]; /* where y is; or all NULL */
    float low, high;
};

struct winograd_kernels {
    const char *name;
    void (*source)(const struct winograd_source *s);
    void (*result)(const struct winograd_result *r);
};
/* By form. */
enum winograd_form { WINOGRAD_2, WINOGRAD_4, WINOGRAD_FORMS };
extern const struct winograd_kernels winograd_avx2[WINOGRAD_FORMS], winograd_avx512[WINOGRAD_FORMS];

/* Where it is faster than the direct sums, by shape alone. */
bool winograd_supports(const struct mlo_plan *plan, const struct tile_product *p);
/* As tile_emit. */
MLO_MUST_USE enum mlo_status winograd_emit(struct mlo_plan *plan, const struct mlo_node *node,
                                           const struct tile_product *p, struct cpu_step **step,
                                           struct mlo_error *err);

#endif
