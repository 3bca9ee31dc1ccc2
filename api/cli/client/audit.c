#include <stdlib.h>
#include <string.h>

#include "api/cli/client/ledger.h"
#include "api/cli/core/chain.h"

/* --- the log ----------------------------------------------------------------------------------- */

/* What is shown of an entry must be what its body says: the log's chain holds bodies. */
static enum mlo_status check_shown(const json_t *row, struct mlo_error *err)
{
    static const char *const shown[] = {"who", "via", "action", "object", "at", "reason", "before", "after"};
    const json_t *text = json_object_get(row, "body");
    json_t *body = NULL;
    enum mlo_status status = mlo_json_parse(json_is_string(text) ? json_string_value(text) : "",
                                            json_string_length(text), "body", &body, NULL);
    for (size_t i = 0; status == MLO_OK && i < MLO_COUNT(shown); i++) {
        const json_t *a = json_object_get(row, shown[i]), *b = json_object_get(body, shown[i]);
        if (a && b && !json_equal(a, b)) {
            status =
                mlo_error_set(err, MLO_EDIGEST, "the server shows '%s' other than it was recorded", shown[i]);
            mlo_error_where(err, "entry %lld", (long long)mlo_json_i64(row, "seq", 0));
            json_decref(body);
            return status;
        }
    }
    json_decref(body);
    return MLO_OK; /* a body that is no JSON is for verify to tell */
}

static enum mlo_status show_project(struct mlo_client *client, struct mlo_cli *cli, const char *project,
                                    int64_t limit, json_t *all, struct mlo_error *err)
{
    static const char *const filters[] = {"who", "action", "object", "since", "until"};
    enum mlo_status status = MLO_OK;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *items = NULL, *row;
    size_t i;
    bool first = true;
    mlo_client_path(&path, "/v1/projects/%s/audit", project);
    for (size_t f = 0; f < MLO_COUNT(filters); f++) {
        if (!mlo_cli_opt(cli, filters[f]))
            continue;
        mlo_buf_printf(&path, "%c%s", first ? '?' : '&', filters[f]);
        mlo_client_path(&path, "=%s", mlo_cli_opt(cli, filters[f]));
        first = false;
    }
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), (size_t)limit, &items, err));
    if (cli->json) {
        json_object_set(all, project, items);
        goto out;
    }
    struct mlo_table table;
    mlo_table_init(&table, "seq>|time (UTC)|who|via|action|object|reason|hash");
    json_array_foreach(items, i, row)
    {
        char seq[24], time[32], hash[16];
        status = check_shown(row, err);
        if (status != MLO_OK) {
            mlo_table_clear(&table);
            goto out;
        }
        snprintf(seq, sizeof seq, "%lld", (long long)mlo_json_i64(row, "seq", 0));
        mlo_table_row(&table, seq, mlo_client_time(row, "at", time), mlo_json_str(row, "who", ""),
                      mlo_json_str(row, "via", ""), mlo_json_str(row, "action", ""),
                      mlo_json_str(row, "object", ""), mlo_json_str(row, "reason", ""),
                      mlo_client_digest(row, "hash", hash));
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(items);
    mlo_buf_clear(&path);
    return status;
}

/* --- verifying, without trusting the server ---------------------------------------------------- */

struct verify {
    struct mlo_chain chain;
    struct mlo_client_ledger ledger;
};

/* An entry whose hash was computed, for the ledger. */
static enum mlo_status on_entry(void *arg, int64_t seq, const char *text, size_t size,
                                const struct mlo_digest *hash, struct mlo_error *err)
{
    struct verify *v = arg;
    json_t *body = NULL;
    if (!mlo_ledger_check_wants(v->ledger.check, seq, text, size))
        return MLO_OK;
    if (mlo_json_parse(text, size, "body", &body, NULL) != MLO_OK) {
        mlo_chain_bad(&v->chain, seq, "its body is no JSON");
        return MLO_OK;
    }
    enum mlo_status status =
        mlo_ledger_check_entry(v->ledger.check, seq, hash, body, v->ledger.written_to, err);
    json_decref(body);
    return status;
}

/* Page by page, so that memory stays bounded. */
static enum mlo_status walk(struct mlo_client *client, const char *project, struct verify *v,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf path = MLO_BUF_INIT, page = MLO_BUF_INIT;
    mlo_client_path(&path, "/v1/projects/%s/audit/chain", project);
    for (;;) {
        mlo_buf_reset(&page);
        MLO_TRY(mlo_client_get_bytes(client, mlo_buf_str(&path), &page, err));
        if (page.len == 0)
            break;
        MLO_TRY(mlo_chain_check(&v->chain, mlo_buf_str(&page), page.len, on_entry, v, err));
        mlo_buf_reset(&path);
        mlo_client_path(&path, "/v1/projects/%s/audit/chain?after=%d", project, (long long)v->chain.last);
    }
    mlo_chain_end(&v->chain);
out:
    mlo_buf_clear(&page);
    mlo_buf_clear(&path);
    return status;
}

/* What was seen so far: {"<url> <project>": {"seq", "hash"}, "<url> <project> ledger": {"n", "id"}, "<url>
 * /keys": {fingerprint: true}}. */
static enum mlo_status load_heads(char **path, json_t **heads, struct mlo_error *err)
{
    enum mlo_status status = mlo_config_state_path("audit-heads.json", path, err);
    if (status != MLO_OK)
        return status;
    if (!mlo_fs_exists(*path)) {
        *heads = json_object();
        return MLO_OK;
    }
    status = mlo_json_load_file(*path, heads, err);
    if (status != MLO_OK)
        mlo_error_hint(err, "it remembers the last verified heads; look at it before you remove it");
    return status;
}

/* What is wrong with the ledger, while the log itself holds. */
static enum mlo_status report_ledger(struct mlo_cli *cli, const char *project,
                                     const struct mlo_ledger_result *result, struct mlo_error *err)
{
    char place[40] = "";
    if (result->bad_commit)
        snprintf(place, sizeof place, " at commit %lld", (long long)result->bad_commit);
    enum mlo_status status = MLO_OK;
    if (!cli->json)
        status = mlo_cli_print(err, "%s: BROKEN ledger%s: %s\n", project, place, result->problem);
    if (status != MLO_OK)
        return status;
    mlo_error_set(err, MLO_EDIGEST, "the ledger of %s does not hold: %s", project, result->problem);
    if (result->bad_commit)
        mlo_error_where(err, "commit %lld", (long long)result->bad_commit);
    return MLO_EDIGEST;
}

static enum mlo_status verify_project(struct mlo_client *client, struct mlo_cli *cli, const char *project,
                                      json_t *heads, json_t *all, struct mlo_error *err)
{
    struct verify v = {{0}};
    const struct mlo_chain *chain = &v.chain;
    char head[MLO_DIGEST_TEXT_SIZE];
    struct mlo_buf key = MLO_BUF_INIT;
    mlo_buf_printf(&key, "%s %s", mlo_client_url(client), project);
    const json_t *seen = json_object_get(heads, mlo_buf_str(&key));
    enum mlo_status status = mlo_chain_begin(&v.chain, err);
    if (status != MLO_OK)
        goto out;
    v.chain.remembered_seq = mlo_json_i64(seen, "seq", 0);
    snprintf(v.chain.remembered, sizeof v.chain.remembered, "%s", mlo_json_str(seen, "hash", ""));
    MLO_TRY(mlo_client_ledger_open(client, project, mlo_cli_opt(cli, "clone"), mlo_cli_opt(cli, "accept-key"),
                                   heads, &v.ledger, err));
    MLO_TRY(walk(client, project, &v, err));
    mlo_client_ledger_end(client, &v.ledger, heads);
    mlo_digest_text(&chain->hash, head);
    if (!chain->entries)
        head[0] = '\0';
    json_object_set_new(
        all, project,
        json_pack("{s:b,s:I,s:I,s:s,s:o,s:s,s:I,s:o}", "ok", chain->bad_seq == 0 && v.ledger.result.intact,
                  "entries", (json_int_t)chain->entries, "head_seq", (json_int_t)chain->last, "head", head,
                  "bad_seq", chain->bad_seq ? json_integer(chain->bad_seq) : json_null(), "problem",
                  chain->problem, "remembered_seq", (json_int_t)chain->remembered_seq, "ledger",
                  mlo_client_ledger_json(&v.ledger)));
    if (!chain->bad_seq && !v.ledger.result.intact) {
        status = report_ledger(cli, project, &v.ledger.result, err);
        goto out;
    }
    if (chain->bad_seq) {
        if (!cli->json)
            status = mlo_cli_print(err, "%s: BROKEN at entry %lld: %s\n", project, (long long)chain->bad_seq,
                                   chain->problem);
        if (status == MLO_OK) {
            status = mlo_error_set(err, MLO_EDIGEST, "the audit log of %s does not hold: %s", project,
                                   chain->problem);
            mlo_error_where(err, "entry %lld", (long long)chain->bad_seq);
        }
        goto out;
    }
    if (chain->entries)
        json_object_set_new(heads, mlo_buf_str(&key),
                            json_pack("{s:I,s:s}", "seq", (json_int_t)chain->last, "hash", head));
    if (!cli->json) {
        char since[80] = "";
        if (chain->remembered_seq)
            snprintf(since, sizeof since, ", and continue what was verified here up to %lld",
                     (long long)chain->remembered_seq);
        status = mlo_cli_print(err, "%s: ok, %lld entries hash to %s%s\n", project, (long long)chain->entries,
                               head, since);
        if (status == MLO_OK && v.ledger.result.commits) {
            char id[MLO_GIT_ID_TEXT_SIZE];
            status = mlo_cli_print(err, "%s: ok, %lld signed commits say the same, up to %s\n", project,
                                   (long long)v.ledger.result.commits,
                                   mlo_git_id_text(&v.ledger.result.head.id, id));
        }
    }
out:
    mlo_chain_clear(&v.chain);
    mlo_client_ledger_close(&v.ledger);
    mlo_buf_clear(&key);
    return status;
}

static enum mlo_status audit_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_error first_bad = {0};
    json_t *projects = NULL, *name, *all = json_object(), *heads = NULL;
    char *heads_path = NULL;
    size_t i;
    int64_t limit;
    bool verify = cli->arg_count && strcmp(cli->args[cli->arg_count - 1], "verify") == 0;
    if (cli->arg_count - verify > 1) {
        status = mlo_error_set(err, MLO_EUSAGE, "'%s' is not understood: mlopt audit [PROJECT] [verify]",
                               cli->args[cli->arg_count - 1]);
        goto out;
    }
    MLO_TRY(mlo_cli_int(cli, "limit", 50, 1, 1000000, &limit, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    if (verify)
        MLO_TRY(load_heads(&heads_path, &heads, err));
    MLO_TRY(mlo_client_projects(client, cli->arg_count > (int)verify ? cli->args[0] : NULL, &projects, err));
    json_array_foreach(projects, i, name)
    {
        const char *project = json_string_value(name);
        if (!verify) {
            if (json_array_size(projects) > 1)
                mlo_cli_note(cli, "%s:", project);
            MLO_TRY(show_project(client, cli, project, limit, all, err));
            continue;
        }
        status = verify_project(client, cli, project, heads, all, err);
        if (status == MLO_EDIGEST && !first_bad.status)
            first_bad = *err;
        else if (status != MLO_OK && status != MLO_EDIGEST)
            goto out;
        status = MLO_OK;
    }
    if (verify)
        MLO_TRY(mlo_json_save_file(heads, heads_path, err));
    if (cli->json)
        MLO_TRY(mlo_cli_print_json(all, err));
    if (first_bad.status) {
        *err = first_bad;
        status = first_bad.status;
    }
out:
    free(heads_path);
    json_decref(heads);
    json_decref(projects);
    json_decref(all);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"who", 0, "NAME", "only by this actor"},
    {"action", 0, "ACTION", "only this action; 'stage.' for all that begin so"},
    {"object", 0, "PREFIX", "only on objects that begin so"},
    {"since", 0, "TIME", "not before (2026-01-31T12:00:00Z)"},
    {"until", 0, "TIME", "not after"},
    {"limit", 0, "N", "at most so many of each project (50)"},
    {"clone", 0, "DIR", "with verify: a clone or mirror of the project's ledger, whose head must be in it"},
    {"accept-key", 0, "FINGERPRINT", "with verify: trust this key from now on"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_audit = {
    .name = "audit",
    .group = "Releases",
    .run = audit_run,
    .options = options,
    .positional = "[PROJECT] [verify]",
    .max_args = 2,
    .help = "the audit log; `verify` recomputes its hash chain here, and checks the ledger against it",
    .detail =
        "`verify` reads every entry and hashes it on this machine, checks the signature of every commit of "
        "the\n"
        "project's ledger, and that it says what its entry says. It remembers the last good heads and the "
        "keys\n"
        "in ~/.local/state/mlopt, so that a history that was rewritten or cut since then is found too.\n"
        "The project '-' is the installation itself: tokens and projects.\n",
};
