/* Compiled plans out of bytes that somebody changed after a trusted key signed them: an error, or a plan that
 * runs inside of its memory. A plan is of one machine, so the corpus holds no plans: the input is a list of
 * changes to one that is compiled here.
 *   byte 0: which model; then groups of 4: what is written (its width), where (16 bits, counted over the
 *   fields), and the value */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engines/cpu/cpu_impl.h"
#include "tests/fuzz/fuzz.h"

enum { MODELS = 5, HEAD_BYTES = 32, ARENA_MAX = 1 << 24, CHANGES_MAX = 64 };

struct base {
    char *bytes; /* as saved */
    size_t size, fields;
};

static const struct mlo_engine *engine;
static struct base bases[MODELS];

static struct mlo_value *numbers(struct mlo_graph *g, enum mlo_dtype dtype, int rank, const int64_t *dims)
{
    struct mlo_tensor t = {0};
    struct mlo_error err = {0};
    FUZZ_CHECK(mlo_tensor_init(&t, dtype, rank, dims, &err) == MLO_OK, "%s", err.message);
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        mlo_tensor_set_f64(&t, i, (double)(i * 7 % 11) / 8 - 0.5);
    return mlo_graph_add_constant_take(g, "c", &t);
}

static struct mlo_value *floats(struct mlo_graph *g, int rank, const int64_t *dims)
{
    return numbers(g, MLO_FLOAT32, rank, dims);
}

static struct mlo_value *op(struct mlo_graph *g, const char *name, struct mlo_value *a, struct mlo_value *b)
{
    struct mlo_value *out = mlo_graph_add_value(g, name, NULL), *in[2] = {a, b};
    FUZZ_CHECK(mlo_graph_add_node(g, NULL, "", name, name, in, b ? 2 : 1, &out, 1), "no memory");
    return out;
}

static struct mlo_value *number(struct mlo_graph *g, enum mlo_dtype dtype, double value)
{
    struct mlo_tensor t = {0};
    struct mlo_error err = {0};
    FUZZ_CHECK(mlo_tensor_init(&t, dtype, 0, NULL, &err) == MLO_OK, "%s", err.message);
    mlo_tensor_set_f64(&t, 0, value);
    return mlo_graph_add_constant_take(g, "n", &t);
}

static struct mlo_value *scaled(struct mlo_graph *g, const char *name, struct mlo_value *x, double zero_point)
{
    struct mlo_value *out = mlo_graph_add_value(g, name, NULL);
    struct mlo_value *in[3] = {x, number(g, MLO_FLOAT32, 0.03125), number(g, MLO_UINT8, zero_point)};
    FUZZ_CHECK(mlo_graph_add_node(g, NULL, "", name, name, in, 3, &out, 1), "no memory");
    return out;
}

/* Quantized x times int8 weights, of one row. */
static struct mlo_value *int8_product(struct mlo_graph *g, struct mlo_value *x, int64_t depth,
                                      int64_t columns)
{
    struct mlo_tensor t = {0};
    struct mlo_error err = {0};
    FUZZ_CHECK(mlo_tensor_init(&t, MLO_INT8, 2, (int64_t[]){depth, columns}, &err) == MLO_OK, "%s",
               err.message);
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        ((int8_t *)t.data)[i] = (int8_t)(i * 37 % 251);
    struct mlo_value *w = mlo_graph_add_constant_take(g, "w", &t);
    x = scaled(g, "DequantizeLinear", scaled(g, "QuantizeLinear", x, 128), 128);
    return op(g, "MatMul", x, op(g, "DequantizeLinear", w, number(g, MLO_FLOAT32, 0.03125)));
}

/* 0: a convolution, what follows it, and an interpreted node; 1: products and a normalization; 2: int8
 * products of one row; 3: a convolution by Winograd's algorithm, with a residual; 4: one of a float16 model,
 * in fixed point. */
static struct mlo_model *make_model(int which)
{
    struct mlo_model *model;
    struct mlo_error err = {0};
    static const int64_t dims[MODELS][4] = {{1, 4, 5, 5}, {3, 8}, {1, 20}, {1, 32, 7, 9}, {1, 24, 5, 6}};
    struct mlo_type type = {.dtype = which == 4 ? MLO_FLOAT16 : MLO_FLOAT32, .rank = dims[which][2] ? 4 : 2};
    FUZZ_CHECK(mlo_model_new(17, &model, &err) == MLO_OK, "%s", err.message);
    struct mlo_graph *g = model->graph;
    for (int i = 0; i < type.rank; i++)
        type.dims[i] = (struct mlo_dim){dims[which][i], NULL};
    struct mlo_value *x = mlo_graph_add_value(g, "x", &type), *y;
    FUZZ_CHECK(mlo_graph_add_input(g, x, &err) == MLO_OK, "%s", err.message);
    if (which == 0) {
        y = op(g, "Relu", op(g, "Conv", x, floats(g, 4, (int64_t[]){8, 4, 3, 3})), NULL);
        y = op(g, "MaxPool", y, NULL);
        mlo_node_set_ints(y->producer, "kernel_shape", (int64_t[]){2, 2}, 2);
        y = op(g, "Softmax", op(g, "Mod", y, floats(g, 1, (int64_t[]){1})), NULL);
        mlo_node_set_i(g->nodes[g->node_count - 2], "fmod", 1);
    } else if (which == 3) {
        y = op(g, "Conv", x, floats(g, 4, (int64_t[]){32, 32, 3, 3}));
        mlo_node_set_ints(y->producer, "pads", (int64_t[]){1, 1, 1, 1}, 4);
        y = op(g, "Relu", op(g, "Add", y, op(g, "Relu", x, NULL)), NULL);
    } else if (which == 4) {
        y = op(g, "Conv", x, numbers(g, MLO_FLOAT16, 4, (int64_t[]){20, 24, 3, 3}));
        mlo_node_set_ints(y->producer, "pads", (int64_t[]){1, 0, 1, 1}, 4);
    } else if (which == 2) {
        y = op(g, "Relu", int8_product(g, x, 20, 24), NULL);
        y = op(g, "Sigmoid", int8_product(g, y, 24, 5), NULL);
    } else {
        y = op(g, "MatMul", x, floats(g, 2, (int64_t[]){8, 16}));
        y = op(g, "LayerNormalization", y, floats(g, 1, (int64_t[]){16}));
        y = op(g, "MatMul", op(g, "Transpose", y, NULL), op(g, "Sigmoid", x, NULL));
    }
    FUZZ_CHECK(mlo_graph_add_output(g, y, &err) == MLO_OK && mlo_graph_infer(g, &err) == MLO_OK, "%s",
               err.message);
    return model;
}

static void start(void)
{
    struct mlo_error err = {0};
    if (engine)
        return;
    FUZZ_CHECK(setenv("MLOPT_FP16", "fixed", 1) == 0, "no memory");
    FUZZ_CHECK(mlo_engine_find("cpu", &engine, &err) == MLO_OK, "%s", err.message);
    for (int i = 0; i < MODELS; i++) {
        struct mlo_model *model = make_model(i);
        struct mlo_plan *plan = NULL;
        const struct mlo_compile_options options = {.threads = 1};
        int fd = memfd_create("plan", MFD_CLOEXEC);
        FUZZ_CHECK(engine->compile(model, &options, &plan, &err) == MLO_OK, "%s", err.message);
        FUZZ_CHECK(engine->save(plan, fd, &err) == MLO_OK, "%s", err.message);
        struct base *b = &bases[i];
        b->size = (size_t)lseek(fd, 0, SEEK_CUR);
        b->bytes = mlo_engine_aligned(b->size);
        FUZZ_CHECK(b->bytes && pread(fd, b->bytes, b->size, 0) == (ssize_t)b->size, "no memory");
        uint64_t fields;
        memcpy(&fields, b->bytes + 8, sizeof fields);
        b->fields = (size_t)fields;
        close(fd);
        engine->free_plan(plan);
        mlo_model_free(model);
    }
}

static void run(struct mlo_plan *plan)
{
    struct mlo_error err = {0};
    struct mlo_program *program = NULL;
    struct mlo_footprint need;
    const struct mlo_graph *g = engine->interface(plan)->graph;
    struct mlo_tensor *in = calloc((size_t)g->input_count + 1, sizeof *in),
                      *out = calloc((size_t)g->output_count + 1, sizeof *out);
    bool fed = in && out;
    engine->footprint(plan, &need);
    for (int i = 0; fed && i < g->input_count; i++) {
        int64_t dims[MLO_MAX_RANK];
        const struct mlo_type *t = &g->inputs[i]->type;
        fed = mlo_type_static(t, dims) && mlo_tensor_init(&in[i], t->dtype, t->rank, dims, NULL) == MLO_OK;
    }
    if (fed && plan->threads <= 4 && need.program_bytes < ARENA_MAX &&
        fuzz_accepted(engine->load(plan, &program, &err), &err))
        fuzz_accepted(engine->run(program, in, out, &err), &err);
    for (int i = 0; in && i < g->input_count; i++)
        mlo_tensor_clear(&in[i]);
    for (int i = 0; out && i < g->output_count; i++)
        mlo_tensor_clear(&out[i]);
    free(in);
    free(out);
    engine->unload(program);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mlo_error err = {0};
    struct mlo_plan *plan = NULL;
    start();
    if (size < 1)
        return 0;
    mlo_tensor_set_limit(ARENA_MAX);
    const struct base *b = &bases[data[0] % MODELS];
    char *bytes = mlo_engine_aligned(b->size);
    FUZZ_CHECK(bytes, "no memory");
    memcpy(bytes, b->bytes, b->size);
    for (size_t i = 1, n = 0; i + 4 <= size && n < CHANGES_MAX; i += 4, n++) {
        size_t at = ((size_t)data[i + 1] << 8 | data[i + 2]) % (HEAD_BYTES + b->fields);
        uint64_t value = data[i + 3] & 0x80 ? ~(uint64_t)0 << (data[i + 3] & 63) : data[i + 3];
        size_t width = (size_t)1 << data[i] % 4;
        memcpy(bytes + at, &value, MLO_MIN(width, HEAD_BYTES + b->fields - at));
    }
    if (fuzz_accepted(engine->restore(bytes, b->size, &plan, &err), &err))
        run(plan);
    if (plan)
        engine->free_plan(plan);
    free(bytes);
    return 0;
}
