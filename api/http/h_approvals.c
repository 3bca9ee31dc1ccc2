/* Approvals, and what is in quarantine. */
#include <string.h>

#include "api/http/handlers_impl.h"

enum mlo_status h_approvals(struct mlo_request *req, struct mlo_error *err)
{
    return mlo_reply_stage_list(req, mlo_approval_list, err);
}

enum mlo_status h_approve(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_release_choice choices[MLO_CHOICES_MAX];
    struct mlo_approval approval = {.choices = choices};
    const char *shown;
    int64_t latest = 0, id;
    json_t *body, *decision = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "stage", NULL, &approval.stage, err));
    MLO_TRY(mlo_json_get_str(body, "shown", NULL, &shown, err));
    MLO_TRY(mlo_json_get_str(body, "note", "", &approval.note, err));
    MLO_TRY(mlo_json_get_i64(body, "version", &latest, &approval.version, err));
    MLO_TRY(mlo_request_stage(approval.stage, "field 'stage'", MLO_EINVAL, err));
    MLO_TRY(mlo_request_choices(body, choices, &approval.choice_count, err));
    if (!mlo_digest_parse(shown, &approval.shown)) {
        status = mlo_error_set(err, MLO_EINVAL, "'%.80s' is no digest", shown);
        mlo_error_where(err, "field 'shown'");
        mlo_error_hint(err, "a dry run of the promotion gives it: decision.shown");
        goto out;
    }
    MLO_TRY(mlo_request_model(req, NULL, &approval.model_id, err));
    MLO_TRY(mlo_approval_give(req->conn, &actor, &approval, &id, &decision, err));
    MLO_TRY(
        mlo_reply_json(req, 201, json_pack("{s:I, s:O}", "id", (json_int_t)id, "decision", decision), err));
out:
    json_decref(decision);
    return status;
}

/* The number that the path's segment names of a model's things, and the reason in the body. */
static enum mlo_status read_reasoned(struct mlo_request *req, const char *segment, int64_t *model,
                                     int64_t *number, const char **reason, struct mlo_error *err)
{
    json_t *body;
    enum mlo_status status;
    *number = 0; /* of nothing */
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "reason", NULL, reason, err));
    MLO_TRY(mlo_request_model(req, NULL, model, err));
    mlo_str_to_i64(mlo_request_param(req, segment), number);
out:
    return status;
}

enum mlo_status h_approval_withdraw(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *reason;
    int64_t model, id;
    enum mlo_status status;
    MLO_TRY(read_reasoned(req, "id", &model, &id, &reason, err));
    MLO_TRY(mlo_approval_withdraw(req->conn, &actor, model, id, reason, err));
    MLO_TRY(mlo_reply_json(req, 200, json_pack("{s:I, s:b}", "id", (json_int_t)id, "withdrawn", true), err));
out:
    return status;
}

enum mlo_status h_quarantine(struct mlo_request *req, struct mlo_error *err)
{
    const char *all = mlo_request_query(req, "all");
    struct mlo_page page;
    json_t *value = NULL;
    int64_t model;
    enum mlo_status status;
    if (all && strcmp(all, "true") != 0 && strcmp(all, "false") != 0) {
        status = mlo_error_set(err, MLO_EINVAL, "all=%.40s is neither true nor false", all);
        mlo_error_where(err, "query argument 'all'");
        goto out;
    }
    MLO_TRY(mlo_request_page(req, &page, err));
    MLO_TRY(mlo_request_model(req, NULL, &model, err));
    MLO_TRY(mlo_quarantine_list(req->conn, model, all && strcmp(all, "true") == 0, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_quarantine_release(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *reason;
    int64_t model, release;
    enum mlo_status status;
    MLO_TRY(read_reasoned(req, "r", &model, &release, &reason, err));
    MLO_TRY(mlo_quarantine_release(req->conn, &actor, model, release, reason, err));
    MLO_TRY(mlo_reply_json(req, 200,
                           json_pack("{s:I, s:b}", "release", (json_int_t)release, "released", true), err));
out:
    return status;
}
