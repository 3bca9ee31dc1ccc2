/* bench --sweep: throughput over batch and concurrency, and the best point under a limit of latency. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

enum mlo_status mlo_local_list(const struct mlo_cli *cli, const char *name, int64_t most,
                               int64_t out[MLO_LOCAL_LIST], size_t *count, struct mlo_error *err)
{
    const char *text = mlo_cli_opt(cli, name);
    *count = 0;
    while (text && *text) {
        char number[24];
        size_t len = strcspn(text, ",");
        snprintf(number, sizeof number, "%.*s", (int)MLO_MIN(len, sizeof number - 1), text);
        if (*count == MLO_LOCAL_LIST || len >= sizeof number || !mlo_str_to_i64(number, &out[*count]) ||
            out[*count] < 1 || out[*count] > most)
            return mlo_error_set(
                err, MLO_EUSAGE,
                "--%s is a list of at most %d numbers from 1 to %lld, like 1,2,4; '%s' is none", name,
                MLO_LOCAL_LIST, (long long)most, number);
        (*count)++;
        text += len + (text[len] == ',');
    }
    return MLO_OK;
}

static json_t *point_json(const struct mlo_sweep_point *p)
{
    return json_pack("{s:I,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:b}", "batch", (json_int_t)p->batch,
                     "concurrency", (int)p->concurrency, "p50_us", p->p50_us, "p90_us", p->p90_us, "p95_us",
                     p->p95_us, "p99_us", p->p99_us, "throughput", p->throughput, "throughput_low", p->low,
                     "throughput_high", p->high, "calls", (json_int_t)p->calls, "peak_rss_bytes",
                     (json_int_t)p->peak_rss_bytes, "within_limit", p->within);
}

static enum mlo_status print_json(const struct mlo_cli *cli, const struct mlo_sweep_options *o,
                                  const struct mlo_sweep_result *r, struct mlo_error *err)
{
    json_t *points = json_array();
    for (size_t i = 0; i < r->count; i++)
        json_array_append_new(points, point_json(&r->points[i]));
    json_t *all = json_pack("{s:s,s:s,s:s,s:i,s:f,s:O,s:o,s:o}", "protocol", MLO_BENCH_PROTOCOL, "path",
                            cli->args[0], "engine", r->engine_version, "threads", (int)o->bench.threads,
                            "seconds", o->bench.seconds, "machine", r->machine, "points", points, "best",
                            r->best >= 0 ? point_json(&r->points[r->best]) : json_null());
    if (o->p99_limit_us > 0)
        json_object_set_new(all, "p99_limit_us", json_real(o->p99_limit_us));
    enum mlo_status status = mlo_cli_print_json(all, err);
    json_decref(all);
    return status;
}

static enum mlo_status print_table(const struct mlo_sweep_options *o, const struct mlo_sweep_result *r,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_table table;
    char limit[32], class_name[96];
    mlo_table_init(&table, "batch>|at once>|p50>|p90>|p95>|p99>|samples/s>|peak memory>|note");
    for (size_t i = 0; i < r->count; i++) {
        const struct mlo_sweep_point *p = &r->points[i];
        char batch[24], together[24], p50[32], p90[32], p95[32], p99[32], rate[32], rss[32];
        snprintf(batch, sizeof batch, "%lld", (long long)p->batch);
        snprintf(together, sizeof together, "%u", p->concurrency);
        snprintf(rate, sizeof rate, "%.0f", p->throughput);
        mlo_table_row(&table, batch, together, mlo_cli_duration(p->p50_us, p50),
                      mlo_cli_duration(p->p90_us, p90), mlo_cli_duration(p->p95_us, p95),
                      mlo_cli_duration(p->p99_us, p99), rate, mlo_str_size(p->peak_rss_bytes, rss),
                      (int)i == r->best ? "best"
                      : p->within       ? ""
                                        : "over the limit");
    }
    MLO_TRY(mlo_table_print_take(&table, err));
    mlo_cli_duration(o->p99_limit_us, limit);
    if (r->best < 0)
        MLO_TRY(mlo_cli_print(err, "no point has its p99 under %s\n", limit));
    else
        MLO_TRY(mlo_cli_print(err, "best%s%s: batch %lld, %u at once: %.0f samples/s\n",
                              o->p99_limit_us > 0 ? " with p99 under " : "", o->p99_limit_us > 0 ? limit : "",
                              (long long)r->points[r->best].batch, r->points[r->best].concurrency,
                              r->points[r->best].throughput));
    MLO_TRY(mlo_cli_print(err, "%s on %s, %u thread%s a call\n", r->engine_version,
                          mlo_machine_class(class_name, sizeof class_name), o->bench.threads,
                          o->bench.threads == 1 ? "" : "s"));
out:
    return status;
}

enum mlo_status mlo_local_sweep(const struct mlo_cli *cli, const struct mlo_bench_options *bench,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_sweep_options o = {.bench = *bench};
    struct mlo_sweep_result result = {0};
    struct mlo_cli_progress progress;
    int64_t batches[MLO_LOCAL_LIST], together[MLO_LOCAL_LIST], rounds;
    unsigned concurrencies[MLO_LOCAL_LIST];
    double limit_ms;
    if (cli->arg_count > 1 || bench->engine_b) {
        status = mlo_error_set(err, MLO_EUSAGE, "--sweep measures one model on one engine");
        goto out;
    }
    if (mlo_cli_has(cli, "batch")) {
        status = mlo_error_set(err, MLO_EUSAGE, "--sweep takes --batches 1,2,4 instead of --batch");
        goto out;
    }
    MLO_TRY(mlo_local_list(cli, "batches", 65536, batches, &o.batch_count, err));
    MLO_TRY(mlo_local_list(cli, "concurrency", 1024, together, &o.concurrency_count, err));
    MLO_TRY(mlo_cli_float(cli, "p99-limit", 0, 1e-6, 1e9, &limit_ms, err));
    MLO_TRY(mlo_cli_float(cli, "seconds", 1, 0.01, 86400, &o.bench.seconds, err));
    MLO_TRY(mlo_cli_int(cli, "rounds", 2, 1, 100, &rounds, err));
    for (size_t i = 0; i < o.concurrency_count; i++)
        concurrencies[i] = (unsigned)together[i];
    o.bench.rounds = (int)rounds;
    o.batches = batches;
    o.concurrencies = concurrencies;
    o.p99_limit_us = limit_ms * 1000;
    mlo_cli_progress_start(&progress, cli, "sweep");
    status = mlo_sweep(cli->args[0], &o, &result, mlo_cli_progress, &progress, err);
    mlo_cli_progress_end(&progress);
    if (status != MLO_OK)
        goto out;
    MLO_TRY(cli->json ? print_json(cli, &o, &result, err) : print_table(&o, &result, err));
out:
    mlo_sweep_result_clear(&result);
    return status;
}
