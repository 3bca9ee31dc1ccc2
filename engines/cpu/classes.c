/* The step classes that can be written into a plan's file, by id. */
#include <string.h>

#include "engines/cpu/image_impl.h"

/* One a line: everybody who adds a kernel adds one here. */
/* clang-format off */
#define CLASSES(CLASS)                                                                                       \
    CLASS(cpu_eval_class)                                                                                    \
    CLASS(fast_attention_class)                                                                              \
    CLASS(fast_average_class)                                                                              \
    CLASS(fast_cast_class)                                                                                   \
    CLASS(fast_copy_class)                                                                                   \
    CLASS(fast_depthwise_class)                                                                              \
    CLASS(fast_depthwise8_class)                                                                              \
    CLASS(fast_dequantize_class)                                                                             \
    CLASS(fast_dynamic_class)                                                                                \
    CLASS(fast_elementwise_class)                                                                            \
    CLASS(fast_gather_class)                                                                                 \
    CLASS(fast_integer_class)                                                                                \
    CLASS(fast_interleave_class)                                                                             \
    CLASS(fast_lines_class)                                                                                  \
    CLASS(fast_norm_class)                                                                                   \
    CLASS(fast_packed_class)                                                                                 \
    CLASS(fast_prim_class)                                                                                   \
    CLASS(fast_qadd_class)                                                                                   \
    CLASS(fast_qmean_class)                                                                                  \
    CLASS(fast_quantize_class)                                                                               \
    CLASS(fast_reduce_class)                                                                                 \
    CLASS(fast_row8_class)                                                                                   \
    CLASS(fast_softmax_class)                                                                                \
    CLASS(fast_table_class)                                                                                  \
    CLASS(fast_tile_class)                                                                                   \
    CLASS(fast_transpose_class)                                                                              \
    CLASS(fast_unfold_class)                                                                                 \
    CLASS(fast_winograd_class)
/* clang-format on */

#define DECLARE(name) extern const struct cpu_step_class name;
CLASSES(DECLARE)
#define ROW(name) &name,
static const struct cpu_step_class *const classes[] = {CLASSES(ROW)};

const struct cpu_step_class *cpu_step_class_find(const char *id)
{
    for (size_t i = 0; i < MLO_COUNT(classes); i++)
        if (strcmp(classes[i]->id, id) == 0)
            return classes[i];
    return NULL;
}
