/* Several programs of one plan at once, each in a thread of its own. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/bench_impl.h"

/* Threads start together, once all are there; or not at all. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { CLOSED, OPEN, GIVEN_UP } state;
};

struct runner {
    const struct mlo_bench_loaded *loaded;
    const struct mlo_timing_request *request;
    struct gate *gate;
    struct mlo_program *program;
    struct mlo_tensor *outputs;
    struct mlo_timing timing;
    enum mlo_status status;
    struct mlo_error err;
};

static void *run(void *arg)
{
    struct runner *r = arg;
    pthread_mutex_lock(&r->gate->lock);
    while (r->gate->state == CLOSED)
        pthread_cond_wait(&r->gate->changed, &r->gate->lock);
    bool go = r->gate->state == OPEN;
    pthread_mutex_unlock(&r->gate->lock);
    if (go)
        r->status = mlo_bench_time(r->loaded, r->program, r->outputs, r->request, &r->timing, &r->err);
    return NULL;
}

static void set_gate(struct gate *gate, int state)
{
    pthread_mutex_lock(&gate->lock);
    gate->state = state;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static enum mlo_status load(const struct mlo_bench_loaded *l, struct runner *r, struct mlo_error *err)
{
    r->outputs = calloc((size_t)l->output_count + 1, sizeof *r->outputs);
    if (!r->outputs)
        return mlo_error_nomem(err);
    return l->engine->load(l->ready, &r->program, err);
}

static void unload(const struct mlo_bench_loaded *l, struct runner *r)
{
    l->engine->unload(r->program);
    for (int i = 0; r->outputs && i < l->output_count; i++)
        mlo_tensor_clear(&r->outputs[i]);
    free(r->outputs);
    free(r->timing.samples_us);
}

/* A thread's rate is one call by the mean time of its calls: they follow each other without a break. */
static enum mlo_status gather(struct runner *runners, unsigned count, int64_t batch, struct mlo_timing *out,
                              double *throughput, struct mlo_error *err)
{
    size_t samples = 0;
    *throughput = 0;
    for (unsigned i = 0; i < count; i++)
        samples += runners[i].timing.count;
    *out = (struct mlo_timing){.samples_us = malloc((samples + 1) * sizeof *out->samples_us)};
    if (!out->samples_us)
        return mlo_error_nomem(err);
    for (unsigned i = 0; i < count; i++) {
        const struct mlo_timing *t = &runners[i].timing;
        double sum = 0;
        memcpy(out->samples_us + out->count, t->samples_us, t->count * sizeof *t->samples_us);
        for (size_t k = 0; k < t->count; k++)
            sum += t->samples_us[k];
        out->count += t->count;
        out->calls += t->calls;
        out->peak_rss_bytes += t->peak_rss_bytes;
        if (sum > 0)
            *throughput += (double)batch * (double)t->count / (sum * 1e-6);
    }
    return MLO_OK;
}

enum mlo_status mlo_bench_time_together(const struct mlo_bench_loaded *l, unsigned concurrency,
                                        const struct mlo_timing_request *request, struct mlo_timing *out,
                                        double *throughput, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, CLOSED};
    pthread_t *threads = calloc(concurrency, sizeof *threads);
    struct runner *runners = calloc(concurrency, sizeof *runners);
    struct mlo_timing_request each = *request;
    unsigned started = 0;
    each.max_samples = MLO_MAX(request->max_samples / concurrency, (size_t)1000);
    if (!threads || !runners) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (unsigned i = 0; i < concurrency; i++) {
        runners[i].loaded = l;
        runners[i].request = &each;
        runners[i].gate = &gate;
        MLO_TRY(load(l, &runners[i], err));
    }
    while (started < concurrency && pthread_create(&threads[started], NULL, run, &runners[started]) == 0)
        started++;
    set_gate(&gate, started == concurrency ? OPEN : GIVEN_UP);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (started < concurrency) {
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "%u threads cannot be started", concurrency);
        goto out;
    }
    for (unsigned i = 0; i < concurrency; i++)
        if (runners[i].status != MLO_OK) {
            if (err)
                *err = runners[i].err;
            status = runners[i].status;
            goto out;
        }
    MLO_TRY(gather(runners, concurrency, l->batch, out, throughput, err));
out:
    for (unsigned i = 0; runners && i < concurrency; i++)
        unload(l, &runners[i]);
    free(runners);
    free(threads);
    return status;
}
