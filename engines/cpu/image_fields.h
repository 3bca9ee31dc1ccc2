/* Private to the files that make and read plans' files: what a writer and a reader hold.
 *
 * The engine's part of a file: a head, fields (numbers little-endian as this machine has them, texts with
 * their size in front), then the constants, each at a multiple of 64 with at least 64 bytes behind it. */
#ifndef MLO_ENGINES_CPU_IMAGE_FIELDS_H
#define MLO_ENGINES_CPU_IMAGE_FIELDS_H

#include "engines/cpu/image_impl.h"

#define CPU_IMAGE_MAGIC 0x4e504c4du   /* "MLPN" */
#define CPU_IMAGE_NO_SLOT 0xffffffffu /* a slot that no step needs */

struct cpu_image_head {
    uint32_t magic, reserved;
    uint64_t fields_bytes;
    uint64_t constants_offset, constants_bytes; /* the offset from the head, a multiple of 64 */
};

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

#endif
