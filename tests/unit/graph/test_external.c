/* Weights in a second file, and what a round trip must not lose. */
#include "../../cm.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "graph/graph.h"
#include "graph/onnx_impl.h"

struct place {
    char *folder, *path;
};

static struct place place(void)
{
    struct mlo_error err = {0};
    struct place p;
    assert_ok(mlo_fs_tempdir(NULL, "mlopt-external", &p.folder, &err));
    p.path = mlo_fs_join(p.folder, "m.onnx", NULL);
    return p;
}

static void leave(struct place *p)
{
    mlo_fs_remove_tree(p->folder);
    free(p->folder);
    free(p->path);
}

/* x + a + b + c, where the constants have `sizes` elements each and begin with `first`. */
static struct mlo_model *sums(const int64_t *sizes, int count, float first)
{
    struct mlo_error err = {0};
    struct mlo_model *m = NULL;
    struct mlo_type type = {MLO_FLOAT32, 1, {{1, NULL}}};
    assert_ok(mlo_model_new(13, &m, &err));
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type);
    assert_ok(mlo_graph_add_input(m->graph, x, &err));
    for (int i = 0; i < count; i++) {
        struct mlo_tensor t;
        assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, 1, &sizes[i], &err));
        for (int64_t k = 0; k<sizes[i]; k += sizes[i]> 1 << 20 ? 99991 : 1)
            ((float *)t.data)[k] = first + (float)(k % 1000);
        struct mlo_value *w = mlo_graph_add_constant_take(m->graph, "w", &t);
        struct mlo_value *y = mlo_graph_add_value(m->graph, "y", NULL);
        assert_non_null(
            mlo_graph_add_node(m->graph, NULL, "", "Concat", "c", (struct mlo_value *[]){x, w}, 2, &y, 1));
        assert_true(mlo_node_set_i(y->producer, "axis", 0));
        x = y;
    }
    assert_ok(mlo_graph_add_output(m->graph, x, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    return m;
}

static void assert_same(const struct mlo_model *a, const struct mlo_model *b)
{
    struct mlo_buf x = MLO_BUF_INIT, y = MLO_BUF_INIT;
    assert_int_equal(mlo_onnx_serialize(a, &x, NULL), MLO_OK);
    assert_int_equal(mlo_onnx_serialize(b, &y, NULL), MLO_OK);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    mlo_buf_clear(&x);
    mlo_buf_clear(&y);
}

/* How many files lie there, and the name of one that is not m.onnx. */
static int files(const struct place *p, char name[256])
{
    int count = 0;
    DIR *dir = opendir(p->folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        count++;
        if (strcmp(e->d_name, "m.onnx") != 0)
            snprintf(name, 256, "%s", e->d_name);
    }
    closedir(dir);
    return count;
}

static void test_external__weights_go_to_a_file_beside(void **state)
{
    MLO_UNUSED(state);
    static const int64_t sizes[] = {1500, 3, 4096, 700};
    struct mlo_error err = {0};
    struct place p = place();
    struct mlo_model *m = sums(sizes, 4, 1), *back = NULL, *other = sums(sizes, 4, 2);
    const struct mlo_onnx_save_options options = {.external = true};
    char first[256] = "", second[256] = "";
    assert_ok(mlo_onnx_save_with(m, p.path, &options, &err));
    assert_int_equal(files(&p, first), 2);
    assert_true(strncmp(first, "m.onnx-", 7) == 0 && mlo_str_ends(first, ".data"));
    char *data = mlo_fs_join(p.folder, first, NULL);
    /* 6,000 bytes take two pages, 16,384 four, 2,800 stand at the end; 12 bytes stay in the model */
    assert_int_equal(mlo_fs_size(data), 6 * 4096 + 2800);
    assert_true(mlo_fs_size(p.path) < 1500);
    assert_ok(mlo_onnx_load(p.path, &back, &err));
    assert_same(m, back);
    mlo_model_free(back);
    /* again: the same names; other weights: another data file, and the old one can still be read by who has
     * it */
    assert_ok(mlo_onnx_save_with(m, p.path, &options, &err));
    assert_int_equal(files(&p, second), 2);
    assert_ok(mlo_onnx_save_with(other, p.path, &options, &err));
    assert_int_equal(files(&p, second), 3);
    assert_ok(mlo_onnx_load(p.path, &back, &err));
    assert_same(other, back);
    mlo_model_free(back);
    /* without its data a model is refused with what to do */
    assert_ok(mlo_onnx_save_with(m, p.path, &options, &err));
    remove(data);
    assert_int_equal(mlo_onnx_load(p.path, &back, &err), MLO_ENOTFOUND);
    assert_contains(err.message, first);
    /* where the model itself cannot be written, no data stays behind */
    char *taken = mlo_fs_join(p.folder, "taken", "x", NULL), *folder = mlo_fs_join(p.folder, "taken", NULL);
    int before = files(&p, second);
    assert_ok(mlo_fs_mkdirs(taken, &err));
    assert_int_not_equal(mlo_onnx_save_with(m, folder, &options, &err), MLO_OK);
    assert_int_equal(files(&p, second), before + 1);
    free(taken);
    free(folder);
    mlo_model_free(m);
    mlo_model_free(other);
    free(data);
    leave(&p);
}

static void test_external__only_where_one_file_is_too_small(void **state)
{
    MLO_UNUSED(state);
    static const int64_t sizes[] = {1000, 1000};
    struct mlo_error err = {0};
    struct place p = place();
    struct mlo_model *m = sums(sizes, 2, 1), *back = NULL;
    struct mlo_onnx_save_options options = {.limit_bytes = 8000};
    char name[256];
    assert_ok(mlo_onnx_save_with(m, p.path, &options, &err));
    assert_int_equal(files(&p, name), 1);
    options.limit_bytes = 7999;
    options.threshold_bytes = 4000;
    assert_ok(mlo_onnx_save_with(m, p.path, &options, &err));
    assert_int_equal(files(&p, name), 2);
    assert_ok(mlo_onnx_load(p.path, &back, &err));
    assert_same(m, back);
    mlo_model_free(back);
    mlo_model_free(m);
    leave(&p);
    m = sums(sizes, 2, 1);
    assert_int_equal(mlo_onnx_save_with(m, "/nonexistent/m.onnx", &options, &err), MLO_ENOTFOUND);
    mlo_model_free(m);
}

/* More than one file can hold. Takes 5 GB of memory and disk, and so only runs when it is asked to. */
static void test_external__above_two_gigabytes(void **state)
{
    MLO_UNUSED(state);
    static const int64_t sizes[] = {300 << 20, 260 << 20};
    if (!getenv("MLOPT_TEST_BIG"))
        skip();
    struct mlo_error err = {0};
    struct place p = place();
    struct mlo_model *m = sums(sizes, 2, 1), *back = NULL;
    const struct mlo_onnx_save_options options = {0};
    char name[256];
    assert_int_equal(mlo_onnx_save(m, p.path, &err), MLO_ETOOBIG);
    assert_ok(mlo_onnx_save_with(m, p.path, &options, &err));
    assert_int_equal(files(&p, name), 2);
    assert_ok(mlo_onnx_load(p.path, &back, &err));
    int seen = 0;
    for (int i = 0; i < back->graph->value_count; i++) {
        const struct mlo_tensor *a = back->graph->values[i]->constant;
        const struct mlo_value *w = mlo_graph_value(m->graph, back->graph->values[i]->name);
        if (!a)
            continue;
        assert_true(w->constant->size_bytes == a->size_bytes &&
                    memcmp(w->constant->data, a->data, a->size_bytes) == 0);
        seen++;
    }
    assert_int_equal(seen, 2);
    mlo_model_free(back);
    mlo_model_free(m);
    leave(&p);
}

/* --- round trip -------------------------------------------------------------------------------------------
 */

static ProtobufCMessageUnknownField field(uint32_t number, const char *text)
{
    static uint8_t bytes[8][64];
    static int next;
    uint8_t *to = bytes[next++ % 8];
    size_t n = strlen(text); /* as it stands on the wire: the length, then the bytes */
    to[0] = (uint8_t)n;
    memcpy(to + 1, text, n);
    return (ProtobufCMessageUnknownField){number, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, n + 1, to};
}

/* Fields that mlopt does not read (training_info 20, quantization_annotation 14, metadata of node 9 and value
 * 4), doc strings of inputs, outputs and initializers: all there after reading and writing, and in a clone.
 */
static void test_round_trip__keeps_what_it_does_not_know(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    Onnx__ModelProto model = ONNX__MODEL_PROTO__INIT;
    Onnx__GraphProto graph = ONNX__GRAPH_PROTO__INIT;
    Onnx__NodeProto node = ONNX__NODE_PROTO__INIT, *nodes[] = {&node};
    Onnx__TensorProto tensor = ONNX__TENSOR_PROTO__INIT, *tensors[] = {&tensor};
    Onnx__ValueInfoProto in = ONNX__VALUE_INFO_PROTO__INIT, out = in, *ins[] = {&in}, *outs[] = {&out};
    Onnx__OperatorSetIdProto opset = ONNX__OPERATOR_SET_ID_PROTO__INIT, *opsets[] = {&opset};
    ProtobufCMessageUnknownField training = field(20, "training"), annotation = field(14, "annotation"),
                                 node_meta = field(9, "node-meta"), value_meta = field(4, "value-meta");
    static const char *const texts[] = {"training", "annotation", "node-meta", "value-meta",
                                        "an input", "an output",  "a weight"};
    char *names_in[] = {"x", "w"}, *names_out[] = {"y"};
    uint8_t bytes[1024];
    float weight = 2;
    in.name = "x";
    in.doc_string = "an input";
    in.base.n_unknown_fields = out.base.n_unknown_fields = 0;
    in.base.n_unknown_fields = 1;
    in.base.unknown_fields = &value_meta;
    out.name = "y";
    out.doc_string = "an output";
    tensor.name = "w";
    tensor.doc_string = "a weight";
    tensor.has_data_type = tensor.data_type = 1;
    tensor.n_float_data = 1;
    tensor.float_data = &weight;
    node.op_type = "Mul";
    node.name = "m";
    node.n_input = 2;
    node.input = names_in;
    node.n_output = 1;
    node.output = names_out;
    node.base.n_unknown_fields = 1;
    node.base.unknown_fields = &node_meta;
    graph.node = nodes;
    graph.input = ins;
    graph.output = outs;
    graph.initializer = tensors;
    graph.n_node = graph.n_input = graph.n_output = graph.n_initializer = 1;
    graph.base.n_unknown_fields = 1;
    graph.base.unknown_fields = &annotation;
    opset.has_version = 1;
    opset.version = 13;
    model.graph = &graph;
    model.opset_import = opsets;
    model.n_opset_import = 1;
    model.base.n_unknown_fields = 1;
    model.base.unknown_fields = &training;
    size_t size = onnx__model_proto__pack(&model, bytes);
    struct mlo_model *m = NULL, *copy = NULL, *again = NULL;
    struct mlo_buf text = MLO_BUF_INIT;
    assert_ok(mlo_onnx_parse(bytes, size, "m", &m, &err));
    assert_ok(mlo_model_clone(m, &copy, &err));
    assert_same(m, copy);
    mlo_model_free(m);
    assert_ok(mlo_onnx_serialize(copy, &text, &err));
    for (size_t i = 0; i < MLO_COUNT(texts); i++)
        if (!memmem(text.data, text.len, texts[i], strlen(texts[i])))
            fail_msg("'%s' is lost", texts[i]);
    assert_ok(mlo_onnx_parse(text.data, text.len, "again", &again, &err));
    assert_same(copy, again);
    assert_string_equal(mlo_graph_value(again->graph, "x")->doc, "an input");
    assert_string_equal(mlo_graph_value(again->graph, "w")->doc, "a weight");
    assert_int_equal(again->extras->list[0].field, 20);
    assert_int_equal(again->graph->extras->list[0].field, 14);
    mlo_buf_clear(&text);
    mlo_model_free(copy);
    mlo_model_free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_external__weights_go_to_a_file_beside),
        cmocka_unit_test(test_external__only_where_one_file_is_too_small),
        cmocka_unit_test(test_external__above_two_gigabytes),
        cmocka_unit_test(test_round_trip__keeps_what_it_does_not_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
