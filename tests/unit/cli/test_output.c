/* Tables, durations, configuration, atomic installs. */
#include "tests/cm.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/cli/core/cli.h"

static void test_table__aligns_columns_by_characters(void **state)
{
    MLO_UNUSED(state);
    struct mlo_table table;
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_table_init(&table, "name|size>|note");
    mlo_table_row(&table, "a", "12", "±1");
    mlo_table_row(&table, "long name", "3", NULL);
    mlo_table_render(&table, false, &text);
    assert_string_equal(mlo_buf_str(&text), "name       size  note\n"
                                            "a            12  ±1\n"
                                            "long name     3  -\n");
    mlo_buf_clear(&text);
    mlo_table_clear(&table);
}

static void test_table__no_escape_codes_from_texts(void **state)
{
    MLO_UNUSED(state);
    struct mlo_table table;
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_table_init(&table, "reason");
    mlo_table_row(&table, "\033[2Jgone\nnext");
    mlo_table_render(&table, false, &text);
    assert_null(strchr(mlo_buf_str(&text), '\033'));
    assert_contains(mlo_buf_str(&text), "gone next\n");
    mlo_buf_clear(&text);
    mlo_table_clear(&table);
}

static void test_table__grows(void **state)
{
    MLO_UNUSED(state);
    struct mlo_table table;
    struct mlo_buf text = MLO_BUF_INIT;
    char cell[16];
    mlo_table_init(&table, "a|b|c");
    for (int i = 0; i < 1000; i++) {
        snprintf(cell, sizeof cell, "%d", i);
        mlo_table_row(&table, cell, "x", "y");
    }
    assert_int_equal(table.rows, 1001);
    mlo_table_render(&table, false, &text);
    assert_contains(mlo_buf_str(&text), "\n0    x  y\n");
    assert_contains(mlo_buf_str(&text), "\n999  x  y\n");
    mlo_buf_clear(&text);
    mlo_table_clear(&table);
}

static void test_duration__picks_the_unit(void **state)
{
    MLO_UNUSED(state);
    char text[32];
    assert_string_equal(mlo_cli_duration(12.34, text), "12.3 us");
    assert_string_equal(mlo_cli_duration(812, text), "812 us");
    assert_string_equal(mlo_cli_duration(1234, text), "1.23 ms");
    assert_string_equal(mlo_cli_duration(2.5e6, text), "2.50 s");
}

static void test_config__text(void **state)
{
    MLO_UNUSED(state);
    struct mlo_config config = {0};
    struct mlo_error err = {0};
    assert_ok(mlo_config_parse("# a comment\n\n url = http://x:1 \r\ntoken=abc\n", "config", &config, &err));
    assert_string_equal(config.url, "http://x:1");
    assert_string_equal(config.token, "abc");
    mlo_config_clear(&config);
    assert_int_equal(mlo_config_parse("url = a\ntokn = b\n", "config", &config, &err), MLO_EFORMAT);
    assert_string_equal(err.where, "config:2");
    assert_contains(err.hint, "token");
    mlo_config_clear(&config);
    assert_int_equal(mlo_config_parse("just words\n", "config", &config, &err), MLO_EFORMAT);
    mlo_config_clear(&config);
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_config__flag_over_environment_over_file(void **state)
{
    MLO_UNUSED(state);
    struct mlo_config config;
    struct mlo_error err = {0};
    char *dir = NULL;
    assert_ok(mlo_fs_tempdir(NULL, "mlopt-cfg-", &dir, &err));
    char *folder = mlo_fs_join(dir, "mlopt", NULL), *path = mlo_fs_join(dir, "mlopt", "config", NULL);
    assert_ok(mlo_fs_mkdirs(folder, &err));
    setenv("XDG_CONFIG_HOME", dir, 1);
    unsetenv("MLOPT_URL");
    unsetenv("MLOPT_TOKEN");

    assert_ok(mlo_config_load(NULL, &config, &err)); /* no file yet */
    assert_string_equal(config.url, MLO_DEFAULT_URL);
    assert_null(config.token);
    mlo_config_clear(&config);

    write_text(path, "url = http://file:1/\ntoken = t1\n");
    chmod(path, 0644);
    assert_int_equal(mlo_config_load(NULL, &config, &err), MLO_EAUTH); /* others can read the token */
    assert_contains(err.hint, "chmod 600");
    chmod(path, 0600);
    assert_ok(mlo_config_load(NULL, &config, &err));
    assert_string_equal(config.url, "http://file:1");
    assert_string_equal(config.token, "t1");
    mlo_config_clear(&config);

    setenv("MLOPT_URL", "http://env:2", 1);
    setenv("MLOPT_TOKEN", "t2", 1);
    assert_ok(mlo_config_load(NULL, &config, &err));
    assert_string_equal(config.url, "http://env:2");
    assert_string_equal(config.token, "t2");
    mlo_config_clear(&config);
    assert_ok(mlo_config_load("http://flag:3", &config, &err));
    assert_string_equal(config.url, "http://flag:3");
    assert_string_equal(config.url_from, "--url");
    mlo_config_clear(&config);
    assert_int_equal(mlo_config_load("flag:3", &config, &err), MLO_EUSAGE);

    mlo_fs_remove_tree(dir);
    free(folder);
    free(path);
    free(dir);
}

static void test_install__whole_or_untouched(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    char *dir = NULL;
    struct mlo_buf text = MLO_BUF_INIT;
    assert_ok(mlo_fs_tempdir(NULL, "mlopt-inst-", &dir, &err));
    char *from = mlo_fs_join(dir, "from", NULL), *to = mlo_fs_join(dir, "to", NULL);
    char *absent = mlo_fs_join(dir, "absent", NULL), *bad = mlo_fs_join(dir, "no", "such", "folder", NULL);
    write_text(from, "new");
    write_text(to, "old");
    assert_int_equal(mlo_cli_install(absent, to, &err), MLO_ENOTFOUND);
    assert_ok(mlo_fs_read(to, 100, &text, &err));
    assert_string_equal(mlo_buf_str(&text), "old");
    assert_ok(mlo_cli_install(from, to, &err));
    mlo_buf_reset(&text);
    assert_ok(mlo_fs_read(to, 100, &text, &err));
    assert_string_equal(mlo_buf_str(&text), "new");
    assert_ok(mlo_cli_check_output(to, &err));
    assert_int_equal(mlo_cli_check_output(bad, &err), MLO_ENOTFOUND);
    mlo_buf_clear(&text);
    mlo_fs_remove_tree(dir);
    free(from);
    free(to);
    free(absent);
    free(bad);
    free(dir);
}

static void test_scratch__is_removed(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    const char *path = NULL, *within = NULL;
    assert_ok(mlo_cli_scratch(NULL, &path, &err));
    /* as a download into it makes one of its own */
    assert_ok(mlo_cli_scratch(path, &within, &err));
    char *copy = strdup(path), *copy_within = strdup(within);
    assert_true(mlo_fs_exists(copy_within));
    mlo_cli_scratch_remove(within);
    assert_false(mlo_fs_exists(copy_within));
    assert_true(mlo_fs_exists(path));
    assert_string_equal(path, copy);
    mlo_cli_scratch_remove(path);
    assert_false(mlo_fs_exists(copy));
    mlo_cli_scratch_remove(NULL);
    free(copy);
    free(copy_within);
}

static void test_rate__says_what_is_left(void **state)
{
    MLO_UNUSED(state);
    struct mlo_cli_rate rate = {0};
    const uint64_t second = 1000000000u;
    uint64_t now = 5 * second;
    mlo_cli_rate_add(&rate, now,
                     0.25); /* an upload that is taken up again: what was there before says no speed */
    assert_true(mlo_cli_rate_left(&rate) < 0);
    mlo_cli_rate_add(&rate, now + second / 2, 0.30);
    assert_true(mlo_cli_rate_left(&rate) < 0); /* too early to say */
    for (int i = 1; i <= 4; i++)
        mlo_cli_rate_add(&rate, now + (uint64_t)i * second, 0.25 + 0.1 * i);
    assert_float_equal(mlo_cli_rate_left(&rate), 3.5, 0.05); /* 0.35 at 0.1 a second */
    for (int i = 5; i <= 30; i++)                            /* then it stands */
        mlo_cli_rate_add(&rate, now + (uint64_t)i * second, 0.65);
    assert_true(mlo_cli_rate_left(&rate) > 200);
    mlo_cli_rate_add(&rate, now + 31 * second, 0.1); /* and begins anew */
    assert_true(mlo_cli_rate_left(&rate) < 0);
}

static void test_left__picks_the_unit(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0 s"},          {7.2, "8 s"},        {59.5, "1 min 0 s"},
                 {200, "3 min 20 s"}, {7500, "2 h 5 min"}, {999999, "277 h 46 min"}};
    char text[32];
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        assert_string_equal(mlo_cli_left(cases[i].seconds, text), cases[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table__aligns_columns_by_characters),
        cmocka_unit_test(test_table__no_escape_codes_from_texts),
        cmocka_unit_test(test_table__grows),
        cmocka_unit_test(test_duration__picks_the_unit),
        cmocka_unit_test(test_rate__says_what_is_left),
        cmocka_unit_test(test_left__picks_the_unit),
        cmocka_unit_test(test_config__text),
        cmocka_unit_test(test_config__flag_over_environment_over_file),
        cmocka_unit_test(test_install__whole_or_untouched),
        cmocka_unit_test(test_scratch__is_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
