/* Uploads and downloads of bytes. */
#include "tests/integration/api/api_fixture.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/mount.h>

static void digest_path(const char *project, const char *text, size_t size, char path[256])
{
    struct mlo_digest digest;
    char name[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_of(text, size, &digest);
    snprintf(path, 256, "/v1/projects/%s/blobs/%s", project, mlo_digest_text(&digest, name));
}

static int g_files;

static int count_file(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    MLO_UNUSED(path);
    MLO_UNUSED(st);
    MLO_UNUSED(at);
    g_files += kind == FTW_F;
    return 0;
}

/* Files that lie anywhere below the store's folder, also half-written ones. */
static int files_in_store(const struct api *api)
{
    char *root = mlo_fs_join(api->dir, "blobs", NULL);
    g_files = 0;
    assert_int_equal(nftw(root, count_file, 16, FTW_PHYS), 0);
    free(root);
    return g_files;
}

static void test_blobs__an_upload_is_kept_and_read_back(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[256];
    const char *text = "0123456789abcdef", *submitter = api->token[MLO_SUBMITTER],
               *viewer = api->token[MLO_VIEWER];
    const char *range[] = {"Range: bytes=4-7", NULL}, *beyond[] = {"Range: bytes=100-", NULL};
    digest_path("demo", text, strlen(text), path);
    api_call(api, &reply, "HEAD", path, viewer, NULL, NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "PUT", path, submitter, text, NULL);
    assert_http(&reply, 201);
    assert_int_equal(mlo_json_i64(reply.json, "size", 0), 16);
    api_call(api, &reply, "PUT", path, submitter, text, NULL);
    assert_http(&reply, 200);
    api_call(api, &reply, "HEAD", path, viewer, NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "Content-Length: 16");
    api_call(api, &reply, "GET", path, viewer, NULL, NULL);
    assert_http(&reply, 200);
    assert_string_equal(mlo_buf_str(&reply.body), text);
    api_call(api, &reply, "GET", path, viewer, NULL, range);
    assert_http(&reply, 206);
    assert_string_equal(mlo_buf_str(&reply.body), "4567");
    assert_holds(mlo_buf_str(&reply.headers), "Content-Range: bytes 4-7/16");
    api_call(api, &reply, "GET", path, viewer, NULL, beyond);
    assert_http(&reply, 416);
    assert_int_equal(files_in_store(api), 1);
    reply_clear(&reply);
}

static void test_blobs__an_etag_saves_the_bytes(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[256], digest[MLO_DIGEST_TEXT_SIZE], header[128];
    const char *headers[] = {header, NULL};
    api_upload(api, "demo", "bytes", digest);
    digest_path("demo", "bytes", 5, path);
    snprintf(header, sizeof header, "If-None-Match: \"%s\"", digest);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, headers);
    assert_http(&reply, 304);
    assert_int_equal(reply.body.len, 0);
    reply_clear(&reply);
}

static void test_blobs__wrong_bytes_leave_nothing(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[256];
    digest_path("demo", "right", 5, path);
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], "wrong", NULL);
    assert_http(&reply, 422);
    assert_code(&reply, "digest-mismatch");
    api_call(api, &reply, "HEAD", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    assert_int_equal(files_in_store(api), 0);
    api_call(api, &reply, "PUT", "/v1/projects/demo/blobs/sha256:12", api->token[MLO_SUBMITTER], "x", NULL);
    assert_http(&reply, 422);
    reply_clear(&reply);
}

static void test_blobs__too_large_is_refused_early_and_late(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *chunked[] = {"Transfer-Encoding: chunked", NULL};
    size_t size = (size_t)API_MAX_BLOB + 1;
    char path[256], *bytes = malloc(size + 1);
    memset(bytes, 'x', size);
    bytes[size] = '\0';
    digest_path("demo", bytes, size, path);
    /* by its Content-Length, before a byte is read */
    char *head = NULL;
    struct mlo_buf request = MLO_BUF_INIT, answer = MLO_BUF_INIT;
    mlo_buf_printf(&request,
                   "PUT %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: %zu\r\n"
                   "Expect: 100-continue\r\n\r\n",
                   path, api->token[MLO_SUBMITTER], size);
    head = mlo_buf_take(&request);
    api_raw(api, head, strlen(head), &answer);
    assert_holds(mlo_buf_str(&answer), "HTTP/1.1 413");
    free(head);
    mlo_buf_clear(&answer);
    /* by what really comes */
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], bytes, chunked);
    assert_http(&reply, 413);
    assert_int_equal(files_in_store(api), 0);
    free(bytes);
    reply_clear(&reply);
}

/* Sends a part of an upload and comes back when the store holds that part: the connection, left open. The
 * server cuts off who sends nothing for long, also a test that was held up: then it is sent again. */
static int send_until_begun(struct api *api, const struct mlo_buf *part)
{
    int fd = -1;
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    while (!files_in_store(api)) {
        char byte;
        ssize_t n = fd < 0 ? 0 : recv(fd, &byte, 1, MSG_DONTWAIT);
        assert_true(n <= 0 && mlo_clock_ns() < until);
        if (n < 0 && errno == EAGAIN) {
            mlo_clock_sleep_ms(5);
            continue;
        }
        if (fd >= 0)
            close(fd);
        fd = api_connect(api);
        assert_int_equal(send(fd, part->data, part->len, MSG_NOSIGNAL), part->len);
    }
    assert_true(fd >= 0);
    return fd;
}

static void test_blobs__a_broken_connection_leaves_nothing(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_buf request = MLO_BUF_INIT;
    char path[256];
    digest_path("demo", "whole text", 10, path);
    mlo_buf_printf(
        &request, "PUT %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: 10\r\n\r\nwhole",
        path, api->token[MLO_SUBMITTER]);
    int fd = send_until_begun(api, &request);
    mlo_buf_clear(&request);
    close(fd);
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    while (files_in_store(api) && mlo_clock_ns() < until)
        mlo_clock_sleep_ms(5);
    assert_int_equal(files_in_store(api), 0);
    api_call(api, &reply, "HEAD", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    reply_clear(&reply);
}

static void test_blobs__knowing_a_digest_grants_nothing(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char digest[MLO_DIGEST_TEXT_SIZE], path[256], body[512];
    api_call(api, &reply, "POST", "/v1/projects", api->token[MLO_ADMIN], "{\"name\":\"other\"}", NULL);
    assert_http(&reply, 201);
    api_upload(api, "other", "secret weights", digest);
    digest_path("demo", "secret weights", 14, path);
    api_call(api, &reply, "GET", path, api->token[MLO_ADMIN], NULL, NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], "I only know the name", NULL);
    assert_http(&reply, 422);
    snprintf(body, sizeof body, "{\"files\":[{\"role\":\"model\",\"name\":\"m.onnx\",\"digest\":\"%s\"}]}",
             digest);
    api_call(api, &reply, "POST", "/v1/projects/demo/models/m/versions", api->token[MLO_SUBMITTER], body,
             NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "GET", "/v1/projects/demo/models/m", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404); /* the refused version left no empty model */
    reply_clear(&reply);
}

static void test_blobs__a_refused_upload_does_not_hold_the_store(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[256];
    digest_path("demo", "text", 4, path);
    api_call(api, &reply, "PUT", path, api->token[MLO_VIEWER], "text", NULL);
    assert_http(&reply, 403);
    digest_path("nobody", "text", 4, path);
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], "text", NULL);
    assert_http(&reply, 404);
    assert_int_equal(files_in_store(api), 0);
    reply_clear(&reply);
}

static void test_blobs__a_full_disk_is_507_and_leaves_nothing(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    size_t size = (size_t)API_MAX_BLOB - 1;
    char path[256], *bytes = malloc(size + 1), *small = mlo_fs_join(api->dir, "small", NULL);
    struct mlo_buf url = MLO_BUF_INIT;
    assert_mlo_ok(mlo_fs_mkdirs(small, &err), &err);
    if (mount("tmpfs", small, "tmpfs", 0, "size=256k") != 0) { /* only root may make a small disk */
        free(bytes);
        free(small);
        skip();
    }
    memset(bytes, 'y', size);
    bytes[size] = '\0';
    mlo_http_stop(api->http, 1000);
    mlo_blob_store_close(api->blobs);
    mlo_buf_printf(&url, "file:%s/blobs", small);
    assert_mlo_ok(mlo_blob_store_open(mlo_buf_str(&url), &api->blobs, &err), &err);
    struct mlo_http_options options = {.db = api->pg->server, .blobs = api->blobs, .quiet = true};
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
    digest_path("demo", bytes, size, path);
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], bytes, NULL);
    assert_http(&reply, 507);
    assert_code(&reply, "no-space");
    api_call(api, &reply, "HEAD", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    digest_path("demo", "fits", 4, path); /* what was written of the large one was given back */
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], "fits", NULL);
    assert_http(&reply, 201);
    mlo_http_stop(api->http, 1000);
    api->http = NULL;
    umount2(small, MNT_DETACH);
    mlo_buf_clear(&url);
    free(bytes);
    free(small);
    reply_clear(&reply);
}

/* --- damage ------------------------------------------------------------------------------------- */

/* A blob of so many bytes as the project's, straight into the store; the path of its file, yours. */
static char *put_large(struct api *api, size_t size, char path[256])
{
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    char *bytes = malloc(size), *file, *dir = api->dir;
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 2654435761u >> 13);
    digest_path("demo", bytes, size, path);
    assert_mlo_ok(mlo_blob_put_bytes(api->blobs, bytes, size, &digest, &err), &err);
    assert_mlo_ok(
        mlo_blob_record_stored(api->pg->conn, api->blobs, &system, api->project, &digest, size, &err), &err);
    assert_mlo_ok(mlo_blob_path(api->blobs, &digest, dir, false, &file, &err), &err);
    free(bytes);
    return file;
}

static void flip_bit(const char *file, off_t at)
{
    char byte = 0;
    assert_int_equal(chmod(file, 0600), 0);
    int fd = open(file, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 16;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* It is named, put aside, and gone for everybody. */
static void assert_put_aside(struct api *api, const char *path, const char *file)
{
    struct reply reply = {0};
    char *aside = mlo_fs_join(api->dir, "blobs", "quarantine", NULL);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 404);
    assert_holds(mlo_buf_str(&reply.body), "was found damaged and put aside");
    assert_false(mlo_fs_exists(file));
    assert_true(mlo_fs_exists(aside));
    assert_int_equal(pg_fixture_number(api->pg->owner, "SELECT count(*) FROM mlopt.audit WHERE "
                                                       "convert_from(body, 'UTF8')::json->>'action' = "
                                                       "'blob.damaged'"),
                     1);
    free(aside);
    reply_clear(&reply);
}

enum { LARGE = (3 << 20) + 12345, SMALL = 40000 };

static void test_blobs__a_large_one_arrives_whole(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_digest got;
    char path[256], name[MLO_DIGEST_TEXT_SIZE], *file = put_large(api, LARGE, path);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(reply.body.len, LARGE);
    mlo_digest_of(reply.body.data, reply.body.len, &got);
    assert_holds(path, mlo_digest_text(&got, name));
    free(file);
    reply_clear(&reply);
}

static void flipped_bit_cuts_the_download(struct api *api, off_t at)
{
    struct reply reply = {0};
    char path[256], *file = put_large(api, LARGE, path);
    flip_bit(file, at);
    /* the header is out when it is found: what comes is shorter than it says, so nobody takes it for whole */
    CURLcode code = api_try(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(code, CURLE_PARTIAL_FILE);
    assert_in_range(reply.body.len, 0, LARGE - 1);
    assert_put_aside(api, path, file);
    free(file);
    reply_clear(&reply);
}

static void test_blobs__a_bit_flipped_at_the_start_is_found_on_read(void **state)
{
    flipped_bit_cuts_the_download(*state, 0);
}

static void test_blobs__a_bit_flipped_at_the_end_is_found_on_read(void **state)
{
    flipped_bit_cuts_the_download(*state, LARGE - 1);
}

static void test_blobs__lost_bytes_are_found_on_read(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char path[256], *file = put_large(api, LARGE, path);
    assert_int_equal(chmod(file, 0600), 0);
    assert_int_equal(truncate(file, LARGE - 4096), 0);
    CURLcode code = api_try(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_int_equal(code, CURLE_PARTIAL_FILE);
    assert_put_aside(api, path, file);
    free(file);
    reply_clear(&reply);
}

static void test_blobs__a_small_damaged_one_is_refused_whole_and_in_ranges(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *range[] = {"Range: bytes=0-9", NULL};
    char path[256], *file = put_large(api, SMALL, path);
    flip_bit(file, 20000);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, range);
    assert_http(&reply, 422);
    assert_code(&reply, "digest-mismatch");
    assert_holds(mlo_buf_str(&reply.body), "quarantine/");
    assert_null(strstr(mlo_buf_str(&reply.headers), "Content-Range"));
    assert_put_aside(api, path, file);
    free(file);
    reply_clear(&reply);
}

/* A worker may only report it: whoever pushes the file again has the server look, and brings the bytes. */
static void test_blobs__one_that_a_worker_reported_is_taken_again(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    struct mlo_digest digest;
    const struct mlo_actor worker = {.name = "w", .role = MLO_ADMIN, .via = "worker"};
    const char *text = "weights", *submitter = api->token[MLO_SUBMITTER];
    char path[256], *file;
    digest_path("demo", text, strlen(text), path);
    mlo_digest_of(text, strlen(text), &digest);
    api_call(api, &reply, "PUT", path, submitter, text, NULL);
    assert_http(&reply, 201);
    assert_mlo_ok(mlo_blob_path(api->blobs, &digest, api->dir, false, &file, &err), &err);
    for (int round = 0; round < 2; round++) {
        flip_bit(file, 3);
        assert_mlo_status(mlo_blob_report_damage(api->pg->worker, api->blobs, &worker, &digest, false, &err),
                          MLO_EDIGEST, &err);
        assert_true(mlo_fs_exists(file));
        if (round == 0) { /* as `mlopt push` does; a PUT alone is enough too */
            api_call(api, &reply, "HEAD", path, submitter, NULL, NULL);
            assert_http(&reply, 404);
        }
        api_call(api, &reply, "PUT", path, submitter, text, NULL);
        assert_http(&reply, 201);
        api_call(api, &reply, "GET", path, submitter, NULL, NULL);
        assert_http(&reply, 200);
        assert_string_equal(mlo_buf_str(&reply.body), text);
    }
    free(file);
    reply_clear(&reply);
}

static int64_t reports(struct api *api)
{
    return pg_fixture_number(api->pg->server, "SELECT count(*) FROM blob WHERE reported_at IS NOT NULL");
}

/* A report has nobody read bytes at a request, and tells other projects nothing. */
static void test_blobs__a_report_is_not_looked_at_for_who_asks(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    struct mlo_digest digest;
    const struct mlo_actor worker = {.name = "w", .role = MLO_ADMIN, .via = "worker"};
    const char *text = "weights of another", *submitter = api->token[MLO_SUBMITTER];
    char path[256], name[MLO_DIGEST_TEXT_SIZE], *file;
    api_call(api, &reply, "POST", "/v1/projects", api->token[MLO_ADMIN], "{\"name\":\"other\"}", NULL);
    assert_http(&reply, 201);
    api_upload(api, "other", text, name);
    mlo_digest_of(text, strlen(text), &digest);
    assert_mlo_ok(mlo_blob_path(api->blobs, &digest, api->dir, false, &file, &err), &err);
    flip_bit(file, 3);
    assert_mlo_status(mlo_blob_report_damage(api->pg->worker, api->blobs, &worker, &digest, false, &err),
                      MLO_EDIGEST, &err);
    digest_path("demo", text, strlen(text), path);
    api_call(api, &reply, "HEAD", path, submitter, NULL, NULL);
    assert_http(&reply, 404);
    api_call(api, &reply, "PUT", path, submitter, "I only know the name", NULL);
    assert_http(&reply, 422);
    assert_true(mlo_fs_exists(file)); /* nobody put it aside */
    assert_int_equal(reports(api), 1);
    flip_bit(file, 3); /* now the report is a false one */
    digest_path("other", text, strlen(text), path);
    api_call(api, &reply, "HEAD", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    api_call(api, &reply, "HEAD", path, submitter, NULL, NULL);
    assert_http(&reply, 404);
    assert_int_equal(reports(api), 1);
    api_upload(api, "other", text, name);
    assert_int_equal(reports(api), 0);
    api_call(api, &reply, "HEAD", path, submitter, NULL, NULL);
    assert_http(&reply, 200);
    free(file);
    reply_clear(&reply);
}

/* Who reads a damaged one while another server puts it aside does not wait for that with a connection. */
static void test_blobs__one_settles_what_many_read(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_error err = {0};
    struct mlo_digest digest;
    char path[256], *file = put_large(api, SMALL, path), hex[MLO_DIGEST_TEXT_SIZE], sql[200];
    flip_bit(file, 20000);
    assert_true(mlo_digest_parse(strrchr(path, '/') + 1, &digest));
    snprintf(sql, sizeof sql, "SELECT pg_advisory_lock(hashtextextended('mlopt damage %s', 0))",
             mlo_digest_hex(&digest, hex));
    assert_mlo_ok(mlo_db_exec_text(api->pg->conn, sql, &err), &err);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 422);
    assert_true(mlo_fs_exists(file));
    assert_int_equal(pg_fixture_number(api->pg->server, "SELECT count(*) FROM blob WHERE removed_at IS NULL"),
                     1);
    assert_mlo_ok(mlo_db_exec_text(api->pg->conn, "SELECT pg_advisory_unlock_all()", &err), &err);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 422);
    assert_put_aside(api, path, file);
    free(file);
    reply_clear(&reply);
}

/* What documentation says of ranges: those of a large blob are not checked, the whole of it is. */
static void test_blobs__a_range_that_is_all_is_checked_and_others_of_a_large_one_are_not(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    const char *all[] = {"Range: bytes=0-", NULL}, *some[] = {"Range: bytes=100-199", NULL};
    char path[256], *file = put_large(api, LARGE, path);
    flip_bit(file, 2 << 20);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, some);
    assert_http(&reply, 206);
    assert_int_equal(reply.body.len, 100);
    CURLcode code = api_try(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, all);
    assert_int_equal(code, CURLE_PARTIAL_FILE);
    assert_put_aside(api, path, file);
    free(file);
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_blobs__an_upload_is_kept_and_read_back),
        API_TEST(test_blobs__an_etag_saves_the_bytes),
        API_TEST(test_blobs__wrong_bytes_leave_nothing),
        API_TEST(test_blobs__too_large_is_refused_early_and_late),
        API_TEST(test_blobs__a_broken_connection_leaves_nothing),
        API_TEST(test_blobs__knowing_a_digest_grants_nothing),
        API_TEST(test_blobs__a_refused_upload_does_not_hold_the_store),
        API_TEST(test_blobs__a_full_disk_is_507_and_leaves_nothing),
        API_TEST(test_blobs__a_large_one_arrives_whole),
        API_TEST(test_blobs__a_bit_flipped_at_the_start_is_found_on_read),
        API_TEST(test_blobs__a_bit_flipped_at_the_end_is_found_on_read),
        API_TEST(test_blobs__lost_bytes_are_found_on_read),
        API_TEST(test_blobs__a_small_damaged_one_is_refused_whole_and_in_ranges),
        API_TEST(test_blobs__one_that_a_worker_reported_is_taken_again),
        API_TEST(test_blobs__a_report_is_not_looked_at_for_who_asks),
        API_TEST(test_blobs__one_settles_what_many_read),
        API_TEST(test_blobs__a_range_that_is_all_is_checked_and_others_of_a_large_one_are_not),
    };
    API_MAIN(tests);
}
