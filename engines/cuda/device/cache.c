/* What was compiled for GPUs before, in a private folder of the user's cache. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engines/cuda/device/device_impl.h"

enum { ENTRY_MAX = 64 << 20 };

static const char *const UNFINISHED[] = {"new", NULL};
static const struct mlo_cache_limits LIMITS = {
    .suffix = ".bin", .unfinished = UNFINISHED, .max_files = 8192, .max_bytes = (uint64_t)512 << 20};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int folder_fd = -1; /* what was checked is what is used */

static void open_folder(void)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct mlo_error ignored = {0};
    struct stat s;
    char *path = NULL;
    if (base && base[0] == '/')
        path = mlo_fs_join(base, "mlopt", "cuda", (char *)NULL);
    else if (home && home[0] == '/')
        path = mlo_fs_join(home, ".cache", "mlopt", "cuda", (char *)NULL);
    if (path && mlo_fs_mkdirs_private(path, &ignored) == MLO_OK) {
        folder_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (folder_fd >= 0 &&
            (fstat(folder_fd, &s) != 0 || s.st_uid != geteuid() || (s.st_mode & 077) != 0)) {
            close(folder_fd);
            folder_fd = -1;
        }
    }
    free(path);
}

static void name_of(const struct mlo_digest *key, const char *suffix, char *out, size_t size)
{
    char hex[MLO_DIGEST_TEXT_SIZE];
    snprintf(out, size, "%s.%s.bin", mlo_digest_hex(key, hex), suffix);
}

bool cuda_cache_get(const struct mlo_digest *key, const char *suffix, struct mlo_buf *out)
{
    char name[MLO_DIGEST_TEXT_SIZE + 32];
    struct stat s;
    struct mlo_digest digest, written;
    pthread_once(&once, open_folder);
    name_of(key, suffix, name, sizeof name);
    int fd = folder_fd >= 0 ? openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    size_t got = 0, before = out->len;
    bool good = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid() && (s.st_mode & 077) == 0 &&
                s.st_size >= (off_t)sizeof digest && s.st_size <= ENTRY_MAX &&
                mlo_buf_reserve(out, (size_t)s.st_size) &&
                mlo_fs_read_full(fd, out->data + before, (size_t)s.st_size, &got) && got == (size_t)s.st_size;
    if (good) {
        size_t size = got - sizeof digest;
        mlo_digest_of(out->data + before, size, &digest);
        memcpy(&written, out->data + before + size, sizeof written);
        good = mlo_digest_eq(&digest, &written);
        out->len = good ? before + size : before;
        out->data[out->len] = 0;
        if (good)
            futimens(fd, NULL); /* now: the oldest are dropped first */
    }
    close(fd);
    return good;
}

void cuda_cache_put(const struct mlo_digest *key, const char *suffix, const void *bytes, size_t size)
{
    char name[MLO_DIGEST_TEXT_SIZE + 32], temp[32], random[17];
    unsigned char seed[8];
    struct mlo_digest digest;
    pthread_once(&once, open_folder);
    if (folder_fd < 0 || size > ENTRY_MAX - sizeof digest)
        return;
    name_of(key, suffix, name, sizeof name);
    mlo_random_bytes(seed, sizeof seed);
    mlo_hex(seed, sizeof seed, random);
    snprintf(temp, sizeof temp, "new%s", random);
    int fd = openat(folder_fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    mlo_digest_of(bytes, size, &digest);
    bool good = mlo_fs_write_full(fd, bytes, size) &&
                mlo_fs_write_full(fd, digest.bytes, sizeof digest.bytes) && fdatasync(fd) == 0;
    close(fd);
    if (!good || renameat(folder_fd, temp, folder_fd, name) != 0)
        unlinkat(folder_fd, temp, 0);
    else
        mlo_cache_trim(folder_fd, &LIMITS);
}
