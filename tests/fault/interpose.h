/* A call that a preloaded library stands in for: the real one is the next of that name. */
#ifndef MLO_TESTS_INTERPOSE_H
#define MLO_TESTS_INTERPOSE_H

#include <dlfcn.h>
#include <stdatomic.h>

/* clang-format off */
/* Declares `call`, the real function; looked for once. */
#define REAL(type, name, parameters)                                                                         \
    static type (*_Atomic real) parameters;                                                                  \
    type (*call) parameters = atomic_load(&real);                                                            \
    if (!call) {                                                                                             \
        *(void **)&call = dlsym(RTLD_NEXT, #name);                                                           \
        atomic_store(&real, call);                                                                           \
    }
/* clang-format on */

#endif
