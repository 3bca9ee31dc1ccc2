/* Uploads whose bytes go past us, straight into the store's bucket, in parts that the store's own server
 * checks against their MD5. They lie where no blob is looked for until all of them were read back once and
 * hashed; only then are they copied, on the server, to the place of the digest that they really have
 * (docs/storage.md says why). Such a session is begun, found, kept and dropped as any other (blob.h,
 * upload.h); its size_bytes is what was verified. */
#ifndef MLO_REGISTRY_BLOB_DIRECT_H
#define MLO_REGISTRY_BLOB_DIRECT_H

#include "registry/blob.h"

enum { MLO_BLOB_PART_ADDRESS_S = 900 };

struct mlo_blob_direct {
    uint64_t size_bytes;      /* of the whole */
    uint64_t part_size_bytes; /* of each part but the last */
    int parts;                /* numbered 1 … */
};

/* A new session for so many bytes. MLO_EUNSUPPORTED where the store lets nobody write past us. */
MLO_MUST_USE enum mlo_status mlo_blob_direct_begin(struct mlo_blob_store *store, uint64_t size_bytes,
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
/* An address to PUT one part to, with the header Content-MD5: md5 (base64); good for MLO_BLOB_PART_ADDRESS_S,
 * for bytes of that MD5 and the part's size. *url is yours (free). */
MLO_MUST_USE enum mlo_status mlo_blob_direct_address(struct mlo_blob_store *store,
                                                     const struct mlo_blob_session *session, int number,
                                                     const char *md5, char **url, struct mlo_error *err);
/* Reads on from session->size_bytes for about budget_ms and hashes: keep the session after it, whatever it
 * says. *done: all was read. MLO_ECONFLICT when parts are missing, MLO_EDIGEST when what was read before has
 * changed. */
MLO_MUST_USE enum mlo_status mlo_blob_direct_verify(struct mlo_blob_store *store,
                                                    struct mlo_blob_session *session, uint32_t budget_ms,
                                                    bool *done, struct mlo_error *err);

#endif
