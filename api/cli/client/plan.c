/* `plan`, and `submit --dry-run`: what submitting would do, asked of the server, which submits nothing. */
#include <string.h>

#include "api/cli/client/client.h"

static const char *seconds_text(const json_t *row, char out[48])
{
    const json_t *each = json_object_get(row, "estimate_s");
    double s = json_number_value(each);
    if (mlo_json_bool(row, "cached", false))
        snprintf(out, 48, "0");
    else if (!json_is_number(each))
        snprintf(out, 48, "?");
    else
        snprintf(out, 48, s < 60 ? "%.1f s" : "%.0f min", s < 60 ? s : s / 60);
    return out;
}

static const char *needs_text(const json_t *resources, char *out, size_t size)
{
    char memory[32], gpus[64] = "", limit[32] = "";
    int64_t count = mlo_json_i64(resources, "gpus", 0), timeout_s = mlo_json_i64(resources, "timeout_s", 0);
    const char *gpu = mlo_json_str(resources, "gpu", NULL);
    if (count)
        snprintf(gpus, sizeof gpus, ", %lld %s", (long long)count, gpu ? gpu : count == 1 ? "GPU" : "GPUs");
    if (timeout_s)
        snprintf(limit, sizeof limit, ", %lld s at most", (long long)timeout_s);
    snprintf(out, size, "%s%s%s", mlo_str_size((uint64_t)mlo_json_i64(resources, "memory_bytes", 0), memory),
             gpus, limit);
    return out;
}

static enum mlo_status print_plan(const json_t *plan, struct mlo_error *err)
{
    struct mlo_table table;
    const json_t *row;
    size_t i;
    char seconds[48], runs[24];
    mlo_table_init(&table, "job>|step|kind|on|needs|known|takes about>|of runs>|derivation");
    json_array_foreach(json_object_get(plan, "jobs"), i, row)
    {
        char position[24], derivation[24], needs[96];
        snprintf(position, sizeof position, "%lld", (long long)mlo_json_i64(row, "position", 0));
        snprintf(runs, sizeof runs, "%lld", (long long)mlo_json_i64(row, "estimate_of", 0));
        snprintf(derivation, sizeof derivation, "%.19s", mlo_json_str(row, "derivation", ""));
        mlo_table_row(&table, position, mlo_json_str(row, "step", ""), mlo_json_str(row, "kind", ""),
                      mlo_json_str(row, "target", ""),
                      needs_text(json_object_get(row, "resources"), needs, sizeof needs),
                      mlo_json_bool(row, "cached", false) ? "cached" : "", seconds_text(row, seconds), runs,
                      derivation);
    }
    enum mlo_status status = mlo_table_print_take(&table, err);
    if (status == MLO_OK)
        status = mlo_cli_print(
            err, "%s: about %s%s\n", mlo_json_str(plan, "on", ""), seconds_text(plan, seconds),
            json_is_null(json_object_get(plan, "estimate_s")) ? " (a step never ran on a model of this size)"
                                                              : "");
    return status;
}

/* A row a model: how many jobs, how many of them are known already, how long, or why there is no plan. */
static enum mlo_status print_items(const json_t *items, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *item, *job;
    size_t i, k;
    mlo_table_init(&table, "of|jobs>|known>|takes about>|why not");
    json_array_foreach((json_t *)items, i, item)
    {
        const json_t *plan = json_object_get(item, "plan"), *jobs = json_object_get(plan, "jobs");
        char count[24] = "-", known[24] = "-", seconds[48] = "-";
        size_t cached = 0;
        json_array_foreach((json_t *)jobs, k, job) cached += mlo_json_bool(job, "cached", false);
        if (plan) {
            snprintf(count, sizeof count, "%zu", json_array_size(jobs));
            snprintf(known, sizeof known, "%zu", cached);
            seconds_text(plan, seconds);
        }
        mlo_table_row(&table, mlo_json_str(plan ? plan : item, plan ? "on" : "model", ""), count, known,
                      seconds, mlo_json_str(json_object_get(item, "problem"), "detail", ""));
    }
    return mlo_table_print_take(&table, err);
}

/* Asks for the plan of one model, with what `how` says of the run. */
static enum mlo_status ask(struct mlo_client *client, const char *path, const json_t *how,
                           const json_t *model, json_t **plan, struct mlo_error *err)
{
    struct mlo_response response = {0};
    json_t *body = json_copy((json_t *)how);
    enum mlo_status status = body && json_object_update(body, (json_t *)model) == 0
                                 ? mlo_client_call(client, "POST", path, NULL, body, &response, err)
                                 : mlo_error_nomem(err);
    if (status == MLO_OK)
        *plan = json_incref(response.json);
    mlo_response_clear(&response);
    json_decref(body);
    return status;
}

/* As an item of a submission of many says it. */
static json_t *problem_of(const struct mlo_error *why, const struct mlo_status_info *info)
{
    return json_pack("{s:s, s:s, s:i, s:s, s:s, s:s*, s:s*, s:b}", "type", "about:blank", "title", info->text,
                     "status", info->http, "code", info->code, "detail", why->message, "where",
                     *why->where ? why->where : NULL, "hint", *why->hint ? why->hint : NULL, "retry",
                     info->retry);
}

/* {"model", "version", "status", "plan"}, or "problem" in place of the plan: as the items of a submission of
 * many.
 */
static enum mlo_status ask_item(struct mlo_client *client, const char *path, const json_t *how, json_t *item,
                                struct mlo_error *err)
{
    struct mlo_error why = {0};
    json_t *plan = NULL;
    int64_t version = 0;
    enum mlo_status status = ask(client, path, how, item, &plan, &why);
    const struct mlo_status_info *info = mlo_status_info(status);
    if (status != MLO_OK && (info->retry || status == MLO_EAUTH)) { /* it is so for all of them */
        *err = why;
        return status;
    }
    const char *at = strrchr(mlo_json_str(plan, "on", ""), '@'); /* the latest, where none was asked for */
    bool known = at && mlo_str_to_i64(at + 1, &version);
    if (known || !json_object_get(item, "version"))
        json_object_set_new(item, "version", known ? json_integer(version) : json_null());
    bool set = json_object_set_new(item, "status", json_integer(status == MLO_OK ? 200 : info->http)) == 0;
    set = json_object_set_new(item, status == MLO_OK ? "plan" : "problem",
                              status == MLO_OK ? plan : problem_of(&why, info)) == 0 &&
          set;
    return set ? MLO_OK : mlo_error_nomem(err);
}

/* Of several models, each for itself; where the server lets go of one, those before it are shown. */
static enum mlo_status plan_many(struct mlo_cli *cli, struct mlo_client *client, const char *path,
                                 const json_t *how, json_t *models, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK, printed = MLO_OK;
    struct mlo_error own = {0};
    size_t done = 0;
    while (done < json_array_size(models) &&
           (status = ask_item(client, path, how, json_array_get(models, done), err)) == MLO_OK)
        done++;
    while (json_array_size(models) > done)
        json_array_remove(models, json_array_size(models) - 1);
    if (done)
        printed = cli->json ? mlo_cli_print_json(models, &own) : print_items(models, &own);
    if (status != MLO_OK)
        return status;
    cli->request_id[0] = '\0'; /* the last answer's; what failed may be another's */
    status = printed == MLO_OK ? mlo_client_many_outcome(models, "planned", &own) : printed;
    *err = own;
    return status;
}

enum mlo_status mlo_client_plan(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_client *client = NULL;
    struct mlo_buf path = MLO_BUF_INIT;
    char project[104] = "";
    json_t *how = json_object(), *request = json_object(), *plan = NULL;
    MLO_TRY(mlo_client_read_models(cli, project, request, err));
    MLO_TRY(mlo_client_add_recipe(cli, true, how, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/plans", project);
    json_t *models = json_object_get(request, "models");
    if (cli->arg_count == 1) {
        MLO_TRY(ask(client, mlo_buf_str(&path), how, json_array_get(models, 0), &plan, err));
        MLO_TRY(cli->json ? mlo_cli_print_json(plan, err) : print_plan(plan, err));
        goto out;
    }
    status = plan_many(cli, client, mlo_buf_str(&path), how, models, err);
out:
    json_decref(how);
    json_decref(request);
    json_decref(plan);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {MLO_OPTIONS_RECIPE, MLO_OPTION_URL, {NULL}};
const struct mlo_cli_verb mlo_verb_plan = {
    .name = "plan",
    .group = "Runs",
    .run = mlo_client_plan,
    .options = options,
    .positional = "PROJECT/MODEL[@V]… --recipe FILE|NAME",
    .min_args = 1,
    .max_args = -1,
    .help = "what submitting would do: its steps, what is cached, how long it takes",
};
