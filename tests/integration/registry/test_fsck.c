/* The reconciler: every kind of difference is found and named; repair does what is safe; reads find damage.
 */
#include <sys/stat.h>

#include "registry/upload.h"
#include "tests/upkeep_fixture.h"

/* The problem of this kind and content; NULL: none. Borrowed. */
static const json_t *find(const json_t *out, const char *kind, const char *text)
{
    char name[MLO_DIGEST_TEXT_SIZE];
    struct mlo_digest d = upkeep_digest(text ? text : "");
    size_t i;
    json_t *row;
    mlo_digest_text(&d, name);
    json_array_foreach(json_object_get(out, "problems"), i,
                       row) if (strcmp(mlo_json_str(row, "kind", ""), kind) == 0 &&
                                (!text || strcmp(mlo_json_str(row, "digest", ""), name) == 0)) return row;
    return NULL;
}

static size_t problems(const json_t *out)
{
    return json_array_size(json_object_get(out, "problems"));
}

static void make_old(const struct upkeep *u, const char *text)
{
    char *path = upkeep_path(u, text);
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    free(path);
}

static void test_fsck__finds_every_difference(void **state)
{
    struct upkeep u;
    struct mlo_digest d;
    upkeep_open(&u, *state);
    struct mlo_version_info v = upkeep_version(&u, "cnn", "missing one");
    upkeep_variant(&u, &v, "int8", "damaged one");
    upkeep_variant(&u, &v, "fp16", "short one");
    upkeep_variant(&u, &v, "fine", "fine one");
    assert_mlo_ok(mlo_blob_put_bytes(u.blobs, "old orphan", 10, &d, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_blob_put_bytes(u.blobs, "young orphan", 12, &d, &u.f->err), &u.f->err);
    make_old(&u, "old orphan");
    json_t *out;
    d = upkeep_digest("missing one");
    assert_mlo_ok(mlo_blob_remove(u.blobs, &d, &u.f->err), &u.f->err);
    upkeep_damage(&u, "damaged one");
    char *path = upkeep_path(&u, "short one");
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 3), 0);
    free(path);

    out = upkeep_fsck(&u, false, 3600);
    assert_int_equal(problems(out), 4);
    const json_t *row = find(out, "missing", "missing one");
    assert_non_null(row);
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "used_by"), 0)),
                        "fashion/cnn@1");
    row = find(out, "damaged", "damaged one");
    assert_non_null(row);
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "used_by"), 0)),
                        "fashion/cnn@1/int8");
    assert_non_null(find(out, "size", "short one"));
    assert_non_null(find(out, "orphan", "old orphan"));
    assert_int_equal(mlo_json_i64(out, "young", 0), 1);
    assert_int_equal(mlo_json_i64(out, "blobs", 0), 4);
    json_decref(out);
    assert_true(upkeep_has(&u, "old orphan")); /* nothing was changed */

    out = upkeep_fsck(&u, true, 3600);
    assert_int_equal(problems(out), 4);
    assert_string_equal(mlo_json_str(find(out, "orphan", "old orphan"), "repaired", ""), "removed");
    assert_non_null(strstr(mlo_json_str(find(out, "damaged", "damaged one"), "repaired", ""), "quarantine/"));
    assert_null(mlo_json_str(find(out, "missing", "missing one"), "repaired", NULL));
    json_decref(out);
    assert_false(upkeep_has(&u, "old orphan"));
    assert_true(upkeep_has(&u, "young orphan"));
    assert_false(upkeep_has(&u, "damaged one"));

    d = upkeep_digest("damaged one");
    assert_mlo_status(mlo_blob_linked(u.f->conn, u.project, &d, NULL, &u.f->err), MLO_ENOTFOUND, &u.f->err);
    assert_non_null(strstr(u.f->err.message, "damaged"));
    out = upkeep_fsck(&u, true, 3600);
    assert_int_equal(problems(out), 3); /* what lacks its bytes is said again */
    assert_int_equal(mlo_json_i64(out, "quarantined", 0), 2);
    json_decref(out);

    /* the right bytes heal it, and what referred to it has them again */
    upkeep_put(&u, "damaged one");
    upkeep_put(&u, "short one");
    assert_mlo_ok(mlo_blob_put_bytes(u.blobs, "missing one", 11, NULL, &u.f->err), &u.f->err);
    upkeep_clean(&u);
    struct mlo_audit_result audit;
    assert_mlo_ok(mlo_audit_verify(u.f->conn, 0, NULL, &audit, &u.f->err), &u.f->err);
    assert_true(audit.intact);
    upkeep_close(&u);
}

/* Bytes of a damaged blob that came back without being recorded. */
static void test_fsck__counts_what_returned(void **state)
{
    struct upkeep u;
    bool damaged;
    upkeep_open(&u, *state);
    struct mlo_version_info v = upkeep_version(&u, "cnn", "precious");
    upkeep_damage(&u, "precious");
    assert_mlo_ok(mlo_blob_quarantine(u.f->conn, u.blobs, &root, &v.artifact, &damaged, NULL, &u.f->err),
                  &u.f->err);
    assert_true(damaged);
    assert_mlo_ok(mlo_blob_put_bytes(u.blobs, "precious", 8, NULL, &u.f->err), &u.f->err);
    json_t *out = upkeep_fsck(&u, true, 3600);
    assert_int_equal(problems(out), 1);
    assert_non_null(find(out, "returned", "precious"));
    json_decref(out);
    upkeep_clean(&u);
    assert_mlo_ok(mlo_blob_linked(u.f->conn, u.project, &v.artifact, NULL, &u.f->err), &u.f->err);
    /* a healthy one is not put aside, whoever asks */
    assert_mlo_ok(mlo_blob_quarantine(u.f->conn, u.blobs, &root, &v.artifact, &damaged, NULL, &u.f->err),
                  &u.f->err);
    assert_false(damaged);
    upkeep_clean(&u);
    upkeep_close(&u);
}

static void write_file(const struct upkeep *u, const char *folder, const char *name, bool old)
{
    char *path = mlo_fs_join(u->root, folder, name, NULL);
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    struct mlo_error err = {0};
    assert_mlo_ok(mlo_fs_write_atomic(path, "part", 4, &err), &err);
    if (old)
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    free(path);
}

static void test_fsck__removes_what_uploads_left(void **state)
{
    struct upkeep u;
    struct mlo_upload upload;
    struct mlo_blob_writer *writer;
    upkeep_open(&u, *state);
    assert_mlo_ok(mlo_upload_begin(u.f->conn, u.blobs, &root, u.project, &upload, &u.f->err), &u.f->err);
    write_file(&u, "uploads", upload.session.id, true); /* old, but somebody may go on */
    write_file(&u, "uploads", "0123456789abcdef0123456789abcdef", true);
    write_file(&u, "uploads", "0123456789abcdef0123456789abcde0", false);
    assert_mlo_ok(mlo_blob_writer_open(u.blobs, &writer, &u.f->err), &u.f->err);
    write_file(&u, "incoming", "blob-dead", true);
    json_t *out = upkeep_fsck(&u, false, 3600);
    assert_int_equal(problems(out), 2);
    assert_non_null(find(out, "unfinished", NULL));
    assert_string_equal(mlo_json_str(find(out, "upload", NULL), "name", ""),
                        "uploads/0123456789abcdef0123456789abcdef");
    json_decref(out);
    out = upkeep_fsck(&u, true, 0); /* no grace: the living writer and the session stay all the same */
    assert_int_equal(problems(out), 3);
    json_decref(out);
    out = upkeep_fsck(&u, false, 0);
    assert_int_equal(problems(out), 0);
    json_decref(out);
    assert_mlo_ok(mlo_blob_writer_write(writer, "alive", 5, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_blob_writer_commit(writer, NULL, NULL, NULL, &u.f->err), &u.f->err);
    mlo_blob_writer_free(writer);
    assert_true(upkeep_has(&u, "alive"));
    upkeep_close(&u);
}

static void begin_upload(struct upkeep *u, const char *text, struct mlo_upload *out)
{
    struct mlo_blob_piece *piece;
    struct mlo_error *err = &u->f->err;
    assert_mlo_ok(mlo_upload_begin(u->f->conn, u->blobs, &root, u->project, out, err), err);
    assert_mlo_ok(mlo_blob_piece_open(u->blobs, &out->session, &piece, err), err);
    assert_mlo_ok(mlo_blob_piece_write(piece, text, strlen(text), err), err);
    assert_mlo_ok(mlo_blob_piece_commit(piece, err), err);
    mlo_blob_piece_free(piece);
    assert_mlo_ok(mlo_upload_keep(u->f->conn, out, 0, err), err);
}

/* The bytes of an upload that somebody may go on with: cut short, or removed. */
static void test_fsck__names_lost_uploads(void **state)
{
    struct upkeep u;
    struct mlo_upload fine, published, shorter, removed;
    upkeep_open(&u, *state);
    struct mlo_error *err = &u.f->err;
    begin_upload(&u, "goes on", &fine);
    begin_upload(&u, "published, not recorded", &published);
    begin_upload(&u, "cut short", &shorter);
    begin_upload(&u, "removed", &removed);
    struct mlo_digest d = upkeep_digest("published, not recorded");
    assert_mlo_ok(mlo_upload_publish(u.blobs, &root, &published, &d, err), err);
    char *path = mlo_fs_join(u.root, "uploads", shorter.session.id, NULL);
    assert_int_equal(truncate(path, 3), 0);
    free(path);
    path = mlo_fs_join(u.root, "uploads", removed.session.id, NULL);
    assert_int_equal(unlink(path), 0);
    free(path);

    for (int repair = 0; repair < 2; repair++) {
        json_t *out = upkeep_fsck(&u, repair, 3600), *row;
        size_t i;
        assert_int_equal(problems(out), 2);
        json_array_foreach(json_object_get(out, "problems"), i, row)
        {
            const char *name = mlo_json_str(row, "name", "");
            assert_string_equal(mlo_json_str(row, "kind", ""), "lost");
            assert_true(strcmp(name, shorter.session.id) == 0 || strcmp(name, removed.session.id) == 0);
            assert_string_equal(mlo_json_str(row, "repaired", ""), repair ? "forgotten" : "");
        }
        json_decref(out);
    }
    upkeep_clean(&u);
    assert_mlo_status(mlo_upload_find(u.f->conn, u.project, removed.session.id, &removed, err), MLO_ENOTFOUND,
                      err);
    assert_mlo_ok(mlo_upload_record(u.f->conn, u.blobs, &root, &published, &d, err), err);
    assert_mlo_ok(mlo_blob_linked(u.f->conn, u.project, &d, NULL, err), err);
    d = upkeep_digest("goes on");
    assert_mlo_ok(mlo_upload_finish(u.f->conn, u.blobs, &root, &fine, &d, err), err);
    upkeep_close(&u);
}

static enum mlo_status count_lost(void *arg, const struct mlo_upload *upload, struct mlo_error *err)
{
    MLO_UNUSED(upload);
    MLO_UNUSED(err);
    ++*(int *)arg;
    return MLO_OK;
}

/* A time that is over already: one upload a call; and a cursor of fsck that is among them. */
static void test_fsck__uploads_have_a_budget_too(void **state)
{
    struct upkeep u;
    struct mlo_upload all[4];
    char at[MLO_BLOB_SESSION_ID_SIZE] = "", cursor[MLO_DIGEST_TEXT_SIZE];
    const char *least = NULL, *most = NULL;
    int lost = 0, calls = 0;
    bool done;
    upkeep_open(&u, *state);
    struct mlo_error *err = &u.f->err;
    upkeep_put(&u, "a blob");
    for (size_t i = 0; i < MLO_COUNT(all); i++) {
        begin_upload(&u, "some bytes", &all[i]);
        char *path = mlo_fs_join(u.root, "uploads", all[i].session.id, NULL);
        assert_int_equal(unlink(path), 0);
        free(path);
        least = !least || strcmp(all[i].session.id, least) < 0 ? all[i].session.id : least;
        most = !most || strcmp(all[i].session.id, most) > 0 ? all[i].session.id : most;
    }
    const struct mlo_upload_lost_options o = {.store = u.blobs, .ends_ns = 1, .fn = count_lost, .arg = &lost};
    do {
        assert_mlo_ok(mlo_upload_lost(u.f->conn, &o, at, &done, err), err);
        calls++;
        assert_int_equal(lost, MLO_MIN(calls, (int)MLO_COUNT(all)));
    } while (!done && calls < 100);
    assert_int_equal(calls, MLO_COUNT(all) + 1);
    assert_string_equal(at, most);

    struct mlo_fsck_options options = {.blobs = u.blobs, .grace_s = 3600};
    json_t *out;
    snprintf(cursor, sizeof cursor, "upload:%.32s", least);
    assert_mlo_ok(mlo_fsck_run(u.f->conn, &root, &options, cursor, &out, err), err);
    assert_int_equal(problems(out), MLO_COUNT(all) - 1);
    assert_int_equal(mlo_json_i64(out, "blobs", -1), 0); /* those come before */
    assert_true(json_is_null(json_object_get(out, "next")));
    json_decref(out);
    assert_mlo_status(mlo_fsck_run(u.f->conn, &root, &options, "upload:x", &out, err), MLO_EINVAL, err);
    /* the time of a call ends among them: the next one goes on there */
    options.budget_ms = 1;
    cursor[0] = '\0';
    size_t found = 0;
    for (calls = 0; calls == 0 || (cursor[0] && calls < 1000); calls++) {
        assert_mlo_ok(mlo_fsck_run(u.f->conn, &root, &options, cursor, &out, err), err);
        found += problems(out);
        snprintf(cursor, sizeof cursor, "%s", mlo_json_str(out, "next", ""));
        json_decref(out);
    }
    assert_int_equal(found, MLO_COUNT(all));
    upkeep_close(&u);
}

/* A budget of no time: one blob or shard a call, and the same sum in the end. */
static void test_fsck__goes_on_where_it_stopped(void **state)
{
    struct upkeep u;
    char cursor[MLO_DIGEST_TEXT_SIZE] = "";
    int64_t blobs = 0;
    size_t found = 0;
    int calls = 0;
    upkeep_open(&u, *state);
    for (int i = 0; i < 40; i++) {
        char text[32];
        snprintf(text, sizeof text, "blob %d", i);
        upkeep_put(&u, text);
    }
    upkeep_damage(&u, "blob 7");
    struct mlo_fsck_options o = {.blobs = u.blobs, .bytes = true, .grace_s = 3600, .budget_ms = 1};
    do {
        json_t *out;
        assert_mlo_ok(mlo_fsck_run(u.f->conn, &root, &o, cursor, &out, &u.f->err), &u.f->err);
        blobs += mlo_json_i64(out, "blobs", 0);
        found += problems(out);
        snprintf(cursor, sizeof cursor, "%s", mlo_json_str(out, "next", ""));
        json_decref(out);
        calls++;
    } while (cursor[0] && calls < 1000);
    assert_int_equal(blobs, 40);
    assert_int_equal(found, 1);
    assert_true(calls > 1);
    json_t *none;
    assert_mlo_status(mlo_fsck_run(u.f->conn, &root, &o, "elsewhere", &none, &u.f->err), MLO_EINVAL,
                      &u.f->err);
    upkeep_close(&u);
}

/* What writers left, more of it than a call has time for: each is found once, and removed once. */
static void test_fsck__goes_on_among_leftovers(void **state)
{
    struct upkeep u;
    enum { LEFT = 300 };
    upkeep_open(&u, *state);
    for (int i = 0; i < LEFT; i++) {
        char name[40];
        snprintf(name, sizeof name, "%032x", i);
        char *path = mlo_fs_join(u.root, "uploads", name, NULL);
        assert_mlo_ok(mlo_fs_write_atomic(path, "left", 4, &u.f->err), &u.f->err);
        free(path);
    }
    for (int repair = 0; repair < 2; repair++) {
        struct mlo_fsck_options o = {.blobs = u.blobs, .repair = repair, .budget_ms = 1};
        char cursor[MLO_DIGEST_TEXT_SIZE] = "rest:0";
        size_t found = 0;
        int calls = 0;
        for (; calls == 0 || (cursor[0] && calls < 1000); calls++) {
            json_t *out;
            assert_mlo_ok(mlo_fsck_run(u.f->conn, &root, &o, cursor, &out, &u.f->err), &u.f->err);
            found += problems(out);
            snprintf(cursor, sizeof cursor, "%s", mlo_json_str(out, "next", ""));
            json_decref(out);
        }
        assert_int_equal(found, LEFT);
        assert_true(calls > 1);
    }
    struct mlo_fsck_options whole = {.blobs = u.blobs};
    json_t *out;
    assert_mlo_ok(mlo_fsck_run(u.f->conn, &root, &whole, "rest:0", &out, &u.f->err), &u.f->err);
    assert_int_equal(problems(out), 0);
    json_decref(out);
    assert_mlo_status(mlo_fsck_run(u.f->conn, &root, &whole, "rest:-1", &out, &u.f->err), MLO_EINVAL,
                      &u.f->err);
    upkeep_close(&u);
}

/* A shard of many folders, whose listing alone takes longer than the budget: each call does something. */
static void test_fsck__goes_on_in_a_shard_that_takes_long(void **state)
{
    struct upkeep u;
    char cursor[MLO_DIGEST_TEXT_SIZE] = "", last[MLO_DIGEST_TEXT_SIZE];
    size_t found = 0;
    int calls = 0, made = 0;
    upkeep_open(&u, *state);
    for (int i = 0; made < 150; i++) {
        char text[32];
        snprintf(text, sizeof text, "orphan %d", i);
        if (upkeep_digest(text).bytes[0] != 0x17)
            continue;
        assert_mlo_ok(mlo_blob_put_bytes(u.blobs, text, strlen(text), NULL, &u.f->err), &u.f->err);
        made++;
    }
    struct mlo_fsck_options o = {.blobs = u.blobs, .budget_ms = 1};
    do {
        json_t *out;
        snprintf(last, sizeof last, "%s", cursor);
        assert_mlo_ok(mlo_fsck_run(u.f->conn, &root, &o, cursor, &out, &u.f->err), &u.f->err);
        found += problems(out);
        snprintf(cursor, sizeof cursor, "%s", mlo_json_str(out, "next", ""));
        json_decref(out);
        assert_string_not_equal(cursor, last);
        calls++;
    } while (cursor[0]);
    assert_int_equal(found, made);
    print_message("%d calls\n", calls);
    upkeep_close(&u);
}

/* While a backup is made the bytes of an orphan stay, and that is what it says. */
static void test_fsck__says_what_it_did(void **state)
{
    struct upkeep u;
    struct mlo_db_conn *backup;
    upkeep_open(&u, *state);
    assert_mlo_ok(mlo_blob_put_bytes(u.blobs, "orphan", 6, NULL, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_db_acquire(u.f->server, &backup, &u.f->err), &u.f->err);
    assert_mlo_ok(
        mlo_db_exec_text(backup, "SELECT pg_advisory_lock_shared(" MLO_BLOB_HOLD_KEY ")", &u.f->err),
        &u.f->err);
    json_t *out = upkeep_fsck(&u, true, 0);
    assert_true(mlo_json_bool(out, "backup", false));
    const char *done = mlo_json_str(find(out, "orphan", "orphan"), "repaired", "");
    assert_non_null(strstr(done, "marked"));
    assert_non_null(strstr(done, "backup"));
    json_decref(out);
    assert_true(upkeep_has(&u, "orphan"));
    assert_mlo_ok(
        mlo_db_exec_text(backup, "SELECT pg_advisory_unlock_shared(" MLO_BLOB_HOLD_KEY ")", &u.f->err),
        &u.f->err);
    mlo_db_release(backup);
    assert_int_equal(upkeep_gc(&u, 0).removed, 1);
    upkeep_close(&u);
}

static const struct mlo_sql call_gone = {"test_gone", "SELECT blob_gone($1)", 1},
                            call_healed = {"test_healed", "SELECT blob_healed($1)", 1},
                            call_lock = {"test_lock", "SELECT blob_damaged_lock($1)", 1},
                            call_damaged = {"test_damaged", "SELECT blob_damaged($1)", 1},
                            call_looked = {"test_looked", "SELECT blob_looked($1)", 1},
                            call_report = {"test_report", "SELECT blob_report($1)", 1};

static enum mlo_status as_worker(struct upkeep *u, const struct mlo_sql *sql, const struct mlo_digest *digest)
{
    struct mlo_db_conn *conn;
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_digest(&p, digest);
    assert_mlo_ok(mlo_db_acquire(u->f->worker, &conn, &u->f->err), &u->f->err);
    enum mlo_status status = mlo_db_exec(conn, sql, &p, NULL, &u->f->err);
    mlo_db_release(conn);
    return status;
}

static int64_t reports(struct upkeep *u)
{
    return pg_fixture_number(u->f->owner, "SELECT count(*) FROM mlopt.blob WHERE reported_at IS NOT NULL");
}

/* A worker reports damage, and nothing more: nobody misses a blob because of what it says, true or not,
 * before a server has looked itself. */
static void test_fsck__a_worker_only_reports(void **state)
{
    struct upkeep u;
    upkeep_open(&u, *state);
    const struct mlo_actor worker = {.name = "w", .role = MLO_ADMIN, .via = "worker"};
    struct mlo_version_info one = upkeep_version(&u, "cnn", "fine"), two = upkeep_version(&u, "cnn", "bad");
    assert_mlo_status(as_worker(&u, &call_gone, &one.artifact), MLO_EFORBIDDEN, &u.f->err);
    assert_mlo_status(as_worker(&u, &call_healed, &one.artifact), MLO_EFORBIDDEN, &u.f->err);
    assert_mlo_status(as_worker(&u, &call_lock, &one.artifact), MLO_EFORBIDDEN, &u.f->err);
    assert_mlo_status(as_worker(&u, &call_damaged, &one.artifact), MLO_EFORBIDDEN, &u.f->err);
    assert_mlo_status(as_worker(&u, &call_looked, &one.artifact), MLO_EFORBIDDEN, &u.f->err);
    /* what is right is not reported */
    assert_mlo_status(mlo_blob_report_damage(u.f->worker, u.blobs, &worker, &one.artifact, false, &u.f->err),
                      MLO_EIO, &u.f->err);
    assert_int_equal(reports(&u), 0);
    upkeep_damage(&u, "bad");
    assert_mlo_status(mlo_blob_report_damage(u.f->worker, u.blobs, &worker, &two.artifact, false, &u.f->err),
                      MLO_EDIGEST, &u.f->err);
    assert_mlo_ok(as_worker(&u, &call_report, &one.artifact), &u.f->err); /* a false one */
    assert_int_equal(reports(&u), 2);
    assert_mlo_ok(mlo_blob_linked(u.f->conn, u.project, &one.artifact, NULL, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_blob_linked(u.f->conn, u.project, &two.artifact, NULL, &u.f->err), &u.f->err);
    /* fsck looks at what is reported, without being told to read all bytes */
    const struct mlo_fsck_options quick = {.blobs = u.blobs, .grace_s = 3600};
    json_t *seen;
    assert_mlo_ok(mlo_fsck_run(u.f->conn, &root, &quick, NULL, &seen, &u.f->err), &u.f->err);
    assert_int_equal(problems(seen), 1);
    assert_non_null(find(seen, "damaged", "bad"));
    json_decref(seen);
    /* a server looks at it: a false report hides nothing */
    assert_mlo_ok(mlo_blob_settle_report(u.f->conn, u.blobs, &one.artifact, &u.f->err), &u.f->err);
    assert_mlo_ok(mlo_blob_linked(u.f->conn, u.project, &one.artifact, NULL, &u.f->err), &u.f->err);
    assert_int_equal(reports(&u), 1);
    upkeep_gc(&u, 3600);
    assert_int_equal(reports(&u), 0);
    assert_mlo_ok(mlo_blob_linked(u.f->conn, u.project, &one.artifact, NULL, &u.f->err), &u.f->err);
    assert_false(upkeep_has(&u, "bad"));
    json_t *out = upkeep_fsck(&u, false, 3600);
    assert_int_equal(problems(out), 1);
    assert_non_null(find(out, "missing", "bad"));
    assert_int_equal(mlo_json_i64(out, "quarantined", 0), 1);
    json_decref(out);
    upkeep_put(&u, "bad");
    upkeep_clean(&u);
    upkeep_close(&u);
}

#define T(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_fsck__finds_every_difference),    T(test_fsck__counts_what_returned),
        T(test_fsck__removes_what_uploads_left), T(test_fsck__names_lost_uploads),
        T(test_fsck__uploads_have_a_budget_too), T(test_fsck__goes_on_among_leftovers),
        T(test_fsck__goes_on_where_it_stopped),  T(test_fsck__goes_on_in_a_shard_that_takes_long),
        T(test_fsck__says_what_it_did),          T(test_fsck__a_worker_only_reports),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
