/* Deleting, bringing back, archiving; garbage collection and the reconciler. */
#include <string.h>

#include "api/http/handlers_impl.h"

/* What one request may take: the caller comes again while there is more. */
enum { BUDGET_MS = 8000 };

/* "grace_s" of a body, which only an admin of the installation chooses; else the server's. */
static enum mlo_status read_grace(struct mlo_request *req, const json_t *body, int64_t *out,
                                  struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    int64_t fallback = req->http->options.grace_s ? req->http->options.grace_s : MLO_GRACE_S;
    enum mlo_status status;
    *out = fallback;
    if (!json_object_get(body, "grace_s"))
        return MLO_OK;
    MLO_TRY(mlo_json_get_i64(body, "grace_s", &fallback, out, err));
    if (*out < 0 || *out > MLO_GRACE_MAX_S) {
        status = mlo_error_set(err, MLO_EINVAL, "a grace period is 0 to %lld seconds", MLO_GRACE_MAX_S);
        mlo_error_where(err, "field 'grace_s'");
        goto out;
    }
    MLO_TRY(mlo_actor_require(&actor, 0, MLO_ADMIN, err));
out:
    return status;
}

/* --- deletion -------------------------------------------------------------------------------------- */

enum mlo_status h_deletion_make(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_deletion_request request = {0};
    json_t *body, *blockers = NULL, *made = NULL;
    int64_t none = 0;
    bool no = false;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "model", "", &request.model, err));
    MLO_TRY(mlo_json_get_str(body, "dataset", "", &request.dataset, err));
    MLO_TRY(mlo_json_get_i64(body, "version", &none, &request.version, err));
    MLO_TRY(mlo_json_get_str(body, "variant", "", &request.variant, err));
    MLO_TRY(mlo_json_get_str(body, "reason", "", &request.reason, err));
    MLO_TRY(mlo_json_get_bool(body, "dry_run", &no, &request.dry_run, err));
    request.model = *request.model ? request.model : NULL;
    request.dataset = *request.dataset ? request.dataset : NULL;
    request.variant = *request.variant ? request.variant : NULL;
    MLO_TRY(mlo_request_project(req, &request.project_id, err));
    MLO_TRY(read_grace(req, body, &request.grace_s, err));
    status = mlo_delete(req->conn, &actor, &request, &blockers, &made, err);
    if (blockers)
        mlo_reply_member(req, "blockers", json_incref(blockers));
    if (status == MLO_OK)
        status = mlo_reply_json(req, request.dry_run ? 200 : 201, json_incref(made), err);
out:
    json_decref(blockers);
    json_decref(made);
    return status;
}

enum mlo_status h_deletions(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_page page;
    json_t *value = NULL;
    int64_t project;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_deletion_list(req->conn, project, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_undelete(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *reason;
    json_t *body, *value = NULL;
    int64_t project, id = 0;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "reason", "", &reason, err));
    MLO_TRY(mlo_request_project(req, &project, err));
    mlo_str_to_i64(mlo_request_param(req, "id"), &id);
    MLO_TRY(mlo_undelete(req->conn, &actor, project, id, reason, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

static enum mlo_status archive(struct mlo_request *req, bool archived, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_version_info version;
    const char *reason;
    json_t *body, *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "reason", "", &reason, err));
    MLO_TRY(mlo_request_version(req, &version, err));
    MLO_TRY(mlo_version_archive(req->conn, &actor, &version, archived, reason, NULL, err));
    MLO_TRY(mlo_version_get(req->conn, version.id, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_version_archive(struct mlo_request *req, struct mlo_error *err)
{
    return archive(req, true, err);
}

enum mlo_status h_version_unarchive(struct mlo_request *req, struct mlo_error *err)
{
    return archive(req, false, err);
}

/* --- upkeep ------------------------------------------------------------------------------------------ */

enum mlo_status h_gc(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_gc_options options = {.blobs = req->http->options.blobs, .budget_ms = BUDGET_MS};
    struct mlo_gc_result r;
    struct mlo_db_conn *conn;
    const char *cursor;
    char next[MLO_DIGEST_TEXT_SIZE];
    json_t *body, *items = NULL;
    bool no = false;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "cursor", "", &cursor, err));
    if (*cursor && !mlo_digest_parse(cursor, &options.behind)) {
        status = mlo_error_set(err, MLO_EINVAL, "the cursor is not one that a collection gave");
        mlo_error_where(err, "field 'cursor'");
        goto out;
    }
    MLO_TRY(mlo_json_get_bool(body, "dry_run", &no, &options.dry_run, err));
    MLO_TRY(read_grace(req, body, &options.grace_s, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_gc_run(conn, &actor, &options, &r, &items, err));
    MLO_TRY(mlo_reply_json(
        req, 200,
        json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:s?, s:O}", "dry_run", options.dry_run,
                  "grace_s", (json_int_t)options.grace_s, "purged", (json_int_t)r.purged, "marked",
                  (json_int_t)r.marked, "marked_bytes", (json_int_t)r.marked_bytes, "removed",
                  (json_int_t)r.removed, "removed_bytes", (json_int_t)r.removed_bytes, "backup", r.backup,
                  "more", r.more, "next", r.more ? mlo_digest_text(&r.next, next) : NULL, "items", items),
        err));
out:
    json_decref(items);
    return status;
}

enum mlo_status h_fsck(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_fsck_options options = {.blobs = req->http->options.blobs, .budget_ms = BUDGET_MS};
    struct mlo_db_conn *conn;
    const char *cursor;
    json_t *body, *value = NULL;
    bool no = false;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_bool(body, "bytes", &no, &options.bytes, err));
    MLO_TRY(mlo_json_get_bool(body, "repair", &no, &options.repair, err));
    MLO_TRY(mlo_json_get_str(body, "cursor", "", &cursor, err));
    MLO_TRY(read_grace(req, body, &options.grace_s, err));
    MLO_TRY(mlo_request_db(req, &conn, err));
    MLO_TRY(mlo_fsck_run(conn, &actor, &options, cursor, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}
