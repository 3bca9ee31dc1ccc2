/* Uploads in pieces on S3: a session is a multipart upload of <prefix>uploads/<id>. Parts but the last must
 * have 5 MiB, pieces need not: what fills no part yet, the rest, is kept beside, as
 * <prefix>uploads/<id>.<size so far>.<its SHA-256, 16 digits of it>. The place says what counts: "UPLOAD
 * DIGEST BEFORE REST", the digest over the parts' numbers, sizes and ETags, the end of the name of the rest
 * of the state before, which may go now ("0": it had none), and the rest's SHA-256 ("-": none). Parts that a
 * killed server sent beyond are written over. What two servers wrote at once is found by what counts: of a
 * part by its ETag, and a rest of other bytes has another name. */
#include <stdlib.h>
#include <string.h>

#include "registry/blob_s3_impl.h"

enum { UPLOAD_MAX = 160, REST_NAME_SIZE = 40 };

struct state {
    char upload[UPLOAD_MAX];
    struct mlo_digest parts_digest;
    char before[REST_NAME_SIZE], rest[REST_NAME_SIZE]; /* "": none */
    struct mlo_digest rest_digest;
    bool rest_known; /* the digest: not of an upload that was begun before it was written down */
    /* What the server has of it. */
    struct mlo_s3_part *parts;
    size_t count;      /* that count */
    uint64_t in_parts; /* bytes in them; the rest is beside */
};

struct s3_piece {
    struct state state;
    struct mlo_blob_s3_parts *parts;
    char *key;
};

static char *session_key(const struct mlo_blob_s3 *s, const struct mlo_blob_session *session)
{
    return mlo_blob_s3_name(s, "uploads", session->id);
}

static char *rest_key(const char *key, const char *rest)
{
    struct mlo_buf name = MLO_BUF_INIT;
    mlo_buf_printf(&name, "%s.%s", key, rest);
    return mlo_buf_take(&name);
}

static void name_rest(uint64_t size_bytes, const struct mlo_digest *digest, char out[REST_NAME_SIZE])
{
    char hex[MLO_DIGEST_TEXT_SIZE];
    snprintf(out, REST_NAME_SIZE, "%llu.%.16s", (unsigned long long)size_bytes, mlo_digest_hex(digest, hex));
}

static enum mlo_status gone(const struct mlo_blob_session *session, struct mlo_error *err)
{
    mlo_error_set(err, MLO_ENOTFOUND, "the bytes of upload %s are not in the store any more", session->id);
    mlo_error_hint(err, "begin the upload again");
    return MLO_ENOTFOUND;
}

static bool digest_parts(const struct mlo_s3_part *parts, size_t count, struct mlo_digest *out)
{
    struct mlo_hasher *hasher = mlo_hasher_new();
    char line[MLO_S3_ETAG_SIZE + 48];
    for (size_t i = 0; hasher && i < count; i++) {
        int n = snprintf(line, sizeof line, "%d %llu %s\n", parts[i].number,
                         (unsigned long long)parts[i].size_bytes, parts[i].etag);
        mlo_hasher_update(hasher, line, (size_t)n);
    }
    if (hasher)
        mlo_hasher_final(hasher, out);
    mlo_hasher_free(hasher);
    return hasher != NULL;
}

/* `rest`: NULL when all bytes are in parts. */
static enum mlo_status write_place(struct mlo_blob_session *session, const char *upload,
                                   const struct mlo_s3_part *parts, size_t count, const char *before,
                                   const struct mlo_digest *rest, struct mlo_error *err)
{
    struct mlo_digest digest;
    char hex[MLO_DIGEST_TEXT_SIZE], rest_hex[MLO_DIGEST_TEXT_SIZE] = "-";
    if (!digest_parts(parts, count, &digest))
        return mlo_error_nomem(err);
    if (rest)
        mlo_digest_hex(rest, rest_hex);
    snprintf(session->place, sizeof session->place, "%.*s %s %s %s", UPLOAD_MAX - 1, upload,
             mlo_digest_hex(&digest, hex), *before ? before : "0", rest_hex);
    return MLO_OK;
}

static bool read_place(const struct mlo_blob_session *session, struct state *st)
{
    char hex[MLO_DIGEST_TEXT_SIZE], rest[MLO_DIGEST_TEXT_SIZE];
    int count = sscanf(session->place, "%159s %64s %39s %64s", st->upload, hex, st->before, rest);
    if (count < 3 || !mlo_digest_parse(hex, &st->parts_digest))
        return false;
    if (strcmp(st->before, "0") == 0)
        *st->before = '\0';
    st->rest_known = count == 4 && mlo_digest_parse(rest, &st->rest_digest);
    if (st->rest_known)
        name_rest(session->size_bytes, &st->rest_digest, st->rest);
    else if (count == 3)
        snprintf(st->rest, sizeof st->rest, "%llu", (unsigned long long)session->size_bytes);
    return count == 3 || st->rest_known || strcmp(rest, "-") == 0;
}

/* Asks the server for the parts, and counts those that the session has. st->parts is the caller's (free). */
static enum mlo_status read_state(const struct mlo_blob_s3 *s, const struct mlo_blob_session *session,
                                  const char *key, struct state *st, struct mlo_error *err)
{
    struct mlo_digest digest;
    size_t there;
    if (!read_place(session, st))
        return mlo_error_set(err, MLO_EINTERNAL, "'%.80s' is no place of an upload in S3", session->place);
    enum mlo_status status = mlo_s3_multipart_parts(s->s3, key, st->upload, &st->parts, &there, err);
    if (status == MLO_ENOTFOUND)
        return gone(session, err);
    if (status != MLO_OK)
        return status;
    while (st->count < there && st->parts[st->count].number == (int)st->count + 1 &&
           st->in_parts + st->parts[st->count].size_bytes <= session->size_bytes)
        st->in_parts += st->parts[st->count++].size_bytes;
    if (!digest_parts(st->parts, st->count, &digest))
        return mlo_error_nomem(err);
    if (st->count && st->in_parts == session->size_bytes && !mlo_digest_eq(&digest, &st->parts_digest)) {
        /* who was killed while completing it had sent the rest, which is kept beside, as the last part */
        st->in_parts -= st->parts[--st->count].size_bytes;
        if (!digest_parts(st->parts, st->count, &digest))
            return mlo_error_nomem(err);
    }
    if (!mlo_digest_eq(&digest, &st->parts_digest)) {
        mlo_error_set(err, MLO_EDIGEST, "parts of upload %s are not what was stored", session->id);
        mlo_error_hint(err,
                       "two requests wrote to it at once, or the store is damaged: begin the upload again");
        return MLO_EDIGEST;
    }
    return MLO_OK;
}

enum mlo_status mlo_blob_s3_session_begin(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                          struct mlo_error *err)
{
    const struct mlo_blob_s3 *s = store->state;
    char *key = session_key(s, session), *upload = NULL;
    enum mlo_status status = key ? MLO_OK : mlo_error_nomem(err);
    if (status == MLO_OK)
        status = mlo_s3_multipart_create(s->s3, key, &upload, err);
    if (status == MLO_OK && (strlen(upload) >= UPLOAD_MAX || strchr(upload, ' '))) {
        status = mlo_error_set(err, MLO_EUNSUPPORTED, "the S3 server's name of an upload has %zu bytes",
                               strlen(upload));
        (void)!mlo_s3_multipart_abort(s->s3, key, upload, NULL);
    }
    if (status == MLO_OK)
        status = write_place(session, upload, NULL, 0, "", NULL, err);
    free(upload);
    free(key);
    return status;
}

/* --- pieces ---------------------------------------------------------------------------------------- */

struct loading {
    struct mlo_blob_s3_parts *parts;
    struct mlo_hasher *hasher;
};

static enum mlo_status into_parts(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    const struct loading *to = arg;
    mlo_hasher_update(to->hasher, bytes, size);
    return mlo_blob_s3_parts_write(to->parts, bytes, size, err);
}

static void free_piece(struct s3_piece *p)
{
    mlo_blob_s3_parts_free(p->parts, false);
    free(p->state.parts);
    free(p->key);
    free(p);
}

/* The bytes behind the last part go in front of what comes. */
static enum mlo_status load_rest(const struct mlo_blob_s3 *s, const struct mlo_blob_session *session,
                                 const struct s3_piece *p, struct mlo_error *err)
{
    uint64_t rest = session->size_bytes - p->state.in_parts;
    enum mlo_status status = MLO_OK;
    struct mlo_s3_object object;
    struct mlo_digest digest;
    if (!rest)
        return MLO_OK;
    if (!*p->state.rest)
        return gone(session, err);
    struct loading to = {p->parts, mlo_hasher_new()};
    char *key = rest_key(p->key, p->state.rest);
    if (!key || !to.hasher) {
        status = mlo_error_nomem(err);
        goto out;
    }
    status = mlo_s3_get(s->s3, key, 0, UINT64_MAX, rest, into_parts, &to, &object, err);
    if (status == MLO_ENOTFOUND || status == MLO_ETOOBIG || (status == MLO_OK && object.size_bytes != rest))
        status = gone(session, err);
    if (status != MLO_OK)
        goto out;
    mlo_hasher_final(to.hasher, &digest);
    if (p->state.rest_known && !mlo_digest_eq(&digest, &p->state.rest_digest)) {
        status = mlo_error_set(err, MLO_EDIGEST, "the last bytes of upload %s are not what was stored",
                               session->id);
        mlo_error_hint(err, "the store is damaged, or somebody writes to it: begin the upload again");
    }
out:
    mlo_hasher_free(to.hasher);
    free(key);
    return status;
}

enum mlo_status mlo_blob_s3_piece_open(struct mlo_blob_piece *piece, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = piece->store->state;
    const struct mlo_blob_session *session = piece->session;
    enum mlo_status status = MLO_OK;
    struct s3_piece *p = calloc(1, sizeof *p);
    if (!p || !(p->key = session_key(s, session))) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(read_state(s, session, p->key, &p->state, err));
    MLO_TRY(
        mlo_blob_s3_parts_new(s, p->key, p->state.upload, p->state.parts, p->state.count, 0, &p->parts, err));
    MLO_TRY(load_rest(s, session, p, err));
    if (*p->state.before && strcmp(p->state.before, p->state.rest) != 0) {
        char *key = rest_key(p->key, p->state.before); /* nobody can come back to it */
        if (key)
            (void)!mlo_s3_delete(s->s3, key, NULL);
        free(key);
    }
    piece->state = p;
    return MLO_OK;
out:
    if (p)
        free_piece(p);
    return status;
}

enum mlo_status mlo_blob_s3_piece_write(struct mlo_blob_piece *piece, const void *bytes, size_t size,
                                        struct mlo_error *err)
{
    struct s3_piece *p = piece->state;
    return mlo_blob_s3_parts_write(p->parts, bytes, size, err);
}

enum mlo_status mlo_blob_s3_piece_commit(struct mlo_blob_piece *piece, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = piece->store->state;
    struct mlo_blob_session *session = piece->session;
    struct s3_piece *p = piece->state;
    size_t size, count;
    struct mlo_digest digest;
    enum mlo_status status;
    char name[REST_NAME_SIZE], *key = NULL;
    MLO_TRY(mlo_blob_s3_parts_wait(p->parts, err));
    const char *rest = mlo_blob_s3_parts_rest(p->parts, &size);
    const struct mlo_s3_part *parts = mlo_blob_s3_parts_stored(p->parts, &count);
    if (size) {
        mlo_digest_of(rest, size, &digest);
        name_rest(session->size_bytes + piece->in.size_bytes, &digest, name);
        key = rest_key(p->key, name);
        if (!key) {
            status = mlo_error_nomem(err);
            goto out;
        }
        MLO_TRY(mlo_s3_put(s->s3, key, rest, size, &digest, err));
    }
    MLO_TRY(write_place(session, p->state.upload, parts, count, p->state.rest, size ? &digest : NULL, err));
out:
    free(key);
    return status;
}

void mlo_blob_s3_piece_end(struct mlo_blob_piece *piece)
{
    free_piece(piece->state);
}

/* --- the end ---------------------------------------------------------------------------------------- */

static enum mlo_status delete_entry(void *arg, const struct mlo_s3_entry *entry, struct mlo_error *err)
{
    const struct mlo_blob_s3 *s = arg;
    return mlo_s3_delete(s->s3, entry->key, err);
}

static enum mlo_status drop(struct mlo_blob_s3 *s, const struct mlo_blob_session *session, const char *key,
                            struct mlo_error *err)
{
    struct state st = {.upload = ""};
    enum mlo_status status = MLO_OK;
    if (read_place(session, &st))
        status = mlo_s3_multipart_abort(s->s3, key, st.upload, err);
    if (status == MLO_OK)
        status = mlo_s3_list(s->s3, key, delete_entry, s, err);
    return status;
}

enum mlo_status mlo_blob_s3_session_drop(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                         struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    char *key = session_key(s, session);
    enum mlo_status status = key ? drop(s, session, key, err) : mlo_error_nomem(err);
    free(key);
    return status;
}

/* Makes one object of the parts and the rest. */
static enum mlo_status complete(struct mlo_blob_s3 *s, const struct mlo_blob_session *session,
                                const char *key, struct mlo_error *err)
{
    struct s3_piece p = {.key = (char *)key};
    enum mlo_status status;
    MLO_TRY(read_state(s, session, key, &p.state, err));
    MLO_TRY(mlo_blob_s3_parts_new(s, key, p.state.upload, p.state.parts, p.state.count, 0, &p.parts, err));
    MLO_TRY(load_rest(s, session, &p, err));
    MLO_TRY(mlo_blob_s3_parts_complete(p.parts, err));
out:
    mlo_blob_s3_parts_free(p.parts, false);
    free(p.state.parts);
    return status;
}

/* Its parts, and what fills none yet. */
static enum mlo_status check_pieces(struct mlo_blob_s3 *s, const struct mlo_blob_session *session,
                                    const char *key, struct mlo_error *err)
{
    struct state st = {.upload = ""};
    struct mlo_s3_object object;
    char *rest = NULL;
    enum mlo_status status;
    MLO_TRY(read_state(s, session, key, &st, err));
    if (session->size_bytes == st.in_parts)
        goto out;
    if (!*st.rest) {
        status = gone(session, err);
        goto out;
    }
    rest = rest_key(key, st.rest);
    status = rest ? mlo_s3_head(s->s3, rest, &object, err) : mlo_error_nomem(err);
    if (status == MLO_ENOTFOUND ||
        (status == MLO_OK && object.size_bytes != session->size_bytes - st.in_parts))
        status = gone(session, err);
out:
    free(rest);
    free(st.parts);
    return status;
}

enum mlo_status mlo_blob_s3_session_check(struct mlo_blob_store *store,
                                          const struct mlo_blob_session *session, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    char *key = session_key(s, session);
    enum mlo_status status = key ? mlo_s3_head(s->s3, key, NULL, err) : mlo_error_nomem(err);
    if (status == MLO_ENOTFOUND) { /* not made one object yet */
        status = mlo_blob_s3_direct_info(session, NULL) ? mlo_blob_s3_direct_check(store, session, err)
                                                        : check_pieces(s, session, key, err);
        struct mlo_error absent = {0}; /* or it was, after we had looked for it */
        if (status == MLO_ENOTFOUND && mlo_s3_head(s->s3, key, NULL, &absent) == MLO_OK)
            status = MLO_OK;
    }
    free(key);
    return status;
}

/* Each step can be the last one before a kill: what is done already is not done again. */
enum mlo_status mlo_blob_s3_session_publish(struct mlo_blob_store *store,
                                            const struct mlo_blob_session *session,
                                            const struct mlo_digest *digest, struct mlo_error *err)
{
    struct mlo_blob_s3 *s = store->state;
    char *key = session_key(s, session);
    struct mlo_s3_object object;
    struct mlo_error absent = {0};
    enum mlo_status status = key ? MLO_OK : mlo_error_nomem(err);
    if (status != MLO_OK)
        return status;
    if (session->size_bytes == 0) { /* a multipart upload cannot make it */
        char *blob = mlo_blob_s3_key(s, digest);
        status = blob ? mlo_s3_put(s->s3, blob, "", 0, digest, err) : mlo_error_nomem(err);
        free(blob);
        if (status != MLO_OK)
            goto out;
    } else {
        status = mlo_s3_head(s->s3, key, &object, &absent);
        if (status == MLO_ENOTFOUND || (status == MLO_OK && object.size_bytes != session->size_bytes))
            MLO_TRY(complete(s, session, key, err));
        else if (status != MLO_OK && err)
            *err = absent;
        if (status != MLO_OK)
            goto out;
        MLO_TRY(mlo_blob_s3_publish(s, key, digest, err));
    }
    (void)!drop(s, session, key, NULL); /* what is left of it */
out:
    free(key);
    return status;
}
