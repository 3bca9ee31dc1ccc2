#include <string.h>

#include "api/cli/client/client.h"

static enum mlo_status bad(const char *text, const char *why, struct mlo_error *err)
{
    enum mlo_status status = mlo_error_set(err, MLO_EUSAGE, "'%.100s' is no name here: %s", text, why);
    mlo_error_hint(
        err, "names look like fashion/cnn, fashion/cnn@2, fashion/cnn@production, fashion/cnn@2/int8-cpu");
    return status;
}

static bool good_name(const char *text)
{
    size_t n = strlen(text);
    return n > 0 && n <= 100 &&
           strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n &&
           *text != '.' && *text != '_' && *text != '-';
}

/* Copies [p, end) when it is a good name. */
static bool take(const char *p, const char *end, char out[104])
{
    size_t n = (size_t)(end - p);
    if (n > 100)
        return false;
    memcpy(out, p, n);
    out[n] = '\0';
    return good_name(out);
}

enum mlo_status mlo_client_ref_parse(const char *text, struct mlo_client_ref *out, struct mlo_error *err)
{
    memset(out, 0, sizeof *out);
    const char *end = text + strlen(text);
    const char *slash = strchr(text, '/');
    if (!slash)
        return bad(text, "the project is missing (PROJECT/NAME)", err);
    if (!take(text, slash, out->project))
        return bad(
            text, "the project may hold letters, digits, '.', '_' and '-', and begins with a letter or digit",
            err);
    const char *name = slash + 1;
    const char *stop = name + strcspn(name, "@/");
    if (!take(name, stop, out->name))
        return bad(text,
                   "the name may hold letters, digits, '.', '_' and '-', and begins with a letter or digit",
                   err);
    if (*stop == '@') {
        const char *at = stop + 1;
        stop = at + strcspn(at, "/");
        if (!take(at, stop, out->at))
            return bad(text, "behind '@' stands a version's number, 'latest', or a stage", err);
    }
    if (*stop == '/' && !take(stop + 1, end, out->variant))
        return bad(text, "what follows the last '/' is no variant's name", err);
    return MLO_OK;
}

bool mlo_client_ref_is_version(const struct mlo_client_ref *ref)
{
    return !*ref->at || strcmp(ref->at, "latest") == 0 || strspn(ref->at, "0123456789") == strlen(ref->at);
}

enum mlo_status mlo_client_ref_plain(const struct mlo_client_ref *ref, bool at_allowed, bool variant_allowed,
                                     struct mlo_error *err)
{
    if (*ref->variant && !variant_allowed)
        return mlo_error_set(err, MLO_EUSAGE, "%s/%s: a variant ('/%s') has no meaning here", ref->project,
                             ref->name, ref->variant);
    if (*ref->at && !at_allowed)
        return mlo_error_set(err, MLO_EUSAGE, "%s/%s: '@%s' has no meaning here", ref->project, ref->name,
                             ref->at);
    return MLO_OK;
}

enum mlo_status mlo_client_ref_version(const struct mlo_client_ref *ref, const char **out,
                                       struct mlo_error *err)
{
    if (!mlo_client_ref_is_version(ref))
        return mlo_error_set(err, MLO_EUSAGE, "'@%s' is no version: give a number or 'latest'", ref->at);
    *out = *ref->at ? ref->at : "latest";
    return MLO_OK;
}
