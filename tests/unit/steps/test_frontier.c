/* Running a model layer by layer gives what running the whole of it gives, with each node run twice at most.
 */
#include "pipeline/steps/frontier.h"
#include "tests/unit/steps/conv_noise.h"

enum { SAMPLES = 21, SIDE = 6 };

static void check(struct mlo_model *m, const char *const *nodes, size_t count, size_t most_runs)
{
    struct mlo_error err = {0};
    char *dir = NULL, *data = NULL;
    struct mlo_tensor x = {0};
    struct mlo_dataset *dataset = NULL;
    struct mlo_dataset_options options = {0};
    struct mlo_stats_wants wants = {0};
    struct mlo_frontier *frontier = NULL;
    assert_ok(mlo_fs_tempdir(NULL, "mlopt-frontier-", &dir, &err));
    data = mlo_fs_join(dir, "x.npz", NULL);
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 4, DIMS(SAMPLES, 2, SIDE, SIDE), &err));
    for (size_t i = 0; i < mlo_tensor_count(&x); i++)
        ((float *)x.data)[i] = (float)(i * 2654435761u % 1000) / 500.0f - 1;
    struct mlo_npz_array array = {"x", &x};
    assert_ok(mlo_npz_write(data, &array, 1, &err));
    assert_ok(mlo_dataset_open(data, &options, &dataset, &err));
    const struct mlo_step_context ctx = {.out_dir = dir, .threads = 2};
    for (size_t i = 0; i < count; i++) {
        struct mlo_stats_want want = {.name = nodes[i], .channel_axis = 1};
        assert_true(mlo_stats_wants_add(&wants, &want));
    }
    assert_ok(mlo_frontier_open(&ctx, m, dataset, &wants, SAMPLES, &frontier, &err));
    assert_non_null(frontier);
    for (size_t i = 0; i < count; i++) {
        struct mlo_stats part, whole;
        struct mlo_stats_wants one = {.list = &wants.list[i], .count = 1};
        mlo_stats_init(&part);
        mlo_stats_init(&whole);
        const struct mlo_node *node = mlo_graph_value(m->graph, nodes[i])->producer;
        assert_ok(mlo_frontier_observe(frontier, node->name, &part, &err));
        assert_ok(mlo_step_observe(&ctx, m, dataset, &one, 0, 0, 1, &whole, &err));
        const struct mlo_channel_stats *a = mlo_stats_find_channels(&part, nodes[i]),
                                       *b = mlo_stats_find_channels(&whole, nodes[i]);
        assert_non_null(a);
        assert_non_null(b);
        assert_int_equal(a->samples, SAMPLES);
        assert_memory_equal(a->sum, b->sum, 2 * (size_t)a->channels * sizeof *a->sum);
        assert_memory_equal(a->min, b->min, 2 * (size_t)a->channels * sizeof *a->min);
        mlo_stats_clear(&part);
        mlo_stats_clear(&whole);
        /* The layer changes, and what is behind it must see that. */
        struct mlo_tensor fresh = {0};
        struct mlo_value *w = node->inputs[1];
        assert_ok(mlo_tensor_copy(w->constant, &fresh, &err));
        mlo_tensor_set_f64(&fresh, 0, mlo_tensor_get_f64(&fresh, 0) + 1);
        assert_ok(mlo_value_set_constant_take(w, &fresh, &err));
    }
    size_t runs;
    mlo_frontier_runs(frontier, &runs);
    assert_true(runs <= most_runs);
    mlo_frontier_close(frontier);
    free(wants.list);
    mlo_dataset_close(dataset);
    mlo_tensor_clear(&x);
    mlo_fs_remove_tree(dir);
    free(dir);
    free(data);
}

/* A residual around a branch, and one value that is read far behind. */
static void test_frontier__equals_the_whole_model(void **state)
{
    MLO_UNUSED(state);
    static const char *const nodes[] = {"c1", "c2", "c3", "c4", "c5"};
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 2, SIDE, SIDE);
    struct mlo_value *r1 = op(m, "Relu", "r1", conv(m, "c1", x, 2, 4));
    struct mlo_value *r2 = op(m, "Relu", "r2", conv(m, "c2", r1, 4, 4));
    struct mlo_value *c3 = conv(m, "c3", r2, 4, 4);
    struct mlo_value *r3 = op(m, "Relu", "r3", op(m, "Add", "sum", c3, r1));
    struct mlo_value *c4 = conv(m, "c4", r3, 4, 2);
    finish(m, op(m, "Add", "y", conv(m, "c5", op(m, "Relu", "r4", c4), 2, 2), x));
    check(m, nodes, MLO_COUNT(nodes), 2 * (size_t)m->graph->node_count);
    mlo_model_free(m);
}

/* What is kept of quantized values is bytes; the pair's second half runs again. */
static void test_frontier__of_a_quantized_model(void **state)
{
    MLO_UNUSED(state);
    static const char *const nodes[] = {"c1", "c2"};
    struct mlo_model *m = new_model(13);
    struct mlo_error err = {0};
    struct mlo_tensor zero = {0};
    struct mlo_value *x = input(m, "x", -1, 2, SIDE, SIDE);
    assert_ok(mlo_tensor_init(&zero, MLO_UINT8, 1, DIMS(1), &err));
    ((uint8_t *)zero.data)[0] = 100;
    struct mlo_value *s = floats(m, "s", LIST(0.02f), 1), *z = constant_take(m, "z", &zero);
    struct mlo_value *q = op(m, "QuantizeLinear", "q", op(m, "Relu", "r", conv(m, "c1", x, 2, 4)), s, z);
    struct mlo_value *c2 = conv(m, "c2", op(m, "DequantizeLinear", "dq", q, s, z), 4, 3);
    finish(m, op(m, "GlobalAveragePool", "y", c2));
    check(m, nodes, MLO_COUNT(nodes), 2 * (size_t)m->graph->node_count);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frontier__equals_the_whole_model),
        cmocka_unit_test(test_frontier__of_a_quantized_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
