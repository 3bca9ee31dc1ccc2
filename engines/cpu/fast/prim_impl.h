/* Private to the fast numerics: what a step of oneDNN holds. */
#ifndef MLO_ENGINES_CPU_FAST_PRIM_IMPL_H
#define MLO_ENGINES_CPU_FAST_PRIM_IMPL_H

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

enum { PRIM_ARGS_MAX = 8 };

struct prim {
    dnnl_primitive_t handle;
    int count;
    struct {
        int arg, slot;
        dnnl_memory_desc_t md;
    } args[PRIM_ARGS_MAX];
    bool has_scratch;
    dnnl_memory_desc_t scratch;
};

/* What decides the bytes of a reordered constant, without the padding of oneDNN's structs. */
struct fast_md_key {
    int64_t dims[8], strides[8], padded[8], inner[8], inner_axes[8];
    int64_t offset, rank, type, kind, inner_count, flags, masks[2];
    float scale_adjust;
    float unused;
};
void fast_md_key(const dnnl_memory_desc_t *md, struct fast_md_key *key);

void fast_prim_free(void *data);
/* Makes the primitive and notes its scratch memory. */
dnnl_status_t fast_prim_make(struct prim *p, const_dnnl_primitive_desc_t pd);

/* prim_image.c: into a plan's file and out of it. What is kept is what was asked of oneDNN. */
enum mlo_status fast_prim_save(const struct mlo_plan *plan, const struct cpu_step *step, struct cpu_writer *w,
                               struct mlo_error *err);
enum mlo_status fast_prim_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                  struct mlo_error *err);

#endif
