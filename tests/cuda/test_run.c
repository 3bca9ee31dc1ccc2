/* Whole programs of own kernels, on a driver that runs them on the CPU: results against the reference engine,
 * memory, the order of launches, graphs, failures, and plans as files. */
#include "engines/cuda/tune/tune.h"
#include "tests/cuda/cuda_case.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engines/choices.h"
#include "engines/cuda/kernels/host.h"

static const struct fake_cuda *fake;

static struct mlo_plan *compile(const struct mlo_model *model, const char *const *observe, size_t count)
{
    struct mlo_plan *plan;
    struct mlo_compile_options o = {
        .batch = 2, .observe = observe, .observe_count = count, .target = "cuda:sm90"};
    MUST(cuda_engine.compile(model, &o, &plan, err));
    return plan;
}

/* A net with products, broadcasts, reductions, a residual in place and a value that is used twice. */
static struct net mlp(void)
{
    struct net n = net_new(7);
    int64_t rows[] = {-1, 24}, w1[] = {24, 40}, w2[] = {40, 24}, wide[] = {40}, narrow[] = {24};
    struct mlo_value *x = net_input(&n, "x", 2, rows);
    struct mlo_value *a = net_op(&n, "MatMul", x, net_floats(&n, 2, w1, 0.3f), NULL);
    a = net_op(&n, "Relu", net_op(&n, "Add", a, net_floats(&n, 1, wide, 0.2f), NULL), NULL, NULL);
    struct mlo_value *b = net_op(&n, "MatMul", a, net_floats(&n, 2, w2, 0.3f), NULL);
    struct mlo_value *sum = net_op(&n, "Add", b, x, NULL);
    struct mlo_value *norm =
        net_op(&n, "LayerNormalization", sum, net_floats(&n, 1, narrow, 1), net_floats(&n, 1, narrow, 1));
    net_output(&n, net_op(&n, "Softmax", norm, NULL, NULL));
    net_output(&n, net_op(&n, "Sigmoid", sum, NULL, NULL));
    return n;
}

static struct net cnn(void)
{
    struct net n = net_new(11);
    int64_t dims[] = {-1, 3, 12, 12}, w[] = {8, 5};
    struct mlo_value *x = net_input(&n, "x", 4, dims);
    struct conv_spec stem = {3, 8, 3, 1, 1, 1, 1, 12, true}, depthwise = {8, 8, 3, 1, 1, 1, 8, 12, true},
                     point = {8, 8, 1, 1, 0, 1, 1, 12, true};
    struct mlo_value *a = net_op(&n, "Relu", net_conv(&n, x, &stem), NULL, NULL);
    struct mlo_value *b = net_op(&n, "Relu", net_conv(&n, a, &depthwise), NULL, NULL);
    struct mlo_value *c = net_op(&n, "Relu", net_op(&n, "Add", net_conv(&n, b, &point), a, NULL), NULL, NULL);
    struct mlo_value *mean = net_op(&n, "GlobalAveragePool", c, NULL, NULL);
    struct mlo_value *flat = net_op(&n, "Flatten", mean, NULL, NULL);
    net_output(&n, net_op(&n, "MatMul", flat, net_floats(&n, 2, w, 0.5f), NULL));
    return n;
}

static void fill(const struct mlo_model *model, struct mlo_tensor *inputs, uint32_t seed)
{
    struct mlo_value *fed[8];
    int count = mlo_engine_inputs(model->graph, fed);
    for (int i = 0; i < count; i++) {
        int64_t dims[MLO_MAX_RANK];
        for (int d = 0; d < fed[i]->type.rank; d++)
            dims[d] = fed[i]->type.dims[d].name ? 2 : fed[i]->type.dims[d].value;
        MUST(mlo_tensor_init(&inputs[i], fed[i]->type.dtype, fed[i]->type.rank, dims, err));
        for (size_t k = 0; k < mlo_tensor_count(&inputs[i]); k++)
            mlo_tensor_set_f64(&inputs[i], k, (double)net_random(&seed));
    }
}

static void expect_near(const struct mlo_tensor *a, const struct mlo_tensor *b)
{
    assert_int_equal(mlo_tensor_count(a), mlo_tensor_count(b));
    for (size_t i = 0; i < mlo_tensor_count(a); i++) {
        double x = mlo_tensor_get_f64(a, i), y = mlo_tensor_get_f64(b, i);
        if (!(fabs(x - y) <= 2e-5 * (1 + fabs(y))))
            fail_msg("element %zu is %g, and the reference has %g", i, x, y);
    }
}

static void reference(const struct mlo_model *model, const struct mlo_tensor *inputs,
                      struct mlo_tensor *outputs)
{
    const struct mlo_engine *e;
    struct mlo_plan *plan;
    struct mlo_program *program;
    struct mlo_compile_options o = {.batch = 2};
    MUST(mlo_engine_find("reference", &e, err));
    MUST(e->compile(model, &o, &plan, err));
    MUST(e->load(plan, &program, err));
    MUST(e->run(program, inputs, outputs, err));
    e->unload(program);
    e->free_plan(plan);
}

/* Runs twice on other data, so that what a run leaves behind shows. */
static void check_model(const struct mlo_model *model, struct mlo_plan *plan)
{
    struct mlo_program *program;
    MUST(cuda_engine.load(plan, &program, err));
    for (uint32_t seed = 1; seed <= 2; seed++) {
        struct mlo_tensor in[4] = {{0}}, got[4] = {{0}}, want[4] = {{0}};
        fill(model, in, seed);
        MUST(cuda_engine.run(program, in, got, err));
        reference(model, in, want);
        for (int i = 0; i < model->graph->output_count; i++)
            expect_near(&got[i], &want[i]);
        for (int i = 0; i < 4; i++) {
            mlo_tensor_clear(&in[i]);
            mlo_tensor_clear(&got[i]);
            mlo_tensor_clear(&want[i]);
        }
    }
    cuda_engine.unload(program);
}

static void test_run__agrees_with_the_reference_in_graphs_and_without(void **state)
{
    MLO_UNUSED(state);
    struct net nets[] = {mlp(), cnn()};
    for (size_t i = 0; i < MLO_COUNT(nets); i++) {
        struct mlo_plan *plan = compile(nets[i].model, NULL, 0);
        check_model(nets[i].model, plan);
        setenv("MLOPT_CUDA_GRAPHS", "off", 1);
        check_model(nets[i].model, plan);
        unsetenv("MLOPT_CUDA_GRAPHS");
        cuda_engine.free_plan(plan);
        mlo_model_free(nets[i].model);
    }
    assert_int_equal(fake->live(), 0);
}

static size_t count_of(const char *what)
{
    size_t n = 0;
    for (const char *at = fake->log(); (at = strstr(at, what)); at++)
        n++;
    return n;
}

static void test_run__takes_memory_once_and_starts_steps_in_order(void **state)
{
    MLO_UNUSED(state);
    struct net n = mlp();
    struct mlo_plan *plan = compile(n.model, NULL, 0);
    struct mlo_program *first, *second;
    struct mlo_tensor in[2] = {{0}}, out[2] = {{0}};
    struct mlo_buf want = MLO_BUF_INIT;
    char line[64];
    fake->clear();
    MUST(cuda_engine.load(plan, &first, err));
    MUST(cuda_engine.load(plan, &second, err));
    snprintf(line, sizeof line, "cuMemAlloc %zu\n", plan->schedule->constant_bytes);
    assert_int_equal(count_of(line), 1); /* constants are shared */
    snprintf(line, sizeof line, "cuMemAlloc %zu\n", plan->schedule->arena_bytes);
    assert_int_equal(count_of(line), 2); /* values are not */
    assert_int_equal(count_of("cuMemAlloc "), 3);
    assert_int_equal(count_of("cuMemAllocHost "), 2);
    size_t kernels = 0; /* cuBLASLt is not there: what it would compute was made a kernel by load */
    for (int i = 0; i < plan->work_count; i++)
        kernels += plan->works[i].kind == CUDA_WORK_KERNEL;
    assert_int_equal(count_of("module "), kernels);
    assert_int_equal(count_of("graph of "), 2);
    fill(n.model, in, 3);
    fake->clear();
    MUST(cuda_engine.run(first, in, out, err));
    mlo_buf_printf(&want, "replay of %d\nupload %zu\n", plan->schedule->step_count + 3, in[0].size_bytes);
    for (int i = 0; i < plan->schedule->step_count; i++) {
        const struct cuda_work *w = &plan->works[plan->work_of[i]];
        mlo_buf_printf(&want, "launch %s %u %u\n", w->entry, w->grid[0] * w->grid[1] * w->grid[2],
                       w->block[0] * w->block[1] * w->block[2]);
    }
    for (int i = 0; i < 2; i++)
        mlo_buf_printf(&want, "download %zu\n", out[i].size_bytes);
    assert_string_equal(fake->log(), mlo_buf_str(&want));
    cuda_engine.unload(first);
    cuda_engine.unload(second);
    mlo_buf_clear(&want);
    for (int i = 0; i < 2; i++) {
        mlo_tensor_clear(&in[i]);
        mlo_tensor_clear(&out[i]);
    }
    cuda_engine.free_plan(plan);
    mlo_model_free(n.model);
    assert_int_equal(fake->live(), 0);
}

struct seen {
    int count;
    double sum;
};

static enum mlo_status see(void *arg, const char *name, const struct mlo_tensor *value, struct mlo_error *err)
{
    struct seen *s = arg;
    MLO_UNUSED(name);
    MLO_UNUSED(err);
    s->count++;
    for (size_t i = 0; i < mlo_tensor_count(value); i++)
        s->sum += fabs(mlo_tensor_get_f64(value, i));
    return MLO_OK;
}

static void test_observe__shows_the_values_that_the_reference_has(void **state)
{
    MLO_UNUSED(state);
    struct net n = cnn();
    const char *names[] = {"x", n.graph->nodes[1]->outputs[0]->name, n.graph->nodes[3]->outputs[0]->name};
    struct mlo_plan *plan = compile(n.model, names, 3), *plain;
    struct mlo_program *program, *other;
    const struct mlo_engine *e;
    struct mlo_compile_options o = {.batch = 2, .observe = names, .observe_count = 3};
    struct mlo_tensor in[1] = {{0}}, out[1] = {{0}}, want[1] = {{0}};
    struct seen got = {0}, expected = {0};
    fill(n.model, in, 5);
    MUST(cuda_engine.load(plan, &program, err));
    MUST(cuda_engine.observe(program, in, out, see, &got, err));
    MUST(mlo_engine_find("reference", &e, err));
    MUST(e->compile(n.model, &o, &plain, err));
    MUST(e->load(plain, &other, err));
    MUST(e->observe(other, in, want, see, &expected, err));
    assert_int_equal(got.count, 3);
    assert_true(fabs(got.sum - expected.sum) <= 1e-4 * expected.sum);
    expect_near(&out[0], &want[0]);
    e->unload(other);
    e->free_plan(plain);
    cuda_engine.unload(program);
    cuda_engine.free_plan(plan);
    mlo_tensor_clear(in);
    mlo_tensor_clear(out);
    mlo_tensor_clear(want);
    mlo_model_free(n.model);
}

static void test_load__gives_everything_back_wherever_it_fails(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *function;
        int result;
        enum mlo_status status;
    } cases[] = {
        {"cuCtxSetCurrent", CUDA_ERROR_LAUNCH_FAILED, MLO_EIO},
        {"cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, MLO_ENOMEM},
        {"cuMemAllocHost", CUDA_ERROR_OUT_OF_MEMORY, MLO_ENOMEM},
        {"cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU, MLO_ESTALE},
        {"cuMemcpyHtoD", CUDA_ERROR_LAUNCH_FAILED, MLO_EIO},
        {"cuStreamCreate", CUDA_ERROR_OUT_OF_MEMORY, MLO_ENOMEM},
        {"cuLaunchKernel", CUDA_ERROR_LAUNCH_FAILED, MLO_EIO},
        {"cuStreamSynchronize", CUDA_ERROR_LAUNCH_FAILED, MLO_EIO},
        {"cuStreamBeginCapture", CUDA_ERROR_LAUNCH_FAILED, MLO_EIO},
        {"cuStreamEndCapture", CUDA_ERROR_LAUNCH_FAILED, MLO_EIO},
        {"cuGraphInstantiateWithFlags", CUDA_ERROR_OUT_OF_MEMORY, MLO_ENOMEM},
    };
    struct net n = mlp();
    struct mlo_plan *plan = compile(n.model, NULL, 0);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        for (int nth = 1;; nth++) {
            struct mlo_program *program = NULL;
            struct mlo_error problem = {0};
            fake->clear();
            fake->fail_next(cases[i].function, nth, cases[i].result);
            enum mlo_status status = cuda_engine.load(plan, &program, &problem);
            if (status == MLO_OK) { /* it is not called so often */
                if (nth == 1)
                    fail_msg("%s is not called", cases[i].function);
                cuda_engine.unload(program);
                break;
            }
            if (status != cases[i].status || !problem.message[0])
                fail_msg("%s %d: %s", cases[i].function, nth, problem.message);
            assert_null(program);
            assert_int_equal(fake->live(), 0);
        }
        assert_int_equal(fake->live(), 0);
    }
    fake->clear();
    cuda_engine.free_plan(plan);
    mlo_model_free(n.model);
}

static void test_run__says_what_failed_and_the_next_run_is_right(void **state)
{
    MLO_UNUSED(state);
    struct net n = mlp();
    struct mlo_plan *plan = compile(n.model, NULL, 0);
    struct mlo_program *program;
    struct mlo_tensor in[2] = {{0}}, out[2] = {{0}};
    struct mlo_error problem = {0};
    fill(n.model, in, 3);
    MUST(cuda_engine.load(plan, &program, err));
    fake->fail_next("cuGraphLaunch", 1, CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(cuda_engine.run(program, in, out, &problem), MLO_EIO);
    assert_non_null(strstr(problem.message, "CUDA_ERROR_LAUNCH_FAILED"));
    MUST(cuda_engine.run(program, in, out, err));
    in[0].dims[0] = 1;
    assert_int_equal(cuda_engine.run(program, in, out, &problem), MLO_EINVAL);
    in[0].dims[0] = 2;
    cuda_engine.unload(program);
    setenv("MLOPT_CUDA_GRAPHS", "off", 1);
    MUST(cuda_engine.load(plan, &program, err));
    fake->fail_next("cuLaunchKernel", 2, CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(cuda_engine.run(program, in, out, &problem), MLO_EIO);
    assert_non_null(strstr(problem.where, "node '"));
    cuda_engine.unload(program);
    unsetenv("MLOPT_CUDA_GRAPHS");
    for (int i = 0; i < 2; i++) {
        mlo_tensor_clear(&in[i]);
        mlo_tensor_clear(&out[i]);
    }
    cuda_engine.free_plan(plan);
    mlo_model_free(n.model);
    assert_int_equal(fake->live(), 0);
}

static void test_load__refuses_a_gpu_that_the_plan_is_not_for(void **state)
{
    MLO_UNUSED(state);
    struct net n = mlp();
    struct mlo_plan *plan = compile(n.model, NULL, 0);
    struct mlo_program *program = NULL;
    struct mlo_error problem = {0};
    setenv("FAKE_CUDA_SM", "80", 1);
    assert_int_equal(cuda_engine.load(plan, &program, &problem), MLO_ESTALE);
    assert_non_null(strstr(problem.message, "sm_90"));
    assert_non_null(strstr(problem.message, "sm_80"));
    assert_non_null(strstr(problem.hint, "cuda:sm80"));
    unsetenv("FAKE_CUDA_SM");
    check_model(n.model, plan);
    cuda_engine.free_plan(plan);
    mlo_model_free(n.model);
    assert_int_equal(fake->live(), 0);
}

/* --- plans as files ------------------------------------------------------------------------------------- */

struct saved {
    void *bytes; /* a multiple of 64 */
    size_t size;
};

static struct saved save(const struct mlo_plan *plan)
{
    struct saved s = {0};
    int fd = memfd_create("plan", MFD_CLOEXEC);
    MUST(cuda_engine.save(plan, fd, err));
    s.size = (size_t)lseek(fd, 0, SEEK_END);
    assert_int_equal(posix_memalign(&s.bytes, 64, s.size), 0);
    assert_int_equal(pread(fd, s.bytes, s.size, 0), s.size);
    close(fd);
    return s;
}

/* Arithmetic operations and bytes of each step, for the floors. */
static json_t *costs_of(const struct mlo_plan *plan)
{
    json_t *costs = json_array();
    for (int i = 0; i < plan->schedule->step_count; i++) {
        struct cuda_cost c;
        cuda_step_cost(plan->schedule, &plan->schedule->steps[i], &c);
        assert_true(c.ops > 0);
        json_array_append_new(
            costs, json_pack("[f, i, f, f, f]", c.ops, c.rate, c.read_bytes, c.weight_bytes, c.write_bytes));
    }
    return costs;
}

static void test_save__restores_what_runs_alike(void **state)
{
    MLO_UNUSED(state);
    struct net nets[] = {mlp(), cnn()};
    for (size_t i = 0; i < MLO_COUNT(nets); i++) {
        struct mlo_plan *plan = compile(nets[i].model, NULL, 0), *again;
        struct saved s = save(plan);
        json_t *before, *after, *costs = costs_of(plan), *restored;
        MUST(cuda_engine.describe(plan, &before, err));
        cuda_engine.free_plan(plan);
        MUST(cuda_engine.restore(s.bytes, s.size, &again, err));
        restored = costs_of(again);
        assert_true(json_equal(costs, restored));
        json_decref(costs);
        json_decref(restored);
        MUST(cuda_engine.describe(again, &after, err));
        assert_true(json_equal(before, after));
        assert_int_equal(cuda_engine.interface(again)->graph->input_count, 1);
        assert_int_equal(cuda_engine.interface(again)->graph->output_count, nets[i].graph->output_count);
        check_model(nets[i].model, again);
        cuda_engine.free_plan(again);
        json_decref(before);
        json_decref(after);
        free(s.bytes);
        mlo_model_free(nets[i].model);
    }
    assert_int_equal(fake->live(), 0);
}

static unsigned char *find(const void *in, size_t size, const void *what, size_t length)
{
    unsigned char *at = memmem(in, size, what, length);
    assert_non_null(at);
    return at;
}

/* A shape whose count of elements wraps round to the output's, each at the same place. */
static void test_restore__refuses_an_output_of_another_shape(void **state)
{
    MLO_UNUSED(state);
    struct net n = mlp();
    struct mlo_plan *plan = compile(n.model, NULL, 0), *again;
    struct saved s = save(plan);
    struct mlo_error problem = {0};
    struct cuda_tensor own, t = plan->schedule->output_tensors[0];
    memcpy(&own, &t, sizeof own);
    unsigned char *at = find(s.bytes, s.size, &own, sizeof own);
    t.rank = 2;
    t.dims[0] = 5;
    t.dims[1] = 0x3333333333333334;
    t.strides[0] = t.strides[1] = 0;
    memcpy(at, &t, sizeof t);
    assert_int_equal(cuda_engine.restore(s.bytes, s.size, &again, &problem), MLO_EFORMAT);
    t.dims[0] = 1; /* fewer than the output has */
    t.dims[1] = 1;
    memcpy(at, &t, sizeof t);
    assert_int_equal(cuda_engine.restore(s.bytes, s.size, &again, &problem), MLO_EFORMAT);
    t.dims[0] = 0; /* empty, and behind that a dimension that cannot be */
    t.dims[1] = -1;
    memcpy(at, &t, sizeof t);
    assert_int_equal(cuda_engine.restore(s.bytes, s.size, &again, &problem), MLO_EFORMAT);
    memcpy(at, &own, sizeof own);
    MUST(cuda_engine.restore(s.bytes, s.size, &again, err));
    cuda_engine.free_plan(again);
    cuda_engine.free_plan(plan);
    free(s.bytes);
    mlo_model_free(n.model);
}

/* An image that has the digest that it should, and names bytes behind its end. */
static void test_restore__refuses_an_image_that_is_not_whole(void **state)
{
    MLO_UNUSED(state);
    struct net n = mlp();
    struct mlo_plan *plan = compile(n.model, NULL, 0), *again;
    struct saved s = save(plan);
    struct mlo_error problem = {0};
    struct cuda_work *w = NULL;
    for (int i = 0; i < plan->work_count && !w; i++)
        w = plan->works[i].kind == CUDA_WORK_KERNEL ? &plan->works[i] : NULL;
    assert_non_null(w);
    unsigned char *image = find(s.bytes, s.size, w->image, w->image_bytes),
                  *digest = find(s.bytes, s.size, w->image_digest.bytes, sizeof w->image_digest.bytes);
    Elf64_Ehdr head;
    Elf64_Shdr section;
    memcpy(&head, image, sizeof head);
    unsigned char *last = image + head.e_shoff + (head.e_shnum - 1u) * sizeof section;
    memcpy(&section, last, sizeof section);
    section.sh_size = w->image_bytes;
    memcpy(last, &section, sizeof section);
    struct mlo_digest made;
    mlo_digest_of(image, w->image_bytes, &made);
    memcpy(digest, made.bytes, sizeof made.bytes);
    assert_int_equal(cuda_engine.restore(s.bytes, s.size, &again, &problem), MLO_EFORMAT);
    assert_non_null(strstr(problem.message, w->entry));
    cuda_engine.free_plan(plan);
    free(s.bytes);
    mlo_model_free(n.model);
}

/* Each byte of the fields in turn, and each length: an error, or a plan that can be described and freed. */
static void test_restore__survives_any_damage(void **state)
{
    MLO_UNUSED(state);
    struct net n = cnn();
    struct mlo_plan *plan = compile(n.model, NULL, 0), *again;
    struct saved s = save(plan);
    unsigned char *bytes = s.bytes;
    uint64_t fields;
    size_t refused = 0, tried = 0;
    memcpy(&fields, bytes + 8, sizeof fields);
    for (size_t i = 0; i < fields + 32; i += 1 + i % 3) {
        static const unsigned char masks[] = {0x01, 0x80, 0xff};
        for (size_t k = 0; k < MLO_COUNT(masks); k++) {
            struct mlo_error problem = {0};
            json_t *described = NULL;
            bytes[i] ^= masks[k];
            tried++;
            if (cuda_engine.restore(bytes, s.size, &again, &problem) == MLO_OK) {
                MUST(cuda_engine.describe(again, &described, err));
                json_decref(described);
                cuda_engine.free_plan(again);
            } else {
                refused++;
                assert_true(problem.message[0] != 0);
            }
            bytes[i] ^= masks[k];
        }
    }
    assert_true(refused > tried / 4);
    for (size_t size = 0; size < s.size; size += 1 + size / 7) {
        struct mlo_error problem = {0};
        void *cut = NULL;
        assert_int_equal(posix_memalign(&cut, 64, size + 1), 0);
        memcpy(cut, bytes, size);
        assert_int_equal(cuda_engine.restore(cut, size, &again, &problem), MLO_EFORMAT);
        free(cut);
    }
    /* what is executed must be what was compiled */
    bool found = false;
    for (size_t i = (size_t)fields; i + 20 < s.size && !found; i++)
        if (memcmp(bytes + i, "__global__", 10) == 0) {
            struct mlo_error problem = {0};
            bytes[i] = 'X';
            found = true;
            assert_int_equal(cuda_engine.restore(bytes, s.size, &again, &problem), MLO_EDIGEST);
        }
    assert_true(found);
    free(s.bytes);
    cuda_engine.free_plan(plan);
    mlo_model_free(n.model);
}

static void test_measure__times_the_whole_the_copies_and_each_step(void **state)
{
    MLO_UNUSED(state);
    struct net n = mlp();
    struct mlo_plan *plan = compile(n.model, NULL, 0);
    struct mlo_program *program;
    struct mlo_tensor in[2] = {{0}};
    struct mlo_timing_request request = {.min_calls = 7, .warm_up_calls = 2, .max_samples = 5};
    json_t *out, *profile;
    fill(n.model, in, 3);
    MUST(cuda_engine.load(plan, &program, err));
    MUST(cuda_engine.measure(program, in, &request, true, &out, err));
    static const char *const samples[] = {"replay_us", "upload_us", "download_us"};
    for (size_t i = 0; i < MLO_COUNT(samples); i++)
        assert_int_equal(json_array_size(json_object_get(out, samples[i])), 5);
    assert_int_equal(json_array_size(json_object_get(out, "steps")), plan->schedule->step_count);
    assert_true(mlo_json_f64(json_array_get(json_object_get(out, "steps"), 0), "us", 0) == 250);
    assert_int_equal(mlo_json_i64(out, "arena_bytes", -1), plan->schedule->arena_bytes);
    const json_t *floor = json_object_get(out, "floor"); /* by the driver's clocks and bus */
    assert_true(mlo_json_f64(floor, "floor_us", 0) > 0);
    assert_string_equal(mlo_json_str(floor, "device", ""), plan->device->gpu.name);
    struct cuda_peaks peaks;
    MUST(cuda_device_peaks(&plan->device->gpu, &peaks, err));
    assert_true(peaks.memory == 2 * 2619e6 * 5120 / 8);
    assert_true(peaks.ops[CUDA_RATE_F16] == 4096 * 1980e6 * 132);
    MUST(cuda_engine.profile(program, in, 3, &profile, err));
    assert_true(mlo_json_f64(json_array_get(json_object_get(profile, "nodes"), 0), "us", 0) == 250);
    json_decref(out);
    json_decref(profile);
    mlo_tensor_clear(in);
    cuda_engine.unload(program);
    cuda_engine.free_plan(plan);
    mlo_model_free(n.model);
    assert_int_equal(fake->live(), 0);
}

/* Programs of one plan that take turns: constants once, values for each; the others begin after the first
 * one's event, and its last event comes after theirs. */
static void test_measure__several_streams_take_turns_on_one_plan(void **state)
{
    MLO_UNUSED(state);
    enum { STREAMS = 3, CALLS = 16 * STREAMS };
    struct net n = mlp();
    struct mlo_plan *plan = compile(n.model, NULL, 0);
    struct mlo_program *program;
    struct cuda_together *together;
    struct mlo_tensor in[2] = {{0}};
    struct mlo_buf want = MLO_BUF_INIT, got = MLO_BUF_INIT;
    char line[64];
    double us = 0;
    fill(n.model, in, 3);
    fake->clear();
    MUST(cuda_engine.load(plan, &program, err));
    MUST(cuda_together_new(program, in, STREAMS, &together, err));
    snprintf(line, sizeof line, "cuMemAlloc %zu\n", plan->schedule->constant_bytes);
    assert_int_equal(count_of(line), 1);
    snprintf(line, sizeof line, "cuMemAlloc %zu\n", plan->schedule->arena_bytes);
    assert_int_equal(count_of(line), STREAMS);
    assert_int_equal(count_of("cuMemAlloc "), 1 + STREAMS);
    setenv("FAKE_CUDA_STREAMS", "1", 1);
    fake->clear();
    MUST(cuda_together_time(together, &us, err));
    unsetenv("FAKE_CUDA_STREAMS");
    assert_true(fabs(us - 250.0 / CALLS) < 1e-9);
    int first = -1;
    for (const char *at = fake->log(); *at; at += strcspn(at, "\n") + 1) { /* what concerns streams */
        int waits = -1, for_event = -1;
        if (sscanf(at, "stream %d waits for %d", &waits, &for_event) == 2)
            first = first < 0 ? for_event : first;
        if (strncmp(at, "stream ", 7) == 0 || strncmp(at, "on stream ", 10) == 0)
            mlo_buf_append(&got, at, strcspn(at, "\n") + 1);
    }
    for (int i = 1; i < STREAMS; i++)
        mlo_buf_printf(&want, "stream %d waits for %d\n", first + i, first);
    for (int i = 0; i < CALLS; i++)
        mlo_buf_printf(&want, "on stream %d\n", first + i % STREAMS);
    for (int i = 1; i < STREAMS; i++)
        mlo_buf_printf(&want, "stream %d waits for %d\n", first, first + i);
    assert_string_equal(mlo_buf_str(&got), mlo_buf_str(&want));
    cuda_together_free(together);

    const unsigned counts[] = {1, 2}, too_many[] = {MLO_STREAMS_MAX + 1};
    struct mlo_timing_request request = {
        .min_calls = 3, .warm_up_calls = 1, .max_samples = 5, .streams = counts, .stream_count = 2};
    json_t *out;
    struct mlo_error problem = {0};
    MUST(cuda_engine.measure(program, in, &request, false, &out, err));
    const json_t *rows = json_object_get(out, "together");
    assert_int_equal(json_array_size(rows), 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(mlo_json_i64(json_array_get(rows, i), "streams", 0), counts[i]);
        assert_int_equal(json_array_size(json_object_get(json_array_get(rows, i), "call_us")), 3);
    }
    json_decref(out);
    request.streams = too_many;
    request.stream_count = 1;
    assert_int_equal(cuda_engine.measure(program, in, &request, false, &out, &problem), MLO_EINVAL);
    fake->clear();
    fake->fail_next("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY); /* the third program's values */
    assert_int_equal(cuda_together_new(program, in, STREAMS, &together, &problem), MLO_ENOMEM);
    cuda_engine.unload(program);
    mlo_buf_clear(&want);
    mlo_buf_clear(&got);
    mlo_tensor_clear(in);
    cuda_engine.free_plan(plan);
    mlo_model_free(n.model);
    assert_int_equal(fake->live(), 0);
}

/* Own kernels are all there is here: each product is compiled, timed in graphs over buffers that take turns,
 * compared with itself, and taken. */
static void test_tune__measures_what_the_driver_can_run(void **state)
{
    MLO_UNUSED(state);
    struct net n = mlp();
    json_t *choices = NULL, *again = NULL, *entry;
    const char *key;
    struct mlo_compile_options options = {.batch = 2, .target = "cuda:sm90"};
    struct mlo_tuning_request request = {0};
    MUST(cuda_engine.tune(n.model, &options, &request, &choices, err));
    MUST(mlo_choices_check(choices, "what was tuned", err));
    const json_t *machine = json_object_get(choices, "machine"), *steps = json_object_get(choices, "steps");
    assert_string_equal(mlo_json_str(machine, "target", ""), "cuda:sm90");
    assert_non_null(json_object_get(machine, "gpu"));
    assert_int_equal(json_object_size(steps), 2); /* two products of different sizes */
    json_object_foreach((json_t *)steps, key, entry)
    {
        assert_string_equal(mlo_json_str(json_object_get(entry, "choice"), "library", ""), "own");
        assert_true(mlo_json_f64(json_object_get(entry, "us"), "value", 0) > 0);
        assert_true(mlo_json_f64(entry, "error", 1) == 0);
    }
    request.known = choices;
    MUST(cuda_engine.tune(n.model, &options, &request, &again, err));
    assert_true(json_equal(choices, again));
    options.choices = choices;
    struct mlo_plan *plan = NULL;
    json_t *described, *step;
    size_t i, measured = 0;
    MUST(cuda_engine.compile(n.model, &options, &plan, err));
    MUST(cuda_engine.describe(plan, &described, err));
    assert_string_equal(mlo_json_str(described, "choice", ""), "measured");
    json_array_foreach(json_object_get(described, "nodes"), i, step)
    { /* an own kernel that was measured to be fastest, or a step that nothing else computes */
        const char *chosen = mlo_json_str(step, "chosen", "");
        measured += strcmp(chosen, "measured") == 0;
        assert_true(strcmp(chosen, "measured") == 0 || strcmp(chosen, "only way") == 0);
    }
    assert_int_equal(measured, 2);
    json_decref(described);
    cuda_engine.free_plan(plan);
    setenv("FAKE_CUDA_SM", "80", 1); /* what it measures fits no other GPU */
    struct mlo_error problem = {0};
    json_t *none = NULL;
    assert_int_equal(cuda_engine.tune(n.model, &options, &request, &none, &problem), MLO_EUNAVAILABLE);
    assert_null(none);
    assert_non_null(strstr(problem.hint, "cuda:sm80"));
    unsetenv("FAKE_CUDA_SM");
    json_decref(choices);
    json_decref(again);
    mlo_model_free(n.model);
    assert_int_equal(fake->live(), 0); /* everything was given back */
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run__agrees_with_the_reference_in_graphs_and_without),
        cmocka_unit_test(test_run__takes_memory_once_and_starts_steps_in_order),
        cmocka_unit_test(test_observe__shows_the_values_that_the_reference_has),
        cmocka_unit_test(test_load__gives_everything_back_wherever_it_fails),
        cmocka_unit_test(test_run__says_what_failed_and_the_next_run_is_right),
        cmocka_unit_test(test_load__refuses_a_gpu_that_the_plan_is_not_for),
        cmocka_unit_test(test_save__restores_what_runs_alike),
        cmocka_unit_test(test_restore__refuses_an_output_of_another_shape),
        cmocka_unit_test(test_restore__refuses_an_image_that_is_not_whole),
        cmocka_unit_test(test_restore__survives_any_damage),
        cmocka_unit_test(test_measure__times_the_whole_the_copies_and_each_step),
        cmocka_unit_test(test_measure__several_streams_take_turns_on_one_plan),
        cmocka_unit_test(test_tune__measures_what_the_driver_can_run),
    };
    if (!cuda_host_possible()) {
        printf("skipped: no C compiler, so kernels cannot run on the CPU\n");
        return 77;
    }
    case_begin(MLOPT_FAKE_CUDA);
    const struct cuda_library_state *driver = cuda_library_open(CUDA_LIB_DRIVER);
    void *library = driver->path ? dlopen(driver->path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    fake = library ? dlsym(library, FAKE_CUDA_SYMBOL) : NULL;
    if (!fake) {
        printf("the driver of the tests is not found: %s\n", driver->problem.message);
        return case_end(1);
    }
    return case_end(cmocka_run_group_tests(tests, NULL, NULL));
}
