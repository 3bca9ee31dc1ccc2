/* How much each node suffers when it alone is quantized, and what a model loses in a metric: what mixed
 * precision is chosen by. Everything runs with invariant numerics, so that a choice is the same on any
 * machine, with any number of threads and for any batch. */
#ifndef MLO_STEPS_SENSITIVITY_H
#define MLO_STEPS_SENSITIVITY_H

#include "pipeline/steps/steps.h"

/* --- what a model loses against its source ------------------------------------------------------------- */

struct mlo_judge {
    struct mlo_dataset *dataset; /* borrowed */
    struct mlo_metric_use metric;
    struct mlo_run_options run;
    struct mlo_tensor target, *reference; /* reference: the source's outputs */
    int output_count;
    struct mlo_scores *source;
};
/* Runs the source over the dataset. Clear it in any case. */
MLO_MUST_USE enum mlo_status mlo_judge_init(struct mlo_judge *judge, const struct mlo_model *source,
                                            struct mlo_dataset *dataset, const char *metric, unsigned threads,
                                            int64_t batch, struct mlo_error *err);
void mlo_judge_clear(struct mlo_judge *judge);
/* By how much the model is worse than the source, paired, with a 95% interval: positive is worse, whichever
 * way the metric goes. `model` NULL: the source itself, which no model can undercut. */
MLO_MUST_USE enum mlo_status mlo_judge_drop(const struct mlo_judge *judge, const struct mlo_model *model,
                                            struct mlo_estimate *out, struct mlo_error *err);

/* --- sensitivity --------------------------------------------------------------------------------------- */

/* Decibels are kept within this: outputs that are equal, and noise on what is zero. */
#define MLO_SQNR_MAX_DB 200.0

/* The signal to quantization noise ratio of the outputs in dB: 10 log10(sum of reference squared / sum of
 * differences squared) of the float output that is worst. */
double mlo_outputs_sqnr(const struct mlo_tensor *reference, const struct mlo_tensor *outputs, int count);

struct mlo_sensitivity_row {
    const char *node, *op;
    double sqnr_db;           /* at the outputs, with this node alone in integers */
    double macs;              /* multiply-adds of one sample: what is won by integers */
    int place;                /* in the order of the graph */
    struct mlo_estimate drop; /* in the metric; n is 0 without a judge */
};
struct mlo_sensitivity {
    struct mlo_arena *arena;
    struct mlo_sensitivity_row *rows; /* the most sensitive first */
    size_t count;
};
struct mlo_sensitivity_request {
    const struct mlo_model *model; /* float */
    const json_t *options;         /* of the quantize pass, resolved */
    const struct mlo_stats *stats; /* what mlo_quantize_wants asks for with these options */
    struct mlo_dataset *dataset;   /* what it is run on */
    int64_t samples;               /* the first so many; 0: all */
    const struct mlo_judge *judge; /* or NULL */
    unsigned threads;
    int64_t batch;
    mlo_progress_fn *progress; /* or NULL */
    void *progress_arg;
    uint64_t deadline_ns; /* of mlo_clock_ns: no node is begun after it; 0: none */
    const json_t *known; /* rows of an earlier, unfinished measurement of the same (mlo_sensitivity_json): not
                          * measured again; or NULL. Without a judge only. */
    enum mlo_status (*measured)(void *arg, struct mlo_error *err); /* after each row that is new; or NULL */
    void *measured_arg;
};
/* Quantizes and runs the model once for every node (of mlo_quantize_nodes), the other ones in float: one in,
 * not one out, since behind a node that is ruined the damage of all others drowns. Ties are in the order of
 * the graph. Clear it in any case. */
MLO_MUST_USE enum mlo_status mlo_sensitivity_measure(const struct mlo_sensitivity_request *request,
                                                     struct mlo_sensitivity *out, struct mlo_error *err);
void mlo_sensitivity_clear(struct mlo_sensitivity *sensitivity);
/* Observes the dataset for the quantize pass, then measures: the request without its statistics. */
MLO_MUST_USE enum mlo_status mlo_sensitivity_observe(struct mlo_sensitivity_request request,
                                                     struct mlo_sensitivity *out, struct mlo_error *err);
/* [{"node","op","sqnr_db","macs","drop":{"value","low","high"} or absent}] (new reference). */
json_t *mlo_sensitivity_json(const struct mlo_sensitivity *sensitivity);
/* {"value","low","high"} (new reference). */
json_t *mlo_estimate_interval_json(const struct mlo_estimate *estimate);

/* --- mixed precision within a budget ------------------------------------------------------------------- */

/* "0.5pt", "0.5%" (both 0.005) or a number in the metric's unit. */
MLO_MUST_USE enum mlo_status mlo_budget_parse(const char *text, double *out, struct mlo_error *err);

/* Makes the model that is judged, with the options of the quantize pass; *out is the caller's. */
typedef enum mlo_status mlo_mix_make_fn(void *arg, const json_t *options, struct mlo_model **out,
                                        struct mlo_error *err);
/* Keeps the decision so far (borrowed). */
typedef enum mlo_status mlo_mix_keep_fn(void *arg, const json_t *decision, struct mlo_error *err);

struct mlo_mix_request {
    struct mlo_sensitivity_request
        sensitivity;      /* its judge is of the select data, and is not used for ranking */
    const char *budget;   /* as written */
    int64_t time_limit_s; /* of the search; 0: none */
    const json_t *head;   /* members that every decision begins with: what it is of */
    const json_t *before; /* a decision that a search for the same kept: what it ranked and judged is not done
                           * again, and the result is the one that it would have come to; or NULL */
    mlo_mix_keep_fn *keep; /* called with the decision so far after each ranked node and each judged mix; or
                            * NULL */
    void *keep_arg;
    mlo_mix_make_fn *make;
    void *make_arg;
};
/* Gives nodes back to float, those first that lose most for what integers win there, until the upper end of
 * the drop's 95% interval is within the budget; then takes back what turns out to be needless, or makes it
 * the cheapest precision of the target (mlo_quantize_ladder) with which the budget still holds. *decision
 * (decision.h, a new reference): what was chosen, from what and why. Where the time limit is reached it is
 * the best mix so far: of those that hold the budget the one with most multiply-adds in integers, else the
 * one with the least upper end; "complete" is false then, and "holds" says which. MLO_EEXPECT when nothing
 * but the float model holds the budget, MLO_EINVAL when the samples are too few to show it of any model. */
MLO_MUST_USE enum mlo_status mlo_mix_choose(const struct mlo_mix_request *request, json_t **decision,
                                            struct mlo_error *err);

#endif
