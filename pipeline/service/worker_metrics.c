/* A worker's own metrics, in a file for node_exporter's textfile collector: workers stand behind firewalls
 * and end when their work does, so that nobody asks them. The names are not those of processes in general,
 * which are node_exporter's own there; the label "worker" is the file's name, so that a restart is no new
 * series. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/metrics.h"
#include "pipeline/service/worker_impl.h"

static const char *const ENDS[MLO_WORKER_ENDS] = {
    [MLO_END_DONE] = "done",           [MLO_END_FAILED] = "failed",     [MLO_END_LOST] = "lost",
    [MLO_END_CANCELLED] = "cancelled", [MLO_END_RETURNED] = "returned",
};

static unsigned busy_slots(struct mlo_worker *worker)
{
    unsigned busy = 0;
    for (unsigned i = 0; i < worker->o.slots; i++) {
        pthread_mutex_lock(&worker->slots[i].lock);
        busy += worker->slots[i].busy;
        pthread_mutex_unlock(&worker->slots[i].lock);
    }
    return busy;
}

static void one(struct mlo_metrics *m, enum mlo_metric_type type, const char *name, const char *help,
                double value)
{
    mlo_metrics_family(m, type, name, help);
    mlo_metrics_value(m, value, NULL);
}

static void compose(struct mlo_worker *worker, struct mlo_metrics *m)
{
    mlo_metrics_family(m, MLO_METRIC_INFO, "mlopt_worker_info",
                       "This worker; its id is new with each start.");
    mlo_metrics_value(m, 1, "version", MLOPT_VERSION, "id", worker->id, NULL);
    one(m, MLO_METRIC_GAUGE, "mlopt_worker_slot_limit", "Jobs that it takes at a time.", worker->o.slots);
    one(m, MLO_METRIC_GAUGE, "mlopt_worker_busy_slots", "Jobs that it has now.", busy_slots(worker));
    one(m, MLO_METRIC_GAUGE, "mlopt_worker_paused", "1: it takes no more jobs until it is resumed.",
        atomic_load(&worker->paused));
    mlo_metrics_family(m, MLO_METRIC_COUNTER, "mlopt_worker_attempts_total",
                       "Attempts of this process, by their end.");
    for (size_t i = 0; i < MLO_COUNT(ENDS); i++)
        mlo_metrics_value(m, (double)atomic_load(&worker->ends[i]), "end", ENDS[i], NULL);
    one(m, MLO_METRIC_COUNTER, "mlopt_worker_blob_cache_hits_total",
        "Blobs that were on this machine already.", (double)atomic_load(&worker->cache_hits));
    one(m, MLO_METRIC_COUNTER, "mlopt_worker_blob_cache_misses_total", "Blobs that were fetched.",
        (double)atomic_load(&worker->cache_misses));
    mlo_metrics_process(m, "mlopt_worker_");
    mlo_metrics_end(m);
}

/* Whole or not at all, and without waiting for the disk: who writes it beats too. */
static bool write_file(const char *path, const struct mlo_buf *text)
{
    struct mlo_buf beside = MLO_BUF_INIT;
    int fd = mlo_fs_create_beside(path, &beside);
    bool ok = fd >= 0 && fchmod(fd, 0644) == 0 && mlo_fs_write_full(fd, text->data, text->len);
    if (fd >= 0) {
        ok = close(fd) == 0 && ok && rename(beside.data, path) == 0;
    }
    int why = errno; /* of what went wrong, not of tidying up */
    if (fd >= 0 && !ok)
        unlink(beside.data);
    mlo_buf_clear(&beside);
    errno = why;
    return ok;
}

void mlo_worker_metrics_write(struct mlo_worker *worker)
{
    const char *path = worker->o.metrics_file;
    char label[128];
    struct mlo_buf text = MLO_BUF_INIT;
    if (!path)
        return;
    snprintf(label, sizeof label, "%s", mlo_fs_basename(path));
    if (mlo_str_ends(label, ".prom"))
        label[strlen(label) - 5] = '\0';
    const char *const common[] = {"worker", label, NULL};
    struct mlo_metrics m = {.out = &text, .common = common};
    compose(worker, &m);
    bool ok = mlo_buf_ok(&text) && write_file(path, &text);
    if (!ok && !worker->metrics_failed)
        mlo_log(MLO_LOG_WARN, "cannot write the worker's metrics", "file", path, "error", strerror(errno),
                NULL);
    worker->metrics_failed = !ok;
    mlo_buf_clear(&text);
}

void mlo_worker_metrics_end(struct mlo_worker *worker)
{
    if (worker->o.metrics_file)
        unlink(worker->o.metrics_file); /* else a worker that is gone would be seen for ever */
}
