/* benchmark: latency of the variant beside the source, in alternating processes (DESIGN.md section 9). */
#include <stdio.h>
#include <stdlib.h>

#include "pipeline/steps/step_impl.h"

static const struct mlo_option_spec OPTIONS[] = {
    MLO_STEP_OPT_BATCH("batch sizes to measure"),
    MLO_STEP_OPT_THREADS,
    MLO_STEP_OPT_SOURCE_THREADS,
    MLO_STEP_OPT_COMPARE_TO("measure the source in alternating processes and report the ratio"),
    MLO_STEP_OPT_ENGINE,
    MLO_STEP_OPT_SECONDS,
    MLO_STEP_OPT_ROUNDS,
    {NULL},
};

struct part {
    const struct mlo_step_context *ctx;
    double from, share;
};

static void part_progress(void *arg, double fraction, const char *message)
{
    const struct part *p = arg;
    mlo_step_progress(p->ctx, p->from + p->share * fraction, message);
}

static enum mlo_status add(json_t *observations, json_t *observation, struct mlo_error *err)
{
    return json_array_append_new(observations, observation) ? mlo_error_nomem(err) : MLO_OK;
}

/* The raw microseconds of one side, as a file of the result. */
static enum mlo_status save_samples(const struct mlo_step_context *ctx, const char *subject, int64_t batch,
                                    const struct mlo_bench_side *side, const json_t *machine, char **path,
                                    struct mlo_error *err)
{
    char file[96];
    snprintf(file, sizeof file, "latency-%s-batch%lld.json", subject, (long long)batch);
    *path = mlo_fs_join(ctx->out_dir, file, NULL);
    json_t *whole = json_pack("{s:s,s:I,s:O,s:O}", "subject", subject, "batch", (json_int_t)batch, "machine",
                              machine, "microseconds", side->samples);
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status;
    if (!*path || !whole) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_json_canonical(whole, &text);
    MLO_TRY(mlo_fs_write_atomic(*path, mlo_buf_str(&text), text.len, err));
out:
    mlo_buf_clear(&text);
    json_decref(whole);
    return status;
}

static enum mlo_status observe_side(const struct mlo_step_context *ctx, const struct mlo_engine *engine,
                                    const char *subject, const struct mlo_bench_side *side, json_t *params,
                                    int64_t batch, const json_t *machine,
                                    const struct mlo_estimate *ratio_p50,
                                    const struct mlo_estimate *ratio_p99, json_t *observations,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    char *samples = NULL;
    const struct {
        const char *metric, *unit;
        struct mlo_estimate estimate;
        const struct mlo_estimate *ratio;
    } rows[] = {
        {"latency.p50", "us", side->p50_us, ratio_p50},
        {"latency.p90", "us", side->p90_us, NULL},
        {"latency.p99", "us", side->p99_us, ratio_p99},
        {"throughput",
         "samples/s",
         {side->throughput, side->throughput, side->throughput, side->p50_us.n},
         NULL},
        {"memory.peak",
         "bytes",
         {(double)side->peak_rss_bytes, (double)side->peak_rss_bytes, (double)side->peak_rss_bytes, 1},
         NULL},
    };
    MLO_TRY(save_samples(ctx, subject, batch, side, machine, &samples, err));
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        json_t *o = mlo_step_observation(subject, rows[i].metric, params, rows[i].unit, &rows[i].estimate,
                                         MLO_BENCH_PROTOCOL, engine);
        if (!o || json_object_set(o, "machine", (json_t *)machine) ||
            (i == 0 && json_object_set_new(o, "samples", json_string(samples))) ||
            (rows[i].ratio && !mlo_step_compare(o, "ratio", rows[i].ratio))) {
            json_decref(o);
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(add(observations, o, err));
    }
out:
    free(samples);
    return status;
}

static enum mlo_status observe_size(const struct mlo_step_context *ctx, const struct mlo_engine *engine,
                                    bool compares, json_t *observations, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    double source = (double)mlo_fs_size(ctx->source_path), variant = (double)mlo_fs_size(ctx->model_path);
    json_t *params = json_object();
    const struct mlo_estimate size = {variant, variant, variant, 1};
    json_t *o = mlo_step_observation("variant", "size", params, "bytes", &size, MLO_BENCH_PROTOCOL, engine);
    const struct mlo_estimate ratio = {variant / source, variant / source, variant / source, 1};
    if (!o || (compares && source > 0 && !mlo_step_compare(o, "ratio", &ratio))) {
        json_decref(o);
        status = mlo_error_nomem(err);
    } else {
        status = add(observations, o, err);
    }
    json_decref(params);
    return status;
}

static json_t *params_of(int64_t batch, int64_t threads)
{
    return json_pack("{s:I,s:I}", "batch", (json_int_t)batch, "threads", (json_int_t)threads);
}

enum mlo_status mlo_step_time(const struct mlo_step_context *ctx, bool profiles, struct mlo_step_result *out,
                              struct mlo_error *err)
{
    enum mlo_status status;
    bool compares = mlo_step_compares(ctx);
    const json_t *batches = json_object_get(ctx->options, "batch");
    size_t count = json_array_size(batches);
    struct mlo_bench_result result = {0};
    struct mlo_bench_options bench = mlo_step_bench_options(ctx, NULL);
    int64_t threads = bench.threads, source_threads = mlo_json_i64(ctx->options, "source_threads", 0);
    json_t *params = NULL, *source_params = NULL;
    source_threads = source_threads ? source_threads : threads;
    if (compares) {
        bench.threads = (unsigned)source_threads;
        bench.threads_b = (unsigned)threads;
    }
    out->observations = json_array();
    out->report = json_object();
    MLO_TRY(mlo_step_engine(ctx, &bench.engine, err));
    MLO_TRY(observe_size(ctx, bench.engine, compares, out->observations, err));
    for (size_t i = 0; i < count; i++) {
        struct part part = {ctx, (double)i / (double)count, 1.0 / (double)count};
        const char *first = compares ? ctx->source_path : ctx->model_path;
        bench.batch = json_integer_value(json_array_get(batches, i));
        MLO_TRY(
            mlo_bench(first, compares ? ctx->model_path : NULL, &bench, &result, part_progress, &part, err));
        params = params_of(bench.batch, threads);
        source_params = params_of(bench.batch, source_threads);
        if (!params || !source_params) {
            status = mlo_error_nomem(err);
            goto out;
        }
        if (compares) {
            MLO_TRY(observe_side(ctx, bench.engine, "source", &result.a, source_params, bench.batch,
                                 result.machine, NULL, NULL, out->observations, err));
            MLO_TRY(observe_side(ctx, bench.engine, "variant", &result.b, params, bench.batch, result.machine,
                                 &result.ratio_p50, &result.ratio_p99, out->observations, err));
        } else {
            MLO_TRY(observe_side(ctx, bench.engine, "variant", &result.a, params, bench.batch, result.machine,
                                 NULL, NULL, out->observations, err));
        }
        if (profiles)
            MLO_TRY(mlo_step_observe_profile(ctx, &bench, params, out->observations, err));
        json_decref(params);
        json_decref(source_params);
        params = source_params = NULL;
        mlo_bench_result_clear(&result);
    }
out:
    json_decref(params);
    json_decref(source_params);
    mlo_bench_result_clear(&result);
    return status;
}

static enum mlo_status run(const struct mlo_step_context *ctx, struct mlo_step_result *out,
                           struct mlo_error *err)
{
    return mlo_step_time(ctx, true, out, err);
}

const struct mlo_step mlo_step_benchmark = {
    .name = "benchmark",
    .kind = MLO_STEP_OBSERVE,
    .revision = 2,
    .exclusive = true,
    .offer = mlo_step_engine_offer,
    .options = OPTIONS,
    .run = run,
    .description = "measures latency, throughput and memory beside the source, in alternating processes",
};
