/* Who does something: roles, actors, tokens. Every mutation takes an actor and writes it to the audit log. */
#ifndef MLO_REGISTRY_ACTOR_H
#define MLO_REGISTRY_ACTOR_H

#include "registry/db.h"

/* Each includes those before it. */
enum mlo_role { MLO_VIEWER, MLO_SUBMITTER, MLO_PROMOTER, MLO_APPROVER, MLO_ADMIN, MLO_ROLE_COUNT };
const char *mlo_role_name(enum mlo_role role);
bool mlo_role_parse(const char *text, enum mlo_role *out);

/* Rolling back is a right of its own: as the role says (a promoter may), or granted to the token, or
 * withheld. */
enum mlo_right { MLO_RIGHT_BY_ROLE, MLO_RIGHT_GRANTED, MLO_RIGHT_WITHHELD };

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

/* The same for a rollback. */
MLO_MUST_USE enum mlo_status mlo_actor_may_rollback(const struct mlo_actor *actor, int64_t project_id,
                                                    struct mlo_error *err);

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
};
MLO_MUST_USE enum mlo_status mlo_token_make(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                            const struct mlo_token_request *request,
                                            char text[MLO_TOKEN_TEXT_SIZE], int64_t *id,
                                            struct mlo_error *err);
/* MLO_ENOTFOUND when there is none; revoking twice is fine. */
MLO_MUST_USE enum mlo_status mlo_token_revoke(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t id, struct mlo_error *err);

/* A token that was checked. */
struct mlo_principal {
    int64_t token_id, project_id;
    enum mlo_role role;
    enum mlo_right rollback;
    char name[204];
};
/* MLO_EAUTH when the text is no living token: unknown, malformed, expired or revoked (the message does not
 * tell which of unknown and revoked it was). Notes the use, at most once a minute. */
MLO_MUST_USE enum mlo_status mlo_token_check(struct mlo_db_conn *conn, const char *text,
                                             struct mlo_principal *out, struct mlo_error *err);
/* Array of {id, prefix, name, role, may_rollback (null: as the role says), project, created_at, created_by,
 * expires_at, revoked_at, last_used_at}, newest first. project_id 0: all. */
MLO_MUST_USE enum mlo_status mlo_token_list(struct mlo_db_conn *conn, int64_t project_id, json_t **out,
                                            struct mlo_error *err);

#endif
