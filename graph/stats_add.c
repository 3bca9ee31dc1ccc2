/* A sample's values in one walk: extremes, moments and bins, by blocks that stay in the first-level cache.
 * Sums run in LANES lanes, element i in lane i % LANES, and lanes are added in order, whatever the
 * instruction set. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/stats_impl.h"

enum {
    HALF = MLO_HIST_BINS / 2,
    LANES = 8,
    BLOCK = 1024,
    COPIES = 4, /* of each bin: neighbours are often equal, and each count would wait for the one before */
    PIECE = 1 << 28 /* values that cannot overflow a copy */
};

typedef float floats __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));
typedef int32_t ints __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(sizeof(int32_t))));
typedef float quad __attribute__((vector_size(LANES / 2 * sizeof(float)), aligned(sizeof(float))));
typedef double doubles __attribute__((vector_size(LANES / 2 * sizeof(double)), aligned(sizeof(double))));

/* What one sample gives. */
struct part {
    double sum[LANES], sum_sq[LANES];
    float low, high; /* of finite values */
    uint64_t finite, nan_count, inf_count;
    int log2_width;
    uint32_t (*bins)[COPIES];
};

struct kernel {
    /* Adds up a block without NaN and infinities, a multiple of LANES values; false: there are some, and
     * nothing has changed. */
    bool (*moments)(struct part *part, const float *values, size_t count);
    /* The bin of each value, times COPIES, plus the copy. */
    void (*places)(const float *values, size_t count, float scale, float width, int32_t *out);
};

/* a where the mask is all ones, b where it is zero. (A function would have vectors for arguments.) */
#define CHOSEN(mask, a, b) ((floats)(((ints)(a) & (ints)(mask)) | ((ints)(b) & ~(ints)(mask))))

static inline __attribute__((always_inline)) bool moments(struct part *p, const float *values, size_t count)
{
    floats low = {0}, high, bad = {0};
    doubles sum[2], sum_sq[2];
    low += INFINITY;
    high = -low;
    memcpy(sum, p->sum, sizeof sum);
    memcpy(sum_sq, p->sum_sq, sizeof sum_sq);
    for (size_t i = 0; i < count; i += LANES) {
        floats v = *(const floats *)(values + i);
        low = CHOSEN(v < low, v, low);
        high = CHOSEN(v > high, v, high);
        bad += v - v; /* NaN for NaN and infinities */
        for (int h = 0; h < 2; h++) {
            doubles d = __builtin_convertvector(*(const quad *)(values + i + h * (LANES / 2)), doubles);
            sum[h] += d;
            sum_sq[h] += d * d; /* exact products: fused or not, the same bits */
        }
    }
    for (int l = 0; l < LANES; l++)
        if (bad[l] != 0)
            return false;
    for (int l = 0; l < LANES; l++) {
        p->low = low[l] < p->low ? low[l] : p->low;
        p->high = high[l] > p->high ? high[l] : p->high;
    }
    memcpy(p->sum, sum, sizeof sum);
    memcpy(p->sum_sq, sum_sq, sizeof sum_sq);
    p->finite += count;
    return true;
}

/* A float times a power of two is exact; only what underflows to zero loses its sign, which the comparison
 * sees. Multiples of the width are exact, too. */
static inline __attribute__((always_inline)) void places(const float *values, size_t count, float scale,
                                                         float width, int32_t *out)
{
    static const ints copy = {0, 1, 2, 3, 0, 1, 2, 3};
    for (size_t i = 0; i < count; i += LANES) {
        floats v = *(const floats *)(values + i);
        ints bin = __builtin_convertvector(v * scale, ints);
        bin += (ints)(v < __builtin_convertvector(bin, floats) * width); /* towards zero becomes down */
        *(ints *)(out + i) = (bin + HALF) * COPIES + copy;
    }
}

static bool moments_plain(struct part *p, const float *values, size_t count)
{
    return moments(p, values, count);
}
static void places_plain(const float *values, size_t count, float scale, float width, int32_t *out)
{
    places(values, count, scale, width, out);
}
static const struct kernel plain = {moments_plain, places_plain};

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static bool moments_avx2(struct part *p, const float *values,
                                                             size_t count)
{
    return moments(p, values, count);
}
__attribute__((target("avx2,fma"))) static void places_avx2(const float *values, size_t count, float scale,
                                                            float width, int32_t *out)
{
    places(values, count, scale, width, out);
}
static const struct kernel avx2 = {moments_avx2, places_avx2};
#endif

static const struct kernel *kernel(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &avx2;
#endif
    return &plain;
}

/* The same for any values and any number of them. */
static void moments_each(struct part *p, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float v = values[i];
        if (isnan(v)) {
            p->nan_count++;
        } else if (isinf(v)) {
            p->inf_count++;
        } else {
            p->low = v < p->low ? v : p->low;
            p->high = v > p->high ? v : p->high;
            p->sum[i % LANES] += v;
            p->sum_sq[i % LANES] += (double)v * v;
            p->finite++;
        }
    }
}

static void widen(struct part *p, int log2_width)
{
    int shift = log2_width - p->log2_width;
    if (shift <= 0)
        return;
    p->log2_width = log2_width;
    if (!p->finite)
        return;
    shift = MLO_MIN(shift, 12); /* all of a half is in its innermost bin by then */
    for (int k = 0; k < HALF; k++)
        for (int c = 0; c < COPIES; c++) {
            uint32_t positive = p->bins[HALF + k][c], negative = p->bins[HALF - 1 - k][c];
            p->bins[HALF + k][c] = p->bins[HALF - 1 - k][c] = 0;
            p->bins[HALF + (k >> shift)][c] += positive;
            p->bins[HALF - 1 - (k >> shift)][c] += negative;
        }
}

/* Adds the block's values, which have been added up, to bins that are wide enough. */
static void count_block(struct part *p, const struct kernel *k, const float *values, size_t count, bool clean)
{
    /* Of widths in this range both the width and its inverse are floats, and multiples are not denormal. */
    if (clean && p->log2_width > -100 && p->log2_width < 100) {
        int32_t at[BLOCK];
        k->places(values, count, ldexpf(1, -p->log2_width), ldexpf(1, p->log2_width), at);
        uint32_t *flat = p->bins[0];
        for (size_t i = 0; i < count; i++)
            flat[at[i]]++;
        return;
    }
    double scale = ldexp(1, -p->log2_width);
    for (size_t i = 0; i < count; i++)
        if (isfinite(values[i]))
            p->bins[HALF + (int)floor(values[i] * scale)][i % COPIES]++;
}

static void take_values(struct part *p, const struct kernel *k, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t here = MLO_MIN((size_t)BLOCK, count - i);
        uint64_t before = p->finite;
        bool clean = here % LANES == 0 && k->moments(p, values + i, here);
        if (!clean)
            moments_each(p, values + i, here);
        if (p->finite == before)
            continue;
        uint64_t after = p->finite;
        p->finite = before; /* whose bins are there to be widened */
        widen(p, MLO_MAX(mlo_stats_width(p->low), mlo_stats_width(p->high)));
        p->finite = after;
        count_block(p, k, values + i, here, clean);
    }
}

/* --- parts into the whole ---------------------------------------------------------------------- */

struct work {
    struct part *parts;
    const struct kernel *kernel;
    const float *values;
    size_t count;
};

static void take_parts(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct work *w = arg;
    for (size_t s = begin; s < end; s++)
        take_values(&w->parts[s], w->kernel, w->values + s * w->count, w->count);
}

static double in_order(const double lanes[LANES])
{
    double sum = lanes[0];
    for (int l = 1; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

/* Adds a sample, and empties its bins. */
static enum mlo_status add_part(struct mlo_tensor_stats *t, struct part *p, struct mlo_error *err)
{
    double numbers[MLO_SUMS_TENSOR] = {in_order(p->sum), in_order(p->sum_sq)};
    if (p->finite) {
        mlo_stats_widen(t, p->log2_width);
        for (int b = 0; b < MLO_HIST_BINS; b++) {
            uint64_t here = 0;
            for (int c = 0; c < COPIES; c++)
                here += p->bins[b][c];
            if (here)
                t->bins[b] += here;
        }
        t->min = t->count && t->min <= p->low ? t->min : p->low + 0.0f; /* -0 and 0 are one value */
        t->max = t->count && t->max >= p->high ? t->max : p->high + 0.0f;
        numbers[2] = MLO_STATS_EMA * (double)p->low;
        numbers[3] = MLO_STATS_EMA * (double)p->high;
        numbers[4] = MLO_STATS_EMA;
    }
    t->count += p->finite;
    t->nan_count += p->nan_count;
    t->inf_count += p->inf_count;
    t->samples++;
    return mlo_sums_add(&t->sums, t->next++, 0, numbers, err);
}

static void start_part(struct part *p, const struct mlo_tensor_stats *t)
{
    uint32_t(*bins)[COPIES] = p->bins;
    memset(bins, 0, MLO_HIST_BINS * sizeof *bins);
    *p = (struct part){.low = INFINITY, .high = -INFINITY, .bins = bins};
    p->log2_width = t->count ? t->log2_width : MLO_STATS_WIDTH_MIN; /* it is to be that wide anyway */
}

enum mlo_status mlo_tensor_stats_add_all(struct mlo_tensor_stats *t, const float *values, size_t count,
                                         size_t samples, struct mlo_pool *pool, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (!t->bins)
        return mlo_error_set(err, MLO_EINVAL, "statistics of '%s' have no histogram", t->name ? t->name : "");
    if (count > PIECE)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a sample of '%s' has %zu elements; %d are the most",
                             t->name ? t->name : "", count, PIECE);
    /* With a pool as many samples at once as it has threads, else one after the other. */
    size_t at_once = MLO_MIN(pool ? (size_t)mlo_pool_threads(pool) : 1, samples);
    struct part *parts = calloc(at_once + 1, sizeof *parts);
    uint32_t(*bins)[COPIES] = malloc((at_once + 1) * MLO_HIST_BINS * sizeof *bins);
    if (!parts || !bins) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t s = 0; s < samples; s += at_once) {
        size_t here = MLO_MIN(at_once, samples - s);
        struct work work = {parts, kernel(), values + s * count, count};
        for (size_t i = 0; i < here; i++) {
            parts[i].bins = bins + i * MLO_HIST_BINS;
            start_part(&parts[i], t);
        }
        mlo_pool_run(here > 1 ? pool : NULL, here, 1, take_parts, &work);
        for (size_t i = 0; i < here; i++) {
            /* all of the values of a part are in bins of the whole's width by now, or of a wider one */
            if (parts[i].finite)
                widen(&parts[i], t->count ? t->log2_width : MLO_STATS_WIDTH_MIN);
            MLO_TRY(add_part(t, &parts[i], err));
        }
    }
    mlo_tensor_stats_total(t);
out:
    free(parts);
    free(bins);
    return status;
}

enum mlo_status mlo_tensor_stats_add(struct mlo_tensor_stats *t, const float *values, size_t count,
                                     struct mlo_error *err)
{
    return mlo_tensor_stats_add_all(t, values, count, 1, NULL, err);
}
