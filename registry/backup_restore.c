/* From a backup to an installation: blobs first, then rows, then the proof that it is the same history. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/ssh_sign.h"
#include "migrations/migrations.h"
#include "registry/audit.h"
#include "registry/backup_impl.h"
#include "registry/keys.h"
#include "registry/ledger_check.h"
#include "registry/ledger_commit.h"
#include "registry/migrate.h"
#include "registry/pg_tool.h"
#include "registry/sql_impl.h"

enum { RESTORE_TABLES, RESTORE_BLOBS, RESTORE_DAMAGED, RESTORE_HEAL, RESTORE_PAUSE };

const struct mlo_sql mlo_sql_restore[] = {
    [RESTORE_TABLES] =
        {"restore_tables",
         "SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = "
         "c.relnamespace WHERE n.nspname = 'mlopt'",
         0},
    /* $1: those that the backup had to do without */
    [RESTORE_BLOBS] = {"restore_blobs",
                       "SELECT count(*) FROM blob WHERE removed_at IS NULL AND 'sha256:' || encode(digest, "
                       "'hex') <> ALL (ARRAY(SELECT json_array_elements_text($1::json)))",
                       1},
    [RESTORE_DAMAGED] = {"restore_damaged",
                         "SELECT digest FROM blob WHERE removed_why = 'damaged' ORDER BY digest", 0},
    [RESTORE_HEAL] = {"restore_heal", "SELECT blob_healed($1)", 1},
    [RESTORE_PAUSE] = {"restore_pause",
                       "WITH paused AS (UPDATE webhook SET state = 'paused', state_reason = 'restored from a "
                       "backup' WHERE state = 'enabled' RETURNING id) SELECT count(*) FROM paused",
                       0},
};
const size_t mlo_sql_restore_count = MLO_COUNT(mlo_sql_restore);

struct restoring {
    const struct mlo_restore_options *o;
    struct mlo_backup_snapshot s;
    struct mlo_blob_store *from;
    struct mlo_db_conn *conn;
    struct mlo_backup_progress progress;
    int64_t blobs, healed, projects, entries, commits, paused;
    uint64_t bytes;
    int applied;
};

/* --- before anything is written ------------------------------------------------------------------- */

static enum mlo_status check_backup(struct restoring *r, struct mlo_error *err)
{
    enum mlo_status status;
    size_t count, i;
    const struct mlo_migration *set = mlo_migrations(&count);
    const json_t *schema = json_object_get(r->s.manifest, "schema");
    int64_t number = mlo_json_i64(schema, "number", 0);
    json_t *key;
    if (number > set[count - 1].number) {
        status = mlo_error_set(err, MLO_ECONFLICT,
                               "the backup is of schema %04lld (%s), and this program knows %04d at most",
                               (long long)number, mlo_json_str(schema, "name", ""), set[count - 1].number);
        mlo_error_hint(err, "restore it with the mlopt that made it, or a newer one");
        goto out;
    }
    MLO_TRY(mlo_backup_file_check(&r->s, json_object_get(r->s.manifest, "database"), err));
    MLO_TRY(mlo_backup_file_check(&r->s, json_object_get(r->s.manifest, "blobs"), err));
    json_array_foreach(json_object_get(r->s.manifest, "keys"), i, key)
        MLO_TRY(mlo_backup_file_check(&r->s, key, err));
out:
    return status;
}

static enum mlo_status check_empty(struct restoring *r, struct mlo_error *err)
{
    int64_t tables = 0;
    bool empty = true;
    enum mlo_status status;
    MLO_TRY(mlo_sql_number(r->conn, &mlo_sql_restore[RESTORE_TABLES], NULL, &tables, err));
    if (tables) {
        status = mlo_error_set(err, MLO_ECONFLICT, "the database holds an mlopt already");
        mlo_error_hint(err,
                       "restore into a database of its own: --bootstrap ADMIN-URL --name NAME makes one");
        goto out;
    }
    if (r->o->resume)
        goto out;
    MLO_TRY(mlo_blob_store_empty(r->o->blobs, &empty, err));
    if (!empty) {
        status = mlo_error_set(err, MLO_ECONFLICT, "the blob store holds blobs already");
        mlo_error_hint(err, "restore into an empty one; after a restore that was cut off: --resume");
    }
out:
    return status;
}

/* --- bytes ---------------------------------------------------------------------------------------- */

static enum mlo_status give_back(void *arg, const struct mlo_digest *digest, uint64_t size_bytes,
                                 struct mlo_error *err)
{
    struct restoring *r = arg;
    struct mlo_error ignored = {0};
    char text[MLO_DIGEST_TEXT_SIZE];
    bool damaged = false;
    enum mlo_status status = MLO_OK;
    if (!r->o->resume || mlo_blob_check(r->o->blobs, digest, NULL, &ignored) != MLO_OK)
        status = mlo_blob_copy(r->from, r->o->blobs, digest, size_bytes, &damaged, err);
    if (damaged && status == MLO_ENOTFOUND)
        status =
            mlo_error_set(err, MLO_EDIGEST, "blob %s is not in the backup", mlo_digest_text(digest, text));
    if (status != MLO_OK)
        return status;
    r->blobs++;
    r->bytes += size_bytes;
    mlo_backup_progress_add(&r->progress, size_bytes);
    return MLO_OK;
}

static enum mlo_status restore_blobs(struct restoring *r, struct mlo_error *err)
{
    char *list = mlo_fs_join(r->s.path, "blobs", NULL);
    enum mlo_status status = list ? MLO_OK : mlo_error_nomem(err);
    r->progress.total = (uint64_t)mlo_json_i64(json_object_get(r->s.manifest, "blobs"), "bytes", 0);
    if (status == MLO_OK)
        status = mlo_backup_blobs_open(r->o->from.dir, &r->from, err);
    if (status == MLO_OK)
        status = mlo_backup_each_blob(list, give_back, r, err);
    free(list);
    return status;
}

static enum mlo_status restore_database(struct restoring *r, struct mlo_error *err)
{
    /* one transaction: a restore that fails leaves the database empty */
    static const char *const args[] = {
        "--single-transaction", "--exit-on-error", "--no-owner", "--no-password", NULL, NULL};
    struct mlo_buf name = MLO_BUF_INIT;
    char *dump = mlo_fs_join(r->s.path, "database.dump", NULL), *log = NULL, *scratch = NULL;
    const char *argv[MLO_COUNT(args)];
    enum mlo_status status = dump ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(status);
    MLO_TRY(mlo_fs_tempdir(NULL, "mlopt-restore-", &scratch, err));
    log = mlo_fs_join(scratch, "pg_restore.log", NULL);
    mlo_buf_printf(&name, "--dbname=%s", PQdb(mlo_db_pg(r->conn)));
    if (!log || !mlo_buf_ok(&name)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    memcpy(argv, args, sizeof argv);
    argv[MLO_COUNT(args) - 2] = mlo_buf_str(&name);
    const struct mlo_pg_tool tool = {.program = "pg_restore", .args = argv, .input = dump, .log = log};
    MLO_TRY(mlo_pg_tool_run(r->conn, &tool, err));
    MLO_TRY(mlo_migrate(r->conn, &r->applied, err));
out:
    if (scratch)
        mlo_fs_remove_tree(scratch);
    mlo_buf_clear(&name);
    free(scratch);
    free(dump);
    free(log);
    return status;
}

/* Blobs that the installation had found damaged, and whose right bytes the backup had from before. */
static enum mlo_status heal_blobs(struct restoring *r, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_digest digest;
    enum mlo_status status;
    MLO_TRY(mlo_db_exec(r->conn, &mlo_sql_restore[RESTORE_DAMAGED], NULL, &rows, err));
    for (int row = 0; row < mlo_rows_count(&rows); row++) {
        struct mlo_params p = MLO_PARAMS_INIT;
        struct mlo_error seen = {0};
        if (!mlo_rows_digest(&rows, row, 0, &digest) ||
            mlo_blob_check(r->o->blobs, &digest, NULL, &seen) != MLO_OK)
            continue;
        mlo_param_digest(&p, &digest);
        MLO_TRY(mlo_db_exec(r->conn, &mlo_sql_restore[RESTORE_HEAL], &p, NULL, err));
        r->healed++;
    }
out:
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status restore_keys(struct restoring *r, json_t *names, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *entry;
    size_t i;
    char *from = NULL;
    json_array_foreach(json_object_get(r->s.manifest, "keys"), i, entry)
    {
        const char *name = mlo_json_str(entry, "name", ""), *to = NULL;
        for (size_t k = 0; k < r->o->key_count; k++)
            if (strcmp(r->o->keys[k].name, name) == 0)
                to = r->o->keys[k].path;
        if (!to)
            continue;
        free(from);
        from = mlo_fs_join(r->s.path, mlo_json_str(entry, "file", ""), NULL);
        mlo_buf_reset(&text);
        MLO_TRY(from ? mlo_fs_read(from, 1 << 16, &text, err) : mlo_error_nomem(err));
        mode_t old = umask(077);
        status = mlo_fs_write_atomic(to, mlo_buf_str(&text), text.len, err);
        umask(old);
        MLO_TRY(status);
        json_array_append_new(names, json_string(name));
    }
out:
    if (text.data)
        explicit_bzero(text.data, text.len);
    mlo_buf_clear(&text);
    free(from);
    return status;
}

/* --- the same history ----------------------------------------------------------------------------- */

/* One chain, to the head that the manifest names, and not further. */
static enum mlo_status check_chain(struct restoring *r, const json_t *head, struct mlo_error *err)
{
    struct mlo_audit_head wanted = {.seq = mlo_json_i64(head, "seq", -1)};
    struct mlo_audit_result result;
    int64_t id = mlo_json_i64(head, "id", -1);
    const char *project = mlo_json_str(head, "project", NULL);
    enum mlo_status status = MLO_OK;
    if (!mlo_digest_parse(mlo_json_str(head, "hash", ""), &wanted.hash))
        return mlo_error_set(err, MLO_EFORMAT, "the manifest names an audit chain without its head");
    MLO_TRY(mlo_audit_verify(r->conn, id, wanted.seq ? &wanted : NULL, &result, err));
    if (!result.intact)
        status = mlo_error_set(err, MLO_EDIGEST, "the audit log of %s does not hold: %s",
                               project ? project : "the installation", result.problem);
    else if (result.head.seq != wanted.seq || !mlo_digest_eq(&result.head.hash, &wanted.hash))
        status = mlo_error_set(err, MLO_EDIGEST, "the audit log of %s ends at entry %lld, not at %lld",
                               project ? project : "the installation", (long long)result.head.seq,
                               (long long)wanted.seq);
    r->entries += result.entries;
out:
    return status;
}

static enum mlo_status check_ledger(struct restoring *r, const json_t *head, struct mlo_error *err)
{
    struct mlo_ledger_result result;
    char id[MLO_GIT_ID_TEXT_SIZE] = "";
    const char *project = mlo_json_str(head, "project", "");
    enum mlo_status status = mlo_ledger_verify(r->conn, mlo_json_i64(head, "project_id", 0), &result, err);
    if (status != MLO_OK)
        return status;
    if (!result.intact)
        return mlo_error_set(err, MLO_EDIGEST, "the ledger of %s does not hold: %s", project, result.problem);
    if (result.head.n)
        mlo_git_id_text(&result.head.id, id);
    if (result.head.n != mlo_json_i64(head, "n", -1) || strcmp(id, mlo_json_str(head, "id", "-")) != 0)
        return mlo_error_set(err, MLO_EDIGEST, "the ledger of %s ends at commit %s, not at %s", project, id,
                             mlo_json_str(head, "id", ""));
    r->commits += result.commits;
    return MLO_OK;
}

/* The key that signed the backup is one that the restored installation knew, and that could sign then. */
static enum mlo_status check_signer(struct restoring *r, struct mlo_error *err)
{
    json_t *keys = NULL, *key;
    size_t i;
    char fingerprint[MLO_SSH_FINGERPRINT_SIZE];
    int64_t at = 0;
    bool known = false;
    enum mlo_status status = MLO_OK;
    if (!r->s.is_signed)
        return MLO_OK;
    mlo_ssh_fingerprint(&r->s.signer, fingerprint);
    MLO_TRY(mlo_keys_list(r->conn, &keys, err));
    (void)mlo_ledger_seconds(mlo_json_str(r->s.manifest, "made_at", ""), &at);
    json_array_foreach(keys, i, key) known =
        known ||
        (strcmp(mlo_json_str(key, "fingerprint", ""), fingerprint) == 0 && mlo_keys_valid_at(key, at));
    if (!known)
        status = mlo_error_set(err, MLO_EDIGEST,
                               "the backup is signed by %s, which did not sign for this "
                               "installation when the backup was made",
                               fingerprint);
out:
    json_decref(keys);
    return status;
}

static enum mlo_status check_history(struct restoring *r, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_buf without = MLO_BUF_INIT;
    json_t *audit = NULL, *ledgers = NULL, *head;
    const json_t *missing = json_object_get(r->s.manifest, "missing");
    const json_t *wanted = json_object_get(r->s.manifest, "audit");
    const json_t *commits = json_object_get(r->s.manifest, "ledgers");
    int64_t blobs = 0;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_backup_heads(r->conn, &audit, &ledgers, err));
    if (!json_equal(audit, wanted) || !json_equal(ledgers, commits)) {
        status = mlo_error_set(err, MLO_EDIGEST,
                               "the database does not end where the manifest says: audit "
                               "logs and ledgers have other heads");
        goto out;
    }
    json_array_foreach(audit, i, head) MLO_TRY(check_chain(r, head, err));
    r->projects = (int64_t)json_array_size(audit) - 1;
    json_array_foreach(ledgers, i, head) MLO_TRY(check_ledger(r, head, err));
    MLO_TRY(check_signer(r, err));
    if (missing)
        mlo_json_canonical(missing, &without);
    if (!mlo_buf_ok(&without)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_param_text(&p, without.len ? mlo_buf_str(&without) : "[]");
    MLO_TRY(mlo_sql_number(r->conn, &mlo_sql_restore[RESTORE_BLOBS], &p, &blobs, err));
    if (blobs != r->blobs)
        status = mlo_error_set(err, MLO_EDIGEST, "the database names %lld blobs, the backup had %lld",
                               (long long)blobs, (long long)r->blobs);
out:
    mlo_buf_clear(&without);
    json_decref(audit);
    json_decref(ledgers);
    return status;
}

static enum mlo_status audit_restore(struct restoring *r, const char *digest, struct mlo_error *err)
{
    const struct mlo_actor actor = MLO_ACTOR_SYSTEM;
    json_t *after = json_pack("{s:s, s:I}", "manifest", digest, "webhooks_paused", (json_int_t)r->paused);
    const struct mlo_audit_event event = {.action = "backup.restore", .object = r->s.name, .after = after};
    enum mlo_status status =
        after ? mlo_audit_append(r->conn, 0, &actor, &event, NULL, err) : mlo_error_nomem(err);
    json_decref(after);
    return status;
}

static enum mlo_status restore(struct restoring *r, json_t **report, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE], fingerprint[MLO_SSH_FINGERPRINT_SIZE];
    json_t *keys = json_array();
    enum mlo_status status = keys ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(status);
    MLO_TRY(check_backup(r, err));
    MLO_TRY(check_empty(r, err));
    MLO_TRY(restore_blobs(r, err));
    MLO_TRY(restore_database(r, err));
    /* a drill beside the installation must not tell everybody again what is pending in the copy */
    MLO_TRY(mlo_sql_number(r->conn, &mlo_sql_restore[RESTORE_PAUSE], NULL, &r->paused, err));
    MLO_TRY(heal_blobs(r, err));
    MLO_TRY(check_history(r, err));
    MLO_TRY(restore_keys(r, keys, err));
    mlo_digest_text(&r->s.digest, text);
    MLO_TRY(audit_restore(r, text, err));
    *report = json_pack(
        "{s:s, s:s, s:s?, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:O, s:O?}", "snapshot", r->s.name,
        "digest", text, "signed_by", r->s.is_signed ? mlo_ssh_fingerprint(&r->s.signer, fingerprint) : NULL,
        "blobs", (json_int_t)r->blobs, "bytes", (json_int_t)r->bytes, "healed", (json_int_t)r->healed,
        "projects", (json_int_t)r->projects, "entries", (json_int_t)r->entries, "commits",
        (json_int_t)r->commits, "migrations", r->applied, "webhooks_paused", (json_int_t)r->paused, "keys",
        keys, "missing", json_object_get(r->s.manifest, "missing"));
    if (!*report)
        status = mlo_error_nomem(err);
out:
    json_decref(keys);
    return status;
}

enum mlo_status mlo_backup_restore(const struct mlo_restore_options *options, json_t **report,
                                   struct mlo_error *err)
{
    struct restoring r = {.o = options,
                          .progress = {options->from.on_progress, options->from.progress_arg, 0, 0}};
    *report = NULL;
    enum mlo_status status = mlo_backup_snapshot_open(&options->from, &r.s, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_acquire(options->db, &r.conn, err));
    mlo_db_unhurried(r.conn, true);
    MLO_TRY(mlo_db_exec_text(r.conn, "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0",
                             err));
    MLO_TRY(restore(&r, report, err));
out:
    mlo_db_release(r.conn);
    mlo_blob_store_close(r.from);
    mlo_backup_snapshot_clear(&r.s);
    return status;
}
