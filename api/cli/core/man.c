/* mlopt(1), from the table of verbs. */
#include <string.h>

#include "api/cli/core/cli.h"

/* Text as it stands: nothing in it is taken for a request, and a hyphen stays one that can be copied. */
static void man_text(const char *text, struct mlo_buf *out)
{
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            mlo_buf_puts(out, "\\&");
        if (*text == '\\')
            mlo_buf_puts(out, "\\e");
        else if (*text == '-')
            mlo_buf_puts(out, "\\-");
        else
            mlo_buf_putc(out, *text);
        start = *text == '\n';
    }
}

/* An argument of a macro, quoted. */
static void man_quoted(const char *text, struct mlo_buf *out)
{
    mlo_buf_putc(out, '"');
    for (; *text; text++) {
        char one[2] = {*text, '\0'};
        if (*text == '"')
            mlo_buf_puts(out, "\\(dq");
        else
            man_text(one, out);
    }
    mlo_buf_putc(out, '"');
}

static void man_options(const struct mlo_cli_option *options, struct mlo_buf *out)
{
    for (; options && options->name; options++) {
        mlo_buf_puts(out, ".TP\n");
        mlo_buf_puts(out, "\\fB");
        if (options->letter)
            mlo_buf_printf(out, "\\-%c\\fR, \\fB", options->letter);
        mlo_buf_puts(out, "\\-\\-");
        man_text(options->name, out);
        mlo_buf_puts(out, "\\fR");
        if (options->value) {
            mlo_buf_puts(out, " \\fI");
            man_text(options->value, out);
            mlo_buf_puts(out, "\\fR");
        }
        mlo_buf_putc(out, '\n');
        man_text(options->help, out);
        if (options->repeat)
            mlo_buf_puts(out, " (may be repeated)");
        mlo_buf_putc(out, '\n');
        for (const char *const *c = options->choices; c && *c && !strchr(options->value, '|'); c++) {
            mlo_buf_puts(out, c == options->choices ? "(one of " : " ");
            man_text(*c, out);
            mlo_buf_puts(out, c[1] ? "," : ")\n");
        }
    }
}

static void man_verb(const struct mlo_cli_verb *v, struct mlo_buf *out)
{
    struct mlo_buf title = MLO_BUF_INIT;
    mlo_buf_printf(&title, "mlopt %s%s%s", v->name, *v->positional ? " " : "", v->positional);
    mlo_buf_puts(out, ".SS ");
    man_quoted(mlo_buf_str(&title), out);
    mlo_buf_putc(out, '\n');
    mlo_buf_clear(&title);
    man_text(v->help, out);
    mlo_buf_puts(out, ".\n");
    if (v->detail) {
        mlo_buf_puts(out, ".PP\n.nf\n");
        man_text(v->detail, out);
        if (v->detail[0] && v->detail[strlen(v->detail) - 1] != '\n')
            mlo_buf_putc(out, '\n');
        mlo_buf_puts(out, ".fi\n");
    }
    man_options(v->options, out);
}

void mlo_cli_man(const struct mlo_cli *cli, struct mlo_buf *out)
{
    /* no date: the same program gives the same page */
    mlo_buf_puts(
        out, ".TH MLOPT 1 \"\" mlopt \"User Commands\"\n.SH NAME\nmlopt \\- optimize, measure, promote and "
             "roll back models\n"
             ".SH SYNOPSIS\n.B mlopt\n.I VERB\n[options] [arguments]\n.SH DESCRIPTION\n"
             "Data goes to standard output, everything else to standard error.\n"
             ".SH \"OPTIONS FOR EVERY VERB\"\n");
    man_options(mlo_cli_global_options(), out);
    for (size_t i = 0; i < cli->verb_count; i++) {
        const char *group = mlo_cli_group_at(cli, i);
        if (!group)
            continue;
        mlo_buf_puts(out, ".SH ");
        man_quoted(group, out);
        mlo_buf_putc(out, '\n');
        for (size_t j = i; j < cli->verb_count; j++) {
            const struct mlo_cli_verb *v = cli->verbs[j];
            if (!(v->flags & MLO_CLI_HIDDEN) && strcmp(v->group, group) == 0)
                man_verb(v, out);
        }
    }
    mlo_buf_puts(out, ".SH \"EXIT STATUS\"\n");
    for (const struct mlo_cli_exit_code *c = mlo_cli_exit_codes(); c->text; c++) {
        mlo_buf_printf(out, ".TP\n%d\n", c->code);
        man_text(c->text, out);
        mlo_buf_putc(out, '\n');
    }
    mlo_buf_puts(out,
                 ".SH ENVIRONMENT\n.TP\n.B MLOPT_URL\nthe server\n.TP\n.B MLOPT_TOKEN\nthe token; never an "
                 "argument\n.TP\n.B MLOPT_CA_FILE\na certificate to trust beside the system's\n.TP\n.B "
                 "NO_COLOR\nno escape codes\n"
                 ".SH FILES\n.TP\n.I ~/.config/mlopt/config\nlines url = \\(dq...\\(dq, token = "
                 "\\(dq...\\(dq (then with mode 0600) and ca-file = \\(dq...\\(dq\n");
}
