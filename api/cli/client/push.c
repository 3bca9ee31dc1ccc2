#include <stdlib.h>
#include <string.h>

#include "api/cli/client/client.h"
#include "graph/graph.h"
#include "pipeline/steps/signature.h"

static const char *role_of(const char *file)
{
    static const char *const external[] = {".data", ".bin", ".weight", ".weights"};
    for (size_t i = 0; i < MLO_COUNT(external); i++)
        if (mlo_str_ends(file, external[i]))
            return "data"; /* of tensors, beside the model */
    return "document";
}

/* Which file is the model: the only .onnx, or the only file. */
static enum mlo_status find_model(char **files, int count, int *model, struct mlo_error *err)
{
    *model = -1;
    for (int i = 0; i < count; i++) {
        if (!mlo_str_ends(files[i], ".onnx"))
            continue;
        if (*model >= 0)
            return mlo_error_set(err, MLO_EUSAGE, "%s and %s are both models: a version holds one",
                                 files[*model], files[i]);
        *model = i;
    }
    if (*model < 0 && count == 1)
        *model = 0; /* whatever it is called: the reader says what it is */
    if (*model >= 0)
        return MLO_OK;
    mlo_error_set(err, MLO_EUSAGE, "none of the %d files is a .onnx file", count);
    mlo_error_hint(err, "the model comes as ONNX; other files are its external data or documents");
    return MLO_EUSAGE;
}

/* Reads the model as the workers will, so that a bad file is refused here, before it travels. */
static enum mlo_status check_model(const char *path, json_t **signature, struct mlo_error *err)
{
    struct mlo_model *model = NULL;
    enum mlo_status status = mlo_onnx_load(path, &model, err);
    if (status == MLO_OK)
        status = mlo_graph_check_supported(model->graph, err);
    if (status == MLO_OK)
        status = mlo_model_signature(model, signature, err);
    if (status != MLO_OK)
        mlo_cli_name_file(err, path);
    mlo_model_free(model);
    return status;
}

/* What is declared: a worker reads it again, and what differs is in the audit log and refused by gates. */
static enum mlo_status add_labels(const char *path, json_t *signature, struct mlo_error *err)
{
    json_t *labels = NULL;
    enum mlo_status status = path ? mlo_labels_read(path, &labels, err) : MLO_OK;
    if (status == MLO_OK &&
        json_object_set_new(signature, "labels", labels ? json_incref(labels) : json_null()) != 0)
        status = mlo_error_nomem(err);
    json_decref(labels);
    return status;
}

static enum mlo_status add_metadata(struct mlo_cli *cli, json_t *metadata, struct mlo_error *err)
{
    const char *pair;
    for (size_t i = 0; (pair = mlo_cli_opt_at(cli, "meta", i)); i++) {
        const char *eq = strchr(pair, '=');
        if (!eq || eq == pair)
            return mlo_error_set(err, MLO_EUSAGE, "--meta needs KEY=VALUE, not '%s'", pair);
        if (json_object_setn_new(metadata, pair, (size_t)(eq - pair), json_string(eq + 1)) != 0)
            return mlo_error_set(err, MLO_EUSAGE, "--meta '%s' is not UTF-8", pair);
    }
    return MLO_OK;
}

static enum mlo_status push_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_response response = {0};
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *files = json_array(), *metadata = json_object(), *facts = NULL, *body = NULL, *signature = NULL;
    const char *labels = mlo_cli_opt(cli, "labels");
    char **names = cli->args + 1;
    int count = cli->arg_count - 1, model;
    struct mlo_client_file *sent = calloc((size_t)count + 1, sizeof *sent);
    char size[32];
    if (!sent) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, false, false, err));
    MLO_TRY(add_metadata(cli, metadata, err));
    MLO_TRY(mlo_client_facts(cli, ref.project, &facts, err));
    MLO_TRY(find_model(names, count, &model, err));
    MLO_TRY(check_model(names[model], &signature, err));
    MLO_TRY(add_labels(labels, signature, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_ensure_project(client, ref.project, err));
    for (int i = 0; i < count; i++)
        sent[i] = (struct mlo_client_file){.path = names[i],
                                           .role = i == model ? "model" : role_of(names[i]),
                                           .media_type =
                                               i == model ? "application/onnx" : "application/octet-stream"};
    if (labels)
        sent[count] = (struct mlo_client_file){.path = labels, .role = "labels", .media_type = "text/plain"};
    MLO_TRY(mlo_client_upload(client, ref.project, sent, (size_t)(count + (labels != NULL)), files, err));
    const char *description = mlo_cli_opt(cli, "description");
    body = json_pack("{s:O,s:s,s:O,s:O,s:O}", "files", files, "description", description ? description : "",
                     "metadata", metadata, "facts", facts, "signature", signature);
    mlo_client_path(&path, "/v1/projects/%s/models/%s/versions", ref.project, ref.name);
    MLO_TRY(mlo_client_call(client, "POST", mlo_buf_str(&path), NULL, body, &response, err));
    if (cli->json) {
        MLO_TRY(mlo_cli_print_json(response.json, err));
        goto out;
    }
    const json_t *file = json_array_get(files, (size_t)model);
    MLO_TRY(mlo_cli_print(err, "%s/%s@%lld  %s  %s%s\n", ref.project, ref.name,
                          (long long)mlo_json_i64(response.json, "version", 0),
                          mlo_str_size((uint64_t)mlo_json_i64(file, "size", 0), size),
                          mlo_json_str(file, "digest", ""),
                          response.http == 200 ? "  (the latest version already is this)" : ""));
out:
    free(sent);
    json_decref(files);
    json_decref(metadata);
    json_decref(facts);
    json_decref(body);
    json_decref(signature);
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option options[] = {
    {"description", 0, "TEXT", "what this version is"},
    {"labels", 0, "FILE", "the labels of its outputs: one a line, or a JSON array of texts"},
    {"meta", 0, "KEY=VALUE", "metadata of the version", NULL, true},
    MLO_OPTIONS_FACTS,
    {"teacher", 0, "MODEL@V[/VARIANT]", "the model of the project that it was distilled from"},
    {"derived-from", 0, "MODEL@V[/VARIANT]",
     "the model of the project that it was made of elsewhere (pulled, fine-tuned)"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_push = {
    .name = "push",
    .group = "Models and data",
    .run = push_run,
    .options = options,
    .positional = "PROJECT/MODEL FILE…",
    .min_args = 2,
    .max_args = -1,
    .help = "upload a model as a new version",
    .detail =
        "The .onnx file is the model; others are its external data, or documents. The model is read here\n"
        "first, so that a broken file, or one with an op that mlopt does not know, is refused at once.\n"
        "\n"
        "  mlopt push fashion/cnn cnn.onnx --code train/ --dataset train@3 --param lr=0.01 \\\n"
        "      --metric val/top1=0.913 --tag team=vision --licence Apache-2.0\n"
        "\n"
        "What is said of a version is part of it, and found by 'mlopt search'. Nothing is said that was not\n"
        "asked for: the folder of the model file need not hold the code that trained it.\n",
};
