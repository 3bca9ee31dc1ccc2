/* What the files of the distillation evaluation share. */
#ifndef MLO_MEASURE_DISTILL_IMPL_H
#define MLO_MEASURE_DISTILL_IMPL_H

#include "pipeline/measure/distill.h"
#include "pipeline/measure/run_impl.h"
#include "pipeline/measure/scores_impl.h"

enum { MLO_DISTILL_TEACHER, MLO_DISTILL_STUDENT, MLO_DISTILL_SIDES, MLO_DISTILL_METRICS = 8 };
extern const char *const mlo_distill_names[MLO_DISTILL_SIDES]; /* "teacher", "student" */

/* Why a sample has no distance between its outputs. */
enum mlo_distill_apart {
    MLO_DISTILL_NEAR,   /* it has one */
    MLO_DISTILL_MASKED, /* infinite in one of them alone */
    MLO_DISTILL_LARGE,  /* squares that overflow */
};

/* What is kept of a sample. */
struct mlo_distill_row {
    double kl, cross_entropy; /* at the temperature */
    double cosine, mse;       /* of the outputs as they are; NAN where `apart` says why there is none */
    enum mlo_distill_apart apart;
    double confidence[MLO_DISTILL_SIDES];
    double error[MLO_DISTILL_SIDES]; /* mean squared, against y; of values */
    int32_t best[MLO_DISTILL_SIDES]; /* class */
    int32_t label;                   /* -1: none */
};

/* All that was seen. */
struct mlo_distill {
    const struct mlo_distill_options *o;
    const struct mlo_distill_side *in[MLO_DISTILL_SIDES];
    double temperature;
    int bins, shown;
    bool classes;                    /* the task */
    bool labels, targets;            /* y holds class numbers; values of the output's shape */
    size_t class_count;              /* common classes */
    size_t width[MLO_DISTILL_SIDES]; /* scores a sample, own */
    bool single[MLO_DISTILL_SIDES];  /* it puts out one score, that of the second of two classes */
    bool probabilities[MLO_DISTILL_SIDES];
    char output[MLO_DISTILL_SIDES][128];
    const json_t *class_names; /* borrowed; NULL: not known */
    int64_t count;
    struct mlo_distill_row *rows;
    struct mlo_metric_use metrics[MLO_DISTILL_METRICS];
    size_t metric_count;
    struct mlo_scores *scores[MLO_DISTILL_METRICS][MLO_DISTILL_SIDES];
};

/* One side while it runs. */
struct mlo_distill_run {
    struct mlo_evaluator *evaluator;
    struct mlo_tensor *outputs; /* of a piece */
    int output_count, index;    /* which of them is compared */
    struct mlo_tensor mapped;   /* log-probabilities of the common classes, where metrics read those */
    struct mlo_tensor whole;    /* of all samples, for metrics that need that */
    double *raw, *log_p, *tempered, *common, *common_tempered; /* of one sample */
};
struct mlo_distill_work {
    struct mlo_distill *d;
    struct mlo_distill_run runs[MLO_DISTILL_SIDES];
    struct mlo_tensor target; /* all of y */
    bool keep_whole;
};
static inline const struct mlo_tensor *mlo_distill_output(const struct mlo_distill_run *run)
{
    return &run->outputs[run->index];
}
/* Whether the outputs as they are are of one kind, so that distances between them mean something. */
static inline bool mlo_distill_alike(const struct mlo_distill *d)
{
    return !d->classes ||
           (!d->in[0]->classes && !d->in[1]->classes && d->probabilities[0] == d->probabilities[1]);
}
/* Whether metrics read log-probabilities of the common classes instead of the output itself. */
static inline bool mlo_distill_translates(const struct mlo_distill *d, int side)
{
    return d->classes && (d->in[side]->classes || d->single[side]);
}
/* Keeps what is needed of the piece's samples, `at` and on (distill_sample.c). */
MLO_MUST_USE enum mlo_status mlo_distill_samples(struct mlo_distill_work *w, int64_t at, size_t rows,
                                                 struct mlo_error *err);

/* Runs both sides, and fills all of it (distill.c). Clear it in any case. */
MLO_MUST_USE enum mlo_status mlo_distill_observe(struct mlo_distill *d, struct mlo_error *err);
void mlo_distill_clear(struct mlo_distill *d);

/* Whether the two sides speak of the same classes (distill_classes.c): sets class_count and class_names. */
MLO_MUST_USE enum mlo_status mlo_distill_match_classes(struct mlo_distill *d, struct mlo_error *err);
/* Of a side's own class: the common class, or -1. */
int64_t mlo_distill_class_of(const struct mlo_distill_side *side, size_t own);

/* The members of the result (distill_json.c, distill_parts.c); new references in *out. */
MLO_MUST_USE enum mlo_status mlo_distill_json(const struct mlo_distill *d, json_t **out,
                                              struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_distill_parts(const struct mlo_distill *d, json_t *out,
                                               struct mlo_error *err);
/* Sets the number; of a NaN or an infinity, which JSON has no form for, a text under "missing" says what it
 * was. false: out of memory. */
bool mlo_distill_put(json_t *out, const char *key, double value);

/* Whether the side gives the sample its label. */
static inline bool mlo_distill_right(const struct mlo_distill_row *row, int side)
{
    return row->label >= 0 && row->best[side] == row->label;
}

#endif
