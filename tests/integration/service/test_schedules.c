/* Schedules: when they are due, that each time is fired once, what is measured, and how it shows that
 * something broke. */
#include "pipeline/service/schedule_impl.h"
#include "registry/gates.h"
#include "registry/webhook.h"
#include "tests/integration/service/service_fixture.h"

#define RECIPE_WATCH                                                                                         \
    "name: watch\ndata: {evaluate: p/test}\nsteps:\n"                                                        \
    "  - evaluate: {metrics: [top1], compare_to: source}\n"                                                  \
    "  - benchmark: {batch: [1], compare_to: source}\nexpect: [\"top1 >= source - 0.5pt\", \"top1 >= "       \
    "0.5\"]\n"

static int64_t model_id(struct service_fixture *f)
{
    int64_t model = 0;
    assert_mlo_ok(mlo_model_find(f->pg->conn, f->project, "m", &model, &f->err), &f->err);
    return model;
}

/* Puts the upload, and with `derived` what a run makes of it, into production. */
static void promote(struct service_fixture *f, bool derived)
{
    const struct mlo_release_choice choices[] = {{"any", "source"}, {"cpu:avx2", "derived"}};
    const int64_t seen = 0;
    struct mlo_promotion p = {.model_id = model_id(f),
                              .choices = choices,
                              .choice_count = derived ? 2 : 1,
                              .stage = "production",
                              .reason = "test",
                              .if_match = &seen};
    struct mlo_move move;
    if (derived) {
        struct test_worker w;
        int64_t run = submit(f, f->version, RECIPE_DERIVE, 0);
        start_worker(f, &w, 1);
        wait_run(f, run);
        stop_worker(&w);
    }
    assert_mlo_ok(mlo_stage_promote(f->pg->conn, &SYSTEM, &p, &move, &f->err), &f->err);
}

static enum mlo_status add(struct service_fixture *f, const struct mlo_actor *actor, const char *name,
                           const char *cron, const char *zone, const char *text)
{
    struct mlo_recipe *r = recipe(text);
    const struct mlo_schedule_request request = {.project = f->project,
                                                 .model = model_id(f),
                                                 .name = name,
                                                 .stage = "production",
                                                 .cron = cron,
                                                 .time_zone = zone,
                                                 .recipe = r,
                                                 .priority = MLO_SCHEDULE_PRIORITY,
                                                 .actor = actor};
    json_t *out = NULL;
    memset(&f->err, 0, sizeof f->err);
    enum mlo_status status = mlo_schedule_add(f->pg->conn, &request, &out, &f->err);
    json_decref(out);
    mlo_recipe_free(r);
    return status;
}

static json_t *get(struct service_fixture *f, const char *name)
{
    json_t *out = NULL;
    assert_mlo_ok(mlo_schedule_get(f->pg->conn, f->project, name, &out, &f->err), &f->err);
    return out;
}

/* Firings by how they ended, and what the last one was. */
static void assert_counts(struct service_fixture *f, const char *name, int succeeded, int failed, int skipped,
                          const char *last)
{
    json_t *s = get(f, name);
    if (mlo_json_i64(s, "succeeded", -1) != succeeded || mlo_json_i64(s, "failed", -1) != failed ||
        mlo_json_i64(s, "skipped", -1) != skipped ||
        strcmp(mlo_json_str(json_object_get(s, "last"), "state", "none"), last) != 0) {
        char *all = json_dumps(s, JSON_INDENT(1));
        print_error("%s\n", all);
        free(all);
        fail_msg("not %d succeeded, %d failed, %d skipped, the last one %s", succeeded, failed, skipped,
                 last);
    }
    json_decref(s);
}

/* A time as text, by an expression on the schedule's row. */
static void time_of(struct service_fixture *f, const char *name, const char *expression,
                    char out[MLO_SCHEDULE_TIME_SIZE])
{
    struct mlo_db_conn *conn;
    char sql[256];
    snprintf(sql, sizeof sql, "select %s from mlopt.schedule where name = '%s'", expression, name);
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    PGresult *result = PQexec(mlo_db_pg(conn), sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(mlo_db_pg(conn)));
    snprintf(out, MLO_SCHEDULE_TIME_SIZE, "%s", PQgetvalue(result, 0, 0));
    PQclear(result);
    mlo_db_release(conn);
}

static struct mlo_schedule_tick tick(struct service_fixture *f, const char *now)
{
    struct mlo_schedule_tick did;
    assert_mlo_ok(mlo_schedule_tick(f->pg->server, now, &did, &f->err), &f->err);
    return did;
}

/* The tick of the moment that the schedule is due. */
static struct mlo_schedule_tick tick_due(struct service_fixture *f, const char *name)
{
    char now[MLO_SCHEDULE_TIME_SIZE];
    time_of(f, name, "next_at", now);
    return tick(f, now);
}

/* All runs to their ends, then the tick that ends their firing. */
static void finish(struct service_fixture *f, const char *name)
{
    struct test_worker w;
    char now[MLO_SCHEDULE_TIME_SIZE];
    time_of(f, name, "coalesce(next_at, now()) - interval '1 s'", now);
    start_worker(f, &w, 2);
    wait_until(count_rows(f, "select count(*) from mlopt.run where finished_at is null") == 0);
    stop_worker(&w);
    assert_int_equal(tick(f, now).ended, 1);
}

/* --- when ---------------------------------------------------------------------------------------------- */

static void test_schedules__know_zones_and_their_changes(void **state)
{
    struct service_fixture *f = *state;
    static const struct {
        const char *cron, *zone, *after, *next[3];
    } CASES[] = {
        {"0 3 * * *", "UTC", "2026-11-22 03:00:00+00", {"2026-11-23 03:00:00+00", "2026-11-24 03:00:00+00"}},
        {"*/20 * * * *",
         "UTC",
         "2026-11-22 18:40:30+00",
         {"2026-11-22 19:00:00+00", "2026-11-22 19:20:00+00"}},
        {"0 9 * * mon",
         "America/New_York",
         "2026-11-22 00:00:00+00",
         {"2026-11-23 14:00:00+00", "2026-11-30 14:00:00+00"}},
        {"0 0 * * *",
         "Asia/Kolkata",
         "2026-11-22 18:30:00+00",
         {"2026-11-23 18:30:00+00", "2026-11-24 18:30:00+00"}},
        /* 2026-03-29 02:00 to 03:00 is left out there: an hour later */
        {"30 2 * * *",
         "Europe/Berlin",
         "2026-03-28 12:00:00+00",
         {"2026-03-29 01:30:00+00", "2026-03-30 00:30:00+00"}},
        {"0 2,3 * * *",
         "Europe/Berlin",
         "2026-03-28 12:00:00+00",
         {"2026-03-29 01:00:00+00", "2026-03-30 00:00:00+00", "2026-03-30 01:00:00+00"}},
        {"0 * * * *",
         "Europe/Berlin",
         "2026-03-29 00:00:00+00",
         {"2026-03-29 01:00:00+00", "2026-03-29 02:00:00+00"}},
        /* 2026-10-25 02:00 to 03:00 comes twice: the second one; every hour goes through both */
        {"30 2 * * *",
         "Europe/Berlin",
         "2026-10-24 12:00:00+00",
         {"2026-10-25 01:30:00+00", "2026-10-26 01:30:00+00"}},
        {"30 * * * *",
         "Europe/Berlin",
         "2026-10-24 23:30:00+00",
         {"2026-10-25 00:30:00+00", "2026-10-25 01:30:00+00", "2026-10-25 02:30:00+00"}},
        {"*/30 * * * *",
         "Europe/Berlin",
         "2026-10-25 00:10:00+00",
         {"2026-10-25 00:30:00+00", "2026-10-25 01:00:00+00", "2026-10-25 01:30:00+00"}},
        /* by half an hour */
        {"45 1 * * *",
         "Australia/Lord_Howe",
         "2026-04-03 16:00:00+00",
         {"2026-04-04 15:15:00+00", "2026-04-05 15:15:00+00"}},
        {"15 2 * * *", "Australia/Lord_Howe", "2026-10-03 00:00:00+00", {"2026-10-03 15:45:00+00"}},
        /* midnight is left out */
        {"0 0 * * *",
         "Africa/Cairo",
         "2026-04-23 00:00:00+00",
         {"2026-04-23 22:00:00+00", "2026-04-24 21:00:00+00"}},
        {"0 0 29 2 *", "Asia/Tokyo", "2026-01-01 00:00:00+00", {"2028-02-28 15:00:00+00"}},
    };
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_cron cron;
        char at[MLO_SCHEDULE_TIME_SIZE];
        snprintf(at, sizeof at, "%s", CASES[i].after);
        assert_mlo_ok(mlo_cron_parse(CASES[i].cron, &cron, &f->err), &f->err);
        for (size_t n = 0; n < MLO_COUNT(CASES[i].next) && CASES[i].next[n]; n++) {
            assert_mlo_ok(mlo_schedule_next(f->pg->conn, &cron, CASES[i].zone, at, at, &f->err), &f->err);
            if (strcmp(at, CASES[i].next[n]) != 0)
                fail_msg("'%s' in %s after %s, %zu.: %s instead of %s", CASES[i].cron, CASES[i].zone,
                         CASES[i].after, n + 1, at, CASES[i].next[n]);
        }
    }
}

/* --- adding -------------------------------------------------------------------------------------------- */

static void test_schedules__are_checked_when_they_are_added(void **state)
{
    struct service_fixture *f = *state;
    const struct mlo_actor submitter = {.name = "sue", .role = MLO_SUBMITTER, .via = "api"},
                           promoter = {.name = "pam", .role = MLO_PROMOTER, .via = "api"};
    static const struct {
        const char *name, *cron, *zone, *recipe, *part;
        enum mlo_status status;
    } CASES[] = {
        {"Nightly", "0 3 * * *", NULL, RECIPE_WATCH, "is no name", MLO_EINVAL},
        {"nightly", "0 25 * * *", NULL, RECIPE_WATCH, "hour '25'", MLO_EINVAL},
        {"nightly", "0 3 * * *", "Europe/Berlln", RECIPE_WATCH, "no time zone 'Europe/Berlln'", MLO_EINVAL},
        {"nightly", "0 3 * * *", "EST5EDT,M3.2.0,M11.1.0", RECIPE_WATCH, "no time zone", MLO_EINVAL},
        {"nightly", "0 3 * * *", NULL, RECIPE_TINY, "'optimize' makes something", MLO_EINVAL},
        {"nightly", "0 3 * * *", NULL, RECIPE_COMPILE, "'compile' makes something", MLO_EINVAL},
        {"nightly", "0 3 * * *", NULL,
         "name: watch\ndata: {evaluate: p/nowhere}\nsteps:\n  - evaluate: {metrics: [top1]}\n",
         "no dataset 'p/nowhere'", MLO_ENOTFOUND},
    };
    promote(f, false);
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        enum mlo_status status =
            add(f, &promoter, CASES[i].name, CASES[i].cron, CASES[i].zone, CASES[i].recipe);
        if (status != CASES[i].status || !strstr(f->err.message, CASES[i].part))
            fail_msg("case %zu: %d %s", i, (int)status, f->err.message);
    }
    assert_int_equal(add(f, &submitter, "nightly", "0 3 * * *", NULL, RECIPE_WATCH), MLO_EFORBIDDEN);
    assert_mlo_ok(add(f, &promoter, "nightly", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    assert_int_equal(add(f, &promoter, "nightly", "0 4 * * *", NULL, RECIPE_WATCH), MLO_EEXISTS);
    assert_int_equal(mlo_schedule_set(f->pg->conn, &submitter, f->project, "nightly", MLO_SCHEDULE_PAUSE,
                                      NULL, NULL, &f->err),
                     MLO_EFORBIDDEN);
    assert_int_equal(mlo_schedule_set(f->pg->conn, &promoter, f->project, "weekly", MLO_SCHEDULE_PAUSE, NULL,
                                      NULL, &f->err),
                     MLO_ENOTFOUND);
    json_t *s = get(f, "nightly"), *list = NULL;
    assert_string_equal(mlo_json_str(s, "time_zone", ""), "UTC");
    assert_string_equal(mlo_json_str(s, "state", ""), "enabled");
    assert_string_equal(mlo_json_str(s, "created_by", ""), "pam");
    assert_true(json_is_null(json_object_get(s, "last")));
    assert_mlo_ok(mlo_schedule_list(f->pg->conn, f->project, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(list), 1);
    json_decref(list);
    json_decref(s);
    /* its name is free once it is removed */
    assert_mlo_ok(mlo_schedule_set(f->pg->conn, &promoter, f->project, "nightly", MLO_SCHEDULE_REMOVE,
                                   "no use", NULL, &f->err),
                  &f->err);
    assert_mlo_ok(add(f, &promoter, "nightly", "0 4 * * *", NULL, RECIPE_WATCH), &f->err);
}

static void test_schedules__are_no_more_than_a_project_may_have(void **state)
{
    struct service_fixture *f = *state;
    const struct mlo_actor promoter = {.name = "pam", .role = MLO_PROMOTER, .via = "api"};
    struct mlo_db_conn *conn;
    char sql[600];
    promote(f, false);
    assert_mlo_ok(add(f, &promoter, "first", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    snprintf(sql, sizeof sql,
             "insert into mlopt.schedule (project_id, model_id, stage, name, cron, time_zone, recipe_name, "
             "recipe, priority, state, next_at, created_by) select project_id, model_id, stage, 's' || n, "
             "cron, time_zone, recipe_name, recipe, priority, state, next_at, created_by "
             "from mlopt.schedule, generate_series(2, %d) n",
             MLO_SCHEDULES_MAX);
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &f->err), &f->err);
    mlo_db_release(conn);
    assert_int_equal(add(f, &promoter, "more", "0 3 * * *", NULL, RECIPE_WATCH), MLO_EQUOTA);
    assert_non_null(strstr(f->err.message, "100 schedules"));
    assert_int_equal(count_rows(f, "select count(*) from mlopt.schedule where name = 'more'"), 0);
    assert_mlo_ok(
        mlo_schedule_set(f->pg->conn, &promoter, f->project, "s7", MLO_SCHEDULE_REMOVE, NULL, NULL, &f->err),
        &f->err);
    assert_mlo_ok(add(f, &promoter, "more", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
}

/* --- firing -------------------------------------------------------------------------------------------- */

struct server {
    struct mlo_db *db;
    const char *now;
    struct mlo_schedule_tick did;
    enum mlo_status status;
    struct mlo_error err;
};

static void *serve(void *arg)
{
    struct server *s = arg;
    s->status = mlo_schedule_tick(s->db, s->now, &s->did, &s->err);
    return NULL;
}

static void test_schedules__fire_once_whatever_number_of_servers(void **state)
{
    enum { SERVERS = 4, SCHEDULES = 6 };
    struct service_fixture *f = *state;
    struct server servers[SERVERS] = {{0}};
    pthread_t threads[SERVERS];
    char now[MLO_SCHEDULE_TIME_SIZE], name[16];
    int fired = 0;
    promote(f, false);
    for (int i = 0; i < SCHEDULES; i++) {
        snprintf(name, sizeof name, "s%d", i);
        assert_mlo_ok(add(f, &SYSTEM, name, "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    }
    time_of(f, "s0", "next_at", now);
    assert_int_equal(tick(f, NULL).fired, 0); /* by the database's clock nothing is due */
    for (int i = 0; i < SERVERS; i++) {
        servers[i].db = pg_fixture_pool(f->pg, MLO_ROLE_SERVER, 2);
        servers[i].now = now;
        assert_int_equal(pthread_create(&threads[i], NULL, serve, &servers[i]), 0);
    }
    for (int i = 0; i < SERVERS; i++) {
        pthread_join(threads[i], NULL);
        assert_mlo_ok(servers[i].status, &servers[i].err);
        fired += servers[i].did.fired;
        assert_int_equal(servers[i].did.skipped + servers[i].did.failed, 0);
        mlo_db_close(servers[i].db);
    }
    fired += tick(f, now).fired; /* what they left to each other */
    assert_int_equal(fired, SCHEDULES);
    assert_count(f, "select count(*) from mlopt.schedule_firing where state = 'running' and due_at = at",
                 SCHEDULES);
    assert_count(f, "select count(*) from mlopt.run", SCHEDULES);
    assert_count(f,
                 "select count(*) from mlopt.schedule where next_at = (select min(due_at) from "
                 "mlopt.schedule_firing) + interval '1 day'",
                 SCHEDULES);
}

static void test_schedules__measure_again_what_the_stage_holds(void **state)
{
    struct service_fixture *f = *state;
    promote(f, true);
    assert_mlo_ok(add(f, &SYSTEM, "nightly", "0 3 * * *", "Europe/Berlin", RECIPE_WATCH), &f->err);
    for (int round = 1; round <= 2; round++) {
        assert_int_equal(tick_due(f, "nightly").fired, 1);
        assert_counts(f, "nightly", round - 1, 0, 0, "running");
        finish(f, "nightly");
        assert_counts(f, "nightly", round, 0, 0, "succeeded");
        /* each variant, for its target, by the schedule, behind all other work; evidence is new each time */
        assert_count(
            f,
            "select count(*) from mlopt.run where created_by = 'schedule nightly' and priority = -10 and "
            "state = 'succeeded'",
            2 * round);
        assert_count(
            f,
            "select count(*) from mlopt.run r join mlopt.job j on j.run = r.id and j.step = 'evaluate' "
            "join mlopt.variant v on v.name = 'derived' and v.artifact = j.input "
            "where r.variant = 'derived' and r.target = 'cpu:avx2' and j.state = 'succeeded' and j.target = "
            "'cpu'",
            round);
        assert_count(f,
                     "select count(*) from mlopt.evidence e join mlopt.variant v on v.name = 'derived' "
                     "and v.artifact = e.artifact and e.metric = 'top1'",
                     round);
        assert_count(f, "select count(*) from mlopt.evidence where metric = 'latency.p50'", 4 * round);
    }
    /* the upload has no expectations in relation to itself */
    assert_count(f,
                 "select count(*) from mlopt.run where created_by like 'schedule%' and "
                 "json_array_length(recipe::json -> 'expect') = 1 and variant is null",
                 2);
    assert_count(f, "select count(*) from mlopt.schedule where last_success_at is not null and not failing",
                 1);
    assert_count(f, "select count(*) from mlopt.derivation", 1);
    assert_clean(f);
}

static void test_schedules__make_one_of_all_times_that_were_missed(void **state)
{
    struct service_fixture *f = *state;
    char now[MLO_SCHEDULE_TIME_SIZE];
    promote(f, false);
    assert_mlo_ok(add(f, &SYSTEM, "often", "*/10 * * * *", NULL, RECIPE_WATCH), &f->err);
    time_of(f, "often", "next_at + interval '3 days 7 minutes'", now);
    assert_int_equal(tick(f, now).fired, 1);
    assert_int_equal(tick(f, now).fired, 0);
    assert_count(f, "select count(*) from mlopt.schedule_firing", 1);
    assert_count(f,
                 "select count(*) from mlopt.schedule s join mlopt.schedule_firing f on s.next_at = "
                 "f.due_at + interval '3 days 10 minutes' and f.at = f.due_at + interval '3 days 7 minutes'",
                 1);
}

static void test_schedules__skip_while_the_one_before_runs(void **state)
{
    struct service_fixture *f = *state;
    json_t *out = NULL;
    promote(f, false);
    assert_mlo_ok(add(f, &SYSTEM, "often", "*/10 * * * *", NULL, RECIPE_WATCH), &f->err);
    assert_int_equal(tick_due(f, "often").fired, 1);
    assert_int_equal(tick_due(f, "often").skipped, 1);
    assert_counts(f, "often", 0, 0, 1, "skipped");
    assert_count(f, "select count(*) from mlopt.run", 1);
    assert_count(f,
                 "select count(*) from mlopt.schedule_firing where error::json ->> 'message' like "
                 "'firing %is still running' and ended_at is not null and state = 'skipped'",
                 1);
    assert_int_equal(mlo_schedule_run(f->pg->conn, &SYSTEM, f->project, "often", &out, &f->err),
                     MLO_ECONFLICT);
    finish(f, "often");
    assert_int_equal(tick_due(f, "often").fired, 1);
    assert_counts(f, "often", 1, 0, 1, "running");
}

static void test_schedules__rest_while_they_are_paused(void **state)
{
    struct service_fixture *f = *state;
    json_t *out = NULL;
    char later[MLO_SCHEDULE_TIME_SIZE];
    promote(f, false);
    assert_mlo_ok(add(f, &SYSTEM, "often", "*/10 * * * *", NULL, RECIPE_WATCH), &f->err);
    time_of(f, "often", "next_at + interval '1 day'", later);
    assert_mlo_ok(mlo_schedule_set(f->pg->conn, &SYSTEM, f->project, "often", MLO_SCHEDULE_PAUSE, "a holiday",
                                   &out, &f->err),
                  &f->err);
    assert_true(json_is_null(json_object_get(out, "next_at")));
    json_decref(out);
    assert_int_equal(tick(f, later).fired, 0);
    /* by hand it fires all the same */
    assert_mlo_ok(mlo_schedule_run(f->pg->conn, &SYSTEM, f->project, "often", &out, &f->err), &f->err);
    assert_true(json_is_null(json_object_get(out, "due_at")));
    assert_string_equal(mlo_json_str(out, "fired_by", ""), "system");
    assert_int_equal(json_array_size(json_object_get(out, "runs")), 1);
    json_decref(out);
    finish(f, "often");
    assert_mlo_ok(
        mlo_schedule_set(f->pg->conn, &SYSTEM, f->project, "often", MLO_SCHEDULE_RESUME, NULL, &out, &f->err),
        &f->err);
    assert_string_equal(mlo_json_str(out, "state", ""), "enabled");
    json_decref(out);
    assert_count(f, "select count(*) from mlopt.schedule where next_at > now()",
                 1); /* nothing is made up for */
    assert_int_equal(tick_due(f, "often").fired, 1);
    assert_count(f,
                 "select count(*) from mlopt.audit where convert_from(body, 'UTF8')::json ->> 'action' in "
                 "('schedule.create', 'schedule.pause', 'schedule.run', 'schedule.resume')",
                 4);
}

/* --- what broke ---------------------------------------------------------------------------------------- */

static int64_t watch_failures(struct service_fixture *f)
{
    const char *const events[] = {"schedule.fail"};
    const struct mlo_webhook_settings settings = {
        .url = "https://hooks.example.com/x", .events = events, .event_count = 1};
    char secret[MLO_WEBHOOK_SECRET_SIZE];
    json_t *out = NULL;
    assert_mlo_ok(
        mlo_webhook_create(f->pg->conn, &SYSTEM, NULL, f->project, &settings, secret, &out, &f->err),
        &f->err);
    int64_t id = mlo_json_i64(out, "id", 0);
    json_decref(out);
    return id;
}

#define TOLD                                                                                                 \
    "select count(*) from mlopt.webhook_delivery where type = 'schedule.fail' and audit_seq is not null"

static void test_schedules__tell_of_expectations_that_broke(void **state)
{
    struct service_fixture *f = *state;
    f->version = add_version(f, "m", "evaluate.drop_percent=3");
    promote(f, true);
    watch_failures(f);
    assert_mlo_ok(add(f, &SYSTEM, "nightly", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    assert_int_equal(tick_due(f, "nightly").fired, 1);
    finish(f, "nightly");
    assert_counts(f, "nightly", 0, 1, 0, "failed");
    assert_count(f, "select count(*) from mlopt.run where state = 'failed' and variant = 'derived'", 1);
    assert_count(f, "select count(*) from mlopt.run where state = 'succeeded' and variant is null", 1);
    assert_count(f, "select count(*) from mlopt.schedule where failing and last_success_at is null", 1);
    json_t *s = get(f, "nightly");
    const json_t *error = json_object_get(json_object_get(s, "last"), "error");
    assert_string_equal(mlo_json_str(error, "code", ""), "expectation-failed");
    assert_non_null(strstr(mlo_json_str(error, "message", ""), "(derived for cpu:avx2) failed: "));
    assert_non_null(strstr(mlo_json_str(error, "message", ""), "top1"));
    json_decref(s);
    assert_count(f, TOLD, 1);
    /* the stage is as it was */
    assert_count(f, "select count(*) from mlopt.stage_move", 1);
}

static void set_policy(struct service_fixture *f, const char *text, int64_t before)
{
    const struct mlo_policy_scope scope = {f->project, 0};
    assert_mlo_ok(mlo_policy_set(f->pg->conn, &SYSTEM, &scope, text, "test", &before, NULL, &f->err),
                  &f->err);
}

static void test_schedules__tell_of_gates_that_would_refuse_now(void **state)
{
    struct service_fixture *f = *state;
    promote(f, true);
    watch_failures(f);
    assert_mlo_ok(add(f, &SYSTEM, "nightly", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    /* what compares with the stage itself, and what is about moving, is not asked again */
    set_policy(f,
               "stages:\n  production:\n    - evidence: top1 >= 0.8\n    - evidence: latency.p50 < 0.5 * "
               "production\n"
               "    - approvals: 2\n",
               0);
    assert_int_equal(tick_due(f, "nightly").fired, 1);
    finish(f, "nightly");
    assert_counts(f, "nightly", 1, 0, 0, "succeeded");
    json_t *s = get(f, "nightly");
    assert_int_equal(json_array_size(json_object_get(json_object_get(s, "last"), "conditions")), 2);
    json_decref(s);
    assert_count(f, TOLD, 0);
    set_policy(f, "stages:\n  production:\n    - evidence: top1 >= 0.95\n", 1);
    assert_int_equal(tick_due(f, "nightly").fired, 1);
    finish(f, "nightly");
    assert_counts(f, "nightly", 1, 1, 0, "failed");
    s = get(f, "nightly");
    const json_t *error = json_object_get(json_object_get(s, "last"), "error");
    assert_string_equal(mlo_json_str(error, "code", ""), "gate-refused");
    assert_non_null(strstr(mlo_json_str(error, "message", ""), "\"top1 >= 0.95\" for any: top1 is 0.9"));
    json_decref(s);
    assert_count(f, TOLD, 1);
    assert_count(f, "select count(*) from mlopt.run where state = 'failed'", 0);
    set_policy(f, "stages:\n  production:\n    - evidence: top1 >= 0.8\n", 2);
    assert_int_equal(tick_due(f, "nightly").fired, 1);
    finish(f, "nightly");
    assert_count(f, "select count(*) from mlopt.schedule where not failing and succeeded = 2 and failed = 1",
                 1);
}

static void test_schedules__tell_when_there_is_nothing_to_measure(void **state)
{
    struct service_fixture *f = *state;
    json_t *out = NULL;
    watch_failures(f);
    assert_mlo_ok(add(f, &SYSTEM, "nightly", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    assert_int_equal(tick_due(f, "nightly").failed, 1);
    assert_counts(f, "nightly", 0, 1, 0, "failed");
    assert_count(f,
                 "select count(*) from mlopt.schedule_firing where error::json ->> 'message' = "
                 "'production of p/m is empty: there is nothing to measure' and release is null",
                 1);
    assert_count(f, TOLD, 1);
    assert_int_equal(tick_due(f, "nightly").failed, 1); /* the next day */
    assert_int_equal(mlo_schedule_run(f->pg->conn, &SYSTEM, f->project, "nightly", &out, &f->err),
                     MLO_ENOTFOUND);
    /* a zone that the system knows no more: there is no next time */
    assert_int_equal(
        count_rows(f, "with x as (update mlopt.schedule set time_zone = 'Mars/Olympus' returning 1) "
                      "select count(*) from x"),
        1);
    promote(f, false);
    assert_int_equal(tick_due(f, "nightly").failed, 1);
    assert_count(
        f,
        "select count(*) from mlopt.schedule where state = 'paused' and state_reason like '%Mars/Olympus%' "
        "and failed = 3",
        1);
    assert_count(f, "select count(*) from mlopt.run", 0);
}

/* --- in nobody's way ----------------------------------------------------------------------------------- */

/* As the database's owner, what no program does. */
static void alter(struct service_fixture *f, const char *sql)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->pg->owner, &conn, &f->err), &f->err);
    PGresult *result = PQexec(mlo_db_pg(conn), sql);
    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(mlo_db_pg(conn)));
    PQclear(result);
    mlo_db_release(conn);
}

static void run_all(struct service_fixture *f)
{
    struct test_worker w;
    start_worker(f, &w, 2);
    wait_until(count_rows(f, "select count(*) from mlopt.run where finished_at is null") == 0);
    stop_worker(&w);
}

static void test_schedules__go_on_behind_one_that_fails(void **state)
{
    struct service_fixture *f = *state;
    struct mlo_schedule_tick did;
    char now[MLO_SCHEDULE_TIME_SIZE];
    promote(f, false);
    assert_mlo_ok(add(f, &SYSTEM, "bad", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    assert_mlo_ok(add(f, &SYSTEM, "good", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    alter(f, "create function mlopt.refuse_bad() returns trigger language plpgsql as $$ begin if "
             "new.schedule_id = (select id from mlopt.schedule where name = 'bad') then raise exception 'no "
             "firing of bad'; end if; return new; end $$");
    /* it can neither be fired nor can that be recorded, nor can it be paused for that */
    alter(f, "create trigger refuse_bad before insert on mlopt.schedule_firing for each row execute function "
             "mlopt.refuse_bad()");
    time_of(f, "bad", "next_at", now);
    assert_int_not_equal(mlo_schedule_tick(f->pg->server, now, &did, &f->err), MLO_OK);
    assert_non_null(strstr(f->err.message, "schedule bad of p/m"));
    assert_int_equal(did.fired, 1);
    assert_counts(f, "good", 0, 0, 0, "running");
    assert_counts(f, "bad", 0, 0, 0, "none");
    alter(f, "drop trigger refuse_bad on mlopt.schedule_firing");
    assert_int_equal(tick(f, now).fired, 1); /* it was kept */
    run_all(f);
    /* nor ended */
    alter(f, "create trigger refuse_bad before update on mlopt.schedule_firing for each row execute function "
             "mlopt.refuse_bad()");
    assert_int_not_equal(mlo_schedule_tick(f->pg->server, now, &did, &f->err), MLO_OK);
    assert_non_null(strstr(f->err.message, "schedule bad of p/m"));
    assert_int_equal(did.ended, 1);
    assert_counts(f, "good", 1, 0, 0, "succeeded");
    assert_counts(f, "bad", 0, 0, 0, "running");
    alter(f, "drop trigger refuse_bad on mlopt.schedule_firing");
    assert_int_equal(tick(f, now).ended, 1);
    assert_counts(f, "bad", 1, 0, 0, "succeeded");
}

static void test_schedules__fail_where_nobody_can_say_how_they_ended(void **state)
{
    struct service_fixture *f = *state;
    promote(f, false);
    watch_failures(f);
    set_policy(f, "stages:\n  production:\n    - evidence: top1 >= 0.8\n", 0);
    assert_mlo_ok(add(f, &SYSTEM, "nightly", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    assert_int_equal(tick_due(f, "nightly").fired, 1);
    /* a policy of a program that knew more */
    alter(f, "alter table mlopt.policy disable trigger user");
    alter(f, "update mlopt.policy set text = 'stages: [nothing that is known]'");
    alter(f, "alter table mlopt.policy enable trigger user");
    finish(f, "nightly");
    assert_counts(f, "nightly", 0, 1, 0, "failed");
    assert_count(f,
                 "select count(*) from mlopt.schedule_firing where error::json ->> 'message' <> '' and "
                 "error::json ->> 'code' <> ''",
                 1);
    assert_count(f, TOLD, 1);
    assert_count(f, "select count(*) from mlopt.run where state = 'succeeded'", 1);
}

static void test_schedules__fire_once_for_a_time_that_comes_again(void **state)
{
    struct service_fixture *f = *state;
    static const char AGAIN[] = "update mlopt.schedule set next_at = (select min(due_at) from "
                                "mlopt.schedule_firing)";
    promote(f, false);
    assert_mlo_ok(add(f, &SYSTEM, "nightly", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    assert_int_equal(tick_due(f, "nightly").fired, 1);
    for (int over = 0; over < 2; over++) { /* while it runs, and afterwards */
        alter(f, AGAIN); /* as a clock that was put back, and a schedule that was resumed then */
        struct mlo_schedule_tick did = tick_due(f, "nightly");
        assert_int_equal(did.fired + did.skipped + did.failed, 0);
        assert_count(f,
                     "select count(*) from mlopt.schedule s join mlopt.schedule_firing f on s.next_at = "
                     "f.due_at + interval '1 day' where s.state = 'enabled'",
                     1);
        assert_counts(f, "nightly", over, 0, 0, over ? "succeeded" : "running");
        if (!over)
            finish(f, "nightly");
    }
    /* nor is what cannot be fired paused for it */
    alter(f, "update mlopt.schedule set recipe = '{}'");
    alter(f, AGAIN);
    tick_due(f, "nightly");
    assert_counts(f, "nightly", 1, 0, 0, "succeeded");
    assert_int_equal(tick_due(f, "nightly").failed, 1);
    assert_counts(f, "nightly", 1, 1, 0, "failed");
    assert_count(f, "select count(*) from mlopt.schedule where state = 'enabled'", 1);
}

static void test_schedules__count_what_was_cancelled(void **state)
{
    struct service_fixture *f = *state;
    promote(f, false);
    assert_mlo_ok(add(f, &SYSTEM, "nightly", "0 3 * * *", NULL, RECIPE_WATCH), &f->err);
    assert_int_equal(tick_due(f, "nightly").fired, 1);
    int64_t run = count_rows(f, "select max(id) from mlopt.run");
    assert_mlo_ok(mlo_run_cancel(f->pg->conn, &SYSTEM, run, "not now", &f->err), &f->err);
    assert_int_equal(tick(f, NULL).ended, 1);
    assert_counts(f, "nightly", 0, 0, 0, "cancelled");
    assert_count(f, "select count(*) from mlopt.schedule where cancelled = 1 and not failing", 1);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_schedules__know_zones_and_their_changes),
        SERVICE_TEST(test_schedules__are_checked_when_they_are_added),
        SERVICE_TEST(test_schedules__are_no_more_than_a_project_may_have),
        SERVICE_TEST(test_schedules__fire_once_whatever_number_of_servers),
        SERVICE_TEST(test_schedules__measure_again_what_the_stage_holds),
        SERVICE_TEST(test_schedules__make_one_of_all_times_that_were_missed),
        SERVICE_TEST(test_schedules__skip_while_the_one_before_runs),
        SERVICE_TEST(test_schedules__rest_while_they_are_paused),
        SERVICE_TEST(test_schedules__tell_of_expectations_that_broke),
        SERVICE_TEST(test_schedules__tell_of_gates_that_would_refuse_now),
        SERVICE_TEST(test_schedules__tell_when_there_is_nothing_to_measure),
        SERVICE_TEST(test_schedules__count_what_was_cancelled),
        SERVICE_TEST(test_schedules__go_on_behind_one_that_fails),
        SERVICE_TEST(test_schedules__fail_where_nobody_can_say_how_they_ended),
        SERVICE_TEST(test_schedules__fire_once_for_a_time_that_comes_again),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
