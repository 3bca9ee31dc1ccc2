/* What NVIDIA's own compilers make of a net without a GPU: NVRTC's images, and cuDNN's plans for a described
 * device. Skipped, with a line, where they are not installed. Nothing runs here. */
#include "tests/cuda/cuda_case.h"

#include <sys/mman.h>
#include <unistd.h>

#include "engines/cuda/tune/tune.h"

static struct mlo_plan *compile_for(const struct mlo_model *model, const char *target, const json_t *choices)
{
    struct mlo_plan *plan;
    struct mlo_compile_options o = {.batch = 8, .target = target, .choices = choices};
    MUST(cuda_engine.compile(model, &o, &plan, err));
    return plan;
}

static struct mlo_value *half_conv(struct net *n, struct mlo_value *x, const struct conv_spec *s)
{
    int64_t w[] = {s->oc, s->ic, s->kernel, s->kernel};
    struct mlo_value *weights = net_numbers(n, MLO_FLOAT16, 4, w, -0.1, 0.1);
    struct mlo_node *node =
        net_node(n, "Conv", x, weights, net_numbers(n, MLO_FLOAT16, 1, &s->oc, -0.1, 0.1));
    net_conv_attrs(node, s);
    return node->outputs[0];
}

/* Half of a residual block: conv, bias, ReLU; conv, residual, bias, ReLU; and a softmax of what is left. */
static struct net block(void)
{
    struct net n = net_new(3);
    int64_t dims[] = {-1, 64, 28, 28};
    struct conv_spec wide = {64, 64, 3, 1, 1, 1, 1, 28, true}, point = {64, 64, 1, 1, 0, 1, 1, 28, true};
    struct mlo_value *x = net_input_of(&n, MLO_FLOAT16, "x", 4, dims);
    struct mlo_value *a = net_op(&n, "Relu", half_conv(&n, x, &wide), NULL, NULL);
    struct mlo_value *sum = net_op(&n, "Add", half_conv(&n, a, &point), x, NULL);
    struct mlo_value *y = net_op(&n, "Relu", sum, NULL, NULL);
    net_output(&n, net_op(&n, "Softmax", y, NULL, NULL));
    return n;
}

static void test_nvrtc__compiles_refuses_and_remembers(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error problem = {0};
    struct cuda_resources r, again;
    void *image, *same;
    size_t size, same_size;
    struct cuda_source good = {.text = "extern \"C\" __global__ void k(float *x) { __shared__ float s[64]; "
                                       "s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); "
                                       "x[threadIdx.x] = s[63 - threadIdx.x]; }",
                               .entry = "k"},
                       bad = {.text = "extern \"C\" __global__ void k(float *x) { x[0] = nothing; }",
                              .entry = "k"},
                       other = {.text = good.text, .entry = "other"};
    MUST(cuda_compile_text(&good, 90, &image, &size, &r, err));
    assert_in_range(r.registers, 4, 64);
    assert_int_equal(r.shared_bytes & 0xff, 0);
    assert_true(r.shared_bytes >= 256);
    assert_int_equal(r.frame_bytes, 0);
    MUST(cuda_compile_text(&good, 90, &same, &same_size, &again, err)); /* out of the cache */
    assert_int_equal(size, same_size);
    assert_memory_equal(image, same, size);
    free(same);
    assert_int_equal(r.registers, again.registers);
    for (size_t cut = 0; cut < size; cut += 1 + cut / 5)
        assert_int_equal(cuda_cubin_read(image, cut, "k", &again, &problem), MLO_EFORMAT);
    assert_int_equal(cuda_compile_text(&bad, 90, &same, &same_size, &again, &problem), MLO_EINTERNAL);
    assert_non_null(strstr(problem.message, "nothing"));
    assert_int_equal(cuda_compile_text(&other, 90, &same, &same_size, &again, &problem), MLO_EFORMAT);
    free(image);
}

static const char *by(const json_t *described, size_t i)
{
    return mlo_json_str(json_array_get(json_object_get(described, "nodes"), i), "by", "");
}

static void test_compile__gives_convolutions_to_cudnn_and_the_rest_to_nvrtc(void **state)
{
    MLO_UNUSED(state);
    struct net n = block();
    struct mlo_plan *plan = compile_for(n.model, "cuda:sm90", NULL), *again;
    json_t *described, *restored;
    size_t cudnn = 0, kernels = 0;
    int fd = memfd_create("plan", MFD_CLOEXEC);
    MUST(cuda_engine.describe(plan, &described, err));
    for (size_t i = 0; i < (size_t)plan->schedule->step_count; i++) {
        cudnn += strcmp(by(described, i), "cudnn") == 0;
        kernels += strcmp(by(described, i), "kernel") == 0;
    }
    if (cudnn != 2 || kernels + cudnn != (size_t)plan->schedule->step_count)
        fail_msg("%s", json_dumps(described, JSON_INDENT(1)));
    for (int i = 0; i < plan->work_count; i++) {
        const struct cuda_work *w = &plan->works[i];
        assert_non_null(w->image);
        assert_true(w->kind != CUDA_WORK_KERNEL || (w->resources.registers && !w->resources.frame_bytes));
        assert_true(w->kind != CUDA_WORK_CUDNN || w->choice); /* precompiled engines need no driver */
    }
    MUST(cuda_engine.save(plan, fd, err));
    size_t size = (size_t)lseek(fd, 0, SEEK_END);
    void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_ptr_not_equal(bytes, MAP_FAILED);
    MUST(cuda_engine.restore(bytes, size, &again, err));
    MUST(cuda_engine.describe(again, &restored, err));
    assert_true(json_equal(described, restored));
    cuda_engine.free_plan(again);
    cuda_engine.free_plan(plan);
    munmap(bytes, size);
    close(fd);
    json_decref(described);
    json_decref(restored);
    mlo_model_free(n.model);
}

static void test_cudnn__lists_ways_and_builds_the_one_that_was_chosen(void **state)
{
    MLO_UNUSED(state);
    struct net n = block();
    struct mlo_plan *plan = compile_for(n.model, "cuda:sm90", NULL);
    const struct cuda_schedule *s = plan->schedule;
    json_t *ways = json_array(), *first;
    struct cuda_work work;
    struct mlo_error problem = {0};
    int step = 0;
    while (plan->works[plan->work_of[step]].kind != CUDA_WORK_CUDNN)
        step++;
    MUST(cuda_dnn_ways(s, &s->steps[step], 90, 4, ways, err));
    assert_true(json_array_size(ways) > 3);
    first = json_loads(plan->works[plan->work_of[step]].choice, 0, NULL);
    assert_non_null(first);
    assert_true(cuda_ways_find(ways, first) >= 0);
    MUST(cuda_dnn_build(s, &s->steps[step], 90, first, &work, err));
    assert_int_equal(work.kind, CUDA_WORK_CUDNN);
    assert_true(work.image_bytes > 1000);
    cuda_work_clear(&work);
    json_object_set_new(first, "engine", json_integer(123456));
    assert_int_not_equal(cuda_dnn_build(s, &s->steps[step], 90, first, &work, &problem), MLO_OK);
    assert_true(problem.message[0] != 0);
    assert_int_equal(cuda_dnn_build(s, &s->steps[step], 75, NULL, &work, &problem), MLO_EUNSUPPORTED);
    json_decref(first);
    json_decref(ways);
    cuda_engine.free_plan(plan);
    mlo_model_free(n.model);
}

static void test_can_compile__knows_the_compilers_targets(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error problem = {0};
    MUST(cuda_engine.can_compile("cuda:sm80", err));
    MUST(cuda_engine.can_compile("cuda:sm90", err));
    assert_int_equal(cuda_engine.can_compile("cuda:sm51", &problem), MLO_EUNAVAILABLE);
    assert_non_null(strstr(problem.hint, "sm_"));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nvrtc__compiles_refuses_and_remembers),
        cmocka_unit_test(test_compile__gives_convolutions_to_cudnn_and_the_rest_to_nvrtc),
        cmocka_unit_test(test_cudnn__lists_ways_and_builds_the_one_that_was_chosen),
        cmocka_unit_test(test_can_compile__knows_the_compilers_targets),
    };
    static const enum cuda_library needed[] = {CUDA_LIB_NVRTC, CUDA_LIB_CUDNN};
    for (size_t i = 0; i < MLO_COUNT(needed); i++) {
        const struct cuda_library_state *s = cuda_library_open(needed[i]);
        if (!s->usable) {
            printf("skipped: %s\n", s->problem.message);
            return 77;
        }
    }
    const char *places = getenv("MLOPT_CUDA_LIBS");
    char *kept = strdup(places ? places : "");
    case_begin(kept);
    free(kept);
    unsetenv("MLOPT_CUDA_LIBS_ONLY");
    return case_end(cmocka_run_group_tests(tests, NULL, NULL));
}
