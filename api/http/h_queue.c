/* A project's share of the workers, and what its attempts used. */
#include <string.h>

#include "api/http/handlers_impl.h"

enum mlo_status h_project_queue(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_project_queue_get(req->conn, &actor, project, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_project_queue_change(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *reason;
    json_t *body, *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "reason", "", &reason, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_project_queue_set(req->conn, &actor, project, body, reason, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_usage(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *format = mlo_request_query(req, "format");
    json_t *months = NULL;
    int64_t project;
    enum mlo_status status;
    bool csv = format && strcmp(format, "csv") == 0;
    if (format && !csv && strcmp(format, "json") != 0) {
        status = mlo_error_set(err, MLO_EINVAL, "there is no format '%.60s'", format);
        mlo_error_where(err, "query argument 'format'");
        mlo_error_hint(err, "json or csv");
        goto out;
    }
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_usage_months(req->conn, &actor, project, &months, err));
    if (!csv)
        return mlo_reply_json(req, 200, mlo_list_of(months), err);
    mlo_usage_csv(&req->out, mlo_request_param(req, "p"), months);
    json_decref(months);
    status = mlo_reply_out(req, 200, "text/csv; charset=utf-8; header=present", err);
out:
    return status;
}
