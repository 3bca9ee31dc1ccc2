/* Products of models that are stored in 16 bits, in FP16 or in 16-bit fixed point: their weights. */
#include <math.h>
#include <stdlib.h>

#include "engines/cpu/fast/tile_f16_impl.h"
#include "engines/cpu/fast/tile_fixed_impl.h"

enum mlo_dtype fast_stored(const struct mlo_plan *plan, const struct mlo_value *value)
{
    bool known = value->graph == plan->model->graph && value->index < plan->stored_count;
    return known ? plan->stored[value->index] : MLO_DTYPE_NONE;
}

bool fast_is_half(const struct mlo_plan *plan, const struct mlo_value *value)
{
    enum mlo_dtype stored = fast_stored(plan, value);
    return stored == MLO_FLOAT16 || (stored == MLO_BFLOAT16 && plan->half == CPU_HALF_FIXED);
}

static enum tile_type half_type(const struct mlo_plan *plan)
{
    return plan->half == CPU_HALF_FIXED ? TILE_FIXED : TILE_F16;
}

bool tile_half_supports(const struct mlo_plan *plan, const struct tile_product *p)
{
    struct tile_product half = *p;
    half.type = half_type(plan);
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

/* The largest finite weight of each column; whether all are finite. */
static bool find_largest(const struct tile_product *p, const struct walk *w, float *largest)
{
    const float *weights = p->weights;
    size_t outer = w->row_major ? w->rows : w->columns, inner = w->row_major ? w->columns : w->rows, column;
    bool finite = true;
    for (size_t o = 0; o < outer; o++)
        for (size_t i = 0; i < inner; i++) {
            float v = fabsf(weights[place(p, w, o, i, &column)]);
            finite &= isfinite(v) != 0;
            largest[column] = isfinite(v) ? fmaxf(largest[column], v) : largest[column];
        }
    return finite;
}

/* --- halves ------------------------------------------------------------------------------------------- */

/* A weight that is not 0 becomes none, for the sake of infinities that it is multiplied with. */
static float scaled(float weight, float down)
{
    const float least = 0x1p-24f;
    float v = weight * down;
    return weight != 0.0f && fabsf(v) < least ? copysignf(least, weight) : v;
}

/* Weights times a power of two, by column, so that the largest finite one is in [0.5, 1); `scale`, which has
 * the largest ones, gets what undoes it. False: no memory. */
static bool to_halves(const struct tile_product *p, const struct walk *w, float *scale, uint16_t *out)
{
    enum { MOST = 126 };
    size_t count = w->columns * w->rows, column;
    size_t outer = w->row_major ? w->rows : w->columns, inner = w->row_major ? w->columns : w->rows;
    float *floats = calloc(count, sizeof *floats);
    if (!floats)
        return false;
    for (size_t c = 0; c < w->columns; c++) {
        int exponent = 0;
        frexpf(scale[c], &exponent);
        scale[c] = ldexpf(1.0f, MLO_MAX(MLO_MIN(exponent, MOST), -MOST));
    }
    for (size_t o = 0; o < outer; o++)
        for (size_t i = 0; i < inner; i++) {
            size_t at = place(p, w, o, i, &column);
            floats[at] = scaled(((const float *)p->weights)[at], 1.0f / scale[column]);
        }
    tile_f16_rows(floats, 1, count, count, 1.0f, out);
    free(floats);
    return true;
}

/* --- fixed point -------------------------------------------------------------------------------------- */

/* As many groups of a column's depth as integers may add up whatever x is: whole blocks, of which one more
 * than that many never leaves int32, so that it does not matter where the groups begin. sums: by block and
 * column, of absolute weights. */
static uint32_t run_of(const uint32_t *sums, size_t blocks, size_t columns)
{
    enum { BOUND = INT32_MAX / TILE_FIXED_X };
    size_t most = blocks;
    for (size_t c = 0; c < columns; c++) {
        uint64_t sum = 0;
        for (size_t first = 0, end = 0; end < blocks;) {
            sum += sums[end++ * columns + c];
            for (; sum > BOUND; first++) {
                sum -= sums[first * columns + c];
                most = MLO_MIN(most, end - first - 1);
            }
        }
    }
    /* all that there is, or less than one block more */
    return (uint32_t)MLO_MAX(most == blocks ? blocks : most - 1, (size_t)1) * (TILE_FIXED_BLOCK / 2);
}

/* Weights in units of `scale`, which has the largest ones at first; *run as the tile has it. False: no
 * memory. */
static bool to_fixed(const struct tile_product *p, const struct walk *w, float *scale, int16_t *out,
                     uint32_t *run)
{
    size_t outer = w->row_major ? w->rows : w->columns, inner = w->row_major ? w->columns : w->rows, column;
    size_t blocks = (w->rows + TILE_FIXED_BLOCK - 1) / TILE_FIXED_BLOCK, channels = w->rows / w->positions;
    float *factor = calloc(w->columns, sizeof *factor);
    uint32_t *sums = calloc(blocks * w->columns, sizeof *sums);
    bool ok = factor && sums;
    for (size_t c = 0; ok && c < w->columns; c++) {
        scale[c] = fmaxf(scale[c], TILE_FIXED_LEAST);
        factor[c] = TILE_FIXED_W / scale[c];
        scale[c] /= TILE_FIXED_W;
    }
    for (size_t o = 0; ok && o < outer; o++)
        for (size_t i = 0; i < inner; i++) {
            size_t at = place(p, w, o, i, &column), row = w->row_major ? o : i;
            float number = rintf(((const float *)p->weights)[at] * factor[column]);
            out[at] = (int16_t)number;
            /* in the order of the panels: channels of a position lie together */
            row = row % w->positions * channels + row / w->positions;
            sums[row / TILE_FIXED_BLOCK * w->columns + column] += (uint32_t)fabsf(number);
        }
    if (ok)
        *run = run_of(sums, blocks, w->columns);
    free(factor);
    free(sums);
    return ok;
}

enum mlo_status tile_half_emit(struct mlo_plan *plan, const struct mlo_node *node,
                               const struct tile_product *p, struct cpu_step **step, struct mlo_error *err)
{
    enum mlo_status status;
    struct walk w = walk_of(p);
    size_t count = w.columns * w.rows;
    struct tile_product half = *p;
    half.type = half_type(plan);
    float *scale = calloc(w.columns, sizeof *scale);
    uint16_t *numbers = calloc(count, sizeof *numbers);
    if (!scale || !numbers) {
        status = mlo_error_nomem(err);
        goto out;
    }
    bool finite = find_largest(p, &w, scale), fixed = half.type == TILE_FIXED;
    if (fixed && !finite) {
        MLO_TRY(tile_emit(plan, node, p, step, err));
        goto out;
    }
    if (!(fixed ? to_fixed(p, &w, scale, (int16_t *)numbers, &half.run) : to_halves(p, &w, scale, numbers))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    half.weights = numbers;
    half.weights_bytes = count * sizeof *numbers;
    half.scale = scale;
    plan->has_half = true;
    MLO_TRY(tile_emit(plan, node, &half, step, err));
out:
    free(scale);
    free(numbers);
    return status;
}
