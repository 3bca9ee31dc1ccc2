/* Base64 (RFC 4648, section 4: with padding), computed by OpenSSL. */
#ifndef MLO_BASE_BASE64_H
#define MLO_BASE_BASE64_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

/* Appends the text of the bytes. */
void mlo_base64_encode(const void *bytes, size_t size, struct mlo_buf *out);
/* Appends the bytes of a text; false (and nothing appended) when it is not exactly what mlo_base64_encode
 * writes. */
bool mlo_base64_decode(const char *text, size_t size, struct mlo_buf *out);

#endif
