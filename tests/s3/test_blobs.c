/* The blob store on S3: whole or not at all, in bounded memory, checked on the way in and out. */
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/s3/blobs_fixture.h"

/* As put_large, as the PUT of a client who says `size`; commits when `whole`. */
static enum mlo_status pass_large(struct mlo_blob_store *store, const char *bytes,
                                  const struct mlo_digest *digest, uint64_t size, bool whole,
                                  struct mlo_error *err)
{
    struct mlo_blob_writer *w = NULL;
    enum mlo_status status;
    bool there = mlo_blob_exists(store, digest);
    MLO_TRY(mlo_blob_writer_open_passing(store, digest, size, &w, err));
    MLO_TRY(write_all(w, bytes, LARGE, err));
    assert_int_equal(mlo_blob_exists(store, digest), there); /* all of it was written, and is not seen yet */
    if (whole)
        MLO_TRY(mlo_blob_writer_commit(w, digest, NULL, NULL, err));
out:
    mlo_blob_writer_free(w);
    return status;
}

/* --- writing and reading ---------------------------------------------------------------------------- */

static void test_blob_s3__write_and_read(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_blob_writer *w;
    struct mlo_digest digest, expected;
    struct mlo_buf got = MLO_BUF_INIT;
    uint64_t size;
    char *path, text[8] = "";
    int fd;
    mlo_digest_of("hello", 5, &expected);
    assert_ok(mlo_blob_writer_open(p->store, &w, &err));
    assert_ok(mlo_blob_writer_write(w, "hel", 3, &err));
    assert_false(mlo_blob_exists(p->store, &expected));
    assert_ok(mlo_blob_writer_write(w, "lo", 2, &err));
    assert_ok(mlo_blob_writer_commit(w, &expected, &digest, &size, &err));
    mlo_blob_writer_free(w);
    assert_int_equal(size, 5);
    assert_ok(mlo_blob_size(p->store, &digest, &size, &err));
    assert_int_equal(size, 5);
    assert_ok(mlo_blob_read(p->store, &digest, 100, &got, &err));
    assert_string_equal(mlo_buf_str(&got), "hello");
    assert_int_equal(mlo_blob_read(p->store, &digest, 4, &got, &err), MLO_ETOOBIG);
    assert_ok(mlo_blob_open_fd(p->store, &digest, &fd, &size, &err));
    assert_int_equal(size, 5);
    assert_int_equal(read(fd, text, 8), 5);
    assert_string_equal(text, "hello");
    close(fd);
    assert_ok(mlo_blob_path(p->store, &digest, p->dir, false, &path, &err));
    assert_ok(mlo_blob_put_file(p->store, path, &digest, NULL, &err)); /* again: fine */
    free(path);
    assert_ok(mlo_blob_put_bytes(p->store, "", 0, &digest, &err));
    mlo_buf_reset(&got);
    assert_ok(mlo_blob_read(p->store, &digest, 0, &got, &err));
    assert_int_equal(got.len, 0);
    assert_holds(p, 2, 0, 0);
    mlo_buf_clear(&got);
}

static void test_blob_s3__large_ones_go_in_parts(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest, file;
    char *bytes = large_bytes(), *path = mlo_fs_join(p->dir, "large", NULL), *copy;
    assert_ok(put_large(p->store, bytes, false, &digest, &err));
    assert_large(p->store, bytes, &digest);
    assert_holds(p, 1, 0, 0); /* nothing beside it is left */
    assert_ok(mlo_s3_delete(p->s3, tally(p).key, &err));
    assert_ok(put_large(p->store, bytes, true, &digest, &err));
    assert_large(p->store, bytes, &digest);
    assert_ok(mlo_s3_delete(p->s3, tally(p).key, &err));
    assert_ok(mlo_fs_write_atomic(path, bytes, LARGE, &err));
    assert_ok(mlo_blob_put_file(p->store, path, &file, NULL, &err));
    assert_true(mlo_digest_eq(&file, &digest));
    assert_ok(mlo_blob_path(p->store, &digest, p->dir, true, &copy, &err));
    assert_int_equal(mlo_fs_size(copy), LARGE);
    assert_holds(p, 1, 0, 0);
    free(copy);
    free(path);
    free(bytes);
}

/* Requests with bytes since the last time. */
static int puts_since(void)
{
    return atomic_exchange(&s3_proxy.puts, 0);
}

static void test_blob_s3__known_ones_pass_in_one_request(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest, other;
    char *bytes = large_bytes();
    struct mlo_blob_store *store = open_store(p, s3_proxy.endpoint, "&uploads=stream");
    mlo_digest_of(bytes, LARGE, &digest);
    mlo_digest_of("other", 5, &other);
    puts_since();
    assert_ok(pass_large(store, bytes, &digest, LARGE, true, &err));
    assert_int_equal(puts_since(), 2); /* before it the server was asked whether it looks at digests */
    assert_large(store, bytes, &digest);
    assert_holds(p, 1, 0, 0);
    assert_ok(pass_large(store, bytes, &other, LARGE, false, &err)); /* abandoned */
    assert_int_equal(puts_since(), 1);
    assert_int_equal(pass_large(store, bytes, &other, LARGE, true, &err), MLO_EDIGEST);
    assert_contains(err.message, "the bytes do not hash to sha256:");
    assert_contains(err.hint, "send them again");
    assert_int_equal(pass_large(store, bytes, &other, LARGE - 1, true, &err), MLO_EINVAL);
    assert_contains(err.message, "more bytes come than");
    assert_int_equal(pass_large(store, bytes, &other, LARGE + 1, true, &err), MLO_EINVAL);
    assert_contains(err.message, "1 bytes of the");
    bytes[LARGE - 1] ^= 1; /* other bytes for a blob that is there: it stays as it is */
    assert_int_equal(pass_large(store, bytes, &digest, LARGE, true, &err), MLO_EDIGEST);
    bytes[LARGE - 1] ^= 1;
    assert_large(store, bytes, &digest);
    assert_holds(p, 1, 0, 0);
    assert_ok(mlo_s3_delete(p->s3, tally(p).key, &err));
    puts_since();
    assert_ok(pass_large(store, bytes, &digest, 0, true, &err)); /* of a size that is not known */
    assert_int_equal(puts_since(), 3);
    mlo_blob_store_close(store);
    store = open_store(p, s3_proxy.endpoint, ""); /* uploads=parts */
    assert_ok(pass_large(store, bytes, &digest, LARGE, true, &err));
    assert_int_equal(puts_since(), 3);
    mlo_blob_store_close(store);
    assert_large(p->store, bytes, &digest);
    assert_holds(p, 1, 0, 0);
    free(bytes);
}

/* Of a server that takes bytes whatever their digest, nothing is left to check: they go in parts, and are
 * hashed here. */
static void test_blob_s3__a_server_that_does_not_look_gets_parts(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    char *bytes = large_bytes();
    struct mlo_blob_store *store = open_store(p, s3_proxy.endpoint, "&uploads=stream");
    mlo_digest_of(bytes, LARGE, &digest);
    s3_proxy_set(S3_FAULT_BLIND, 1, 0);
    puts_since();
    assert_ok(pass_large(store, bytes, &digest, LARGE, true, &err));
    s3_proxy_assert_struck();
    assert_int_equal(puts_since(), 1 + 3);
    assert_ok(pass_large(store, bytes, &digest, LARGE, true, &err));
    assert_int_equal(puts_since(), 3); /* asked once */
    assert_large(p->store, bytes, &digest);
    assert_holds(p, 1, 0, 0);
    mlo_blob_store_close(store);
    free(bytes);
}

static void test_blob_s3__wrong_digest_leaves_nothing(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_blob_writer *w;
    struct mlo_digest other;
    char *bytes = large_bytes();
    mlo_digest_of("other", 5, &other);
    for (int expecting = 0; expecting < 2; expecting++) {
        for (size_t size = 5; size <= LARGE; size += LARGE - 5) {
            assert_ok(mlo_blob_writer_open_expecting(p->store, expecting ? &other : NULL, 0, &w, &err));
            assert_ok(write_all(w, bytes, size, &err));
            assert_int_equal(mlo_blob_writer_commit(w, expecting ? NULL : &other, NULL, NULL, &err),
                             MLO_EDIGEST);
            mlo_blob_writer_free(w);
            assert_ok(mlo_blob_writer_open(p->store, &w, &err)); /* and an abandoned one neither */
            assert_ok(write_all(w, bytes, size, &err));
            mlo_blob_writer_free(w);
        }
    }
    assert_holds(p, 0, 0, 0);
    assert_int_equal(mlo_blob_size(p->store, &other, NULL, &err), MLO_ENOTFOUND);
    struct mlo_buf got = MLO_BUF_INIT;
    assert_int_equal(mlo_blob_read(p->store, &other, 9, &got, &err), MLO_ENOTFOUND);
    assert_contains(err.message, "blob sha256:");
    free(bytes);
}

static void test_blob_s3__damage_is_found(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    struct mlo_buf got = MLO_BUF_INIT;
    char *path;
    int fd;
    assert_ok(mlo_blob_put_bytes(p->store, "precious", 8, &digest, &err));
    assert_ok(mlo_s3_put(p->s3, tally(p).key, "qrecious", 8, NULL, &err)); /* one bit */
    assert_int_equal(mlo_blob_read(p->store, &digest, 100, &got, &err), MLO_EDIGEST);
    assert_contains(err.message, "damaged");
    assert_int_equal(mlo_blob_open_fd(p->store, &digest, &fd, NULL, &err), MLO_EDIGEST);
    assert_int_equal(mlo_blob_path(p->store, &digest, p->dir, false, &path, &err), MLO_EDIGEST);
    assert_null(path);
    mlo_buf_clear(&got);
}

static void test_blob_s3__a_cache_keeps_what_was_read(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest, other;
    struct mlo_buf more = MLO_BUF_INIT;
    uint64_t size;
    int fd;
    mlo_buf_printf(&more, "&cache=%s/cache&cache_size=1", p->dir);
    struct mlo_blob_store *store = open_store(p, s3_server.endpoint, mlo_buf_str(&more));
    assert_ok(mlo_blob_put_bytes(store, "hello", 5, &digest, &err));
    assert_ok(mlo_blob_open_fd(store, &digest, &fd, &size, &err));
    close(fd);
    assert_ok(mlo_s3_delete(p->s3, tally(p).key, &err));
    assert_ok(mlo_blob_open_fd(store, &digest, &fd, &size, &err));
    assert_int_equal(size, 5);
    close(fd);
    assert_false(mlo_blob_open_checked(store)); /* a copy that is there is given as it is */
    assert_true(mlo_blob_open_checked(p->store));
    mlo_blob_copy_drop(store, &digest); /* it was found damaged: the next one is fetched, if it is there */
    assert_int_equal(mlo_blob_open_fd(store, &digest, &fd, &size, &err), MLO_ENOTFOUND);
    assert_ok(mlo_blob_put_bytes(store, "hello", 5, &digest, &err));
    assert_ok(mlo_blob_open_fd(store, &digest, &fd, &size, &err));
    close(fd);
    assert_ok(mlo_s3_delete(p->s3, tally(p).key, &err));
    char *bytes = large_bytes(); /* more than the cache may hold: the older one goes */
    assert_ok(put_large(store, bytes, true, &other, &err));
    assert_ok(mlo_blob_open_fd(store, &other, &fd, &size, &err));
    assert_int_equal(size, LARGE);
    close(fd);
    assert_int_equal(mlo_blob_open_fd(store, &digest, &fd, &size, &err), MLO_ENOTFOUND);
    free(bytes);
    mlo_blob_store_close(store);
    mlo_buf_clear(&more);
}

static void test_blob_s3__addresses(void **state)
{
    struct place *p = *state;
    struct mlo_blob_store *store;
    static const struct {
        const char *url, *hint;
    } bad[] = {
        {"s3:", "3 to 63"},
        {"s3:UPPER", "3 to 63"},
        {"s3:bucket?endpont=http://x", "did you mean endpoint=…?"},
        {"s3:bucket?endpoint", "did you mean endpoint=…?"},
        {"s3:bucket?timeout=soon", "s3:bucket/prefix?"},
        {"s3:bucket?style=square", "style=path"},
        {"s3:bucket?uploads=whole", "parts: "},
        {"s3:bucket?scratch=relative", NULL},
    };
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        struct mlo_error err = {0};
        enum mlo_status status = mlo_blob_store_open(bad[i].url, &store, &err);
        if (status != MLO_EINVAL)
            fail_msg("%s: %s", bad[i].url, err.message);
        if (bad[i].hint)
            assert_contains(err.hint, bad[i].hint);
    }
    assert_int_equal(
        mlo_blob_store_open("s3:no-such-bucket?endpoint=http://127.0.0.1:1&attempts=1", &store, &p->err),
        MLO_EUNAVAILABLE);
}

/* --- in pieces --------------------------------------------------------------------------------------- */

/* Appends, and keeps the session only when it was committed, as a database would. */
static enum mlo_status append(struct mlo_blob_store *store, struct mlo_blob_session *kept, const char *bytes,
                              size_t size, bool commit, struct mlo_error *err)
{
    struct mlo_blob_session session = *kept;
    struct mlo_blob_piece *piece = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_blob_piece_open(store, &session, &piece, err));
    MLO_TRY(mlo_blob_piece_write(piece, bytes, size, err));
    if (commit)
        MLO_TRY(mlo_blob_piece_commit(piece, err));
out:
    mlo_blob_piece_free(piece);
    if (status == MLO_OK && commit)
        *kept = session;
    return status;
}

/* Pieces of all sizes, by one server or another, some of them lost before they counted. */
static void test_blob_s3__in_pieces(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_blob_session session, older;
    struct mlo_digest digest, expected;
    struct mlo_blob_store *other = open_store(p, s3_server.endpoint, "");
    char *bytes = large_bytes();
    static const size_t sizes[] = {1, 3000000, 6000000, 8388608, 100, 700000, LARGE};
    mlo_digest_of(bytes, LARGE, &expected);
    assert_ok(mlo_blob_session_begin(p->store, &session, &err));
    for (size_t i = 0; i < MLO_COUNT(sizes); i++) {
        size_t left = LARGE - session.size_bytes, size = MLO_MIN(sizes[i], left);
        struct mlo_blob_store *store = i % 2 ? other : p->store;
        const char *from = bytes + session.size_bytes;
        assert_ok(append(store, &session, from, size, false, &err)); /* killed before it counted */
        older = session;
        assert_ok(append(other, &session, from, MLO_MIN(left, size + 9000000), true,
                         &err)); /* the answer is lost */
        session = older;
        assert_ok(append(store, &session, from, size, true, &err));
        assert_ok(append(store, &session, "", 0, true, &err));
    }
    assert_int_equal(session.size_bytes, LARGE);
    assert_ok(mlo_blob_session_digest(p->store, &session, &digest, &err));
    assert_true(mlo_digest_eq(&digest, &expected));
    assert_false(mlo_blob_exists(p->store, &digest));
    assert_ok(mlo_blob_session_publish(other, &session, &err));
    assert_large(p->store, bytes, &digest);
    assert_holds(p, 1, 0, 0);
    assert_ok(mlo_blob_session_publish(p->store, &session, &err)); /* again: fine */
    assert_int_equal(append(p->store, &session, "x", 1, true, &err), MLO_ENOTFOUND);
    mlo_blob_store_close(other);
    free(bytes);
}

/* Ceph 16 copies nothing that it has encrypted: large and small ones go through us, and damaged ones aside.
 */
static void test_blob_s3__in_pieces_encrypted_by_the_server(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_blob_session session;
    struct mlo_digest digest;
    struct mlo_buf got = MLO_BUF_INIT;
    if (s3_server.swift)
        skip();
    char *bytes = large_bytes();
    struct mlo_blob_store *store = open_store(p, s3_server.endpoint, "&encryption=aws:kms&kms_key=testkey");
    static const size_t sizes[] = {LARGE, 5};
    for (size_t i = 0; i < MLO_COUNT(sizes); i++) {
        assert_ok(mlo_blob_session_begin(store, &session, &err));
        assert_ok(append(store, &session, bytes, sizes[i], true, &err));
        assert_ok(mlo_blob_session_digest(store, &session, &digest, &err));
        assert_ok(mlo_blob_session_publish(store, &session, &err));
        mlo_buf_reset(&got);
        assert_ok(mlo_blob_read(p->store, &digest, LARGE, &got, &err));
        assert_int_equal(got.len, sizes[i]);
        assert_memory_equal(got.data, bytes, sizes[i]);
        assert_holds(p, (int)i + 1, 0, 0);
    }
    assert_ok(store->backend->put_aside(store, &digest, "aside", &err));
    assert_holds(p, 1, 1, 0);
    assert_false(mlo_blob_exists(store, &digest));
    mlo_buf_clear(&got);
    mlo_blob_store_close(store);
    free(bytes);
}

static void test_blob_s3__small_and_dropped_sessions(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_blob_session session;
    struct mlo_digest digest;
    struct mlo_buf got = MLO_BUF_INIT;
    assert_ok(mlo_blob_session_begin(p->store, &session, &err));
    assert_ok(append(p->store, &session, "hel", 3, true, &err));
    assert_ok(append(p->store, &session, "lo", 2, true, &err));
    assert_ok(mlo_blob_session_publish(p->store, &session, &err));
    mlo_digest_of("hello", 5, &digest);
    assert_ok(mlo_blob_read(p->store, &digest, 5, &got, &err));
    assert_string_equal(mlo_buf_str(&got), "hello");
    assert_ok(mlo_blob_session_begin(p->store, &session, &err)); /* nothing at all */
    assert_ok(mlo_blob_session_publish(p->store, &session, &err));
    mlo_digest_of("", 0, &digest);
    assert_true(mlo_blob_exists(p->store, &digest));
    assert_holds(p, 2, 0, 0);
    assert_ok(mlo_blob_session_begin(p->store, &session, &err));
    assert_ok(append(p->store, &session, "hello", 5, true, &err));
    assert_ok(mlo_blob_session_drop(p->store, &session, &err));
    assert_ok(mlo_blob_session_drop(p->store, &session, &err));
    assert_holds(p, 2, 0, 0);
    assert_int_equal(append(p->store, &session, "x", 1, true, &err), MLO_ENOTFOUND);
    mlo_buf_clear(&got);
}

/* Two servers append other bytes at one place: what was stored is not what counts, and that is seen. */
static void test_blob_s3__pieces_that_cross_are_found(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_blob_session session, other;
    char *bytes = large_bytes();
    assert_ok(mlo_blob_session_begin(p->store, &session, &err));
    other = session;
    assert_ok(append(p->store, &session, bytes, LARGE, true, &err));
    assert_ok(append(p->store, &other, bytes + 1, LARGE - 1, false, &err));
    assert_int_equal(mlo_blob_session_publish(p->store, &session, &err), MLO_EDIGEST);
    assert_ok(mlo_blob_session_drop(p->store, &session, &err));
    assert_holds(p, 0, 0, 0);
    free(bytes);
}

static enum mlo_status spoil(void *arg, const struct mlo_s3_entry *entry, struct mlo_error *err)
{
    struct place *p = arg;
    return mlo_str_starts(entry->key, "models/uploads/")
               ? mlo_s3_put(p->s3, entry->key, "jello", 5, NULL, err)
               : MLO_OK;
}

/* The same with bytes that fill no part: they do not take each other's place, and what is in that place later
 * is looked at. */
static void test_blob_s3__rests_that_cross_do_not_meet(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_blob_session session, other;
    struct mlo_digest hello, jello;
    mlo_digest_of("hello", 5, &hello);
    mlo_digest_of("jello", 5, &jello);
    assert_ok(mlo_blob_session_begin(p->store, &session, &err));
    other = session;
    assert_ok(append(p->store, &session, "hello", 5, true, &err));
    assert_ok(append(p->store, &other, "jello", 5, true, &err)); /* whose row says: 409 */
    assert_ok(mlo_blob_session_publish(p->store, &session, &err));
    assert_ok(mlo_blob_check(p->store, &hello, NULL, &err));
    assert_false(mlo_blob_exists(p->store, &jello));
    assert_holds(p, 1, 0, 0);
    assert_ok(mlo_blob_session_begin(p->store, &session, &err));
    assert_ok(append(p->store, &session, "hello", 5, true, &err));
    assert_ok(mlo_s3_list(p->s3, "", spoil, p, &err));
    assert_int_equal(append(p->store, &session, " again", 6, true, &err), MLO_EDIGEST);
    assert_int_equal(mlo_blob_session_publish(p->store, &session, &err), MLO_EDIGEST);
    assert_ok(mlo_blob_check(p->store, &hello, NULL, &err));
    assert_ok(mlo_blob_session_drop(p->store, &session, &err));
    assert_holds(p, 1, 0, 0);
}

/* One that was begun before its rest had a digest goes on. */
static void test_blob_s3__a_rest_of_before_is_taken(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_blob_session session;
    struct mlo_digest digest;
    char upload[160], parts[80], key[96];
    assert_ok(mlo_blob_session_begin(p->store, &session, &err));
    assert_ok(append(p->store, &session, "hello", 5, true, &err));
    assert_int_equal(sscanf(session.place, "%159s %79s", upload, parts), 2);
    snprintf(session.place, sizeof session.place, "%s %s 0", upload, parts);
    snprintf(key, sizeof key, "models/uploads/%s.5", session.id);
    assert_ok(mlo_s3_put(p->s3, key, "hello", 5, NULL, &err));
    assert_ok(append(p->store, &session, " again", 6, true, &err));
    assert_ok(append(p->store, &session, "!", 1, true, &err));
    assert_ok(mlo_blob_session_publish(p->store, &session, &err));
    mlo_digest_of("hello again!", 12, &digest);
    assert_ok(mlo_blob_check(p->store, &digest, NULL, &err));
    assert_holds(p, 1, 0, 0);
}

/* --- faults ------------------------------------------------------------------------------------------- */

/* Cut answers, lost answers, refusals that pass: the blob is there, and whole. */
static void test_blob_s3__survives_what_passes(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    char *bytes = large_bytes();
    struct mlo_blob_store *store = open_store(p, s3_proxy.endpoint, "&timeout=20");
    static const struct {
        enum s3_fault fault;
        int times;
        size_t after;
    } writing[] = {{S3_FAULT_CUT_REQUEST, 2, 1000000},
                   {S3_FAULT_LOST_ANSWER, 3, 0},
                   {S3_FAULT_BUSY, 4, 0},
                   {S3_FAULT_CUT_ANSWER, 3, 20},
                   {S3_FAULT_CUT_REQUEST, 3, 100}},
      reading[] = {{S3_FAULT_CUT_ANSWER, 4, 3000000}, {S3_FAULT_BUSY, 3, 0}, {S3_FAULT_LOST_ANSWER, 2, 0}};
    for (size_t i = 0; i < 2 * MLO_COUNT(writing); i++) {
        if (s3_server.swift && writing[i / 2].fault != S3_FAULT_LOST_ANSWER)
            continue; /* whatever the server: this process is tested, and once is enough */
        /* a store of its own: connections that are kept have seen too many bytes for "after" */
        struct mlo_blob_store *fresh = open_store(p, s3_proxy.endpoint, "&timeout=20");
        s3_proxy_set(writing[i / 2].fault, writing[i / 2].times, writing[i / 2].after);
        assert_ok(put_large(fresh, bytes, i % 2, &digest, &err));
        s3_proxy_assert_struck();
        mlo_blob_store_close(fresh);
        assert_large(p->store, bytes, &digest);
        assert_ok(mlo_s3_delete(p->s3, tally(p).key, &err));
    }
    assert_ok(put_large(store, bytes, true, &digest, &err));
    for (size_t i = 0; i < MLO_COUNT(reading); i++) {
        struct mlo_blob_store *fresh = open_store(p, s3_proxy.endpoint, "&timeout=20");
        s3_proxy_set(reading[i].fault, reading[i].times, reading[i].after);
        assert_large(fresh, bytes, &digest);
        s3_proxy_assert_struck();
        mlo_blob_store_close(fresh);
    }
    mlo_blob_store_close(store);
    free(bytes);
}

/* What passes is tried again until its first byte is asked for. A failure behind that is final, leaves
 * nothing, and the same bytes are taken afterwards. */
static void test_blob_s3__what_passes_fails_once(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    char *bytes = large_bytes();
    static const struct {
        enum s3_fault fault;
        int times;
        size_t after;
        enum mlo_status status;
    } cases[] = {{S3_FAULT_BUSY, 4, 0, MLO_OK},
                 {S3_FAULT_BUSY_LATE, 2, 0, MLO_OK},
                 {S3_FAULT_TAKEN, 1, 5000000, MLO_EFORMAT},        /* 200 amid the bytes */
                 {S3_FAULT_TAKEN, 1, LARGE, MLO_EFORMAT},          /* 200 and no object */
                 {S3_FAULT_REFUSED, 1, 5000000, MLO_EUNAVAILABLE}, /* 503 amid the bytes */
                 {S3_FAULT_CUT_REQUEST, 3, 100, MLO_OK},
                 {S3_FAULT_CUT_REQUEST, 1, 5000000, MLO_EUNAVAILABLE},
                 {S3_FAULT_CUT_REQUEST, 1, LARGE,
                  MLO_EUNAVAILABLE}, /* in the last block: its end is behind the head's */
                 {S3_FAULT_FLIP_REQUEST, 1, 5000000, MLO_EDIGEST}};
    mlo_digest_of(bytes, LARGE, &digest);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_blob_store *store = open_store(p, s3_proxy.endpoint, "&timeout=20&uploads=stream");
        s3_proxy_set(cases[i].fault, cases[i].times, cases[i].after);
        enum mlo_status status = pass_large(store, bytes, &digest, LARGE, true, &err);
        if (status != cases[i].status)
            fail_msg("%zu: %s: %s", i, mlo_status_info(status)->code, err.message);
        s3_proxy_assert_struck();
        mlo_clock_sleep_ms(status == MLO_OK ? 0 : 200); /* the gateway ends what was cut */
        assert_holds(p, status == MLO_OK, 0, 0);
        assert_ok(pass_large(store, bytes, &digest, LARGE, true, &err));
        assert_large(p->store, bytes, &digest);
        assert_ok(mlo_s3_delete(p->s3, tally(p).key, &err));
        mlo_blob_store_close(store);
    }
    free(bytes);
}

/* The few bytes that a slow client has sent do not wait for those that fill a block. */
static void test_blob_s3__a_slow_clients_bytes_go_on(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    struct mlo_blob_writer *w;
    struct mlo_blob_store *store = open_store(p, s3_proxy.endpoint, "&uploads=stream");
    char *bytes = large_bytes();
    mlo_digest_of(bytes, LARGE, &digest);
    assert_ok(mlo_blob_writer_open_passing(store, &digest, LARGE, &w, &err));
    s3_proxy_set(S3_FAULT_CUT_REQUEST, 1, 30000); /* far behind the head */
    assert_ok(mlo_blob_writer_write(w, bytes, 50000, &err));
    assert_int_equal(atomic_load(&s3_proxy.times), 1);
    mlo_clock_sleep_ms(2100);
    assert_ok(mlo_blob_writer_write(w, bytes + 50000, 1, &err));
    for (int i = 0; i < 1000 && atomic_load(&s3_proxy.times); i++)
        mlo_clock_sleep_ms(10);
    s3_proxy_assert_struck();
    mlo_blob_writer_free(w);
    assert_holds(p, 0, 0, 0);
    mlo_blob_store_close(store);
    free(bytes);
}

/* What was changed on the way is not stored, and not handed out. */
static void test_blob_s3__finds_what_was_changed_on_the_way(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    char *bytes = large_bytes();
    struct mlo_buf got = MLO_BUF_INIT;
    for (int expecting = 0; expecting < 2; expecting++) {
        struct mlo_blob_store *store = open_store(p, s3_proxy.endpoint, "");
        s3_proxy_set(S3_FAULT_FLIP_REQUEST, 1, 2000000); /* a part */
        assert_int_equal(put_large(store, bytes, expecting, &digest, &err), MLO_EDIGEST);
        s3_proxy_assert_struck();
        mlo_blob_store_close(store);
        store = open_store(p, s3_proxy.endpoint, "");
        s3_proxy_set(S3_FAULT_ETAG, 1, 0); /* a part's: completing it fails */
        assert_int_equal(put_large(store, bytes, expecting, &digest, &err), MLO_EDIGEST);
        s3_proxy_assert_struck();
        s3_proxy_set(S3_FAULT_ETAG, 1, 0); /* of a whole one */
        assert_int_equal(mlo_blob_put_bytes(store, "hello", 5, NULL, &err), MLO_EDIGEST);
        assert_contains(err.message, "MD5");
        s3_proxy_assert_struck();
        mlo_blob_store_close(store);
        mlo_digest_of("hello", 5, &digest);
        struct tally t = tally(p);
        assert_int_equal(t.uploads, 0);
        assert_int_equal(t.others, 0);
        assert_int_equal(t.blobs, 1); /* hello, whose answer alone was wrong */
    }
    assert_ok(put_large(p->store, bytes, true, &digest, &err));
    struct mlo_blob_store *store = open_store(p, s3_proxy.endpoint, "");
    s3_proxy_set(S3_FAULT_FLIP_ANSWER, 1, 5000000);
    assert_int_equal(mlo_blob_read(store, &digest, LARGE, &got, &err), MLO_EDIGEST);
    s3_proxy_assert_struck();
    mlo_blob_store_close(store);
    mlo_buf_clear(&got);
    free(bytes);
}

/* A server that takes the connection and says nothing is given up, and tried again. */
static void test_blob_s3__a_dead_connection_is_given_up(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_blob_store *store;
    s3_proxy_set(S3_FAULT_MUTE, 1, 0);
    struct mlo_buf url = MLO_BUF_INIT;
    mlo_buf_printf(&url, "s3:%s/models?endpoint=%s&timeout=5&attempts=4", p->bucket, s3_proxy.endpoint);
    assert_ok(mlo_blob_store_open(mlo_buf_str(&url), &store, &err)); /* the second attempt is answered */
    s3_proxy_assert_struck();
    mlo_blob_store_close(store);
    s3_proxy_set(S3_FAULT_MUTE, 2, 0);
    mlo_buf_reset(&url);
    mlo_buf_printf(&url, "s3:%s/models?endpoint=%s&timeout=1&attempts=2", p->bucket, s3_proxy.endpoint);
    assert_int_equal(mlo_blob_store_open(mlo_buf_str(&url), &store, &err), MLO_ETIMEOUT);
    assert_contains(err.message, "after 2 attempts");
    assert_contains(err.hint, "hangs");
    mlo_buf_clear(&url);
}

/* --- memory -------------------------------------------------------------------------------------------- */

/* Many parts, one writer: what this process keeps in memory does not grow with the blob. */
static void test_blob_s3__memory_is_bounded(void **state)
{
#ifdef MLOPT_SANITIZED
    MLO_UNUSED(state);
    skip(); /* a sanitizer keeps what was freed */
#else
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_blob_writer *w;
    struct mlo_digest digest;
    struct rusage before, after;
    size_t piece = 1 << 20;
    if (s3_server.swift)
        skip(); /* it is this process that is measured: once is enough */
    char *bytes = calloc(1, piece);
    getrusage(RUSAGE_SELF, &before);
    assert_ok(mlo_blob_writer_open(p->store, &w, &err));
    for (int i = 0; i < 400; i++) {
        memcpy(bytes, &i, sizeof i);
        assert_ok(mlo_blob_writer_write(w, bytes, piece, &err));
    }
    assert_ok(mlo_blob_writer_commit(w, NULL, &digest, NULL, &err));
    mlo_blob_writer_free(w);
    getrusage(RUSAGE_SELF, &after);
    if (after.ru_maxrss - before.ru_maxrss > 64 * 1024)
        fail_msg("%ld KB more", after.ru_maxrss - before.ru_maxrss);
    free(bytes);
#endif
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH_STORE(test_blob_s3__memory_is_bounded), /* first: the peak is this test's */
        WITH_STORE(test_blob_s3__write_and_read),
        WITH_STORE(test_blob_s3__large_ones_go_in_parts),
        WITH_STORE(test_blob_s3__known_ones_pass_in_one_request),
        WITH_STORE(test_blob_s3__a_server_that_does_not_look_gets_parts),
        WITH_STORE(test_blob_s3__wrong_digest_leaves_nothing),
        WITH_STORE(test_blob_s3__damage_is_found),
        WITH_STORE(test_blob_s3__a_cache_keeps_what_was_read),
        WITH_STORE(test_blob_s3__addresses),
        WITH_STORE(test_blob_s3__in_pieces),
        WITH_STORE(test_blob_s3__in_pieces_encrypted_by_the_server),
        WITH_STORE(test_blob_s3__small_and_dropped_sessions),
        WITH_STORE(test_blob_s3__pieces_that_cross_are_found),
        WITH_STORE(test_blob_s3__rests_that_cross_do_not_meet),
        WITH_STORE(test_blob_s3__a_rest_of_before_is_taken),
        WITH_STORE(test_blob_s3__survives_what_passes),
        WITH_STORE(test_blob_s3__what_passes_fails_once),
        WITH_STORE(test_blob_s3__a_slow_clients_bytes_go_on),
        WITH_STORE(test_blob_s3__finds_what_was_changed_on_the_way),
        WITH_STORE(test_blob_s3__a_dead_connection_is_given_up),
    };
    s3_fixture_choose(argc, argv);
    s3_fixture_start("memstore");
    s3_proxy_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return s3_fixture_end(failed);
}
