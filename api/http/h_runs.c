/* Runs: submit, look, follow, cancel, take up again. */
#include <string.h>

#include "api/http/handlers_impl.h"

#define POLL_MS 150
#define WAIT_MAX_MS 30000

enum mlo_status mlo_request_recipe(const json_t *body, struct mlo_recipe **out, struct mlo_error *err)
{
    const char *text, *name, *file;
    json_t *assignment;
    size_t size = 0, i;
    enum mlo_status status;
    MLO_TRY(mlo_json_get_str(body, "recipe", "", &text, err));
    MLO_TRY(mlo_json_get_str(body, "recipe_name", "", &name, err));
    MLO_TRY(mlo_json_get_str(body, "recipe_file", "recipe", &file, err));
    if (!text[0] == !name[0]) {
        status = mlo_error_set(err, MLO_EINVAL, "give either 'recipe' (YAML text) or 'recipe_name'");
        mlo_error_where(err, "request body");
        goto out;
    }
    if (name[0]) {
        text = mlo_recipe_builtin(name, &size);
        file = name;
        if (!text) {
            size_t count;
            const char *const *names = mlo_recipe_builtin_names(&count);
            status = mlo_error_set(err, MLO_ENOTFOUND, "there is no built-in recipe '%.60s'", name);
            mlo_error_where(err, "field 'recipe_name'");
            mlo_error_suggest(err, name, names, count);
            goto out;
        }
    } else {
        size = strlen(text);
    }
    MLO_TRY(mlo_recipe_parse(text, size, file, out, err));
    json_t *set = json_object_get(body, "set");
    if (set && !json_is_array(set) && !json_is_null(set)) {
        status = mlo_error_set(err, MLO_EINVAL, "'set' must be an array of assignments");
        mlo_error_where(err, "field 'set'");
        mlo_error_hint(err, "for example [\"quantize.calibrator=percentile\"]");
        goto out;
    }
    json_array_foreach(set, i, assignment)
        MLO_TRY(mlo_recipe_set(*out, json_is_string(assignment) ? json_string_value(assignment) : "", err));
out:
    return status;
}

/* How a run is to be done; *recipe is the caller's. */
static enum mlo_status read_how(const json_t *body, struct mlo_recipe **recipe, struct mlo_run_request *out,
                                struct mlo_error *err)
{
    int64_t priority, normal = 0;
    enum mlo_status status;
    MLO_TRY(mlo_json_get_i64(body, "priority", &normal, &priority, err));
    if (priority < -100 || priority > 100) {
        status = mlo_error_set(err, MLO_EINVAL, "priority is %lld, not -100 to 100", (long long)priority);
        mlo_error_where(err, "field 'priority'");
        goto out;
    }
    MLO_TRY(mlo_request_recipe(body, recipe, err));
    out->recipe = *recipe;
    out->priority = (int)priority;
out:
    return status;
}

/* What it is done on: "model" and "version" of an object. */
static enum mlo_status read_on(struct mlo_request *req, const json_t *on, struct mlo_run_request *out,
                               int64_t *number, struct mlo_error *err)
{
    struct mlo_version_info version;
    const char *name;
    int64_t model, latest = 0;
    enum mlo_status status;
    MLO_TRY(mlo_json_get_str(on, "model", NULL, &name, err));
    MLO_TRY(mlo_json_get_i64(on, "version", &latest, number, err));
    MLO_TRY(mlo_model_find(req->conn, out->project, name, &model, err));
    MLO_TRY(mlo_version_find(req->conn, model, *number, &version, err));
    out->version = version.id;
    *number = version.number;
out:
    return status;
}

/* What a run is submitted or planned with; *recipe is the caller's. */
static enum mlo_status read_request(struct mlo_request *req, const json_t *body,
                                    const struct mlo_actor *actor, struct mlo_recipe **recipe,
                                    struct mlo_run_request *out, struct mlo_error *err)
{
    const char *model;
    int64_t number, latest = 0;
    enum mlo_status status;
    *out = (struct mlo_run_request){.actor = actor};
    MLO_TRY(mlo_json_get_str(body, "model", NULL, &model, err));
    MLO_TRY(mlo_json_get_i64(body, "version", &latest, &number, err));
    MLO_TRY(read_how(body, recipe, out, err));
    MLO_TRY(mlo_request_project(req, &out->project, err));
    MLO_TRY(read_on(req, body, out, &number, err));
out:
    return status;
}

enum mlo_status mlo_view_submit(struct mlo_request *req, const json_t *body, int64_t *project, int64_t *run,
                                struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_run_request request;
    struct mlo_recipe *recipe = NULL;
    enum mlo_status status;
    MLO_TRY(read_request(req, body, &actor, &recipe, &request, err));
    *project = request.project;
    MLO_TRY(mlo_run_submit(req->conn, &request, run, err));
out:
    mlo_recipe_free(recipe);
    return status;
}

enum mlo_status h_run_create(struct mlo_request *req, struct mlo_error *err)
{
    json_t *body, *value = NULL;
    int64_t project, run;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_view_submit(req, body, &project, &run, err));
    MLO_TRY(mlo_view_run(req->conn, project, run, &value, err));
    mlo_reply_header(req, "Location", "/v1/projects/%s/runs/%lld", mlo_request_param(req, "p"),
                     (long long)run);
    status = mlo_reply_json(req, 201, value, err);
    value = NULL;
out:
    json_decref(value);
    return status;
}

enum mlo_status h_plan(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_run_request request;
    struct mlo_recipe *recipe = NULL;
    json_t *body, *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(read_request(req, body, &actor, &recipe, &request, err));
    MLO_TRY(mlo_run_plan(req->conn, &request, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    mlo_recipe_free(recipe);
    return status;
}

enum mlo_status h_runs(struct mlo_request *req, struct mlo_error *err)
{
    static const char *const states[] = {"queued", "running", "succeeded", "failed", "cancelled"};
    const char *model = mlo_request_query(req, "model"), *cursor;
    struct mlo_run_filter filter = {.state = mlo_request_query(req, "state")};
    struct mlo_page page;
    json_t *value = NULL;
    bool known = !filter.state;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    cursor = page.cursor;
    for (size_t i = 0; i < MLO_COUNT(states) && !known; i++)
        known = strcmp(filter.state, states[i]) == 0;
    if (!known || (cursor && !mlo_str_to_i64(cursor, &filter.before))) {
        status = mlo_error_set(err, MLO_EINVAL, "%s",
                               known ? "the cursor is not one that this list gave"
                                     : "there is no such state of a run");
        mlo_error_where(err, "query argument '%s'", known ? "cursor" : "state");
        mlo_error_hint(err, known ? "begin again without a cursor"
                                  : "one of queued, running, succeeded, failed, cancelled");
        goto out;
    }
    filter.limit = (int)page.limit;
    MLO_TRY(mlo_request_project(req, &filter.project, err));
    if (model)
        MLO_TRY(mlo_model_find(req->conn, filter.project, model, &filter.model, err));
    MLO_TRY(mlo_view_runs(req->conn, &filter, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

/* The run that {id} names, when the project has it. */
static enum mlo_status run_param(struct mlo_request *req, int64_t *project, int64_t *run,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    if (!mlo_str_to_i64(mlo_request_param(req, "id"), run) || *run < 1)
        return mlo_error_set(err, MLO_ENOTFOUND, "there is no run '%.60s'", mlo_request_param(req, "id"));
    MLO_TRY(mlo_request_project(req, project, err));
out:
    return status;
}

static enum mlo_status reply_run(struct mlo_request *req, int64_t project, int64_t run, struct mlo_error *err)
{
    json_t *value = NULL;
    enum mlo_status status = mlo_view_run(req->conn, project, run, &value, err);
    if (status == MLO_OK)
        mlo_reply_header(req, "ETag", "\"%lld\"", (long long)mlo_json_i64(value, "event_seq", 0));
    return status == MLO_OK ? mlo_reply_json(req, 200, value, err) : status;
}

enum mlo_status h_run(struct mlo_request *req, struct mlo_error *err)
{
    int64_t project, run;
    enum mlo_status status;
    MLO_TRY(run_param(req, &project, &run, err));
    MLO_TRY(reply_run(req, project, run, err));
out:
    return status;
}

enum mlo_status h_run_log(struct mlo_request *req, struct mlo_error *err)
{
    const char *text = mlo_request_query(req, "job");
    json_t *run = NULL, *value = NULL;
    int64_t project, id, job = 0;
    enum mlo_status status;
    if (text && (!mlo_str_to_i64(text, &job) || job < 1)) {
        status = mlo_error_set(err, MLO_EINVAL, "'%.40s' is no job: jobs have numbers", text);
        mlo_error_where(err, "query argument 'job'");
        goto out;
    }
    MLO_TRY(run_param(req, &project, &id, err));
    MLO_TRY(mlo_run_get(req->conn, project, id, &run, err)); /* it is this project's */
    MLO_TRY(mlo_run_log(req->conn, id, job, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, json_incref(value), err));
out:
    json_decref(run);
    json_decref(value);
    return status;
}

enum mlo_status h_run_trace(struct mlo_request *req, struct mlo_error *err)
{
    const char *format = mlo_request_query(req, "format");
    json_t *trace = NULL;
    int64_t project, run;
    enum mlo_status status;
    bool otlp = format && strcmp(format, "otlp") == 0;
    if (format && !otlp && strcmp(format, "json") != 0) {
        status = mlo_error_set(err, MLO_EINVAL, "there is no format '%.60s'", format);
        mlo_error_where(err, "query argument 'format'");
        mlo_error_hint(err, "json or otlp");
        goto out;
    }
    MLO_TRY(run_param(req, &project, &run, err));
    MLO_TRY(mlo_run_trace(req->conn, project, run, &trace, err));
    MLO_TRY(
        mlo_reply_json(req, 200, otlp ? mlo_trace_otlp(trace, MLO_VERSION_TEXT) : json_incref(trace), err));
out:
    json_decref(trace);
    return status;
}

typedef enum mlo_status run_change_fn(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t run,
                                      const char *reason, struct mlo_error *err);

/* A change of the run with an optional reason. */
static enum mlo_status change_run(struct mlo_request *req, run_change_fn *change, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *reason = NULL;
    json_t *body, *value = NULL;
    int64_t project, run;
    enum mlo_status status;
    if (req->body.len) {
        MLO_TRY(mlo_request_json(req, &body, err));
        MLO_TRY(mlo_json_get_str(body, "reason", "", &reason, err));
    }
    MLO_TRY(run_param(req, &project, &run, err));
    MLO_TRY(mlo_run_get(req->conn, project, run, &value, err)); /* it is this project's */
    MLO_TRY(change(req->conn, &actor, run, reason && reason[0] ? reason : NULL, err));
    MLO_TRY(reply_run(req, project, run, err));
out:
    json_decref(value);
    return status;
}

enum mlo_status h_run_cancel(struct mlo_request *req, struct mlo_error *err)
{
    return change_run(req, mlo_run_cancel, err);
}

enum mlo_status h_run_requeue(struct mlo_request *req, struct mlo_error *err)
{
    return change_run(req, mlo_run_requeue, err);
}

/* --- many at once ------------------------------------------------------------------------------------ */

/* What one of many came to: its members, and the run or the problem. A part of the transaction that failed
 * alone leaves the others. Takes over `item`. */
static enum mlo_status end_item(struct mlo_request *req, json_t *items, json_t *item, int http, json_t *run,
                                enum mlo_status status, struct mlo_error *own, struct mlo_error *err)
{
    bool goes_on;
    own->status = status;
    status = mlo_db_part_end(req->conn, status, &goes_on, own);
    if (status != MLO_OK && (!goes_on || mlo_status_info(status)->http >= 500)) {
        *err = *own;
        json_decref(item);
        json_decref(run);
        return status;
    }
    if (status != MLO_OK) {
        json_decref(run);
        run = NULL;
        http = mlo_status_info(status)->http;
    }
    bool set = json_object_set_new(item, "status", json_integer(http)) == 0;
    set = json_object_set_new(item, status == MLO_OK ? "run" : "problem",
                              status == MLO_OK ? run : mlo_problem_json(own)) == 0 &&
          set;
    return json_array_append_new(items, item) == 0 && set ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status cancel_items(struct mlo_request *req, int64_t project, const json_t *ids,
                                    const char *reason, json_t *items, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    enum mlo_status status = MLO_OK;
    json_t *id;
    size_t i;
    json_array_foreach((json_t *)ids, i, id)
    {
        struct mlo_error own = {0};
        int64_t run = json_integer_value(id);
        json_t *before = NULL, *after = NULL;
        MLO_TRY(mlo_db_part_begin(req->conn, err));
        enum mlo_status done = mlo_run_get(req->conn, project, run, &before, &own); /* it is this project's */
        if (done == MLO_OK)
            done = mlo_run_cancel(req->conn, &actor, run, *reason ? reason : NULL, &own);
        if (done == MLO_OK)
            done = mlo_view_run(req->conn, project, run, &after, &own);
        json_decref(before);
        MLO_TRY(end_item(req, items, json_pack("{s:I}", "id", (json_int_t)run), 200, after, done, &own, err));
    }
out:
    return status;
}

enum mlo_status h_runs_cancel(struct mlo_request *req, struct mlo_error *err)
{
    enum { CANCEL_MAX = 100 };
    const json_t *ids;
    json_t *body, *id, *items = json_array();
    const char *reason;
    int64_t project;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "reason", "", &reason, err));
    MLO_TRY(mlo_request_items(body, "runs", CANCEL_MAX, &ids, err));
    json_array_foreach((json_t *)ids, i, id)
    {
        if (json_is_integer(id))
            continue;
        status = mlo_error_set(err, MLO_EINVAL, "a run is named by its number");
        mlo_error_where(err, "field 'runs[%zu]'", i);
        goto out;
    }
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_db_begin(req->conn, err));
    status = cancel_items(req, project, ids, reason, items, err);
    MLO_TRY(mlo_db_end(req->conn, status, err));
    MLO_TRY(mlo_reply_json(req, 200, mlo_list_of(json_incref(items)), err));
out:
    json_decref(items);
    return status;
}

static enum mlo_status submit_items(struct mlo_request *req, struct mlo_run_request *request,
                                    const json_t *models, json_t *items, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *on;
    size_t i;
    json_array_foreach((json_t *)models, i, on)
    {
        struct mlo_error own = {0};
        int64_t run, number = 0;
        json_t *value = NULL;
        MLO_TRY(mlo_db_part_begin(req->conn, err));
        enum mlo_status done = read_on(req, on, request, &number, &own);
        if (done == MLO_OK)
            done = mlo_run_submit(req->conn, request, &run, &own);
        if (done == MLO_OK)
            done = mlo_view_run(req->conn, request->project, run, &value, &own);
        json_t *item = json_pack("{s:s, s:o}", "model", mlo_json_str(on, "model", ""), "version",
                                 number ? json_integer(number) : json_null());
        MLO_TRY(end_item(req, items, item, 201, value, done, &own, err));
    }
out:
    return status;
}

enum mlo_status h_run_batch(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_run_request request = {.actor = &actor};
    struct mlo_recipe *recipe = NULL;
    const json_t *models;
    json_t *body, *items = json_array();
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_request_items(body, "models", MLO_RUN_BATCH_MAX, &models, err));
    MLO_TRY(read_how(body, &recipe, &request, err));
    MLO_TRY(mlo_request_project(req, &request.project, err));
    MLO_TRY(mlo_db_begin(req->conn, err));
    status = submit_items(req, &request, models, items, err);
    MLO_TRY(mlo_db_end(req->conn, status, err));
    MLO_TRY(mlo_reply_json(req, 200, mlo_list_of(json_incref(items)), err));
out:
    json_decref(items);
    mlo_recipe_free(recipe);
    return status;
}

/* Where a client that comes again was, in place of ?after=. */
static enum mlo_status last_event(const struct mlo_request *req, int64_t *after, struct mlo_error *err)
{
    const char *last = mlo_request_header(req, "Last-Event-ID");
    if (!last || !last[0] || (mlo_str_to_i64(last, after) && *after >= 0))
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "'%.40s' is no number of an event", last);
    mlo_error_where(err, "header Last-Event-ID");
    return MLO_EINVAL;
}

static enum mlo_status stream(struct mlo_request *req, int64_t run, int64_t after, bool logs,
                              struct mlo_error *err)
{
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_run_events(req->conn, run, after, 1, &value, err));
    bool over = mlo_json_bool(value, "done", false) && !json_array_size(json_object_get(value, "items"));
    status = over && mlo_request_header(req, "Last-Event-ID")
                 ? mlo_reply_empty(req, 204) /* the client need not come again */
                 : mlo_reply_run_stream(req, run, after, logs, err);
out:
    json_decref(value);
    return status;
}

enum mlo_status mlo_view_run_stream(struct mlo_request *req, struct mlo_error *err)
{
    int64_t project, run, after;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_query_i64(req, "after", 0, 0, INT64_MAX, &after, err));
    MLO_TRY(run_param(req, &project, &run, err));
    MLO_TRY(mlo_run_get(req->conn, project, run, &value, err)); /* it is this project's */
    MLO_TRY(last_event(req, &after, err));
    if (mlo_wants_stream(req))
        MLO_TRY(stream(req, run, after, true, err));
    else
        MLO_TRY(mlo_reply_redirect(req, "/runs/%s/%lld", mlo_request_param(req, "p"), (long long)run));
out:
    json_decref(value);
    return status;
}

enum mlo_status h_run_events(struct mlo_request *req, struct mlo_error *err)
{
    int64_t project, run, after, wait_ms, limit;
    json_t *value = NULL, *event;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_query_i64(req, "after", 0, 0, INT64_MAX, &after, err));
    MLO_TRY(mlo_request_query_i64(req, "wait_ms", 0, 0, WAIT_MAX_MS, &wait_ms, err));
    MLO_TRY(mlo_request_query_i64(req, "limit", 200, 1, MLO_PAGE_MAX, &limit, err));
    MLO_TRY(run_param(req, &project, &run, err));
    MLO_TRY(mlo_run_get(req->conn, project, run, &value, err)); /* it is this project's */
    MLO_TRY(last_event(req, &after, err));
    if (mlo_wants_stream(req)) {
        status = stream(req, run, after, false, err);
        goto out;
    }
    uint64_t until = mlo_clock_ns() + (uint64_t)wait_ms * 1000000;
    for (;;) {
        struct mlo_db_conn *conn;
        json_decref(value);
        value = NULL;
        MLO_TRY(mlo_request_db(req, &conn, err));
        MLO_TRY(mlo_run_events(conn, run, after, (int)limit, &value, err));
        if (json_array_size(json_object_get(value, "items")) || mlo_json_bool(value, "done", false) ||
            mlo_clock_ns() >= until || mlo_http_stopping(req->http))
            break;
        mlo_request_db_release(req); /* nothing is held while waiting */
        mlo_clock_sleep_ms(POLL_MS);
    }
    json_array_foreach(json_object_get(value, "items"), i, event) mlo_json_rename(event, "time", "at");
    status = mlo_reply_json(req, 200, value, err);
    value = NULL;
out:
    json_decref(value);
    return status;
}
