/* What came of a download that was cut off, kept beside the file that it becomes: DIR/.mlopt-<digest>.part.
 * It is of one process at a time, and whoever goes on with it hashes it first: nothing that lies on the disk
 * is believed. */
#ifndef MLO_CLI_PART_H
#define MLO_CLI_PART_H

#include "base/base.h"

struct mlo_part {
    char *path; /* NULL: none is kept */
    int fd;     /* locked, at its end; -1 */
};

/* Opens, or makes, the part of `digest` in `dir`. Without one (another process has it, it is another
 * user's or has a second name, the folder's file system has no locks) `out` is empty and the caller downloads
 * without. */
void mlo_part_open(const char *dir, const struct mlo_digest *digest, struct mlo_part *out);
/* Feeds what is there to the hasher, which is empty; the number of bytes, and the end of the file is where it
 * is written next. 0 for what cannot be read, which is cut off. */
uint64_t mlo_part_hash(struct mlo_part *part, struct mlo_hasher *hasher);
/* Closes it. It stays unless it is empty, or `drop`; *kept (may be NULL) is how many bytes of it stay. */
void mlo_part_close(struct mlo_part *part, bool drop, uint64_t *kept);

#endif
