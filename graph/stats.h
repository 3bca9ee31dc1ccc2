/* Statistics that engines observe on tensors and calibrators read.
 *
 * Streaming, of bounded memory, mergeable, and independent of how samples were split into batches and shards:
 * the histogram's bin width is always a power of two and doubles when a value falls outside, so any order of
 * the same values gives the same bins; sums and moving averages are added up in a tree over the samples'
 * numbers, so that who saw which samples leaves no trace in their rounding either. Only Gram matrices are
 * chains over all samples in order, and cannot be merged to the bit. */
#ifndef MLO_GRAPH_STATS_H
#define MLO_GRAPH_STATS_H

#include "graph/tensor.h"

#define MLO_STATS_EMA 0.0078125 /* 1/128: a power of two, so that a factor 1 - 1/128 is exact */
enum { MLO_HIST_BINS = 4096 };  /* half for negative values, half for positive ones */

/* What is added up over samples, as nodes of a binary tree over the samples' numbers: a node stands for
 * 2^log2 samples from `first` on, a multiple of that, and is what its two halves come to. Nodes whose both
 * halves are there are joined at once, so the nodes that are left, and every rounding in them, follow from
 * the set of samples alone. There are about log2 of the number of samples where these follow each other. */
struct mlo_sums_node {
    uint64_t first;
    unsigned log2;
};
struct mlo_sample_sums {
    size_t width;                /* numbers of a node */
    struct mlo_sums_node *nodes; /* in order of samples; owned, as are their numbers */
    double *numbers;
    size_t count, cap;
};

struct mlo_tensor_stats {
    const char *name; /* of the value; owned */
    uint64_t count;   /* finite elements seen */
    uint64_t nan_count, inf_count;
    float min, max;     /* of finite elements */
    double sum, sum_sq; /* of finite elements */
    uint64_t samples;
    /* Exponential moving averages of the samples' extremes, in sample order, each of weight MLO_STATS_EMA:
     * the average is the value divided by ema_weight, which is what the weights of all samples add up to. */
    double ema_min, ema_max, ema_weight;
    uint64_t next;               /* number of the sample that is added next */
    struct mlo_sample_sums sums; /* of sum, sum_sq and the averages */
    int log2_width;              /* bin b covers [(b - BINS/2) * 2^w, (b + 1 - BINS/2) * 2^w) */
    uint64_t *bins;              /* MLO_HIST_BINS counts; owned */
};

/* What is kept of each channel of a value. */
struct mlo_channel_stats {
    const char *name; /* of the value; owned */
    int64_t channels;
    uint64_t *count;    /* finite elements seen, per channel */
    uint64_t bad_count; /* NaN and infinities */
    float *min, *max;   /* of finite elements; 0 where there were none */
    double *sum, *sum_sq;
    uint64_t samples;
    uint64_t next;               /* number of the sample that is added next */
    struct mlo_sample_sums sums; /* of all sums, then all of squares */
};

/* What a weighted node multiplies its weights with, as the rows of a matrix X: X^T X, which says how errors
 * of weights become errors of outputs. Of a Conv each row is one window (input channel, then kernel position,
 * as its weights lie); each group has a matrix of its own. Products of two float32 are exact in double and
 * are added one row after the other, so batch, threads and instruction set leave no trace. Of a sample's rows
 * at most MLO_GRAM_ROWS are taken, spread evenly. */
struct mlo_gram {
    const char *key; /* what rows they are: mlo_gram_key; owned */
    int64_t groups, dim;
    bool full;        /* else only the diagonal is kept */
    uint64_t rows;    /* of each group */
    uint64_t skipped; /* rows with NaN or infinity */
    double *sum;      /* groups x dim: of the rows */
    double *matrix;   /* groups x (upper triangle by rows, or diagonal) */
};
enum {
    MLO_GRAM_ROWS = 1021,    /* of a sample; prime, so that the choice does not follow an image's columns */
    MLO_GRAM_DIM_MAX = 4608, /* of a full matrix; beyond it the diagonal alone is kept */
};

struct mlo_stats {
    struct mlo_tensor_stats *tensors; /* sorted by name after mlo_stats_sort */
    size_t count, cap;
    struct mlo_channel_stats *channels; /* the same */
    size_t channel_count, channel_cap;
    struct mlo_gram *grams; /* sorted by key */
    size_t gram_count, gram_cap;
    uint64_t first; /* number of the sample that is added first to what is not there yet */
    char *origin;   /* what the samples are and what they went through, or NULL; owned */
};

/* What is to be observed of a value. */
struct mlo_stats_want {
    const char *name; /* of the value; borrowed */
    bool histogram;
    int channel_axis;            /* of its statistics per channel; 0: none, negative: from the end */
    const struct mlo_node *gram; /* a node that multiplies it with weights, for its matrix; or NULL */
    bool full;                   /* the whole matrix, else the diagonal */
};
struct mlo_stats_wants {
    struct mlo_stats_want *list;
    size_t count, cap;
};
/* Adds one, or adds to what is wanted of the same value; false: out of memory. */
bool mlo_stats_wants_add(struct mlo_stats_wants *wants, const struct mlo_stats_want *want);
/* Frees the list; a zeroed struct is an empty one. */
void mlo_stats_wants_clear(struct mlo_stats_wants *wants);

void mlo_stats_init(struct mlo_stats *stats);
void mlo_stats_clear(struct mlo_stats *stats);
/* The entry for a value, made when absent; NULL: out of memory. */
struct mlo_tensor_stats *mlo_stats_get(struct mlo_stats *stats, const char *name);
/* The entry, or NULL. */
const struct mlo_tensor_stats *mlo_stats_find(const struct mlo_stats *stats, const char *name);
/* Adds one sample's values (float32). */
MLO_MUST_USE enum mlo_status mlo_tensor_stats_add(struct mlo_tensor_stats *t, const float *values,
                                                  size_t count, struct mlo_error *err);
struct mlo_pool;
/* The same for samples that lie one behind the other, `count` values each; the pool (or NULL) shares them. */
MLO_MUST_USE enum mlo_status mlo_tensor_stats_add_all(struct mlo_tensor_stats *t, const float *values,
                                                      size_t count, size_t samples, struct mlo_pool *pool,
                                                      struct mlo_error *err);

/* --- per channel ------------------------------------------------------------------------------- */

/* The entry for a value, made when absent. NULL: out of memory, or it is there with another number. */
struct mlo_channel_stats *mlo_stats_get_channels(struct mlo_stats *stats, const char *name, int64_t channels);
const struct mlo_channel_stats *mlo_stats_find_channels(const struct mlo_stats *stats, const char *name);
/* Adds one sample's values, which lie as [outer][channels][inner]. */
MLO_MUST_USE enum mlo_status mlo_channel_stats_add(struct mlo_channel_stats *c, const float *values,
                                                   size_t outer, size_t inner, struct mlo_error *err);

/* --- Gram matrices ----------------------------------------------------------------------------- */

struct mlo_node;
enum { MLO_GRAM_KEY = 512 };
/* Writes what names the rows of a Conv's, Gemm's or MatMul's input 0 (nodes that read one value in the same
 * way share them; a QuantizeLinear/DequantizeLinear pair in between is looked through) into `out`, which is
 * returned. */
char *mlo_gram_key(const struct mlo_node *node, char out[MLO_GRAM_KEY]);
/* Why there are no such rows for the node (weights that are not known, a kernel of more than three
 * dimensions…); NULL: there are. Also their number of groups and their length. */
const char *mlo_gram_shape(const struct mlo_node *node, int64_t *groups, int64_t *dim);
/* The entry for a node's input 0, made when absent (full only up to MLO_GRAM_DIM_MAX). NULL: out of memory,
 * or mlo_gram_shape refuses the node. */
struct mlo_gram *mlo_stats_get_gram(struct mlo_stats *stats, const struct mlo_node *node, bool full);
/* The entry that belongs to the node, or NULL. */
const struct mlo_gram *mlo_stats_find_gram(const struct mlo_stats *stats, const struct mlo_node *node);
/* Adds the rows of one sample: its input 0, float32. The pool (or NULL) shares the work. */
MLO_MUST_USE enum mlo_status mlo_gram_add(struct mlo_gram *gram, const struct mlo_node *node,
                                          const struct mlo_tensor *sample, struct mlo_pool *pool,
                                          struct mlo_error *err);
/* Element (i, j) of group g; 0 off the diagonal where only that is kept. */
double mlo_gram_at(const struct mlo_gram *gram, int64_t g, int64_t i, int64_t j);

/* Of pairs: each row followed by what the node is to make of it, one output after the other (of a group: that
 * group's), so that one matrix holds X^T X, X^T Y and Y^T Y of a least squares fit. `key` is the node's name,
 * `dim` both together. *pair comes in uninitialized; mlo_gram_pair_clear it, also on failure. */
MLO_MUST_USE enum mlo_status mlo_gram_pair_init(struct mlo_gram *pair, const struct mlo_node *node,
                                                struct mlo_error *err);
void mlo_gram_pair_clear(struct mlo_gram *pair);
/* The outputs of a group, as mlo_gram_shape tells the rest. */
const char *mlo_gram_outs(const struct mlo_node *node, int64_t *outs);
/* Adds at most `rows` rows of one sample: float32 input 0, and outputs of the shape that the node makes. */
MLO_MUST_USE enum mlo_status mlo_gram_pair_add(struct mlo_gram *pair, const struct mlo_node *node,
                                               const struct mlo_tensor *x, const struct mlo_tensor *y,
                                               size_t rows, struct mlo_pool *pool, struct mlo_error *err);

/* --- all of it --------------------------------------------------------------------------------- */

/* Adds all of `more`: what one observer of all samples would have, to the bit. MLO_EINVAL when both saw the
 * same sample of a value, come from different origins, know a value by different numbers of channels, or both
 * have rows of one Gram matrix. */
MLO_MUST_USE enum mlo_status mlo_stats_merge(struct mlo_stats *into, const struct mlo_stats *more,
                                             struct mlo_error *err);
void mlo_stats_sort(struct mlo_stats *stats);
/* The value below which a fraction p of |values|' histogram lies, from both ends: range that keeps the
 * central `percentile` percent (e.g. 99.99), linear inside a bin, clamped to [min, max]. */
void mlo_tensor_stats_percentile(const struct mlo_tensor_stats *t, double percentile, float *low,
                                 float *high);

/* All of it as a file (JSON, then the numbers of matrices), so that observing can go on later or elsewhere:
 * what is read goes on exactly as what was written would have. */
MLO_MUST_USE enum mlo_status mlo_stats_save(const struct mlo_stats *stats, const char *path,
                                            struct mlo_error *err);
/* *out comes in uninitialized, and is empty on failure. */
MLO_MUST_USE enum mlo_status mlo_stats_load(const char *path, struct mlo_stats *out, struct mlo_error *err);

/* JSON in and out (bins run-length coded), for blobs: equal stats give equal canonical text. Histograms and
 * channels; matrices are in files only. */
MLO_MUST_USE enum mlo_status mlo_stats_to_json(const struct mlo_stats *stats, json_t **out,
                                               struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_stats_from_json(const json_t *json, struct mlo_stats *out,
                                                 struct mlo_error *err);

#endif
