/* The evaluation of a distilled model: a student next to its teacher, on the same samples. Any two models
 * that answer the same question will do: other inputs (each side reads the data in its own way), other names
 * of outputs, another order of classes where a mapping says which stands for which.
 *
 * Outputs are read in pieces of some hundred samples; what stays is about 100 bytes a sample and metric,
 * whatever the models put out. All sums are in double precision and in the order of the samples, logarithms
 * of sums of exponentials are shifted by their greatest, and resampling is seeded: the same samples give the
 * same bytes, with any number of threads and any batch, where the engine does (the cpu engine's invariant
 * numerics, which are the default here). */
#ifndef MLO_MEASURE_DISTILL_H
#define MLO_MEASURE_DISTILL_H

#include "pipeline/measure/measure.h"

/* Names the form of what mlo_distill makes, and of what its numbers mean. */
#define MLO_DISTILL_FORMAT "mlopt-distill-1"
#define MLO_DISTILL_PROTOCOL "distill-1"

enum mlo_distill_task {
    MLO_DISTILL_AUTO,    /* classes where y holds one class number a sample and both give scores of classes */
    MLO_DISTILL_CLASSES, /* one score per class and sample; one score alone is that of the second of two
                            classes */
    MLO_DISTILL_VALUES,  /* regression, embeddings: rows of numbers */
};
enum mlo_distill_scores {
    MLO_SCORES_AUTO, /* probabilities where the first piece's rows are (none negative, sums of 1 within 1e-3)
                      */
    MLO_SCORES_LOGITS,
    MLO_SCORES_PROBABILITIES,
};

/* --- slices --------------------------------------------------------------------------------------------- */

/* Groups of samples that are looked at on their own. */
struct mlo_slices {
    char **names; /* `count` of them, owned */
    size_t count;
    int32_t *of; /* the slice of each sample */
    int64_t samples;
    char *from; /* where they come from, for people */
};
enum { MLO_SLICES_MAX = 1000 }; /* more of them are no slices but identities */
/* Of an array of the dataset with one integer a sample; ordered by number. */
MLO_MUST_USE enum mlo_status mlo_slices_of_column(const struct mlo_dataset *dataset, const char *name,
                                                  struct mlo_slices *out, struct mlo_error *err);
/* Of a text file: the name of its slice for each sample, one a line (of the samples that are left without a
 * limit, or of those that it leaves); ordered by where they occur first. */
MLO_MUST_USE enum mlo_status mlo_slices_of_file(const struct mlo_dataset *dataset, const char *path,
                                                struct mlo_slices *out, struct mlo_error *err);
void mlo_slices_clear(struct mlo_slices *slices);

/* --- the evaluation ------------------------------------------------------------------------------------- */

struct mlo_distill_side {
    const struct mlo_model *model;
    struct mlo_dataset
        *dataset;       /* read as this side wants it; both sides' have the same samples and labels */
    const char *output; /* its name; NULL: the first */
    enum mlo_distill_scores scores;
    const json_t *labels;  /* the names of its classes in order, an array of strings; NULL: not known */
    const json_t *classes; /* of each of its classes, the class (a number from 0, as labels have it) that it
                            * stands for, null or -1 for none: an array; NULL: its own number */
};
struct mlo_distill_options {
    enum mlo_distill_task task;
    double temperature; /* of divergence and soft-label cross-entropy; 0: 1 */
    int bins;           /* of calibration errors; 0: 15 */
    int shown;          /* samples that are listed; 0: 16 */
    struct mlo_run_options run;
    const char *const *metrics; /* of the metric table; none: what fits (top1, or target.mse) */
    size_t metric_count;
    const struct mlo_slices *slices; /* NULL: none */
    mlo_progress_fn *progress;       /* or NULL */
    void *progress_arg;
};

/* Runs both and compares them. *out (yours) is the object that docs/distillation.md describes, without what
 * only the caller knows (files, sizes, latency). MLO_EINVAL, which names the difference, for label sets that
 * are not the same, outputs of other shapes, datasets of other samples; a NaN or an infinity that has no
 * meaning names side, output and sample. */
MLO_MUST_USE enum mlo_status mlo_distill(const struct mlo_distill_side *teacher,
                                         const struct mlo_distill_side *student,
                                         const struct mlo_distill_options *options, json_t **out,
                                         struct mlo_error *err);

/* --- pieces, for tests and other callers -----------------------------------------------------------------
 */

/* {"value","low","high","n"}; where one of the first three is NaN or infinite, which no claim can rest on,
 * {"missing": why, "n"}. Yours; NULL when out of memory. */
json_t *mlo_estimate_json(const struct mlo_estimate *estimate);
/* Why there is no such estimate, in words; NULL where all of it is finite. */
const char *mlo_estimate_missing(const struct mlo_estimate *estimate);
/* Log-probabilities at a temperature of one row of `count` scores: log softmax(z / T), of probabilities
 * with z = log max(p, 1e-30). false: the row holds a NaN, +infinity, or nothing but -infinity. */
bool mlo_log_softmax(const double *scores, size_t count, double temperature, bool probabilities, double *out);
/* KL(p || q) and the cross-entropy -sum p log q of two rows of log-probabilities, in nats. A log q of
 * -infinity stands as log 1e-30. */
void mlo_divergence(const double *log_p, const double *log_q, size_t count, double *kl,
                    double *cross_entropy);

/* Bins of confidences in (0, 1]: of equal width, ((b, b + 1] / bins), or of equal mass: sorted by confidence,
 * ties by sample, and cut into `bins` runs whose lengths differ by one at most. Writes the bin of each
 * sample. false: out of memory. */
void mlo_bins_of_width(const double *confidence, size_t count, int bins, uint16_t *of);
bool mlo_bins_of_mass(const double *confidence, size_t count, int bins, uint16_t *of);
/* The expected calibration error: sum over bins of |sum of (right - confidence)| / count. */
double mlo_calibration_error(const double *confidence, const bool *right, const uint16_t *bin, size_t count,
                             int bins);
/* Holm's step-down correction (1979) of `count` p-values, in place. false: out of memory. */
bool mlo_holm(double *p, size_t count);
/* The interval of a paired difference of proportions (b and c of n pairs disagree, one way and the other) at
 * the level 1 - alpha: Agresti and Min (2005). */
void mlo_paired_interval(int64_t only_a, int64_t only_b, int64_t n, double alpha, double *low, double *high);

#endif
