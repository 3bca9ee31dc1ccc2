/* How much of a kill campaign a run takes. */
#ifndef MLO_TESTS_FAULT_PARTS_H
#define MLO_TESTS_FAULT_PARTS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cm.h"

/* Whether all steps are taken (MLOPT_FAULT_ALL=1), or all of one part of several (=2/3). */
static inline bool fault_takes_all(long *part, long *parts)
{
    const char *all = getenv("MLOPT_FAULT_ALL");
    *part = *parts = 1;
    if (!all || strcmp(all, "1") == 0)
        return all != NULL;
    if (sscanf(all, "%ld/%ld", part, parts) != 2 || *part < 1 || *part > *parts)
        fail_msg("MLOPT_FAULT_ALL=%s: 1 takes all steps, 2/3 those of the second of three parts", all);
    return true;
}

#endif
