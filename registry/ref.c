#include "registry/ref.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

static const char *const stages[MLO_STAGE_COUNT] = {"staging", "production"};

const char *const *mlo_stage_names(size_t *count)
{
    *count = MLO_COUNT(stages);
    return stages;
}

size_t mlo_stage_index(const char *name)
{
    size_t i = 0;
    while (i + 1 < MLO_COUNT(stages) && !mlo_str_eq(name, stages[i]))
        i++;
    return i;
}

bool mlo_stage_valid(const char *name)
{
    for (size_t i = 0; i < MLO_COUNT(stages); i++)
        if (mlo_str_eq(name, stages[i]))
            return true;
    return false;
}

static bool alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool mlo_name_valid(const char *name)
{
    size_t n = 0;
    if (!name || !alnum(name[0]))
        return false;
    for (; name[n]; n++)
        if (n >= 100 || !(alnum(name[n]) || name[n] == '.' || name[n] == '_' || name[n] == '-'))
            return false;
    return true;
}

/* Copies text[0, n) and checks that it is a name. */
static bool take_name(const char *text, size_t n, char out[104])
{
    if (n > 100)
        return false;
    memcpy(out, text, n);
    out[n] = '\0';
    return mlo_name_valid(out);
}

enum mlo_status mlo_ref_parse(const char *text, struct mlo_ref *out, struct mlo_error *err)
{
    char at[104];
    memset(out, 0, sizeof *out);
    size_t n = strcspn(text, "/");
    const char *name = text + n + 1;
    if (text[n] != '/' || !take_name(text, n, out->project))
        goto malformed;
    n = strcspn(name, "@/");
    if (!take_name(name, n, out->name))
        goto malformed;
    const char *rest = name + n;
    if (*rest == '@') {
        n = strcspn(rest + 1, "/");
        if (!take_name(rest + 1, n, at))
            goto malformed;
        if (mlo_stage_valid(at))
            snprintf(out->stage, sizeof out->stage, "%.15s", at);
        else if (strcmp(at, "latest") != 0 && (!mlo_str_to_i64(at, &out->version) || out->version < 1))
            goto malformed;
        rest += 1 + n;
    }
    if (*rest == '/' && !take_name(rest + 1, strlen(rest + 1), out->variant))
        goto malformed;
    if (*rest == '\0' || *rest == '/')
        return MLO_OK;
malformed:
    mlo_error_set(err, MLO_EINVAL, "'%.200s' names no model or dataset", text);
    mlo_error_hint(err,
                   "write project/name, project/name@3, project/name@production or project/name@3/variant");
    return MLO_EINVAL;
}
