/* What a search found so far, as a table. */
#include <math.h>
#include <string.h>

#include "api/cli/client/client.h"

static const char *number(const json_t *object, const char *key, double times, int digits, char *out,
                          size_t size)
{
    const json_t *of = json_object_get(object, key);
    const json_t *value = json_is_object(of) ? json_object_get(of, "value") : of;
    if (!json_is_number(value))
        return "";
    snprintf(out, size, "%.*f", digits, times * json_number_value(value));
    return out;
}

static void add_row(struct mlo_table *table, const json_t *point)
{
    char drop[32], evaluated[32], p50[32], ratio[32], share[32], bytes[32];
    int64_t size = mlo_json_i64(point, "size", 0);
    mlo_table_row(table, mlo_json_str(point, "name", ""),
                  mlo_json_bool(point, "front", false) ? "front" : mlo_json_str(point, "state", ""),
                  mlo_json_bool(point, "meets", false) ? "yes" : "no",
                  number(point, "accuracy_drop", 100, 2, drop, sizeof drop),
                  number(point, "evaluated_drop", 100, 2, evaluated, sizeof evaluated),
                  number(point, "latency_p50_us", 1, 1, p50, sizeof p50),
                  number(point, "latency_ratio", 1, 3, ratio, sizeof ratio),
                  size ? mlo_str_size((uint64_t)size, bytes) : "",
                  number(point, "size_ratio", 1, 3, share, sizeof share), mlo_json_str(point, "why", ""));
}

enum mlo_status mlo_client_print_front(const json_t *run, struct mlo_error *err)
{
    const json_t *search = json_object_get(run, "search"), *used = json_object_get(search, "used"), *point;
    struct mlo_table table;
    size_t i;
    if (!search)
        return MLO_OK;
    mlo_table_init(&table,
                   "candidate|state|goal|drop pt>|evaluated>|p50 us>|of source>|size>|of source>|why");
    for (int front = 1; front >= 0; front--)
        json_array_foreach(json_object_get(search, "points"), i,
                           point) if (mlo_json_bool(point, "front", false) == front) add_row(&table, point);
    enum mlo_status status = mlo_table_print_take(&table, err);
    char priced[48] = "";
    if (mlo_json_f64(used, "cost", 0) > 0)
        snprintf(priced, sizeof priced, ", a cost of %.4g", mlo_json_f64(used, "cost", 0));
    if (status == MLO_OK)
        status =
            mlo_cli_print(err, "%s: %s%s%s (%lld jobs, %.0f s%s)\n", mlo_json_str(search, "goal", ""),
                          mlo_json_str(search, "why", ""), *mlo_json_str(search, "stopped", "") ? "; " : "",
                          mlo_json_str(search, "stopped", ""), (long long)mlo_json_i64(used, "jobs", 0),
                          mlo_json_f64(used, "elapsed_s", 0), priced);
    return status;
}
