#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/measure/dataset_impl.h"

static const char expected_form[] = "the form is scale=1/255,mean=0.49:0.48:0.45,std=0.25:0.24:0.26";

/* A decimal number or a fraction of two. */
static bool parse_number(const char *text, double *out)
{
    char top[64];
    const char *slash = strchr(text, '/');
    double divisor;
    if (!slash)
        return mlo_str_to_f64(text, out);
    size_t n = (size_t)(slash - text);
    if (n >= sizeof top)
        return false;
    memcpy(top, text, n);
    top[n] = '\0';
    if (!mlo_str_to_f64(top, out) || !mlo_str_to_f64(slash + 1, &divisor) || divisor == 0)
        return false;
    *out /= divisor;
    return isfinite(*out);
}

static enum mlo_status bad_number(const char *field, const char *text, struct mlo_error *err)
{
    mlo_error_set(err, MLO_EINVAL, "'%s' is not a number or a fraction", text);
    mlo_error_where(err, "normalize: %s", field);
    mlo_error_hint(err, "%s", expected_form);
    return MLO_EINVAL;
}

static enum mlo_status check(const struct mlo_normalize *n, struct mlo_error *err)
{
    /* the arithmetic is in float32: what is zero or infinite there is refused here */
    enum mlo_status status = MLO_OK;
    float scale = (float)n->scale;
    if (scale == 0 || !isfinite(scale))
        status = mlo_error_set(err, MLO_EINVAL, "scale must be a finite number other than 0");
    for (int i = 0; i < n->std_count && status == MLO_OK; i++)
        if (!((float)n->std[i] > 0) || !isfinite((float)n->std[i]))
            status = mlo_error_set(err, MLO_EINVAL, "std must be above 0, and value %d of it is %g", i + 1,
                                   n->std[i]);
    for (int i = 0; i < n->mean_count && status == MLO_OK; i++)
        if (!isfinite((float)n->mean[i]))
            status = mlo_error_set(err, MLO_EINVAL, "mean must be finite, and value %d of it is %g", i + 1,
                                   n->mean[i]);
    if (status == MLO_OK && n->mean_count > 1 && n->std_count > 1 && n->mean_count != n->std_count)
        status = mlo_error_set(err, MLO_EINVAL, "mean has %d values and std has %d: one per channel each",
                               n->mean_count, n->std_count);
    if (status != MLO_OK) {
        mlo_error_where(err, "normalize");
        mlo_error_hint(err, "%s", expected_form);
    }
    return status;
}

/* "0.49:0.48:0.45"; the text is cut up. */
static enum mlo_status parse_list(const char *field, char *text, double *values, int *count,
                                  struct mlo_error *err)
{
    enum { MAX = sizeof((struct mlo_normalize *)0)->mean / sizeof(double) };
    *count = 0;
    for (char *at = text; at;) {
        char *next = strchr(at, ':');
        if (next)
            *next++ = '\0';
        if (*count == MAX) {
            mlo_error_set(err, MLO_EINVAL, "more than %d values", (int)MAX);
            mlo_error_where(err, "normalize: %s", field);
            return MLO_EINVAL;
        }
        if (!parse_number(at, &values[(*count)++]))
            return bad_number(field, at, err);
        at = next;
    }
    return MLO_OK;
}

static enum mlo_status parse_field(char *field, struct mlo_normalize *out, bool *scale_seen,
                                   struct mlo_error *err)
{
    static const char *const names[] = {"scale", "mean", "std"};
    char *value = strchr(field, '=');
    if (value)
        *value++ = '\0';
    bool again = (strcmp(field, "scale") == 0 && *scale_seen) ||
                 (strcmp(field, "mean") == 0 && out->mean_count) ||
                 (strcmp(field, "std") == 0 && out->std_count);
    if (again) {
        mlo_error_set(err, MLO_EINVAL, "'%s' is given twice", field);
        mlo_error_where(err, "normalize");
        return MLO_EINVAL;
    }
    if (value && strcmp(field, "scale") == 0) {
        *scale_seen = true;
        return parse_number(value, &out->scale) ? MLO_OK : bad_number(field, value, err);
    }
    if (value && strcmp(field, "mean") == 0)
        return parse_list(field, value, out->mean, &out->mean_count, err);
    if (value && strcmp(field, "std") == 0)
        return parse_list(field, value, out->std, &out->std_count, err);
    const char *near = mlo_suggest(field, names, MLO_COUNT(names));
    if (near && strcmp(near, field) == 0)
        mlo_error_set(err, MLO_EINVAL, "'%s' has no value", field);
    else
        mlo_error_set(err, MLO_EINVAL, "unknown field '%s'%s%s%s", field, near ? "; did you mean '" : "",
                      near ? near : "", near ? "'?" : "");
    mlo_error_where(err, "normalize");
    mlo_error_hint(err, "%s", expected_form);
    return MLO_EINVAL;
}

enum mlo_status mlo_normalize_parse(const char *text, struct mlo_normalize *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool scale_seen = false;
    char *copy = strdup(text);
    *out = (struct mlo_normalize){.scale = 1};
    if (!copy)
        return mlo_error_nomem(err);
    for (char *at = copy; at;) {
        char *next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        MLO_TRY(parse_field(at, out, &scale_seen, err));
        at = next;
    }
    status = check(out, err);
out:
    free(copy);
    return status;
}

static enum mlo_status json_number(const json_t *value, const char *field, double *out, struct mlo_error *err)
{
    if (json_is_number(value)) {
        *out = json_number_value(value);
        return MLO_OK;
    }
    if (json_is_string(value))
        return parse_number(json_string_value(value), out) ? MLO_OK
                                                           : bad_number(field, json_string_value(value), err);
    mlo_error_set(err, MLO_EINVAL, "a number or a fraction such as \"1/255\" is expected");
    mlo_error_where(err, "normalize: %s", field);
    return MLO_EINVAL;
}

static enum mlo_status json_list(const json_t *value, const char *field, double *values, int *count,
                                 struct mlo_error *err)
{
    enum { MAX = sizeof((struct mlo_normalize *)0)->mean / sizeof(double) };
    if (!json_is_array(value)) {
        *count = 1;
        return json_number(value, field, values, err);
    }
    if (json_array_size(value) < 1 || json_array_size(value) > MAX) {
        mlo_error_set(err, MLO_EINVAL, "1 to %d values are expected, not %zu", (int)MAX,
                      json_array_size(value));
        mlo_error_where(err, "normalize: %s", field);
        return MLO_EINVAL;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        enum mlo_status status = json_number(json_array_get(value, i), field, &values[(*count)++], err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

enum mlo_status mlo_normalize_from_json(const json_t *value, struct mlo_normalize *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *key;
    const json_t *member;
    if (json_is_string(value))
        return mlo_normalize_parse(json_string_value(value), out, err);
    *out = (struct mlo_normalize){.scale = 1};
    if (!json_is_object(value))
        return mlo_error_set(err, MLO_EINVAL, "'normalize' must be an object with scale, mean and std");
    json_object_foreach((json_t *)value, key, member)
    {
        if (strcmp(key, "scale") == 0)
            status = json_number(member, key, &out->scale, err);
        else if (strcmp(key, "mean") == 0)
            status = json_list(member, key, out->mean, &out->mean_count, err);
        else if (strcmp(key, "std") == 0)
            status = json_list(member, key, out->std, &out->std_count, err);
        else
            status = mlo_error_set(err, MLO_EINVAL,
                                   "'normalize' has no field '%s': it has scale, mean and std", key);
        if (status != MLO_OK)
            return status;
    }
    return check(out, err);
}
