/* "Did you mean …?": the nearest known word. */
#ifndef MLO_BASE_SUGGEST_H
#define MLO_BASE_SUGGEST_H

#include <stddef.h>

/* The candidate with the least Damerau-Levenshtein distance (optimal string alignment) to `word`, if that
 * is at most a third of the word's length plus one; else NULL. Borrowed from `candidates`. */
const char *mlo_suggest(const char *word, const char *const *candidates, size_t count);

#endif
