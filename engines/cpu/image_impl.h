/* Private to engines/cpu: a plan as a file. Step classes write their data with cpu_put_* and read it back
 * with cpu_get_*; constants (packed weights) lie in a section of their own, and are used where they are
 * mapped.
 *
 * A step class that can be saved has a unique `id`, a row in classes.c, and
 *   save:    puts the plain fields of step->data, and each constant that is no slot with cpu_put_const;
 *   restore: gets them in the same order, checks every number (cpu_slot_holds, cpu_check), and sets
 *            step->data. What cpu_get_const returned is the file's: free_data must not free it.
 * Kernels are never written: they are chosen again by plan->isa, which is the one that the plan was made
 * for. Changes of what is written need no version: the fingerprint has a digest of these sources. */
#ifndef MLO_ENGINES_CPU_IMAGE_IMPL_H
#define MLO_ENGINES_CPU_IMAGE_IMPL_H

#include "engines/cpu/cpu_impl.h"
#include "engines/cpu/fields_impl.h"

/* The step reads or writes so many bytes of that slot (checks the index too). */
bool cpu_slot_holds(struct cpu_reader *r, const struct mlo_plan *plan, int slot, size_t bytes);
/* The value's content can be read from the slot. */
bool cpu_value_fits(struct cpu_reader *r, const struct mlo_plan *plan, const struct mlo_value *value,
                    int slot);

/* All classes that can be saved (classes.c). NULL: none of that id. */
const struct cpu_step_class *cpu_step_class_find(const char *id);

/* --- the engine's save and restore ------------------------------------------------------------------ */

MLO_MUST_USE enum mlo_status cpu_plan_save(const struct mlo_plan *plan, int fd, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cpu_plan_restore(const void *bytes, size_t size, struct mlo_plan **out,
                                              struct mlo_error *err);

#endif
