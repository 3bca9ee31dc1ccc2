#include "registry/member.h"

#include <stdlib.h>
#include <string.h>

#include "registry/audit.h"
#include "registry/sql_impl.h"

enum { M_LOCK, M_ADD, M_CHANGE, M_REMOVE, M_REVOKE, M_GET, M_LIST, M_FIND };

#define PRINCIPAL "CASE m.kind WHEN 'service' THEN 'service:' || p.name || '/' || m.name ELSE m.name END"
#define COLUMNS                                                                                              \
    "m.name, m.kind, " PRINCIPAL " AS principal, m.role, json_build_object('staging', m.staging_role, "      \
    "'production', m.production_role) AS stages, CASE m.kind WHEN 'service' THEN m.may_approve END AS "      \
    "approve, "                                                                                              \
    "m.description, m.created_at, m.created_by, (SELECT count(*) FROM token t WHERE t.member_id = m.id AND " \
    "t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now())) AS tokens, "                   \
    "(SELECT max(t.last_used_at) FROM token t WHERE t.member_id = m.id) AS last_used_at"
#define OF_PROJECT                                                                                           \
    "FROM member m JOIN project p ON p.id = m.project_id WHERE m.project_id = $1 AND m.removed_at IS NULL"

const struct mlo_sql mlo_sql_member[] = {
    [M_LOCK] =
        {"member_lock",
         "SELECT m.id, m.kind, json_build_object('role', m.role, 'staging', m.staging_role, 'production', "
         "m.production_role, 'approve', m.may_approve)::text " OF_PROJECT " AND m.name = $2 FOR UPDATE OF m",
         2},
    [M_ADD] =
        {"member_add",
         "INSERT INTO member (project_id, name, kind, role, staging_role, production_role, may_approve, "
         "description, created_by) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING "
         "RETURNING id",
         9},
    [M_CHANGE] = {"member_change",
                  "UPDATE member SET role = $2, staging_role = $3, production_role = $4, may_approve = $5, "
                  "description = $6 WHERE id = $1",
                  6},
    [M_REMOVE] = {"member_remove", "UPDATE member SET removed_at = now() WHERE id = $1", 1},
    [M_REVOKE] = {"member_revoke",
                  "UPDATE token SET revoked_at = now() WHERE member_id = $1 AND revoked_at IS NULL", 1},
    [M_GET] = {"member_get", "SELECT " COLUMNS " " OF_PROJECT " AND m.name = $2", 2},
    [M_LIST] = {"member_list", "SELECT " COLUMNS " " OF_PROJECT " ORDER BY m.name COLLATE \"C\"", 1},
    [M_FIND] = {"member_find", "SELECT m.id, " PRINCIPAL " " OF_PROJECT " AND m.name = $2", 2},
};
const size_t mlo_sql_member_count = MLO_COUNT(mlo_sql_member);

static enum mlo_status unknown(const char *name, struct mlo_error *err)
{
    return mlo_error_set(err, MLO_ENOTFOUND, "the project has no member '%.100s'", name);
}

/* NULL: as in the project. */
static const char *granted(const struct mlo_member_settings *s, const char *stage)
{
    enum mlo_role role = s->stage_role[mlo_stage_index(stage)];
    return role == MLO_VIEWER ? NULL : mlo_role_name(role);
}

static enum mlo_status check(const char *name, const struct mlo_member_settings *s, struct mlo_error *err)
{
    if (!mlo_name_valid(name) || strcmp(name, "system") == 0) {
        mlo_error_set(err, MLO_EINVAL, "'%.100s' is no name of a member", name ? name : "");
        mlo_error_hint(err, "letters, digits, '.', '_' and '-', at most 100; not \"system\"");
        return MLO_EINVAL;
    }
    for (size_t i = 0; i < MLO_COUNT(s->stage_role); i++)
        if (s->stage_role[i] != MLO_VIEWER && s->stage_role[i] != MLO_PROMOTER &&
            s->stage_role[i] != MLO_APPROVER) {
            mlo_error_set(err, MLO_EINVAL, "a %s has no rights of one stage alone",
                          mlo_role_name(s->stage_role[i]));
            mlo_error_where(err, "field 'stages'");
            mlo_error_hint(
                err, "in a stage a member is a promoter or an approver; all else is a role in the project");
            return MLO_EINVAL;
        }
    if (s->may_approve && s->kind != MLO_KIND_SERVICE) {
        mlo_error_set(err, MLO_EINVAL, "people approve by their role");
        mlo_error_where(err, "field 'approve'");
        return MLO_EINVAL;
    }
    if (s->description && strlen(s->description) > 1000) {
        mlo_error_set(err, MLO_EINVAL, "a description has at most 1000 bytes");
        mlo_error_where(err, "field 'description'");
        return MLO_EINVAL;
    }
    return MLO_OK;
}

static json_t *state_of(const struct mlo_member_settings *s)
{
    return json_pack("{s:s, s:s, s:s?, s:s?, s:b}", "kind", mlo_kind_name(s->kind), "role",
                     mlo_role_name(s->role), "staging", granted(s, "staging"), "production",
                     granted(s, "production"), "approve", s->may_approve);
}

static enum mlo_status record(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                              const char *action, const char *name, const char *before_text,
                              json_t *after_take, const char *reason, struct mlo_error *err)
{
    char object[120];
    json_t *before = before_text ? json_loads(before_text, 0, NULL) : NULL;
    snprintf(object, sizeof object, "member %.100s", name);
    const struct mlo_audit_event event = {
        .action = action, .object = object, .before = before, .after = after_take, .reason = reason};
    enum mlo_status status = mlo_audit_append(conn, project_id, actor, &event, NULL, err);
    json_decref(before);
    json_decref(after_take);
    return status;
}

static void settings_params(struct mlo_params *p, const struct mlo_member_settings *s)
{
    mlo_param_text(p, mlo_role_name(s->role));
    mlo_param_text(p, granted(s, "staging"));
    mlo_param_text(p, granted(s, "production"));
    mlo_param_bool(p, s->may_approve);
    mlo_param_text(p, s->description ? s->description : "");
}

/* *id 0: there is none yet. */
static enum mlo_status lock(struct mlo_db_conn *conn, int64_t project_id, const char *name,
                            struct mlo_rows *rows, int64_t *id, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, name);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_member[M_LOCK], &p, rows, err);
    *id = status == MLO_OK && mlo_rows_count(rows) > 0 ? mlo_rows_i64(rows, 0, 0) : 0;
    return status;
}

static enum mlo_status add(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                           const char *name, const struct mlo_member_settings *s, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows made = {0};
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, name);
    mlo_param_text(&p, mlo_kind_name(s->kind));
    settings_params(&p, s);
    mlo_param_text(&p, actor->name);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_member[M_ADD], &p, &made, err);
    if (status == MLO_OK && mlo_rows_count(&made) == 0)
        status = mlo_error_set(err, MLO_ECONFLICT, "somebody else adds the member '%s' just now", name);
    mlo_rows_clear(&made);
    return status;
}

static enum mlo_status change(struct mlo_db_conn *conn, int64_t id, const struct mlo_member_settings *s,
                              struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, id);
    settings_params(&p, s);
    return mlo_db_exec(conn, &mlo_sql_member[M_CHANGE], &p, NULL, err);
}

void mlo_member_mark(const json_t *member, char out[MLO_DIGEST_TEXT_SIZE])
{
    static const char *const fields[] = {"name",    "kind",        "role",      "stages",
                                         "approve", "description", "created_at"};
    struct mlo_digest digest;
    json_t *seen = json_array();
    for (size_t i = 0; i < MLO_COUNT(fields); i++)
        json_array_append(seen, json_object_get(member, fields[i]));
    char *text = member ? json_dumps(seen, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    out[0] = '\0';
    if (text) {
        mlo_digest_of(text, strlen(text), &digest);
        mlo_digest_text(&digest, out);
    }
    free(text);
    json_decref(seen);
}

/* Under the lock of its row: that its mark is what was seen. */
static enum mlo_status check_mark(struct mlo_db_conn *conn, int64_t project_id, const char *name,
                                  const char *seen, struct mlo_error *err)
{
    char mark[MLO_DIGEST_TEXT_SIZE];
    json_t *member = NULL;
    enum mlo_status status = mlo_member_get(conn, project_id, name, &member, err);
    if (status != MLO_OK)
        return status;
    mlo_member_mark(member, mark);
    json_decref(member);
    if (!*mark)
        return mlo_error_nomem(err);
    if (strcmp(mark, seen) == 0)
        return MLO_OK;
    mlo_error_set(err, MLO_ECONFLICT, "the member '%s' was changed meanwhile", name);
    mlo_error_hint(err, "open its page again: it shows what the member may now");
    return MLO_ECONFLICT;
}

/* The same, of one who may not be there: then nobody was seen. */
static enum mlo_status check_seen(struct mlo_db_conn *conn, int64_t project_id, const char *name,
                                  const char *seen, bool is_there, struct mlo_error *err)
{
    if (is_there && *seen)
        return check_mark(conn, project_id, name, seen, err);
    if (!is_there && !*seen)
        return MLO_OK;
    if (is_there) {
        mlo_error_set(err, MLO_ECONFLICT, "the project has a member '%s' already", name);
        mlo_error_hint(err, "change it on its own page, or take another name");
    } else {
        mlo_error_set(err, MLO_ECONFLICT, "the member '%s' was removed meanwhile", name);
        mlo_error_hint(err, "the members' page shows who is there, and adds it again");
    }
    return MLO_ECONFLICT;
}

enum mlo_status mlo_member_set(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                               const char *name, const struct mlo_member_settings *s, bool *made,
                               json_t **out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    int64_t id;
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_ADMIN, err);
    *out = NULL;
    if (status == MLO_OK)
        status = check(name, s, err);
    if (status == MLO_OK)
        status = mlo_actor_require_person(actor, err);
    if (status != MLO_OK || (status = mlo_db_begin(conn, err)) != MLO_OK)
        return status;
    MLO_TRY(lock(conn, project_id, name, &rows, &id, err));
    *made = id == 0;
    if (s->seen)
        MLO_TRY(check_seen(conn, project_id, name, s->seen, id != 0, err));
    if (id && strcmp(mlo_rows_text(&rows, 0, 1), mlo_kind_name(s->kind)) != 0) {
        status =
            mlo_error_set(err, MLO_ECONFLICT, "the member '%s' is a %s", name, mlo_rows_text(&rows, 0, 1));
        mlo_error_hint(err, "take another name, or remove it first: its tokens end with it");
        goto out;
    }
    MLO_TRY(id ? change(conn, id, s, err) : add(conn, actor, project_id, name, s, err));
    MLO_TRY(record(conn, actor, project_id, id ? "member.change" : "member.add", name,
                   id ? mlo_rows_text(&rows, 0, 2) : NULL, state_of(s), s->reason, err));
    MLO_TRY(mlo_member_get(conn, project_id, name, out, err));
out:
    mlo_rows_clear(&rows);
    status = mlo_db_end(conn, status, err);
    if (status != MLO_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

enum mlo_status mlo_member_token(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                 const char *name, const char *seen, const struct mlo_token_request *token,
                                 char text[MLO_TOKEN_TEXT_SIZE], struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_token_request its = *token;
    char principal[240];
    int64_t id;
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_ADMIN, err);
    if (status != MLO_OK || (status = mlo_db_begin(conn, err)) != MLO_OK)
        return status;
    MLO_TRY(lock(conn, project_id, name, &rows, &id, err)); /* so it stays as it was seen */
    MLO_TRY(check_mark(conn, project_id, name, seen, err));
    MLO_TRY(mlo_member_find(conn, project_id, name, &its.member, principal, err));
    its.project_id = project_id;
    its.member_name = principal;
    MLO_TRY(mlo_token_make(conn, actor, &its, text, NULL, err));
out:
    mlo_rows_clear(&rows);
    status = mlo_db_end(conn, status, err);
    if (status != MLO_OK)
        explicit_bzero(text, MLO_TOKEN_TEXT_SIZE);
    return status;
}

enum mlo_status mlo_member_remove(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                  const char *name, const char *seen, const char *reason,
                                  struct mlo_error *err)
{
    struct mlo_rows rows = {0}, revoked = {0};
    struct mlo_params p = MLO_PARAMS_INIT;
    int64_t id;
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_ADMIN, err);
    if (status != MLO_OK || (status = mlo_db_begin(conn, err)) != MLO_OK)
        return status;
    MLO_TRY(lock(conn, project_id, name, &rows, &id, err));
    if (!id) {
        status = unknown(name, err);
        goto out;
    }
    MLO_TRY(mlo_actor_require_person(actor, err));
    if (seen)
        MLO_TRY(check_mark(conn, project_id, name, seen, err));
    mlo_param_i64(&p, id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_member[M_REMOVE], &p, NULL, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_member[M_REVOKE], &p, &revoked, err));
    MLO_TRY(record(conn, actor, project_id, "member.remove", name, mlo_rows_text(&rows, 0, 2),
                   json_pack("{s:I}", "tokens_revoked", (json_int_t)mlo_rows_affected(&revoked)), reason,
                   err));
out:
    mlo_rows_clear(&rows);
    mlo_rows_clear(&revoked);
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_member_get(struct mlo_db_conn *conn, int64_t project_id, const char *name, json_t **out,
                               struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, name);
    enum mlo_status status = mlo_sql_object(conn, &mlo_sql_member[M_GET], &p, out, err);
    return status == MLO_ENOTFOUND ? unknown(name, err) : status;
}

enum mlo_status mlo_member_list(struct mlo_db_conn *conn, int64_t project_id, json_t **out,
                                struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    return mlo_sql_array(conn, &mlo_sql_member[M_LIST], &p, out, err);
}

enum mlo_status mlo_member_find(struct mlo_db_conn *conn, int64_t project_id, const char *name, int64_t *id,
                                char principal[240], struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, project_id);
    mlo_param_text(&p, name);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_member[M_FIND], &p, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) == 0)
        status = unknown(name, err);
    if (status == MLO_OK) {
        *id = mlo_rows_i64(&rows, 0, 0);
        if (principal)
            snprintf(principal, 240, "%s", mlo_rows_text(&rows, 0, 1));
    }
    mlo_rows_clear(&rows);
    return status;
}
