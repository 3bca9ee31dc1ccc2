/* Requests per token: a bucket each that fills at the rate and holds BURST_S seconds of it. In this process
 * alone; the buckets that were used longest ago make room, and begin full again. */
#include <math.h>
#include <stdlib.h>

#include "api/http/http_impl.h"

enum { SETS = 256, WAYS = 4, BURST_S = 10 };

struct bucket {
    int64_t token; /* 0: empty */
    double level;
    uint64_t at_ns;
};

struct mlo_rate {
    pthread_mutex_t lock;
    double per_second;
    struct bucket buckets[SETS][WAYS];
};

enum mlo_status mlo_rate_new(unsigned per_second, struct mlo_rate **out, struct mlo_error *err)
{
    struct mlo_rate *rate = calloc(1, sizeof *rate);
    *out = rate;
    if (!rate)
        return mlo_error_nomem(err);
    pthread_mutex_init(&rate->lock, NULL);
    rate->per_second = per_second;
    return MLO_OK;
}

void mlo_rate_free(struct mlo_rate *rate)
{
    if (!rate)
        return;
    pthread_mutex_destroy(&rate->lock);
    free(rate);
}

/* The token's bucket, or the one of its set that was used longest ago. */
static struct bucket *bucket_of(struct mlo_rate *rate, int64_t token)
{
    struct bucket *set = rate->buckets[(uint64_t)token % SETS], *oldest = set;
    for (size_t i = 0; i < WAYS; i++) {
        if (set[i].token == token)
            return &set[i];
        if (set[i].at_ns < oldest->at_ns)
            oldest = &set[i];
    }
    return oldest;
}

bool mlo_rate_take(struct mlo_rate *rate, int64_t token, uint64_t now_ns, unsigned *wait_s)
{
    *wait_s = 0;
    if (!rate || rate->per_second <= 0)
        return true;
    pthread_mutex_lock(&rate->lock);
    struct bucket *bucket = bucket_of(rate, token);
    double most = rate->per_second * BURST_S;
    if (bucket->token != token)
        *bucket = (struct bucket){.token = token, .level = most, .at_ns = now_ns};
    if (now_ns > bucket->at_ns) { /* threads may come with an older time */
        bucket->level =
            fmin(most, bucket->level + (double)(now_ns - bucket->at_ns) * 1e-9 * rate->per_second);
        bucket->at_ns = now_ns;
    }
    bool may = bucket->level >= 1;
    if (may)
        bucket->level -= 1;
    else
        *wait_s = (unsigned)ceil((1 - bucket->level) / rate->per_second);
    pthread_mutex_unlock(&rate->lock);
    return may;
}
