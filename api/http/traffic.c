/* Requests by route: counters of this process, each of them an atomic, so that counting waits for nobody.
 * Series are as many as routes and statuses that were used: a path that fits no route counts under "none". */
#include <stdlib.h>
#include <string.h>

#include "api/http/http_impl.h"

static const double BOUNDS[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60};
static const int STATUSES[] = {200, 201, 202, 204, 206, 302, 303, 304, 307, 400, 401, 403, 404, 405, 408,
                               409, 410, 412, 413, 415, 416, 422, 428, 429, 500, 502, 503, 504, 507};
enum { BOUND_COUNT = MLO_COUNT(BOUNDS), STATUS_COUNT = MLO_COUNT(STATUSES) + 1 }; /* the last: any other */

struct meter {
    _Atomic uint64_t statuses[STATUS_COUNT], buckets[BOUND_COUNT + 1], ns, received, sent;
};

struct mlo_traffic {
    size_t count; /* of routes; the meter behind them counts what fits none */
    _Atomic uint64_t cut;
    struct meter meters[];
};

enum mlo_status mlo_traffic_new(const struct mlo_http *http, struct mlo_traffic **out, struct mlo_error *err)
{
    size_t count = 0;
    for (size_t i = 0; i < http->module_count; i++)
        count += http->modules[i].count;
    *out = calloc(1, sizeof **out + (count + 1) * sizeof(struct meter));
    if (!*out)
        return mlo_error_nomem(err);
    (*out)->count = count;
    return MLO_OK;
}

void mlo_traffic_free(struct mlo_traffic *traffic)
{
    free(traffic);
}

static size_t index_of(const struct mlo_http *http, const struct mlo_request *req)
{
    size_t at = 0;
    for (size_t i = 0; req->route && i < http->module_count; at += http->modules[i++].count)
        if (req->module == &http->modules[i])
            return at + (size_t)(req->route - http->modules[i].routes);
    return http->traffic->count;
}

void mlo_traffic_count(struct mlo_http *http, const struct mlo_request *req, bool whole)
{
    struct meter *meter = &http->traffic->meters[index_of(http, req)];
    uint64_t ns = mlo_clock_ns() - req->state->started_ns;
    size_t status = 0, bucket = 0;
    while (status < MLO_COUNT(STATUSES) && STATUSES[status] != req->status)
        status++;
    while (bucket < BOUND_COUNT && (double)ns / 1e9 > BOUNDS[bucket])
        bucket++;
    atomic_fetch_add_explicit(&meter->statuses[status], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&meter->buckets[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&meter->ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&meter->received, req->state->body_size, memory_order_relaxed);
    atomic_fetch_add_explicit(&meter->sent, req->state->sent_size, memory_order_relaxed);
    if (!whole)
        atomic_fetch_add_explicit(&http->traffic->cut, 1, memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit((_Atomic uint64_t *)counter, memory_order_relaxed);
}

typedef void meter_fn(const struct meter *meter, struct mlo_metrics *m, const char *method,
                      const char *route);

static void each(const struct mlo_http *http, struct mlo_metrics *m, meter_fn *fn)
{
    const struct meter *meter = http->traffic->meters;
    for (size_t i = 0; i < http->module_count; i++)
        for (size_t r = 0; r < http->modules[i].count; r++)
            fn(meter++, m, http->modules[i].routes[r].method, http->modules[i].routes[r].path);
    fn(meter, m, "any", "none");
}

static void show_statuses(const struct meter *meter, struct mlo_metrics *m, const char *method,
                          const char *route)
{
    for (size_t i = 0; i < STATUS_COUNT; i++) {
        char code[8] = "other";
        uint64_t count = load(&meter->statuses[i]);
        if (i < MLO_COUNT(STATUSES))
            snprintf(code, sizeof code, "%d", STATUSES[i]);
        if (count)
            mlo_metrics_value(m, (double)count, "method", method, "route", route, "code", code, NULL);
    }
}

static void show_durations(const struct meter *meter, struct mlo_metrics *m, const char *method,
                           const char *route)
{
    uint64_t counts[BOUND_COUNT + 1], all = 0;
    struct mlo_metrics_histogram h = {.bounds = BOUNDS, .count = BOUND_COUNT, .counts = counts};
    for (size_t i = 0; i <= BOUND_COUNT; i++)
        all += counts[i] = load(&meter->buckets[i]);
    h.sum = (double)load(&meter->ns) / 1e9;
    if (all)
        mlo_metrics_histogram(m, &h, "method", method, "route", route, NULL);
}

static void show_received(const struct meter *meter, struct mlo_metrics *m, const char *method,
                          const char *route)
{
    if (load(&meter->received))
        mlo_metrics_value(m, (double)load(&meter->received), "method", method, "route", route, NULL);
}

static void show_sent(const struct meter *meter, struct mlo_metrics *m, const char *method, const char *route)
{
    if (load(&meter->sent))
        mlo_metrics_value(m, (double)load(&meter->sent), "method", method, "route", route, NULL);
}

/* Of each route. */
static const struct {
    enum mlo_metric_type type;
    const char *name, *help;
    meter_fn *show;
} FAMILIES[] = {
    {MLO_METRIC_COUNTER, "mlopt_http_requests_total",
     "Requests that ended, by route and status; \"none\" fits no route.", show_statuses},
    {MLO_METRIC_HISTOGRAM, "mlopt_http_request_duration_seconds",
     "From the headers of a request to the end of its answer, with what it waited for.", show_durations},
    {MLO_METRIC_COUNTER, "mlopt_http_received_bytes_total",
     "Bodies of requests: uploads through this server are those of blobs and uploads.", show_received},
    {MLO_METRIC_COUNTER, "mlopt_http_sent_bytes_total", "Bodies of answers, as far as they were to be sent.",
     show_sent},
};

void mlo_traffic_write(const struct mlo_http *http, struct mlo_metrics *m)
{
    const union MHD_DaemonInfo *info =
        http->daemon ? MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS) : NULL;
    for (size_t i = 0; i < MLO_COUNT(FAMILIES); i++) {
        mlo_metrics_family(m, FAMILIES[i].type, FAMILIES[i].name, FAMILIES[i].help);
        each(http, m, FAMILIES[i].show);
    }
    mlo_metrics_family(m, MLO_METRIC_COUNTER, "mlopt_http_requests_cut_total",
                       "Requests whose connection ended before their answer was sent.");
    mlo_metrics_value(m, (double)load(&http->traffic->cut), NULL);
    mlo_metrics_family(m, MLO_METRIC_GAUGE, "mlopt_http_connections", "Open connections.");
    mlo_metrics_value(m, info ? info->num_connections : 0, NULL);
}
