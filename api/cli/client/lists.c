#include <string.h>

#include "api/cli/client/client.h"

static const char *stage_text(const json_t *model, const char *stage, char out[24])
{
    const json_t *release = json_object_get(model, stage);
    if (!json_is_object(release))
        return "";
    snprintf(out, 24, "@%lld", (long long)mlo_json_i64(release, "version", 0));
    return out;
}

/* What every project's list at `segment` holds, in one array. */
static enum mlo_status gather(struct mlo_client *client, const char *only, const char *segment, json_t **out,
                              struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *projects = NULL, *name, *items = NULL, *all = json_array();
    size_t i;
    struct mlo_buf path = MLO_BUF_INIT;
    MLO_TRY(mlo_client_projects(client, only, &projects, err));
    json_array_foreach(projects, i, name)
    {
        mlo_buf_reset(&path);
        mlo_client_path(&path, "/v1/projects/%s/%s", json_string_value(name), segment);
        MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), 0, &items, err));
        json_array_extend(all, items);
        json_decref(items);
        items = NULL;
    }
    *out = json_incref(all);
out:
    json_decref(all);
    json_decref(items);
    json_decref(projects);
    mlo_buf_clear(&path);
    return status;
}

static enum mlo_status list_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    bool models = strcmp(cli->verb->name, "models") == 0;
    json_t *all = NULL, *row;
    size_t i;
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(gather(client, cli->arg_count ? cli->args[0] : NULL, models ? "models" : "datasets", &all, err));
    if (cli->json) {
        MLO_TRY(mlo_cli_print_json(all, err));
        goto out;
    }
    struct mlo_table table;
    mlo_table_init(&table, models ? "model|latest>|staging>|production>|created" : "dataset|latest>|created");
    json_array_foreach(all, i, row)
    {
        char name[160], latest[24], created[32], staging[24], production[24];
        snprintf(name, sizeof name, "%s/%s", mlo_json_str(row, "project", ""),
                 mlo_json_str(row, models ? "name" : "dataset", ""));
        snprintf(latest, sizeof latest, "@%lld",
                 (long long)mlo_json_i64(row, models ? "latest_version" : "version", 0));
        mlo_client_time(row, "created_at", created);
        if (models)
            mlo_table_row(&table, name, latest, stage_text(row, "staging", staging),
                          stage_text(row, "production", production), created);
        else
            mlo_table_row(&table, name, latest, created);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(all);
    mlo_client_close(client);
    return status;
}

static enum mlo_status status_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_error not_ready = {0};
    json_t *health = NULL, *ready = NULL, *me = NULL, *queue = NULL, *workers = NULL, *all = NULL, *row;
    size_t i;
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_get(client, "/healthz", &health, err));
    enum mlo_status readiness = mlo_client_get(client, "/readyz", &ready, &not_ready);
    if (readiness == MLO_OK && mlo_client_has_token(client)) {
        MLO_TRY(mlo_client_get(client, "/v1/me", &me, err));
        MLO_TRY(mlo_client_get(client, "/v1/queue", &queue, err));
        MLO_TRY(mlo_client_list(client, "/v1/workers", 0, &workers, err));
    }
    if (cli->json) {
        all = json_pack("{s:s,s:O,s:b,s:s?,s:O?,s:O?,s:O?}", "url", mlo_client_url(client), "health", health,
                        "ready", readiness == MLO_OK, "not_ready",
                        readiness == MLO_OK ? NULL : not_ready.message, "me", me, "queue", queue, "workers",
                        workers);
        MLO_TRY(mlo_cli_print_json(all, err));
    } else {
        MLO_TRY(mlo_cli_print(err, "%s  mlopt %s  %s\n", mlo_client_url(client),
                              mlo_json_str(health, "version", "?"),
                              readiness == MLO_OK ? "ready" : not_ready.message));
        if (me)
            MLO_TRY(mlo_cli_print(err, "signed in as %s, %s of %s\n", mlo_json_str(me, "name", "?"),
                                  mlo_json_str(me, "role", "?"),
                                  json_is_integer(json_object_get(me, "project_id")) ? "one project"
                                                                                     : "all projects"));
        if (queue)
            MLO_TRY(mlo_cli_print(err, "jobs: %lld queued, %lld running, %lld blocked\n",
                                  (long long)mlo_json_i64(queue, "queued", 0),
                                  (long long)mlo_json_i64(queue, "running", 0),
                                  (long long)mlo_json_i64(queue, "blocked", 0)));
        json_array_foreach(workers, i, row)
            MLO_TRY(mlo_cli_print(err, "worker %s on %s: %s\n", mlo_json_str(row, "name", ""),
                                  mlo_json_str(row, "host", ""), mlo_json_str(row, "state", "")));
    }
    if (readiness != MLO_OK) {
        *err = not_ready;
        status = readiness;
    }
out:
    json_decref(all);
    json_decref(health);
    json_decref(ready);
    json_decref(me);
    json_decref(queue);
    json_decref(workers);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {MLO_OPTION_URL, {NULL}};
const struct mlo_cli_verb mlo_verb_models = {
    .name = "models",
    .group = "Models and data",
    .run = list_run,
    .options = options,
    .positional = "[PROJECT]",
    .max_args = 1,
    .help = "models, and what is in their stages",
};
const struct mlo_cli_verb mlo_verb_datasets = {
    .name = "datasets",
    .group = "Models and data",
    .run = list_run,
    .options = options,
    .positional = "[PROJECT]",
    .max_args = 1,
    .help = "datasets",
};
const struct mlo_cli_verb mlo_verb_status = {
    .name = "status",
    .group = "Service",
    .run = status_run,
    .options = options,
    .positional = "",
    .help = "is the server there and ready; with a token also its queue and workers",
};
