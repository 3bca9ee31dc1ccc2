/* Private to the fast numerics: convolutions that follow each other as one step. */
#ifndef MLO_ENGINES_CPU_FAST_LINES_IMPL_H
#define MLO_ENGINES_CPU_FAST_LINES_IMPL_H

#include "engines/cpu/fast/fast_impl.h"

/* Joins steps where what is between them is more than a cache holds. After lowering, before the memory plan.
 */
MLO_MUST_USE enum mlo_status fast_join_lines(struct mlo_plan *plan, struct mlo_error *err);
extern const struct cpu_step_class fast_lines_class;

#endif
