#include "engines/choices.h"

#include <string.h>

json_t *mlo_choices_new(const json_t *machine)
{
    return json_pack("{s:s, s:o, s:{}}", "format", MLO_CHOICES_FORMAT, "machine", json_deep_copy(machine),
                     "steps");
}

enum mlo_status mlo_choices_check(const json_t *choices, const char *name, struct mlo_error *err)
{
    const char *key, *format = mlo_json_str(choices, "format", "");
    const json_t *steps = json_object_get(choices, "steps");
    struct mlo_digest digest;
    json_t *entry;
    if (strcmp(format, MLO_CHOICES_FORMAT) != 0 || !json_is_object(json_object_get(choices, "machine")) ||
        !json_is_object(steps)) {
        mlo_error_set(err, MLO_EFORMAT, "%s holds no choices of the form " MLO_CHOICES_FORMAT, name);
        mlo_error_hint(err, "give what `mlopt tune` or the step `tune` wrote");
        return MLO_EFORMAT;
    }
    json_object_foreach((json_t *)steps, key, entry)
    {
        if (!mlo_digest_parse(key, &digest) || !json_is_object(json_object_get(entry, "choice")))
            return mlo_error_set(err, MLO_EFORMAT, "%s: the step '%.80s' has no choice", name, key);
    }
    return MLO_OK;
}

bool mlo_choices_same_machine(const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "machine"), *y = json_object_get(b, "machine");
    return x && y && json_equal((json_t *)x, (json_t *)y);
}

/* The first member that differs: "driver". */
static const char *difference(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)a, key, value)
    {
        if (!json_equal(value, json_object_get(b, key)))
            return key;
    }
    json_object_foreach((json_t *)b, key, value)
    {
        if (!json_object_get(a, key))
            return key;
    }
    return "?";
}

enum mlo_status mlo_choices_merge(json_t *into, const json_t *from, struct mlo_error *err)
{
    if (!mlo_choices_same_machine(into, from))
        return mlo_error_set(err, MLO_ESTALE, "the choices were measured on another machine: '%s' differs",
                             difference(json_object_get(into, "machine"), json_object_get(from, "machine")));
    return json_object_update_missing(json_object_get(into, "steps"), json_object_get(from, "steps")) == 0
               ? MLO_OK
               : mlo_error_nomem(err);
}

const json_t *mlo_choices_find(const json_t *choices, const struct mlo_digest *key)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    return json_object_get(json_object_get(choices, "steps"), mlo_digest_text(key, text));
}

enum mlo_status mlo_choices_put(json_t *choices, const struct mlo_digest *key, json_t *entry,
                                struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    return json_object_set_new(json_object_get(choices, "steps"), mlo_digest_text(key, text), entry) == 0
               ? MLO_OK
               : mlo_error_nomem(err);
}

json_t *mlo_choices_shareable(const json_t *choices)
{
    json_t *copy = json_deep_copy(choices), *entry;
    const char *key;
    json_object_foreach(json_object_get(copy, "steps"), key, entry)
    {
        json_object_del(entry, "nodes");
    }
    return copy;
}
