/* Many of a kind in one request: submitting a recipe on several models, cancelling several runs. What fails
 * of them leaves the others. */
#include <string.h>

#include "api/cli/client/client.h"
#include "pipeline/service/service.h"

/* How many of the items failed; *first is the problem of the first. */
static size_t count_failed(const json_t *items, const json_t **first)
{
    size_t i, failed = 0;
    json_t *item;
    *first = NULL;
    json_array_foreach((json_t *)items, i, item)
    {
        const json_t *problem = json_object_get(item, "problem");
        *first = *first ? *first : problem;
        failed += problem != NULL;
    }
    return failed;
}

/* A row an item: what it is of, its run's state, or why there is none. */
static enum mlo_status print_items(const struct mlo_cli *cli, const json_t *items, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *item;
    size_t i;
    if (cli->json)
        return mlo_cli_print_json(items, err);
    mlo_table_init(&table, "run>|of|state|why not");
    json_array_foreach((json_t *)items, i, item)
    {
        const json_t *run = json_object_get(item, "run"), *of = run ? run : item;
        char id[24], what[260];
        int64_t number = mlo_json_i64(of, "id", 0);
        snprintf(id, sizeof id, number ? "%lld" : "-", (long long)number);
        snprintf(what, sizeof what, run ? "%.100s@%lld" : "%.100s", mlo_json_str(of, "model", ""),
                 (long long)mlo_json_i64(of, "version", 0));
        mlo_table_row(&table, id, what, mlo_json_str(run, "state", "-"),
                      mlo_json_str(json_object_get(item, "problem"), "detail", ""));
    }
    return mlo_table_print_take(&table, err);
}

enum mlo_status mlo_client_many_outcome(const json_t *items, const char *verb, struct mlo_error *err)
{
    const json_t *first;
    size_t failed = count_failed(items, &first);
    if (!failed)
        return MLO_OK;
    enum mlo_status status = mlo_status_from_code(mlo_json_str(first, "code", ""));
    mlo_error_set(err, status, "%zu of %zu were not %s: %s", failed, json_array_size(items), verb,
                  mlo_json_str(first, "detail", ""));
    if (mlo_json_str(first, "where", NULL))
        mlo_error_where(err, "%s", mlo_json_str(first, "where", ""));
    if (mlo_json_str(first, "hint", NULL))
        mlo_error_hint(err, "%s", mlo_json_str(first, "hint", ""));
    return status;
}

enum mlo_status mlo_client_read_models(const struct mlo_cli *cli, char project[104], json_t *body,
                                       struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    if (cli->arg_count > MLO_RUN_BATCH_MAX) {
        mlo_error_set(err, MLO_EUSAGE, "%d models are too many for one submission", cli->arg_count);
        mlo_error_hint(err, "submit at most %d at a time", MLO_RUN_BATCH_MAX);
        return MLO_EUSAGE;
    }
    json_t *models = json_array();
    if (json_object_set_new(body, "models", models) != 0)
        return mlo_error_nomem(err);
    for (int i = 0; i < cli->arg_count; i++) {
        struct mlo_client_ref ref;
        const char *version;
        int64_t number;
        MLO_TRY(mlo_client_ref_parse(cli->args[i], &ref, err));
        MLO_TRY(mlo_client_ref_plain(&ref, true, false, err));
        MLO_TRY(mlo_client_ref_version(&ref, &version, err));
        if (i && strcmp(project, ref.project) != 0) {
            status = mlo_error_set(err, MLO_EUSAGE, "%s and %s are two projects: submit to one at a time",
                                   project, ref.project);
            goto out;
        }
        snprintf(project, 104, "%s", ref.project);
        json_t *row = json_pack("{s:s}", "model", ref.name);
        if (mlo_str_to_i64(version, &number))
            json_object_set_new(row, "version", json_integer(number));
        if (json_array_append_new(models, row) != 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
out:
    return status;
}

enum mlo_status mlo_client_submit_many(struct mlo_cli *cli, json_t *body, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_response response = {0};
    struct mlo_buf path = MLO_BUF_INIT, key = MLO_BUF_INIT;
    char project[104] = "";
    const char *header;
    enum mlo_status status;
    MLO_TRY(mlo_client_read_models(cli, project, body, err));
    MLO_TRY(mlo_client_key(cli, &key, &header, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/runs/batch", project);
    MLO_TRY(mlo_client_call(client, "POST", mlo_buf_str(&path), header, body, &response, err));
    const json_t *items = json_object_get(response.json, "items");
    MLO_TRY(print_items(cli, items, err));
    MLO_TRY(mlo_client_many_outcome(items, "submitted", err));
out:
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    mlo_buf_clear(&key);
    mlo_client_close(client);
    return status;
}

/* One request for the project: its items move to `done`, but for those that it has not, which stay in `ids`.
 */
static enum mlo_status cancel_in(struct mlo_client *client, const char *project, const char *reason,
                                 json_t *ids, json_t *done, struct mlo_error *err)
{
    struct mlo_response response = {0};
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *item, *body = json_pack("{s:O, s:s}", "runs", ids, "reason", reason ? reason : "");
    size_t i;
    enum mlo_status status;
    mlo_client_path(&path, "/v1/projects/%s/runs/cancel", project);
    MLO_TRY(mlo_client_call(client, "POST", mlo_buf_str(&path), NULL, body, &response, err));
    json_array_clear(ids);
    json_array_foreach(json_object_get(response.json, "items"), i, item)
    {
        bool elsewhere = mlo_json_i64(item, "status", 0) == 404;
        if ((elsewhere ? json_array_append(ids, json_object_get(item, "id"))
                       : json_array_append(done, item)) != 0) {
            status = mlo_error_nomem(err);
            break;
        }
    }
out:
    json_decref(body);
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    return status;
}

enum mlo_status mlo_client_cancel_many(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    const char *only = mlo_cli_opt(cli, "project"), *reason = mlo_cli_opt(cli, "reason");
    json_t *ids = json_array(), *done = json_array(), *run = NULL;
    enum mlo_status status = MLO_OK;
    for (int i = 0; i < cli->arg_count; i++) {
        int64_t id;
        MLO_TRY(mlo_client_run_id(cli->args[i], &id, err));
        json_array_append_new(ids, json_integer((json_int_t)id));
    }
    MLO_TRY(mlo_client_open(cli, &client, err));
    while (json_array_size(ids)) {
        json_decref(run);
        run = NULL;
        status = mlo_client_find_run(client, only, json_integer_value(json_array_get(ids, 0)), &run, err);
        if (status != MLO_OK) /* what was cancelled so far is shown */
            break;
        MLO_TRY(cancel_in(client, mlo_json_str(run, "project", ""), reason, ids, done, err));
    }
    struct mlo_error own = {0};
    enum mlo_status printed = json_array_size(done) ? print_items(cli, done, &own) : MLO_OK;
    if (status == MLO_OK) {
        status = printed == MLO_OK ? mlo_client_many_outcome(done, "cancelled", &own) : printed;
        *err = own;
    }
out:
    json_decref(ids);
    json_decref(done);
    json_decref(run);
    mlo_client_close(client);
    return status;
}
