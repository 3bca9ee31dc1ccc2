/* `mlopt webhooks …`: who is told of what happens in a project, and what was sent. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/client/client.h"
#include "registry/webhook.h"

enum { PING_PATIENCE_S = 60, PING_LOOK_MS = 250 };

static void path_of(struct mlo_cli *cli, struct mlo_buf *path, const char *rest)
{
    mlo_client_path(path, "/v1/projects/%s/webhooks", cli->args[0]);
    for (int i = 1; i < cli->arg_count; i++)
        mlo_client_path(path, i == 1 ? "/%s" : "/deliveries/%s", cli->args[i]);
    mlo_buf_puts(path, rest);
}

/* One request: the path is made of the arguments and what follows. */
static enum mlo_status call(struct mlo_cli *cli, const char *method, const char *rest, const json_t *body,
                            json_t **out, struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    path_of(cli, &path, rest);
    enum mlo_status status = mlo_client_ask(cli, method, &path, body, out, err);
    mlo_buf_clear(&path);
    return status;
}

static const char *text_of(int64_t number, char out[24])
{
    snprintf(out, 24, "%lld", (long long)number);
    return out;
}

/* --- webhooks ------------------------------------------------------------------------------------ */

static void add_row(struct mlo_table *table, const json_t *row)
{
    struct mlo_buf events = MLO_BUF_INIT;
    char id[24], pending[24], since[32];
    mlo_client_join(json_object_get(row, "events"), &events);
    mlo_table_row(table, text_of(mlo_json_i64(row, "id", 0), id), mlo_json_str(row, "state", ""),
                  mlo_json_str(row, "url", ""), text_of(mlo_json_i64(row, "pending", 0), pending),
                  mlo_client_time(row, "failing_since", since), mlo_buf_str(&events));
    mlo_buf_clear(&events);
}

#define WEBHOOK_COLUMNS "id>|state|url|pending>|failing since (UTC)|events"

static enum mlo_status list_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *answer = NULL;
    enum mlo_status status = call(cli, "GET", "", NULL, &answer, err);
    if (status == MLO_OK)
        status = mlo_client_print_list(cli, json_object_get(answer, "items"), WEBHOOK_COLUMNS, add_row, err);
    json_decref(answer);
    return status;
}

static enum mlo_status print_one(struct mlo_cli *cli, const json_t *webhook, struct mlo_error *err)
{
    if (cli->json)
        return mlo_cli_print_json(webhook, err);
    enum mlo_status status = mlo_client_print_item(webhook, WEBHOOK_COLUMNS, add_row, err);
    const char *why = mlo_json_str(webhook, "state_reason", NULL),
               *secret = mlo_json_str(webhook, "secret", NULL);
    if (status == MLO_OK && why)
        status = mlo_cli_print(err, "%s\n", why);
    if (status == MLO_OK && secret)
        status = mlo_cli_print(err, "secret (shown this once): %s\n", secret);
    return status;
}

/* What --url, --event, --description and --state say. */
static json_t *settings(const struct mlo_cli *cli, const char *url)
{
    json_t *body = json_object(), *events = NULL;
    const char *event;
    if (url)
        json_object_set_new(body, "url", json_string(url));
    if (mlo_cli_opt(cli, "description"))
        json_object_set_new(body, "description", json_string(mlo_cli_opt(cli, "description")));
    for (size_t i = 0; (event = mlo_cli_opt_at(cli, "event", i)); i++) {
        events = events ? events : json_array();
        json_array_append_new(events, json_string(event));
    }
    if (events)
        json_object_set_new(body, "events", events);
    return body;
}

/* The answer of before, which broke off, came again without the secret. */
static enum mlo_status secret_is_there(const json_t *answer, struct mlo_error *err)
{
    return mlo_json_str(answer, "secret", NULL) ? MLO_OK
                                                : mlo_error_set(err, MLO_EIO, "the answer with it broke off");
}

/* The secret signs from now on, is kept nowhere that can be read, and nobody has it: why is in *err. */
static void secret_lost(const struct mlo_cli *cli, const char *what, const char *id, struct mlo_error *err)
{
    mlo_error_prefix(err, "%s, and the secret was lost", what);
    mlo_error_hint(err, "make another: mlopt webhooks rotate %s %s", cli->args[0], id);
}

static enum mlo_status add_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *body = settings(cli, cli->args[1]), *webhook = NULL;
    cli->arg_count = 1;
    enum mlo_status status = call(cli, "POST", "", body, &webhook, err);
    if (status == MLO_OK) {
        char id[24];
        status = print_one(cli, webhook, err);
        if (status == MLO_OK)
            status = secret_is_there(webhook, err);
        if (status != MLO_OK)
            secret_lost(cli, "the webhook was made", text_of(mlo_json_i64(webhook, "id", 0), id), err);
    }
    json_decref(body);
    json_decref(webhook);
    return status;
}

static enum mlo_status set_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *body = settings(cli, mlo_cli_opt(cli, "to")), *webhook = NULL;
    if (mlo_cli_opt(cli, "state"))
        json_object_set_new(body, "state", json_string(mlo_cli_opt(cli, "state")));
    enum mlo_status status = json_object_size(body) ? call(cli, "PUT", "", body, &webhook, err)
                                                    : call(cli, "GET", "", NULL, &webhook, err);
    if (status == MLO_OK)
        status = print_one(cli, webhook, err);
    json_decref(body);
    json_decref(webhook);
    return status;
}

static enum mlo_status remove_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return call(cli, "DELETE", "", NULL, NULL, err);
}

static enum mlo_status rotate_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *body = json_object(), *answer = NULL;
    int64_t overlap_s;
    enum mlo_status status;
    MLO_TRY(mlo_cli_int(cli, "overlap", 86400, 0, 30 * 86400, &overlap_s, err));
    json_object_set_new(body, "overlap_s", json_integer(overlap_s));
    MLO_TRY(call(cli, "POST", "/secrets", body, &answer, err));
    status = secret_is_there(answer, err);
    if (status == MLO_OK)
        status = cli->json ? mlo_cli_print_json(answer, err)
                           : mlo_cli_print(err, "%s\n", mlo_json_str(answer, "secret", ""));
    if (status != MLO_OK)
        secret_lost(cli, "there is a new secret", cli->args[1], err);
out:
    json_decref(body);
    json_decref(answer);
    return status;
}

static enum mlo_status events_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *all = json_object();
    mlo_table_init(&table, "event|told when");
    for (const struct mlo_webhook_event *e = mlo_webhook_events; e->name; e++) {
        json_object_set_new(all, e->name, json_string(e->help));
        mlo_table_row(&table, e->name, e->help);
    }
    enum mlo_status status = MLO_OK;
    if (cli->json) {
        mlo_table_clear(&table);
        status = mlo_cli_print_json(all, err);
    } else {
        status = mlo_table_print_take(&table, err);
    }
    json_decref(all);
    return status;
}

/* --- deliveries ---------------------------------------------------------------------------------- */

static void add_delivery(struct mlo_table *table, const json_t *row)
{
    char id[24], attempts[24], http[24], created[32], next[32];
    int64_t code = mlo_json_i64(row, "http_status", 0);
    mlo_table_row(table, text_of(mlo_json_i64(row, "id", 0), id), mlo_client_time(row, "created_at", created),
                  mlo_json_str(row, "type", ""), mlo_json_str(row, "state", ""),
                  text_of(mlo_json_i64(row, "attempts", 0), attempts), code ? text_of(code, http) : NULL,
                  mlo_client_time(row, "next_at", next), mlo_json_str(row, "error", NULL));
}

#define DELIVERY_COLUMNS "id>|written (UTC)|type|state|attempts>|http>|next (UTC)|error"

static enum mlo_status print_delivery(const json_t *row, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *attempt;
    size_t i;
    enum mlo_status status = mlo_client_print_item(row, DELIVERY_COLUMNS, add_delivery, err);
    if (status == MLO_OK)
        status = mlo_cli_print(err, "\nwebhook-id: %s\n%s\n\n", mlo_json_str(row, "message", ""),
                               mlo_json_str(row, "body", ""));
    if (status != MLO_OK)
        return status;
    mlo_table_init(&table, "attempt>|at (UTC)|ms>|http>|address|error");
    json_array_foreach(json_object_get(row, "attempts_made"), i, attempt)
    {
        char number[24], ms[24], http[24], at[32];
        int64_t code = mlo_json_i64(attempt, "http_status", 0);
        mlo_table_row(&table, text_of(mlo_json_i64(attempt, "number", 0), number),
                      mlo_client_time(attempt, "at", at), text_of(mlo_json_i64(attempt, "ms", 0), ms),
                      code ? text_of(code, http) : NULL, mlo_json_str(attempt, "address", NULL),
                      mlo_json_str(attempt, "error", NULL));
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status deliveries_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *items = NULL;
    int64_t limit;
    enum mlo_status status;
    MLO_TRY(mlo_cli_int(cli, "limit", 20, 1, 10000, &limit, err));
    if (cli->arg_count == 3) {
        MLO_TRY(call(cli, "GET", "", NULL, &items, err));
        status = cli->json ? mlo_cli_print_json(items, err) : print_delivery(items, err);
        goto out;
    }
    path_of(cli, &path, "/deliveries");
    MLO_TRY(mlo_buf_ok(&path) ? MLO_OK : mlo_error_nomem(err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), (size_t)limit, &items, err));
    status = mlo_client_print_list(cli, items, DELIVERY_COLUMNS, add_delivery, err);
out:
    json_decref(items);
    mlo_client_close(client);
    mlo_buf_clear(&path);
    return status;
}

static enum mlo_status replay_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *body = json_object();
    enum mlo_status status = call(cli, "POST", "/replays", body, NULL, err);
    json_decref(body);
    return status;
}

/* Sends one, and waits for what becomes of its first attempt. */
static enum mlo_status ping_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *body = json_object(), *answer = NULL, *row = NULL;
    struct mlo_buf rest = MLO_BUF_INIT;
    uint64_t begin_ns = mlo_clock_ns();
    enum mlo_status status;
    MLO_TRY(call(cli, "POST", "/pings", body, &answer, err));
    mlo_buf_printf(&rest, "/deliveries/%lld", (long long)mlo_json_i64(answer, "delivery", 0));
    do {
        json_decref(row);
        row = NULL;
        mlo_clock_sleep_ms(PING_LOOK_MS);
        MLO_TRY(call(cli, "GET", mlo_buf_str(&rest), NULL, &row, err));
    } while (json_array_size(json_object_get(row, "attempts_made")) == 0 &&
             mlo_clock_ns() - begin_ns < PING_PATIENCE_S * 1000000000ull);
    MLO_TRY(cli->json ? mlo_cli_print_json(row, err) : print_delivery(row, err));
    if (strcmp(mlo_json_str(row, "state", ""), "delivered") != 0) {
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "the ping was not delivered: %s",
                               mlo_json_str(row, "error", "see above"));
        mlo_error_hint(err, "it is tried again; mlopt webhooks deliveries %s %s", cli->args[0], cli->args[1]);
    }
out:
    json_decref(body);
    json_decref(answer);
    json_decref(row);
    mlo_buf_clear(&rest);
    return status;
}

/* --- the verbs ------------------------------------------------------------------------------------ */

#define OPTION_EVENT                                                                                         \
    {                                                                                                        \
        "event", 0, "NAME", "tell of this (may be given several times; all)", NULL, true                     \
    }
#define OPTION_DESCRIPTION                                                                                   \
    {                                                                                                        \
        "description", 0, "TEXT", "what it is for"                                                           \
    }

static const struct mlo_cli_option url_options[] = {MLO_OPTION_URL, {NULL}};
static const struct mlo_cli_option add_options[] = {OPTION_EVENT, OPTION_DESCRIPTION, MLO_OPTION_URL, {NULL}};
static const char *const states[] = {"enabled", "paused", NULL};
static const struct mlo_cli_option set_options[] = {
    {"to", 0, "ADDRESS", "the new URL"},
    OPTION_EVENT,
    OPTION_DESCRIPTION,
    {"state", 0, "enabled|paused", "while it is paused nothing is written for it", states},
    MLO_OPTION_URL,
    {NULL},
};
static const struct mlo_cli_option rotate_options[] = {
    {"overlap", 0, "S", "how long the secrets before sign too (86400)"},
    MLO_OPTION_URL,
    {NULL},
};
static const struct mlo_cli_option deliveries_options[] = {
    {"limit", 0, "N", "how many (20)"},
    MLO_OPTION_URL,
    {NULL},
};

/* Behind the options: help, and what else the verb has. */
#define VERB(id, options_, positional_, least, most, ...)                                                    \
    const struct mlo_cli_verb mlo_verb_webhooks_##id = {.name = "webhooks " #id,                             \
                                                        .group = "Releases",                                 \
                                                        .run = id##_run,                                     \
                                                        .options = options_,                                 \
                                                        .positional = positional_,                           \
                                                        .min_args = least,                                   \
                                                        .max_args = most,                                    \
                                                        .help = __VA_ARGS__}

VERB(list, url_options, "PROJECT", 1, 1, "the webhooks of a project");
VERB(add, add_options, "PROJECT URL", 2, 2, "tell a server of what happens in a project",
     .flags = MLO_CLI_TELLS_ONCE);
VERB(set, set_options, "PROJECT ID", 2, 2, "show or change a webhook, pause or enable it");
VERB(remove, url_options, "PROJECT ID", 2, 2, "remove a webhook");
VERB(rotate, rotate_options, "PROJECT ID", 2, 2, "a new secret for a webhook", .flags = MLO_CLI_TELLS_ONCE);
VERB(ping, url_options, "PROJECT ID", 2, 2, "send a webhook something to try it");
VERB(deliveries, deliveries_options, "PROJECT ID [DELIVERY]", 2, 3,
     "what was sent to a webhook, and what became of it");
VERB(replay, url_options, "PROJECT ID DELIVERY", 3, 3, "send a delivery again");
VERB(events, NULL, "", 0, 0, "what webhooks can be told of");
