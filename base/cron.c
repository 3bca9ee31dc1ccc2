#include "base/cron.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"

static const char *const MONTHS[] = {"jan", "feb", "mar", "apr", "may", "jun", "jul",
                                     "aug", "sep", "oct", "nov", "dec", NULL};
static const char *const WEEKDAYS[] = {"sun", "mon", "tue", "wed", "thu", "fri", "sat", NULL};

/* In the order in which they are written. */
static const struct field {
    const char *name, *allowed;
    int low, high;
    const char *const *names; /* the first one is `low` */
} FIELDS[] = {
    {"minute", "0 to 59", 0, 59, NULL},
    {"hour", "0 to 23", 0, 23, NULL},
    {"day of the month", "1 to 31", 1, 31, NULL},
    {"month", "1 to 12, or jan to dec", 1, 12, MONTHS},
    {"day of the week", "0 to 7 (0 and 7 are Sunday), or sun to sat", 0, 7, WEEKDAYS},
};
enum { MINUTE, HOUR, DAY, MONTH, WEEKDAY, FIELD_COUNT };

enum { YEARS_AHEAD = 40, TEXT_MAX = 200, WORD_MAX = 32 };

/* --- reading ------------------------------------------------------------------------------------------- */

static enum mlo_status bad(const struct field *f, struct mlo_error *err, const char *what, const char *word,
                           size_t length)
{
    enum mlo_status status = mlo_error_set(err, MLO_EINVAL, "%s '%.*s' %s", f->name,
                                           (int)(length < WORD_MAX ? length : WORD_MAX), word, what);
    mlo_error_where(err, "cron expression, field %d (%s)", (int)(f - FIELDS) + 1, f->name);
    mlo_error_hint(err, "the %s is * or a list of numbers and ranges such as 1,15 or 9-17 or */15: %s",
                   f->name, f->allowed);
    return status;
}

/* A number or a name of the field. */
static bool read_value(const struct field *f, const char *word, size_t length, int *out)
{
    int value = 0;
    if (length == 3 && f->names)
        for (int i = 0; f->names[i]; i++)
            if (strncasecmp(f->names[i], word, 3) == 0) {
                *out = f->low + i;
                return true;
            }
    if (length < 1 || length > 2)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (word[i] < '0' || word[i] > '9')
            return false;
        value = 10 * value + (word[i] - '0');
    }
    *out = value;
    return value >= f->low && value <= f->high;
}

/* `*`, `5`, `9-17`, each of the two last but one with a step. */
static enum mlo_status read_item(const struct field *f, const char *item, size_t length, uint64_t *bits,
                                 struct mlo_error *err)
{
    const char *slash = memchr(item, '/', length), *dash;
    size_t range = slash ? (size_t)(slash - item) : length;
    int low = f->low, high = f->high, step = 1;
    if (range == 0)
        return bad(f, err, "is empty", item, length);
    if (f - FIELDS == WEEKDAY)
        high = 6; /* `*` has Sunday once */
    if (!(range == 1 && *item == '*')) {
        dash = memchr(item, '-', range);
        size_t first = dash ? (size_t)(dash - item) : range;
        if (!read_value(f, item, first, &low))
            return bad(f, err, "is none", item, first);
        high = low;
        if (dash && !read_value(f, dash + 1, range - first - 1, &high))
            return bad(f, err, "is none", dash + 1, range - first - 1);
        if (dash && high == 0 && f - FIELDS == WEEKDAY && low > 0)
            high = 7; /* fri-sun */
        if (high < low)
            return bad(f, err, "ends before it begins", item, range);
        if (slash && !dash)
            return bad(f, err, "has a step and is no range", item, length);
    }
    if (slash) {
        const struct field steps = {.name = f->name, .low = 1, .high = f->high > 1 ? f->high : 1};
        if (!read_value(&steps, slash + 1, length - range - 1, &step))
            return bad(f, err, "has no step that there is", item, length);
    }
    for (int value = low; value <= high; value += step)
        *bits |= (uint64_t)1 << (f - FIELDS == WEEKDAY ? value % 7 : value);
    return MLO_OK;
}

static enum mlo_status read_field(const struct field *f, const char *text, size_t length, uint64_t *bits,
                                  struct mlo_error *err)
{
    *bits = 0;
    for (size_t at = 0; at <= length;) {
        const char *comma = memchr(text + at, ',', length - at);
        size_t end = comma ? (size_t)(comma - text) : length;
        enum mlo_status status = read_item(f, text + at, end - at, bits, err);
        if (status != MLO_OK)
            return status;
        at = end + 1;
    }
    return MLO_OK;
}

static enum mlo_status wrong_count(struct mlo_error *err, const char *text, int count)
{
    mlo_error_set(err, MLO_EINVAL, "the cron expression '%.60s' has %d field%s, not five", text, count,
                  count == 1 ? "" : "s");
    mlo_error_where(err, "cron expression");
    mlo_error_hint(err,
                   "write minute, hour, day of the month, month and day of the week, as in '0 3 * * mon'");
    return MLO_EINVAL;
}

enum mlo_status mlo_cron_parse(const char *text, struct mlo_cron *out, struct mlo_error *err)
{
    const char *words[FIELD_COUNT];
    size_t lengths[FIELD_COUNT];
    uint64_t bits[FIELD_COUNT];
    int count = 0;
    if (strlen(text) > TEXT_MAX)
        return mlo_error_set(err, MLO_EINVAL, "a cron expression has at most %d characters", TEXT_MAX);
    for (const char *at = text + strspn(text, " \t"); *at; at += strspn(at, " \t"), count++) {
        size_t length = strcspn(at, " \t");
        if (count < FIELD_COUNT) {
            words[count] = at;
            lengths[count] = length;
        }
        at += length;
    }
    if (count != FIELD_COUNT)
        return wrong_count(err, text, count);
    for (int f = 0; f < FIELD_COUNT; f++) {
        enum mlo_status status = read_field(&FIELDS[f], words[f], lengths[f], &bits[f], err);
        if (status != MLO_OK)
            return status;
    }
    *out = (struct mlo_cron){.minutes = bits[MINUTE],
                             .hours = (uint32_t)bits[HOUR],
                             .days = (uint32_t)bits[DAY],
                             .months = (uint16_t)bits[MONTH],
                             .weekdays = (uint8_t)bits[WEEKDAY],
                             .any_day = words[DAY][0] == '*',
                             .any_weekday = words[WEEKDAY][0] == '*'};
    const struct mlo_minute begin = {2000, 1, 1, 0, 0}; /* followed by all that a calendar has in 400 years */
    struct mlo_minute first;
    if (mlo_cron_next(out, &begin, &first))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "no date ever matches the cron expression '%.60s'", text);
    mlo_error_where(err, "cron expression, fields 3 to 5 (dates)");
    mlo_error_hint(err, "the months that it names have no such day");
    return MLO_EINVAL;
}

/* --- the calendar: Hinnant, "chrono-compatible low-level date algorithms" --------------------------------
 */

int64_t mlo_minute_day(const struct mlo_minute *m)
{
    int64_t year = m->year - (m->month <= 2), era = (year >= 0 ? year : year - 399) / 400;
    int64_t of_era = year - era * 400;
    int64_t of_year = (153 * (m->month + (m->month > 2 ? -3 : 9)) + 2) / 5 + m->day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

void mlo_minute_of_day(int64_t day, struct mlo_minute *out)
{
    day += 719468;
    int64_t era = (day >= 0 ? day : day - 146096) / 146097, of_era = day - era * 146097;
    int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year + year / 4 - year / 100), month = (5 * of_year + 2) / 153;
    out->day = (int)(of_year - (153 * month + 2) / 5 + 1);
    out->month = (int)(month < 10 ? month + 3 : month - 9);
    out->year = (int)(year + era * 400 + (out->month <= 2));
    out->hour = out->minute = 0;
}

void mlo_minute_add(struct mlo_minute *m, int64_t minutes)
{
    int64_t all = mlo_minute_day(m) * 1440 + m->hour * 60 + m->minute + minutes;
    int64_t day = all >= 0 ? all / 1440 : (all - 1439) / 1440, rest = all - day * 1440;
    mlo_minute_of_day(day, m);
    m->hour = (int)(rest / 60);
    m->minute = (int)(rest % 60);
}

/* --- matching ------------------------------------------------------------------------------------------ */

static bool date_matches(const struct mlo_cron *cron, const struct mlo_minute *m, int64_t day)
{
    bool by_day = cron->days >> m->day & 1, by_weekday = cron->weekdays >> ((day % 7 + 11) % 7) & 1;
    if (!(cron->months >> m->month & 1))
        return false;
    return cron->any_day || cron->any_weekday ? by_day && by_weekday : by_day || by_weekday;
}

bool mlo_cron_every_hour(const struct mlo_cron *cron)
{
    return cron->hours == ((uint32_t)1 << 24) - 1;
}

bool mlo_cron_next(const struct mlo_cron *cron, const struct mlo_minute *after, struct mlo_minute *out)
{
    struct mlo_minute at = *after;
    mlo_minute_add(&at, 1);
    int64_t day = mlo_minute_day(&at), last = day + YEARS_AHEAD * 366;
    int hour = at.hour, minute = at.minute;
    for (; day <= last; day++, hour = 0, minute = 0) {
        mlo_minute_of_day(day, &at);
        if (!date_matches(cron, &at, day))
            continue;
        for (; hour < 24; hour++, minute = 0) {
            if (!(cron->hours >> hour & 1))
                continue;
            for (; minute < 60; minute++) {
                if (cron->minutes >> minute & 1) {
                    at.hour = hour;
                    at.minute = minute;
                    *out = at;
                    return true;
                }
            }
        }
    }
    return false;
}
