/* Stages, promotions, rollbacks, history, and what a consumer gets from a stage. */
#include <string.h>

#include "api/http/handlers_impl.h"

enum mlo_status mlo_request_stage(const char *stage, const char *where, enum mlo_status wrong,
                                  struct mlo_error *err)
{
    if (mlo_stage_valid(stage))
        return MLO_OK;
    mlo_error_set(err, wrong, "there is no stage '%.60s'", stage);
    mlo_error_where(err, "%s", where);
    mlo_error_hint(err, "the stages are staging and production");
    return wrong;
}

enum mlo_status mlo_reply_stage_list(struct mlo_request *req, mlo_stage_list_fn *list, struct mlo_error *err)
{
    const char *stage = mlo_request_query(req, "stage");
    struct mlo_page page;
    json_t *value = NULL;
    int64_t model;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    if (stage)
        MLO_TRY(mlo_request_stage(stage, "query argument 'stage'", MLO_EINVAL, err));
    MLO_TRY(mlo_request_model(req, NULL, &model, err));
    MLO_TRY(list(req->conn, model, stage, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_stages(struct mlo_request *req, struct mlo_error *err)
{
    json_t *items = NULL;
    int64_t model;
    enum mlo_status status;
    MLO_TRY(mlo_request_model(req, NULL, &model, err));
    MLO_TRY(mlo_stage_list(req->conn, model, &items, err));
    MLO_TRY(mlo_db_settle(req->conn, err)); /* its generations are remembered */
    MLO_TRY(mlo_reply_json(req, 200, mlo_list_of(items), err));
out:
    return status;
}

enum mlo_status h_stage(struct mlo_request *req, struct mlo_error *err)
{
    const char *stage = mlo_request_param(req, "s");
    json_t *value = NULL;
    int64_t model;
    enum mlo_status status;
    MLO_TRY(mlo_request_stage(stage, "path", MLO_ENOTFOUND, err));
    MLO_TRY(mlo_request_model(req, NULL, &model, err));
    MLO_TRY(mlo_stage_get(req->conn, model, stage, &value, err));
    MLO_TRY(mlo_db_settle(req->conn, err)); /* its ETag is remembered */
    mlo_reply_header(req, "ETag", "\"%lld\"", (long long)mlo_json_i64(value, "generation", 0));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status mlo_request_choices(const json_t *body, struct mlo_release_choice *choices, size_t *count,
                                    struct mlo_error *err)
{
    const json_t *variants = json_object_get(body, "variants");
    const char *target;
    json_t *variant;
    *count = 0;
    if (!json_is_object(variants) || json_object_size(variants) == 0 ||
        json_object_size(variants) > MLO_CHOICES_MAX)
        goto bad;
    json_object_foreach((json_t *)variants, target, variant)
    {
        if (!json_is_string(variant))
            goto bad;
        choices[(*count)++] =
            (struct mlo_release_choice){.target = target, .variant = json_string_value(variant)};
    }
    return MLO_OK;
bad:
    mlo_error_set(err, MLO_EINVAL, "'variants' must be an object of 1 to %d members, target to variant",
                  MLO_CHOICES_MAX);
    mlo_error_where(err, "field 'variants'");
    mlo_error_hint(err, "for example {\"any\": \"source\"}");
    return MLO_EINVAL;
}

static enum mlo_status reply_move(struct mlo_request *req, const struct mlo_move_request *move,
                                  struct mlo_error *err)
{
    json_t *value = NULL;
    enum mlo_status status = mlo_view_move(req, move, &value, err);
    if (status != MLO_OK)
        return status;
    if (!move->dry_run)
        mlo_reply_header(req, "ETag", "\"%lld\"", (long long)mlo_json_i64(value, "generation", 0));
    return mlo_reply_json(req, move->dry_run ? 200 : 201, value, err);
}

enum mlo_status h_promote(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_release_choice choices[MLO_CHOICES_MAX];
    struct mlo_move_request move = {.promotion.choices = choices};
    struct mlo_promotion *promotion = &move.promotion;
    int64_t if_match, latest = 0;
    bool no = false;
    json_t *body;
    enum mlo_status status;
    MLO_TRY(mlo_request_if_match(req, &if_match, err));
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "stage", NULL, &promotion->stage, err));
    MLO_TRY(mlo_json_get_str(body, "reason", "", &promotion->reason, err));
    MLO_TRY(mlo_json_get_i64(body, "version", &latest, &promotion->version, err));
    MLO_TRY(mlo_json_get_bool(body, "dry_run", &no, &move.dry_run, err));
    MLO_TRY(mlo_request_stage(promotion->stage, "field 'stage'", MLO_EINVAL, err));
    MLO_TRY(mlo_request_choices(body, choices, &promotion->choice_count, err));
    MLO_TRY(mlo_request_model(req, NULL, &promotion->model_id, err));
    promotion->if_match = &if_match;
    MLO_TRY(reply_move(req, &move, err));
out:
    return status;
}

enum mlo_status h_rollback(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_move_request move = {.rollback = true};
    struct mlo_rollback *back = &move.back;
    int64_t if_match, previous = 0;
    bool no = false;
    json_t *body;
    enum mlo_status status;
    MLO_TRY(mlo_request_if_match(req, &if_match, err));
    MLO_TRY(mlo_request_json(req, &body, err));
    MLO_TRY(mlo_json_get_str(body, "stage", NULL, &back->stage, err));
    MLO_TRY(mlo_json_get_str(body, "reason", "", &back->reason, err));
    MLO_TRY(mlo_json_get_bool(body, "dry_run", &no, &move.dry_run, err));
    if (!json_is_null(json_object_get(body, "to")))
        MLO_TRY(mlo_json_get_i64(body, "to", &previous, &back->to_release, err));
    MLO_TRY(mlo_request_stage(back->stage, "field 'stage'", MLO_EINVAL, err));
    MLO_TRY(mlo_request_model(req, NULL, &back->model_id, err));
    back->if_match = &if_match;
    MLO_TRY(reply_move(req, &move, err));
out:
    return status;
}

enum mlo_status h_history(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *stage = mlo_request_query(req, "stage"), *at = mlo_request_query(req, "at");
    struct mlo_history_filter filter = {0};
    struct mlo_page page;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    filter.stage = stage;
    if (filter.stage)
        MLO_TRY(mlo_request_stage(stage, "query argument 'stage'", MLO_EINVAL, err));
    MLO_TRY(mlo_request_model(req, &filter.project_id, &filter.model_id, err));
    if (at) {
        MLO_TRY(mlo_stage_at(req->conn, filter.model_id, filter.stage ? filter.stage : "production", at,
                             &value, err));
        json_t *items = json_array();
        if (!json_is_null(value))
            json_array_append(items, value);
        json_decref(value);
        value = mlo_list_of(items);
    } else {
        MLO_TRY(mlo_stage_history(req->conn, &actor, &filter, &page, &value, err));
    }
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_project_history(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    struct mlo_history_filter filter = {.stage = mlo_request_query(req, "stage")};
    struct mlo_page page;
    json_t *value = NULL;
    enum mlo_status status;
    MLO_TRY(mlo_request_page(req, &page, err));
    if (filter.stage)
        MLO_TRY(mlo_request_stage(filter.stage, "query argument 'stage'", MLO_EINVAL, err));
    MLO_TRY(mlo_request_project(req, &filter.project_id, err));
    MLO_TRY(mlo_stage_history(req->conn, &actor, &filter, &page, &value, err));
    MLO_TRY(mlo_reply_json(req, 200, value, err));
out:
    return status;
}

enum mlo_status h_stage_artifact(struct mlo_request *req, struct mlo_error *err)
{
    const char *stage = mlo_request_param(req, "s"), *target = mlo_request_query(req, "target");
    struct mlo_resolution found;
    int64_t model;
    enum mlo_status status;
    MLO_TRY(mlo_request_stage(stage, "path", MLO_ENOTFOUND, err));
    MLO_TRY(mlo_request_model(req, NULL, &model, err));
    MLO_TRY(mlo_stage_resolve(req->conn, model, stage, target && target[0] ? target : NULL, &found, err));
    mlo_reply_header(req, "X-Mlopt-Variant", "%s", found.variant);
    mlo_reply_header(req, "X-Mlopt-Target", "%s", found.target);
    mlo_reply_header(req, "X-Mlopt-Version", "%lld", (long long)found.version);
    mlo_reply_header(req, "X-Mlopt-Release", "%lld", (long long)found.release);
    char *file = mlo_arena_printf(req->arena, "%s-%lld-%s.onnx", mlo_request_param(req, "m"),
                                  (long long)found.version, found.variant);
    MLO_TRY(file ? mlo_reply_artifact(req, &found.artifact, file, err) : mlo_error_nomem(err));
out:
    return status;
}
