#include "pipeline/measure/random_impl.h"

static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

void mlo_rng_seed(struct mlo_rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += 0x9e3779b97f4a7c15u;
        uint64_t z = seed;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        rng->s[i] = z ^ z >> 31;
    }
}

uint64_t mlo_rng_next(struct mlo_rng *rng)
{
    uint64_t *s = rng->s, result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

uint64_t mlo_rng_below(struct mlo_rng *rng, uint64_t bound)
{
    return (uint64_t)((unsigned __int128)mlo_rng_next(rng) * bound >> 64);
}

double mlo_rng_unit(struct mlo_rng *rng)
{
    return (double)(mlo_rng_next(rng) >> 11) * 0x1p-53;
}
