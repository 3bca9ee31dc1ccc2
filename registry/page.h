/* Keyset paging: a list gives {"items":[…], "next": cursor or null}. */
#ifndef MLO_REGISTRY_PAGE_H
#define MLO_REGISTRY_PAGE_H

#include <stdint.h>

#define MLO_PAGE_DEFAULT 50
#define MLO_PAGE_MAX 500

struct mlo_page {
    const char *cursor; /* the "next" of the page before; NULL or "": the first page */
    int64_t limit;      /* 0: MLO_PAGE_DEFAULT; at most MLO_PAGE_MAX */
};

#endif
