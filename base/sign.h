/* Signatures: Ed25519 (RFC 8032), computed by OpenSSL. Keys are files in PKCS#8 PEM, as openssl writes them.
 * A public key's text form is "ed25519:" and 64 lowercase hex digits. */
#ifndef MLO_BASE_SIGN_H
#define MLO_BASE_SIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define MLO_PUBLIC_KEY_SIZE 32
#define MLO_SIGNATURE_SIZE 64
#define MLO_PUBLIC_KEY_TEXT_SIZE 80

struct mlo_public_key {
    uint8_t bytes[MLO_PUBLIC_KEY_SIZE];
};
struct mlo_signature {
    uint8_t bytes[MLO_SIGNATURE_SIZE];
};

struct mlo_sign_key; /* a private key */

/* Reads a private key. A file that others may read, or that belongs to somebody else, is MLO_EFORBIDDEN.
 * *out is yours. */
MLO_MUST_USE enum mlo_status mlo_sign_key_load(const char *path, struct mlo_sign_key **out,
                                               struct mlo_error *err);
/* A new random key, written to `path` with mode 0600; MLO_EEXISTS when there is a file. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_sign_key_create(const char *path, struct mlo_sign_key **out,
                                                 struct mlo_error *err);
void mlo_sign_key_free(struct mlo_sign_key *key); /* NULL is fine */
const struct mlo_public_key *mlo_sign_key_public(const struct mlo_sign_key *key);

MLO_MUST_USE enum mlo_status mlo_sign(const struct mlo_sign_key *key, const void *bytes, size_t size,
                                      struct mlo_signature *out, struct mlo_error *err);
bool mlo_sign_verify(const struct mlo_public_key *key, const void *bytes, size_t size,
                     const struct mlo_signature *signature);

/* The text form, into the caller's buffer, which is returned; and back (false: it is none). */
char *mlo_public_key_text(const struct mlo_public_key *key, char out[MLO_PUBLIC_KEY_TEXT_SIZE]);
bool mlo_public_key_parse(const char *text, struct mlo_public_key *out);
bool mlo_public_key_eq(const struct mlo_public_key *a, const struct mlo_public_key *b);

#endif
