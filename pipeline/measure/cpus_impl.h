/* Choosing the CPUs that a benchmark is pinned to. */
#ifndef MLO_MEASURE_CPUS_IMPL_H
#define MLO_MEASURE_CPUS_IMPL_H

#include <sched.h>

#include "base/base.h"

/* Chooses `count` of the CPUs that this thread may run on: those that were least busy over the last tenth of
 * a second, on different cores where there are enough. False (and *out untouched) when there are not more
 * than `count`, so that there is nothing to choose. */
bool mlo_cpus_choose(unsigned count, cpu_set_t *out);

#endif
