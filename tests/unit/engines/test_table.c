#include "helpers.h"

static void test_table__is_complete_and_sorted(void **state)
{
    MLO_UNUSED(state);
    size_t count;
    const struct mlo_engine *const *table = mlo_engine_table(&count);
    assert_true(count >= 2);
    for (size_t i = 0; i < count; i++) {
        const struct mlo_engine *found;
        MUST(mlo_engine_find(table[i]->name, &found, err));
        assert_ptr_equal(found, table[i]);
        assert_non_null(table[i]->version());
        if (i)
            assert_true(strcmp(table[i - 1]->name, table[i]->name) < 0);
    }
}

static void test_table__names_engines_when_unknown(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    const struct mlo_engine *e;
    assert_int_equal(mlo_engine_find("gpu", &e, &err), MLO_ENOTFOUND);
    assert_non_null(strstr(err.message, "'gpu'"));
    assert_non_null(strstr(err.hint, "cpu, cuda, external, openvino, ort, reference, tensorrt"));
}

static void test_version__names_onednn(void **state)
{
    MLO_UNUSED(state);
    const struct mlo_engine *e;
    MUST(mlo_engine_find("cpu", &e, err));
    assert_non_null(strstr(e->version(), "oneDNN"));
}

static void test_isa__environment_lowers_and_never_raises(void **state)
{
    MLO_UNUSED(state);
    const char *old = getenv("MLOPT_ISA");
    char *kept = old ? strdup(old) : NULL;
    unsetenv("MLOPT_ISA");
    enum mlo_isa best = mlo_isa_current();
    setenv("MLOPT_ISA", "generic", 1);
    assert_int_equal(mlo_isa_current(), MLO_ISA_GENERIC);
    setenv("MLOPT_ISA", mlo_isa_name(best), 1);
    assert_int_equal(mlo_isa_current(), best);
    setenv("MLOPT_ISA", "avx512-fp16", 1);
    assert_int_equal(mlo_isa_current(), best);
    setenv("MLOPT_ISA", "avx512-vnni", 1);
    assert_int_equal(mlo_isa_current(), MLO_MIN(best, MLO_ISA_AVX512_VNNI));
    setenv("MLOPT_ISA", "avx2", 1);
    assert_true(mlo_isa_current() <= MLO_ISA_AVX2);
    if (best >= MLO_ISA_AVX2) {
        assert_true(mlo_machine_satisfies("cpu:avx2"));
        assert_false(mlo_machine_satisfies("cpu:avx512-vnni"));
    }
    unsetenv("MLOPT_ISA");
    if (kept)
        setenv("MLOPT_ISA", kept, 1);
    free(kept);
}

static void test_isa__a_misspelt_environment_is_an_error(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error wrong = {0};
    const struct mlo_engine *cpu;
    const char *old = getenv("MLOPT_ISA");
    char *kept = old ? strdup(old) : NULL;
    MUST(mlo_engine_find("cpu", &cpu, err));
    setenv("MLOPT_ISA", "avx51", 1);
    assert_int_equal(cpu->probe(&wrong), MLO_EINVAL);
    assert_non_null(strstr(wrong.message, "'avx51'"));
    assert_non_null(strstr(wrong.hint, "avx512"));
    unsetenv("MLOPT_ISA");
    MUST(mlo_isa_check(err));
    if (kept)
        setenv("MLOPT_ISA", kept, 1);
    free(kept);
}

static void test_machine__describes_itself(void **state)
{
    MLO_UNUSED(state);
    char name[128];
    json_t *m = NULL;
    MUST(mlo_machine_describe(&m, err));
    mlo_machine_class(name, sizeof name);
    assert_string_equal(json_string_value(json_object_get(m, "class")), name);
    assert_non_null(strchr(name, '/'));
    for (const char *p = name; *p; p++)
        assert_true((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || strchr("-/", *p));
    assert_true(json_integer_value(json_object_get(m, "cores")) >= 1);
    assert_true(mlo_machine_satisfies("any"));
    assert_false(mlo_machine_satisfies("cuda:sm999"));
    assert_false(mlo_machine_satisfies("cpu:unheard-of"));
    json_decref(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table__is_complete_and_sorted),
        cmocka_unit_test(test_table__names_engines_when_unknown),
        cmocka_unit_test(test_version__names_onednn),
        cmocka_unit_test(test_isa__environment_lowers_and_never_raises),
        cmocka_unit_test(test_isa__a_misspelt_environment_is_an_error),
        cmocka_unit_test(test_machine__describes_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
