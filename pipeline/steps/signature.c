#include "pipeline/steps/signature.h"

#include <string.h>

/* {"0": "cat", "1": "dog"} as ["cat", "dog"]; NULL when an index is missing. */
static json_t *by_index(const json_t *object)
{
    json_t *names = json_array();
    for (size_t i = 0; names && i < json_object_size(object); i++) {
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        json_t *name = json_object_get(object, key);
        if (!name || json_array_append(names, name) != 0) {
            json_decref(names);
            return NULL;
        }
    }
    return names;
}

/* One label a line, in order; an empty line at the end is none. NULL: not UTF-8. */
static json_t *by_line(const char *text, size_t size)
{
    json_t *names = json_array();
    const char *end = text + size;
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    while (names && text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((stop ? stop : end) - text);
        size_t used = length && text[length - 1] == '\r' ? length - 1 : length;
        if (json_array_append_new(names, json_stringn(text, used)) != 0) {
            json_decref(names);
            return NULL;
        }
        text += length + (stop != NULL);
    }
    return names;
}

static enum mlo_status check_names(const json_t *names, const char *path, struct mlo_error *err)
{
    size_t count = json_array_size(names);
    if (!names || count == 0)
        return mlo_error_set(
            err, MLO_EFORMAT,
            "%s holds no labels: a JSON array of texts, an object from \"0\" on, or a label a "
            "line",
            mlo_fs_basename(path));
    if (count > MLO_LABELS_MAX)
        return mlo_error_set(err, MLO_ETOOBIG, "%s holds more than %d labels", mlo_fs_basename(path),
                             MLO_LABELS_MAX);
    for (size_t i = 0; i < count; i++)
        if (!json_is_string(json_array_get(names, i)))
            return mlo_error_set(err, MLO_EFORMAT, "label %zu of %s is no text", i, mlo_fs_basename(path));
    return MLO_OK;
}

enum mlo_status mlo_labels_read(const char *path, json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_digest digest;
    char hex[MLO_DIGEST_TEXT_SIZE];
    json_t *value = NULL, *names = NULL;
    *out = NULL;
    MLO_TRY(mlo_fs_read(path, MLO_LABELS_MAX_BYTES, &text, err));
    const char *start = mlo_buf_str(&text);
    bool json = start[strspn(start, " \t\r\n")] == '[' || start[strspn(start, " \t\r\n")] == '{';
    if (memchr(start, '\0', text.len)) {
        status = mlo_error_set(err, MLO_EFORMAT, "%s is no text", mlo_fs_basename(path));
        goto out;
    }
    if (json && mlo_json_parse(start, text.len, mlo_fs_basename(path), &value, NULL) == MLO_OK)
        names = json_is_object(value) ? by_index(value) : json_incref(value);
    else
        names = by_line(start, text.len); /* a label may begin with a bracket */
    MLO_TRY(check_names(names, path, err));
    MLO_TRY(mlo_json_digest(names, &digest, err));
    *out = json_pack("{s:I, s:s, s:O}", "count", (json_int_t)json_array_size(names), "digest",
                     mlo_digest_text(&digest, hex), "names", names);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(value);
    json_decref(names);
    mlo_buf_clear(&text);
    return status;
}

json_t *mlo_labels_describe(const char *path)
{
    struct mlo_error unread = {0};
    json_t *labels = NULL;
    if (mlo_labels_read(path, &labels, &unread) != MLO_OK)
        labels = json_pack("{s:s}", "unreadable", unread.message);
    return json_pack("{s:o}", "labels", labels);
}

enum mlo_status mlo_signature_of_model(const char *path, json_t **out, struct mlo_error *err)
{
    struct mlo_model *model = NULL;
    *out = NULL;
    enum mlo_status status = mlo_onnx_load(path, &model, err);
    if (status == MLO_OK)
        status = mlo_model_signature(model, out, err);
    mlo_model_free(model);
    return status;
}
