/* cmocka with the headers that it wants in front. */
#ifndef MLO_TESTS_CM_H
#define MLO_TESTS_CM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

/* Valgrind is some fifty times slower, and sees the same code in less of the same arithmetic (valgrind.sh).
 */
static inline bool in_short(void)
{
    const char *valgrind = getenv("MLOPT_VALGRIND");
    return valgrind && strcmp(valgrind, "short") == 0;
}

/* The call must succeed; a failure prints the error's message. `err` must be in scope. */
#define assert_ok(expr)                                                                                      \
    do {                                                                                                     \
        if ((expr) != MLO_OK)                                                                                \
            fail_msg("%s: %s [%s]", #expr, err.message, err.where);                                          \
    } while (0)
/* The text must contain the part. */
#define assert_contains(text, part)                                                                          \
    do {                                                                                                     \
        if (!strstr((text), (part)))                                                                         \
            fail_msg("'%s' does not contain '%s'", (text), (part));                                          \
    } while (0)

#endif
