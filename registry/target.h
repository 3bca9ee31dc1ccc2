/* Targets: feature sets that a variant needs and a consumer has. */
#ifndef MLO_REGISTRY_TARGET_H
#define MLO_REGISTRY_TARGET_H

#include <stdbool.h>

/* "any", "cpu:avx2", "cuda:sm90"…: a known name, or well-formed "kind:feature". */
bool mlo_target_valid(const char *target);
/* Whether a consumer can use a variant made for `target`. `consumer` is a target or a comma-separated list of
 * them ("cpu:avx512-vnni,cuda:sm90"); each includes what it implies: cpu:avx512-vnni includes cpu:avx512 and
 * cpu:avx2; cuda:sm89 includes the lower ones of its generation (base/sm.h). Everybody satisfies "any". NULL
 * stands for "any". */
bool mlo_target_satisfies(const char *consumer, const char *target);
/* How specific a target is: 0 for "any", more for longer chains of implication; cuda before cpu. */
int mlo_target_rank(const char *target);

#endif
