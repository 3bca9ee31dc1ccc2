/* The arrays of a dataset's files, whatever the file format: named, typed, read by rows of axis 0. */
#ifndef MLO_MEASURE_ARRAYS_IMPL_H
#define MLO_MEASURE_ARRAYS_IMPL_H

#include "graph/graph.h"
#include "pipeline/measure/stream_impl.h"

struct mlo_array {
    char *name;           /* without ".npy" */
    enum mlo_dtype dtype; /* MLO_DTYPE_NONE: cannot be used; `refusal` says why */
    struct mlo_error refusal;
    int rank;
    int64_t dims[MLO_MAX_RANK];
    size_t row_bytes;     /* of one sample: dims[1…] */
    uint64_t data_offset; /* of row 0 in the stream */
    struct mlo_stream *stream;
};

struct mlo_arrays {
    struct mlo_array *items;
    size_t count;
    struct zip *archive; /* of npz arrays; closed last */
};

void mlo_arrays_clear(struct mlo_arrays *arrays);
/* Appends a zeroed array of that name and hands it out (borrowed until the next append). */
MLO_MUST_USE enum mlo_status mlo_arrays_add(struct mlo_arrays *arrays, const char *name,
                                            struct mlo_array **out, struct mlo_error *err);
struct mlo_array *mlo_arrays_find(const struct mlo_arrays *arrays, const char *name);
/* Sets row_bytes from dtype and dims; MLO_ETOOBIG when the sizes overflow. */
MLO_MUST_USE enum mlo_status mlo_array_size(struct mlo_array *array, uint64_t *data_bytes,
                                            struct mlo_error *err);
/* Rows [begin, begin+count) as stored. Reading up to the last row also checks that the data ends there. */
MLO_MUST_USE enum mlo_status mlo_array_read(struct mlo_array *array, int64_t begin, int64_t count,
                                            void *bytes, struct mlo_error *err);
/* Appends "x uint8[100,28,28], y int64[100]" for messages. */
void mlo_arrays_describe(const struct mlo_arrays *arrays, struct mlo_buf *out);

/* Every numeric array of an .npz; MLO_EFORMAT, MLO_ETOOBIG as measure.h says. */
MLO_MUST_USE enum mlo_status mlo_npz_open(const char *path, struct mlo_arrays *arrays, struct mlo_error *err);
/* One IDX file (plain or gzipped) as array `name`. */
MLO_MUST_USE enum mlo_status mlo_idx_open(const char *path, const char *name, struct mlo_arrays *arrays,
                                          struct mlo_error *err);

#endif
