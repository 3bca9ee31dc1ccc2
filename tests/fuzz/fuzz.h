/* What the fuzz targets share. A target is one file with LLVMFuzzerTestOneInput: clang links it with
 * libFuzzer, and every other build links it with replay.c. */
#ifndef MLO_TESTS_FUZZ_H
#define MLO_TESTS_FUZZ_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* Runs one input: 0 always. What must not be ends the process (abort, or a sanitizer's report). */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Changes data in place by its structure, up to max_size bytes; returns the new size. Only targets whose
 * format needs it have one (wire_mutator.c). */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
/* The plain mutator of bytes: libFuzzer's, or replay.c's. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

/* Ends the process with the message when the condition does not hold. */
#define FUZZ_CHECK(condition, ...)                                                                           \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fuzz_fail(__FILE__, __LINE__, __VA_ARGS__);                                                      \
    } while (0)
void fuzz_fail(const char *file, int line, const char *fmt, ...) MLO_PRINTF(3, 4) __attribute__((noreturn));

/* A failure must say what failed, and not call itself a bug. True when status is MLO_OK. */
bool fuzz_accepted(enum mlo_status status, const struct mlo_error *err);

/* The path of a file in this process's own scratch folder (borrowed; the folder goes when the process ends),
 * written anew with these bytes. */
const char *fuzz_file(const char *name, const void *bytes, size_t size);
/* The scratch folder itself. */
const char *fuzz_folder(void);

#endif
