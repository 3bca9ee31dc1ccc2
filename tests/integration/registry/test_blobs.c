/* The file blob store: digests, full disks, what killed writers leave. */
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "registry/blob.h"
#include "registry/blob_upkeep.h"

#define assert_ok(expr, err)                                                                                 \
    do {                                                                                                     \
        if ((expr) != MLO_OK)                                                                                \
            fail_msg("%s: %s", #expr, (err)->message);                                                       \
    } while (0)

struct place {
    char *dir, *root;
    struct mlo_blob_store *store;
    struct mlo_error err;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    assert_ok(mlo_fs_tempdir(NULL, "blobs-", &p->dir, &p->err), &p->err);
    p->root = mlo_fs_join(p->dir, "store", NULL);
    struct mlo_buf url = MLO_BUF_INIT;
    mlo_buf_printf(&url, "file:%s", p->root);
    assert_ok(mlo_blob_store_open(mlo_buf_str(&url), &p->store, &p->err), &p->err);
    mlo_buf_clear(&url);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    mlo_blob_store_close(p->store);
    mlo_fs_remove_tree(p->dir);
    free(p->dir);
    free(p->root);
    free(p);
    return 0;
}

static size_t count_files(const struct place *p, const char *pattern)
{
    char *path = mlo_fs_join(p->root, pattern, NULL);
    glob_t found;
    size_t n = glob(path, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    if (n)
        globfree(&found);
    free(path);
    return n;
}

/* --- calls that are looked at (tests/CMakeLists.txt: --wrap)
 * ------------------------------------------------ */

static struct {
    char paths[64][256]; /* of what was synced */
    size_t count;
} synced;
static void (*before_lock)(void); /* once */

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    char entry[40];
    snprintf(entry, sizeof entry, "/proc/self/fd/%d", fd);
    if (synced.count < MLO_COUNT(synced.paths)) {
        char *path = synced.paths[synced.count];
        ssize_t n = readlink(entry, path, sizeof synced.paths[0] - 1);
        path[n < 0 ? 0 : n] = '\0';
        synced.count++;
    }
    return __real_fsync(fd);
}

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation)
{
    void (*call)(void) = before_lock;
    before_lock = NULL;
    if (call)
        call();
    return __real_flock(fd, operation);
}

static size_t times_synced(const struct place *p, const char *folder)
{
    char *path = mlo_fs_join(p->root, folder, NULL);
    size_t times = 0;
    for (size_t i = 0; i < synced.count; i++)
        times += strcmp(synced.paths[i], path) == 0;
    free(path);
    return times;
}

/* A power cut takes a name whose folder was not synced. Whoever made the folders of a blob, or published it,
 * may have been killed before that: who goes on does it. */
static void test_blob__folders_of_the_killed_are_synced(void **state)
{
    struct place *p = *state;
    struct mlo_blob_session session, again;
    struct mlo_blob_piece *piece;
    struct mlo_digest digest;
    char hex[MLO_DIGEST_TEXT_SIZE], one[16], two[16];
    mlo_digest_of("a blob", 6, &digest);
    mlo_digest_hex(&digest, hex);
    snprintf(one, sizeof one, "sha256/%.2s", hex);
    snprintf(two, sizeof two, "sha256/%.2s/%.2s", hex, hex + 2);
    for (int i = 0; i < 2; i++) {
        char *path = mlo_fs_join(p->root, i ? two : one, NULL);
        assert_int_equal(mkdir(path, 0755), 0);
        free(path);
    }
    synced.count = 0;
    assert_ok(mlo_blob_session_begin(p->store, &session, &p->err), &p->err);
    assert_ok(mlo_blob_piece_open(p->store, &session, &piece, &p->err), &p->err);
    assert_ok(mlo_blob_piece_write(piece, "a blob", 6, &p->err), &p->err);
    assert_ok(mlo_blob_piece_commit(piece, &p->err), &p->err);
    mlo_blob_piece_free(piece);
    again = session;
    again.size_bytes = 5; /* a hash of other bytes is nobody's digest */
    assert_int_equal(mlo_blob_session_publish(p->store, &again, &p->err), MLO_EINTERNAL);
    again = session;
    assert_ok(mlo_blob_session_publish(p->store, &session, &p->err), &p->err);
    assert_int_equal(times_synced(p, "sha256"), 1);
    assert_int_equal(times_synced(p, one), 1);
    assert_int_equal(times_synced(p, two), 1);
    assert_ok(mlo_blob_session_publish(p->store, &again, &p->err), &p->err); /* as after a kill */
    assert_int_equal(times_synced(p, two), 2);
    assert_int_equal(times_synced(p, "sha256") + times_synced(p, one), 2); /* known by now */
    char *path = mlo_fs_join(p->root, two, hex, NULL);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(truncate(path, 3), 0);
    free(path); /* what is there is not it */
    assert_int_equal(mlo_blob_session_publish(p->store, &again, &p->err), MLO_ENOTFOUND);
}

static struct place *racing;
static struct mlo_blob_session racing_session;

static void publish_it(void)
{
    assert_ok(mlo_blob_session_publish(racing->store, &racing_session, &racing->err), &racing->err);
}

/* Between its opening and its lock a file may become a blob: nobody appends to that one. */
static void test_blob__what_was_published_meanwhile_is_not_appended_to(void **state)
{
    struct place *p = racing = *state;
    struct mlo_blob_piece *piece;
    struct mlo_digest digest;
    assert_ok(mlo_blob_session_begin(p->store, &racing_session, &p->err), &p->err);
    assert_ok(mlo_blob_piece_open(p->store, &racing_session, &piece, &p->err), &p->err);
    assert_ok(mlo_blob_piece_write(piece, "whole", 5, &p->err), &p->err);
    assert_ok(mlo_blob_piece_commit(piece, &p->err), &p->err);
    mlo_blob_piece_free(piece);
    struct mlo_blob_session late = racing_session;
    before_lock = publish_it;
    assert_int_equal(mlo_blob_piece_open(p->store, &late, &piece, &p->err), MLO_ENOTFOUND);
    assert_null(before_lock);
    mlo_digest_of("whole", 5, &digest);
    assert_ok(mlo_blob_check(p->store, &digest, NULL, &p->err), &p->err);
}

/* Large ones are hashed by a thread: pieces of any size, an end anywhere, and a writer that gives up. */
static void test_blob__large_ones_hash_the_same(void **state)
{
    static const size_t sizes[] = {(4 << 20) - 1, (4 << 20) + 1, 9 << 20, (12 << 20) + 77};
    static const size_t steps[] = {1 << 20, 65536, 70001, 3 << 20};
    struct place *p = *state;
    size_t most = sizes[MLO_COUNT(sizes) - 1];
    unsigned char *bytes = malloc(most);
    assert_non_null(bytes);
    for (size_t i = 0; i < most; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 24);
    for (size_t s = 0; s < MLO_COUNT(sizes); s++) {
        struct mlo_blob_writer *w;
        struct mlo_digest digest, expected;
        uint64_t size;
        mlo_digest_of(bytes, sizes[s], &expected);
        for (int give_up = 1; give_up >= 0; give_up--) {
            assert_ok(mlo_blob_writer_open(p->store, &w, &p->err), &p->err);
            for (size_t at = 0; at < sizes[s]; at += steps[s])
                assert_ok(mlo_blob_writer_write(w, bytes + at, MLO_MIN(steps[s], sizes[s] - at), &p->err),
                          &p->err);
            if (!give_up) {
                assert_ok(mlo_blob_writer_commit(w, NULL, &digest, &size, &p->err), &p->err);
                assert_true(size == sizes[s]);
                assert_true(mlo_digest_eq(&digest, &expected));
                assert_ok(mlo_blob_check(p->store, &digest, NULL, &p->err), &p->err);
            }
            mlo_blob_writer_free(w);
            assert_true(mlo_blob_exists(p->store, &expected) == !give_up);
        }
    }
    assert_int_equal(count_files(p, "incoming/*"), 0);
    free(bytes);
}

static void test_blob__write_and_read(void **state)
{
    struct place *p = *state;
    struct mlo_blob_writer *w;
    struct mlo_digest digest, expected;
    struct mlo_buf got = MLO_BUF_INIT;
    uint64_t size;
    char *path;
    int fd;
    mlo_digest_of("hello", 5, &expected);
    assert_ok(mlo_blob_writer_open(p->store, &w, &p->err), &p->err);
    assert_ok(mlo_blob_writer_write(w, "hel", 3, &p->err), &p->err);
    assert_false(mlo_blob_exists(p->store, &expected));
    assert_ok(mlo_blob_writer_write(w, "lo", 2, &p->err), &p->err);
    assert_ok(mlo_blob_writer_commit(w, &expected, &digest, &size, &p->err), &p->err);
    mlo_blob_writer_free(w);
    assert_true(mlo_digest_eq(&digest, &expected) && size == 5);
    assert_ok(mlo_blob_read(p->store, &digest, 100, &got, &p->err), &p->err);
    assert_string_equal(mlo_buf_str(&got), "hello");
    assert_int_equal(mlo_blob_read(p->store, &digest, 4, &got, &p->err), MLO_ETOOBIG);
    assert_ok(mlo_blob_open_fd(p->store, &digest, &fd, &size, &p->err), &p->err);
    close(fd);
    assert_ok(mlo_blob_path(p->store, &digest, p->dir, true, &path, &p->err), &p->err);
    assert_int_equal(mlo_fs_size(path), 5);
    assert_ok(mlo_blob_put_file(p->store, path, &digest, NULL, &p->err), &p->err); /* again: fine */
    free(path);
    assert_int_equal(count_files(p, "incoming/*"), 0);
    assert_int_equal(count_files(p, "sha256/*/*/*"), 1);
    mlo_buf_clear(&got);
}

static void test_blob__wrong_digest_leaves_nothing(void **state)
{
    struct place *p = *state;
    struct mlo_blob_writer *w;
    struct mlo_digest other;
    mlo_digest_of("other", 5, &other);
    assert_ok(mlo_blob_writer_open(p->store, &w, &p->err), &p->err);
    assert_ok(mlo_blob_writer_write(w, "hello", 5, &p->err), &p->err);
    assert_int_equal(mlo_blob_writer_commit(w, &other, NULL, NULL, &p->err), MLO_EDIGEST);
    assert_non_null(strstr(p->err.message, "sha256:"));
    mlo_blob_writer_free(w);
    assert_int_equal(count_files(p, "incoming/*") + count_files(p, "sha256/*"), 0);
    assert_ok(mlo_blob_writer_open(p->store, &w, &p->err), &p->err); /* and an abandoned one neither */
    assert_ok(mlo_blob_writer_write(w, "hello", 5, &p->err), &p->err);
    mlo_blob_writer_free(w);
    assert_int_equal(count_files(p, "incoming/*") + count_files(p, "sha256/*"), 0);
}

static void test_blob__absent_is_not_found(void **state)
{
    struct place *p = *state;
    struct mlo_digest digest;
    char *path;
    int fd;
    mlo_digest_of("absent", 6, &digest);
    assert_int_equal(mlo_blob_size(p->store, &digest, NULL, &p->err), MLO_ENOTFOUND);
    assert_int_equal(mlo_blob_open_fd(p->store, &digest, &fd, NULL, &p->err), MLO_ENOTFOUND);
    assert_int_equal(mlo_blob_path(p->store, &digest, p->dir, false, &path, &p->err), MLO_ENOTFOUND);
}

static void test_blob__damage_is_found(void **state)
{
    struct place *p = *state;
    struct mlo_digest digest;
    struct mlo_buf got = MLO_BUF_INIT;
    char *path;
    assert_ok(mlo_blob_put_bytes(p->store, "precious", 8, &digest, &p->err), &p->err);
    assert_ok(mlo_blob_path(p->store, &digest, p->dir, false, &path, &p->err), &p->err);
    assert_int_equal(chmod(path, 0644), 0);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "X", 1, 3), 1);
    close(fd);
    free(path);
    assert_int_equal(mlo_blob_read(p->store, &digest, 100, &got, &p->err), MLO_EDIGEST);
    assert_non_null(strstr(p->err.message, "damaged"));
    assert_int_equal(mlo_blob_path(p->store, &digest, p->dir, true, &path, &p->err), MLO_EDIGEST);
    mlo_buf_clear(&got);
}

static ino_t inode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_ino;
}

/* A job that may read the file may read no other of that name. What is damaged is replaced all the same. */
static void test_blob__written_twice_is_one_file(void **state)
{
    struct place *p = *state;
    struct mlo_digest digest;
    struct mlo_buf got = MLO_BUF_INIT;
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    struct stat st;
    char *path;
    assert_ok(mlo_blob_put_bytes(p->store, "precious", 8, &digest, &p->err), &p->err);
    assert_ok(mlo_blob_path(p->store, &digest, p->dir, false, &path, &p->err), &p->err);
    ino_t first = inode_of(path);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_ok(mlo_blob_put_bytes(p->store, "precious", 8, &digest, &p->err), &p->err);
    assert_true(inode_of(path) == first);
    assert_int_equal(count_files(p, "incoming/*"), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_mtim.tv_sec > 1000); /* young again: no orphan whose time has come */
    assert_int_equal(chmod(path, 0644), 0);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "X", 1, 3), 1);
    close(fd);
    assert_ok(mlo_blob_put_bytes(p->store, "precious", 8, &digest, &p->err), &p->err);
    assert_ok(mlo_blob_read(p->store, &digest, 100, &got, &p->err), &p->err);
    assert_string_equal(mlo_buf_str(&got), "precious");
    mlo_buf_clear(&got);
    free(path);
}

/* Writes so many pieces of 64 KiB; the status of the failure. A digest that is asked for at the end is that
 * of all bytes, also of those that found no room. */
static enum mlo_status write_much(struct place *p, int pieces, bool asks)
{
    struct mlo_blob_writer *w;
    static char piece[1 << 16];
    struct mlo_digest all, asked;
    struct mlo_hasher *hasher = mlo_hasher_new();
    enum mlo_status status = mlo_blob_writer_open(p->store, &w, &p->err);
    for (int i = 0; status == MLO_OK && i < pieces; i++) {
        status = mlo_blob_writer_write(w, piece, sizeof piece, &p->err);
        mlo_hasher_update(hasher, piece, sizeof piece);
    }
    mlo_hasher_final(hasher, &all);
    mlo_hasher_free(hasher);
    if (status == MLO_OK && asks) {
        mlo_blob_writer_digest(w, &asked);
        assert_true(mlo_digest_eq(&asked, &all));
    }
    if (status == MLO_OK)
        status = mlo_blob_writer_commit(w, NULL, NULL, NULL, &p->err);
    mlo_blob_writer_free(w);
    return status;
}

/* An upload's piece: what found no room does not count. */
static enum mlo_status append_much(struct place *p, int pieces)
{
    struct mlo_blob_session session;
    struct mlo_blob_piece *piece;
    static char bytes[1 << 16];
    assert_ok(mlo_blob_session_begin(p->store, &session, &p->err), &p->err);
    enum mlo_status status = mlo_blob_piece_open(p->store, &session, &piece, &p->err);
    for (int i = 0; status == MLO_OK && i < pieces; i++)
        status = mlo_blob_piece_write(piece, bytes, sizeof bytes, &p->err);
    if (status == MLO_OK)
        status = mlo_blob_piece_commit(piece, &p->err);
    mlo_blob_piece_free(piece);
    assert_int_equal(session.size_bytes, 0);
    struct mlo_error err = {0};
    assert_ok(mlo_blob_session_drop(p->store, &session, &err), &err);
    return status;
}

/* A disk of so many MiB, which pieces of 64 KiB do not fit on. `asks`: the writer's digest before the end. */
static void full_disk(struct place *p, int mib, int pieces, bool asks)
{
    static const char *const folders[] = {"incoming", "sha256", "uploads"};
    char size[32];
    struct rlimit old, small;
    snprintf(size, sizeof size, "size=%dm", mib);
    bool mounted = mount("tmpfs", p->root, "tmpfs", 0, size) == 0;
    for (size_t i = 0; mounted && i < MLO_COUNT(folders); i++) {
        char *folder = mlo_fs_join(p->root, folders[i], NULL);
        assert_int_equal(mkdir(folder, 0755), 0);
        free(folder);
    }
    if (!mounted) { /* no right to: a limit on the size of files stands in */
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
        small = old;
        small.rlim_cur = (rlim_t)mib << 20;
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    }
    p->err = (struct mlo_error){0};
    enum mlo_status written = write_much(p, pieces, asks);
    bool told = p->err.hint[0] != '\0';
    enum mlo_status appended = append_much(p, pieces);
    size_t left = count_files(p, "incoming/*") + count_files(p, "sha256/*") + count_files(p, "uploads/*");
    if (mounted)
        assert_int_equal(umount2(p->root, MNT_DETACH), 0);
    else
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(written, MLO_ENOSPC);
    assert_int_equal(appended, MLO_ENOSPC);
    assert_true(told);
    assert_int_equal(left, 0);
}

/* At once; by the thread of a large upload, in the middle and with its last bytes. */
static void test_blob__full_disk_leaves_nothing(void **state)
{
    full_disk(*state, 1, 64, false);
    full_disk(*state, 6, 192, false);
    full_disk(*state, 6, 97, false);
    full_disk(*state, 6, 97, true);
}

static void test_blob__leavings_of_the_killed_are_swept(void **state)
{
    struct place *p = *state;
    struct mlo_blob_writer *alive;
    struct mlo_blob_store *again;
    char *left = mlo_fs_join(p->root, "incoming", "blob-killed", NULL);
    struct mlo_buf url = MLO_BUF_INIT;
    struct mlo_digest digest;
    assert_ok(mlo_fs_write_atomic(left, "half", 4, &p->err), &p->err);
    assert_ok(mlo_blob_writer_open(p->store, &alive, &p->err), &p->err);
    assert_ok(mlo_blob_writer_write(alive, "whole", 5, &p->err), &p->err);
    mlo_buf_printf(&url, "file:%s", p->root);
    assert_ok(mlo_blob_store_open(mlo_buf_str(&url), &again, &p->err), &p->err);
    assert_false(mlo_fs_exists(left));
    assert_ok(mlo_blob_writer_commit(alive, NULL, &digest, NULL, &p->err), &p->err); /* it lives: untouched */
    mlo_blob_writer_free(alive);
    assert_true(mlo_blob_exists(again, &digest));
    mlo_blob_store_close(again);
    mlo_buf_clear(&url);
    free(left);
}

enum { SERVER_USER = 64001, WORKER_USER = 64002, GROUP = 64000 };

/* Runs `fn` as a user of the group, with a store of its own at the same place. */
static void as_user(const struct place *p, uid_t user,
                    void (*fn)(struct mlo_blob_store *, struct mlo_error *))
{
    int rc;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct mlo_blob_store *store;
        struct mlo_error err = {0};
        char url[512];
        umask(0007);
        if (setgroups(0, NULL) || setgid(GROUP) || setuid(user))
            _exit(2);
        snprintf(url, sizeof url, "file:%s/shared", p->dir);
        if (mlo_blob_store_open(url, &store, &err) == MLO_OK) {
            fn(store, &err);
            mlo_blob_store_close(store);
        }
        if (err.status != MLO_OK)
            fprintf(stderr, "user %u: %s\n", (unsigned)user, err.message);
        _exit(err.status != MLO_OK);
    }
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    assert_true(WIFEXITED(rc) && WEXITSTATUS(rc) == 0);
}

static void put_first(struct mlo_blob_store *store, struct mlo_error *err)
{
    (void)!mlo_blob_put_bytes(store, "both have it", 12, NULL, err);
}

/* Texts of the first shard folder's first half: a folder that the other user made. */
static void text_beside(char text[32])
{
    struct mlo_digest first, digest;
    mlo_digest_of("both have it", 12, &first);
    for (int i = 0;; i++) {
        snprintf(text, 32, "beside it %d", i);
        mlo_digest_of(text, strlen(text), &digest);
        if (digest.bytes[0] == first.bytes[0])
            return;
    }
}

static void put_again_and_beside(struct mlo_blob_store *store, struct mlo_error *err)
{
    char text[32];
    text_beside(text);
    if (mlo_blob_put_bytes(store, "both have it", 12, NULL, err) == MLO_OK)
        (void)!mlo_blob_put_bytes(store, text, strlen(text), NULL, err);
}

static void leave_unfinished(struct mlo_blob_store *store, struct mlo_error *err)
{
    struct mlo_blob_writer *w;
    if (mlo_blob_writer_open(store, &w, err) == MLO_OK && mlo_blob_writer_write(w, "x", 1, err) == MLO_OK)
        _exit(0); /* as a killed one */
}

static void remove_it(struct mlo_blob_store *store, struct mlo_error *err)
{
    struct mlo_digest digest;
    char text[32];
    text_beside(text);
    mlo_digest_of(text, strlen(text), &digest);
    (void)!mlo_blob_remove(store, &digest, err);
}

/* A server and a worker are users of one group, and the store's folder is the group's. */
static void test_blob__two_users_share_a_store(void **state)
{
    struct place *p = *state;
    struct mlo_digest digest;
    struct stat before, after;
    char text[MLO_DIGEST_TEXT_SIZE], path[512];
    if (geteuid() != 0) {
        print_message("not root: two users cannot be tried\n");
        skip();
    }
    char *root = mlo_fs_join(p->dir, "shared", NULL);
    assert_int_equal(chmod(p->dir, 0755), 0);
    assert_int_equal(mkdir(root, 0700), 0);
    assert_int_equal(chown(root, SERVER_USER, GROUP), 0);
    assert_int_equal(chmod(root, 02770), 0);
    mlo_digest_of("both have it", 12, &digest);
    mlo_digest_hex(&digest, text);
    snprintf(path, sizeof path, "%s/sha256/%.2s/%.2s/%s", root, text, text + 2, text);
    as_user(p, SERVER_USER, put_first);
    assert_int_equal(stat(path, &before), 0);
    as_user(p, WORKER_USER, put_again_and_beside);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino); /* not replaced under who reads it */
    assert_int_equal(after.st_uid, SERVER_USER);
    assert_int_equal(after.st_gid, GROUP);
    as_user(p, SERVER_USER, remove_it); /* the worker's, as garbage collection does */
    as_user(p, WORKER_USER, leave_unfinished);
    as_user(p, SERVER_USER, put_first); /* opening sweeps */
    snprintf(path, sizeof path, "%s/incoming/*", root);
    glob_t found;
    assert_int_equal(glob(path, 0, NULL, &found), GLOB_NOMATCH);
    free(root);
}

static void test_blob__addresses(void **state)
{
    struct place *p = *state;
    struct mlo_blob_store *store;
    static const char *const bad[] = {"", "/tmp/x", "file:relative", "ftp:/x", "file"};
    for (size_t i = 0; i < MLO_COUNT(bad); i++)
        assert_int_equal(mlo_blob_store_open(bad[i], &store, &p->err), MLO_EINVAL);
}

#define WITH_STORE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_STORE(test_blob__write_and_read),
        WITH_STORE(test_blob__large_ones_hash_the_same),
        WITH_STORE(test_blob__wrong_digest_leaves_nothing),
        WITH_STORE(test_blob__absent_is_not_found),
        WITH_STORE(test_blob__damage_is_found),
        WITH_STORE(test_blob__written_twice_is_one_file),
        WITH_STORE(test_blob__full_disk_leaves_nothing),
        WITH_STORE(test_blob__leavings_of_the_killed_are_swept),
        WITH_STORE(test_blob__two_users_share_a_store),
        WITH_STORE(test_blob__addresses),
        WITH_STORE(test_blob__folders_of_the_killed_are_synced),
        WITH_STORE(test_blob__what_was_published_meanwhile_is_not_appended_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
