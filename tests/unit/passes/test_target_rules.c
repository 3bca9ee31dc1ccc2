/* What a target promises of every model: no saturated sums where the CPU adds two products in 16 bits, and
 * the graph form that TensorRT's guide to explicit quantization asks for (it is checked by rule: no test runs
 * it). */
#include "passes/targets.h"
#include "tests/unit/passes/passes_helpers.h"

enum { K = 6, N = 5, ROWS = 7 };

static float uniform(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1.0f;
}

/* A Gemm with random weights, among them a column of zeros, one with an outlier, and one of a tiny scale. */
static void random_layer(uint32_t seed, struct mlo_model **model, struct mlo_stats *stats)
{
    struct mlo_error err = {0};
    float w[K * N], b[N], rows[ROWS * K];
    for (int k = 0; k < K; k++)
        for (int n = 0; n < N; n++)
            w[k * N + n] = uniform(&seed) * (n == 1 ? 0 : n == 2 ? 1e-6f : 1) * (n == 3 && k == 0 ? 100 : 1);
    for (int n = 0; n < N; n++)
        b[n] = uniform(&seed);
    for (int i = 0; i < ROWS * K; i++)
        rows[i] = uniform(&seed);
    *model = new_model(13);
    struct mlo_value *x = input(*model, "x", -1, K);
    struct mlo_value *y = op(*model, "Gemm", "y", x, floats(*model, "w", w, K, N), floats(*model, "b", b, N));
    finish(*model, y);
    mlo_stats_init(stats);
    saw(stats, "x", rows, ROWS * K);
    struct mlo_tensor seen = {.dtype = MLO_FLOAT32, .rank = 2, .dims = {ROWS, K}, .data = rows};
    assert_ok(mlo_gram_add(mlo_stats_get_gram(stats, y->producer, true), y->producer, &seen, NULL, &err));
}

/* Whether two products of a uint8 and neighbouring weights of a column can leave 16 bits (vpmaddubsw). */
static bool can_saturate(const struct mlo_tensor *w)
{
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k + 1 < K; k++) {
            int64_t a = mlo_tensor_get_i64(w, (size_t)(k * N + n));
            int64_t b = mlo_tensor_get_i64(w, (size_t)((k + 1) * N + n));
            int64_t most = 255 * (MLO_MAX(a, 0) + MLO_MAX(b, 0)),
                    least = 255 * (MLO_MIN(a, 0) + MLO_MIN(b, 0));
            if (most > INT16_MAX || least < INT16_MIN)
                return true;
        }
    return false;
}

static void test_target_rules__seven_bits_never_saturate_pairs(void **state)
{
    MLO_UNUSED(state);
    static const char *const more[] = {"",
                                       ", \"per_channel\": false",
                                       ", \"rounding\": \"gptq\"",
                                       ", \"rounding\": \"adaround\"",
                                       ", \"form\": \"qoperator\"",
                                       ", \"symmetric_weights\": false"};
    size_t targets;
    const struct mlo_target *table = mlo_target_table(&targets);
    int reduced = 0, saturating = 0;
    for (size_t t = 0; t < targets; t++) {
        if (mlo_dtype_info(table[t].activations)->is_float) /* no integers, and no sums that saturate */
            continue;
        reduced += table[t].reduce_range;
        for (size_t o = 0; o < MLO_COUNT(more); o++) {
            for (uint32_t seed = 1; seed <= 40; seed++) {
                struct mlo_error err = {0};
                struct mlo_model *m;
                struct mlo_stats stats;
                char options[160];
                snprintf(options, sizeof options, "{\"target\": \"%s\"%s}", table[t].name, more[o]);
                random_layer(seed, &m, &stats);
                assert_ok(run_pass(m, "quantize", options, &stats, NULL, &err));
                const struct mlo_tensor *w = constant_named(m, "w_quantized");
                assert_int_equal(w->dtype, MLO_INT8);
                bool saturates = can_saturate(w);
                if (table[t].reduce_range && saturates)
                    fail_msg("%s, seed %u: sums of two products saturate", options, (unsigned)seed);
                saturating += saturates;
                mlo_stats_clear(&stats);
                mlo_model_free(m);
            }
        }
    }
    assert_int_equal(reduced, 2);      /* ort-x86-avx2, openvino-avx2 */
    assert_true(saturating > 40 * 10); /* and the others do, or this test would see nothing */
}

/* --- TensorRT ----------------------------------------------------------------------------------------- */

static struct mlo_value *conv(struct mlo_model *m, const char *name, struct mlo_value *x, int64_t group,
                              int64_t from, int64_t to)
{
    char w[32], b[32];
    snprintf(w, sizeof w, "%s_w", name);
    snprintf(b, sizeof b, "%s_b", name);
    struct mlo_value *y =
        op(m, "Conv", name, x, ramp(m, w, 0.05f, to, from / group, 3, 3), ramp(m, b, 0.1f, to));
    assert_true(mlo_node_set_i(y->producer, "group", group));
    set_ints(y, "pads", 1, 1, 1, 1);
    return y;
}

/* Two residual blocks, one of them with a Conv on the skip; depthwise, pooling, and a Gemm. */
static struct mlo_model *residual_net(void)
{
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = op(m, "Relu", "r0", conv(m, "c0", input(m, "x", -1, 2, 6, 6), 1, 2, 4));
    struct mlo_value *a = op(m, "Relu", "r1", conv(m, "c1", x, 4, 4, 4));
    struct mlo_value *s1 = op(m, "Relu", "s1", op(m, "Add", "a1", conv(m, "c2", a, 1, 4, 4), x));
    struct mlo_value *b = op(m, "Relu", "r2", conv(m, "c3", s1, 1, 4, 4));
    struct mlo_value *s2 = op(m, "Add", "a2", conv(m, "c4", b, 1, 4, 4), conv(m, "c5", s1, 1, 4, 4));
    struct mlo_value *flat = op(m, "Flatten", "flat", op(m, "GlobalAveragePool", "pool", s2));
    finish(m, op(m, "Gemm", "y", flat, ramp(m, "fc_w", 0.1f, 4, 3), ramp(m, "fc_b", 0.1f, 3)));
    return m;
}

static bool behind_pair(const struct mlo_node *node, int i)
{
    const struct mlo_node *before = node->inputs[i]->producer;
    return before && mlo_node_is(before, "DequantizeLinear");
}

static void check_parameters(const struct mlo_node *q)
{
    const struct mlo_tensor *zero = mlo_node_const(q, 2), *scale = mlo_node_const(q, 1);
    assert_non_null(zero);
    assert_int_equal(zero->dtype, MLO_INT8);
    for (size_t i = 0; i < mlo_tensor_count(zero); i++)
        assert_int_equal(mlo_tensor_get_i64(zero, i), 0);
    for (size_t i = 0; i < mlo_tensor_count(scale); i++)
        assert_true(mlo_tensor_get_f64(scale, i) > 0);
    if (mlo_node_is(q, "QuantizeLinear"))
        assert_int_equal(mlo_tensor_count(scale), 1); /* activations: per tensor */
}

/* "Explicit quantization" of the TensorRT developer guide, 10.x: int8 is symmetric (zero points are 0),
 * activations per tensor, weights per output channel; pairs stand on the inputs of quantizable layers; biases
 * are not quantized; of a residual addition only the branch that is not the Conv's output has a pair, and the
 * Conv's output goes into the Add unquantized, so that both fuse. */
static void test_target_rules__tensorrt_graph_form(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    struct mlo_model *m = residual_net();
    observe(m, 4, &stats);
    assert_ok(run_pass(m, "quantize", "{\"target\": \"tensorrt\"}", &stats, NULL, &err));
    int weighted = 0, adds = 0;
    for (int n = 0; n < m->graph->node_count; n++) {
        const struct mlo_node *node = m->graph->nodes[n];
        if (mlo_node_is(node, "QuantizeLinear") || mlo_node_is(node, "DequantizeLinear"))
            check_parameters(node);
        if (mlo_node_is(node, "Conv") || mlo_node_is(node, "Gemm")) {
            bool is_conv = mlo_node_is(node, "Conv");
            assert_true(behind_pair(node, 0) && behind_pair(node, 1));
            const struct mlo_node *dq = node->inputs[1]->producer;
            const struct mlo_tensor *w = mlo_node_const(dq, 0), *bias = mlo_node_const(node, 2);
            int64_t axis = mlo_node_attr_i(dq, "axis", 1);
            assert_int_equal(axis, is_conv ? 0 : 1);
            assert_int_equal(mlo_tensor_count(mlo_node_const(dq, 1)), w->dims[axis]);
            assert_int_equal(bias->dtype, MLO_FLOAT32);
            weighted++;
        }
        if (mlo_node_is(node, "Add")) {
            assert_int_equal(behind_pair(node, 0) + behind_pair(node, 1), 1);
            for (int i = 0; i < 2; i++)
                assert_true(behind_pair(node, i) || mlo_node_is(node->inputs[i]->producer, "Conv"));
            adds++;
        }
    }
    assert_int_equal(weighted, 7);
    assert_int_equal(adds, 2);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_target_rules__seven_bits_never_saturate_pairs),
        cmocka_unit_test(test_target_rules__tensorrt_graph_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
