/* The verbs around gates: policies, and what gates decided. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/client/client.h"
#include "registry/gates.h"

/* PROJECT or PROJECT/MODEL as the beginning of a path. */
static enum mlo_status scope_path(const char *text, struct mlo_buf *path, struct mlo_error *err)
{
    struct mlo_client_ref ref;
    enum mlo_status status = MLO_OK;
    if (!strchr(text, '/')) {
        mlo_client_path(path, "/v1/projects/%s", text);
        return MLO_OK;
    }
    MLO_TRY(mlo_client_ref_parse(text, &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, false, false, err));
    mlo_client_path(path, "/v1/projects/%s/models/%s", ref.project, ref.name);
out:
    return status;
}

/* A policy as text, "-" being standard input; yours (free). */
static enum mlo_status read_text(const char *file, char **out, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status = MLO_OK;
    char piece[4096];
    size_t got;
    FILE *in = strcmp(file, "-") == 0 ? stdin : fopen(file, "re");
    if (!in)
        return mlo_error_errno(err, errno, "cannot read %s", file);
    while ((got = fread(piece, 1, sizeof piece, in)) > 0 && text.len <= MLO_POLICY_TEXT_MAX)
        mlo_buf_append(&text, piece, got);
    if (ferror(in))
        status = mlo_error_set(err, MLO_EIO, "cannot read %s", file);
    else if (text.len > MLO_POLICY_TEXT_MAX || memchr(mlo_buf_str(&text), '\0', text.len))
        status = mlo_error_set(err, MLO_EFORMAT, "%s is no policy: it is too long, or no text", file);
    if (in != stdin)
        fclose(in);
    *out = status == MLO_OK ? mlo_buf_take(&text) : NULL;
    if (status == MLO_OK && !*out)
        status = mlo_error_set(err, MLO_EFORMAT, "%s is empty", file);
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status check_file(const char *file, char **text, json_t **out, struct mlo_error *err)
{
    struct mlo_policy *policy = NULL;
    enum mlo_status status = read_text(file, text, err);
    if (status != MLO_OK)
        return status;
    status = mlo_policy_parse(*text, strlen(*text), strcmp(file, "-") == 0 ? "stdin" : file, &policy, err);
    if (status == MLO_OK && !(*out = mlo_policy_json(policy)))
        status = mlo_error_nomem(err);
    mlo_policy_free(policy);
    return status;
}

static enum mlo_status print_gates(const json_t *policy, struct mlo_error *err)
{
    struct mlo_table table;
    const char *stage;
    json_t *gates, *gate;
    size_t i;
    mlo_table_init(&table, "stage|gate|condition|line>");
    json_object_foreach(json_object_get(policy, "stages"), stage, gates) json_array_foreach(gates, i, gate)
    {
        char line[24];
        snprintf(line, sizeof line, "%lld", (long long)mlo_json_i64(gate, "line", 0));
        mlo_table_row(&table, stage, mlo_json_str(gate, "gate", ""), mlo_json_str(gate, "text", ""), line);
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status check_run(struct mlo_cli *cli, struct mlo_error *err)
{
    char *text = NULL;
    json_t *policy = NULL;
    enum mlo_status status;
    MLO_TRY(check_file(cli->args[0], &text, &policy, err));
    MLO_TRY(cli->json ? mlo_cli_print_json(policy, err) : print_gates(policy, err));
out:
    free(text);
    json_decref(policy);
    return status;
}

static enum mlo_status show_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *value = NULL, *row;
    int64_t revision;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_cli_int(cli, "revision", 0, 1, INT64_MAX, &revision, err));
    MLO_TRY(scope_path(cli->args[0], &path, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_buf_puts(&path, mlo_cli_has(cli, "history") ? "/policy/history" : "/policy");
    if (mlo_cli_has(cli, "history")) {
        MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), 0, &value, err));
        struct mlo_table table;
        mlo_table_init(&table, "revision>|time (UTC)|who|digest|reason");
        json_array_foreach(value, i, row)
        {
            char number[24], time[32], digest[20];
            snprintf(number, sizeof number, "%lld", (long long)mlo_json_i64(row, "revision", 0));
            snprintf(digest, sizeof digest, "%.19s", mlo_json_str(row, "digest", ""));
            mlo_table_row(&table, number, mlo_client_time(row, "created_at", time),
                          mlo_json_str(row, "created_by", ""), digest, mlo_json_str(row, "reason", ""));
        }
        if (cli->json)
            mlo_table_clear(&table);
        MLO_TRY(cli->json ? mlo_cli_print_json(value, err) : mlo_table_print_take(&table, err));
        goto out;
    }
    if (revision)
        mlo_client_path(&path, "?revision=%d", (long long)revision);
    MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), &value, err));
    if (cli->json)
        MLO_TRY(mlo_cli_print_json(value, err));
    else if (mlo_json_i64(value, "revision", 0) == 0)
        mlo_cli_note(cli, "%s has no policy of its own: set one with mlopt policy set", cli->args[0]);
    else
        MLO_TRY(mlo_cli_print(err, "%s", mlo_json_str(value, "text", "")));
out:
    json_decref(value);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

static enum mlo_status set_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response now = {0}, made = {0};
    char *text = NULL, header[128];
    const char *reason = NULL;
    json_t *policy = NULL, *body = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_cli_required(cli, "reason", &reason, err));
    MLO_TRY(check_file(cli->args[1], &text, &policy, err));
    MLO_TRY(scope_path(cli->args[0], &path, err));
    mlo_buf_puts(&path, "/policy");
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_call(client, "GET", mlo_buf_str(&path), NULL, NULL, &now, err));
    snprintf(header, sizeof header, "If-Match: \"%s\"", now.etag);
    body = json_pack("{s:s, s:s}", "text", text, "reason", reason);
    if (!body) {
        status = mlo_error_set(err, MLO_EUSAGE, "the policy or --reason is not UTF-8");
        goto out;
    }
    MLO_TRY(mlo_client_call(client, "PUT", mlo_buf_str(&path), header, body, &made, err));
    if (cli->json)
        MLO_TRY(mlo_cli_print_json(made.json, err));
    else
        MLO_TRY(mlo_cli_print(err, "%s: policy revision %lld, %s\n", cli->args[0],
                              (long long)mlo_json_i64(made.json, "revision", 0),
                              mlo_json_str(made.json, "digest", "")));
out:
    free(text);
    json_decref(policy);
    json_decref(body);
    mlo_response_clear(&now);
    mlo_response_clear(&made);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

/* --- what gates said --------------------------------------------------------------------------- */

static void number_text(const json_t *row, const char *key, char out[32])
{
    const json_t *value = json_object_get(row, key);
    if (json_is_number(value))
        snprintf(out, 32, "%.5g", json_number_value(value));
    else
        snprintf(out, 32, "-");
}

enum mlo_status mlo_client_print_gates(const json_t *decision, struct mlo_error *err)
{
    const json_t *conditions = json_object_get(decision, "conditions");
    struct mlo_table table;
    json_t *row;
    size_t i;
    if (json_array_size(conditions) == 0)
        return mlo_cli_print(err, "no gate is set for %s\n", mlo_json_str(decision, "stage", "this stage"));
    mlo_table_init(&table, "|condition|target|value>|95% interval|bound>|limit|why");
    json_array_foreach(conditions, i, row)
    {
        char value[32], low[32], high[32], interval[72], bound[32], limit[48];
        bool judged = json_is_number(json_object_get(row, "bound"));
        number_text(row, "value", value);
        number_text(row, "low", low);
        number_text(row, "high", high);
        number_text(row, "bound", bound);
        snprintf(interval, sizeof interval, "%s%s%s", judged ? low : "-", judged ? " to " : "",
                 judged ? high : "");
        number_text(row, "limit", low);
        snprintf(limit, sizeof limit, "%s%s%s", judged ? mlo_json_str(row, "op", "") : "", judged ? " " : "",
                 low);
        mlo_table_row(&table, mlo_json_bool(row, "holds", false) ? "ok" : "NO",
                      mlo_json_str(row, "condition", ""), mlo_json_str(row, "target", "-"), value, interval,
                      bound, limit, mlo_json_str(row, "why", ""));
    }
    return mlo_table_print_take(&table, err);
}

static const struct mlo_cli_option no_options[] = {MLO_OPTION_URL, {NULL}};
static const struct mlo_cli_option show_options[] = {
    {"revision", 0, "N", "this revision (default: the latest)"},
    {"history", 0, NULL, "list the revisions"},
    MLO_OPTION_URL,
    {NULL},
};
static const struct mlo_cli_option set_options[] = {
    {"reason", 0, "TEXT", "why; the log keeps it"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_policy_show = {
    .name = "policy show",
    .group = "Releases",
    .run = show_run,
    .options = show_options,
    .positional = "PROJECT[/MODEL]",
    .min_args = 1,
    .max_args = 1,
    .help = "the gates that promotions must meet",
};
const struct mlo_cli_verb mlo_verb_policy_set = {
    .name = "policy set",
    .group = "Releases",
    .run = set_run,
    .options = set_options,
    .positional = "PROJECT[/MODEL] FILE.yaml --reason TEXT",
    .min_args = 2,
    .max_args = 2,
    .help = "set the policy of a project or model: a new revision",
    .detail = "docs/promotion.md has the grammar. FILE - is standard input.\n",
};
const struct mlo_cli_verb mlo_verb_policy_check = {
    .name = "policy check",
    .group = "Releases",
    .run = check_run,
    .options = no_options,
    .positional = "FILE.yaml",
    .min_args = 1,
    .max_args = 1,
    .help = "read a policy and show its gates, without a server",
};
