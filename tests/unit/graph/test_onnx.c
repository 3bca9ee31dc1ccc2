/* ONNX in and out, with files that are good, broken, hostile and foreign. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "graph/onnx_impl.h"

#define DATA "/usr/share/libonnx-testdata/data"

static const char *const models[] = {
    DATA "/simple/test_single_relu_model/model.onnx",
    DATA "/node/test_conv_with_strides_padding/model.onnx",
    DATA "/node/test_if/model.onnx",
    DATA "/node/test_loop11/model.onnx",
    DATA "/node/test_qlinearconv/model.onnx",
    DATA "/pytorch-converted/test_Conv2d_groups/model.onnx",
    DATA "/node/test_constant/model.onnx",
};

static struct mlo_buf dump(const struct mlo_model *model)
{
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_graph_dump(model->graph, &text);
    return text;
}

static bool round_trip(const char *path) /* false: it has what this program does not read */
{
    struct mlo_model *first = NULL, *second = NULL, *copy = NULL;
    struct mlo_error err = {0};
    struct mlo_buf a = MLO_BUF_INIT, b = MLO_BUF_INIT, c = MLO_BUF_INIT;
    enum mlo_status status = mlo_onnx_load(path, &first, &err);
    if (status == MLO_EUNSUPPORTED)
        return false;
    if (status != MLO_OK)
        fail_msg("%s: %s (%s)", path, err.message, err.where);
    assert_int_equal(mlo_onnx_serialize(first, &a, &err), MLO_OK);
    assert_int_equal(mlo_onnx_parse(a.data, a.len, "copy", &second, &err), MLO_OK);
    assert_int_equal(mlo_model_clone(second, &copy, &err), MLO_OK);
    struct mlo_buf before = dump(first), after = dump(second);
    assert_string_equal(mlo_buf_str(&before), mlo_buf_str(&after));
    assert_string_equal(first->producer_name, second->producer_name);
    assert_int_equal(first->model_version, second->model_version);
    assert_int_equal(mlo_onnx_serialize(second, &b, &err), MLO_OK);
    assert_int_equal(mlo_onnx_serialize(copy, &c, &err), MLO_OK);
    assert_true(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
    assert_true(a.len == c.len && memcmp(a.data, c.data, a.len) == 0);
    mlo_buf_clear(&a);
    mlo_buf_clear(&b);
    mlo_buf_clear(&c);
    mlo_buf_clear(&before);
    mlo_buf_clear(&after);
    mlo_model_free(first);
    mlo_model_free(second);
    mlo_model_free(copy);
    return true;
}

static void test_onnx__round_trip(void **state)
{
    MLO_UNUSED(state);
    if (!mlo_fs_exists(DATA))
        skip();
    for (size_t i = 0; i < MLO_COUNT(models); i++)
        assert_true(round_trip(models[i]));
    int trips = 0;
    static const char *const folders[] = {DATA "/pytorch-converted", DATA "/pytorch-operator",
                                          DATA "/simple"};
    for (size_t f = 0; f < MLO_COUNT(folders); f++) {
        DIR *dir = opendir(folders[f]);
        for (struct dirent *e; dir && (e = readdir(dir));) {
            char path[600];
            snprintf(path, sizeof path, "%s/%s/model.onnx", folders[f], e->d_name);
            if (e->d_name[0] != '.' && mlo_fs_exists(path))
                trips += round_trip(path);
        }
        if (dir)
            closedir(dir);
    }
    assert_true(trips > 50);
}

/* A model with an initializer, an attribute, metadata and texts, as bytes. */
static struct mlo_buf sample(void)
{
    struct mlo_model *m;
    struct mlo_error err = {0};
    struct mlo_buf out = MLO_BUF_INIT;
    struct mlo_type type = {MLO_FLOAT32, 2, {{-1, "n"}, {3, NULL}}};
    static struct mlo_meta meta[] = {{"author", "somebody"}};
    assert_int_equal(mlo_model_new(13, &m, &err), MLO_OK);
    m->producer_name = "tests";
    m->doc = "a sample";
    m->metadata = meta;
    m->metadata_count = 1;
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type),
                     *y = mlo_graph_add_value(m->graph, "y", NULL);
    struct mlo_tensor w;
    int64_t dims[2] = {2, 3};
    assert_int_equal(mlo_tensor_init(&w, MLO_FLOAT32, 2, dims, &err), MLO_OK);
    struct mlo_value *in[] = {x, mlo_graph_add_constant_take(m->graph, "w", &w)};
    struct mlo_node *gemm = mlo_graph_add_node(m->graph, NULL, "", "Gemm", "fc", in, 2, &y, 1);
    assert_true(mlo_node_set_i(gemm, "transB", 1));
    assert_int_equal(mlo_graph_add_input(m->graph, x, &err), MLO_OK);
    assert_int_equal(mlo_graph_add_output(m->graph, y, &err), MLO_OK);
    assert_int_equal(mlo_graph_infer(m->graph, &err), MLO_OK);
    assert_int_equal(mlo_onnx_serialize(m, &out, &err), MLO_OK);
    mlo_model_free(m);
    return out;
}

static void test_onnx__keeps_texts_and_metadata(void **state)
{
    MLO_UNUSED(state);
    struct mlo_buf bytes = sample();
    struct mlo_model *m;
    struct mlo_error err = {0};
    assert_int_equal(mlo_onnx_parse(bytes.data, bytes.len, "sample", &m, &err), MLO_OK);
    assert_string_equal(m->producer_name, "tests");
    assert_string_equal(m->doc, "a sample");
    assert_int_equal(m->metadata_count, 1);
    assert_string_equal(m->metadata[0].value, "somebody");
    assert_int_equal(mlo_model_opset(m, ""), 13);
    assert_string_equal(m->graph->outputs[0]->type.dims[0].name, "n");
    mlo_model_free(m);
    mlo_buf_clear(&bytes);
}

static void test_onnx__every_prefix_is_refused_or_whole(void **state)
{
    MLO_UNUSED(state);
    struct mlo_buf bytes = sample();
    int accepted = 0;
    for (size_t n = 0; n < bytes.len; n++) {
        struct mlo_model *m = NULL;
        struct mlo_error err = {0};
        char *exact = malloc(n + 1); /* so that reading past the end is seen */
        memcpy(exact, bytes.data, n);
        enum mlo_status status = mlo_onnx_parse(exact, n, "cut.onnx", &m, &err);
        free(exact);
        if (status == MLO_OK) {
            accepted++;
        } else {
            assert_int_equal(status, MLO_EFORMAT);
            assert_true(err.message[0] && err.where[0] && err.hint[0]);
        }
        mlo_model_free(m);
    }
    /* the cut between the opset and the metadata alone leaves a whole model */
    assert_true(accepted <= 2);
    mlo_buf_clear(&bytes);
}

static void test_onnx__bit_flips_do_no_harm(void **state)
{
    MLO_UNUSED(state);
    struct mlo_buf bytes = sample();
    for (size_t bit = 0; bit < bytes.len * 8; bit++) {
        struct mlo_model *m = NULL;
        struct mlo_error err = {0};
        bytes.data[bit / 8] ^= (char)(1 << bit % 8);
        if (mlo_onnx_parse(bytes.data, bytes.len, "flipped", &m, &err) == MLO_OK)
            assert_int_equal(mlo_graph_verify(m->graph, &err), MLO_OK);
        else
            assert_true(err.message[0] != '\0');
        mlo_model_free(m);
        bytes.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    mlo_buf_clear(&bytes);
}

static void test_onnx__random_bytes_are_refused(void **state)
{
    MLO_UNUSED(state);
    uint32_t seed = 7;
    for (int round = 0; round < 500; round++) {
        char bytes[512];
        struct mlo_model *m = NULL;
        struct mlo_error err = {0};
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (char)((seed = seed * 1664525u + 1013904223u) >> 24);
        assert_int_not_equal(mlo_onnx_parse(bytes, sizeof bytes, "noise", &m, &err), MLO_OK);
        mlo_model_free(m);
    }
}

/* field `number`, wire type bytes, around what is in the buffer */
static void wrap(struct mlo_buf *buf, unsigned number)
{
    struct mlo_buf out = MLO_BUF_INIT;
    mlo_buf_putc(&out, (char)(number << 3 | 2));
    for (size_t n = buf->len;; n >>= 7) {
        mlo_buf_putc(&out, (char)((n & 0x7f) | (n > 0x7f ? 0x80 : 0)));
        if (n <= 0x7f)
            break;
    }
    mlo_buf_append(&out, buf->data, buf->len);
    mlo_buf_clear(buf);
    *buf = out;
}

static void test_onnx__deep_nesting_is_refused(void **state)
{
    MLO_UNUSED(state);
    struct mlo_buf bytes = MLO_BUF_INIT;
    struct mlo_model *m = NULL;
    struct mlo_error err = {0};
    for (int depth = 0; depth < 2000; depth++) { /* graph.node.attribute.g.node.attribute.g … */
        wrap(&bytes, 6);
        wrap(&bytes, 5);
        wrap(&bytes, 1);
    }
    wrap(&bytes, 7);
    assert_int_equal(mlo_onnx_parse(bytes.data, bytes.len, "deep", &m, &err), MLO_EFORMAT);
    assert_non_null(strstr(err.message, "nested too deeply"));
    mlo_buf_clear(&bytes);
}

static void test_onnx__expansion_is_refused(void **state)
{
    MLO_UNUSED(state);
    struct mlo_buf bytes = MLO_BUF_INIT;
    struct mlo_model *m = NULL;
    struct mlo_error err = {0};
    for (int i = 0; i < 1000000; i++) /* a million empty nodes in two megabytes */
        mlo_buf_append(&bytes, "\x0a\x00", 2);
    wrap(&bytes, 7);
    assert_int_equal(mlo_onnx_parse(bytes.data, bytes.len, "bomb", &m, &err), MLO_ETOOBIG);
    mlo_buf_clear(&bytes);
}

static void test_onnx__foreign_formats_are_named(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *name, *bytes;
        size_t size;
        const char *what, *hint;
    } cases[] = {
        {"m.pt", "PK\3\4........archive/data.pklxxxxxxxxxxxx", 40, "PyTorch", "torch.onnx.export(m"},
        {"m.pth", "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9", 9, "PyTorch", "torch.load('m.pth'"},
        {"m.pt2", "PK\3\4........serialized_exported_program.json", 45, ".pt2", "torch.export.load('m.pt2')"},
        {"m.safetensors", "\x10\0\0\0\0\0\0\0{\"w\":{}}", 16, "safetensors", "torch.onnx.export"},
        {"m.h5", "\x89HDF\r\n\x1a\n....", 12, "HDF5", "keras"},
        {"saved_model.pb", "\x08\x01\x12\x20saved_model_main_op", 20, "SavedModel", "tf2onnx"},
        {"p", "version https://git-lfs.github.com/spec/v1", 42, "Git LFS", "git lfs pull"},
    };
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_model *m = NULL;
        struct mlo_error err = {0};
        assert_int_equal(mlo_onnx_parse(cases[i].bytes, cases[i].size, cases[i].name, &m, &err), MLO_EFORMAT);
        if (!strstr(err.message, cases[i].what) || !strstr(err.hint, cases[i].hint))
            fail_msg("%s: %s | %s", cases[i].name, err.message, err.hint);
    }
}

static void test_onnx__missing_and_empty_files(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = NULL;
    struct mlo_error err = {0};
    assert_int_equal(mlo_onnx_load("/nonexistent/model.onnx", &m, &err), MLO_ENOTFOUND);
    char *dir;
    assert_int_equal(mlo_fs_tempdir(NULL, "onnx", &dir, &err), MLO_OK);
    char *path = mlo_fs_join(dir, "empty.onnx", NULL);
    assert_int_equal(mlo_fs_write_atomic(path, "", 0, &err), MLO_OK);
    assert_int_equal(mlo_onnx_load(path, &m, &err), MLO_EFORMAT);
    mlo_fs_remove_tree(dir);
    free(path);
    free(dir);
    assert_non_null(strstr(err.message, "empty"));
    assert_int_equal(mlo_onnx_parse("\x08\x07", 2, "header", &m, &err), MLO_EFORMAT);
    assert_non_null(strstr(err.message, "no graph"));
    assert_int_equal(mlo_onnx_load("/tmp", &m, &err), MLO_EFORMAT);
}

/* A model whose one initializer, four floats, lies in another file. */
static enum mlo_status load_external(const char *dir, const char *location, const char *offset,
                                     struct mlo_model **m, struct mlo_error *err)
{
    Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;
    Onnx__GraphProto graph = ONNX__GRAPH_PROTO__INIT;
    Onnx__TensorProto tensor = ONNX__TENSOR_PROTO__INIT, *tensors[] = {&tensor};
    Onnx__ValueInfoProto output = ONNX__VALUE_INFO_PROTO__INIT, *outputs[] = {&output};
    Onnx__OperatorSetIdProto opset = ONNX__OPERATOR_SET_ID_PROTO__INIT, *opsets[] = {&opset};
    Onnx__StringStringEntryProto where = ONNX__STRING_STRING_ENTRY_PROTO__INIT, at = where,
                                 *entries[] = {&where, &at};
    int64_t dims[] = {4};
    uint8_t bytes[512];
    where.key = "location";
    where.value = (char *)location;
    at.key = "offset";
    at.value = (char *)offset;
    tensor.name = output.name = "w";
    tensor.dims = dims;
    tensor.n_dims = tensor.has_data_type = tensor.data_type = tensor.has_data_location =
        tensor.data_location = 1;
    tensor.external_data = entries;
    tensor.n_external_data = 2;
    graph.initializer = tensors;
    graph.output = outputs;
    graph.n_initializer = graph.n_output = 1;
    opset.has_version = 1;
    opset.version = 13;
    model.graph = &graph;
    model.opset_import = opsets;
    model.n_opset_import = 1;
    size_t size = onnx__model_proto__pack(&model, bytes);
    char *path = mlo_fs_join(dir, "m.onnx", NULL);
    assert_int_equal(mlo_fs_write_atomic(path, bytes, size, err), MLO_OK);
    enum mlo_status status = mlo_onnx_load(path, m, err);
    free(path);
    return status;
}

static void test_onnx__external_data_stays_in_the_folder(void **state)
{
    MLO_UNUSED(state);
    static const float values[] = {0, 1, 2, 3, 4, 5};
    static const struct {
        const char *location, *offset, *message;
    } refused[] = {
        {"/etc/passwd", "0", "must be relative"},
        {"../w.bin", "0", "outside"},
        {"w.bin", "12", "has 24 bytes"},
        {"w.bin", "-4", "bad offset"},
        {"none.bin", "0", "none.bin"},
        {"link.bin", "0", "outside"},
    };
    char *dir, *inner, *path;
    struct mlo_model *m = NULL;
    struct mlo_error err = {0};
    assert_int_equal(mlo_fs_tempdir(NULL, "onnx", &dir, &err), MLO_OK);
    inner = mlo_fs_join(dir, "inner", NULL);
    assert_int_equal(mlo_fs_mkdirs(inner, &err), MLO_OK);
    for (int i = 0; i < 2; i++) { /* one inside and one outside of the model's folder */
        path = mlo_fs_join(i ? dir : inner, "w.bin", NULL);
        assert_int_equal(mlo_fs_write_atomic(path, values, sizeof values, &err), MLO_OK);
        free(path);
    }
    path = mlo_fs_join(inner, "link.bin", NULL);
    assert_int_equal(symlink("../w.bin", path), 0);
    free(path);
    assert_int_equal(load_external(inner, "w.bin", "8", &m, &err), MLO_OK);
    assert_true(mlo_tensor_get_f64(m->graph->outputs[0]->constant, 0) == 2);
    mlo_model_free(m);
    for (size_t i = 0; i < MLO_COUNT(refused); i++) {
        err = (struct mlo_error){0};
        assert_int_not_equal(load_external(inner, refused[i].location, refused[i].offset, &m, &err), MLO_OK);
        if (!strstr(err.message, refused[i].message))
            fail_msg("%s: %s", refused[i].location, err.message);
    }
    mlo_fs_remove_tree(dir);
    free(dir);
    free(inner);
}

/* A large file is mapped where the offset allows, and read where it does not; a clone keeps the mapping. */
static void test_onnx__external_data_is_mapped(void **state)
{
    MLO_UNUSED(state);
    enum { COUNT = 1 << 19 };
    char *dir, *path;
    struct mlo_error err = {0};
    struct mlo_model *m = NULL, *copy = NULL;
    float *values = calloc(COUNT, sizeof *values);
    assert_non_null(values);
    values[2] = 7;
    values[COUNT - 1] = 8;
    assert_int_equal(mlo_fs_tempdir(NULL, "onnx", &dir, &err), MLO_OK);
    path = mlo_fs_join(dir, "w.bin", NULL);
    assert_int_equal(mlo_fs_write_atomic(path, values, COUNT * sizeof *values, &err), MLO_OK);
    assert_int_equal(load_external(dir, "w.bin", "8", &m, &err), MLO_OK);
    const struct mlo_tensor *w = m->graph->outputs[0]->constant;
    assert_false(w->owned);
    assert_true(mlo_tensor_get_f64(w, 0) == 7);
    assert_int_equal(mlo_model_clone(m, &copy, &err), MLO_OK);
    mlo_model_free(m);
    assert_false(copy->graph->outputs[0]->constant->owned);
    assert_true(mlo_tensor_get_f64(copy->graph->outputs[0]->constant, 0) == 7);
    mlo_model_free(copy);
    assert_int_equal(load_external(dir, "w.bin", "7", &m, &err), MLO_OK);
    assert_true(m->graph->outputs[0]->constant->owned);
    mlo_model_free(m);
    assert_int_equal(load_external(dir, "w.bin", "2097152", &m, &err), MLO_EFORMAT);
    mlo_fs_remove_tree(dir);
    free(values);
    free(path);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_onnx__round_trip),
        cmocka_unit_test(test_onnx__keeps_texts_and_metadata),
        cmocka_unit_test(test_onnx__every_prefix_is_refused_or_whole),
        cmocka_unit_test(test_onnx__bit_flips_do_no_harm),
        cmocka_unit_test(test_onnx__random_bytes_are_refused),
        cmocka_unit_test(test_onnx__deep_nesting_is_refused),
        cmocka_unit_test(test_onnx__expansion_is_refused),
        cmocka_unit_test(test_onnx__foreign_formats_are_named),
        cmocka_unit_test(test_onnx__missing_and_empty_files),
        cmocka_unit_test(test_onnx__external_data_stays_in_the_folder),
        cmocka_unit_test(test_onnx__external_data_is_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
