/* Loads: what was run where. A latency of one load says nothing of another, so pages, the API's summaries and
 * the command line all ask here whether two are the same, and say in the same words which one a number is
 * for. */
#ifndef MLO_HTML_LOAD_H
#define MLO_HTML_LOAD_H

#include "base/base.h"

/* A load is an object with "batch", "threads" and "machine_class", as the rows of a variant's "latency" are
 * (docs/api.md). */
bool mlo_load_same(const json_t *a, const json_t *b);
/* The row of an array of loads that is this load; NULL when there is none. Borrowed. */
json_t *mlo_load_row(const json_t *rows, const json_t *load);

#define MLO_LOAD_TEXT_SIZE 96
/* "batch 8, 2 threads" of an object with these members, a load or the "params" of evidence; "" where it has
 * neither. Returns `out`. */
const char *mlo_load_text(const json_t *load, char out[MLO_LOAD_TEXT_SIZE]);

#endif
