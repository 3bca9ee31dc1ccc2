/* delete, data delete, undelete, deletions, archive, unarchive; gc and fsck. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/client/client.h"

/* --- deleting --------------------------------------------------------------------------------------------
 */

/* {"model" or "dataset", "version", "variant", "reason"} of what the argument names. */
static enum mlo_status deletion_body(struct mlo_cli *cli, const char *kind, const struct mlo_client_ref *ref,
                                     const char *reason, json_t **out, struct mlo_error *err)
{
    int64_t version = 0;
    if (*ref->at && (!mlo_str_to_i64(ref->at, &version) || version < 1)) {
        mlo_error_set(err, MLO_EUSAGE, "'%s' is no version's number", ref->at);
        mlo_error_hint(err, "what is deleted is named by its number: %s/%s@3", ref->project, ref->name);
        return MLO_EUSAGE;
    }
    *out = json_pack("{s:s, s:I, s:s, s:s, s:b}", kind, ref->name, "version", (json_int_t)version, "variant",
                     ref->variant, "reason", reason, "dry_run", mlo_cli_has(cli, "dry-run"));
    if (!*out)
        return mlo_error_set(err, MLO_EUSAGE, "--reason is not UTF-8");
    return MLO_OK;
}

static enum mlo_status delete_kind(struct mlo_cli *cli, const char *kind, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response done = {0};
    const char *reason = "";
    json_t *body = NULL;
    char until[32];
    bool dry = mlo_cli_has(cli, "dry-run");
    enum mlo_status status;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, true, strcmp(kind, "model") == 0, err));
    if (!dry)
        MLO_TRY(mlo_client_reason(cli, &reason, err));
    MLO_TRY(deletion_body(cli, kind, &ref, reason, &body, err));
    if (!dry && !mlo_cli_has(cli, "yes"))
        MLO_TRY(mlo_cli_confirm(cli, err, "Delete %s %s%s?", kind, cli->args[0],
                                *ref.at ? "" : ", with all its versions"));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/deletions", ref.project);
    status = mlo_client_call(client, "POST", mlo_buf_str(&path), NULL, body, &done, err);
    if (status != MLO_OK && cli->json && json_object_get(done.json, "blockers"))
        (void)!mlo_cli_print_json(json_object_get(done.json, "blockers"), NULL);
    if (status != MLO_OK)
        goto out;
    if (cli->json)
        status = mlo_cli_print_json(done.json, err);
    else if (dry)
        status = mlo_cli_print(err, "%s can be deleted\n", mlo_json_str(done.json, "object", ""));
    else
        status = mlo_cli_print(err, "%s is deleted; until %s UTC: mlopt undelete %s %lld --reason TEXT\n",
                               mlo_json_str(done.json, "object", ""),
                               mlo_client_time(done.json, "purge_after", until), ref.project,
                               (long long)mlo_json_i64(done.json, "id", 0));
out:
    json_decref(body);
    mlo_buf_clear(&path);
    mlo_response_clear(&done);
    mlo_client_close(client);
    return status;
}

static enum mlo_status delete_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return delete_kind(cli, "model", err);
}

static enum mlo_status data_delete_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return delete_kind(cli, "dataset", err);
}

static enum mlo_status undelete_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response done = {0};
    const char *reason;
    int64_t id;
    enum mlo_status status;
    MLO_TRY(mlo_client_reason(cli, &reason, err));
    if (!mlo_str_to_i64(cli->args[1], &id) || id < 1) {
        status = mlo_error_set(err, MLO_EUSAGE, "'%s' is no deletion's number", cli->args[1]);
        mlo_error_hint(err, "mlopt deletions %s", cli->args[0]);
        goto out;
    }
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/deletions/%d/undo", cli->args[0], (long long)id);
    MLO_TRY(mlo_client_post_reason(client, mlo_buf_str(&path), reason, &done, err));
    MLO_TRY(cli->json ? mlo_cli_print_json(done.json, err)
                      : mlo_cli_print(err, "%s is there again\n", mlo_json_str(done.json, "object", "")));
out:
    mlo_buf_clear(&path);
    mlo_response_clear(&done);
    mlo_client_close(client);
    return status;
}

static enum mlo_status deletions_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_table table;
    json_t *items = NULL, *row;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/deletions", cli->args[0]);
    MLO_TRY(mlo_client_list(client, mlo_buf_str(&path), 0, &items, err));
    if (cli->json) {
        MLO_TRY(mlo_cli_print_json(items, err));
        goto out;
    }
    mlo_table_init(&table, "number>|what|state|time (UTC)|until (UTC)|who|reason");
    json_array_foreach(items, i, row)
    {
        char number[24], at[32], until[32];
        snprintf(number, sizeof number, "%lld", (long long)mlo_json_i64(row, "id", 0));
        mlo_table_row(&table, number, mlo_json_str(row, "object", ""), mlo_json_str(row, "state", ""),
                      mlo_client_time(row, "at", at), mlo_client_time(row, "purge_after", until),
                      mlo_json_str(row, "actor", ""), mlo_json_str(row, "reason", ""));
    }
    MLO_TRY(mlo_table_print_take(&table, err));
out:
    json_decref(items);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

static enum mlo_status archive_as(struct mlo_cli *cli, const char *verb, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_response done = {0};
    const char *reason, *version;
    enum mlo_status status;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, true, false, err));
    MLO_TRY(mlo_client_ref_version(&ref, &version, err));
    MLO_TRY(mlo_client_reason(cli, &reason, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/%s", ref.project, ref.name, version, verb);
    MLO_TRY(mlo_client_post_reason(client, mlo_buf_str(&path), reason, &done, err));
    MLO_TRY(cli->json ? mlo_cli_print_json(done.json, err)
                      : mlo_cli_print(err, "%s/%s@%lld is %sd\n", ref.project, ref.name,
                                      (long long)mlo_json_i64(done.json, "version", 0), verb));
out:
    mlo_buf_clear(&path);
    mlo_response_clear(&done);
    mlo_client_close(client);
    return status;
}

static enum mlo_status archive_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return archive_as(cli, "archive", err);
}

static enum mlo_status unarchive_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return archive_as(cli, "unarchive", err);
}

/* --- gc and fsck -------------------------------------------------------------------------------------------
 */

/* --grace DAYS into the body, when it was given. */
static enum mlo_status take_grace(struct mlo_cli *cli, json_t *body, struct mlo_error *err)
{
    double days;
    if (!mlo_cli_has(cli, "grace"))
        return MLO_OK;
    enum mlo_status status = mlo_cli_float(cli, "grace", 7, 0, 3650, &days, err);
    if (status == MLO_OK &&
        json_object_set_new(body, "grace_s", json_integer((json_int_t)(days * 86400))) != 0)
        status = mlo_error_nomem(err);
    return status;
}

static void add_number(json_t *sum, const json_t *part, const char *key)
{
    json_object_set_new(sum, key, json_integer(mlo_json_i64(sum, key, 0) + mlo_json_i64(part, key, 0)));
}

static void add_list(json_t *sum, const json_t *part, const char *key)
{
    if (!json_object_get(sum, key))
        json_object_set_new(sum, key, json_array());
    json_array_extend(json_object_get(sum, key), json_object_get(part, key));
}

static enum mlo_status print_gc(const struct mlo_cli *cli, const json_t *sum, struct mlo_error *err)
{
    char marked[32], removed[32];
    bool dry = mlo_json_bool(sum, "dry_run", false);
    if (cli->json)
        return mlo_cli_print_json(sum, err);
    mlo_str_size((uint64_t)mlo_json_i64(sum, "marked_bytes", 0), marked);
    mlo_str_size((uint64_t)mlo_json_i64(sum, "removed_bytes", 0), removed);
    if (dry) {
        json_t *item;
        size_t i;
        json_array_foreach(json_object_get(sum, "items"), i, item)
        {
            char size[32];
            mlo_str_size((uint64_t)mlo_json_i64(item, "size", 0), size);
            enum mlo_status status = mlo_cli_print(err, "%s  %s\n", mlo_json_str(item, "digest", ""), size);
            if (status != MLO_OK)
                return status;
        }
        return mlo_cli_print(err, "%lld deletions would be final, %lld blobs removed: %s\n",
                             (long long)mlo_json_i64(sum, "purged", 0),
                             (long long)mlo_json_i64(sum, "marked", 0), marked);
    }
    return mlo_cli_print(
        err, "%lld deletions are final, %lld blobs removed: %s%s\n",
        (long long)mlo_json_i64(sum, "purged", 0), (long long)mlo_json_i64(sum, "removed", 0), removed,
        mlo_json_bool(sum, "backup", false) ? "; a backup is being made: run it again after it" : "");
}

static enum mlo_status gc_run(struct mlo_cli *cli, struct mlo_error *err)
{
    static const char *const numbers[] = {"purged", "marked", "marked_bytes", "removed", "removed_bytes"};
    struct mlo_client *client = NULL;
    json_t *body = json_pack("{s:b}", "dry_run", mlo_cli_has(cli, "dry-run")), *sum = json_object();
    bool more = true;
    enum mlo_status status;
    MLO_TRY(take_grace(cli, body, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    while (more) {
        struct mlo_response part = {0};
        status = mlo_client_call(client, "POST", "/v1/gc", NULL, body, &part, err);
        for (size_t i = 0; status == MLO_OK && i < MLO_COUNT(numbers); i++)
            add_number(sum, part.json, numbers[i]);
        const char *next = mlo_json_str(part.json, "next", NULL);
        more = status == MLO_OK && next;
        if (status == MLO_OK) {
            add_list(sum, part.json, "items");
            json_object_set(sum, "dry_run", json_object_get(part.json, "dry_run"));
            json_object_set(sum, "backup", json_object_get(part.json, "backup"));
            json_object_set_new(sum, "more", json_false());
            if (more && json_object_set_new(body, "cursor", json_string(next)) != 0)
                status = mlo_error_nomem(err);
        }
        mlo_response_clear(&part);
        if (status != MLO_OK)
            goto out;
    }
    MLO_TRY(print_gc(cli, sum, err));
out:
    json_decref(body);
    json_decref(sum);
    mlo_client_close(client);
    return status;
}

static enum mlo_status print_problems(const json_t *sum, struct mlo_error *err)
{
    struct mlo_table table;
    json_t *row, *user;
    size_t i, j;
    char size[32], bytes[32];
    mlo_str_size((uint64_t)mlo_json_i64(sum, "bytes", 0), bytes);
    enum mlo_status status = mlo_cli_print(
        err, "%lld blobs, %s read; %lld put aside before, %lld too young to judge\n",
        (long long)mlo_json_i64(sum, "blobs", 0), bytes, (long long)mlo_json_i64(sum, "quarantined", 0),
        (long long)mlo_json_i64(sum, "young", 0));
    if (status != MLO_OK || json_array_size(json_object_get(sum, "problems")) == 0)
        return status;
    mlo_table_init(&table, "problem|what|size>|days>|used by|done|detail");
    json_array_foreach(json_object_get(sum, "problems"), i, row)
    {
        struct mlo_buf users = MLO_BUF_INIT;
        char days[24];
        json_array_foreach(json_object_get(row, "used_by"), j, user)
            mlo_buf_printf(&users, "%s%s", j ? ", " : "", json_string_value(user));
        mlo_str_size((uint64_t)mlo_json_i64(row, "size", 0), size);
        snprintf(days, sizeof days, "%.1f", (double)mlo_json_i64(row, "age_s", 0) / 86400);
        mlo_table_row(&table, mlo_json_str(row, "kind", ""),
                      mlo_json_str(row, "digest", mlo_json_str(row, "name", "")), size,
                      json_is_integer(json_object_get(row, "age_s")) ? days : NULL,
                      users.len ? mlo_buf_str(&users) : NULL, mlo_json_str(row, "repaired", NULL),
                      mlo_json_str(row, "detail", NULL));
        mlo_buf_clear(&users);
    }
    return mlo_table_print_take(&table, err);
}

/* What is wrong still: repaired orphans and leftovers are not, a damaged blob without its bytes is. */
static size_t open_problems(const json_t *sum)
{
    static const char *const cured[] = {"orphan", "lost", "unfinished", "upload", "multipart", "returned"};
    size_t open = 0, i;
    json_t *row;
    json_array_foreach(json_object_get(sum, "problems"), i, row)
    {
        bool fine = false;
        for (size_t k = 0; k < MLO_COUNT(cured); k++)
            fine = fine || (mlo_json_str(row, "repaired", NULL) &&
                            strcmp(mlo_json_str(row, "kind", ""), cured[k]) == 0);
        open += !fine;
    }
    return open;
}

static enum mlo_status fsck_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_client *client = NULL;
    struct mlo_cli_progress progress;
    json_t *body = json_pack("{s:b, s:b}", "bytes", mlo_cli_has(cli, "bytes"), "repair",
                             mlo_cli_has(cli, "repair")),
           *sum = json_object();
    struct mlo_digest at;
    bool more = true;
    enum mlo_status status;
    MLO_TRY(take_grace(cli, body, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_cli_progress_start(&progress, cli, "checking");
    while (more) {
        struct mlo_response part = {0};
        status = mlo_client_call(client, "POST", "/v1/fsck", NULL, body, &part, err);
        const char *next = mlo_json_str(part.json, "next", NULL);
        more = status == MLO_OK && next;
        if (status == MLO_OK) {
            add_number(sum, part.json, "blobs");
            add_number(sum, part.json, "bytes");
            add_number(sum, part.json, "quarantined");
            add_number(sum, part.json, "young");
            add_list(sum, part.json, "problems");
            if (more && mlo_digest_parse(next, &at))
                mlo_cli_progress(&progress, (at.bytes[0] + 1) / 256.0, "blobs");
            if (more && json_object_set_new(body, "cursor", json_string(next)) != 0)
                status = mlo_error_nomem(err);
        }
        mlo_response_clear(&part);
        if (status != MLO_OK)
            break;
    }
    mlo_cli_progress_end(&progress);
    if (status != MLO_OK)
        goto out;
    MLO_TRY(cli->json ? mlo_cli_print_json(sum, err) : print_problems(sum, err));
    size_t open = open_problems(sum);
    if (open) {
        status = mlo_error_set(err, MLO_EDIGEST, "%zu problem%s", open, open == 1 ? "" : "s");
        if (!mlo_cli_has(cli, "repair"))
            mlo_error_hint(err,
                           "--repair puts damaged bytes aside and removes what nobody owns; what is missing "
                           "comes back from a backup, or by pushing the file again");
        else
            mlo_error_hint(err, "restore the bytes from a backup, or push the files again");
    }
out:
    json_decref(body);
    json_decref(sum);
    mlo_client_close(client);
    return status;
}

/* --- verbs -------------------------------------------------------------------------------------------------
 */

#define OPTION_REASON                                                                                        \
    {                                                                                                        \
        "reason", 0, "TEXT", "why; the log keeps it"                                                         \
    }
#define OPTION_GRACE                                                                                         \
    {                                                                                                        \
        "grace", 0, "DAYS", "leave what is younger (the server's: 7)"                                        \
    }

static const struct mlo_cli_option delete_options[] = {
    OPTION_REASON,
    {"dry-run", 'n', NULL, "only say whether it can be deleted"},
    {"yes", 'y', NULL, "do not ask"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_delete = {
    .name = "delete",
    .group = "Models and data",
    .run = delete_run,
    .options = delete_options,
    .positional = "PROJECT/MODEL[@V[/VARIANT]] --reason TEXT",
    .min_args = 1,
    .max_args = 1,
    .help = "delete a model, a version or a variant",
    .detail = "Refused while a stage, a rollback, a run or an approval needs it. Evidence and lineage stay. "
              "Until its\n"
              "grace period is over, mlopt undelete brings it back.\n",
};
const struct mlo_cli_verb mlo_verb_data_delete = {
    .name = "data delete",
    .group = "Models and data",
    .run = data_delete_run,
    .options = delete_options,
    .positional = "PROJECT/NAME[@V] --reason TEXT",
    .min_args = 1,
    .max_args = 1,
    .help = "delete a dataset, or a version of it",
};
static const struct mlo_cli_option reason_options[] = {
    OPTION_REASON,
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_undelete = {
    .name = "undelete",
    .group = "Models and data",
    .run = undelete_run,
    .options = reason_options,
    .positional = "PROJECT NUMBER --reason TEXT",
    .min_args = 2,
    .max_args = 2,
    .help = "bring back what was deleted",
};
static const struct mlo_cli_option url_options[] = {
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_deletions = {
    .name = "deletions",
    .group = "Models and data",
    .run = deletions_run,
    .options = url_options,
    .positional = "PROJECT",
    .min_args = 1,
    .max_args = 1,
    .help = "what was deleted, and until when it can be brought back",
};
const struct mlo_cli_verb mlo_verb_archive = {
    .name = "archive",
    .group = "Models and data",
    .run = archive_run,
    .options = reason_options,
    .positional = "PROJECT/MODEL@V --reason TEXT",
    .min_args = 1,
    .max_args = 1,
    .help = "keep a version, but neither as latest nor for promotion",
};
const struct mlo_cli_verb mlo_verb_unarchive = {
    .name = "unarchive",
    .group = "Models and data",
    .run = unarchive_run,
    .options = reason_options,
    .positional = "PROJECT/MODEL@V --reason TEXT",
    .min_args = 1,
    .max_args = 1,
    .help = "take a version out of the archive",
};
static const struct mlo_cli_option gc_options[] = {
    {"dry-run", 'n', NULL, "only say what would go, and how many bytes"},
    OPTION_GRACE,
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_gc = {
    .name = "gc",
    .group = "Service",
    .run = gc_run,
    .options = gc_options,
    .positional = "",
    .help = "remove the bytes that nothing refers to",
    .detail = "Deletions whose grace period is over become final; then blobs that nothing refers to, and "
              "nobody used\n"
              "within the grace period, are removed. Safe beside uploads, runs, backups and other servers.\n",
};
static const struct mlo_cli_option fsck_options[] = {
    {"bytes", 0, NULL, "read and hash every blob"},
    {"repair", 0, NULL, "put damaged bytes aside, remove what nobody owns"},
    OPTION_GRACE,
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_fsck = {
    .name = "fsck",
    .group = "Service",
    .run = fsck_run,
    .options = fsck_options,
    .positional = "",
    .help = "compare the blob store with the database, both ways",
    .detail = "Exit code 0: nothing is wrong (any more); 1: something is.\n",
};
