/* What `engines` and `doctor` say about GPUs. */
#include <string.h>

#include "api/cli/local/local_impl.h"
#include "engines/cuda/found.h"

enum mlo_status mlo_local_gpu_print(const json_t *found, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_table table;
    struct mlo_buf text = MLO_BUF_INIT;
    char size[32], sm[32];
    size_t i;
    json_t *row;
    mlo_table_init(&table, "part|for|here|version|where, or why not");
    json_array_foreach(json_object_get(found, "parts"), i, row)
    {
        bool here = mlo_json_bool(row, "found", false);
        const char *version = mlo_json_str(row, "version", ""), *path = mlo_json_str(row, "path", "");
        mlo_table_row(&table, mlo_json_str(row, "name", ""), mlo_json_str(row, "for", ""),
                      here ? "yes" : "no", version[0] ? version : NULL,
                      here ? path : mlo_json_str(row, "why", ""));
    }
    MLO_TRY(mlo_table_print_take(&table, err));
    json_array_foreach(json_object_get(found, "gpus"), i, row)
    {
        snprintf(sm, sizeof sm, "cuda:sm%lld", (long long)mlo_json_i64(row, "sm", 0));
        mlo_buf_printf(&text, "GPU %zu: %s, %s, %s\n", i, mlo_json_str(row, "name", "?"), sm,
                       mlo_str_size((uint64_t)mlo_json_i64(row, "memory_bytes", 0), size));
    }
    json_array_foreach(json_object_get(found, "missing"), i, row)
    {
        mlo_buf_printf(&text, "missing: %s (to %s): %s\n", mlo_json_str(row, "name", ""),
                       mlo_json_str(row, "for", ""), mlo_json_str(row, "next", ""));
    }
    MLO_TRY(mlo_cli_print(err, "%s%s\n", mlo_buf_str(&text), mlo_json_str(found, "verdict", "")));
out:
    mlo_table_clear(&table);
    mlo_buf_clear(&text);
    return status;
}

enum mlo_status mlo_local_gpu_needed(const json_t *found, struct mlo_error *err)
{
    const json_t *first = json_array_get(json_object_get(found, "missing"), 0);
    if (mlo_json_bool(found, "run", false))
        return MLO_OK;
    mlo_error_set(err, MLO_ENODEVICE, "%s", mlo_json_str(found, "verdict", "no GPU can be used here"));
    if (first)
        mlo_error_hint(err, "%s", mlo_json_str(first, "next", ""));
    return MLO_ENODEVICE;
}
