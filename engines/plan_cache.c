/* The private cache of plans that were checked: named by the digest of their content, in a folder that only
 * this user can enter, so that a later opening needs to hash nothing. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engines/plans_impl.h"

static const char *const UNFINISHED[] = {"new-", NULL};
static const struct mlo_cache_limits LIMITS = {
    .suffix = ".plan", .unfinished = UNFINISHED, .max_files = 64, .max_bytes = (uint64_t)8 << 30};

/* The folder, opened; nobody else may own or enter it. */
static enum mlo_status open_folder(const char *dir, int *fd, struct mlo_error *err)
{
    struct stat st;
    enum mlo_status status = mlo_fs_mkdirs_private(dir, err);
    if (status != MLO_OK)
        return status;
    *fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0 || fstat(*fd, &st) < 0) /* the caller closes what is open */
        return mlo_error_errno(err, errno, "cannot open the cache of plans %s", dir);
    if (st.st_uid == geteuid() && !(st.st_mode & 077))
        return MLO_OK;
    mlo_error_set(err, MLO_EFORBIDDEN, "the cache of plans %s is not this user's alone", dir);
    mlo_error_hint(err, "remove it, or chmod 700 it if nobody else wrote into it");
    return MLO_EFORBIDDEN;
}

/* What is there under that name and of that size, as this user's own; -1: nothing that can be used. */
static int find(int folder, const char *name, uint64_t size)
{
    struct stat st;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) &&
                (uint64_t)st.st_size == size && st.st_nlink == 1;
    if (good) {
        futimens(fd, NULL); /* used now: the oldest are dropped first */
        return fd;
    }
    close(fd);
    return -1;
}

static enum mlo_status write_copy(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    const int *to = arg;
    if (mlo_fs_write_full(*to, bytes, size))
        return MLO_OK;
    return mlo_error_errno(err, errno, "cannot copy the plan");
}

static enum mlo_status copy(int from, int to, const struct plan_seal *seal, uint64_t size,
                            struct mlo_error *err)
{
    struct mlo_digest digest;
    enum mlo_status status = plan_hash(from, size, write_copy, &to, &digest, err);
    if (status == MLO_OK && !mlo_digest_eq(&digest, &seal->digest))
        status = mlo_error_set(err, MLO_EDIGEST, "the plan was changed after it was signed");
    return status;
}

static enum mlo_status add(int fd, int folder, const char *name, const struct plan_seal *seal, uint64_t size,
                           int *cached, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char temp[48];
    uint8_t salt[8];
    memcpy(temp, "new-", 5);
    mlo_random_bytes(salt, sizeof salt);
    mlo_hex(salt, sizeof salt, temp + 4);
    int out = openat(folder, temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (out < 0)
        return mlo_error_errno(err, errno, "cannot write into the cache of plans");
    MLO_TRY(copy(fd, out, seal, size, err));
    if (fdatasync(out) < 0 || renameat(folder, temp, folder, name) < 0) {
        status = mlo_error_errno(err, errno, "cannot write into the cache of plans");
        goto out;
    }
    *cached = out;
    mlo_cache_trim(folder, &LIMITS);
    return MLO_OK;
out:
    close(out);
    unlinkat(folder, temp, 0);
    return status;
}

static enum mlo_status in_cache(int fd, const struct plan_head *head, const struct plan_seal *seal,
                                const char *cache_dir, bool anew, struct plan_content *out,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *usual = NULL, hex[MLO_DIGEST_TEXT_SIZE], name[MLO_DIGEST_TEXT_SIZE + 8];
    int folder = -1;
    if (!cache_dir)
        MLO_TRY(plan_place("XDG_CACHE_HOME", ".cache", "plans", &usual, err));
    MLO_TRY(open_folder(cache_dir ? cache_dir : usual, &folder, err));
    snprintf(name, sizeof name, "%s.plan", mlo_digest_hex(&seal->digest, hex));
    if (!anew)
        out->fd = find(folder, name, head->content_bytes);
    out->was_there = out->fd >= 0;
    if (!out->was_there)
        status = add(fd, folder, name, seal, head->content_bytes, &out->fd, err);
out:
    if (folder >= 0)
        close(folder);
    free(usual);
    return status;
}

/* A copy that ends with this process, and that nobody can change. */
static enum mlo_status in_memory(int fd, const struct plan_head *head, const struct plan_seal *seal,
                                 struct plan_content *out, struct mlo_error *err)
{
    int copied = memfd_create("mlopt plan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (copied < 0)
        return mlo_error_errno(err, errno, "cannot copy the plan");
    enum mlo_status status = copy(fd, copied, seal, head->content_bytes, err);
    if (status == MLO_OK &&
        fcntl(copied, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        status = mlo_error_errno(err, errno, "cannot copy the plan");
    if (status == MLO_OK)
        out->fd = copied;
    else
        close(copied);
    return status;
}

enum mlo_status plan_content(int fd, const struct plan_head *head, const struct plan_seal *seal,
                             const struct mlo_plan_open_options *options, bool anew, struct plan_content *out,
                             struct mlo_error *err)
{
    struct mlo_error why = {0};
    *out = (struct plan_content){.fd = -1};
    enum mlo_status status = in_cache(fd, head, seal, options ? options->cache_dir : NULL, anew, out, &why);
    if (status == MLO_OK)
        return status;
    if (status == MLO_EDIGEST) { /* of the plan, not of the cache */
        if (err)
            *err = why;
        return status;
    }
    status = in_memory(fd, head, seal, out, err);
    if (status == MLO_OK && options && options->warning)
        *options->warning = why;
    return status;
}

bool plan_content_is_whole(const struct plan_content *content, const struct plan_head *head,
                           const struct plan_seal *seal)
{
    struct mlo_digest digest;
    return plan_hash(content->fd, head->content_bytes, NULL, NULL, &digest, NULL) == MLO_OK &&
           mlo_digest_eq(&digest, &seal->digest);
}
