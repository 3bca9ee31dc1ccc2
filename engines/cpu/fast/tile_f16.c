/* FP16: whether this machine has it and computes what it must, and values as halves. */
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/tile_f16_impl.h"

static const char *const half_names[] = {[CPU_HALF_NONE] = "no",
                                         [CPU_HALF_NATIVE] = "native",
                                         [CPU_HALF_EMULATED] = "emulated",
                                         [CPU_HALF_FIXED] = "fixed-point"};

const char *cpu_half_name(enum cpu_half half)
{
    return (size_t)half < MLO_COUNT(half_names) ? half_names[half] : "unknown";
}

const struct tile_kernels *tile_kernels_f16(enum cpu_half half)
{
    static const struct tile_kernels *const kernels[] = {
        [CPU_HALF_NATIVE] = &tile_f16_native, [CPU_HALF_EMULATED] = &tile_f16_emulated};
    return (size_t)half < MLO_COUNT(kernels) ? kernels[half] : NULL;
}

/* --- known answers ------------------------------------------------------------------------------------ */

enum { CHECK_DEPTH = 45, CHECK_TAPS = 3, CHECK_WIDTH = 32, CHECK_ROWS = 14 };

/* Exponents of the halves, and how many groups of a tap are summed. */
static const struct {
    uint32_t least, most;
    size_t depth;
} kinds[] = {
    {5, 16, CHECK_DEPTH}, /* numbers */
    {0, 6, CHECK_DEPTH},  /* small ones, whose products are subnormal */
    {0, 31, 2},           /* all there are */
};

struct check {
    uint16_t x[CHECK_ROWS * CHECK_TAPS * CHECK_DEPTH * 2], w[CHECK_TAPS * CHECK_DEPTH * CHECK_WIDTH * 2];
    float y[2][CHECK_ROWS * CHECK_WIDTH];
};

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

static void fill(uint16_t *out, size_t count, size_t kind, uint32_t *seed)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t range = kinds[kind].most - kinds[kind].least + 1;
        uint32_t exponent = kinds[kind].least + next_random(seed) % range;
        out[i] = (uint16_t)((next_random(seed) & 0x83ff) | exponent << 10);
    }
}

static bool same(const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(a[i] != a[i] && b[i] != b[i]))
            return false;
    return true;
}

bool tile_f16_agrees(const struct tile_kernels *kernels)
{
    static const float zeros[CHECK_WIDTH];
    const struct tile_kernels *const both[] = {kernels, &tile_f16_emulated};
    const ptrdiff_t row = CHECK_TAPS * CHECK_DEPTH * 4, taps[] = {0, CHECK_DEPTH * 4, 2 * CHECK_DEPTH * 4};
    struct check *c = cpu_aligned(sizeof *c);
    float scales[CHECK_WIDTH];
    uint32_t seed = 1;
    bool agrees = c != NULL;
    for (int i = 0; i < CHECK_WIDTH; i++)
        scales[i] = 0.5f;
    struct tile_epilogue e = {.bias = zeros,
                              .scale = scales,
                              .unit = 0.25f,
                              .low = -INFINITY,
                              .high = INFINITY,
                              .residual_dtype = MLO_DTYPE_NONE,
                              .y_dtype = MLO_FLOAT32};
    for (size_t kind = 0; kind < MLO_COUNT(kinds) && agrees; kind++) {
        fill(c->x, MLO_COUNT(c->x), kind, &seed);
        fill(c->w, MLO_COUNT(c->w), kind, &seed);
        for (int width = 0; width < both[0]->width_count && agrees; width++)
            for (int rows = 1; rows <= CHECK_ROWS && agrees; rows++) {
                for (int k = 0; k < 2; k++) {
                    const char *x = (const char *)c->x;
                    struct tile t = {.x0 = x,
                                     .x1 = x + (rows + 1) / 2 * row,
                                     .x_stride = (size_t)row,
                                     .taps = taps,
                                     .tap_count = CHECK_TAPS,
                                     .depth = kinds[kind].depth,
                                     .panel = c->w,
                                     .y = (char *)c->y[k],
                                     .y_stride = CHECK_WIDTH * sizeof(float),
                                     .columns = both[0]->widths[width],
                                     .epilogue = &e,
                                     .ahead = (const char *)c->w,
                                     .ahead_step = 64};
                    both[k]->run[width][rows - 1](&t);
                }
                agrees = same(c->y[0], c->y[1], MLO_COUNT(c->y[0]));
            }
    }
    free(c);
    return agrees;
}

static bool native_agrees;
static pthread_once_t native_checked = PTHREAD_ONCE_INIT;

static void check_native(void)
{
    native_agrees = tile_f16_agrees(&tile_f16_native);
}

enum cpu_half cpu_half_current(void)
{
    enum mlo_fp16 asked = mlo_fp16_asked();
    enum mlo_isa isa = mlo_isa_current();
    if (asked == MLO_FP16_EMULATE)
        return isa >= MLO_ISA_AVX2 && fast_has_f16c() ? CPU_HALF_EMULATED : CPU_HALF_NONE;
    if (asked == MLO_FP16_FIXED)
        return isa >= MLO_ISA_AVX2 ? CPU_HALF_FIXED : CPU_HALF_NONE;
    if (asked == MLO_FP16_OFF || isa < MLO_ISA_AVX512_VNNI)
        return CPU_HALF_NONE;
    if (asked != MLO_FP16_NATIVE || isa < MLO_ISA_AVX512_FP16) /* no slower, and nearer to float32 */
        return CPU_HALF_FIXED;
    pthread_once(&native_checked, check_native);
    return native_agrees ? CPU_HALF_NATIVE : CPU_HALF_FIXED;
}

/* --- values ------------------------------------------------------------------------------------------- */

#define F16C __attribute__((target("avx2,f16c")))

F16C uint32_t tile_f16_largest(const float *x, size_t n)
{
    const __m256i sign = _mm256_set1_epi32(INT32_MAX), end = _mm256_set1_epi32(0x7f800000);
    __m256i most = _mm256_setzero_si256();
    uint32_t lanes[8], largest = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i v = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), sign);
        most = _mm256_max_epi32(most, _mm256_and_si256(v, _mm256_cmpgt_epi32(end, v)));
    }
    _mm256_storeu_si256((__m256i *)(void *)lanes, most);
    for (int k = 0; k < 8; k++)
        largest = MLO_MAX(largest, lanes[k]);
    for (; i < n; i++) {
        uint32_t v;
        memcpy(&v, x + i, sizeof v);
        v &= INT32_MAX;
        largest = v < 0x7f800000 ? MLO_MAX(largest, v) : largest;
    }
    return largest;
}

float tile_f16_scale(uint32_t largest)
{
    enum { TOP = 9, MOST = 126 }; /* of the exponent */
    float value;
    int exponent;
    if (!largest)
        return 1.0f;
    memcpy(&value, &largest, sizeof value);
    frexpf(value, &exponent); /* value in [2^(exponent - 1), 2^exponent) */
    return ldexpf(1.0f, MLO_MIN(TOP + 1 - exponent, MOST));
}

F16C static void halves(const float *x, size_t n, float scale, uint16_t *out)
{
    const __m256 factor = _mm256_set1_ps(scale);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(
            (__m128i *)(void *)(out + i),
            _mm256_cvtps_ph(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        out[i] = _cvtss_sh(x[i] * scale, _MM_FROUND_TO_NEAREST_INT);
}

void tile_f16_rows(const float *x, size_t rows, size_t channels, size_t padded, float scale, uint16_t *out)
{
    if (channels == padded) {
        halves(x, rows * channels, scale, out);
        return;
    }
    for (size_t i = 0; i < rows; i++, x += channels, out += padded) {
        halves(x, channels, scale, out);
        memset(out + channels, 0, (padded - channels) * sizeof *out);
    }
}
