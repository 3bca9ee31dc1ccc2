#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/core/cli.h"

static const char *const output_choices[] = {"table", "json", NULL};
static const char *const progress_choices[] = {"auto", "plain", "none", "json", NULL};

static const struct mlo_cli_option global_options[] = {
    {"output", 'o', "table|json", "how results are printed (table)", output_choices},
    {"progress", 0, "MODE", "auto, plain, none or json, on stderr (auto)", progress_choices},
    {"quiet", 'q', NULL, "no notes and no progress"},
    {"no-input", 0, NULL, "never ask; fail where an answer is needed"},
    {"help", 'h', NULL, "help, of the program or of the verb"},
    {"version", 0, NULL, "the program's version"},
    {NULL},
};

const struct mlo_cli_option *mlo_cli_global_options(void)
{
    return global_options;
}

static const struct mlo_cli_option *find_option(const struct mlo_cli_option *options, const char *name)
{
    for (; options && options->name; options++)
        if (strcmp(options->name, name) == 0)
            return options;
    return NULL;
}

enum mlo_status mlo_cli_check(const struct mlo_cli_verb *const *verbs, size_t count, struct mlo_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const struct mlo_cli_verb *v = verbs[i];
        if (!v->name || !v->run || !v->help || !v->positional || !v->group)
            return mlo_error_set(err, MLO_EINTERNAL, "verb %zu (%s) is not complete", i,
                                 v->name ? v->name : "?");
        if (v->max_args >= 0 && v->max_args < v->min_args)
            return mlo_error_set(err, MLO_EINTERNAL, "verb %s wants at least %d and at most %d arguments",
                                 v->name, v->min_args, v->max_args);
        for (size_t j = 0; j < i; j++)
            if (strcmp(verbs[j]->name, v->name) == 0)
                return mlo_error_set(err, MLO_EINTERNAL, "verb %s is there twice", v->name);
        for (const struct mlo_cli_option *o = v->options; o && o->name; o++) {
            if (!o->help)
                return mlo_error_set(err, MLO_EINTERNAL, "option --%s of %s has no help", o->name, v->name);
            for (const struct mlo_cli_option *g = global_options; g->name; g++)
                if (strcmp(g->name, o->name) == 0 || (o->letter && g->letter == o->letter))
                    return mlo_error_set(err, MLO_EINTERNAL, "option --%s of %s hides a global one", o->name,
                                         v->name);
        }
    }
    return MLO_OK;
}

/* --- getopt_long, twice: the options before the verb, then all of them ------------------------------------
 */

enum { FIRST_LONG = 256 };

struct getopt_tables {
    struct option *longs;
    const struct mlo_cli_option **rows; /* by val - FIRST_LONG */
    char *shorts;
    size_t count;
};

static void tables_clear(struct getopt_tables *t)
{
    free(t->longs);
    free(t->rows);
    free(t->shorts);
}

static enum mlo_status tables_build(struct getopt_tables *t, const struct mlo_cli_option *more,
                                    const char *first, struct mlo_error *err)
{
    const struct mlo_cli_option *sets[] = {global_options, more};
    size_t n = 0, letters = strlen(first);
    for (size_t s = 0; s < 2; s++)
        for (const struct mlo_cli_option *o = sets[s]; o && o->name; o++)
            n++;
    t->longs = calloc(n + 1, sizeof *t->longs);
    t->rows = calloc(n + 1, sizeof *t->rows);
    t->shorts = calloc(letters + 2 * n + 2, 1);
    if (!t->longs || !t->rows || !t->shorts)
        return mlo_error_nomem(err);
    memcpy(t->shorts, first, letters);
    for (size_t s = 0; s < 2; s++) {
        for (const struct mlo_cli_option *o = sets[s]; o && o->name; o++) {
            t->longs[t->count].name = o->name;
            t->longs[t->count].has_arg = o->value ? required_argument : no_argument;
            t->longs[t->count].val = FIRST_LONG + (int)t->count;
            t->rows[t->count++] = o;
            if (o->letter) {
                t->shorts[letters++] = o->letter;
                if (o->value)
                    t->shorts[letters++] = ':';
            }
        }
    }
    return MLO_OK;
}

static const struct mlo_cli_option *row_of(const struct getopt_tables *t, int c)
{
    if (c >= FIRST_LONG && (size_t)(c - FIRST_LONG) < t->count)
        return t->rows[c - FIRST_LONG];
    for (size_t i = 0; i < t->count; i++)
        if (t->rows[i]->letter && t->rows[i]->letter == c)
            return t->rows[i];
    return NULL;
}

static void verb_hint(const struct mlo_cli *cli, struct mlo_error *err)
{
    mlo_error_hint(err, cli->verb ? "mlopt %s --help" : "mlopt --help%s", cli->verb ? cli->verb->name : "");
}

static enum mlo_status unknown_option(const struct mlo_cli *cli, const struct getopt_tables *t,
                                      const char *word, struct mlo_error *err)
{
    mlo_error_set(err, MLO_EUSAGE, "unknown option %s", word);
    if (mlo_str_starts(word, "--")) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)MLO_MIN(strcspn(word + 2, "="), sizeof name - 1), word + 2);
        const char *known[64];
        size_t n = 0;
        for (size_t i = 0; i < t->count && n < MLO_COUNT(known); i++)
            known[n++] = t->rows[i]->name;
        const char *near = mlo_suggest(name, known, n);
        size_t matches = 0;
        for (size_t i = 0; i < n; i++)
            matches += mlo_str_starts(known[i], name);
        if (matches > 1)
            mlo_error_set(err, MLO_EUSAGE, "option %s could be several", word);
        else if (near)
            mlo_error_hint(err, "did you mean --%s?", near);
    }
    verb_hint(cli, err);
    return err ? err->status : MLO_EUSAGE;
}

static enum mlo_status check_choice(const struct mlo_cli_option *o, const char *value, struct mlo_error *err)
{
    if (!o->choices)
        return MLO_OK;
    size_t n = 0;
    struct mlo_buf list = MLO_BUF_INIT;
    for (; o->choices[n]; n++)
        if (strcmp(o->choices[n], value) == 0)
            return MLO_OK;
    mlo_buf_names(&list, o->choices, n);
    mlo_error_set(err, MLO_EUSAGE, "--%s cannot be '%s': it is one of %s", o->name, value,
                  mlo_buf_str(&list));
    const char *near = mlo_suggest(value, o->choices, n);
    if (near)
        mlo_error_hint(err, "did you mean --%s %s?", o->name, near);
    mlo_buf_clear(&list);
    return MLO_EUSAGE;
}

static void apply_global(struct mlo_cli *cli, const struct mlo_cli_option *o, const char *value)
{
    if (strcmp(o->name, "output") == 0)
        cli->json = strcmp(value, "json") == 0;
    else if (strcmp(o->name, "quiet") == 0)
        cli->quiet = true;
    else if (strcmp(o->name, "no-input") == 0)
        cli->no_input = true;
    else if (strcmp(o->name, "help") == 0)
        cli->want_help = true;
    else if (strcmp(o->name, "version") == 0)
        cli->want_version = true;
    else if (strcmp(o->name, "progress") == 0)
        for (int i = 0; progress_choices[i]; i++)
            if (strcmp(progress_choices[i], value) == 0)
                cli->progress_mode = (enum mlo_cli_progress_mode)i;
}

static bool is_global(const struct mlo_cli_option *o)
{
    return o >= global_options && o < global_options + MLO_COUNT(global_options);
}

/* One pass of getopt over argv; the positional words are then at argv[optind …]. */
static enum mlo_status parse_pass(struct mlo_cli *cli, const struct mlo_cli_option *options,
                                  const char *first, int argc, char **argv, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct getopt_tables t = {0};
    MLO_TRY(tables_build(&t, options, first, err));
    opterr = 0;
    optind = 0; /* glibc: start over, also after a pass with another table */
    for (;;) {
        int at = optind ? optind : 1;
        int c = getopt_long(argc, argv, t.shorts, t.longs, NULL);
        if (c < 0)
            break;
        const char *word = optind > 0 && optind <= argc ? argv[optind - 1] : argv[at];
        if (c == '?') {
            char text[3] = {'-', (char)optopt, 0};
            bool is_short = optopt > 0 && optopt < FIRST_LONG;
            const struct mlo_cli_option *o = optopt >= FIRST_LONG ? row_of(&t, optopt) : NULL;
            if (o) {
                status = mlo_error_set(err, MLO_EUSAGE, "--%s takes no value", o->name);
                verb_hint(cli, err);
            } else {
                unknown_option(cli, &t, is_short ? text : word, err);
                status = MLO_EUSAGE;
            }
            goto out;
        }
        if (c == ':') {
            const struct mlo_cli_option *o = row_of(&t, optopt);
            status = mlo_error_set(err, MLO_EUSAGE, "--%s needs a value: %s", o ? o->name : "?",
                                   o && o->value ? o->value : "VALUE");
            verb_hint(cli, err);
            goto out;
        }
        const struct mlo_cli_option *o = row_of(&t, c);
        const char *value = optarg ? optarg : "";
        MLO_TRY(check_choice(o, value, err));
        if (is_global(o)) {
            apply_global(cli, o, value);
            continue;
        }
        if (!o->repeat && mlo_cli_has(cli, o->name)) {
            status = mlo_error_set(err, MLO_EUSAGE, "--%s was given twice", o->name);
            goto out;
        }
        cli->given[cli->given_count++] = (struct mlo_cli_given){o, value};
    }
out:
    tables_clear(&t);
    return status;
}

/* The verb named by the first word, or by the first two; *words says how many it took. */
static const struct mlo_cli_verb *find_verb(const struct mlo_cli *cli, char **words, int count, int *took)
{
    for (int n = 2; n >= 1; n--) {
        char name[64];
        if (n > count)
            continue;
        snprintf(name, sizeof name, "%s%s%s", words[0], n == 2 ? " " : "", n == 2 ? words[1] : "");
        for (size_t i = 0; i < cli->verb_count; i++) {
            if (strcmp(cli->verbs[i]->name, name) == 0) {
                *took = n;
                return cli->verbs[i];
            }
        }
    }
    return NULL;
}

static enum mlo_status unknown_verb(const struct mlo_cli *cli, char **words, int count, struct mlo_error *err)
{
    const char *names[128];
    size_t n = 0;
    struct mlo_buf under = MLO_BUF_INIT;
    size_t first = strlen(words[0]);
    for (size_t i = 0; i < cli->verb_count && n < MLO_COUNT(names); i++) {
        if (cli->verbs[i]->flags & MLO_CLI_HIDDEN)
            continue;
        names[n++] = cli->verbs[i]->name;
        if (strncmp(names[n - 1], words[0], first) == 0 && names[n - 1][first] == ' ')
            mlo_buf_printf(&under, "%smlopt %s", under.len ? " or " : "", names[n - 1]);
    }
    if (under.len) {
        if (count > 1)
            mlo_error_set(err, MLO_EUSAGE, "unknown verb '%s %s'", words[0], words[1]);
        else
            mlo_error_set(err, MLO_EUSAGE, "'%s' needs a second word", words[0]);
        mlo_error_hint(err, "%s", mlo_buf_str(&under));
    } else {
        mlo_error_set(err, MLO_EUSAGE, "unknown verb '%s'", words[0]);
        const char *near = mlo_suggest(words[0], names, n);
        if (near)
            mlo_error_hint(err, "did you mean: mlopt %s?", near);
        mlo_error_hint(err, "mlopt --help");
    }
    mlo_buf_clear(&under);
    return MLO_EUSAGE;
}

enum mlo_status mlo_cli_parse(struct mlo_cli *cli, const struct mlo_cli_verb *const *verbs, size_t count,
                              int argc, char **argv, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    memset(cli, 0, sizeof *cli);
    cli->verbs = verbs;
    cli->verb_count = count;
    cli->given = calloc((size_t)argc + 1, sizeof *cli->given);
    if (!cli->given)
        return mlo_error_nomem(err);
    MLO_TRY(parse_pass(cli, NULL, "+:", argc, argv, err));
    int words = optind;
    if (words >= argc)
        goto out; /* no verb: the caller shows the help */
    int took = 0;
    cli->verb = find_verb(cli, argv + words, argc - words, &took);
    if (!cli->verb) {
        status = unknown_verb(cli, argv + words, argc - words, err);
        goto out;
    }
    /* The second pass begins behind the verb; getopt skips its argv[0]. */
    char **rest = argv + words + took - 1;
    int rest_count = argc - words - took + 1;
    MLO_TRY(parse_pass(cli, cli->verb->options, ":", rest_count, rest, err));
    cli->args = rest + optind;
    cli->arg_count = rest_count - optind;
    if (cli->want_help || cli->want_version)
        goto out;
    if (cli->arg_count < cli->verb->min_args) {
        status = mlo_error_set(err, MLO_EUSAGE, "an argument is missing: mlopt %s %s", cli->verb->name,
                               cli->verb->positional);
        verb_hint(cli, err);
    } else if (cli->verb->max_args >= 0 && cli->arg_count > cli->verb->max_args) {
        status =
            mlo_error_set(err, MLO_EUSAGE, "one argument too many: '%s'", cli->args[cli->verb->max_args]);
        verb_hint(cli, err);
    }
out:
    return status;
}

void mlo_cli_clear(struct mlo_cli *cli)
{
    free(cli->given);
    memset(cli, 0, sizeof *cli);
}

const char *mlo_cli_opt_at(const struct mlo_cli *cli, const char *name, size_t i)
{
    for (size_t g = 0; g < cli->given_count; g++)
        if (strcmp(cli->given[g].option->name, name) == 0 && i-- == 0)
            return cli->given[g].value;
    if (cli->verb && !find_option(cli->verb->options, name))
        abort();
    return NULL;
}

const char *mlo_cli_opt(const struct mlo_cli *cli, const char *name)
{
    return mlo_cli_opt_at(cli, name, 0);
}

bool mlo_cli_has(const struct mlo_cli *cli, const char *name)
{
    return mlo_cli_opt(cli, name) != NULL;
}

enum mlo_status mlo_cli_required(const struct mlo_cli *cli, const char *name, const char **out,
                                 struct mlo_error *err)
{
    *out = mlo_cli_opt(cli, name);
    if (*out)
        return MLO_OK;
    const struct mlo_cli_option *o = find_option(cli->verb->options, name);
    enum mlo_status status =
        mlo_error_set(err, MLO_EUSAGE, "--%s %s is required", name, o->value ? o->value : "");
    verb_hint(cli, err);
    return status;
}

enum mlo_status mlo_cli_int(const struct mlo_cli *cli, const char *name, int64_t fallback, int64_t min,
                            int64_t max, int64_t *out, struct mlo_error *err)
{
    const char *text = mlo_cli_opt(cli, name);
    *out = fallback;
    if (!text)
        return MLO_OK;
    if (!mlo_str_to_i64(text, out))
        return mlo_error_set(err, MLO_EUSAGE, "--%s needs a whole number, not '%s'", name, text);
    if (*out < min || *out > max)
        return mlo_error_set(err, MLO_EUSAGE, "--%s must lie in %lld … %lld, not %s", name, (long long)min,
                             (long long)max, text);
    return MLO_OK;
}

enum mlo_status mlo_cli_float(const struct mlo_cli *cli, const char *name, double fallback, double min,
                              double max, double *out, struct mlo_error *err)
{
    const char *text = mlo_cli_opt(cli, name);
    *out = fallback;
    if (!text)
        return MLO_OK;
    if (!mlo_str_to_f64(text, out))
        return mlo_error_set(err, MLO_EUSAGE, "--%s needs a number, not '%s'", name, text);
    if (*out < min || *out > max)
        return mlo_error_set(err, MLO_EUSAGE, "--%s must lie in %g … %g, not %s", name, min, max, text);
    return MLO_OK;
}
