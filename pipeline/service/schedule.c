/* Schedules: added, paused, resumed, removed, shown. */
#include <stdio.h>
#include <string.h>

#include "pipeline/service/schedule_impl.h"

enum { S_ADD, S_NAMED, S_SET, S_LIST, S_GET, S_FIRINGS, S_FIRING, S_MODEL, S_COUNT };

#define TIME(column) "to_char(" column ", 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"
#define FIRING                                                                                               \
    "json_build_object('id', f.id, 'due_at', " TIME("f.due_at") ", 'at', " TIME(                             \
        "f.at") ", 'fired_by', f.fired_by, 'state', f.state, 'release', f.release, 'version', f.version, "   \
                "'runs', (select coalesce(json_agg(json_build_object('run', x.run_id, 'target', x.target, "  \
                "'variant', x.variant, 'state', u.state) order by x.target), '[]') from schedule_run x "     \
                "join run u on u.id = x.run_id where x.firing_id = f.id), 'error', f.error::json, "          \
                "'conditions', f.conditions::json, 'ended_at', " TIME("f.ended_at") ")"
#define COLUMNS                                                                                              \
    "s.id, s.name, m.name as model, s.stage, s.cron, s.time_zone, s.recipe_name, s.priority, s.state, "      \
    "s.state_reason, s.next_at, s.succeeded, s.failed, s.skipped, s.cancelled, s.failing, "                  \
    "s.last_success_at, (select " FIRING " from schedule_firing f where f.schedule_id = s.id "               \
    "order by f.id desc limit 1) as last, s.created_at, s.created_by"

const struct mlo_sql MLO_SCHEDULE_SQL[] = {
    [S_ADD] =
        {"schedule_add",
         "insert into schedule (project_id, model_id, stage, name, cron, time_zone, recipe_name, recipe, "
         "priority, state, next_at, created_by) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
         12},
    [S_NAMED] = {"schedule_named",
                 "select " MLO_SCHEDULE_COLUMNS
                 "where s.project_id = $1 and s.name = $2 and s.state <> 'removed' for update of s",
                 2},
    [S_SET] = {"schedule_set",
               "update schedule set state = $2, next_at = $3::timestamptz, state_reason = null where id = $1",
               3},
    [S_LIST] = {"schedule_list",
                "select " COLUMNS " from schedule s join model m on m.id = s.model_id "
                "where s.project_id = $1 and s.state <> 'removed' order by s.name",
                1},
    [S_GET] = {"schedule_get",
               "select " COLUMNS ", s.recipe from schedule s join model m on m.id = s.model_id "
               "where s.project_id = $1 and s.name = $2 and s.state <> 'removed'",
               2},
    [S_FIRINGS] = {"schedule_firings",
                   "select " FIRING " as firing from schedule_firing f where f.schedule_id = $1 "
                   "and ($2::bigint = 0 or f.id < $2) order by f.id desc limit $3",
                   3},
    [S_FIRING] = {"schedule_one_firing", "select " FIRING " as firing from schedule_firing f where f.id = $1",
                  1},
    [S_MODEL] = {"schedule_model",
                 "select p.name, m.name from model m join project p on p.id = m.project_id "
                 "where m.id = $2 and m.project_id = $1",
                 2},
    [S_COUNT] = {"schedules_kept",
                 "select count(*) from schedule where project_id = $1 and state <> 'removed'", 1},
};
const size_t MLO_SCHEDULE_SQL_COUNT = MLO_COUNT(MLO_SCHEDULE_SQL);

/* --- what they share ----------------------------------------------------------------------------------- */

/* Who watches over production is who promotes to it. */
static enum mlo_role role_for(const char *stage)
{
    return strcmp(stage, "production") == 0 ? MLO_PROMOTER : MLO_SUBMITTER;
}

static enum mlo_status none(const char *name, struct mlo_error *err)
{
    mlo_error_set(err, MLO_ENOTFOUND, "this project has no schedule '%.64s'", name);
    mlo_error_hint(err, "mlopt schedule list shows those that it has");
    return MLO_ENOTFOUND;
}

void mlo_schedule_read_row(struct mlo_schedule_row *s)
{
    const struct mlo_rows *r = &s->rows;
    s->id = mlo_rows_i64(r, 0, 0);
    s->project = mlo_rows_i64(r, 0, 1);
    s->model = mlo_rows_i64(r, 0, 2);
    s->name = mlo_rows_text(r, 0, 3);
    s->stage = mlo_rows_text(r, 0, 4);
    s->cron = mlo_rows_text(r, 0, 5);
    s->time_zone = mlo_rows_text(r, 0, 6);
    s->recipe = mlo_rows_text(r, 0, 7);
    s->state = mlo_rows_text(r, 0, 8);
    s->next_at = mlo_rows_text(r, 0, 9);
    s->priority = (int)mlo_rows_i64(r, 0, 10);
    s->project_name = mlo_rows_text(r, 0, 11);
    s->model_name = mlo_rows_text(r, 0, 12);
}

void mlo_schedule_label(const struct mlo_schedule_row *row, char out[MLO_SCHEDULE_LABEL_SIZE])
{
    snprintf(out, MLO_SCHEDULE_LABEL_SIZE, "schedule %s of %s/%s", row->name, row->project_name,
             row->model_name);
}

enum mlo_status mlo_schedule_lock(struct mlo_db_conn *conn, int64_t project, const char *name,
                                  struct mlo_schedule_row *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project);
    mlo_param_text(&p, name);
    enum mlo_status status = mlo_db_exec(conn, &MLO_SCHEDULE_SQL[S_NAMED], &p, &out->rows, err);
    if (status == MLO_OK && mlo_rows_count(&out->rows) == 0)
        return none(name, err);
    if (status == MLO_OK)
        mlo_schedule_read_row(out);
    return status;
}

enum mlo_status mlo_schedule_audit(struct mlo_db_conn *conn, const struct mlo_schedule_row *row,
                                   const struct mlo_actor *actor, const char *action, json_t *after_take,
                                   const char *reason, struct mlo_error *err)
{
    char object[100], on[320];
    snprintf(object, sizeof object, "schedule %s", row->name);
    snprintf(on, sizeof on, "%s/%s:%s", row->project_name, row->model_name, row->stage);
    bool whole = after_take && json_object_set_new(after_take, "on", json_string(on)) == 0;
    const struct mlo_audit_event event = {
        .action = action, .object = object, .after = after_take, .reason = reason};
    enum mlo_status status =
        whole ? mlo_audit_append(conn, row->project, actor, &event, NULL, err) : mlo_error_nomem(err);
    json_decref(after_take);
    return status;
}

/* The member of the first row, or the row itself where it is NULL. */
static enum mlo_status read_one(struct mlo_db_conn *conn, int statement, const struct mlo_params *p,
                                const char *member, json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_exec(conn, &MLO_SCHEDULE_SQL[statement], p, &rows, err);
    json_t *row = NULL;
    *out = NULL;
    if (status == MLO_OK && mlo_rows_count(&rows) == 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is none");
    else if (status == MLO_OK && !(row = mlo_rows_json(&rows, 0)))
        status = mlo_error_nomem(err);
    if (row)
        *out = json_incref(member ? json_object_get(row, member) : row);
    json_decref(row);
    mlo_rows_clear(&rows);
    return status;
}

/* --- adding -------------------------------------------------------------------------------------------- */

static enum mlo_status check_recipe(const struct mlo_recipe *recipe, struct mlo_error *err)
{
    for (size_t i = 0; i < recipe->step_count; i++) {
        const struct mlo_step *step = mlo_step_find(recipe->steps[i].name);
        if (step && step->kind == MLO_STEP_OBSERVE && !step->makes_plans && !step->makes_document &&
            !step->reads_run)
            continue;
        mlo_error_set(err, MLO_EINVAL, "the step '%s' makes something; a schedule measures what is there",
                      recipe->steps[i].name);
        mlo_error_where(err, "recipe, line %d", recipe->steps[i].line);
        mlo_error_hint(err, "the recipe of a schedule has the steps evaluate and benchmark alone");
        return MLO_EINVAL;
    }
    if (recipe->step_count == 0)
        return mlo_error_set(err, MLO_EINVAL, "the recipe '%s' has no steps", recipe->name);
    return MLO_OK;
}

static bool name_valid(const char *name)
{
    size_t n = strlen(name);
    return n >= 1 && n <= 64 && !strchr("._-", name[0]) &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

static enum mlo_status check_request(const struct mlo_schedule_request *r, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (!name_valid(r->name)) {
        status = mlo_error_set(err, MLO_EINVAL, "'%.64s' is no name for a schedule", r->name);
        mlo_error_where(err, "field 'name'");
        mlo_error_hint(
            err, "up to 64 lowercase letters, digits, '.', '_' and '-', beginning with one of the first two");
    } else if (strcmp(r->stage, "staging") != 0 && strcmp(r->stage, "production") != 0) {
        status =
            mlo_error_set(err, MLO_EINVAL, "there is no stage '%.40s': staging and production are", r->stage);
        mlo_error_where(err, "field 'stage'");
    } else if (r->priority < -100 || r->priority > 100) {
        status = mlo_error_set(err, MLO_EINVAL, "priority is %d, not -100 to 100", r->priority);
        mlo_error_where(err, "field 'priority'");
    } else {
        status = check_recipe(r->recipe, err);
    }
    return status;
}

struct add {
    const struct mlo_schedule_request *request;
    const char *time_zone, *recipe; /* canonical */
    struct mlo_cron cron;
    json_t *out;
};

static enum mlo_status insert(struct mlo_db_conn *conn, const struct add *add, const char *next_at,
                              struct mlo_error *err)
{
    const struct mlo_schedule_request *r = add->request;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, r->project);
    mlo_param_i64(&p, r->model);
    mlo_param_text(&p, r->stage);
    mlo_param_text(&p, r->name);
    mlo_param_text(&p, r->cron);
    mlo_param_text(&p, add->time_zone);
    mlo_param_text(&p, r->recipe->name);
    mlo_param_text(&p, add->recipe);
    mlo_param_i64(&p, r->priority);
    mlo_param_text(&p, r->paused ? "paused" : "enabled");
    mlo_param_text(&p, r->paused ? NULL : next_at);
    mlo_param_text(&p, r->actor->name);
    enum mlo_status status = mlo_db_exec(conn, &MLO_SCHEDULE_SQL[S_ADD], &p, NULL, err);
    if (status == MLO_EEXISTS) {
        mlo_error_set(err, MLO_EEXISTS, "this project has a schedule '%s' already", r->name);
        mlo_error_hint(err, "remove that one first, or choose another name");
    }
    return status;
}

/* Asked for behind the audit entry: its chain lets one transaction of the project after the other count. */
static enum mlo_status check_count(struct mlo_db_conn *conn, int64_t project, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project);
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_SQL[S_COUNT], &p, &rows, err));
    if (mlo_rows_i64(&rows, 0, 0) > MLO_SCHEDULES_MAX) {
        status = mlo_error_set(err, MLO_EQUOTA, "this project has %d schedules already, as many as it may",
                               MLO_SCHEDULES_MAX);
        mlo_error_hint(
            err, "remove one that nobody needs (`mlopt schedule list`), or measure more in one of them");
    }
out:
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status add_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status;
    struct add *add = arg;
    const struct mlo_schedule_request *r = add->request;
    struct mlo_schedule_row row = {.project = r->project,
                                   .model = r->model,
                                   .name = r->name,
                                   .stage = r->stage,
                                   .cron = r->cron,
                                   .time_zone = add->time_zone,
                                   .recipe = add->recipe,
                                   .priority = r->priority};
    struct mlo_params p = MLO_PARAMS_INIT;
    char next_at[MLO_SCHEDULE_TIME_SIZE];
    json_decref(add->out);
    add->out = NULL;
    mlo_param_i64(&p, r->project);
    mlo_param_i64(&p, r->model);
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_SQL[S_MODEL], &p, &row.rows, err));
    if (mlo_rows_count(&row.rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no such model in this project");
        goto out;
    }
    row.project_name = mlo_rows_text(&row.rows, 0, 0);
    row.model_name = mlo_rows_text(&row.rows, 0, 1);
    MLO_TRY(mlo_schedule_zone(conn, add->time_zone, err));
    MLO_TRY(mlo_schedule_next(conn, &add->cron, add->time_zone, NULL, next_at, err));
    MLO_TRY(mlo_schedule_try(conn, &row, r->actor, err));
    MLO_TRY(insert(conn, add, next_at, err));
    MLO_TRY(
        mlo_schedule_audit(conn, &row, r->actor, "schedule.create",
                           json_pack("{s:s, s:s, s:s, s:s}", "cron", r->cron, "time_zone", add->time_zone,
                                     "recipe", r->recipe->name, "state", r->paused ? "paused" : "enabled"),
                           NULL, err));
    MLO_TRY(check_count(conn, r->project, err));
    MLO_TRY(mlo_schedule_get(conn, r->project, r->name, &add->out, err));
out:
    mlo_rows_clear(&row.rows);
    return status;
}

enum mlo_status mlo_schedule_add(struct mlo_db_conn *conn, const struct mlo_schedule_request *request,
                                 json_t **out, struct mlo_error *err)
{
    struct add add = {.request = request, .time_zone = request->time_zone ? request->time_zone : "UTC"};
    struct mlo_buf recipe = MLO_BUF_INIT;
    enum mlo_status status;
    MLO_TRY(check_request(request, err));
    MLO_TRY(mlo_actor_require_stage(request->actor, request->project, request->stage,
                                    role_for(request->stage), err));
    MLO_TRY(mlo_cron_parse(request->cron, &add.cron, err));
    mlo_json_canonical(request->recipe->canonical, &recipe);
    add.recipe = mlo_buf_str(&recipe);
    status = mlo_buf_ok(&recipe) ? mlo_service_tx(conn, add_tx, &add, err) : mlo_error_nomem(err);
    if (status == MLO_OK)
        *out = add.out;
    else
        json_decref(add.out);
out:
    mlo_buf_clear(&recipe);
    return status;
}

/* --- changing ------------------------------------------------------------------------------------------ */

static const struct {
    const char *state, *action;
} CHANGES[] = {[MLO_SCHEDULE_PAUSE] = {"paused", "schedule.pause"},
               [MLO_SCHEDULE_RESUME] = {"enabled", "schedule.resume"},
               [MLO_SCHEDULE_REMOVE] = {"removed", "schedule.remove"}};

struct set {
    const struct mlo_actor *actor;
    int64_t project;
    const char *name, *reason;
    enum mlo_schedule_change change;
    json_t *out;
};

static enum mlo_status set_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status;
    struct set *set = arg;
    struct mlo_schedule_row row = {.id = 0};
    struct mlo_cron cron;
    struct mlo_params p = MLO_PARAMS_INIT;
    char next_at[MLO_SCHEDULE_TIME_SIZE];
    const char *state = CHANGES[set->change].state;
    json_decref(set->out);
    set->out = NULL;
    MLO_TRY(mlo_schedule_lock(conn, set->project, set->name, &row, err));
    MLO_TRY(mlo_actor_require_stage(set->actor, set->project, row.stage, role_for(row.stage), err));
    if (strcmp(row.state, state) != 0) {
        mlo_param_i64(&p, row.id);
        mlo_param_text(&p, state);
        mlo_param_null(&p);
        if (set->change == MLO_SCHEDULE_RESUME) {
            MLO_TRY(mlo_schedule_zone(conn, row.time_zone, err));
            MLO_TRY(mlo_cron_parse(row.cron, &cron, err));
            MLO_TRY(mlo_schedule_next(conn, &cron, row.time_zone, NULL, next_at, err));
            p.count = 2;
            mlo_param_text(&p, next_at);
        }
        MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_SQL[S_SET], &p, NULL, err));
        MLO_TRY(mlo_schedule_audit(conn, &row, set->actor, CHANGES[set->change].action,
                                   json_pack("{s:s}", "state", state), set->reason, err));
    }
    if (set->change == MLO_SCHEDULE_REMOVE)
        set->out = json_null();
    else
        MLO_TRY(mlo_schedule_get(conn, set->project, set->name, &set->out, err));
out:
    mlo_rows_clear(&row.rows);
    return status;
}

enum mlo_status mlo_schedule_set(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project,
                                 const char *name, enum mlo_schedule_change change, const char *reason,
                                 json_t **out, struct mlo_error *err)
{
    struct set set = {.actor = actor,
                      .project = project,
                      .name = name,
                      .change = change,
                      .reason = reason && *reason ? reason : NULL};
    enum mlo_status status = mlo_service_tx(conn, set_tx, &set, err);
    if (status == MLO_OK && out)
        *out = set.out;
    else
        json_decref(set.out);
    return status;
}

/* --- firing by hand ------------------------------------------------------------------------------------ */

static enum mlo_status run_tx(struct mlo_db_conn *conn, void *arg, struct mlo_error *err)
{
    enum mlo_status status;
    struct set *set = arg;
    struct mlo_schedule_row row = {.id = 0};
    int64_t firing;
    json_decref(set->out);
    set->out = NULL;
    MLO_TRY(mlo_schedule_lock(conn, set->project, set->name, &row, err));
    MLO_TRY(mlo_actor_require(set->actor, set->project, MLO_SUBMITTER, err));
    MLO_TRY(mlo_schedule_fire(conn, &row, NULL, NULL, set->actor, &firing, err));
    MLO_TRY(mlo_schedule_firing_get(conn, firing, &set->out, err));
out:
    mlo_rows_clear(&row.rows);
    return status;
}

enum mlo_status mlo_schedule_run(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project,
                                 const char *name, json_t **out, struct mlo_error *err)
{
    struct set set = {.actor = actor, .project = project, .name = name};
    enum mlo_status status = mlo_service_tx(conn, run_tx, &set, err);
    if (status == MLO_OK)
        *out = set.out;
    else
        json_decref(set.out);
    return status;
}

/* --- showing ------------------------------------------------------------------------------------------- */

enum mlo_status mlo_schedule_list(struct mlo_db_conn *conn, int64_t project, json_t **out,
                                  struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project);
    enum mlo_status status = mlo_db_exec(conn, &MLO_SCHEDULE_SQL[S_LIST], &p, &rows, err);
    if (status == MLO_OK && !(*out = mlo_rows_json_all(&rows)))
        status = mlo_error_nomem(err);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_schedule_get(struct mlo_db_conn *conn, int64_t project, const char *name, json_t **out,
                                 struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project);
    mlo_param_text(&p, name);
    enum mlo_status status = read_one(conn, S_GET, &p, NULL, out, err);
    return status == MLO_ENOTFOUND ? none(name, err) : status;
}

enum mlo_status mlo_schedule_firing_get(struct mlo_db_conn *conn, int64_t firing, json_t **out,
                                        struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, firing);
    return read_one(conn, S_FIRING, &p, "firing", out, err);
}

enum mlo_status mlo_schedule_firings(struct mlo_db_conn *conn, int64_t project, const char *name,
                                     int64_t before, int limit, json_t **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_rows rows = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *schedule = NULL, *all = NULL, *items = json_array(), *row;
    size_t i;
    char next[24] = "";
    limit = limit > 0 ? MLO_MIN(limit, MLO_PAGE_MAX) : MLO_PAGE_DEFAULT;
    MLO_TRY(mlo_schedule_get(conn, project, name, &schedule, err));
    mlo_param_i64(&p, mlo_json_i64(schedule, "id", 0));
    mlo_param_i64(&p, before);
    mlo_param_i64(&p, limit + 1); /* one more tells whether there is a next page */
    MLO_TRY(mlo_db_exec(conn, &MLO_SCHEDULE_SQL[S_FIRINGS], &p, &rows, err));
    all = mlo_rows_json_all(&rows);
    json_array_foreach(all, i, row)
    {
        json_t *firing = json_object_get(row, "firing");
        if (i == (size_t)limit)
            snprintf(next, sizeof next, "%lld",
                     (long long)mlo_json_i64(json_array_get(items, i - 1), "id", 0));
        else
            json_array_append(items, firing);
    }
    *out = json_pack("{s:O, s:s?}", "items", items, "next", next[0] ? next : NULL);
    if (!all || !*out)
        status = mlo_error_nomem(err);
out:
    mlo_rows_clear(&rows);
    json_decref(schedule);
    json_decref(all);
    json_decref(items);
    return status;
}
