#include "pipeline/measure/stream_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <zip.h>
#include <zlib.h>

/* Deflate cannot exceed about 1032:1; real data beyond a quarter of a gigabyte does not come near 100:1. */
enum { DEFLATE_MAX_RATIO = 1032, BOMB_RATIO = 100 };
static const uint64_t BOMB_BYTES = (uint64_t)256 << 20;

struct mlo_stream {
    char *name;
    gzFile gz; /* a file, or: */
    struct zip *archive;
    uint64_t index;
    struct zip_file *member; /* NULL until the first read, and after a step back */
    bool seekable;
    uint64_t position;
};

enum mlo_status mlo_stream_check_ratio(const char *name, uint64_t declared_bytes, uint64_t compressed_bytes,
                                       struct mlo_error *err)
{
    char declared[32], there[32];
    mlo_str_size(declared_bytes, declared);
    mlo_str_size(compressed_bytes, there);
    if (declared_bytes > BOMB_BYTES && declared_bytes / BOMB_RATIO > compressed_bytes) {
        mlo_error_set(err, MLO_ETOOBIG,
                      "%s would expand from %s to %s, more than %d to 1: refused as a decompression bomb",
                      name, there, declared, BOMB_RATIO);
        mlo_error_hint(err, "if the data is real, store it without compression (numpy.savez)");
        return MLO_ETOOBIG;
    }
    if (declared_bytes / DEFLATE_MAX_RATIO > compressed_bytes + 64)
        return mlo_error_set(
            err, MLO_EFORMAT,
            "%s declares %s, which %s of compressed data cannot hold: it is truncated or damaged", name,
            declared, there);
    return MLO_OK;
}

static struct mlo_stream *stream_new(const char *name)
{
    struct mlo_stream *stream = calloc(1, sizeof *stream);
    if (stream && !(stream->name = strdup(name))) {
        free(stream);
        return NULL;
    }
    return stream;
}

enum mlo_status mlo_stream_open_file(const char *path, struct mlo_stream **out, struct mlo_error *err)
{
    struct mlo_stream *stream = stream_new(path);
    *out = NULL;
    if (!stream)
        return mlo_error_nomem(err);
    errno = 0;
    stream->gz = gzopen(path, "rbe");
    if (!stream->gz) {
        enum mlo_status status =
            errno ? mlo_error_errno(err, errno, "cannot open %s", path) : mlo_error_nomem(err);
        mlo_stream_close(stream);
        return status;
    }
    gzbuffer(stream->gz, 1u << 16);
    *out = stream;
    return MLO_OK;
}

enum mlo_status mlo_stream_open_member(struct zip *archive, uint64_t index, bool seekable, const char *name,
                                       struct mlo_stream **out, struct mlo_error *err)
{
    struct mlo_stream *stream = stream_new(name);
    *out = stream;
    if (!stream)
        return mlo_error_nomem(err);
    stream->archive = archive;
    stream->index = index;
    stream->seekable = seekable;
    return MLO_OK;
}

void mlo_stream_close(struct mlo_stream *stream)
{
    if (!stream)
        return;
    if (stream->gz)
        gzclose(stream->gz);
    if (stream->member)
        zip_fclose(stream->member);
    free(stream->name);
    free(stream);
}

bool mlo_stream_is_plain(const struct mlo_stream *stream)
{
    return stream->gz && gzdirect(stream->gz);
}

static enum mlo_status damaged(const struct mlo_stream *stream, const char *why, struct mlo_error *err)
{
    return mlo_error_set(err, MLO_EFORMAT, "%s is damaged at byte %llu of its content: %s", stream->name,
                         (unsigned long long)stream->position, why);
}

/* One read at the current position; *got 0 at the end. */
static enum mlo_status read_some(struct mlo_stream *stream, void *bytes, size_t size, size_t *got,
                                 struct mlo_error *err)
{
    *got = 0;
    if (stream->gz) {
        int n = gzread(stream->gz, bytes, (unsigned)MLO_MIN(size, (size_t)1 << 30));
        int code = Z_OK;
        const char *text = gzerror(stream->gz, &code);
        /* zlib tells a file cut off in the middle by Z_BUF_ERROR, from the last bytes it could still give on
         */
        if (n < 0 || (n == 0 && code == Z_BUF_ERROR)) {
            if (code == Z_ERRNO)
                return mlo_error_errno(err, errno, "cannot read %s", stream->name);
            return damaged(stream, code == Z_BUF_ERROR ? "it is truncated" : text, err);
        }
        *got = (size_t)n;
    } else {
        if (!stream->member) {
            stream->member = zip_fopen_index(stream->archive, stream->index, 0);
            if (!stream->member)
                return damaged(stream, zip_strerror(stream->archive), err);
        }
        zip_int64_t n = zip_fread(stream->member, bytes, size);
        if (n < 0)
            return damaged(stream, zip_error_strerror(zip_file_get_error(stream->member)), err);
        *got = (size_t)n;
    }
    stream->position += *got;
    return MLO_OK;
}

static enum mlo_status go_to(struct mlo_stream *stream, uint64_t offset, struct mlo_error *err)
{
    if (stream->position == offset)
        return MLO_OK;
    if (stream->gz) {
        /* zlib itself skips forwards by reading and rewinds for the way back */
        if (gzseek(stream->gz, (z_off_t)offset, SEEK_SET) != (z_off_t)offset)
            return damaged(stream, "it ends before the position asked for", err);
        stream->position = offset;
        return MLO_OK;
    }
    if (stream->seekable && stream->member && zip_fseek(stream->member, (zip_int64_t)offset, SEEK_SET) == 0) {
        stream->position = offset;
        return MLO_OK;
    }
    if (offset < stream->position) {
        if (stream->member)
            zip_fclose(stream->member);
        stream->member = NULL;
        stream->position = 0;
    }
    char scratch[16384];
    while (stream->position < offset) {
        size_t got = 0;
        enum mlo_status status =
            read_some(stream, scratch, (size_t)MLO_MIN(offset - stream->position, sizeof scratch), &got, err);
        if (status != MLO_OK)
            return status;
        if (!got)
            return damaged(stream, "it ends before its header says", err);
    }
    return MLO_OK;
}

enum mlo_status mlo_stream_read_at(struct mlo_stream *stream, uint64_t offset, void *bytes, size_t size,
                                   struct mlo_error *err)
{
    char *at = bytes;
    enum mlo_status status = go_to(stream, offset, err);
    while (status == MLO_OK && size) {
        size_t got = 0;
        status = read_some(stream, at, size, &got, err);
        if (status == MLO_OK && !got)
            status = damaged(stream, "it ends before its header says", err);
        at += got;
        size -= got;
    }
    return status;
}

enum mlo_status mlo_stream_expect_end(struct mlo_stream *stream, uint64_t offset, struct mlo_error *err)
{
    char more;
    size_t got = 0;
    enum mlo_status status = go_to(stream, offset, err);
    if (status == MLO_OK)
        status = read_some(stream, &more, 1, &got, err);
    if (status == MLO_OK && got)
        status = mlo_error_set(err, MLO_EFORMAT, "%s goes on behind the %llu bytes that its header declares",
                               stream->name, (unsigned long long)offset);
    return status;
}
