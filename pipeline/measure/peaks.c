/* The most that this machine does: multiply-adds from registers, and reading from each level of memory. */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/measure.h"

enum { CHAINS = 12, REPEATS = 32 };
/* Shorter than a time slice, so that some trial is not interrupted on a machine that others use. */
static const double TRIAL_SECONDS = 0.0015;

/* Does `rounds` rounds of work; what it returns only keeps the compiler from dropping it. */
typedef float work_fn(const void *memory, size_t bytes, uint64_t rounds);

/* One chain would wait for itself: a multiply-add takes four cycles, and two or more start in each. Named
 * variables, since a compiler keeps an array that assembly touches in memory. */
#define EACH_8(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7)
#define EACH_12(x) EACH_8(x) x(8) x(9) x(10) x(11)
#define KEEP(variable) __asm__ volatile("" : "+v"(variable))
#define DECLARE(i) acc##i = begin,
#define SUM(i) total += acc##i;
#define STEP(i)                                                                                              \
    acc##i = ONE_STEP(acc##i);                                                                               \
    KEEP(acc##i);

#define CHAINS_OF(type, first)                                                                               \
    const type begin = first;                                                                                \
    type EACH_12(DECLARE) total = begin;                                                                     \
    MLO_UNUSED(memory);                                                                                      \
    MLO_UNUSED(bytes);                                                                                       \
    for (uint64_t r = 0; r < rounds; r++) {                                                                  \
        EACH_12(STEP)                                                                                        \
    }                                                                                                        \
    EACH_12(SUM)

#define ONE_STEP(acc) _mm256_fmadd_ps(acc, a, b)
__attribute__((target("avx2,fma"))) static float f32_avx2(const void *memory, size_t bytes, uint64_t rounds)
{
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
    CHAINS_OF(__m256, b)
    return _mm256_cvtss_f32(total);
}
#undef ONE_STEP

#define ONE_STEP(acc) _mm512_fmadd_ps(acc, a, b)
__attribute__((target("avx512f"))) static float f32_avx512(const void *memory, size_t bytes, uint64_t rounds)
{
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    CHAINS_OF(__m512, b)
    return _mm512_cvtss_f32(total);
}
#undef ONE_STEP

/* Three instructions, as a kernel without VNNI has them. */
__attribute__((target("avx2"))) static inline __m256i int8_step(__m256i acc, __m256i x, __m256i w)
{
    KEEP(x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(x, w), _mm256_set1_epi16(1)));
}

#define ONE_STEP(acc) int8_step(acc, a, b)
__attribute__((target("avx2"))) static float int8_avx2(const void *memory, size_t bytes, uint64_t rounds)
{
    const __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
    CHAINS_OF(__m256i, a)
    return (float)_mm256_extract_epi32(total, 0);
}
#undef ONE_STEP

#define ONE_STEP(acc) _mm512_dpbusd_epi32(acc, a, b)
__attribute__((target("avx512f,avx512vnni"))) static float int8_vnni(const void *memory, size_t bytes,
                                                                     uint64_t rounds)
{
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    CHAINS_OF(__m512i, a)
    return (float)_mm_cvtsi128_si32(_mm512_castsi512_si128(total));
}
#undef ONE_STEP

#define READ(i)                                                                                              \
    acc##i = LOAD(acc##i, p + at + i * sizeof begin);                                                        \
    KEEP(acc##i);
#define READS_OF(type, zero)                                                                                 \
    const char *p = memory;                                                                                  \
    const type begin = zero;                                                                                 \
    type EACH_8(DECLARE) total = begin;                                                                      \
    for (uint64_t r = 0; r < rounds; r++)                                                                    \
        for (size_t at = 0; at + 8 * sizeof begin <= bytes; at += 8 * sizeof begin) {                        \
            EACH_8(READ)                                                                                     \
        }                                                                                                    \
    EACH_8(SUM)

#define LOAD(acc, at) _mm256_or_si256(acc, _mm256_load_si256((const void *)(at)))
__attribute__((target("avx2"))) static float read_avx2(const void *memory, size_t bytes, uint64_t rounds)
{
    READS_OF(__m256i, _mm256_setzero_si256())
    return (float)_mm256_extract_epi32(total, 0);
}
#undef LOAD

#define LOAD(acc, at) _mm512_or_si512(acc, _mm512_load_si512(at))
__attribute__((target("avx512f"))) static float read_avx512(const void *memory, size_t bytes, uint64_t rounds)
{
    READS_OF(__m512i, _mm512_setzero_si512())
    return (float)_mm_cvtsi128_si32(_mm512_castsi512_si128(total));
}
#undef LOAD

/* What the engine would use: operations a step of one chain, per instruction set. */
static const struct {
    work_fn *f32, *int8, *read;
    double f32_ops, int8_ops;
} kernels[] = {
    [MLO_ISA_AVX2] = {f32_avx2, int8_avx2, read_avx2, 2 * 8, 2 * 32},
    [MLO_ISA_AVX512] = {f32_avx512, int8_avx2, read_avx512, 2 * 16, 2 * 32},
    [MLO_ISA_AVX512_VNNI] = {f32_avx512, int8_vnni, read_avx512, 2 * 16, 2 * 64},
    [MLO_ISA_AVX512_FP16] = {f32_avx512, int8_vnni, read_avx512, 2 * 16, 2 * 64},
};

struct job {
    work_fn *work;
    char *memory;
    size_t bytes; /* of each thread */
    uint64_t rounds;
    float *sink;
};

static void run_job(void *arg, size_t begin, size_t end, unsigned worker)
{
    struct job *j = arg;
    MLO_UNUSED(worker);
    for (size_t i = begin; i < end; i++)
        j->sink[i * 16] = j->work(j->memory ? j->memory + i * j->bytes : NULL, j->bytes, j->rounds);
}

/* Seconds a round, of all threads at once: the best of a few trials, each long enough for the clock. */
static double time_rounds(struct mlo_pool *pool, struct job *j)
{
    unsigned threads = mlo_pool_threads(pool);
    double best = 0;
    j->rounds = 1;
    for (int trial = 0; trial < REPEATS;) {
        uint64_t begin = mlo_clock_ns();
        mlo_pool_run(pool, threads, 1, run_job, j);
        double took = (double)(mlo_clock_ns() - begin) * 1e-9;
        if (took < TRIAL_SECONDS / 2 && j->rounds < UINT64_C(1) << 40) {
            double times = took > 0 ? TRIAL_SECONDS / took : 1000;
            j->rounds = (uint64_t)((double)j->rounds * MLO_MIN(MLO_MAX(times, 2.0), 1000.0));
            continue;
        }
        double each = took / (double)j->rounds;
        best = trial == 0 ? each : MLO_MIN(best, each);
        trial++;
    }
    return best;
}

/* Size of the data cache of that level that the first CPU uses. (sysconf adds up those of all sockets' parts
 * on some machines.) */
static size_t cache_bytes(int level, size_t fallback)
{
    for (int i = 0; i < 8; i++) {
        char path[96];
        int found = 0;
        unsigned long kib = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        FILE *file = fopen(path, "re");
        if (!file)
            break;
        bool ok = fscanf(file, "%d", &found) == 1 && found == level;
        fclose(file);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (!ok || !(file = fopen(path, "re")))
            continue;
        ok = fscanf(file, "%luK", &kib) == 1 && kib;
        fclose(file);
        if (ok)
            return (size_t)kib << 10;
    }
    return fallback;
}

enum mlo_status mlo_peaks_measure(unsigned threads, struct mlo_peaks *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    enum mlo_isa isa = mlo_isa_current();
    size_t l2 = cache_bytes(2, 512 << 10), l3 = cache_bytes(3, 8 << 20);
    threads = MLO_MAX(threads, 1u);
    *out = (struct mlo_peaks){.threads = threads};
    if ((size_t)isa >= MLO_COUNT(kernels) || !kernels[isa].f32)
        return mlo_error_set(err, MLO_EUNAVAILABLE, "peaks are measured with AVX2 or better; this is '%s'",
                             mlo_isa_name(isa));
    /* A level is read by half, so that it surely holds it, and a third one that other machines share by no
     * more than models have beside each other (a few times the second level); memory by what no cache holds.
     */
    size_t far = MLO_MIN(MLO_MAX(3 * l3, (size_t)64 << 20), (size_t)384 << 20);
    size_t per_thread[MLO_PEAK_LEVELS] = {l2 / 2, MLO_MIN(MLO_MIN(l3 / 2, far) / threads, 8 * l2),
                                          far / threads};
    struct job job = {.sink = calloc((size_t)threads * 16, sizeof *job.sink)};
    struct mlo_pool *pool = mlo_pool_new(threads);
    char *memory = NULL;
    size_t most = MLO_MAX(far, threads * (l2 / 2)) + 4096;
    if (!job.sink || !pool || posix_memalign((void **)&memory, 4096, most) != 0) {
        memory = NULL;
        status = mlo_error_nomem(err);
        goto out;
    }
    memset(memory, 1, most);
    job.work = kernels[isa].f32;
    out->f32_ops = threads * CHAINS * kernels[isa].f32_ops / time_rounds(pool, &job);
    job.work = kernels[isa].int8;
    out->int8_ops = threads * CHAINS * kernels[isa].int8_ops / time_rounds(pool, &job);
    static const char *const names[] = {"L2", "L3", "memory"};
    const size_t holds[] = {threads * l2, MLO_MAX(l3, threads * l2), SIZE_MAX};
    for (int i = 0; i < MLO_PEAK_LEVELS; i++) {
        job.work = kernels[isa].read;
        job.memory = memory;
        job.bytes = per_thread[i] & ~(size_t)4095;
        out->levels[i].name = names[i];
        out->levels[i].bytes = holds[i];
        out->levels[i].bytes_per_s = (double)threads * (double)job.bytes / time_rounds(pool, &job);
    }
out:
    free(memory);
    free(job.sink);
    mlo_pool_free(pool);
    return status;
}
