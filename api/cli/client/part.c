#include "api/cli/client/part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

void mlo_part_open(const char *dir, const struct mlo_digest *digest, struct mlo_part *out)
{
    char name[MLO_DIGEST_TEXT_SIZE + 16], hex[MLO_DIGEST_TEXT_SIZE];
    struct stat opened, named;
    *out = (struct mlo_part){.fd = -1};
    snprintf(name, sizeof name, ".mlopt-%s.part", mlo_digest_hex(digest, hex));
    out->path = mlo_fs_join(dir, name, NULL);
    if (!out->path)
        return;
    out->fd = open(out->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    /* who had it before may have put it in its place meanwhile: then the name is another file's, or nobody's.
     * What is another user's, or has a second name, is not ours alone to write */
    if (out->fd >= 0 && flock(out->fd, LOCK_EX | LOCK_NB) == 0 && fstat(out->fd, &opened) == 0 &&
        S_ISREG(opened.st_mode) && opened.st_uid == geteuid() && opened.st_nlink == 1 &&
        stat(out->path, &named) == 0 && opened.st_ino == named.st_ino && opened.st_dev == named.st_dev)
        return;
    if (out->fd >= 0)
        close(out->fd);
    free(out->path);
    *out = (struct mlo_part){.fd = -1};
}

uint64_t mlo_part_hash(struct mlo_part *part, struct mlo_hasher *hasher)
{
    char piece[1 << 16];
    struct mlo_digest unused;
    ssize_t n;
    if (lseek(part->fd, 0, SEEK_SET) == 0) {
        while ((n = read(part->fd, piece, sizeof piece)) > 0 || (n < 0 && errno == EINTR))
            if (n > 0)
                mlo_hasher_update(hasher, piece, (size_t)n);
        if (n == 0)
            return mlo_hasher_size(hasher);
    }
    mlo_hasher_final(hasher, &unused); /* empties it */
    return 0;
}

void mlo_part_close(struct mlo_part *part, bool drop, uint64_t *kept)
{
    struct stat st;
    uint64_t size = 0;
    if (part->fd >= 0) {
        size = fstat(part->fd, &st) == 0 ? (uint64_t)st.st_size : 0;
        if (part->path && (drop || size == 0)) {
            unlink(part->path);
            size = 0;
        }
        close(part->fd);
    }
    free(part->path);
    *part = (struct mlo_part){.fd = -1};
    if (kept)
        *kept = size;
}
