/* A hostile step: what it tries is refused or ended, and the worker goes on. Each layer is asked for only
 * where the kernel has it, and what it lacks is said. */
#include "pipeline/service/sandbox_impl.h"
#include "pipeline/service/worker_impl.h"
#include "tests/integration/service/service_fixture.h"

#include <linux/capability.h>
#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>

/* --- the attacks: 0 when it came through, else the errno that stopped it -------------------------------- */

struct target {
    char *root;        /* the test's folder: secret, blobs, state */
    const char *dir;   /* the step's own */
    const char *model; /* its input */
    pid_t worker;
};

static int tried(long result)
{
    return result < 0 ? errno : 0;
}

static int open_there(const struct target *t, const char *name, int flags)
{
    char *path = mlo_fs_join(t->root, name, NULL);
    int fd = open(path, flags | O_CLOEXEC, 0600), outcome = tried(fd);
    if (fd >= 0)
        close(fd);
    free(path);
    return outcome;
}

static int of_worker(const struct target *t, const char *name, int flags)
{
    char path[64], byte;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)t->worker, name);
    int fd = open(path, flags | O_CLOEXEC), outcome = tried(fd);
    if (fd >= 0)
        outcome = flags == O_RDONLY ? tried(read(fd, &byte, 1)) : 0;
    if (fd >= 0)
        close(fd);
    return outcome;
}

static int read_secret(const struct target *t)
{
    return open_there(t, "secret", O_RDONLY);
}

static int read_shadow(const struct target *t)
{
    MLO_UNUSED(t);
    int fd = open("/etc/shadow", O_RDONLY | O_CLOEXEC);
    return tried(fd);
}

static int list_blobs(const struct target *t)
{
    return open_there(t, "blobs", O_RDONLY | O_DIRECTORY);
}

static int list_jobs(const struct target *t)
{
    return open_there(t, "work/scratch", O_RDONLY | O_DIRECTORY);
}

static int plant_file(const struct target *t)
{
    return open_there(t, "planted", O_WRONLY | O_CREAT);
}

static int overwrite_input(const struct target *t)
{
    return tried(open(t->model, O_WRONLY | O_CLOEXEC));
}

static int truncate_input(const struct target *t)
{
    return tried(truncate(t->model, 0));
}

static int remove_input(const struct target *t)
{
    return tried(unlink(t->model));
}

/* An input has the blob store's own bytes: under another name in a folder to write in it would be open. */
static int link_input(const struct target *t)
{
    char *mine = mlo_fs_join(t->dir, "mine", NULL);
    int outcome = tried(link(t->model, mine));
    if (outcome == 0)
        outcome = tried(open(mine, O_WRONLY | O_CLOEXEC));
    free(mine);
    return outcome;
}

static int hide_input(const struct target *t)
{
    return tried(chmod(t->model, 0));
}

static int set_user_id(const struct target *t)
{
    return tried(chmod(t->model, 04755));
}

/* Landlock has no say in modes, and the worker's user owns what the worker keeps. */
static int unlock_secret(const struct target *t)
{
    char *path = mlo_fs_join(t->root, "secret", NULL);
    int outcome = tried(chmod(path, 0666));
    free(path);
    return outcome;
}

static int unlock_secret_at(const struct target *t)
{
    int root = open(t->root, O_PATH | O_CLOEXEC), outcome = tried(fchmodat(root, "secret", 0666, 0));
    close(root);
    return outcome;
}

static int date_secret(const struct target *t)
{
    char *path = mlo_fs_join(t->root, "secret", NULL);
    int outcome = tried(utimensat(AT_FDCWD, path, NULL, 0));
    free(path);
    return outcome;
}

/* Of a file that Landlock lets it write to: what stops it is not Landlock. */
static int with_own_file(const struct target *t, long (*act)(const char *path))
{
    char *path = mlo_fs_join(t->dir, "own", NULL);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || close(fd) != 0)
        abort();
    int outcome = tried(act(path));
    free(path);
    return outcome;
}

static long by_truncating(const char *path)
{
    return truncate(path, 0);
}

static long by_reading(const char *path)
{
    return syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_TRUNC | O_CLOEXEC);
}

static long by_opening_for_nothing(const char *path)
{
    return syscall(SYS_openat, AT_FDCWD, path, O_ACCMODE | O_TRUNC | O_CLOEXEC);
}

static int truncate_by_path(const struct target *t)
{
    return with_own_file(t, by_truncating);
}

static int truncate_by_reading(const struct target *t)
{
    return with_own_file(t, by_reading);
}

static int truncate_by_nothing(const struct target *t)
{
    return with_own_file(t, by_opening_for_nothing);
}

static int own_program(const struct target *t)
{
    char *path = mlo_fs_join(t->dir, "program", NULL), *const argv[] = {path, NULL}, *const env[] = {NULL};
    int outcome = 0, fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0700), answer[2] = {-1, -1};
    if (fd < 0 || !mlo_fs_write_full(fd, "#!/bin/true\n", 12) || close(fd) != 0 ||
        pipe2(answer, O_CLOEXEC) != 0)
        abort();
    pid_t pid = fork();
    if (pid == 0) {
        execve(path, argv, env);
        outcome = errno;
        if (write(answer[1], &outcome, sizeof outcome) < 0)
            _exit(1);
        _exit(0);
    }
    close(answer[1]);
    outcome = 0;
    if (read(answer[0], &outcome, sizeof outcome) < 0)
        outcome = 0;
    close(answer[0]);
    waitpid(pid, NULL, 0);
    free(path);
    return outcome;
}

static int inet_socket(const struct target *t)
{
    MLO_UNUSED(t);
    return tried(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static int unix_socket(const struct target *t)
{
    MLO_UNUSED(t);
    return tried(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static int datagram_pair(const struct target *t)
{
    int pair[2];
    MLO_UNUSED(t);
    return tried(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair));
}

/* Linux makes it one of datagrams. */
static int raw_pair(const struct target *t)
{
    int pair[2];
    MLO_UNUSED(t);
    return tried(socketpair(AF_UNIX, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
}

static int trace_worker(const struct target *t)
{
    return tried(ptrace(PTRACE_ATTACH, t->worker, NULL, NULL));
}

static int read_worker(const struct target *t)
{
    char byte;
    struct iovec mine = {&byte, 1}, its = {(void *)0x1000, 1};
    return tried(process_vm_readv(t->worker, &mine, 1, &its, 1, 0));
}

static int worker_environment(const struct target *t)
{
    return of_worker(t, "environ", O_RDONLY);
}

static int worker_memory(const struct target *t)
{
    return of_worker(t, "mem", O_RDWR);
}

static int signal_worker(const struct target *t)
{
    return tried(kill(t->worker, SIGUSR2)); /* which nobody handles here */
}

/* Everybody, with a signal that is none; there is somebody, or the kernel would find nobody. */
static int signal_all(const struct target *t)
{
    MLO_UNUSED(t);
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    int outcome = tried(kill(-1, 0));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return outcome;
}

static int limit_worker(const struct target *t)
{
    struct rlimit none = {0, 0};
    return tried(syscall(SYS_prlimit64, t->worker, RLIMIT_CORE, &none, NULL));
}

static int new_user_namespace(const struct target *t)
{
    MLO_UNUSED(t);
    return tried(syscall(SYS_unshare, 0x10000000));
}

static int ring(const struct target *t)
{
    char parameters[120] = {0};
    MLO_UNUSED(t);
    return tried(syscall(425, 1, parameters)); /* io_uring_setup */
}

static int mount_there(const struct target *t)
{
    return tried(mount("none", t->dir, "tmpfs", 0, NULL));
}

/* The other way round: 0 when something is there that should not be. */
static int capabilities(const struct target *t)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct have[2] = {{0}};
    MLO_UNUSED(t);
    return syscall(SYS_capget, &header, have) == 0 && !have[0].permitted && !have[1].permitted ? EPERM : 0;
}

static int new_privileges(const struct target *t)
{
    MLO_UNUSED(t);
    return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? EPERM : 0;
}

static int environment(const struct target *t)
{
    MLO_UNUSED(t);
    return getenv("MLOPT_DATABASE") || getenv("AWS_SECRET_ACCESS_KEY") ? 0 : EPERM;
}

static int descriptors(const struct target *t)
{
    MLO_UNUSED(t);
    for (int fd = 3; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            return 0;
    return EPERM;
}

enum { ALWAYS, LANDLOCK = 1, LANDLOCK_NEW_SIGNALS = 6, NAMESPACES = 100, SECCOMP };
static const struct attack {
    const char *name;
    int (*run)(const struct target *t);
    int needs; /* a version of Landlock, or one of the other layers */
} attacks[] = {
    {"read_secret", read_secret, LANDLOCK},
    {"read_shadow", read_shadow, LANDLOCK},
    {"list_blobs", list_blobs, LANDLOCK},
    {"list_jobs", list_jobs, LANDLOCK},
    {"plant_file", plant_file, LANDLOCK},
    {"overwrite_input", overwrite_input, LANDLOCK},
    {"truncate_input", truncate_input, 3},
    {"remove_input", remove_input, LANDLOCK},
    {"link_input", link_input, LANDLOCK},
    {"hide_input", hide_input, SECCOMP},
    {"set_user_id", set_user_id, SECCOMP},
    {"unlock_secret", unlock_secret, SECCOMP},
    {"unlock_secret_at", unlock_secret_at, SECCOMP},
    {"date_secret", date_secret, SECCOMP},
    {"truncate_by_path", truncate_by_path, SECCOMP},
    {"truncate_by_reading", truncate_by_reading, SECCOMP},
    {"truncate_by_nothing", truncate_by_nothing, SECCOMP},
    {"own_program", own_program, LANDLOCK},
    {"inet_socket", inet_socket, SECCOMP},
    {"unix_socket", unix_socket, SECCOMP},
    {"datagram_pair", datagram_pair, SECCOMP},
    {"raw_pair", raw_pair, SECCOMP},
    {"trace_worker", trace_worker, SECCOMP},
    {"read_worker", read_worker, SECCOMP},
    {"worker_environment", worker_environment, LANDLOCK},
    {"worker_memory", worker_memory, LANDLOCK},
    {"signal_worker", signal_worker, LANDLOCK_NEW_SIGNALS},
    {"signal_all", signal_all, SECCOMP},
    {"limit_worker", limit_worker, SECCOMP},
    {"new_user_namespace", new_user_namespace, SECCOMP},
    {"ring", ring, SECCOMP},
    {"mount_there", mount_there, SECCOMP},
    {"capabilities", capabilities, ALWAYS},
    {"new_privileges", new_privileges, ALWAYS},
    {"environment", environment, ALWAYS},
    {"descriptors", descriptors, ALWAYS},
};

static void try_all(const struct target *t, const char *model)
{
    char *skip = micro_value(model, "optimize", "skip"), word[64];
    for (size_t i = 0; i < MLO_COUNT(attacks); i++) {
        char line[64];
        snprintf(word, sizeof word, " %s ", attacks[i].name);
        if (skip && strstr(skip, word)) /* what it would do is not kept from it here */
            continue;
        int outcome = attacks[i].run(t);
        snprintf(line, sizeof line, "%s-%s", outcome ? "refused" : "done", attacks[i].name);
        micro_log(model, "optimize", line);
    }
    free(skip);
}

/* --- the greedy ones: they end when somebody ends them ---------------------------------------------------
 */

static void eat_memory_in_children(const struct target *t, const char *model)
{
    enum { CHILDREN = 6, EACH = 40 << 20 };
    MLO_UNUSED(model);
    MLO_UNUSED(t);
    for (int i = 0; i < CHILDREN; i++) {
        if (fork() != 0)
            continue;
        volatile char *bytes = malloc(EACH);
        for (size_t at = 0; bytes && at < EACH; at += 4096)
            bytes[at] = 1;
        for (;;)
            pause();
    }
    for (;;)
        pause();
}

static void fill_disk(const struct target *t, const char *model)
{
    static char block[1 << 20];
    MLO_UNUSED(model);
    for (int i = 0; i < 256; i++) {
        char name[32];
        snprintf(name, sizeof name, "fill%d", i);
        char *path = mlo_fs_join(t->dir, name, NULL);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        memset(block, i + 1, sizeof block);
        if (fd < 0 || !mlo_fs_write_full(fd, block, sizeof block))
            abort();
        close(fd);
        free(path);
        usleep(20000);
    }
    for (;;)
        pause();
}

/* What the jobs of a project keep for one another is on the same disk. */
static void fill_what_is_kept(const struct target *t, const char *model)
{
    const struct target kept = {.dir = getenv("XDG_CACHE_HOME")};
    MLO_UNUSED(t);
    fill_disk(&kept, model);
}

/* Whose user is the worker's is not listed there either. */
static void lock_a_folder(const struct target *t, const char *model)
{
    const struct target locked = {.dir = mlo_fs_join(t->dir, "locked", NULL)};
    if (mkdir(locked.dir, 0300) != 0)
        abort();
    fill_disk(&locked, model);
}

static void one_huge_file(const struct target *t, const char *model)
{
    char *path = mlo_fs_join(t->dir, "huge", NULL);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    signal(SIGXFSZ, SIG_IGN);
    int outcome = tried(pwrite(fd, "x", 1, (off_t)1 << 40));
    micro_log(model, "optimize", outcome == EFBIG ? "refused-huge" : "done-huge");
    free(path);
}

static void bomb(const struct target *t, const char *model)
{
    MLO_UNUSED(t);
    for (int i = 0; i < 2000; i++) {
        pid_t pid = fork();
        if (pid == 0)
            for (;;)
                pause();
        if (pid < 0) {
            micro_log(model, "optimize", "refused-fork");
            return; /* what it has made stays, and must go with it */
        }
    }
    for (;;)
        pause();
}

static void hide(const struct target *t, const char *model)
{
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        for (;;)
            pause();
    }
    MLO_UNUSED(t);
    waitpid(pid, NULL, 0);
    micro_log(model, "optimize", "hidden");
}

static void put_a_pipe_for_the_result(const struct target *t, const char *model)
{
    char *path = mlo_fs_join(t->dir, "result.json", NULL);
    MLO_UNUSED(model);
    if (mkfifo(path, 0600) != 0)
        abort();
    _exit(0);
}

static void leave_result(const struct target *t, const char *before, const char *part, size_t times,
                         const char *after)
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_error err = {0};
    char *path = mlo_fs_join(t->dir, "result.json", NULL);
    mlo_buf_puts(&text, before);
    for (size_t i = 0; i < times; i++)
        mlo_buf_printf(&text, "%s%s", i ? "," : "", part);
    mlo_buf_puts(&text, after);
    if (!mlo_buf_ok(&text) || mlo_fs_write_atomic(path, text.data, text.len, &err) != MLO_OK)
        abort();
    _exit(0);
}

/* Small as text and large once it is parsed. */
static void bloat_the_result(const struct target *t, const char *model)
{
    MLO_UNUSED(model);
    leave_result(t, "{\"status\":\"ok\",\"more\":[", "{}", (size_t)3 << 20, "]}");
}

static void observe_too_much(const struct target *t, const char *model)
{
    MLO_UNUSED(model);
    leave_result(t, "{\"status\":\"ok\",\"observations\":[", "{}", 5000, "]}");
}

/* What is refused is not what the compiler of the kernels needs. */
static void compile_there(const struct target *t, const char *model)
{
    static const char text[] = "int answer(void) { return 42; }\n";
    char *source = mlo_fs_join(t->dir, "source", NULL), *object = mlo_fs_join(t->dir, "object.so", NULL);
    const char *const argv[] = {"/usr/bin/cc", "-shared", "-fPIC", "-O2",  "-nostdlib", "-x",
                                "c",           "-o",      object,  source, NULL};
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    struct mlo_error err = {0};
    int code = -1;
    o.argv = argv;
    if (mlo_fs_write_atomic(source, text, sizeof text - 1, &err) == MLO_OK &&
        mlo_process_run(&o, 60000, 1 << 16, NULL, &code, &err) == MLO_OK && code == 0 &&
        mlo_fs_size(object) > 0)
        micro_log(model, "optimize", "compiled");
    free(source);
    free(object);
}

static const struct {
    const char *name;
    void (*run)(const struct target *t, const char *model);
} deeds[] = {{"all", try_all},
             {"memory", eat_memory_in_children},
             {"disk", fill_disk},
             {"kept", fill_what_is_kept},
             {"locked", lock_a_folder},
             {"huge", one_huge_file},
             {"bomb", bomb},
             {"hide", hide},
             {"pipe", put_a_pipe_for_the_result},
             {"bloat", bloat_the_result},
             {"observe", observe_too_much},
             {"compile", compile_there}};

static int hostile_step(const char *dir)
{
    json_t *job = NULL;
    struct mlo_error err = {0};
    struct mlo_buf model = MLO_BUF_INIT;
    char *in = mlo_fs_join(dir, "job.json", NULL);
    if (mlo_json_load_file(in, &job, &err) != MLO_OK ||
        mlo_fs_read(mlo_json_str(job, "model", ""), 1 << 20, &model, &err) != MLO_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    const char *text = mlo_buf_str(&model);
    char *deed = micro_value(text, "optimize", "deed"), *state = micro_value(text, "all", "state");
    struct target t = {.root = mlo_fs_join(state, "..", NULL),
                       .dir = dir,
                       .model = mlo_json_str(job, "model", ""),
                       .worker = (pid_t)micro_number(text, "optimize", "worker", 0)};
    for (size_t i = 0; deed && i < MLO_COUNT(deeds); i++)
        if (strcmp(deeds[i].name, deed) == 0)
            deeds[i].run(&t, text);
    free(deed);
    free(state);
    free(t.root);
    free(in);
    mlo_buf_clear(&model);
    json_decref(job);
    return micro_step(dir);
}

/* --- the tests --------------------------------------------------------------------------------------------
 */

static bool kernel_has(int layer);

static int64_t hostile(struct service_fixture *f, const char *deed)
{
    struct mlo_buf orders = MLO_BUF_INIT;
    mlo_buf_printf(&orders, "optimize.deed=%s\noptimize.worker=%d\noptimize.skip= ", deed, (int)getpid());
    for (size_t i = 0; i < MLO_COUNT(attacks); i++)
        if (!kernel_has(attacks[i].needs))
            mlo_buf_printf(&orders, "%s ", attacks[i].name);
    int64_t run = submit(f, add_version(f, deed, mlo_buf_str(&orders)), RECIPE_DERIVE, 0);
    mlo_buf_clear(&orders);
    return run;
}

/* Nothing of the job is left, and the same worker does the next one. */
static void assert_goes_on(struct service_fixture *f)
{
    static int next;
    char name[32], content[48]; /* each its own: what was made before would be reused */
    snprintf(name, sizeof name, "next%d", next);
    snprintf(content, sizeof content, "optimize.sleep_ms=0\nnext=%d", next++);
    int64_t run = submit(f, add_version(f, name, content), RECIPE_DERIVE, 0);
    wait_run(f, run);
    assert_run(f, run, -1, "state", "succeeded");
    wait_until(jobs_in_scratch(f) == 0);
}

static void assert_error(struct service_fixture *f, int64_t run, const char *part)
{
    json_t *value = get_run(f, run);
    const char *message = mlo_json_str(json_object_get(value, "error"), "message", "");
    if (!strstr(message, part))
        fail_msg("'%s' does not say '%s'", message, part);
    json_decref(value);
}

/* As `mlopt doctor` has it. */
static bool layer_is_on(const char *name)
{
    json_t *layers = NULL, *layer;
    struct mlo_error err = {0};
    size_t i;
    bool whole, on = false;
    assert_mlo_ok(mlo_isolation(&layers, &whole, &err), &err);
    json_array_foreach(layers, i, layer)
    {
        if (strcmp(mlo_json_str(layer, "layer", ""), name) == 0)
            on = mlo_json_bool(layer, "on", false);
    }
    json_decref(layers);
    return on;
}

static bool kernel_has(int layer)
{
    if (layer == SECCOMP)
        return layer_is_on("seccomp");
    return layer == NAMESPACES ? mlo_process_can_namespaces() : mlo_landlock_abi() >= layer;
}

static void test_sandbox__refuses_what_is_no_business_of_a_step(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    char *secret = mlo_fs_join(f->dir, "secret", NULL), *planted = mlo_fs_join(f->dir, "planted", NULL);
    struct mlo_buf before = MLO_BUF_INIT, after = MLO_BUF_INIT;
    char *log = mlo_fs_join(f->state, "log", NULL);
    assert_mlo_ok(mlo_fs_write_atomic(secret, "secret", 6, &f->err), &f->err);
    setenv("MLOPT_DATABASE", "postgres://somebody:password@host/mlopt", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "key", 1);
    signal(SIGUSR2, SIG_IGN);
    start_worker(f, &w, 1);
    int64_t run = hostile(f, "all");
    wait_run(f, run);
    unsetenv("MLOPT_DATABASE");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    assert_run(f, run, -1, "state", "succeeded");
    assert_mlo_ok(mlo_fs_read(log, 1 << 20, &after, &f->err), &f->err);
    for (size_t i = 0; i < MLO_COUNT(attacks); i++) {
        char line[64];
        snprintf(line, sizeof line, "refused-%s optimize", attacks[i].name);
        if (!kernel_has(attacks[i].needs))
            print_message("left out, for this kernel lacks the layer: %s\n", attacks[i].name);
        else if (!strstr(mlo_buf_str(&after), line))
            fail_msg("not refused: %s\n%s", attacks[i].name, mlo_buf_str(&after));
    }
    assert_false(kernel_has(LANDLOCK) && mlo_fs_exists(planted));
    assert_goes_on(f);
    stop_worker(&w);
    mlo_buf_clear(&before);
    mlo_buf_clear(&after);
    free(secret);
    free(planted);
    free(log);
}

static void test_sandbox__ends_who_takes_too_much(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    start_worker_with(f, &w,
                      (struct mlo_worker_options){.max_memory_bytes = SANITIZED ? 0 : (uint64_t)160 << 20,
                                                  .max_scratch_bytes = (uint64_t)16 << 20,
                                                  .max_tasks = 64});
    int64_t run;
    if (!SANITIZED) { /* a sanitizer's own memory is larger than any limit */
        run = hostile(f, "memory");
        wait_run(f, run);
        assert_run(f, run, -1, "state", "failed");
        assert_error(f, run, "a job may have 167.8 MB");
        assert_int_equal(job_i64(f, run, 0, "attempt"), 1); /* trying again would not help */
        assert_goes_on(f);
    }
    run = hostile(f, "disk");
    wait_run(f, run);
    assert_run(f, run, -1, "state", "failed");
    assert_error(f, run, "a job may have 16.8 MB");
    assert_goes_on(f);
    run = hostile(f, "kept");
    wait_run(f, run);
    assert_run(f, run, -1, "state", "failed");
    assert_error(f, run, "a job may have 16.8 MB");
    assert_goes_on(f); /* which makes room there again */
    char *kernels = mlo_fs_join(f->work, "kernels", NULL);
    assert_in_range(mlo_usage_of_folder(kernels, MLO_USAGE_HIDDEN), 1, 9 << 20);
    free(kernels);
    run = hostile(f, "locked"); /* cannot be counted, or is more than may be */
    wait_run(f, run);
    assert_run(f, run, -1, "state", "failed");
    wait_until(jobs_in_scratch(f) == 0);
    assert_goes_on(f);
    run = hostile(f, "huge");
    wait_run(f, run);
    assert_run(f, run, -1, "state", "succeeded");
    assert_int_equal(micro_count(f->state, "refused-huge optimize"), 1);
    stop_worker(&w);
}

static void test_sandbox__ends_what_multiplies(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    start_worker_with(f, &w, (struct mlo_worker_options){.max_tasks = 64});
    int64_t run = hostile(f, "bomb");
    wait_run(f, run);
    /* an ordinary user's 65th is refused by the kernel; root's job is ended */
    if (micro_count(f->state, "refused-fork optimize") == 0) {
        assert_run(f, run, -1, "state", "failed");
        assert_error(f, run, "more than 64 processes and threads");
    }
    assert_goes_on(f);
    wait_until(!any_child_alive(f));
    stop_worker(&w);
}

static void test_sandbox__ends_what_hides(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    if (!kernel_has(NAMESPACES)) {
        print_message("left out: this kernel refuses namespaces\n");
        skip();
    }
    start_worker(f, &w, 1);
    int64_t run = hostile(f, "hide");
    wait_run(f, run);
    assert_run(f, run, -1, "state", "succeeded");
    assert_int_equal(micro_count(f->state, "hidden optimize"), 1);
    wait_until(!any_child_alive(f));
    stop_worker(&w);
}

static void test_sandbox__waits_for_no_pipe(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    start_worker(f, &w, 1);
    int64_t run = hostile(f, "pipe");
    wait_run(f, run);
    assert_run(f, run, -1, "state", "failed");
    assert_error(f, run, "no result");
    assert_goes_on(f);
    stop_worker(&w);
}

static void test_sandbox__takes_no_result_beyond_bounds(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    start_worker(f, &w, 1);
    int64_t run = hostile(f, "bloat");
    wait_run(f, run);
    assert_run(f, run, -1, "state", "failed");
    assert_error(f, run, "larger than 8 MiB");
    run = hostile(f, "observe");
    wait_run(f, run);
    assert_run(f, run, -1, "state", "failed");
    assert_error(f, run, "returned 5000 observations; at most 4096 are taken");
    assert_goes_on(f);
    stop_worker(&w);
}

static void test_sandbox__lets_a_step_compile(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    if (access("/usr/bin/cc", X_OK) != 0) {
        print_message("left out: no compiler here\n");
        skip();
    }
    start_worker(f, &w, 1);
    int64_t run = hostile(f, "compile");
    wait_run(f, run);
    assert_run(f, run, -1, "state", "succeeded");
    assert_int_equal(micro_count(f->state, "compiled optimize"), 1);
    stop_worker(&w);
}

static void test_sandbox__says_what_the_kernel_has(void **state)
{
    json_t *layers, *layer;
    struct mlo_error err = {0};
    size_t i;
    bool whole, all_on = true;
    MLO_UNUSED(state);
    assert_mlo_ok(mlo_isolation(&layers, &whole, &err), &err);
    json_array_foreach(layers, i, layer)
    {
        const char *name = mlo_json_str(layer, "layer", "");
        bool on = mlo_json_bool(layer, "on", false);
        all_on = all_on && on;
        if (strcmp(name, "namespaces") == 0)
            assert_int_equal(on, kernel_has(NAMESPACES));
        if (strcmp(name, "landlock-files") == 0)
            assert_int_equal(on, kernel_has(LANDLOCK));
        if (!on)
            print_message("lacking: %s: %s\n", name, mlo_json_str(layer, "note", ""));
    }
    assert_int_equal(whole, all_on);
    json_decref(layers);
}

/* Wherever the walk meets the folder that it may not read, among files that it may. */
static void test_usage__what_hides_is_not_counted_over(void **state)
{
    struct service_fixture *f = *state;
    enum { FILES = 40, NOBODY = 65534 };
    char *dir = NULL, name[16];
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlo-usage-", &dir, &f->err), &f->err);
    assert_int_equal(chmod(dir, 0777), 0);
    bool was_root = geteuid() == 0;
    if (was_root)
        assert_int_equal(seteuid(NOBODY), 0);
    char *folder = mlo_fs_join(dir, "kept", NULL), *locked = mlo_fs_join(folder, "locked", NULL);
    assert_mlo_ok(mlo_fs_mkdirs(folder, &f->err), &f->err);
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "%d", i);
        char *path = mlo_fs_join(folder, name, NULL);
        assert_mlo_ok(mlo_fs_write_atomic(path, "x", 1, &f->err), &f->err);
        free(path);
        if (i == FILES / 2)
            assert_mlo_ok(mlo_fs_mkdirs(locked, &f->err), &f->err);
    }
    uint64_t before = mlo_usage_of_folder(folder, MLO_USAGE_HIDDEN);
    assert_int_equal(chmod(locked, 0), 0);
    uint64_t after = mlo_usage_of_folder(folder, MLO_USAGE_HIDDEN);
    mlo_kept_trim(folder, (uint64_t)1 << 30); /* nobody knows whether it has more */
    bool trimmed = !mlo_fs_exists(folder);
    if (was_root)
        assert_int_equal(seteuid(0), 0); /* else what comes next could not end */
    assert_true(before < (uint64_t)1 << 30);
    assert_true(after == MLO_USAGE_HIDDEN);
    assert_true(trimmed);
    mlo_fs_remove_tree(dir);
    free(locked);
    free(folder);
    free(dir);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], MLO_STEP_EXEC_VERB) == 0)
        return hostile_step(argv[2]);
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sandbox__says_what_the_kernel_has),
        SERVICE_TEST(test_sandbox__refuses_what_is_no_business_of_a_step),
        SERVICE_TEST(test_sandbox__ends_who_takes_too_much),
        SERVICE_TEST(test_sandbox__ends_what_multiplies),
        SERVICE_TEST(test_sandbox__ends_what_hides),
        SERVICE_TEST(test_sandbox__waits_for_no_pipe),
        SERVICE_TEST(test_sandbox__takes_no_result_beyond_bounds),
        SERVICE_TEST(test_sandbox__lets_a_step_compile),
        SERVICE_TEST(test_usage__what_hides_is_not_counted_over),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
