/* Direct uploads, as far as a backend has no say. */
#include "registry/blob_direct.h"
#include "registry/blob_impl.h"

#include <stdlib.h>
#include <string.h>

static enum mlo_status not_here(struct mlo_error *err)
{
    return mlo_error_set(err, MLO_EUNSUPPORTED, "nobody writes past the server into a store of files");
}

enum mlo_status mlo_blob_direct_begin(struct mlo_blob_store *store, uint64_t size_bytes,
                                      const struct mlo_digest *digest, struct mlo_blob_session *out,
                                      struct mlo_error *err)
{
    enum mlo_status status = mlo_blob_session_new(out, err);
    if (status != MLO_OK)
        return status;
    if (!store->backend->direct_begin)
        return not_here(err);
    if (size_bytes == 0)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "nothing needs no parts");
    return store->backend->direct_begin(store, size_bytes, digest, out, err);
}

bool mlo_blob_direct_info(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                          struct mlo_blob_direct *out)
{
    return store->backend->direct_info && store->backend->direct_info(session, out);
}

uint64_t mlo_blob_direct_part_size(const struct mlo_blob_direct *direct, int number)
{
    uint64_t first = (uint64_t)(number - 1) * direct->part_size_bytes;
    return number < 1 || number > direct->parts
               ? 0
               : MLO_MIN(direct->part_size_bytes, direct->size_bytes - first);
}

enum mlo_status mlo_blob_direct_arrived(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                        bool **arrived, struct mlo_error *err)
{
    struct mlo_blob_direct direct;
    *arrived = NULL;
    if (!mlo_blob_direct_info(store, session, &direct))
        return not_here(err);
    *arrived = calloc((size_t)direct.parts + 1, sizeof **arrived);
    if (!*arrived)
        return mlo_error_nomem(err);
    enum mlo_status status = store->backend->direct_arrived(store, session, *arrived, err);
    if (status != MLO_OK) {
        free(*arrived);
        *arrived = NULL;
    }
    return status;
}

void mlo_blob_part_address_clear(struct mlo_blob_part_address *address)
{
    for (size_t i = 0; i < address->header_count; i++)
        free(address->headers[i].value);
    free(address->url);
    memset(address, 0, sizeof *address);
}

enum mlo_status mlo_blob_direct_address(struct mlo_blob_store *store, const struct mlo_blob_session *session,
                                        int number, const char *md5, struct mlo_blob_part_address *out,
                                        struct mlo_error *err)
{
    struct mlo_blob_direct direct;
    memset(out, 0, sizeof *out);
    if (!mlo_blob_direct_info(store, session, &direct))
        return not_here(err);
    if (number < 1 || number > direct.parts)
        return mlo_error_set(err, MLO_EINVAL, "there is no part %d: they are numbered 1 to %d", number,
                             direct.parts);
    return store->backend->direct_address(store, session, number, md5, out, err);
}

enum mlo_status mlo_blob_direct_verify(struct mlo_blob_store *store, struct mlo_blob_session *session,
                                       uint32_t budget_ms, bool *done, struct mlo_error *err)
{
    *done = false;
    if (!mlo_blob_direct_info(store, session, NULL))
        return not_here(err);
    return store->backend->direct_verify(store, session, budget_ms, done, err);
}
