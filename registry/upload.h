/* Uploads in pieces: a session that survives the connection, the client and the server. What a session holds
 * belongs to its project alone, and becomes a blob of it when it is finished. */
#ifndef MLO_REGISTRY_UPLOAD_H
#define MLO_REGISTRY_UPLOAD_H

#include "registry/blob_direct.h"
#include "registry/models.h"

#define MLO_UPLOAD_BYTES_MAX ((uint64_t)1 << 40)
#define MLO_UPLOAD_EXPIRES_S (7 * 24 * 3600) /* after the last piece */

struct mlo_upload {
    struct mlo_blob_session session; /* id, how many bytes there are, their hash */
    int64_t project_id;
    char expires_at[32];
};

/* A new one; needs a submitter. A few expired ones are removed with their bytes. */
MLO_MUST_USE enum mlo_status mlo_upload_begin(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                              const struct mlo_actor *actor, int64_t project_id,
                                              struct mlo_upload *out, struct mlo_error *err);
/* The same for so many bytes that go straight to the bucket (blob_direct.h; digest: theirs, or NULL);
 * MLO_EUNSUPPORTED where the store has no such uploads. */
MLO_MUST_USE enum mlo_status mlo_upload_begin_direct(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                                     const struct mlo_actor *actor, int64_t project_id,
                                                     uint64_t size_bytes, const struct mlo_digest *digest,
                                                     struct mlo_upload *out, struct mlo_error *err);
/* MLO_ENOTFOUND when the project has none of that id (any more). */
MLO_MUST_USE enum mlo_status mlo_upload_find(struct mlo_db_conn *conn, int64_t project_id, const char *id,
                                             struct mlo_upload *out, struct mlo_error *err);
/* Opens it to append to, as it was found. MLO_ECONFLICT when it does not stand there any more, or another
 * request appends to it (what that one was told is kept must not be written over), or finishes it;
 * MLO_ENOTFOUND when the store has lost its bytes. *piece: mlo_blob_piece_free. */
MLO_MUST_USE enum mlo_status mlo_upload_piece_open(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                                   struct mlo_upload *upload, struct mlo_blob_piece **piece,
                                                   struct mlo_error *err);
/* Writes down where it stands after mlo_blob_piece_commit; `from_bytes` is where it stood before.
 * MLO_ECONFLICT when it did not stand there: what was appended does not count then. */
MLO_MUST_USE enum mlo_status mlo_upload_keep(struct mlo_db_conn *conn, struct mlo_upload *upload,
                                             uint64_t from_bytes, struct mlo_error *err);
/* The end of an upload, bytes first, row second: each step can be repeated after a crash, by any server, and
 * by several at once. Publishing makes its bytes visible under `expected`; it asks no database and may take
 * long (a bucket copies them). MLO_EDIGEST when they hash to something else: the upload stays, to be asked or
 * dropped. Recording makes them a blob of the project and ends the upload. Both need a submitter. */
MLO_MUST_USE enum mlo_status mlo_upload_publish(struct mlo_blob_store *store, const struct mlo_actor *actor,
                                                const struct mlo_upload *upload,
                                                const struct mlo_digest *expected, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_upload_record(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                               const struct mlo_actor *actor, const struct mlo_upload *upload,
                                               const struct mlo_digest *digest, struct mlo_error *err);
/* One after the other. */
MLO_MUST_USE enum mlo_status mlo_upload_finish(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                               const struct mlo_actor *actor, const struct mlo_upload *upload,
                                               const struct mlo_digest *expected, struct mlo_error *err);
/* Uploads under way whose bytes the store has lost: they can never be finished. Safe beside those who finish
 * one. */
typedef enum mlo_status mlo_upload_lost_fn(void *arg, const struct mlo_upload *upload, struct mlo_error *err);
struct mlo_upload_lost_options {
    struct mlo_blob_store *store;
    bool forget;            /* removes them */
    uint64_t ends_ns;       /* of mlo_clock_ns; at least one is looked at. 0: goes on to the end */
    mlo_upload_lost_fn *fn; /* is told; a failure ends it */
    void *arg;
};
/* Those behind `at` ("": from the start), which becomes the id of the last one looked at. *done: there are no
 * more. */
MLO_MUST_USE enum mlo_status mlo_upload_lost(struct mlo_db_conn *conn,
                                             const struct mlo_upload_lost_options *options,
                                             char at[MLO_BLOB_SESSION_ID_SIZE], bool *done,
                                             struct mlo_error *err);
/* Removes a few that have expired, with their bytes, of pieces and of parts in a bucket; *removed (or NULL):
 * how many. Whoever begins an upload does it, and garbage collection until there are none. */
MLO_MUST_USE enum mlo_status mlo_upload_sweep(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                              int *removed, struct mlo_error *err);
/* Forgets it and its bytes; needs a submitter. */
MLO_MUST_USE enum mlo_status mlo_upload_drop(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                             const struct mlo_actor *actor, const struct mlo_upload *upload,
                                             struct mlo_error *err);

#endif
