/* Uploads whose parts go straight to the bucket: their addresses, what has arrived, and reading it back. */
#include <stdlib.h>
#include <string.h>

#include "api/http/direct_impl.h"
#include "api/http/handlers_impl.h"

enum {
    VERIFY_MS = 10000, /* of one request; a client asks again */
    PAGE_PARTS = 100,
    MD5_TEXT = 24, /* of 16 bytes in base64 */
};

/* [[first, last], …] of what is set in arrived[1 … parts]. */
static json_t *ranges(const bool *arrived, int parts)
{
    json_t *all = json_array();
    for (int first = 1, last; first <= parts; first = last + 1) {
        last = first;
        if (!arrived[first])
            continue;
        while (last < parts && arrived[last + 1])
            last++;
        json_array_append_new(all, json_pack("[i, i]", first, last));
    }
    return all;
}

enum mlo_status mlo_direct_state(struct mlo_request *req, const struct mlo_upload *upload, bool ask,
                                 json_t *state, struct mlo_error *err)
{
    struct mlo_blob_store *store = req->http->options.blobs;
    struct mlo_blob_direct direct;
    bool *arrived = NULL;
    char digest[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = MLO_OK;
    if (!mlo_blob_direct_info(store, &upload->session, &direct))
        return MLO_OK;
    json_t *member = json_pack("{s:I, s:I, s:i, s:I}", "size", (json_int_t)direct.size_bytes, "part_size",
                               (json_int_t)direct.part_size_bytes, "parts", direct.parts, "verified",
                               (json_int_t)upload->session.size_bytes);
    if (direct.whole)
        json_object_set_new(member, "digest", json_string(mlo_digest_text(&direct.digest, digest)));
    if (ask) {
        mlo_request_db_release(req);
        MLO_TRY(mlo_blob_direct_arrived(store, &upload->session, &arrived, err));
        json_object_set_new(member, "arrived", ranges(arrived, direct.parts));
    }
    if (json_object_set(state, "direct", member) != 0)
        status = mlo_error_nomem(err);
out:
    json_decref(member);
    free(arrived);
    return status;
}

enum mlo_status mlo_direct_verify(struct mlo_request *req, struct mlo_upload *upload, bool *done,
                                  struct mlo_error *err)
{
    struct mlo_blob_store *store = req->http->options.blobs;
    struct mlo_db_conn *conn;
    uint64_t before = upload->session.size_bytes;
    struct mlo_error failed = {0}, kept = {0};
    *done = true;
    if (!mlo_blob_direct_info(store, &upload->session, NULL))
        return MLO_OK;
    mlo_request_db_release(req); /* it may take long */
    enum mlo_status status = mlo_blob_direct_verify(store, &upload->session, VERIFY_MS, done, &failed),
                    keeping;
    if (status == MLO_EUNSUPPORTED) { /* it can never be finished: it is to expire */
        if (err)
            *err = failed;
        return status;
    }
    /* also after a failure: what was read need not be read again */
    keeping = mlo_request_db(req, &conn, &kept);
    if (keeping == MLO_OK)
        keeping = mlo_upload_keep(conn, upload, before, &kept);
    if (status == MLO_OK && keeping != MLO_OK) {
        failed = kept;
        status = keeping;
    }
    if (status != MLO_OK && err)
        *err = failed;
    return status;
}

static enum mlo_status check_md5(const char *md5, struct mlo_error *err)
{
    if (strlen(md5) == MD5_TEXT &&
        strspn(md5, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
                    "=") == MD5_TEXT)
        return MLO_OK;
    mlo_error_set(err, MLO_EINVAL, "'%.40s' is no MD5", md5);
    mlo_error_where(err, "field 'md5'");
    mlo_error_hint(err, "the 16 bytes of the part's MD5 in base64, as in Content-MD5");
    return MLO_EINVAL;
}

/* One part of the request: {"number", "md5"}, of a whole {"number"}. */
static enum mlo_status part_address(struct mlo_request *req, const struct mlo_upload *upload,
                                    const struct mlo_blob_direct *direct, const json_t *part, json_t *items,
                                    struct mlo_error *err)
{
    const char *md5 = NULL;
    struct mlo_blob_part_address address = {0};
    json_t *item = NULL, *headers;
    int64_t number;
    enum mlo_status status;
    MLO_TRY(mlo_json_get_i64(part, "number", NULL, &number, err));
    if (!direct->whole) {
        MLO_TRY(mlo_json_get_str(part, "md5", NULL, &md5, err));
        MLO_TRY(check_md5(md5, err));
    }
    if (number < 1 || number > direct->parts) {
        status = mlo_error_set(err, MLO_EINVAL, "there is no part %lld: they are numbered 1 to %d",
                               (long long)number, direct->parts);
        goto out;
    }
    MLO_TRY(
        mlo_blob_direct_address(req->http->options.blobs, &upload->session, (int)number, md5, &address, err));
    item =
        json_pack("{s:I, s:I, s:s, s:{}}", "number", (json_int_t)number, "size",
                  (json_int_t)mlo_blob_direct_part_size(direct, (int)number), "url", address.url, "headers");
    headers = json_object_get(item, "headers");
    for (size_t i = 0; i < address.header_count; i++)
        if (json_object_set_new(headers, address.headers[i].name, json_string(address.headers[i].value)) != 0)
            status = mlo_error_nomem(err);
    if (json_array_append(items, item) != 0)
        status = mlo_error_nomem(err);
out:
    json_decref(item);
    mlo_blob_part_address_clear(&address);
    return status;
}

enum mlo_status h_upload_parts(struct mlo_request *req, struct mlo_error *err)
{
    struct mlo_upload upload;
    struct mlo_blob_direct direct;
    json_t *body, *items = json_array(), *part;
    int64_t project;
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_project(req, &project, err));
    MLO_TRY(mlo_upload_find(req->conn, project, mlo_request_param(req, "id"), &upload, err));
    MLO_TRY(mlo_request_json(req, &body, err));
    const json_t *parts = json_object_get(body, "parts");
    if (!mlo_blob_direct_info(req->http->options.blobs, &upload.session, &direct)) {
        status =
            mlo_error_set(err, MLO_ECONFLICT, "upload %s comes in pieces, not in parts", upload.session.id);
        mlo_error_hint(err, "PATCH its pieces; or begin one with {\"size\": …, \"direct\": true}");
        goto out;
    }
    if (!json_is_array(parts) || json_array_size(parts) < 1 || json_array_size(parts) > PAGE_PARTS) {
        status = mlo_error_set(err, MLO_EINVAL, "'parts' is no list of 1 to %d parts", PAGE_PARTS);
        mlo_error_where(err, "field 'parts'");
        goto out;
    }
    json_array_foreach(parts, i, part) MLO_TRY(part_address(req, &upload, &direct, part, items, err));
    MLO_TRY(mlo_upload_keep(req->conn, &upload, upload.session.size_bytes,
                            err)); /* it goes on: not yet expired */
    mlo_reply_header(req, "Cache-Control", "no-store");
    MLO_TRY(mlo_reply_json(
        req, 200, json_pack("{s:i, s:O}", "expires_in", MLO_BLOB_PART_ADDRESS_S, "items", items), err));
out:
    json_decref(items);
    return status;
}
