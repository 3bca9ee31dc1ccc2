#include <string.h>

#include "api/cli/client/client.h"

enum mlo_status mlo_client_get(struct mlo_client *client, const char *path, json_t **out,
                               struct mlo_error *err)
{
    struct mlo_response response;
    *out = NULL;
    enum mlo_status status = mlo_client_call(client, "GET", path, NULL, NULL, &response, err);
    if (status == MLO_OK && !response.json)
        status = mlo_error_set(err, MLO_EFORMAT, "%s sent no JSON: is it an mlopt server?",
                               mlo_client_url(client));
    if (status == MLO_OK)
        *out = json_incref(response.json);
    mlo_response_clear(&response);
    return status;
}

enum mlo_status mlo_client_list(struct mlo_client *client, const char *path, size_t max, json_t **items,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *all = json_array(), *page = NULL;
    struct mlo_buf next = MLO_BUF_INIT;
    mlo_buf_printf(&next, "%s%climit=%zu", path, strchr(path, '?') ? '&' : '?', max && max < 200 ? max : 200);
    size_t base = next.len;
    for (;;) {
        MLO_TRY(mlo_client_get(client, mlo_buf_str(&next), &page, err));
        json_array_extend(all, json_object_get(page, "items"));
        const char *cursor = mlo_json_str(page, "next", NULL);
        if (!cursor || (max && json_array_size(all) >= max))
            break;
        next.len = base;
        mlo_client_path(&next, "&cursor=%s", cursor);
        json_decref(page);
        page = NULL;
    }
    while (max && json_array_size(all) > max)
        json_array_remove(all, json_array_size(all) - 1);
    *items = json_incref(all);
out:
    json_decref(all);
    json_decref(page);
    mlo_buf_clear(&next);
    return status;
}

enum mlo_status mlo_client_ensure_project(struct mlo_client *client, const char *project,
                                          struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response response = {0};
    json_t *body = NULL;
    mlo_client_path(&path, "/v1/projects/%s/models?limit=1", project);
    enum mlo_status status = mlo_client_call(client, "GET", mlo_buf_str(&path), NULL, NULL, &response, err);
    mlo_response_clear(&response);
    if (status == MLO_ENOTFOUND) {
        struct mlo_error missing = *err;
        body = json_pack("{s:s}", "name", project);
        memset(err, 0, sizeof *err);
        status = mlo_client_call(client, "POST", "/v1/projects", NULL, body, &response, err);
        mlo_response_clear(&response);
        if (status == MLO_EEXISTS) /* somebody was quicker, or it is one that we may not see */
            status = MLO_OK;
        if (status == MLO_EFORBIDDEN) {
            *err = missing;
            mlo_error_hint(err, "ask an admin to make the project '%s', and a token for it", project);
            status = MLO_ENOTFOUND;
        }
    }
    json_decref(body);
    mlo_buf_clear(&path);
    return status;
}

enum mlo_status mlo_client_projects(struct mlo_client *client, const char *only, json_t **out,
                                    struct mlo_error *err)
{
    json_t *items = NULL, *row;
    size_t i;
    *out = json_array();
    if (only) {
        json_array_append_new(*out, json_string(only));
        return MLO_OK;
    }
    enum mlo_status status = mlo_client_list(client, "/v1/projects", 0, &items, err);
    json_array_foreach(items, i, row) json_array_append_new(*out, json_string(mlo_json_str(row, "name", "")));
    json_decref(items);
    if (status != MLO_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

enum mlo_status mlo_client_model_list(struct mlo_cli *cli, const char *what, size_t max, json_t **items,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_buf path = MLO_BUF_INIT;
    *items = NULL;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, false, false, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/", ref.project, ref.name);
    mlo_buf_puts(&path, what);
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), max, items, err));
    if (cli->json) {
        status = mlo_cli_print_json(*items, err);
        json_decref(*items);
        *items = NULL;
    }
out:
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

void mlo_client_join(const json_t *list, struct mlo_buf *out)
{
    json_t *item;
    size_t i;
    json_array_foreach((json_t *)list, i, item)
        mlo_buf_printf(out, "%s%s", i ? " " : "", json_string_value(item));
}

enum mlo_status mlo_client_print_list(const struct mlo_cli *cli, const json_t *items, const char *columns,
                                      mlo_client_row_fn *row, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *item;
    size_t i;
    if (cli->json)
        return mlo_cli_print_json(items, err);
    mlo_table_init(&table, columns);
    json_array_foreach((json_t *)items, i, item) row(&table, item);
    return mlo_table_print_take(&table, err);
}

enum mlo_status mlo_client_print_item(const json_t *item, const char *columns, mlo_client_row_fn *row,
                                      struct mlo_error *err)
{
    struct mlo_table table;
    mlo_table_init(&table, columns);
    row(&table, item);
    return mlo_table_print_take(&table, err);
}

enum mlo_status mlo_client_ask(struct mlo_cli *cli, const char *method, const struct mlo_buf *path,
                               const json_t *body, json_t **out, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_response answer = {0};
    enum mlo_status status = mlo_buf_ok(path) ? mlo_client_open(cli, &client, err) : mlo_error_nomem(err);
    if (status == MLO_OK)
        status = mlo_client_call(client, method, mlo_buf_str(path), NULL, body, &answer, err);
    if (status == MLO_OK && out)
        *out = json_incref(answer.json);
    mlo_response_clear(&answer);
    mlo_client_close(client);
    return status;
}

enum mlo_status mlo_client_post_reason(struct mlo_client *client, const char *path, const char *reason,
                                       struct mlo_response *out, struct mlo_error *err)
{
    json_t *body = json_pack("{s:s}", "reason", reason);
    if (!body)
        return mlo_error_set(err, MLO_EUSAGE, "--reason is not UTF-8");
    enum mlo_status status = mlo_client_call(client, "POST", path, NULL, body, out, err);
    json_decref(body);
    return status;
}

/* Which of them the project has, as the items of an answer; in their order. */
static enum mlo_status look_up(struct mlo_client *client, const char *project,
                               const struct mlo_client_file *files, size_t count,
                               struct mlo_response *response, struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *digests = json_array(), *body = json_pack("{s:O}", "digests", digests);
    char text[MLO_DIGEST_TEXT_SIZE];
    for (size_t i = 0; i < count; i++)
        json_array_append_new(digests, json_string(mlo_digest_text(&files[i].digest, text)));
    mlo_client_path(&path, "/v1/projects/%s/blobs/lookup", project);
    enum mlo_status status =
        json_array_size(digests) == count && body
            ? mlo_client_call(client, "POST", mlo_buf_str(&path), NULL, body, response, err)
            : mlo_error_nomem(err);
    json_decref(digests);
    json_decref(body);
    mlo_buf_clear(&path);
    return status;
}

enum mlo_status mlo_client_has_blob(struct mlo_client *client, const char *project,
                                    const struct mlo_digest *digest, bool *there, struct mlo_error *err)
{
    const struct mlo_client_file file = {.digest = *digest};
    struct mlo_response response = {0};
    enum mlo_status status = look_up(client, project, &file, 1, &response, err);
    *there = status == MLO_OK &&
             mlo_json_bool(json_array_get(json_object_get(response.json, "items"), 0), "there", false);
    mlo_response_clear(&response);
    return status;
}

enum mlo_status mlo_client_upload(struct mlo_client *client, const char *project,
                                  struct mlo_client_file *files, size_t count, json_t *rows,
                                  struct mlo_error *err)
{
    struct mlo_response response = {0};
    char text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < count; i++)
        MLO_TRY(mlo_digest_of_file(files[i].path, &files[i].digest, &files[i].size_bytes, err));
    MLO_TRY(look_up(client, project, files, count, &response, err));
    const json_t *items = json_object_get(response.json, "items");
    for (size_t i = 0; i < count; i++) {
        const struct mlo_client_file *f = &files[i];
        if (!mlo_json_bool(json_array_get(items, i), "there", false))
            MLO_TRY(mlo_client_send_file(client, project, f->path, &f->digest, err));
        json_array_append_new(rows,
                              json_pack("{s:s,s:s,s:s,s:I,s:s}", "role", f->role, "name",
                                        mlo_fs_basename(f->path), "digest", mlo_digest_text(&f->digest, text),
                                        "size", (json_int_t)f->size_bytes, "media_type", f->media_type));
    }
out:
    mlo_response_clear(&response);
    return status;
}

char *mlo_client_time(const json_t *object, const char *key, char out[32])
{
    const char *text = mlo_json_str(object, key, NULL);
    if (!text) {
        snprintf(out, 32, "-");
        return out;
    }
    snprintf(out, 32, "%.19s", text);
    if (strlen(out) > 10 && out[10] == 'T')
        out[10] = ' ';
    return out;
}

char *mlo_client_digest(const json_t *object, const char *key, char out[16])
{
    const char *text = mlo_json_str(object, key, "");
    snprintf(out, 16, "%.12s", mlo_str_starts(text, "sha256:") ? text + 7 : text);
    return out;
}
