/* The audit log and its check. The project "-" is the installation's own chain. */
#include <stdlib.h>
#include <string.h>

#include "api/http/handlers_impl.h"

static enum mlo_status chain_param(struct mlo_request *req, int64_t *project, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_db_conn *conn;
    enum mlo_status status;
    if (strcmp(mlo_request_param(req, "p"), "-") != 0)
        return mlo_request_project(req, project, err);
    *project = 0;
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
out:
    return status;
}

enum mlo_status h_audit(struct mlo_request *req, struct mlo_error *err)
{
    const struct mlo_audit_filter filter = {.action = mlo_request_query(req, "action"),
                                            .who = mlo_request_query(req, "who"),
                                            .object = mlo_request_query(req, "object"),
                                            .since = mlo_request_query(req, "since"),
                                            .until = mlo_request_query(req, "until")};
    struct mlo_page page;
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(chain_param(req, &project, err));
    MLO_TRY(mlo_audit_list(req->conn, project, &filter, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_audit_chain(struct mlo_request *req, struct mlo_error *err)
{
    int64_t project, after, limit;
    enum mlo_status status;
    MLO_TRY(mlo_request_query_i64(req, "after", INT64_MIN, INT64_MIN, INT64_MAX, &after, err));
    MLO_TRY(mlo_request_query_i64(req, "limit", 10000, 1, 10000, &limit, err));
    MLO_TRY(chain_param(req, &project, err));
    MLO_TRY(mlo_audit_chain(req->conn, project, after, limit, &req->out, err));
    MLO_TRY(mlo_db_settle(req->conn, err)); /* its head is remembered */
    MLO_TRY(mlo_reply_out(req, 200, "application/octet-stream", err));
out:
    return status;
}

enum mlo_status h_audit_verify(struct mlo_request *req, struct mlo_error *err)
{
    const char *head = mlo_request_query(req, "head");
    struct mlo_audit_head remembered = {0};
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_query_i64(req, "head_seq", 0, 0, INT64_MAX, &remembered.seq, err));
    if (!head != !remembered.seq || (head && !mlo_digest_parse(head, &remembered.hash))) {
        status = mlo_error_set(err, MLO_EINVAL, "a remembered head is head_seq and head, a digest");
        mlo_error_where(err, "query argument 'head'");
        goto out;
    }
    MLO_TRY(chain_param(req, &project, err));
    MLO_TRY(mlo_view_audit_verify(req->conn, project, head ? &remembered : NULL, &value, err));
    MLO_TRY(mlo_db_settle(req->conn, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}
