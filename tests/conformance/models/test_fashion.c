/* The trained example model and its int8 and float16 variants as wholes: the cpu engine decides as the
 * reference engine does, and as accurately as it should on Fashion-MNIST. MLOPT_ISA chooses the kernels. */
#include "tests/cm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engines/cpu/cpu_impl.h"
#include "pipeline/measure/measure.h"
#include "tests/isa_case.h"

#define IMAGES "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz"
#define LABELS "/usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz"
#define TRAIN                                                                                                \
    "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz,"                                          \
    "/usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz"
#define NORMALIZE "scale=1/255,mean=0.2860,std=0.3530"
#define SOURCE MLOPT_SOURCE_DIR "/deploy/models/fashion_cnn.onnx"

enum {
    CLASSES = 10,
#ifdef MLOPT_SANITIZED /* the same code eight times slower: less of the same arithmetic */
    REFERENCE_IMAGES = 4,
    IMAGES_IN_HALVES = 12,
    IMAGES_JUDGED = 44, /* more than a batch, and a rest; too few to judge by: the other builds do */
    ACCURACY_JUDGED = 0,
#else
    REFERENCE_IMAGES = 16,
    IMAGES_IN_HALVES = 96,
    IMAGES_JUDGED = 1000,
    ACCURACY_JUDGED = 1,
#endif
};

#ifdef MLOPT_SANITIZED
#define CALIBRATED "8"
#else
#define CALIBRATED "64"
#endif

/* Of the largest logit, for runs of 32 sums that are rounded to 11 bits in each layer: 2,000 images stay
 * below half of it. */
#define HALF_TOLERANCE 0.004
/* In fixed point sums are exact, and what is rounded are values, to 14 bits. */
#define FIXED_TOLERANCE 0.002

struct fixture {
    char folder[64], int8[96], half[96];
};

static bool made(const char *const argv[])
{
    struct mlo_error err = {0};
    int code = 0;
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    options.argv = argv;
    return mlo_process_run(&options, 250000, 0, NULL, &code, &err) == MLO_OK && code == 0;
}

static int set_up(void **state)
{
    static struct fixture f;
    const char *program = getenv("MLOPT");
    snprintf(f.folder, sizeof f.folder, "/tmp/mlopt-fashion.XXXXXX");
    if (!program || !mkdtemp(f.folder))
        return 1;
    snprintf(f.int8, sizeof f.int8, "%s/int8.onnx", f.folder);
    snprintf(f.half, sizeof f.half, "%s/half.onnx", f.folder);
    *state = &f;
    return !made((const char *[]){program, "quantize", SOURCE, "--data", TRAIN, "--limit", CALIBRATED,
                                  "--normalize", NORMALIZE, "--recipe", "int8-cpu", "--out", f.int8, "-q",
                                  NULL}) ||
           !made((const char *[]){program, "quantize", SOURCE, "--recipe", "fp16", "--out", f.half, "-q",
                                  NULL});
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    unlink(f->int8);
    unlink(f->half);
    rmdir(f->folder);
    return 0;
}

/* The logits [count, 10] of the first images, and their labels when wanted. */
static void logits(const char *path, const char *engine, enum mlo_numerics numerics, int64_t count,
                   int64_t batch, struct mlo_tensor *out, int64_t *labels)
{
    struct mlo_error err = {0};
    struct mlo_model *model = NULL;
    struct mlo_dataset *data = NULL;
    struct mlo_dataset_options options = {.normalize = NORMALIZE, .limit = count};
    struct mlo_run_options run = {.threads = 1, .batch = batch, .numerics = numerics};
    assert_ok(mlo_engine_find(engine, &run.engine, &err));
    assert_ok(mlo_onnx_load(path, &model, &err));
    assert_ok(mlo_dataset_open(IMAGES "," LABELS, &options, &data, &err));
    assert_ok(mlo_run_dataset(model, data, &run, out, NULL, NULL, &err));
    assert_int_equal(mlo_tensor_count(out), (size_t)count * CLASSES);
    if (labels)
        memcpy(labels, mlo_dataset_labels(data), (size_t)count * sizeof *labels);
    mlo_dataset_close(data);
    mlo_model_free(model);
}

static int decided(const float *row)
{
    int best = 0;
    for (int i = 1; i < CLASSES; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

static float margin(const float *row)
{
    float second = -INFINITY, first = row[decided(row)];
    for (int i = 0; i < CLASSES; i++)
        if (i != decided(row))
            second = fmaxf(second, row[i]);
    return first - second;
}

static void agree(const struct mlo_tensor *got, const struct mlo_tensor *want, double tolerance,
                  const char *which)
{
    const float *a = got->data, *b = want->data;
    double worst = 0, largest = 0;
    size_t n = mlo_tensor_count(want);
    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(b[i]));
        worst = fmax(worst, isfinite(a[i]) ? fabs((double)a[i] - b[i]) : INFINITY);
    }
    if (worst > tolerance * largest)
        fail_msg("%s: logits differ by %g, largest %g", which, worst, largest);
    for (size_t i = 0; i < n; i += CLASSES)
        if (decided(a + i) != decided(b + i) && margin(b + i) > 2 * tolerance * largest)
            fail_msg("%s: image %zu is a %d for the reference engine, a %d here", which, i / CLASSES,
                     decided(b + i), decided(a + i));
}

/* Rounding ties of int8 may fall to the other side where a float sum is one bit off: a step or two of the
 * logits. */
static void decides_as_reference(const char *path, double tolerance)
{
    struct mlo_tensor want = {0}, got = {0};
    logits(path, "reference", MLO_NUMERICS_FAST, REFERENCE_IMAGES, REFERENCE_IMAGES, &want, NULL);
    for (int64_t batch = 1; batch <= REFERENCE_IMAGES; batch += REFERENCE_IMAGES - 1) {
        logits(path, "cpu", MLO_NUMERICS_FAST, REFERENCE_IMAGES, batch, &got, NULL);
        agree(&got, &want, tolerance, batch == 1 ? "fast, batch 1" : "fast, all in one batch");
        mlo_tensor_clear(&got);
    }
    logits(path, "cpu", MLO_NUMERICS_INVARIANT, REFERENCE_IMAGES, REFERENCE_IMAGES, &got, NULL);
    agree(&got, &want, tolerance, "invariant");
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&want);
}

static void test_fashion__source_decides_as_reference(void **state)
{
    MLO_UNUSED(state);
    decides_as_reference(SOURCE, 1e-5);
}

static void test_fashion__int8_decides_as_reference(void **state)
{
    const struct fixture *f = *state;
    decides_as_reference(f->int8, 0.02);
}

static double accuracy(const struct mlo_tensor *out, const int64_t *labels)
{
    int right = 0;
    for (int i = 0; i < IMAGES_JUDGED; i++)
        right += decided((const float *)out->data + (size_t)i * CLASSES) == labels[i];
    return (double)right / IMAGES_JUDGED;
}

static void test_fashion__accuracy_is_that_of_the_model(void **state)
{
    const struct fixture *f = *state;
    static int64_t labels[IMAGES_JUDGED];
    struct mlo_tensor fast = {0}, exact = {0}, int8 = {0};
    logits(SOURCE, "cpu", MLO_NUMERICS_FAST, IMAGES_JUDGED, 8, &fast, labels);
    logits(SOURCE, "cpu", MLO_NUMERICS_INVARIANT, IMAGES_JUDGED, 8, &exact, NULL);
    logits(f->int8, "cpu", MLO_NUMERICS_FAST, IMAGES_JUDGED, 8, &int8, NULL);
    agree(&fast, &exact, 1e-5, "fast numerics and invariant ones");
    if (ACCURACY_JUDGED &&
        (accuracy(&fast, labels) < 0.92 || fabs(accuracy(&int8, labels) - accuracy(&fast, labels)) > 0.005))
        fail_msg("accuracy: float32 %.4f, int8 %.4f", accuracy(&fast, labels), accuracy(&int8, labels));
    mlo_tensor_clear(&fast);
    mlo_tensor_clear(&exact);
    mlo_tensor_clear(&int8);
}

/* In FP16 as a CPU with it computes (`how` "emulate"), or in fixed point ("fixed"): not float32's bits, and
 * near. */
static void decides_as_float32(const struct fixture *f, const char *how, double tolerance)
{
    struct mlo_tensor want = {0}, got = {0}, other = {0};
    if (getenv("MLOPT_ISA_CASE") && strcmp(how, "emulate") == 0)
        skip(); /* it is the same whatever the case */
    assert_int_equal(setenv("MLOPT_FP16", how, 1), 0);
    if (cpu_half_current() == CPU_HALF_NONE) {
        assert_int_equal(unsetenv("MLOPT_FP16"), 0);
        print_message("left out: %s needs other kernels than those of %s\n", how,
                      mlo_isa_name(mlo_isa_current()));
        skip();
    }
    logits(SOURCE, "reference", MLO_NUMERICS_FAST, REFERENCE_IMAGES, REFERENCE_IMAGES, &want, NULL);
    logits(f->half, "cpu", MLO_NUMERICS_FAST, REFERENCE_IMAGES, 1, &got, NULL);
    agree(&got, &want, tolerance, "float16 and the reference's float32");
    assert_int_equal(setenv("MLOPT_FP16", "off", 1), 0);
    logits(f->half, "cpu", MLO_NUMERICS_FAST, REFERENCE_IMAGES, 1, &other, NULL);
    assert_memory_not_equal(other.data, got.data, mlo_tensor_count(&got) * sizeof(float));
    assert_int_equal(setenv("MLOPT_FP16", how, 1), 0);
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&other);
    logits(SOURCE, "cpu", MLO_NUMERICS_FAST, IMAGES_IN_HALVES, 8, &want, NULL);
    logits(f->half, "cpu", MLO_NUMERICS_FAST, IMAGES_IN_HALVES, 8, &got, NULL);
    agree(&got, &want, tolerance, "float16 and float32");
    assert_int_equal(unsetenv("MLOPT_FP16"), 0);
    /* by its instructions, where they are, the same bits */
    if (strcmp(how, "emulate") == 0 && mlo_isa_current() >= MLO_ISA_AVX512_FP16) {
        assert_int_equal(setenv("MLOPT_FP16", "native", 1), 0);
        logits(f->half, "cpu", MLO_NUMERICS_FAST, IMAGES_IN_HALVES, 8, &other, NULL);
        assert_memory_equal(other.data, got.data, mlo_tensor_count(&got) * sizeof(float));
        mlo_tensor_clear(&other);
        assert_int_equal(unsetenv("MLOPT_FP16"), 0);
    }
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&got);
}

static void test_fashion__float16_in_fp16_decides_as_float32(void **state)
{
    decides_as_float32(*state, "emulate", HALF_TOLERANCE);
}

static void test_fashion__float16_in_fixed_point_decides_as_float32(void **state)
{
    decides_as_float32(*state, "fixed", FIXED_TOLERANCE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fashion__source_decides_as_reference),
        cmocka_unit_test(test_fashion__int8_decides_as_reference),
        cmocka_unit_test(test_fashion__accuracy_is_that_of_the_model),
        cmocka_unit_test(test_fashion__float16_in_fp16_decides_as_float32),
        cmocka_unit_test(test_fashion__float16_in_fixed_point_decides_as_float32),
    };
    if (!mlo_fs_exists(IMAGES)) {
        print_message("dataset-fashion-mnist is not installed\n");
        return 77;
    }
    if (isa_case_is_elsewhere())
        return ISA_CASE_SKIP;
    if (mlo_isa_current() < MLO_ISA_AVX2) {
        print_message("skipped: the cpu engine needs AVX2, this is %s\n", mlo_isa_name(mlo_isa_current()));
        return ISA_CASE_SKIP;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
