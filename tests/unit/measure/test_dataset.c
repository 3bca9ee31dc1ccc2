#include <math.h>

#include "tests/unit/measure/fixture.h"

enum { N = 6 };

/* IDX bytes: images [N,28,28] whose bytes count up, and labels 0…N-1. */
static void idx_pair(unsigned char images[16 + N * 784], unsigned char labels[8 + N])
{
    const unsigned char head[] = {0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, 28, 0, 0, 0, 28};
    const unsigned char label_head[] = {0, 0, 8, 1, 0, 0, 0, N};
    memcpy(images, head, sizeof head);
    for (int i = 0; i < N * 784; i++)
        images[16 + i] = (unsigned char)(i * 7 + i / 784);
    memcpy(labels, label_head, sizeof label_head);
    for (int i = 0; i < N; i++)
        labels[8 + i] = (unsigned char)i;
}

static struct mlo_model *image_model(int64_t classes)
{
    struct mlo_model *model = shell_model();
    shell_input(model, "image", MLO_FLOAT32, 4, DIMS(-1, 1, 28, 28));
    shell_output(model, "logits", MLO_FLOAT32, 2, DIMS(-1, classes));
    return model;
}

static void write_pair(void)
{
    unsigned char images[16 + N * 784], labels[8 + N];
    idx_pair(images, labels);
    write_gz("images.gz", images, sizeof images);
    write_gz("labels.gz", labels, sizeof labels);
    write_bytes("images.idx", images, sizeof images);
    write_bytes("labels.idx", labels, sizeof labels);
}

static void check_images(const char *path, const struct mlo_dataset_options *o, int64_t first, int64_t count,
                         float scale)
{
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_tensor in[1];
    struct mlo_model *model = image_model(10);
    assert_ok(mlo_dataset_open(path, o, &d, &err));
    assert_int_equal(mlo_dataset_count(d), count);
    assert_ok(mlo_dataset_check(d, model, &err));
    assert_ok(mlo_dataset_read(d, model, 0, count, in, &err));
    assert_int_equal(in[0].rank, 4);
    assert_int_equal(in[0].dims[1], 1);
    for (int64_t i = 0; i < count * 784; i++) {
        int64_t at = i + first * 784;
        assert_true(((float *)in[0].data)[i] == (float)(unsigned char)(at * 7 + at / 784) * scale);
    }
    for (int64_t i = 0; i < count && mlo_dataset_labels(d); i++)
        assert_int_equal(mlo_dataset_labels(d)[i], first + i);
    mlo_tensor_clear(&in[0]);
    mlo_dataset_close(d);
    mlo_model_free(model);
}

static void test_dataset__idx_pair_feeds_an_image_input(void **state)
{
    (void)state;
    char path[1200];
    struct mlo_dataset_options scaled = {.normalize = "scale=1/255"}, limited = {.limit = 2};
    write_pair();
    snprintf(path, sizeof path, "%s,%s", in_scratch("images.gz"), in_scratch("labels.gz"));
    check_images(path, NULL, 0, N, 1);
    check_images(path, &scaled, 0, N, (float)(1.0 / 255));
    check_images(path, &limited, 0, 2, 1);
    snprintf(path, sizeof path, "%s,%s", in_scratch("images.idx"), in_scratch("labels.idx"));
    check_images(path, NULL, 0, N, 1);
    check_images(in_scratch("images.gz"), NULL, 0, N, 1); /* without labels */
}

static void test_dataset__manifest_chooses_samples_and_normalises(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    write_pair();
    write_text("dataset.json",
               "{\"format\": \"idx\", \"files\": {\"images\": \"images.gz\", \"labels\": \"labels.gz\"},"
               " \"normalize\": {\"scale\": \"1/255\"}, \"input\": \"image\", \"first\": 2, \"count\": 3,"
               " \"classes\": [\"a\", \"b\"]}");
    check_images(in_scratch(""), NULL, 2, 3, (float)(1.0 / 255));
    check_images(in_scratch("dataset.json"), NULL, 2, 3, (float)(1.0 / 255));
    struct mlo_dataset_options o = {.normalize = "scale=1", .limit = 1};
    check_images(in_scratch("dataset.json"), &o, 2, 1, 1); /* the option wins over the manifest */
    assert_ok(mlo_dataset_open(in_scratch("dataset.json"), NULL, &d, &err));
    assert_int_equal(json_array_size(mlo_dataset_classes(d)), 2);
    mlo_dataset_close(d);
}

static void test_dataset__manifest_errors_are_precise(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum mlo_status status;
        const char *part;
    } cases[] = {
        {"{\"format\": \"npz\", \"files\": {\"data\": \"../x.npz\"}}", MLO_EINVAL, "inside the manifest"},
        {"{\"format\": \"npz\", \"files\": {\"data\": \"/etc/passwd\"}}", MLO_EINVAL, "inside the manifest"},
        {"{\"format\": \"npz\", \"files\": {\"data\": \"absent.npz\"}}", MLO_ENOTFOUND, "absent.npz"},
        {"{\"format\": \"csv\", \"files\": {}}", MLO_EINVAL, "'csv' is not known"},
        {"{\"format\": \"idx\", \"files\": {\"image\": \"images.gz\"}}", MLO_EINVAL, "did you mean 'images'"},
        {"{\"fromat\": \"idx\"}", MLO_EINVAL, "did you mean 'format'"},
        {"{\"format\": \"idx\", \"files\": {\"images\": \"images.gz\"}, \"count\": 7}", MLO_EINVAL,
         "there are 6"},
        {"{\"format\": \"idx\", \"files\": {\"images\": \"images.gz\"}, \"first\": -1}", MLO_EINVAL,
         "negative"},
        {"{\"format\": \"idx\", \"files\": {\"images\": \"images.gz\"}, \"normalize\": {\"scale\": \"1/0\"}}",
         MLO_EINVAL, "'1/0'"},
        {"{\"format\": \"idx\", \"files\": {\"images\": \"images.gz\"}, \"normalize\": {\"men\": 1}}",
         MLO_EINVAL, "'men'"},
    };
    write_pair();
    for (size_t c = 0; c < MLO_COUNT(cases); c++) {
        struct mlo_error err = {0};
        struct mlo_dataset *d = NULL;
        enum mlo_status status = mlo_dataset_open(write_text("bad.json", cases[c].text), NULL, &d, &err);
        if (status != cases[c].status)
            fail_msg("case %zu: status %d: %s", c, status, err.message);
        assert_contains(err.message, cases[c].part);
        assert_contains(err.where, "bad.json");
    }
}

static void test_dataset__idx_errors_are_precise(void **state)
{
    (void)state;
    unsigned char images[16 + N * 784], labels[8 + N];
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    idx_pair(images, labels);
    assert_int_equal(mlo_dataset_open(write_bytes("t.idx", images, sizeof images - 1), NULL, &d, &err),
                     MLO_EFORMAT);
    assert_contains(err.message, "truncated");
    images[2] = 0x0D;
    assert_int_equal(mlo_dataset_open(write_gz("f.gz", images, sizeof images), NULL, &d, &err),
                     MLO_EUNSUPPORTED);
    assert_contains(err.message, "float32");
    images[2] = 0x77;
    assert_int_equal(mlo_dataset_open(write_gz("f.gz", images, sizeof images), NULL, &d, &err), MLO_EFORMAT);
    assert_contains(err.message, "IDX");
    images[2] = 8;
    images[4] = 0x7f; /* two billion images in a few kilobytes */
    assert_int_equal(mlo_dataset_open(write_gz("f.gz", images, sizeof images), NULL, &d, &err), MLO_ETOOBIG);
    assert_int_equal(mlo_dataset_open(write_text("g.gz", "\x1f\x8b\x08"), NULL, &d, &err), MLO_EFORMAT);
    char path[1200];
    labels[7] = N - 1; /* one label fewer than images */
    write_pair();
    write_bytes("fewer.idx", labels, sizeof labels - 1);
    snprintf(path, sizeof path, "%s,%s", in_scratch("images.gz"), in_scratch("fewer.idx"));
    assert_int_equal(mlo_dataset_open(path, NULL, &d, &err), MLO_EFORMAT);
    assert_contains(err.message, "has 6 samples and 'y' has 5");
}

static void test_dataset__truncated_gz_fails_where_it_ends(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_buf whole = MLO_BUF_INIT;
    struct mlo_dataset *d = NULL;
    struct mlo_tensor in[1];
    struct mlo_model *model = image_model(10);
    write_pair();
    assert_ok(mlo_fs_read(in_scratch("images.gz"), 1 << 20, &whole, &err));
    assert_ok(mlo_dataset_open(write_bytes("cut.gz", whole.data, whole.len - 4), NULL, &d, &err));
    assert_int_equal(mlo_dataset_read(d, model, 0, N, in, &err), MLO_EFORMAT);
    assert_contains(err.message, "truncated");
    mlo_dataset_close(d);
    mlo_buf_clear(&whole);
    mlo_model_free(model);
}

static void test_dataset__labels_out_of_range_name_the_sample(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_model *model = image_model(4);
    char path[1200];
    write_pair();
    snprintf(path, sizeof path, "%s,%s", in_scratch("images.gz"), in_scratch("labels.gz"));
    assert_ok(mlo_dataset_open(path, NULL, &d, &err));
    assert_int_equal(mlo_dataset_check(d, model, &err), MLO_EINVAL);
    assert_contains(err.message, "label 4 of sample 4 is out of range");
    assert_contains(err.message, "4 classes");
    mlo_dataset_close(d);
    mlo_model_free(model);
}

static const char *write_arrays(const char *name, const struct mlo_npz_array *arrays, size_t count)
{
    struct mlo_error err = {0};
    const char *path = in_scratch(name);
    assert_ok(mlo_npz_write(path, arrays, count, &err));
    return path;
}

static void test_dataset__arrays_find_their_inputs(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_tensor a = make_tensor(MLO_FLOAT32, 2, DIMS(3, 2), VALUES(1, 2, 3, 4, 5, 6));
    struct mlo_tensor b = make_tensor(MLO_INT64, 1, DIMS(3), VALUES(7, 8, 9));
    const struct mlo_npz_array named[] = {{"left", &a}, {"right", &b}}, odd[] = {{"features", &a}, {"y", &b}};
    struct mlo_model *two = shell_model(), *one = shell_model();
    struct mlo_tensor in[2];
    shell_input(two, "right", MLO_INT32, 1, DIMS(-1));
    shell_input(two, "left", MLO_FLOAT32, 2, DIMS(-1, 2));
    shell_input(one, "anything", MLO_FLOAT32, 2, DIMS(-1, 2));

    const char *path = write_arrays("named.npz", named, 2);
    assert_ok(mlo_dataset_open(path, NULL, &d, &err));
    assert_ok(mlo_dataset_check(d, two, &err));
    assert_ok(mlo_dataset_read(d, two, 1, 2, in, &err));
    assert_int_equal(((int32_t *)in[0].data)[0], 8);
    assert_true(((float *)in[1].data)[3] == 6);
    mlo_tensor_clear(&in[0]);
    mlo_tensor_clear(&in[1]);
    /* two arrays and neither is x: it is not for us to choose */
    assert_int_equal(mlo_dataset_check(d, one, &err), MLO_EINVAL);
    assert_contains(err.message, "left float32[3,2], right int64[3]");
    assert_contains(err.hint, "--map anything=");
    mlo_dataset_close(d);

    static const char *const map[] = {"anything=left"}, *const wrong[] = {"nothing=left"},
                             *const bad[] = {"left"}, *const absent[] = {"anything=middle"};
    struct mlo_dataset_options o = {.map = map, .map_count = 1};
    assert_ok(mlo_dataset_open(path, &o, &d, &err));
    assert_ok(mlo_dataset_check(d, one, &err));
    mlo_dataset_close(d);
    o.map = wrong;
    assert_ok(mlo_dataset_open(path, &o, &d, &err));
    assert_int_equal(mlo_dataset_check(d, one, &err), MLO_EINVAL);
    assert_contains(err.message, "no input 'nothing'");
    mlo_dataset_close(d);
    o.map = bad;
    assert_int_equal(mlo_dataset_open(path, &o, &d, &err), MLO_EINVAL);
    assert_contains(err.message, "INPUT=ARRAY");
    o.map = absent;
    assert_int_equal(mlo_dataset_open(path, &o, &d, &err), MLO_ENOTFOUND);
    assert_contains(err.message, "middle");

    /* the only array that is neither y nor group */
    assert_ok(mlo_dataset_open(write_arrays("odd.npz", odd, 2), NULL, &d, &err));
    assert_ok(mlo_dataset_check(d, one, &err));
    mlo_dataset_close(d);
    mlo_tensor_clear(&a);
    mlo_tensor_clear(&b);
    mlo_model_free(one);
    mlo_model_free(two);
}

static enum mlo_status check_shape(enum mlo_dtype from, int rank, const int64_t *dims, enum mlo_dtype to,
                                   int in_rank, const int64_t *in_dims, struct mlo_error *err)
{
    struct mlo_dataset *d = NULL;
    struct mlo_tensor t = make_tensor(from, rank, dims, NULL);
    const struct mlo_npz_array arrays[] = {{"x", &t}};
    struct mlo_model *model = shell_model();
    shell_input(model, "image", to, in_rank, in_dims);
    assert_int_equal(mlo_dataset_open(write_arrays("shape.npz", arrays, 1), NULL, &d, err), MLO_OK);
    enum mlo_status status = mlo_dataset_check(d, model, err);
    mlo_dataset_close(d);
    mlo_tensor_clear(&t);
    mlo_model_free(model);
    return status;
}

static void test_dataset__shapes_and_types_must_fit(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    const enum mlo_dtype f = MLO_FLOAT32;
    assert_ok(check_shape(f, 3, DIMS(2, 4, 4), f, 4, DIMS(-1, 1, 4, 4), &err));
    assert_ok(check_shape(f, 4, DIMS(2, 4, 4, 1), f, 4, DIMS(-1, 1, 4, 4), &err));
    assert_ok(check_shape(f, 2, DIMS(2, 16), f, 4, DIMS(-1, 1, 4, 4), &err));
    assert_ok(check_shape(f, 3, DIMS(2, 4, 4), f, 2, DIMS(1, 16), &err));
    assert_ok(check_shape(f, 4, DIMS(2, 3, 8, 9), f, 4, DIMS(-1, 3, -1, -1), &err));
    assert_int_equal(check_shape(f, 4, DIMS(2, 4, 4, 3), f, 4, DIMS(-1, 3, 4, 4), &err), MLO_EINVAL);
    assert_contains(err.message, "[4,4,3]");
    assert_contains(err.message, "float32[batch,3,4,4]");
    assert_contains(err.hint, "transpose");
    assert_int_equal(check_shape(f, 2, DIMS(2, 15), f, 2, DIMS(-1, 16), &err), MLO_EINVAL);
    assert_int_equal(check_shape(f, 4, DIMS(2, 2, 8, 9), f, 4, DIMS(-1, 3, -1, -1), &err), MLO_EINVAL);
    assert_ok(check_shape(MLO_INT32, 2, DIMS(2, 3), MLO_INT64, 2, DIMS(-1, 3), &err));
    assert_int_equal(check_shape(f, 2, DIMS(2, 3), MLO_INT64, 2, DIMS(-1, 3), &err), MLO_EINVAL);
    assert_contains(err.message, "float32 cannot feed model input 'image' of int64");
    assert_contains(err.hint, "astype('int64')");
}

static void test_dataset__values_that_do_not_fit_name_the_sample(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_tensor in[1];
    struct mlo_tensor nan = make_tensor(MLO_FLOAT32, 2, DIMS(3, 2), VALUES(1, 2, 3, NAN, 5, INFINITY));
    struct mlo_tensor big = make_tensor(MLO_INT64, 2, DIMS(3, 2), VALUES(1, 2, 3, 4, 5e9, 6));
    const struct mlo_npz_array floats[] = {{"x", &nan}}, integers[] = {{"x", &big}};
    struct mlo_model *model = shell_model(), *narrow = shell_model();
    shell_input(model, "in", MLO_FLOAT32, 2, DIMS(-1, 2));
    shell_input(narrow, "in", MLO_INT32, 2, DIMS(-1, 2));
    assert_ok(mlo_dataset_open(write_arrays("nan.npz", floats, 1), NULL, &d, &err));
    assert_int_equal(mlo_dataset_read(d, model, 0, 3, in, &err), MLO_EINVAL);
    assert_contains(err.message, "sample 1 of array 'x' holds NaN at element 1");
    assert_ok(mlo_dataset_read(d, model, 2, 1, in, &err)); /* infinity is a value */
    mlo_tensor_clear(&in[0]);
    mlo_dataset_close(d);
    assert_ok(mlo_dataset_open(write_arrays("big.npz", integers, 1), NULL, &d, &err));
    assert_int_equal(mlo_dataset_read(d, narrow, 0, 3, in, &err), MLO_EINVAL);
    assert_contains(err.message, "sample 2 of array 'x' holds 5000000000, which int32 cannot");
    mlo_dataset_close(d);
    mlo_tensor_clear(&nan);
    mlo_tensor_clear(&big);
    mlo_model_free(model);
    mlo_model_free(narrow);
}

static void test_dataset__y_may_be_what_no_class_number_is(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_tensor x = make_tensor(MLO_FLOAT32, 2, DIMS(3, 2), NULL), target = {0};
    struct mlo_tensor y = make_tensor(MLO_FLOAT32, 1, DIMS(3), VALUES(0.5, 1.5, 2.5)),
                      hot = make_tensor(MLO_INT32, 2, DIMS(3, 10), NULL);
    const struct mlo_npz_array floats[] = {{"x", &x}, {"y", &y}}, onehot[] = {{"x", &x}, {"y", &hot}},
                               grouped[] = {{"x", &x}, {"group", &y}};
    assert_ok(mlo_dataset_open(write_arrays("y.npz", floats, 2), NULL, &d, &err));
    assert_null(mlo_dataset_labels(d));
    assert_ok(mlo_dataset_target(d, &target, &err));
    assert_int_equal(target.rank, 1);
    assert_true(((float *)target.data)[2] == 2.5f);
    mlo_tensor_clear(&target);
    mlo_dataset_close(d);
    const struct mlo_dataset_options two = {.limit = 2};
    assert_ok(mlo_dataset_open(write_arrays("y.npz", onehot, 2), &two, &d, &err));
    assert_null(mlo_dataset_labels(d));
    assert_ok(mlo_dataset_target(d, &target, &err));
    assert_true(target.rank == 2 && target.dims[0] == 2 && target.dims[1] == 10);
    mlo_tensor_clear(&target);
    mlo_dataset_close(d);
    assert_int_equal(mlo_dataset_open(write_arrays("y.npz", grouped, 2), NULL, &d, &err), MLO_EINVAL);
    assert_contains(err.message, "array 'group' must be integers");
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&hot);
}

static void test_dataset__normalisation_is_exact_per_channel(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_tensor in[1];
    double bytes[12];
    for (int i = 0; i < 12; i++)
        bytes[i] = i * 23;
    struct mlo_tensor x = make_tensor(MLO_UINT8, 4, DIMS(1, 3, 2, 2), bytes);
    const struct mlo_npz_array arrays[] = {{"x", &x}};
    struct mlo_model *model = shell_model(), *raw = shell_model();
    shell_input(model, "in", MLO_FLOAT32, 4, DIMS(-1, 3, 2, 2));
    shell_input(raw, "in", MLO_UINT8, 4, DIMS(-1, 3, 2, 2));
    struct mlo_dataset_options o = {.normalize = "scale=1/255,mean=0.49:0.48:0.45,std=0.25:0.24:0.26"};
    const char *path = write_arrays("image.npz", arrays, 1);
    assert_ok(mlo_dataset_open(path, &o, &d, &err));
    assert_ok(mlo_dataset_check(d, model, &err));
    assert_ok(mlo_dataset_read(d, model, 0, 1, in, &err));
    static const float mean[] = {0.49f, 0.48f, 0.45f}, std[] = {0.25f, 0.24f, 0.26f};
    for (int i = 0; i < 12; i++) {
        volatile float scaled = (float)bytes[i] * (float)(1.0 / 255), centred = scaled - mean[i / 4];
        assert_true(((float *)in[0].data)[i] == centred / std[i / 4]);
    }
    mlo_tensor_clear(&in[0]);
    assert_int_equal(mlo_dataset_check(d, raw, &err), MLO_EINVAL); /* asked for, and it would do nothing */
    assert_contains(err.message, "no uint8 array feeds a float input");
    mlo_dataset_close(d);
    o.normalize = "mean=1:2";
    assert_ok(mlo_dataset_open(path, &o, &d, &err));
    assert_int_equal(mlo_dataset_check(d, model, &err), MLO_EINVAL);
    assert_contains(err.message, "2 channels");
    mlo_dataset_close(d);
    assert_ok(mlo_dataset_open(path, NULL, &d, &err));
    assert_ok(mlo_dataset_read(d, raw, 0, 1, in, &err)); /* bytes for a model of bytes stay as they are */
    assert_memory_equal(in[0].data, x.data, 12);
    mlo_tensor_clear(&in[0]);
    mlo_dataset_close(d);
    mlo_tensor_clear(&x);
    mlo_model_free(model);
    mlo_model_free(raw);
}

static void test_dataset__sample_digest_knows_a_sample_again(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *idx = NULL, *npz = NULL;
    unsigned char images[16 + N * 784], labels[8 + N];
    struct mlo_digest a, b, c;
    write_pair();
    idx_pair(images, labels);
    struct mlo_tensor x = {
        .dtype = MLO_UINT8, .rank = 4, .dims = {N, 1, 28, 28}, .data = images + 16, .size_bytes = N * 784};
    struct mlo_tensor y = make_tensor(MLO_INT64, 1, DIMS(N), NULL);
    const struct mlo_npz_array arrays[] = {{"pictures", &x}, {"y", &y}};
    assert_ok(mlo_dataset_open(in_scratch("images.gz"), NULL, &idx, &err));
    assert_ok(mlo_dataset_open(write_arrays("d.npz", arrays, 2), NULL, &npz, &err));
    for (int i = N - 1; i >= 0; i--) {
        assert_ok(mlo_dataset_sample_digest(idx, i, &a, &err));
        assert_ok(mlo_dataset_sample_digest(npz, i, &b, &err));
        assert_true(mlo_digest_eq(&a, &b));
        assert_ok(mlo_dataset_sample_digest(npz, (i + 1) % N, &c, &err));
        assert_false(mlo_digest_eq(&a, &c));
    }
    assert_int_equal(mlo_dataset_sample_digest(npz, N, &a, &err), MLO_EINVAL);
    mlo_dataset_close(idx);
    mlo_dataset_close(npz);
    mlo_tensor_clear(&y);
}

static void test_dataset__fashion_mnist_of_this_machine(void **state)
{
    (void)state;
#define FASHION "/usr/share/datasets/fashion-mnist/"
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_tensor in[1];
    struct mlo_dataset_options o = {.normalize = "scale=1/255"};
    int64_t counts[10] = {0};
    if (!mlo_fs_exists(FASHION "t10k-images-idx3-ubyte.gz"))
        skip();
    struct mlo_model *model = image_model(10);
    assert_ok(mlo_dataset_open(FASHION "t10k-images-idx3-ubyte.gz," FASHION "t10k-labels-idx1-ubyte.gz", &o,
                               &d, &err));
    assert_int_equal(mlo_dataset_count(d), 10000);
    assert_ok(mlo_dataset_check(d, model, &err));
    for (int i = 0; i < 10000; i++)
        counts[mlo_dataset_labels(d)[i]]++;
    for (int c = 0; c < 10; c++)
        assert_int_equal(counts[c], 1000);
    assert_ok(mlo_dataset_read(d, model, 9990, 10, in, &err)); /* up to the end: the checksum is compared */
    double sum = 0;
    for (size_t i = 0; i < mlo_tensor_count(&in[0]); i++)
        sum += ((float *)in[0].data)[i];
    assert_true(sum / 7840 > 0.1 && sum / 7840 < 0.5);
    mlo_tensor_clear(&in[0]);
    mlo_dataset_close(d);
    mlo_model_free(model);
}

static void test_normalize__parses_fractions_and_lists(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_normalize n;
    assert_ok(mlo_normalize_parse("scale=1/255,mean=0.49:0.48:0.45,std=0.25", &n, &err));
    assert_true(n.scale == 1.0 / 255);
    assert_int_equal(n.mean_count, 3);
    assert_int_equal(n.std_count, 1);
    assert_true(n.mean[2] == 0.45 && n.std[0] == 0.25);
    assert_ok(mlo_normalize_parse("mean=-1/2", &n, &err));
    assert_true(n.scale == 1 && n.mean[0] == -0.5 && n.std_count == 0);
}

static void test_normalize__errors_show_the_form(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "unknown field"},
        {"scale", "no value"},
        {"scal=1", "did you mean 'scale'"},
        {"scale=", "''"},
        {"scale=1/0", "'1/0'"},
        {"scale=0", "other than 0"},
        {"scale=nan", "'nan'"},
        {"scale=1,scale=2", "twice"},
        {"mean=1:x:2", "'x'"},
        {"mean=1:2,std=1:2:3", "has 3"},
        {"std=0.5:0", "above 0"},
        {"std=-1", "above 0"},
        {"scale=1e300", "finite"},
        {"scale=1,", "unknown field"},
        {"mean=1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1", "more than 16"},
    };
    for (size_t c = 0; c < MLO_COUNT(cases); c++) {
        struct mlo_error err = {0};
        struct mlo_normalize n;
        assert_int_equal(mlo_normalize_parse(cases[c].text, &n, &err), MLO_EINVAL);
        assert_contains(err.message, cases[c].part);
        assert_contains(err.where, "normalize");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dataset__idx_pair_feeds_an_image_input),
        cmocka_unit_test(test_dataset__manifest_chooses_samples_and_normalises),
        cmocka_unit_test(test_dataset__manifest_errors_are_precise),
        cmocka_unit_test(test_dataset__idx_errors_are_precise),
        cmocka_unit_test(test_dataset__truncated_gz_fails_where_it_ends),
        cmocka_unit_test(test_dataset__labels_out_of_range_name_the_sample),
        cmocka_unit_test(test_dataset__arrays_find_their_inputs),
        cmocka_unit_test(test_dataset__shapes_and_types_must_fit),
        cmocka_unit_test(test_dataset__values_that_do_not_fit_name_the_sample),
        cmocka_unit_test(test_dataset__y_may_be_what_no_class_number_is),
        cmocka_unit_test(test_dataset__normalisation_is_exact_per_channel),
        cmocka_unit_test(test_dataset__sample_digest_knows_a_sample_again),
        cmocka_unit_test(test_dataset__fashion_mnist_of_this_machine),
        cmocka_unit_test(test_normalize__parses_fractions_and_lists),
        cmocka_unit_test(test_normalize__errors_show_the_form),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
