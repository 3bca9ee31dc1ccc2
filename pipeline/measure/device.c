/* What a model takes on a device: times by the device's own events, apart from copies, and what the device
 * was doing meanwhile. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engines/nvml.h"
#include "pipeline/measure/bench_impl.h"
#include "pipeline/measure/estimate_impl.h"

enum { KEPT_CALLS = 20000, WATCH_MS = 20 };

/* --- the device, watched ---------------------------------------------------------------------------------
 */

struct watch {
    struct mlo_nvml *nvml;
    struct mlo_gpu_info gpu;
    pthread_t thread;
    atomic_bool stop;
    bool running;
    double sum_power, sum_mhz, sum_memory_mhz, sum_busy, sum_memory_busy; /* of those that were told */
    double least_mhz, most_used, most_celsius, first_joules, last_joules;
    int power_count, mhz_count, memory_mhz_count, busy_count, memory_busy_count;
    uint64_t throttle, begin_ns, end_ns;
};

static void add_told(double value, double *sum, int *count)
{
    if (value < 0)
        return;
    *sum += value;
    *count += 1;
}

static void look(struct watch *w)
{
    struct mlo_gpu_state s;
    if (!mlo_nvml_state(w->nvml, w->gpu.uuid, &s))
        return;
    add_told(s.power_w, &w->sum_power, &w->power_count);
    add_told(s.memory_mhz, &w->sum_memory_mhz, &w->memory_mhz_count);
    add_told(s.busy, &w->sum_busy, &w->busy_count);
    add_told(s.memory_busy, &w->sum_memory_busy, &w->memory_busy_count);
    if (s.sm_mhz >= 0)
        w->least_mhz = w->mhz_count ? MLO_MIN(w->least_mhz, s.sm_mhz) : s.sm_mhz;
    add_told(s.sm_mhz, &w->sum_mhz, &w->mhz_count);
    w->most_used = MLO_MAX(w->most_used, s.memory_used_bytes);
    w->most_celsius = MLO_MAX(w->most_celsius, s.temperature_c);
    w->throttle |= s.throttle;
}

static double joules(struct watch *w)
{
    struct mlo_gpu_state s;
    return mlo_nvml_state(w->nvml, w->gpu.uuid, &s) ? s.energy_j : -1;
}

static void *watch_run(void *arg)
{
    struct watch *w = arg;
    while (!atomic_load(&w->stop)) {
        look(w);
        mlo_clock_sleep_ms(WATCH_MS);
    }
    return NULL;
}

/* Without the driver's library nothing is watched, and nothing is said; nor of another GPU than the engine's.
 */
static void watch_start(struct watch *w, const struct mlo_engine *engine)
{
    json_t *inventory = NULL;
    memset(w, 0, sizeof *w);
    if (!engine->inventory || engine->inventory(&inventory, NULL) != MLO_OK)
        return;
    const char *uuid = mlo_json_str(json_array_get(json_object_get(inventory, "gpus"), 0), "uuid", "");
    bool known = mlo_nvml_open(NULL, &w->nvml, NULL) == MLO_OK && mlo_nvml_gpu(w->nvml, uuid, &w->gpu);
    json_decref(inventory);
    if (!known)
        return;
    w->begin_ns = mlo_clock_ns();
    w->first_joules = joules(w);
    w->running = pthread_create(&w->thread, NULL, watch_run, w) == 0;
}

static json_t *mean(double sum, int count)
{
    return count ? json_real(sum / count) : json_null();
}

/* {"gpu","power_w","energy_j","sm_mhz","sm_mhz_least","max_sm_mhz","memory_mhz","busy","memory_busy",
 * "memory_used_bytes","temperature_c","slowed_by","looks"}; NULL: nothing was watched. */
static json_t *watch_stop(struct watch *w)
{
    json_t *out = NULL;
    char words[128];
    if (w->running) {
        atomic_store(&w->stop, true);
        pthread_join(w->thread, NULL);
        w->end_ns = mlo_clock_ns();
        w->last_joules = joules(w);
        double seconds = (double)(w->end_ns - w->begin_ns) * 1e-9, energy = w->last_joules - w->first_joules;
        bool counted = w->first_joules >= 0 && energy > 0; /* its counter is better than looks at the power */
        out = json_pack(
            "{s:s, s:o, s:o, s:o, s:f, s:i, s:o, s:o, s:o, s:f, s:f, s:s, s:i}", "gpu", w->gpu.name,
            "power_w", counted ? json_real(energy / seconds) : mean(w->sum_power, w->power_count), "energy_j",
            counted ? json_real(energy) : json_null(), "sm_mhz", mean(w->sum_mhz, w->mhz_count),
            "sm_mhz_least", w->least_mhz, "max_sm_mhz", (int)w->gpu.max_sm_mhz, "memory_mhz",
            mean(w->sum_memory_mhz, w->memory_mhz_count), "busy", mean(w->sum_busy, w->busy_count),
            "memory_busy", mean(w->sum_memory_busy, w->memory_busy_count), "memory_used_bytes", w->most_used,
            "temperature_c", w->most_celsius, "slowed_by",
            mlo_nvml_throttle_words(w->throttle, words, sizeof words), "looks", w->mhz_count);
    }
    mlo_nvml_close(w->nvml);
    w->nvml = NULL;
    return out;
}

/* --- numbers ----------------------------------------------------------------------------------------------
 */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The q-quantile with its 95% interval by order statistics (how many samples lie below it is binomial): of
 * calls that follow each other in one process, which says nothing of other processes. */
static json_t *quantile(const double *sorted, size_t count, double q)
{
    double n = (double)count, spread = 1.96 * sqrt(n * q * (1 - q));
    double low = MLO_MAX(floor(n * q - spread) - 1, 0), high = MLO_MIN(ceil(n * q + spread), n - 1);
    return json_pack("{s:f, s:f, s:f, s:I}", "value", mlo_quantile_sorted(sorted, count, q), "low",
                     sorted[(size_t)low], "high", sorted[(size_t)high], "n", (json_int_t)count);
}

/* Adds {"p50_us","p99_us"} of an array of samples as `name`; false: out of memory. */
static bool add_times(json_t *out, const char *name, const json_t *samples)
{
    size_t count = json_array_size(samples);
    double *us = calloc(count + 1, sizeof *us);
    if (!us)
        return false;
    for (size_t i = 0; i < count; i++)
        us[i] = json_number_value(json_array_get(samples, i));
    qsort(us, count, sizeof *us, by_value);
    bool ok = !count || json_object_set_new(out, name,
                                            json_pack("{s:o, s:o}", "p50_us", quantile(us, count, 0.5),
                                                      "p99_us", quantile(us, count, 0.99))) == 0;
    free(us);
    return ok;
}

/* {"streams","call":{"p50_us","p99_us"},"throughput"} of each number of streams; false: out of memory. */
static bool add_together(json_t *out, const json_t *measured, int64_t batch)
{
    json_t *rows = json_array(), *row;
    size_t i;
    bool ok = rows && json_object_set_new(out, "together", rows) == 0;
    json_array_foreach(json_object_get(measured, "together"), i, row)
    {
        json_t *one = json_pack("{s:i}", "streams", (int)mlo_json_i64(row, "streams", 0)), *times;
        ok = ok && one && add_times(one, "call", json_object_get(row, "call_us"));
        times = json_object_get(one, "call");
        double p50 = mlo_json_f64(json_object_get(times, "p50_us"), "value", 0);
        ok = ok &&
             (p50 <= 0 || json_object_set_new(one, "throughput", json_real((double)batch / p50 * 1e6)) == 0);
        ok = json_array_append_new(rows, one) == 0 && ok;
    }
    return ok;
}

enum mlo_status mlo_device_summary(const json_t *measured, int64_t batch, json_t **out, struct mlo_error *err)
{
    static const char *const copied[] = {"arena_bytes", "constant_bytes", "workspace_bytes",
                                         "device",      "steps",          "floor"};
    json_t *all = json_pack("{s:I}", "batch", (json_int_t)batch);
    bool ok = all && add_times(all, "replay", json_object_get(measured, "replay_us")) &&
              add_times(all, "upload", json_object_get(measured, "upload_us")) &&
              add_times(all, "download", json_object_get(measured, "download_us"));
    for (size_t i = 0; ok && i < MLO_COUNT(copied); i++) {
        json_t *value = json_object_get(measured, copied[i]);
        ok = !value || json_object_set(all, copied[i], value) == 0;
    }
    if (ok && json_object_get(measured, "together"))
        ok = add_together(all, measured, batch);
    double p50 = mlo_json_f64(json_object_get(json_object_get(all, "replay"), "p50_us"), "value", 0);
    double floor_us = mlo_json_f64(json_object_get(measured, "floor"), "floor_us", 0);
    if (ok && p50 > 0)
        ok = json_object_set_new(all, "throughput", json_real((double)batch / p50 * 1e6)) == 0;
    if (ok && p50 > 0 && floor_us > 0)
        ok = json_object_set_new(all, "percent_of_floor", json_real(100 * floor_us / p50)) == 0;
    if (!ok) {
        json_decref(all);
        return mlo_error_nomem(err);
    }
    *out = all;
    return MLO_OK;
}

enum mlo_status mlo_device_bench(const char *path, const struct mlo_bench_options *options, json_t **out,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_bench_loaded l;
    struct watch watch;
    json_t *measured = NULL, *seen = NULL;
    double seconds = options->seconds > 0 ? options->seconds : 1;
    const struct mlo_timing_request request = {.warm_up_seconds = 0.2 * seconds,
                                               .seconds = seconds,
                                               .warm_up_calls = 10,
                                               .min_calls = 20,
                                               .max_samples = KEPT_CALLS,
                                               .streams = options->streams,
                                               .stream_count = options->stream_count};
    *out = NULL;
    MLO_TRY(mlo_bench_open(path, options, &l, err));
    if (!l.engine->measure) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the engine '%s' runs on no device", l.engine->name);
        goto out;
    }
    watch_start(&watch, l.engine);
    status = l.engine->measure(l.program, l.inputs, &request, true, &measured, err);
    seen = watch_stop(&watch);
    if (status != MLO_OK)
        goto out;
    MLO_TRY(mlo_device_summary(measured, l.batch, out, err));
    if (json_object_set_new(*out, "engine", json_string(l.engine->version())) != 0 ||
        json_object_set_new(*out, "protocol", json_string(MLO_DEVICE_PROTOCOL)) != 0 ||
        (seen && json_object_set(*out, "watched", seen) != 0)) {
        json_decref(*out);
        *out = NULL;
        status = mlo_error_nomem(err);
    }
out:
    json_decref(measured);
    json_decref(seen);
    mlo_bench_close(&l);
    return status;
}
