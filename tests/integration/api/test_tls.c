/* The server speaks TLS itself: real handshakes with certificates that openssl made, by curl, GnuTLS and the
 * program; what is too old is refused, a slow one keeps nobody, and a renewed one is taken up. */
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <poll.h>
#include <sys/stat.h>

#include "tests/integration/api/api_fixture.h"

enum { LARGE = 700000 }; /* more than the kernel takes at once, less than API_MAX_BLOB */

static char cert_path[512], key_path[512];

/* Runs a program; its output and its code. */
static int run(const char *const *argv, const char *const *env, struct mlo_buf *out)
{
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    struct mlo_error err = {0};
    char log[600];
    int code = -1;
    snprintf(log, sizeof log, "%s.log", cert_path);
    options.argv = argv;
    options.env = env;
    options.stderr_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_mlo_ok(mlo_process_run(&options, API_PATIENCE_S * 1000, 1 << 20, out, &code, &err), &err);
    close(options.stderr_fd);
    assert_mlo_ok(mlo_fs_read(log, 1 << 20, out, &err), &err);
    return code;
}

/* A certificate for 127.0.0.1 that signs itself, with a key; into the paths. */
static void make_certificate(const char *cert, const char *key, const char *name)
{
    struct mlo_buf out = MLO_BUF_INIT;
    char subject[64];
    snprintf(subject, sizeof subject, "/CN=%s", name);
    const char *const argv[] = {"/usr/bin/env",
                                "openssl",
                                "req",
                                "-x509",
                                "-newkey",
                                "ec",
                                "-pkeyopt",
                                "ec_paramgen_curve:P-256",
                                "-nodes",
                                "-days",
                                "2",
                                "-subj",
                                subject,
                                "-addext",
                                "subjectAltName=DNS:localhost,IP:127.0.0.1",
                                "-keyout",
                                key,
                                "-out",
                                cert,
                                NULL};
    if (run(argv, NULL, &out) != 0)
        fail_msg("openssl: %s", mlo_buf_str(&out));
    mlo_buf_clear(&out);
}

static int tls_setup(void **state)
{
    struct mlo_error err = {0};
    api_setup(state);
    struct api *api = *state;
    snprintf(cert_path, sizeof cert_path, "%s/tls.crt", api->dir);
    snprintf(key_path, sizeof key_path, "%s/tls.key", api->dir);
    make_certificate(cert_path, key_path, "first");
    mlo_http_stop(api->http, 0);
    const struct mlo_http_options options = {.db = api->pg->server,
                                             .blobs = api->blobs,
                                             .ledger = api->ledger,
                                             .modules = mlo_web_module(),
                                             .module_count = 1,
                                             .max_blob_bytes = API_MAX_BLOB,
                                             .header_timeout_ms = API_PATIENCE_S * 1000,
                                             .idle_timeout_s = API_PATIENCE_S,
                                             .tls_cert = cert_path,
                                             .tls_key = key_path,
                                             .quiet = true};
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
    assert_true(mlo_http_tls(api->http));
    api->ca = cert_path;
    return 0;
}

/* --- GnuTLS as a client ------------------------------------------------------------------------ */

struct peer {
    gnutls_session_t session;
    gnutls_certificate_credentials_t trust;
    int fd;
};

/* Shakes hands as `priorities` say; what GnuTLS says of it, the session to be closed in any case. */
static int shake(struct api *api, const char *priorities, struct peer *p)
{
    assert_int_equal(gnutls_certificate_allocate_credentials(&p->trust), 0);
    assert_int_equal(gnutls_init(&p->session, GNUTLS_CLIENT), 0);
    assert_int_equal(gnutls_priority_set_direct(p->session, priorities, NULL), 0);
    assert_int_equal(gnutls_credentials_set(p->session, GNUTLS_CRD_CERTIFICATE, p->trust), 0);
    p->fd = api_connect(api);
    gnutls_transport_set_int(p->session, p->fd);
    gnutls_handshake_set_timeout(p->session, API_PATIENCE_S * 1000);
    int rc;
    do
        rc = gnutls_handshake(p->session);
    while (rc < 0 && !gnutls_error_is_fatal(rc));
    return rc;
}

static void peer_close(struct peer *p)
{
    gnutls_deinit(p->session);
    gnutls_certificate_free_credentials(p->trust);
    close(p->fd);
}

/* The common name of the certificate that is served. */
static void served_name(struct api *api, char out[64])
{
    struct peer p;
    unsigned count = 0;
    size_t size = 64;
    gnutls_x509_crt_t cert;
    assert_int_equal(shake(api, "NORMAL", &p), 0);
    const gnutls_datum_t *chain = gnutls_certificate_get_peers(p.session, &count);
    assert_int_equal(count, 1);
    assert_int_equal(gnutls_x509_crt_init(&cert), 0);
    assert_int_equal(gnutls_x509_crt_import(cert, &chain[0], GNUTLS_X509_FMT_DER), 0);
    assert_int_equal(gnutls_x509_crt_get_dn_by_oid(cert, GNUTLS_OID_X520_COMMON_NAME, 0, 0, out, &size), 0);
    gnutls_x509_crt_deinit(cert);
    peer_close(&p);
}

/* --- cases ------------------------------------------------------------------------------------- */

static void test_tls__serves_all_that_plain_http_serves(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char digest[MLO_DIGEST_TEXT_SIZE], path[256];
    api_call(api, &reply, "GET", "/v1/me", api->token[MLO_ADMIN], NULL, NULL);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.headers), "Strict-Transport-Security: max-age=");
    /* bytes up, and down from a file, whole and in part */
    char *large = malloc(LARGE + 1);
    for (size_t i = 0; i < LARGE; i++)
        large[i] = (char)('a' + (i * 31 + i / 977) % 26);
    large[LARGE] = '\0';
    api_upload(api, "demo", large, digest);
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", digest);
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    assert_int_equal(reply.body.len, LARGE);
    assert_memory_equal(reply.body.data, large, LARGE);
    const char *const range[] = {"Range: bytes=300000-599999", NULL};
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, range);
    assert_http(&reply, 206);
    assert_int_equal(reply.body.len, 300000);
    assert_memory_equal(reply.body.data, large + 300000, 300000);
    free(large);
    /* a stream of events, until its run ends */
    api_version(api, "cnn", "a model", "");
    api_call(api, &reply, "POST", "/v1/projects/demo/runs", api->token[MLO_ADMIN],
             "{\"model\": \"cnn\", \"recipe\": \"name: mine\\nsteps:\\n  - benchmark: {batch: [1]}\\n\"}",
             NULL);
    assert_http(&reply, 201);
    snprintf(path, sizeof path, "/v1/projects/demo/runs/%lld/cancel",
             (long long)mlo_json_i64(reply.json, "id", 0));
    api_call(api, &reply, "POST", path, api->token[MLO_ADMIN], "{}", NULL);
    assert_http(&reply, 200);
    char *last = strrchr(path, '/');
    snprintf(last, sizeof path - (size_t)(last - path), "/events");
    const char *const stream[] = {"Accept: text/event-stream", NULL};
    api_call(api, &reply, "GET", path, api->token[MLO_VIEWER], NULL, stream);
    assert_http(&reply, 200);
    assert_holds(mlo_buf_str(&reply.body), "event: end\ndata: {\"state\":\"cancelled\"}");
    reply_clear(&reply);
}

static void test_tls__sessions_are_for_tls_alone(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    char body[128];
    snprintf(body, sizeof body, "token=%s", api->token[MLO_VIEWER]);
    api_call(api, &reply, "POST", "/login", NULL, body, NULL);
    assert_http(&reply, 303);
    assert_holds(mlo_buf_str(&reply.headers), "; Secure");
    assert_holds(mlo_buf_str(&reply.headers), "HttpOnly; SameSite=Strict");
    reply_clear(&reply);
}

static void test_tls__refuses_what_is_older_than_1_2(void **state)
{
    struct api *api = *state;
    static const struct {
        const char *priorities;
        bool good;
    } cases[] = {
        {"NORMAL:-VERS-ALL:+VERS-TLS1.3", true},
        {"NORMAL:-VERS-ALL:+VERS-TLS1.2", true},
        {"NORMAL:-VERS-ALL:+VERS-TLS1.1:%VERIFY_ALLOW_SIGN_WITH_SHA1", false},
        {"NORMAL:-VERS-ALL:+VERS-TLS1.0:%VERIFY_ALLOW_SIGN_WITH_SHA1", false},
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct peer p;
        int rc = shake(api, cases[i].priorities, &p);
        if ((rc == 0) != cases[i].good)
            fail_msg("%s: %s", cases[i].priorities, gnutls_strerror(rc));
        if (!cases[i].good) /* by the server, which answers the hello by closing: not by this client */
            assert_true(rc == GNUTLS_E_FATAL_ALERT_RECEIVED || rc == GNUTLS_E_PREMATURE_TERMINATION ||
                        rc == GNUTLS_E_PULL_ERROR);
        peer_close(&p);
    }
}

static void test_tls__a_slow_handshake_keeps_nobody(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    static const unsigned char hello[] = {0x16, 0x03, 0x01, 0x02, 0x00, 0x01}; /* the first bytes of one */
    int slow[32];
    for (size_t i = 0; i < MLO_COUNT(slow); i++) {
        slow[i] = api_connect(api);
        if (i % 2)
            assert_true(mlo_fs_write_full(slow[i], hello, sizeof hello));
    }
    api_call(api, &reply, "GET", "/v1/me", api->token[MLO_ADMIN], NULL, NULL);
    assert_http(&reply, 200);
    for (size_t i = 0; i < MLO_COUNT(slow); i++) {
        struct pollfd one = {.fd = slow[i], .events = POLLIN};
        assert_int_equal(poll(&one, 1, 0), 0); /* none was given up for it */
        close(slow[i]);
    }
    reply_clear(&reply);
}

/* One that never ends is cut like headers that never end. */
static void test_tls__a_handshake_that_never_ends_is_cut(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    mlo_http_stop(api->http, 0);
    const struct mlo_http_options options = {.db = api->pg->server,
                                             .blobs = api->blobs,
                                             .header_timeout_ms = 300,
                                             .tls_cert = cert_path,
                                             .tls_key = key_path,
                                             .quiet = true};
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
    int fd = api_connect(api);
    assert_true(mlo_fs_write_full(fd, "\x16\x03\x01", 3));
    assert_true(api_read_to_end(fd, NULL));
    close(fd);
}

static void replace(const char *from, const char *to)
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_error err = {0};
    assert_mlo_ok(mlo_fs_read(from, 1 << 20, &text, &err), &err);
    assert_mlo_ok(mlo_fs_write_atomic(to, text.data, text.len, &err), &err);
    mlo_buf_clear(&text);
}

/* Waits until the log that goes into a pipe says so. */
static bool log_holds(int fd, const char *part)
{
    struct mlo_buf text = MLO_BUF_INIT;
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    bool held = false;
    while (!held && mlo_clock_ns() < until) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        char piece[512];
        ssize_t n = poll(&one, 1, 100) > 0 ? read(fd, piece, sizeof piece) : 0;
        if (n > 0)
            mlo_buf_append(&text, piece, (size_t)n);
        held = text.len && strstr(mlo_buf_str(&text), part);
    }
    mlo_buf_clear(&text);
    return held;
}

static void test_tls__a_renewed_certificate_is_taken_up(void **state)
{
    struct api *api = *state;
    struct peer before;
    char name[64], cert[512], key[512], answer[256] = "";
    snprintf(cert, sizeof cert, "%s/new.crt", api->dir);
    snprintf(key, sizeof key, "%s/new.key", api->dir);
    make_certificate(cert, key, "second");
    served_name(api, name);
    assert_string_equal(name, "first");
    assert_int_equal(shake(api, "NORMAL", &before), 0);
    /* half of it does not fit: what was served is served on, however long that lasts */
    int log[2];
    assert_int_equal(pipe(log), 0);
    mlo_log_setup(MLO_LOG_WARN, MLO_LOG_TEXT, log[1], "test");
    replace(cert, cert_path);
    bool told = log_holds(log[0], "is not taken up");
    mlo_log_setup(MLO_LOG_INFO, MLO_LOG_TEXT, 2, "mlopt");
    assert_true(told);
    served_name(api, name);
    assert_string_equal(name, "first");
    close(log[0]);
    close(log[1]);
    replace(key, key_path);
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    do
        served_name(api, name);
    while (strcmp(name, "second") != 0 && mlo_clock_ns() < until);
    assert_string_equal(name, "second");
    /* a connection of before goes on */
    static const char get[] = "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    assert_int_equal(gnutls_record_send(before.session, get, sizeof get - 1), sizeof get - 1);
    assert_true(gnutls_record_recv(before.session, answer, sizeof answer - 1) > 0);
    assert_holds(answer, "200 OK");
    peer_close(&before);
}

/* The program against the server: `url`, and --ca-file or not. */
static int client(const char *url, const char *ca, const char *token, struct mlo_buf *out)
{
    char set_token[128];
    snprintf(set_token, sizeof set_token, "MLOPT_TOKEN=%s", token);
    const char *const argv[] = {getenv("MLOPT"), "status", "--url", url, ca ? "--ca-file" : NULL, ca, NULL};
    const char *const env[] = {set_token, NULL};
    mlo_buf_reset(out);
    return run(argv, env, out);
}

static void test_tls__the_program_trusts_what_it_is_told_to(void **state)
{
    struct api *api = *state;
    struct mlo_buf out = MLO_BUF_INIT;
    char url[64], plain[64], empty[512];
    snprintf(url, sizeof url, "https://127.0.0.1:%u", mlo_http_port(api->http));
    snprintf(plain, sizeof plain, "http://127.0.0.1:%u", mlo_http_port(api->http));
    assert_int_equal(client(url, cert_path, api->token[MLO_ADMIN], &out), 0);
    assert_holds(mlo_buf_str(&out), "signed in as admin");
    assert_int_not_equal(client(url, NULL, api->token[MLO_ADMIN], &out), 0);
    assert_holds(mlo_buf_str(&out), "is not to be trusted");
    assert_holds(mlo_buf_str(&out), "--ca-file");
    assert_int_not_equal(client(plain, NULL, api->token[MLO_ADMIN], &out), 0);
    assert_holds(mlo_buf_str(&out), "speaks TLS");
    assert_holds(mlo_buf_str(&out), url);
    snprintf(empty, sizeof empty, "%s/nothing.crt", api->dir);
    assert_int_not_equal(client(url, empty, api->token[MLO_ADMIN], &out), 0);
    assert_holds(mlo_buf_str(&out), "cannot read the certificate");
    mlo_buf_clear(&out);
}

static int doctor(const char *cert, const char *key, struct mlo_buf *out)
{
    const char *const argv[] = {getenv("MLOPT"), "doctor", "--tls-cert", cert, "--tls-key", key, NULL};
    const char *const env[] = {"MLOPT_URL", NULL};
    mlo_buf_reset(out);
    return run(argv, env, out);
}

static void test_tls__the_doctor_says_what_is_wrong(void **state)
{
    struct api *api = *state;
    struct mlo_error err = {0};
    struct mlo_buf out = MLO_BUF_INIT;
    struct mlo_http *http = NULL;
    char other[512], other_key[512], expired[512], request[512];
    snprintf(other, sizeof other, "%s/other.crt", api->dir);
    snprintf(other_key, sizeof other_key, "%s/other.key", api->dir);
    snprintf(expired, sizeof expired, "%s/expired.crt", api->dir);
    snprintf(request, sizeof request, "%s/expired.csr", api->dir);
    make_certificate(other, other_key, "other");
    assert_int_equal(doctor(cert_path, key_path, &out), 0);
    assert_holds(mlo_buf_str(&out), "localhost, 127.0.0.1");
    assert_int_not_equal(doctor(cert_path, other_key, &out), 0);
    assert_holds(mlo_buf_str(&out), "is not the key of the certificate");
    assert_int_not_equal(doctor(key_path, key_path, &out), 0);
    assert_holds(mlo_buf_str(&out), "holds no certificate");
    chmod(key_path, 0644);
    assert_int_equal(doctor(cert_path, key_path, &out), 0);
    assert_holds(mlo_buf_str(&out), "can read the key");
    const char *const csr[] = {"/usr/bin/env", "openssl",  "req",  "-new",  "-key", key_path,
                               "-subj",        "/CN=late", "-out", request, NULL};
    const char *const sign[] = {"/usr/bin/env", "openssl", "x509", "-req", "-in",   request, "-signkey",
                                key_path,       "-days",   "-1",   "-out", expired, NULL};
    assert_int_equal(run(csr, NULL, &out), 0);
    assert_int_equal(run(sign, NULL, &out), 0);
    assert_int_not_equal(doctor(expired, key_path, &out), 0);
    assert_holds(mlo_buf_str(&out), "expired on");
    /* a server with a key that does not fit does not begin */
    const struct mlo_http_options options = {.db = api->pg->server,
                                             .blobs = api->blobs,
                                             .tls_cert = cert_path,
                                             .tls_key = other_key,
                                             .quiet = true};
    assert_mlo_status(mlo_http_start(&options, &http, &err), MLO_EINVAL, &err);
    assert_holds(err.message, "is not the key of the certificate");
    mlo_buf_clear(&out);
}

#define TLS_TEST(name) cmocka_unit_test_setup_teardown(name, tls_setup, api_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TLS_TEST(test_tls__serves_all_that_plain_http_serves),
        TLS_TEST(test_tls__sessions_are_for_tls_alone),
        TLS_TEST(test_tls__refuses_what_is_older_than_1_2),
        TLS_TEST(test_tls__a_slow_handshake_keeps_nobody),
        TLS_TEST(test_tls__a_handshake_that_never_ends_is_cut),
        TLS_TEST(test_tls__a_renewed_certificate_is_taken_up),
        TLS_TEST(test_tls__the_program_trusts_what_it_is_told_to),
        TLS_TEST(test_tls__the_doctor_says_what_is_wrong),
    };
    API_MAIN(tests);
}
