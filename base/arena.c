#include "base/arena.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_SIZE ((size_t)64 * 1024)

struct chunk {
    struct chunk *next;
    size_t size, used;
    unsigned char *bytes;
};

struct cleanup {
    struct cleanup *next;
    void (*fn)(void *);
    void *arg;
};

struct mlo_arena {
    struct chunk *chunks;
    struct cleanup *cleanups;
    size_t used, chunk_size;
};

struct mlo_arena *mlo_arena_new(void)
{
    return mlo_arena_new_of(CHUNK_SIZE);
}

struct mlo_arena *mlo_arena_new_of(size_t chunk_bytes)
{
    struct mlo_arena *arena = calloc(1, sizeof *arena);
    if (arena)
        arena->chunk_size = chunk_bytes;
    return arena;
}

void mlo_arena_free(struct mlo_arena *arena)
{
    if (!arena)
        return;
    for (struct cleanup *c = arena->cleanups; c; c = c->next)
        c->fn(c->arg);
    for (struct chunk *c = arena->chunks, *next; c; c = next) {
        next = c->next;
        free(c->bytes);
        free(c);
    }
    free(arena);
}

static struct chunk *add_chunk(struct mlo_arena *arena, size_t size)
{
    struct chunk *c = malloc(sizeof *c);
    if (!c)
        return NULL;
    /* calloc: the kernel hands out zero pages, so large blocks cost nothing until touched */
    c->bytes = calloc(1, size);
    if (!c->bytes) {
        free(c);
        return NULL;
    }
    c->size = size;
    c->used = 0;
    c->next = arena->chunks;
    arena->chunks = c;
    return c;
}

void *mlo_arena_aligned(struct mlo_arena *arena, size_t align, size_t size)
{
    if (size == 0)
        size = 1;
    if (size > SIZE_MAX / 2)
        return NULL;
    arena->used += size;
#ifdef MLOPT_SANITIZED
    struct chunk *own = add_chunk(arena, size + align);
    if (!own)
        return NULL;
    return own->bytes + (-(uintptr_t)own->bytes & (align - 1));
#else
    struct chunk *c = arena->chunks;
    if (c) {
        size_t pad = -((uintptr_t)c->bytes + c->used) & (align - 1);
        if (pad + size <= c->size - c->used) {
            void *p = c->bytes + c->used + pad;
            c->used += pad + size;
            return p;
        }
    }
    size_t want = size + align > arena->chunk_size / 4 ? size + align : arena->chunk_size;
    struct chunk *fresh = add_chunk(arena, want);
    if (!fresh)
        return NULL;
    size_t pad = -(uintptr_t)fresh->bytes & (align - 1);
    fresh->used = pad + size;
    if (want != arena->chunk_size && c) { /* keep filling the half-empty chunk that came before */
        fresh->next = c->next;
        c->next = fresh;
        arena->chunks = c;
    }
    return fresh->bytes + pad;
#endif
}

void *mlo_arena_alloc(struct mlo_arena *arena, size_t size)
{
    return mlo_arena_aligned(arena, 16, size);
}

void *mlo_arena_calloc(struct mlo_arena *arena, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size)
        return NULL;
    return mlo_arena_alloc(arena, count * size);
}

void *mlo_arena_memdup(struct mlo_arena *arena, const void *bytes, size_t size)
{
    void *p = mlo_arena_alloc(arena, size);
    if (p && size)
        memcpy(p, bytes, size);
    return p;
}

char *mlo_arena_strndup(struct mlo_arena *arena, const char *text, size_t n)
{
    n = strnlen(text, n);
    char *p = mlo_arena_aligned(arena, 1, n + 1);
    if (p)
        memcpy(p, text, n);
    return p;
}

char *mlo_arena_strdup(struct mlo_arena *arena, const char *text)
{
    return mlo_arena_strndup(arena, text, strlen(text));
}

char *mlo_arena_printf(struct mlo_arena *arena, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *p = n < 0 ? NULL : mlo_arena_aligned(arena, 1, (size_t)n + 1);
    if (p) {
        va_start(args, fmt);
        vsnprintf(p, (size_t)n + 1, fmt, args);
        va_end(args);
    }
    return p;
}

void *mlo_arena_grow(struct mlo_arena *arena, void *array, int count, int *cap, size_t element)
{
    if (count < *cap)
        return array;
    int bigger = *cap ? *cap * 2 : 4;
    void *fresh = mlo_arena_calloc(arena, (size_t)bigger, element);
    if (!fresh)
        return NULL;
    if (count)
        memcpy(fresh, array, (size_t)count * element);
    *cap = bigger;
    return fresh;
}

int mlo_arena_on_free(struct mlo_arena *arena, void (*fn)(void *arg), void *arg)
{
    struct cleanup *c = mlo_arena_alloc(arena, sizeof *c);
    if (!c)
        return -1;
    c->fn = fn;
    c->arg = arg;
    c->next = arena->cleanups;
    arena->cleanups = c;
    return 0;
}

size_t mlo_arena_used(const struct mlo_arena *arena)
{
    return arena->used;
}
