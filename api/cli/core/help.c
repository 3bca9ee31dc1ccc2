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

const struct mlo_cli_exit_code *mlo_cli_exit_codes(void)
{
    static const struct mlo_cli_exit_code codes[] = {
        {0, "ok"},
        {1, "failed"},
        {2, "wrong usage"},
        {3, "not found"},
        {4, "not signed in, or not allowed"},
        {5, "a conflict"},
        {6, "the run failed"},
        {7, "timed out"},
        {8, "refused by a gate"},
        {9, "the engine or the device that was asked for is not on this machine"},
        {130, "interrupted"},
        {141, "who read its output has closed it"},
        {143, "terminated"},
        {0, NULL},
    };
    return codes;
}

const char *mlo_cli_group_at(const struct mlo_cli *cli, size_t i)
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
        const char *group = mlo_cli_group_at(cli, i);
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
    mlo_buf_puts(out, "\nmlopt VERB --help says more.\n\nexit codes:\n");
    for (const struct mlo_cli_exit_code *c = mlo_cli_exit_codes(); c->text; c++)
        mlo_buf_printf(out, "  %3d  %s\n", c->code, c->text);
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
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status = mlo_cli_completion(cli, cli->args[0], &text, err);
    if (status == MLO_OK)
        status = mlo_cli_print(err, "%s", mlo_buf_str(&text));
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
    .positional = "bash|zsh|fish",
    .min_args = 1,
    .max_args = 1,
    .help = "what completes verbs and options in a shell",
    .detail = "  source <(mlopt completion bash)                                  # in ~/.bashrc\n"
              "  mlopt completion zsh > ~/.zsh/completions/_mlopt                 # a folder of $fpath\n"
              "  mlopt completion fish > ~/.config/fish/completions/mlopt.fish\n",
};
