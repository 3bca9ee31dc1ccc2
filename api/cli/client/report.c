/* report: what explains a variant, from the server, as a page for people or as JSON for programs. */
#include <string.h>

#include "api/cli/client/client.h"
#include "api/html/report.h"

/* The same bytes that the server keeps. */
static enum mlo_status save_json(const json_t *report, const char *path, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_json_canonical(report, &text);
    enum mlo_status status = mlo_buf_ok(&text) ? mlo_fs_write_atomic(path, mlo_buf_str(&text), text.len, err)
                                               : mlo_error_nomem(err);
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status save_page(const json_t *report, const char *title, const char *path,
                                 struct mlo_error *err)
{
    struct mlo_buf page = MLO_BUF_INIT;
    const struct mlo_report_page about = {.title = title};
    enum mlo_status status = mlo_report_html(report, &about, &page, err);
    if (status == MLO_OK)
        status = mlo_fs_write_atomic(path, mlo_buf_str(&page), page.len, err);
    mlo_buf_clear(&page);
    return status;
}

static enum mlo_status report_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_buf path = MLO_BUF_INIT;
    const char *version, *out = mlo_cli_opt(cli, "out");
    json_t *report = NULL;
    int64_t run;
    bool page = out && mlo_str_ends(out, ".html");
    if (out && !page && !mlo_str_ends(out, ".json")) {
        mlo_error_set(err, MLO_EUSAGE, "--out %.200s: the name must end in .html or .json", out);
        mlo_error_hint(err,
                       "a page for people is --out report.html, the same for programs --out report.json");
        return MLO_EUSAGE;
    }
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_version(&ref, &version, err));
    MLO_TRY(mlo_cli_int(cli, "run", 0, 1, INT64_MAX, &run, err));
    if (!*ref.variant) {
        mlo_error_set(err, MLO_EUSAGE, "'%.200s' names no variant", cli->args[0]);
        mlo_error_hint(err, "a report is of one: %s/%s@%s/VARIANT; 'mlopt variants' lists them", ref.project,
                       ref.name, version);
        status = MLO_EUSAGE;
        goto out;
    }
    if (out)
        MLO_TRY(mlo_cli_check_output(out, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/variants/%s/report", ref.project, ref.name,
                    version, ref.variant);
    if (run)
        mlo_client_path(&path, "?run=%d", (long long)run);
    MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), &report, err));
    if (!out)
        MLO_TRY(mlo_cli_print_json(report, err));
    else if (page)
        MLO_TRY(save_page(report, cli->args[0], out, err));
    else
        MLO_TRY(save_json(report, out, err));
    if (out && !cli->json)
        MLO_TRY(mlo_cli_print(err, "%s\n", out));
out:
    json_decref(report);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"out", 0, "FILE", "where it is written: a page (.html) or JSON (.json); without it, JSON is printed"},
    {"run", 0, "ID", "the report of this run (the newest)"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_report = {
    .name = "report",
    .group = "Models and data",
    .run = report_run,
    .options = options,
    .positional = "PROJECT/MODEL[@V]/VARIANT",
    .min_args = 1,
    .max_args = 1,
    .help = "what explains a variant: size, accuracy, precision, noise, worst samples",
    .detail = "  mlopt report shop/cnn@3/int8-cpu --out int8.html\n",
};
