/* SHA-256 digests (FIPS 180-4, computed by OpenSSL, which uses SHA-NI where it is there).
 * A digest's text form is 64 lowercase hex digits, in interfaces prefixed "sha256:". */
#ifndef MLO_BASE_HASH_H
#define MLO_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define MLO_DIGEST_SIZE 32
#define MLO_DIGEST_TEXT_SIZE 72 /* "sha256:" + 64 + NUL */

struct mlo_digest {
    uint8_t bytes[MLO_DIGEST_SIZE];
};

/* Streaming hash. */
struct mlo_hasher;
struct mlo_hasher *mlo_hasher_new(void); /* NULL when out of memory */
void mlo_hasher_free(struct mlo_hasher *hasher);
void mlo_hasher_update(struct mlo_hasher *hasher, const void *bytes, size_t size);
/* The digest of all bytes so far; the hasher starts again, empty. */
void mlo_hasher_final(struct mlo_hasher *hasher, struct mlo_digest *out);
/* The hash of a link of a chain: SHA-256 of the hash before (of the first link: zeros), the link's number in
 * 8 bytes, big-endian, and its body. The hasher must be empty, and is again. */
void mlo_hasher_link(struct mlo_hasher *hasher, const struct mlo_digest *prev, int64_t seq, const void *body,
                     size_t size, struct mlo_digest *out);

/* Bytes since it started. */
uint64_t mlo_hasher_size(const struct mlo_hasher *hasher);

/* What a hash has come to, to go on with in another process or on another machine: the number of bytes, the
 * eight words of FIPS 180-4, and the bytes of the block that is not full yet. */
#define MLO_HASH_STATE_SIZE 104
struct mlo_hash_state {
    uint8_t bytes[MLO_HASH_STATE_SIZE];
};
void mlo_hasher_save(const struct mlo_hasher *hasher, struct mlo_hash_state *out);
/* Goes on from there; what it had is forgotten. Any state is safe; only a saved one means anything. */
void mlo_hasher_restore(struct mlo_hasher *hasher, const struct mlo_hash_state *state);

/* The digest of one block of memory. */
void mlo_digest_of(const void *bytes, size_t size, struct mlo_digest *out);
/* The digest and size of a file's content, read in pieces. `size_bytes` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_digest_of_file(const char *path, struct mlo_digest *out,
                                                uint64_t *size_bytes, struct mlo_error *err);

/* "sha256:<hex>" into the caller's buffer, which is returned. */
char *mlo_digest_text(const struct mlo_digest *digest, char out[MLO_DIGEST_TEXT_SIZE]);
/* Only the 64 hex digits. */
char *mlo_digest_hex(const struct mlo_digest *digest, char out[MLO_DIGEST_TEXT_SIZE]);
/* Reads "sha256:<hex>" or bare hex; false when it is neither. */
bool mlo_digest_parse(const char *text, struct mlo_digest *out);
bool mlo_digest_eq(const struct mlo_digest *a, const struct mlo_digest *b);

/* Lowercase hex of any bytes; `out` holds 2 * size + 1. */
void mlo_hex(const void *bytes, size_t size, char *out);
/* Cryptographically strong random bytes; never fails (aborts if the kernel has no randomness). */
void mlo_random_bytes(void *out, size_t size);
/* Compares in time that depends on `size` only. */
bool mlo_equal_constant_time(const void *a, const void *b, size_t size);

#endif
