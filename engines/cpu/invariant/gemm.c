/* Gemm and MatMul in the invariant numerics: rows are the left operand's, columns the right one's. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/invariant/invariant_impl.h"

struct gemm {
    const struct inv_kernels *kernels;
    size_t m, n, k, batches;
    size_t a_row, a_k, b_column, b_k; /* strides in elements */
    size_t *a_at, *b_at;              /* by batch: offset in elements */
    float alpha, beta;
    const struct mlo_value *c; /* Gemm's third operand, or NULL; added before the chain when alpha is 1 */
    size_t c_row, c_column;
    const struct mlo_tensor *b_const;
    float *packed_b; /* of a constant right operand; of one batch */
    size_t columns;
};

struct gemm_state {
    float *a, *b, *tiles;
    size_t tiles_each;
};

struct gemm_call {
    const struct gemm *g;
    const float *a, *b, *c;
    size_t a_row; /* whose k lie together */
    float *tiles;
    size_t tiles_each;
    float *y;
};

static void run_columns(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct gemm_call *call = arg;
    const struct gemm *g = call->g;
    size_t mr = (size_t)g->kernels->mr, nr = (size_t)g->kernels->nr;
    float *tile = call->tiles + worker * call->tiles_each;
    bool start_with_c = call->c && g->alpha == 1.0f;
    for (size_t p = begin; p < end; p++)
        for (size_t r = 0; r < g->m; r += mr) {
            size_t rows = MLO_MIN(mr, g->m - r), columns = MLO_MIN(nr, g->n - p * nr);
            memset(tile, 0, mr * nr * sizeof *tile);
            for (size_t i = 0; start_with_c && i < rows; i++)
                for (size_t j = 0; j < columns; j++)
                    tile[i * nr + j] = g->beta * call->c[(r + i) * g->c_row + (p * nr + j) * g->c_column];
            const float *a[INV_MAX_MR];
            inv_rows(g->kernels, call->a + r * call->a_row, call->a_row, rows, a);
            inv_tile_fn *multiply =
                rows == 1 ? g->kernels->row : g->kernels->tile[inv_tile(g->kernels, columns)];
            multiply(g->k, a, call->b + p * nr * g->k, NULL, tile);
            for (size_t i = 0; i < rows; i++)
                for (size_t j = 0; j < columns; j++) {
                    float v = tile[i * nr + j];
                    if (g->alpha != 1.0f) {
                        v = g->alpha * v;
                        if (call->c)
                            v = v + g->beta * call->c[(r + i) * g->c_row + (p * nr + j) * g->c_column];
                    }
                    call->y[(r + i) * g->n + p * nr + j] = v;
                }
        }
}

static void gemm_unload(void *state)
{
    struct gemm_state *s = state;
    if (!s)
        return;
    free(s->a);
    free(s->b);
    free(s->tiles);
    free(s);
}

static enum mlo_status gemm_load(struct mlo_program *program, const struct cpu_step *step, void **state,
                                 struct mlo_error *err)
{
    const struct gemm *g = step->data;
    struct gemm_state *s = calloc(1, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    s->tiles_each = (size_t)(g->kernels->mr * g->kernels->nr);
    s->a = cpu_aligned(g->a_k == 1 ? 0 : g->m * g->k * sizeof(float));
    s->b = cpu_aligned(g->packed_b ? 0 : g->columns * g->k * sizeof(float));
    s->tiles = cpu_aligned(program->plan->threads * s->tiles_each * sizeof(float));
    if (!s->a || !s->b || !s->tiles) {
        gemm_unload(s);
        return mlo_error_nomem(err);
    }
    *state = s;
    return MLO_OK;
}

static enum mlo_status gemm_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    MLO_UNUSED(err);
    const struct gemm *g = step->data;
    struct gemm_state *s = state;
    const float *a = program->at[step->in[0]], *b = program->at[step->in[1]];
    for (size_t i = 0; i < g->batches; i++) {
        bool turn = g->a_k != 1;
        for (size_t r = 0; turn && r < g->m; r++)
            for (size_t k = 0; k < g->k; k++)
                s->a[r * g->k + k] = a[g->a_at[i] + r * g->a_row + k * g->a_k];
        if (!g->packed_b)
            inv_pack_columns(g->kernels, b + g->b_at[i], g->n, g->k, g->b_column, g->b_k, s->b);
        struct gemm_call call = {g,
                                 turn ? s->a : a + g->a_at[i],
                                 g->packed_b ? g->packed_b : s->b,
                                 g->c ? program->at[step->in[2]] : NULL,
                                 turn ? g->k : g->a_row,
                                 s->tiles,
                                 s->tiles_each,
                                 (float *)program->at[step->out[0]] + i * g->m * g->n};
        mlo_pool_run(program->pool, g->columns / (size_t)g->kernels->nr, 1, run_columns, &call);
    }
    return MLO_OK;
}

static void gemm_free(void *data)
{
    struct gemm *g = data;
    if (!g)
        return;
    free(g->a_at);
    free(g->b_at);
    free(g->packed_b);
    free(g);
}

static const struct cpu_step_class gemm_class = {
    .name = "fma-chain", .load = gemm_load, .run = gemm_run, .unload = gemm_unload, .free_data = gemm_free};

/* Offsets of each batch's matrix in an operand whose leading dims broadcast to `dims` (rank - 2 of them). */
static void batch_offsets(const int64_t *own, int own_rank, const int64_t *dims, int lead, size_t *out,
                          size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t rest = i, at = 0, stride = (size_t)(own[own_rank - 1] * own[own_rank - 2]);
        for (int d = lead - 1, o = own_rank - 3; d >= 0; d--, o--) {
            size_t index = rest % (size_t)dims[d];
            rest /= (size_t)dims[d];
            if (o < 0)
                continue;
            if (own[o] != 1)
                at += index * stride;
            stride *= (size_t)own[o];
        }
        out[i] = at;
    }
}

static bool set_matmul(struct gemm *g, const int64_t *a, int ra, const int64_t *b, int rb, const int64_t *y,
                       int ry)
{
    if (ra < 2 || rb < 2)
        return false;
    g->m = (size_t)a[ra - 2], g->k = (size_t)a[ra - 1], g->n = (size_t)b[rb - 1];
    g->a_row = g->k, g->a_k = 1, g->b_column = 1, g->b_k = g->n;
    g->alpha = 1.0f;
    g->batches = 1;
    for (int i = 0; i < ry - 2; i++)
        g->batches *= (size_t)y[i];
    if (rb == 2) { /* one matrix for all: its rows are all the left operand's */
        g->m *= g->batches;
        g->batches = 1;
    }
    g->a_at = calloc(g->batches + 1, sizeof *g->a_at);
    g->b_at = calloc(g->batches + 1, sizeof *g->b_at);
    if (!g->a_at || !g->b_at)
        return false;
    if (rb > 2) {
        batch_offsets(a, ra, y, ry - 2, g->a_at, g->batches);
        batch_offsets(b, rb, y, ry - 2, g->b_at, g->batches);
    }
    return true;
}

static bool set_gemm(struct gemm *g, const struct mlo_node *node, const int64_t *a, const int64_t *b)
{
    bool ta = mlo_node_attr_i(node, "transA", 0) != 0, tb = mlo_node_attr_i(node, "transB", 0) != 0;
    g->m = (size_t)a[ta], g->k = (size_t)a[!ta], g->n = (size_t)b[!tb];
    g->a_row = ta ? 1 : g->k, g->a_k = ta ? g->m : 1;
    g->b_column = tb ? g->k : 1, g->b_k = tb ? 1 : g->n;
    g->alpha = mlo_node_attr_f(node, "alpha", 1.0f);
    g->beta = mlo_node_attr_f(node, "beta", 1.0f);
    g->batches = 1;
    g->a_at = calloc(2, sizeof *g->a_at);
    g->b_at = calloc(2, sizeof *g->b_at);
    g->c = mlo_node_input(node, 2);
    if (g->c) {
        int64_t c[MLO_MAX_RANK];
        size_t count;
        int rank = g->c->type.rank;
        if (g->c->type.dtype != MLO_FLOAT32 || rank > 2 || !cpu_value_dims(g->c, c, &count))
            return false;
        int64_t columns = rank > 0 ? c[rank - 1] : 1, rows = rank > 1 ? c[0] : 1;
        g->c_column = columns > 1;
        g->c_row = rows > 1 ? (size_t)columns : 0;
    }
    return g->a_at && g->b_at;
}

enum mlo_status inv_lower_gemm(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                               struct mlo_error *err)
{
    bool gemm = mlo_node_is(node, "Gemm");
    if (!gemm && !mlo_node_is(node, "MatMul"))
        return MLO_OK;
    int64_t a[MLO_MAX_RANK], b[MLO_MAX_RANK], y[MLO_MAX_RANK];
    struct mlo_value *va = node->inputs[0], *vb = node->inputs[1], *out = node->outputs[0];
    if (va->type.dtype != MLO_FLOAT32 || vb->type.dtype != MLO_FLOAT32 || !cpu_value_dims(va, a, NULL) ||
        !cpu_value_dims(vb, b, NULL) || !cpu_value_dims(out, y, NULL))
        return MLO_OK;
    enum mlo_status status = MLO_OK;
    struct gemm *g = calloc(1, sizeof *g);
    if (!g)
        return mlo_error_nomem(err);
    if (gemm ? !set_gemm(g, node, a, b)
             : !set_matmul(g, a, va->type.rank, b, vb->type.rank, y, out->type.rank))
        goto out;
    g->kernels = inv_kernels_for(plan->isa);
    g->columns = inv_packed_columns(g->kernels, g->n);
    g->b_const = mlo_node_const(node, 1);
    if (g->b_const && g->batches == 1) {
        g->packed_b = cpu_aligned(g->columns * g->k * sizeof(float));
        if (!g->packed_b) {
            status = mlo_error_nomem(err);
            goto out;
        }
        inv_pack_columns(g->kernels, g->b_const->data, g->n, g->k, g->b_column, g->b_k, g->packed_b);
    }
    size_t bytes;
    cpu_value_bytes(out, &bytes);
    int slot = cpu_slot_new(plan, CPU_SLOT_ARENA, bytes);
    struct cpu_step *step = slot < 0 ? NULL : cpu_step_new(plan, &gemm_class, node, 3, 1);
    if (!step) {
        status = mlo_error_nomem(err);
        goto out;
    }
    step->in[0] = cpu_value_plain(plan, va);
    step->in[1] = cpu_value_plain(plan, vb);
    if (g->c)
        step->in[2] = cpu_value_plain(plan, g->c);
    step->out[0] = slot;
    step->data = g;
    g = NULL;
    plan->values[out->index].slot[CPU_PLAIN] = slot;
    *done = true;
out:
    gemm_free(g);
    return status;
}
