/* Making a backup. See backup.h for what is where. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/ssh_sign.h"
#include "registry/audit.h"
#include "registry/backup_impl.h"
#include "registry/keys.h"
#include "registry/migrate.h"
#include "registry/pg_tool.h"
#include "registry/sql_impl.h"

enum {
    BACKUP_HOLD,
    BACKUP_HELD,
    BACKUP_LET_GO,
    BACKUP_EXPORT,
    BACKUP_AUDIT,
    BACKUP_LEDGERS,
    BACKUP_SCHEMA,
    BACKUP_NEEDED
};

const struct mlo_sql mlo_sql_backup[] = {
    [BACKUP_HOLD] = {"backup_hold", "SELECT 1 FROM pg_advisory_lock_shared(" MLO_BLOB_HOLD_KEY ")", 0},
    [BACKUP_HELD] =
        {"backup_held",
         "SELECT 1 FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND "
         "mode = 'ShareLock' AND granted AND classid = 0 AND objid = " MLO_BLOB_HOLD_KEY " AND objsubid = 1",
         0},
    [BACKUP_LET_GO] = {"backup_let_go", "SELECT pg_advisory_unlock_shared(" MLO_BLOB_HOLD_KEY ")", 0},
    [BACKUP_EXPORT] = {"backup_export", "SELECT pg_export_snapshot()", 0},
    [BACKUP_AUDIT] =
        {"backup_audit",
         "SELECT p.name AS project, h.project_id AS id, h.seq, h.hash FROM audit_head h LEFT JOIN project p "
         "ON p.id = h.project_id ORDER BY h.project_id",
         0},
    [BACKUP_LEDGERS] = {"backup_ledgers",
                        "SELECT p.name AS project, p.id AS project_id, h.n, encode(h.id, 'hex') AS id FROM "
                        "ledger_head h JOIN project p ON p.id = h.project_id ORDER BY p.id",
                        0},
    [BACKUP_SCHEMA] = {"backup_schema",
                       "SELECT number, name, digest FROM schema_migration ORDER BY number DESC LIMIT 1", 0},
    [BACKUP_NEEDED] = {"backup_needed", "SELECT blob_held($1, false, '{}')::integer", 1},
};
const size_t mlo_sql_backup_count = MLO_COUNT(mlo_sql_backup);

struct making {
    const struct mlo_backup_options *o;
    struct mlo_db_conn *conn;
    int lock_fd;
    char *snapshots, *incoming; /* folders; incoming is renamed at the end */
    char name[40];
    struct mlo_blob_store *store; /* the backup's own */
    FILE *list;
    json_t *manifest, *missing;
    int64_t needed; /* of the missing ones: something refers to them */
    struct mlo_backup_progress progress;
    int64_t count, copied;
    uint64_t bytes, copied_bytes;
    struct mlo_sign_key *key; /* or NULL */
    bool locked, held;
};

static void step(const struct making *m, const char *name)
{
    if (m->o->on_step)
        m->o->on_step(m->o->step_arg, name);
}

/* --- the folder ---------------------------------------------------------------------------------- */

static enum mlo_status open_folder(struct making *m, struct mlo_error *err)
{
    char at[32], *lock = mlo_fs_join(m->o->dir, "lock", NULL);
    char *blobs = mlo_fs_join(m->o->dir, "blobs", NULL);
    enum mlo_status status = lock && blobs ? MLO_OK : mlo_error_nomem(err);
    size_t n = 0;
    m->snapshots = mlo_fs_join(m->o->dir, "snapshots", NULL);
    m->incoming = m->snapshots ? mlo_fs_join(m->snapshots, ".incoming", NULL) : NULL;
    if (!m->incoming)
        status = mlo_error_nomem(err);
    MLO_TRY(status);
    MLO_TRY(mlo_fs_mkdirs_private(m->o->dir, err));
    MLO_TRY(mlo_fs_mkdirs_private(m->snapshots, err));
    m->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (m->lock_fd < 0) {
        status = mlo_error_errno(err, errno, "cannot write to %s", m->o->dir);
        goto out;
    }
    if (flock(m->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        status = mlo_error_set(err, MLO_ECONFLICT, "another backup is being written to %s", m->o->dir);
        mlo_error_hint(err, "wait for it, or write to another folder");
        goto out;
    }
    m->locked = true;
    mlo_fs_remove_tree(m->incoming); /* of one that was killed */
    MLO_TRY(mlo_fs_mkdirs_private(m->incoming, err));
    MLO_TRY(mlo_fs_mkdirs_private(blobs, err)); /* also in a folder that others may read */
    MLO_TRY(mlo_backup_blobs_open(m->o->dir, &m->store, err));
    /* the time is the name: 20260131T123456.789Z */
    mlo_clock_format(mlo_clock_utc_us(), at);
    for (const char *c = at; *c && n + 1 < sizeof m->name; c++)
        if (*c != '-' && *c != ':')
            m->name[n++] = *c;
out:
    free(blobs);
    free(lock);
    return status;
}

static bool sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

/* --- the database -------------------------------------------------------------------------------- */

enum mlo_status mlo_backup_heads(struct mlo_db_conn *conn, json_t **audit, json_t **ledgers,
                                 struct mlo_error *err)
{
    enum mlo_status status = mlo_sql_array(conn, &mlo_sql_backup[BACKUP_AUDIT], NULL, audit, err);
    if (status == MLO_OK)
        status = mlo_sql_array(conn, &mlo_sql_backup[BACKUP_LEDGERS], NULL, ledgers, err);
    return status;
}

static enum mlo_status dump(struct making *m, const char *snapshot, struct mlo_error *err)
{
    struct mlo_buf name = MLO_BUF_INIT;
    char *out = mlo_fs_join(m->incoming, "database.dump", NULL);
    char *log = mlo_fs_join(m->incoming, "pg_dump.log", NULL);
    mlo_buf_printf(&name, "--snapshot=%s", snapshot);
    /* uploads that go on are bytes that are no blobs yet: they begin again */
    const char *const args[] = {"--format=custom", "--schema=mlopt", "--exclude-table-data=mlopt.upload",
                                "--lock-wait-timeout=60000", "--no-password", mlo_buf_str(&name),
                                /* they sign, as private keys do */
                                m->o->key_count ? NULL : "--exclude-table-data=mlopt.webhook_secret", NULL};
    const struct mlo_pg_tool tool = {.program = "pg_dump", .args = args, .output = out, .log = log};
    enum mlo_status status =
        out && log && mlo_buf_ok(&name) ? mlo_pg_tool_run(m->conn, &tool, err) : mlo_error_nomem(err);
    mlo_buf_clear(&name);
    free(out);
    free(log);
    return status;
}

/* "HEX SIZE" of every blob, by digest: COPY, so that memory does not grow with their number. */
static enum mlo_status list_blobs(struct making *m, const char *path, struct mlo_error *err)
{
    static const char query[] =
        "COPY (SELECT encode(digest, 'hex') || ' ' || size FROM blob WHERE " MLO_BACKUP_WANTED
        " ORDER BY digest) TO STDOUT";
    PGconn *pg = mlo_db_pg(m->conn);
    enum mlo_status status = MLO_OK;
    FILE *out = fopen(path, "we");
    if (!out)
        return mlo_error_errno(err, errno, "cannot write %s", path);
    PGresult *result = PQexec(pg, query);
    bool copying = PQresultStatus(result) == PGRES_COPY_OUT;
    PQclear(result);
    if (!copying) {
        status = mlo_error_set(err, MLO_EIO, "cannot list the blobs: %s", PQerrorMessage(pg));
        goto out;
    }
    for (;;) {
        char *row = NULL, *space;
        int64_t size;
        int got = PQgetCopyData(pg, &row, 0);
        if (got <= 0) {
            if (got == -2)
                status =
                    mlo_error_set(err, MLO_EUNAVAILABLE, "cannot list the blobs: %s", PQerrorMessage(pg));
            break;
        }
        if (fwrite(row, 1, (size_t)got, out) != (size_t)got && status == MLO_OK)
            status = mlo_error_errno(err, errno, "cannot write %s", path);
        row[got - 1] = '\0';
        space = strchr(row, ' ');
        if (space && mlo_str_to_i64(space + 1, &size))
            m->progress.total += (uint64_t)size;
        PQfreemem(row);
    }
    while ((result = PQgetResult(pg))) {
        if (PQresultStatus(result) != PGRES_COMMAND_OK && status == MLO_OK)
            status = mlo_error_set(err, MLO_EIO, "cannot list the blobs: %s", PQresultErrorMessage(result));
        PQclear(result);
    }
out:
    if (fclose(out) != 0 && status == MLO_OK)
        status = mlo_error_errno(err, errno, "cannot write %s", path);
    return status;
}

/* The key must be the installation's, as of the snapshot: who restores it checks that. */
static enum mlo_status check_key(struct making *m, struct mlo_error *err)
{
    json_t *keys = NULL, *key;
    size_t i;
    char at[32], fingerprint[MLO_SSH_FINGERPRINT_SIZE];
    bool signs = false;
    int64_t now_us = mlo_clock_utc_us();
    json_object_set_new(m->manifest, "made_at", json_string(mlo_clock_format(now_us, at)));
    if (!m->key)
        return MLO_OK;
    enum mlo_status status = mlo_keys_list(m->conn, &keys, err);
    if (status != MLO_OK)
        return status;
    mlo_ssh_fingerprint(mlo_sign_key_public(m->key), fingerprint);
    json_array_foreach(keys, i, key) signs =
        signs || (strcmp(mlo_json_str(key, "fingerprint", ""), fingerprint) == 0 &&
                  mlo_keys_valid_at(key, now_us / 1000000));
    json_decref(keys);
    if (signs)
        return MLO_OK;
    mlo_error_set(err, MLO_ECONFLICT, "the key %s does not sign for this installation", fingerprint);
    mlo_error_where(err, "%s", m->o->key_path);
    mlo_error_hint(err, "take the one of the server; when it was rotated just now, run the backup again");
    return MLO_ECONFLICT;
}

/* Dump, list of blobs and heads of one snapshot. */
static enum mlo_status read_database(struct making *m, const char *all, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    json_t *audit = NULL, *ledgers = NULL, *schema = NULL;
    char snapshot[80];
    enum mlo_status status = mlo_db_begin(m->conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_exec_text(m->conn, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY", err));
    MLO_TRY(mlo_db_exec(m->conn, &mlo_sql_backup[BACKUP_EXPORT], NULL, &rows, err));
    snprintf(snapshot, sizeof snapshot, "%s", mlo_rows_text(&rows, 0, 0));
    step(m, "snapshot");
    MLO_TRY(check_key(m, err));
    MLO_TRY(mlo_backup_heads(m->conn, &audit, &ledgers, err));
    MLO_TRY(mlo_sql_object(m->conn, &mlo_sql_backup[BACKUP_SCHEMA], NULL, &schema, err));
    MLO_TRY(list_blobs(m, all, err));
    MLO_TRY(dump(m, snapshot, err));
    step(m, "dump");
    if (json_object_set(m->manifest, "audit", audit) != 0 ||
        json_object_set(m->manifest, "ledgers", ledgers) != 0 ||
        json_object_set(m->manifest, "schema", schema) != 0)
        status = mlo_error_nomem(err);
out:
    mlo_rows_clear(&rows);
    json_decref(audit);
    json_decref(ledgers);
    json_decref(schema);
    return mlo_db_end(m->conn, status, err);
}

/* --- blobs --------------------------------------------------------------------------------------- */

/* Whether the folder has it: by its size, and where asked for by its bytes. */
static bool have(const struct making *m, const struct mlo_digest *digest, uint64_t size_bytes)
{
    struct mlo_error ignored = {0};
    uint64_t size = 0;
    enum mlo_status status = m->o->check ? mlo_blob_check(m->store, digest, &size, &ignored)
                                         : mlo_blob_size(m->store, digest, &size, &ignored);
    return status == MLO_OK && size == size_bytes;
}

/* The store has lost it. What nothing refers to is no loss: that is noted, and the backup goes on. */
static enum mlo_status note_missing(struct making *m, const struct mlo_digest *digest, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    char text[MLO_DIGEST_TEXT_SIZE];
    int64_t needed = 0;
    mlo_param_digest(&p, digest);
    enum mlo_status status = mlo_sql_number(m->conn, &mlo_sql_backup[BACKUP_NEEDED], &p, &needed, err);
    if (status != MLO_OK)
        return status;
    json_t *name = json_string(mlo_digest_text(digest, text));
    /* those that are needed first: one of them is named where the backup fails */
    if (json_array_insert_new(m->missing, needed ? (size_t)m->needed : json_array_size(m->missing), name) !=
        0)
        return mlo_error_nomem(err);
    m->needed += needed;
    return MLO_OK;
}

static enum mlo_status keep_blob(void *arg, const struct mlo_digest *digest, uint64_t size_bytes,
                                 struct mlo_error *err)
{
    struct making *m = arg;
    struct mlo_error lost = {0};
    char text[MLO_DIGEST_TEXT_SIZE];
    bool damaged = false;
    uint64_t size = 0;
    enum mlo_status status = MLO_OK;
    if (!have(m, digest, size_bytes)) {
        status = mlo_blob_copy(m->o->blobs, m->store, digest, size_bytes, &damaged, &lost);
        if (status != MLO_OK && !damaged) {
            *err = lost;
            return status;
        }
        if (damaged) {
            status = note_missing(m, digest, err);
            if (status != MLO_OK)
                return status;
        } else {
            m->copied++, m->copied_bytes += size_bytes;
        }
        step(m, "blob");
        if (!damaged && mlo_blob_size(m->store, digest, &size, &lost) == MLO_OK && size != size_bytes)
            return mlo_error_set(err, MLO_EDIGEST, "blob %s has %llu bytes, and the database says %llu",
                                 mlo_digest_text(digest, text), (unsigned long long)size,
                                 (unsigned long long)size_bytes);
    }
    mlo_backup_progress_add(&m->progress, size_bytes);
    if (damaged)
        return MLO_OK;
    m->count++;
    m->bytes += size_bytes;
    if (fprintf(m->list, "%s %llu\n", mlo_digest_hex(digest, text), (unsigned long long)size_bytes) < 0)
        return mlo_error_errno(err, errno, "cannot write to %s", m->o->dir);
    return MLO_OK;
}

static enum mlo_status copy_blobs(struct making *m, const char *all, struct mlo_error *err)
{
    char *path = mlo_fs_join(m->incoming, "blobs", NULL);
    size_t lost;
    enum mlo_status status = path ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(status);
    m->list = fopen(path, "we");
    if (!m->list) {
        status = mlo_error_errno(err, errno, "cannot write %s", path);
        goto out;
    }
    MLO_TRY(mlo_backup_each_blob(all, keep_blob, m, err));
    if (fflush(m->list) != 0 || fsync(fileno(m->list)) != 0) {
        status = mlo_error_errno(err, errno, "cannot write %s", path);
        goto out;
    }
    unlink(all);
    lost = (size_t)m->needed;
    if (lost && !m->o->allow_damaged) {
        status = mlo_error_set(err, MLO_EDIGEST,
                               "the blob store has lost %zu blob%s, or their bytes changed: %s%s", lost,
                               lost == 1 ? "" : "s", json_string_value(json_array_get(m->missing, 0)),
                               lost == 1 ? "" : " and others");
        mlo_error_hint(err, "all others are copied; put the bytes back, or make the backup without them: "
                            "--allow-damaged");
    }
out:
    free(path);
    return status;
}

/* --- keys, manifest ------------------------------------------------------------------------------- */

/* Private keys, only those that are there: {"file", "name", …} each. */
static enum mlo_status copy_keys(struct making *m, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT, file = MLO_BUF_INIT;
    json_t *keys = json_array(), *entry;
    char *dir = mlo_fs_join(m->incoming, "keys", NULL), *to = NULL;
    if (!keys || !dir) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (size_t i = 0; i < m->o->key_count; i++) {
        const struct mlo_backup_key *key = &m->o->keys[i];
        if (!mlo_fs_exists(key->path))
            continue;
        MLO_TRY(mlo_fs_mkdirs_private(dir, err));
        mlo_buf_reset(&text);
        MLO_TRY(mlo_fs_read(key->path, 1 << 16, &text, err));
        free(to);
        to = mlo_fs_join(dir, key->name, NULL);
        mlo_buf_reset(&file);
        mlo_buf_printf(&file, "keys/%s", key->name);
        if (!to || !mlo_buf_ok(&file)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        /* the folder is ours alone until the file's mode is set */
        MLO_TRY(mlo_fs_write_atomic(to, mlo_buf_str(&text), text.len, err));
        if (chmod(to, 0600) != 0) {
            status = mlo_error_errno(err, errno, "cannot protect %s", to);
            goto out;
        }
        entry = mlo_backup_file(m->incoming, mlo_buf_str(&file), err);
        if (!entry || json_object_set_new(entry, "name", json_string(key->name)) != 0 ||
            json_array_append_new(keys, entry) != 0) {
            status = err && err->status ? err->status : mlo_error_nomem(err);
            goto out;
        }
    }
    json_object_set(m->manifest, "keys", keys);
out:
    if (text.data)
        explicit_bzero(text.data, text.len);
    mlo_buf_clear(&text);
    mlo_buf_clear(&file);
    json_decref(keys);
    free(dir);
    free(to);
    return status;
}

static enum mlo_status write_manifest(struct making *m, struct mlo_digest *digest, struct mlo_error *err)
{
    json_t *database = mlo_backup_file(m->incoming, "database.dump", err);
    json_t *blobs = database ? mlo_backup_file(m->incoming, "blobs", err) : NULL;
    if (!blobs) {
        json_decref(database);
        return err && err->status ? err->status : MLO_EIO;
    }
    json_object_set_new(blobs, "count", json_integer(m->count));
    json_object_set_new(blobs, "bytes", json_integer((json_int_t)m->bytes));
    json_object_set_new(m->manifest, "database", database);
    json_object_set_new(m->manifest, "blobs", blobs);
    json_object_set(m->manifest, "missing", m->missing);
    json_object_set_new(m->manifest, "format", json_string(MLO_BACKUP_FORMAT));
    json_object_set_new(m->manifest, "postgresql", json_integer(PQserverVersion(mlo_db_pg(m->conn))));
    return mlo_backup_manifest_write(m->incoming, m->manifest, m->key, digest, err);
}

/* The lock was lost when the connection was: gc may have removed what was not copied yet. */
static enum mlo_status still_held(struct making *m, struct mlo_error *err)
{
    struct mlo_error why = {0};
    enum mlo_status status = mlo_sql_number(m->conn, &mlo_sql_backup[BACKUP_HELD], NULL, NULL, &why);
    if (status == MLO_OK)
        return MLO_OK;
    mlo_error_set(err, MLO_EUNAVAILABLE, "the lock that keeps blobs from being removed was lost%s%.300s",
                  *why.message ? ": " : "", why.message);
    mlo_error_hint(err, "run the backup again: blobs that were copied are not copied again");
    return MLO_EUNAVAILABLE;
}

/* It appears under its name: from now on it is a backup. */
static enum mlo_status publish(struct making *m, struct mlo_error *err)
{
    char *path = mlo_fs_join(m->snapshots, m->name, NULL);
    enum mlo_status status = path ? MLO_OK : mlo_error_nomem(err);
    if (status == MLO_OK && (!sync_folder(m->incoming) || rename(m->incoming, path) != 0 ||
                             !sync_folder(m->snapshots) || !sync_folder(m->o->dir)))
        status = mlo_error_errno(err, errno, "cannot finish the backup %s", path);
    free(path);
    return status;
}

/* Who reads the audit log sees that everything was copied, and the digest that the copy must have. */
static enum mlo_status audit(struct making *m, const char *digest, struct mlo_error *err)
{
    const struct mlo_actor actor = MLO_ACTOR_SYSTEM;
    json_t *after = json_pack("{s:s, s:I, s:I, s:i}", "manifest", digest, "blobs", (json_int_t)m->count,
                              "missing", (json_int_t)json_array_size(m->missing), "keys",
                              (int)json_array_size(json_object_get(m->manifest, "keys")));
    const struct mlo_audit_event event = {.action = "backup.make", .object = m->name, .after = after};
    enum mlo_status status =
        after ? mlo_audit_append(m->conn, 0, &actor, &event, NULL, err) : mlo_error_nomem(err);
    json_decref(after);
    return status;
}

static enum mlo_status make(struct making *m, json_t **report, struct mlo_error *err)
{
    struct mlo_digest digest;
    char text[MLO_DIGEST_TEXT_SIZE], fingerprint[MLO_SSH_FINGERPRINT_SIZE] = "";
    char *all = mlo_fs_join(m->incoming, "blobs.all", NULL);
    enum mlo_status status = all ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(status);
    if (m->o->key_path) { /* found out before the work */
        MLO_TRY(mlo_sign_key_load(m->o->key_path, &m->key, err));
        mlo_ssh_fingerprint(mlo_sign_key_public(m->key), fingerprint);
    }
    MLO_TRY(mlo_migrate_check(m->conn, err));
    MLO_TRY(mlo_db_exec(m->conn, &mlo_sql_backup[BACKUP_HOLD], NULL, NULL, err));
    m->held = true;
    MLO_TRY(read_database(m, all, err));
    MLO_TRY(copy_blobs(m, all, err));
    MLO_TRY(copy_keys(m, err));
    MLO_TRY(still_held(m, err));
    MLO_TRY(write_manifest(m, &digest, err));
    step(m, "manifest");
    MLO_TRY(publish(m, err));
    step(m, "published");
    mlo_digest_text(&digest, text);
    status = audit(m, text, err);
    if (status != MLO_OK) {
        mlo_error_prefix(err, "the backup %s is whole, but the audit log does not tell of it", m->name);
        goto out;
    }
    *report = json_pack("{s:s, s:s, s:s?, s:I, s:I, s:I, s:I, s:O, s:I}", "snapshot", m->name, "digest", text,
                        "signed_by", m->key ? fingerprint : NULL, "blobs", (json_int_t)m->count, "bytes",
                        (json_int_t)m->bytes, "copied", (json_int_t)m->copied, "copied_bytes",
                        (json_int_t)m->copied_bytes, "missing", m->missing, "missing_needed",
                        (json_int_t)m->needed);
    if (!*report)
        status = mlo_error_nomem(err);
out:
    free(all);
    return status;
}

enum mlo_status mlo_backup_make(const struct mlo_backup_options *options, json_t **report,
                                struct mlo_error *err)
{
    struct making m = {
        .o = options, .lock_fd = -1, .progress = {options->on_progress, options->progress_arg, 0, 0}};
    struct mlo_error ignored = {0};
    enum mlo_status status = MLO_OK;
    *report = NULL;
    m.manifest = json_object();
    m.missing = json_array();
    if (!m.manifest || !m.missing) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(open_folder(&m, err));
    MLO_TRY(mlo_db_acquire(options->db, &m.conn, err));
    mlo_db_unhurried(m.conn, true);
    MLO_TRY(mlo_db_exec_text(m.conn, "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0",
                             err));
    MLO_TRY(make(&m, report, err));
out:
    if (m.list)
        fclose(m.list);
    if (m.held)
        (void)!mlo_db_exec(m.conn, &mlo_sql_backup[BACKUP_LET_GO], NULL, NULL, &ignored);
    if (m.conn) {
        (void)!mlo_db_exec_text(m.conn, "RESET statement_timeout; RESET idle_in_transaction_session_timeout",
                                &ignored);
        mlo_db_unhurried(m.conn, false);
    }
    mlo_db_release(m.conn);
    mlo_blob_store_close(m.store);
    if (m.locked)
        mlo_fs_remove_tree(m.incoming); /* gone, when it was published */
    if (m.lock_fd >= 0)
        close(m.lock_fd);
    mlo_sign_key_free(m.key);
    json_decref(m.manifest);
    json_decref(m.missing);
    free(m.snapshots);
    free(m.incoming);
    return status;
}
