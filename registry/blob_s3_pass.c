/* A blob as one PUT that goes on while its bytes come. The server is told the digest with the first byte and
 * makes the object of bytes that have it, or none: they are hashed once, there. */
#include <stdlib.h>
#include <string.h>

#include "registry/blob_s3_impl.h"

enum { BLOCK = 256 << 10 /* what goes out at a time: fewer and larger records and system calls */ };
/* What is there goes by then, of a slow client: the S3 server does not wait for long. */
#define LATE_NS 2000000000ull

struct mlo_blob_s3_pass {
    struct mlo_s3_stream *stream;
    uint64_t sent_ns; /* when some went out */
    size_t fill;
    unsigned char block[BLOCK];
};

/* Asked once; a server that cannot be asked is asked again for the next blob. */
static bool server_checks(struct mlo_blob_s3 *s)
{
    bool checks = false;
    int known = atomic_load(&s->checks);
    if (known)
        return known > 0;
    char *key = mlo_blob_s3_incoming(s);
    if (key && mlo_s3_checks_digests(s->s3, key, &checks, NULL) == MLO_OK)
        atomic_store(&s->checks, checks ? 1 : -1);
    free(key);
    return checks;
}

enum mlo_status mlo_blob_s3_pass_new(struct mlo_blob_s3 *s, const char *key, const struct mlo_digest *digest,
                                     uint64_t size_bytes, struct mlo_blob_s3_pass **out,
                                     struct mlo_error *err)
{
    *out = NULL;
    if (!s->streams || size_bytes <= MLO_BLOB_S3_PART || size_bytes > MLO_S3_OBJECT_MAX || !server_checks(s))
        return MLO_OK;
    struct mlo_blob_s3_pass *p = malloc(sizeof *p);
    if (!p)
        return mlo_error_nomem(err);
    p->fill = 0;
    p->sent_ns = mlo_clock_ns();
    enum mlo_status status = mlo_s3_stream_open(s->s3, key, digest, size_bytes, &p->stream, err);
    if (status != MLO_OK)
        free(p);
    else
        *out = p;
    return status;
}

/* All but the last `keep` bytes of the block. */
static enum mlo_status send_block(struct mlo_blob_s3_pass *p, size_t keep, struct mlo_error *err)
{
    enum mlo_status status = mlo_s3_stream_write(p->stream, p->block, p->fill - keep, err);
    memmove(p->block, p->block + p->fill - keep, keep);
    p->fill = keep;
    p->sent_ns = mlo_clock_ns();
    return status;
}

/* A full block goes when a byte behind it is there: the last byte is for who finishes. */
enum mlo_status mlo_blob_s3_pass_write(struct mlo_blob_s3_pass *p, const void *bytes, size_t size,
                                       struct mlo_error *err)
{
    const unsigned char *from = bytes;
    while (size) {
        enum mlo_status status = p->fill == BLOCK ? send_block(p, 0, err) : MLO_OK;
        if (status != MLO_OK)
            return status;
        size_t n = MLO_MIN(size, BLOCK - p->fill);
        memcpy(p->block + p->fill, from, n);
        p->fill += n;
        from += n;
        size -= n;
    }
    return p->fill > 1 && mlo_clock_ns() - p->sent_ns > LATE_NS ? send_block(p, 1, err) : MLO_OK;
}

enum mlo_status mlo_blob_s3_pass_finish(struct mlo_blob_s3_pass *p, struct mlo_error *err)
{
    enum mlo_status status = send_block(p, 0, err);
    return status == MLO_OK ? mlo_s3_stream_finish(p->stream, err) : status;
}

void mlo_blob_s3_pass_free(struct mlo_blob_s3_pass *p)
{
    if (!p)
        return;
    mlo_s3_stream_free(p->stream);
    free(p);
}
