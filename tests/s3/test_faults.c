/* The S3 server fails: overloaded, full, hanging, killed. What was acknowledged is there afterwards, what was
 * not is refused with a reason. */
#include <pthread.h>
#include <signal.h>

#include "registry/blob.h"
#include "tests/s3_fixture.h"

enum { LARGE = 20 << 20, WRITERS = 8, MORE_S = 80, STEP = 256 << 10 /* as a connection gives bytes */ };

static struct mlo_blob_store *open_store(const char *more)
{
    struct mlo_error err = {0};
    struct mlo_blob_store *store = NULL;
    struct mlo_buf url = MLO_BUF_INIT;
    mlo_s3_close(s3_fixture_open("faults"));
    mlo_buf_printf(&url, "s3:faults/x?endpoint=%s%s", s3_server.endpoint, more);
    assert_ok(mlo_blob_store_open(mlo_buf_str(&url), &store, &err));
    mlo_buf_clear(&url);
    return store;
}

/* passing: as the PUT of a client, which a large blob goes through in one request. */
static enum mlo_status put_seeded(struct mlo_blob_store *store, unsigned seed, size_t size, bool passing,
                                  struct mlo_digest *digest, struct mlo_error *err)
{
    char *bytes = malloc(size);
    for (size_t i = 0; i < size; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (char)(seed >> 24);
    }
    struct mlo_blob_writer *w = NULL;
    enum mlo_status status;
    mlo_digest_of(bytes, size, digest);
    if (passing)
        MLO_TRY(mlo_blob_writer_open_passing(store, digest, size, &w, err));
    else
        MLO_TRY(mlo_blob_writer_open(store, &w, err));
    for (size_t at = 0; at < size; at += STEP)
        MLO_TRY(mlo_blob_writer_write(w, bytes + at, MLO_MIN(size - at, (size_t)STEP), err));
    MLO_TRY(mlo_blob_writer_commit(w, NULL, digest, NULL, err));
out:
    mlo_blob_writer_free(w);
    free(bytes);
    return status;
}

static void assert_readable(struct mlo_blob_store *store, const struct mlo_digest *digest)
{
    struct mlo_error err = {0};
    struct mlo_buf got = MLO_BUF_INIT;
    assert_ok(mlo_blob_read(store, digest, LARGE, &got, &err));
    mlo_buf_clear(&got);
}

/* --- 503 SlowDown --------------------------------------------------------------------------------------- */

struct writer {
    struct mlo_blob_store *store;
    unsigned seed;
    struct mlo_digest digest;
    enum mlo_status status;
    struct mlo_error err;
};

static void *write_some(void *arg)
{
    struct writer *w = arg;
    for (int i = 0; i < 5 && w->status == MLO_OK; i++)
        w->status = put_seeded(w->store, w->seed + (unsigned)i, 3 << 20, false, &w->digest, &w->err);
    return NULL;
}

static void test_s3_faults__an_overloaded_server_gets_it_in_the_end(void **state)
{
    MLO_UNUSED(state);
    struct mlo_blob_store *store = open_store("&attempts=100");
    struct writer writers[WRITERS] = {{0}};
    pthread_t threads[WRITERS];
    s3_fixture_admin("ceph daemon \"$PWD\"/run/client.rgw.asok config set rgw_max_concurrent_requests 1");
    for (unsigned i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){.store = store, .seed = 100 * i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_some, &writers[i]), 0);
    }
    for (size_t i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    s3_fixture_admin("ceph daemon \"$PWD\"/run/client.rgw.asok config set rgw_max_concurrent_requests 1024");
    for (size_t i = 0; i < WRITERS; i++) {
        if (writers[i].status != MLO_OK)
            fail_msg("%s", writers[i].err.message);
        assert_readable(store, &writers[i].digest);
    }
    mlo_blob_store_close(store);
}

/* --- quota ------------------------------------------------------------------------------------------- */

static void test_s3_faults__a_full_quota_is_no_space(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_digest digest;
    struct mlo_blob_store *store = open_store("&uploads=stream");
    s3_fixture_admin("radosgw-admin quota set --quota-scope=user --uid=test --max-size=1048576");
    s3_fixture_admin("radosgw-admin quota enable --quota-scope=user --uid=test");
    enum mlo_status small = MLO_OK, large;
    /* the gateway counts now and then */
    for (int i = 0; i < 600 && small == MLO_OK; i++) {
        small = put_seeded(store, 7000 + (unsigned)i, 1 << 20, false, &digest, &err);
        mlo_clock_sleep_ms(small == MLO_OK ? 100 : 0);
    }
    assert_int_equal(small, MLO_ENOSPC);
    assert_contains(err.message, "403 QuotaExceeded");
    assert_contains(err.hint, "quota");
    for (int passing = 0; passing < 2; passing++) {
        large = put_seeded(store, 8000, LARGE, passing, &digest, &err);
        assert_int_equal(large, MLO_ENOSPC);
        assert_contains(err.hint, "quota");
        assert_false(mlo_blob_exists(store, &digest));
    }
    s3_fixture_admin("radosgw-admin quota disable --quota-scope=user --uid=test");
    enum mlo_status again = MLO_ENOSPC;
    for (int i = 0; i < 600 && again == MLO_ENOSPC; i++) {
        again = put_seeded(store, 8000, LARGE, true, &digest, &err);
        mlo_clock_sleep_ms(again == MLO_OK ? 0 : 100);
    }
    if (again != MLO_OK)
        fail_msg("%s", err.message);
    assert_readable(store, &digest);
    mlo_blob_store_close(store);
}

/* --- a server that hangs ----------------------------------------------------------------------------- */

/* Whatever became of the test: the tests that follow have a server. */
static int wake_osd(void **state)
{
    MLO_UNUSED(state);
    return kill(s3_fixture_pid("osd"), SIGCONT);
}

static void test_s3_faults__a_hanging_server_is_given_up_and_works_again(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_digest digest, large;
    struct mlo_blob_store *store = open_store("&timeout=2&attempts=2&uploads=stream");
    mlo_digest_of("hello", 5, &digest);
    assert_ok(
        put_seeded(store, 2, LARGE, true, &large, &err)); /* it is known that the server checks digests */
    pid_t osd = s3_fixture_pid("osd");
    assert_int_equal(kill(osd, SIGSTOP), 0);
    assert_int_equal(mlo_blob_put_bytes(store, "hello", 5, NULL, &err), MLO_ETIMEOUT);
    assert_contains(err.message, "after 2 attempts");
    assert_contains(err.hint, "hangs");
    assert_int_equal(put_seeded(store, 1, LARGE, false, &large, &err), MLO_ETIMEOUT);
    assert_int_equal(put_seeded(store, 1, LARGE, true, &large, &err), MLO_ETIMEOUT);
    assert_int_equal(kill(osd, SIGCONT), 0);
    mlo_blob_store_close(store);
    store = open_store("&timeout=15&attempts=5&uploads=stream");
    assert_ok(mlo_blob_put_bytes(store, "hello", 5, NULL, &err));
    assert_readable(store, &digest);
    assert_ok(put_seeded(store, 1, LARGE, true, &large, &err));
    assert_readable(store, &large);
    mlo_blob_store_close(store);
}

/* --- kill -9 ----------------------------------------------------------------------------------------- */

struct stream {
    struct mlo_blob_store *store;
    struct mlo_digest done[400];
    unsigned count; /* acknowledged */
    bool stop;
    struct mlo_error err; /* of the last that was not */
    pthread_mutex_t lock;
};

static void *keep_writing(void *arg)
{
    struct stream *s = arg;
    for (unsigned seed = 50000; s->count < MLO_COUNT(s->done); seed++) {
        struct mlo_error err = {0};
        struct mlo_digest digest;
        size_t size = seed % 7 == 0 ? 17 << 20 : 100000;
        pthread_mutex_lock(&s->lock);
        bool stop = s->stop;
        pthread_mutex_unlock(&s->lock);
        if (stop)
            break;
        enum mlo_status status = put_seeded(s->store, seed, size, seed % 2, &digest, &err);
        pthread_mutex_lock(&s->lock);
        if (status == MLO_OK)
            s->done[s->count++] = digest;
        else
            s->err = err;
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

static unsigned done(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    unsigned count = s->count;
    pthread_mutex_unlock(&s->lock);
    return count;
}

static bool more_came(struct stream *s, unsigned more)
{
    unsigned wanted = MLO_MIN(done(s) + more, (unsigned)MLO_COUNT(s->done));
    uint64_t deadline = mlo_clock_ns() + MORE_S * 1000000000ull;
    while (done(s) < wanted && mlo_clock_ns() < deadline)
        mlo_clock_sleep_ms(20);
    return done(s) >= wanted;
}

static void test_s3_faults__killed_amid_writes_it_lost_nothing_acknowledged(void **state)
{
    MLO_UNUSED(state);
    struct stream s = {.store = open_store("&timeout=5&attempts=6&uploads=stream"),
                       .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, keep_writing, &s), 0);
    bool came = more_came(&s, 5);
    if (came) {
        s3_fixture_command("restart rgw");
        came = more_came(&s, 5);
    }
    if (came) {
        s3_fixture_command("restart all");
        came = more_came(&s, 5);
    }
    pthread_mutex_lock(&s.lock);
    s.stop = true;
    pthread_mutex_unlock(&s.lock);
    pthread_join(thread, NULL);
    if (!came)
        fail_msg("after %u blobs no 5 more were stored within %d s: %s", s.count, MORE_S, s.err.message);
    for (unsigned i = 0; i < s.count; i++)
        assert_readable(s.store, &s.done[i]);
    mlo_blob_store_close(s.store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_s3_faults__an_overloaded_server_gets_it_in_the_end),
        cmocka_unit_test(test_s3_faults__a_full_quota_is_no_space),
        cmocka_unit_test_teardown(test_s3_faults__a_hanging_server_is_given_up_and_works_again, wake_osd),
        cmocka_unit_test(test_s3_faults__killed_amid_writes_it_lost_nothing_acknowledged),
    };
    s3_fixture_start("bluestore"); /* it must remember */
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return s3_fixture_end(failed);
}
