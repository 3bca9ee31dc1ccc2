/* Deleting, bringing back, archiving. What is deleted is not there for anybody, but stays as a tombstone: its
 * row, evidence, statements and lineage, and the deletion with its reason. Its bytes stay until the grace
 * period is over; then gc (gc.h) purges the deletion, and removes the bytes that nothing else refers to. A
 * number of a version is never given again, not even when the model's name is.
 *
 * Refused, with the reasons named: what a stage holds, what a rollback can bring back (a release that was in
 * a stage), what a run that is queued or running works on, what an approval in force covers. */
#ifndef MLO_REGISTRY_DELETION_H
#define MLO_REGISTRY_DELETION_H

#include "registry/models.h"

struct mlo_deletion_request {
    int64_t project_id;
    /* One of: a model (of no version), a version, a variant of a version, a dataset (of no version), a
     * dataset's version. Names are borrowed; numbers 0: not given. */
    const char *model, *dataset;
    int64_t version;
    const char *variant;
    const char *reason; /* needed */
    int64_t grace_s;
    bool dry_run; /* only whether it could be */
};
/* An admin of the project. MLO_ECONFLICT when it is refused; *blockers (may be NULL) are then the reasons, an
 * array of texts, yours. *out (may be NULL), yours: as in mlo_deletion_list; of a dry run {object, kind}. */
MLO_MUST_USE enum mlo_status mlo_delete(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                        const struct mlo_deletion_request *request, json_t **blockers,
                                        json_t **out, struct mlo_error *err);

/* Brings back all that the deletion took, within its grace. MLO_ECONFLICT when it is too late, was done
 * before, or what it belongs to is deleted itself. */
MLO_MUST_USE enum mlo_status mlo_undelete(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                          int64_t project_id, int64_t deletion, const char *reason,
                                          json_t **out, struct mlo_error *err);

/* Newest first: {id, kind, object, actor, via, reason, at, purge_after, audit_seq, undone_at, undone_by,
 * undone_reason, purged_at, state: "deleted", "undone" or "purged"}. */
MLO_MUST_USE enum mlo_status mlo_deletion_list(struct mlo_db_conn *conn, int64_t project_id,
                                               const struct mlo_page *page, json_t **out,
                                               struct mlo_error *err);

/* Archived, a version is kept whole, but is neither `latest`, nor promoted, nor worked on; a rollback may
 * still bring it back. A promoter. MLO_ECONFLICT when a stage holds it. *changed (may be NULL) false: it is
 * so already. */
MLO_MUST_USE enum mlo_status mlo_version_archive(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                                 const struct mlo_version_info *version, bool archived,
                                                 const char *reason, bool *changed, struct mlo_error *err);

#endif
