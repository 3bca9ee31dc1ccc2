/* The public header of pipeline/measure: datasets, metrics, intervals, the benchmark protocol. Stands on
 * graph, passes and engines; knows no database. */
#ifndef MLO_MEASURE_H
#define MLO_MEASURE_H

#include "engines/engines.h"
#include "engines/plans.h"

/* --- datasets (dataset.h's part) ------------------------------------------------------------------- */

/* How uint8 data becomes float model input: (x * scale - mean[c]) / std[c], each of the three steps rounded
 * to float32, with scale, mean and std rounded to float32 first: the same bits on every machine. count 0 of
 * mean/std: none; 1: for all channels; else one per channel (axis 1). Other types are converted by value. */
struct mlo_normalize {
    double scale;
    double mean[16], std[16];
    int mean_count, std_count;
};
/* Parses 'scale=1/255,mean=0.49:0.48:0.45,std=0.25:0.24:0.26'; errors show the expected form. */
MLO_MUST_USE enum mlo_status mlo_normalize_parse(const char *text, struct mlo_normalize *out,
                                                 struct mlo_error *err);

struct mlo_dataset_options {
    const char *normalize;  /* text form, overrides the manifest's; NULL: the manifest's, or none */
    const char *const *map; /* "INPUT=ARRAY" pairs, map_count of them */
    size_t map_count;
    int64_t limit;           /* first so many samples; 0: all */
    const char *postprocess; /* overrides the manifest's (mlo_dataset_postprocess); NULL: that, or none */
};

struct mlo_dataset; /* an opened dataset: arrays, labels, groups; reads in pieces, bounded memory */

/* Opens a dataset: `path` is an .npz, or a folder or .json manifest naming files (npz, or an IDX pair).
 * Two IDX files (images, labels; gzipped or not) are given as "images.gz,labels.gz", and are arrays x and y.
 * README.md beside this header describes dataset.json. Sizes declared inside archives are checked against
 * what is really there before memory is taken (zip bombs are MLO_ETOOBIG). A dataset is used by one thread at
 * a time. */
MLO_MUST_USE enum mlo_status mlo_dataset_open(const char *path, const struct mlo_dataset_options *options,
                                              struct mlo_dataset **out, struct mlo_error *err);
void mlo_dataset_close(struct mlo_dataset *dataset);
int64_t mlo_dataset_count(const struct mlo_dataset *dataset);
/* Class numbers as int64, length count: array y where it holds one integer a sample, else NULL; borrowed. */
const int64_t *mlo_dataset_labels(const struct mlo_dataset *dataset);
const int64_t *mlo_dataset_groups(const struct mlo_dataset *dataset);
/* Array y as it is stored (classes, values to predict, boxes, tokens), [count, …]; *out is owned by the
 * caller, and stays empty when the dataset has none. More than 2 GiB is MLO_ETOOBIG. */
MLO_MUST_USE enum mlo_status mlo_dataset_target(const struct mlo_dataset *dataset, struct mlo_tensor *out,
                                                struct mlo_error *err);
/* The path of the ONNX model that makes of a model's outputs what metrics read, by the options or the
 * manifest; NULL without. Borrowed. */
const char *mlo_dataset_postprocess(const struct mlo_dataset *dataset);
/* The names of the classes that the manifest gives, an array of strings; NULL without. Borrowed. */
const json_t *mlo_dataset_classes(const struct mlo_dataset *dataset);
/* Checks that it feeds the model: an array per input, shapes per sample, types, and labels within the classes
 * of a model with one output [batch, classes]. Errors name both sides.
 *
 * An input is fed by the array that `map` names for it; else by the one of its own name; else, in a model
 * with one input (or for the input that the manifest names), by `x`, or by the only array besides y and
 * group. Shapes per sample must be equal but for axes of size 1 ([28,28] feeds [1,28,28]) or one side flat.
 */
MLO_MUST_USE enum mlo_status mlo_dataset_check(const struct mlo_dataset *dataset,
                                               const struct mlo_model *model, struct mlo_error *err);
/* Writes what is not plain about how a checked dataset feeds an input, "" where all is: an array of another
 * name that nobody mapped, integers that become floats by value. For people, who may have meant something
 * else. */
MLO_MUST_USE enum mlo_status mlo_dataset_feed_note(const struct mlo_dataset *dataset,
                                                   const struct mlo_model *model,
                                                   const struct mlo_value *input, char *text, size_t size,
                                                   struct mlo_error *err);
/* Fills tensors (initialised here, one per model input, batch of `count`) with samples [begin, begin+count),
 * normalised and converted to the input's type. A NaN, or an integer that the input's type cannot hold, is an
 * error that names the sample. On failure nothing is left to clear. */
MLO_MUST_USE enum mlo_status mlo_dataset_read(struct mlo_dataset *dataset, const struct mlo_model *model,
                                              int64_t begin, int64_t count, struct mlo_tensor *inputs,
                                              struct mlo_error *err);
/* MLO_EINVAL, naming file, array, sample and element, where the samples from `begin` on that were read for an
 * input hold an infinity. Reading allows them, since masks have them; what is calibrated must not. */
MLO_MUST_USE enum mlo_status mlo_dataset_check_finite(const struct mlo_dataset *dataset,
                                                      const struct mlo_model *model,
                                                      const struct mlo_value *input,
                                                      const struct mlo_tensor *read, int64_t begin,
                                                      struct mlo_error *err);
/* SHA-256 of sample i: type and raw stored bytes of every data array, in the order of their names. Labels and
 * groups are left out, and so are names: a sample is the same sample when it is labelled anew, or comes from
 * an IDX file instead of an .npz. What gates compare between data roles. */
MLO_MUST_USE enum mlo_status mlo_dataset_sample_digest(struct mlo_dataset *dataset, int64_t i,
                                                       struct mlo_digest *out, struct mlo_error *err);

/* Writes arrays as an .npz, uncompressed, atomically; equal arrays give equal bytes. bfloat16 is widened to
 * float32; types that numpy lacks are MLO_EUNSUPPORTED. */
struct mlo_npz_array {
    const char *name;
    const struct mlo_tensor *tensor;
};
MLO_MUST_USE enum mlo_status mlo_npz_write(const char *path, const struct mlo_npz_array *arrays, size_t count,
                                           struct mlo_error *err);

/* The batch that the model's input shapes fix, or 0 when all leave it open; MLO_EUNSUPPORTED when two inputs
 * disagree or one has no batch axis. */
MLO_MUST_USE enum mlo_status mlo_model_fixed_batch(const struct mlo_model *model, int64_t *out,
                                                   struct mlo_error *err);
/* Fixes what the model's inputs leave open: the dims that are named here (an unnamed one is called
 * INPUT:AXIS), then the batch, the first dim of each input. MLO_EINVAL for a name that no open dim has, and
 * for a dim that is still open: the hint says how to give it (--dim NAME=N). */
MLO_MUST_USE enum mlo_status mlo_model_bind_dims(struct mlo_model *model, const struct mlo_binding *dims,
                                                 size_t count, int64_t batch, struct mlo_error *err);
/* Gives the dims that the model's inputs leave open, but for the batch, the sizes that the dataset has: *out
 * is a copy of the model with them fixed, to compile (yours: mlo_model_free), or NULL when there are none.
 * Two arrays that give one name two sizes are MLO_EINVAL. */
MLO_MUST_USE enum mlo_status mlo_dataset_fit(const struct mlo_dataset *dataset, const struct mlo_model *model,
                                             struct mlo_model **out, struct mlo_error *err);

/* --- without data -------------------------------------------------------------------------------- */

/* How far a variant's outputs are from its source's on made-up inputs, on the invariant numerics: 8 samples
 * of batch 1, from a fixed seed, so always the same. Floats are near normal (mean 0, variance 1), or uniform
 * in the range that metadata Image.NominalPixelRange declares; integers that come to be indices of a Gather
 * or OneHot are uniform in its table, bytes in their range, others 0 or 1; open dims are 16, or 1 where the
 * model does not take that. It tells a variant that is broken from one that is not, nothing of its accuracy:
 *   {"inputs":"synthetic","samples","seed","open_dims","fed":[{"input","type","values","from","to"}],
 *    "outputs":[{"output","cosine","sqnr_db" (null: no noise),"max_abs","max_rel" (of the largest |element|),
 *                "equal" (share of elements),"not_finite" (on one side only),"other_shape" (samples)}]} */
struct mlo_synthetic;
/* Runs the source, which need not stay. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_synthetic_new(const struct mlo_model *source, unsigned threads,
                                               struct mlo_synthetic **out, struct mlo_error *err);
/* Runs a variant; *out is the JSON above, yours. */
MLO_MUST_USE enum mlo_status mlo_synthetic_compare(struct mlo_synthetic *synthetic,
                                                   const struct mlo_model *variant, json_t **out,
                                                   struct mlo_error *err);
void mlo_synthetic_free(struct mlo_synthetic *synthetic);

/* --- running a model over a dataset ----------------------------------------------------------------- */

struct mlo_run_options {
    const struct mlo_engine *engine; /* NULL: cpu */
    unsigned threads;                /* 0: 1 */
    int64_t batch;                   /* 0: chosen; a model with a fixed batch is run with that */
    enum mlo_numerics numerics;
    int64_t samples; /* the first so many; 0: all */
    /* A plan of the engine, which is run as it is: the model given with it says what it is fed
     * (mlo_plan_file_model). NULL: the model is compiled. */
    struct mlo_plan *plan;
};

/* Runs all samples and returns the outputs, concatenated over the batch, owned by the caller's array of
 * `output_count` tensors (zeroed here). The rest of a dynamic batch gets a plan of its own; a fixed batch is
 * filled up with copies, whose outputs are dropped. Checks the dataset first. On failure nothing is left to
 * clear. */
MLO_MUST_USE enum mlo_status mlo_run_dataset(const struct mlo_model *model, struct mlo_dataset *dataset,
                                             const struct mlo_run_options *options,
                                             struct mlo_tensor *outputs, mlo_progress_fn *progress,
                                             void *progress_arg, struct mlo_error *err);

/* The same, and then through the dataset's postprocessing model where it has one: what metrics read. That one
 * runs on the cpu engine's invariant numerics: the same bits anywhere. Its inputs are outputs of the model:
 * by name where each is named like one, else by position where there are as many (else MLO_EINVAL, before
 * anything runs). It must give a row per sample; its batch is open, or fixed at a divisor of the samples.
 * *outputs is an array of *count tensors, yours (mlo_outputs_free); NULL on failure. */
MLO_MUST_USE enum mlo_status mlo_run_evaluation(const struct mlo_model *model, struct mlo_dataset *dataset,
                                                const struct mlo_run_options *options,
                                                struct mlo_tensor **outputs, int *count,
                                                mlo_progress_fn *progress, void *progress_arg,
                                                struct mlo_error *err);
/* Clears and frees the array; NULL is fine. */
void mlo_outputs_free(struct mlo_tensor *outputs, int count);

/* --- metrics ------------------------------------------------------------------------------------------- */

struct mlo_estimate {
    double value, low, high; /* 95% interval */
    int64_t n;               /* samples (or groups) behind it */
};

/* What a metric reads: the same samples in each tensor, along axis 0. */
struct mlo_metric_data {
    const struct mlo_tensor *output;    /* of the model that is judged */
    const struct mlo_tensor *reference; /* of the baseline model; or NULL */
    const struct mlo_tensor *target;    /* the dataset's array y; or NULL */
    const int64_t *groups;              /* one a sample; or NULL */
};
enum mlo_metric_needs {
    MLO_METRIC_TARGET = 1,
    MLO_METRIC_REFERENCE = 2, /* it compares with the baseline's outputs, and needs no labels */
    MLO_METRIC_GROUPS = 4,
};

struct mlo_scores;

/* A metric row. `record` writes what each sample (or group) contributes, once; `statistic` makes the number
 * of any multiset of them, so that every metric can be resampled: a mean, or what no mean is (AUC, F1, mAP).
 */
struct mlo_metric {
    const char *name; /* "mse"; with takes_k a prefix: "top" is written top1, top5, … */
    const char *unit; /* "fraction", "dB", "1" */
    bool higher_is_better;
    bool takes_k;
    unsigned needs;                        /* enum mlo_metric_needs */
    const struct mlo_statistic *statistic; /* scores_impl.h */
    /* A label out of range, a NaN, or tensors of a shape that the metric has no meaning for are MLO_EINVAL
     * and name the sample. */
    enum mlo_status (*record)(const struct mlo_metric_data *data, struct mlo_scores *out,
                              struct mlo_error *err);
    const char *description;
};
const struct mlo_metric *mlo_metric_table(size_t *count);

/* A metric as it is asked for: "top5" is the row "top" with k = 5. */
struct mlo_metric_use {
    const struct mlo_metric *row;
    int64_t k;
    char name[32];
};
/* MLO_EINVAL suggests the nearest name. */
MLO_MUST_USE enum mlo_status mlo_metric_find(const char *name, struct mlo_metric_use *out,
                                             struct mlo_error *err);

/* Scores all samples. What the metric needs and the data lack is MLO_EINVAL with a hint. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_metric_score(const struct mlo_metric_use *use,
                                              const struct mlo_metric_data *data, struct mlo_scores **out,
                                              struct mlo_error *err);
void mlo_scores_free(struct mlo_scores *scores);
/* The metric with its 95% interval: for means as mlo_estimate_mean, else a percentile bootstrap over samples
 * (or groups, or images). */
MLO_MUST_USE enum mlo_status mlo_scores_estimate(const struct mlo_scores *scores, struct mlo_estimate *out,
                                                 struct mlo_error *err);
/* The difference a - b of two models on the same samples, both scored by the same metric: for means as
 * mlo_estimate_paired, else both are computed on the same resamples. */
MLO_MUST_USE enum mlo_status mlo_scores_paired(const struct mlo_scores *a, const struct mlo_scores *b,
                                               struct mlo_estimate *out, struct mlo_error *err);
/* The p-value of mlo_mcnemar, or a negative number where the scores are not 0 or 1. */
double mlo_scores_mcnemar(const struct mlo_scores *a, const struct mlo_scores *b);
/* What was recorded: {"columns":[…],"rows":[[…]…]}, or {"scores":[…]} where each sample has one number.
 * Yours. */
json_t *mlo_scores_json(const struct mlo_scores *scores);

/* Mean with 95% interval: Wilson for proportions, else percentile bootstrap (2,000 resamples, seeded). All
 * zero for n = 0. */
void mlo_estimate_mean(const double *scores, int64_t n, bool proportion, struct mlo_estimate *out);
/* Mean paired difference a-b over the same samples, with a 95% interval: percentile bootstrap, but for 0/1
 * scores that of Agresti and Min (2005), since a bootstrap of pairs that never disagree would claim
 * certainty. */
void mlo_estimate_paired(const double *a, const double *b, int64_t n, bool proportion,
                         struct mlo_estimate *out);
/* Exact McNemar p-value (two-sided binomial) for 0/1 scores. */
double mlo_mcnemar(const double *a, const double *b, int64_t n);

/* --- benchmark -------------------------------------------------------------------------------------------
 */

struct mlo_bench_options {
    const struct mlo_engine *engine;   /* NULL: cpu */
    const struct mlo_engine *engine_b; /* of the second side; NULL: the same */
    int64_t batch;                     /* 0: 1. A model whose batch is fixed at another size is MLO_EINVAL */
    unsigned threads;                  /* 0: 1 */
    unsigned threads_b;                /* of the second side; 0: the same */
    const struct mlo_binding *dims;    /* sizes of open dims besides the batch */
    size_t dim_count;
    double seconds;       /* measuring time per side over all rounds; 0: 1 */
    int rounds;           /* alternating processes per side, 2 to 1000; 0: 5 */
    unsigned concurrency; /* of the child: programs of one plan that run at once; 0: 1 */
    const unsigned
        *streams; /* of a device: how many programs call in turn, each on its own stream; or none */
    size_t stream_count;
    bool cpu_clock;  /* processor time instead of wall-clock time: for one thread on a machine that others use
                      */
    bool no_roof;    /* of mlo_profile: without the roofline, whose peaks take half a second to measure */
    const char *exe; /* program whose hidden verb `bench-child` measures one side; NULL: this one */
};
struct mlo_bench_side {
    const char *path;     /* borrowed from the caller */
    char *engine_version; /* as its processes report it; owned */
    /* Latency per call: the median over processes of each process's percentile; the interval is a bootstrap
     * over processes; n counts samples. */
    struct mlo_estimate p50_us, p90_us, p95_us, p99_us;
    double throughput; /* samples per second at p50 */
    uint64_t peak_rss_bytes;
    json_t *samples; /* array (rounds) of arrays of microseconds; owned */
};
struct mlo_bench_result {
    struct mlo_bench_side a, b; /* b unused when one path was given */
    /* b / a: the median over rounds of the ratio within a round, whose two processes ran one after the other;
     * bootstrap over rounds; n counts rounds. */
    struct mlo_estimate ratio_p50;
    struct mlo_estimate ratio_p99;
    /* What it ran on: mlo_machine_describe's members, and protocol, engine, threads, rounds, pinned_cpus,
     * load_average_before and load_average_after; owned. */
    json_t *machine;
};
/* Measures one or two models in alternating processes (A B B A …), all pinned to the same `threads` CPUs,
 * those that were least busy at the start. path_b may be NULL, or path_a again to compare two engines. On
 * failure *out is cleared; an error inside a child is reported as if it had happened here. Each side's
 * process is <exe> bench-child MODEL --engine NAME
 * --batch N --threads N --seconds S [--concurrency N] [--dim NAME=N]… [--clock cpu] */
MLO_MUST_USE enum mlo_status mlo_bench(const char *path_a, const char *path_b,
                                       const struct mlo_bench_options *options, struct mlo_bench_result *out,
                                       mlo_progress_fn *progress, void *progress_arg, struct mlo_error *err);
void mlo_bench_result_clear(struct mlo_bench_result *result);
/* The child's side: pins itself to `threads` CPUs (unless it was started on so few), loads, warms up (a tenth
 * of the time, at least 3 calls), times each call for `seconds` (at least 10 calls) on random inputs of a
 * fixed seed, and prints one JSON object on stdout_fd:
 *   {"protocol","engine","batch","threads","start_us","peak_rss_bytes","calls","samples":[microseconds…]}
 * whose start_us is the time from the file to a program that can run, for another runtime its process
 * included, and whose samples are all calls, or a uniform random choice of 20,000 of them, or
 * {"error":{"code","message","where","hint"}}, which is also returned. */
MLO_MUST_USE enum mlo_status mlo_bench_child(const char *path, const struct mlo_bench_options *options,
                                             int stdout_fd, struct mlo_error *err);
/* The same for the hidden verb's arguments: argv[0] is MODEL, then options as above, each optional. */
MLO_MUST_USE enum mlo_status mlo_bench_child_args(int argc, char *const *argv, int stdout_fd,
                                                  struct mlo_error *err);

/* --- on a device -----------------------------------------------------------------------------------------
 */

#define MLO_DEVICE_PROTOCOL "device-1"

/* Measures a model, or a plan, on the device of an engine that has one (mlo_engine.measure), in this process:
 * {"protocol","engine","batch","replay":{"p50_us":{"value","low","high","n"},"p99_us"}, "upload","download"
 * (the same, of copies from and to pinned memory), "throughput" (samples a second at p50, without copies),
 * "arena_bytes","constant_bytes","workspace_bytes","device","steps","floor","percent_of_floor",
 * "together":[{"streams","call":{"p50_us","p99_us"},"throughput"}] (of options.streams, in their order),
 * "watched":{…}}. What was watched is what the driver's management library told meanwhile: power, clocks, how
 * busy the device was, memory, and why it slowed down; absent where it told nothing. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_device_bench(const char *path, const struct mlo_bench_options *options,
                                              json_t **out, struct mlo_error *err);
/* The numbers of what an engine's `measure` returned. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_device_summary(const json_t *measured, int64_t batch, json_t **out,
                                                struct mlo_error *err);

/* --- sweeps ---------------------------------------------------------------------------------------- */

struct mlo_sweep_options {
    struct mlo_bench_options bench; /* engine, threads, dims, exe; `seconds` is for each point and round (0:
                                       1), `rounds` 1 or more (0: 2) */
    const int64_t *batches;         /* NULL: 1, 2, 4, 8, 16, 32; or the one that the model fixes */
    size_t batch_count;
    const unsigned *concurrencies; /* NULL: 1, 2, 4 … up to the CPUs / threads */
    size_t concurrency_count;
    double p99_limit_us; /* 0: none */
};
/* One point: so many calls at once in one process, each of so many samples. */
struct mlo_sweep_point {
    int64_t batch;
    unsigned concurrency;
    double p50_us, p90_us, p95_us, p99_us; /* of a call: medians over rounds */
    double throughput, low, high;          /* samples a second: mean over rounds, the least and the most */
    uint64_t calls, peak_rss_bytes;
    bool within; /* the p99 limit holds */
};
struct mlo_sweep_result {
    struct mlo_sweep_point *points; /* by batch, then concurrency; owned */
    size_t count;
    int best;             /* most throughput within the limit; -1: no point is within it */
    char *engine_version; /* owned */
    json_t *machine;      /* mlo_machine_describe, protocol, rounds, seconds; owned */
};
/* Measures each point in a process of its own, all points once a round, every other round backwards. */
MLO_MUST_USE enum mlo_status mlo_sweep(const char *path, const struct mlo_sweep_options *options,
                                       struct mlo_sweep_result *out, mlo_progress_fn *progress,
                                       void *progress_arg, struct mlo_error *err);
void mlo_sweep_result_clear(struct mlo_sweep_result *result);

/* --- profiles and the roofline ----------------------------------------------------------------------- */

enum { MLO_PEAK_LEVELS = 3 };
/* What this machine can do at most, measured by small kernels of the current instruction set: multiply-adds
 * from registers, and reading memory that fits a cache or none. Williams, Waterman, Patterson, "Roofline",
 * 2009. */
struct mlo_peaks {
    unsigned threads;
    double f32_ops, int8_ops; /* operations a second; a multiply-add is two */
    struct {
        const char *name;   /* "L2", "L3", "memory" */
        size_t bytes;       /* what fits in it, of all threads; SIZE_MAX for memory */
        double bytes_per_s; /* read by all threads together */
    } levels[MLO_PEAK_LEVELS];
};
/* Takes about half a second. */
MLO_MUST_USE enum mlo_status mlo_peaks_measure(unsigned threads, struct mlo_peaks *out,
                                               struct mlo_error *err);
/* Adds to each timed node of a profile whose costs are known {"flops","bytes","intensity" (operations a
 * byte),"bound":"compute"|"memory","peak" (the share of what the roofline allows there)}, and "peaks" to the
 * object. `model` is the profiled one, its dims bound. Bytes are what the node and what is fused into it must
 * read and write once; weights come from the cache level that all weights and buffers of the model fit in,
 * the rest from the one that itself fits in. */
MLO_MUST_USE enum mlo_status mlo_roofline(json_t *profile, const struct mlo_model *model,
                                          const struct mlo_peaks *peaks, struct mlo_error *err);

/* Where the time goes: the engine's description of the compiled model with "us" in each node (the median over
 * MLO_PROFILE_CALLS calls on random inputs of a fixed seed) and "total_us", their sum; with mlo_roofline's
 * members where this machine runs it. MLO_EUNSUPPORTED when the engine cannot tell. The calling thread is on
 * as few CPUs as it asks for meanwhile, and has its own back after it. *out is yours. */
enum { MLO_PROFILE_CALLS = 11 };
MLO_MUST_USE enum mlo_status mlo_profile(const char *path, const struct mlo_bench_options *options,
                                         json_t **out, struct mlo_error *err);

/* The protocol revision that evidence names; bumped when what a number means changes. */
#define MLO_BENCH_PROTOCOL "bench-1"
#define MLO_EVAL_PROTOCOL "eval-1"

#endif
