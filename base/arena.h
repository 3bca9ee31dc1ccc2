/* Arenas: memory for what lives as long as a request, a job, a pass or a model.
 *
 * Blocks are freed together by mlo_arena_free. In sanitizer builds each allocation is its own
 * malloc, so that AddressSanitizer sees every block. Allocation returns NULL when out of memory. */
#ifndef MLO_BASE_ARENA_H
#define MLO_BASE_ARENA_H

#include <stdarg.h>
#include <stddef.h>

#include "base/macros.h"

struct mlo_arena;

/* A new, empty arena; NULL when out of memory. */
struct mlo_arena *mlo_arena_new(void);
/* The same, that takes so many bytes at a time from the heap, and zeroes them (else 64 KiB): for what is
 * small and comes often. */
struct mlo_arena *mlo_arena_new_of(size_t chunk_bytes);
/* Frees the arena and all that was allocated from it. NULL is allowed. */
void mlo_arena_free(struct mlo_arena *arena);

/* `size` bytes, zeroed, aligned to 16 (a size of 0 gives a valid pointer). */
void *mlo_arena_alloc(struct mlo_arena *arena, size_t size);
/* `count * size` zeroed bytes; NULL when the product overflows. */
void *mlo_arena_calloc(struct mlo_arena *arena, size_t count, size_t size);
/* `size` zeroed bytes aligned to `align` (a power of two). */
void *mlo_arena_aligned(struct mlo_arena *arena, size_t align, size_t size);
/* Copies of a string, of its first n bytes (then terminated), of raw bytes, and of formatted text. */
char *mlo_arena_strdup(struct mlo_arena *arena, const char *text);
char *mlo_arena_strndup(struct mlo_arena *arena, const char *text, size_t n);
void *mlo_arena_memdup(struct mlo_arena *arena, const void *bytes, size_t size);
char *mlo_arena_printf(struct mlo_arena *arena, const char *fmt, ...) MLO_PRINTF(2, 3);

/* Room for one element more in an array of `count`, of which *cap fit: the array itself, or a larger one with
 * its elements (the old one stays, since arenas give nothing back: it doubles). NULL: out of memory. */
void *mlo_arena_grow(struct mlo_arena *arena, void *array, int count, int *cap, size_t element);

/* Runs fn(arg) when the arena is freed, last registered first. Returns 0, or -1 when out of memory. */
int mlo_arena_on_free(struct mlo_arena *arena, void (*fn)(void *arg), void *arg);

/* Bytes handed out so far. */
size_t mlo_arena_used(const struct mlo_arena *arena);

#endif
