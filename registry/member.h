/* Members of a project: people and service accounts. A member has a role in the project and may have a higher
 * one in a stage alone (a promoter of staging, an approver of production). It acts by its tokens (actor.h),
 * each of which can be for less. A service account is no person: it does not sign in to the pages, it
 * approves only where that was granted, and its name in every log is "service:PROJECT/NAME". */
#ifndef MLO_REGISTRY_MEMBER_H
#define MLO_REGISTRY_MEMBER_H

#include "registry/actor.h"

/* What a member is to be: all of it, what is absent included. */
struct mlo_member_settings {
    enum mlo_principal_kind kind; /* MLO_KIND_PERSON or MLO_KIND_SERVICE; never changes */
    enum mlo_role role;           /* in the project */
    /* In a stage, in the order of mlo_stage_names: MLO_PROMOTER or MLO_APPROVER; MLO_VIEWER: as in the
     * project. */
    enum mlo_role stage_role[MLO_STAGE_COUNT];
    bool may_approve;        /* of a service account alone */
    const char *description; /* NULL: "" */
    const char *reason;      /* for the audit log, or NULL */
    /* What somebody saw who decided this: the member's mark, "" where there was none; MLO_ECONFLICT where
     * that is so no more. NULL: whatever it was. */
    const char *seen;
};

/* A mark of what a member is, of an object of mlo_member_get: another one with any of its settings, and for
 * one that was added again under the name of one before. "" for NULL, and where there is no memory for it. */
void mlo_member_mark(const json_t *member, char out[MLO_DIGEST_TEXT_SIZE]);

/* Adds a member, or changes one (an act of the project's admin); its tokens have the new roles from their
 * next request on. *made: it was not there. *out is as mlo_member_get's. MLO_EINVAL, MLO_ECONFLICT for
 * another kind, or where it is not what was seen. */
MLO_MUST_USE enum mlo_status mlo_member_set(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                            int64_t project_id, const char *name,
                                            const struct mlo_member_settings *settings, bool *made,
                                            json_t **out, struct mlo_error *err);
/* mlo_token_make of a member's token, by who saw the mark `seen` of it: MLO_ECONFLICT where it has another
 * one by now. `token` says all but whose it is: project_id, member and member_name are not
 * read. MLO_ENOTFOUND. */
MLO_MUST_USE enum mlo_status mlo_member_token(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                              int64_t project_id, const char *name, const char *seen,
                                              const struct mlo_token_request *token,
                                              char text[MLO_TOKEN_TEXT_SIZE], struct mlo_error *err);
/* Removes one: its tokens are revoked with it. `seen`: as of mlo_member_token, or NULL: whatever its
 * mark is. MLO_ENOTFOUND, MLO_ECONFLICT. */
MLO_MUST_USE enum mlo_status mlo_member_remove(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                               int64_t project_id, const char *name, const char *seen,
                                               const char *reason, struct mlo_error *err);
/* {name, kind, principal (as logs name it), role, stages: {staging, production} (null: as in the project),
 * approve (null: by its role), description, created_at, created_by, tokens (those that live), last_used_at
 * (null: never)}. */
MLO_MUST_USE enum mlo_status mlo_member_get(struct mlo_db_conn *conn, int64_t project_id, const char *name,
                                            json_t **out, struct mlo_error *err);
/* Array of the same, by name. */
MLO_MUST_USE enum mlo_status mlo_member_list(struct mlo_db_conn *conn, int64_t project_id, json_t **out,
                                             struct mlo_error *err);
/* Its number, for tokens; `principal` (may be NULL) is what logs call it. MLO_ENOTFOUND. */
MLO_MUST_USE enum mlo_status mlo_member_find(struct mlo_db_conn *conn, int64_t project_id, const char *name,
                                             int64_t *id, char principal[240], struct mlo_error *err);

#endif
