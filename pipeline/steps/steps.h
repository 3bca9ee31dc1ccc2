/* The public header of pipeline/steps: recipes and the steps they run. Brings graph, passes, engines and
 * measure together; knows no database and no network. */
#ifndef MLO_STEPS_H
#define MLO_STEPS_H

#include "passes/passes.h"
#include "pipeline/measure/measure.h"
#include "pipeline/steps/needs.h"

/* Names the numerics that may enter an artifact's bytes; part of every derivation. */
#define MLO_NUMERICS_ID "invariant-1"
/* Names the form of a report (docs/reports.md). */
#define MLO_REPORT_FORMAT "mlopt-report-1"
/* What a worker offers that can compile plans for GPUs, with or without one. */
#define MLO_TARGET_COMPILE_CUDA "compile:cuda"
/* Behind a GPU's target: what a worker offers that has that very GPU, not one that runs its code too. */
#define MLO_TARGET_EXACT ":exact"

/* --- recipes ----------------------------------------------------------------------------------------------
 */

struct mlo_recipe_step {
    const char *name;       /* of the step table */
    json_t *options;        /* resolved: every option present */
    struct mlo_needs needs; /* its own: what it says nothing of, the recipe's hold (mlo_needs_over) */
    int line;               /* in the recipe's text */
};

/* A parsed, checked recipe; all memory in its arena. */
struct mlo_recipe {
    struct mlo_arena *arena;
    const char *name, *target;
    const char *calibrate, *select, *evaluate; /* dataset names by role; NULL when absent */
    const char
        *postprocess; /* a model between outputs and metrics, for all roles; NULL: what datasets name */
    struct mlo_recipe_step *steps;
    size_t step_count;
    struct mlo_needs needs;       /* of each job of it that says nothing else; enters no derivation */
    struct mlo_condition *expect; /* base/condition.h */
    size_t expect_count;
    json_t *canonical; /* the whole, resolved: its canonical text is the recipe's identity */
};

/* Parses YAML text. `name` stands for the file in errors ("int8-cpu.yaml:7: …"); unknown keys, steps and
 * options are errors with line and nearest known word. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_recipe_parse(const char *text, size_t size, const char *name,
                                              struct mlo_recipe **out, struct mlo_error *err);
/* The same for a command that is given its data as files: no role need be named. */
MLO_MUST_USE enum mlo_status mlo_recipe_parse_of_files(const char *text, size_t size, const char *name,
                                                       struct mlo_recipe **out, struct mlo_error *err);
void mlo_recipe_free(struct mlo_recipe *recipe);
/* Sets one option before anything runs, "quantize.calibrator=percentile", or a dataset,
 * "data.calibrate=shop/calibration", or "postprocess=shop/decode@2" ("none": without), or what its jobs need,
 * "needs.memory=8GB" and "timeout=2h", where a step says nothing else. */
MLO_MUST_USE enum mlo_status mlo_recipe_set(struct mlo_recipe *recipe, const char *assignment,
                                            struct mlo_error *err);
/* What settings may have undone, of which one alone may contradict what another will change: options of a
 * step fit each other, every role that a step needs is there, what selects does not evaluate, and a
 * postprocessing model has a step that makes metrics. */
MLO_MUST_USE enum mlo_status mlo_recipe_check_data(const struct mlo_recipe *recipe, struct mlo_error *err);
/* The recipes that are built into the program (pipeline/recipes), by name; NULL text when unknown. */
const char *mlo_recipe_builtin(const char *name, size_t *size);
const char *const *mlo_recipe_builtin_names(size_t *count);

/* --- steps ------------------------------------------------------------------------------------- */

enum mlo_step_kind {
    MLO_STEP_DERIVE,  /* pure: makes an artifact; cached by derivation key */
    MLO_STEP_OBSERVE, /* makes what belongs to a machine: evidence, or a plan; always afresh */
};

/* What a step works on; paths are of local files that it may only read, except out_dir. */
struct mlo_step_context {
    const json_t *options;   /* resolved */
    const char *model_path;  /* the artifact that the steps before made (or the source) */
    const char *source_path; /* the version's upload */
    const char *calibrate_path, *select_path, *evaluate_path; /* datasets; NULL when the step needs none */
    /* How those are read beyond what they say themselves (normalisation, feeding, the postprocessing model of
     * the recipe; its limit is of the calibration set, and of what distill-eval compares); NULL: as they say.
     */
    const struct mlo_dataset_options *reading;
    /* For a step of `reads_teacher`: the model that it is compared with, what names the classes of both
     * (label files, signature.h), and of which slice each sample is (a file, measure/distill.h). All but the
     * first may be NULL. */
    const char *teacher_path, *teacher_labels_path, *labels_path, *slices_path;
    const char *out_dir; /* scratch: outputs are made here */
    /* For a step of `reads_history`: what the last deriving step before it was given (NULL: the source), and
     * what all of those did, in order: [{"step","options","report"}] (NULL: none). */
    const char *parent_path;
    const json_t *history;
    unsigned threads;
    int64_t batch;   /* for running data through; never changes a derived byte */
    const char *exe; /* for benchmark children; NULL: this program */
    /* Where long work is kept, so that a step that was killed goes on; survives the attempt. NULL: nowhere.
     */
    const char *checkpoint_dir;
    double checkpoint_seconds; /* at most one in that time; 0: as good for people, negative: every one */
    /* Observing on several machines. A step that calibrates observes only part `shard` of `shards` and writes
     * its statistics to `statistics_out`, making no artifact (shards 0: it is not asked to); or it reads
     * these files, ended by NULL, which must hold every sample once, and observes nothing. */
    int64_t shard, shards;
    const char *statistics_out;
    const char *const *statistics;
    /* A decision (decision.h) that a step follows instead of choosing anew: then it needs no select data.
     * NULL: it chooses. And a file where it keeps the best decision so far while it chooses; NULL: none. */
    const char *decision_path, *decision_out;
    /* For a step of `reads_tunings`: decisions of tunings in this project, the newest first; ended by NULL.
     * NULL: none. What is no decision that fits is passed over. */
    const char *const *tunings;
    /* For a step of `reads_run`: what the run did so far (search.h); else NULL. */
    const json_t *run;
    mlo_progress_fn *progress; /* or NULL */
    void *progress_arg;
};

/* What a step returns; clear with mlo_step_result_clear. */
struct mlo_step_result {
    char *artifact_path; /* derive: the new model file in out_dir (owned); NULL for observe */
    json_t *report;      /* object: passes run, nodes quantized, notes… stored with the derivation; owned */
    json_t *observations; /* array, for observe:
        {"subject":"variant"|"source", "metric":"top1", "params":{"batch":1,"threads":1}, "unit":"fraction",
         "value":…,"low":…,"high":…,"n":…, "protocol":"eval-1","engine":"cpu 1 (…)","machine_class":"…",
         "machine":{…}, "data_role":"evaluate" | null,
         "against":{"subject":"source","difference":{"value","low","high"} | "ratio":{"value","low","high"}} |
        absent, "samples": path of a JSON file in out_dir with what was measured, or absent} Evaluations
        compare by difference, benchmarks by ratio (variant / source). */
    json_t *plans;        /* array, for compile: {"path":file in out_dir,"fingerprint":{…},"machine_class"};
                           * unsigned: who keeps it signs it; owned; or NULL */
    char *document_path; /* for report: a JSON file in out_dir that is kept beside the variant; owned; or NULL
                          */
    char *decision_path; /* what the step chose (decision.h): a JSON file in out_dir, whose digest enters the
                          * derivation; owned; or NULL */
};
void mlo_step_result_clear(struct mlo_step_result *result);

/* For a process that runs steps, before it does: blocks of the size of weights go back to the system when
 * they are freed, so that what it holds is what it uses. (glibc keeps them otherwise, once one was freed.) */
void mlo_steps_return_memory(void);

/* So many of a project's tunings a step is given at most. */
enum { MLO_TUNINGS_MAX = 8 };

struct mlo_step {
    const char *name;
    enum mlo_step_kind kind;
    int revision; /* part of the derivation key */
    bool needs_calibrate, needs_select, needs_evaluate;
    /* does without, and reads the set where the recipe names one */
    bool takes_calibrate, takes_evaluate;
    bool reads_history; /* is told what the deriving steps before it did */
    bool reads_teacher; /* is given the model that its option "teacher" names */
    /* Whether it needs the role select with these (resolved) options; NULL: as needs_select says. */
    bool (*selects)(const json_t *options);
    const struct mlo_option_spec *options;
    /* What else its (resolved) options must be, said when a recipe is read; NULL: nothing. */
    enum mlo_status (*check)(const json_t *options, struct mlo_error *err);
    enum mlo_status (*run)(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err);
    const char *pass; /* the only one that it runs: its revision enters the key; NULL: `passes` tells */
    /* Names of the passes it may run with these options: their revisions enter the key. Writes an object
     * {"pass": revision} (new reference). */
    enum mlo_status (*passes)(const json_t *options, json_t **out, struct mlo_error *err);
    const char *description;
    /* What a worker must offer to do it ("any", "cpu", "cuda:sm90", MLO_TARGET_COMPILE_CUDA) with these
     * options in a recipe for `target`; NULL, or returning it: as the recipe's target says. Static, or out of
     * one of the arguments. */
    const char *(*offer)(const json_t *options, const char *target);
    bool exclusive;      /* wants the machine to itself while it runs (benchmark) */
    bool makes_plans;    /* may return plans, one for each of its option "batch" at most */
    bool makes_document; /* may return a document */
    bool makes_decision; /* may return a decision, although it selects nothing on data */
    bool reads_run;      /* is given what the run did so far (context: run) */
    bool reads_tunings;  /* is given what was measured before (context: tunings) */
    bool shards;         /* its calibration can be done in parts (context: shard, statistics) */
};
/* Whether the step is given the calibration set of a recipe that names one. */
static inline bool mlo_step_reads_calibrate(const struct mlo_step *step)
{
    return step->needs_calibrate || step->takes_calibrate;
}
/* The same of the evaluation set. */
static inline bool mlo_step_reads_evaluate(const struct mlo_step *step)
{
    return step->needs_evaluate || step->takes_evaluate;
}
/* Whether the step is given the data of the role select. */
static inline bool mlo_step_reads_select(const struct mlo_step *step, const json_t *options)
{
    return step->needs_select || (step->selects && step->selects(options));
}
/* Whether the step makes metrics of outputs, so that a recipe's postprocessing model stands before them. */
static inline bool mlo_step_reads_postprocess(const struct mlo_step *step, const json_t *options)
{
    return mlo_step_reads_evaluate(step) || mlo_step_reads_select(step, options);
}
const struct mlo_step *const *mlo_step_table(size_t *count);
const struct mlo_step *mlo_step_find(const char *name); /* NULL when unknown */
MLO_MUST_USE enum mlo_status mlo_step_table_check(struct mlo_error *err);

/* The derivation of a DERIVE step: canonical JSON of everything that determines the artifact's bytes:
 *   {"step","revision","options","inputs":{"model":digest},"datasets":{"calibrate":digest},"passes":{…},
 *    "numerics":"invariant-1","decisions":[digest…]}
 * dataset digests are those of manifests; `postprocess` (of the recipe; NULL: none) is an input where the
 * step selects by a metric. *out is yours; its canonical text's SHA-256 is the derivation key.
 */
MLO_MUST_USE enum mlo_status
mlo_step_derivation(const struct mlo_step *step, const json_t *options, const struct mlo_digest *model,
                    const struct mlo_digest *calibrate, const struct mlo_digest *select,
                    const struct mlo_digest *postprocess, const json_t *decisions, json_t **out,
                    struct mlo_error *err);
/* MLO_EUNSUPPORTED, with the first member that differs, where `ours`, which this program would make, is not
 * the derivation that was recorded: then only another version of mlopt can repeat that. */
MLO_MUST_USE enum mlo_status mlo_step_derivation_same(const char *step, const json_t *recorded,
                                                      const json_t *ours, struct mlo_error *err);

/* The child's side of a job: reads <dir>/job.json
 *   {"step","options","model","source","calibrate","select","evaluate" (paths or null),"postprocess" (path,
 *    or absent),"threads","batch","parent","history" (for a step that reads them),
 * "run" (for a step that reads it), "teacher","teacher_labels", "student_labels" (for one that reads the
 * teacher), "checkpoints" (a folder that outlives the attempt, or absent), "tunings" ([path…], or absent)}
 * runs the step, and writes <dir>/result.json
 *   {"status":"ok","artifact":path|null,"report":{…},"observations":[…],"plans":[…],"document":path|null,
 *    "decision":path|null}  or
 *   {"status":code,"message","where","hint"}
 * Progress goes to progress_fd as JSON lines {"fraction":0.4,"message":"…"}; -1: nowhere. */
MLO_MUST_USE enum mlo_status mlo_step_child(const char *dir, int progress_fd, struct mlo_error *err);

/* Whether the expectations hold for a run's observations (all of them, over all steps). *results is an array,
 * one
 * {"condition","holds","reason"} each (yours); MLO_EEXPECT with the first reason when one does not hold. Each
 * comparison reads the bound of the interval that is against the claim. */
MLO_MUST_USE enum mlo_status mlo_recipe_expect(const struct mlo_recipe *recipe, const json_t *observations,
                                               json_t **results, struct mlo_error *err);

#endif
