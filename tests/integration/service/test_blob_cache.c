/* The worker's cache of blobs: checked whenever they are given out, bounded, shared, and whole after any
 * crash. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pipeline/service/blob_cache_impl.h"
#include "tests/pg_fixture.h"

enum { SIZE = 64 << 10 };

struct fixture {
    char *dir, *cache, *scratch;
    struct mlo_blob_cache options;
    struct mlo_error err;
    int fetched; /* how often the store was asked; counted by one thread's tests only */
    bool broken; /* the store has other bytes */
};

/* Blob number n: its bytes and digest. */
static void blob(int n, char bytes[SIZE], struct mlo_digest *digest)
{
    memset(bytes, n, SIZE);
    memcpy(bytes, &n, sizeof n);
    mlo_digest_of(bytes, SIZE, digest);
}

/* The store of objects: it knows the blobs 0 to 255. */
static enum mlo_status fetch(void *arg, const struct mlo_digest *digest, const char *scratch, char **path,
                             struct mlo_error *err)
{
    struct fixture *f = arg;
    char bytes[SIZE];
    struct mlo_digest have;
    for (int n = 0; n < 256; n++) {
        blob(n, bytes, &have);
        if (!mlo_digest_eq(&have, digest))
            continue;
        __atomic_add_fetch(&f->fetched, 1, __ATOMIC_RELAXED);
        if (f->broken)
            return mlo_error_set(err, MLO_EDIGEST, "other bytes");
        *path = mlo_fs_join(scratch, "fetched", NULL);
        return mlo_fs_write_atomic(*path, bytes, SIZE, err);
    }
    return mlo_error_set(err, MLO_ENOTFOUND, "no such blob");
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlopt-cache-", &f->dir, &f->err), &f->err);
    f->cache = mlo_fs_join(f->dir, "blobs", NULL);
    f->scratch = mlo_fs_join(f->dir, "scratch", NULL);
    assert_mlo_ok(mlo_fs_mkdirs(f->scratch, &f->err), &f->err);
    f->options = (struct mlo_blob_cache){.dir = f->cache, .scratch = f->scratch, .max_bytes = 4 * SIZE};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    mlo_fs_remove_tree(f->dir);
    free(f->dir);
    free(f->cache);
    free(f->scratch);
    free(f);
    return 0;
}

static size_t files_in(const char *dir)
{
    glob_t found = {0};
    char *pattern = mlo_fs_join(dir, "*", NULL);
    size_t n = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    free(pattern);
    return n;
}

/* Places blob n, checks its bytes, and says whether the cache had it. */
static bool place(struct fixture *f, int n)
{
    char bytes[SIZE], *to = mlo_fs_join(f->dir, "to", NULL);
    struct mlo_digest digest, have;
    struct stat st;
    bool hit = false;
    blob(n, bytes, &digest);
    assert_mlo_ok(mlo_blob_cache_place(&f->options, &digest, fetch, f, to, &hit, &f->err), &f->err);
    assert_mlo_ok(mlo_digest_of_file(to, &have, NULL, &f->err), &f->err);
    assert_true(mlo_digest_eq(&have, &digest));
    assert_true(lstat(to, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0222) == 0);
    assert_int_equal(unlink(to), 0);
    assert_int_equal(files_in(f->scratch), 0);
    free(to);
    return hit;
}

static char *kept(struct fixture *f, int n)
{
    char bytes[SIZE], hex[MLO_DIGEST_TEXT_SIZE], name[MLO_DIGEST_TEXT_SIZE + 8];
    struct mlo_digest digest;
    blob(n, bytes, &digest);
    snprintf(name, sizeof name, "%s.blob", mlo_digest_hex(&digest, hex));
    return mlo_fs_join(f->cache, name, NULL);
}

static void test_blob_cache__asks_the_store_once(void **state)
{
    struct fixture *f = *state;
    assert_false(place(f, 1));
    assert_true(place(f, 1));
    assert_true(place(f, 1));
    assert_int_equal(f->fetched, 1);
}

static void test_blob_cache__is_bounded_and_drops_what_was_used_longest_ago(void **state)
{
    struct fixture *f = *state;
    for (int n = 0; n < 4; n++) {
        char *path = kept(f, n);
        const struct timespec old[2] = {{1000 + n, 0}, {1000 + n, 0}};
        assert_false(place(f, n));
        assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
        free(path);
    }
    assert_true(place(f, 0)); /* used now, and so not the next to go */
    assert_false(place(f, 4));
    assert_int_equal(files_in(f->cache), 4);
    assert_true(place(f, 0));
    assert_true(place(f, 4));
    assert_false(place(f, 1));
    f->options.max_bytes = 1; /* too small for any: the last one stays */
    assert_false(place(f, 9));
    assert_int_equal(files_in(f->cache), 1);
}

static void test_blob_cache__gives_out_no_damaged_bytes(void **state)
{
    struct fixture *f = *state;
    char *path = kept(f, 1);
    assert_false(place(f, 1));
    assert_int_equal(chmod(path, 0644), 0);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "X", 1, SIZE / 2), 1); /* one byte, at the same size */
    close(fd);
    assert_false(place(f, 1));
    assert_true(place(f, 1));
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(truncate(path, 0), 0); /* as after a loss of power */
    assert_false(place(f, 1));
    assert_int_equal(f->fetched, 3);
    free(path);
}

static void test_blob_cache__keeps_nothing_that_the_store_has_wrong(void **state)
{
    struct fixture *f = *state;
    char bytes[SIZE], *to = mlo_fs_join(f->dir, "to", NULL);
    struct mlo_digest digest;
    blob(1, bytes, &digest);
    f->broken = true;
    assert_mlo_status(mlo_blob_cache_place(&f->options, &digest, fetch, f, to, NULL, &f->err), MLO_EDIGEST,
                      &f->err);
    assert_false(mlo_fs_exists(to));
    assert_int_equal(files_in(f->cache), 0);
    assert_int_equal(files_in(f->scratch), 0);
    free(to);
}

/* A job's input is on the same disk: gone from the cache, it is still there. */
static void test_blob_cache__takes_nothing_away_from_a_job(void **state)
{
    struct fixture *f = *state;
    char bytes[SIZE], *to = mlo_fs_join(f->dir, "job", NULL), *path = kept(f, 1);
    struct mlo_digest digest, have;
    blob(1, bytes, &digest);
    assert_mlo_ok(mlo_blob_cache_place(&f->options, &digest, fetch, f, to, NULL, &f->err), &f->err);
    for (int n = 10; n < 20; n++)
        place(f, n);
    assert_false(mlo_fs_exists(path));
    assert_mlo_ok(mlo_digest_of_file(to, &have, NULL, &f->err), &f->err);
    assert_true(mlo_digest_eq(&have, &digest));
    free(to);
    free(path);
}

struct user {
    pthread_t thread;
    struct fixture *f;
    unsigned seed;
    int wrong;
};

/* Threads and processes use it at once, in less room than what they ask for. */
static void *use(void *arg)
{
    struct user *u = arg;
    struct mlo_error err = {0};
    for (int i = 0; i < 60; i++) {
        char bytes[SIZE], name[64];
        struct mlo_digest digest, have;
        int n = rand_r(&u->seed) % 8;
        blob(n, bytes, &digest);
        snprintf(name, sizeof name, "to-%u-%d", u->seed, (int)getpid());
        char *to = mlo_fs_join(u->f->dir, name, NULL);
        if (mlo_blob_cache_place(&u->f->options, &digest, fetch, u->f, to, NULL, &err) != MLO_OK ||
            mlo_digest_of_file(to, &have, NULL, &err) != MLO_OK || !mlo_digest_eq(&have, &digest))
            u->wrong++;
        unlink(to);
        free(to);
    }
    return NULL;
}

static int use_by_threads(struct fixture *f, unsigned seed)
{
    enum { THREADS = 3 };
    struct user users[THREADS];
    int wrong = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        users[i] = (struct user){.f = f, .seed = seed + i * 7919};
        assert_int_equal(pthread_create(&users[i].thread, NULL, use, &users[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(users[i].thread, NULL);
        wrong += users[i].wrong;
    }
    return wrong;
}

static void test_blob_cache__is_shared(void **state)
{
    struct fixture *f = *state;
    pid_t other = fork();
    if (other == 0)
        _exit(use_by_threads(f, 100000) == 0 ? 0 : 1);
    int status, wrong = use_by_threads(f, 1);
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_int_equal(wrong, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(files_in(f->cache) <= 8);
}

/* Killed wherever it is: what the cache has afterwards is whole. */
static void test_blob_cache__survives_a_kill(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 10; i++) {
        pid_t victim = fork();
        if (victim == 0) {
            struct user u = {.f = f, .seed = (unsigned)i};
            for (;;)
                use(&u);
        }
        usleep((useconds_t)(i * 700));
        kill(victim, SIGKILL);
        waitpid(victim, NULL, 0);
        mlo_fs_remove_tree(f->scratch); /* as the next worker does */
        assert_mlo_ok(mlo_fs_mkdirs(f->scratch, &f->err), &f->err);
        for (int n = 0; n < 4; n++)
            place(f, n);
    }
}

int main(void)
{
    mlo_log_setup(MLO_LOG_ERROR, MLO_LOG_TEXT, 2, "test");
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_blob_cache__asks_the_store_once),
        TEST(test_blob_cache__is_bounded_and_drops_what_was_used_longest_ago),
        TEST(test_blob_cache__gives_out_no_damaged_bytes),
        TEST(test_blob_cache__keeps_nothing_that_the_store_has_wrong),
        TEST(test_blob_cache__takes_nothing_away_from_a_job),
        TEST(test_blob_cache__is_shared),
        TEST(test_blob_cache__survives_a_kill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
