#include "tests/cm.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_error__table_has_one_row_per_status(void **state)
{
    MLO_UNUSED(state);
    for (int i = 0; i < MLO_STATUS_COUNT; i++) {
        const struct mlo_status_info *info = mlo_status_info((enum mlo_status)i);
        assert_int_equal(info->status, i);
        assert_int_equal(mlo_status_from_code(info->code), i);
        assert_true(info->http >= 200 && info->http < 600);
    }
    assert_int_equal(mlo_status_info((enum mlo_status)999)->status, MLO_EINTERNAL);
}

static void test_error__keeps_the_innermost_place_and_adds_context(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    assert_int_equal(mlo_error_set(&err, MLO_EINVAL, "axis is %d", 9), MLO_EINVAL);
    mlo_error_where(&err, "node '%s'", "a");
    mlo_error_where(&err, "file");
    mlo_error_prefix(&err, "loading");
    assert_string_equal(err.where, "node 'a'");
    assert_string_equal(err.message, "loading: axis is 9");
    mlo_error_cut(&err, "a");
    assert_string_equal(err.where, "node ''");
    assert_string_equal(err.message, "loding: xis is 9");
    assert_int_equal(mlo_error_errno(&err, ENOSPC, "writing x"), MLO_ENOSPC);
    assert_int_equal(mlo_error_set(NULL, MLO_EIO, "dropped"), MLO_EIO);
}

static void test_error__makes_hostile_names_printable(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    mlo_error_set(&err, MLO_EFORMAT, "name %s", "a\x1b[31m\xff\xc3(\xe2\x82\xac\xc3\xa9\n");
    assert_string_equal(err.message, "name a?[31m?"
                                     "?(\xe2\x82\xac\xc3\xa9?");
    json_t *s = json_string(err.message);
    assert_non_null(s);
    json_decref(s);
}

static void count_up(void *arg)
{
    ++*(int *)arg;
}

static void test_arena__aligns_zeroes_and_runs_cleanups(void **state)
{
    MLO_UNUSED(state);
    int freed = 0;
    struct mlo_arena *a = mlo_arena_new();
    for (size_t size = 0; size < 70000; size = size * 3 + 1) {
        unsigned char *p = mlo_arena_aligned(a, 64, size);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xff, size);
    }
    assert_null(mlo_arena_calloc(a, SIZE_MAX / 2, 3));
    assert_string_equal(mlo_arena_strndup(a, "abcdef", 3), "abc");
    assert_string_equal(mlo_arena_printf(a, "%s-%d", "x", 7), "x-7");
    assert_int_equal(mlo_arena_on_free(a, count_up, &freed), 0);
    mlo_arena_free(a);
    assert_int_equal(freed, 1);
    mlo_arena_free(NULL);
}

static void test_str__numbers_are_whole_or_nothing(void **state)
{
    MLO_UNUSED(state);
    int64_t i;
    double d;
    assert_true(mlo_str_to_i64("-42", &i));
    assert_int_equal(i, -42);
    assert_false(mlo_str_to_i64("42x", &i));
    assert_false(mlo_str_to_i64("", &i));
    assert_false(mlo_str_to_i64(" 1", &i));
    assert_false(mlo_str_to_i64("99999999999999999999", &i));
    assert_true(mlo_str_to_f64("1e-3", &d));
    assert_float_equal(d, 1e-3, 0);
    assert_false(mlo_str_to_f64("nan", &d));
    assert_false(mlo_str_to_f64("1,5", &d));
    char text[32];
    assert_string_equal(mlo_str_size(999, text), "999 B");
    assert_string_equal(mlo_str_size(1200557, text), "1.20 MB");
}

static void test_str__reads_sizes_and_times(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"8GB", 8000000000}, {"1.5 GiB", 1610612736}, {"512kb", 512000}, {"7B", 7}};
    static const char *const no_sizes[] = {"",     "8",     "GB",      "8 gigs", "1..5GB",
                                           "-1GB", "8  GB", "9000PiB", "8GB "};
    uint64_t value;
    for (size_t i = 0; i < MLO_COUNT(sizes); i++) {
        assert_true(mlo_str_to_size(sizes[i].text, &value));
        assert_true(value == sizes[i].bytes);
    }
    for (size_t i = 0; i < MLO_COUNT(no_sizes); i++)
        assert_false(mlo_str_to_size(no_sizes[i], &value));
    static const struct {
        const char *text;
        uint64_t seconds;
    } times[] = {{"45s", 45}, {"2h", 7200}, {"1h30m", 5400}, {"2d1s", 172801}};
    static const char *const no_times[] = {"",    "2",    "h",   "30m1h", "1m1m",
                                           "2 h", "1.5h", "-1s", "1w",    "9999999999999s"};
    for (size_t i = 0; i < MLO_COUNT(times); i++) {
        assert_true(mlo_str_to_seconds(times[i].text, &value));
        assert_true(value == times[i].seconds);
    }
    for (size_t i = 0; i < MLO_COUNT(no_times); i++)
        assert_false(mlo_str_to_seconds(no_times[i], &value));
}

static void test_hash__matches_the_standard_vectors(void **state)
{
    MLO_UNUSED(state);
    struct mlo_digest d, parsed;
    char text[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_of("abc", 3, &d); /* FIPS 180-4, example 1 */
    assert_string_equal(mlo_digest_text(&d, text),
                        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_true(mlo_digest_parse(text, &parsed));
    assert_true(mlo_digest_eq(&d, &parsed));
    text[10] = 'G';
    assert_false(mlo_digest_parse(text, &parsed));
    struct mlo_hasher *h = mlo_hasher_new();
    mlo_hasher_update(h, "a", 1);
    mlo_hasher_update(h, "bc", 2);
    mlo_hasher_final(h, &parsed);
    mlo_hasher_free(h);
    assert_true(mlo_digest_eq(&d, &parsed));
}

static void test_hash__goes_on_from_a_saved_state(void **state)
{
    MLO_UNUSED(state);
    unsigned char bytes[300];
    struct mlo_digest whole, parts;
    struct mlo_hash_state at;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(7 * i + 3);
    mlo_digest_of(bytes, sizeof bytes, &whole);
    for (size_t cut = 0; cut <= sizeof bytes; cut++) { /* on and beside the borders of blocks of 64 */
        struct mlo_hasher *first = mlo_hasher_new(), *second = mlo_hasher_new();
        mlo_hasher_update(first, bytes, cut);
        mlo_hasher_save(first, &at);
        mlo_hasher_update(second, "forgotten", 9);
        mlo_hasher_restore(second, &at);
        assert_int_equal(mlo_hasher_size(second), cut);
        mlo_hasher_update(second, bytes + cut, sizeof bytes - cut);
        mlo_hasher_final(second, &parts);
        assert_true(mlo_digest_eq(&whole, &parts));
        mlo_hasher_free(first);
        mlo_hasher_free(second);
    }
    /* a length beyond 2^32 bits goes into the high half: the digest of 2^32 bits of zeros and one byte
     * (without valgrind) */
    const int count = in_short() ? 2 : 512;
    unsigned char *zeros = calloc(1, 1 << 20);
    struct mlo_hasher *plain = mlo_hasher_new(), *saved = mlo_hasher_new();
    for (int i = 0; i < count; i++)
        mlo_hasher_update(plain, zeros, 1 << 20);
    mlo_hasher_save(plain, &at);
    mlo_hasher_restore(saved, &at);
    mlo_hasher_update(plain, "x", 1);
    mlo_hasher_update(saved, "x", 1);
    mlo_hasher_final(plain, &whole);
    mlo_hasher_final(saved, &parts);
    assert_true(mlo_digest_eq(&whole, &parts));
    mlo_hasher_free(plain);
    mlo_hasher_free(saved);
    free(zeros);
}

static void test_json__canonical_text_is_sorted_and_shortest(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    json_t *v;
    static const char TEXT[] =
        "{\"b\": [1, 0.1, -0.0, 1e300, true, null], \"a\": \"x\\u0001\\\"\\n\", \"A\": {}, "
        "\"c\": \"\\\\\\/\\b\\f\\r\\t\\u001f\\u0020\\u007f\\u00fcber\"}";
    assert_ok(mlo_json_parse(TEXT, strlen(TEXT), "test", &v, &err));
    struct mlo_buf out = MLO_BUF_INIT;
    mlo_json_canonical(v, &out);
    assert_string_equal(mlo_buf_str(&out),
                        "{\"A\":{},\"a\":\"x\\u0001\\\"\\n\",\"b\":[1,0.1,0,1e+300,true,null],"
                        "\"c\":\"\\\\/\\b\\f\\r\\t\\u001f \x7f\xc3\xbc"
                        "ber\"}");
    mlo_buf_clear(&out);
    json_decref(v);
    assert_int_equal(mlo_json_parse("{\"a\":1,\"a\":2}", 13, "test", &v, &err), MLO_EFORMAT);
    assert_contains(err.where, "test:1");
}

static void test_json__getters_name_the_field(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    int64_t i, fallback = 5;
    json_t *o = json_pack("{s:i,s:s}", "n", 3, "s", "x");
    assert_ok(mlo_json_get_i64(o, "n", NULL, &i, &err));
    assert_int_equal(i, 3);
    assert_ok(mlo_json_get_i64(o, "none", &fallback, &i, &err));
    assert_int_equal(i, 5);
    assert_int_equal(mlo_json_get_i64(o, "s", &fallback, &i, &err), MLO_EINVAL);
    assert_string_equal(err.where, "field 's'");
    const char *s;
    assert_int_equal(mlo_json_get_str(o, "none", NULL, &s, &err), MLO_EINVAL);
    json_decref(o);
}

static void test_json__has_null_for_what_is_not_finite(void **state)
{
    MLO_UNUSED(state);
    static const double NUMBERS[] = {0, -1.5, 1e308, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < MLO_COUNT(NUMBERS); i++) {
        json_t *v = mlo_json_finite(NUMBERS[i]);
        if (i < 3)
            assert_true(json_is_real(v) && json_real_value(v) == NUMBERS[i]);
        else
            assert_true(json_is_null(v));
        json_decref(v);
    }
}

static void test_fs__bounds_reads_and_writes_atomically(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    char *dir;
    assert_ok(mlo_fs_tempdir(NULL, "mlopt-test-", &dir, &err));
    char *file = mlo_fs_join(dir, "a", "b", "file", NULL), *folder = mlo_fs_join(dir, "a", "b", NULL);
    assert_ok(mlo_fs_mkdirs(folder, &err));
    assert_ok(mlo_fs_write_atomic(file, "hello", 5, &err));
    assert_int_equal(mlo_fs_size(file), 5);
    struct mlo_buf text = MLO_BUF_INIT;
    assert_int_equal(mlo_fs_read(file, 4, &text, &err), MLO_ETOOBIG);
    mlo_buf_clear(&text);
    assert_ok(mlo_fs_read(file, 5, &text, &err));
    assert_string_equal(mlo_buf_str(&text), "hello");
    mlo_buf_clear(&text);
    assert_int_equal(mlo_fs_read("/dev/zero", 1000, &text, &err), MLO_ETOOBIG);
    mlo_buf_clear(&text);
    assert_int_equal(mlo_fs_read(folder, 1000, &text, &err), MLO_EINVAL);
    assert_int_equal(mlo_fs_read("/nonexistent/x", 1000, &text, &err), MLO_ENOTFOUND);
    char *copy = mlo_fs_join(dir, "copy", NULL);
    assert_ok(mlo_fs_copy(file, copy, &err));
    struct mlo_mapping m;
    assert_ok(mlo_fs_map(copy, &m, &err));
    assert_memory_equal(m.data, "hello", 5);
    mlo_fs_unmap(&m);
    assert_int_not_equal(mlo_fs_write_atomic("/proc/nothing/here", "x", 1, &err), MLO_OK);
    mlo_fs_remove_tree(dir);
    assert_false(mlo_fs_exists(dir));
    free(copy);
    free(file);
    free(folder);
    free(dir);
}

/* What root may do says nothing: from here on as somebody else, if it was root. *dir: a folder of all. */
static bool become_nobody(char **dir)
{
    struct mlo_error err = {0};
    bool was_root = geteuid() == 0;
    assert_ok(mlo_fs_tempdir(NULL, "mlo-remove-", dir, &err));
    assert_int_equal(chmod(*dir, 0777), 0);
    if (was_root)
        assert_int_equal(seteuid(65534), 0);
    return was_root;
}

/* Removes and frees the folder. */
static void be_root_again(bool was_root, char *dir)
{
    if (was_root)
        assert_int_equal(seteuid(0), 0);
    mlo_fs_remove_tree(dir);
    assert_false(mlo_fs_exists(dir));
    free(dir);
}

/* As who is not root finds it: a folder that nobody may enter, and one deeper than paths and descriptors go.
 */
static void test_fs__removes_what_hides(void **state)
{
    enum { DEEP = 300 };
    struct mlo_error err = {0};
    char *dir;
    MLO_UNUSED(state);
    bool was_root = become_nobody(&dir);
    char *tree = mlo_fs_join(dir, "tree", NULL), *locked = mlo_fs_join(tree, "locked", NULL),
         *file = mlo_fs_join(locked, "file", NULL);
    assert_ok(mlo_fs_mkdirs(locked, &err));
    assert_ok(mlo_fs_write_atomic(file, "x", 1, &err));
    int at = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < DEEP; i++) {
        assert_int_equal(mkdirat(at, "a-name-of-twenty-some", 0700), 0);
        int next = openat(at, "a-name-of-twenty-some", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        if (i % 100 == 99)
            assert_int_equal(symlinkat("/", at, "out"), 0);
        close(at);
        at = next;
    }
    close(at);
    assert_int_equal(chmod(locked, 0), 0);
    assert_int_equal(chmod(tree, 0500), 0);
    mlo_fs_remove_tree(tree);
    assert_false(mlo_fs_exists(tree));
    be_root_again(was_root, dir);
    free(file);
    free(locked);
    free(tree);
}

/* Deeper than is looked at in place, and every folder of it locked: only one's owner may move it up. */
static void test_fs__removes_what_is_deep_and_locked(void **state)
{
    enum { DEEP = 200 };
    struct mlo_error err = {0};
    char *dir;
    MLO_UNUSED(state);
    bool was_root = become_nobody(&dir);
    char *tree = mlo_fs_join(dir, "tree", NULL);
    assert_ok(mlo_fs_mkdirs(tree, &err));
    int at = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < DEEP; i++) {
        assert_int_equal(mkdirat(at, "locked", 0700), 0);
        int next = openat(at, "locked", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        assert_int_equal(fchmod(at, 0), 0);
        close(at);
        at = next;
    }
    assert_int_equal(fchmod(at, 0), 0);
    close(at);
    mlo_fs_remove_tree(tree);
    assert_false(mlo_fs_exists(tree));
    be_root_again(was_root, dir);
    free(tree);
}

static enum mlo_status run_sh(const char *script, uint64_t timeout_ms, struct mlo_buf *out, int *code,
                              struct mlo_error *err)
{
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    o.argv = argv;
    return mlo_process_run(&o, timeout_ms, 1000, out, code, err);
}

static void test_process__collects_output_and_exit_codes(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf out = MLO_BUF_INIT;
    int code;
    assert_ok(run_sh("printf hi; exit 3", 300000, &out, &code, &err));
    assert_int_equal(code, 3);
    assert_string_equal(mlo_buf_str(&out), "hi");
    mlo_buf_reset(&out);
    assert_ok(run_sh("kill -9 $$", 300000, &out, &code, &err));
    assert_int_equal(code, 128 + SIGKILL);
    assert_int_equal(run_sh("sleep 600 & sleep 600", 100, &out, &code, &err), MLO_ETIMEOUT);
    assert_int_equal(run_sh("yes", 300000, &out, &code, &err), MLO_ETOOBIG);
    mlo_buf_clear(&out);
    const char *argv[] = {"/nonexistent/program", NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    o.argv = argv;
    pid_t pid;
    assert_int_equal(mlo_process_start(&o, &pid, &err), MLO_ENOTFOUND);
    assert_contains(err.message, "/nonexistent/program");
}

/* Where SIGCHLD is ignored nobody learns how a child ended: that must not look like success. What is started
 * does not inherit it: the shell learns how its own child ends. */
static void test_process__whose_end_nobody_knows_is_an_error(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf out = MLO_BUF_INIT;
    int code = 0;
    signal(SIGCHLD, SIG_IGN);
    assert_int_equal(run_sh("exit 3", 300000, NULL, &code, &err), MLO_EIO);
    assert_int_not_equal(code, 0);
    assert_contains(err.message, "/bin/sh");
    assert_contains(err.hint, "SIGCHLD");
    assert_int_equal(run_sh("sh -c 'exit 4'; echo $?", 300000, &out, &code, &err), MLO_EIO);
    assert_string_equal(mlo_buf_str(&out), "4\n");
    assert_int_equal(run_sh("sleep 600", 50, NULL, &code, &err), MLO_ETIMEOUT);
    signal(SIGCHLD, SIG_DFL);
    assert_ok(run_sh("exit 3", 300000, NULL, &code, &err));
    assert_int_equal(code, 3);
    mlo_buf_clear(&out);
}

static void test_process__sets_and_unsets_environment(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf out = MLO_BUF_INIT;
    int code;
    setenv("MLO_TEST_A", "old", 1);
    setenv("MLO_TEST_B", "old", 1);
    const char *argv[] = {
        "/bin/sh", "-c",
        "printf \"%s,%s,%s\" \"$MLO_TEST_A\" \"${MLO_TEST_B-unset}\" \"$(ls /proc/self/fd | wc -l)\"", NULL};
    const char *env[] = {"MLO_TEST_A=new", "MLO_TEST_B", NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    o.argv = argv;
    o.env = env;
    int leak = open("/dev/null", O_RDONLY); /* not close-on-exec: must not reach the child all the same */
    assert_ok(mlo_process_run(&o, 300000, 1000, &out, &code, &err));
    close(leak);
    assert_string_equal(mlo_buf_str(&out), "new,unset,4"); /* 0, 1, 2 and ls's own folder */
    mlo_buf_clear(&out);
}

static void add_index(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    int *seen = arg;
    for (size_t i = begin; i < end; i++)
        __atomic_fetch_add(&seen[i], 1, __ATOMIC_RELAXED);
}

static void test_pool__visits_each_index_once(void **state)
{
    MLO_UNUSED(state);
    enum { N = 1001 };
    for (unsigned threads = 1; threads <= 4; threads++) {
        struct mlo_pool *pool = mlo_pool_new(threads);
        assert_non_null(pool);
        for (int round = 0; round < 50; round++) {
            int seen[N] = {0};
            mlo_pool_busy(pool, round % 2);
            mlo_pool_run(pool, N, round % 3 ? 1 : 400, add_index, seen);
            for (int i = 0; i < N; i++)
                assert_int_equal(seen[i], 1);
        }
        mlo_pool_free(pool);
    }
}

struct workers {
    atomic_int busy[4], done;
    atomic_bool shared;
};

static void work(void *arg, size_t begin, size_t end, unsigned worker)
{
    struct workers *w = arg;
    if (atomic_fetch_add(&w->busy[worker], 1))
        atomic_store(&w->shared, true);
    atomic_fetch_add(&w->done, (int)(end - begin));
    atomic_fetch_sub(&w->busy[worker], 1);
}

/* Loops so short and so close that helpers come late to most: no range is lost, done twice, or done with a
 * worker's number that another one has at that time. */
static void test_pool__does_not_mix_up_loops_that_follow_closely(void **state)
{
    MLO_UNUSED(state);
    const int loops = in_short() ? 4000 : 20000;
    for (unsigned threads = 2; threads <= 4; threads++) {
        static struct workers w;
        struct mlo_pool *pool = mlo_pool_new(threads);
        int expected = 0;
        assert_non_null(pool);
        memset(&w, 0, sizeof w);
        for (int i = 0; i < loops; i++) {
            mlo_pool_busy(pool, i / 100 % 2);
            mlo_pool_run(pool, (size_t)(1 + i % 5), 1, work, &w);
            expected += 1 + i % 5;
            assert_int_equal(atomic_load(&w.done), expected);
        }
        assert_false(atomic_load(&w.shared));
        mlo_pool_free(pool);
    }
}

static void test_suggest__finds_the_nearest_word(void **state)
{
    MLO_UNUSED(state);
    static const char *const WORDS[] = {"calibrator", "per_channel", "scheme", "form"};
    assert_string_equal(mlo_suggest("calibratr", WORDS, 4), "calibrator");
    assert_string_equal(mlo_suggest("perchannel", WORDS, 4), "per_channel");
    assert_string_equal(mlo_suggest("shceme", WORDS, 4), "scheme");
    assert_null(mlo_suggest("zzzzzzzz", WORDS, 4));
    struct mlo_error err = {0};
    assert_false(mlo_error_suggest(&err, "zzzzzzzz", WORDS, 4));
    assert_string_equal(err.hint, "");
    assert_true(mlo_error_suggest(&err, "shceme", WORDS, 4));
    assert_string_equal(err.hint, "did you mean 'scheme'?");
    assert_false(mlo_error_suggest(NULL, "shceme", WORDS, 0));
}

static void test_names__find_rows_and_make_lists(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *name;
        int value[3];
    } rows[] = {{"first", {1}}, {"second", {2}}, {"third", {3}}};
    for (size_t i = 0; i < MLO_COUNT(rows); i++)
        assert_ptr_equal(mlo_named_row(rows[i].name, rows, MLO_COUNT(rows), sizeof *rows), &rows[i]);
    assert_null(mlo_named_row("third", rows, 2, sizeof *rows));
    assert_null(mlo_named_row("thir", rows, MLO_COUNT(rows), sizeof *rows));
    static const char *const NAMES[] = {"a", "b", "c"};
    struct mlo_buf list = MLO_BUF_INIT;
    mlo_buf_names(&list, NAMES, 0);
    assert_string_equal(mlo_buf_str(&list), "");
    mlo_buf_names(&list, NAMES, 3);
    assert_string_equal(mlo_buf_str(&list), "a, b, c");
    mlo_buf_clear(&list);
}

static void test_clock__formats_utc(void **state)
{
    MLO_UNUSED(state);
    char text[32];
    assert_string_equal(mlo_clock_format(0, text), "1970-01-01T00:00:00.000Z");
    assert_string_equal(mlo_clock_format(1769862896789123, text), "2026-01-31T12:34:56.789Z");
}

static void test_log__writes_one_line_as_text_or_json(void **state)
{
    MLO_UNUSED(state);
    int fds[2];
    char line[512];
    assert_int_equal(pipe(fds), 0);
    mlo_log_setup(MLO_LOG_INFO, MLO_LOG_JSON, fds[1], "test");
    mlo_log(MLO_LOG_DEBUG, "hidden", NULL);
    mlo_log(MLO_LOG_WARN, "job claimed", "job", "7", "why", "a \"b\"", NULL);
    ssize_t n = read(fds[0], line, sizeof line - 1);
    assert_true(n > 0);
    line[n] = '\0';
    json_t *v = json_loads(line, 0, NULL);
    assert_non_null(v);
    assert_string_equal(mlo_json_str(v, "event", ""), "job claimed");
    assert_string_equal(mlo_json_str(v, "why", ""), "a \"b\"");
    json_decref(v);
    mlo_log_setup(MLO_LOG_INFO, MLO_LOG_TEXT, fds[1], "test");
    mlo_log(MLO_LOG_INFO, "started", "port", "80", "none", NULL, NULL);
    n = read(fds[0], line, sizeof line - 1);
    line[n] = '\0';
    assert_contains(line, "test: started port=80 none=-");
    mlo_log_setup(MLO_LOG_INFO, MLO_LOG_TEXT, 2, "mlopt");
    close(fds[0]);
    close(fds[1]);
}

static void test_git_remote__has_no_secrets(void **state)
{
    static const char *const cases[][2] = {
        {"https://github.com/org/repo.git", "https://github.com/org/repo.git"},
        {"https://user:pass@host:8443/org/repo.git", "https://host:8443/org/repo.git"},
        {"HTTPS://ghp_token@host/repo", "HTTPS://host/repo"},
        {"http://a:b@c:d@host/@scope/x", "http://host/@scope/x"},
        {"https://host/repo.git?private_token=s3cret#main", "https://host/repo.git"},
        {"https://host/me@work/repo", "https://host/me@work/repo"},
        {"https://user:pass@host", "https://host"},
        {"ssh://git@host:22/org/repo.git", "ssh://git@host:22/org/repo.git"},
        {"ssh://git:pass@host/repo", "ssh://git@host/repo"},
        {"git@github.com:org/repo.git", "git@github.com:org/repo.git"},
        {"oauth2:token@host/repo", "oauth2@host/repo"},
        {"/srv/git/repo.git", "/srv/git/repo.git"},
        {"file:///srv/a@b/repo", "file:///srv/a@b/repo"},
        {"../up", "../up"},
        {"", ""},
    };
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_buf out = MLO_BUF_INIT;
        mlo_git_remote_public(cases[i][0], &out);
        assert_string_equal(mlo_buf_str(&out), cases[i][1]);
        mlo_buf_clear(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error__table_has_one_row_per_status),
        cmocka_unit_test(test_error__keeps_the_innermost_place_and_adds_context),
        cmocka_unit_test(test_error__makes_hostile_names_printable),
        cmocka_unit_test(test_arena__aligns_zeroes_and_runs_cleanups),
        cmocka_unit_test(test_str__reads_sizes_and_times),
        cmocka_unit_test(test_str__numbers_are_whole_or_nothing),
        cmocka_unit_test(test_hash__matches_the_standard_vectors),
        cmocka_unit_test(test_hash__goes_on_from_a_saved_state),
        cmocka_unit_test(test_json__canonical_text_is_sorted_and_shortest),
        cmocka_unit_test(test_json__getters_name_the_field),
        cmocka_unit_test(test_json__has_null_for_what_is_not_finite),
        cmocka_unit_test(test_fs__bounds_reads_and_writes_atomically),
        cmocka_unit_test(test_fs__removes_what_hides),
        cmocka_unit_test(test_fs__removes_what_is_deep_and_locked),
        cmocka_unit_test(test_process__collects_output_and_exit_codes),
        cmocka_unit_test(test_process__whose_end_nobody_knows_is_an_error),
        cmocka_unit_test(test_process__sets_and_unsets_environment),
        cmocka_unit_test(test_pool__visits_each_index_once),
        cmocka_unit_test(test_pool__does_not_mix_up_loops_that_follow_closely),
        cmocka_unit_test(test_suggest__finds_the_nearest_word),
        cmocka_unit_test(test_names__find_rows_and_make_lists),
        cmocka_unit_test(test_git_remote__has_no_secrets),
        cmocka_unit_test(test_clock__formats_utc),
        cmocka_unit_test(test_log__writes_one_line_as_text_or_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
