/* `mlopt queue …`, `mlopt requeue`, `mlopt usage`: a project's share of the workers, and what it used. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/client/client.h"
#include "pipeline/service/service.h"

/* --- queue --------------------------------------------------------------------------------------- */

static const char *limit_text(const json_t *queue, const char *key, char out[32])
{
    const json_t *value = json_object_get(queue, key);
    snprintf(out, 32, json_is_number(value) ? "%g" : "none", json_number_value(value));
    return out;
}

static enum mlo_status show(struct mlo_cli *cli, const json_t *queue, struct mlo_error *err)
{
    struct mlo_table table;
    char weight[32], most[32], gpu[64], month[32], queued[24], running[24], storage[72], kept[32], may[32];
    int64_t limit = mlo_json_i64(queue, "storage_bytes", -1);
    if (cli->json)
        return mlo_cli_print_json(queue, err);
    snprintf(queued, sizeof queued, "%lld", (long long)mlo_json_i64(queue, "queued", 0));
    snprintf(running, sizeof running, "%lld", (long long)mlo_json_i64(queue, "running", 0));
    snprintf(gpu, sizeof gpu, "%g of %s", mlo_json_f64(queue, "gpu_seconds_used", 0),
             limit_text(queue, "gpu_seconds_month", month));
    snprintf(storage, sizeof storage, "%s of %s",
             mlo_str_size((uint64_t)mlo_json_i64(queue, "storage_used", 0), kept),
             limit < 0 ? "none" : mlo_str_size((uint64_t)limit, may));
    mlo_table_init(&table, "project|queued>|running>|weight>|jobs at once>|GPU s this month>|storage>|state");
    mlo_table_row(&table, mlo_json_str(queue, "project", ""), queued, running,
                  limit_text(queue, "weight", weight), limit_text(queue, "max_running", most), gpu, storage,
                  mlo_json_bool(queue, "paused", false) ? "paused" : "open");
    enum mlo_status status = mlo_table_print_take(&table, err);
    if (status == MLO_OK && mlo_json_bool(queue, "paused", false)) {
        const char *why = mlo_json_str(queue, "paused_reason", "");
        status = mlo_cli_print(err, "paused by %s%s%s\n", mlo_json_str(queue, "paused_by", "?"),
                               *why ? ": " : "", why);
    }
    return status;
}

static enum mlo_status queue_call(struct mlo_cli *cli, const char *method, const json_t *body,
                                  struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *answer = NULL;
    mlo_client_path(&path, "/v1/projects/%s/queue", cli->args[0]);
    enum mlo_status status = mlo_client_ask(cli, method, &path, body, &answer, err);
    if (status == MLO_OK)
        status = show(cli, answer, err);
    json_decref(answer);
    mlo_buf_clear(&path);
    return status;
}

static enum mlo_status queue_show(struct mlo_cli *cli, struct mlo_error *err)
{
    return queue_call(cli, "GET", NULL, err);
}

/* "none" removes a limit. */
static enum mlo_status add_number(const struct mlo_cli *cli, const char *option, const char *key, bool limit,
                                  json_t *body, struct mlo_error *err)
{
    const char *text = mlo_cli_opt(cli, option);
    char *end;
    if (!text)
        return MLO_OK;
    if (limit && strcmp(text, "none") == 0) {
        json_object_set_new(body, key, json_null());
        return MLO_OK;
    }
    double number = strtod(text, &end);
    if (end == text || *end)
        return mlo_error_set(err, MLO_EUSAGE, "--%s is a number%s, not '%s'", option, limit ? " or none" : "",
                             text);
    json_object_set_new(body, key, json_real(number));
    return MLO_OK;
}

/* --storage SIZE|none */
static enum mlo_status add_storage(const struct mlo_cli *cli, json_t *body, struct mlo_error *err)
{
    const char *text = mlo_cli_opt(cli, "storage");
    uint64_t bytes;
    if (!text)
        return MLO_OK;
    if (strcmp(text, "none") == 0) {
        json_object_set_new(body, "storage_bytes", json_null());
        return MLO_OK;
    }
    if (!mlo_str_to_size(text, &bytes))
        return mlo_error_set(err, MLO_EUSAGE, "--storage is a size such as 500GB or 2TiB, or none, not '%s'",
                             text);
    json_object_set_new(body, "storage_bytes", json_integer((json_int_t)bytes));
    return MLO_OK;
}

static enum mlo_status queue_set(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *body = json_object();
    bool pause = mlo_cli_has(cli, "pause"), resume = mlo_cli_has(cli, "resume");
    MLO_TRY(add_number(cli, "weight", "weight", false, body, err));
    MLO_TRY(add_number(cli, "max-running", "max_running", true, body, err));
    MLO_TRY(add_number(cli, "gpu-seconds", "gpu_seconds_month", true, body, err));
    MLO_TRY(add_storage(cli, body, err));
    if (pause && resume) {
        status = mlo_error_set(err, MLO_EUSAGE, "--pause or --resume, not both");
        goto out;
    }
    if (pause || resume)
        json_object_set_new(body, "paused", json_boolean(pause));
    if (json_object_size(body) == 0) {
        status = mlo_error_set(err, MLO_EUSAGE, "nothing to change");
        mlo_error_hint(err, "--weight, --max-running, --gpu-seconds, --storage, --pause or --resume");
        goto out;
    }
    if (mlo_cli_opt(cli, "reason"))
        json_object_set_new(body, "reason", json_string(mlo_cli_opt(cli, "reason")));
    MLO_TRY(queue_call(cli, "PUT", body, err));
out:
    json_decref(body);
    return status;
}

/* --- usage --------------------------------------------------------------------------------------- */

static enum mlo_status print_months(const json_t *months, struct mlo_error *err)
{
    struct mlo_table table;
    const json_t *row;
    size_t i;
    mlo_table_init(&table,
                   "month|attempts>|reused>|failed>|hours>|CPU hours>|GPU hours>|read GB>|written GB>");
    json_array_foreach((json_t *)months, i, row)
    {
        char n[3][24], hours[3][32], gb[2][32];
        static const char *const whole[] = {"attempts", "reused", "failed"},
                                 *const seconds[] = {"wall_s", "cpu_s", "gpu_s"},
                                 *const bytes[] = {"read_bytes", "written_bytes"};
        for (int k = 0; k < 3; k++) {
            snprintf(n[k], sizeof n[k], "%lld", (long long)mlo_json_i64(row, whole[k], 0));
            snprintf(hours[k], sizeof hours[k], "%.2f", mlo_json_f64(row, seconds[k], 0) / 3600);
        }
        for (int k = 0; k < 2; k++)
            snprintf(gb[k], sizeof gb[k], "%.3f", (double)mlo_json_i64(row, bytes[k], 0) / 1e9);
        mlo_table_row(&table, mlo_json_str(row, "month", ""), n[0], n[1], n[2], hours[0], hours[1], hours[2],
                      gb[0], gb[1]);
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status usage_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_buf path = MLO_BUF_INIT, text = MLO_BUF_INIT;
    json_t *answer = NULL;
    bool csv = mlo_cli_has(cli, "csv");
    mlo_client_path(&path, "/v1/projects/%s/usage", cli->args[0]);
    MLO_TRY(mlo_client_ask(cli, "GET", &path, NULL, &answer, err));
    if (csv) {
        mlo_usage_csv(&text, cli->args[0], json_object_get(answer, "items"));
        MLO_TRY(mlo_cli_print(err, "%s", mlo_buf_str(&text)));
    } else if (cli->json) {
        MLO_TRY(mlo_cli_print_json(json_object_get(answer, "items"), err));
    } else {
        MLO_TRY(print_months(json_object_get(answer, "items"), err));
    }
out:
    json_decref(answer);
    mlo_buf_clear(&path);
    mlo_buf_clear(&text);
    return status;
}

/* --- the verbs ----------------------------------------------------------------------------------- */

static const struct mlo_cli_option url_options[] = {MLO_OPTION_URL, {NULL}};
static const struct mlo_cli_option set_options[] = {
    {"weight", 0, "W", "its share of the workers' time beside other projects' (1)"},
    {"max-running", 0, "N|none", "so many of its jobs at once"},
    {"gpu-seconds", 0, "S|none", "so many GPU seconds in a calendar month"},
    {"storage", 0, "SIZE|none", "so much in the blob store: 500GB, 2TiB"},
    {"pause", 0, NULL, "claim nothing of it; what runs goes on"},
    {"resume", 0, NULL, "go on"},
    {"reason", 0, "TEXT", "why"},
    MLO_OPTION_URL,
    {NULL},
};
static const struct mlo_cli_option usage_options[] = {
    {"csv", 0, NULL, "as comma-separated values"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_queue_show = {
    .name = "queue show",
    .group = "Runs",
    .run = queue_show,
    .options = url_options,
    .positional = "PROJECT",
    .min_args = 1,
    .max_args = 1,
    .help = "a project's share of the workers, its limits, what waits",
};
const struct mlo_cli_verb mlo_verb_queue_set = {
    .name = "queue set",
    .group = "Runs",
    .run = queue_set,
    .options = set_options,
    .positional = "PROJECT",
    .min_args = 1,
    .max_args = 1,
    .help = "change its share or limits, pause it or go on",
};
const struct mlo_cli_verb mlo_verb_usage = {
    .name = "usage",
    .group = "Runs",
    .run = usage_run,
    .options = usage_options,
    .positional = "PROJECT",
    .min_args = 1,
    .max_args = 1,
    .help = "what a project's jobs used, by month",
};
