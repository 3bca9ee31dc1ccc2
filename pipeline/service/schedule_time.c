/* When a schedule is due. The calendar is base/cron.h's, of a clock on the wall; PostgreSQL knows the zones.
 * It reads a local time that is left out as if the clock had not been moved yet, so as much later, and one
 * that comes twice as the second. An expression of every hour goes by the hours that pass: twice through one
 * that comes twice, and not through one that is left out. */
#include <stdio.h>
#include <string.h>

#include "pipeline/service/schedule_impl.h"

enum { S_LOCAL, S_NEXT, S_ZONE };

const struct mlo_sql MLO_SCHEDULE_TIME_SQL[] = {
    [S_LOCAL] = {"schedule_local",
                 "select to_char(coalesce($1::timestamptz, clock_timestamp()) at time zone $2::text, "
                 "'YYYY MM DD HH24 MI'), coalesce($1::timestamptz, clock_timestamp())",
                 2},
    /* `was` is the offset a day before: by that a local time that comes twice is the first one */
    [S_NEXT] =
        {"schedule_next",
         "with c as (select l, l at time zone $1::text as u from unnest($2::timestamp[]) l), "
         "d as (select l, u, (l - ((u - interval '1 day') at time zone $1::text - "
         "    (u - interval '1 day') at time zone 'UTC')) at time zone 'UTC' as was from c) "
         "select min(t.at) from (select u as at from d where not $3::boolean or u at time zone $1::text = l "
         "  union all select was from d where $3::boolean and was at time zone $1::text = l) t "
         "where t.at > $4::timestamptz",
         4},
    [S_ZONE] = {"schedule_zone", "select from pg_timezone_names where name = $1", 1},
};
const size_t MLO_SCHEDULE_TIME_SQL_COUNT = MLO_COUNT(MLO_SCHEDULE_TIME_SQL);

/* Before a time, for local times that come twice; and how many times, so that some are behind it and behind
 * every change of the clock. */
enum { BEFORE_MIN = 3 * 60, CANDIDATES_MAX = 512, CANDIDATES_ENOUGH = 8, AHEAD_DAYS = 3 };

enum mlo_status mlo_schedule_zone(struct mlo_db_conn *conn, const char *time_zone, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_text(&p, time_zone);
    enum mlo_status status = mlo_db_exec(conn, &MLO_SCHEDULE_TIME_SQL[S_ZONE], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_EINVAL, "there is no time zone '%.60s'", time_zone);
        mlo_error_where(err, "field 'time_zone'");
        mlo_error_hint(err, "a name of the tz database, such as UTC or Europe/Berlin");
    }
    mlo_rows_clear(&rows);
    return status;
}

/* Times of the expression around a local time, as an array for PostgreSQL. */
static void add_candidates(const struct mlo_cron *cron, struct mlo_minute local, struct mlo_buf *out)
{
    struct mlo_minute at = local;
    int64_t last = mlo_minute_day(&local) + AHEAD_DAYS;
    mlo_minute_add(&at, -BEFORE_MIN);
    mlo_buf_putc(out, '{');
    for (int i = 0; i < CANDIDATES_MAX && mlo_cron_next(cron, &at, &at); i++) {
        mlo_buf_printf(out, "%s\"%04d-%02d-%02d %02d:%02d\"", i ? "," : "", at.year, at.month, at.day,
                       at.hour, at.minute);
        if (i >= CANDIDATES_ENOUGH && mlo_minute_day(&at) > last)
            break;
    }
    mlo_buf_putc(out, '}');
}

enum mlo_status mlo_schedule_next(struct mlo_db_conn *conn, const struct mlo_cron *cron,
                                  const char *time_zone, const char *after, char out[MLO_SCHEDULE_TIME_SIZE],
                                  struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_minute local;
    struct mlo_rows rows = {0}, next = {0};
    struct mlo_buf candidates = MLO_BUF_INIT;
    struct mlo_params p = MLO_PARAMS_INIT, q = MLO_PARAMS_INIT;
    mlo_param_text(&p, after);
    mlo_param_text(&p, time_zone);
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_TIME_SQL[S_LOCAL], &p, &rows, err));
    if (sscanf(mlo_rows_text(&rows, 0, 0), "%d %d %d %d %d", &local.year, &local.month, &local.day,
               &local.hour, &local.minute) != 5) {
        status = mlo_error_set(err, MLO_EINTERNAL, "the database's clock says '%.40s'",
                               mlo_rows_text(&rows, 0, 0));
        goto out;
    }
    add_candidates(cron, local, &candidates);
    if (!mlo_buf_ok(&candidates)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_param_text(&q, time_zone);
    mlo_param_text(&q, mlo_buf_str(&candidates));
    mlo_param_bool(&q, mlo_cron_every_hour(cron));
    mlo_param_text(&q, mlo_rows_text(&rows, 0, 1));
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_TIME_SQL[S_NEXT], &q, &next, err));
    const char *text = mlo_rows_text(&next, 0, 0);
    if (!text)
        status = mlo_error_set(err, MLO_EINVAL, "the cron expression has no time within forty years");
    else
        snprintf(out, MLO_SCHEDULE_TIME_SIZE, "%s", text);
out:
    mlo_buf_clear(&candidates);
    mlo_rows_clear(&rows);
    mlo_rows_clear(&next);
    return status;
}
