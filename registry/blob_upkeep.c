/* Upkeep of any store, over its backend. */
#include "registry/blob_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool mlo_blob_name_digest(const char *name, char end, struct mlo_digest *out)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    size_t length = strlen(name), hex = 2 * sizeof out->bytes;
    if (length < hex || (name[hex] != '\0' && name[hex] != end))
        return false;
    snprintf(text, sizeof text, "sha256:%.*s", (int)hex, name);
    return mlo_digest_parse(text, out);
}

enum mlo_status mlo_blob_list(struct mlo_blob_store *store, unsigned shard, mlo_blob_entry_fn *fn, void *arg,
                              struct mlo_error *err)
{
    return store->backend->list(store, shard, fn, arg, err);
}

enum mlo_status mlo_blob_remove(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                struct mlo_error *err)
{
    return store->backend->remove(store, digest, err);
}

enum mlo_status mlo_blob_put_aside(struct mlo_blob_store *store, const struct mlo_digest *digest, char **name,
                                   struct mlo_error *err)
{
    char hex[MLO_DIGEST_TEXT_SIZE];
    struct mlo_buf to = MLO_BUF_INIT;
    mlo_buf_printf(&to, "%s.%lld", mlo_digest_hex(digest, hex), (long long)mlo_clock_utc_us());
    enum mlo_status status = mlo_buf_ok(&to) ? store->backend->put_aside(store, digest, mlo_buf_str(&to), err)
                                             : mlo_error_nomem(err);
    if (status == MLO_OK && name) {
        struct mlo_buf path = MLO_BUF_INIT;
        mlo_buf_printf(&path, "quarantine/%s", mlo_buf_str(&to));
        *name = mlo_buf_take(&path);
        if (!*name)
            status = mlo_error_nomem(err);
    }
    mlo_buf_clear(&to);
    return status;
}

const char *mlo_blob_leftover_name(enum mlo_blob_leftover_kind kind)
{
    static const char *const names[MLO_LEFTOVER_KINDS] = {
        [MLO_LEFTOVER_INCOMING] = "unfinished",
        [MLO_LEFTOVER_SESSION] = "upload",
        [MLO_LEFTOVER_MULTIPART] = "multipart",
        [MLO_LEFTOVER_QUARANTINE] = "quarantined",
    };
    return kind < MLO_LEFTOVER_KINDS ? names[kind] : "unknown";
}

enum mlo_status mlo_blob_leftovers(struct mlo_blob_store *store, mlo_blob_leftover_fn *fn, void *arg,
                                   struct mlo_error *err)
{
    return store->backend->leftovers(store, fn, arg, err);
}

enum mlo_status mlo_blob_leftover_look(struct mlo_blob_store *store, struct mlo_blob_leftover *left,
                                       struct mlo_error *err)
{
    return store->backend->leftover_look ? store->backend->leftover_look(store, left, err) : MLO_OK;
}

enum mlo_status mlo_blob_leftover_drop(struct mlo_blob_store *store, const struct mlo_blob_leftover *left,
                                       bool *removed, struct mlo_error *err)
{
    bool ignored;
    return store->backend->leftover_drop(store, left, removed ? removed : &ignored, err);
}
