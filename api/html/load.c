#include "api/html/load.h"

#include <stdio.h>
#include <string.h>

bool mlo_load_same(const json_t *a, const json_t *b)
{
    return mlo_json_i64(a, "batch", 0) == mlo_json_i64(b, "batch", 0) &&
           mlo_json_i64(a, "threads", 0) == mlo_json_i64(b, "threads", 0) &&
           strcmp(mlo_json_str(a, "machine_class", ""), mlo_json_str(b, "machine_class", "")) == 0;
}

json_t *mlo_load_row(const json_t *rows, const json_t *load)
{
    json_t *row;
    size_t i;
    json_array_foreach((json_t *)rows, i, row) if (mlo_load_same(row, load)) return row;
    return NULL;
}

const char *mlo_load_text(const json_t *load, char out[MLO_LOAD_TEXT_SIZE])
{
    long long batch = (long long)mlo_json_i64(load, "batch", 0),
              threads = (long long)mlo_json_i64(load, "threads", 0);
    int n = 0;
    out[0] = '\0';
    if (batch > 0)
        n = snprintf(out, MLO_LOAD_TEXT_SIZE, "batch %lld", batch);
    if (threads > 0)
        snprintf(out + n, MLO_LOAD_TEXT_SIZE - (size_t)n, "%s%lld thread%s", n ? ", " : "", threads,
                 threads == 1 ? "" : "s");
    return out;
}
