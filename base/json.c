#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

enum mlo_status mlo_json_parse(const char *text, size_t size, const char *where, json_t **out,
                               struct mlo_error *err)
{
    json_error_t je;
    *out = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (*out)
        return MLO_OK;
    enum mlo_status status = mlo_error_set(err, MLO_EFORMAT, "%s is not valid JSON: %s", where, je.text);
    mlo_error_where(err, "%s:%d:%d", where, je.line, je.column);
    return status;
}

enum mlo_status mlo_json_load_file(const char *path, json_t **out, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    *out = NULL;
    enum mlo_status status = mlo_fs_read(path, (size_t)256 << 20, &text, err);
    if (status == MLO_OK)
        status = mlo_json_parse(mlo_buf_str(&text), text.len, path, out, err);
    mlo_buf_clear(&text);
    return status;
}

enum mlo_status mlo_json_save_file(const json_t *value, const char *path, struct mlo_error *err)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    if (!text)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_fs_write_atomic(path, text, strlen(text), err);
    free(text);
    return status;
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c != '"' && c != '\\';
}

static void canonical_escape(unsigned char c, struct mlo_buf *out)
{
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* what is escaped, and by which letter */
    mlo_buf_putc(out, '\\');
    for (size_t i = 0; i + 1 < sizeof named; i += 2)
        if ((unsigned char)named[i] == c) {
            mlo_buf_putc(out, named[i + 1]);
            return;
        }
    mlo_buf_printf(out, "u%04x", c);
}

static void canonical_string(const char *text, size_t size, struct mlo_buf *out)
{
    mlo_buf_putc(out, '"');
    for (size_t i = 0; i < size;) {
        size_t run = i;
        while (run < size && is_plain((unsigned char)text[run]))
            run++;
        mlo_buf_append(out, text + i, run - i);
        if (run < size)
            canonical_escape((unsigned char)text[run++], out);
        i = run;
    }
    mlo_buf_putc(out, '"');
}

static void canonical_real(double v, struct mlo_buf *out)
{
    if (v == 0) { /* JCS writes both zeros as 0 */
        mlo_buf_putc(out, '0');
        return;
    }
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    mlo_buf_puts(out, text);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void canonical_object(const json_t *object, struct mlo_buf *out)
{
    size_t n = json_object_size(object), i = 0;
    const char **keys = malloc((n ? n : 1) * sizeof *keys);
    if (!keys) {
        out->failed = true;
        return;
    }
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)object, key, member) keys[i++] = key;
    qsort(keys, n, sizeof *keys, by_key);
    mlo_buf_putc(out, '{');
    for (i = 0; i < n; i++) {
        if (i)
            mlo_buf_putc(out, ',');
        canonical_string(keys[i], strlen(keys[i]), out);
        mlo_buf_putc(out, ':');
        mlo_json_canonical(json_object_get(object, keys[i]), out);
    }
    mlo_buf_putc(out, '}');
    free(keys);
}

void mlo_json_canonical(const json_t *value, struct mlo_buf *out)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        canonical_object(value, out);
        break;
    case JSON_ARRAY:
        mlo_buf_putc(out, '[');
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (i)
                mlo_buf_putc(out, ',');
            mlo_json_canonical(json_array_get(value, i), out);
        }
        mlo_buf_putc(out, ']');
        break;
    case JSON_STRING:
        canonical_string(json_string_value(value), json_string_length(value), out);
        break;
    case JSON_INTEGER:
        mlo_buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        canonical_real(json_real_value(value), out);
        break;
    case JSON_TRUE:
        mlo_buf_puts(out, "true");
        break;
    case JSON_FALSE:
        mlo_buf_puts(out, "false");
        break;
    case JSON_NULL:
        mlo_buf_puts(out, "null");
        break;
    }
}

enum mlo_status mlo_json_digest(const json_t *value, struct mlo_digest *out, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_json_canonical(value, &text);
    enum mlo_status status = mlo_buf_ok(&text) ? MLO_OK : mlo_error_nomem(err);
    if (status == MLO_OK)
        mlo_digest_of(mlo_buf_str(&text), text.len, out);
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status absent(const char *key, struct mlo_error *err)
{
    enum mlo_status status = mlo_error_set(err, MLO_EINVAL, "the field '%s' is missing", key);
    mlo_error_where(err, "field '%s'", key);
    return status;
}

static enum mlo_status mistyped(const char *key, const char *want, struct mlo_error *err)
{
    enum mlo_status status = mlo_error_set(err, MLO_EINVAL, "the field '%s' must be %s", key, want);
    mlo_error_where(err, "field '%s'", key);
    return status;
}

enum mlo_status mlo_json_get_str(const json_t *object, const char *key, const char *fallback,
                                 const char **out, struct mlo_error *err)
{
    const json_t *v = json_object_get(object, key);
    *out = fallback;
    if (!v)
        return fallback ? MLO_OK : absent(key, err);
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return mistyped(key, "a string", err);
    *out = json_string_value(v);
    return MLO_OK;
}

enum mlo_status mlo_json_get_i64(const json_t *object, const char *key, const int64_t *fallback, int64_t *out,
                                 struct mlo_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!v && !fallback)
        return absent(key, err);
    if (v && !json_is_integer(v))
        return mistyped(key, "an integer", err);
    *out = v ? json_integer_value(v) : *fallback;
    return MLO_OK;
}

enum mlo_status mlo_json_get_f64(const json_t *object, const char *key, const double *fallback, double *out,
                                 struct mlo_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!v && !fallback)
        return absent(key, err);
    if (v && !json_is_number(v))
        return mistyped(key, "a number", err);
    *out = v ? json_number_value(v) : *fallback;
    return MLO_OK;
}

enum mlo_status mlo_json_get_bool(const json_t *object, const char *key, const bool *fallback, bool *out,
                                  struct mlo_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!v && !fallback)
        return absent(key, err);
    if (v && !json_is_boolean(v))
        return mistyped(key, "true or false", err);
    *out = v ? json_is_true(v) : *fallback;
    return MLO_OK;
}

const char *mlo_json_str(const json_t *object, const char *key, const char *fallback)
{
    const json_t *v = json_object_get(object, key);
    return json_is_string(v) ? json_string_value(v) : fallback;
}

int64_t mlo_json_i64(const json_t *object, const char *key, int64_t fallback)
{
    const json_t *v = json_object_get(object, key);
    return json_is_integer(v) ? json_integer_value(v) : fallback;
}

double mlo_json_f64(const json_t *object, const char *key, double fallback)
{
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

bool mlo_json_bool(const json_t *object, const char *key, bool fallback)
{
    const json_t *v = json_object_get(object, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

json_t *mlo_json_finite(double number)
{
    return isfinite(number) ? json_real(number) : json_null();
}
