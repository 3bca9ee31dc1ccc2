#include "registry/models.h"
#include "registry/sql_impl.h"
#include "registry/stages.h"

#include <string.h>

enum { MODEL_ADD, MODEL_REOPEN, MODEL_STAGES, MODEL_FIND, MODEL_GET, MODEL_LIST };

#define STAGE_SHORT(name)                                                                                    \
    "(SELECT json_build_object('release', r.seq, 'version', v.number, 'generation', s.generation) FROM "     \
    "stage s "                                                                                               \
    "JOIN release r ON r.id = s.release_id JOIN version v ON v.id = r.version_id "                           \
    "WHERE s.model_id = m.id AND s.name = '" name "') AS " name

const struct mlo_sql mlo_sql_model[] = {
    [MODEL_ADD] = {"model_add",
                   "INSERT INTO model (project_id, name, description, created_by) VALUES ($1, $2, $3, $4) "
                   "ON CONFLICT DO NOTHING RETURNING id",
                   4},
    [MODEL_REOPEN] = {"model_reopen", "SELECT id FROM model_reopen($1, $2) id WHERE id IS NOT NULL", 2},
    [MODEL_STAGES] = {"model_stages", "INSERT INTO stage (model_id, name) VALUES ($1, $2)", 2},
    [MODEL_FIND] = {"model_find",
                    "SELECT id FROM model WHERE project_id = $1 AND name = $2 AND deletion_id IS NULL", 2},
    [MODEL_GET] =
        {"model_get",
         "SELECT m.id, p.name AS project, m.name, m.description, m.created_at, m.created_by, "
         "(SELECT count(*) FROM version v WHERE v.model_id = m.id AND v.deletion_id IS NULL) AS versions "
         "FROM model m JOIN project p ON p.id = m.project_id WHERE m.id = $1",
         1},
    [MODEL_LIST] =
        {"model_list",
         "SELECT p.name || '/' || m.name AS cursor_key, m.id, p.name AS project, m.name, m.description, "
         "m.created_at, (SELECT max(v.number) FROM version v WHERE v.model_id = m.id AND "
         "v.deletion_id IS NULL AND v.archived_at IS NULL) AS "
         "latest_version, " STAGE_SHORT("staging") ", " STAGE_SHORT(
             "production") " "
                           "FROM model m JOIN project p ON p.id = m.project_id "
                           "WHERE m.deletion_id IS NULL AND ($1::bigint IS NULL OR m.project_id = $1) "
                           "AND ($2::bigint IS NULL OR m.project_id = $2) AND ($3::text IS NULL "
                           "OR strpos(lower(m.name || ' ' || m.description), lower($3)) > 0) "
                           "AND p.name || '/' || m.name > $4 "
                           "ORDER BY p.name || '/' || m.name LIMIT $5",
         5},
};
const size_t mlo_sql_model_count = MLO_COUNT(mlo_sql_model);

/* The name of a deleted model is free, but its versions go on counting: it is the same row. */
static enum mlo_status reopen(struct mlo_db_conn *conn, int64_t project_id, const char *name, bool *reopened,
                              int64_t *id, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, name);
    enum mlo_status status = mlo_sql_number(conn, &mlo_sql_model[MODEL_REOPEN], &p, id, err);
    *reopened = status == MLO_OK;
    return status == MLO_ENOTFOUND ? MLO_OK : status;
}

/* Makes it; `ensure`: one that somebody else just made is fine. */
static enum mlo_status make(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                            const char *name, const char *description, bool ensure, int64_t *id,
                            struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t made = 0;
    bool reopened = false;
    size_t stage_count;
    const char *const *stages = mlo_stage_names(&stage_count);
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_SUBMITTER, err);
    if (status != MLO_OK)
        return status;
    if (!mlo_name_valid(name))
        return mlo_error_set(err, MLO_EINVAL,
                             "'%.100s' cannot name a model: letters, digits, '.', '_' and '-'",
                             name ? name : "");
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, name);
    mlo_param_text(&p, description ? description : "");
    mlo_param_text(&p, actor->name);
    status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    status = mlo_sql_number(conn, &mlo_sql_model[MODEL_ADD], &p, &made, err);
    bool there = status == MLO_ENOTFOUND;
    if (there) {
        status = reopen(conn, project_id, name, &reopened, &made, err);
        there = !reopened;
    }
    if (status == MLO_OK && there)
        status = ensure ? mlo_model_find(conn, project_id, name, &made, err)
                        : mlo_error_set(err, MLO_EEXISTS, "there is a model %s already", name);
    for (size_t i = 0; status == MLO_OK && !there && !reopened && i < stage_count; i++) {
        struct mlo_params stage = MLO_PARAMS_INIT;
        mlo_param_i64(&stage, made);
        mlo_param_text(&stage, stages[i]);
        status = mlo_db_exec(conn, &mlo_sql_model[MODEL_STAGES], &stage, NULL, err);
    }
    if (status == MLO_OK && !there) {
        json_t *after = json_pack("{s:s, s:s, s:b}", "name", name, "description",
                                  description ? description : "", "reopened", reopened);
        struct mlo_audit_event event = {.action = "model.create", .object = name, .after = after};
        status = after ? mlo_audit_append(conn, project_id, actor, &event, NULL, err) : mlo_error_nomem(err);
        json_decref(after);
    }
    status = mlo_db_end(conn, status, err);
    if (status == MLO_OK && id)
        *id = made;
    return status;
}

enum mlo_status mlo_model_find(struct mlo_db_conn *conn, int64_t project_id, const char *name, int64_t *id,
                               struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, name);
    enum mlo_status status = mlo_sql_number(conn, &mlo_sql_model[MODEL_FIND], &p, id, err);
    if (status == MLO_ENOTFOUND)
        mlo_error_set(err, MLO_ENOTFOUND, "there is no model %.100s in this project", name);
    return status;
}

enum mlo_status mlo_model_ensure(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                 const char *name, int64_t *id, struct mlo_error *err)
{
    enum mlo_status status = mlo_model_find(conn, project_id, name, id, err);
    if (status != MLO_ENOTFOUND)
        return status;
    return make(conn, actor, project_id, name, NULL, true, id, err);
}

enum mlo_status mlo_model_create(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                 const char *name, const char *description, int64_t *id,
                                 struct mlo_error *err)
{
    return make(conn, actor, project_id, name, description, false, id, err);
}

enum mlo_status mlo_model_get(struct mlo_db_conn *conn, int64_t model_id, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    json_t *model = NULL, *stages = NULL, *by_name = json_object(), *stage;
    size_t i;
    enum mlo_status status;
    *out = NULL;
    mlo_param_i64(&p, model_id);
    MLO_TRY(mlo_sql_object(conn, &mlo_sql_model[MODEL_GET], &p, &model, err));
    MLO_TRY(mlo_stage_list(conn, model_id, &stages, err));
    json_array_foreach(stages, i, stage)
    {
        bool empty = json_is_null(json_object_get(stage, "release"));
        json_object_set_new(by_name, mlo_json_str(stage, "stage", ""),
                            empty ? json_null() : json_incref(stage));
    }
    if (json_object_set(model, "stages", by_name) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    *out = json_incref(model);
out:
    json_decref(model);
    json_decref(stages);
    json_decref(by_name);
    return status;
}

enum mlo_status mlo_model_list(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                               const char *text, const struct mlo_page *page, json_t **out,
                               struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_id(&p, actor->project_id);
    mlo_param_id(&p, project_id);
    mlo_param_text(&p, text && *text ? text : NULL);
    return mlo_page_by_name(conn, &mlo_sql_model[MODEL_LIST], &p, page, out, err);
}
