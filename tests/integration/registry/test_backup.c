/* Backups, without the command: killed at every step, beside gc, with a database that goes away, and what a
 * restore refuses. The way of a whole installation there and back is tests/e2e/test_backup.sh. */
#include "base/ssh_sign.h"
#include "ledger_fixture.h"

struct site {
    struct pg_fixture *f;
    struct shop shop;
    char *dir; /* holds the store, backups, keys */
    char *backup, *key;
    struct mlo_blob_store *blobs;
};

static char *url_of(const char *dir, const char *name)
{
    struct mlo_buf url = MLO_BUF_INIT;
    mlo_buf_printf(&url, "file:%s/%s", dir, name);
    return mlo_buf_take(&url);
}

static void put_version(struct site *s, const char *reason)
{
    char text[32];
    struct mlo_digest digest;
    snprintf(text, sizeof text, "version %lld", (long long)s->shop.version + 1);
    assert_mlo_ok(mlo_blob_put_bytes(s->blobs, text, strlen(text), &digest, &s->f->err), &s->f->err);
    shop_promote(&s->shop, reason);
}

static struct site site_open(struct pg_fixture *f)
{
    struct site s = {.f = f};
    assert_mlo_ok(mlo_fs_tempdir("/tmp", "mlopt-backup-", &s.dir, &f->err), &f->err);
    char *url = url_of(s.dir, "store");
    assert_mlo_ok(mlo_blob_store_open(url, &s.blobs, &f->err), &f->err);
    free(url);
    s.backup = mlo_fs_join(s.dir, "backup", NULL);
    s.shop = shop_open(f);
    s.key = mlo_fs_join(s.shop.dir, "ledger.key", NULL);
    put_version(&s, "one");
    put_version(&s, "two");
    shop_sync(&s.shop);
    return s;
}

static void site_close(struct site *s)
{
    shop_close(&s->shop);
    mlo_blob_store_close(s->blobs);
    mlo_fs_remove_tree(s->dir);
    free(s->dir);
    free(s->backup);
    free(s->key);
}

static struct mlo_backup_options to_backup(const struct site *s)
{
    return (struct mlo_backup_options){
        .dir = s->backup, .db = s->f->owner, .blobs = s->blobs, .key_path = s->key};
}

/* Makes one; its name is in `name`. */
static void back_up(struct site *s, char name[64], int64_t copied)
{
    json_t *report = NULL;
    const struct mlo_backup_options o = to_backup(s);
    assert_mlo_ok(mlo_backup_make(&o, &report, &s->f->err), &s->f->err);
    assert_int_equal(mlo_json_i64(report, "copied", -1), copied);
    snprintf(name, 64, "%s", mlo_json_str(report, "snapshot", ""));
    json_decref(report);
}

static void assert_whole(const struct site *s, const char *snapshot)
{
    json_t *report = NULL;
    struct mlo_error err = {0};
    const struct mlo_backup_check check = {.dir = s->backup, .snapshot = snapshot};
    assert_mlo_ok(mlo_backup_verify(&check, &report, &err), &err);
    json_decref(report);
}

/* A database of its own, and a store, for a restore. */
struct target {
    struct mlo_db *db;
    struct mlo_blob_store *blobs;
};

static struct target target_open(struct site *s, const char *name)
{
    struct target t = {0};
    struct pg_fixture other = *s->f;
    char *admin = mlo_embedded_conninfo(s->f->pg, NULL, "postgres"), *url = url_of(s->dir, name);
    snprintf(other.database, sizeof other.database, "%.20s_%.8s", s->f->database, name);
    assert_mlo_ok(mlo_db_bootstrap(admin, other.database, &s->f->err), &s->f->err);
    t.db = pg_fixture_pool(&other, MLO_ROLE_OWNER, 2);
    assert_mlo_ok(mlo_blob_store_open(url, &t.blobs, &s->f->err), &s->f->err);
    free(admin);
    free(url);
    return t;
}

static void target_close(struct target *t)
{
    mlo_db_close(t->db);
    mlo_blob_store_close(t->blobs);
}

static struct mlo_restore_options to_restore(const struct site *s, const struct target *t)
{
    return (struct mlo_restore_options){.from = {.dir = s->backup}, .db = t->db, .blobs = t->blobs};
}

/* --- killed --------------------------------------------------------------------------------------- */

struct fatal_step {
    const char *name;
    int count; /* the how manieth of this name */
};

static void die_at(void *arg, const char *step)
{
    struct fatal_step *fatal = arg;
    if (strcmp(step, fatal->name) == 0 && --fatal->count == 0)
        raise(SIGKILL);
}

/* A backup by another process, which is killed at the step. */
static void killed_backup(struct site *s, const char *step, int count)
{
    int how;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct mlo_error err = {0};
        struct fatal_step fatal = {step, count};
        json_t *report;
        struct mlo_backup_options o = to_backup(s);
        o.db = pg_fixture_pool(s->f, MLO_ROLE_OWNER, 1);
        o.on_step = die_at;
        o.step_arg = &fatal;
        _exit(mlo_backup_make(&o, &report, &err) == MLO_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    if (!WIFSIGNALED(how))
        fail_msg("the backup did not come to step %s, and ended with %d", step, WEXITSTATUS(how));
}

static void test_backup__killed_at_any_step_leaves_the_former_whole(void **state)
{
    static const struct fatal_step steps[] = {{"snapshot", 1}, {"dump", 1},     {"blob", 1},
                                              {"blob", 2},     {"manifest", 1}, {"published", 1}};
    struct site s = site_open(*state);
    char first[64], last[64];
    back_up(&s, first, 2);
    for (size_t i = 0; i < MLO_COUNT(steps); i++) {
        put_version(&s, "before a kill");
        put_version(&s, "before a kill");
        killed_backup(&s, steps[i].name, steps[i].count);
        assert_whole(&s, first);
        assert_whole(&s, NULL); /* the newest, too */
    }
    json_t *report = NULL;
    const struct mlo_backup_options o = to_backup(&s);
    assert_mlo_ok(mlo_backup_make(&o, &report, &s.f->err), &s.f->err);
    assert_int_equal(mlo_json_i64(report, "blobs", 0), 2 + 2 * MLO_COUNT(steps));
    assert_int_equal(mlo_json_i64(report, "copied", 0), 0); /* a killed one's blobs count */
    snprintf(last, sizeof last, "%s", mlo_json_str(report, "snapshot", ""));
    json_decref(report);
    assert_whole(&s, last);
    char *left = mlo_fs_join(s.backup, "snapshots", ".incoming", NULL);
    assert_false(mlo_fs_exists(left));
    free(left);
    site_close(&s);
}

/* --- beside others -------------------------------------------------------------------------------- */

struct beside {
    struct site *s;
    bool refused, other_refused, terminated;
    const char *terminate_at;
};

static bool may_remove(struct site *s)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(s->f->server, &conn, &s->f->err), &s->f->err);
    PGresult *r = PQexec(mlo_db_pg(conn), "SELECT pg_try_advisory_xact_lock(" MLO_BLOB_HOLD_KEY ")");
    bool may = PQresultStatus(r) == PGRES_TUPLES_OK && PQgetvalue(r, 0, 0)[0] == 't';
    PQclear(r);
    mlo_db_release(conn);
    return may;
}

static void look_around(void *arg, const char *step)
{
    struct beside *b = arg;
    struct mlo_error err = {0};
    json_t *report;
    if (strcmp(step, "blob") == 0) {
        b->refused = b->refused || !may_remove(b->s);
        const struct mlo_backup_options o = to_backup(b->s);
        b->other_refused = mlo_backup_make(&o, &report, &err) == MLO_ECONFLICT;
    }
    if (b->terminate_at && strcmp(step, b->terminate_at) == 0 && !b->terminated) {
        b->terminated = true;
        char *admin = mlo_embedded_conninfo(b->s->f->pg, NULL, b->s->f->database);
        PGconn *pg = PQconnectdb(admin);
        PQclear(PQexec(pg, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND "
                           "objid = " MLO_BLOB_HOLD_KEY));
        PQfinish(pg);
        free(admin);
    }
}

static void test_backup__keeps_gc_off_and_is_alone(void **state)
{
    struct site s = site_open(*state);
    struct beside b = {.s = &s};
    json_t *report = NULL;
    struct mlo_backup_options o = to_backup(&s);
    o.on_step = look_around;
    o.step_arg = &b;
    assert_mlo_ok(mlo_backup_make(&o, &report, &s.f->err), &s.f->err);
    json_decref(report);
    assert_true(b.refused);
    assert_true(b.other_refused);
    assert_true(may_remove(&s)); /* afterwards */
    site_close(&s);
}

static void test_backup__without_its_lock_is_none(void **state)
{
    struct site s = site_open(*state);
    struct beside b = {.s = &s, .terminate_at = "blob"};
    char name[64];
    json_t *report = NULL;
    struct mlo_error err = {0};
    struct mlo_backup_options o = to_backup(&s);
    o.on_step = look_around;
    o.step_arg = &b;
    assert_mlo_status(mlo_backup_make(&o, &report, &err), MLO_EUNAVAILABLE, &err);
    assert_non_null(strstr(err.hint, "run the backup again"));
    const struct mlo_backup_check check = {.dir = s.backup};
    assert_mlo_status(mlo_backup_verify(&check, &report, &err), MLO_ENOTFOUND, &err);
    back_up(&s, name, 0);
    assert_whole(&s, name);
    site_close(&s);
}

/* --- who may read it ------------------------------------------------------------------------------ */

/* A folder that was there before, and that others may read. */
static void test_backup__is_private_in_any_folder(void **state)
{
    static const char *const parts[] = {"blobs", "snapshots"};
    struct site s = site_open(*state);
    char name[64];
    struct stat info;
    mode_t old = umask(022);
    assert_int_equal(mkdir(s.backup, 0755), 0);
    back_up(&s, name, 2);
    umask(old);
    for (size_t i = 0; i < MLO_COUNT(parts); i++) {
        char *path = mlo_fs_join(s.backup, parts[i], NULL);
        assert_int_equal(stat(path, &info), 0);
        if ((info.st_mode & 0777) != 0700)
            fail_msg("%s has mode %o", parts[i], (unsigned)info.st_mode & 0777);
        free(path);
    }
    assert_whole(&s, name);
    site_close(&s);
}

/* --- damaged blobs ---------------------------------------------------------------------------------- */

/* Changes the bytes of version 1 in the store, which is found out: they are put aside and the row says so. */
static void damage_first(struct site *s, struct mlo_digest *digest)
{
    static const char text[] = "version 1";
    char hex[MLO_DIGEST_TEXT_SIZE], folder[3], next[3];
    bool damaged = false;
    mlo_digest_of(text, strlen(text), digest);
    mlo_digest_hex(digest, hex);
    snprintf(folder, sizeof folder, "%.2s", hex);
    snprintf(next, sizeof next, "%.2s", hex + 2);
    char *path = mlo_fs_join(s->dir, "store", "sha256", folder, next, hex, NULL);
    assert_int_equal(chmod(path, 0600), 0);
    assert_mlo_ok(mlo_fs_write_atomic(path, "version X", strlen(text), &s->f->err), &s->f->err);
    free(path);
    assert_mlo_ok(mlo_blob_quarantine(s->f->conn, s->blobs, &root, digest, &damaged, NULL, &s->f->err),
                  &s->f->err);
    assert_true(damaged);
}

#define DAMAGED "select count(*) from mlopt.blob where removed_why = 'damaged'"

/* The folder has the bytes from before: they come along, and the restored row counts as there. */
static void test_backup__gives_back_what_was_damaged_later(void **state)
{
    struct site s = site_open(*state);
    char name[64];
    json_t *report = NULL;
    struct mlo_digest digest;
    struct mlo_error *err = &s.f->err;
    back_up(&s, name, 2);
    damage_first(&s, &digest);
    assert_int_equal(pg_fixture_number(s.f->owner, DAMAGED), 1);
    back_up(&s, name, 0);
    struct target t = target_open(&s, "t");
    const struct mlo_restore_options o = to_restore(&s, &t);
    assert_mlo_ok(mlo_backup_restore(&o, &report, err), err);
    assert_int_equal(mlo_json_i64(report, "blobs", 0), 2);
    assert_int_equal(mlo_json_i64(report, "healed", 0), 1);
    json_decref(report);
    assert_int_equal(pg_fixture_number(t.db, DAMAGED), 0);
    assert_int_equal(
        pg_fixture_number(t.db, "select count(*) from mlopt.blob where removed_at is null and removed_why "
                                "is null and bytes_gone_at is null"),
        2);
    assert_mlo_ok(mlo_blob_check(t.blobs, &digest, NULL, err), err);
    target_close(&t);
    site_close(&s);
}

/* What nothing refers to is no loss: noted, and the backup goes on, and so does its restore. */
static void test_backup__notes_what_is_damaged_and_not_needed(void **state)
{
    struct site s = site_open(*state);
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    char text[MLO_DIGEST_TEXT_SIZE], *path = NULL;
    json_t *report = NULL;
    struct mlo_digest digest, needed;
    struct mlo_error *err = &s.f->err;
    assert_mlo_ok(mlo_blob_put_bytes(s.blobs, "nobody's", 8, &digest, err), err);
    assert_mlo_ok(mlo_blob_record_stored(s.f->conn, s.blobs, &system, s.shop.project_id, &digest, 8, err),
                  err);
    assert_mlo_ok(mlo_blob_path(s.blobs, &digest, s.dir, false, &path, err), err);
    assert_int_equal(unlink(path), 0);
    const struct mlo_backup_options make = to_backup(&s);
    assert_mlo_ok(mlo_backup_make(&make, &report, err), err);
    assert_int_equal(mlo_json_i64(report, "blobs", 0), 2);
    assert_int_equal(mlo_json_i64(report, "missing_needed", -1), 0);
    assert_int_equal(json_array_size(json_object_get(report, "missing")), 1);
    assert_string_equal(json_string_value(json_array_get(json_object_get(report, "missing"), 0)),
                        mlo_digest_text(&digest, text));
    json_decref(report);
    struct target t = target_open(&s, "t");
    const struct mlo_restore_options o = to_restore(&s, &t);
    assert_mlo_ok(mlo_backup_restore(&o, &report, err), err);
    json_decref(report);
    target_close(&t);
    /* one that is needed beside it is the one that is named */
    mlo_fs_remove_tree(s.backup);
    damage_first(&s, &needed);
    assert_mlo_status(mlo_backup_make(&make, &report, err), MLO_EDIGEST, err);
    assert_non_null(strstr(err->message, mlo_digest_text(&needed, text)));
    assert_non_null(strstr(err->message, "lost 1 blob,"));
    free(path);
    site_close(&s);
}

/* It has not: the backup fails and names it; made without it, the restored row stays damaged. */
static void test_backup__names_what_is_known_to_be_damaged(void **state)
{
    struct site s = site_open(*state);
    char text[MLO_DIGEST_TEXT_SIZE];
    json_t *report = NULL;
    struct mlo_digest digest;
    struct mlo_error *err = &s.f->err;
    damage_first(&s, &digest);
    struct mlo_backup_options make = to_backup(&s);
    assert_mlo_status(mlo_backup_make(&make, &report, err), MLO_EDIGEST, err);
    assert_non_null(strstr(err->message, mlo_digest_text(&digest, text)));
    make.allow_damaged = true;
    assert_mlo_ok(mlo_backup_make(&make, &report, err), err);
    assert_int_equal(mlo_json_i64(report, "blobs", 0), 1);
    assert_string_equal(json_string_value(json_array_get(json_object_get(report, "missing"), 0)), text);
    json_decref(report);
    struct target t = target_open(&s, "t");
    const struct mlo_restore_options o = to_restore(&s, &t);
    assert_mlo_ok(mlo_backup_restore(&o, &report, err), err);
    assert_int_equal(mlo_json_i64(report, "healed", -1), 0);
    json_decref(report);
    assert_int_equal(pg_fixture_number(t.db, DAMAGED), 1);
    target_close(&t);
    site_close(&s);
}

/* --- webhooks -------------------------------------------------------------------------------------- */

/* A restored copy tells nobody anything until somebody enables its webhooks. */
static void test_restore__pauses_webhooks(void **state)
{
    static const char *const states[] = {"enabled", "enabled", "paused", "disabled"};
    struct site s = site_open(*state);
    char name[64], sql[256];
    json_t *report = NULL;
    struct mlo_error *err = &s.f->err;
    for (size_t i = 0; i < MLO_COUNT(states); i++) {
        snprintf(sql, sizeof sql,
                 "insert into mlopt.webhook (project_id, url, events, state, created_by) values (%lld, "
                 "'https://example.com/', '{stage.promote}', '%s', 'test')",
                 (long long)s.shop.project_id, states[i]);
        pg_fixture_number(s.f->owner, sql);
    }
    put_version(&s, "which two are told of");
    back_up(&s, name, 3);
    struct target t = target_open(&s, "t");
    const struct mlo_restore_options o = to_restore(&s, &t);
    assert_mlo_ok(mlo_backup_restore(&o, &report, err), err);
    assert_int_equal(mlo_json_i64(report, "webhooks_paused", 0), 2);
    json_decref(report);
    assert_int_equal(
        pg_fixture_number(t.db, "select count(*) from mlopt.webhook_delivery where state = 'pending'"), 2);
    assert_int_equal(pg_fixture_number(t.db, "select count(*) from mlopt.webhook where state = 'enabled'"),
                     0);
    assert_int_equal(
        pg_fixture_number(t.db, "select count(*) from mlopt.webhook where state = 'paused' and state_reason "
                                "= 'restored from a backup'"),
        2);
    assert_int_equal(pg_fixture_number(t.db, "select count(*) from mlopt.webhook where state = 'disabled'"),
                     1);
    assert_int_equal(
        pg_fixture_number(s.f->owner, "select count(*) from mlopt.webhook where state = 'enabled'"), 2);
    target_close(&t);
    site_close(&s);
}

/* --- what is refused ------------------------------------------------------------------------------ */

static void test_backup__of_another_key_is_refused(void **state)
{
    struct site s = site_open(*state);
    struct mlo_sign_key *key;
    json_t *report = NULL;
    struct mlo_backup_options o = to_backup(&s);
    char *path = mlo_fs_join(s.dir, "other.key", NULL);
    assert_mlo_ok(mlo_sign_key_create(path, &key, &s.f->err), &s.f->err);
    mlo_sign_key_free(key);
    o.key_path = path;
    assert_mlo_status(mlo_backup_make(&o, &report, &s.f->err), MLO_ECONFLICT, &s.f->err);
    free(path);
    site_close(&s);
}

/* Changes the manifest and signs it again, as somebody with the key could. */
static void resign(struct site *s, const char *snapshot, const char *member, json_t *value)
{
    struct mlo_sign_key *key;
    struct mlo_buf armored = MLO_BUF_INIT, text = MLO_BUF_INIT;
    json_t *manifest;
    char *path = mlo_fs_join(s->backup, "snapshots", snapshot, "manifest.json", NULL);
    char *sig = mlo_fs_join(s->backup, "snapshots", snapshot, "manifest.json.sig", NULL);
    assert_mlo_ok(mlo_json_load_file(path, &manifest, &s->f->err), &s->f->err);
    json_object_set_new(manifest, member, value);
    mlo_ledger_json(manifest, &text);
    assert_mlo_ok(mlo_fs_write_atomic(path, text.data, text.len, &s->f->err), &s->f->err);
    assert_mlo_ok(mlo_sign_key_load(s->key, &key, &s->f->err), &s->f->err);
    assert_mlo_ok(mlo_ssh_sign(key, MLO_BACKUP_SIGNED_AS, text.data, text.len, &armored, &s->f->err),
                  &s->f->err);
    assert_mlo_ok(mlo_fs_write_atomic(sig, armored.data, armored.len, &s->f->err), &s->f->err);
    mlo_sign_key_free(key);
    mlo_buf_clear(&armored);
    mlo_buf_clear(&text);
    json_decref(manifest);
    free(path);
    free(sig);
}

static void test_restore__refuses_what_is_not_empty_newer_or_another_history(void **state)
{
    struct site s = site_open(*state);
    char name[64];
    json_t *report = NULL;
    struct mlo_digest digest;
    struct mlo_error *err = &s.f->err;
    back_up(&s, name, 2);
    /* the installation itself */
    struct target t = {.db = s.f->owner, .blobs = s.blobs};
    struct mlo_restore_options o = to_restore(&s, &t);
    assert_mlo_status(mlo_backup_restore(&o, &report, err), MLO_ECONFLICT, err);
    assert_non_null(strstr(err->message, "the database holds"));
    /* a store with a blob */
    t = target_open(&s, "t");
    o = to_restore(&s, &t);
    assert_mlo_ok(mlo_blob_put_bytes(t.blobs, "x", 1, &digest, err), err);
    assert_mlo_status(mlo_backup_restore(&o, &report, err), MLO_ECONFLICT, err);
    assert_non_null(strstr(err->message, "the blob store holds"));
    o.resume = true;
    /* heads that the database does not have */
    resign(&s, name, "ledgers", json_array());
    assert_mlo_status(mlo_backup_restore(&o, &report, err), MLO_EDIGEST, err);
    assert_non_null(strstr(err->message, "other heads"));
    target_close(&t);
    /* a schema of the future */
    resign(&s, name, "schema", json_pack("{s:i, s:s}", "number", 9999, "name", "9999_future"));
    t = target_open(&s, "u");
    o = to_restore(&s, &t);
    assert_mlo_status(mlo_backup_restore(&o, &report, err), MLO_ECONFLICT, err);
    assert_non_null(strstr(err->hint, "newer"));
    target_close(&t);
    site_close(&s);
}

/* A database whose audit log was tampered with is backed up as it is, and not restored in silence. */
static void test_restore__finds_a_changed_audit_entry(void **state)
{
    struct site s = site_open(*state);
    char name[64];
    json_t *report = NULL;
    struct mlo_db_conn *owner;
    struct mlo_error *err = &s.f->err;
    assert_mlo_ok(mlo_db_acquire(s.f->owner, &owner, err), err);
    assert_mlo_ok(
        mlo_db_exec_text(owner, "UPDATE audit SET body = body || ' ' WHERE seq = 2 AND project_id > 0", err),
        err);
    mlo_db_release(owner);
    back_up(&s, name, 2);
    struct target t = target_open(&s, "t");
    const struct mlo_restore_options o = to_restore(&s, &t);
    assert_mlo_status(mlo_backup_restore(&o, &report, err), MLO_EDIGEST, err);
    assert_non_null(strstr(err->message, "entry 2"));
    target_close(&t);
    site_close(&s);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_backup__killed_at_any_step_leaves_the_former_whole),
        TEST(test_backup__keeps_gc_off_and_is_alone),
        TEST(test_backup__without_its_lock_is_none),
        TEST(test_backup__is_private_in_any_folder),
        TEST(test_backup__gives_back_what_was_damaged_later),
        TEST(test_backup__notes_what_is_damaged_and_not_needed),
        TEST(test_backup__names_what_is_known_to_be_damaged),
        TEST(test_restore__pauses_webhooks),
        TEST(test_backup__of_another_key_is_refused),
        TEST(test_restore__refuses_what_is_not_empty_newer_or_another_history),
        TEST(test_restore__finds_a_changed_audit_entry),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
