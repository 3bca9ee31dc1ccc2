/* Private to registry/blob_s3*.c. <prefix>uploads/<id>… are uploads in pieces. Keys: <prefix>sha256/ab/cd/<64
 * hex digits> are blobs; <prefix>incoming/<random> is what is written before its digest is known. */
#ifndef MLO_REGISTRY_BLOB_S3_IMPL_H
#define MLO_REGISTRY_BLOB_S3_IMPL_H

#include <stdatomic.h>

#include "registry/blob_impl.h"
#include "registry/s3_client.h"

enum {
    MLO_BLOB_S3_PART = 8 << 20,   /* bytes of a part, unless the blob is too large for 10,000 such */
    MLO_BLOB_S3_PARALLEL = 3,     /* parts on their way at a time, of one blob */
    MLO_BLOB_S3_WRITER = 32 << 20 /* memory of one writer, as long as two parts fit */
};
#define MLO_BLOB_S3_MEMORY (256ull << 20) /* of all writers: beyond it each has one part only */

struct mlo_blob_s3 {
    struct mlo_s3 *s3;
    struct mlo_s3 *outside; /* the same bucket by the address that clients reach; NULL: they do not */
    bool direct;            /* and they may write there what the server hands out addresses for */
    bool direct_parts;      /* in parts always */
    char *prefix;           /* "" or ends with a slash */
    char *scratch;          /* where an open blob's bytes are */
    char *cache;            /* or NULL: a folder that keeps read blobs */
    uint64_t cache_bytes;
    atomic_ullong memory;        /* of writers' parts, now */
    bool streams;                /* blobs go on as they come, where the S3 server checks them */
    atomic_int checks;           /* does it? 0: not asked yet, 1: yes, -1: no */
    atomic_int checks_presigned; /* the same of what clients write */
};

/* The key of a blob, or of something else by its name ("incoming/…"). Yours (free); NULL: out of memory. */
char *mlo_blob_s3_key(const struct mlo_blob_s3 *s, const struct mlo_digest *digest);
char *mlo_blob_s3_name(const struct mlo_blob_s3 *s, const char *folder, const char *name);
/* "incoming/" and a random name. */
char *mlo_blob_s3_incoming(const struct mlo_blob_s3 *s);

enum mlo_status mlo_blob_s3_begin(struct mlo_blob_writer *writer, struct mlo_error *err);
enum mlo_status mlo_blob_s3_write(struct mlo_blob_writer *writer, const void *bytes, size_t size,
                                  struct mlo_error *err);
enum mlo_status mlo_blob_s3_finish(struct mlo_blob_writer *writer, const struct mlo_digest *digest,
                                   struct mlo_error *err);
void mlo_blob_s3_end(struct mlo_blob_writer *writer);

/* Gives the object `from` its blob's name, and removes it. */
enum mlo_status mlo_blob_s3_publish(struct mlo_blob_s3 *s, const char *from, const struct mlo_digest *digest,
                                    struct mlo_error *err);
/* blob_s3_copy.c: the object `from`, as mlo_s3_head said of it, under another name as well. digest: of its
 * bytes, or NULL: they are damaged. */
enum mlo_status mlo_blob_s3_copy(struct mlo_blob_s3 *s, const char *from, const struct mlo_s3_object *object,
                                 const char *to, const struct mlo_digest *digest, struct mlo_error *err);

/* blob_s3_address.c */
enum mlo_status mlo_blob_s3_address(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                    const char *file_name, char **url, struct mlo_error *err);
/* Sets s->outside as the setting `redirect` says ("no", "yes", or an endpoint), and s->direct… as `direct`
 * does ("no", "yes", "parts"); NULL is "no". */
enum mlo_status mlo_blob_s3_open_outside(struct mlo_blob_s3 *s, const struct mlo_s3_options *inside,
                                         const char *redirect, const char *direct, struct mlo_error *err);

/* blob_s3_direct.c */
enum mlo_status mlo_blob_s3_direct_begin(struct mlo_blob_store *store, uint64_t size_bytes,
                                         const struct mlo_digest *digest, struct mlo_blob_session *session,
                                         struct mlo_error *err);
bool mlo_blob_s3_direct_info(const struct mlo_blob_session *session, struct mlo_blob_direct *out);
/* Whether the server has the upload of its parts. */
enum mlo_status mlo_blob_s3_direct_check(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                         struct mlo_error *err);
enum mlo_status mlo_blob_s3_direct_arrived(struct mlo_blob_store *store,
                                           const struct mlo_blob_session *session, bool *arrived,
                                           struct mlo_error *err);
enum mlo_status mlo_blob_s3_direct_address(struct mlo_blob_store *store,
                                           const struct mlo_blob_session *session, int number,
                                           const char *md5, struct mlo_blob_part_address *out,
                                           struct mlo_error *err);
enum mlo_status mlo_blob_s3_direct_verify(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                          uint32_t budget_ms, bool *done, struct mlo_error *err);
enum mlo_status mlo_blob_s3_direct_publish(struct mlo_blob_store *store,
                                           const struct mlo_blob_session *session,
                                           const struct mlo_digest *digest, struct mlo_error *err);
enum mlo_status mlo_blob_s3_direct_drop(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                        struct mlo_error *err);

/* blob_s3_session.c */
enum mlo_status mlo_blob_s3_session_begin(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                          struct mlo_error *err);
enum mlo_status mlo_blob_s3_piece_open(struct mlo_blob_piece *piece, struct mlo_error *err);
enum mlo_status mlo_blob_s3_piece_write(struct mlo_blob_piece *piece, const void *bytes, size_t size,
                                        struct mlo_error *err);
enum mlo_status mlo_blob_s3_piece_commit(struct mlo_blob_piece *piece, struct mlo_error *err);
void mlo_blob_s3_piece_end(struct mlo_blob_piece *piece);
enum mlo_status mlo_blob_s3_session_check(struct mlo_blob_store *store,
                                          const struct mlo_blob_session *session, struct mlo_error *err);
enum mlo_status mlo_blob_s3_session_publish(struct mlo_blob_store *store,
                                            const struct mlo_blob_session *session,
                                            const struct mlo_digest *digest, struct mlo_error *err);
enum mlo_status mlo_blob_s3_session_drop(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                         struct mlo_error *err);

/* blob_s3_upkeep.c */
enum mlo_status mlo_blob_s3_list(struct mlo_blob_store *store, unsigned shard, mlo_blob_entry_fn *fn,
                                 void *arg, struct mlo_error *err);
enum mlo_status mlo_blob_s3_remove(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                   struct mlo_error *err);
enum mlo_status mlo_blob_s3_put_aside(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                      const char *name, struct mlo_error *err);
enum mlo_status mlo_blob_s3_leftovers(struct mlo_blob_store *store, mlo_blob_leftover_fn *fn, void *arg,
                                      struct mlo_error *err);
enum mlo_status mlo_blob_s3_leftover_look(struct mlo_blob_store *store, struct mlo_blob_leftover *left,
                                          struct mlo_error *err);
enum mlo_status mlo_blob_s3_leftover_drop(struct mlo_blob_store *store, const struct mlo_blob_leftover *left,
                                          bool *removed, struct mlo_error *err);

/* blob_s3_pass.c: a blob of a known digest and size as one request, sent on as it comes, in memory of one
 * block. Used by one thread at a time. */
struct mlo_blob_s3_pass;
/* *out is NULL where that is not for this blob or this S3 server. *out is yours; key is copied. */
enum mlo_status mlo_blob_s3_pass_new(struct mlo_blob_s3 *s, const char *key, const struct mlo_digest *digest,
                                     uint64_t size_bytes, struct mlo_blob_s3_pass **out,
                                     struct mlo_error *err);
enum mlo_status mlo_blob_s3_pass_write(struct mlo_blob_s3_pass *p, const void *bytes, size_t size,
                                       struct mlo_error *err);
/* Only now the server gets the last of them, and makes the object. MLO_EDIGEST: they are others. */
enum mlo_status mlo_blob_s3_pass_finish(struct mlo_blob_s3_pass *p, struct mlo_error *err);
void mlo_blob_s3_pass_free(struct mlo_blob_s3_pass *p); /* NULL is fine */

/* blob_s3_parts.c: a multipart upload of one key by threads, in bounded memory. Used by one thread. */
struct mlo_blob_s3_parts;
/* The upload goes on behind `count` parts that are there (copied), or is begun when its first part is full
 * (upload NULL). size_bytes: of all that will come, 0: not known. *out is yours; key is copied. */
enum mlo_status mlo_blob_s3_parts_new(struct mlo_blob_s3 *s, const char *key, const char *upload,
                                      const struct mlo_s3_part *parts, size_t count, uint64_t size_bytes,
                                      struct mlo_blob_s3_parts **out, struct mlo_error *err);
enum mlo_status mlo_blob_s3_parts_write(struct mlo_blob_s3_parts *p, const void *bytes, size_t size,
                                        struct mlo_error *err);
/* What was written and is in no part yet: borrowed. */
const char *mlo_blob_s3_parts_rest(const struct mlo_blob_s3_parts *p, size_t *size);
/* Waits until all full parts are stored. Needs an upload. */
enum mlo_status mlo_blob_s3_parts_wait(struct mlo_blob_s3_parts *p, struct mlo_error *err);
/* The parts that are stored, after waiting: borrowed. */
const struct mlo_s3_part *mlo_blob_s3_parts_stored(const struct mlo_blob_s3_parts *p, size_t *count);
/* The upload's id; NULL while everything fits in one part. */
const char *mlo_blob_s3_parts_upload(const struct mlo_blob_s3_parts *p);
/* The rest as the last part, waits, makes the object. Needs an upload. */
enum mlo_status mlo_blob_s3_parts_complete(struct mlo_blob_s3_parts *p, struct mlo_error *err);
/* Ends the threads; `abort`: and the upload, unless it was completed or may have been. NULL is fine. */
void mlo_blob_s3_parts_free(struct mlo_blob_s3_parts *p, bool abort);

#endif
