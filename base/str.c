#include "base/str.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void mlo_buf_clear(struct mlo_buf *buf)
{
    free(buf->data);
    *buf = (struct mlo_buf)MLO_BUF_INIT;
}

void mlo_buf_reset(struct mlo_buf *buf)
{
    buf->len = 0;
    if (buf->data)
        buf->data[0] = '\0';
}

bool mlo_buf_reserve(struct mlo_buf *buf, size_t extra)
{
    if (buf->failed)
        return false;
    if (extra > SIZE_MAX / 4 || buf->len > SIZE_MAX / 4) {
        buf->failed = true;
        return false;
    }
    size_t need = buf->len + extra + 1;
    if (need <= buf->cap)
        return true;
    size_t cap = buf->cap ? buf->cap : 64;
    while (cap < need)
        cap += cap / 2 + 16;
    char *data = realloc(buf->data, cap);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->cap = cap;
    buf->data[buf->len] = '\0';
    return true;
}

void mlo_buf_append(struct mlo_buf *buf, const void *bytes, size_t size)
{
    if (size == 0 || !mlo_buf_reserve(buf, size))
        return;
    memcpy(buf->data + buf->len, bytes, size);
    buf->len += size;
    buf->data[buf->len] = '\0';
}

void mlo_buf_puts(struct mlo_buf *buf, const char *text)
{
    mlo_buf_append(buf, text, strlen(text));
}

void mlo_buf_putc(struct mlo_buf *buf, char c)
{
    mlo_buf_append(buf, &c, 1);
}

void mlo_buf_vprintf(struct mlo_buf *buf, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0 || !mlo_buf_reserve(buf, (size_t)n)) {
        buf->failed = true;
        return;
    }
    vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, args);
    buf->len += (size_t)n;
}

void mlo_buf_printf(struct mlo_buf *buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    mlo_buf_vprintf(buf, fmt, args);
    va_end(args);
}

bool mlo_buf_ok(const struct mlo_buf *buf)
{
    return !buf->failed;
}

const char *mlo_buf_str(const struct mlo_buf *buf)
{
    return buf->data ? buf->data : "";
}

char *mlo_buf_take(struct mlo_buf *buf)
{
    char *data = NULL;
    if (mlo_buf_reserve(buf, 0)) {
        data = buf->data;
        buf->data = NULL;
    }
    mlo_buf_clear(buf);
    return data;
}

bool mlo_str_among(const char *word, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(word, list[i]) == 0)
            return true;
    return false;
}

bool mlo_str_starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool mlo_str_ends(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

bool mlo_str_eq(const char *a, const char *b)
{
    if (!a || !b)
        return a == b;
    return strcmp(a, b) == 0;
}

bool mlo_str_to_i64(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || text[0] == ' ')
        return false;
    *out = v;
    return true;
}

bool mlo_str_to_f64(const char *text, double *out)
{
    static locale_t c_locale;
    locale_t locale = __atomic_load_n(&c_locale, __ATOMIC_ACQUIRE);
    if (!locale) {
        locale_t fresh = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        if (!fresh)
            return false;
        locale_t none = (locale_t)0;
        if (__atomic_compare_exchange_n(&c_locale, &none, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            locale = fresh;
        } else {
            freelocale(fresh);
            locale = none;
        }
    }
    char *end;
    double v = strtod_l(text, &end, locale);
    if (end == text || *end || !isfinite(v) || text[0] == ' ')
        return false;
    *out = v;
    return true;
}

char *mlo_str_size(uint64_t bytes, char out[32])
{
    static const char *const UNITS[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)bytes;
    size_t unit = 0;
    while (v >= 999.95 && unit + 1 < MLO_COUNT(UNITS)) {
        v /= 1000;
        unit++;
    }
    if (unit == 0)
        snprintf(out, 32, "%d B", (int)bytes);
    else
        snprintf(out, 32, v < 10 ? "%.2f %s" : "%.1f %s", v, UNITS[unit]);
    return out;
}

bool mlo_str_to_size(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"B", 1},
                 {"kB", 1e3},
                 {"MB", 1e6},
                 {"GB", 1e9},
                 {"TB", 1e12},
                 {"PB", 1e15},
                 {"KiB", 1024.0},
                 {"MiB", 1048576.0},
                 {"GiB", 1073741824.0},
                 {"TiB", 1099511627776.0},
                 {"PiB", 1125899906842624.0}};
    size_t n = strspn(text, "0123456789.");
    char number[32];
    double value;
    if (n == 0 || n >= sizeof number)
        return false;
    memcpy(number, text, n);
    number[n] = '\0';
    if (!mlo_str_to_f64(number, &value))
        return false;
    text += n + (text[n] == ' ');
    for (size_t i = 0; i < MLO_COUNT(units); i++) {
        if (strcasecmp(text, units[i].unit) != 0 || value * units[i].bytes >= 8e18)
            continue;
        *bytes = (uint64_t)(value * units[i].bytes + 0.5);
        return true;
    }
    return false;
}

bool mlo_str_to_seconds(const char *text, uint64_t *seconds)
{
    static const struct {
        char unit;
        uint64_t seconds;
    } units[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};
    size_t next = 0; /* of units: those before it are past */
    uint64_t sum = 0;
    if (!*text)
        return false;
    while (*text) {
        uint64_t value = 0;
        size_t digits = strspn(text, "0123456789");
        if (digits == 0 || digits > 12)
            return false;
        for (size_t i = 0; i < digits; i++)
            value = 10 * value + (uint64_t)(text[i] - '0');
        text += digits;
        while (next < MLO_COUNT(units) && units[next].unit != *text)
            next++;
        if (next == MLO_COUNT(units))
            return false;
        sum += value * units[next++].seconds;
        text++;
    }
    *seconds = sum;
    return true;
}
