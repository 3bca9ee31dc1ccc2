/* Headers by which a client says what it takes: Accept, Accept-Encoding (RFC 9110, 12.4.2). */
#ifndef MLO_BASE_ACCEPT_H
#define MLO_BASE_ACCEPT_H

/* The greatest weight of `name` in such a header: 0 to 1, 1 where it says none or nonsense; -1: `name` is not
 * listed, or `list` is NULL. */
double mlo_accept_quality(const char *list, const char *name);

#endif
