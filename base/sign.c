#include "base/sign.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/pem.h>

#include "base/fs.h"
#include "base/hash.h"

static const char PREFIX[] = "ed25519:";

struct mlo_sign_key {
    EVP_PKEY *pkey;
    struct mlo_public_key public_key;
};

static enum mlo_status wrap_take(EVP_PKEY *pkey, const char *path, struct mlo_sign_key **out,
                                 struct mlo_error *err)
{
    size_t size = MLO_PUBLIC_KEY_SIZE;
    struct mlo_sign_key *key = calloc(1, sizeof *key);
    if (!key) {
        EVP_PKEY_free(pkey);
        return mlo_error_nomem(err);
    }
    key->pkey = pkey;
    if (!pkey || EVP_PKEY_id(pkey) != EVP_PKEY_ED25519 ||
        EVP_PKEY_get_raw_public_key(pkey, key->public_key.bytes, &size) != 1) {
        mlo_sign_key_free(key);
        mlo_error_set(err, MLO_EFORMAT, "%s holds no Ed25519 private key", path);
        mlo_error_hint(err, "openssl genpkey -algorithm ed25519 makes one");
        return MLO_EFORMAT;
    }
    *out = key;
    return MLO_OK;
}

void mlo_sign_key_free(struct mlo_sign_key *key)
{
    if (!key)
        return;
    EVP_PKEY_free(key->pkey);
    free(key);
}

const struct mlo_public_key *mlo_sign_key_public(const struct mlo_sign_key *key)
{
    return &key->public_key;
}

enum mlo_status mlo_sign_key_load(const char *path, struct mlo_sign_key **out, struct mlo_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return mlo_error_errno(err, e, "cannot read the key %s", path);
    }
    if (st.st_uid != geteuid() || (st.st_mode & 077)) {
        close(fd);
        mlo_error_set(err, MLO_EFORBIDDEN, "the key %s is not this user's alone", path);
        mlo_error_hint(err, "chmod 600 %s, and make sure that nobody copied it", path);
        return MLO_EFORBIDDEN;
    }
    FILE *file = fdopen(fd, "r");
    if (!file) {
        close(fd);
        return mlo_error_nomem(err);
    }
    EVP_PKEY *pkey = PEM_read_PrivateKey(file, NULL, NULL, (void *)(uintptr_t) "");
    fclose(file);
    return wrap_take(pkey, path, out, err);
}

enum mlo_status mlo_sign_key_create(const char *path, struct mlo_sign_key **out, struct mlo_error *err)
{
    EVP_PKEY *pkey = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    if (!pkey)
        return mlo_error_set(err, MLO_EINTERNAL, "OpenSSL cannot make an Ed25519 key");
    struct mlo_buf temp = MLO_BUF_INIT;
    mlo_buf_printf(&temp, "%s.XXXXXX", path);
    int fd = mlo_buf_ok(&temp) ? mkostemp(temp.data, O_CLOEXEC) : -1; /* mode 0600 */
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    bool ok = file && PEM_write_PrivateKey(file, pkey, NULL, NULL, 0, NULL, NULL) == 1 && fflush(file) == 0 &&
              fsync(fd) == 0;
    /* whole or not at all, and never over another one */
    ok = ok && link(temp.data, path) == 0;
    int e = errno;
    if (file)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    if (fd >= 0)
        unlink(temp.data);
    mlo_buf_clear(&temp);
    if (!ok) {
        EVP_PKEY_free(pkey);
        return e == EEXIST ? mlo_error_set(err, MLO_EEXISTS, "there is a key already: %s", path)
                           : mlo_error_errno(err, e, "cannot write the key %s", path);
    }
    return wrap_take(pkey, path, out, err);
}

enum mlo_status mlo_sign(const struct mlo_sign_key *key, const void *bytes, size_t size,
                         struct mlo_signature *out, struct mlo_error *err)
{
    size_t got = sizeof out->bytes;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, key->pkey) == 1 &&
              EVP_DigestSign(ctx, out->bytes, &got, bytes, size) == 1 && got == sizeof out->bytes;
    EVP_MD_CTX_free(ctx);
    return ok ? MLO_OK : mlo_error_set(err, MLO_EINTERNAL, "OpenSSL cannot sign");
}

bool mlo_sign_verify(const struct mlo_public_key *key, const void *bytes, size_t size,
                     const struct mlo_signature *signature)
{
    EVP_PKEY *pkey = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, key->bytes, sizeof key->bytes);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = pkey && ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, pkey) == 1 &&
              EVP_DigestVerify(ctx, signature->bytes, sizeof signature->bytes, bytes, size) == 1;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(pkey);
    return ok;
}

char *mlo_public_key_text(const struct mlo_public_key *key, char out[MLO_PUBLIC_KEY_TEXT_SIZE])
{
    memcpy(out, PREFIX, sizeof PREFIX - 1);
    mlo_hex(key->bytes, sizeof key->bytes, out + sizeof PREFIX - 1);
    return out;
}

bool mlo_public_key_parse(const char *text, struct mlo_public_key *out)
{
    struct mlo_digest bytes; /* as long, and written in the same digits */
    if (!mlo_str_starts(text, PREFIX) || strlen(text) != sizeof PREFIX - 1 + 64 ||
        !mlo_digest_parse(text + sizeof PREFIX - 1, &bytes))
        return false;
    memcpy(out->bytes, bytes.bytes, sizeof out->bytes);
    return true;
}

bool mlo_public_key_eq(const struct mlo_public_key *a, const struct mlo_public_key *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}
