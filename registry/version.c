#include "registry/facts_impl.h"
#include "registry/manifest_impl.h"
#include "registry/release_impl.h"
#include "registry/signature.h"
#include "registry/sql_impl.h"
#include "registry/together.h"

#include <string.h>

enum {
    VERSION_LOCK,
    VERSION_COUNT,
    VERSION_ADD,
    VERSION_BLOB,
    VERSION_SOURCE,
    VERSION_FIND,
    VERSION_LOCATE,
    VERSION_GET,
    VERSION_READ_EACH,
    VERSION_LIST
};

/* "archived": {at, by, reason}, or null; "deletion": its number, or null. */
#define STATE                                                                                                \
    "CASE WHEN v.archived_at IS NOT NULL THEN json_build_object('at', to_char(v.archived_at, "               \
    "'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), 'by', v.archived_by, 'reason', v.archived_reason) END AS "        \
    "archived, v.deletion_id AS deletion"

/* What a struct mlo_version_info says, in its columns. */
#define FOUND                                                                                                \
    "v.id, v.number, v.model_id, m.project_id, v.manifest_digest, b.digest, b.size, "                        \
    "v.archived_at IS NOT NULL, v.deletion_id IS NOT NULL "
#define ITS_MODEL "JOIN version_blob b ON b.version_id = v.id AND b.role = 'model' "
/* The number that is said, or the latest that is not archived, by the index either way. */
#define NUMBERED(model, number)                                                                              \
    "CASE WHEN " number "::bigint IS NULL THEN (SELECT l.number FROM version l WHERE l.model_id = " model    \
    " AND l.deletion_id IS NULL AND l.archived_at IS NULL ORDER BY l.number DESC LIMIT 1) ELSE " number      \
    " END"

/* What is shown of one. */
#define SHOWN                                                                                                \
    "v.id, p.name AS project, m.name AS model, v.number AS version, v.manifest_digest, v.description, "      \
    "v.created_at, v.created_by, " STATE                                                                     \
    ", " MLO_FACTS_JSON("v.manifest") ", " MLO_FILES_JSON("version_blob", "version_id", "v.id") " "
enum { FOUND_COLUMNS = 9 };

const struct mlo_sql mlo_sql_version[] = {
    [VERSION_LOCK] = {"version_lock",
                      "SELECT m.project_id, p.name || '/' || m.name, m.name FROM model m JOIN project p ON "
                      "p.id = m.project_id "
                      "WHERE m.id = $1 AND m.deletion_id IS NULL FOR NO KEY UPDATE OF m",
                      1},
    [VERSION_COUNT] =
        {"version_count",
         "UPDATE model SET next_version = next_version + 1 WHERE id = $1 RETURNING next_version - 1", 1},
    [VERSION_ADD] =
        {"version_add",
         "INSERT INTO version (model_id, number, manifest_digest, manifest, description, created_by) "
         "VALUES ($1, $2, $3, $4, $5, $6) RETURNING id",
         6},
    [VERSION_BLOB] = {"version_blob",
                      "INSERT INTO version_blob (version_id, role, name, digest, size, media_type) "
                      "VALUES ($1, $2, $3, $4, $5, $6)",
                      6},
    [VERSION_SOURCE] =
        {"version_source",
         "INSERT INTO variant (version_id, name, artifact, size, named_by) VALUES ($1, 'source', $2, $3, $4)",
         4},
    [VERSION_FIND] = {"version_find",
                      "SELECT " FOUND "FROM version v JOIN model m ON m.id = v.model_id " ITS_MODEL
                      "WHERE v.model_id = $1 AND v.number = " NUMBERED("$1", "$2"),
                      2},
    [VERSION_LOCATE] = {"version_locate",
                        "SELECT " FOUND
                        "FROM project p JOIN model m ON m.project_id = p.id JOIN version v ON "
                        "v.model_id = m.id " ITS_MODEL "WHERE p.name = $1 AND m.name = $2 AND "
                        "m.deletion_id IS NULL AND v.number = " NUMBERED("m.id", "$3"),
                        3},
    [VERSION_GET] = {"version_get",
                     "SELECT " SHOWN
                     "FROM version v JOIN model m ON m.id = v.model_id JOIN project p ON p.id = "
                     "m.project_id WHERE v.id = $1",
                     1},
    [VERSION_READ_EACH] =
        {"version_read_each",
         "SELECT n.i, " FOUND ", " SHOWN "FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY "
         "AS n(project, model, number, i) JOIN project p ON p.name = n.project JOIN model m ON "
         "m.project_id = p.id AND m.name = n.model AND m.deletion_id IS NULL JOIN version v ON "
         "v.model_id = m.id AND v.number = " NUMBERED("m.id", "n.number::bigint") " " ITS_MODEL,
         3},
    [VERSION_LIST] =
        {"version_list",
         "SELECT v.number AS cursor_key, v.id, p.name AS project, m.name AS model, v.number AS version, "
         "v.manifest_digest, v.description, v.created_at, v.created_by, " STATE ", " MLO_FACTS_JSON(
             "v.manifest") ", "
                           "(SELECT count(DISTINCT va.name) FROM variant va WHERE va.version_id = v.id "
                           "AND va.deletion_id IS NULL) AS "
                           "variants "
                           "FROM version v JOIN model m ON m.id = v.model_id JOIN project p ON p.id = "
                           "m.project_id "
                           "WHERE v.model_id = $1 AND v.deletion_id IS NULL AND v.number < $2 ORDER BY "
                           "v.number DESC LIMIT $3",
         3},
};
const size_t mlo_sql_version_count = MLO_COUNT(mlo_sql_version);

static const struct mlo_manifest_blob *the_model(const struct mlo_manifest_blob *blobs, size_t count,
                                                 struct mlo_error *err)
{
    const struct mlo_manifest_blob *found = NULL;
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(blobs[i].role, "model") == 0) {
            found = &blobs[i];
            n++;
        }
    }
    if (n == 1)
        return found;
    mlo_error_set(err, MLO_EINVAL, "a version has exactly one file with the role model, not %zu", n);
    return NULL;
}

static enum mlo_status insert(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t model_id,
                              const char *description, const struct mlo_buf *manifest,
                              const struct mlo_manifest_blob *blobs, size_t count,
                              struct mlo_version_info *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_params counter = MLO_PARAMS_INIT, add = MLO_PARAMS_INIT, source = MLO_PARAMS_INIT;
    mlo_param_i64(&counter, model_id);
    MLO_TRY(mlo_sql_number(conn, &mlo_sql_version[VERSION_COUNT], &counter, &out->number, err));
    mlo_param_i64(&add, model_id);
    mlo_param_i64(&add, out->number);
    mlo_param_digest(&add, &out->manifest);
    mlo_param_text(&add, mlo_buf_str(manifest));
    mlo_param_text(&add, description ? description : "");
    mlo_param_text(&add, actor->name);
    MLO_TRY(mlo_sql_number(conn, &mlo_sql_version[VERSION_ADD], &add, &out->id, err));
    MLO_TRY(mlo_manifest_insert(conn, &mlo_sql_version[VERSION_BLOB], out->id, blobs, count, err));
    mlo_param_i64(&source, out->id);
    mlo_param_digest(&source, &out->artifact);
    mlo_param_i64(&source, (int64_t)out->artifact_size);
    mlo_param_text(&source, actor->name);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_version[VERSION_SOURCE], &source, NULL, err));
out:
    return status;
}

static enum mlo_status audit(struct mlo_db_conn *conn, const struct mlo_actor *actor, const char *model,
                             const char *description, const struct mlo_version_info *info,
                             struct mlo_error *err)
{
    char object[240], manifest[MLO_DIGEST_TEXT_SIZE], artifact[MLO_DIGEST_TEXT_SIZE];
    snprintf(object, sizeof object, "%s@%lld", model, (long long)info->number);
    json_t *after =
        json_pack("{s:I, s:s, s:s, s:s}", "version", (json_int_t)info->number, "manifest_digest",
                  mlo_digest_text(&info->manifest, manifest), "artifact",
                  mlo_digest_text(&info->artifact, artifact), "description", description ? description : "");
    if (!after)
        return mlo_error_set(err, MLO_EINVAL, "the description is not UTF-8");
    struct mlo_audit_event event = {.action = "version.create", .object = object, .after = after};
    enum mlo_status status = mlo_audit_append(conn, info->project_id, actor, &event, NULL, err);
    json_decref(after);
    return status;
}

/* Facts and the declared signature as the manifest's members; *facts stays NULL when there are none. */
static enum mlo_status read_members(struct mlo_db_conn *conn, int64_t project_id,
                                    const struct mlo_version_content *content, json_t **facts,
                                    json_t **members, struct mlo_error *err)
{
    const json_t *signature = json_is_null(content->signature) ? NULL : content->signature;
    enum mlo_status status = mlo_facts_read(conn, project_id, content->facts, facts, err);
    if (status == MLO_OK && signature)
        status = mlo_signature_check(signature, err);
    if (status != MLO_OK)
        return status;
    *members = json_pack("{s:O*, s:O*}", "facts", *facts, "signature", (json_t *)signature);
    return *members ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_version_add(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t model_id,
                                const struct mlo_version_content *content, struct mlo_version_info *out,
                                struct mlo_error *err)
{
    struct mlo_manifest_blob *blobs = content->blobs;
    const size_t count = content->count;
    json_t *facts = NULL, *members = NULL;
    struct mlo_params lock = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_buf manifest = MLO_BUF_INIT;
    struct mlo_version_info latest;
    struct mlo_error ignored = {0};
    memset(out, 0, sizeof *out);
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&lock, model_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_version[VERSION_LOCK], &lock, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no such model");
        goto out;
    }
    out->model_id = model_id;
    out->project_id = mlo_rows_i64(&rows, 0, 0);
    MLO_TRY(mlo_actor_require(actor, out->project_id, MLO_SUBMITTER, err));
    MLO_TRY(read_members(conn, out->project_id, content, &facts, &members, err));
    MLO_TRY(mlo_manifest_make(conn, out->project_id, blobs, count, members, &manifest, &out->manifest, err));
    const struct mlo_manifest_blob *model = the_model(blobs, count, err);
    if (!model) {
        status = MLO_EINVAL;
        goto out;
    }
    out->artifact = model->digest;
    out->artifact_size = model->size_bytes;
    status = mlo_version_find(conn, model_id, 0, &latest, &ignored);
    if (status == MLO_OK && mlo_digest_eq(&latest.manifest, &out->manifest)) {
        *out = latest;
        goto out;
    }
    if (status != MLO_OK && status != MLO_ENOTFOUND) {
        if (err)
            *err = ignored;
        goto out;
    }
    MLO_TRY(insert(conn, actor, model_id, content->description, &manifest, blobs, count, out, err));
    MLO_TRY(mlo_facts_insert(conn, actor, out, mlo_rows_text(&rows, 0, 2), facts, err));
    MLO_TRY(audit(conn, actor, mlo_rows_text(&rows, 0, 1), content->description, out, err));
    MLO_TRY(mlo_signature_refute(conn, actor, out->id, err)); /* where a worker has read these bytes before */
    out->created = true;
out:
    mlo_rows_clear(&rows);
    mlo_buf_clear(&manifest);
    json_decref(facts);
    json_decref(members);
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_version_create(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t model_id,
                                   const char *description, struct mlo_manifest_blob *blobs, size_t count,
                                   struct mlo_version_info *out, struct mlo_error *err)
{
    const struct mlo_version_content content = {.description = description, .blobs = blobs, .count = count};
    return mlo_version_add(conn, actor, model_id, &content, out, err);
}

enum mlo_status mlo_version_ahead(struct mlo_db_conn *conn, int64_t model_id, int64_t number,
                                  struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, model_id);
    mlo_param_id(&p, number);
    return mlo_db_ahead(conn, &mlo_sql_version[VERSION_FIND], &p, err);
}

/* FOUND, from a column on. */
static enum mlo_status read_info(const struct mlo_rows *rows, int row, int first,
                                 struct mlo_version_info *out, struct mlo_error *err)
{
    out->id = mlo_rows_i64(rows, row, first);
    out->number = mlo_rows_i64(rows, row, first + 1);
    out->model_id = mlo_rows_i64(rows, row, first + 2);
    out->project_id = mlo_rows_i64(rows, row, first + 3);
    out->artifact_size = (uint64_t)mlo_rows_i64(rows, row, first + 6);
    out->archived = mlo_rows_bool(rows, row, first + 7);
    out->deleted = mlo_rows_bool(rows, row, first + 8);
    if (!mlo_rows_digest(rows, row, first + 4, &out->manifest) ||
        !mlo_rows_digest(rows, row, first + 5, &out->artifact))
        return mlo_error_set(err, MLO_EINTERNAL, "version %lld has no digests", (long long)out->number);
    return MLO_OK;
}

static enum mlo_status not_deleted(const struct mlo_version_info *version, struct mlo_error *err)
{
    if (!version->deleted)
        return MLO_OK;
    mlo_error_set(err, MLO_ENOTFOUND, "version %lld was deleted", (long long)version->number);
    mlo_error_hint(err, "within its grace period it can be brought back: mlopt deletions, mlopt undelete");
    return MLO_ENOTFOUND;
}

enum mlo_status mlo_version_find_any(struct mlo_db_conn *conn, int64_t model_id, int64_t number,
                                     struct mlo_version_info *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    memset(out, 0, sizeof *out);
    mlo_param_i64(&p, model_id);
    mlo_param_id(&p, number);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_version[VERSION_FIND], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0)
        status = number
                     ? mlo_error_set(err, MLO_ENOTFOUND, "the model has no version %lld", (long long)number)
                     : mlo_error_set(err, MLO_ENOTFOUND, "the model has no version");
    if (status == MLO_OK)
        status = read_info(&rows, 0, 0, out, err);
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_version_find(struct mlo_db_conn *conn, int64_t model_id, int64_t number,
                                 struct mlo_version_info *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_version_find_any(conn, model_id, number, out, err);
    return status == MLO_OK ? not_deleted(out, err) : status;
}

static void locate_params(struct mlo_params *p, const char *project, const char *model, int64_t number)
{
    mlo_param_text(p, project);
    mlo_param_text(p, model);
    mlo_param_id(p, number);
}

enum mlo_status mlo_version_locate_ahead(struct mlo_db_conn *conn, const char *project, const char *model,
                                         int64_t number, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    locate_params(&p, project, model, number);
    return mlo_db_ahead(conn, &mlo_sql_version[VERSION_LOCATE], &p, err);
}

enum mlo_status mlo_version_locate(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   const char *project, const char *model, int64_t number, enum mlo_role role,
                                   bool deleted_too, struct mlo_version_info *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    int64_t project_id, model_id;
    memset(out, 0, sizeof *out);
    locate_params(&p, project, model, number);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_version[VERSION_LOCATE], &p, &rows, err);
    bool found = status == MLO_OK && mlo_rows_count(&rows) == 1;
    if (found)
        status = read_info(&rows, 0, 0, out, err);
    mlo_rows_clear(&rows);
    if (status != MLO_OK)
        return status;
    if (found) {
        status = mlo_project_admit(actor, out->project_id, project, role, err);
        return status == MLO_OK && !deleted_too ? not_deleted(out, err) : status;
    }
    /* one after the other, to say what is not there */
    status = mlo_project_find(conn, actor, project, role, &project_id, err);
    if (status == MLO_OK)
        status = mlo_model_find(conn, project_id, model, &model_id, err);
    if (status == MLO_OK)
        status = deleted_too ? mlo_version_find_any(conn, model_id, number, out, err)
                             : mlo_version_find(conn, model_id, number, out, err);
    return status;
}

enum mlo_status mlo_version_get(struct mlo_db_conn *conn, int64_t version_id, json_t **out,
                                struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, version_id);
    return mlo_sql_object(conn, &mlo_sql_version[VERSION_GET], &p, out, err);
}

struct mlo_gather_ask mlo_version_ask(const char *project, const char *model, const char *number)
{
    return (struct mlo_gather_ask){.sql = &mlo_sql_version[VERSION_READ_EACH],
                                   .values = {project, model, number}};
}

enum mlo_status mlo_version_answer(const struct mlo_gather_ask *ask, const struct mlo_actor *actor,
                                   enum mlo_role role, struct mlo_version_info *info, struct mlo_buf *out,
                                   struct mlo_error *err)
{
    memset(info, 0, sizeof *info);
    if (ask->row < 0)
        return mlo_error_set(err, MLO_ENOTFOUND, "there is no such version");
    enum mlo_status status = read_info(&ask->rows, ask->row, 1, info, err);
    if (status == MLO_OK)
        status = mlo_project_admit(actor, info->project_id, ask->values[0], role, err);
    if (status != MLO_OK)
        return status;
    mlo_rows_json_text(&ask->rows, ask->row, 1 + FOUND_COLUMNS, out);
    return mlo_buf_ok(out) ? MLO_OK : mlo_error_nomem(err);
}

enum mlo_status mlo_version_list(struct mlo_db_conn *conn, int64_t model_id, const struct mlo_page *page,
                                 json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, model_id);
    return mlo_page_newest(conn, &mlo_sql_version[VERSION_LIST], &p, page, out, err);
}
