/* MatMul and Gemm: cuBLASLt's products, with what follows as their epilogue. */
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

enum { BYTES_MULTIPLE = 16 }; /* of k and n, for products of int8 and of float8 */

/* An operand: its last two dims as a matrix with a leading dim, those before as batches. */
struct operand {
    struct place p; /* rank 2 + batches */
    bool turned;
    int64_t ld, batch;
};

struct product {
    const struct mlo_node *node;
    const struct mlo_value *a, *b; /* what is read: floats, or the 8-bit values behind them */
    bool ta, tb;                   /* by attribute */
    const struct mlo_value *own;   /* added: a constant row; or NULL */
    double alpha, beta;
    enum mlo_dtype bytes; /* MLO_INT8 or MLO_FLOAT8E4M3FN; MLO_DTYPE_NONE: it multiplies floats */
    struct quant_weights q;
    float x_scale;
    int64_t m, n, k, batch;
    struct operand oa, ob;
    struct epilogue e;
    struct product_numbers numbers;
    struct place y;
};

/* Whether the last two dims can be read as a matrix. */
static bool as_matrix(struct operand *o)
{
    const struct place *p = &o->p;
    int64_t rows = p->dims[p->rank - 2], columns = p->dims[p->rank - 1];
    int64_t by_row = p->strides[p->rank - 2], by_column = p->strides[p->rank - 1];
    if ((by_column == 1 || columns == 1) && (by_row >= columns || rows == 1)) {
        o->turned = false;
        o->ld = rows == 1 ? columns : by_row;
        return true;
    }
    o->turned = true;
    o->ld = columns == 1 ? rows : by_column;
    return (by_row == 1 || rows == 1) && (by_column >= rows || columns == 1);
}

/* The dims before the last two as one batch with one stride. */
static bool as_batch(struct operand *o)
{
    const struct place *p = &o->p;
    int64_t stride = 0, count = 1;
    for (int i = p->rank - 3; i >= 0; i--) {
        if (p->dims[i] == 1)
            continue;
        if (count == 1)
            stride = p->strides[i];
        else if (p->strides[i] != stride * count)
            return false;
        count *= p->dims[i];
    }
    o->batch = stride;
    return true;
}

static enum mlo_status copy_rows(struct lower *l, const struct mlo_node *node, struct place *p,
                                 struct mlo_error *err)
{
    struct place from = *p;
    place_dense(p, from.dtype, from.rank, from.dims, WANT_ROWS);
    p->slot = lower_slot(l, CUDA_SLOT_ARENA, place_bytes(p));
    return p->slot < 0 ? mlo_error_nomem(err) : chain_copy(l, node, &from, p, err);
}

/* Brings a value into a form that the library reads; `rank` and `lead`: of the result's batches. */
static enum mlo_status operand_of(struct lower *l, const struct product *v, const struct mlo_value *value,
                                  bool first, int rank, const int64_t *lead, struct operand *o,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t dims[MLO_MAX_RANK];
    MLO_TRY(lower_demand(l, value, WANT_ANY, &o->p, err));
    if (o->p.rank == 1) { /* a row on the left, a column on the right */
        memcpy(dims, first ? (int64_t[]){1, o->p.dims[0]} : (int64_t[]){o->p.dims[0], 1}, 2 * sizeof *dims);
        int64_t stride = o->p.strides[0];
        o->p.rank = 2;
        memcpy(o->p.dims, dims, 2 * sizeof *dims);
        o->p.strides[0] = o->p.strides[1] = stride;
    }
    if (first ? v->ta : v->tb)
        place_transpose(&o->p, (int64_t[]){1, 0});
    if (rank > 2) { /* one matrix for each batch */
        memcpy(dims, lead, (size_t)(rank - 2) * sizeof *dims);
        memcpy(dims + rank - 2, o->p.dims + o->p.rank - 2, 2 * sizeof *dims);
        place_expand(&o->p, rank, dims);
    }
    if (!place_aligned(l, &o->p) || !as_matrix(o) || !as_batch(o)) {
        MLO_TRY(copy_rows(l, v->node, &o->p, err));
        if (!as_matrix(o) || !as_batch(o))
            return mlo_error_set(err, MLO_EINTERNAL, "'%s' is no matrix", value->name);
    }
out:
    return status;
}

/* All rows of a as one matrix, where b is one. */
static enum mlo_status flat_operand(struct lower *l, const struct product *v, struct operand *o,
                                    struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(lower_demand(l, v->a, WANT_ANY, &o->p, err));
    int64_t dims[] = {v->m, v->k};
    struct place flat = o->p;
    if (!place_reshape(&flat, 2, dims)) {
        MLO_TRY(lower_demand(l, v->a, WANT_ROWS, &o->p, err));
        flat = o->p;
        if (!place_reshape(&flat, 2, dims))
            return mlo_error_set(err, MLO_EINTERNAL, "'%s' is no matrix", v->a->name);
    }
    o->p = flat;
    if (!place_aligned(l, &o->p) || !as_matrix(o)) {
        MLO_TRY(copy_rows(l, v->node, &o->p, err));
        if (!as_matrix(o))
            return mlo_error_set(err, MLO_EINTERNAL, "'%s' is no matrix", v->a->name);
    }
    o->batch = 0;
out:
    return status;
}

/* Weights of 8 bits lie with k innermost, as the matrix units want them. */
static int pack_bytes(struct lower *l, const struct product *v)
{
    const struct mlo_tensor *w = v->q.q;
    const uint8_t *from = w->data;
    uint8_t *to = mlo_engine_aligned(w->size_bytes);
    for (int64_t n = 0; to && n < v->n; n++)
        for (int64_t k = 0; k < v->k; k++)
            to[n * v->k + k] = v->tb ? from[n * v->k + k] : from[k * v->n + n];
    return lower_slot_const_take(l, to, w->size_bytes);
}

/* The result's rows, queries before heads where the Transpose behind it brings that. */
static void place_result(struct lower *l, const struct product *v, int rank, struct place *y)
{
    static const int64_t swap[] = {0, 2, 1, 3};
    size_t count = 0;
    const struct mlo_node *next = lower_reader(l, v->e.end);
    const int64_t *perm =
        next && mlo_node_is(next, "Transpose") ? mlo_node_attr_ints(next, "perm", &count) : NULL;
    if (y->rank != 4 || rank != 4 || y->dims[0] != 1 || count != 4 || memcmp(perm, swap, sizeof swap) != 0 ||
        v->e.residual)
        return;
    y->strides[1] = y->dims[3];
    y->strides[2] = y->dims[1] * y->dims[3];
}

/* Who computes it: cuBLASLt, or an own kernel without tensor cores. */
static const char *gemm_impl(const struct cuda_gemm *g)
{
    return cuda_gemm_fuses(g) ? "cublasLt" : "matmul";
}

/* The 8-bit operand as rows that the matrix units read. */
static enum mlo_status bytes_operand(struct lower *l, struct product *v, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(flat_operand(l, v, &v->oa, err));
    if (v->oa.turned || v->oa.ld % BYTES_MULTIPLE) {
        MLO_TRY(copy_rows(l, v->node, &v->oa.p, err));
        if (!as_matrix(&v->oa))
            return mlo_error_set(err, MLO_EINTERNAL, "'%s' is no matrix", v->a->name);
    }
out:
    return status;
}

/* cuBLASLt's int8 products have plain int32 sums, and its float8 ones float32 sums where a scale a column or
 * a float32 bias must follow: what makes numbers of them, and what follows, is a chain. */
static enum mlo_status emit_sums(struct lower *l, struct product *v, const struct mlo_tensor *own,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct cuda_gemm *g = mlo_arena_calloc(l->arena, 1, sizeof *g);
    const struct mlo_value *y = v->node->outputs[0];
    struct epilogue_wish wish = {
        .axis = y->type.rank - 1, .columns = v->n, .chain = true, .may_quantize = true};
    struct place residual;
    if (!g)
        return mlo_error_nomem(err);
    epilogue_follow(l, y, &wish, &v->e);
    struct epilogue whole = v->e; /* a chain quantizes by itself: nothing is in the unit of bytes */
    whole.quantized = false;
    v->numbers = (struct product_numbers){.own = own,
                                          .alpha = v->alpha,
                                          .beta = v->beta,
                                          .x_scale = v->x_scale,
                                          .w = &v->q,
                                          .columns = v->n,
                                          .padded = v->n,
                                          .bias_dtype = MLO_FLOAT32};
    MLO_TRY(product_slots(l, &whole, &v->numbers, err));
    MLO_TRY(bytes_operand(l, v, err));
    int a_slot = lower_slot_at(l, &v->oa.p), b_slot = pack_bytes(l, v);
    int64_t dims[MLO_MAX_RANK];
    struct place sums;
    enum mlo_dtype wide = v->bytes == MLO_INT8 ? MLO_INT32 : MLO_FLOAT32;
    if (!lower_dims(y, dims))
        return lower_unsupported(v->node, err, "the shape of its result is not known before it runs");
    place_dense(&sums, wide, y->type.rank, dims, WANT_ROWS);
    sums.slot = lower_slot(l, CUDA_SLOT_ARENA, place_bytes(&sums));
    *g = (struct cuda_gemm){.m = v->m,
                            .n = v->n,
                            .k = v->k,
                            .batch = 1,
                            .ta = v->oa.turned,
                            .tb = true,
                            .lda = v->oa.ld,
                            .ldb = v->k,
                            .ldd = v->n,
                            .a = v->bytes,
                            .b = v->bytes,
                            .c = wide,
                            .d = wide,
                            .alpha = 1.0f};
    struct cuda_step *step = lower_step(l, CUDA_STEP_GEMM, v->node, gemm_impl(g));
    if (!step || a_slot < 0 || b_slot < 0 || sums.slot < 0)
        return mlo_error_nomem(err);
    step->gemm = g;
    step->precision = lower_precision(l, g->a, true);
    step->in[0] = a_slot;
    step->in[1] = b_slot;
    step->in_count = 2;
    step->out[0] = sums.slot;
    step->out_count = 1;
    if (v->e.residual)
        MLO_TRY(lower_demand(l, v->e.residual, WANT_ANY, &residual, err));
    MLO_TRY(lower_place_new(l, v->e.end, WANT_ROWS, &v->y, err));
    MLO_TRY(
        chain_product(l, v->node, &sums, &v->numbers, &v->e, v->e.residual ? &residual : NULL, &v->y, err));
    l->done[v->node->index] = true;
    MLO_TRY(epilogue_take(l, &v->e, &l->s->steps[l->s->step_count - 1], err));
    lower_set(l, v->e.end, &v->y);
out:
    return status;
}

/* Both scales are in cuBLASLt's alpha, and it writes the 16-bit result with all that follows. */
static bool takes_scale(const struct product *v)
{
    enum mlo_dtype y = v->node->outputs[0]->type.dtype;
    return v->bytes == MLO_FLOAT8E4M3FN && y != MLO_FLOAT32 && mlo_tensor_count(v->q.scales) == 1;
}

static enum mlo_status emit(struct lower *l, struct product *v, int rank, const int64_t *lead,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct cuda_gemm *g = mlo_arena_calloc(l->arena, 1, sizeof *g);
    struct epilogue_wish wish = {.axis = v->node->outputs[0]->type.rank - 1,
                                 .columns = v->n,
                                 .gemm = true,
                                 .keeps_type = v->bytes != MLO_DTYPE_NONE};
    struct mlo_tensor own = {0};
    struct operand oy = {0};
    bool flat = rank <= 2 || v->batch == 1, bytes = v->bytes != MLO_DTYPE_NONE;
    double alpha = v->alpha;
    int b_slot;
    if (!g)
        return mlo_error_nomem(err);
    if (v->own && !product_constant(l, v->own, &own))
        return lower_unsupported(v->node, err, "what is added to it is no constant row");
    if (bytes && !takes_scale(v))
        return emit_sums(l, v, v->own ? &own : NULL, err);
    if (bytes)
        alpha *= (double)v->x_scale * mlo_tensor_get_f64(v->q.scales, 0);
    if (v->node->outputs[0]->type.rank >= 1)
        epilogue_follow(l, v->node->outputs[0], &wish, &v->e);
    enum mlo_dtype dtype = v->node->outputs[0]->type.dtype, d = v->e.end->type.dtype;
    v->numbers = (struct product_numbers){.own = v->own ? &own : NULL,
                                          .alpha = v->alpha,
                                          .beta = v->beta,
                                          .columns = v->n,
                                          .padded = v->n,
                                          .bias_dtype = d};
    MLO_TRY(product_slots(l, &v->e, &v->numbers, err));
    MLO_TRY(lower_place_new(l, v->e.end, WANT_ROWS, &v->y, err));
    if (!flat)
        place_result(l, v, rank, &v->y);
    if (bytes)
        MLO_TRY(bytes_operand(l, v, err));
    else if (flat && !v->ta)
        MLO_TRY(flat_operand(l, v, &v->oa, err));
    else
        MLO_TRY(operand_of(l, v, v->a, true, rank, lead, &v->oa, err));
    if (bytes) {
        b_slot = pack_bytes(l, v);
        v->ob.turned = true;
        v->ob.ld = v->k;
        dtype = v->bytes;
    } else {
        MLO_TRY(operand_of(l, v, v->b, false, flat ? 2 : rank, lead, &v->ob, err));
        b_slot = lower_slot_at(l, &v->ob.p);
    }
    oy.p = v->y;
    oy.ld = v->n;
    if (!flat && oy.p.rank == rank - 1) { /* of a vector on the left: its row is no dim of the result */
        oy.p.rank = rank;
        oy.p.dims[rank - 2] = 1;
        oy.p.strides[rank - 2] = v->n;
        oy.p.dims[rank - 1] = v->n;
        oy.p.strides[rank - 1] = 1;
    }
    if (!flat && (!as_matrix(&oy) || oy.turned || !as_batch(&oy)))
        return mlo_error_set(err, MLO_EINTERNAL, "the result of '%s' is no matrix", v->node->name);
    *g = (struct cuda_gemm){.m = v->m,
                            .n = v->n,
                            .k = v->k,
                            .batch = flat ? 1 : v->batch,
                            .ta = v->oa.turned,
                            .tb = v->ob.turned,
                            .lda = v->oa.ld,
                            .ldb = v->ob.ld,
                            .ldd = oy.ld,
                            .batch_a = flat ? 0 : v->oa.batch,
                            .batch_b = flat ? 0 : v->ob.batch,
                            .batch_d = flat ? 0 : oy.batch,
                            .a = dtype,
                            .b = dtype,
                            .c = d,
                            .d = d,
                            .alpha = (float)alpha,
                            .has_bias = v->numbers.bias >= 0,
                            .activation = v->e.activation};
    struct place c = {0};
    int c_slot = -1;
    if (v->e.residual) {
        MLO_TRY(product_demand(l, v->e.residual, WANT_ROWS, &c, err));
        if (c.dtype != g->c)
            return mlo_error_set(err, MLO_EINTERNAL, "the residual of '%s' is %s, its result %s",
                                 v->node->name, mlo_dtype_name(c.dtype), mlo_dtype_name(g->c));
        c_slot = lower_slot_at(l, &c);
        g->has_c = true;
        g->ldc = g->ldd;
        g->batch_c = g->batch_d;
    }
    int a_slot = lower_slot_at(l, &v->oa.p), k = 0;
    struct cuda_step *step = lower_step(l, CUDA_STEP_GEMM, v->node, gemm_impl(g));
    if (!step || a_slot < 0 || b_slot < 0 || (g->has_c && c_slot < 0))
        return mlo_error_nomem(err);
    step->gemm = g;
    step->precision = lower_precision(l, g->a, true);
    step->in[k++] = a_slot;
    step->in[k++] = b_slot;
    if (g->has_c) {
        step->replaces = c.offset == 0 ? k : -1; /* cuBLASLt sums in place */
        step->in[k++] = c_slot;
    }
    if (g->has_bias)
        step->in[k++] = v->numbers.bias;
    step->in_count = k;
    step->out[0] = v->y.slot;
    step->out_count = 1;
    l->done[v->node->index] = true;
    MLO_TRY(epilogue_take(l, &v->e, step, err));
    lower_set(l, v->e.end, &v->y);
out:
    return status;
}

/* Fills what operands of 8 bits say; `axis`: of the weights' columns. */
static void find_bytes(struct lower *l, struct product *v, int axis)
{
    static const enum mlo_dtype types[] = {MLO_INT8, MLO_FLOAT8E4M3FN};
    for (size_t i = 0; i < MLO_COUNT(types); i++) {
        const struct mlo_value *x = quant_source(l, v->a, types[i], &v->x_scale);
        if (!x || v->ta || !quant_weights(v->b, types[i], axis, &v->q) || v->q.q->rank != 2 ||
            v->k % BYTES_MULTIPLE || v->n % BYTES_MULTIPLE)
            continue;
        v->bytes = types[i];
        v->a = x;
        return;
    }
}

enum mlo_status lower_matmul(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t a[MLO_MAX_RANK], b[MLO_MAX_RANK], y[MLO_MAX_RANK];
    if (!mlo_node_is(node, "MatMul"))
        return MLO_OK;
    if (l->ahead[node->index]) {
        MLO_TRY(attention_lower(l, node, err));
        *done = true;
        return MLO_OK;
    }
    struct product v = {.node = node, .a = node->inputs[0], .b = node->inputs[1], .alpha = 1, .beta = 1};
    int ra = v.a->type.rank, rb = v.b->type.rank;
    if (!lower_dims(v.a, a) || !lower_dims(v.b, b) || !lower_dims(node->outputs[0], y))
        return lower_unsupported(node, err, "its shapes are not known before it runs");
    if (!lower_is_float(node->outputs[0]->type.dtype) || v.a->type.dtype != v.b->type.dtype)
        return lower_unsupported(node, err, "it multiplies %s", mlo_dtype_name(v.a->type.dtype));
    v.m = ra > 1 ? a[ra - 2] : 1;
    v.k = a[ra - 1];
    v.n = rb > 1 ? b[rb - 1] : 1;
    v.batch = 1;
    int rank = MLO_MAX(MLO_MAX(ra, rb), 2);
    int64_t lead[MLO_MAX_RANK] = {0};
    /* where one operand is a vector, the result lacks its dim: batches are the dims before */
    for (int i = 0; i < rank - 2; i++)
        v.batch *= lead[i] = y[i];
    if (rb <= 2 && ra > 2) { /* one matrix on the right: all rows of a at once */
        v.m *= v.batch;
        v.batch = 1;
    }
    find_bytes(l, &v, 1);
    MLO_TRY(emit(l, &v, rank, lead, err));
    *done = true;
out:
    return status;
}

enum mlo_status lower_gemm(struct lower *l, const struct mlo_node *node, bool *done, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t a[MLO_MAX_RANK], b[MLO_MAX_RANK];
    if (!mlo_node_is(node, "Gemm"))
        return MLO_OK;
    struct product v = {.node = node,
                        .a = node->inputs[0],
                        .b = node->inputs[1],
                        .ta = mlo_node_attr_i(node, "transA", 0) != 0,
                        .tb = mlo_node_attr_i(node, "transB", 0) != 0,
                        .alpha = mlo_node_attr_f(node, "alpha", 1.0f),
                        .beta = mlo_node_attr_f(node, "beta", 1.0f),
                        .own = mlo_node_input(node, 2),
                        .batch = 1};
    if (!lower_dims(v.a, a) || !lower_dims(v.b, b))
        return lower_unsupported(node, err, "its shapes are not known before it runs");
    if (!lower_is_float(node->outputs[0]->type.dtype))
        return lower_unsupported(node, err, "it multiplies %s", mlo_dtype_name(v.a->type.dtype));
    v.m = a[v.ta];
    v.k = a[!v.ta];
    v.n = b[!v.tb];
    find_bytes(l, &v, v.tb ? 0 : 1);
    MLO_TRY(emit(l, &v, 2, NULL, err));
    *done = true;
out:
    return status;
}
