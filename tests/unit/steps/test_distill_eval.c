/* The step distill-eval: what it asks of a recipe, and what it returns as measurements. */
#include <math.h>
#include <stdlib.h>

#include "pipeline/steps/steps.h"
#include "tests/cm.h"

static char *scratch;

static int make_scratch(void **state)
{
    struct mlo_error err = {0};
    (void)state;
    return mlo_fs_tempdir(NULL, "mlo-distill-", &scratch, &err) == MLO_OK ? 0 : -1;
}

static int remove_scratch(void **state)
{
    (void)state;
    mlo_fs_remove_tree(scratch);
    free(scratch);
    return 0;
}

static struct mlo_recipe *parse(const char *text)
{
    struct mlo_error err = {0};
    struct mlo_recipe *recipe;
    assert_ok(mlo_recipe_parse(text, strlen(text), "r.yaml", &recipe, &err));
    return recipe;
}

static void test_recipe__names_one_teacher(void **state)
{
    struct mlo_error err = {0};
    (void)state;
    struct mlo_recipe *r = parse("name: a\ndata: {evaluate: t}\nsteps:\n  - distill-eval\n");
    assert_int_equal(mlo_recipe_check_data(r, &err), MLO_EINVAL);
    assert_string_equal(err.message, "a:4: the step 'distill-eval' compares with a teacher, and names none");
    assert_ok(mlo_recipe_set(r, "distill-eval.teacher=big@1", &err));
    assert_ok(mlo_recipe_check_data(r, &err));
    mlo_recipe_free(r);
    r = parse("name: a\ndata: {evaluate: t}\nsteps:\n  - distill-eval: {teacher: big@1}\n  - distill-eval: "
              "{teacher: big@2}\n");
    assert_int_equal(mlo_recipe_check_data(r, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "the teachers 'big@1' and 'big@2' stand in one recipe"));
    mlo_recipe_free(r);
    static const char no_data[] = "name: a\nsteps: [distill-eval]\n";
    assert_int_equal(mlo_recipe_parse(no_data, sizeof no_data - 1, "r.yaml", &r, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "needs a dataset for the role 'evaluate'"));
}

/* --- what it returns --------------------------------------------------------------------------------------
 */

/* logits = x * scale, or what the activation makes of that, of a row of three. */
static char *save_activated(const char *name, float scale, const char *activation)
{
    struct mlo_error err = {0};
    struct mlo_model *m = NULL;
    struct mlo_type type = {.dtype = MLO_FLOAT32, .rank = 2, .dims = {{-1, "batch"}, {3, NULL}}};
    assert_ok(mlo_model_new(17, &m, &err));
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type),
                     *k = mlo_graph_add_value(m->graph, "k", NULL);
    struct mlo_value *y = mlo_graph_add_value(m->graph, "logits", NULL), *in[] = {x, k};
    struct mlo_tensor factor = {0};
    assert_ok(mlo_graph_add_input(m->graph, x, &err));
    assert_ok(mlo_tensor_init(&factor, MLO_FLOAT32, 1, (const int64_t[]){1}, &err));
    *(float *)factor.data = scale;
    assert_ok(mlo_value_make_constant_take(k, &factor, &err));
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "Mul", "mul", in, 2, &y, 1));
    if (activation) {
        struct mlo_value *z = mlo_graph_add_value(m->graph, "activated", NULL);
        assert_non_null(mlo_graph_add_node(m->graph, NULL, "", activation, "a", &y, 1, &z, 1));
        y = z;
    }
    assert_ok(mlo_graph_add_output(m->graph, y, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    char *path = mlo_fs_join(scratch, name, NULL);
    assert_ok(mlo_onnx_save(m, path, &err));
    mlo_model_free(m);
    return path;
}

static char *save_model(const char *name, float scale)
{
    return save_activated(name, scale, NULL);
}

enum { SAMPLES = 60 };

/* `last`: what the first sample has for its third class. */
static char *save_data(float last)
{
    struct mlo_error err = {0};
    struct mlo_tensor x = {0}, y = {0};
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 2, (const int64_t[]){SAMPLES, 3}, &err));
    assert_ok(mlo_tensor_init(&y, MLO_INT64, 1, (const int64_t[]){SAMPLES}, &err));
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < 3; k++)
            ((float *)x.data)[3 * i + k] = (float)((i * 7 + k * 5) % 11) / 4;
        ((int64_t *)y.data)[i] = i % 3;
    }
    ((float *)x.data)[2] = last;
    const struct mlo_npz_array arrays[] = {{"x", &x}, {"y", &y}};
    char *path = mlo_fs_join(scratch, "d.npz", NULL);
    assert_ok(mlo_npz_write(path, arrays, 2, &err));
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    return path;
}

static const json_t *observed(const struct mlo_step_result *r, const char *metric)
{
    const json_t *o, *found = NULL;
    size_t i;
    json_array_foreach(r->observations, i, o) if (strcmp(mlo_json_str(o, "metric", ""), metric) == 0) found =
        o;
    if (!found)
        fail_msg("nothing says '%s'", metric);
    return found;
}

static void test_step__returns_measurements_of_the_student(void **state)
{
    struct mlo_error err = {0};
    const struct mlo_step *step = mlo_step_find("distill-eval");
    char *teacher = save_model("teacher.onnx", 1), *student = save_model("student.onnx", -1),
         *data = save_data(2.5f);
    json_t *given = json_pack("{s:b,s:s}", "latency", 0, "teacher", "p/big@1"), *options, *report;
    struct mlo_step_result result = {0};
    struct mlo_digest digest;
    char text[MLO_DIGEST_TEXT_SIZE];
    (void)state;
    assert_true(step && step->kind == MLO_STEP_OBSERVE && step->reads_teacher && step->makes_document);
    assert_true(mlo_needs_known(step->name));
    assert_ok(mlo_options_resolve(step->options, given, &options, &err));
    struct mlo_step_context ctx = {.options = options,
                                   .model_path = student,
                                   .source_path = student,
                                   .evaluate_path = data,
                                   .out_dir = scratch,
                                   .threads = 1};
    assert_int_equal(step->run(&ctx, &result, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "has no teacher"));
    mlo_step_result_clear(&result);
    ctx.teacher_path = teacher;
    assert_ok(step->run(&ctx, &result, &err));
    assert_ok(mlo_json_load_file(result.document_path, &report, &err));
    assert_ok(mlo_digest_of_file(teacher, &digest, NULL, &err));
    const json_t *row, *top1 = json_array_get(json_object_get(report, "metrics"), 0);
    size_t i;
    json_array_foreach(result.observations, i, row)
    {
        assert_string_equal(mlo_json_str(row, "subject", ""), "variant");
        assert_string_equal(mlo_json_str(json_object_get(row, "params"), "teacher", ""),
                            mlo_digest_text(&digest, text));
        assert_true(mlo_json_f64(row, "low", 9) <= mlo_json_f64(row, "value", -9));
        assert_true(mlo_json_f64(row, "high", -9) >= mlo_json_f64(row, "value", 9));
    }
    /* the drop is the difference, the other way round */
    double difference = mlo_json_f64(json_object_get(top1, "difference"), "value", 9),
           low = mlo_json_f64(json_object_get(top1, "difference"), "low", 9);
    assert_float_equal(mlo_json_f64(observed(&result, "distill.drop.top1"), "value", 9), -difference, 0);
    assert_float_equal(mlo_json_f64(observed(&result, "distill.drop.top1"), "high", 9), -low, 0);
    assert_float_equal(mlo_json_f64(observed(&result, "distill.student.top1"), "value", 9),
                       mlo_json_f64(json_object_get(top1, "student"), "value", -9), 0);
    assert_string_equal(
        mlo_json_str(json_object_get(observed(&result, "distill.kl"), "params"), "temperature", ""), "4");
    assert_float_equal(mlo_json_f64(observed(&result, "distill.cosine"), "value", 9), -1, 1e-12);
    assert_float_equal(mlo_json_f64(observed(&result, "distill.weights_ratio"), "value", 9), 1, 0);
    assert_string_equal(mlo_json_str(json_object_get(report, "teacher"), "name", ""), "p/big@1");
    /* a recipe's expectation reads them */
    struct mlo_recipe *r =
        parse("name: a\ndata: {evaluate: t}\nsteps: [distill-eval]\nexpect:\n  - distill.drop.top1 <= 1pt\n"
              "  - distill.ece[bins=equal_mass] <= 100%\n  - distill.kl[temperature=4] >= 0\n");
    json_t *results;
    enum mlo_status verdict = mlo_recipe_expect(r, result.observations, &results, &err);
    assert_int_equal(verdict, MLO_EEXPECT);
    assert_false(mlo_json_bool(json_array_get(results, 0), "holds", true));
    assert_true(mlo_json_bool(json_array_get(results, 1), "holds", false));
    assert_true(mlo_json_bool(json_array_get(results, 2), "holds", false));
    mlo_recipe_free(r);
    json_decref(results);
    json_decref(report);
    json_decref(given);
    json_decref(options);
    mlo_step_result_clear(&result);
    free(teacher);
    free(student);
    free(data);
}

/* Masked in the teacher alone: outputs have no distance. That is said, is no measurement, and no condition
 * holds by it. */
static void test_step__keeps_what_has_no_number_as_missing(void **state)
{
    struct mlo_error err = {0};
    const struct mlo_step *step = mlo_step_find("distill-eval");
    char *teacher = save_model("teacher.onnx", 1), *student = save_activated("student.onnx", 1, "Relu"),
         *data = save_data(-INFINITY);
    json_t *given = json_pack("{s:b}", "latency", 0), *options, *report, *results;
    struct mlo_step_result result = {0};
    const json_t *row;
    size_t i;
    (void)state;
    assert_ok(mlo_options_resolve(step->options, given, &options, &err));
    const struct mlo_step_context ctx = {.options = options,
                                         .model_path = student,
                                         .source_path = student,
                                         .teacher_path = teacher,
                                         .evaluate_path = data,
                                         .out_dir = scratch,
                                         .threads = 1};
    if (step->run(&ctx, &result, &err) != MLO_OK)
        fail_msg("%s", err.message);
    assert_ok(mlo_json_load_file(result.document_path, &report, &err));
    json_array_foreach(result.observations, i, row)
    {
        assert_true(json_is_number(json_object_get(row, "value")));
        assert_string_not_equal(mlo_json_str(row, "metric", ""), "distill.cosine");
    }
    const json_t *missing = json_object_get(report, "missing"), *first = json_array_get(missing, 0);
    assert_int_equal(json_array_size(missing), 2);
    assert_string_equal(mlo_json_str(first, "metric", ""), "distill.cosine");
    assert_non_null(strstr(mlo_json_str(first, "why", ""), "1 of 60 samples have none"));
    assert_true(mlo_str_starts(mlo_json_str(json_object_get(first, "params"), "teacher", ""), "sha256:"));
    struct mlo_recipe *r =
        parse("name: a\ndata: {evaluate: t}\nsteps: [distill-eval]\nexpect:\n  - distill.cosine >= 0\n");
    assert_int_equal(mlo_recipe_expect(r, result.observations, &results, &err), MLO_EEXPECT);
    assert_non_null(strstr(err.message, "was not measured"));
    mlo_recipe_free(r);
    json_decref(results);
    json_decref(report);
    json_decref(given);
    json_decref(options);
    mlo_step_result_clear(&result);
    free(teacher);
    free(student);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipe__names_one_teacher),
        cmocka_unit_test(test_step__returns_measurements_of_the_student),
        cmocka_unit_test(test_step__keeps_what_has_no_number_as_missing),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
