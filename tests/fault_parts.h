/* How much of a kill campaign a run takes. */
#ifndef MLO_TESTS_FAULT_PARTS_H
#define MLO_TESTS_FAULT_PARTS_H

#include <stdio.h>

#include "tests/cm.h"

/* Whether all steps are taken (MLOPT_FAULT_ALL=1), or all of one part of several (=2/3). */
static inline bool fault_takes_all(size_t *part, size_t *parts)
{
    const char *all = getenv("MLOPT_FAULT_ALL");
    *part = *parts = 1;
    if (!all || strcmp(all, "1") == 0)
        return all != NULL;
    /* a sign would be read as a large number */
    if (strchr(all, '-') || sscanf(all, "%zu/%zu", part, parts) != 2 || *part < 1 || *part > *parts)
        fail_msg("MLOPT_FAULT_ALL=%s: 1 takes all steps, 2/3 those of the second of three parts", all);
    return true;
}

/* What chooses the steps of a run that takes some: MLOPT_FAULT_SEED, or the time. */
static inline int64_t fault_seed(void)
{
    const char *text = getenv("MLOPT_FAULT_SEED");
    int64_t seed = mlo_clock_utc_us() / 1000;
    if (text && !mlo_str_to_i64(text, &seed))
        fail_msg("MLOPT_FAULT_SEED=%s: a number, such as a run prints", text);
    return seed;
}

#endif
