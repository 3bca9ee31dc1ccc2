/* Finding versions by what they say about themselves. */
#include <string.h>

#include "api/cli/client/client.h"

/* The values that the filter and the order speak of, beside the name: "val/top1=0.913 team=vision". */
static void asked_for(const json_t *facts, const char *asked, struct mlo_buf *out)
{
    static const char *const members[][2] = {{"metrics", "metric."}, {"params", "param."}, {"tags", "tag."}};
    for (size_t m = 0; m < MLO_COUNT(members); m++) {
        const char *name;
        json_t *value;
        json_object_foreach(json_object_get(facts, members[m][0]), name, value)
        {
            struct mlo_buf key = MLO_BUF_INIT;
            mlo_buf_printf(&key, "%s%s", members[m][1], name);
            const char *found = strstr(asked, mlo_buf_str(&key));
            if (found && !strchr("_.-/abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
                                 found[key.len] ? found[key.len] : ' ')) {
                mlo_buf_printf(out, "%s%s=", out->len ? " " : "", name);
                if (json_is_string(value))
                    mlo_buf_puts(out, json_string_value(value));
                else
                    mlo_json_canonical(value, out);
            }
            mlo_buf_clear(&key);
        }
    }
}

static enum mlo_status print_found(const json_t *items, const char *asked, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *row;
    size_t i;
    struct mlo_buf *texts = calloc(json_array_size(items) + 1, sizeof *texts);
    if (!texts)
        return mlo_error_nomem(err);
    mlo_table_init(&table, "version|commit|values|created|by");
    json_array_foreach((json_t *)items, i, row)
    {
        char name[240], commit[24], created[32];
        const json_t *facts = json_object_get(row, "facts"), *code = json_object_get(facts, "code");
        snprintf(name, sizeof name, "%s/%s@%lld", mlo_json_str(row, "project", ""),
                 mlo_json_str(row, "model", ""), (long long)mlo_json_i64(row, "version", 0));
        snprintf(commit, sizeof commit, "%.10s%s", mlo_json_str(code, "commit", ""),
                 mlo_json_bool(code, "dirty", false) ? "+" : "");
        asked_for(facts, asked, &texts[i]);
        mlo_table_row(&table, name, commit, mlo_buf_str(&texts[i]),
                      mlo_client_time(row, "created_at", created), mlo_json_str(row, "created_by", ""));
    }
    enum mlo_status status = mlo_table_print_take(&table, err);
    for (i = 0; i < json_array_size(items); i++)
        mlo_buf_clear(&texts[i]);
    free(texts);
    return status;
}

static enum mlo_status search_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_buf path = MLO_BUF_INIT, asked = MLO_BUF_INIT;
    const char *filter = cli->arg_count > 1 ? cli->args[1] : "", *order = mlo_cli_opt(cli, "order");
    json_t *items = NULL;
    int64_t limit;
    MLO_TRY(mlo_cli_int(cli, "limit", 50, 1, 1000000, &limit, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/search?filter=%s&order=%s", cli->args[0], filter,
                    order ? order : "");
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), (size_t)limit, &items, err));
    mlo_buf_printf(&asked, "%s %s ", filter, order ? order : "");
    MLO_TRY(cli->json ? mlo_cli_print_json(items, err) : print_found(items, mlo_buf_str(&asked), err));
out:
    json_decref(items);
    mlo_buf_clear(&path);
    mlo_buf_clear(&asked);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"order", 0, "KEY[:asc|:desc]", "created, version, metric.NAME or param.NAME (created:desc)"},
    {"limit", 0, "N", "at most so many (50)"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_search = {
    .name = "search",
    .group = "Models and data",
    .run = search_run,
    .options = options,
    .positional = "PROJECT [FILTER]",
    .min_args = 1,
    .max_args = 2,
    .help = "find versions by metrics, parameters, tags, code and data",
    .detail =
        "  mlopt search fashion 'tag.team = vision and metric.val/top1 >= 0.9' --order metric.val/top1\n"
        "  mlopt search fashion 'dataset = train@3, commit ~ 1a2b3c4, !tag.broken'\n"
        "\n"
        "Keys are tag.NAME, param.NAME, metric.NAME, commit, dirty, remote, dataset, licence, model, "
        "version\n"
        "and author; they are compared by = != < <= > >= and ~ (begins with); KEY alone asks whether there\n"
        "is one, !KEY whether there is none. A '+' behind a commit: the code differed from it.\n",
};
