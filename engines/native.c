/* Functions in C that are made when they are needed: compiled by the system's compiler, kept in a private
 * folder under the digest of all that their bytes follow from, and loaded from there by this and later
 * processes. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "engines/native_impl.h"

enum { COMPILE_TIMEOUT_MS = 300000, LOADED_MAX = 4096, KERNEL_MAX = 1 << 22 };

/* Of the folder: the kernels used last, and none of what compilers that were ended left. */
static const char *const UNFINISHED[] = {"source", "object", NULL};
static const struct mlo_cache_limits LIMITS = {
    .suffix = ".so", .unfinished = UNFINISHED, .max_files = 2048, .max_bytes = (uint64_t)128 << 20};

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

enum { COMMAND_MAX = 48 };

/* false: more words than there is room for. */
static bool command_of(const char *const *flags, const char *source, const char *object,
                       const char *argv[COMMAND_MAX])
{
    const char *const rest[] = {"-x", "c", "-o", object, source, NULL};
    const char *const *const parts[] = {flags, rest};
    size_t n = 0;
    argv[n++] = compiler;
    for (size_t i = 0; i < MLO_COUNT(parts); i++)
        for (const char *const *word = parts[i]; *word; word++) {
            if (n + 1 == COMMAND_MAX)
                return false;
            argv[n++] = *word;
        }
    argv[n] = NULL;
    return true;
}

static bool run_compiler(const char *const *flags, const char *source, const char *object)
{
    const char *argv[COMMAND_MAX];
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    struct mlo_error ignored = {0};
    int code = -1, null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    bool good = command_of(flags, source, object, argv);
    o.argv = argv;
    o.stdout_fd = o.stderr_fd = null;
    o.own_group = true;
    good = good && null >= 0 &&
           mlo_process_run(&o, COMPILE_TIMEOUT_MS, 1 << 16, NULL, &code, &ignored) == MLO_OK && code == 0;
    if (null >= 0)
        close(null);
    return good;
}

bool mlo_native_digest(const char *const *command, const char *version, const char *text,
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
static bool compile(const char *const *flags, const char *text, const char *path)
{
    char *source = mlo_fs_join(folder, "sourceXXXXXX", (char *)NULL);
    char *object = mlo_fs_join(folder, "objectXXXXXX", (char *)NULL);
    int in = source ? mkostemp(source, O_CLOEXEC) : -1, out = object ? mkostemp(object, O_CLOEXEC) : -1;
    bool good = in >= 0 && out >= 0 && mlo_fs_write_full(in, text, strlen(text)) &&
                run_compiler(flags, source, object) && seal_kernel(object) && rename(object, path) == 0;
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
static void *load(const char *name, const char *symbol_name)
{
    struct stat s;
    char path[MLO_DIGEST_TEXT_SIZE + 64];
    void *library = NULL;
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", folder_fd, name);
    if (fstatat(folder_fd, name, &s, AT_SYMLINK_NOFOLLOW) == 0 && is_private(&s, false) && is_whole(path))
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, symbol_name) : NULL;
    int used = library ? openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (used >= 0) {
        futimens(used, NULL); /* now: the oldest are dropped first (a step may not do it by the path) */
        close(used);
    }
    return symbol;
}

/* --- what is loaded ------------------------------------------------------------------------------------- */

/* `making` is held while a function is compiled, `table_lock` only while the table is read or written: what
 * is there already need not wait for a compiler. Only who holds both writes. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER, table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct loaded {
    struct mlo_digest digest;
    void *fn; /* NULL: it could not be had, which is not tried again */
} * loaded;
static size_t loaded_count;

static bool find_loaded(const struct mlo_digest *digest, void **fn)
{
    bool found = false;
    pthread_mutex_lock(&table_lock);
    for (size_t i = 0; i < loaded_count && !found; i++)
        if (memcmp(&loaded[i].digest, digest, sizeof *digest) == 0) {
            *fn = loaded[i].fn;
            found = true;
        }
    pthread_mutex_unlock(&table_lock);
    return found;
}

/* Under `making`: somebody else may have made it meanwhile. */
static void *look_up(const char *const *flags, const char *text, const char *symbol,
                     const struct mlo_digest *digest)
{
    char name[MLO_DIGEST_TEXT_SIZE + 8], hex[MLO_DIGEST_TEXT_SIZE];
    void *fn = NULL;
    if (find_loaded(digest, &fn) || loaded_count == LOADED_MAX ||
        (!loaded && !(loaded = calloc(LOADED_MAX, sizeof *loaded))))
        return fn;
    const char *colon = strchr(mlo_digest_text(digest, hex), ':');
    snprintf(name, sizeof name, "%s.so", colon ? colon + 1 : hex);
    char *path = mlo_fs_join(folder, name, (char *)NULL);
    fn = load(name, symbol);
    if (path && !fn && compile(flags, text, path))
        fn = load(name, symbol);
    free(path);
    pthread_mutex_lock(&table_lock);
    loaded[loaded_count++] = (struct loaded){*digest, fn};
    pthread_mutex_unlock(&table_lock);
    return fn;
}

void *mlo_native_function(const char *text, const char *const *flags, const char *symbol)
{
    struct mlo_digest digest;
    const char *command[COMMAND_MAX];
    void *fn = NULL;
    pthread_once(&once, find_compiler);
    if (folder && command_of(flags, "", "", command) &&
        mlo_native_digest(command, compiler_version, text, &digest) && !find_loaded(&digest, &fn)) {
        pthread_mutex_lock(&making);
        fn = look_up(flags, text, symbol, &digest);
        pthread_mutex_unlock(&making);
    }
    return fn;
}

bool mlo_native_possible(void)
{
    pthread_once(&once, find_compiler);
    return folder != NULL;
}
