/* Finding versions by what they say about themselves. */
#include "api/http/handlers_impl.h"

enum mlo_status h_search(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_search search = {.filter = mlo_request_query(req, "filter"),
                                .order = mlo_request_query(req, "order")};
    struct mlo_page page;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_project(req, &search.project_id, err));
    MLO_TRY(mlo_version_search(req->conn, &search, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}
