/* Metrics as text for Prometheus: the text format 0.0.4, or OpenMetrics 1.0 (https://openmetrics.io), which
 * differs in the names of counters' families and in its end. A family is begun once, its samples follow it.
 */
#ifndef MLO_BASE_METRICS_H
#define MLO_BASE_METRICS_H

#include "base/str.h"

enum mlo_metric_type { MLO_METRIC_GAUGE, MLO_METRIC_COUNTER, MLO_METRIC_HISTOGRAM, MLO_METRIC_INFO };

struct mlo_metrics {
    struct mlo_buf *out; /* borrowed; check it at the end */
    bool openmetrics;
    const char *name;          /* of the family that was begun last */
    const char *const *common; /* names and values in turn, NULL at the end, on every sample; or NULL */
};

#define MLO_METRICS_TEXT "text/plain; version=0.0.4; charset=utf-8"
#define MLO_METRICS_OPENMETRICS "application/openmetrics-text; version=1.0.0; charset=utf-8"
/* Whether an Accept header (NULL: none was sent) would rather have OpenMetrics. */
bool mlo_metrics_accept(const char *accept);

/* Begins a family. `name` is that of its samples (a counter's ends in _total, an info's in _info), constant;
 * `help` is one line. */
void mlo_metrics_family(struct mlo_metrics *m, enum mlo_metric_type type, const char *name, const char *help);
/* A sample of it; names and values of labels in turn, then NULL. */
void mlo_metrics_value(struct mlo_metrics *m, double value, ...) __attribute__((sentinel));
/* A histogram's samples: counts[i] values were in (bounds[i - 1], bounds[i]], counts[count] beyond the last.
 */
struct mlo_metrics_histogram {
    const double *bounds;
    size_t count;
    const uint64_t *counts; /* count + 1 */
    double sum;
};
void mlo_metrics_histogram(struct mlo_metrics *m, const struct mlo_metrics_histogram *h, ...)
    __attribute__((sentinel));
/* After the last family. */
void mlo_metrics_end(struct mlo_metrics *m);

/* What this process uses, under the names that Prometheus' client libraries have: `prefix` is "process_". */
void mlo_metrics_process(struct mlo_metrics *m, const char *prefix);

#endif
