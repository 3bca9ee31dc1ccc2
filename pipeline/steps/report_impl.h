/* The parts of the step report. What they make is described in docs/reports.md; nothing in it depends on the
 * machine, threads or the batch, and no time is in it. */
#ifndef MLO_STEPS_REPORT_IMPL_H
#define MLO_STEPS_REPORT_IMPL_H

#include "pipeline/steps/step_impl.h"

/* What is compared. `reference` is what the last deriving step was given: the float model whose values the
 * variant's stand for (before it, other steps may have scaled them). Models are typed. */
struct mlo_report_subject {
    const struct mlo_step_context *ctx;
    const struct mlo_model *source, *reference, *variant;
    const struct mlo_model
        *running;          /* the variant with its weights as floats: the same weights, in less time */
    const json_t *history; /* of the context; an array */
    double from, to;       /* of the step's progress */
};

/* --- quantized values (report_values.c) ---------------------------------------------------------------- */

/* The integers that stand for a value: x is scale * (q - zero), q within [low, high]. */
struct mlo_report_grid {
    enum mlo_dtype dtype; /* MLO_DTYPE_NONE: it is not quantized, or has a scale a channel */
    float scale;
    int64_t zero, low, high;
};
/* A float value of the reference, and the variant's that stands for it. */
struct mlo_report_pair {
    const char *name, *variant;
    bool integers; /* the variant's value holds integers of the grid */
    struct mlo_report_grid grid;
};
/* All pairs in the order of the reference: the variant's value of the same name; where that is quantized,
 * what its readers see. *out is in the arena. */
MLO_MUST_USE enum mlo_status mlo_report_pairs(const struct mlo_graph *reference,
                                              const struct mlo_graph *variant, struct mlo_arena *arena,
                                              struct mlo_report_pair **out, size_t *count,
                                              struct mlo_error *err);

/* Where an op keeps its weights and the parameters of its output; -1: it has none. */
struct mlo_report_places {
    const char *op_type;
    int weights, y_scale; /* scale and zero point follow the weights; the zero point follows the scale */
};
/* Of an op that computes in integers (QLinearConv and the like); NULL: it is none. */
const struct mlo_report_places *mlo_report_places_of(const struct mlo_node *node);

/* The node of `graph` that does what `node` of the other graph does: of the same name, or of the name that
 * the passes give to the integer form of an op. `variant`: the graph is the variant's, else the reference's.
 * *hint: where to begin, and where the next one is likely; 0 at first. */
const struct mlo_node *mlo_report_partner(const struct mlo_graph *graph, bool variant,
                                          const struct mlo_node *node, int *hint);

/* The float32 weights that a node of the variant computes with, from whatever form they have (float, half,
 * behind DequantizeLinear, in blocks, packed): as many as `was`, its partner in the reference, has, laid out
 * as there. *dtype: what is stored. NULL in *out: they are no constants, or in a form that is not known.
 * Yours (free). */
MLO_MUST_USE enum mlo_status mlo_report_weights_of(const struct mlo_node *node, const struct mlo_node *was,
                                                   float **out, enum mlo_dtype *dtype, size_t *scales,
                                                   struct mlo_error *err);

/* --- the members of the report ------------------------------------------------------------------------- */

/* 10 log10(signal / noise) within +-MLO_SQNR_MAX_DB, rounded to 0.01: the same text on every machine. */
double mlo_report_db(double signal, double noise);
/* {"low","width","counts":[…]}: at most `most` bins, whose width is a power of two, from the first value to
 * the last; NULL without values (new reference). */
json_t *mlo_report_histogram(const struct mlo_tensor_stats *stats, int most);

/* "tensors": weights, and values where there is data (`dataset` may be NULL); the worst first. */
MLO_MUST_USE enum mlo_status mlo_report_tensors(const struct mlo_report_subject *subject,
                                                struct mlo_dataset *dataset, int64_t samples, json_t **out,
                                                struct mlo_error *err);
/* "precision": of each node, and why those that stay in float do. `bound` is the reference with its dims
 * fixed as far as they can be. */
MLO_MUST_USE enum mlo_status mlo_report_precision(const struct mlo_report_subject *subject,
                                                  const struct mlo_model *bound, json_t **out,
                                                  struct mlo_error *err);
/* "accuracy" and "samples": both models on all of the dataset. `metrics` are names, or empty: what fits. */
MLO_MUST_USE enum mlo_status mlo_report_accuracy(const struct mlo_report_subject *subject,
                                                 struct mlo_dataset *dataset, const json_t *metrics,
                                                 json_t **accuracy, json_t **samples, struct mlo_error *err);

/* "digest", "file_bytes", "weight_bytes", "nodes" and "opset" of a model's file. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_report_model_json(const char *path, const struct mlo_model *model,
                                                   json_t **out, struct mlo_error *err);
/* A copy of the model whose dims are fixed as far as the dataset (or NULL) and a batch tell. *out is yours.
 */
MLO_MUST_USE enum mlo_status mlo_report_bound(const struct mlo_model *model,
                                              const struct mlo_dataset *dataset, int64_t batch,
                                              struct mlo_model **out, struct mlo_error *err);

#endif
