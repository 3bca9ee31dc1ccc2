/* The public header of pipeline/measure: datasets, metrics, intervals, the benchmark protocol. Stands on
 * graph, passes and engines; knows no database. */
#ifndef MLO_MEASURE_H
#define MLO_MEASURE_H

#include "engines/engines.h"

/* --- datasets (dataset.h's part) ------------------------------------------------------------------- */

/* How uint8 data becomes model input: (x * scale - mean[c]) / std[c]. count 0 of mean/std: none; 1: for all
 * channels; else one per channel (axis 1). */
struct mlo_normalize {
    double scale;
    double mean[16], std[16];
    int mean_count, std_count;
};
/* Parses 'scale=1/255,mean=0.49:0.48:0.45,std=0.25:0.24:0.26'; errors show the expected form. */
MLO_MUST_USE enum mlo_status mlo_normalize_parse(const char *text, struct mlo_normalize *out,
                                                 struct mlo_error *err);

struct mlo_dataset_options {
    const char *normalize;      /* text form, overrides the manifest's; NULL: the manifest's, or none */
    const char *const *map;     /* "INPUT=ARRAY" pairs, map_count of them */
    size_t map_count;
    int64_t limit;              /* first so many samples; 0: all */
};

struct mlo_dataset; /* an opened dataset: arrays, labels, groups; reads in pieces, bounded memory */

/* Opens a dataset: `path` is an .npz, or a folder or .json manifest naming files (npz, or an IDX pair).
 * Two IDX .gz files (images, labels) are given as "images.gz,labels.gz". Sizes declared inside archives are
 * checked against what is really there before memory is taken (zip bombs are MLO_ETOOBIG). */
MLO_MUST_USE enum mlo_status mlo_dataset_open(const char *path, const struct mlo_dataset_options *options,
                                              struct mlo_dataset **out, struct mlo_error *err);
void mlo_dataset_close(struct mlo_dataset *dataset);
int64_t mlo_dataset_count(const struct mlo_dataset *dataset);
/* Labels as int64 (NULL without), length count; borrowed. */
const int64_t *mlo_dataset_labels(const struct mlo_dataset *dataset);
const int64_t *mlo_dataset_groups(const struct mlo_dataset *dataset);
/* Checks that it feeds the model: an array per input, shapes per sample, types. Errors name both sides. */
MLO_MUST_USE enum mlo_status mlo_dataset_check(const struct mlo_dataset *dataset, const struct mlo_model *model,
                                               struct mlo_error *err);
/* Fills tensors (initialised here, one per model input, batch of `count`) with samples [begin, begin+count),
 * normalised and converted to the input's type. */
MLO_MUST_USE enum mlo_status mlo_dataset_read(struct mlo_dataset *dataset, const struct mlo_model *model,
                                              int64_t begin, int64_t count, struct mlo_tensor *inputs,
                                              struct mlo_error *err);
/* SHA-256 of sample i (raw stored bytes of all arrays): what gates compare between data roles. */
MLO_MUST_USE enum mlo_status mlo_dataset_sample_digest(struct mlo_dataset *dataset, int64_t i,
                                                       struct mlo_digest *out, struct mlo_error *err);

/* Writes arrays as an .npz (stored or deflated); each a name and a tensor. */
struct mlo_npz_array {
    const char *name;
    const struct mlo_tensor *tensor;
};
MLO_MUST_USE enum mlo_status mlo_npz_write(const char *path, const struct mlo_npz_array *arrays, size_t count,
                                           struct mlo_error *err);

/* --- running a model over a dataset ----------------------------------------------------------------- */

struct mlo_run_options {
    const struct mlo_engine *engine; /* NULL: cpu */
    unsigned threads;                /* 0: 1 */
    int64_t batch;                   /* 0: chosen */
    enum mlo_numerics numerics;
};
typedef void mlo_progress_fn(void *arg, double fraction, const char *message);

/* Runs all samples and returns the outputs, concatenated over the batch, owned by the caller's array of
 * `output_count` tensors (zeroed before). */
MLO_MUST_USE enum mlo_status mlo_run_dataset(const struct mlo_model *model, struct mlo_dataset *dataset,
                                             const struct mlo_run_options *options, struct mlo_tensor *outputs,
                                             mlo_progress_fn *progress, void *progress_arg,
                                             struct mlo_error *err);

/* --- metrics ------------------------------------------------------------------------------------------- */

struct mlo_estimate {
    double value, low, high; /* 95% interval */
    int64_t n;               /* samples behind it */
};

/* A metric row: per-sample scores whose mean (or `finish` of the mean) is the metric. */
struct mlo_metric {
    const char *name;   /* "top1" */
    const char *unit;   /* "fraction", "1" */
    bool higher_is_better;
    bool needs_labels, needs_reference; /* reference: the outputs of the baseline model (mse, cosine) */
    /* Writes one score per sample into scores[count]. */
    enum mlo_status (*scores)(const struct mlo_tensor *output, const int64_t *labels,
                              const struct mlo_tensor *reference, double *scores, struct mlo_error *err);
    const char *description;
};
const struct mlo_metric *mlo_metric_table(size_t *count);
/* MLO_EINVAL suggests the nearest name. */
MLO_MUST_USE enum mlo_status mlo_metric_find(const char *name, const struct mlo_metric **out,
                                             struct mlo_error *err);

/* Mean with 95% interval: Wilson for 0/1 scores, else percentile bootstrap (2,000 resamples, seeded). */
void mlo_estimate_mean(const double *scores, int64_t n, struct mlo_estimate *out);
/* Mean paired difference a-b with a 95% bootstrap interval over the same samples. */
void mlo_estimate_paired(const double *a, const double *b, int64_t n, struct mlo_estimate *out);
/* Exact McNemar p-value (two-sided binomial) for 0/1 scores. */
double mlo_mcnemar(const double *a, const double *b, int64_t n);

/* --- benchmark ------------------------------------------------------------------------------------------- */

struct mlo_bench_options {
    const struct mlo_engine *engine;
    int64_t batch;
    unsigned threads;
    double seconds;   /* measuring time per side over all rounds */
    int rounds;       /* alternating processes per side; 0: 5 */
    const char *exe;  /* program whose hidden verb `bench-child` measures one side; NULL: this one */
};
struct mlo_bench_side {
    const char *path;
    struct mlo_estimate p50_us, p90_us, p99_us; /* latency per call, intervals resampled by process */
    double throughput;                          /* samples per second at p50 */
    uint64_t peak_rss_bytes;
    json_t *samples;                            /* array (rounds) of arrays of microseconds; owned */
};
struct mlo_bench_result {
    struct mlo_bench_side a, b;      /* b unused when one path was given */
    struct mlo_estimate ratio_p50;   /* b / a, interval by bootstrap over processes */
    struct mlo_estimate ratio_p99;
    json_t *machine;                 /* what it ran on, with load average; owned */
};
/* Measures one or two models in alternating processes (A B B A …). path_b may be NULL. */
MLO_MUST_USE enum mlo_status mlo_bench(const char *path_a, const char *path_b,
                                       const struct mlo_bench_options *options, struct mlo_bench_result *out,
                                       mlo_progress_fn *progress, void *progress_arg, struct mlo_error *err);
void mlo_bench_result_clear(struct mlo_bench_result *result);
/* The child's side: loads, warms up, times calls for `seconds`, prints one JSON object on stdout_fd. */
MLO_MUST_USE enum mlo_status mlo_bench_child(const char *path, const struct mlo_bench_options *options,
                                             int stdout_fd, struct mlo_error *err);

/* The protocol revision that evidence names; bumped when what a number means changes. */
#define MLO_BENCH_PROTOCOL "bench-1"
#define MLO_EVAL_PROTOCOL "eval-1"

#endif
