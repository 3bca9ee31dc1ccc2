/* The public header of engines/: graph -> running program, behind one vtable. Depends on base/ and graph/;
 * never rewrites the graph it was given. */
#ifndef MLO_ENGINES_H
#define MLO_ENGINES_H

#include "graph/graph.h"

/* Which sums are allowed. */
enum mlo_numerics {
    MLO_NUMERICS_FAST,      /* whatever is fastest within the ops' tolerances */
    MLO_NUMERICS_INVARIANT, /* bit-identical on any AVX2 or AVX-512 machine, thread count and batch */
};

/* Instruction sets, ordered: each includes the ones before. */
enum mlo_isa { MLO_ISA_GENERIC, MLO_ISA_AVX2, MLO_ISA_AVX512, MLO_ISA_AVX512_VNNI, MLO_ISA_AVX512_FP16 };
/* The best this machine has, lowered by the environment variable MLOPT_ISA (generic, avx2, avx512,
 * avx512-vnni, avx512-fp16) when that is set. */
enum mlo_isa mlo_isa_current(void);
const char *mlo_isa_name(enum mlo_isa isa);
/* MLO_EINVAL when MLOPT_ISA names no instruction set, or MLOPT_FP16 is none of its words: compiling and
 * probing say so, rather than run with another one than was asked for. */
MLO_MUST_USE enum mlo_status mlo_isa_check(struct mlo_error *err);

struct mlo_compile_options {
    int64_t batch; /* bound to symbolic first dims; 0: the graph's inputs must be static */
    enum mlo_numerics numerics;
    unsigned threads; /* 0: 1 */
    /* Values whose contents mlo_engine observe must deliver: they are kept from being fused away. */
    const char *const *observe;
    size_t observe_count;
    /* Not NULL: the plan has constants in common with the others that were compiled with the same object, all
     * from one model; it borrows the model's initializers, so the model must outlive it, unchanged. */
    struct mlo_constants *constants;
    /* What it is compiled for ("cuda:sm90"), of an engine that compiles for machines other than this one
     * (can_compile); NULL: this machine. */
    const char *target;
    /* Ways of computing steps that were measured before, as `tune` returns them: a step that is not in there,
     * or whose way is none of its ways here, is computed as the engine's own heuristics say. NULL: none. */
    const json_t *choices;
};

typedef void mlo_progress_fn(void *arg, double fraction, const char *message);

/* What a tuner may take, and where it keeps what it knows. */
struct mlo_tuning_request {
    double seconds; /* of measuring; 0: until every step is decided */
    /* Of earlier tunings (as `tune` returns them): what is known there is not measured again. NULL: none. */
    const json_t *known;
    const char *keep;  /* a file that is written after each step, and read first: a tuner that was killed
                          goes on from there; NULL: none */
    bool prepare_only; /* compiles the ways into the user's cache and measures nothing: needs no device */
    mlo_progress_fn *progress; /* or NULL */
    void *progress_arg;
};

/* Constants in common: packed weights are made once for all plans of a model. Counted: one is freed with the
 * last plan that has it. Any thread may compile with it. NULL: out of memory. */
struct mlo_constants *mlo_constants_new(void);
/* After the last plan. NULL is fine. */
void mlo_constants_free(struct mlo_constants *constants);
size_t mlo_constants_bytes(struct mlo_constants *constants);

/* What memory a plan takes, besides what it shares (mlo_constants) and what it borrows from the model. */
struct mlo_footprint {
    size_t plan_bytes;    /* constants of its own */
    size_t program_bytes; /* buffers of each program */
};

struct mlo_plan;    /* engine-private: schedule, packed weights, memory plan; immutable, shareable */
struct mlo_program; /* engine-private: a loaded plan with its own buffers and threads; one caller at a time */

/* Called for each observed value in each run, as soon as it is made (its memory is used for others later):
 * float32, batch-major. */
typedef enum mlo_status mlo_observe_fn(void *arg, const char *name, const struct mlo_tensor *value,
                                       struct mlo_error *err);

/* What is timed: calls on the same inputs, first some that do not count. */
struct mlo_timing_request {
    double warm_up_seconds, seconds;   /* at least that long, */
    uint64_t warm_up_calls, min_calls; /* and at least so many calls */
    size_t max_samples;                /* of more calls a uniform random choice is kept */
    bool cpu_clock;                    /* processor time of the process instead of wall-clock time */
    /* Of `measure`: numbers of programs of the plan that call in turn on the device, each on a stream of its
     * own, at most MLO_STREAMS_MAX; none: it is not tried. */
    const unsigned *streams;
    size_t stream_count;
};
enum { MLO_STREAMS_MAX = 64 };
struct mlo_timing {
    double *samples_us; /* yours (free) */
    size_t count;
    uint64_t calls;          /* that were timed */
    uint64_t peak_rss_bytes; /* of the process that ran them; 0: the caller's own */
};

struct mlo_engine {
    const char *name; /* "reference", "cpu" */
    /* Version of the engine and its libraries, for evidence and plan keys: "cpu 1 (oneDNN 2.6.3)". */
    const char *(*version)(void);
    /* MLO_OK when it can run here; else MLO_EUNAVAILABLE and one clear line. */
    enum mlo_status (*probe)(struct mlo_error *err);
    /* Makes a plan from a model (which is only read). *plan is yours (free_plan). */
    enum mlo_status (*compile)(const struct mlo_model *model, const struct mlo_compile_options *options,
                               struct mlo_plan **plan, struct mlo_error *err);
    /* Makes a program that runs the plan; the plan must outlive it. */
    enum mlo_status (*load)(struct mlo_plan *plan, struct mlo_program **program, struct mlo_error *err);
    /* Runs once. inputs: one per graph input that is no initializer, in order, of the plan's shapes (the
     * caller's memory). outputs: zeroed structs, one per graph output, made owned by the engine (clear them),
     * or reused when they already are of the right type and shape. */
    enum mlo_status (*run)(struct mlo_program *program, const struct mlo_tensor *inputs,
                           struct mlo_tensor *outputs, struct mlo_error *err);
    /* Like run, and hands every observed value to fn. */
    enum mlo_status (*observe)(struct mlo_program *program, const struct mlo_tensor *inputs,
                               struct mlo_tensor *outputs, mlo_observe_fn *fn, void *arg,
                               struct mlo_error *err);
    /* The plan for people and tests: {"engine","version","isa","numerics","nodes":[{"node","op","impl",
     * "precision":"int8"|"f32"|…,"fused":[…]}],"int8_nodes":n,"arena_bytes":n}; a node of another runtime may
     * have "us", its time. *out is yours. */
    enum mlo_status (*describe)(const struct mlo_plan *plan, json_t **out, struct mlo_error *err);
    void (*unload)(struct mlo_program *program); /* NULL is fine */
    void (*free_plan)(struct mlo_plan *plan);    /* NULL is fine */
    /* Optional (NULL: not known). */
    void (*footprint)(const struct mlo_plan *plan, struct mlo_footprint *out);
    /* Optional (NULL: the caller times run): times calls where they happen, for an engine whose run carries
     * data to another process. */
    enum mlo_status (*time)(struct mlo_program *program, const struct mlo_tensor *inputs,
                            const struct mlo_timing_request *request, struct mlo_timing *out,
                            struct mlo_error *err);
    /* Optional (NULL: describe may hold times, or there are none): describe's object for a loaded program,
     * with "us" in each node: the median time of that step over `calls` runs on these inputs. */
    enum mlo_status (*profile)(struct mlo_program *program, const struct mlo_tensor *inputs, int calls,
                               json_t **out, struct mlo_error *err);
    /* Optional, all four or none: plans as files (engines/plans.h puts a head and a signature around them).
     * save writes the plan at the file's current position, a multiple of 64; MLO_EUNSUPPORTED names the step
     * that cannot be written. */
    enum mlo_status (*save)(const struct mlo_plan *plan, int fd, struct mlo_error *err);
    /* The plan out of what save wrote, mapped at a multiple of 64: constants are used where they lie, so the
     * bytes must outlive the plan. Bytes that are no plan of this engine are MLO_EFORMAT, one of another
     * machine MLO_ESTALE. */
    enum mlo_status (*restore)(const void *bytes, size_t size, struct mlo_plan **plan, struct mlo_error *err);
    /* A model with the plan's inputs and outputs (and nothing else that is meant for callers); borrowed. */
    const struct mlo_model *(*interface)(const struct mlo_plan *plan);
    /* What must be equal where a saved plan is restored: {"engine","version","revision","cpu","isa"…}. */
    enum mlo_status (*identity)(json_t **out, struct mlo_error *err);

    /* --- of engines for a device (all optional) --- */
    /* Whether plans for `target` ("cuda:sm90") can be compiled here, with or without such a device: MLO_OK;
     * MLO_EINVAL: it is no target of this engine; MLO_EUNAVAILABLE: what compiling needs is not here. NULL:
     * the engine compiles for this machine only. */
    enum mlo_status (*can_compile)(const char *target, struct mlo_error *err);
    /* Instead of `identity` for a plan's fingerprint: what the machine must have that the plan was compiled
     * for. It may leave out `may_lack`, which may then be anything where the plan is restored (the name of
     * the GPU, where nothing was measured on one; FP16, of which the plan has nothing). */
    enum mlo_status (*identity_of)(const struct mlo_plan *plan, json_t **out, struct mlo_error *err);
    const char *may_lack;
    /* What of the engine's parts is on this machine; finding nothing is no error:
     * {"parts":[{"name","kind":"plugin"|"driver"|"library","found":bool,"version","path","why","for":
     * "compile"|"run"}], "gpus":[{"name","uuid","sm":90,"multiprocessors","memory_bytes"}]}; programs run on
     * the first of the GPUs. */
    enum mlo_status (*inventory)(json_t **out, struct mlo_error *err);
    /* Measures the ways in which each step can be computed on the device at hand. *out is yours: a document
     * of the form "mlopt-choices-1" (engines/cuda/tune/tune.h). */
    enum mlo_status (*tune)(const struct mlo_model *model, const struct mlo_compile_options *options,
                            const struct mlo_tuning_request *request, json_t **out, struct mlo_error *err);
    /* Times the program where it runs, on inputs that are on the device already: {"replay_us":[…] of the
     * whole, "upload_us":[…],"download_us":[…], "steps":[{"node","us","occupancy"…}], "arena_bytes",
     * "constant_bytes","workspace_bytes","device":{…},"together":[{"streams":4,"call_us":[…]}]}. Without
     * `steps` these are left out. A call's time of several streams is the time of all by their number. *out
     * is yours. */
    enum mlo_status (*measure)(struct mlo_program *program, const struct mlo_tensor *inputs,
                               const struct mlo_timing_request *request, bool steps, json_t **out,
                               struct mlo_error *err);
};

/* All engines built in, and one by name (MLO_ENOTFOUND lists the names). Each is checked complete once. */
const struct mlo_engine *const *mlo_engine_table(size_t *count);
MLO_MUST_USE enum mlo_status mlo_engine_find(const char *name, const struct mlo_engine **out,
                                             struct mlo_error *err);

/* The machine class that evidence belongs to: {"cpu","isa","cores","os"…} and its short name
 * ("amd-epyc-9b45/avx512-vnni"; with MLOPT_FP16 that behind it). *out is yours. */
MLO_MUST_USE enum mlo_status mlo_machine_describe(json_t **out, struct mlo_error *err);
/* The short name of the class; written into the caller's buffer, which is returned. */
char *mlo_machine_class(char *out, size_t size);
/* Whether this machine satisfies a target ("any", "cpu:avx2", "cpu:avx512-vnni", "cuda:sm90" …). One of a GPU
 * takes a GPU with at least these features, and an engine that can use it here. */
bool mlo_machine_satisfies(const char *target);
/* All names of targets that are not made by a number, each after what it includes. */
const char *const *mlo_targets(size_t *count);
/* The compute capabilities of this machine's GPUs, where the cuda engine can use them here; how many. Asked
 * for once. */
size_t mlo_machine_gpus(int *sm, size_t max);

/* Observes a model over samples on the invariant numerics: feeds `stats` with every wanted value, sample by
 * sample, so the result does not depend on batch, threads or ISA. `next` fills `inputs` (program-shaped) with
 * up to its `batch` samples and sets *got (0: end). That batch is 1 where a wanted value has no rows per
 * sample (time steps first, as recurrent nets have them); a model whose batch is fixed otherwise is then
 * MLO_EUNSUPPORTED. A batch of 0 leaves it to the engine: as many samples as its buffers have room for in
 * MLO_OBSERVE_BYTES, at most MLO_OBSERVE_BATCH. When `next` is called, all samples that it gave before are in
 * `stats`. */
enum { MLO_OBSERVE_BYTES = 48 << 20, MLO_OBSERVE_BATCH = 16 };
typedef enum mlo_status mlo_feed_fn(void *arg, int64_t batch, struct mlo_tensor *inputs, int64_t *got,
                                    struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_engine_observe_stats(const struct mlo_model *model, const char *const *names,
                                                      size_t name_count, int64_t batch, unsigned threads,
                                                      mlo_feed_fn *next, void *arg, struct mlo_stats *stats,
                                                      struct mlo_error *err);
/* The same for whatever is wanted of the values: histograms, channels, Gram matrices. Statistics that `stats`
 * holds already go on. */
MLO_MUST_USE enum mlo_status mlo_engine_observe_wants(const struct mlo_model *model,
                                                      const struct mlo_stats_wants *wants, int64_t batch,
                                                      unsigned threads, mlo_feed_fn *next, void *arg,
                                                      struct mlo_stats *stats, struct mlo_error *err);

#endif
