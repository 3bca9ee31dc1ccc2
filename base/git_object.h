/* Git's objects as bytes: ids and trees (gitformat of SHA-1 repositories). What a commit's trees are follows
 * from its files alone, so whoever has the files can make the commit's id again. */
#ifndef MLO_BASE_GIT_OBJECT_H
#define MLO_BASE_GIT_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define MLO_GIT_ID_SIZE 20
#define MLO_GIT_ID_TEXT_SIZE 48 /* 40 hex digits + NUL, with room */

struct mlo_git_id {
    uint8_t bytes[MLO_GIT_ID_SIZE];
};

/* The id of an object: SHA-1 of "<type> <size>\0" and its bytes. `type` is "blob", "tree" or "commit". */
void mlo_git_object_id(const char *type, const void *bytes, size_t size, struct mlo_git_id *out);
/* 40 hex digits, into the caller's buffer, which is returned; and back. */
char *mlo_git_id_text(const struct mlo_git_id *id, char out[MLO_GIT_ID_TEXT_SIZE]);
bool mlo_git_id_parse(const char *text, struct mlo_git_id *out);
bool mlo_git_id_eq(const struct mlo_git_id *a, const struct mlo_git_id *b);

/* A file of a commit: its whole path, and the id of its blob. */
struct mlo_git_file {
    const char *path;
    struct mlo_git_id blob;
};
typedef enum mlo_status mlo_git_object_fn(void *arg, const char *type, const void *bytes, size_t size,
                                          struct mlo_error *err);
/* The tree of these files (mode 100644), sorted by the bytes of their paths. `emit` (may be NULL) gets every
 * tree object, subfolders before what holds them. MLO_EINVAL when the order is another or a path stands for a
 * file and a folder. */
MLO_MUST_USE enum mlo_status mlo_git_tree(const struct mlo_git_file *files, size_t count,
                                          mlo_git_object_fn *emit, void *arg, struct mlo_git_id *out,
                                          struct mlo_error *err);

#endif
