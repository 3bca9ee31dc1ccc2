/* `mlopt schedule …`: what a stage holds, measured again by the clock. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/client/client.h"
#include "pipeline/service/service.h"

enum { FIRINGS_SHOWN = 20 };

/* One request; the path is that of the project's schedules, of args[1] where that is given, and what follows.
 */
static enum mlo_status ask(struct mlo_cli *cli, const char *method, const char *rest, const json_t *body,
                           json_t **out, struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    mlo_client_path(&path, "/v1/projects/%s/schedules", cli->args[0]);
    if (cli->arg_count > 1)
        mlo_client_path(&path, "/%s", cli->args[1]);
    mlo_buf_puts(&path, rest);
    enum mlo_status status = mlo_client_ask(cli, method, &path, body, out, err);
    mlo_buf_clear(&path);
    return status;
}

/* --- showing ------------------------------------------------------------------------------------- */

#define COLUMNS "name|on|cron|zone|recipe|state|next (UTC)|last (UTC)|outcome"

static void add_row(struct mlo_table *table, const json_t *row)
{
    const json_t *last = json_object_get(row, "last");
    char on[160], next[32], at[32];
    snprintf(on, sizeof on, "%s:%s", mlo_json_str(row, "model", ""), mlo_json_str(row, "stage", ""));
    mlo_table_row(table, mlo_json_str(row, "name", ""), on, mlo_json_str(row, "cron", ""),
                  mlo_json_str(row, "time_zone", ""), mlo_json_str(row, "recipe_name", ""),
                  mlo_json_str(row, "state", ""), mlo_client_time(row, "next_at", next),
                  mlo_client_time(last, "at", at), mlo_json_str(last, "state", NULL));
}

static enum mlo_status print_one(struct mlo_cli *cli, const json_t *row, struct mlo_error *err)
{
    if (cli->json)
        return mlo_cli_print_json(row, err);
    enum mlo_status status = mlo_client_print_item(row, COLUMNS, add_row, err);
    const char *why = mlo_json_str(row, "state_reason", NULL);
    if (status == MLO_OK && why)
        status = mlo_cli_print(err, "paused by a server: %s\n", why);
    return status;
}

static void add_firing(struct mlo_table *table, const json_t *firing)
{
    struct mlo_buf runs = MLO_BUF_INIT;
    char id[24], release[24], at[32], due[32], ended[32];
    json_t *run;
    size_t i;
    int64_t number = mlo_json_i64(firing, "release", 0);
    snprintf(id, sizeof id, "%lld", (long long)mlo_json_i64(firing, "id", 0));
    snprintf(release, sizeof release, "#%lld", (long long)number);
    json_array_foreach(json_object_get(firing, "runs"), i, run)
        mlo_buf_printf(&runs, "%s%lld", i ? " " : "", (long long)mlo_json_i64(run, "run", 0));
    mlo_table_row(table, id, mlo_client_time(firing, "due_at", due), mlo_client_time(firing, "at", at),
                  mlo_json_str(firing, "fired_by", ""), number ? release : NULL,
                  runs.len ? mlo_buf_str(&runs) : NULL, mlo_json_str(firing, "state", ""),
                  mlo_client_time(firing, "ended_at", ended),
                  mlo_json_str(json_object_get(firing, "error"), "message", NULL));
    mlo_buf_clear(&runs);
}

#define FIRING_COLUMNS "id>|due (UTC)|fired (UTC)|by|release|runs|outcome|ended (UTC)|why"

static enum mlo_status list_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *answer = NULL;
    enum mlo_status status = ask(cli, "GET", "", NULL, &answer, err);
    if (status == MLO_OK)
        status = mlo_client_print_list(cli, json_object_get(answer, "items"), COLUMNS, add_row, err);
    json_decref(answer);
    return status;
}

static enum mlo_status show_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *schedule = NULL, *page = NULL;
    char rest[48];
    int64_t limit;
    enum mlo_status status;
    MLO_TRY(mlo_cli_int(cli, "limit", FIRINGS_SHOWN, 1, 200, &limit, err));
    snprintf(rest, sizeof rest, "/firings?limit=%lld", (long long)limit);
    MLO_TRY(ask(cli, "GET", "", NULL, &schedule, err));
    MLO_TRY(ask(cli, "GET", rest, NULL, &page, err));
    if (cli->json) {
        json_object_set(schedule, "firings", json_object_get(page, "items"));
        status = mlo_cli_print_json(schedule, err);
        goto out;
    }
    MLO_TRY(print_one(cli, schedule, err));
    MLO_TRY(mlo_cli_print(
        err, "firings: %lld succeeded, %lld failed, %lld cancelled, %lld skipped\n\n",
        (long long)mlo_json_i64(schedule, "succeeded", 0), (long long)mlo_json_i64(schedule, "failed", 0),
        (long long)mlo_json_i64(schedule, "cancelled", 0), (long long)mlo_json_i64(schedule, "skipped", 0)));
    MLO_TRY(mlo_client_print_list(cli, json_object_get(page, "items"), FIRING_COLUMNS, add_firing, err));
out:
    json_decref(schedule);
    json_decref(page);
    return status;
}

/* --- changing ------------------------------------------------------------------------------------ */

static enum mlo_status add_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client_ref ref;
    const char *name = NULL, *cron = NULL, *stage = mlo_cli_opt(cli, "stage"),
               *zone = mlo_cli_opt(cli, "zone");
    json_t *body = NULL, *answer = NULL;
    int64_t priority;
    enum mlo_status status;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, false, false, err));
    MLO_TRY(mlo_cli_required(cli, "name", &name, err));
    MLO_TRY(mlo_cli_required(cli, "cron", &cron, err));
    MLO_TRY(mlo_cli_int(cli, "priority", MLO_SCHEDULE_PRIORITY, -100, 100, &priority, err));
    body = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:b}", "model", ref.name, "name", name, "cron", cron,
                     "stage", stage ? stage : "production", "time_zone", zone ? zone : "UTC", "priority",
                     (json_int_t)priority, "paused", mlo_cli_has(cli, "paused"));
    if (!body) {
        status = mlo_error_set(err, MLO_EUSAGE, "the options are not UTF-8 text");
        goto out;
    }
    MLO_TRY(mlo_client_add_recipe(cli, false, body, err));
    cli->args[0] = ref.project;
    MLO_TRY(ask(cli, "POST", "", body, &answer, err));
    MLO_TRY(print_one(cli, answer, err));
out:
    json_decref(body);
    json_decref(answer);
    return status;
}

/* {"reason"}: of --reason, or {}. */
static json_t *reason_body(const struct mlo_cli *cli)
{
    return json_pack("{s:s*}", "reason", mlo_cli_opt(cli, "reason"));
}

static enum mlo_status change(struct mlo_cli *cli, const char *rest, struct mlo_error *err)
{
    json_t *body = reason_body(cli), *answer = NULL;
    enum mlo_status status = ask(cli, "POST", rest, body, &answer, err);
    if (status == MLO_OK)
        status = print_one(cli, answer, err);
    json_decref(body);
    json_decref(answer);
    return status;
}

static enum mlo_status pause_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return change(cli, "/pause", err);
}

static enum mlo_status resume_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return change(cli, "/resume", err);
}

static enum mlo_status remove_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = ask(cli, "DELETE", "", NULL, NULL, err);
    if (status == MLO_OK)
        mlo_cli_note(cli, "schedule %s is removed; its runs and what they measured stay", cli->args[1]);
    return status;
}

static enum mlo_status fire_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *body = json_object(), *firing = NULL;
    struct mlo_table table;
    enum mlo_status status;
    MLO_TRY(ask(cli, "POST", "/firings", body, &firing, err));
    if (cli->json) {
        status = mlo_cli_print_json(firing, err);
        goto out;
    }
    mlo_table_init(&table, FIRING_COLUMNS);
    add_firing(&table, firing);
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(body);
    json_decref(firing);
    return status;
}

/* --- the verbs ------------------------------------------------------------------------------------ */

static const char *const stages[] = {"production", "staging", NULL};
static const struct mlo_cli_option add_options[] = {
    {"name", 0, "NAME", "what it is called in the project"},
    {"cron", 0, "EXPR", "when: minute, hour, day, month, weekday, as in '0 3 * * mon-fri'"},
    {"zone", 0, "ZONE", "the time zone that it is meant in: Europe/Berlin (UTC)"},
    {"stage", 0, "production|staging", "what it measures again (production)", stages},
    {"recipe", 'r', "FILE|NAME", "steps that measure, and what is expected of them"},
    {"set", 0, "STEP.OPTION=V", "change an option of the recipe", NULL, true},
    {"priority", 0, "N", "of its jobs; negative ones wait for all others (-10)"},
    {"paused", 0, NULL, "do not begin yet"},
    MLO_OPTION_URL,
    {NULL},
};
static const struct mlo_cli_option url_options[] = {MLO_OPTION_URL, {NULL}};
static const struct mlo_cli_option reason_options[] = {
    {"reason", 0, "TEXT", "why, for the audit log"},
    MLO_OPTION_URL,
    {NULL},
};
static const struct mlo_cli_option show_options[] = {
    {"limit", 0, "N", "how many firings (20)"},
    MLO_OPTION_URL,
    {NULL},
};

#define VERB(id, name_, run_, options_, positional_, least, most, help_)                                     \
    const struct mlo_cli_verb mlo_verb_schedule_##id = {.name = "schedule " name_,                           \
                                                        .group = "Runs",                                     \
                                                        .run = run_,                                         \
                                                        .options = options_,                                 \
                                                        .positional = positional_,                           \
                                                        .min_args = least,                                   \
                                                        .max_args = most,                                    \
                                                        .help = help_}

VERB(add, "add", add_run, add_options, "PROJECT/MODEL", 1, 1,
     "measure what a stage holds again, by the clock");
VERB(list, "list", list_run, url_options, "PROJECT", 1, 1, "the schedules of a project");
VERB(show, "show", show_run, show_options, "PROJECT NAME", 2, 2,
     "a schedule, when it fired and what came of it");
VERB(pause, "pause", pause_run, reason_options, "PROJECT NAME", 2, 2,
     "a schedule fires no more until it is resumed");
VERB(resume, "resume", resume_run, reason_options, "PROJECT NAME", 2, 2,
     "a paused schedule fires again, from its next time on");
VERB(remove, "remove", remove_run, url_options, "PROJECT NAME", 2, 2, "remove a schedule; its runs stay");
VERB(run, "run", fire_run, url_options, "PROJECT NAME", 2, 2, "fire a schedule now");
