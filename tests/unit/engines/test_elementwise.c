/* Elementwise programs: interpreted and compiled alike, bit for bit; chains of nodes against the reference
 * engine over broadcasts, layouts, 8-bit ends and edge values. */
#include <dirent.h>
#include <fcntl.h>
#include <float.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engines/cpu/fast/expr.h"
#include "engines/native_impl.h"
#include "qhelpers.h"

static size_t step_count(const json_t *d)
{
    return json_array_size(json_object_get(d, "nodes"));
}

static const char *impl_of(const json_t *d, size_t i)
{
    return mlo_json_str(json_array_get(json_object_get(d, "nodes"), i), "impl", "");
}

static const struct mlo_compile_options two = {.batch = 2, .threads = 2};

/* --- programs ------------------------------------------------------------------------------------------- */

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Any operations on any operands. */
static struct expr_program random_program(uint32_t *seed)
{
    static const enum mlo_dtype types[] = {MLO_FLOAT32, MLO_FLOAT32, MLO_UINT8, MLO_INT8};
    struct expr_program p = {0};
    p.input_count = 1 + (int)(next(seed) % 4);
    for (int i = 0; i < p.input_count; i++) {
        p.inputs[i].dtype = types[next(seed) % 4];
        p.inputs[i].splat = next(seed) % 4 == 0;
        p.ops[p.op_count++] = (struct expr_op){.kind = EXPR_LOAD, .a = i};
    }
    p.ops[p.op_count++] = (struct expr_op){.kind = EXPR_CONSTANT, .alpha = 1.25f};
    for (int more = 1 + (int)(next(seed) % 8); more > 0; more--) {
        struct expr_op op = {.kind = EXPR_DEQUANTIZE +
                                     (enum expr_kind)(next(seed) % (EXPR_KINDS - EXPR_DEQUANTIZE)),
                             .math = (enum fast_math)(next(seed) % FAST_MATH_COUNT),
                             .a = (int)next(seed) % p.op_count,
                             .b = (int)next(seed) % p.op_count,
                             .alpha = 0.3f,
                             .beta = 0.7f,
                             .low = 0,
                             .high = 255};
        if (op.kind == EXPR_CONSTANT)
            op.kind = EXPR_MUL;
        p.ops[p.op_count++] = op;
    }
    p.result = MLO_FLOAT32;
    if (next(seed) % 3 == 0) {
        p.result = MLO_UINT8;
        p.ops[p.op_count] = (struct expr_op){
            .kind = EXPR_QUANTIZE, .a = p.op_count - 1, .alpha = 0.05f, .beta = 3, .low = 0, .high = 255};
        p.op_count++;
    }
    return p;
}

enum { ROWS = 5, WIDTH = 1100, PITCH = 1120 };

static void run_both(const struct expr_program *p, enum mlo_isa isa, expr_fn *fn, size_t n, bool packed,
                     uint32_t *seed)
{
    static const float edges[] = {0.0f, -0.0f, NAN, INFINITY, -INFINITY, FLT_TRUE_MIN, FLT_MAX, 1.5f, -2.5f};
    size_t size = (size_t)ROWS * PITCH * 4;
    char *in[EXPR_INPUTS_MAX], *out[2];
    struct expr_block b = {.rows = ROWS, .n = n};
    for (int i = 0; i < p->input_count; i++) {
        in[i] = malloc(size);
        assert_non_null(in[i]);
        for (size_t k = 0; k < size / 4; k++) {
            float v = k % 11 == 0 ? edges[k / 11 % MLO_COUNT(edges)] : net_random(seed) * 4;
            memcpy(in[i] + 4 * k, &v, 4);
        }
        size_t element = p->inputs[i].dtype == MLO_FLOAT32 ? 4 : 1;
        b.in[i] = in[i];
        b.in_stride[i] = (ptrdiff_t)(element * (i == 1 ? 0 : packed ? n : PITCH));
    }
    size_t element = p->result == MLO_FLOAT32 ? 4 : 1;
    b.out_stride = (ptrdiff_t)(element * (packed ? n : PITCH));
    for (int k = 0; k < 2; k++) {
        out[k] = malloc(size);
        assert_non_null(out[k]);
        memset(out[k], 0x55, size);
    }
    b.out = out[0];
    expr_interpret(isa, p, &b);
    if (fn) {
        fn(b.in, b.in_stride, out[1], b.out_stride, b.rows, b.n);
        if (memcmp(out[0], out[1], size) != 0) {
            size_t at = 0;
            while (out[0][at] == out[1][at])
                at++;
            char *text = expr_source(isa, p);
            fail_msg("compiled differs at byte %zu of rows of %zu: %s", at, n,
                     strstr(text, "V_FN vf element"));
        }
    }
    for (size_t k = (ROWS - 1) * (size_t)b.out_stride + n * element; k < size; k++)
        assert_int_equal(out[0][k], 0x55); /* nothing behind the last row is written */
    for (int i = 0; i < p->input_count; i++)
        free(in[i]);
    free(out[0]);
    free(out[1]);
}

/* Whether a compiler is where the engine looks for one. */
static bool may_compile(void)
{
    static const char *const compilers[] = {"/usr/bin/cc", "/usr/bin/gcc", "/usr/bin/clang"};
    const char *wish = getenv("MLOPT_CODEGEN");
    bool found = false;
    for (size_t i = 0; i < MLO_COUNT(compilers); i++)
        found |= access(compilers[i], X_OK) == 0;
    return found && !(wish && strcmp(wish, "off") == 0);
}

static void both_agree(enum mlo_isa isa)
{
    uint32_t seed = 7;
    int finished = 0, compiled = 0;
    need_isa(isa);
    for (int k = 0; k < 6; k++) {
        struct expr_program p = random_program(&seed);
        if (!expr_finish(&p))
            continue;
        finished++;
        expr_fn *fn = expr_compiled(isa, &p);
        compiled += fn != NULL;
        static const size_t widths[] = {1, 7, 16, 33, 100, 600, WIDTH};
        for (size_t w = 0; w < MLO_COUNT(widths); w++)
            for (int packed = 0; packed < 2; packed++)
                run_both(&p, isa, fn, widths[w], packed, &seed);
    }
    assert_true(finished > 0);
    assert_int_equal(compiled, may_compile() ? finished : 0);
    if (!compiled)
        skip(); /* no compiler here: only interpretation ran */
}

static void test_program__compiled_is_interpreted_avx2(void **state)
{
    MLO_UNUSED(state);
    both_agree(MLO_ISA_AVX2);
}

static void test_program__compiled_is_interpreted_avx512(void **state)
{
    MLO_UNUSED(state);
    both_agree(MLO_ISA_AVX512);
}

static void test_program__text_holds_numbers_only(void **state)
{
    MLO_UNUSED(state);
    struct expr_program p = {.input_count = 1, .result = MLO_FLOAT32, .op_count = 4};
    p.inputs[0].dtype = MLO_FLOAT32;
    p.ops[0] = (struct expr_op){.kind = EXPR_LOAD};
    p.ops[1] = (struct expr_op){.kind = EXPR_CONSTANT, .alpha = -INFINITY};
    p.ops[2] = (struct expr_op){.kind = EXPR_CONSTANT, .alpha = 0.1f};
    p.ops[3] = (struct expr_op){.kind = EXPR_MUL, .a = 1, .b = 2};
    char *text = expr_source(MLO_ISA_AVX2, &p);
    assert_non_null(strstr(text, "v_set(-__builtin_inff())"));
    assert_non_null(strstr(text, "v_set(0x1.99999ap-4f)"));
    free(text);
}

/* What a process finds in that cache: 0: a kernel, 1: none; more: it died. */
static int kernel_of_a_process(const char *cache)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        uint32_t seed = 77;
        struct expr_program p = {.input_count = 1, .op_count = 2, .result = MLO_FLOAT32};
        p.inputs[0].dtype = MLO_FLOAT32;
        p.ops[0] = (struct expr_op){.kind = EXPR_LOAD};
        p.ops[1] = (struct expr_op){.kind = EXPR_ADD};
        setenv("XDG_CACHE_HOME", cache, 1);
        expr_fn *fn = expr_compiled(MLO_ISA_AVX2, &p);
        if (fn)
            run_both(&p, MLO_ISA_AVX2, fn, 100, true, &seed);
        _exit(fn ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static char *kernel_path(const char *cache)
{
    char *folder = mlo_fs_join(cache, "mlopt", "kernels", (char *)NULL), *path = NULL;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (e->d_name[0] != '.') {
            assert_null(path);
            assert_true(mlo_str_ends(e->d_name, ".so"));
            path = mlo_fs_join(folder, e->d_name, (char *)NULL);
        }
    closedir(dir);
    free(folder);
    assert_non_null(path);
    return path;
}

/* A kernel that was cut off or changed where it is kept is compiled again, and never loaded. Comes first: a
 * process looks for its folder once, and the children of this test for one of their own. */
static void test_program__damaged_kernels_are_made_again(void **state)
{
    MLO_UNUSED(state);
    char *cache = NULL;
    struct mlo_buf whole = MLO_BUF_INIT, now = MLO_BUF_INIT;
    MUST(mlo_fs_tempdir(NULL, "kernels-", &cache, err));
    bool can = may_compile();
    assert_int_equal(kernel_of_a_process(cache), can ? 0 : 1);
    if (can) {
        char *path = kernel_path(cache);
        MUST(mlo_fs_read(path, 1 << 22, &whole, err));
        const size_t sizes[] = {0, 64, 1000, whole.len / 2, whole.len - 1, whole.len};
        for (size_t i = 0; i < MLO_COUNT(sizes); i++) {
            struct mlo_buf damaged = MLO_BUF_INIT;
            mlo_buf_append(&damaged, whole.data, sizes[i]);
            if (sizes[i] == whole.len)
                damaged.data[whole.len / 2] ^= 1;
            MUST(mlo_fs_write_atomic(path, mlo_buf_str(&damaged), damaged.len, err));
            assert_int_equal(chmod(path, 0600), 0);
            assert_int_equal(kernel_of_a_process(cache), 0);
            mlo_buf_reset(&now);
            MUST(mlo_fs_read(path, 1 << 22, &now, err));
            assert_int_equal(now.len, whole.len);
            mlo_buf_clear(&damaged);
        }
        free(path);
    }
    mlo_buf_clear(&whole);
    mlo_buf_clear(&now);
    mlo_fs_remove_tree(cache);
    free(cache);
    if (!can)
        skip(); /* there is no compiler here */
}

/* A folder whose parent others can write to could be exchanged while the compiler writes into it. */
static void test_program__no_kernels_below_what_others_can_write(void **state)
{
    MLO_UNUSED(state);
    char *cache = NULL;
    MUST(mlo_fs_tempdir(NULL, "kernels-", &cache, err));
    char *parent = mlo_fs_join(cache, "mlopt", (char *)NULL);
    MUST(mlo_fs_mkdirs_private(parent, err));
    assert_int_equal(chmod(parent, 0777), 0);
    assert_int_equal(kernel_of_a_process(cache), 1);
    mlo_fs_remove_tree(cache);
    free(parent);
    free(cache);
}

static size_t count_kernels(const char *folder)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
        count += mlo_str_ends(e->d_name, ".so");
    closedir(dir);
    return count;
}

/* An empty file in the folder, last used `age_s` ago. Its path is yours. */
static char *old_file(const char *folder, const char *name, int age_s)
{
    char *path = mlo_fs_join(folder, name, (char *)NULL);
    struct timespec then = {.tv_sec = time(NULL) - age_s};
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(futimens(fd, (struct timespec[]){then, then}), 0);
    close(fd);
    return path;
}

/* Kernels that nothing used for longest go, the one just made stays, and of what compilers left that were
 * ended only the recent: that may still be somebody's. */
static void test_program__the_folder_of_kernels_is_bounded(void **state)
{
    MLO_UNUSED(state);
    enum { KEPT = 2048, MORE = 40 };
    static const char *const left[] = {"sourceAb12Cd", "objectAb12Cd"};
    char *cache = NULL, name[32];
    MUST(mlo_fs_tempdir(NULL, "kernels-", &cache, err));
    char *folder = mlo_fs_join(cache, "mlopt", "kernels", (char *)NULL), *stale[2];
    MUST(mlo_fs_mkdirs_private(folder, err));
    for (int i = 0; i < KEPT + MORE; i++) {
        snprintf(name, sizeof name, "%d.so", i);
        free(old_file(folder, name, 100 + i));
    }
    for (int i = 0; i < 2; i++)
        stale[i] = old_file(folder, left[i], 4000);
    char *fresh = old_file(folder, "objectEf34Gh", 60);
    bool can = kernel_of_a_process(cache) == 0;
    if (can) {
        assert_int_equal(count_kernels(folder), KEPT);
        char *newest = mlo_fs_join(folder, "0.so", (char *)NULL),
             *oldest = mlo_fs_join(folder, "2087.so", (char *)NULL);
        assert_true(mlo_fs_exists(newest));
        assert_false(mlo_fs_exists(oldest));
        assert_false(mlo_fs_exists(stale[0]));
        assert_false(mlo_fs_exists(stale[1]));
        assert_true(mlo_fs_exists(fresh));
        free(newest);
        free(oldest);
    }
    mlo_fs_remove_tree(cache);
    for (int i = 0; i < 2; i++)
        free(stale[i]);
    free(fresh);
    free(folder);
    free(cache);
    if (!can)
        skip(); /* there is no compiler here */
}

/* Being loaded is being used: the time says so, by which kernels are dropped. */
static void test_program__loading_a_kernel_uses_it(void **state)
{
    MLO_UNUSED(state);
    char *cache = NULL;
    struct stat st;
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    MUST(mlo_fs_tempdir(NULL, "kernels-", &cache, err));
    bool can = kernel_of_a_process(cache) == 0;
    if (can) {
        char *path = kernel_path(cache);
        assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
        assert_int_equal(kernel_of_a_process(cache), 0);
        assert_int_equal(stat(path, &st), 0);
        assert_true(st.st_mtim.tv_sec > time(NULL) - 3600);
        free(path);
    }
    mlo_fs_remove_tree(cache);
    free(cache);
    if (!can)
        skip();
}

/* Another option, compiler, version or text is another kernel; where one word ends counts. */
static void test_program__kernels_are_named_by_all_that_makes_them(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *command[4], *version, *text;
    } cases[] = {
        {{"cc", "-O2", "-mfma", NULL}, "cc 12", "x"}, {{"cc", "-O3", "-mfma", NULL}, "cc 12", "x"},
        {{"cc", "-O2", NULL}, "cc 12", "x"},          {{"clang", "-O2", "-mfma", NULL}, "cc 12", "x"},
        {{"cc", "-O2", "-mfma", NULL}, "cc 13", "x"}, {{"cc", "-O2", "-mfma", NULL}, "cc 12", "y"},
        {{"cc", "-O2-mfma", NULL}, "cc 12", "x"},     {{"cc", "-O2", "-mfma", NULL}, "cc 1", "2x"},
        {{"cc", "-O2", NULL}, "-mfma", "cc 12x"},
    };
    struct mlo_digest digests[MLO_COUNT(cases)];
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        assert_true(mlo_native_digest(cases[i].command, cases[i].version, cases[i].text, &digests[i]));
        for (size_t k = 0; k < i; k++)
            if (mlo_digest_eq(&digests[i], &digests[k]))
                fail_msg("cases %zu and %zu have the same name", k, i);
    }
}

static void test_program__switched_off(void **state)
{
    MLO_UNUSED(state);
    struct expr_program p = {.input_count = 1, .result = MLO_FLOAT32, .op_count = 2};
    p.inputs[0].dtype = MLO_FLOAT32;
    p.ops[1] = (struct expr_op){.kind = EXPR_MATH, .math = FAST_MATH_TANH};
    setenv("MLOPT_CODEGEN", "off", 1);
    assert_null(expr_compiled(MLO_ISA_AVX2, &p));
    unsetenv("MLOPT_CODEGEN");
}

/* --- chains of nodes ------------------------------------------------------------------------------------ */

static const struct {
    int rank;
    int64_t dims[5];
} partners[] = {
    {4, {2, 6, 5, 7}}, {4, {2, 6, 1, 1}}, {4, {1, 6, 1, 1}}, {4, {2, 1, 5, 7}},
    {4, {1, 1, 1, 7}}, {3, {6, 1, 1}},    {3, {6, 5, 7}},    {2, {5, 7}},
    {1, {7}},          {1, {1}},          {0, {0}},          {4, {1, 6, 5, 1}},
};

/* y = sigmoid(max(x, -1) * b + x) - b / 2, behind a Conv (channels last) or the input (row-major). */
static void test_chain__broadcasts_in_both_layouts(void **state)
{
    MLO_UNUSED(state);
    for (size_t k = 0; k < MLO_COUNT(partners); k++)
        for (int behind_conv = 0; behind_conv < 2; behind_conv++) {
            char what[64];
            json_t *d = NULL;
            snprintf(what, sizeof what, "operand %zu, %s", k, behind_conv ? "channels last" : "row-major");
            struct net n = net_new(3);
            int64_t dims[] = {2, 6, 5, 7}, wd[] = {6, 6, 1, 1};
            struct mlo_value *x = net_input(&n, "x", 4, dims), *b;
            if (behind_conv)
                x = net_op(&n, "Conv", x, net_floats(&n, 4, wd, 0.5f), NULL);
            b = net_floats(&n, partners[k].rank, partners[k].dims, 1.0f);
            struct mlo_value *y = net_op(&n, "Max", x, net_scalar(&n, MLO_FLOAT32, -1.0), NULL);
            y = net_op(&n, "Add", net_op(&n, "Mul", b, y, NULL), x, NULL);
            y = net_op(&n, "Sigmoid", y, NULL, NULL);
            y = net_op(&n, "Sub", y, net_op(&n, "Div", b, net_scalar(&n, MLO_FLOAT32, 2.0), NULL), NULL);
            net_finish(&n, y);
            struct mlo_tensor in = random_tensor(4, dims, 4);
            assert_engines_agree(&n, &two, &in, 2e-5f, what, &d);
            if (count_nodes(d, NULL, "impl", "reference"))
                fail_with_plan(d, what, "a node is interpreted");
            json_decref(d);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

/* Everything that has a function, on edge values. */
static void test_chain__every_function_and_edge_values(void **state)
{
    MLO_UNUSED(state);
    static const char *const ops[] = {"Abs",        "Ceil",
                                      "Celu",       "Elu",
                                      "Erf",        "Exp",
                                      "Floor",      "HardSigmoid",
                                      "HardSwish",  "LeakyRelu",
                                      "Log",        "Neg",
                                      "Reciprocal", "Relu",
                                      "Round",      "Selu",
                                      "Sigmoid",    "Softplus",
                                      "Softsign",   "Sqrt",
                                      "Tanh",       "ThresholdedRelu"};
    static const float edges[] = {0.0f, -0.0f, NAN,   INFINITY, -INFINITY, FLT_TRUE_MIN, -FLT_MIN, 1e30f,
                                  1.5f, 2.5f,  -1.5f, 88.8f,    -104.0f,   1e-20f,       -1e-20f,  3.0f};
    for (size_t k = 0; k < MLO_COUNT(ops); k++) {
        struct net n = net_new(3);
        int64_t dims[] = {2, 8};
        struct mlo_value *x = net_input(&n, "x", 2, dims);
        net_finish(&n, net_op(&n, ops[k], x, NULL, NULL));
        struct mlo_tensor in = random_tensor(2, dims, 4);
        memcpy(in.data, edges, sizeof edges);
        struct mlo_compile_options o = {.batch = 2};
        json_t *d = NULL;
        struct mlo_tensor want = run_model("reference", n.model, &o, &in, NULL);
        struct mlo_tensor got = run_model("cpu", n.model, &o, &in, &d);
        assert_non_null(strstr(impl_of(d, 0), "elementwise"));
        for (int i = 0; i < 16; i++) {
            float a = ((const float *)got.data)[i], b = ((const float *)want.data)[i];
            bool same = isnan(b) ? isnan(a) : isinf(b) ? a == b : fabsf(a - b) <= 1e-6f * (1 + fabsf(b));
            if (!same)
                fail_msg("%s(%g) is %g, not %g", ops[k], (double)edges[i], (double)a, (double)b);
        }
        json_decref(d);
        mlo_tensor_clear(&in);
        mlo_tensor_clear(&want);
        mlo_tensor_clear(&got);
        mlo_model_free(n.model);
    }
}

/* A value that somebody else needs as well ends a chain. */
static void test_chain__ends_where_a_value_is_needed_elsewhere(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(3);
    int64_t dims[] = {2, 40};
    json_t *d = NULL;
    struct mlo_value *x = net_input(&n, "x", 2, dims), *m = net_op(&n, "Tanh", x, NULL, NULL);
    net_output(&n, m);
    struct mlo_value *y = net_op(&n, "Abs", net_op(&n, "Exp", m, NULL, NULL), NULL, NULL);
    net_finish(&n, y);
    struct mlo_tensor in = random_tensor(2, dims, 4);
    assert_engines_agree(&n, &two, &in, 1e-6f, "tanh is an output", &d);
    assert_int_equal(step_count(d), 2);
    json_decref(d);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

/* x (both operands of one node), and a node that reads the chain twice. */
static void test_chain__diamonds(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(3);
    int64_t dims[] = {2, 33};
    json_t *d = NULL;
    struct mlo_value *x = net_input(&n, "x", 2, dims), *a = net_op(&n, "Mul", x, x, NULL);
    struct mlo_value *b = net_op(&n, "Exp", a, NULL, NULL), *c = net_op(&n, "Tanh", a, NULL, NULL);
    net_finish(&n, net_op(&n, "Div", net_op(&n, "Add", b, c, NULL), net_op(&n, "Add", b, b, NULL), NULL));
    struct mlo_tensor in = random_tensor(2, dims, 4);
    assert_engines_agree(&n, &two, &in, 1e-6f, "diamond", &d);
    assert_int_equal(step_count(d), 1);
    json_decref(d);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

/* Squeeze-and-excitation between quantized values is one step, and exact. */
static void test_chain__int8_ends(void **state)
{
    MLO_UNUSED(state);
    static const enum mlo_dtype types[] = {MLO_UINT8, MLO_INT8};
    for (int k = 0; k < 4; k++) {
        struct net n = net_new(3);
        int64_t dims[] = {2, 24, 9, 9}, gate[] = {2, 24, 1, 1};
        json_t *d = NULL;
        struct mlo_value *x = net_input(&n, "x", 4, dims);
        struct mlo_value *a = qdq(&n, x, 0.02f, k & 1 ? 3 : 0, types[k & 1]);
        struct mlo_value *g = net_floats(&n, 4, gate, 1.0f);
        struct mlo_value *y = net_op(&n, "Mul", a, net_op(&n, "Sigmoid", g, NULL, NULL), NULL);
        net_finish(&n, qdq(&n, y, 0.017f, k & 2 ? -5 : 4, types[k >> 1]));
        struct mlo_tensor in = random_tensor(4, dims, 4);
        assert_engines_agree(&n, &two, &in, 0.0f, "int8 ends", &d);
        if (step_count(d) != 3) /* with the quantization at both edges */
            fail_with_plan(d, "int8 ends", "it is not one step");
        json_decref(d);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* BatchNormalization alone, between the transpositions with which exporters give it channels. */
static void test_chain__norm_between_transposes_moves_nothing(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(5);
    int64_t dims[] = {2, 10, 24}, channels[] = {24};
    json_t *d = NULL;
    struct mlo_value *x = net_input(&n, "x", 3, dims), *y = net_op(&n, "Transpose", x, NULL, NULL);
    static const int64_t perm[] = {0, 2, 1};
    assert_true(mlo_node_set_ints(y->producer, "perm", perm, 3));
    struct mlo_value *var = net_floats(&n, 1, channels, 0.2f);
    for (int i = 0; i < 24; i++)
        ((float *)var->constant->data)[i] += 1.0f;
    struct mlo_value *in[] = {y, net_floats(&n, 1, channels, 1.0f), net_floats(&n, 1, channels, 1.0f),
                              net_floats(&n, 1, channels, 1.0f), var};
    y = net_node_of(&n, "", "BatchNormalization", in, 5)->outputs[0];
    y = net_op(&n, "Relu", y, NULL, NULL);
    y = net_op(&n, "Transpose", y, NULL, NULL);
    assert_true(mlo_node_set_ints(y->producer, "perm", perm, 3));
    net_finish(&n, y);
    struct mlo_tensor data = random_tensor(3, dims, 4);
    assert_engines_agree(&n, &two, &data, 1e-5f, "norm", &d);
    assert_int_equal(step_count(d), 1);
    json_decref(d);
    mlo_tensor_clear(&data);
    mlo_model_free(n.model);
}

/* sigmoid(x) * z and x/2 * (1 + erf) of another x are no activations of x, also where x has two readers. */
static void test_chain__look_alikes_of_activations(void **state)
{
    MLO_UNUSED(state);
    for (int kind = 0; kind < 4; kind++) {
        struct net n = net_new(5);
        int64_t dims[] = {2, 6, 5, 7};
        struct mlo_value *in = net_input(&n, "x", 4, dims), *half = net_scalar(&n, MLO_FLOAT32, 0.5);
        struct mlo_value *x = net_op(&n, "Tanh", in, NULL, NULL), *z = net_op(&n, "Neg", in, NULL, NULL), *y;
        if (kind < 2) {
            y = net_op(&n, "Sigmoid", x, NULL, NULL);
            y = net_op(&n, "Mul", kind ? z : y, kind ? y : z, NULL);
        } else {
            y = net_op(&n, "Erf", net_op(&n, "Mul", x, net_scalar(&n, MLO_FLOAT32, sqrt(0.5)), NULL), NULL,
                       NULL);
            y = net_op(&n, "Add", y, net_scalar(&n, MLO_FLOAT32, 1), NULL);
            z = net_op(&n, "Mul", kind == 2 ? half : z, kind == 2 ? z : half, NULL);
            y = net_op(&n, "Mul", y, z, NULL);
        }
        net_finish(&n, net_op(&n, "Sub", y, x, NULL));
        struct mlo_tensor data = random_tensor(4, dims, 4);
        assert_engines_agree(&n, &two, &data, 1e-5f, "look-alike", NULL);
        mlo_tensor_clear(&data);
        mlo_model_free(n.model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program__damaged_kernels_are_made_again),
        cmocka_unit_test(test_program__the_folder_of_kernels_is_bounded),
        cmocka_unit_test(test_program__loading_a_kernel_uses_it),
        cmocka_unit_test(test_program__kernels_are_named_by_all_that_makes_them),
        cmocka_unit_test(test_program__no_kernels_below_what_others_can_write),
        cmocka_unit_test(test_program__compiled_is_interpreted_avx2),
        cmocka_unit_test(test_program__compiled_is_interpreted_avx512),
        cmocka_unit_test(test_program__text_holds_numbers_only),
        cmocka_unit_test(test_program__switched_off),
        cmocka_unit_test(test_chain__broadcasts_in_both_layouts),
        cmocka_unit_test(test_chain__every_function_and_edge_values),
        cmocka_unit_test(test_chain__ends_where_a_value_is_needed_elsewhere),
        cmocka_unit_test(test_chain__diamonds),
        cmocka_unit_test(test_chain__int8_ends),
        cmocka_unit_test(test_chain__norm_between_transposes_moves_nothing),
        cmocka_unit_test(test_chain__look_alikes_of_activations),
    };
    struct mlo_error err = {0};
    char *cache = NULL;
    if (mlo_fs_tempdir(NULL, "kernels-", &cache, &err) != MLO_OK)
        return 1;
    setenv("XDG_CACHE_HOME", cache, 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mlo_fs_remove_tree(cache);
    free(cache);
    return failed;
}
