#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct mlo_status_info STATUS_TABLE[MLO_STATUS_COUNT] = {
    {MLO_OK, "ok", "ok", 200, 0, false},
    {MLO_EINVAL, "invalid-value", "invalid value", 422, 1, false},
    {MLO_EUSAGE, "usage", "wrong usage", 400, 2, false},
    {MLO_EFORMAT, "bad-format", "malformed input", 422, 1, false},
    {MLO_EUNSUPPORTED, "unsupported", "not supported", 422, 1, false},
    {MLO_ENOTFOUND, "not-found", "not found", 404, 3, false},
    {MLO_EEXISTS, "already-exists", "already exists", 409, 5, false},
    {MLO_ECONFLICT, "conflict", "conflict", 409, 5, false},
    {MLO_EPRECONDITION, "precondition-failed", "changed meanwhile", 412, 5, false},
    {MLO_EPRECONDITION_REQUIRED, "precondition-required", "If-Match required", 428, 5, false},
    {MLO_EAUTH, "unauthorized", "not signed in", 401, 4, false},
    {MLO_EFORBIDDEN, "forbidden", "not allowed", 403, 4, false},
    {MLO_EGATE, "gate-refused", "refused by a gate", 409, 8, false},
    {MLO_EEXPECT, "expectation-failed", "an expectation does not hold", 409, 6, false},
    {MLO_EDIGEST, "digest-mismatch", "digest mismatch", 422, 1, false},
    {MLO_ERANGE, "range-not-satisfiable", "range not satisfiable", 416, 1, false},
    {MLO_ETOOBIG, "too-large", "too large", 413, 1, false},
    {MLO_ENOMEM, "out-of-memory", "out of memory", 503, 1, true},
    {MLO_ENOSPC, "no-space", "no space left", 507, 1, true},
    {MLO_EIO, "io-error", "input/output error", 500, 1, true},
    {MLO_EUNAVAILABLE, "unavailable", "not available", 503, 1, true},
    {MLO_ETIMEOUT, "timeout", "timed out", 504, 7, true},
    {MLO_ECANCELLED, "cancelled", "cancelled", 409, 6, false},
    {MLO_ELEASE, "lease-lost", "lease lost", 409, 6, false},
    {MLO_EJOB, "job-failed", "job failed", 409, 6, false},
    {MLO_ESTALE, "stale-plan", "stale plan", 409, 5, false},
    {MLO_ENODEVICE, "no-device", "no such device here", 503, 9, true},
    {MLO_EQUOTA, "quota-exceeded", "quota exceeded", 507, 1, false},
    {MLO_EINTERNAL, "internal", "internal error", 500, 1, false},
};

const struct mlo_status_info *mlo_status_info(enum mlo_status status)
{
    if ((unsigned)status >= MLO_STATUS_COUNT)
        status = MLO_EINTERNAL;
    return &STATUS_TABLE[status];
}

enum mlo_status mlo_status_from_code(const char *code)
{
    for (int i = 0; i < MLO_STATUS_COUNT; i++)
        if (code && strcmp(STATUS_TABLE[i].code, code) == 0)
            return STATUS_TABLE[i].status;
    static const struct {
        const char *code;
        enum mlo_status status;
    } http_alone[] = {{"rate-limited", MLO_EUNAVAILABLE}, /* the same later */
                      {"idempotency-key-in-use", MLO_EUNAVAILABLE},
                      {"idempotency-key-reused", MLO_EINVAL}};
    for (size_t i = 0; code && i < MLO_COUNT(http_alone); i++)
        if (strcmp(http_alone[i].code, code) == 0)
            return http_alone[i].status;
    return MLO_EINTERNAL;
}

/* Length of the valid UTF-8 sequence at p that is no control character; 0 when there is none. */
static size_t printable(const unsigned char *p)
{
    if (p[0] >= 0x20 && p[0] < 0x7f)
        return 1;
    size_t n = p[0] >= 0xc2 && p[0] <= 0xdf   ? 2
               : (p[0] & 0xf0) == 0xe0        ? 3
               : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                              : 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f) || (p[0] == 0xc2 && p[1] < 0xa0))
        return 0;
    return n;
}

/* Errors quote names out of files: keep escape sequences and broken UTF-8 out of terminals and JSON. */
static void make_printable(char *text)
{
    unsigned char *p = (unsigned char *)text;
    while (*p) {
        size_t n = printable(p);
        if (n == 0) {
            *p = '?';
            n = 1;
        }
        p += n;
    }
}

enum mlo_status(mlo_error_set)(struct mlo_error *err, enum mlo_status status, const char *fmt, ...)
{
    if (status == MLO_OK)
        status = MLO_EINTERNAL;
    if (err) {
        va_list args;
        va_start(args, fmt);
        err->status = status;
        err->where[0] = err->hint[0] = '\0';
        vsnprintf(err->message, sizeof err->message, fmt, args);
        va_end(args);
        make_printable(err->message);
    }
    return status;
}

static enum mlo_status status_of_errno(int e)
{
    switch (e) {
    case ENOSPC:
    case EDQUOT:
        return MLO_ENOSPC;
    case ENOENT:
        return MLO_ENOTFOUND;
    case ENOMEM:
        return MLO_ENOMEM;
    case EEXIST:
        return MLO_EEXISTS;
    case EACCES:
    case EPERM:
    case EROFS:
        return MLO_EFORBIDDEN;
    case EFBIG:
        return MLO_ETOOBIG;
    default:
        return MLO_EIO;
    }
}

enum mlo_status(mlo_error_errno)(struct mlo_error *err, int errno_value, const char *fmt, ...)
{
    enum mlo_status status = status_of_errno(errno_value);
    if (err) {
        char what[sizeof err->message];
        va_list args;
        va_start(args, fmt);
        vsnprintf(what, sizeof what, fmt, args);
        va_end(args);
        mlo_error_set(err, status, "%.300s: %s", what, strerror(errno_value));
    }
    return status;
}

MLO_PRINTF(3, 0)
static void add_once(char *field, size_t size, const char *fmt, va_list args)
{
    if (field[0] == '\0') {
        vsnprintf(field, size, fmt, args);
        make_printable(field);
    }
}

void mlo_error_where(struct mlo_error *err, const char *fmt, ...)
{
    if (!err)
        return;
    va_list args;
    va_start(args, fmt);
    add_once(err->where, sizeof err->where, fmt, args);
    va_end(args);
}

void mlo_error_hint(struct mlo_error *err, const char *fmt, ...)
{
    if (!err)
        return;
    va_list args;
    va_start(args, fmt);
    add_once(err->hint, sizeof err->hint, fmt, args);
    va_end(args);
}

void mlo_error_prefix(struct mlo_error *err, const char *fmt, ...)
{
    if (!err)
        return;
    char old[sizeof err->message], prefix[192];
    va_list args;
    va_start(args, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);
    memcpy(old, err->message, sizeof old);
    snprintf(err->message, sizeof err->message, "%s: %.300s", prefix, old);
    make_printable(err->message);
}

static void cut_out(char *from, const char *text)
{
    size_t length = strlen(text);
    for (char *at = from; length && (at = strstr(at, text));)
        memmove(at, at + length, strlen(at + length) + 1);
}

void mlo_error_cut(struct mlo_error *err, const char *text)
{
    if (!err)
        return;
    cut_out(err->message, text);
    cut_out(err->where, text);
    cut_out(err->hint, text);
}

enum mlo_status(mlo_error_nomem)(struct mlo_error *err)
{
    return mlo_error_set(err, MLO_ENOMEM, "out of memory");
}
