/* A second model between a model's outputs and the metric: what feeds what, shapes, batches, and its place in
 * a dataset. */
#include "tests/unit/measure/fixture.h"

enum { SAMPLES = 70, WIDTH = 2 }; /* more than two chunks */

static struct mlo_value *node(struct mlo_model *m, const char *op, const char *name, struct mlo_value **in,
                              int count)
{
    struct mlo_value *y = mlo_graph_add_value(m->graph, name, NULL);
    struct mlo_node *n = mlo_graph_add_node(m->graph, NULL, "", op, name, in, count, &y, 1);
    assert_true(y && n && n->op);
    return y;
}

/* "boxes" = -x, "scores" = |x|, [N, 2] each. */
static struct mlo_model *two_heads(void)
{
    struct mlo_error err = {0};
    struct mlo_model *m = shell_model();
    struct mlo_value *x = shell_input(m, "x", MLO_FLOAT32, 2, DIMS(-1, WIDTH));
    assert_ok(mlo_graph_add_output(m->graph, node(m, "Neg", "boxes", &x, 1), &err));
    assert_ok(mlo_graph_add_output(m->graph, node(m, "Abs", "scores", &x, 1), &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    return m;
}

struct post {
    const char *op;
    enum mlo_dtype dtype;
    int64_t batch;
    int64_t width;
    const char *inputs[3];
};

static const char *save_post(const char *file, const struct post *p)
{
    struct mlo_error err = {0};
    struct mlo_model *m = shell_model();
    struct mlo_value *in[3];
    int count = 0;
    for (; count < 3 && p->inputs[count]; count++) {
        in[count] = shell_input(m, p->inputs[count], p->dtype, 2, DIMS(p->batch, p->width));
        if (p->width < 0)
            in[count]->type.dims[1].name = "n";
    }
    assert_ok(mlo_graph_add_output(m->graph, node(m, p->op, "y", in, count), &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    const char *path = in_scratch(file);
    assert_ok(mlo_onnx_save(m, path, &err));
    mlo_model_free(m);
    return path;
}

static struct mlo_dataset *samples(const char *postprocess)
{
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_tensor x = make_tensor(MLO_FLOAT32, 2, DIMS(SAMPLES, WIDTH), NULL);
    for (int i = 0; i < SAMPLES * WIDTH; i++)
        ((float *)x.data)[i] = (float)(i - SAMPLES);
    const struct mlo_npz_array arrays[] = {{"x", &x}};
    const struct mlo_dataset_options options = {.postprocess = postprocess};
    assert_ok(mlo_npz_write(in_scratch("x.npz"), arrays, 1, &err));
    assert_ok(mlo_dataset_open(in_scratch("x.npz"), &options, &d, &err));
    mlo_tensor_clear(&x);
    return d;
}

static enum mlo_status evaluate(const char *postprocess, struct mlo_tensor **out, int *count,
                                struct mlo_error *err)
{
    struct mlo_model *model = two_heads();
    struct mlo_dataset *d = samples(postprocess);
    enum mlo_status status = mlo_run_evaluation(model, d, NULL, out, count, NULL, NULL, err);
    mlo_dataset_close(d);
    mlo_model_free(model);
    return status;
}

/* The numbers that `of` gives for x. */
static void check(const struct post *p, float (*of)(float x))
{
    struct mlo_error err = {0};
    struct mlo_tensor *out;
    int count;
    assert_ok(evaluate(save_post("post.onnx", p), &out, &count, &err));
    assert_int_equal(count, 1);
    assert_int_equal(out[0].dims[0], SAMPLES);
    for (int i = 0; i < SAMPLES * WIDTH; i++) {
        float x = (float)(i - SAMPLES);
        assert_true(((float *)out[0].data)[i] == of(x));
    }
    mlo_outputs_free(out, count);
}

static void refuse(const struct post *p, enum mlo_status wanted, const char *words)
{
    struct mlo_error err = {0};
    struct mlo_tensor *out;
    int count;
    assert_int_equal(evaluate(save_post("post.onnx", p), &out, &count, &err), wanted);
    assert_contains(err.message, "the postprocessing model post.onnx");
    assert_contains(err.message, words);
    assert_null(out);
    assert_int_equal(count, 0);
}

static float absolute(float x)
{
    return x < 0 ? -x : x;
}
static float scores_minus_boxes(float x)
{
    return absolute(x) + x;
}
static float same(float x)
{
    return x;
}
static float boxes_minus_scores(float x)
{
    return -x - absolute(x);
}

static void test_postprocess__inputs_by_name_else_by_position(void **state)
{
    (void)state;
    check(&(struct post){"Sub", MLO_FLOAT32, -1, WIDTH, {"scores", "boxes"}}, scores_minus_boxes);
    check(&(struct post){"Sub", MLO_FLOAT32, -1, WIDTH, {"a", "b"}}, boxes_minus_scores);
    check(&(struct post){"Sub", MLO_FLOAT32, -1, WIDTH, {"scores", "b"}}, boxes_minus_scores);
    check(&(struct post){"Neg", MLO_FLOAT32, -1, WIDTH, {"boxes"}}, same);
    refuse(&(struct post){"Neg", MLO_FLOAT32, -1, WIDTH, {"logits"}}, MLO_EINVAL,
           "its inputs are 'logits', the model's outputs 'boxes', 'scores'");
    refuse(&(struct post){"Sum", MLO_FLOAT32, -1, WIDTH, {"boxes", "scores", "more"}}, MLO_EINVAL,
           "neither the same names nor as many");
}

static void test_postprocess__batches_and_open_dims(void **state)
{
    (void)state;
    check(&(struct post){"Sub", MLO_FLOAT32, 1, WIDTH, {"a", "b"}}, boxes_minus_scores);
    check(&(struct post){"Sub", MLO_FLOAT32, 35, WIDTH, {"a", "b"}}, boxes_minus_scores);
    check(&(struct post){"Sub", MLO_FLOAT32, -1, -1, {"a", "b"}}, boxes_minus_scores);
    refuse(&(struct post){"Sub", MLO_FLOAT32, 32, WIDTH, {"a", "b"}}, MLO_EINVAL,
           "its batch is fixed at 32, of which 70 samples are no multiple");
}

static void test_postprocess__types_and_shapes_must_fit(void **state)
{
    (void)state;
    refuse(&(struct post){"Sub", MLO_INT64, -1, WIDTH, {"a", "b"}}, MLO_EINVAL, "float32");
    refuse(&(struct post){"Sub", MLO_FLOAT32, -1, 3, {"a", "b"}}, MLO_EINVAL, "2");
    refuse(&(struct post){"Shape", MLO_FLOAT32, -1, WIDTH, {"scores"}}, MLO_EUNSUPPORTED,
           "no row per sample");
    struct mlo_error err = {0};
    struct mlo_tensor *out;
    int count;
    assert_int_not_equal(evaluate(in_scratch("absent.onnx"), &out, &count, &err), MLO_OK);
    assert_contains(err.message, "the postprocessing model absent.onnx");
}

/* As part of a dataset: a role of its files. Labels belong to what comes out of it then. */
static void test_postprocess__belongs_to_a_dataset(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_tensor *out;
    int count;
    struct mlo_model *model = two_heads();
    mlo_dataset_close(samples(NULL)); /* writes x.npz */
    write_text("dataset.json",
               "{\"format\": \"npz\", \"files\": {\"data\": \"x.npz\", \"postprocess\": \"p.onnx\"}}");
    mlo_fs_remove_tree(in_scratch("p.onnx"));
    assert_int_equal(mlo_dataset_open(in_scratch("dataset.json"), NULL, &d, &err), MLO_ENOTFOUND);
    assert_contains(err.message, "'p.onnx' does not exist");
    save_post("p.onnx", &(struct post){"Sub", MLO_FLOAT32, -1, WIDTH, {"scores", "boxes"}});
    assert_ok(mlo_dataset_open(in_scratch("dataset.json"), NULL, &d, &err));
    assert_contains(mlo_dataset_postprocess(d), "/p.onnx");
    assert_ok(mlo_run_evaluation(model, d, NULL, &out, &count, NULL, NULL, &err));
    assert_int_equal(count, 1);
    assert_true(((float *)out[0].data)[0] == 0 && ((float *)out[0].data)[SAMPLES * WIDTH - 1] == 2 * 69);
    mlo_outputs_free(out, count);
    mlo_dataset_close(d);

    d = samples(NULL); /* without one: the model's own outputs */
    assert_null(mlo_dataset_postprocess(d));
    assert_ok(mlo_run_evaluation(model, d, NULL, &out, &count, NULL, NULL, &err));
    assert_int_equal(count, 2);
    mlo_outputs_free(out, count);
    mlo_dataset_close(d);
    mlo_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_postprocess__inputs_by_name_else_by_position),
        cmocka_unit_test(test_postprocess__batches_and_open_dims),
        cmocka_unit_test(test_postprocess__types_and_shapes_must_fit),
        cmocka_unit_test(test_postprocess__belongs_to_a_dataset),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
