/* Signature Version 4: the examples that Amazon S3's API reference works out (the keys are its own), and what
 * is encoded how. No server. */
#include <stdlib.h>

#include "registry/s3_sign.h"
#include "tests/cm.h"

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
static const struct mlo_s3_keys keys = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                                        NULL};
enum { MAY_24_2013 = 1369353600 };

struct example {
    const char *method, *path, *payload;
    struct mlo_s3_pair query[4], headers[6];
    const char *signed_names, *signature;
};

static const struct example examples[] = {
    {"GET",
     "/test.txt",
     EMPTY,
     {{NULL}},
     {{"range", "bytes=0-9"}},
     "host;range;x-amz-content-sha256;x-amz-date",
     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
    {"PUT",
     "/test%24file.text",
     "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
     {{NULL}},
     {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
     "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
    {"GET",
     "/",
     EMPTY,
     {{"lifecycle", NULL}},
     {{NULL}},
     "host;x-amz-content-sha256;x-amz-date",
     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
    {"GET",
     "/",
     EMPTY,
     {{"prefix", "J"}, {"max-keys", "2"}},
     {{NULL}},
     "host;x-amz-content-sha256;x-amz-date",
     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
};

static size_t count_of(const struct mlo_s3_pair *pairs, size_t most)
{
    size_t n = 0;
    while (n < most && pairs[n].name)
        n++;
    return n;
}

static void sign_example(const struct example *e, const struct mlo_s3_keys *with, struct mlo_buf *out)
{
    struct mlo_error err = {0};
    struct mlo_s3_pair headers[8];
    size_t n = count_of(e->headers, MLO_COUNT(e->headers));
    char time[MLO_S3_TIME_SIZE];
    memcpy(headers, e->headers, n * sizeof *headers);
    headers[n++] = (struct mlo_s3_pair){"x-amz-date", mlo_s3_time(MAY_24_2013, time)};
    headers[n++] = (struct mlo_s3_pair){"x-amz-content-sha256", e->payload};
    const struct mlo_s3_request r = {.method = e->method,
                                     .host = "examplebucket.s3.amazonaws.com",
                                     .path = e->path,
                                     .query = e->query,
                                     .query_count = count_of(e->query, MLO_COUNT(e->query)),
                                     .headers = headers,
                                     .header_count = n,
                                     .payload_hash = e->payload,
                                     .region = "us-east-1",
                                     .utc_s = MAY_24_2013};
    assert_string_equal(time, "20130524T000000Z");
    assert_ok(mlo_s3_sign(&r, with, out, &err));
}

static void test_s3_sign__the_references_examples(void **state)
{
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(examples); i++) {
        struct mlo_buf got = MLO_BUF_INIT, wanted = MLO_BUF_INIT;
        sign_example(&examples[i], &keys, &got);
        mlo_buf_printf(&wanted,
                       "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
                       "SignedHeaders=%s, Signature=%s",
                       examples[i].signed_names, examples[i].signature);
        assert_string_equal(mlo_buf_str(&got), mlo_buf_str(&wanted));
        mlo_buf_clear(&got);
        mlo_buf_clear(&wanted);
    }
}

static void test_s3_sign__everything_counts(void **state)
{
    MLO_UNUSED(state);
    struct mlo_buf first = MLO_BUF_INIT, other = MLO_BUF_INIT;
    struct mlo_s3_keys wrong = keys;
    struct example e = examples[3];
    wrong.secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEy";
    sign_example(&e, &keys, &first);
    sign_example(&e, &wrong, &other);
    assert_string_not_equal(mlo_buf_str(&first), mlo_buf_str(&other));
    mlo_buf_reset(&other);
    e.query[0] = examples[3].query[1]; /* the order does not count */
    e.query[1] = examples[3].query[0];
    sign_example(&e, &keys, &other);
    assert_string_equal(mlo_buf_str(&first), mlo_buf_str(&other));
    mlo_buf_reset(&other);
    e.query[0].value = "3";
    sign_example(&e, &keys, &other);
    assert_string_not_equal(mlo_buf_str(&first), mlo_buf_str(&other));
    mlo_buf_clear(&first);
    mlo_buf_clear(&other);
}

static void test_s3_sign__presigned(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf query = MLO_BUF_INIT;
    struct mlo_s3_request r = {.method = "GET",
                               .host = "examplebucket.s3.amazonaws.com",
                               .path = "/test.txt",
                               .region = "us-east-1",
                               .utc_s = MAY_24_2013};
    assert_ok(mlo_s3_presign(&r, &keys, 86400, &query, &err));
    assert_string_equal(mlo_buf_str(&query),
                        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2F"
                        "us-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&"
                        "X-Amz-SignedHeaders=host&X-Amz-Signature="
                        "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
    assert_int_equal(mlo_s3_presign(&r, &keys, 0, &query, &err), MLO_EINVAL);
    assert_int_equal(mlo_s3_presign(&r, &keys, MLO_S3_EXPIRY_MAX_S + 1, &query, &err), MLO_EINVAL);
    struct mlo_s3_keys session = keys;
    session.session_token = "a+b/c==";
    mlo_buf_reset(&query);
    assert_ok(mlo_s3_presign(&r, &session, 60, &query, &err));
    assert_contains(mlo_buf_str(&query), "X-Amz-Security-Token=a%2Bb%2Fc%3D%3D&");
    mlo_buf_clear(&query);
}

static void test_s3_sign__encoding(void **state)
{
    MLO_UNUSED(state);
    struct mlo_buf out = MLO_BUF_INIT;
    mlo_s3_encode(&out, "a b/c+d~e_f-g.h%\xc3\xa9*'(", true);
    assert_string_equal(mlo_buf_str(&out), "a%20b/c%2Bd~e_f-g.h%25%C3%A9%2A%27%28");
    mlo_buf_reset(&out);
    mlo_s3_encode(&out, "a/b", false);
    assert_string_equal(mlo_buf_str(&out), "a%2Fb");
    mlo_buf_reset(&out);
    /* sorted by the encoded name, then value; an absent value is an empty one */
    const struct mlo_s3_pair query[] = {{"b", "2"}, {"a", "x y"}, {"uploads", NULL}, {"a", "x"}, {"B", "="}};
    mlo_s3_query(&out, query, MLO_COUNT(query));
    assert_string_equal(mlo_buf_str(&out), "B=%3D&a=x&a=x%20y&b=2&uploads=");
    mlo_buf_clear(&out);
}

static void test_s3_sign__too_much(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf out = MLO_BUF_INIT;
    struct mlo_s3_pair pairs[40];
    for (size_t i = 0; i < MLO_COUNT(pairs); i++)
        pairs[i] = (struct mlo_s3_pair){"x-amz-meta", "v"};
    const struct mlo_s3_request r = {.method = "GET",
                                     .host = "h",
                                     .path = "/",
                                     .headers = pairs,
                                     .header_count = MLO_COUNT(pairs),
                                     .payload_hash = EMPTY,
                                     .region = "r"};
    assert_int_equal(mlo_s3_sign(&r, &keys, &out, &err), MLO_EINVAL);
    mlo_buf_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_s3_sign__the_references_examples),
        cmocka_unit_test(test_s3_sign__everything_counts),
        cmocka_unit_test(test_s3_sign__presigned),
        cmocka_unit_test(test_s3_sign__encoding),
        cmocka_unit_test(test_s3_sign__too_much),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
