/* Private to registry/blob*.c: the vtable that a backend fills. */
#ifndef MLO_REGISTRY_BLOB_IMPL_H
#define MLO_REGISTRY_BLOB_IMPL_H

#include "registry/blob_direct.h"
#include "registry/blob_intake_impl.h"
#include "registry/blob_upkeep.h"

struct mlo_blob_backend {
    const char *scheme; /* of the URL: "file" */
    /* `place` is what follows "scheme:". Sets store->state. */
    enum mlo_status (*open)(struct mlo_blob_store *store, const char *place, struct mlo_error *err);
    void (*close)(struct mlo_blob_store *store);
    /* Sets writer->state; and `passes`, where it may. */
    enum mlo_status (*begin)(struct mlo_blob_writer *writer, struct mlo_error *err);
    /* By one thread at a time, which may be another one than the other calls'. */
    enum mlo_status (*write)(struct mlo_blob_writer *writer, const void *bytes, size_t size,
                             struct mlo_error *err);
    /* Durable and visible as `digest`, or nothing: MLO_EDIGEST of what passes and has another one. */
    enum mlo_status (*finish)(struct mlo_blob_writer *writer, const struct mlo_digest *digest,
                              struct mlo_error *err);
    /* Drops what was not finished, frees writer->state. */
    void (*end)(struct mlo_blob_writer *writer);
    /* Sessions. Fills session->place. */
    enum mlo_status (*session_begin)(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                     struct mlo_error *err);
    /* Sets piece->state; what lies behind session->size_bytes is nobody's. */
    enum mlo_status (*piece_open)(struct mlo_blob_piece *piece, struct mlo_error *err);
    /* As write. */
    enum mlo_status (*piece_write)(struct mlo_blob_piece *piece, const void *bytes, size_t size,
                                   struct mlo_error *err);
    enum mlo_status (*piece_commit)(struct mlo_blob_piece *piece, struct mlo_error *err);
    /* Frees piece->state. */
    void (*piece_end)(struct mlo_blob_piece *piece);
    /* mlo_blob_session_check, of any kind of session */
    enum mlo_status (*session_check)(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                     struct mlo_error *err);
    enum mlo_status (*session_publish)(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                       const struct mlo_digest *digest, struct mlo_error *err);
    enum mlo_status (*session_drop)(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                    struct mlo_error *err);
    /* Direct uploads: as in blob_direct.h. `info` may get NULL. All NULL: there are none. */
    enum mlo_status (*direct_begin)(struct mlo_blob_store *store, uint64_t size_bytes,
                                    const struct mlo_digest *digest, struct mlo_blob_session *session,
                                    struct mlo_error *err);
    bool (*direct_info)(const struct mlo_blob_session *session, struct mlo_blob_direct *out);
    enum mlo_status (*direct_arrived)(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                      bool *arrived, struct mlo_error *err);
    enum mlo_status (*direct_address)(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                      int number, const char *md5, struct mlo_blob_part_address *out,
                                      struct mlo_error *err);
    enum mlo_status (*direct_verify)(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                     uint32_t budget_ms, bool *done, struct mlo_error *err);
    enum mlo_status (*direct_publish)(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                      const struct mlo_digest *digest, struct mlo_error *err);
    enum mlo_status (*direct_drop)(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                   struct mlo_error *err);
    enum mlo_status (*open_fd)(struct mlo_blob_store *store, const struct mlo_digest *digest, int *fd,
                               uint64_t *size_bytes, struct mlo_error *err);
    /* Without opening it; NULL: open_fd tells. */
    enum mlo_status (*size)(struct mlo_blob_store *store, const struct mlo_digest *digest,
                            uint64_t *size_bytes, struct mlo_error *err);
    /* All bytes, each once and in order, into the sink: how a backend is read that has no files. MLO_ETOOBIG
     * above max_bytes, before the sink sees any. NULL: there are files, and open_fd and path lead to them. */
    enum mlo_status (*fetch)(struct mlo_blob_store *store, const struct mlo_digest *digest,
                             uint64_t max_bytes, mlo_blob_sink_fn *sink, void *arg, struct mlo_error *err);
    /* The store's own file. NULL with fetch. */
    enum mlo_status (*path)(struct mlo_blob_store *store, const struct mlo_digest *digest, char **path,
                            struct mlo_error *err);
    /* Removes the copy that is kept of it here. NULL: none are kept. */
    void (*copy_drop)(struct mlo_blob_store *store, const struct mlo_digest *digest);
    /* mlo_blob_address; NULL: it hands out none. */
    enum mlo_status (*address)(struct mlo_blob_store *store, const struct mlo_digest *digest,
                               const char *file_name, char **url, struct mlo_error *err);
    /* mlo_blob_store_ping */
    enum mlo_status (*ping)(struct mlo_blob_store *store, uint32_t budget_ms, struct mlo_error *err);
    /* Whether there is no blob. */
    enum mlo_status (*empty)(struct mlo_blob_store *store, bool *empty, struct mlo_error *err);
    /* Upkeep: as in blob_upkeep.h; `name` of put_aside is "<64 hex digits>.<microseconds>". */
    enum mlo_status (*list)(struct mlo_blob_store *store, unsigned shard, mlo_blob_entry_fn *fn, void *arg,
                            struct mlo_error *err);
    enum mlo_status (*remove)(struct mlo_blob_store *store, const struct mlo_digest *digest,
                              struct mlo_error *err);
    enum mlo_status (*put_aside)(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                 const char *name, struct mlo_error *err);
    enum mlo_status (*leftovers)(struct mlo_blob_store *store, mlo_blob_leftover_fn *fn, void *arg,
                                 struct mlo_error *err);
    /* NULL: the walk tells all. */
    enum mlo_status (*leftover_look)(struct mlo_blob_store *store, struct mlo_blob_leftover *left,
                                     struct mlo_error *err);
    enum mlo_status (*leftover_drop)(struct mlo_blob_store *store, const struct mlo_blob_leftover *left,
                                     bool *removed, struct mlo_error *err);
};

struct mlo_blob_store {
    const struct mlo_blob_backend *backend;
    void *state;
    bool keeps_copies; /* open_fd may give a copy that was checked long ago */
};

struct mlo_blob_writer {
    struct mlo_blob_store *store;
    struct mlo_blob_intake in;
    bool spent; /* committed or failed */
    bool expects;
    struct mlo_digest expected; /* when it expects */
    uint64_t expected_size;     /* 0: not known */
    bool may_pass;              /* it expects, and the caller can send all bytes again */
    bool passes;                /* they go on at once and are checked there: none is hashed here */
    void *state;
};

struct mlo_blob_piece {
    struct mlo_blob_store *store;
    struct mlo_blob_session *session;
    struct mlo_blob_intake in;
    bool spent; /* committed or failed */
    void *state;
};

/* An empty session with an id. */
enum mlo_status mlo_blob_session_new(struct mlo_blob_session *out, struct mlo_error *err);
/* fetch into a descriptor; the bytes are checked against the digest. */
enum mlo_status mlo_blob_fetch_fd(struct mlo_blob_store *store, const struct mlo_digest *digest, int fd,
                                  struct mlo_error *err);

/* "<64 hex digits>" at the start of a name that ends there, or goes on with `end`. */
bool mlo_blob_name_digest(const char *name, char end, struct mlo_digest *out);

extern const struct mlo_blob_backend mlo_blob_backend_file;
extern const struct mlo_blob_backend mlo_blob_backend_s3;

#endif
