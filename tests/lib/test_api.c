/* libmlopt.so by its public header. Models are built with the graph room, which is linked statically beside
 * the library: the library's own copy is hidden. */
#include <mlopt.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

#include <cmocka.h>

#include "graph/graph.h"

enum { WIDTH = 32, THREADS = 4 };

#define MUST(expr)                                                                                           \
    do {                                                                                                     \
        struct mlopt_error must_error = {0}, *error = &must_error;                                           \
        if ((expr) != MLOPT_OK)                                                                              \
            fail_msg("%s: %s (%s) %s", #expr, error->message, error->where, error->hint);                    \
    } while (0)

/* y = Relu(x w), x is [batch, WIDTH]; with `open`, z = NonZero(y): a shape that data decides. */
static struct mlo_buf model_bytes(bool open)
{
    struct mlo_model *m = NULL;
    struct mlo_error err;
    struct mlo_tensor w = {0};
    struct mlo_buf out = MLO_BUF_INIT;
    struct mlo_type type = {MLO_FLOAT32, 2, {{-1, "batch"}, {WIDTH, NULL}}, NULL};
    assert_int_equal(mlo_model_new(17, &m, &err), MLO_OK);
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type), *h, *y, *z;
    assert_int_equal(mlo_graph_add_input(m->graph, x, &err), MLO_OK);
    assert_int_equal(mlo_tensor_init(&w, MLO_FLOAT32, 2, (int64_t[]){WIDTH, WIDTH}, &err), MLO_OK);
    for (int i = 0; i < WIDTH * WIDTH; i++)
        ((float *)w.data)[i] = (float)(i % 7 - 3);
    struct mlo_value *ins[] = {x, mlo_graph_add_constant_take(m->graph, "w", &w)};
    h = mlo_graph_add_value(m->graph, "h", NULL);
    y = mlo_graph_add_value(m->graph, "y", NULL);
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "MatMul", "matmul", ins, 2, &h, 1));
    assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "Relu", "relu", &h, 1, &y, 1));
    assert_int_equal(mlo_graph_add_output(m->graph, y, &err), MLO_OK);
    if (open) {
        z = mlo_graph_add_value(m->graph, "z", NULL);
        assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "NonZero", "nonzero", &y, 1, &z, 1));
        assert_int_equal(mlo_graph_add_output(m->graph, z, &err), MLO_OK);
    }
    assert_int_equal(mlo_graph_infer(m->graph, &err), MLO_OK);
    assert_int_equal(mlo_onnx_serialize(m, &out, &err), MLO_OK);
    mlo_model_free(m);
    return out;
}

static struct mlopt_session *open_model(bool open, const struct mlopt_options *options)
{
    struct mlopt_session *s = NULL;
    struct mlo_buf bytes = model_bytes(open);
    MUST(mlopt_session_open_memory(mlo_buf_str(&bytes), bytes.len, options, &s, error));
    mlo_buf_clear(&bytes);
    return s;
}

static struct mlopt_tensor input(float *data, int64_t batch)
{
    for (int64_t i = 0; i < batch * WIDTH; i++)
        data[i] = (float)((i * 5) % 11 - 5);
    return (struct mlopt_tensor){.type = MLOPT_FLOAT32,
                                 .rank = 2,
                                 .dims = {batch, WIDTH},
                                 .data = data,
                                 .size_bytes = (size_t)batch * WIDTH * sizeof *data};
}

static float expected(const float *x, int64_t row, int64_t column)
{
    float sum = 0;
    for (int64_t k = 0; k < WIDTH; k++)
        sum += x[row * WIDTH + k] * (float)((k * WIDTH + column) % 7 - 3);
    return sum > 0 ? sum : 0;
}

static void check(const float *x, const float *y, int64_t batch)
{
    for (int64_t r = 0; r < batch; r++)
        for (int64_t c = 0; c < WIDTH; c++)
            if (y[r * WIDTH + c] != expected(x, r, c)) /* small integers: exact in any order */
                fail_msg("row %d column %d: %g, not %g", (int)r, (int)c, (double)y[r * WIDTH + c],
                         (double)expected(x, r, c));
}

static void test_lib__describes_its_ports(void **state)
{
    (void)state;
    struct mlopt_session *s = open_model(true, NULL);
    struct mlopt_port p;
    assert_int_equal(mlopt_session_input_count(s), 1);
    assert_int_equal(mlopt_session_output_count(s), 2);
    assert_int_equal(mlopt_session_input(s, 0, &p), MLOPT_OK);
    assert_string_equal(p.name, "x");
    assert_int_equal(p.type, MLOPT_FLOAT32);
    assert_int_equal(p.rank, 2);
    assert_int_equal(p.dims[0], -1);
    assert_string_equal(p.dim_names[0], "batch");
    assert_int_equal(p.dims[1], WIDTH);
    assert_null(p.dim_names[1]);
    assert_int_equal(mlopt_session_output(s, 1, &p), MLOPT_OK);
    assert_int_equal(p.type, MLOPT_INT64);
    assert_int_equal(mlopt_session_output(s, 2, &p), MLOPT_NOT_FOUND);
    assert_int_equal(mlopt_session_input(s, 1, &p), MLOPT_NOT_FOUND);
    mlopt_session_close(s);
}

static void test_lib__runs_any_batch_into_memory_of_either_side(void **state)
{
    (void)state;
    struct mlopt_session *s = open_model(false, NULL);
    float x[8 * WIDTH], mine[8 * WIDTH + 1];
    struct mlopt_tensor y = {0};
    for (int64_t batch = 1; batch <= 8; batch *= 2) {
        struct mlopt_tensor in = input(x, batch), out = {.data = mine, .size_bytes = sizeof mine};
        mine[batch * WIDTH] = 77;
        MUST(mlopt_session_run(s, &in, 1, &out, 1, error));
        check(x, mine, batch);
        assert_ptr_equal(out.data, mine);
        assert_int_equal(out.size_bytes, (size_t)batch * WIDTH * sizeof(float));
        assert_int_equal(out.dims[0], batch);
        assert_int_equal(mine[batch * WIDTH], 77);
        assert_false(out.owned);
        MUST(mlopt_session_run(s, &in, 1, &y, 1, error));
        void *before = y.data;
        MUST(mlopt_session_run(s, &in, 1, &y, 1, error)); /* the same shape: written into the same memory */
        assert_ptr_equal(y.data, before);
        assert_true(y.owned);
        check(x, y.data, batch);
    }
    mlopt_tensor_clear(&y);
    assert_null(y.data);
    struct mlopt_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(mlopt_session_stats(s, &stats), MLOPT_OK);
    assert_int_equal(stats.plans, 4);
    assert_int_equal(stats.compiled, 4);
    assert_int_equal(stats.runs, 12);
    mlopt_session_close(s);
}

static void test_lib__shapes_known_at_run_only(void **state)
{
    (void)state;
    struct mlopt_session *s = open_model(true, NULL);
    float x[2 * WIDTH], y[2 * WIDTH];
    int64_t small[1], z[4 * WIDTH];
    struct mlopt_tensor in = input(x, 2), out[2] = {{.data = y, .size_bytes = sizeof y}, {0}};
    struct mlopt_error e = {0};
    MUST(mlopt_session_run(s, &in, 1, out, 2, error));
    int64_t found = out[1].dims[1];
    assert_int_equal(out[1].dims[0], 2);
    assert_true(found > 1 && found <= 2 * WIDTH);
    mlopt_tensor_clear(&out[1]);
    out[1] = (struct mlopt_tensor){.data = z, .size_bytes = sizeof z};
    out[0].size_bytes = sizeof y;
    MUST(mlopt_session_run(s, &in, 1, out, 2, error));
    assert_int_equal(out[1].dims[1], found);
    assert_ptr_equal(out[1].data, z);
    out[1] = (struct mlopt_tensor){.data = small, .size_bytes = sizeof small};
    assert_int_equal(mlopt_session_run(s, &in, 1, out, 2, &e), MLOPT_INVALID);
    assert_non_null(strstr(e.message, "'z'"));
    struct mlopt_tensor shapes[2];
    MUST(mlopt_session_prepare(s, &in, 1, shapes, 2, error));
    assert_int_equal(shapes[0].rank, 2);
    assert_int_equal(shapes[0].dims[0], 2);
    assert_int_equal(shapes[1].rank, -1);
    mlopt_session_close(s);
}

static void test_lib__refuses_wrong_calls(void **state)
{
    (void)state;
    struct mlopt_session *s = open_model(false, NULL), *none = NULL;
    float x[4 * WIDTH], y[WIDTH];
    struct mlopt_tensor in = input(x, 2), out = {.data = y, .size_bytes = sizeof y};
    struct mlopt_error e = {0};
    assert_int_equal(mlopt_session_run(s, &in, 1, &out, 1, &e), MLOPT_INVALID); /* room for one row */
    assert_int_equal(e.status, MLOPT_INVALID);
    assert_non_null(strstr(e.message, "output 'y' takes 256 bytes; its memory has 128"));
    out = (struct mlopt_tensor){0};
    in.size_bytes -= 4;
    assert_int_equal(mlopt_session_run(s, &in, 1, &out, 1, &e), MLOPT_INVALID);
    assert_non_null(strstr(e.message, "input 'x'"));
    in = input(x, 2);
    in.dims[1] = WIDTH / 2;
    in.dims[0] = 4;
    assert_int_equal(mlopt_session_run(s, &in, 1, &out, 1, &e), MLOPT_INVALID);
    assert_non_null(strstr(e.message, "the model takes float32[batch,32]"));
    in = input(x, 2);
    in.type = (enum mlopt_type)8; /* strings */
    assert_int_equal(mlopt_session_run(s, &in, 1, &out, 1, &e), MLOPT_INVALID);
    in = input(x, 2);
    in.rank = 1000;
    assert_int_equal(mlopt_session_run(s, &in, 1, &out, 1, &e), MLOPT_INVALID);
    assert_int_equal(mlopt_session_run(s, &in, 0, &out, 1, NULL), MLOPT_INVALID);
    in = input(x, 2);
    assert_int_equal(mlopt_session_run(s, &in, 1, &out, 2, &e), MLOPT_INVALID);
    assert_null(out.data);
    assert_int_equal(mlopt_session_run(s, NULL, 1, &out, 1, &e), MLOPT_INVALID);
    assert_int_equal(mlopt_session_run(s, &in, 1, NULL, 1, &e), MLOPT_INVALID);
    assert_int_equal(mlopt_session_prepare(s, NULL, 1, NULL, 0, &e), MLOPT_INVALID);
    assert_int_equal(mlopt_session_open(NULL, NULL, &none, &e), MLOPT_INVALID);
    mlopt_session_close(s);
    mlopt_session_close(NULL);
    assert_int_equal(mlopt_session_open("/nowhere.onnx", NULL, &none, &e), MLOPT_NOT_FOUND);
    assert_null(none);
    assert_int_equal(mlopt_session_open_memory("no model", 8, NULL, &none, &e), MLOPT_FORMAT);
    struct mlopt_options bad = MLOPT_OPTIONS_INIT;
    struct mlo_buf bytes = model_bytes(false);
    bad.engine = "warp";
    assert_int_equal(mlopt_session_open_memory(mlo_buf_str(&bytes), bytes.len, &bad, &none, &e),
                     MLOPT_NOT_FOUND);
    bad = (struct mlopt_options){.threads = 2}; /* without its size */
    assert_int_equal(mlopt_session_open_memory(mlo_buf_str(&bytes), bytes.len, &bad, &none, &e),
                     MLOPT_INVALID);
    mlo_buf_clear(&bytes);
}

/* Programs built against a later header pass longer structs. */
static void test_lib__longer_options_are_fine_when_empty(void **state)
{
    (void)state;
    struct {
        struct mlopt_options known;
        uint64_t later;
    } options = {MLOPT_OPTIONS_INIT, 0};
    options.known.struct_size = sizeof options;
    mlopt_session_close(open_model(false, &options.known));
    options.later = 1;
    struct mlo_buf bytes = model_bytes(false);
    struct mlopt_session *s = NULL;
    struct mlopt_error e;
    assert_int_equal(mlopt_session_open_memory(mlo_buf_str(&bytes), bytes.len, &options.known, &s, &e),
                     MLOPT_INVALID);
    assert_non_null(strstr(e.message, "does not know"));
    mlo_buf_clear(&bytes);
}

struct caller {
    struct mlopt_session *session;
    int64_t batch;
    int failed;
};

static void *call(void *arg)
{
    struct caller *c = arg;
    float x[THREADS * WIDTH], y[THREADS * WIDTH];
    for (int i = 0; i < 50 && !c->failed; i++) {
        struct mlopt_tensor in = input(x, c->batch), out = {.data = y, .size_bytes = sizeof y};
        c->failed = mlopt_session_run(c->session, &in, 1, &out, 1, NULL) != MLOPT_OK;
        for (int64_t k = 0; k < c->batch * WIDTH; k++)
            c->failed |= y[k] != expected(x, k / WIDTH, k % WIDTH);
    }
    return NULL;
}

static void test_lib__one_session_serves_many_threads(void **state)
{
    (void)state;
    struct mlopt_session *s = open_model(false, NULL);
    pthread_t threads[THREADS];
    struct caller callers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        callers[i] = (struct caller){s, i / 2 + 1, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(callers[i].failed, 0);
    }
    mlopt_session_close(s);
}

/* Denormals survive: neither loading nor running turns on flush-to-zero or denormals-are-zero. */
static void test_lib__leaves_the_floating_point_mode_alone(void **state)
{
    (void)state;
    unsigned before = _mm_getcsr() & ~0x3fu; /* without the sticky flags of what happened */
    assert_int_equal(before & 0x8040u, 0);
    struct mlopt_session *s = open_model(false, NULL);
    float x[WIDTH], y[WIDTH];
    struct mlopt_tensor in = input(x, 1), out = {.data = y, .size_bytes = sizeof y};
    MUST(mlopt_session_run(s, &in, 1, &out, 1, error));
    assert_int_equal(_mm_getcsr() & ~0x3fu, before);
    volatile float tiny = 1e-40f;
    assert_true(tiny * 0.5f > 0);
    mlopt_session_close(s);
}

static void test_lib__describes_how_it_runs(void **state)
{
    (void)state;
    struct mlopt_session *s = open_model(false, &(struct mlopt_options)MLOPT_OPTIONS_INIT);
    struct mlopt_tensor in = {.type = MLOPT_FLOAT32, .rank = 2, .dims = {3, WIDTH}};
    char *text = NULL;
    MUST(mlopt_session_describe(s, &in, 1, &text, error));
    assert_non_null(strstr(text, "\"engine\":\"cpu\""));
    assert_non_null(strstr(text, "matmul"));
    mlopt_free(text);
    mlopt_session_close(s);
    assert_int_equal(mlopt_type_size(MLOPT_BFLOAT16), 2);
    assert_string_equal(mlopt_type_name(MLOPT_INT64), "int64");
    assert_int_equal(mlopt_type_size((enum mlopt_type)8), 0);
    assert_string_equal(mlopt_status_name(MLOPT_TOO_BIG), "too big");
    assert_string_equal(mlopt_status_name((enum mlopt_status)99), "unknown");
    assert_non_null(strstr(mlopt_version(), "cpu"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lib__describes_its_ports),
        cmocka_unit_test(test_lib__runs_any_batch_into_memory_of_either_side),
        cmocka_unit_test(test_lib__shapes_known_at_run_only),
        cmocka_unit_test(test_lib__refuses_wrong_calls),
        cmocka_unit_test(test_lib__longer_options_are_fine_when_empty),
        cmocka_unit_test(test_lib__one_session_serves_many_threads),
        cmocka_unit_test(test_lib__leaves_the_floating_point_mode_alone),
        cmocka_unit_test(test_lib__describes_how_it_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
