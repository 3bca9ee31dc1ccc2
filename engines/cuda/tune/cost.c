/* What a step costs at least, and what a device can do: the roofline. Williams, Waterman, Patterson,
 * "Roofline", 2009. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/tune/tune.h"

/* --- what a step costs ---------------------------------------------------------------------------------- */

static double elements(const struct cuda_tensor *t)
{
    double n = 1;
    for (int i = 0; i < t->rank; i++) /* what is broadcast is there once */
        n *= t->strides[i] == 0 ? 1 : (double)t->dims[i];
    return n;
}

static double shape_size(const struct cuda_tensor *t)
{
    double n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= (double)t->dims[i];
    return n;
}

static double step_ops(const struct cuda_step *step)
{
    switch (step->kind) {
    case CUDA_STEP_CONV: {
        const struct cuda_conv *c = step->conv;
        double taps = 1;
        for (int i = 1; i < c->w.rank; i++) /* C/groups and the window */
            taps *= (double)c->w.dims[i];
        return 2 * shape_size(&c->y) * taps;
    }
    case CUDA_STEP_GEMM: {
        const struct cuda_gemm *g = step->gemm;
        return 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)MLO_MAX(g->batch, (int64_t)1);
    }
    case CUDA_STEP_ATTENTION: {
        const struct cuda_attention *a = step->attention;
        double keys = (double)a->k.dims[2], pairs = shape_size(&a->q) * keys;
        return 2 * pairs + 2 * shape_size(&a->o) * keys;
    }
    case CUDA_STEP_CHAIN: {
        double points = 1;
        if (!step->chain)
            return step->ops;
        for (int i = 0; i < step->chain->rank; i++)
            points *= (double)step->chain->dims[i];
        return points * step->chain->count;
    }
    case CUDA_STEP_KERNEL:
        if (!step->kernel)
            return step->ops;
        return step->node ? 2 * (double)mlo_node_macs(step->node) : 0;
    case CUDA_STEP_COPY:
        break;
    }
    return 0;
}

/* Tensor cores do the products; chains and own kernels compute in float32. */
static enum cuda_rate rate_of(const struct cuda_step *step)
{
    static const struct {
        const char *precision;
        enum cuda_rate rate;
    } rates[] = {{"int8", CUDA_RATE_INT8}, {"f16", CUDA_RATE_F16}, {"bf16", CUDA_RATE_BF16},
                 {"tf32", CUDA_RATE_TF32}, {"fp8", CUDA_RATE_FP8}, {"f8", CUDA_RATE_FP8}};
    if (step->kind != CUDA_STEP_CONV && step->kind != CUDA_STEP_GEMM && step->kind != CUDA_STEP_ATTENTION)
        return CUDA_RATE_F32;
    for (size_t i = 0; step->precision && i < MLO_COUNT(rates); i++)
        if (mlo_str_starts(step->precision, rates[i].precision))
            return rates[i].rate;
    return CUDA_RATE_F32;
}

void cuda_step_cost(const struct cuda_schedule *s, const struct cuda_step *step, struct cuda_cost *out)
{
    *out = (struct cuda_cost){.ops = step_ops(step), .rate = rate_of(step)};
    for (int i = 0; i < step->in_count; i++) {
        if (step->in[i] < 0)
            continue;
        const struct cuda_slot *slot = &s->slots[step->in[i]];
        bool again = false;
        for (int k = 0; k < i; k++)
            again = again || step->in[k] == step->in[i];
        double bytes = again ? 0 : (double)slot->size_bytes;
        if (slot->kind == CUDA_SLOT_CONST)
            out->weight_bytes += bytes;
        else
            out->read_bytes += bytes;
    }
    if (step->kind == CUDA_STEP_ATTENTION) { /* q, k and v may be parts of one slot: their own sizes */
        const struct cuda_attention *a = step->attention;
        const struct cuda_tensor *in[] = {&a->q, &a->k, &a->v, &a->mask};
        out->read_bytes = 0;
        for (size_t i = 0; i < MLO_COUNT(in) - !a->has_mask; i++)
            out->read_bytes += elements(in[i]) * mlo_dtype_info(in[i]->dtype)->bits / 8.0;
    }
    for (int i = 0; i < step->out_count; i++)
        if (step->out[i] >= 0)
            out->write_bytes += (double)s->slots[step->out[i]].size_bytes;
}

double cuda_step_bytes(const struct cuda_schedule *s, const struct cuda_step *step)
{
    struct cuda_cost cost;
    cuda_step_cost(s, step, &cost);
    return cost.read_bytes + cost.weight_bytes + cost.write_bytes;
}

int cuda_rotation(double step_bytes, double l2_bytes)
{
    double sets = step_bytes > 0 ? ceil(2 * l2_bytes / step_bytes) : 1;
    return (int)MLO_MIN(MLO_MAX(sets, 1.0), 64.0);
}

/* --- what a device can do ------------------------------------------------------------------------------- */

/* Operations of one multiprocessor in one cycle, dense, of "CUDA C++ Programming Guide", "Arithmetic
 * Instructions", and of NVIDIA's architecture papers for tensor cores; 0: it has none. */
static const struct generation {
    int sm;
    double ops[CUDA_RATES]; /* f32, tf32, f16, bf16, int8, fp8 */
    int threads, blocks;
    double shared_bytes;
} generations[] = {
    {70, {128, 0, 1024, 0, 0, 0}, 2048, 32, 98304},
    {75, {128, 0, 1024, 0, 2048, 0}, 1024, 16, 65536},
    {80, {128, 1024, 2048, 2048, 4096, 0}, 2048, 32, 167936},
    {86, {256, 512, 1024, 1024, 2048, 0}, 1536, 16, 102400},
    {87, {256, 512, 1024, 1024, 2048, 0}, 1536, 16, 167936},
    {89, {256, 512, 1024, 1024, 2048, 2048}, 1536, 24, 102400},
    {90, {256, 2048, 4096, 4096, 8192, 8192}, 2048, 32, 233472},
    {100, {256, 4096, 8192, 8192, 16384, 16384}, 2048, 32, 233472},
    {103, {256, 4096, 8192, 8192, 512, 16384}, 2048, 32, 233472},
    {120, {256, 512, 1024, 1024, 2048, 2048}, 1536, 24, 102400},
};
enum { REGISTERS = 65536, REGISTER_UNIT = 256 };
static const char *const rate_names[CUDA_RATES] = {"f32", "tf32", "f16", "bf16", "int8", "fp8"};

enum mlo_status cuda_peaks_read(const json_t *device, struct cuda_peaks *out, struct mlo_error *err)
{
    const struct generation *g = NULL;
    const json_t *peaks = json_object_get(device, "peaks");
    int64_t version = mlo_json_i64(device, "deviceVer", 0);
    double clock = 1e3 * (double)mlo_json_i64(device, "smClockRateKHz", 0),
           memory_clock = 1e3 * (double)mlo_json_i64(device, "memClockRateKHz", 0),
           bus = (double)mlo_json_i64(device, "memoryBusWidth", 0);
    *out = (struct cuda_peaks){.sm = (int)(version / 10),
                               .multiprocessors = (int)mlo_json_i64(device, "multiProcessorCount", 0),
                               .launch_us = mlo_json_f64(peaks, "launch_us", 2.0),
                               .l2_bytes = (double)mlo_json_i64(device, "l2CacheSize", 0),
                               .register_unit = REGISTER_UNIT,
                               .reserved_shared_bytes =
                                   (double)mlo_json_i64(device, "reservedSharedMemoryPerBlock", 1024)};
    snprintf(out->name, sizeof out->name, "%s", mlo_json_str(device, "deviceName", "unknown GPU"));
    if (version < 300 || out->multiprocessors < 1 || clock <= 0)
        return mlo_error_set(err, MLO_EFORMAT,
                             "the description of the GPU lacks deviceVer, multiProcessorCount or "
                             "smClockRateKHz");
    for (size_t i = 0; i < MLO_COUNT(generations); i++)
        if (generations[i].sm / 10 == out->sm / 10 && generations[i].sm <= out->sm)
            g = &generations[i];
    if (!g)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "nothing is known of GPUs of compute capability %d.%d",
                             out->sm / 10, out->sm % 10);
    for (int r = 0; r < CUDA_RATES; r++)
        out->ops[r] = mlo_json_f64(peaks, rate_names[r], g->ops[r] * clock * out->multiprocessors);
    out->memory = mlo_json_f64(peaks, "memory", 2 * memory_clock * bus / 8); /* both edges of the clock */
    if (out->memory <= 0)
        return mlo_error_set(err, MLO_EFORMAT,
                             "the description of the GPU has neither peaks.memory nor memClockRateKHz and "
                             "memoryBusWidth");
    out->max_threads = (int)mlo_json_i64(device, "maxThreadsPerSM", g->threads);
    out->max_blocks = (int)mlo_json_i64(device, "maxCtasPerSM", g->blocks);
    out->registers = (int)mlo_json_i64(device, "maxRegistersPerSM", REGISTERS);
    out->shared_bytes = g->shared_bytes;
    return MLO_OK;
}

static double arithmetic_us(const struct cuda_cost *c, const struct cuda_peaks *p)
{
    double rate = p->ops[c->rate] > 0 ? p->ops[c->rate] : p->ops[CUDA_RATE_F32];
    return 1e6 * c->ops / rate;
}

static double memory_us(const struct cuda_cost *c, const struct cuda_peaks *p)
{
    return 1e6 * (c->read_bytes + c->weight_bytes + c->write_bytes) / p->memory;
}

double cuda_floor_us(const struct cuda_cost *cost, const struct cuda_peaks *peaks)
{
    return MLO_MAX(arithmetic_us(cost, peaks), memory_us(cost, peaks));
}

double cuda_schedule_floor_us(const struct cuda_schedule *s, const struct cuda_peaks *peaks)
{
    double sum = 0;
    for (int i = 0; i < s->step_count; i++) {
        struct cuda_cost cost;
        cuda_step_cost(s, &s->steps[i], &cost);
        sum += cuda_floor_us(&cost, peaks);
    }
    return sum;
}

double cuda_schedule_launch_floor_us(const struct cuda_schedule *s, const struct cuda_peaks *peaks)
{
    double sum = 0;
    for (int i = 0; i < s->step_count; i++) {
        struct cuda_cost cost;
        cuda_step_cost(s, &s->steps[i], &cost);
        sum += MLO_MAX(cuda_floor_us(&cost, peaks), peaks->launch_us);
    }
    return sum;
}

double cuda_occupancy(const struct cuda_peaks *p, unsigned threads, unsigned registers, double shared_bytes)
{
    enum { WARP = 32 };
    unsigned warps = (threads + WARP - 1) / WARP;
    if (!warps)
        return 0;
    unsigned unit = (unsigned)p->register_unit, each = (registers * WARP + unit - 1) / unit * unit;
    double blocks = MLO_MIN((double)p->max_blocks, floor((double)p->max_threads / (warps * WARP)));
    if (each)
        blocks = MLO_MIN(blocks, floor(floor((double)p->registers / each) / warps));
    blocks = MLO_MIN(blocks, floor(p->shared_bytes / (shared_bytes + p->reserved_shared_bytes)));
    return blocks * warps * WARP / p->max_threads;
}

/* --- tables --------------------------------------------------------------------------------------------- */

static json_t *report_row(const struct cuda_schedule *s, const struct cuda_step *step,
                          const struct cuda_peaks *peaks, const json_t *measured)
{
    struct cuda_cost cost;
    cuda_step_cost(s, step, &cost);
    double floor_us = cuda_floor_us(&cost, peaks), us = mlo_json_f64(measured, "us", 0);
    const char *bound = floor_us < peaks->launch_us                             ? "launch"
                        : arithmetic_us(&cost, peaks) > memory_us(&cost, peaks) ? "arithmetic"
                                                                                : "memory";
    json_t *row = json_pack(
        "{s:s?, s:s?, s:s?, s:s?, s:f, s:f, s:f, s:s}", "node", step->node ? step->node->name : NULL, "op",
        step->node ? step->node->op_type : NULL, "impl", step->impl, "precision", step->precision, "ops",
        cost.ops, "bytes", cost.read_bytes + cost.weight_bytes + cost.write_bytes, "floor_us", floor_us,
        "bound", bound);
    if (row && us > 0) {
        json_object_set_new(row, "us", json_real(us));
        json_object_set_new(row, "percent", json_real(100 * floor_us / us));
    }
    json_t *occupancy = json_object_get(measured, "occupancy");
    if (row && occupancy)
        json_object_set(row, "occupancy", occupancy);
    return row;
}

enum mlo_status cuda_floor_report(const struct cuda_schedule *s, const struct cuda_peaks *peaks,
                                  const json_t *measured, json_t **out, struct mlo_error *err)
{
    json_t *steps = json_array();
    for (int i = 0; i < s->step_count; i++)
        json_array_append_new(steps, report_row(s, &s->steps[i], peaks, json_array_get(measured, (size_t)i)));
    *out =
        json_pack("{s:s, s:f, s:f, s:o}", "device", peaks->name, "floor_us", cuda_schedule_floor_us(s, peaks),
                  "launch_floor_us", cuda_schedule_launch_floor_us(s, peaks), "steps", steps);
    return *out ? MLO_OK : mlo_error_nomem(err);
}
