/* What a blob store in S3 holds beside blobs: it is walked and removed, and nothing that a blob may be made
 * of is completed twice, aborted or removed. */
#include "tests/s3/blobs_fixture.h"

struct walk {
    struct mlo_digest digest;
    int blobs, kinds[MLO_LEFTOVER_KINDS], alive;
    struct mlo_blob_store *store, *drop; /* drop: removes what it sees, but for the quarantine */
    char session[MLO_BLOB_SESSION_ID_SIZE];
};

static enum mlo_status on_blob(void *arg, const struct mlo_blob_entry *entry, struct mlo_error *err)
{
    struct walk *w = arg;
    MLO_UNUSED(err);
    w->digest = entry->digest;
    w->blobs++;
    int64_t age_us = mlo_clock_utc_us() - entry->modified_us;
    assert_true(entry->size_bytes == 8 && age_us < 3600ll * 1000000 && age_us > -3600ll * 1000000);
    return MLO_OK;
}

static enum mlo_status on_rest(void *arg, const struct mlo_blob_leftover *left, struct mlo_error *err)
{
    struct walk *w = arg;
    struct mlo_blob_leftover looked = *left;
    assert_int_equal(mlo_blob_leftover_look(w->store, &looked, err), MLO_OK);
    if (looked.alive) {
        w->alive++;
        return MLO_OK;
    }
    w->kinds[left->kind]++;
    if (*left->session)
        snprintf(w->session, sizeof w->session, "%s", left->session);
    return w->drop && left->kind != MLO_LEFTOVER_QUARANTINE ? mlo_blob_leftover_drop(w->drop, left, NULL, err)
                                                            : MLO_OK;
}

static void test_blob_s3__is_walked_removed_and_put_aside(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    struct mlo_blob_session session;
    struct walk w = {0};
    char *aside;
    assert_ok(mlo_blob_put_bytes(p->store, "precious", 8, &digest, &err));
    for (unsigned shard = 0; shard < MLO_BLOB_SHARDS; shard++)
        assert_ok(mlo_blob_list(p->store, shard, on_blob, &w, &err));
    assert_int_equal(w.blobs, 1);
    assert_true(mlo_digest_eq(&w.digest, &digest));

    assert_ok(mlo_blob_put_aside(p->store, &digest, &aside, &err));
    assert_true(mlo_str_starts(aside, "quarantine/"));
    free(aside);
    assert_false(mlo_blob_exists(p->store, &digest));
    assert_int_equal(mlo_blob_put_aside(p->store, &digest, &aside, &err), MLO_ENOTFOUND);
    assert_ok(mlo_blob_put_bytes(p->store, "precious", 8, &digest, &err));
    assert_ok(mlo_blob_remove(p->store, &digest, &err));
    assert_ok(mlo_blob_remove(p->store, &digest, &err)); /* again: fine */
    assert_false(mlo_blob_exists(p->store, &digest));

    assert_ok(mlo_blob_session_begin(p->store, &session, &err));
    w = (struct walk){.store = p->store, .drop = p->store};
    assert_ok(mlo_blob_leftovers(p->store, on_rest, &w, &err));
    assert_int_equal(w.kinds[MLO_LEFTOVER_QUARANTINE], 1);
    assert_int_equal(w.kinds[MLO_LEFTOVER_MULTIPART], 1);
    assert_string_equal(w.session, session.id);
    w = (struct walk){.store = p->store};
    assert_ok(mlo_blob_leftovers(p->store, on_rest, &w, &err));
    assert_int_equal(w.kinds[MLO_LEFTOVER_QUARANTINE], 1);
    assert_int_equal(w.kinds[MLO_LEFTOVER_MULTIPART], 0);
}

/* Begins one of the first `size` bytes, in parts as the store makes them. */
static void leave_upload(struct place *p, const char *key, const char *bytes, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_s3_part part;
    char *upload;
    int number = 0;
    assert_ok(mlo_s3_multipart_create(p->s3, key, &upload, &err));
    for (size_t at = 0; at < size; at += PART)
        assert_ok(mlo_s3_multipart_put(p->s3, key, upload, ++number, bytes + at,
                                       MLO_MIN(size - at, (size_t)PART), &part, &err));
    free(upload);
}

static void be_busy_once(void)
{
    s3_proxy_set(S3_FAULT_BUSY, 1, 0);
}

/* Of an S3 server that was killed while it completed an upload the object is there, and the upload as well;
 * on Ceph the bytes go with the upload. Such a one cannot be told from another with the same parts: both stay
 * as long as the object. */
static void test_blob_s3__an_upload_that_a_blob_may_be_made_of_is_left(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    char *bytes = large_bytes();
    assert_ok(put_large(p->store, bytes, true, &digest, &err));
    struct tally t = tally(p);
    assert_int_equal(t.blobs, 1);
    leave_upload(p, t.key, bytes, LARGE);
    leave_upload(p, t.key, bytes, 2 * PART);                   /* too few parts */
    leave_upload(p, t.key, bytes, 0);                          /* none */
    leave_upload(p, "models/sha256/ab/cd/abcd", bytes, LARGE); /* of an object that is not there */
    leave_upload(p, "models/incoming/abcd", bytes, LARGE);
    assert_holds(p, 1, 0, 5);
    struct mlo_blob_store *store = open_store(p, s3_proxy.endpoint, "&attempts=1");
    s3_proxy.then = be_busy_once; /* at the first one, which is under incoming/: what is not known is left */
    snprintf(s3_proxy.seldom, sizeof s3_proxy.seldom, "HEAD /");
    struct walk w = {.store = store};
    assert_ok(mlo_blob_leftovers(p->store, on_rest, &w, &err));
    s3_proxy_assert_struck();
    assert_int_equal(w.alive, 2);
    mlo_blob_store_close(store);
    w = (struct walk){.store = p->store, .drop = p->store};
    assert_ok(mlo_blob_leftovers(p->store, on_rest, &w, &err));
    assert_int_equal(w.kinds[MLO_LEFTOVER_MULTIPART], 4);
    assert_int_equal(w.alive, 1);
    assert_holds(p, 1, 0, 1);
    assert_large(p->store, bytes, &digest);
    assert_ok(mlo_blob_remove(p->store, &digest, &err));
    w = (struct walk){.store = p->store, .drop = p->store};
    assert_ok(mlo_blob_leftovers(p->store, on_rest, &w, &err));
    assert_int_equal(w.kinds[MLO_LEFTOVER_MULTIPART], 1);
    assert_int_equal(w.alive, 0);
    assert_holds(p, 0, 0, 0);
    free(bytes);
}

static void lose_answer(void)
{
    s3_proxy_set(S3_FAULT_LOST_ANSWER, 1, 0);
}

/* Ceph would free what the object is made of. */
static void test_blob_s3__nothing_is_completed_twice(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    struct mlo_blob_store *store = open_store(p, s3_proxy.endpoint, "");
    char *bytes = large_bytes();
    for (int expecting = 0; expecting < 2; expecting++) {
        atomic_store(&s3_proxy.completes, 0);
        s3_proxy.then = lose_answer;
        snprintf(s3_proxy.seldom, sizeof s3_proxy.seldom, "?uploadId=");
        assert_ok(put_large(store, bytes, expecting, &digest, &err));
        s3_proxy_assert_struck();
        assert_int_equal(atomic_load(&s3_proxy.completes), 1);
        assert_large(p->store, bytes, &digest);
        assert_holds(p, 1, 0, 0);
        assert_ok(mlo_blob_remove(p->store, &digest, &err));
    }
    mlo_blob_store_close(store);
    free(bytes);
}

/* For the completion, two looks at the object, the second with two attempts: an abort would come through. */
static void be_busy(void)
{
    s3_proxy_set(S3_FAULT_BUSY, 4, 0);
}

/* An S3 server that did not say whether it has completed an upload may do so yet: aborting it then could take
 * the object's bytes. */
static void test_blob_s3__what_may_be_completed_is_not_aborted(void **state)
{
    struct place *p = *state;
    struct mlo_error err = {0};
    struct mlo_digest digest;
    struct mlo_blob_store *store = open_store(p, s3_proxy.endpoint, "&attempts=2");
    char *bytes = large_bytes();
    for (int expecting = 0; expecting < 2; expecting++) {
        s3_proxy.then = be_busy;
        snprintf(s3_proxy.seldom, sizeof s3_proxy.seldom, "?uploadId=");
        assert_int_equal(put_large(store, bytes, expecting, &digest, &err), MLO_EUNAVAILABLE);
        s3_proxy_assert_struck();
        assert_holds(p, 0, 0, 1);
        struct walk w = {.store = p->store, .drop = p->store};
        assert_ok(mlo_blob_leftovers(p->store, on_rest, &w, &err));
        assert_int_equal(w.kinds[MLO_LEFTOVER_MULTIPART], 1);
        assert_holds(p, 0, 0, 0);
    }
    mlo_blob_store_close(store);
    free(bytes);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH_STORE(test_blob_s3__is_walked_removed_and_put_aside),
        WITH_STORE(test_blob_s3__an_upload_that_a_blob_may_be_made_of_is_left),
        WITH_STORE(test_blob_s3__nothing_is_completed_twice),
        WITH_STORE(test_blob_s3__what_may_be_completed_is_not_aborted),
    };
    s3_fixture_choose(argc, argv);
    s3_fixture_start("memstore");
    s3_proxy_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return s3_fixture_end(failed);
}
