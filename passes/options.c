#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passes/passes_impl.h"

static const char *type_name(enum mlo_option_type type)
{
    static const char *const names[] = {
        [MLO_OPT_BOOL] = "true or false",
        [MLO_OPT_INT] = "a whole number",
        [MLO_OPT_FLOAT] = "a number",
        [MLO_OPT_STRING] = "text",
        [MLO_OPT_STRINGS] = "a list of texts",
        [MLO_OPT_INTS] = "a list of whole numbers",
        [MLO_OPT_SWITCH] = "true, false or auto",
    };
    return names[type];
}

static const struct mlo_option_spec *spec_find(const struct mlo_option_spec *specs, const char *name)
{
    for (; specs->name; specs++)
        if (strcmp(specs->name, name) == 0)
            return specs;
    return NULL;
}

static enum mlo_status unknown_option(const struct mlo_option_spec *specs, const char *name,
                                      struct mlo_error *err)
{
    const char *names[64] = {NULL};
    size_t count = 0;
    struct mlo_buf all = MLO_BUF_INIT;
    for (const struct mlo_option_spec *s = specs; s->name && count < MLO_COUNT(names); s++)
        names[count++] = s->name;
    mlo_buf_names(&all, names, count);
    mlo_error_set(err, MLO_EINVAL, "unknown option '%s'", name);
    mlo_error_where(err, "option '%s'", name);
    mlo_error_suggest(err, name, names, count); /* its hint stays, if there is one */
    if (count)
        mlo_error_hint(err, "the options are: %s", mlo_buf_str(&all));
    else
        mlo_error_hint(err, "there are no options to set here");
    mlo_buf_clear(&all);
    return MLO_EINVAL;
}

static json_t *list_normalise(const struct mlo_option_spec *spec, const json_t *value);

/* "a, b" or "[a, b]": the text form of a list, as texts. */
static json_t *split_text(const char *text)
{
    json_t *list = json_array();
    size_t size = strlen(text);
    if (size >= 2 && text[0] == '[' && text[size - 1] == ']') {
        text++;
        size -= 2;
    }
    const char *end = text + size;
    while (list && text < end) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        const char *stop = comma ? comma : end;
        const char *a = text, *b = stop;
        while (a < b && *a == ' ')
            a++;
        while (b > a && b[-1] == ' ')
            b--;
        if (b > a && json_array_append_new(list, json_stringn(a, (size_t)(b - a))) != 0) {
            json_decref(list);
            return NULL;
        }
        text = stop + 1;
    }
    return list;
}

/* The value that a text stands for, by the option's type; NULL when it stands for none. */
static json_t *from_text(const struct mlo_option_spec *spec, const char *text)
{
    int64_t i;
    double f;
    json_t *texts, *list;
    switch (spec->type) {
    case MLO_OPT_SWITCH:
        if (strcmp(text, "auto") == 0)
            return json_string(text);
        /* fall through */
    case MLO_OPT_BOOL:
        if (strcmp(text, "true") == 0)
            return json_true();
        return strcmp(text, "false") == 0 ? json_false() : NULL;
    case MLO_OPT_INT:
        return mlo_str_to_i64(text, &i) ? json_integer(i) : NULL;
    case MLO_OPT_FLOAT:
        return mlo_str_to_f64(text, &f) ? json_real(f) : NULL;
    case MLO_OPT_STRING:
        return json_string(text);
    case MLO_OPT_STRINGS:
    case MLO_OPT_INTS:
        texts = split_text(text);
        list = texts ? list_normalise(spec, texts) : NULL;
        json_decref(texts);
        return list;
    }
    return NULL;
}

static json_t *list_normalise(const struct mlo_option_spec *spec, const json_t *value)
{
    size_t i;
    json_t *item, *list = json_array();
    json_array_foreach((json_t *)value, i, item)
    {
        int64_t number;
        json_t *entry = NULL;
        if (spec->type == MLO_OPT_STRINGS)
            entry = json_is_string(item) ? json_string(json_string_value(item)) : NULL;
        else if (json_is_integer(item))
            entry = json_integer(json_integer_value(item));
        else if (json_is_string(item) && mlo_str_to_i64(json_string_value(item), &number))
            entry = json_integer(number);
        if (json_array_append_new(list, entry) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* The value in the one form that resolved options have (numbers of a float option are reals, so that 100 and
 * 100.0 give the same derivation); NULL when its type is wrong. */
static json_t *normalise(const struct mlo_option_spec *spec, const json_t *value)
{
    if (json_is_string(value))
        return from_text(spec, json_string_value(value));
    switch (spec->type) {
    case MLO_OPT_BOOL:
    case MLO_OPT_SWITCH:
        return json_is_boolean(value) ? json_boolean(json_is_true(value)) : NULL;
    case MLO_OPT_INT:
        return json_is_integer(value) ? json_integer(json_integer_value(value)) : NULL;
    case MLO_OPT_FLOAT:
        return json_is_number(value) ? json_real(json_number_value(value)) : NULL;
    case MLO_OPT_INTS:
        if (json_is_integer(value))
            return json_pack("[I]", json_integer_value(value));
        return json_is_array(value) ? list_normalise(spec, value) : NULL;
    case MLO_OPT_STRINGS:
        return json_is_array(value) ? list_normalise(spec, value) : NULL;
    case MLO_OPT_STRING:
        break;
    }
    return NULL;
}

static enum mlo_status check_choice(const struct mlo_option_spec *spec, const char *text,
                                    struct mlo_error *err)
{
    size_t count = 0;
    for (; spec->choices[count]; count++)
        if (strcmp(spec->choices[count], text) == 0)
            return MLO_OK;
    struct mlo_buf all = MLO_BUF_INIT;
    mlo_buf_names(&all, spec->choices, count);
    mlo_error_set(err, MLO_EINVAL, "option '%s' is '%s'; the choices are: %s", spec->name, text,
                  mlo_buf_str(&all));
    mlo_error_where(err, "option '%s'", spec->name);
    mlo_error_suggest(err, text, spec->choices, count);
    mlo_buf_clear(&all);
    return MLO_EINVAL;
}

/* One number or text against the range or the choices. */
static enum mlo_status check_item(const struct mlo_option_spec *spec, const json_t *value,
                                  struct mlo_error *err)
{
    if (spec->choices && json_is_string(value))
        return check_choice(spec, json_string_value(value), err);
    if (!json_is_number(value) || spec->min >= spec->max)
        return MLO_OK;
    double v = json_number_value(value);
    if (v >= spec->min && v <= spec->max)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "option '%s' is %.15g; it must lie in %.15g to %.15g", spec->name, v,
                  spec->min, spec->max);
    mlo_error_where(err, "option '%s'", spec->name);
    return MLO_EINVAL;
}

static enum mlo_status check_value(const struct mlo_option_spec *spec, const json_t *value,
                                   struct mlo_error *err)
{
    size_t i;
    json_t *item;
    if (!json_is_array(value))
        return check_item(spec, value, err);
    json_array_foreach((json_t *)value, i, item)
    {
        enum mlo_status status = check_item(spec, item, err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

static enum mlo_status resolve_one(const struct mlo_option_spec *spec, const json_t *given, json_t *into,
                                   struct mlo_error *err)
{
    json_t *value;
    if (!given && !spec->fallback) {
        enum mlo_status status = mlo_error_set(err, MLO_EINVAL, "option '%s' is required", spec->name);
        mlo_error_where(err, "option '%s'", spec->name);
        if (spec->description)
            mlo_error_hint(err, "%s: %s", spec->name, spec->description);
        return status;
    }
    value = given ? normalise(spec, given) : from_text(spec, spec->fallback);
    if (!value) {
        char *text = given ? json_dumps(given, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        mlo_error_set(err, MLO_EINVAL, "option '%s' must be %s, not %.100s", spec->name,
                      type_name(spec->type),
                      text             ? text
                      : spec->fallback ? spec->fallback
                                       : "that");
        mlo_error_where(err, "option '%s'", spec->name);
        free(text);
        return MLO_EINVAL;
    }
    enum mlo_status status = check_value(spec, value, err);
    if (status != MLO_OK) {
        json_decref(value);
        return status;
    }
    if (json_object_set_new(into, spec->name, value) != 0)
        return mlo_error_nomem(err);
    return MLO_OK;
}

enum mlo_status mlo_options_resolve(const struct mlo_option_spec *specs, const json_t *options,
                                    json_t **resolved, struct mlo_error *err)
{
    static const struct mlo_option_spec none[] = {{NULL}};
    enum mlo_status status = MLO_OK;
    *resolved = NULL;
    if (!specs)
        specs = none;
    json_t *result = json_object();
    if (!result)
        return mlo_error_nomem(err);
    if (options && !json_is_object(options) && !json_is_null(options)) {
        status = mlo_error_set(err, MLO_EINVAL, "options must be a mapping of names to values");
        goto out;
    }
    if (json_is_object(options)) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)options, key, value)
        {
            if (!spec_find(specs, key)) {
                status = unknown_option(specs, key, err);
                goto out;
            }
        }
    }
    for (const struct mlo_option_spec *spec = specs; spec->name; spec++)
        MLO_TRY(resolve_one(spec, json_object_get(options, spec->name), result, err));
    *resolved = result;
    result = NULL;
out:
    json_decref(result);
    return status;
}

enum mlo_status mlo_pass_read_share(const char *text, const char *option, const char *what, double *out,
                                    struct mlo_error *err)
{
    char number[64];
    double value;
    snprintf(number, sizeof number, "%s", text);
    size_t length = strlen(number);
    bool percent = length > 0 && number[length - 1] == '%';
    if (percent)
        number[length - 1] = '\0';
    if (!mlo_str_to_f64(number, &value))
        value = -1;
    if (percent)
        value /= 100;
    if (!(value > 0 && value < 1)) {
        mlo_error_set(err, MLO_EINVAL, "'%.40s' is no %s", text, what);
        mlo_error_where(err, "option '%s'", option);
        mlo_error_hint(err, "write for example 50%%; it must be above 0%% and below 100%%");
        return MLO_EINVAL;
    }
    *out = value;
    return MLO_OK;
}
