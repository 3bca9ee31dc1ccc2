#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

bool mlo_fs_read_full(int fd, void *bytes, size_t size, size_t *got)
{
    unsigned char *p = bytes;
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, p + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    *got = done;
    return true;
}

bool mlo_fs_write_full(int fd, const void *bytes, size_t size)
{
    const unsigned char *p = bytes;
    while (size) {
        ssize_t n = write(fd, p, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        p += n;
        size -= (size_t)n;
    }
    return true;
}

enum mlo_status mlo_fs_read(const char *path, size_t max_bytes, struct mlo_buf *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct stat st;
    size_t start = out->len;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return mlo_error_errno(err, errno, "cannot open %s", path);
    if (fstat(fd, &st) < 0) {
        status = mlo_error_errno(err, errno, "cannot stat %s", path);
        goto out;
    }
    if (S_ISDIR(st.st_mode)) {
        status = mlo_error_set(err, MLO_EINVAL, "%s is a folder, not a file", path);
        goto out;
    }
    if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > max_bytes) {
        status = mlo_error_set(err, MLO_ETOOBIG, "%s has %lld bytes; the limit here is %zu", path,
                               (long long)st.st_size, max_bytes);
        goto out;
    }
    size_t piece = S_ISREG(st.st_mode) ? (size_t)st.st_size + 1 : 65536;
    for (;;) {
        if (!mlo_buf_reserve(out, piece)) {
            status = mlo_error_nomem(err);
            goto out;
        }
        size_t got = 0;
        if (!mlo_fs_read_full(fd, out->data + out->len, piece, &got)) {
            status = mlo_error_errno(err, errno, "cannot read %s", path);
            goto out;
        }
        out->len += got;
        out->data[out->len] = '\0';
        if (out->len - start > max_bytes) {
            status = mlo_error_set(err, MLO_ETOOBIG, "%s has more than %zu bytes, the limit here", path,
                                   max_bytes);
            goto out;
        }
        if (got < piece)
            break;
        piece = 65536;
    }
out:
    close(fd);
    return status;
}

static void sync_folder_of(const char *path)
{
    char *copy = strdup(path);
    if (!copy)
        return;
    char *slash = strrchr(copy, '/');
    const char *folder = ".";
    if (slash == copy)
        folder = "/";
    else if (slash) {
        *slash = '\0';
        folder = copy;
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(copy);
}

int mlo_fs_create_beside(const char *path, struct mlo_buf *temp)
{
    uint8_t salt[8];
    char hex[2 * sizeof salt + 1];
    mlo_random_bytes(salt, sizeof salt);
    mlo_hex(salt, sizeof salt, hex);
    mlo_buf_printf(temp, "%s.%s", path, hex);
    if (!mlo_buf_ok(temp)) {
        errno = ENOMEM;
        return -1;
    }
    return open(temp->data, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}

enum mlo_status mlo_fs_write_atomic_with(const char *path, mlo_fs_write_fn *write, void *arg,
                                         struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf temp = MLO_BUF_INIT;
    int fd = mlo_fs_create_beside(path, &temp);
    if (fd < 0) {
        status = mlo_error_errno(err, errno, "cannot create a file beside %s", path);
        mlo_buf_clear(&temp);
        return status;
    }
    bool ok = write(fd, arg) && fsync(fd) == 0;
    int saved = errno;
    if (close(fd) < 0 && ok) {
        ok = false;
        saved = errno;
    }
    if (ok && rename(temp.data, path) < 0) {
        ok = false;
        saved = errno;
    }
    if (!ok) {
        unlink(temp.data);
        status = mlo_error_errno(err, saved, "cannot write %s", path);
    } else {
        sync_folder_of(path);
    }
    mlo_buf_clear(&temp);
    return status;
}

struct bytes {
    const void *data;
    size_t size;
};

static bool write_bytes(int fd, void *arg)
{
    const struct bytes *bytes = arg;
    return mlo_fs_write_full(fd, bytes->data, bytes->size);
}

enum mlo_status mlo_fs_write_atomic(const char *path, const void *bytes, size_t size, struct mlo_error *err)
{
    struct bytes all = {bytes, size};
    return mlo_fs_write_atomic_with(path, write_bytes, &all, err);
}

enum mlo_status mlo_fs_copy(const char *from, const char *to, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
    if (in < 0)
        return mlo_error_errno(err, errno, "cannot open %s", from);
    out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out < 0) {
        status = mlo_error_errno(err, errno, "cannot create %s", to);
        goto out;
    }
    for (;;) {
        ssize_t n = copy_file_range(in, NULL, out, NULL, (size_t)1 << 30, 0);
        if (n > 0)
            continue;
        if (n == 0)
            break;
        if (errno == EINTR)
            continue;
        if (errno != EXDEV && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
            status = mlo_error_errno(err, errno, "cannot copy %s to %s", from, to);
            goto out;
        }
        char piece[65536];
        size_t got;
        do {
            if (!mlo_fs_read_full(in, piece, sizeof piece, &got) || !mlo_fs_write_full(out, piece, got)) {
                status = mlo_error_errno(err, errno, "cannot copy %s to %s", from, to);
                goto out;
            }
        } while (got == sizeof piece);
        break;
    }
out:
    close(in);
    if (out >= 0 && close(out) < 0 && status == MLO_OK)
        status = mlo_error_errno(err, errno, "cannot write %s", to);
    return status;
}

static enum mlo_status make_folders(const char *path, mode_t mode, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *copy = strdup(path);
    if (!copy)
        return mlo_error_nomem(err);
    for (char *p = copy + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char saved = *p;
        *p = '\0';
        if (mkdir(copy, mode) < 0 && errno != EEXIST) {
            status = mlo_error_errno(err, errno, "cannot create the folder %s", copy);
            break;
        }
        *p = saved;
        if (!saved)
            break;
    }
    free(copy);
    if (status == MLO_OK) {
        struct stat st;
        if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
            status = mlo_error_set(err, MLO_EINVAL, "%s exists and is not a folder", path);
    }
    return status;
}

enum mlo_status mlo_fs_mkdirs(const char *path, struct mlo_error *err)
{
    return make_folders(path, 0777, err);
}

enum mlo_status mlo_fs_mkdirs_private(const char *path, struct mlo_error *err)
{
    return make_folders(path, 0700, err);
}

enum mlo_status mlo_fs_tempdir(const char *parent, const char *prefix, char **path, struct mlo_error *err)
{
    *path = NULL;
    if (!parent)
        parent = getenv("TMPDIR");
    if (!parent || !*parent)
        parent = "/tmp";
    struct mlo_buf name = MLO_BUF_INIT;
    mlo_buf_printf(&name, "%s/%sXXXXXX", parent, prefix);
    char *text = mlo_buf_take(&name);
    if (!text)
        return mlo_error_nomem(err);
    if (!mkdtemp(text)) {
        enum mlo_status status =
            mlo_error_errno(err, errno, "cannot create a temporary folder in %s", parent);
        free(text);
        return status;
    }
    *path = text;
    return MLO_OK;
}

bool mlo_fs_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

int64_t mlo_fs_size(const char *path)
{
    struct stat st;
    return stat(path, &st) < 0 ? -1 : (int64_t)st.st_size;
}

char *mlo_fs_join(const char *first, ...)
{
    struct mlo_buf out = MLO_BUF_INIT;
    mlo_buf_puts(&out, first);
    va_list args;
    va_start(args, first);
    for (const char *part; (part = va_arg(args, const char *));) {
        if (out.len && out.data[out.len - 1] != '/')
            mlo_buf_putc(&out, '/');
        mlo_buf_puts(&out, part);
    }
    va_end(args);
    return mlo_buf_take(&out);
}

const char *mlo_fs_basename(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

enum mlo_status mlo_fs_map(const char *path, struct mlo_mapping *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct stat st;
    *out = (struct mlo_mapping){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return mlo_error_errno(err, errno, "cannot open %s", path);
    if (fstat(fd, &st) < 0) {
        status = mlo_error_errno(err, errno, "cannot stat %s", path);
    } else if (!S_ISREG(st.st_mode)) {
        status = mlo_error_set(err, MLO_EINVAL, "%s is not a regular file", path);
    } else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            status = mlo_error_errno(err, errno, "cannot map %s", path);
        else
            *out = (struct mlo_mapping){p, (size_t)st.st_size};
    }
    close(fd);
    return status;
}

void mlo_fs_unmap(struct mlo_mapping *mapping)
{
    if (mapping->data)
        munmap((void *)mapping->data, mapping->size);
    *mapping = (struct mlo_mapping){0};
}

void mlo_fs_forget(const void *bytes, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)bytes, end = begin + size;
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}
