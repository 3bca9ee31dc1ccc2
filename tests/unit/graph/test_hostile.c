/* Models with random bytes changed, through the reader, inference and the kernels: an error or a result,
 * never a crash (the suite runs under AddressSanitizer). */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"

#define DATA "/usr/share/libonnx-testdata/data/node"

static uint32_t seed = 1;

static uint32_t next(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static bool small(const struct mlo_type *type, int64_t *dims)
{
    size_t count;
    return type->dtype != MLO_DTYPE_NONE && mlo_type_static(type, dims) &&
           mlo_shape_count(type->rank, dims, &count) && count < 100000;
}

static int evaluated; /* nodes whose evaluation was tried: changes must not all be refused before */

static void run(const struct mlo_graph *graph)
{
    struct mlo_tensor *held = calloc((size_t)graph->value_count + 1, sizeof *held);
    bool ok = mlo_graph_check_supported(graph, NULL) == MLO_OK;
    for (int i = 0; ok && i < graph->input_count; i++) {
        int64_t dims[MLO_MAX_RANK];
        const struct mlo_value *x = graph->inputs[i];
        struct mlo_tensor *t = &held[x->index];
        ok = small(&x->type, dims) && mlo_tensor_init(t, x->type.dtype, x->type.rank, dims, NULL) == MLO_OK;
        for (size_t k = 0; ok && k < mlo_tensor_count(t); k++)
            mlo_tensor_set_f64(t, k, (double)(next() % 13) - 4);
    }
    for (int n = 0; ok && n < graph->node_count; n++) {
        const struct mlo_node *node = graph->nodes[n];
        const struct mlo_tensor **in = calloc((size_t)node->input_count + 1, sizeof *in);
        struct mlo_tensor **out = calloc((size_t)node->output_count + 1, sizeof *out);
        for (int i = 0; i < node->input_count; i++)
            in[i] = !node->inputs[i]            ? NULL
                    : node->inputs[i]->constant ? node->inputs[i]->constant
                                                : &held[node->inputs[i]->index];
        for (int i = 0; i < node->output_count; i++) {
            int64_t dims[MLO_MAX_RANK];
            out[i] = node->outputs[i] ? &held[node->outputs[i]->index] : NULL;
            ok = ok && out[i] &&
                 (!mlo_type_static(&node->outputs[i]->type, dims) || small(&node->outputs[i]->type, dims));
        }
        struct mlo_error err = {0};
        evaluated += ok;
        if (ok && mlo_node_eval(node, in, out, &err) != MLO_OK) {
            assert_true(err.message[0] && err.where[0]);
            ok = false;
        }
        free(in);
        free(out);
    }
    for (int i = 0; i < graph->value_count; i++)
        mlo_tensor_clear(&held[i]);
    free(held);
}

static void mutate(const char *path)
{
    struct mlo_buf bytes = MLO_BUF_INIT;
    if (mlo_fs_read(path, 4096, &bytes, NULL) != MLO_OK) /* small ones: the change must hit something */
        goto out;
    for (int round = 0; round < 12; round++) {
        struct mlo_buf changed = MLO_BUF_INIT;
        struct mlo_model *model = NULL;
        struct mlo_error err = {0};
        mlo_buf_append(&changed, bytes.data, bytes.len);
        for (uint32_t k = next() % 3 + 1; k > 0; k--)
            changed.data[next() % changed.len] = (char)(next() % 2 ? next() : next() % 8);
        if (mlo_onnx_parse(changed.data, changed.len, "changed", &model, &err) == MLO_OK)
            run(model->graph);
        else
            assert_true(err.message[0] != '\0');
        mlo_model_free(model);
        mlo_buf_clear(&changed);
    }
out:
    mlo_buf_clear(&bytes);
}

static void test_hostile__changed_models_do_no_harm(void **state)
{
    MLO_UNUSED(state);
    struct dirent **list = NULL;
    int count = scandir(DATA, &list, NULL, alphasort);
    const char *text = getenv("MLO_TEST_SEED");
    seed = text ? (uint32_t)strtoul(text, NULL, 10) : 1;
    if (count <= 0)
        skip();
    for (int i = 0; i < count; i++) {
        char path[640];
        snprintf(path, sizeof path, DATA "/%s/model.onnx", list[i]->d_name);
        if (list[i]->d_name[0] != '.')
            mutate(path);
        free(list[i]);
    }
    free(list);
    assert_true(evaluated > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hostile__changed_models_do_no_harm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
