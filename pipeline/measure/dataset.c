/* Opening: which files, how many samples, labels and groups. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "pipeline/measure/dataset_impl.h"

enum { LABELS_MAX = 1 << 26 }; /* labels and groups are the only arrays held in memory whole */

bool mlo_dataset_is_data(const struct mlo_dataset *dataset, const struct mlo_array *array)
{
    return array->dtype != MLO_DTYPE_NONE && array->rank >= 1 && array->dims[0] == dataset->rows &&
           strcmp(array->name, "y") != 0 && strcmp(array->name, "group") != 0;
}

int64_t mlo_dataset_count(const struct mlo_dataset *dataset)
{
    return dataset->count;
}

const int64_t *mlo_dataset_labels(const struct mlo_dataset *dataset)
{
    return dataset->labels;
}

const int64_t *mlo_dataset_groups(const struct mlo_dataset *dataset)
{
    return dataset->groups;
}

const json_t *mlo_dataset_classes(const struct mlo_dataset *dataset)
{
    return dataset->manifest.classes;
}

/* --- finding the files ---------------------------------------------------------------------------------- */

enum file_kind { FILE_UNKNOWN, FILE_ZIP, FILE_GZIP, FILE_IDX, FILE_NPY };

/* By the first bytes: a name proves nothing. */
static enum mlo_status sniff(const char *path, enum file_kind *out, struct mlo_error *err)
{
    static const struct {
        const char *bytes;
        size_t size;
        enum file_kind kind;
    } magics[] = {
        {"PK\3\4", 4, FILE_ZIP},   {"PK\5\6", 4, FILE_ZIP},   {"\x1f\x8b", 2, FILE_GZIP},
        {"\0\0\x08", 3, FILE_IDX}, {"\0\0\x09", 3, FILE_IDX}, {"\x93NUMPY", 6, FILE_NPY},
    };
    unsigned char head[8] = {0};
    *out = FILE_UNKNOWN;
    FILE *file = fopen(path, "rbe");
    if (!file)
        return mlo_error_errno(err, errno, "cannot open the dataset %s", path);
    size_t got = fread(head, 1, sizeof head, file);
    fclose(file);
    for (size_t i = 0; i < MLO_COUNT(magics); i++)
        if (got >= magics[i].size && memcmp(head, magics[i].bytes, magics[i].size) == 0)
            *out = magics[i].kind;
    return MLO_OK;
}

static enum mlo_status open_file(struct mlo_dataset *d, const char *path, struct mlo_error *err)
{
    enum file_kind kind;
    enum mlo_status status = sniff(path, &kind, err);
    if (status != MLO_OK)
        return status;
    if (kind == FILE_ZIP || (kind == FILE_UNKNOWN && mlo_str_ends(path, ".npz")))
        return mlo_npz_open(path, &d->arrays, err);
    if (kind == FILE_GZIP || kind == FILE_IDX)
        return mlo_idx_open(path, "x", &d->arrays, err);
    status = mlo_error_set(err, MLO_EFORMAT, "%s is %s", path,
                           kind == FILE_NPY ? "a single .npy array"
                                            : "no dataset: neither .npz, IDX nor a manifest");
    mlo_error_hint(err,
                   kind == FILE_NPY ? "name its role: numpy.savez('data.npz', x=numpy.load('%s'))"
                                    : "datasets are .npz files, 'images.gz,labels.gz' IDX pairs, or folders "
                                      "with a dataset.json; not %s",
                   mlo_fs_basename(path));
    return status;
}

static enum mlo_status open_pair(struct mlo_dataset *d, const char *images, const char *labels,
                                 struct mlo_error *err)
{
    enum mlo_status status = mlo_idx_open(images, "x", &d->arrays, err);
    if (status == MLO_OK && labels)
        status = mlo_idx_open(labels, "y", &d->arrays, err);
    return status;
}

static enum mlo_status open_manifest(struct mlo_dataset *d, const char *path, struct mlo_error *err)
{
    struct mlo_manifest *m = &d->manifest;
    enum mlo_status status = mlo_manifest_load(path, m, err);
    if (status != MLO_OK)
        return status;
    return m->idx ? open_pair(d, m->data, m->labels, err) : mlo_npz_open(m->data, &d->arrays, err);
}

static enum mlo_status open_path(struct mlo_dataset *d, struct mlo_error *err)
{
    struct stat st;
    const char *comma = strchr(d->path, ',');
    if (stat(d->path, &st) != 0) {
        if (!comma)
            return mlo_error_errno(err, errno, "cannot open the dataset %s", d->path);
        const char *images = mlo_arena_strndup(d->manifest.arena, d->path, (size_t)(comma - d->path));
        return images ? open_pair(d, images, comma + 1, err) : mlo_error_nomem(err);
    }
    if (S_ISDIR(st.st_mode)) {
        const char *manifest = mlo_arena_printf(d->manifest.arena, "%s/dataset.json", d->path);
        if (!manifest)
            return mlo_error_nomem(err);
        if (mlo_fs_exists(manifest))
            return open_manifest(d, manifest, err);
        mlo_error_set(err, MLO_ENOTFOUND, "the folder %s holds no dataset.json", d->path);
        mlo_error_hint(err, "name the .npz file itself, or describe its files in a dataset.json");
        return MLO_ENOTFOUND;
    }
    return mlo_str_ends(d->path, ".json") ? open_manifest(d, d->path, err) : open_file(d, d->path, err);
}

/* --- samples, labels, groups ------------------------------------------------------------------------------
 */

/* The number of rows: that of y, else of x, else of all arrays that could hold samples. */
static enum mlo_status count_rows(struct mlo_dataset *d, struct mlo_error *err)
{
    const struct mlo_array *by = mlo_arrays_find(&d->arrays, "y"), *x = mlo_arrays_find(&d->arrays, "x");
    bool fed = false;
    if (!by || by->rank < 1)
        by = x;
    for (size_t i = 0; i < d->arrays.count && (!by || by->rank < 1); i++)
        by = d->arrays.items[i].rank >= 1 ? &d->arrays.items[i] : NULL;
    if (!by || by->rank < 1)
        return mlo_error_set(err, MLO_EFORMAT, "no array in it has an axis for samples");
    d->rows = by->dims[0];
    for (size_t i = 0; i < d->arrays.count; i++) {
        const struct mlo_array *a = &d->arrays.items[i];
        bool sample_array = a->rank >= 1 && strcmp(a->name, "y") != 0;
        if (sample_array && a->dims[0] != d->rows && (a == x || strcmp(a->name, "group") == 0))
            return mlo_error_set(err, MLO_EFORMAT, "array '%s' has %lld samples and '%s' has %lld", a->name,
                                 (long long)a->dims[0], by->name, (long long)d->rows);
        fed |= sample_array && a->dims[0] == d->rows && strcmp(a->name, "group") != 0;
    }
    if (fed)
        return MLO_OK;
    struct mlo_buf there = MLO_BUF_INIT;
    mlo_arrays_describe(&d->arrays, &there);
    enum mlo_status status =
        mlo_error_set(err, MLO_EFORMAT, "no array has a row for each of the %lld labels; there is: %s",
                      (long long)d->rows, mlo_buf_str(&there));
    mlo_buf_clear(&there);
    return status;
}

static enum mlo_status choose_samples(struct mlo_dataset *d, int64_t limit, struct mlo_error *err)
{
    const struct mlo_manifest *m = &d->manifest;
    if (m->first > d->rows || m->count > d->rows - m->first)
        return mlo_error_set(err, MLO_EINVAL,
                             "the manifest asks for samples %lld to %lld, but there are %lld",
                             (long long)m->first, (long long)(m->first + m->count), (long long)d->rows);
    d->first = m->first;
    d->count = m->count ? m->count : d->rows - m->first;
    if (limit < 0)
        return mlo_error_set(err, MLO_EINVAL, "limit must not be negative");
    if (limit)
        d->count = MLO_MIN(d->count, limit);
    if (!d->count)
        return mlo_error_set(err, MLO_EINVAL, "the dataset holds no samples");
    return MLO_OK;
}

static bool is_one_integer(const struct mlo_array *array)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(array->dtype);
    size_t per_row = 0; /* stays 0 when the dims overflow */
    return array->rank >= 1 && mlo_shape_count(array->rank - 1, array->dims + 1, &per_row) && per_row == 1 &&
           (info->is_integer || array->dtype == MLO_BOOL);
}

/* y or group as int64; an array of [N] or [N,1] integers. Another kind of y is no class numbers, but may be
 * what else is to be predicted. */
static enum mlo_status load_integers(const struct mlo_dataset *d, const char *name, bool required,
                                     int64_t **out, struct mlo_error *err)
{
    enum { PIECE = 4096 };
    enum mlo_status status = MLO_OK;
    struct mlo_array *array = mlo_arrays_find(&d->arrays, name);
    struct mlo_tensor piece = {0};
    if (!array)
        return MLO_OK;
    if (array->dtype == MLO_DTYPE_NONE) {
        if (err)
            *err = array->refusal;
        return array->refusal.status;
    }
    if (!is_one_integer(array)) {
        if (!required)
            return MLO_OK;
        mlo_error_set(err, MLO_EINVAL, "array '%s' must be integers, one for each sample; it is of %s", name,
                      mlo_dtype_name(array->dtype));
        mlo_error_hint(err, "number them: %s.astype(numpy.int64)", name);
        return MLO_EINVAL;
    }
    if (d->count > LABELS_MAX)
        return mlo_error_set(err, MLO_ETOOBIG, "more than %d labels", LABELS_MAX);
    *out = malloc((size_t)d->count * sizeof **out);
    if (!*out)
        return mlo_error_nomem(err);
    for (int64_t at = 0; at < d->count; at += PIECE) {
        const int64_t n = MLO_MIN(d->count - at, (int64_t)PIECE);
        mlo_tensor_clear(&piece);
        MLO_TRY(mlo_tensor_init(&piece, array->dtype, 1, &n, err));
        MLO_TRY(mlo_array_read(array, d->first + at, n, piece.data, err));
        for (int64_t i = 0; i < n; i++)
            (*out)[at + i] = mlo_tensor_get_i64(&piece, (size_t)i);
    }
out:
    mlo_tensor_clear(&piece);
    return status;
}

enum mlo_status mlo_dataset_integers(const struct mlo_dataset *dataset, const char *name, int64_t **out,
                                     struct mlo_error *err)
{
    const struct mlo_array *array = mlo_arrays_find(&dataset->arrays, name);
    *out = NULL;
    if (array && array->rank >= 1 && array->dims[0] != dataset->rows)
        return mlo_error_set(err, MLO_EINVAL, "array '%s' has %lld rows, and the dataset %lld samples", name,
                             (long long)array->dims[0], (long long)dataset->rows);
    enum mlo_status status = load_integers(dataset, name, true, out, err);
    if (status != MLO_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}

enum mlo_status mlo_dataset_target(const struct mlo_dataset *dataset, struct mlo_tensor *out,
                                   struct mlo_error *err)
{
    enum { TARGET_BYTES_MAX = 1u << 31 };
    struct mlo_array *array = mlo_arrays_find(&dataset->arrays, "y");
    int64_t dims[MLO_MAX_RANK];
    *out = (struct mlo_tensor){0};
    if (!array)
        return MLO_OK;
    if (array->rank < 1)
        return mlo_error_set(err, MLO_EFORMAT, "array 'y' is a single number: it has no row per sample");
    memcpy(dims, array->dims, sizeof dims);
    dims[0] = dataset->count;
    if (array->row_bytes > TARGET_BYTES_MAX / (size_t)dataset->count)
        return mlo_error_set(err, MLO_ETOOBIG, "array 'y' takes more than 2 GiB");
    enum mlo_status status = mlo_tensor_init(out, array->dtype, array->rank, dims, err);
    if (status == MLO_OK)
        status = mlo_array_read(array, dataset->first, dataset->count, out->data, err);
    if (status != MLO_OK) {
        mlo_tensor_clear(out);
        mlo_error_where(err, "dataset %s", dataset->path);
    }
    return status;
}

const char *mlo_dataset_postprocess(const struct mlo_dataset *dataset)
{
    return dataset->manifest.postprocess;
}

static enum mlo_status take_map(struct mlo_dataset *d, const struct mlo_dataset_options *o,
                                struct mlo_error *err)
{
    if (!o->map_count)
        return MLO_OK;
    d->map = mlo_arena_calloc(d->manifest.arena, o->map_count, sizeof *d->map);
    if (!d->map)
        return mlo_error_nomem(err);
    for (size_t i = 0; i < o->map_count; i++) {
        const char *equals = strrchr(o->map[i], '=');
        if (!equals || equals == o->map[i] || !equals[1])
            return mlo_error_set(err, MLO_EINVAL, "'%s' does not have the form INPUT=ARRAY", o->map[i]);
        struct mlo_feed_map *map = &d->map[d->map_count++];
        map->input = mlo_arena_strndup(d->manifest.arena, o->map[i], (size_t)(equals - o->map[i]));
        map->array = mlo_arena_strdup(d->manifest.arena, equals + 1);
        if (!map->input || !map->array)
            return mlo_error_nomem(err);
        if (!mlo_arrays_find(&d->arrays, map->array)) {
            struct mlo_buf there = MLO_BUF_INIT;
            mlo_arrays_describe(&d->arrays, &there);
            mlo_error_set(err, MLO_ENOTFOUND, "there is no array '%s' to map; there is: %s", map->array,
                          mlo_buf_str(&there));
            mlo_buf_clear(&there);
            return MLO_ENOTFOUND;
        }
    }
    return MLO_OK;
}

enum mlo_status mlo_dataset_open(const char *path, const struct mlo_dataset_options *options,
                                 struct mlo_dataset **out, struct mlo_error *err)
{
    static const struct mlo_dataset_options defaults = {0};
    const struct mlo_dataset_options *o = options ? options : &defaults;
    enum mlo_status status = MLO_OK;
    struct mlo_dataset *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d)
        return mlo_error_nomem(err);
    d->manifest.arena = mlo_arena_new();
    if (!d->manifest.arena || !(d->path = mlo_arena_strdup(d->manifest.arena, path))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(open_path(d, err));
    MLO_TRY(count_rows(d, err));
    MLO_TRY(choose_samples(d, o->limit, err));
    MLO_TRY(load_integers(d, "y", false, &d->labels, err));
    MLO_TRY(load_integers(d, "group", true, &d->groups, err));
    MLO_TRY(take_map(d, o, err));
    if (o->postprocess && !(d->manifest.postprocess = mlo_arena_strdup(d->manifest.arena, o->postprocess))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    d->normalize = d->manifest.has_normalize;
    if (o->normalize) {
        MLO_TRY(mlo_normalize_parse(o->normalize, &d->manifest.normalize, err));
        d->normalize = d->normalize_asked = true;
    }
out:
    if (status != MLO_OK) {
        mlo_error_where(err, "dataset %s", path);
        mlo_dataset_close(d);
        return status;
    }
    *out = d;
    return MLO_OK;
}

void mlo_dataset_close(struct mlo_dataset *dataset)
{
    if (!dataset)
        return;
    mlo_arrays_clear(&dataset->arrays);
    mlo_manifest_clear(&dataset->manifest);
    free(dataset->labels);
    free(dataset->groups);
    free(dataset);
}
