/* Uploads that go past the server into the bucket: what test_direct.c and test_whole.c share. */
#ifndef MLO_TESTS_S3_DIRECT_FIXTURE_H
#define MLO_TESTS_S3_DIRECT_FIXTURE_H

#include "tests/s3/proxy.h"
#include "tests/s3/put.h"

#include "tests/integration/api/api_fixture.h"

enum { PUSHED = 41 << 20 };
#define UPLOADS "/v1/projects/demo/uploads"

static char g_url[256], g_bucket[32], *g_bytes; /* PUSHED of them */

static inline int start(void **state, const char *more)
{
    static int number;
    snprintf(g_bucket, sizeof g_bucket, "direct-%d", ++number);
    mlo_s3_close(s3_fixture_open(g_bucket));
    snprintf(g_url, sizeof g_url, "s3:%s/here?endpoint=%s%s", g_bucket, s3_server.endpoint, more);
    s3_proxy_set(S3_FAULT_NONE, 0, 0);
    atomic_store(&s3_proxy.authorized, 0);
    atomic_store(&s3_proxy.puts, 0);
    return api_setup_with(state, g_url, 0);
}

static inline void finish_as(struct api *api, struct reply *reply, const char *path,
                             const struct mlo_digest *digest, const char *token)
{
    char url[256], text[MLO_DIGEST_TEXT_SIZE];
    snprintf(url, sizeof url, "%s?digest=%s", path, mlo_digest_text(digest, text));
    do
        api_call(api, reply, "PUT", url, token, NULL, NULL);
    while (reply->status == 202);
}

static inline void finish(struct api *api, struct reply *reply, const char *path,
                          const struct mlo_digest *digest)
{
    finish_as(api, reply, path, digest, api->token[MLO_SUBMITTER]);
}

static inline long head_blob(struct api *api, const struct mlo_digest *digest)
{
    struct reply reply = {0};
    char path[256], text[MLO_DIGEST_TEXT_SIZE];
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", mlo_digest_text(digest, text));
    api_call(api, &reply, "HEAD", path, api->token[MLO_VIEWER], NULL, NULL);
    long http = reply.status;
    reply_clear(&reply);
    return http;
}

static inline enum mlo_status count_entry(void *arg, const struct mlo_s3_entry *entry, struct mlo_error *err)
{
    MLO_UNUSED(err);
    if (!mlo_str_starts(entry->key, "here/sha256/"))
        ++*(int *)arg;
    return MLO_OK;
}

/* Objects that are no blobs, and uploads that go on. */
static inline int leftovers(void)
{
    struct mlo_error err = {0};
    struct mlo_s3 *s3 = s3_fixture_open(g_bucket);
    int n = 0;
    assert_ok(mlo_s3_list(s3, "", count_entry, &n, &err));
    assert_ok(mlo_s3_list_uploads(s3, "", count_entry, &n, &err));
    mlo_s3_close(s3);
    return n;
}

/* --- mlopt push ----------------------------------------------------------------------------------------- */

/* Begins to push a model with a document of PUSHED bytes. */
static inline pid_t push(struct api *api, int *log)
{
    struct mlo_error err = {0};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    char url[64], token[128], home[160], *file = mlo_fs_join(api->dir, "large.txt", NULL);
    char *path = mlo_fs_join(api->dir, "log", NULL);
    const char *const argv[] = {
        getenv("MLOPT"), "push", "demo/cnn", MLOPT_SOURCE_DIR "/deploy/models/fashion_cnn.onnx", file, NULL};
    const char *const env[] = {url, token, home, "XDG_STATE_HOME", "LC_ALL=C", NULL};
    pid_t pid;
    snprintf(url, sizeof url, "MLOPT_URL=http://127.0.0.1:%u", mlo_http_port(api->http));
    snprintf(token, sizeof token, "MLOPT_TOKEN=%s", api->token[MLO_SUBMITTER]);
    snprintf(home, sizeof home, "HOME=%s", api->dir);
    if (access(file, F_OK) != 0)
        assert_mlo_ok(mlo_fs_write_atomic(file, g_bytes, PUSHED, &err), &err);
    *log = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    o.argv = argv;
    o.env = env;
    o.stderr_fd = *log;
    assert_mlo_ok(mlo_process_start(&o, &pid, &err), &err);
    free(file);
    free(path);
    return pid;
}

/* It ended well, and the document is there; `said` gets its log. */
static inline void assert_pushed(struct api *api, pid_t pid, int log, char said[4096])
{
    struct mlo_error err = {0};
    struct mlo_digest digest;
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    ssize_t n = pread(log, said, 4095, 0);
    said[MLO_MAX(n, 0)] = '\0';
    close(log);
    if (how != 0)
        fail_msg("push: %d: %s", how, said);
    mlo_digest_of(g_bytes, PUSHED, &digest);
    assert_mlo_ok(mlo_blob_check(api->blobs, &digest, NULL, &err), &err);
    assert_int_equal(head_blob(api, &digest), 200);
    assert_int_equal(leftovers(), 0);
    assert_null(strstr(said, "X-Amz-"));
}

/* Before the tests of a program; s3_fixture_end() ends it. */
static inline void direct_fixture_start(void)
{
    g_bytes = malloc(PUSHED);
    mlo_random_bytes(g_bytes, PUSHED);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    s3_fixture_start("memstore");
    s3_proxy_start();
}

#define WITH(test, setup_) cmocka_unit_test_setup_teardown(test, setup_, api_teardown)

#endif
