/* Comments on versions and releases. */
#include <string.h>

#include "api/cli/client/client.h"

static enum mlo_status print_comments(const json_t *items, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *row;
    size_t i;
    mlo_table_init(&table, "time (UTC)|on|who|comment");
    json_array_foreach((json_t *)items, i, row)
    {
        char when[32], on[40];
        int64_t release = mlo_json_i64(row, "release", 0);
        snprintf(on, sizeof on, "%s%lld", release ? "release " : "version ",
                 (long long)(release ? release : mlo_json_i64(row, "version", 0)));
        mlo_table_row(&table, mlo_client_time(row, "at", when), on, mlo_json_str(row, "actor", ""),
                      mlo_json_str(row, "text", ""));
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status comment_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_response response = {0};
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *items = NULL, *body = NULL;
    const char *version;
    int64_t release = 0;
    enum mlo_status status;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, true, false, err));
    MLO_TRY(mlo_cli_int(cli, "release", 0, 1, INT64_MAX, &release, err));
    if (release && *ref.at) {
        status = mlo_error_set(err, MLO_EUSAGE, "'@%s' and --release: a comment is on one of them", ref.at);
        goto out;
    }
    MLO_TRY(mlo_client_ref_version(&ref, &version, err));
    if (release)
        mlo_client_path(&path, "/v1/projects/%s/models/%s/releases/%d/comments", ref.project, ref.name,
                        (long long)release);
    else
        mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/comments", ref.project, ref.name,
                        version);
    MLO_TRY(mlo_client_open(cli, &client, err));
    if (cli->arg_count < 2) {
        MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), 0, &items, err));
        MLO_TRY(cli->json ? mlo_cli_print_json(items, err) : print_comments(items, err));
        goto out;
    }
    body = json_pack("{s:s}", "text", cli->args[1]);
    if (!body) {
        status = mlo_error_set(err, MLO_EUSAGE, "the comment is not UTF-8");
        goto out;
    }
    MLO_TRY(mlo_client_call(client, "POST", mlo_buf_str(&path), NULL, body, &response, err));
    int64_t number = release ? release : mlo_json_i64(response.json, "version", 0);
    MLO_TRY(cli->json ? mlo_cli_print_json(response.json, err)
                      : mlo_cli_print(err, "%s/%s %s %lld: comment %lld\n", ref.project, ref.name,
                                      release ? "release" : "version", (long long)number,
                                      (long long)mlo_json_i64(response.json, "id", 0)));
out:
    json_decref(items);
    json_decref(body);
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"release", 0, "N", "on this release of the model, not on a version"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_comment = {
    .name = "comment",
    .group = "Releases",
    .run = comment_run,
    .options = options,
    .positional = "PROJECT/MODEL[@V] [TEXT]",
    .min_args = 1,
    .max_args = 2,
    .help = "say something of a version or a release; without a text: what was said",
    .detail = "A comment stays as it is, with its author and time, in the audit log too.\n",
};
