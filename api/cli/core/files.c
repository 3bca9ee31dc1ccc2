#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/cli/core/cli.h"

/* What a signal has to clean up. The signal thread and the verb share it. */
static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
struct folder {
    struct folder *next;
    char *path;
};
static struct folder *scratch; /* newest first */
static char interrupt_text[256];

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

enum mlo_status mlo_cli_check_output(const char *path, struct mlo_error *err)
{
    char *folder = folder_of(path);
    if (!folder)
        return mlo_error_nomem(err);
    enum mlo_status status = MLO_OK;
    if (access(folder, W_OK | X_OK) != 0)
        status = mlo_error_errno(err, errno, "cannot write %s: folder %s", path, folder);
    free(folder);
    return status;
}

void mlo_cli_name_file(struct mlo_error *err, const char *path)
{
    if (err && !strstr(err->message, path) && !mlo_str_starts(err->where, path))
        mlo_error_prefix(err, "%s", path);
}

static enum mlo_status sync_path(const char *path, struct mlo_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return mlo_error_errno(err, errno, "cannot open %s", path);
    enum mlo_status status =
        fsync(fd) == 0 ? MLO_OK : mlo_error_errno(err, errno, "cannot write %s to disk", path);
    close(fd);
    return status;
}

enum mlo_status mlo_cli_install(const char *from, const char *to, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *folder = folder_of(to);
    struct mlo_buf temp = MLO_BUF_INIT;
    bool made = false;
    mlo_buf_printf(&temp, "%s.%ld.tmp", to, (long)getpid());
    if (!folder || !mlo_buf_ok(&temp)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    made = true;
    MLO_TRY(mlo_fs_copy(from, mlo_buf_str(&temp), err));
    MLO_TRY(sync_path(mlo_buf_str(&temp), err));
    if (rename(mlo_buf_str(&temp), to) != 0) {
        status = mlo_error_errno(err, errno, "cannot put %s in its place", to);
        goto out;
    }
    made = false;
    MLO_TRY(sync_path(folder, err));
out:
    if (made)
        unlink(mlo_buf_str(&temp));
    mlo_buf_clear(&temp);
    free(folder);
    return status;
}

enum mlo_status mlo_cli_scratch(const char *parent, const char **path, struct mlo_error *err)
{
    struct folder *made = calloc(1, sizeof *made);
    *path = NULL;
    if (!made)
        return mlo_error_nomem(err);
    pthread_mutex_lock(&state_lock); /* a signal in between would leave it */
    enum mlo_status status = mlo_fs_tempdir(parent, "mlopt-", &made->path, err);
    if (status == MLO_OK) {
        made->next = scratch;
        scratch = made;
        *path = made->path;
    }
    pthread_mutex_unlock(&state_lock);
    if (status != MLO_OK)
        free(made);
    return status;
}

void mlo_cli_scratch_remove(const char *path)
{
    pthread_mutex_lock(&state_lock);
    for (struct folder **at = &scratch; path && *at; at = &(*at)->next) {
        struct folder *found = *at;
        if (found->path != path)
            continue;
        mlo_fs_remove_tree(found->path);
        *at = found->next;
        free(found->path);
        free(found);
        break;
    }
    pthread_mutex_unlock(&state_lock);
}

void mlo_cli_on_interrupt(const char *text)
{
    pthread_mutex_lock(&state_lock);
    snprintf(interrupt_text, sizeof interrupt_text, "%s", text ? text : "");
    pthread_mutex_unlock(&state_lock);
}

static void *signal_thread(void *arg)
{
    sigset_t *set = arg;
    int number = 0;
    while (sigwait(set, &number) != 0) {
    }
    pthread_mutex_lock(&state_lock);
    for (const struct folder *at = scratch; at; at = at->next)
        mlo_fs_remove_tree(at->path);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    fprintf(stderr, "interrupted%s%s\n", *interrupt_text ? ": " : "", interrupt_text);
    _exit(128 + number);
    return NULL;
}

enum mlo_status mlo_cli_signals_start(struct mlo_error *err)
{
    static sigset_t set; /* the thread reads it for as long as the program lives */
    pthread_t thread;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attr, signal_thread, &set);
    pthread_attr_destroy(&attr);
    return failed ? mlo_error_errno(err, failed, "cannot start a thread") : MLO_OK;
}
