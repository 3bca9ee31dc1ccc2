#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* The digest with a state that can be written down (EVP hides it) is called deprecated since OpenSSL 3.0: it
 * is the same code underneath. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include "base/str.h"

struct mlo_hasher {
    SHA256_CTX ctx;
    uint64_t size; /* bytes so far */
};

struct mlo_hasher *mlo_hasher_new(void)
{
    struct mlo_hasher *h = calloc(1, sizeof *h);
    if (h)
        SHA256_Init(&h->ctx);
    return h;
}

void mlo_hasher_free(struct mlo_hasher *hasher)
{
    free(hasher);
}

void mlo_hasher_update(struct mlo_hasher *hasher, const void *bytes, size_t size)
{
    SHA256_Update(&hasher->ctx, bytes, size);
    hasher->size += size;
}

void mlo_hasher_final(struct mlo_hasher *hasher, struct mlo_digest *out)
{
    SHA256_Final(out->bytes, &hasher->ctx);
    SHA256_Init(&hasher->ctx);
    hasher->size = 0;
}

static void put_big_endian(unsigned char *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (unsigned char)(value >> (8 * (bytes - 1 - i)));
}

void mlo_hasher_link(struct mlo_hasher *hasher, const struct mlo_digest *prev, int64_t seq, const void *body,
                     size_t size, struct mlo_digest *out)
{
    uint8_t number[8];
    put_big_endian(number, (uint64_t)seq, 8);
    mlo_hasher_update(hasher, prev->bytes, sizeof prev->bytes);
    mlo_hasher_update(hasher, number, sizeof number);
    mlo_hasher_update(hasher, body, size);
    mlo_hasher_final(hasher, out);
}

static uint64_t get_big_endian(const unsigned char *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | in[i];
    return value;
}

void mlo_hasher_save(const struct mlo_hasher *hasher, struct mlo_hash_state *out)
{
    memset(out, 0, sizeof *out);
    put_big_endian(out->bytes, hasher->size, 8);
    for (int i = 0; i < 8; i++)
        put_big_endian(out->bytes + 8 + 4 * i, hasher->ctx.h[i], 4);
    memcpy(out->bytes + 40, hasher->ctx.data, hasher->size % SHA256_CBLOCK);
}

void mlo_hasher_restore(struct mlo_hasher *hasher, const struct mlo_hash_state *state)
{
    SHA256_Init(&hasher->ctx);
    hasher->size = get_big_endian(state->bytes, 8);
    for (int i = 0; i < 8; i++)
        hasher->ctx.h[i] = (SHA_LONG)get_big_endian(state->bytes + 8 + 4 * i, 4);
    hasher->ctx.Nl = (SHA_LONG)(hasher->size << 3); /* the length is kept in bits, in two halves */
    hasher->ctx.Nh = (SHA_LONG)(hasher->size >> 29);
    hasher->ctx.num = (unsigned)(hasher->size % SHA256_CBLOCK);
    memcpy(hasher->ctx.data, state->bytes + 40, hasher->ctx.num);
}

uint64_t mlo_hasher_size(const struct mlo_hasher *hasher)
{
    return hasher->size;
}

void mlo_digest_of(const void *bytes, size_t size, struct mlo_digest *out)
{
    EVP_Digest(bytes, size, out->bytes, NULL, EVP_sha256(), NULL);
}

enum mlo_status mlo_digest_of_file(const char *path, struct mlo_digest *out, uint64_t *size_bytes,
                                   struct mlo_error *err)
{
    enum { PIECE = 1 << 18 };
    enum mlo_status status = MLO_OK;
    uint64_t total = 0;
    struct mlo_hasher *hasher = mlo_hasher_new();
    unsigned char *piece = malloc(PIECE);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        status = mlo_error_errno(err, errno, "cannot open %s", path);
        goto out;
    }
    if (!hasher || !piece) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (;;) {
        ssize_t n = read(fd, piece, PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            status = mlo_error_errno(err, errno, "cannot read %s", path);
            goto out;
        }
        if (n == 0)
            break;
        mlo_hasher_update(hasher, piece, (size_t)n);
        total += (uint64_t)n;
    }
    mlo_hasher_final(hasher, out);
    if (size_bytes)
        *size_bytes = total;
out:
    if (fd >= 0)
        close(fd);
    free(piece);
    mlo_hasher_free(hasher);
    return status;
}

void mlo_hex(const void *bytes, size_t size, char *out)
{
    static const char DIGITS[] = "0123456789abcdef";
    const unsigned char *p = bytes;
    for (size_t i = 0; i < size; i++) {
        out[2 * i] = DIGITS[p[i] >> 4];
        out[2 * i + 1] = DIGITS[p[i] & 15];
    }
    out[2 * size] = '\0';
}

char *mlo_digest_hex(const struct mlo_digest *digest, char out[MLO_DIGEST_TEXT_SIZE])
{
    mlo_hex(digest->bytes, MLO_DIGEST_SIZE, out);
    return out;
}

char *mlo_digest_text(const struct mlo_digest *digest, char out[MLO_DIGEST_TEXT_SIZE])
{
    memcpy(out, "sha256:", 7);
    mlo_hex(digest->bytes, MLO_DIGEST_SIZE, out + 7);
    return out;
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

bool mlo_digest_parse(const char *text, struct mlo_digest *out)
{
    if (mlo_str_starts(text, "sha256:"))
        text += 7;
    if (strlen(text) != 2 * MLO_DIGEST_SIZE)
        return false;
    for (int i = 0; i < MLO_DIGEST_SIZE; i++) {
        int hi = nibble(text[2 * i]), lo = nibble(text[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        out->bytes[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

bool mlo_digest_eq(const struct mlo_digest *a, const struct mlo_digest *b)
{
    return memcmp(a->bytes, b->bytes, MLO_DIGEST_SIZE) == 0;
}

void mlo_random_bytes(void *out, size_t size)
{
    unsigned char *p = out;
    while (size) {
        ssize_t n = getrandom(p, size, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            abort(); /* a kernel without randomness must not produce guessable tokens */
        p += n;
        size -= (size_t)n;
    }
}

bool mlo_equal_constant_time(const void *a, const void *b, size_t size)
{
    return CRYPTO_memcmp(a, b, size) == 0;
}
