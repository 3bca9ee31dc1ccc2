#include "tests/unit/measure/fixture.h"

/* numpy's float32[5,2,3] 0…29, as model input x. */
static struct mlo_model *model_2x3(void)
{
    struct mlo_model *model = shell_model();
    shell_input(model, "x", MLO_FLOAT32, 3, DIMS(-1, 2, 3));
    return model;
}

static void expect_numbers(const char *path)
{
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_tensor in[1];
    struct mlo_model *model = model_2x3();
    assert_ok(mlo_dataset_open(path, NULL, &d, &err));
    assert_int_equal(mlo_dataset_count(d), 5);
    assert_ok(mlo_dataset_check(d, model, &err));
    /* forwards, backwards, overlapping */
    static const int64_t windows[][2] = {{0, 5}, {3, 2}, {0, 1}, {2, 2}, {4, 1}, {0, 3}};
    for (size_t w = 0; w < MLO_COUNT(windows); w++) {
        assert_ok(mlo_dataset_read(d, model, windows[w][0], windows[w][1], in, &err));
        assert_int_equal(in[0].dims[0], windows[w][1]);
        for (int64_t i = 0; i < windows[w][1] * 6; i++)
            assert_true(((float *)in[0].data)[i] == (float)(windows[w][0] * 6 + i));
        mlo_tensor_clear(&in[0]);
    }
    assert_int_equal(mlo_dataset_read(d, model, 3, 3, in, &err), MLO_EINVAL);
    mlo_dataset_close(d);
    mlo_model_free(model);
}

static void expect_failure(const char *path, enum mlo_status expected, const char *part)
{
    struct mlo_error err = {0};
    struct mlo_dataset *d = (void *)1;
    enum mlo_status status = mlo_dataset_open(path, NULL, &d, &err);
    if (status != expected)
        fail_msg("%s: status %d instead of %d: %s", path, status, expected, err.message);
    assert_null(d);
    assert_contains(err.message, part);
    assert_true(err.where[0] != '\0');
}

static void test_npz__reads_what_numpy_stores(void **state)
{
    (void)state;
    expect_numbers(DATA "plain.npz");
}

static void test_npz__reads_what_numpy_deflates(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    expect_numbers(DATA "deflated.npz");
    assert_ok(mlo_dataset_open(DATA "deflated.npz", NULL, &d, &err));
    const int64_t y[] = {0, 1, 2, 1, 0}, group[] = {7, 7, 8, 8, 9};
    assert_memory_equal(mlo_dataset_labels(d), y, sizeof y);
    assert_memory_equal(mlo_dataset_groups(d), group, sizeof group);
    mlo_dataset_close(d);
}

static void test_npz__reads_all_format_versions(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_model *model = model_2x3();
    for (int v = 1; v <= 3; v++) {
        char map[16];
        const char *maps[] = {map};
        struct mlo_dataset_options o = {.map = maps, .map_count = 1};
        struct mlo_dataset *d = NULL;
        struct mlo_tensor in[1];
        snprintf(map, sizeof map, "x=v%d", v);
        assert_ok(mlo_dataset_open(DATA "versions.npz", &o, &d, &err));
        assert_ok(mlo_dataset_read(d, model, 4, 1, in, &err));
        assert_true(((float *)in[0].data)[5] == 29);
        mlo_tensor_clear(&in[0]);
        mlo_dataset_close(d);
    }
    mlo_model_free(model);
}

static void test_npz__converts_number_types_by_value(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_model *model = shell_model();
    shell_input(model, "in", MLO_FLOAT32, 1, DIMS(-1));
    static const char *const maps[] = {"in=a", "in=b", "in=c", "in=d", "in=x"};
    for (size_t m = 0; m < MLO_COUNT(maps); m++) {
        struct mlo_dataset_options o = {.map = &maps[m], .map_count = 1};
        struct mlo_dataset *d = NULL;
        struct mlo_tensor in[1];
        assert_ok(mlo_dataset_open(DATA "types.npz", &o, &d, &err));
        assert_ok(mlo_dataset_read(d, model, 0, 4, in, &err));
        for (int i = 0; i < 4; i++)
            assert_true(((float *)in[0].data)[i] == (float)i);
        mlo_tensor_clear(&in[0]);
        mlo_dataset_close(d);
    }
    mlo_model_free(model);
}

static void test_npz__refuses_types_only_when_they_are_used(void **state)
{
    (void)state;
    static const struct {
        const char *map, *part;
    } cases[] = {{"in=big", "big-endian"},
                 {"in=obj", "pickled"},
                 {"in=text", "no supported number type"},
                 {"in=table", "structured"},
                 {"in=fortran", "Fortran"}};
    struct mlo_model *model = shell_model();
    shell_input(model, "in", MLO_FLOAT32, 1, DIMS(-1));
    for (size_t c = 0; c < MLO_COUNT(cases); c++) {
        struct mlo_error err = {0};
        struct mlo_dataset_options o = {.map = &cases[c].map, .map_count = 1};
        struct mlo_dataset *d = NULL;
        assert_ok(mlo_dataset_open(DATA "types.npz", &o, &d, &err));
        assert_int_equal(mlo_dataset_check(d, model, &err), MLO_EUNSUPPORTED);
        assert_contains(err.message, cases[c].part);
        assert_contains(err.where, cases[c].map + 3);
        assert_true(err.hint[0] != '\0');
        mlo_dataset_close(d);
    }
    mlo_model_free(model);
}

static void test_npz__round_trip_is_exact_and_deterministic(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    float values[30];
    for (int i = 0; i < 30; i++)
        values[i] = (float)i;
    struct mlo_tensor x = {
        .dtype = MLO_FLOAT32, .rank = 3, .dims = {5, 2, 3}, .data = values, .size_bytes = sizeof values};
    struct mlo_tensor y = make_tensor(MLO_INT64, 1, DIMS(5), VALUES(4, 3, 2, 1, 0));
    struct mlo_tensor half = make_tensor(MLO_BFLOAT16, 2, DIMS(5, 1), VALUES(1, 2, 3, 4, 0.5));
    const struct mlo_npz_array arrays[] = {{"x", &x}, {"y", &y}, {"a/half", &half}};
    const char *one = in_scratch("one.npz"), *two = in_scratch("two.npz");
    assert_ok(mlo_npz_write(one, arrays, 3, &err));
    assert_ok(mlo_npz_write(two, arrays, 3, &err));
    expect_numbers(one);
    struct mlo_digest first, second;
    assert_ok(mlo_digest_of_file(one, &first, NULL, &err));
    assert_ok(mlo_digest_of_file(two, &second, NULL, &err));
    assert_true(mlo_digest_eq(&first, &second));
    struct mlo_dataset *d = NULL;
    assert_ok(mlo_dataset_open(one, NULL, &d, &err));
    assert_int_equal(mlo_dataset_labels(d)[0], 4);
    mlo_dataset_close(d);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&half);
}

static void test_npz__writer_refuses_what_numpy_lacks(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_tensor t = make_tensor(MLO_FLOAT8E4M3FN, 1, DIMS(2), NULL);
    const struct mlo_npz_array arrays[] = {{"x", &t}};
    assert_int_equal(mlo_npz_write(in_scratch("f8.npz"), arrays, 1, &err), MLO_EUNSUPPORTED);
    assert_contains(err.where, "x");
    assert_false(mlo_fs_exists(in_scratch("f8.npz")));
    mlo_tensor_clear(&t);
    t = make_tensor(MLO_UINT8, 1, DIMS(2), NULL);
    assert_int_equal(mlo_npz_write("/nonexistent/folder/x.npz", arrays, 1, &err), MLO_ENOTFOUND);
    assert_int_equal(mlo_npz_write(in_scratch("none.npz"), arrays, 0, &err), MLO_EINVAL);
    mlo_tensor_clear(&t);
}

static void test_npz__truncated_anywhere_is_refused(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_buf whole = MLO_BUF_INIT;
    assert_ok(mlo_fs_read(DATA "deflated.npz", 1 << 20, &whole, &err));
    for (size_t size = 0; size < whole.len; size += 7) {
        struct mlo_dataset *d = NULL;
        const char *path = write_bytes("cut.npz", whole.data, size);
        enum mlo_status status = mlo_dataset_open(path, NULL, &d, &err);
        if (status != MLO_EFORMAT)
            fail_msg("cut at %zu: status %d, %s", size, status, err.message);
    }
    mlo_buf_clear(&whole);
}

static void test_npz__damaged_bytes_never_crash(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_buf whole = MLO_BUF_INIT;
    struct mlo_model *model = model_2x3();
    assert_ok(mlo_fs_read(DATA "deflated.npz", 1 << 20, &whole, &err));
    int refused = 0;
    for (size_t i = 0; i < whole.len; i++) {
        struct mlo_dataset *d = NULL;
        struct mlo_tensor in[1];
        char saved = whole.data[i];
        whole.data[i] = (char)(saved ^ 0x5a);
        const char *path = write_bytes("flip.npz", whole.data, whole.len);
        if (mlo_dataset_open(path, NULL, &d, &err) != MLO_OK)
            refused++;
        else if (mlo_dataset_read(d, model, 0, mlo_dataset_count(d), in, &err) != MLO_OK)
            refused++;
        else
            mlo_tensor_clear(&in[0]);
        mlo_dataset_close(d);
        whole.data[i] = saved;
    }
    assert_true(refused > (int)whole.len / 2);
    mlo_buf_clear(&whole);
    mlo_model_free(model);
}

/* An .npy member: a header text behind magic and length, then `data` bytes. */
static const char *npz_with_header(const char *text, size_t data, int method)
{
    struct mlo_buf b = MLO_BUF_INIT;
    const unsigned char head[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)strlen(text), 0};
    mlo_buf_append(&b, head, sizeof head);
    mlo_buf_puts(&b, text);
    for (size_t i = 0; i < data; i++)
        mlo_buf_putc(&b, 0);
    assert_true(mlo_buf_ok(&b));
    const char *path = write_zip("header.npz", "x.npy", b.data, b.len, method);
    mlo_buf_clear(&b);
    return path;
}

static void test_npz__bad_headers_are_refused_precisely(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t data;
        enum mlo_status status;
        const char *part;
    } cases[] = {
        {"['descr']", 8, MLO_EFORMAT, "no dictionary"},
        {"{'descr': '<f4', 'shape': (2,)}", 8, MLO_EFORMAT, "lacks one of"},
        {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,)}", 8, MLO_EFORMAT, "fortran_order"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", 8, MLO_EFORMAT, "shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2)}", 8, MLO_EFORMAT, "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'evil': 1}", 8, MLO_EFORMAT,
         "unknown field"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, MLO_EFORMAT, "second"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} + x", 8, MLO_EFORMAT, "other text"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", 8, MLO_EFORMAT, "does not end"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", 4, MLO_EUNSUPPORTED,
         "axes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 7, MLO_EFORMAT, "truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 9, MLO_EFORMAT, "declares 8 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", 8, MLO_ETOOBIG,
         "larger than any memory"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000,)}", 8, MLO_EFORMAT, "truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 8, MLO_EFORMAT,
         "shape"},
        {"", 8, MLO_EFORMAT, "dictionary"},
    };
    for (size_t c = 0; c < MLO_COUNT(cases); c++)
        expect_failure(npz_with_header(cases[c].text, cases[c].data, ZIP_CM_STORE), cases[c].status,
                       cases[c].part);
    expect_failure(write_zip("m.npz", "x.npy", "\x93NUMPX\1\0\0\0{}", 12, ZIP_CM_STORE), MLO_EFORMAT,
                   "magic");
    expect_failure(write_zip("v.npz", "x.npy", "\x93NUMPY\7\0\0\0{}", 12, ZIP_CM_STORE), MLO_EUNSUPPORTED,
                   "version");
    expect_failure(write_zip("l.npz", "x.npy", "\x93NUMPY\1\0\xff\xff{}", 12, ZIP_CM_STORE), MLO_EFORMAT,
                   "inside");
    expect_failure(write_zip("s.npz", "x.npy", "\x93NUM", 4, ZIP_CM_STORE), MLO_EFORMAT, "too short");
}

static void test_npz__bomb_is_refused_before_it_expands(void **state)
{
    (void)state;
    size_t size = ((size_t)300 << 20) + 128;
    char *bytes = calloc(1, size);
    assert_non_null(bytes);
    const char *text = "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 15728640), }";
    const unsigned char head[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 118, 0};
    memcpy(bytes, head, sizeof head);
    memset(bytes + sizeof head, ' ', 118);
    memcpy(bytes + sizeof head, text, strlen(text));
    const char *path = write_zip("bomb.npz", "x.npy", bytes, size, ZIP_CM_DEFLATE);
    free(bytes);
    uint64_t start = mlo_clock_cpu_ns(); /* of the processor, whatever else the machine does */
    expect_failure(path, MLO_ETOOBIG, "bomb");
    assert_true(mlo_clock_cpu_ns() - start < 1000000000u); /* inflating it would take longer */
}

static void test_npz__directory_that_lies_is_refused(void **state)
{
    (void)state;
    /* the central directory of this archive claims 2^31 - 1 bytes for a member of a few */
    struct mlo_error err = {0};
    struct mlo_buf whole = MLO_BUF_INIT;
    assert_ok(mlo_fs_read(
        npz_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, ZIP_CM_DEFLATE),
        1 << 20, &whole, &err));
    char *directory = NULL;
    for (size_t i = 0; i + 4 <= whole.len; i++)
        if (memcmp(whole.data + i, "PK\1\2", 4) == 0)
            directory = whole.data + i;
    assert_non_null(directory);
    memcpy(directory + 24, "\xff\xff\xff\x7f", 4);
    expect_failure(write_bytes("lie.npz", whole.data, whole.len), MLO_ETOOBIG, "bomb");
    memcpy(directory + 24, "\x00\x00\x10\x00", 4); /* 1 MB: more than deflate can make of what is there */
    expect_failure(write_bytes("lie.npz", whole.data, whole.len), MLO_EFORMAT, "cannot hold");
    mlo_buf_clear(&whole);
}

static void test_npz__foreign_files_are_named(void **state)
{
    (void)state;
    expect_failure(write_text("a.npz", "hello"), MLO_EFORMAT, "cannot open");
    expect_failure(write_text("b.npz", ""), MLO_EFORMAT, "cannot open");
    expect_failure(write_text("c.bin", "\x93NUMPY\1"), MLO_EFORMAT, "single .npy");
    expect_failure(write_text("d.csv", "1,2,3"), MLO_EFORMAT, "neither .npz");
    expect_failure(in_scratch("absent.npz"), MLO_ENOTFOUND, "absent.npz");
    expect_failure(write_zip("e.npz", "readme.txt", "hi", 2, ZIP_CM_STORE), MLO_EFORMAT, "without .npy");
    expect_failure(write_zip("f.npz", "../x.npy", "hi", 2, ZIP_CM_STORE), MLO_EFORMAT, "without .npy");
    expect_failure(write_zip("g.npz", "/etc/x.npy", "hi", 2, ZIP_CM_STORE), MLO_EFORMAT, "without .npy");
    expect_failure(write_zip("h.npz", "a/../../x.npy", "hi", 2, ZIP_CM_STORE), MLO_EFORMAT, "without .npy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npz__reads_what_numpy_stores),
        cmocka_unit_test(test_npz__reads_what_numpy_deflates),
        cmocka_unit_test(test_npz__reads_all_format_versions),
        cmocka_unit_test(test_npz__converts_number_types_by_value),
        cmocka_unit_test(test_npz__refuses_types_only_when_they_are_used),
        cmocka_unit_test(test_npz__round_trip_is_exact_and_deterministic),
        cmocka_unit_test(test_npz__writer_refuses_what_numpy_lacks),
        cmocka_unit_test(test_npz__truncated_anywhere_is_refused),
        cmocka_unit_test(test_npz__damaged_bytes_never_crash),
        cmocka_unit_test(test_npz__bad_headers_are_refused_precisely),
        cmocka_unit_test(test_npz__bomb_is_refused_before_it_expands),
        cmocka_unit_test(test_npz__directory_that_lies_is_refused),
        cmocka_unit_test(test_npz__foreign_files_are_named),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
