/* The blob store: bytes named by their SHA-256. A vtable stands behind it; the URL's scheme picks the backend
 * ("file:/path", "s3:bucket/prefix?endpoint=…": docs/storage.md). The store knows no projects: who may see a
 * blob is in the database (mlo_blob_record, mlo_blob_linked). Order of writes: blob first, row second. Safe
 * from several threads; a writer belongs to one. */
#ifndef MLO_REGISTRY_BLOB_H
#define MLO_REGISTRY_BLOB_H

#include "base/base.h"

struct mlo_blob_store;
struct mlo_blob_writer;

/* Opens (and makes, when absent) the store. An unknown scheme is MLO_EINVAL. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_blob_store_open(const char *url, struct mlo_blob_store **out,
                                                 struct mlo_error *err);
void mlo_blob_store_close(struct mlo_blob_store *store);

/* Streaming write, in constant memory; the digest is computed on the way. */
MLO_MUST_USE enum mlo_status mlo_blob_writer_open(struct mlo_blob_store *store, struct mlo_blob_writer **out,
                                                  struct mlo_error *err);
/* Told before the first byte what will come, a store of objects writes it to its place at once, and in parts
 * of a size that fits (size_bytes 0: not known). Other bytes are MLO_EDIGEST when it is committed. */
MLO_MUST_USE enum mlo_status mlo_blob_writer_open_expecting(struct mlo_blob_store *store,
                                                            const struct mlo_digest *expected,
                                                            uint64_t size_bytes, struct mlo_blob_writer **out,
                                                            struct mlo_error *err);
/* The same for a caller who can send all of it again, as one PUT of a client: a store of objects passes a
 * large blob on as it comes, in one request that its server checks against the digest; what fails midway is
 * not tried again here. */
MLO_MUST_USE enum mlo_status mlo_blob_writer_open_passing(struct mlo_blob_store *store,
                                                          const struct mlo_digest *expected,
                                                          uint64_t size_bytes, struct mlo_blob_writer **out,
                                                          struct mlo_error *err);
/* MLO_ENOSPC when the disk is full. A large blob's bytes are written behind the caller: a failure may be that
 * of earlier ones, or come with the commit. After a failure only mlo_blob_writer_free is allowed. */
MLO_MUST_USE enum mlo_status mlo_blob_writer_write(struct mlo_blob_writer *writer, const void *bytes,
                                                   size_t size, struct mlo_error *err);
/* Bytes so far. */
uint64_t mlo_blob_writer_size(const struct mlo_blob_writer *writer);
/* The digest of the bytes so far, when the store has them all: it may wait, as a write may. Of a writer that
 * is spent, or passes: not to be asked. */
void mlo_blob_writer_digest(struct mlo_blob_writer *writer, struct mlo_digest *out);
/* Makes it durable and visible under its digest, or says why some of it could not be written. With
 * `expected`, other bytes are MLO_EDIGEST and nothing is kept. `digest` and `size_bytes` may be NULL. The
 * writer is then spent: free it. */
MLO_MUST_USE enum mlo_status mlo_blob_writer_commit(struct mlo_blob_writer *writer,
                                                    const struct mlo_digest *expected,
                                                    struct mlo_digest *digest, uint64_t *size_bytes,
                                                    struct mlo_error *err);
/* Frees; what was not committed leaves nothing behind. NULL is allowed. */
void mlo_blob_writer_free(struct mlo_blob_writer *writer);

/* The whole of a file (of an open one: from its start), or of a block of memory. `size_bytes` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_blob_put_fd(struct mlo_blob_store *store, int fd, struct mlo_digest *digest,
                                             uint64_t *size_bytes, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_blob_put_file(struct mlo_blob_store *store, const char *path,
                                               struct mlo_digest *digest, uint64_t *size_bytes,
                                               struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_blob_put_bytes(struct mlo_blob_store *store, const void *bytes, size_t size,
                                                struct mlo_digest *digest, struct mlo_error *err);

/* --- in pieces, over hours, through any server on the same store ------------------------------- */

#define MLO_BLOB_SESSION_ID_SIZE 33

/* Where a session stands. The caller keeps it (registry/upload.h, in the database) and hands it back; only
 * what it says counts: bytes beyond size_bytes, of a server that was killed, are written over. */
struct mlo_blob_session {
    char id[MLO_BLOB_SESSION_ID_SIZE]; /* 32 random hex digits */
    char place[384];                   /* the backend's own words */
    uint64_t size_bytes;
    struct mlo_hash_state hash; /* of these bytes */
};

/* A new, empty session. */
MLO_MUST_USE enum mlo_status mlo_blob_session_begin(struct mlo_blob_store *store,
                                                    struct mlo_blob_session *out, struct mlo_error *err);

struct mlo_blob_piece;
/* Begins to append behind session->size_bytes. MLO_ECONFLICT while somebody else does, MLO_ENOTFOUND when the
 * session's bytes are gone. `session` is borrowed until the piece is closed. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_blob_piece_open(struct mlo_blob_store *store,
                                                 struct mlo_blob_session *session,
                                                 struct mlo_blob_piece **out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_blob_piece_write(struct mlo_blob_piece *piece, const void *bytes,
                                                  size_t size, struct mlo_error *err);
/* Makes what was written durable, and counts it in the session: keep the session before anything else. */
MLO_MUST_USE enum mlo_status mlo_blob_piece_commit(struct mlo_blob_piece *piece, struct mlo_error *err);
/* Ends it and lets others append; what was not committed does not count. NULL is allowed. */
void mlo_blob_piece_free(struct mlo_blob_piece *piece);

/* The digest of the session's bytes so far; of a direct one that is whole, that which they will have. */
MLO_MUST_USE enum mlo_status mlo_blob_session_digest(struct mlo_blob_store *store,
                                                     const struct mlo_blob_session *session,
                                                     struct mlo_digest *out, struct mlo_error *err);
/* Makes the session's bytes visible under their digest, durably; the session is gone then. Again, after it
 * was done: MLO_OK as well. MLO_ENOTFOUND when neither is there. */
MLO_MUST_USE enum mlo_status mlo_blob_session_publish(struct mlo_blob_store *store,
                                                      const struct mlo_blob_session *session,
                                                      struct mlo_error *err);
/* Whether the store has the bytes that the session counts: MLO_ENOTFOUND when they are gone, from a published
 * one as well, MLO_EDIGEST when they are others. Their hash is not computed. */
MLO_MUST_USE enum mlo_status mlo_blob_session_check(struct mlo_blob_store *store,
                                                    const struct mlo_blob_session *session,
                                                    struct mlo_error *err);
/* Forgets its bytes; one that is gone is fine. */
MLO_MUST_USE enum mlo_status mlo_blob_session_drop(struct mlo_blob_store *store,
                                                   const struct mlo_blob_session *session,
                                                   struct mlo_error *err);

/* --- reading ----------------------------------------------------------------------------------- */

/* MLO_ENOTFOUND when it is not there. `size_bytes` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_blob_size(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                           uint64_t *size_bytes, struct mlo_error *err);
bool mlo_blob_exists(struct mlo_blob_store *store, const struct mlo_digest *digest);
/* A descriptor open for reading (yours: close), positioned at the start, and the size (may be NULL): the
 * store's own file, or a copy without a name that was checked against the digest (MLO_EDIGEST). */
MLO_MUST_USE enum mlo_status mlo_blob_open_fd(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                              int *fd, uint64_t *size_bytes, struct mlo_error *err);
/* Whether what mlo_blob_open_fd gives was checked: false for a store's own file, and for a copy that was kept
 * from before, which whoever sends it hashes on the way (mlo_blob_copy_drop when it is wrong). */
bool mlo_blob_open_checked(const struct mlo_blob_store *store);
/* Forgets the copy that the store may keep of a blob that lives elsewhere: it was found damaged. The blob
 * itself stays. */
void mlo_blob_copy_drop(struct mlo_blob_store *store, const struct mlo_digest *digest);
/* Reads all of a descriptor, from its start to its end, and compares (MLO_EDIGEST). */
MLO_MUST_USE enum mlo_status mlo_blob_check_fd(int fd, const struct mlo_digest *digest,
                                               struct mlo_error *err);
/* A path to read the bytes from: the store's own file where it has one, else a copy in `scratch_dir`. The
 * bytes are checked against the digest when `verify` is set (MLO_EDIGEST). *path is yours (free); never write
 * to it. */
MLO_MUST_USE enum mlo_status mlo_blob_path(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                           const char *scratch_dir, bool verify, char **path,
                                           struct mlo_error *err);
/* Appends the bytes, checked against the digest; MLO_ETOOBIG above max_bytes. */
MLO_MUST_USE enum mlo_status mlo_blob_read(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                           size_t max_bytes, struct mlo_buf *out, struct mlo_error *err);
/* An address from which anybody who knows it reads the blob, and nothing else, for MLO_BLOB_ADDRESS_S: what
 * the store's own server sends from there nobody has checked. `file_name` (or NULL) is what a browser saves
 * it as. MLO_EUNSUPPORTED where the store hands out none: files, a bucket that is not told to, a customer's
 * encryption key. MLO_ENOTFOUND when it is not there. *url is yours (free). */
enum { MLO_BLOB_ADDRESS_S = 300 };
MLO_MUST_USE enum mlo_status mlo_blob_address(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                              const char *file_name, char **url, struct mlo_error *err);
/* Reads all of it and compares with the digest (MLO_EDIGEST). `size_bytes` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_blob_check(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                            uint64_t *size_bytes, struct mlo_error *err);
/* Copies it to another store, as a stream. Bytes that do not hash to the digest leave nothing there.
 * *damaged: the failure is that `from` has it not, or has other bytes. */
MLO_MUST_USE enum mlo_status mlo_blob_copy(struct mlo_blob_store *from, struct mlo_blob_store *to,
                                           const struct mlo_digest *digest, uint64_t size_bytes,
                                           bool *damaged, struct mlo_error *err);
/* Whether it answers now, and would take a blob: folders that can be written, a bucket that can be listed
 * within budget_ms. Says nothing of single blobs. */
MLO_MUST_USE enum mlo_status mlo_blob_store_ping(struct mlo_blob_store *store, uint32_t budget_ms,
                                                 struct mlo_error *err);
/* Whether the store holds no blob at all. */
MLO_MUST_USE enum mlo_status mlo_blob_store_empty(struct mlo_blob_store *store, bool *empty,
                                                  struct mlo_error *err);

/* --- who may remove bytes ------------------------------------------------------------------------ */

/* PostgreSQL's advisory lock that a backup holds shared, in a session, from before its snapshot until the
 * last blob is copied. Whoever removes bytes of blobs holds it exclusively while it does; rows can go at any
 * time. */
#define MLO_BLOB_HOLD_KEY "7021734"
/* Held exclusively, and taken before that one, by who removes bytes: it tells collectors from a backup. */
#define MLO_BLOB_COLLECTOR_KEY "7021735"

#endif
