/* The step of a group of elementwise nodes: loops around blocks of rows, compiled or interpreted. */
#include <stdlib.h>

#include "engines/cpu/fast/expr_impl.h"
#include "engines/cpu/image_impl.h"

/* --- geometry ------------------------------------------------------------------------------------------- */

/* Element strides of a value, by the dims of the result in their memory order. */
static void strides_of(const struct fast_shape *s, enum cpu_layout layout, const struct fast_shape *y,
                       enum cpu_layout y_layout, int64_t out[EXPR_DIMS_MAX])
{
    int64_t own[EXPR_DIMS_MAX] = {0}, logical[EXPR_DIMS_MAX] = {0}, stride = 1;
    bool last = layout == CPU_LAST && s->rank >= 3;
    if (last) {
        own[1] = s->dims[1] == 1 ? 0 : 1;
        stride = s->dims[1];
    }
    for (int i = s->rank - 1; i >= 0; i--) {
        if (last && i == 1)
            continue;
        own[i] = s->dims[i] == 1 ? 0 : stride;
        stride *= s->dims[i];
    }
    for (int i = 0; i < s->rank; i++)
        logical[y->rank - s->rank + i] = own[i];
    for (int i = 0, k = 0; i < y->rank; i++)
        if (!(y_layout == CPU_LAST && i == 1))
            out[k++] = logical[i];
    if (y_layout == CPU_LAST)
        out[y->rank - 1] = logical[1];
}

/* Dims of one element vanish, and dims that every operand walks through in one go become one. */
static int collapse(int rank, int64_t *dims, int count, int64_t strides[][EXPR_DIMS_MAX])
{
    int kept = 0;
    for (int i = 0; i < rank; i++) {
        if (dims[i] == 1)
            continue;
        bool joins = kept > 0;
        for (int k = 0; k < count && joins; k++)
            joins = strides[k][kept - 1] == strides[k][i] * dims[i];
        if (joins)
            kept--, dims[kept] *= dims[i];
        else
            dims[kept] = dims[i];
        for (int k = 0; k < count; k++)
            strides[k][kept] = strides[k][i];
        kept++;
    }
    return kept;
}

static size_t size_of(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 ? 4 : 1;
}

bool expr_lay_out(struct expr_step *d, const struct fast_shape *y, enum cpu_layout layout,
                  const struct fast_shape *shapes, const enum cpu_layout *layouts)
{
    int64_t strides[EXPR_INPUTS_MAX + 1][EXPR_DIMS_MAX], dims[EXPR_DIMS_MAX];
    int count = d->program.input_count, k = 0;
    for (int i = 0; i < count; i++)
        strides_of(&shapes[i], layouts[i], y, layout, strides[i]);
    strides_of(y, layout, y, layout, strides[count]);
    for (int i = 0; i < y->rank; i++)
        if (!(layout == CPU_LAST && i == 1))
            dims[k++] = y->dims[i];
    if (layout == CPU_LAST)
        dims[k++] = y->dims[1];
    int rank = collapse(y->rank, dims, count + 1, strides);
    size_t out_size = size_of(d->program.result);
    d->n = rank > 0 ? (size_t)dims[rank - 1] : 1;
    d->rows = rank > 1 ? (size_t)dims[rank - 2] : 1;
    d->out_row = rank > 1 ? strides[count][rank - 2] * (ptrdiff_t)out_size : 0;
    d->rank = rank > 2 ? rank - 2 : 0;
    for (int i = 0; i < count; i++) {
        ptrdiff_t size = (ptrdiff_t)size_of(d->program.inputs[i].dtype);
        int64_t along = rank > 0 ? strides[i][rank - 1] : 0;
        if (along != 0 && along != 1)
            return false;
        d->program.inputs[i].splat = along == 0 && d->n > 1;
        d->in_row[i] = rank > 1 ? strides[i][rank - 2] * size : 0;
        for (int r = 0; r < d->rank; r++)
            d->in_loop[i][r] = strides[i][r] * size;
    }
    for (int r = 0; r < d->rank; r++) {
        d->loop[r] = dims[r];
        d->out_loop[r] = strides[count][r] * (ptrdiff_t)out_size;
    }
    d->block_n = d->n > 4096 ? 4096 : d->n;
    d->block_rows = MLO_MIN(d->n < 4096 ? 4096 / (d->n ? d->n : 1) : 1, d->rows);
    return true;
}

/* --- the step ------------------------------------------------------------------------------------------- */

struct chain_call {
    const struct expr_step *d;
    const char *in[EXPR_INPUTS_MAX];
    char *out;
    size_t row_blocks, n_blocks;
};

static void chain_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct chain_call *c = arg;
    const struct expr_step *d = c->d;
    int count = d->program.input_count;
    size_t out_size = size_of(d->program.result);
    for (size_t item = begin; item < end; item++) {
        size_t rest = fast_quotient(item, c->n_blocks), column = (item - rest * c->n_blocks) * d->block_n;
        size_t outer = fast_quotient(rest, c->row_blocks),
               row = (rest - outer * c->row_blocks) * d->block_rows;
        struct expr_block b = {.out_stride = d->out_row,
                               .rows = MLO_MIN(d->block_rows, d->rows - row),
                               .n = MLO_MIN(d->block_n, d->n - column)};
        ptrdiff_t out = (ptrdiff_t)row * d->out_row + (ptrdiff_t)(column * out_size), in[EXPR_INPUTS_MAX];
        for (int i = 0; i < count; i++) {
            in[i] = (ptrdiff_t)row * d->in_row[i];
            if (!d->program.inputs[i].splat)
                in[i] += (ptrdiff_t)(column * size_of(d->program.inputs[i].dtype));
        }
        for (int r = d->rank - 1; r >= 0; r--) {
            size_t above = fast_quotient(outer, (size_t)d->loop[r]);
            ptrdiff_t at = (ptrdiff_t)(outer - above * (size_t)d->loop[r]);
            outer = above;
            out += at * d->out_loop[r];
            for (int i = 0; i < count; i++)
                in[i] += at * d->in_loop[i][r];
        }
        for (int i = 0; i < count; i++) {
            b.in[i] = c->in[i] + in[i];
            b.in_stride[i] = d->in_row[i];
        }
        b.out = c->out + out;
        if (d->compiled)
            d->compiled(b.in, b.in_stride, b.out, b.out_stride, b.rows, b.n);
        else
            expr_interpret(d->isa, &d->program, &b);
    }
}

static size_t blocks_of(size_t count, size_t size)
{
    return count <= size ? count > 0 : (count + size - 1) / size;
}

static enum mlo_status chain_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                 struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    const struct expr_step *d = step->data;
    struct chain_call c = {.d = d, .out = program->at[step->out[0]]};
    for (int i = 0; i < d->program.input_count; i++)
        c.in[i] = program->at[step->in[i]];
    size_t outer = 1;
    for (int r = 0; r < d->rank; r++)
        outer *= (size_t)d->loop[r];
    c.row_blocks = blocks_of(d->rows, d->block_rows);
    c.n_blocks = blocks_of(d->n, d->block_n);
    size_t size = d->block_n * d->block_rows, count = outer * c.row_blocks * c.n_blocks;
    mlo_pool_run(program->pool, count, count > 1 && size < 16384 ? 16384 / size : 1, chain_range, &c);
    return MLO_OK;
}

const char *expr_step_impl(const struct expr_step *d)
{
    return d->compiled ? "elementwise, compiled" : "elementwise, interpreted";
}

static enum mlo_status chain_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                  struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    struct expr_step d = *(const struct expr_step *)step->data;
    cpu_put_u32(w, d.compiled != NULL);
    d.compiled = NULL;
    cpu_put_bytes(w, &d, sizeof d);
    return MLO_OK;
}

/* Bytes that a walk touches; SIZE_MAX when it goes backwards or too far. */
static size_t walk(const struct expr_step *d, const ptrdiff_t *loops, ptrdiff_t row, size_t columns,
                   size_t element)
{
    size_t end = cpu_product(columns, element, 1);
    for (int r = -1; r < d->rank; r++) {
        ptrdiff_t stride = r < 0 ? row : loops[r];
        size_t steps = (r < 0 ? d->rows : (size_t)d->loop[r]) - 1;
        size_t far = stride < 0 ? SIZE_MAX : cpu_product(steps, (size_t)stride, 1);
        if (far > SIZE_MAX - end)
            return SIZE_MAX;
        end += far;
    }
    return end;
}

static enum mlo_status chain_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                     struct mlo_error *err)
{
    struct expr_step *d = calloc(1, sizeof *d);
    if (!d)
        return mlo_error_nomem(err);
    step->data = d;
    uint32_t compiled = cpu_get_u32(r);
    cpu_get_bytes(r, d, sizeof *d);
    d->compiled = NULL;
    d->isa = plan->isa;
    bool good = cpu_check(r, expr_is_sound(&d->program) && expr_finish(&d->program),
                          "an elementwise program is none") &&
                cpu_check(r, step->in_count == d->program.input_count && step->out_count == 1,
                          "a step has other operands") &&
                cpu_check(r,
                          d->rank >= 0 && d->rank <= EXPR_DIMS_MAX && d->rows > 0 && d->n > 0 &&
                              d->block_rows > 0 && d->block_n > 0,
                          "an elementwise step has no size");
    size_t all = good ? cpu_product(d->rows, d->n, 1) : 0;
    for (int i = 0; good && i < d->rank; i++) {
        good = cpu_check(r, d->loop[i] > 0, "a loop has no length");
        all = cpu_product(all, good ? (size_t)d->loop[i] : 0, 1);
    }
    good = good &&
           cpu_check(r, all < SIZE_MAX / 16 && d->block_rows <= all && d->block_n <= all,
                     "a loop is too long") &&
           /* each element is written once: nothing runs for longer than its result is large */
           cpu_slot_holds(r, plan, step->out[0], cpu_product(all, size_of(d->program.result), 1)) &&
           cpu_slot_holds(r, plan, step->out[0],
                          walk(d, d->out_loop, d->out_row, d->n, size_of(d->program.result)));
    for (int i = 0; good && i < d->program.input_count; i++)
        good = cpu_slot_holds(r, plan, step->in[i],
                              walk(d, d->in_loop[i], d->in_row[i], d->program.inputs[i].splat ? 1 : d->n,
                                   size_of(d->program.inputs[i].dtype)));
    if (good && compiled)
        d->compiled = expr_compiled(plan->isa, &d->program);
    step->impl = expr_step_impl(d);
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_elementwise_class = {.name = "elementwise",
                                                      .run = chain_run,
                                                      .free_data = free,
                                                      .id = "elementwise",
                                                      .save = chain_save,
                                                      .restore = chain_restore};
