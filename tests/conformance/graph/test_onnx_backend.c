/* The ONNX backend tests of libonnx-testdata against the reference kernels: every test whose ops the table
 * knows must pass, but for the list below. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "graph/onnx_impl.h"

#define DATA "/usr/share/libonnx-testdata/data"

#define TRAINING "training mode: mlopt optimizes models for inference"
#define BF16_AS_UINT16 "the data files hold bfloat16 as uint16, since NumPy has no such type"
#define STRINGS "tensors of strings are not supported"
#define CUBIC "Resize: cubic interpolation"
#define TF_COORDINATES "Resize: the coordinate modes of old TensorFlow"
#define UNROUNDED_SIZE "computed from an output size of 2.4, where runtimes use the real one, 2"

/* What is not supported, and why. A test listed here must still fail: the list only shrinks. */
static const struct {
    const char *test, *reason;
} excused[] = {
    {"test_batchnorm_epsilon_training_mode", TRAINING},
    {"test_batchnorm_example_training_mode", TRAINING},
    {"test_training_dropout", TRAINING},
    {"test_training_dropout_default", TRAINING},
    {"test_training_dropout_default_mask", TRAINING},
    {"test_training_dropout_mask", TRAINING},
    {"test_training_dropout_zero_ratio", TRAINING},
    {"test_training_dropout_zero_ratio_mask", TRAINING},
    {"test_cast_BFLOAT16_to_FLOAT", BF16_AS_UINT16},
    {"test_cast_FLOAT_to_BFLOAT16", BF16_AS_UINT16},
    {"test_castlike_BFLOAT16_to_FLOAT_expanded", BF16_AS_UINT16},
    {"test_castlike_FLOAT_to_BFLOAT16_expanded", BF16_AS_UINT16},
    {"test_cast_FLOAT_to_STRING", STRINGS},
    {"test_resize_downsample_scales_cubic", CUBIC},
    {"test_resize_downsample_scales_cubic_A_n0p5_exclude_outside", CUBIC},
    {"test_resize_downsample_scales_cubic_align_corners", CUBIC},
    {"test_resize_downsample_sizes_cubic", CUBIC},
    {"test_resize_upsample_scales_cubic", CUBIC},
    {"test_resize_upsample_scales_cubic_A_n0p5_exclude_outside", CUBIC},
    {"test_resize_upsample_scales_cubic_align_corners", CUBIC},
    {"test_resize_upsample_scales_cubic_asymmetric", CUBIC},
    {"test_resize_upsample_sizes_cubic", CUBIC},
    {"test_resize_downsample_sizes_nearest_tf_half_pixel_for_nn", TF_COORDINATES},
    {"test_resize_tf_crop_and_resize", TF_COORDINATES},
    {"test_resize_downsample_scales_linear_align_corners", UNROUNDED_SIZE},
};

static const char *const folders[] = {"node", "simple", "pytorch-operator", "pytorch-converted"};

struct counts {
    int passed, unknown_op, unsupported_type, excused, failed;
};

enum verdict { PASSED, UNKNOWN, TYPE, FAILED };

/* *out owns its data; false when the file is not there. */
static bool read_tensor(const char *folder, const char *what, int index, struct mlo_tensor *out,
                        struct mlo_error *err)
{
    char path[512];
    struct mlo_buf bytes = MLO_BUF_INIT;
    snprintf(path, sizeof path, "%s/test_data_set_0/%s_%d.pb", folder, what, index);
    if (mlo_fs_read(path, (size_t)1 << 30, &bytes, err) != MLO_OK)
        return false;
    Onnx__TensorProto *p = onnx__tensor_proto__unpack(NULL, bytes.len, (const uint8_t *)mlo_buf_str(&bytes));
    struct mlo_onnx_reader reader = {0};
    bool ok = p && mlo_onnx_read_tensor(&reader, p, (struct mlo_span){0}, out, err) == MLO_OK;
    if (p)
        onnx__tensor_proto__free_unpacked(p, NULL);
    mlo_buf_clear(&bytes);
    return ok;
}

/* ONNX's own: relative 1e-3, absolute 1e-7; integers may differ by nothing, or (quantized results) by nothing
 * either. */
static bool same(const struct mlo_tensor *got, const struct mlo_tensor *want, char *why, size_t size)
{
    char a[256], b[256];
    if (got->dtype != want->dtype || !mlo_tensor_same_shape(got, want)) {
        snprintf(why, size, "%.150s, not %.150s", mlo_tensor_describe(got, a, sizeof a),
                 mlo_tensor_describe(want, b, sizeof b));
        return false;
    }
    for (size_t i = 0; i < mlo_tensor_count(want); i++) {
        double x = mlo_tensor_get_f64(got, i), y = mlo_tensor_get_f64(want, i);
        bool close = (isnan(x) && isnan(y)) || x == y || fabs(x - y) <= 1e-7 + 1e-3 * fabs(y);
        if (!close) {
            snprintf(why, size, "element %zu is %.9g, not %.9g", i, x, y);
            return false;
        }
    }
    return true;
}

/* Runs the graph node by node; `held` has room for every value. */
static enum mlo_status run(const struct mlo_graph *graph, struct mlo_tensor *held, struct mlo_error *err)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        const struct mlo_tensor **in = calloc((size_t)node->input_count + 1, sizeof *in);
        struct mlo_tensor **out = calloc((size_t)node->output_count + 1, sizeof *out);
        for (int i = 0; i < node->input_count; i++) {
            const struct mlo_value *v = node->inputs[i];
            in[i] = !v ? NULL : v->constant && !held[v->index].dtype ? v->constant : &held[v->index];
        }
        for (int i = 0; i < node->output_count; i++)
            out[i] = node->outputs[i] ? &held[node->outputs[i]->index] : NULL;
        enum mlo_status status = mlo_node_eval(node, in, out, err);
        free(in);
        free(out);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

static enum verdict check(const char *folder, char *why, size_t size)
{
    char path[640];
    struct mlo_model *model = NULL;
    struct mlo_tensor *held = NULL;
    struct mlo_error err = {0};
    enum verdict verdict = FAILED;
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    enum mlo_status status = mlo_onnx_load(path, &model, &err);
    if (status != MLO_OK || mlo_graph_check_supported(model->graph, &err) != MLO_OK) {
        /* a known op that fails to load must not hide among the unknown ones */
        if (err.status == MLO_EUNSUPPORTED)
            verdict = strstr(err.message, "sequence") || strstr(err.message, "string") ? TYPE : UNKNOWN;
        if (verdict == UNKNOWN && !strstr(err.message, "op "))
            verdict = FAILED;
        snprintf(why, size, "%s (%s)", err.message, err.where);
        goto out;
    }
    held = calloc((size_t)model->graph->value_count + 1, sizeof *held);
    for (int i = 0, fed = 0; i < model->graph->input_count; i++, fed++) {
        struct mlo_value *value = model->graph->inputs[i];
        if (!read_tensor(folder, "input", fed, &held[value->index], &err) && !value->constant) {
            verdict = strstr(err.message, "string") ? TYPE : FAILED;
            snprintf(why, size, "input %d: %s", i, err.message);
            goto out;
        }
    }
    if (run(model->graph, held, &err) != MLO_OK) {
        snprintf(why, size, "%s (%s)", err.message, err.where);
        goto out;
    }
    verdict = PASSED;
    for (int i = 0; i < model->graph->output_count && verdict == PASSED; i++) {
        struct mlo_tensor want = {0};
        const struct mlo_value *value = model->graph->outputs[i];
        const struct mlo_tensor *got = value->constant ? value->constant : &held[value->index];
        if (!read_tensor(folder, "output", i, &want, &err)) {
            snprintf(why, size, "output %d: %s", i, err.message);
            verdict = FAILED;
        } else if (!same(got, &want, why, size)) {
            verdict = FAILED;
        }
        mlo_tensor_clear(&want);
    }
out:
    for (int i = 0; held && i < model->graph->value_count; i++)
        mlo_tensor_clear(&held[i]);
    free(held);
    mlo_model_free(model);
    return verdict;
}

static const char *excuse(const char *test)
{
    for (size_t i = 0; i < MLO_COUNT(excused); i++)
        if (strcmp(excused[i].test, test) == 0)
            return excused[i].reason;
    return NULL;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void run_folder(const char *kind, struct counts *c)
{
    char root[256], path[512], why[1024];
    struct dirent **list = NULL;
    snprintf(root, sizeof root, DATA "/%s", kind);
    int count = scandir(root, &list, NULL, by_name);
    for (int i = 0; i < count; i++) {
        const char *name = list[i]->d_name;
        if (strncmp(name, "test_", 5) == 0) {
            snprintf(path, sizeof path, "%s/%.200s", root, name);
            why[0] = '\0';
            enum verdict verdict = check(path, why, sizeof why);
            const char *reason = excuse(name);
            if (reason && verdict == PASSED) {
                printf("FAIL %s/%s passes but is on the list of exceptions\n", kind, name);
                c->failed++;
            } else if (verdict == FAILED && reason) {
                c->excused++;
            } else if (verdict == FAILED) {
                printf("FAIL %s/%s: %s\n", kind, name, why);
                c->failed++;
            } else {
                *(verdict == PASSED ? &c->passed
                  : verdict == TYPE ? &c->unsupported_type
                                    : &c->unknown_op) += 1;
                if (verdict != PASSED && getenv("MLO_TEST_VERBOSE"))
                    printf("skip %s/%s: %s\n", kind, name, why);
            }
        }
        free(list[i]);
    }
    free(list);
}

static void test_onnx_backend__known_ops_pass(void **state)
{
    MLO_UNUSED(state);
    struct counts c = {0};
    if (!mlo_fs_exists(DATA "/node"))
        skip();
    for (size_t i = 0; i < MLO_COUNT(folders); i++)
        run_folder(folders[i], &c);
    printf("%d passed, %d failed, %d excused, %d with an op that is not in the table, %d with a type that "
           "tensors do not "
           "have\n",
           c.passed, c.failed, c.excused, c.unknown_op, c.unsupported_type);
    assert_int_equal(c.failed, 0);
    assert_true(c.passed >= 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_onnx_backend__known_ops_pass)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
