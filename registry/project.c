/* Projects. */
#include "registry/models.h"
#include "registry/sql_impl.h"

#include <string.h>

enum { PROJECT_ADD, PROJECT_FIND, PROJECT_LIST };

const struct mlo_sql mlo_sql_project[] = {
    [PROJECT_ADD] = {"project_add",
                     "INSERT INTO project (name, description, created_by) VALUES ($1, $2, $3) "
                     "ON CONFLICT DO NOTHING RETURNING id",
                     3},
    [PROJECT_FIND] = {"project_find", "SELECT id FROM project WHERE name = $1", 1},
    [PROJECT_LIST] =
        {"project_list",
         "SELECT p.name AS cursor_key, p.id, p.name, p.description, p.created_at, p.created_by, "
         "(SELECT count(*) FROM model m WHERE m.project_id = p.id AND m.deletion_id IS NULL) AS models, "
         "(SELECT count(*) FROM dataset d WHERE d.project_id = p.id AND d.deletion_id IS NULL) AS datasets "
         "FROM project p WHERE ($1::bigint IS NULL OR p.id = $1) AND p.name > $2 ORDER BY p.name LIMIT $3",
         3},
};
const size_t mlo_sql_project_count = MLO_COUNT(mlo_sql_project);

static enum mlo_status find(struct mlo_db_conn *conn, const char *name, int64_t *id, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_text(&p, name);
    enum mlo_status status = mlo_sql_number(conn, &mlo_sql_project[PROJECT_FIND], &p, id, err);
    if (status == MLO_ENOTFOUND)
        mlo_error_set(err, MLO_ENOTFOUND, "there is no project %.100s", name);
    return status;
}

/* Makes it; `ensure`: one that somebody else just made is fine. */
static enum mlo_status make(struct mlo_db_conn *conn, const struct mlo_actor *actor, const char *name,
                            const char *description, bool ensure, int64_t *id, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t made = 0;
    enum mlo_status status = mlo_actor_require(actor, 0, MLO_ADMIN, err);
    if (status != MLO_OK)
        return status;
    if (!mlo_name_valid(name))
        return mlo_error_set(err, MLO_EINVAL,
                             "'%.100s' cannot name a project: letters, digits, '.', '_' and '-'",
                             name ? name : "");
    mlo_param_text(&p, name);
    mlo_param_text(&p, description ? description : "");
    mlo_param_text(&p, actor->name);
    status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    status = mlo_sql_number(conn, &mlo_sql_project[PROJECT_ADD], &p, &made, err);
    bool there = status == MLO_ENOTFOUND;
    if (there)
        status = ensure ? find(conn, name, &made, err)
                        : mlo_error_set(err, MLO_EEXISTS, "there is a project %s already", name);
    if (status == MLO_OK && !there) {
        json_t *after = json_pack("{s:s, s:s}", "name", name, "description", description ? description : "");
        struct mlo_audit_event event = {.action = "project.create", .object = name, .after = after};
        status = after ? mlo_audit_append(conn, made, actor, &event, NULL, err) : mlo_error_nomem(err);
        json_decref(after);
    }
    status = mlo_db_end(conn, status, err);
    if (status == MLO_OK && id)
        *id = made;
    return status;
}

enum mlo_status mlo_project_create(struct mlo_db_conn *conn, const struct mlo_actor *actor, const char *name,
                                   const char *description, int64_t *id, struct mlo_error *err)
{
    return make(conn, actor, name, description, false, id, err);
}

enum mlo_status mlo_project_admit(const struct mlo_actor *actor, int64_t id, const char *name,
                                  enum mlo_role role, struct mlo_error *err)
{
    if (actor->project_id && actor->project_id != id)
        return mlo_error_set(err, MLO_ENOTFOUND, "there is no project %.100s", name);
    return mlo_actor_require(actor, id, role, err);
}

enum mlo_status mlo_project_find(struct mlo_db_conn *conn, const struct mlo_actor *actor, const char *name,
                                 enum mlo_role role, int64_t *id, struct mlo_error *err)
{
    enum mlo_status status = find(conn, name, id, err);
    if (status != MLO_OK)
        return status;
    return mlo_project_admit(actor, *id, name, role, err);
}

enum mlo_status mlo_project_ensure(struct mlo_db_conn *conn, const struct mlo_actor *actor, const char *name,
                                   int64_t *id, struct mlo_error *err)
{
    enum mlo_status status = mlo_project_find(conn, actor, name, MLO_VIEWER, id, err);
    if (status != MLO_ENOTFOUND || actor->project_id)
        return status;
    if (actor->role < MLO_ADMIN) {
        mlo_error_hint(err, "an admin makes it");
        return status;
    }
    return make(conn, actor, name, NULL, true, id, err);
}

enum mlo_status mlo_project_list(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                 const struct mlo_page *page, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_id(&p, actor->project_id);
    return mlo_page_by_name(conn, &mlo_sql_project[PROJECT_LIST], &p, page, out, err);
}
