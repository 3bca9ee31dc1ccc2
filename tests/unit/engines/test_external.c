/* Engines in a child process: this program is its own adapter, which runs models on the reference engine.
 * MLO_TEST_ADAPTER says how the adapter behaves. */
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engines/external/external_impl.h"
#include "helpers.h"

enum { FOREVER_MS = 60000 };

/* --- the adapter -------------------------------------------------------------------------------------- */

struct adapter {
    const struct mlo_engine *engine;
    struct mlo_model *model;
    struct mlo_plan *plan;
    struct mlo_program *program;
    int64_t threads;
};

static void answer(json_t *header, const struct ext_bytes *parts, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += parts[i].size;
    json_object_set_new(header, "payload_bytes", json_integer((json_int_t)bytes));
    if (ext_send(0, header, parts, count, mlo_clock_ns() + 120000000000u, NULL) != MLO_OK)
        _exit(1);
    json_decref(header);
}

static enum mlo_status adapter_load(struct adapter *a, const struct ext_reply *request, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_compile_options o = {0};
    a->threads = mlo_json_i64(request->header, "threads", 0);
    MLO_TRY(mlo_engine_find("reference", &a->engine, err));
    MLO_TRY(mlo_onnx_parse(request->payload, request->payload_bytes, "sent", &a->model, err));
    MLO_TRY(a->engine->compile(a->model, &o, &a->plan, err));
    MLO_TRY(a->engine->load(a->plan, &a->program, err));
out:
    return status;
}

static enum mlo_status adapter_run(struct adapter *a, const struct ext_reply *request, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_tensor in = {0}, out[4] = {0};
    struct ext_bytes parts[4];
    const json_t *entry = json_array_get(json_object_get(request->header, "tensors"), 0);
    const json_t *dims = json_object_get(entry, "dims");
    int64_t shape[MLO_MAX_RANK];
    for (size_t i = 0; i < json_array_size(dims); i++)
        shape[i] = json_integer_value(json_array_get(dims, i));
    MLO_TRY(mlo_tensor_init(&in, mlo_dtype_parse(mlo_json_str(entry, "dtype", "")),
                            (int)json_array_size(dims), shape, err));
    memcpy(in.data, request->payload, in.size_bytes);
    MLO_TRY(a->engine->run(a->program, &in, out, err));
    json_t *list = json_array();
    int count = a->model->graph->output_count;
    for (int i = 0; i < count; i++) {
        json_t *d = json_array();
        for (int k = 0; k < out[i].rank; k++)
            json_array_append_new(d, json_integer(out[i].dims[k]));
        json_array_append_new(list, json_pack("{s:s,s:s,s:o}", "name", a->model->graph->outputs[i]->name,
                                              "dtype", mlo_dtype_name(out[i].dtype), "dims", d));
        parts[i] = (struct ext_bytes){out[i].data, out[i].size_bytes};
    }
    answer(json_pack("{s:o}", "tensors", list), parts, (size_t)count);
out:
    mlo_tensor_clear(&in);
    for (int i = 0; i < 4; i++)
        mlo_tensor_clear(&out[i]);
    return status;
}

static enum mlo_status adapter_verb(struct adapter *a, const char *verb, const struct ext_reply *request,
                                    struct mlo_error *err)
{
    if (strcmp(verb, "hello") == 0) {
        answer(json_pack("{s:i,s:s,s:s}", "protocol", 1, "runtime", "mirror", "version", "7.1"), NULL, 0);
    } else if (strcmp(verb, "load") == 0) {
        enum mlo_status status = adapter_load(a, request, err);
        if (status == MLO_OK)
            answer(json_object(), NULL, 0);
        return status;
    } else if (strcmp(verb, "run") == 0) {
        return adapter_run(a, request, err);
    } else if (strcmp(verb, "bench") == 0) {
        double calls = (double)mlo_json_i64(request->header, "min_calls", 0);
        answer(json_pack("{s:[f,f,f],s:i,s:i}", "samples_us", 3.0, 1.0, calls, "calls", 3, "peak_rss_bytes",
                         12345),
               NULL, 0);
    } else if (strcmp(verb, "describe") == 0) {
        answer(json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "nodes", "node", "one", "precision", "int8", "node",
                         "threads", "precision", a->threads == 3 ? "f32" : "wrong"),
               NULL, 0);
    } else {
        answer(json_object(), NULL, 0);
    }
    return MLO_OK;
}

static int adapter_main(void)
{
    struct adapter a = {0};
    const char *how = getenv("MLO_TEST_ADAPTER");
    for (;;) {
        struct ext_reply request;
        struct mlo_error err = {0};
        if (ext_receive(0, mlo_clock_ns() + 600000000000u, &request, NULL) != MLO_OK)
            break;
        const char *verb = mlo_json_str(request.header, "verb", "");
        bool hello = strcmp(verb, "hello") == 0, quit = strcmp(verb, "quit") == 0;
        if (hello && strcmp(how, "unavailable") == 0) {
            answer(json_pack("{s:{s:s,s:s,s:s}}", "error", "code", "unavailable", "message", "no mirror here",
                             "hint", "hang one up"),
                   NULL, 0);
        } else if (hello && strcmp(how, "old") == 0) {
            answer(json_pack("{s:i}", "protocol", 99), NULL, 0);
        } else if (!hello && !quit && strcmp(how, "dies") == 0) {
            fputs("Traceback\nMirrorError: it broke\n", stderr);
            _exit(3);
        } else if (!hello && !quit && strcmp(how, "garbage") == 0) {
            if (write(0, "\xff\xff\xff\xff", 4) != 4)
                _exit(1);
        } else if (!hello && !quit && strcmp(how, "sleeps") == 0) {
            pause();
        } else if (!hello && !quit && strcmp(how, "liar") == 0) {
            answer(json_pack("{s:[{s:s,s:[I]}]}", "tensors", "dtype", "float32", "dims", (json_int_t)1 << 40),
                   NULL, 0);
        } else if (adapter_verb(&a, verb, &request, &err) != MLO_OK) {
            answer(json_pack("{s:{s:s,s:s}}", "error", "code", mlo_status_info(err.status)->code, "message",
                             err.message),
                   NULL, 0);
        }
        ext_reply_clear(&request);
        if (quit)
            break;
    }
    if (a.engine) {
        a.engine->unload(a.program);
        a.engine->free_plan(a.plan);
    }
    mlo_model_free(a.model);
    return 0;
}

/* --- the tests ---------------------------------------------------------------------------------------- */

static const struct mlo_engine *mirror(const char *how)
{
    const struct mlo_engine *e;
    char *self = mlo_process_self();
    setenv("MLOPT_ADAPTER", self, 1);
    setenv("MLO_TEST_ADAPTER", how, 1);
    free(self);
    MUST(mlo_engine_find("external", &e, err));
    return e;
}

static struct net small_net(struct mlo_value **inner)
{
    struct net n = net_new(5);
    struct mlo_value *x = net_input(&n, "x", 4, (int64_t[]){-1, 3, 8, 8});
    *inner = net_conv(&n, x, &(struct conv_spec){3, 4, 3, 1, 1, 1, 1, 8, true});
    net_finish(&n, net_op(&n, "Relu", *inner, NULL, NULL));
    return n;
}

static void test_wire__is_length_header_payload(void **state)
{
    MLO_UNUSED(state);
    int pair[2];
    char got[64];
    static const char want[] = "\x13\0\0\0{\"payload_bytes\":2}hi";
    json_t *header = json_pack("{s:i}", "payload_bytes", 2);
    struct ext_bytes part = {"hi", 2};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    MUST(ext_send(pair[0], header, &part, 1, mlo_clock_ns() + 120000000000u, err));
    assert_int_equal(read(pair[1], got, sizeof got), sizeof want - 1);
    assert_memory_equal(got, want, sizeof want - 1);
    assert_int_equal(write(pair[1], want, sizeof want - 1), sizeof want - 1);
    struct ext_reply reply;
    MUST(ext_receive(pair[0], mlo_clock_ns() + 120000000000u, &reply, err));
    assert_int_equal(reply.payload_bytes, 2);
    assert_memory_equal(reply.payload, "hi", 2);
    ext_reply_clear(&reply);
    assert_int_equal(ext_receive(pair[0], mlo_clock_ns() + 20000000u, &reply, NULL), MLO_ETIMEOUT);
    close(pair[1]);
    assert_int_equal(ext_receive(pair[0], mlo_clock_ns() + 120000000000u, &reply, NULL), MLO_EIO);
    close(pair[0]);
    json_decref(header);
}

static void test_run__gives_what_the_runtime_gives(void **state)
{
    MLO_UNUSED(state);
    struct mlo_value *inner;
    struct net n = small_net(&inner);
    struct mlo_tensor in = random_tensor(4, (int64_t[]){2, 3, 8, 8}, 3);
    struct mlo_compile_options o = {.batch = 2, .threads = 3};
    json_t *description = NULL;
    const struct mlo_engine *e = mirror("good");
    MUST(e->probe(err));
    assert_string_equal(e->version(), "external (mirror 7.1)");
    struct mlo_tensor want = run_model("reference", n.model, &o, &in, NULL);
    struct mlo_tensor got = run_model("external", n.model, &o, &in, &description);
    assert_close(&got, &want, 0, "external");
    assert_int_equal(mlo_json_i64(description, "int8_nodes", -1), 1);
    const json_t *second = json_array_get(json_object_get(description, "nodes"), 1);
    assert_string_equal(mlo_json_str(second, "precision", ""), "f32"); /* it was told the thread count */
    json_decref(description);
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

struct seen {
    int count;
    double sums[4];
};

static enum mlo_status note(void *arg, const char *name, const struct mlo_tensor *value,
                            struct mlo_error *err)
{
    MLO_UNUSED(name);
    MLO_UNUSED(err);
    struct seen *s = arg;
    for (size_t i = 0; i < mlo_tensor_count(value); i++)
        s->sums[s->count] += ((const float *)value->data)[i];
    s->count++;
    return MLO_OK;
}

static void test_observe__delivers_inner_values(void **state)
{
    MLO_UNUSED(state);
    struct mlo_value *inner;
    struct net n = small_net(&inner);
    struct mlo_tensor in = random_tensor(4, (int64_t[]){1, 3, 8, 8}, 4);
    const char *names[] = {inner->name, "x"};
    struct mlo_compile_options o = {.batch = 1, .observe = names, .observe_count = 2};
    struct seen seen[2] = {0};
    mirror("good");
    for (int k = 0; k < 2; k++) {
        const struct mlo_engine *e;
        struct mlo_plan *plan;
        struct mlo_program *program;
        struct mlo_tensor out = {0};
        MUST(mlo_engine_find(k ? "external" : "reference", &e, err));
        MUST(e->compile(n.model, &o, &plan, err));
        MUST(e->load(plan, &program, err));
        MUST(e->observe(program, &in, &out, note, &seen[k], err));
        assert_int_equal(out.dims[1], 4);
        e->unload(program);
        e->free_plan(plan);
        mlo_tensor_clear(&out);
    }
    assert_int_equal(seen[1].count, 2);
    assert_memory_equal(&seen[0], &seen[1], sizeof seen[0]);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_time__is_measured_by_the_adapter(void **state)
{
    MLO_UNUSED(state);
    struct mlo_value *inner;
    struct net n = small_net(&inner);
    struct mlo_tensor in = random_tensor(4, (int64_t[]){1, 3, 8, 8}, 4);
    struct mlo_compile_options o = {.batch = 1};
    struct mlo_timing_request request = {.seconds = 1, .min_calls = 42, .max_samples = 100};
    struct mlo_timing timing;
    struct mlo_plan *plan;
    struct mlo_program *one, *two;
    const struct mlo_engine *e = mirror("good");
    MUST(e->compile(n.model, &o, &plan, err));
    MUST(e->load(plan, &one, err));
    MUST(e->load(plan, &two, err)); /* a second child */
    MUST(e->time(two, &in, &request, &timing, err));
    assert_int_equal(timing.count, 3);
    assert_int_equal(timing.calls, 3);
    assert_int_equal(timing.peak_rss_bytes, 12345);
    assert_true(timing.samples_us[0] == 3 && timing.samples_us[2] == 42);
    free(timing.samples_us);
    e->unload(one);
    e->unload(two);
    e->free_plan(plan);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_failures__are_told(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *how, *says;
        enum mlo_status status;
    } cases[] = {
        {"unavailable", "no mirror here", MLO_EUNAVAILABLE},
        {"old", "protocol 99, not 1", MLO_EUNSUPPORTED},
        {"dies", "verb 'load': the adapter is gone: MirrorError: it broke", MLO_EIO},
        {"garbage", "header of 4294967295 bytes", MLO_EFORMAT},
    };
    struct mlo_value *inner;
    struct net n = small_net(&inner);
    struct mlo_compile_options o = {.batch = 1};
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_plan *plan = NULL;
        struct mlo_error problem = {0};
        const struct mlo_engine *e = mirror(cases[i].how);
        assert_int_equal(e->compile(n.model, &o, &plan, &problem), cases[i].status);
        if (!strstr(problem.message, cases[i].says))
            fail_msg("%s: '%s'", cases[i].how, problem.message);
    }
    struct mlo_error problem = {0};
    assert_int_equal(mirror("unavailable")->probe(&problem), MLO_EUNAVAILABLE);
    assert_string_equal(problem.hint, "hang one up");
    mirror("good");
    setenv("MLOPT_ADAPTER", "/nonexistent/adapter", 1);
    const struct mlo_engine *e;
    MUST(mlo_engine_find("external", &e, err));
    assert_int_equal(e->probe(&problem), MLO_EUNAVAILABLE);
    unsetenv("MLOPT_ADAPTER");
    assert_int_equal(e->probe(&problem), MLO_EUNAVAILABLE);
    setenv("MLOPT_PYTHON", "/nonexistent/python", 1);
    MUST(mlo_engine_find("ort", &e, err));
    assert_int_equal(e->probe(&problem), MLO_EUNAVAILABLE);
    assert_non_null(strstr(problem.message, "/nonexistent/python"));
    mlo_model_free(n.model);
}

static void test_run__refuses_tensors_beyond_the_payload(void **state)
{
    MLO_UNUSED(state);
    struct mlo_value *inner;
    struct net n = small_net(&inner);
    struct mlo_tensor in = random_tensor(4, (int64_t[]){1, 3, 8, 8}, 4), out = {0};
    struct mlo_compile_options o = {.batch = 1};
    struct mlo_plan *plan;
    struct mlo_program *program;
    struct mlo_error problem = {0};
    const struct mlo_engine *e = mirror("liar");
    MUST(e->compile(n.model, &o, &plan, err));
    MUST(e->load(plan, &program, err));
    assert_int_equal(e->run(program, &in, &out, &problem), MLO_EFORMAT);
    e->unload(program);
    e->free_plan(plan);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_ask__ends_an_adapter_that_takes_too_long(void **state)
{
    MLO_UNUSED(state);
    static const struct ext_runtime runtime = {.name = "external"};
    struct ext_child *child;
    struct ext_reply reply;
    struct mlo_error problem = {0};
    mirror("sleeps");
    MUST(ext_child_start(&runtime, &child, err));
    pid_t pid = child->pid;
    assert_int_equal(ext_child_ask(child, "load", NULL, NULL, 0, 50, &reply, &problem), MLO_ETIMEOUT);
    assert_int_equal(kill(pid, 0), -1); /* ended and reaped */
    assert_int_equal(ext_child_ask(child, "load", NULL, NULL, 0, FOREVER_MS, &reply, &problem),
                     MLO_EUNAVAILABLE);
    ext_child_stop(child);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "mlopt-adapter") == 0)
        return adapter_main();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire__is_length_header_payload),
        cmocka_unit_test(test_run__gives_what_the_runtime_gives),
        cmocka_unit_test(test_observe__delivers_inner_values),
        cmocka_unit_test(test_time__is_measured_by_the_adapter),
        cmocka_unit_test(test_failures__are_told),
        cmocka_unit_test(test_run__refuses_tensors_beyond_the_payload),
        cmocka_unit_test(test_ask__ends_an_adapter_that_takes_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
