/* The contract: served as it is, and as a table that tests compare the routes with. */
#include "api/http/openapi_impl.h"

#include "api/http/handlers_impl.h"

const struct mlo_operation *mlo_http_operations(size_t *count)
{
    *count = mlo_openapi_operation_count;
    return mlo_openapi_operations;
}

const char *mlo_http_contract(size_t *size)
{
    *size = mlo_openapi_json_size;
    return mlo_openapi_json;
}

enum mlo_status h_openapi(struct mlo_request *req, struct mlo_error *err)
{
    mlo_buf_append(&req->out, mlo_openapi_json, mlo_openapi_json_size);
    return mlo_reply_tagged(req, "application/json", err);
}
