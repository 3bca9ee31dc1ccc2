/* Files and folders: whole-file reads with a bound, atomic durable writes, trees. */
#ifndef MLO_BASE_FS_H
#define MLO_BASE_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"

/* Appends the file's content to `out`; MLO_ETOOBIG above `max_bytes`, before anything is allocated for it
 * (also for pipes and /proc files, whose size is not known ahead). */
MLO_MUST_USE enum mlo_status mlo_fs_read(const char *path, size_t max_bytes, struct mlo_buf *out,
                                         struct mlo_error *err);
/* Temporary file beside `path`, fsync, rename, fsync of the folder. Nothing is left on failure. */
MLO_MUST_USE enum mlo_status mlo_fs_write_atomic(const char *path, const void *bytes, size_t size,
                                                 struct mlo_error *err);
/* The same where the content is made piece by piece: `write` writes all of it to fd, or says false with
 * errno. */
typedef bool mlo_fs_write_fn(int fd, void *arg);
MLO_MUST_USE enum mlo_status mlo_fs_write_atomic_with(const char *path, mlo_fs_write_fn *write, void *arg,
                                                      struct mlo_error *err);
/* Copies a file's content (reflink or copy_file_range where the kernel can). Not atomic: for scratch. */
MLO_MUST_USE enum mlo_status mlo_fs_copy(const char *from, const char *to, struct mlo_error *err);
/* A new file "<path>.<random>", with the rights that the user's mask leaves (mkostemp has its own, and asking
 * for the mask means changing it under other threads). *temp is appended to; -1 and errno on failure. */
int mlo_fs_create_beside(const char *path, struct mlo_buf *temp);
/* mkdir -p. */
MLO_MUST_USE enum mlo_status mlo_fs_mkdirs(const char *path, struct mlo_error *err);
/* The same; folders that are made are this user's alone. */
MLO_MUST_USE enum mlo_status mlo_fs_mkdirs_private(const char *path, struct mlo_error *err);
/* A new private folder "<parent>/<prefix>XXXXXX"; parent NULL means $TMPDIR or /tmp. *path is yours (free).
 */
MLO_MUST_USE enum mlo_status mlo_fs_tempdir(const char *parent, const char *prefix, char **path,
                                            struct mlo_error *err);
/* rm -rf, does not follow links out of the tree nor enter what is mounted there; also folders that are locked
 * and deeper than a path can say. Best effort, an absent path is fine. */
void mlo_fs_remove_tree(const char *path);
bool mlo_fs_exists(const char *path);
/* -1 when it cannot be told. */
int64_t mlo_fs_size(const char *path);
/* "a/b" from parts, NULL-terminated list; yours (free); NULL when out of memory. */
char *mlo_fs_join(const char *first, ...) __attribute__((sentinel));
/* The part after the last slash; borrowed from `path`. */
const char *mlo_fs_basename(const char *path);
/* read/write in full, retrying EINTR. false with errno on failure; a short read at end of file sets *got. */
bool mlo_fs_read_full(int fd, void *bytes, size_t size, size_t *got);
bool mlo_fs_write_full(int fd, const void *bytes, size_t size);

/* A read-only mapping of a file. An empty file maps to NULL with size 0. */
struct mlo_mapping {
    const void *data;
    size_t size;
};
MLO_MUST_USE enum mlo_status mlo_fs_map(const char *path, struct mlo_mapping *out, struct mlo_error *err);
void mlo_fs_unmap(struct mlo_mapping *mapping);
/* Gives back the pages that lie wholly inside this part of a mapping: memory that was read and is not needed
 * soon. The kernel reads them again where it is. Not for memory of one's own, which would be lost. */
void mlo_fs_forget(const void *bytes, size_t size);

#endif
