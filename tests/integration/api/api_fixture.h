/* A server in this process on a private PostgreSQL and blob store, a token per role, and a client by libcurl.
 */
#ifndef MLO_TESTS_API_FIXTURE_H
#define MLO_TESTS_API_FIXTURE_H

#include "tests/pg_fixture.h"
#include "tests/reply.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/http/http.h"
#include "api/web/web.h"

#define API_MAX_BLOB ((uint64_t)1 << 20)
enum { API_PATIENCE_S = REPLY_PATIENCE_S };

struct api {
    struct pg_fixture *pg;
    char *dir;
    struct mlo_blob_store *blobs;
    struct mlo_http *http;
    struct mlo_ledger *ledger;
    void (*on_ledger_step)(struct api *api, const char *step); /* of any thread; may be NULL */
    char token[MLO_ROLE_COUNT][MLO_TOKEN_TEXT_SIZE];           /* of all projects */
    int64_t project;                                           /* "demo" */
    const char *ca; /* the server speaks TLS, and this is its certificate; NULL: plain HTTP */
};

/* `headers` is NULL or NULL-terminated; a token becomes Authorization. Fills `reply` afresh; its status is 0
 * when there was no answer. */
static inline CURLcode api_try(struct api *api, struct reply *reply, const char *method, const char *path,
                               const char *token, const char *body, const char *const *headers)
{
    char url[1024];
    snprintf(url, sizeof url, "http%s://127.0.0.1:%u%s", api->ca ? "s" : "", mlo_http_port(api->http), path);
    return reply_fetch(reply, method, url, api->ca, token, body, headers);
}

static inline void api_call(struct api *api, struct reply *reply, const char *method, const char *path,
                            const char *token, const char *body, const char *const *headers)
{
    CURLcode code = api_try(api, reply, method, path, token, body, headers);
    if (code != CURLE_OK)
        fail_msg("%s %s: %s", method, path, curl_easy_strerror(code));
}

/* Fails with the body when the status is another. */
#define assert_http(reply, wanted)                                                                           \
    do {                                                                                                     \
        if ((reply)->status != (wanted))                                                                     \
            fail_msg("HTTP %ld, not %d: %s", (reply)->status, (wanted), mlo_buf_str(&(reply)->body));        \
    } while (0)
#define assert_code(reply, wanted) assert_string_equal(mlo_json_str((reply)->json, "code", "?"), (wanted))
#define assert_holds(text, part)                                                                             \
    do {                                                                                                     \
        if (!strstr((text), (part)))                                                                         \
            fail_msg("'%s' is not in: %s", (part), (text));                                                  \
    } while (0)

/* The value of the hidden field `name` in a page. */
static inline void reply_field(const struct reply *reply, const char *name, char out[96])
{
    char mark[64];
    snprintf(mark, sizeof mark, "name=\"%s\" value=\"", name);
    const char *at = strstr(mlo_buf_str(&reply->body), mark);
    if (!at)
        fail_msg("no field %s in: %s", name, mlo_buf_str(&reply->body));
    at += strlen(mark);
    snprintf(out, 96, "%.*s", (int)strcspn(at, "\""), at);
}

/* Uploads a text as a blob of the project; `digest` gets its name. */
static inline void api_upload(struct api *api, const char *project, const char *text,
                              char digest[MLO_DIGEST_TEXT_SIZE])
{
    struct mlo_digest d;
    struct reply reply = {0};
    char path[256];
    mlo_digest_of(text, strlen(text), &d);
    mlo_digest_text(&d, digest);
    snprintf(path, sizeof path, "/v1/projects/%s/blobs/%s", project, digest);
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], text, NULL);
    if (reply.status != 201 && reply.status != 200)
        fail_msg("upload: %ld %s", reply.status, mlo_buf_str(&reply.body));
    reply_clear(&reply);
}

/* A version of demo/MODEL made of one file with this text. */
static inline void api_version(struct api *api, const char *model, const char *text, const char *description)
{
    char digest[MLO_DIGEST_TEXT_SIZE], path[256];
    struct reply reply = {0};
    api_upload(api, "demo", text, digest);
    json_t *body = json_pack("{s:[{s:s, s:s, s:s}], s:s}", "files", "role", "model", "name", "m.onnx",
                             "digest", digest, "description", description);
    char *dump = json_dumps(body, 0);
    snprintf(path, sizeof path, "/v1/projects/demo/models/%s/versions", model);
    api_call(api, &reply, "POST", path, api->token[MLO_SUBMITTER], dump, NULL);
    assert_http(&reply, 201);
    free(dump);
    json_decref(body);
    reply_clear(&reply);
}

/* A member of demo with a token, whose text is put into `token`. */
static inline void api_member(struct api *api, const char *name, const char *settings,
                              const char *token_settings, char token[MLO_TOKEN_TEXT_SIZE])
{
    char path[256];
    struct reply reply = {0};
    snprintf(path, sizeof path, "/v1/projects/demo/members/%s", name);
    api_call(api, &reply, "PUT", path, api->token[MLO_ADMIN], settings, NULL);
    if (reply.status != 201 && reply.status != 200)
        fail_msg("member: %ld %s", reply.status, mlo_buf_str(&reply.body));
    snprintf(path, sizeof path, "/v1/projects/demo/members/%s/tokens", name);
    api_call(api, &reply, "POST", path, api->token[MLO_ADMIN], token_settings, NULL);
    assert_http(&reply, 201);
    snprintf(token, MLO_TOKEN_TEXT_SIZE, "%s", mlo_json_str(reply.json, "token", ""));
    reply_clear(&reply);
}

/* A connection to the server, yours to close. */
static inline int api_connect(struct api *api)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(mlo_http_port(api->http))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Reads until the server closes; false when it has not after API_PATIENCE_S. `answer` may be NULL. */
static inline bool api_read_to_end(int fd, struct mlo_buf *answer)
{
    struct timeval patience = {.tv_sec = API_PATIENCE_S};
    char piece[4096];
    ssize_t n;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while ((n = read(fd, piece, sizeof piece)) > 0)
        if (answer)
            mlo_buf_append(answer, piece, (size_t)n);
    return n == 0 || errno == ECONNRESET;
}

/* Sends raw bytes that the server answers and closes after, and takes the answer. */
static inline void api_raw(struct api *api, const char *bytes, size_t size, struct mlo_buf *answer)
{
    int fd = api_connect(api);
    assert_true(mlo_fs_write_full(fd, bytes, size));
    assert_true(api_read_to_end(fd, answer));
    close(fd);
}

static inline void api_ledger_step(void *arg, const char *step)
{
    struct api *api = arg;
    if (api->on_ledger_step)
        api->on_ledger_step(api, step);
}

/* The store at `blobs`, NULL: files in a folder of its own. */
static inline int api_setup_with(void **state, const char *blobs, uint64_t max_blob_bytes)
{
    struct mlo_error err = {0};
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    struct api *api = calloc(1, sizeof *api);
    pg_fixture_setup((void **)&api->pg);
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlopt-api-", &api->dir, &err), &err);
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_buf_printf(&text, "file:%s/blobs", api->dir);
    assert_mlo_ok(mlo_blob_store_open(blobs ? blobs : mlo_buf_str(&text), &api->blobs, &err), &err);
    mlo_buf_clear(&text);
    for (int role = 0; role < MLO_ROLE_COUNT; role++)
        assert_mlo_ok(mlo_token_create(api->pg->conn, &system, mlo_role_name((enum mlo_role)role),
                                       (enum mlo_role)role, 0, 0, api->token[role], NULL, &err),
                      &err);
    assert_mlo_ok(mlo_project_create(api->pg->conn, &system, "demo", "", &api->project, &err), &err);
    char *ledgers = mlo_fs_join(api->dir, "ledger", NULL);
    const struct mlo_ledger_options ledger = {
        .db = api->pg->server, .dir = ledgers, .on_step = api_ledger_step, .step_arg = api};
    assert_mlo_ok(mlo_ledger_open(&ledger, &api->ledger, &err), &err);
    free(ledgers);
    struct mlo_http_options options = {.db = api->pg->server,
                                       .blobs = api->blobs,
                                       .ledger = api->ledger,
                                       .modules = mlo_web_module(),
                                       .module_count = 1,
                                       .max_blob_bytes = max_blob_bytes,
                                       /* a test that is held up is no slow client */
                                       .header_timeout_ms = API_PATIENCE_S * 1000,
                                       .idle_timeout_s = API_PATIENCE_S,
                                       .quiet = true};
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
    *state = api;
    return 0;
}

static inline int api_setup(void **state)
{
    return api_setup_with(state, NULL, API_MAX_BLOB);
}

static inline int api_teardown(void **state)
{
    struct api *api = *state;
    mlo_http_stop(api->http, 2000);
    mlo_ledger_close(api->ledger);
    mlo_blob_store_close(api->blobs);
    pg_fixture_teardown((void **)&api->pg);
    mlo_fs_remove_tree(api->dir);
    free(api->dir);
    free(api);
    return 0;
}

#define API_TEST(name) cmocka_unit_test_setup_teardown(name, api_setup, api_teardown)
#define API_MAIN(tests)                                                                                      \
    curl_global_init(CURL_GLOBAL_DEFAULT);                                                                   \
    int failed = cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);                           \
    curl_global_cleanup();                                                                                   \
    return failed

#endif
