#include "base/signature.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

/* --- form ---------------------------------------------------------------------------------------------- */

static bool dim_valid(const json_t *dim)
{
    return json_is_null(dim) || (json_is_integer(dim) && json_integer_value(dim) >= 0) ||
           (json_is_string(dim) && json_string_length(dim) > 0);
}

static bool value_valid(const json_t *value)
{
    const json_t *type = json_object_get(value, "type"), *shape = json_object_get(value, "shape"), *dim;
    size_t i;
    if (!mlo_json_str(value, "name", NULL) || !(json_is_string(type) || json_is_null(type)) ||
        !(json_is_array(shape) || json_is_null(shape)))
        return false;
    json_array_foreach((json_t *)shape, i, dim)
    {
        if (!dim_valid(dim))
            return false;
    }
    return true;
}

static enum mlo_status wrong(struct mlo_error *err, const char *list, size_t index)
{
    enum mlo_status status = mlo_error_set(
        err, MLO_EINVAL, "a signature has inputs and outputs, each with name, type and shape, and labels");
    mlo_error_where(err, "signature.%s[%zu]", list, index);
    return status;
}

enum mlo_status mlo_signature_check(const json_t *signature, struct mlo_error *err)
{
    static const char *const lists[] = {"inputs", "outputs"};
    for (size_t k = 0; k < MLO_COUNT(lists); k++) {
        const json_t *list = json_object_get(signature, lists[k]);
        if (!json_is_array(list))
            return wrong(err, lists[k], 0);
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!value_valid(json_array_get(list, i)))
                return wrong(err, lists[k], i);
    }
    const json_t *labels = json_object_get(signature, "labels");
    if (labels && !json_is_null(labels) && !json_is_object(labels))
        return wrong(err, "labels", 0);
    return MLO_OK;
}

/* --- comparison ---------------------------------------------------------------------------------------- */

struct comparison {
    const json_t *present, *next;
    json_t *map; /* name of a dim of next -> the dim of present that it has to be */
    char *why;
    size_t size;
};

MLO_PRINTF(2, 3) static bool differs(struct comparison *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->why, c->size, fmt, args);
    va_end(args);
    return false;
}

static const char *dim_text(const json_t *dim, char out[48])
{
    if (json_is_integer(dim))
        snprintf(out, 48, "%lld", (long long)json_integer_value(dim));
    else
        snprintf(out, 48, "%.40s", json_is_string(dim) ? json_string_value(dim) : "any");
    return out;
}

static const json_t *find(const json_t *list, const char *name)
{
    const json_t *row;
    size_t i;
    json_array_foreach((json_t *)list, i, row)
    {
        if (strcmp(mlo_json_str(row, "name", ""), name) == 0)
            return row;
    }
    return NULL;
}

/* Whether a dim of an input accepts what it accepted: a number only itself; a name anything, but the same
 * wherever it stands. */
static bool accepts(struct comparison *c, const json_t *was, const json_t *is)
{
    if (json_is_integer(is))
        return json_equal((json_t *)was, (json_t *)is);
    if (!json_is_string(is))
        return true;
    const json_t *bound = json_object_get(c->map, json_string_value(is));
    if (!bound) {
        json_object_set(c->map, json_string_value(is), (json_t *)was);
        return true;
    }
    return !json_is_null(was) && json_equal((json_t *)bound, (json_t *)was);
}

static bool same_type(struct comparison *c, const char *what, const json_t *was, const json_t *is)
{
    const char *name = mlo_json_str(was, "name", ""), *before = mlo_json_str(was, "type", NULL),
               *after = mlo_json_str(is, "type", NULL);
    if (!before || (after && strcmp(before, after) == 0))
        return true;
    return differs(c, "%s '%.60s' is %.40s, and was %.40s", what, name, after ? after : "of unknown type",
                   before);
}

static bool same_rank(struct comparison *c, const char *what, const json_t *was, const json_t *is)
{
    const json_t *before = json_object_get(was, "shape"), *after = json_object_get(is, "shape");
    if (json_is_array(before) && json_is_array(after) && json_array_size(before) == json_array_size(after))
        return true;
    if (json_is_array(before) && json_is_array(after))
        return differs(c, "%s '%.60s' has %zu dimensions, and had %zu", what, mlo_json_str(was, "name", ""),
                       json_array_size(after), json_array_size(before));
    return differs(c, "%s '%.60s' has %s number of dimensions, and had %s", what,
                   mlo_json_str(was, "name", ""), json_is_array(after) ? "a fixed" : "any",
                   json_is_array(before) ? "a fixed one" : "any");
}

static bool input(struct comparison *c, const json_t *was, const json_t *is)
{
    const char *name = mlo_json_str(was, "name", "");
    const json_t *before = json_object_get(was, "shape"), *after = json_object_get(is, "shape");
    char a[48], b[48];
    if (!same_type(c, "input", was, is))
        return false;
    if (mlo_json_bool(was, "optional", false) && !mlo_json_bool(is, "optional", false))
        return differs(c, "input '%.60s' must be given, and could be left out", name);
    if (!json_is_array(after)) /* takes any */
        return true;
    if (!same_rank(c, "input", was, is))
        return false;
    for (size_t i = 0; i < json_array_size(before); i++) {
        const json_t *p = json_array_get(before, i), *n = json_array_get(after, i);
        if (!accepts(c, p, n))
            return differs(c, "input '%.60s' takes %s at dimension %zu, and took %s", name, dim_text(n, b), i,
                           dim_text(p, a));
    }
    return true;
}

static bool inputs(struct comparison *c)
{
    const json_t *present = json_object_get(c->present, "inputs"), *next = json_object_get(c->next, "inputs"),
                 *row;
    size_t i;
    json_array_foreach((json_t *)present, i, row)
    {
        const json_t *is = find(next, mlo_json_str(row, "name", ""));
        if (!is)
            return differs(c, "input '%.60s' is gone", mlo_json_str(row, "name", ""));
        if (!input(c, row, is))
            return false;
    }
    json_array_foreach((json_t *)next, i, row)
    {
        if (!find(present, mlo_json_str(row, "name", "")) && !mlo_json_bool(row, "optional", false))
            return differs(c, "input '%.60s' is new, and must be given", mlo_json_str(row, "name", ""));
    }
    return true;
}

/* Whether the name is that of a dim of an input of the present model: a promise about its outputs. */
static bool of_input(const struct comparison *c, const json_t *dim)
{
    const json_t *row, *d;
    size_t i, k;
    json_array_foreach(json_object_get(c->present, "inputs"), i, row)
    {
        json_array_foreach(json_object_get(row, "shape"), k, d)
        {
            if (json_equal((json_t *)d, (json_t *)dim))
                return true;
        }
    }
    return false;
}

static bool output(struct comparison *c, const json_t *was, const json_t *is)
{
    const char *name = mlo_json_str(was, "name", "");
    const json_t *before = json_object_get(was, "shape"), *after = json_object_get(is, "shape");
    char a[48], b[48];
    if (!same_type(c, "output", was, is))
        return false;
    if (!json_is_array(before)) /* promised nothing */
        return true;
    if (!same_rank(c, "output", was, is))
        return false;
    for (size_t i = 0; i < json_array_size(before); i++) {
        const json_t *p = json_array_get(before, i), *n = json_array_get(after, i), *bound = n;
        if (json_is_string(n)) /* what it is for who feeds what the present model takes */
            bound = json_object_get(c->map, json_string_value(n));
        bool promised = json_is_integer(p) || (json_is_string(p) && of_input(c, p));
        if (promised && !(bound && json_equal((json_t *)bound, (json_t *)p)))
            return differs(c, "output '%.60s' has %s at dimension %zu, and had %s", name, dim_text(n, b), i,
                           dim_text(p, a));
    }
    return true;
}

static bool outputs(struct comparison *c)
{
    const json_t *present = json_object_get(c->present, "outputs"),
                 *next = json_object_get(c->next, "outputs");
    size_t count = json_array_size(present);
    for (size_t i = 0; i < count; i++) {
        const json_t *was = json_array_get(present, i), *is = json_array_get(next, i);
        const char *before = mlo_json_str(was, "name", ""), *after = mlo_json_str(is, "name", NULL);
        if (!after)
            return differs(c, "output '%.60s' is gone", before);
        if (strcmp(before, after) != 0)
            return differs(c, "output %zu is '%.60s', and was '%.60s'", i, after, before);
        if (!output(c, was, is))
            return false;
    }
    if (json_array_size(next) > count)
        return differs(c, "output '%.60s' is new", mlo_json_str(json_array_get(next, count), "name", ""));
    return true;
}

static bool labels(struct comparison *c)
{
    const json_t *present = json_object_get(c->present, "labels"), *next = json_object_get(c->next, "labels");
    const json_t *was = json_object_get(present, "names"), *is = json_object_get(next, "names");
    if (!json_is_object(present))
        return true;
    if (!json_is_object(next))
        return differs(c, "its label set is gone: there were %lld labels",
                       (long long)mlo_json_i64(present, "count", 0));
    if (!json_is_array(was) || !json_is_array(is))
        return differs(c, "the labels that %s cannot be read", json_is_array(was) ? "are new" : "are there");
    for (size_t i = 0; i < json_array_size(was); i++) {
        const char *before = json_string_value(json_array_get(was, i)),
                   *after = json_string_value(json_array_get(is, i));
        if (!after)
            return differs(c, "label %zu, '%.60s', is gone", i, before ? before : "");
        if (!before || strcmp(before, after) != 0)
            return differs(c, "label %zu is '%.60s', and was '%.60s'", i, after, before ? before : "");
    }
    return true;
}

bool mlo_signature_compatible(const json_t *present, const json_t *next, char *why, size_t size)
{
    struct comparison c = {present, next, json_object(), why, size};
    bool fine = c.map ? inputs(&c) && outputs(&c) && labels(&c) : differs(&c, "out of memory");
    json_decref(c.map);
    return fine;
}
