/* Promotion: judged by the gates, then moved, in one transaction. */
#include <string.h>

#include "registry/gate_impl.h"
#include "registry/pointer_impl.h"
#include "registry/sql_impl.h"

/* What the gates said. */
struct decision {
    struct mlo_gate_case c;
    json_t *document;
    struct mlo_buf text; /* of it, canonical: what is kept, and what the digest is of */
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
    if (status != MLO_OK)
        return status;
    mlo_json_canonical(out->document, &out->text);
    if (!mlo_buf_ok(&out->text))
        return mlo_error_nomem(err);
    mlo_digest_of(mlo_buf_str(&out->text), out->text.len, &digest);
    mlo_digest_text(&digest, out->digest);
    return MLO_OK;
}

/* Queues the decision; its digest stands in the audit entry queued before it. */
static enum mlo_status keep(struct mlo_db_conn *conn, const struct mlo_actor *actor, const struct decision *d,
                            const char *reason, struct mlo_move_rows *rows, struct mlo_error *err)
{
    return mlo_decision_queue(conn, actor, &d->c, mlo_buf_str(&d->text), d->accepted, reason, &rows->decision,
                              err);
}

/* What it was numbered with. */
static enum mlo_status number(struct decision *d, const struct mlo_move_rows *rows, struct mlo_error *err)
{
    json_t *id = json_integer(mlo_rows_i64(&rows->decision, 0, 0));
    json_t *seq = json_integer(mlo_rows_i64(&rows->audit, 0, 0));
    bool set = json_object_set_new(d->document, "id", id) == 0;
    return json_object_set_new(d->document, "audit_seq", seq) == 0 && set ? MLO_OK : mlo_error_nomem(err);
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
                              struct decision *d, struct mlo_move_rows *rows, struct mlo_error *err)
{
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
                                 ? mlo_audit_queue(conn, at->project_id, actor, &event, &rows->audit, err)
                                 : mlo_error_nomem(err);
    if (status == MLO_OK)
        status = keep(conn, actor, d, promotion->reason, rows, err);
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
    struct decision decision = {.text = MLO_BUF_INIT, .accepted = true};
    struct mlo_move_to to = {.kind = "promotion", .action = "stage.promote", .reason = promotion->reason};
    struct mlo_move_rows rows = {0};
    memset(out, 0, sizeof *out);
    if (promotion->decision)
        *promotion->decision = NULL;
    if (!mlo_stage_valid(promotion->stage))
        return mlo_stage_unknown(promotion->stage, err);
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_unlock_early(conn, err));
    MLO_TRY(mlo_pointer_lock_for(conn, promotion->model_id, promotion->stage, promotion->version, &at, err));
    MLO_TRY(mlo_actor_require_stage(actor, at.project_id, promotion->stage, MLO_PROMOTER, err));
    MLO_TRY(mlo_pointer_match(&at, promotion->if_match, err));
    MLO_TRY(mlo_version_find(conn, promotion->model_id, promotion->version, &version, err));
    if (version.archived) {
        status = mlo_error_set(err, MLO_ECONFLICT, "version %lld is archived", (long long)version.number);
        mlo_error_hint(err, "unarchive it first: mlopt unarchive");
        goto out;
    }
    MLO_TRY(mlo_gates_ahead(conn, at.project_id, at.model_id, err));
    MLO_TRY(mlo_release_content(conn, &version, promotion->choices, promotion->choice_count, &content, err));
    if (at.release_id && mlo_digest_eq(&at.content, &content.digest)) {
        status = mlo_error_set(err, MLO_ECONFLICT, "%s holds exactly this already (release %lld)", at.object,
                               (long long)at.release_seq);
        goto out;
    }
    to.content = content.digest;
    MLO_TRY(mlo_release_ahead(conn, &version, &content, err));
    MLO_TRY(mlo_stage_move_ahead(conn, &at, &to, err));
    MLO_TRY(judge(conn, &at, &version, &content, &decision, err));
    if (!decision.accepted) {
        status = refuse(conn, actor, promotion, &at, &decision, &rows, err);
        goto out;
    }
    MLO_TRY(mlo_release_ensure(conn, actor, &version, &content, &release, err));
    to.release_id = release.id;
    to.release_seq = release.seq;
    to.version = version.number;
    to.decision = decision.digest;
    MLO_TRY(mlo_stage_move(conn, actor, &at, &to, &rows, err));
    MLO_TRY(keep(conn, actor, &decision, promotion->reason, &rows, err));
out:
    status = mlo_db_end(conn, status, err); /* sends what is queued, with its COMMIT */
    if (status == MLO_OK)
        status = number(&decision, &rows, err);
    if (status == MLO_OK && decision.accepted)
        mlo_stage_moved(&at, &to, &rows, out);
    mlo_move_rows_clear(&rows);
    if (status == MLO_OK && !decision.accepted)
        status = refused(&at, &decision, err);
    if (promotion->decision && (status == MLO_OK || status == MLO_EGATE))
        *promotion->decision = json_incref(decision.document);
    json_decref(decision.document);
    mlo_buf_clear(&decision.text);
    mlo_release_content_clear(&content);
    return mlo_stage_answer(conn, status, err);
}
