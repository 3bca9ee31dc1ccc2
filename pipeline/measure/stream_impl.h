/* A source of bytes that can be read at any offset with bounded memory: a member of a zip archive, or a plain
 * or gzipped file. Compressed sources are read forwards; going back starts them again. */
#ifndef MLO_MEASURE_STREAM_IMPL_H
#define MLO_MEASURE_STREAM_IMPL_H

#include "base/base.h"

struct zip;
struct mlo_stream;

/* Opens a gzipped or plain file. `name` is copied and names the source in errors. */
MLO_MUST_USE enum mlo_status mlo_stream_open_file(const char *path, struct mlo_stream **out,
                                                  struct mlo_error *err);
/* Opens member `index` of an archive, which must outlive the stream. Stored members are read in place. */
MLO_MUST_USE enum mlo_status mlo_stream_open_member(struct zip *archive, uint64_t index, bool seekable,
                                                    const char *name, struct mlo_stream **out,
                                                    struct mlo_error *err);
void mlo_stream_close(struct mlo_stream *stream); /* NULL is fine */

/* Exactly `size` bytes from `offset`; MLO_EFORMAT when it ends before. */
MLO_MUST_USE enum mlo_status mlo_stream_read_at(struct mlo_stream *stream, uint64_t offset, void *bytes,
                                                size_t size, struct mlo_error *err);
/* Checks that nothing follows `offset` (and with that the checksum that closes compressed data). */
MLO_MUST_USE enum mlo_status mlo_stream_expect_end(struct mlo_stream *stream, uint64_t offset,
                                                   struct mlo_error *err);
/* True for a file that is not compressed. */
bool mlo_stream_is_plain(const struct mlo_stream *stream);

/* Judges a declared size against the compressed bytes that are there, before anything is read: more than
 * deflate can express is MLO_EFORMAT, large and suspiciously well compressed is MLO_ETOOBIG. */
MLO_MUST_USE enum mlo_status mlo_stream_check_ratio(const char *name, uint64_t declared_bytes,
                                                    uint64_t compressed_bytes, struct mlo_error *err);

#endif
