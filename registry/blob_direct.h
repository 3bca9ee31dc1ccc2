/* Uploads whose bytes go past us, straight into the store's bucket (docs/storage.md says why it is like
 * this): in parts that the store's own server checks against their MD5, and that are read back once and
 * hashed when all of them are there; or whole, where the digest is told ahead and that server makes an object
 * of bytes that have it, or none. Either way they lie where no blob is looked for, and are copied, on the
 * server, to the place of the digest that they really have. Such a session is begun, found, kept and dropped
 * as any other (blob.h, upload.h); its size_bytes is what was verified. */
#ifndef MLO_REGISTRY_BLOB_DIRECT_H
#define MLO_REGISTRY_BLOB_DIRECT_H

#include "registry/blob.h"

enum { MLO_BLOB_PART_ADDRESS_S = 900, MLO_BLOB_PART_HEADERS = 4 };

struct mlo_blob_direct {
    uint64_t size_bytes;      /* of the whole */
    uint64_t part_size_bytes; /* of each part but the last */
    int parts;                /* numbered 1 … */
    bool whole;               /* one part, which the store's server compares with: */
    struct mlo_digest digest;
};

/* A new session for so many bytes; `digest` is the one that they will have, or NULL: it is told at the end.
 * MLO_EUNSUPPORTED where the store lets nobody write past us. */
MLO_MUST_USE enum mlo_status mlo_blob_direct_begin(struct mlo_blob_store *store, uint64_t size_bytes,
                                                   const struct mlo_digest *digest,
                                                   struct mlo_blob_session *out, struct mlo_error *err);
/* Whether the session is of this kind, and what it is for. */
bool mlo_blob_direct_info(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                          struct mlo_blob_direct *out);
/* Bytes of part `number`. */
uint64_t mlo_blob_direct_part_size(const struct mlo_blob_direct *direct, int number);
/* Which parts the store has: arrived[0 … parts] are set, by number; yours (free). */
MLO_MUST_USE enum mlo_status mlo_blob_direct_arrived(struct mlo_blob_store *store,
                                                     const struct mlo_blob_session *session, bool **arrived,
                                                     struct mlo_error *err);
/* Where and how to PUT one part: its bytes, with these headers. Good for MLO_BLOB_PART_ADDRESS_S. */
struct mlo_blob_part_address {
    char *url;
    struct {
        const char *name;
        char *value;
    } headers[MLO_BLOB_PART_HEADERS];
    size_t header_count;
};
void mlo_blob_part_address_clear(struct mlo_blob_part_address *address);
/* md5: of the part's bytes, in base64 (of a whole: not needed, NULL). *out is yours
 * (mlo_blob_part_address_clear), whatever comes back. */
MLO_MUST_USE enum mlo_status mlo_blob_direct_address(struct mlo_blob_store *store,
                                                     const struct mlo_blob_session *session, int number,
                                                     const char *md5, struct mlo_blob_part_address *out,
                                                     struct mlo_error *err);
/* Reads on from session->size_bytes for about budget_ms and hashes (a whole was checked before: only whether
 * it is there): keep the session after it, whatever it says. *done: all was read. MLO_ECONFLICT when parts
 * are missing, MLO_EDIGEST when what was read before has changed. */
MLO_MUST_USE enum mlo_status mlo_blob_direct_verify(struct mlo_blob_store *store,
                                                    struct mlo_blob_session *session, uint32_t budget_ms,
                                                    bool *done, struct mlo_error *err);

#endif
