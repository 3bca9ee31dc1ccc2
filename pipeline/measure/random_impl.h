/* A small seeded generator: xoshiro256** by Blackman and Vigna (2018), its state filled by SplitMix64. The
 * same seed gives the same numbers on every machine. Not for secrets. */
#ifndef MLO_MEASURE_RANDOM_IMPL_H
#define MLO_MEASURE_RANDOM_IMPL_H

#include <stdint.h>

struct mlo_rng {
    uint64_t s[4];
};

void mlo_rng_seed(struct mlo_rng *rng, uint64_t seed);
uint64_t mlo_rng_next(struct mlo_rng *rng);
/* Uniform in [0, bound): the high half of a 64x64 bit product, whose bias (below bound / 2^64) is of no
 * account for resampling. */
uint64_t mlo_rng_below(struct mlo_rng *rng, uint64_t bound);
/* Uniform in [0, 1), a multiple of 2^-53. */
double mlo_rng_unit(struct mlo_rng *rng);

#endif
