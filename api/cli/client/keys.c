#include <string.h>

#include "api/cli/client/client.h"
#include "registry/keys.h"

static enum mlo_status print_keys(const struct mlo_cli *cli, const json_t *keys, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *key;
    size_t i;
    if (cli->json)
        return mlo_cli_print_json(keys, err);
    mlo_table_init(&table, "fingerprint|from (UTC)|state|vouched for by|comment");
    json_array_foreach((json_t *)keys, i, key)
    {
        char from[32], until[32], state[80] = "signs";
        if (mlo_json_str(key, "revoked_from", NULL))
            snprintf(state, sizeof state, "revoked from %s", mlo_client_time(key, "revoked_from", until));
        else if (mlo_json_str(key, "retired_at", NULL))
            snprintf(state, sizeof state, "until %s", mlo_client_time(key, "retired_at", until));
        mlo_table_row(&table, mlo_json_str(key, "fingerprint", ""), mlo_client_time(key, "valid_from", from),
                      state, mlo_json_str(key, "endorser", NULL), mlo_json_str(key, "comment", ""));
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status print_allowed_signers(const json_t *keys, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_keys_allowed_signers(keys, &text);
    enum mlo_status status =
        mlo_buf_ok(&text) ? mlo_cli_print(err, "%s", mlo_buf_str(&text)) : mlo_error_nomem(err);
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status keys_run(struct mlo_cli *cli, struct mlo_error *err)
{
    const char *what = cli->arg_count ? cli->args[0] : "list";
    struct mlo_client *client = NULL;
    struct mlo_response answer = {0};
    json_t *body = NULL;
    bool rotate = strcmp(what, "rotate") == 0, revoke = strcmp(what, "revoke") == 0;
    bool signers = strcmp(what, "allowed-signers") == 0;
    enum mlo_status status = MLO_OK;
    if ((!rotate && !revoke && !signers && strcmp(what, "list") != 0) ||
        cli->arg_count != (revoke ? 2 : !!cli->arg_count)) {
        status = mlo_error_set(err, MLO_EUSAGE,
                               "'%s' is not understood: list, rotate, revoke FINGERPRINT or "
                               "allowed-signers",
                               cli->args[cli->arg_count - 1]);
        goto out;
    }
    MLO_TRY(mlo_client_open(cli, &client, err));
    body = revoke ? json_pack("{s:s, s:s}", "fingerprint", cli->args[1], "from",
                              mlo_cli_opt(cli, "from") ? mlo_cli_opt(cli, "from") : "")
                  : json_object();
    MLO_TRY(mlo_client_call(client, rotate || revoke ? "POST" : "GET",
                            rotate   ? "/v1/keys/rotations"
                            : revoke ? "/v1/keys/revocations"
                                     : "/v1/keys",
                            NULL, rotate || revoke ? body : NULL, &answer, err));
    const json_t *keys = json_object_get(answer.json, "items");
    MLO_TRY(signers ? print_allowed_signers(keys, err) : print_keys(cli, keys, err));
out:
    json_decref(body);
    mlo_response_clear(&answer);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"from", 0, "TIME", "with revoke: signatures from then on count for nothing (now)"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_keys = {
    .name = "keys",
    .group = "Releases",
    .run = keys_run,
    .options = options,
    .positional = "[list | rotate | revoke FINGERPRINT | allowed-signers]",
    .max_args = 2,
    .help = "the keys that sign ledgers: shown, rotated, revoked",
    .detail =
        "The first key is made by the server when it starts. `rotate` makes another one on the server; the "
        "one\n"
        "before signs it, and what it signed before stays valid. `allowed-signers` prints the file that\n"
        "git verify-commit and ssh-keygen -Y verify take.\n",
};
