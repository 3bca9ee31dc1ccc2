/* MLOPT_PART=2/16: of a program's cases, every 16th from the second on. Sixteen of them use a box's
 * processors, and what takes a GPU's context down takes few other cases with it (tests/gpu/run.sh). */
#ifndef TESTS_PART_H
#define TESTS_PART_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static inline bool part_has(int index)
{
    int number, parts;
    const char *part = getenv("MLOPT_PART");
    return !part || sscanf(part, "%d/%d", &number, &parts) != 2 || parts < 1 || index % parts == number - 1;
}

#endif
