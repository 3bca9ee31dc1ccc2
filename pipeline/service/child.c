#include "pipeline/service/child_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { WATCH_MS = 100, WATCH_MS_WITHOUT_PIDFD = 10, LINE_MAX_BYTES = 4096, STDERR_TAIL = 240 };
enum { USAGE_EVERY_MS = 500, FOLDER_EVERY_MS = 1000, FILES_MAX = 4096 };
enum { RESULT_MAX_BYTES = 8 << 20 }; /* parsed it takes up to some hundred times that */

/* --- the machine's lock -------------------------------------------------------------------------------- */

static enum mlo_status lock_file(const char *dir, const char *name, int how, mlo_child_watch_fn *watch,
                                 void *arg, int *fd, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *path = mlo_fs_join(dir, name, NULL);
    if (!path)
        return mlo_error_nomem(err);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*fd < 0)
        status = mlo_error_errno(err, errno, "cannot open the lock %s", path);
    while (status == MLO_OK && flock(*fd, how | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            status = mlo_error_errno(err, errno, "cannot lock %s", path);
            break;
        }
        status = watch(arg, err);
        mlo_clock_sleep_ms(10);
    }
    free(path);
    return status;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

enum mlo_status mlo_machine_lock(const char *dir, bool exclusive, mlo_child_watch_fn *watch, void *arg,
                                 struct mlo_machine_lock *lock, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    lock->turnstile_fd = lock->machine_fd = -1;
    MLO_TRY(lock_file(dir, "turnstile.lock", LOCK_EX, watch, arg, &lock->turnstile_fd, err));
    MLO_TRY(
        lock_file(dir, "machine.lock", exclusive ? LOCK_EX : LOCK_SH, watch, arg, &lock->machine_fd, err));
out:
    close_fd(&lock->turnstile_fd);
    if (status != MLO_OK)
        mlo_machine_unlock(lock);
    return status;
}

void mlo_machine_unlock(struct mlo_machine_lock *lock)
{
    close_fd(&lock->turnstile_fd);
    close_fd(&lock->machine_fd);
}

/* --- progress lines ------------------------------------------------------------------------------------ */

struct lines {
    char text[LINE_MAX_BYTES];
    size_t len;
    bool overlong; /* the rest of this line is dropped */
};

static void progress_line(const struct mlo_child *child, const char *text, size_t size)
{
    json_t *value = NULL;
    if (mlo_json_parse(text, size, "progress", &value, NULL) != MLO_OK)
        return; /* a library that prints is no reason to fail */
    if (json_is_object(value) && child->progress) {
        double fraction = mlo_json_f64(value, "fraction", 0.0);
        child->progress(child->arg, MLO_MAX(0.0, MLO_MIN(1.0, fraction)), mlo_json_str(value, "message", ""));
    }
    json_decref(value);
}

static void take_bytes(const struct mlo_child *child, struct lines *lines, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\n') {
            if (!lines->overlong && lines->len)
                progress_line(child, lines->text, lines->len);
            lines->len = 0;
            lines->overlong = false;
        } else if (lines->len < sizeof lines->text) {
            lines->text[lines->len++] = bytes[i];
        } else {
            lines->overlong = true;
        }
    }
}

/* Reads what is there without waiting; false at the end of the pipe. */
static bool drain(const struct mlo_child *child, int fd, struct lines *lines)
{
    char piece[4096];
    for (;;) {
        ssize_t got = read(fd, piece, sizeof piece);
        if (got > 0)
            take_bytes(child, lines, piece, (size_t)got);
        else if (got == 0)
            return false;
        else if (errno != EINTR)
            return errno == EAGAIN;
    }
}

/* --- what the process gets -----------------------------------------------------------------------------

 * The step runs what somebody uploaded: it gets what it needs, and no address, password or token. */
static bool passed_on(const char *variable)
{
    static const char *const beginnings[] = {"PATH=", "TZ=",     "LANG=",      "LC_",         "OMP_",
                                             "GOMP_", "DNNL_",   "ONEDNN_",    "MALLOC_",     "LD_",
                                             "CUDA_", "NVIDIA_", "MLOPT_ISA=", "MLOPT_FP16=", "ASAN_",
                                             "LSAN_", "UBSAN_",  "TSAN_",      "GCOV_",       "VALGRIND_"};
    for (size_t i = 0; i < MLO_COUNT(beginnings); i++)
        if (mlo_str_starts(variable, beginnings[i]))
            return true;
    return false;
}

/* The names to unset, and what is set, NULL-terminated, in one block; NULL when out of memory. */
static const char **environment(const char *const *set)
{
    size_t count = 0, more = 0, bytes = 0;
    for (char **e = environ; *e; e++, count++)
        bytes += strlen(*e) + 1;
    while (set && set[more])
        more++;
    const char **names = malloc((count + more + 1) * sizeof *names + bytes);
    char *text = names ? (char *)(names + count + more + 1) : NULL;
    size_t n = 0;
    for (char **e = environ; names && *e; e++) {
        size_t length = strcspn(*e, "=");
        if (passed_on(*e))
            continue;
        memcpy(text, *e, length);
        text[length] = '\0';
        names[n++] = text;
        text += length + 1;
    }
    for (size_t i = 0; names && i < more; i++)
        names[n++] = set[i];
    if (names)
        names[n] = NULL;
    return names;
}

/* --- the process --------------------------------------------------------------------------------------- */

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};
    /* WNOWAIT: the leader stays a zombie, so its group's number cannot be reused before the group is killed
     */
    int failed = waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT);
    return failed ? errno == ECHILD : info.si_pid == pid; /* ECHILD: somebody else waited for it */
}

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

/* *cpu_s is what it and the processes that it waited for used. */
static int end_group(pid_t pid, double *cpu_s)
{
    int wait_status;
    struct rusage used;
    kill(-pid, SIGKILL);
    for (;;) {
        if (wait4(pid, &wait_status, 0, &used) == pid) {
            *cpu_s = seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
            return wait_status;
        }
        if (errno != EINTR)
            return W_EXITCODE(127, 0); /* nobody knows: not success */
    }
}

/* --- what it uses -------------------------------------------------------------------------------------- */

struct looks {
    uint64_t usage_ns, folder_ns; /* when to look next */
    uint64_t kept_before[2];
};

static enum mlo_status too_much(struct mlo_error *err, const char *what, uint64_t have, uint64_t limit,
                                const char *option)
{
    char a[32], b[32];
    mlo_error_set(err, MLO_ETOOBIG, "the step's processes %s %s; a job may have %s on this worker", what,
                  mlo_str_size(have, a), mlo_str_size(limit, b));
    mlo_error_hint(err, "`mlopt worker --%s` sets it", option);
    return MLO_ETOOBIG;
}

static void look_at_kept(const struct mlo_child *child, struct looks *looks)
{
    for (size_t i = 0; child->max_scratch_bytes && i < MLO_COUNT(child->kept); i++)
        if (child->kept[i])
            looks->kept_before[i] = mlo_usage_of_folder(child->kept[i], MLO_USAGE_HIDDEN);
}

/* Other jobs of the project may add there as well: what they do is counted to each of them. */
static uint64_t scratch_of(const struct mlo_child *child, const struct looks *looks)
{
    uint64_t bytes = mlo_usage_of_folder(child->folder, child->max_scratch_bytes);
    for (size_t i = 0; bytes <= child->max_scratch_bytes && i < MLO_COUNT(child->kept); i++) {
        uint64_t before = looks->kept_before[i], now;
        if (!child->kept[i])
            continue;
        now = mlo_usage_of_folder(child->kept[i], before > MLO_USAGE_HIDDEN - child->max_scratch_bytes
                                                      ? MLO_USAGE_HIDDEN
                                                      : before + child->max_scratch_bytes);
        if (now == MLO_USAGE_HIDDEN && before != MLO_USAGE_HIDDEN)
            return now;
        bytes += now > before ? now - before : 0;
    }
    return bytes;
}

/* The kernel's limits are of one process; a job has as many as it likes. */
static enum mlo_status look_at_usage(const struct mlo_child *child, pid_t pid, struct looks *next,
                                     struct mlo_error *err)
{
    struct mlo_usage usage;
    uint64_t now = mlo_clock_ns(), bytes;
    if ((child->max_memory_bytes || child->max_tasks) && now >= next->usage_ns) {
        mlo_usage_of(pid, &usage);
        if (child->max_memory_bytes && usage.memory_bytes > child->max_memory_bytes)
            return too_much(err, "took", usage.memory_bytes, child->max_memory_bytes, "max-memory");
        if (child->max_tasks && usage.tasks > child->max_tasks) {
            mlo_error_set(err, MLO_ETOOBIG, "the step has more than %u processes and threads",
                          child->max_tasks);
            mlo_error_hint(err, "`mlopt worker --max-tasks` sets it");
            return MLO_ETOOBIG;
        }
        next->usage_ns = mlo_clock_ns() + USAGE_EVERY_MS * 1000000ull;
    }
    if (child->max_scratch_bytes && now >= next->folder_ns) {
        bytes = scratch_of(child, next);
        if (bytes == MLO_USAGE_HIDDEN) {
            mlo_error_set(err, MLO_ETOOBIG,
                          "the step made folders that cannot be looked at: what they hold cannot be counted");
            mlo_error_hint(err, "`mlopt worker --max-scratch` limits what a job writes");
            return MLO_ETOOBIG;
        }
        if (bytes > child->max_scratch_bytes)
            return too_much(err, "wrote more than", child->max_scratch_bytes, child->max_scratch_bytes,
                            "max-scratch");
        next->folder_ns = mlo_clock_ns() + FOLDER_EVERY_MS * 1000000ull;
    }
    return MLO_OK;
}

static enum mlo_status late(const struct mlo_child *child, struct mlo_error *err)
{
    *child->out_of_time = true;
    mlo_error_set(err, MLO_ETIMEOUT, "the step did not end within %u s", child->max_s);
    mlo_error_hint(err, "%s", child->time_hint);
    return MLO_ETIMEOUT;
}

static enum mlo_status supervise(const struct mlo_child *child, pid_t pid, int fd, int stderr_fd,
                                 int *wait_status, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct lines lines = {.len = 0};
    struct looks next = {0};
    look_at_kept(child, &next);
    uint64_t deadline_ns = child->max_s ? mlo_clock_ns() + child->max_s * 1000000000ull : 0;
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0u);
    int wait_ms = pid_fd >= 0 ? WATCH_MS : WATCH_MS_WITHOUT_PIDFD;
    bool open = true;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (status == MLO_OK && !has_ended(pid)) {
        struct pollfd waits[2] = {{open ? fd : -1, POLLIN, 0}, {pid_fd, POLLIN, 0}};
        poll(waits, 2, wait_ms);
        if (open)
            open = drain(child, fd, &lines);
        status = child->watch(child->arg, err);
        if (child->log)
            child->log(child->arg, stderr_fd, false);
        if (status == MLO_OK)
            status = look_at_usage(child, pid, &next, err);
        if (status == MLO_OK && deadline_ns && mlo_clock_ns() > deadline_ns)
            status = late(child, err);
    }
    *wait_status = end_group(pid, child->cpu_s);
    if (open)
        drain(child, fd, &lines);
    if (child->log)
        child->log(child->arg, stderr_fd, true);
    if (pid_fd >= 0)
        close(pid_fd);
    return status;
}

/* The last line or two that the child wrote on stderr, for the message of a crash. */
static void stderr_tail(int fd, struct mlo_error *err)
{
    char tail[STDERR_TAIL + 1];
    size_t got = 0;
    off_t size = lseek(fd, 0, SEEK_END);
    if (size > STDERR_TAIL)
        lseek(fd, size - STDERR_TAIL, SEEK_SET);
    else
        lseek(fd, 0, SEEK_SET);
    if (!mlo_fs_read_full(fd, tail, STDERR_TAIL, &got))
        got = 0;
    while (got && (tail[got - 1] == '\n' || tail[got - 1] == ' '))
        got--;
    tail[got] = '\0';
    for (size_t i = 0; i < got; i++)
        if ((unsigned char)tail[i] < ' ' || (unsigned char)tail[i] > '~')
            tail[i] = ' '; /* what an untrusted step prints goes into a JSON row */
    if (got)
        mlo_error_hint(err, "it last printed: %s", tail);
}

static enum mlo_status crashed(int wait_status, int stderr_fd, struct mlo_error *err)
{
    if (WIFSIGNALED(wait_status)) {
        int sig = WTERMSIG(wait_status);
        const char *name = sigabbrev_np(sig);
        mlo_error_set(err, MLO_EJOB, "the step's process was killed by signal %d (SIG%s)%s", sig,
                      name ? name : "?", sig == SIGKILL ? ": the machine may be out of memory" : "");
    } else {
        mlo_error_set(err, MLO_EJOB, "the step's process ended with exit status %d and no result",
                      WEXITSTATUS(wait_status));
    }
    stderr_tail(stderr_fd, err);
    return MLO_EJOB;
}

static enum mlo_status step_error(const json_t *result, const char *dir, struct mlo_error *err)
{
    enum mlo_status status = mlo_status_from_code(mlo_json_str(result, "status", ""));
    if (status == MLO_OK)
        status = MLO_EINTERNAL;
    mlo_error_set(err, status, "%s", mlo_json_str(result, "message", "the step failed without a message"));
    const char *where = mlo_json_str(result, "where", ""), *hint = mlo_json_str(result, "hint", "");
    if (*where)
        mlo_error_where(err, "%s", where);
    if (*hint)
        mlo_error_hint(err, "%s", hint);
    char *inputs = mlo_fs_join(dir, "in/", NULL);
    if (inputs) /* where the step found its files means nothing to who reads this */
        mlo_error_cut(err, inputs);
    free(inputs);
    return status;
}

/* Not a link to elsewhere, nor a pipe that nobody writes to: who could put another one there has ended. */
static bool is_file(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode);
}

enum mlo_status mlo_child_run(const struct mlo_child *child, json_t **result, bool *was_crash,
                              struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int pipe_fd[2] = {-1, -1}, stderr_fd = -1, wait_status = 0;
    pid_t pid = -1;
    json_t *value = NULL;
    const char **env = environment(child->env);
    *was_crash = false;
    char *result_path = mlo_fs_join(child->dir, "result.json", NULL);
    char *stderr_path = mlo_fs_join(child->dir, "stderr.log", NULL);
    if (!result_path || !stderr_path || !env) {
        status = mlo_error_nomem(err);
        goto out;
    }
    stderr_fd = open(stderr_path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (stderr_fd < 0 || pipe2(pipe_fd, O_CLOEXEC) < 0) {
        status = mlo_error_errno(err, errno, "cannot prepare the step's process");
        goto out;
    }
    const char *const argv[] = {child->exe, "step-exec", child->dir, NULL};
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    options.argv = argv;
    options.env = env;
    options.cwd = child->dir;
    options.stdout_fd = pipe_fd[1];
    options.stderr_fd = stderr_fd;
    options.own_group = true;
    options.die_with_parent = true;
    options.death_signal = SIGKILL;
    options.no_network = options.own_namespaces = true;
    options.max_memory_bytes = child->max_memory_bytes;
    options.max_file_bytes = child->max_scratch_bytes;
    options.max_files = FILES_MAX;
    options.max_processes = child->max_tasks;
    options.no_core_dump = true;
    if (child->max_s) /* where the clock on the wall is not looked at any more */
        options.max_cpu_s = (uint32_t)MLO_MIN((uint64_t)child->max_s * (mlo_cpu_count() + 1), UINT32_MAX);
    if (child->sandbox) {
        options.confine = mlo_sandbox_enter;
        options.confine_arg = child->sandbox;
    }
    MLO_TRY(mlo_process_start(&options, &pid, err));
    close(pipe_fd[1]);
    pipe_fd[1] = -1;
    MLO_TRY(supervise(child, pid, pipe_fd[0], stderr_fd, &wait_status, err));
    if (!is_file(result_path)) {
        status = crashed(wait_status, stderr_fd, err);
        *was_crash = true;
        goto out;
    }
    if (mlo_fs_size(result_path) > RESULT_MAX_BYTES) {
        status = mlo_error_set(err, MLO_ETOOBIG, "the step's result is larger than %d MiB",
                               RESULT_MAX_BYTES >> 20);
        goto out;
    }
    if (mlo_json_load_file(result_path, &value, err) != MLO_OK || !json_is_object(value)) {
        status = crashed(wait_status, stderr_fd, err);
        *was_crash = true;
        goto out;
    }
    if (!mlo_str_eq(mlo_json_str(value, "status", NULL), "ok")) {
        status = step_error(value, child->folder, err);
        goto out;
    }
    *result = json_incref(value);
out:
    json_decref(value);
    if (stderr_fd >= 0)
        close(stderr_fd);
    for (int i = 0; i < 2; i++)
        if (pipe_fd[i] >= 0)
            close(pipe_fd[i]);
    free(env);
    free(result_path);
    free(stderr_path);
    return status;
}
