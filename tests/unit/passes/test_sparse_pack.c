/* Sparse weights as they are stored: lossless, smaller, and no small file becomes a large model. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "passes/sparsify.h"
#include "tests/unit/passes/passes_helpers.h"

static uint32_t next_seed(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static struct mlo_value *noise_of(struct mlo_model *m, const char *name, uint32_t seed, int rank,
                                  const int64_t *dims)
{
    struct mlo_value *v = ramp_of(m, name, 1, rank, dims);
    for (size_t i = 0; i < mlo_tensor_count(v->constant); i++)
        ((float *)v->constant->data)[i] = (float)next_seed(&seed) / 8388608.0f - 1.0f;
    return v;
}
#define noise(model, name, seed, ...) noise_of(model, name, seed, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))

/* Weights of 1,101 x 4 (no multiple of 8 among the elements' counts) and a Conv's, most of them zero; one
 * tensor has too few zeros. */
static struct mlo_model *packable(void)
{
    struct mlo_model *m = new_model(11);
    uint32_t seed = 8;
    struct mlo_value *w = noise(m, "w", 1, 1101, 3), *k = noise(m, "k", 2, 32, 3, 4, 4),
                     *d = noise(m, "d", 3, 3, 1000);
    float *x = w->constant->data, *half = k->constant->data;
    for (size_t i = 0; i < 1101 * 3; i++)
        if (next_seed(&seed) % 10 < 6)
            x[i] = 0;
    for (size_t i = 0; i < 32 * 48; i++)
        if (i % 2)
            half[i] = 0;
    x[5] = -0.0f;
    x[6] = 1e-42f;
    struct mlo_value *c = op(m, "Conv", "c", input(m, "x", -1, 3, 4, 4), k);
    struct mlo_value *e = op(m, "MatMul", "e", input(m, "z", -1, 1101), w);
    struct mlo_value *y = op(m, "MatMul", "y", e, d), *f = op(m, "Flatten", "f", c);
    finish(m, op(m, "Concat", "both", y, f));
    assert_true(mlo_node_set_i(node_named(m, "both_node"), "axis", 1));
    struct mlo_error err = {0};
    assert_ok(mlo_graph_infer(m->graph, &err));
    return m;
}

static const struct mlo_tensor *weights_of(const struct mlo_model *m, const char *node)
{
    return mlo_node_const(node_named(m, node), 1);
}

static json_t *pack(struct mlo_model *m)
{
    struct mlo_error err = {0};
    struct mlo_pass_context ctx = {.notes = json_array()};
    json_t *report;
    assert_ok(mlo_sparse_pack(m, &ctx, &report, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    assert_ok(mlo_graph_verify(m->graph, &err));
    json_decref(ctx.notes);
    return report;
}

static void test_pack__is_lossless_and_smaller(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = packable(), *was = packable();
    int count;
    json_t *report = pack(m);
    assert_string_equal(mlo_json_str(report, "form", ""), "bitmap");
    assert_int_equal(mlo_json_i64(report, "tensors", 0), 2);
    assert_int_equal(mlo_model_opset(m, ""), 13);
    assert_int_equal(count_ops(m, "CumSum"), 2);
    assert_int_equal(count_ops(m, "Slice"), 1); /* 3303 = 8 x 413 - 1 */
    assert_null(weights_of(m, "e_node"));
    assert_non_null(weights_of(m, "y_node")); /* no zeros */
    struct mlo_buf dense = MLO_BUF_INIT, packed = MLO_BUF_INIT;
    assert_ok(mlo_onnx_serialize(was, &dense, &err));
    assert_ok(mlo_onnx_serialize(m, &packed, &err));
    int64_t saved = mlo_json_i64(report, "bytes_before", 0) - mlo_json_i64(report, "bytes_after", 0);
    assert_true((int64_t)(dense.len - packed.len) > saved - 2 * 1100 && packed.len < dense.len);
    mlo_buf_clear(&dense);
    mlo_buf_clear(&packed);
    assert_true(deviation(was, m) == 0); /* the ops do what the decoder does */
    assert_ok(mlo_sparse_unpack(m, &count, &err));
    assert_int_equal(count, 2);
    assert_ok(mlo_graph_infer(m->graph, &err));
    assert_ok(mlo_graph_verify(m->graph, &err));
    assert_int_equal(m->graph->node_count, was->graph->node_count);
    static const char *const NODES[] = {"e_node", "y_node", "c_node"};
    for (size_t i = 0; i < MLO_COUNT(NODES); i++) {
        const struct mlo_tensor *a = weights_of(m, NODES[i]), *b = weights_of(was, NODES[i]);
        assert_true(a && a->rank == b->rank && a->size_bytes == b->size_bytes);
        assert_memory_equal(a->data, b->data, a->size_bytes);
    }
    assert_ok(mlo_sparse_unpack(m, &count, &err));
    assert_int_equal(count, 0);
    json_decref(report);
    mlo_model_free(m);
    mlo_model_free(was);
}

/* A mask that counts other weights than there are, other powers, another shape: not the form. */
static void test_unpack__takes_no_other_form(void **state)
{
    MLO_UNUSED(state);
    for (int what = 0; what < 6; what++) {
        struct mlo_error err = {0};
        struct mlo_model *m = packable();
        int count;
        json_decref(pack(m));
        uint8_t *mask = mlo_graph_value(m->graph, "w_mask")->constant->data;
        struct mlo_tensor *shape = mlo_graph_value(m->graph, "w_shape")->constant;
        float *weights = mlo_graph_value(m->graph, "w_nonzero")->constant->data;
        if (what == 0)
            mask[7] ^= 1;
        if (what == 1)
            memset(mask, 255, 413);
        if (what == 2)
            ((int64_t *)shape->data)[0] = 1102;
        if (what == 3)
            ((int64_t *)shape->data)[0] = -1101;
        if (what == 4)
            weights[0] = 1;
        if (what == 5)
            ((int32_t *)mlo_graph_value(m->graph, "sparse_powers")->constant->data)[3] = 9;
        assert_ok(mlo_sparse_unpack(m, &count, &err));
        if (count != (what == 5 ? 0 : 1))
            fail_msg("case %d: %d tensors were unpacked", what, count);
        mlo_model_free(m);
    }
}

/* One whose weights are half zeros. */
static struct mlo_model *halved(const char *name, int64_t size)
{
    struct mlo_model *m = new_model(17);
    struct mlo_value *w = noise(m, name, 3, size, size);
    for (size_t i = 0; i < mlo_tensor_count(w->constant); i += 2)
        ((float *)w->constant->data)[i] = 0;
    finish(m, op(m, "MatMul", "y", input(m, "x", -1, size), w));
    return m;
}

/* What has more readers than one tensor's form would be dense as often as a small file likes. */
static void test_unpack__a_mask_makes_one_tensor(void **state)
{
    MLO_UNUSED(state);
    static const char *const SHARED[] = {"w_weights", "w_index",   "w_numbers", "w_flat",
                                         "w_bits",    "w_shifted", "w_bytes",   "w_mask"};
    for (size_t i = 0; i < MLO_COUNT(SHARED); i++) {
        struct mlo_error err = {0};
        struct mlo_model *m = halved("w", 64);
        struct mlo_value *shape, *read;
        int count;
        json_decref(pack(m));
        assert_non_null(shape = mlo_graph_value(m->graph, "w_shape"));
        assert_non_null(read = mlo_graph_value(m->graph, SHARED[i]));
        finish(m, i == 0 ? op(m, "Reshape", "twice", read, shape) : op(m, "Identity", "twice", read));
        assert_ok(mlo_graph_infer(m->graph, &err));
        assert_ok(mlo_sparse_unpack(m, &count, &err));
        if (count != 0)
            fail_msg("%s is read twice, and %d tensors were unpacked", SHARED[i], count);
        mlo_model_free(m);
    }
}

/* Long names are cut between characters, count in what is promised, and come back whole. */
static void test_pack__long_names(void **state)
{
    MLO_UNUSED(state);
    char name[2 * 120 + 1];
    for (size_t i = 0; i < 240; i += 2)
        memcpy(name + i, "\xc3\xa9", 3);
    bool packed_one = false, left_one = false;
    for (int64_t size = 32; size <= 128; size += 8) {
        struct mlo_error err = {0};
        struct mlo_buf dense = MLO_BUF_INIT, packed = MLO_BUF_INIT;
        struct mlo_model *m = halved(name, size);
        int count;
        assert_ok(mlo_onnx_serialize(m, &dense, &err));
        json_t *report = pack(m);
        bool one = mlo_json_i64(report, "tensors", 0) == 1;
        packed_one = packed_one || one;
        left_one = left_one || !one;
        assert_ok(mlo_onnx_serialize(m, &packed, &err));
        for (int i = 0; i < m->graph->value_count; i++) {
            const char *text = m->graph->values[i]->name;
            for (size_t k = 0; text[k]; k++) /* é is c3 a9: whole, or not there */
                assert_true((text[k] == '\xc3') == (text[k + 1] == '\xa9') || text[k] == '\xa9');
        }
        if (one) { /* what all tensors share is 200 bytes */
            int64_t before = mlo_json_i64(report, "bytes_before", 0);
            assert_true((int64_t)dense.len - (int64_t)packed.len + 200 >= before / 4);
            assert_true(mlo_json_i64(report, "bytes_after", 0) <= before * 3 / 4);
            assert_ok(mlo_sparse_unpack(m, &count, &err));
            assert_int_equal(count, 1);
            assert_string_equal(node_named(m, "y_node")->inputs[1]->name, name);
        }
        json_decref(report);
        mlo_buf_clear(&dense);
        mlo_buf_clear(&packed);
        mlo_model_free(m);
    }
    assert_true(packed_one && left_one);
}

/* Weights that no engine folds are constants when a model is loaded to run or change, and what is optimized
 * can be quantized. */
static void test_load__large_weights_are_constants(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    char path[] = "/tmp/mlopt-test-XXXXXX";
    struct mlo_model *was = halved("w", 700), *m = halved("w", 700), *back = NULL;
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    json_decref(pack(m));
    assert_int_equal(count_ops(m, "CumSum"), 1);
    assert_ok(mlo_onnx_save(m, path, &err));
    assert_ok(mlo_sparse_load(path, &back, &err));
    unlink(path);
    assert_int_equal(back->graph->node_count, 1);
    const struct mlo_tensor *w = weights_of(back, "y_node"), *dense = weights_of(was, "y_node");
    assert_true(w && w->size_bytes == dense->size_bytes);
    assert_memory_equal(w->data, dense->data, dense->size_bytes);
    assert_ok(mlo_graph_verify(back->graph, &err));
    assert_ok(run_pass(back, "quantize-dynamic", "{}", NULL, NULL, &err));
    assert_int_equal(count_ops(back, "MatMul"), 0);
    mlo_model_free(back);
    mlo_model_free(m);
    mlo_model_free(was);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack__is_lossless_and_smaller),
        cmocka_unit_test(test_pack__long_names),
        cmocka_unit_test(test_unpack__takes_no_other_form),
        cmocka_unit_test(test_unpack__a_mask_makes_one_tensor),
        cmocka_unit_test(test_load__large_weights_are_constants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
