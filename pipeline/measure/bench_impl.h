/* What the files of the benchmark share. */
#ifndef MLO_MEASURE_BENCH_IMPL_H
#define MLO_MEASURE_BENCH_IMPL_H

#include <sched.h>

#include "pipeline/measure/measure.h"

/* A model ready to be run. */
struct mlo_bench_loaded {
    const struct mlo_engine *engine;
    struct mlo_model *model;    /* dims bound */
    struct mlo_plan *plan;      /* ours, */
    struct mlo_plan_file *file; /* or this one's; */
    struct mlo_plan *ready;     /* either */
    struct mlo_program *program;
    struct mlo_tensor *inputs, *outputs;
    int input_count, output_count;
    int64_t batch;
    unsigned threads;
};
/* Pins this process to the CPUs it needs, compiles, loads, makes inputs. Close it in any case. */
MLO_MUST_USE enum mlo_status mlo_bench_open(const char *path, const struct mlo_bench_options *o,
                                            struct mlo_bench_loaded *l, struct mlo_error *err);
void mlo_bench_close(struct mlo_bench_loaded *l);
/* Calls a program as the request says, with outputs of its own. */
MLO_MUST_USE enum mlo_status mlo_bench_time(const struct mlo_bench_loaded *l, struct mlo_program *program,
                                            struct mlo_tensor *outputs, const struct mlo_timing_request *r,
                                            struct mlo_timing *out, struct mlo_error *err);
/* The same in `concurrency` threads at once, each with a program of its own that shares the plan. Samples of
 * all are in `out`; *throughput is samples a second of all together. */
MLO_MUST_USE enum mlo_status mlo_bench_time_together(const struct mlo_bench_loaded *l, unsigned concurrency,
                                                     const struct mlo_timing_request *r,
                                                     struct mlo_timing *out, double *throughput,
                                                     struct mlo_error *err);

/* Runs one child for `seconds`, on these CPUs (NULL: anywhere), and takes its report, or the error in it.
 * *report is yours. */
MLO_MUST_USE enum mlo_status mlo_bench_child_report(const char *exe, const char *path, const char *engine,
                                                    const struct mlo_bench_options *o, double seconds,
                                                    const cpu_set_t *cpus, json_t **report,
                                                    struct mlo_error *err);

#endif
