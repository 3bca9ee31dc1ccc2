/* Who does something: roles, actors, tokens. Every mutation takes an actor and writes it to the audit log. */
#ifndef MLO_REGISTRY_ACTOR_H
#define MLO_REGISTRY_ACTOR_H

#include "registry/db.h"
#include "registry/ref.h"

/* Each includes those before it. */
enum mlo_role { MLO_VIEWER, MLO_SUBMITTER, MLO_PROMOTER, MLO_APPROVER, MLO_ADMIN, MLO_ROLE_COUNT };
const char *mlo_role_name(enum mlo_role role);
bool mlo_role_parse(const char *text, enum mlo_role *out);

/* Rolling back is a right of its own: as the role says (a promoter may), or granted to the token, or
 * withheld. */
enum mlo_right { MLO_RIGHT_BY_ROLE, MLO_RIGHT_GRANTED, MLO_RIGHT_WITHHELD };

/* What a token speaks for: itself, or a member of a project (member.h). */
enum mlo_principal_kind { MLO_KIND_TOKEN, MLO_KIND_PERSON, MLO_KIND_SERVICE, MLO_KIND_COUNT };
const char *mlo_kind_name(enum mlo_principal_kind kind); /* "token", "person", "service" */

/* Texts are borrowed by the functions that take an actor. */
struct mlo_actor {
    int64_t token_id; /* 0: none (the program itself) */
    const char *name; /* the token's name, or "system", "worker NAME" */
    enum mlo_role role;
    int64_t project_id;     /* the only project it may touch; 0: all */
    const char *via;        /* "api", "cli", "web", "worker", "system" */
    const char *address;    /* of the peer; NULL: none */
    const char *request_id; /* NULL: none */
    enum mlo_right rollback;
    /* What moves or judges a stage asks for this or `role`, whichever is more: in the order of
     * mlo_stage_names. */
    enum mlo_role stage_role[MLO_STAGE_COUNT];
    const char *only_stage; /* a token for one stage; NULL or "": any */
    enum mlo_principal_kind kind;
    bool may_approve; /* of a service account */
};
/* The program itself, with all rights: set-up, workers. */
#define MLO_ACTOR_SYSTEM                                                                                     \
    {                                                                                                        \
        .name = "system", .role = MLO_ADMIN, .via = "system"                                                 \
    }

/* MLO_EFORBIDDEN with the role that is needed when the actor has less, or is bound to another project.
 * project_id 0: something that concerns the whole installation. */
MLO_MUST_USE enum mlo_status mlo_actor_require(const struct mlo_actor *actor, int64_t project_id,
                                               enum mlo_role role, struct mlo_error *err);

/* MLO_EFORBIDDEN for a service account: what people alone do, which is to say who may what. */
MLO_MUST_USE enum mlo_status mlo_actor_require_person(const struct mlo_actor *actor, struct mlo_error *err);

/* MLO_EINVAL ("WHAT needs a reason") where the reason that the actor gave says nothing; NULL: none. */
MLO_MUST_USE enum mlo_status mlo_actor_reason(const char *reason, const char *what, struct mlo_error *err);

/* The role in a stage; that of the project, or more. `stage` is valid. */
enum mlo_role mlo_actor_role(const struct mlo_actor *actor, const char *stage);
/* The same as mlo_actor_require for what moves or judges a stage. */
MLO_MUST_USE enum mlo_status mlo_actor_require_stage(const struct mlo_actor *actor, int64_t project_id,
                                                     const char *stage, enum mlo_role role,
                                                     struct mlo_error *err);
/* The same for a rollback of a stage. */
MLO_MUST_USE enum mlo_status mlo_actor_may_rollback(const struct mlo_actor *actor, int64_t project_id,
                                                    const char *stage, struct mlo_error *err);
/* The same for an approval: a promoter, whose role then counts; a service account only where it was granted.
 */
MLO_MUST_USE enum mlo_status mlo_actor_may_approve(const struct mlo_actor *actor, int64_t project_id,
                                                   const char *stage, struct mlo_error *err);

#define MLO_TOKEN_TEXT_SIZE 64 /* "mlopt_" + 43 characters + NUL, with room */

/* Makes a token (an admin's act) and writes its text, which is shown this once and not kept. `project_id` 0:
 * all. `expires_at_us` (UTC) 0: never. `id` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_token_create(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              const char *name, enum mlo_role role, int64_t project_id,
                                              int64_t expires_at_us, char text[MLO_TOKEN_TEXT_SIZE],
                                              int64_t *id, struct mlo_error *err);
/* The same with all that a token can have. */
struct mlo_token_request {
    const char *name;
    enum mlo_role role;
    int64_t project_id, expires_at_us;
    enum mlo_right rollback;
    int64_t member;          /* of the project: the token speaks for it, with `role` at most; 0: for itself */
    const char *member_name; /* of it, for the audit log */
    const char *stage; /* the only one that it moves or judges, with `role`; elsewhere it reads. NULL: any */
};
MLO_MUST_USE enum mlo_status mlo_token_make(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                            const struct mlo_token_request *request,
                                            char text[MLO_TOKEN_TEXT_SIZE], int64_t *id,
                                            struct mlo_error *err);
/* MLO_ENOTFOUND when there is none; revoking twice is fine. */
MLO_MUST_USE enum mlo_status mlo_token_revoke(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t id, struct mlo_error *err);
/* The same of a member's: MLO_ENOTFOUND for another's. */
MLO_MUST_USE enum mlo_status mlo_token_revoke_of(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                 int64_t member, int64_t id, struct mlo_error *err);

/* A token that was checked. */
struct mlo_principal {
    int64_t token_id, project_id;
    enum mlo_role role;
    enum mlo_role stage_role[MLO_STAGE_COUNT]; /* these four as in mlo_actor */
    enum mlo_principal_kind kind;
    bool may_approve;
    char only_stage[16];
    enum mlo_right rollback;
    char name[240]; /* the token's, a person's, or "service:PROJECT/NAME" */
};
/* The most that it may do in any stage. */
enum mlo_role mlo_principal_most(const struct mlo_principal *who);

/* MLO_EAUTH when the text is no living token: unknown, malformed, expired or revoked (the message does not
 * tell which of unknown and revoked it was). Notes the use, at most once a minute. */
MLO_MUST_USE enum mlo_status mlo_token_check(struct mlo_db_conn *conn, const char *text,
                                             struct mlo_principal *out, struct mlo_error *err);
/* Array of {id, prefix, name, role, read_only, may_rollback (null: as the role says), project, member (null:
 * none), kind, stage (null: any), created_at, created_by, expires_at, revoked_at, last_used_at}, newest
 * first. project_id 0: all. `role` is the most that it has outside of stages; `read_only`: it was made a
 * viewer's, whatever its member may. */
MLO_MUST_USE enum mlo_status mlo_token_list(struct mlo_db_conn *conn, int64_t project_id, json_t **out,
                                            struct mlo_error *err);
/* The same of a member. */
MLO_MUST_USE enum mlo_status mlo_token_list_of(struct mlo_db_conn *conn, int64_t member, json_t **out,
                                               struct mlo_error *err);

#endif
