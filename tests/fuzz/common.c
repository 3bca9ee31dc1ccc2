#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

void fuzz_fail(const char *file, int line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

bool fuzz_accepted(enum mlo_status status, const struct mlo_error *err)
{
    if (status == MLO_OK)
        return true;
    FUZZ_CHECK(status > MLO_OK && status < MLO_STATUS_COUNT, "status %d", (int)status);
    FUZZ_CHECK(err->status == status, "%d is returned, but the error says %d: %s", (int)status,
               (int)err->status, err->message);
    FUZZ_CHECK(err->message[0], "a refusal without a message (%s)", mlo_status_info(status)->code);
    FUZZ_CHECK(status != MLO_EINTERNAL, "called a bug: %s [%s]", err->message, err->where);
    return false;
}

static char folder[512];

static void remove_folder(void)
{
    mlo_fs_remove_tree(folder);
}

const char *fuzz_folder(void)
{
    if (folder[0])
        return folder;
    char *path = NULL;
    struct mlo_error err = {0};
    if (mlo_fs_tempdir(NULL, "fuzz-", &path, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "%s", err.message);
    snprintf(folder, sizeof folder, "%s", path);
    free(path);
    atexit(remove_folder);
    return folder;
}

const char *fuzz_file(const char *name, const void *bytes, size_t size)
{
    static char paths[4][640]; /* a few names are in use at once */
    static unsigned turn;
    char *path = paths[turn++ % MLO_COUNT(paths)];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || !mlo_fs_write_full(fd, bytes, size))
        fuzz_fail(__FILE__, __LINE__, "cannot write %s (error %d)", path, errno);
    close(fd);
    return path;
}
