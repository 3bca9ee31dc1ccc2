#include <string.h>

#include "api/cli/client/client.h"

/* The generation to send as If-Match, and the stage as it is now. */
enum mlo_status mlo_client_read_stage(struct mlo_client *client, const struct mlo_client_ref *ref,
                                      const char *stage, struct mlo_response *out, struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    mlo_client_path(&path, "/v1/projects/%s/models/%s/stages/%s", ref->project, ref->name, stage);
    enum mlo_status status = mlo_client_call(client, "GET", mlo_buf_str(&path), NULL, NULL, out, err);
    if (status == MLO_OK && !*out->etag)
        status = mlo_error_set(err, MLO_EFORMAT, "the server sent no ETag for stage %s", stage);
    mlo_buf_clear(&path);
    return status;
}

/* "#5 @2/int8-cpu" (release 5), or "#5 @2 any=source cpu:avx2=x", of one side of a move or of a release. */
static void release_text(const json_t *release, char *out, size_t size)
{
    json_t *v;
    size_t i;
    struct mlo_buf text = MLO_BUF_INIT;
    const json_t *variants = json_object_get(release, "variants");
    if (!json_is_object(release)) {
        snprintf(out, size, "-");
        return;
    }
    mlo_buf_printf(&text, "#%lld @%lld", (long long)mlo_json_i64(release, "release", 0),
                   (long long)mlo_json_i64(release, "version", 0));
    bool one = json_array_size(variants) == 1;
    json_array_foreach(variants, i, v)
    {
        const char *name = mlo_json_str(v, "variant", "?");
        if (one)
            mlo_buf_printf(&text, "/%s", name);
        else
            mlo_buf_printf(&text, " %s=%s", mlo_json_str(v, "target", "any"), name);
    }
    snprintf(out, size, "%s", mlo_buf_str(&text));
    mlo_buf_clear(&text);
}

static enum mlo_status print_move(const struct mlo_cli *cli, const struct mlo_client_ref *ref,
                                  const json_t *move, bool dry_run, struct mlo_error *err)
{
    char from[160], to[160];
    if (cli->json)
        return mlo_cli_print_json(move, err);
    release_text(json_object_get(move, "from"), from, sizeof from);
    release_text(json_object_get(move, "to"), to, sizeof to);
    return mlo_cli_print(err, "%s/%s %s: %s -> %s  (%s%s, generation %lld)\n", ref->project, ref->name,
                         mlo_json_str(move, "stage", ""), from, to, dry_run ? "would be a " : "",
                         mlo_json_str(move, "kind", "move"), (long long)mlo_json_i64(move, "generation", 0));
}

enum mlo_status mlo_client_reason(struct mlo_cli *cli, const char **reason, struct mlo_error *err)
{
    enum mlo_status status = mlo_cli_required(cli, "reason", reason, err);
    if (status != MLO_OK)
        return status;
    if (strspn(*reason, " \t\n") == strlen(*reason))
        return mlo_error_set(err, MLO_EUSAGE, "--reason is empty: say why, the log keeps it");
    return MLO_OK;
}

static enum mlo_status confirm_production(struct mlo_cli *cli, const struct mlo_client_ref *ref,
                                          const char *stage, const json_t *now, const char *what,
                                          struct mlo_error *err)
{
    char release[160];
    if (strcmp(stage, "production") != 0 || mlo_cli_has(cli, "yes"))
        return MLO_OK;
    release_text(json_object_get(now, "release"), release, sizeof release);
    return mlo_cli_confirm(cli, err, "%s of %s/%s is %s. %s?", stage, ref->project, ref->name, release, what);
}

/* --- promote ----------------------------------------------------------------------------------- */

/* The target that a variant was made for: that of the run that made it; the source is for any. */
static enum mlo_status target_of(struct mlo_client *client, const struct mlo_client_ref *ref,
                                 const json_t *variant, char target[64], struct mlo_error *err)
{
    int64_t run = mlo_json_i64(variant, "run_id", 0);
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *row = NULL;
    enum mlo_status status = MLO_OK;
    snprintf(target, 64, "any");
    if (!run)
        return MLO_OK;
    mlo_client_path(&path, "/v1/projects/%s/runs/%d", ref->project, (long long)run);
    status = mlo_client_get(client, mlo_buf_str(&path), &row, err);
    if (status == MLO_OK)
        snprintf(target, 64, "%s", mlo_json_str(row, "target", "any"));
    json_decref(row);
    mlo_buf_clear(&path);
    return status;
}

/* {target: variant} from --variant [TARGET=]NAME; without a target, the variant's own. */
static enum mlo_status read_variants(struct mlo_cli *cli, struct mlo_client *client,
                                     const struct mlo_client_ref *ref, const char *version, json_t **out,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *items = NULL, *row, *chosen = json_object();
    const char *text;
    size_t i;
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/variants", ref->project, ref->name,
                    version);
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), 0, &items, err));
    for (size_t n = 0; (text = mlo_cli_opt_at(cli, "variant", n)); n++) {
        const char *eq = strchr(text, '='), *name = eq ? eq + 1 : text, *names[128];
        size_t count = 0;
        char target[64] = "";
        if (eq)
            snprintf(target, sizeof target, "%.*s", (int)MLO_MIN((size_t)(eq - text), sizeof target - 1),
                     text);
        const json_t *found = NULL;
        json_array_foreach(items, i, row)
        {
            if (count < MLO_COUNT(names))
                names[count++] = mlo_json_str(row, "variant", "");
            if (strcmp(mlo_json_str(row, "variant", ""), name) == 0)
                found = row;
        }
        if (!found) {
            status = mlo_error_set(err, MLO_ENOTFOUND, "%s/%s@%s has no variant '%s'", ref->project,
                                   ref->name, version, name);
            const char *near = mlo_suggest(name, names, count);
            if (near)
                mlo_error_hint(err, "did you mean --variant %s?", near);
            mlo_error_hint(err, "mlopt variants %s/%s@%s", ref->project, ref->name, version);
            goto out;
        }
        if (!*target)
            MLO_TRY(target_of(client, ref, found, target, err));
        if (json_object_get(chosen, target)) {
            status = mlo_error_set(err, MLO_EUSAGE,
                                   "two variants for target %s: a release holds one for each", target);
            goto out;
        }
        json_object_set_new(chosen, target, json_string(name));
    }
    if (json_object_size(chosen) == 0) {
        status = mlo_error_set(err, MLO_EUSAGE, "--variant [TARGET=]NAME is required");
        mlo_error_hint(err, "mlopt variants %s/%s@%s", ref->project, ref->name, version);
        goto out;
    }
    *out = json_incref(chosen);
out:
    json_decref(chosen);
    json_decref(items);
    mlo_buf_clear(&path);
    return status;
}

/* The number of the version, for the request. */
static enum mlo_status read_version(struct mlo_client *client, const struct mlo_client_ref *ref, int64_t *out,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *version;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *row = NULL;
    MLO_TRY(mlo_client_ref_version(ref, &version, err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s", ref->project, ref->name, version);
    MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), &row, err));
    *out = mlo_json_i64(row, "version", 0);
out:
    json_decref(row);
    mlo_buf_clear(&path);
    return status;
}

/* Sends a move with the generation that was read. */
enum mlo_status mlo_client_move(struct mlo_client *client, const struct mlo_client_ref *ref, const char *kind,
                                const char *etag, const json_t *body, struct mlo_response *out,
                                struct mlo_error *err)
{
    struct mlo_buf path = MLO_BUF_INIT;
    char header[128];
    snprintf(header, sizeof header, "If-Match: \"%s\"", etag);
    mlo_client_path(&path, "/v1/projects/%s/models/%s/%s", ref->project, ref->name, kind);
    enum mlo_status status = mlo_client_call(client, "POST", mlo_buf_str(&path), header, body, out, err);
    if (status == MLO_EPRECONDITION)
        mlo_error_hint(err, "mlopt history %s/%s", ref->project, ref->name);
    mlo_buf_clear(&path);
    return status;
}

enum mlo_status mlo_client_promotion_open(struct mlo_cli *cli, bool dry_run, struct mlo_client_promotion *out,
                                          struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *variants = NULL;
    int64_t version = 0;
    *out = (struct mlo_client_promotion){0};
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &out->ref, err));
    MLO_TRY(mlo_client_ref_plain(&out->ref, true, false, err));
    MLO_TRY(mlo_cli_required(cli, "to", &out->to, err));
    MLO_TRY(mlo_client_reason(cli, &out->reason, err));
    MLO_TRY(mlo_client_open(cli, &out->client, err));
    MLO_TRY(read_version(out->client, &out->ref, &version, err));
    snprintf(out->version, sizeof out->version, "%lld", (long long)version);
    MLO_TRY(read_variants(cli, out->client, &out->ref, out->version, &variants, err));
    out->body = json_pack("{s:s,s:I,s:O,s:s,s:b}", "stage", out->to, "version", (json_int_t)version,
                          "variants", variants, "reason", out->reason, "dry_run", dry_run);
    if (!out->body)
        status = mlo_error_set(err, MLO_EUSAGE, "--reason is not UTF-8");
out:
    json_decref(variants);
    return status;
}

void mlo_client_promotion_close(struct mlo_client_promotion *p)
{
    json_decref(p->body);
    mlo_client_close(p->client);
    *p = (struct mlo_client_promotion){0};
}

static enum mlo_status promote_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client_promotion p;
    struct mlo_response stage = {0}, moved = {0};
    bool dry_run = mlo_cli_has(cli, "dry-run");
    char what[64];
    MLO_TRY(mlo_client_promotion_open(cli, dry_run, &p, err));
    MLO_TRY(mlo_client_read_stage(p.client, &p.ref, p.to, &stage, err));
    snprintf(what, sizeof what, "Put @%s there", p.version);
    if (!dry_run)
        MLO_TRY(confirm_production(cli, &p.ref, p.to, stage.json, what, err));
    enum mlo_status answer = mlo_client_move(p.client, &p.ref, "promotions", stage.etag, p.body, &moved, err);
    const json_t *decision = json_object_get(moved.json, "decision");
    bool refused = strcmp(mlo_json_str(decision, "verdict", ""), "refused") == 0;
    if (decision && !cli->json && (refused || dry_run))
        MLO_TRY(mlo_client_print_gates(decision, refused ? NULL : err));
    if (refused && cli->json)
        MLO_TRY(mlo_cli_print_json(moved.json, NULL));
    status = answer;
    if (answer == MLO_OK && refused)
        status = mlo_error_set(err, MLO_EGATE, "the gates of %s/%s:%s refuse version %s", p.ref.project,
                               p.ref.name, p.to, p.version);
    if (status != MLO_OK)
        goto out;
    MLO_TRY(print_move(cli, &p.ref, moved.json, dry_run, err));
out:
    mlo_response_clear(&stage);
    mlo_response_clear(&moved);
    mlo_client_promotion_close(&p);
    return status;
}

static enum mlo_status rollback_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_response stage = {0}, moved = {0};
    const char *name = NULL, *reason = NULL;
    bool dry_run = mlo_cli_has(cli, "dry-run");
    json_t *body = NULL;
    int64_t to;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, false, false, err));
    MLO_TRY(mlo_cli_required(cli, "stage", &name, err));
    MLO_TRY(mlo_client_reason(cli, &reason, err));
    MLO_TRY(mlo_cli_int(cli, "to", 0, 1, INT64_MAX, &to, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_read_stage(client, &ref, name, &stage, err));
    if (!dry_run)
        MLO_TRY(confirm_production(cli, &ref, name, stage.json, "Roll back", err));
    body = json_pack("{s:s,s:o,s:s,s:b}", "stage", name, "to", to ? json_integer(to) : json_null(), "reason",
                     reason, "dry_run", dry_run);
    if (!body) {
        status = mlo_error_set(err, MLO_EUSAGE, "--reason is not UTF-8");
        goto out;
    }
    MLO_TRY(mlo_client_move(client, &ref, "rollbacks", stage.etag, body, &moved, err));
    MLO_TRY(print_move(cli, &ref, moved.json, dry_run, err));
out:
    json_decref(body);
    mlo_response_clear(&stage);
    mlo_response_clear(&moved);
    mlo_client_close(client);
    return status;
}

static enum mlo_status history_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf path = MLO_BUF_INIT;
    const char *stage = mlo_cli_opt(cli, "stage"), *at = mlo_cli_opt(cli, "at");
    json_t *items = NULL, *row;
    size_t i;
    int64_t limit;
    MLO_TRY(mlo_cli_int(cli, "limit", 50, 1, 100000, &limit, err));
    mlo_client_path(&path, "history");
    if (stage)
        mlo_client_path(&path, "?stage=%s", stage);
    if (at)
        mlo_client_path(&path, stage ? "&at=%s" : "?at=%s", at);
    MLO_TRY(mlo_client_model_list(cli, mlo_buf_str(&path), (size_t)limit, &items, err));
    if (!items)
        goto out;
    struct mlo_table table;
    mlo_table_init(&table, "time (UTC)|stage|gen>|kind|from|to|who|reason");
    json_array_foreach(items, i, row)
    {
        char time[32], from[160], to[160], generation[24];
        release_text(json_object_get(row, "from"), from, sizeof from);
        release_text(json_object_get(row, "to"), to, sizeof to);
        snprintf(generation, sizeof generation, "%lld", (long long)mlo_json_i64(row, "generation", 0));
        mlo_table_row(&table, mlo_client_time(row, "at", time), mlo_json_str(row, "stage", ""), generation,
                      mlo_json_str(row, "kind", ""), from, to, mlo_json_str(row, "actor", ""),
                      mlo_json_str(row, "reason", ""));
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(items);
    mlo_buf_clear(&path);
    return status;
}

static const struct mlo_cli_option promote_options[] = {
    {"variant", 0, "[TARGET=]NAME", "a variant of the version, for its own target or another", NULL, true},
    {"to", 0, "STAGE", "staging or production"},
    {"reason", 0, "TEXT", "why; the log keeps it"},
    {"dry-run", 0, NULL, "check everything, move nothing"},
    {"yes", 'y', NULL, "do not ask before production"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_promote = {
    .name = "promote",
    .group = "Releases",
    .run = promote_run,
    .options = promote_options,
    .positional = "PROJECT/MODEL@V --variant NAME --to STAGE --reason TEXT",
    .min_args = 1,
    .max_args = 1,
    .help = "put a release in a stage",
};
static const struct mlo_cli_option rollback_options[] = {
    {"stage", 0, "STAGE", "staging or production"},
    {"reason", 0, "TEXT", "why; the log keeps it"},
    {"to", 0, "RELEASE", "to this release (default: the one that the present one replaced)"},
    {"dry-run", 0, NULL, "say what would be brought back, move nothing"},
    {"yes", 'y', NULL, "do not ask before production"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_rollback = {
    .name = "rollback",
    .group = "Releases",
    .run = rollback_run,
    .options = rollback_options,
    .positional = "PROJECT/MODEL --stage STAGE --reason TEXT",
    .min_args = 1,
    .max_args = 1,
    .help = "bring back what was in a stage before",
};
static const struct mlo_cli_option history_options[] = {
    {"stage", 0, "STAGE", "only of this stage"},
    {"at", 0, "TIME", "what was in force at that time (2026-01-31T12:00:00Z)"},
    {"limit", 0, "N", "at most so many (50)"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_history = {
    .name = "history",
    .group = "Releases",
    .run = history_run,
    .options = history_options,
    .positional = "PROJECT/MODEL",
    .min_args = 1,
    .max_args = 1,
    .help = "the promotion log, newest first",
};
