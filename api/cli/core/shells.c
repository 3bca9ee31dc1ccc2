/* Completion for bash, zsh and fish, from the table of verbs: verbs of one word and of two, their options
 * with their help, and the values of options that have choices. Everything else completes as a file. */
#include <string.h>

#include "api/cli/core/cli.h"

static bool shown(const struct mlo_cli_verb *v)
{
    return !(v->flags & MLO_CLI_HIDDEN);
}

static bool has_two_words(const struct mlo_cli_verb *v)
{
    return strchr(v->name, ' ') != NULL;
}

static size_t first_word(const struct mlo_cli_verb *v)
{
    return strcspn(v->name, " ");
}

static bool same_first_word(const struct mlo_cli_verb *a, const struct mlo_cli_verb *b)
{
    return first_word(a) == first_word(b) && strncmp(a->name, b->name, first_word(a)) == 0;
}

/* Whether verb i is the first of those that begin with its first word. */
static bool begins(const struct mlo_cli *cli, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (shown(cli->verbs[j]) && same_first_word(cli->verbs[i], cli->verbs[j]))
            return false;
    return shown(cli->verbs[i]);
}

/* A shell's case over first words: what stands before and behind the first word, each second word, and the
 * end. */
struct second_words {
    const char *before, *behind;
    void (*each)(const struct mlo_cli_verb *v, struct mlo_buf *out);
    const char *end;
};

static const char *second_word(const struct mlo_cli_verb *v)
{
    return v->name + first_word(v) + 1;
}

/* For each first word what may stand behind it. */
static void cases_of_second_words(const struct mlo_cli *cli, const struct second_words *as,
                                  struct mlo_buf *out)
{
    for (size_t i = 0; i < cli->verb_count; i++) {
        if (!begins(cli, i))
            continue;
        bool some = false;
        for (size_t j = i; j < cli->verb_count; j++) {
            const struct mlo_cli_verb *v = cli->verbs[j];
            if (!shown(v) || !has_two_words(v) || !same_first_word(v, cli->verbs[i]))
                continue;
            if (!some)
                mlo_buf_printf(out, "%s%.*s%s", as->before, (int)first_word(v), v->name, as->behind);
            as->each(v, out);
            some = true;
        }
        if (some)
            mlo_buf_puts(out, as->end);
    }
}

/* What the first word says: the help of the verb of that name, else of the first one below it. */
static const char *help_of_first_word(const struct mlo_cli *cli, size_t i)
{
    for (size_t j = 0; j < cli->verb_count; j++)
        if (shown(cli->verbs[j]) && !has_two_words(cli->verbs[j]) &&
            same_first_word(cli->verbs[i], cli->verbs[j]))
            return cli->verbs[j]->help;
    return cli->verbs[i]->help;
}

/* Whether the argument is one of some words: "a|b|c", all of it in lower case. */
static bool positional_choices(const struct mlo_cli_verb *v)
{
    return strchr(v->positional, '|') &&
           !v->positional[strspn(v->positional, "abcdefghijklmnopqrstuvwxyz-|")];
}

static void words_of(const char *const *choices, struct mlo_buf *out)
{
    for (size_t i = 0; choices[i]; i++)
        mlo_buf_printf(out, "%s%s", i ? " " : "", choices[i]);
}

static void words_of_positional(const struct mlo_cli_verb *v, struct mlo_buf *out)
{
    for (const char *p = v->positional; *p; p++)
        mlo_buf_putc(out, *p == '|' ? ' ' : *p);
}

/* Both tables of a verb's options, one after the other: f(option, arg). */
typedef void option_fn(const struct mlo_cli_option *o, struct mlo_buf *out);
static void each_option(const struct mlo_cli_verb *v, option_fn *f, struct mlo_buf *out)
{
    const struct mlo_cli_option *sets[] = {v ? v->options : NULL, mlo_cli_global_options()};
    for (size_t s = 0; s < MLO_COUNT(sets); s++)
        for (const struct mlo_cli_option *o = sets[s]; o && o->name; o++)
            f(o, out);
}

/* The words that take a value in front of the verb, so that the value is not taken for it: "-o|--output". */
static void global_with_value(const char *between, struct mlo_buf *out)
{
    bool some = false;
    for (const struct mlo_cli_option *o = mlo_cli_global_options(); o->name; o++) {
        if (!o->value)
            continue;
        mlo_buf_printf(out, "%s--%s", some ? between : "", o->name);
        if (o->letter)
            mlo_buf_printf(out, "%s-%c", between, o->letter);
        some = true;
    }
}

/* --- bash ------------------------------------------------------------------------------------------------
 */

static void bash_option(const struct mlo_cli_option *o, struct mlo_buf *out)
{
    mlo_buf_printf(out, " --%s", o->name);
}

static void bash_values(const struct mlo_cli_option *o, struct mlo_buf *out)
{
    if (!o->choices)
        return;
    mlo_buf_printf(out, "            --%s", o->name);
    if (o->letter)
        mlo_buf_printf(out, "|-%c", o->letter);
    mlo_buf_puts(out, ") words=\"");
    words_of(o->choices, out);
    mlo_buf_puts(out, "\"; values=1 ;;\n");
}

static void bash_second_word(const struct mlo_cli_verb *v, struct mlo_buf *out)
{
    mlo_buf_printf(out, " %s", second_word(v));
}

static const struct second_words BASH_SECOND_WORDS = {"            ", ") words+=\"", bash_second_word,
                                                      "\" values=1 ;;\n"};

static void bash(const struct mlo_cli *cli, struct mlo_buf *out)
{
    mlo_buf_puts(out,
                 "# bash completion of mlopt:  source <(mlopt completion bash)\n"
                 "_mlopt() {\n"
                 "    local cur=${COMP_WORDS[COMP_CWORD]} prev= first= second= skip= words= values= word\n"
                 "    [[ $COMP_CWORD -gt 0 ]] && prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                 "    # an \"=\" is a word of its own: --output=js\n"
                 "    [[ $prev == = && $COMP_CWORD -gt 1 ]] && prev=${COMP_WORDS[COMP_CWORD-2]}\n"
                 "    [[ $cur == = ]] && cur=\n"
                 "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
                 "        if [[ -n $skip ]]; then skip=; continue; fi\n"
                 "        case $word in\n            ");
    global_with_value("|", out);
    mlo_buf_puts(out, ") [[ -z $first ]] && skip=1 || break ;;\n"
                      "            =) skip=1 ;;\n"
                      "            -*) [[ -n $first ]] && break ;;\n"
                      "            *) if [[ -z $first ]]; then first=$word; else second=$word; break; fi ;;\n"
                      "        esac\n"
                      "    done\n"
                      "    case \"$first $second\" in\n");
    /* the longer names first, so that "data push" is not taken for "data" */
    for (int two = 1; two >= 0; two--) {
        for (size_t i = 0; i < cli->verb_count; i++) {
            const struct mlo_cli_verb *v = cli->verbs[i];
            if (!shown(v) || has_two_words(v) != (two == 1))
                continue;
            mlo_buf_printf(out, two ? "    \"%s\")\n        words=\"" : "    \"%s \"*)\n        words=\"",
                           v->name);
            each_option(v, bash_option, out);
            mlo_buf_puts(out, "\"\n        case $prev in\n");
            each_option(v, bash_values, out);
            mlo_buf_puts(out, "        esac\n        [[ -z $values && $cur != -* ]] && words=");
            if (positional_choices(v)) {
                mlo_buf_puts(out, "\"");
                words_of_positional(v, out);
                mlo_buf_puts(out, "\" values=1");
            }
            mlo_buf_puts(out, "\n        ;;\n");
        }
    }
    mlo_buf_puts(out, "    \" \") words=\"");
    for (size_t i = 0; i < cli->verb_count; i++)
        if (begins(cli, i))
            mlo_buf_printf(out, "%.*s ", (int)first_word(cli->verbs[i]), cli->verbs[i]->name);
    each_option(NULL, bash_option, out);
    mlo_buf_puts(out, "\" values=1\n        case $prev in\n");
    each_option(NULL, bash_values, out);
    mlo_buf_puts(out, "        esac ;;\n    esac\n"
                      "    # behind a first word: the second ones that there are, where none stands yet\n"
                      "    if [[ -n $first && -z $second && $cur != -* && $prev == \"$first\" ]]; then\n"
                      "        case $first in\n");
    cases_of_second_words(cli, &BASH_SECOND_WORDS, out);
    mlo_buf_puts(out, "        esac\n"
                      "    fi\n"
                      "    if [[ -n $words && ( -n $values || $cur == -* ) ]]; then\n"
                      "        compopt +o filenames 2>/dev/null\n"
                      "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                      "    else\n"
                      "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
                      "    fi\n"
                      "}\n"
                      "complete -o filenames -F _mlopt mlopt\n");
}

/* --- zsh -------------------------------------------------------------------------------------------------
 */

/* Inside '…': what ends a part of _arguments' or _describe's words is escaped. */
static void zsh_text(const char *text, struct mlo_buf *out)
{
    for (; *text; text++) {
        if (*text == '\'')
            mlo_buf_puts(out, "'\\''");
        else if (strchr("[]:\\", *text))
            mlo_buf_printf(out, "\\%c", *text);
        else
            mlo_buf_putc(out, *text);
    }
}

static void zsh_option(const struct mlo_cli_option *o, struct mlo_buf *out)
{
    for (int letter = o->letter ? 1 : 0; letter >= 0; letter--) {
        mlo_buf_puts(out, " \\\n            '");
        if (o->repeat)
            mlo_buf_putc(out, '*');
        if (letter)
            mlo_buf_printf(out, "-%c", o->letter);
        else
            mlo_buf_printf(out, "--%s%s", o->name, o->value ? "=" : "");
        mlo_buf_putc(out, '[');
        zsh_text(o->help, out);
        mlo_buf_putc(out, ']');
        if (o->value) {
            mlo_buf_putc(out, ':');
            zsh_text(o->value, out);
            mlo_buf_putc(out, ':');
            if (o->choices) {
                mlo_buf_putc(out, '(');
                words_of(o->choices, out);
                mlo_buf_putc(out, ')');
            } else {
                mlo_buf_puts(out, "_files");
            }
        }
        mlo_buf_putc(out, '\'');
    }
}

static void zsh_word(const char *name, int length, const char *help, struct mlo_buf *out)
{
    mlo_buf_printf(out, "            '%.*s:", length, name);
    zsh_text(help, out);
    mlo_buf_puts(out, "'\n");
}

static void zsh_second_word(const struct mlo_cli_verb *v, struct mlo_buf *out)
{
    zsh_word(second_word(v), (int)strlen(second_word(v)), v->help, out);
}

static const struct second_words ZSH_SECOND_WORDS = {"        ", ") found=(\n", zsh_second_word,
                                                     "            ) ;;\n"};

static void zsh(const struct mlo_cli *cli, struct mlo_buf *out)
{
    mlo_buf_puts(out, "#compdef mlopt\n"
                      "# zsh completion of mlopt:  mlopt completion zsh > a folder of $fpath/_mlopt\n"
                      "_mlopt() {\n"
                      "    local first= second= skip= word\n"
                      "    local -i i at=0\n"
                      "    local -a found\n"
                      "    for (( i = 2; i < CURRENT; i++ )); do\n"
                      "        word=$words[i]\n"
                      "        if [[ -n $skip ]]; then skip=; continue; fi\n"
                      "        case $word in\n            ");
    global_with_value("|", out);
    mlo_buf_puts(out,
                 ") [[ -z $first ]] && skip=1 || break ;;\n"
                 "            -*) [[ -n $first ]] && break ;;\n"
                 "            *) if [[ -z $first ]]; then first=$word at=i; else second=$word; break; fi ;;\n"
                 "        esac\n"
                 "    done\n"
                 "    if [[ -z $first ]]; then\n"
                 "        found=(\n");
    for (size_t i = 0; i < cli->verb_count; i++)
        if (begins(cli, i))
            zsh_word(cli->verbs[i]->name, (int)first_word(cli->verbs[i]), help_of_first_word(cli, i), out);
    mlo_buf_puts(out, "        )\n"
                      "        [[ -z $skip && $words[CURRENT] != -* ]] && { _describe verb found; return }\n"
                      "        _arguments");
    each_option(NULL, zsh_option, out);
    mlo_buf_puts(out, "\n        return\n    fi\n"
                      "    if [[ -z $second && $words[CURRENT] != -* ]] && (( CURRENT == at + 1 )); then\n"
                      "        found=()\n        case $first in\n");
    cases_of_second_words(cli, &ZSH_SECOND_WORDS, out);
    mlo_buf_puts(out, "        esac\n"
                      "        (( $#found )) && _describe verb found\n"
                      "    fi\n"
                      "    local name=\"$first $second\"\n"
                      "    case $name in\n");
    for (int two = 1; two >= 0; two--) {
        for (size_t i = 0; i < cli->verb_count; i++) {
            const struct mlo_cli_verb *v = cli->verbs[i];
            if (!shown(v) || has_two_words(v) != (two == 1))
                continue;
            if (two)
                mlo_buf_printf(
                    out, "    '%s')\n        words=(mlopt \"${(@)words[at+2,-1]}\"); (( CURRENT -= at ))\n",
                    v->name);
            else
                mlo_buf_printf(
                    out,
                    "    '%s '*)\n        words=(mlopt \"${(@)words[at+1,-1]}\"); (( CURRENT -= at - 1 ))\n",
                    v->name);
            mlo_buf_puts(out, "        _arguments");
            each_option(v, zsh_option, out);
            mlo_buf_puts(out, " \\\n            '*:");
            zsh_text(*v->positional ? v->positional : "argument", out);
            if (positional_choices(v)) {
                mlo_buf_puts(out, ":(");
                words_of_positional(v, out);
                mlo_buf_puts(out, ")' ;;\n");
            } else {
                mlo_buf_puts(out, ":_files' ;;\n");
            }
        }
    }
    mlo_buf_puts(out,
                 "    esac\n}\n"
                 "# autoloaded as the function itself, or sourced\n"
                 "if [[ $funcstack[1] == _mlopt ]]; then _mlopt \"$@\"; else compdef _mlopt mlopt; fi\n");
}

/* --- fish ------------------------------------------------------------------------------------------------
 */

/* Inside '…'. */
static void fish_text(const char *text, struct mlo_buf *out)
{
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            mlo_buf_putc(out, '\\');
        mlo_buf_putc(out, *text);
    }
}

static void fish_option(const struct mlo_cli_option *o, struct mlo_buf *out)
{
    mlo_buf_printf(out, " -l %s", o->name);
    if (o->letter)
        mlo_buf_printf(out, " -s %c", o->letter);
    if (o->choices) {
        mlo_buf_puts(out, " -x -a '");
        words_of(o->choices, out);
        mlo_buf_putc(out, '\'');
    } else if (o->value) {
        mlo_buf_puts(out, " -r -F");
    }
    mlo_buf_puts(out, " -d '");
    fish_text(o->help, out);
    mlo_buf_puts(out, "'\n");
}

static void fish(const struct mlo_cli *cli, struct mlo_buf *out)
{
    mlo_buf_puts(
        out, "# fish completion of mlopt:  mlopt completion fish > ~/.config/fish/completions/mlopt.fish\n"
             "# The first one or two words that are no options.\n"
             "function __mlopt_words\n"
             "    set -l found\n"
             "    set -l skip 0\n"
             "    for word in (commandline -opc)[2..-1]\n"
             "        if test $skip = 1\n"
             "            set skip 0\n"
             "            continue\n"
             "        end\n"
             "        switch $word\n"
             "            case ");
    global_with_value(" ", out);
    mlo_buf_puts(
        out, "\n                test (count $found) -gt 0; and break\n"
             "                set skip 1\n"
             "            case '-*'\n"
             "                test (count $found) -gt 0; and break\n"
             "            case '*'\n"
             "                set -a found $word\n"
             "                test (count $found) -eq 2; and break\n"
             "        end\n"
             "    end\n"
             "    string join ' ' -- $found\n"
             "end\n"
             "function __mlopt_at\n"
             "    set -l words (__mlopt_words)\n"
             "    test \"$words\" = \"$argv[1]\"\n"
             "end\n"
             "# Whether the verb is this one; one of a single word is not where its two words are another.\n"
             "function __mlopt_verb\n"
             "    set -l words (__mlopt_words)\n"
             "    test \"$words\" = \"$argv[1]\"; and return 0\n"
             "    string match -q '* *' -- $argv[1]; and return 1\n"
             "    contains -- \"$words\"");
    for (size_t i = 0; i < cli->verb_count; i++)
        if (shown(cli->verbs[i]) && has_two_words(cli->verbs[i]))
            mlo_buf_printf(out, " '%s'", cli->verbs[i]->name);
    mlo_buf_puts(out, "; and return 1\n"
                      "    test (string split -m1 ' ' -- \"$words\")[1] = \"$argv[1]\"\n"
                      "end\n"
                      "complete -c mlopt -e\n");
    for (size_t i = 0; i < cli->verb_count; i++) {
        const struct mlo_cli_verb *v = cli->verbs[i];
        if (begins(cli, i)) {
            mlo_buf_printf(out, "complete -c mlopt -f -n '__mlopt_at \"\"' -a %.*s -d '", (int)first_word(v),
                           v->name);
            fish_text(help_of_first_word(cli, i), out);
            mlo_buf_puts(out, "'\n");
        }
        if (shown(v) && has_two_words(v)) {
            mlo_buf_printf(out, "complete -c mlopt -f -n '__mlopt_at %.*s' -a %s -d '", (int)first_word(v),
                           v->name, v->name + first_word(v) + 1);
            fish_text(v->help, out);
            mlo_buf_puts(out, "'\n");
        }
    }
    for (const struct mlo_cli_option *o = mlo_cli_global_options(); o->name; o++) {
        mlo_buf_puts(out, "complete -c mlopt");
        fish_option(o, out);
    }
    for (size_t i = 0; i < cli->verb_count; i++) {
        const struct mlo_cli_verb *v = cli->verbs[i];
        if (!shown(v))
            continue;
        for (const struct mlo_cli_option *o = v->options; o && o->name; o++) {
            mlo_buf_printf(out, "complete -c mlopt -n '__mlopt_verb \"%s\"'", v->name);
            fish_option(o, out);
        }
        if (positional_choices(v)) {
            mlo_buf_printf(out, "complete -c mlopt -f -n '__mlopt_verb \"%s\"' -a '", v->name);
            words_of_positional(v, out);
            mlo_buf_puts(out, "'\n");
        }
    }
}

enum mlo_status mlo_cli_completion(const struct mlo_cli *cli, const char *shell, struct mlo_buf *out,
                                   struct mlo_error *err)
{
    static const struct {
        const char *name;
        void (*write)(const struct mlo_cli *cli, struct mlo_buf *out);
    } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    for (size_t i = 0; i < MLO_COUNT(shells); i++) {
        if (strcmp(shells[i].name, shell) == 0) {
            shells[i].write(cli, out);
            return mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
        }
    }
    return mlo_error_set(err, MLO_EUSAGE, "completion is there for bash, zsh and fish, not for '%s'", shell);
}
