/* What plans' files are written and read with: a stream of fields, and a section of constants. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fields_impl.h"

/* --- writing ------------------------------------------------------------------------------------------ */

void cpu_put_bytes(struct cpu_writer *w, const void *bytes, size_t size)
{
    mlo_buf_append(&w->fields, bytes, size);
}

void cpu_put_text(struct cpu_writer *w, const char *text)
{
    size_t size = strlen(text) + 1;
    cpu_put_u32(w, (uint32_t)size);
    cpu_put_bytes(w, text, size);
}

void cpu_put_const(struct cpu_writer *w, const void *data, size_t size)
{
    size_t i = 0;
    if (!data)
        size = 0;
    while (i < w->count && (w->constants[i].data != data || w->constants[i].size != size))
        i++;
    if (size && i == w->count) {
        if (w->count == w->cap) {
            size_t cap = w->cap ? w->cap * 2 : 64;
            struct cpu_constant *more = realloc(w->constants, cap * sizeof *more);
            if (!more) {
                w->fields.failed = true;
                return;
            }
            w->constants = more;
            w->cap = cap;
        }
        w->constants[w->count++] = (struct cpu_constant){data, size, w->constants_bytes};
        w->constants_bytes += cpu_constant_room(size);
    }
    cpu_put_u64(w, size ? w->constants[i].offset : 0);
    cpu_put_u64(w, size);
}

/* --- reading ------------------------------------------------------------------------------------------ */

bool cpu_check(struct cpu_reader *r, bool ok, const char *what)
{
    if (!ok && !r->refused)
        r->refused = what;
    return !r->refused;
}

bool cpu_get_bytes(struct cpu_reader *r, void *bytes, size_t size)
{
    if (!cpu_check(r, size <= r->fields_bytes - r->at, "it ends too early")) {
        memset(bytes, 0, size);
        return false;
    }
    memcpy(bytes, r->fields + r->at, size);
    r->at += size;
    return true;
}

/* Each plain type as it is in memory. */
#define PLAIN(name, type)                                                                                    \
    void cpu_put_##name(struct cpu_writer *w, type value)                                                    \
    {                                                                                                        \
        cpu_put_bytes(w, &value, sizeof value);                                                              \
    }                                                                                                        \
    type cpu_get_##name(struct cpu_reader *r)                                                                \
    {                                                                                                        \
        type value;                                                                                          \
        cpu_get_bytes(r, &value, sizeof value);                                                              \
        return value;                                                                                        \
    }
PLAIN(u32, uint32_t)
PLAIN(i32, int32_t)
PLAIN(u64, uint64_t)
PLAIN(i64, int64_t)
PLAIN(f32, float)

const void *cpu_get_run(struct cpu_reader *r, size_t size)
{
    if (!cpu_check(r, size <= r->fields_bytes - r->at, "it ends too early"))
        return NULL;
    const char *at = r->fields + r->at;
    r->at += size;
    return at;
}

/* Names go into reports, and JSON holds UTF-8 only. */
static bool is_utf8(const char *text)
{
    json_t *string = json_string(text);
    json_decref(string);
    return string != NULL;
}

const char *cpu_get_text(struct cpu_reader *r)
{
    size_t size = cpu_get_u32(r);
    const char *text = cpu_get_run(r, size);
    bool ok = text &&
              cpu_check(r, size > 0 && memchr(text, 0, size) == text + size - 1, "a text has no end") &&
              cpu_check(r, is_utf8(text), "a text is no UTF-8");
    return ok ? text : "";
}

const void *cpu_get_const(struct cpu_reader *r, size_t size)
{
    uint64_t offset = cpu_get_u64(r), given = cpu_get_u64(r);
    if (!cpu_check(r, given == size, "a constant has another size than its step needs") || !size)
        return NULL;
    bool inside = offset % 64 == 0 && given <= r->constants_bytes && offset <= r->constants_bytes - given &&
                  r->constants_bytes - given - offset >= 64;
    return cpu_check(r, inside, "a constant lies outside of the file") ? r->constants + offset : NULL;
}

int cpu_get_count(struct cpu_reader *r, uint32_t max, size_t each)
{
    uint32_t n = cpu_get_u32(r);
    bool ok = cpu_check(r, n <= max && n <= (r->fields_bytes - r->at) / each, "a count is too large");
    return ok ? (int)n : 0;
}

size_t cpu_product(size_t a, size_t b, size_t c)
{
    size_t ab, abc;
    return __builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc) ? SIZE_MAX : abc;
}

bool cpu_failed(const struct cpu_reader *r)
{
    return r->refused != NULL;
}

enum mlo_status cpu_reader_status(const struct cpu_reader *r, struct mlo_error *err)
{
    return r->refused ? mlo_error_set(err, MLO_EFORMAT, "the plan is damaged: %s", r->refused) : MLO_OK;
}

/* --- the whole ------------------------------------------------------------------------------------------ */

struct fields_head {
    uint32_t magic, reserved;
    uint64_t fields_bytes;
    uint64_t constants_offset, constants_bytes; /* the offset from the head, a multiple of 64 */
};

static bool write_constants(const struct cpu_writer *w, int fd)
{
    static const char zeros[128];
    for (size_t i = 0; i < w->count; i++) {
        const struct cpu_constant *c = &w->constants[i];
        if (!mlo_fs_write_full(fd, c->data, c->size) ||
            !mlo_fs_write_full(fd, zeros, (size_t)(cpu_constant_room(c->size) - c->size)))
            return false;
    }
    return true;
}

enum mlo_status cpu_fields_write(const struct cpu_writer *w, uint32_t magic, int fd, struct mlo_error *err)
{
    if (!mlo_buf_ok(&w->fields))
        return mlo_error_nomem(err);
    static const char zeros[64];
    struct fields_head head = {
        .magic = magic, .fields_bytes = w->fields.len, .constants_bytes = w->constants_bytes};
    uint64_t end = sizeof head + w->fields.len;
    head.constants_offset = (end + 63) & ~(uint64_t)63;
    bool ok = mlo_fs_write_full(fd, &head, sizeof head) &&
              mlo_fs_write_full(fd, w->fields.data, w->fields.len) &&
              mlo_fs_write_full(fd, zeros, (size_t)(head.constants_offset - end)) && write_constants(w, fd);
    return ok ? MLO_OK : mlo_error_errno(err, errno, "cannot write the plan");
}

enum mlo_status cpu_fields_open(struct cpu_reader *r, uint32_t magic, const void *bytes, size_t size,
                                struct mlo_error *err)
{
    struct fields_head head;
    if (!cpu_check(r, size >= sizeof head && (uintptr_t)bytes % 64 == 0, "it ends too early"))
        return cpu_reader_status(r, err);
    memcpy(&head, bytes, sizeof head);
    bool ok = head.magic == magic && head.fields_bytes <= size - sizeof head &&
              head.constants_offset % 64 == 0 && head.constants_offset <= size &&
              head.constants_offset >= sizeof head + head.fields_bytes &&
              head.constants_bytes <= size - head.constants_offset;
    if (cpu_check(r, ok, "its parts do not fit into it")) {
        r->fields = (const char *)bytes + sizeof head;
        r->fields_bytes = (size_t)head.fields_bytes;
        r->constants = (const char *)bytes + head.constants_offset;
        r->constants_bytes = (size_t)head.constants_bytes;
    }
    return cpu_reader_status(r, err);
}
