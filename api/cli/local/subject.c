/* What run, eval and bench take: a model, or a compiled plan of one. */
#include <stdlib.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

void mlo_local_subject_close(struct mlo_subject *subject)
{
    mlo_model_free(subject->loaded);
    mlo_plan_close(subject->plan);
    *subject = (struct mlo_subject){0};
}

enum mlo_status mlo_local_trust(const struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_buf keys = MLO_BUF_INIT;
    const char *text, *before = getenv(MLO_PLAN_TRUST_ENV);
    struct mlo_public_key key;
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; (text = mlo_cli_opt_at(cli, "trust", i)); i++) {
        if (!mlo_public_key_parse(text, &key)) {
            status = mlo_error_set(err, MLO_EUSAGE, "--trust %s is no public key", text);
            mlo_error_hint(err, "it looks like ed25519:3b6a…: mlopt inspect FILE.plan shows the signer's");
            goto out;
        }
        mlo_buf_printf(&keys, "%s\n", text);
    }
    if (!keys.len)
        return MLO_OK;
    mlo_buf_puts(&keys, before ? before : "");
    if (!mlo_buf_ok(&keys) || setenv(MLO_PLAN_TRUST_ENV, mlo_buf_str(&keys), 1) != 0)
        status = mlo_error_nomem(err);
out:
    mlo_buf_clear(&keys);
    return status;
}

/* The plan's own engine and threads; others, given by options, are a misunderstanding. */
static enum mlo_status take_plan(const struct mlo_cli *cli, struct mlo_subject *s, struct mlo_error *err)
{
    enum mlo_status status;
    unsigned compiled = mlo_plan_file_threads(s->plan);
    int64_t threads;
    const struct mlo_engine *engine = mlo_plan_file_engine(s->plan);
    const char *name = mlo_cli_opt(cli, "engine");
    MLO_TRY(mlo_cli_int(cli, "threads", compiled, 1, 1024, &threads, err));
    if (threads != compiled || (name && strcmp(name, engine->name) != 0)) {
        status = mlo_error_set(err, MLO_EUSAGE, "the plan was compiled for %u thread%s of the engine %s",
                               compiled, compiled == 1 ? "" : "s", engine->name);
        mlo_error_hint(err, "leave out --threads and --engine, or compile the model for what you want");
        goto out;
    }
    s->options =
        (struct mlo_run_options){.engine = engine, .threads = compiled, .plan = mlo_plan_file_plan(s->plan)};
    s->model = mlo_plan_file_model(s->plan);
out:
    return status;
}

enum mlo_status mlo_local_open_plan(const struct mlo_cli *cli, const char *path,
                                    const struct mlo_digest *model, struct mlo_plan_file **out,
                                    struct mlo_error *err)
{
    struct mlo_error warning = {0};
    struct mlo_plan_open_options options = {.model = model, .warning = &warning};
    enum mlo_status status = mlo_plan_open(path, &options, out, err);
    if (status == MLO_OK && warning.status != MLO_OK)
        mlo_cli_note(cli, "warning: the plan is checked each time it is opened: %s%s%s%s", warning.message,
                     warning.hint[0] ? " (" : "", warning.hint, warning.hint[0] ? ")" : "");
    return status;
}

/* --plan: what does not fit, or has no home folder with the keys to check it by, is left, and said; what is
 * forged or broken is an error. */
static enum mlo_status try_plan(const struct mlo_cli *cli, const char *path, const char *plan,
                                struct mlo_subject *s, struct mlo_error *err)
{
    struct mlo_digest model;
    struct mlo_error why = {0};
    enum mlo_status status = mlo_digest_of_file(path, &model, NULL, err);
    if (status != MLO_OK)
        return status;
    status = mlo_local_open_plan(cli, plan, &model, &s->plan, &why);
    if (status == MLO_ESTALE || status == MLO_ENOTFOUND || status == MLO_EUNAVAILABLE) {
        mlo_cli_note(cli, "compiling the model: %s", why.message);
        return MLO_OK;
    }
    if (status != MLO_OK && err)
        *err = why;
    return status != MLO_OK ? status : take_plan(cli, s, err);
}

enum mlo_status mlo_local_subject(const struct mlo_cli *cli, const char *path, struct mlo_subject *out,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    *out = (struct mlo_subject){0};
    MLO_TRY(mlo_local_trust(cli, err));
    if (mlo_plan_is_file(path)) {
        MLO_TRY(mlo_local_open_plan(cli, path, NULL, &out->plan, err));
        MLO_TRY(take_plan(cli, out, err));
        goto out;
    }
    const char *plan = mlo_cli_opt(cli, "plan");
    if (plan)
        MLO_TRY(try_plan(cli, path, plan, out, err));
    if (out->plan)
        goto out;
    MLO_TRY(mlo_local_engine(cli, &out->options, err));
    MLO_TRY(mlo_local_model(path, &out->loaded, err));
    out->model = out->loaded;
out:
    return status;
}
