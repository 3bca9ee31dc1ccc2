/* --report: what a deriving verb made, explained in a page or in JSON. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"
#include "api/html/report.h"

enum mlo_status mlo_local_report_check(const struct mlo_cli *cli, struct mlo_error *err)
{
    const char *path = mlo_cli_opt(cli, "report");
    if (!path)
        return MLO_OK;
    if (!mlo_str_ends(path, ".html") && !mlo_str_ends(path, ".json")) {
        mlo_error_set(err, MLO_EUSAGE, "--report %.200s: the name must end in .html or .json", path);
        mlo_error_hint(err,
                       "a page for people is --report out.html, the same for programs --report out.json");
        return MLO_EUSAGE;
    }
    return mlo_cli_check_output(path, err);
}

/* The page of a report's JSON. */
static enum mlo_status write_page(const char *json_path, const char *title, const char *path,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    json_t *report = NULL;
    struct mlo_buf page = MLO_BUF_INIT;
    const struct mlo_report_page about = {.title = title};
    MLO_TRY(mlo_json_load_file(json_path, &report, err));
    MLO_TRY(mlo_report_html(report, &about, &page, err));
    MLO_TRY(mlo_fs_write_atomic(path, mlo_buf_str(&page), page.len, err));
out:
    mlo_buf_clear(&page);
    json_decref(report);
    return status;
}

enum mlo_status mlo_local_report(const struct mlo_cli *cli, const struct mlo_step_context *made,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    const char *path = mlo_cli_opt(cli, "report"), *name = mlo_cli_opt(cli, "out");
    const struct mlo_step *step = mlo_step_find("report");
    struct mlo_step_context ctx = *made;
    struct mlo_step_result result = {0};
    struct mlo_cli_progress progress;
    json_t *options = NULL;
    if (!path)
        return MLO_OK;
    MLO_TRY(mlo_options_resolve(step->options, NULL, &options, err));
    mlo_cli_progress_start(&progress, cli, step->name);
    ctx.options = options;
    ctx.progress = mlo_cli_progress;
    ctx.progress_arg = &progress;
    status = step->run(&ctx, &result, err);
    mlo_cli_progress_end(&progress);
    if (status != MLO_OK) {
        mlo_error_prefix(err, "the report");
        goto out;
    }
    if (mlo_str_ends(path, ".json"))
        MLO_TRY(mlo_cli_install(result.document_path, path, err));
    else
        MLO_TRY(write_page(result.document_path, mlo_fs_basename(name), path, err));
out:
    mlo_step_result_clear(&result);
    json_decref(options);
    return status;
}
