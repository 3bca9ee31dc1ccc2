/* Cron expressions of five fields, as POSIX crontab and Vixie cron have them:
 *
 *     minute (0-59)  hour (0-23)  day of the month (1-31)  month (1-12, jan-dec)  day of the week (0-7,
 * sun-sat)
 *
 * A field is `*` or a list of numbers and ranges: `1,15`, `9-17`, with a step `*`/15 or `8-20/4`. Names stand
 * for months and weekdays, in any case; 0 and 7 are Sunday. Where both days are restricted (do not begin with
 * `*`), a date matches when one of them does, else when both do.
 *
 * Here is the calendar alone: times are of a clock on the wall, without a zone. What a zone makes of them is
 * the caller's (pipeline/service/schedule_time.c). */
#ifndef MLO_BASE_CRON_H
#define MLO_BASE_CRON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct mlo_cron {
    uint64_t minutes;          /* bit n: minute n */
    uint32_t hours, days;      /* days: bit 1 to 31 */
    uint16_t months;           /* bit 1 to 12 */
    uint8_t weekdays;          /* bit 0 (Sunday) to 6 */
    bool any_day, any_weekday; /* the field begins with `*` */
};

/* A minute of a clock on the wall (proleptic Gregorian calendar). */
struct mlo_minute {
    int year, month, day, hour, minute;
};

/* MLO_EINVAL names the field and what it may have; also for an expression that no date ever matches. */
MLO_MUST_USE enum mlo_status mlo_cron_parse(const char *text, struct mlo_cron *out, struct mlo_error *err);
/* The first minute behind `after` that matches; false: none within forty years. `out` may be `after`. */
bool mlo_cron_next(const struct mlo_cron *cron, const struct mlo_minute *after, struct mlo_minute *out);
/* Whether it runs in each hour of the days that it runs on. */
bool mlo_cron_every_hour(const struct mlo_cron *cron);

/* Days since 1970-01-01, which may be negative, and back. */
int64_t mlo_minute_day(const struct mlo_minute *minute);
void mlo_minute_of_day(int64_t day, struct mlo_minute *out); /* hour and minute are 0 */
/* Adds minutes, which may be negative. */
void mlo_minute_add(struct mlo_minute *minute, int64_t minutes);

#endif
