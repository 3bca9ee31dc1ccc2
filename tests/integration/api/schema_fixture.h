/* What api/openapi.yaml uses of JSON Schema, checked: $ref, allOf, anyOf, type, enum, required, properties,
 * additionalProperties: false, items, pattern, minimum, maximum, minLength, format date-time. */
#ifndef MLO_TESTS_SCHEMA_FIXTURE_H
#define MLO_TESTS_SCHEMA_FIXTURE_H

#include <regex.h>
#include <string.h>

#include "base/base.h"

/* What a reference "#/a/b" names; NULL: nothing. A schema without one is itself. */
static inline const json_t *schema_resolve(const json_t *root, const json_t *at)
{
    const char *ref = json_string_value(json_object_get(at, "$ref"));
    char name[128];
    if (!ref)
        return at;
    const json_t *found = mlo_str_starts(ref, "#/") ? root : NULL;
    for (ref += 2; found && *ref; ref += *ref == '/') {
        size_t n = strcspn(ref, "/");
        snprintf(name, sizeof name, "%.*s", (int)n, ref);
        found = json_object_get(found, name);
        ref += n;
    }
    return found;
}

static inline bool schema_matches(const char *pattern, const char *text)
{
    regex_t regex;
    if (regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return false;
    bool fits = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return fits;
}

static inline bool schema_type_is(const char *type, const json_t *value)
{
    return strcmp(type, "object") == 0    ? json_is_object(value)
           : strcmp(type, "array") == 0   ? json_is_array(value)
           : strcmp(type, "string") == 0  ? json_is_string(value)
           : strcmp(type, "integer") == 0 ? json_is_integer(value)
           : strcmp(type, "number") == 0  ? json_is_number(value)
           : strcmp(type, "boolean") == 0 ? json_is_boolean(value)
                                          : strcmp(type, "null") == 0 && json_is_null(value);
}

static inline bool schema_type_fits(const json_t *type, const json_t *value)
{
    size_t i;
    json_t *one;
    if (!type)
        return true;
    if (json_is_string(type))
        return schema_type_is(json_string_value(type), value);
    json_array_foreach((json_t *)type, i, one) if (schema_type_is(json_string_value(one), value)) return true;
    return false;
}

static inline bool schema_no(struct mlo_buf *why, const char *where, const char *what)
{
    mlo_buf_printf(why, "%s: %s; ", where, what);
    return false;
}

/* Whether `value` fits; else `why` says where it does not. */
static inline bool schema_fits(const json_t *root, const json_t *schema, const json_t *value,
                               const char *where, struct mlo_buf *why)
{
    static const char time[] = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?Z$";
    char deeper[512];
    const char *key, *text = json_string_value(value);
    json_t *item;
    size_t i;
    bool fits = true;
    schema = schema_resolve(root, schema);
    if (!schema)
        return schema_no(why, where, "a reference that names nothing");
    json_array_foreach(json_object_get(schema, "allOf"), i, item) fits =
        schema_fits(root, item, value, where, why) && fits;
    const json_t *any = json_object_get(schema, "anyOf"), *limit;
    struct mlo_buf reasons = MLO_BUF_INIT;
    bool one = !any;
    json_array_foreach((json_t *)any, i, item) one = one || schema_fits(root, item, value, where, &reasons);
    if (!one)
        fits = schema_no(why, where, mlo_buf_str(&reasons));
    mlo_buf_clear(&reasons);
    if (!schema_type_fits(json_object_get(schema, "type"), value))
        return schema_no(why, where, "of another type");
    one = !(limit = json_object_get(schema, "enum"));
    json_array_foreach((json_t *)limit, i, item) one = one || json_equal(item, value);
    if (!one)
        fits = schema_no(why, where, "none of the values there are");
    if (text && (limit = json_object_get(schema, "pattern")) &&
        !schema_matches(json_string_value(limit), text))
        fits = schema_no(why, where, "not of the pattern");
    if (text && strcmp(mlo_json_str(schema, "format", ""), "date-time") == 0 && !schema_matches(time, text))
        fits = schema_no(why, where, "no time");
    if (text && (json_int_t)strlen(text) < mlo_json_i64(schema, "minLength", 0))
        fits = schema_no(why, where, "too short");
    if (json_is_number(value) && (limit = json_object_get(schema, "minimum")) &&
        json_number_value(value) < json_number_value(limit))
        fits = schema_no(why, where, "too small");
    if (json_is_number(value) && (limit = json_object_get(schema, "maximum")) &&
        json_number_value(value) > json_number_value(limit))
        fits = schema_no(why, where, "too large");
    if (json_is_object(value)) {
        json_array_foreach(json_object_get(schema, "required"), i,
                           item) if (!json_object_get(value, json_string_value(item))) fits =
            schema_no(why, where, json_string_value(item)) /* is missing */;
        const json_t *properties = json_object_get(schema, "properties"), *more;
        more = json_object_get(schema, "additionalProperties");
        json_object_foreach((json_t *)value, key, item)
        {
            const json_t *property = json_object_get(properties, key);
            snprintf(deeper, sizeof deeper, "%s.%s", where, key);
            if (property)
                fits = schema_fits(root, property, item, deeper, why) && fits;
            else if (json_is_false(more))
                fits = schema_no(why, deeper, "not among the properties");
        }
    }
    const json_t *items = json_is_array(value) ? json_object_get(schema, "items") : NULL;
    for (i = 0; items && i < json_array_size(value); i++) {
        snprintf(deeper, sizeof deeper, "%s[%zu]", where, i);
        fits = schema_fits(root, items, json_array_get(value, i), deeper, why) && fits;
    }
    return fits;
}

/* What the schema says of a member, itself or by what it is put together of. *closed: it lists members. */
static inline const json_t *schema_member(const json_t *root, const json_t *schema, const char *key,
                                          bool *closed)
{
    static const char *const parts[] = {"allOf", "anyOf"};
    schema = schema_resolve(root, schema);
    const json_t *properties = json_object_get(schema, "properties"), *found;
    size_t i;
    *closed = *closed || properties;
    if ((found = json_object_get(properties, key)) ||
        (found = json_object_get(schema, "additionalProperties")))
        return found;
    for (size_t p = 0; p < MLO_COUNT(parts); p++) /* what is said last says most: a list of what */
        for (i = json_array_size(json_object_get(schema, parts[p])); i-- > 0;)
            if ((found =
                     schema_member(root, json_array_get(json_object_get(schema, parts[p]), i), key, closed)))
                return found;
    return NULL;
}

/* Tells `why` of the members of an answer that a schema which lists members leaves out. */
static inline void schema_unlisted(const json_t *root, const json_t *schema, const json_t *value,
                                   const char *where, struct mlo_buf *why)
{
    char deeper[512];
    const char *key;
    json_t *item;
    size_t i;
    json_object_foreach((json_t *)value, key, item)
    {
        bool closed = false;
        const json_t *member = schema_member(root, schema, key, &closed);
        snprintf(deeper, sizeof deeper, "%.400s.%.100s", where, key);
        if (member)
            schema_unlisted(root, member, item, deeper, why);
        else if (closed)
            schema_no(why, deeper, "not listed");
    }
    const json_t *items = json_object_get(schema_resolve(root, schema), "items");
    for (i = 0; items && i < json_array_size(value); i++)
        schema_unlisted(root, items, json_array_get(value, i), where, why);
}

#endif
