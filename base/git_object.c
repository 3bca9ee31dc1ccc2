#include "base/git_object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "base/hash.h"
#include "base/str.h"

void mlo_git_object_id(const char *type, const void *bytes, size_t size, struct mlo_git_id *out)
{
    char head[48];
    int length = snprintf(head, sizeof head, "%s %zu", type, size);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    /* as in base/hash.c: without memory for a hash nothing can go on */
    if (!ctx || EVP_DigestInit_ex(ctx, EVP_sha1(), NULL) != 1 ||
        EVP_DigestUpdate(ctx, head, (size_t)length + 1) != 1 || EVP_DigestUpdate(ctx, bytes, size) != 1 ||
        EVP_DigestFinal_ex(ctx, out->bytes, NULL) != 1)
        abort();
    EVP_MD_CTX_free(ctx);
}

char *mlo_git_id_text(const struct mlo_git_id *id, char out[MLO_GIT_ID_TEXT_SIZE])
{
    mlo_hex(id->bytes, sizeof id->bytes, out);
    return out;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool mlo_git_id_parse(const char *text, struct mlo_git_id *out)
{
    if (strlen(text) != 2 * MLO_GIT_ID_SIZE)
        return false;
    for (size_t i = 0; i < MLO_GIT_ID_SIZE; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        out->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

bool mlo_git_id_eq(const struct mlo_git_id *a, const struct mlo_git_id *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

enum { DEPTH_MAX = 16 };

/* The files [begin, end) share the first `prefix` bytes of their paths: the folder whose tree this is. */
static enum mlo_status tree(const struct mlo_git_file *files, size_t begin, size_t end, size_t prefix,
                            int depth, mlo_git_object_fn *emit, void *arg, struct mlo_git_id *out,
                            struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf bytes = MLO_BUF_INIT;
    if (depth > DEPTH_MAX)
        return mlo_error_set(err, MLO_EINVAL, "folders are nested too deep at '%.100s'", files[begin].path);
    for (size_t i = begin; i < end;) {
        const char *name = files[i].path + prefix;
        size_t length = strcspn(name, "/"), next = i + 1;
        if (length == 0) {
            status = mlo_error_set(err, MLO_EINVAL, "'%.100s' is no path in git", files[i].path);
            goto out;
        }
        struct mlo_git_id id = files[i].blob;
        if (name[length]) {
            while (next < end && strncmp(files[next].path + prefix, name, length + 1) == 0)
                next++;
            MLO_TRY(tree(files, i, next, prefix + length + 1, depth + 1, emit, arg, &id, err));
        }
        mlo_buf_puts(&bytes, name[length] ? "40000 " : "100644 ");
        mlo_buf_append(&bytes, name, length);
        mlo_buf_append(&bytes, "", 1);
        mlo_buf_append(&bytes, id.bytes, sizeof id.bytes);
        i = next;
    }
    if (!mlo_buf_ok(&bytes)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_git_object_id("tree", mlo_buf_str(&bytes), bytes.len, out);
    if (emit)
        MLO_TRY(emit(arg, "tree", mlo_buf_str(&bytes), bytes.len, err));
out:
    mlo_buf_clear(&bytes);
    return status;
}

static int by_path(const void *key, const void *file)
{
    return strcmp(key, ((const struct mlo_git_file *)file)->path);
}

/* Whether a folder that `path` lies in has the name of a file. */
static bool in_a_file(const struct mlo_git_file *files, size_t count, const char *path)
{
    char folder[1024];
    for (const char *at = strchr(path, '/'); at; at = strchr(at + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(at - path), path);
        if (bsearch(folder, files, count, sizeof *files, by_path))
            return true;
    }
    return false;
}

enum mlo_status mlo_git_tree(const struct mlo_git_file *files, size_t count, mlo_git_object_fn *emit,
                             void *arg, struct mlo_git_id *out, struct mlo_error *err)
{
    for (size_t i = 0; i < count; i++)
        if ((i && strcmp(files[i - 1].path, files[i].path) >= 0) || in_a_file(files, count, files[i].path))
            return mlo_error_set(err, MLO_EINVAL,
                                 "'%.200s' cannot be in the tree, or not at this place of the list",
                                 files[i].path);
    return tree(files, 0, count, 0, 0, emit, arg, out, err);
}
