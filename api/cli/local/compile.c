/* compile: a model into a signed plan for this machine; and what inspect says about one. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/cli/local/local_impl.h"

/* The batch that the model itself fixes goes before --batch. */
static enum mlo_status choose_batch(const struct mlo_cli *cli, const struct mlo_model *model, int64_t *batch,
                                    struct mlo_error *err)
{
    enum mlo_status status;
    int64_t fixed = 0;
    MLO_TRY(mlo_cli_int(cli, "batch", 0, 1, 65536, batch, err));
    MLO_TRY(mlo_model_fixed_batch(model, &fixed, err));
    if (*batch && fixed && *batch != fixed) {
        status = mlo_error_set(err, MLO_EUSAGE, "the model's batch is fixed at %lld", (long long)fixed);
        mlo_error_hint(err, "leave out --batch");
        goto out;
    }
    *batch = *batch ? *batch : fixed ? fixed : 1;
out:
    return status;
}

static void print_ports(struct mlo_buf *out, const json_t *fingerprint, const char *key)
{
    size_t i;
    json_t *port;
    json_array_foreach(json_object_get(fingerprint, key), i, port) mlo_buf_printf(
        out, "%-11s %s  %s\n", i ? "" : key, mlo_json_str(port, "name", ""), mlo_json_str(port, "type", ""));
}

static enum mlo_status info_json(const char *path, const struct mlo_plan_info *info, json_t **out,
                                 struct mlo_error *err)
{
    char digest[MLO_DIGEST_TEXT_SIZE], signer[MLO_PUBLIC_KEY_TEXT_SIZE];
    struct mlo_error why = {0};
    const struct mlo_engine *engine;
    bool fits = mlo_plan_check_machine(info->fingerprint, &engine, &why) == MLO_OK;
    *out = json_pack("{s:s, s:I, s:s, s:s?, s:b, s:s, s:O}", "plan", path, "size",
                     (json_int_t)info->file_bytes, "digest", mlo_digest_text(&info->digest, digest), "signer",
                     info->is_signed ? mlo_public_key_text(&info->signer, signer) : NULL, "fits_this_machine",
                     fits, "why_not", why.message, "fingerprint", info->fingerprint);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status print_info(const json_t *all, struct mlo_error *err)
{
    struct mlo_buf out = MLO_BUF_INIT;
    char size[32];
    const json_t *f = json_object_get(all, "fingerprint"), *m = json_object_get(f, "machine");
    const json_t *cpu = json_object_get(m, "cpu");
    mlo_buf_printf(&out, "%s  %s  %s\n", mlo_json_str(all, "plan", ""),
                   mlo_str_size((uint64_t)mlo_json_i64(all, "size", 0), size),
                   mlo_json_str(all, "digest", ""));
    mlo_buf_printf(&out, "signed by   %s\n", mlo_json_str(all, "signer", "nobody"));
    mlo_buf_printf(&out, "model       %s\n", mlo_json_str(f, "model", "-"));
    mlo_buf_printf(&out, "made by     mlopt %s, %s, revision %s\n", mlo_json_str(f, "mlopt", "-"),
                   mlo_json_str(m, "version", "-"), mlo_json_str(m, "revision", "-"));
    if (mlo_json_str(m, "target", NULL))
        mlo_buf_printf(&out, "made for    %s, %s, batch %lld\n", mlo_json_str(m, "target", ""),
                       mlo_json_str(m, "gpu", "any GPU of that kind"),
                       (long long)mlo_json_i64(f, "batch", 0));
    else
        mlo_buf_printf(
            &out, "made for    %s (%s family %s model %s), %s, %lld thread%s, batch %lld, %s numerics\n",
            mlo_json_str(cpu, "name", "-"), mlo_json_str(cpu, "vendor", "-"),
            mlo_json_str(cpu, "family", "-"), mlo_json_str(cpu, "model", "-"), mlo_json_str(m, "isa", "-"),
            (long long)mlo_json_i64(f, "threads", 1), mlo_json_i64(f, "threads", 1) == 1 ? "" : "s",
            (long long)mlo_json_i64(f, "batch", 0), mlo_json_str(f, "numerics", "-"));
    print_ports(&out, f, "inputs");
    print_ports(&out, f, "outputs");
    if (mlo_json_bool(all, "fits_this_machine", false))
        mlo_buf_puts(&out, "here        fits this machine\n");
    else
        mlo_buf_printf(&out, "here        does not fit: %s\n", mlo_json_str(all, "why_not", ""));
    enum mlo_status status = mlo_cli_print(err, "%s", mlo_buf_str(&out));
    mlo_buf_clear(&out);
    return status;
}

enum mlo_status mlo_local_inspect_plan(const struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_plan_info info = {0};
    json_t *all = NULL;
    MLO_TRY(mlo_plan_inspect(cli->args[0], true, &info, err));
    MLO_TRY(info_json(cli->args[0], &info, &all, err));
    MLO_TRY(cli->json ? mlo_cli_print_json(all, err) : print_info(all, err));
out:
    json_decref(all);
    mlo_plan_info_clear(&info);
    return status;
}

static enum mlo_status print_compiled(const struct mlo_cli *cli, const char *out, double seconds,
                                      struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_plan_info info = {0};
    json_t *all = NULL;
    char size[32], took[32];
    MLO_TRY(mlo_plan_inspect(out, false, &info, err));
    MLO_TRY(info_json(out, &info, &all, err));
    if (cli->json) {
        json_object_set_new(all, "seconds", json_real(seconds));
        MLO_TRY(mlo_cli_print_json(all, err));
    } else {
        MLO_TRY(mlo_cli_print(err, "%s  %s  compiled and signed in %s\n", out,
                              mlo_str_size(info.file_bytes, size), mlo_cli_duration(seconds * 1e6, took)));
    }
out:
    json_decref(all);
    mlo_plan_info_clear(&info);
    return status;
}

/* Of a plan for a device: who chose how its steps are computed. */
static enum mlo_status print_chosen(const struct mlo_engine *engine, const struct mlo_plan *plan,
                                    struct mlo_error *err)
{
    json_t *all = NULL, *node;
    size_t i, measured = 0, only = 0;
    enum mlo_status status = engine->describe(plan, &all, err);
    const json_t *nodes = json_object_get(all, "nodes");
    json_array_foreach((json_t *)nodes, i, node)
    {
        const char *chosen = mlo_json_str(node, "chosen", "");
        measured += strcmp(chosen, "measured") == 0;
        only += strcmp(chosen, "only way") == 0;
    }
    size_t guessed = json_array_size(nodes) - measured - only;
    if (status == MLO_OK)
        status = mlo_cli_print(err,
                               "%zu steps: %zu as they were measured to be fastest, %zu as heuristics say, "
                               "%zu in the only way%s\n",
                               json_array_size(nodes), measured, guessed, only,
                               measured || !guessed ? "" : "; `mlopt tune` measures, on a GPU");
    json_decref(all);
    return status;
}

/* For another machine the engine must be able to compile; else it must be able to run. */
static enum mlo_status compile_engine(const struct mlo_cli *cli, struct mlo_run_options *run,
                                      struct mlo_error *err)
{
    enum mlo_status status;
    const char *target = mlo_cli_opt(cli, "target"), *name = mlo_cli_opt(cli, "engine");
    int64_t threads;
    if (!target)
        return mlo_local_engine(cli, run, err);
    *run = (struct mlo_run_options){0};
    MLO_TRY(mlo_cli_int(cli, "threads", 1, 1, 1024, &threads, err));
    MLO_TRY(mlo_engine_find(name ? name : "cuda", &run->engine, err));
    if (!run->engine->can_compile) {
        status = mlo_error_set(err, MLO_EUSAGE, "the engine '%s' compiles for this machine only",
                               run->engine->name);
        mlo_error_hint(err, "leave out --target, or --engine");
        goto out;
    }
    MLO_TRY(mlo_local_no_device(run->engine->can_compile(target, err), err));
    run->threads = (unsigned)threads;
out:
    return status;
}

static enum mlo_status compile_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status;
    const char *out = NULL;
    struct mlo_run_options run;
    struct mlo_model *model = NULL, *bound = NULL;
    struct mlo_plan *plan = NULL;
    struct mlo_sign_key *key = NULL;
    json_t *choices = NULL;
    struct mlo_plan_source source = {.numerics = MLO_NUMERICS_FAST};
    uint64_t begin = mlo_clock_ns();
    MLO_TRY(mlo_cli_required(cli, "out", &out, err));
    MLO_TRY(mlo_cli_check_output(out, err));
    MLO_TRY(compile_engine(cli, &run, err));
    if (!run.engine->save) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the engine '%s' has no plans that can be kept",
                               run.engine->name);
        goto out;
    }
    MLO_TRY(mlo_plan_own_key(mlo_cli_opt(cli, "key"), &key, err));
    MLO_TRY(mlo_local_model(cli->args[0], &model, err));
    MLO_TRY(choose_batch(cli, model, &source.batch, err));
    MLO_TRY(mlo_local_bound(cli, model, &bound, err));
    MLO_TRY(mlo_digest_of_file(cli->args[0], &source.model, NULL, err));
    source.threads = run.threads;
    MLO_TRY(mlo_local_choices(mlo_cli_opt(cli, "choices"), &choices, err));
    struct mlo_compile_options options = {.batch = source.batch,
                                          .numerics = source.numerics,
                                          .threads = source.threads,
                                          .target = mlo_cli_opt(cli, "target"),
                                          .choices = choices};
    MLO_TRY(run.engine->compile(bound, &options, &plan, err));
    MLO_TRY(mlo_plan_write(run.engine, plan, &source, key, out, err));
    MLO_TRY(print_compiled(cli, out, (double)(mlo_clock_ns() - begin) * 1e-9, err));
    if (run.engine->can_compile && !cli->json)
        MLO_TRY(print_chosen(run.engine, plan, err));
out:
    if (plan)
        run.engine->free_plan(plan);
    mlo_model_free(bound);
    mlo_model_free(model);
    mlo_sign_key_free(key);
    json_decref(choices);
    return status;
}

static const struct mlo_cli_option options_table[] = {
    {"out", 0, "FILE.plan", "where the plan is written"},
    {"batch", 0, "N", "samples a call (1, or what the model fixes)"},
    {"dim", 0, "NAME=N", "bind another free dim", NULL, true},
    MLO_OPTION_THREADS,
    MLO_OPTION_ENGINE,
    {"target", 0, "cuda:smNN", "for a GPU of that compute capability, which need not be here (this machine)"},
    {"choices", 0, "FILE", "what `mlopt tune` measured: how each step is computed"},
    {"key", 0, "FILE", "the private key to sign with (your own, made at first use)"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_compile = {
    .name = "compile",
    .group = "Local (no server needed)",
    .run = compile_run,
    .options = options_table,
    .positional = "MODEL.onnx --out FILE.plan",
    .min_args = 1,
    .max_args = 1,
    .help = "compile a model for this machine, or for a GPU, into a signed plan that loads in milliseconds",
    .detail = "  mlopt compile m.onnx --batch 8 --threads 2 --out m.plan\n"
              "  mlopt compile m.onnx --target cuda:sm90 --batch 8 --out m.plan\n"
              "  mlopt bench m.plan --batch 8 --threads 2\n",
};
