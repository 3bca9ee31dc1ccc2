/* The part of MLflow's REST API that its stock client needs to list models, read versions and aliases, and
 * download: docs/mlflow.md. Read-only. */
#ifndef MLO_HTTP_MLFLOW_IMPL_H
#define MLO_HTTP_MLFLOW_IMPL_H

#include "api/http/handlers_impl.h"
#include "api/http/mlflow_filter.h"

#define MLO_MLMODEL_FILE "MLmodel" /* what MLflow calls the file that describes a model */

/* mlflow_problem.c: whether the path is one of MLflow's API; then failures have the members that its clients
 * read, `error_code` and `message`, besides those of a problem. */
bool mlo_mlflow_path(const char *path);
/* Adds them. `route`: whether there is one for the path. */
void mlo_mlflow_problem(json_t *problem, int http_status, bool route);
/* Whether it is a call of MLflow's API that would change something, which nothing serves: `err` says what
 * does that here. */
bool mlo_mlflow_write_call(struct mlo_request *req, struct mlo_error *err);

/* mlflow_view.c: rows of the catalog as MLflow shows them; new references, NULL: no memory. */
json_t *mlo_mlflow_version(const json_t *row);
json_t *mlo_mlflow_model(const json_t *row, const json_t *version_rows);

/* mlflow_files.c: what a version has to download, in one of its folders. */
enum mlo_mlflow_folder_kind {
    MLO_MLFLOW_ROOT,    /* the files of the upload */
    MLO_MLFLOW_VARIANT, /* variants/NAME */
    MLO_MLFLOW_STAGE, /* stages/STAGE: what a consumer without features gets of it, as long as it is there */
};
struct mlo_mlflow_folder {
    struct mlo_version_info version;
    json_t *files;          /* of {name, digest, size} */
    struct mlo_buf mlmodel; /* the file MLmodel, made here; empty: there is none, or it was uploaded */
};
/* Finds it, for an actor who may see it. `sub`: the NAME or STAGE. Clear it, also after a failure. */
MLO_MUST_USE enum mlo_status mlo_mlflow_folder(struct mlo_request *req, const char *name, const char *version,
                                               enum mlo_mlflow_folder_kind kind, const char *sub,
                                               struct mlo_mlflow_folder *out, struct mlo_error *err);
void mlo_mlflow_folder_clear(struct mlo_mlflow_folder *folder);

/* mlmodel.c: appends the file MLmodel for an ONNX model: the flavors onnx and python_function, the signature
 * where MLflow can say it, and what it is in the registry. */
struct mlo_mlmodel {
    const char *file;        /* of the model, beside it */
    const char *ref;         /* PROJECT/MODEL@VERSION/VARIANT */
    const char *created_at;  /* as the API says times */
    const char *digest;      /* sha256:… */
    uint64_t size_bytes;     /* of the model's file */
    const json_t *signature; /* base/signature.h; NULL, null: not known */
};
void mlo_mlmodel_write(const struct mlo_mlmodel *model, struct mlo_buf *out);

/* h_mlflow.c: what a name and a version name, for the request's actor. */
MLO_MUST_USE enum mlo_status mlo_mlflow_find(struct mlo_request *req, const char *name, int64_t *model,
                                             struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_mlflow_find_version(struct mlo_request *req, const char *name,
                                                     const char *version, struct mlo_version_info *out,
                                                     struct mlo_error *err);

#endif
