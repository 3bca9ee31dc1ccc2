/* What cuBLASLt is asked for, and what happens where it has no algorithm on the device: a library that stands
 * in for it tells the one and makes the other. */
#include "tests/cuda/cuda_case.h"

#include <string.h>
#include <unistd.h>

#include "engines/cuda/kernels/host.h"

static const struct fake_cuda *fake;

static struct mlo_plan *compile(const struct mlo_model *model)
{
    struct mlo_plan *plan;
    struct mlo_compile_options o = {.target = "cuda:sm90"};
    MUST(cuda_engine.compile(model, &o, &plan, err));
    return plan;
}

/* x (5 x 32 float16), quantized by 1/64, times float8 weights of one scale, 1/256, + bias, ReLU. */
static struct net float8_net(void)
{
    struct net n = net_of_opset(19, 5);
    struct mlo_value *x = net_input_of(&n, MLO_FLOAT16, "x", 2, (int64_t[]){5, 32});
    struct mlo_value *s = net_scalar(&n, MLO_FLOAT16, 0x1p-6), *zero = net_scalar(&n, MLO_FLOAT8E4M3FN, 0);
    x = net_op(&n, "DequantizeLinear", net_op(&n, "QuantizeLinear", x, s, zero), s, zero);
    struct mlo_value *q = net_numbers(&n, MLO_FLOAT8E4M3FN, 2, (int64_t[]){32, 48}, -16, 16);
    struct mlo_value *w = net_op(&n, "DequantizeLinear", q, net_scalar(&n, MLO_FLOAT16, 0x1p-8), NULL);
    struct mlo_value *y = net_op(&n, "MatMul", x, w, NULL);
    y = net_op(&n, "Add", y, net_numbers(&n, MLO_FLOAT16, 1, (int64_t[]){48}, -1, 1), NULL);
    net_finish(&n, net_op(&n, "Relu", y, NULL, NULL));
    return n;
}

static char *log_path(void)
{
    char *path = mlo_fs_join(case_folder, "lt.log", NULL);
    assert_non_null(path);
    unlink(path);
    setenv("FAKE_LT_LOG", path, 1);
    return path;
}

/* Column-major: its first operand is our weights, transposed; the second our rows; D is 48 x 5. Sums in
 * float32 (68 is CUBLAS_COMPUTE_32F), RELU_BIAS (6) with a bias of D's type. */
static void test_lt__is_asked_for_float8_in_the_form_that_it_has(void **state)
{
    MLO_UNUSED(state);
    struct net n = float8_net();
    struct mlo_plan *plan = compile(n.model);
    struct mlo_program *program;
    struct mlo_buf text = MLO_BUF_INIT;
    char *path = log_path();
    MUST(cuda_engine.load(plan, &program, err));
    MUST(mlo_fs_read(path, 4096, &text, err));
    assert_string_equal(mlo_buf_str(&text), "f8^T x f8 + f16 -> f16 compute 32 epilogue 6 bias f16: "
                                            "32x48 32x5 48x5 ld 32 32 48\n");
    const struct cuda_step *step = NULL;
    for (int i = 0; i < plan->schedule->step_count; i++)
        if (plan->schedule->steps[i].kind == CUDA_STEP_GEMM)
            step = &plan->schedule->steps[i];
    assert_non_null(step);
    assert_true(step->gemm->alpha == 0x1p-14f); /* both scales */
    cuda_engine.unload(program);
    cuda_engine.free_plan(plan);
    mlo_buf_clear(&text);
    free(path);
    mlo_model_free(n.model);
    assert_int_equal(fake->live(), 0);
}

static json_t *gemm_row(const struct mlo_plan *plan, json_t **all)
{
    json_t *row;
    size_t i;
    MUST(cuda_engine.describe(plan, all, err));
    json_array_foreach(json_object_get(*all, "nodes"), i, row)
    {
        if (strcmp(mlo_json_str(row, "impl", ""), "cublasLt") == 0)
            return row;
    }
    fail_msg("there is no product");
    return NULL;
}

static void check_run(const struct net *n, struct mlo_program *program)
{
    struct mlo_compile_options o = {.threads = 1};
    struct mlo_tensor in = random_tensor_of(MLO_FLOAT16, 2, (int64_t[]){5, 32}, 3), got = {0};
    struct mlo_tensor want = run_model("reference", n->model, &o, &in, NULL);
    MUST(cuda_engine.run(program, &in, &got, err));
    for (size_t i = 0; i < mlo_tensor_count(&want); i++) {
        double a = mlo_tensor_get_f64(&got, i), b = mlo_tensor_get_f64(&want, i);
        if (!(fabs(a - b) <= 4e-3 * (1 + fabs(b))))
            fail_msg("element %zu is %g, the reference has %g", i, a, b);
    }
    mlo_tensor_clear(&in);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&want);
}

/* The own kernel stands in, for later programs too and in a plan that comes from a file; the plan says why.
 */
static void test_lt__gives_way_to_an_own_kernel_where_it_has_no_algorithm(void **state)
{
    MLO_UNUSED(state);
    struct net n = float8_net();
    for (int from_file = 0; from_file < 2; from_file++) {
        struct mlo_plan *plan = compile(n.model), *made = NULL;
        struct mlo_program *first, *second;
        json_t *all;
        void *bytes = NULL;
        if (from_file) {
            FILE *file = tmpfile();
            assert_non_null(file);
            MUST(cuda_engine.save(plan, fileno(file), err));
            size_t size = (size_t)lseek(fileno(file), 0, SEEK_END);
            assert_int_equal(posix_memalign(&bytes, 64, size), 0);
            assert_int_equal(pread(fileno(file), bytes, size, 0), size);
            (void)fclose(file);
            MUST(cuda_engine.restore(bytes, size, &made, err));
            cuda_engine.free_plan(plan);
            plan = made;
        }
        json_t *row = gemm_row(plan, &all);
        assert_string_equal(mlo_json_str(row, "by", ""), "cublaslt");
        assert_string_equal(mlo_json_str(row, "chosen", ""), "heuristic");
        json_decref(all);
        char *path = log_path();
        setenv("FAKE_LT_REFUSES", "f8", 1);
        MUST(cuda_engine.load(plan, &first, err));
        MUST(cuda_engine.load(plan, &second, err));
        struct mlo_buf text = MLO_BUF_INIT;
        MUST(mlo_fs_read(path, 4096, &text, err));
        assert_ptr_equal(strchr(mlo_buf_str(&text), '\n'),
                         strrchr(mlo_buf_str(&text), '\n')); /* asked once */
        row = gemm_row(plan, &all);
        assert_string_equal(mlo_json_str(row, "by", ""), "kernel");
        assert_string_equal(mlo_json_str(row, "chosen", ""), "stand-in");
        assert_non_null(strstr(mlo_json_str(row, "instead", ""), "not supported"));
        json_decref(all);
        check_run(&n, first);
        check_run(&n, second);
        cuda_engine.unload(first);
        check_run(&n, second);
        cuda_engine.unload(second);
        MUST(cuda_engine.load(plan, &first, err)); /* the device is opened anew */
        check_run(&n, first);
        cuda_engine.unload(first);
        unsetenv("FAKE_LT_REFUSES");
        cuda_engine.free_plan(plan);
        mlo_buf_clear(&text);
        free(bytes);
        free(path);
        assert_int_equal(fake->live(), 0);
    }
    mlo_model_free(n.model);
}

/* Where no own kernel can be made either, the error names the node and both. */
static void test_lt__names_the_node_that_nothing_computes(void **state)
{
    MLO_UNUSED(state);
    struct net n = float8_net();
    struct mlo_plan *plan = compile(n.model);
    struct mlo_program *program = NULL;
    struct mlo_error problem = {0};
    setenv("FAKE_LT_REFUSES", "f8", 1);
    setenv("FAKE_NVRTC_REFUSES", "1", 1);
    assert_int_not_equal(cuda_engine.load(plan, &program, &problem), MLO_OK);
    assert_null(program);
    if (!strstr(problem.message, "not supported") || !strstr(problem.message, "no own kernel") ||
        !strstr(problem.where, "node 'MatMul"))
        fail_msg("%s (%s)", problem.message, problem.where);
    unsetenv("FAKE_NVRTC_REFUSES");
    MUST(cuda_engine.load(plan, &program, err));
    check_run(&n, program);
    cuda_engine.unload(program);
    unsetenv("FAKE_LT_REFUSES");
    cuda_engine.free_plan(plan);
    mlo_model_free(n.model);
    assert_int_equal(fake->live(), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lt__is_asked_for_float8_in_the_form_that_it_has),
        cmocka_unit_test(
            test_lt__names_the_node_that_nothing_computes), /* before its kernel is in the cache */
        cmocka_unit_test(test_lt__gives_way_to_an_own_kernel_where_it_has_no_algorithm),
    };
    if (!cuda_host_possible()) {
        printf("skipped: no C compiler, so kernels cannot run on the CPU\n");
        return 77;
    }
    case_begin(MLOPT_FAKE_CUDA ":" MLOPT_FAKE_LT);
    const struct cuda_library_state *driver = cuda_library_open(CUDA_LIB_DRIVER);
    void *library = driver->path ? dlopen(driver->path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    fake = library ? dlsym(library, FAKE_CUDA_SYMBOL) : NULL;
    if (!fake) {
        printf("the driver of the tests is not found: %s\n", driver->problem.message);
        return case_end(1);
    }
    return case_end(cmocka_run_group_tests(tests, NULL, NULL));
}
