/* The header of an .npy array, as numpy's format description (versions 1.0, 2.0, 3.0) defines it. */
#ifndef MLO_MEASURE_NPY_IMPL_H
#define MLO_MEASURE_NPY_IMPL_H

#include "graph/graph.h"

enum {
    MLO_NPY_PREAMBLE = 12,      /* magic, version and the longest length field */
    MLO_NPY_HEADER_MAX = 65536, /* bytes of header text that are accepted */
};

struct mlo_npy_header {
    enum mlo_dtype dtype; /* MLO_DTYPE_NONE: a type that is not supported (`refusal` says which) */
    struct mlo_error refusal;
    bool fortran_order;
    int rank;
    int64_t dims[MLO_MAX_RANK];
};

/* Reads magic, version and length from the first MLO_NPY_PREAMBLE bytes: where the header text begins and how
 * long it is. */
MLO_MUST_USE enum mlo_status mlo_npy_preamble(const uint8_t *bytes, size_t *text_offset, size_t *text_size,
                                              struct mlo_error *err);
/* Parses the header text: a Python dictionary with exactly descr, fortran_order and shape. */
MLO_MUST_USE enum mlo_status mlo_npy_parse(const char *text, size_t size, struct mlo_npy_header *out,
                                           struct mlo_error *err);
/* Appends a version 1.0 header (magic to newline, a multiple of 64 bytes) for a tensor's type and shape. */
MLO_MUST_USE enum mlo_status mlo_npy_format(enum mlo_dtype dtype, int rank, const int64_t *dims,
                                            struct mlo_buf *out, struct mlo_error *err);

#endif
