#include <stdlib.h>
#include <string.h>

#include "api/cli/client/statement.h"
#include "engines/plans.h"

static enum mlo_status show_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    json_t *answer = NULL, *item, *all = json_array();
    char source[72];
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_statements_fetch(client, cli->args[0], &ref, &answer, source, err));
    if (cli->json) {
        json_array_foreach(json_object_get(answer, "items"), i, item)
        {
            struct mlo_statement s;
            mlo_statement_open(item, &s);
            json_array_append_new(all, json_pack("{s:O, s:O?, s:O}", "signer",
                                                 json_object_get(item, "signer"), "statement", s.value,
                                                 "envelope", json_object_get(item, "envelope")));
            json_decref(s.value);
        }
        MLO_TRY(mlo_cli_print_json(all, err));
        goto out;
    }
    struct mlo_table table;
    mlo_table_init(&table, "made|step|artifact|of|when (UTC)|signed by");
    json_array_foreach(json_object_get(answer, "items"), i, item)
    {
        struct mlo_statement s;
        char artifact[16], parent[16], when[32], made[440];
        mlo_statement_open(item, &s);
        const json_t *derivation = json_object_get(
            json_object_get(mlo_statement_definition(s.value), "externalParameters"), "derivation");
        snprintf(artifact, sizeof artifact, "%.12s", mlo_statement_sha256(mlo_statement_subject(s.value)));
        snprintf(parent, sizeof parent, "%.12s", mlo_statement_parent(s.value));
        bool again = json_object_get(json_object_get(mlo_statement_definition(s.value), "internalParameters"),
                                     "reproduces") != NULL;
        snprintf(made, sizeof made, "%.400s%s",
                 mlo_json_str(mlo_statement_subject(s.value), "name", "(the signature does not hold)"),
                 again ? " (again)" : "");
        mlo_table_row(&table, made, mlo_json_str(derivation, "step", ""), artifact, parent,
                      mlo_client_time(item, "made_at", when), mlo_json_str(item, "signer", ""));
        json_decref(s.value);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(all);
    json_decref(answer);
    mlo_client_close(client);
    return status;
}

/* The statement of this artifact whose signature holds and whose signer is trusted; else why there is none.
 */
static enum mlo_status find(const json_t *items, const char *artifact, struct mlo_statement *out,
                            struct mlo_error *err)
{
    json_t *item;
    size_t i;
    enum mlo_status status =
        mlo_error_set(err, MLO_ENOTFOUND, "nobody signed how sha256:%.64s was made", artifact);
    mlo_error_hint(err, "a worker signs what it makes; what was made before it did has no statement");
    json_array_foreach((json_t *)items, i, item)
    {
        char text[MLO_PUBLIC_KEY_TEXT_SIZE];
        mlo_statement_open(item, out);
        if (!out->value) {
            *err = out->why;
            status = err->status;
        } else if (strcmp(mlo_statement_sha256(mlo_statement_subject(out->value)), artifact) == 0) {
            status = mlo_plan_key_trusted(&out->signer, err);
            if (status == MLO_OK)
                return MLO_OK;
            if (status == MLO_EAUTH) {
                (void)mlo_error_set(err, MLO_EAUTH, "the statement was signed by %s, which is not trusted",
                                    mlo_public_key_text(&out->signer, text));
                mlo_error_hint(err, "if you know whose worker that is: --trust %s, or put it into plan-trust",
                               text);
            }
        }
        json_decref(out->value);
        out->value = NULL;
    }
    return status;
}

static enum mlo_status verify_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    json_t *answer = NULL, *steps = json_array();
    struct mlo_buf trust = MLO_BUF_INIT;
    char source[72], artifact[72], key_text[MLO_PUBLIC_KEY_TEXT_SIZE];
    const char *key;
    enum mlo_status status;
    const char *before = getenv(MLO_PLAN_TRUST_ENV);
    for (size_t i = 0; (key = mlo_cli_opt_at(cli, "trust", i)); i++)
        mlo_buf_printf(&trust, "%s\n", key);
    if (trust.len) {
        mlo_buf_puts(&trust, before ? before : "");
        setenv(MLO_PLAN_TRUST_ENV, mlo_buf_str(&trust), 1);
    }
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_statements_fetch(client, cli->args[0], &ref, &answer, source, err));
    const char *top = mlo_json_str(answer, "artifact", "");
    snprintf(artifact, sizeof artifact, "%.64s", mlo_str_starts(top, "sha256:") ? top + 7 : "");
    const json_t *items = json_object_get(answer, "items");
    /* from the variant down to the upload, each step by what it says it was made of */
    for (size_t n = 0; strcmp(artifact, source) != 0; n++) {
        struct mlo_statement s;
        if (n > json_array_size(items)) {
            status = mlo_error_set(err, MLO_EDIGEST, "the statements do not lead to the upload");
            goto out;
        }
        MLO_TRY(find(items, artifact, &s, err));
        json_array_append_new(steps, json_pack("{s:s, s:s, s:s, s:s}", "made",
                                               mlo_json_str(mlo_statement_subject(s.value), "name", ""),
                                               "artifact", artifact, "of", mlo_statement_parent(s.value),
                                               "signer", mlo_public_key_text(&s.signer, key_text)));
        snprintf(artifact, sizeof artifact, "%.64s", mlo_statement_parent(s.value));
        json_decref(s.value);
    }
    if (cli->json)
        MLO_TRY(mlo_cli_print_json(steps, err));
    else
        MLO_TRY(mlo_cli_print(
            err, "%s/%s@%s/%s: ok, %zu signed step%s from the upload sha256:%.12s to sha256:%.12s\n",
            ref.project, ref.name, *ref.at ? ref.at : "latest", ref.variant, json_array_size(steps),
            json_array_size(steps) == 1 ? "" : "s", source, top + 7));
out:
    json_decref(steps);
    json_decref(answer);
    mlo_client_close(client);
    mlo_buf_clear(&trust);
    return status;
}

static const struct mlo_cli_option show_options[] = {MLO_OPTION_URL, {NULL}};
const struct mlo_cli_verb mlo_verb_attest_show = {
    .name = "attest show",
    .group = "Models",
    .run = show_run,
    .options = show_options,
    .positional = "PROJECT/MODEL[@V]/VARIANT",
    .min_args = 1,
    .max_args = 1,
    .help = "the signed statements of how a variant was made",
    .detail = "-o json prints each statement (in-toto, SLSA provenance) and its envelope (DSSE).\n",
};
static const struct mlo_cli_option verify_options[] = {
    {"trust", 0, "KEY", "a worker's public key (ed25519:…), besides those in plan-trust", NULL, true},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_attest_verify = {
    .name = "attest verify",
    .group = "Models",
    .run = verify_run,
    .options = verify_options,
    .positional = "PROJECT/MODEL[@V]/VARIANT",
    .min_args = 1,
    .max_args = 1,
    .help = "check who made a variant, from the upload on",
    .detail = "Every step from the upload to the variant must have a statement whose signature holds, by a "
              "key that you\n"
              "trust: your own, one in ~/.config/mlopt/plan-trust, or --trust.\n",
};
