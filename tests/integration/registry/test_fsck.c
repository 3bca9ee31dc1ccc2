/* The reconciler: every kind of difference is found and named; repair does what is safe; reads find damage.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/upkeep_fixture.h"

static char *path_of(const struct upkeep *u, const char *text)
{
    char *path;
    struct mlo_error err = {0};
    struct mlo_digest d = upkeep_digest(text);
    assert_mlo_ok(mlo_blob_path(u->blobs, &d, u->dir, false, &path, &err), &err);
    return path;
}

static void flip_a_bit(const struct upkeep *u, const char *text)
{
    char *path = path_of(u, text), byte = 0;
    assert_int_equal(chmod(path, 0600), 0);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, 2) == 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, 2), 1);
    close(fd);
    free(path);
}

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
    char *path = path_of(u, text);
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
    flip_a_bit(&u, "damaged one");
    char *path = path_of(&u, "short one");
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
    flip_a_bit(&u, "precious");
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
    flip_a_bit(&u, "blob 7");
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

#define T(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_fsck__finds_every_difference),
        T(test_fsck__counts_what_returned),
        T(test_fsck__removes_what_uploads_left),
        T(test_fsck__goes_on_where_it_stopped),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
