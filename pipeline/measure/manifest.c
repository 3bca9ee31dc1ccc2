#include <string.h>

#include "pipeline/measure/dataset_impl.h"

void mlo_manifest_clear(struct mlo_manifest *manifest)
{
    json_decref(manifest->classes);
    mlo_arena_free(manifest->arena);
    *manifest = (struct mlo_manifest){0};
}

static enum mlo_status check_keys(const json_t *object, const char *const *known, size_t count,
                                  const char *what, struct mlo_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < count; i++)
            found |= strcmp(known[i], key) == 0;
        if (found)
            continue;
        const char *near = mlo_suggest(key, known, count);
        return mlo_error_set(err, MLO_EINVAL, "unknown %s '%s'%s%s%s", what, key,
                             near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    return MLO_OK;
}

/* Files are named relative to the manifest's folder and stay inside it: a manifest that came from somebody
 * else must not make us read other files of this machine. */
static enum mlo_status resolve(struct mlo_manifest *m, const char *manifest_path, const char *file,
                               const char **out, struct mlo_error *err)
{
    bool outside = file[0] == '/' || file[0] == '\0';
    for (const char *p = file; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
        outside |= strncmp(p, "..", 2) == 0 && (p[2] == '/' || p[2] == '\0');
    if (outside)
        return mlo_error_set(err, MLO_EINVAL, "file '%s' is not a path inside the manifest's folder", file);
    int folder = (int)(mlo_fs_basename(manifest_path) - manifest_path);
    *out = mlo_arena_printf(m->arena, "%.*s%s", folder, manifest_path, file);
    if (!*out)
        return mlo_error_nomem(err);
    if (!mlo_fs_exists(*out))
        return mlo_error_set(err, MLO_ENOTFOUND, "file '%s' does not exist beside the manifest", file);
    return MLO_OK;
}

static enum mlo_status read_files(const json_t *root, const char *path, struct mlo_manifest *m,
                                  struct mlo_error *err)
{
    static const char *const npz_keys[] = {"data", "postprocess"}, *const idx_keys[] = {"images", "labels",
                                                                                        "postprocess"};
    enum mlo_status status = MLO_OK;
    const char *format, *data, *labels, *postprocess;
    const json_t *files = json_object_get(root, "files");
    MLO_TRY(mlo_json_get_str(root, "format", NULL, &format, err));
    m->idx = strcmp(format, "idx") == 0;
    if (!m->idx && strcmp(format, "npz") != 0)
        return mlo_error_set(err, MLO_EINVAL, "format '%s' is not known: it is 'npz' or 'idx'", format);
    if (!json_is_object(files))
        return mlo_error_set(err, MLO_EINVAL, "'files' must be an object, such as %s",
                             m->idx ? "{\"images\": \"images.gz\", \"labels\": \"labels.gz\"}"
                                    : "{\"data\": \"data.npz\"}");
    MLO_TRY(mlo_json_get_str(files, "postprocess", "", &postprocess, err));
    if (*postprocess)
        MLO_TRY(resolve(m, path, postprocess, &m->postprocess, err));
    if (!m->idx) {
        MLO_TRY(check_keys(files, npz_keys, MLO_COUNT(npz_keys), "entry of 'files'", err));
        MLO_TRY(mlo_json_get_str(files, "data", NULL, &data, err));
        MLO_TRY(resolve(m, path, data, &m->data, err));
        goto out;
    }
    MLO_TRY(check_keys(files, idx_keys, MLO_COUNT(idx_keys), "entry of 'files'", err));
    MLO_TRY(mlo_json_get_str(files, "images", NULL, &data, err));
    MLO_TRY(mlo_json_get_str(files, "labels", "", &labels, err));
    MLO_TRY(resolve(m, path, data, &m->data, err));
    if (*labels)
        MLO_TRY(resolve(m, path, labels, &m->labels, err));
out:
    return status;
}

static enum mlo_status read_rest(const json_t *root, struct mlo_manifest *m, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const int64_t none = 0;
    const char *input;
    json_t *normalize = json_object_get(root, "normalize"), *classes = json_object_get(root, "classes"),
           *name;
    size_t i;
    MLO_TRY(mlo_json_get_i64(root, "first", &none, &m->first, err));
    MLO_TRY(mlo_json_get_i64(root, "count", &none, &m->count, err));
    if (m->first < 0 || m->count < 0)
        return mlo_error_set(err, MLO_EINVAL, "'first' and 'count' must not be negative");
    MLO_TRY(mlo_json_get_str(root, "input", "", &input, err));
    if (*input && !(m->input = mlo_arena_strdup(m->arena, input)))
        return mlo_error_nomem(err);
    if (normalize && !json_is_null(normalize)) {
        MLO_TRY(mlo_normalize_from_json(normalize, &m->normalize, err));
        m->has_normalize = true;
    }
    if (classes && !json_is_array(classes))
        return mlo_error_set(err, MLO_EINVAL, "'classes' must be an array of names");
    json_array_foreach(classes, i, name)
    {
        if (!json_is_string(name))
            return mlo_error_set(err, MLO_EINVAL, "'classes' must be an array of names; entry %zu is none",
                                 i);
    }
    m->classes = json_incref(classes);
out:
    return status;
}

enum mlo_status mlo_manifest_load(const char *path, struct mlo_manifest *m, struct mlo_error *err)
{
    static const char *const keys[] = {"format", "files", "normalize", "input",
                                       "first",  "count", "classes",   "description"};
    enum mlo_status status = MLO_OK;
    json_t *root = NULL;
    MLO_TRY(mlo_json_load_file(path, &root, err));
    if (!json_is_object(root)) {
        status = mlo_error_set(err, MLO_EFORMAT, "a dataset manifest is a JSON object");
        goto out;
    }
    MLO_TRY(check_keys(root, keys, MLO_COUNT(keys), "key", err));
    MLO_TRY(read_files(root, path, m, err));
    MLO_TRY(read_rest(root, m, err));
out:
    json_decref(root);
    if (status != MLO_OK && err) { /* a place inside the file ("normalize: scale") follows its name */
        char inner[sizeof err->where];
        memcpy(inner, err->where, sizeof inner);
        err->where[0] = '\0';
        mlo_error_where(err, "%s%s%s", path, *inner ? ": " : "", inner);
    }
    return status;
}
