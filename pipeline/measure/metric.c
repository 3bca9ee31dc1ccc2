#include <string.h>

#include "pipeline/measure/metric_impl.h"

static const struct mlo_metric table[] = {
    {"top1", "fraction", true, true, true, false, mlo_scores_top1,
     "share of samples whose label has the highest score"},
    {"top5", "fraction", true, true, true, false, mlo_scores_top5,
     "share of samples whose label is among the five highest scores"},
    {"mse", "1", false, false, false, true, mlo_scores_mse,
     "mean squared error against the outputs of the baseline model"},
    {"cosine", "1", true, false, false, true, mlo_scores_cosine,
     "mean cosine similarity with the outputs of the baseline model"},
};

const struct mlo_metric *mlo_metric_table(size_t *count)
{
    *count = MLO_COUNT(table);
    return table;
}

enum mlo_status mlo_metric_find(const char *name, const struct mlo_metric **out, struct mlo_error *err)
{
    const char *names[MLO_COUNT(table)];
    for (size_t i = 0; i < MLO_COUNT(table); i++) {
        names[i] = table[i].name;
        if (strcmp(names[i], name) == 0) {
            *out = &table[i];
            return MLO_OK;
        }
    }
    const char *near = mlo_suggest(name, names, MLO_COUNT(names));
    mlo_error_set(err, MLO_EINVAL, "there is no metric '%s'%s%s%s", name, near ? "; did you mean '" : "",
                  near ? near : "", near ? "'?" : "");
    struct mlo_buf list = MLO_BUF_INIT;
    for (size_t i = 0; i < MLO_COUNT(names); i++)
        mlo_buf_printf(&list, "%s%s", i ? ", " : "", names[i]);
    mlo_error_hint(err, "metrics: %s", mlo_buf_str(&list));
    mlo_buf_clear(&list);
    return MLO_EINVAL;
}
