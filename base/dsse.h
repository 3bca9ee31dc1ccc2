/* Signed envelopes: DSSE (the "dead simple signing envelope" of in-toto), with one Ed25519 signature. */
#ifndef MLO_BASE_DSSE_H
#define MLO_BASE_DSSE_H

#include "base/json.h"
#include "base/sign.h"

/* {"payload": base64, "payloadType": type, "signatures": [{"keyid": the key's text, "sig": base64}]}. The
 * same bytes give the same envelope. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_dsse_sign(const struct mlo_sign_key *key, const char *type,
                                           const void *payload, size_t size, json_t **out,
                                           struct mlo_error *err);
/* Whether an envelope of this type is signed by the key that its keyid names: *signer, which the caller may
 * or may not trust. Appends the payload. MLO_EFORMAT: it is no such envelope; MLO_EDIGEST: the signature does
 * not hold. */
MLO_MUST_USE enum mlo_status mlo_dsse_verify(const json_t *envelope, const char *type,
                                             struct mlo_buf *payload, struct mlo_public_key *signer,
                                             struct mlo_error *err);

#endif
