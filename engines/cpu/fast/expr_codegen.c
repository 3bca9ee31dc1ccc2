/* Elementwise programs as C: one loop in which every intermediate result stays in a register. The text is
 * made of indices and numbers only, never of anything a model says in words; it is compiled by the system's
 * compiler, kept in a private folder under its own digest, and loaded from there by this and later processes.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "engines/cpu/fast/expr.h"
#include "engines/cpu/fast/expr_text.h"

/* To be raised when the same program should give another text. */
#define GENERATOR "mlopt elementwise kernels 1"

enum { COMPILE_TIMEOUT_MS = 300000, LOADED_MAX = 4096, KERNEL_MAX = 1 << 22 };

/* Of the folder: the kernels used last, and none of what compilers that were ended left. */
static const char *const UNFINISHED[] = {"source", "object", NULL};
static const struct mlo_cache_limits LIMITS = {
    .suffix = ".so", .unfinished = UNFINISHED, .max_files = 2048, .max_bytes = (uint64_t)128 << 20};

/* --- the text ------------------------------------------------------------------------------------------- */

static const char *const binary_names[EXPR_KINDS] = {
    [EXPR_ADD] = "v_add",      [EXPR_SUB] = "v_sub",      [EXPR_MUL] = "v_mul",     [EXPR_DIV] = "v_div",
    [EXPR_MIN] = "vm_minimum", [EXPR_MAX] = "vm_maximum", [EXPR_PRELU] = "vm_prelu"};

/* Functions take the register, and alpha and beta as far as they have them. */
static const struct {
    const char *name;
    int parameters;
} math_names[FAST_MATH_COUNT] = {
    [FAST_MATH_ABS] = {"v_abs", 0},
    [FAST_MATH_NEG] = {"v_neg", 0},
    [FAST_MATH_SQRT] = {"v_sqrt", 0},
    [FAST_MATH_RECIPROCAL] = {"vm_reciprocal", 0},
    [FAST_MATH_FLOOR] = {"v_floor", 0},
    [FAST_MATH_CEIL] = {"v_ceil", 0},
    [FAST_MATH_ROUND] = {"v_rint", 0},
    [FAST_MATH_EXP] = {"vm_exp", 0},
    [FAST_MATH_LOG] = {"vm_log", 0},
    [FAST_MATH_ERF] = {"vm_erf", 0},
    [FAST_MATH_SIGMOID] = {"vm_sigmoid", 0},
    [FAST_MATH_TANH] = {"vm_tanh", 0},
    [FAST_MATH_SOFTPLUS] = {"vm_softplus", 0},
    [FAST_MATH_SOFTSIGN] = {"vm_softsign", 0},
    [FAST_MATH_RELU] = {"vm_relu", 0},
    [FAST_MATH_LEAKY_RELU] = {"vm_leaky_relu", 1},
    [FAST_MATH_THRESHOLDED_RELU] = {"vm_thresholded_relu", 1},
    [FAST_MATH_CLIP] = {"vm_clip", 2},
    [FAST_MATH_ELU] = {"vm_elu", 1},
    [FAST_MATH_SELU] = {"vm_selu", 2},
    [FAST_MATH_CELU] = {"vm_celu", 1},
    [FAST_MATH_HARD_SIGMOID] = {"vm_hard_sigmoid", 2},
    [FAST_MATH_HARD_SWISH] = {"vm_hard_swish", 0},
    [FAST_MATH_SWISH] = {"vm_swish", 1},
    [FAST_MATH_MISH] = {"vm_mish", 0},
    [FAST_MATH_GELU] = {"vm_gelu", 0},
    [FAST_MATH_GELU_TANH] = {"vm_gelu_tanh", 0},
};

static void number(struct mlo_buf *b, float v)
{
    if (isnan(v))
        mlo_buf_puts(b, "v_set(__builtin_nanf(\"\"))");
    else if (isinf(v))
        mlo_buf_puts(b, v > 0 ? "v_set(__builtin_inff())" : "v_set(-__builtin_inff())");
    else
        mlo_buf_printf(b, "v_set(%af)", (double)v);
}

static void operation(struct mlo_buf *b, int i, const struct expr_op *op)
{
    mlo_buf_printf(b, "    const vf r%d = ", i);
    switch (op->kind) {
    case EXPR_LOAD:
        mlo_buf_printf(b, "x%d", op->a);
        break;
    case EXPR_CONSTANT:
        number(b, op->alpha);
        break;
    case EXPR_DEQUANTIZE:
        mlo_buf_printf(b, "vm_dequantize(r%d, ", op->a);
        number(b, op->alpha);
        mlo_buf_puts(b, ", ");
        number(b, op->beta);
        mlo_buf_puts(b, ")");
        break;
    case EXPR_QUANTIZE: {
        const float numbers[] = {op->alpha, op->beta, op->low, op->high};
        mlo_buf_printf(b, "vm_quantize(r%d", op->a);
        for (size_t k = 0; k < MLO_COUNT(numbers); k++) {
            mlo_buf_puts(b, ", ");
            number(b, numbers[k]);
        }
        mlo_buf_puts(b, ")");
        break;
    }
    case EXPR_MATH: {
        const float numbers[] = {op->alpha, op->beta};
        mlo_buf_printf(b, "%s(r%d", math_names[op->math].name, op->a);
        for (int k = 0; k < math_names[op->math].parameters; k++) {
            mlo_buf_puts(b, ", ");
            number(b, numbers[k]);
        }
        mlo_buf_puts(b, ")");
        break;
    }
    default:
        mlo_buf_printf(b, "%s(r%d, r%d)", binary_names[op->kind], op->a, op->b);
    }
    mlo_buf_puts(b, ";\n");
}

static const char *element_name(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 ? "float" : dtype == MLO_UINT8 ? "unsigned char" : "signed char";
}

static const char *load_name(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 ? "v_load" : dtype == MLO_UINT8 ? "v_load_u8" : "v_load_s8";
}

/* What one pass of the loop over columns does; `tail`: with fewer elements than a vector has. */
static void columns(struct mlo_buf *b, const struct expr_program *p, bool tail)
{
    for (int i = 0; i < p->input_count; i++) {
        enum mlo_dtype type = p->inputs[i].dtype;
        if (p->inputs[i].splat)
            continue;
        if (tail)
            mlo_buf_printf(b, "            const vf x%d = %s_n(p%d + i, n - i);\n", i, load_name(type), i);
        else
            mlo_buf_printf(b, "            const vf x%d = %s(p%d + i);\n", i, load_name(type), i);
    }
    mlo_buf_puts(b, "            const vf r = element(");
    for (int i = 0; i < p->input_count; i++)
        mlo_buf_printf(b, "%sx%d", i ? ", " : "", i);
    mlo_buf_puts(b, ");\n");
    const char *store = p->result == MLO_FLOAT32 ? "v_store" : "v_store_i8";
    if (tail)
        mlo_buf_printf(b, "            %s_n(y + i, n - i, r);\n", store);
    else
        mlo_buf_printf(b, "            %s(y + i, r);\n", store);
}

char *expr_source(enum mlo_isa isa, const struct expr_program *p)
{
    struct mlo_buf b = {0};
    mlo_buf_printf(&b, "/* %s */\n#include <immintrin.h>\n#include <stddef.h>\n#define SIMD_LANES %d\n",
                   GENERATOR, isa >= MLO_ISA_AVX512 ? 16 : 8);
    for (size_t i = 0; i < fast_kernel_texts_count; i++)
        mlo_buf_append(&b, fast_kernel_texts[i].text, fast_kernel_texts[i].size);
    mlo_buf_puts(&b, "\nV_FN vf element(");
    for (int i = 0; i < p->input_count; i++)
        mlo_buf_printf(&b, "%svf x%d", i ? ", " : "", i);
    mlo_buf_printf(&b, "%s)\n{\n", p->input_count ? "" : "void");
    for (int i = 0; i < p->op_count; i++)
        operation(&b, i, &p->ops[i]);
    mlo_buf_printf(
        &b,
        "    return r%d;\n}\n\nvoid mlopt_kernel(const void *const *in, const ptrdiff_t *in_stride, void "
        "*out, ptrdiff_t out_stride,\n                  size_t rows, size_t n)\n{\n"
        "    for (size_t row = 0; row < rows; row++) {\n        %s *y = (void *)((char *)out + "
        "(ptrdiff_t)row * out_stride);\n        size_t i = 0;\n",
        p->op_count - 1, element_name(p->result));
    for (int i = 0; i < p->input_count; i++) {
        const char *type = element_name(p->inputs[i].dtype);
        mlo_buf_printf(&b,
                       "        const %s *p%d = (const void *)((const char *)in[%d] + (ptrdiff_t)row * "
                       "in_stride[%d]);\n",
                       type, i, i, i);
        if (p->inputs[i].splat)
            mlo_buf_printf(&b, "        const vf x%d = v_set((float)p%d[0]);\n", i, i);
    }
    mlo_buf_puts(&b, "        for (; i + SIMD_LANES <= n; i += SIMD_LANES) {\n");
    columns(&b, p, false);
    mlo_buf_puts(&b, "        }\n        if (i < n) {\n");
    columns(&b, p, true);
    mlo_buf_puts(&b, "        }\n    }\n}\n");
    if (!mlo_buf_ok(&b)) {
        mlo_buf_clear(&b);
        return NULL;
    }
    return mlo_buf_take(&b);
}

/* --- the compiler --------------------------------------------------------------------------------------- */

static const char *const compilers[] = {"/usr/bin/cc", "/usr/bin/gcc", "/usr/bin/clang"};

/* Found once: which compiler there is, and what it says of itself. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *compiler;
static char compiler_version[256], *folder;
static int folder_fd = -1; /* open as long as the process lives: what was checked is what is used */

static bool is_private(const struct stat *s, bool is_folder)
{
    return s->st_uid == geteuid() && (s->st_mode & 077) == 0 &&
           (is_folder ? S_ISDIR(s->st_mode) : S_ISREG(s->st_mode));
}

/* The compiler is given names in the folder, so nobody else may put another one in its place. */
static bool is_ours(const char *parent)
{
    struct stat s;
    return stat(parent, &s) == 0 && s.st_uid == geteuid() && (s.st_mode & S_IWOTH) == 0;
}

static char *private_folder(void)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct mlo_error ignored = {0};
    struct stat s;
    char *parent = NULL, *path = NULL;
    if (base && base[0] == '/')
        parent = mlo_fs_join(base, "mlopt", (char *)NULL);
    else if (home && home[0] == '/')
        parent = mlo_fs_join(home, ".cache", "mlopt", (char *)NULL);
    path = parent ? mlo_fs_join(parent, "kernels", (char *)NULL) : NULL;
    bool good = path && mlo_fs_mkdirs_private(path, &ignored) == MLO_OK && is_ours(parent);
    if (good)
        folder_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    good = good && folder_fd >= 0 && fstat(folder_fd, &s) == 0 && is_private(&s, true);
    free(parent);
    if (good)
        return path;
    free(path);
    return NULL;
}

static void find_compiler(void)
{
    for (size_t i = 0; i < MLO_COUNT(compilers) && !compiler; i++) {
        const char *argv[] = {compilers[i], "--version", NULL};
        struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
        struct mlo_buf out = {0};
        struct mlo_error ignored = {0};
        int code = -1;
        o.argv = argv;
        if (access(compilers[i], X_OK) == 0 &&
            mlo_process_run(&o, COMPILE_TIMEOUT_MS, 1 << 16, &out, &code, &ignored) == MLO_OK && code == 0) {
            compiler = compilers[i];
            snprintf(compiler_version, sizeof compiler_version, "%.*s", (int)strcspn(mlo_buf_str(&out), "\n"),
                     mlo_buf_str(&out));
        }
        mlo_buf_clear(&out);
    }
    folder = compiler ? private_folder() : NULL;
}

static const char *const flags[] = {"-std=gnu11",
                                    "-O2",
                                    "-fPIC",
                                    "-shared",
                                    "-nostdlib",
                                    "-ffp-contract=off",
                                    "-fno-math-errno",
                                    "-fno-trapping-math",
                                    "-fno-strict-aliasing",
                                    "-w",
                                    "-mavx2",
                                    "-mfma",
                                    NULL};
static const char *const flags_avx512[] = {"-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", NULL};

enum { COMMAND_MAX = MLO_COUNT(flags) + MLO_COUNT(flags_avx512) + 8 };

static void command_of(enum mlo_isa isa, const char *source, const char *object,
                       const char *argv[COMMAND_MAX])
{
    const char *const rest[] = {"-x", "c", "-o", object, source, NULL};
    const char *const *const parts[] = {flags, isa >= MLO_ISA_AVX512 ? flags_avx512 : NULL, rest};
    size_t n = 0;
    argv[n++] = compiler;
    for (size_t i = 0; i < MLO_COUNT(parts); i++)
        for (const char *const *word = parts[i]; word && *word; word++)
            argv[n++] = *word;
    argv[n] = NULL;
}

static bool run_compiler(enum mlo_isa isa, const char *source, const char *object)
{
    const char *argv[COMMAND_MAX];
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    struct mlo_error ignored = {0};
    int code = -1, null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    command_of(isa, source, object, argv);
    o.argv = argv;
    o.stdout_fd = o.stderr_fd = null;
    o.own_group = true;
    bool good = null >= 0 &&
                mlo_process_run(&o, COMPILE_TIMEOUT_MS, 1 << 16, NULL, &code, &ignored) == MLO_OK &&
                code == 0;
    if (null >= 0)
        close(null);
    return good;
}

bool expr_kernel_digest(const char *const *command, const char *version, const char *text,
                        struct mlo_digest *out)
{
    struct mlo_hasher *h = mlo_hasher_new();
    if (!h)
        return false;
    for (; *command; command++)
        mlo_hasher_update(h, *command, strlen(*command) + 1);
    mlo_hasher_update(h, "", 1);
    mlo_hasher_update(h, version, strlen(version) + 1);
    mlo_hasher_update(h, text, strlen(text));
    mlo_hasher_final(h, out);
    mlo_hasher_free(h);
    return true;
}

/* Behind a kernel's library, where the loader does not look, lies the digest of what is before it: a library
 * that lost its end would end the process that loads it, now and at every later start. */
static bool read_kernel(const char *path, struct mlo_buf *bytes)
{
    struct mlo_error ignored = {0};
    return mlo_fs_read(path, KERNEL_MAX, bytes, &ignored) == MLO_OK;
}

static bool seal_kernel(const char *path)
{
    struct mlo_buf bytes = {0};
    struct mlo_digest digest;
    int fd = read_kernel(path, &bytes) ? open(path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC) : -1;
    bool good = fd >= 0;
    if (good) {
        mlo_digest_of(bytes.data, bytes.len, &digest);
        good = mlo_fs_write_full(fd, digest.bytes, sizeof digest.bytes) && fchmod(fd, 0600) == 0 &&
               fdatasync(fd) == 0;
        close(fd);
    }
    mlo_buf_clear(&bytes);
    return good;
}

static bool is_whole(const char *path)
{
    struct mlo_buf bytes = {0};
    struct mlo_digest digest;
    bool good = read_kernel(path, &bytes) && bytes.len > sizeof digest.bytes;
    if (good) {
        size_t size = bytes.len - sizeof digest.bytes;
        mlo_digest_of(bytes.data, size, &digest);
        good = memcmp(digest.bytes, bytes.data + size, sizeof digest.bytes) == 0;
    }
    mlo_buf_clear(&bytes);
    return good;
}

/* Compiles next to where the result belongs, and moves it there whole. */
static bool compile(enum mlo_isa isa, const char *text, const char *path)
{
    char *source = mlo_fs_join(folder, "sourceXXXXXX", (char *)NULL);
    char *object = mlo_fs_join(folder, "objectXXXXXX", (char *)NULL);
    int in = source ? mkostemp(source, O_CLOEXEC) : -1, out = object ? mkostemp(object, O_CLOEXEC) : -1;
    bool good = in >= 0 && out >= 0 && mlo_fs_write_full(in, text, strlen(text)) &&
                run_compiler(isa, source, object) && seal_kernel(object) && rename(object, path) == 0;
    if (in >= 0) {
        close(in);
        unlink(source);
    }
    if (out >= 0) {
        close(out);
        if (!good)
            unlink(object);
    }
    free(source);
    free(object);
    if (good)
        mlo_cache_trim(folder_fd, &LIMITS);
    return good;
}

/* Looked at first, by way of the folder that was checked. (A library is known to the loader by its path, so
 * that must not be the descriptor of the file itself.) */
static expr_fn *load(const char *name)
{
    struct stat s;
    char path[MLO_DIGEST_TEXT_SIZE + 64];
    void *library = NULL;
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", folder_fd, name);
    if (fstatat(folder_fd, name, &s, AT_SYMLINK_NOFOLLOW) == 0 && is_private(&s, false) && is_whole(path))
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "mlopt_kernel") : NULL;
    expr_fn *fn = NULL;
    int used = library ? openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (used >= 0) {
        futimens(used, NULL); /* now: the oldest are dropped first (a step may not do it by the path) */
        close(used);
    }
    if (symbol)
        memcpy(&fn, &symbol, sizeof fn); /* ISO C has no cast from an object's to a function's pointer */
    return fn;
}

/* --- what is loaded ------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct loaded {
    struct mlo_digest digest;
    expr_fn *fn; /* NULL: it could not be had, which is not tried again */
} * loaded;
static size_t loaded_count;

static expr_fn *look_up(enum mlo_isa isa, const char *text, const struct mlo_digest *digest)
{
    char name[MLO_DIGEST_TEXT_SIZE + 8], hex[MLO_DIGEST_TEXT_SIZE];
    for (size_t i = 0; i < loaded_count; i++)
        if (memcmp(&loaded[i].digest, digest, sizeof *digest) == 0)
            return loaded[i].fn;
    if (loaded_count == LOADED_MAX || (!loaded && !(loaded = calloc(LOADED_MAX, sizeof *loaded))))
        return NULL;
    const char *colon = strchr(mlo_digest_text(digest, hex), ':');
    snprintf(name, sizeof name, "%s.so", colon ? colon + 1 : hex);
    char *path = mlo_fs_join(folder, name, (char *)NULL);
    expr_fn *fn = load(name);
    if (path && !fn && compile(isa, text, path))
        fn = load(name);
    free(path);
    loaded[loaded_count++] = (struct loaded){*digest, fn};
    return fn;
}

expr_fn *expr_compiled(enum mlo_isa isa, const struct expr_program *p)
{
    const char *wish = getenv("MLOPT_CODEGEN");
    if (wish && strcmp(wish, "off") == 0)
        return NULL;
    pthread_once(&once, find_compiler);
    if (!folder || p->input_count == 0)
        return NULL;
    char *text = expr_source(isa, p);
    struct mlo_digest digest;
    const char *command[COMMAND_MAX];
    expr_fn *fn = NULL;
    command_of(isa, "", "", command);
    if (text && expr_kernel_digest(command, compiler_version, text, &digest)) {
        pthread_mutex_lock(&lock);
        fn = look_up(isa, text, &digest);
        pthread_mutex_unlock(&lock);
    }
    free(text);
    return fn;
}
