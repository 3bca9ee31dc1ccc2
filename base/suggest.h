/* Names: the row that has one, the list of all, and "did you mean …?" of one that is unknown. */
#ifndef MLO_BASE_SUGGEST_H
#define MLO_BASE_SUGGEST_H

#include <stddef.h>

#include "base/error.h"
#include "base/str.h"

/* The candidate with the least Damerau-Levenshtein distance (optimal string alignment) to `word`, if that
 * is at most a third of the word's length plus one; else NULL. Borrowed from `candidates`. */
const char *mlo_suggest(const char *word, const char *const *candidates, size_t count);

/* Adds the hint "did you mean 'WORD'?" where a candidate is near; whether one is. */
bool mlo_error_suggest(struct mlo_error *err, const char *word, const char *const *candidates, size_t count);

/* The row of that name in a table whose rows, of `row_bytes` each, begin with a `const char *` name (none is
 * NULL); NULL if there is none. */
const void *mlo_named_row(const char *name, const void *rows, size_t count, size_t row_bytes);

/* Appends the names with ", " between them. */
void mlo_buf_names(struct mlo_buf *buf, const char *const *names, size_t count);

#endif
