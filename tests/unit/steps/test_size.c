/* A variant is one ONNX file, of at most 2 GiB. */
#include "tests/cm.h"

#include <sys/mman.h>

#include "pipeline/steps/step_impl.h"

static void test_size__of_more_than_one_file_is_refused_early(void **state)
{
    MLO_UNUSED(state);
    const int64_t count = ((int64_t)1 << 29) + 1;
    struct mlo_error err = {0};
    struct mlo_model *model = NULL;
    struct mlo_tensor weights = {.dtype = MLO_FLOAT32, .rank = 1, .dims = {count}};
    weights.size_bytes = (size_t)count * 4;
    weights.data =
        mmap(NULL, weights.size_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (weights.data == MAP_FAILED)
        skip();
    void *pages = weights.data;
    assert_ok(mlo_model_new(17, &model, &err));
    assert_ok(mlo_step_check_size(model, &err));
    assert_non_null(mlo_graph_add_constant_take(model->graph, "w", &weights));
    assert_int_equal(mlo_step_check_size(model, &err), MLO_ETOOBIG);
    assert_contains(err.message, "a variant is one file: the model needs 2147483652 bytes");
    assert_contains(err.hint, "quantizes");
    mlo_model_free(model);
    munmap(pages, (size_t)count * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size__of_more_than_one_file_is_refused_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
