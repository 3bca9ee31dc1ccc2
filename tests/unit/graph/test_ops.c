/* Operators that ONNX's own tests do not cover: those of com.microsoft, newer opsets, modes, and what hostile
 * attributes give. Expected values by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "graph/ops/ops_impl.h"

#define MS "com.microsoft"

/* One node with constant inputs, evaluated; shapes are told by inference too. */
struct bench {
    struct mlo_model *model;
    struct mlo_value *inputs[12], *outputs[4];
    int input_count;
    struct mlo_node *node;
    struct mlo_tensor out[4];
    struct mlo_error err;
};

static void bench_new(struct bench *b, int64_t opset)
{
    memset(b, 0, sizeof *b);
    assert_int_equal(mlo_model_new(opset, &b->model, &b->err), MLO_OK);
}

/* The next input; dims end with -1. */
static void bench_add(struct bench *b, enum mlo_dtype dtype, const int64_t *dims, const double *values)
{
    struct mlo_tensor t = {0};
    int rank = 0;
    while (dims[rank] >= 0)
        rank++;
    assert_int_equal(mlo_tensor_init(&t, dtype, rank, dims, &b->err), MLO_OK);
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        mlo_tensor_set_f64(&t, i, values[i]);
    b->inputs[b->input_count] = mlo_graph_add_constant_take(b->model->graph, "c", &t);
    assert_non_null(b->inputs[b->input_count++]);
}
#define DIMS(...) ((const int64_t[]){__VA_ARGS__, -1})
#define SCALAR ((const int64_t[]){-1})
#define VALUES(...) ((const double[]){__VA_ARGS__})

static void bench_node(struct bench *b, const char *domain, const char *op, int64_t version, int outputs)
{
    for (int i = 0; i < outputs; i++)
        b->outputs[i] = mlo_graph_add_value(b->model->graph, "y", NULL);
    b->node = mlo_graph_add_node(b->model->graph, NULL, domain, op, op, b->inputs, b->input_count, b->outputs,
                                 outputs);
    assert_non_null(b->node);
    if (*domain)
        b->node->version = version;
    b->node->op = mlo_op_find(domain, op, version);
    if (!b->node->op)
        fail_msg("no row for %s", op);
}

static enum mlo_status bench_run(struct bench *b)
{
    const struct mlo_tensor *in[12];
    struct mlo_tensor *out[4];
    for (int i = 0; i < b->input_count; i++)
        in[i] = b->inputs[i] ? b->inputs[i]->constant : NULL;
    for (int i = 0; i < 4; i++)
        out[i] = &b->out[i];
    return mlo_node_eval(b->node, in, out, &b->err);
}

static void want(struct bench *b, int output, enum mlo_dtype dtype, size_t count, const double *values)
{
    if (b->err.message[0])
        fail_msg("%s (%s)", b->err.message, b->err.where);
    const struct mlo_tensor *t = &b->out[output];
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(mlo_tensor_count(t), count);
    for (size_t i = 0; i < count; i++)
        if (!(fabs(mlo_tensor_get_f64(t, i) - values[i]) <= 1e-5))
            fail_msg("element %zu is %.9g, not %.9g", i, mlo_tensor_get_f64(t, i), values[i]);
}

static void refused(struct bench *b, enum mlo_status status, const char *word)
{
    assert_int_equal(bench_run(b), status);
    if (!strstr(b->err.message, word))
        fail_msg("'%s' does not name %s", b->err.message, word);
}

static void bench_free(struct bench *b)
{
    for (int i = 0; i < 4; i++)
        mlo_tensor_clear(&b->out[i]);
    mlo_model_free(b->model);
}

static void test_ops__elementary_functions_are_accurate(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        double (*own)(double), (*by_libm)(double);
        double low, high;
    } rows[] = {
        {mlo_math_sin, sin, -1e6, 1e6},     {mlo_math_cos, cos, -1e6, 1e6},
        {mlo_math_tan, tan, -50, 50},       {mlo_math_asin, asin, -1, 1},
        {mlo_math_acos, acos, -1, 1},       {mlo_math_atan, atan, -40, 40},
        {mlo_math_sinh, sinh, -700, 700},   {mlo_math_cosh, cosh, -700, 700},
        {mlo_math_asinh, asinh, -1e5, 1e5}, {mlo_math_acosh, acosh, 1, 1e5},
        {mlo_math_atanh, atanh, -1, 1},     {mlo_math_log1p, log1p, -0.99, 9},
        {mlo_math_sinh, sinh, -0.5, 0.5},   {mlo_math_asinh, asinh, -1e-3, 1e-3},
    };
    for (size_t r = 0; r < MLO_COUNT(rows); r++)
        for (int i = 0; i <= 1000; i++) {
            double x = rows[r].low + (rows[r].high - rows[r].low) * i / 1000;
            double got = rows[r].own(x), expected = rows[r].by_libm(x);
            if (got != expected && !(fabs(got - expected) <= 1e-12 * fmax(fabs(expected), 1e-3)))
                fail_msg("row %zu at %.17g: %.17g, not %.17g", r, x, got, expected);
        }
    assert_true(isnan(mlo_math_asin(1.5)) && isnan(mlo_math_acosh(0.5)) && isnan(mlo_math_sin(INFINITY)));
}

static void test_ops__nbits_unpacks_low_nibbles_first(void **state)
{
    struct bench b;
    double a[32] = {0}, packed[16];
    MLO_UNUSED(state);
    for (int i = 0; i < 16; i++)
        packed[i] = 0x88; /* the zero point without one */
    packed[0] = 0xA9;     /* element 0 is 9 - 8, element 1 is 10 - 8 */
    a[0] = 3;
    a[1] = 5;
    a[2] = 100;
    bench_new(&b, 17);
    bench_add(&b, MLO_FLOAT32, DIMS(1, 32), a);
    bench_add(&b, MLO_UINT8, DIMS(1, 1, 16), packed);
    bench_add(&b, MLO_FLOAT32, DIMS(1), VALUES(0.5));
    bench_node(&b, MS, "MatMulNBits", 1, 1);
    mlo_node_set_i(b.node, "K", 32);
    mlo_node_set_i(b.node, "N", 1);
    mlo_node_set_i(b.node, "block_size", 32);
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 1, VALUES((3 * 1 + 5 * 2) * 0.5));
    mlo_tensor_clear(&b.out[0]);
    mlo_node_set_i(b.node, "block_size", 24);
    refused(&b, MLO_EINVAL, "block_size");
    mlo_node_set_i(b.node, "block_size", 32);
    mlo_node_set_i(b.node, "bits", 3);
    refused(&b, MLO_EUNSUPPORTED, "bits");
    mlo_node_set_i(b.node, "bits", 4);
    mlo_node_set_i(b.node, "K", INT64_MAX);
    refused(&b, MLO_EINVAL, "'K'");
    bench_free(&b);
}

static void test_ops__qlinear_add_requantizes(void **state)
{
    struct bench b;
    MLO_UNUSED(state);
    bench_new(&b, 17);
    bench_add(&b, MLO_UINT8, DIMS(3), VALUES(10, 20, 255));
    bench_add(&b, MLO_FLOAT32, SCALAR, VALUES(0.5));
    bench_add(&b, MLO_UINT8, SCALAR, VALUES(10));
    bench_add(&b, MLO_UINT8, DIMS(1), VALUES(4));
    bench_add(&b, MLO_FLOAT32, SCALAR, VALUES(0.25));
    bench_add(&b, MLO_UINT8, SCALAR, VALUES(0));
    bench_add(&b, MLO_FLOAT32, SCALAR, VALUES(0.5));
    bench_add(&b, MLO_UINT8, SCALAR, VALUES(100));
    bench_node(&b, MS, "QLinearAdd", 1, 1);
    assert_int_equal(bench_run(&b), MLO_OK);
    /* (0, 5, 122.5) + 1, in halves, + 100 */
    want(&b, 0, MLO_UINT8, 3, VALUES(102, 112, 255));
    bench_free(&b);
}

static void test_ops__fused_matmul_transposes_and_scales(void **state)
{
    struct bench b;
    MLO_UNUSED(state);
    bench_new(&b, 17);
    bench_add(&b, MLO_FLOAT32, DIMS(3, 2), VALUES(1, 4, 2, 5, 3, 6)); /* transposed: 1 2 3 / 4 5 6 */
    bench_add(&b, MLO_FLOAT32, DIMS(1, 3), VALUES(1, 0, -1));
    bench_node(&b, MS, "FusedMatMul", 1, 1);
    mlo_node_set_i(b.node, "transA", 1);
    mlo_node_set_i(b.node, "transB", 1);
    mlo_node_set_f(b.node, "alpha", 0.5f);
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 2, VALUES(-1, -1));
    mlo_tensor_clear(&b.out[0]);
    mlo_node_set_i(b.node, "transB", 0);
    refused(&b, MLO_EINVAL, "inner dims");
    bench_free(&b);
}

static void test_ops__skip_layer_norm_gives_the_sum(void **state)
{
    struct bench b;
    MLO_UNUSED(state);
    bench_new(&b, 17);
    bench_add(&b, MLO_FLOAT32, DIMS(1, 1, 2), VALUES(1, 2));
    bench_add(&b, MLO_FLOAT32, DIMS(1, 1, 2), VALUES(0, 1));
    bench_add(&b, MLO_FLOAT32, DIMS(2), VALUES(2, 2));
    bench_add(&b, MLO_FLOAT32, DIMS(2), VALUES(1, 1));
    bench_node(&b, MS, "SkipLayerNormalization", 1, 4);
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 2, VALUES(-1, 3));
    want(&b, 1, MLO_FLOAT32, 1, VALUES(2));
    want(&b, 2, MLO_FLOAT32, 1, VALUES(1));
    want(&b, 3, MLO_FLOAT32, 2, VALUES(1, 3));
    bench_free(&b);
}

/* Queries and keys are equal: softmax averages the values; the mask leaves the first. */
static void test_ops__packed_attention_masks(void **state)
{
    struct bench b;
    MLO_UNUSED(state);
    bench_new(&b, 17);
    bench_add(&b, MLO_FLOAT32, DIMS(1, 2, 1), VALUES(2, 4));
    bench_add(&b, MLO_FLOAT32, DIMS(1, 3), VALUES(0, 0, 1));
    bench_add(&b, MLO_FLOAT32, DIMS(3), VALUES(0, 0, 10));
    bench_add(&b, MLO_INT32, DIMS(1, 2), VALUES(1, 1));
    bench_node(&b, MS, "Attention", 1, 1);
    mlo_node_set_i(b.node, "num_heads", 1);
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 2, VALUES(13, 13));
    mlo_tensor_clear(&b.out[0]);
    ((int32_t *)b.inputs[3]->constant->data)[1] = 0;
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 2, VALUES(12, 12));
    mlo_tensor_clear(&b.out[0]);
    mlo_node_set_i(b.node, "num_heads", 0);
    refused(&b, MLO_EINVAL, "heads");
    bench_free(&b);
}

/* What is kept for the next call holds keys and values as one tensor: they must be of one width. */
static void test_ops__packed_attention_keeps_equal_widths_only(void **state)
{
    struct bench b;
    MLO_UNUSED(state);
    bench_new(&b, 17);
    bench_add(&b, MLO_FLOAT32, DIMS(1, 2, 1), VALUES(2, 4));
    bench_add(&b, MLO_FLOAT32, DIMS(1, 5), VALUES(0, 0, 0, 0, 1));
    bench_add(&b, MLO_FLOAT32, DIMS(5), VALUES(0, 0, 0, 0, 10));
    bench_node(&b, MS, "Attention", 1, 2);
    mlo_node_set_i(b.node, "num_heads", 1);
    mlo_node_set_ints(b.node, "qkv_hidden_sizes", DIMS(2, 2, 1), 3);
    refused(&b, MLO_EINVAL, "present");
    b.node->outputs[1] = NULL;
    b.node->output_count = 1;
    b.err = (struct mlo_error){0};
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 2, VALUES(13, 13));
    bench_free(&b);
}

/* Two query heads share one of keys and values; a query that sees no key gives zeros. */
static void test_ops__attention_groups_heads(void **state)
{
    struct bench b;
    MLO_UNUSED(state);
    bench_new(&b, 23);
    bench_add(&b, MLO_FLOAT32, DIMS(1, 2, 2, 1), VALUES(0, 0, 0, 0));
    bench_add(&b, MLO_FLOAT32, DIMS(1, 1, 2, 1), VALUES(1, 2));
    bench_add(&b, MLO_FLOAT32, DIMS(1, 1, 2, 1), VALUES(10, 30));
    bench_add(&b, MLO_BOOL, DIMS(2, 2), VALUES(1, 1, 0, 0));
    bench_node(&b, "", "Attention", 23, 1);
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 4, VALUES(20, 0, 20, 0));
    mlo_tensor_clear(&b.out[0]);
    mlo_node_set_i(b.node, "qk_matmul_output_mode", 7);
    refused(&b, MLO_EINVAL, "qk_matmul_output_mode");
    bench_free(&b);
}

static void test_ops__rotary_embedding_turns_pairs(void **state)
{
    struct bench b;
    MLO_UNUSED(state);
    bench_new(&b, 23);
    bench_add(&b, MLO_FLOAT32, DIMS(1, 1, 1, 4), VALUES(1, 2, 3, 4));
    bench_add(&b, MLO_FLOAT32, DIMS(1, 1, 2), VALUES(0, 1));
    bench_add(&b, MLO_FLOAT32, DIMS(1, 1, 2), VALUES(1, 0));
    bench_node(&b, "", "RotaryEmbedding", 23, 1);
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 4, VALUES(-3, 2, 1, 4));
    mlo_tensor_clear(&b.out[0]);
    mlo_node_set_i(b.node, "interleaved", 1);
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 4, VALUES(-2, 1, 3, 4));
    mlo_tensor_clear(&b.out[0]);
    mlo_node_set_i(b.node, "rotary_embedding_dim", 6);
    refused(&b, MLO_EINVAL, "rotary_embedding_dim");
    bench_free(&b);
}

/* One scale for each group in opset 18, for each channel from 21 on. */
static void test_ops__group_norm_scales_by_opset(void **state)
{
    MLO_UNUSED(state);
    for (int version = 18; version <= 21; version += 3) {
        struct bench b;
        bench_new(&b, version);
        bench_add(&b, MLO_FLOAT32, DIMS(1, 2, 2), VALUES(1, 1, 3, 3));
        bench_add(&b, MLO_FLOAT32, version == 18 ? DIMS(1) : DIMS(2), VALUES(2, 5));
        bench_add(&b, MLO_FLOAT32, version == 18 ? DIMS(1) : DIMS(2), VALUES(0, 1));
        bench_node(&b, "", "GroupNormalization", version, 1);
        mlo_node_set_i(b.node, "num_groups", 1);
        mlo_node_set_f(b.node, "epsilon", 0);
        assert_int_equal(bench_run(&b), MLO_OK);
        want(&b, 0, MLO_FLOAT32, 4, version == 18 ? VALUES(-2, -2, 2, 2) : VALUES(-2, -2, 6, 6));
        mlo_tensor_clear(&b.out[0]);
        mlo_node_set_i(b.node, "num_groups", 0);
        refused(&b, MLO_EINVAL, "num_groups");
        bench_free(&b);
    }
}

static void test_ops__resize_keeps_the_aspect_ratio(void **state)
{
    struct bench b;
    MLO_UNUSED(state);
    bench_new(&b, 18);
    bench_add(&b, MLO_INT64, DIMS(2, 4), VALUES(1, 2, 3, 4, 5, 6, 7, 8));
    b.inputs[b.input_count++] = NULL;
    b.inputs[b.input_count++] = NULL;
    bench_add(&b, MLO_INT64, DIMS(2), VALUES(4, 4));
    bench_node(&b, "", "Resize", 18, 1);
    mlo_node_set_s(b.node, "keep_aspect_ratio_policy", "not_larger");
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_INT64, 8, VALUES(1, 2, 3, 4, 5, 6, 7, 8));
    mlo_tensor_clear(&b.out[0]);
    mlo_node_set_s(b.node, "keep_aspect_ratio_policy", "not_smaller");
    assert_int_equal(bench_run(&b), MLO_OK);
    assert_int_equal(b.out[0].dims[0], 4);
    assert_int_equal(b.out[0].dims[1], 8);
    mlo_tensor_clear(&b.out[0]);
    mlo_node_set_s(b.node, "mode", "spline");
    refused(&b, MLO_EINVAL, "'mode'");
    mlo_node_set_s(b.node, "mode", "nearest");
    mlo_node_set_ints(b.node, "axes", DIMS(1, 1), 2);
    refused(&b, MLO_EINVAL, "axes");
    bench_free(&b);
}

static void test_ops__einsum_refuses_bad_equations(void **state)
{
    static const struct {
        const char *equation, *word;
    } bad[] = {{"ij,jk->il", "equation"},       {"ij", "equation"},    {"i1,jk->ik", "equation"},
               {"ij,jk->ikk", "equation"},      {"ijk,jk->i", "rank"}, {"ij,kj->ik->i", "equation"},
               {"ij,jk->...ik...", "equation"}, {"ij,ik->jk", "label"}};
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        struct bench b;
        bench_new(&b, 12);
        bench_add(&b, MLO_FLOAT32, DIMS(2, 3), VALUES(1, 2, 3, 4, 5, 6));
        bench_add(&b, MLO_FLOAT32, DIMS(3, 1), VALUES(1, 1, 1));
        bench_node(&b, "", "Einsum", 12, 1);
        mlo_node_set_s(b.node, "equation", bad[i].equation);
        refused(&b, MLO_EINVAL, bad[i].word);
        bench_free(&b);
    }
}

static void test_ops__lstm_names_what_does_not_fit(void **state)
{
    struct bench b;
    double zeros[64] = {0};
    MLO_UNUSED(state);
    bench_new(&b, 14);
    bench_add(&b, MLO_FLOAT32, DIMS(2, 1, 3), zeros);
    bench_add(&b, MLO_FLOAT32, DIMS(1, 8, 3), zeros);
    bench_add(&b, MLO_FLOAT32, DIMS(1, 8, 2), zeros);
    bench_node(&b, "", "LSTM", 14, 1);
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 4, zeros);
    mlo_tensor_clear(&b.out[0]);
    mlo_node_set_i(b.node, "hidden_size", 3);
    refused(&b, MLO_EINVAL, "hidden size");
    mlo_node_set_i(b.node, "hidden_size", 2);
    mlo_node_set_s(b.node, "direction", "sideways");
    refused(&b, MLO_EINVAL, "direction");
    mlo_node_set_s(b.node, "direction", "bidirectional");
    refused(&b, MLO_EINVAL, "directions");
    bench_free(&b);
}

static void test_ops__scatter_refuses_indices_outside(void **state)
{
    struct bench b;
    MLO_UNUSED(state);
    bench_new(&b, 18);
    bench_add(&b, MLO_FLOAT32, DIMS(3), VALUES(1, 2, 3));
    bench_add(&b, MLO_INT64, DIMS(2, 1), VALUES(2, 2));
    bench_add(&b, MLO_FLOAT32, DIMS(2), VALUES(5, 4));
    bench_node(&b, "", "ScatterND", 18, 1);
    mlo_node_set_s(b.node, "reduction", "max");
    assert_int_equal(bench_run(&b), MLO_OK);
    want(&b, 0, MLO_FLOAT32, 3, VALUES(1, 2, 5));
    mlo_tensor_clear(&b.out[0]);
    mlo_tensor_set_f64(b.inputs[1]->constant, 0, 3);
    refused(&b, MLO_EINVAL, "index 3");
    bench_free(&b);
}

/* Many at a time are what they are one by one, bit for bit, wherever special ones stand among them. */
static void test_exps__are_exp_one_by_one(void **state)
{
    (void)state;
    enum { COUNT = 4099 };
    static const double special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0,    -0.0,
                                     700, -700, 709.7,    -745,      -745.5, 1e-320};
    static double x[COUNT], many[COUNT];
    uint64_t seed = 1;
    for (size_t i = 0; i < COUNT; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        double at = (double)(seed >> 11) / 9007199254740992.0 - 0.5;
        x[i] = i % 3 ? at * 40 : at * 1460;
        if (seed % 61 == 0)
            x[i] = special[seed / 61 % (sizeof special / sizeof *special)];
    }
    for (size_t n = 0; n < 20; n++) {
        memcpy(many, x, sizeof x);
        mlo_math_exps(many + n, COUNT - 2 * n);
        for (size_t i = 0; i < COUNT; i++) {
            double one = i < n || i >= COUNT - n ? x[i] : mlo_math_exp(x[i]);
            if (memcmp(&one, &many[i], sizeof one) != 0)
                fail_msg("exp %.17g is %.17g, and %.17g among others", x[i], one, many[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exps__are_exp_one_by_one),
        cmocka_unit_test(test_ops__elementary_functions_are_accurate),
        cmocka_unit_test(test_ops__nbits_unpacks_low_nibbles_first),
        cmocka_unit_test(test_ops__qlinear_add_requantizes),
        cmocka_unit_test(test_ops__fused_matmul_transposes_and_scales),
        cmocka_unit_test(test_ops__skip_layer_norm_gives_the_sum),
        cmocka_unit_test(test_ops__packed_attention_masks),
        cmocka_unit_test(test_ops__packed_attention_keeps_equal_widths_only),
        cmocka_unit_test(test_ops__attention_groups_heads),
        cmocka_unit_test(test_ops__rotary_embedding_turns_pairs),
        cmocka_unit_test(test_ops__group_norm_scales_by_opset),
        cmocka_unit_test(test_ops__resize_keeps_the_aspect_ratio),
        cmocka_unit_test(test_ops__einsum_refuses_bad_equations),
        cmocka_unit_test(test_ops__lstm_names_what_does_not_fit),
        cmocka_unit_test(test_ops__scatter_refuses_indices_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
