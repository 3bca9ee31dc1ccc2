/* Some programs run once for each instruction set: ctest sets MLOPT_ISA, and MLOPT_ISA_CASE for what makes a
 * case of its own. Where the machine has not that set the kernels would be those of a lower one, which has
 * its case. */
#ifndef MLO_TESTS_ISA_CASE_H
#define MLO_TESTS_ISA_CASE_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/engines.h"

enum { ISA_CASE_SKIP = 77 };

/* Whether another case runs what this one would; says so. MLOPT_ISA_CASE is "have" (every set that the
 * machine has is a case) or "below" (the machine's best is what runs without MLOPT_ISA). */
static inline bool isa_case_is_elsewhere(void)
{
    const char *rule = getenv("MLOPT_ISA_CASE"), *env = getenv("MLOPT_ISA");
    char asked[32];
    if (!rule || !env)
        return false;
    snprintf(asked, sizeof asked, "%s", env);
    enum mlo_isa runs = mlo_isa_current();
    unsetenv("MLOPT_ISA");
    enum mlo_isa best = mlo_isa_current();
    setenv("MLOPT_ISA", asked, 1);
    if (strcmp(asked, mlo_isa_name(runs)) == 0 && (strcmp(rule, "below") != 0 || runs < best))
        return false;
    printf("skipped: the best of this machine is %s, which another case runs\n", mlo_isa_name(best));
    return true;
}

#endif
