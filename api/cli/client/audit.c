#include <stdlib.h>
#include <string.h>

#include "api/cli/client/ledger.h"

/* --- the log ----------------------------------------------------------------------------------- */

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
        snprintf(seq, sizeof seq, "%lld", (long long)mlo_json_i64(row, "seq", 0));
        const char *text = mlo_json_str(row, "hash", "");
        snprintf(hash, sizeof hash, "%.12s", mlo_str_starts(text, "sha256:") ? text + 7 : text);
        mlo_table_row(&table, seq, mlo_client_time(row, "at", time), mlo_json_str(row, "who", ""),
                      mlo_json_str(row, "via", ""), mlo_json_str(row, "action", ""),
                      mlo_json_str(row, "object", ""), mlo_json_str(row, "reason", ""), hash);
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(items);
    mlo_buf_clear(&path);
    return status;
}

/* --- verifying, without trusting the server ---------------------------------------------------- */

struct verify {
    const char *project;
    struct mlo_client_ledger ledger;
    int64_t entries, head_seq;
    char head[MLO_DIGEST_TEXT_SIZE];
    int64_t bad_seq; /* the lowest that is wrong; 0: none */
    char problem[256];
    /* walking down: what the entry above expects of the one below */
    int64_t expect_seq;
    struct mlo_digest expect_hash;
    bool started;
    /* the head seen last time */
    int64_t remembered_seq;
    char remembered[MLO_DIGEST_TEXT_SIZE];
    bool remembered_found;
};

static void found_bad(struct verify *v, int64_t seq, const char *fmt, ...) MLO_PRINTF(3, 4);
static void found_bad(struct verify *v, int64_t seq, const char *fmt, ...)
{
    va_list args;
    if (v->bad_seq && v->bad_seq <= seq)
        return;
    v->bad_seq = seq;
    va_start(args, fmt);
    vsnprintf(v->problem, sizeof v->problem, fmt, args);
    va_end(args);
}

/* hash = SHA-256(prev_hash || seq, 8 bytes big-endian || body) */
static bool entry_digest(const struct mlo_digest *prev, int64_t seq, const char *body, size_t size,
                         struct mlo_digest *out)
{
    unsigned char number[8];
    for (int i = 0; i < 8; i++)
        number[i] = (unsigned char)((uint64_t)seq >> (56 - 8 * i));
    struct mlo_hasher *hasher = mlo_hasher_new();
    if (!hasher)
        return false;
    mlo_hasher_update(hasher, prev->bytes, sizeof prev->bytes);
    mlo_hasher_update(hasher, number, sizeof number);
    mlo_hasher_update(hasher, body, size);
    mlo_hasher_final(hasher, out);
    mlo_hasher_free(hasher);
    return true;
}

/* What is shown beside the body must be what was hashed. */
static enum mlo_status check_members(struct verify *v, const json_t *row, int64_t seq, const char *text,
                                     size_t size, const struct mlo_digest *hash, struct mlo_error *err)
{
    static const char *const shown[] = {"who", "via", "action", "object", "at", "reason", "before", "after"};
    json_t *body = NULL;
    if (mlo_json_parse(text, size, "body", &body, NULL) != MLO_OK) {
        found_bad(v, seq, "its body is no JSON");
        return MLO_OK;
    }
    for (size_t i = 0; i < MLO_COUNT(shown); i++) {
        const json_t *a = json_object_get(row, shown[i]), *b = json_object_get(body, shown[i]);
        if (a && b && !json_equal(a, b))
            found_bad(v, seq, "'%s' as shown is not what was recorded", shown[i]);
    }
    enum mlo_status status = MLO_OK;
    if (mlo_ledger_check_wants(v->ledger.check, seq, text, size))
        status = mlo_ledger_check_entry(v->ledger.check, seq, hash, body, v->ledger.written_to, err);
    json_decref(body);
    return status;
}

/* Entries come newest first. */
static enum mlo_status check_entry(struct verify *v, const json_t *row, struct mlo_error *err)
{
    int64_t seq = mlo_json_i64(row, "seq", 0);
    const json_t *body = json_object_get(row, "body");
    struct mlo_digest prev, hash, computed;
    if (seq <= 0 || !json_is_string(body) || !mlo_digest_parse(mlo_json_str(row, "prev_hash", ""), &prev) ||
        !mlo_digest_parse(mlo_json_str(row, "hash", ""), &hash))
        return mlo_error_set(err, MLO_EFORMAT,
                             "the server's audit log of %s has a row without seq, body or hashes",
                             v->project);
    if (!v->started) {
        v->started = true;
        v->head_seq = seq;
        mlo_digest_text(&hash, v->head);
    } else if (seq != v->expect_seq) {
        found_bad(v, seq < v->expect_seq ? seq + 1 : seq, "entry %lld is missing", (long long)v->expect_seq);
    } else if (!mlo_digest_eq(&hash, &v->expect_hash)) {
        found_bad(v, seq, "its hash is not the one that entry %lld continues from", (long long)seq + 1);
    }
    const char *text = json_string_value(body);
    size_t size = json_string_length(body);
    if (!entry_digest(&prev, seq, text, size, &computed))
        return mlo_error_nomem(err);
    if (!mlo_digest_eq(&computed, &hash))
        found_bad(v, seq, "its content does not hash to its hash: it was changed");
    enum mlo_status status = check_members(v, row, seq, text, size, &computed, err);
    if (status != MLO_OK)
        return status;
    if (seq == v->remembered_seq) {
        char now[MLO_DIGEST_TEXT_SIZE];
        v->remembered_found = true;
        if (strcmp(mlo_digest_text(&hash, now), v->remembered) != 0)
            found_bad(v, seq, "it was %s when last verified here: the history was rewritten", v->remembered);
    }
    v->expect_seq = seq - 1;
    v->expect_hash = prev;
    v->entries++;
    return MLO_OK;
}

static void check_ends(struct verify *v)
{
    static const struct mlo_digest zero;
    if (v->started && v->expect_seq != 0)
        found_bad(v, v->expect_seq, "entries up to %lld are missing", (long long)v->expect_seq);
    else if (v->started && !mlo_digest_eq(&v->expect_hash, &zero))
        found_bad(v, 1, "the first entry continues from something that is not there");
    if (v->remembered_seq > v->head_seq)
        found_bad(v, v->head_seq + 1,
                  "the log ends at %lld, and had %lld entries when last verified here: it was cut",
                  (long long)v->head_seq, (long long)v->remembered_seq);
}

static enum mlo_status walk(struct mlo_client *client, struct verify *v, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *page = NULL, *row;
    size_t i;
    mlo_client_path(&path, "/v1/projects/%s/audit?limit=500", v->project);
    size_t base = path.len;
    for (;;) {
        MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), &page, err));
        json_array_foreach(json_object_get(page, "items"), i, row) MLO_TRY(check_entry(v, row, err));
        const char *cursor = mlo_json_str(page, "next", NULL);
        if (!cursor)
            break;
        path.len = base;
        mlo_client_path(&path, "&cursor=%s", cursor);
        json_decref(page);
        page = NULL;
    }
    check_ends(v);
out:
    json_decref(page);
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
static enum mlo_status report_ledger(struct mlo_cli *cli, const struct verify *v, struct mlo_error *err)
{
    const struct mlo_ledger_result *result = &v->ledger.result;
    char place[40] = "";
    if (result->bad_commit)
        snprintf(place, sizeof place, " at commit %lld", (long long)result->bad_commit);
    enum mlo_status status = MLO_OK;
    if (!cli->json)
        status = mlo_cli_print(err, "%s: BROKEN ledger%s: %s\n", v->project, place, result->problem);
    if (status != MLO_OK)
        return status;
    mlo_error_set(err, MLO_EDIGEST, "the ledger of %s does not hold: %s", v->project, result->problem);
    if (result->bad_commit)
        mlo_error_where(err, "commit %lld", (long long)result->bad_commit);
    return MLO_EDIGEST;
}

static enum mlo_status verify_project(struct mlo_client *client, struct mlo_cli *cli, const char *project,
                                      json_t *heads, json_t *all, struct mlo_error *err)
{
    struct verify v = {.project = project};
    struct mlo_buf key = MLO_BUF_INIT;
    mlo_buf_printf(&key, "%s %s", mlo_client_url(client), project);
    const json_t *seen = json_object_get(heads, mlo_buf_str(&key));
    v.remembered_seq = mlo_json_i64(seen, "seq", 0);
    snprintf(v.remembered, sizeof v.remembered, "%s", mlo_json_str(seen, "hash", ""));
    enum mlo_status status;
    MLO_TRY(mlo_client_ledger_open(client, project, mlo_cli_opt(cli, "clone"), mlo_cli_opt(cli, "accept-key"),
                                   heads, &v.ledger, err));
    MLO_TRY(walk(client, &v, err));
    mlo_client_ledger_end(client, &v.ledger, heads);
    json_object_set_new(all, project,
                        json_pack("{s:b,s:I,s:I,s:s,s:o,s:s,s:I,s:o}", "ok",
                                  v.bad_seq == 0 && v.ledger.result.intact, "entries", (json_int_t)v.entries,
                                  "head_seq", (json_int_t)v.head_seq, "head", v.head, "bad_seq",
                                  v.bad_seq ? json_integer(v.bad_seq) : json_null(), "problem", v.problem,
                                  "remembered_seq", (json_int_t)v.remembered_seq, "ledger",
                                  mlo_client_ledger_json(&v.ledger)));
    if (!v.bad_seq && !v.ledger.result.intact) {
        status = report_ledger(cli, &v, err);
        goto out;
    }
    if (v.bad_seq) {
        if (!cli->json)
            status = mlo_cli_print(err, "%s: BROKEN at entry %lld: %s\n", project, (long long)v.bad_seq,
                                   v.problem);
        if (status == MLO_OK) {
            status =
                mlo_error_set(err, MLO_EDIGEST, "the audit log of %s does not hold: %s", project, v.problem);
            mlo_error_where(err, "entry %lld", (long long)v.bad_seq);
        }
        goto out;
    }
    if (v.entries)
        json_object_set_new(heads, mlo_buf_str(&key),
                            json_pack("{s:I,s:s}", "seq", (json_int_t)v.head_seq, "hash", v.head));
    if (!cli->json) {
        char since[80] = "";
        if (v.remembered_seq)
            snprintf(since, sizeof since, ", and continue what was verified here up to %lld",
                     (long long)v.remembered_seq);
        status = mlo_cli_print(err, "%s: ok, %lld entries hash to %s%s\n", project, (long long)v.entries,
                               v.head, since);
        if (status == MLO_OK && v.ledger.result.commits) {
            char id[MLO_GIT_ID_TEXT_SIZE];
            status = mlo_cli_print(err, "%s: ok, %lld signed commits say the same, up to %s\n", project,
                                   (long long)v.ledger.result.commits,
                                   mlo_git_id_text(&v.ledger.result.head.id, id));
        }
    }
out:
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
