/* Releases and stages: promotion, rollback, history, resolving.
 *
 * A stage is a pointer to a release; a move locks the pointer, compares the caller's If-Match with its
 * generation, creates the release, moves the pointer, and writes the promotion log and the audit log: one
 * transaction. A release moves whole. */
#ifndef MLO_REGISTRY_STAGES_H
#define MLO_REGISTRY_STAGES_H

#include "registry/models.h"

struct mlo_release_choice {
    const char *target;  /* NULL: "any" */
    const char *variant; /* a variant of the version */
};

struct mlo_promotion {
    int64_t model_id;
    int64_t version; /* its number; 0: the latest */
    const struct mlo_release_choice *choices;
    size_t choice_count;     /* at least one, one per target */
    const char *stage;       /* "staging" or "production" */
    const char *reason;      /* NULL or "": none given */
    const int64_t *if_match; /* the generation that the caller saw (0: empty stage); NULL: not sent */
    json_t **decision; /* what the gates said (see gates.h), also when they refuse; yours; NULL: not asked */
};

struct mlo_move {
    int64_t id, generation, audit_seq;
    int64_t from_release, to_release; /* numbers within the model; from 0: the stage was empty */
};

/* Needs a promoter. MLO_EPRECONDITION_REQUIRED without if_match, MLO_EPRECONDITION when the pointer was moved
 * since, MLO_ENOTFOUND for an unknown version or variant, MLO_ECONFLICT when the stage already holds exactly
 * this, MLO_EGATE when a gate of the policy refuses (gates.h). A refusal is recorded, with its numbers, in a
 * transaction of its own: called within another one, that one decides. */
MLO_MUST_USE enum mlo_status mlo_stage_promote(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                               const struct mlo_promotion *promotion, struct mlo_move *out,
                                               struct mlo_error *err);

struct mlo_rollback {
    int64_t model_id;
    const char *stage;
    int64_t to_release;      /* its number: one that was in this stage; 0: what the current one replaced */
    const char *reason;      /* required: MLO_EINVAL without */
    const int64_t *if_match; /* as above */
};
/* Needs the right to roll back (mlo_actor_may_rollback). The release that was in the stage is quarantined: to
 * promote its bytes again is refused until mlo_quarantine_release. Rolled back twice goes two back: from C
 * over B to A. MLO_ECONFLICT when nothing was there before. */
MLO_MUST_USE enum mlo_status mlo_stage_rollback(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                const struct mlo_rollback *rollback, struct mlo_move *out,
                                                struct mlo_error *err);

/* What is in quarantine (all: also what was), newest first: {id, release: {…}, stage, actor, reason, at,
 * audit_seq, ended: {actor, reason, at, audit_seq}|null}. */
MLO_MUST_USE enum mlo_status mlo_quarantine_list(struct mlo_db_conn *conn, int64_t model_id, bool all,
                                                 const struct mlo_page *page, json_t **out,
                                                 struct mlo_error *err);
/* Lets a release (by its number) out; needs an approver and a reason. MLO_ENOTFOUND when it is not in there.
 */
MLO_MUST_USE enum mlo_status mlo_quarantine_release(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                    int64_t model_id, int64_t release, const char *reason,
                                                    struct mlo_error *err);

/* A move, as an item of mlo_stage_history. A dry run: begin a transaction, promote, read the move, and end
 * the transaction with MLO_ECANCELLED. */
MLO_MUST_USE enum mlo_status mlo_stage_move_get(struct mlo_db_conn *conn, int64_t move_id, json_t **out,
                                                struct mlo_error *err);

/* {stage, generation, moved_at, release: {release, version, created_at, created_by,
 *  variants:[{target, variant, artifact, size}]} | null, previous: the release that a rollback would restore
 * | null}. `generation` is the ETag. */
MLO_MUST_USE enum mlo_status mlo_stage_get(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                           json_t **out, struct mlo_error *err);
/* Both stages of a model, as an array of the above. */
MLO_MUST_USE enum mlo_status mlo_stage_list(struct mlo_db_conn *conn, int64_t model_id, json_t **out,
                                            struct mlo_error *err);

struct mlo_history_filter {
    int64_t project_id; /* 0: all in the actor's scope */
    int64_t model_id;   /* 0: all of the project */
    const char *stage;  /* NULL: all */
    int64_t release;    /* the number of one of the model's: moves that put it in or took it away; 0: all */
};
/* The promotion log, newest first: {id, project, model, stage, generation, kind, from:{release, version,
 * variants}|null, to:{…}, actor, via, reason, request_id, at, audit_seq}. */
MLO_MUST_USE enum mlo_status mlo_stage_history(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                               const struct mlo_history_filter *filter,
                                               const struct mlo_page *page, json_t **out,
                                               struct mlo_error *err);
/* What was in the stage at a time ("2026-01-31T12:00:00Z"), and the move that put it there: an item of the
 * history, or JSON null when it was empty. MLO_EINVAL when it is no time. */
MLO_MUST_USE enum mlo_status mlo_stage_at(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                          const char *time, json_t **out, struct mlo_error *err);

struct mlo_resolution {
    int64_t release, version; /* numbers */
    char target[64], variant[104];
    struct mlo_digest artifact;
    uint64_t size_bytes;
    int64_t generation;
};
/* What a consumer with these features (see registry/target.h; NULL: "any") gets from the stage: the most
 * specific variant that it satisfies. MLO_ENOTFOUND when the stage is empty, or holds nothing for it. */
MLO_MUST_USE enum mlo_status mlo_stage_resolve(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                               const char *consumer, struct mlo_resolution *out,
                                               struct mlo_error *err);

#endif
