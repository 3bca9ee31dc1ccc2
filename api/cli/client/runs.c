#include <string.h>

#include "api/cli/client/client.h"

enum mlo_status mlo_client_find_run(struct mlo_client *client, const char *only, int64_t id, json_t **out,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *projects = NULL, *name;
    size_t i;
    struct mlo_buf path = MLO_BUF_INIT;
    *out = NULL;
    MLO_TRY(mlo_client_projects(client, only, &projects, err));
    json_array_foreach(projects, i, name)
    {
        struct mlo_error own = {0};
        mlo_buf_reset(&path);
        mlo_client_path(&path, "/v1/projects/%s/runs/%d", json_string_value(name), (long long)id);
        status = mlo_client_get(client, mlo_buf_str(&path), out, &own);
        if (status == MLO_OK)
            goto out;
        if (status != MLO_ENOTFOUND) {
            *err = own;
            goto out;
        }
    }
    status = mlo_error_set(err, MLO_ENOTFOUND, "there is no run %lld%s%s", (long long)id, only ? " in " : "",
                           only ? only : "");
    mlo_error_hint(err, "mlopt runs");
out:
    json_decref(projects);
    mlo_buf_clear(&path);
    return status;
}

static enum mlo_status show_run(const struct mlo_cli *cli, const json_t *run, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_table table;
    json_t *row;
    size_t i;
    char created[32], progress[16], attempt[24];
    if (cli->json)
        return mlo_cli_print_json(run, err);
    MLO_TRY(mlo_cli_print(err, "run %lld  %s/%s@%lld  %s  %s  %s by %s\n",
                          (long long)mlo_json_i64(run, "id", 0), mlo_json_str(run, "project", ""),
                          mlo_json_str(run, "model", ""), (long long)mlo_json_i64(run, "version", 0),
                          mlo_json_str(run, "recipe", ""), mlo_json_str(run, "state", ""),
                          mlo_client_time(run, "created_at", created), mlo_json_str(run, "created_by", "?")));
    mlo_table_init(&table, "job>|step|state|progress>|attempt>|worker|message");
    json_array_foreach(json_object_get(run, "jobs"), i, row)
    {
        char id[24];
        const json_t *error = json_object_get(row, "error");
        const char *waits = mlo_json_str(row, "waits", NULL);
        struct mlo_buf text = MLO_BUF_INIT;
        if (waits)
            mlo_buf_printf(&text, "waits: %s", waits);
        snprintf(id, sizeof id, "%lld", (long long)mlo_json_i64(row, "id", 0));
        snprintf(progress, sizeof progress, "%.0f%%", 100 * mlo_json_f64(row, "progress", 0));
        snprintf(attempt, sizeof attempt, "%lld", (long long)mlo_json_i64(row, "attempt", 0));
        mlo_table_row(&table, id, mlo_json_str(row, "step", ""),
                      mlo_json_bool(row, "reused", false) ? "reused" : mlo_json_str(row, "state", ""),
                      progress, attempt, mlo_json_str(row, "worker", ""),
                      waits                   ? mlo_buf_str(&text)
                      : json_is_object(error) ? mlo_json_str(error, "message", "")
                                              : mlo_json_str(row, "message", ""));
        mlo_buf_clear(&text);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
    MLO_TRY(mlo_client_print_front(run, err));
    json_array_foreach(json_object_get(run, "expectations"), i, row)
        MLO_TRY(mlo_cli_print(err, "%s  %s  %s\n", mlo_json_bool(row, "holds", false) ? "holds" : "FAILS",
                              mlo_json_str(row, "condition", ""), mlo_json_str(row, "reason", "")));
    const json_t *error = json_object_get(run, "error");
    if (json_is_object(error))
        MLO_TRY(mlo_cli_print(err, "error: %s\n%s%s%s", mlo_json_str(error, "message", ""),
                              *mlo_json_str(error, "hint", "") ? "hint: " : "",
                              mlo_json_str(error, "hint", ""), *mlo_json_str(error, "hint", "") ? "\n" : ""));
out:
    return status;
}

static enum mlo_status list_runs(struct mlo_client *client, struct mlo_cli *cli, int64_t limit,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *projects = NULL, *name, *items = NULL, *row, *all = json_array();
    size_t i;
    struct mlo_buf path = MLO_BUF_INIT;
    const char *model = mlo_cli_opt(cli, "model"), *state = mlo_cli_opt(cli, "state");
    MLO_TRY(mlo_client_projects(client, mlo_cli_opt(cli, "project"), &projects, err));
    json_array_foreach(projects, i, name)
    {
        mlo_buf_reset(&path);
        mlo_client_path(&path, "/v1/projects/%s/runs", json_string_value(name));
        if (model)
            mlo_client_path(&path, "?model=%s", model);
        if (state)
            mlo_client_path(&path, model ? "&state=%s" : "?state=%s", state);
        MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), (size_t)limit, &items, err));
        json_array_extend(all, items);
        json_decref(items);
        items = NULL;
    }
    if (cli->json) {
        MLO_TRY(mlo_cli_print_json(all, err));
        goto out;
    }
    struct mlo_table table;
    mlo_table_init(&table, "run>|model|recipe|state|progress>|created|by");
    json_array_foreach(all, i, row)
    {
        char id[24], subject[160], progress[16], created[32];
        snprintf(id, sizeof id, "%lld", (long long)mlo_json_i64(row, "id", 0));
        snprintf(subject, sizeof subject, "%s/%s@%lld", mlo_json_str(row, "project", ""),
                 mlo_json_str(row, "model", ""), (long long)mlo_json_i64(row, "version", 0));
        snprintf(progress, sizeof progress, "%.0f%%", 100 * mlo_json_f64(row, "progress", 0));
        mlo_table_row(&table, id, subject, mlo_json_str(row, "recipe", ""), mlo_json_str(row, "state", ""),
                      progress, mlo_client_time(row, "created_at", created),
                      mlo_json_str(row, "created_by", ""));
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(projects);
    json_decref(items);
    json_decref(all);
    mlo_buf_clear(&path);
    return status;
}

enum mlo_status mlo_client_run_id(const char *text, int64_t *id, struct mlo_error *err)
{
    if (mlo_str_to_i64(text, id) && *id > 0)
        return MLO_OK;
    mlo_error_set(err, MLO_EUSAGE, "'%s' is no run: runs have numbers", text);
    mlo_error_hint(err, "mlopt runs");
    return MLO_EUSAGE;
}

static enum mlo_status runs_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    json_t *run = NULL;
    int64_t id = 0, limit;
    MLO_TRY(mlo_cli_int(cli, "limit", 20, 1, 10000, &limit, err));
    if (cli->arg_count)
        MLO_TRY(mlo_client_run_id(cli->args[0], &id, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    if (id) {
        MLO_TRY(mlo_client_find_run(client, mlo_cli_opt(cli, "project"), id, &run, err));
        MLO_TRY(show_run(cli, run, err));
    } else {
        MLO_TRY(list_runs(client, cli, limit, err));
    }
out:
    json_decref(run);
    mlo_client_close(client);
    return status;
}

/* A span as a bar of text over the run's time: every one has a mark. */
static void draw_span(char *out, size_t width, double from, double to, double seconds, char mark)
{
    size_t a = (size_t)(from / seconds * (double)width), b = (size_t)(to / seconds * (double)width);
    a = MLO_MIN(a, width - 1);
    b = MLO_MIN(MLO_MAX(b, a + 1), width);
    memset(out, ' ', width);
    memset(out + a, mark, b - a);
    out[width] = '\0';
}

static enum mlo_status trace_row(struct mlo_table *table, const json_t *job, const json_t *span,
                                 const char *what, char mark, double seconds)
{
    char from[24], took[24], bar[41], attempt[24] = "";
    double begin = mlo_json_f64(span, "from_s", 0), end = mlo_json_f64(span, "to_s", 0);
    snprintf(from, sizeof from, "%.3f s", begin);
    snprintf(took, sizeof took, "%.3f s", end - begin);
    if (json_is_integer(json_object_get(span, "attempt")))
        snprintf(attempt, sizeof attempt, "%lld", (long long)mlo_json_i64(span, "attempt", 0));
    draw_span(bar, sizeof bar - 1, begin, end, seconds, mark);
    mlo_table_row(table, mlo_json_str(job, "name", ""), what, attempt, from, took,
                  mlo_json_bool(span, "open", false) ? "goes on" : mlo_json_str(span, "outcome", ""), bar);
    return MLO_OK;
}

static enum mlo_status show_trace(const json_t *trace, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_table table;
    json_t *job, *span, *phase;
    size_t i, s, p;
    double seconds = MLO_MAX(mlo_json_f64(trace, "seconds", 0), 1e-3);
    MLO_TRY(mlo_cli_print(err, "run %lld  %s/%s@%lld  %s  %s  %.3f s since it was submitted\n",
                          (long long)mlo_json_i64(trace, "run", 0), mlo_json_str(trace, "project", ""),
                          mlo_json_str(trace, "model", ""), (long long)mlo_json_i64(trace, "version", 0),
                          mlo_json_str(trace, "recipe", ""), mlo_json_str(trace, "state", ""), seconds));
    mlo_table_init(&table, "job|what|attempt>|after>|took>|outcome|");
    json_array_foreach(json_object_get(trace, "jobs"), i, job)
    {
        json_array_foreach(json_object_get(job, "spans"), s, span)
        {
            const char *kind = mlo_json_str(span, "kind", "");
            MLO_TRY(trace_row(&table, job, span, kind, strcmp(kind, "attempt") == 0 ? '#' : '.', seconds));
            json_array_foreach(json_object_get(span, "phases"), p, phase)
            {
                if (mlo_json_f64(phase, "to_s", 0) - mlo_json_f64(phase, "from_s", 0) >=
                    5e-4) /* else "0.000 s" */
                    MLO_TRY(trace_row(&table, job, phase, mlo_json_str(phase, "name", ""), '=', seconds));
            }
        }
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    return status;
}

static enum mlo_status trace_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *run = NULL, *trace = NULL;
    int64_t id;
    bool otlp = mlo_cli_has(cli, "otlp");
    MLO_TRY(mlo_client_run_id(cli->args[0], &id, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_find_run(client, mlo_cli_opt(cli, "project"), id, &run, err));
    mlo_client_path(&path, "/v1/projects/%s/runs/%d/trace", mlo_json_str(run, "project", ""), (long long)id);
    if (otlp)
        mlo_buf_puts(&path, "?format=otlp");
    MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), &trace, err));
    MLO_TRY(cli->json || otlp ? mlo_cli_print_json(trace, err) : show_trace(trace, err));
out:
    json_decref(run);
    json_decref(trace);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

/* POST …/runs/ID/<what>, with --reason. */
static enum mlo_status change_run(struct mlo_cli *cli, const char *what, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_response response = {0};
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *run = NULL, *body = NULL;
    int64_t id;
    const char *reason = mlo_cli_opt(cli, "reason");
    MLO_TRY(mlo_client_run_id(cli->args[0], &id, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_find_run(client, mlo_cli_opt(cli, "project"), id, &run, err));
    mlo_client_path(&path, "/v1/projects/%s/runs/%d/%s", mlo_json_str(run, "project", ""), (long long)id,
                    what);
    body = reason ? json_pack("{s:s}", "reason", reason) : json_object();
    MLO_TRY(mlo_client_call(client, "POST", mlo_buf_str(&path), NULL, body, &response, err));
    MLO_TRY(cli->json ? mlo_cli_print_json(response.json, err)
                      : mlo_cli_print(err, "run %lld  %s\n", (long long)id,
                                      mlo_json_str(response.json, "state", "")));
out:
    json_decref(run);
    json_decref(body);
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

static enum mlo_status cancel_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return cli->arg_count > 1 ? mlo_client_cancel_many(cli, err) : change_run(cli, "cancel", err);
}

static enum mlo_status requeue_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return change_run(cli, "requeue", err);
}

static const struct mlo_cli_option runs_options[] = {
    {"project", 0, "NAME", "only of this project"},
    {"model", 0, "NAME", "only of this model"},
    {"state", 0, "STATE", "queued, running, succeeded, failed or cancelled"},
    {"limit", 0, "N", "at most so many of each project (20)"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_runs = {
    .name = "runs",
    .group = "Runs",
    .run = runs_run,
    .options = runs_options,
    .positional = "[ID]",
    .max_args = 1,
    .help = "runs, newest first; with a number: that one, with its jobs",
};
static const struct mlo_cli_option trace_options[] = {
    {"project", 0, "NAME", "the run's project"},
    {"otlp", 0, NULL, "as OpenTelemetry's JSON, for what reads its files"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_runs_trace = {
    .name = "runs trace",
    .group = "Runs",
    .run = trace_run,
    .options = trace_options,
    .positional = "ID",
    .min_args = 1,
    .max_args = 1,
    .help = "where a run's time went: waiting, attempts and their phases",
};
static const struct mlo_cli_option cancel_options[] = {
    {"project", 0, "NAME", "the run's project"},
    {"reason", 0, "TEXT", "why"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_cancel = {
    .name = "cancel",
    .group = "Runs",
    .run = cancel_run,
    .options = cancel_options,
    .positional = "ID…",
    .min_args = 1,
    .max_args = -1,
    .help = "stop runs",
};
const struct mlo_cli_verb mlo_verb_requeue = {
    .name = "requeue",
    .group = "Runs",
    .run = requeue_run,
    .options = cancel_options,
    .positional = "ID",
    .min_args = 1,
    .max_args = 1,
    .help = "take up a failed run again, from the job that failed",
};
