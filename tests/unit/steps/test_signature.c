/* Label files, and the signature of a model's file. */
#include "tests/cm.h"

#include "base/signature.h"
#include "pipeline/steps/signature.h"

static char *g_dir;

static int setup(void **state)
{
    struct mlo_error err = {0};
    MLO_UNUSED(state);
    return mlo_fs_tempdir("/tmp", "mlopt-signature-", &g_dir, &err) == MLO_OK ? 0 : -1;
}

static int teardown(void **state)
{
    MLO_UNUSED(state);
    mlo_fs_remove_tree(g_dir);
    free(g_dir);
    return 0;
}

static char *file(const char *text, size_t size)
{
    struct mlo_error err = {0};
    char *path = mlo_fs_join(g_dir, "labels.txt", NULL);
    assert_ok(mlo_fs_write_atomic(path, text, size, &err));
    return path;
}

static void test_labels__are_read_in_three_forms(void **state)
{
    static const char *const same[] = {"cat\ndog\n", "cat\r\ndog", "[\"cat\",\"dog\"]",
                                       " {\"1\": \"dog\", \"0\": \"cat\"}",
                                       ("\xef\xbb\xbf"
                                        "cat\ndog")};
    char first[80] = "";
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(same); i++) {
        struct mlo_error err = {0};
        json_t *labels = NULL;
        char *path = file(same[i], strlen(same[i]));
        assert_ok(mlo_labels_read(path, &labels, &err));
        assert_int_equal(mlo_json_i64(labels, "count", 0), 2);
        assert_string_equal(json_string_value(json_array_get(json_object_get(labels, "names"), 1)), "dog");
        if (i)
            assert_string_equal(mlo_json_str(labels, "digest", ""), first);
        snprintf(first, sizeof first, "%s", mlo_json_str(labels, "digest", ""));
        json_decref(labels);
        free(path);
    }
}

static void test_labels__that_are_none_are_named(void **state)
{
    static const struct {
        const char *text;
        size_t size;
    } bad[] = {{"", 0},
               {"[]", 2},
               {"[1, 2]", 6},
               {"{\"1\":\"a\"}", 9},
               {"a\0b", 3},
               {"\xff\xfe", 2},
               {"{\"0\":\"a\",\"2\":\"b\"}", 17}};
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        struct mlo_error err = {0};
        json_t *labels = NULL;
        char *path = file(bad[i].text, bad[i].size);
        assert_int_equal(mlo_labels_read(path, &labels, &err), MLO_EFORMAT);
        assert_null(labels);
        json_t *told = mlo_labels_describe(path);
        assert_contains(mlo_json_str(json_object_get(told, "labels"), "unreadable", ""), "labels.txt");
        json_decref(told);
        free(path);
    }
    /* a label may begin with a bracket */
    struct mlo_error err = {0};
    json_t *labels = NULL;
    char *path = file("[UNK]\n[CLS]\n", 12);
    assert_ok(mlo_labels_read(path, &labels, &err));
    assert_int_equal(mlo_json_i64(labels, "count", 0), 2);
    json_decref(labels);
    free(path);
}

static void test_signature__of_the_example_model(void **state)
{
    struct mlo_error err = {0};
    json_t *signature = NULL;
    MLO_UNUSED(state);
    assert_ok(mlo_signature_of_model(MLOPT_SOURCE_DIR "/deploy/models/fashion_cnn.onnx", &signature, &err));
    assert_ok(mlo_signature_check(signature, &err));
    const json_t *input = json_array_get(json_object_get(signature, "inputs"), 0);
    const json_t *shape = json_object_get(input, "shape");
    assert_int_equal(json_array_size(json_object_get(signature, "inputs")), 1);
    assert_string_equal(mlo_json_str(input, "type", ""), "float32");
    assert_null(json_object_get(input, "optional"));
    assert_int_equal(json_array_size(shape), 4);
    assert_true(json_is_string(json_array_get(shape, 0))); /* a free batch */
    assert_int_equal(json_integer_value(json_array_get(shape, 2)), 28);
    char why[200];
    assert_true(mlo_signature_compatible(signature, signature, why, sizeof why));
    json_decref(signature);
    assert_int_equal(mlo_signature_of_model(MLOPT_SOURCE_DIR "/deploy/README.md", &signature, &err),
                     MLO_EFORMAT);
    assert_null(signature);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_labels__are_read_in_three_forms),
        cmocka_unit_test(test_labels__that_are_none_are_named),
        cmocka_unit_test(test_signature__of_the_example_model),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
