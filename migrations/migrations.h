/* The numbered SQL scripts of this folder, embedded in the binary. registry/migrate.h runs them. */
#ifndef MLO_MIGRATIONS_H
#define MLO_MIGRATIONS_H

#include <stddef.h>

struct mlo_migration {
    int number;       /* 1, 2, 3 … */
    const char *name; /* "0001_schema" */
    const char *text; /* SQL, NUL-terminated */
    size_t size;      /* without the NUL */
};

/* All of them, by number. */
const struct mlo_migration *mlo_migrations(size_t *count);

#endif
