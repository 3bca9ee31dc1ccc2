/* Text files that are part of the program (migrations, recipes, style sheets): cmake/EmbedFiles.cmake makes
 * arrays of these. */
#ifndef MLO_BASE_EMBED_H
#define MLO_BASE_EMBED_H

#include <stddef.h>

struct mlo_embedded_file {
    const char *name; /* without folder */
    const char *text; /* NUL-terminated behind its size */
    size_t size;
};

#endif
