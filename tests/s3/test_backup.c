/* A backup of an installation whose blobs are in a bucket, restored into another bucket, on a real server. */
#include "tests/s3_fixture.h"

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

static struct mlo_blob_store *bucket_store(const char *bucket)
{
    struct mlo_error err = {0};
    struct mlo_blob_store *store;
    char url[160];
    mlo_s3_close(s3_fixture_open(bucket));
    snprintf(url, sizeof url, "s3:%s/a/prefix?endpoint=%s", bucket, s3_server.endpoint);
    assert_ok(mlo_blob_store_open(url, &store, &err));
    return store;
}

/* A blob of the project: in the store first, then in the database. */
static void keep(struct pg_fixture *f, struct mlo_blob_store *store, int64_t project, const void *bytes,
                 size_t size, struct mlo_digest *digest)
{
    assert_mlo_ok(mlo_blob_put_bytes(store, bytes, size, digest, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_record(f->conn, &root, project, digest, size, &f->err), &f->err);
}

static void test_backup__from_bucket_to_bucket(void **state)
{
    enum { LARGE = 20 << 20 }; /* in parts */
    struct pg_fixture *f = *state, other = *f;
    struct mlo_digest digests[3], gone;
    struct mlo_error *err = &f->err;
    struct mlo_db *to_db;
    int64_t project;
    json_t *report;
    char *large = malloc(LARGE), *dir, *admin = mlo_embedded_conninfo(f->pg, NULL, "postgres");
    struct mlo_blob_store *from = bucket_store("source"), *to = bucket_store("target");
    assert_mlo_ok(mlo_fs_tempdir("/tmp", "mlopt-backup-", &dir, err), err);
    assert_mlo_ok(mlo_project_create(f->conn, &root, "shop", "", &project, err), err);
    mlo_random_bytes(large, LARGE);
    keep(f, from, project, "one", 3, &digests[0]);
    keep(f, from, project, "", 0, &digests[1]);
    keep(f, from, project, large, LARGE, &digests[2]);

    const struct mlo_backup_options make = {.dir = dir, .db = f->owner, .blobs = from};
    assert_mlo_ok(mlo_backup_make(&make, &report, err), err);
    assert_int_equal(mlo_json_i64(report, "copied", 0), 3);
    json_decref(report);
    const struct mlo_backup_check check = {.dir = dir};
    assert_mlo_ok(mlo_backup_verify(&check, &report, err), err);
    json_decref(report);

    snprintf(other.database, sizeof other.database, "other");
    assert_mlo_ok(mlo_db_bootstrap(admin, other.database, err), err);
    to_db = pg_fixture_pool(&other, MLO_ROLE_OWNER, 2);
    struct mlo_restore_options restore = {.from = check, .db = to_db, .blobs = from};
    assert_mlo_status(mlo_backup_restore(&restore, &report, err), MLO_ECONFLICT, err);
    restore.blobs = to;
    assert_mlo_ok(mlo_backup_restore(&restore, &report, err), err);
    assert_int_equal(mlo_json_i64(report, "blobs", 0), 3);
    json_decref(report);
    for (size_t i = 0; i < MLO_COUNT(digests); i++)
        assert_mlo_ok(mlo_blob_check(to, &digests[i], NULL, err), err);

    /* what a bucket has lost is named */
    mlo_digest_of("never", 5, &gone);
    assert_mlo_ok(mlo_blob_record(f->conn, &root, project, &gone, 5, err), err);
    assert_mlo_ok(mlo_backup_make(&make, &report, err), err);
    char text[MLO_DIGEST_TEXT_SIZE];
    assert_int_equal(json_array_size(json_object_get(report, "missing")), 1);
    assert_string_equal(json_string_value(json_array_get(json_object_get(report, "missing"), 0)),
                        mlo_digest_text(&gone, text));
    assert_int_equal(mlo_json_i64(report, "missing_needed", -1), 0);
    json_decref(report);

    mlo_db_close(to_db);
    mlo_blob_store_close(from);
    mlo_blob_store_close(to);
    mlo_fs_remove_tree(dir);
    free(dir);
    free(admin);
    free(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        test_backup__from_bucket_to_bucket, pg_fixture_setup, pg_fixture_teardown)};
    s3_fixture_start("memstore");
    int failed = cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
    return s3_fixture_end(failed);
}
