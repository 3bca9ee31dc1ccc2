#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/cli/serve/serve.h"

enum { FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 30000, HEALTHY_MS = 60000 };

struct chick {
    pid_t pid; /* 0: not running */
    uint64_t started_ns, start_again_ns;
    uint32_t pause_ms;
};

struct mlo_brood {
    struct chick *chicks;
    unsigned count;
    char *exe, *database, *blobs, *work_dir, threads[16];
    int log_fd;
};

static enum mlo_status start_one(struct mlo_brood *b, struct chick *c, struct mlo_error *err)
{
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    const char *argv[] = {b->exe,      "worker",    "--blobs",  b->blobs, "--work-dir",
                          b->work_dir, "--threads", b->threads, NULL};
    const char *env[] = {b->database, "MLOPT_TOKEN",
                         NULL}; /* not in the arguments, which everybody may read */
    o.argv = argv;
    o.env = env;
    o.stdout_fd = o.stderr_fd = b->log_fd;
    o.own_group = true;
    o.die_with_parent = true;
    enum mlo_status status = mlo_process_start(&o, &c->pid, err);
    c->started_ns = mlo_clock_ns();
    return status;
}

static void free_brood(struct mlo_brood *b)
{
    if (b->log_fd >= 0)
        close(b->log_fd);
    free(b->chicks);
    free(b->exe);
    free(b->database);
    free(b->blobs);
    free(b->work_dir);
    free(b);
}

enum mlo_status mlo_brood_start(const struct mlo_brood_options *options, struct mlo_brood **out,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf database = MLO_BUF_INIT;
    struct mlo_brood *b = calloc(1, sizeof *b);
    if (!b)
        return mlo_error_nomem(err);
    mlo_buf_printf(&database, "MLOPT_DATABASE=%s", options->database);
    b->log_fd = open(options->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (b->log_fd < 0) {
        status = mlo_error_errno(err, errno, "cannot write %s", options->log_path);
        goto out;
    }
    b->chicks = calloc(options->count + 1, sizeof *b->chicks);
    b->exe = mlo_process_self();
    b->database = mlo_buf_take(&database);
    b->blobs = strdup(options->blobs);
    b->work_dir = strdup(options->work_dir);
    snprintf(b->threads, sizeof b->threads, "%u", options->threads);
    if (!b->chicks || !b->exe || !b->database || !b->blobs || !b->work_dir) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (; b->count < options->count; b->count++)
        MLO_TRY(start_one(b, &b->chicks[b->count], err));
    *out = b;
    b = NULL;
out:
    mlo_brood_stop(b, 1000);
    mlo_buf_clear(&database);
    return status;
}

void mlo_brood_tend(struct mlo_brood *b)
{
    uint64_t now = mlo_clock_ns();
    for (unsigned i = 0; i < b->count; i++) {
        struct chick *c = &b->chicks[i];
        int how = 0;
        if (c->pid && waitpid(c->pid, &how, WNOHANG) == c->pid) {
            char pid[24], code[24];
            bool healthy = now - c->started_ns > (uint64_t)HEALTHY_MS * 1000000u;
            snprintf(pid, sizeof pid, "%d", (int)c->pid);
            snprintf(code, sizeof code, "%s%d", WIFSIGNALED(how) ? "signal " : "",
                     WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
            c->pause_ms =
                healthy || !c->pause_ms ? FIRST_PAUSE_MS : MLO_MIN(2 * c->pause_ms, LONGEST_PAUSE_MS);
            c->start_again_ns = now + (uint64_t)c->pause_ms * 1000000u;
            c->pid = 0;
            mlo_log(MLO_LOG_WARN, "worker ended; it is started again", "pid", pid, "how", code, NULL);
        }
        if (!c->pid && now >= c->start_again_ns) {
            struct mlo_error err = {0};
            if (start_one(b, c, &err) != MLO_OK) {
                mlo_log_error(MLO_LOG_ERROR, "cannot start a worker", &err);
                c->pid = 0;
                c->start_again_ns = now + (uint64_t)LONGEST_PAUSE_MS * 1000000u;
            }
        }
    }
}

static unsigned reap(struct mlo_brood *b)
{
    unsigned left = 0;
    for (unsigned i = 0; i < b->count; i++) {
        if (b->chicks[i].pid && waitpid(b->chicks[i].pid, NULL, WNOHANG) == b->chicks[i].pid)
            b->chicks[i].pid = 0;
        left += b->chicks[i].pid != 0;
    }
    return left;
}

void mlo_brood_stop(struct mlo_brood *b, uint32_t grace_ms)
{
    if (!b)
        return;
    for (unsigned i = 0; i < b->count; i++)
        if (b->chicks[i].pid)
            kill(b->chicks[i].pid, SIGTERM);
    uint64_t end = mlo_clock_ns() + (uint64_t)grace_ms * 1000000u;
    while (reap(b) && mlo_clock_ns() < end) {
        int number = mlo_serve_wait_signal(200);
        if (number == SIGINT || number == SIGTERM)
            end = 0;
    }
    for (unsigned i = 0; i < b->count; i++) {
        if (!b->chicks[i].pid)
            continue;
        kill(-b->chicks[i].pid, SIGKILL); /* its whole group */
        while (waitpid(b->chicks[i].pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    free_brood(b);
}
