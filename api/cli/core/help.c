#include <string.h>

#include "api/cli/core/cli.h"

static void option_line(const struct mlo_cli_option *o, struct mlo_buf *out)
{
    char left[64];
    snprintf(left, sizeof left, "%c%c%c --%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
             o->letter ? ',' : ' ', o->name, o->value ? " " : "", o->value ? o->value : "");
    mlo_buf_printf(out, "  %-30s %s%s\n", left, o->help, o->repeat ? " (may be repeated)" : "");
}

static void options_block(const char *title, const struct mlo_cli_option *options, struct mlo_buf *out)
{
    if (!options || !options->name)
        return;
    mlo_buf_printf(out, "\n%s:\n", title);
    for (; options->name; options++)
        option_line(options, out);
}

void mlo_cli_help_verb(const struct mlo_cli_verb *verb, struct mlo_buf *out)
{
    mlo_buf_printf(out, "mlopt %s: %s\n\nusage: mlopt %s%s%s%s\n", verb->name, verb->help, verb->name,
                   verb->options && verb->options->name ? " [options]" : "", *verb->positional ? " " : "",
                   verb->positional);
    if (verb->detail)
        mlo_buf_printf(out, "\n%s", verb->detail);
    options_block("options", verb->options, out);
    options_block("for every verb", mlo_cli_global_options(), out);
}

/* Groups in the order of their first verb. */
static const char *group_at(const struct mlo_cli *cli, size_t i)
{
    const struct mlo_cli_verb *v = cli->verbs[i];
    if (v->flags & MLO_CLI_HIDDEN)
        return NULL;
    for (size_t j = 0; j < i; j++)
        if (!(cli->verbs[j]->flags & MLO_CLI_HIDDEN) && strcmp(cli->verbs[j]->group, v->group) == 0)
            return NULL;
    return v->group;
}

void mlo_cli_help(const struct mlo_cli *cli, struct mlo_buf *out)
{
    mlo_buf_puts(out, "mlopt: smaller and faster models, measured, promoted and rolled back\n\n"
                      "usage: mlopt VERB [options] …\n");
    for (size_t i = 0; i < cli->verb_count; i++) {
        const char *group = group_at(cli, i);
        if (!group)
            continue;
        mlo_buf_printf(out, "\n%s:\n", group);
        for (size_t j = i; j < cli->verb_count; j++) {
            const struct mlo_cli_verb *v = cli->verbs[j];
            if (!(v->flags & MLO_CLI_HIDDEN) && strcmp(v->group, group) == 0)
                mlo_buf_printf(out, "  %-12s %s\n", v->name, v->help);
        }
    }
    options_block("for every verb", mlo_cli_global_options(), out);
    mlo_buf_puts(out,
                 "\nmlopt VERB --help says more. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 not "
                 "allowed,\n5 gate or conflict, 6 job failed, 7 timed out, 130 interrupted.\n");
}

void mlo_cli_completion(const struct mlo_cli *cli, struct mlo_buf *out)
{
    mlo_buf_puts(out, "# bash completion of mlopt:  source <(mlopt completion bash)\n"
                      "_mlopt() {\n"
                      "    local cur=${COMP_WORDS[COMP_CWORD]} verb= word words=\n"
                      "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
                      "        [[ $word == -* ]] || verb=\"$verb $word\"\n"
                      "    done\n"
                      "    case \"$verb \" in\n");
    /* the longer names first, so that "data push" is not taken for "data" */
    for (int words = 2; words >= 1; words--) {
        for (size_t i = 0; i < cli->verb_count; i++) {
            const struct mlo_cli_verb *v = cli->verbs[i];
            if ((v->flags & MLO_CLI_HIDDEN) || (strchr(v->name, ' ') != NULL) != (words == 2))
                continue;
            mlo_buf_printf(out, "    \" %s \"*) words=\"", v->name);
            const struct mlo_cli_option *sets[] = {v->options, mlo_cli_global_options()};
            for (size_t s = 0; s < 2; s++)
                for (const struct mlo_cli_option *o = sets[s]; o && o->name; o++)
                    mlo_buf_printf(out, "--%s ", o->name);
            mlo_buf_puts(out, "\" ;;\n");
        }
    }
    for (size_t i = 0; i < cli->verb_count; i++) {
        const struct mlo_cli_verb *v = cli->verbs[i];
        const char *space = strchr(v->name, ' ');
        if (!space || (v->flags & MLO_CLI_HIDDEN))
            continue;
        mlo_buf_printf(out, "    \" %.*s \") words+=\" %s\" ;;&\n", (int)(space - v->name), v->name,
                       space + 1);
    }
    mlo_buf_puts(out, "    \" \") words=\"");
    const char *last = "";
    for (size_t i = 0; i < cli->verb_count; i++) {
        const struct mlo_cli_verb *v = cli->verbs[i];
        size_t first = strcspn(v->name, " ");
        bool again = strncmp(last, v->name, first) == 0 && (last[first] == ' ' || last[first] == '\0');
        if (!(v->flags & MLO_CLI_HIDDEN) && !again)
            mlo_buf_printf(out, "%.*s ", (int)first, v->name);
        last = v->name;
    }
    mlo_buf_puts(out, "--help --version\" ;;\n"
                      "    esac\n"
                      "    if [[ $cur == -* || $verb == \"\" || -n $words && $words != --* ]]; then\n"
                      "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                      "    else\n"
                      "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
                      "    fi\n"
                      "}\n"
                      "complete -o filenames -F _mlopt mlopt\n");
}

static void man_text(const char *text, struct mlo_buf *out)
{
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            mlo_buf_puts(out, "\\&");
        if (*text == '\\' || *text == '-')
            mlo_buf_putc(out, '\\');
        mlo_buf_putc(out, *text);
        start = *text == '\n';
    }
}

static void man_options(const struct mlo_cli_option *options, struct mlo_buf *out)
{
    for (; options && options->name; options++) {
        mlo_buf_puts(out, ".TP\n.B ");
        if (options->letter)
            mlo_buf_printf(out, "\\-%c, ", options->letter);
        mlo_buf_puts(out, "\\-\\-");
        man_text(options->name, out);
        if (options->value) {
            mlo_buf_putc(out, ' ');
            man_text(options->value, out);
        }
        mlo_buf_putc(out, '\n');
        man_text(options->help, out);
        mlo_buf_putc(out, '\n');
    }
}

void mlo_cli_man(const struct mlo_cli *cli, struct mlo_buf *out)
{
    mlo_buf_puts(out, ".TH MLOPT 1\n.SH NAME\nmlopt \\- optimize, measure, promote and roll back models\n"
                      ".SH SYNOPSIS\n.B mlopt\n.I VERB\n[options]\n.SH OPTIONS FOR EVERY VERB\n");
    man_options(mlo_cli_global_options(), out);
    for (size_t i = 0; i < cli->verb_count; i++) {
        const char *group = group_at(cli, i);
        if (!group)
            continue;
        mlo_buf_printf(out, ".SH %s\n", group);
        for (size_t j = i; j < cli->verb_count; j++) {
            const struct mlo_cli_verb *v = cli->verbs[j];
            if ((v->flags & MLO_CLI_HIDDEN) || strcmp(v->group, group) != 0)
                continue;
            mlo_buf_puts(out, ".SS mlopt ");
            man_text(v->name, out);
            mlo_buf_putc(out, ' ');
            man_text(v->positional, out);
            mlo_buf_putc(out, '\n');
            man_text(v->help, out);
            mlo_buf_puts(out, ".\n");
            if (v->detail) {
                mlo_buf_puts(out, ".PP\n.nf\n");
                man_text(v->detail, out);
                mlo_buf_puts(out, ".fi\n");
            }
            man_options(v->options, out);
        }
    }
    mlo_buf_puts(out,
                 ".SH EXIT STATUS\n0 ok, 1 failed, 2 usage, 3 not found, 4 not allowed, 5 conflict, "
                 "6 job failed, 7 timed out, 8 refused by a gate, 130 interrupted.\n"
                 ".SH ENVIRONMENT\n.TP\n.B MLOPT_URL\nthe server\n.TP\n.B MLOPT_TOKEN\nthe token; never an "
                 "argument\n.TP\n.B NO_COLOR\nno escape codes\n"
                 ".SH FILES\n~/.config/mlopt/config: url = …, token = … (mode 0600)\n");
}

static enum mlo_status help_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT;
    if (mlo_cli_has(cli, "man")) {
        mlo_cli_man(cli, &text);
    } else if (cli->arg_count == 0) {
        mlo_cli_help(cli, &text);
    } else {
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", cli->args[0], cli->arg_count > 1 ? " " : "",
                 cli->arg_count > 1 ? cli->args[1] : "");
        for (size_t i = 0; i < cli->verb_count; i++)
            if (strcmp(cli->verbs[i]->name, name) == 0 && !(cli->verbs[i]->flags & MLO_CLI_HIDDEN))
                mlo_cli_help_verb(cli->verbs[i], &text);
        if (!text.len) {
            status = mlo_error_set(err, MLO_EUSAGE, "unknown verb '%s'", name);
            mlo_error_hint(err, "mlopt --help");
            goto out;
        }
    }
    MLO_TRY(mlo_cli_print(err, "%s", mlo_buf_str(&text)));
out:
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status completion_run(struct mlo_cli *cli, struct mlo_error *err)
{
    if (strcmp(cli->args[0], "bash") != 0)
        return mlo_error_set(err, MLO_EUSAGE, "completion is there for bash, not for '%s'", cli->args[0]);
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_cli_completion(cli, &text);
    enum mlo_status status = mlo_cli_print(err, "%s", mlo_buf_str(&text));
    mlo_buf_clear(&text);
    return status;
}

static const struct mlo_cli_option help_options[] = {
    {"man", 0, NULL, "the manual page (mlopt help --man | man -l -)"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_help = {
    .name = "help",
    .group = "Other",
    .run = help_run,
    .options = help_options,
    .positional = "[VERB]",
    .max_args = 2,
    .help = "help, of the program or of a verb",
};
const struct mlo_cli_verb mlo_verb_completion = {
    .name = "completion",
    .group = "Other",
    .run = completion_run,
    .positional = "bash",
    .min_args = 1,
    .max_args = 1,
    .help = "shell completion: source <(mlopt completion bash)",
};
