/* Tensors whose bytes lie in a file beside the model. Large files are mapped once and pointed into. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/onnx_impl.h"

static const char *entry(const Onnx__TensorProto *p, const char *key)
{
    for (size_t i = 0; i < p->n_external_data; i++) {
        const Onnx__StringStringEntryProto *e = p->external_data[i];
        if (e->key && e->value && strcmp(e->key, key) == 0)
            return e->value;
    }
    return NULL;
}

/* A location must stay inside the model's folder: relative, without "..", and no link that leads out. */
static enum mlo_status resolve(const char *folder, const char *location, char **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *root = NULL, *joined = NULL, *real = NULL;
    *out = NULL;
    if (!*location || location[0] == '/') {
        status = mlo_error_set(err, MLO_EFORMAT, "external data at '%.200s': the location must be relative",
                               location);
        goto out;
    }
    joined = mlo_fs_join(folder, location, NULL);
    root = realpath(folder, NULL);
    if (!joined) {
        status = mlo_error_nomem(err);
        goto out;
    }
    real = realpath(joined, NULL);
    if (!root || !real) {
        status = mlo_error_errno(err, errno, "external data file '%.200s'", location);
        mlo_error_hint(err, "the file must lie beside the model; upload both");
        goto out;
    }
    size_t n = strlen(root);
    if (strncmp(root, real, n) != 0 || (real[n] != '/' && n > 1)) {
        status = mlo_error_set(err, MLO_EFORMAT, "external data at '%.200s' is outside of the model's folder",
                               location);
        goto out;
    }
    *out = real;
    real = NULL;
out:
    free(root);
    free(joined);
    free(real);
    return status;
}

static struct mlo_mapped_file *mapped(const struct mlo_shared_mapping *shared, const char *path)
{
    struct mlo_mapped_file *file = shared->files;
    while (file && strcmp(file->path, path) != 0)
        file = file->next;
    return file;
}

/* NULL: it cannot be mapped, and is to be read. */
static struct mlo_mapped_file *map_file(struct mlo_shared_mapping *shared, const char *path, int fd,
                                        size_t size)
{
    struct mlo_mapped_file *file = calloc(1, sizeof *file);
    void *bytes =
        file && (file->path = strdup(path)) ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (bytes == MAP_FAILED) {
        free(file ? file->path : NULL);
        free(file);
        return NULL;
    }
    file->mapping = (struct mlo_mapping){bytes, size};
    file->next = shared->files;
    shared->files = file;
    return file;
}

/* Whether *out could point into the file; it does then. */
static bool borrow(const struct mlo_onnx_reader *reader, const char *path, int fd, size_t file_size,
                   size_t offset, size_t length, struct mlo_tensor *out)
{
    const size_t small = (size_t)1 << 20; /* a file of that size is not worth a mapping of its own */
    size_t align = MLO_MIN(MLO_MAX(mlo_dtype_info(out->dtype)->bits / 8, 1u), 8u);
    if (!reader->borrow || !length || offset % align)
        return false;
    struct mlo_mapped_file *file = mapped(reader->model->shared, path);
    if (!file && file_size >= small)
        file = map_file(reader->model->shared, path, fd, file_size);
    if (!file || offset > file->mapping.size || length > file->mapping.size - offset)
        return false;
    out->data = (uint8_t *)file->mapping.data + offset; /* read-only: constants are never written in place */
    out->size_bytes = length;
    return true;
}

enum mlo_status mlo_onnx_read_external(const struct mlo_onnx_reader *reader, const Onnx__TensorProto *p,
                                       size_t expected, struct mlo_tensor *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *folder = reader->folder;
    const char *location = entry(p, "location"), *text;
    int64_t offset = 0, length = (int64_t)expected;
    char *path = NULL;
    int fd = -1;
    if (!folder || !location) {
        status =
            mlo_error_set(err, MLO_EFORMAT, "its data is in another file%s",
                          folder ? ", which is not named" : ", and the model was not read from a folder");
        goto out;
    }
    if (((text = entry(p, "offset")) && (!mlo_str_to_i64(text, &offset) || offset < 0)) ||
        ((text = entry(p, "length")) && (!mlo_str_to_i64(text, &length) || length < 0))) {
        status = mlo_error_set(err, MLO_EFORMAT, "external data has a bad offset or length: '%.60s'", text);
        goto out;
    }
    if ((size_t)length != expected) {
        status = mlo_error_set(err, MLO_EFORMAT, "external data holds %lld bytes, but its shape needs %zu",
                               (long long)length, expected);
        goto out;
    }
    MLO_TRY(resolve(folder, location, &path, err));
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        status = mlo_error_errno(err, errno, "external data file '%.200s'", location);
        goto out;
    }
    if (!S_ISREG(st.st_mode) || offset > st.st_size || length > st.st_size - offset) {
        status = mlo_error_set(err, MLO_EFORMAT,
                               "external data file '%.100s' has %lld bytes, but %lld at offset %lld are used",
                               location, (long long)st.st_size, (long long)length, (long long)offset);
        goto out;
    }
    if (borrow(reader, path, fd, (size_t)st.st_size, (size_t)offset, expected, out))
        goto out;
    size_t got = 0;
    struct mlo_tensor fresh; /* made when the file is known to hold as much */
    MLO_TRY(mlo_tensor_init(&fresh, out->dtype, out->rank, out->dims, err));
    *out = fresh;
    if (lseek(fd, (off_t)offset, SEEK_SET) < 0 || !mlo_fs_read_full(fd, out->data, expected, &got))
        status = mlo_error_errno(err, errno, "reading external data file '%.200s'", location);
    else if (got != expected)
        status = mlo_error_set(err, MLO_EIO, "external data file '%.200s' became shorter while it was read",
                               location);
out:
    if (fd >= 0)
        close(fd);
    free(path);
    return status;
}
