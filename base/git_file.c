#include "base/git_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "base/fs.h"

bool mlo_git_file_sound(const char *path, struct mlo_git_id *sum)
{
    uint8_t bytes[1 << 14];
    struct mlo_git_id made;
    int64_t left = mlo_fs_size(path) - MLO_GIT_ID_SIZE;
    size_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    /* as in base/hash.c: without memory for a hash nothing can go on */
    if (!ctx || EVP_DigestInit_ex(ctx, EVP_sha1(), NULL) != 1)
        abort();
    bool ok = fd >= 0 && left >= 0;
    for (; ok && left > 0; left -= (int64_t)got) {
        size_t want = left < (int64_t)sizeof bytes ? (size_t)left : sizeof bytes;
        ok = mlo_fs_read_full(fd, bytes, want, &got) && got == want && EVP_DigestUpdate(ctx, bytes, got) == 1;
    }
    ok = ok && mlo_fs_read_full(fd, sum->bytes, sizeof sum->bytes, &got) && got == sizeof sum->bytes &&
         EVP_DigestFinal_ex(ctx, made.bytes, NULL) == 1 && mlo_git_id_eq(&made, sum);
    EVP_MD_CTX_free(ctx);
    if (fd >= 0)
        close(fd);
    return ok;
}
