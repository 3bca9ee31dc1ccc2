/* What MLflow's clients read of a failure, and what they are told of calls that would change something. */
#include <string.h>

#include "api/http/mlflow_impl.h"

bool mlo_mlflow_path(const char *path)
{
    return mlo_str_starts(path, "/api/");
}

static const char *error_code(int http_status, bool route)
{
    static const struct {
        int http;
        const char *code;
    } codes[] = {
        {401, "UNAUTHENTICATED"},   {403, "PERMISSION_DENIED"},      {404, "RESOURCE_DOES_NOT_EXIST"},
        {409, "RESOURCE_CONFLICT"}, {429, "REQUEST_LIMIT_EXCEEDED"}, {503, "TEMPORARILY_UNAVAILABLE"},
    };
    if (http_status == 405 || (http_status == 404 && !route))
        return "ENDPOINT_NOT_FOUND";
    for (size_t i = 0; i < MLO_COUNT(codes); i++)
        if (codes[i].http == http_status)
            return codes[i].code;
    return http_status < 500 ? "INVALID_PARAMETER_VALUE" : "INTERNAL_ERROR";
}

void mlo_mlflow_problem(json_t *problem, int http_status, bool route)
{
    const char *const parts[] = {mlo_json_str(problem, "detail", ""), mlo_json_str(problem, "where", ""),
                                 mlo_json_str(problem, "hint", "")};
    static const char *const before[] = {"", " (", "; "}, *const behind[] = {"", ")", ""};
    struct mlo_buf text = MLO_BUF_INIT;
    for (size_t i = 0; i < MLO_COUNT(parts); i++)
        if (*parts[i])
            mlo_buf_printf(&text, "%s%s%s", before[i], parts[i], behind[i]);
    if (!json_object_get(problem, "error_code"))
        json_object_set_new(problem, "error_code", json_string(error_code(http_status, route)));
    if (mlo_buf_ok(&text))
        json_object_set_new(problem, "message", json_string(mlo_buf_str(&text)));
    mlo_buf_clear(&text);
}

bool mlo_mlflow_write_call(struct mlo_request *req, struct mlo_error *err)
{
    static const char registry[] = "/api/2.0/mlflow/", artifacts[] = "/api/2.0/mlflow-artifacts/";
    static const struct {
        const char *method, *path, *instead;
    } calls[] = {
        {"POST", "registered-models/create",
         "mlopt push PROJECT/MODEL model.onnx: the first version makes its model"},
        {"POST", "registered-models/rename", "a model keeps its name: push its file under the new one"},
        {"PATCH", "registered-models/update", "a version says what it is: mlopt push --description TEXT"},
        {"DELETE", "registered-models/delete", "mlopt delete PROJECT/MODEL --reason TEXT"},
        {"POST", "registered-models/set-tag",
         "a version has tags, said as it is pushed: mlopt push --tag KEY=VALUE"},
        {"DELETE", "registered-models/delete-tag", "tags stay as they were pushed"},
        {"POST", "registered-models/alias",
         "mlopt promote PROJECT/MODEL@VERSION --to production --reason TEXT"},
        {"DELETE", "registered-models/alias",
         "mlopt rollback PROJECT/MODEL --stage production --reason TEXT"},
        {"POST", "model-versions/create", "mlopt push PROJECT/MODEL model.onnx"},
        {"PATCH", "model-versions/update", "a version says what it is: mlopt push --description TEXT"},
        {"POST", "model-versions/transition-stage",
         "mlopt promote PROJECT/MODEL@VERSION --to production --reason TEXT"},
        {"DELETE", "model-versions/delete", "mlopt delete PROJECT/MODEL@VERSION --reason TEXT"},
        {"POST", "model-versions/set-tag",
         "a version has tags, said as it is pushed: mlopt push --tag KEY=VALUE"},
        {"DELETE", "model-versions/delete-tag", "tags stay as they were pushed"},
    };
    const char *const method = req->method, *const path = req->path, *instead = NULL;
    if (mlo_str_starts(path, artifacts) && strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        instead = "mlopt push PROJECT/MODEL model.onnx";
    for (size_t i = 0; !instead && mlo_str_starts(path, registry) && i < MLO_COUNT(calls); i++)
        if (strcmp(method, calls[i].method) == 0 && strcmp(path + strlen(registry), calls[i].path) == 0)
            instead = calls[i].instead;
    if (!instead)
        return false;
    mlo_error_set(err, MLO_EFORBIDDEN, "MLflow's API only reads here, whatever the token");
    mlo_error_hint(err, "instead: %s", instead);
    mlo_reply_member(req, "error_code", json_string("PERMISSION_DENIED"));
    return true;
}
