/* Folders of files that can be made again: what was not used for longest goes first. */
#ifndef MLO_BASE_CACHE_H
#define MLO_BASE_CACHE_H

#include <stddef.h>
#include <stdint.h>

struct mlo_cache_limits {
    const char *suffix; /* of the names that are kept within the bounds */
    const char *const
        *unfinished; /* prefixes of files being made, ended by NULL: an hour old they are nobody's */
    size_t max_files;
    uint64_t max_bytes; /* the file used last stays, however large it is */
};

/* Keeps an opened folder within its bounds. A file was used when it was last modified: futimens() says so.
 * Who opened or mapped a file keeps it. What cannot be removed stays. */
void mlo_cache_trim(int folder, const struct mlo_cache_limits *limits);

#endif
