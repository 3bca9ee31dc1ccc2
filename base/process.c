#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"

extern char **environ;

/* Builds the environment before fork: the child of a threaded process may only call
 * async-signal-safe functions. */
static char **merged_env(const char *const *extra)
{
    size_t have = 0, more = 0, n = 0;
    while (environ[have])
        have++;
    while (extra && extra[more])
        more++;
    char **env = calloc(have + more + 1, sizeof *env);
    if (!env)
        return NULL;
    for (size_t i = 0; i < have; i++) {
        bool replaced = false;
        for (size_t j = 0; j < more && !replaced; j++) {
            size_t name = strcspn(extra[j], "=");
            replaced = strncmp(environ[i], extra[j], name) == 0 && environ[i][name] == '=';
        }
        if (!replaced)
            env[n++] = environ[i];
    }
    for (size_t j = 0; j < more; j++)
        if (strchr(extra[j], '='))
            env[n++] = (char *)extra[j];
    return env;
}

/* How it was started. */
struct start {
    pid_t parent;
    int parent_fd;       /* the end of the report's pipe that the parent reads */
    unsigned long flags; /* its new namespaces */
};

static bool set_limit(int what, uint64_t value)
{
    struct rlimit limit = {value, value};
    return value == 0 || setrlimit(what, &limit) == 0;
}

static bool redirect(int fd, int target, bool null_when_absent)
{
    if (fd < 0) {
        if (!null_when_absent)
            return true;
        fd = open("/dev/null", O_RDONLY);
        if (fd < 0)
            return false;
    }
    if (fd == target)
        return fcntl(fd, F_SETFD, 0) == 0;
    return dup2(fd, target) >= 0;
}

/* For good, or where that is refused (by valgrind) as far as it goes. */
static bool set_files_limit(uint64_t value)
{
    struct rlimit have;
    if (value == 0 || set_limit(RLIMIT_NOFILE, value))
        return true;
    if (getrlimit(RLIMIT_NOFILE, &have) != 0)
        return false;
    have.rlim_cur = value < have.rlim_max ? value : have.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &have) == 0;
}

static bool set_limits(const struct mlo_process_options *o, bool own_users)
{
    static const struct rlimit none = {0, 0};
    return set_limit(RLIMIT_AS, o->max_memory_bytes) && set_limit(RLIMIT_CPU, o->max_cpu_s) &&
           set_limit(RLIMIT_FSIZE, o->max_file_bytes) && set_files_limit(o->max_files) &&
           set_limit(RLIMIT_NPROC, own_users ? o->max_processes : 0) &&
           (!o->no_core_dump || setrlimit(RLIMIT_CORE, &none) == 0);
}

/* Whether who started us is still there. In a process namespace of our own no number says so: the pipe that
 * it reads has no reader any more. */
static bool has_parent(const struct start *start, int report)
{
    struct pollfd pipe = {report, 0, 0};
    if (!(start->flags & CLONE_NEWPID))
        return getppid() == start->parent;
    return poll(&pipe, 1, 0) == 0;
}

/* In the child. Only async-signal-safe calls. */
static void child_exec(const struct mlo_process_options *o, char **env, int report_fd,
                       const struct start *start)
{
    sigset_t none;
    close(start->parent_fd); /* has_parent() asks who else has it */
    sigemptyset(&none);
    bool ok = sigprocmask(SIG_SETMASK, &none, NULL) == 0;
    signal(SIGPIPE, SIG_DFL);
    signal(SIGCHLD, SIG_DFL); /* what is ignored stays so over exec, and it waits for children of its own */
    if (ok && o->own_group)
        ok = setpgid(0, 0) == 0;
    /* keep the report pipe clear of the standard descriptors */
    int report = fcntl(report_fd, F_DUPFD_CLOEXEC, 3);
    ok = ok && report >= 0;
    /* sources may sit on each other's targets (fd 1 as stderr): move them up first */
    int in = o->stdin_fd < 0 ? -1 : fcntl(o->stdin_fd, F_DUPFD_CLOEXEC, 3);
    int out = o->stdout_fd < 0 ? -1 : fcntl(o->stdout_fd, F_DUPFD_CLOEXEC, 3);
    int er = o->stderr_fd < 0 ? -1 : fcntl(o->stderr_fd, F_DUPFD_CLOEXEC, 3);
    ok = ok && redirect(in, 0, true) && redirect(out, 1, false) && redirect(er, 2, false);
    if (ok && report != 3) {
        if (dup3(report, 3, O_CLOEXEC) >= 0)
            report = 3;
    }
    if (ok && o->no_network && !(start->flags & CLONE_NEWNET) && unshare(CLONE_NEWNET) < 0)
        unshare(CLONE_NEWUSER | CLONE_NEWNET); /* hardening: where even this is refused it runs as it is */
    ok = ok && set_limits(o, start->flags & CLONE_NEWUSER);
    if (ok && o->run_as_uid) {
        gid_t gid = o->run_as_gid;
        ok = setgroups(1, &gid) == 0 && setresgid(gid, gid, gid) == 0 &&
             setresuid(o->run_as_uid, o->run_as_uid, o->run_as_uid) == 0;
    }
    if (ok && o->die_with_parent) { /* after setuid, which clears it */
        ok = prctl(PR_SET_PDEATHSIG, o->death_signal ? o->death_signal : SIGTERM) == 0;
        if (ok && !has_parent(start, report))
            _exit(127); /* it died before we could ask to be told */
    }
    if (ok && o->cwd)
        ok = chdir(o->cwd) == 0;
    ok = ok && (!o->confine || o->confine(o->confine_arg));
    if (ok)
        syscall(SYS_close_range, 4u, ~0u, 0u);
    if (ok)
        execve(o->argv[0], (char *const *)o->argv, env);
    int e = errno;
    if (write(report, &e, sizeof e) < 0) {
        /* the exit status says it too */
    }
    _exit(127);
}

#if defined(__SANITIZE_THREAD__)
#define MAY_CLONE false /* its fork stops what other threads hold of the sanitizer; a clone does not */
#else
#define MAY_CLONE true
#endif

/* With namespaces of our own where that is asked for and can be had. */
static pid_t fork_into(const struct mlo_process_options *o, struct start *start)
{
    static const unsigned long wanted[] = {CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC,
                                           CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC};
    for (size_t i = 0; o->own_namespaces && MAY_CLONE && i < sizeof wanted / sizeof *wanted; i++) {
        start->flags = wanted[i];
        long pid = syscall(SYS_clone, wanted[i] | SIGCHLD, 0, 0, 0, 0);
        if (pid >= 0)
            return (pid_t)pid;
    }
    start->flags = 0;
    return fork();
}

bool mlo_process_can_namespaces(void)
{
    const struct mlo_process_options o = {.own_namespaces = true};
    struct start start = {0};
    pid_t pid = fork_into(&o, &start);
    if (pid == 0)
        _exit(0);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 && start.flags != 0;
}

enum mlo_status mlo_process_start(const struct mlo_process_options *options, pid_t *pid,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int report[2];
    char **env = merged_env(options->env);
    if (!env)
        return mlo_error_nomem(err);
    if (pipe2(report, O_CLOEXEC) < 0) {
        free(env);
        return mlo_error_errno(err, errno, "cannot start %s", options->argv[0]);
    }
    struct start start = {.parent = getpid(), .parent_fd = report[0]};
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* no handler of ours may run in the child */
    pid_t child = fork_into(options, &start);
    if (child == 0) {
        child_exec(options, env, report[1], &start);
        _exit(127);
    }
    int fork_errno = errno;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    close(report[1]);
    if (child < 0) {
        status = mlo_error_errno(err, fork_errno, "cannot start %s", options->argv[0]);
    } else {
        int e = 0;
        size_t got = 0;
        if (mlo_fs_read_full(report[0], &e, sizeof e, &got) && got == sizeof e) {
            while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
            }
            status = mlo_error_errno(err, e, "cannot start %s", options->argv[0]);
        } else {
            *pid = child;
        }
    }
    close(report[0]);
    free(env);
    return status;
}

/* Reads until end of file or the deadline; false at the deadline. */
static bool collect(int fd, uint64_t deadline_ns, size_t max_bytes, struct mlo_buf *output, bool *overflow)
{
    char piece[16384];
    for (;;) {
        int wait_ms = -1;
        if (deadline_ns) {
            uint64_t now = mlo_clock_ns();
            if (now >= deadline_ns)
                return false;
            wait_ms = (int)MLO_MIN((deadline_ns - now) / 1000000 + 1, (uint64_t)INT_MAX);
        }
        struct pollfd p = {fd, POLLIN, 0};
        int n = poll(&p, 1, wait_ms);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            continue;
        ssize_t got = read(fd, piece, sizeof piece);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return true;
        if (output->len + (size_t)got > max_bytes) {
            *overflow = true;
            return true;
        }
        mlo_buf_append(output, piece, (size_t)got);
    }
}

/* Until it ends; MLO_ETIMEOUT at the deadline. Somebody else may have waited for it (or SIGCHLD is ignored):
 * then nobody knows how it ended, which is not success. */
static enum mlo_status wait_until(pid_t pid, uint64_t deadline_ns, int *wait_status)
{
    uint32_t pause_ms = 1;
    for (;;) {
        pid_t got = waitpid(pid, wait_status, deadline_ns ? WNOHANG : 0);
        if (got == pid)
            return MLO_OK;
        if (got < 0 && errno != EINTR)
            return MLO_EIO;
        if (deadline_ns && mlo_clock_ns() >= deadline_ns)
            return MLO_ETIMEOUT;
        if (deadline_ns) {
            mlo_clock_sleep_ms(pause_ms);
            pause_ms = MLO_MIN(pause_ms * 2, 20u);
        }
    }
}

enum mlo_status mlo_process_run(const struct mlo_process_options *options, uint64_t timeout_ms,
                                size_t max_bytes, struct mlo_buf *output, int *exit_code,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_process_options o = *options;
    uint64_t deadline_ns = timeout_ms ? mlo_clock_ns() + timeout_ms * 1000000 : 0;
    int pipe_fd[2] = {-1, -1};
    pid_t pid;
    if (output) {
        if (pipe2(pipe_fd, O_CLOEXEC) < 0)
            return mlo_error_errno(err, errno, "cannot start %s", o.argv[0]);
        o.stdout_fd = pipe_fd[1];
    }
    o.own_group = true;
    status = mlo_process_start(&o, &pid, err);
    if (pipe_fd[1] >= 0)
        close(pipe_fd[1]);
    if (status != MLO_OK) {
        if (pipe_fd[0] >= 0)
            close(pipe_fd[0]);
        return status;
    }
    bool overflow = false;
    int wait_status = 0;
    if (output && !collect(pipe_fd[0], deadline_ns, max_bytes, output, &overflow))
        status = MLO_ETIMEOUT;
    else if (!overflow)
        status = wait_until(pid, deadline_ns, &wait_status);
    if (status == MLO_ETIMEOUT || overflow) {
        kill(-pid, SIGKILL);
        (void)!wait_until(pid, 0, &wait_status);
    }
    if (pipe_fd[0] >= 0)
        close(pipe_fd[0]);
    *exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
    if (overflow)
        return mlo_error_set(err, MLO_ETOOBIG, "%s printed more than %zu bytes", o.argv[0], max_bytes);
    if (status == MLO_ETIMEOUT)
        return mlo_error_set(err, MLO_ETIMEOUT, "%s did not end within %llu ms", o.argv[0],
                             (unsigned long long)timeout_ms);
    if (status != MLO_OK) {
        *exit_code = 127;
        mlo_error_set(err, status, "how %s ended is not known: something else in this process waited for it",
                      o.argv[0]);
        mlo_error_hint(err,
                       "the program must not ignore SIGCHLD, nor wait for children that it did not start");
        return status;
    }
    if (output && !mlo_buf_ok(output))
        return mlo_error_nomem(err);
    return MLO_OK;
}

char *mlo_process_self(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return NULL;
    path[n] = '\0';
    return strdup(path);
}
