/* Promotion: judged by the gates, then moved, in one transaction. */
#include <string.h>

#include "registry/gate_impl.h"
#include "registry/pointer_impl.h"
#include "registry/sql_impl.h"

/* What the gates said. */
struct decision {
    struct mlo_gate_case c;
    json_t *document;
    bool accepted;
    char digest[MLO_DIGEST_TEXT_SIZE];
};

static enum mlo_status judge(struct mlo_db_conn *conn, const struct mlo_pointer *at,
                             const struct mlo_version_info *version,
                             const struct mlo_release_content *content, struct decision *out,
                             struct mlo_error *err)
{
    struct mlo_digest digest;
    mlo_gate_case_init(&out->c, conn, at, version, content);
    enum mlo_status status = mlo_gates_judge(&out->c, &out->document, &out->accepted, err);
    if (status == MLO_OK)
        status = mlo_json_digest(out->document, &digest, err);
    if (status == MLO_OK)
        mlo_digest_text(&digest, out->digest);
    return status;
}

/* Keeps the decision; its digest stands in the audit entry `seq`. */
static enum mlo_status keep(struct mlo_db_conn *conn, const struct mlo_actor *actor, struct decision *d,
                            const char *reason, int64_t seq, struct mlo_error *err)
{
    int64_t id;
    enum mlo_status status =
        mlo_decision_add(conn, actor, &d->c, d->document, d->accepted, reason, seq, &id, err);
    if (status == MLO_OK && (json_object_set_new(d->document, "id", json_integer(id)) != 0 ||
                             json_object_set_new(d->document, "audit_seq", json_integer(seq)) != 0))
        status = mlo_error_nomem(err);
    return status;
}

/* The texts of the conditions that do not hold, each once. */
static json_t *failed_conditions(const json_t *document)
{
    json_t *out = json_array(), *row, *text;
    size_t i, j;
    json_array_foreach(json_object_get(document, "conditions"), i, row)
    {
        json_t *condition = json_object_get(row, "condition");
        bool listed = mlo_json_bool(row, "holds", false);
        json_array_foreach(out, j, text) listed = listed || json_equal(text, condition);
        if (!listed)
            json_array_append(out, condition);
    }
    return out;
}

/* A refusal is an event like any other. */
static enum mlo_status refuse(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                              const struct mlo_promotion *promotion, const struct mlo_pointer *at,
                              struct decision *d, struct mlo_error *err)
{
    int64_t seq;
    char content[MLO_DIGEST_TEXT_SIZE];
    json_t *before = mlo_stage_state(at->generation, at->release_seq, at->version);
    json_t *after = json_pack("{s:I, s:s, s:s, s:o}", "version", (json_int_t)d->c.version->number, "content",
                              mlo_digest_text(&d->c.content->digest, content), "decision", d->digest,
                              "failed", failed_conditions(d->document));
    struct mlo_audit_event event = {.action = "stage.refuse",
                                    .object = at->object,
                                    .before = before,
                                    .after = after,
                                    .reason = promotion->reason};
    enum mlo_status status = before && after
                                 ? mlo_audit_append(conn, at->project_id, actor, &event, &seq, err)
                                 : mlo_error_nomem(err);
    if (status == MLO_OK)
        status = keep(conn, actor, d, promotion->reason, seq, err);
    json_decref(before);
    json_decref(after);
    return status;
}

static enum mlo_status refused(const struct mlo_pointer *at, const struct decision *d, struct mlo_error *err)
{
    const json_t *first = NULL;
    json_t *row;
    size_t i, count = 0;
    json_array_foreach(json_object_get(d->document, "conditions"), i, row)
    {
        if (mlo_json_bool(row, "holds", false))
            continue;
        first = first ? first : row;
        count++;
    }
    enum mlo_status status =
        mlo_error_set(err, MLO_EGATE, "the gates of %s refuse version %lld: \"%s\"%s%s: %.200s", at->object,
                      (long long)d->c.version->number, mlo_json_str(first, "condition", ""),
                      mlo_json_str(first, "target", NULL) ? " for " : "", mlo_json_str(first, "target", ""),
                      mlo_json_str(first, "why", ""));
    if (count > 1)
        mlo_error_hint(err, "%zu of %zu conditions do not hold; a dry run shows all with their numbers",
                       count, json_array_size(json_object_get(d->document, "conditions")));
    else
        mlo_error_hint(err, "a dry run shows all conditions with their numbers");
    return status;
}

enum mlo_status mlo_stage_promote(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                  const struct mlo_promotion *promotion, struct mlo_move *out,
                                  struct mlo_error *err)
{
    struct mlo_pointer at;
    struct mlo_version_info version;
    struct mlo_release release;
    struct mlo_release_content content = {0};
    struct decision decision = {.accepted = true};
    if (promotion->decision)
        *promotion->decision = NULL;
    if (!mlo_stage_valid(promotion->stage))
        return mlo_stage_unknown(promotion->stage, err);
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_pointer_lock(conn, promotion->model_id, promotion->stage, &at, err));
    MLO_TRY(mlo_actor_require(actor, at.project_id, MLO_PROMOTER, err));
    MLO_TRY(mlo_pointer_match(&at, promotion->if_match, err));
    MLO_TRY(mlo_version_find(conn, promotion->model_id, promotion->version, &version, err));
    MLO_TRY(mlo_release_content(conn, &version, promotion->choices, promotion->choice_count, &content, err));
    if (at.release_id && mlo_digest_eq(&at.content, &content.digest)) {
        status = mlo_error_set(err, MLO_ECONFLICT, "%s holds exactly this already (release %lld)", at.object,
                               (long long)at.release_seq);
        goto out;
    }
    MLO_TRY(judge(conn, &at, &version, &content, &decision, err));
    if (!decision.accepted) {
        status = refuse(conn, actor, promotion, &at, &decision, err);
        goto out;
    }
    MLO_TRY(mlo_release_ensure(conn, actor, &version, &content, &release, err));
    struct mlo_move_to to = {.kind = "promotion",
                             .action = "stage.promote",
                             .reason = promotion->reason,
                             .release_id = release.id,
                             .release_seq = release.seq,
                             .version = version.number,
                             .decision = decision.digest};
    MLO_TRY(mlo_stage_move(conn, actor, &at, &to, out, err));
    MLO_TRY(keep(conn, actor, &decision, promotion->reason, out->audit_seq, err));
out:
    status = mlo_db_end(conn, status, err);
    if (status == MLO_OK && !decision.accepted)
        status = refused(&at, &decision, err);
    if (promotion->decision && (status == MLO_OK || status == MLO_EGATE))
        *promotion->decision = json_incref(decision.document);
    json_decref(decision.document);
    mlo_release_content_clear(&content);
    return status;
}
