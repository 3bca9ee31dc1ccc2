/* Private to engines/cuda/kernels: how the texts of kernels are put together.
 *
 * A text is written once, in a subset of C and CUDA C (text/prelude_*.inc has its words), and holds both
 * preludes: NVRTC takes one, a C compiler the other. Threads of a block work in phases: MLK_THREADS { … } and
 * MLK_SYNC between them; what a thread keeps over phases is MLK_LOCAL. On the CPU a phase is a loop over the
 * threads of a block, forwards or backwards. */
#ifndef MLO_ENGINES_CUDA_KERNELS_IMPL_H
#define MLO_ENGINES_CUDA_KERNELS_IMPL_H

#include "engines/cuda/cuda_impl.h"

/* What begins the names of an element type's functions and of the type itself ("f16" of mlk_t_f16,
 * mlk_get_f16, mlk_put_f16); NULL: kernels have no such type. */
const char *cuda_type_name(enum mlo_dtype dtype);
bool cuda_type_is_whole(enum mlo_dtype dtype); /* an integer, or bool */

struct cuda_parameter {
    char name[24];
    enum mlo_dtype dtype;
    bool written;
};
enum { CUDA_PARAMETERS_MAX = 2 * CUDA_STEP_SLOTS, CUDA_GRID_MAX = 8192 };
struct cuda_frame {
    const char *entry;
    int threads;  /* of a block */
    int budget;   /* registers of a thread */
    bool wide;    /* indices need 64 bits */
    bool aliased; /* a result may lie where an operand does */
    int parameter_count;
    struct cuda_parameter parameters[CUDA_PARAMETERS_MAX];
};
void cuda_frame_parameter(struct cuda_frame *f, enum mlo_dtype dtype, bool written, const char *name, ...)
    MLO_PRINTF(4, 5);
/* The preludes and what a body is told by names: MLK_BLOCK, mlk_index, MLK_KERNEL (the head of the kernel's
 * function). A body follows. */
void cuda_frame_begin(struct mlo_buf *b, const struct cuda_frame *f);
/* Behind the body; makes *out of it, with so many blocks (at least 1, at most CUDA_GRID_MAX). */
MLO_MUST_USE enum mlo_status cuda_frame_end(struct mlo_buf *b, const struct cuda_frame *f, int64_t blocks,
                                            struct cuda_source *out, struct mlo_error *err);
/* An embedded text; a name that is not there is a bug. */
void cuda_text_append(struct mlo_buf *b, const char *name);
/* A float as a literal of the subset. */
void cuda_float_append(struct mlo_buf *b, float v);
/* The kernel that computes what a library would, with the same slots. MLO_EUNSUPPORTED: there is none. */
MLO_MUST_USE enum mlo_status cuda_conv_kernel(const struct cuda_conv *c, struct cuda_kernel_use *out,
                                              struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_gemm_kernel(const struct cuda_gemm *g, struct cuda_kernel_use *out,
                                              struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_attention_kernel(const struct cuda_attention *a,
                                                   struct cuda_kernel_use *out, struct mlo_error *err);
/* Names of the table's rows, sorted; NULL behind the last. */
const char *cuda_kernel_name(size_t i);
int64_t cuda_ceil_div(int64_t a, int64_t b);
/* Whether an index up to `count`, plus a grid's stride, needs more than 32 bits. */
bool cuda_is_wide(int64_t count);

/* As cuda_chain_source; `aliased`: a result may lie where an operand does. */
MLO_MUST_USE enum mlo_status chain_source(const struct cuda_chain *chain, bool aliased,
                                          struct cuda_source *out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status kernel_source(const struct cuda_kernel_use *use, bool aliased,
                                           struct cuda_source *out, struct mlo_error *err);

#endif
