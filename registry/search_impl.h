/* Private to registry: a search that was read. */
#ifndef MLO_REGISTRY_SEARCH_IMPL_H
#define MLO_REGISTRY_SEARCH_IMPL_H

#include "registry/facts.h"
#include "registry/search.h"

/* A closed range of values under one name: every condition is one. */
struct mlo_search_range {
    const char *kind; /* of fact_name; static */
    char name[MLO_FACT_NAME_MAX + 4];
    bool negated; /* no such value, rather than one */
    bool number;  /* low to high, else lo to hi */
    double low, high;
    char lo[MLO_FACT_TEXT_MAX + 8], hi[MLO_FACT_TEXT_MAX + 8];
    int64_t name_id; /* found later; 0: the project has no such name */
    int64_t count;   /* later: how many versions it fits, at most as many as a page looks at */
};

struct mlo_search_query {
    struct mlo_search_range *ranges; /* MLO_SEARCH_CONDITIONS_MAX of them */
    size_t count;
    const char *order_kind; /* NULL: by creation */
    char order_name[MLO_FACT_NAME_MAX + 4];
    bool ascending;
    int64_t order_id;
};

/* Reads filter and order. Datasets that are named are looked up. */
enum mlo_status mlo_search_parse(struct mlo_db_conn *conn, const struct mlo_search *search,
                                 struct mlo_search_query *out, struct mlo_error *err);

#endif
