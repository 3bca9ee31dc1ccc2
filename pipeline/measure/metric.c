#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/metric_impl.h"

enum {
    TARGET = MLO_METRIC_TARGET,
    REFERENCE = MLO_METRIC_REFERENCE,
    GROUPS = MLO_METRIC_GROUPS,
    K_MAX = 1000000
};

static const struct mlo_metric table[] = {
    {"top", "fraction", true, true, TARGET, &mlo_statistic_share, mlo_record_top,
     "topK: share of samples whose label is among the K highest scores"},
    {"f1", "fraction", true, false, TARGET, &mlo_statistic_f1, mlo_record_f1,
     "F1 of each class, averaged over the classes that occur"},
    {"f1.positive", "fraction", true, false, TARGET, &mlo_statistic_f1_positive, mlo_record_f1,
     "F1 of class 1"},
    {"auc", "fraction", true, false, TARGET, &mlo_statistic_auc, mlo_record_auc,
     "area under the ROC curve of a score, or of two classes' scores"},
    {"agreement", "fraction", true, false, REFERENCE, &mlo_statistic_share, mlo_record_agreement,
     "share of samples with the baseline model's class"},
    {"kl", "nats", false, false, REFERENCE, &mlo_statistic_mean, mlo_record_kl,
     "Kullback-Leibler divergence of the model's class probabilities from the baseline model's"},
    {"mse", "1", false, false, REFERENCE, &mlo_statistic_mean, mlo_record_mse,
     "mean squared error against the outputs of the baseline model"},
    {"mae", "1", false, false, REFERENCE, &mlo_statistic_mean, mlo_record_mae,
     "mean absolute error against the outputs of the baseline model"},
    {"psnr", "dB", true, false, REFERENCE, &mlo_statistic_mean, mlo_record_psnr,
     "peak signal to noise ratio against the outputs of the baseline model, peak 1"},
    {"cosine", "1", true, false, REFERENCE, &mlo_statistic_mean, mlo_record_cosine,
     "mean cosine similarity with the outputs of the baseline model"},
    {"target.mse", "1", false, false, TARGET, &mlo_statistic_mean, mlo_record_target_mse,
     "mean squared error against y"},
    {"target.mae", "1", false, false, TARGET, &mlo_statistic_mean, mlo_record_target_mae,
     "mean absolute error against y"},
    {"target.psnr", "dB", true, false, TARGET, &mlo_statistic_mean, mlo_record_target_psnr,
     "peak signal to noise ratio against y: peak 255 where y is of bytes, else 1"},
    {"target.cosine", "1", true, false, TARGET, &mlo_statistic_mean, mlo_record_target_cosine,
     "mean cosine similarity with y"},
    {"spearman", "1", true, false, TARGET, &mlo_statistic_spearman, mlo_record_spearman,
     "Spearman's rank correlation of the output, one number a sample, with y"},
    {"hit", "fraction", true, true, TARGET | GROUPS, &mlo_statistic_share, mlo_record_hit,
     "hitK: share of groups with a relevant sample (y > 0) among their K highest scores"},
    {"ndcg", "fraction", true, true, TARGET | GROUPS, &mlo_statistic_mean, mlo_record_ndcg,
     "ndcgK: normalised discounted cumulative gain of the K highest scores of each group, gain 2^y - 1"},
    {"perplexity", "1", false, false, TARGET, &mlo_statistic_perplexity, mlo_record_perplexity,
     "exp of the mean negative log-likelihood of the tokens in y; negative ones do not count"},
    {"map", "fraction", true, false, TARGET, &mlo_statistic_map, mlo_record_boxes,
     "mean average precision of boxes over IoU 0.50 to 0.95, as COCO has it"},
    {"map50", "fraction", true, false, TARGET, &mlo_statistic_map50, mlo_record_boxes,
     "mean average precision of boxes at IoU 0.50"},
};

const struct mlo_metric *mlo_metric_table(size_t *count)
{
    *count = MLO_COUNT(table);
    return table;
}

/* "top" + "5": a number without sign or leading zero. */
static bool parse_k(const char *text, int64_t *out)
{
    char *end;
    if (*text < '1' || *text > '9')
        return false;
    long long k = strtoll(text, &end, 10);
    *out = k;
    return *end == '\0' && k <= K_MAX;
}

enum mlo_status mlo_metric_find(const char *name, struct mlo_metric_use *out, struct mlo_error *err)
{
    enum { EXAMPLES = 2, NAMES_MAX = MLO_COUNT(table) * EXAMPLES };
    char examples[NAMES_MAX][24];
    const char *names[NAMES_MAX];
    size_t count = 0;
    *out = (struct mlo_metric_use){0};
    for (size_t i = 0; i < MLO_COUNT(table); i++) {
        size_t length = strlen(table[i].name);
        if (table[i].takes_k ? strncmp(name, table[i].name, length) == 0 && parse_k(name + length, &out->k)
                             : strcmp(name, table[i].name) == 0) {
            out->row = &table[i];
            snprintf(out->name, sizeof out->name, "%s", name);
            return MLO_OK;
        }
        for (int e = 0; e < (table[i].takes_k ? EXAMPLES : 1); e++) {
            snprintf(examples[count], sizeof examples[count], "%s%s", table[i].name,
                     !table[i].takes_k ? ""
                     : e               ? "5"
                                       : "1");
            names[count] = examples[count];
            count++;
        }
    }
    const char *near = mlo_suggest(name, names, count);
    mlo_error_set(err, MLO_EINVAL, "there is no metric '%s'%s%s%s", name, near ? "; did you mean '" : "",
                  near ? near : "", near ? "'?" : "");
    struct mlo_buf list = MLO_BUF_INIT;
    for (size_t i = 0; i < MLO_COUNT(table); i++)
        mlo_buf_printf(&list, "%s%s%s", i ? ", " : "", table[i].name, table[i].takes_k ? "K" : "");
    mlo_error_hint(err, "metrics: %s (K is a number)", mlo_buf_str(&list));
    mlo_buf_clear(&list);
    return MLO_EINVAL;
}

static enum mlo_status check_needs(const struct mlo_metric_use *use, const struct mlo_metric_data *data,
                                   struct mlo_error *err)
{
    const struct {
        unsigned need;
        const void *have;
        const char *what, *hint;
    } needs[] = {
        {TARGET, data->target, "needs labels, and the dataset has none",
         "add an array 'y' with a label (or what else is to be predicted) for each sample"},
        {REFERENCE, data->reference, "compares with a baseline model, and none is given",
         "in a recipe: compare_to: source; on the command line: --against BASE.onnx"},
        {GROUPS, data->groups, "ranks the samples of a group, and the dataset has no groups",
         "add an array 'group' with the number of its group (a user, a query) for each sample"},
    };
    for (size_t i = 0; i < MLO_COUNT(needs); i++) {
        if (!(use->row->needs & needs[i].need) || needs[i].have)
            continue;
        mlo_error_set(err, MLO_EINVAL, "the metric '%s' %s", use->name, needs[i].what);
        mlo_error_hint(err, "%s", needs[i].hint);
        return MLO_EINVAL;
    }
    return MLO_OK;
}

enum mlo_status mlo_metric_score(const struct mlo_metric_use *use, const struct mlo_metric_data *data,
                                 struct mlo_scores **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_scores *scores = calloc(1, sizeof *scores);
    *out = NULL;
    if (!scores)
        return mlo_error_nomem(err);
    scores->metric = use->row;
    scores->k = use->k;
    MLO_TRY(check_needs(use, data, err));
    MLO_TRY(use->row->record(data, scores, err));
    *out = scores;
    scores = NULL;
out:
    if (status != MLO_OK)
        mlo_error_prefix(err, "metric %s", use->name);
    mlo_scores_free(scores);
    return status;
}
