/* Making a variant again, and comparing. */
#include <string.h>

#include "api/cli/client/client.h"

static enum mlo_status print_items(const json_t *items, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *row;
    size_t i;
    mlo_table_init(&table, "|step|derivation|made|made again|run>|when (UTC)|machine|program|signed by");
    json_array_foreach((json_t *)items, i, row)
    {
        char derivation[16], artifact[16], made[16], run[24], when[32];
        snprintf(run, sizeof run, "%lld", (long long)mlo_json_i64(row, "run_id", 0));
        mlo_table_row(&table, mlo_json_bool(row, "matched", false) ? "same" : "DIFFERS",
                      mlo_json_str(row, "step", ""), mlo_client_digest(row, "derivation", derivation),
                      mlo_client_digest(row, "artifact", artifact), mlo_client_digest(row, "made", made), run,
                      mlo_client_time(row, "at", when), mlo_json_str(row, "machine_class", ""),
                      mlo_json_str(row, "program", ""), mlo_json_str(row, "signer", ""));
    }
    return mlo_table_print_take(&table, err);
}

/* Those of one run, in the order of its steps; run 0: all, newest first. *out is yours. */
static enum mlo_status read_items(struct mlo_client *client, const char *path, int64_t run, json_t **out,
                                  struct mlo_error *err)
{
    json_t *all = NULL, *row;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_client_list(client, path, 0, &all, err));
    *out = run ? json_array() : json_incref(all);
    if (!*out)
        status = mlo_error_nomem(err);
    if (run)
        json_array_foreach(all, i, row) if (mlo_json_i64(row, "run_id", 0) == run)
            json_array_insert(*out, 0, row);
out:
    json_decref(all);
    return status;
}

static enum mlo_status reproduce_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_response response = {0};
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *items = NULL, *run = NULL, *body = json_object();
    const char *version;
    int64_t timeout, id;
    enum mlo_status status;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_version(&ref, &version, err));
    if (!*ref.variant) {
        status = mlo_error_set(err, MLO_EUSAGE, "name the variant: %s/%s@%s/VARIANT", ref.project, ref.name,
                               version);
        mlo_error_hint(err, "mlopt variants %s/%s@%s", ref.project, ref.name, version);
        goto out;
    }
    if (mlo_cli_has(cli, "local")) {
        status = mlo_client_reproduce_here(cli, err);
        goto out;
    }
    MLO_TRY(mlo_cli_int(cli, "timeout", 0, 1, 1 << 30, &timeout, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/variants/%s/reproductions", ref.project,
                    ref.name, version, ref.variant);
    if (mlo_cli_has(cli, "list")) {
        MLO_TRY(read_items(client, mlo_buf_str(&path), 0, &items, err));
        MLO_TRY(cli->json ? mlo_cli_print_json(items, err) : print_items(items, err));
        goto out;
    }
    MLO_TRY(mlo_client_call(client, "POST", mlo_buf_str(&path), NULL, body, &response, err));
    id = mlo_json_i64(response.json, "id", 0);
    if (mlo_cli_has(cli, "no-wait")) {
        MLO_TRY(cli->json ? mlo_cli_print_json(response.json, err)
                          : mlo_cli_print(err, "run %lld  makes %s/%s@%lld/%s again  %s\n", (long long)id,
                                          ref.project, ref.name,
                                          (long long)mlo_json_i64(response.json, "version", 0), ref.variant,
                                          mlo_json_str(response.json, "state", "")));
        goto out;
    }
    mlo_cli_note(cli, "run %lld: %s/%s@%lld/%s, made again", (long long)id, ref.project, ref.name,
                 (long long)mlo_json_i64(response.json, "version", 0), ref.variant);
    MLO_TRY(mlo_client_wait_run(client, cli, ref.project, id, timeout, &run, err));
    MLO_TRY(read_items(client, mlo_buf_str(&path), id, &items, err));
    MLO_TRY(cli->json ? mlo_cli_print_json(items, err) : print_items(items, err));
    cli->request_id[0] = '\0'; /* the requests went well: it is the run that may have failed */
    MLO_TRY(mlo_client_run_outcome(run, err));
out:
    json_decref(items);
    json_decref(run);
    json_decref(body);
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"local", 0, NULL, "by this program, on this machine; the server is not told"},
    {"threads", 0, "N", "with --local: threads of the engine (1)"},
    {"list", 0, NULL, "what came out each time it was made again, newest first"},
    {"no-wait", 0, NULL, "submit it, and do not follow it"},
    {"timeout", 0, "S", "exit code 7 after S seconds; the run goes on"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_reproduce = {
    .name = "reproduce",
    .group = "Models",
    .run = reproduce_run,
    .options = options,
    .positional = "PROJECT/MODEL[@V]/VARIANT",
    .min_args = 1,
    .max_args = 1,
    .help = "make a variant again and compare the bytes; exit code 6 when they differ",
    .detail =
        "A worker runs the recorded derivations again, from the recorded inputs and decisions, past all\n"
        "caches, and signs what came out. The first derivation that gives other bytes is named. A policy\n"
        "can ask for it: - provenance: reproduced\n"
        "With --local nobody else's word counts: the inputs are downloaded by their digests, and the steps\n"
        "are those of this program, which must have the recorded revisions.\n",
};
