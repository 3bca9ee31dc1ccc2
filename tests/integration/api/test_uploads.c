/* Uploads in pieces. */
#include "tests/integration/api/api_fixture.h"

#include <fcntl.h>

#define UPLOADS "/v1/projects/demo/uploads"

/* Begins one; its path. */
static void begin(struct api *api, char path[128])
{
    struct reply reply = {0};
    api_call(api, &reply, "POST", UPLOADS, api->token[MLO_SUBMITTER], "{}", NULL);
    assert_http(&reply, 201);
    assert_int_equal(mlo_json_i64(reply.json, "offset", -1), 0);
    snprintf(path, 128, UPLOADS "/%s", mlo_json_str(reply.json, "id", "?"));
    assert_holds(mlo_buf_str(&reply.headers), path);
    reply_clear(&reply);
}

static void patch(struct api *api, struct reply *reply, const char *path, const char *range, const char *text)
{
    char header[96];
    const char *headers[] = {header, NULL};
    snprintf(header, sizeof header, "Content-Range: %s", range);
    api_call(api, reply, "PATCH", path, api->token[MLO_SUBMITTER], text, range ? headers : NULL);
}

static void finish(struct api *api, struct reply *reply, const char *path, const char *text)
{
    struct mlo_digest digest;
    char name[MLO_DIGEST_TEXT_SIZE], url[256];
    mlo_digest_of(text, strlen(text), &digest);
    snprintf(url, sizeof url, "%s?digest=%s", path, mlo_digest_text(&digest, name));
    api_call(api, reply, "PUT", url, api->token[MLO_SUBMITTER], NULL, NULL);
}

static int64_t offset_of(struct api *api, const char *path)
{
    struct reply reply = {0};
    api_call(api, &reply, "GET", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 200);
    int64_t offset = mlo_json_i64(reply.json, "offset", -1);
    reply_clear(&reply);
    return offset;
}

/* The text is a blob of the project. */
static void assert_blob(struct api *api, const char *text)
{
    struct mlo_digest digest;
    struct reply reply = {0};
    char name[MLO_DIGEST_TEXT_SIZE], path[256];
    mlo_digest_of(text, strlen(text), &digest);
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", mlo_digest_text(&digest, name));
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_buf_str(&reply.body), text);
    reply_clear(&reply);
}

static void restart(struct api *api)
{
    struct mlo_error err = {0};
    mlo_http_stop(api->http, 2000);
    struct mlo_http_options options = {.db = api->pg->server,
                                       .blobs = api->blobs,
                                       .max_blob_bytes = API_MAX_BLOB,
                                       .header_timeout_ms = API_PATIENCE_S * 1000,
                                       .idle_timeout_s = API_PATIENCE_S,
                                       .quiet = true};
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
}

static void test_uploads__pieces_become_a_blob(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[128];
    begin(api, path);
    patch(api, &reply, path, "bytes 0-3/10", "0123");
    assert_http(&reply, 202);
    assert_holds(mlo_buf_str(&reply.headers), "Upload-Offset: 4");
    assert_holds(mlo_buf_str(&reply.headers), "Range: 0-3");
    restart(api); /* what goes on may be another server */
    api_call(api, &reply, "HEAD", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "Upload-Offset: 4");
    patch(api, &reply, path, "4-6", "456"); /* as OCI writes it */
    assert_http(&reply, 202);
    patch(api, &reply, path, NULL, "789");
    assert_http(&reply, 202);
    finish(api, &reply, path, "0123456789");
    assert_http(&reply, 201);
    assert_int_equal(mlo_json_i64(reply.json, "size", 0), 10);
    assert_blob(api, "0123456789");
    api_call(api, &reply, "GET", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

static void test_uploads__an_empty_one_is_a_blob_too(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[128];
    begin(api, path);
    finish(api, &reply, path, "");
    assert_http(&reply, 201);
    assert_blob(api, "");
    reply_clear(&reply);
}

static void test_uploads__a_piece_elsewhere_is_416(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[128];
    begin(api, path);
    patch(api, &reply, path, "bytes 0-3/*", "0123");
    patch(api, &reply, path, "bytes 0-3/*", "0123"); /* twice: the answer to the first was lost */
    assert_http(&reply, 416);
    assert_code(&reply, "range-not-satisfiable");
    patch(api, &reply, path, "bytes 8-9/*", "89");
    assert_http(&reply, 416);
    assert_int_equal(offset_of(api, path), 4);
    static const char *const wrong[] = {"bytes 4-3/*", "bytes 4",   "4-",
                                        "bytes -4",    "items 4-5", "bytes 4-5x"};
    for (size_t i = 0; i < MLO_COUNT(wrong); i++) {
        patch(api, &reply, path, wrong[i], "45");
        assert_http(&reply, 400);
    }
    patch(api, &reply, path, "bytes 4-5/*", "456"); /* more than it says */
    assert_http(&reply, 400);
    patch(api, &reply, path, "bytes 4-9/*", "456"); /* less */
    assert_http(&reply, 400);
    assert_int_equal(offset_of(api, path), 4);
    patch(api, &reply, path, "bytes 4-6/*", "456");
    assert_http(&reply, 202);
    finish(api, &reply, path, "0123456");
    assert_http(&reply, 201);
    assert_blob(api, "0123456");
    reply_clear(&reply);
}

static void test_uploads__wrong_bytes_are_no_blob(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[128], url[160];
    begin(api, path);
    patch(api, &reply, path, NULL, "wrong");
    finish(api, &reply, path, "right");
    assert_http(&reply, 422);
    assert_code(&reply, "digest-mismatch");
    snprintf(url, sizeof url, "%s?digest=md5:12", path);
    api_call(api, &reply, "PUT", url, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 422);
    assert_int_equal(offset_of(api, path), 5);
    api_call(api, &reply, "DELETE", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 204);
    api_call(api, &reply, "DELETE", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

static void test_uploads__belong_to_their_project(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[128], other[160];
    begin(api, path);
    api_call(api, &reply, "POST", "/v1/projects", api->token[MLO_ADMIN], "{\"name\":\"other\"}", NULL);
    snprintf(other, sizeof other, "/v1/projects/other/uploads/%s", strrchr(path, '/') + 1);
    api_call(api, &reply, "GET", other, api->token[MLO_ADMIN], NULL, NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "POST", UPLOADS, api->token[MLO_VIEWER], "{}", NULL);
    assert_http(&reply, 403);
    api_call(api, &reply, "GET", UPLOADS "/../../../etc/passwd", api->token[MLO_ADMIN], NULL, NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

/* Sends the head and some bytes of a piece of 10, and leaves the connection open. */
static int send_part(struct api *api, const char *path, const char *part)
{
    struct mlo_buf request = MLO_BUF_INIT;
    int fd = api_connect(api);
    mlo_buf_printf(&request,
                   "PATCH %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Range: bytes "
                   "0-9/10\r\nContent-Length: 10\r\n\r\n%s",
                   path, api->token[MLO_SUBMITTER], part);
    assert_int_equal(send(fd, request.data, request.len, MSG_NOSIGNAL), request.len);
    mlo_buf_clear(&request);
    return fd;
}

static void test_uploads__what_came_before_the_cut_is_kept(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[128];
    begin(api, path);
    char *file = mlo_fs_join(api->dir, "blobs/uploads", strrchr(path, '/') + 1, NULL);
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    int fd = send_part(api, path, "01234");
    while (mlo_fs_size(file) != 5 && mlo_clock_ns() < until)
        mlo_clock_sleep_ms(5);
    assert_int_equal(mlo_fs_size(file), 5);
    patch(api, &reply, path, "bytes 0-0/*", "0");
    if (reply.status != 416) { /* unless this test was held up, and the server cut the other off */
        assert_http(&reply, 409);
        assert_code(&reply, "conflict");
    }
    close(fd);
    while (offset_of(api, path) != 5 && mlo_clock_ns() < until)
        mlo_clock_sleep_ms(5);
    do
        patch(api, &reply, path, "bytes 5-9/10", "56789");
    while (reply.status == 409 && mlo_clock_ns() < until); /* it is counted before it is let go */
    free(file);
    assert_http(&reply, 202);
    finish(api, &reply, path, "0123456789");
    assert_http(&reply, 201);
    assert_blob(api, "0123456789");
    reply_clear(&reply);
}

/* A server that was killed left bytes that nobody counted. */
static void test_uploads__uncounted_bytes_are_written_over(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[128];
    begin(api, path);
    patch(api, &reply, path, NULL, "0123");
    char *file = mlo_fs_join(api->dir, "blobs/uploads", strrchr(path, '/') + 1, NULL);
    int fd = open(file, O_WRONLY | O_APPEND);
    assert_true(fd >= 0 && mlo_fs_write_full(fd, "torn and long", 13));
    close(fd);
    patch(api, &reply, path, "bytes 4-5/6", "45");
    assert_http(&reply, 202);
    finish(api, &reply, path, "012345");
    assert_http(&reply, 201);
    assert_blob(api, "012345");
    free(file);
    reply_clear(&reply);
}

/* A request that found the upload before another one appended to it, and comes to the bytes after it: what
 * that one was told is kept stays, also where the same client sent both. */
static void test_uploads__a_late_one_writes_over_nothing(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_upload late, current;
    struct mlo_blob_piece *piece = NULL;
    char path[128];
    begin(api, path);
    const char *id = strrchr(path, '/') + 1;
    assert_mlo_ok(mlo_upload_find(api->pg->conn, api->project, id, &late, &err), &err);
    patch(api, &reply, path, NULL, "0123");
    assert_http(&reply, 202);
    assert_mlo_status(mlo_upload_piece_open(api->pg->conn, api->blobs, &late, &piece, &err), MLO_ECONFLICT,
                      &err);
    assert_null(piece);
    assert_int_equal(offset_of(api, path), 4);
    patch(api, &reply, path, NULL, "45");
    assert_http(&reply, 202);
    assert_mlo_ok(mlo_upload_find(api->pg->conn, api->project, id, &current, &err), &err);
    assert_mlo_ok(mlo_upload_piece_open(api->pg->conn, api->blobs, &current, &piece, &err), &err);
    patch(api, &reply, path, NULL, "6"); /* while another one appends */
    assert_http(&reply, 409);
    mlo_blob_piece_free(piece);
    /* the bytes have gone to the blob, and then the row: neither is a reason to begin again */
    assert_mlo_ok(mlo_blob_session_publish(api->blobs, &current.session, &err), &err);
    assert_mlo_status(mlo_upload_piece_open(api->pg->conn, api->blobs, &current, &piece, &err), MLO_ECONFLICT,
                      &err);
    assert_null(piece);
    patch(api, &reply, path, NULL, "6");
    assert_http(&reply, 409);
    finish(api, &reply, path, "012345");
    assert_http(&reply, 201);
    assert_blob(api, "012345");
    assert_mlo_status(mlo_upload_piece_open(api->pg->conn, api->blobs, &current, &piece, &err), MLO_ECONFLICT,
                      &err);
    assert_null(piece);
    reply_clear(&reply);
}

/* Killed between the bytes and the row of a finished upload: finishing again is all it needs. */
static void test_uploads__finishing_twice_ends_well(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    struct mlo_upload upload;
    char path[128];
    begin(api, path);
    patch(api, &reply, path, NULL, "text");
    assert_mlo_ok(mlo_upload_find(api->pg->conn, api->project, strrchr(path, '/') + 1, &upload, &err), &err);
    assert_mlo_ok(mlo_blob_session_publish(api->blobs, &upload.session, &err), &err);
    finish(api, &reply, path, "text");
    assert_http(&reply, 201);
    assert_blob(api, "text");
    /* bytes that the disk lost, on the other hand, are not there because somebody else has them */
    begin(api, path);
    patch(api, &reply, path, NULL, "lost");
    char *file = mlo_fs_join(api->dir, "blobs/uploads", strrchr(path, '/') + 1, NULL);
    assert_int_equal(unlink(file), 0);
    patch(api, &reply, path, NULL, "more");
    assert_http(&reply, 404);
    finish(api, &reply, path, "lost");
    assert_http(&reply, 404);
    free(file);
    reply_clear(&reply);
}

static void test_uploads__expired_ones_are_swept(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    char path[128], next[128];
    begin(api, path);
    patch(api, &reply, path, NULL, "never finished");
    char *file = mlo_fs_join(api->dir, "blobs/uploads", strrchr(path, '/') + 1, NULL);
    assert_true(mlo_fs_exists(file));
    struct mlo_db_conn *owner;
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &owner, &err), &err);
    assert_mlo_ok(mlo_db_exec_text(owner, "UPDATE upload SET expires_at = now()", &err), &err);
    mlo_db_release(owner);
    api_call(api, &reply, "GET", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 404);
    begin(api, next);
    assert_false(mlo_fs_exists(file));
    assert_int_equal(offset_of(api, next), 0);
    free(file);
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_uploads__pieces_become_a_blob),
        API_TEST(test_uploads__an_empty_one_is_a_blob_too),
        API_TEST(test_uploads__a_piece_elsewhere_is_416),
        API_TEST(test_uploads__wrong_bytes_are_no_blob),
        API_TEST(test_uploads__belong_to_their_project),
        API_TEST(test_uploads__what_came_before_the_cut_is_kept),
        API_TEST(test_uploads__uncounted_bytes_are_written_over),
        API_TEST(test_uploads__a_late_one_writes_over_nothing),
        API_TEST(test_uploads__finishing_twice_ends_well),
        API_TEST(test_uploads__expired_ones_are_swept),
    };
    API_MAIN(tests);
}
