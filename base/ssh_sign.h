/* Ed25519 signatures and keys as OpenSSH and git write them: public keys (RFC 8709), fingerprints, and
 * detached signatures (OpenSSH's PROTOCOL.sshsig), so that `ssh-keygen -Y verify` and `git verify-commit`
 * check what mlopt signs. */
#ifndef MLO_BASE_SSH_SIGN_H
#define MLO_BASE_SSH_SIGN_H

#include "base/sign.h"
#include "base/str.h"

#define MLO_SSH_FINGERPRINT_SIZE 56 /* "SHA256:" + 43 + NUL, with room */

/* "ssh-ed25519 AAAA…", without a comment. */
void mlo_ssh_public_key(const struct mlo_public_key *key, struct mlo_buf *out);
/* "SHA256:…", as ssh-keygen -l shows it, into the caller's buffer, which is returned. */
char *mlo_ssh_fingerprint(const struct mlo_public_key *key, char out[MLO_SSH_FINGERPRINT_SIZE]);

/* Appends the armored signature, "-----BEGIN SSH SIGNATURE-----\n…\n-----END SSH SIGNATURE-----\n". The same
 * bytes give the same signature. `space` says what is signed ("git"). */
MLO_MUST_USE enum mlo_status mlo_ssh_sign(const struct mlo_sign_key *key, const char *space,
                                          const void *bytes, size_t size, struct mlo_buf *out,
                                          struct mlo_error *err);
/* Whether `armored` is a signature of the bytes in this name space; *signer is the key that made it, which
 * the caller may or may not trust. Only what mlo_ssh_sign writes is taken: one text for one signature. */
bool mlo_ssh_verify(const char *armored, size_t armored_size, const char *space, const void *bytes,
                    size_t size, struct mlo_public_key *signer);

#endif
