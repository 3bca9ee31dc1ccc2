/* What the local verbs share: options, opening models and datasets. */
#ifndef MLO_CLI_LOCAL_IMPL_H
#define MLO_CLI_LOCAL_IMPL_H

#include "api/cli/core/cli.h"
#include "pipeline/steps/steps.h"

extern const struct mlo_cli_verb mlo_verb_inspect, mlo_verb_run, mlo_verb_optimize, mlo_verb_quantize,
    mlo_verb_eval, mlo_verb_bench, mlo_verb_diff, mlo_verb_engines, mlo_verb_step_exec, mlo_verb_bench_child,
    mlo_verb_compile, mlo_verb_tune, mlo_verb_qat_export, mlo_verb_sensitivity, mlo_verb_observe,
    mlo_verb_distill_eval, mlo_verb_prune;

/* Rows of option tables that several verbs have. */
#define MLO_OPTION_ENGINE                                                                                    \
    {                                                                                                        \
        "engine", 0, "NAME", "cpu, reference, ort, openvino, … (cpu)"                                      \
    }
#define MLO_OPTION_THREADS                                                                                   \
    {                                                                                                        \
        "threads", 0, "N", "threads of the engine (1)"                                                       \
    }
#define MLO_OPTION_DATA                                                                                      \
    {                                                                                                        \
        "data", 0, "FILE", "npz, dataset.json, or IDX pair images.gz,labels.gz"                              \
    }
#define MLO_OPTION_LIMIT                                                                                     \
    {                                                                                                        \
        "limit", 0, "N", "only the first N samples"                                                          \
    }
#define MLO_OPTION_MAP                                                                                       \
    {                                                                                                        \
        "map", 0, "INPUT=ARRAY", "which array feeds which input", NULL, true                                 \
    }
#define MLO_OPTION_POSTPROCESS                                                                               \
    {                                                                                                        \
        "postprocess", 0, "POST.onnx",                                                                       \
            "a model that makes of the outputs what the metric reads (that of the dataset)"                  \
    }
#define MLO_OPTION_NORMALIZE                                                                                 \
    {                                                                                                        \
        "normalize", 0, "SPEC", "of uint8 data: scale=1/255,mean=0.49:0.48:0.45,std=0.25:0.24:0.26"          \
    }
#define MLO_OPTION_TRUST                                                                                     \
    {                                                                                                        \
        "trust", 0, "KEY", "load plans that this public key signed (ed25519:…)", NULL, true                  \
    }
#define MLO_OPTION_PLAN                                                                                      \
    {                                                                                                        \
        "plan", 0, "FILE.plan", "a compiled plan of the model: used where it fits, else the model is"        \
    }
#define MLO_OPTION_OUT                                                                                       \
    {                                                                                                        \
        "out", 0, "FILE", "where the result is written"                                                      \
    }

#define MLO_OPTION_REPORT                                                                                    \
    {                                                                                                        \
        "report", 0, "FILE.html|FILE.json", "a page (or its JSON) that explains the result"                  \
    }

#define MLO_OPTION_DIM                                                                                       \
    {                                                                                                        \
        "dim", 0, "NAME=N", "size of an open dim (one without a name is INPUT:AXIS)", NULL, true             \
    }

/* --dim NAME=N, as often as it was given. */
struct mlo_local_dims {
    struct mlo_binding list[32];
    char names[32][96];
    size_t count;
};
/* Reads all --dim NAME=N; the list points into the struct. */
MLO_MUST_USE enum mlo_status mlo_local_dims(const struct mlo_cli *cli, struct mlo_local_dims *out,
                                            struct mlo_error *err);
/* Notes on what a step left as it was (`section` of its report has the list "left"), "NODE: kept: WHY", and
 * those of its pass. */
void mlo_local_note_left(const struct mlo_cli *cli, const json_t *report, const char *section,
                         const char *kept, const char *pass);
/* Prints what the step sparsify reported: layers, what stayed dense, where it can be faster. */
MLO_MUST_USE enum mlo_status mlo_local_print_sparsity(const struct mlo_cli *cli, const json_t *report,
                                                      struct mlo_error *err);
/* Loads a model all of whose ops are known. */
MLO_MUST_USE enum mlo_status mlo_local_model(const char *path, struct mlo_model **out, struct mlo_error *err);
/* A copy with --batch N (1) and --dim NAME=N bound. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_local_bound(const struct mlo_cli *cli, const struct mlo_model *model,
                                             struct mlo_model **out, struct mlo_error *err);

/* A model or a plan that is run: `model` says what it is fed; borrowed. */
struct mlo_subject {
    const struct mlo_model *model;
    struct mlo_model *loaded;       /* of a model file */
    struct mlo_plan_file *plan;     /* of a plan's file */
    struct mlo_run_options options; /* the engine, threads and batch; of a plan what it was compiled with */
};
/* Opens a model, or a plan, by its path; --engine, --threads, --trust, and --plan (a plan of the model, used
 * where it fits this machine) as the verb has them. Close it in any case. */
MLO_MUST_USE enum mlo_status mlo_local_subject(const struct mlo_cli *cli, const char *path,
                                               struct mlo_subject *out, struct mlo_error *err);
void mlo_local_subject_close(struct mlo_subject *subject);
/* --trust KEY: for this process and those that it starts. */
MLO_MUST_USE enum mlo_status mlo_local_trust(const struct mlo_cli *cli, struct mlo_error *err);
/* Opens a plan's file, of that model (NULL: of any), and warns where the cache of plans cannot be used. */
MLO_MUST_USE enum mlo_status mlo_local_open_plan(const struct mlo_cli *cli, const char *path,
                                                 const struct mlo_digest *model, struct mlo_plan_file **out,
                                                 struct mlo_error *err);
/* Prints what `inspect` says of a plan's file: the first argument. */
MLO_MUST_USE enum mlo_status mlo_local_inspect_plan(const struct mlo_cli *cli, struct mlo_error *err);

/* --normalize, --map and, of verbs that have it, --postprocess; without a limit. The strings are the command
 * line's. */
struct mlo_local_reading {
    struct mlo_dataset_options options;
    const char *map[64];
};
void mlo_local_reading(const struct mlo_cli *cli, struct mlo_local_reading *out);
/* Opens --data with --normalize, --map and --limit, and checks that it feeds the model. */
MLO_MUST_USE enum mlo_status mlo_local_dataset(const struct mlo_cli *cli, const struct mlo_model *model,
                                               struct mlo_dataset **out, struct mlo_error *err);
/* The same for another file than --data: its first `limit` samples (0: all). */
MLO_MUST_USE enum mlo_status mlo_local_dataset_at(const struct mlo_cli *cli, const char *path, int64_t limit,
                                                  const struct mlo_model *model, struct mlo_dataset **out,
                                                  struct mlo_error *err);
/* --engine (its probe passed) and --threads. */
MLO_MUST_USE enum mlo_status mlo_local_engine(const struct mlo_cli *cli, struct mlo_run_options *out,
                                              struct mlo_error *err);
/* MLO_ENODEVICE where an engine's probe says that something is not available here: another exit code than
 * that of a server that does not answer. Returns the status, also in `err`. */
enum mlo_status mlo_local_no_device(enum mlo_status probed, struct mlo_error *err);
/* Reads a document of choices, or a decision of the step tune, that holds them; *out (yours) stays NULL
 * without a path. */
MLO_MUST_USE enum mlo_status mlo_local_choices(const char *path, json_t **out, struct mlo_error *err);
/* Prints what was found of the cuda engine (mlo_cuda_found). */
MLO_MUST_USE enum mlo_status mlo_local_gpu_print(const json_t *found, struct mlo_error *err);
/* MLO_ENODEVICE, with what to do, where it finds no GPU that can be used. */
MLO_MUST_USE enum mlo_status mlo_local_gpu_needed(const json_t *found, struct mlo_error *err);
/* The recipe named by an option's value: a file's path, or one that is built in. */
MLO_MUST_USE enum mlo_status mlo_local_recipe_text(const char *name, struct mlo_buf *text, bool *builtin,
                                                   struct mlo_error *err);
/* {"value","low","high","n"} (new reference). */
json_t *mlo_local_estimate_json(const struct mlo_estimate *estimate);
/* {"path","digest","size"} of a file (new reference in *out). */
MLO_MUST_USE enum mlo_status mlo_local_file_json(const char *path, json_t **out, struct mlo_error *err);

/* --report: whether its name is one that can be written. */
MLO_MUST_USE enum mlo_status mlo_local_report_check(const struct mlo_cli *cli, struct mlo_error *err);
/* Writes it, where it was asked for: `made` has the models, data, history and threads of what was derived,
 * and a scratch folder. */
MLO_MUST_USE enum mlo_status mlo_local_report(const struct mlo_cli *cli, const struct mlo_step_context *made,
                                              struct mlo_error *err);

/* Prints `bench --profile`, and writes --flame. */
MLO_MUST_USE enum mlo_status mlo_local_profile(const struct mlo_cli *cli, const struct mlo_bench_options *o,
                                               struct mlo_error *err);
/* "1,2,4" of an option: at most MLO_LOCAL_LIST numbers from 1 to `most`; *count is 0 when it was not given.
 */
enum { MLO_LOCAL_LIST = 32 };
MLO_MUST_USE enum mlo_status mlo_local_list(const struct mlo_cli *cli, const char *name, int64_t most,
                                            int64_t out[MLO_LOCAL_LIST], size_t *count,
                                            struct mlo_error *err);
/* Measures and prints one model, or plan, on the device of its engine. */
MLO_MUST_USE enum mlo_status mlo_local_device(const struct mlo_cli *cli,
                                              const struct mlo_bench_options *bench, struct mlo_error *err);
/* For qsort of a profile's nodes (json_t *): those that take longest come first. */
int mlo_local_by_time(const void *a, const void *b);
/* Appends a profile (mlo_profile) as a flame graph: one SVG. */
MLO_MUST_USE enum mlo_status mlo_local_flame(const char *title, const json_t *profile, struct mlo_buf *out,
                                             struct mlo_error *err);
/* Measures and prints `bench --sweep`. */
MLO_MUST_USE enum mlo_status mlo_local_sweep(const struct mlo_cli *cli, const struct mlo_bench_options *bench,
                                             struct mlo_error *err);
/* How an engine (--engine, --threads) runs a model whose dims are bound: its description, as engines.h says.
 */
MLO_MUST_USE enum mlo_status mlo_local_plan(const struct mlo_cli *cli, const struct mlo_model *bound,
                                            json_t **out, struct mlo_error *err);
/* Prints that as a table. */
MLO_MUST_USE enum mlo_status mlo_local_plan_print(const json_t *plan, struct mlo_error *err);

/* Draws a graph as SVG: nodes in layers from top to bottom. */
MLO_MUST_USE enum mlo_status mlo_local_draw(const struct mlo_graph *graph, struct mlo_buf *out,
                                            struct mlo_error *err);

/* How far the outputs of two models are apart on seeded random input. */
struct mlo_deviation {
    double max_abs, max_rel, cosine; /* over all outputs and samples; rel: of the largest |output| of a */
    int samples;
    bool finite; /* false: an output of b holds a NaN or infinity where a does not */
};
MLO_MUST_USE enum mlo_status mlo_local_deviation(const struct mlo_model *a, const struct mlo_model *b,
                                                 const struct mlo_run_options *options,
                                                 const struct mlo_local_dims *dims, int samples,
                                                 struct mlo_deviation *out, struct mlo_error *err);

/* Where long work is kept: --checkpoints, else a folder of the user's cache, which is trimmed; *out is yours,
 * NULL where there is none. */
MLO_MUST_USE enum mlo_status mlo_local_checkpoints(const struct mlo_cli *cli, char **out,
                                                   struct mlo_error *err);
/* --shard 2/4: 1 of 4; without the option 0 of 1. */
MLO_MUST_USE enum mlo_status mlo_local_shard(const struct mlo_cli *cli, int64_t *shard, int64_t *shards,
                                             struct mlo_error *err);
/* The files of --statistics, ended by NULL; NULL without the option. *out is yours, its texts are not. */
MLO_MUST_USE enum mlo_status mlo_local_statistics(const struct mlo_cli *cli, const char ***out,
                                                  struct mlo_error *err);

#endif
