#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

#include "api/cli/client/client.h"
#include "pipeline/measure/measure.h"

/* What a file is, by its first bytes, gzipped or not. */
enum kind { KIND_NPZ, KIND_IMAGES, KIND_LABELS, KIND_OTHER };

static enum mlo_status kind_of(const char *path, enum kind *out, struct mlo_error *err)
{
    unsigned char head[4] = {0};
    if (!mlo_fs_exists(path))
        return mlo_error_set(err, MLO_ENOTFOUND, "there is no file %s", path);
    gzFile file = gzopen(path, "rb");
    if (!file)
        return mlo_error_set(err, MLO_EIO, "cannot read %s", path);
    int got = gzread(file, head, sizeof head);
    gzclose(file);
    *out = KIND_OTHER;
    if (got == 4 && memcmp(head, "PK\003\004", 4) == 0)
        *out = KIND_NPZ;
    else if (got == 4 && head[0] == 0 && head[1] == 0 && head[3] >= 1 &&
             head[3] <= 8) /* IDX: 0 0 type rank */
        *out = head[3] == 1 ? KIND_LABELS : KIND_IMAGES;
    return MLO_OK;
}

/* The roles of the files, in the order given. */
static enum mlo_status find_roles(char **files, int count, const char **roles, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    enum kind kinds[2] = {KIND_OTHER, KIND_OTHER};
    if (count > 2)
        return mlo_error_set(err, MLO_EUSAGE, "a dataset is one .npz, or two IDX files; not %d files", count);
    for (int i = 0; i < count; i++) {
        MLO_TRY(kind_of(files[i], &kinds[i], err));
        if (kinds[i] == KIND_OTHER) {
            status = mlo_error_set(err, MLO_EFORMAT, "%s is neither an .npz nor an IDX file", files[i]);
            goto out;
        }
        roles[i] = kinds[i] == KIND_NPZ ? "data" : kinds[i] == KIND_IMAGES ? "images" : "labels";
    }
    if (count == 2 && (kinds[0] == kinds[1] || kinds[0] == KIND_NPZ || kinds[1] == KIND_NPZ)) {
        status =
            mlo_error_set(err, MLO_EUSAGE, "%s holds %s and %s holds %s: a pair is IDX images and IDX labels",
                          files[0], roles[0], files[1], roles[1]);
        goto out;
    }
    if (count == 1 && kinds[0] == KIND_LABELS)
        status = mlo_error_set(err, MLO_EUSAGE, "%s holds labels; the images are missing", files[0]);
out:
    return status;
}

/* What dataset.json says besides the files: normalize, first, count, classes, input. */
static enum mlo_status make_metadata(const struct mlo_cli *cli, json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_normalize normalize;
    json_t *o = json_object(), *list;
    const char *text;
    int64_t first, count;
    MLO_TRY(mlo_cli_int(cli, "first", 0, 0, INT64_MAX, &first, err));
    MLO_TRY(mlo_cli_int(cli, "count", 0, 1, INT64_MAX, &count, err));
    if ((text = mlo_cli_opt(cli, "normalize"))) {
        MLO_TRY(mlo_normalize_parse(text, &normalize, err));
        json_object_set_new(o, "normalize", json_string(text));
    }
    if (first)
        json_object_set_new(o, "first", json_integer(first));
    if (count)
        json_object_set_new(o, "count", json_integer(count));
    if ((text = mlo_cli_opt(cli, "input")))
        json_object_set_new(o, "input", json_string(text));
    if ((text = mlo_cli_opt(cli, "classes"))) {
        list = json_array();
        while (*text) {
            size_t n = strcspn(text, ",");
            json_array_append_new(list, json_stringn(text, n));
            text += n + (text[n] == ',');
        }
        json_object_set_new(o, "classes", list);
    }
    *out = json_incref(o);
out:
    json_decref(o);
    return status;
}

/* dataset.json in `dir`, as the workers make it: files by role, and the metadata. */
static enum mlo_status write_manifest(const char *dir, const json_t *files, const json_t *metadata,
                                      struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *by_role = json_object(), *row;
    size_t i;
    bool idx = false;
    char *path = mlo_fs_join(dir, "dataset.json", NULL);
    json_array_foreach(files, i, row)
    {
        const char *role = mlo_json_str(row, "role", "data");
        idx = idx || strcmp(role, "images") == 0;
        json_object_set(by_role, role, json_object_get(row, "name"));
    }
    json_t *manifest = json_pack("{s:s,s:O}", "format", idx ? "idx" : "npz", "files", by_role);
    if (!path || !manifest) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (json_is_object(metadata))
        json_object_update_missing(manifest, (json_t *)metadata);
    MLO_TRY(mlo_json_save_file(manifest, path, err));
out:
    free(path);
    json_decref(by_role);
    json_decref(manifest);
    return status;
}

/* Opens the dataset as the workers will, through links in a scratch folder, so that a bad file or a wrong
 * range is refused before anything travels. */
static enum mlo_status check_dataset(char **files, int count, const char *const *roles,
                                     const json_t *metadata, int64_t *samples, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *dir = NULL;
    struct mlo_dataset *dataset = NULL;
    const struct mlo_dataset_options options = {0};
    json_t *rows = json_array();
    MLO_TRY(mlo_cli_scratch(NULL, &dir, err));
    for (int i = 0; i < count; i++) {
        char *real = realpath(files[i], NULL), *link = mlo_fs_join(dir, mlo_fs_basename(files[i]), NULL);
        bool ok = real && link && symlink(real, link) == 0;
        free(real);
        free(link);
        if (!ok) {
            status = mlo_error_set(err, MLO_EIO, "cannot read %s", files[i]);
            goto out;
        }
        json_array_append_new(rows,
                              json_pack("{s:s,s:s}", "role", roles[i], "name", mlo_fs_basename(files[i])));
    }
    MLO_TRY(write_manifest(dir, rows, metadata, err));
    MLO_TRY(mlo_dataset_open(dir, &options, &dataset, err));
    *samples = mlo_dataset_count(dataset);
    const int64_t *labels = mlo_dataset_labels(dataset);
    int64_t classes = (int64_t)json_array_size(json_object_get(metadata, "classes"));
    for (int64_t i = 0; labels && i < *samples; i++) {
        if (labels[i] < 0 || (classes && labels[i] >= classes)) {
            status = mlo_error_set(err, MLO_EINVAL, "label %lld of sample %lld is out of range",
                                   (long long)labels[i], (long long)i);
            /* the file of the labels: the last but for a postprocessing model */
            mlo_error_where(err, "%s", files[count - 1 - (strcmp(roles[count - 1], "postprocess") == 0)]);
            if (classes)
                mlo_error_hint(err, "--classes names %lld classes: labels are 0 to %lld", (long long)classes,
                               (long long)classes - 1);
            goto out;
        }
    }
out:
    if (status != MLO_OK && dir) { /* it is the given files that are wrong, not their links */
        struct mlo_buf prefix = MLO_BUF_INIT;
        mlo_buf_printf(&prefix, "%s/", dir);
        mlo_error_cut(err, mlo_buf_str(&prefix));
        mlo_buf_clear(&prefix);
    }
    mlo_dataset_close(dataset);
    json_decref(rows);
    mlo_cli_scratch_remove(dir);
    return status;
}

/* A model that no worker could run is refused before anything travels. */
static enum mlo_status check_postprocess(const char *path, struct mlo_error *err)
{
    struct mlo_model *model = NULL;
    enum mlo_status status = mlo_onnx_load(path, &model, err);
    if (status == MLO_OK)
        status = mlo_graph_check_supported(model->graph, err);
    if (status != MLO_OK)
        mlo_error_prefix(err, "the postprocessing model %s", mlo_fs_basename(path));
    mlo_model_free(model);
    return status;
}

static enum mlo_status data_push_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    struct mlo_response response = {0};
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *files = json_array(), *metadata = NULL, *facts = NULL, *body = NULL;
    char **names = cli->args + 1;
    char *with[3], *postprocess = (char *)(uintptr_t)mlo_cli_opt(cli, "postprocess");
    int count = cli->arg_count - 1;
    const char *roles[3] = {NULL};
    struct mlo_client_file sent[3];
    int64_t samples = 0;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, false, false, err));
    MLO_TRY(find_roles(names, count, roles, err));
    if (postprocess) {
        memcpy(with, names, (size_t)count * sizeof *names);
        MLO_TRY(check_postprocess(postprocess, err));
        roles[count] = "postprocess";
        with[count++] = postprocess;
        names = with;
    }
    MLO_TRY(make_metadata(cli, &metadata, err));
    MLO_TRY(mlo_client_facts(cli, ref.project, &facts, err));
    MLO_TRY(check_dataset(names, count, roles, metadata, &samples, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_ensure_project(client, ref.project, err));
    for (int i = 0; i < count; i++)
        sent[i] = (struct mlo_client_file){
            .path = names[i], .role = roles[i], .media_type = "application/octet-stream"};
    MLO_TRY(mlo_client_upload(client, ref.project, sent, (size_t)count, files, err));
    const char *description = mlo_cli_opt(cli, "description");
    body = json_pack("{s:O,s:O,s:O,s:s}", "files", files, "metadata", metadata, "facts", facts, "description",
                     description ? description : "");
    mlo_client_path(&path, "/v1/projects/%s/datasets/%s/versions", ref.project, ref.name);
    MLO_TRY(mlo_client_call(client, "POST", mlo_buf_str(&path), NULL, body, &response, err));
    MLO_TRY(cli->json
                ? mlo_cli_print_json(response.json, err)
                : mlo_cli_print(err, "%s/%s@%lld  %lld samples%s\n", ref.project, ref.name,
                                (long long)mlo_json_i64(response.json, "version", 0), (long long)samples,
                                response.http == 200 ? "  (the latest version already is this)" : ""));
out:
    json_decref(files);
    json_decref(metadata);
    json_decref(facts);
    json_decref(body);
    mlo_response_clear(&response);
    mlo_buf_clear(&path);
    mlo_client_close(client);
    return status;
}

enum mlo_status mlo_client_data(struct mlo_client *client, const char *project, const char *name,
                                const char *version, const char *dir, json_t **row, json_t *paths,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf path = MLO_BUF_INIT;
    json_t *file;
    size_t i;
    mlo_client_path(&path, "/v1/projects/%s/datasets/%s/versions/%s", project, name, version);
    MLO_TRY(mlo_client_get(client, mlo_buf_str(&path), row, err));
    json_array_foreach(json_object_get(*row, "files"), i, file)
    {
        struct mlo_response response;
        char *written = NULL;
        const char *digest = mlo_json_str(file, "digest", "");
        mlo_buf_reset(&path);
        mlo_client_path(&path, "/v1/projects/%s/blobs/%s", project, digest);
        status = mlo_client_download(client, mlo_buf_str(&path), dir, mlo_json_str(file, "name", "data"),
                                     "data", digest, &written, &response, err);
        mlo_response_clear(&response);
        if (status != MLO_OK)
            goto out;
        json_array_append_new(paths, json_pack("{s:s, s:s}", "path", written, "digest", digest));
        free(written);
    }
    status = write_manifest(dir, json_object_get(*row, "files"), json_object_get(*row, "metadata"), err);
out:
    mlo_buf_clear(&path);
    return status;
}

static enum mlo_status data_pull_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_client *client = NULL;
    struct mlo_client_ref ref;
    const char *version, *dir = NULL;
    json_t *row = NULL, *file, *files = json_array(), *paths = json_array(), *all = NULL;
    size_t i;
    MLO_TRY(mlo_client_ref_parse(cli->args[0], &ref, err));
    MLO_TRY(mlo_client_ref_plain(&ref, true, false, err));
    MLO_TRY(mlo_client_ref_version(&ref, &version, err));
    MLO_TRY(mlo_cli_required(cli, "out", &dir, err));
    MLO_TRY(mlo_client_open(cli, &client, err));
    MLO_TRY(mlo_client_data(client, ref.project, ref.name, version, dir, &row, files, err));
    json_array_foreach(files, i, file)
    {
        json_array_append(paths, json_object_get(file, "path"));
        if (!cli->json)
            MLO_TRY(mlo_cli_print(err, "%s  %s\n", mlo_json_str(file, "path", ""),
                                  mlo_json_str(file, "digest", "")));
    }
    if (cli->json) {
        all = json_pack("{s:O,s:O}", "dataset", row, "files", paths);
        MLO_TRY(mlo_cli_print_json(all, err));
    } else {
        MLO_TRY(mlo_cli_print(err, "%s/dataset.json\n", dir));
    }
out:
    json_decref(all);
    json_decref(row);
    json_decref(files);
    json_decref(paths);
    mlo_client_close(client);
    return status;
}

static const struct mlo_cli_option push_options[] = {
    {"normalize", 0, "SPEC", "of uint8 data: scale=1/255,mean=0.49:0.48:0.45,std=0.25:0.24:0.26"},
    {"first", 0, "N", "the dataset begins at this sample of the files (0)"},
    {"count", 0, "N", "and has so many (all)"},
    {"classes", 0, "A,B,C", "names of the classes, in the order of the labels"},
    {"input", 0, "NAME", "the model input that the data feeds, where a model has several"},
    {"postprocess", 0, "POST.onnx",
     "a model that makes of a model's outputs what metrics read: part of the dataset"},
    {"description", 0, "TEXT", "what this dataset is"},
    MLO_OPTIONS_FACTS,
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_data_push = {
    .name = "data push",
    .group = "Models and data",
    .run = data_push_run,
    .options = push_options,
    .positional = "PROJECT/NAME FILE…",
    .min_args = 2,
    .max_args = 3,
    .help = "upload a dataset: one .npz, or IDX images and labels",
    .detail =
        "  mlopt data push fashion/test data.npz\n"
        "  mlopt data push fashion/calibration train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz \\\n"
        "      --count 512 --normalize 'scale=1/255,mean=0.286,std=0.353'\n",
};
static const struct mlo_cli_option pull_options[] = {
    {"out", 0, "DIR", "the folder to write to"},
    MLO_OPTION_URL,
    {NULL},
};
const struct mlo_cli_verb mlo_verb_data_pull = {
    .name = "data pull",
    .group = "Models and data",
    .run = data_pull_run,
    .options = pull_options,
    .positional = "PROJECT/NAME[@V] --out DIR",
    .min_args = 1,
    .max_args = 1,
    .help = "download a dataset, digests checked",
};
