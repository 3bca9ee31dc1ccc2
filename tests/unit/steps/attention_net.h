/* Attention in all the forms that its heads can be turned in, or not. */
#ifndef MLO_TESTS_ATTENTION_NET_H
#define MLO_TESTS_ATTENTION_NET_H

#include "tests/unit/steps/prune_fixture.h"

/* With `full`, weights without a pattern; else each four columns (a head's) say what two would. */
static inline struct mlo_value *narrow(struct mlo_model *m, const char *name, uint32_t seed, int64_t rows,
                                       int64_t columns, bool full)
{
    struct mlo_value *w = noise(m, name, 0.4f, seed, rows, columns);
    float *x = w->constant->data;
    for (int64_t r = 0; r < rows && !full; r++)
        for (int64_t c = 0; c < columns; c += 4) {
            float *at = x + r * columns + c;
            at[2] = at[0] - 0.5f * at[1];
            at[3] = 0.8f * at[0] + at[1];
        }
    return w;
}

/* How an attention differs from one of two heads of width 4, with Q, K and V by a MatMul and an Add each. */
enum {
    PACKED = 1,          /* out of one product, a Gather for each */
    SPLIT = 1 << 1,      /* out of one product, by a Split */
    SIZES = 1 << 2,      /* whose sizes are an input, and types claim far more columns than there are */
    FIFTH = 1 << 3,      /* of the axis of three, in front of the heads */
    GATE = 1 << 4,       /* what is attended is read by two products */
    EMBED = 1 << 5,      /* a product in front */
    IDLE = 1 << 6,       /* its last channel is 0, and all that the last index of the queries reads */
    RELU = 1 << 7,       /* no Softmax */
    LEVEL = 1 << 8,      /* index 0 of all keys is a large number */
    GEMM = 1 << 9,       /* products are Gemm */
    TRANS_B = 1 << 10,   /* with transB */
    ALPHA = 1 << 11,     /* with alpha */
    BETA = 1 << 12,      /* with beta */
    NUMBERS = 1 << 13,   /* a Div, Mul on queries, keys, what is attended */
    ONE = 1 << 14,       /* head */
    CROSS = 1 << 15,     /* keys and values of another input */
    SAME = 1 << 16,      /* values are the keys */
    TIED = 1 << 17,      /* keys by the queries' weights */
    LONG = 1 << 18,      /* 200 Muls on queries */
    ADDS_BACK = 1 << 19, /* what is attended is added to what is made of it: C of the Gemm */
    SELF = 1 << 20,      /* keys are the queries */
    TIED_BIAS = 1 << 21, /* keys with the queries' bias */
    MASK = 1 << 22,      /* an Add and a Div in front of the Softmax */
    ACROSS = 1 << 23,    /* which is over queries */
    OLD = 1 << 24,       /* of opset 11, where a Softmax is over all axes from the first on */
    BARE = 1 << 25,      /* one more behind it, of one head that no Reshape makes an axis of */
};
enum { CLAIMED = 1 << 16 /* columns */ };

static inline void transpose(struct mlo_value *w)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    int64_t rows = w->constant->dims[0], columns = w->constant->dims[1];
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, 2, DIMS(columns, rows), &err));
    for (int64_t e = 0; e < rows * columns; e++)
        ((float *)t.data)[e % columns * rows + e / columns] = ((const float *)w->constant->data)[e];
    assert_ok(mlo_value_set_constant_take(w, &t, &err));
}

/* x W + b, by nodes that are called as `name` says. */
static inline struct mlo_value *product(struct mlo_model *m, unsigned how, const char *name,
                                        struct mlo_value *x, struct mlo_value *w, struct mlo_value *b)
{
    char made[32];
    if (how & GEMM) {
        if (how & TRANS_B)
            transpose(w);
        struct mlo_value *y = op(m, "Gemm", name, x, w, b);
        if (how & TRANS_B)
            assert_true(mlo_node_set_i(y->producer, "transB", 1));
        if (how & ALPHA)
            assert_true(mlo_node_set_f(y->producer, "alpha", 0.5f));
        if (how & BETA)
            assert_true(mlo_node_set_f(y->producer, "beta", 0.5f));
        return y;
    }
    snprintf(made, sizeof made, "%s_b", name);
    return op(m, "Add", made, op(m, "MatMul", name, x, w), b);
}

/* Q, K and V of three times 8 columns, by Split. */
static inline void split_three(struct mlo_model *m, unsigned how, struct mlo_value *p, int axis,
                               struct mlo_value *part[3])
{
    struct mlo_type claim = {.dtype = MLO_FLOAT32, .rank = 3, .dims = {{-1, "batch"}, {5}, {CLAIMED}}};
    struct mlo_value *in[2] = {p, how & SIZES ? input_of(m, "sizes", MLO_INT64, 1, DIMS(3)) : NULL};
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "third%d", i);
        part[i] = mlo_graph_add_value(m->graph, name, how & SIZES ? &claim : NULL);
    }
    struct mlo_node *node =
        mlo_graph_add_node(m->graph, NULL, "", "Split", "split", in, how & SIZES ? 2 : 1, part, 3);
    assert_true(node && mlo_node_set_i(node, "axis", axis));
}

/* Q, K and V out of one product: in axes [.., tokens, heads, width], but by a Gather with heads in front. */
static inline void parts_of_one(struct mlo_model *m, unsigned how, struct mlo_value *x,
                                const int64_t sizes[4], bool full, struct mlo_value *part[3])
{
    struct mlo_value *p =
        product(m, how, "p", x, narrow(m, "wp", 3, 8, 24, full), narrow(m, "bp", 11, 1, 24, full));
    if (how & SPLIT && !(how & FIFTH)) {
        split_three(m, how, p, how & GEMM ? 1 : 2, part);
        return;
    }
    p = op(m, "Reshape", "r", p, ints(m, "shape", sizes[0], sizes[1], 3, sizes[2], sizes[3]));
    if (how & SPLIT) {
        split_three(m, how, p, 2, part);
        return;
    }
    p = op(m, "Transpose", "t", p);
    set_ints(p, "perm", 2, 0, 3, 1, 4);
    for (int i = 0; i < 3; i++) {
        char name[2][16];
        struct mlo_tensor at = {0};
        struct mlo_error err = {0};
        snprintf(name[0], sizeof name[0], "t%d", i);
        snprintf(name[1], sizeof name[1], "i%d", i);
        assert_ok(mlo_tensor_init(&at, MLO_INT64, 0, NULL, &err));
        *(int64_t *)at.data = i;
        part[i] = op(m, "Gather", name[0], p, constant_take(m, name[1], &at));
    }
}

/* One of them by a product of its own. */
static inline struct mlo_value *part_apart(struct mlo_model *m, unsigned how, struct mlo_value *x, int i,
                                           bool full)
{
    char n[3][16];
    if (i == 1 && how & SELF)
        return mlo_graph_value(m->graph, "p0_b");
    if (i == 2 && how & SAME)
        return mlo_graph_value(m->graph, "p1_b");
    for (size_t k = 0; k < MLO_COUNT(n); k++)
        snprintf(n[k], sizeof n[k], "%c%d", "wpi"[k], i);
    uint32_t seed = 3 + 2 * (uint32_t)i;
    struct mlo_value *w =
        i == 1 && how & TIED ? mlo_graph_value(m->graph, "w0") : narrow(m, n[0], seed, 8, 8, full);
    struct mlo_value *b =
        i == 1 && how & TIED_BIAS ? mlo_graph_value(m->graph, "i0") : narrow(m, n[2], seed + 8, 1, 8, full);
    float *by = w->constant->data, *add = b->constant->data;
    for (int e = 0; e < 64; e++) {
        bool level = i == 1 && how & LEVEL && e % 4 == 0,
             idle = i == 0 && how & IDLE && e % 4 == 3 && e / 8 < 7;
        by[e] = level || idle ? 0 : by[e];
        add[e % 8] = level ? 4 : idle ? 0 : add[e % 8];
    }
    return product(m, how, n[1], x, w, b);
}

/* What is between queries and scores; `on` is an op, or none. */
static inline struct mlo_value *on_queries(struct mlo_model *m, unsigned how, const char *on,
                                           struct mlo_value *q)
{
    if (strcmp(on, "Add") == 0) /* a position, say */
        q = op(m, "Add", "on", q, noise(m, "place", 0.3f, 17, 5, 4));
    else if (strcmp(on, "Mul") == 0)
        q = op(m, "Mul", "on", q, floats(m, "half", LIST(0.5), 1));
    else if (*on)
        q = op(m, on, "on", q);
    for (int i = 0; i < 200 && how & LONG; i++) {
        char n[2][16];
        snprintf(n[0], sizeof n[0], "long%d", i);
        snprintf(n[1], sizeof n[1], "by%d", i);
        q = op(m, "Mul", n[0], q, scalar(m, n[1], i % 2 ? 2 : 0.5f));
    }
    return how & NUMBERS ? op(m, "Div", "div", q, scalar(m, "root", 2)) : q;
}

/* What reads the heads. */
static inline struct mlo_value *behind(struct mlo_model *m, unsigned how, struct mlo_value *c)
{
    c = op(m, "Reshape", "joined", c, how & GEMM ? ints(m, "whole", 5, 8) : ints(m, "whole", 0, 5, 8));
    struct mlo_value *w = noise(m, "wo", 0.5f, 23, 8, how & ADDS_BACK ? 8 : 6);
    if (how & ADDS_BACK)
        return op(m, "Gemm", "y", c, w, c);
    if (how & GEMM)
        return product(m, how, "y", c, w, noise(m, "bo", 0.5f, 43, 6));
    struct mlo_value *y = op(m, "MatMul", "y", c, w);
    if (!(how & GATE))
        return y;
    return op(m, "Mul", "gated", y,
              op(m, "Sigmoid", "open", op(m, "MatMul", "g", c, noise(m, "wg", 0.5f, 37, 8, 6))));
}

/* Attention of x to itself by as few nodes as there can be. */
static inline struct mlo_value *bare(struct mlo_model *m, struct mlo_value *x)
{
    struct mlo_value *q = op(m, "MatMul", "bare_q", x, noise(m, "bare_wq", 0.4f, 47, 6, 4));
    struct mlo_value *k = op(m, "MatMul", "bare_k", x, noise(m, "bare_wk", 0.4f, 53, 6, 4));
    k = op(m, "Transpose", "bare_t", k);
    set_ints(k, "perm", 0, 2, 1);
    return op(m, "MatMul", "bare_sv", op(m, "Softmax", "bare_s", op(m, "MatMul", "bare_qk", q, k)), x);
}

static inline struct mlo_model *attention(unsigned how, const char *on, bool full)
{
    struct mlo_model *m = new_model(how & OLD ? 11 : 17);
    const int64_t batch = how & GEMM ? 1 : -1, heads = how & SIZES ? CLAIMED / 4 : how & ONE ? 1 : 2;
    const int64_t sizes[4] = {batch < 0 ? 0 : batch, 5, heads, how & ONE ? 8 : 4};
    struct mlo_value *x = input(m, "x", batch, 5, 8), *part[3];
    struct mlo_value *other = how & CROSS ? input(m, "z", batch, 5, 8) : NULL;
    if (how & GEMM)
        x = op(m, "Reshape", "flat", x, ints(m, "rows", 5, 8));
    if (how & EMBED) {
        struct mlo_value *w = noise(m, "we", 0.4f, 29, 8, 8), *b = noise(m, "be", 0.2f, 31, 8);
        for (int i = 0; i < 8 && how & IDLE; i++)
            ((float *)w->constant->data)[8 * i + 7] = ((float *)b->constant->data)[7] = 0;
        x = product(m, how, "e", x, w, b);
    }
    if (how & (PACKED | SPLIT))
        parts_of_one(m, how, x, sizes, full, part);
    for (int i = 0; i < 3 && !(how & PACKED); i++) {
        char n[3][16];
        for (size_t k = 0; k < MLO_COUNT(n); k++)
            snprintf(n[k], sizeof n[k], "%c%d", "rst"[k], i);
        if (!(how & SPLIT))
            part[i] = part_apart(m, how, i && other ? other : x, i, full);
        if (how & FIFTH)
            part[i] = op(m, "Squeeze", n[0], part[i], ints(m, n[1], 2));
        else
            part[i] = op(m, "Reshape", n[0], part[i], ints_of(m, n[1], 4, sizes));
        part[i] = op(m, "Transpose", n[2], part[i]);
        set_ints(part[i], "perm", 0, 2, 1, 3);
    }
    part[0] = on_queries(m, how, on, part[0]);
    if (how & NUMBERS)
        part[1] = op(m, "Mul", "mul", scalar(m, "twice", 2), part[1]);
    struct mlo_value *k = op(m, "Transpose", "k", part[1]);
    set_ints(k, "perm", 0, 1, 3, 2);
    struct mlo_value *s = op(m, "MatMul", "qk", part[0], k);
    if (how & MASK)
        s = op(m, "Add", "mask", noise(m, "hides", 1, 41, 5, 5), op(m, "Div", "d", s, scalar(m, "by", 2)));
    s = op(m, how & RELU ? "Relu" : "Softmax", "s", s);
    if (how & ACROSS)
        assert_true(mlo_node_set_i(s->producer, "axis", 2));
    struct mlo_value *c = op(m, "MatMul", "sv", s, part[2]);
    if (how & NUMBERS)
        c = op(m, "Mul", "more", c, scalar(m, "thrice", 3));
    c = op(m, "Transpose", "c", c);
    set_ints(c, "perm", 0, 2, 1, 3);
    c = how & SIZES ? c : behind(m, how, c);
    finish(m, how & BARE ? bare(m, c) : c);
    return m;
}

#endif
