/* Direct uploads on S3 as one PUT of the blob's own object by a presigned address. Size, digest and mark are
 * signed: the S3 server makes the object of bytes that have the digest or not at all, and the mark says which
 * session they came in. The object may have been there, of another project, or come in another session at the
 * same time: it is the same then but for the mark, and only a session whose mark was seen on it has shown
 * that its client has the bytes. The place is "whole SIZE DIGEST". */
#include <stdlib.h>
#include <string.h>

#include "registry/blob_s3_impl.h"

/* Asked once; a server that cannot be asked is asked again for the next blob. */
static bool server_checks(struct mlo_blob_s3 *s)
{
    bool checks = false;
    int known = atomic_load(&s->checks_presigned);
    if (known)
        return known > 0;
    char *key = mlo_blob_s3_incoming(s), *other = mlo_blob_s3_incoming(s);
    if (key && other && mlo_s3_checks_presigned(s->s3, key, other, &checks, NULL) == MLO_OK)
        atomic_store(&s->checks_presigned, checks ? 1 : -1);
    free(key);
    free(other);
    return checks;
}

bool mlo_blob_s3_whole_begin(struct mlo_blob_s3 *s, uint64_t size_bytes, const struct mlo_digest *digest,
                             struct mlo_blob_session *session)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    if (s->direct_parts || size_bytes > MLO_S3_OBJECT_MAX || !server_checks(s))
        return false;
    snprintf(session->place, sizeof session->place, "whole %llu %s", (unsigned long long)size_bytes,
             mlo_digest_text(digest, text));
    return true;
}

bool mlo_blob_s3_whole_info(const struct mlo_blob_session *session, struct mlo_blob_direct *out)
{
    unsigned long long size;
    char text[MLO_DIGEST_TEXT_SIZE];
    if (sscanf(session->place, "whole %llu %71s", &size, text) != 2 || !mlo_digest_parse(text, &out->digest))
        return false;
    out->size_bytes = out->part_size_bytes = size;
    out->parts = 1;
    out->whole = true;
    return true;
}

/* *mine: and it came in this session. MLO_ENOTFOUND when it is not there. */
static enum mlo_status look(struct mlo_blob_s3 *s, const struct mlo_blob_session *session,
                            const struct mlo_blob_direct *direct, bool *mine, struct mlo_error *err)
{
    struct mlo_s3_object object;
    char *key = mlo_blob_s3_key(s, &direct->digest);
    enum mlo_status status = key ? mlo_s3_head(s->s3, key, &object, err) : mlo_error_nomem(err);
    free(key);
    *mine =
        status == MLO_OK && object.size_bytes == direct->size_bytes && strcmp(object.mark, session->id) == 0;
    return status;
}

enum mlo_status mlo_blob_s3_whole_arrived(struct mlo_blob_s3 *s, const struct mlo_blob_session *session,
                                          const struct mlo_blob_direct *direct, bool *arrived,
                                          struct mlo_error *err)
{
    struct mlo_error seen = {0};
    bool verified = session->size_bytes == direct->size_bytes;
    enum mlo_status status = look(s, session, direct, arrived, &seen);
    *arrived = *arrived || (status == MLO_OK && verified); /* another session's mark may be on it by now */
    if (status == MLO_ENOTFOUND)
        return MLO_OK;
    if (status != MLO_OK && err)
        *err = seen;
    return status;
}

enum mlo_status mlo_blob_s3_whole_check(struct mlo_blob_s3 *s, const struct mlo_blob_session *session,
                                        const struct mlo_blob_direct *direct, struct mlo_error *err)
{
    bool mine;
    return session->size_bytes ? look(s, session, direct, &mine, err) : MLO_OK;
}

enum mlo_status mlo_blob_s3_whole_verify(struct mlo_blob_s3 *s, struct mlo_blob_session *session,
                                         const struct mlo_blob_direct *direct, struct mlo_error *err)
{
    bool arrived;
    enum mlo_status status = mlo_blob_s3_whole_arrived(s, session, direct, &arrived, err);
    if (status != MLO_OK)
        return status;
    session->size_bytes = arrived ? direct->size_bytes : 0;
    if (arrived)
        return MLO_OK;
    mlo_error_set(err, MLO_ECONFLICT,
                  "the bytes have not arrived, or came in another upload at the same time");
    mlo_error_hint(err, "ask for the address of part 1, and send them");
    return MLO_ECONFLICT;
}
