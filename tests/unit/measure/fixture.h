/* What the tests of pipeline/measure share: a scratch folder, files, tensors and model shells. */
#ifndef MLO_TESTS_MEASURE_FIXTURE_H
#define MLO_TESTS_MEASURE_FIXTURE_H

#include "tests/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <zip.h>
#include <zlib.h>

#include "pipeline/measure/measure.h"

#define DATA MLOPT_SOURCE_DIR "/tests/unit/measure/data/"

static char *scratch; /* set by make_scratch */

static inline int make_scratch(void **state)
{
    struct mlo_error err = {0};
    (void)state;
    return mlo_fs_tempdir(NULL, "mlo-measure-", &scratch, &err) == MLO_OK ? 0 : -1;
}

static inline int remove_scratch(void **state)
{
    (void)state;
    mlo_fs_remove_tree(scratch);
    free(scratch);
    scratch = NULL;
    return 0;
}

/* A path in the scratch folder; one of a few static buffers. */
static inline const char *in_scratch(const char *name)
{
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static inline const char *write_bytes(const char *name, const void *bytes, size_t size)
{
    const char *path = in_scratch(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
    return path;
}

static inline const char *write_text(const char *name, const char *text)
{
    return write_bytes(name, text, strlen(text));
}

static inline const char *write_gz(const char *name, const void *bytes, size_t size)
{
    const char *path = in_scratch(name);
    gzFile file = gzopen(path, "wb9");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)size), size);
    assert_int_equal(gzclose(file), Z_OK);
    return path;
}

/* An archive with one member. */
static inline const char *write_zip(const char *name, const char *member, const void *bytes, size_t size,
                                    int method)
{
    const char *path = in_scratch(name);
    int code = 0;
    struct zip *z = zip_open(path, ZIP_CREATE | ZIP_TRUNCATE, &code);
    assert_non_null(z);
    struct zip_source *source = zip_source_buffer(z, bytes, size, 0);
    zip_int64_t index = zip_file_add(z, member, source, 0);
    assert_true(index >= 0);
    const zip_uint32_t level = size > 1 << 20 ? 1 : 9; /* of hundreds of megabytes, soon */
    assert_int_equal(zip_set_file_compression(z, (zip_uint64_t)index, method, level), 0);
    assert_int_equal(zip_close(z), 0);
    return path;
}

/* A dense tensor from doubles. */
static inline struct mlo_tensor make_tensor(enum mlo_dtype dtype, int rank, const int64_t *dims,
                                            const double *values)
{
    struct mlo_error err = {0};
    struct mlo_tensor t = {0};
    assert_ok(mlo_tensor_init(&t, dtype, rank, dims, &err));
    for (size_t i = 0; values && i < mlo_tensor_count(&t); i++)
        mlo_tensor_set_f64(&t, i, values[i]);
    return t;
}

static inline struct mlo_type make_type(enum mlo_dtype dtype, int rank, const int64_t *dims)
{
    struct mlo_type type = {.dtype = dtype, .rank = rank};
    for (int i = 0; i < rank; i++)
        type.dims[i] = (struct mlo_dim){dims[i], dims[i] < 0 ? "batch" : NULL};
    return type;
}

/* A model that has only typed inputs and outputs: enough to be fed. */
static inline struct mlo_model *shell_model(void)
{
    struct mlo_error err = {0};
    struct mlo_model *model = NULL;
    assert_ok(mlo_model_new(17, &model, &err));
    return model;
}

static inline struct mlo_value *shell_input(struct mlo_model *model, const char *name, enum mlo_dtype dtype,
                                            int rank, const int64_t *dims)
{
    struct mlo_error err = {0};
    struct mlo_type type = make_type(dtype, rank, dims);
    struct mlo_value *value = mlo_graph_add_value(model->graph, name, &type);
    assert_non_null(value);
    assert_ok(mlo_graph_add_input(model->graph, value, &err));
    return value;
}

static inline struct mlo_value *shell_output(struct mlo_model *model, const char *name, enum mlo_dtype dtype,
                                             int rank, const int64_t *dims)
{
    struct mlo_error err = {0};
    struct mlo_type type = make_type(dtype, rank, dims);
    struct mlo_value *value = mlo_graph_add_value(model->graph, name, &type);
    assert_non_null(value);
    assert_ok(mlo_graph_add_output(model->graph, value, &err));
    return value;
}

#define DIMS(...) ((const int64_t[]){__VA_ARGS__})
#define VALUES(...) ((const double[]){__VA_ARGS__})

#endif
