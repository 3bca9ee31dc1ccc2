/* What strangers and careless clients send: texts that try to be SQL, markup, paths or headers, in every
 * field of the contract and of the pages; requests that are none, or two; clients that are slow on purpose.
 * Each is answered with a 4xx and a code, or taken as the text that it is, and nobody else notices.
 *
 * The seed is printed; MLOPT_FUZZ_SEED repeats it, MLOPT_FUZZ_SECONDS makes it long: every text in every
 * place, and changed requests for so many seconds. */
#include "tests/integration/api/contract_fixture.h"
#include "tests/integration/api/crawl_fixture.h"

#include <poll.h>

static int64_t from_environment(const char *name, int64_t fallback)
{
    int64_t n = fallback;
    const char *text = getenv(name);
    return text && mlo_str_to_i64(text, &n) ? n : fallback;
}

static uint64_t new_seed(void)
{
    int64_t seed = from_environment("MLOPT_FUZZ_SEED", (int64_t)(mlo_clock_ns() % 1000000));
    printf("seed %lld (repeat with MLOPT_FUZZ_SEED)\n", (long long)seed);
    return (uint64_t)seed * 2654435761u + 1;
}

/* --- every field -----------------------------------------------------------------------------------------
 */

static json_t *codes_of(const json_t *contract)
{
    json_t *codes = json_object(), *code;
    size_t i;
    json_array_foreach(contract_codes(contract), i, code)
        json_object_set_new(codes, json_string_value(code), json_true());
    assert_true(json_object_size(codes) > 10);
    return codes;
}

/* What takes away what others need is sent last. */
static int order_of(const struct mlo_operation *of)
{
    static const char *const last[] = {"/v1/keys/", "/deletions", "/archive", "/uploads/"};
    for (size_t i = 0; i < MLO_COUNT(last); i++)
        if (strstr(of->path, last[i]) && strcmp(of->method, "GET") != 0)
            return 1;
    return strcmp(of->method, "DELETE") == 0 ? 2 : 0;
}

static const json_t *operation_of(const json_t *contract, const struct mlo_operation *of)
{
    char method[16];
    snprintf(method, sizeof method, "%s", of->method);
    for (char *c = method; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return json_object_get(json_object_get(json_object_get(contract, "paths"), of->path), method);
}

static void probe_contract(struct probe *p, const json_t *contract, unsigned most)
{
    size_t count, probed = 0;
    const struct mlo_operation *operations = mlo_http_operations(&count);
    struct reply reply = {0};
    for (int order = 0; order < 3; order++)
        for (size_t i = 0; i < count; i++) {
            struct call c = {.of = &operations[i], .operation = operation_of(contract, &operations[i])};
            if (order_of(c.of) != order)
                continue;
            assert_non_null(c.operation);
            probed++;
            if (strcmp(c.of->method, "HEAD") == 0) /* a GET whose answer has no body */
                continue;
            if (strstr(c.of->path, "/uploads/{id}")) { /* whatever limit a request before has set */
                as_admin(p->api, &reply, "PUT", DEMO "/queue", "{\"storage_bytes\": null}", NULL, 200);
                as_admin(p->api, &reply, "POST", DEMO "/uploads", "{}", NULL, 201);
                snprintf(c.upload, sizeof c.upload, "%s", mlo_json_str(reply.json, "id", "?"));
            }
            probe_operation(p, contract, &c, most);
        }
    assert_int_equal(probed, count);
    reply_clear(&reply);
}

/* Forms that no page showed (nothing is in quarantine, say) have the fields of all others. */
static void add_unseen_forms(struct crawl *c)
{
    static const char *const params[][2] = {{"{p}", "demo"},    {"{m}", "cnn"}, {"{v}", "1"},
                                            {"{n}", "1"},       {"{id}", "1"},  {"{name}", "nightly"},
                                            {"{what}", "pause"}};
    const struct mlo_http_module *pages = mlo_web_module();
    bool *seen = calloc(pages->count, sizeof *seen);
    const char *key;
    json_t *form;
    json_object_foreach(c->forms, key, form)
    {
        int row = form_route(mlo_json_str(form, "method", ""), mlo_json_str(form, "action", ""));
        if (row < 0)
            mlo_buf_printf(&c->p->wrong, "a form goes nowhere: %s\n", key);
        else
            seen[row] = true;
    }
    for (size_t i = 0; i < pages->count; i++) {
        struct mlo_buf action = MLO_BUF_INIT;
        if (seen[i] || strcmp(pages->routes[i].method, "POST") != 0)
            continue;
        for (const char *at = pages->routes[i].path; *at;) {
            size_t k = 0;
            while (k < MLO_COUNT(params) && !mlo_str_starts(at, params[k][0]))
                k++;
            assert_true(*at != '{' || k < MLO_COUNT(params)); /* a new parameter: say what it may be */
            if (k < MLO_COUNT(params)) {
                mlo_buf_puts(&action, params[k][1]);
                at += strlen(params[k][0]);
            } else {
                mlo_buf_putc(&action, *at++);
            }
        }
        json_t *fields = json_object(), *ignored;
        json_object_foreach(c->fields, key, ignored) json_object_set_new(fields, key, json_string("1"));
        json_object_set_new(fields, "reason", json_string("because"));
        json_object_set_new(
            c->forms, mlo_buf_str(&action),
            json_pack("{s:s, s:s, s:o}", "method", "post", "action", mlo_buf_str(&action), "fields", fields));
        mlo_buf_clear(&action);
    }
    free(seen);
}

static void test_bad__no_text_is_more_than_a_text(void **state)
{
    struct api *api = *state;
    bool all = from_environment("MLOPT_FUZZ_SECONDS", 0) > 0;
    unsigned most = all ? 0 : 2;
    json_t *contract = contract_load(), *form;
    struct probe p = {.api = api,
                      .wire = WIRE_INIT(mlo_http_port(api->http)),
                      .codes = codes_of(contract),
                      .random = new_seed()};
    struct crawl c = {.p = &p,
                      .seen = json_object(),
                      .queue = json_array(),
                      .forms = json_object(),
                      .fields = json_object(),
                      .most = all ? 5000 : 250};
    const char *key;
    make_world(api);
    probe_contract(&p, contract, most);
    size_t sent = p.sent, taken = p.taken;
    printf("contract: %zu requests, %zu taken\n", sent, taken);
    assert_true(sent > 1000 && taken > sent / 20);
    probe_sign_in(&p);
    crawl_pages(&c);
    size_t pages = c.next, shown = c.escaped;
    add_unseen_forms(&c);
    json_object_foreach(c.forms, key, form)
    {
        const char *action = mlo_json_str(form, "action", "");
        if (strcmp(action, "/logout") == 0) /* it has a session and nothing else */
            continue;
        probe_form(&p, mlo_json_str(form, "method", ""), action, json_object_get(form, "fields"), most);
    }
    crawl_pages(&c); /* what the forms left */
    printf("pages: %zu looked at, %zu forms, %zu texts shown as such, then %zu\n", pages,
           json_object_size(c.forms), shown, c.escaped);
    if (p.wrong.len)
        fail_msg("%u findings:\n%s", p.findings, mlo_buf_str(&p.wrong));
    assert_true(pages > 20 && shown > 20);
    crawl_free(&c);
    wire_close(&p.wire);
    reply_clear(&p.a);
    mlo_buf_clear(&p.wrong);
    json_decref(p.codes);
    json_decref(contract);
}

/* --- requests that are none --------------------------------------------------------------------------------
 */

#define GET_ "GET /healthz HTTP/1.1\r\nHost: a\r\n"
#define POST_ "POST /v1/projects HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
#define CHUNKED "Transfer-Encoding: chunked\r\n"
#define NEXT "GET /v1/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
#define ROW(text)                                                                                            \
    {                                                                                                        \
        text, sizeof text - 1                                                                                \
    }

/* None of these is a request that two programs understand alike: one refusal, and the connection ends. What
 * stands behind it, where there is something, is no request. */
static const struct bytes {
    const char *text;
    size_t size;
} NO_REQUESTS[] = {
    /* whose body is how long? */
    ROW(POST_ "Content-Length: 2\r\n" CHUNKED "\r\n0\r\n\r\n" NEXT),
    ROW(POST_ CHUNKED "Content-Length: 2\r\n\r\n0\r\n\r\n" NEXT),
    ROW(POST_ "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length: 2, 2\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length: +2\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length: -2\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length: 0x2\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length: 2 2\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length: 2.0\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length: two\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length:\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length: 18446744073709551618\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length : 2\r\n\r\n{}" NEXT),
    ROW(POST_ "Content-Length\t: 2\r\n\r\n{}" NEXT),
    ROW(POST_ "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" NEXT),
    ROW(POST_ CHUNKED CHUNKED "\r\n0\r\n\r\n" NEXT),
    ROW(POST_ "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n" NEXT),
    ROW(POST_ "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" NEXT),
    ROW(POST_ "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" NEXT),
    ROW(POST_ "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" NEXT),
    ROW(POST_ "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" NEXT),
    ROW(POST_ "Transfer-Encoding: \x0b"
              "chunked\r\n\r\n0\r\n\r\n" NEXT),
    ROW(POST_ "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" NEXT),
    ROW(POST_ "X: y\r\n Content-Length: 50\r\n" CHUNKED "\r\n0\r\n\r\n" NEXT),
    ROW(POST_ "Content-Length: 2\r\n 0\r\n\r\n{}" NEXT),
    ROW(GET_ "X: y\r\n\tz\r\n\r\n" NEXT),
    /* chunks */
    ROW(POST_ CHUNKED "\r\n-1\r\n{}\r\n0\r\n\r\n" NEXT),
    ROW(POST_ CHUNKED "\r\n0x2\r\n{}\r\n0\r\n\r\n" NEXT),
    ROW(POST_ CHUNKED "\r\n+2\r\n{}\r\n0\r\n\r\n" NEXT),
    ROW(POST_ CHUNKED "\r\nzz\r\n{}\r\n0\r\n\r\n" NEXT),
    ROW(POST_ CHUNKED "\r\n\r\n{}\r\n0\r\n\r\n" NEXT),
    ROW(POST_ CHUNKED "\r\n10000000000000002\r\n{}\r\n0\r\n\r\n" NEXT),
    ROW(POST_ CHUNKED "\r\nffffffffffffffff\r\n{}\r\n0\r\n\r\n" NEXT),
    ROW(POST_ CHUNKED "\r\n2\r\n{}garbage\r\n0\r\n\r\n" NEXT),
    ROW(POST_ CHUNKED "\r\n2 \x01\r\n{}\r\n0\r\n\r\n" NEXT),
    /* who is asked, and by whom? */
    ROW("GET /healthz HTTP/1.1\r\n\r\n" NEXT),
    ROW("GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" NEXT),
    ROW("GET /v1/me HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nAuthorization: Bearer y\r\n\r\n" NEXT),
    ROW("GET / HTTP/1.1\r\nHost: a\r\nCookie: mlopt_session=x\r\nCookie: mlopt_session=y\r\n\r\n" NEXT),
    /* lines */
    ROW("\r\n\r\n\r\n\x16\x03\x01\x02"),
    ROW("GET\r\n\r\n"),
    ROW("GET /healthz\r\n\r\n"),
    ROW("GET /healthz HTTP/1.1 x\r\nHost: a\r\n\r\n"),
    ROW("GET /health z HTTP/1.1\r\nHost: a\r\n\r\n"),
    ROW("\xff\xfe GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"),
    ROW(GET_ "X\r\n\r\n" NEXT),
    ROW(GET_ "X y: z\r\n\r\n" NEXT),
    ROW(GET_ "X\0Y: z\r\n\r\n" NEXT),
    ROW(" GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"),
};

struct heard {
    unsigned answers;        /* the library sends the headers of its own refusals twice: those count once */
    int first, worst;        /* statuses; the worst but for 505 */
    unsigned other_versions; /* answers 505: of HTTP, see has_other_version */
    struct mlo_buf text;
};

/* Sends all of it and nothing more, and reads to the end. */
static void hear(struct api *api, const char *bytes, size_t size, struct heard *out)
{
    int fd = api_connect(api);
    struct mlo_buf text = out->text;
    mlo_buf_reset(&text);
    *out = (struct heard){0};
    for (ssize_t n; size; bytes += n, size -= (size_t)n) /* it may refuse before it has all */
        if ((n = send(fd, bytes, size, MSG_NOSIGNAL)) <= 0)
            break;
    shutdown(fd, SHUT_WR);
    if (!api_read_to_end(fd, &text))
        fail_msg("the connection hangs behind: %s", mlo_buf_str(&text));
    close(fd);
    for (const char *at = mlo_buf_str(&text); (at = strstr(at, "HTTP/1.")); at++) {
        int status = 0;
        if (sscanf(at, "HTTP/1.%*1[01] %3d", &status) != 1)
            continue;
        bool own = status / 100 == 4 && strstr(at, "\r\n\r\n<html><head>");
        out->first = out->answers ? out->first : status;
        if (!own || !out->answers)
            out->answers++;
        if (status == 505)
            out->other_versions++;
        else
            out->worst = MLO_MAX(out->worst, status);
    }
    out->text = text;
}

/* Whether it names a version of HTTP that is not the one spoken here: such a request gets 505 (RFC 9110,
 * 15.6.6), the only status above 499 that a client can bring about. */
static bool has_other_version(const struct mlo_buf *request)
{
    for (size_t i = 0; i + 8 <= request->len; i++) {
        const char *at = (const char *)request->data + i;
        if (memcmp(at, "HTTP/", 5) == 0 && at[5] != '1')
            return true;
    }
    return false;
}

static void assert_serves(struct api *api)
{
    struct reply reply = {0};
    api_call(api, &reply, "GET", "/v1/me", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    reply_clear(&reply);
}

static void test_bad__what_is_no_request_is_refused_once(void **state)
{
    struct api *api = *state;
    struct heard heard = {0};
    struct mlo_buf wrong = MLO_BUF_INIT;
    for (size_t i = 0; i < MLO_COUNT(NO_REQUESTS); i++) {
        hear(api, NO_REQUESTS[i].text, NO_REQUESTS[i].size, &heard);
        bool refused = heard.answers <= 1 && (heard.answers == 0 || heard.first / 100 == 4);
        if (!refused || strstr(mlo_buf_str(&heard.text), "smuggled"))
            mlo_buf_printf(&wrong, "row %zu, %.200s\n%u answers, %.600s\n\n", i, NO_REQUESTS[i].text,
                           heard.answers, mlo_buf_str(&heard.text));
    }
    if (wrong.len)
        fail_msg("%s", mlo_buf_str(&wrong));
    const char other[] = "GET /v1/me HTTP/3.1\r\nHost: a\r\n\r\n";
    hear(api, other, sizeof other - 1, &heard);
    assert_int_equal(heard.first, 505);
    assert_int_equal(heard.other_versions, 1);
    assert_serves(api);
    mlo_buf_clear(&heard.text);
}

/* A request with something large in it; `body` behind the headers. */
static void hear_large(struct api *api, const char *line, const char *before, char with, size_t size,
                       const char *after, struct heard *heard)
{
    struct mlo_buf request = MLO_BUF_INIT;
    mlo_buf_puts(&request, line);
    mlo_buf_puts(&request, before);
    for (size_t i = 0; i < size; i++)
        mlo_buf_putc(&request, with);
    mlo_buf_puts(&request, after);
    hear(api, request.data, request.len, heard);
    mlo_buf_clear(&request);
}

static void test_bad__what_is_too_much_is_refused(void **state)
{
    struct api *api = *state;
    struct heard heard = {0};
    struct mlo_buf lines = MLO_BUF_INIT;
    char chunk[32], header[400];
    hear_large(api, "GET /", "", 'a', 1 << 20, " HTTP/1.1\r\nHost: a\r\n\r\n", &heard);
    assert_int_equal(heard.worst / 100, 4);
    hear_large(api, GET_, "X: ", 'a', 1 << 20, "\r\n\r\n", &heard);
    assert_int_equal(heard.worst / 100, 4);
    hear_large(api, GET_, "", 'a', 1 << 20, ": x\r\n\r\n", &heard);
    assert_int_equal(heard.worst / 100, 4);
    hear_large(api, GET_, "Cookie: ", ';', 100000, "\r\n\r\n", &heard);
    assert_true(heard.worst < 500); /* 0: the connection just ends */
    hear_large(api, "GET /healthz?", "", '&', 100000, " HTTP/1.1\r\nHost: a\r\n\r\n", &heard);
    assert_true(heard.worst < 500); /* 0: the connection just ends */
    for (int i = 0; i < 20000; i++)
        mlo_buf_printf(&lines, "X-%d: y\r\n", i);
    hear_large(api, GET_, mlo_buf_str(&lines), ' ', 0, "\r\n", &heard);
    assert_int_equal(heard.worst / 100, 4);
    /* a body that is deeper than a parser's stack, as it is and in pieces */
    snprintf(header, sizeof header, POST_ "Authorization: Bearer %s\r\n", api->token[MLO_ADMIN]);
    static const char *const opening[] = {"[", "{\"a\":"};
    for (size_t i = 0; i < MLO_COUNT(opening); i++) {
        struct mlo_buf deep = MLO_BUF_INIT;
        mlo_buf_puts(&deep, "{\"name\": ");
        while (deep.len < 900000)
            mlo_buf_puts(&deep, opening[i]);
        mlo_buf_reset(&lines);
        mlo_buf_printf(&lines, "Content-Length: %zu\r\n\r\n%s", deep.len, mlo_buf_str(&deep));
        hear_large(api, header, mlo_buf_str(&lines), ' ', 0, "", &heard);
        assert_int_equal(heard.first / 100, 4);
        assert_holds(mlo_buf_str(&heard.text), "\"code\":\"");
        mlo_buf_clear(&deep);
    }
    mlo_buf_reset(&lines);
    mlo_buf_puts(&lines, CHUNKED "\r\n");
    for (int i = 0; i < 3; i++) {
        snprintf(chunk, sizeof chunk, "%x\r\n", 1 << 19);
        mlo_buf_puts(&lines, chunk);
        for (int k = 0; k < 1 << 19; k++)
            mlo_buf_putc(&lines, ' ');
        mlo_buf_puts(&lines, "\r\n");
    }
    hear_large(api, header, mlo_buf_str(&lines), ' ', 0, "0\r\n\r\n", &heard);
    assert_int_equal(heard.first, 413);
    assert_holds(mlo_buf_str(&heard.text), "too-large");
    assert_serves(api);
    mlo_buf_clear(&lines);
    mlo_buf_clear(&heard.text);
}

/* --- changed requests --------------------------------------------------------------------------------------
 */

static const struct bytes WORDS[] = {
    ROW("\r\n"),
    ROW("\n"),
    ROW("\r"),
    ROW("\0"),
    ROW("\r\n\r\n"),
    ROW(" "),
    ROW("\t"),
    ROW(":"),
    ROW("Content-Length: 5\r\n"),
    ROW("Content-Length: 0\r\n"),
    ROW("Transfer-Encoding: chunked\r\n"),
    ROW("Host: b\r\n"),
    ROW(";name=\"value\""),
    ROW("0\r\n\r\n"),
    ROW("ffffffffffffffff\r\n"),
    ROW("%00"),
    ROW("%"),
    ROW("%2f.."),
    ROW("/../"),
    ROW("\xc3("),
    ROW("\xff\xff\xff\xff"),
    ROW("Expect: 100-continue\r\n"),
    ROW("Connection: close\r\n"),
    ROW("Connection: upgrade\r\nUpgrade: h2c\r\n"),
    ROW("HTTP/1.0"),
    ROW("Range: bytes=-9223372036854775808\r\n"),
    ROW("Accept-Encoding: gzip;q=0.\r\n"),
    ROW("{\"a\":"),
    ROW("\\u0000"),
    ROW("&"),
    ROW("="),
};

/* Takes out, doubles, replaces or puts in; once or several times. */
static void change(struct probe *p, struct mlo_buf *request)
{
    struct mlo_buf out = MLO_BUF_INIT;
    for (uint64_t times = 1 + probe_random(p) % 3; times; times--) {
        size_t at = probe_random(p) % (request->len + 1),
               n = MLO_MIN(probe_random(p) % 24, request->len - at);
        const struct bytes *word = &WORDS[probe_random(p) % MLO_COUNT(WORDS)];
        uint64_t how = probe_random(p) % 4;
        mlo_buf_reset(&out);
        mlo_buf_append(&out, request->data, at);
        if (how == 0) /* takes out */
            at += n;
        if (how == 1) /* doubles */
            mlo_buf_append(&out, request->data + at, n);
        if (how == 2 && at < request->len) /* another byte */
            mlo_buf_putc(&out, (char)probe_random(p)), at++;
        if (how == 3)
            mlo_buf_append(&out, word->text, word->size);
        mlo_buf_append(&out, request->data + at, request->len - at);
        mlo_buf_reset(request);
        mlo_buf_append(request, out.data, out.len);
    }
    mlo_buf_clear(&out);
}

static void test_bad__changed_requests_hurt_nobody(void **state)
{
    struct api *api = *state;
    struct probe p = {.api = api, .wire = WIRE_INIT(mlo_http_port(api->http)), .random = new_seed()};
    struct heard heard = {0};
    struct mlo_buf request = MLO_BUF_INIT;
    int64_t seconds = from_environment("MLOPT_FUZZ_SECONDS", 0);
    uint64_t until = mlo_clock_ns() + (uint64_t)seconds * 1000000000u;
    size_t statuses[6] = {0};
    make_world(api);
    probe_sign_in(&p);
    const char *const head = "Host: a\r\nAuthorization: Bearer ";
    struct mlo_buf bases[6] = {MLO_BUF_INIT};
    const char *token = api->token[MLO_ADMIN];
    mlo_buf_printf(&bases[0],
                   "GET " DEMO
                   "/search?filter=tag.a+%%3D+b&limit=5 HTTP/1.1\r\n%s%s\r\nAccept-Encoding: gzip\r\n\r\n",
                   head, token);
    mlo_buf_printf(
        &bases[1],
        "POST " DEMO
        "/runs HTTP/1.1\r\n%s%s\r\nIdempotency-Key: k1\r\nContent-Length: 16\r\n\r\n{\"model\": \"cnn\"}",
        head, token);
    mlo_buf_printf(&bases[2],
                   "PUT " DEMO "/policy HTTP/1.1\r\n%s%s\r\nIf-Match: \"0\"\r\n" CHUNKED
                   "\r\n8;x=y\r\n{\"rules\"\r\n4\r\n:[]}\r\n0\r\nX: y\r\n\r\n",
                   head, token);
    mlo_buf_printf(
        &bases[3],
        "PUT " DEMO
        "/blobs/sha256:%064d HTTP/1.1\r\n%s%s\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        0, head, token);
    mlo_buf_printf(&bases[4],
                   "GET " DEMO "/models/cnn/versions/1/variants/source/artifact HTTP/1.1\r\n%s%s\r\nRange: "
                   "bytes=0-2\r\nIf-None-Match: \"x\"\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
                   head, token);
    mlo_buf_printf(&bases[5],
                   "POST /models/demo/cnn/comment HTTP/1.1\r\nHost: a\r\n%sContent-Length: "
                   "%zu\r\n\r\ncsrf=%s&version=1&text=a",
                   p.cookie, strlen("csrf=&version=1&text=a") + strlen(p.csrf), p.csrf);
    for (size_t i = 0; i < 1500 || mlo_clock_ns() < until; i++) {
        const struct mlo_buf *base = &bases[probe_random(&p) % MLO_COUNT(bases)];
        mlo_buf_reset(&request);
        mlo_buf_append(&request, base->data, base->len);
        if (i >= MLO_COUNT(bases)) /* as they are first */
            change(&p, &request);
        else
            mlo_buf_reset(&request), mlo_buf_append(&request, bases[i].data, bases[i].len);
        hear(api, request.data, request.len, &heard);
        statuses[heard.first / 100 % 6]++;
        if (heard.worst >= 500 || (heard.other_versions && !has_other_version(&request)))
            fail_msg("request %zu: %s\nbrought: %s", i, mlo_buf_str(&request), mlo_buf_str(&heard.text));
    }
    printf("answers: %zu none, %zu 2xx, %zu 3xx, %zu 4xx\n", statuses[0], statuses[1] + statuses[2],
           statuses[3], statuses[4]);
    assert_true(statuses[1] + statuses[2] > 10 && statuses[4] > 200); /* they are near to requests */
    assert_serves(api);
    for (size_t i = 0; i < MLO_COUNT(bases); i++)
        mlo_buf_clear(&bases[i]);
    mlo_buf_clear(&request);
    mlo_buf_clear(&heard.text);
    wire_close(&p.wire);
    reply_clear(&p.a);
}

/* --- slow clients ------------------------------------------------------------------------------------------
 */

enum { SLOW = 96, HEADER_MS = 1000 };

static int setup_slow(void **state)
{
    api_setup(state);
    struct api *api = *state;
    struct mlo_error err = {0};
    const struct mlo_http_options options = {.db = api->pg->server,
                                             .blobs = api->blobs,
                                             .modules = mlo_web_module(),
                                             .module_count = 1,
                                             .header_timeout_ms = HEADER_MS,
                                             .min_body_rate = 1024,
                                             .quiet = true};
    mlo_http_stop(api->http, 1000);
    assert_mlo_ok(mlo_http_start(&options, &api->http, &err), &err);
    return 0;
}

static bool has_ended(int fd)
{
    char byte[512];
    ssize_t n;
    while ((n = recv(fd, byte, sizeof byte, MSG_DONTWAIT)) > 0) {
    }
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

/* A byte now and then, of headers and of bodies: each is cut off, and others are served meanwhile. */
static void test_bad__slow_clients_are_cut_off(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    int fds[SLOW];
    struct mlo_buf head = MLO_BUF_INIT;
    mlo_buf_printf(&head,
                   "POST /v1/projects HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: "
                   "1000000\r\n\r\n{",
                   api->token[MLO_ADMIN]);
    for (int i = 0; i < SLOW; i++) {
        fds[i] = api_connect(api);
        if (i % 2) /* of headers, or of a body */
            assert_true(mlo_fs_write_full(fds[i], head.data, head.len));
    }
    uint64_t until = mlo_clock_ns() + API_PATIENCE_S * 1000000000ull;
    size_t left = SLOW, served = 0;
    for (size_t sent = 0; left; sent++) {
        if (mlo_clock_ns() > until)
            fail_msg("%zu of %d slow clients are still there", left, SLOW);
        for (int i = 0; i < SLOW; i++) {
            if (fds[i] < 0)
                continue;
            send(fds[i], i % 2 ? " " : &GET_[sent % (sizeof GET_ - 1)], 1, MSG_NOSIGNAL);
            if (has_ended(fds[i])) {
                close(fds[i]);
                fds[i] = -1;
                left--;
            }
        }
        api_call(api, &reply, "GET", "/v1/me", api->token[MLO_VIEWER], NULL, NULL);
        assert_http(&reply, 200);
        served += left > 0;
        mlo_clock_sleep_ms(100);
    }
    assert_true(served >= 10); /* while the slow ones were there */
    reply_clear(&reply);
    mlo_buf_clear(&head);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_bad__no_text_is_more_than_a_text),
        API_TEST(test_bad__what_is_no_request_is_refused_once),
        API_TEST(test_bad__what_is_too_much_is_refused),
        API_TEST(test_bad__changed_requests_hurt_nobody),
        cmocka_unit_test_setup_teardown(test_bad__slow_clients_are_cut_off, setup_slow, api_teardown),
    };
    API_MAIN(tests);
}
