/* Uploads in pieces whose bytes lie in a bucket and whose standing lies in the database: what one server
 * began another goes on with. */
#include "registry/upload.h"
#include "tests/pg_fixture.h"
#include "tests/s3/proxy.h"

enum { LARGE = (20 << 20) + 54321, STEP = 256 << 10 };

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

struct place {
    struct pg_fixture *pg;
    struct mlo_blob_store *store;
    char bucket[32], *bytes;
    struct mlo_digest digest;
    int64_t project;
};

static int setup(void **state)
{
    static int number;
    struct mlo_error err = {0};
    char url[256];
    struct place *p = calloc(1, sizeof *p);
    pg_fixture_setup((void **)&p->pg);
    snprintf(p->bucket, sizeof p->bucket, "uploads-%d", ++number);
    mlo_s3_close(s3_fixture_open(p->bucket));
    snprintf(url, sizeof url, "s3:%s/here?endpoint=%s", p->bucket, s3_server.endpoint);
    assert_ok(mlo_blob_store_open(url, &p->store, &err));
    assert_mlo_ok(mlo_project_create(p->pg->conn, &root, "demo", "", &p->project, &err), &err);
    p->bytes = malloc(LARGE);
    mlo_random_bytes(p->bytes, LARGE);
    mlo_digest_of(p->bytes, LARGE, &p->digest);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    mlo_blob_store_close(p->store);
    pg_fixture_teardown((void **)&p->pg);
    free(p->bytes);
    free(p);
    return 0;
}

/* As a server takes a piece that a client sends: asks where it stands, appends, keeps it. */
static void send_piece(struct place *p, const char *id, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_upload upload;
    struct mlo_blob_piece *piece;
    assert_mlo_ok(mlo_upload_find(p->pg->conn, p->project, id, &upload, &err), &err);
    uint64_t from = upload.session.size_bytes;
    assert_mlo_ok(mlo_upload_piece_open(p->pg->conn, p->store, &upload, &piece, &err), &err);
    uint64_t to = from + MLO_MIN(size, LARGE - from);
    for (uint64_t at = from; at < to; at += STEP) /* as a connection gives them */
        assert_mlo_ok(mlo_blob_piece_write(piece, p->bytes + at, MLO_MIN((uint64_t)STEP, to - at), &err),
                      &err);
    assert_mlo_ok(mlo_blob_piece_commit(piece, &err), &err);
    mlo_blob_piece_free(piece);
    assert_mlo_ok(mlo_upload_keep(p->pg->conn, &upload, from, &err), &err);
}

static void test_uploads__pieces_that_fill_parts(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_upload upload;
    assert_mlo_ok(mlo_upload_begin(p->pg->conn, p->store, &root, p->project, &upload, &err), &err);
    send_piece(p, upload.session.id, 9 << 20);
    send_piece(p, upload.session.id, 9 << 20);
    send_piece(p, upload.session.id, LARGE);
    assert_mlo_ok(mlo_upload_find(p->pg->conn, p->project, upload.session.id, &upload, &err), &err);
    assert_int_equal(upload.session.size_bytes, LARGE);
    assert_mlo_ok(mlo_blob_session_check(p->store, &upload.session, &err), &err);
    struct mlo_blob_piece *late = NULL;
    assert_mlo_ok(mlo_upload_publish(p->store, &root, &upload, &p->digest, &err), &err);
    assert_mlo_status(mlo_upload_piece_open(p->pg->conn, p->store, &upload, &late, &err), MLO_ECONFLICT,
                      &err); /* it is not lost: somebody finishes it */
    assert_null(late);
    assert_mlo_ok(mlo_upload_record(p->pg->conn, p->store, &root, &upload, &p->digest, &err), &err);
    assert_mlo_status(mlo_blob_session_check(p->store, &upload.session, &err), MLO_ENOTFOUND, &err);
    assert_mlo_ok(mlo_blob_check(p->store, &p->digest, NULL, &err), &err);
    assert_mlo_ok(mlo_blob_linked(p->pg->conn, p->project, &p->digest, NULL, &err), &err);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(test_uploads__pieces_that_fill_parts),
    };
    s3_fixture_start("memstore");
    int failed = cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
    return s3_fixture_end(failed);
}
