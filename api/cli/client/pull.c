#include <stdlib.h>
#include <string.h>

#include "api/cli/client/client.h"
#include "engines/plans.h"

/* Everything that this machine satisfies, as a list with commas: the server picks the most specific. */
static void machine_targets(struct mlo_buf *out)
{
    size_t count;
    const char *const *targets = mlo_targets(&count);
    for (size_t i = count; i-- > 0;)
        if (strchr(targets[i], ':') && mlo_machine_satisfies(targets[i]))
            mlo_buf_printf(out, "%s%s", out->len ? "," : "", targets[i]);
    if (!out->len)
        mlo_buf_puts(out, "any");
}

static const char SOURCE[] = "source";

struct pull {
    struct mlo_cli *cli;
    struct mlo_client *client;
    const struct mlo_client_ref *ref;
    const char *dir;
    json_t *files;                  /* array of {"path","digest"} */
    char variant[104], version[32]; /* of the model that was fetched, as the server says */
};

static enum mlo_status fetch(struct pull *p, const char *path, const char *name, const char *digest,
                             struct mlo_error *err)
{
    struct mlo_response response;
    struct mlo_digest got;
    char fallback[112], text[MLO_DIGEST_TEXT_SIZE], *written = NULL;
    snprintf(fallback, sizeof fallback, "%s.onnx", p->ref->name);
    enum mlo_status status =
        mlo_client_download(p->client, path, p->dir, name, fallback, digest, &written, &response, err);
    if (status == MLO_OK)
        status = mlo_digest_of_file(written, &got, NULL, err); /* what stands on the disk now */
    if (status == MLO_OK) {
        mlo_digest_text(&got, text);
        json_array_append_new(p->files, json_pack("{s:s,s:s,s:s,s:s}", "path", written, "digest", text,
                                                  "variant", response.variant, "version", response.version));
        if (*response.variant) {
            snprintf(p->variant, sizeof p->variant, "%s", response.variant);
            snprintf(p->version, sizeof p->version, "%s", response.version);
        }
        if (!p->cli->json)
            status = mlo_cli_print(err, "%s  %s%s%s\n", written, text, *response.variant ? "  " : "",
                                   response.variant);
    }
    free(written);
    mlo_response_clear(&response);
    return status;
}

/* The upload itself: the model file and its external data. */
static enum mlo_status pull_source(struct pull *p, const char *version, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *row = NULL, *file;
    size_t i;
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s", p->ref->project, p->ref->name, version);
    MLO_TRY(mlo_client_get(p->client, mlo_buf_str(&path), &row, err));
    json_array_foreach(json_object_get(row, "files"), i, file)
    {
        const char *role = mlo_json_str(file, "role", ""), *digest = mlo_json_str(file, "digest", "");
        if (strcmp(role, "model") != 0 && strcmp(role, "data") != 0)
            continue;
        mlo_buf_reset(&path);
        mlo_client_path(&path, "/v1/projects/%s/blobs/%s", p->ref->project, digest);
        MLO_TRY(fetch(p, mlo_buf_str(&path), mlo_json_str(file, "name", NULL), digest, err));
    }
out:
    json_decref(row);
    mlo_buf_clear(&path);
    return status;
}

/* The newest plan of the variant that was made for a machine like this one; NULL: there is none. Borrowed. */
static const json_t *fitting_plan(const json_t *variants, const char *variant, int64_t batch)
{
    json_t *row, *plan;
    const struct mlo_engine *engine;
    size_t i, k;
    json_array_foreach(variants, i, row)
    {
        if (strcmp(mlo_json_str(row, "variant", ""), variant) != 0)
            continue;
        json_array_foreach(json_object_get(row, "plans"), k, plan)
        {
            const json_t *made_for = json_object_get(plan, "made_for");
            if (mlo_json_i64(made_for, "batch", 0) == batch &&
                mlo_plan_check_machine(made_for, &engine, NULL) == MLO_OK)
                return plan;
        }
    }
    return NULL;
}

/* --plan: beside the model, which stays what runs wherever the plan does not. */
static enum mlo_status pull_plan(struct pull *p, const char *version, const char *variant,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_buf path = MLO_BUF_INIT;
    struct mlo_plan_info info = {0};
    json_t *variants = NULL;
    char name[320], signer[MLO_PUBLIC_KEY_TEXT_SIZE];
    int64_t batch;
    MLO_TRY(mlo_cli_int(p->cli, "batch", 1, 1, 65536, &batch, err));
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/variants", p->ref->project, p->ref->name,
                    version);
    MLO_TRY(mlo_client_list(p->client, mlo_buf_str(&path), 0, &variants, err));
    const json_t *plan = fitting_plan(variants, variant, batch);
    if (!plan) {
        mlo_cli_note(p->cli,
                     "there is no plan of %s for this machine at batch %lld; the model is compiled here",
                     variant, (long long)batch);
        goto out;
    }
    const char *digest = mlo_json_str(plan, "blob", "");
    snprintf(name, sizeof name, "%s-%s-batch%lld.plan", p->ref->name, variant, (long long)batch);
    mlo_buf_reset(&path);
    mlo_client_path(&path, "/v1/projects/%s/blobs/%s", p->ref->project, digest);
    MLO_TRY(fetch(p, mlo_buf_str(&path), name, digest, err));
    const char *written = mlo_json_str(json_array_get(p->files, json_array_size(p->files) - 1), "path", name);
    MLO_TRY(mlo_plan_inspect(written, true, &info, err));
    mlo_cli_note(p->cli, "%s was signed by %s; see `mlopt inspect`, and docs/plans.md for whom to trust",
                 name, info.is_signed ? mlo_public_key_text(&info.signer, signer) : "nobody");
out:
    mlo_plan_info_clear(&info);
    json_decref(variants);
    mlo_buf_clear(&path);
    return status;
}

static enum mlo_status pull_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client_ref ref;
    struct pull p = {.cli = cli, .ref = &ref, .files = json_array()};
    struct mlo_buf path = MLO_BUF_INIT, targets = MLO_BUF_INIT;
    const char *version = "latest", *target = mlo_cli_opt(cli, "target");
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_cli_required(cli, "out", &p.dir, err));
    bool from_stage = !mlo_client_ref_is_version(&ref);
    if (target && !from_stage) {
        status = mlo_error_set(err, MLO_EUSAGE, "--target chooses from a stage: %s/%s@production",
                               ref.project, ref.name);
        goto out;
    }
    if (from_stage && *ref.variant) {
        status = mlo_error_set(err, MLO_EUSAGE, "a stage chooses the variant by target: leave '/%s' out",
                               ref.variant);
        goto out;
    }
    MLO_TRY(mlo_client_open(cli, &p.client, err));
    if (from_stage) {
        if (!target)
            machine_targets(&targets);
        mlo_client_path(&path, "/v1/projects/%s/models/%s/stages/%s/artifact?target=%s", ref.project,
                        ref.name, ref.at, target ? target : mlo_buf_str(&targets));
        MLO_TRY(fetch(&p, mlo_buf_str(&path), NULL, NULL, err));
    } else {
        MLO_TRY(mlo_client_ref_version(&ref, &version, err));
        if (!*ref.variant || strcmp(ref.variant, "source") == 0) {
            MLO_TRY(pull_source(&p, version, err));
        } else {
            mlo_client_path(&path, "/v1/projects/%s/models/%s/versions/%s/variants/%s/artifact", ref.project,
                            ref.name, version, ref.variant);
            MLO_TRY(fetch(&p, mlo_buf_str(&path), NULL, NULL, err));
        }
    }
    if (mlo_cli_has(cli, "plan"))
        MLO_TRY(pull_plan(&p, *p.version ? p.version : version, *p.variant ? p.variant : SOURCE, err));
    if (cli->json)
        MLO_TRY(mlo_cli_print_json(p.files, err));
out:
    json_decref(p.files);
    mlo_buf_clear(&path);
    mlo_buf_clear(&targets);
    mlo_client_close(p.client);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"target", 0, "T", "from a stage: for these features (what this machine satisfies)"},
    {"out", 0, "DIR", "the folder to write to"},
    {"plan", 0, NULL, "also the compiled plan of it that fits this machine, where there is one"},
    {"batch", 0, "N", "with --plan: for so many samples a call (1)"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_pull = {
    .name = "pull",
    .group = "Models and data",
    .run = pull_run,
    .options = options,
    .positional = "PROJECT/MODEL[@V|@STAGE][/VARIANT] --out DIR",
    .min_args = 1,
    .max_args = 1,
    .help = "download a model, digest checked",
    .detail = "  mlopt pull fashion/cnn@production --out .     what is in production, for this machine\n"
              "  mlopt pull fashion/cnn@2/int8-cpu --out .     a variant of a version\n"
              "  mlopt pull fashion/cnn --out .                the latest upload\n",
};
