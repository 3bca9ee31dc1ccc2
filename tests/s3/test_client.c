/* The S3 client against a real server: objects, ranges, multipart uploads, copies, lists, encryption, TLS,
 * refusals. */
#include <sys/stat.h>

#include "tests/s3/put.h"
#include "tests/s3_fixture.h"

enum { PART = 5 << 20, TAIL = 1000003 };

static enum mlo_status collect(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    struct mlo_buf *out = arg;
    mlo_buf_append(out, bytes, size);
    return mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
}

static char *some_bytes(size_t size, unsigned seed)
{
    char *bytes = malloc(size);
    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (char)(seed >> 24);
    }
    return bytes;
}

static void assert_object(struct mlo_s3 *s3, const char *key, const char *bytes, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_buf got = MLO_BUF_INIT;
    struct mlo_s3_object object;
    assert_ok(mlo_s3_get(s3, key, 0, UINT64_MAX, UINT64_MAX, collect, &got, &object, &err));
    assert_int_equal(got.len, size);
    assert_int_equal(object.size_bytes, size);
    if (size)
        assert_memory_equal(got.data, bytes, size);
    mlo_buf_clear(&got);
}

static void test_s3__objects(void **state)
{
    struct mlo_s3 *s3 = *state;
    struct mlo_error err = {0};
    struct mlo_s3_object object;
    struct mlo_buf got = MLO_BUF_INIT;
    static const char *const keys[] = {"plain", "a b/c+d", "p%41/~x'(é)*&=?#", "a/../b/./c", "x//y"};
    for (size_t i = 0; i < MLO_COUNT(keys); i++) {
        assert_ok(mlo_s3_put(s3, keys[i], "hello", 5, NULL, &err));
        assert_object(s3, keys[i], "hello", 5);
        assert_ok(mlo_s3_head(s3, keys[i], &object, &err));
        assert_int_equal(object.size_bytes, 5);
        assert_string_equal(object.etag, "\"5d41402abc4b2a76b9719d911017c592\"");
        assert_ok(mlo_s3_delete(s3, keys[i], &err));
        assert_int_equal(mlo_s3_head(s3, keys[i], &object, &err), MLO_ENOTFOUND);
        assert_ok(mlo_s3_delete(s3, keys[i], &err)); /* again: fine */
    }
    assert_ok(mlo_s3_put(s3, "empty", "", 0, NULL, &err));
    assert_object(s3, "empty", "", 0);
    assert_int_equal(mlo_s3_get(s3, "absent", 0, UINT64_MAX, 10, collect, &got, NULL, &err), MLO_ENOTFOUND);
    assert_contains(err.message, "404 NoSuchKey");
    assert_contains(err.where, "s3://client/absent");
    assert_int_equal(got.len, 0);
    mlo_buf_clear(&got);
}

static void test_s3__ranges(void **state)
{
    struct mlo_s3 *s3 = *state;
    struct mlo_error err = {0};
    struct mlo_buf got = MLO_BUF_INIT;
    struct mlo_s3_object object;
    assert_ok(mlo_s3_put(s3, "range", "0123456789", 10, NULL, &err));
    assert_ok(mlo_s3_get(s3, "range", 3, 4, 100, collect, &got, &object, &err));
    assert_string_equal(mlo_buf_str(&got), "3456");
    assert_int_equal(object.size_bytes, 10);
    mlo_buf_reset(&got);
    assert_ok(
        mlo_s3_get(s3, "range", 8, 100, 100, collect, &got, NULL, &err)); /* it ends where the object does */
    assert_string_equal(mlo_buf_str(&got), "89");
    mlo_buf_reset(&got);
    assert_ok(mlo_s3_get(s3, "range", 9, UINT64_MAX, 100, collect, &got, NULL, &err));
    assert_string_equal(mlo_buf_str(&got), "9");
    mlo_buf_reset(&got);
    assert_int_equal(mlo_s3_get(s3, "range", 0, UINT64_MAX, 9, collect, &got, NULL, &err), MLO_ETOOBIG);
    assert_int_equal(got.len, 0);
    assert_int_equal(mlo_s3_get(s3, "range", 10, 1, 9, collect, &got, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "416");
    mlo_buf_clear(&got);
}

static void test_s3__wrong_digest_is_refused_by_the_server(void **state)
{
    struct mlo_s3 *s3 = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    mlo_digest_of("other", 5, &digest);
    assert_int_equal(mlo_s3_put(s3, "wrong", "hello", 5, &digest, &err), MLO_EDIGEST);
    assert_contains(err.message, s3_server.swift ? "BadDigest" : "SHA256Mismatch");
    assert_int_equal(mlo_s3_head(s3, "wrong", NULL, &err), MLO_ENOTFOUND);
}

static void put_parts(struct mlo_s3 *s3, const char *key, const char *upload, const char *bytes,
                      struct mlo_s3_part parts[3])
{
    struct mlo_error err = {0};
    static const int order[] = {2, 0, 1}; /* any order will do */
    for (size_t i = 0; i < 3; i++) {
        int p = order[i];
        size_t size = p == 2 ? TAIL : PART;
        assert_ok(
            mlo_s3_multipart_put(s3, key, upload, p + 1, bytes + (size_t)p * PART, size, &parts[p], &err));
    }
}

static void test_s3__multipart(void **state)
{
    struct mlo_s3 *s3 = *state;
    struct mlo_error err = {0};
    size_t size = 2 * (size_t)PART + TAIL, count;
    char *bytes = some_bytes(size, 1), *upload;
    struct mlo_s3_part parts[3] = {{0}}, *there;
    struct mlo_s3_object object;
    assert_ok(mlo_s3_multipart_create(s3, "big", &upload, &err));
    assert_ok(mlo_s3_multipart_parts(s3, "big", upload, &there, &count, &err));
    assert_int_equal(count, 0);
    free(there);
    put_parts(s3, "big", upload, bytes, parts);
    assert_ok(mlo_s3_multipart_parts(s3, "big", upload, &there, &count, &err));
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(there[i].number, i + 1);
        assert_int_equal(there[i].size_bytes, parts[i].size_bytes);
        assert_string_equal(there[i].etag, parts[i].etag);
    }
    free(there);
    assert_int_equal(mlo_s3_head(s3, "big", NULL, &err), MLO_ENOTFOUND);
    assert_ok(mlo_s3_multipart_complete(s3, "big", upload, parts, 3, NULL, &err));
    assert_object(s3, "big", bytes, size);
    /* once more, as if the answer had been lost; and of parts that are not what is there */
    assert_ok(mlo_s3_multipart_complete(s3, "big", upload, parts, 3, NULL, &err));
    parts[0].etag[1] ^= 1;
    assert_int_not_equal(mlo_s3_multipart_complete(s3, "big", upload, parts, 3, NULL, &err), MLO_OK);
    /* Swift keeps the parts of an object as long as that */
    assert_int_equal(mlo_s3_multipart_parts(s3, "big", upload, &there, &count, &err),
                     s3_server.swift ? MLO_OK : MLO_ENOTFOUND);
    assert_ok(mlo_s3_head(s3, "big", &object, &err));
    assert_ok(mlo_s3_copy(s3, "big", &object, "a copy/of it", &err));
    assert_object(s3, "a copy/of it", bytes, size);
    free(there);
    free(upload);
    free(bytes);
}

static void test_s3__multipart_abort(void **state)
{
    struct mlo_s3 *s3 = *state;
    struct mlo_error err = {0};
    char *upload;
    struct mlo_s3_part part;
    assert_ok(mlo_s3_multipart_create(s3, "never", &upload, &err));
    assert_ok(mlo_s3_multipart_put(s3, "never", upload, 1, "bytes", 5, &part, &err));
    assert_ok(mlo_s3_multipart_abort(s3, "never", upload, &err));
    assert_ok(mlo_s3_multipart_abort(s3, "never", upload, &err));
    assert_int_equal(mlo_s3_multipart_put(s3, "never", upload, 2, "bytes", 5, &part, &err), MLO_ENOTFOUND);
    assert_int_equal(mlo_s3_head(s3, "never", NULL, &err), MLO_ENOTFOUND);
    free(upload);
}

static void test_s3__wrong_part_is_refused(void **state)
{
    struct mlo_s3 *s3 = *state;
    struct mlo_error err = {0};
    char *upload;
    struct mlo_s3_part part;
    assert_ok(mlo_s3_multipart_create(s3, "wrong-part", &upload, &err));
    assert_ok(mlo_s3_multipart_put(s3, "wrong-part", upload, 1, "bytes", 5, &part, &err));
    part.etag[5] = part.etag[5] == 'a' ? 'b' : 'a';
    assert_int_equal(mlo_s3_multipart_complete(s3, "wrong-part", upload, &part, 1, NULL, &err), MLO_EDIGEST);
    assert_contains(err.message, "InvalidPart");
    assert_int_equal(mlo_s3_head(s3, "wrong-part", NULL, &err), MLO_ENOTFOUND);
    assert_ok(mlo_s3_multipart_abort(s3, "wrong-part", upload, &err));
    free(upload);
}

static enum mlo_status count_entries(void *arg, const struct mlo_s3_entry *entry, struct mlo_error *err)
{
    size_t *n = arg;
    char wanted[32];
    snprintf(wanted, sizeof wanted, "list/%04zu&<", *n);
    if (strcmp(entry->key, wanted) != 0 || entry->size_bytes != 1 || entry->upload ||
        !strchr(entry->modified, 'T'))
        return mlo_error_set(err, MLO_EINTERNAL, "%s, not %s", entry->key, wanted);
    ++*n;
    return MLO_OK;
}

static enum mlo_status one_upload(void *arg, const struct mlo_s3_entry *entry, struct mlo_error *err)
{
    MLO_UNUSED(err);
    if (strcmp(entry->key, "under way/1") == 0 && entry->upload && strcmp(entry->upload, *(char **)arg) == 0)
        *(char **)arg = NULL;
    return MLO_OK;
}

static void test_s3__lists_page_by_page(void **state)
{
    struct mlo_s3 *s3 = *state;
    struct mlo_error err = {0};
    char key[32], *upload, *looked_for;
    size_t n = 0;
    size_t count = s3_server.swift ? 105 : 1005;
    for (size_t i = 0; i < count; i++) { /* a page holds 1,000, and 100 as Swift is set up */
        snprintf(key, sizeof key, "list/%04zu&<", i);
        assert_ok(mlo_s3_put(s3, key, "x", 1, NULL, &err));
    }
    assert_ok(mlo_s3_list(s3, "list/", count_entries, &n, &err));
    assert_int_equal(n, count);
    n = 7;
    assert_int_equal(mlo_s3_list(s3, "list/", count_entries, &n, &err), MLO_EINTERNAL);
    assert_ok(mlo_s3_multipart_create(s3, "under way/1", &upload, &err));
    looked_for = upload;
    assert_ok(mlo_s3_list_uploads(s3, "under way/", one_upload, &looked_for, &err));
    assert_null(looked_for);
    assert_ok(mlo_s3_multipart_abort(s3, "under way/1", upload, &err));
    free(upload);
}

/* --- who may, and how ---------------------------------------------------------------------------- */

static enum mlo_status try_with(const struct mlo_s3_options *o, struct mlo_error *err)
{
    struct mlo_s3 *s3 = NULL;
    enum mlo_status status = mlo_s3_open(o, &s3, err);
    if (status == MLO_OK)
        status = mlo_s3_check_bucket(s3, err);
    mlo_s3_close(s3);
    return status;
}

static void test_s3__refusals_say_what_to_do(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_s3_options o = {.bucket = "client", .endpoint = s3_server.endpoint, .attempts = 2};
    assert_ok(try_with(&o, &err));
    o.bucket = "no-such-bucket";
    assert_int_equal(try_with(&o, &err), MLO_EUNAVAILABLE);
    assert_contains(err.message, "404 NoSuchBucket");
    assert_contains(err.hint, "make the bucket");
    o.bucket = "client";
    setenv("AWS_SECRET_ACCESS_KEY", "not it", 1);
    assert_int_equal(try_with(&o, &err), MLO_EUNAVAILABLE);
    assert_contains(err.message, "403 SignatureDoesNotMatch");
    assert_contains(err.message, "request ");
    assert_contains(err.hint, "secret key is wrong");
    setenv("AWS_SECRET_ACCESS_KEY", "testsecret", 1);
    setenv("AWS_ACCESS_KEY_ID", "AKIDNOBODY", 1);
    assert_int_equal(try_with(&o, &err), MLO_EUNAVAILABLE);
    assert_contains(err.message, s3_server.swift ? "403 SignatureDoesNotMatch" : "403 InvalidAccessKeyId");
    setenv("AWS_ACCESS_KEY_ID", "AKIDTEST", 1);
    o.endpoint = "http://127.0.0.1:1";
    assert_int_equal(try_with(&o, &err), MLO_EUNAVAILABLE);
    assert_contains(err.message, "after 2 attempts");
    assert_contains(err.hint, "endpoint=");
}

/* Ceph takes any region. */
static void test_s3__another_region_is_refused(void **state)
{
    struct mlo_error err = {0};
    MLO_UNUSED(state);
    const struct mlo_s3_options o = {
        .bucket = "client", .endpoint = s3_server.endpoint, .region = "eu-west-7", .attempts = 2};
    if (!s3_server.swift)
        skip();
    assert_int_equal(try_with(&o, &err), MLO_EUNAVAILABLE);
    assert_contains(err.message, "AuthorizationHeaderMalformed");
    assert_contains(err.hint, "us-east-1");
}

static void test_s3__keys_from_files(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    char *dir = NULL;
    assert_ok(mlo_fs_tempdir(NULL, "s3-keys-", &dir, &err));
    char *path = mlo_fs_join(dir, "credentials", NULL);
    static const char text[] =
        "# ours\n[default]\naws_access_key_id = AKIDTEST\naws_secret_access_key=wrong\n"
        "\n[ right ]\r\naws_access_key_id=AKIDTEST\r\naws_secret_access_key = testsecret\r\n"
        "[empty]\n[";
    assert_ok(mlo_fs_write_atomic(path, text, strlen(text), &err));
    struct mlo_s3_options o = {
        .bucket = "client", .endpoint = s3_server.endpoint, .credentials_file = path, .profile = "right"};
    assert_ok(try_with(&o, &err));
    o.profile = NULL; /* the file that is named counts, not the environment */
    assert_int_equal(try_with(&o, &err), MLO_EUNAVAILABLE);
    o.profile = "empty";
    assert_int_equal(try_with(&o, &err), MLO_EAUTH);
    assert_contains(err.message, "profile 'empty'");
    o.credentials_file = NULL;
    unsetenv("AWS_ACCESS_KEY_ID");
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    o.profile = NULL;
    setenv("AWS_PROFILE", "right", 1);
    assert_ok(try_with(&o, &err));
    unsetenv("AWS_PROFILE");
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/at/all", 1);
    assert_int_equal(try_with(&o, &err), MLO_ENOTFOUND);
    unsetenv("AWS_SHARED_CREDENTIALS_FILE");
    char *home = strdup(getenv("HOME") ? getenv("HOME") : "");
    setenv("HOME", dir, 1);
    assert_int_equal(try_with(&o, &err), MLO_EAUTH);
    assert_contains(err.hint, "AWS_ACCESS_KEY_ID");
    setenv("HOME", home, 1);
    setenv("AWS_ACCESS_KEY_ID", "AKIDTEST", 1);
    mlo_fs_remove_tree(dir);
    free(home);
    free(path);
    free(dir);
}

static void test_s3__options_that_cannot_be(void **state)
{
    MLO_UNUSED(state);
    static const struct mlo_s3_options bad[] = {
        {.bucket = NULL},
        {.bucket = "Upper"},
        {.bucket = "a"},
        {.bucket = "../etc"},
        {.bucket = "good", .endpoint = "ftp://host"},
        {.bucket = "good", .endpoint = "http://user:password@host"},
        {.bucket = "good", .endpoint = "http://host/path"},
        {.bucket = "good", .endpoint = "http://"},
        {.bucket = "good", .style = "round"},
        {.bucket = "good", .region = "a\nb"},
        {.bucket = "good", .encryption = "rot13"},
        {.bucket = "good", .encryption = "customer"},
        {.bucket = "good", .encryption = "AES256", .kms_key = "k"},
        {.bucket = "good", .kms_key = "k"},
        {.bucket = "good", .payload = "half"},
        {.bucket = "good", .payload = "unsigned", .endpoint = "http://host"},
    };
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        struct mlo_error err = {0};
        struct mlo_s3 *s3;
        assert_int_equal(mlo_s3_open(&bad[i], &s3, &err), MLO_EINVAL);
        assert_null(s3);
    }
}

static void test_s3__tls_and_virtual_style(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_s3 *s3;
    struct mlo_s3_options o = {
        .bucket = "client", .endpoint = s3_server.tls_endpoint, .ca_file = s3_server.ca_file};
    assert_ok(try_with(&o, &err));
    o.ca_file = NULL; /* signed by nobody that this machine knows */
    assert_int_equal(try_with(&o, &err), MLO_EUNAVAILABLE);
    assert_contains(err.hint, "ca=/path");
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "http://localhost:%u/", s3_server.port);
    o.endpoint = endpoint;
    o.style = "virtual"; /* client.localhost */
    assert_ok(mlo_s3_open(&o, &s3, &err));
    assert_ok(mlo_s3_put(s3, "virtual/key one", "hello", 5, NULL, &err));
    assert_object(s3, "virtual/key one", "hello", 5);
    mlo_s3_close(s3);
    assert_object(*state, "virtual/key one", "hello", 5);
}

static void test_s3__encryption(void **state)
{
    struct mlo_error err = {0};
    struct mlo_s3 *s3;
    struct mlo_s3_object object;
    struct mlo_buf got = MLO_BUF_INIT;
    struct mlo_s3_part parts[3] = {{0}};
    char *upload, *bytes, key[160];
    if (s3_server.swift)
        skip(); /* it has no such headers */
    bytes = some_bytes(2 * (size_t)PART + TAIL, 3);
    snprintf(key, sizeof key, "%s/customer.key", s3_server.dir);
    struct mlo_s3_options o = {
        .bucket = "client", .endpoint = s3_server.endpoint, .encryption = "customer", .customer_key = key};
    assert_int_equal(mlo_s3_open(&o, &s3, &err), MLO_ENOTFOUND);
    assert_ok(mlo_fs_write_atomic(key, "short", 5, &err));
    assert_int_equal(mlo_s3_open(&o, &s3, &err), MLO_EINVAL);
    assert_ok(mlo_fs_write_atomic(key, "0123456789abcdef0123456789abcdef", 32, &err));
    assert_ok(mlo_s3_open(&o, &s3, &err));
    assert_ok(mlo_s3_put(s3, "secret", "hello", 5, NULL, &err));
    assert_object(s3, "secret", "hello", 5);
    assert_ok(mlo_s3_multipart_create(s3, "secret big", &upload, &err));
    put_parts(s3, "secret big", upload, bytes, parts);
    assert_ok(mlo_s3_multipart_complete(s3, "secret big", upload, parts, 3, NULL, &err));
    assert_object(s3, "secret big", bytes, 2 * (size_t)PART + TAIL);
    /* without the key there is nothing to read */
    assert_int_not_equal(mlo_s3_get(*state, "secret", 0, UINT64_MAX, 99, collect, &got, &object, &err),
                         MLO_OK);
    assert_int_equal(got.len, 0);
    mlo_s3_close(s3);
    free(upload);
    o = (struct mlo_s3_options){
        .bucket = "client", .endpoint = s3_server.endpoint, .encryption = "aws:kms", .kms_key = "testkey"};
    assert_ok(mlo_s3_open(&o, &s3, &err));
    assert_ok(mlo_s3_put(s3, "by the server", "hello", 5, NULL, &err));
    assert_object(s3, "by the server", "hello", 5);
    mlo_s3_close(s3);
    mlo_buf_clear(&got);
    free(bytes);
}

/* --- presigned ----------------------------------------------------------------------------------- */

static long get(const char *url, struct reply *reply)
{
    assert_int_equal(reply_fetch(reply, "GET", url, NULL, NULL, NULL, NULL), CURLE_OK);
    return reply->status;
}

static void test_s3__presigned_addresses(void **state)
{
    struct mlo_s3 *s3 = *state;
    struct mlo_error err = {0};
    struct reply reply = {0};
    const char *const none[] = {NULL};
    struct mlo_s3_part *parts;
    char *url, *upload;
    size_t count;
    assert_ok(mlo_s3_put(s3, "for all/to read", "hello", 5, NULL, &err));
    struct mlo_s3_grant grant = {.key = "for all/to read", .expires_s = 60};
    assert_ok(mlo_s3_presign_url(s3, &grant, &url, &err));
    assert_int_equal(get(url, &reply), 200);
    assert_string_equal(mlo_buf_str(&reply.body), "hello");
    assert_int_equal(put(url, "written by somebody", 19, none), 403); /* to read, and nothing else */
    assert_object(s3, "for all/to read", "hello", 5);
    url[strlen(url) - 1] ^= 1; /* the signature */
    assert_int_equal(get(url, &reply), 403);
    free(url);
    grant.expires_s = 1;
    assert_ok(mlo_s3_presign_url(s3, &grant, &url, &err));
    for (int i = 0; i < 600 && get(url, &reply) == 200; i++) /* until it has expired */
        mlo_clock_sleep_ms(100);
    assert_int_equal(get(url, &reply), 403);
    free(url);
    assert_ok(mlo_s3_multipart_create(s3, "by parts", &upload, &err));
    grant = (struct mlo_s3_grant){.key = "by parts", .upload = upload, .number = 1, .expires_s = 60};
    assert_ok(mlo_s3_presign_url(s3, &grant, &url, &err));
    assert_int_equal(put(url, "sent by somebody", 16, none), 200);
    assert_ok(mlo_s3_multipart_parts(s3, "by parts", upload, &parts, &count, &err));
    assert_int_equal(count, 1);
    assert_ok(mlo_s3_multipart_complete(s3, "by parts", upload, parts, count, NULL, &err));
    assert_object(s3, "by parts", "sent by somebody", 16);
    free(parts);
    free(url);
    free(upload);
    reply_clear(&reply);
}

/* Ceph looks at what comes by an address, and copies nothing in its place; Swift knows no address with a
 * digest. */
static void test_s3__looks_at_what_comes_by_an_address(void **state)
{
    struct mlo_s3 *s3 = *state;
    struct mlo_error err = {0};
    bool checks;
    enum mlo_status status = mlo_s3_checks_presigned(s3, "looked at", "copied", &checks, &err);
    assert_int_equal(status, s3_server.swift ? MLO_EUNAVAILABLE : MLO_OK);
    assert_int_equal(checks, !s3_server.swift);
    assert_int_equal(mlo_s3_head(s3, "looked at", NULL, &err), MLO_ENOTFOUND);
    assert_int_equal(mlo_s3_head(s3, "copied", NULL, &err), MLO_ENOTFOUND);
}

static int setup(void **state)
{
    *state = s3_fixture_open("client");
    return 0;
}

static int teardown(void **state)
{
    mlo_s3_close(*state);
    return 0;
}

#define WITH_CLIENT(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH_CLIENT(test_s3__objects),
        WITH_CLIENT(test_s3__ranges),
        WITH_CLIENT(test_s3__wrong_digest_is_refused_by_the_server),
        WITH_CLIENT(test_s3__multipart),
        WITH_CLIENT(test_s3__multipart_abort),
        WITH_CLIENT(test_s3__wrong_part_is_refused),
        WITH_CLIENT(test_s3__lists_page_by_page),
        WITH_CLIENT(test_s3__refusals_say_what_to_do),
        WITH_CLIENT(test_s3__another_region_is_refused),
        WITH_CLIENT(test_s3__keys_from_files),
        WITH_CLIENT(test_s3__options_that_cannot_be),
        WITH_CLIENT(test_s3__tls_and_virtual_style),
        WITH_CLIENT(test_s3__encryption),
        WITH_CLIENT(test_s3__presigned_addresses),
        WITH_CLIENT(test_s3__looks_at_what_comes_by_an_address),
    };
    s3_fixture_choose(argc, argv);
    s3_fixture_start("memstore");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return s3_fixture_end(failed);
}
