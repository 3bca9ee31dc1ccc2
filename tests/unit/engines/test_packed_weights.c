/* Products whose weights stay in 4 or 8 bits (MatMulNBits, DequantizeLinear with blocks) against the
 * reference engine, on every instruction set of the machine. */
#include "helpers.h"

static struct mlo_value *raw_bytes(struct net *n, size_t count)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, MLO_UINT8, 1, (int64_t[]){(int64_t)count}, err));
    for (size_t i = 0; i < count; i++)
        ((uint8_t *)t.data)[i] = (uint8_t)(int)(128.0f + 127.9f * net_random(&n->seed));
    return net_take(n, "bytes", &t);
}

struct nbits {
    int64_t m, n, k, block, bits, level;
    bool zeros, bias;
};

static struct net nbits_net(const struct nbits *c, uint32_t seed)
{
    struct net n = ms_net(21, seed);
    int64_t blocks = (c->k + c->block - 1) / c->block;
    struct mlo_value *in[6] = {
        net_input(&n, "x", 3, (int64_t[]){1, c->m, c->k}),
        raw_bytes(&n, (size_t)(c->n * blocks * c->block * c->bits / 8)),
        net_numbers(&n, MLO_FLOAT32, 1, (int64_t[]){c->n * blocks}, 0.001, 0.02),
        c->zeros ? raw_bytes(&n, (size_t)(c->n * ((blocks * c->bits + 7) / 8))) : NULL,
        NULL,
        c->bias ? net_numbers(&n, MLO_FLOAT32, 1, &c->n, -3, 3) : NULL,
    };
    struct mlo_node *node = net_node_of(&n, "com.microsoft", "MatMulNBits", in,
                                        c->bias    ? 6
                                        : c->zeros ? 4
                                                   : 3);
    assert_true(mlo_node_set_i(node, "K", c->k) && mlo_node_set_i(node, "N", c->n) &&
                mlo_node_set_i(node, "bits", c->bits) && mlo_node_set_i(node, "block_size", c->block) &&
                mlo_node_set_i(node, "accuracy_level", c->level));
    net_finish(&n, node->outputs[0]);
    return n;
}

static void check_nbits(const struct nbits *c, double tolerance, uint32_t seed)
{
    char what[128];
    snprintf(what, sizeof what, "bits %d block %d m %d n %d k %d zeros %d level %d", (int)c->bits,
             (int)c->block, (int)c->m, (int)c->n, (int)c->k, c->zeros, (int)c->level);
    struct net n = nbits_net(c, seed);
    struct mlo_tensor x = random_tensor(3, (int64_t[]){1, c->m, c->k}, seed + 1);
    check_on_every_isa(&n, &x, tolerance, c->bits == 4 ? "w4" : "w8", 1, what);
    mlo_tensor_clear(&x);
    mlo_model_free(n.model);
}

static void test_nbits__blocks_tails_rows_zero_points(void **state)
{
    MLO_UNUSED(state);
    static const int64_t blocks[] = {16, 32, 64, 128, 256}, rows[] = {1, 2, 3, 4, 5, 9},
                         columns[] = {1, 16, 31, 40}, depths[] = {16, 33, 100, 260, 515};
    uint32_t seed = 1;
    for (int64_t bits = 4; bits <= 8; bits += 4)
        for (size_t b = 0; b < MLO_COUNT(blocks); b++)
            for (size_t k = 0; k < MLO_COUNT(depths); k++, seed++) {
                struct nbits c = {rows[seed % 6], columns[seed % 4], depths[k], blocks[b], bits, 0,
                                  seed & 1,       seed & 2};
                check_nbits(&c, 2e-6, seed);
                c.zeros = !c.zeros;
                c.m = rows[(seed + 3) % 6];
                check_nbits(&c, 2e-6, seed);
            }
}

static void test_nbits__accuracy_levels(void **state)
{
    MLO_UNUSED(state);
    static const double tolerances[] = {2e-6, 2e-6, 3e-4, 3e-4, 2e-2};
    for (int64_t bits = 4; bits <= 8; bits += 4)
        for (int64_t level = 0; level < 5; level++)
            for (int64_t m = 1; m <= 17; m += m == 1 ? 6 : 1) {
                struct nbits c = {m, 35, 200, 32, bits, level, m & 1, true};
                check_nbits(&c, tolerances[level], (uint32_t)(m + level));
            }
}

/* Infinities, NaN and denormals do not fit fixed-point numbers; large and small blocks next to each other do.
 */
static void test_nbits__edge_values(void **state)
{
    MLO_UNUSED(state);
    static const float edges[] = {INFINITY, -INFINITY, NAN, 1e-42f, 0x1p-126f, 1e36f};
    for (size_t e = 0; e <= MLO_COUNT(edges); e++)
        for (int64_t bits = 4; bits <= 8; bits += 4) {
            struct nbits c = {3, 20, 100, 32, bits, 0, false, false};
            struct net n = nbits_net(&c, 7);
            struct mlo_tensor x = random_tensor(3, (int64_t[]){1, c.m, c.k}, 9);
            float *f = x.data;
            if (e < MLO_COUNT(edges)) {
                f[100] = edges[e];
            } else {
                for (int i = 0; i < 300; i++) /* a block is 0, others differ by 2^40 */
                    f[i] = i < 32 ? 0.0f : ldexpf(f[i], 20 * (i / 32 % 3));
            }
            char what[64];
            snprintf(what, sizeof what, "edge %zu", e);
            check_on_every_isa(&n, &x, 2e-6, NULL, 0, what);
            mlo_tensor_clear(&x);
            mlo_model_free(n.model);
        }
}

static void test_dequantized__blocks_of_every_type(void **state)
{
    MLO_UNUSED(state);
    static const enum mlo_dtype types[] = {MLO_INT4, MLO_UINT4, MLO_INT8, MLO_UINT8};
    static const double low[] = {-8.4, -0.4, -128.4, -0.4}, high[] = {7.4, 15.4, 127.4, 255.4};
    for (int i = 0; i < 64; i++) {
        struct net n = ms_net(21, (uint32_t)i + 1);
        int type = i % 4, block = i & 4 ? 32 : 0; /* 0: a scale a column, or one for all */
        bool turned = i & 8, zeros = i & 16, bias = i & 32, single = !block && turned && bias;
        int64_t k = 72, cols = 37, m = 1 + i % 7, blocks = block ? (k + block - 1) / block : 1;
        int64_t wd[] = {turned ? cols : k, turned ? k : cols};
        int64_t sd[] = {turned ? cols : blocks, turned ? blocks : cols};
        int rank = block ? 2 : single ? 0 : 1;
        const int64_t *dims = block ? sd : &cols;
        struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){m, k});
        struct mlo_value *q = net_numbers(&n, types[type], 2, wd, low[type], high[type]);
        struct mlo_value *s = net_numbers(&n, MLO_FLOAT32, rank, dims, 0.01, 0.03);
        struct mlo_value *z =
            zeros ? net_numbers(&n, types[type], rank, dims, low[type] / 2, high[type] / 2) : NULL;
        struct mlo_node *dq = net_node(&n, "DequantizeLinear", q, s, z);
        assert_true(mlo_node_set_i(dq, "axis", block ? turned : !turned));
        if (block)
            assert_true(mlo_node_set_i(dq, "block_size", block));
        struct mlo_value *b = bias ? net_numbers(&n, MLO_FLOAT32, 1, &cols, -5, 5) : NULL, *y;
        if (turned) {
            struct mlo_node *g = net_node(&n, "Gemm", x, dq->outputs[0], b);
            assert_true(mlo_node_set_i(g, "transB", 1) && mlo_node_set_f(g, "beta", 0.5f));
            y = g->outputs[0];
        } else {
            y = net_op(&n, "MatMul", x, dq->outputs[0], NULL);
            y = b ? net_op(&n, "Add", b, y, NULL) : y;
        }
        net_finish(&n, y);
        char what[64];
        snprintf(what, sizeof what, "dequantized %d", i);
        struct mlo_tensor in = random_tensor(2, (int64_t[]){m, k}, 3);
        check_on_every_isa(&n, &in, 2e-6, types[type] == MLO_INT4 || types[type] == MLO_UINT4 ? "w4" : "w8",
                           1, what);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nbits__blocks_tails_rows_zero_points),
        cmocka_unit_test(test_nbits__accuracy_levels),
        cmocka_unit_test(test_nbits__edge_values),
        cmocka_unit_test(test_dequantized__blocks_of_every_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
