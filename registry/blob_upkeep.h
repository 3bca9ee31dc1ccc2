/* What garbage collection and the reconciler (gc.h, fsck.h) do to a blob store: walk, remove, put aside.
 * Nothing here asks whether anybody needs the bytes. */
#ifndef MLO_REGISTRY_BLOB_UPKEEP_H
#define MLO_REGISTRY_BLOB_UPKEEP_H

#include "registry/blob.h"

enum { MLO_BLOB_SHARDS = 256 };

struct mlo_blob_entry {
    struct mlo_digest digest;
    uint64_t size_bytes;
    int64_t modified_us; /* UTC: when the bytes were stored, by the store's clock */
};
/* A failure ends the walk and is returned. */
typedef enum mlo_status mlo_blob_entry_fn(void *arg, const struct mlo_blob_entry *entry,
                                          struct mlo_error *err);
/* Every blob whose digest begins with the byte `shard`, in any order. One that comes or goes meanwhile may be
 * seen or not. */
MLO_MUST_USE enum mlo_status mlo_blob_list(struct mlo_blob_store *store, unsigned shard,
                                           mlo_blob_entry_fn *fn, void *arg, struct mlo_error *err);

/* Removes the bytes; absent ones are fine. The caller holds the row's lock (registry/gc.c). */
MLO_MUST_USE enum mlo_status mlo_blob_remove(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                             struct mlo_error *err);

/* Moves the bytes to quarantine/<digest>.<time>, where nothing reads them; *name (may be NULL) is that name,
 * yours (free). MLO_ENOTFOUND when they are not there. */
MLO_MUST_USE enum mlo_status mlo_blob_put_aside(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                                char **name, struct mlo_error *err);

/* What is in the store beside blobs. */
enum mlo_blob_leftover_kind {
    MLO_LEFTOVER_INCOMING,   /* what a writer had not finished */
    MLO_LEFTOVER_SESSION,    /* of an upload in pieces: `session` is its id */
    MLO_LEFTOVER_MULTIPART,  /* an S3 upload that nobody completed */
    MLO_LEFTOVER_QUARANTINE, /* damaged bytes that were put aside */
    MLO_LEFTOVER_KINDS
};
const char *mlo_blob_leftover_name(enum mlo_blob_leftover_kind kind);

struct mlo_blob_leftover {
    enum mlo_blob_leftover_kind kind;
    const char *name;                       /* within the store; borrowed for the call */
    const char *upload;                     /* of a multipart upload; else NULL */
    char session[MLO_BLOB_SESSION_ID_SIZE]; /* "": of none */
    uint64_t size_bytes;
    int64_t modified_us;
    bool alive; /* its writer works on it now, or a blob may be made of it: it is nobody's to remove */
};
typedef enum mlo_status mlo_blob_leftover_fn(void *arg, const struct mlo_blob_leftover *left,
                                             struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_blob_leftovers(struct mlo_blob_store *store, mlo_blob_leftover_fn *fn,
                                                void *arg, struct mlo_error *err);
/* What the walk does not tell, since it costs questions: of a writer's upload to S3 its age is that of its
 * newest part, and `alive` says whether a blob may be made of it. MLO_ENOTFOUND when it is gone. */
MLO_MUST_USE enum mlo_status mlo_blob_leftover_look(struct mlo_blob_store *store,
                                                    struct mlo_blob_leftover *left, struct mlo_error *err);
/* Removes it, unless a file's writer lives (*removed false). Of an upload to S3 mlo_blob_leftover_look is to
 * be asked before. `removed` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_blob_leftover_drop(struct mlo_blob_store *store,
                                                    const struct mlo_blob_leftover *left, bool *removed,
                                                    struct mlo_error *err);

#endif
