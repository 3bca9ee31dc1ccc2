/* Where the time of one model goes: by kind of node, node by node under the roofline, and as a flame graph.
 */
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

enum { TOP_NODES = 12 };

/* Time by kind: what the nodes of one op and implementation take together. */
struct share {
    const char *op, *impl, *precision;
    int nodes;
    double us, least_us; /* at the roof */
    double flops;
};

static int by_time(const void *a, const void *b)
{
    double x = ((const struct share *)a)->us, y = ((const struct share *)b)->us;
    return (x < y) - (x > y);
}

static size_t gather_shares(const json_t *nodes, struct share *shares, size_t cap)
{
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        const json_t *n = json_array_get(nodes, i);
        double us = mlo_json_f64(n, "us", 0);
        struct share one = {mlo_json_str(n, "op", ""),
                            mlo_json_str(n, "impl", ""),
                            mlo_json_str(n, "precision", ""),
                            1,
                            us,
                            us * mlo_json_f64(n, "peak", 0),
                            (double)mlo_json_i64(n, "flops", 0)};
        size_t k = 0;
        while (k < count && (strcmp(shares[k].op, one.op) != 0 || strcmp(shares[k].impl, one.impl) != 0 ||
                             strcmp(shares[k].precision, one.precision) != 0))
            k++;
        if (k < count) {
            shares[k].nodes++;
            shares[k].us += one.us;
            shares[k].least_us += one.least_us;
            shares[k].flops += one.flops;
        } else if (count < cap) {
            shares[count++] = one;
        }
    }
    qsort(shares, count, sizeof *shares, by_time);
    return count;
}

static const char *percent(double share, char out[32])
{
    snprintf(out, 32, "%.1f%%", 100 * share);
    return out;
}

static enum mlo_status print_shares(const json_t *all, double total, struct mlo_error *err)
{
    struct share shares[256];
    struct mlo_table table;
    bool roof = json_object_get(all, "peaks") != NULL;
    size_t count = gather_shares(json_object_get(all, "nodes"), shares, MLO_COUNT(shares));
    mlo_table_init(&table, roof ? "op|implementation|precision|nodes>|time>|share>|Gop/s>|of the roof>"
                                : "op|implementation|precision|nodes>|time>|share>");
    for (size_t i = 0; i < count; i++) {
        const struct share *s = &shares[i];
        char nodes[32], took[32], part[32], rate[32] = "-", reached[32] = "-";
        snprintf(nodes, sizeof nodes, "%d", s->nodes);
        percent(total > 0 ? s->us / total : 0, part);
        mlo_cli_duration(s->us, took);
        if (s->flops > 0 && s->us > 0)
            snprintf(rate, sizeof rate, "%.1f", s->flops / s->us * 1e-3);
        if (s->least_us > 0 && s->us > 0)
            percent(s->least_us / s->us, reached);
        if (roof)
            mlo_table_row(&table, s->op, s->impl, s->precision, nodes, took, part, rate, reached);
        else
            mlo_table_row(&table, s->op, s->impl, s->precision, nodes, took, part);
    }
    return mlo_table_print_take(&table, err);
}

int mlo_local_by_time(const void *a, const void *b)
{
    double x = mlo_json_f64(*(json_t *const *)a, "us", 0), y = mlo_json_f64(*(json_t *const *)b, "us", 0);
    return (x < y) - (x > y);
}

/* The nodes that take longest, and what holds each of them. */
static enum mlo_status print_nodes(const json_t *all, double total, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const json_t *nodes = json_object_get(all, "nodes");
    size_t count = json_array_size(nodes);
    struct mlo_table table = {0};
    json_t **sorted = calloc(count + 1, sizeof *sorted);
    if (!sorted)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < count; i++)
        sorted[i] = json_array_get(nodes, i);
    qsort(sorted, count, sizeof *sorted, mlo_local_by_time);
    MLO_TRY(mlo_cli_print(err, "\n"));
    mlo_table_init(&table, "node|op|time>|share>|Gop/s>|ops a byte>|bound by|of the roof>");
    for (size_t i = 0; i < count && i < TOP_NODES; i++) {
        const json_t *n = sorted[i];
        char took[32], part[32], rate[32] = "-", dense[32] = "-", reached[32] = "-";
        double us = mlo_json_f64(n, "us", 0), flops = (double)mlo_json_i64(n, "flops", 0);
        percent(total > 0 ? us / total : 0, part);
        mlo_cli_duration(us, took);
        if (json_object_get(n, "peak")) {
            snprintf(rate, sizeof rate, "%.1f", us > 0 ? flops / us * 1e-3 : 0);
            snprintf(dense, sizeof dense, "%.1f", mlo_json_f64(n, "intensity", 0));
            percent(mlo_json_f64(n, "peak", 0), reached);
        }
        mlo_table_row(&table, mlo_json_str(n, "node", ""), mlo_json_str(n, "op", ""), took, part, rate, dense,
                      mlo_json_str(n, "bound", "-"), reached);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    free(sorted);
    return status;
}

static enum mlo_status print_peaks(const json_t *all, struct mlo_error *err)
{
    const json_t *peaks = json_object_get(all, "peaks"), *levels = json_object_get(peaks, "levels");
    char text[256] = "";
    for (size_t i = 0; i < json_array_size(levels); i++) {
        const json_t *level = json_array_get(levels, i);
        size_t len = strlen(text);
        snprintf(text + len, sizeof text - len, "%s%s %.0f GB/s", i ? ", " : "",
                 mlo_json_str(level, "name", ""), mlo_json_f64(level, "bytes_per_s", 0) * 1e-9);
    }
    return mlo_cli_print(
        err, "the roof, measured now with %lld thread%s: float32 %.0f Gop/s, int8 %.0f Gop/s; reading %s\n",
        (long long)mlo_json_i64(peaks, "threads", 1), mlo_json_i64(peaks, "threads", 1) == 1 ? "" : "s",
        mlo_json_f64(peaks, "f32_ops", 0) * 1e-9, mlo_json_f64(peaks, "int8_ops", 0) * 1e-9, text);
}

static enum mlo_status write_flame(const char *path, const char *title, const json_t *profile,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_buf svg = MLO_BUF_INIT;
    MLO_TRY(mlo_local_flame(title, profile, &svg, err));
    MLO_TRY(mlo_fs_write_atomic(path, mlo_buf_str(&svg), svg.len, err));
out:
    mlo_buf_clear(&svg);
    return status;
}

enum mlo_status mlo_local_profile(const struct mlo_cli *cli, const struct mlo_bench_options *o,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *all = NULL;
    char took[32];
    const char *flame = mlo_cli_opt(cli, "flame");
    if (flame)
        MLO_TRY(mlo_cli_check_output(flame, err));
    MLO_TRY(mlo_profile(cli->args[0], o, &all, err));
    if (flame)
        MLO_TRY(write_flame(flame, cli->args[0], all, err));
    if (cli->json) {
        MLO_TRY(mlo_cli_print_json(all, err));
        goto out;
    }
    double total = mlo_json_f64(all, "total_us", 0);
    MLO_TRY(print_shares(all, total, err));
    if (json_object_get(all, "peaks"))
        MLO_TRY(print_nodes(all, total, err));
    MLO_TRY(mlo_cli_print(err, "\n%s: %zu nodes, %s together (-o json has each)\n",
                          mlo_json_str(all, "version", ""), json_array_size(json_object_get(all, "nodes")),
                          mlo_cli_duration(total, took)));
    if (json_object_get(all, "peaks"))
        MLO_TRY(print_peaks(all, err));
    if (flame)
        MLO_TRY(mlo_cli_print(err, "wrote %s\n", flame));
out:
    json_decref(all);
    return status;
}
