/* Uploading a model from the page: a form whose files go to the blob store while they arrive. */
#include <stdlib.h>
#include <string.h>

#include "api/http/multipart.h"
#include "api/web/web_impl.h"

enum { FILES_MAX = 32, FIELD_MAX = 2 << 10, NAME_MAX_BYTES = 255 };

/* The fields, in the order that the form has them: all come before the first file. */
enum { F_CSRF, F_PROJECT, F_MODEL, F_DESCRIPTION, FIELDS };
static const char *const FIELD_NAMES[FIELDS] = {"csrf", "project", "model", "description"};

struct taken {
    const char *role;
    char name[NAME_MAX_BYTES + 1];
    struct mlo_digest digest;
    uint64_t size;
};

struct page_upload {
    struct mlo_request *req;
    struct mlo_multipart *form;
    char fields[FIELDS][FIELD_MAX];
    size_t lengths[FIELDS];
    bool admitted; /* the fields were looked at: this actor may upload into the project */
    int64_t project;
    struct taken files[FILES_MAX];
    size_t count;
    struct mlo_blob_writer *writer; /* of the file that arrives, files[count - 1] */
};

/* --- the form ------------------------------------------------------------------------------------------ */

static void draw_form(struct mlo_request *req, const json_t *projects)
{
    const char *project = mlo_request_query(req, "project"), *model = mlo_request_query(req, "model");
    struct mlo_buf *out = &req->out;
    const json_t *item;
    size_t i;
    HTML(out, "<section class=\"panel\"><form class=\"tall\" method=\"post\" action=\"/upload\" "
              "enctype=\"multipart/form-data\">");
    mlo_page_csrf_field(req);
    HTML(out,
         "<label>Project<input name=\"project\" required maxlength=\"100\" list=\"projects\" "
         "autocomplete=\"off\" "
         "value=\"%s\"></label><datalist id=\"projects\">",
         project ? project : "");
    json_array_foreach((json_t *)projects, i, item) HTML(out, "<option>%s</option>", mlo_text(item, "name"));
    HTML(out,
         "</datalist><label>Model<input name=\"model\" required maxlength=\"100\" autocomplete=\"off\" "
         "value=\"%s\">"
         "</label><label>What is new in it<input name=\"description\" maxlength=\"500\"></label>"
         "<label>The ONNX model<input type=\"file\" name=\"model_file\" required></label>"
         "<label>External data, where the model has any<input type=\"file\" name=\"data_file\" "
         "multiple></label>"
         "<p><button class=\"primary\">Upload</button></p></form></section><p class=\"muted\">It becomes the "
         "next version "
         "of the model. A name that is new makes the model%s. Very large files are better sent by "
         "<code>mlopt push"
         "</code>, which goes on where a connection broke.</p>",
         model ? model : "",
         req->who.project_id == 0 && req->who.role >= MLO_ADMIN ? ", and the project" : "");
}

enum mlo_status page_upload(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_page page = {.limit = 200};
    struct mlo_db_conn *conn;
    json_t *projects = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_project_list(conn, &actor, &page, &projects, err));
    mlo_page_begin(req, "Upload a model", "models");
    HTML(&req->out, "<p class=\"eyebrow\"><a href=\"/\">Models</a></p><h1>Upload a model</h1>");
    draw_form(req, json_object_get(projects, "items"));
    MLO_TRY(mlo_page_end(req, 200, err));
out:
    json_decref(projects);
    return status;
}

/* --- what arrives -------------------------------------------------------------------------------------- */

/* Before the first byte of a file is stored: whose form it is, and whether there is a place for it. */
static enum mlo_status admit(struct page_upload *u, struct mlo_error *err)
{
    struct mlo_request *req = u->req;
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_error missing = {0};
    struct mlo_db_conn *conn;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_matches(req, u->fields[F_CSRF], err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    status = mlo_project_find(conn, &actor, u->fields[F_PROJECT], MLO_SUBMITTER, &u->project, &missing);
    bool make = status == MLO_ENOTFOUND && actor.project_id == 0 && actor.role >= MLO_ADMIN;
    if (status != MLO_OK && !make) {
        if (err)
            *err = missing;
        goto out;
    }
    if (!mlo_name_valid(u->fields[F_MODEL])) { /* before a project is made for it */
        status =
            mlo_error_set(err, MLO_EINVAL, "'%.100s' cannot name a model: letters, digits, '.', '_' and '-'",
                          u->fields[F_MODEL]);
        goto out;
    }
    status = MLO_OK;
    if (make)
        MLO_TRY(mlo_project_create(conn, &actor, u->fields[F_PROJECT], "", &u->project, err));
    u->admitted = true;
out:
    mlo_request_db_release(req); /* an upload may take long */
    return status;
}

/* The file that arrived last becomes a blob of the project. */
static enum mlo_status finish_file(struct page_upload *u, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(u->req);
    struct mlo_blob_store *blobs = mlo_http_options(u->req->http)->blobs;
    struct taken *file = u->count ? &u->files[u->count - 1] : NULL;
    struct mlo_db_conn *conn;
    enum mlo_status status = MLO_OK;
    if (!u->writer)
        return MLO_OK;
    mlo_blob_writer_digest(u->writer, &file->digest);
    MLO_TRY(mlo_request_db(u->req, &conn, err)); /* what the project has already is nothing more */
    MLO_TRY(mlo_storage_check_blob(conn, u->project, &file->digest, mlo_blob_writer_size(u->writer), err));
    mlo_request_db_release(u->req);
    MLO_TRY(mlo_blob_writer_commit(u->writer, &file->digest, NULL, &file->size, err));
    MLO_TRY(mlo_request_db(u->req, &conn, err));
    MLO_TRY(mlo_blob_record_stored(conn, blobs, &actor, u->project, &file->digest, file->size, err));
    MLO_TRY(mlo_blob_replaced(conn, &file->digest, err));
out:
    mlo_request_db_release(u->req);
    mlo_blob_writer_free(u->writer);
    u->writer = NULL;
    return status;
}

static const char *role_of(const struct mlo_multipart_piece *piece)
{
    return strcmp(piece->name, "model_file") == 0 ? "model" : "data";
}

/* A browser may say a path. */
static const char *name_of(const struct mlo_multipart_piece *piece)
{
    const char *name = piece->filename;
    for (const char *c = piece->filename; *c; c++)
        if (*c == '/' || *c == '\\')
            name = c + 1;
    return name;
}

static enum mlo_status begin_file(struct page_upload *u, const struct mlo_multipart_piece *piece,
                                  struct mlo_error *err)
{
    const char *name = name_of(piece);
    enum mlo_status status;
    MLO_TRY(finish_file(u, err));
    if (!u->admitted)
        MLO_TRY(admit(u, err));
    if (u->count == FILES_MAX)
        return mlo_error_set(err, MLO_ETOOBIG, "a form takes %d files at most", FILES_MAX);
    struct taken *file = &u->files[u->count];
    if (!name[0] || strlen(name) > NAME_MAX_BYTES)
        return mlo_error_set(err, MLO_EINVAL, "a file needs a name of at most %d bytes", NAME_MAX_BYTES);
    *file = (struct taken){.role = role_of(piece)};
    snprintf(file->name, sizeof file->name, "%s", name);
    MLO_TRY(mlo_blob_writer_open(mlo_http_options(u->req->http)->blobs, &u->writer, err));
    u->count++;
out:
    return status;
}

static enum mlo_status take_field(struct page_upload *u, const struct mlo_multipart_piece *piece,
                                  struct mlo_error *err)
{
    for (size_t i = 0; i < FIELDS; i++) {
        if (strcmp(FIELD_NAMES[i], piece->name) != 0)
            continue;
        if (u->lengths[i] + piece->size >= FIELD_MAX)
            return mlo_error_set(err, MLO_ETOOBIG, "the field '%s' takes %d bytes at most", FIELD_NAMES[i],
                                 FIELD_MAX - 1);
        memcpy(u->fields[i] + u->lengths[i], piece->bytes, piece->size);
        u->lengths[i] += piece->size;
    }
    return MLO_OK;
}

static enum mlo_status take(void *arg, const struct mlo_multipart_piece *piece, struct mlo_error *err)
{
    struct page_upload *u = arg;
    enum mlo_status status;
    if (!piece->filename)
        return take_field(u, piece, err);
    if (!piece->filename[0] && !piece->size) /* nothing was chosen */
        return MLO_OK;
    /* the first piece of a file may be told twice, the first time without bytes */
    const struct taken *file = u->count ? &u->files[u->count - 1] : NULL;
    bool same = u->writer && mlo_blob_writer_size(u->writer) == 0 && piece->size &&
                strcmp(file->role, role_of(piece)) == 0 && strcmp(file->name, name_of(piece)) == 0;
    if (piece->offset == 0 && !same)
        MLO_TRY(begin_file(u, piece, err));
    MLO_TRY(mlo_blob_writer_write(u->writer, piece->bytes, piece->size, err));
out:
    return status;
}

static enum mlo_status upload_begin(struct mlo_request *req, struct mlo_error *err)
{
    struct page_upload *u = calloc(1, sizeof *u);
    if (!u)
        return mlo_error_nomem(err);
    u->req = req;
    req->upload = u;
    return mlo_multipart_new(req, take, u, &u->form, err);
}

static enum mlo_status upload_data(struct mlo_request *req, const void *bytes, size_t size,
                                   struct mlo_error *err)
{
    struct page_upload *u = req->upload;
    return mlo_multipart_feed(u->form, bytes, size, err);
}

static void upload_end(struct mlo_request *req)
{
    struct page_upload *u = req->upload;
    if (!u)
        return;
    mlo_multipart_free(u->form);
    mlo_blob_writer_free(u->writer);
    free(u);
    req->upload = NULL;
}

const struct mlo_upload_body mlo_page_upload_body = {upload_begin, upload_data, upload_end};

enum mlo_status page_upload_post(struct mlo_request *req, struct mlo_error *err)
{
    struct page_upload *u = req->upload;
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_manifest_blob blobs[FILES_MAX];
    struct mlo_version_info info;
    struct mlo_db_conn *conn;
    bool model = false;
    enum mlo_status status;
    MLO_TRY(mlo_multipart_end(u->form, err));
    MLO_TRY(finish_file(u, err));
    if (!u->admitted)
        MLO_TRY(mlo_page_csrf_matches(req, u->fields[F_CSRF], err));
    for (size_t i = 0; i < u->count; i++) {
        struct taken *file = &u->files[i];
        model = model || strcmp(file->role, "model") == 0;
        blobs[i] = (struct mlo_manifest_blob){.role = file->role,
                                              .name = file->name,
                                              .media_type = "application/octet-stream",
                                              .digest = file->digest};
    }
    if (!model) {
        status = mlo_error_set(err, MLO_EINVAL, "no model was chosen");
        mlo_error_hint(err, "choose the .onnx file, and its external data where it has any");
        goto out;
    }
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_view_version_add(conn, &actor, u->project, u->fields[F_MODEL],
                                 &(struct mlo_version_content){.description = u->fields[F_DESCRIPTION],
                                                               .blobs = blobs,
                                                               .count = u->count},
                                 &info, err));
    MLO_TRY(mlo_reply_redirect(req, "/models/%s/%s?version=%lld", u->fields[F_PROJECT], u->fields[F_MODEL],
                               (long long)info.number));
out:
    return status;
}
