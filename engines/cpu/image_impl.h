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

/* Writing never fails by itself: a lack of memory shows at the end. */
void cpu_put_u32(struct cpu_writer *w, uint32_t value);
void cpu_put_i32(struct cpu_writer *w, int32_t value);
void cpu_put_u64(struct cpu_writer *w, uint64_t value);
void cpu_put_i64(struct cpu_writer *w, int64_t value);
void cpu_put_f32(struct cpu_writer *w, float value);
/* A struct without pointers, as it is in memory. */
void cpu_put_bytes(struct cpu_writer *w, const void *bytes, size_t size);
void cpu_put_text(struct cpu_writer *w, const char *text);
/* Constant memory of the plan: written once however often it is named. It must live until the file is
 * written. NULL with size 0 is fine. */
void cpu_put_const(struct cpu_writer *w, const void *data, size_t size);

/* Reading beyond the end, or something that a check refuses, makes the reader failed: then every get returns
 * zero, and the restoring function returns cpu_reader_status. */
uint32_t cpu_get_u32(struct cpu_reader *r);
int32_t cpu_get_i32(struct cpu_reader *r);
uint64_t cpu_get_u64(struct cpu_reader *r);
int64_t cpu_get_i64(struct cpu_reader *r);
float cpu_get_f32(struct cpu_reader *r);
bool cpu_get_bytes(struct cpu_reader *r, void *bytes, size_t size);
/* Borrowed from the file, terminated; "" when failed. */
const char *cpu_get_text(struct cpu_reader *r);
/* A constant of exactly so many bytes, aligned to 64, with 64 readable bytes behind it; NULL when there is
 * none (then the reader is failed unless size is 0). */
const void *cpu_get_const(struct cpu_reader *r, size_t size);
/* Fails the reader unless `ok`; returns whether it is (still) good. `what` goes into the error. */
bool cpu_check(struct cpu_reader *r, bool ok, const char *what);
/* The step reads or writes so many bytes of that slot (checks the index too). */
bool cpu_slot_holds(struct cpu_reader *r, const struct mlo_plan *plan, int slot, size_t bytes);
/* The value's content can be read from the slot. */
bool cpu_value_fits(struct cpu_reader *r, const struct mlo_plan *plan, const struct mlo_value *value,
                    int slot);
/* a * b * c bytes; SIZE_MAX when that overflows, which no slot holds. */
size_t cpu_product(size_t a, size_t b, size_t c);
bool cpu_failed(const struct cpu_reader *r);
enum mlo_status cpu_reader_status(const struct cpu_reader *r, struct mlo_error *err);

/* All classes that can be saved (classes.c). NULL: none of that id. */
const struct cpu_step_class *cpu_step_class_find(const char *id);

/* --- the engine's save and restore ------------------------------------------------------------------ */

MLO_MUST_USE enum mlo_status cpu_plan_save(const struct mlo_plan *plan, int fd, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cpu_plan_restore(const void *bytes, size_t size, struct mlo_plan **out,
                                              struct mlo_error *err);

#endif
