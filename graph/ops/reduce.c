/* Reductions over axes, and ArgMax/ArgMin. Sums are in double (int64 for integers), in row-major order. */
#include <math.h>

#include "graph/ops/ops_impl.h"

/* Which axes: attribute up to some opset, input 1 from there on; both absent means all (or none: noop). */
static enum mlo_status read_axes(const struct mlo_node *node, const struct mlo_tensor *input, int rank,
                                 bool *reduced, bool *none, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t from_input[MLO_MAX_RANK];
    size_t count;
    const int64_t *axes = mlo_node_attr_ints(node, "axes", &count);
    memset(reduced, 0, MLO_MAX_RANK * sizeof *reduced);
    *none = false;
    if (input) {
        int n;
        MLO_TRY(mlo_op_read_ints(input, from_input, MLO_MAX_RANK, &n, err));
        axes = from_input;
        count = (size_t)n;
    }
    if (!count) {
        *none = mlo_node_attr_i(node, "noop_with_empty_axes", 0) != 0;
        for (int i = 0; i < rank; i++)
            reduced[i] = !*none;
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        int axis;
        MLO_TRY(mlo_op_axis(axes[i], rank, &axis, err));
        reduced[axis] = true;
    }
out:
    return status;
}

static void reduce_dims(const struct mlo_node *node, const bool *reduced, struct mlo_type *type)
{
    bool keep = mlo_node_attr_i(node, "keepdims", 1) != 0;
    int rank = 0;
    for (int i = 0; i < type->rank; i++)
        if (!reduced[i])
            type->dims[rank++] = type->dims[i];
        else if (keep)
            type->dims[rank++] = mlo_dim_fixed(1);
    type->rank = rank;
}

static enum mlo_status infer_reduce(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    bool reduced[MLO_MAX_RANK], none;
    out[0] = *mlo_op_in(node, 0);
    if (out[0].rank < 0)
        return MLO_OK;
    if (mlo_op_in(node, 1) && !mlo_op_content(node, 1)) { /* which axes is not known yet */
        if (!mlo_node_attr_i(node, "keepdims", 1))
            out[0].rank = -1;
        for (int i = 0; i < out[0].rank; i++)
            out[0].dims[i] = mlo_dim_unknown();
        return MLO_OK;
    }
    enum mlo_status status = read_axes(node, mlo_op_content(node, 1), out[0].rank, reduced, &none, err);
    if (status == MLO_OK)
        reduce_dims(node, reduced, &out[0]);
    return status;
}

enum kind { MEAN, SUM, MAX, MIN, PROD, L1, L2, SUM_SQUARE, LOG_SUM, LOG_SUM_EXP };
static const struct {
    const char *op;
    enum kind kind;
} kinds[] = {
    {"ReduceMean", MEAN},      {"ReduceSum", SUM},
    {"ReduceMax", MAX},        {"ReduceMin", MIN},
    {"ReduceProd", PROD},      {"ReduceL1", L1},
    {"ReduceL2", L2},          {"ReduceSumSquare", SUM_SQUARE},
    {"ReduceLogSum", LOG_SUM}, {"ReduceLogSumExp", LOG_SUM_EXP},
};

static double start_of(enum kind kind)
{
    return kind == MAX || kind == LOG_SUM_EXP ? -INFINITY : kind == MIN ? INFINITY : kind == PROD ? 1 : 0;
}

static double step(enum kind kind, double sum, double v)
{
    switch (kind) {
    case MAX:
    case LOG_SUM_EXP: /* its first round finds the largest */
        return v > sum || isnan(v) ? v : sum;
    case MIN:
        return v < sum || isnan(v) ? v : sum;
    case PROD:
        return sum * v;
    case L1:
        return sum + fabs(v);
    case L2:
    case SUM_SQUARE:
        return sum + v * v;
    default:
        return sum + v;
    }
}

static double finish(enum kind kind, double sum, double count)
{
    switch (kind) {
    case MEAN:
        return sum / count;
    case L2:
        return sqrt(sum);
    case LOG_SUM:
        return mlo_math_log(sum);
    default:
        return sum;
    }
}

/* The elements that one output element takes together: an odometer over the reduced dims. */
struct cells {
    int kept, summed;
    size_t kept_dim[MLO_MAX_RANK], kept_step[MLO_MAX_RANK], dim[MLO_MAX_RANK], step[MLO_MAX_RANK];
    size_t outputs, each;
};

static void cells_init(struct cells *c, const struct mlo_tensor *x, const bool *reduced)
{
    size_t steps[MLO_MAX_RANK], stride = 1;
    for (int i = x->rank - 1; i >= 0; i--) {
        steps[i] = stride;
        stride *= (size_t)x->dims[i];
    }
    *c = (struct cells){.outputs = 1, .each = 1};
    for (int i = 0; i < x->rank; i++) {
        size_t n = (size_t)x->dims[i];
        if (reduced[i]) {
            c->dim[c->summed] = n;
            c->step[c->summed++] = steps[i];
            c->each *= n;
        } else {
            c->kept_dim[c->kept] = n;
            c->kept_step[c->kept++] = steps[i];
            c->outputs *= n;
        }
    }
}

static size_t offset_of(size_t i, int rank, const size_t *dims, const size_t *steps)
{
    size_t offset = 0;
    for (int r = rank - 1; r >= 0; r--) {
        offset += i % dims[r] * steps[r];
        i /= dims[r];
    }
    return offset;
}

static double reduce_one(const struct cells *c, const struct mlo_tensor *x, size_t base, enum kind kind)
{
    double sum = start_of(kind);
    for (size_t k = 0; k < c->each; k++)
        sum = step(kind, sum, mlo_tensor_get_f64(x, base + offset_of(k, c->summed, c->dim, c->step)));
    if (kind != LOG_SUM_EXP || isinf(sum))
        return finish(kind, sum, (double)c->each);
    double total = 0;
    for (size_t k = 0; k < c->each; k++)
        total += mlo_math_exp(mlo_tensor_get_f64(x, base + offset_of(k, c->summed, c->dim, c->step)) - sum);
    return sum + mlo_math_log(total);
}

/* Integers stay exact. */
static int64_t reduce_int(const struct cells *c, const struct mlo_tensor *x, size_t base, enum kind kind)
{
    uint64_t sum = kind == PROD;
    int64_t best = kind == MIN && x->dtype == MLO_BOOL; /* of no elements: the neutral one */
    for (size_t k = 0; k < c->each; k++) {
        int64_t v = mlo_tensor_get_i64(x, base + offset_of(k, c->summed, c->dim, c->step));
        if (kind == MAX || kind == MIN)
            best = k == 0 || (kind == MAX ? v > best : v < best) ? v : best;
        else if (kind == PROD)
            sum *= (uint64_t)v;
        else
            sum += kind == SUM_SQUARE    ? (uint64_t)v * (uint64_t)v
                   : kind == L1 && v < 0 ? -(uint64_t)v
                                         : (uint64_t)v;
    }
    return kind == MAX || kind == MIN ? best
           : kind == MEAN             ? (c->each ? (int64_t)sum / (int64_t)c->each : 0)
                                      : (int64_t)sum;
}

/* Sums and means over the last dims, the usual case: four rows next to each other, each added in the order of
 * reduce_one. */
static bool reduce_rows(const struct cells *c, const struct mlo_tensor *x, enum kind kind,
                        struct mlo_tensor *out)
{
    enum { TOGETHER = 4 };
    size_t n = c->each, trailing = 1;
    const float *from = x->data;
    float *to = out->data;
    for (int i = c->summed - 1; i >= 0; i--) {
        if (c->step[i] != trailing)
            return false;
        trailing *= c->dim[i];
    }
    if (x->dtype != MLO_FLOAT32 || (kind != SUM && kind != MEAN) || !n)
        return false;
    for (size_t i = 0; i < c->outputs; i += TOGETHER) {
        double sums[TOGETHER] = {0};
        size_t rows = MLO_MIN(c->outputs - i, (size_t)TOGETHER);
        for (size_t k = 0; rows == TOGETHER && k < n; k++)
            for (size_t r = 0; r < TOGETHER; r++)
                sums[r] += (double)from[(i + r) * n + k];
        for (size_t r = 0; rows < TOGETHER && r < rows; r++)
            for (size_t k = 0; k < n; k++)
                sums[r] += (double)from[(i + r) * n + k];
        for (size_t r = 0; r < rows; r++)
            to[i + r] = (float)finish(kind, sums[r], (double)n);
    }
    return true;
}

static enum mlo_status eval_reduce(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool reduced[MLO_MAX_RANK], none;
    struct cells c;
    size_t k = 0;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(read_axes(node, node->input_count > 1 ? in[1] : NULL, in[0]->rank, reduced, &none, err));
    while (strcmp(kinds[k].op, node->op_type) != 0)
        k++;
    enum kind kind = kinds[k].kind;
    const struct mlo_dtype_info *info = mlo_dtype_info(in[0]->dtype);
    bool truth = in[0]->dtype == MLO_BOOL && node->op->since >= 20 && (kind == MAX || kind == MIN);
    if (!info->is_float && !info->is_integer && !truth) {
        status = mlo_op_bad_dtype(in[0]->dtype, err);
        goto out;
    }
    cells_init(&c, in[0], reduced);
    bool exact = truth || (info->is_integer && kind <= SUM_SQUARE && kind != L2);
    if (!none && reduce_rows(&c, in[0], kind, out[0]))
        goto out;
    for (size_t i = 0; i < c.outputs; i++) {
        size_t base = offset_of(i, c.kept, c.kept_dim, c.kept_step);
        if (none) /* no axes and noop: the tensor as it is */
            mlo_tensor_set_f64(out[0], i, mlo_tensor_get_f64(in[0], i));
        else if (exact)
            mlo_store_i64(out[0], i, reduce_int(&c, in[0], base, kind));
        else
            mlo_tensor_set_f64(out[0], i, reduce_one(&c, in[0], base, kind));
    }
out:
    return status;
}

static enum mlo_status infer_arg(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    bool reduced[MLO_MAX_RANK] = {0};
    int axis;
    out[0] = *mlo_op_in(node, 0);
    out[0].dtype = MLO_INT64;
    if (out[0].rank < 0)
        return MLO_OK;
    enum mlo_status status = mlo_op_axis(mlo_node_attr_i(node, "axis", 0), out[0].rank, &axis, err);
    if (status != MLO_OK)
        return status;
    if (out[0].dims[axis].value == 0)
        return mlo_error_set(err, MLO_EINVAL, "there is nothing along axis %d to choose from", axis);
    reduced[axis] = true;
    reduce_dims(node, reduced, &out[0]);
    return MLO_OK;
}

static enum mlo_status eval_arg(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool reduced[MLO_MAX_RANK] = {0}, maximum = mlo_node_is(node, "ArgMax");
    bool last = mlo_node_attr_i(node, "select_last_index", 0) != 0;
    struct cells c;
    int axis;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(mlo_op_axis(mlo_node_attr_i(node, "axis", 0), in[0]->rank, &axis, err));
    reduced[axis] = true;
    cells_init(&c, in[0], reduced);
    for (size_t i = 0; i < c.outputs; i++) {
        size_t base = offset_of(i, c.kept, c.kept_dim, c.kept_step), best = 0;
        double top = mlo_tensor_get_f64(in[0], base);
        for (size_t k = 1; k < c.each; k++) {
            double v = mlo_tensor_get_f64(in[0], base + k * c.step[0]);
            if ((maximum ? v > top : v < top) || (last && v == top)) {
                top = v;
                best = k;
            }
        }
        ((int64_t *)out[0]->data)[i] = (int64_t)best;
    }
out:
    return status;
}

#define REDUCE(name, since, inputs)                                                                          \
    {                                                                                                        \
        "", name, since, infer_reduce, eval_reduce, MLO_OP_PURE, 1, inputs, 1, 1                             \
    }
#define ATTRIBUTE_FORM(name) REDUCE(name, 1, 1), REDUCE(name, 11, 1), REDUCE(name, 13, 1), REDUCE(name, 18, 2)
#define ARG(name, since)                                                                                     \
    {                                                                                                        \
        "", name, since, infer_arg, eval_arg, MLO_OP_PURE, 1, 1, 1, 1                                        \
    }

static const struct mlo_op rows[] = {
    ATTRIBUTE_FORM("ReduceMean"),
    ATTRIBUTE_FORM("ReduceMax"),
    ATTRIBUTE_FORM("ReduceMin"),
    ATTRIBUTE_FORM("ReduceProd"),
    ATTRIBUTE_FORM("ReduceL1"),
    ATTRIBUTE_FORM("ReduceL2"),
    ATTRIBUTE_FORM("ReduceSumSquare"),
    ATTRIBUTE_FORM("ReduceLogSum"),
    ATTRIBUTE_FORM("ReduceLogSumExp"),
    REDUCE("ReduceMax", 12, 1),
    REDUCE("ReduceMax", 20, 2),
    REDUCE("ReduceMin", 20, 2),
    REDUCE("ReduceMin", 12, 1),
    REDUCE("ReduceSum", 1, 1),
    REDUCE("ReduceSum", 11, 1),
    REDUCE("ReduceSum", 13, 2),
    ARG("ArgMax", 1),
    ARG("ArgMax", 11),
    ARG("ArgMax", 12),
    ARG("ArgMax", 13),
    ARG("ArgMin", 1),
    ARG("ArgMin", 11),
    ARG("ArgMin", 12),
    ARG("ArgMin", 13),
};
const struct mlo_op_family mlo_ops_reduce = {rows, MLO_COUNT(rows)};
