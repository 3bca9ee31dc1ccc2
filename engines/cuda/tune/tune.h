/* Private to engines/cuda: how the ways to compute a step are found, judged and remembered, and what a step
 * costs at least. Needs nothing of CUDA: device/ gives the tuner what only it can do (struct cuda_tune_ops),
 * tests give it something else. */
#ifndef MLO_ENGINES_CUDA_TUNE_H
#define MLO_ENGINES_CUDA_TUNE_H

#include "engines/choices.h"
#include "engines/cuda/cuda_impl.h"

/* --- keys ----------------------------------------------------------------------------------------------- */

/* All that a step computes, without a name: kind, numbers, types, shapes, strides, and what its slots are
 * aligned to. Equal texts are computed alike. *out is yours. */
MLO_MUST_USE enum mlo_status cuda_step_canonical(const struct cuda_schedule *schedule,
                                                 const struct cuda_step *step, json_t **out,
                                                 struct mlo_error *err);
/* SHA-256 of its canonical text: the key of choices (engines/choices.h). */
MLO_MUST_USE enum mlo_status cuda_step_key(const struct cuda_schedule *schedule, const struct cuda_step *step,
                                           struct mlo_digest *out, struct mlo_error *err);
/* What was chosen for the step in a document of choices: its member "choice"; NULL: nothing (the heuristics
 * choose). Borrowed. */
const json_t *cuda_step_choice(const struct cuda_schedule *schedule, const struct cuda_step *step,
                               const json_t *choices);

/* --- cost and floors ------------------------------------------------------------------------------------ */

enum cuda_rate {
    CUDA_RATE_F32,
    CUDA_RATE_TF32,
    CUDA_RATE_F16,
    CUDA_RATE_BF16,
    CUDA_RATE_INT8,
    CUDA_RATE_FP8,
    CUDA_RATES
};

struct cuda_cost {
    double ops;          /* a multiply-add is two */
    double read_bytes;   /* of values, each once */
    double weight_bytes; /* of constants */
    double write_bytes;
    enum cuda_rate rate; /* of the ops */
};
void cuda_step_cost(const struct cuda_schedule *schedule, const struct cuda_step *step,
                    struct cuda_cost *out);

/* What a device can do. Read from its description: the JSON that device/ exports (deviceName, deviceVer,
 * multiProcessorCount, smClockRateKHz, memClockRateKHz, memoryBusWidth, l2CacheSize, maxRegistersPerSM …), in
 * which a member "peaks" with what was measured ({"f16": ops/s, …, "memory": bytes/s, "launch_us"}) goes
 * before what follows from clocks. */
struct cuda_peaks {
    char name[96];
    int sm, multiprocessors;
    double ops[CUDA_RATES]; /* a second */
    double memory;          /* bytes a second */
    double launch_us;       /* a node of a replayed graph, at least */
    double l2_bytes;
    int max_threads, max_blocks, registers, register_unit; /* of a multiprocessor */
    double shared_bytes, reserved_shared_bytes;
};
/* MLO_EFORMAT: it is no such description; MLO_EUNSUPPORTED: of a generation that is not known here. */
MLO_MUST_USE enum mlo_status cuda_peaks_read(const json_t *device, struct cuda_peaks *out,
                                             struct mlo_error *err);
/* The time that a step takes at least, microseconds: each value passes through memory once, or the arithmetic
 * takes longer. */
double cuda_floor_us(const struct cuda_cost *cost, const struct cuda_peaks *peaks);
/* Of all steps, one after the other. */
double cuda_schedule_floor_us(const struct cuda_schedule *schedule, const struct cuda_peaks *peaks);
/* The same with a launch for each step, which is what small batches are bound by. */
double cuda_schedule_launch_floor_us(const struct cuda_schedule *schedule, const struct cuda_peaks *peaks);
/* The share of a multiprocessor's threads that such blocks can fill: 0 when one does not fit. */
double cuda_occupancy(const struct cuda_peaks *peaks, unsigned threads, unsigned registers,
                      double shared_bytes);
/* {"device","floor_us","launch_floor_us","steps":[{"node","op","impl","precision","ops","bytes","floor_us",
 * "bound":"memory"|"arithmetic"|"launch"}]}; with "us" in the rows of `measured` (mlo_engine.measure), which
 * are in the order of the steps, also "percent". *out is yours. */
MLO_MUST_USE enum mlo_status cuda_floor_report(const struct cuda_schedule *schedule,
                                               const struct cuda_peaks *peaks, const json_t *measured,
                                               json_t **out, struct mlo_error *err);

/* --- ways ----------------------------------------------------------------------------------------------- */

/* A knob of an engine of cuDNN: from min to max by stride. */
struct cuda_knob {
    int64_t type, min, max, stride;
};
enum { CUDA_WAYS_MAX = 512, CUDA_KNOBS_MAX = 16 };
/* Appends an engine's ways, {"library":"cudnn","engine","knobs":{type: value}}: as it is; then each knob by
 * itself; then combinations, evenly from all of them, until there are `limit` of this engine. */
MLO_MUST_USE enum mlo_status cuda_ways_engine(json_t *ways, int64_t engine, const struct cuda_knob *knobs,
                                              int count, int limit, struct mlo_error *err);
/* Appends it unless it is there already; takes `way` over. False: out of memory. */
bool cuda_ways_add(json_t *ways, json_t *way);
/* Its index in `ways`; -1: it is none of them. */
int cuda_ways_find(const json_t *ways, const json_t *way);

/* --- the tuner ------------------------------------------------------------------------------------------ */

/* One way, compiled. */
struct cuda_built {
    void *code;                  /* of who made it */
    unsigned registers, threads; /* 0: not known */
    unsigned spill_bytes, shared_bytes;
    size_t workspace_bytes;
    double work; /* what it computes, with what its tiles add, to what is asked; 0 or 1: no more */
};

/* What only the device's side can do. A way that cannot be compiled, run or checked makes the function fail:
 * the tuner drops it. MLO_ENOMEM and MLO_ECANCELLED end the tuning, as does MLO_EUNAVAILABLE (the device is
 * gone). */
struct cuda_tune_ops {
    /* The ways to compute a step, {"library":"cudnn"|"cublaslt"|"own"…}; the first is what the heuristics
     * take. Needs no device. *ways is yours. */
    enum mlo_status (*ways)(void *arg, const struct cuda_step *step, json_t **ways, struct mlo_error *err);
    /* Needs no device; what it compiled, it may keep in a cache for the next time. */
    enum mlo_status (*build)(void *arg, const struct cuda_step *step, const json_t *way,
                             struct cuda_built *out, struct mlo_error *err);
    void (*release)(void *arg, struct cuda_built *built);
    /* Microseconds of one run, `count` times: events around the replay of a graph of many runs, over buffers
     * that take turns (cuda_rotation) so that nothing is in the cache that would not be. */
    enum mlo_status (*time)(void *arg, const struct cuda_step *step, const struct cuda_built *built,
                            int count, double *us, struct mlo_error *err);
    /* Runs it once into poisoned memory, and compares with the step's plain computation: the largest error
     * relative to the largest value, and what is allowed. NaN: something was left unwritten. */
    enum mlo_status (*check)(void *arg, const struct cuda_step *step, const struct cuda_built *built,
                             double *error, double *tolerance, struct mlo_error *err);
    /* After a failure on the device: makes it usable again. Optional. */
    enum mlo_status (*recover)(void *arg, struct mlo_error *err);
};

struct cuda_tuning {
    const struct cuda_schedule *schedule;
    const json_t *machine;          /* what the choices are for: member of the document */
    const struct cuda_peaks *peaks; /* NULL: nothing is pruned by the roofline or by occupancy */
    size_t max_workspace_bytes;     /* 0: any */
    const struct cuda_tune_ops *ops;
    void *arg;
};
/* Tunes what is not known yet, steps with the highest floor first, equal steps once. Ways are dropped that do
 * not compile, spill, do not fit, need too much workspace, cannot be as fast as another was, are slower with
 * 95% confidence, fail, compute something else, or were being tried when an earlier run died. What the
 * heuristics take stays unless another one is faster with that confidence. *out (yours) is a document of
 * choices, whole after each step in request->keep. */
MLO_MUST_USE enum mlo_status cuda_tune(const struct cuda_tuning *tuning,
                                       const struct mlo_tuning_request *request, json_t **out,
                                       struct mlo_error *err);

/* The median of n samples, sorted in place, and its 95% interval by order statistics (distribution-free; the
 * whole range when there are few). David, Nagaraja, "Order Statistics", 2003, 7.1. */
struct cuda_median {
    double value, low, high;
    int n;
};
struct cuda_median cuda_median_of(double *samples, int n);

/* How many sets of a step's buffers take turns so that together they are twice the cache: 1 to 64. */
int cuda_rotation(double step_bytes, double l2_bytes);
double cuda_step_bytes(const struct cuda_schedule *schedule, const struct cuda_step *step);

#endif
