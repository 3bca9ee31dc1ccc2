/* `mlopt workers …`: which there are; pausing, resuming and draining one. */
#include <string.h>

#include "api/cli/client/client.h"

/* "H100 (job 12) H100" */
static void gpus_text(const json_t *gpus, struct mlo_buf *out)
{
    const json_t *gpu;
    size_t i;
    json_array_foreach((json_t *)gpus, i, gpu)
    {
        int64_t job = mlo_json_i64(gpu, "job", 0);
        mlo_buf_printf(out, "%s%s", i ? " " : "", mlo_json_str(gpu, "model", ""));
        if (job)
            mlo_buf_printf(out, " (job %lld)", (long long)job);
    }
}

static const char *size_text(const json_t *row, const char *key, char out[32])
{
    int64_t bytes = mlo_json_i64(row, key, -1);
    return bytes < 0 ? NULL : mlo_str_size((uint64_t)bytes, out);
}

static enum mlo_status list_workers(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_table table;
    json_t *workers = NULL, *row;
    size_t i;
    mlo_table_init(&table, "worker|state|jobs>|memory>|disk>|GPUs|seen|isolation lacks|asked by|why");
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_list(client, "/v1/workers", 0, &workers, err));
    if (cli->json) {
        MLO_TRY(mlo_cli_print_json(workers, err));
        goto out;
    }
    json_array_foreach(workers, i, row)
    {
        char jobs[48], seen[32], memory[32], disk[32];
        struct mlo_buf lacking = MLO_BUF_INIT, gpus = MLO_BUF_INIT;
        gpus_text(json_object_get(row, "gpus"), &gpus);
        mlo_client_join(json_object_get(row, "lacking"), &lacking);
        snprintf(jobs, sizeof jobs, "%zu/%lld", json_array_size(json_object_get(row, "jobs")),
                 (long long)mlo_json_i64(row, "slots", 0));
        mlo_table_row(&table, mlo_json_str(row, "name", ""), mlo_json_str(row, "state", ""), jobs,
                      size_text(row, "memory_bytes", memory), size_text(row, "disk_bytes", disk),
                      gpus.len ? mlo_buf_str(&gpus) : NULL, mlo_client_time(row, "last_seen_at", seen),
                      lacking.len ? mlo_buf_str(&lacking) : NULL, mlo_json_str(row, "wish_by", NULL),
                      mlo_json_str(row, "wish_reason", NULL));
        mlo_buf_clear(&lacking);
        mlo_buf_clear(&gpus);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    mlo_table_clear(&table);
    json_decref(workers);
    mlo_client_close(client);
    return status;
}

static enum mlo_status change(struct mlo_cli *cli, const char *what, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response response = {0};
    const char *reason = mlo_cli_opt(cli, "reason");
    json_t *body = reason ? json_pack("{s:s}", "reason", reason) : json_object();
    mlo_client_path(&path, "/v1/workers/%s", cli->args[0]);
    mlo_buf_printf(&path, "/%s", what);
    if (!body || !mlo_buf_ok(&path)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_call(client, "POST", mlo_buf_str(&path), NULL, body, &response, err));
    MLO_TRY(cli->json ? mlo_cli_print_json(response.json, err)
                      : mlo_cli_print(err, "worker %s was told to %s\n", cli->args[0], what));
out:
    json_decref(body);
    mlo_response_clear(&response);
    mlo_client_close(client);
    mlo_buf_clear(&path);
    return status;
}

static enum mlo_status pause_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return change(cli, "pause", err);
}

static enum mlo_status resume_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return change(cli, "resume", err);
}

static enum mlo_status drain_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return change(cli, "drain", err);
}

static const struct mlo_cli_option list_options[] = {MLO_OPTION_URL, {NULL}};
static const struct mlo_cli_option change_options[] = {
    {"reason", 0, "TEXT", "why; the log keeps it"},
    MLO_OPTION_URL,
    {NULL},
};
#define CHANGE(variable, name_, run_, help_)                                                                 \
    const struct mlo_cli_verb variable = {                                                                   \
        .name = name_,                                                                                       \
        .group = "Service",                                                                                  \
        .run = run_,                                                                                         \
        .options = change_options,                                                                           \
        .positional = "WORKER",                                                                              \
        .min_args = 1,                                                                                       \
        .max_args = 1,                                                                                       \
        .help = help_,                                                                                       \
    }
const struct mlo_cli_verb mlo_verb_workers_list = {
    .name = "workers list",
    .group = "Service",
    .run = list_workers,
    .options = list_options,
    .positional = "",
    .help = "the workers of the last day",
};
CHANGE(mlo_verb_workers_pause, "workers pause", pause_run, "let a worker finish its jobs, and take no more");
CHANGE(mlo_verb_workers_resume, "workers resume", resume_run, "let a paused worker take jobs again");
CHANGE(mlo_verb_workers_drain, "workers drain", drain_run, "let a worker leave when its jobs are done");
