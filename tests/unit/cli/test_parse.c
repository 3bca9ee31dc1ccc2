/* The command line: verbs, options, errors, help, completion. */
#include <signal.h>

#include "tests/cm.h"

#include "api/cli/core/cli.h"

static enum mlo_status no_run(struct mlo_cli *cli, struct mlo_error *err)
{
    MLO_UNUSED(cli);
    MLO_UNUSED(err);
    return MLO_OK;
}

static const char *const colours[] = {"red", "green", NULL};
static const struct mlo_cli_option paint_options[] = {
    {"colour", 'c', "NAME", "which colour", colours},
    {"layer", 0, "N", "a layer", NULL, true},
    {"count", 0, "N", "how many"},
    {"share", 0, "F", "how much"},
    {"wet", 'w', NULL, "do not wait"},
    {NULL},
};
static const struct mlo_cli_verb paint = {
    .name = "paint",
    .group = "Work",
    .run = no_run,
    .options = paint_options,
    .positional = "WALL [WALL2]",
    .min_args = 1,
    .max_args = 2,
    .help = "paint a wall",
    .detail = "  mlopt paint north\n",
};
static const struct mlo_cli_verb data_push = {
    .name = "data push",
    .group = "Work",
    .run = no_run,
    .positional = "NAME",
    .min_args = 1,
    .max_args = -1,
    .help = "send data",
};
static const struct mlo_cli_verb hidden = {
    .name = "inner",
    .group = "Work",
    .run = no_run,
    .positional = "",
    .help = "not shown",
    .flags = MLO_CLI_HIDDEN,
};
static const struct mlo_cli_verb *const table[] = {&paint, &data_push, &hidden};

/* The words are kept until the next call: what was parsed borrows them. */
static enum mlo_status parse(struct mlo_cli *cli, struct mlo_error *err, const char *const *words)
{
    static char text[16][64];
    static char *argv[17];
    int argc = 0;
    for (; words[argc] && argc < 16; argc++) {
        snprintf(text[argc], sizeof text[argc], "%s", words[argc]);
        argv[argc] = text[argc];
    }
    argv[argc] = NULL;
    memset(err, 0, sizeof *err);
    return mlo_cli_parse(cli, table, MLO_COUNT(table), argc, argv, err);
}
#define PARSE(...) parse(&cli, &err, (const char *const[]){"mlopt", __VA_ARGS__, NULL})

static void test_parse__verb_with_options_and_arguments(void **state)
{
    MLO_UNUSED(state);
    struct mlo_cli cli;
    struct mlo_error err;
    int64_t n;
    double f;
    assert_ok(PARSE("paint", "north", "--colour", "red", "--layer=1", "-w", "south", "--layer", "2"));
    assert_ptr_equal(cli.verb, &paint);
    assert_int_equal(cli.arg_count, 2);
    assert_string_equal(cli.args[0], "north");
    assert_string_equal(cli.args[1], "south");
    assert_string_equal(mlo_cli_opt(&cli, "colour"), "red");
    assert_string_equal(mlo_cli_opt_at(&cli, "layer", 1), "2");
    assert_null(mlo_cli_opt_at(&cli, "layer", 2));
    assert_true(mlo_cli_has(&cli, "wet"));
    assert_false(mlo_cli_has(&cli, "count"));
    assert_ok(mlo_cli_int(&cli, "count", 7, 1, 9, &n, &err));
    assert_int_equal(n, 7);
    assert_ok(mlo_cli_float(&cli, "share", 0.5, 0, 1, &f, &err));
    assert_true(f == 0.5);
    mlo_cli_clear(&cli);
}

static void test_parse__global_options_before_and_behind_the_verb(void **state)
{
    MLO_UNUSED(state);
    struct mlo_cli cli;
    struct mlo_error err;
    assert_ok(PARSE("-o", "json", "paint", "north", "-q", "--progress", "none", "--no-input"));
    assert_true(cli.json && cli.quiet && cli.no_input);
    assert_int_equal(cli.progress_mode, MLO_PROGRESS_NONE);
    mlo_cli_clear(&cli);
    assert_ok(PARSE("--help"));
    assert_true(cli.want_help);
    assert_null(cli.verb);
    mlo_cli_clear(&cli);
    assert_ok(PARSE("paint", "--help"));
    assert_true(cli.want_help); /* and the missing argument is no error then */
    mlo_cli_clear(&cli);
}

static void test_parse__verb_of_two_words(void **state)
{
    MLO_UNUSED(state);
    struct mlo_cli cli;
    struct mlo_error err;
    assert_ok(PARSE("data", "push", "a", "b", "--", "-c"));
    assert_ptr_equal(cli.verb, &data_push);
    assert_int_equal(cli.arg_count, 3);
    assert_string_equal(cli.args[2], "-c");
    mlo_cli_clear(&cli);
    assert_int_equal(PARSE("data"), MLO_EUSAGE);
    assert_contains(err.hint, "mlopt data push");
    mlo_cli_clear(&cli);
}

static void test_parse__unknown_words_are_suggested(void **state)
{
    MLO_UNUSED(state);
    struct mlo_cli cli;
    struct mlo_error err;
    assert_int_equal(PARSE("pant", "x"), MLO_EUSAGE);
    assert_contains(err.message, "pant");
    assert_contains(err.hint, "mlopt paint");
    mlo_cli_clear(&cli);
    assert_int_equal(PARSE("paint", "x", "--color", "red"), MLO_EUSAGE);
    assert_contains(err.hint, "--colour");
    mlo_cli_clear(&cli);
    assert_int_equal(PARSE("paint", "x", "--colour", "gren"), MLO_EUSAGE);
    assert_contains(err.message, "red, green");
    assert_contains(err.hint, "green");
    mlo_cli_clear(&cli);
    assert_int_equal(PARSE("paint", "x", "-Z"), MLO_EUSAGE);
    assert_contains(err.message, "-Z");
    mlo_cli_clear(&cli);
    assert_int_equal(PARSE("inne"), MLO_EUSAGE);
    assert_null(strstr(err.hint, "inner")); /* hidden ones are not offered */
    mlo_cli_clear(&cli);
}

static void test_parse__values_are_checked(void **state)
{
    MLO_UNUSED(state);
    struct mlo_cli cli;
    struct mlo_error err;
    int64_t n;
    assert_int_equal(PARSE("paint", "x", "--count"), MLO_EUSAGE);
    assert_contains(err.message, "--count needs a value");
    mlo_cli_clear(&cli);
    assert_int_equal(PARSE("paint", "x", "--wet=1"), MLO_EUSAGE);
    assert_contains(err.message, "--wet takes no value");
    mlo_cli_clear(&cli);
    assert_int_equal(PARSE("paint", "x", "--count", "1", "--count", "2"), MLO_EUSAGE);
    assert_contains(err.message, "twice");
    mlo_cli_clear(&cli);
    assert_ok(PARSE("paint", "x", "--count", "12x"));
    assert_int_equal(mlo_cli_int(&cli, "count", 0, 0, 9, &n, &err), MLO_EUSAGE);
    mlo_cli_clear(&cli);
    assert_ok(PARSE("paint", "x", "--count", "12"));
    assert_int_equal(mlo_cli_int(&cli, "count", 0, 0, 9, &n, &err), MLO_EUSAGE);
    assert_contains(err.message, "0 … 9");
    mlo_cli_clear(&cli);
    assert_int_equal(PARSE("paint"), MLO_EUSAGE);
    assert_contains(err.message, "WALL");
    mlo_cli_clear(&cli);
    assert_int_equal(PARSE("paint", "a", "b", "c"), MLO_EUSAGE);
    assert_contains(err.message, "'c'");
    mlo_cli_clear(&cli);
}

static void test_check__finds_what_hides_a_global_option(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    static const struct mlo_cli_option bad_options[] = {{"quiet", 0, NULL, "hides the global one"}, {NULL}};
    struct mlo_cli_verb bad = paint;
    const struct mlo_cli_verb *const twice[] = {&paint, &paint}, *const hides[] = {&bad};
    assert_ok(mlo_cli_check(table, MLO_COUNT(table), &err));
    assert_int_equal(mlo_cli_check(twice, 2, &err), MLO_EINTERNAL);
    bad.options = bad_options;
    assert_int_equal(mlo_cli_check(hides, 1, &err), MLO_EINTERNAL);
    bad = paint;
    bad.help = NULL;
    assert_int_equal(mlo_cli_check(hides, 1, &err), MLO_EINTERNAL);
}

static void test_help__is_made_from_the_table(void **state)
{
    MLO_UNUSED(state);
    const struct mlo_cli cli = {.verbs = table, .verb_count = MLO_COUNT(table)};
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_cli_help(&cli, &text);
    assert_contains(mlo_buf_str(&text), "paint a wall");
    assert_contains(mlo_buf_str(&text), "data push");
    assert_null(strstr(mlo_buf_str(&text), "inner"));
    mlo_buf_reset(&text);
    mlo_cli_help_verb(&paint, &text);
    assert_contains(mlo_buf_str(&text), "usage: mlopt paint [options] WALL [WALL2]");
    assert_contains(mlo_buf_str(&text), "-c, --colour NAME");
    assert_contains(mlo_buf_str(&text), "--no-input");
    mlo_buf_reset(&text);
    mlo_cli_man(&cli, &text);
    assert_contains(mlo_buf_str(&text), ".SS \"mlopt data push NAME\"");
    assert_contains(mlo_buf_str(&text), "\\-\\-colour\\fR \\fINAME");
    assert_contains(mlo_buf_str(&text), "(one of red, green)");
    assert_null(strstr(mlo_buf_str(&text), "inner"));
    mlo_buf_clear(&text);
}

/* What the shells make of it is tested with them: tests/e2e/test_terminal.py. */
static void test_completion__is_made_from_the_table(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *shell, *parts[4];
    } cases[] = {
        {"bash",
         {"complete -o filenames -F _mlopt mlopt", "\"data push\")", "--colour|-c) words=\"red green\"",
          "--wet"}},
        {"zsh",
         {"#compdef mlopt", "'data push')", "'--colour=[which colour]:NAME:(red green)'",
          "'push:send data'"}},
        {"fish",
         {"-n '__mlopt_verb \"paint\"' -l colour -s c -x -a 'red green' -d 'which colour'",
          "-a push -d 'send data'", "-a paint -d 'paint a wall'", "-l no-input"}},
    };
    const struct mlo_cli cli = {.verbs = table, .verb_count = MLO_COUNT(table)};
    struct mlo_error err = {0};
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_buf text = MLO_BUF_INIT;
        assert_ok(mlo_cli_completion(&cli, cases[i].shell, &text, &err));
        for (size_t p = 0; p < MLO_COUNT(cases[i].parts); p++)
            assert_contains(mlo_buf_str(&text), cases[i].parts[p]);
        assert_null(strstr(mlo_buf_str(&text), "inner"));
        mlo_buf_clear(&text);
    }
    struct mlo_buf text = MLO_BUF_INIT;
    assert_int_equal(mlo_cli_completion(&cli, "tcsh", &text, &err), MLO_EUSAGE);
    mlo_buf_clear(&text);
}

static void assert_listed(int code)
{
    for (const struct mlo_cli_exit_code *c = mlo_cli_exit_codes(); c->text; c++)
        if (c->code == code)
            return;
    fail_msg("exit code %d is not listed", code);
}

/* How a program can end, by itself or by a signal, is in the list that help and man page print. */
static void test_exit_codes__are_all_listed(void **state)
{
    static const int signals[] = {SIGINT, SIGPIPE, SIGTERM};
    MLO_UNUSED(state);
    for (int s = 0; s < MLO_STATUS_COUNT; s++)
        assert_listed(mlo_status_info((enum mlo_status)s)->exit_code);
    for (size_t i = 0; i < MLO_COUNT(signals); i++)
        assert_listed(128 + signals[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse__verb_with_options_and_arguments),
        cmocka_unit_test(test_parse__global_options_before_and_behind_the_verb),
        cmocka_unit_test(test_parse__verb_of_two_words),
        cmocka_unit_test(test_parse__unknown_words_are_suggested),
        cmocka_unit_test(test_parse__values_are_checked),
        cmocka_unit_test(test_check__finds_what_hides_a_global_option),
        cmocka_unit_test(test_help__is_made_from_the_table),
        cmocka_unit_test(test_completion__is_made_from_the_table),
        cmocka_unit_test(test_exit_codes__are_all_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
