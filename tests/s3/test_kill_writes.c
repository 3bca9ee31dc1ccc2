/* SIGKILL at every step of uploads whose store is S3: before, amid and behind every request to it, and before
 * and behind every call of PostgreSQL. An upload is a small blob, one in parts under its own name, one in
 * parts whose digest is known only at its end (copied on the server), one that passes in one request, one
 * that goes past us into the bucket, one in pieces, and a version of all of them.
 *
 * After each: what was acknowledged is there, no row is without its bytes, the audit chains verify, an upload
 * in pieces goes on where it stands, and fsck and gc leave nothing behind: no blob of nobody, no unfinished
 * object, no multipart upload that somebody pays for. */
#define KILL_STEPS 4
#include <curl/curl.h>

#include "registry/s3_client.h"
#include "tests/kill_fixture.h"
#include "tests/s3/put.h"
#include "tests/s3_fixture.h"

enum { SMALL = 50000, PARTS = (8 << 20) + 100 /* two */, STEP = 256 << 10 };

/* --- points at requests ----------------------------------------------------------------------------------
 */

CURLcode __real_curl_easy_perform(CURL *curl);
CURLcode __wrap_curl_easy_perform(CURL *curl);
CURLMcode __real_curl_multi_add_handle(CURLM *multi, CURL *curl);
CURLMcode __wrap_curl_multi_add_handle(CURLM *multi, CURL *curl);
enum mlo_status __real_mlo_s3_stream_finish(struct mlo_s3_stream *stream, struct mlo_error *err);
enum mlo_status __wrap_mlo_s3_stream_finish(struct mlo_s3_stream *stream, struct mlo_error *err);

/* Once a request, when a piece of its body is on its way. */
static int amid(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
    bool *passed = arg;
    MLO_UNUSED(down_total);
    MLO_UNUSED(down);
    if (!*passed && up > 0 && up < up_total) {
        *passed = true;
        kill_point();
    }
    return 0;
}

static void watch(CURL *curl, bool *passed)
{
    *passed = false;
    if (fault == FAULT_NONE)
        return;
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, amid);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, passed);
}

/* A request that goes on between calls: before its head, amid its body, before its end and behind it. */
CURLMcode __wrap_curl_multi_add_handle(CURLM *multi, CURL *curl)
{
    static bool passed;
    watch(curl, &passed);
    kill_point();
    return __real_curl_multi_add_handle(multi, curl);
}

enum mlo_status __wrap_mlo_s3_stream_finish(struct mlo_s3_stream *stream, struct mlo_error *err)
{
    kill_point();
    enum mlo_status status = __real_mlo_s3_stream_finish(stream, err);
    kill_point();
    return status;
}

CURLcode __wrap_curl_easy_perform(CURL *curl)
{
    bool passed;
    watch(curl, &passed);
    kill_point();
    CURLcode code = __real_curl_easy_perform(curl);
    kill_point();
    return code;
}

/* --- what is uploaded ------------------------------------------------------------------------------------
 */

/* Bytes, yours, and their digest. */
static char *bytes_of(const char *tag, const char *kind, size_t size, struct mlo_digest *digest)
{
    char *bytes = calloc(1, size);
    assert_non_null(bytes);
    snprintf(bytes, size, "%s of %s", kind, tag);
    memcpy(bytes + size - 40, bytes, 39); /* in its last part as well */
    mlo_digest_of(bytes, size, digest);
    return bytes;
}

enum told { NOTHING, DIGEST, PASSING };

static enum mlo_status write_blob(struct victim *v, const char *kind, size_t size, enum told told,
                                  struct mlo_digest *digest)
{
    struct mlo_blob_writer *w = NULL;
    char *bytes = bytes_of(v->tag, kind, size, digest);
    enum mlo_status status;
    if (told == PASSING)
        MLO_TRY(mlo_blob_writer_open_passing(v->blobs, digest, size, &w, &v->err));
    else
        MLO_TRY(mlo_blob_writer_open_expecting(v->blobs, told ? digest : NULL, told ? size : 0, &w, &v->err));
    for (size_t at = 0; at < size; at += STEP) /* as a connection gives them */
        MLO_TRY(mlo_blob_writer_write(w, bytes + at, MLO_MIN(size - at, (size_t)STEP), &v->err));
    MLO_TRY(mlo_blob_writer_commit(w, digest, NULL, NULL, &v->err));
    MLO_TRY(mlo_blob_record_stored(v->conn, v->blobs, &root, v->project, digest, size, &v->err));
out:
    mlo_blob_writer_free(w);
    free(bytes);
    return status;
}

/* From where the upload stands up to `to`. */
static enum mlo_status append(struct mlo_db_conn *conn, struct mlo_blob_store *blobs,
                              struct mlo_upload *upload, const char *bytes, size_t to, struct mlo_error *err)
{
    struct mlo_blob_piece *piece;
    uint64_t from = upload->session.size_bytes;
    enum mlo_status status = mlo_upload_piece_open(conn, blobs, upload, &piece, err);
    if (status != MLO_OK)
        return status;
    for (size_t at = from; at < to; at += STEP)
        MLO_TRY(mlo_blob_piece_write(piece, bytes + at, MLO_MIN(to - at, (size_t)STEP), err));
    MLO_TRY(mlo_blob_piece_commit(piece, err));
    MLO_TRY(mlo_upload_keep(conn, upload, from, err));
out:
    mlo_blob_piece_free(piece);
    return status;
}

/* The client's part: the bytes to the bucket. */
static enum mlo_status put_by_address(struct mlo_blob_store *blobs, const struct mlo_upload *upload,
                                      const char *bytes, struct mlo_error *err)
{
    struct mlo_blob_part_address address;
    char lines[MLO_BLOB_PART_HEADERS][256];
    const char *headers[MLO_BLOB_PART_HEADERS + 1] = {NULL};
    enum mlo_status status;
    MLO_TRY(mlo_blob_direct_address(blobs, &upload->session, 1, NULL, &address, err));
    for (size_t i = 0; i < address.header_count; i++) {
        snprintf(lines[i], sizeof lines[i], "%s: %s", address.headers[i].name, address.headers[i].value);
        headers[i] = lines[i];
    }
    if (put(address.url, bytes, PARTS, headers) != 200)
        status = mlo_error_set(err, MLO_EUNAVAILABLE, "the bucket does not take it");
out:
    mlo_blob_part_address_clear(&address);
    return status;
}

/* From wherever it stands to its end. */
static enum mlo_status bring_whole(struct mlo_db_conn *conn, struct mlo_blob_store *blobs,
                                   struct mlo_upload *upload, const char *bytes,
                                   const struct mlo_digest *digest, struct mlo_error *err)
{
    uint64_t before = upload->session.size_bytes;
    bool *arrived = NULL, done;
    enum mlo_status status;
    MLO_TRY(mlo_blob_direct_arrived(blobs, &upload->session, &arrived, err));
    if (!arrived[1])
        MLO_TRY(put_by_address(blobs, upload, bytes, err));
    MLO_TRY(mlo_blob_direct_verify(blobs, &upload->session, 0, &done, err));
    MLO_TRY(mlo_upload_keep(conn, upload, before, err));
    MLO_TRY(mlo_upload_finish(conn, blobs, &root, upload, digest, err));
out:
    free(arrived);
    return status;
}

static enum mlo_status upload_whole(struct victim *v, struct mlo_digest *digest)
{
    struct mlo_upload upload;
    char *bytes = bytes_of(v->tag, "whole", PARTS, digest);
    enum mlo_status status;
    MLO_TRY(mlo_upload_begin_direct(v->conn, v->blobs, &root, v->project, PARTS, digest, &upload, &v->err));
    MLO_TRY(bring_whole(v->conn, v->blobs, &upload, bytes, digest, &v->err));
out:
    free(bytes);
    return status;
}

/* 's', 'd', 'i', 'o', 'w', 'p': the blobs, as above; 'v': the version. */
static enum mlo_status uploads(struct victim *v)
{
    struct mlo_manifest_blob files[] = {
        {.role = "model", .name = "m.onnx"}, {.role = "data", .name = "one"},
        {.role = "data", .name = "two"},     {.role = "data", .name = "three"},
        {.role = "data", .name = "four"},    {.role = "data", .name = "five"}};
    struct mlo_upload upload;
    struct mlo_version_info version;
    int64_t model;
    char *bytes = bytes_of(v->tag, "pieces", PARTS, &files[3].digest);
    enum mlo_status status;
    MLO_TRY(write_blob(v, "small", SMALL, DIGEST, &files[0].digest));
    acknowledge(v, 's');
    MLO_TRY(write_blob(v, "direct", PARTS, DIGEST, &files[1].digest));
    acknowledge(v, 'd');
    MLO_TRY(write_blob(v, "incoming", PARTS, NOTHING, &files[2].digest));
    acknowledge(v, 'i');
    MLO_TRY(write_blob(v, "one", PARTS, PASSING, &files[4].digest));
    acknowledge(v, 'o');
    MLO_TRY(upload_whole(v, &files[5].digest));
    acknowledge(v, 'w');
    MLO_TRY(mlo_upload_begin(v->conn, v->blobs, &root, v->project, &upload, &v->err));
    MLO_TRY(append(v->conn, v->blobs, &upload, bytes, SMALL, &v->err));
    MLO_TRY(append(v->conn, v->blobs, &upload, bytes, PARTS, &v->err));
    MLO_TRY(mlo_upload_finish(v->conn, v->blobs, &root, &upload, &files[3].digest, &v->err));
    acknowledge(v, 'p');
    MLO_TRY(mlo_model_ensure(v->conn, &root, v->project, v->tag, &model, &v->err));
    MLO_TRY(mlo_version_create(v->conn, &root, model, "", files, MLO_COUNT(files), &version, &v->err));
    acknowledge(v, 'v');
out:
    free(bytes);
    return status;
}

/* --- what holds after it -----------------------------------------------------------------------------------
 */

static void before(struct campaign *c, const char *tag)
{
    MLO_UNUSED(c);
    MLO_UNUSED(tag);
}

static void assert_there(struct campaign *c, const char *tag, const char *kind, size_t size)
{
    struct pg_fixture *f = c->u.f;
    struct mlo_digest digest;
    free(bytes_of(tag, kind, size, &digest));
    assert_mlo_ok(mlo_blob_linked(f->conn, c->u.project, &digest, NULL, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_check(c->u.blobs, &digest, NULL, &f->err), &f->err);
}

/* The session that the victim left, if it did: the client sends what is missing. Which one it was: 'p', 'w';
 * 0: none. */
static char go_on(struct campaign *c, const char *tag)
{
    struct pg_fixture *f = c->u.f;
    struct mlo_upload upload;
    struct mlo_digest digest;
    PGresult *r = PQexec(mlo_db_pg(f->conn), "SELECT id FROM upload");
    assert_true(PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) <= 1);
    char left = 0;
    if (PQntuples(r) == 1) {
        assert_mlo_ok(mlo_upload_find(f->conn, c->u.project, PQgetvalue(r, 0, 0), &upload, &f->err), &f->err);
        left = mlo_blob_direct_info(c->u.blobs, &upload.session, NULL) ? 'w' : 'p';
        char *bytes = bytes_of(tag, left == 'w' ? "whole" : "pieces", PARTS, &digest);
        if (left == 'w')
            assert_mlo_ok(bring_whole(f->conn, c->u.blobs, &upload, bytes, &digest, &f->err), &f->err);
        else if (upload.session.size_bytes < PARTS)
            assert_mlo_ok(append(f->conn, c->u.blobs, &upload, bytes, PARTS, &f->err), &f->err);
        if (left == 'p')
            assert_mlo_ok(mlo_upload_finish(f->conn, c->u.blobs, &root, &upload, &digest, &f->err), &f->err);
        free(bytes);
    }
    PQclear(r);
    return left;
}

static enum mlo_status count_rest(void *arg, const struct mlo_blob_leftover *left, struct mlo_error *err)
{
    int *count = arg;
    MLO_UNUSED(err);
    print_error("left: %s %s\n", mlo_blob_leftover_name(left->kind), left->name);
    ++*count;
    return MLO_OK;
}

/* fsck finds what the victim left, and nothing worse; gc what nobody refers to. */
static void assert_cleared(struct campaign *c)
{
    static const char *const leftovers[] = {"orphan", "unfinished", "upload", "multipart"};
    struct pg_fixture *f = c->u.f;
    bool empty;
    int count = 0;
    json_t *found = upkeep_fsck(&c->u, true, 0), *row;
    size_t i;
    json_array_foreach(json_object_get(found, "problems"), i, row)
    {
        const char *kind = mlo_json_str(row, "kind", "?");
        bool expected = false;
        for (size_t k = 0; k < MLO_COUNT(leftovers); k++)
            expected = expected || strcmp(kind, leftovers[k]) == 0;
        if (!expected || !json_is_string(json_object_get(row, "repaired")))
            fail_msg("fsck: %s %s", kind, mlo_json_str(row, "digest", mlo_json_str(row, "name", "")));
    }
    json_decref(found);
    upkeep_gc(&c->u, 0);
    assert_mlo_ok(mlo_blob_leftovers(c->u.blobs, count_rest, &count, &f->err), &f->err);
    assert_int_equal(count, 0);
    assert_mlo_ok(mlo_blob_store_empty(c->u.blobs, &empty, &f->err), &f->err);
    assert_true(empty);
}

static void after(struct campaign *c, const char *tag, const char *acks)
{
    static const struct {
        char ack;
        const char *kind;
        size_t size;
    } blobs[] = {{'s', "small", SMALL}, {'d', "direct", PARTS}, {'i', "incoming", PARTS},
                 {'o', "one", PARTS},   {'w', "whole", PARTS},  {'p', "pieces", PARTS}};
    struct pg_fixture *f = c->u.f;
    struct mlo_version_info version;
    int64_t id;
    char went_on = go_on(c, tag);
    assert_false(went_on && strchr(acks, went_on));
    for (size_t i = 0; i < MLO_COUNT(blobs); i++)
        if (strchr(acks, blobs[i].ack) || blobs[i].ack == went_on)
            assert_there(c, tag, blobs[i].kind, blobs[i].size);
    bool there = mlo_model_find(f->conn, c->u.project, tag, &id, &f->err) == MLO_OK &&
                 mlo_version_find(f->conn, id, 1, &version, &f->err) == MLO_OK;
    assert_true(there || !strchr(acks, 'v'));
    if (there)
        assert_mlo_ok(upkeep_delete(&c->u, tag, 1, NULL, 0, NULL), &f->err);
    assert_cleared(c);
}

static void test_kill__at_each_step_of_uploads_to_s3(void **state)
{
    char url[200];
    snprintf(url, sizeof url, "s3:kill/x?endpoint=%s&uploads=stream&redirect=yes&direct=yes",
             s3_server.endpoint);
    mlo_s3_close(s3_fixture_open("kill"));
    const struct plan plan = {"s3", uploads, NULL, before, after, "sdiowpv", url};
    campaign(state, &plan, FAULT_KILL);
}

/* The step that a short run may miss: the rest was sent as the last part, and nothing was completed. */
static void test_kill__behind_the_last_part(void **state)
{
    struct mlo_error err = {0};
    struct mlo_blob_store *store;
    struct mlo_blob_session session;
    struct mlo_blob_piece *piece;
    struct mlo_s3_part part;
    struct mlo_digest digest;
    char url[200], key[80], upload[160];
    char *bytes = bytes_of("last", "pieces", PARTS, &digest);
    struct mlo_s3 *s3 = s3_fixture_open("last");
    MLO_UNUSED(state);
    snprintf(url, sizeof url, "s3:last?endpoint=%s", s3_server.endpoint);
    assert_ok(mlo_blob_store_open(url, &store, &err));
    assert_ok(mlo_blob_session_begin(store, &session, &err));
    assert_ok(mlo_blob_piece_open(store, &session, &piece, &err));
    assert_ok(mlo_blob_piece_write(piece, bytes, PARTS, &err));
    assert_ok(mlo_blob_piece_commit(piece, &err));
    mlo_blob_piece_free(piece);
    snprintf(key, sizeof key, "uploads/%s", session.id);
    assert_int_equal(sscanf(session.place, "%159s", upload), 1);
    assert_ok(mlo_s3_multipart_put(s3, key, upload, 2, bytes + (8 << 20), PARTS - (8 << 20), &part, &err));
    assert_ok(mlo_blob_session_publish(store, &session, &err));
    assert_ok(mlo_blob_check(store, &digest, NULL, &err));
    mlo_blob_store_close(store);
    mlo_s3_close(s3);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill__behind_the_last_part),
        cmocka_unit_test_setup_teardown(test_kill__at_each_step_of_uploads_to_s3, pg_fixture_setup,
                                        pg_fixture_teardown),
    };
    curl_global_init(CURL_GLOBAL_DEFAULT);
    s3_fixture_start("memstore");
    int failed = cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
    return s3_fixture_end(failed);
}
