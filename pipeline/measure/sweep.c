/* Throughput over batch and concurrency, under a limit of latency. */
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/bench_impl.h"
#include "pipeline/measure/estimate_impl.h"

enum { DEFAULT_ROUNDS = 2, MAX_ROUNDS = 100, MOST = 64 };

/* What the rounds of one point said. */
struct point_rounds {
    double p50[MAX_ROUNDS], p90[MAX_ROUNDS], p95[MAX_ROUNDS], p99[MAX_ROUNDS], rate[MAX_ROUNDS];
    int count;
};

struct sweep {
    const char *path, *exe;
    const struct mlo_sweep_options *options;
    int rounds;
    int64_t batches[MOST];
    unsigned concurrencies[MOST];
    size_t batch_count, concurrency_count;
};

static double median(double *values, int count)
{
    mlo_sort_f64(values, (size_t)count);
    return mlo_quantile_sorted(values, (size_t)count, 0.5);
}

/* The batches: those that were asked for, or what makes sense for the model. */
static enum mlo_status choose_batches(struct sweep *s, int64_t fixed, struct mlo_error *err)
{
    const struct mlo_sweep_options *o = s->options;
    if (o->batch_count > MOST || o->concurrency_count > MOST)
        return mlo_error_set(err, MLO_EINVAL, "a sweep takes at most %d batches and as many concurrencies",
                             MOST);
    if (fixed) {
        for (size_t i = 0; i < o->batch_count; i++)
            if (o->batches[i] != fixed) {
                mlo_error_set(err, MLO_EINVAL,
                              "the model's batch is fixed at %lld: it cannot be measured at %lld",
                              (long long)fixed, (long long)o->batches[i]);
                mlo_error_hint(err, "export the model with a dynamic batch axis");
                return MLO_EINVAL;
            }
        s->batches[s->batch_count++] = fixed;
        return MLO_OK;
    }
    for (size_t i = 0; i < o->batch_count; i++)
        s->batches[s->batch_count++] = o->batches[i];
    for (int64_t b = 1; !o->batch_count && b <= 32; b *= 2)
        s->batches[s->batch_count++] = b;
    return MLO_OK;
}

static void choose_concurrencies(struct sweep *s)
{
    const struct mlo_sweep_options *o = s->options;
    unsigned most = MLO_MAX(mlo_cpu_count() / MLO_MAX(o->bench.threads, 1u), 1u);
    for (size_t i = 0; i < o->concurrency_count; i++)
        s->concurrencies[s->concurrency_count++] = o->concurrencies[i];
    for (unsigned c = 1; !o->concurrency_count && c < most && s->concurrency_count < MOST - 1; c *= 2)
        s->concurrencies[s->concurrency_count++] = c;
    if (!o->concurrency_count)
        s->concurrencies[s->concurrency_count++] = most;
}

static enum mlo_status take(const json_t *report, struct mlo_sweep_point *point, struct point_rounds *r,
                            struct mlo_error *err)
{
    const json_t *samples = json_object_get(report, "samples");
    size_t n = json_array_size(samples);
    double *us = malloc((n + 1) * sizeof *us), sum = 0;
    if (!us)
        return mlo_error_nomem(err);
    if (!n) {
        free(us);
        return mlo_error_set(err, MLO_EINTERNAL, "a process reported no samples");
    }
    for (size_t i = 0; i < n; i++)
        sum += us[i] = json_number_value(json_array_get(samples, i));
    mlo_sort_f64(us, n);
    int k = r->count++;
    r->p50[k] = mlo_quantile_sorted(us, n, 0.5);
    r->p90[k] = mlo_quantile_sorted(us, n, 0.9);
    r->p95[k] = mlo_quantile_sorted(us, n, 0.95);
    r->p99[k] = mlo_quantile_sorted(us, n, 0.99);
    r->rate[k] =
        mlo_json_f64(report, "throughput", sum > 0 ? (double)point->batch * (double)n / (sum * 1e-6) : 0);
    free(us);
    point->calls += (uint64_t)mlo_json_i64(report, "calls", 0);
    point->peak_rss_bytes =
        MLO_MAX(point->peak_rss_bytes, (uint64_t)mlo_json_i64(report, "peak_rss_bytes", 0));
    return MLO_OK;
}

static void summarise(struct mlo_sweep_point *p, struct point_rounds *r, double limit_us)
{
    p->p50_us = median(r->p50, r->count);
    p->p90_us = median(r->p90, r->count);
    p->p95_us = median(r->p95, r->count);
    p->p99_us = median(r->p99, r->count);
    p->low = p->high = r->rate[0];
    for (int i = 0; i < r->count; i++) {
        p->throughput += r->rate[i] / r->count;
        p->low = MLO_MIN(p->low, r->rate[i]);
        p->high = MLO_MAX(p->high, r->rate[i]);
    }
    p->within = !(limit_us > 0) || p->p99_us <= limit_us;
}

static enum mlo_status run_rounds(const struct sweep *s, struct mlo_sweep_result *out,
                                  struct point_rounds *rounds, mlo_progress_fn *progress, void *progress_arg,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_bench_options *o = &s->options->bench;
    for (int r = 0; r < s->rounds; r++)
        for (size_t i = 0; i < out->count; i++) {
            size_t k = r % 2 ? out->count - 1 - i : i;
            struct mlo_sweep_point *p = &out->points[k];
            struct mlo_bench_options one = *o;
            json_t *report = NULL;
            one.batch = p->batch;
            one.concurrency = p->concurrency;
            if (progress) {
                char text[80];
                snprintf(text, sizeof text, "round %d of %d: batch %lld, %u at once", r + 1, s->rounds,
                         (long long)p->batch, p->concurrency);
                progress(progress_arg, (double)(r * (int)out->count + (int)i) / (s->rounds * (int)out->count),
                         text);
            }
            MLO_TRY(mlo_bench_child_report(s->exe, s->path, o->engine ? o->engine->name : "cpu", &one,
                                           o->seconds > 0 ? o->seconds : 1, NULL, &report, err));
            status = take(report, p, &rounds[k], err);
            if (status == MLO_OK && !out->engine_version &&
                !(out->engine_version = strdup(mlo_json_str(report, "engine", "unnamed"))))
                status = mlo_error_nomem(err);
            json_decref(report);
            if (status != MLO_OK)
                goto out;
        }
    if (progress)
        progress(progress_arg, 1, "done");
out:
    return status;
}

static enum mlo_status choose(struct sweep *s, struct mlo_error *err)
{
    struct mlo_model *model = NULL;
    struct mlo_plan_file *plan = NULL;
    int64_t fixed = 0;
    enum mlo_status status = MLO_OK;
    if (mlo_plan_is_file(s->path))
        MLO_TRY(mlo_plan_open(s->path, NULL, &plan, err));
    else
        MLO_TRY(mlo_onnx_load(s->path, &model, err));
    MLO_TRY(mlo_model_fixed_batch(plan ? mlo_plan_file_model(plan) : model, &fixed, err));
    MLO_TRY(choose_batches(s, fixed, err));
    choose_concurrencies(s);
out:
    mlo_plan_close(plan);
    mlo_model_free(model);
    return status;
}

enum mlo_status mlo_sweep(const char *path, const struct mlo_sweep_options *options,
                          struct mlo_sweep_result *out, mlo_progress_fn *progress, void *progress_arg,
                          struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *self = NULL;
    struct point_rounds *rounds = NULL;
    struct sweep s = {.path = path, .exe = options->bench.exe, .options = options};
    *out = (struct mlo_sweep_result){.best = -1};
    s.rounds = options->bench.rounds ? options->bench.rounds : DEFAULT_ROUNDS;
    if (s.rounds < 1 || s.rounds > MAX_ROUNDS) {
        status = mlo_error_set(err, MLO_EINVAL, "rounds must be 1 to %d, not %d", MAX_ROUNDS, s.rounds);
        goto out;
    }
    MLO_TRY(choose(&s, err));
    if (!s.exe && !(s.exe = self = mlo_process_self())) {
        status = mlo_error_set(err, MLO_EINTERNAL, "the path of this program cannot be told");
        goto out;
    }
    out->points = calloc(s.batch_count * s.concurrency_count + 1, sizeof *out->points);
    rounds = calloc(s.batch_count * s.concurrency_count + 1, sizeof *rounds);
    if (!out->points || !rounds) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t b = 0; b < s.batch_count; b++)
        for (size_t c = 0; c < s.concurrency_count; c++)
            out->points[out->count++] =
                (struct mlo_sweep_point){.batch = s.batches[b], .concurrency = s.concurrencies[c]};
    MLO_TRY(run_rounds(&s, out, rounds, progress, progress_arg, err));
    for (size_t i = 0; i < out->count; i++) {
        summarise(&out->points[i], &rounds[i], options->p99_limit_us);
        bool better = out->best < 0 || out->points[i].throughput > out->points[out->best].throughput;
        if (out->points[i].within && better)
            out->best = (int)i;
    }
    MLO_TRY(mlo_machine_describe(&out->machine, err));
    json_object_set_new(out->machine, "protocol", json_string(MLO_BENCH_PROTOCOL));
    json_object_set_new(out->machine, "rounds", json_integer(s.rounds));
out:
    free(rounds);
    free(self);
    if (status != MLO_OK)
        mlo_sweep_result_clear(out);
    return status;
}

void mlo_sweep_result_clear(struct mlo_sweep_result *result)
{
    free(result->points);
    free(result->engine_version);
    json_decref(result->machine);
    *result = (struct mlo_sweep_result){.best = -1};
}
