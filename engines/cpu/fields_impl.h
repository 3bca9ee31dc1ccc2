/* Private to engines/: how plans' files are written and read. A stream of fields (numbers little-endian as
 * this machine has them, texts with their size in front), and a section of constants, each at a multiple of
 * 64 with at least 64 bytes behind it. */
#ifndef MLO_ENGINES_CPU_FIELDS_IMPL_H
#define MLO_ENGINES_CPU_FIELDS_IMPL_H

#include "engines/engines_impl.h"

struct cpu_constant {
    const void *data;
    size_t size;
    uint64_t offset; /* in the section */
};

struct cpu_writer {
    struct mlo_buf fields;
    struct cpu_constant *constants;
    size_t count, cap;
    uint64_t constants_bytes;
};

struct cpu_reader {
    const char *fields, *constants;
    size_t fields_bytes, constants_bytes, at;
    const char *refused; /* why the bytes are no plan; NULL: all is well */
};

/* What a constant takes in the section. */
static inline uint64_t cpu_constant_room(size_t size)
{
    return ((uint64_t)size + 127) & ~(uint64_t)63;
}

/* The next bytes, borrowed; NULL when there are not so many. */
const void *cpu_get_run(struct cpu_reader *r, size_t size);

/* Writing never fails by itself: a lack of memory shows at the end. */
void cpu_put_u32(struct cpu_writer *w, uint32_t value);
void cpu_put_i32(struct cpu_writer *w, int32_t value);
void cpu_put_u64(struct cpu_writer *w, uint64_t value);
void cpu_put_i64(struct cpu_writer *w, int64_t value);
void cpu_put_f32(struct cpu_writer *w, float value);
/* A struct without pointers, as it is in memory. */
void cpu_put_bytes(struct cpu_writer *w, const void *bytes, size_t size);
void cpu_put_text(struct cpu_writer *w, const char *text);
/* Constant memory of the plan: written once however often it is named. It must live until the file is
 * written. NULL with size 0 is fine. */
void cpu_put_const(struct cpu_writer *w, const void *data, size_t size);

/* Reading beyond the end, or something that a check refuses, makes the reader failed: then every get returns
 * zero, and the restoring function returns cpu_reader_status. */
uint32_t cpu_get_u32(struct cpu_reader *r);
int32_t cpu_get_i32(struct cpu_reader *r);
uint64_t cpu_get_u64(struct cpu_reader *r);
int64_t cpu_get_i64(struct cpu_reader *r);
float cpu_get_f32(struct cpu_reader *r);
bool cpu_get_bytes(struct cpu_reader *r, void *bytes, size_t size);
/* Borrowed from the file, terminated; "" when failed. */
const char *cpu_get_text(struct cpu_reader *r);
/* A constant of exactly so many bytes, aligned to 64, with 64 readable bytes behind it; NULL when there is
 * none (then the reader is failed unless size is 0). */
const void *cpu_get_const(struct cpu_reader *r, size_t size);
/* Fails the reader unless `ok`; returns whether it is (still) good. `what` goes into the error. */
bool cpu_check(struct cpu_reader *r, bool ok, const char *what);
/* A number of things, `max` at most, of which each takes at least `each` bytes of what follows. */
int cpu_get_count(struct cpu_reader *r, uint32_t max, size_t each);
/* a * b * c bytes; SIZE_MAX when that overflows, which no slot holds. */
size_t cpu_product(size_t a, size_t b, size_t c);
bool cpu_failed(const struct cpu_reader *r);
enum mlo_status cpu_reader_status(const struct cpu_reader *r, struct mlo_error *err);

/* The whole: a head with `magic` and the sizes, the fields, the constants. */
MLO_MUST_USE enum mlo_status cpu_fields_write(const struct cpu_writer *w, uint32_t magic, int fd,
                                              struct mlo_error *err);
/* Reads such bytes, which lie at a multiple of 64; what the head says is checked. */
MLO_MUST_USE enum mlo_status cpu_fields_open(struct cpu_reader *r, uint32_t magic, const void *bytes,
                                             size_t size, struct mlo_error *err);

#endif
