#include "registry/deletion.h"

#include <string.h>

#include "registry/gc.h"
#include "registry/sql_impl.h"

enum {
    D_LOCK,
    D_BLOCKERS,
    D_MAKE,
    D_GET,
    D_LIST,
    D_UNDO,
    D_FIND,
    D_HOST,
    D_VERSION,
    D_STAGES,
    D_ARCHIVE,
    D_OF
};

#define COLUMNS                                                                                              \
    "d.id, d.kind, d.object, d.actor, d.via, d.reason, d.at, d.purge_after, d.audit_seq, d.undone_at, "      \
    "d.undone_by, d.undone_reason, d.purged_at, CASE WHEN d.undone_at IS NOT NULL THEN 'undone' WHEN "       \
    "d.purged_at IS NOT NULL THEN 'purged' ELSE 'deleted' END AS state"

const struct mlo_sql mlo_sql_deletion[] = {
    [D_LOCK] = {"deletion_lock", "SELECT cardinality(deletion_lock($1, $2))", 2},
    [D_BLOCKERS] = {"deletion_blockers", "SELECT b FROM deletion_blockers($1, $2, $3) b", 3},
    [D_MAKE] = {"deletion_make",
                "SELECT deletion_make($1, $2, $3, $4, $5, $6, $7, $8, $9, make_interval(secs => $10), $11)",
                11},
    [D_GET] = {"deletion_get", "SELECT " COLUMNS " FROM deletion d WHERE d.id = $1", 1},
    [D_LIST] = {"deletion_list",
                "SELECT d.id AS cursor_key, " COLUMNS
                " FROM deletion d WHERE d.project_id = $1 AND d.id < $2 "
                "ORDER BY d.id DESC LIMIT $3",
                3},
    [D_UNDO] = {"deletion_undo", "SELECT deletion_undo($1, $2, $3)", 3},
    [D_FIND] = {"deletion_find",
                "SELECT d.object, d.undone_at IS NOT NULL, d.purged_at IS NOT NULL FROM deletion d "
                "WHERE d.id = $1 AND d.project_id = $2",
                2},
    /* what it belongs to, when that was deleted by another deletion */
    [D_HOST] = {"deletion_host",
                "SELECT h.object FROM deletion d "
                "LEFT JOIN version v ON v.id = d.target AND d.kind IN ('version', 'variant') "
                "LEFT JOIN model m ON m.id = v.model_id "
                "LEFT JOIN dataset_version w ON w.id = d.target AND d.kind = 'dataset-version' "
                "LEFT JOIN dataset s ON s.id = w.dataset_id "
                "JOIN deletion h ON h.id <> d.id AND h.id IN (m.deletion_id, s.deletion_id, "
                "CASE WHEN d.kind = 'variant' THEN v.deletion_id END) WHERE d.id = $1 LIMIT 1",
                1},
    [D_VERSION] = {"deletion_version",
                   "SELECT p.name || '/' || m.name || '@' || v.number FROM version v JOIN model m ON "
                   "m.id = v.model_id JOIN project p ON p.id = m.project_id WHERE v.id = $1",
                   1},
    [D_STAGES] = {"deletion_stages",
                  "SELECT s.name, r.version_id FROM stage s LEFT JOIN release r ON r.id = s.release_id "
                  "WHERE s.model_id = $1 ORDER BY s.name FOR UPDATE OF s",
                  1},
    [D_ARCHIVE] = {"version_archive", "SELECT version_archive($1, $2, $3)", 3},
    [D_OF] = {"deletion_of", "SELECT p.name FROM project p WHERE p.id = $1", 1},
};
const size_t mlo_sql_deletion_count = MLO_COUNT(mlo_sql_deletion);

static enum mlo_status one_text(struct mlo_db_conn *conn, int statement, int64_t id, char *out, size_t size,
                                bool *there, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, id);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_deletion[statement], &p, &rows, err);
    *there = status == MLO_OK && mlo_rows_count(&rows) > 0;
    if (*there)
        snprintf(out, size, "%s", mlo_rows_text(&rows, 0, 0));
    mlo_rows_clear(&rows);
    return status;
}

/* --- deleting ---------------------------------------------------------------------------------------- */

struct target {
    const char *kind, *variant;
    int64_t id;
    char object[480];
};

static enum mlo_status find_target(struct mlo_db_conn *conn, const struct mlo_deletion_request *r,
                                   struct target *out, struct mlo_error *err)
{
    char project[104] = "";
    bool there;
    struct mlo_version_info version;
    struct mlo_dataset_info dataset;
    struct mlo_variant_info variant;
    enum mlo_status status;
    if (!r->model == !r->dataset || (r->variant && (!r->model || !r->version)))
        return mlo_error_set(err, MLO_EINVAL,
                             "one of a model, a version, a variant of a version, a dataset or a version of a "
                             "dataset is deleted");
    MLO_TRY(one_text(conn, D_OF, r->project_id, project, sizeof project, &there, err));
    snprintf(out->object, sizeof out->object, "%s/%s", project, r->model ? r->model : r->dataset);
    if (r->dataset) {
        MLO_TRY(mlo_dataset_find(conn, r->project_id, r->dataset, r->version, &dataset, err));
        out->kind = r->version ? "dataset-version" : "dataset";
        out->id = r->version ? dataset.version_id : dataset.dataset_id;
    } else {
        MLO_TRY(mlo_model_find(conn, r->project_id, r->model, &out->id, err));
        out->kind = "model";
    }
    if (r->version)
        snprintf(out->object + strlen(out->object), sizeof out->object - strlen(out->object), "@%lld",
                 (long long)r->version);
    if (r->model && r->version) {
        MLO_TRY(mlo_version_find(conn, out->id, r->version, &version, err));
        out->kind = "version";
        out->id = version.id;
    }
    if (r->variant) {
        if (strcmp(r->variant, MLO_VARIANT_SOURCE) == 0) {
            status = mlo_error_set(err, MLO_EINVAL, "the variant source is the upload itself");
            mlo_error_hint(err, "delete the version");
            goto out;
        }
        MLO_TRY(mlo_variant_find(conn, version.id, r->variant, &variant, err));
        out->kind = "variant";
        out->variant = r->variant;
        snprintf(out->object + strlen(out->object), sizeof out->object - strlen(out->object), "/%s",
                 r->variant);
    }
out:
    return status;
}

/* MLO_ECONFLICT with the reasons. */
static enum mlo_status check(struct mlo_db_conn *conn, const struct target *t, json_t **blockers,
                             struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_text(&p, t->kind);
    mlo_param_i64(&p, t->id);
    mlo_param_text(&p, t->variant);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_deletion[D_BLOCKERS], &p, &rows, err);
    int count = status == MLO_OK ? mlo_rows_count(&rows) : 0;
    if (count > 0) {
        status = mlo_error_set(err, MLO_ECONFLICT, "%.200s cannot be deleted: %.200s", t->object,
                               mlo_rows_text(&rows, 0, 0));
        if (count > 1)
            mlo_error_hint(err, "and %d more reason%s; a version that is not needed can be archived",
                           count - 1, count == 2 ? "" : "s");
        else
            mlo_error_hint(err, "a version that is not needed can be archived");
        if (blockers)
            *blockers = json_array();
        for (int r = 0; blockers && r < count; r++)
            json_array_append_new(*blockers, json_string(mlo_rows_text(&rows, r, 0)));
    }
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status make(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                            const struct mlo_deletion_request *r, const struct target *t, json_t **out,
                            struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT, get = MLO_PARAMS_INIT;
    int64_t seq, id;
    json_t *after = json_pack("{s:s, s:I}", "kind", t->kind, "grace_s", (json_int_t)r->grace_s);
    struct mlo_audit_event event = {
        .action = "deletion.make", .object = t->object, .after = after, .reason = r->reason};
    enum mlo_status status =
        after ? mlo_audit_append(conn, r->project_id, actor, &event, &seq, err) : mlo_error_nomem(err);
    json_decref(after);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&p, r->project_id);
    mlo_param_text(&p, t->kind);
    mlo_param_text(&p, t->object);
    mlo_param_i64(&p, t->id);
    mlo_param_text(&p, t->variant);
    mlo_param_text(&p, actor->name);
    mlo_param_text(&p, actor->via ? actor->via : "system");
    mlo_param_text(&p, r->reason);
    mlo_param_text(&p, actor->request_id ? actor->request_id : "");
    mlo_param_i64(&p, r->grace_s);
    mlo_param_i64(&p, seq);
    MLO_TRY(mlo_sql_number(conn, &mlo_sql_deletion[D_MAKE], &p, &id, err));
    mlo_param_i64(&get, id);
    if (out)
        MLO_TRY(mlo_sql_object(conn, &mlo_sql_deletion[D_GET], &get, out, err));
out:
    return status;
}

enum mlo_status mlo_delete(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                           const struct mlo_deletion_request *request, json_t **blockers, json_t **out,
                           struct mlo_error *err)
{
    struct target t = {0};
    struct mlo_params lock = MLO_PARAMS_INIT;
    json_t *made = NULL;
    if (blockers)
        *blockers = NULL;
    if (out)
        *out = NULL;
    enum mlo_status status = mlo_actor_require(actor, request->project_id, MLO_ADMIN, err);
    if (status == MLO_OK && !request->dry_run)
        status = mlo_actor_reason(request->reason, "a deletion", err);
    if (status == MLO_OK && (request->grace_s < 0 || request->grace_s > MLO_GRACE_MAX_S))
        status = mlo_error_set(err, MLO_EINVAL, "a grace period is 0 to %lld seconds", MLO_GRACE_MAX_S);
    if (status != MLO_OK || (status = mlo_db_begin(conn, err)) != MLO_OK)
        return status;
    MLO_TRY(find_target(conn, request, &t, err));
    mlo_param_text(&lock, t.kind);
    mlo_param_i64(&lock, t.id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_deletion[D_LOCK], &lock, NULL, err));
    t = (struct target){0};
    MLO_TRY(find_target(conn, request, &t, err)); /* somebody may have deleted it while we waited */
    MLO_TRY(check(conn, &t, blockers, err));
    if (request->dry_run) {
        made = json_pack("{s:s, s:s}", "object", t.object, "kind", t.kind);
        status = made ? MLO_OK : mlo_error_nomem(err);
    } else {
        MLO_TRY(make(conn, actor, request, &t, &made, err));
    }
out:
    status = mlo_db_end(conn, status, err);
    if (status == MLO_OK && out)
        *out = made;
    else
        json_decref(made);
    return status;
}

/* --- bringing back ------------------------------------------------------------------------------------- */

enum mlo_status mlo_undelete(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                             int64_t deletion, const char *reason, json_t **out, struct mlo_error *err)
{
    struct mlo_params find = MLO_PARAMS_INIT, undo = MLO_PARAMS_INIT, get = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0}, undone = {0};
    json_t *after = NULL, *made = NULL;
    char host[480];
    bool there;
    if (out)
        *out = NULL;
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_ADMIN, err);
    if (status == MLO_OK)
        status = mlo_actor_reason(reason, "bringing back what was deleted", err);
    if (status != MLO_OK || (status = mlo_db_begin(conn, err)) != MLO_OK)
        return status;
    mlo_param_i64(&find, deletion);
    mlo_param_i64(&find, project_id);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_deletion[D_FIND], &find, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "this project has no deletion %lld", (long long)deletion);
        goto out;
    }
    MLO_TRY(one_text(conn, D_HOST, deletion, host, sizeof host, &there, err));
    if (there) {
        status = mlo_error_set(err, MLO_ECONFLICT, "%.200s is deleted itself", host);
        mlo_error_hint(err, "bring that back first");
        goto out;
    }
    mlo_param_i64(&undo, deletion);
    mlo_param_text(&undo, actor->name);
    mlo_param_text(&undo, reason);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_deletion[D_UNDO], &undo, &undone, err));
    if (!mlo_rows_bool(&undone, 0, 0)) {
        bool before = mlo_rows_bool(&rows, 0, 1);
        status = mlo_error_set(err, MLO_ECONFLICT, "deletion %lld %s", (long long)deletion,
                               before ? "was undone before"
                                      : "was purged: its grace period is over, and its bytes may be gone");
        goto out;
    }
    after = json_pack("{s:I}", "deletion", (json_int_t)deletion);
    struct mlo_audit_event event = {
        .action = "deletion.undo", .object = mlo_rows_text(&rows, 0, 0), .after = after, .reason = reason};
    MLO_TRY(after ? mlo_audit_append(conn, project_id, actor, &event, NULL, err) : mlo_error_nomem(err));
    mlo_param_i64(&get, deletion);
    MLO_TRY(mlo_sql_object(conn, &mlo_sql_deletion[D_GET], &get, &made, err));
out:
    json_decref(after);
    mlo_rows_clear(&rows);
    mlo_rows_clear(&undone);
    status = mlo_db_end(conn, status, err);
    if (status == MLO_OK && out)
        *out = made;
    else
        json_decref(made);
    return status;
}

enum mlo_status mlo_deletion_list(struct mlo_db_conn *conn, int64_t project_id, const struct mlo_page *page,
                                  json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    return mlo_page_newest(conn, &mlo_sql_deletion[D_LIST], &p, page, out, err);
}

/* --- archiving ----------------------------------------------------------------------------------------- */

/* Locks the model's stages, so that nobody promotes it meanwhile. */
static enum mlo_status not_in_a_stage(struct mlo_db_conn *conn, const struct mlo_version_info *version,
                                      const char *object, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&p, version->model_id);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_deletion[D_STAGES], &p, &rows, err);
    for (int r = 0; status == MLO_OK && r < mlo_rows_count(&rows); r++) {
        if (mlo_rows_i64(&rows, r, 1) != version->id)
            continue;
        status = mlo_error_set(err, MLO_ECONFLICT, "%s is in %s: it cannot be archived", object,
                               mlo_rows_text(&rows, r, 0));
        mlo_error_hint(err, "promote another version first");
    }
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_version_archive(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                    const struct mlo_version_info *version, bool archived, const char *reason,
                                    bool *changed, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    char object[240] = "";
    bool there, did = false;
    enum mlo_status status = mlo_actor_require(actor, version->project_id, MLO_PROMOTER, err);
    if (status == MLO_OK)
        status = mlo_actor_reason(reason, archived ? "archiving" : "unarchiving", err);
    if (status != MLO_OK || (status = mlo_db_begin(conn, err)) != MLO_OK)
        return status;
    MLO_TRY(one_text(conn, D_VERSION, version->id, object, sizeof object, &there, err));
    if (archived)
        MLO_TRY(not_in_a_stage(conn, version, object, err));
    mlo_param_i64(&p, version->id);
    mlo_param_text(&p, archived ? actor->name : NULL);
    mlo_param_text(&p, archived ? reason : NULL);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_deletion[D_ARCHIVE], &p, &rows, err));
    did = mlo_rows_bool(&rows, 0, 0);
    if (!did)
        goto out;
    struct mlo_audit_event event = {
        .action = archived ? "version.archive" : "version.unarchive", .object = object, .reason = reason};
    MLO_TRY(mlo_audit_append(conn, version->project_id, actor, &event, NULL, err));
out:
    mlo_rows_clear(&rows);
    status = mlo_db_end(conn, status, err);
    if (changed)
        *changed = status == MLO_OK && did;
    return status;
}
