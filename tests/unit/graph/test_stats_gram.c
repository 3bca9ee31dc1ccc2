/* Statistics per channel and Gram matrices, on numbers that can be checked by hand. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/passes/passes_helpers.h"

static struct mlo_tensor borrowed(const float *data, int rank, const int64_t *dims)
{
    struct mlo_tensor t = {.dtype = MLO_FLOAT32, .rank = rank, .data = (void *)data};
    t.size_bytes = sizeof(float);
    for (int i = 0; i < rank; i++) {
        t.dims[i] = dims[i];
        t.size_bytes *= (size_t)dims[i];
    }
    return t;
}

static void test_channels__extremes_and_sums_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_stats stats;
    mlo_stats_init(&stats);
    struct mlo_channel_stats *c = mlo_stats_get_channels(&stats, "x", 2);
    assert_non_null(c);
    /* [outer 2][channels 2][inner 2] */
    assert_ok(mlo_channel_stats_add(c, LIST(1, 2, -3, -4, 5, NAN, 0, 7), 2, 2, &err));
    assert_float_equal(c->min[0], 1, 0);
    assert_float_equal(c->max[0], 5, 0);
    assert_float_equal(c->min[1], -4, 0);
    assert_float_equal(c->max[1], 7, 0);
    assert_true(c->sum[0] == 8 && c->sum[1] == 0);
    assert_true(c->sum_sq[0] == 30 && c->sum_sq[1] == 74);
    assert_int_equal(c->count[0], 3);
    assert_int_equal(c->bad_count, 1);
    assert_null(mlo_stats_get_channels(&stats, "x", 3));
    mlo_stats_clear(&stats);
}

/* X = [1 2; 3 4]: X^T X = [10 14; 14 20]. */
static void test_gram__of_a_product_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *y = op(m, "MatMul", "y", input(m, "x", -1, 2), ramp(m, "w", 1, 2, 3));
    finish(m, y);
    struct mlo_stats stats;
    mlo_stats_init(&stats);
    struct mlo_gram *g = mlo_stats_get_gram(&stats, y->producer, true);
    assert_non_null(g);
    struct mlo_tensor rows = borrowed(LIST(1, 2, NAN, 9, 3, 4), 2, DIMS(3, 2));
    assert_ok(mlo_gram_add(g, y->producer, &rows, NULL, &err));
    assert_true(mlo_gram_at(g, 0, 0, 0) == 10 && mlo_gram_at(g, 0, 0, 1) == 14);
    assert_true(mlo_gram_at(g, 0, 1, 0) == 14 && mlo_gram_at(g, 0, 1, 1) == 20);
    assert_true(g->sum[0] == 4 && g->sum[1] == 6);
    assert_int_equal(g->rows, 2);
    assert_int_equal(g->skipped, 1);
    assert_ptr_equal(mlo_stats_find_gram(&stats, y->producer), g);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

/* A 1-d Conv of two groups with a kernel of 2 and padding in front: windows (0,a) (a,b) for each channel. */
static void test_gram__of_windows_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *y = op(m, "Conv", "y", input(m, "x", -1, 2, 2), ramp(m, "w", 1, 2, 1, 2));
    assert_true(mlo_node_set_i(y->producer, "group", 2));
    set_ints(y, "pads", 1, 0);
    finish(m, y);
    struct mlo_stats stats;
    mlo_stats_init(&stats);
    struct mlo_gram *g = mlo_stats_get_gram(&stats, y->producer, true);
    assert_non_null(g);
    assert_int_equal(g->groups, 2);
    assert_int_equal(g->dim, 2);
    struct mlo_tensor x = borrowed(LIST(2, 3, 5, 7), 3, DIMS(1, 2, 2));
    assert_ok(mlo_gram_add(g, y->producer, &x, NULL, &err));
    assert_true(mlo_gram_at(g, 0, 0, 0) == 4 && mlo_gram_at(g, 0, 0, 1) == 6 &&
                mlo_gram_at(g, 0, 1, 1) == 13);
    assert_true(mlo_gram_at(g, 1, 0, 0) == 25 && mlo_gram_at(g, 1, 0, 1) == 35 &&
                mlo_gram_at(g, 1, 1, 1) == 74);
    assert_true(g->sum[2] == 5 && g->sum[3] == 12);
    mlo_stats_clear(&stats);
    mlo_model_free(m);
}

/* Tiles, lanes and rests: every element equals a plain chain, at one and two threads, in one piece or many.
 */
static void test_gram__has_the_bits_of_a_plain_chain(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    enum { ROWS = 70 };
    struct mlo_pool *pool = mlo_pool_new(2);
    for (int64_t dim = 1; dim <= 37; dim += 3) {
        struct mlo_model *m = new_model(13);
        struct mlo_value *y = op(m, "MatMul", "y", input(m, "x", -1, dim), ramp(m, "w", 1, dim, 1));
        finish(m, y);
        struct mlo_tensor x = {0};
        assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 2, DIMS(ROWS, dim), &err));
        float *v = x.data;
        for (int64_t i = 0; i < ROWS * dim; i++)
            v[i] = sinf((float)(i * i % 1013)) * (i % 7 ? 1.0f : 1e-6f);
        struct mlo_stats whole, pieces;
        mlo_stats_init(&whole);
        mlo_stats_init(&pieces);
        struct mlo_gram *a = mlo_stats_get_gram(&whole, y->producer, true),
                        *b = mlo_stats_get_gram(&pieces, y->producer, true);
        assert_ok(mlo_gram_add(a, y->producer, &x, pool, &err));
        for (int64_t r = 0; r < ROWS; r += 7) {
            struct mlo_tensor part = borrowed(v + r * dim, 2, DIMS(7, dim));
            assert_ok(mlo_gram_add(b, y->producer, &part, NULL, &err));
        }
        for (int64_t i = 0; i < dim; i++)
            for (int64_t j = i; j < dim; j++) {
                double chain = 0;
                for (int64_t r = 0; r < ROWS; r++)
                    chain += (double)v[r * dim + i] * (double)v[r * dim + j];
                if (mlo_gram_at(a, 0, i, j) != chain || mlo_gram_at(b, 0, j, i) != chain)
                    fail_msg("dim %d: element (%d, %d) differs", (int)dim, (int)i, (int)j);
            }
        mlo_tensor_clear(&x);
        mlo_stats_clear(&whole);
        mlo_stats_clear(&pieces);
        mlo_model_free(m);
    }
    mlo_pool_free(pool);
}

static void test_stats__go_on_after_a_file_and_merge(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    char path[] = "/tmp/mlopt-stats-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct mlo_model *m = new_model(13);
    struct mlo_value *y = op(m, "MatMul", "y", input(m, "x", -1, 3), ramp(m, "w", 1, 3, 2));
    finish(m, y);
    struct mlo_stats a, b;
    mlo_stats_init(&a);
    struct mlo_tensor first = borrowed(LIST(0.1f, 0.2f, 0.3f), 2, DIMS(1, 3)),
                      second = borrowed(LIST(0.7f, -1, 1e-9f), 2, DIMS(1, 3));
    assert_ok(mlo_gram_add(mlo_stats_get_gram(&a, y->producer, true), y->producer, &first, NULL, &err));
    assert_ok(mlo_channel_stats_add(mlo_stats_get_channels(&a, "x", 3), first.data, 1, 1, &err));
    assert_ok(mlo_tensor_stats_add(mlo_stats_get(&a, "x"), first.data, 3, &err));
    assert_ok(mlo_stats_save(&a, path, &err));
    assert_ok(mlo_stats_load(path, &b, &err));
    assert_ok(mlo_gram_add(mlo_stats_get_gram(&a, y->producer, true), y->producer, &second, NULL, &err));
    assert_ok(mlo_gram_add(mlo_stats_get_gram(&b, y->producer, true), y->producer, &second, NULL, &err));
    for (int i = 0; i < 6; i++)
        assert_true(a.grams[0].matrix[i] == b.grams[0].matrix[i]);
    assert_int_equal(b.grams[0].rows, 2);
    assert_int_equal(mlo_stats_find_channels(&b, "x")->samples, 1);
    /* What was read goes on with the sample behind. */
    assert_ok(mlo_channel_stats_add(mlo_stats_get_channels(&b, "x", 3), second.data, 1, 1, &err));
    assert_true(mlo_stats_find_channels(&b, "x")->sum[1] == (double)0.2f - 1);
    assert_int_equal(mlo_stats_find_channels(&b, "x")->next, 2);
    mlo_stats_clear(&b);

    /* Matrices are chains over rows: parts of one are not added. */
    mlo_stats_init(&b);
    b.first = 2;
    assert_ok(mlo_gram_add(mlo_stats_get_gram(&b, y->producer, true), y->producer, &second, NULL, &err));
    assert_int_equal(mlo_stats_merge(&a, &b, &err), MLO_EINVAL);
    assert_contains(err.message, "cannot be added to the bit");
    mlo_stats_clear(&b);

    /* Every cut is refused. */
    assert_ok(mlo_stats_save(&a, path, &err));
    struct mlo_buf whole = MLO_BUF_INIT;
    assert_ok(mlo_fs_read(path, 1 << 20, &whole, &err));
    for (size_t size = 0; size < whole.len; size += 1 + size / 16) {
        assert_ok(mlo_fs_write_atomic(path, whole.data, size, &err));
        assert_int_equal(mlo_stats_load(path, &b, &err), MLO_EFORMAT);
    }
    mlo_buf_clear(&whole);
    unlink(path);
    mlo_stats_clear(&a);
    mlo_model_free(m);
}

static void test_wants__are_one_entry_a_value(void **state)
{
    MLO_UNUSED(state);
    struct mlo_stats_wants wants = {0};
    struct mlo_stats_want a = {.name = "x", .histogram = true}, b = {.name = "x", .channel_axis = 1},
                          c = {.name = "x", .channel_axis = -1};
    assert_true(mlo_stats_wants_add(&wants, &a) && mlo_stats_wants_add(&wants, &b));
    assert_int_equal(wants.count, 1);
    assert_true(wants.list[0].histogram && wants.list[0].channel_axis == 1);
    assert_true(mlo_stats_wants_add(&wants, &c));
    assert_int_equal(wants.count, 2);
    mlo_stats_wants_clear(&wants);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_channels__extremes_and_sums_by_hand),
        cmocka_unit_test(test_gram__of_a_product_by_hand),
        cmocka_unit_test(test_gram__of_windows_by_hand),
        cmocka_unit_test(test_gram__has_the_bits_of_a_plain_chain),
        cmocka_unit_test(test_stats__go_on_after_a_file_and_merge),
        cmocka_unit_test(test_wants__are_one_entry_a_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
