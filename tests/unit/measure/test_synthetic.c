/* What is said of a variant without data: how inputs are made up, and the numbers by hand. */
#include "../../cm.h"

#include <math.h>
#include <string.h>

#include "pipeline/measure/measure.h"

static struct mlo_value *constant(struct mlo_model *m, const char *name, float number, int rank,
                                  const int64_t *dims)
{
    struct mlo_tensor t;
    struct mlo_error err = {0};
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, rank, dims, &err));
    for (size_t i = 0, n = mlo_tensor_count(&t); i < n; i++)
        ((float *)t.data)[i] = number;
    return mlo_graph_add_constant_take(m->graph, name, &t);
}

static struct mlo_value *op(struct mlo_model *m, const char *type, struct mlo_value *a, struct mlo_value *b)
{
    struct mlo_value *inputs[] = {a, b}, *y = mlo_graph_add_value(m->graph, "v", NULL);
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", type, type, inputs, b ? 2 : 1, &y, 1));
    return y;
}

/* "y" is factor * x of an image whose pixels are declared to be in 0…255; "z" is row `ids` of a table of 7
 * ones, where the ids go through an Identity, times factor. */
static struct mlo_model *model(float factor)
{
    struct mlo_model *m = NULL;
    struct mlo_error err = {0};
    struct mlo_type image = {MLO_FLOAT32, 4, {{-1, "n"}, {1, NULL}, {-1, "h"}, {2, NULL}}},
                    id = {MLO_INT64, 2, {{-1, "n"}, {-1, "length"}}};
    static struct mlo_meta declared = {"Image.NominalPixelRange", "NominalRange_0_255"};
    assert_ok(mlo_model_new(13, &m, &err));
    m->metadata = &declared;
    m->metadata_count = 1;
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &image),
                     *ids = mlo_graph_add_value(m->graph, "ids", &id);
    assert_ok(mlo_graph_add_input(m->graph, x, &err));
    assert_ok(mlo_graph_add_input(m->graph, ids, &err));
    struct mlo_value *y = op(m, "Mul", x, constant(m, "factor", factor, 0, NULL));
    struct mlo_value *rows = op(m, "Gather", constant(m, "table", factor, 2, (const int64_t[]){7, 3}),
                                op(m, "Identity", ids, NULL));
    assert_ok(mlo_graph_add_output(m->graph, y, &err));
    assert_ok(mlo_graph_add_output(m->graph, rows, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    return m;
}

static enum mlo_status deviation_of(const struct mlo_model *source, const struct mlo_model *variant,
                                    unsigned threads, json_t **out, struct mlo_error *err)
{
    struct mlo_synthetic *synthetic = NULL;
    enum mlo_status status = mlo_synthetic_new(source, threads, &synthetic, err);
    if (status == MLO_OK)
        status = mlo_synthetic_compare(synthetic, variant, out, err);
    mlo_synthetic_free(synthetic);
    return status;
}

static double number(const json_t *row, const char *key)
{
    return mlo_json_f64(row, key, NAN);
}

/* The variant is 1.25 times the source: cosine 1, noise (1/4)^2 of the signal, 12.04 dB. */
static void test_synthetic__numbers_by_hand(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *a = model(1), *b = model(1.25f);
    json_t *d = NULL, *again = NULL, *same = NULL;
    assert_ok(deviation_of(a, b, 1, &d, &err));
    assert_string_equal(mlo_json_str(d, "inputs", ""), "synthetic");
    assert_int_equal(mlo_json_i64(d, "samples", 0), 8);
    assert_int_equal(mlo_json_i64(d, "open_dims", 0), 16);
    const json_t *outputs = json_object_get(d, "outputs"), *fed = json_object_get(d, "fed");
    assert_int_equal(json_array_size(outputs), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(outputs, i);
        assert_float_equal(number(row, "cosine"), 1, 1e-12);
        assert_float_equal(number(row, "sqnr_db"), 20 * log10(4), 1e-6);
        assert_float_equal(number(row, "max_rel"), 0.25, 1e-6);
        assert_float_equal(number(row, "not_finite"), 0, 0);
    }
    /* pixels fill the declared range, and nothing beyond */
    double most = number(json_array_get(outputs, 0), "max_abs") / 0.25;
    assert_true(most > 200 && most < 255);
    assert_float_equal(number(json_array_get(outputs, 1), "max_abs"), 0.25, 1e-12);
    assert_string_equal(mlo_json_str(json_array_get(fed, 0), "values", ""), "uniform");
    assert_float_equal(number(json_array_get(fed, 0), "to"), 255, 0);
    assert_string_equal(mlo_json_str(json_array_get(fed, 1), "values", ""), "integers");
    assert_float_equal(number(json_array_get(fed, 1), "to"), 6, 0); /* the table has 7 rows */
    assert_ok(deviation_of(a, b, 2, &again, &err));
    assert_true(json_equal(d, again));
    assert_ok(deviation_of(a, a, 1, &same, &err));
    assert_true(
        json_is_null(json_object_get(json_array_get(json_object_get(same, "outputs"), 0), "sqnr_db")));
    assert_float_equal(number(json_array_get(json_object_get(same, "outputs"), 0), "equal"), 1, 0);
    json_decref(d);
    json_decref(again);
    json_decref(same);
    mlo_model_free(a);
    mlo_model_free(b);
}

/* Infinities of the variant alone are counted, and no average hides them. */
static void test_synthetic__counts_what_is_not_finite(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *a = model(1), *b = model(INFINITY);
    json_t *d = NULL;
    assert_ok(deviation_of(a, b, 1, &d, &err));
    assert_true(number(json_array_get(json_object_get(d, "outputs"), 1), "not_finite") == 8 * 16 * 3);
    json_decref(d);
    mlo_model_free(a);
    mlo_model_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_synthetic__numbers_by_hand),
        cmocka_unit_test(test_synthetic__counts_what_is_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
