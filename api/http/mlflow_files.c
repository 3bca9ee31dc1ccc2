/* What a version has to download by MLflow's client, folder by folder. */
#include <string.h>

#include "api/http/mlflow_impl.h"

#define VARIANT_FILE "model.onnx"

/* What the file MLmodel of a folder is about. */
struct about {
    const char *file, *variant;
    struct mlo_digest digest;
    uint64_t size_bytes;
};

void mlo_mlflow_folder_clear(struct mlo_mlflow_folder *folder)
{
    json_decref(folder->files);
    folder->files = NULL;
    mlo_buf_clear(&folder->mlmodel);
}

static enum mlo_status add_file(struct mlo_mlflow_folder *folder, const char *name,
                                const struct mlo_digest *digest, uint64_t size, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    json_t *file = json_pack("{s:s, s:s, s:I}", "name", name, "digest", mlo_digest_text(digest, text), "size",
                             (json_int_t)size);
    return json_array_append_new(folder->files, file) == 0 ? MLO_OK : mlo_error_nomem(err);
}

/* All files of the upload; its model is what MLmodel is about, unless there is such a file. */
static enum mlo_status upload_files(const json_t *version, struct mlo_mlflow_folder *folder,
                                    struct about *about, struct mlo_error *err)
{
    json_t *file;
    size_t i;
    bool described = false;
    json_array_foreach(json_object_get(version, "files"), i, file)
    {
        struct mlo_digest digest;
        const char *name = mlo_json_str(file, "name", "");
        uint64_t size = (uint64_t)mlo_json_i64(file, "size", 0);
        if (!mlo_digest_parse(mlo_json_str(file, "digest", ""), &digest))
            return mlo_error_set(err, MLO_EINTERNAL, "the file %.80s has no digest", name);
        enum mlo_status status = add_file(folder, name, &digest, size, err);
        if (status != MLO_OK)
            return status;
        described = described || strcmp(name, MLO_MLMODEL_FILE) == 0;
        if (strcmp(mlo_json_str(file, "role", ""), "model") == 0)
            *about = (struct about){name, MLO_VARIANT_SOURCE, digest, size};
    }
    if (described)
        about->file = NULL;
    return MLO_OK;
}

static enum mlo_status describe(struct mlo_request *req, const json_t *version, const struct about *about,
                                struct mlo_mlflow_folder *folder, struct mlo_error *err)
{
    char digest[MLO_DIGEST_TEXT_SIZE];
    json_t *known = NULL;
    enum mlo_status status = mlo_signature_get(req->conn, folder->version.id, &about->digest, &known, err);
    if (status != MLO_OK)
        return status;
    const json_t *read = json_object_get(known, "read");
    const struct mlo_mlmodel model = {
        .file = about->file,
        .ref = mlo_arena_printf(req->arena, "%s/%s@%lld/%s", mlo_json_str(version, "project", ""),
                                mlo_json_str(version, "model", ""), (long long)folder->version.number,
                                about->variant),
        .created_at = mlo_json_str(version, "created_at", ""),
        .digest = mlo_digest_text(&about->digest, digest),
        .size_bytes = about->size_bytes,
        .signature = json_is_object(read) ? read : json_object_get(known, "declared")};
    if (model.ref)
        mlo_mlmodel_write(&model, &folder->mlmodel);
    status = model.ref && mlo_buf_ok(&folder->mlmodel) ? MLO_OK : mlo_error_nomem(err);
    json_decref(known);
    return status;
}

static enum mlo_status held_variant(struct mlo_request *req, const struct mlo_version_info *version,
                                    const char *stage, struct mlo_resolution *out, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(mlo_request_stage(stage, "path", MLO_ENOTFOUND, err));
    MLO_TRY(mlo_stage_resolve(req->conn, version->model_id, stage, NULL, out, err));
    if (out->version != version->number) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "version %lld is not in %s; version %lld is",
                               (long long)version->number, stage, (long long)out->version);
        mlo_error_hint(err, "ask for the alias %s again", stage);
    }
out:
    return status;
}

enum mlo_status mlo_mlflow_folder(struct mlo_request *req, const char *name, const char *version,
                                  enum mlo_mlflow_folder_kind kind, const char *sub,
                                  struct mlo_mlflow_folder *out, struct mlo_error *err)
{
    struct about about = {.file = NULL};
    struct mlo_variant_info variant;
    struct mlo_resolution held;
    json_t *whole = NULL;
    enum mlo_status status;
    memset(out, 0, sizeof *out);
    MLO_TRY(mlo_mlflow_find_version(req, name, version, &out->version, err));
    MLO_TRY(mlo_version_get(req->conn, out->version.id, &whole, err));
    if (!(out->files = json_array())) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (kind == MLO_MLFLOW_STAGE) {
        MLO_TRY(held_variant(req, &out->version, sub, &held, err));
        about = (struct about){VARIANT_FILE, mlo_arena_strdup(req->arena, held.variant), held.artifact,
                               held.size_bytes};
    } else if (kind == MLO_MLFLOW_VARIANT) {
        MLO_TRY(mlo_variant_find(req->conn, out->version.id, sub, &variant, err));
        about = (struct about){VARIANT_FILE, mlo_arena_strdup(req->arena, variant.name), variant.artifact,
                               variant.size_bytes};
    } else {
        about.variant = MLO_VARIANT_SOURCE;
    }
    if (!about.variant) {
        status = mlo_error_nomem(err);
        goto out;
    }
    /* the upload may have its weights in files of their own */
    if (strcmp(about.variant, MLO_VARIANT_SOURCE) == 0)
        MLO_TRY(upload_files(whole, out, &about, err));
    else
        MLO_TRY(add_file(out, about.file, &about.digest, about.size_bytes, err));
    if (about.file && mlo_str_ends(about.file, ".onnx"))
        MLO_TRY(describe(req, whole, &about, out, err));
out:
    json_decref(whole);
    return status;
}

/* --- the list ---------------------------------------------------------------------------------- */

static enum mlo_status reply_files(struct mlo_request *req, json_t *files, struct mlo_error *err)
{
    return mlo_reply_json(req, 200, json_pack("{s:o}", "files", files), err);
}

static void list_entry(json_t *files, const char *path, bool folder, int64_t size)
{
    json_t *entry = json_pack("{s:s, s:b}", "path", path, "is_dir", folder);
    if (!folder)
        json_object_set_new(entry, "file_size", json_integer(size));
    json_array_append_new(files, entry);
}

/* The names under `variants` or `stages`, as folders. */
static enum mlo_status list_folders(struct mlo_request *req, const char *name, const char *version,
                                    bool stages, struct mlo_error *err)
{
    struct mlo_version_info info;
    json_t *rows = NULL, *files = json_array(), *item;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_mlflow_find_version(req, name, version, &info, err));
    MLO_TRY(mlo_catalog_versions_of(req->conn, &info.id, 1, &rows, err));
    const json_t *row = json_array_get(rows, 0);
    if (stages) {
        json_array_foreach(json_object_get(row, "stages"), i, item)
            list_entry(files, json_string_value(item), true, 0);
    } else {
        const char *at = mlo_json_str(json_object_get(row, "tags"), "mlopt.variants", "");
        for (size_t n = strcspn(at, ","); n; at += n + (at[n] == ','), n = strcspn(at, ",")) {
            char *variant = mlo_arena_strndup(req->arena, at, n);
            if (variant)
                list_entry(files, variant, true, 0);
        }
    }
    status = reply_files(req, files, err);
    files = NULL;
out:
    json_decref(rows);
    json_decref(files);
    return status;
}

/* The files of a folder; `file`: of this one there is nothing to list, if it is there. */
static enum mlo_status list_folder(struct mlo_request *req, char *const *part, size_t count,
                                   struct mlo_error *err)
{
    struct mlo_mlflow_folder folder = {.files = NULL};
    json_t *files = json_array(), *item;
    size_t i;
    enum mlo_status status;
    const bool variant = count >= 4 && strcmp(part[2], "variants") == 0,
               stage = count >= 4 && strcmp(part[2], "stages") == 0;
    const char *file = variant || stage ? (count == 5 ? part[4] : NULL) : count == 3 ? part[2] : NULL;
    bool there = !file;
    if (count > 5 || (count > 3 && !variant && !stage)) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no such folder");
        goto out;
    }
    MLO_TRY(mlo_mlflow_folder(req, part[0], part[1],
                              variant ? MLO_MLFLOW_VARIANT
                              : stage ? MLO_MLFLOW_STAGE
                                      : MLO_MLFLOW_ROOT,
                              variant || stage ? part[3] : NULL, &folder, err));
    if (folder.mlmodel.len)
        json_array_append_new(folder.files, json_pack("{s:s, s:I}", "name", MLO_MLMODEL_FILE, "size",
                                                      (json_int_t)folder.mlmodel.len));
    json_array_foreach(folder.files, i, item)
    {
        const char *name = mlo_json_str(item, "name", "");
        if (!file)
            list_entry(files, name, false, mlo_json_i64(item, "size", 0));
        there = there || strcmp(name, file) == 0;
    }
    if (!there) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no file or folder %.100s", file);
        mlo_error_hint(err, "list the folder; variants/NAME and stages/STAGE are not in its list");
        goto out;
    }
    status = reply_files(req, files, err);
    files = NULL;
out:
    json_decref(files);
    mlo_mlflow_folder_clear(&folder);
    return status;
}

enum mlo_status h_mlflow_artifacts(struct mlo_request *req, struct mlo_error *err)
{
    const char *path = mlo_request_query(req, "path");
    char *parts[6], *rest = NULL;
    size_t count = 0;
    char *text = path ? mlo_arena_strdup(req->arena, path) : NULL;
    if (path && !text)
        return mlo_error_nomem(err);
    for (char *at = text ? strtok_r(text, "/", &rest) : NULL; at && count < MLO_COUNT(parts);
         at = strtok_r(NULL, "/", &rest))
        parts[count++] = at;
    if (count < 2) {
        mlo_error_set(err, MLO_EINVAL, "a path is NAME/VERSION, and what is below");
        mlo_error_where(err, "query argument 'path'");
        mlo_error_hint(err, "as model-versions/get-download-uri gives it, behind mlflow-artifacts:/");
        return MLO_EINVAL;
    }
    if (count == 3 && (strcmp(parts[2], "variants") == 0 || strcmp(parts[2], "stages") == 0))
        return list_folders(req, parts[0], parts[1], parts[2][0] == 's', err);
    return list_folder(req, parts, count, err);
}

/* --- a file ------------------------------------------------------------------------------------ */

static enum mlo_status reply_download(struct mlo_request *req, enum mlo_mlflow_folder_kind kind,
                                      const char *sub, struct mlo_error *err)
{
    const char *file = mlo_request_param(req, "file");
    struct mlo_mlflow_folder folder;
    struct mlo_digest digest;
    json_t *item;
    size_t i;
    bool may_redirect;
    enum mlo_status status = mlo_request_may_redirect(req, &may_redirect, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_mlflow_folder(req, mlo_request_param(req, "n"), mlo_request_param(req, "v"), kind, sub,
                              &folder, err));
    if (folder.mlmodel.len && strcmp(file, MLO_MLMODEL_FILE) == 0) {
        mlo_buf_reset(&req->out);
        mlo_buf_append(&req->out, folder.mlmodel.data, folder.mlmodel.len);
        status = mlo_reply_out(req, 200, "application/octet-stream", err);
        goto out;
    }
    json_array_foreach(folder.files, i, item)
    {
        if (strcmp(mlo_json_str(item, "name", ""), file) == 0 &&
            mlo_digest_parse(mlo_json_str(item, "digest", ""), &digest)) {
            status = mlo_reply_artifact(req, &digest, NULL, err);
            goto out;
        }
    }
    status = mlo_error_set(err, MLO_ENOTFOUND, "there is no file %.100s", file);
    mlo_error_hint(err, "list the folder: mlflow.artifacts.list_artifacts");
out:
    mlo_mlflow_folder_clear(&folder);
    return status;
}

enum mlo_status h_mlflow_file(struct mlo_request *req, struct mlo_error *err)
{
    return reply_download(req, MLO_MLFLOW_ROOT, NULL, err);
}

enum mlo_status h_mlflow_variant_file(struct mlo_request *req, struct mlo_error *err)
{
    return reply_download(req, MLO_MLFLOW_VARIANT, mlo_request_param(req, "name"), err);
}

enum mlo_status h_mlflow_stage_file(struct mlo_request *req, struct mlo_error *err)
{
    return reply_download(req, MLO_MLFLOW_STAGE, mlo_request_param(req, "s"), err);
}
