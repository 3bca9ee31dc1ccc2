/* Growing byte buffers and string helpers. A buffer is always terminated by a NUL that `len` does
 * not count. On lack of memory a buffer becomes sticky-failed: later appends do nothing and
 * mlo_buf_ok is false, so a long composition is checked once, at its end. */
#ifndef MLO_BASE_STR_H
#define MLO_BASE_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct mlo_buf {
    char *data; /* NULL while empty; read through mlo_buf_str */
    size_t len, cap;
    bool failed;
};

#define MLO_BUF_INIT                                                                                         \
    {                                                                                                        \
        0                                                                                                    \
    }

void mlo_buf_clear(struct mlo_buf *buf); /* frees, and makes it empty again */
void mlo_buf_reset(struct mlo_buf *buf); /* empties, keeps the memory */
void mlo_buf_append(struct mlo_buf *buf, const void *bytes, size_t size);
void mlo_buf_puts(struct mlo_buf *buf, const char *text);
void mlo_buf_putc(struct mlo_buf *buf, char c);
void mlo_buf_printf(struct mlo_buf *buf, const char *fmt, ...) MLO_PRINTF(2, 3);
void mlo_buf_vprintf(struct mlo_buf *buf, const char *fmt, va_list args) MLO_PRINTF(2, 0);
/* Makes room for `extra` more bytes; false when out of memory. */
bool mlo_buf_reserve(struct mlo_buf *buf, size_t extra);
bool mlo_buf_ok(const struct mlo_buf *buf);
/* The text; "" when empty. Borrowed until the next change of the buffer. */
const char *mlo_buf_str(const struct mlo_buf *buf);
/* Hands the heap block over to the caller (free it) and empties the buffer; NULL if it had failed. */
char *mlo_buf_take(struct mlo_buf *buf);

bool mlo_str_starts(const char *text, const char *prefix);
/* Whether the list has the word. */
bool mlo_str_among(const char *word, const char *const *list, size_t count);
bool mlo_str_ends(const char *text, const char *suffix);
/* Like strcmp(a,b)==0, and true when both are NULL. */
bool mlo_str_eq(const char *a, const char *b);
/* Whole-string numbers: false when there is anything but the number, or it does not fit. */
bool mlo_str_to_i64(const char *text, int64_t *out);
bool mlo_str_to_f64(const char *text, double *out); /* finite only; the C locale's point always */
/* A size for people: "1.4 MB" (decimal units), into the caller's buffer, which is returned. */
char *mlo_str_size(uint64_t bytes, char out[32]);
/* A size as people write it, with its unit: "8GB", "1.5 GiB", "512 kB" (letters of any case). Whole string;
 * false when it is none, or more than 8 EB. */
bool mlo_str_to_size(const char *text, uint64_t *bytes);
/* A time as people write it: "2h", "90m", "1h30m", "45s", "2d", units descending and each once. Whole string;
 * false when it is none. */
bool mlo_str_to_seconds(const char *text, uint64_t *seconds);

#endif
