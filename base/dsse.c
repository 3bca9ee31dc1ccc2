#include "base/dsse.h"

#include <string.h>

#include "base/base64.h"

/* PAE, the bytes that are signed: "DSSEv1 <length> <type> <length> <payload>". */
static void pre_authentication(const char *type, const void *payload, size_t size, struct mlo_buf *out)
{
    mlo_buf_printf(out, "DSSEv1 %zu %s %zu ", strlen(type), type, size);
    mlo_buf_append(out, payload, size);
}

enum mlo_status mlo_dsse_sign(const struct mlo_sign_key *key, const char *type, const void *payload,
                              size_t size, json_t **out, struct mlo_error *err)
{
    struct mlo_buf signed_bytes = MLO_BUF_INIT, sig = MLO_BUF_INIT, body = MLO_BUF_INIT;
    char keyid[MLO_PUBLIC_KEY_TEXT_SIZE];
    struct mlo_signature signature;
    enum mlo_status status;
    *out = NULL;
    pre_authentication(type, payload, size, &signed_bytes);
    MLO_TRY(mlo_buf_ok(&signed_bytes) ? mlo_sign(key, signed_bytes.data, signed_bytes.len, &signature, err)
                                      : mlo_error_nomem(err));
    mlo_base64_encode(signature.bytes, sizeof signature.bytes, &sig);
    mlo_base64_encode(payload, size, &body);
    if (mlo_buf_ok(&sig) && mlo_buf_ok(&body))
        *out = json_pack("{s:s, s:s, s:[{s:s, s:s}]}", "payloadType", type, "payload", mlo_buf_str(&body),
                         "signatures", "keyid", mlo_public_key_text(mlo_sign_key_public(key), keyid), "sig",
                         mlo_buf_str(&sig));
    if (!*out)
        status = mlo_error_nomem(err);
out:
    mlo_buf_clear(&signed_bytes);
    mlo_buf_clear(&sig);
    mlo_buf_clear(&body);
    return status;
}

enum mlo_status mlo_dsse_verify(const json_t *envelope, const char *type, struct mlo_buf *payload,
                                struct mlo_public_key *signer, struct mlo_error *err)
{
    const json_t *signatures = json_object_get(envelope, "signatures"), *one = json_array_get(signatures, 0);
    const char *body = mlo_json_str(envelope, "payload", ""), *sig_text = mlo_json_str(one, "sig", "");
    struct mlo_buf sig = MLO_BUF_INIT, signed_bytes = MLO_BUF_INIT;
    struct mlo_signature signature;
    size_t before = payload->len;
    enum mlo_status status = MLO_OK;
    if (strcmp(mlo_json_str(envelope, "payloadType", ""), type) != 0 || json_array_size(signatures) != 1 ||
        !mlo_base64_decode(body, strlen(body), payload) ||
        !mlo_base64_decode(sig_text, strlen(sig_text), &sig) || sig.len != sizeof signature.bytes ||
        !mlo_public_key_parse(mlo_json_str(one, "keyid", ""), signer)) {
        status = mlo_error_set(err, MLO_EFORMAT, "this is no DSSE envelope of %s with one Ed25519 signature",
                               type);
        goto out;
    }
    memcpy(signature.bytes, sig.data, sizeof signature.bytes);
    pre_authentication(type, mlo_buf_str(payload) + before, payload->len - before, &signed_bytes);
    if (!mlo_buf_ok(&signed_bytes))
        status = mlo_error_nomem(err);
    else if (!mlo_sign_verify(signer, signed_bytes.data, signed_bytes.len, &signature))
        status =
            mlo_error_set(err, MLO_EDIGEST, "the signature of the envelope does not hold: it was changed");
out:
    mlo_buf_clear(&sig);
    mlo_buf_clear(&signed_bytes);
    return status;
}
