/* Einsum: sums of products over labelled dims, in double, in the order of the summed labels. */
#include <ctype.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

/* Labels: a-z, A-Z as they are; ellipsis dims, counted from the right, as '0'…'7'. */
enum { TERM_MAX = 64, LABEL_MAX = 2 * MLO_MAX_RANK + 52, OPERAND_MAX = 16 };

struct equation {
    int operands;
    char term[OPERAND_MAX][TERM_MAX]; /* with '.' for an ellipsis, then its dims spelled out */
    char result[TERM_MAX];
    bool has_result;
};

static enum mlo_status bad(const char *text, const char *why, struct mlo_error *err)
{
    return mlo_error_set(err, MLO_EINVAL, "attribute 'equation' is '%.200s': %s", text, why);
}

/* One term up to `end`, without spaces, an ellipsis as one '.'. */
static enum mlo_status read_term(const char *text, const char **at, char *out, struct mlo_error *err)
{
    size_t n = 0;
    bool dots = false;
    const char *p = *at;
    while (*p && *p != ',' && !(p[0] == '-' && p[1] == '>')) {
        if (isspace((unsigned char)*p)) {
            p++;
            continue;
        }
        if (n + 1 >= TERM_MAX)
            return bad(text, "a term is too long", err);
        if (strncmp(p, "...", 3) == 0 && !dots) {
            dots = true;
            out[n++] = '.';
            p += 3;
        } else if (isalpha((unsigned char)*p)) {
            out[n++] = *p++;
        } else {
            return bad(text, "only letters, ',', '->' and one '...' a term are known", err);
        }
    }
    out[n] = '\0';
    *at = p;
    return MLO_OK;
}

static enum mlo_status read_equation(const struct mlo_node *node, struct equation *e, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *text = mlo_node_attr_s(node, "equation", ""), *p = text;
    *e = (struct equation){0};
    for (;;) {
        if (e->operands == OPERAND_MAX) {
            status = bad(text, "there are too many terms", err);
            goto out;
        }
        MLO_TRY(read_term(text, &p, e->term[e->operands++], err));
        if (*p != ',')
            break;
        p++;
    }
    if (*p) {
        p += 2;
        e->has_result = true;
        MLO_TRY(read_term(text, &p, e->result, err));
        if (*p)
            status = bad(text, "something follows the result", err);
    }
    if (status == MLO_OK && e->operands != node->input_count)
        status = bad(text, "terms and inputs differ in number", err);
out:
    return status;
}

/* Puts the digits of `dims` ellipsis dims in place of the '.'. */
static bool spell(char *term, int dims)
{
    char full[TERM_MAX];
    size_t n = 0;
    for (const char *p = term; *p; p++) {
        for (int i = dims - 1; *p == '.' && i >= 0; i--) {
            if (n + 1 >= TERM_MAX)
                return false;
            full[n++] = (char)('0' + i);
        }
        if (*p == '.')
            continue;
        if (n + 1 >= TERM_MAX)
            return false;
        full[n++] = *p;
    }
    full[n] = '\0';
    memcpy(term, full, n + 1);
    return true;
}

/* Without '->', the labels that occur once, in order of the alphabet, behind the ellipsis. */
static void implied_result(struct equation *e, int dots)
{
    int seen[128] = {0};
    size_t n = 0;
    for (int i = 0; i < e->operands; i++)
        for (const char *p = e->term[i]; *p; p++)
            seen[(unsigned char)*p]++;
    for (int i = dots - 1; i >= 0; i--)
        e->result[n++] = (char)('0' + i);
    for (int c = 'A'; c <= 'z'; c++)
        if (seen[c] == 1)
            e->result[n++] = (char)c;
    e->result[n] = '\0';
}

/* All terms spelled out for operands of these ranks, and the size of each label. */
static enum mlo_status bind_equation(const struct mlo_node *node, struct equation *e, struct mlo_dim *sizes,
                                     struct mlo_error *err)
{
    const char *text = mlo_node_attr_s(node, "equation", "");
    int dots = 0;
    bool ok = true;
    for (int c = 0; c < 128; c++)
        sizes[c] = mlo_dim_fixed(1);
    for (int i = 0; i < e->operands; i++) {
        int letters = (int)strlen(e->term[i]), rank = mlo_op_in(node, i)->rank;
        bool dotted = strchr(e->term[i], '.') != NULL;
        int rest = dotted ? rank - (letters - 1) : 0;
        if (rest < 0 || (!dotted && rank != letters))
            return mlo_error_set(err, MLO_EINVAL, "input %d has rank %d, but its term is '%.80s'", i, rank,
                                 e->term[i]);
        ok = ok && spell(e->term[i], rest);
        dots = MLO_MAX(dots, rest);
    }
    if (e->has_result)
        ok = ok && spell(e->result, dots);
    else
        implied_result(e, dots);
    if (!ok || strlen(e->result) > MLO_MAX_RANK)
        return bad(text, "it has more dims than are supported", err);
    bool there[128] = {0};
    for (int i = 0; i < e->operands; i++)
        for (int k = 0; e->term[i][k]; k++) {
            struct mlo_dim *size = &sizes[(unsigned char)e->term[i][k]], d = mlo_op_in(node, i)->dims[k];
            there[(unsigned char)e->term[i][k]] = true;
            if (d.value == 1 || (size->value >= 0 && size->value == d.value))
                continue;
            if (size->value != 1 && size->value >= 0 && d.value >= 0)
                return mlo_error_set(err, MLO_EINVAL, "label '%c' is %lld, and %lld in input %d",
                                     e->term[i][k], (long long)size->value, (long long)d.value, i);
            if (size->value == 1 || d.value >= 0)
                *size = d;
        }
    for (const char *p = e->result; *p; p++)
        if (!there[(unsigned char)*p] || strchr(p + 1, *p))
            return bad(text, "a label of the result is in no term, or is there twice", err);
    return MLO_OK;
}

static enum mlo_status infer_einsum(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct equation e;
    struct mlo_dim sizes[128];
    out[0].dtype = mlo_op_in(node, 0)->dtype;
    MLO_TRY(read_equation(node, &e, err));
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_type *t = mlo_op_in(node, i);
        if (!t) {
            status = mlo_error_set(err, MLO_EFORMAT, "input %d is omitted", i);
            goto out;
        }
        if (t->dtype && out[0].dtype && t->dtype != out[0].dtype) {
            status = mlo_error_set(err, MLO_EINVAL, "input %d is %s, and input 0 %s", i,
                                   mlo_dtype_name(t->dtype), mlo_dtype_name(out[0].dtype));
            goto out;
        }
        if (t->rank < 0)
            goto out;
    }
    MLO_TRY(bind_equation(node, &e, sizes, err));
    out[0].rank = (int)strlen(e.result);
    for (int i = 0; i < out[0].rank; i++)
        out[0].dims[i] = sizes[(unsigned char)e.result[i]];
out:
    return status;
}

/* A nest of loops over labels, and each operand's offset in it. */
struct nest {
    int depth;
    size_t size[LABEL_MAX], at[LABEL_MAX], step[OPERAND_MAX][LABEL_MAX], offset[OPERAND_MAX];
};

static void nest_add(struct nest *n, char label, int64_t size, const struct equation *e,
                     const struct mlo_tensor *const *in)
{
    n->size[n->depth] = (size_t)size;
    for (int i = 0; i < e->operands; i++) {
        size_t stride = 1;
        for (int k = in[i]->rank - 1; k >= 0; k--) { /* a label that is there twice walks the diagonal */
            if (e->term[i][k] == label && in[i]->dims[k] != 1)
                n->step[i][n->depth] += stride;
            stride *= (size_t)in[i]->dims[k];
        }
    }
    n->depth++;
}

static bool nest_next(struct nest *n, int operands)
{
    for (int d = n->depth - 1; d >= 0; d--) {
        bool carry = ++n->at[d] == n->size[d];
        for (int i = 0; i < operands; i++)
            n->offset[i] += carry ? -(n->step[i][d] * (n->size[d] - 1)) : n->step[i][d];
        if (!carry)
            return true;
        n->at[d] = 0;
    }
    return false;
}

static enum mlo_status eval_einsum(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                   struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct equation e;
    struct mlo_dim sizes[128];
    struct mlo_value values[OPERAND_MAX] = {0}, *inputs[OPERAND_MAX];
    struct mlo_node stand_in = *node;
    struct nest *outer = NULL, *inner = NULL;
    double *data[OPERAND_MAX] = {0};
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(read_equation(node, &e, err));
    for (int i = 0; i < e.operands; i++) {
        values[i].type = mlo_type_of(in[i]);
        inputs[i] = &values[i];
        MLO_TRY(mlo_op_doubles(in[i], &data[i], err));
    }
    stand_in.inputs = inputs;
    MLO_TRY(bind_equation(&stand_in, &e, sizes, err));
    outer = calloc(1, sizeof *outer);
    inner = calloc(1, sizeof *inner);
    if (!outer || !inner) {
        status = mlo_error_nomem(err);
        goto out;
    }
    bool empty = false;
    for (const char *p = e.result; *p; p++)
        nest_add(outer, *p, sizes[(unsigned char)*p].value, &e, in);
    for (int i = 0; i < e.operands; i++)
        for (const char *p = e.term[i]; *p; p++) {
            bool seen = strchr(e.result, *p) || memchr(e.term[i], *p, (size_t)(p - e.term[i]));
            for (int k = 0; k < i && !seen; k++)
                seen = strchr(e.term[k], *p) != NULL;
            if (!seen)
                nest_add(inner, *p, sizes[(unsigned char)*p].value, &e, in);
            empty = empty || sizes[(unsigned char)*p].value == 0;
        }
    for (size_t o = 0; !empty && o < mlo_tensor_count(out[0]); o++, nest_next(outer, e.operands)) {
        double sum = 0;
        memset(inner->at, 0, sizeof inner->at);
        memcpy(inner->offset, outer->offset, sizeof inner->offset);
        do {
            double term = 1;
            for (int i = 0; i < e.operands; i++)
                term *= data[i][inner->offset[i]];
            sum += term;
        } while (nest_next(inner, e.operands));
        mlo_tensor_set_f64(out[0], o, sum);
    }
out:
    for (int i = 0; i < OPERAND_MAX; i++)
        free(data[i]);
    free(outer);
    free(inner);
    return status;
}

static const struct mlo_op rows[] = {
    {"", "Einsum", 12, infer_einsum, eval_einsum, MLO_OP_PURE, 1, OPERAND_MAX, 1, 1},
};
const struct mlo_op_family mlo_ops_einsum = {rows, MLO_COUNT(rows)};
