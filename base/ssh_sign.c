#include "base/ssh_sign.h"

#include <string.h>

#include <openssl/evp.h>

#include "base/base64.h"
#include "base/hash.h"

static const char ALGORITHM[] = "ssh-ed25519", MAGIC[] = "SSHSIG", HASH[] = "sha512";
static const char BEGIN[] = "-----BEGIN SSH SIGNATURE-----\n", END[] = "-----END SSH SIGNATURE-----\n";
enum { LINE = 70 }; /* of base64, as ssh-keygen breaks it */

static void put_u32(struct mlo_buf *out, uint32_t value)
{
    const uint8_t bytes[] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8),
                             (uint8_t)value};
    mlo_buf_append(out, bytes, sizeof bytes);
}

/* SSH's "string": a length, then the bytes (RFC 4251, section 5). */
static void put_string(struct mlo_buf *out, const void *bytes, size_t size)
{
    put_u32(out, (uint32_t)size);
    mlo_buf_append(out, bytes, size);
}

static void put_key(struct mlo_buf *out, const struct mlo_public_key *key)
{
    put_string(out, ALGORITHM, sizeof ALGORITHM - 1);
    put_string(out, key->bytes, sizeof key->bytes);
}

void mlo_ssh_public_key(const struct mlo_public_key *key, struct mlo_buf *out)
{
    struct mlo_buf blob = MLO_BUF_INIT;
    put_key(&blob, key);
    mlo_buf_puts(out, ALGORITHM);
    mlo_buf_putc(out, ' ');
    mlo_base64_encode(mlo_buf_str(&blob), blob.len, out);
    out->failed = out->failed || blob.failed;
    mlo_buf_clear(&blob);
}

char *mlo_ssh_fingerprint(const struct mlo_public_key *key, char out[MLO_SSH_FINGERPRINT_SIZE])
{
    struct mlo_digest digest;
    unsigned char text[48];
    uint8_t blob[4 + sizeof ALGORITHM - 1 + 4 + MLO_PUBLIC_KEY_SIZE] = {0, 0, 0, sizeof ALGORITHM - 1};
    memcpy(blob + 4, ALGORITHM, sizeof ALGORITHM - 1);
    blob[4 + sizeof ALGORITHM - 1 + 3] = MLO_PUBLIC_KEY_SIZE;
    memcpy(blob + 8 + sizeof ALGORITHM - 1, key->bytes, sizeof key->bytes);
    mlo_digest_of(blob, sizeof blob, &digest);
    EVP_EncodeBlock(text, digest.bytes, sizeof digest.bytes);
    text[43] = '\0'; /* its padding is not shown */
    snprintf(out, MLO_SSH_FINGERPRINT_SIZE, "SHA256:%s", (const char *)text);
    return out;
}

/* What Ed25519 signs: the message's hash, and what it is for. */
static bool signed_data(const char *space, const void *bytes, size_t size, struct mlo_buf *out)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (EVP_Digest(bytes, size, hash, &length, EVP_sha512(), NULL) != 1)
        return false;
    mlo_buf_append(out, MAGIC, sizeof MAGIC - 1);
    put_string(out, space, strlen(space));
    put_string(out, "", 0);
    put_string(out, HASH, sizeof HASH - 1);
    put_string(out, hash, length);
    return mlo_buf_ok(out);
}

/* The whole text around key and signature. */
static void armor(const struct mlo_public_key *key, const char *space, const struct mlo_signature *signature,
                  struct mlo_buf *out)
{
    struct mlo_buf blob = MLO_BUF_INIT, inner = MLO_BUF_INIT, text = MLO_BUF_INIT;
    mlo_buf_append(&blob, MAGIC, sizeof MAGIC - 1);
    put_u32(&blob, 1);
    put_key(&inner, key);
    put_string(&blob, mlo_buf_str(&inner), inner.len);
    put_string(&blob, space, strlen(space));
    put_string(&blob, "", 0);
    put_string(&blob, HASH, sizeof HASH - 1);
    mlo_buf_reset(&inner);
    put_string(&inner, ALGORITHM, sizeof ALGORITHM - 1);
    put_string(&inner, signature->bytes, sizeof signature->bytes);
    put_string(&blob, mlo_buf_str(&inner), inner.len);
    mlo_base64_encode(mlo_buf_str(&blob), blob.len, &text);
    mlo_buf_puts(out, BEGIN);
    for (size_t at = 0; at < text.len; at += LINE) {
        mlo_buf_append(out, text.data + at, MLO_MIN((size_t)LINE, text.len - at));
        mlo_buf_putc(out, '\n');
    }
    mlo_buf_puts(out, END);
    out->failed = out->failed || blob.failed || inner.failed || text.failed;
    mlo_buf_clear(&blob);
    mlo_buf_clear(&inner);
    mlo_buf_clear(&text);
}

enum mlo_status mlo_ssh_sign(const struct mlo_sign_key *key, const char *space, const void *bytes,
                             size_t size, struct mlo_buf *out, struct mlo_error *err)
{
    struct mlo_buf data = MLO_BUF_INIT;
    struct mlo_signature signature;
    enum mlo_status status;
    if (!signed_data(space, bytes, size, &data)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_sign(key, mlo_buf_str(&data), data.len, &signature, err));
    armor(mlo_sign_key_public(key), space, &signature, out);
    if (!mlo_buf_ok(out))
        status = mlo_error_nomem(err);
out:
    mlo_buf_clear(&data);
    return status;
}

/* The base64 between the marks, its line breaks taken out. */
static bool dearmor(const char *text, size_t size, struct mlo_buf *out)
{
    struct mlo_buf joined = MLO_BUF_INIT;
    bool ok = size > sizeof BEGIN + sizeof END && memcmp(text, BEGIN, sizeof BEGIN - 1) == 0 &&
              memcmp(text + size - (sizeof END - 1), END, sizeof END - 1) == 0;
    for (size_t i = sizeof BEGIN - 1; ok && i < size - (sizeof END - 1); i++)
        if (text[i] != '\n')
            mlo_buf_putc(&joined, text[i]);
    ok = ok && mlo_buf_ok(&joined) && mlo_base64_decode(mlo_buf_str(&joined), joined.len, out);
    mlo_buf_clear(&joined);
    return ok;
}

bool mlo_ssh_verify(const char *armored, size_t armored_size, const char *space, const void *bytes,
                    size_t size, struct mlo_public_key *signer)
{
    /* the layout is fixed: key and signature are taken from their places, and the text is made again of them
     */
    const size_t key_at = sizeof MAGIC - 1 + 4 + 4 + 4 + sizeof ALGORITHM - 1 + 4;
    struct mlo_buf blob = MLO_BUF_INIT, again = MLO_BUF_INIT, data = MLO_BUF_INIT;
    struct mlo_signature signature;
    bool ok = dearmor(armored, armored_size, &blob) &&
              blob.len >= key_at + MLO_PUBLIC_KEY_SIZE + MLO_SIGNATURE_SIZE;
    if (ok) {
        memcpy(signer->bytes, blob.data + key_at, sizeof signer->bytes);
        memcpy(signature.bytes, blob.data + blob.len - sizeof signature.bytes, sizeof signature.bytes);
        armor(signer, space, &signature, &again);
        ok = mlo_buf_ok(&again) && again.len == armored_size &&
             memcmp(again.data, armored, armored_size) == 0 && signed_data(space, bytes, size, &data) &&
             mlo_sign_verify(signer, mlo_buf_str(&data), data.len, &signature);
    }
    mlo_buf_clear(&blob);
    mlo_buf_clear(&again);
    mlo_buf_clear(&data);
    return ok;
}
