/* However large an upload is, the server's memory stays where it was: in one PUT, and in pieces. */
#include <sys/resource.h>

#include "tests/integration/api/api_fixture.h"

enum { PIECE = 1 << 20, MEGABYTES = 192, MORE_KB = 12 << 10 };

static int setup(void **state)
{
    return api_setup_with(state, NULL, (uint64_t)1 << 30);
}

/* A stream of MEGABYTES pieces, each with its number in front. */
struct stream {
    char *piece;
    size_t from, sent, to; /* bytes: the request has those between from and to */
};

static size_t next_bytes(char *out, size_t size, size_t count, void *arg)
{
    struct stream *s = arg;
    uint32_t number = (uint32_t)(s->sent / PIECE);
    size_t at = s->sent % PIECE, n = MLO_MIN(MLO_MIN(size * count, PIECE - at), s->to - s->sent);
    memcpy(s->piece, &number, sizeof number);
    memcpy(out, s->piece + at, n);
    s->sent += n;
    return n;
}

static void digest_stream(struct stream *s, char text[MLO_DIGEST_TEXT_SIZE])
{
    struct mlo_hasher *hasher = mlo_hasher_new();
    struct mlo_digest digest;
    char *bytes = malloc(PIECE);
    for (s->sent = 0, s->to = (size_t)MEGABYTES * PIECE; s->sent < s->to;) {
        size_t n = next_bytes(bytes, 1, PIECE, s);
        mlo_hasher_update(hasher, bytes, n);
    }
    mlo_hasher_final(hasher, &digest);
    mlo_hasher_free(hasher);
    mlo_digest_text(&digest, text);
    free(bytes);
}

static long send_stream(struct api *api, const char *method, const char *path, struct stream *s)
{
    char url[1024], header[128];
    long status = 0;
    struct mlo_buf body = MLO_BUF_INIT;
    CURL *curl = curl_easy_init();
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", mlo_http_port(api->http), path);
    snprintf(header, sizeof header, "Authorization: Bearer %s", api->token[MLO_SUBMITTER]);
    struct curl_slist *list = curl_slist_append(curl_slist_append(NULL, header), "Expect:");
    snprintf(header, sizeof header, "Content-Range: bytes %zu-%zu/*", s->from, s->to - 1);
    if (strcmp(method, "PATCH") == 0)
        list = curl_slist_append(list, header);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)(s->to - s->from));
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, next_bytes);
    curl_easy_setopt(curl, CURLOPT_READDATA, s);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, reply_take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &body);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
    s->sent = s->from;
    CURLcode code = curl_easy_perform(curl);
    if (code != CURLE_OK)
        fail_msg("%s %s: %s", method, path, curl_easy_strerror(code));
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 300)
        print_error("%s %s: %ld %s\n", method, path, status, mlo_buf_str(&body));
    curl_slist_free_all(list);
    curl_easy_cleanup(curl);
    mlo_buf_clear(&body);
    return status;
}

/* This process is the server and its client. */
static long peak_kb(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void assert_peak(long before, const char *what)
{
#ifdef MLOPT_SANITIZED
    MLO_UNUSED(before);
    MLO_UNUSED(what); /* a sanitizer keeps what was freed */
#else
    long more = peak_kb() - before;
    if (more > MORE_KB)
        fail_msg("%s of %d MB took %ld KB more", what, MEGABYTES, more);
#endif
}

static void test_upload_memory__is_bounded(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct stream s = {.piece = calloc(1, PIECE)};
    char digest[MLO_DIGEST_TEXT_SIZE], path[256], session[128];
    digest_stream(&s, digest);
    long before = peak_kb();
    snprintf(path, sizeof path, "/v1/projects/demo/blobs/%s", digest);
    assert_int_equal(send_stream(api, "PUT", path, &s), 201);
    assert_peak(before, "one PUT");
    s.piece[PIECE - 1] = 'x'; /* other bytes */
    digest_stream(&s, digest);
    api_call(api, &reply, "POST", "/v1/projects/demo/uploads", api->token[MLO_SUBMITTER], "{}", NULL);
    assert_http(&reply, 201);
    snprintf(session, sizeof session, "/v1/projects/demo/uploads/%s", mlo_json_str(reply.json, "id", "?"));
    for (s.from = 0; s.from < (size_t)MEGABYTES * PIECE; s.from = s.to) {
        s.to = s.from + (size_t)MEGABYTES * PIECE / 3;
        assert_int_equal(send_stream(api, "PATCH", session, &s) / 100, 2);
    }
    snprintf(path, sizeof path, "%s?digest=%s", session, digest);
    api_call(api, &reply, "PUT", path, api->token[MLO_SUBMITTER], NULL, NULL);
    assert_http(&reply, 201);
    assert_peak(before, "pieces");
    reply_clear(&reply);
    free(s.piece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_upload_memory__is_bounded, setup, api_teardown),
    };
    API_MAIN(tests);
}
