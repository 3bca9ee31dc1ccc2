#include "passes/passes.h"
#include "tests/cm.h"

static const char *const COLOURS[] = {"red", "green", NULL};
static const struct mlo_option_spec SPECS[] = {
    {.name = "flag", .type = MLO_OPT_BOOL, .fallback = "true"},
    {.name = "count", .type = MLO_OPT_INT, .fallback = "3", .min = 1, .max = 9},
    {.name = "share", .type = MLO_OPT_FLOAT, .fallback = "99.5", .min = 0, .max = 100},
    {.name = "colour", .type = MLO_OPT_STRING, .fallback = "red", .choices = COLOURS},
    {.name = "nodes", .type = MLO_OPT_STRINGS, .fallback = "a, b"},
    {.name = "batch", .type = MLO_OPT_INTS, .fallback = "1, 8", .min = 1, .max = 64},
    {NULL},
};

/* The resolved options as canonical text, or the error. */
static enum mlo_status resolve(const char *given, struct mlo_buf *text, struct mlo_error *err)
{
    json_t *options = given ? json_loads(given, 0, NULL) : NULL, *resolved = NULL;
    enum mlo_status status = mlo_options_resolve(SPECS, options, &resolved, err);
    mlo_buf_reset(text);
    if (status == MLO_OK)
        mlo_json_canonical(resolved, text);
    else
        assert_null(resolved);
    json_decref(options);
    json_decref(resolved);
    return status;
}

static void test_options__defaults_are_all_present(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    const char *defaults = "{\"batch\":[1,8],\"colour\":\"red\",\"count\":3,\"flag\":true,\"nodes\":[\"a\","
                           "\"b\"],\"share\":99.5}";
    assert_ok(resolve(NULL, &text, &err));
    assert_string_equal(mlo_buf_str(&text), defaults);
    assert_ok(resolve("{}", &text, &err));
    assert_string_equal(mlo_buf_str(&text), defaults);
    mlo_buf_clear(&text);
}

static void test_options__values_get_one_form(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf a = MLO_BUF_INIT, b = MLO_BUF_INIT;
    assert_ok(resolve("{\"share\": 50, \"batch\": 4, \"nodes\": [], \"flag\": false}", &a, &err));
    assert_ok(resolve("{\"share\": 50.0, \"batch\": [4], \"nodes\": \"\", \"flag\": \"false\"}", &b, &err));
    assert_string_equal(mlo_buf_str(&a), mlo_buf_str(&b));
    assert_contains(mlo_buf_str(&a), "\"batch\":[4]");
    assert_contains(mlo_buf_str(&a), "\"nodes\":[]");
    mlo_buf_clear(&a);
    mlo_buf_clear(&b);
}

static void test_options__mistakes_are_named(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *given, *message, *where, *hint;
    } CASES[] = {
        {"{\"cout\": 2}", "unknown option 'cout'", "option 'cout'", "did you mean 'count'?"},
        {"{\"zzzzzzzz\": 2}", "unknown option", "zzzzzzzz", "the options are: flag, count"},
        {"{\"count\": 10}", "'count' is 10; it must lie in 1 to 9", "option 'count'", ""},
        {"{\"count\": 1.5}", "must be a whole number, not 1.5", "option 'count'", ""},
        {"{\"flag\": 1}", "must be true or false, not 1", "option 'flag'", ""},
        {"{\"colour\": \"gren\"}", "the choices are: red, green", "option 'colour'", "did you mean 'green'?"},
        {"{\"nodes\": [1]}", "must be a list of texts", "option 'nodes'", ""},
        {"{\"batch\": [1, 65]}", "'batch' is 65", "option 'batch'", ""},
        {"{\"share\": \"many\"}", "must be a number, not \"many\"", "option 'share'", ""},
        {"[]", "must be a mapping", "", ""},
    };
    struct mlo_buf text = MLO_BUF_INIT;
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_error err = {0};
        assert_int_equal(resolve(CASES[i].given, &text, &err), MLO_EINVAL);
        assert_contains(err.message, CASES[i].message);
        assert_contains(err.where, CASES[i].where);
        assert_contains(err.hint, CASES[i].hint);
    }
    mlo_buf_clear(&text);
}

static void test_options__required_means_required(void **state)
{
    MLO_UNUSED(state);
    static const struct mlo_option_spec NEEDED[] = {
        {.name = "metric", .type = MLO_OPT_STRING, .description = "what to measure"}, {NULL}};
    struct mlo_error err = {0};
    json_t *resolved;
    assert_int_equal(mlo_options_resolve(NEEDED, NULL, &resolved, &err), MLO_EINVAL);
    assert_contains(err.message, "'metric' is required");
    assert_contains(err.hint, "what to measure");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options__defaults_are_all_present),
        cmocka_unit_test(test_options__values_get_one_form),
        cmocka_unit_test(test_options__mistakes_are_named),
        cmocka_unit_test(test_options__required_means_required),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
