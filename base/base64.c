#include "base/base64.h"

#include <limits.h>
#include <string.h>

#include <openssl/evp.h>

void mlo_base64_encode(const void *bytes, size_t size, struct mlo_buf *out)
{
    if (size > INT_MAX / 2)
        out->failed = true;
    if (size == 0 || !mlo_buf_reserve(out, (size + 2) / 3 * 4 + 1))
        return;
    out->len += (size_t)EVP_EncodeBlock((unsigned char *)out->data + out->len, bytes, (int)size);
}

bool mlo_base64_decode(const char *text, size_t size, struct mlo_buf *out)
{
    struct mlo_buf again = MLO_BUF_INIT;
    size_t padding = 0;
    if (size % 4 || size > INT_MAX)
        return false;
    if (size == 0)
        return true;
    while (padding < 2 && text[size - 1 - padding] == '=')
        padding++;
    if (!mlo_buf_reserve(out, size / 4 * 3 + 1))
        return false;
    int length =
        EVP_DecodeBlock((unsigned char *)out->data + out->len, (const unsigned char *)text, (int)size);
    if (length >=
        0) /* OpenSSL forgives blanks, padding in the middle and stray bits: one text for some bytes */
        mlo_base64_encode(out->data + out->len, (size_t)length - padding, &again);
    bool same = length >= 0 && again.len == size && memcmp(again.data, text, size) == 0;
    mlo_buf_clear(&again);
    if (same)
        out->len += (size_t)length - padding;
    out->data[out->len] = '\0';
    return same;
}
