/* Garbage collection: the bytes of blobs that nothing refers to (migrations/0015_deletion.sql says what
 * does), when their grace is over. Three steps, each in small transactions, so that a kill anywhere leaves
 * what the next run goes on with, and several servers may do it at once:
 *
 *   1. deletions whose grace is over are purged: they can not be undone any more;
 *   2. blobs that nothing holds are marked as removed, which is audited with their digests;
 *   3. the bytes of marked blobs are removed, under the lock of the row: who brings the same bytes at that
 *      moment waits, and then sees whether they are there.
 *
 * At the end it looks at blobs that workers reported as damaged: their bytes are put aside, or found to be
 * right, and then they count again. Bytes go only while nobody makes a backup, which needs them (an advisory
 * lock); collectors remove bytes one after the other. Step 2 looks at all rows in order of their digests: a
 * run that ends early says how far it came, and the next goes on there. */
#ifndef MLO_REGISTRY_GC_H
#define MLO_REGISTRY_GC_H

#include "registry/blob_upkeep.h"
#include "registry/models.h"

#define MLO_GRACE_S (7ll * 24 * 3600) /* of what was deleted, and of what nobody refers to */
#define MLO_GRACE_MAX_S (3650ll * 24 * 3600)

struct mlo_gc_options {
    struct mlo_blob_store *blobs;
    int64_t grace_s;   /* of blobs that nobody refers to; that of a deletion was fixed when it was made */
    int64_t budget_ms; /* ends after about so long, with a part of each step done; 0: when it is done, or
                          another collector has had the turn for two minutes */
    bool dry_run;      /* says what steps 1 and 2 would do; only reads, and locks nothing */
    struct mlo_digest behind; /* `next` of the run before; zeros: from the start */
};
struct mlo_gc_result {
    int64_t purged;                 /* deletions */
    int64_t marked, marked_bytes;   /* blobs */
    int64_t removed, removed_bytes; /* whose bytes went, those that an earlier run marked included */
    bool backup;                    /* bytes were left because somebody makes a backup */
    bool more; /* the time was over, or another's turn did not end: run it again, behind `next` */
    struct mlo_digest next;
};
/* An admin of the installation. A dry run counts the deletions only in the run that begins at the start.
 * `items` (may be NULL): array of what was marked, or would be: {digest, size},
 * at most 1,000; yours. */
MLO_MUST_USE enum mlo_status mlo_gc_run(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                        const struct mlo_gc_options *options, struct mlo_gc_result *out,
                                        json_t **items, struct mlo_error *err);

/* Step 3 alone. */
MLO_MUST_USE enum mlo_status mlo_gc_finish(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                           const struct mlo_gc_options *options, struct mlo_gc_result *out,
                                           struct mlo_error *err);

#endif
