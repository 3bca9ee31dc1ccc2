/* cmocka with the headers that it wants in front. */
#ifndef MLO_TESTS_CM_H
#define MLO_TESTS_CM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

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
