/* Approvals and quarantine. */
#include <string.h>

#include "api/cli/client/client.h"

/* What the promotion would show now: the decision of a dry run. */
static enum mlo_status dry_run(const struct mlo_client_promotion *p, struct mlo_response *out,
                               struct mlo_error *err)
{
    struct mlo_response now = {0};
    enum mlo_status status;
    MLO_TRY(mlo_client_read_stage(p->client, &p->ref, p->to, &now, err));
    MLO_TRY(mlo_client_move(p->client, &p->ref, "promotions", now.etag, p->body, out, err));
    if (!json_is_object(json_object_get(out->json, "decision")))
        status =
            mlo_error_set(err, MLO_EFORMAT, "the server's dry run shows no decision: is it an older mlopt?");
out:
    mlo_response_clear(&now);
    return status;
}

static enum mlo_status approve_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client_promotion p;
    struct mlo_response shown = {0}, made = {0};
    struct mlo_buf path = MLO_BUF_INIT;
    const char *seen = mlo_cli_opt(cli, "shown");
    enum mlo_status status;
    MLO_TRY(mlo_client_promotion_open(cli, true, &p, err));
    if (!seen) { /* look, then ask */
        MLO_TRY(dry_run(&p, &shown, err));
        const json_t *decision = json_object_get(shown.json, "decision");
        seen = mlo_json_str(decision, "shown", "");
        if (!mlo_cli_has(cli, "yes")) {
            MLO_TRY(mlo_client_print_gates(decision, err));
            MLO_TRY(mlo_cli_confirm(cli, err, "Approve %s/%s@%s for %s as shown (%s)?", p.ref.project,
                                    p.ref.name, p.version, p.to, seen));
        }
    }
    json_object_set_new(p.body, "shown", json_string(seen));
    json_object_set_new(p.body, "note", json_string(p.reason));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/approvals", p.ref.project, p.ref.name);
    MLO_TRY(mlo_client_call(p.client, "POST", mlo_buf_str(&path), NULL, p.body, &made, err));
    if (cli->json)
        MLO_TRY(mlo_cli_print_json(made.json, err));
    else
        MLO_TRY(mlo_cli_print(err, "%s/%s@%s for %s: approval %lld of %s\n", p.ref.project, p.ref.name,
                              p.version, p.to, (long long)mlo_json_i64(made.json, "id", 0), seen));
out:
    mlo_buf_clear(&path);
    mlo_response_clear(&shown);
    mlo_response_clear(&made);
    mlo_client_promotion_close(&p);
    return status;
}

/* POSTs --reason to `what` of the model that the first argument names. With -o json the answer is printed;
 * else `said` is, after the model's name. */
static enum mlo_status post_reason(struct mlo_cli *cli, const char *what, const char *said,
                                   struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response done = {0};
    const char *reason = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, false, false, err));
    MLO_TRY(mlo_client_reason(cli, &reason, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/", ref.project, ref.name);
    mlo_buf_puts(&path, what);
    MLO_TRY(mlo_client_post_reason(client, mlo_buf_str(&path), reason, &done, err));
    MLO_TRY(cli->json ? mlo_cli_print_json(done.json, err)
                      : mlo_cli_print(err, "%s/%s: %s\n", ref.project, ref.name, said));
out:
    mlo_buf_clear(&path);
    mlo_response_clear(&done);
    mlo_client_close(client);
    return status;
}

static enum mlo_status approvals_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *items = NULL, *row;
    int64_t id;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_cli_int(cli, "withdraw", 0, 1, INT64_MAX, &id, err));
    if (id) {
        char what[64], said[64];
        snprintf(what, sizeof what, "approvals/%lld/withdraw", (long long)id);
        snprintf(said, sizeof said, "approval %lld is withdrawn", (long long)id);
        return post_reason(cli, what, said, err);
    }
    MLO_TRY(mlo_client_model_list(cli, "approvals", 0, &items, err));
    if (!items)
        goto out;
    mlo_table_init(&table, "id>|time (UTC)|stage|who|role|shown|note|withdrawn");
    json_array_foreach(items, i, row)
    {
        char number[24], time[32], shown[20];
        snprintf(number, sizeof number, "%lld", (long long)mlo_json_i64(row, "id", 0));
        snprintf(shown, sizeof shown, "%.19s", mlo_json_str(row, "shown", ""));
        mlo_table_row(&table, number, mlo_client_time(row, "at", time), mlo_json_str(row, "stage", ""),
                      mlo_json_str(row, "actor", ""), mlo_json_str(row, "role", ""), shown,
                      mlo_json_str(row, "note", ""),
                      mlo_json_str(json_object_get(row, "withdrawn"), "reason", NULL));
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(items);
    return status;
}

/* --- quarantine -------------------------------------------------------------------------------- */

static enum mlo_status list_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *items = NULL, *row;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_client_model_list(cli, mlo_cli_has(cli, "all") ? "quarantine?all=true" : "quarantine", 0,
                                  &items, err));
    if (!items)
        goto out;
    mlo_table_init(&table, "release>|version>|from|time (UTC)|who|reason|let out");
    json_array_foreach(items, i, row)
    {
        const json_t *release = json_object_get(row, "release"), *ended = json_object_get(row, "ended");
        char number[24], version[24], time[32], out[160] = "";
        snprintf(number, sizeof number, "%lld", (long long)mlo_json_i64(release, "release", 0));
        snprintf(version, sizeof version, "%lld", (long long)mlo_json_i64(release, "version", 0));
        if (json_is_object(ended))
            snprintf(out, sizeof out, "%s: %.100s", mlo_json_str(ended, "actor", ""),
                     mlo_json_str(ended, "reason", ""));
        mlo_table_row(&table, number, version, mlo_json_str(row, "stage", ""),
                      mlo_client_time(row, "at", time), mlo_json_str(row, "actor", ""),
                      mlo_json_str(row, "reason", ""), *out ? out : NULL);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(items);
    return status;
}

static enum mlo_status release_run(struct mlo_cli *cli, struct mlo_error *err)
{
    char what[64], said[64];
    int64_t release;
    if (!mlo_str_to_i64(cli->args[1], &release) || release < 1) {
        enum mlo_status status = mlo_error_set(err, MLO_EUSAGE, "'%s' is no release's number", cli->args[1]);
        mlo_error_hint(err, "mlopt quarantine list %s", cli->args[0]);
        return status;
    }
    snprintf(what, sizeof what, "quarantine/%lld/release", (long long)release);
    snprintf(said, sizeof said, "release %lld may be promoted again", (long long)release);
    return post_reason(cli, what, said, err);
}

static const struct mlo_cli_option approve_options[] = {
    {"variant", 0, "[TARGET=]NAME", "a variant of the version, as it would be promoted", NULL, true},
    {"to", 0, "STAGE", "staging or production"},
    {"reason", 0, "TEXT", "why; the log keeps it"},
    {"shown", 0, "DIGEST", "what was shown to you, from a dry run (default: shown now)"},
    {"yes", 'y', NULL, "do not ask"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_approve = {
    .name = "approve",
    .group = "Releases",
    .run = approve_run,
    .options = approve_options,
    .positional = "PROJECT/MODEL@V --variant NAME --to STAGE --reason TEXT",
    .min_args = 1,
    .max_args = 1,
    .help = "approve a promotion as its dry run shows it",
    .detail =
        "The approval covers exactly what was shown: variants, evidence, policy and the stage's generation.\n"
        "It is void as soon as any of them is another.\n",
};
static const struct mlo_cli_option approvals_options[] = {
    {"withdraw", 0, "ID", "withdraw this one (your own, or as an admin); needs --reason"},
    {"reason", 0, "TEXT", "why; the log keeps it"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_approvals = {
    .name = "approvals",
    .group = "Releases",
    .run = approvals_run,
    .options = approvals_options,
    .positional = "PROJECT/MODEL",
    .min_args = 1,
    .max_args = 1,
    .help = "list approvals, or withdraw one",
};
static const struct mlo_cli_option list_options[] = {
    {"all", 0, NULL, "also those that were let out"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_quarantine_list = {
    .name = "quarantine list",
    .group = "Releases",
    .run = list_run,
    .options = list_options,
    .positional = "PROJECT/MODEL",
    .min_args = 1,
    .max_args = 1,
    .help = "what was rolled back and is not promoted again",
};
static const struct mlo_cli_option release_options[] = {
    {"reason", 0, "TEXT", "why; the log keeps it"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_quarantine_release = {
    .name = "quarantine release",
    .group = "Releases",
    .run = release_run,
    .options = release_options,
    .positional = "PROJECT/MODEL RELEASE --reason TEXT",
    .min_args = 2,
    .max_args = 2,
    .help = "let a release out of quarantine (an approver's act)",
};
