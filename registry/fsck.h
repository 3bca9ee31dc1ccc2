/* The reconciler: rows of blobs against the bytes in the store, both ways, and what is left in the store of
 * uploads that nobody ends. Reads only, unless it is to repair. Safe beside everything: what is seen wrong is
 * looked at again, under the row's lock where it matters; what is young may be somebody's who has not
 * recorded it yet.
 *
 * Problems, by kind:
 *   missing     a row without bytes: restore them from a backup, or upload the file again (`used_by` says
 *               which)
 *   size        a blob of another size than its row says
 *   damaged     other bytes than the digest says
 *   unreadable  the disk or the server refuses to give them
 *   orphan      bytes without a row, past the grace
 *   returned    a damaged blob whose right bytes are back
 *   lost        an upload under way whose bytes are gone: its client has to begin again
 *   unfinished, upload, multipart   what writers, uploads in pieces and S3 uploads left, past the grace
 *
 * Repair: damaged bytes are put aside (mlo_blob_quarantine), orphans and leftovers are removed, lost uploads
 * forgotten, returned blobs counted as there again. Nothing is done about missing ones: only their bytes
 * help. */
#ifndef MLO_REGISTRY_FSCK_H
#define MLO_REGISTRY_FSCK_H

#include "registry/gc.h"

struct mlo_fsck_options {
    struct mlo_blob_store *blobs;
    bool bytes; /* read and hash every blob */
    bool repair;
    int64_t grace_s;   /* orphans and leftovers that are younger are fine */
    int64_t budget_ms; /* gives a cursor after so long; 0: goes on to the end */
};
/* An admin of the installation. `cursor`: NULL or "": from the start; else what "next" said. *out is yours:
 * {problems: [{kind, digest or name, size, age_s, detail, used_by, repaired}], blobs, bytes (read),
 * quarantined (put aside, in the store), young (orphans within the grace), backup (bytes were left for one),
 * next: cursor or null}. */
MLO_MUST_USE enum mlo_status mlo_fsck_run(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                          const struct mlo_fsck_options *options, const char *cursor,
                                          json_t **out, struct mlo_error *err);

#endif
