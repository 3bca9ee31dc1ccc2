/* `mlopt members …`: who may do what in a project, and by which tokens. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/client/client.h"

/* PROJECT [NAME [ID]] and what follows. */
static enum mlo_status call(struct mlo_cli *cli, const char *method, const char *rest, const json_t *body,
                            json_t **out, struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    mlo_client_path(&path, "/v1/projects/%s/members", cli->args[0]);
    if (cli->arg_count > 1)
        mlo_client_path(&path, "/%s", cli->args[1]);
    mlo_buf_puts(&path, rest);
    if (cli->arg_count > 2)
        mlo_client_path(&path, "/%s", cli->args[2]);
    enum mlo_status status = mlo_client_ask(cli, method, &path, body, out, err);
    mlo_buf_clear(&path);
    return status;
}

static void add_row(struct mlo_table *table, const json_t *row)
{
    static const char *const stages[] = {"staging", "production"};
    struct mlo_buf roles = MLO_BUF_INIT;
    char tokens[24], used[32];
    const json_t *in = json_object_get(row, "stages");
    mlo_buf_puts(&roles, mlo_json_str(row, "role", ""));
    for (size_t i = 0; i < MLO_COUNT(stages); i++)
        if (mlo_json_str(in, stages[i], NULL))
            mlo_buf_printf(&roles, ", %s=%s", stages[i], mlo_json_str(in, stages[i], ""));
    if (mlo_json_bool(row, "approve", false))
        mlo_buf_puts(&roles, ", approves");
    snprintf(tokens, sizeof tokens, "%lld", (long long)mlo_json_i64(row, "tokens", 0));
    mlo_table_row(table, mlo_json_str(row, "name", ""), mlo_json_str(row, "kind", ""), mlo_buf_str(&roles),
                  tokens, mlo_client_time(row, "last_used_at", used), mlo_json_str(row, "description", ""));
    mlo_buf_clear(&roles);
}

#define MEMBER_COLUMNS "member|kind|role|tokens>|last used (UTC)|description"

static enum mlo_status list_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *answer = NULL;
    enum mlo_status status = call(cli, "GET", "", NULL, &answer, err);
    if (status == MLO_OK)
        status = mlo_client_print_list(cli, json_object_get(answer, "items"), MEMBER_COLUMNS, add_row, err);
    json_decref(answer);
    return status;
}

/* --stage staging=promoter */
static enum mlo_status stages_of(const struct mlo_cli *cli, json_t **out, struct mlo_error *err)
{
    const char *text;
    *out = json_object();
    for (size_t i = 0; (text = mlo_cli_opt_at(cli, "stage", i)); i++) {
        const char *equals = strchr(text, '=');
        char stage[32];
        if (!equals || (size_t)(equals - text) >= sizeof stage) {
            mlo_error_set(err, MLO_EUSAGE, "--stage '%s' is not understood", text);
            mlo_error_hint(err, "write --stage staging=promoter or --stage production=approver");
            return MLO_EUSAGE;
        }
        snprintf(stage, sizeof stage, "%.*s", (int)(equals - text), text);
        json_object_set_new(*out, stage, json_string(equals + 1));
    }
    return MLO_OK;
}

static enum mlo_status set_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *body = NULL, *stages = NULL, *answer = NULL;
    bool service = mlo_cli_has(cli, "service");
    enum mlo_status status;
    const char *role, *description = mlo_cli_opt(cli, "description"), *reason = mlo_cli_opt(cli, "reason");
    MLO_TRY(mlo_cli_required(cli, "role", &role, err));
    MLO_TRY(stages_of(cli, &stages, err));
    body = json_pack("{s:s, s:s, s:O, s:s*, s:s*}", "kind", service ? "service" : "person", "role", role,
                     "stages", stages, "description", description, "reason", reason);
    if (mlo_cli_has(cli, "approve"))
        json_object_set_new(body, "approve", json_true());
    MLO_TRY(call(cli, "PUT", "", body, &answer, err));
    status = cli->json ? mlo_cli_print_json(answer, err)
                       : mlo_client_print_item(answer, MEMBER_COLUMNS, add_row, err);
out:
    json_decref(body);
    json_decref(stages);
    json_decref(answer);
    return status;
}

static enum mlo_status remove_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_buf rest = MLO_BUF_INIT;
    const char *reason = mlo_cli_opt(cli, "reason");
    json_t *answer = NULL;
    if (reason)
        mlo_client_path(&rest, "?reason=%s", reason);
    enum mlo_status status = call(cli, "DELETE", mlo_buf_str(&rest), NULL, &answer, err);
    if (status == MLO_OK && !cli->json)
        mlo_cli_note(cli, "%s is no member of %s any more; its tokens are revoked", cli->args[1],
                     cli->args[0]);
    mlo_buf_clear(&rest);
    json_decref(answer);
    return status;
}

/* The token is live, its text is kept nowhere, and nobody has it: why is in *err. */
static void token_lost(const struct mlo_cli *cli, const json_t *answer, struct mlo_error *err)
{
    const long long id = (long long)mlo_json_i64(answer, "id", 0);
    mlo_error_prefix(err, "token %lld of %s was made, and its text was lost", id, cli->args[1]);
    mlo_error_hint(err, "revoke it, and make another: mlopt members revoke %s %s %lld", cli->args[0],
                   cli->args[1], id);
}

static enum mlo_status token_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *body = NULL, *answer = NULL;
    const char *name = mlo_cli_opt(cli, "name"), *stage = mlo_cli_opt(cli, "stage");
    int64_t days;
    enum mlo_status status;
    MLO_TRY(mlo_cli_int(cli, "days", 90, 0, 36500, &days, err));
    body = json_pack("{s:s, s:I, s:b, s:s*}", "name", name ? name : "mlopt members token", "expires_days",
                     (json_int_t)days, "read_only", mlo_cli_has(cli, "read-only"), "stage", stage);
    MLO_TRY(call(cli, "POST", "/tokens", body, &answer, err));
    if (!mlo_json_str(answer, "token", NULL)) /* the answer of before, which broke off */
        status = mlo_error_set(err, MLO_EIO, "the answer with it broke off");
    else if (cli->json)
        status = mlo_cli_print_json(answer, err);
    else /* alone on its line, so that it can go into a file */
        status = mlo_cli_print(err, "%s\n", mlo_json_str(answer, "token", ""));
    if (status != MLO_OK)
        token_lost(cli, answer, err);
    else if (!cli->json)
        mlo_cli_note(cli, "token %lld of %s, shown this once%s", (long long)mlo_json_i64(answer, "id", 0),
                     cli->args[1], days ? "" : "; it never expires");
out:
    json_decref(body);
    json_decref(answer);
    return status;
}

static void add_token(struct mlo_table *table, const json_t *row)
{
    char id[24], used[32], expires[32], revoked[32], prefix[32];
    snprintf(id, sizeof id, "%lld", (long long)mlo_json_i64(row, "id", 0));
    snprintf(prefix, sizeof prefix, "%.20s…", mlo_json_str(row, "prefix", ""));
    mlo_table_row(table, id, prefix, mlo_json_str(row, "name", ""), mlo_json_str(row, "role", ""),
                  mlo_json_str(row, "stage", NULL), mlo_client_time(row, "last_used_at", used),
                  mlo_client_time(row, "expires_at", expires), mlo_client_time(row, "revoked_at", revoked));
}

static enum mlo_status tokens_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *answer = NULL;
    enum mlo_status status = call(cli, "GET", "/tokens", NULL, &answer, err);
    if (status == MLO_OK)
        status = mlo_client_print_list(cli, json_object_get(answer, "items"),
                                       "id>|token|name|role|stage|last used (UTC)|expires|revoked", add_token,
                                       err);
    json_decref(answer);
    return status;
}

static enum mlo_status revoke_run(struct mlo_cli *cli, struct mlo_error *err)
{
    json_t *answer = NULL;
    enum mlo_status status = call(cli, "DELETE", "/tokens", NULL, &answer, err);
    if (status == MLO_OK && !cli->json)
        mlo_cli_note(cli, "token %s is revoked", cli->args[2]);
    json_decref(answer);
    return status;
}

static const char *const roles[] = {"viewer", "submitter", "promoter", "approver", "admin", NULL};
static const char *const stage_names[] = {"staging", "production", NULL};

static const struct mlo_cli_option list_options[] = {MLO_OPTION_URL, {NULL}};
const struct mlo_cli_verb mlo_verb_members_list = {
    .name = "members list",
    .group = "Service",
    .run = list_run,
    .options = list_options,
    .positional = "PROJECT",
    .min_args = 1,
    .max_args = 1,
    .help = "people and service accounts of a project, with their roles",
};
static const struct mlo_cli_option set_options[] = {
    {"role", 0, "ROLE", "in the project: viewer, submitter, promoter, approver or admin", roles},
    {"stage", 0, "STAGE=ROLE", "in this stage a promoter or an approver", NULL, true},
    {"service", 0, NULL, "a service account: no person, does not sign in to the pages"},
    {"approve", 0, NULL, "with --service: it may approve"},
    {"description", 0, "TEXT", "who or what it is"},
    {"reason", 0, "TEXT", "for the audit log"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_members_set = {
    .name = "members set",
    .group = "Service",
    .run = set_run,
    .options = set_options,
    .positional = "PROJECT NAME --role ROLE",
    .min_args = 2,
    .max_args = 2,
    .help = "add a member, or change all of it",
    .detail = "A promoter of staging who reads elsewhere: --role viewer --stage staging=promoter. What is "
              "not given "
              "is\nas if it had never been: --stage again with each change. Tokens have the new roles from "
              "their next "
              "request on.\n",
};
static const struct mlo_cli_option remove_options[] = {
    {"reason", 0, "TEXT", "for the audit log"}, MLO_OPTION_URL, {NULL}};
const struct mlo_cli_verb mlo_verb_members_remove = {
    .name = "members remove",
    .group = "Service",
    .run = remove_run,
    .options = remove_options,
    .positional = "PROJECT NAME",
    .min_args = 2,
    .max_args = 2,
    .help = "remove a member; its tokens end with it",
};
static const struct mlo_cli_option token_options[] = {
    {"name", 0, "TEXT", "what it is for: laptop"},
    {"days", 0, "N", "it expires after so many; 0: never (90)"},
    {"read-only", 0, NULL, "it reads, whatever the member may"},
    {"stage", 0, "STAGE", "for this stage alone; elsewhere it reads", stage_names},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_members_token = {
    .name = "members token",
    .group = "Service",
    .run = token_run,
    .options = token_options,
    .positional = "PROJECT NAME",
    .min_args = 2,
    .max_args = 2,
    .help = "make a token for a member: its text alone on stdout, this once",
    .flags = MLO_CLI_TELLS_ONCE,
};
const struct mlo_cli_verb mlo_verb_members_tokens = {
    .name = "members tokens",
    .group = "Service",
    .run = tokens_run,
    .options = list_options,
    .positional = "PROJECT NAME",
    .min_args = 2,
    .max_args = 2,
    .help = "a member's tokens: last use, expiry",
};
const struct mlo_cli_verb mlo_verb_members_revoke = {
    .name = "members revoke",
    .group = "Service",
    .run = revoke_run,
    .options = list_options,
    .positional = "PROJECT NAME ID",
    .min_args = 3,
    .max_args = 3,
    .help = "revoke one token of a member",
};
