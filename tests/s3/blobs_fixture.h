/* A blob store in a bucket, and the bucket beside it: what test_blobs.c and test_leftovers.c share. */
#ifndef MLO_TESTS_S3_BLOBS_FIXTURE_H
#define MLO_TESTS_S3_BLOBS_FIXTURE_H

#include "registry/blob.h"
#include "registry/blob_impl.h"
#include "registry/blob_upkeep.h"
#include "tests/s3/proxy.h"

enum { LARGE = (20 << 20) + 12345, PART = 8 << 20 };

struct place {
    struct mlo_s3 *s3; /* the bucket, past the store */
    struct mlo_blob_store *store;
    char *dir, bucket[32];
    struct mlo_error err;
};

static inline struct mlo_blob_store *open_store(const struct place *p, const char *endpoint, const char *more)
{
    struct mlo_error err = {0};
    struct mlo_blob_store *store = NULL;
    struct mlo_buf url = MLO_BUF_INIT;
    mlo_buf_printf(&url, "s3:%s/models/?endpoint=%s&region=us-east-1&scratch=%s%s", p->bucket, endpoint,
                   p->dir, more);
    assert_ok(mlo_blob_store_open(mlo_buf_str(&url), &store, &err));
    mlo_buf_clear(&url);
    return store;
}

static inline int setup(void **state)
{
    static int number;
    struct mlo_error err = {0};
    struct place *p = calloc(1, sizeof *p);
    snprintf(p->bucket, sizeof p->bucket, "blobs-%d", ++number);
    assert_ok(mlo_fs_tempdir(NULL, "s3-blobs-", &p->dir, &err));
    p->s3 = s3_fixture_open(p->bucket);
    p->store = open_store(p, s3_server.endpoint, "");
    s3_proxy_set(S3_FAULT_NONE, 0, 0);
    *state = p;
    return 0;
}

static inline int teardown(void **state)
{
    struct place *p = *state;
    mlo_blob_store_close(p->store);
    mlo_s3_close(p->s3);
    mlo_fs_remove_tree(p->dir);
    free(p->dir);
    free(p);
    return 0;
}

/* --- what the bucket holds ------------------------------------------------------------------------- */

struct tally {
    int blobs, others, uploads;
    char key[128]; /* of a blob */
};

static inline enum mlo_status tally_entry(void *arg, const struct mlo_s3_entry *entry, struct mlo_error *err)
{
    struct tally *t = arg;
    MLO_UNUSED(err);
    if (entry->upload)
        t->uploads++;
    else if (mlo_str_starts(entry->key, "models/sha256/"))
        t->blobs++, snprintf(t->key, sizeof t->key, "%s", entry->key);
    else
        t->others++;
    return MLO_OK;
}

static inline struct tally tally(struct place *p)
{
    struct tally t = {0};
    struct mlo_error err = {0};
    assert_ok(mlo_s3_list(p->s3, "", tally_entry, &t, &err));
    assert_ok(mlo_s3_list_uploads(p->s3, "", tally_entry, &t, &err));
    return t;
}

#define assert_holds(p, blobs_, others_, uploads_)                                                           \
    do {                                                                                                     \
        struct tally t_ = tally(p);                                                                          \
        assert_int_equal(t_.blobs, blobs_);                                                                  \
        assert_int_equal(t_.others, others_);                                                                \
        assert_int_equal(t_.uploads, uploads_);                                                              \
    } while (0)

static inline char *large_bytes(void)
{
    char *bytes = malloc(LARGE);
    unsigned seed = 7;
    for (size_t i = 0; i < LARGE; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (char)(seed >> 24);
    }
    return bytes;
}

/* Writes in uneven pieces, as a network brings them. */
static inline enum mlo_status write_all(struct mlo_blob_writer *w, const char *bytes, size_t size,
                                        struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t at = 0, n; status == MLO_OK && at < size; at += n) {
        n = MLO_MIN(size - at, (size_t)300007);
        status = mlo_blob_writer_write(w, bytes + at, n, err);
    }
    return status;
}

static inline enum mlo_status put_large(struct mlo_blob_store *store, const char *bytes, bool expecting,
                                        struct mlo_digest *digest, struct mlo_error *err)
{
    struct mlo_blob_writer *w = NULL;
    enum mlo_status status;
    mlo_digest_of(bytes, LARGE, digest);
    MLO_TRY(mlo_blob_writer_open_expecting(store, expecting ? digest : NULL, expecting ? LARGE : 0, &w, err));
    MLO_TRY(write_all(w, bytes, LARGE, err));
    MLO_TRY(mlo_blob_writer_commit(w, digest, NULL, NULL, err));
out:
    mlo_blob_writer_free(w);
    return status;
}

static inline void assert_large(struct mlo_blob_store *store, const char *bytes,
                                const struct mlo_digest *digest)
{
    struct mlo_error err = {0};
    struct mlo_buf got = MLO_BUF_INIT;
    assert_ok(mlo_blob_read(store, digest, LARGE, &got, &err));
    assert_int_equal(got.len, LARGE);
    assert_memory_equal(got.data, bytes, LARGE);
    mlo_buf_clear(&got);
}

#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

#endif
