/* Compiler attributes and tiny helpers used everywhere. */
#ifndef MLO_BASE_MACROS_H
#define MLO_BASE_MACROS_H

#include <stddef.h>

#define MLO_MUST_USE __attribute__((warn_unused_result))
#define MLO_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define MLO_UNUSED(x) ((void)(x))
#define MLO_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MLO_MIN(a, b) ((a) < (b) ? (a) : (b))
#define MLO_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Propagates a failing status: goto the cleanup label with `status` set. The one error idiom. */
#define MLO_TRY(expr)                                                                                        \
    do {                                                                                                     \
        status = (expr);                                                                                     \
        if (status != MLO_OK)                                                                                \
            goto out;                                                                                        \
    } while (0)

#endif
