#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/core/cli.h"

#ifndef MLOPT_VERSION
#define MLOPT_VERSION "0"
#endif

static void field(const char *name, const char *text)
{
    if (*text)
        fprintf(stderr, "%s%s %s\n", name, ":", text);
}

static int report(const struct mlo_cli *cli, enum mlo_status status, const struct mlo_error *err)
{
    const struct mlo_status_info *info = mlo_status_info(status);
    bool colour = mlo_cli_colour(stderr);
    fprintf(stderr, "%serror:%s %s\n", colour ? "\033[1;31m" : "", colour ? "\033[0m" : "",
            *err->message ? err->message : info->text);
    field("cause", cli->cause);
    field("where", err->where);
    field("hint", err->hint);
    field("request-id", cli->request_id);
    return info->exit_code;
}

int mlo_cli_main(const struct mlo_cli_verb *const *verbs, size_t count, int argc, char **argv)
{
    struct mlo_cli cli;
    struct mlo_error err = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    bool may_end_silently = true;
    signal(SIGCHLD, SIG_DFL); /* ignored by who started us, it would keep from us how children end */
    signal(SIGPIPE, SIG_IGN); /* the write fails instead, and what was begun is cleaned up */
    enum mlo_status status = mlo_cli_parse(&cli, verbs, count, argc, argv, &err);
    if (status != MLO_OK)
        goto out;
    if (cli.want_version) {
        status = mlo_cli_print(&err, "mlopt %s\n", MLOPT_VERSION);
    } else if (cli.want_help || !cli.verb) {
        if (cli.verb)
            mlo_cli_help_verb(cli.verb, &text);
        else
            mlo_cli_help(&cli, &text);
        if (cli.want_help) {
            status = mlo_cli_print(&err, "%s", mlo_buf_str(&text));
        } else {
            fputs(mlo_buf_str(&text), stderr);
            mlo_buf_clear(&text);
            mlo_cli_clear(&cli);
            return mlo_status_info(MLO_EUSAGE)->exit_code;
        }
    } else {
        may_end_silently = !(cli.verb->flags & (MLO_CLI_OWN_SIGNALS | MLO_CLI_TELLS_ONCE));
        if (!(cli.verb->flags & MLO_CLI_OWN_SIGNALS))
            MLO_TRY(mlo_cli_signals_start(&err));
        status = cli.verb->run(&cli, &err);
    }
out:
    mlo_buf_clear(&text);
    int code = 0;
    bool reader_gone = status != MLO_OK && may_end_silently && mlo_cli_reader_gone();
    if (reader_gone)
        code = 128 + SIGPIPE;
    else if (status != MLO_OK)
        code = report(&cli, status, &err);
    mlo_cli_clear(&cli);
    if (reader_gone) { /* silently, as any filter whose reader has enough */
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    return code;
}
