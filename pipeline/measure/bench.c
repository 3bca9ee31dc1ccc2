/* The benchmark's parent: alternating child processes and what their samples say. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pipeline/measure/bench_impl.h"
#include "pipeline/measure/cpus_impl.h"
#include "pipeline/measure/estimate_impl.h"

enum { DEFAULT_ROUNDS = 5, MAX_ROUNDS = 1000, REPORT_BYTES_MAX = 32 << 20, STDERR_SHOWN = 200 };

static const double MIN_CHILD_SECONDS = 0.01; /* less than a scheduler's slice says nothing */

/* What one process measured. */
struct round {
    double p50, p90, p95, p99;
    int64_t calls;
};

struct session {
    const struct mlo_bench_options *options;
    const char *exe;
    int rounds;
    double child_seconds;
    bool pinned;
    cpu_set_t cpus;
};

/* The child's own error, or what can be said of a child that died without one. */
static enum mlo_status child_failed(const json_t *report, int exit_code, int stderr_fd, const char *path,
                                    struct mlo_error *err)
{
    const json_t *e = json_object_get(report, "error");
    if (json_is_object(e)) {
        enum mlo_status status = mlo_status_from_code(mlo_json_str(e, "code", ""));
        mlo_error_set(err, status, "%s", mlo_json_str(e, "message", "the benchmark failed"));
        if (*mlo_json_str(e, "where", ""))
            mlo_error_where(err, "%s", mlo_json_str(e, "where", ""));
        if (*mlo_json_str(e, "hint", ""))
            mlo_error_hint(err, "%s", mlo_json_str(e, "hint", ""));
        mlo_error_where(err, "%s", path);
        return status;
    }
    char said[STDERR_SHOWN + 1] = "";
    ssize_t n = stderr_fd >= 0 ? pread(stderr_fd, said, STDERR_SHOWN, 0) : 0;
    said[n > 0 ? n : 0] = '\0';
    said[strcspn(said, "\n")] = '\0';
    mlo_error_set(err, MLO_EINTERNAL, "the process that measured it ended with status %d and no result%s%s",
                  exit_code, *said ? ": " : "", said);
    mlo_error_where(err, "%s", path);
    return MLO_EINTERNAL;
}

static const char *engine_name(const struct session *s, bool second)
{
    const struct mlo_engine *e = second && s->options->engine_b ? s->options->engine_b : s->options->engine;
    return e ? e->name : "cpu";
}

/* The child's command line; texts are in the arena. False: out of memory. */
static bool child_argv(struct mlo_arena *arena, const char *exe, const char *path, const char *engine,
                       const struct mlo_bench_options *o, double seconds, const char **argv)
{
    size_t n = 0;
    const char *const fixed[] = {exe, "bench-child", path, "--engine", engine, "--batch"};
    for (size_t i = 0; i < MLO_COUNT(fixed); i++)
        argv[n++] = fixed[i];
    argv[n++] = mlo_arena_printf(arena, "%lld", (long long)MLO_MAX(o->batch, (int64_t)1));
    argv[n++] = "--threads";
    argv[n++] = mlo_arena_printf(arena, "%u", MLO_MAX(o->threads, 1u));
    argv[n++] = "--seconds";
    argv[n++] = mlo_arena_printf(arena, "%.6f", seconds);
    if (o->concurrency > 1) {
        argv[n++] = "--concurrency";
        argv[n++] = mlo_arena_printf(arena, "%u", o->concurrency);
    }
    for (size_t i = 0; i < o->dim_count; i++) {
        argv[n++] = "--dim";
        argv[n++] = mlo_arena_printf(arena, "%s=%lld", o->dims[i].name, (long long)o->dims[i].value);
    }
    if (o->cpu_clock) {
        argv[n++] = "--clock";
        argv[n++] = "cpu";
    }
    for (size_t i = 0; i < n; i++)
        if (!argv[i])
            return false;
    return true;
}

/* Runs one child. It inherits its CPUs from this thread, which gets its own back. */
static enum mlo_status run_child(const char *const *argv, double seconds, const cpu_set_t *cpus,
                                 struct mlo_buf *output, int stderr_fd, int *exit_code, struct mlo_error *err)
{
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    options.argv = argv;
    options.stderr_fd = stderr_fd;
    options.die_with_parent = true;
    uint64_t timeout_ms = 600000 + (uint64_t)(seconds * 20000);
    cpu_set_t own;
    bool moved = cpus && pthread_getaffinity_np(pthread_self(), sizeof own, &own) == 0 &&
                 pthread_setaffinity_np(pthread_self(), sizeof *cpus, cpus) == 0;
    enum mlo_status status = mlo_process_run(&options, timeout_ms, REPORT_BYTES_MAX, output, exit_code, err);
    if (moved)
        pthread_setaffinity_np(pthread_self(), sizeof own, &own);
    return status;
}

enum mlo_status mlo_bench_child_report(const char *exe, const char *path, const char *engine,
                                       const struct mlo_bench_options *o, double seconds,
                                       const cpu_set_t *cpus, json_t **report, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf output = MLO_BUF_INIT;
    struct mlo_arena *arena = mlo_arena_new();
    const char **argv = calloc(2 * o->dim_count + 16, sizeof *argv);
    int exit_code = 0, stderr_fd = memfd_create("bench-stderr", MFD_CLOEXEC);
    *report = NULL;
    if (!arena || !argv || !child_argv(arena, exe, path, engine, o, seconds, argv)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(run_child(argv, seconds, cpus, &output, stderr_fd, &exit_code, err));
    status = mlo_json_parse(mlo_buf_str(&output), output.len, "the benchmark's report", report, err);
    if (exit_code != 0 || status != MLO_OK || json_object_get(*report, "error")) {
        status = child_failed(*report, exit_code, stderr_fd, path, err);
        json_decref(*report);
        *report = NULL;
    }
out:
    mlo_buf_clear(&output);
    mlo_arena_free(arena);
    free(argv);
    if (stderr_fd >= 0)
        close(stderr_fd);
    return status;
}

static enum mlo_status take_report(const json_t *report, struct mlo_bench_side *side, struct round *round,
                                   struct mlo_error *err)
{
    json_t *samples = json_object_get(report, "samples");
    size_t n = json_array_size(samples);
    const char *engine = mlo_json_str(report, "engine", "unnamed");
    if (!n)
        return mlo_error_set(err, MLO_EINTERNAL, "the process that measured %s reported no samples",
                             side->path);
    double *us = malloc(n * sizeof *us);
    if (!us)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < n; i++)
        us[i] = json_number_value(json_array_get(samples, i));
    mlo_sort_f64(us, n);
    *round = (struct round){mlo_quantile_sorted(us, n, 0.5), mlo_quantile_sorted(us, n, 0.9),
                            mlo_quantile_sorted(us, n, 0.95), mlo_quantile_sorted(us, n, 0.99), (int64_t)n};
    free(us);
    uint64_t rss = (uint64_t)mlo_json_i64(report, "peak_rss_bytes", 0);
    side->peak_rss_bytes = MLO_MAX(side->peak_rss_bytes, rss);
    if (!side->engine_version && !(side->engine_version = strdup(engine)))
        return mlo_error_nomem(err);
    return json_array_append(side->samples, samples) == 0 ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status measure_once(const struct session *s, bool second, struct mlo_bench_side *side,
                                    struct round *round, struct mlo_error *err)
{
    json_t *report;
    struct mlo_bench_options own = *s->options;
    if (second && own.threads_b)
        own.threads = own.threads_b;
    enum mlo_status status =
        mlo_bench_child_report(s->exe, side->path, engine_name(s, second), &own, s->child_seconds,
                               s->pinned ? &s->cpus : NULL, &report, err);
    if (status == MLO_OK)
        status = take_report(report, side, round, err);
    json_decref(report);
    return status;
}

static void summarise(const struct session *s, const struct round *rounds, struct mlo_bench_side *side)
{
    double p50[MAX_ROUNDS], p90[MAX_ROUNDS], p95[MAX_ROUNDS], p99[MAX_ROUNDS];
    int64_t calls = 0;
    for (int r = 0; r < s->rounds; r++) {
        p50[r] = rounds[r].p50;
        p90[r] = rounds[r].p90;
        p95[r] = rounds[r].p95;
        p99[r] = rounds[r].p99;
        calls += rounds[r].calls;
    }
    mlo_estimate_median(p50, (size_t)s->rounds, calls, &side->p50_us);
    mlo_estimate_median(p90, (size_t)s->rounds, calls, &side->p90_us);
    mlo_estimate_median(p95, (size_t)s->rounds, calls, &side->p95_us);
    mlo_estimate_median(p99, (size_t)s->rounds, calls, &side->p99_us);
    if (side->p50_us.value > 0)
        side->throughput = (double)MLO_MAX(s->options->batch, (int64_t)1) / (side->p50_us.value * 1e-6);
}

/* The two processes of a round ran one right after the other, so their ratio is free of slow drift: the
 * estimate is the median of the rounds' ratios, resampled by round. */
static void compare(const struct session *s, const struct round *a, const struct round *b,
                    struct mlo_bench_result *out)
{
    double p50[MAX_ROUNDS], p99[MAX_ROUNDS];
    for (int r = 0; r < s->rounds; r++) {
        p50[r] = a[r].p50 > 0 ? b[r].p50 / a[r].p50 : 0;
        p99[r] = a[r].p99 > 0 ? b[r].p99 / a[r].p99 : 0;
    }
    mlo_estimate_median(p50, (size_t)s->rounds, s->rounds, &out->ratio_p50);
    mlo_estimate_median(p99, (size_t)s->rounds, s->rounds, &out->ratio_p99);
}

static json_t *load_average(void)
{
    double load[3] = {0};
    return getloadavg(load, 3) == 3 ? json_pack("[f,f,f]", load[0], load[1], load[2]) : json_array();
}

static enum mlo_status describe(const struct session *s, json_t *load_before, struct mlo_bench_result *result,
                                struct mlo_error *err)
{
    json_t **out = &result->machine;
    enum mlo_status status = mlo_machine_describe(out, err);
    if (status != MLO_OK)
        return status;
    json_t *cpus = json_array();
    for (int i = 0; s->pinned && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &s->cpus))
            json_array_append_new(cpus, json_integer(i));
    json_object_set_new(*out, "protocol", json_string(MLO_BENCH_PROTOCOL));
    json_object_set_new(*out, "engine", json_string(result->a.engine_version));
    if (s->options->engine_b && result->b.path)
        json_object_set_new(*out, "engine_b", json_string(result->b.engine_version));
    json_object_set_new(*out, "clock", json_string(s->options->cpu_clock ? "cpu" : "wall"));
    json_object_set_new(*out, "threads", json_integer(MLO_MAX(s->options->threads, 1u)));
    if (s->options->threads_b && result->b.path)
        json_object_set_new(*out, "threads_b", json_integer(s->options->threads_b));
    json_object_set_new(*out, "rounds", json_integer(s->rounds));
    json_object_set_new(*out, "pinned_cpus", cpus);
    json_object_set(*out, "load_average_before", load_before);
    json_object_set_new(*out, "load_average_after", load_average());
    return MLO_OK;
}

static enum mlo_status run_rounds(const struct session *s, struct mlo_bench_result *out,
                                  mlo_progress_fn *progress, void *progress_arg, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct round a[MAX_ROUNDS] = {{0}}, b[MAX_ROUNDS] = {{0}};
    int sides = out->b.path ? 2 : 1;
    for (int step = 0; step < s->rounds * sides; step++) {
        int r = step / sides;
        bool second = sides == 2 && (step % 2 != r % 2); /* A B, B A, A B … */
        if (progress) {
            char text[64];
            snprintf(text, sizeof text, "round %d of %d", r + 1, s->rounds);
            progress(progress_arg, (double)step / (s->rounds * sides), text);
        }
        MLO_TRY(measure_once(s, second, second ? &out->b : &out->a, second ? &b[r] : &a[r], err));
    }
    summarise(s, a, &out->a);
    if (sides == 2) {
        summarise(s, b, &out->b);
        compare(s, a, b, out);
    }
    if (progress)
        progress(progress_arg, 1, "done");
out:
    return status;
}

enum mlo_status mlo_bench(const char *path_a, const char *path_b, const struct mlo_bench_options *options,
                          struct mlo_bench_result *out, mlo_progress_fn *progress, void *progress_arg,
                          struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *self = NULL;
    json_t *load = load_average();
    struct session s = {.options = options, .exe = options->exe};
    *out = (struct mlo_bench_result){.a.path = path_a, .b.path = path_b};
    s.rounds = options->rounds ? options->rounds : DEFAULT_ROUNDS;
    if (s.rounds < 2 || s.rounds > MAX_ROUNDS) {
        status =
            mlo_error_set(err, MLO_EINVAL, "rounds must be 2 to %d, so that there is an interval; it is %d",
                          MAX_ROUNDS, s.rounds);
        goto out;
    }
    s.child_seconds = MLO_MAX((options->seconds > 0 ? options->seconds : 1) / s.rounds, MIN_CHILD_SECONDS);
    if (!s.exe && !(s.exe = self = mlo_process_self())) {
        status = mlo_error_set(err, MLO_EINTERNAL, "the path of this program cannot be told");
        goto out;
    }
    out->a.samples = json_array();
    out->b.samples = path_b ? json_array() : NULL;
    if (!out->a.samples || (path_b && !out->b.samples)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    s.pinned = mlo_cpus_choose(MLO_MAX(MLO_MAX(options->threads, options->threads_b), 1u), &s.cpus);
    MLO_TRY(run_rounds(&s, out, progress, progress_arg, err));
    MLO_TRY(describe(&s, load, out, err));
out:
    json_decref(load);
    free(self);
    if (status != MLO_OK)
        mlo_bench_result_clear(out);
    return status;
}

void mlo_bench_result_clear(struct mlo_bench_result *result)
{
    free(result->a.engine_version);
    free(result->b.engine_version);
    json_decref(result->a.samples);
    json_decref(result->b.samples);
    json_decref(result->machine);
    *result = (struct mlo_bench_result){0};
}
