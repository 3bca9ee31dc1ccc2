/* Products of models that are stored in float16, in FP16: weights as scaled halves. */
#include <math.h>
#include <stdlib.h>

#include "engines/cpu/fast/tile_f16_impl.h"

bool fast_is_float16(const struct mlo_plan *plan, const struct mlo_value *value)
{
    return value->graph == plan->model->graph && value->index < plan->stored_count &&
           plan->stored[value->index] == MLO_FLOAT16;
}

bool tile_half_supports(const struct mlo_plan *plan, const struct tile_product *p)
{
    struct tile_product half = *p;
    half.type = TILE_F16;
    return p->half && p->type == TILE_F32 && tile_supports(plan, &half);
}

/* The sizes of weights by column, and by what a column adds up: memory's order is kept where it can be. */
struct walk {
    size_t columns, rows, positions;
    bool row_major; /* the columns are neighbours */
};

static struct walk walk_of(const struct tile_product *p)
{
    size_t positions = (size_t)(p->kernel[0] * p->kernel[1] * p->kernel[2]);
    return (struct walk){.columns = (size_t)(p->groups * p->out_channels),
                         .rows = (size_t)p->in_channels * positions,
                         .positions = positions,
                         .row_major = p->w_out == 1};
}

/* The i-th element in memory's order, about: its column and place. */
static size_t place(const struct tile_product *p, const struct walk *w, size_t outer, size_t inner,
                    size_t *column)
{
    size_t row = w->row_major ? outer : inner;
    *column = w->row_major ? inner : outer;
    return *column * p->w_out + row / w->positions * p->w_in + row % w->positions * p->w_tap;
}

/* Powers of two by column: the largest finite weight times `down` is in [0.5, 1); `up` undoes it. */
static void column_scales(const struct tile_product *p, const struct walk *w, float *down, float *up)
{
    enum { MOST = 126 };
    const float *weights = p->weights;
    size_t outer = w->row_major ? w->rows : w->columns, inner = w->row_major ? w->columns : w->rows, column;
    for (size_t o = 0; o < outer; o++)
        for (size_t i = 0; i < inner; i++) {
            float v = fabsf(weights[place(p, w, o, i, &column)]);
            down[column] = isfinite(v) ? fmaxf(down[column], v) : down[column];
        }
    for (size_t c = 0; c < w->columns; c++) {
        int exponent = 0;
        frexpf(down[c], &exponent);
        exponent = MLO_MAX(MLO_MIN(exponent, MOST), -MOST);
        down[c] = ldexpf(1.0f, -exponent);
        up[c] = ldexpf(1.0f, exponent);
    }
}

/* A weight that is not 0 becomes none, for the sake of infinities that it is multiplied with. */
static float scaled(float weight, float down)
{
    const float least = 0x1p-24f;
    float v = weight * down;
    return weight != 0.0f && fabsf(v) < least ? copysignf(least, weight) : v;
}

enum mlo_status tile_half_emit(struct mlo_plan *plan, const struct mlo_node *node,
                               const struct tile_product *p, struct cpu_step **step, struct mlo_error *err)
{
    enum mlo_status status;
    struct walk w = walk_of(p);
    size_t count = w.columns * w.rows, column;
    struct tile_product half = *p;
    float *down = calloc(w.columns, sizeof *down), *up = calloc(w.columns, sizeof *up);
    float *floats = calloc(count, sizeof *floats);
    uint16_t *halves = calloc(count, sizeof *halves);
    if (!down || !up || !floats || !halves) {
        status = mlo_error_nomem(err);
        goto out;
    }
    column_scales(p, &w, down, up);
    size_t outer = w.row_major ? w.rows : w.columns, inner = w.row_major ? w.columns : w.rows;
    for (size_t o = 0; o < outer; o++)
        for (size_t i = 0; i < inner; i++) {
            size_t at = place(p, &w, o, i, &column);
            floats[at] = scaled(((const float *)p->weights)[at], down[column]);
        }
    tile_f16_rows(floats, 1, count, count, 1.0f, halves);
    half.type = TILE_F16;
    half.weights = halves;
    half.weights_bytes = count * sizeof *halves;
    half.scale = up;
    plan->has_half = true;
    MLO_TRY(tile_emit(plan, node, &half, step, err));
out:
    free(down);
    free(up);
    free(floats);
    free(halves);
    return status;
}
