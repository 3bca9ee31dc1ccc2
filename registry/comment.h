/* What people say of versions and releases: kept as it was said, by whom and when, in the audit log too. */
#ifndef MLO_REGISTRY_COMMENT_H
#define MLO_REGISTRY_COMMENT_H

#include "registry/models.h"

#define MLO_COMMENT_MAX 10000 /* characters */

/* Exactly one of version_id and release. */
struct mlo_comment_on {
    int64_t model_id;
    int64_t version_id; /* 0: on a release */
    int64_t release;    /* its number within the model */
};
/* Needs a submitter. MLO_EINVAL for an empty or overlong text, or one with control characters other than
 * line ends and tabs. *out (yours): {id, text, actor, via, at, audit_seq, version, release|null}. */
MLO_MUST_USE enum mlo_status mlo_comment_add(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                             const struct mlo_comment_on *on, const char *text, json_t **out,
                                             struct mlo_error *err);
/* Newest first, as above; those on a version with those on its releases. */
MLO_MUST_USE enum mlo_status mlo_comment_list(struct mlo_db_conn *conn, const struct mlo_comment_on *on,
                                              const struct mlo_page *page, json_t **out,
                                              struct mlo_error *err);

#endif
