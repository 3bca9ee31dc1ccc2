/* A chain before its text: what its registers hold, when they are known, and the index space as memory has
 * it. */
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/kernels/chain_impl.h"

const struct cuda_operand *chain_tensor(const struct cuda_chain *chain, int i)
{
    return (const void *)(i < chain->operand_count ? &chain->operands[i]
                                                   : &chain->results[i - chain->operand_count]);
}

/* How many of a, b and c are registers, and what an operation makes of floats only or of anything. */
static const struct {
    int arguments;
    bool reduces;
} ops[CUDA_CHAIN_OPS] = {
    [CUDA_OP_LOAD] = {0, false},         [CUDA_OP_CONSTANT] = {0, false},   [CUDA_OP_INDEX] = {0, false},
    [CUDA_OP_UNARY] = {1, false},        [CUDA_OP_ADD] = {2, false},        [CUDA_OP_SUB] = {2, false},
    [CUDA_OP_MUL] = {2, false},          [CUDA_OP_DIV] = {2, false},        [CUDA_OP_POW] = {2, false},
    [CUDA_OP_MIN] = {2, false},          [CUDA_OP_MAX] = {2, false},        [CUDA_OP_MOD] = {2, false},
    [CUDA_OP_LESS] = {2, false},         [CUDA_OP_EQUAL] = {2, false},      [CUDA_OP_AND] = {2, false},
    [CUDA_OP_OR] = {2, false},           [CUDA_OP_NOT] = {1, false},        [CUDA_OP_SELECT] = {3, false},
    [CUDA_OP_QUANTIZE] = {1, false},     [CUDA_OP_DEQUANTIZE] = {1, false}, [CUDA_OP_SUM] = {1, true},
    [CUDA_OP_PRODUCT] = {1, true},       [CUDA_OP_REDUCE_MAX] = {1, true},  [CUDA_OP_REDUCE_MIN] = {1, true},
    [CUDA_OP_LOAD_INTEGER] = {0, false}, [CUDA_OP_CAST] = {1, false},
};

int chain_arguments(const struct cuda_chain_instruction *in)
{
    return ops[in->op].arguments;
}

bool chain_is_reduction(enum cuda_chain_op op)
{
    return ops[op].reduces;
}

static enum mlo_status check(const struct cuda_chain *c, struct mlo_error *err)
{
    if (c->rank < 0 || c->rank > CUDA_RANK || c->reduced < 0 || c->reduced > c->rank || c->count < 1 ||
        c->count > CUDA_CHAIN_REGISTERS || c->operand_count < 0 || c->operand_count > CUDA_CHAIN_OPERANDS ||
        c->result_count < 1 || c->result_count > (int)MLO_COUNT(c->results))
        return mlo_error_set(err, MLO_EINVAL, "a chain of %d operations over %d dimensions is none", c->count,
                             c->rank);
    size_t count;
    if (!mlo_shape_count(c->rank, c->dims, &count) || count > (size_t)1 << 46)
        return mlo_error_set(err, MLO_ETOOBIG, "a chain's index space is too large");
    for (int i = 0; i < c->count; i++) {
        const struct cuda_chain_instruction *in = &c->code[i];
        const int registers[] = {in->a, in->b, in->c};
        bool good = (int)in->op >= 0 && in->op < CUDA_CHAIN_OPS;
        for (int k = 0; good && k < chain_arguments(in); k++)
            good = registers[k] >= 0 && registers[k] < i;
        if (good && (in->op == CUDA_OP_LOAD || in->op == CUDA_OP_LOAD_INTEGER))
            good = in->a >= 0 && in->a < c->operand_count &&
                   (in->op == CUDA_OP_LOAD || cuda_type_is_whole(c->operands[in->a].dtype));
        if (good && in->op == CUDA_OP_INDEX)
            good = in->a >= 0 && in->a < c->rank;
        if (good && in->op == CUDA_OP_UNARY)
            good = (int)in->math >= 0 && in->math < CUDA_MATHS;
        if (good && in->op == CUDA_OP_CAST)
            good = cuda_type_name((enum mlo_dtype)in->b) != NULL;
        if (!good)
            return mlo_error_set(err, MLO_EINVAL, "operation %d of a chain is wrong", i);
    }
    for (int i = 0; i < c->operand_count + c->result_count; i++)
        if (!cuda_type_name(chain_tensor(c, i)->dtype))
            return mlo_error_set(err, MLO_EUNSUPPORTED, "kernels have no %s",
                                 mlo_dtype_name(chain_tensor(c, i)->dtype));
    for (int i = 0; i < c->result_count; i++)
        if (c->results[i].reg < 0 || c->results[i].reg >= c->count)
            return mlo_error_set(err, MLO_EINVAL, "result %d of a chain is of no register", i);
    return MLO_OK;
}

/* --- registers ------------------------------------------------------------------------------------------ */

bool chain_is_integral(float v)
{
    return v > -16777217.0f && v < 16777217.0f && v == (float)(int)v;
}

/* Of two registers together: constants join the other side where they can. */
static enum chain_kind joined(const struct chain_form *f, int a, int b)
{
    enum chain_kind ka = f->kind[a], kb = f->kind[b];
    if (ka == CHAIN_EITHER && kb == CHAIN_EITHER)
        return CHAIN_FLOAT;
    if (ka == CHAIN_EITHER)
        return kb == CHAIN_WHOLE && chain_is_integral(f->chain->code[a].alpha) ? CHAIN_WHOLE : CHAIN_FLOAT;
    if (kb == CHAIN_EITHER)
        return ka == CHAIN_WHOLE && chain_is_integral(f->chain->code[b].alpha) ? CHAIN_WHOLE : CHAIN_FLOAT;
    return ka == CHAIN_WHOLE && kb == CHAIN_WHOLE ? CHAIN_WHOLE : CHAIN_FLOAT;
}

static bool keeps_whole(enum cuda_math math)
{
    return math == CUDA_MATH_ABS || math == CUDA_MATH_NEG || math == CUDA_MATH_RELU || math == CUDA_MATH_SIGN;
}

static enum chain_kind kind_of(const struct chain_form *f, const struct cuda_chain_instruction *in)
{
    enum chain_kind of_a = chain_arguments(in) ? f->kind[in->a] : CHAIN_FLOAT;
    switch (in->op) {
    case CUDA_OP_CONSTANT:
        return CHAIN_EITHER;
    case CUDA_OP_INDEX:
    case CUDA_OP_LOAD_INTEGER:
    case CUDA_OP_LESS:
    case CUDA_OP_EQUAL:
    case CUDA_OP_AND:
    case CUDA_OP_OR:
    case CUDA_OP_NOT:
        return CHAIN_WHOLE;
    case CUDA_OP_UNARY:
        return of_a == CHAIN_WHOLE && keeps_whole(in->math) ? CHAIN_WHOLE : CHAIN_FLOAT;
    case CUDA_OP_SELECT:
        return joined(f, in->b, in->c);
    case CUDA_OP_SUM:
    case CUDA_OP_PRODUCT:
    case CUDA_OP_REDUCE_MAX:
    case CUDA_OP_REDUCE_MIN:
        return of_a == CHAIN_WHOLE ? CHAIN_WHOLE : CHAIN_FLOAT;
    case CUDA_OP_CAST:
        return cuda_type_is_whole((enum mlo_dtype)in->b) ? CHAIN_WHOLE : CHAIN_FLOAT;
    case CUDA_OP_LOAD:
    case CUDA_OP_QUANTIZE:
    case CUDA_OP_DEQUANTIZE:
        return CHAIN_FLOAT;
    default:
        return joined(f, in->a, in->b);
    }
}

static bool varies(const struct chain_form *f, int tensor)
{
    for (int d = f->kept; d < f->rank; d++)
        if (f->strides[tensor][d])
            return true;
    return false;
}

static void mark_used(struct chain_form *f)
{
    const struct cuda_chain *c = f->chain;
    for (int i = 0; i < c->result_count; i++)
        f->used[c->results[i].reg] = true;
    for (int i = c->count - 1; i >= 0; i--) {
        const struct cuda_chain_instruction *in = &c->code[i];
        const int registers[] = {in->a, in->b, in->c};
        for (int k = 0; f->used[i] && k < chain_arguments(in); k++)
            f->used[registers[k]] = true;
    }
}

static void look_at_registers(struct chain_form *f)
{
    const struct cuda_chain *c = f->chain;
    for (int i = 0; i < c->count; i++) {
        const struct cuda_chain_instruction *in = &c->code[i];
        const int registers[] = {in->a, in->b, in->c};
        for (int k = 0; k < chain_arguments(in); k++) {
            f->varies[i] |= f->varies[registers[k]];
            f->level[i] = MLO_MAX(f->level[i], f->level[registers[k]]);
        }
        f->kind[i] = kind_of(f, in);
        if (in->op == CUDA_OP_LOAD || in->op == CUDA_OP_LOAD_INTEGER)
            f->varies[i] = varies(f, in->a);
        else if (in->op == CUDA_OP_INDEX)
            f->varies[i] = f->index_dim[in->a] >= f->kept;
        if (chain_is_reduction(in->op)) {
            f->varies[i] = false;
            f->level[i]++;
            f->rounds = f->used[i] ? MLO_MAX(f->rounds, f->level[i]) : f->rounds;
        }
    }
}

/* --- dims ----------------------------------------------------------------------------------------------- */

static void swap_dims(struct chain_form *f, int *from, int a, int b)
{
    int64_t n = f->dims[a];
    f->dims[a] = f->dims[b];
    f->dims[b] = n;
    int d = from[a];
    from[a] = from[b];
    from[b] = d;
    for (int t = 0; t < f->tensors; t++) {
        int64_t s = f->strides[t][a];
        f->strides[t][a] = f->strides[t][b];
        f->strides[t][b] = s;
    }
}

/* By the strides of `first`, then of all others: the largest outermost. */
static bool is_behind(const struct chain_form *f, int first, int a, int b)
{
    for (int k = 0; k < f->tensors; k++) {
        int t = (first + k) % f->tensors;
        int64_t sa = llabs(f->strides[t][a]), sb = llabs(f->strides[t][b]);
        if (sa && sb && sa != sb)
            return sa < sb;
    }
    return false;
}

static void sort_dims(struct chain_form *f, int *from, int begin, int end, int first)
{
    for (int i = begin; i < end; i++)
        for (int k = i; k > begin && is_behind(f, first, k - 1, k); k--)
            swap_dims(f, from, k - 1, k);
}

static void drop_dim(struct chain_form *f, int *from, int d)
{
    for (; d + 1 < f->rank; d++)
        swap_dims(f, from, d, d + 1);
    f->rank--;
}

static bool joins(const struct chain_form *f, const bool *alone, const int *from, int d)
{
    if (alone[from[d]] || alone[from[d + 1]])
        return false;
    for (int t = 0; t < f->tensors; t++)
        if (f->strides[t][d] != f->strides[t][d + 1] * f->dims[d + 1])
            return false;
    return true;
}

static void arrange(struct chain_form *f)
{
    const struct cuda_chain *c = f->chain;
    bool alone[CUDA_RANK] = {false};
    int from[CUDA_RANK], largest = 0;
    for (int i = 0; i < c->count; i++)
        if (c->code[i].op == CUDA_OP_INDEX)
            alone[c->code[i].a] = true;
    for (int d = 0; d < CUDA_RANK; d++)
        from[d] = d;
    for (int d = f->rank - 1; d >= 0; d--)
        if (f->dims[d] == 1) {
            f->kept -= d < f->kept;
            drop_dim(f, from, d);
        }
    for (int t = f->tensors - 1; t >= 0; t--) /* the first that has all of a row says how it is read */
        if (varies(f, t))
            largest = t;
    sort_dims(f, from, 0, f->kept, f->kept == f->rank ? c->operand_count : largest);
    sort_dims(f, from, f->kept, f->rank, largest);
    for (int d = f->rank - 2; d >= 0; d--)
        if (d + 1 != f->kept && joins(f, alone, from, d)) {
            f->dims[d + 1] *= f->dims[d];
            f->kept -= d < f->kept;
            drop_dim(f, from, d);
        }
    for (int d = 0; d < CUDA_RANK; d++)
        f->index_dim[d] = -1;
    for (int d = 0; d < f->rank; d++)
        f->index_dim[from[d]] = d;
}

/* --- vectors -------------------------------------------------------------------------------------------- */

static bool takes_vector(const struct chain_form *f, int first_dim, int n)
{
    const struct cuda_chain *c = f->chain;
    int last = f->rank - 1;
    if (f->rank <= first_dim || f->dims[last] % n)
        return false;
    for (int t = 0; t < f->tensors; t++) {
        const struct cuda_operand *o = chain_tensor(c, t);
        int64_t width = mlo_dtype_info(o->dtype)->bits / 8 * (int64_t)n, inner = f->strides[t][last];
        if (inner == 0)
            continue;
        if (inner != 1 || width > 16 || o->offset % n || (o->align_bytes && o->align_bytes % width))
            return false;
        for (int d = 0; d < last; d++)
            if (f->strides[t][d] % n)
                return false;
    }
    return true;
}

/* Where rows are reduced, only the reduced dims are read as vectors. */
static void choose_vector(struct chain_form *f)
{
    f->vector = 1;
    for (int n = 16; n > 1 && f->vector == 1; n /= 2)
        if (f->rows && f->length && takes_vector(f, f->reduces ? f->kept : 0, n))
            f->vector = n;
    for (int t = 0; t < f->tensors; t++)
        f->vectored[t] = f->vector > 1 && f->strides[t][f->rank - 1] == 1;
    bool any = false;
    for (int t = 0; t < f->tensors; t++)
        any |= f->vectored[t];
    if (!any)
        f->vector = 1;
}

enum mlo_status chain_form_init(struct chain_form *f, const struct cuda_chain *chain, struct mlo_error *err)
{
    enum mlo_status status = check(chain, err);
    if (status != MLO_OK)
        return status;
    memset(f, 0, sizeof *f);
    f->chain = chain;
    f->tensors = chain->operand_count + chain->result_count;
    f->rank = chain->rank;
    memcpy(f->dims, chain->dims, sizeof f->dims);
    for (int t = 0; t < f->tensors; t++)
        memcpy(f->strides[t], chain_tensor(chain, t)->strides, sizeof f->strides[t]);
    mark_used(f);
    for (int i = 0; i < chain->count; i++)
        f->reduces |= f->used[i] && chain_is_reduction(chain->code[i].op);
    for (int i = 0; i < chain->result_count; i++) /* stored once for a row */
        for (int d = chain->rank - chain->reduced; d < chain->rank; d++)
            f->reduces |= chain->dims[d] != 1 && !chain->results[i].strides[d];
    f->kept = f->reduces ? chain->rank - chain->reduced : chain->rank;
    arrange(f);
    f->rows = f->length = 1;
    for (int d = 0; d < f->rank; d++)
        *(d < f->kept ? &f->rows : &f->length) *= f->dims[d];
    for (int i = 0; i < chain->result_count; i++) {
        int t = chain->operand_count + i;
        for (int d = 0; d < f->kept && f->rows; d++)
            if (!f->strides[t][d])
                return mlo_error_set(err, MLO_EINVAL, "result %d of a chain is stored more than once", i);
    }
    look_at_registers(f);
    for (int i = 0; i < chain->result_count; i++)
        if (f->varies[chain->results[i].reg] && !varies(f, chain->operand_count + i))
            return mlo_error_set(err, MLO_EINVAL, "result %d of a chain has no place for a row", i);
    choose_vector(f);
    return MLO_OK;
}
