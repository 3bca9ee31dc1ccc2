/* `bench` on a device: what a model takes there, step by step under the roofline. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

enum { TOP_STEPS = 20 };

static void print_times(struct mlo_buf *out, const json_t *all, const char *name, const char *what)
{
    const json_t *times = json_object_get(all, name), *p50 = json_object_get(times, "p50_us");
    char a[32], low[32], high[32], p99[32];
    if (!p50)
        return;
    mlo_buf_printf(out, "%-10s %s [%s, %s], p99 %s\n", what,
                   mlo_cli_duration(mlo_json_f64(p50, "value", 0), a),
                   mlo_cli_duration(mlo_json_f64(p50, "low", 0), low),
                   mlo_cli_duration(mlo_json_f64(p50, "high", 0), high),
                   mlo_cli_duration(mlo_json_f64(json_object_get(times, "p99_us"), "value", 0), p99));
}

static void print_watched(struct mlo_buf *out, const json_t *w)
{
    const char *slowed = mlo_json_str(w, "slowed_by", "");
    if (!w)
        return;
    mlo_buf_printf(out, "%-10s %.0f W, %.0f MHz (least %.0f, at most %lld), busy %.0f%%, %.0f °C%s%s\n",
                   "meanwhile", mlo_json_f64(w, "power_w", 0), mlo_json_f64(w, "sm_mhz", 0),
                   mlo_json_f64(w, "sm_mhz_least", 0), (long long)mlo_json_i64(w, "max_sm_mhz", 0),
                   100 * mlo_json_f64(w, "busy", 0), mlo_json_f64(w, "temperature_c", 0),
                   slowed[0] ? "; slowed down by " : "", slowed);
}

static enum mlo_status print_steps(const json_t *all, struct mlo_error *err)
{
    struct mlo_table table;
    const json_t *floor = json_object_get(all, "floor"), *steps = json_object_get(floor, "steps");
    size_t count = json_array_size(steps);
    const json_t **sorted = calloc(count + 1, sizeof *sorted);
    if (!sorted)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < count; i++)
        sorted[i] = json_array_get(steps, i);
    qsort(sorted, count, sizeof *sorted, mlo_local_by_time);
    mlo_table_init(&table, "step|op|by|precision|time>|floor>|of the floor>|bound by|occupancy>");
    for (size_t i = 0; i < count && i < TOP_STEPS; i++) {
        char us[32], least[32], part[32] = "-", filled[32] = "-";
        const json_t *s = sorted[i];
        double percent = mlo_json_f64(s, "percent", 0), occupancy = mlo_json_f64(s, "occupancy", -1);
        if (percent > 0)
            snprintf(part, sizeof part, "%.0f%%", percent);
        if (occupancy >= 0)
            snprintf(filled, sizeof filled, "%.0f%%", 100 * occupancy);
        mlo_table_row(&table, mlo_json_str(s, "node", ""), mlo_json_str(s, "op", ""),
                      mlo_json_str(s, "impl", ""), mlo_json_str(s, "precision", ""),
                      mlo_cli_duration(mlo_json_f64(s, "us", 0), us),
                      mlo_cli_duration(mlo_json_f64(s, "floor_us", 0), least), part,
                      mlo_json_str(s, "bound", ""), filled);
    }
    free(sorted);
    return mlo_table_print_take(&table, err);
}

static void print_together(struct mlo_buf *out, const json_t *all)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(all, "together"), i, row)
    {
        char us[32];
        const json_t *p50 = json_object_get(json_object_get(row, "call"), "p50_us");
        mlo_buf_printf(out, "%-10s %lld at once: %.0f samples/s, a call each %s\n", i ? "" : "streams",
                       (long long)mlo_json_i64(row, "streams", 0), mlo_json_f64(row, "throughput", 0),
                       mlo_cli_duration(mlo_json_f64(p50, "value", 0), us));
    }
}

enum mlo_status mlo_local_device(const struct mlo_cli *cli, const struct mlo_bench_options *bench,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    json_t *all = NULL;
    struct mlo_bench_options options = *bench, *o = &options;
    int64_t together[MLO_LOCAL_LIST];
    unsigned streams[MLO_LOCAL_LIST];
    struct mlo_buf text = MLO_BUF_INIT;
    char arena[32], constants[32], workspace[32], least[32];
    MLO_TRY(mlo_local_list(cli, "concurrency", MLO_STREAMS_MAX, together, &o->stream_count, err));
    for (size_t i = 0; i < o->stream_count; i++)
        streams[i] = (unsigned)together[i];
    o->streams = streams;
    MLO_TRY(mlo_device_bench(cli->args[0], o, &all, err));
    if (cli->json) {
        MLO_TRY(mlo_cli_print_json(all, err));
        goto out;
    }
    if (json_object_get(all, "floor"))
        MLO_TRY(print_steps(all, err));
    print_times(&text, all, "replay", "replay");
    print_times(&text, all, "upload", "upload");
    print_times(&text, all, "download", "download");
    print_together(&text, all);
    print_watched(&text, json_object_get(all, "watched"));
    mlo_buf_printf(&text, "%-10s %s values, %s constants, %s workspace\n", "memory",
                   mlo_str_size((uint64_t)mlo_json_i64(all, "arena_bytes", 0), arena),
                   mlo_str_size((uint64_t)mlo_json_i64(all, "constant_bytes", 0), constants),
                   mlo_str_size((uint64_t)mlo_json_i64(all, "workspace_bytes", 0), workspace));
    if (json_object_get(all, "percent_of_floor"))
        mlo_buf_printf(&text, "%-10s %s at least: the replay is at %.0f%% of the floor\n", "floor",
                       mlo_cli_duration(mlo_json_f64(json_object_get(all, "floor"), "floor_us", 0), least),
                       mlo_json_f64(all, "percent_of_floor", 0));
    MLO_TRY(mlo_cli_print(err, "%s%.0f samples/s at batch %lld on %s (%s)\n", mlo_buf_str(&text),
                          mlo_json_f64(all, "throughput", 0), (long long)o->batch,
                          mlo_json_str(json_object_get(all, "device"), "name", "the device"),
                          mlo_json_str(all, "engine", "")));
out:
    mlo_buf_clear(&text);
    json_decref(all);
    return status;
}
