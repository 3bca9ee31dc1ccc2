/* Sessions, as all backends share them: the hash goes on from piece to piece, whichever server takes it. */
#include "registry/blob_impl.h"

#include <stdlib.h>
#include <string.h>

enum mlo_status mlo_blob_session_new(struct mlo_blob_session *out, struct mlo_error *err)
{
    uint8_t random[(MLO_BLOB_SESSION_ID_SIZE - 1) / 2];
    struct mlo_hasher *hasher = mlo_hasher_new();
    memset(out, 0, sizeof *out);
    if (!hasher)
        return mlo_error_nomem(err);
    mlo_random_bytes(random, sizeof random);
    mlo_hex(random, sizeof random, out->id);
    mlo_hasher_save(hasher, &out->hash);
    mlo_hasher_free(hasher);
    return MLO_OK;
}

enum mlo_status mlo_blob_session_begin(struct mlo_blob_store *store, struct mlo_blob_session *out,
                                       struct mlo_error *err)
{
    enum mlo_status status = mlo_blob_session_new(out, err);
    return status == MLO_OK ? store->backend->session_begin(store, out, err) : status;
}

static enum mlo_status write_to_store(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    struct mlo_blob_piece *piece = arg;
    return piece->store->backend->piece_write(piece, bytes, size, err);
}

static enum mlo_status restore_hash(const struct mlo_blob_session *session, struct mlo_hasher *hasher,
                                    struct mlo_error *err)
{
    mlo_hasher_restore(hasher, &session->hash);
    if (mlo_hasher_size(hasher) == session->size_bytes)
        return MLO_OK;
    return mlo_error_set(err, MLO_EINTERNAL, "upload %s: its hash is of %llu bytes, not of %llu", session->id,
                         (unsigned long long)mlo_hasher_size(hasher),
                         (unsigned long long)session->size_bytes);
}

enum mlo_status mlo_blob_piece_open(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                    struct mlo_blob_piece **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_blob_piece *piece = calloc(1, sizeof *piece);
    *out = NULL;
    if (!piece)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_blob_intake_open(&piece->in, write_to_store, piece, err));
    if (mlo_blob_direct_info(store, session, NULL)) {
        status = mlo_error_set(err, MLO_ECONFLICT, "the parts of upload %s go to the bucket", session->id);
        mlo_error_hint(err, "ask for their addresses, or begin an upload in pieces");
        goto out;
    }
    piece->store = store;
    piece->session = session;
    MLO_TRY(restore_hash(session, piece->in.hasher, err));
    MLO_TRY(store->backend->piece_open(piece, err));
    *out = piece;
    return MLO_OK;
out:
    mlo_blob_intake_close(&piece->in);
    free(piece);
    return status;
}

enum mlo_status mlo_blob_piece_write(struct mlo_blob_piece *piece, const void *bytes, size_t size,
                                     struct mlo_error *err)
{
    if (piece->spent)
        return mlo_error_set(err, MLO_EINTERNAL, "a piece of an upload was used after its end");
    enum mlo_status status = mlo_blob_intake_add(&piece->in, bytes, size, err);
    piece->spent = status != MLO_OK;
    return status;
}

enum mlo_status mlo_blob_piece_commit(struct mlo_blob_piece *piece, struct mlo_error *err)
{
    if (piece->spent)
        return mlo_error_set(err, MLO_EINTERNAL, "a piece of an upload was used after its end");
    piece->spent = true;
    enum mlo_status status = MLO_OK;
    MLO_TRY(mlo_blob_intake_settle(&piece->in, err));
    MLO_TRY(piece->store->backend->piece_commit(piece, err));
    piece->session->size_bytes += piece->in.size_bytes;
    mlo_hasher_save(piece->in.hasher, &piece->session->hash);
out:
    return status;
}

void mlo_blob_piece_free(struct mlo_blob_piece *piece)
{
    if (!piece)
        return;
    mlo_blob_intake_close(&piece->in);
    piece->store->backend->piece_end(piece);
    free(piece);
}

enum mlo_status mlo_blob_session_digest(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                        struct mlo_digest *out, struct mlo_error *err)
{
    struct mlo_blob_direct direct;
    if (mlo_blob_direct_info(store, session, &direct) && direct.whole) {
        *out = direct.digest;
        return MLO_OK;
    }
    struct mlo_hasher *hasher = mlo_hasher_new();
    if (!hasher)
        return mlo_error_nomem(err);
    enum mlo_status status = restore_hash(session, hasher, err);
    if (status == MLO_OK)
        mlo_hasher_final(hasher, out);
    mlo_hasher_free(hasher);
    return status;
}

enum mlo_status mlo_blob_session_check(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                       struct mlo_error *err)
{
    return store->backend->session_check(store, session, err);
}

enum mlo_status mlo_blob_session_publish(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                         struct mlo_error *err)
{
    struct mlo_digest digest;
    enum mlo_status status = mlo_blob_session_digest(store, session, &digest, err);
    if (status != MLO_OK)
        return status;
    status = mlo_blob_direct_info(store, session, NULL)
                 ? store->backend->direct_publish(store, session, &digest, err)
                 : store->backend->session_publish(store, session, &digest, err);
    /* published before, and the answer was lost; files are looked at by their backend: the name of one may
     * not be on the disk yet */
    bool looks = status == MLO_ENOTFOUND && store->backend->fetch;
    return looks && mlo_blob_exists(store, &digest) ? MLO_OK : status;
}

enum mlo_status mlo_blob_session_drop(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                      struct mlo_error *err)
{
    return mlo_blob_direct_info(store, session, NULL) ? store->backend->direct_drop(store, session, err)
                                                      : store->backend->session_drop(store, session, err);
}
