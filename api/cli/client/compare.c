/* Variants side by side, each against the first. */
#include <math.h>
#include <string.h>

#include "api/cli/client/client.h"
#include "api/html/load.h"

enum { COMPARED_MAX = 5 };

/* The variant that an argument names, with what was measured of it; yours. */
static enum mlo_status find_variant(struct mlo_client *client, const char *text, json_t **out,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client_ref ref;
    struct mlo_buf path = MLO_BUF_INIT;
    const char *version, *names[64];
    json_t *items = NULL, *item;
    size_t i, n = 0;
    MLO_TRY(mlo_client_ref_parse(text, &ref, err));
    MLO_TRY(mlo_client_ref_version(&ref, &version, err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/variants", ref.project, ref.name, version);
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), 0, &items, err));
    const char *wanted = *ref.variant ? ref.variant : "source";
    json_array_foreach(items, i, item)
    {
        const char *name = mlo_json_str(item, "variant", "");
        if (n < MLO_COUNT(names))
            names[n++] = name;
        if (!*out && strcmp(name, wanted) == 0) {
            *out = json_incref(item);
            json_object_set_new(item, "subject", json_string(text));
        }
    }
    if (!*out) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "%s/%s@%s has no variant '%s'", ref.project, ref.name,
                               version, wanted);
        const char *near = mlo_suggest(wanted, names, n);
        if (near)
            mlo_error_hint(err, "did you mean %s/%s@%s/%s?", ref.project, ref.name, version, near);
    }
out:
    json_decref(items);
    mlo_buf_clear(&path);
    return status;
}

static const json_t *latency_under(const json_t *variant, const json_t *load)
{
    return mlo_load_row(json_object_get(variant, "latency"), load);
}

/* The load that all of them were measured under, the first of these; NULL when there is none. */
static const json_t *common_load(const json_t *variants)
{
    json_t *row, *other;
    size_t r, i;
    json_array_foreach(json_object_get(json_array_get(variants, 0), "latency"), r, row)
    {
        bool all = true;
        json_array_foreach((json_t *)variants, i, other) all = all && latency_under(other, row);
        if (all)
            return row;
    }
    return NULL;
}

/* Whether two intervals say that the values differ: they do not meet. Not a paired comparison, hence a
 * careful one. */
static const char *apart(const json_t *a, const json_t *b)
{
    double a_low = mlo_json_f64(a, "low", NAN), a_high = mlo_json_f64(a, "high", NAN),
           b_low = mlo_json_f64(b, "low", NAN), b_high = mlo_json_f64(b, "high", NAN);
    if (isnan(a_low) || isnan(a_high) || isnan(b_low) || isnan(b_high))
        return "";
    return a_high < b_low || b_high < a_low ? "" : "~";
}

static enum mlo_status print_table(const json_t *variants, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const json_t *load = common_load(variants), *first = json_array_get(variants, 0), *item;
    const json_t *first_accuracy = json_object_get(first, "accuracy"),
                 *first_p50 = json_object_get(load ? latency_under(first, load) : NULL, "p50_us");
    struct mlo_table table;
    char load_text[MLO_LOAD_TEXT_SIZE];
    size_t i;
    bool comparable = true;
    mlo_table_init(&table, "variant|size>|/ first>|accuracy (95%)|- first>|p50 (95%)|p99>|p50 / first>");
    json_array_foreach((json_t *)variants, i, item)
    {
        char size[32], times[16] = "", accuracy[96] = "", difference[32] = "", p50[96] = "", p99[32] = "",
                       ratio[32] = "", text[32], low[32], high[32];
        const json_t *a = json_object_get(item, "accuracy"), *l = load ? latency_under(item, load) : NULL,
                     *p = json_object_get(l, "p50_us");
        double bytes = (double)mlo_json_i64(item, "size", 0),
               first_bytes = (double)mlo_json_i64(first, "size", 0);
        if (first_bytes > 0)
            snprintf(times, sizeof times, "%.2f", bytes / first_bytes);
        if (json_is_object(a)) {
            bool share = mlo_str_starts(mlo_json_str(a, "metric", ""), "top");
            double unit = share ? 100 : 1;
            double a_low = unit * mlo_json_f64(a, "low", NAN), a_high = unit * mlo_json_f64(a, "high", NAN);
            int written = snprintf(accuracy, sizeof accuracy, "%.20s %.4g%s", mlo_json_str(a, "metric", ""),
                                   unit * mlo_json_f64(a, "value", NAN), share ? "%" : "");
            if (isfinite(a_low) && isfinite(a_high))
                snprintf(accuracy + written, sizeof accuracy - (size_t)written, " [%.4g, %.4g]", a_low,
                         a_high);
            bool same =
                strcmp(mlo_json_str(a, "metric", ""), mlo_json_str(first_accuracy, "metric", "")) == 0 &&
                strcmp(mlo_json_str(a, "dataset", ""), mlo_json_str(first_accuracy, "dataset", "")) == 0;
            comparable = comparable && same;
            if (i && same)
                snprintf(difference, sizeof difference, "%s%+.4g%s", apart(a, first_accuracy),
                         unit * (mlo_json_f64(a, "value", NAN) - mlo_json_f64(first_accuracy, "value", NAN)),
                         share ? "pt" : "");
        }
        if (json_is_object(p)) {
            snprintf(p50, sizeof p50, "%s [%s, %s]", mlo_cli_duration(mlo_json_f64(p, "value", 0), text),
                     mlo_cli_duration(mlo_json_f64(p, "low", 0), low),
                     mlo_cli_duration(mlo_json_f64(p, "high", 0), high));
            if (json_is_object(json_object_get(l, "p99_us")))
                mlo_cli_duration(mlo_json_f64(json_object_get(l, "p99_us"), "value", 0), p99);
            double base = mlo_json_f64(first_p50, "value", 0);
            if (i && base > 0)
                snprintf(ratio, sizeof ratio, "%s%.2f", apart(p, first_p50),
                         mlo_json_f64(p, "value", 0) / base);
        }
        mlo_table_row(&table, mlo_json_str(item, "subject", ""), mlo_str_size((uint64_t)bytes, size), times,
                      accuracy, difference, p50, p99, ratio);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
    if (load)
        MLO_TRY(mlo_cli_print(err, "latency: %s, on %s; ", mlo_load_text(load, load_text),
                              mlo_json_str(load, "machine_class", "?")));
    else
        MLO_TRY(mlo_cli_print(err, "no latency was measured of all of them under one load; "));
    MLO_TRY(mlo_cli_print(err, "~: the intervals meet, nothing is shown to differ%s\n",
                          comparable ? "" : "; accuracies of other data or metrics are not compared"));
out:
    return status;
}

static enum mlo_status compare_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    json_t *all = json_array();
    MLO_TRY(mlo_client_open(cli, &client, err));
    for (int i = 0; i < cli->arg_count; i++) {
        json_t *one = NULL;
        MLO_TRY(find_variant(client, cli->args[i], &one, err));
        json_array_append_new(all, one);
    }
    MLO_TRY(cli->json ? mlo_cli_print_json(all, err) : print_table(all, err));
out:
    json_decref(all);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {MLO_OPTION_URL, {NULL}};
const struct mlo_cli_verb mlo_verb_compare = {
    .name = "compare",
    .group = "Models and data",
    .run = compare_run,
    .options = options,
    .positional = "PROJECT/MODEL[@V][/VARIANT]…",
    .min_args = 2,
    .max_args = COMPARED_MAX,
    .help = "two to five variants side by side, each against the first",
    .detail = "  mlopt compare fashion/cnn@1 fashion/cnn@1/int8-cpu fashion/cnn@2/int8-cpu\n",
};
