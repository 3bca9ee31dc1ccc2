/* Private to engines/: functions in C that are made when they are needed. The text must be the program's own:
 * it is compiled by the system's compiler, and what comes out is kept in $XDG_CACHE_HOME/mlopt/kernels
 * (private to the user; the 2048 used last, 128 MiB at most). */
#ifndef MLO_ENGINES_NATIVE_IMPL_H
#define MLO_ENGINES_NATIVE_IMPL_H

#include <stdbool.h>

#include "base/hash.h"

/* Whether there is a compiler, and a folder that is safe. */
bool mlo_native_possible(void);
/* The function `symbol` of a text that `flags` (NULL-terminated) make a shared library of: loaded, or
 * compiled and kept. The process holds at most 4096. NULL: it cannot be had, which is not tried again for the
 * same text and flags. Threads may call it together. */
void *mlo_native_function(const char *text, const char *const *flags, const char *symbol);
/* Under what a text is kept: all that the library's bytes follow from, the compiler with its version and
 * options (a NULL-terminated command), and the text. false: out of memory. */
bool mlo_native_digest(const char *const *command, const char *version, const char *text,
                       struct mlo_digest *out);

#endif
