/* Matrices of floats turned: in blocks of as many rows and columns as a vector has lanes. */
#include <stdlib.h>

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

struct transpose_data {
    size_t count, rows, columns;
};

enum { STRIP = 16 };

struct transpose_call {
    const struct transpose_data *d;
    const struct fast_row_kernels *kernels;
    const float *x;
    float *y;
};

static size_t strips_of(const struct transpose_data *d)
{
    return (d->columns + STRIP - 1) / STRIP;
}

/* Index: some columns of a matrix. */
static void turn(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct transpose_call *call = arg;
    const struct transpose_data *d = call->d;
    size_t strips = strips_of(d), size = d->rows * d->columns;
    for (size_t i = begin, next; i < end; i = next) {
        size_t matrix = i / strips, first = (i - matrix * strips) * STRIP;
        next = MLO_MIN(end, (matrix + 1) * strips);
        size_t last = MLO_MIN((next - matrix * strips) * STRIP, d->columns);
        call->kernels->transpose(call->x + matrix * size + first, d->columns, d->rows, last - first,
                                 call->y + matrix * size + first * d->rows);
    }
}

static enum mlo_status transpose_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                     struct mlo_error *err)
{
    enum { FLOATS_A_CYCLE = 2 };
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct transpose_data *d = step->data;
    struct transpose_call call = {.d = d,
                                  .kernels = fast_row_kernels_for(program->plan->isa),
                                  .x = program->at[step->in[0]],
                                  .y = program->at[step->out[0]]};
    size_t parts = d->count * strips_of(d), cycles = d->count * d->rows * d->columns / FLOATS_A_CYCLE;
    mlo_pool_run(program->pool, parts, fast_grain(program->pool, parts, cycles), turn, &call);
    return MLO_OK;
}

static enum mlo_status transpose_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                      struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    const struct transpose_data *d = step->data;
    cpu_put_u64(w, d->count);
    cpu_put_u64(w, d->rows);
    cpu_put_u64(w, d->columns);
    return MLO_OK;
}

static enum mlo_status transpose_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                         struct mlo_error *err)
{
    struct transpose_data *d = calloc(1, sizeof *d);
    if (!d)
        return mlo_error_nomem(err);
    step->data = d;
    d->count = cpu_get_u64(r);
    d->rows = cpu_get_u64(r);
    d->columns = cpu_get_u64(r);
    size_t bytes = cpu_product(cpu_product(d->count, d->rows, d->columns), sizeof(float), 1);
    if (cpu_check(r, step->in_count == 1 && step->out_count == 1, "a step has other operands") &&
        cpu_check(r, d->count > 0 && d->rows > 0 && d->columns > 0, "a matrix has impossible sizes") &&
        cpu_slot_holds(r, plan, step->in[0], bytes))
        cpu_slot_holds(r, plan, step->out[0], bytes);
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_transpose_class = {.name = "transpose",
                                                    .run = transpose_run,
                                                    .free_data = free,
                                                    .id = "transpose",
                                                    .save = transpose_save,
                                                    .restore = transpose_restore};

enum mlo_status fast_emit_transpose(struct mlo_plan *plan, const struct mlo_node *node, int from, int to,
                                    size_t count, size_t rows, size_t columns, struct cpu_step **out,
                                    struct mlo_error *err)
{
    struct transpose_data *d = malloc(sizeof *d);
    struct cpu_step *step = d ? cpu_step_new(plan, &fast_transpose_class, node, 1, 1) : NULL;
    if (!step) {
        free(d);
        return mlo_error_nomem(err);
    }
    *d = (struct transpose_data){count, rows, columns};
    step->data = d;
    step->in[0] = from;
    step->out[0] = to;
    step->precision = "f32";
    *out = step;
    return MLO_OK;
}
