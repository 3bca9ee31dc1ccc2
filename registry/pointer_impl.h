/* Private to registry: a stage's pointer while it is locked, and its moves. */
#ifndef MLO_REGISTRY_POINTER_IMPL_H
#define MLO_REGISTRY_POINTER_IMPL_H

#include "registry/gate_impl.h"

/* The pointer as it is, locked until the transaction ends. `now`: the server's clock behind the lock, so that
 * moves of a stage follow each other in time; SQL text. */
struct mlo_pointer {
    int64_t model_id, project_id, generation, move_id, release_id, release_seq, version;
    const char *stage;
    struct mlo_digest content; /* of the release, when there is one */
    char object[240];          /* "fashion/cnn:production" */
    char now[40];
};
enum mlo_status mlo_pointer_lock(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                 struct mlo_pointer *out, struct mlo_error *err);
/* The same; the version of this number (0: the latest) is read ahead with it. */
enum mlo_status mlo_pointer_lock_for(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                     int64_t version, struct mlo_pointer *out, struct mlo_error *err);
/* MLO_EPRECONDITION_REQUIRED without the generation, MLO_EPRECONDITION when it is another. */
enum mlo_status mlo_pointer_match(const struct mlo_pointer *at, const int64_t *if_match,
                                  struct mlo_error *err);
enum mlo_status mlo_stage_unknown(const char *stage, struct mlo_error *err); /* MLO_ENOTFOUND */
/* {generation, release, version} for the audit log; release 0: the stage is empty. */
json_t *mlo_stage_state(int64_t generation, int64_t release, int64_t version);

struct mlo_move_to {
    const char *kind, *action, *reason;
    int64_t release_id, release_seq, version;
    struct mlo_digest content;
    int64_t restores;     /* 0: a promotion */
    const char *decision; /* digest of the gates' decision; NULL: a rollback asks none */
    int64_t quarantined;  /* number of the release that a rollback puts there; 0: none */
};
/* What a move is numbered with, once it is written. Clear it. */
struct mlo_move_rows {
    struct mlo_rows audit, move, decision;
};
/* Queues audit, log, pointer, and what the ledger will say, so that the chain's head is locked as late as the
 * queue is sent. `rows` gets its `audit` and `move` then. */
enum mlo_status mlo_stage_move(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                               const struct mlo_pointer *at, const struct mlo_move_to *to,
                               struct mlo_move_rows *rows, struct mlo_error *err);
/* Reads ahead what mlo_stage_move will ask for. Only `content` and `restores` of `to` count. */
enum mlo_status mlo_stage_move_ahead(struct mlo_db_conn *conn, const struct mlo_pointer *at,
                                     const struct mlo_move_to *to, struct mlo_error *err);
/* Behind mlo_db_end: a refusal that says what is in the stage is told when that is on disk. Returns `status`,
 * or what went wrong. */
enum mlo_status mlo_stage_answer(struct mlo_db_conn *conn, enum mlo_status status, struct mlo_error *err);
/* The move that was written. */
void mlo_stage_moved(const struct mlo_pointer *at, const struct mlo_move_to *to,
                     const struct mlo_move_rows *rows, struct mlo_move *out);
void mlo_move_rows_clear(struct mlo_move_rows *rows);

/* Queues what a rollback leaves behind, after mlo_stage_move: the release that was in the stage, quarantined
 * unless it is already. */
enum mlo_status mlo_quarantine_queue(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                     const struct mlo_pointer *left, const char *reason,
                                     struct mlo_error *err);

/* The case of putting this content into that stage. */
void mlo_gate_case_init(struct mlo_gate_case *c, struct mlo_db_conn *conn, const struct mlo_pointer *at,
                        const struct mlo_version_info *version, const struct mlo_release_content *content);

#endif
