/* Schedules of a project, and their firings. */
#include <string.h>

#include "api/http/handlers_impl.h"

enum mlo_status h_schedules(struct mlo_request *req, struct mlo_error *err)
{
    json_t *items = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_schedule_list(req->conn, project, &items, err));
    MLO_TRY(mlo_reply_json(req, 200, mlo_list_of(items), err));
out:
    return status;
}

enum mlo_status h_schedule_create(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_schedule_request request = {.actor = &actor};
    struct mlo_recipe *recipe = NULL;
    const char *model;
    json_t *body, *value = NULL;
    int64_t priority;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "model", NULL, &model, err));
    MLO_TRY(mlo_json_get_str(body, "name", NULL, &request.name, err));
    MLO_TRY(mlo_json_get_str(body, "cron", NULL, &request.cron, err));
    MLO_TRY(mlo_json_get_str(body, "stage", "production", &request.stage, err));
    MLO_TRY(mlo_json_get_str(body, "time_zone", "UTC", &request.time_zone, err));
    MLO_TRY(mlo_json_get_i64(body, "priority", &(int64_t){MLO_SCHEDULE_PRIORITY}, &priority, err));
    if (priority < -100 || priority > 100) {
        status = mlo_error_set(err, MLO_EINVAL, "priority is %lld, not -100 to 100", (long long)priority);
        mlo_error_where(err, "field 'priority'");
        goto out;
    }
    request.priority = (int)priority;
    MLO_TRY(mlo_json_get_bool(body, "paused", &(bool){false}, &request.paused, err));
    MLO_TRY(mlo_request_recipe(body, &recipe, err));
    request.recipe = recipe;
    MLO_TRY(mlo_request_project(req, &request.project, err));
    MLO_TRY(mlo_model_find(req->conn, request.project, model, &request.model, err));
    MLO_TRY(mlo_schedule_add(req->conn, &request, &value, err));
    mlo_reply_header(req, "Location", "/v1/projects/%s/schedules/%s", mlo_request_param(req, "p"),
                     request.name);
    status = mlo_reply_json(req, 201, value, err);
out:
    mlo_recipe_free(recipe);
    return status;
}

enum mlo_status h_schedule(struct mlo_request *req, struct mlo_error *err)
{
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_schedule_get(req->conn, project, mlo_request_param(req, "name"), &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

/* A change with an optional reason. */
static enum mlo_status change(struct mlo_request *req, enum mlo_schedule_change what, json_t **out,
                              struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *reason = "";
    json_t *body;
    int64_t project;
    enum mlo_status status;
    if (req->body.len) {
        MLO_TRY(mlo_request_json(req, &body, err));
        MLO_TRY(mlo_json_get_str(body, "reason", "", &reason, err));
    }
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(
        mlo_schedule_set(req->conn, &actor, project, mlo_request_param(req, "name"), what, reason, out, err));
out:
    return status;
}

enum mlo_status h_schedule_pause(struct mlo_request *req, struct mlo_error *err)
{
    json_t *value = NULL;
    enum mlo_status status = change(req, MLO_SCHEDULE_PAUSE, &value, err);
    return status == MLO_OK ? mlo_reply_json(req, 200, value, err) : status;
}

enum mlo_status h_schedule_resume(struct mlo_request *req, struct mlo_error *err)
{
    json_t *value = NULL;
    enum mlo_status status = change(req, MLO_SCHEDULE_RESUME, &value, err);
    return status == MLO_OK ? mlo_reply_json(req, 200, value, err) : status;
}

enum mlo_status h_schedule_remove(struct mlo_request *req, struct mlo_error *err)
{
    enum mlo_status status = change(req, MLO_SCHEDULE_REMOVE, NULL, err);
    return status == MLO_OK ? mlo_reply_empty(req, 204) : status;
}

enum mlo_status h_schedule_fire(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_schedule_run(req->conn, &actor, project, mlo_request_param(req, "name"), &value, err));
    MLO_TRY(mlo_reply_json(req, 201, value, err));
out:
    return status;
}

enum mlo_status h_schedule_firings(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_page page;
    json_t *value = NULL;
    int64_t project, before = 0;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    if (page.cursor && page.cursor[0] && (!mlo_str_to_i64(page.cursor, &before) || before < 1)) {
        status = mlo_error_set(err, MLO_EINVAL, "the cursor is not one that this list gave");
        mlo_error_where(err, "query argument 'cursor'");
        mlo_error_hint(err, "begin again without a cursor");
        goto out;
    }
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_schedule_firings(req->conn, project, mlo_request_param(req, "name"), before, (int)page.limit,
                                 &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}
