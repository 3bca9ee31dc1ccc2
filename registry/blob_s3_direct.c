/* Direct uploads on S3: a multipart upload of <prefix>uploads/<id>, whose parts clients PUT by presigned
 * addresses. The place is "direct UPLOAD SIZE ETAG", ETAG "-" until the object was made of the parts: from
 * then on nobody but us can change it, and what is read, and copied in the end, must still have that ETag.
 *
 * Or one PUT of that object, "whole DIGEST SIZE ETAG", which the S3 server makes of bytes with that digest or
 * not at all: nothing is read. It is not the blob's own object that a client writes: S3 servers take headers
 * that nobody signed (a key to encrypt with, who may read it, how it is encoded), and a copy drops them. */
#include <stdlib.h>
#include <string.h>

#include "registry/blob_s3_impl.h"

enum { UPLOAD_MAX = 140, MIB = 1 << 20 };
#define STEP_BYTES (16ull << 20) /* are read between two looks at the clock */

struct place {
    char upload[UPLOAD_MAX], etag[MLO_S3_ETAG_SIZE];
    struct mlo_blob_direct direct;
};

static void set_direct(uint64_t size, struct mlo_blob_direct *out)
{
    uint64_t part = (size + MLO_S3_PARTS_MAX - 1) / MLO_S3_PARTS_MAX;
    part = MLO_MAX((uint64_t)MLO_BLOB_S3_PART, (part + MIB - 1) / MIB * MIB);
    out->size_bytes = size;
    out->part_size_bytes = part;
    out->parts = (int)((size + part - 1) / part);
}

static bool read_place(const struct mlo_blob_session *session, struct place *out)
{
    unsigned long long size;
    char kind[8];
    memset(out, 0, sizeof *out);
    if (sscanf(session->place, "%7s %139s %llu %79s", kind, out->upload, &size, out->etag) != 4)
        return false;
    set_direct(size, &out->direct);
    if (strcmp(kind, "direct") == 0)
        return true;
    out->direct.part_size_bytes = size;
    out->direct.parts = 1;
    out->direct.whole = true;
    return strcmp(kind, "whole") == 0 && mlo_digest_parse(out->upload, &out->direct.digest);
}

static void write_place(struct mlo_blob_session *session, const struct place *place)
{
    snprintf(session->place, sizeof session->place, "%s %s %llu %s", place->direct.whole ? "whole" : "direct",
             place->upload, (unsigned long long)place->direct.size_bytes, place->etag);
}

static char *session_key(const struct mlo_blob_s3 *s, const struct mlo_blob_session *session)
{
    return mlo_blob_s3_name(s, "uploads", session->id);
}

static enum mlo_status open_place(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                  struct place *place, char **key, struct mlo_error *err)
{
    *key = NULL;
    if (!read_place(session, place))
        return mlo_error_set(err, MLO_EINVAL, "upload %s comes in pieces, not in parts", session->id);
    *key = session_key(store->state, session);
    return *key ? MLO_OK : mlo_error_nomem(err);
}

bool mlo_blob_s3_direct_info(const struct mlo_blob_session *session, struct mlo_blob_direct *out)
{
    struct place place;
    if (!read_place(session, &place))
        return false;
    if (out)
        *out = place.direct;
    return true;
}

/* Whether the S3 server looks at what it is sent by an address; asked until it has said so. */
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

enum mlo_status mlo_blob_s3_direct_begin(struct mlo_blob_store *store, uint64_t size_bytes,
                                         const struct mlo_digest *digest, struct mlo_blob_session *session,
                                         struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct place place = {.etag = "-"};
    char *key = NULL, *upload = NULL, *url = NULL;
    enum mlo_status status;
    if (!s->outside || !s->direct)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "clients do not write to the bucket: direct=no");
    set_direct(size_bytes, &place.direct);
    key = session_key(s, session);
    if (!key)
        return mlo_error_nomem(err);
    const struct mlo_s3_grant grant = {.key = key, .expires_s = 1};
    MLO_TRY(mlo_s3_presign_url(s->outside, &grant, &url, err)); /* not with a customer's key: said before */
    if (digest && !s->direct_parts && size_bytes <= MLO_S3_OBJECT_MAX && server_checks(s)) {
        place.direct.whole = true;
        mlo_digest_text(digest, place.upload);
        write_place(session, &place);
        goto out;
    }
    MLO_TRY(mlo_s3_multipart_create(s->s3, key, &upload, err));
    if (strlen(upload) >= UPLOAD_MAX || strchr(upload, ' ')) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the S3 server's name of an upload has %zu bytes",
                               strlen(upload));
        (void)!mlo_s3_multipart_abort(s->s3, key, upload, NULL);
        goto out;
    }
    snprintf(place.upload, sizeof place.upload, "%s", upload);
    write_place(session, &place);
out:
    free(url);
    free(upload);
    free(key);
    return status;
}

static enum mlo_status sign_address(struct mlo_s3 *s3, const struct mlo_s3_grant *grant,
                                    struct mlo_blob_part_address *out, struct mlo_error *err)
{
    struct mlo_s3_headers headers;
    _Static_assert(MLO_COUNT(headers.items) <= MLO_COUNT(out->headers), "all of them fit");
    mlo_s3_grant_headers(s3, grant, &headers);
    for (size_t i = 0; i < headers.count; i++) {
        out->headers[i].name = headers.items[i].name;
        out->headers[i].value = strdup(headers.items[i].value);
        out->header_count++;
        if (!out->headers[i].value)
            return mlo_error_nomem(err);
    }
    return mlo_s3_presign_url(s3, grant, &out->url, err);
}

enum mlo_status mlo_blob_s3_direct_address(struct mlo_blob_store *store,
                                           const struct mlo_blob_session *session, int number,
                                           const char *md5, struct mlo_blob_part_address *out,
                                           struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct place place;
    char *key;
    enum mlo_status status = open_place(store, session, &place, &key, err);
    if (status != MLO_OK)
        return status;
    bool whole = place.direct.whole;
    const struct mlo_s3_grant grant = {.key = key,
                                       .upload = whole ? NULL : place.upload,
                                       .number = number,
                                       .md5 = whole ? NULL : md5,
                                       .digest = whole ? &place.direct.digest : NULL,
                                       .size_bytes = mlo_blob_direct_part_size(&place.direct, number),
                                       .expires_s = MLO_BLOB_PART_ADDRESS_S};
    status = s->outside && s->direct
                 ? sign_address(s->outside, &grant, out, err)
                 : mlo_error_set(err, MLO_EUNSUPPORTED, "clients do not write to the bucket");
    free(key);
    return status;
}

static enum mlo_status whole_arrived(struct mlo_blob_s3 *s, const char *key, bool *arrived,
                                     struct mlo_error *err)
{
    struct mlo_error absent = {0};
    enum mlo_status status = mlo_s3_head(s->s3, key, NULL, &absent);
    *arrived = status == MLO_OK;
    if (status == MLO_ENOTFOUND)
        return MLO_OK;
    if (status != MLO_OK && err)
        *err = absent;
    return status;
}

enum mlo_status mlo_blob_s3_direct_arrived(struct mlo_blob_store *store,
                                           const struct mlo_blob_session *session, bool *arrived,
                                           struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct place place;
    struct mlo_s3_part *parts = NULL;
    size_t count = 0;
    char *key;
    enum mlo_status status = open_place(store, session, &place, &key, err);
    if (status == MLO_OK && strcmp(place.etag, "-") != 0)
        memset(arrived, true, ((size_t)place.direct.parts + 1) * sizeof *arrived);
    else if (status == MLO_OK && place.direct.whole)
        status = whole_arrived(s, key, &arrived[1], err);
    else if (status == MLO_OK)
        status = mlo_s3_multipart_parts(s->s3, key, place.upload, &parts, &count, err);
    if (status == MLO_ENOTFOUND && mlo_s3_head(s->s3, key, NULL, NULL) == MLO_OK) {
        /* made of them, and a server was killed before it could write that down */
        memset(arrived, true, ((size_t)place.direct.parts + 1) * sizeof *arrived);
        status = MLO_OK;
    }
    for (size_t i = 0; i < count; i++)
        if (parts[i].number <= place.direct.parts &&
            parts[i].size_bytes == mlo_blob_direct_part_size(&place.direct, parts[i].number))
            arrived[parts[i].number] = true;
    free(parts);
    free(key);
    return status;
}

enum mlo_status mlo_blob_s3_direct_check(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                         struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct place place;
    struct mlo_s3_part *parts = NULL;
    size_t count;
    char *key;
    enum mlo_status status = open_place(store, session, &place, &key, err);
    if (status == MLO_OK && place.direct.whole) /* which is not there: it was, or nothing has come yet */
        status = session->size_bytes
                     ? mlo_error_set(err, MLO_ENOTFOUND, "the bytes of upload %s are gone", session->id)
                     : MLO_OK;
    else if (status == MLO_OK)
        status = mlo_s3_multipart_parts(s->s3, key, place.upload, &parts, &count, err);
    free(parts);
    free(key);
    return status;
}

/* --- verifying ----------------------------------------------------------------------------------------- */

static enum mlo_status missing(const struct mlo_blob_direct *d, const struct mlo_s3_part *parts, size_t count,
                               struct mlo_error *err)
{
    size_t at = 0;
    for (int number = 1; number <= d->parts; number++, at++)
        if (at >= count || parts[at].number != number ||
            parts[at].size_bytes != mlo_blob_direct_part_size(d, number)) {
            mlo_error_set(err, MLO_ECONFLICT, "part %d of %d has not arrived, or has another size", number,
                          d->parts);
            mlo_error_hint(err, "ask which parts are there, and send the others");
            return MLO_ECONFLICT;
        }
    if (at == count)
        return MLO_OK;
    return mlo_error_set(err, MLO_ECONFLICT, "there are parts behind the last one, %d", d->parts);
}

/* Swift takes parts also after the object was made of them: other bytes of the same MD5 could come behind our
 * reading. With such a server there are no direct uploads. */
static enum mlo_status check_closed(struct mlo_blob_s3 *s, const char *key, const struct place *place,
                                    struct mlo_error *err)
{
    struct mlo_s3_part *parts = NULL;
    size_t count;
    enum mlo_status status = mlo_s3_multipart_parts(s->s3, key, place->upload, &parts, &count, err);
    free(parts);
    if (status == MLO_ENOTFOUND)
        return MLO_OK;
    if (status != MLO_OK)
        return status;
    mlo_error_set(err, MLO_EUNSUPPORTED,
                  "this S3 server lets parts be replaced after the object was made of them");
    mlo_error_hint(err, "on Ceph: it was killed while it made the object, drop this upload and begin again; "
                        "on OpenStack Swift: set direct=no in the store's address");
    return MLO_EUNSUPPORTED;
}

/* The object of the parts, where it is not there: what is done already is not done again. */
static enum mlo_status complete(struct mlo_blob_s3 *s, const char *key, const struct place *place,
                                struct mlo_s3_object *object, struct mlo_error *err)
{
    struct mlo_s3_part *parts = NULL;
    size_t count = 0;
    enum mlo_status status;
    if (place->direct.whole)
        return missing(&place->direct, NULL, 0, err);
    MLO_TRY(mlo_s3_multipart_parts(s->s3, key, place->upload, &parts, &count, err));
    MLO_TRY(missing(&place->direct, parts, count, err));
    MLO_TRY(mlo_s3_multipart_complete(s->s3, key, place->upload, parts, count, NULL, err));
    MLO_TRY(mlo_s3_head(s->s3, key, object, err));
out:
    free(parts);
    return status;
}

static enum mlo_status make_object(struct mlo_blob_s3 *s, const char *key, struct place *place,
                                   struct mlo_error *err)
{
    struct mlo_s3_object object;
    struct mlo_error absent = {0};
    enum mlo_status status = mlo_s3_head(s->s3, key, &object, &absent);
    if (status == MLO_ENOTFOUND)
        status = complete(s, key, place, &object, err);
    else if (status != MLO_OK && err)
        *err = absent;
    if (status != MLO_OK)
        return status;
    if (object.size_bytes != place->direct.size_bytes || !*object.etag || strchr(object.etag, ' '))
        return mlo_error_set(err, MLO_EDIGEST, "the S3 server made an object of %llu bytes, not of %llu",
                             (unsigned long long)object.size_bytes,
                             (unsigned long long)place->direct.size_bytes);
    if (!place->direct.whole && (status = check_closed(s, key, place, err)) != MLO_OK)
        return status;
    snprintf(place->etag, sizeof place->etag, "%s", object.etag);
    return MLO_OK;
}

static enum mlo_status check_etag(const struct mlo_blob_session *session, const struct place *place,
                                  const struct mlo_s3_object *object, struct mlo_error *err)
{
    if (strcmp(object->etag, place->etag) == 0 && object->size_bytes == place->direct.size_bytes)
        return MLO_OK;
    mlo_error_set(err, MLO_EDIGEST, "the bytes of upload %s changed in the store while they were verified",
                  session->id);
    mlo_error_hint(err, "drop the upload and begin again");
    return MLO_EDIGEST;
}

static enum mlo_status into_hash(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    MLO_UNUSED(err);
    mlo_hasher_update(arg, bytes, size);
    return MLO_OK;
}

enum mlo_status mlo_blob_s3_direct_verify(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                          uint32_t budget_ms, bool *done, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct place place;
    uint64_t end = mlo_clock_ns() + (uint64_t)budget_ms * 1000000u;
    struct mlo_hasher *hasher = mlo_hasher_new();
    char *key;
    enum mlo_status status;
    MLO_TRY(open_place(store, session, &place, &key, err));
    if (!hasher) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_hasher_restore(hasher, &session->hash);
    if (strcmp(place.etag, "-") == 0) {
        MLO_TRY(make_object(s, key, &place, err));
        write_place(session, &place);
    }
    if (place.direct.whole)
        session->size_bytes = place.direct.size_bytes; /* the S3 server has looked at them */
    for (*done = false; session->size_bytes < place.direct.size_bytes;) {
        struct mlo_s3_object object;
        uint64_t left = place.direct.size_bytes - session->size_bytes, step = MLO_MIN(left, STEP_BYTES);
        MLO_TRY(mlo_s3_get(s->s3, key, session->size_bytes, step, step, into_hash, hasher, &object, err));
        MLO_TRY(check_etag(session, &place, &object, err));
        session->size_bytes += step;
        mlo_hasher_save(hasher, &session->hash);
        if (mlo_clock_ns() >= end)
            break;
    }
    *done = session->size_bytes == place.direct.size_bytes;
out:
    mlo_hasher_free(hasher);
    free(key);
    return status;
}

/* --- the end ------------------------------------------------------------------------------------------- */

enum mlo_status mlo_blob_s3_direct_publish(struct mlo_blob_store *store,
                                           const struct mlo_blob_session *session,
                                           const struct mlo_digest *digest, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct place place;
    struct mlo_s3_object object;
    char *key, *blob = NULL;
    enum mlo_status status;
    MLO_TRY(open_place(store, session, &place, &key, err));
    if (strcmp(place.etag, "-") == 0 || session->size_bytes != place.direct.size_bytes) {
        status = mlo_error_set(err, MLO_EINTERNAL, "upload %s was not verified", session->id);
        goto out;
    }
    blob = mlo_blob_s3_key(s, digest);
    if (!blob) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_s3_head(s->s3, key, &object, err));
    MLO_TRY(check_etag(session, &place, &object, err));
    MLO_TRY(mlo_blob_s3_copy(s, key, &object, blob, digest, err));
    (void)!mlo_s3_delete(s->s3, key, NULL); /* else fsck finds it */
out:
    free(blob);
    free(key);
    return status;
}

enum mlo_status mlo_blob_s3_direct_drop(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                        struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    struct place place;
    char *key;
    enum mlo_status status = open_place(store, session, &place, &key, err);
    if (status == MLO_OK && !place.direct.whole)
        status = mlo_s3_multipart_abort(s->s3, key, place.upload, err);
    if (status == MLO_OK)
        status = mlo_s3_delete(s->s3, key, err);
    free(key);
    return status;
}
