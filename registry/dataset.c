#include "registry/facts_impl.h"
#include "registry/manifest_impl.h"
#include "registry/sql_impl.h"

#include <string.h>

enum {
    DATASET_ENSURE,
    DATASET_REOPEN,
    DATASET_LOCK,
    DATASET_COUNT,
    DATASET_ADD,
    DATASET_BLOB,
    DATASET_FIND,
    DATASET_GET,
    DATASET_LIST
};

#define VERSION_COLUMNS                                                                                      \
    "p.name AS project, d.name AS dataset, v.number AS version, v.manifest_digest AS digest, "               \
    "v.metadata::json AS metadata, " MLO_FACTS_JSON(                                                         \
        "v.manifest") ", v.description, v.created_at, v.created_by"

const struct mlo_sql mlo_sql_dataset[] = {
    [DATASET_ENSURE] =
        {"dataset_ensure",
         "INSERT INTO dataset (project_id, name, created_by) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", 3},
    [DATASET_REOPEN] = {"dataset_reopen", "SELECT dataset_reopen($1, $2)", 2},
    [DATASET_LOCK] =
        {"dataset_lock",
         "SELECT d.id, p.name || '/' || d.name FROM dataset d JOIN project p ON p.id = d.project_id "
         "WHERE d.project_id = $1 AND d.name = $2 FOR NO KEY UPDATE OF d",
         2},
    [DATASET_COUNT] =
        {"dataset_count",
         "UPDATE dataset SET next_version = next_version + 1 WHERE id = $1 RETURNING next_version - 1", 1},
    [DATASET_ADD] =
        {"dataset_add",
         "INSERT INTO dataset_version (dataset_id, number, manifest_digest, manifest, metadata, description, "
         "created_by) VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id",
         7},
    [DATASET_BLOB] = {"dataset_blob",
                      "INSERT INTO dataset_blob (dataset_version_id, role, name, digest, size, media_type) "
                      "VALUES ($1, $2, $3, $4, $5, $6)",
                      6},
    [DATASET_FIND] = {"dataset_find",
                      "SELECT d.id, v.id, v.number, d.project_id, v.manifest_digest FROM dataset d "
                      "JOIN dataset_version v ON v.dataset_id = d.id WHERE d.project_id = $1 AND d.name = $2 "
                      "AND d.deletion_id IS NULL AND v.deletion_id IS NULL "
                      "AND ($3::bigint IS NULL OR v.number = $3) ORDER BY v.number DESC LIMIT 1",
                      3},
    [DATASET_GET] = {"dataset_get",
                     "SELECT v.id, " VERSION_COLUMNS ", " MLO_FILES_JSON(
                         "dataset_blob", "dataset_version_id",
                         "v.id") " "
                                 "FROM dataset_version v JOIN dataset d ON d.id = v.dataset_id "
                                 "JOIN project p ON p.id = d.project_id WHERE v.id = $1",
                     1},
    [DATASET_LIST] =
        {"dataset_list",
         "SELECT p.name || '/' || d.name AS cursor_key, v.id, " VERSION_COLUMNS ", "
         "(SELECT coalesce(sum(b.size), 0)::bigint FROM dataset_blob b WHERE b.dataset_version_id = v.id) AS "
         "size "
         "FROM dataset d JOIN project p ON p.id = d.project_id JOIN LATERAL (SELECT * FROM dataset_version x "
         "WHERE x.dataset_id = d.id AND x.deletion_id IS NULL ORDER BY x.number DESC LIMIT 1) v ON true "
         "WHERE d.deletion_id IS NULL AND ($1::bigint IS NULL OR d.project_id = $1) AND ($2::bigint IS NULL "
         "OR d.project_id = $2) "
         "AND p.name || '/' || d.name > $3 ORDER BY p.name || '/' || d.name LIMIT $4",
         4},
};
const size_t mlo_sql_dataset_count = MLO_COUNT(mlo_sql_dataset);

static enum mlo_status audit(struct mlo_db_conn *conn, const struct mlo_actor *actor, const char *dataset,
                             const struct mlo_dataset_info *info, struct mlo_error *err)
{
    char object[240], digest[MLO_DIGEST_TEXT_SIZE];
    snprintf(object, sizeof object, "%s@%lld", dataset, (long long)info->number);
    json_t *after = json_pack("{s:I, s:s}", "version", (json_int_t)info->number, "digest",
                              mlo_digest_text(&info->manifest, digest));
    if (!after)
        return mlo_error_nomem(err);
    struct mlo_audit_event event = {.action = "dataset.version.create", .object = object, .after = after};
    enum mlo_status status = mlo_audit_append(conn, info->project_id, actor, &event, NULL, err);
    json_decref(after);
    return status;
}

enum mlo_status mlo_dataset_version_add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                        int64_t project_id, const char *name,
                                        const struct mlo_dataset_content *content,
                                        struct mlo_dataset_info *out, struct mlo_error *err)
{
    const json_t *metadata = content->metadata;
    json_t *facts = NULL, *members = NULL;
    struct mlo_params ensure = MLO_PARAMS_INIT, lock = MLO_PARAMS_INIT, counter = MLO_PARAMS_INIT,
                      add = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_buf manifest = MLO_BUF_INIT, metadata_text = MLO_BUF_INIT;
    struct mlo_dataset_info latest;
    struct mlo_error not_there = {0};
    memset(out, 0, sizeof *out);
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_SUBMITTER, err);
    if (status != MLO_OK)
        return status;
    if (!mlo_name_valid(name))
        return mlo_error_set(err, MLO_EINVAL,
                             "'%.100s' cannot name a dataset: letters, digits, '.', '_' and '-'",
                             name ? name : "");
    if (metadata && !json_is_object(metadata))
        return mlo_error_set(err, MLO_EINVAL, "the metadata of a dataset is a JSON object");
    status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&ensure, project_id);
    mlo_param_text(&ensure, name);
    mlo_param_text(&ensure, actor->name);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_dataset[DATASET_ENSURE], &ensure, NULL, err));
    mlo_param_i64(&lock, project_id);
    mlo_param_text(&lock, name);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_dataset[DATASET_REOPEN], &lock, NULL, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_dataset[DATASET_LOCK], &lock, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_EINTERNAL, "dataset %s is not there after it was made", name);
        goto out;
    }
    out->project_id = project_id;
    out->dataset_id = mlo_rows_i64(&rows, 0, 0);
    MLO_TRY(mlo_facts_read(conn, project_id, content->facts, &facts, err));
    members = json_pack("{s:O*, s:O*}", "metadata", metadata, "facts", facts);
    if (!members) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_manifest_make(conn, project_id, content->blobs, content->count, members, &manifest,
                              &out->manifest, err));
    status = mlo_dataset_find(conn, project_id, name, 0, &latest, &not_there);
    if (status == MLO_OK && mlo_digest_eq(&latest.manifest, &out->manifest)) {
        *out = latest;
        goto out;
    }
    if (status != MLO_OK && status != MLO_ENOTFOUND) {
        if (err)
            *err = not_there;
        goto out;
    }
    mlo_param_i64(&counter, out->dataset_id);
    MLO_TRY(mlo_sql_number(conn, &mlo_sql_dataset[DATASET_COUNT], &counter, &out->number, err));
    if (metadata)
        mlo_json_canonical(metadata, &metadata_text);
    mlo_param_i64(&add, out->dataset_id);
    mlo_param_i64(&add, out->number);
    mlo_param_digest(&add, &out->manifest);
    mlo_param_text(&add, mlo_buf_str(&manifest));
    mlo_param_text(&add, metadata ? mlo_buf_str(&metadata_text) : "{}");
    mlo_param_text(&add, content->description ? content->description : "");
    mlo_param_text(&add, actor->name);
    if (!mlo_buf_ok(&metadata_text)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_sql_number(conn, &mlo_sql_dataset[DATASET_ADD], &add, &out->version_id, err));
    MLO_TRY(mlo_manifest_insert(conn, &mlo_sql_dataset[DATASET_BLOB], out->version_id, content->blobs,
                                content->count, err));
    MLO_TRY(audit(conn, actor, mlo_rows_text(&rows, 0, 1), out, err));
    out->created = true;
out:
    mlo_rows_clear(&rows);
    mlo_buf_clear(&manifest);
    mlo_buf_clear(&metadata_text);
    json_decref(facts);
    json_decref(members);
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_dataset_version_create(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                           int64_t project_id, const char *name, const char *description,
                                           const json_t *metadata, struct mlo_manifest_blob *blobs,
                                           size_t count, struct mlo_dataset_info *out, struct mlo_error *err)
{
    const struct mlo_dataset_content content = {
        .description = description, .metadata = metadata, .blobs = blobs, .count = count};
    return mlo_dataset_version_add(conn, actor, project_id, name, &content, out, err);
}

enum mlo_status mlo_dataset_find(struct mlo_db_conn *conn, int64_t project_id, const char *name,
                                 int64_t number, struct mlo_dataset_info *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    memset(out, 0, sizeof *out);
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, name);
    mlo_param_id(&p, number);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_dataset[DATASET_FIND], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0) {
        status = number
                     ? mlo_error_set(err, MLO_ENOTFOUND, "there is no dataset %.100s@%lld in this project",
                                     name, (long long)number)
                     : mlo_error_set(err, MLO_ENOTFOUND, "there is no dataset %.100s in this project", name);
        mlo_error_hint(err, "push it: mlopt data push PROJECT/%.100s FILE…", name);
    }
    if (status == MLO_OK) {
        out->dataset_id = mlo_rows_i64(&rows, 0, 0);
        out->version_id = mlo_rows_i64(&rows, 0, 1);
        out->number = mlo_rows_i64(&rows, 0, 2);
        out->project_id = mlo_rows_i64(&rows, 0, 3);
        if (!mlo_rows_digest(&rows, 0, 4, &out->manifest))
            status = mlo_error_set(err, MLO_EINTERNAL, "dataset %.100s has no digest", name);
    }
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_dataset_get(struct mlo_db_conn *conn, int64_t dataset_version_id, json_t **out,
                                struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, dataset_version_id);
    return mlo_sql_object(conn, &mlo_sql_dataset[DATASET_GET], &p, out, err);
}

enum mlo_status mlo_dataset_list(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                 const struct mlo_page *page, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_id(&p, actor->project_id);
    mlo_param_id(&p, project_id);
    return mlo_page_by_name(conn, &mlo_sql_dataset[DATASET_LIST], &p, page, out, err);
}
