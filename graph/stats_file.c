/* Statistics as a file: a magic line, the length of the JSON, the JSON (with one entry a matrix), then the
 * matrices' numbers as little-endian doubles, sums before matrix, in the order of the entries. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/stats_impl.h"

static const char magic[8] = "MLOSTAT1";

enum mlo_status mlo_stats_save(const struct mlo_stats *stats, const char *path, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_buf out = MLO_BUF_INIT;
    json_t *json = NULL, *grams = json_array();
    char *text = NULL;
    MLO_TRY(mlo_stats_to_json(stats, &json, err));
    for (size_t i = 0; i < stats->gram_count; i++) {
        const struct mlo_gram *g = &stats->grams[i];
        json_array_append_new(grams, json_pack("{s:s,s:I,s:I,s:b,s:I,s:I}", "key", g->key, "groups",
                                               (json_int_t)g->groups, "dim", (json_int_t)g->dim, "full",
                                               (int)g->full, "rows", (json_int_t)g->rows, "skipped",
                                               (json_int_t)g->skipped));
    }
    if (json_object_set(json, "grams", grams) || json_array_size(grams) != stats->gram_count ||
        !(text = json_dumps(json, JSON_SORT_KEYS | JSON_COMPACT))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    uint64_t length = strlen(text);
    mlo_buf_append(&out, magic, sizeof magic);
    mlo_buf_append(&out, &length, sizeof length);
    mlo_buf_append(&out, text, (size_t)length);
    for (size_t i = 0; i < stats->gram_count; i++) {
        const struct mlo_gram *g = &stats->grams[i];
        mlo_buf_append(&out, g->sum, (size_t)(g->groups * g->dim) * sizeof *g->sum);
        mlo_buf_append(&out, g->matrix, (size_t)g->groups * mlo_gram_numbers(g) * sizeof *g->matrix);
    }
    if (out.failed) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_fs_write_atomic(path, mlo_buf_str(&out), out.len, err));
out:
    free(text);
    json_decref(json);
    json_decref(grams);
    mlo_buf_clear(&out);
    return status;
}

/* Takes `count` doubles off the bytes; false: there are not so many, or one is not finite. */
static bool take(const uint8_t **at, const uint8_t *end, double *out, size_t count)
{
    if ((size_t)(end - *at) / sizeof *out < count)
        return false;
    memcpy(out, *at, count * sizeof *out);
    *at += count * sizeof *out;
    for (size_t i = 0; i < count; i++)
        if (!isfinite(out[i]))
            return false;
    return true;
}

static enum mlo_status read_gram(const json_t *json, struct mlo_stats *out, const uint8_t **at,
                                 const uint8_t *end, struct mlo_error *err)
{
    enum mlo_status status;
    const char *key;
    int64_t groups, dim, rows, skipped;
    MLO_TRY(mlo_json_get_str(json, "key", NULL, &key, err));
    MLO_TRY(mlo_json_get_i64(json, "groups", NULL, &groups, err));
    MLO_TRY(mlo_json_get_i64(json, "dim", NULL, &dim, err));
    MLO_TRY(mlo_json_get_i64(json, "rows", NULL, &rows, err));
    MLO_TRY(mlo_json_get_i64(json, "skipped", NULL, &skipped, err));
    bool full = mlo_json_bool(json, "full", false);
    /* What the bytes cannot hold is not allocated. */
    int64_t room = (int64_t)((size_t)(end - *at) / sizeof(double)), size_before = (int64_t)out->gram_count;
    bool fits = groups >= 1 && dim >= 1 && rows >= 0 && skipped >= 0 && groups <= room &&
                dim <= room / groups &&
                (!full || (dim <= MLO_GRAM_DIM_MAX && (dim + 3) / 2 * dim <= room / groups));
    struct mlo_gram *g = fits ? mlo_stats_make_gram(out, key, groups, dim, full) : NULL;
    if (!g || (int64_t)out->gram_count == size_before || !take(at, end, g->sum, (size_t)(groups * dim)) ||
        !take(at, end, g->matrix, (size_t)groups * mlo_gram_numbers(g))) {
        status = mlo_error_set(err, MLO_EFORMAT, "the matrix of '%.120s' is broken or cut off", key);
        goto out;
    }
    g->rows = (uint64_t)rows;
    g->skipped = (uint64_t)skipped;
out:
    return status;
}

static enum mlo_status read_all(const uint8_t *bytes, size_t size, struct mlo_stats *out,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *json = NULL;
    uint64_t length = 0;
    size_t head = sizeof magic + sizeof length;
    if (size >= head && memcmp(bytes, magic, sizeof magic) == 0)
        memcpy(&length, bytes + sizeof magic, sizeof length);
    if (length == 0 || length > size - head)
        return mlo_error_set(err, MLO_EFORMAT, "this is no file of statistics");
    json = json_loadb((const char *)bytes + head, (size_t)length, 0, NULL);
    if (!json) {
        status = mlo_error_set(err, MLO_EFORMAT, "the statistics' JSON is broken");
        goto out;
    }
    MLO_TRY(mlo_stats_from_json(json, out, err));
    const uint8_t *at = bytes + head + length, *end = bytes + size;
    const json_t *grams = json_object_get(json, "grams");
    for (size_t i = 0; i < json_array_size(grams); i++)
        MLO_TRY(read_gram(json_array_get(grams, i), out, &at, end, err));
    if (at != end)
        status =
            mlo_error_set(err, MLO_EFORMAT, "the statistics have %zu bytes too many", (size_t)(end - at));
out:
    json_decref(json);
    return status;
}

enum mlo_status mlo_stats_load(const char *path, struct mlo_stats *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_mapping mapping = {0};
    mlo_stats_init(out);
    MLO_TRY(mlo_fs_map(path, &mapping, err));
    MLO_TRY(read_all(mapping.data, mapping.size, out, err));
out:
    if (status != MLO_OK) {
        mlo_error_where(err, "%s", path);
        mlo_stats_clear(out);
    }
    mlo_fs_unmap(&mapping);
    return status;
}
